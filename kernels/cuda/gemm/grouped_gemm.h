/* grouped_gemm.h - one product per expert: the call, and the ways to do it.
 *
 * Rows of expert x are offset[x] .. offset[x + 1] - 1, numbers that the GPU alone knows.
 *
 *     D9DI_Y    c [rows, out] = a [rows, in]  W_x        b = w [E, in, out]
 *     D9DI_DX   c [rows, in]  = a [rows, out] W_x' + beta c    b = w [E, in, out]
 *               and the same of a second a and b, where there are any, in one sum
 *     D9DI_DW   c [E, in, out] = a_x' b_x + beta c       a [rows, in], b [rows, out]
 */
#ifndef D9DI_CUDA_GEMM_GROUPED_GEMM_H
#define D9DI_CUDA_GEMM_GROUPED_GEMM_H

#include "cuda/common/common.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum d9di_grouped_form { D9DI_Y, D9DI_DX, D9DI_DW } d9di_grouped_form;

typedef struct d9di_grouped {
    const char *op;
    d9di_grouped_form form;
    d9d_dtype t, ct; /* of a and b; of c */
    float beta;      /* 0 for D9DI_Y */
    void *c;
    const void *a, *b;
    const int32_t *offset;
    int64_t rows, e, in, out;
    const void *a2, *b2; /* for D9DI_DX, or NULL */
} d9di_grouped;

/* wgmma and TMA in bfloat16, on compute capability 9.0: sides that are multiples of 64. */
bool d9di_grouped_wgmma_takes(d9d_stream s, const d9di_grouped *g);
d9d_status d9di_grouped_wgmma(d9d_stream s, const d9di_grouped *g);

/* Tiles in float32, any sizes and types. */
bool d9di_grouped_tiles_takes(d9d_stream s, const d9di_grouped *g);
d9d_status d9di_grouped_tiles(d9d_stream s, const d9di_grouped *g);

#ifdef __cplusplus
}
#endif
#endif /* D9DI_CUDA_GEMM_GROUPED_GEMM_H */
