/* op_tp_overlap.c - all-gather and reduce-scatter of rows, overlapped with GEMMs (tensor parallel).
 *
 *     all_gather_rows:      y = all-gather(x)                dx = reduce-scatter(dy)
 *     reduce_scatter_rows:  y = reduce-scatter(x) (+ plus)   dx = all-gather(dy)        dplus = dy
 *
 * In backward deferred wgrad runs while gradients are in flight.  All of it runs while dy arrives
 * for a GEMM; while dx is sent, all but one run, and that one is left for the next dy.
 *
 * wgrad overlaps only if rows come from staging buffers, but it is deferred without them as well.
 * Of several groups some may have symmetric memory and others not, as where one spans two hosts.
 * Collectives of other groups, with ranks of both, are enqueued between these wgrads, so all ranks
 * must keep one order.
 *
 * In forward GEMMs run rank by rank.  They do not if a rank has so few rows that a GPU would mostly
 * read the weights again for each.
 */
#include "op/parallel/op_tp_overlap.h"

#include "op/parallel/op_row_collectives.h"

enum { X, PLUS }; /* inputs */
enum { MIN_OVERLAP_ROWS = 256 };

typedef struct rows_attr {
    d9d_comm *comm;
    const char *label;
} rows_attr;

static bool is_overlapped(const d9d_comm *c, int64_t rows)
{
    return rows >= MIN_OVERLAP_ROWS || d9d_symm_buffer_is_forced(c);
}

static d9di_op_row_coll_args coll_args(const rows_attr *a, const d9d_tensor *one)
{
    return (d9di_op_row_coll_args){a->comm, a->label, one->dtype, d9d_tensor_numel(one)};
}

/* --- gradients ------------------------------------------------------------------------------- */

static d9d_status gather_bwd(d9d_node *n, const d9d_tensor *dx)
{
    const d9di_op_row_coll_args rows = coll_args(n->attr, dx);
    const void *dy = d9d_tensor_data(&n->dout[0]);
    d9di_op_row_coll m;
    d9d_status st;

    D9D_TRY_OR(st, d9di_op_row_coll_init(&m, n->tape, D9DI_ROW_REDUCE_SCATTER, &rows), out);
    D9D_TRY_OR(st, d9di_op_reduce_scatter_start(&m, dy), out);
    D9D_TRY_OR(st, d9d_tape_run_deferred_keep_one(n->tape), out);
    st = d9di_op_reduce_scatter_wait(&m, dy, NULL, d9d_tensor_data(dx));
out:
    d9di_op_row_coll_release(&m);
    return st;
}

static d9d_status gather_dgrad(d9d_node *n)
{
    d9d_tensor dx;

    D9D_TRY(d9di_op_grad_alloc(n, X, &dx));
    return d9di_op_grad_finish(n, X, &dx, gather_bwd(n, &dx));
}

static d9d_status reduce_scatter_bwd(d9d_node *n, const d9d_tensor *dx)
{
    const d9di_op_row_coll_args rows = coll_args(n->attr, &n->dout[0]);
    d9di_op_row_coll m;
    d9d_status st;

    D9D_TRY_OR(st, d9di_op_row_coll_init(&m, n->tape, D9DI_ROW_ALL_GATHER, &rows), out);
    D9D_TRY_OR(st, d9di_op_all_gather_start(&m, d9d_tensor_data(dx), d9d_tensor_data(&n->dout[0])),
               out);
    D9D_TRY_OR(st, d9d_tape_run_deferred(n->tape), out);
    st = d9di_op_all_gather_wait(&m);
out:
    d9di_op_row_coll_release(&m);
    return st;
}

static d9d_status reduce_scatter_dgrad(d9d_node *n)
{
    d9d_tensor dx, dy;

    if (d9d_node_input_needs_grad(n, X)) {
        D9D_TRY(d9di_op_grad_alloc(n, X, &dx));
        D9D_TRY(d9di_op_grad_finish(n, X, &dx, reduce_scatter_bwd(n, &dx)));
    }
    if (n->n_in == 1)
        return D9D_OK;
    dy = d9d_tensor_ref(&n->dout[0]);
    return d9d_node_accumulate_grad(n, PLUS, &dy);
}

