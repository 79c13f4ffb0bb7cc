/* op_gemm.h - checks, recording and wgrad of linear ops, shared by fused ops.
 */
#ifndef D9DI_OP_LINEAR_OP_GEMM_H
#define D9DI_OP_LINEAR_OP_GEMM_H

#include "op/op_common.h"

/* Rows [first, first + n) of a matrix, and those elements of its bias, or NULL. */
typedef struct d9di_op_rows_of {
    int64_t first, n;
    d9d_param *bias;
} d9di_op_rows_of;

/* EINVAL unless x [..., in] fits w [out, in]; or x [R, in], w [E, in, out] and the routing fit. */
d9d_status d9di_op_linear_check(const d9d_tensor *x, const d9d_param *w);
d9d_status d9di_op_grouped_linear_check(const d9d_tensor *x, const d9d_param *w,
                                        const d9d_routing *r);

/* C = A op(B) + beta C of g, where B is rows of w from `first` on. */
d9d_status d9di_op_weight_gemm(d9d_tape *t, const d9d_gemm *g, const void *a, const d9d_param *w,
                               int64_t first, void *c);

/* Record on the tape that `out` is x times a weight, or times n weights of experts. */
d9d_status d9di_op_linear_record(d9d_tape *t, d9d_var *x, d9d_param *w, d9d_var *out);
d9d_status d9di_op_grouped_linear_record(d9d_tape *t, d9d_var *x, d9d_param *const *w, size_t n,
                                         const d9d_routing *r, d9d_var *const *out);

/* Wgrad from the rows x and dy, if the weight is trainable. */
d9d_status d9di_op_linear_wgrad(d9d_node *n, const d9d_tensor *x, const d9d_tensor *dy,
                                d9d_param *w);
d9d_status d9di_op_grouped_linear_wgrad(d9d_node *n, const d9d_tensor *offset, const d9d_tensor *x,
                                        const d9d_tensor *dy, d9d_param *w);

/* EINVAL unless b has an element for each column of `name`, of this shape, from `first` on. */
d9d_status d9di_op_bias_check(const char *op, const char *name, d9d_dtype t, const d9d_shape *shape,
                              const d9d_param *b, int64_t first);
/* *y += b in place, for a y that nothing else reads: the elements of b [..] from `first` on, or all
 * of b [E, N] with a routing (else NULL).  *y becomes a new var with the same array. */
d9d_status d9di_op_bias_add(d9d_tape *t, d9d_var **y, d9d_param *b, int64_t first,
                            const d9d_routing *r);
/* Record that alone, for a y to which b has been added. */
d9d_status d9di_op_bias_record(d9d_tape *t, d9d_var **y, d9d_param *b, int64_t first,
                               const d9d_routing *r);

#endif /* D9DI_OP_LINEAR_OP_GEMM_H */
