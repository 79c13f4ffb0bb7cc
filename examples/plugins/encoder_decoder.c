/* encoder_decoder.c - an encoder-decoder as a plugin, whose pipeline stages exchange two tensors.
 *
 *     {"plugin": "libencoder_decoder.so",
 *      "data": {"dataset": "captions", "source": {"name": "captions", "samples": 4096}},
 *      "model_provider": {"name": "encoder_decoder", "hidden_size": 32, "encoder_layers": 3,
 *                         "decoder_layers": 5}, ...}
 *
 * A sample is a field "source", [patches, features], and a text about it.  Encoder layers attend
 * over the patches; each decoder layer attends over the text so far and over what the encoder made
 * of the patches, its memory.  A pipeline is cut between any two of the layers:
 *
 *     encoder | encoder   --[ memory ]-->            the encoder's states so far
 *     encoder | decoder   --[ memory ]-->            the text is embedded by the next stage
 *     decoder | decoder   --[ hidden | memory ]-->   the memory goes on to every later layer
 *
 * stage_tensors() says so, and forward() takes and gives them by name.  Gradients of the memory are
 * summed on their way back.  Without a pipeline nothing of it is called.
 */
#include <math.h>
#include <stdlib.h>

#include <d9d/base/rng.h>
#include <d9d/op/math.h>
#include <d9d/op/op.h>
#include <d9d/tasks/plugin.h>

enum { PATCHES = 6, FEATURES = 5, LENGTH = 12, VOCAB = 17 };

/* --- the data: token i names the largest feature of patch i mod PATCHES, plus the token before ---
 */

static const d9d_field source_field = {.name = "source",
                                       .dtype = D9D_F32,
                                       .per = D9D_FIELD_PER_SAMPLE,
                                       .rank = 2,
                                       .shape = {PATCHES, FEATURES}};

typedef struct captions {
    int64_t samples, seed;
} captions;
static const d9d_key captions_keys[] = {
    D9D_KEY_INT(captions, samples, D9D_REQUIRED, 1, INT64_C(1) << 40, "how many"),
    D9D_KEY_INT(captions, seed, "0", 0, INT64_C(1) << 53, "of the sources"),
    D9D_KEY_END,
};
static const d9d_table captions_table =
    D9D_TABLE(captions, "captions", captions_keys, "sources and texts about them");

static d9d_status captions_info(void *self, d9d_dataset_info *out)
{
    const captions *c = self;

    *out = (d9d_dataset_info){.samples = c->samples,
                              .longest = LENGTH,
                              .vocab = VOCAB,
                              .hash.lo = (uint64_t)c->seed,
                              .fields = {&source_field, 1}};
    return D9D_OK;
}

static float source_at(const captions *c, int64_t k, int64_t i)
{
    const d9d_rng r = {.seed = (uint64_t)c->seed, .stream = (uint64_t)k};

    return (float)(2.0 * d9d_rng_u32(r, (uint64_t)i) / 4294967296.0 - 1);
}

static int32_t largest_feature(const captions *c, int64_t k, int64_t patch)
{
    int32_t at = 0;

    for (int32_t f = 1; f < FEATURES; f++)
        if (source_at(c, k, patch * FEATURES + f) > source_at(c, k, patch * FEATURES + at))
            at = f;
    return at;
}

static d9d_status captions_sample(void *self, int64_t k, int64_t length, int32_t *ids,
                                  int32_t *labels)
{
    int32_t token = 0;

    for (int64_t i = 0; i < length; i++) {
        ids[i] = token;
        token = (token + largest_feature(self, k, i % PATCHES)) % VOCAB;
        labels[i] = token;
    }
    return D9D_OK;
}

static d9d_status captions_values(void *self, int64_t k, int64_t length, void *const *values)
{
    (void)length;
    for (int64_t i = 0; i < PATCHES * FEATURES; i++)
        ((float *)values[0])[i] = source_at(self, k, i);
    return D9D_OK;
}

static const d9d_dataset_kind captions_kind = {sizeof(captions_kind), &captions_table,
                                               .info = captions_info, .sample = captions_sample,
                                               .fields = captions_values};

