/* shard_unit_private.h - the state of a unit, and other files of a run, as JSON. */
#ifndef D9DI_DATA_BUILD_SHARD_UNIT_PRIVATE_H
#define D9DI_DATA_BUILD_SHARD_UNIT_PRIVATE_H

#include "d9d/base/json.h"
#include "data/build/shard_unit.h"

/* Whether a file of work, whose text and whose document these are, is d9d.<name>.v2 and as it was
 * sealed; v1 had no seal.  EFORMAT. */
d9d_status d9di_shard_unit_check_sum(const json_t *root, const char *where, const char *name,
                                     const d9d_buf *text);

d9d_status d9di_shard_unit_state_write(const d9di_shard_unit_opts *how,
                                       const d9di_shard_unit_state *s);

#endif
