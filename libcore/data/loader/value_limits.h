/* value_limits.h - are the integers of a dataset those that somebody can learn from?
 *
 * A dataset that d9d-shard made knows the range of its values.  Only where that leaves the limits
 * are samples read, of the split and without those that are skipped, until one is found.
 */
#ifndef D9DI_DATA_LOADER_VALUE_LIMITS_H
#define D9DI_DATA_LOADER_VALUE_LIMITS_H

#include "d9d/data/loader/loader.h"

/* EMISMATCH if a sample has a value of the field, number `index` of its dataset's, that is not
 * below r->limit. */
d9d_status d9di_value_limits_check_field(const d9d_loader_source *source, size_t index,
                                         const d9d_field_request *r);
/* EMISMATCH if the label of a document, its last that counts, is none of the classes 0 to n - 1. */
d9d_status d9di_value_limits_check_classes(const d9d_loader_source *source, int64_t n);

#endif /* D9DI_DATA_LOADER_VALUE_LIMITS_H */
