/* op_cp_gather.c - context-parallel all-gather of sequences.  x [B, S, ...] of each of n ranks,
 * y [B, n S, ...].
 *
 *     gather             all-gather to [n, B, S, ...], then zigzag chunks into sequence order
 *     reduce_scatter     chunks into rank order, then reduce-scatter
 */
#include "op/attention/op_cp_gather.h"

int64_t d9di_op_cp_chunk_end(const d9di_op_cp *p, int64_t s, int i)
{
    const int64_t n = d9d_comm_size(p->comm), r = d9d_comm_rank(p->comm);

    return (i == 0 ? r + 1 : 2 * n - r) * (s / 2);
}

d9d_status d9di_op_cp_check(const char *op, const char *name, const d9di_op_cp *p,
                            const d9d_tensor *x)
{
    char text[128];

    if (d9d_comm_size(p->comm) == 1 || (x->shape.ndim >= 2 && x->shape.dim[1] % 2 == 0))
        return D9D_OK;
    return D9D_FAIL(D9D_EINVAL, "%s: %s %s is not [B, S, ...] with two chunks in S", op, name,
                    d9d_shape_text(&x->shape, text, sizeof(text)));
}

/* Permute zigzag chunks into sequence order, or back; x [B, S, ...] is one rank's. */
static d9d_status zigzag_permute(d9d_tape *t, const d9di_op_cp *p, const d9d_tensor *x, void *to,
                                 const void *from, bool in_order)
{
    const int64_t b = x->shape.dim[0], size = x->shape.dim[1] / 2;
    const int64_t positions = b * 2 * size, w = positions > 0 ? d9d_tensor_numel(x) / positions : 0;

    return D9DI_KERNEL(t, attention->cp_zigzag, x->dtype, to, from, d9d_comm_size(p->comm), b, size,
                       w, in_order);
}

/* [B, S, ...] to [B, times S / by, ...]. */
static d9d_shape shape_scale_seq(d9d_shape s, int64_t times, int64_t by)
{
    s.dim[1] = s.dim[1] * times / by;
    return s;
}

void d9di_op_cp_transfer_release(d9di_op_cp_transfer *m)
{
    d9di_op_row_coll_release(&m->coll);
    d9d_tensor_release(&m->gathered);
}

/* Start a collective of several ranks, each with n elements. */
static d9d_status transfer_init(d9d_tape *t, const d9di_op_cp *p, d9di_op_row_coll_kind kind,
                                d9d_dtype type, int64_t each, d9di_op_cp_transfer *m)
{
    const d9di_op_row_coll_args rows = {p->comm, p->label, type, each};

    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), type, D9D_SHAPE(d9d_comm_size(p->comm), each),
                             &m->gathered));
    return d9di_op_row_coll_init(&m->coll, t, kind, &rows);
}

d9d_status d9di_op_cp_gather_start(d9d_tape *t, const d9di_op_cp *p, const d9d_tensor *x,
                                   d9di_op_cp_transfer *m)
{
    *m = (d9di_op_cp_transfer){.gathered = {0}};
    if (d9d_comm_size(p->comm) == 1)
        return D9D_OK;
    D9D_TRY(transfer_init(t, p, D9DI_ROW_ALL_GATHER, x->dtype, d9d_tensor_numel(x), m));
    return d9di_op_all_gather_start(&m->coll, d9d_tensor_data(&m->gathered), d9d_tensor_data(x));
}

d9d_status d9di_op_cp_gather_wait(d9d_tape *t, const d9di_op_cp *p, const d9d_tensor *x,
                                  d9di_op_cp_transfer *m, d9d_tensor *y)
{
    const int64_t n = d9d_comm_size(p->comm);
    d9d_tensor rows;

    if (n == 1) {
        *y = d9d_tensor_ref(x);
        return D9D_OK;
    }
    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), x->dtype, shape_scale_seq(x->shape, n, 1), &rows));
    *y = rows;
    D9D_TRY(d9di_op_all_gather_wait(&m->coll));
    return zigzag_permute(t, p, x, d9d_tensor_data(y), d9d_tensor_data(&m->gathered), true);
}

