/* hybrid.c - a model of one's own: a state in most layers, attention in some, as a plugin of d9d.
 *
 *     {"plugin": "libhybrid.so", "model_provider": {"name": "hybrid", "hf_config": "hybrid.json"}}
 *
 * A small relative of Qwen3-Next: of every full_attention_interval layers the last one has gated
 * attention (half of a head turns), the others a gated delta net, whose memory does not grow.
 */
#include <stdlib.h>

#include <d9d/loop/plugin.h>

/* --- its dimensions ------------------------------------------------------------------------ */

typedef struct dims {
    int64_t hidden_size, intermediate_size, num_hidden_layers, full_attention_interval;
    int64_t num_attention_heads, num_key_value_heads, head_dim;
    int64_t linear_num_key_heads, linear_num_value_heads;
    int64_t linear_key_head_dim, linear_value_head_dim, linear_conv_kernel_dim;
    int64_t vocab_size, max_position_embeddings;
    double rms_norm_eps, rope_theta;
} dims;
#define DIM(name) D9D_KEY_INT(dims, name, D9D_REQUIRED, 1, 1 << 20, #name)
static const d9d_key dims_keys[] = {
    DIM(hidden_size),
    DIM(intermediate_size),
    DIM(num_hidden_layers),
    DIM(full_attention_interval),
    DIM(num_attention_heads),
    DIM(num_key_value_heads),
    DIM(head_dim),
    DIM(linear_num_key_heads),
    DIM(linear_num_value_heads),
    DIM(linear_key_head_dim),
    DIM(linear_value_head_dim),
    DIM(linear_conv_kernel_dim),
    DIM(vocab_size),
    DIM(max_position_embeddings),
    D9D_KEY_REAL(dims, rms_norm_eps, "1e-6", 0, 1, "epsilon of the norms"),
    D9D_KEY_REAL(dims, rope_theta, "10000000", 1, 1e15, "base of the rotary frequencies"),
    D9D_KEY_END,
};
static const d9d_table dims_table = D9D_TABLE(dims, "hybrid_config", dims_keys, "Hybrid");

/* --- its structure ------------------------------------------------------------------------- */

typedef struct layer {
    d9d_module module;
    d9d_block_norm norm, ffn_norm;
    bool attends;
    d9d_block_attention attn; /* where it does */
    d9d_block_delta delta;    /* where it does not */
    d9d_block_ffn ffn;
} layer;

typedef struct hybrid {
    d9d_model base;
    const dims *c;
    bool recompute;
    d9d_module root;
    d9d_block_vocab embed, head;
    d9d_block_norm norm;
    d9d_block_rope rope;
    layer layers[];
} hybrid;

static d9d_status layer_init(layer *l, hybrid *m, const d9d_block_how *how, int64_t number)
{
    const dims *c = m->c;
    const float eps = (float)c->rms_norm_eps;
    const d9d_attention_shape attention = {.hidden = c->hidden_size,
                                           .heads = c->num_attention_heads,
                                           .kv_heads = c->num_key_value_heads,
                                           .head_dim = c->head_dim,
                                           .rope = &m->rope,
                                           .norm_eps = eps,
                                           .zero_centred = true,
                                           .output_gate = true};
    const d9d_delta_shape delta = {.hidden = c->hidden_size,
                                   .key_heads = c->linear_num_key_heads,
                                   .value_heads = c->linear_num_value_heads,
                                   .key_dim = c->linear_key_head_dim,
                                   .value_dim = c->linear_value_head_dim,
                                   .conv_width = c->linear_conv_kernel_dim,
                                   .norm_eps = eps};
    const char *name = d9d_arena_printf(&m->root.names, "layers.%lld", (long long)number);

    l->attends = (number + 1) % c->full_attention_interval == 0;
    if (l->attends)
        D9D_BLOCK_ADD(&l->module, "self_attn", attention, &l->attn, how, &attention);
    else
        D9D_BLOCK_ADD(&l->module, "linear_attn", delta, &l->delta, how, &delta);
    D9D_BLOCK_ADD(&l->module, "mlp", ffn, &l->ffn, how, c->hidden_size, c->intermediate_size);
    D9D_BLOCK_ADD(&l->module, "input_layernorm", norm, &l->norm, how, c->hidden_size, eps, true);
    D9D_BLOCK_ADD(&l->module, "post_attention_layernorm", norm, &l->ffn_norm, how, c->hidden_size,
                  eps, true);
    return d9d_model_unit(&m->base, name, &l->module);
}

