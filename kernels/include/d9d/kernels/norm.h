/* norm.h - RMSNorm, rotary position embedding (RoPE), and both at once for queries and keys.
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
     * array has its own. The bits are those of each call by itself. */
    d9d_status (*qk_norm_rope_append)(d9d_stream s, const d9d_qk_norm_rope_dims *d, int n,
                                      const d9d_qk_norm_rope_heads *list);
} d9d_norm_kernels;

/* Every entry as X(family, member, op); its functions are d9d_ref_<op> and d9d_k_<op>. */
#define D9D_NORM_KERNELS(X)                                                                        \
    X(norm, rms_norm, rms_norm)                                                                    \
    X(norm, rms_norm_bwd, rms_norm_bwd)                                                            \
    X(norm, rms_norm_gated, rms_norm_gated)                                                        \
    X(norm, rms_norm_gated_bwd, rms_norm_gated_bwd)                                                \
    X(norm, position_scale, position_scale)                                                        \
    X(norm, rope, rope)                                                                            \
    X(norm, norm_rope, norm_rope)                                                                  \
    X(norm, norm_rope_bwd, norm_rope_bwd)                                                          \
    X(norm, qk_norm_rope_append, qk_norm_rope_append)

#ifdef __cplusplus
}
#endif
#endif /* D9D_KERNELS_NORM_H */
