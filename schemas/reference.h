/* reference.h - a configuration's key table as a Markdown page of docs/reference. */
#ifndef D9D_SCHEMAS_REFERENCE_H
#define D9D_SCHEMAS_REFERENCE_H

#include "d9d/config/config.h"

typedef struct d9di_reference {
    const char *id;    /* of the schema: "d9d.train.v1" */
    const char *page;  /* name of the file: "config-train.md" */
    const char *title; /* of the page */
    const char *intro; /* Markdown below the title */
} d9di_reference;

/* Appends the page: a section with a table of keys for each table below the root, where it is first
 * met.  ENOMEM, or EINVAL for a default that is not JSON. */
d9d_status d9di_reference_append(const d9d_table *table, const d9di_reference *r, d9d_buf *out);

#endif /* D9D_SCHEMAS_REFERENCE_H */
