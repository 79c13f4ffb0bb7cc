/* plain_llama.c - custom models as a plugin: Llama and Mistral in plain code.
 *
 *     {"plugin": "libplain_llama.so",
 *      "model_provider": {"name": "plain_llama", "hf_config": "config.json"}}
 *
 * A layer is plain code over operations and blocks: attention without QK norm.  No code here deals
 * with ranks: any model is replicated and sharded by its FSDP units, and divided into pipeline
 * stages between its layers.  Mistral is the same layer with optional sliding-window attention.
 * Both are built in too, as "llama" and "mistral" (libcore/models/llama.c).  A model that is made
 * of blocks alone is shorter as a family: seed_oss.c.
 */
#include <math.h>

#include <d9d/tasks/plugin.h>

/* --- config.json: every field that it may have ----------------------------------------------- */

typedef struct dims {
    int64_t hidden_size, intermediate_size, num_hidden_layers, num_attention_heads;
    int64_t num_key_value_heads, head_dim, vocab_size, max_position_embeddings, sliding_window;
    double rms_norm_eps, rope_theta, initializer_range;
    d9d_rope_scaling rope_scaling;
    bool tie_word_embeddings;
} dims;
#define DIM(name) D9D_KEY_INT(dims, name, D9D_REQUIRED, 1, 1 << 20, #name)
#define DIMS                                                                                       \
    DIM(hidden_size), DIM(intermediate_size), DIM(num_hidden_layers), DIM(num_attention_heads),    \
        DIM(num_key_value_heads), DIM(vocab_size), DIM(max_position_embeddings),                   \
        D9D_KEY_INT(dims, head_dim, "null", 2, 1 << 16, "head size; null: a share of all",         \
                    .flags = D9D_NULLABLE),                                                        \
        D9D_KEY_REAL(dims, rms_norm_eps, "1e-6", 0, 1, "epsilon of the norms"),                    \
        D9D_KEY_REAL(dims, rope_theta, "10000", 1, 1e15, "base of RoPE's frequencies (theta)"),    \
        D9D_KEY_REAL(dims, initializer_range, "0.02", 0, 1e3, "deviation of initial matrices"),    \
        D9D_KEY_CUSTOM(dims, rope_scaling, "null", &d9d_hf_rope_scaling, "for longer rows"),       \
        D9D_KEY_BOOL(dims, tie_word_embeddings, "false", "the head is the embedding")
static const d9d_key llama_keys[] = {DIMS, D9D_KEY_END};
static const d9d_key mistral_keys[] = {
    DIMS,
    D9D_KEY_INT(dims, sliding_window, "4096", 1, INT32_MAX,
                "keys that a query sees, its own counted; null: all before it",
                .flags = D9D_NULLABLE),
    D9D_KEY_END,
};
static const d9d_table llama_dims = D9D_TABLE(dims, "llama_config", llama_keys, "Llama");
static const d9d_table mistral_dims = D9D_TABLE(dims, "mistral_config", mistral_keys, "Mistral");

static const char *const llama_types[] = {"llama", NULL}, *const mistral_types[] = {"mistral",
                                                                                    NULL};
static const d9d_hf_field fields[] = {
    D9D_HF_ONLY("hidden_act", "[\"silu\"]"),
    D9D_HF_ONLY("attention_bias", "[false]"),
    D9D_HF_ONLY("mlp_bias", "[false]"),
    D9D_HF_ONLY("attention_dropout", "[0]"),
    D9D_HF_IGNORED("pretraining_tp"), /* slices of the same matrix products */
    D9D_HF_END,
};

static int64_t head_dim(const dims *c)
{
    return c->head_dim > 0 ? c->head_dim : c->hidden_size / c->num_attention_heads;
}

/* --- a layer ------------------------------------------------------------------------------- */

typedef struct layer {
    d9d_decoder_layer base;
    d9d_module attn;
    d9d_block_norm norm, ffn_norm;
    d9d_block_linear qkv[3], o;
    d9d_block_ffn ffn;
} layer;

static d9d_status layer_init(d9d_decoder_layer *base, const d9d_block_opts *opts)
{
    const dims *c = base->config;
    const int64_t H = c->hidden_size, I = c->intermediate_size;
    const int64_t Q = head_dim(c) * c->num_attention_heads;
    const int64_t KV = head_dim(c) * c->num_key_value_heads;
    const float eps = (float)c->rms_norm_eps;
    layer *l = (layer *)base;

    D9D_BLOCK_ADD(&l->attn, "q_proj", linear, &l->qkv[0], opts, H, Q);
    D9D_BLOCK_ADD(&l->attn, "k_proj", linear, &l->qkv[1], opts, H, KV);
    D9D_BLOCK_ADD(&l->attn, "v_proj", linear, &l->qkv[2], opts, H, KV);
    D9D_BLOCK_ADD(&l->attn, "o_proj", linear, &l->o, opts, Q, H);
    D9D_TRY(d9d_module_child(&base->module, "self_attn", &l->attn));
    D9D_BLOCK_ADD(&base->module, "mlp", ffn, &l->ffn, opts,
                  &(d9d_block_ffn_shape){.hidden = H, .intermediate = I});
    D9D_BLOCK_ADD(&base->module, "input_layernorm", norm, &l->norm, opts, H, eps, false);
    D9D_BLOCK_ADD(&base->module, "post_attention_layernorm", norm, &l->ffn_norm, opts, H, eps,
                  false);
    return D9D_OK;
}

