/* olmo.c - OLMo, OLMo 2 and OLMo 3.
 *
 *     OLMo      x = x + attention(norm(x))        LayerNorm without parameters
 *               x = x + mlp(norm(x))
 *     OLMo 2    x = x + norm(attention(x))        RMSNorm of what is added; QK norm of all heads
 *               x = x + norm(mlp(x))              together
 *
 * OLMo 3 is OLMo 2 with layers that see a window; scaled RoPE is of its other layers only.
 * Groeneveld et al., "OLMo: accelerating the science of language models", arXiv:2402.00838; OLMo
 * team, "2 OLMo 2 Furious", arXiv:2501.00656; "OLMo 3", 2025.
 */
#include "d9d/model/family/family.h"

typedef struct config {
    D9D_FAMILY_DIMS;
    bool attention_bias;
    double clip_qkv; /* 0: none */
    int64_t sliding_window;
    d9d_list layer_types;
    double rope_local_base_freq; /* base of layers with a window */
    bool plain_norms;            /* LayerNorm before attention and feed-forward */
    bool *windowed;              /* [num_hidden_layers]; NULL: none */
} config;

/* --- config.json --------------------------------------------------------------------------- */

#define KEYS(theta)                                                                                \
    D9D_FAMILY_KEYS(config), D9D_FAMILY_INTERMEDIATE(config),                                      \
        D9D_FAMILY_POSITIONS(config, "2048"), D9D_FAMILY_HEAD_DIM(config),                         \
        D9D_FAMILY_ROPE(config, theta), D9D_FAMILY_TIED(config, "false"),                          \
        D9D_FAMILY_PADDING(config, "1"),                                                           \
        D9D_KEY_BOOL(config, attention_bias, "false", "projections of attention have biases")
static const d9d_key olmo_keys[] = {KEYS("10000"), D9D_FAMILY_CLIP_QKV(config), D9D_KEY_END};
static const d9d_key olmo2_keys[] = {KEYS("10000"), D9D_FAMILY_NORM(config, rms_norm_eps, "1e-5"),
                                     D9D_KEY_END};
static const d9d_key olmo3_keys[] = {
    KEYS("500000"),
    D9D_FAMILY_NORM(config, rms_norm_eps, "1e-5"),
    D9D_KEY_INT(config, sliding_window, "4096", 1, INT32_MAX,
                "keys that a query sees, its own counted"),
    D9D_FAMILY_LAYER_TYPES(config, layer_types),
    D9D_KEY_REAL(config, rope_local_base_freq, "500000", 0, 1e15,
                 "base of the rotary frequencies of layers with a window", .flags = D9D_ABOVE_MIN),
    D9D_KEY_END};
#define TABLE(name, text)                                                                          \
    static const d9d_table name##_table = D9D_TABLE(config, #name "_config", name##_keys, text);   \
    static const char *const name##_types[] = {#name, NULL}
TABLE(olmo, "OLMo");
TABLE(olmo2, "OLMo 2");
TABLE(olmo3, "OLMo 3");

static const d9d_hf_field olmo_fields[] = {D9D_HF_ONLY("hidden_act", "[\"silu\"]"), D9D_HF_END};
static const d9d_hf_field olmo2_fields[] = {D9D_HF_ONLY("hidden_act", "[\"silu\"]"), D9D_HF_END};
static const d9d_hf_field olmo3_fields[] = {D9D_HF_ONLY("hidden_act", "[\"silu\"]"),
                                            D9D_HF_OWN("rope_local_base_freq"), D9D_HF_END};

static d9d_status olmo_check(void *dims, const char *where, d9d_arena *a)
{
    config *c = dims;

    (void)where, (void)a;
    c->plain_norms = true;
    c->norm_eps = 1e-5; /* which config.json cannot change */
    c->clip_qkv = c->clip_qkv > 0 ? c->clip_qkv : 0;
    return D9D_OK;
}

/* Layers with a window: by layer_types, or but for every fourth. */
static d9d_status olmo3_check(void *dims, const char *where, d9d_arena *a)
{
    config *c = dims;

    return d9d_layer_types_windowed(&c->layer_types, 4, 3, c->num_hidden_layers, where, a,
                                    &c->windowed);
}

static void olmo_shape(const void *dims, d9d_decoder_shape *s)
{
    (void)dims;
    s->layer_norm = true;
    s->layer_norm_params = D9D_LAYER_NORM_PLAIN;
}

static void olmo3_shape(const void *dims, d9d_decoder_shape *s)
{
    const config *c = dims;

    s->local_rope = (d9d_block_rope){.base = c->rope_local_base_freq, .features = c->head_dim};
}

/* --- a layer --------------------------------------------------------------------------------- */

typedef struct layer {
    d9d_decoder_layer base;
    d9d_block_layer_norm input_layernorm, ffn_layernorm;                 /* OLMo: before */
    d9d_block_norm post_attention_layernorm, post_feedforward_layernorm; /* OLMo 2: after */
    d9d_block_attention self_attn;
    d9d_block_ffn mlp;
} layer;

