/* norm.h - RMSNorm, LayerNorm, rotary position embedding (RoPE), and RMSNorm with RoPE for queries
 * and keys.
 *
 * The rules of every entry and the shape letters are in table.h. Kernels: kernels/cuda/norm.
 */
#ifndef D9D_KERNELS_NORM_H
#define D9D_KERNELS_NORM_H

#include <stdbool.h>
#include <stdint.h>

#include "d9d/base/dtype.h"
#include "d9d/base/status.h"
#include "d9d/kernels/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

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

/* One of the arrays (q, k or v) of qk_norm_rope_append: x [M, heads, D], normed by w [D] unless
 * that is NULL, or with `all_heads` by w [heads, D] and one mean square of all heads, and rounded;
 * then rotated if `rotates`. Token i is written to row row_index[i] of y, such as a
 * KV-cache slot; nowhere if that is -1; to row i if row_index is NULL. No kernel still in flight
 * may write row_index, positions or inv_freq, which are prefetched. */
typedef struct d9d_qk_norm_rope_heads {
    const void *x, *w;
    void *y;
    int64_t heads;
    bool rotates;
    const int32_t *row_index;
    bool all_heads;
} d9d_qk_norm_rope_heads;

/* What a decode step of latent attention does beside its products, for M tokens: the last R
 * features of each head of q [M, heads, q_cols] rotate and become the last R of query [M, heads, C
 * + R]; row row_index[i] of the cache [.., C + R] becomes token i's latent features [C], normed by
 * w, and its key [R], rotated. No kernel still in flight may write row_index, positions or
 * inv_freq. */
typedef struct d9d_latent_append_args {
    d9d_dtype t;
    int64_t m, heads, q_cols, c, r;
    float eps, mscale;
    bool interleaved;
    const int32_t *positions, *row_index;
    const float *inv_freq;
    const void *q, *latent, *key, *w;
    void *query, *cache;
} d9d_latent_append_args;

/* Gradients of LayerNorm's weight and bias, each NULL or old * beta + new. */
typedef struct d9d_layer_norm_grads {
    d9d_dtype wt, bt; /* types of dw and db */
    void *dw, *db;
    float beta_w, beta_b;
} d9d_layer_norm_grads;

/* RMSNorm of rows that several ranks have in parts, as the heads of queries: x [M, N] is this
 * rank's part of rows of `total` elements. Elements from `first` on count in the mean square; those
 * before it are of another rank too, which counts them. */
typedef struct d9d_rms_norm_parallel_dims {
    d9d_dtype t;
    int64_t m, n, first, total;
    float eps;
    bool zero_centred;
} d9d_rms_norm_parallel_dims;

