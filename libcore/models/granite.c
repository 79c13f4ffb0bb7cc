/* granite.c - Granite 3, its mixtures of experts, and those models of Granite 4 whose layers all
 * have attention: Llama's layer with four factors.
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
    int64_t shared_intermediate_size; /* of Granite 4, in place of intermediate_size */
    int position_embedding_type;      /* of Granite 4 */
    d9d_list layer_types;
} config;

#define FACTOR(member, text)                                                                       \
    D9D_KEY_REAL(config, member, "1", 0, 1e6, text, .flags = D9D_FLOAT32 | D9D_ABOVE_MIN)
#define KEYS                                                                                       \
    D9D_FAMILY_KEYS(config), D9D_FAMILY_POSITIONS(config, "2048"), D9D_FAMILY_HEAD_DIM(config),    \
        D9D_FAMILY_NORM(config, rms_norm_eps, "1e-6"), D9D_FAMILY_ROPE(config, "10000"),           \
        D9D_FAMILY_TIED(config, "false"), D9D_FAMILY_PADDING(config, "null"),                      \
        D9D_KEY_BOOL(config, attention_bias, "false", "projections of attention have biases"),     \
        FACTOR(embedding_multiplier, "factor of the embedding"),                                   \
        FACTOR(attention_multiplier, "factor of attention's scores"),                              \
        FACTOR(residual_multiplier, "factor of what layers add"),                                  \
        FACTOR(logits_scaling, "what the logits are divided by")
static const d9d_key granite_keys[] = {
    KEYS, D9D_FAMILY_INTERMEDIATE(config),
    D9D_KEY_BOOL(config, mlp_bias, "false", "projections of feed-forward layers have biases"),
    D9D_KEY_END};
static const d9d_key granitemoe_keys[] = {
    KEYS, D9D_FAMILY_INTERMEDIATE(config),
    D9D_KEY_INT(config, num_local_experts, "8", 1, 1 << 16, "experts of a layer"),
    D9D_KEY_INT(config, num_experts_per_tok, "2", 1, 1 << 16, "experts of a token"), D9D_KEY_END};
enum { NO_POSITIONS, ROPE };
static const char *const position_embedding_types[] = {"nope", "rope", NULL};
static const d9d_key granitemoehybrid_keys[] = {
    KEYS,
    D9D_KEY_INT(config, shared_intermediate_size, "1024", 1, 1 << 24,
                "width of the feed-forward layers"),
    D9D_KEY_INT(config, num_local_experts, "8", 0, 1 << 16, "experts of a layer: none"),
    D9D_KEY_ENUM(config, position_embedding_type, D9D_REQUIRED, position_embedding_types,
                 "RoPE or no positions"),
    D9D_FAMILY_LAYER_TYPES(config, layer_types),
    D9D_KEY_END};
#define TABLE(name, text)                                                                          \
    static const d9d_table name##_table = D9D_TABLE(config, #name "_config", name##_keys, text);   \
    static const char *const name##_types[] = {#name, NULL}
TABLE(granite, "Granite");
TABLE(granitemoe, "Granite with mixtures of experts");
TABLE(granitemoehybrid, "Granite 4");
static const d9d_hf_field granite_fields[] = {D9D_HF_ONLY("hidden_act", "[\"silu\"]"), D9D_HF_END};
static const d9d_hf_field granitemoe_fields[] = {
    D9D_HF_ONLY("hidden_act", "[\"silu\"]"), D9D_HF_ROUTER_LOSS("output_router_logits"),
    D9D_HF_ROUTER_LOSS("router_aux_loss_coef"), D9D_HF_END};
