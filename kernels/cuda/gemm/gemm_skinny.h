/* gemm_skinny.h - products of a few rows of x by matrices that are read once, at the speed of
 * memory; a row's bits do not depend on how many there are. */
#ifndef D9DI_CUDA_GEMM_GEMM_SKINNY_H
#define D9DI_CUDA_GEMM_GEMM_SKINNY_H

#include "cuda/common/common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* B transposed, in float32 up to 8 rows, in bfloat16 16. */
bool d9di_gemm_skinny_supported(const d9d_gemm *g, const void *a, const void *b);
d9d_status d9di_gemm_skinny(d9d_stream s, const d9d_gemm *g, const void *a, const void *b, void *c);

/* By several matrices in one launch: products that it takes, of one size and all of bfloat16. */
bool d9di_gemm_skinny_mma_supported(int n, const d9d_gemm *g);
d9d_status d9di_gemm_skinny_mma(d9d_stream s, int n, const d9d_gemm *g, const void *a,
                                const void *const *b, void *const *c);

/* gate = x Wg', up = x Wu', y = silu(gate) up, of bfloat16 and one matrix each. */
bool d9di_gemm_skinny_swiglu_supported(const d9d_gemm_swiglu_dims *n, const void *x,
                                       const void *w_gate, const void *w_up);
d9d_status d9di_gemm_skinny_swiglu(d9d_stream s, const d9d_gemm_swiglu_dims *n, void *y, void *gate,
                                   void *up, const void *x, const void *w_gate, const void *w_up);

#ifdef __cplusplus
}
#endif
#endif /* D9DI_CUDA_GEMM_GEMM_SKINNY_H */
