/* qwen3.c - Qwen3, dense and mixture of experts.  See d9d/models/qwen3/qwen3.h. */
#include "d9d/models/qwen3/qwen3.h"

#include <ctype.h>
#include <math.h>

#include "d9d/model/decoder_model.h"

int64_t d9d_qwen3_vocab(const d9d_qwen3_config *c)
{
    int64_t n = 0;

    for (size_t i = 0; i < c->n_splits; i++)
        n += c->splits[i].size;
    return n;
}

/* --- checks ------------------------------------------------------------------ */

/* One number of the configuration: its name in config.json, value and range.  The upper bounds keep
 * products of dimensions far from overflow. */
typedef struct dimension {
    const char *name;
    int64_t value, min, max;
} dimension;

enum { MAX_WIDTH = 1 << 20, MAX_COUNT = 1 << 16 };

static d9d_status check_ranges(const d9d_qwen3_config *c)
{
    bool moe = c->experts > 0, dense = !moe;

    for (int64_t l = 0; moe && l < c->layers && l < MAX_COUNT; l++)
        dense = dense || !d9d_qwen3_is_moe(c, l);

    const dimension dimensions[] = {
        {"hidden_size", c->hidden, 1, MAX_WIDTH},
        {"num_hidden_layers", c->layers, 1, MAX_COUNT},
        {"num_attention_heads", c->heads, 1, MAX_COUNT},
        {"num_key_value_heads", c->kv_heads, 1, MAX_COUNT},
        {"head_dim", c->head_dim, 2, MAX_COUNT},
        {"max_position_embeddings", c->max_positions, 1, INT32_MAX},
        {"intermediate_size", c->dense_intermediate, dense, MAX_WIDTH},
        {"moe_intermediate_size", c->expert_intermediate, moe, MAX_WIDTH},
        {"shared_expert_intermediate_size", c->shared_intermediate, 0, MAX_WIDTH},
        {"sliding_window", c->window, 0, INT32_MAX},
        {"num_experts", c->experts, 0, MAX_COUNT},
        {"num_experts_per_tok", c->top_k, moe, moe ? c->experts : MAX_COUNT},
        {"num_labels", c->labels, c->head == D9D_HEAD_CLASSIFICATION, MAX_COUNT},
        {"embedding_dim", c->embedding_dim, 0, MAX_WIDTH},
    };

    for (size_t i = 0; i < sizeof(dimensions) / sizeof(dimensions[0]); i++) {
        const dimension *d = &dimensions[i];

        if (d->value < d->min || d->value > d->max)
            return D9D_FAIL(D9D_ECONFIG, "qwen3: %s is %lld, outside %lld..%lld", d->name,
                            (long long)d->value, (long long)d->min, (long long)d->max);
    }
    return D9D_OK;
}

/* A base of zero or below would make every angle, and so every result, NaN. */
static d9d_status check_reals(const d9d_qwen3_config *c)
{
    if (!(c->rope_base > 0 && isfinite(c->rope_base)))
        return D9D_FAIL(D9D_ECONFIG, "qwen3: rope_theta is %g, must be above 0", c->rope_base);
    D9D_TRY(d9d_rope_check(&c->rope_scaling));
    if (!isfinite(d9d_rope_base(&c->rope_scaling, c->rope_base, c->head_dim)))
        return D9D_FAIL(D9D_ECONFIG,
                        "qwen3: scaled rotary embedding (ntk): factor %g gives no finite base of "
                        "head_dim %lld",
                        c->rope_scaling.factor, (long long)c->head_dim);
    if (c->rope_scaling.kind == D9D_ROPE_YARN && !(c->rope_base > 1))
        return D9D_FAIL(D9D_ECONFIG, "qwen3: rope_theta is %g, of yarn it must be above 1",
                        c->rope_base);
    if (!(c->norm_eps >= 0 && isfinite(c->norm_eps)))
        return D9D_FAIL(D9D_ECONFIG, "qwen3: rms_norm_eps is %g, must not be below 0",
                        (double)c->norm_eps);
    if (!(c->attention_dropout >= 0 && c->attention_dropout < 1))
        return D9D_FAIL(D9D_ECONFIG, "qwen3: attention_dropout is %g, outside 0..1",
                        c->attention_dropout);
    return D9D_OK;
}

