/* op_skew.c - y = U - U', of the upper triangles of matrices U.  x [M, N (N - 1) / 2], y [M, N, N].
 *
 *     dx = the upper triangle of dy - dy'
 *
 * Row i of a triangle has the N - 1 - i elements right of the diagonal.
 */
#include "op/op_common.h"

#include "d9d/op/math.h"

typedef struct skew_attr {
    int64_t m, n;
} skew_attr;

/* Row i, in a triangle (x) and in a matrix (y). */
static d9d_copy_strided_dims row_dims(const skew_attr *a, d9d_dtype t, int64_t i)
{
    return (d9d_copy_strided_dims){.t = t,
                                   .m = a->m,
                                   .heads = 1,
                                   .n = a->n - 1 - i,
                                   .x_cols = a->n * (a->n - 1) / 2,
                                   .x_first = i * (2 * a->n - i - 1) / 2,
                                   .y_cols = a->n * a->n,
                                   .y_first = i * a->n + i + 1};
}

/* y = u - u' of each matrix. */
static d9d_status transpose_subtract(d9d_tape *t, const skew_attr *a, const d9d_tensor *u,
                                     const d9d_tensor *y)
{
    const int64_t n = a->n;
    const d9d_pointwise_dims d = {
        .f = D9D_POINTWISE_SUB,
        .of = D9D_POINTWISE_VALUE,
        .ndim = 4,
        .dim = {a->m, n, n, 1},
        .yt = u->dtype,
        .x = {{.t = u->dtype, .stride = {n * n, n, 1, 0}},
              {.t = u->dtype, .stride = {n * n, 1, n, 0}}},
    };
    const void *const in[D9D_POINTWISE_INPUTS] = {d9d_tensor_data(u), d9d_tensor_data(u)};

    return D9DI_KERNEL(t, math->pointwise, &d, d9d_tensor_data(y), in);
}

static d9d_status triangles_place(d9d_tape *t, const skew_attr *a, const d9d_tensor *x,
                                  const d9d_tensor *u)
{
    D9D_TRY(
        D9DI_KERNEL(t, elementwise->fill, u->dtype, d9d_tensor_data(u), d9d_tensor_numel(u), 0));
    for (int64_t i = 0; i + 1 < a->n; i++) {
        const d9d_copy_strided_dims row = row_dims(a, x->dtype, i);

        D9D_TRY(D9DI_KERNEL(t, elementwise->copy_strided, &row, d9d_tensor_data(u),
                            d9d_tensor_data(x)));
    }
    return D9D_OK;
}

static d9d_status triangles_take(d9d_tape *t, const skew_attr *a, const d9d_tensor *u,
                                 const d9d_tensor *x)
{
    for (int64_t i = 0; i + 1 < a->n; i++) {
        const d9d_copy_strided_dims row = row_dims(a, x->dtype, i);

        D9D_TRY(D9DI_KERNEL(t, elementwise->copy_strided_bwd, &row, d9d_tensor_data(x),
                            d9d_tensor_data(u)));
    }
    return D9D_OK;
}

static d9d_status skew_dgrad(d9d_node *n)
{
    const d9d_tensor *dy = &n->dout[0];
    d9d_tensor dx, u;
    d9d_status st;

    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(n->tape), dy->dtype, dy->shape, &u));
    D9D_TRY_OR(st, d9di_op_grad_alloc(n, 0, &dx), out);
    st = transpose_subtract(n->tape, n->attr, dy, &u);
    if (st == D9D_OK)
        st = triangles_take(n->tape, n->attr, &u, &dx);
    st = d9di_op_grad_finish(n, 0, &dx, st);
out:
    d9d_tensor_release(&u);
    return st;
}

static const d9d_node_ops skew_node_ops = {.name = "skew", .dgrad = skew_dgrad};

d9d_status d9d_op_skew(d9d_tape *t, d9d_var *x, int64_t n, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    d9d_shape shape = tx->shape;
    skew_attr attr = {.n = n};
    d9d_tensor u;
    d9d_var *out;
    d9d_node *node;
    d9d_status st;

    D9D_TRY(d9di_op_check_real("skew", "x", tx));
    if (shape.ndim == 0 || shape.ndim == D9D_MAX_DIMS || n < 1 ||
        d9di_op_last_dim(&shape) != n * (n - 1) / 2)
        return d9di_op_misfit("skew", "x", &shape, "a matrix", &D9D_SHAPE(n, n),
                              "x is [..., N (N - 1) / 2], the triangle of [N, N]");
    attr.m = d9di_op_rows(&shape);
    shape.dim[shape.ndim - 1] = n;
    shape.dim[shape.ndim++] = n;
    D9D_TRY(d9d_tape_output(t, tx->dtype, shape, &out));
    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), tx->dtype, shape, &u));
    st = triangles_place(t, &attr, tx, &u);
    if (st == D9D_OK)
        st = transpose_subtract(t, &attr, &u, d9d_var_tensor(out));
    d9d_tensor_release(&u);
    D9D_TRY(st);
    if (d9d_tape_should_record(t, &x, 1, NULL, 0)) {
        D9D_TRY(d9d_tape_record(t, &skew_node_ops, &x, 1, &out, 1, NULL, 0, sizeof(attr), &node));
        *(skew_attr *)node->attr = attr;
    }
    *y = out;
    return D9D_OK;
}
