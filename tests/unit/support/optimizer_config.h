/* optimizer_config.h - the section `optimizer` of a configuration, from text. */
#ifndef D9D_OPTIMIZER_CONFIG_H
#define D9D_OPTIMIZER_CONFIG_H

#include "d9d/optim/optim.h"

/* Bind the object `text`; the section refers to *doc, which the caller releases, and to the arena.
 * *doc may hold an earlier one. */
d9d_status optimizer_config_bind(const char *text, d9d_arena *a, json_t **doc, d9d_union *out);

#endif /* D9D_OPTIMIZER_CONFIG_H */
