/* decoder_model.c - see d9d/model/decoder_model.h. */
#include "d9d/model/decoder_model.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/dtype.h"
#include "d9d/base/plugin_call.h"
#include "model/layer_blocks.h"

/* A norm of one of the two kinds. */
typedef struct decoder_norm {
    d9d_block_norm rms;
    d9d_block_layer_norm layer;
    d9d_module *module; /* of one of the two; NULL: there is none */
} decoder_norm;

typedef struct decoder {
    d9d_model base;
    d9d_model_ops ops;     /* with its kind's name */
    d9d_decoder_kind kind; /* members that are newer than the author's header are zero */
    bool recompute;        /* recompute whole layers */
    d9d_module root;
    d9d_block_vocab embed, own_head;
    d9d_block_vocab *head; /* one of the two, or NULL */
    d9d_block_mlm_head mlm_head;
    bool has_mlm_head; /* on this stage */
    d9d_block_position_embedding positions;
    bool learns_positions; /* they are in use, on the first stage */
    float embed_dropout;
    decoder_norm embed_norm, final_norm;
    d9d_block_rope rope, local_rope;
    char *layers; /* kind.layer bytes each */
} decoder;

static const d9d_decoder_names default_names = {"embed",           "layers",     "norm",    "head",
                                                "embed_positions", "embed_norm", "mlm_head"};

const d9d_hf_name_pair d9d_decoder_hf_names[] = {
    {"embed.token_embedding.all.", "model.embed_tokens."},
    {"layers.", "model.layers."},
    {"norm.", "model.norm."},
    {"head.lm_head.all.", "lm_head."},
    {NULL, NULL}};

/* Layer i of this stage. */
static d9d_decoder_layer *layer_at(const decoder *m, int64_t i)
{
    return (d9d_decoder_layer *)(void *)(m->layers + (size_t)i * m->kind.layer);
}

/* --- structure ----------------------------------------------------------------------------- */

static d9d_status layer_init(decoder *m, d9d_decoder_layer *l, const d9d_block_opts *of_model)
{
    d9d_block_opts opts = *of_model;
    const char *name =
        d9d_arena_printf(&m->root.names, "%s.%lld", m->kind.names->layers, (long long)l->number);
    d9d_block_moe *mixture;

    opts.blocks = &l->blocks;
    D9D_TRY(d9d_model_add_unit(&m->base, name, &l->module));
    D9D_TRY(D9D_PLUGIN_CALL(m->kind.name, &m->kind, init, l, &opts));
    m->base.bidirectional |=
        l->blocks.attention != NULL && l->blocks.attention->shape.bidirectional;
    m->base.dropout |= l->blocks.dropout;
    m->base.whole_sequences |= l->blocks.gated_delta != NULL;
    mixture = m->kind.mixture != NULL ? m->kind.mixture(l) : l->blocks.moe;
    if (mixture != NULL)
        m->base.mixtures[m->base.n_mixtures++] = mixture;
    return D9D_OK;
}

