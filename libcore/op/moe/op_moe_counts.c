/* op_moe_counts.c - how many rows go from rank to rank.  See op/moe/op_moe_all_to_all.h. */
#include <stdlib.h>

#include "d9d/device/trace.h"
#include "op/moe/op_moe_all_to_all.h"

/* What was gathered, on the host: of each rank its offsets over ranks, then over experts. */
typedef struct offsets {
    int n, me;
    int64_t experts;
    const int32_t *all; /* [n, n + 1 + E + 1] */
} offsets;

static const int32_t *offsets_of(const offsets *o, int rank)
{
    return o->all + rank * (o->n + 1 + o->experts + 1);
}

static int64_t rows_between(const offsets *o, int from, int to)
{
    const int32_t *at = offsets_of(o, from) + to;

    return (int64_t)at[1] - at[0];
}

static int64_t rows_to(const offsets *o, int to)
{
    int64_t sum = 0;

    for (int from = 0; from < o->n; from++)
        sum += rows_between(o, from, to);
    return sum;
}

/* Where in what `from` sends the rows for `to` begin; where in what has come to `to` those of
 * `from` do. */
static int64_t begins_in_sent(const offsets *o, int from, int to)
{
    return offsets_of(o, from)[to];
}
static int64_t begins_in_came(const offsets *o, int from, int to)
{
    int64_t sum = 0;

    for (int r = 0; r < from; r++)
        sum += rows_between(o, r, to);
    return sum;
}

static int64_t choices_here(const offsets *o)
{
    const int64_t per = o->experts / o->n;
    int64_t sum = 0;

    for (int from = 0; from < o->n; from++) {
        const int32_t *at = offsets_of(o, from) + o->n + 1 + o->me * per;

        sum += (int64_t)at[per] - at[0];
    }
    return sum;
}

/* c->all becomes what every rank has, one behind the other: on the group's own queue, so that the
 * device goes on beside it, and behind rows of something else that are on their way. */
static d9d_status gather(const d9di_counts *c, d9d_device *dev)
{
    const int n = d9d_comm_size(c->ep);
    d9d_stream queue = d9d_comm_queue(c->ep);
    int64_t *counts = calloc((size_t)n, sizeof(*counts));
    d9d_status st;

    if (counts == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a dispatch to %d ranks", n);
    for (int i = 0; i < n; i++)
        counts[i] = d9d_tensor_numel(&c->mine);
    st = d9d_comm_fork(c->ep, dev->stream);
    d9d_trace_beside(dev, queue, "counts", c->what);
    if (st == D9D_OK)
        st = d9d_comm_all_gather(c->ep, queue != NULL ? queue : dev->stream, c->what, D9D_I32,
                                 d9d_tensor_data(&c->all), d9d_tensor_data(&c->mine), counts);
    d9d_trace_beside_end(dev, queue);
    free(counts);
    return st;
}

/* Two arrays of int32 as one. */
static d9d_status join(d9d_device *dev, const d9d_tensor *a, const d9d_tensor *b, d9d_tensor *out)
{
    const int64_t n = d9d_tensor_numel(a);

    D9D_TRY(d9d_tensor_alloc(dev, D9D_I32, D9D_SHAPE(n + d9d_tensor_numel(b)), out));
    D9D_TRY(d9d_device_copy(dev, d9d_tensor_data(out), d9d_tensor_data(a), d9d_tensor_bytes(a)));
    return d9d_device_copy(dev, (int32_t *)d9d_tensor_data(out) + n, d9d_tensor_data(b),
                           d9d_tensor_bytes(b));
}

d9d_status d9di_counts_begin(d9di_counts *c, d9d_tape *t, d9d_comm *ep, const char *what,
                             const d9d_routing *over_ranks, const d9d_routing *over_experts)
{
    d9d_device *dev = d9d_tape_device(t);

    *c = (d9di_counts){.ep = ep,
                       .what = what,
                       .experts = d9d_tensor_numel(&over_experts->offset) - 1,
                       .k = over_experts->expert.shape.dim[1]};
    D9D_TRY(join(dev, &over_ranks->offset, &over_experts->offset, &c->mine));
    D9D_TRY(d9d_tensor_alloc(dev, D9D_I32, D9D_SHAPE(d9d_comm_size(ep), d9d_tensor_numel(&c->mine)),
                             &c->all));
    D9D_TRY(gather(c, dev));
    D9D_TRY(d9d_readback_create(dev, d9d_tensor_bytes(&c->all), &c->back));
    return d9d_readback_begin_on(c->back, d9d_tensor_data(&c->all), d9d_comm_queue(ep));
}

static d9d_status check(const offsets *o, int64_t k)
{
    for (int to = 0; to < o->n; to++)
        if (rows_to(o, to) > INT32_MAX / k)
            return D9D_FAIL(D9D_EINVAL,
                            "dispatch: rank %d of %d gets %lld tokens of %lld choices, over %d "
                            "in all",
                            to, o->n, (long long)rows_to(o, to), (long long)k, INT32_MAX);
    return D9D_OK;
}

/* What decides on all ranks whether a room is large enough: see d9d_exchange. */
static void find_most(const offsets *o, int64_t k, d9d_exchange *e)
{
    for (int r = 0; r < o->n; r++) {
        const int64_t tokens = offsets_of(o, r)[o->n + 1 + o->experts] / k;
        const int64_t room = d9di_exchange_room(tokens, o->n, k);
        const int64_t sent = offsets_of(o, r)[o->n], came = rows_to(o, r);

        e->room = room > e->room ? room : e->room;
        e->most = sent > e->most ? sent : e->most;
        e->most = came > e->most ? came : e->most;
    }
}

static void find_rows(const offsets *o, d9d_exchange *e)
{
    const int n = o->n;

    for (int i = 0; i < n; i++) {
        e->rows[(int)D9DI_SENT * n + i] = rows_between(o, o->me, i);
        e->rows[(int)D9DI_CAME * n + i] = rows_between(o, i, o->me);
        e->rows[(int)D9DI_IN_SENT * n + i] = begins_in_sent(o, i, o->me);
        e->rows[(int)D9DI_IN_CAME * n + i] = begins_in_came(o, o->me, i);
    }
}

d9d_status d9di_counts_end(d9di_counts *c, d9d_exchange **out)
{
    const int n = d9d_comm_size(c->ep);
    offsets o = {.n = n, .me = d9d_comm_rank(c->ep), .experts = c->experts};
    const void *all;
    d9d_exchange *e;

    D9D_TRY(d9d_readback_end(c->back, &all));
    o.all = all;
    D9D_TRY(check(&o, c->k));
    e = calloc(1, d9di_exchange_size(n));
    if (e == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a dispatch to %d ranks", n);
    e->ep = c->ep;
    e->what = c->what;
    e->sent = offsets_of(&o, o.me)[n];
    e->came = rows_to(&o, o.me);
    e->choices = choices_here(&o);
    find_most(&o, c->k, e);
    find_rows(&o, e);
    *out = e;
    return D9D_OK;
}

void d9di_counts_release(d9di_counts *c)
{
    d9d_readback_free(c->back); /* waits: the queue may be at it */
    d9d_tensor_release(&c->mine);
    d9d_tensor_release(&c->all);
    c->back = NULL;
}
