/* op_pointwise.c - y = f(a, b, c), element by element, with broadcasting.
 *
 *     dx_i = sum over the dimensions that x_i is repeated along of dy df/dx_i
 */
#include "op/op_common.h"

#include "d9d/op/math.h"

typedef struct pointwise_attr {
    d9d_pointwise f;
    float k[2];
    int saved[D9D_POINTWISE_GRAD]; /* index in n->saved of an input; -1: not saved */
} pointwise_attr;

/* --- shapes ---------------------------------------------------------------------------------- */

static d9d_status check_input(const char *op, const d9d_tensor *x, const char *name)
{
    if (x->storage != NULL && x->dtype == D9D_I32)
        return D9D_OK;
    return d9di_op_check_real(op, name, x);
}

/* Dimension d of a shape that is aligned at the last of ndim dimensions. */
static int64_t aligned_dim(const d9d_shape *s, int ndim, int d)
{
    const int at = d - (ndim - s->ndim);

    return at < 0 ? 1 : s->dim[at];
}

/* *y becomes the shape that it and x broadcast to; false if they do not. */
static bool shape_broadcast(d9d_shape *y, const d9d_shape *x)
{
    d9d_shape out = {.ndim = y->ndim > x->ndim ? y->ndim : x->ndim};

    for (int d = 0; d < out.ndim; d++) {
        const int64_t a = aligned_dim(y, out.ndim, d), b = aligned_dim(x, out.ndim, d);

        if (a != b && a != 1 && b != 1)
            return false;
        out.dim[d] = a == 1 ? b : a;
    }
    *y = out;
    return true;
}

static d9d_status shapes_check(const char *op, d9d_var *const *in, int n_in, d9d_shape *y)
{
    static const char *const names[D9D_POINTWISE_GRAD] = {"a", "b", "c"};

    *y = d9d_var_tensor(in[0])->shape;
    for (int i = 0; i < n_in && i < D9D_POINTWISE_GRAD; i++) {
        const d9d_tensor *x = d9d_var_tensor(in[i]);

        D9D_TRY(check_input(op, x, names[i]));
        if (!shape_broadcast(y, &x->shape))
            return d9di_op_misfit(op, names[i], &x->shape, names[0], &d9d_var_tensor(in[0])->shape,
                                  "dimensions, aligned at the last, must be equal or 1");
    }
    return D9D_OK;
}

static d9d_dtype result_dtype(d9d_var *const *in, int n_in)
{
    for (int i = 0; i < n_in; i++)
        if (d9d_var_tensor(in[i])->dtype != D9D_BF16)
            return D9D_F32;
    return D9D_BF16;
}

/* Appends a dimension, merged with the one before if all strides allow it. */
static void dims_append(d9d_pointwise_dims *d, int64_t size, const int64_t *stride)
{
    const int last = d->ndim - 1;
    bool merge = last >= 0;

    for (int i = 0; i < D9D_POINTWISE_INPUTS && merge; i++)
        merge = d->x[i].stride[last] == stride[i] * size;
    if (merge)
        d->dim[last] *= size;
    else
        d->dim[d->ndim++] = size;
    for (int i = 0; i < D9D_POINTWISE_INPUTS; i++)
        d->x[i].stride[d->ndim - 1] = stride[i];
}

/* Strides of inputs of the shapes x, NULL for one that is not read, in an array of shape y. */
static void dims_set(d9d_pointwise_dims *d, const d9d_shape *y, const d9d_shape *const *x)
{
    int64_t stride[D9D_MAX_DIMS][D9D_POINTWISE_INPUTS] = {{0}};

    for (int i = 0; i < D9D_POINTWISE_INPUTS; i++) {
        int64_t step = 1;

        for (int k = y->ndim - 1; x[i] != NULL && k >= 0; k--) {
            const int64_t size = aligned_dim(x[i], y->ndim, k);

            stride[k][i] = size == 1 ? 0 : step;
            step *= size;
        }
    }
    for (int k = 0; k < y->ndim; k++)
        if (y->dim[k] != 1)
            dims_append(d, y->dim[k], stride[k]);
    if (d->ndim == 0)
        dims_append(d, 1, (const int64_t[D9D_POINTWISE_INPUTS]){0});
}

/* --- gradients ------------------------------------------------------------------------------- */

static const d9d_tensor *saved_input(const d9d_node *n, int i)
{
    const int at = i < n->n_in ? ((const pointwise_attr *)n->attr)->saved[i] : -1;

    return at < 0 ? NULL : &n->saved[at];
}

