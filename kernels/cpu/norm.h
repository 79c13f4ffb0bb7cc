/* norm.h - rows of norms and RoPE in float32, for the kernels that compute one or both. */
#ifndef D9DI_CPU_NORM_H
#define D9DI_CPU_NORM_H

#include "cpu/common.h"

/* w or 1 + w in float32; the caller frees it. NULL if memory is out. */
float *d9di_cpu_norm_weights(const char *op, d9d_dtype t, const void *w, int64_t n,
                             bool zero_centred);

void d9di_cpu_norm_scale_row(float *y, const float *x, const float *w, float inv, int64_t n);
void d9di_cpu_norm_mul_row(float *y, const float *a, const float *b, int64_t n);
/* dx = inv (g - x c), g = dy w', c = inv^2 mean(g x). */
void d9di_cpu_norm_dx_row(float *dx, const float *g, const float *x, float inv, float c, int64_t n);
/* dw += dy x inv */
void d9di_cpu_norm_dw_row(float *dw, const float *dy, const float *x, float inv, int64_t n);

/* y = x - mean; y may be x. */
void d9di_cpu_norm_centre_row(float *y, const float *x, float mean, int64_t n);

/* dw and db of rows x [M, N] with statistics mean (NULL: 0) and inv [M]. */
d9d_status d9di_cpu_norm_wgrad(const char *op, d9d_dtype t, const d9d_layer_norm_grads *of,
                               const void *dy, const void *x, const float *mean, const float *inv,
                               int64_t m, int64_t n);

/* Cosine and sine, times mscale, of n angles; sign -1 rotates back. */
void d9di_cpu_rope_angles(float *co, float *si, const float *inv_freq, float position, float mscale,
                          float sign, int64_t n);
/* Rotates n pairs: features i and i + n or, interleaved, 2 i and 2 i + 1. y is not x. */
void d9di_cpu_rope_rotate(bool interleaved, float *y, const float *x, const float *co,
                          const float *si, int64_t n);

#endif /* D9DI_CPU_NORM_H */
