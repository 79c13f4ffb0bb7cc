/* op_dispatch.c - expert-parallel dispatch: an all-to-all of tokens to the ranks of their experts.
 * x [T, H], prob [T, k] to [N, H], [N, k].
 *
 *     dx[t] = sum over ranks d of dx of t on d        dprob[t, j] = dprob of (t, j) on its rank
 *
 * dprob of a choice is 0 on ranks without its expert, so both gradients are sums over ranks.
 */
#include <stdlib.h>
#include <string.h>

#include "d9d/device/trace.h"
#include "op/moe/op_moe_all_to_all.h"

enum { X, PROB }; /* inputs and outputs */

void d9d_op_moe_dispatch_release(d9d_op_moe_dispatch *d)
{
    d9d_routing_release(&d->routing);
    d9d_routing_release(&d->sent);
    free(d->exchange);
    d->exchange = NULL;
}

/* --- backward ---------------------------------------------------------------------- */

static d9d_status accumulate_combined(d9d_node *n, const d9di_op_moe_transfer *l, int of_load,
                                      int i)
{
    d9d_tensor grad;

    D9D_TRY(d9di_op_grad_alloc(n, i, &grad));
    return d9di_op_grad_finish(
        n, i, &grad, d9di_op_moe_combine_sum(l, n->tape, n->attr, &n->saved[0], of_load, &grad));
}

/* Deferred wgrad overlaps with the transfer of the rows. */
static d9d_status combine_grads(d9d_node *n, d9di_op_moe_transfer *l)
{
    static const int last_first[] = {PROB, X}; /* rows come last */
    const d9d_tensor *back[2];
    int given[2], some = 0;

    for (int i = 0; i < 2; i++)
        if (d9d_node_input_needs_grad(n, last_first[i]) && n->dout[last_first[i]].storage != NULL) {
            back[some] = &n->dout[last_first[i]];
            given[some++] = last_first[i];
        }
    if (some == 0)
        return D9D_OK;
    D9D_TRY(d9di_op_moe_combine_start(l, n->tape, n->attr, back, some));
    D9D_TRY(d9d_tape_run_deferred(n->tape));
    D9D_TRY(d9di_op_moe_transfer_wait(l, n->tape));
    for (int i = 0; i < some; i++)
        D9D_TRY(accumulate_combined(n, l, i, given[i]));
    return D9D_OK;
}

static d9d_status dispatch_dgrad(d9d_node *n)
{
    d9di_op_moe_transfer l = {0};
    const d9d_status st = combine_grads(n, &l);

    d9di_op_moe_transfer_release(&l);
    return st;
}

static const d9d_node_ops dispatch_node_ops = {.name = "dispatch", .dgrad = dispatch_dgrad};

/* --- forward ------------------------------------------------------------------------- */

static int64_t expert_count(const d9d_routing *r)
{
    return r->offset.shape.dim[0] - 1;
}

static d9d_status dispatch_check(const d9d_comm *ep, const d9d_tensor *x, const d9d_tensor *prob,
                                 const d9d_routing *r)
{
    const int n = d9d_comm_size(ep);

    D9D_TRY(d9di_op_check_real("dispatch", "x", x));
    D9D_TRY(d9di_op_check("dispatch", "prob", prob, D9D_F32));
    D9D_TRY(d9di_op_check_routing("dispatch", x, r, false));
    D9D_TRY(d9di_op_check_same("dispatch", "the expert ids", &r->expert, "prob", prob));
    if (r->number.storage != NULL &&
        !d9d_shape_equal(&r->number.shape, &D9D_SHAPE(x->shape.dim[0])))
        return d9di_op_misfit("dispatch", "the numbers of tokens", &r->number.shape, "x", &x->shape,
                              "every token has a number");
    if (!r->partial && r->source.shape.dim[0] != d9d_tensor_numel(&r->expert))
        return d9di_op_misfit("dispatch", "the source rows", &r->source.shape, "the expert ids",
                              &r->expert.shape, "every source row has an expert id");
    if (expert_count(r) % n != 0)
        return D9D_FAIL(D9D_EINVAL, "dispatch: %lld experts are not a multiple of %d ranks",
                        (long long)expert_count(r), n);
    return D9D_OK;
}

/* Which tokens go to which rank. */
static d9d_status route_ranks(d9d_tape *t, int n, const d9d_routing *r, d9d_routing *sent)
{
    const int64_t tokens = r->expert.shape.dim[0], k = r->expert.shape.dim[1];

    D9D_TRY(d9di_routing_alloc(d9d_tape_device(t), tokens, n, n, sent));
    D9D_TRY(D9DI_KERNEL(t, moe->expert_ranks, d9d_tensor_data(&sent->expert),
                        d9d_tensor_data(&r->expert), tokens, k, n, expert_count(r) / n));
    return D9DI_KERNEL(t, moe->sort_by_expert, d9d_tensor_data(&sent->offset),
                       d9d_tensor_data(&sent->row), d9d_tensor_data(&sent->source),
                       d9d_tensor_data(&sent->expert), tokens, n, n);
}

