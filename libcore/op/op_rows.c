/* op_rows.c - rows that go between ranks, and their gradients, which come back the other way.
 *
 *     gather_rows:   y = all-gather(x)        dx = reduce-scatter(dy)
 *     scatter_rows:  y = reduce-scatter(x)    dx = all-gather(dy)
 */
#include "op/op_common.h"

typedef struct rows_attr {
    d9d_comm *comm;
    const char *what;
    d9di_transfer *back;
} rows_attr;

static d9d_status move(d9d_tape *t, d9di_transfer *by, const rows_attr *a, const d9d_tensor *dst,
                       const d9d_tensor *src)
{
    const int64_t m = d9d_tensor_numel(dst), n = d9d_tensor_numel(src);

    return d9di_transfer_even(t, by, a->comm, a->what, src->dtype, d9d_tensor_data(dst),
                              d9d_tensor_data(src), m < n ? m : n);
}

static d9d_status rows_input(d9d_node *n)
{
    const rows_attr *a = n->attr;
    d9d_tensor dx;

    D9D_TRY(d9di_node_grad(n, 0, &dx));
    return d9di_node_finish(n, 0, &dx, move(n->tape, a->back, a, &dx, &n->dout[0]));
}

static const d9d_node_ops gather_ops = {.name = "gather_rows", .input = rows_input};
static const d9d_node_ops scatter_ops = {.name = "scatter_rows", .input = rows_input};

static d9d_status run(d9d_tape *t, const d9d_node_ops *ops, d9d_var *x, int64_t rows,
                      d9di_transfer *by, const rows_attr *a, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    d9d_var *out;
    d9d_node *n;

    D9D_TRY(d9d_tape_output(t, tx->dtype, D9D_SHAPE(rows, d9di_last(&tx->shape)), &out));
    D9D_TRY(move(t, by, a, d9d_var_tensor(out), tx));
    if (d9d_tape_wants(t, &x, 1, NULL, 0)) {
        D9D_TRY(d9d_tape_record(t, ops, &x, 1, &out, 1, NULL, 0, sizeof(*a), &n));
        *(rows_attr *)n->attr = *a;
    }
    *y = out;
    return D9D_OK;
}

static d9d_status check(const d9d_node_ops *ops, const d9d_tensor *x)
{
    D9D_TRY(d9di_op_check_real(ops->name, "x", x));
    if (x->shape.ndim < 1)
        return D9D_FAIL(D9D_EINVAL, "%s: x [] has no rows", ops->name);
    return D9D_OK;
}

d9d_status d9d_op_gather_rows(d9d_tape *t, d9d_var *x, d9d_comm *comm, const char *what,
                              d9d_var **y)
{
    const rows_attr a = {comm, what, d9d_comm_reduce_scatter};
    const int ranks = d9d_comm_size(comm);

    D9D_TRY(check(&gather_ops, d9d_var_tensor(x)));
    if (ranks > 1)
        return run(t, &gather_ops, x, ranks * d9di_rows(&d9d_var_tensor(x)->shape),
                   d9d_comm_all_gather, &a, y);
    *y = x;
    return D9D_OK;
}

d9d_status d9d_op_scatter_rows(d9d_tape *t, d9d_var *x, d9d_comm *comm, const char *what,
                               d9d_var **y)
{
    const rows_attr a = {comm, what, d9d_comm_all_gather};
    const int ranks = d9d_comm_size(comm);
    int64_t rows;

    D9D_TRY(check(&scatter_ops, d9d_var_tensor(x)));
    rows = d9di_rows(&d9d_var_tensor(x)->shape);
    if (rows % ranks != 0)
        return D9D_FAIL(D9D_EINVAL, "scatter_rows: %lld rows do not divide over %d ranks",
                        (long long)rows, ranks);
    if (ranks > 1)
        return run(t, &scatter_ops, x, rows / ranks, d9d_comm_reduce_scatter, &a, y);
    *y = x;
    return D9D_OK;
}
