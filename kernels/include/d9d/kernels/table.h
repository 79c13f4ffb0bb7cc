/* table.h - the kernels of one backend: a table of functions on plain device pointers.
 *
 * The CPU's table (d9d_kernels_cpu(), plain C) is the reference. The GPU's table (cuda.h) and the
 * simulated one (sim.h) have the same entries. Rules for every entry:
 *
 *  - Arrays are dense and row-major, in device memory, aligned to 16 bytes. Outputs do not overlap
 *    inputs unless the entry says so. Any size may be 0.
 *  - Work is enqueued on stream `s`; the call does not wait for it. Numbers that only the device
 *    knows (rows per expert, the clipping factor) are read through device pointers.
 *  - Invalid arguments return EINVAL. Invalid array contents return EINVAL on the CPU only. A GPU
 *    would have to wait to report them, so it only stays inside its memory: the loss of a target
 *    outside the vocabulary is NaN; an expert id that is too large counts as the last expert, and a
 *    negative one as -1; rows that no group's offsets cover are not written.
 *  - Results do not depend on the number of threads: a sum is split into fixed blocks, which are
 *    added in one order.
 *  - `t` is the type of activations and parameters, D9D_F32 or D9D_BF16; arithmetic is float32.
 *    Gradients of parameters have a type of their own, `gt`. `beta` 0 overwrites the output, 1 adds
 *    to it.
 *  - Suffixes: _bwd computes the gradients of all inputs, _dgrad those of activations, _wgrad those
 *    of parameters.
 *  - Shape letters: M rows, N columns, B S Z T H A K D I E V k as in d9d/op/op.h.
 *
 * Every entry has a test over types and odd sizes in tests/unit/kernels/test_kernel_*.c.
 */
#ifndef D9D_KERNELS_TABLE_H
#define D9D_KERNELS_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "d9d/base/dtype.h"
#include "d9d/base/rng.h"
#include "d9d/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A stream of a device and what its kernels need besides, such as library handles and an allocator
 * of scratch memory. The device creates and owns it; NULL on the CPU. */
typedef struct d9d_stream_state *d9d_stream;

/* How a parameter is initialised. */
typedef enum d9d_init_kind {
    D9D_INIT_ZEROS,
    D9D_INIT_ONES,
    D9D_INIT_NORMAL, /* N(0, scale^2) */
    D9D_INIT_UNIFORM /* U[-scale, scale) */
} d9d_init_kind;

/* GEMM: C = op(A) op(B) + beta C, with C [M, N] of type ct, op(A) [M, K] and op(B) [K, N] of type
 * t. trans_a: A is stored [K, M]; trans_b: B is stored [N, K]. addend: if not NULL, an array like C
 * that takes the place of C in `beta C`; the result has the same bits. b_constant: no kernel still
 * in flight writes B, so that B may be prefetched before the previous kernel ends (PDL). */
typedef struct d9d_gemm {
    d9d_dtype t, ct;
    bool trans_a, trans_b;
    int64_t m, n, k;
    float beta;
    const void *addend;
    bool b_constant;
} d9d_gemm;

/* Strided copy of n columns: from x [M, x_cols], columns x_first on, to y [M heads, y_cols],
 * columns y_first on. A row of x is copied to (or summed over) `heads` rows of y. */
typedef struct d9d_copy_strided_dims {
    d9d_dtype t;
    int64_t m, heads, n;
    int64_t x_cols, x_first, y_cols, y_first;
} d9d_copy_strided_dims;

/* Router: each of T tokens chooses k of E experts. Scores are the softmax of a token's logits, or
 * the sigmoid of each. With groups above 1 the experts form that many groups of equal size. A group
 * is worth the sum of its two largest keys (score + bias), and only experts of the best top_groups
 * groups are eligible. The weight of a choice is its score, divided by the sum of the token's
 * chosen scores + 1e-20 if `renormalise`, times `scale`. */
enum { D9D_ROUTER_MAX_GROUPS = 32 }; /* limit of `groups` */
typedef struct d9d_router_dims {
    d9d_dtype t; /* of logits */
    int64_t rows, e, k;
    bool sigmoid, renormalise;
    int groups, top_groups; /* 0 or 1 groups: no grouping */
    float scale;
} d9d_router_dims;

/* Router losses, which balance the experts' load and keep the logits small. Sequence b of the batch
 * has seq_len tokens; token i of this call is number first + i of the batch. With w the token's
 * weight, load[b] the number of choices per expert of its sequence, and q its scores divided by
 * their sum:
 *
 *     aux   w sum over e of q_e E load[b, e] / (sum over e of load[b, e])
 *     z     w log(sum over e of exp(logit_e))^2
 *
 * each times its coefficient. The choices themselves have no gradient. */
typedef struct d9d_router_balance {
    const float *weight; /* [T]; 0: the token does not count */
    const float *load;   /* [sequences, E]; may be NULL if aux is 0 */
    const void *logits;  /* [T, E]; may be NULL if z is 0 */
    int64_t first, seq_len;
    float aux, z;
} d9d_router_balance;

/* SwiGLU half of a feed-forward layer: x [R, H] times two matrices gives [R, I] each. A matrix is
 * [I, H], and that of the down projection [H, I]. With offset (grouped GEMM) each of E experts has
 * its own, [E, H, I] and [E, I, H], for rows offset[e] <= r < offset[e+1]. */
