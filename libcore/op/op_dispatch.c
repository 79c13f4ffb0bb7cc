/* op_dispatch.c - tokens to the ranks of their experts.  x [T, H], prob [T, k] to [N, H], [N, k].
 *
 *     dx[t] = sum over ranks d of dx of t on d        dprob[t, j] = dprob of (t, j) on its rank
 *
 * A rank leaves dprob 0 where a choice is not its own, so that both are sums over ranks.
 */
#include <stdlib.h>
#include <string.h>

#include "d9d/device/trace.h"
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

/* --- forward ------------------------------------------------------------------------- */

static int64_t experts_of(const d9d_routing *r)
{
    return r->offset.shape.dim[0] - 1;
}

static d9d_status check(const d9d_comm *ep, const d9d_tensor *x, const d9d_tensor *prob,
                        const d9d_routing *r)
{
    const int n = d9d_comm_size(ep);

    D9D_TRY(d9di_op_check_real("dispatch", "x", x));
    D9D_TRY(d9di_op_check("dispatch", "prob", prob, D9D_F32));
    D9D_TRY(d9di_op_check_routing("dispatch", x, r, false));
    D9D_TRY(d9di_op_check_same("dispatch", "the choice of experts", &r->expert, "prob", prob));
    if (experts_of(r) % n != 0)
        return D9D_FAIL(D9D_EINVAL, "dispatch: %lld experts cannot be dealt to %d ranks evenly",
                        (long long)experts_of(r), n);
    return D9D_OK;
}

/* Which tokens go to which rank. */
static d9d_status route_ranks(d9d_tape *t, int n, const d9d_routing *r, d9d_routing *sent)
{
    const int64_t tokens = r->expert.shape.dim[0], k = r->expert.shape.dim[1];

    D9D_TRY(d9di_routing_alloc(d9d_tape_device(t), tokens, n, n, sent));
    D9D_TRY(D9DI_KERNEL(t, route_ranks, d9d_tensor_data(&sent->expert), d9d_tensor_data(&r->expert),
                        tokens, k, n, experts_of(r) / n));
    return D9DI_KERNEL(t, route, d9d_tensor_data(&sent->offset), d9d_tensor_data(&sent->row),
                       d9d_tensor_data(&sent->source), d9d_tensor_data(&sent->expert), tokens, n,
                       n);
}

/* Rows for each rank, in the order of ranks; room for all there could be, as nobody here knows yet
 * how many there are. */
enum { CHOICE = PROB + 1, PACKED };

static d9d_status pack_rows(d9d_tape *t, const d9d_routing *sent, int64_t room, const d9d_var *in,
                            d9d_tensor *out)
{
    const d9d_tensor *x = d9d_var_tensor(in);
    const d9d_permute_dims dims = {x->dtype, x->shape.dim[0], sent->row.shape.dim[1], room,
                                   x->shape.dim[1]};

    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), x->dtype, D9D_SHAPE(room, dims.h), out));
    return D9DI_KERNEL(t, permute, &dims, d9d_tensor_data(out), d9d_tensor_data(x),
                       d9d_tensor_data(&sent->row));
}

/* The choices, as the experts there are numbered. */
static d9d_status pack_choices(d9d_tape *t, const d9d_routing *sent, int64_t room,
                               const d9d_routing *r, d9d_tensor *out)
{
    const int64_t tokens = r->expert.shape.dim[0], k = r->expert.shape.dim[1];
    const int64_t n = sent->row.shape.dim[1];

    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), D9D_I32, D9D_SHAPE(room, k), out));
    return D9DI_KERNEL(t, route_local, d9d_tensor_data(out), d9d_tensor_data(&sent->source),
                       d9d_tensor_data(&r->expert), room, tokens, k, n, experts_of(r) / n);
}

