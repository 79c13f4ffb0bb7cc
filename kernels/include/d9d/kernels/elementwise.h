/* elementwise.h - kernels of single elements: fills, casts, sums, activations, gates, random
 * numbers; biases; copies of rows: strided copies, scatter, embedding; the choice of tokens.
 *
 *     D9D_TRY(k->elementwise->fill(s, D9D_F32, y, n, 1.0f));
 *
 * The rules of every entry and the shape letters are in table.h. Kernels: kernels/cuda/elementwise.
 */
#ifndef D9D_KERNELS_ELEMENTWISE_H
#define D9D_KERNELS_ELEMENTWISE_H

#include <stdbool.h>
#include <stdint.h>

#include "d9d/base/dtype.h"
#include "d9d/base/rng.h"
#include "d9d/base/status.h"
#include "d9d/kernels/segment.h"
#include "d9d/kernels/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How a parameter is initialised. */
typedef enum d9d_init_kind {
    D9D_INIT_ZEROS,
    D9D_INIT_ONES,
    D9D_INIT_NORMAL, /* N(0, scale^2) */
    D9D_INIT_UNIFORM /* U[-scale, scale) */
} d9d_init_kind;

/* Activations, with the words that transformers' `hidden_act` has for them. s(x) is the sigmoid. */
typedef enum d9d_activation {
    D9D_ACT_SILU,       /* x s(x); "silu", "swish" */
    D9D_ACT_GELU,       /* x P(X <= x), X of N(0, 1): with erf; "gelu" */
    D9D_ACT_GELU_TANH,  /* x s(2 z), z = sqrt(2/pi) (x + 0.044715 x^3); "gelu_pytorch_tanh",
                           "gelu_new" */
    D9D_ACT_SWIGLU_OAI, /* gpt-oss, gated only: below */
    D9D_ACT_HARDTANH,   /* x within +-limit, torch's hardtanh: a clamp, with derivative 1 at both */
    D9D_N_ACTIVATIONS
} d9d_activation;

/* Gated linear unit y = act(gate) up, or without up y = act(gate). {0} is SwiGLU.
 * D9D_ACT_SWIGLU_OAI clamps both: with g = min(gate, limit) and u = up within +-limit, y = g
 * s(alpha g) (u + 1). */
typedef struct d9d_glu {
    d9d_activation act;
    float alpha, limit; /* of D9D_ACT_SWIGLU_OAI, limit of D9D_ACT_HARDTANH too: above 0, may be
                           infinite */
} d9d_glu;

/* Strided copy of n columns: from x [M, x_cols], columns x_first on, to y [M heads, y_cols],
 * columns y_first on. A row of x is copied to (or summed over) `heads` rows of y. */
typedef struct d9d_copy_strided_dims {
    d9d_dtype t;
    int64_t m, heads, n;
    int64_t x_cols, x_first, y_cols, y_first;
} d9d_copy_strided_dims;

/* Columns of x [M, x_ld] that go to columns of y [M, y_ld], N of each: y = alpha x + beta y. With
 * beta 0 y is not read. */
typedef struct d9d_foreach_matrix {
    int64_t m, n;
    const void *x;
    int64_t x_ld, x_first;
    void *y;
    int64_t y_ld, y_first;
    float alpha, beta;
} d9d_foreach_matrix;

enum { D9D_FOREACH_MAX = 8 };     /* limit of a list of matrices */
enum { D9D_ADD_MAX_ARRAYS = 16 }; /* limit of add's `of` */

/* Repetition penalty of logits x [M, N], N the vocabulary: y is x, but for each token that row i's
 * sequence has, x / penalty above 0 and x * penalty below, once however often it is there. Ids from
 * N on have no logit. The tokens of all sequences are in `history`, of which row i has those of
 * keys [k, k + nk) of segment i. First the call's tokens join it: history[slots[j]] = ids[j]. */
typedef struct d9d_repetition_penalty_args {
    float penalty;              /* above 0 */
    int32_t *history;           /* [slots] */
    const int32_t *ids, *slots; /* [T]; no two slots are equal */
    const d9d_segment *segment; /* [M] */
    int64_t tokens, m, n;       /* T M N */
    const float *x;             /* [M, N] */
    float *y;                   /* [M, N] */
} d9d_repetition_penalty_args;

enum { D9D_SAMPLE_MAX_VOCAB = 1 << 20 }; /* limit of sample_tokens' N */

/* How a token of each row of logits is sampled. Temperature 0 takes the largest logit, the first of
 * equal ones. Otherwise a token is drawn with weights exp((x - max) / temperature). First only the
 * top_k most likely tokens remain; then, in descending order, those within top_p of the sum of
 * weights, the first always; then those with at least min_p times the largest weight. (Of equal
 * tokens the lower one counts as more likely.) It is the order of transformers.
 *
 * The random number of a row is d9d_rng_u64({seed, stream}, position), and the token is the first
 * at which the sum of the weights of what remains, in the order of tokens, exceeds that part of it.
 * Weights are integers, in units of 2^-43 of the largest one (common/sampling.h), so a row's
 * token is a function of the row and its number alone: the same on every processor, in any batch.
 */
typedef struct d9d_sample_tokens_args {
    double temperature;  /* at least 0 */
    int64_t top_k;       /* 0: no limit */
    double top_p, min_p; /* 1, 0: no limit */
    uint64_t seed;
    const int64_t *draw; /* [M, 2]: stream and position; not read at temperature 0 */
    const float *x;      /* [M, N] logits, N at least 1; up to D9D_SAMPLE_MAX_VOCAB, unless the
                            temperature is 0 and `stats` NULL */
    int32_t *token;      /* [M]; of a row whose largest logit is not finite, that logit's */
    float *largest;      /* [M] logits: NaN is larger than any number */
    double *stats; /* [M, 2], or NULL: log-probability of the token and entropy, of the softmax of
                      x / temperature over all N tokens (temperature 0: of 1); NaN of a row
                      whose largest logit is not finite */
    int64_t m, n;  /* M N */
} d9d_sample_tokens_args;

