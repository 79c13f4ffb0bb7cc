/* op_concat.c - concatenation along the last dimension.  y [R, M], input i is columns of
 * x_i [R, N_i], or of [R / A, N_i], broadcast to A heads.
 *
 *     dx_i = those columns of dy, summed over the heads of a broadcast; 0 elsewhere
 */
#include "op/op_common.h"

typedef struct concat_attr {
    d9d_copy_strided_dims input[D9D_NODE_MAX];
} concat_attr;

static d9d_status concat_dgrad(d9d_node *n)
{
    const concat_attr *a = n->attr;

    for (int i = 0; i < n->n_in; i++) {
        const d9d_copy_strided_dims *p = &a->input[i];
        d9d_tensor dx;
        d9d_status st = D9D_OK;

        if (!d9d_node_input_needs_grad(n, i))
            continue;
        D9D_TRY(d9di_op_grad_alloc(n, i, &dx));
        if (p->n < p->x_cols)
            st = D9DI_KERNEL(n->tape, elementwise->fill, p->t, d9d_tensor_data(&dx),
                             d9d_tensor_numel(&dx), 0);
        if (st == D9D_OK)
            st = D9DI_KERNEL(n->tape, elementwise->copy_strided_bwd, p, d9d_tensor_data(&dx),
                             d9d_tensor_data(&n->dout[0]));
        D9D_TRY(d9di_op_grad_finish(n, i, &dx, st));
    }
    return D9D_OK;
}

static const d9d_node_ops concat_node_ops = {.name = "concat", .dgrad = concat_dgrad};

/* Source and destination columns of an input. */
static d9d_status input_dims(const d9d_op_concat_input *p, const d9d_shape *y, int64_t to,
                             d9d_dtype t, d9d_copy_strided_dims *out)
{
    const d9d_tensor *x = d9d_var_tensor(p->x);
    const int64_t width = d9di_op_last_dim(&x->shape), m = d9di_op_rows(&x->shape),
                  rows = d9di_op_rows(y);
    const int64_t heads = m == rows || y->ndim < 2 ? 1 : y->dim[y->ndim - 2];

    D9D_TRY(d9di_op_check("concat", "x", x, t));
    if (m * heads != rows || p->first < 0 || p->n < 0 || p->first + p->n > width ||
        to + p->n > d9di_op_last_dim(y))
        return d9di_op_misfit(
            "concat", "x", &x->shape, "y", y,
            "inputs are columns of x, and together have at most the columns of y");
    *out = (d9d_copy_strided_dims){t, m, heads, p->n, width, p->first, d9di_op_last_dim(y), to};
    return D9D_OK;
}

static d9d_status concat_check(const d9d_op_concat_input *inputs, size_t n, const d9d_shape *y,
                               concat_attr *a)
{
    int64_t to = 0;

    if (n == 0 || n > D9D_NODE_MAX || y->ndim == 0)
        return D9D_FAIL(D9D_EINVAL, "concat: %zu inputs, from 1 to %d are supported", n,
                        D9D_NODE_MAX);
    for (size_t i = 0; i < n; i++) {
        const d9d_shape *x = &d9d_var_tensor(inputs[i].x)->shape;

        if (x->ndim == 0)
            return d9di_op_misfit("concat", "x", x, "y", y, "x is [..., N]");
        D9D_TRY(input_dims(&inputs[i], y, to, d9d_var_tensor(inputs[0].x)->dtype, &a->input[i]));
        to += inputs[i].n;
    }
    return d9di_op_check_real("concat", "x", d9d_var_tensor(inputs[0].x));
}

d9d_status d9d_op_concat(d9d_tape *t, const d9d_op_concat_input *inputs, size_t n, d9d_shape shape,
                         d9d_var **y)
{
    d9d_var *in[D9D_NODE_MAX], *out;
    concat_attr a = {0};
    int64_t width = 0;
    const d9d_tensor *to;
    d9d_node *node;

    D9D_TRY(concat_check(inputs, n, &shape, &a));
    D9D_TRY(d9d_tape_output(t, a.input[0].t, shape, &out));
    to = d9d_var_tensor(out);
    for (size_t i = 0; i < n; i++)
        width += inputs[i].n;
    if (width < d9di_op_last_dim(&shape))
        D9D_TRY(D9DI_KERNEL(t, elementwise->fill, to->dtype, d9d_tensor_data(to),
                            d9d_tensor_numel(to), 0));
    for (size_t i = 0; i < n; i++) {
        in[i] = inputs[i].x;
        D9D_TRY(D9DI_KERNEL(t, elementwise->copy_strided, &a.input[i], d9d_tensor_data(to),
                            d9d_tensor_data(d9d_var_tensor(in[i]))));
    }
    *y = out;
    if (!d9d_tape_should_record(t, in, n, NULL, 0))
        return D9D_OK;
    D9D_TRY(d9d_tape_record(t, &concat_node_ops, in, n, &out, 1, NULL, 0, sizeof(a), &node));
    *(concat_attr *)node->attr = a;
    return D9D_OK;
}
