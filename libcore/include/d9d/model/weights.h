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

/* Can `dir` give the weights of this model?  Plans from headers alone; takes no memory for it.
 * ENOTFOUND, EFORMAT, EMISMATCH, ECONFIG: what loading would say before it reads. */
D9D_API D9D_MUST_USE d9d_status d9d_weights_check(const d9d_qwen3_config *c, d9d_dtype dtype,
                                                  const char *dir);

/* All of `params` must be materialised, of one type. */
D9D_API D9D_MUST_USE d9d_status d9d_weights_load(const d9d_qwen3_config *c,
                                                 const d9d_params *params, const char *dir,
                                                 const d9d_log *log);

/* Has this model a HuggingFace form?  ENOTSUP says what is in the way: a shared expert, several
 * vocabulary splits, interleaved RoPE.  One that came from a config.json has. */
D9D_API D9D_MUST_USE d9d_status d9d_weights_check_export(const d9d_qwen3_config *c,
                                                         const char *hf_config);

/* Write a HuggingFace checkpoint to `dir`, which must be vacant and appears whole: weights,
 * config.json, and what stands beside `hf_config` (a config.json, or a directory that has one;
 * NULL: nothing): tokenizer files and the like, byte for byte.  A configuration file of another
 * name brings nothing with it.  The expert layout is that of hf_config.  A model without a
 * HuggingFace form is written in the suite's own layout, without a config.json. */
D9D_API D9D_MUST_USE d9d_status d9d_weights_export(const d9d_qwen3_config *c,
                                                   const d9d_params *params, const char *dir,
                                                   const char *hf_config, const d9d_log *log);

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_WEIGHTS_H */
