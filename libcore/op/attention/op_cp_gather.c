/* op_cp_gather.c - rows of all ranks in order.  x [B, S, ...] of each of n ranks, y [B, n S, ...].
 *
 *     gather      all-gather to [n, B, S, ...], pieces into order
 *     scatter     pieces to their ranks, reduce-scatter
 */
#include "op/attention/op_cp_gather.h"

int64_t d9di_pieces_end(const d9di_cp_pieces *p, int64_t s, int i)
{
    const int64_t n = d9d_comm_size(p->comm), r = d9d_comm_rank(p->comm);

    return (i == 0 ? r + 1 : 2 * n - r) * (s / 2);
}

d9d_status d9di_pieces_check(const char *op, const char *name, const d9di_cp_pieces *p,
                             const d9d_tensor *x)
{
    char text[128];

    if (d9d_comm_size(p->comm) == 1 || (x->shape.ndim >= 2 && x->shape.dim[1] % 2 == 0))
        return D9D_OK;
    return D9D_FAIL(D9D_EINVAL, "%s: %s %s is not [B, S, ...] with two pieces in S", op, name,
                    d9d_shape_text(&x->shape, text, sizeof(text)));
}

/* Put pieces in order, or back; x [B, S, ...] is one rank's. */
static d9d_status deal(d9d_tape *t, const d9di_cp_pieces *p, const d9d_tensor *x, void *to,
                       const void *from, bool in_order)
{
    const int64_t b = x->shape.dim[0], size = x->shape.dim[1] / 2;
    const int64_t cells = b * 2 * size, w = cells > 0 ? d9d_tensor_numel(x) / cells : 0;

    return D9DI_KERNEL(t, pieces, x->dtype, to, from, d9d_comm_size(p->comm), b, size, w, in_order);
}

/* [B, S, ...] to [B, times S / by, ...]. */
static d9d_shape stretched(d9d_shape s, int64_t times, int64_t by)
{
    s.dim[1] = s.dim[1] * times / by;
    return s;
}

void d9di_pieces_move_release(d9di_pieces_move *m)
{
    d9di_move_release(&m->move);
    d9d_tensor_release(&m->dealt);
}

/* Of several ranks, each with so many elements. */
static d9d_status begin(d9d_tape *t, const d9di_cp_pieces *p, d9di_move_kind kind, d9d_dtype type,
                        int64_t each, d9di_pieces_move *m)
{
    const d9di_move_rows rows = {p->comm, p->what, type, each};

    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), type, D9D_SHAPE(d9d_comm_size(p->comm), each),
                             &m->dealt));
    return d9di_move_begin(&m->move, t, kind, &rows);
}

d9d_status d9di_pieces_gather_go(d9d_tape *t, const d9di_cp_pieces *p, const d9d_tensor *x,
                                 d9di_pieces_move *m)
{
    *m = (d9di_pieces_move){.dealt = {0}};
    if (d9d_comm_size(p->comm) == 1)
        return D9D_OK;
    D9D_TRY(begin(t, p, D9DI_GATHER, x->dtype, d9d_tensor_numel(x), m));
    return d9di_gather_go(&m->move, d9d_tensor_data(&m->dealt), d9d_tensor_data(x));
}

d9d_status d9di_pieces_gather_end(d9d_tape *t, const d9di_cp_pieces *p, const d9d_tensor *x,
                                  d9di_pieces_move *m, d9d_tensor *y)
{
    const int64_t n = d9d_comm_size(p->comm);
    d9d_tensor rows;

    if (n == 1) {
        *y = d9d_tensor_ref(x);
        return D9D_OK;
    }
    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), x->dtype, stretched(x->shape, n, 1), &rows));
    *y = rows;
    D9D_TRY(d9di_gather_end(&m->move));
    return deal(t, p, x, d9d_tensor_data(y), d9d_tensor_data(&m->dealt), true);
}

