/* moe_block.c - mixture of experts with an optional shared expert.  See d9d/nn/block.h. */
#include "d9d/nn/expert_copies.h"
#include "nn/block_init.h"

static d9d_status grouped_init(d9d_block_grouped_linear *b, const d9d_block_opts *opts,
                               const d9d_block_moe_shape *shape, int64_t in, int64_t out)
{
    const int64_t experts = shape->experts;
    const d9d_param_parallel parallel = {D9D_EXPERT_PARALLEL, experts, false, "num_experts", false};
    float scale;
    d9d_init_kind kind = d9di_block_init(opts, in, &scale);

    d9d_module_init(&b->module);
    D9D_TRY(d9d_module_param(&b->module, "weight", &b->weight, opts->dtype,
                             D9D_SHAPE(experts, in, out), kind, scale));
    b->weight.spec.adaptable = true;
    d9di_block_divide(&b->weight, opts, parallel);
    if (!shape->bias)
        return D9D_OK;
    D9D_TRY(d9d_module_param(&b->module, "bias", &b->bias, opts->dtype, D9D_SHAPE(experts, out),
                             D9D_INIT_ZEROS, 0));
    d9di_block_divide(&b->bias, opts, parallel);
    return D9D_OK;
}

/* The shared expert is replicated: like the router, it computes this rank's tokens. */
static d9d_status shared_init(d9d_block_moe *b, const d9d_block_opts *opts)
{
    const d9d_block_opts alone = {opts->dtype, opts->init_std, NULL, NULL};

    d9d_module_init(&b->shared_expert);
    D9D_TRY(
        d9d_block_ffn_init(&b->shared, &alone,
                           &(d9d_block_ffn_shape){.hidden = b->shape.hidden,
                                                  .intermediate = b->shape.shared_intermediate}));
    D9D_TRY(d9d_module_child(&b->shared_expert, "expert", &b->shared.module));
    if (b->shape.shared_gate) {
        D9D_TRY(d9d_block_linear_init(&b->shared_gate, opts, b->shape.hidden, 1));
        D9D_TRY(d9d_module_child(&b->shared_expert, "gate", &b->shared_gate.module));
    }
    return d9d_module_child(&b->module, "shared_expert", &b->shared_expert);
}

/* Checkpoints without the bias still load. */
static d9d_status bias_init(d9d_block_moe *b)
{
    d9d_param *p = &b->expert_bias;

    D9D_TRY(d9d_module_param(&b->router, D9D_ROUTER_BIAS, p, D9D_F32, D9D_SHAPE(b->shape.experts),
                             D9D_INIT_ZEROS, 0));
    p->spec.trainable = false;
    p->spec.is_buffer = p->spec.is_mutable_buffer = p->spec.from_task = true;
    return D9D_OK;
}

d9d_status d9d_block_router_check(const char *where, const char *field, int64_t experts,
                                  int64_t top_k, const d9d_block_router *r)
{
    const long long n = experts, k = top_k, groups = r->groups, best = r->top_groups;

    if (top_k < 1 || top_k > experts)
        return D9D_FAIL(D9D_ECONFIG, "%s: num_experts_per_tok is %lld, of %s %lld", where, k, field,
                        n);
    if (r->top_groups > r->groups)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: topk_group (router.top_groups) is %lld, of n_group (router.groups) "
                        "%lld",
                        where, best, groups);
    if (r->groups <= 1)
        return D9D_OK;
    if (r->groups > D9D_ROUTER_MAX_GROUPS || experts % r->groups != 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: n_group (router.groups) is %lld: at most %d groups, which divide %s "
                        "%lld",
                        where, groups, D9D_ROUTER_MAX_GROUPS, field, n);
    if (r->top_groups < 1 || r->top_groups * (experts / r->groups) < top_k)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: topk_group (router.top_groups) %lld of n_group (router.groups) %lld "
                        "have %lld experts of %s %lld, and num_experts_per_tok is %lld",
                        where, best, groups, best * (n / groups), field, n, k);
    return D9D_OK;
}

