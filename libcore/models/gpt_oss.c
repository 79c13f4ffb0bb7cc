/* gpt_oss.c - gpt-oss: attention with sinks, in every second layer with a window, and experts of a
 * clamped SwiGLU.
 *
 *     x = x + attention(norm(x))         biases, sinks, RoPE by YaRN
 *     x = x + experts(norm(x))           weights are the softmax of the chosen experts; biases
 *
 * OpenAI, "gpt-oss-120b & gpt-oss-20b model card", arXiv:2508.10925.
 */
#include "d9d/model/family/family.h"

enum { SLIDING, FULL }; /* of layer_types */

typedef struct config {
    D9D_FAMILY_DIMS;
    bool attention_bias;
    int64_t num_local_experts, num_experts_per_tok;
    int64_t sliding_window; /* 0: none */
    double swiglu_limit;
    d9d_list layer_types;
    d9d_layer_types types;
} config;

static const d9d_key keys[] = {
    D9D_FAMILY_KEYS_GQA(config, "8"),
    D9D_FAMILY_INTERMEDIATE(config),
    D9D_FAMILY_POSITIONS(config, "131072"),
    D9D_KEY_INT(config, head_dim, "64", 1, 1 << 16, "features of a head"),
    D9D_FAMILY_NORM(config, rms_norm_eps, "1e-5"),
    D9D_FAMILY_ROPE_SCALED(config, "150000",
                           "{\"rope_type\": \"yarn\", \"factor\": 32.0, \"truncate\": false, "
                           "\"original_max_position_embeddings\": 4096}"),
    D9D_FAMILY_TIED(config, "false"),
    D9D_FAMILY_PADDING(config, "null"),
    D9D_KEY_BOOL(config, attention_bias, "true", "all projections of attention have biases"),
    D9D_KEY_INT(config, num_local_experts, "128", 1, 1 << 16, "experts of a layer"),
    D9D_KEY_INT(config, num_experts_per_tok, "4", 1, 1 << 16, "experts of a token"),
    D9D_KEY_INT(config, sliding_window, "128", 1, INT32_MAX,
                "keys that a query sees, its own counted, in layers of sliding_attention",
                .flags = D9D_NULLABLE),
    D9D_KEY_REAL(config, swiglu_limit, "7", 0, 1e30, "gate and up are clamped to it",
                 .flags = D9D_FLOAT32 | D9D_ABOVE_MIN),
    D9D_FAMILY_LAYER_TYPES(config, layer_types),
    D9D_KEY_END,
};
static const d9d_table table = D9D_TABLE(config, "gpt_oss_config", keys, "gpt-oss");
static const char *const types[] = {"gpt_oss", NULL};
static const d9d_hf_field fields[] = {D9D_HF_ONLY("hidden_act", "[\"silu\"]"),
                                      D9D_HF_ONLY("swiglu_alpha", "[1.702]"),
                                      D9D_HF_ROUTER_LOSS("router_aux_loss_coef"),
                                      D9D_HF_ROUTER_LOSS("output_router_logits"),
                                      D9D_HF_IGNORED("experts_per_token"),
                                      D9D_HF_IGNORED("initial_context_length"),
                                      D9D_HF_END};

/* All experts in one tensor, which is not transposed; gate and up by turns. */
#define EXPERTS "mlp.grouped_experts."
static const d9d_hf_tensor tensors[] = {
    D9D_HF_NAME("mlp.router.gate.weight", "mlp.router.weight"),
    D9D_HF_NAME("mlp.router.gate.bias", "mlp.router.bias"),
    {.own = {EXPERTS "gate_proj.weight", EXPERTS "up_proj.weight"},
     .hf = "mlp.experts.gate_up_proj",
     .dim = 2,
     .groups = D9D_HF_EACH},
    {.own = {EXPERTS "gate_proj.bias", EXPERTS "up_proj.bias"},
     .hf = "mlp.experts.gate_up_proj_bias",
     .dim = 1,
     .groups = D9D_HF_EACH},
    D9D_HF_NAME(EXPERTS "down_proj.weight", "mlp.experts.down_proj"),
    D9D_HF_NAME(EXPERTS "down_proj.bias", "mlp.experts.down_proj_bias"),
    D9D_HF_TENSORS_END};

typedef struct layer {
    d9d_decoder_layer base;
    d9d_block_norm input_layernorm, post_attention_layernorm;
    d9d_block_attention self_attn;
    d9d_block_moe mlp;
} layer;

/* Without a list the layers alternate, the first one has a window. */
static bool has_window(const config *c, int64_t number)
{
    return c->types.at != NULL ? c->types.at[number] == SLIDING : number % 2 == 0;
}

static d9d_status init(d9d_decoder_layer *base, const d9d_block_opts *opts)
{
    const config *c = base->config;
    const d9d_block_attention_shape attention = {
        .hidden = c->hidden_size,
        .heads = c->num_attention_heads,
        .kv_heads = c->num_key_value_heads,
        .head_dim = c->head_dim,
        .dropout = (float)c->attention_dropout,
        .rope = base->rope,
        .sinks = true,
        .window = has_window(c, base->number) ? c->sliding_window : 0,
        .qkv_bias = c->attention_bias,
        .o_bias = c->attention_bias};
    const d9d_block_moe_shape moe = {
        .hidden = c->hidden_size,
        .intermediate = c->intermediate_size,
        .experts = c->num_local_experts,
        .top_k = c->num_experts_per_tok,
        .renormalise = true,
        .router = c->router,
        .router_bias = true,
        .glu = {.act = D9D_ACT_SWIGLU_OAI, .alpha = 1.702f, .limit = (float)c->swiglu_limit},
        .bias = true,
        .layer = base->number};
    layer *l = (layer *)base;

    D9D_FAMILY_NORM_ADD(l, input_layernorm, opts, c);
    D9D_BLOCK_ADD(&base->module, "self_attn", attention, &l->self_attn, opts, &attention);
    D9D_FAMILY_NORM_ADD(l, post_attention_layernorm, opts, c);
    D9D_BLOCK_ADD(&base->module, "mlp", moe, &l->mlp, opts, &moe);
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
    return d9d_block_moe_forward(&l->mlp, t, h, x, y);
}

static d9d_status check(void *dims, const char *where, d9d_arena *a)
{
    static const char *const words[] = {
        [SLIDING] = "sliding_attention", [FULL] = "full_attention", NULL};
    config *c = dims;

    c->sliding_window = c->sliding_window > 0 ? c->sliding_window : 0;
    D9D_TRY(d9d_layer_types_read(&c->layer_types, "layer_types", words, c->num_hidden_layers, where,
                                 a, &c->types));
    return d9d_block_router_check(where, "num_local_experts", c->num_local_experts,
                                  c->num_experts_per_tok, &c->router);
}

static void shape(const void *dims, d9d_decoder_shape *s)
{
    (void)dims;
    s->has_experts = true;
}

D9D_FAMILY(gpt_oss, "gpt_oss", "gpt-oss, mixtures of experts", types, .class_name = "GptOss",
           .config = &table, .fields = fields, .tensors = tensors, .check = check, .shape = shape,
           .layer = sizeof(layer), .dropout = true, .init = init, .forward = forward, .ffn = ffn);