d9d_status d9di_pieces_scatter_go(d9d_tape *t, const d9di_cp_pieces *p, const d9d_tensor *y,
                                  d9di_pieces_move *m)
{
    const int64_t n = d9d_comm_size(p->comm);
    const d9d_tensor part = {.dtype = y->dtype, .shape = stretched(y->shape, 1, n)};

    *m = (d9di_pieces_move){.dealt = {0}};
    if (n == 1)
        return D9D_OK;
    D9D_TRY(begin(t, p, D9DI_SUM, y->dtype, d9d_tensor_numel(y) / n, m));
    D9D_TRY(deal(t, p, &part, d9d_tensor_data(&m->dealt), d9d_tensor_data(y), false));
    return d9di_sum_go(&m->move, d9d_tensor_data(&m->dealt));
}

d9d_status d9di_pieces_scatter_end(d9d_tape *t, const d9di_cp_pieces *p, const d9d_tensor *y,
                                   d9di_pieces_move *m, d9d_tensor *x)
{
    const int64_t n = d9d_comm_size(p->comm);
    d9d_tensor part;

    if (n == 1) {
        *x = d9d_tensor_ref(y);
        return D9D_OK;
    }
    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), y->dtype, stretched(y->shape, 1, n), &part));
    *x = part;
    return d9di_sum_end(&m->move, d9d_tensor_data(&m->dealt), NULL, d9d_tensor_data(x));
}

d9d_status d9di_pieces_gather(d9d_tape *t, const d9di_cp_pieces *p, const d9d_tensor *x,
                              d9d_tensor *y)
{
    d9di_pieces_move m;
    d9d_tensor rows = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9di_pieces_gather_go(t, p, x, &m), out);
    D9D_TRY_OR(st, d9di_pieces_gather_end(t, p, x, &m, &rows), out);
    *y = rows;
    rows = (d9d_tensor){0};
out:
    d9d_tensor_release(&rows);
    d9di_pieces_move_release(&m);
    return st;
}

d9d_status d9di_pieces_scatter(d9d_tape *t, const d9di_cp_pieces *p, const d9d_tensor *y,
                               d9d_tensor *x)
{
    d9di_pieces_move m;
    d9d_tensor part = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9di_pieces_scatter_go(t, p, y, &m), out);
    D9D_TRY_OR(st, d9di_pieces_scatter_end(t, p, y, &m, &part), out);
    *x = part;
    part = (d9d_tensor){0};
out:
    d9d_tensor_release(&part);
    d9di_pieces_move_release(&m);
    return st;
}

/* --- the op ------------------------------------------------------------------------------ */

static d9d_status pieces_input(d9d_node *n)
{
    d9d_tensor dx;

    D9D_TRY(d9di_pieces_scatter(n->tape, n->attr, &n->dout[0], &dx));
    return d9d_node_give(n, 0, &dx);
}

static const d9d_node_ops pieces_ops = {.name = "gather_pieces", .input = pieces_input};

d9d_status d9d_op_gather_pieces(d9d_tape *t, d9d_var *x, d9d_comm *comm, const char *what,
                                d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    const d9di_cp_pieces p = {comm, what};
    d9d_tensor rows;
    d9d_var *out;
    d9d_node *n;

    if (d9d_comm_size(comm) == 1) {
        *y = x;
        return D9D_OK;
    }
    D9D_TRY(d9di_op_check_real("gather_pieces", "x", tx));
    D9D_TRY(d9di_pieces_check("gather_pieces", "x", &p, tx));
    D9D_TRY(d9di_pieces_gather(t, &p, tx, &rows));
    D9D_TRY(d9d_tape_output_take(t, &rows, &out));
    if (d9d_tape_wants(t, &x, 1, NULL, 0)) {
        D9D_TRY(d9d_tape_record(t, &pieces_ops, &x, 1, &out, 1, NULL, 0, sizeof(p), &n));
        *(d9di_cp_pieces *)n->attr = p;
    }
    *y = out;
    return D9D_OK;
}
