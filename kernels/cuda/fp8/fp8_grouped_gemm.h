/* fp8_grouped_gemm.h - products of quantised rows and matrices of experts: the kernels. */
#ifndef D9DI_CUDA_FP8_FP8_GROUPED_GEMM_H
#define D9DI_CUDA_FP8_FP8_GROUPED_GEMM_H

#include "cuda/fp8/fp8.h"

#ifdef __cplusplus
extern "C" {
#endif

/* wgmma and TMA, on compute capability 9.0. */
bool d9di_fp8_grouped_gemm_sm90_supported(d9d_stream s, const d9d_fp8_grouped_dims *g);
d9d_status d9di_fp8_grouped_gemm_sm90(d9d_stream s, const d9d_fp8_grouped_dims *g,
                                      const d9d_fp8_operand *a, const d9d_fp8_operand *b, void *c);
/* SIMT tiles in float32, any GPU. */
d9d_status d9di_fp8_grouped_gemm_simt(d9d_stream s, const d9d_fp8_grouped_dims *g,
                                      const d9d_fp8_operand *a, const d9d_fp8_operand *b, void *c);

#ifdef __cplusplus
}
#endif
#endif /* D9DI_CUDA_FP8_FP8_GROUPED_GEMM_H */
