/* op_rms_norm_parallel.c - RMSNorm of rows that the ranks of a group have in parts.  x [M, n] is
 * this rank's part of rows of N elements, w [N or its part], inv [M].
 *
 *     inv = 1 / sqrt(sum over ranks of sum(x^2) / N + eps)        y = x inv w'
 *     dx = inv (dy w' - x inv^2 c / N)        c = sum over ranks of sum(dy w' x)
 *     dw = sum over rows of dy x inv
 *
 * One all-reduce of [M] in forward and one in dgrad.  A part that several ranks have counts once in
 * the sum of squares, and its term of c is in the dx of one of them.  Their dy are parts of a sum,
 * so c is the sum of all.
 */
#include "op/op_common.h"

typedef struct parallel_attr {
    d9d_op_rms_norm_parallel_opts opts;
} parallel_attr;

enum { SAVED_X, SAVED_INV };

static d9d_rms_norm_parallel_dims dims_of(const d9d_tensor *x,
                                          const d9d_op_rms_norm_parallel_opts *opts)
{
    return (d9d_rms_norm_parallel_dims){.t = x->dtype,
                                        .m = d9di_op_rows(&x->shape),
                                        .n = d9di_op_last_dim(&x->shape),
                                        .first = opts->uncounted,
                                        .total = opts->total,
                                        .eps = opts->eps,
                                        .zero_centred = opts->zero_centred};
}

/* sum [M]: of x y w' from `first` on, over the ranks.  w may be NULL. */
static d9d_status dots_sum(d9d_tape *t, const d9d_rms_norm_parallel_dims *n,
                           const d9d_op_rms_norm_parallel_opts *opts, const void *x, const void *y,
                           const void *w, d9d_tensor *sum)
{
    float *dot;

    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), D9D_F32, D9D_SHAPE(n->m), sum));
    dot = d9d_tensor_data(sum);
    D9D_TRY(D9DI_KERNEL(t, norm->rms_norm_dot, n, dot, x, y, w));
    return d9d_comm_all_reduce(opts->comm, d9d_tape_device(t)->stream, opts->label, D9D_F32, dot,
                               n->m, D9D_COMM_SUM);
}

/* --- backward ------------------------------------------------------------------------------- */

static d9d_status parallel_dgrad(d9d_node *n)
{
    const d9d_op_rms_norm_parallel_opts *opts = &((const parallel_attr *)n->attr)->opts;
    const d9d_tensor *x = &n->saved[SAVED_X];
    const d9d_rms_norm_parallel_dims dims = dims_of(x, opts);
    const void *w = d9di_op_element_ptr(&n->param[0]->local.data, opts->first),
               *dy = d9d_tensor_data(&n->dout[0]);
    d9d_rms_norm_parallel_dims all = dims;
    d9d_tensor dx = {0}, dot = {0};
    d9d_status st;

    all.first = 0;
    D9D_TRY_OR(st, dots_sum(n->tape, &all, opts, dy, d9d_tensor_data(x), w, &dot), out);
    D9D_TRY_OR(st, d9di_op_grad_alloc(n, 0, &dx), out);
    D9D_TRY_OR(st,
               D9DI_KERNEL(n->tape, norm->rms_norm_parallel_bwd, &dims, d9d_tensor_data(&dx),
                           D9D_F32, NULL, 0.0f, dy, d9d_tensor_data(x), w,
                           d9d_tensor_data(&n->saved[SAVED_INV]), d9d_tensor_data(&dot)),
               out);
    st = d9d_node_accumulate_grad(n, 0, &dx);
out:
    d9d_tensor_release(&dx);
    d9d_tensor_release(&dot);
    return st;
}