static const d9d_node_ops gather_node_ops = {.name = "all_gather_rows", .dgrad = gather_dgrad};
static const d9d_node_ops reduce_scatter_node_ops = {.name = "reduce_scatter_rows",
                                                     .dgrad = reduce_scatter_dgrad};

static d9d_status rows_record(d9d_tape *t, const d9d_node_ops *ops, d9d_var *const *in, size_t n_in,
                              const rows_attr *a, d9d_var *y)
{
    d9d_node *n;

    if (!d9d_tape_should_record(t, in, n_in, NULL, 0))
        return D9D_OK;
    D9D_TRY(d9d_tape_record(t, ops, in, n_in, &y, 1, NULL, 0, sizeof(*a), &n));
    *(rows_attr *)n->attr = *a;
    d9d_tape_defer_wgrad(t);
    return D9D_OK;
}

/* --- all-gather ------------------------------------------------------------------------------ */

static d9d_status rows_check(const d9d_node_ops *ops, const d9d_tensor *x)
{
    D9D_TRY(d9di_op_check_real(ops->name, "x", x));
    if (x->shape.ndim < 1)
        return D9D_FAIL(D9D_EINVAL, "%s: x [] has no rows", ops->name);
    return D9D_OK;
}

d9d_status d9d_op_all_gather_rows_start(d9d_tape *t, d9d_var *x, d9d_comm *comm, const char *what,
                                        d9d_op_pending_rows *coming, d9d_var **y)
{
    const rows_attr a = {comm, what};
    const d9d_tensor *tx = d9d_var_tensor(x);
    const int ranks = d9d_comm_size(comm);
    d9di_op_row_coll_args rows;
    d9di_op_row_coll m;
    d9d_var *out;

    *coming = (d9d_op_pending_rows){0};
    D9D_TRY(rows_check(&gather_node_ops, tx));
    if (ranks == 1) {
        *y = x;
        return D9D_OK;
    }
    D9D_TRY(d9d_tape_output(
        t, tx->dtype, D9D_SHAPE(ranks * d9di_op_rows(&tx->shape), d9di_op_last_dim(&tx->shape)),
        &out));
    rows = coll_args(&a, tx);
    D9D_TRY(d9di_op_row_coll_init(&m, t, D9DI_ROW_ALL_GATHER, &rows));
    D9D_TRY(
        d9di_op_all_gather_start(&m, d9d_tensor_data(d9d_var_tensor(out)), d9d_tensor_data(tx)));
    if (m.uses_symm)
        *coming = (d9d_op_pending_rows){comm, what, x};
    else
        D9D_TRY(d9di_op_all_gather_wait(&m));
    D9D_TRY(rows_record(t, &gather_node_ops, &x, 1, &a, out));
    *y = out;
    return D9D_OK;
}

/* The transfer that is in flight, once more. */
static d9di_op_row_coll pending_coll(d9d_tape *t, const d9d_op_pending_rows *coming,
                                     const d9d_var *all)
{
    const rows_attr a = {coming->comm, coming->label};
    const d9d_tensor *local = d9d_var_tensor(coming->local);

    return (d9di_op_row_coll){.tape = t,
                              .rows = coll_args(&a, local),
                              .uses_symm = true,
                              .all = d9d_tensor_data(d9d_var_tensor(all)),
                              .local = d9d_tensor_data(local)};
}

d9d_status d9d_op_all_gather_rows_wait(d9d_tape *t, d9d_op_pending_rows *coming, const d9d_var *all)
{
    d9di_op_row_coll m;

    if (coming == NULL || coming->comm == NULL)
        return D9D_OK;
    m = pending_coll(t, coming, all);
    *coming = (d9d_op_pending_rows){0};
    return d9di_op_all_gather_wait(&m);
}