static d9d_status check_router(const d9d_qwen3_config *c)
{
    const d9d_block_router *r = &c->router;

    if (r->top_groups > r->groups)
        return D9D_FAIL(D9D_ECONFIG,
                        "qwen3: a token chooses from %lld groups of experts, and there are %lld",
                        (long long)r->top_groups, (long long)r->groups);
    if (r->groups <= 1)
        return D9D_OK;
    if (r->groups > D9D_ROUTER_MAX_GROUPS || c->experts % r->groups != 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "qwen3: %lld groups of experts: at most %d, which divide num_experts %lld",
                        (long long)r->groups, D9D_ROUTER_MAX_GROUPS, (long long)c->experts);
    if (r->top_groups < 1 || r->top_groups * (c->experts / r->groups) < c->top_k)
        return D9D_FAIL(
            D9D_ECONFIG,
            "qwen3: %lld of %lld groups have %lld experts, and num_experts_per_tok is %lld",
            (long long)r->top_groups, (long long)r->groups,
            (long long)(r->top_groups * (c->experts / r->groups)), (long long)c->top_k);
    return D9D_OK;
}

/* Can it be a component of a tensor's name? */
static bool is_part_of_name(const char *s)
{
    if (s[0] == '\0')
        return false;
    while (*s != '\0' && !iscntrl((unsigned char)*s))
        s++;
    return *s == '\0';
}

static d9d_status check_vocabulary(const d9d_qwen3_config *c)
{
    int64_t total = 0;

    if (c->n_splits == 0)
        return D9D_FAIL(D9D_ECONFIG, "qwen3: the vocabulary has no splits");
    if (c->n_splits > D9D_NODE_MAX)
        return D9D_FAIL(D9D_ECONFIG,
                        "qwen3: the vocabulary has %zu splits, at most %d are possible",
                        c->n_splits, D9D_NODE_MAX);
    for (size_t i = 0; i < c->n_splits; i++) {
        if (!is_part_of_name(c->splits[i].name))
            return D9D_FAIL(D9D_ECONFIG,
                            "qwen3: vocabulary split %zu is called \"%s\": tensors are named after "
                            "it, by a text without control characters",
                            i, c->splits[i].name);
        if (c->splits[i].size <= 0 || c->splits[i].size > INT32_MAX - total)
            return D9D_FAIL(D9D_ECONFIG, "qwen3: vocabulary split %s has %lld ids",
                            c->splits[i].name, (long long)c->splits[i].size);
        total += c->splits[i].size;
    }
    return D9D_OK;
}

d9d_status d9d_qwen3_check(const d9d_qwen3_config *c)
{
    D9D_TRY(check_ranges(c));
    D9D_TRY(check_reals(c));
    D9D_TRY(check_router(c));
    D9D_TRY(check_vocabulary(c));
    if (c->heads % c->kv_heads != 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "qwen3: num_attention_heads %lld is not a multiple of "
                        "num_key_value_heads %lld",
                        (long long)c->heads, (long long)c->kv_heads);
    if (c->head_dim % 2 != 0)
        return D9D_FAIL(D9D_ECONFIG, "qwen3: head_dim must be even, not %lld",
                        (long long)c->head_dim);
    return D9D_OK;
}

d9d_status d9d_qwen3_trainable(const d9d_qwen3_config *c)
{
    return c->attention_dropout == 0
               ? D9D_OK
               : D9D_FAIL(D9D_ENOTSUP,
                          "qwen3: attention_dropout is %g, and models are trained with 0",
                          c->attention_dropout);
}