/* --- a layer ------------------------------------------------------------------------------------
 */

typedef struct section {
    d9d_model_section base;
    int64_t hidden_size, num_attention_heads, encoder_layers, decoder_layers;
} section;

typedef struct layer {
    d9d_module module;
    bool decodes;
    d9d_block_norm norm, cross_norm, ffn_norm;
    d9d_block_attention attention;
    d9d_block_linear q, k, v, o; /* over the memory, of one head */
    d9d_block_ffn ffn;
} layer;

typedef struct model {
    d9d_model base;
    d9d_module root;
    const section *config;
    bool recompute;
    layer *layers;
    int64_t first; /* number of layers[0], counted from the encoder's first on */
    d9d_block_rope rope;
    d9d_block_linear source;
    d9d_block_vocab embed, head;
    d9d_block_norm norm;
} model;

static d9d_status layer_init(layer *l, const section *c, const d9d_block_opts *o,
                             const d9d_block_rope *rope)
{
    const int64_t H = c->hidden_size, A = c->num_attention_heads;
    const d9d_block_attention_shape attention = {.hidden = H,
                                                 .heads = A,
                                                 .kv_heads = A,
                                                 .head_dim = H / A,
                                                 .rope = l->decodes ? rope : NULL,
                                                 .bidirectional = !l->decodes};

    D9D_BLOCK_ADD(&l->module, "norm", norm, &l->norm, o, H, 1e-6f, false);
    D9D_BLOCK_ADD(&l->module, "attention", attention, &l->attention, o, &attention);
    D9D_BLOCK_ADD(&l->module, "ffn_norm", norm, &l->ffn_norm, o, H, 1e-6f, false);
    D9D_BLOCK_ADD(&l->module, "ffn", ffn, &l->ffn, o,
                  &(d9d_block_ffn_shape){.hidden = H, .intermediate = 2 * H});
    if (!l->decodes)
        return D9D_OK;
    D9D_BLOCK_ADD(&l->module, "cross_norm", norm, &l->cross_norm, o, H, 1e-6f, false);
    D9D_BLOCK_ADD(&l->module, "cross_q", linear, &l->q, o, H, H);
    D9D_BLOCK_ADD(&l->module, "cross_k", linear, &l->k, o, H, H);
    D9D_BLOCK_ADD(&l->module, "cross_v", linear, &l->v, o, H, H);
    D9D_BLOCK_ADD(&l->module, "cross_o", linear, &l->o, o, H, H);
    return D9D_OK;
}

/* Each position of x [B, S, H] reads the memory [B, P, H] of its text. */
static d9d_status attend_memory(layer *l, d9d_tape *t, d9d_var *x, d9d_var *memory, d9d_var **y)
{
    const int64_t H = d9d_var_tensor(x)->shape.dim[2];
    d9d_var *h, *k, *v;

    D9D_TRY(d9d_block_norm_forward(&l->cross_norm, t, x, &h));
    D9D_TRY(d9d_block_linear_forward(&l->q, t, h, &h));
    D9D_TRY(d9d_block_linear_forward(&l->k, t, memory, &k));
    D9D_TRY(d9d_block_linear_forward(&l->v, t, memory, &v));
    D9D_TRY(d9d_op_matmul(t, h, k, &(d9d_op_matmul_opts){.trans_b = true}, &h));
    D9D_TRY(d9d_op_scale(t, h, 1 / sqrtf((float)H), &h));
    D9D_TRY(d9d_op_softmax(t, h, &h));
    D9D_TRY(d9d_op_cast(t, h, d9d_var_tensor(v)->dtype, &h));
    D9D_TRY(d9d_op_matmul(t, h, v, &(d9d_op_matmul_opts){.trans_b = false}, &h));
    D9D_TRY(d9d_block_linear_forward(&l->o, t, h, &h));
    return d9d_op_add(t, x, h, y);
}

