/* op_position_scale.c - the attention temperature of a position.  x [B, S, heads, D], positions
 * [B, S].
 *
 *     y = x (1 + beta log(1 + floor(position / period)))        dx = dy times the same
 */
#include "op/op_common.h"

typedef struct scale_attr {
    float beta;
    int64_t period;
} scale_attr;

static d9d_status rows_scale(d9d_tape *t, const d9d_tensor *y, const d9d_tensor *x,
                             const d9d_tensor *positions, const scale_attr *a)
{
    return D9DI_KERNEL(t, norm->position_scale, x->dtype, d9d_tensor_data(y), d9d_tensor_data(x),
                       d9d_tensor_data(positions), d9d_tensor_numel(positions),
                       x->shape.dim[2] * x->shape.dim[3], a->beta, a->period);
}

static d9d_status position_scale_dgrad(d9d_node *n)
{
    d9d_tensor dx;

    D9D_TRY(d9di_op_grad_alloc(n, 0, &dx));
    return d9di_op_grad_finish(n, 0, &dx,
                               rows_scale(n->tape, &dx, &n->dout[0], &n->saved[0], n->attr));
}

static const d9d_node_ops position_scale_node_ops = {.name = "position_scale",
                                                     .dgrad = position_scale_dgrad};

static d9d_status position_scale_check(const d9d_tensor *x, const d9d_tensor *positions,
                                       int64_t period)
{
    const d9d_shape *s = &x->shape;

    D9D_TRY(d9di_op_check_real("position_scale", "x", x));
    D9D_TRY(d9di_op_check("position_scale", "positions", positions, D9D_I32));
    if (s->ndim != 4 || !d9d_shape_equal(&positions->shape, &D9D_SHAPE(s->dim[0], s->dim[1])))
        return d9di_op_misfit("position_scale", "positions", &positions->shape, "x", s,
                              "x is [B, S, heads, D], positions are [B, S]");
    return period > 0 ? D9D_OK
                      : D9D_FAIL(D9D_EINVAL, "position_scale: a period of %lld positions",
                                 (long long)period);
}

d9d_status d9d_op_position_scale(d9d_tape *t, d9d_var *x, const d9d_tensor *positions, float beta,
                                 int64_t period, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    const scale_attr attr = {beta, period};
    d9d_var *out;
    d9d_node *n;

    D9D_TRY(position_scale_check(tx, positions, period));
    D9D_TRY(d9d_tape_output(t, tx->dtype, tx->shape, &out));
    D9D_TRY(rows_scale(t, d9d_var_tensor(out), tx, positions, &attr));
    if (d9d_tape_should_record(t, &x, 1, NULL, 0)) {
        D9D_TRY(d9d_tape_record(t, &position_scale_node_ops, &x, 1, &out, 1, NULL, 0, sizeof(attr),
                                &n));
        *(scale_attr *)n->attr = attr;
        (void)d9d_node_save(n, positions, D9D_NEED_DGRAD);
    }
    *y = out;
    return D9D_OK;
}
