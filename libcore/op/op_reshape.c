/* op_reshape.c - the same elements in another shape: a view, in forward and in backward.
 */
#include "op/op_common.h"

static d9d_status reshape_dgrad(d9d_node *n)
{
    d9d_tensor dx = d9d_tensor_reshape(&n->dout[0], d9di_op_input(n, 0)->shape);

    return d9d_node_accumulate_grad(n, 0, &dx);
}

static const d9d_node_ops reshape_node_ops = {.name = "reshape", .dgrad = reshape_dgrad};

d9d_status d9d_op_reshape(d9d_tape *t, d9d_var *x, d9d_shape shape, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    d9d_tensor view;
    d9d_var *out;
    d9d_node *n;

    D9D_TRY(d9di_op_check("reshape", "x", tx, tx->dtype));
    if (d9d_shape_numel(&shape) != d9d_tensor_numel(tx))
        return d9di_op_misfit("reshape", "x", &tx->shape, "the new shape", &shape,
                              "the number of elements must be the same");
    view = d9d_tensor_reshape(tx, shape);
    D9D_TRY(d9d_tape_output_take(t, &view, &out));
    if (d9d_tape_should_record(t, &x, 1, NULL, 0))
        D9D_TRY(d9d_tape_record(t, &reshape_node_ops, &x, 1, &out, 1, NULL, 0, 0, &n));
    *y = out;
    return D9D_OK;
}
