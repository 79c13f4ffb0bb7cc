/* op_linear.c - y = x W^T.  x [M, in], w [out, in]; M is every leading dimension.
 *
 *     dx = dy W        dW = dy^T x
 */
#include "op/op_common.h"

static d9d_status linear_input(d9d_node *n)
{
    const d9d_tensor *w = &n->param[0]->data, *dy = &n->dout[0];
    const d9d_gemm g = {
        .t = dy->dtype,
        .ct = dy->dtype,
        .m = d9di_rows(&dy->shape),
        .n = w->shape.dim[1],
        .k = w->shape.dim[0],
    };
    d9d_tensor dx;

    D9D_TRY(d9di_node_grad(n, 0, &dx));
    return d9di_node_finish(n, 0, &dx,
                            D9DI_KERNEL(n->tape, gemm, &g, d9d_tensor_data(dy), d9d_tensor_data(w),
                                        d9d_tensor_data(&dx)));
}

static d9d_status linear_weight(d9d_node *n)
{
    const d9d_tensor *x = &n->saved[0], *dy = &n->dout[0];
    d9d_param *w = n->param[0];
    const d9d_gemm g = {
        .t = dy->dtype,
        .ct = w->grad.dtype,
        .trans_a = true,
        .m = w->data.shape.dim[0],
        .n = w->data.shape.dim[1],
        .k = d9di_rows(&dy->shape),
        .beta = d9d_param_grad_beta(w),
    };

    return D9DI_KERNEL(n->tape, gemm, &g, d9d_tensor_data(dy), d9d_tensor_data(x),
                       d9d_tensor_data(&w->grad));
}

static const d9d_node_ops linear_ops = {
    .name = "linear", .input = linear_input, .weight = linear_weight};

static d9d_status check(const d9d_tensor *x, const d9d_param *w)
{
    const d9d_shape *s = &w->data.shape;

    D9D_TRY(d9di_op_check_real("linear", "x", x));
    D9D_TRY(d9di_op_check_param("linear", w, x->dtype));
    if (x->shape.ndim < 1 || s->ndim != 2 || d9di_last(&x->shape) != s->dim[1])
        return d9di_op_misfit("linear", "x", &x->shape, d9di_param_name(w), s,
                              "x is [..., in], a weight [out, in]");
    return D9D_OK;
}

d9d_status d9d_op_linear(d9d_tape *t, d9d_var *x, d9d_param *w, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    d9d_shape shape = tx->shape;
    d9d_gemm g = {.t = tx->dtype, .ct = tx->dtype, .trans_b = true};
    d9d_var *out;
    d9d_node *n;

    D9D_TRY(check(tx, w));
    g.m = d9di_rows(&shape);
    g.n = w->data.shape.dim[0];
    g.k = w->data.shape.dim[1];
    shape.dim[shape.ndim - 1] = g.n;
    D9D_TRY(d9d_tape_output(t, tx->dtype, shape, &out));
    D9D_TRY(D9DI_KERNEL(t, gemm, &g, d9d_tensor_data(tx), d9d_tensor_data(&w->data),
                        d9d_tensor_data(d9d_var_tensor(out))));
    if (d9d_tape_wants(t, &x, 1, &w, 1)) {
        D9D_TRY(d9d_tape_record(t, &linear_ops, &x, 1, &out, 1, &w, 1, 0, &n));
        (void)d9d_node_save(n, tx, D9D_NEED_WEIGHT);
    }
    *y = out;
    return D9D_OK;
}
