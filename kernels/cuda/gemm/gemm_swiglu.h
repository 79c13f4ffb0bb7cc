/* gemm_swiglu.h - GEMM with a SwiGLU epilogue on Hopper. */
#ifndef D9DI_CUDA_GEMM_GEMM_SWIGLU_H
#define D9DI_CUDA_GEMM_GEMM_SWIGLU_H

#include "cuda/common/common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* bfloat16, h and i multiples of 8, on compute capability 9.0. */
bool d9di_gemm_swiglu_sm90_supported(d9d_stream s, const d9d_gemm_glu_dims *n);

/* gate = x Wg, up = x Wu, y = silu(gate) up */
d9d_status d9di_gemm_swiglu_sm90(d9d_stream s, const d9d_gemm_glu_dims *n, void *y, void *gate,
                                 void *up, const void *x, const void *w_gate, const void *w_up);

/* dh = dy Wd', rounded to bfloat16 but not stored, becomes dgate and dup. */
d9d_status d9di_gemm_swiglu_bwd_sm90(d9d_stream s, const d9d_gemm_glu_dims *n, void *dgate,
                                     void *dup, const void *dy, const void *w, const void *gate,
                                     const void *up);

#ifdef __cplusplus
}
#endif
#endif /* D9DI_CUDA_GEMM_GEMM_SWIGLU_H */
