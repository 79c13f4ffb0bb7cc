/* op_row_collectives.c - see op/parallel/op_row_collectives.h. */
#include "op/parallel/op_row_collectives.h"

#include "d9d/device/trace.h"

/* Round up the size of a staging buffer, to one of eight sizes for each power of two: rows of
 * ever-new lengths need few sizes. */
static uint64_t bytes_round_up(uint64_t bytes)
{
    uint64_t step = 1;

    while (bytes / step >= 16)
        step *= 2;
    return (bytes + step - 1) / step * step;
}

static uint64_t rank_bytes(const d9di_op_row_coll *m)
{
    return (uint64_t)m->rows.n * d9d_dtype_size(m->rows.t);
}

static d9d_stream compute_stream(const d9di_op_row_coll *m)
{
    return d9d_tape_device(m->tape)->stream;
}

/* Index of rank `rank` among the peers of `whose`. */
static uint64_t peer_index(int rank, int whose)
{
    return (uint64_t)(rank < whose ? rank : rank - 1);
}

d9d_status d9di_op_row_coll_init(d9di_op_row_coll *m, d9d_tape *t, d9di_op_row_coll_kind kind,
                                 const d9di_op_row_coll_args *r)
{
    const int ranks = d9d_comm_size(r->comm);
    uint64_t total;

    *m = (d9di_op_row_coll){.tape = t, .rows = *r};
    total = (uint64_t)(ranks - 1) * rank_bytes(m);
    if (ranks >= D9D_ADD_MAX_ARRAYS || total == 0)
        return D9D_OK;
    D9D_TRY(d9d_symm_buffer_reserve(r->comm, bytes_round_up(total)));
    m->uses_symm = d9d_symm_buffer_bytes(r->comm) >= total &&
                   d9d_symm_buffer_is_worthwhile(r->comm, rank_bytes(m));
    if (!m->uses_symm || kind == D9DI_ROW_ALL_GATHER)
        return D9D_OK;
    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), r->t, D9D_SHAPE(ranks - 1, r->n), &m->recv));
    return d9d_comm_wait_stream(r->comm, compute_stream(m));
}

void d9di_op_row_coll_release(d9di_op_row_coll *m)
{
    d9d_tensor_release(&m->recv);
}

/* Signal the peers on the group's stream, after the reads of an earlier transfer. */
static d9d_status peers_signal(const d9di_op_row_coll *m)
{
    d9d_comm *c = m->rows.comm;

    for (int i = 1; i < d9d_comm_size(c); i++)
        D9D_TRY(d9d_symm_buffer_signal(c, d9d_comm_stream(c), d9di_op_row_coll_next_rank(m, i)));
    return D9D_OK;
}

/* Fetch the peers' parts; a trace shows `name` meanwhile. */
static d9d_status parts_get(const d9di_op_row_coll *m, const char *name,
                            const d9d_symm_buffer_slice *parts)
{
    d9d_comm *c = m->rows.comm;
    d9d_device *dev = d9d_tape_device(m->tape);
    d9d_stream queue = d9d_comm_stream(c);

    if (queue != NULL)
        d9d_trace_stream_range_begin(dev, queue, name, m->rows.label);
    D9D_TRY(d9d_symm_buffer_get_on_signal(c, m->rows.label, parts, d9d_comm_size(c) - 1));
    if (queue != NULL)
        d9d_trace_stream_range_end(dev, queue);
    return D9D_OK;
}

/* Trace the wait; GEMMs of the parts come before the wait for the next part. */
static void trace_wait(const d9di_op_row_coll *m, bool waited)
{
    d9d_trace_mark(d9d_tape_device(m->tape), waited ? "wait" : "rows", waited ? "for rows" : "");
}

/* --- all-gather ------------------------------------------------------------------------------- */

static char *rank_rows_at(const d9di_op_row_coll *m, const void *all, int rank)
{
    return (char *)(uintptr_t)all + (uint64_t)rank * rank_bytes(m);
}

/* Read the peers' rows; the copy of this rank's own rows is last, because its next user has them
 * already. */
static d9d_status peers_get(const d9di_op_row_coll *m)
{
    d9d_comm *c = m->rows.comm;
    const int ranks = d9d_comm_size(c), me = d9d_comm_rank(c);
    d9d_symm_buffer_slice parts[D9D_ADD_MAX_ARRAYS];

    for (int i = 1; i < ranks; i++)
        parts[i - 1] = (d9d_symm_buffer_slice){
            .from = d9di_op_row_coll_next_rank(m, i),
            .dst = rank_rows_at(m, m->all, d9di_op_row_coll_next_rank(m, i)),
            .n = rank_bytes(m)};
    D9D_TRY(parts_get(m, "rows", parts));
    return d9d_symm_buffer_get(c, d9d_comm_stream(c), me, 0, rank_rows_at(m, m->all, me),
                               rank_bytes(m));
}

d9d_status d9di_op_all_gather_start(d9di_op_row_coll *m, void *all, const void *local)
{
    d9d_comm *c = m->rows.comm;

    m->all = all;
    m->local = local;
    if (!m->uses_symm)
        return D9D_OK;
    D9D_TRY(d9d_comm_wait_stream(c, compute_stream(m)));
    D9D_TRY(d9d_symm_buffer_put(c, d9d_comm_stream(c), 0, local, rank_bytes(m)));
    D9D_TRY(peers_signal(m));
    return peers_get(m);
}