static d9d_status pack(d9d_tape *t, const d9d_routing *sent, d9d_var *const *in,
                       const d9d_routing *r, d9d_tensor *packed)
{
    const d9d_shape *e = &r->expert.shape;
    const int64_t n = sent->row.shape.dim[1], room = e->dim[0] * (n < e->dim[1] ? n : e->dim[1]);

    D9D_TRY(pack_rows(t, sent, room, in[X], &packed[X]));
    D9D_TRY(pack_rows(t, sent, room, in[PROB], &packed[PROB]));
    return pack_choices(t, sent, room, r, &packed[CHOICE]);
}

/* The three arrays, as they come. */
static d9d_status send(d9d_tape *t, const d9d_tensor *packed, const d9d_dispatch *d)
{
    const d9d_tensor *to[PACKED] = {[X] = d9d_var_tensor(d->x),
                                    [PROB] = d9d_var_tensor(d->prob),
                                    [CHOICE] = &d->routing.expert};

    for (int i = 0; i < PACKED; i++)
        D9D_TRY(d9di_exchange_send(t, d->way, &packed[i], to[i]));
    return D9D_OK;
}

static d9d_status send_together(d9d_tape *t, const d9d_tensor *packed, const d9d_dispatch *d)
{
    d9d_status st, ended;

    D9D_TRY(d9d_comm_begin(d->way->ep));
    st = send(t, packed, d);
    ended = d9d_comm_end(d->way->ep);
    return st != D9D_OK ? st : ended;
}

/* Everything that comes here, and d->routing, with as many rows as there are choices of experts
 * here. */
static d9d_status receive(d9d_tape *t, const d9d_tensor *packed, int64_t experts, d9d_dispatch *d)
{
    const int64_t k = packed[CHOICE].shape.dim[1], came = d->way->came;
    d9d_routing *here = &d->routing;
    d9d_var **out[] = {&d->x, &d->prob};
    d9d_tensor all;

    for (int i = X; i <= PROB; i++)
        D9D_TRY(
            d9d_tape_output(t, packed[i].dtype, D9D_SHAPE(came, packed[i].shape.dim[1]), out[i]));
    D9D_TRY(d9di_routing_alloc(d9d_tape_device(t), came, experts, k, here));
    D9D_TRY(send_together(t, packed, d));
    d9d_trace_lap(d9d_tape_device(t), "experts", "move");
    D9D_TRY(D9DI_KERNEL(t, route, d9d_tensor_data(&here->offset), d9d_tensor_data(&here->row),
                        d9d_tensor_data(&here->source), d9d_tensor_data(&here->expert), came,
                        experts, k));
    all = here->source;
    here->source = d9d_tensor_rows(&all, 0, d->way->choices);
    d9d_tensor_release(&all);
    return D9D_OK;
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

/* A GPU packs while the host learns how many rows go where. */
static d9d_status dispatch(d9d_tape *t, d9d_comm *ep, const char *what, d9d_var *const *in,
                           const d9d_routing *r, d9d_dispatch *d)
{
    const int n = d9d_comm_size(ep);
    d9d_tensor packed[PACKED] = {0};
    d9di_counts counts = {0};
    d9d_status st;

    D9D_TRY_OR(st, route_ranks(t, n, r, &d->sent), out);
    D9D_TRY_OR(st, d9di_counts_begin(&counts, t, ep, what, &d->sent, r), out);
    D9D_TRY_OR(st, pack(t, &d->sent, in, r, packed), out);
    d9d_trace_lap(d9d_tape_device(t), "experts", "pack");
    D9D_TRY_OR(st, d9di_counts_end(&counts, &d->way), out);
    d9d_trace_lap(d9d_tape_device(t), "experts", "counts");
    D9D_TRY_OR(st, receive(t, packed, experts_of(r) / n, d), out);
    st = record(t, in, d);
out:
    for (int i = 0; i < PACKED; i++)
        d9d_tensor_release(&packed[i]);
    d9di_counts_release(&counts);
    return st;
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
