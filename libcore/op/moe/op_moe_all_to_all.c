/* op_moe_all_to_all.c - see op/moe/op_moe_all_to_all.h.
 *
 * A routing over ranks has n choices for each token; choice d is rank d.  So packing is its
 * permute, and the sum of the returned rows is the backward of that permute.
 */
#include "op/moe/op_moe_all_to_all.h"

#include <assert.h>

#include "d9d/device/trace.h"

enum { ALIGN = 256 }; /* bytes, of arrays in a staging buffer */

/* Row counts that are sent and received, and this rank's offsets in its peers' rows, by direction.
 */
static const struct direction_rows {
    d9di_op_moe_rows_kind from, to, at;
} directions[] = {
    [D9DI_MOE_DISPATCH] = {D9DI_MOE_SEND, D9DI_MOE_RECV, D9DI_MOE_SEND_OFFSET},
    [D9DI_MOE_COMBINE] = {D9DI_MOE_RECV, D9DI_MOE_SEND, D9DI_MOE_RECV_OFFSET},
};

int64_t d9di_op_moe_max_send_rows(int64_t tokens, int n, int64_t k)
{
    return tokens * (n < k ? n : k);
}

static int64_t rows_before(const int64_t *rows, int rank)
{
    int64_t sum = 0;

    for (int r = 0; r < rank; r++)
        sum += rows[r];
    return sum;
}

/* --- a transfer ------------------------------------------------------------------------------- */

uint64_t d9di_op_moe_transfer_bytes(const d9di_op_moe_transfer *l, int64_t rows)
{
    uint64_t sum = 0;

    for (int i = 0; i < l->n; i++)
        sum += (uint64_t)rows * d9di_op_moe_payload_row_bytes(&l->payload[i]) + ALIGN;
    return sum;
}

void d9di_op_moe_transfer_add(d9di_op_moe_transfer *l, d9d_comm *ep, d9d_dtype t, int64_t width)
{
    const uint64_t bytes = d9d_symm_buffer_bytes(ep);
    uint64_t row = 0, place = 0;

    l->ep = ep;
    l->payload[l->n++] = (d9di_op_moe_payload){.t = t, .width = width};
    for (int i = 0; i < l->n; i++)
        row += d9di_op_moe_payload_row_bytes(&l->payload[i]);
    assert(row > 0);
    l->max_rows = bytes == 0 ? -1 : (int64_t)((bytes - ALIGN * (uint64_t)l->n) / row);
    for (int i = 0; i < l->n; i++) {
        l->payload[i].offset = place;
        place += (uint64_t)(l->max_rows < 0 ? 0 : l->max_rows) *
                 d9di_op_moe_payload_row_bytes(&l->payload[i]);
        place = (place + ALIGN - 1) / ALIGN * ALIGN;
    }
}

d9d_status d9di_op_moe_transfer_alloc(d9di_op_moe_transfer *l, d9d_device *dev, int i, int64_t rows)
{
    d9di_op_moe_payload *c = &l->payload[i];

    if (rows <= l->max_rows) {
        c->src = (char *)d9d_symm_buffer_local(l->ep) + c->offset;
    } else {
        D9D_TRY(d9d_tensor_alloc(dev, c->t, D9D_SHAPE(rows, c->width), &c->packed));
        c->src = d9d_tensor_data(&c->packed);
    }
    c->local = c->src;
    return D9D_OK;
}

void d9di_op_moe_transfer_release(d9di_op_moe_transfer *l)
{
    for (int i = 0; i < l->n; i++) {
        d9d_tensor_release(&l->payload[i].packed);
        d9d_tensor_release(&l->payload[i].result);
    }
    d9d_comm_event_free(l->ep, l->first_event);
    d9d_comm_event_free(l->ep, l->last_event);
    l->first_event = l->last_event = NULL;
}

/* --- in flight -------------------------------------------------------------------------------- */

/* Read from the peers' staging buffers.  Each rank begins with its next neighbour, so that no two
 * read from one peer at the same time. */
static d9d_status peers_get(const d9di_op_moe_payload *c, d9d_stream s,
                            const d9d_op_moe_exchange *e,
                            const struct direction_rows *direction_rows)
{
    const int64_t *to = d9di_op_moe_rows(e, direction_rows->to),
                  *at = d9di_op_moe_rows(e, direction_rows->at);
    const int n = d9d_comm_size(e->ep), me = d9d_comm_rank(e->ep);
    const uint64_t row = d9di_op_moe_payload_row_bytes(c);

    for (int k = 1; k < n; k++) {
        const int r = (me + k) % n;

        D9D_TRY(d9d_symm_buffer_get(e->ep, s, r, c->offset + (uint64_t)at[r] * row,
                                    (char *)c->dst + (uint64_t)rows_before(to, r) * row,
                                    (uint64_t)to[r] * row));
    }
    return D9D_OK;
}

