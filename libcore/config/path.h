/* path.h - the position of a walk in a document: a chain on the stack, text on demand. */
#ifndef D9D_CONFIG_PATH_H
#define D9D_CONFIG_PATH_H

#include <stddef.h>

#include "d9d/base/mem.h"

typedef struct d9di_path {
    const struct d9di_path *up; /* NULL: the root, whose key is the document's name */
    const char *key;            /* NULL: element `index` of a list */
    size_t index;
} d9di_path;

/* "config.json: trainer.phases[2].mode"; keys that are not plain words are quoted.  Never NULL: if
 * memory is out it is the document's name. */
const char *d9di_path_text(const d9di_path *p, d9d_arena *a);

#endif /* D9D_CONFIG_PATH_H */
