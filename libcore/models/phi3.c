/* phi3.c - Phi-3, Phi-3.5 and Phi-4: Llama's layer with a partial RoPE, and fused projections in
 * the files.
 *
 *     x = x + attention(norm(x))         the first features of each head are rotated
 *     x = x + mlp(norm(x))               SwiGLU
 *
 * Abdin et al., "Phi-3 technical report", arXiv:2404.14219; "Phi-4 technical report",
 * arXiv:2412.08905.
 */
#include "d9d/model/family.h"

typedef struct config {
    D9D_FAMILY_DIMS;
    int64_t sliding_window;
    double partial_rotary_factor;
} config;

static const d9d_key keys[] = {
    D9D_FAMILY_KEYS(config),
    D9D_FAMILY_INTERMEDIATE(config),
    D9D_FAMILY_POSITIONS(config, "4096"),
    D9D_FAMILY_HEAD_DIM(config),
    D9D_FAMILY_NORM(config, rms_norm_eps, "1e-5"),
    D9D_FAMILY_ROPE(config, "10000"),
    D9D_FAMILY_TIED(config, "false"),
    D9D_KEY_INT(config, sliding_window, "null", 1, INT32_MAX, "keys that a query sees; null: all",
                .flags = D9D_NULLABLE),
    D9D_KEY_REAL(config, partial_rotary_factor, "1", 0, 1, "share of a head that is rotated",
                 .flags = D9D_ABOVE_MIN),
    D9D_KEY_END,
};
static const d9d_table table = D9D_TABLE(config, "phi3_config", keys, "Phi-3 and Phi-4");
static const char *const types[] = {"phi3", NULL};
static const d9d_hf_field fields[] = {
    D9D_HF_ONLY("hidden_act", "[\"silu\"]"), D9D_HF_ONLY("embd_pdrop", "[0]"),
    D9D_HF_ONLY("resid_pdrop", "[0]"), D9D_HF_ONLY("attention_bias", "[false]"), D9D_HF_END};
static const d9d_hf_tensor tensors[] = {
    {.own = {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"},
     .hf = "self_attn.qkv_proj.weight"},
    {.own = {"mlp.gate_proj.weight", "mlp.up_proj.weight"}, .hf = "mlp.gate_up_proj.weight"},
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

static d9d_status check(void *dims, const char *where, d9d_arena *a)
{
    config *c = dims;

    (void)where, (void)a;
    c->sliding_window = c->sliding_window > 0 ? c->sliding_window : 0;
    return D9D_OK;
}

static void shape(const void *dims, d9d_decoder_shape *s)
{
    const config *c = dims;

    s->rope.features = (int64_t)((double)c->head_dim * c->partial_rotary_factor);
}

D9D_FAMILY(phi3, "phi3", "Phi-3, Phi-3.5 and Phi-4", types, .class_name = "Phi3", .config = &table,
           .fields = fields, .tensors = tensors, .check = check, .shape = shape,
           .layer = sizeof(layer), .init = init, .forward = forward, .ffn = ffn);