d9d_status d9d_block_moe_init(d9d_block_moe *b, const d9d_block_opts *opts,
                              const d9d_block_moe_shape *shape)
{
    int64_t h = shape->hidden, e = shape->experts, n = shape->intermediate;
    const struct d9di_block_child projections[] = {
        {"gate_proj", &b->gate_proj.module},
        {"up_proj", &b->up_proj.module},
        {"down_proj", &b->down_proj.module},
    };

    b->shape = *shape;
    b->groups = opts->groups;
    if (opts->blocks != NULL)
        opts->blocks->moe = b;
    d9d_module_init(&b->module);
    d9d_module_init(&b->router);
    d9d_module_init(&b->grouped_experts);
    D9D_TRY(
        d9d_block_router_check("mixture of experts", "experts", e, shape->top_k, &shape->router));
    D9D_TRY(d9d_block_linear_init(&b->gate, opts, h, e));
    D9D_TRY(grouped_init(&b->gate_proj, opts, shape, h, n));
    D9D_TRY(grouped_init(&b->up_proj, opts, shape, h, n));
    D9D_TRY(grouped_init(&b->down_proj, opts, shape, n, h));
    if (shape->router_bias)
        D9D_TRY(d9d_module_param(&b->gate.module, "bias", &b->gate_bias, opts->dtype, D9D_SHAPE(e),
                                 D9D_INIT_ZEROS, 0));
    D9D_TRY(d9d_module_child(&b->router, "gate", &b->gate.module));
    if (shape->router.expert_bias)
        D9D_TRY(bias_init(b));
    D9D_TRY(d9d_module_child(&b->module, "router", &b->router));
    D9D_TRY(d9di_block_children(&b->grouped_experts, projections, 3));
    D9D_TRY(d9d_module_child(&b->module, "grouped_experts", &b->grouped_experts));
    return shape->shared_intermediate > 0 ? shared_init(b, opts) : D9D_OK;
}

/* The feed-forward of each token's experts, weighted by prob, plus a residual that may be NULL. */
static d9d_status experts_forward(d9d_block_moe *b, d9d_tape *t, d9d_var *x, d9d_var *prob,
                                  const d9d_routing *r, d9d_var *plus, d9d_var **y)
{
    const bool bias = b->shape.bias;
    const d9d_op_ffn_weights w = {.gate = &b->gate_proj.weight,
                                  .up = &b->up_proj.weight,
                                  .down = &b->down_proj.weight,
                                  .gate_bias = bias ? &b->gate_proj.bias : NULL,
                                  .up_bias = bias ? &b->up_proj.bias : NULL,
                                  .down_bias = bias ? &b->down_proj.bias : NULL,
                                  .glu = b->shape.glu};

    return d9d_op_experts(t, x, prob, &w, r, plus, y);
}

/* Are some of the experts' tokens computed by copies? */
static bool uses_copies(const d9d_block_moe *b, const d9d_tape *t)
{
    const d9d_token_weights *w = d9d_tape_token_weights(t);

    return b->copies != NULL && b->copies->n > 0 && w != NULL && w->lane.storage != NULL;
}

/* The same on a rank of a group whose experts have copies: its own experts, and its copies. */
static d9d_status places_forward(d9d_block_moe *b, d9d_tape *t, d9d_var *x, d9d_var *prob,
                                 const d9d_routing *r, d9d_var **y)
{
    const d9d_op_ffn_weights w = d9d_expert_copies_weights(b);
    d9d_routing own = {0}, copied = {0};
    d9d_status st;

    D9D_TRY(d9d_op_split_copies(t, r, &b->copies->number, b->copies->slots, &own, &copied));
    st = experts_forward(b, t, x, prob, &own, NULL, y);
    if (st == D9D_OK)
        st = d9d_op_experts(t, x, prob, &w, &copied, *y, y);
    d9d_routing_release(&own);
    d9d_routing_release(&copied);
    return st;
}

