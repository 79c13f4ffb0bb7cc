/* shard_unit_private.h - the state of a unit as a file. */
#ifndef D9DI_DATA_SHARD_UNIT_PRIVATE_H
#define D9DI_DATA_SHARD_UNIT_PRIVATE_H

#include "data/shard_unit.h"

d9d_status d9di_unit_write(const d9di_unit_how *how, const d9di_unit_state *s);

#endif
