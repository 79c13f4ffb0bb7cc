/* op_moe_all_to_all.c - see op/moe/op_moe_all_to_all.h.
 *
 * A routing over ranks is one of n choices a token, choice d of rank d: packing is its permute, and
 * the sum of what comes back is that one's backward.
 */
#include "op/moe/op_moe_all_to_all.h"

#include <assert.h>

#include "d9d/device/trace.h"

enum { ALIGN = 256 }; /* of arrays in a room */

/* The rows that go, those that come, and where those for this rank begin at the others. */
static const struct leg {
    d9di_rows_kind from, to, at;
} legs[] = {
    [D9DI_THERE] = {D9DI_SENT, D9DI_CAME, D9DI_IN_SENT},
    [D9DI_BACK] = {D9DI_CAME, D9DI_SENT, D9DI_IN_CAME},
};

int64_t d9di_exchange_room(int64_t tokens, int n, int64_t k)
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

/* --- a load --------------------------------------------------------------------------------- */

uint64_t d9di_load_bytes(const d9di_load *l, int64_t rows)
{
    uint64_t sum = 0;

    for (int i = 0; i < l->n; i++)
        sum += (uint64_t)rows * d9di_cargo_row(&l->cargo[i]) + ALIGN;
    return sum;
}

void d9di_load_add(d9di_load *l, d9d_comm *ep, d9d_dtype t, int64_t width)
{
    const uint64_t bytes = d9d_comm_room_bytes(ep);
    uint64_t row = 0, place = 0;

    l->ep = ep;
    l->cargo[l->n++] = (d9di_cargo){.t = t, .width = width};
    for (int i = 0; i < l->n; i++)
        row += d9di_cargo_row(&l->cargo[i]);
    assert(row > 0);
    l->fits = bytes == 0 ? -1 : (int64_t)((bytes - ALIGN * (uint64_t)l->n) / row);
    for (int i = 0; i < l->n; i++) {
        l->cargo[i].place = place;
        place += (uint64_t)(l->fits < 0 ? 0 : l->fits) * d9di_cargo_row(&l->cargo[i]);
        place = (place + ALIGN - 1) / ALIGN * ALIGN;
    }
}

d9d_status d9di_load_make(d9di_load *l, d9d_device *dev, int i, int64_t rows)
{
    d9di_cargo *c = &l->cargo[i];

    if (rows <= l->fits) {
        c->src = (char *)d9d_comm_room(l->ep) + c->place;
    } else {
        D9D_TRY(d9d_tensor_alloc(dev, c->t, D9D_SHAPE(rows, c->width), &c->packed));
        c->src = d9d_tensor_data(&c->packed);
    }
    c->mine = c->src;
    return D9D_OK;
}

void d9di_load_release(d9di_load *l)
{
    for (int i = 0; i < l->n; i++) {
        d9d_tensor_release(&l->cargo[i].packed);
        d9d_tensor_release(&l->cargo[i].result);
    }
    d9d_comm_point_free(l->ep, l->early);
    d9d_comm_point_free(l->ep, l->late);
    l->early = l->late = NULL;
}

/* --- moving it -------------------------------------------------------------------------------- */

/* From the others' rooms; each rank begins with its neighbour, so that no two take from one. */
static d9d_status take(const d9di_cargo *c, d9d_stream s, const d9d_exchange *e,
                       const struct leg *leg)
{
    const int64_t *to = d9di_rows_of(e, leg->to), *at = d9di_rows_of(e, leg->at);
    const int n = d9d_comm_size(e->ep), me = d9d_comm_rank(e->ep);
    const uint64_t row = d9di_cargo_row(c);

    for (int k = 1; k < n; k++) {
        const int r = (me + k) % n;

        D9D_TRY(d9d_comm_room_take(e->ep, s, r, c->place + (uint64_t)at[r] * row,
                                   (char *)c->dst + (uint64_t)rows_before(to, r) * row,
                                   (uint64_t)to[r] * row));
    }
    return D9D_OK;
}

