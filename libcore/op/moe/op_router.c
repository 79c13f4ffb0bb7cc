/* op_router.c - MoE router: top-k experts and weights of each token, and the load-balancing losses.
 * logits [T, E], prob [T, k]; B sequences in the batch.
 *
 * The choice has no gradient.  prob has one, through all scores, and so have the balancing losses.
 * Losses and load counts are those of what tokens choose, before the experts' capacity.
 */
#include "op/moe/op_expert_capacity.h"

typedef struct router_attr {
    d9d_router_dims dims;
    d9d_router_balance balance; /* without pointers; its weight is nonzero if there is one */
    bool balanced;
} router_attr;

enum { SAVED_P, SAVED_PROB, SAVED_EXPERT, SAVED_WEIGHT, SAVED_LOAD, SAVED_LOGITS };

/* Arrays of the balancing losses; storage NULL if not needed. */
typedef struct balance_state {
    d9d_router_balance balance;
    d9d_tensor weight, load, logits;
} balance_state;

static void balance_release(balance_state *b)
{
    d9d_tensor_release(&b->weight);
    d9d_tensor_release(&b->load);
    d9d_tensor_release(&b->logits);
}

/* What the router says of all experts and tokens. */
typedef struct router_choice {
    d9d_tensor p;       /* [T, E] scores */
    d9d_tensor expert;  /* [T, k]; the routing lacks those that were dropped */
    d9d_tensor dropped; /* [T, k]; storage NULL without a capacity */
} router_choice;

static void choice_release(router_choice *c)
{
    d9d_tensor_release(&c->p);
    d9d_tensor_release(&c->expert);
    d9d_tensor_release(&c->dropped);
}

static const void *data_or_null(const d9d_tensor *x)
{
    return x->storage != NULL ? d9d_tensor_data(x) : NULL;
}

static d9d_router_balance balance_of(const d9d_router_balance *balance, const d9d_tensor *weight,
                                     const d9d_tensor *load, const d9d_tensor *logits)
{
    d9d_router_balance b = *balance;

    b.weight = data_or_null(weight);
    b.load = data_or_null(load);
    b.logits = data_or_null(logits);
    return b;
}

static d9d_status router_dgrad(d9d_node *n)
{
    const router_attr *a = n->attr;
    const d9d_tensor *s = n->saved;
    d9d_router_balance b = {0};
    d9d_tensor dlogits;

    if (a->balanced)
        b = balance_of(&a->balance, &s[SAVED_WEIGHT], &s[SAVED_LOAD], &s[SAVED_LOGITS]);
    D9D_TRY(d9di_op_grad_alloc(n, 0, &dlogits));
    return d9di_op_grad_finish(
        n, 0, &dlogits,
        D9DI_KERNEL(n->tape, moe->router_bwd, &a->dims, d9d_tensor_data(&dlogits),
                    d9d_tensor_data(&n->dout[0]), d9d_tensor_data(&s[SAVED_P]),
                    d9d_tensor_data(&s[SAVED_PROB]), d9d_tensor_data(&s[SAVED_EXPERT]),
                    a->balanced ? &b : NULL));
}

static const d9d_node_ops router_node_ops = {.name = "router", .dgrad = router_dgrad};

/* --- checks ------------------------------------------------------------------------------- */

static d9d_status groups_check(const d9d_shape *s, const d9d_op_router_opts *opts)
{
    const int64_t e = s->dim[1], groups = opts->groups;

    if (groups >= 0 && groups <= 1)
        return D9D_OK;
    if (groups < 0 || groups > D9D_ROUTER_MAX_GROUPS || e % groups != 0 || opts->top_groups < 1 ||
        opts->top_groups > groups || opts->top_groups * (e / groups) < opts->k)
        return d9di_op_misfit("router", "logits", s, "groups", &D9D_SHAPE(groups, opts->top_groups),
                              "E is a multiple of the groups, at most 32, and the chosen groups "
                              "have at least k experts");
    return D9D_OK;
}

static d9d_status router_check(const d9d_tensor *logits, const d9d_op_router_opts *opts)
{
    const d9d_shape *s = &logits->shape;
    const int k = opts->k;

    D9D_TRY(d9di_op_check_real("router", "logits", logits));
    if (s->ndim != 2 || k < 1 || k > s->dim[1])
        return d9di_op_misfit("router", "logits", s, "k", &D9D_SHAPE(k),
                              "logits are [T, E], k is 1 to E");
    if (s->dim[1] >= INT32_MAX || s->dim[0] > INT32_MAX / k)
        return d9di_op_misfit("router", "logits", s, "k", &D9D_SHAPE(k),
                              "rows and experts are numbered in 31 bits");
    D9D_TRY(groups_check(s, opts));
    if (opts->counted != NULL &&
        d9d_tensor_numel(opts->counted) < s->dim[1] + 2 + (opts->capacity > 0 ? 2 : 0))
        return d9di_op_misfit("router", "counted", &opts->counted->shape, "logits", s,
                              "counts are at least [2 + E], with a capacity [4 + E]");
    if (opts->bias == NULL)
        return D9D_OK;
    D9D_TRY(d9di_op_check("router", "bias", opts->bias, D9D_F32));
    if (!d9d_shape_equal(&opts->bias->shape, &D9D_SHAPE(s->dim[1])))
        return d9di_op_misfit("router", "bias", &opts->bias->shape, "logits", s,
                              "logits are [T, E], a bias [E]");
    return D9D_OK;
}