static d9d_status local_copy(const d9di_op_moe_payload *c, d9d_device *dev,
                             const d9d_op_moe_exchange *e,
                             const struct direction_rows *direction_rows)
{
    const int64_t *from = d9di_op_moe_rows(e, direction_rows->from),
                  *to = d9di_op_moe_rows(e, direction_rows->to);
    const int me = d9d_comm_rank(e->ep);
    const uint64_t row = d9di_op_moe_payload_row_bytes(c);

    return d9d_device_copy(dev, (char *)c->dst + (uint64_t)rows_before(to, me) * row,
                           (const char *)c->local + (uint64_t)rows_before(from, me) * row,
                           (uint64_t)to[me] * row);
}

/* One array after the other: the first arrays do not share a copy engine with the rest. */
static d9d_status start_symm(d9di_op_moe_transfer *l, d9d_device *dev, d9d_op_moe_exchange *e,
                             const struct direction_rows *direction_rows)
{
    D9D_TRY(d9d_symm_buffer_barrier(e->ep, e->label));
    for (int i = 0; i < l->n; i++) {
        D9D_TRY(peers_get(&l->payload[i], d9d_comm_stream(e->ep), e, direction_rows));
        if (l->two_waits && i == l->n - 2)
            D9D_TRY(d9d_comm_event_record(e->ep, &l->first_event));
    }
    for (int i = 0; i < l->n; i++)
        D9D_TRY(local_copy(&l->payload[i], dev, e, direction_rows));
    return D9D_OK;
}

/* Convert n row counts to element counts. */
static const int64_t *counts_in_elements(int64_t *out, const int64_t *rows, int n, int64_t width)
{
    for (int i = 0; i < n; i++)
        out[i] = rows[i] * width;
    return out;
}

static d9d_status all_to_all_rows(const d9di_op_moe_payload *c, d9d_stream s,
                                  d9d_op_moe_exchange *e,
                                  const struct direction_rows *direction_rows)
{
    const int n = d9d_comm_size(e->ep);
    int64_t *scratch = e->rows + (int)D9DI_MOE_ROWS_COUNT * n;
    const int64_t *recv =
        counts_in_elements(scratch, d9di_op_moe_rows(e, direction_rows->to), n, c->width);
    const int64_t *out =
        counts_in_elements(scratch + n, d9di_op_moe_rows(e, direction_rows->from), n, c->width);

    return d9d_comm_all_to_all(e->ep, s, e->label, c->t, c->dst, recv, c->src, out);
}

static d9d_status start_all_to_all(d9di_op_moe_transfer *l, d9d_device *dev, d9d_op_moe_exchange *e,
                                   const struct direction_rows *direction_rows)
{
    d9d_stream queue = d9d_comm_stream(e->ep);
    d9d_status st = D9D_OK, ended;

    D9D_TRY(d9d_comm_group_start(e->ep));
    for (int i = 0; i < l->n && st == D9D_OK; i++)
        st =
            all_to_all_rows(&l->payload[i], queue != NULL ? queue : dev->stream, e, direction_rows);
    ended = d9d_comm_group_end(e->ep);
    D9D_TRY(st != D9D_OK ? st : ended);
    return l->two_waits ? d9d_comm_event_record(e->ep, &l->first_event) : D9D_OK;
}

d9d_status d9di_op_moe_transfer_start(d9di_op_moe_transfer *l, d9d_tape *t, d9d_op_moe_exchange *e,
                                      d9di_op_moe_direction way, int64_t max_rows)
{
    d9d_device *dev = d9d_tape_device(t);
    d9d_stream queue = d9d_comm_stream(e->ep);

    l->overlaps = dev->on_wait != NULL && !d9d_symm_buffer_agreed(e->ep);
    assert(!l->overlaps || l->max_rows < 0);
    D9D_TRY(d9d_comm_wait_stream(e->ep, dev->stream));
    if (queue != NULL)
        d9d_trace_stream_range_begin(dev, queue, "all_to_all", e->label);
    D9D_TRY((max_rows <= l->max_rows ? start_symm : start_all_to_all)(l, dev, e, &directions[way]));
    if (queue != NULL)
        d9d_trace_stream_range_end(dev, queue);
    return l->overlaps ? d9d_comm_event_record(e->ep, &l->last_event) : D9D_OK;
}

d9d_status d9di_op_moe_transfer_wait_first(const d9di_op_moe_transfer *l, d9d_tape *t)
{
    return d9d_stream_wait_event(l->ep, l->first_event, d9d_tape_device(t)->stream);
}

d9d_status d9di_op_moe_transfer_wait(const d9di_op_moe_transfer *l, d9d_tape *t)
{
    d9d_device *dev = d9d_tape_device(t);

    if (l->overlaps)
        D9D_TRY(dev->on_wait(dev->on_wait_arg));
    D9D_TRY(l->overlaps ? d9d_stream_wait_event(l->ep, l->last_event, dev->stream)
                        : d9d_stream_wait_comm(l->ep, dev->stream));
    d9d_trace_mark(dev, "MoE", "all_to_all");
    return D9D_OK;
}

