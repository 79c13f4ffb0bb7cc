/* granite.c - Granite 3 and its mixtures of experts: Llama's layer with four factors.
 *
 *     x0 = embedding_multiplier * embedding
 *     x = x + residual_multiplier * attention(norm(x))    softmax(attention_multiplier * q k)
 *     x = x + residual_multiplier * mlp(norm(x))          SwiGLU, or SwiGLU experts
 *     logits = head(norm(x)) / logits_scaling
 *
 * IBM Granite team, "Granite 3.0 language models", 2024.
 */
#include "d9d/model/family/family.h"

typedef struct config {
    D9D_FAMILY_DIMS;
    bool attention_bias, mlp_bias;
    double embedding_multiplier, attention_multiplier, residual_multiplier, logits_scaling;
    int64_t num_local_experts, num_experts_per_tok;
} config;

#define FACTOR(member, text)                                                                       \
    D9D_KEY_REAL(config, member, "1", 0, 1e6, text, .flags = D9D_FLOAT32 | D9D_ABOVE_MIN)
#define KEYS                                                                                       \
    D9D_FAMILY_KEYS(config), D9D_FAMILY_INTERMEDIATE(config),                                      \
        D9D_FAMILY_POSITIONS(config, "2048"), D9D_FAMILY_HEAD_DIM(config),                         \
        D9D_FAMILY_NORM(config, rms_norm_eps, "1e-6"), D9D_FAMILY_ROPE(config, "10000"),           \
        D9D_FAMILY_TIED(config, "false"),                                                          \
        D9D_KEY_BOOL(config, attention_bias, "false", "projections of attention have biases"),     \
        FACTOR(embedding_multiplier, "factor of the embedding"),                                   \
        FACTOR(attention_multiplier, "factor of attention's scores"),                              \
        FACTOR(residual_multiplier, "factor of what layers add"),                                  \
        FACTOR(logits_scaling, "what the logits are divided by")
static const d9d_key granite_keys[] = {
    KEYS, D9D_KEY_BOOL(config, mlp_bias, "false", "projections of feed-forward layers have biases"),
    D9D_KEY_END};
static const d9d_key granitemoe_keys[] = {
    KEYS, D9D_KEY_INT(config, num_local_experts, "8", 1, 1 << 16, "experts of a layer"),
    D9D_KEY_INT(config, num_experts_per_tok, "2", 1, 1 << 16, "experts of a token"), D9D_KEY_END};
#define TABLE(name, text)                                                                          \
    static const d9d_table name##_table = D9D_TABLE(config, #name "_config", name##_keys, text);   \
    static const char *const name##_types[] = {#name, NULL}
TABLE(granite, "Granite");
TABLE(granitemoe, "Granite with mixtures of experts");
static const d9d_hf_field granite_fields[] = {D9D_HF_ONLY("hidden_act", "[\"silu\"]"), D9D_HF_END};
static const d9d_hf_field granitemoe_fields[] = {
    D9D_HF_ONLY("hidden_act", "[\"silu\"]"), D9D_HF_IGNORED("output_router_logits"),
    D9D_HF_IGNORED("router_aux_loss_coef"), D9D_HF_END};
/* All experts are in one tensor, gate above up. */
static const d9d_hf_tensor granitemoe_tensors[] = {
    D9D_HF_NAME("mlp.router.gate.weight", "block_sparse_moe.router.layer.weight"),
    {.own = {"mlp.grouped_experts.gate_proj.weight", "mlp.grouped_experts.up_proj.weight"},
     .hf = "block_sparse_moe.input_linear.weight",
     .transposed = true,
     .dim = 2},
    {.own = {"mlp.grouped_experts.down_proj.weight"},
     .hf = "block_sparse_moe.output_linear.weight",
     .transposed = true},
    D9D_HF_MODEL_NAME("mlp.router.gate.weight", "block_sparse_moe.router.weight"),
    D9D_HF_FUSED_EXPERTS("block_sparse_moe.experts", D9D_HF_ROWS_MODEL),
    D9D_HF_TENSORS_END};

typedef struct layer {
    d9d_decoder_layer base;
    d9d_block_norm input_layernorm, post_attention_layernorm;
    d9d_block_attention self_attn;
    d9d_block_ffn mlp;
    d9d_block_moe moe; /* in place of mlp */
} layer;

