/* op_permute.c - tokens to rows by expert.  x [T, H], y [T * k, H].
 *
 * y[r] = x[source[r] / k]; the gradient of a token is the sum of those of its k rows.
 */
#include "op/op_common.h"

static d9d_status permute_input(d9d_node *n)
{
    const d9d_tensor *row = &n->saved[0];
    d9d_tensor dx;

    D9D_TRY(d9di_node_grad(n, 0, &dx));
    return d9di_node_finish(n, 0, &dx,
                            D9DI_KERNEL(n->tape, permute_din, dx.dtype, d9d_tensor_data(&dx),
                                        d9d_tensor_data(&n->dout[0]), d9d_tensor_data(row),
                                        row->shape.dim[0], row->shape.dim[1], dx.shape.dim[1]));
}

static const d9d_node_ops permute_ops = {.name = "permute", .input = permute_input};

d9d_status d9d_op_permute(d9d_tape *t, d9d_var *x, const d9d_routing *r, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    const d9d_shape *s = &tx->shape, *e = &r->expert.shape;
    d9d_var *out;
    d9d_node *n;

    D9D_TRY(d9di_op_check_real("permute", "x", tx));
    D9D_TRY(d9di_op_check_routing("permute", tx, r, false));
    D9D_TRY(d9d_tape_output(t, tx->dtype, D9D_SHAPE(e->dim[0] * e->dim[1], s->dim[1]), &out));
    D9D_TRY(D9DI_KERNEL(t, permute, tx->dtype, d9d_tensor_data(d9d_var_tensor(out)),
                        d9d_tensor_data(tx), d9d_tensor_data(&r->source), e->dim[0], e->dim[1],
                        s->dim[1]));
    if (d9d_tape_wants(t, &x, 1, NULL, 0)) {
        D9D_TRY(d9d_tape_record(t, &permute_ops, &x, 1, &out, 1, NULL, 0, 0, &n));
        (void)d9d_node_save(n, &r->row, D9D_NEED_INPUT);
    }
    *y = out;
    return D9D_OK;
}
