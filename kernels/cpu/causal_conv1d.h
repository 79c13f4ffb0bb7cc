/* causal_conv1d.h - what causal_conv1d and causal_conv1d_update share. */
#ifndef D9DI_CPU_CAUSAL_CONV1D_H
#define D9DI_CPU_CAUSAL_CONV1D_H

#include "cpu/varlen.h"

/* EINVAL for an unsupported width. */
d9d_status d9di_causal_conv1d_check(const char *op, const d9d_causal_conv1d_dims *n);
/* y [W, N] = transpose of w [N, W]. */
void d9di_causal_conv1d_transpose_w(const d9d_causal_conv1d_dims *n, float *y, const void *w);
/* y += a b; y = silu(z), element by element. */
void d9di_cpu_row_fma(float *restrict y, const float *restrict a, const float *restrict b,
                      int64_t n);
void d9di_cpu_row_silu(float *restrict y, const float *restrict z, int64_t n);

#endif /* D9DI_CPU_CAUSAL_CONV1D_H */
