/* table.h - the arithmetic of one backend: a table of functions on plain pointers.
 *
 * The CPU's table (d9d_kernels_cpu, plain C) is the reference; a GPU's
 * table has the same entries.  Rules for every entry:
 *
 *  - Arrays are dense, row-major, in device memory, aligned to 16 bytes; outputs do not
 *    overlap inputs unless the entry says so.  Any size may be 0.
 *  - Work goes to `s` and does not wait for it.  Numbers that only the device knows
 *    (counts per expert, a clipping factor) are read through device pointers.
 *  - What a call shows to be wrong is EINVAL.  Arrays that hold what cannot be are EINVAL on the
 *    CPU.  A GPU, which would have to wait to say so, stays inside its memory: the loss of a target
 *    outside the vocabulary is NaN, an expert outside is taken for the last one or, below 0, for
 *    -1, and rows that no group's offsets cover are left alone.
 *  - Results do not depend on the number of threads: a sum is split in fixed blocks and
 *    added in one order.
 *  - `t` is the type of activations and parameters, D9D_F32 or D9D_BF16; float32 inside.
 *    Gradients of parameters have their own type `gt`; `beta` 0 overwrites, 1 adds.
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

/* Where a device's work goes: its queue, and what its kernels need besides, such as handles of
 * libraries and a source of scratch memory.  Made by the device that owns it; NULL on the CPU. */
typedef struct d9d_stream_state *d9d_stream;

/* How a parameter starts. */
typedef enum d9d_init_kind {
    D9D_INIT_ZEROS,
    D9D_INIT_ONES,
    D9D_INIT_NORMAL, /* N(0, scale^2) */
    D9D_INIT_UNIFORM /* U[-scale, scale) */
} d9d_init_kind;

/* C = op(A) op(B) + beta C: C [M, N] of type ct, op(A) [M, K], op(B) [K, N] of type t.
 * trans_a: A is stored [K, M]; trans_b: B is stored [N, K].  plus, where not NULL, is another array
 * like C that is added, times beta, in its place; the bits are the same.  b_still: B was there
 * before any call that may still be under way, so that it may be read ahead of this one's turn.
 */
typedef struct d9d_gemm {
    d9d_dtype t, ct;
    bool trans_a, trans_b;
    int64_t m, n, k;
    float beta;
    const void *addend;
    bool b_constant;
} d9d_gemm;

/* n columns of M rows: x [M, X] from column `from` on, y [M heads, Y] from column `to` on, where a
 * row of x is that of so many heads. */
typedef struct d9d_copy_strided_dims {
    d9d_dtype t;
    int64_t m, heads, n;
    int64_t x_cols, x_first, y_cols, y_first;
} d9d_copy_strided_dims;

/* How T tokens choose k of E experts, by scores that are a softmax of the token's logits, or
 * sigmoids of each.  With groups above 1 the experts are as many groups of one size: a group is
 * worth the sum of its two largest keys (score + bias), and only the best top_groups of them are
 * chosen from.  The weight of a choice is its score, divided by the sum of the token's chosen ones
 * + 1e-20 where `renormalise`, times `scale`. */
enum { D9D_ROUTER_MAX_GROUPS = 32 }; /* at most */
typedef struct d9d_router_dims {
    d9d_dtype t; /* of logits */
    int64_t rows, e, k;
    bool sigmoid, renormalise;
    int groups, top_groups; /* 0 or 1 groups: any expert */
    float scale;
} d9d_router_dims;

/* Losses that keep a router's choices even and its logits small.  Row b of the batch has `length`
 * tokens; token i here is number first + i of all.  With w the weight of a token, load[b] the
 * choices of its row, and q its scores divided by their sum:
 *
 *     aux   w sum over e of q_e E load[b, e] / (sum over e of load[b, e])
 *     z     w log(sum over e of exp(logit_e))^2
 *
 * each times its coefficient.  The choices have no gradient. */
typedef struct d9d_router_balance {
    const float *weight; /* [T]; 0: the token does not count */
    const float *load;   /* [rows of the batch, E]; may be NULL where aux is 0 */
    const void *logits;  /* [T, E]; may be NULL where z is 0 */
    int64_t first, seq_len;
    float aux, z;
} d9d_router_balance;

/* The gated half of a feed-forward layer: x [R, H] by two matrices to [R, I] each.  A matrix is
 * [I, H], and that of the way down [H, I]; or, with offset, there is one for each of E experts,
 * [E, H, I] and [E, I, H], for rows offset[e] <= r < offset[e+1]. */
