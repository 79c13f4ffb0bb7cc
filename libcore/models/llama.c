/* llama.c - Llama 2 and 3, Mistral, Ministral, SmolLM2: a dense decoder.
 *
 *     x = x + attention(norm(x))         grouped-query attention with RoPE
 *     x = x + down(silu(gate(norm(x))) * up(norm(x)))
 *
 * Touvron et al., "Llama 2", 2023; Grattafiori et al., "The Llama 3 herd of models", 2024; Jiang et
 * al., "Mistral 7B", 2023, whose layers see a window.
 */
#include "d9d/model/family.h"

typedef struct config {
    D9D_FAMILY_DIMS;
    int64_t sliding_window; /* 0: none */
} config;

static const d9d_key llama_keys[] = {
    D9D_FAMILY_KEYS(config),
    D9D_FAMILY_INTERMEDIATE(config),
    D9D_FAMILY_POSITIONS(config, "2048"),
    D9D_FAMILY_HEAD_DIM(config),
    D9D_FAMILY_NORM(config, rms_norm_eps, "1e-6"),
    D9D_FAMILY_ROPE(config, "10000"),
    D9D_FAMILY_TIED(config, "false"),
    D9D_KEY_END,
};
static const d9d_key mistral_keys[] = {
    D9D_FAMILY_KEYS(config),
    D9D_FAMILY_INTERMEDIATE(config),
    D9D_FAMILY_POSITIONS(config, "131072"),
    D9D_FAMILY_HEAD_DIM(config),
    D9D_FAMILY_NORM(config, rms_norm_eps, "1e-6"),
    D9D_FAMILY_ROPE(config, "10000"),
    D9D_FAMILY_TIED(config, "false"),
    D9D_KEY_INT(config, sliding_window, "4096", 1, INT32_MAX,
                "keys that a query sees, its own counted; null: all", .flags = D9D_NULLABLE),
    D9D_KEY_END,
};
static const d9d_table llama_table = D9D_TABLE(config, "llama_config", llama_keys, "Llama");
static const d9d_table mistral_table =
    D9D_TABLE(config, "mistral_config", mistral_keys, "Mistral");
static const char *const llama_types[] = {"llama", NULL};
static const char *const mistral_types[] = {"mistral", NULL};

static const d9d_hf_field fields[] = {
    D9D_HF_ONLY("hidden_act", "[\"silu\"]"), D9D_HF_ONLY("attention_bias", "[false]"),
    D9D_HF_ONLY("mlp_bias", "[false]"), D9D_HF_IGNORED("pretraining_tp"), D9D_HF_END};

static const d9d_hf_tensor tensors[] = {D9D_HF_UNUSED("self_attn.rotary_emb.inv_freq"),
                                        D9D_HF_TENSORS_END};

typedef struct layer {
    d9d_decoder_layer base;
    d9d_block_norm input_layernorm, post_attention_layernorm;
    d9d_block_attention self_attn;
    d9d_block_ffn mlp;
} layer;

static d9d_status init(d9d_decoder_layer *base, const d9d_block_opts *opts)
{
    const config *c = base->config;
    const d9d_block_attention_shape attention = {.hidden = c->hidden_size,
                                                 .heads = c->num_attention_heads,
                                                 .kv_heads = c->num_key_value_heads,
                                                 .head_dim = c->head_dim,
                                                 .rope = base->rope,
                                                 .no_norm = true,
                                                 .window = c->sliding_window};
    layer *l = (layer *)base;

    D9D_FAMILY_NORM_ADD(l, input_layernorm, opts, c);
    D9D_BLOCK_ADD(&base->module, "self_attn", attention, &l->self_attn, opts, &attention);
    D9D_FAMILY_NORM_ADD(l, post_attention_layernorm, opts, c);
    D9D_BLOCK_ADD(&base->module, "mlp", ffn, &l->mlp, opts, c->hidden_size, c->intermediate_size);
    return D9D_OK;
}

static d9d_status forward(d9d_decoder_layer *base, d9d_tape *t, const d9d_model_layer_in *in,
                          d9d_var **y)
{
    layer *l = (layer *)base;
    d9d_var *h;

    D9D_TRY(d9d_block_norm_forward(&l->input_layernorm, t, in->x, &h));
    return d9d_block_attention_forward(&l->self_attn, t, h, in->positions, in->segments, in->cache,
                                       in->x, y);
}

static d9d_status ffn(d9d_decoder_layer *base, d9d_tape *t, d9d_var *x, d9d_var **y)
{
    layer *l = (layer *)base;
    d9d_var *h;

    D9D_TRY(d9d_block_norm_forward(&l->post_attention_layernorm, t, x, &h));
    return d9d_block_ffn_forward(&l->mlp, t, h, x, y);
}

static d9d_status mistral_check(void *dims, const char *where, d9d_arena *a)
{
    config *c = dims;

    (void)where, (void)a;
    c->sliding_window = c->sliding_window > 0 ? c->sliding_window : 0;
    return D9D_OK;
}

#define LAYER                                                                                      \
    .fields = fields, .tensors = tensors, .layer = sizeof(layer), .init = init,                    \
    .forward = forward, .ffn = ffn
D9D_FAMILY(llama, "llama", "Llama 2 and 3, and what has their layers", llama_types,
           .class_name = "Llama", .config = &llama_table, LAYER);
D9D_FAMILY(mistral, "mistral", "Mistral, whose layers see a window", mistral_types,
           .class_name = "Mistral", .config = &mistral_table, .check = mistral_check, LAYER);
