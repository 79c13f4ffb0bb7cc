/* op_linear_fp8.h - products of a linear op in 8 bits: forward, dgrad, wgrad; of experts too.
 *
 *     y = x W'     x.rows, W.rows        x and dy are quantised once, for all products that read
 *     dx = dy W    dy.rows, W.cols       them; W once for each of its lifetimes (d9d_param_fp8).
 *     dW = dy' x   dy.cols, x.cols       x.cols is saved in the place of x.
 *
 * The matrices of experts are stored [E, in, out], so that forward reads W.cols, and dgrad W.rows.
 */
#ifndef D9DI_OP_LINEAR_OP_LINEAR_FP8_H
#define D9DI_OP_LINEAR_OP_LINEAR_FP8_H

#include "op/op_common.h"

/* The copies of an input that its products read. */
typedef struct d9di_op_fp8_input {
    d9d_quantised rows, cols; /* cols: empty if nothing is recorded that has a wgrad */
} d9di_op_fp8_input;

/* What a node keeps. */
typedef struct d9di_op_fp8_node {
    const d9d_quantised_recipe *recipe; /* NULL: it computes in its own type */
    d9d_quantised dy;                   /* cols of the output gradient, from dgrad to wgrad */
} d9di_op_fp8_node;

/* EINVAL unless rows [first, first + n) of w, which has a recipe, can be multiplied in 8 bits; or
 * the matrices of experts. */
d9d_status d9di_op_fp8_check(const d9d_param *w, int64_t first, int64_t n);
d9d_status d9di_op_fp8_grouped_check(const d9d_param *w);
/* Copies of x for products with any of n matrices, some of which may have no recipe. */
d9d_status d9di_op_fp8_input_make(d9d_tape *t, const d9d_tensor *x, d9d_param *const *w, size_t n,
                                  d9di_op_fp8_input *out);
void d9di_op_fp8_input_release(d9di_op_fp8_input *x);

/* The products of g, which says sizes and sum: of rows from `row` on of x with rows of w from
 * `first` on; of n->dout[0] with those rows; of both gradients, x from n->saved. */
d9d_status d9di_op_fp8_forward(d9d_tape *t, const d9d_gemm *g, const d9di_op_fp8_input *x,
                               int64_t row, d9d_param *w, int64_t first, void *y);
d9d_status d9di_op_fp8_dgrad(d9d_node *n, const d9d_gemm *g, d9di_op_fp8_node *a, int64_t first,
                             void *dx);
d9d_status d9di_op_fp8_wgrad(d9d_node *n, const d9d_gemm *g, d9di_op_fp8_node *a, void *dw);
/* Save x for the wgrad of a node that was just recorded: two arrays, data and scales. */
void d9di_op_fp8_save(d9d_node *n, const d9di_op_fp8_input *x);

/* The same of experts: y = x W_e of the copies of x; dx = dout[i] W_e' (+ dx if `adds`); and the
 * gradient of parameter i.  Copies of x are what the node has saved from `saved` on. */
d9d_status d9di_op_fp8_grouped_forward(d9d_tape *t, const d9di_op_fp8_input *x,
                                       const d9d_tensor *offset, d9d_param *w, const d9d_tensor *y);
d9d_status d9di_op_fp8_grouped_dgrad(d9d_node *n, int i, const d9d_tensor *offset,
                                     d9di_op_fp8_node *a, bool adds, const d9d_tensor *dx);
d9d_status d9di_op_fp8_grouped_wgrad(d9d_node *n, int i, const d9d_tensor *offset, int saved,
                                     d9di_op_fp8_node *a);

#endif /* D9DI_OP_LINEAR_OP_LINEAR_FP8_H */
