/* op_dispatch.c - tokens to the ranks of their experts.  x [T, H], prob [T, k] to [N, H], [N, k].
 *
 *     dx[t] = sum over ranks d of dx of t on d        dprob[t, j] = dprob of (t, j) on its rank
 *
 * A rank leaves dprob 0 where a choice is not its own, so that both are sums over ranks.
 */
#include <stdlib.h>
#include <string.h>

#include "d9d/device/trace.h"
#include "op/moe/op_moe_all_to_all.h"

enum { X, PROB }; /* inputs and outputs */

void d9d_dispatch_release(d9d_dispatch *d)
{
    d9d_routing_release(&d->routing);
    d9d_routing_release(&d->sent);
    free(d->way);
    d->way = NULL;
}

/* --- backward ---------------------------------------------------------------------- */

static d9d_status give_sum(d9d_node *n, const d9di_load *l, int of_load, int i)
{
    d9d_tensor grad;

    D9D_TRY(d9di_node_grad(n, i, &grad));
    return d9di_node_finish(n, i, &grad,
                            d9di_collect_sum(l, n->tape, n->attr, &n->saved[0], of_load, &grad));
}

/* Weight halves that were put off run while the rows are on their way. */
static d9d_status give_back(d9d_node *n, d9di_load *l)
{
    static const int last_first[] = {PROB, X}; /* rows come last */
    const d9d_tensor *back[2];
    int given[2], some = 0;

    for (int i = 0; i < 2; i++)
        if (d9d_node_wants(n, last_first[i]) && n->dout[last_first[i]].storage != NULL) {
            back[some] = &n->dout[last_first[i]];
            given[some++] = last_first[i];
        }
    if (some == 0)
        return D9D_OK;
    D9D_TRY(d9di_collect_go(l, n->tape, n->attr, back, some));
    D9D_TRY(d9d_tape_catch_up(n->tape));
    D9D_TRY(d9di_load_end(l, n->tape));
    for (int i = 0; i < some; i++)
        D9D_TRY(give_sum(n, l, i, given[i]));
    return D9D_OK;
}