static d9d_status norms_init(layer *l, const config *c, const d9d_block_opts *opts)
{
    d9d_module *m = &l->base.module;
    const float eps = (float)c->norm_eps;

    if (c->plain_norms) {
        D9D_BLOCK_ADD(m, "input_layernorm", layer_norm, &l->input_layernorm, opts, c->hidden_size,
                      eps, D9D_LAYER_NORM_PLAIN);
        D9D_BLOCK_ADD(m, "post_attention_layernorm", layer_norm, &l->ffn_layernorm, opts,
                      c->hidden_size, eps, D9D_LAYER_NORM_PLAIN);
        return D9D_OK;
    }
    D9D_FAMILY_NORM_ADD(l, post_attention_layernorm, opts, c);
    D9D_FAMILY_NORM_ADD(l, post_feedforward_layernorm, opts, c);
    return D9D_OK;
}

static d9d_status init(d9d_decoder_layer *base, const d9d_block_opts *opts)
{
    const config *c = base->config;
    const bool windowed = c->windowed != NULL && c->windowed[base->number];
    const d9d_block_attention_shape attention = {.hidden = c->hidden_size,
                                                 .heads = c->num_attention_heads,
                                                 .kv_heads = c->num_key_value_heads,
                                                 .head_dim = c->head_dim,
                                                 .dropout = (float)c->attention_dropout,
                                                 .rope = windowed ? base->local_rope : base->rope,
                                                 .norm_eps = (float)c->norm_eps,
                                                 .qk_norm = c->plain_norms ? D9D_QK_NORM_NONE
                                                                           : D9D_QK_NORM_FULL,
                                                 .window = windowed ? c->sliding_window : 0,
                                                 .qkv_bias = c->attention_bias,
                                                 .o_bias = c->attention_bias,
                                                 .clip = (float)c->clip_qkv};
    layer *l = (layer *)base;

    D9D_BLOCK_ADD(&base->module, "self_attn", attention, &l->self_attn, opts, &attention);
    D9D_BLOCK_ADD(
        &base->module, "mlp", ffn, &l->mlp, opts,
        &(d9d_block_ffn_shape){.hidden = c->hidden_size, .intermediate = c->intermediate_size});
    return norms_init(l, c, opts);
}

static d9d_status pre_forward(d9d_decoder_layer *base, d9d_tape *t, const d9d_model_layer_in *in,
                              d9d_var **y)
{
    layer *l = (layer *)base;
    d9d_var *h;

    D9D_TRY(d9d_block_layer_norm_forward(&l->input_layernorm, t, in->x, &h));
    return d9d_block_attention_forward(&l->self_attn, t, h, in->positions, in->segments, in->cache,
                                       in->x, y);
}

static d9d_status pre_ffn(d9d_decoder_layer *base, d9d_tape *t, d9d_var *x, d9d_var **y)
{
    layer *l = (layer *)base;
    d9d_var *h;

    D9D_TRY(d9d_block_layer_norm_forward(&l->ffn_layernorm, t, x, &h));
    return d9d_block_ffn_forward(&l->mlp, t, h, x, y);
}

static d9d_status post_forward(d9d_decoder_layer *base, d9d_tape *t, const d9d_model_layer_in *in,
                               d9d_var **y)
{
    layer *l = (layer *)base;
    d9d_var *h;

    D9D_TRY(d9d_block_attention_forward(&l->self_attn, t, in->x, in->positions, in->segments,
                                        in->cache, NULL, &h));
    D9D_TRY(d9d_block_norm_forward(&l->post_attention_layernorm, t, h, &h));
    return d9d_op_add(t, in->x, h, y);
}

static d9d_status post_ffn(d9d_decoder_layer *base, d9d_tape *t, d9d_var *x, d9d_var **y)
{
    layer *l = (layer *)base;
    d9d_var *h;

    D9D_TRY(d9d_block_ffn_forward(&l->mlp, t, x, NULL, &h));
    D9D_TRY(d9d_block_norm_forward(&l->post_feedforward_layernorm, t, h, &h));
    return d9d_op_add(t, x, h, y);
}

#define LAYER(when)                                                                                \
    .layer = sizeof(layer), .dropout = true, .init = init, .forward = when##_forward,              \
    .ffn = when##_ffn
D9D_FAMILY(olmo, "olmo", "OLMo, the first", olmo_types, .class_name = "Olmo", .config = &olmo_table,
           .fields = olmo_fields, .check = olmo_check, .shape = olmo_shape, LAYER(pre));
D9D_FAMILY(olmo2, "olmo2", "OLMo 2", olmo2_types, .class_name = "Olmo2", .config = &olmo2_table,
           .fields = olmo2_fields, LAYER(post));
D9D_FAMILY(olmo3, "olmo3", "OLMo 3, some of whose layers see a window", olmo3_types,
           .class_name = "Olmo3", .config = &olmo3_table, .fields = olmo3_fields,
           .check = olmo3_check, .shape = olmo3_shape, LAYER(post));