/* --- balance ---------------------------------------------------------------------------------- */

/* Add the numbers of kept and dropped choices of tokens that count. */
static d9d_status drops_count(d9d_tape *t, const d9d_router_dims *n, const d9d_tensor *dropped,
                              double *counts, const balance_state *b)
{
    const d9d_router_dims two = {.t = n->t, .rows = n->rows, .e = 2, .k = n->k};
    const d9d_router_balance own = balance_of(&b->balance, &b->weight, &b->load, &b->logits);

    return D9DI_KERNEL(t, moe->expert_load, &two, NULL, counts, d9d_tensor_data(dropped), &own);
}

/* Load of each expert in each sequence, summed over all ranks that have a part of the sequence. */
static d9d_status load_count(d9d_tape *t, const d9d_op_router_opts *opts, const d9d_router_dims *n,
                             const d9d_tensor *expert, double *total, balance_state *b)
{
    const int64_t n_load = d9d_tape_token_weights(t)->weight.shape.dim[0] * n->e;
    d9d_device *dev = d9d_tape_device(t);
    d9d_router_balance own = balance_of(&b->balance, &b->weight, &b->load, &b->logits);
    float *load = NULL;

    if (opts->aux != 0) {
        D9D_TRY(d9d_tensor_alloc(dev, D9D_F32, D9D_SHAPE(n_load / n->e, n->e), &b->load));
        load = d9d_tensor_data(&b->load);
        D9D_TRY(D9DI_KERNEL(t, elementwise->fill, D9D_F32, load, n_load, 0.0f));
    }
    if (load != NULL || total != NULL)
        D9D_TRY(D9DI_KERNEL(t, moe->expert_load, n, load, total, d9d_tensor_data(expert), &own));
    if (load == NULL)
        return D9D_OK;
    D9D_TRY(d9d_comm_all_reduce(opts->tp, dev->stream, opts->label, D9D_F32, load, n_load,
                                D9D_COMM_SUM));
    return d9d_comm_all_reduce(opts->cp, dev->stream, opts->label, D9D_F32, load, n_load,
                               D9D_COMM_SUM);
}

/* Add the sums of the two losses to sums[0] and sums[1]. */
static d9d_status losses_accumulate(d9d_tape *t, const d9d_router_dims *n, const d9d_tensor *p,
                                    const balance_state *b, double *sums)
{
    const d9d_router_balance own = balance_of(&b->balance, &b->weight, &b->load, &b->logits);
    const int64_t padded = (n->rows + 3) / 4 * 4; /* 16 bytes */
    d9d_tensor each;
    float *aux;
    d9d_status st;

    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), D9D_F32, D9D_SHAPE(2, padded), &each));
    aux = d9d_tensor_data(&each);
    D9D_TRY_OR(st,
               D9DI_KERNEL(t, moe->router_losses, n, aux, aux + padded, d9d_tensor_data(p), &own),
               out);
    for (int i = 0; i < 2; i++)
        D9D_TRY_OR(st,
                   D9DI_KERNEL(t, reduce->sum, sums + i, 1.0, D9D_F32, aux + i * padded, n->rows),
                   out);
out:
    d9d_tensor_release(&each);
    return st;
}

/* The token weights of these tokens: all, or those of a tp rank. */
static d9d_status weight_slice(const d9d_token_weights *s, int64_t rows, balance_state *b)
{
    const int64_t all = d9d_tensor_numel(&s->weight);
    const int64_t first = rows != all ? s->first : 0;
    d9d_tensor flat;

    if (s->weight.shape.ndim != 2 || first + rows > all)
        return d9di_op_misfit("router", "tokens", &D9D_SHAPE(rows), "token weights",
                              &s->weight.shape, "token weights are [B, S], tokens a slice of them");
    flat = d9d_tensor_reshape(&s->weight, D9D_SHAPE(all));
    b->weight = d9d_tensor_rows(&flat, first, rows);
    d9d_tensor_release(&flat);
    b->balance.first = first;
    b->balance.seq_len = s->weight.shape.dim[1];
    return D9D_OK;
}

