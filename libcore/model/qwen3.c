/* qwen3.c - Qwen3, dense and mixture of experts.  See d9d/model/qwen3.h. */
#include "d9d/model/qwen3.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "d9d/model/model.h"

typedef struct layer {
    d9d_module module;
    d9d_block_attention self_attn;
    union {
        d9d_block_ffn dense;
        d9d_block_moe moe;
    } mlp;
    d9d_block_norm input_layernorm, post_attention_layernorm;
    bool is_moe;
    bool recompute_ffn; /* the FFN half alone is replayed in backward */
} layer;

typedef struct qwen3 {
    d9d_model base;
    d9d_qwen3_config config;
    d9d_model_options options;
    d9d_module root, model; /* root: what a checkpoint names; model: "model." of it */
    d9d_block_vocab embed_tokens, lm_head;
    d9d_block_norm norm;
    d9d_block_rope rope;
    layer *layers;
    int64_t first, end; /* global numbers of this stage's layers */
} qwen3;

int64_t d9d_qwen3_vocab(const d9d_qwen3_config *c)
{
    int64_t n = 0;

    for (size_t i = 0; i < c->n_splits; i++)
        n += c->splits[i].size;
    return n;
}

/* --- checks ------------------------------------------------------------------ */

/* One number of the configuration: its name in config.json, its value, its range.  The upper
 * bounds keep every product of dimensions far from overflow. */
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

/* A base of zero or below makes every angle, and with it every number, no number. */
static d9d_status check_reals(const d9d_qwen3_config *c)
{
    if (!(c->rope_base > 0 && isfinite(c->rope_base)))
        return D9D_FAIL(D9D_ECONFIG, "qwen3: rope_theta is %g, must be above 0", c->rope_base);
    D9D_TRY(d9d_rope_check(&c->rope_scaling));
    if (c->rope_scaling.kind == D9D_ROPE_YARN && !(c->rope_base > 1))
        return D9D_FAIL(D9D_ECONFIG, "qwen3: rope_theta is %g, of yarn it must be above 1",
                        c->rope_base);
    if (!(c->norm_eps >= 0 && isfinite(c->norm_eps)))
        return D9D_FAIL(D9D_ECONFIG, "qwen3: rms_norm_eps is %g, must not be below 0",
                        (double)c->norm_eps);
    return D9D_OK;
}

static d9d_status check_router(const d9d_qwen3_config *c)
{
    const d9d_router *r = &c->router;

    if (r->groups <= 1)
        return D9D_OK;
    if (r->groups > D9D_ROUTER_GROUPS || c->experts % r->groups != 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "qwen3: %lld groups of experts: at most %d, which divide num_experts %lld",
                        (long long)r->groups, D9D_ROUTER_GROUPS, (long long)c->experts);
    if (r->top_groups < 1 || r->top_groups > r->groups ||
        r->top_groups * (c->experts / r->groups) < c->top_k)
        return D9D_FAIL(D9D_ECONFIG,
                        "qwen3: the best %lld of %lld groups have %lld experts, and "
                        "num_experts_per_tok is %lld",
                        (long long)r->top_groups, (long long)r->groups,
                        (long long)(r->top_groups * (c->experts / r->groups)), (long long)c->top_k);
    return D9D_OK;
}

