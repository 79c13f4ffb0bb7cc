/* model_choice.h - which of the providers' sections reads a config.json. */
#ifndef D9DI_MODEL_CHOICE_H
#define D9DI_MODEL_CHOICE_H

#include "d9d/model/provider.h"

/* Does the provider read this "model_type"? */
bool d9di_model_accepts_type(const d9d_model_provider *p, const char *type);

/* Set the choice among out->choices that reads `doc`, which comes from the file `path`.  ECONFIG
 * without a "model_type"; ENOTSUP names those that are read. */
D9D_MUST_USE d9d_status d9di_model_choice_find(const json_t *doc, const char *path, d9d_union *out);

#endif /* D9DI_MODEL_CHOICE_H */
