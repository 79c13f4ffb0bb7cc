/* deepseek_v3.c - DeepSeek V2, V3, R1 and V3.1, Kimi K2, Moonlight, GLM-4.7-Flash: latent attention
 * and a mixture of many experts.
 *
 *     x = x + attention(norm(x))         MLA: keys and values projected up from a few features
 *     x = x + mlp(norm(x))               SwiGLU in the first layers, then experts, chosen by
 *                                        groups, and experts for all tokens
 *
 * V3 has sigmoid scores and a bias that balances the choice, V2 a softmax.  DeepSeek-AI,
 * "DeepSeek-V2", arXiv:2405.04434, and "DeepSeek-V3 technical report", arXiv:2412.19437.
 */
#include <math.h>

#include "d9d/model/family/family.h"

typedef struct config {
    D9D_FAMILY_DIMS;
    bool norm_topk_prob, rope_interleave, attention_bias;
    double routed_scaling_factor;
    int64_t q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim;
    int64_t n_routed_experts, n_shared_experts, num_experts_per_tok, moe_intermediate_size;
    int64_t n_group, topk_group, first_k_dense_replace;
    int topk_method;          /* of V2 */
    d9d_list mlp_layer_types; /* of GLM-4.7-Flash */
    d9d_layer_types types;    /* 1: with experts */
} config;

#define SIZE(member, otherwise, from, text)                                                        \
    D9D_KEY_INT(config, member, otherwise, from, 1 << 20, text)
#define COUNT(member, otherwise, text) SIZE(member, otherwise, 0, text)
#define KEYS(positions, eps, q_rank, nope, v)                                                      \
    D9D_FAMILY_KEYS(config), D9D_FAMILY_INTERMEDIATE(config),                                      \
        D9D_FAMILY_POSITIONS(config, positions), D9D_FAMILY_NORM(config, rms_norm_eps, eps),       \
        D9D_FAMILY_ROPE(config, "10000"), D9D_FAMILY_TIED(config, "false"),                        \
        D9D_FAMILY_PADDING(config, "null"),                                                        \
        D9D_KEY_INT(config, q_lora_rank, q_rank, 1, 1 << 20,                                       \
                    "latent features of queries; null: projected directly",                        \
                    .flags = D9D_NULLABLE),                                                        \
        SIZE(kv_lora_rank, "512", 1, "latent features of keys and values"),                        \
        COUNT(qk_nope_head_dim, nope, "features of a head without positions"),                     \
        SIZE(qk_rope_head_dim, "64", 2, "features of a head that are rotated"),                    \
        SIZE(v_head_dim, v, 1, "features of a head's values"),                                     \
        D9D_KEY_BOOL(config, attention_bias, "false",                                              \
                     "down-projections and the output's projection have biases")
#define DENSE_LAYERS(otherwise)                                                                    \
    COUNT(first_k_dense_replace, otherwise, "layers without experts, the first ones")
#define MOE_KEYS(experts, shared, width, scale)                                                    \
    COUNT(n_routed_experts, experts, "experts of a layer"),                                        \
        COUNT(n_shared_experts, shared, "experts for all tokens, as one of so many widths"),       \
        COUNT(moe_intermediate_size, width, "width of an expert"),                                 \
        D9D_KEY_REAL(config, routed_scaling_factor, scale, 0, 1e3, "factor of the weights",        \
                     .flags = D9D_FLOAT32 | D9D_ABOVE_MIN)
enum { GREEDY, GROUP_LIMITED };
static const char *const topk_methods[] = {"greedy", "group_limited_greedy", NULL};
#define CHOICE(per_token, groups, top_groups)                                                      \
    COUNT(num_experts_per_tok, per_token, "experts of a token"),                                   \
        COUNT(n_group, groups, "groups of experts"),                                               \
        COUNT(topk_group, top_groups, "groups that a token chooses from"),                         \
        D9D_KEY_BOOL(config, rope_interleave, "true", "neighbouring features are a pair"),         \
        D9D_KEY_BOOL(config, norm_topk_prob, "true", "weights are shares of the chosen experts")
static const d9d_key deepseek_v3_keys[] = {
    KEYS("4096", "1e-6", "1536", "128", "128"),
    MOE_KEYS("256", "1", "2048", "2.5"),
    DENSE_LAYERS("3"),
    CHOICE("8", "8", "4"),
    D9D_KEY_END,
};
static const d9d_key glm4_moe_lite_keys[] = {
    KEYS("202752", "1e-5", "768", "192", "256"),
    MOE_KEYS("64", "1", "1536", "1.8"),
    CHOICE("4", "1", "1"),
    D9D_KEY_LIST(config, mlp_layer_types, "null", &d9d_family_word,
                 "dense or sparse, of each layer; null: the first is dense", .flags = D9D_NULLABLE),
    D9D_KEY_END,
};
static const d9d_key deepseek_v2_keys[] = {
    KEYS("2048", "1e-6", "1536", "128", "128"),
    MOE_KEYS("64", "2", "1407", "1"),
    DENSE_LAYERS("0"),
    COUNT(num_experts_per_tok, D9D_REQUIRED, "experts of a token"),
    COUNT(n_group, "0", "groups of experts"),
    COUNT(topk_group, "0", "groups that a token chooses from"),
    D9D_KEY_ENUM(config, topk_method, "\"greedy\"", topk_methods,
                 "of all experts, or of those in the best groups"),
    D9D_KEY_END,
};
#define TABLE(name, text, ...)                                                                     \
    static const d9d_table name##_table = D9D_TABLE(config, #name "_config", name##_keys, text);   \
    static const char *const name##_types[] = {__VA_ARGS__, NULL}
