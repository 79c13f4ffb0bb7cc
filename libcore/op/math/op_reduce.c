/* op_reduce.c - sum, mean, maximum and logsumexp along one dimension, all of them, or over segments
 * of rows.  x [M, R, N] to y [M, 1, N]; with offsets x [R, N] to y [M, N].
 *
 *     sum: dx = dy        mean: dx = dy / rows        maximum: dx = dy [x = y] / ties
 *     logsumexp: dx = dy exp(x - y)
 */
#include "op/op_common.h"

#include "d9d/op/math.h"

enum { X, Y, OFFSET, SAVED }; /* saved; x and y only where the gradient reads them */

typedef struct reduce_attr {
    d9d_reduce_axis_dims dims;
} reduce_attr;

static bool reads_x(d9d_reduce_kind kind)
{
    return kind == D9D_REDUCE_MAX || kind == D9D_REDUCE_LOGSUMEXP;
}

static d9d_status reduce_dgrad(d9d_node *n)
{
    d9d_reduce_axis_dims d = ((const reduce_attr *)n->attr)->dims;
    const bool reads = reads_x(d.kind);
    d9d_tensor dx;

    if (n->n_saved > OFFSET)
        d.offset = d9d_tensor_data(&n->saved[OFFSET]);
    D9D_TRY(d9di_op_grad_alloc(n, 0, &dx));
    return d9di_op_grad_finish(n, 0, &dx,
                               D9DI_KERNEL(n->tape, math->reduce_axis_bwd, &d, d9d_tensor_data(&dx),
                                           d9d_tensor_data(&n->dout[0]),
                                           reads ? d9d_tensor_data(&n->saved[X]) : NULL,
                                           reads ? d9d_tensor_data(&n->saved[Y]) : NULL));
}

static const d9d_node_ops reduce_node_ops = {.name = "reduce", .dgrad = reduce_dgrad};

/* offset NULL: along an axis. */
static d9d_status reduce_run(d9d_tape *t, const d9d_reduce_axis_dims *d, d9d_var *x,
                             const d9d_tensor *offset, d9d_shape shape, d9d_var **y)
{
    static const d9d_tensor none;
    const d9d_tensor *tx = d9d_var_tensor(x);
    const bool reads = reads_x(d->kind);
    d9d_var *out;
    d9d_node *n;

    D9D_TRY(d9d_tape_output(t, D9D_F32, shape, &out));
    D9D_TRY(D9DI_KERNEL(t, math->reduce_axis, d, d9d_tensor_data(d9d_var_tensor(out)),
                        d9d_tensor_data(tx)));
    *y = out;
    if (!d9d_tape_should_record(t, &x, 1, NULL, 0))
        return D9D_OK;
    D9D_TRY(d9d_tape_record(t, &reduce_node_ops, &x, 1, &out, 1, NULL, 0, sizeof(reduce_attr), &n));
    ((reduce_attr *)n->attr)->dims = *d;
    (void)d9d_node_save(n, reads ? tx : &none, D9D_NEED_DGRAD);
    (void)d9d_node_save(n, reads ? d9d_var_tensor(out) : &none, D9D_NEED_DGRAD);
    if (offset != NULL)
        (void)d9d_node_save(n, offset, D9D_NEED_DGRAD);
    return D9D_OK;
}

static const char *op_name(d9d_reduce_kind kind)
{
    static const char *const names[D9D_N_REDUCE_KINDS] = {"sum", "mean", "max", "logsumexp"};

    return names[kind];
}

/* x as [M, R, N] around dimension `dim`, and the shape of y. */
static d9d_status axis_of(const char *op, const d9d_tensor *x, int dim, d9d_reduce_axis_dims *d,
                          d9d_shape *y)
{
    const int ndim = x->shape.ndim, axis = dim < 0 ? dim + ndim : dim;

    *y = x->shape;
    if (dim == D9D_DIM_ALL) {
        d->r = d9d_tensor_numel(x);
        for (int i = 0; i < ndim; i++)
            y->dim[i] = 1;
        return D9D_OK;
    }
    if (axis < 0 || axis >= ndim)
        return D9D_FAIL(D9D_EINVAL, "%s: dimension %d of %d", op, dim, ndim);
    for (int i = 0; i < axis; i++)
        d->m *= x->shape.dim[i];
    for (int i = axis + 1; i < ndim; i++)
        d->n *= x->shape.dim[i];
    d->r = x->shape.dim[axis];
    y->dim[axis] = 1;
    return D9D_OK;
}

d9d_status d9d_op_reduce(d9d_tape *t, d9d_reduce_kind kind, d9d_var *x, int dim, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    d9d_reduce_axis_dims d = {.kind = kind, .t = tx->dtype, .m = 1, .n = 1};
    d9d_shape shape;

    D9D_TRY(d9di_op_check_real(op_name(kind), "x", tx));
    D9D_TRY(axis_of(op_name(kind), tx, dim, &d, &shape));
    return reduce_run(t, &d, x, NULL, shape, y);
}

d9d_status d9d_op_segment_reduce(d9d_tape *t, d9d_reduce_kind kind, d9d_var *x,
                                 const d9d_tensor *offset, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    d9d_reduce_axis_dims d = {.kind = kind, .t = tx->dtype, .offset = d9d_tensor_data(offset)};
    d9d_shape shape = tx->shape;

    D9D_TRY(d9di_op_check_real(op_name(kind), "x", tx));
    D9D_TRY(d9di_op_check(op_name(kind), "offset", offset, D9D_I32));
    if (shape.ndim < 1 || offset->shape.ndim != 1 || offset->shape.dim[0] < 1)
        return d9di_op_misfit(op_name(kind), "offset", &offset->shape, "x", &shape,
                              "x is [T, ...], offsets of N segments are [N + 1]");
    d.m = shape.dim[0] = offset->shape.dim[0] - 1;
    d.r = tx->shape.dim[0];
    d.n = 1;
    for (int i = 1; i < shape.ndim; i++)
        d.n *= shape.dim[i];
    return reduce_run(t, &d, x, offset, shape, y);
}

d9d_status d9d_op_softmax(d9d_tape *t, d9d_var *x, d9d_var **y)
{
    d9d_var *lse;

    D9D_TRY(d9d_op_logsumexp(t, x, -1, &lse));
    return d9d_op_exp_sub(t, x, lse, y);
}

d9d_status d9d_op_log_softmax(d9d_tape *t, d9d_var *x, d9d_var **y)
{
    d9d_var *lse;

    D9D_TRY(d9d_op_logsumexp(t, x, -1, &lse));
    return d9d_op_sub(t, x, lse, y);
}
