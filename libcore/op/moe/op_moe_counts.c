/* op_moe_counts.c - row counts between ranks.  See op/moe/op_moe_all_to_all.h.
 */
#include <stdlib.h>

#include "d9d/device/trace.h"
#include "op/moe/op_moe_all_to_all.h"

/* The gathered counts on the host: each rank's offsets over ranks, then over experts, then its
 * tokens. */
typedef struct rank_offsets {
    int n, me;
    int64_t experts, width;
    const int32_t *all; /* [n, width]; width is n + 1 + E + 1, with tokens one more */
} rank_offsets;

static const int32_t *offsets_of(const rank_offsets *o, int rank)
{
    return o->all + rank * o->width;
}

static int64_t rows_between(const rank_offsets *o, int from, int to)
{
    const int32_t *at = offsets_of(o, from) + to;

    return (int64_t)at[1] - at[0];
}

static int64_t rows_to(const rank_offsets *o, int to)
{
    int64_t sum = 0;

    for (int from = 0; from < o->n; from++)
        sum += rows_between(o, from, to);
    return sum;
}

/* Offset of the rows for `to` in what `from` sends; and of the rows from `from` in what `to`
 * receives. */
static int64_t send_offset(const rank_offsets *o, int from, int to)
{
    return offsets_of(o, from)[to];
}
static int64_t recv_offset(const rank_offsets *o, int from, int to)
{
    int64_t sum = 0;

    for (int r = 0; r < from; r++)
        sum += rows_between(o, r, to);
    return sum;
}

/* Received choices of the first `n` local experts: at most k of a row.  The offsets of a simulated
 * device are means, rounded each for itself, which of a few tokens may be more. */
static int64_t local_choices(const rank_offsets *o, int64_t n, int64_t k)
{
    const int64_t per = o->experts / o->n, most = k * rows_to(o, o->me);
    int64_t sum = 0;

    for (int from = 0; from < o->n; from++) {
        const int32_t *at = offsets_of(o, from) + o->n + 1 + o->me * per;

        sum += (int64_t)at[n] - at[0];
    }
    return sum < most ? sum : most;
}

/* All-gather the counts into c->all, in rank order.  It runs on the group's own stream: the device
 * continues meanwhile, and earlier transfers on that stream come first. */
