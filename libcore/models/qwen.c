/* qwen.c - Qwen2, Qwen2.5, Qwen3 and their mixtures of experts.
 *
 *     x = x + attention(norm(x))         grouped-query attention with RoPE; Qwen2 has biases of
 *                                        queries, keys and values, Qwen3 a QK norm
 *     x = x + mlp(norm(x))               SwiGLU, or a mixture of SwiGLU experts, in Qwen2 with an
 *                                        expert for all tokens
 *
 * Some layers see a window; in a Qwen3 mixture every layer does.  Qwen team, "Qwen2 technical
 * report", arXiv:2407.10671; "Qwen3 technical report", arXiv:2505.09388.
 */
#include "d9d/models/models.h"
#include "models/qwen3_section.h"

typedef struct config {
    D9D_FAMILY_DIMS;
    bool use_sliding_window, norm_topk_prob, shared_expert_gate;
    int64_t sliding_window, max_window_layers;
    int64_t num_experts, num_experts_per_tok, moe_intermediate_size, decoder_sparse_step;
    int64_t shared_expert_intermediate_size; /* 0: no shared expert */
    d9d_list layer_types, mlp_only_layers;
    bool attention_bias, qkv_bias, qk_norm;
    bool *windowed, *is_moe; /* [num_hidden_layers] */
    bool has_experts;        /* some layer is a mixture */
} config;

/* --- config.json --------------------------------------------------------------------------- */

#define KEYS(kv_heads)                                                                             \
    D9D_FAMILY_KEYS_GQA(config, kv_heads), D9D_FAMILY_POSITIONS(config, "32768"),                  \
        D9D_FAMILY_NORM(config, rms_norm_eps, "1e-6"), D9D_FAMILY_ROPE(config, "10000"),           \
        D9D_FAMILY_TIED(config, "false"), D9D_FAMILY_PADDING(config, "null"),                      \
        D9D_KEY_BOOL(config, use_sliding_window, "false", "some layers see a window"),             \
        D9D_KEY_INT(config, sliding_window, "4096", 0, INT32_MAX, "keys that a query sees",        \
                    .flags = D9D_NULLABLE),                                                        \
        D9D_FAMILY_LAYER_TYPES(config, layer_types)

#define WINDOW_LAYERS                                                                              \
    D9D_KEY_INT(config, max_window_layers, "28", 0, INT32_MAX, "layers before the windows")
#define BIAS                                                                                       \
    D9D_KEY_BOOL(config, attention_bias, "false", "all projections of attention have biases")
static const d9d_key qwen2_keys[] = {KEYS("32"), D9D_FAMILY_INTERMEDIATE(config), WINDOW_LAYERS,
                                     D9D_FAMILY_HEAD_DIM(config), D9D_KEY_END};
static const d9d_key qwen3_keys[] = {KEYS("32"),
                                     D9D_FAMILY_INTERMEDIATE(config),
                                     WINDOW_LAYERS,
                                     D9D_KEY_INT(config, head_dim, "128", 2, 1 << 16,
                                                 "features of a head; null: a share of hidden_size",
                                                 .flags = D9D_NULLABLE),
                                     BIAS,
                                     D9D_KEY_END};

static const d9d_key layer_number = {.kind = D9D_KIND_INT, .max = 1 << 16, .doc = "a layer"};
#define MOE_KEYS(kv_heads, steps, experts, per_token, width, shared)                               \
    KEYS(kv_heads), D9D_FAMILY_HEAD_DIM(config),                                                   \
        D9D_KEY_INT(config, intermediate_size, "0", 0, 1 << 20,                                    \
                    "width of layers without experts"),                                            \
        D9D_KEY_INT(config, num_experts, experts, 0, 1 << 16, "experts of a layer"),               \
        D9D_KEY_INT(config, num_experts_per_tok, per_token, 0, 1 << 16, "experts of a token"),     \
        D9D_KEY_INT(config, moe_intermediate_size, width, 0, 1 << 20, "width of an expert"),       \
        D9D_KEY_BOOL(config, norm_topk_prob, "false", "weights are shares of the chosen experts"), \
        D9D_KEY_INT(config, decoder_sparse_step, steps, 1, 1 << 16,                                \
                    "each layer of this number has experts"),                                      \
        D9D_KEY_LIST(config, mlp_only_layers, "null", &layer_number, "layers without experts",     \
                     .flags = D9D_NULLABLE),                                                       \
        D9D_KEY_INT(config, shared_expert_intermediate_size, shared, 0, 1 << 20,                   \
                    "width of an expert for all tokens")
