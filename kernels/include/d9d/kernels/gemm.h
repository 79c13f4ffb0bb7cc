/* gemm.h - GEMM: dense, grouped (MoE experts), per head, and with a GLU after it.
 *
 *     const d9d_gemm g = {.t = D9D_BF16, .ct = D9D_BF16, .trans_b = true, .m = T, .n = I, .k = H};
 *     D9D_TRY(k->gemm->dense(s, &g, x, w, y));                           // y [T, I] = x w'
 *
 * The rules of every entry and the shape letters are in table.h. Kernels: kernels/cuda/gemm.
 */
#ifndef D9D_KERNELS_GEMM_H
#define D9D_KERNELS_GEMM_H

#include <stdbool.h>
#include <stdint.h>

#include "d9d/base/dtype.h"
#include "d9d/base/status.h"
#include "d9d/kernels/elementwise.h"
#include "d9d/kernels/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* GEMM: C = op(A) op(B) + beta C + bias, with C [M, N] of type ct, op(A) [M, K] and op(B) [K, N] of
 * type t. bias: N elements of type ct, added to each row, or NULL; to C before it is rounded, but
 * for shapes that cuBLASLt computes without a bias. trans_a: A is stored [K, M]; trans_b: B is
 * stored [N, K]. addend: if not NULL, an array like C that takes the place of C in `beta C`; the
 * result has the same bits. b_constant: no kernel still in flight writes B, so that B may be
 * prefetched before the previous kernel ends (PDL). */
typedef struct d9d_gemm {
    d9d_dtype t, ct;
    bool trans_a, trans_b;
    int64_t m, n, k;
    float beta;
    const void *addend;
    bool b_constant;
    const void *bias;
} d9d_gemm;

/* Batched GEMM: C_i = alpha op(A_i) op(B_i) + beta C_i for `count` products of one shape.  Matrices
 * of an array follow each other; `addend` has as many as C.  symmetric: the results are symmetric,
 * and so is what is added, so that an implementation may compute a part and mirror it.  Without a
 * bias. */
typedef struct d9d_gemm_batched {
    d9d_gemm gemm;
    int64_t count;
    float alpha;
    bool symmetric;
} d9d_gemm_batched;

/* GLU half of a feed-forward layer: x [R, H] times two matrices gives [R, I] each. A matrix is
 * [I, H], and that of the down projection [H, I]. With offset (grouped GEMM) each of E experts has
 * its own, [E, H, I] and [E, I, H], for rows offset[e] <= r < offset[e+1]. A bias [I] or [E, I] is
 * added to gate and up; the backward does not read it. */
typedef struct d9d_gemm_glu_dims {
    d9d_dtype t;
    int64_t rows, h, i, e; /* e is 1 without offset */
    const int32_t *offset;
    bool weights_constant; /* as d9d_gemm's b_constant, for both matrices */
    d9d_glu glu;
    const void *b_gate, *b_up; /* NULL: none */
} d9d_gemm_glu_dims;

/* Per-head linear layer (block-diagonal): y [M, heads, y_cols], x [M, heads, x_cols], of which
 * columns [x_first, x_first + in) are read and [0, out) of y written. The matrix of head h begins
 * at row h * w_head_rows + w_first of w and has `in` rows or, with trans_w, `out`. */
typedef struct d9d_gemm_per_head_dims {
    d9d_dtype t;
    int64_t m, heads, in, out, w_head_rows, w_first;
    bool trans_w;
    int64_t x_cols, x_first, y_cols;
} d9d_gemm_per_head_dims;

typedef struct d9d_gemm_kernels {
    d9d_status (*dense)(d9d_stream s, const d9d_gemm *g, const void *a, const void *b, void *c);
    /* dense() of one A by each of n matrices, with the bits of each call by itself. */
    d9d_status (*multi)(d9d_stream s, int n, const d9d_gemm *g, const void *a, const void *const *b,
                        void *const *c);
    /* All products of a batch. */
    d9d_status (*batched)(d9d_stream s, const d9d_gemm_batched *g, const void *a, const void *b,
                          void *c);
    /* y[r] = x[r] W_e for rows offset[e] <= r < offset[e+1]; w [E, in, out], offset [E + 1] on the
     * device. */
    d9d_status (*grouped)(d9d_stream s, d9d_dtype t, void *y, const void *x, const void *w,
                          const int32_t *offset, int64_t rows, int64_t e, int64_t in, int64_t out);
    /* dx = beta dx + sum over n matrices, at most 2, of dy_i w_i'. */
    d9d_status (*grouped_dgrad)(d9d_stream s, d9d_dtype t, void *dx, float beta, int n,
                                const void *const *dy, const void *const *w, const int32_t *offset,
                                int64_t rows, int64_t e, int64_t in, int64_t out);
    d9d_status (*grouped_wgrad)(d9d_stream s, d9d_dtype t, d9d_dtype gt, void *dw, float beta,
                                const void *x, const void *dy, const int32_t *offset, int64_t rows,
                                int64_t e, int64_t in, int64_t out);
    /* db[e] = beta db[e] + the sum of an expert's rows of dy [R, N]; db [E, N].  offset NULL: all
     * rows, E is 1. */
    d9d_status (*grouped_bias_wgrad)(d9d_stream s, d9d_dtype t, d9d_dtype gt, void *db, float beta,
                                     const void *dy, const int32_t *offset, int64_t rows, int64_t e,
                                     int64_t n);
    /* gate = x Wg + bg, up = x Wu + bu, y = act(gate) up; a matrix stored [I, H] is transposed. up
     * and w_up NULL: y = act(gate). */
    d9d_status (*glu)(d9d_stream s, const d9d_gemm_glu_dims *n, void *y, void *gate, void *up,
                      const void *x, const void *w_gate, const void *w_up);
    /* dgate and dup, from the gradient dout [R, H] of the layer's output and the down projection w.
     * dup and up are NULL together. */
    d9d_status (*glu_bwd)(d9d_stream s, const d9d_gemm_glu_dims *n, void *dgate, void *dup,
                          const void *dout, const void *w, const void *gate, const void *up);
    /* y = x W of each head or, with trans_w, x W'. */
    d9d_status (*per_head)(d9d_stream s, const d9d_gemm_per_head_dims *n, void *y, const void *x,
                           const void *w);
} d9d_gemm_kernels;

/* Every entry as X(family, member, op); its functions are d9d_ref_<op> and d9d_k_<op>. */
#define D9D_GEMM_KERNELS(X)                                                                        \
    X(gemm, dense, gemm)                                                                           \
    X(gemm, multi, gemm_multi)                                                                     \
    X(gemm, batched, gemm_batched)                                                                 \
    X(gemm, grouped, grouped_gemm)                                                                 \
    X(gemm, grouped_dgrad, grouped_gemm_dgrad)                                                     \
    X(gemm, grouped_wgrad, grouped_gemm_wgrad)                                                     \
    X(gemm, grouped_bias_wgrad, grouped_bias_wgrad)                                                \
    X(gemm, glu, gemm_glu)                                                                         \
    X(gemm, glu_bwd, gemm_glu_bwd)                                                                 \
    X(gemm, per_head, gemm_per_head)

#ifdef __cplusplus
}
#endif
#endif /* D9D_KERNELS_GEMM_H */