typedef struct d9d_gemm_swiglu_dims {
    d9d_dtype t;
    int64_t rows, h, i, e; /* e is 1 without offset */
    const int32_t *offset;
    bool weights_constant; /* of both matrices, as d9d_gemm's b_still */
} d9d_gemm_swiglu_dims;

/* Heads to be normed and turned: x [M, heads, D], of which the first R features turn, by
 * positions [M] times inv_freq [R/2]. */
typedef struct d9d_qk_norm_rope_dims {
    d9d_dtype t;
    int64_t m, heads, d, r;
    float eps, mscale;
    bool zero_centred, interleaved;
    const int32_t *positions;
    const float *inv_freq;
} d9d_qk_norm_rope_dims;

/* Heads on their way to attention, x [M, heads, D]: normed by w [D] and turned, or as they are
 * where w is NULL.  Those of token i go to row at[i] of y, to none where that is -1, or to row i
 * where at is NULL.  at, positions and frequencies were there before any call that may still be
 * under way. */
typedef struct d9d_qk_norm_rope_heads {
    const void *x, *w;
    void *y;
    int64_t heads;
    const int32_t *row_index;
} d9d_qk_norm_rope_heads;

/* Attention: S queries and Z keys a row; q o [B, S, A, D], k v [B, Z, K, D], lse [B, A, S] float32.
 *
 * Segments say which queries see which keys: queries [q, q + nq), counted over B and S, see keys
 * [k, k + nk), counted over B and Z, and no others.  A causal mask is aligned to the end: query j
 * of a segment sees its keys 0 .. nk - nq + j.
 *
 *     4 queries, 6 keys     x x x - - -
 *     x seen, - hidden      x x x x - -
 *                           x x x x x -
 *                           x x x x x x
 *
 * With a window of W, under a causal mask alone, a query sees the last W of these at most: of keys
 * 0 .. j those from j + 1 - W on.
 *
 *     the same, W = 3       x x x - - -
 *                           - x x x - -
 *                           - - x x x -
 *                           - - - x x x
 *
 * Without a list a row is one segment: all its queries, all its keys; or, of `pieces` of one size,
 * each is one, which sees the row's keys before end[i].  These rise: a rank of context parallelism
 * has few of a row's queries and all its keys, rank 0 of 2 pieces 0 and 3 of 4
 * (d9d/nn/parallel_groups.h):
 *
 *     S = 4, Z = 8, end = {2, 8}    queries a a - - - - a a
 *
 * A list of N lies in device memory, so that the host needs to wait for nothing; it serves two
 * ends:
 *
 *   - Packed documents.  Z = S; each document, and the padding of a row, is one segment.
 *
 *         S = 6    | a a a b b - | c d d d d d |
 *                  {0,3,0,3} {3,2,3,2} {5,1,5,1} {6,1,6,1} {7,5,7,5}
 *
 *   - Pieces of packed documents: the part of each document in each piece, with the document's keys
 *     up to the part's last.
 *
 *         S = 4, Z = 8    queries a a - - - - b b    {0,2,0,2} {2,2,3,5}
 *                         keys    a a a b b b b b
 *
 * A list is well-formed when
 *
 *     every query is in one segment, in order: q begins with 0, each begins where the last ended,
 *         the last ends with B S; a segment lies in one row, its keys in the same row of keys;
 *     where Z = S, each is square: k = q, nk = nq;
 *     a segment with queries has keys, of a causal mask at least as many as queries;
 *     keys do not fall: a segment begins with the same key as the last and has as many or more,
 *         or it begins behind the last one's keys.
 *
 * nq may be 0.  Keys that no segment has get gradients of 0.  Where the caller says that a row of
 * queries is `pieces` of one size, as on a rank,
 *
 *     no segment is in two pieces;
 *     one with more keys than queries is the first in its piece;
 *     one that begins with the same key as the last has more keys than queries.
 *
 * What comes out for the segments that begin with one key, such as a document's, does not depend,
 * to the bit, on where they lie nor on what lies beside them, with the same device and D.  Rows
 * without a list, rows with one and Z = S, and rows with more keys than queries may differ in their
 * last bits where a library does some of them. */
typedef struct d9d_segment {
    int32_t q, nq, k, nk;
} d9d_segment;