d9d_status d9d_op_all_gather_rows(d9d_tape *t, d9d_var *x, d9d_comm *comm, const char *what,
                                  d9d_var **y)
{
    d9d_op_pending_rows coming;

    D9D_TRY(d9d_op_all_gather_rows_start(t, x, comm, what, &coming, y));
    return d9d_op_all_gather_rows_wait(t, &coming, *y);
}

d9d_status d9di_op_tp_for_each_rank(d9d_tape *t, d9d_op_pending_rows *coming, const d9d_var *all,
                                    d9di_op_tp_rows_fn *f, void *arg)
{
    const int64_t whole = d9di_op_rows(&d9d_var_tensor(all)->shape);
    d9di_op_tp_rows part = {0, whole, d9d_tensor_data(d9d_var_tensor(all))};
    d9di_op_row_coll m;

    if (coming == NULL || coming->comm == NULL)
        return f(arg, &part);
    if (!is_overlapped(coming->comm, whole / d9d_comm_size(coming->comm))) {
        D9D_TRY(d9d_op_all_gather_rows_wait(t, coming, all));
        return f(arg, &part);
    }
    m = pending_coll(t, coming, all);
    part.n = whole / d9d_comm_size(coming->comm);
    for (int i = 0; i < d9d_comm_size(coming->comm); i++) {
        const int from = d9di_op_row_coll_next_rank(&m, i);

        part.first = from * part.n;
        D9D_TRY(d9di_op_all_gather_wait_rank(&m, from, &part.x));
        D9D_TRY(f(arg, &part));
    }
    return d9d_op_all_gather_rows_wait(t, coming, all);
}

/* --- reduce-scatter -------------------------------------------------------------------------- */

static d9d_status ranks_check(const d9d_shape *s, const d9d_comm *comm)
{
    if (d9di_op_rows(s) % d9d_comm_size(comm) == 0)
        return D9D_OK;
    return D9D_FAIL(D9D_EINVAL, "reduce_scatter_rows: %lld rows do not divide over %d ranks",
                    (long long)d9di_op_rows(s), d9d_comm_size(comm));
}

/* Allocate this rank's rows, of the type and row shape of x. */
static d9d_status local_rows_output(d9d_tape *t, const d9d_tensor *x, const d9d_comm *comm,
                                    d9d_var **y)
{
    const int64_t rows = d9di_op_rows(&x->shape) / d9d_comm_size(comm);

    return d9d_tape_output(t, x->dtype, D9D_SHAPE(rows, d9di_op_last_dim(&x->shape)), y);
}

d9d_status d9d_op_reduce_scatter_rows(d9d_tape *t, d9d_var *x, d9d_comm *comm, const char *what,
                                      d9d_var **y)
{
    const rows_attr a = {comm, what};
    const d9d_tensor *tx = d9d_var_tensor(x), *ty;
    d9di_op_row_coll_args rows;
    d9di_op_row_coll m;
    d9d_var *out;
    d9d_status st;

    D9D_TRY(rows_check(&reduce_scatter_node_ops, tx));
    D9D_TRY(ranks_check(&tx->shape, comm));
    if (d9d_comm_size(comm) == 1) {
        *y = x;
        return D9D_OK;
    }
    D9D_TRY(local_rows_output(t, tx, comm, &out));
    ty = d9d_var_tensor(out);
    rows = coll_args(&a, ty);
    D9D_TRY_OR(st, d9di_op_row_coll_init(&m, t, D9DI_ROW_REDUCE_SCATTER, &rows), out);
    D9D_TRY_OR(st, d9di_op_reduce_scatter_start(&m, d9d_tensor_data(tx)), out);
    D9D_TRY_OR(st, d9di_op_reduce_scatter_wait(&m, d9d_tensor_data(tx), NULL, d9d_tensor_data(ty)),
               out);
    D9D_TRY_OR(st, rows_record(t, &reduce_scatter_node_ops, &x, 1, &a, out), out);
    *y = out;
out:
    d9di_op_row_coll_release(&m);
    return st;
}