/* RoPE rotates queries and keys, not values. */
static d9d_status attend(d9d_decoder_layer *base, d9d_tape *t, const d9d_model_layer_in *in,
                         d9d_var **out)
{
    const dims *c = base->config;
    const d9d_shape s = d9d_var_tensor(in->x)->shape;
    const int64_t A = c->num_attention_heads, K = c->num_key_value_heads, D = head_dim(c);
    const d9d_op_attention_opts opts = {.scale = 1 / sqrtf((float)D),
                                        .causal = true,
                                        .segments = in->segments,
                                        .prefix = d9d_tape_prefix(t),
                                        .window = c->sliding_window > 0 ? c->sliding_window : 0,
                                        .cached = in->cache != NULL};
    layer *l = (layer *)base;
    d9d_var *h, *y[3];

    D9D_TRY(d9d_block_norm_forward(&l->norm, t, in->x, &h));
    for (int i = 0; i < 3; i++) {
        D9D_TRY(d9d_block_linear_forward(&l->qkv[i], t, h, &y[i]));
        D9D_TRY(d9d_op_reshape(t, y[i], D9D_SHAPE(s.dim[0], s.dim[1], i == 0 ? A : K, D), &y[i]));
        if (i < 2)
            D9D_TRY(d9d_op_rope(t, y[i], in->positions, &base->rope->inv_freq, base->rope->style,
                                d9d_rope_mscale(&base->rope->scaling), &y[i]));
        if (i > 0 && in->cache != NULL)
            D9D_TRY(
                d9d_op_kv_append(t, y[i], in->cache->token_slots, in->cache->entry[i - 1], &y[i]));
    }
    D9D_TRY(d9d_op_attention(t, y[0], y[1], y[2], &opts, &h));
    D9D_TRY(d9d_op_reshape(t, h, D9D_SHAPE(s.dim[0], s.dim[1], A * D), &h));
    D9D_TRY(d9d_block_linear_forward(&l->o, t, h, &h));
    return d9d_op_add(t, in->x, h, out);
}

static d9d_status ffn(d9d_decoder_layer *base, d9d_tape *t, d9d_var *x, d9d_var **out)
{
    layer *l = (layer *)base;
    d9d_var *h;

    D9D_TRY(d9d_block_norm_forward(&l->ffn_norm, t, x, &h));
    return d9d_block_ffn_forward(&l->ffn, t, h, x, out);
}

/* Generation caches keys and values. */
static void cache_spec(const d9d_decoder_layer *base, d9d_block_cache_spec *out)
{
    const dims *c = base->config;
    const d9d_shape heads = D9D_SHAPE(c->num_key_value_heads, head_dim(c));
    const d9d_dtype t = ((const layer *)base)->o.weight.spec.dtype;

    *out =
        (d9d_block_cache_spec){2, {{"k", false, t, heads, false}, {"v", false, t, heads, false}}};
}

/* --- the models ----------------------------------------------------------------------------- */

static const d9d_decoder_kind llama = {sizeof(llama),           .name = "plain_llama",
                                       .layer = sizeof(layer),  .init = layer_init,
                                       .forward = attend,       .ffn = ffn,
                                       .cache_spec = cache_spec};

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
        .rope = {.base = c->rope_theta, .features = head_dim(c), .scaling = c->rope_scaling},
        .tied = c->tie_word_embeddings,
    };

    if (head_dim(c) % 2 != 0 || c->num_attention_heads % c->num_key_value_heads != 0 ||
        (c->head_dim <= 0 && c->hidden_size % c->num_attention_heads != 0))
        return D9D_FAIL(D9D_ECONFIG, "plain_llama: its heads do not divide its features");
    return d9d_decoder_create(&llama, &shape, config, stage, o, out);
}

static const d9d_key keys[] = {D9D_MODEL_SECTION_KEYS, D9D_KEY_END};
#define PROVIDER(word, text)                                                                       \
    static const d9d_table word##_table =                                                          \
        D9D_TABLE(d9d_model_section, "plain_" #word, keys, text);                                  \
    static const d9d_model_provider word##_provider = {sizeof(d9d_model_provider),                 \
                                                       &word##_table,                              \
                                                       .dims = &word##_dims,                       \
                                                       .create = create,                           \
                                                       .hf_names = d9d_decoder_hf_names,           \
                                                       .stages = true,                             \
                                                       .model_types = word##_types,                \
                                                       .fields = fields}
PROVIDER(llama, "Llama, dense");
PROVIDER(mistral, "Mistral, dense");
static const d9d_model_provider *const models[] = {&llama_provider, &mistral_provider, NULL};
D9D_PLUGIN(.models = models);