typedef struct d9d_gemm_swiglu_dims {
    d9d_dtype t;
    int64_t rows, h, i, e; /* e is 1 without offset */
    const int32_t *offset;
    bool weights_constant; /* as d9d_gemm's b_constant, for both matrices */
} d9d_gemm_swiglu_dims;

/* QK norm and RoPE: x [M, heads, D]. The first R features of a head rotate by positions [M] times
 * inv_freq [R/2]. */
typedef struct d9d_qk_norm_rope_dims {
    d9d_dtype t;
    int64_t m, heads, d, r;
    float eps, mscale;
    bool zero_centred, interleaved;
    const int32_t *positions;
    const float *inv_freq;
} d9d_qk_norm_rope_dims;

/* One of the arrays (q, k or v) of qk_norm_rope_append: x [M, heads, D], normed by w [D] and
 * rotated, or copied if w is NULL. Token i is written to row row_index[i] of y, such as a KV-cache
 * slot; nowhere if that is -1; to row i if row_index is NULL. No kernel still in flight may write
 * row_index, positions or inv_freq, which are prefetched. */
typedef struct d9d_qk_norm_rope_heads {
    const void *x, *w;
    void *y;
    int64_t heads;
    const int32_t *row_index;
} d9d_qk_norm_rope_heads;

/* Attention: S queries and Z keys per row; q o [B, S, A, D], k v [B, Z, KV, D], lse [B, A, S]
 * float32.
 *
 * Segments (varlen attention, cu_seqlens) say which queries see which keys: queries [q, q + nq),
 * counted over B and S, see keys [k, k + nk), counted over B and Z, and no others. A causal mask is
 * aligned to the end (bottom right): query j of a segment sees its keys 0 .. nk - nq + j.
 *
 *     4 queries, 6 keys     x x x - - -
 *     x seen, - hidden      x x x x - -
 *                           x x x x x -
 *                           x x x x x x
 *
 * With a sliding window of W, which needs a causal mask, a query sees at most the last W of these:
 * of keys 0 .. j those from j + 1 - W on.
 *
 *     the same, W = 3       x x x - - -
 *                           - x x x - -
 *                           - - x x x -
 *                           - - - x x x
 *
 * Without a list, a row is one segment of all its queries and keys; or, if it consists of `chunks`
 * of equal size, each chunk is a segment that sees the row's keys before chunk_end[i]. The ends
 * ascend. This is context parallelism: a rank has a few chunks of a row's queries and all its keys,
 * rank 0 of 2 has chunks 0 and 3 of 4 (zigzag, d9d/nn/parallel_groups.h):
 *
 *     S = 4, Z = 8, chunk_end = {2, 8}    queries a a - - - - a a
 *
 * A list of segments lies in device memory, so that the host need not know it. It has two uses:
 *
 *  - Packed documents. Z = S; each document, and the padding of a row, is one segment.
 *
 *         S = 6    | a a a b b - | c d d d d d |
 *                  {0,3,0,3} {3,2,3,2} {5,1,5,1} {6,1,6,1} {7,5,7,5}
 *
 *  - Context-parallel chunks of packed documents: the part of each document in each chunk, with the
 *    document's keys up to the part's last.
 *
 *         S = 4, Z = 8    queries a a - - - - b b    {0,2,0,2} {2,2,3,5}
 *                         keys    a a a b b b b b
 *
 * A list is well-formed when
 *
 *     every query is in one segment, in order: q begins with 0, each begins where the last ended,
 *         the last ends with B S; a segment lies in one row, its keys in the same row of keys;
 *     where Z = S, each is square: k = q, nk = nq;
 *     a segment with queries has keys, under a causal mask at least as many as queries;
 *     keys do not fall: a segment begins with the same key as the last and has as many or more,
 *         or it begins after the last one's keys.
 *
 * nq may be 0. Keys that are in no segment get gradients of 0. If the caller also says that a row
 * of queries consists of `chunks` of equal size, as on a context-parallel rank,
 *
 *     no segment is in two chunks;
 *     one with more keys than queries is the first in its chunk;
 *     one that begins with the same key as the last has more keys than queries.
 *
 * Batch invariance: the results of segments that begin with the same key, such as a document's,
 * have the same bits wherever they lie and whatever lies around them. This holds on the same device
 * and with the same D. The last bits may differ between rows without a list, rows with a list and Z
 * = S, and rows with more keys than queries, if a library computes some of them. */
typedef struct d9d_segment {
    int32_t q, nq, k, nk;
} d9d_segment;

enum { D9D_ATTENTION_MAX_CHUNKS = 2 }; /* limit of `chunks` */
typedef struct d9d_attention_dims {
    d9d_dtype t;
    int64_t b, s, z, a, kv, d;
    float scale;
    bool causal;
    int64_t segments;
    const d9d_segment *segment; /* [segments], or NULL */
    bool decode;    /* k and v are a KV cache, and most segments have one or a few queries: another
                       algorithm (split-KV) may be used, whose last bits differ; forward only. No
                       kernel still in flight may write the list, which is prefetched */
    int64_t window; /* most keys that a query sees, its own position included; 0: no window */
    int64_t chunks; /* per row of queries; 0: one or, with a list, unknown */
    int64_t chunk_end[D9D_ATTENTION_MAX_CHUNKS]; /* without a list: how many of the row's keys
                                                    each chunk sees */
} d9d_attention_dims;