enum { EP_LEVELS = 2 }; /* groups over which experts are divided, one after the other */

/* The same with expert parallelism: dispatch, experts, combine; over nodes, then inside each. */
static d9d_status experts_forward_ep(d9d_block_moe *b, d9d_tape *t, int level, d9d_var *x,
                                     d9d_var *prob, const d9d_routing *r, d9d_var **y)
{
    d9d_comm *const groups[EP_LEVELS] = {d9d_groups_ep(b->groups), d9d_groups_ep_local(b->groups)};
    d9d_op_moe_dispatch there;
    d9d_var *part;
    d9d_status st;

    if (level == EP_LEVELS)
        return uses_copies(b, t) ? places_forward(b, t, x, prob, r, y)
                                 : experts_forward(b, t, x, prob, r, NULL, y);
    D9D_TRY(d9d_op_dispatch(t, groups[level], b->gate.weight.name, x, prob, r, &there));
    D9D_TRY_OR(st, experts_forward_ep(b, t, level + 1, there.x, there.prob, &there.routing, &part),
               out);
    st = d9d_op_combine(t, part, &there, y);
out:
    d9d_op_moe_dispatch_release(&there);
    return st;
}

/* What all experts of a token depend on: the router's logits and, where there is one, the shared
 * expert's gate. */
enum { LOGITS, SHARED_GATE, PROJECTIONS };

static d9d_status tokens_project(d9d_block_moe *b, d9d_tape *t, d9d_var *x, d9d_var *y[PROJECTIONS])
{
    const bool gated = b->shape.shared_intermediate > 0 && b->shape.shared_gate;
    const d9d_op_weight_slice of[PROJECTIONS] = {
        {&b->gate.weight, 0, b->shape.experts, b->shape.router_bias ? &b->gate_bias : NULL},
        {&b->shared_gate.weight, 0, 1, NULL}};

    return d9d_op_linear_multi(t, x, NULL, of, gated ? 2 : 1, y);
}

/* y = plus + shared(x) */
static d9d_status shared_forward(d9d_block_moe *b, d9d_tape *t, d9d_var *x, d9d_var *gate,
                                 d9d_var *plus, d9d_var **y)
{
    d9d_var *h;

    if (!b->shape.shared_gate)
        return d9d_block_ffn_forward(&b->shared, t, x, plus, y);
    D9D_TRY(d9d_block_ffn_forward(&b->shared, t, x, NULL, &h));
    D9D_TRY(d9d_op_sigmoid_gate(t, h, gate, &h));
    return d9d_op_add(t, plus, h, y);
}

static d9d_status tokens_route(d9d_block_moe *b, d9d_tape *t, d9d_var *logits, d9d_var **prob,
                               d9d_routing *r)
{
    const d9d_block_router *router = &b->shape.router;

    return d9d_op_router(t, logits,
                         &(d9d_op_router_opts){
                             .k = (int)b->shape.top_k,
                             .sigmoid = router->score == D9D_SCORE_SIGMOID,
                             .renormalise = b->shape.renormalise,
                             .groups = (int)router->groups,
                             .top_groups = (int)router->top_groups,
                             .group_max = router->group_max,
                             .scale = (float)router->scale,
                             .bias = router->expert_bias ? &b->expert_bias.local.data : NULL,
                             .aux = (float)router->aux_loss,
                             .z = (float)router->z_loss,
                             .capacity = router->capacity,
                             .counted = b->counted.storage != NULL ? &b->counted : NULL,
                             .tp = d9d_groups_tp(b->groups),
                             .cp = d9d_groups_cp(b->groups),
                             .label = b->gate.weight.name,
                         },
                         prob, r);
}

/* Are all experts on this rank? */
static bool is_alone(const d9d_block_moe *b)
{
    return d9d_comm_size(d9d_groups_ep(b->groups)) == 1 &&
           d9d_comm_size(d9d_groups_ep_local(b->groups)) == 1;
}

