/* op_adapter.h - linear ops of a matrix with an adapter.
 */
#ifndef D9DI_OP_LINEAR_OP_ADAPTER_H
#define D9DI_OP_LINEAR_OP_ADAPTER_H

#include "op/linear/op_gemm.h"
#include "op/linear/op_linear_fp8.h"

/* y = x W^T (+ b) (+ plus) of some rows of W, without an adapter.  q: the copies of x, or NULL.
 * plus may be NULL.  If no other op reads plus, y is computed in its memory. */
d9d_status d9di_op_linear_rows(d9d_tape *t, d9d_var *x, d9d_param *w, const d9di_op_rows_of *a,
                               const d9di_op_fp8_input *q, d9d_var *plus, bool in_place,
                               d9d_var **y);
/* The same with the adapter that applies now, if any.  q is used if w has a recipe.  low: what
 * d9di_op_adapters_down() made of x for w, or NULL. */
d9d_status d9di_op_linear_adapted(d9d_tape *t, d9d_var *x, d9d_param *w, const d9di_op_rows_of *a,
                                  const d9di_op_fp8_input *q, d9d_var *plus, d9d_var *low,
                                  d9d_var **y);

/* In training, for the weights of one x: low_i = scale_i x A_i^T of those adapters that read x as
 * it is, if there are two or more; NULL for the others. */
d9d_status d9di_op_adapters_down(d9d_tape *t, d9d_var *x, const d9d_op_weight_slice *of, size_t n,
                                 d9d_var **low);

/* y_i = factor_i x W_i^T of n matrices, up to D9D_OP_LINEAR_MULTI_MAX, by one product: for small
 * ones, without adapters, recipes and quantisation, whose gradients have one type. */
d9d_status d9di_op_linear_stacked(d9d_tape *t, d9d_var *x, d9d_param *const *w, const float *factor,
                                  size_t n, d9d_var **y);

/* The norms of some rows of V = W + scale B A, [n] float32: a constant.  Over all of their
 * elements, where tensor parallelism divides them. */
d9d_status d9di_op_adapter_norms(d9d_tape *t, const d9d_param *w, const d9di_op_rows_of *a,
                                 d9d_tensor *out);

#endif /* D9DI_OP_LINEAR_OP_ADAPTER_H */
