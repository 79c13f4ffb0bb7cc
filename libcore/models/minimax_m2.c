/* minimax_m2.c - MiniMax-M2, and OLMoE: a QK norm over all heads together, and a mixture of experts
 * in every layer.
 *
 *     x = x + attention(norm(x))         MiniMax-M2 rotates the first features of a head
 *     x = x + mlp(norm(x))               experts of sigmoid scores, chosen with a bias; in OLMoE
 *                                        of a softmax
 *
 * MiniMax, "MiniMax-M2", 2025; Muennighoff et al., "OLMoE: open mixture-of-experts language
 * models", arXiv:2409.02060.
 */
#include "d9d/model/family/family.h"

typedef struct config {
    D9D_FAMILY_DIMS;
    bool attention_bias, norm_topk_prob;
    int64_t num_local_experts, num_experts_per_tok;
    int64_t rotary_dim;           /* 0: by partial_rotary_factor */
    double partial_rotary_factor; /* 0: by rotary_dim, or the whole head */
    double clip_qkv;              /* of OLMoE; 0: none */
    d9d_list attn_type_list;
} config;

/* --- config.json --------------------------------------------------------------------------- */

#define KEYS(kv_heads, positions, eps, theta, per_token)                                           \
    D9D_FAMILY_KEYS_GQA(config, kv_heads), D9D_FAMILY_INTERMEDIATE(config),                        \
        D9D_FAMILY_POSITIONS(config, positions), D9D_FAMILY_NORM(config, rms_norm_eps, eps),       \
        D9D_FAMILY_ROPE(config, theta), D9D_FAMILY_TIED(config, "false"),                          \
        D9D_KEY_INT(config, num_experts_per_tok, per_token, 1, 1 << 16, "experts of a token")
static const d9d_key one = {
    .kind = D9D_KIND_INT, .min = 1, .max = 1, .doc = "1: softmax attention"};
static const d9d_key minimax_m2_keys[] = {
    KEYS("8", "196608", "1e-6", "5e6", "8"),
    D9D_FAMILY_PADDING(config, "null"),
    D9D_KEY_INT(config, head_dim, "128", 2, 1 << 16,
                "features of a head; null: a share of hidden_size", .flags = D9D_NULLABLE),
    D9D_KEY_INT(config, num_local_experts, "256", 1, 1 << 16, "experts of a layer"),
    D9D_KEY_INT(config, rotary_dim, "null", 2, 1 << 16, "features of a head that are rotated",
                .flags = D9D_NULLABLE),
    D9D_KEY_REAL(config, partial_rotary_factor, "null", 0, 1, "share of a head that is rotated",
                 .flags = D9D_ABOVE_MIN | D9D_NULLABLE),
    D9D_KEY_LIST(config, attn_type_list, "null", &one, "the attention of each layer",
                 .flags = D9D_NULLABLE),
    D9D_KEY_END};
static const d9d_key olmoe_keys[] = {
    KEYS("null", "4096", "1e-5", "10000", "8"),
    D9D_FAMILY_PADDING(config, "1"),
    D9D_FAMILY_HEAD_DIM(config),
    D9D_KEY_BOOL(config, attention_bias, "false", "projections of attention have biases"),
    {.name = "num_experts",
     .kind = D9D_KIND_INT,
     .offset = offsetof(config, num_local_experts),
     .def = "64",
     .min = 1,
     .max = 1 << 16,
     .doc = "experts of a layer"},
    D9D_KEY_BOOL(config, norm_topk_prob, "false", "weights are shares of the chosen experts"),
    D9D_FAMILY_CLIP_QKV(config),
    D9D_KEY_END};
static const d9d_table minimax_m2_table =
    D9D_TABLE(config, "minimax_m2_config", minimax_m2_keys, "MiniMax-M2");
static const d9d_table olmoe_table = D9D_TABLE(config, "olmoe_config", olmoe_keys, "OLMoE");
static const char *const minimax_m2_types[] = {"minimax_m2", NULL};
static const char *const olmoe_types[] = {"olmoe", NULL};

#define FIELDS                                                                                     \
    D9D_HF_ONLY("hidden_act", "[\"silu\"]"), D9D_HF_ROUTER_LOSS("output_router_logits"),           \
        D9D_HF_ROUTER_LOSS("router_aux_loss_coef")
static const d9d_hf_field minimax_m2_fields[] = {
    FIELDS,
    D9D_HF_ALIAS("num_experts", "num_local_experts"),
    D9D_HF_ONLY("router_jitter_noise", "[0]"),
    D9D_HF_ONLY("scoring_func", "[\"sigmoid\"]"),
    D9D_HF_ONLY("use_routing_bias", "[true]"),
    D9D_HF_ONLY("use_qk_norm", "[true]"),
    D9D_HF_ONLY("qk_norm_type", "[\"per_layer\"]"),
    D9D_HF_ONLY("sliding_window", "[]"),
    D9D_HF_ONLY("shared_intermediate_size", "[0]"), /* no expert for all tokens */
    D9D_HF_IGNORED("shared_moe_mode"),
    D9D_HF_ONLY("layernorm_full_attention_beta", "[1]"),
    D9D_HF_ONLY("layernorm_linear_attention_beta", "[1]"),
    D9D_HF_ONLY("layernorm_mlp_beta", "[1]"),
    D9D_HF_IGNORED("mlp_intermediate_size"), /* of layers without experts: there are none */
    D9D_HF_IGNORED("use_mtp"),
    D9D_HF_IGNORED("num_mtp_modules"),
    D9D_HF_IGNORED("mtp_transformer_layers"),
    D9D_HF_END};
