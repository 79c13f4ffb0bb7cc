/* gemma.c - Gemma, Gemma 2 and the text model of Gemma 3.
 *
 *     x = sqrt(H) embedding
 *     Gemma         x = x + attention(norm(x))           RMSNorm with weights around 0
 *                   x = x + mlp(norm(x))                 GeGLU
 *     Gemma 2, 3    x = x + norm(attention(norm(x)))
 *                   x = x + norm(mlp(norm(x)))
 *
 * Gemma 2 caps scores and logits by tanh, and every second layer sees a window.  Gemma 3 has QK
 * norm, and five of six layers see a window and have a RoPE of their own.  Gemma team, "Gemma",
 * arXiv:2403.08295; "Gemma 2", arXiv:2408.00118; "Gemma 3", arXiv:2503.19786.
 */
#include <math.h>

#include "d9d/model/family/family.h"

typedef struct config {
    D9D_FAMILY_DIMS;
    bool attention_bias;
    int64_t query_pre_attn_scalar;                          /* 0: head_dim */
    double attn_logit_softcapping, final_logit_softcapping; /* 0: none */
    int64_t sliding_window;
    int64_t sliding_window_pattern; /* every such layer has no window */
    double rope_local_base_freq;    /* base of layers with a window; 0: rope_theta */
    d9d_list layer_types;
    bool *windowed;           /* [num_hidden_layers]; NULL: none */
    bool post_norms, qk_norm; /* of Gemma 2 and 3; of 3 */
} config;

/* --- config.json --------------------------------------------------------------------------- */

#define KEYS(positions, theta)                                                                     \
    D9D_FAMILY_INTERMEDIATE(config), D9D_FAMILY_POSITIONS(config, positions),                      \
        D9D_KEY_INT(config, head_dim, "256", 2, 1 << 16, "features of a head"),                    \
        D9D_FAMILY_NORM(config, rms_norm_eps, "1e-6"), D9D_FAMILY_ROPE(config, theta),             \
        D9D_FAMILY_TIED(config, "true"), D9D_FAMILY_PADDING(config, "0"),                          \
        D9D_KEY_BOOL(config, attention_bias, "false", "projections of attention have biases")
#define CAP(key, otherwise, text)                                                                  \
    D9D_KEY_REAL(config, key, otherwise, 0, 1e9, text, .flags = D9D_ABOVE_MIN | D9D_NULLABLE)
#define WINDOWS                                                                                    \
    D9D_KEY_INT(config, query_pre_attn_scalar, "256", 1, 1 << 20,                                  \
                "scores are divided by its square root"),                                          \
        D9D_KEY_INT(config, sliding_window, "4096", 1, INT32_MAX,                                  \
                    "keys that a query sees, its own counted"),                                    \
        D9D_FAMILY_LAYER_TYPES(config, layer_types)
static const d9d_key gemma_keys[] = {D9D_FAMILY_KEYS_GQA(config, "16"), KEYS("8192", "10000"),
                                     D9D_KEY_END};
static const d9d_key gemma2_keys[] = {
    D9D_FAMILY_KEYS_GQA(config, "4"),
    KEYS("8192", "10000"),
    WINDOWS,
    CAP(attn_logit_softcapping, "50", "bound of scores, by tanh; null: none"),
    CAP(final_logit_softcapping, "30", "bound of logits, by tanh; null: none"),
    D9D_KEY_END};
/* Files of the 4B model have neither heads nor ids. */
static const d9d_key gemma3_keys[] = {
    D9D_FAMILY_KEYS_OF(config, "8", "262208"),
    D9D_FAMILY_KV_HEADS(config, "4"),
    KEYS("131072", "1e6"),
    WINDOWS,
    CAP(final_logit_softcapping, "null", "bound of logits, by tanh; null: none"),
    D9D_KEY_INT(config, sliding_window_pattern, "6", 1, 1 << 16,
                "every such layer has no window, without layer_types"),
    D9D_KEY_REAL(config, rope_local_base_freq, "10000", 0, 1e15,
                 "base of the rotary frequencies of layers with a window", .flags = D9D_ABOVE_MIN),
    D9D_KEY_END};
#define TABLE(name, text)                                                                          \
    static const d9d_table name##_table = D9D_TABLE(config, #name "_config", name##_keys, text)
