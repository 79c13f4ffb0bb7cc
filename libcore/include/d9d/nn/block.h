/* block.h - the blocks that models are composed of: linear, norms, embedding and head, attention,
 * masked LM head, learned positions, gated delta net, MLA, FFN, mixture of experts.
 *
 * Each block is a struct that a model embeds, an init that declares its parameters (structure only,
 * no memory), and a forward that calls ops.  Models compose them in plain code; no block depends on
 * the options of another.
 *
 *     d9d_block_ffn ffn;
 *     D9D_TRY(d9d_block_ffn_init(&ffn, &opts, &(d9d_block_ffn_shape){.hidden = H,
 *                                                                    .intermediate = I}));
 *     D9D_TRY(d9d_module_child(&layer->module, "mlp", &ffn.module));
 *     ...
 *     D9D_TRY(d9d_block_ffn_forward(&ffn, tape, x, NULL, &y));
 *
 * Shape letters are those of op.h.  Every init takes the element type and the initialisation of
 * matrices.  d9d_module_release() on the root releases what the inits declare.
 */
#ifndef D9D_NN_BLOCK_H
#define D9D_NN_BLOCK_H

#include "d9d/nn/module.h"
#include "d9d/nn/parallel_groups.h"
#include "d9d/nn/rope.h"
#include "d9d/op/op.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The blocks of one layer, as far as others ask for them: its KV cache, its expert loads, its
 * FLOP, its dropout.  Each block's init enters the block itself. */
typedef struct d9d_layer_blocks {
    struct d9d_block_attention *attention;
    struct d9d_block_gated_delta *gated_delta;
    struct d9d_block_mla *mla;
    struct d9d_block_moe *moe;
    bool dropout; /* one of them drops in training */
} d9d_layer_blocks;

typedef struct d9d_block_opts {
    d9d_dtype dtype;
    /* initialisation of matrices: N(0, init_std); 0: linear U(+-1/sqrt(in)), embedding N(0, 1) */
    double init_std;
    const d9d_groups *groups; /* borrowed as long as the block; NULL: one rank */
    d9d_layer_blocks *blocks; /* of the layer that the block belongs to; NULL: nobody asks */
} d9d_block_opts;

/* Initialise a block of a kind (linear, norm, ...) and declare it under a name; returns on failure.
 */