/* B rows of S tokens and the documents packed in them: a list of segments with Z = S, of which only
 * q and nq are read. Without a list a row is one document. The list lies in device memory. */
typedef struct d9d_varlen {
    int64_t b, s, segments;
    const d9d_segment *segment; /* [segments], or NULL */
} d9d_varlen;

/* Causal depthwise 1-D convolution over the last W tokens of a document: x y [B, S, N] of N
 * channels, w [N, W]. */
enum { D9D_CAUSAL_CONV1D_MAX_WIDTH = 8 }; /* limit of `w` */
typedef struct d9d_causal_conv1d_dims {
    d9d_dtype t;
    d9d_varlen docs;
    int64_t n, w;
} d9d_causal_conv1d_dims;

/* Gated delta rule: q k [B, S, K, D], v o [B, S, A, F]. The log gate g [B, S, A] is float32 and at
 * most 0; b [B, S, A] is the logit of the write strength beta = sigmoid(b). Head h of A reads head
 * h / (A/K) of K. q and k are L2-normalised (|x|^2 + 1e-6 under the root), and q is multiplied by
 * `scale`. A head's state X [D, F] is 0 at the beginning of a document and follows
 *
 *     X_t = e^g X_(t-1) + k (sigmoid(b) (v - (e^g X_(t-1))' k))'        o_t = X_t' q
 *
 * The tokens of a document are computed in chunks. The backward pass needs the state before each
 * chunk but the first of a document: [d9d_gated_delta_states(), A, D, F] float32. The state of the
 * chunk that begins with token t, counted over B and S, is in slot t / D9D_GATED_DELTA_CHUNK - 1.
 * Other slots are undefined. A GPU may
 * keep them in a form of its own (bfloat16, transposed): the states of `gated_delta` are for
 * `gated_delta_bwd` of the same device and dimensions. */
enum { D9D_GATED_DELTA_CHUNK = 64 };
typedef struct d9d_gated_delta_dims {
    d9d_dtype t;
    d9d_varlen docs;
    int64_t k, a, d, f;
    float scale;
} d9d_gated_delta_dims;
static inline int64_t d9d_gated_delta_states(const d9d_varlen *of)
{
    return of->b * of->s / D9D_GATED_DELTA_CHUNK;
}

/* Recurrent state of documents between calls, in generation: document i reads its state from slot
 * slot_index[i] and writes the new one there. nk - nq of its tokens came before this call; if none
 * did, the state starts from zero, whatever the slot holds. No two documents with tokens share a
 * slot. */
typedef struct d9d_state_slots {
    void *slots;               /* [R, ...] */
    const int32_t *slot_index; /* [segments] */
} d9d_state_slots;

/* Per-head linear layer (block-diagonal): y [M, heads, out], x [M, heads, in]. The matrix of head h
 * begins at row h * w_head_rows + w_first of w and has `in` rows or, with trans_w, `out`. */
typedef struct d9d_gemm_per_head_dims {
    d9d_dtype t;
    int64_t m, heads, in, out, w_head_rows, w_first;
    bool trans_w;
} d9d_gemm_per_head_dims;

/* Vocabulary parallelism: the ranks that each own a part of the vocabulary. */
typedef struct d9d_linear_cross_entropy_ranks {
    int64_t n, rank;
    int64_t max_rows; /* rows of the largest part */
    /* Enqueues an in-place all-gather: all [n, count] float32, of which this rank's count floats
     * are at index `rank`. Collective: every rank makes the same calls. */
    d9d_status (*all_gather)(void *arg, float *all, int64_t count);
    void *arg;
} d9d_linear_cross_entropy_ranks;

/* Fused linear head and cross entropy: hidden [T, H], the head in splits w[i] [v[i], H], targets
 * [T]. Without `first` the ids of the splits follow each other from 0. In a part of a vocabulary,
 * row j of split i is id first[i] + j of `vocab`. The logit of a target that this part lacks counts
 * as 0. The lse and loss of a part without rows are -inf. */
typedef struct d9d_linear_cross_entropy_dims {
    d9d_dtype t;
    int64_t rows, h;
    int n_split;
    const int64_t *v; /* [n_split], on the host */
    int32_t ignore;
    int64_t scratch;      /* most bytes of scratch of linear_cross_entropy_fwd_bwd, as long as a few
                             tokens fit; 0: 768 MiB */
    const int64_t *first; /* [n_split], on the host; NULL: this is the whole vocabulary */
    int64_t vocab;        /* size of the whole vocabulary, where this is a part */
    const d9d_linear_cross_entropy_ranks
        *ranks; /* of linear_cross_entropy_fwd_bwd: the owners of the other parts */
} d9d_linear_cross_entropy_dims;

/* Permutation of tokens into expert order and back (MoE): T tokens with k choices each, N rows in
 * expert order (T k, or fewer if some choices are -1), H columns. */
typedef struct d9d_moe_permute_dims {
    d9d_dtype t;
    int64_t rows, k, n, h;
} d9d_moe_permute_dims;

/* Constants of Adam for one step; see d9d/optim/optim.h for the formulas. They are double, so that
 * 1 - beta and 1 - lr*wd are rounded once, as in PyTorch. */
