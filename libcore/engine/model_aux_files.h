/* model_aux_files.h - files that lie beside a model's weights: its tokenizer, what ends a text. */
#ifndef D9DI_ENGINE_MODEL_AUX_FILES_H
#define D9DI_ENGINE_MODEL_AUX_FILES_H

#include "d9d/data/tokenizer/tokenizer.h"
#include "d9d/job/job.h"

/* The file of that name in the folder of the weights, else in that of the provider's hf_config, in
 * the arena; *out is NULL where there is none. */
d9d_status d9di_model_aux_files_find(const d9d_infer_config *c, const char *name, d9d_arena *a,
                                     const char **out);

/* "eos_token_id", one or several, of generation_config.json, else of config.json, in the first of
 * these folders that has one; appended. */
d9d_status d9di_model_aux_files_read_eos(const d9d_infer_config *c, d9d_token_ids *out);

#endif /* D9DI_ENGINE_MODEL_AUX_FILES_H */
