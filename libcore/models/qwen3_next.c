/* qwen3_next.c - Qwen3-Next and Qwen3.5: linear attention in most layers, and in all but the dense
 * Qwen3.5 a mixture of many experts.
 *
 *     x = x + mixer(norm(x))             gated delta net, or attention with a gated output
 *     x = x + mlp(norm(x))               SwiGLU, or experts and a gated expert for all tokens
 *
 * Norms scale by 1 + w.  A quarter of a head is rotated.  Of Qwen3.5 this is the text model: its
 * positions on the three axes of images are equal.  Yang et al., "Gated delta networks",
 * arXiv:2412.06464; Qwen team, "Qwen3-Next", 2025, and "Qwen3.5", 2026.
 */
#include "d9d/model/family/family.h"

typedef struct config {
    D9D_FAMILY_DIMS;
    double partial_rotary_factor;
    int64_t linear_num_key_heads, linear_num_value_heads, linear_key_head_dim;
    int64_t linear_value_head_dim, linear_conv_kernel_dim, full_attention_interval;
    int64_t num_experts, num_experts_per_tok, moe_intermediate_size, decoder_sparse_step;
    int64_t shared_expert_intermediate_size;
    bool norm_topk_prob, attention_bias;
    d9d_list layer_types, mlp_only_layers;
    d9d_layer_types types;
} config;

#define COUNT(member, otherwise, text) D9D_KEY_INT(config, member, otherwise, 1, 1 << 20, text)
#define KEYS(kv_heads)                                                                             \
    D9D_FAMILY_KEYS_GQA(config, kv_heads), D9D_FAMILY_POSITIONS(config, "32768"),                  \
        D9D_KEY_INT(config, head_dim, "256", 1, 1 << 16, "features of a head",                     \
                    .flags = D9D_NULLABLE),                                                        \
        D9D_FAMILY_NORM(config, rms_norm_eps, "1e-6"), D9D_FAMILY_ROPE(config, "10000"),           \
        D9D_FAMILY_TIED(config, "false"), D9D_FAMILY_PADDING(config, "null"),                      \
        D9D_FAMILY_LAYER_TYPES(config, layer_types),                                               \
        D9D_KEY_REAL(config, partial_rotary_factor, "0.25", 0, 1,                                  \
                     "share of a head that is rotated", .flags = D9D_ABOVE_MIN),                   \
        D9D_KEY_BOOL(config, attention_bias, "false",                                              \
                     "all projections of layers with attention have biases"),                      \
        COUNT(full_attention_interval, "4",                                                        \
              "every such layer has attention, without layer_types"),                              \
        COUNT(linear_num_key_heads, "16", "key heads of the gated delta net"),                     \
        COUNT(linear_num_value_heads, "32", "its value heads"),                                    \
        COUNT(linear_key_head_dim, "128", "features of its keys"),                                 \
        COUNT(linear_value_head_dim, "128", "features of its values"),                             \
        D9D_KEY_INT(config, linear_conv_kernel_dim, "4", 1, D9D_CAUSAL_CONV1D_MAX_WIDTH,           \
                    "tokens of its convolution")
#define SOME(member, otherwise, text) D9D_KEY_INT(config, member, otherwise, 0, 1 << 20, text)
#define MOE_KEYS(experts, per_token)                                                               \
    SOME(num_experts, experts, "experts of a layer"),                                              \
        SOME(num_experts_per_tok, per_token, "experts of a token"),                                \
        SOME(moe_intermediate_size, "512", "width of an expert"),                                  \
        SOME(shared_expert_intermediate_size, "512", "width of the expert for all tokens")
static const d9d_key layer_number = {.kind = D9D_KIND_INT, .max = 1 << 16, .doc = "a layer"};
static const d9d_key qwen3_next_keys[] = {
    KEYS("2"),
    D9D_FAMILY_INTERMEDIATE(config),
    MOE_KEYS("512", "10"),
    COUNT(decoder_sparse_step, "1", "each layer of this number has experts"),
    D9D_KEY_BOOL(config, norm_topk_prob, "true", "weights are shares of the chosen experts"),
    D9D_KEY_LIST(config, mlp_only_layers, "null", &layer_number, "layers without experts",
                 .flags = D9D_NULLABLE),
    D9D_KEY_END,
};
static const d9d_key qwen3_5_keys[] = {KEYS("4"), D9D_FAMILY_INTERMEDIATE(config), D9D_KEY_END};
static const d9d_key qwen3_5_moe_keys[] = {KEYS("2"), MOE_KEYS("256", "8"), D9D_KEY_END};
#define TABLE(name, text, type)                                                                    \
    static const d9d_table name##_table = D9D_TABLE(config, #name "_config", name##_keys, text);   \
    static const char *const name##_types[] = {type, NULL}