static d9d_status ffn_forward(layer *l, d9d_tape *t, d9d_var *x, d9d_var **y)
{
    d9d_var *h;

    D9D_TRY(d9d_block_norm_forward(&l->ffn_norm, t, x, &h));
    return d9d_block_ffn_forward(&l->ffn, t, h, x, y);
}

/* in: the memory so far [N, P, H]. */
static d9d_status encode(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                         size_t n_out)
{
    const d9d_shape *s = &d9d_var_tensor(in[0])->shape;
    const d9d_tensor positions = {.shape = D9D_SHAPE(s->dim[0], s->dim[1])}; /* without RoPE */
    layer *l = self;
    d9d_var *h;

    (void)n_in, (void)n_out;
    D9D_TRY(d9d_block_norm_forward(&l->norm, t, in[0], &h));
    D9D_TRY(d9d_block_attention_forward(&l->attention, t, h, &positions, NULL, NULL, in[0], &h));
    return ffn_forward(l, t, h, out);
}

/* in: what d9d_model_layer_pack() gives, and the memory. */
static d9d_status decode(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                         size_t n_out)
{
    d9d_var *const memory = in[n_in - 1];
    d9d_model_layer_in what;
    layer *l = self;
    d9d_var *h;

    (void)n_out;
    d9d_model_layer_unpack(in, n_in - 1, NULL, &what);
    D9D_TRY(d9d_block_norm_forward(&l->norm, t, what.x, &h));
    D9D_TRY(d9d_block_attention_forward(&l->attention, t, h, what.positions, what.segments, NULL,
                                        what.x, &h));
    D9D_TRY(attend_memory(l, t, h, memory, &h));
    return ffn_forward(l, t, h, out);
}

/* --- what its stages exchange --------------------------------------------------------------------
 */

static d9d_status stage_layers(const section *c, d9d_stage stage, int64_t *first, int64_t *end)
{
    return d9d_stage_layers(c->encoder_layers + c->decoder_layers, 0, 0, stage, first, end);
}

static d9d_status stage_tensors(const d9d_model *base, int stage, d9d_stage_spec *out, size_t *n)
{
    const model *m = (const model *)base;
    int64_t first, end;

    D9D_TRY(stage_layers(m->config, (d9d_stage){stage, base->stage.count}, &first, &end));
    out[(*n)++] = (d9d_stage_spec){.name = "memory",
                                   .per = D9D_STAGE_PER_DOCUMENT,
                                   .field = "source",
                                   .dtype = base->dtype,
                                   .rank = 2,
                                   .shape = {PATCHES, base->hidden}};
    if (first > m->config->encoder_layers)
        out[(*n)++] = (d9d_stage_spec){.name = D9D_STAGE_HIDDEN,
                                       .per = D9D_STAGE_PER_HIDDEN,
                                       .dtype = base->dtype,
                                       .rank = 1,
                                       .shape = {base->hidden}};
    return D9D_OK;
}

/* --- forward ------------------------------------------------------------------------------------
 */

/* The patches as vectors: what the encoder begins with. */
static d9d_status source_forward(model *m, d9d_tape *t, const d9d_model_in *in, d9d_var **memory)
{
    const d9d_tensor *x = &d9d_model_find_field(in, "source")->value;

    if (x->shape.dim[0] != in->ids->shape.dim[0])
        return D9D_FAIL(D9D_ECONFIG, "encoder_decoder: %lld texts in %lld rows; one each is needed",
                        (long long)x->shape.dim[0], (long long)in->ids->shape.dim[0]);
    D9D_TRY(d9d_tape_leaf(t, x, false, memory));
    D9D_TRY(d9d_op_cast(t, *memory, m->base.dtype, memory));
    D9D_TRY(d9d_param_unit_unshard(&m->source.module, t));
    D9D_TRY(d9d_block_linear_forward(&m->source, t, *memory, memory));
    return d9d_param_unit_reshard(&m->source.module, t);
}

static d9d_status embed_forward(model *m, d9d_tape *t, const d9d_model_in *in, d9d_var **x)
{
    D9D_TRY(d9d_param_unit_unshard(&m->embed.module, t));
    D9D_TRY(d9d_block_vocab_embed(&m->embed, t, in->ids, x));
    return d9d_param_unit_reshard(&m->embed.module, t);
}