static d9d_status balance_init(d9d_tape *t, const d9d_op_router_opts *opts,
                               const d9d_router_dims *n, const d9d_tensor *logits,
                               const router_choice *c, balance_state *b)
{
    double *sums =
        opts->counted != NULL && !d9d_tape_is_recompute(t) ? d9d_tensor_data(opts->counted) : NULL;

    b->balance = (d9d_router_balance){.aux = opts->aux, .z = opts->z};
    D9D_TRY(weight_slice(d9d_tape_token_weights(t), n->rows, b));
    if (opts->z != 0)
        b->logits = d9d_tensor_ref(logits);
    D9D_TRY(load_count(t, opts, n, &c->expert, sums != NULL ? sums + 2 : NULL, b));
    if (sums != NULL && c->dropped.storage != NULL)
        D9D_TRY(drops_count(t, n, &c->dropped, sums + 2 + n->e, b));
    return sums != NULL && (opts->aux != 0 || opts->z != 0)
               ? losses_accumulate(t, n, &c->p, b, sums)
               : D9D_OK;
}

/* --- forward --------------------------------------------------------------------------------- */

/* Fill p, prob and the routing, all allocated. */
static d9d_status experts_choose(d9d_tape *t, const d9d_op_router_opts *opts,
                                 const d9d_router_dims *n, const d9d_tensor *logits,
                                 const d9d_tensor *prob, d9d_routing *r, router_choice *c)
{
    const d9d_expert_order order = d9di_routing_order(r);
    const float *bias = opts->bias != NULL ? d9d_tensor_data(opts->bias) : NULL;
    d9d_device *dev = d9d_tape_device(t);

    D9D_TRY(d9d_tensor_alloc(dev, D9D_F32, logits->shape, &c->p));
    if (opts->capacity <= 0 || d9d_tape_token_weights(t) == NULL) {
        c->expert = d9d_tensor_ref(&r->expert);
        return D9DI_KERNEL(t, moe->route, n, d9d_tensor_data(&c->p), d9d_tensor_data(prob),
                           d9d_tensor_data(&r->expert), &order, d9d_tensor_data(logits), bias);
    }
    r->limited = true;
    D9D_TRY(d9d_tensor_alloc(dev, D9D_I32, r->expert.shape, &c->expert));
    D9D_TRY(D9DI_KERNEL(t, moe->router, n, d9d_tensor_data(&c->p), d9d_tensor_data(prob),
                        d9d_tensor_data(&c->expert), d9d_tensor_data(logits), bias));
    D9D_TRY(d9di_op_expert_capacity(t, opts, n, &c->expert, &r->expert, &c->dropped));
    return D9DI_KERNEL(t, moe->sort_by_expert, order.offset, order.row, order.source,
                       d9d_tensor_data(&r->expert), n->rows, n->e, n->k);
}

static d9d_status router_record(d9d_tape *t, d9d_var *logits, d9d_var *prob, const router_choice *c,
                                const d9d_router_dims *dims, const balance_state *b)
{
    const d9d_tensor *const saved[] = {
        &c->p, d9d_var_tensor(prob), &c->expert, &b->weight, &b->load, &b->logits};
    const bool balanced = b->weight.storage != NULL && (b->balance.aux != 0 || b->balance.z != 0);
    d9d_node *n;

    if (!d9d_tape_should_record(t, &logits, 1, NULL, 0))
        return D9D_OK;
    D9D_TRY(d9d_tape_record(t, &router_node_ops, &logits, 1, &prob, 1, NULL, 0, sizeof(router_attr),
                            &n));
    *(router_attr *)n->attr = (router_attr){*dims, b->balance, balanced};
    for (int i = 0; i < (balanced ? 6 : 3); i++)
        (void)d9d_node_save(n, saved[i], D9D_NEED_DGRAD);
    return D9D_OK;
}

d9d_status d9d_op_router(d9d_tape *t, d9d_var *logits, const d9d_op_router_opts *opts,
                         d9d_var **prob, d9d_routing *routing)
{
    const d9d_tensor *x = d9d_var_tensor(logits);
    d9d_routing r = {0};
    d9d_router_dims n;
    router_choice c = {0};
    balance_state b = {0};
    d9d_var *out;
    d9d_status st;

    D9D_TRY_OR(st, router_check(x, opts), out);
    n = (d9d_router_dims){x->dtype,       x->shape.dim[0],  x->shape.dim[1],
                          opts->k,        opts->sigmoid,    opts->renormalise,
                          opts->groups,   opts->top_groups, opts->scale != 0 ? opts->scale : 1.0f,
                          opts->group_max};
    D9D_TRY_OR(st, d9di_routing_alloc(d9d_tape_device(t), n.rows, n.e, n.k, &r), out);
    D9D_TRY_OR(st, d9d_tape_output(t, D9D_F32, r.expert.shape, &out), out);
    D9D_TRY_OR(st, experts_choose(t, opts, &n, x, d9d_var_tensor(out), &r, &c), out);
    if (d9d_tape_token_weights(t) != NULL &&
        (opts->aux != 0 || opts->z != 0 || opts->counted != NULL))
        D9D_TRY_OR(st, balance_init(t, opts, &n, x, &c, &b), out);
    D9D_TRY_OR(st, router_record(t, logits, out, &c, &n, &b), out);
    *prob = out;
    *routing = r;
    r = (d9d_routing){0};
out:
    d9d_routing_release(&r);
    choice_release(&c);
    balance_release(&b);
    return st;
}