d9d_status d9di_op_all_gather_wait_rank(const d9di_op_row_coll *m, int from, const void **rows)
{
    const bool own = from == d9d_comm_rank(m->rows.comm);

    *rows = own ? m->local : rank_rows_at(m, m->all, from);
    if (own)
        return D9D_OK;
    trace_wait(m, false);
    D9D_TRY(d9d_symm_buffer_wait(m->rows.comm, from, compute_stream(m)));
    trace_wait(m, true);
    return D9D_OK;
}

d9d_status d9di_op_all_gather_wait(const d9di_op_row_coll *m)
{
    const d9di_op_row_coll_args *r = &m->rows;

    trace_wait(m, false);
    D9D_TRY(m->uses_symm ? d9d_stream_wait_comm(r->comm, compute_stream(m))
                         : d9di_op_collective_even(m->tape, d9d_comm_all_gather, r->comm, r->label,
                                                   r->t, m->all, m->local, r->n));
    trace_wait(m, true);
    return D9D_OK;
}

/* --- reduce-scatter --------------------------------------------------------------------------- */

/* Offset in this rank's staging buffer. */
static uint64_t symm_offset(const d9di_op_row_coll *m, int to)
{
    return peer_index(to, d9d_comm_rank(m->rows.comm)) * rank_bytes(m);
}

void *d9di_op_reduce_scatter_dst(const d9di_op_row_coll *m, int to)
{
    return (char *)d9d_symm_buffer_local(m->rows.comm) + symm_offset(m, to);
}

d9d_status d9di_op_reduce_scatter_signal(const d9di_op_row_coll *m, int to)
{
    return d9d_symm_buffer_signal(m->rows.comm, compute_stream(m), to);
}

static char *recv_from(const d9di_op_row_coll *m, int rank)
{
    return (char *)d9d_tensor_data(&m->recv) +
           peer_index(rank, d9d_comm_rank(m->rows.comm)) * rank_bytes(m);
}

/* Each rank computes the part of the next rank first, so the part from the previous rank is ready
 * first. */
d9d_status d9di_op_reduce_scatter_get(const d9di_op_row_coll *m)
{
    const int ranks = d9d_comm_size(m->rows.comm), me = d9d_comm_rank(m->rows.comm);
    d9d_symm_buffer_slice parts[D9D_ADD_MAX_ARRAYS];

    for (int i = 1; i < ranks; i++) {
        const int from = d9di_op_row_coll_next_rank(m, ranks - i);

        parts[i - 1] = (d9d_symm_buffer_slice){.from = from,
                                               .offset = peer_index(me, from) * rank_bytes(m),
                                               .dst = recv_from(m, from),
                                               .n = rank_bytes(m)};
    }
    return parts_get(m, "sums", parts);
}

d9d_status d9di_op_reduce_scatter_start(const d9di_op_row_coll *m, const void *all)
{
    d9d_comm *c = m->rows.comm;

    if (!m->uses_symm)
        return D9D_OK;
    D9D_TRY(d9d_comm_wait_stream(c, compute_stream(m)));
    for (int i = 1; i < d9d_comm_size(c); i++)
        D9D_TRY(d9d_symm_buffer_put(
            c, d9d_comm_stream(c), symm_offset(m, d9di_op_row_coll_next_rank(m, i)),
            rank_rows_at(m, all, d9di_op_row_coll_next_rank(m, i)), rank_bytes(m)));
    D9D_TRY(peers_signal(m));
    return d9di_op_reduce_scatter_get(m);
}

static d9d_status sum_ordered(const d9di_op_row_coll *m, const void *local, const void *plus,
                              void *y)
{
    const int ranks = d9d_comm_size(m->rows.comm), me = d9d_comm_rank(m->rows.comm);
    const void *x[D9D_ADD_MAX_ARRAYS];

    for (int r = 0; r < ranks; r++)
        x[r] = r == me ? local : recv_from(m, r);
    x[ranks] = plus;
    return D9DI_KERNEL(m->tape, elementwise->add, m->rows.t, y, x, ranks + (plus != NULL ? 1 : 0),
                       m->rows.n);
}

static d9d_status reduce_scatter_rows(const d9di_op_row_coll *m, const void *all, void *y)
{
    const d9di_op_row_coll_args *r = &m->rows;

    return d9di_op_collective_even(m->tape, d9d_comm_reduce_scatter, r->comm, r->label, r->t, y,
                                   all, r->n);
}

d9d_status d9di_op_reduce_scatter_wait(const d9di_op_row_coll *m, const void *all, const void *plus,
                                       void *y)
{
    const void *const both[] = {y, plus};
    d9d_comm *c = m->rows.comm;

    trace_wait(m, false);
    D9D_TRY(m->uses_symm ? d9d_stream_wait_comm(c, compute_stream(m))
                         : reduce_scatter_rows(m, all, y));
    trace_wait(m, true);
    if (m->uses_symm)
        return sum_ordered(m, all == NULL ? y : rank_rows_at(m, all, d9d_comm_rank(c)), plus, y);
    return plus == NULL ? D9D_OK
                        : D9DI_KERNEL(m->tape, elementwise->add, m->rows.t, y, both, 2, m->rows.n);
}