static d9d_status dispatch_input(d9d_node *n)
{
    d9di_load l = {0};
    const d9d_status st = give_back(n, &l);

    d9di_load_release(&l);
    return st;
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
    if (r->source.shape.dim[0] != d9d_tensor_numel(&r->expert))
        return d9di_op_misfit("dispatch", "the rows of choices", &r->source.shape, "the choices",
                              &r->expert.shape, "every choice has an expert");
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

/* What goes, rows last: the other two are needed first. */
enum { CHOICES, PROBS, ROWS };

static d9d_status pack_rows(d9d_tape *t, const d9d_routing *sent, int64_t room, const d9d_var *in,
                            void *out)
{
    const d9d_tensor *x = d9d_var_tensor(in);
    const d9d_permute_dims dims = {x->dtype, x->shape.dim[0], sent->row.shape.dim[1], room,
                                   x->shape.dim[1]};

    return D9DI_KERNEL(t, permute, &dims, out, d9d_tensor_data(x), d9d_tensor_data(&sent->row));
}

/* The choices, as the experts there are numbered. */
static d9d_status pack_choices(d9d_tape *t, const d9d_routing *sent, int64_t room,
                               const d9d_routing *r, void *out)
{
    const int64_t tokens = r->expert.shape.dim[0], k = r->expert.shape.dim[1];
    const int64_t n = sent->row.shape.dim[1];

    return D9DI_KERNEL(t, route_local, out, d9d_tensor_data(&sent->source),
                       d9d_tensor_data(&r->expert), room, tokens, k, n, experts_of(r) / n);
}

/* Rows for each rank, in the order of ranks; room for all there could be, as nobody here knows yet
 * how many there are. */
static d9d_status pack(d9d_tape *t, d9d_comm *ep, const d9d_routing *sent, d9d_var *const *in,
                       const d9d_routing *r, d9di_load *l)
{
    const int64_t tokens = r->expert.shape.dim[0], k = r->expert.shape.dim[1];
    const int64_t room = d9di_exchange_room(tokens, d9d_comm_size(ep), k);
    const d9d_tensor *x = d9d_var_tensor(in[X]);

    d9di_load_add(l, ep, D9D_I32, k);
    d9di_load_add(l, ep, D9D_F32, k);
    d9di_load_add(l, ep, x->dtype, x->shape.dim[1]);
    for (int i = CHOICES; i <= ROWS; i++)
        D9D_TRY(d9di_load_make(l, d9d_tape_device(t), i, room));
    D9D_TRY(pack_choices(t, sent, room, r, l->cargo[CHOICES].src));
    D9D_TRY(pack_rows(t, sent, room, in[PROB], l->cargo[PROBS].src));
    return pack_rows(t, sent, room, in[X], l->cargo[ROWS].src);
}

static d9d_status receive_make(d9d_tape *t, int64_t experts, d9di_load *l, d9d_dispatch *d)
{
    const int64_t came = d->way->came;

    D9D_TRY(d9d_tape_output(t, l->cargo[ROWS].t, D9D_SHAPE(came, l->cargo[ROWS].width), &d->x));
    D9D_TRY(d9d_tape_output(t, D9D_F32, D9D_SHAPE(came, l->cargo[PROBS].width), &d->prob));
    D9D_TRY(d9di_routing_alloc(d9d_tape_device(t), came, experts, l->cargo[CHOICES].width,
                               &d->routing));
    l->cargo[CHOICES].dst = d9d_tensor_data(&d->routing.expert);
    l->cargo[PROBS].dst = d9d_tensor_data(d9d_var_tensor(d->prob));
    l->cargo[ROWS].dst = d9d_tensor_data(d9d_var_tensor(d->x));
    return D9D_OK;
}

/* Everything that comes here, and d->routing, with as many rows as there are choices of experts
 * here; choices are sorted while rows are on their way. */
static d9d_status receive(d9d_tape *t, int64_t experts, d9di_load *l, d9d_dispatch *d)
{
    d9d_routing *here = &d->routing;
    d9d_tensor all;

    D9D_TRY(receive_make(t, experts, l, d));
    D9D_TRY(d9di_load_go(l, t, d->way, D9DI_THERE, d->way->room));
    D9D_TRY(d9di_load_early(l, t));
    D9D_TRY(D9DI_KERNEL(t, route, d9d_tensor_data(&here->offset), d9d_tensor_data(&here->row),
                        d9d_tensor_data(&here->source), d9d_tensor_data(&here->expert),
                        d->way->came, experts, here->expert.shape.dim[1]));
    d9d_trace_lap(d9d_tape_device(t), "experts", "sort");
    all = here->source;
    here->source = d9d_tensor_rows(&all, 0, d->way->choices);
    d9d_tensor_release(&all);
    return d9di_load_end(l, t);
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
    d9d_tape_may_put_off(t);
    (void)d9d_node_save(n, &d->sent.row, D9D_NEED_INPUT);
    return D9D_OK;
}

/* A GPU packs while the host learns how many rows go where. */
static d9d_status dispatch(d9d_tape *t, d9d_comm *ep, const char *what, d9d_var *const *in,
                           const d9d_routing *r, d9d_dispatch *d)
{
    const int n = d9d_comm_size(ep);
    d9di_counts counts = {0};
    d9di_load load = {.in_parts = true};
    d9d_status st;

    D9D_TRY_OR(st, route_ranks(t, n, r, &d->sent), out);
    D9D_TRY_OR(st, d9di_counts_begin(&counts, t, ep, what, &d->sent, r), out);
    D9D_TRY_OR(st, pack(t, ep, &d->sent, in, r, &load), out);
    d9d_trace_lap(d9d_tape_device(t), "experts", "pack");
    D9D_TRY_OR(st, d9di_counts_end(&counts, &d->way), out);
    d9d_trace_lap(d9d_tape_device(t), "experts", "counts");
    D9D_TRY_OR(st, receive(t, experts_of(r) / n, &load, d), out);
    D9D_TRY_OR(st, d9d_comm_rooms_want(ep, d9di_load_bytes(&load, d->way->room)), out);
    st = record(t, in, d);
out:
    d9di_load_release(&load);
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
