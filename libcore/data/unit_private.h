/* unit_private.h - the state of a unit as a file, for unit.c. */
#ifndef D9DI_DATA_UNIT_PRIVATE_H
#define D9DI_DATA_UNIT_PRIVATE_H

#include "data/unit.h"

d9d_status d9di_unit_write(const d9di_unit_how *how, const d9di_unit_state *s);

#endif