static d9d_status mlp_init(layer *l, const config *c, const d9d_block_opts *opts)
{
    const d9d_block_moe_shape moe = {.hidden = c->hidden_size,
                                     .intermediate = c->intermediate_size,
                                     .experts = c->num_local_experts,
                                     .top_k = c->num_experts_per_tok,
                                     .renormalise = true,
                                     .router = c->router,
                                     .layer = l->base.number};

    if (c->num_local_experts > 0)
        D9D_BLOCK_ADD(&l->base.module, "mlp", moe, &l->moe, opts, &moe);
    else
        D9D_BLOCK_ADD(&l->base.module, "mlp", ffn, &l->mlp, opts,
                      &(d9d_block_ffn_shape){.hidden = c->hidden_size,
                                             .intermediate = c->intermediate_size,
                                             .bias = c->mlp_bias});
    return D9D_OK;
}

static d9d_status init(d9d_decoder_layer *base, const d9d_block_opts *opts)
{
    const config *c = base->config;
    const d9d_block_attention_shape attention = {.hidden = c->hidden_size,
                                                 .heads = c->num_attention_heads,
                                                 .kv_heads = c->num_key_value_heads,
                                                 .head_dim = c->head_dim,
                                                 .dropout = (float)c->attention_dropout,
                                                 .rope = base->rope,
                                                 .scale = (float)c->attention_multiplier,
                                                 .qkv_bias = c->attention_bias,
                                                 .o_bias = c->attention_bias};
    layer *l = (layer *)base;

    D9D_FAMILY_NORM_ADD(l, input_layernorm, opts, c);
    D9D_BLOCK_ADD(&base->module, "self_attn", attention, &l->self_attn, opts, &attention);
    D9D_FAMILY_NORM_ADD(l, post_attention_layernorm, opts, c);
    return mlp_init(l, c, opts);
}

static float residual_multiplier(const d9d_decoder_layer *base)
{
    return (float)((const config *)base->config)->residual_multiplier;
}

static d9d_status forward(d9d_decoder_layer *base, d9d_tape *t, const d9d_model_layer_in *in,
                          d9d_var **y)
{
    layer *l = (layer *)base;
    d9d_var *h;

    D9D_TRY(d9d_block_norm_forward(&l->input_layernorm, t, in->x, &h));
    D9D_TRY(d9d_block_attention_forward(&l->self_attn, t, h, in->positions, in->segments, in->cache,
                                        NULL, &h));
    return d9d_op_add_scaled(t, in->x, residual_multiplier(base), h, y);
}

static d9d_status ffn(d9d_decoder_layer *base, d9d_tape *t, d9d_var *x, d9d_var **y)
{
    layer *l = (layer *)base;
    d9d_var *h;

    D9D_TRY(d9d_block_norm_forward(&l->post_attention_layernorm, t, x, &h));
    D9D_TRY(base->blocks.moe != NULL ? d9d_block_moe_forward(&l->moe, t, h, &h)
                                     : d9d_block_ffn_forward(&l->mlp, t, h, NULL, &h));
    return d9d_op_add_scaled(t, x, residual_multiplier(base), h, y);
}

static d9d_status granitemoe_check(void *dims, const char *where, d9d_arena *a)
{
    const config *c = dims;

    (void)a;
    return d9d_block_router_check(where, c->num_local_experts, c->num_experts_per_tok, &c->router);
}

static void shape(const void *dims, d9d_decoder_shape *s)
{
    const config *c = dims;

    s->embedding_scale = c->embedding_multiplier;
    s->logit_scale = 1 / c->logits_scaling;
    s->has_experts = c->num_local_experts > 0;
}

#define LAYER                                                                                      \
    .shape = shape, .layer = sizeof(layer), .dropout = true, .init = init, .forward = forward,     \
    .ffn = ffn
D9D_FAMILY(granite, "granite", "Granite, dense", granite_types, .class_name = "Granite",
           .config = &granite_table, .fields = granite_fields, LAYER);
D9D_FAMILY(granitemoe, "granitemoe", "Granite with mixtures of experts", granitemoe_types,
           .class_name = "GraniteMoe", .config = &granitemoe_table, .fields = granitemoe_fields,
           .tensors = granitemoe_tensors, .check = granitemoe_check, LAYER);