d9d_status d9di_op_cp_reduce_scatter_start(d9d_tape *t, const d9di_op_cp *p, const d9d_tensor *y,
                                           d9di_op_cp_transfer *m)
{
    const int64_t n = d9d_comm_size(p->comm);
    const d9d_tensor part = {.dtype = y->dtype, .shape = shape_scale_seq(y->shape, 1, n)};

    *m = (d9di_op_cp_transfer){.gathered = {0}};
    if (n == 1)
        return D9D_OK;
    D9D_TRY(transfer_init(t, p, D9DI_ROW_REDUCE_SCATTER, y->dtype, d9d_tensor_numel(y) / n, m));
    D9D_TRY(zigzag_permute(t, p, &part, d9d_tensor_data(&m->gathered), d9d_tensor_data(y), false));
    return d9di_op_reduce_scatter_start(&m->coll, d9d_tensor_data(&m->gathered));
}

d9d_status d9di_op_cp_reduce_scatter_wait(d9d_tape *t, const d9di_op_cp *p, const d9d_tensor *y,
                                          d9di_op_cp_transfer *m, d9d_tensor *x)
{
    const int64_t n = d9d_comm_size(p->comm);
    d9d_tensor part;

    if (n == 1) {
        *x = d9d_tensor_ref(y);
        return D9D_OK;
    }
    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), y->dtype, shape_scale_seq(y->shape, 1, n), &part));
    *x = part;
    return d9di_op_reduce_scatter_wait(&m->coll, d9d_tensor_data(&m->gathered), NULL,
                                       d9d_tensor_data(x));
}

d9d_status d9di_op_cp_gather(d9d_tape *t, const d9di_op_cp *p, const d9d_tensor *x, d9d_tensor *y)
{
    d9di_op_cp_transfer m;
    d9d_tensor rows = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9di_op_cp_gather_start(t, p, x, &m), out);
    D9D_TRY_OR(st, d9di_op_cp_gather_wait(t, p, x, &m, &rows), out);
    *y = rows;
    rows = (d9d_tensor){0};
out:
    d9d_tensor_release(&rows);
    d9di_op_cp_transfer_release(&m);
    return st;
}

d9d_status d9di_op_cp_reduce_scatter(d9d_tape *t, const d9di_op_cp *p, const d9d_tensor *y,
                                     d9d_tensor *x)
{
    d9di_op_cp_transfer m;
    d9d_tensor part = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9di_op_cp_reduce_scatter_start(t, p, y, &m), out);
    D9D_TRY_OR(st, d9di_op_cp_reduce_scatter_wait(t, p, y, &m, &part), out);
    *x = part;
    part = (d9d_tensor){0};
out:
    d9d_tensor_release(&part);
    d9di_op_cp_transfer_release(&m);
    return st;
}

/* --- the op ------------------------------------------------------------------------------ */

static d9d_status cp_gather_dgrad(d9d_node *n)
{
    d9d_tensor dx;

    D9D_TRY(d9di_op_cp_reduce_scatter(n->tape, n->attr, &n->dout[0], &dx));
    return d9d_node_accumulate_grad(n, 0, &dx);
}

static const d9d_node_ops cp_gather_node_ops = {.name = "cp_gather", .dgrad = cp_gather_dgrad};

d9d_status d9d_op_cp_gather(d9d_tape *t, d9d_var *x, d9d_comm *comm, const char *what, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    const d9di_op_cp p = {comm, what};
    d9d_tensor rows;
    d9d_var *out;
    d9d_node *n;

    if (d9d_comm_size(comm) == 1) {
        *y = x;
        return D9D_OK;
    }
    D9D_TRY(d9di_op_check_real("cp_gather", "x", tx));
    D9D_TRY(d9di_op_cp_check("cp_gather", "x", &p, tx));
    D9D_TRY(d9di_op_cp_gather(t, &p, tx, &rows));
    D9D_TRY(d9d_tape_output_take(t, &rows, &out));
    if (d9d_tape_should_record(t, &x, 1, NULL, 0)) {
        D9D_TRY(d9d_tape_record(t, &cp_gather_node_ops, &x, 1, &out, 1, NULL, 0, sizeof(p), &n));
        *(d9di_op_cp *)n->attr = p;
    }
    *y = out;
    return D9D_OK;
}
