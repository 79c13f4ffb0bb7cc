/* glm4_moe.c - GLM-4.5 to 4.7: grouped-query attention and DeepSeek's mixture of experts.
 *
 *     x = x + attention(norm(x))         biases, QK norm in the large ones, half of a head rotated
 *     x = x + mlp(norm(x))               SwiGLU in the first layers, then experts of sigmoid
 *                                        scores, chosen with a bias, and experts for all tokens
 *
 * GLM-4.5 team, "GLM-4.5: agentic, reasoning, and coding foundation models", arXiv:2508.06471.
 */
#include "d9d/model/family/family.h"

typedef struct config {
    D9D_FAMILY_DIMS;
    bool attention_bias, use_qk_norm, norm_topk_prob;
    double partial_rotary_factor, routed_scaling_factor;
    int64_t n_routed_experts, n_shared_experts, num_experts_per_tok, moe_intermediate_size;
    int64_t n_group, topk_group, first_k_dense_replace;
} config;

#define COUNT(member, otherwise, text) D9D_KEY_INT(config, member, otherwise, 0, 1 << 20, text)
static const d9d_key keys[] = {
    D9D_FAMILY_KEYS_GQA(config, "8"),
    D9D_FAMILY_INTERMEDIATE(config),
    D9D_FAMILY_POSITIONS(config, "131072"),
    D9D_FAMILY_HEAD_DIM(config),
    D9D_FAMILY_NORM(config, rms_norm_eps, "1e-5"),
    D9D_FAMILY_ROPE(config, "10000"),
    D9D_FAMILY_TIED(config, "false"),
    D9D_FAMILY_PADDING(config, "null"),
    D9D_KEY_REAL(config, partial_rotary_factor, "0.5", 0, 1, "share of a head that is rotated",
                 .flags = D9D_ABOVE_MIN),
    D9D_KEY_BOOL(config, attention_bias, "false", "queries, keys and values have biases"),
    D9D_KEY_BOOL(config, use_qk_norm, "false", "norms of queries and keys"),
    COUNT(n_routed_experts, "128", "experts of a layer"),
    COUNT(n_shared_experts, "1", "experts for all tokens, as one of so many widths"),
    COUNT(num_experts_per_tok, "8", "experts of a token"),
    COUNT(moe_intermediate_size, "1408", "width of an expert"),
    COUNT(n_group, "1", "groups of experts"),
    COUNT(topk_group, "1", "groups that a token chooses from"),
    COUNT(first_k_dense_replace, "1", "layers without experts, the first ones"),
    D9D_KEY_BOOL(config, norm_topk_prob, "true", "weights are shares of the chosen experts"),
    D9D_KEY_REAL(config, routed_scaling_factor, "1", 0, 1e3, "factor of the weights",
                 .flags = D9D_FLOAT32 | D9D_ABOVE_MIN),
    D9D_KEY_END,
};
static const d9d_table table = D9D_TABLE(config, "glm4_moe_config", keys, "GLM-4.5");
static const char *const types[] = {"glm4_moe", NULL};
static const d9d_hf_field fields[] = {
    D9D_HF_ONLY("hidden_act", "[\"silu\"]"), D9D_HF_IGNORED("num_nextn_predict_layers"),
    D9D_HF_IGNORED("router_aux_loss_coef"), D9D_HF_IGNORED("output_router_logits"), D9D_HF_END};
static const d9d_hf_tensor tensors[] = {D9D_HF_EXPERTS, D9D_HF_EXPERT_BIAS, D9D_HF_SHARED_EXPERTS,
                                        D9D_HF_TENSORS_END};

typedef struct layer {
    d9d_decoder_layer base;
    d9d_block_norm input_layernorm, post_attention_layernorm;
    d9d_block_attention self_attn;
    d9d_block_ffn mlp; /* of the first layers */
    d9d_block_moe moe; /* of the others */
} layer;

static d9d_status init(d9d_decoder_layer *base, const d9d_block_opts *opts)
{
    const config *c = base->config;
    const d9d_block_attention_shape attention = {.hidden = c->hidden_size,
                                                 .heads = c->num_attention_heads,
                                                 .kv_heads = c->num_key_value_heads,
                                                 .head_dim = c->head_dim,
                                                 .dropout = (float)c->attention_dropout,
                                                 .rope = base->rope,
                                                 .norm_eps = (float)c->norm_eps,
                                                 .qk_norm = c->use_qk_norm ? D9D_QK_NORM_HEAD
                                                                           : D9D_QK_NORM_NONE,
                                                 .qkv_bias = c->attention_bias};
    const d9d_block_moe_shape moe = {.hidden = c->hidden_size,
                                     .intermediate = c->moe_intermediate_size,
                                     .experts = c->n_routed_experts,
                                     .top_k = c->num_experts_per_tok,
                                     .renormalise = c->norm_topk_prob,
                                     .shared_intermediate =
                                         c->moe_intermediate_size * c->n_shared_experts,
                                     .router = c->router,
                                     .layer = base->number};
    layer *l = (layer *)base;

    D9D_FAMILY_NORM_ADD(l, input_layernorm, opts, c);
    D9D_BLOCK_ADD(&base->module, "self_attn", attention, &l->self_attn, opts, &attention);
    D9D_FAMILY_NORM_ADD(l, post_attention_layernorm, opts, c);
    if (base->number < c->first_k_dense_replace)
        D9D_BLOCK_ADD(
            &base->module, "mlp", ffn, &l->mlp, opts,
            &(d9d_block_ffn_shape){.hidden = c->hidden_size, .intermediate = c->intermediate_size});
    else
        D9D_BLOCK_ADD(&base->module, "mlp", moe, &l->moe, opts, &moe);
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
    if (base->blocks.moe == NULL)
        return d9d_block_ffn_forward(&l->mlp, t, h, x, y);
    return d9d_block_moe_forward(&l->moe, t, h, x, y);
}

static bool has_experts(const config *c)
{
    return c->first_k_dense_replace < c->num_hidden_layers;
}

static d9d_status check(void *dims, const char *where, d9d_arena *a)
{
    config *c = dims;

    (void)a;
    c->router = (d9d_block_router){.score = D9D_SCORE_SIGMOID,
                                   .groups = c->n_group,
                                   .top_groups = c->topk_group,
                                   .scale = c->routed_scaling_factor,
                                   .expert_bias = true};
    if (!has_experts(c)) /* nothing reads what the file says of them */
        return D9D_OK;
    return d9d_block_router_check(where, "n_routed_experts", c->n_routed_experts,
                                  c->num_experts_per_tok, &c->router);
}

static void shape(const void *dims, d9d_decoder_shape *s)
{
    const config *c = dims;

    s->rope.features = (int64_t)((double)c->head_dim * c->partial_rotary_factor);
    s->has_experts = has_experts(c);
}

D9D_FAMILY(glm4_moe, "glm4_moe", "GLM-4.5 to 4.7, mixtures of experts", types,
           .class_name = "Glm4Moe", .config = &table, .fields = fields, .tensors = tensors,
           .check = check, .shape = shape, .mtp_layers = true, .layer = sizeof(layer),
           .dropout = true, .init = init, .forward = forward, .ffn = ffn);