static d9d_status check_vocabulary(const d9d_qwen3_config *c)
{
    int64_t total = 0;

    if (c->n_splits == 0)
        return D9D_FAIL(D9D_ECONFIG, "qwen3: the vocabulary has no splits");
    for (size_t i = 0; i < c->n_splits; i++) {
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

/* Does it end with the head of a language model, and is that the embedding? */
static bool has_lm_head(const d9d_qwen3_config *c)
{
    return c->head == D9D_HEAD_CAUSAL_LM;
}
static bool is_tied(const d9d_qwen3_config *c)
{
    return c->tied && has_lm_head(c);
}

d9d_status d9d_qwen3_rehead(const d9d_qwen3_config *c, d9d_arena *a, d9d_head *head,
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
                        d9d_head_word(c->head), d9d_head_word(head->kind));
    if (head->kind == D9D_HEAD_CLASSIFICATION && !same && head->size == 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "task.num_labels: must be given; the model's configuration has "
                        "no labels");
    *new = *c;
    new->head = head->kind;
    new->head_open = false;
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

/* --- structure ---------------------------------------------------------------- */

static d9d_status layer_init(layer *l, const qwen3 *m, int64_t number)
{
    const d9d_qwen3_config *c = &m->config;
    const d9d_block_how how = {m->options.dtype, c->init_std, &m->base.cut};
    const d9d_attention_shape attention = {
        .hidden = c->hidden,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .rope = &m->rope,
        .norm_eps = c->norm_eps,
        .window = d9d_qwen3_window(c, number),
    };
    const d9d_moe_shape moe = {
        .hidden = c->hidden,
        .intermediate = c->expert_intermediate,
        .experts = c->experts,
        .top_k = c->top_k,
        .renormalise = c->renormalise,
        .shared_intermediate = c->shared_intermediate,
        .shared_gate = c->shared_gate,
        .router = c->router,
        .layer = number,
    };

    l->is_moe = d9d_qwen3_is_moe(c, number);
    l->recompute_ffn = m->options.checkpointing == D9D_RECOMPUTE_SELECTIVE;
    d9d_module_init(&l->module);
    D9D_TRY(d9d_block_attention_init(&l->self_attn, &how, &attention));
    D9D_TRY(l->is_moe ? d9d_block_moe_init(&l->mlp.moe, &how, &moe)
                      : d9d_block_ffn_init(&l->mlp.dense, &how, c->hidden, c->dense_intermediate));
    D9D_TRY(d9d_block_norm_init(&l->input_layernorm, &how, c->hidden, c->norm_eps, false));
    D9D_TRY(d9d_block_norm_init(&l->post_attention_layernorm, &how, c->hidden, c->norm_eps, false));
    D9D_TRY(d9d_module_child(&l->module, "self_attn", &l->self_attn.module));
    D9D_TRY(
        d9d_module_child(&l->module, "mlp", l->is_moe ? &l->mlp.moe.module : &l->mlp.dense.module));
    D9D_TRY(d9d_module_child(&l->module, "input_layernorm", &l->input_layernorm.module));
    return d9d_module_child(&l->module, "post_attention_layernorm",
                            &l->post_attention_layernorm.module);
}

static d9d_status layers_init(qwen3 *m)
{
    int64_t n = m->end - m->first;
    char name[32];

    m->layers = calloc((size_t)n + 1, sizeof(*m->layers));
    m->base.mixtures = calloc((size_t)n + 1, sizeof(d9d_block_moe *));
    if (m->layers == NULL || m->base.mixtures == NULL)
        return D9D_FAIL(D9D_ENOMEM, "qwen3: %lld layers", (long long)n);
    for (int64_t i = 0; i < n; i++) {
        D9D_TRY(layer_init(&m->layers[i], m, m->first + i));
        (void)snprintf(name, sizeof(name), "layers.%lld", (long long)(m->first + i));
        D9D_TRY(d9d_module_child(&m->model, name, &m->layers[i].module));
        if (m->layers[i].is_moe)
            m->base.mixtures[m->base.n_mixtures++] = &m->layers[i].mlp.moe;
    }
    return D9D_OK;
}

static d9d_status structure_init(qwen3 *m)
{
    const d9d_qwen3_config *c = &m->config;
    const d9d_block_how how = {m->options.dtype, c->init_std, &m->base.cut};
    bool first = d9d_stage_is_first(m->base.stage), last = d9d_stage_is_last(m->base.stage);

    d9d_module_init(&m->root);
    d9d_module_init(&m->model);
    D9D_TRY(d9d_module_child(&m->root, "model", &m->model));
    if (first != last && is_tied(c))
        m->base.tied = &m->embed_tokens.module;
    if (first || m->base.tied != NULL) {
        D9D_TRY(d9d_block_vocab_init(&m->embed_tokens, &how, D9D_VOCAB_EMBEDDING, c->splits,
                                     c->n_splits, c->hidden));
        D9D_TRY(d9d_module_child(&m->model, "embed_tokens", &m->embed_tokens.module));
    }
    D9D_TRY(layers_init(m));
    if (last) {
        D9D_TRY(d9d_block_norm_init(&m->norm, &how, c->hidden, c->norm_eps, false));
        D9D_TRY(d9d_module_child(&m->model, "norm", &m->norm.module));
    }
    if (last && has_lm_head(c) && !c->tied) {
        D9D_TRY(d9d_block_vocab_init(&m->lm_head, &how, D9D_VOCAB_HEAD, c->splits, c->n_splits,
                                     c->hidden));
        D9D_TRY(d9d_module_child(&m->root, "lm_head", &m->lm_head.module));
    }
    return D9D_OK;
}

/* What forward opens and closes. */
static d9d_status units_list(qwen3 *m)
{
    const int64_t n = m->end - m->first;
    size_t k = 0;

    m->base.units = calloc((size_t)n + 3, sizeof(d9d_module *));
    if (m->base.units == NULL)
        return D9D_FAIL(D9D_ENOMEM, "qwen3: %lld layers", (long long)n);
    if (d9d_stage_is_first(m->base.stage))
        m->base.units[k++] = &m->embed_tokens.module;
    for (int64_t i = 0; i < n; i++)
        m->base.units[k++] = &m->layers[i].module;
    if (d9d_stage_is_last(m->base.stage))
        m->base.units[k++] = &m->norm.module;
    if (d9d_stage_is_last(m->base.stage) && has_lm_head(&m->config))
        m->base.units[k++] = m->config.tied ? &m->embed_tokens.module : &m->lm_head.module;
    m->base.n_units = k;
    return D9D_OK;
}

/* --- forward ---------------------------------------------------------------------- */

/* in: x [B, S, H], or this rank's tokens; out: x + ffn(norm(x)). */
static d9d_status ffn_half(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                           size_t n_out)
{
    layer *l = self;
    d9d_var *h;

    (void)n_in, (void)n_out;
    D9D_TRY(d9d_block_norm_forward(&l->post_attention_layernorm, t, in[0], &h));
    if (!l->is_moe)
        return d9d_block_ffn_forward(&l->mlp.dense, t, h, in[0], &out[0]);
    D9D_TRY(d9d_block_moe_forward(&l->mlp.moe, t, h, &h));
    return d9d_op_add(t, in[0], h, &out[0]);
}

static d9d_status layer_forward(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                                d9d_var **out, size_t n_out)
{
    layer *l = self;
    d9d_block_cache room;
    d9d_layer_in i;
    d9d_var *h, *x;

    d9d_layer_in_of(in, n_in, &room, &i);
    D9D_TRY(d9d_block_norm_forward(&l->input_layernorm, t, i.x, &h));
    D9D_TRY(d9d_block_attention_forward(&l->self_attn, t, h, i.positions, i.segments, i.cache, i.x,
                                        &x));
    if (l->recompute_ffn)
        return d9d_tape_checkpoint(t, ffn_half, l, &x, 1, out, n_out);
    return ffn_half(l, t, &x, 1, out, n_out);
}

static d9d_status tell(const d9d_tap *tap, d9d_tape *t, int64_t number, d9d_var *x)
{
    return tap != NULL ? tap->hear(tap->arg, t, number, x) : D9D_OK;
}

static d9d_status layers_forward(qwen3 *m, d9d_tape *t, const d9d_model_in *in, d9d_var **x)
{
    d9d_var *args[D9D_LAYER_INPUTS];
    size_t n_in;

    for (int64_t i = 0; i < m->end - m->first; i++) {
        size_t mark = d9d_tape_mark(t);
        layer *l = &m->layers[i];

        args[0] = *x;
        D9D_TRY(d9d_layer_inputs(t, in, i, args, &n_in));
        D9D_TRY(d9d_unit_open(&l->module, t));
        if (m->options.checkpointing == D9D_RECOMPUTE_FULL)
            D9D_TRY(d9d_tape_checkpoint(t, layer_forward, l, args, n_in, x, 1));
        else
            D9D_TRY(layer_forward(l, t, args, n_in, x, 1));
        D9D_TRY(d9d_unit_close(&l->module, t));
        d9d_tape_release_since(t, mark, x, 1);
        D9D_TRY(tell(in->tap, t, m->first + i + 1, *x));
    }
    return D9D_OK;
}

/* All logits, for a test. */
static d9d_status all_logits(d9d_block_vocab *head, d9d_tape *t, d9d_var *hidden, d9d_var **logits)
{
    const d9d_shape *s = &d9d_var_tensor(hidden)->shape;
    const int64_t features = s->dim[s->ndim - 1];
    d9d_var *h;

    if (d9d_cut_tp(head->cut) != NULL)
        return D9D_FAIL(D9D_ENOTSUP, "qwen3: logits over %d tensor-parallel ranks",
                        d9d_comm_size(head->cut->tp));
    if (head->n_splits != 1)
        return D9D_FAIL(D9D_ENOTSUP, "qwen3: logits of a vocabulary in %zu splits", head->n_splits);
    D9D_TRY(d9d_op_reshape(t, hidden, D9D_SHAPE(d9d_shape_numel(s) / features, features), &h));
    D9D_TRY(d9d_unit_open(&head->module, t));
    D9D_TRY(d9d_op_linear(t, h, head->table[0], logits));
    return d9d_unit_close(&head->module, t);
}

/* The final norm, then the head. */
static d9d_status head_forward(qwen3 *m, d9d_tape *t, const d9d_model_in *in, d9d_var *x,
                               d9d_model_out *out)
{
    d9d_block_vocab *head = m->config.tied ? &m->embed_tokens : &m->lm_head;

    D9D_TRY(d9d_unit_open(&m->norm.module, t));
    D9D_TRY(d9d_block_norm_forward(&m->norm, t, x, &out->hidden));
    D9D_TRY(d9d_unit_close(&m->norm.module, t));
    if (!has_lm_head(&m->config))
        return D9D_OK;
    D9D_TRY(d9d_model_loss(head, t, in, out));
    if (!in->want_logits || in->pick != NULL)
        return D9D_OK;
    return all_logits(head, t, out->hidden, &out->logits);
}

static d9d_status embed_forward(qwen3 *m, d9d_tape *t, const d9d_model_in *in, d9d_var **x)
{
    D9D_TRY(d9d_unit_open(&m->embed_tokens.module, t));
    D9D_TRY(d9d_block_vocab_embed(&m->embed_tokens, t, in->ids, x));
    D9D_TRY(d9d_unit_close(&m->embed_tokens.module, t));
    return tell(in->tap, t, 0, *x);
}

static d9d_status qwen3_forward(d9d_model *base, d9d_tape *t, const d9d_model_in *in,
                                d9d_model_out *out)
{
    qwen3 *m = (qwen3 *)base;
    d9d_model_out o = {0};

    D9D_TRY(d9d_block_rope_prepare(&m->rope, d9d_tape_device(t)));
    o.hidden = in->hidden;
    if (d9d_stage_is_first(base->stage))
        D9D_TRY(embed_forward(m, t, in, &o.hidden));
    D9D_TRY(layers_forward(m, t, in, &o.hidden));
    if (d9d_stage_is_last(base->stage))
        D9D_TRY(head_forward(m, t, in, o.hidden, &o));
    *out = o;
    return D9D_OK;
}

/* --- the table ---------------------------------------------------------------------- */

/* Keys that the queries of a row of s see, on average, times two; without a window s, as the mean
 * of 1 ... s is counted everywhere. */
static double keys_seen(int64_t window, int64_t s)
{
    const double w = (double)window;

    return window == 0 || window >= s ? (double)s : w * (2 * (double)s - w) / (double)s;
}

static double qwen3_flops(const d9d_model *base, int64_t s)
{
    const qwen3 *m = (const qwen3 *)base;
    const d9d_qwen3_config *c = &m->config;
    double attention =
        (double)c->hidden * (double)c->head_dim * (double)(2 * c->heads + 2 * c->kv_heads);
    double dense = 3.0 * (double)c->hidden * (double)c->dense_intermediate;
    double expert = 3.0 * (double)c->hidden * (double)c->expert_intermediate * (double)c->top_k;
    double shared = 3.0 * (double)c->hidden * (double)c->shared_intermediate;
    double moe = (double)c->hidden * (double)c->experts + expert + shared;
    double weights = 0, keys = 0;

    for (int64_t l = m->first; l < m->end; l++) {
        weights += attention + (d9d_qwen3_is_moe(c, l) ? moe : dense);
        keys += keys_seen(d9d_qwen3_window(c, l), s);
    }
    if (d9d_stage_is_last(base->stage) && has_lm_head(c))
        weights += (double)c->hidden * (double)base->vocab;
    return 6.0 * weights + 6.0 * (double)(c->heads * c->head_dim) * keys;
}

static void qwen3_cells(const d9d_model *base, int64_t i, d9d_cells *out)
{
    d9d_block_attention_cells(&((const qwen3 *)base)->layers[i].self_attn, out);
}

static void qwen3_free(d9d_model *base)
{
    qwen3 *m = (qwen3 *)base;

    d9d_module_release(&m->root);
    d9d_block_rope_release(&m->rope);
    free(m->base.units);
    free(m->base.mixtures);
    free(m->layers);
    free(m);
}

static const d9d_model_ops qwen3_ops = {
    .size = sizeof(d9d_model_ops),
    .name = "qwen3",
    .forward = qwen3_forward,
    .flops_per_token = qwen3_flops,
    .cells = qwen3_cells,
    .taps = true,
    .free = qwen3_free,
};

d9d_status d9d_qwen3_create(const d9d_qwen3_config *config, d9d_stage stage,
                            const d9d_model_options *options, d9d_model **out)
{
    qwen3 *m;
    d9d_status st;

    D9D_TRY(d9d_qwen3_check(config));
    m = calloc(1, sizeof(*m));
    if (m == NULL)
        return D9D_FAIL(D9D_ENOMEM, "qwen3: model of %lld layers", (long long)config->layers);
    m->base = (d9d_model){
        .ops = &qwen3_ops,
        .module = &m->root,
        .stage = stage,
        .hidden = config->hidden,
        .vocab = d9d_qwen3_vocab(config),
        .max_positions = config->max_positions,
        .dtype = options->dtype,
    };
    m->config = *config;
    m->options = *options;
    m->rope = (d9d_block_rope){
        .base = config->rope_base,
        .scaling = config->rope_scaling,
        .features = config->head_dim,
        .style = config->rope_interleaved ? D9D_ROPE_INTERLEAVED : D9D_ROPE_HALF,
    };
    D9D_TRY_OR(st,
               d9d_stage_layers(config->layers, config->virtual_pre, config->virtual_post, stage,
                                &m->first, &m->end),
               out);
    m->base.layers = m->end - m->first;
    D9D_TRY_OR(st, structure_init(m), out);
    D9D_TRY_OR(st, units_list(m), out);
    *out = &m->base;
    m = NULL;
out:
    if (m != NULL)
        qwen3_free(&m->base);
    return st;
}