d9d_status d9d_qwen3_set_head(const d9d_qwen3_config *c, d9d_arena *a, d9d_head *head,
                              const d9d_qwen3_config **out)
{
    d9d_qwen3_config *new = d9d_arena_alloc(a, sizeof(*new));
    const bool same = c->head == head->kind;

    if (new == NULL)
        return D9D_FAIL(D9D_ENOMEM, "qwen3: %zu bytes", sizeof(*new));
    if (head->kind == D9D_HEAD_CAUSAL_LM && !same)
        return D9D_FAIL(D9D_ENOTSUP,
                        "qwen3: the configuration is that of a model with the head \"%s\", and the "
                        "task needs one with \"%s\"",
                        d9d_head_name(c->head), d9d_head_name(head->kind));
    if (head->kind == D9D_HEAD_CLASSIFICATION && !same && head->size == 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "task.num_labels: must be given; the model's configuration has "
                        "no labels");
    *new = *c;
    new->head = head->kind;
    new->head_unknown = false;
    new->new_head = head->kind != D9D_HEAD_CAUSAL_LM;
    new->tied_copy = c->tied_copy &&same;
    if (head->kind == D9D_HEAD_CLASSIFICATION && head->size > 0)
        new->labels = head->size;
    if (head->kind == D9D_HEAD_EMBEDDING && head->size > 0)
        new->embedding_dim = head->size;
    head->size = head->kind == D9D_HEAD_CLASSIFICATION ? new->labels
                 : head->kind == D9D_HEAD_EMBEDDING    ? new->embedding_dim
                                                       : 0;
    *out = new;
    return d9d_qwen3_check(new);
}

/* --- a layer --------------------------------------------------------------------- */

typedef struct qwen3_layer {
    d9d_decoder_layer base;
    d9d_block_norm input_layernorm, post_attention_layernorm;
    d9d_block_attention self_attn;
    bool is_moe;
    d9d_block_ffn dense; /* in a layer that is not a mixture */
    d9d_block_moe moe;   /* in a layer that is one */
} qwen3_layer;

static d9d_status layer_init(d9d_decoder_layer *base, const d9d_block_opts *opts)
{
    const d9d_qwen3_config *c = base->config;
    const d9d_block_attention_shape attention = {
        .hidden = c->hidden,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .rope = base->rope,
        .norm_eps = c->norm_eps,
        .window = d9d_qwen3_window(c, base->number),
    };
    const d9d_block_moe_shape moe = {
        .hidden = c->hidden,
        .intermediate = c->expert_intermediate,
        .experts = c->experts,
        .top_k = c->top_k,
        .renormalise = c->renormalise,
        .shared_intermediate = c->shared_intermediate,
        .shared_gate = c->shared_gate,
        .router = c->router,
        .layer = base->number,
    };
    qwen3_layer *l = (qwen3_layer *)base;

    l->is_moe = d9d_qwen3_is_moe(c, base->number);
    D9D_BLOCK_ADD(&base->module, "self_attn", attention, &l->self_attn, opts, &attention);
    if (l->is_moe)
        D9D_BLOCK_ADD(&base->module, "mlp", moe, &l->moe, opts, &moe);
    else
        D9D_BLOCK_ADD(&base->module, "mlp", ffn, &l->dense, opts, c->hidden, c->dense_intermediate);
    D9D_BLOCK_ADD(&base->module, "input_layernorm", norm, &l->input_layernorm, opts, c->hidden,
                  c->norm_eps, false);
    D9D_BLOCK_ADD(&base->module, "post_attention_layernorm", norm, &l->post_attention_layernorm,
                  opts, c->hidden, c->norm_eps, false);
    return D9D_OK;
}

/* x + attn(norm(x)). */
static d9d_status attention_forward(d9d_decoder_layer *base, d9d_tape *t,
                                    const d9d_model_layer_in *in, d9d_var **y)
{
    qwen3_layer *l = (qwen3_layer *)base;
    d9d_var *h;

    D9D_TRY(d9d_block_norm_forward(&l->input_layernorm, t, in->x, &h));
    return d9d_block_attention_forward(&l->self_attn, t, h, in->positions, in->segments, in->cache,
                                       in->x, y);
}