static d9d_status parallel_wgrad(d9d_node *n)
{
    const d9d_op_rms_norm_parallel_opts *opts = &((const parallel_attr *)n->attr)->opts;
    const d9d_tensor *x = &n->saved[SAVED_X];
    const d9d_rms_norm_parallel_dims dims = dims_of(x, opts);
    d9d_param_part *w = &n->param[0]->local;
    const float beta = d9d_param_grad_beta(w);

    if (beta == 0.0f && dims.n < w->data.shape.dim[0]) /* elements without a gradient */
        D9D_TRY(D9DI_KERNEL(n->tape, elementwise->fill, w->grad.dtype, d9d_tensor_data(&w->grad),
                            w->data.shape.dim[0], 0.0f));
    return D9DI_KERNEL(n->tape, norm->rms_norm_parallel_bwd, &dims, NULL, w->grad.dtype,
                       d9di_op_element_ptr(&w->grad, opts->first), beta,
                       d9d_tensor_data(&n->dout[0]), d9d_tensor_data(x),
                       d9di_op_element_ptr(&w->data, opts->first),
                       d9d_tensor_data(&n->saved[SAVED_INV]), NULL);
}

static const d9d_node_ops parallel_node_ops = {
    .name = "rms_norm_parallel", .dgrad = parallel_dgrad, .wgrad = parallel_wgrad};

/* --- forward -------------------------------------------------------------------------------- */

static d9d_status parallel_check(const d9d_tensor *x, const d9d_param *w,
                                 const d9d_op_rms_norm_parallel_opts *opts)
{
    const d9d_shape *s = &w->local.data.shape;
    int64_t n;

    D9D_TRY(d9di_op_check_real("rms_norm_parallel", "x", x));
    D9D_TRY(d9di_op_check_param("rms_norm_parallel", w, x->dtype));
    n = x->shape.ndim < 1 ? -1 : d9di_op_last_dim(&x->shape);
    if (n < 0 || s->ndim != 1 || opts->first < 0 || opts->first > s->dim[0] - n)
        return d9di_op_misfit("rms_norm_parallel", "x", &x->shape, d9di_op_param_name(w), s,
                              "x is [..., N], a weight has N elements from where it is read");
    if (opts->uncounted < 0 || opts->uncounted > n || opts->total < n)
        return D9D_FAIL(D9D_EINVAL,
                        "rms_norm_parallel: %lld elements of %lld are not counted, of rows of %lld",
                        (long long)opts->uncounted, (long long)n, (long long)opts->total);
    return D9D_OK;
}

static d9d_status parallel_record(d9d_tape *t, d9d_var *x, d9d_param *w, const d9d_tensor *inv,
                                  const d9d_op_rms_norm_parallel_opts *opts, d9d_var *out)
{
    d9d_node *n;

    if (!d9d_tape_should_record(t, &x, 1, &w, 1))
        return D9D_OK;
    D9D_TRY(
        d9d_tape_record(t, &parallel_node_ops, &x, 1, &out, 1, &w, 1, sizeof(parallel_attr), &n));
    ((parallel_attr *)n->attr)->opts = *opts;
    (void)d9d_node_save(n, d9d_var_tensor(x), D9D_NEED_BOTH);
    (void)d9d_node_save(n, inv, D9D_NEED_BOTH);
    return D9D_OK;
}

d9d_status d9d_op_rms_norm_parallel(d9d_tape *t, d9d_var *x, d9d_param *w,
                                    const d9d_op_rms_norm_parallel_opts *opts, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    d9d_rms_norm_parallel_dims dims;
    d9d_tensor sum = {0}, inv = {0};
    d9d_var *out;
    d9d_status st;

    D9D_TRY_OR(st, parallel_check(tx, w, opts), out);
    dims = dims_of(tx, opts);
    D9D_TRY_OR(st, d9d_tape_output(t, tx->dtype, tx->shape, &out), out);
    D9D_TRY_OR(st, d9d_tensor_alloc(d9d_tape_device(t), D9D_F32, D9D_SHAPE(dims.m), &inv), out);
    D9D_TRY_OR(st, dots_sum(t, &dims, opts, d9d_tensor_data(tx), d9d_tensor_data(tx), NULL, &sum),
               out);
    D9D_TRY_OR(st,
               D9DI_KERNEL(t, norm->rms_norm_parallel, &dims, d9d_tensor_data(d9d_var_tensor(out)),
                           d9d_tensor_data(&inv), d9d_tensor_data(&sum), d9d_tensor_data(tx),
                           d9di_op_element_ptr(&w->local.data, opts->first)),
               out);
    D9D_TRY_OR(st, parallel_record(t, x, w, &inv, opts, out), out);
    *y = out;
out:
    d9d_tensor_release(&sum);
    d9d_tensor_release(&inv);
    return st;
}
