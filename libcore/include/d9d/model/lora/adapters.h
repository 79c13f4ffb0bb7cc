/* adapters.h - low-rank adapters in host memory: between models, files and merged weights.
 *
 *     of a model or its checkpoint   d9d_adapters_from_model() --.       .--> _write()  files
 *     of a directory                 d9d_adapters_read() --+- A, B +--> _fill()   a model
 *                                                                  '--> _merge()  W + s B A
 *
 * Files are those of HuggingFace's peft: adapter_config.json, and adapter_model.safetensors with
 *
 *     base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight      [r, in]
 *     base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight      [out, r]
 *     base_model.model.model.layers.0.mlp.experts.3.up_proj.lora_A.weight ...
 *
 * experts one by one, as in the HuggingFace layout of a model; peft puts them together for a
 * transformers that has them fused.  What peft itself saves of fused experts is read too:
 * mlp.experts.lora_A.weight [r E, in] with B [out, r E], or mlp.experts.base_layer.lora_A.weight.
 *
 * Numbers are float32 here, and of the type that they came in when they are written.
 */
#ifndef D9D_MODEL_LORA_ADAPTERS_H
#define D9D_MODEL_LORA_ADAPTERS_H

#include "d9d/model/provider.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_adapters d9d_adapters;
D9D_API void d9d_adapters_free(d9d_adapters *ad);

/* Those of a bound model: `params` has their factors, and `src` has these by name, whole.  With
 * them goes a classifier's head among the parameters that is trained. */
D9D_API D9D_MUST_USE d9d_status d9d_adapters_from_model(const d9d_params *params,
                                                        const d9d_tensor_source *src,
                                                        d9d_adapters **out);
/* A directory, for a model that has these matrices.  ENOTSUP for what changes weights in another
 * way than B A: DoRA, biases, modules saved whole but a classifier's head, another method, factors
 * that were begun from the matrix (PiSSA and its like) and not converted, layers used twice;
 * EMISMATCH for a factor of no matrix of this model, or of another shape, a matrix with one factor,
 * and experts of which some have none.  Modules that target_modules names and that have no factors
 * add nothing, with a warning, as in peft.  `base` is where the weights come from that they are
 * added to, NULL when nobody knows; a warning when base_model_name_or_path names others. */
D9D_API D9D_MUST_USE d9d_status d9d_adapters_read(const char *dir, const d9d_model_matrices *of,
                                                  const char *base, const d9d_log *log,
                                                  d9d_adapters **out);

/* Write a directory, which appears whole; what is there is replaced.  `base` is the name of the
 * model that is adapted, or NULL.  ENOTSUP for an adapter of a matrix that is not among these. */
D9D_API D9D_MUST_USE d9d_status d9d_adapters_write(const d9d_adapters *ad,
                                                   const d9d_model_matrices *of, const char *base,
                                                   const char *dir, const d9d_log *log);

/* `params` are the adapters of a whole model: EMISMATCH unless there are as many, of the same
 * matrices, ranks and scales. */
D9D_API D9D_MUST_USE d9d_status d9d_adapters_check(const d9d_adapters *ad,
                                                   const d9d_params *params);
/* Into the adapters of a model that has been checked, or of a stage of it, which have memory. */
D9D_API D9D_MUST_USE d9d_status d9d_adapters_to_model(const d9d_adapters *ad,
                                                      const d9d_params *params, const d9d_log *log);

/* Is a parameter of this name among the heads? */
D9D_API bool d9d_adapters_have_head(const d9d_adapters *ad, const char *param);

/* Heads that were trained whole beside adapters: what peft calls modules_to_save, "score".  They go
 * into the parameters of their names, of which a stage may have none.  EMISMATCH for another
 * shape. */
D9D_API D9D_MUST_USE d9d_status d9d_adapters_heads_to_model(const d9d_adapters *ad,
                                                            const d9d_params *params,
                                                            const d9d_log *log);

/* The tensors of `src`, which is in this layout, without factors of adapters and with matrices
 * merged: W + alpha / r B A, in float32 and rounded once, the same bits in every layout.  Heads
 * that were trained whole take the place of those that `src` has.  `ad` and `src` are borrowed.
 * EMISMATCH for an adapter whose matrix is not there. */
typedef struct d9d_lora_merge d9d_lora_merge;
D9D_API D9D_MUST_USE d9d_status d9d_lora_merge_create(const d9d_adapters *ad,
                                                      const d9d_model_matrices *of,
                                                      d9d_weights_layout layout,
                                                      const d9d_tensor_source *src,
                                                      d9d_lora_merge **out);
D9D_API d9d_tensor_source d9d_lora_merge_source(d9d_lora_merge *m);
D9D_API void d9d_lora_merge_free(d9d_lora_merge *m);

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_LORA_ADAPTERS_H */
