/* tokenizer_component.h - parses one component of a tokenizer.json: an object selected by
 * "type". */
#ifndef D9DI_DATA_TOKENIZER_TOKENIZER_COMPONENT_H
#define D9DI_DATA_TOKENIZER_TOKENIZER_COMPONENT_H

#include <stdbool.h>

#include "d9d/base/json.h"

/* One kind of component: its "type", its other keys, and its parser. */
typedef struct d9di_tokenizer_component {
    const char *type;
    const char *keys; /* separated by single spaces; NULL: any */
    d9d_status (*parse)(const json_t *v, const char *where, void *into);
} d9di_tokenizer_component;

/* Finds `v`'s type in `table` (terminated by a NULL type), rejects unknown keys, and parses.  An
 * unknown type or key is ENOTSUP with its name. */
d9d_status d9di_tokenizer_component_parse(const d9di_tokenizer_component *table, const json_t *v,
                                          const char *where, void *into);

/* ENOTSUP for the first key of `v` that is not among `keys`. */
d9d_status d9di_tokenizer_component_check_keys(const json_t *v, const char *where,
                                               const char *keys);

/* Gets an optional boolean. */
d9d_status d9di_tokenizer_component_get_flag(const json_t *v, const char *where, const char *key,
                                             bool absent, bool *out);

/* Parses each element of v[key] with `table`. */
d9d_status d9di_tokenizer_component_parse_sequence(const d9di_tokenizer_component *table,
                                                   const json_t *v, const char *where,
                                                   const char *key, void *into);

#endif