#define D9D_BLOCK_ADD(parent, name, kind, block, ...)                                              \
    do {                                                                                           \
        D9D_TRY(d9d_block_##kind##_init((block), __VA_ARGS__));                                    \
        D9D_TRY(d9d_module_child((parent), (name), &(block)->module));                             \
    } while (0)

/* --- y = x W^T: "weight" [out, in] ------------------------------------------- */

typedef struct d9d_block_linear {
    d9d_module module;
    d9d_param weight;
} d9d_block_linear;

D9D_API D9D_MUST_USE d9d_status d9d_block_linear_init(d9d_block_linear *b,
                                                      const d9d_block_opts *opts, int64_t in,
                                                      int64_t out);
D9D_API D9D_MUST_USE d9d_status d9d_block_linear_forward(d9d_block_linear *b, d9d_tape *t,
                                                         d9d_var *x, d9d_var **y);

/* --- RMSNorm over the last dimension: "weight" [n] ------------------------------ */

typedef struct d9d_block_norm {
    d9d_module module;
    d9d_param weight;
    float eps;
    bool zero_centred; /* the weight starts at 0 and scales by 1 + w */
} d9d_block_norm;

D9D_API D9D_MUST_USE d9d_status d9d_block_norm_init(d9d_block_norm *b, const d9d_block_opts *opts,
                                                    int64_t n, float eps, bool zero_centred);
D9D_API D9D_MUST_USE d9d_status d9d_block_norm_forward(d9d_block_norm *b, d9d_tape *t, d9d_var *x,
                                                       d9d_var **y);

/* --- LayerNorm over the last dimension: "weight" [n], "bias" [n], each optional ----- */

typedef enum d9d_block_layer_norm_params {
    D9D_LAYER_NORM_PLAIN, /* no parameters */
    D9D_LAYER_NORM_WEIGHT,
    D9D_LAYER_NORM_BIAS /* weight and bias */
} d9d_block_layer_norm_params;
typedef struct d9d_block_layer_norm {
    d9d_module module;
    d9d_param weight, bias; /* initially 1 and 0 */
    float eps;
    d9d_block_layer_norm_params params;
} d9d_block_layer_norm;

D9D_API D9D_MUST_USE d9d_status d9d_block_layer_norm_init(d9d_block_layer_norm *b,
                                                          const d9d_block_opts *opts, int64_t n,
                                                          float eps,
                                                          d9d_block_layer_norm_params params);
D9D_API D9D_MUST_USE d9d_status d9d_block_layer_norm_forward(d9d_block_layer_norm *b, d9d_tape *t,
                                                             d9d_var *x, d9d_var **y);

/* --- token embedding and head, in tables by ranges of ids: "token_embedding.<split>.weight"
 * [V_s, H]
 *
 * The tables are separate parameters so that one may be trained alone; ids count through them in
 * order.  The language-model head is divided in the same way, "lm_head.<split>.weight".  It
 * computes the loss of each token without storing all logits. */
typedef struct d9d_block_vocab_split {
    const char *name; /* "regular" */
    int64_t size;
} d9d_block_vocab_split;

typedef struct d9d_block_vocab {
    d9d_module module;
    d9d_param **table; /* n_splits of them */
    size_t n_splits;
    float
        softcap; /* of the logits, as d9d_op_vocab_opts; 0: none.  The caller sets it after init */
    const d9d_groups *groups;
    /* Set after init; 0: 1.  Factors of the rows that the embedding gives, and of the rows that the
     * head takes, and so of its logits. */
    float embedding_scale, logit_scale;
    d9d_param *bias; /* [V], added to the logits: that of a masked LM head; NULL: none */
    /* Set after init too: an id whose row the embedding does not train; a tied head does. */
    bool has_padding;
    int64_t padding;
} d9d_block_vocab;

/* `kind` is the middle of the name, "token_embedding" or "lm_head".  Initialisation is that of
 * d9d_block_opts.init_std. */
typedef enum d9d_block_vocab_kind { D9D_VOCAB_EMBEDDING, D9D_VOCAB_HEAD } d9d_block_vocab_kind;
D9D_API D9D_MUST_USE d9d_status d9d_block_vocab_init(d9d_block_vocab *b, const d9d_block_opts *opts,
                                                     d9d_block_vocab_kind kind,
                                                     const d9d_block_vocab_split *splits,
                                                     size_t n_splits, int64_t hidden);
/* ids [...] int32 to y [..., H].  With tp ranks: all ids to [T/tp, H], the rows of this rank. */
D9D_API D9D_MUST_USE d9d_status d9d_block_vocab_embed(d9d_block_vocab *b, d9d_tape *t,
                                                      const d9d_tensor *ids, d9d_var **y);
/* h [T/tp, H], targets [T] int32 to loss [T] float32, equal on all tp ranks.  root: use
 * d9d_op_linear_cross_entropy_root(). */
D9D_API D9D_MUST_USE d9d_status d9d_block_vocab_loss(d9d_block_vocab *b, d9d_tape *t, d9d_var *h,
                                                     const d9d_tensor *targets, int32_t ignore,
                                                     bool root, d9d_var **loss);
/* h [T, H], all rows on every tp rank, to the logits [T, V_local] of the part of the vocabulary
 * that this rank has, as a part of a backward: of the type of h.  The gradient of h is this rank's
 * part of the sum.  ENOTSUP for a head with a bias. */
D9D_API D9D_MUST_USE d9d_status d9d_block_vocab_local_logits(d9d_block_vocab *b, d9d_tape *t,
                                                             d9d_var *h, d9d_var **logits);
/* h [T/tp, H] to the rows [T, H] that the head multiplies, on all tp ranks. */
D9D_API D9D_MUST_USE d9d_status d9d_block_vocab_rows(d9d_block_vocab *b, d9d_tape *t, d9d_var *h,
                                                     d9d_var **rows);
/* Such rows to the logits [N, V] float32 of the rows `pick` [N] int32, on all tp ranks. */
D9D_API D9D_MUST_USE d9d_status d9d_block_vocab_rows_logits(d9d_block_vocab *b, d9d_tape *t,
                                                            d9d_var *rows, const d9d_tensor *pick,
                                                            d9d_var **logits);
/* h [T/tp, H] to the logits [N, V] float32 of the tokens `pick` [N] int32, on all tp ranks. */
D9D_API D9D_MUST_USE d9d_status d9d_block_vocab_logits(d9d_block_vocab *b, d9d_tape *t, d9d_var *h,
                                                       const d9d_tensor *pick, d9d_var **logits);

/* --- masked LM head: what a masked language model has before its vocabulary's tables ------
 *
 *     h = norm(act(x W^T + b))       logits = h E^T + c
 *
 * "dense.weight" [H, H], "dense.bias" [H], "norm.weight" [H], "norm.bias" [H]; E is a
 * d9d_block_vocab, whose `bias` is c, "decoder.bias" [V].  transformers' prediction head. */
typedef struct d9d_block_mlm_head_shape {
    int64_t hidden, vocab; /* hidden 0: there is no head */
    d9d_glu act;           /* the activation alone */
    bool dense_bias, decoder_bias;
    d9d_block_layer_norm_params norm;
    float norm_eps;
} d9d_block_mlm_head_shape;

typedef struct d9d_block_mlm_head {
    d9d_module module;
    d9d_block_mlm_head_shape shape;
    d9d_block_linear dense;
    d9d_block_layer_norm norm;
    d9d_param dense_bias, decoder_bias; /* where the shape has them */
} d9d_block_mlm_head;

D9D_API D9D_MUST_USE d9d_status d9d_block_mlm_head_init(d9d_block_mlm_head *b,
                                                        const d9d_block_opts *opts,
                                                        const d9d_block_mlm_head_shape *shape);
/* x h [..., H], of this rank's tokens. */
D9D_API D9D_MUST_USE d9d_status d9d_block_mlm_head_forward(d9d_block_mlm_head *b, d9d_tape *t,
                                                           d9d_var *x, d9d_var **h);

/* --- learned positions: "weight" [P, H], on all tp ranks ------------------------------- */

typedef struct d9d_block_position_embedding {
    d9d_module module;
    d9d_param weight;
    const d9d_groups *groups;
} d9d_block_position_embedding;

/* Initialisation is that of an embedding. */
D9D_API D9D_MUST_USE d9d_status d9d_block_position_embedding_init(d9d_block_position_embedding *b,
                                                                  const d9d_block_opts *opts,
                                                                  int64_t positions,
                                                                  int64_t hidden);
/* y = x + weight[position], x y [B, S, H] and positions [B, S] int32; a position that the table
 * lacks adds nothing.  With tp ranks x y [T/tp, H], the rows of this rank, and all positions. */
D9D_API D9D_MUST_USE d9d_status
d9d_block_position_embedding_forward(d9d_block_position_embedding *b, d9d_tape *t, d9d_var *x,
                                     const d9d_tensor *positions, d9d_var **y);

/* --- virtual tokens (prompt tuning): "weight" [P, H], on all tp ranks -------------------
 *
 * y = x + weight[id - first], of the ids [first, first + P), for which x has rows of zeros; x and y
 * as in d9d_block_position_embedding_forward().  The block is a linear layer's matrix. */
D9D_API D9D_MUST_USE d9d_status d9d_block_prompt_forward(d9d_block_linear *b,
                                                         const d9d_groups *groups, d9d_tape *t,
                                                         d9d_var *x, const d9d_tensor *ids,
                                                         int64_t first, d9d_var **y);

/* --- KV cache: what generation stores of earlier tokens -----------------------------
 *
 * A block lists the cache entries that it needs.  An entry is stored either for each token, such as
 * keys and values, or for each sequence, such as a recurrent state, which is updated in place.
 * d9d/model/kv_cache.h allocates the slots and passes them to the block in that order.  A batch in
 * generation is one row of T tokens; its segments say which tokens belong together, and how many
 * came in earlier calls: nk - nq.
 *
 * Keys and values [K, D] of a block that can read them so may be stored in 8 bits: the entry is
 * then codes of e4m3, and entries behind those of the list, in its order, are their scales [K]
 * (d9d_op_kv_append_fp8()). */
enum { D9D_BLOCK_CACHE_MAX = 4 };
typedef struct d9d_block_cache_entry {
    const char *name; /* "k" */
    bool per_seq;
    d9d_dtype dtype;
    d9d_shape shape; /* of one slot */
    bool narrows;    /* may be stored in 8 bits */
} d9d_block_cache_entry;
typedef struct d9d_block_cache_spec {
    size_t n;
    d9d_block_cache_entry item[D9D_BLOCK_CACHE_MAX];
} d9d_block_cache_spec;

typedef struct d9d_block_cache {
    const d9d_tensor *entry[D9D_BLOCK_CACHE_MAX]; /* [Z, ...] for tokens, [R, ...] for sequences */
    const d9d_tensor *token_slots;                /* [T] int32: slot of each token */
    const d9d_tensor *seq_slots;                  /* [N] int32: slot of each segment's sequence */
} d9d_block_cache;

/* --- rotary position embedding: frequencies, no parameters ----------------------- */

typedef struct d9d_block_rope {
    double base;
    int64_t features; /* rotated features of each head; even */
    d9d_op_rope_style style;
    d9d_rope_scaling scaling;
    d9d_tensor inv_freq; /* [features / 2] float32, d9d_rope_frequencies(); d9d_block_rope_prepare()
                            makes it */
} d9d_block_rope;

/* Compute the frequencies on a device; a second call does nothing. */
D9D_API D9D_MUST_USE d9d_status d9d_block_rope_prepare(d9d_block_rope *b, d9d_device *dev);
D9D_API void d9d_block_rope_release(d9d_block_rope *b);

/* --- grouped-query attention: q_proj k_proj v_proj o_proj q_norm k_norm ------------------- *
 *
 *     x --q_proj--> [A heads of D] --q_norm, rope--\
 *     x --k_proj--> [K heads of D] --k_norm, rope--- softmax attention --(gate)-- o_proj --> y
 *     x --v_proj--> [K heads of D] ----------------/                        |
 *     x --gate_proj--> sigmoid, where there is an output gate --------------'
 *
 * Queries, keys and values may be clipped, before rope: the `clip_qkv` of OLMo.
 *
 * A rope with fewer features than the head size rotates the first features of each head.  Members
 * that are zero switch the option off.  `.window = 128, .sinks = true, .qkv_bias = true, .o_bias =
 * true` is a layer of gpt-oss; `.qk_norm = D9D_QK_NORM_HEAD, .zero_centred = true, .output_gate =
 * true` is one of Qwen3-Next.
 *
 * A full-width QK norm is over all heads together, so each tp rank has a part of its rows:
 * d9d_op_rms_norm_parallel(). */
typedef enum d9d_block_qk_norm {
    D9D_QK_NORM_NONE, /* q_norm and k_norm do not exist */
    D9D_QK_NORM_HEAD, /* of each head: weights [D] */
    D9D_QK_NORM_FULL  /* of all heads together: weights [A D] and [K D] */
} d9d_block_qk_norm;
typedef struct d9d_block_attention_shape {
    int64_t hidden, heads, kv_heads, head_dim; /* H, A, K, D */
    const d9d_block_rope *rope;                /* shared by the layers; NULL: no RoPE (NoPE) */
    float norm_eps;
    float scale;   /* softmax scale; 0: D^-1/2 */
    float softcap; /* of the scores, as d9d_op_attention(); 0: none */
    d9d_block_qk_norm qk_norm;
    bool zero_centred;  /* of q_norm and k_norm, as in d9d_block_norm */
    bool output_gate;   /* o * sigmoid(gate), elementwise: "gate_proj.weight" [A D, H] */
    bool sinks;         /* attention sinks: "sinks" [A], initially 0: d9d_op_attention() */
    bool bidirectional; /* no causal mask */
    int64_t window;     /* sliding window, as d9d_op_attention(); 0: none */
    bool qkv_bias;      /* "q_proj.bias", of the output gate "gate_proj.bias" [A D], "k_proj.bias",
                           "v_proj.bias" [K D], initially 0 */
    bool o_bias;        /* "o_proj.bias" [H]; replicated over tp */
    float temperature_beta; /* of queries, behind RoPE: d9d_op_position_scale(); 0: none */
    int64_t temperature_period;
    float clip; /* q, k and v are within +-clip; 0: not.  Not with a QK norm of each head */
    /* Probabilities of dropout, in training (d9d_op_dropout()): of attention's probabilities; of
     * o_proj's output, bias included, before `plus`. */
    float dropout, out_dropout;
} d9d_block_attention_shape;

typedef struct d9d_block_attention {
    d9d_module module;
    d9d_block_linear q_proj, k_proj, v_proj, o_proj, gate_proj;
    d9d_block_norm q_norm, k_norm;
    d9d_param q_bias, k_bias, v_bias, o_bias, gate_bias, sinks;
    d9d_block_attention_shape shape;
    const d9d_groups *groups;
} d9d_block_attention;

D9D_API D9D_MUST_USE d9d_status d9d_block_attention_init(d9d_block_attention *b,
                                                         const d9d_block_opts *opts,
                                                         const d9d_block_attention_shape *shape);
/* Cache entries: keys and values of each token, for the heads that this rank computes. */
D9D_API void d9d_block_attention_cache_spec(const d9d_block_attention *b,
                                            d9d_block_cache_spec *out);

/* Causal attention, unless the shape says bidirectional.  x y [B, S, H], with tp ranks [T/tp, H];
 * positions [B, S] int32; segments as in d9d_op_attention(), or NULL.  With cp ranks, S counts the
 * positions of this rank's chunks.  The segments then place the chunks in the sequences of all
 * ranks (d9d/data/loader/cp_slice.h); without segments EINVAL.  With a cache (else NULL) B is 1,
 * and the segments' keys are slots of the cache. plus is the residual, of y's shape, which is added
 * to y; NULL: none. */
D9D_API D9D_MUST_USE d9d_status d9d_block_attention_forward(d9d_block_attention *b, d9d_tape *t,
                                                            d9d_var *x, const d9d_tensor *positions,
                                                            const d9d_tensor *segments,
                                                            const d9d_block_cache *cache,
                                                            d9d_var *plus, d9d_var **y);

/* --- gated delta net: q_proj k_proj v_proj g_proj b_proj a_proj o_proj, q_conv k_conv v_conv,
 * A_log dt_bias, out_norm ------------------------------------------------------------------- *
 *
 *     x --q,k,v_proj--> causal_conv1d --> q, k, v    b_proj --> b    a_proj --gdn_gate--> g
 *     q k v g b --gated_delta--> y    out_norm(y) * silu(g_proj x) --o_proj-->
 *
 * Linear attention with a recurrent state in place of keys and values (d9d_op_gated_delta()), as in
 * Qwen3-Next.  in_proj_qkvz and in_proj_ba of Qwen3-Next are these projections, interleaved by key
 * head; each key head is followed by the values of its group.  Tensor parallelism divides the key
 * heads over the tp ranks, and the value heads with them. */
typedef struct d9d_block_gated_delta_shape {
    int64_t hidden;
    int64_t key_heads, value_heads; /* value_heads is a multiple of key_heads */
    int64_t key_dim, value_dim;     /* of a head */
    int64_t conv_width;             /* tokens, up to D9D_CAUSAL_CONV1D_MAX_WIDTH */
    float norm_eps;
} d9d_block_gated_delta_shape;

/* Weight of a depthwise convolution, channels by taps: "weight" [N, W]. */
typedef struct d9d_block_causal_conv1d {
    d9d_module module;
    d9d_param weight;
} d9d_block_causal_conv1d;

typedef struct d9d_block_gated_delta {
    d9d_module module;
    d9d_block_linear q_proj, k_proj, v_proj, g_proj, b_proj, a_proj, o_proj;
    d9d_block_causal_conv1d q_conv, k_conv, v_conv;
    d9d_param a_log, dt_bias; /* "A_log", "dt_bias" [value_heads] */
    d9d_block_norm out_norm;
    d9d_block_gated_delta_shape shape;
    const d9d_groups *groups;
} d9d_block_gated_delta;

/* EINVAL for an impossible shape. */
D9D_API D9D_MUST_USE d9d_status d9d_block_gated_delta_init(
    d9d_block_gated_delta *b, const d9d_block_opts *opts, const d9d_block_gated_delta_shape *shape);
/* Cache entries of each sequence: the state of the heads that this rank computes, and the last
 * tokens of the convolutions.  Their size does not grow with the sequence. */
D9D_API void d9d_block_gated_delta_cache_spec(const d9d_block_gated_delta *b,
                                              d9d_block_cache_spec *out);
/* x y [B, S, H], with tp ranks [T/tp, H]; B and S are those of positions [B, S]; segments, cache
 * and plus as in d9d_block_attention_forward().  ENOTSUP with cp ranks, which have chunks of
 * sequences. */
D9D_API D9D_MUST_USE d9d_status d9d_block_gated_delta_forward(
    d9d_block_gated_delta *b, d9d_tape *t, d9d_var *x, const d9d_tensor *positions,
    const d9d_tensor *segments, const d9d_block_cache *cache, d9d_var *plus, d9d_var **y);

/* --- multi-head latent attention (MLA): q_proj kv_down_proj kv_down_norm kv_up_proj o_proj -- *
 *
 * Keys and values are projected up from a few features that all heads share (DeepSeek-V2, V3).
 * Positions are in separate features (rope), whose key is the same for all heads:
 *
 *     x --q_proj----------------------------> A heads of [nope, rope] --rotate--\
 *     x --kv_down_proj--> [kv_rank] --norm, kv_up_proj--> A heads of [nope, v]    softmax
 *                    \-> [rope] --rotate--> the key of every head                 attention
 *
 * With q_rank, q_proj is such a low-rank pair itself: q_proj.down_proj, q_proj.norm,
 * q_proj.up_proj.  Tensor parallelism divides the
 * up-projections and o_proj by heads and replicates the down-projections and their norms.  Each tp
 * rank computes the latent features of its own tokens, and these are all-gathered in place of x. */
typedef struct d9d_block_mla_shape {
    int64_t hidden, heads;
    int64_t q_rank, kv_rank; /* q_rank 0: queries are projected from x directly */
    int64_t nope_dim, rope_dim,
        v; /* features of a head: without positions; with positions; of its values */
    const d9d_block_rope *rope; /* over rope_dim features; shared by the layers */
    float norm_eps;
    float scale;   /* softmax scale; 0: (nope_dim + rope_dim)^-1/2 */
    bool bias;     /* "q_proj.down_proj.bias" [q_rank], "kv_down_proj.bias" [kv_rank + rope_dim],
                      "o_proj.bias" [H]; replicated over tp, initially 0 */
    float dropout; /* of attention's probabilities, in training */
} d9d_block_mla_shape;

typedef struct d9d_block_mla {
    d9d_module module, q_proj;
    d9d_block_linear q_down, q_up, kv_down, kv_up, o_proj; /* q_up: without q_rank it is q_proj */
    d9d_block_norm q_norm, kv_norm;
    d9d_param q_bias, kv_bias, o_bias;
    d9d_block_mla_shape shape;
    const d9d_groups *groups;
} d9d_block_mla;

/* ECONFIG for a rope of another size than rope_dim. */
D9D_API D9D_MUST_USE d9d_status d9d_block_mla_init(d9d_block_mla *b, const d9d_block_opts *opts,
                                                   const d9d_block_mla_shape *shape);
/* Cache entry of each token: the latent features and the rotated key, [1, kv_rank + rope_dim], on
 * each of the tp ranks. */
D9D_API void d9d_block_mla_cache_spec(const d9d_block_mla *b, d9d_block_cache_spec *out);
/* As d9d_block_attention_forward().  With a cache, keys and values are not computed (weight
 * absorption): queries are projected down to the latent features, and the result of attention is
 * projected up. */
D9D_API D9D_MUST_USE d9d_status d9d_block_mla_forward(d9d_block_mla *b, d9d_tape *t, d9d_var *x,
                                                      const d9d_tensor *positions,
                                                      const d9d_tensor *segments,
                                                      const d9d_block_cache *cache, d9d_var *plus,
                                                      d9d_var **y);

/* --- feed-forward: gate_proj up_proj down_proj ------------------------------------- *
 *
 *     y = down(act(gate(x)) * up(x)) or, ungated, y = down(act(up(x)))
 *
 * Members that are zero give SwiGLU without biases.  `.ungated = true, .bias = true, .glu.act =
 * D9D_ACT_GELU_TANH` is the MLP of GPT-2. */
typedef struct d9d_block_ffn_shape {
    int64_t hidden, intermediate;
    d9d_glu glu;
    bool ungated; /* gate_proj does not exist */
    bool bias;    /* "gate_proj.bias", "up_proj.bias" [I]; "down_proj.bias" [H], replicated over tp;
                     initially 0 */
    /* Probabilities of dropout, in training: of what down_proj multiplies; of its output, bias
     * included, before `plus`. */
    float dropout, out_dropout;
} d9d_block_ffn_shape;

typedef struct d9d_block_ffn {
    d9d_module module;
    d9d_block_linear gate_proj, up_proj, down_proj;
    d9d_param gate_bias, up_bias, down_bias;
    d9d_block_ffn_shape shape;
    const d9d_groups *groups;
} d9d_block_ffn;

D9D_API D9D_MUST_USE d9d_status d9d_block_ffn_init(d9d_block_ffn *b, const d9d_block_opts *opts,
                                                   const d9d_block_ffn_shape *shape);
/* plus as above. */
D9D_API D9D_MUST_USE d9d_status d9d_block_ffn_forward(d9d_block_ffn *b, d9d_tape *t, d9d_var *x,
                                                      d9d_var *plus, d9d_var **y);

/* --- mixture of experts: router.gate, grouped_experts.{gate,up,down}_proj, shared_expert --- *
 *
 *     x --router--> k experts and weights a token
 *      \-permute--> rows by expert --gate, up--> act(g) u --down--> rows --unpermute--> y
 *      \-shared expert (optional, always on) ------------------------------------------> + y
 *
 * With expert parallelism (parallel_groups.h) rows are permuted on the ranks of their experts, or
 * of copies of these: d9d_op_dispatch(). */
typedef struct d9d_block_grouped_linear {
    d9d_module module;
    d9d_param weight; /* [E, in, out] */
    d9d_param bias;   /* "bias" [E, out], initially 0; declared where the experts have biases */
} d9d_block_grouped_linear;

typedef enum d9d_block_router_score { D9D_SCORE_SOFTMAX, D9D_SCORE_SIGMOID } d9d_block_router_score;

/* Options beyond a softmax over all experts; zero switches each off.  See d9d_op_router().
 *
 * expert_bias balances the load without a loss (DeepSeek-V3): it is added to the scores for the
 * choice only.  After each step d9d_block_moe_update_expert_bias() changes each expert's bias by
 * bias_rate: up if its load was below the mean of the step, down if above.  It is a float32
 * parameter without gradient, initially zero, and is updated unless it is frozen. */
typedef struct d9d_block_router {
    int score; /* d9d_block_router_score */
    int64_t groups, top_groups;
    bool group_max; /* a group is worth its best expert, not the sum of two */
    double scale;
    bool expert_bias;
    double bias_rate;
    double aux_loss, z_loss; /* coefficients */
    double capacity;         /* d9d_op_router_opts.capacity */
} d9d_block_router;

#define D9D_ROUTER_BIAS "expert_bias"

/* Does the router differ from the k best of a softmax? */
static inline bool d9d_block_router_is_custom(const d9d_block_router *r)
{
    return r->score != D9D_SCORE_SOFTMAX || r->groups > 1 || (r->scale != 0 && r->scale != 1) ||
           r->expert_bias;
}

/* Can the router choose top_k of so many experts?  ECONFIG, a message that begins with `where` and
 * has the names of config.json's fields: `field` that of the experts, num_experts_per_tok, n_group
 * and topk_group. */
D9D_API D9D_MUST_USE d9d_status d9d_block_router_check(const char *where, const char *field,
                                                       int64_t experts, int64_t top_k,
                                                       const d9d_block_router *r);

typedef struct d9d_block_moe_shape {
    int64_t hidden, intermediate, experts, top_k;
    bool renormalise;
    int64_t shared_intermediate; /* 0: no shared expert */
    bool shared_gate;
    d9d_block_router router;
    bool router_bias; /* "router.gate.bias" [E], initially 0 */
    d9d_glu glu;      /* of the experts; {0}: SwiGLU.  The shared expert has SwiGLU */
    bool bias;        /* of the experts: "grouped_experts.*.bias" */
    int64_t layer;    /* its number, for messages */
} d9d_block_moe_shape;

/* Copies of experts on other ranks: d9d/nn/expert_copies.h. */
typedef struct d9d_expert_copies d9d_expert_copies;

typedef struct d9d_block_moe {
    d9d_module module;
    d9d_module router, grouped_experts, shared_expert;
    d9d_block_linear gate;
    d9d_param gate_bias;   /* "router.gate.bias"; declared where the router's projection has one */
    d9d_param expert_bias; /* "router.expert_bias" [E]; declared where the router has one */
    d9d_tensor counted; /* d9d_op_router_opts.counted; set by the user of the counts; storage NULL:
                           not counted */
    d9d_block_grouped_linear gate_proj, up_proj, down_proj;
    d9d_block_ffn shared;
    d9d_block_linear shared_gate;
    d9d_block_moe_shape shape;
    const d9d_groups *groups;
    d9d_expert_copies *copies; /* NULL: experts have no copies */
} d9d_block_moe;

D9D_API D9D_MUST_USE d9d_status d9d_block_moe_init(d9d_block_moe *b, const d9d_block_opts *opts,
                                                   const d9d_block_moe_shape *shape);
/* y = plus + the mixture of x; plus may be NULL. */
D9D_API D9D_MUST_USE d9d_status d9d_block_moe_forward(d9d_block_moe *b, d9d_tape *t, d9d_var *x,
                                                      d9d_var *plus, d9d_var **y);
/* After a step: update the bias by the load of all ranks in `counted`.  Does nothing without a
 * bias, or if it is frozen.  `scale` as in d9d_optimizer_step(): NaN for a step that does not
 * count. */
D9D_API D9D_MUST_USE d9d_status d9d_block_moe_update_expert_bias(d9d_block_moe *b, d9d_device *dev,
                                                                 const d9d_tensor *scale);

#ifdef __cplusplus
}
#endif
#endif /* D9D_NN_BLOCK_H */
