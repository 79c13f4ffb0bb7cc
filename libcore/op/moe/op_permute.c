/* op_permute.c - tokens to rows sorted by expert.  x [T, H], y [R, H].
 *
 *     y[row[t, j]] = x[t]        dx[t] = sum of the gradients of its rows
 */
#include "op/op_common.h"

static d9d_status permute_dgrad(d9d_node *n)
{
    const d9d_tensor *row = &n->saved[0], *dy = &n->dout[0];
    const d9d_moe_permute_dims dims = d9di_op_permute_dims(dy, row);
    d9d_tensor dx;

    D9D_TRY(d9di_op_grad_alloc(n, 0, &dx));
    return d9di_op_grad_finish(n, 0, &dx,
                               D9DI_KERNEL(n->tape, moe->permute_bwd, &dims, d9d_tensor_data(&dx),
                                           d9d_tensor_data(dy), d9d_tensor_data(row)));
}

static const d9d_node_ops permute_node_ops = {.name = "permute", .dgrad = permute_dgrad};

d9d_status d9d_op_permute(d9d_tape *t, d9d_var *x, const d9d_routing *r, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    d9d_moe_permute_dims dims;
    d9d_var *out;
    d9d_node *n;

    D9D_TRY(d9di_op_check_real("permute", "x", tx));
    D9D_TRY(d9di_op_check_routing("permute", tx, r, false));
    D9D_TRY(d9d_tape_output(t, tx->dtype, D9D_SHAPE(d9di_routing_rows(r), tx->shape.dim[1]), &out));
    dims = d9di_op_permute_dims(d9d_var_tensor(out), &r->row);
    D9D_TRY(D9DI_KERNEL(t, moe->permute, &dims, d9d_tensor_data(d9d_var_tensor(out)),
                        d9d_tensor_data(tx), d9d_tensor_data(&r->row)));
    if (d9d_tape_should_record(t, &x, 1, NULL, 0)) {
        D9D_TRY(d9d_tape_record(t, &permute_node_ops, &x, 1, &out, 1, NULL, 0, 0, &n));
        (void)d9d_node_save(n, &r->row, D9D_NEED_DGRAD);
    }
    *y = out;
    return D9D_OK;
}