static const d9d_key qwen2_moe_keys[] = {
    MOE_KEYS("16", "1", "60", "4", "1408", "5632"), WINDOW_LAYERS,
    D9D_KEY_BOOL(config, qkv_bias, "true", "queries, keys and values have biases"), D9D_KEY_END};
static const d9d_key qwen3_moe_keys[] = {
    MOE_KEYS("4", "1", D9D_REQUIRED, D9D_REQUIRED, D9D_REQUIRED, "0"), BIAS,
    D9D_KEY_BOOL(config, shared_expert_gate, "false", "scale it by the sigmoid of a linear gate"),
    D9D_KEY_END};
#define TABLE(name, text)                                                                          \
    static const d9d_table name##_table = D9D_TABLE(config, #name "_config", name##_keys, text);   \
    static const char *const name##_types[] = {#name, NULL}
TABLE(qwen2, "Qwen2 and Qwen2.5");
TABLE(qwen3, "Qwen3");
TABLE(qwen2_moe, "Qwen2-MoE");
TABLE(qwen3_moe, "Qwen3-MoE");

#define QWEN3_FIELDS D9D_HF_ONLY("hidden_act", "[\"silu\"]")
#define FIELDS       D9D_HF_ONLY("attention_bias", "[false]"), QWEN3_FIELDS
#define MOE_FIELDS                                                                                 \
    D9D_HF_ALIAS("num_local_experts", "num_experts"), D9D_HF_ROUTER_LOSS("output_router_logits"),  \
        D9D_HF_ROUTER_LOSS("router_aux_loss_coef")
static const d9d_hf_field qwen2_fields[] = {FIELDS, D9D_HF_ONLY("use_mrope", "[false]"),
                                            D9D_HF_END};
static const d9d_hf_field qwen3_fields[] = {QWEN3_FIELDS, D9D_HF_END};
static const d9d_hf_field qwen2_moe_fields[] = {FIELDS, MOE_FIELDS, D9D_HF_END};
static const d9d_hf_field qwen3_moe_fields[] = {
    QWEN3_FIELDS,
    MOE_FIELDS,
    D9D_HF_IGNORED("max_window_layers"),
    D9D_HF_ONLY("qkv_bias", "[false]"),
    D9D_HF_ONLY("use_qk_norm", "[true]"),
    D9D_HF_OWN("shared_expert_intermediate_size"),
    D9D_HF_ONLY("shared_expert_intermediate_size", "[0]"),
    D9D_HF_OWN("shared_expert_gate"),
    D9D_HF_END};

static const d9d_hf_tensor qwen2_tensors[] = {
    D9D_HF_EXPERTS,
    D9D_HF_NAME("mlp.shared_expert.expert.gate_proj.weight", "mlp.shared_expert.gate_proj.weight"),
    D9D_HF_NAME("mlp.shared_expert.expert.up_proj.weight", "mlp.shared_expert.up_proj.weight"),
    D9D_HF_NAME("mlp.shared_expert.expert.down_proj.weight", "mlp.shared_expert.down_proj.weight"),
    D9D_HF_NAME("mlp.shared_expert.gate.weight", "mlp.shared_expert_gate.weight"),
    D9D_HF_TENSORS_END};
static const d9d_hf_tensor qwen3_tensors[] = {
    D9D_HF_EXPERTS,
    D9D_HF_NONE("mlp.shared_expert.expert.gate_proj.weight"),
    D9D_HF_NONE("mlp.shared_expert.expert.up_proj.weight"),
    D9D_HF_NONE("mlp.shared_expert.expert.down_proj.weight"),
    D9D_HF_NONE("mlp.shared_expert.gate.weight"),
    D9D_HF_TENSORS_END};

/* Of a family of mixtures, also where no layer is one. */
static bool is_mixture(const config *c)
{
    return c->decoder_sparse_step > 0;
}

