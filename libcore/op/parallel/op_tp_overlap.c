/* op_tp_overlap.c - rows that go between ranks, and their gradients, which come back the other way.
 *
 *     gather_rows:   y = all-gather(x)                dx = reduce-scatter(dy)
 *     scatter_rows:  y = reduce-scatter(x) (+ plus)   dx = all-gather(dy)        dplus = dy
 *
 * Weight halves that were put off run while gradients are on their way: all of them while dy comes
 * to what a product begins with, and all but one while dx goes, which is left for the next dy.
 * Beside them they run where rows come from rooms alone, but they are put off without rooms as
 * well: of groups some may have rooms and others not, as where one lies over two hosts, and the
 * calls of other groups, which have ranks of both, come between these halves.  In forward products
 * are made rank by rank, unless a rank has so few rows that a GPU would spend its time on reading
 * weights once for each.
 */
#include "op/parallel/op_tp_overlap.h"

#include "op/parallel/op_row_collectives.h"

enum { X, PLUS }; /* inputs */
enum { LEAST_ROWS = 256 };

typedef struct rows_attr {
    d9d_comm *comm;
    const char *what;
} rows_attr;

static bool by_parts(const d9d_comm *c, int64_t rows)
{
    return rows >= LEAST_ROWS || d9d_comm_rooms_always(c);
}

static d9di_move_rows rows_of(const rows_attr *a, const d9d_tensor *one)
{
    return (d9di_move_rows){a->comm, a->what, one->dtype, d9d_tensor_numel(one)};
}

/* --- gradients ------------------------------------------------------------------------------- */

static d9d_status gather_back(d9d_node *n, const d9d_tensor *dx)
{
    const d9di_move_rows rows = rows_of(n->attr, dx);
    const void *dy = d9d_tensor_data(&n->dout[0]);
    d9di_move m;
    d9d_status st;

    D9D_TRY_OR(st, d9di_move_begin(&m, n->tape, D9DI_SUM, &rows), out);
    D9D_TRY_OR(st, d9di_sum_go(&m, dy), out);
    D9D_TRY_OR(st, d9d_tape_catch_up_but_one(n->tape), out);
    st = d9di_sum_end(&m, dy, NULL, d9d_tensor_data(dx));
out:
    d9di_move_release(&m);
    return st;
}

static d9d_status gather_input(d9d_node *n)
{
    d9d_tensor dx;

    D9D_TRY(d9di_node_grad(n, X, &dx));
    return d9di_node_finish(n, X, &dx, gather_back(n, &dx));
}

static d9d_status scatter_back(d9d_node *n, const d9d_tensor *dx)
{
    const d9di_move_rows rows = rows_of(n->attr, &n->dout[0]);
    d9di_move m;
    d9d_status st;

    D9D_TRY_OR(st, d9di_move_begin(&m, n->tape, D9DI_GATHER, &rows), out);
    D9D_TRY_OR(st, d9di_gather_go(&m, d9d_tensor_data(dx), d9d_tensor_data(&n->dout[0])), out);
    D9D_TRY_OR(st, d9d_tape_catch_up(n->tape), out);
    st = d9di_gather_end(&m);
out:
    d9di_move_release(&m);
    return st;
}

static d9d_status scatter_input(d9d_node *n)
{
    d9d_tensor dx, dy;

    if (d9d_node_wants(n, X)) {
        D9D_TRY(d9di_node_grad(n, X, &dx));
        D9D_TRY(d9di_node_finish(n, X, &dx, scatter_back(n, &dx)));
    }
    if (n->n_in == 1)
        return D9D_OK;
    dy = d9d_tensor_ref(&n->dout[0]);
    return d9d_node_give(n, PLUS, &dy);
}

static const d9d_node_ops gather_ops = {.name = "gather_rows", .input = gather_input};
static const d9d_node_ops scatter_ops = {.name = "scatter_rows", .input = scatter_input};

static d9d_status record(d9d_tape *t, const d9d_node_ops *ops, d9d_var *const *in, size_t n_in,
                         const rows_attr *a, d9d_var *y)
{
    d9d_node *n;

    if (!d9d_tape_wants(t, in, n_in, NULL, 0))
        return D9D_OK;
    D9D_TRY(d9d_tape_record(t, ops, in, n_in, &y, 1, NULL, 0, sizeof(*a), &n));
    *(rows_attr *)n->attr = *a;
    d9d_tape_may_put_off(t);
    return D9D_OK;
}

/* --- gather ----------------------------------------------------------------------------------- */

static d9d_status check(const d9d_node_ops *ops, const d9d_tensor *x)
{
    D9D_TRY(d9di_op_check_real(ops->name, "x", x));
    if (x->shape.ndim < 1)
        return D9D_FAIL(D9D_EINVAL, "%s: x [] has no rows", ops->name);
    return D9D_OK;
}