static d9d_status decoder_forward(model *m, layer *l, d9d_tape *t, const d9d_model_in *in,
                                  d9d_var *memory, d9d_var **x)
{
    d9d_var *v[D9D_MODEL_LAYER_INPUTS + 1];
    size_t n;

    v[0] = *x;
    D9D_TRY(d9d_model_layer_pack(t, in, 0, v, &n));
    v[n] = memory;
    return d9d_param_unit_run(&l->module, t, m->recompute, decode, l, v, n + 1, x);
}

static d9d_status norm_forward(model *m, d9d_tape *t, d9d_var **x)
{
    D9D_TRY(d9d_param_unit_unshard(&m->norm.module, t));
    D9D_TRY(d9d_block_norm_forward(&m->norm, t, *x, x));
    return d9d_param_unit_reshard(&m->norm.module, t);
}

static d9d_status forward(d9d_model *base, d9d_tape *t, const d9d_model_in *in, d9d_model_out *out)
{
    model *m = (model *)base;
    d9d_var *memory = d9d_model_find_passed(in, "memory"), *x = in->hidden;

    D9D_TRY(d9d_block_rope_prepare(&m->rope, d9d_tape_device(t)));
    if (d9d_stage_is_first(base->stage))
        D9D_TRY(source_forward(m, t, in, &memory));
    for (int64_t i = 0; i < base->layers; i++) {
        layer *l = &m->layers[i];

        if (m->first + i == m->config->encoder_layers)
            D9D_TRY(embed_forward(m, t, in, &x));
        D9D_TRY(l->decodes ? decoder_forward(m, l, t, in, memory, &x)
                           : d9d_param_unit_run(&l->module, t, m->recompute, encode, l, &memory, 1,
                                                &memory));
    }
    out->hidden = x;
    if (!d9d_stage_is_last(base->stage))
        return d9d_model_pass(out, "memory", memory);
    D9D_TRY(norm_forward(m, t, &out->hidden));
    return d9d_model_loss(&m->head, t, in, out);
}

static void model_free(d9d_model *base)
{
    model *m = (model *)base;

    d9d_module_release(&m->root);
    d9d_block_rope_release(&m->rope);
    free(base->units);
    free(m->layers);
    free(m);
}

static const d9d_model_ops ops = {.size = sizeof(ops),
                                  .name = "encoder_decoder",
                                  .forward = forward,
                                  .free = model_free,
                                  .stage_tensors = stage_tensors};

/* --- structure ----------------------------------------------------------------------------------
 */

static d9d_status vocab_init(model *m, const d9d_block_opts *o, d9d_block_vocab_kind kind,
                             const char *name, d9d_block_vocab *b)
{
    const d9d_block_vocab_split all = {"all", VOCAB};

    D9D_TRY(d9d_block_vocab_init(b, o, kind, &all, 1, m->base.hidden));
    return d9d_model_add_unit(&m->base, name, &b->module);
}

static d9d_status layers_init(model *m, const d9d_block_opts *o)
{
    for (int64_t i = 0; i < m->base.layers; i++) {
        const int64_t number = m->first + i;
        layer *l = &m->layers[i];

        l->decodes = number >= m->config->encoder_layers;
        if (number == m->config->encoder_layers)
            D9D_TRY(vocab_init(m, o, D9D_VOCAB_EMBEDDING, "embed", &m->embed));
        D9D_TRY(d9d_model_add_unit(
            &m->base, d9d_arena_printf(&m->root.names, "layers.%lld", (long long)number),
            &l->module));
        D9D_TRY(layer_init(l, m->config, o, &m->rope));
    }
    return D9D_OK;
}

