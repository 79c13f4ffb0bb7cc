/* qwen3_map.h - names and shapes of Qwen3's tensors, here and in HuggingFace files, and the mapping
 * between them.
 *
 * Three layouts of the same weights (H hidden features, E experts, N the size of an expert; all
 * names and shapes are one table, libcore/models/qwen3/qwen3_names.c):
 *
 *     D9D        mlp.grouped_experts.{gate,up}_proj.weight [E,H,N], ...down_proj.weight [E,N,H]
 *     HF         mlp.experts.{e}.{gate,up}_proj.weight [N,H], ...down_proj.weight [H,N]
 *     HF_FUSED   mlp.experts.gate_up_proj [E,2N,H], mlp.experts.down_proj [E,H,N]
 *
 *     d9d_tensor_source src = d9d_checkpoint_source(ckpt);
 *     D9D_TRY(d9d_qwen3_mapper(&c, D9D_WHOLE_MODEL, &src, D9D_LAYOUT_D9D, &m));
 *     D9D_TRY(d9d_map_plan_create(m, &src, &opt, &plan));
 *
 * and of every head:
 *
 *     D9D              HF
 *     model.{name}     model.{name}, or {name} alone in a base model (the head "embedding")
 *     lm_head.lm_head.{v}.weight         lm_head.weight
 *     cls_head.score.weight              score.weight
 *     embedding_head.projection.weight   none: ENOTSUP both ways.  A model with a projection is
 *                                        filled from a D9D checkpoint that has one; to begin
 *                                        with HuggingFace's weights, map with embedding_dim 0
 *                                        and initialise it
 *
 * Mappings know the shape of each input.  A tied language model has no head of its own.  Files that
 * have one (some do) lose it on the way into a model; between files it is kept (`tied_copy`).  A
 * pipeline's last stage also has the embedding of a tied model, under its own name; only the first
 * stage exports it.
 */
#ifndef D9D_MODELS_QWEN3_QWEN3_MAP_H
#define D9D_MODELS_QWEN3_QWEN3_MAP_H

#include "d9d/ckpt/mapper/mapper.h"
#include "d9d/model/provider.h"
#include "d9d/models/qwen3/qwen3.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The layout of a source, found by its tensors' names. */
D9D_API d9d_weights_layout d9d_qwen3_layout(const d9d_tensor_source *src);

/* Complete the configuration from the source's names, for conversions, which take a checkpoint as
 * it is.  Sets `prefixed` and `tied_copy`.  Sets the head if config.json left it open, or if names
 * without "model." show a base model (Qwen3-Embedding's config.json says Qwen3ForCausalLM). */
D9D_API void d9d_qwen3_infer_config(const d9d_tensor_source *src, d9d_qwen3_config *c);

/* Map a source in any layout to `to`, for the tensors of one stage.  On a stage that is not the
 * whole model the source has more tensors, so plan with allow_unused.  Only the source's names are
 * read. ENOTSUP for what HuggingFace's format cannot express (several vocabulary splits, a shared
 * expert, a projection). */
D9D_API D9D_MUST_USE d9d_status d9d_qwen3_mapper(const d9d_qwen3_config *c, d9d_stage stage,
                                                 const d9d_tensor_source *src,
                                                 d9d_weights_layout to, d9d_mapper **out);

/* All matrices of linear layers and experts that HuggingFace's files have, in the arena. */
D9D_API D9D_MUST_USE d9d_status d9d_qwen3_matrices(const d9d_qwen3_config *c, d9d_arena *a,
                                                   d9d_model_matrices *out);

/* A source in the layout D9D with random weights: ones in norms, N(0, init_std) elsewhere
 * (0.02 when init_std is 0).  Element i of a tensor is a function of (seed, d9d_hash_u64 of
 * its name, i): the weights that d9d_module_reset() gives a model with the same init_std. */
typedef struct d9d_qwen3_init d9d_qwen3_init;
D9D_API D9D_MUST_USE d9d_status d9d_qwen3_init_open(const d9d_qwen3_config *c, d9d_dtype dtype,
                                                    uint64_t seed, d9d_qwen3_init **out);
D9D_API void d9d_qwen3_init_close(d9d_qwen3_init *r);
D9D_API d9d_tensor_source d9d_qwen3_init_source(d9d_qwen3_init *r); /* borrows r */

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODELS_QWEN3_QWEN3_MAP_H */
