/* model_export.h - export a model's parameters, or a training checkpoint, as a HuggingFace
 * checkpoint.
 */
#ifndef D9D_CONVERT_MODEL_EXPORT_H
#define D9D_CONVERT_MODEL_EXPORT_H

#include "d9d/comm/bootstrap.h"
#include "d9d/model/lora/adapters.h"
#include "d9d/model/params_io.h"
#include "d9d/model/provider.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Can this model be exported in HuggingFace's format?  ENOTSUP names what prevents it: a shared
 * expert, several vocabulary splits, interleaved RoPE.  A model that came from a config.json can.
 * Also checks that the files that go along with the model can be copied: EPATH or ENOTFOUND. */
D9D_API D9D_MUST_USE d9d_status d9d_model_export_check(const d9d_model_spec *m);

/* Write a HuggingFace checkpoint to `dir`, which must be vacant and appears atomically: weights,
 * config.json, and the model's other files, of d9d_model_spec_aux_dir(), copied byte for byte.
 *
 * The expert layout is that of hf_config.  A model without a HuggingFace form is written in the
 * suite's own layout, without a config.json.  Adapters (NULL: none) are merged. */
D9D_API D9D_MUST_USE d9d_status d9d_model_export_params(const d9d_model_spec *m,
                                                        const d9d_params *params,
                                                        const d9d_adapters *ad, const char *dir,
                                                        const d9d_log *log);

/* The same for a training checkpoint of this model (d9d/checkpointer/checkpointer.h), whoever wrote
 * it; for jobs of several ranks, none of which has all weights.  Each rank makes a share of the
 * files. Collective: over all ranks of `bootstrap` (NULL: one process). */
D9D_API D9D_MUST_USE d9d_status d9d_model_export_checkpoint(const d9d_model_spec *m,
                                                            const char *saved,
                                                            const d9d_adapters *ad, const char *dir,
                                                            d9d_bootstrap *bootstrap,
                                                            const d9d_log *log);

#ifdef __cplusplus
}
#endif
#endif /* D9D_CONVERT_MODEL_EXPORT_H */
