/* weights.h - a checkpoint directory into a model's parameters, and back.
 *
 * Loading takes a HuggingFace directory (either expert layout, either configuration
 * generation) or one in the suite's own layout; which it is shows in its tensors' names.
 * The mapping is planned before a byte is read, so a missing, unused or mis-shaped tensor
 * costs nothing; then it streams, each byte once, converted to the parameters' type.
 */
#ifndef D9D_MODEL_WEIGHTS_H
#define D9D_MODEL_WEIGHTS_H

#include "d9d/model/params_io.h"
#include "d9d/model/qwen3.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All of `params` must be materialised, of one type. */
D9D_API D9D_MUST_USE d9d_status d9d_weights_load(const d9d_qwen3_config *c,
                                                 const d9d_params *params, const char *dir,
                                                 const d9d_log *log);

/* Write a HuggingFace checkpoint to `dir`, which must be vacant and appears whole: weights,
 * config.json, and what `hf_dir` (NULL: nothing) has beside its weights: tokenizer files and
 * the like, byte for byte.  The expert layout is that of hf_dir's configuration. */
D9D_API D9D_MUST_USE d9d_status d9d_weights_export(const d9d_qwen3_config *c,
                                                   const d9d_params *params, const char *dir,
                                                   const char *hf_dir, const d9d_log *log);

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_WEIGHTS_H */