/* Chooses a place for each choice, where experts have copies. */
static d9d_status tokens_place(d9d_block_moe *b, d9d_tape *t, d9d_routing *r)
{
    d9d_routing placed;

    if (!uses_copies(b, t))
        return D9D_OK;
    D9D_TRY(d9d_expert_copies_fetch(b, d9d_tape_device(t)));
    D9D_TRY(d9d_op_route_copies(t, r, &b->copies->table, 2 * b->shape.experts, &placed));
    d9d_routing_release(r);
    *r = placed;
    return D9D_OK;
}

static d9d_status mixture_forward(d9d_block_moe *b, d9d_tape *t, d9d_var *x, d9d_var *shared_gate,
                                  d9d_var *prob, const d9d_routing *r, d9d_var *plus, d9d_var **y)
{
    const bool alone = is_alone(b);

    D9D_TRY(alone ? experts_forward(b, t, x, prob, r, plus, y)
                  : experts_forward_ep(b, t, 0, x, prob, r, y));
    if (!alone && plus != NULL)
        D9D_TRY(d9d_op_add(t, plus, *y, y));
    return b->shape.shared_intermediate > 0 ? shared_forward(b, t, x, shared_gate, *y, y) : D9D_OK;
}

/* Dropout of experts' adapters reads the numbers of tokens, wherever the experts are. */
static d9d_status tokens_number(d9d_block_moe *b, d9d_tape *t, d9d_routing *r)
{
    const d9d_param *const weights[] = {&b->gate_proj.weight, &b->up_proj.weight,
                                        &b->down_proj.weight};

    for (int i = 0; i < 3; i++) {
        const d9d_param_adapter *a = d9d_tape_adapter(t, weights[i]);

        if (a != NULL && d9d_op_dropout_is_active(t, a->dropout))
            return d9d_op_routing_number(t, r);
    }
    return D9D_OK;
}

d9d_status d9d_block_moe_forward(d9d_block_moe *b, d9d_tape *t, d9d_var *x, d9d_var *plus,
                                 d9d_var **y)
{
    d9d_shape shape = d9d_var_tensor(x)->shape;
    int64_t h = b->shape.hidden, tokens = d9d_shape_numel(&shape) / h;
    d9d_var *flat, *in[PROJECTIONS] = {NULL}, *prob, *mixed = plus;
    d9d_routing r = {0};
    d9d_status st;

    D9D_TRY(d9d_op_reshape(t, x, D9D_SHAPE(tokens, h), &flat));
    if (plus != NULL)
        D9D_TRY(d9d_op_reshape(t, plus, D9D_SHAPE(tokens, h), &mixed));
    D9D_TRY(tokens_project(b, t, flat, in));
    D9D_TRY(tokens_route(b, t, in[LOGITS], &prob, &r));
    D9D_TRY_OR(st, tokens_number(b, t, &r), out);
    if (is_alone(b))
        D9D_TRY_OR(st, d9d_op_routing_trim(t, &r), out);
    else
        D9D_TRY_OR(st, tokens_place(b, t, &r), out);
    D9D_TRY_OR(st, mixture_forward(b, t, flat, in[SHARED_GATE], prob, &r, mixed, &mixed), out);
    st = d9d_op_reshape(t, mixed, shape, y);
out:
    d9d_routing_release(&r);
    return st;
}

d9d_status d9d_block_moe_update_expert_bias(d9d_block_moe *b, d9d_device *dev,
                                            const d9d_tensor *scale)
{
    d9d_param *p = &b->expert_bias;
    const double rate = b->shape.router.bias_rate;

    if (!b->shape.router.expert_bias || !p->spec.is_mutable_buffer || rate == 0)
        return D9D_OK;
    return dev->kernels->moe->router_bias(dev->stream, d9d_tensor_data(&p->shard.data),
                                          (const double *)d9d_tensor_data(&b->counted) + 2,
                                          d9d_tensor_data(scale), (float)rate, p->shard.offset[0],
                                          p->shard.shape.dim[0], b->shape.experts);
}