static d9d_status layers_init(decoder *m, const d9d_decoder_shape *s, const void *config,
                              d9d_model_recompute_mode mode, const d9d_block_opts *opts)
{
    int64_t first, end;

    D9D_TRY(
        d9d_stage_layers(s->layers, s->virtual_pre, s->virtual_post, m->base.stage, &first, &end));
    m->base.layers = end - first;
    m->layers = calloc((size_t)m->base.layers, m->kind.layer);
    m->base.mixtures = calloc((size_t)m->base.layers, sizeof(d9d_block_moe *));
    if (m->layers == NULL || m->base.mixtures == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %lld layers", m->kind.name, (long long)m->base.layers);
    for (int64_t i = 0; i < m->base.layers; i++) {
        d9d_decoder_layer *l = layer_at(m, i);

        l->kind = &m->kind;
        l->config = config;
        l->rope = &m->rope;
        l->local_rope = m->local_rope.features > 0 ? &m->local_rope : &m->rope;
        l->number = first + i;
        l->recompute_ffn = mode == D9D_RECOMPUTE_SELECTIVE;
        D9D_TRY(layer_init(m, l, opts));
    }
    return D9D_OK;
}

static d9d_status vocab_init(decoder *m, const d9d_decoder_shape *s, const d9d_block_opts *opts,
                             d9d_block_vocab_kind kind, d9d_block_vocab *b)
{
    const d9d_block_vocab_split all = {"all", s->vocab};
    const bool cut = s->splits != NULL;

    D9D_TRY(d9d_block_vocab_init(b, opts, kind, cut ? s->splits : &all, cut ? s->n_splits : 1,
                                 s->hidden));
    for (size_t i = 0; i < b->n_splits; i++)
        b->table[i]->spec.is_head |= s->tied && !s->no_head;
    b->embedding_scale = (float)s->embedding_scale;
    if (s->embedding_scale_rounded && m->base.dtype == D9D_BF16)
        b->embedding_scale = d9d_bf16_to_f32(d9d_bf16_from_f32(b->embedding_scale));
    b->logit_scale = (float)s->logit_scale;
    b->softcap = (float)s->logit_softcap;
    b->has_padding = s->has_padding;
    b->padding = s->padding;
    return d9d_model_add_unit(
        &m->base, kind == D9D_VOCAB_HEAD ? m->kind.names->head : m->kind.names->embed, &b->module);
}

/* Positions are a unit of their own: a tied head has none. */
static d9d_status positions_init(decoder *m, const d9d_decoder_shape *s, const d9d_block_opts *opts)
{
    m->learns_positions = true;
    D9D_TRY(d9d_block_position_embedding_init(&m->positions, opts, s->learnt_positions, s->hidden));
    return d9d_model_add_unit(&m->base, m->kind.names->positions, &m->positions.module);
}

/* A tied head is the embedding: this stage's own, or on a last stage a second instance. */
static d9d_status head_init(decoder *m, const d9d_decoder_shape *s, const d9d_block_opts *opts)
{
    m->head = s->tied ? &m->embed : &m->own_head;
    if (s->tied && d9d_stage_is_first(m->base.stage))
        return d9d_model_add_unit(&m->base, m->kind.names->embed, &m->embed.module);
    return vocab_init(m, s, opts, s->tied ? D9D_VOCAB_EMBEDDING : D9D_VOCAB_HEAD, m->head);
}

static d9d_status param_mark_from_task(void *arg, d9d_param *p)
{
    (void)arg;
    p->spec.from_task = true;
    return D9D_OK;
}

static d9d_status mlm_head_init(decoder *m, const d9d_decoder_shape *s, const d9d_block_opts *opts)
{
    m->has_mlm_head = true;
    D9D_TRY(d9d_block_mlm_head_init(&m->mlm_head, opts, &s->mlm_head));
    return d9d_model_add_unit(&m->base, m->kind.names->mlm_head, &m->mlm_head.module);
}

/* The end of a language model. */
static d9d_status lm_head_init(decoder *m, const d9d_decoder_shape *s, const d9d_block_opts *opts)
{
    if (s->mlm_head.hidden > 0)
        D9D_TRY(mlm_head_init(m, s, opts));
    D9D_TRY(head_init(m, s, opts));
    if (m->has_mlm_head && s->mlm_head.decoder_bias)
        m->head->bias = &m->mlm_head.decoder_bias;
    if (m->has_mlm_head && s->new_head)
        D9D_TRY(d9d_module_each(&m->mlm_head.module, param_mark_from_task, NULL));
    return s->new_head && !s->tied
               ? d9d_module_each(&m->own_head.module, param_mark_from_task, NULL)
               : D9D_OK;
}

static d9d_status norm_init(decoder *m, const d9d_decoder_shape *s, const d9d_block_opts *opts,
                            const char *name, decoder_norm *n)
{
    const float eps = (float)s->norm_eps;

    n->module = s->layer_norm ? &n->layer.module : &n->rms.module;
    D9D_TRY(s->layer_norm
                ? d9d_block_layer_norm_init(&n->layer, opts, s->hidden, eps, s->layer_norm_params)
                : d9d_block_norm_init(&n->rms, opts, s->hidden, eps, s->zero_centred));
    return d9d_model_add_unit(&m->base, name, n->module);
}

static d9d_status structure_init(decoder *m, const d9d_decoder_shape *s, const void *config,
                                 const d9d_model_opts *options)
{
    const d9d_block_opts opts = {m->base.dtype, s->init_std == 0 ? 0.02 : s->init_std,
                                 &m->base.groups, NULL};
    const bool first = d9d_stage_is_first(m->base.stage), last = d9d_stage_is_last(m->base.stage);

    if (first)
        D9D_TRY(vocab_init(m, s, &opts, D9D_VOCAB_EMBEDDING, &m->embed));
    m->base.embedding = first ? &m->embed : NULL;
    m->base.takes_prompt = s->embedding_scale == 0 || s->embedding_scale == 1;
    if (first && s->learnt_positions > 0)
        D9D_TRY(positions_init(m, s, &opts));
    if (first && s->embed_norm)
        D9D_TRY(norm_init(m, s, &opts, m->kind.names->embed_norm, &m->embed_norm));
    m->embed_dropout = (float)s->embed_dropout;
    m->base.dropout = first && m->embed_dropout > 0;
    D9D_TRY(layers_init(m, s, config, options->recompute, &opts));
    if (last)
        D9D_TRY(norm_init(m, s, &opts, m->kind.names->norm, &m->final_norm));
    if (last && !s->no_head)
        D9D_TRY(lm_head_init(m, s, &opts));
    m->base.lm_head = m->has_mlm_head ? NULL : m->head;
    if (first != last && s->tied && !s->no_head)
        m->base.tied = &m->embed.module;
    return D9D_OK;
}

/* --- forward ------------------------------------------------------------------------------- */

static d9d_status ffn_forward(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                              d9d_var **out, size_t n_out)
{
    d9d_decoder_layer *l = self;

    (void)n_in, (void)n_out;
    return D9D_PLUGIN_CALL(l->kind->name, l->kind, ffn, l, t, in[0], &out[0]);
}

static d9d_status layer_forward(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                                d9d_var **out, size_t n_out)
{
    d9d_decoder_layer *l = self;
    d9d_block_cache cache;
    d9d_model_layer_in what;
    d9d_var *x;

    d9d_model_layer_unpack(in, n_in, &cache, &what);
    if (l->kind->ffn == NULL)
        return D9D_PLUGIN_CALL(l->kind->name, l->kind, forward, l, t, &what, &out[0]);
    D9D_TRY(D9D_PLUGIN_CALL(l->kind->name, l->kind, forward, l, t, &what, &x));
    return l->recompute_ffn ? d9d_tape_recompute(t, ffn_forward, l, &x, 1, out, n_out)
                            : ffn_forward(l, t, &x, 1, out, n_out);
}

static d9d_status hook_call(const d9d_hidden_state_hook *tap, d9d_tape *t, int64_t number,
                            d9d_var *x)
{
    return tap != NULL ? tap->call(tap->arg, t, number, x) : D9D_OK;
}

static d9d_status positions_forward(decoder *m, d9d_tape *t, const d9d_tensor *positions,
                                    d9d_var **x)
{
    D9D_TRY(d9d_param_unit_unshard(&m->positions.module, t));
    D9D_TRY(d9d_block_position_embedding_forward(&m->positions, t, *x, positions, x));
    return d9d_param_unit_reshard(&m->positions.module, t);
}

/* Rows of virtual tokens, if there are any. */
static d9d_status prompt_forward(decoder *m, d9d_tape *t, const d9d_tensor *ids, d9d_var **x)
{
    d9d_block_linear *prompt = d9d_model_find_linear(&m->base, D9D_MODEL_PROMPT);

    if (prompt == NULL)
        return D9D_OK;
    D9D_TRY(d9d_param_unit_unshard(&prompt->module, t));
    D9D_TRY(d9d_block_prompt_forward(prompt, &m->base.groups, t, *x, ids, m->base.vocab, x));
    return d9d_param_unit_reshard(&prompt->module, t);
}

static d9d_status norm_forward(decoder_norm *n, d9d_tape *t, d9d_var **x)
{
    if (n->module == NULL)
        return D9D_OK;
    D9D_TRY(d9d_param_unit_unshard(n->module, t));
    D9D_TRY(n->module == &n->rms.module ? d9d_block_norm_forward(&n->rms, t, *x, x)
                                        : d9d_block_layer_norm_forward(&n->layer, t, *x, x));
    return d9d_param_unit_reshard(n->module, t);
}

static d9d_status embed_forward(decoder *m, d9d_tape *t, const d9d_model_in *in, d9d_var **x)
{
    D9D_TRY(d9d_param_unit_unshard(&m->embed.module, t));
    D9D_TRY(d9d_block_vocab_embed(&m->embed, t, in->ids, x));
    D9D_TRY(d9d_param_unit_reshard(&m->embed.module, t));
    D9D_TRY(prompt_forward(m, t, in->ids, x));
    if (m->learns_positions)
        D9D_TRY(positions_forward(m, t, in->positions, x));
    D9D_TRY(norm_forward(&m->embed_norm, t, x));
    D9D_TRY(d9d_op_dropout(
        t, *x, &(d9d_op_dropout_opts){.p = m->embed_dropout, .site = m->embed.table[0]}, x));
    return hook_call(in->hook, t, 0, *x);
}

static d9d_status layers_forward(decoder *m, d9d_tape *t, const d9d_model_in *in, d9d_var **x)
{
    const bool backward_is_next = d9d_stage_is_last(m->base.stage);
    d9d_var *args[D9D_MODEL_LAYER_INPUTS];
    size_t n_in;

    for (int64_t i = 0; i < m->base.layers; i++) {
        const size_t first = d9d_tape_node_mark(t);
        d9d_decoder_layer *l = layer_at(m, i);

        args[0] = *x;
        D9D_TRY(d9d_model_layer_pack(t, in, i, args, &n_in));
        D9D_TRY(d9d_param_unit_run(&l->module, t, m->recompute, layer_forward, l, args, n_in, x));
        D9D_TRY(hook_call(in->hook, t, l->number + 1, *x));
        D9D_TRY(d9d_tape_offload_since(
            t, first, in->hook == NULL ? args[0] : NULL, /* a hook may keep what it was given */
            i + 1 < m->base.layers || !backward_is_next));
    }
    return D9D_OK;
}

/* The losses and logits; o->hidden stays what comes out of the final norm. */
static d9d_status head_forward(decoder *m, d9d_tape *t, const d9d_model_in *in, d9d_model_out *o)
{
    d9d_var *const hidden = o->hidden;

    if (!m->has_mlm_head || (in->labels == NULL && in->pick == NULL))
        return d9d_model_loss(m->head, t, in, o);
    D9D_TRY(d9d_param_unit_unshard(&m->mlm_head.module, t));
    D9D_TRY(d9d_block_mlm_head_forward(&m->mlm_head, t, hidden, &o->hidden));
    D9D_TRY(d9d_model_loss(m->head, t, in, o));
    o->hidden = hidden;
    return d9d_param_unit_reshard(&m->mlm_head.module, t);
}

static d9d_status decoder_forward(d9d_model *base, d9d_tape *t, const d9d_model_in *in,
                                  d9d_model_out *out)
{
    decoder *m = (decoder *)base;
    d9d_model_out o = {.hidden = in->hidden};

    if (m->rope.features > 0)
        D9D_TRY(d9d_block_rope_prepare(&m->rope, d9d_tape_device(t)));
    if (m->local_rope.features > 0)
        D9D_TRY(d9d_block_rope_prepare(&m->local_rope, d9d_tape_device(t)));
    if (d9d_stage_is_first(base->stage))
        D9D_TRY(embed_forward(m, t, in, &o.hidden));
    D9D_TRY(layers_forward(m, t, in, &o.hidden));
    D9D_TRY(norm_forward(&m->final_norm, t, &o.hidden));
    if (m->head != NULL)
        D9D_TRY(head_forward(m, t, in, &o));
    *out = o;
    return D9D_OK;
}

static void decoder_cache_spec(const d9d_model *base, int64_t i, d9d_block_cache_spec *out)
{
    const d9d_decoder_layer *l = layer_at((const decoder *)base, i);

    if (l->kind->cache_spec != NULL)
        l->kind->cache_spec(l, out);
    else
        d9di_layer_cache_spec(&l->blocks, out);
}

/* What is before the layers: the embedding, its norm, positions and virtual tokens. */
static bool trains_before_layers(const d9d_model *m)
{
    d9d_block_linear *prompt = d9d_model_find_linear(m, D9D_MODEL_PROMPT);
    bool any = prompt != NULL && d9d_model_is_trained(&prompt->module);

    for (size_t i = 0; i < m->n_units && m->units[i] != &layer_at((const decoder *)m, 0)->module;
         i++)
        any |= d9d_model_is_trained(m->units[i]);
    return any;
}

static double head_flops(const decoder *m, bool before)
{
    double sum = 0;

    for (size_t i = 0; m->head != NULL && i < m->head->n_splits; i++)
        sum += d9d_model_matrix_flops((double)d9d_shape_numel(&m->head->table[i]->spec.shape),
                                      m->head->table[i]->spec.trainable, before);
    return sum;
}

static double decoder_flops(const d9d_model *base, int64_t s)
{
    const decoder *m = (const decoder *)base;
    const double hidden = (double)base->hidden;
    bool before = trains_before_layers(base);
    double sum = 0;

    for (int64_t i = 0; i < base->layers; i++) {
        d9d_decoder_layer *l = layer_at(m, i);

        if (m->kind.flops_per_token == NULL) {
            sum += d9di_layer_flops(l, s, &before);
            continue;
        }
        sum += m->kind.flops_per_token(l, s);
        before |= d9d_model_is_trained(&l->module);
    }
    if (m->has_mlm_head) {
        sum += d9d_model_matrix_flops(hidden * hidden, m->mlm_head.dense.weight.spec.trainable,
                                      before);
        before |= m->mlm_head.dense.weight.spec.trainable;
    }
    return sum + head_flops(m, before);
}

/* --- the model ------------------------------------------------------------------------------ */

static void decoder_free(d9d_model *base)
{
    decoder *m = (decoder *)base;

    d9d_module_release(&m->root);
    d9d_block_rope_release(&m->rope);
    d9d_block_rope_release(&m->local_rope);
    free(base->units);
    free(base->mixtures);
    free(m->layers);
    free(m);
}

/* Copy the members that the author's header has, and fill in defaults for the others. */
static void kind_copy(decoder *m, const d9d_decoder_kind *kind)
{
    memcpy(&m->kind, kind, kind->size < sizeof(m->kind) ? kind->size : sizeof(m->kind));
    if (m->kind.names == NULL)
        m->kind.names = &default_names;
    m->ops = (d9d_model_ops){
        .size = sizeof(m->ops),
        .name = kind->name,
        .forward = decoder_forward,
        .flops_per_token =
            m->kind.flops_per_token != NULL || m->kind.of_blocks ? decoder_flops : NULL,
        .free = decoder_free,
        .cache_spec = m->kind.cache_spec != NULL || m->kind.of_blocks ? decoder_cache_spec : NULL,
        .hooks = true,
        .offloads = true};
}

d9d_status d9d_decoder_create(const d9d_decoder_kind *kind, const d9d_decoder_shape *s,
                              const void *config, d9d_stage stage, const d9d_model_opts *options,
                              d9d_model **out)
{
    decoder *m = calloc(1, sizeof(*m));
    d9d_status st;

    if (m == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: a model of %lld layers", kind->name, (long long)s->layers);
    kind_copy(m, kind);
    m->base = (d9d_model){
        .ops = &m->ops,
        .module = &m->root,
        .stage = stage,
        .hidden = s->hidden,
        .vocab = s->vocab,
        .max_positions = s->max_positions,
        .dtype = options->dtype,
    };
    m->recompute = options->recompute == D9D_RECOMPUTE_FULL ||
                   (options->recompute == D9D_RECOMPUTE_SELECTIVE && m->kind.ffn == NULL);
    m->base.has_experts = s->has_experts;
    m->base.masked_lm = s->mlm_head.hidden > 0;
    m->rope = s->rope;
    m->local_rope = s->local_rope;
    st = structure_init(m, s, config, options);
    if (st == D9D_OK)
        *out = &m->base;
    else
        decoder_free(&m->base);
    return st;
}