TABLE(gemma, "Gemma");
TABLE(gemma2, "Gemma 2");
TABLE(gemma3, "Gemma 3");
static const char *const gemma_types[] = {"gemma", NULL};
static const char *const gemma2_types[] = {"gemma2", NULL};
static const char *const gemma3_types[] = {"gemma3_text", NULL};

#define ACTIVATION "[\"gelu_pytorch_tanh\"]"
#define FIELDS                                                                                     \
    D9D_HF_ONLY("hidden_activation", ACTIVATION),                                                  \
        D9D_HF_ONLY("use_bidirectional_attention", "[false]"),                                     \
        D9D_HF_IGNORED("cache_implementation")
/* "gelu" of the first files means the approximation by tanh. */
static const d9d_hf_field gemma_fields[] = {
    FIELDS, D9D_HF_ONLY("hidden_act", "[\"gelu_pytorch_tanh\", \"gelu\"]"), D9D_HF_END};
static const d9d_hf_field gemma2_fields[] = {FIELDS, D9D_HF_IGNORED("hidden_act"),
                                             D9D_HF_ALIAS("sliding_window_size", "sliding_window"),
                                             D9D_HF_END};
/* transformers reads attn_logit_softcapping of Gemma 3, and computes nothing with it. */
static const d9d_hf_field gemma3_fields[] = {FIELDS, D9D_HF_ONLY("attn_logit_softcapping", "[]"),
                                             D9D_HF_IGNORED("_sliding_window_pattern"), D9D_HF_END};

static double or_none(double cap)
{
    return cap > 0 ? cap : 0;
}

/* Null is none.  Layers with a window: by layer_types, or but for the last of each `pattern`. */
static d9d_status layers_find(config *c, int64_t pattern, const char *where, d9d_arena *a)
{
    c->post_norms = true;
    c->attn_logit_softcapping = or_none(c->attn_logit_softcapping);
    c->final_logit_softcapping = or_none(c->final_logit_softcapping);
    return d9d_layer_types_windowed(&c->layer_types, pattern, pattern - 1, c->num_hidden_layers,
                                    where, a, &c->windowed);
}

static d9d_status gemma2_check(void *dims, const char *where, d9d_arena *a)
{
    return layers_find(dims, 2, where, a);
}

static d9d_status gemma3_check(void *dims, const char *where, d9d_arena *a)
{
    config *c = dims;

    c->qk_norm = true;
    return layers_find(c, c->sliding_window_pattern, where, a);
}

static void shape(const void *dims, d9d_decoder_shape *s)
{
    const config *c = dims;

    s->zero_centred = true;
    s->embedding_scale = sqrt((double)c->hidden_size);
    s->embedding_scale_rounded = true;
    s->logit_softcap = c->final_logit_softcapping;
    if (c->rope_local_base_freq > 0)
        s->local_rope = (d9d_block_rope){.base = c->rope_local_base_freq, .features = c->head_dim};
}

/* --- a layer --------------------------------------------------------------------------------- */

typedef struct layer {
    d9d_decoder_layer base;
    d9d_block_norm input_layernorm, post_attention_layernorm;
    d9d_block_norm pre_feedforward_layernorm, post_feedforward_layernorm; /* of Gemma 2 and 3 */
    d9d_block_attention self_attn;
    d9d_block_ffn mlp;
} layer;

#define NORM(l, member, opts, c)                                                                   \
    D9D_BLOCK_ADD(&(l)->base.module, #member, norm, &(l)->member, opts, (c)->hidden_size,          \
                  (float)(c)->norm_eps, true)