TABLE(qwen3_next, "Qwen3-Next", "qwen3_next");
TABLE(qwen3_5, "Qwen3.5", "qwen3_5_text");
TABLE(qwen3_5_moe, "Qwen3.5 with mixtures of experts", "qwen3_5_moe_text");

#define FIELDS D9D_HF_ONLY("hidden_act", "[\"silu\"]")
#define MOE_FIELDS                                                                                 \
    FIELDS, D9D_HF_ALIAS("num_local_experts", "num_experts"),                                      \
        D9D_HF_ROUTER_LOSS("output_router_logits"), D9D_HF_ROUTER_LOSS("router_aux_loss_coef")
#define QWEN3_5_FIELDS                                                                             \
    D9D_HF_ONLY("attn_output_gate", "[true]"), D9D_HF_ONLY("output_gate_type", "[\"swish\"]"),     \
        D9D_HF_ONLY("mlp_only_layers", "[[]]"), D9D_HF_IGNORED("mamba_ssm_dtype"),                 \
        D9D_HF_IGNORED("mtp_num_hidden_layers"), D9D_HF_IGNORED("mtp_use_dedicated_embeddings")
static const d9d_hf_field qwen3_next_fields[] = {
    MOE_FIELDS, D9D_HF_ONLY("use_sliding_window", "[false]"), D9D_HF_END};
static const d9d_hf_field qwen3_5_fields[] = {FIELDS, QWEN3_5_FIELDS, D9D_HF_END};
static const d9d_hf_field qwen3_5_moe_fields[] = {
    MOE_FIELDS,
    QWEN3_5_FIELDS,
    D9D_HF_ONLY("norm_topk_prob", "[true]"),
    D9D_HF_ONLY("decoder_sparse_step", "[1]"),
    D9D_HF_IGNORED("intermediate_size"), /* all layers have experts */
    D9D_HF_END};

#define HEADS(member) offsetof(config, member)
#define TENSORS                                                                                    \
    D9D_HF_EXPERTS,                                                                                \
        D9D_HF_NAME("mlp.shared_expert.expert.gate_proj.weight",                                   \
                    "mlp.shared_expert.gate_proj.weight"),                                         \
        D9D_HF_NAME("mlp.shared_expert.expert.up_proj.weight",                                     \
                    "mlp.shared_expert.up_proj.weight"),                                           \
        D9D_HF_NAME("mlp.shared_expert.expert.down_proj.weight",                                   \
                    "mlp.shared_expert.down_proj.weight"),                                         \
        D9D_HF_NAME("mlp.shared_expert.gate.weight", "mlp.shared_expert_gate.weight"),             \
        {.own = {"self_attn.q_proj.weight", "self_attn.gate_proj.weight"},                         \
         .hf = "self_attn.q_proj.weight",                                                          \
         .groups = HEADS(num_attention_heads)},                                                    \
        {.own = {"self_attn.q_proj.bias", "self_attn.gate_proj.bias"},                             \
         .hf = "self_attn.q_proj.bias",                                                            \
         .groups = HEADS(num_attention_heads)},                                                    \
        {.own = {"linear_attn.q_conv.weight", "linear_attn.k_conv.weight",                         \
                 "linear_attn.v_conv.weight"},                                                     \
         .hf = "linear_attn.conv1d.weight",                                                        \
         .unit_dim = 1},                                                                           \
        D9D_HF_NAME("linear_attn.out_norm.weight", "linear_attn.norm.weight"),                     \
        D9D_HF_NAME("linear_attn.o_proj.weight", "linear_attn.out_proj.weight")
