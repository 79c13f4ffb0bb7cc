/* op_dropout.c - y = 0 with probability p, else x / (1 - p).  x [M, N].
 *
 * The gradient applies the same mask: it is drawn again by Philox, so nothing of the size of x is
 * saved.
 */
#include "op/op_common.h"

typedef struct dropout_attr {
    float p, factor;
    d9d_rng rng;
    int64_t first, width;
} dropout_attr;

/* token: [rows] int64, storage NULL where p is 0. */
static d9d_status dropout_apply(d9d_tape *t, const dropout_attr *a, const d9d_tensor *token,
                                const d9d_tensor *x, const d9d_tensor *y)
{
    const int64_t m = d9di_op_rows(&x->shape), n = m > 0 ? d9d_tensor_numel(x) / m : 0;

    return D9DI_KERNEL(
        t, elementwise->dropout, x->dtype, d9d_tensor_data(y), d9d_tensor_data(x), a->p, a->factor,
        a->rng, token->storage != NULL ? d9d_tensor_data(token) : NULL, m, n, a->first, a->width);
}

static d9d_status dropout_dgrad(d9d_node *n)
{
    const d9d_tensor *dy = &n->dout[0];
    d9d_tensor dx;

    D9D_TRY(d9d_node_alloc(n, dy->dtype, dy->shape, &dx));
    return d9di_op_grad_finish(n, 0, &dx, dropout_apply(n->tape, n->attr, &n->saved[0], dy, &dx));
}

static const d9d_node_ops dropout_node_ops = {.name = "dropout", .dgrad = dropout_dgrad};

static d9d_status dropout_run(d9d_tape *t, d9d_var *x, const dropout_attr *a,
                              const d9d_tensor *token, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    d9d_var *out;
    d9d_node *n;

    D9D_TRY(d9d_tape_output(t, tx->dtype, tx->shape, &out));
    D9D_TRY(dropout_apply(t, a, token, tx, d9d_var_tensor(out)));
    if (d9d_tape_should_record(t, &x, 1, NULL, 0)) {
        D9D_TRY(d9d_tape_record(t, &dropout_node_ops, &x, 1, &out, 1, NULL, 0, sizeof(*a), &n));
        *(dropout_attr *)n->attr = *a;
        (void)d9d_node_save(n, token, D9D_NEED_DGRAD);
    }
    *y = out;
    return D9D_OK;
}

d9d_status d9di_op_dropout_tokens(const char *what, const d9d_dropout_rng *rng, int64_t rows,
                                  d9d_tensor *out)
{
    const int64_t all = d9d_tensor_numel(&rng->token);

    if (rows != all && rows != rng->part)
        return D9D_FAIL(D9D_EINVAL,
                        "dropout: %s has %lld rows, which are not the %lld tokens of the forward; "
                        "d9d_tape_begin_rows() tells which tokens or texts they are",
                        what, (long long)rows, (long long)all);
    *out = d9d_tensor_rows(&rng->token, rows != all ? rng->first : 0, rows);
    return D9D_OK;
}

static d9d_status dropout_check(const d9d_tensor *x, const d9d_op_dropout_opts *opts)
{
    D9D_TRY(d9di_op_check_real("dropout", "x", x));
    if (!(opts->p >= 0.0f && opts->p < 1.0f))
        return D9D_FAIL(D9D_EINVAL, "dropout: %s has a probability of %g, not in [0, 1)",
                        d9di_op_param_name(opts->site), (double)opts->p);
    return D9D_OK;
}

/* The numbers that rows of x stand for. */
static d9d_status dropout_rows(const d9d_tensor *x, const d9d_dropout_rng *rng,
                               const d9d_op_dropout_opts *opts, d9d_tensor *out)
{
    const int64_t rows = d9di_op_rows(&x->shape);

    if (opts->rows == NULL)
        return d9di_op_dropout_tokens(d9di_op_param_name(opts->site), rng, rows, out);
    if (d9d_tensor_numel(opts->rows) != rows)
        return D9D_FAIL(D9D_EINVAL, "dropout: %s has %lld rows, of %lld tokens",
                        d9di_op_param_name(opts->site), (long long)rows,
                        (long long)d9d_tensor_numel(opts->rows));
    *out = d9d_tensor_ref(opts->rows);
    return D9D_OK;
}

d9d_status d9d_op_dropout(d9d_tape *t, d9d_var *x, const d9d_op_dropout_opts *opts, d9d_var **y)
{
    const d9d_dropout_rng *rng = d9d_tape_dropout_rng(t);
    const d9d_tensor *tx = d9d_var_tensor(x);
    d9d_tensor token;
    d9d_status st;

    *y = x;
    if (!d9d_op_dropout_is_active(t, opts->p))
        return D9D_OK;
    D9D_TRY(dropout_check(tx, opts));
    D9D_TRY(dropout_rows(tx, rng, opts, &token));
    st = dropout_run(
        t, x,
        &(dropout_attr){.p = opts->p,
                        .factor = 1.0f / (1.0f - opts->p),
                        .rng = {rng->seed, d9d_op_dropout_stream(opts->site)},
                        .first = opts->first,
                        .width = opts->width > 0 ? opts->width : d9di_op_last_dim(&tx->shape)},
        &token, y);
    d9d_tensor_release(&token);
    return st;
}
