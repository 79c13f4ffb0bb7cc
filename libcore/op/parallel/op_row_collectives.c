/* op_row_collectives.c - see op/parallel/op_row_collectives.h. */
#include "op/parallel/op_row_collectives.h"

#include "d9d/device/trace.h"

/* Sizes of rooms, eight to an octave: rows of ever-new lengths make few of them. */
static uint64_t stepped(uint64_t bytes)
{
    uint64_t step = 1;

    while (bytes / step >= 16)
        step *= 2;
    return (bytes + step - 1) / step * step;
}

static uint64_t bytes_of(const d9di_move *m)
{
    return (uint64_t)m->rows.n * d9d_dtype_size(m->rows.t);
}

static d9d_stream stream_of(const d9di_move *m)
{
    return d9d_tape_device(m->tape)->stream;
}

/* Which part of `whose` array without its own rank's is that of `rank`. */
static uint64_t part_of(int rank, int whose)
{
    return (uint64_t)(rank < whose ? rank : rank - 1);
}

d9d_status d9di_move_begin(d9di_move *m, d9d_tape *t, d9di_move_kind kind, const d9di_move_rows *r)
{
    const int ranks = d9d_comm_size(r->comm);
    uint64_t room;

    *m = (d9di_move){.tape = t, .rows = *r};
    room = (uint64_t)(ranks - 1) * bytes_of(m);
    if (ranks >= D9D_ADDENDS || room == 0)
        return D9D_OK;
    D9D_TRY(d9d_comm_rooms_want(r->comm, stepped(room)));
    m->by_room = d9d_comm_room_bytes(r->comm) >= room && d9d_comm_rooms_suit(r->comm, bytes_of(m));
    if (!m->by_room || kind == D9DI_GATHER)
        return D9D_OK;
    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), r->t, D9D_SHAPE(ranks - 1, r->n), &m->came));
    return d9d_comm_fork(r->comm, stream_of(m));
}

void d9di_move_release(d9di_move *m)
{
    d9d_tensor_release(&m->came);
}

/* On the group's queue, behind what an earlier move takes. */
static d9d_status tell_all(const d9di_move *m)
{
    d9d_comm *c = m->rows.comm;

    for (int i = 1; i < d9d_comm_size(c); i++)
        D9D_TRY(d9d_comm_room_tell(c, d9d_comm_queue(c), d9di_move_behind(m, i)));
    return D9D_OK;
}

/* Shown in a trace while parts are taken. */
static d9d_status take_each(const d9di_move *m, const char *name, const d9d_room_part *parts)
{
    d9d_comm *c = m->rows.comm;
    d9d_device *dev = d9d_tape_device(m->tape);
    d9d_stream queue = d9d_comm_queue(c);

    if (queue != NULL)
        d9d_trace_beside(dev, queue, name, m->rows.what);
    D9D_TRY(d9d_comm_room_take_each(c, m->rows.what, parts, d9d_comm_size(c) - 1));
    if (queue != NULL)
        d9d_trace_beside_end(dev, queue);
    return D9D_OK;
}

/* Products of parts come before what waits for the next. */
static void lap(const d9di_move *m, bool waited)
{
    d9d_trace_lap(d9d_tape_device(m->tape), waited ? "wait" : "rows", waited ? "for rows" : "");
}

/* --- gather --------------------------------------------------------------------------------- */

static char *row_at(const d9di_move *m, const void *all, int rank)
{
    return (char *)(uintptr_t)all + (uint64_t)rank * bytes_of(m);
}

/* Those of this rank come last: who needs them soon has them. */
static d9d_status take_rows(const d9di_move *m)
{
    d9d_comm *c = m->rows.comm;
    const int ranks = d9d_comm_size(c), me = d9d_comm_rank(c);
    d9d_room_part parts[D9D_ADDENDS];

    for (int i = 1; i < ranks; i++)
        parts[i - 1] = (d9d_room_part){.from = d9di_move_behind(m, i),
                                       .dst = row_at(m, m->all, d9di_move_behind(m, i)),
                                       .n = bytes_of(m)};
    D9D_TRY(take_each(m, "rows", parts));
    return d9d_comm_room_take(c, d9d_comm_queue(c), me, 0, row_at(m, m->all, me), bytes_of(m));
}

d9d_status d9di_gather_go(d9di_move *m, void *all, const void *mine)
{
    d9d_comm *c = m->rows.comm;

    m->all = all;
    m->mine = mine;
    if (!m->by_room)
        return D9D_OK;
    D9D_TRY(d9d_comm_fork(c, stream_of(m)));
    D9D_TRY(d9d_comm_room_put(c, d9d_comm_queue(c), 0, mine, bytes_of(m)));
    D9D_TRY(tell_all(m));
    return take_rows(m);
}