static d9d_status offsets_all_gather(const d9di_op_moe_counts *c, d9d_device *dev)
{
    const int n = d9d_comm_size(c->ep);
    d9d_stream queue = d9d_comm_stream(c->ep);
    int64_t *counts = calloc((size_t)n, sizeof(*counts));
    d9d_status st;

    if (counts == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a dispatch to %d ranks", n);
    for (int i = 0; i < n; i++)
        counts[i] = d9d_tensor_numel(&c->local);
    st = d9d_comm_wait_stream(c->ep, dev->stream);
    d9d_trace_stream_range_begin(dev, queue, "counts", c->label);
    if (st == D9D_OK)
        st = d9d_comm_all_gather(c->ep, queue != NULL ? queue : dev->stream, c->label, D9D_I32,
                                 d9d_tensor_data(&c->all), d9d_tensor_data(&c->local), counts);
    d9d_trace_stream_range_end(dev, queue);
    free(counts);
    return st;
}

/* Concatenate two arrays of int32, and a number if it is not negative. */
static d9d_status offsets_concat(d9d_device *dev, const d9d_tensor *a, const d9d_tensor *b,
                                 int64_t tokens, d9d_tensor *out)
{
    const int64_t n = d9d_tensor_numel(a), m = d9d_tensor_numel(b);
    int32_t *to;

    D9D_TRY(d9d_tensor_alloc(dev, D9D_I32, D9D_SHAPE(n + m + (tokens >= 0)), out));
    to = d9d_tensor_data(out);
    D9D_TRY(d9d_device_copy(dev, to, d9d_tensor_data(a), d9d_tensor_bytes(a)));
    D9D_TRY(d9d_device_copy(dev, to + n, d9d_tensor_data(b), d9d_tensor_bytes(b)));
    return tokens < 0 ? D9D_OK
                      : dev->kernels->elementwise->fill(dev->stream, D9D_I32, to + n + m, 1,
                                                        (float)tokens);
}

/* The number of tokens is filled as a float32. */
static d9d_status tokens_check(int64_t tokens)
{
    return tokens <= 1 << 24 ? D9D_OK
                             : D9D_FAIL(D9D_EINVAL,
                                        "dispatch: %lld tokens with a capacity of experts, at most "
                                        "%d are possible",
                                        (long long)tokens, 1 << 24);
}

d9d_status d9di_op_moe_counts_start(d9di_op_moe_counts *c, d9d_tape *t, d9d_comm *ep,
                                    const char *what, const d9d_routing *over_ranks,
                                    const d9d_routing *over_experts)
{
    d9d_device *dev = d9d_tape_device(t);
    const int64_t tokens = over_experts->limited ? over_experts->expert.shape.dim[0] : -1;

    D9D_TRY(tokens_check(tokens));
    *c = (d9di_op_moe_counts){.ep = ep,
                              .label = what,
                              .experts = d9d_tensor_numel(&over_experts->offset) - 1,
                              .k = over_experts->expert.shape.dim[1],
                              .partial = over_experts->partial,
                              .limited = over_experts->limited};
    D9D_TRY(offsets_concat(dev, &over_ranks->offset, &over_experts->offset, tokens, &c->local));
    D9D_TRY(d9d_tensor_alloc(dev, D9D_I32,
                             D9D_SHAPE(d9d_comm_size(ep), d9d_tensor_numel(&c->local)), &c->all));
    D9D_TRY(offsets_all_gather(c, dev));
    D9D_TRY(d9d_readback_create(dev, d9d_tensor_bytes(&c->all), &c->readback));
    return d9d_readback_enqueue_on(c->readback, d9d_tensor_data(&c->all), d9d_comm_stream(ep));
}

static d9d_status counts_check(const rank_offsets *o, int64_t k)
{
    for (int to = 0; to < o->n; to++)
        if (rows_to(o, to) > INT32_MAX / k)
            return D9D_FAIL(
                D9D_EINVAL,
                "dispatch: rank %d of %d receives %lld tokens with %lld expert ids, over %d in all",
                to, o->n, (long long)rows_to(o, to), (long long)k, INT32_MAX);
    return D9D_OK;
}

/* Set the maxima by which all ranks decide alike whether the staging buffers are large enough: see
 * d9d_op_moe_exchange. */
static void exchange_set_max(const rank_offsets *o, const d9di_op_moe_counts *c,
                             d9d_op_moe_exchange *e)
{
    for (int r = 0; r < o->n; r++) {
        const int32_t *at = offsets_of(o, r) + o->n + 1 + o->experts;
        const int64_t choices = at[0], tokens = c->limited ? at[1] : choices / c->k;
        const int64_t max_rows =
            c->partial ? choices : d9di_op_moe_max_send_rows(tokens, o->n, c->k);
        const int64_t sent = offsets_of(o, r)[o->n], came = rows_to(o, r);

        e->max_packed_rows = max_rows > e->max_packed_rows ? max_rows : e->max_packed_rows;
        e->max_rows = sent > e->max_rows ? sent : e->max_rows;
        e->max_rows = came > e->max_rows ? came : e->max_rows;
    }
}

static void exchange_set_rows(const rank_offsets *o, d9d_op_moe_exchange *e)
{
    const int n = o->n;

    for (int i = 0; i < n; i++) {
        e->rows[(int)D9DI_MOE_SEND * n + i] = rows_between(o, o->me, i);
        e->rows[(int)D9DI_MOE_RECV * n + i] = rows_between(o, i, o->me);
        e->rows[(int)D9DI_MOE_SEND_OFFSET * n + i] = send_offset(o, i, o->me);
        e->rows[(int)D9DI_MOE_RECV_OFFSET * n + i] = recv_offset(o, o->me, i);
    }
}

d9d_status d9di_op_moe_counts_wait(d9di_op_moe_counts *c, d9d_op_moe_exchange **out)
{
    const int n = d9d_comm_size(c->ep);
    rank_offsets o = {.n = n,
                      .me = d9d_comm_rank(c->ep),
                      .experts = c->experts,
                      .width = d9d_tensor_numel(&c->local)};
    const void *all;
    d9d_op_moe_exchange *e;

    D9D_TRY(d9d_readback_wait(c->readback, &all));
    o.all = all;
    D9D_TRY(counts_check(&o, c->k));
    e = calloc(1, d9di_op_moe_exchange_size(n));
    if (e == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a dispatch to %d ranks", n);
    e->ep = c->ep;
    e->label = c->label;
    e->send = offsets_of(&o, o.me)[n];
    e->recv = rows_to(&o, o.me);
    e->choices = local_choices(&o, c->experts / n, c->k);
    e->lower = local_choices(&o, c->experts / n / 2, c->k);
    exchange_set_max(&o, c, e);
    exchange_set_rows(&o, e);
    *out = e;
    return D9D_OK;
}

void d9di_op_moe_counts_release(d9di_op_moe_counts *c)
{
    d9d_readback_free(c->readback); /* waits: the stream may still use it */
    d9d_tensor_release(&c->local);
    d9d_tensor_release(&c->all);
    c->readback = NULL;
}
