/* op_scale.c - y = factor x, for small arrays.  See op/op_adapter.h. */
#include "op/op_adapter.h"

/* In place on a copy: accumulate() gives beta y + x of one array. */
static d9d_status scale(d9d_tape *t, const d9d_tensor *y, const d9d_tensor *x, float factor)
{
    const int64_t n = d9d_tensor_numel(x);

    D9D_TRY(D9DI_KERNEL(t, cast, y->dtype, d9d_tensor_data(y), x->dtype, d9d_tensor_data(x), n));
    return D9DI_KERNEL(t, accumulate, y->dtype, d9d_tensor_data(y), factor - 1.0f, y->dtype,
                       d9d_tensor_data(y), n);
}

static d9d_status scale_input(d9d_node *n)
{
    const d9d_tensor *dy = &n->dout[0];
    d9d_tensor dx;

    D9D_TRY(d9d_node_alloc(n, dy->dtype, dy->shape, &dx));
    return d9di_node_finish(n, 0, &dx, scale(n->tape, &dx, dy, *(const float *)n->attr));
}

static const d9d_node_ops scale_ops = {.name = "scale", .input = scale_input};

d9d_status d9di_op_scale(d9d_tape *t, d9d_var *x, float factor, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    d9d_var *out;
    d9d_node *n;

    *y = x;
    if (factor == 1.0f)
        return D9D_OK;
    D9D_TRY(d9d_tape_output(t, tx->dtype, tx->shape, &out));
    D9D_TRY(scale(t, d9d_var_tensor(out), tx, factor));
    if (d9d_tape_wants(t, &x, 1, NULL, 0)) {
        D9D_TRY(d9d_tape_record(t, &scale_ops, &x, 1, &out, 1, NULL, 0, sizeof(float), &n));
        *(float *)n->attr = factor;
    }
    *y = out;
    return D9D_OK;
}
