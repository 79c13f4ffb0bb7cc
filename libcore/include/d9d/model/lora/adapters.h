/* adapters.h - adapters in host memory: between models, files and merged weights.
 *
 *     of a model or its checkpoint   d9d_adapters_from_model() --.         .--> _write()   files
 *     of a directory                 d9d_adapters_read() --------+-- A, B -+--> _to_model()
 *                                                                          '--> merged
 *                                                                     d9d_adapters_merge_create()
 *
 * Files are those of HuggingFace's peft: adapter_config.json, and adapter_model.safetensors with
 *
 *     base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight      [r, in]
 *     base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight      [out, r]
 *     base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector  [out]    of DoRA
 *     base_model.model.model.layers.0.self_attn.k_proj.ia3_l                  [out, 1] of (IA)^3
 *     base_model.model.model.layers.0.mlp.down_proj.ia3_l                     [1, in]
 *     base_model.model.model.layers.0.mlp.experts.lora_A.weight               [r E, in]
 *     base_model.model.model.layers.0.mlp.experts.base_layer.lora_A.weight    ...
 *     base_model.model.model.embed_tokens.lora_embedding_A                    [r, ids], _B [in, r]
 *     base_model.model.model.norm.weight                                      [in]: modules_to_save
 *     prompt_embeddings                                                       [P, H], alone: prompt
 * tuning
 *
 * as peft saves them over the model that transformers makes: experts are parameters of a module
 * there (target_parameters), and of several parameters of a module the last one's adapter has its
 * name. Matrices that share a tensor there have one adapter together:
 *
 *     q_proj, k_proj, v_proj   A_q, B_q ...      qkv_proj   A = [A_q; A_k; A_v]
 *                                                           B = diag(B_q, B_k, B_v)
 *
 * with a common A only once.  A matrix without an adapter has zeros in B.  So it is exact, and
 * needs the same alpha / r of all.  The metadata of the file say which columns are whose; without,
 * as peft writes files, each matrix has them all: the same A, and its rows of B.  One adapter for
 * each expert, of transformers 4, is read too.
 *
 * Factors are float32 in memory, and are written in the type that they were read in.
 */
#ifndef D9D_MODEL_LORA_ADAPTERS_H
#define D9D_MODEL_LORA_ADAPTERS_H

#include "d9d/model/provider.h"
#include "d9d/nn/adapter.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_adapters d9d_adapters;
D9D_API void d9d_adapters_free(d9d_adapters *ad);

/* Take the adapters of a bound model: `params` has their factors, and `src` has these by name,
 * whole.  `saved`: with the parameters that are trained whole beside them, as files have them; what
 * is merged into such a model needs none. */
D9D_API D9D_MUST_USE d9d_status d9d_adapters_from_model(const d9d_params *params,
                                                        const d9d_tensor_source *src, bool saved,
                                                        d9d_adapters **out);
/* Are files of this peft_type read without a plugin? */
D9D_API bool d9d_adapters_is_built_in(const char *peft_type);
/* Read a directory, for a model with these matrices.  `kinds`: those with files of their own, by
 * their peft_type, which plugins bring; NULL-ended, or NULL.
 *
 * ENOTSUP for methods other than LoRA, DoRA, (IA)^3, prompt tuning and those, and for biases,
 * layers used twice, factors initialised from the matrix (PiSSA and similar) that were not
 * converted, and one module of two that share a weight (tied) saved whole.  EMISMATCH for a tensor
 * without a place in this model or of another shape, a matrix with one factor, and experts of which
 * only some have factors.
 *
 * Modules that target_modules names and that have no factors add nothing, with a warning, as in
 * peft. `base` is the source of the weights that they are added to, or NULL if unknown; a different
 * base_model_name_or_path gives a warning. */
D9D_API D9D_MUST_USE d9d_status d9d_adapters_read(const char *dir, const d9d_model_matrices *of,
                                                  const d9d_adapter_kind *const *kinds,
                                                  const char *base, const d9d_log *log,
                                                  d9d_adapters **out);