/* Payloads; rows are last because the others are needed first.  Numbers of tokens are there where
 * dropout reads them, as words of 32 bits. */
enum { CHOICES, PROBS, NUMBERS, WORDS = 2 };

static d9di_op_moe_payload *rows_of(d9di_op_moe_transfer *l)
{
    return &l->payload[l->n - 1];
}

static d9d_status pack_rows(d9d_tape *t, const d9d_routing *sent, int64_t max_rows,
                            const d9d_tensor *x, void *out)
{
    const d9d_moe_permute_dims dims = {x->dtype, x->shape.dim[0], sent->row.shape.dim[1], max_rows,
                                       x->shape.dim[1]};

    return D9DI_KERNEL(t, moe->permute, &dims, out, d9d_tensor_data(x),
                       d9d_tensor_data(&sent->row));
}

/* The choices, renumbered to the local experts of each rank. */
static d9d_status pack_choices(d9d_tape *t, const d9d_routing *sent, int64_t max_rows,
                               const d9d_routing *r, void *out)
{
    const int64_t tokens = r->expert.shape.dim[0], k = r->expert.shape.dim[1];
    const int64_t n = sent->row.shape.dim[1];

    return D9DI_KERNEL(t, moe->expert_local_ids, out, d9d_tensor_data(&sent->source),
                       d9d_tensor_data(&r->expert), max_rows, tokens, k, n, expert_count(r) / n);
}

static d9d_status pack_numbers(d9d_tape *t, const d9d_routing *sent, int64_t max_rows,
                               const d9d_tensor *number, void *out)
{
    d9d_tensor words = *number;

    words.dtype = D9D_F32;
    words.shape = D9D_SHAPE(number->shape.dim[0], WORDS);
    return pack_rows(t, sent, max_rows, &words, out);
}

/* Pack the rows for each rank, in rank order, into buffers for the largest possible number: the
 * counts are not known yet. */
static d9d_status payload_pack(d9d_tape *t, d9d_comm *ep, const d9d_routing *sent,
                               d9d_var *const *in, const d9d_routing *r, d9di_op_moe_transfer *l)
{
    const int64_t tokens = r->expert.shape.dim[0], k = r->expert.shape.dim[1];
    const int64_t most = d9di_op_moe_max_send_rows(tokens, d9d_comm_size(ep), k);
    const int64_t max_rows = d9di_routing_rows(r) < most ? d9di_routing_rows(r) : most;
    const d9d_tensor *x = d9d_var_tensor(in[X]);

    d9di_op_moe_transfer_add(l, ep, D9D_I32, k);
    d9di_op_moe_transfer_add(l, ep, D9D_F32, k);
    if (r->number.storage != NULL)
        d9di_op_moe_transfer_add(l, ep, D9D_F32, WORDS);
    d9di_op_moe_transfer_add(l, ep, x->dtype, x->shape.dim[1]);
    for (int i = 0; i < l->n; i++)
        D9D_TRY(d9di_op_moe_transfer_alloc(l, d9d_tape_device(t), i, max_rows));
    D9D_TRY(pack_choices(t, sent, max_rows, r, l->payload[CHOICES].src));
    D9D_TRY(pack_rows(t, sent, max_rows, d9d_var_tensor(in[PROB]), l->payload[PROBS].src));
    if (r->number.storage != NULL)
        D9D_TRY(pack_numbers(t, sent, max_rows, &r->number, l->payload[NUMBERS].src));
    return pack_rows(t, sent, max_rows, x, rows_of(l)->src);
}

static d9d_status recv_alloc(d9d_tape *t, int64_t experts, d9di_op_moe_transfer *l,
                             d9d_op_moe_dispatch *d)
{
    const int64_t came = d->exchange->recv;
    const bool numbered = rows_of(l) != &l->payload[NUMBERS];

    D9D_TRY(d9d_tape_output(t, rows_of(l)->t, D9D_SHAPE(came, rows_of(l)->width), &d->x));
    D9D_TRY(d9d_tape_output(t, D9D_F32, D9D_SHAPE(came, l->payload[PROBS].width), &d->prob));
    D9D_TRY(d9di_routing_alloc(d9d_tape_device(t), came, experts, l->payload[CHOICES].width,
                               &d->routing));
    l->payload[CHOICES].dst = d9d_tensor_data(&d->routing.expert);
    l->payload[PROBS].dst = d9d_tensor_data(d9d_var_tensor(d->prob));
    rows_of(l)->dst = d9d_tensor_data(d9d_var_tensor(d->x));
    if (!numbered)
        return D9D_OK;
    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), D9D_I64, D9D_SHAPE(came), &d->routing.number));
    l->payload[NUMBERS].dst = d9d_tensor_data(&d->routing.number);
    return D9D_OK;
}

