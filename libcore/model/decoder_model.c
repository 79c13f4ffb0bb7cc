/* decoder_model.c - see d9d/model/decoder_model.h. */
#include "d9d/model/decoder_model.h"

#include <stdlib.h>

typedef struct decoder {
    d9d_model base;
    d9d_model_ops ops; /* under its kind's name */
    bool recompute;
    d9d_module root;
    d9d_block_vocab embed, head;
    d9d_block_norm norm;
    d9d_block_rope rope;
    size_t stride; /* of the layers */
    char *layers;
} decoder;

const d9d_name_pair d9d_decoder_hf_names[] = {{"embed.token_embedding.all.", "model.embed_tokens."},
                                              {"layers.", "model.layers."},
                                              {"norm.", "model.norm."},
                                              {"head.lm_head.all.", "lm_head."},
                                              {NULL, NULL}};

/* Layer i of this stage. */
static d9d_decoder_layer *layer_at(const decoder *m, int64_t i)
{
    return (d9d_decoder_layer *)(void *)(m->layers + (size_t)i * m->stride);
}

/* --- structure ----------------------------------------------------------------------------- */

static d9d_status layers_init(decoder *m, const d9d_decoder_kind *kind, const void *config,
                              int64_t first, const d9d_block_how *how)
{
    m->stride = kind->layer;
    m->layers = calloc((size_t)m->base.layers, m->stride);
    if (m->layers == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %lld layers", kind->name, (long long)m->base.layers);
    for (int64_t i = 0; i < m->base.layers; i++) {
        d9d_decoder_layer *l = layer_at(m, i);

        l->kind = kind;
        l->config = config;
        l->rope = &m->rope;
        l->number = first + i;
        D9D_TRY(d9d_model_unit(
            &m->base, d9d_arena_printf(&m->root.names, "layers.%lld", (long long)l->number),
            &l->module));
        D9D_TRY(kind->init(l, how));
    }
    return D9D_OK;
}

static d9d_status structure_init(decoder *m, const d9d_decoder_kind *kind,
                                 const d9d_decoder_shape *s, const void *config)
{
    const d9d_block_how how = {m->base.dtype, s->init_std > 0 ? s->init_std : 0.02, &m->base.cut};
    const d9d_vocab_split vocab = {"all", s->vocab};
    const d9d_stage stage = m->base.stage;
    int64_t first, end;

    D9D_TRY(d9d_stage_layers(s->layers, 0, 0, stage, &first, &end));
    m->base.layers = end - first;
    if (d9d_stage_is_first(stage)) {
        D9D_TRY(d9d_block_vocab_init(&m->embed, &how, D9D_VOCAB_EMBEDDING, &vocab, 1, s->hidden));
        D9D_TRY(d9d_model_unit(&m->base, "embed", &m->embed.module));
    }
    D9D_TRY(layers_init(m, kind, config, first, &how));
    if (!d9d_stage_is_last(stage))
        return D9D_OK;
    D9D_TRY(d9d_block_norm_init(&m->norm, &how, s->hidden, (float)s->norm_eps, s->zero_centred));
    D9D_TRY(d9d_model_unit(&m->base, "norm", &m->norm.module));
    D9D_TRY(d9d_block_vocab_init(&m->head, &how, D9D_VOCAB_HEAD, &vocab, 1, s->hidden));
    return d9d_model_unit(&m->base, "head", &m->head.module);
}

/* --- forward ------------------------------------------------------------------------------- */

static d9d_status layer_forward(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                                d9d_var **out, size_t n_out)
{
    d9d_decoder_layer *l = self;
    d9d_block_cache room;
    d9d_layer_in what;

    (void)n_out;
    d9d_layer_in_of(in, n_in, &room, &what);
    return l->kind->forward(l, t, &what, &out[0]);
}

static d9d_status tell(const d9d_tap *tap, d9d_tape *t, int64_t number, d9d_var *x)
{
    return tap != NULL ? tap->hear(tap->arg, t, number, x) : D9D_OK;
}

static d9d_status embed_forward(decoder *m, d9d_tape *t, const d9d_model_in *in, d9d_var **x)
{
    D9D_TRY(d9d_unit_open(&m->embed.module, t));
    D9D_TRY(d9d_block_vocab_embed(&m->embed, t, in->ids, x));
    D9D_TRY(d9d_unit_close(&m->embed.module, t));
    return tell(in->tap, t, 0, *x);
}

static d9d_status layers_forward(decoder *m, d9d_tape *t, const d9d_model_in *in, d9d_var **x)
{
    d9d_var *args[D9D_LAYER_INPUTS];
    size_t n_in;

    for (int64_t i = 0; i < m->base.layers; i++) {
        d9d_decoder_layer *l = layer_at(m, i);

        args[0] = *x;
        D9D_TRY(d9d_layer_inputs(t, in, i, args, &n_in));
        D9D_TRY(d9d_unit_run(&l->module, t, m->recompute, layer_forward, l, args, n_in, x));
        D9D_TRY(tell(in->tap, t, l->number + 1, *x));
    }
    return D9D_OK;
}

static d9d_status forward(d9d_model *base, d9d_tape *t, const d9d_model_in *in, d9d_model_out *out)
{
    decoder *m = (decoder *)base;
    d9d_model_out o = {.hidden = in->hidden};

    if (m->rope.features > 0)
        D9D_TRY(d9d_block_rope_prepare(&m->rope, d9d_tape_device(t)));
    if (d9d_stage_is_first(base->stage))
        D9D_TRY(embed_forward(m, t, in, &o.hidden));
    D9D_TRY(layers_forward(m, t, in, &o.hidden));
    if (d9d_stage_is_last(base->stage)) {
        D9D_TRY(d9d_unit_open(&m->norm.module, t));
        D9D_TRY(d9d_block_norm_forward(&m->norm, t, o.hidden, &o.hidden));
        D9D_TRY(d9d_unit_close(&m->norm.module, t));
        D9D_TRY(d9d_model_loss(&m->head, t, in, &o));
    }
    *out = o;
    return D9D_OK;
}

static void cells(const d9d_model *base, int64_t i, d9d_cells *out)
{
    const d9d_decoder_layer *l = layer_at((const decoder *)base, i);

    l->kind->cells(l, out);
}

/* --- the model ------------------------------------------------------------------------------ */

static void decoder_free(d9d_model *base)
{
    decoder *m = (decoder *)base;

    d9d_module_release(&m->root);
    d9d_block_rope_release(&m->rope);
    free(base->units);
    free(m->layers);
    free(m);
}

d9d_status d9d_decoder_create(const d9d_decoder_kind *kind, const d9d_decoder_shape *s,
                              const void *config, d9d_stage stage, const d9d_model_options *options,
                              d9d_model **out)
{
    decoder *m = calloc(1, sizeof(*m));
    d9d_status st;

    if (m == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: a model of %lld layers", kind->name, (long long)s->layers);
    m->ops = (d9d_model_ops){sizeof(m->ops), kind->name, .forward = forward, .free = decoder_free,
                             .taps = true};
    if (kind->size > offsetof(d9d_decoder_kind, cells) && kind->cells != NULL)
        m->ops.cells = cells;
    m->base = (d9d_model){
        .ops = &m->ops,
        .module = &m->root,
        .stage = stage,
        .hidden = s->hidden,
        .vocab = s->vocab,
        .max_positions = s->max_positions,
        .dtype = options->dtype,
    };
    m->recompute = options->checkpointing != D9D_RECOMPUTE_OFF;
    m->rope = s->rope;
    st = structure_init(m, kind, s, config);
    if (st == D9D_OK)
        *out = &m->base;
    else
        decoder_free(&m->base);
    return st;
}
