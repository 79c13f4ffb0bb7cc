/* op_grouped_linear.c - y = x W_e for the rows of each expert.  x [R, in], w [E, in, out].
 *
 *     dx = dy W_e^T        dW_e = x_e^T dy_e, zero for an expert without rows
 */
#include "op/op_adapter.h"

enum { SAVED_OFFSET, SAVED_X };

static d9d_status grouped_input(d9d_node *n)
{
    const d9d_tensor *w = &n->param[0]->data;
    const int64_t *d = w->shape.dim;
    const void *plus;
    d9d_status st = D9D_OK;
    d9d_tensor dx;

    D9D_TRY(d9d_node_sum(n, 0, &dx, &plus));
    if (plus != NULL && plus != d9d_tensor_data(&dx))
        st = D9DI_KERNEL(n->tape, cast, dx.dtype, d9d_tensor_data(&dx), dx.dtype, plus,
                         d9d_tensor_numel(&dx));
    if (st == D9D_OK)
        st = D9DI_KERNEL(n->tape, grouped_gemm_din, dx.dtype, d9d_tensor_data(&dx),
                         plus != NULL ? 1.0f : 0.0f, d9d_tensor_data(&n->dout[0]),
                         d9d_tensor_data(w), d9d_tensor_data(&n->saved[SAVED_OFFSET]),
                         dx.shape.dim[0], d[0], d[1], d[2]);
    return d9di_node_finish_sum(n, 0, &dx, st);
}

static d9d_status grouped_weight(d9d_node *n)
{
    const d9d_tensor *x = &n->saved[SAVED_X];
    d9d_param *w = n->param[0];
    const int64_t *d = w->data.shape.dim;

    return D9DI_KERNEL(n->tape, grouped_gemm_dw, x->dtype, w->grad.dtype, d9d_tensor_data(&w->grad),
                       d9d_param_grad_beta(w), d9d_tensor_data(x), d9d_tensor_data(&n->dout[0]),
                       d9d_tensor_data(&n->saved[SAVED_OFFSET]), x->shape.dim[0], d[0], d[1], d[2]);
}

static const d9d_node_ops grouped_ops = {
    .name = "grouped_linear", .input = grouped_input, .weight = grouped_weight};

static d9d_status check(const d9d_tensor *x, const d9d_param *w, const d9d_routing *r)
{
    const d9d_shape *s = &w->data.shape;

    D9D_TRY(d9di_op_check_real("grouped_linear", "x", x));
    D9D_TRY(d9di_op_check_param("grouped_linear", w, x->dtype));
    D9D_TRY(d9di_op_check_routing("grouped_linear", x, r, true));
    if (s->ndim != 3 || x->shape.dim[1] != s->dim[1])
        return d9di_op_misfit("grouped_linear", "x", &x->shape, d9di_param_name(w), s,
                              "x is [R, in], a weight [E, in, out]");
    if (!d9d_shape_equal(&r->offset.shape, &D9D_SHAPE(s->dim[0] + 1)))
        return d9di_op_misfit("grouped_linear", "the routing's offsets", &r->offset.shape,
                              d9di_param_name(w), s, "offsets are [E + 1], a weight [E, in, out]");
    return D9D_OK;
}

static d9d_status run(d9d_tape *t, d9d_var *x, d9d_param *w, const d9d_routing *r, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    const int64_t *d = w->data.shape.dim;
    d9d_var *out;
    d9d_node *n;

    D9D_TRY(check(tx, w, r));
    D9D_TRY(d9d_tape_output(t, tx->dtype, D9D_SHAPE(tx->shape.dim[0], d[2]), &out));
    D9D_TRY(D9DI_KERNEL(t, grouped_gemm, tx->dtype, d9d_tensor_data(d9d_var_tensor(out)),
                        d9d_tensor_data(tx), d9d_tensor_data(&w->data), d9d_tensor_data(&r->offset),
                        tx->shape.dim[0], d[0], d[1], d[2]));
    if (d9d_tape_wants(t, &x, 1, &w, 1)) {
        D9D_TRY(d9d_tape_record(t, &grouped_ops, &x, 1, &out, 1, &w, 1, 0, &n));
        (void)d9d_node_save(n, &r->offset, D9D_NEED_BOTH);
        (void)d9d_node_save(n, tx, D9D_NEED_WEIGHT);
    }
    *y = out;
    return D9D_OK;
}

d9d_status d9d_op_grouped_linear(d9d_tape *t, d9d_var *x, d9d_param *w, const d9d_routing *r,
                                 d9d_var **y)
{
    d9d_var *low;

    D9D_TRY(run(t, x, w, r, y));
    if (w->adapter == NULL)
        return D9D_OK;
    D9D_TRY(run(t, x, w->adapter->a, r, &low));
    D9D_TRY(d9di_op_scale(t, low, w->adapter->scale, &low));
    D9D_TRY(run(t, low, w->adapter->b, r, &low));
    return d9d_op_add(t, *y, low, y);
}