d9d_status d9d_op_gather_rows_go(d9d_tape *t, d9d_var *x, d9d_comm *comm, const char *what,
                                 d9d_coming *coming, d9d_var **y)
{
    const rows_attr a = {comm, what};
    const d9d_tensor *tx = d9d_var_tensor(x);
    const int ranks = d9d_comm_size(comm);
    d9di_move_rows rows;
    d9di_move m;
    d9d_var *out;

    *coming = (d9d_coming){0};
    D9D_TRY(check(&gather_ops, tx));
    if (ranks == 1) {
        *y = x;
        return D9D_OK;
    }
    D9D_TRY(d9d_tape_output(t, tx->dtype,
                            D9D_SHAPE(ranks * d9di_rows(&tx->shape), d9di_last(&tx->shape)), &out));
    rows = rows_of(&a, tx);
    D9D_TRY(d9di_move_begin(&m, t, D9DI_GATHER, &rows));
    D9D_TRY(d9di_gather_go(&m, d9d_tensor_data(d9d_var_tensor(out)), d9d_tensor_data(tx)));
    if (m.by_room)
        *coming = (d9d_coming){comm, what, x};
    else
        D9D_TRY(d9di_gather_end(&m));
    D9D_TRY(record(t, &gather_ops, &x, 1, &a, out));
    *y = out;
    return D9D_OK;
}

/* The move that brings them, once more. */
static d9di_move move_of(d9d_tape *t, const d9d_coming *coming, const d9d_var *all)
{
    const rows_attr a = {coming->comm, coming->what};
    const d9d_tensor *mine = d9d_var_tensor(coming->mine);

    return (d9di_move){.tape = t,
                       .rows = rows_of(&a, mine),
                       .by_room = true,
                       .all = d9d_tensor_data(d9d_var_tensor(all)),
                       .mine = d9d_tensor_data(mine)};
}

d9d_status d9d_op_rows_end(d9d_tape *t, d9d_coming *coming, const d9d_var *all)
{
    d9di_move m;

    if (coming == NULL || coming->comm == NULL)
        return D9D_OK;
    m = move_of(t, coming, all);
    *coming = (d9d_coming){0};
    return d9di_gather_end(&m);
}

d9d_status d9d_op_gather_rows(d9d_tape *t, d9d_var *x, d9d_comm *comm, const char *what,
                              d9d_var **y)
{
    d9d_coming coming;

    D9D_TRY(d9d_op_gather_rows_go(t, x, comm, what, &coming, y));
    return d9d_op_rows_end(t, &coming, *y);
}

d9d_status d9di_rows_each(d9d_tape *t, d9d_coming *coming, const d9d_var *all, d9di_rows_fn *f,
                          void *arg)
{
    const int64_t whole = d9di_rows(&d9d_var_tensor(all)->shape);
    d9di_rows_part part = {0, whole, d9d_tensor_data(d9d_var_tensor(all))};
    d9di_move m;

    if (coming == NULL || coming->comm == NULL)
        return f(arg, &part);
    if (!by_parts(coming->comm, whole / d9d_comm_size(coming->comm))) {
        D9D_TRY(d9d_op_rows_end(t, coming, all));
        return f(arg, &part);
    }
    m = move_of(t, coming, all);
    part.n = whole / d9d_comm_size(coming->comm);
    for (int i = 0; i < d9d_comm_size(coming->comm); i++) {
        const int from = d9di_move_behind(&m, i);

        part.first = from * part.n;
        D9D_TRY(d9di_gather_join(&m, from, &part.x));
        D9D_TRY(f(arg, &part));
    }
    return d9d_op_rows_end(t, coming, all);
}

/* --- sum -------------------------------------------------------------------------------------- */

static d9d_status check_ranks(const d9d_shape *s, const d9d_comm *comm)
{
    if (d9di_rows(s) % d9d_comm_size(comm) == 0)
        return D9D_OK;
    return D9D_FAIL(D9D_EINVAL, "scatter_rows: %lld rows do not divide over %d ranks",
                    (long long)d9di_rows(s), d9d_comm_size(comm));
}

/* This rank's rows of what has the type and shape of x. */
static d9d_status output(d9d_tape *t, const d9d_tensor *x, const d9d_comm *comm, d9d_var **y)
{
    const int64_t rows = d9di_rows(&x->shape) / d9d_comm_size(comm);

    return d9d_tape_output(t, x->dtype, D9D_SHAPE(rows, d9di_last(&x->shape)), y);
}