enum { D9D_ATTENTION_MAX_CHUNKS = 2 }; /* of a row, the most */
typedef struct d9d_attention_dims {
    d9d_dtype t;
    int64_t b, s, z, a, kv, d;
    float scale;
    bool causal;
    int64_t segments;
    const d9d_segment *segment; /* [segments], or NULL */
    bool decode; /* k and v are a cache, and most segments have a query or a few: it may be done in
                    another way, whose last bits differ; forward alone.  The list was there before
                    any call that may still be under way, and so it may be read ahead */
    int64_t window; /* most keys that a query sees, its own position counted; 0: all */
    int64_t chunks; /* of a row of queries; 0: one, or with a list not known */
    int64_t chunk_end[D9D_ATTENTION_MAX_CHUNKS]; /* without a list: how many of the row's keys each
                                                    piece sees */
} d9d_attention_dims;

/* B rows of S tokens and the documents in them: those of a list of segments with Z = S, of which
 * q and nq alone are read; without a list a row is one.  The list lies in device memory. */
typedef struct d9d_varlen {
    int64_t b, s, segments;
    const d9d_segment *segment; /* [segments], or NULL */
} d9d_varlen;

/* A sum over the last W tokens of a document, of each of N channels by itself: x y [B, S, N],
 * w [N, W]. */
enum { D9D_CAUSAL_CONV1D_MAX_WIDTH = 8 }; /* the widest */
typedef struct d9d_causal_conv1d_dims {
    d9d_dtype t;
    d9d_varlen docs;
    int64_t n, w;
} d9d_causal_conv1d_dims;

/* The gated delta rule: q k [B, S, K, D], v o [B, S, A, F], decay g [B, S, A] float32 and at most
 * 0, write strength before its sigmoid b [B, S, A]; head h of A reads head h / (A/K) of K.  With
 * q and k of length 1 each (|x|^2 + 1e-6 under the root) and q times `scale`, a head's state
 * X [D, F] starts a document as 0 and goes by
 *
 *     X_t = e^g X_(t-1) + k (sigmoid(b) (v - (e^g X_(t-1))' k))'        o_t = X_t' q
 *
 * Tokens of a document are worked on in chunks.  What backward keeps is the state that each chunk
 * but the first of a document starts with: [d9d_gated_delta_states(), A, D, F] float32, the one
 * that starts with token t, counted over B and S, in slot t / D9D_GATED_DELTA_CHUNK - 1.  Other
 * slots hold anything. */
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

/* What documents keep from call to call, in generation: document i goes on from cell at[i] and
 * leaves there what its next tokens need.  Of its tokens nk - nq were before this call; where none
 * were it begins anew, whatever is there.  No two documents with tokens have one cell. */
typedef struct d9d_state_slots {
    void *slots;               /* [R, ...] */
    const int32_t *slot_index; /* [segments] */
} d9d_state_slots;

/* A product for each head: y [M, heads, out], x [M, heads, in]; the matrix of head h has the rows
 * of w from h * step + first on, `in` of them or, `turned`, `out`. */
typedef struct d9d_gemm_per_head_dims {
    d9d_dtype t;
    int64_t m, heads, in, out, w_head_rows, w_first;
    bool trans_w;
} d9d_gemm_per_head_dims;

/* Ranks that each have a part of a vocabulary. */
typedef struct d9d_linear_cross_entropy_ranks {
    int64_t n, rank;
    int64_t max_rows; /* rows of the largest part */
    /* all [n, count] of what is at its place `mine`, queued; the same calls on every rank. */
    d9d_status (*all_gather)(void *arg, float *all, int64_t count);
    void *arg;
} d9d_linear_cross_entropy_ranks;

/* Fused head and loss; hidden [T, H], split heads w[i] [v[i], H], targets [T].  The ids of the
 * splits follow each other from 0, or, of a part of a vocabulary, row j of split i is
 * id first[i] + j of `all`; the logit of a target that is not in this part counts as 0, and the lse
 * and loss of a part without rows are -inf. */
typedef struct d9d_linear_cross_entropy_dims {
    d9d_dtype t;
    int64_t rows, h;
    int n_split;
    const int64_t *v; /* host */
    int32_t ignore;
    int64_t scratch; /* bytes of scratch that linear_cross_entropy_fwd_bwd may take, as long as a
                     few tokens fit; 0: 768 MiB */
    const int64_t *first; /* host; NULL: this is the whole vocabulary */
    int64_t vocab;        /* ids of the whole, where this is a part */
    const d9d_linear_cross_entropy_ranks
        *ranks; /* of linear_cross_entropy_fwd_bwd: who has the other parts */
} d9d_linear_cross_entropy_dims;