static d9d_status keep_mine(const d9di_cargo *c, d9d_device *dev, const d9d_exchange *e,
                            const struct leg *leg)
{
    const int64_t *from = d9di_rows_of(e, leg->from), *to = d9di_rows_of(e, leg->to);
    const int me = d9d_comm_rank(e->ep);
    const uint64_t row = d9di_cargo_row(c);

    return d9d_device_copy(dev, (char *)c->dst + (uint64_t)rows_before(to, me) * row,
                           (const char *)c->mine + (uint64_t)rows_before(from, me) * row,
                           (uint64_t)to[me] * row);
}

/* One array behind the other: in parts, what is needed first does not share an engine with the
 * rest. */
static d9d_status go_by_room(d9di_load *l, d9d_device *dev, d9d_exchange *e, const struct leg *leg)
{
    D9D_TRY(d9d_comm_room_open(e->ep, e->what));
    for (int i = 0; i < l->n; i++) {
        D9D_TRY(take(&l->cargo[i], d9d_comm_queue(e->ep), e, leg));
        if (l->in_parts && i == l->n - 2)
            D9D_TRY(d9d_comm_point_set(e->ep, &l->early));
    }
    for (int i = 0; i < l->n; i++)
        D9D_TRY(keep_mine(&l->cargo[i], dev, e, leg));
    return D9D_OK;
}

/* n counts of rows as counts of elements. */
static const int64_t *elements(int64_t *out, const int64_t *rows, int n, int64_t width)
{
    for (int i = 0; i < n; i++)
        out[i] = rows[i] * width;
    return out;
}

static d9d_status send(const d9di_cargo *c, d9d_stream s, d9d_exchange *e, const struct leg *leg)
{
    const int n = d9d_comm_size(e->ep);
    int64_t *scratch = e->rows + (int)D9DI_ROWS * n;
    const int64_t *recv = elements(scratch, d9di_rows_of(e, leg->to), n, c->width);
    const int64_t *out = elements(scratch + n, d9di_rows_of(e, leg->from), n, c->width);

    return d9d_comm_all_to_all(e->ep, s, e->what, c->t, c->dst, recv, c->src, out);
}

static d9d_status go_by_message(d9di_load *l, d9d_device *dev, d9d_exchange *e,
                                const struct leg *leg)
{
    d9d_stream queue = d9d_comm_queue(e->ep);
    d9d_status st = D9D_OK, ended;

    D9D_TRY(d9d_comm_begin(e->ep));
    for (int i = 0; i < l->n && st == D9D_OK; i++)
        st = send(&l->cargo[i], queue != NULL ? queue : dev->stream, e, leg);
    ended = d9d_comm_end(e->ep);
    D9D_TRY(st != D9D_OK ? st : ended);
    return l->in_parts ? d9d_comm_point_set(e->ep, &l->early) : D9D_OK;
}

d9d_status d9di_load_go(d9di_load *l, d9d_tape *t, d9d_exchange *e, d9di_way way, int64_t most)
{
    d9d_device *dev = d9d_tape_device(t);
    d9d_stream queue = d9d_comm_queue(e->ep);

    l->shares = dev->pause != NULL && !d9d_comm_rooms_agreed(e->ep);
    assert(!l->shares || l->fits < 0);
    D9D_TRY(d9d_comm_fork(e->ep, dev->stream));
    if (queue != NULL)
        d9d_trace_beside(dev, queue, "experts", e->what);
    D9D_TRY((most <= l->fits ? go_by_room : go_by_message)(l, dev, e, &legs[way]));
    if (queue != NULL)
        d9d_trace_beside_end(dev, queue);
    return l->shares ? d9d_comm_point_set(e->ep, &l->late) : D9D_OK;
}

d9d_status d9di_load_early(const d9di_load *l, d9d_tape *t)
{
    return d9d_comm_join_at(l->ep, l->early, d9d_tape_device(t)->stream);
}

d9d_status d9di_load_end(const d9di_load *l, d9d_tape *t)
{
    d9d_device *dev = d9d_tape_device(t);

    if (l->shares)
        D9D_TRY(dev->pause(dev->pause_arg));
    D9D_TRY(l->shares ? d9d_comm_join_at(l->ep, l->late, dev->stream)
                      : d9d_comm_join(l->ep, dev->stream));
    d9d_trace_lap(dev, "experts", "move");
    return D9D_OK;
}