/* x + ffn(norm(x)); with tp ranks x has this rank's tokens. */
static d9d_status ffn_forward(d9d_decoder_layer *base, d9d_tape *t, d9d_var *x, d9d_var **y)
{
    qwen3_layer *l = (qwen3_layer *)base;
    d9d_var *h;

    D9D_TRY(d9d_block_norm_forward(&l->post_attention_layernorm, t, x, &h));
    if (!l->is_moe)
        return d9d_block_ffn_forward(&l->dense, t, h, x, y);
    D9D_TRY(d9d_block_moe_forward(&l->moe, t, h, &h));
    return d9d_op_add(t, x, h, y);
}

static d9d_block_moe *layer_moe(d9d_decoder_layer *base)
{
    qwen3_layer *l = (qwen3_layer *)base;

    return l->is_moe ? &l->moe : NULL;
}

static void layer_cache_spec(const d9d_decoder_layer *base, d9d_block_cache_spec *out)
{
    d9d_block_attention_cache_spec(&((const qwen3_layer *)base)->self_attn, out);
}

/* Twice the mean number of keys that a query of a sequence of s tokens sees.  Without a window it
 * is s, as the mean of 1 ... s is usually counted. */
static double keys_seen(int64_t window, int64_t s)
{
    const double w = (double)window;

    return window == 0 || window >= s ? (double)s : w * (2 * (double)s - w) / (double)s;
}

static double layer_flops(const d9d_decoder_layer *base, int64_t s)
{
    const d9d_qwen3_config *c = base->config;
    const int64_t attention = c->head_dim * (2 * c->heads + 2 * c->kv_heads);
    const int64_t moe =
        c->experts + 3 * (c->expert_intermediate * c->top_k + c->shared_intermediate);
    const int64_t width =
        attention + (d9d_qwen3_is_moe(c, base->number) ? moe : 3 * c->dense_intermediate);

    return 6.0 * (double)c->hidden * (double)width +
           6.0 * (double)(c->heads * c->head_dim) * keys_seen(d9d_qwen3_window(c, base->number), s);
}

/* --- the model --------------------------------------------------------------------- */

static const d9d_decoder_names qwen3_param_names = {"model.embed_tokens", "model.layers",
                                                    "model.norm", "lm_head"};
static const d9d_decoder_kind qwen3_kind = {
    .size = sizeof(qwen3_kind),
    .name = "qwen3",
    .layer = sizeof(qwen3_layer),
    .init = layer_init,
    .forward = attention_forward,
    .ffn = ffn_forward,
    .cache_spec = layer_cache_spec,
    .mixture = layer_moe,
    .flops_per_token = layer_flops,
    .names = &qwen3_param_names,
};

static d9d_decoder_shape decoder_shape(const d9d_qwen3_config *c)
{
    return (d9d_decoder_shape){
        .layers = c->layers,
        .hidden = c->hidden,
        .vocab = d9d_qwen3_vocab(c),
        .splits = c->splits,
        .n_splits = c->n_splits,
        .max_positions = c->max_positions,
        .init_std = c->init_std > 0 ? c->init_std : -1,
        .norm_eps = c->norm_eps,
        .rope = {.base = c->rope_base,
                 .scaling = c->rope_scaling,
                 .features = c->head_dim,
                 .style = c->rope_interleaved ? D9D_ROPE_INTERLEAVED : D9D_ROPE_HALF},
        .no_head = c->head != D9D_HEAD_CAUSAL_LM,
        .tied = c->tied,
        .virtual_pre = c->virtual_pre,
        .virtual_post = c->virtual_post,
    };
}

d9d_status d9d_qwen3_create(const d9d_qwen3_config *c, d9d_stage stage,
                            const d9d_model_opts *options, d9d_model **out)
{
    d9d_decoder_shape shape;

    D9D_TRY(d9d_qwen3_check(c));
    shape = decoder_shape(c);
    return d9d_decoder_create(&qwen3_kind, &shape, c, stage, options, out);
}
