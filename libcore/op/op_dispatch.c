/* op_dispatch.c - tokens to the ranks of their experts.  x [T, H], prob [T, k] to [N, H], [N, k].
 *
 *     dx[t] = sum over ranks d of dx of t on d        dprob[t, j] = dprob of (t, j) on its rank
 *
 * A rank leaves dprob 0 where a choice is not its own, so that both are sums over ranks.
 */
#include <stdlib.h>
#include <string.h>

#include "op/op_exchange.h"

enum { X, PROB }; /* inputs and outputs */

void d9d_dispatch_release(d9d_dispatch *d)
{
    d9d_routing_release(&d->routing);
    d9d_routing_release(&d->sent);
    free(d->way);
    d->way = NULL;
}

/* --- backward ---------------------------------------------------------------------- */

static d9d_status give_back(d9d_node *n, int i)
{
    d9d_tensor grad;

    if (!d9d_node_wants(n, i) || n->dout[i].storage == NULL)
        return D9D_OK;
    D9D_TRY(d9di_node_grad(n, i, &grad));
    return d9di_node_finish(
        n, i, &grad, d9di_exchange_collect(n->tape, n->attr, &n->saved[0], &n->dout[i], &grad));
}

static d9d_status dispatch_input(d9d_node *n)
{
    D9D_TRY(give_back(n, X));
    return give_back(n, PROB);
}

static const d9d_node_ops dispatch_ops = {.name = "dispatch", .input = dispatch_input};

/* --- who sends how much to whom ------------------------------------------------------ */

/* The offsets of both routings of every rank: over ranks [n, n + 1], over experts [n, E + 1]. */
typedef struct offsets {
    int n, me;
    int64_t experts;
    int32_t *rank, *expert; /* one block */
} offsets;

static int64_t offsets_len(const offsets *o)
{
    return o->n * (o->n + 1 + o->experts + 1);
}

static int64_t rows_between(const offsets *o, int from, int to)
{
    const int32_t *at = o->rank + from * (o->n + 1) + to;

    return (int64_t)at[1] - at[0];
}

static int64_t rows_to(const offsets *o, int to)
{
    int64_t sum = 0;

    for (int from = 0; from < o->n; from++)
        sum += rows_between(o, from, to);
    return sum;
}

/* Choices of experts here: rows in permuted order. */
static int64_t choices_here(const offsets *o)
{
    const int64_t per = o->experts / o->n;
    int64_t sum = 0;

    for (int from = 0; from < o->n; from++) {
        const int32_t *at = o->expert + from * (o->experts + 1) + o->me * per;

        sum += (int64_t)at[per] - at[0];
    }
    return sum;
}

/* All ranks come to the same verdict. */
static d9d_status check_counts(const offsets *o, int64_t k)
{
    for (int to = 0; to < o->n; to++)
        if (rows_to(o, to) > INT32_MAX / k)
            return D9D_FAIL(D9D_EINVAL,
                            "dispatch: rank %d of %d gets %lld tokens of %lld choices, over %d "
                            "in all",
                            to, o->n, (long long)rows_to(o, to), (long long)k, INT32_MAX);
    return D9D_OK;
}

