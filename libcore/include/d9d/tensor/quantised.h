/* quantised.h - a matrix in 8 bits with scales, as one side of a product reads it.
 *
 * Elements are e4m3 or e5m2, with a scale for each row or one for all (d9d/kernels/fp8.h).  A
 * matrix that is multiplied along its rows and along its columns has two copies, made from one
 * read:
 *
 *     D9D_TRY(d9d_quantise(&x, &recipe, recipe.format, &rows, &cols));     // x [M, K]
 *     ... y = x w' from rows [M, K], dW = dy' x from cols [K, M'] ...
 *     d9d_quantised_release(&rows);
 *     d9d_quantised_release(&cols);
 *
 * Which copies an array has is the caller's matter: activations and weights have the format, output
 * gradients the grad_format of a recipe.
 */
#ifndef D9D_TENSOR_QUANTISED_H
#define D9D_TENSOR_QUANTISED_H

#include "d9d/tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How a model's products are quantised; names as in TorchAO. */
typedef enum d9d_quantised_scaling {
    D9D_SCALE_TENSORWISE, /* a scale a copy, from its largest magnitude */
    D9D_SCALE_ROWWISE     /* a scale for each row of a copy: of x, and of its transpose */
} d9d_quantised_scaling;

typedef struct d9d_quantised_recipe {
    d9d_quantised_scaling scaling;
    d9d_dtype format, grad_format; /* D9D_F8_E4M3 or D9D_F8_E5M2 */
    bool fast_accum;               /* d9d_fp8_gemm_dims */
} d9d_quantised_recipe;

typedef struct d9d_quantised {
    d9d_tensor data;  /* [rows, row length], the format's dtype; storage NULL: none */
    d9d_tensor scale; /* float32: [rows] if scale_by_row, else [1] */
    bool scale_by_row;
} d9d_quantised;

/* Copies of x [..., K] as M rows of K, K a multiple of D9D_FP8_ALIGN: `rows` [M, K] and `cols`
 * [K, M'], M' = d9d_fp8_padded(M); either may be NULL. */
D9D_API D9D_MUST_USE d9d_status d9d_quantise(const d9d_tensor *x,
                                             const d9d_quantised_recipe *recipe, d9d_dtype format,
                                             d9d_quantised *rows, d9d_quantised *cols);
D9D_API d9d_quantised d9d_quantised_ref(const d9d_quantised *x);
D9D_API void d9d_quantised_release(d9d_quantised *x);
static inline bool d9d_quantised_is_empty(const d9d_quantised *x)
{
    return x->data.storage == NULL;
}

/* Rows from `row` on, and of them the elements from `k` on, a multiple of D9D_FP8_ALIGN. */
D9D_API d9d_fp8_operand d9d_quantised_operand(const d9d_quantised *x, int64_t row, int64_t k);

#ifdef __cplusplus
}
#endif
#endif /* D9D_TENSOR_QUANTISED_H */
