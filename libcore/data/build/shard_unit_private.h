/* shard_unit_private.h - checking the seal of a unit's state and of other JSON working files. */
#ifndef D9DI_DATA_BUILD_SHARD_UNIT_PRIVATE_H
#define D9DI_DATA_BUILD_SHARD_UNIT_PRIVATE_H

#include "d9d/base/json.h"
#include "data/build/shard_unit.h"

/* Checks that a working file with this text is d9d.<name>.v2 and that its seal (checksum) fits; v1
 * had no seal.  EFORMAT. */
d9d_status d9di_shard_unit_check_sum(const json_t *root, const char *where, const char *name,
                                     const d9d_buf *text);

d9d_status d9di_shard_unit_state_write(const d9di_shard_unit_opts *opts,
                                       const d9di_shard_unit_state *s);

#endif