typedef struct d9d_norm_kernels {
    /* inv [M] float32 is 1/sqrt(mean(x^2) + eps), which the backward pass reads. */
    d9d_status (*rms_norm)(d9d_stream s, d9d_dtype t, void *y, float *inv, const void *x,
                           const void *w, int64_t m, int64_t n, float eps, bool zero_centred);
    /* dx, dw or both in one pass, with the same bits; NULL: not computed. plus, if not NULL, is
     * added to dx before it is rounded, and may be dx. */
    d9d_status (*rms_norm_bwd)(d9d_stream s, d9d_dtype t, void *dx, const void *plus, d9d_dtype gt,
                               void *dw, float beta, const void *dy, const void *x, const void *w,
                               const float *inv, int64_t m, int64_t n, bool zero_centred);
    /* y = x inv w silu(z) (RMSNormGated), inv [M] as in rms_norm. */
    d9d_status (*rms_norm_gated)(d9d_stream s, d9d_dtype t, void *y, float *inv, const void *x,
                                 const void *z, const void *w, int64_t m, int64_t n, float eps);
    /* dx and dz both, or neither; dw may be NULL. */
    d9d_status (*rms_norm_gated_bwd)(d9d_stream s, d9d_dtype t, void *dx, void *dz, d9d_dtype gt,
                                     void *dw, float beta, const void *dy, const void *x,
                                     const void *z, const void *w, const float *inv, int64_t m,
                                     int64_t n);
    /* torch.nn.LayerNorm: y = (x - mean) inv w + b, inv = 1/sqrt(var + eps), var the mean of
     * (x - mean)^2. w and b may be NULL: 1 and 0. mean and inv [M] float32 are for backward. */
    d9d_status (*layer_norm)(d9d_stream s, d9d_dtype t, void *y, float *mean, float *inv,
                             const void *x, const void *w, const void *b, int64_t m, int64_t n,
                             float eps);
    /* dx, dw and db, each with the same bits whatever else is computed; NULL: not computed. plus as
     * in rms_norm_bwd. */
    d9d_status (*layer_norm_bwd)(d9d_stream s, d9d_dtype t, void *dx, const void *plus,
                                 const d9d_layer_norm_grads *of, const void *dy, const void *x,
                                 const void *w, const float *mean, const float *inv, int64_t m,
                                 int64_t n);
    /* RMSNorm in parts. Forward: dot with y = x, w NULL; the sum of dot [M] over all ranks; then
     * rms_norm_parallel, which also gives inv [M]. Backward: dot of dy and x with w, over all n
     * (first 0); the sum over all ranks; then rms_norm_parallel_bwd.
     * dot = sum over i >= first of x y w'; w NULL: w' = 1. */
    d9d_status (*rms_norm_dot)(d9d_stream s, const d9d_rms_norm_parallel_dims *n, float *dot,
                               const void *x, const void *y, const void *w);
    d9d_status (*rms_norm_parallel)(d9d_stream s, const d9d_rms_norm_parallel_dims *n, void *y,
                                    float *inv, const float *sum, const void *x, const void *w);
    /* dx or dw may be NULL. The term of the mean square is in dx from `first` on only: dx of other
     * elements is a part, as their dy is, and the ranks that have them add the parts. */
    d9d_status (*rms_norm_parallel_bwd)(d9d_stream s, const d9d_rms_norm_parallel_dims *n, void *dx,
                                        d9d_dtype gt, void *dw, float beta, const void *dy,
                                        const void *x, const void *w, const float *inv,
                                        const float *dot);
    /* x [M, heads, D], positions [M]. The first r features rotate; sign -1 rotates back (the
     * gradient). */
    d9d_status (*rope)(d9d_stream s, d9d_dtype t, void *y, const void *x, const int32_t *positions,
                       const float *inv_freq, int64_t m, int64_t heads, int64_t d, int64_t r,
                       bool interleaved, float mscale, float sign);
    /* Attention temperature by position: y = x (1 + beta log(1 + floor(position / period))), x
     * [M, N], positions [M]. y may be x. */
    d9d_status (*position_scale)(d9d_stream s, d9d_dtype t, void *y, const void *x,
                                 const int32_t *positions, int64_t m, int64_t n, float beta,
                                 int64_t period);
    /* Norm of each head, then RoPE; inv [M heads]. dx or dw may be NULL. */
    d9d_status (*norm_rope)(d9d_stream s, const d9d_qk_norm_rope_dims *n, void *y, float *inv,
                            const void *x, const void *w);
    d9d_status (*norm_rope_bwd)(d9d_stream s, const d9d_qk_norm_rope_dims *n, void *dx,
                                d9d_dtype gt, void *dw, float beta, const void *dy, const void *x,
                                const void *w, const float *inv);
    /* QK norm, RoPE and KV-cache append of n arrays of the same tokens. d->heads is ignored: each
     * array has its own. Where none rotates, r is 0 and positions and inv_freq may be NULL. The
     * bits are those of each call by itself. */
    d9d_status (*qk_norm_rope_append)(d9d_stream s, const d9d_qk_norm_rope_dims *d, int n,
                                      const d9d_qk_norm_rope_heads *list);
    d9d_status (*latent_append)(d9d_stream s, const d9d_latent_append_args *a);
} d9d_norm_kernels;

/* Every entry as X(family, member, op); its functions are d9d_ref_<op> and d9d_k_<op>. */
#define D9D_NORM_KERNELS(X)                                                                        \
    X(norm, rms_norm, rms_norm)                                                                    \
    X(norm, rms_norm_bwd, rms_norm_bwd)                                                            \
    X(norm, rms_norm_gated, rms_norm_gated)                                                        \
    X(norm, rms_norm_gated_bwd, rms_norm_gated_bwd)                                                \
    X(norm, layer_norm, layer_norm)                                                                \
    X(norm, layer_norm_bwd, layer_norm_bwd)                                                        \
    X(norm, rms_norm_dot, rms_norm_dot)                                                            \
    X(norm, rms_norm_parallel, rms_norm_parallel)                                                  \
    X(norm, rms_norm_parallel_bwd, rms_norm_parallel_bwd)                                          \
    X(norm, position_scale, position_scale)                                                        \
    X(norm, rope, rope)                                                                            \
    X(norm, norm_rope, norm_rope)                                                                  \
    X(norm, norm_rope_bwd, norm_rope_bwd)                                                          \
    X(norm, qk_norm_rope_append, qk_norm_rope_append)                                              \
    X(norm, latent_append, latent_append)

#ifdef __cplusplus
}
#endif
#endif /* D9D_KERNELS_NORM_H */