static const d9d_hf_field olmoe_fields[] = {
    FIELDS, D9D_HF_ALIAS("num_local_experts", "num_experts"), D9D_HF_END};

#define EXPERT(own, there)                                                                         \
    D9D_HF_STACK("mlp.grouped_experts." own ".weight",                                             \
                 "block_sparse_moe.experts.{expert}." there ".weight")
static const d9d_hf_tensor minimax_m2_tensors[] = {
    D9D_HF_NAME("mlp.router.gate.weight", "block_sparse_moe.gate.weight"),
    D9D_HF_NAME("mlp.router.expert_bias", "block_sparse_moe.e_score_correction_bias"),
    EXPERT("gate_proj", "w1"),
    EXPERT("up_proj", "w3"),
    EXPERT("down_proj", "w2"),
    D9D_HF_MODEL_NAME("mlp.router.gate.weight", "mlp.gate.weight"),
    D9D_HF_FUSED_EXPERTS("mlp.experts", D9D_HF_ROWS_MODEL),
    D9D_HF_TENSORS_END};
static const d9d_hf_tensor olmoe_tensors[] = {D9D_HF_EXPERTS, D9D_HF_TENSORS_END};

static d9d_status minimax_m2_check(void *dims, const char *where, d9d_arena *a)
{
    config *c = dims;
    const int64_t share = (int64_t)((double)c->head_dim * c->partial_rotary_factor);

    (void)a;
    if (c->rotary_dim > c->head_dim)
        return D9D_FAIL(D9D_ECONFIG, "%s: rotary_dim is %lld, head_dim %lld", where,
                        (long long)c->rotary_dim, (long long)c->head_dim);
    if (c->rotary_dim > 0 && c->partial_rotary_factor > 0 && c->rotary_dim != share)
        return D9D_FAIL(
            D9D_ECONFIG, "%s: rotary_dim is %lld, and partial_rotary_factor %g of head_dim %lld",
            where, (long long)c->rotary_dim, c->partial_rotary_factor, (long long)c->head_dim);
    if (c->attn_type_list.items != NULL && (int64_t)c->attn_type_list.n != c->num_hidden_layers)
        return D9D_FAIL(D9D_ECONFIG, "%s: attn_type_list has %zu layers, num_hidden_layers is %lld",
                        where, c->attn_type_list.n, (long long)c->num_hidden_layers);
    c->rotary_dim = c->rotary_dim > 0              ? c->rotary_dim
                    : c->partial_rotary_factor > 0 ? share
                                                   : c->head_dim;
    c->norm_topk_prob = true;
    c->router = (d9d_block_router){.score = D9D_SCORE_SIGMOID, .expert_bias = true};
    return d9d_block_router_check(where, "num_local_experts", c->num_local_experts,
                                  c->num_experts_per_tok, &c->router);
}

static d9d_status olmoe_check(void *dims, const char *where, d9d_arena *a)
{
    config *c = dims;

    (void)a;
    c->rotary_dim = c->head_dim;
    c->clip_qkv = c->clip_qkv > 0 ? c->clip_qkv : 0;
    return d9d_block_router_check(where, "num_local_experts", c->num_local_experts,
                                  c->num_experts_per_tok, &c->router);
}

static void shape(const void *dims, d9d_decoder_shape *s)
{
    s->rope.features = ((const config *)dims)->rotary_dim;
    s->has_experts = true;
}

/* --- a layer --------------------------------------------------------------------------------- */

typedef struct layer {
    d9d_decoder_layer base;
    d9d_block_norm input_layernorm, post_attention_layernorm;
    d9d_block_attention self_attn;
    d9d_block_moe mlp;
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
                                                 .qk_norm = D9D_QK_NORM_FULL,
                                                 .qkv_bias = c->attention_bias,
                                                 .o_bias = c->attention_bias,
                                                 .clip = (float)c->clip_qkv};
    const d9d_block_moe_shape moe = {.hidden = c->hidden_size,
                                     .intermediate = c->intermediate_size,
                                     .experts = c->num_local_experts,
                                     .top_k = c->num_experts_per_tok,
                                     .renormalise = c->norm_topk_prob,
                                     .router = c->router,
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

#define LAYER                                                                                      \
    .shape = shape, .layer = sizeof(layer), .dropout = true, .init = init, .forward = forward,     \
    .ffn = ffn
D9D_FAMILY(minimax_m2, "minimax_m2", "MiniMax-M2, a mixture of experts", minimax_m2_types,
           .class_name = "MiniMaxM2", .config = &minimax_m2_table, .fields = minimax_m2_fields,
           .tensors = minimax_m2_tensors, .check = minimax_m2_check, .mtp_layers = true, LAYER);
D9D_FAMILY(olmoe, "olmoe", "OLMoE, a mixture of experts", olmoe_types, .class_name = "Olmoe",
           .config = &olmoe_table, .fields = olmoe_fields, .tensors = olmoe_tensors,
           .check = olmoe_check, LAYER);