static d9d_status structure_init(model *m, d9d_dtype dtype)
{
    const d9d_block_opts o = {.dtype = dtype, .init_std = 0.1, .groups = &m->base.groups};
    int64_t end;

    D9D_TRY(stage_layers(m->config, m->base.stage, &m->first, &end));
    m->base.layers = end - m->first;
    m->layers = calloc((size_t)m->base.layers, sizeof(*m->layers));
    if (m->layers == NULL)
        return D9D_FAIL(D9D_ENOMEM, "encoder_decoder: %lld layers", (long long)m->base.layers);
    m->rope = (d9d_block_rope){.base = 10000,
                               .features = m->base.hidden / m->config->num_attention_heads};
    if (d9d_stage_is_first(m->base.stage)) {
        D9D_TRY(d9d_block_linear_init(&m->source, &o, FEATURES, m->base.hidden));
        D9D_TRY(d9d_model_add_unit(&m->base, "source", &m->source.module));
    }
    D9D_TRY(layers_init(m, &o));
    if (!d9d_stage_is_last(m->base.stage))
        return D9D_OK;
    D9D_TRY(d9d_block_norm_init(&m->norm, &o, m->base.hidden, 1e-6f, false));
    D9D_TRY(d9d_model_add_unit(&m->base, "norm", &m->norm.module));
    m->base.lm_head = &m->head;
    return vocab_init(m, &o, D9D_VOCAB_HEAD, "head", &m->head);
}

static d9d_status create(const void *config, d9d_stage stage, const d9d_model_opts *o,
                         d9d_model **out)
{
    static const d9d_field_request source = {.name = "source",
                                             .per = D9D_FIELD_PER_SAMPLE,
                                             .dtype = D9D_F32,
                                             .elements = PATCHES * FEATURES,
                                             .where = "encoder_decoder"};
    const section *c = config;
    model *m = calloc(1, sizeof(*m));
    d9d_status st;

    if (m == NULL)
        return D9D_FAIL(D9D_ENOMEM, "encoder_decoder: no memory");
    m->config = c;
    m->recompute = o->recompute != D9D_RECOMPUTE_OFF;
    m->base = (d9d_model){.ops = &ops,
                          .module = &m->root,
                          .stage = stage,
                          .hidden = c->hidden_size,
                          .vocab = VOCAB,
                          .max_positions = LENGTH,
                          .fields = &source,
                          .n_fields = 1,
                          .dtype = o->dtype};
    d9d_module_init(&m->root);
    st = structure_init(m, o->dtype);
    if (st == D9D_OK)
        *out = &m->base;
    else
        d9d_model_free(&m->base);
    return st;
}

/* --- the provider -------------------------------------------------------------------------------
 */

static d9d_status read_section(const void *given, d9d_arena *a, const void **config)
{
    section *c = d9d_arena_alloc(a, sizeof(*c));

    if (c == NULL)
        return D9D_FAIL(D9D_ENOMEM, "encoder_decoder: no memory");
    *c = *(const section *)given;
    if (c->hidden_size % (2 * c->num_attention_heads) != 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "encoder_decoder: hidden_size %lld, no even number for each of %lld heads",
                        (long long)c->hidden_size, (long long)c->num_attention_heads);
    *config = c;
    return D9D_OK;
}

static const d9d_key keys[] = {
    D9D_MODEL_SECTION_KEYS,
    D9D_KEY_INT(section, hidden_size, D9D_REQUIRED, 1, 1 << 20, "width"),
    D9D_KEY_INT(section, num_attention_heads, "4", 1, 1 << 10, "heads"),
    D9D_KEY_INT(section, encoder_layers, D9D_REQUIRED, 1, 1 << 10, "layers over the source"),
    D9D_KEY_INT(section, decoder_layers, D9D_REQUIRED, 1, 1 << 10, "layers over the text"),
    D9D_KEY_END,
};
static const d9d_table table =
    D9D_TABLE(section, "encoder_decoder", keys, "texts about what an encoder reads");
static const char *const types[] = {"encoder_decoder", NULL};
static const d9d_model_provider provider = {sizeof(provider), &table,         .read = read_section,
                                            .create = create, .stages = true, .model_types = types};

static const d9d_model_provider *const models[] = {&provider, NULL};
static const d9d_dataset_kind *const datasets[] = {&captions_kind, NULL};
D9D_PLUGIN(.models = models, .datasets = datasets);
