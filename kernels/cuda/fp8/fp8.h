/* fp8.h - what the kernels of quantised matrices share. */
#ifndef D9DI_CUDA_FP8_FP8_H
#define D9DI_CUDA_FP8_FP8_H

#include "common/fp8_scale.h"
#include "cuda/common/common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y [rows, k] bfloat16 = the values of x, which are exact there. */
d9d_status d9di_fp8_dequantise(d9d_stream s, const char *op, void *y, const d9d_fp8_operand *x,
                               int64_t rows, int64_t k);

#ifdef __cplusplus
}
#endif
#endif /* D9DI_CUDA_FP8_FP8_H */
