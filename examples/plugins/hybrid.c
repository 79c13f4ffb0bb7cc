/* hybrid.c - a custom hybrid model as a plugin: linear attention in most layers, attention in some.
 *
 *     {"plugin": "libhybrid.so", "model_provider": {"name": "hybrid", "hf_config": "hybrid.json"}}
 *
 * A small relative of Qwen3-Next.  Every full_attention_interval-th layer has gated attention
 * (partial RoPE: half of a head is rotated).  The others have a gated delta net, whose state has a
 * fixed size.
 */
#include <d9d/tasks/plugin.h>

/* --- its dimensions ------------------------------------------------------------------------ */

typedef struct dims {
    int64_t hidden_size, intermediate_size, num_hidden_layers, full_attention_interval;
    int64_t num_attention_heads, num_key_value_heads, head_dim;
    int64_t linear_num_key_heads, linear_num_value_heads;
    int64_t linear_key_head_dim, linear_value_head_dim, linear_conv_kernel_dim;
    int64_t vocab_size, max_position_embeddings;
    double rms_norm_eps, rope_theta, initializer_range;
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
    D9D_KEY_REAL(dims, rope_theta, "10000000", 1, 1e15, "base of RoPE's frequencies (theta)"),
    D9D_KEY_REAL(dims, initializer_range, "0.02", 0, 1e3, "deviation of initial matrices"),
    D9D_KEY_END,
};
static const d9d_table dims_table = D9D_TABLE(dims, "hybrid_config", dims_keys, "Hybrid");

/* model_type of config.json. */
static const char *const types[] = {"hybrid", NULL};

/* --- a layer ------------------------------------------------------------------------------- */

typedef struct layer {
    d9d_decoder_layer base;
    d9d_block_norm norm, ffn_norm;
    bool attends;
    d9d_block_attention attn;    /* if the layer has attention */
    d9d_block_gated_delta delta; /* otherwise */
    d9d_block_ffn ffn;
} layer;

static d9d_status layer_init(d9d_decoder_layer *base, const d9d_block_opts *opts)
{
    const dims *c = base->config;
    const float eps = (float)c->rms_norm_eps;
    const d9d_block_attention_shape attention = {.hidden = c->hidden_size,
                                                 .heads = c->num_attention_heads,
                                                 .kv_heads = c->num_key_value_heads,
                                                 .head_dim = c->head_dim,
                                                 .rope = base->rope,
                                                 .norm_eps = eps,
                                                 .qk_norm = D9D_QK_NORM_HEAD,
                                                 .zero_centred = true,
                                                 .output_gate = true};
    const d9d_block_gated_delta_shape delta = {.hidden = c->hidden_size,
                                               .key_heads = c->linear_num_key_heads,
                                               .value_heads = c->linear_num_value_heads,
                                               .key_dim = c->linear_key_head_dim,
                                               .value_dim = c->linear_value_head_dim,
                                               .conv_width = c->linear_conv_kernel_dim,
                                               .norm_eps = eps};
    layer *l = (layer *)base;

    l->attends = (base->number + 1) % c->full_attention_interval == 0;
    if (l->attends)
        D9D_BLOCK_ADD(&base->module, "self_attn", attention, &l->attn, opts, &attention);
    else
        D9D_BLOCK_ADD(&base->module, "linear_attn", gated_delta, &l->delta, opts, &delta);
    D9D_BLOCK_ADD(
        &base->module, "mlp", ffn, &l->ffn, opts,
        &(d9d_block_ffn_shape){.hidden = c->hidden_size, .intermediate = c->intermediate_size});
    D9D_BLOCK_ADD(&base->module, "input_layernorm", norm, &l->norm, opts, c->hidden_size, eps,
                  true);
    D9D_BLOCK_ADD(&base->module, "post_attention_layernorm", norm, &l->ffn_norm, opts,
                  c->hidden_size, eps, true);
    return D9D_OK;
}

/* The token mixer: attention or gated delta net. */
static d9d_status mix(d9d_decoder_layer *base, d9d_tape *t, const d9d_model_layer_in *in,
                      d9d_var **out)
{
    layer *l = (layer *)base;
    d9d_var *h;

    D9D_TRY(d9d_block_norm_forward(&l->norm, t, in->x, &h));
    if (l->attends)
        return d9d_block_attention_forward(&l->attn, t, h, in->positions, in->segments, in->cache,
                                           in->x, out);
    return d9d_block_gated_delta_forward(&l->delta, t, h, in->positions, in->segments, in->cache,
                                         in->x, out);
}

static d9d_status ffn(d9d_decoder_layer *base, d9d_tape *t, d9d_var *x, d9d_var **out)
{
    layer *l = (layer *)base;
    d9d_var *h;

    D9D_TRY(d9d_block_norm_forward(&l->ffn_norm, t, x, &h));
    return d9d_block_ffn_forward(&l->ffn, t, h, x, out);
}

/* The cache that generation needs for past tokens. */
static void cache_spec(const d9d_decoder_layer *base, d9d_block_cache_spec *out)
{
    const layer *l = (const layer *)base;

    if (l->attends)
        d9d_block_attention_cache_spec(&l->attn, out);
    else
        d9d_block_gated_delta_cache_spec(&l->delta, out);
}

/* --- the model ------------------------------------------------------------------------------ */

static const d9d_decoder_kind hybrid = {
    .size = sizeof(hybrid),
    .name = "hybrid",
    .layer = sizeof(layer),
    .init = layer_init,
    .forward = mix,
    .ffn = ffn,
    .cache_spec = cache_spec,
};

static d9d_status create(const void *config, d9d_stage stage, const d9d_model_opts *o,
                         d9d_model **out)
{
    const dims *c = config;
    const d9d_decoder_shape shape = {
        .layers = c->num_hidden_layers,
        .hidden = c->hidden_size,
        .vocab = c->vocab_size,
        .max_positions = c->max_position_embeddings,
        .init_std = c->initializer_range,
        .norm_eps = c->rms_norm_eps,
        .zero_centred = true,
        .rope = {.base = c->rope_theta, .features = c->head_dim / 4 * 2},
    };

    return d9d_decoder_create(&hybrid, &shape, config, stage, o, out);
}

static const d9d_key keys[] = {D9D_MODEL_SECTION_KEYS, D9D_KEY_END};
static const d9d_table table = D9D_TABLE(d9d_model_section, "hybrid", keys, "states and attention");
static const d9d_hf_name_pair names[] = {{NULL, NULL}};
static const d9d_model_provider provider = {
    sizeof(provider),  &table,         .dims = &dims_table, .create = create,
    .hf_names = names, .stages = true, .model_types = types};
static const d9d_model_provider *const models[] = {&provider, NULL};
D9D_PLUGIN(.models = models);