typedef struct d9d_elementwise_kernels {
    d9d_status (*fill)(d9d_stream s, d9d_dtype t, void *y, int64_t n, float v);
    d9d_status (*cast)(d9d_stream s, d9d_dtype yt, void *y, d9d_dtype xt, const void *x, int64_t n);
    /* y = sum of the first `of` arrays of x, 1 to D9D_ADD_MAX_ARRAYS, in their order. y may be one
     * of them. */
    d9d_status (*add)(d9d_stream s, d9d_dtype t, void *y, const void *const *x, int of, int64_t n);
    /* y = beta y + x; the types may differ. */
    d9d_status (*accumulate)(d9d_stream s, d9d_dtype yt, void *y, float beta, d9d_dtype xt,
                             const void *x, int64_t n);
    /* y = alpha x + plus (axpy), rounded once; plus NULL: 0. y may be x or plus. */
    d9d_status (*axpy)(d9d_stream s, d9d_dtype t, void *y, float alpha, const void *x,
                       const void *plus, int64_t n);
    /* Each matrix of a list, rounded once, in one launch (torch._foreach ops). Those that are
     * written do not overlap; the types may differ. */
    d9d_status (*foreach_axpby)(d9d_stream s, d9d_dtype yt, d9d_dtype xt,
                                const d9d_foreach_matrix *list, int count);
    /* up NULL: a plain activation. */
    d9d_status (*glu)(d9d_stream s, const d9d_glu *f, d9d_dtype t, void *y, const void *gate,
                      const void *up, int64_t n);
    /* dgate may be dy. dup and up are NULL together. */
    d9d_status (*glu_bwd)(d9d_stream s, const d9d_glu *f, d9d_dtype t, void *dgate, void *dup,
                          const void *dy, const void *gate, const void *up, int64_t n);
    /* y = cap tanh(x / cap), or x if cap is 0; y may be x. */
    d9d_status (*softcap)(d9d_stream s, d9d_dtype t, void *y, const void *x, float cap, int64_t n);
    /* y[r] = x[r] + b[e] for rows offset[e] <= r < offset[e+1]; x y [M, N], b [E, N], offset
     * [E + 1]. offset NULL: all rows, E is 1. y may be x. The gradient of b is
     * gemm->grouped_bias_wgrad(). */
    d9d_status (*add_bias)(d9d_stream s, d9d_dtype t, void *y, const void *x, const void *b,
                           const int32_t *offset, int64_t m, int64_t e, int64_t n);
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
    /* Rows of one split of a table: id - first in [0, v). Other ids leave y unchanged, or zero it
     * if `clear`. */
    d9d_status (*embedding)(d9d_stream s, d9d_dtype t, void *y, const int32_t *ids,
                            const void *table, int64_t rows, int64_t first, int64_t v, int64_t h,
                            bool clear);
    d9d_status (*embedding_wgrad)(d9d_stream s, d9d_dtype t, d9d_dtype gt, void *dtable, float beta,
                                  const int32_t *ids, const void *dy, int64_t rows, int64_t first,
                                  int64_t v, int64_t h);
    /* For each row of x [M, N], N at least 1: the index `at` [M] of its first largest element, and
     * its value [M]. NaN is larger than any number. */
    d9d_status (*argmax)(d9d_stream s, int32_t *at, float *value, const float *x, int64_t m,
                         int64_t n);
    d9d_status (*repetition_penalty)(d9d_stream s, const d9d_repetition_penalty_args *a);
    d9d_status (*sample_tokens)(d9d_stream s, const d9d_sample_tokens_args *a);
} d9d_elementwise_kernels;

/* Every entry as X(family, member, op); its functions are d9d_ref_<op> and d9d_k_<op>. */
#define D9D_ELEMENTWISE_KERNELS(X)                                                                 \
    X(elementwise, fill, fill)                                                                     \
    X(elementwise, cast, cast)                                                                     \
    X(elementwise, add, add)                                                                       \
    X(elementwise, accumulate, accumulate)                                                         \
    X(elementwise, axpy, axpy)                                                                     \
    X(elementwise, foreach_axpby, foreach_axpby)                                                   \
    X(elementwise, glu, glu)                                                                       \
    X(elementwise, glu_bwd, glu_bwd)                                                               \
    X(elementwise, softcap, softcap)                                                               \
    X(elementwise, add_bias, add_bias)                                                             \
    X(elementwise, sigmoid_gate, sigmoid_gate)                                                     \
    X(elementwise, sigmoid_gate_bwd, sigmoid_gate_bwd)                                             \
    X(elementwise, random, random)                                                                 \
    X(elementwise, dropout, dropout)                                                               \
    X(elementwise, scatter_rows, scatter_rows)                                                     \
    X(elementwise, copy_strided, copy_strided)                                                     \
    X(elementwise, copy_strided_bwd, copy_strided_bwd)                                             \
    X(elementwise, embedding, embedding)                                                           \
    X(elementwise, embedding_wgrad, embedding_wgrad)                                               \
    X(elementwise, argmax, argmax)                                                                 \
    X(elementwise, repetition_penalty, repetition_penalty)                                         \
    X(elementwise, sample_tokens, sample_tokens)

#ifdef __cplusplus
}
#endif
#endif /* D9D_KERNELS_ELEMENTWISE_H */