/* The same array of every rank, in order. */
static d9d_status gather(d9d_tape *t, const d9d_exchange *e, const d9d_tensor *mine, int32_t *all)
{
    const int n = d9d_comm_size(e->ep);
    int64_t *counts = calloc((size_t)n, sizeof(*counts));
    d9d_status st;

    if (counts == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a dispatch to %d ranks", n);
    for (int i = 0; i < n; i++)
        counts[i] = d9d_tensor_numel(mine);
    st = d9d_comm_all_gather(e->ep, d9d_tape_device(t)->stream, e->what, D9D_I32, all,
                             d9d_tensor_data(mine), counts);
    free(counts);
    return st;
}

/* Fill o->rank and o->expert: one wait for both. */
static d9d_status gather_offsets(d9d_tape *t, const d9d_exchange *e, const d9d_routing *over_ranks,
                                 const d9d_routing *r, const offsets *o)
{
    d9d_device *dev = d9d_tape_device(t);
    d9d_tensor all;
    int32_t *p;
    d9d_status st;

    D9D_TRY(d9d_tensor_alloc(dev, D9D_I32, D9D_SHAPE(offsets_len(o)), &all));
    p = d9d_tensor_data(&all);
    D9D_TRY_OR(st, gather(t, e, &over_ranks->offset, p), out);
    D9D_TRY_OR(st, gather(t, e, &r->offset, p + (o->expert - o->rank)), out);
    st = d9d_device_download(dev, o->rank, p, d9d_tensor_bytes(&all));
out:
    d9d_tensor_release(&all);
    return st;
}

static void count(d9d_exchange *e, const offsets *o)
{
    e->sent = o->rank[o->me * (o->n + 1) + o->n];
    e->came = rows_to(o, o->me);
    for (int i = 0; i < o->n; i++) {
        e->rows[i] = rows_between(o, o->me, i);
        e->rows[o->n + i] = rows_between(o, i, o->me);
    }
}

/* d->sent is made; make d->way.  `choices` are the rows in permuted order here. */
static d9d_status agree(d9d_tape *t, d9d_comm *ep, const char *what, const d9d_routing *r,
                        d9d_dispatch *d, int64_t *choices)
{
    const int n = d9d_comm_size(ep);
    const int64_t experts = r->offset.shape.dim[0] - 1;
    offsets o = {.n = n, .me = d9d_comm_rank(ep), .experts = experts};
    d9d_status st;

    o.rank = calloc((size_t)offsets_len(&o), sizeof(*o.rank));
    d->way = calloc(1, d9di_exchange_size(n));
    if (o.rank == NULL || d->way == NULL)
        D9D_TRY_OR(st, D9D_FAIL(D9D_ENOMEM, "no memory for a dispatch to %d ranks", n), out);
    o.expert = o.rank + n * (n + 1);
    d->way->ep = ep;
    d->way->what = what;
    D9D_TRY_OR(st, gather_offsets(t, d->way, &d->sent, r, &o), out);
    D9D_TRY_OR(st, check_counts(&o, r->expert.shape.dim[1]), out);
    count(d->way, &o);
    *choices = choices_here(&o);
out:
    free(o.rank);
    return st;
}

/* --- forward ------------------------------------------------------------------------- */

static d9d_status check(const d9d_comm *ep, const d9d_tensor *x, const d9d_tensor *prob,
                        const d9d_routing *r)
{
    const int n = d9d_comm_size(ep);

    D9D_TRY(d9di_op_check_real("dispatch", "x", x));
    D9D_TRY(d9di_op_check("dispatch", "prob", prob, D9D_F32));
    D9D_TRY(d9di_op_check_routing("dispatch", x, r, false));
    D9D_TRY(d9di_op_check_same("dispatch", "the choice of experts", &r->expert, "prob", prob));
    if ((r->offset.shape.dim[0] - 1) % n != 0)
        return D9D_FAIL(D9D_EINVAL, "dispatch: %lld experts cannot be dealt to %d ranks evenly",
                        (long long)(r->offset.shape.dim[0] - 1), n);
    return D9D_OK;
}

/* Which tokens go to which rank. */
static d9d_status route_ranks(d9d_tape *t, int n, const d9d_routing *r, d9d_routing *sent)
{
    const int64_t tokens = r->expert.shape.dim[0], k = r->expert.shape.dim[1];

    D9D_TRY(d9di_routing_alloc(d9d_tape_device(t), tokens, n, n, sent));
    D9D_TRY(D9DI_KERNEL(t, route_ranks, d9d_tensor_data(&sent->expert), d9d_tensor_data(&r->expert),
                        tokens, k, n, (r->offset.shape.dim[0] - 1) / n));
    return D9DI_KERNEL(t, route, d9d_tensor_data(&sent->offset), d9d_tensor_data(&sent->row),
                       d9d_tensor_data(&sent->source), d9d_tensor_data(&sent->expert), tokens, n,
                       n);
}

/* The choices of what comes, as the experts here are numbered, to d->routing.expert. */
static d9d_status send_choices(d9d_tape *t, const d9d_routing *r, const d9d_dispatch *d)
{
    const int n = d9d_comm_size(d->way->ep);
    const int64_t tokens = r->expert.shape.dim[0], k = r->expert.shape.dim[1];
    d9d_tensor local;
    d9d_status st;

    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), D9D_I32, D9D_SHAPE(d->way->sent, k), &local));
    st = D9DI_KERNEL(t, route_local, d9d_tensor_data(&local), d9d_tensor_data(&d->sent.source),
                     d9d_tensor_data(&r->expert), d->way->sent, tokens, k, n,
                     (r->offset.shape.dim[0] - 1) / n);
    if (st == D9D_OK)
        st = d9di_exchange_send(t, d->way, &local, &d->routing.expert);
    d9d_tensor_release(&local);
    return st;
}