/* --- there: the gradient of parts ---------------------------------------------------------- */

static d9d_status spread(d9di_load *l, d9d_tape *t, d9d_exchange *e, const d9d_tensor *row,
                         const d9d_tensor *x, const d9d_tensor *y)
{
    const d9d_permute_dims dims = {x->dtype, x->shape.dim[0], d9d_comm_size(e->ep), e->sent,
                                   x->shape.dim[1]};

    D9D_TRY(d9di_load_make(l, d9d_tape_device(t), 0, e->most <= l->fits ? 0 : e->sent));
    D9D_TRY(
        D9DI_KERNEL(t, permute, &dims, l->cargo[0].src, d9d_tensor_data(x), d9d_tensor_data(row)));
    d9d_trace_lap(d9d_tape_device(t), "experts", "pack");
    l->cargo[0].dst = d9d_tensor_data(y);
    D9D_TRY(d9di_load_go(l, t, e, D9DI_THERE, e->most));
    D9D_TRY(d9d_tape_catch_up(t));
    return d9di_load_end(l, t);
}

d9d_status d9di_exchange_spread(d9d_tape *t, d9d_exchange *e, const d9d_tensor *row,
                                const d9d_tensor *x, const d9d_tensor *y)
{
    d9di_load l = {0};
    d9d_status st;

    d9di_load_add(&l, e->ep, x->dtype, x->shape.dim[1]);
    st = spread(&l, t, e, row, x, y);
    d9di_load_release(&l);
    return st;
}

/* --- back, and their sums ----------------------------------------------------------------------
 */

/* What others take, at the same rows of this rank's room. */
static d9d_status put_theirs(const d9di_cargo *c, d9d_device *dev, const d9d_exchange *e)
{
    const int64_t *came = d9di_rows_of(e, D9DI_CAME);
    const int me = d9d_comm_rank(e->ep);
    const uint64_t row = d9di_cargo_row(c), before = (uint64_t)rows_before(came, me) * row;
    const uint64_t behind = before + (uint64_t)came[me] * row;

    D9D_TRY(d9d_device_copy(dev, c->src, c->mine, before));
    return d9d_device_copy(dev, (char *)c->src + behind, (const char *)c->mine + behind,
                           (uint64_t)e->came * row - behind);
}

static d9d_status bring(d9di_load *l, d9d_device *dev, const d9d_exchange *e, int i,
                        const d9d_tensor *x)
{
    d9di_cargo *c = &l->cargo[i];

    D9D_TRY(d9d_tensor_alloc(dev, x->dtype, D9D_SHAPE(e->sent, c->width), &c->result));
    c->dst = d9d_tensor_data(&c->result);
    c->mine = c->src = d9d_tensor_data(x);
    if (e->most > l->fits)
        return D9D_OK;
    c->src = (char *)d9d_comm_room(l->ep) + c->place;
    return put_theirs(c, dev, e);
}

d9d_status d9di_collect_go(d9di_load *l, d9d_tape *t, d9d_exchange *e, const d9d_tensor *const *x,
                           int n)
{
    for (int i = 0; i < n; i++)
        d9di_load_add(l, e->ep, x[i]->dtype, x[i]->shape.dim[1]);
    for (int i = 0; i < n; i++)
        D9D_TRY(bring(l, d9d_tape_device(t), e, i, x[i]));
    d9d_trace_lap(d9d_tape_device(t), "experts", "pack");
    return d9di_load_go(l, t, e, D9DI_BACK, e->most);
}

d9d_status d9di_collect_sum(const d9di_load *l, d9d_tape *t, const d9d_exchange *e,
                            const d9d_tensor *row, int i, const d9d_tensor *y)
{
    const d9di_cargo *c = &l->cargo[i];
    const d9d_permute_dims dims = {c->t, row->shape.dim[0], row->shape.dim[1], e->sent, c->width};

    return D9DI_KERNEL(t, permute_din, &dims, d9d_tensor_data(y), c->dst, d9d_tensor_data(row));
}