d9d_status d9di_gather_join(const d9di_move *m, int from, const void **rows)
{
    const bool own = from == d9d_comm_rank(m->rows.comm);

    *rows = own ? m->mine : row_at(m, m->all, from);
    if (own)
        return D9D_OK;
    lap(m, false);
    D9D_TRY(d9d_comm_room_join(m->rows.comm, from, stream_of(m)));
    lap(m, true);
    return D9D_OK;
}

d9d_status d9di_gather_end(const d9di_move *m)
{
    const d9di_move_rows *r = &m->rows;

    lap(m, false);
    D9D_TRY(m->by_room ? d9d_comm_join(r->comm, stream_of(m))
                       : d9di_transfer_even(m->tape, d9d_comm_all_gather, r->comm, r->what, r->t,
                                            m->all, m->mine, r->n));
    lap(m, true);
    return D9D_OK;
}

/* --- sum ------------------------------------------------------------------------------------ */

/* In this rank's room. */
static uint64_t place_of(const d9di_move *m, int to)
{
    return part_of(to, d9d_comm_rank(m->rows.comm)) * bytes_of(m);
}

void *d9di_sum_place(const d9di_move *m, int to)
{
    return (char *)d9d_comm_room(m->rows.comm) + place_of(m, to);
}

d9d_status d9di_sum_tell(const d9di_move *m, int to)
{
    return d9d_comm_room_tell(m->rows.comm, stream_of(m), to);
}

static char *came_from(const d9di_move *m, int rank)
{
    return (char *)d9d_tensor_data(&m->came) +
           part_of(rank, d9d_comm_rank(m->rows.comm)) * bytes_of(m);
}

/* Each rank makes the part of the one behind it first, so that of the one before this is there
 * first. */
d9d_status d9di_sum_take(const d9di_move *m)
{
    const int ranks = d9d_comm_size(m->rows.comm), me = d9d_comm_rank(m->rows.comm);
    d9d_room_part parts[D9D_ADDENDS];

    for (int i = 1; i < ranks; i++) {
        const int from = d9di_move_behind(m, ranks - i);

        parts[i - 1] = (d9d_room_part){.from = from,
                                       .offset = part_of(me, from) * bytes_of(m),
                                       .dst = came_from(m, from),
                                       .n = bytes_of(m)};
    }
    return take_each(m, "sums", parts);
}

d9d_status d9di_sum_go(const d9di_move *m, const void *all)
{
    d9d_comm *c = m->rows.comm;

    if (!m->by_room)
        return D9D_OK;
    D9D_TRY(d9d_comm_fork(c, stream_of(m)));
    for (int i = 1; i < d9d_comm_size(c); i++)
        D9D_TRY(d9d_comm_room_put(c, d9d_comm_queue(c), place_of(m, d9di_move_behind(m, i)),
                                  row_at(m, all, d9di_move_behind(m, i)), bytes_of(m)));
    D9D_TRY(tell_all(m));
    return d9di_sum_take(m);
}

static d9d_status add_up(const d9di_move *m, const void *mine, const void *plus, void *y)
{
    const int ranks = d9d_comm_size(m->rows.comm), me = d9d_comm_rank(m->rows.comm);
    const void *x[D9D_ADDENDS];

    for (int r = 0; r < ranks; r++)
        x[r] = r == me ? mine : came_from(m, r);
    x[ranks] = plus;
    return D9DI_KERNEL(m->tape, add, m->rows.t, y, x, ranks + (plus != NULL ? 1 : 0), m->rows.n);
}

static d9d_status scatter(const d9di_move *m, const void *all, void *y)
{
    const d9di_move_rows *r = &m->rows;

    return d9di_transfer_even(m->tape, d9d_comm_reduce_scatter, r->comm, r->what, r->t, y, all,
                              r->n);
}

d9d_status d9di_sum_end(const d9di_move *m, const void *all, const void *plus, void *y)
{
    const void *const both[] = {y, plus};
    d9d_comm *c = m->rows.comm;

    lap(m, false);
    D9D_TRY(m->by_room ? d9d_comm_join(c, stream_of(m)) : scatter(m, all, y));
    lap(m, true);
    if (m->by_room)
        return add_up(m, all == NULL ? y : row_at(m, all, d9d_comm_rank(c)), plus, y);
    return plus == NULL ? D9D_OK : D9DI_KERNEL(m->tape, add, m->rows.t, y, both, 2, m->rows.n);
}