/* Rank by rank: the peers' parts are sent while the rest is computed. */
static d9d_status produce_by_rank(const d9di_op_tp_reduce_scatter_args *s,
                                  const d9di_op_row_coll *m, int64_t rows, void *y)
{
    for (int i = 1; i < d9d_comm_size(s->comm); i++) {
        const int to = d9di_op_row_coll_next_rank(m, i);

        D9D_TRY(s->make(s->arg, to * rows, rows, d9di_op_reduce_scatter_dst(m, to)));
        D9D_TRY(d9di_op_reduce_scatter_signal(m, to));
    }
    D9D_TRY(d9di_op_reduce_scatter_get(m));
    return s->make(s->arg, d9d_comm_rank(s->comm) * rows, rows, y);
}

static d9d_status produce_whole(const d9di_op_tp_reduce_scatter_args *s, d9d_tape *t,
                                const d9di_op_row_coll *m, const d9d_tensor *part, const void *plus,
                                void *y)
{
    d9d_tensor all = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9d_tensor_alloc(d9d_tape_device(t), part->dtype, part->shape, &all), out);
    D9D_TRY_OR(st, s->make(s->arg, 0, d9di_op_rows(&part->shape), d9d_tensor_data(&all)), out);
    D9D_TRY_OR(st, d9di_op_reduce_scatter_start(m, d9d_tensor_data(&all)), out);
    st = d9di_op_reduce_scatter_wait(m, d9d_tensor_data(&all), plus, y);
out:
    d9d_tensor_release(&all);
    return st;
}

static d9d_status reduce_scatter_run(const d9di_op_tp_reduce_scatter_args *s, d9d_tape *t,
                                     const d9d_tensor *part, const d9d_tensor *y)
{
    const rows_attr a = {s->comm, s->label};
    const d9di_op_row_coll_args rows = coll_args(&a, y);
    const void *plus = s->plus == NULL ? NULL : d9d_tensor_data(d9d_var_tensor(s->plus));
    d9di_op_row_coll m;
    d9d_status st;

    D9D_TRY_OR(st, d9di_op_row_coll_init(&m, t, D9DI_ROW_REDUCE_SCATTER, &rows), out);
    if (!m.uses_symm || !is_overlapped(s->comm, d9di_op_rows(&y->shape))) {
        st = produce_whole(s, t, &m, part, plus, d9d_tensor_data(y));
    } else {
        D9D_TRY_OR(st, produce_by_rank(s, &m, d9di_op_rows(&y->shape), d9d_tensor_data(y)), out);
        st = d9di_op_reduce_scatter_wait(&m, NULL, plus, d9d_tensor_data(y));
    }
out:
    d9di_op_row_coll_release(&m);
    return st;
}

d9d_status d9di_op_tp_reduce_scatter(d9d_tape *t, const d9di_op_tp_reduce_scatter_args *s,
                                     d9d_dtype type, d9d_shape shape, d9d_var **part, d9d_var **y)
{
    d9d_tensor whole = {.dtype = type, .shape = shape};
    d9d_var *out;

    D9D_TRY(ranks_check(&shape, s->comm));
    D9D_TRY(local_rows_output(t, &whole, s->comm, &out));
    if (s->plus != NULL)
        D9D_TRY(d9di_op_check_same("reduce_scatter_rows", "plus", d9d_var_tensor(s->plus), "y",
                                   d9d_var_tensor(out)));
    D9D_TRY(reduce_scatter_run(s, t, &whole, d9d_var_tensor(out)));
    D9D_TRY(d9d_tape_output_take(t, &whole, part));
    *y = out;
    return D9D_OK;
}

d9d_status d9di_op_tp_reduce_scatter_record(d9d_tape *t, const d9di_op_tp_reduce_scatter_args *s,
                                            d9d_var *part, d9d_var *y)
{
    const rows_attr a = {s->comm, s->label};
    d9d_var *const in[] = {part, s->plus};

    return rows_record(t, &reduce_scatter_node_ops, in, s->plus == NULL ? 1 : 2, &a, y);
}