/* Rows to the order of experts and back: T tokens of k choices each, N rows in that order (T k, or
 * fewer where some choices are -1), H columns. */
typedef struct d9d_moe_permute_dims {
    d9d_dtype t;
    int64_t rows, k, n, h;
} d9d_moe_permute_dims;

/* One optimizer's constants for one step; see d9d/optim/optim.h for the formulas.  They are
 * double so that 1 - beta and 1 - lr*wd are rounded once, as PyTorch does. */
typedef struct d9d_adam_step {
    double lr, beta1, beta2, eps, weight_decay;
    double bias_correction1, bias_correction2; /* 1 - beta^step */
    bool decoupled;                            /* AdamW: p *= 1 - lr*wd; else g += wd*p */
    bool amsgrad, maximize;
} d9d_adam_step;

/* One of the arrays that are worked on together: a list is in host memory, and costs as many
 * launches as one long array. */
typedef struct d9d_sum_squares_array {
    const void *x;
    int64_t n;
} d9d_sum_squares_array;

/* A bfloat16 weight and its residual are a float32 master weight, to the bit: the weight is the
 * master rounded to nearest, ties away from zero, and
 *
 *     master bits = (weight bits << 16) + residual,    residual int16
 *
 * A weight that is NaN has the residual 0.  Residuals that are zero make masters of the weights as
 * they are. */

