/* op_head_adapter.h - a language-model head with an adapter as one matrix.
 *
 *     z = h W^T + s (drop(h) A^T) B^T = [h, s low, 0] [W, B, 0]^T        low = drop(h) A^T
 *
 * Zeros make the rank a multiple of eight, as products in bfloat16 want it.  The matrix is made for
 * forward and again for the gradients, and not kept: it takes as much memory as W.
 */
#ifndef D9DI_OP_LOSS_OP_HEAD_ADAPTER_H
#define D9DI_OP_LOSS_OP_HEAD_ADAPTER_H

#include "op/op_common.h"

/* The adapter of a head of one table that applies now; NULL: none. */
const d9d_param_adapter *d9di_op_head_adapter(const d9d_tape *t, d9d_param *const *heads, size_t n);
/* ENOTSUP for a table of several, or a quantised one, with an adapter. */
d9d_status d9di_op_head_adapter_check(const char *op, d9d_param *const *heads, size_t n);

/* [h, s low, 0] of h [T, H]. */
d9d_status d9di_op_head_input(d9d_tape *t, d9d_var *h, const d9d_param_adapter *ad, d9d_var **wide);
/* [W, B, 0]. */
d9d_status d9di_op_head_matrix(d9d_tape *t, const d9d_param *head, const d9d_param *up,
                               d9d_tensor *out);
/* Add the columns of a gradient of that matrix to beta times those of W and B that want one. */
d9d_status d9di_op_head_wgrad(d9d_node *n, d9d_param *const *of, const float *beta,
                              const d9d_tensor *grad);

#endif /* D9DI_OP_LOSS_OP_HEAD_ADAPTER_H */