d9d_status d9d_op_scatter_rows(d9d_tape *t, d9d_var *x, d9d_comm *comm, const char *what,
                               d9d_var **y)
{
    const rows_attr a = {comm, what};
    const d9d_tensor *tx = d9d_var_tensor(x), *ty;
    d9di_move_rows rows;
    d9di_move m;
    d9d_var *out;
    d9d_status st;

    D9D_TRY(check(&scatter_ops, tx));
    D9D_TRY(check_ranks(&tx->shape, comm));
    if (d9d_comm_size(comm) == 1) {
        *y = x;
        return D9D_OK;
    }
    D9D_TRY(output(t, tx, comm, &out));
    ty = d9d_var_tensor(out);
    rows = rows_of(&a, ty);
    D9D_TRY_OR(st, d9di_move_begin(&m, t, D9DI_SUM, &rows), out);
    D9D_TRY_OR(st, d9di_sum_go(&m, d9d_tensor_data(tx)), out);
    D9D_TRY_OR(st, d9di_sum_end(&m, d9d_tensor_data(tx), NULL, d9d_tensor_data(ty)), out);
    D9D_TRY_OR(st, record(t, &scatter_ops, &x, 1, &a, out), out);
    *y = out;
out:
    d9di_move_release(&m);
    return st;
}

/* Rank by rank: the others' parts go while the rest is made. */
static d9d_status make_parts(const d9di_sum_rows *s, const d9di_move *m, int64_t rows, void *y)
{
    for (int i = 1; i < d9d_comm_size(s->comm); i++) {
        const int to = d9di_move_behind(m, i);

        D9D_TRY(s->make(s->arg, to * rows, rows, d9di_sum_place(m, to)));
        D9D_TRY(d9di_sum_tell(m, to));
    }
    D9D_TRY(d9di_sum_take(m));
    return s->make(s->arg, d9d_comm_rank(s->comm) * rows, rows, y);
}

static d9d_status make_whole(const d9di_sum_rows *s, d9d_tape *t, const d9di_move *m,
                             const d9d_tensor *part, const void *plus, void *y)
{
    d9d_tensor all = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9d_tensor_alloc(d9d_tape_device(t), part->dtype, part->shape, &all), out);
    D9D_TRY_OR(st, s->make(s->arg, 0, d9di_rows(&part->shape), d9d_tensor_data(&all)), out);
    D9D_TRY_OR(st, d9di_sum_go(m, d9d_tensor_data(&all)), out);
    st = d9di_sum_end(m, d9d_tensor_data(&all), plus, y);
out:
    d9d_tensor_release(&all);
    return st;
}

static d9d_status sum(const d9di_sum_rows *s, d9d_tape *t, const d9d_tensor *part,
                      const d9d_tensor *y)
{
    const rows_attr a = {s->comm, s->what};
    const d9di_move_rows rows = rows_of(&a, y);
    const void *plus = s->plus == NULL ? NULL : d9d_tensor_data(d9d_var_tensor(s->plus));
    d9di_move m;
    d9d_status st;

    D9D_TRY_OR(st, d9di_move_begin(&m, t, D9DI_SUM, &rows), out);
    if (!m.by_room || !by_parts(s->comm, d9di_rows(&y->shape))) {
        st = make_whole(s, t, &m, part, plus, d9d_tensor_data(y));
    } else {
        D9D_TRY_OR(st, make_parts(s, &m, d9di_rows(&y->shape), d9d_tensor_data(y)), out);
        st = d9di_sum_end(&m, NULL, plus, d9d_tensor_data(y));
    }
out:
    d9di_move_release(&m);
    return st;
}

d9d_status d9di_rows_sum(d9d_tape *t, const d9di_sum_rows *s, d9d_dtype type, d9d_shape shape,
                         d9d_var **part, d9d_var **y)
{
    d9d_tensor whole = {.dtype = type, .shape = shape};
    d9d_var *out;

    D9D_TRY(check_ranks(&shape, s->comm));
    D9D_TRY(output(t, &whole, s->comm, &out));
    if (s->plus != NULL)
        D9D_TRY(d9di_op_check_same("scatter_rows", "plus", d9d_var_tensor(s->plus), "y",
                                   d9d_var_tensor(out)));
    D9D_TRY(sum(s, t, &whole, d9d_var_tensor(out)));
    D9D_TRY(d9d_tape_output_take(t, &whole, part));
    *y = out;
    return D9D_OK;
}

d9d_status d9di_rows_sum_record(d9d_tape *t, const d9di_sum_rows *s, d9d_var *part, d9d_var *y)
{
    const rows_attr a = {s->comm, s->what};
    d9d_var *const in[] = {part, s->plus};

    return record(t, &scatter_ops, in, s->plus == NULL ? 1 : 2, &a, y);
}