/* Write a directory, atomically; an existing one is replaced.  `base` is the name of the base
 * model, or NULL.  ENOTSUP for an adapter of a matrix that is not in `of`. */
D9D_API D9D_MUST_USE d9d_status d9d_adapters_write(const d9d_adapters *ad,
                                                   const d9d_model_matrices *of, const char *base,
                                                   const char *dir, const d9d_log *log);

/* Can the adapters of a whole model, and what is trained whole beside them, be written so?  ECONFIG
 * for adapters of several methods and for matrices that share a tensor in transformers' model and
 * whose adapters do not fit together, ENOTSUP for one that is not in `of`, and for a part of a
 * tensor that is trained whole. */
D9D_API D9D_MUST_USE d9d_status d9d_adapters_check_writable(const d9d_params *params,
                                                            const d9d_model_matrices *of);

/* Check that `params`, the adapters of a whole model, have the same matrices, methods, ranks and
 * scales: EMISMATCH. */
D9D_API D9D_MUST_USE d9d_status d9d_adapters_check(const d9d_adapters *ad,
                                                   const d9d_params *params);
/* Copy into the adapters of a checked model, or of a stage of it; they must have memory. */
D9D_API D9D_MUST_USE d9d_status d9d_adapters_to_model(const d9d_adapters *ad,
                                                      const d9d_params *params, const d9d_log *log);

/* Are they the virtual tokens of prompt tuning, which are never merged? */
D9D_API bool d9d_adapters_are_prompt(const d9d_adapters *ad);
/* Check that a whole model has as many virtual tokens, of as many features; `dir` is where they
 * come from.  ECONFIG if one has none, EMISMATCH. */
D9D_API D9D_MUST_USE d9d_status d9d_adapters_prompt_check(const d9d_adapters *ad, const char *dir,
                                                          const d9d_params *params);

/* Is a parameter of this name one of those that were trained whole? */
D9D_API bool d9d_adapters_have_saved(const d9d_adapters *ad, const char *param);

/* Check that a whole model's parameters that were trained whole are trained: else they would be
 * lost in what is written.  EMISMATCH. */
D9D_API D9D_MUST_USE d9d_status d9d_adapters_saved_check_trained(const d9d_adapters *ad,
                                                                 const d9d_params *params);
/* Copy what was trained whole beside adapters (peft's modules_to_save) into the parameters of these
 * names, of which a stage may have none.  EMISMATCH for another shape. */
D9D_API D9D_MUST_USE d9d_status d9d_adapters_saved_to_model(const d9d_adapters *ad,
                                                            const d9d_params *params,
                                                            const d9d_log *log);

/* A source of the tensors of `src`, which is in this layout, with the adapters merged and their
 * parameters left out, with the same bits in every layout: W + alpha / r B A, rows divided by their
 * norms and multiplied by magnitudes, rows and columns multiplied by factors, or rows as the
 * merge() of a kind makes them.  ENOTSUP for virtual tokens.  Arithmetic is float32, rounded once,
 * to the type of `src` or, with as_float32, not at all.  Parameters that were trained whole replace
 * those of `src`.  `ad` and `src` are borrowed.  EMISMATCH for an adapter whose matrix is missing.
 */
typedef struct d9d_adapters_merge d9d_adapters_merge;
D9D_API D9D_MUST_USE d9d_status d9d_adapters_merge_create(
    const d9d_adapters *ad, const d9d_model_matrices *of, d9d_weights_layout layout,
    const d9d_tensor_source *src, bool as_float32, d9d_adapters_merge **out);
D9D_API d9d_tensor_source d9d_adapters_merge_source(d9d_adapters_merge *m);
D9D_API void d9d_adapters_merge_free(d9d_adapters_merge *m);

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_LORA_ADAPTERS_H */