/* g = dy df/dx_i, of dy's shape. */
static d9d_status grad_run(d9d_node *n, int i, const d9d_tensor *g)
{
    const pointwise_attr *a = n->attr;
    const d9d_tensor *dy = &n->dout[0];
    d9d_pointwise_dims d = {.f = a->f, .of = i, .k = {a->k[0], a->k[1]}, .yt = g->dtype};
    const d9d_shape *shape[D9D_POINTWISE_INPUTS] = {NULL};
    const void *x[D9D_POINTWISE_INPUTS] = {NULL};

    for (int j = 0; j < D9D_POINTWISE_INPUTS; j++) {
        const d9d_tensor *in = j == D9D_POINTWISE_GRAD ? dy : saved_input(n, j);

        if (in == NULL || (j < D9D_POINTWISE_GRAD && !(d9d_pointwise_reads(a->f, i) >> j & 1)))
            continue;
        d.x[j].t = in->dtype;
        shape[j] = &in->shape;
        x[j] = d9d_tensor_data(in);
    }
    dims_set(&d, &dy->shape, shape);
    return D9DI_KERNEL(n->tape, math->pointwise, &d, d9d_tensor_data(g), x);
}

/* Replaces g, of the shape y, by its sum over dimension k, which becomes 1. */
static d9d_status sum_dim(d9d_node *n, d9d_tensor *g, int k)
{
    d9d_reduce_axis_dims d = {.kind = D9D_REDUCE_SUM, .t = g->dtype, .m = 1, .n = 1};
    d9d_shape shape = g->shape;
    d9d_tensor sum;
    d9d_status st;

    for (int i = 0; i < k; i++)
        d.m *= shape.dim[i];
    for (int i = k + 1; i < shape.ndim; i++)
        d.n *= shape.dim[i];
    d.r = shape.dim[k];
    shape.dim[k] = 1;
    D9D_TRY(d9d_node_alloc(n, D9D_F32, shape, &sum));
    st = D9DI_KERNEL(n->tape, math->reduce_axis, &d, d9d_tensor_data(&sum), d9d_tensor_data(g));
    d9d_tensor_release(g);
    *g = sum;
    return st;
}

/* Merges the neighbours of a shape that are both repeated or both not. */
static d9d_shape merge_repeated(const d9d_shape *y, const d9d_shape *x, bool *repeated)
{
    d9d_shape out = {0};

    for (int k = 0; k < y->ndim; k++) {
        const bool is = aligned_dim(x, y->ndim, k) != y->dim[k];

        if (y->dim[k] == 1)
            continue;
        if (out.ndim > 0 && repeated[out.ndim - 1] == is) {
            out.dim[out.ndim - 1] *= y->dim[k];
        } else {
            out.dim[out.ndim] = y->dim[k];
            repeated[out.ndim++] = is;
        }
    }
    return out;
}

/* dx = the sum of g, of shape y in float32, over the dimensions that x is repeated along. */
static d9d_status sum_repeated(d9d_node *n, d9d_tensor *g, const d9d_tensor *dx)
{
    bool repeated[D9D_MAX_DIMS] = {false};
    d9d_tensor merged = d9d_tensor_reshape(g, merge_repeated(&g->shape, &dx->shape, repeated));

    d9d_tensor_release(g);
    *g = merged;
    for (int k = 0; k < g->shape.ndim; k++)
        if (repeated[k])
            D9D_TRY(sum_dim(n, g, k));
    return D9DI_KERNEL(n->tape, elementwise->cast, dx->dtype, d9d_tensor_data(dx), g->dtype,
                       d9d_tensor_data(g), d9d_tensor_numel(dx));
}

static d9d_status input_dgrad(d9d_node *n, int i)
{
    const d9d_tensor *x = d9di_op_input(n, i), *dy = &n->dout[0];
    d9d_tensor dx = {0}, g = {0};
    d9d_status st;

    D9D_TRY(d9di_op_grad_alloc(n, i, &dx));
    if (d9d_shape_numel(&x->shape) == d9d_tensor_numel(dy))
        return d9di_op_grad_finish(n, i, &dx, grad_run(n, i, &dx));
    D9D_TRY_OR(st, d9d_node_alloc(n, D9D_F32, dy->shape, &g), out);
    D9D_TRY_OR(st, grad_run(n, i, &g), out);
    st = sum_repeated(n, &g, &dx);
out:
    d9d_tensor_release(&g);
    return d9di_op_grad_finish(n, i, &dx, st);
}