static const d9d_hf_tensor qwen3_next_tensors[] = {
    TENSORS,
    {.own = {"linear_attn.q_proj.weight", "linear_attn.k_proj.weight", "linear_attn.v_proj.weight",
             "linear_attn.g_proj.weight"},
     .hf = "linear_attn.in_proj_qkvz.weight",
     .groups = HEADS(linear_num_key_heads)},
    {.own = {"linear_attn.b_proj.weight", "linear_attn.a_proj.weight"},
     .hf = "linear_attn.in_proj_ba.weight",
     .groups = HEADS(linear_num_key_heads)},
    D9D_HF_TENSORS_END};
static const d9d_hf_tensor qwen3_5_tensors[] = {
    TENSORS,
    {.own = {"linear_attn.q_proj.weight", "linear_attn.k_proj.weight", "linear_attn.v_proj.weight"},
     .hf = "linear_attn.in_proj_qkv.weight"},
    D9D_HF_NAME("linear_attn.g_proj.weight", "linear_attn.in_proj_z.weight"),
    D9D_HF_NAME("linear_attn.b_proj.weight", "linear_attn.in_proj_b.weight"),
    D9D_HF_NAME("linear_attn.a_proj.weight", "linear_attn.in_proj_a.weight"),
    D9D_HF_TENSORS_END};

typedef struct layer {
    d9d_decoder_layer base;
    d9d_block_norm input_layernorm, post_attention_layernorm;
    d9d_block_attention self_attn;
    d9d_block_gated_delta linear_attn; /* in place of self_attn */
    d9d_block_ffn mlp;
    d9d_block_moe moe; /* in place of mlp */
} layer;

static bool has_attention(const config *c, int64_t number)
{
    return c->types.at != NULL ? c->types.at[number] == 1
                               : (number + 1) % c->full_attention_interval == 0;
}

static bool is_moe(const config *c, int64_t number)
{
    const int64_t *dense = c->mlp_only_layers.items;
    bool moe = c->num_experts > 0 && (number + 1) % c->decoder_sparse_step == 0;

    for (size_t i = 0; i < c->mlp_only_layers.n; i++)
        moe = moe && dense[i] != number;
    return moe;
}

static bool has_experts(const config *c)
{
    bool found = false;

    for (int64_t l = 0; l < c->num_hidden_layers; l++)
        found |= is_moe(c, l);
    return found;
}

static d9d_status mixer_init(layer *l, const config *c, const d9d_block_opts *opts)
{
    const d9d_block_attention_shape attention = {.hidden = c->hidden_size,
                                                 .heads = c->num_attention_heads,
                                                 .kv_heads = c->num_key_value_heads,
                                                 .head_dim = c->head_dim,
                                                 .dropout = (float)c->attention_dropout,
                                                 .rope = l->base.rope,
                                                 .norm_eps = (float)c->norm_eps,
                                                 .qk_norm = D9D_QK_NORM_HEAD,
                                                 .zero_centred = true,
                                                 .output_gate = true,
                                                 .qkv_bias = c->attention_bias,
                                                 .o_bias = c->attention_bias};
    const d9d_block_gated_delta_shape delta = {.hidden = c->hidden_size,
                                               .key_heads = c->linear_num_key_heads,
                                               .value_heads = c->linear_num_value_heads,
                                               .key_dim = c->linear_key_head_dim,
                                               .value_dim = c->linear_value_head_dim,
                                               .conv_width = c->linear_conv_kernel_dim,
                                               .norm_eps = (float)c->norm_eps};

    if (has_attention(c, l->base.number))
        D9D_BLOCK_ADD(&l->base.module, "self_attn", attention, &l->self_attn, opts, &attention);
    else
        D9D_BLOCK_ADD(&l->base.module, "linear_attn", gated_delta, &l->linear_attn, opts, &delta);
    return D9D_OK;
}