/* d->routing, with as many rows as there are choices. */
static d9d_status route_here(d9d_tape *t, const d9d_routing *r, d9d_dispatch *d, int64_t choices)
{
    const int64_t k = r->expert.shape.dim[1], came = d->way->came;
    const int64_t per = (r->offset.shape.dim[0] - 1) / d9d_comm_size(d->way->ep);
    d9d_routing *here = &d->routing;
    d9d_tensor all;

    D9D_TRY(d9di_routing_alloc(d9d_tape_device(t), came, per, k, here));
    D9D_TRY(send_choices(t, r, d));
    D9D_TRY(D9DI_KERNEL(t, route, d9d_tensor_data(&here->offset), d9d_tensor_data(&here->row),
                        d9d_tensor_data(&here->source), d9d_tensor_data(&here->expert), came, per,
                        k));
    all = here->source;
    here->source = d9d_tensor_rows(&all, 0, choices);
    d9d_tensor_release(&all);
    return D9D_OK;
}

/* The rows of one input. */
static d9d_status send_rows(d9d_tape *t, const d9d_dispatch *d, const d9d_var *x, d9d_var **y)
{
    const d9d_tensor *from = d9d_var_tensor(x);

    D9D_TRY(d9d_tape_output(t, from->dtype, D9D_SHAPE(d->way->came, from->shape.dim[1]), y));
    return d9di_exchange_spread(t, d->way, &d->sent.source, from, d9d_var_tensor(*y));
}

static d9d_status record(d9d_tape *t, d9d_var *const *in, const d9d_dispatch *d)
{
    const size_t size = d9di_exchange_size(d9d_comm_size(d->way->ep));
    d9d_var *out[] = {d->x, d->prob};
    d9d_node *n;

    if (!d9d_tape_wants(t, in, 2, NULL, 0))
        return D9D_OK;
    D9D_TRY(d9d_tape_record(t, &dispatch_ops, in, 2, out, 2, NULL, 0, size, &n));
    memcpy(n->attr, d->way, size);
    (void)d9d_node_save(n, &d->sent.row, D9D_NEED_INPUT);
    return D9D_OK;
}

static d9d_status dispatch(d9d_tape *t, d9d_comm *ep, const char *what, d9d_var *const *in,
                           const d9d_routing *r, d9d_dispatch *d)
{
    int64_t choices;

    D9D_TRY(route_ranks(t, d9d_comm_size(ep), r, &d->sent));
    D9D_TRY(agree(t, ep, what, r, d, &choices));
    D9D_TRY(route_here(t, r, d, choices));
    D9D_TRY(send_rows(t, d, in[X], &d->x));
    D9D_TRY(send_rows(t, d, in[PROB], &d->prob));
    return record(t, in, d);
}

d9d_status d9d_op_dispatch(d9d_tape *t, d9d_comm *ep, const char *what, d9d_var *x, d9d_var *prob,
                           const d9d_routing *r, d9d_dispatch *out)
{
    d9d_var *in[] = {x, prob};
    d9d_dispatch d = {.x = x, .prob = prob};
    d9d_status st = D9D_OK;

    D9D_TRY(check(ep, d9d_var_tensor(x), d9d_var_tensor(prob), r));
    if (d9d_comm_size(ep) == 1)
        d.routing = d9di_routing_ref(r);
    else
        st = dispatch(t, ep, what, in, r, &d);
    if (st == D9D_OK)
        *out = d;
    else
        d9d_dispatch_release(&d);
    return st;
}