/* No layer has experts or a state space model. */
static const d9d_hf_field granitemoehybrid_fields[] = {
    D9D_HF_ONLY("hidden_act", "[\"silu\"]"), D9D_HF_ONLY("normalization_function", "[\"rmsnorm\"]"),
    D9D_HF_IGNORED("intermediate_size"),     D9D_HF_IGNORED("init_method"),
    D9D_HF_IGNORED("num_experts_per_tok"),   D9D_HF_IGNORED("output_router_logits"),
    D9D_HF_IGNORED("router_aux_loss_coef"),  D9D_HF_IGNORED("mamba_chunk_size"),
    D9D_HF_IGNORED("mamba_conv_bias"),       D9D_HF_IGNORED("mamba_d_conv"),
    D9D_HF_IGNORED("mamba_d_head"),          D9D_HF_IGNORED("mamba_d_state"),
    D9D_HF_IGNORED("mamba_expand"),          D9D_HF_IGNORED("mamba_n_groups"),
    D9D_HF_IGNORED("mamba_n_heads"),         D9D_HF_IGNORED("mamba_proj_bias"),
    D9D_HF_IGNORED("time_step_limit"),       D9D_HF_END};
static const d9d_hf_tensor granitemoehybrid_tensors[] = {
    {.own = {"mlp.gate_proj.weight", "mlp.up_proj.weight"}, .hf = "shared_mlp.input_linear.weight"},
    D9D_HF_NAME("mlp.down_proj.weight", "shared_mlp.output_linear.weight"),
    D9D_HF_TENSORS_END};
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
                                             .intermediate = c->shared_intermediate_size > 0
                                                                 ? c->shared_intermediate_size
                                                                 : c->intermediate_size,
                                             .bias = c->mlp_bias});
    return D9D_OK;
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
        .rope = c->position_embedding_type == ROPE ? base->rope : NULL,
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
    D9D_TRY(base->blocks.moe != NULL ? d9d_block_moe_forward(&l->moe, t, h, NULL, &h)
                                     : d9d_block_ffn_forward(&l->mlp, t, h, NULL, &h));
    return d9d_op_add_scaled(t, x, residual_multiplier(base), h, y);
}

static d9d_status granite_check(void *dims, const char *where, d9d_arena *a)
{
    config *c = dims;

    (void)where, (void)a;
    c->position_embedding_type = ROPE;
    return D9D_OK;
}

static d9d_status granitemoehybrid_check(void *dims, const char *where, d9d_arena *a)
{
    static const char *const words[] = {"attention", "full_attention", NULL};
    const config *c = dims;
    d9d_layer_types types;

    if (c->num_local_experts > 0)
        return D9D_FAIL(D9D_ENOTSUP,
                        "%s: num_local_experts is %lld: of Granite 4 only models without experts "
                        "are supported",
                        where, (long long)c->num_local_experts);
    if (c->layer_types.items == NULL)
        return D9D_FAIL(D9D_ENOTSUP,
                        "%s: layer_types is missing, and without it all layers of Granite 4 are "
                        "state space models, which are not supported",
                        where);
    return d9d_layer_types_read(&c->layer_types, "layer_types", words, c->num_hidden_layers, where,
                                a, &types);
}

static d9d_status granitemoe_check(void *dims, const char *where, d9d_arena *a)
{
    const config *c = dims;

    D9D_TRY(granite_check(dims, where, a));
    return d9d_block_router_check(where, "num_local_experts", c->num_local_experts,
                                  c->num_experts_per_tok, &c->router);
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
           .config = &granite_table, .fields = granite_fields, .check = granite_check, LAYER);
D9D_FAMILY(granitemoe, "granitemoe", "Granite with mixtures of experts", granitemoe_types,
           .class_name = "GraniteMoe", .config = &granitemoe_table, .fields = granitemoe_fields,
           .tensors = granitemoe_tensors, .check = granitemoe_check, LAYER);
D9D_FAMILY(granitemoehybrid, "granitemoehybrid",
           "Granite 4, without experts and state space models", granitemoehybrid_types,
           .class_name = "GraniteMoeHybrid", .config = &granitemoehybrid_table,
           .fields = granitemoehybrid_fields, .tensors = granitemoehybrid_tensors,
           .check = granitemoehybrid_check, LAYER);