TABLE(deepseek_v2, "DeepSeek V2", "deepseek_v2");
TABLE(deepseek_v3, "DeepSeek V3", "deepseek_v3", "kimi_k2");
TABLE(glm4_moe_lite, "GLM-4.7-Flash", "glm4_moe_lite");

#define FIELDS                                                                                     \
    D9D_HF_ONLY("hidden_act", "[\"silu\"]"), D9D_HF_ONLY("moe_layer_freq", "[1]"),                 \
        D9D_HF_IGNORED("num_nextn_predict_layers"), D9D_HF_IGNORED("ep_size"),                     \
        D9D_HF_IGNORED("aux_loss_alpha"), D9D_HF_IGNORED("seq_aux"),                               \
        D9D_HF_IGNORED("pretraining_tp"), D9D_HF_IGNORED("qk_head_dim"),                           \
        D9D_HF_IGNORED("head_dim"), D9D_HF_IGNORED("num_local_experts"),                           \
        D9D_HF_IGNORED("router_aux_loss_coef"), D9D_HF_IGNORED("output_router_logits")
#define CHOICE_FIELDS                                                                              \
    FIELDS, D9D_HF_ONLY("scoring_func", "[\"sigmoid\"]"),                                          \
        D9D_HF_ONLY("topk_method", "[\"noaux_tc\"]")
static const d9d_hf_field deepseek_v3_fields[] = {CHOICE_FIELDS, D9D_HF_END};
/* transformers ignores first_k_dense_replace. */
static const d9d_hf_field glm4_moe_lite_fields[] = {
    CHOICE_FIELDS, D9D_HF_ONLY("first_k_dense_replace", "[1]"), D9D_HF_END};
/* transformers ignores norm_topk_prob, and DeepSeek's own code does not. */
static const d9d_hf_field deepseek_v2_fields[] = {
    FIELDS, D9D_HF_ONLY("mlp_bias", "[false]"), D9D_HF_ONLY("scoring_func", "[\"softmax\"]"),
    D9D_HF_ONLY("norm_topk_prob", "[false]"), D9D_HF_END};
static const d9d_hf_tensor tensors[] = {
    D9D_HF_EXPERTS,
    D9D_HF_EXPERT_BIAS,
    D9D_HF_SHARED_EXPERTS,
    D9D_HF_NAME("self_attn.q_proj.down_proj.weight", "self_attn.q_a_proj.weight"),
    D9D_HF_NAME("self_attn.q_proj.down_proj.bias", "self_attn.q_a_proj.bias"),
    D9D_HF_NAME("self_attn.kv_down_proj.bias", "self_attn.kv_a_proj_with_mqa.bias"),
    D9D_HF_NAME("self_attn.q_proj.norm.weight", "self_attn.q_a_layernorm.weight"),
    D9D_HF_NAME("self_attn.q_proj.up_proj.weight", "self_attn.q_b_proj.weight"),
    D9D_HF_NAME("self_attn.kv_down_proj.weight", "self_attn.kv_a_proj_with_mqa.weight"),
    D9D_HF_NAME("self_attn.kv_down_norm.weight", "self_attn.kv_a_layernorm.weight"),
    D9D_HF_NAME("self_attn.kv_up_proj.weight", "self_attn.kv_b_proj.weight"),
    D9D_HF_UNUSED("self_attn.rotary_emb.inv_freq"),
    D9D_HF_TENSORS_END};

typedef struct layer {
    d9d_decoder_layer base;
    d9d_block_norm input_layernorm, post_attention_layernorm;
    d9d_block_mla self_attn;
    d9d_block_ffn mlp; /* of the first layers */
    d9d_block_moe moe; /* of the others */
} layer;

/* A scaled RoPE makes the scores sharper: yarn's factor, squared, once more for all features. */
static float score_scale(const config *c)
{
    const double d = (double)(c->qk_nope_head_dim + c->qk_rope_head_dim);
    const double m = c->rope_scaling.mscale_all > 0 && c->rope_scaling.factor > 1
                         ? 0.1 * c->rope_scaling.mscale_all * log(c->rope_scaling.factor) + 1
                         : 1;

    return (float)(m * m / sqrt(d));
}

static bool is_dense(const config *c, int64_t number)
{
    return c->types.at != NULL ? c->types.at[number] == 0 : number < c->first_k_dense_replace;
}

static bool has_experts(const config *c)
{
    bool found = false;

    for (int64_t l = 0; l < c->num_hidden_layers; l++)
        found |= !is_dense(c, l);
    return found;
}

