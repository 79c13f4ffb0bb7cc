/* quant.h - products with frozen matrices in 8 or 4 bits (d9d/kernels/quant.h). */
#ifndef D9DI_CUDA_QUANT_QUANT_H
#define D9DI_CUDA_QUANT_QUANT_H

#include "cuda/common/common.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { D9DI_QUANT_SKINNY_ROWS = 16 }; /* the most rows of x */

/* A few rows of x in bfloat16 by n matrices, in one launch.  A row's bits do not depend on the
 * number of rows. */
bool d9di_quant_gemm_skinny_supported(int n, const d9d_gemm *g, const void *x,
                                      const d9d_quant_matrix *w);
d9d_status d9di_quant_gemm_skinny(d9d_stream s, int n, const d9d_gemm *g, const void *x,
                                  const d9d_quant_matrix *w, void *const *y);
/* gate = x w0', up = x w1', y = silu(gate) up. */
bool d9di_quant_swiglu_skinny_supported(const d9d_gemm_glu_dims *n, const void *x,
                                        const d9d_quant_matrix *w);
d9d_status d9di_quant_swiglu_skinny(d9d_stream s, const d9d_gemm_glu_dims *n, void *y, void *gate,
                                    void *up, const void *x, const d9d_quant_matrix *w);

#ifdef __cplusplus
}
#endif
#endif /* D9DI_CUDA_QUANT_QUANT_H */
