/* tokenizer_component.h - reading one component of a tokenizer.json: an object told by "type". */
#ifndef D9DI_DATA_TOKENIZER_TOKENIZER_COMPONENT_H
#define D9DI_DATA_TOKENIZER_TOKENIZER_COMPONENT_H

#include <stdbool.h>

#include "d9d/base/json.h"

/* One kind of component: its "type" and its other keys, each taken by `parse`. */
typedef struct d9di_tokenizer_component {
    const char *type;
    const char *keys; /* separated by single spaces */
    d9d_status (*parse)(const json_t *v, const char *where, void *into);
} d9di_tokenizer_component;

/* Find `v`'s type in `table` (ended by a NULL type), refuse keys that it does not have,
 * and parse.  An unknown type or key is ENOTSUP with its name. */
d9d_status d9di_tokenizer_component_parse(const d9di_tokenizer_component *table, const json_t *v,
                                          const char *where, void *into);

/* ENOTSUP for the first key of `v` that is not among `keys`. */
d9d_status d9di_tokenizer_component_check_keys(const json_t *v, const char *where,
                                               const char *keys);

/* A boolean that may be absent. */
d9d_status d9di_tokenizer_component_get_flag(const json_t *v, const char *where, const char *key,
                                             bool absent, bool *out);

/* The elements of v[key], each parsed by `table`. */
d9d_status d9di_tokenizer_component_parse_sequence(const d9di_tokenizer_component *table,
                                                   const json_t *v, const char *where,
                                                   const char *key, void *into);

#endif
