/* gemm_skinny.h - skinny GEMM: a few rows of x by matrices that are read once, at memory bandwidth.
 * A row's bits do not depend on the number of rows. */
#ifndef D9DI_CUDA_GEMM_GEMM_SKINNY_H
#define D9DI_CUDA_GEMM_GEMM_SKINNY_H

#include "cuda/common/common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* B transposed; up to 8 rows in float32, 16 in bfloat16. */
bool d9di_gemm_skinny_supported(const d9d_gemm *g, const void *a, const void *b);
d9d_status d9di_gemm_skinny(d9d_stream s, const d9d_gemm *g, const void *a, const void *b, void *c);

/* Several matrices in one launch: each supported as above, of the same K, and all in bfloat16. */
bool d9di_gemm_skinny_mma_supported(int n, const d9d_gemm *g);
d9d_status d9di_gemm_skinny_mma(d9d_stream s, int n, const d9d_gemm *g, const void *a,
                                const void *const *b, void *const *c);

/* gate = x Wg', up = x Wu', y = silu(gate) up, in bfloat16 and dense. */
bool d9di_gemm_skinny_swiglu_supported(const d9d_gemm_glu_dims *n, const void *x,
                                       const void *w_gate, const void *w_up);
d9d_status d9di_gemm_skinny_swiglu(d9d_stream s, const d9d_gemm_glu_dims *n, void *y, void *gate,
                                   void *up, const void *x, const void *w_gate, const void *w_up);

#ifdef __cplusplus
}
#endif
#endif /* D9DI_CUDA_GEMM_GEMM_SKINNY_H */
