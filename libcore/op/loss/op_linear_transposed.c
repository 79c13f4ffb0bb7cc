/* op_linear_transposed.c - y = x W of a constant x: sums of rows of a weight.  x [M, V], w [V, H],
 * y [M, H].
 *
 *     dW = x^T dy
 */
#include "op/op_common.h"

static d9d_status transposed_wgrad(d9d_node *n)
{
    const d9d_tensor *x = &n->saved[0], *dy = &n->dout[0];
    d9d_param *w = n->param[0];
    const d9d_gemm g = {.t = dy->dtype,
                        .ct = w->local.grad.dtype,
                        .trans_a = true,
                        .m = w->local.data.shape.dim[0],
                        .n = w->local.data.shape.dim[1],
                        .k = dy->shape.dim[0],
                        .beta = d9d_param_grad_beta(&w->local)};

    return D9DI_KERNEL(n->tape, gemm->dense, &g, d9d_tensor_data(x), d9d_tensor_data(dy),
                       d9d_tensor_data(&w->local.grad));
}

static const d9d_node_ops transposed_node_ops = {.name = "linear_transposed",
                                                 .wgrad = transposed_wgrad};

static d9d_status transposed_check(d9d_var *x, const d9d_param *w)
{
    const d9d_tensor *tx = x != NULL ? d9d_var_tensor(x) : NULL;
    const d9d_shape *s = &w->local.data.shape;

    D9D_TRY(
        d9di_op_check_param("linear_transposed", w, tx != NULL ? tx->dtype : w->local.data.dtype));
    if (tx != NULL && (tx->shape.ndim != 2 || s->ndim != 2 || tx->shape.dim[1] != s->dim[0]))
        return d9di_op_misfit("linear_transposed", "x", &tx->shape, d9di_op_param_name(w), s,
                              "x is [M, V], a weight [V, H]");
    if (x != NULL && d9d_var_needs_grad(x))
        return D9D_FAIL(D9D_EINVAL, "linear_transposed: x of %s has a gradient, and is a constant",
                        d9di_op_param_name(w));
    if (w->peft.adapter != NULL)
        return D9D_FAIL(D9D_ENOTSUP, "linear_transposed: %s has an adapter, which is not used",
                        d9di_op_param_name(w));
    return D9D_OK;
}

/* The rows that W is multiplied with: those of x, or one of ones. */
static d9d_status rows_make(d9d_tape *t, d9d_var *x, const d9d_param *w, d9d_tensor *out)
{
    const d9d_tensor *data = &w->local.data;

    if (x != NULL) {
        *out = d9d_tensor_ref(d9d_var_tensor(x));
        return D9D_OK;
    }
    D9D_TRY(
        d9d_tensor_alloc(d9d_tape_device(t), data->dtype, D9D_SHAPE(1, data->shape.dim[0]), out));
    return D9DI_KERNEL(t, elementwise->fill, data->dtype, d9d_tensor_data(out), data->shape.dim[0],
                       1.0f);
}

d9d_status d9d_op_linear_transposed(d9d_tape *t, d9d_var *x, d9d_param *w, d9d_var **y)
{
    const d9d_shape *s = &w->local.data.shape;
    d9d_tensor rows = {0};
    d9d_gemm g;
    d9d_var *out;
    d9d_node *n;
    d9d_status st;

    D9D_TRY(transposed_check(x, w));
    D9D_TRY_OR(st, rows_make(t, x, w, &rows), out);
    g = (d9d_gemm){
        .t = rows.dtype, .ct = rows.dtype, .m = rows.shape.dim[0], .n = s->dim[1], .k = s->dim[0]};
    D9D_TRY_OR(st, d9d_tape_output(t, rows.dtype, D9D_SHAPE(g.m, g.n), &out), out);
    D9D_TRY_OR(st,
               D9DI_KERNEL(t, gemm->dense, &g, d9d_tensor_data(&rows),
                           d9d_tensor_data(&w->local.data), d9d_tensor_data(d9d_var_tensor(out))),
               out);
    if (d9d_tape_should_record(t, NULL, 0, &w, 1)) {
        D9D_TRY_OR(st, d9d_tape_record(t, &transposed_node_ops, NULL, 0, &out, 1, &w, 1, 0, &n),
                   out);
        (void)d9d_node_save(n, &rows, D9D_NEED_WGRAD);
    }
    *y = out;
out:
    d9d_tensor_release(&rows);
    return st;
}