static d9d_status init(d9d_decoder_layer *base, const d9d_block_opts *opts)
{
    const config *c = base->config;
    const bool windowed = c->windowed != NULL && c->windowed[base->number];
    const int64_t scalar = c->query_pre_attn_scalar > 0 ? c->query_pre_attn_scalar : c->head_dim;
    const d9d_block_attention_shape attention = {
        .hidden = c->hidden_size,
        .heads = c->num_attention_heads,
        .kv_heads = c->num_key_value_heads,
        .head_dim = c->head_dim,
        .dropout = (float)c->attention_dropout,
        .rope = windowed ? base->local_rope : base->rope,
        .norm_eps = (float)c->norm_eps,
        .qk_norm = c->qk_norm ? D9D_QK_NORM_HEAD : D9D_QK_NORM_NONE,
        .zero_centred = true,
        .window = windowed ? c->sliding_window : 0,
        .scale = (float)(1.0 / sqrt((double)scalar)),
        .softcap = (float)c->attn_logit_softcapping,
        .qkv_bias = c->attention_bias,
        .o_bias = c->attention_bias,
    };
    const d9d_block_ffn_shape mlp = {.hidden = c->hidden_size,
                                     .intermediate = c->intermediate_size,
                                     .glu = {.act = D9D_ACT_GELU_TANH}};
    layer *l = (layer *)base;

    D9D_BLOCK_ADD(&base->module, "self_attn", attention, &l->self_attn, opts, &attention);
    D9D_BLOCK_ADD(&base->module, "mlp", ffn, &l->mlp, opts, &mlp);
    NORM(l, input_layernorm, opts, c);
    NORM(l, post_attention_layernorm, opts, c);
    if (!c->post_norms)
        return D9D_OK;
    NORM(l, pre_feedforward_layernorm, opts, c);
    NORM(l, post_feedforward_layernorm, opts, c);
    return D9D_OK;
}

static d9d_status pre_forward(d9d_decoder_layer *base, d9d_tape *t, const d9d_model_layer_in *in,
                              d9d_var **y)
{
    layer *l = (layer *)base;
    d9d_var *h;

    D9D_TRY(d9d_block_norm_forward(&l->input_layernorm, t, in->x, &h));
    return d9d_block_attention_forward(&l->self_attn, t, h, in->positions, in->segments, in->cache,
                                       in->x, y);
}

static d9d_status pre_ffn(d9d_decoder_layer *base, d9d_tape *t, d9d_var *x, d9d_var **y)
{
    layer *l = (layer *)base;
    d9d_var *h;

    D9D_TRY(d9d_block_norm_forward(&l->post_attention_layernorm, t, x, &h));
    return d9d_block_ffn_forward(&l->mlp, t, h, x, y);
}

static d9d_status both_forward(d9d_decoder_layer *base, d9d_tape *t, const d9d_model_layer_in *in,
                               d9d_var **y)
{
    layer *l = (layer *)base;
    d9d_var *h;

    D9D_TRY(d9d_block_norm_forward(&l->input_layernorm, t, in->x, &h));
    D9D_TRY(d9d_block_attention_forward(&l->self_attn, t, h, in->positions, in->segments, in->cache,
                                        NULL, &h));
    D9D_TRY(d9d_block_norm_forward(&l->post_attention_layernorm, t, h, &h));
    return d9d_op_add(t, in->x, h, y);
}

static d9d_status both_ffn(d9d_decoder_layer *base, d9d_tape *t, d9d_var *x, d9d_var **y)
{
    layer *l = (layer *)base;
    d9d_var *h;

    D9D_TRY(d9d_block_norm_forward(&l->pre_feedforward_layernorm, t, x, &h));
    D9D_TRY(d9d_block_ffn_forward(&l->mlp, t, h, NULL, &h));
    D9D_TRY(d9d_block_norm_forward(&l->post_feedforward_layernorm, t, h, &h));
    return d9d_op_add(t, x, h, y);
}

#define LAYER(norms)                                                                               \
    .shape = shape, .layer = sizeof(layer), .dropout = true, .init = init,                         \
    .forward = norms##_forward, .ffn = norms##_ffn
D9D_FAMILY(gemma, "gemma", "Gemma, the first", gemma_types, .class_name = "Gemma",
           .config = &gemma_table, .fields = gemma_fields, LAYER(pre));
D9D_FAMILY(gemma2, "gemma2", "Gemma 2, every second layer of which sees a window", gemma2_types,
           .class_name = "Gemma2", .config = &gemma2_table, .fields = gemma2_fields,
           .check = gemma2_check, LAYER(both));
D9D_FAMILY(gemma3, "gemma3", "Gemma 3, text alone", gemma3_types, .class_name = "Gemma3",
           .config = &gemma3_table, .fields = gemma3_fields, .check = gemma3_check, LAYER(both));