/* Receive all payloads and make d->routing, with one row for each choice of a local expert.
 * Choices are sorted while the rows are in flight. */
static d9d_status payload_recv(d9d_tape *t, int64_t experts, d9di_op_moe_transfer *l,
                               d9d_op_moe_dispatch *d)
{
    d9d_routing *here = &d->routing;
    d9d_tensor all;

    D9D_TRY(recv_alloc(t, experts, l, d));
    D9D_TRY(d9di_op_moe_transfer_start(l, t, d->exchange, D9DI_MOE_DISPATCH,
                                       d->exchange->max_packed_rows));
    D9D_TRY(d9di_op_moe_transfer_wait_first(l, t));
    D9D_TRY(D9DI_KERNEL(t, moe->sort_by_expert, d9d_tensor_data(&here->offset),
                        d9d_tensor_data(&here->row), d9d_tensor_data(&here->source),
                        d9d_tensor_data(&here->expert), d->exchange->recv, experts,
                        here->expert.shape.dim[1]));
    d9d_trace_mark(d9d_tape_device(t), "MoE", "sort");
    here->partial = true;
    here->lower = d->exchange->lower;
    all = here->source;
    here->source = d9d_tensor_rows(&all, 0, d->exchange->choices);
    d9d_tensor_release(&all);
    return d9di_op_moe_transfer_wait(l, t);
}

static d9d_status dispatch_record(d9d_tape *t, d9d_var *const *in, const d9d_op_moe_dispatch *d)
{
    const size_t size = d9di_op_moe_exchange_size(d9d_comm_size(d->exchange->ep));
    d9d_var *out[] = {d->x, d->prob};
    d9d_node *n;

    if (!d9d_tape_should_record(t, in, 2, NULL, 0))
        return D9D_OK;
    D9D_TRY(d9d_tape_record(t, &dispatch_node_ops, in, 2, out, 2, NULL, 0, size, &n));
    memcpy(n->attr, d->exchange, size);
    d9d_tape_defer_wgrad(t);
    (void)d9d_node_save(n, &d->sent.row, D9D_NEED_DGRAD);
    return D9D_OK;
}

/* A GPU packs while the host waits for the row counts. */
static d9d_status dispatch_run(d9d_tape *t, d9d_comm *ep, const char *what, d9d_var *const *in,
                               const d9d_routing *r, d9d_op_moe_dispatch *d)
{
    const int n = d9d_comm_size(ep);
    d9di_op_moe_counts counts = {0};
    d9di_op_moe_transfer load = {.two_waits = true};
    d9d_status st;

    D9D_TRY_OR(st, route_ranks(t, n, r, &d->sent), out);
    D9D_TRY_OR(st, d9di_op_moe_counts_start(&counts, t, ep, what, &d->sent, r), out);
    D9D_TRY_OR(st, payload_pack(t, ep, &d->sent, in, r, &load), out);
    d9d_trace_mark(d9d_tape_device(t), "MoE", "pack");
    D9D_TRY_OR(st, d9di_op_moe_counts_wait(&counts, &d->exchange), out);
    d9d_trace_mark(d9d_tape_device(t), "MoE", "counts");
    D9D_TRY_OR(st, payload_recv(t, expert_count(r) / n, &load, d), out);
    D9D_TRY_OR(st,
               d9d_symm_buffer_reserve(
                   ep, d9di_op_moe_transfer_bytes(&load, d->exchange->max_packed_rows)),
               out);
    st = dispatch_record(t, in, d);
out:
    d9di_op_moe_transfer_release(&load);
    d9di_op_moe_counts_release(&counts);
    return st;
}

d9d_status d9d_op_dispatch(d9d_tape *t, d9d_comm *ep, const char *what, d9d_var *x, d9d_var *prob,
                           const d9d_routing *r, d9d_op_moe_dispatch *out)
{
    d9d_var *in[] = {x, prob};
    d9d_op_moe_dispatch d = {.x = x, .prob = prob};
    d9d_status st = D9D_OK;

    D9D_TRY(dispatch_check(ep, d9d_var_tensor(x), d9d_var_tensor(prob), r));
    if (d9d_comm_size(ep) == 1)
        d.routing = d9di_routing_ref(r);
    else
        st = dispatch_run(t, ep, what, in, r, &d);
    if (st == D9D_OK)
        *out = d;
    else
        d9d_op_moe_dispatch_release(&d);
    return st;
}