/* --- dispatch: rows, and gradients of combined rows ------------------------------------------ */

static d9d_status dispatch_rows(d9di_op_moe_transfer *l, d9d_tape *t, d9d_op_moe_exchange *e,
                                const d9d_tensor *row, const d9d_tensor *x, const d9d_tensor *y)
{
    const d9d_moe_permute_dims dims = {x->dtype, x->shape.dim[0], d9d_comm_size(e->ep), e->send,
                                       x->shape.dim[1]};

    D9D_TRY(d9di_op_moe_transfer_alloc(l, d9d_tape_device(t), 0,
                                       e->max_rows <= l->max_rows ? 0 : e->send));
    D9D_TRY(D9DI_KERNEL(t, moe->permute, &dims, l->payload[0].src, d9d_tensor_data(x),
                        d9d_tensor_data(row)));
    d9d_trace_mark(d9d_tape_device(t), "MoE", "pack");
    l->payload[0].dst = d9d_tensor_data(y);
    D9D_TRY(d9di_op_moe_transfer_start(l, t, e, D9DI_MOE_DISPATCH, e->max_rows));
    D9D_TRY(d9d_tape_run_deferred(t));
    return d9di_op_moe_transfer_wait(l, t);
}

d9d_status d9di_op_moe_dispatch_rows(d9d_tape *t, d9d_op_moe_exchange *e, const d9d_tensor *row,
                                     const d9d_tensor *x, const d9d_tensor *y)
{
    d9di_op_moe_transfer l = {0};
    d9d_status st;

    d9di_op_moe_transfer_add(&l, e->ep, x->dtype, x->shape.dim[1]);
    st = dispatch_rows(&l, t, e, row, x, y);
    d9di_op_moe_transfer_release(&l);
    return st;
}

/* --- combine, and the sums over ranks -------------------------------------------------------- */

/* Copy what peers read, to the same rows of this rank's staging buffer. */
static d9d_status peers_stage(const d9di_op_moe_payload *c, d9d_device *dev,
                              const d9d_op_moe_exchange *e)
{
    const int64_t *came = d9di_op_moe_rows(e, D9DI_MOE_RECV);
    const int me = d9d_comm_rank(e->ep);
    const uint64_t row = d9di_op_moe_payload_row_bytes(c),
                   before = (uint64_t)rows_before(came, me) * row;
    const uint64_t behind = before + (uint64_t)came[me] * row;

    D9D_TRY(d9d_device_copy(dev, c->src, c->local, before));
    return d9d_device_copy(dev, (char *)c->src + behind, (const char *)c->local + behind,
                           (uint64_t)e->recv * row - behind);
}

static d9d_status combine_stage(d9di_op_moe_transfer *l, d9d_device *dev,
                                const d9d_op_moe_exchange *e, int i, const d9d_tensor *x)
{
    d9di_op_moe_payload *c = &l->payload[i];

    D9D_TRY(d9d_tensor_alloc(dev, x->dtype, D9D_SHAPE(e->send, c->width), &c->result));
    c->dst = d9d_tensor_data(&c->result);
    c->local = c->src = d9d_tensor_data(x);
    if (e->max_rows > l->max_rows)
        return D9D_OK;
    c->src = (char *)d9d_symm_buffer_local(l->ep) + c->offset;
    return peers_stage(c, dev, e);
}

d9d_status d9di_op_moe_combine_start(d9di_op_moe_transfer *l, d9d_tape *t, d9d_op_moe_exchange *e,
                                     const d9d_tensor *const *x, int n)
{
    for (int i = 0; i < n; i++)
        d9di_op_moe_transfer_add(l, e->ep, x[i]->dtype, x[i]->shape.dim[1]);
    for (int i = 0; i < n; i++)
        D9D_TRY(combine_stage(l, d9d_tape_device(t), e, i, x[i]));
    d9d_trace_mark(d9d_tape_device(t), "MoE", "pack");
    return d9di_op_moe_transfer_start(l, t, e, D9DI_MOE_COMBINE, e->max_rows);
}

d9d_status d9di_op_moe_combine_sum(const d9di_op_moe_transfer *l, d9d_tape *t,
                                   const d9d_op_moe_exchange *e, const d9d_tensor *row, int i,
                                   const d9d_tensor *y)
{
    const d9di_op_moe_payload *c = &l->payload[i];
    const d9d_moe_permute_dims dims = {c->t, row->shape.dim[0], row->shape.dim[1], e->send,
                                       c->width};

    return D9DI_KERNEL(t, moe->permute_bwd, &dims, d9d_tensor_data(y), c->dst,
                       d9d_tensor_data(row));
}