/* A parameter, its gradient and its state; vmax with amsgrad.  residual [n]: of bfloat16
 * parameters, whose masters are updated then; NULL: the parameter itself is. */
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
    const char *name; /* "cpu", "cuda"; "sim" of plans, whose arrays nobody may touch (sim.h) */

    /* --- elementwise ------------------------------------------------------- */
    d9d_status (*fill)(d9d_stream s, d9d_dtype t, void *y, int64_t n, float v);
    d9d_status (*cast)(d9d_stream s, d9d_dtype yt, void *y, d9d_dtype xt, const void *x, int64_t n);
    /* y = the sum of `of` arrays x, from 1 to D9D_ADD_MAX_ARRAYS, in their order; y may be one of
     * them. */
    d9d_status (*add)(d9d_stream s, d9d_dtype t, void *y, const void *const *x, int of, int64_t n);
    /* y = beta y + x, types may differ. */
    d9d_status (*accumulate)(d9d_stream s, d9d_dtype yt, void *y, float beta, d9d_dtype xt,
                             const void *x, int64_t n);
    d9d_status (*swiglu)(d9d_stream s, d9d_dtype t, void *y, const void *gate, const void *up,
                         int64_t n);
    /* dgate may be dy. */
    d9d_status (*swiglu_bwd)(d9d_stream s, d9d_dtype t, void *dgate, void *dup, const void *dy,
                             const void *gate, const void *up, int64_t n);
    /* y = x * sigmoid(g); x [M, N], g [M].  Backward gives dx and dg. */
    d9d_status (*sigmoid_gate)(d9d_stream s, d9d_dtype t, void *y, const void *x, const void *g,
                               int64_t m, int64_t n);
    d9d_status (*sigmoid_gate_bwd)(d9d_stream s, d9d_dtype t, void *dx, void *dg, const void *dy,
                                   const void *x, const void *g, int64_t m, int64_t n);
    /* Element i of a box in a whole array gets the number of its index in the whole:
     * index = sum_d (start[d] + box index) * stride of whole. */
    d9d_status (*random)(d9d_stream s, d9d_dtype t, void *y, d9d_init_kind kind, float scale,
                         d9d_rng r, int ndim, const int64_t *box, const int64_t *start,
                         const int64_t *whole);
    /* y = factor x where number token[r] * width + first + c of the stream, uniform in [0, 1), is
     * at least p; else 0.  With p 0 nothing is drawn and token may be NULL.  x y [M, N]. */
    d9d_status (*dropout)(d9d_stream s, d9d_dtype t, void *y, const void *x, float p, float factor,
                          d9d_rng r, const int64_t *token, int64_t m, int64_t n, int64_t first,
                          int64_t width);

    /* --- products ------------------------------------------------------------ */
    d9d_status (*gemm)(d9d_stream s, const d9d_gemm *g, const void *a, const void *b, void *c);
    /* y[r] = x[r] W_e for rows offset[e] <= r < offset[e+1]; w [E, in, out]. */
    d9d_status (*grouped_gemm)(d9d_stream s, d9d_dtype t, void *y, const void *x, const void *w,
                               const int32_t *offset, int64_t rows, int64_t e, int64_t in,
                               int64_t out);
    /* dx = beta dx + the sum over n matrices, at most 2, of dy_i w_i'. */
    d9d_status (*grouped_gemm_dgrad)(d9d_stream s, d9d_dtype t, void *dx, float beta, int n,
                                     const void *const *dy, const void *const *w,
                                     const int32_t *offset, int64_t rows, int64_t e, int64_t in,
                                     int64_t out);
    d9d_status (*grouped_gemm_wgrad)(d9d_stream s, d9d_dtype t, d9d_dtype gt, void *dw, float beta,
                                     const void *x, const void *dy, const int32_t *offset,
                                     int64_t rows, int64_t e, int64_t in, int64_t out);

    /* gate = x Wg, up = x Wu, y = silu(gate) up, a matrix turned where it is [I, H]. */
    d9d_status (*gemm_swiglu)(d9d_stream s, const d9d_gemm_swiglu_dims *n, void *y, void *gate,
                              void *up, const void *x, const void *w_gate, const void *w_up);
    /* The gradients of gate and up, where that of y is dout [R, H] by the way down, w. */
    d9d_status (*gemm_swiglu_bwd)(d9d_stream s, const d9d_gemm_swiglu_dims *n, void *dgate,
                                  void *dup, const void *dout, const void *w, const void *gate,
                                  const void *up);

    /* --- norm, position, attention --------------------------------------------- */
    /* inv [M] float32 is 1/sqrt(mean(x^2) + eps). */
    d9d_status (*rms_norm)(d9d_stream s, d9d_dtype t, void *y, float *inv, const void *x,
                           const void *w, int64_t m, int64_t n, float eps, bool zero_centred);
    /* Either of dx and dw, or both in one pass, with the same bits: what is NULL is not wanted.
     * plus, where not NULL, is added to dx before it is rounded, and may be dx. */
    d9d_status (*rms_norm_bwd)(d9d_stream s, d9d_dtype t, void *dx, const void *plus, d9d_dtype gt,
                               void *dw, float beta, const void *dy, const void *x, const void *w,
                               const float *inv, int64_t m, int64_t n, bool zero_centred);
    /* x [M, heads, D], positions [M]; r features turn; sign -1 turns back (the gradient). */
    d9d_status (*rope)(d9d_stream s, d9d_dtype t, void *y, const void *x, const int32_t *positions,
                       const float *inv_freq, int64_t m, int64_t heads, int64_t d, int64_t r,
                       bool interleaved, float mscale, float sign);
    /* A norm of each head, then the turn; inv [M heads].  dx or dw may be NULL, as above. */
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
    /* A logit of each head, sink [A] of type t, that takes part in the softmax of every query and
     * has no value: what attention() gave becomes, in place, o times exp(lse) / exp(lse'), with
     * lse' = log(exp(lse) + exp(sink)), rounded once more.  attention_bwd() of these o and lse is
     * the gradient under the sink. */
    d9d_status (*attention_sink)(d9d_stream s, const d9d_attention_dims *n, void *o, float *lse,
                                 const void *sink);
    /* dsink = beta dsink - the sum over queries of exp(sink - lse') dout . o' */
    d9d_status (*attention_sink_wgrad)(d9d_stream s, const d9d_attention_dims *n, d9d_dtype gt,
                                       void *dsink, float beta, const void *dout, const void *o,
                                       const float *lse, const void *sink);
    /* Rows in 2n pieces of P cells of W, as they are dealt to n ranks (d9d/nn/parallel_groups.h).
     * in_order: y [B, 2n, P, W] from x [n, B, 2, P, W], where rank r has pieces r and 2n - 1 - r;
     * else the way back. */
    d9d_status (*cp_zigzag)(d9d_stream s, d9d_dtype t, void *y, const void *x, int64_t n, int64_t b,
                            int64_t p, int64_t w, bool in_order);

    /* x [M, N] into y, whose rows have `ld` elements: y[at[i]][first + j] = x[i][j].  at NULL: row
     * i; a row of at -1 goes nowhere, and no two go to one place. */
    d9d_status (*scatter_rows)(d9d_stream s, d9d_dtype t, void *y, int64_t ld, int64_t first,
                               const int32_t *at, const void *x, int64_t m, int64_t n);
    /* y[(i heads + h) Y + to + j] = x[i X + from + j]; other columns of y are left alone. */
    d9d_status (*copy_strided)(d9d_stream s, const d9d_copy_strided_dims *n, void *y,
                               const void *x);
    /* Back, summed over heads in float32: x[i X + from + j] = sum over h of that place of y. */
    d9d_status (*copy_strided_bwd)(d9d_stream s, const d9d_copy_strided_dims *n, void *x,
                                   const void *y);

    /* y = silu(z), z the sum of w[j] times the token W - 1 - j before. */
    d9d_status (*causal_conv1d)(d9d_stream s, const d9d_causal_conv1d_dims *n, void *y,
                                const void *x, const void *w);
    /* dx or dw may be NULL, here and below. */
    d9d_status (*causal_conv1d_bwd)(d9d_stream s, const d9d_causal_conv1d_dims *n, void *dx,
                                    d9d_dtype gt, void *dw, float beta, const void *dy,
                                    const void *x, const void *w);
    /* g = -exp(rate) log(1 + exp(x + bias)); x [M, N], rate bias [N], g float32. */
    d9d_status (*gdn_gate)(d9d_stream s, d9d_dtype t, float *g, const void *x, const void *rate,
                           const void *bias, int64_t m, int64_t n);
    d9d_status (*gdn_gate_dgrad)(d9d_stream s, d9d_dtype t, void *dx, const float *dg,
                                 const void *x, const void *rate, const void *bias, int64_t m,
                                 int64_t n);
    /* The gradient of rate, or of bias. */
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
    /* y = x inv w silu(z), inv [M] as in rms_norm. */
    d9d_status (*rms_norm_gated)(d9d_stream s, d9d_dtype t, void *y, float *inv, const void *x,
                                 const void *z, const void *w, int64_t m, int64_t n, float eps);
    /* dx and dz both, or neither. */
    d9d_status (*rms_norm_gated_bwd)(d9d_stream s, d9d_dtype t, void *dx, void *dz, d9d_dtype gt,
                                     void *dw, float beta, const void *dy, const void *x,
                                     const void *z, const void *w, const float *inv, int64_t m,
                                     int64_t n);

    /* --- embedding and loss --------------------------------------------------- */
    /* One split: rows ids - first in [0, v); others leave y alone unless `clear` zeroes them. */
    d9d_status (*embedding)(d9d_stream s, d9d_dtype t, void *y, const int32_t *ids,
                            const void *table, int64_t rows, int64_t first, int64_t v, int64_t h,
                            bool clear);
    d9d_status (*embedding_wgrad)(d9d_stream s, d9d_dtype t, d9d_dtype gt, void *dtable, float beta,
                                  const int32_t *ids, const void *dy, int64_t rows, int64_t first,
                                  int64_t v, int64_t h);
    /* loss, lse [T] float32 of any alignment, 0 where the target is to be ignored.  unit [T, H] of
     * type t, or NULL: the gradient of each token's loss by its hidden row, cheap while the logits
     * are there. */
    d9d_status (*linear_cross_entropy)(d9d_stream s, const d9d_linear_cross_entropy_dims *n,
                                       float *loss, float *lse, void *token_grad,
                                       const void *hidden, const void *const *w,
                                       const int32_t *targets);
    /* A vocabulary of which each of n ranks has a part: parts [n, 2, T] are the lse and the loss
     * that xent gave for each.  loss and lse become those of the
     * whole, and unit, which xent gave for part `mine`, that part's share in the gradient of the
     * whole: the units of all parts add up to it.  unit may be NULL. */
    d9d_status (*linear_cross_entropy_combine)(d9d_stream s, const d9d_linear_cross_entropy_dims *d,
                                               float *loss, float *lse, void *token_grad,
                                               const float *parts, int64_t n, int64_t mine,
                                               const void *const *w, const int32_t *targets);
    /* dhidden[t] = dloss[t] unit[t]. */
    d9d_status (*linear_cross_entropy_dgrad)(d9d_stream s, d9d_dtype t, void *dhidden,
                                             const float *dloss, const void *token_grad,
                                             int64_t rows, int64_t h);
    /* Makes the logits again, by blocks.  dw[i] NULL: that split's gradient is not wanted. */
    d9d_status (*linear_cross_entropy_wgrad)(d9d_stream s, const d9d_linear_cross_entropy_dims *n,
                                             d9d_dtype gt, void *const *dw, const float *beta,
                                             const float *dloss, const float *lse,
                                             const void *hidden, const void *const *w,
                                             const int32_t *targets);
    /* Loss and both gradients where the gradient of every loss is 1: logits are made once, and the
     * softmax of as many tokens as n->room allows is kept for both products.  Of a part, n->ranks
     * have the others: loss is the whole's, unit this part's share in it.  Any of unit and dw[i]
     * may be NULL. */
    d9d_status (*linear_cross_entropy_fwd_bwd)(d9d_stream s, const d9d_linear_cross_entropy_dims *n,
                                               d9d_dtype gt, float *loss, void *token_grad,
                                               void *const *dw, const float *beta,
                                               const void *hidden, const void *const *w,
                                               const int32_t *targets);

    /* --- mixture of experts ------------------------------------------------------ */
    /* p [T, E] float32 is the score of every expert, kept for the backward; prob and expert [T, k];
     * bias [E] or NULL, for the choice alone. */
    d9d_status (*router)(d9d_stream s, const d9d_router_dims *n, float *p, float *prob,
                         int32_t *expert, const void *logits, const float *bias);
    /* balance NULL: of prob alone. */
    d9d_status (*router_bwd)(d9d_stream s, const d9d_router_dims *n, void *dlogits,
                             const float *dprob, const float *p, const float *prob,
                             const int32_t *expert, const d9d_router_balance *balance);
    /* For each choice of a token that counts (b->weight above 0) one more of its expert: in the
     * token's row of b->load, and in total [E]; either may be NULL. */
    d9d_status (*expert_load)(d9d_stream s, const d9d_router_dims *n, float *load, double *total,
                              const int32_t *expert, const d9d_router_balance *b);
    /* What each token weighs in the two losses, [T] each, without their coefficients. */
    d9d_status (*router_losses)(d9d_stream s, const d9d_router_dims *n, float *aux, float *z,
                                const float *p, const d9d_router_balance *b);
    /* bias[i] += rate * sign(mean of load - load[first + i]), i < n, of load [E]; nothing where
     * *scale is NaN. */
    d9d_status (*router_bias)(d9d_stream s, float *bias, const double *load, const float *scale,
                              float rate, int64_t first, int64_t n, int64_t e);
    /* Numbers the choices that are not -1 by (expert, token): row [T, k] is -1 for the others,
     * source [T k] for the places that are left. */
    d9d_status (*sort_by_expert)(d9d_stream s, int32_t *offset, int32_t *row, int32_t *source,
                                 const int32_t *expert, int64_t rows, int64_t e, int64_t k);
    /* y [N, H], x [T, H], row [T, k] as route gives it; a row of y that is no choice's is left
     * alone.
     */
    d9d_status (*permute)(d9d_stream s, const d9d_moe_permute_dims *n, void *y, const void *x,
                          const int32_t *row);
    d9d_status (*permute_bwd)(d9d_stream s, const d9d_moe_permute_dims *n, void *dx, const void *dy,
                              const int32_t *row);
    /* A choice of row -1 adds nothing, and dprob is 0 there. */
    d9d_status (*unpermute)(d9d_stream s, const d9d_moe_permute_dims *n, void *y, const void *x,
                            const float *prob, const int32_t *row);
    d9d_status (*unpermute_bwd)(d9d_stream s, const d9d_moe_permute_dims *n, void *dx, float *dprob,
                                const void *dy, const void *x, const float *prob,
                                const int32_t *row);
    /* Rank d of R has experts [d per, (d + 1) per).  rank [T, R]: d where it has one of the
     * token's, else -1. */
    d9d_status (*expert_ranks)(d9d_stream s, int32_t *rank, const int32_t *expert, int64_t rows,
                               int64_t k, int64_t ranks, int64_t per);
    /* For N rows, token source[i] / R to rank source[i] % R: the choices as that rank numbers its
     * experts, -1 for those of others, and for all of a row of source -1.  local [N, k]. */
    d9d_status (*expert_local_ids)(d9d_stream s, int32_t *local, const int32_t *source,
                                   const int32_t *expert, int64_t n, int64_t rows, int64_t k,
                                   int64_t ranks, int64_t per);

    /* --- reductions: results in device memory -------------------------------------- */
    /* out[i] = the sum of squares of array i, in float64 over blocks that its length alone decides.
     */
    d9d_status (*sum_squares)(d9d_stream s, double *out, d9d_dtype t,
                              const d9d_sum_squares_array *list, int64_t count);
    /* out[0] = x[0] + x[1] + ..., in this order. */
    d9d_status (*sum_ordered)(d9d_stream s, double *out, const double *x, int64_t n);
    d9d_status (*sum)(d9d_stream s, double *out, double beta, d9d_dtype t, const void *x,
                      int64_t n);
    /* out[0] = index of the first element that is not finite, or -1. */
    d9d_status (*find_nonfinite)(d9d_stream s, int64_t *out, d9d_dtype t, const void *x, int64_t n);

    /* The end of a step of mean = 1 / *weight: report[0] = sum of loss[n], report[1] = |mean|
     * sqrt(*squares), and *scale = mean min(1, max_norm / (report[1] + 1e-6)), not clipped unless
     * max_norm > 0, as torch's clip_grad_norm_ has it.  Where one of the two is not finite *scale
     * becomes NaN, and stays so. */
    d9d_status (*grad_scale)(d9d_stream s, float *scale, double *report, const double *loss,
                             int64_t n, const double *weight, const double *squares,
                             double max_norm);

    /* --- optimizers: the gradient is multiplied by *scale (device, float32) first.  Where that
     * is NaN nothing changes: a step that must not count needs no word from the host. --- */
    /* Parameters of type t, gradients of gt, m, v (and vmax with amsgrad) of st, each rounded to
     * nearest.  All arrays of a list have residuals, or none has. */
    d9d_status (*adam)(d9d_stream s, const d9d_adam_step *c, const float *scale, d9d_dtype t,
                       d9d_dtype gt, d9d_dtype st, const d9d_adam_arrays *list, int64_t count);
    /* The same of one parameter, without amsgrad, where bfloat16 is rounded stochastically: element
     * i of the box draws its 16 bits from streams r, r+42, r+67 (parameter, m, v) at its index in
     * the whole.  Numbers of float32 draw none, nor do parameters with residuals. */
    d9d_status (*adam_stochastic)(d9d_stream s, const d9d_adam_step *c, const float *scale,
                                  d9d_dtype t, d9d_dtype gt, d9d_dtype st, const d9d_adam_arrays *a,
                                  d9d_rng r, int ndim, const int64_t *box, const int64_t *start,
                                  const int64_t *whole);
    /* momentum NULL without momentum; residual as in d9d_adam_arrays. */
    d9d_status (*sgd)(d9d_stream s, const d9d_sgd_step *c, d9d_dtype t, void *p, int16_t *residual,
                      d9d_dtype gt, const void *g, const float *scale, d9d_dtype st, void *momentum,
                      int64_t n);

    /* --- generation: documents of a list, which go on from a past ------------------------- */
    /* As conv; cells [W - 1, N] of type t are the last tokens. */
    d9d_status (*causal_conv1d_update)(d9d_stream s, const d9d_causal_conv1d_dims *n,
                                       const d9d_state_slots *past, void *y, const void *x,
                                       const void *w);
    /* As delta; cells [A, D, F] float32 are the states.  On the CPU a document's numbers do not
     * depend, to the bit, on how it was cut into calls. */
    d9d_status (*gated_delta_step)(d9d_stream s, const d9d_gated_delta_dims *n,
                                   const d9d_state_slots *past, void *o, const void *q,
                                   const void *k, const void *v, const float *g, const void *b);
    /* y = x W of each head, or, turned, x W'. */
    d9d_status (*gemm_per_head)(d9d_stream s, const d9d_gemm_per_head_dims *n, void *y,
                                const void *x, const void *w);

    /* --- several at once, with the bits of each by itself ------------------------------ */
    /* gemm of one A by each of n matrices. */
    d9d_status (*gemm_multi)(d9d_stream s, int n, const d9d_gemm *g, const void *a,
                             const void *const *b, void *const *c);
    /* n arrays of heads of the same tokens; all of d but its heads is said of each. */
    d9d_status (*qk_norm_rope_append)(d9d_stream s, const d9d_qk_norm_rope_dims *d, int n,
                                      const d9d_qk_norm_rope_heads *list);

    /* Of each row of x [M, N], N at least 1, the first of its largest numbers: where it is, at [M],
     * and what it is, value [M].  What is not a number is larger than any. */
    d9d_status (*argmax)(d9d_stream s, int32_t *at, float *value, const float *x, int64_t m,
                         int64_t n);
} d9d_kernels;

/* Every entry by name, for code that goes through them all. */
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