typedef struct d9d_adam_step {
    double lr, beta1, beta2, eps, weight_decay;
    double bias_correction1, bias_correction2; /* 1 - beta^step */
    bool decoupled;                            /* AdamW: p *= 1 - lr*wd; else g += wd*p */
    bool amsgrad, maximize;
} d9d_adam_step;

/* One of several arrays that a call processes together (multi-tensor apply). The list is in host
 * memory; the call launches as many kernels as for one long array. */
typedef struct d9d_sum_squares_array {
    const void *x;
    int64_t n;
} d9d_sum_squares_array;

/* Master weights: a bfloat16 weight and its residual are a float32 master weight, to the bit. The
 * weight is the master rounded to nearest, ties away from zero, and
 *
 *     master bits = (weight bits << 16) + residual,    residual int16
 *
 * A weight that is NaN has the residual 0. Residuals of zero make the masters equal to the weights.
 */

/* A parameter, its gradient and its optimizer state; vmax is used with amsgrad only. residual [n]:
 * the parameter is bfloat16 and its master weight is updated; NULL: the parameter itself is. */
typedef struct d9d_adam_arrays {
    void *p;
    const void *g;
    void *m, *v, *vmax;
    int64_t n;
    int16_t *residual;
} d9d_adam_arrays;

typedef struct d9d_sgd_step {
    double lr, momentum, dampening, weight_decay;
    bool nesterov, maximize, first; /* first: momentum buffer = gradient */
} d9d_sgd_step;

enum { D9D_ADD_MAX_ARRAYS = 16 };

