/* families.h - the families that are built in as a page of docs/reference, from their tables. */
#ifndef D9D_SCHEMAS_FAMILIES_H
#define D9D_SCHEMAS_FAMILIES_H

#include "d9d/base/mem.h"

/* Appends families.md: the families, what a certificate checks, and what becomes of each field of
 * config.json.  ENOMEM. */
d9d_status d9di_families_append(d9d_buf *out);

#endif /* D9D_SCHEMAS_FAMILIES_H */