static d9d_status init(d9d_decoder_layer *base, const d9d_block_opts *opts)
{
    const config *c = base->config;
    const d9d_block_moe_shape moe = {.hidden = c->hidden_size,
                                     .intermediate = c->moe_intermediate_size,
                                     .experts = c->num_experts,
                                     .top_k = c->num_experts_per_tok,
                                     .renormalise = c->norm_topk_prob,
                                     .shared_intermediate = c->shared_expert_intermediate_size,
                                     .shared_gate = true,
                                     .router = c->router,
                                     .layer = base->number};
    const float eps = (float)c->norm_eps;
    layer *l = (layer *)base;

    D9D_BLOCK_ADD(&base->module, "input_layernorm", norm, &l->input_layernorm, opts, c->hidden_size,
                  eps, true);
    D9D_TRY(mixer_init(l, c, opts));
    D9D_BLOCK_ADD(&base->module, "post_attention_layernorm", norm, &l->post_attention_layernorm,
                  opts, c->hidden_size, eps, true);
    if (is_moe(c, base->number))
        D9D_BLOCK_ADD(&base->module, "mlp", moe, &l->moe, opts, &moe);
    else
        D9D_BLOCK_ADD(
            &base->module, "mlp", ffn, &l->mlp, opts,
            &(d9d_block_ffn_shape){.hidden = c->hidden_size, .intermediate = c->intermediate_size});
    return D9D_OK;
}

static d9d_status forward(d9d_decoder_layer *base, d9d_tape *t, const d9d_model_layer_in *in,
                          d9d_var **y)
{
    layer *l = (layer *)base;
    d9d_var *h;

    D9D_TRY(d9d_block_norm_forward(&l->input_layernorm, t, in->x, &h));
    if (base->blocks.attention != NULL)
        return d9d_block_attention_forward(&l->self_attn, t, h, in->positions, in->segments,
                                           in->cache, in->x, y);
    return d9d_block_gated_delta_forward(&l->linear_attn, t, h, in->positions, in->segments,
                                         in->cache, in->x, y);
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

static d9d_status delta_check(const config *c, const char *where)
{
    if (c->linear_num_value_heads % c->linear_num_key_heads != 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: linear_num_value_heads %lld is not a multiple of linear_num_key_heads "
                        "%lld",
                        where, (long long)c->linear_num_value_heads,
                        (long long)c->linear_num_key_heads);
    return D9D_OK;
}

static d9d_status check(void *dims, const char *where, d9d_arena *a)
{
    static const char *const words[] = {"linear_attention", "full_attention", NULL};
    config *c = dims;

    D9D_TRY(delta_check(c, where));
    D9D_TRY(d9d_layer_types_read(&c->layer_types, "layer_types", words, c->num_hidden_layers, where,
                                 a, &c->types));
    return has_experts(c) ? d9d_block_router_check(where, "num_experts", c->num_experts,
                                                   c->num_experts_per_tok, &c->router)
                          : D9D_OK;
}

/* Each mixture's weights are shares, and every layer has one. */
static d9d_status qwen3_5_check(void *dims, const char *where, d9d_arena *a)
{
    config *c = dims;

    c->norm_topk_prob = true;
    c->decoder_sparse_step = 1;
    return check(dims, where, a);
}

static void shape(const void *dims, d9d_decoder_shape *s)
{
    const config *c = dims;

    s->zero_centred = true;
    s->rope.features = (int64_t)((double)c->head_dim * c->partial_rotary_factor);
    s->has_experts = has_experts(c);
}

#define LAYER                                                                                      \
    .shape = shape, .layer = sizeof(layer), .dropout = true, .init = init, .forward = forward,     \
    .ffn = ffn
D9D_FAMILY(qwen3_next, "qwen3_next", "Qwen3-Next, linear attention and mixtures of experts",
           qwen3_next_types, .class_name = "Qwen3Next", .config = &qwen3_next_table,
           .fields = qwen3_next_fields, .tensors = qwen3_next_tensors, .check = check, LAYER);
D9D_FAMILY(qwen3_5, "qwen3_5", "Qwen3.5, its text model, dense", qwen3_5_types,
           .class_name = "Qwen3_5", .config = &qwen3_5_table, .fields = qwen3_5_fields,
           .tensors = qwen3_5_tensors, .check = qwen3_5_check, LAYER);
D9D_FAMILY(qwen3_5_moe, "qwen3_5_moe", "Qwen3.5, its text model, with mixtures of experts",
           qwen3_5_moe_types, .class_name = "Qwen3_5Moe", .config = &qwen3_5_moe_table,
           .fields = qwen3_5_moe_fields, .tensors = qwen3_5_tensors, .check = qwen3_5_check, LAYER);
