/* op_gemm.h - products with parameters, for operations that are several at once. */
#ifndef D9DI_OP_LINEAR_OP_GEMM_H
#define D9DI_OP_LINEAR_OP_GEMM_H

#include "op/op_common.h"

/* EINVAL unless x [..., in] and w [out, in] fit; x [R, in], w [E, in, out] and the routing do. */
d9d_status d9di_op_linear_check(const d9d_tensor *x, const d9d_param *w);
d9d_status d9di_op_grouped_linear_check(const d9d_tensor *x, const d9d_param *w,
                                        const d9d_routing *r);

/* Record that `out` was made of x by a weight, or by n weights of experts. */
d9d_status d9di_op_linear_record(d9d_tape *t, d9d_var *x, d9d_param *w, d9d_var *out);
d9d_status d9di_op_grouped_linear_record(d9d_tape *t, d9d_var *x, d9d_param *const *w, size_t n,
                                         const d9d_routing *r, d9d_var *const *out);

/* The gradient of a whole weight, of the rows x and dy, where it is wanted. */
d9d_status d9di_op_linear_wgrad(d9d_node *n, const d9d_tensor *x, const d9d_tensor *dy,
                                d9d_param *w);
d9d_status d9di_op_grouped_linear_wgrad(d9d_node *n, const d9d_tensor *offset, const d9d_tensor *x,
                                        const d9d_tensor *dy, d9d_param *w);

#endif /* D9DI_OP_LINEAR_OP_GEMM_H */
