/* grouped_gemm.h - grouped GEMM (one product per expert): the arguments, and the kernels.
 *
 * Rows of expert x are offset[x] .. offset[x + 1] - 1, numbers that only the GPU knows.
 *
 *     FWD      c [rows, out] = a [rows, in]  W_x             b = w [E, in, out]
 *     DGRAD    c [rows, in]  = a [rows, out] W_x' + beta c   b = w [E, in, out]
 *              plus the product of a2 and b2, if any, in the same sum
 *     WGRAD    c [E, in, out] = a_x' b_x + beta c            a [rows, in], b [rows, out]
 */
#ifndef D9DI_CUDA_GEMM_GROUPED_GEMM_H
#define D9DI_CUDA_GEMM_GROUPED_GEMM_H

#include "cuda/common/common.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum d9di_grouped_gemm_form {
    D9DI_GROUPED_GEMM_FWD,
    D9DI_GROUPED_GEMM_DGRAD,
    D9DI_GROUPED_GEMM_WGRAD
} d9di_grouped_gemm_form;

typedef struct d9di_grouped_gemm_call {
    const char *op;
    d9di_grouped_gemm_form form;
    d9d_dtype t, ct; /* of a and b; of c */
    float beta;      /* 0 for FWD */
    void *c;
    const void *a, *b;
    const int32_t *offset;
    int64_t rows, e, in, out;
    const void *a2, *b2; /* for DGRAD, or NULL */
} d9di_grouped_gemm_call;

/* wgmma and TMA in bfloat16, on compute capability 9.0: sides that are multiples of 8. */
bool d9di_grouped_gemm_sm90_supported(d9d_stream s, const d9di_grouped_gemm_call *g);
d9d_status d9di_grouped_gemm_sm90(d9d_stream s, const d9di_grouped_gemm_call *g);

/* A few rows of a few experts in bfloat16, at memory bandwidth (grouped_gemm_skinny.cu). */
bool d9di_grouped_gemm_skinny_supported(d9d_stream s, const d9di_grouped_gemm_call *g);
d9d_status d9di_grouped_gemm_skinny(d9d_stream s, const d9di_grouped_gemm_call *g);
/* c = act(x W_x + b_gate) (x U_x + b_up) in one launch, for g->b the matrices of gate. Row r of x
 * is row source[r] / choices of g->a. */
typedef struct d9di_grouped_gemm_gate {
    const int32_t *source;
    int64_t choices;
    const void *up, *b_gate, *b_up; /* biases [E, out] or NULL */
    const d9d_glu *glu;
} d9di_grouped_gemm_gate;
d9d_status d9di_grouped_gemm_skinny_glu(d9d_stream s, const d9di_grouped_gemm_call *g,
                                        const d9di_grouped_gemm_gate *gate);
/* c = a W_x + bias, directly after the kernel of d9di_grouped_gemm_skinny_glu() with the same
 * offsets: its matrices are requested before that kernel ends. */
d9d_status d9di_grouped_gemm_skinny_after(d9d_stream s, const d9di_grouped_gemm_call *g,
                                          const void *bias);
/* The same for heads: a few tokens, matrices that are not transposed. */
bool d9di_gemm_per_head_skinny_supported(const d9d_gemm_per_head_dims *n, const void *x,
                                         const void *w);
d9d_status d9di_gemm_per_head_skinny(d9d_stream s, const d9d_gemm_per_head_dims *n, void *y,
                                     const void *x, const void *w);

/* SIMT tiles in float32, any sizes and types. */
bool d9di_grouped_gemm_simt_supported(d9d_stream s, const d9di_grouped_gemm_call *g);
d9d_status d9di_grouped_gemm_simt(d9d_stream s, const d9di_grouped_gemm_call *g);

#ifdef __cplusplus
}
#endif
#endif /* D9DI_CUDA_GEMM_GROUPED_GEMM_H */
