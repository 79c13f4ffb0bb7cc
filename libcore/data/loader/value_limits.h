/* value_limits.h - are the integers of a dataset those that somebody can learn from?
 *
 * A dataset that d9d-shard made knows the range of its values, and that of each split by share.
 * Only where the split's leaves the limits are its samples read, without those that are skipped,
 * until one is found: once, whatever the number of limits.
 */
#ifndef D9DI_DATA_LOADER_VALUE_LIMITS_H
#define D9DI_DATA_LOADER_VALUE_LIMITS_H

#include "d9d/data/loader/loader.h"

/* What must hold of a dataset's values. */
typedef struct d9di_value_limits {
    const d9d_field_request *requests; /* [n] values are below `limit`; 0: any */
    const size_t *index;               /* [n] the field of each in the dataset's list */
    size_t n;
    int64_t classes; /* the label of a document, its last that counts, is below; 0: any */
} d9di_value_limits;

/* EMISMATCH: the first sample with a value that is not within its limit. */
d9d_status d9di_value_limits_check(const d9d_loader_source *source,
                                   const d9di_value_limits *limits);

#endif /* D9DI_DATA_LOADER_VALUE_LIMITS_H */
