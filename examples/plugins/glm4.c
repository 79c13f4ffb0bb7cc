/* glm4.c - a family with fused tensors and norms of its own names as a plugin: GLM-4, dense.
 *
 *     x = x + norm(attention(norm(x)))     biases of q, k, v; half of a head is rotated, neighbours
 *     x = x + norm(mlp(norm(x)))           a pair; SwiGLU, gate and up one tensor in files
 *
 *     {"plugin": "libglm4.so", "model_provider": {"name": "glm4", "hf_config": "DIR"}}
 *     d9d-map --plugin ./libglm4.so hf/GLM-4-9B-0414 ckpt/glm4
 *     d9d-map certify --plugin ./libglm4.so glm4
 *
 * GLM team, "ChatGLM: a family of large language models from GLM-130B to GLM-4 all tools",
 * arXiv:2406.12793; the norms behind attention and mlp came with the models of April 2025.
 */
#include <d9d/model/family/family.h>
#include <d9d/tasks/plugin.h>

typedef struct config {
    D9D_FAMILY_DIMS;
    bool attention_bias;
    double partial_rotary_factor;
} config;

static const d9d_key keys[] = {
    D9D_FAMILY_KEYS_MHA(config),
    D9D_KEY_INT(config, num_key_value_heads, "2", 1, 1 << 16, "key and value heads"),
    D9D_FAMILY_INTERMEDIATE(config),
    D9D_FAMILY_POSITIONS(config, "131072"),
    D9D_KEY_INT(config, head_dim, "128", 1, 1 << 16, "features of a head"),
    D9D_FAMILY_NORM(config, rms_norm_eps, "1.5625e-7"),
    D9D_FAMILY_ROPE(config, "10000"),
    D9D_FAMILY_TIED(config, "false"),
    D9D_FAMILY_PADDING(config, "151329"),
    D9D_KEY_REAL(config, partial_rotary_factor, "0.5", 0, 1, "share of a head that is rotated",
                 .flags = D9D_ABOVE_MIN),
    D9D_KEY_BOOL(config, attention_bias, "true", "queries, keys and values have biases"),
    D9D_KEY_END,
};
static const d9d_table table = D9D_TABLE(config, "glm4_config", keys, "GLM-4");
static const char *const types[] = {"glm4", NULL};
static const d9d_hf_field fields[] = {D9D_HF_ONLY("hidden_act", "[\"silu\"]"), D9D_HF_END};
static const d9d_hf_tensor tensors[] = {
    {.own = {"mlp.gate_proj.weight", "mlp.up_proj.weight"}, .hf = "mlp.gate_up_proj.weight"},
    D9D_HF_TENSORS_END};

typedef struct layer {
    d9d_decoder_layer base;
    d9d_block_norm input_layernorm, post_self_attn_layernorm;
    d9d_block_norm post_attention_layernorm, post_mlp_layernorm; /* before and behind mlp */
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
                                                 .qkv_bias = c->attention_bias};
    const d9d_block_ffn_shape mlp = {.hidden = c->hidden_size,
                                     .intermediate = c->intermediate_size};
    layer *l = (layer *)base;

    D9D_FAMILY_NORM_ADD(l, input_layernorm, opts, c);
    D9D_BLOCK_ADD(&base->module, "self_attn", attention, &l->self_attn, opts, &attention);
    D9D_FAMILY_NORM_ADD(l, post_self_attn_layernorm, opts, c);
    D9D_FAMILY_NORM_ADD(l, post_attention_layernorm, opts, c);
    D9D_BLOCK_ADD(&base->module, "mlp", ffn, &l->mlp, opts, &mlp);
    D9D_FAMILY_NORM_ADD(l, post_mlp_layernorm, opts, c);
    return D9D_OK;
}

static d9d_status forward(d9d_decoder_layer *base, d9d_tape *t, const d9d_model_layer_in *in,
                          d9d_var **y)
{
    layer *l = (layer *)base;
    d9d_var *h;

    D9D_TRY(d9d_block_norm_forward(&l->input_layernorm, t, in->x, &h));
    D9D_TRY(d9d_block_attention_forward(&l->self_attn, t, h, in->positions, in->segments, in->cache,
                                        NULL, &h));
    D9D_TRY(d9d_block_norm_forward(&l->post_self_attn_layernorm, t, h, &h));
    return d9d_op_add(t, in->x, h, y);
}

static d9d_status ffn(d9d_decoder_layer *base, d9d_tape *t, d9d_var *x, d9d_var **y)
{
    layer *l = (layer *)base;
    d9d_var *h;

    D9D_TRY(d9d_block_norm_forward(&l->post_attention_layernorm, t, x, &h));
    D9D_TRY(d9d_block_ffn_forward(&l->mlp, t, h, NULL, &h));
    D9D_TRY(d9d_block_norm_forward(&l->post_mlp_layernorm, t, h, &h));
    return d9d_op_add(t, x, h, y);
}

static void shape(const void *dims, d9d_decoder_shape *s)
{
    const config *c = dims;

    s->rope.features = (int64_t)((double)c->head_dim * c->partial_rotary_factor);
    s->rope.style = D9D_ROPE_INTERLEAVED;
}

D9D_FAMILY(glm4, "glm4", "GLM-4, dense", types, .class_name = "Glm4", .config = &table,
           .fields = fields, .tensors = tensors, .shape = shape, .layer = sizeof(layer),
           .init = init, .forward = forward, .ffn = ffn);
static const d9d_model_provider *const models[] = {&d9d_glm4_provider, NULL};
D9D_PLUGIN(.models = models);