typedef struct d9d_kernels {
    const char *name; /* "cpu", "cuda", or "sim", whose arrays may not be accessed (sim.h) */

    /* --- elementwise ------------------------------------------------------- */
    d9d_status (*fill)(d9d_stream s, d9d_dtype t, void *y, int64_t n, float v);
    d9d_status (*cast)(d9d_stream s, d9d_dtype yt, void *y, d9d_dtype xt, const void *x, int64_t n);
    /* y = sum of the first `of` arrays of x, 1 to D9D_ADD_MAX_ARRAYS, in their order. y may be one
     * of them. */
    d9d_status (*add)(d9d_stream s, d9d_dtype t, void *y, const void *const *x, int of, int64_t n);
    /* y = beta y + x; the types may differ. */
    d9d_status (*accumulate)(d9d_stream s, d9d_dtype yt, void *y, float beta, d9d_dtype xt,
                             const void *x, int64_t n);
    d9d_status (*swiglu)(d9d_stream s, d9d_dtype t, void *y, const void *gate, const void *up,
                         int64_t n);
    /* dgate may be dy. */
    d9d_status (*swiglu_bwd)(d9d_stream s, d9d_dtype t, void *dgate, void *dup, const void *dy,
                             const void *gate, const void *up, int64_t n);
    /* y = x * sigmoid(g); x [M, N], g [M]. */
    d9d_status (*sigmoid_gate)(d9d_stream s, d9d_dtype t, void *y, const void *x, const void *g,
                               int64_t m, int64_t n);
    d9d_status (*sigmoid_gate_bwd)(d9d_stream s, d9d_dtype t, void *dx, void *dg, const void *dy,
                                   const void *x, const void *g, int64_t m, int64_t n);
    /* Initialises a shard: y has the shape `box`, which begins at `start` of an array of shape
     * `whole`. An element draws the random number of its index in the whole array, index = sum_d
     * (start[d] + box index) * stride of whole. So shards have the values of the unsharded array.
     */
    d9d_status (*random)(d9d_stream s, d9d_dtype t, void *y, d9d_init_kind kind, float scale,
                         d9d_rng r, int ndim, const int64_t *box, const int64_t *start,
                         const int64_t *whole);
    /* y = factor x where random number token[r] * width + first + c of the stream `r`, uniform in
     * [0, 1), is at least p; else 0. With p 0 nothing is drawn, and token may be NULL. x y [M, N].
     */
    d9d_status (*dropout)(d9d_stream s, d9d_dtype t, void *y, const void *x, float p, float factor,
                          d9d_rng r, const int64_t *token, int64_t m, int64_t n, int64_t first,
                          int64_t width);

    /* --- GEMM ---------------------------------------------------------------- */
    d9d_status (*gemm)(d9d_stream s, const d9d_gemm *g, const void *a, const void *b, void *c);
    /* y[r] = x[r] W_e for rows offset[e] <= r < offset[e+1]; w [E, in, out], offset [E + 1] on the
     * device. */
    d9d_status (*grouped_gemm)(d9d_stream s, d9d_dtype t, void *y, const void *x, const void *w,
                               const int32_t *offset, int64_t rows, int64_t e, int64_t in,
                               int64_t out);
    /* dx = beta dx + sum over n matrices, at most 2, of dy_i w_i'. */
    d9d_status (*grouped_gemm_dgrad)(d9d_stream s, d9d_dtype t, void *dx, float beta, int n,
                                     const void *const *dy, const void *const *w,
                                     const int32_t *offset, int64_t rows, int64_t e, int64_t in,
                                     int64_t out);
    d9d_status (*grouped_gemm_wgrad)(d9d_stream s, d9d_dtype t, d9d_dtype gt, void *dw, float beta,
                                     const void *x, const void *dy, const int32_t *offset,
                                     int64_t rows, int64_t e, int64_t in, int64_t out);

    /* gate = x Wg, up = x Wu, y = silu(gate) up; a matrix stored [I, H] is transposed. */
    d9d_status (*gemm_swiglu)(d9d_stream s, const d9d_gemm_swiglu_dims *n, void *y, void *gate,
                              void *up, const void *x, const void *w_gate, const void *w_up);
    /* dgate and dup, from the gradient dout [R, H] of the layer's output and the down projection w.
     */
    d9d_status (*gemm_swiglu_bwd)(d9d_stream s, const d9d_gemm_swiglu_dims *n, void *dgate,
                                  void *dup, const void *dout, const void *w, const void *gate,
                                  const void *up);

    /* --- norm, position embedding, attention ----------------------------------- */
    /* inv [M] float32 is 1/sqrt(mean(x^2) + eps), which the backward pass reads. */
    d9d_status (*rms_norm)(d9d_stream s, d9d_dtype t, void *y, float *inv, const void *x,
                           const void *w, int64_t m, int64_t n, float eps, bool zero_centred);
    /* dx, dw or both in one pass, with the same bits; NULL: not computed. plus, if not NULL, is
     * added to dx before it is rounded, and may be dx. */
    d9d_status (*rms_norm_bwd)(d9d_stream s, d9d_dtype t, void *dx, const void *plus, d9d_dtype gt,
                               void *dw, float beta, const void *dy, const void *x, const void *w,
                               const float *inv, int64_t m, int64_t n, bool zero_centred);
    /* x [M, heads, D], positions [M]. The first r features rotate; sign -1 rotates back (the
     * gradient). */
    d9d_status (*rope)(d9d_stream s, d9d_dtype t, void *y, const void *x, const int32_t *positions,
                       const float *inv_freq, int64_t m, int64_t heads, int64_t d, int64_t r,
                       bool interleaved, float mscale, float sign);
    /* Norm of each head, then RoPE; inv [M heads]. dx or dw may be NULL, as above. */
    d9d_status (*norm_rope)(d9d_stream s, const d9d_qk_norm_rope_dims *n, void *y, float *inv,
                            const void *x, const void *w);
    d9d_status (*norm_rope_bwd)(d9d_stream s, const d9d_qk_norm_rope_dims *n, void *dx,
                                d9d_dtype gt, void *dw, float beta, const void *dy, const void *x,
                                const void *w, const float *inv);
    d9d_status (*attention)(d9d_stream s, const d9d_attention_dims *n, void *o, float *lse,
                            const void *q, const void *k, const void *v);
    d9d_status (*attention_bwd)(d9d_stream s, const d9d_attention_dims *n, void *dq, void *dk,
                                void *dv, const void *dout, const void *q, const void *k,
                                const void *v, const void *o, const float *lse);
    /* Attention sink: a learned logit per head, sink [A] of type t, that takes part in the softmax
     * of every query and has no value. Applied in place to what attention() wrote: o becomes o
     * exp(lse) / exp(lse'), rounded once more, and lse becomes lse' = log(exp(lse) + exp(sink)).
     * attention_bwd() of these o and lse is the gradient with the sink. */
    d9d_status (*attention_sink)(d9d_stream s, const d9d_attention_dims *n, void *o, float *lse,
                                 const void *sink);
    /* dsink = beta dsink - the sum over queries of exp(sink - lse') dout . o' */
    d9d_status (*attention_sink_wgrad)(d9d_stream s, const d9d_attention_dims *n, d9d_dtype gt,
                                       void *dsink, float beta, const void *dout, const void *o,
                                       const float *lse, const void *sink);
    /* Context-parallel zigzag order. A row consists of 2n chunks of P tokens of W elements, of
     * which rank r of n has chunks r and 2n - 1 - r (d9d/nn/parallel_groups.h). in_order: y [B, 2n,
     * P, W] in sequence order from x [n, B, 2, P, W] in rank order; else the inverse. */
    d9d_status (*cp_zigzag)(d9d_stream s, d9d_dtype t, void *y, const void *x, int64_t n, int64_t b,
                            int64_t p, int64_t w, bool in_order);

    /* y[at[i]][first + j] = x[i][j], for x [M, N] and rows of y of `ld` elements (index_put). at
     * NULL: row i. A row with at -1 is not written; no two rows go to the same place. */
    d9d_status (*scatter_rows)(d9d_stream s, d9d_dtype t, void *y, int64_t ld, int64_t first,
                               const int32_t *at, const void *x, int64_t m, int64_t n);
    /* y[(i heads + h) y_cols + y_first + j] = x[i x_cols + x_first + j]. Other columns of y are not
     * written. */
    d9d_status (*copy_strided)(d9d_stream s, const d9d_copy_strided_dims *n, void *y,
                               const void *x);
    /* Gradient, summed over heads in float32: x[i x_cols + x_first + j] = sum over h of that
     * element of y. */
    d9d_status (*copy_strided_bwd)(d9d_stream s, const d9d_copy_strided_dims *n, void *x,
                                   const void *y);

    /* y = silu(z), with z the sum over j of w[j] times the token W - 1 - j before. */
    d9d_status (*causal_conv1d)(d9d_stream s, const d9d_causal_conv1d_dims *n, void *y,
                                const void *x, const void *w);
    /* dx or dw may be NULL, here and below. */
    d9d_status (*causal_conv1d_bwd)(d9d_stream s, const d9d_causal_conv1d_dims *n, void *dx,
                                    d9d_dtype gt, void *dw, float beta, const void *dy,
                                    const void *x, const void *w);
    /* Gate of the gated delta rule: g = -exp(rate) log(1 + exp(x + bias)); x [M, N], rate bias [N],
     * g float32. */
    d9d_status (*gdn_gate)(d9d_stream s, d9d_dtype t, float *g, const void *x, const void *rate,
                           const void *bias, int64_t m, int64_t n);
    d9d_status (*gdn_gate_dgrad)(d9d_stream s, d9d_dtype t, void *dx, const float *dg,
                                 const void *x, const void *rate, const void *bias, int64_t m,
                                 int64_t n);
    /* The gradient of rate or of bias. */
    d9d_status (*gdn_gate_wgrad)(d9d_stream s, d9d_dtype t, d9d_dtype gt, void *dw, float beta,
                                 bool of_bias, const float *dg, const void *x, const void *rate,
                                 const void *bias, int64_t m, int64_t n);
    d9d_status (*gated_delta)(d9d_stream s, const d9d_gated_delta_dims *n, void *o, float *states,
                              const void *q, const void *k, const void *v, const float *g,
                              const void *b);
    d9d_status (*gated_delta_bwd)(d9d_stream s, const d9d_gated_delta_dims *n, void *dq, void *dk,
                                  void *dv, float *dg, void *db, const void *dout, const void *q,
                                  const void *k, const void *v, const float *g, const void *b,
                                  const float *states);
    /* y = x inv w silu(z) (RMSNormGated), inv [M] as in rms_norm. */
    d9d_status (*rms_norm_gated)(d9d_stream s, d9d_dtype t, void *y, float *inv, const void *x,
                                 const void *z, const void *w, int64_t m, int64_t n, float eps);
    /* dx and dz both, or neither. */
    d9d_status (*rms_norm_gated_bwd)(d9d_stream s, d9d_dtype t, void *dx, void *dz, d9d_dtype gt,
                                     void *dw, float beta, const void *dy, const void *x,
                                     const void *z, const void *w, const float *inv, int64_t m,
                                     int64_t n);

    /* --- embedding and loss --------------------------------------------------- */
    /* Rows of one split of a table: id - first in [0, v). Other ids leave y unchanged, or zero it
     * if `clear`. */
    d9d_status (*embedding)(d9d_stream s, d9d_dtype t, void *y, const int32_t *ids,
                            const void *table, int64_t rows, int64_t first, int64_t v, int64_t h,
                            bool clear);
    d9d_status (*embedding_wgrad)(d9d_stream s, d9d_dtype t, d9d_dtype gt, void *dtable, float beta,
                                  const int32_t *ids, const void *dy, int64_t rows, int64_t first,
                                  int64_t v, int64_t h);
    /* loss, lse [T] float32 of any alignment; 0 where the target is `ignore`. unit [T, H] of type
     * t, or NULL, is the gradient of each token's loss by its hidden row, which is cheap while the
     * logits are there. */
    d9d_status (*linear_cross_entropy)(d9d_stream s, const d9d_linear_cross_entropy_dims *n,
                                       float *loss, float *lse, void *token_grad,
                                       const void *hidden, const void *const *w,
                                       const int32_t *targets);
    /* Vocabulary parallelism over n ranks: parts [n, 2, T] are the lse and the loss that
     * linear_cross_entropy() computed for each part. loss and lse become those of the whole
     * vocabulary. unit, which linear_cross_entropy() computed for this rank's part, becomes that
     * part's share of the gradient; the shares of all parts sum to it. unit may be NULL. */
    d9d_status (*linear_cross_entropy_combine)(d9d_stream s, const d9d_linear_cross_entropy_dims *d,
                                               float *loss, float *lse, void *token_grad,
                                               const float *parts, int64_t n, int64_t mine,
                                               const void *const *w, const int32_t *targets);
    /* dhidden[t] = dloss[t] unit[t]. */
    d9d_status (*linear_cross_entropy_dgrad)(d9d_stream s, d9d_dtype t, void *dhidden,
                                             const float *dloss, const void *token_grad,
                                             int64_t rows, int64_t h);
    /* Recomputes the logits, by blocks. dw[i] NULL: the gradient of that split is not computed. */
    d9d_status (*linear_cross_entropy_wgrad)(d9d_stream s, const d9d_linear_cross_entropy_dims *n,
                                             d9d_dtype gt, void *const *dw, const float *beta,
                                             const float *dloss, const float *lse,
                                             const void *hidden, const void *const *w,
                                             const int32_t *targets);
    /* Loss and both gradients in one pass, for a gradient of 1 by every loss. The logits are
     * computed once, and the softmax of as many tokens as n->scratch allows is kept for both GEMMs.
     * With n->ranks, a vocabulary in parts: loss is that of the whole, unit this part's share. Any
     * of unit and dw[i] may be NULL. */
    d9d_status (*linear_cross_entropy_fwd_bwd)(d9d_stream s, const d9d_linear_cross_entropy_dims *n,
                                               d9d_dtype gt, float *loss, void *token_grad,
                                               void *const *dw, const float *beta,
                                               const void *hidden, const void *const *w,
                                               const int32_t *targets);

    /* --- mixture of experts ------------------------------------------------------ */
    /* Top-k choice. p [T, E] float32 are the scores of all experts, which the backward pass reads;
     * prob and expert [T, k] the choices; bias [E] or NULL affects the choice only. */
    d9d_status (*router)(d9d_stream s, const d9d_router_dims *n, float *p, float *prob,
                         int32_t *expert, const void *logits, const float *bias);
    /* balance NULL: the gradient of prob only. */
    d9d_status (*router_bwd)(d9d_stream s, const d9d_router_dims *n, void *dlogits,
                             const float *dprob, const float *p, const float *prob,
                             const int32_t *expert, const d9d_router_balance *balance);
    /* Counts the choices of every token that counts (b->weight above 0): per sequence in b's load,
     * and in total [E]; either may be NULL. */
    d9d_status (*expert_load)(d9d_stream s, const d9d_router_dims *n, float *load, double *total,
                              const int32_t *expert, const d9d_router_balance *b);
    /* Each token's terms of the two losses, [T] each, without their coefficients. */
    d9d_status (*router_losses)(d9d_stream s, const d9d_router_dims *n, float *aux, float *z,
                                const float *p, const d9d_router_balance *b);
    /* Loss-free balancing: bias[i] += rate * sign(mean of load - load[first + i]), i < n, for load
     * [E]. Does nothing if *scale is NaN. */
    d9d_status (*router_bias)(d9d_stream s, float *bias, const double *load, const float *scale,
                              float rate, int64_t first, int64_t n, int64_t e);
    /* Numbers the choices that are not -1 in the order (expert, token). row [T, k] is a choice's
     * number, -1 if it has none; source [T k] the choice of a number, -1 for the unused numbers;
     * offset [E + 1] the first number of each expert. */
    d9d_status (*sort_by_expert)(d9d_stream s, int32_t *offset, int32_t *row, int32_t *source,
                                 const int32_t *expert, int64_t rows, int64_t e, int64_t k);
    /* y [N, H], x [T, H], row [T, k] of sort_by_expert(). Rows of y without a choice are not
     * written. */
    d9d_status (*permute)(d9d_stream s, const d9d_moe_permute_dims *n, void *y, const void *x,
                          const int32_t *row);
    d9d_status (*permute_bwd)(d9d_stream s, const d9d_moe_permute_dims *n, void *dx, const void *dy,
                              const int32_t *row);
    /* y[t] = sum over the token's choices of prob times their rows. A choice with row -1 adds
     * nothing, and its dprob is 0. */
    d9d_status (*unpermute)(d9d_stream s, const d9d_moe_permute_dims *n, void *y, const void *x,
                            const float *prob, const int32_t *row);
    d9d_status (*unpermute_bwd)(d9d_stream s, const d9d_moe_permute_dims *n, void *dx, float *dprob,
                                const void *dy, const void *x, const float *prob,
                                const int32_t *row);
    /* Rank d of R owns experts [d per, (d + 1) per). rank [T, R]: d if the token chose one of its
     * experts, else -1. */
    d9d_status (*expert_ranks)(d9d_stream s, int32_t *rank, const int32_t *expert, int64_t rows,
                               int64_t k, int64_t ranks, int64_t per);
    /* Row i of N is token source[i] / R for rank source[i] % R. local [N, k] are the token's
     * choices in that rank's numbering of experts; -1 for experts of other ranks and for rows of
     * source -1. */
    d9d_status (*expert_local_ids)(d9d_stream s, int32_t *local, const int32_t *source,
                                   const int32_t *expert, int64_t n, int64_t rows, int64_t k,
                                   int64_t ranks, int64_t per);

    /* --- reductions: results in device memory -------------------------------------- */
    /* out[i] = sum of squares of array i, in float64, over blocks that only its length decides. */
    d9d_status (*sum_squares)(d9d_stream s, double *out, d9d_dtype t,
                              const d9d_sum_squares_array *list, int64_t count);
    /* out[0] = x[0] + x[1] + ..., in this order. */
    d9d_status (*sum_ordered)(d9d_stream s, double *out, const double *x, int64_t n);
    d9d_status (*sum)(d9d_stream s, double *out, double beta, d9d_dtype t, const void *x,
                      int64_t n);
    /* out[0] = index of the first element that is NaN or infinite, or -1. */
    d9d_status (*find_nonfinite)(d9d_stream s, int64_t *out, d9d_dtype t, const void *x, int64_t n);

    /* Gradient clipping and the step's report. With mean = 1 / *weight:
     *
     *     report[0] = sum of loss[n]
     *     report[1] = |mean| sqrt(*squares)                          the gradient norm
     *     *scale = mean min(1, max_norm / (report[1] + 1e-6))        as torch's clip_grad_norm_
     *
     * *scale = mean unless max_norm > 0. If either report is not finite, *scale becomes NaN and
     * stays so. */
    d9d_status (*grad_scale)(d9d_stream s, float *scale, double *report, const double *loss,
                             int64_t n, const double *weight, const double *squares,
                             double max_norm);

    /* --- optimizers: the gradient is first multiplied by *scale (device, float32). If that is NaN
     */
    /* Parameters of type t, gradients of gt; m, v (and vmax with amsgrad) of st, each rounded to
     * nearest. Either all arrays of a list have residuals, or none. */
    d9d_status (*adam)(d9d_stream s, const d9d_adam_step *c, const float *scale, d9d_dtype t,
                       d9d_dtype gt, d9d_dtype st, const d9d_adam_arrays *list, int64_t count);
    /* The same for one parameter, without amsgrad, with stochastic rounding to bfloat16. Element i
     * of the box draws its 16 bits from streams r, r+42, r+67 (parameter, m, v) at its index in the
     * whole array. float32 arrays draw none, nor do parameters with residuals. */
    d9d_status (*adam_stochastic)(d9d_stream s, const d9d_adam_step *c, const float *scale,
                                  d9d_dtype t, d9d_dtype gt, d9d_dtype st, const d9d_adam_arrays *a,
                                  d9d_rng r, int ndim, const int64_t *box, const int64_t *start,
                                  const int64_t *whole);
    /* momentum NULL: without momentum; residual as in d9d_adam_arrays. */
    d9d_status (*sgd)(d9d_stream s, const d9d_sgd_step *c, d9d_dtype t, void *p, int16_t *residual,
                      d9d_dtype gt, const void *g, const float *scale, d9d_dtype st, void *momentum,
                      int64_t n);

    /* --- decode: documents of a list that continue from a saved state ------------------------- */
    /* As causal_conv1d(); a slot [W - 1, N] of type t holds the last tokens. */
    d9d_status (*causal_conv1d_update)(d9d_stream s, const d9d_causal_conv1d_dims *n,
                                       const d9d_state_slots *past, void *y, const void *x,
                                       const void *w);
    /* As gated_delta(), token by token; a slot [A, D, F] float32 holds the state. On the CPU a
     * document's results have the same bits however it was split into calls. */
    d9d_status (*gated_delta_step)(d9d_stream s, const d9d_gated_delta_dims *n,
                                   const d9d_state_slots *past, void *o, const void *q,
                                   const void *k, const void *v, const float *g, const void *b);
    /* y = x W of each head or, with trans_w, x W'. */
    d9d_status (*gemm_per_head)(d9d_stream s, const d9d_gemm_per_head_dims *n, void *y,
                                const void *x, const void *w);

    /* --- fused calls, with the bits of each call by itself ------------------------------ */
    /* gemm() of one A by each of n matrices. */
    d9d_status (*gemm_multi)(d9d_stream s, int n, const d9d_gemm *g, const void *a,
                             const void *const *b, void *const *c);
    /* QK norm, RoPE and KV-cache append of n arrays of the same tokens. d->heads is ignored: each
     * array has its own. */
    d9d_status (*qk_norm_rope_append)(d9d_stream s, const d9d_qk_norm_rope_dims *d, int n,
                                      const d9d_qk_norm_rope_heads *list);

    /* For each row of x [M, N], N at least 1: the index `at` [M] of its first largest element, and
     * its value [M]. NaN is larger than any number. */
    d9d_status (*argmax)(d9d_stream s, int32_t *at, float *value, const float *x, int64_t m,
                         int64_t n);
} d9d_kernels;