static d9d_status structure(hybrid *m, d9d_dtype dtype)
{
    const d9d_block_how how = {.dtype = dtype, .init_std = 0.02};
    const d9d_vocab_split vocab = {"all", m->c->vocab_size};
    const int64_t H = m->c->hidden_size;

    D9D_TRY(d9d_block_vocab_init(&m->embed, &how, D9D_VOCAB_EMBEDDING, &vocab, 1, H));
    D9D_TRY(d9d_model_unit(&m->base, "embed", &m->embed.module));
    for (int64_t i = 0; i < m->c->num_hidden_layers; i++)
        D9D_TRY(layer_init(&m->layers[i], m, &how, i));
    D9D_TRY(d9d_block_norm_init(&m->norm, &how, H, (float)m->c->rms_norm_eps, true));
    D9D_TRY(d9d_model_unit(&m->base, "norm", &m->norm.module));
    D9D_TRY(d9d_block_vocab_init(&m->head, &how, D9D_VOCAB_HEAD, &vocab, 1, H));
    return d9d_model_unit(&m->base, "head", &m->head.module);
}

/* --- its forward ---------------------------------------------------------------------------- */

static d9d_status layer_forward(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                                d9d_var **out, size_t n_out)
{
    const d9d_tensor *positions = d9d_var_tensor(in[1]);
    const d9d_tensor *segments = n_in > 2 ? d9d_var_tensor(in[2]) : NULL;
    layer *l = self;
    d9d_var *h, *x;

    D9D_TRY(d9d_block_norm_forward(&l->norm, t, in[0], &h));
    if (l->attends)
        D9D_TRY(d9d_block_attention_forward(&l->attn, t, h, positions, segments, NULL, in[0], &x));
    else
        D9D_TRY(d9d_block_delta_forward(&l->delta, t, h, positions, segments, NULL, in[0], &x));
    D9D_TRY(d9d_block_norm_forward(&l->ffn_norm, t, x, &h));
    return d9d_block_ffn_forward(&l->ffn, t, h, x, &out[n_out - 1]);
}

static d9d_status forward(d9d_model *base, d9d_tape *t, const d9d_model_in *in, d9d_model_out *out)
{
    hybrid *m = (hybrid *)base;
    d9d_var *v[3];

    D9D_TRY(d9d_block_rope_prepare(&m->rope, d9d_tape_device(t)));
    D9D_TRY(d9d_tape_leaf(t, in->positions, false, &v[1]));
    if (in->segments != NULL)
        D9D_TRY(d9d_tape_leaf(t, in->segments, false, &v[2]));
    D9D_TRY(d9d_unit_open(&m->embed.module, t));
    D9D_TRY(d9d_block_vocab_embed(&m->embed, t, in->ids, &v[0]));
    D9D_TRY(d9d_unit_close(&m->embed.module, t));
    for (int64_t i = 0; i < m->c->num_hidden_layers; i++)
        D9D_TRY(d9d_unit_run(&m->layers[i].module, t, m->recompute, layer_forward, &m->layers[i], v,
                             in->segments != NULL ? 3 : 2, &v[0]));
    D9D_TRY(d9d_unit_open(&m->norm.module, t));
    D9D_TRY(d9d_block_norm_forward(&m->norm, t, v[0], &out->hidden));
    D9D_TRY(d9d_unit_close(&m->norm.module, t));
    return d9d_model_loss(&m->head, t, in, out);
}

static void hybrid_free(d9d_model *base)
{
    d9d_module_release(base->module);
    d9d_block_rope_release(&((hybrid *)base)->rope);
    free(base->units);
    free(base);
}

/* --- the tables ------------------------------------------------------------------------------ */

static const d9d_model_ops ops = {sizeof(ops), "hybrid", .forward = forward, .free = hybrid_free};

static d9d_status create(const void *config, d9d_stage stage, const d9d_model_options *o,
                         d9d_model **out)
{
    const dims *c = config;
    hybrid *m = calloc(1, sizeof(*m) + (size_t)c->num_hidden_layers * sizeof(layer));
    d9d_status st;

    if (m == NULL)
        return D9D_FAIL(D9D_ENOMEM, "hybrid: %lld layers", (long long)c->num_hidden_layers);
    m->base = (d9d_model){.ops = &ops,
                          .module = &m->root,
                          .stage = stage,
                          .hidden = c->hidden_size,
                          .vocab = c->vocab_size,
                          .max_positions = c->max_position_embeddings};
    m->c = c;
    m->recompute = o->checkpointing != D9D_RECOMPUTE_OFF;
    m->rope = (d9d_block_rope){.base = c->rope_theta, .features = c->head_dim / 4 * 2};
    st = structure(m, o->dtype);
    if (st == D9D_OK)
        *out = &m->base;
    else
        hybrid_free(&m->base);
    return st;
}

static const d9d_key keys[] = {D9D_MODEL_HEAD_KEYS, D9D_KEY_END};
static const d9d_table table = D9D_TABLE(d9d_model_head, "hybrid", keys, "states and attention");
static const d9d_name_pair names[] = {{NULL, NULL}};
static const d9d_model_provider provider = {sizeof(provider), &table, .dims = &dims_table,
                                            .create = create, .hf_names = names};
static const d9d_model_provider *const models[] = {&provider, NULL};
D9D_PLUGIN(.models = models);
