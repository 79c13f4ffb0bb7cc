/* op_loss_root.c - mark an array as a root of the backward: training minimises its sum.
 */
#include "op/op_common.h"

static d9d_status loss_root_dgrad(d9d_node *n)
{
    const d9d_tensor *x = d9di_op_input(n, 0);
    d9d_tensor dx;

    D9D_TRY(d9d_node_alloc(n, x->dtype, x->shape, &dx));
    D9D_TRY(D9DI_KERNEL(n->tape, elementwise->fill, x->dtype, d9d_tensor_data(&dx),
                        d9d_tensor_numel(x), 1.0f));
    return d9d_node_accumulate_grad(n, 0, &dx);
}

static const d9d_node_ops loss_root_node_ops = {.name = "loss_root", .dgrad = loss_root_dgrad};

d9d_status d9d_op_loss_root(d9d_tape *t, d9d_var *x, d9d_var **y)
{
    d9d_tensor view = d9d_tensor_ref(d9d_var_tensor(x));
    d9d_var *out;
    d9d_node *n;

    if (d9d_var_is_root(x) || !d9d_tape_should_record(t, &x, 1, NULL, 0)) {
        d9d_tensor_release(&view);
        *y = x;
        return D9D_OK;
    }
    D9D_TRY(d9d_tape_output_take(t, &view, &out));
    D9D_TRY(d9d_tape_check_root(t, "loss_root"));
    D9D_TRY(d9d_tape_record(t, &loss_root_node_ops, &x, 1, &out, 1, NULL, 0, 0, &n));
    d9d_node_make_root(n);
    *y = out;
    return D9D_OK;
}
