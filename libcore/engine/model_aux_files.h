/* model_aux_files.h - auxiliary files in a model folder, such as the tokenizer. */
#ifndef D9DI_ENGINE_MODEL_AUX_FILES_H
#define D9DI_ENGINE_MODEL_AUX_FILES_H

#include "d9d/data/tokenizer/tokenizer.h"
#include "d9d/job/job.h"

/* What a configuration says of the model's folders. */
typedef struct d9di_model_aux_files_places {
    const d9d_union *provider;
    const char *source; /* of the weights; NULL: none */
} d9di_model_aux_files_places;

/* The path of a file with this name in the folder of the weights, else in that of the provider's
 * hf_config; in the arena.  *out is NULL if there is none. */
d9d_status d9di_model_aux_files_find(const d9di_model_aux_files_places *c, const char *name,
                                     d9d_arena *a, const char **out);
/* The same of the first of these names, NULL-ended, in the first folder that has any. */
d9d_status d9di_model_aux_files_find_any(const d9di_model_aux_files_places *c,
                                         const char *const *names, d9d_arena *a, const char **out);

#endif /* D9DI_ENGINE_MODEL_AUX_FILES_H */