static bool has_grad(d9d_pointwise f, int i)
{
    return d9d_pointwise_reads(f, i) != D9D_POINTWISE_NO_GRAD;
}

static d9d_status pointwise_dgrad(d9d_node *n)
{
    for (int i = 0; i < n->n_in; i++)
        if (has_grad(((const pointwise_attr *)n->attr)->f, i) && d9d_node_input_needs_grad(n, i))
            D9D_TRY(input_dgrad(n, i));
    return D9D_OK;
}

static const d9d_node_ops pointwise_node_ops = {.name = "pointwise", .dgrad = pointwise_dgrad};

/* --- forward --------------------------------------------------------------------------------- */

static d9d_status pointwise_record(d9d_tape *t, d9d_pointwise f, d9d_var *const *in, float k0,
                                   float k1, d9d_var *y)
{
    const int n_in = d9d_pointwise_inputs(f);
    d9d_var *with_grad[D9D_POINTWISE_GRAD];
    size_t n_grad = 0;
    pointwise_attr *a;
    d9d_node *n;
    int reads = 0;

    for (int i = 0; i < n_in; i++)
        if (has_grad(f, i))
            with_grad[n_grad++] = in[i];
    if (!d9d_tape_should_record(t, with_grad, n_grad, NULL, 0))
        return D9D_OK;
    D9D_TRY(
        d9d_tape_record(t, &pointwise_node_ops, in, (size_t)n_in, &y, 1, NULL, 0, sizeof(*a), &n));
    a = n->attr;
    *a = (pointwise_attr){f, {k0, k1}, {-1, -1, -1}};
    for (int i = 0; i < n_in; i++)
        if (has_grad(f, i) && d9d_node_input_needs_grad(n, i))
            reads |= d9d_pointwise_reads(f, i);
    for (int i = 0; i < n_in; i++)
        if (reads >> i & 1)
            a->saved[i] = d9d_node_save(n, d9d_var_tensor(in[i]), D9D_NEED_DGRAD);
    return D9D_OK;
}

static d9d_status pointwise_run(d9d_tape *t, d9d_pointwise f, d9d_var *const *in, float k0,
                                float k1, const d9d_shape *shape, d9d_dtype dtype, d9d_var **y)
{
    d9d_pointwise_dims d = {.f = f, .of = D9D_POINTWISE_VALUE, .k = {k0, k1}, .yt = dtype};
    const d9d_shape *from[D9D_POINTWISE_INPUTS] = {NULL};
    const void *x[D9D_POINTWISE_INPUTS] = {NULL};
    d9d_var *out;

    for (int i = 0; i < d9d_pointwise_inputs(f); i++) {
        const d9d_tensor *tx = d9d_var_tensor(in[i]);

        d.x[i].t = tx->dtype;
        from[i] = &tx->shape;
        x[i] = d9d_tensor_data(tx);
    }
    dims_set(&d, shape, from);
    D9D_TRY(d9d_tape_output(t, dtype, *shape, &out));
    D9D_TRY(D9DI_KERNEL(t, math->pointwise, &d, d9d_tensor_data(d9d_var_tensor(out)), x));
    D9D_TRY(pointwise_record(t, f, in, k0, k1, out));
    *y = out;
    return D9D_OK;
}

d9d_status d9d_op_pointwise(d9d_tape *t, d9d_pointwise f, d9d_var *const *in, float k0, float k1,
                            d9d_var **y)
{
    const int n_in = d9d_pointwise_inputs(f);
    d9d_shape shape;

    D9D_TRY(shapes_check(d9d_pointwise_name(f), in, n_in, &shape));
    return pointwise_run(t, f, in, k0, k1, &shape, result_dtype(in, n_in), y);
}

d9d_status d9d_op_cast(d9d_tape *t, d9d_var *x, d9d_dtype dtype, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);

    D9D_TRY(check_input("cast", tx, "x"));
    if (dtype != D9D_F32 && dtype != D9D_BF16)
        return D9D_FAIL(D9D_EINVAL, "cast: to %s, possible are float32 and bfloat16",
                        d9d_dtype_name(dtype));
    if (tx->dtype != dtype)
        return pointwise_run(t, D9D_POINTWISE_CAST, &x, 0, 0, &tx->shape, dtype, y);
    *y = x;
    return D9D_OK;
}