/* Windowed layers: all of a Qwen3 mixture, or by layer_types, or those after the first
 * max_window_layers; in a Qwen2 mixture every second one of these first. */
static d9d_status windows_find(config *c, const char *where, d9d_arena *a)
{
    static const char *const words[] = {"full_attention", "sliding_attention", NULL};
    const bool used = c->use_sliding_window && c->sliding_window > 0;
    const bool every = used && is_mixture(c) && c->qk_norm;
    const int64_t first = c->max_window_layers;
    d9d_layer_types types = {0};

    if (c->use_sliding_window && c->sliding_window == 0)
        return D9D_FAIL(D9D_ENOTSUP, "%s: sliding_window: 0 is not supported", where);
    if (!every)
        D9D_TRY(d9d_layer_types_read(&c->layer_types, "layer_types", words, c->num_hidden_layers,
                                     where, a, &types));
    for (int64_t l = 0; l < c->num_hidden_layers; l++) {
        const bool usual = is_mixture(c) ? l % 2 == 0 && l < first : l >= first;

        c->windowed[l] = types.at != NULL ? types.at[l] == 1 : every || (used && usual);
        if (c->windowed[l] && !used)
            return D9D_FAIL(D9D_ECONFIG,
                            "%s: layer_types has sliding_attention, and no "
                            "sliding_window is in use",
                            where);
    }
    return D9D_OK;
}

/* Every decoder_sparse_step-th layer is a mixture, unless mlp_only_layers lists it. */
static d9d_status mixtures_find(config *c, const char *where)
{
    const int64_t *dense = c->mlp_only_layers.items;
    bool all = true;

    for (int64_t l = 0; l < c->num_hidden_layers; l++)
        c->is_moe[l] = c->num_experts > 0 && (l + 1) % c->decoder_sparse_step == 0;
    for (size_t i = 0; i < c->mlp_only_layers.n; i++) {
        if (dense[i] >= c->num_hidden_layers)
            return D9D_FAIL(D9D_ECONFIG, "%s: mlp_only_layers[%zu] is %lld, not a layer of 0..%lld",
                            where, i, (long long)dense[i], (long long)c->num_hidden_layers - 1);
        c->is_moe[dense[i]] = false;
    }
    for (int64_t l = 0; l < c->num_hidden_layers; l++) {
        all &= c->is_moe[l];
        c->has_experts |= c->is_moe[l];
    }
    if (!all && c->intermediate_size == 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: intermediate_size is 0 or missing, of layers without experts", where);
    return D9D_OK;
}

/* What a file says of experts is unused where no layer has any. */
static d9d_status experts_check(const config *c, const char *where)
{
    if (!c->has_experts)
        return D9D_OK;
    if (c->moe_intermediate_size == 0)
        return D9D_FAIL(D9D_ECONFIG, "%s: moe_intermediate_size is 0, of layers with experts",
                        where);
    return d9d_block_router_check(where, "num_experts", c->num_experts, c->num_experts_per_tok,
                                  &c->router);
}

static d9d_status layers_find(config *c, const char *where, d9d_arena *a)
{
    c->windowed = d9d_arena_alloc(a, 2 * (size_t)c->num_hidden_layers);
    if (c->windowed == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", where);
    c->is_moe = c->windowed + c->num_hidden_layers;
    D9D_TRY(windows_find(c, where, a));
    D9D_TRY(mixtures_find(c, where));
    return experts_check(c, where);
}

static d9d_status qwen2_check(void *dims, const char *where, d9d_arena *a)
{
    config *c = dims;

    c->qkv_bias = c->qkv_bias || !is_mixture(c); /* a key of the mixture only */
    c->shared_expert_gate = true;
    return layers_find(c, where, a);
}

static d9d_status qwen3_check(void *dims, const char *where, d9d_arena *a)
{
    config *c = dims;

    c->qk_norm = true;
    c->qkv_bias = c->attention_bias;
    return layers_find(dims, where, a);
}

/* --- a layer
 * -------------------------------------------------------------------------------------- */

typedef struct layer {
    d9d_decoder_layer base;
    d9d_block_norm input_layernorm, post_attention_layernorm;
    d9d_block_attention self_attn;
    d9d_block_ffn mlp;
    d9d_block_moe moe; /* in place of mlp, in a layer with experts */
    bool is_moe;
} layer;

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
        .norm_eps = (float)c->norm_eps,
        .qk_norm = c->qk_norm ? D9D_QK_NORM_HEAD : D9D_QK_NORM_NONE,
        .qkv_bias = c->qkv_bias,
        .o_bias = c->attention_bias,
        .window = c->windowed[base->number] ? c->sliding_window : 0,
    };
    const d9d_block_moe_shape moe = {
        .hidden = c->hidden_size,
        .intermediate = c->moe_intermediate_size,
        .experts = c->num_experts,
        .top_k = c->num_experts_per_tok,
        .renormalise = c->norm_topk_prob,
        .shared_intermediate = c->shared_expert_intermediate_size,
        .shared_gate = c->shared_expert_gate,
        .router = c->router,
        .layer = base->number,
    };
    layer *l = (layer *)base;

    l->is_moe = c->is_moe[base->number];
    D9D_BLOCK_ADD(&base->module, "self_attn", attention, &l->self_attn, opts, &attention);
    if (l->is_moe)
        D9D_BLOCK_ADD(&base->module, "mlp", moe, &l->moe, opts, &moe);
    else
        D9D_BLOCK_ADD(
            &base->module, "mlp", ffn, &l->mlp, opts,
            &(d9d_block_ffn_shape){.hidden = c->hidden_size, .intermediate = c->intermediate_size});
    D9D_FAMILY_NORM_ADD(l, input_layernorm, opts, c);
    D9D_FAMILY_NORM_ADD(l, post_attention_layernorm, opts, c);
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
    if (!l->is_moe)
        return d9d_block_ffn_forward(&l->mlp, t, h, x, y);
    return d9d_block_moe_forward(&l->moe, t, h, x, y);
}

