/* qwen3.h - Qwen3 and Qwen3-MoE.
 *
 * One model for dense, MoE and mixed configurations: each layer's feed-forward part is either a
 * dense SwiGLU or a mixture of experts.
 *
 *     ids --embed--> x --[ x + attn(norm(x));  x + ffn(norm(x)) ] * L--> norm --head--> loss
 *
 * The table of parameter names and shapes is libcore/models/qwen3/qwen3_names.c.  With tied
 * embeddings the head of a language model uses the embedding's tables and has no parameters of its
 * own; with a pipeline the last stage has the embedding too.  Checkpoints with any head are mapped
 * (qwen3_map.h).  The model computes the head of a language model; with another head
 * (d9d/model/head.h) it ends with the final norm.
 */
#ifndef D9D_MODELS_QWEN3_QWEN3_H
#define D9D_MODELS_QWEN3_QWEN3_H

#include "d9d/base/dtype.h"
#include "d9d/base/mem.h"
#include "d9d/model/head.h"
#include "d9d/model/model.h"
#include "d9d/nn/block.h"
#include "d9d/parallel/parallel_plan.h"
#include "d9d/pipe/stage.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The dimensions, from config.json (hf_config.h) or from the reference framework's parameters.
 * Strings and arrays are borrowed from an arena that outlives the model. */
typedef struct d9d_qwen3_config {
    int64_t hidden, layers, heads, kv_heads, head_dim;
    int64_t dense_intermediate;  /* FFN size of dense layers; 0 when there are none */
    int64_t expert_intermediate; /* FFN size of one expert; 0 when there are none */
    int64_t shared_intermediate; /* FFN size of the shared expert; 0: none */
    bool shared_gate;            /* the shared expert's output times sigmoid(gate(x)) */
    int64_t experts, top_k;      /* 0 in a dense model */
    bool renormalise;            /* top-k probabilities are divided by their sum */
    d9d_block_router router;     /* of every mixture of experts */
    const bool
        *moe_layer; /* [layers]: which have a mixture of experts; NULL: all when experts > 0 */
    float norm_eps;
    double rope_base;
    d9d_rope_scaling rope_scaling;
    bool rope_interleaved; /* HuggingFace weights are HALF style: false */
    int64_t
        window; /* sliding window: most keys that a query sees, its own counted; 0: all before it */
    const bool *windowed; /* [layers]: which have the window; NULL: all, if there is one */
    int64_t max_positions;
    const d9d_block_vocab_split *splits; /* in order of ids */
    size_t n_splits;
    d9d_head_kind head;
    int64_t labels;        /* number of labels, for classification */
    int64_t embedding_dim; /* features of an embedding's projection; 0: no projection */
    bool tied;
    double attention_dropout; /* training refuses all but 0; inference ignores it */
    /* > 0: N(0, std) for every matrix; 0: uniform within 1 / sqrt(fan-in), and N(0, 1) in the
     * embedding */
    double init_std;
    int64_t virtual_pre, virtual_post; /* d9d/pipe/stage.h */
    /* Of this model's files; see d9d_qwen3_infer_config(). */
    bool head_unknown; /* config.json does not name the head */
    bool prefixed; /* names of a base model begin with "model." in the files, as with other heads */
    bool tied_copy; /* the files of a tied model have a head, a copy of the embedding */
    bool new_head;  /* the head is a task's: a source may have another, which is ignored, or none */
} d9d_qwen3_config;

static inline bool d9d_qwen3_is_moe(const d9d_qwen3_config *c, int64_t layer)
{
    return c->experts > 0 && (c->moe_layer == NULL || c->moe_layer[layer]);
}
static inline int64_t d9d_qwen3_window(const d9d_qwen3_config *c, int64_t layer)
{
    return c->windowed == NULL || c->windowed[layer] ? c->window : 0;
}
D9D_API int64_t d9d_qwen3_vocab(const d9d_qwen3_config *c);

/* ECONFIG names the field unless every number is positive, heads is a multiple of kv_heads, top_k
 * is at most experts, head_dim is even, and there is at least one vocabulary split. */
D9D_API D9D_MUST_USE d9d_status d9d_qwen3_check(const d9d_qwen3_config *c);

/* The same model with another head, in the arena: set_head() of d9d_model_provider. */
D9D_API D9D_MUST_USE d9d_status d9d_qwen3_set_head(const d9d_qwen3_config *c, d9d_arena *a,
                                                   d9d_head *head, const d9d_qwen3_config **out);

/* Can it be trained as configured?  ENOTSUP with dropout. */
D9D_API D9D_MUST_USE d9d_status d9d_qwen3_trainable(const d9d_qwen3_config *c);

/* Create this stage's layers: structure only, no memory for parameters.  `config` is borrowed and
 * must outlive the model. */
D9D_API D9D_MUST_USE d9d_status d9d_qwen3_create(const d9d_qwen3_config *config, d9d_stage stage,
                                                 const d9d_model_opts *options, d9d_model **out);

/* Can this mesh divide the model?  ECONFIG names the degree and the dimension that it does not
 * divide. */
D9D_API D9D_MUST_USE d9d_status d9d_qwen3_plan_check(const d9d_qwen3_config *c,
                                                     const d9d_parallel_degrees *d);
/* Place its parameters on the mesh.  Collective: over the world. */
D9D_API D9D_MUST_USE d9d_status d9d_qwen3_plan(const d9d_qwen3_config *c, d9d_mesh *mesh,
                                               d9d_model *m);

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODELS_QWEN3_QWEN3_H */