/* Every entry by name, for code that visits them all. */
/* clang-format off */
#define D9D_KERNEL_ENTRIES(X)                                                                      \
    X(fill) X(cast) X(add) X(accumulate) X(swiglu) X(swiglu_bwd) X(sigmoid_gate)                   \
    X(sigmoid_gate_bwd) X(random) X(dropout) X(gemm) X(grouped_gemm) X(grouped_gemm_dgrad) X(grouped_gemm_wgrad)   \
    X(gemm_swiglu) X(gemm_swiglu_bwd)                                                               \
    X(rms_norm) X(rms_norm_bwd) X(rope) X(norm_rope) X(norm_rope_bwd) X(attention)               \
    X(attention_bwd) X(attention_sink) X(attention_sink_wgrad) X(cp_zigzag) X(scatter_rows)                  \
    X(causal_conv1d) X(causal_conv1d_bwd) X(gdn_gate) X(gdn_gate_dgrad) X(gdn_gate_wgrad) X(gated_delta) X(gated_delta_bwd) X(rms_norm_gated)     \
    X(rms_norm_gated_bwd) X(copy_strided) X(copy_strided_bwd)                                                   \
    X(embedding) X(embedding_wgrad) X(linear_cross_entropy) X(linear_cross_entropy_combine) X(linear_cross_entropy_dgrad) X(linear_cross_entropy_wgrad) X(linear_cross_entropy_fwd_bwd)          \
    X(router) X(router_bwd) X(expert_load) X(router_losses) X(router_bias)                           \
    X(sort_by_expert) X(permute) X(permute_bwd) X(unpermute) X(unpermute_bwd)       \
    X(expert_ranks) X(expert_local_ids) X(sum_squares) X(sum_ordered) X(sum) X(find_nonfinite) X(grad_scale)  \
    X(adam) X(adam_stochastic) X(sgd) X(causal_conv1d_update) X(gated_delta_step) X(gemm_per_head) \
    X(gemm_multi) X(qk_norm_rope_append) X(argmax)
/* clang-format on */

D9D_API const d9d_kernels *d9d_kernels_cpu(void);

#ifdef __cplusplus
}
#endif
#endif /* D9D_KERNELS_TABLE_H */