static void shape(const void *dims, d9d_decoder_shape *s)
{
    s->has_experts = ((const config *)dims)->has_experts;
}

/* --- the families
 * --------------------------------------------------------------------------------- */

#define LAYER                                                                                      \
    .shape = shape, .layer = sizeof(layer), .dropout = true, .init = init, .forward = forward,     \
    .ffn = ffn
D9D_FAMILY(qwen2, "qwen2", "Qwen2 and Qwen2.5, dense", qwen2_types, .class_name = "Qwen2",
           .config = &qwen2_table, .fields = qwen2_fields, .check = qwen2_check, LAYER);
D9D_FAMILY(qwen2_moe, "qwen2_moe", "Qwen2 with mixtures of experts", qwen2_moe_types,
           .class_name = "Qwen2Moe", .config = &qwen2_moe_table, .fields = qwen2_moe_fields,
           .tensors = qwen2_tensors, .check = qwen2_check, LAYER);

/* Qwen3's sections have the reference framework's parameters too. */
#define QWEN3(family, class, of)                                                                   \
    {                                                                                              \
        .size = sizeof(d9d_family), .name = #family, .class_name = (class),                        \
        .model_types = family##_types, .config = &family##_table, .fields = (of),                  \
        .tensors = qwen3_tensors, .check = qwen3_check, LAYER                                      \
    }
static const d9d_family dense = QWEN3(qwen3, "Qwen3", qwen3_fields);
static const d9d_family moe = QWEN3(qwen3_moe, "Qwen3Moe", qwen3_moe_fields);

static d9d_status dense_read(const void *section, d9d_arena *a, const void **out)
{
    return d9di_qwen3_section_read(&dense, section, a, out);
}

static d9d_status moe_read(const void *section, d9d_arena *a, const void **out)
{
    const config *c;

    D9D_TRY(d9di_qwen3_section_read(&moe, section, a, out));
    c = ((const d9d_family_config *)*out)->dims;
    return experts_check(c, "qwen3_moe");
}

const d9d_model_provider d9d_qwen3_dense_provider = {.table = &d9d_qwen3_dense_section,
                                                     .read = dense_read,
                                                     D9D_FAMILY_PROVIDER(qwen3_types, &dense)};
const d9d_model_provider d9d_qwen3_moe_provider = {
    .table = &d9d_qwen3_moe_section, .read = moe_read, D9D_FAMILY_PROVIDER(qwen3_moe_types, &moe)};