static d9d_status init(d9d_decoder_layer *base, const d9d_block_opts *opts)
{
    const config *c = base->config;
    const d9d_block_mla_shape attention = {.hidden = c->hidden_size,
                                           .heads = c->num_attention_heads,
                                           .q_rank = c->q_lora_rank,
                                           .kv_rank = c->kv_lora_rank,
                                           .nope_dim = c->qk_nope_head_dim,
                                           .rope_dim = c->qk_rope_head_dim,
                                           .v = c->v_head_dim,
                                           .dropout = (float)c->attention_dropout,
                                           .rope = base->rope,
                                           .norm_eps = 1e-6f, /* whatever rms_norm_eps is */
                                           .scale = score_scale(c),
                                           .bias = c->attention_bias};
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
    D9D_BLOCK_ADD(&base->module, "self_attn", mla, &l->self_attn, opts, &attention);
    D9D_FAMILY_NORM_ADD(l, post_attention_layernorm, opts, c);
    if (is_dense(c, base->number))
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
    return d9d_block_mla_forward(&l->self_attn, t, h, in->positions, in->segments, in->cache, in->x,
                                 y);
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

static d9d_status check(config *c, const char *where)
{
    if (c->num_key_value_heads != c->num_attention_heads)
        return D9D_FAIL(D9D_ENOTSUP,
                        "%s: num_key_value_heads is %lld: of latent attention it must be "
                        "num_attention_heads, %lld",
                        where, (long long)c->num_key_value_heads,
                        (long long)c->num_attention_heads);
    c->q_lora_rank = c->q_lora_rank > 0 ? c->q_lora_rank : 0;
    c->router.scale = c->routed_scaling_factor;
    if (!has_experts(c)) /* nothing reads what the file says of them */
        return D9D_OK;
    return d9d_block_router_check(where, "n_routed_experts", c->n_routed_experts,
                                  c->num_experts_per_tok, &c->router);
}

static d9d_status deepseek_v3_check(void *dims, const char *where, d9d_arena *a)
{
    config *c = dims;

    (void)a;
    c->router = (d9d_block_router){.score = D9D_SCORE_SIGMOID,
                                   .groups = c->n_group,
                                   .top_groups = c->topk_group,
                                   .expert_bias = true};
    return check(c, where);
}

static d9d_status glm4_moe_lite_check(void *dims, const char *where, d9d_arena *a)
{
    static const char *const words[] = {"dense", "sparse", NULL};
    config *c = dims;

    c->first_k_dense_replace = 1;
    D9D_TRY(d9d_layer_types_read(&c->mlp_layer_types, "mlp_layer_types", words,
                                 c->num_hidden_layers, where, a, &c->types));
    return deepseek_v3_check(dims, where, a);
}

static d9d_status deepseek_v2_check(void *dims, const char *where, d9d_arena *a)
{
    config *c = dims;
    const bool grouped = c->topk_method == GROUP_LIMITED;

    (void)a;
    if (grouped && has_experts(c) && (c->n_group < 1 || c->topk_group < 1))
        return D9D_FAIL(
            D9D_ECONFIG,
            "%s: topk_method \"group_limited_greedy\" needs n_group and topk_group, and "
            "they are %lld and %lld",
            where, (long long)c->n_group, (long long)c->topk_group);
    if (grouped)
        c->router = (d9d_block_router){
            .groups = c->n_group, .top_groups = c->topk_group, .group_max = true};
    c->rope_interleave = true;
    return check(c, where);
}

static void shape(const void *dims, d9d_decoder_shape *s)
{
    const config *c = dims;

    s->rope.features = c->qk_rope_head_dim;
    s->rope.style = c->rope_interleave ? D9D_ROPE_INTERLEAVED : D9D_ROPE_HALF;
    s->has_experts = has_experts(c);
}

#define LAYER                                                                                      \
    .shape = shape, .own_heads = true, .layer = sizeof(layer), .dropout = true, .init = init,      \
    .forward = forward, .ffn = ffn
D9D_FAMILY(deepseek_v2, "deepseek_v2", "DeepSeek V2 and V2 Lite", deepseek_v2_types,
           .class_name = "DeepseekV2", .config = &deepseek_v2_table, .fields = deepseek_v2_fields,
           .tensors = tensors, .check = deepseek_v2_check, LAYER);
D9D_FAMILY(deepseek_v3, "deepseek_v3", "DeepSeek V3 and R1, Kimi K2, Moonlight", deepseek_v3_types,
           .class_name = "DeepseekV3", .config = &deepseek_v3_table, .fields = deepseek_v3_fields,
           .tensors = tensors, .check = deepseek_v3_check, .mtp_layers = true, LAYER);
D9D_FAMILY(glm4_moe_lite, "glm4_moe_lite", "GLM-4.7-Flash: latent attention", glm4_moe_lite_types,
           .class_name = "Glm4MoeLite", .config = &glm4_moe_lite_table,
           .fields = glm4_moe_lite_fields, .tensors = tensors, .check = glm4_moe_lite_check,
           .mtp_layers = true, LAYER);
