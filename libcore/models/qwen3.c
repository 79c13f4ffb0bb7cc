/* qwen3.c - Qwen3 and Qwen3-MoE.
 *
 *     x = x + attention(norm(x))         grouped-query attention, QK norm, RoPE
 *     x = x + mlp(norm(x))               SwiGLU, or a mixture of SwiGLU experts
 *
 * Some layers of a dense model see a window; in a mixture every layer does.  Qwen team, "Qwen3
 * technical report", arXiv:2505.09388.
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
    bool *windowed, *is_moe; /* [num_hidden_layers] */
} config;

/* --- config.json ---------------------------------------------------------------------------- */

#define KEYS                                                                                       \
    D9D_FAMILY_KEYS(config), D9D_FAMILY_POSITIONS(config, "32768"),                                \
        D9D_FAMILY_NORM(config, rms_norm_eps, "1e-6"), D9D_FAMILY_ROPE(config, "10000"),           \
        D9D_FAMILY_TIED(config, "false"),                                                          \
        D9D_KEY_BOOL(config, use_sliding_window, "false", "some layers see a window"),             \
        D9D_KEY_INT(config, sliding_window, "4096", 1, INT32_MAX, "keys that a query sees",        \
                    .flags = D9D_NULLABLE),                                                        \
        D9D_FAMILY_LAYER_TYPES(config, layer_types)

static const d9d_key dense_keys[] = {
    KEYS, D9D_FAMILY_INTERMEDIATE(config),
    D9D_KEY_INT(config, max_window_layers, "28", 0, INT32_MAX, "layers before the windows"),
    D9D_KEY_INT(config, head_dim, "128", 2, 1 << 16,
                "features of a head; null: a share of hidden_size", .flags = D9D_NULLABLE),
    D9D_KEY_END};

static const d9d_key layer_number = {.kind = D9D_KIND_INT, .max = 1 << 16, .doc = "a layer"};
static const d9d_key moe_keys[] = {
    KEYS,
    D9D_FAMILY_HEAD_DIM(config),
    D9D_KEY_INT(config, intermediate_size, "0", 0, 1 << 20, "width of a dense feed-forward layer"),
    D9D_KEY_INT(config, num_experts, D9D_REQUIRED, 1, 1 << 16, "experts of a layer"),
    D9D_KEY_INT(config, num_experts_per_tok, D9D_REQUIRED, 1, 1 << 16, "experts of a token"),
    D9D_KEY_INT(config, moe_intermediate_size, D9D_REQUIRED, 1, 1 << 20, "width of an expert"),
    D9D_KEY_BOOL(config, norm_topk_prob, "false", "an expert's weight is its share of the best"),
    D9D_KEY_INT(config, decoder_sparse_step, "1", 1, 1 << 16,
                "each layer of this number has experts"),
    D9D_KEY_LIST(config, mlp_only_layers, "null", &layer_number, "layers without experts",
                 .flags = D9D_NULLABLE),
    D9D_KEY_INT(config, shared_expert_intermediate_size, "0", 0, 1 << 20,
                "of an expert for all tokens"),
    D9D_KEY_BOOL(config, shared_expert_gate, "false", "scale it by the sigmoid of a linear gate"),
    D9D_KEY_END};
static const d9d_table dense_table = D9D_TABLE(config, "qwen3_config", dense_keys, "Qwen3");
static const d9d_table moe_table = D9D_TABLE(config, "qwen3_moe_config", moe_keys, "Qwen3-MoE");

static const char *const dense_types[] = {"qwen3", NULL}, *const moe_types[] = {"qwen3_moe", NULL};
static const d9d_hf_field dense_fields[] = {D9D_HF_ONLY("attention_bias", "[false]"),
                                            D9D_HF_ONLY("hidden_act", "[\"silu\"]"), D9D_HF_END};
static const d9d_hf_field moe_fields[] = {D9D_HF_ONLY("attention_bias", "[false]"),
                                          D9D_HF_ONLY("hidden_act", "[\"silu\"]"),
                                          D9D_HF_ALIAS("num_local_experts", "num_experts"),
                                          D9D_HF_IGNORED("max_window_layers"),
                                          D9D_HF_IGNORED("output_router_logits"),
                                          D9D_HF_IGNORED("router_aux_loss_coef"),
                                          D9D_HF_OWN("shared_expert_intermediate_size"),
                                          D9D_HF_OWN("shared_expert_gate"),
                                          D9D_HF_END};

static const d9d_hf_tensor tensors[] = {D9D_HF_EXPERTS,
                                        D9D_HF_NONE("mlp.shared_expert.expert.gate_proj.weight"),
                                        D9D_HF_NONE("mlp.shared_expert.expert.up_proj.weight"),
                                        D9D_HF_NONE("mlp.shared_expert.expert.down_proj.weight"),
                                        D9D_HF_NONE("mlp.shared_expert.gate.weight"),
                                        D9D_HF_TENSORS_END};

/* Windowed layers: all of a mixture, or by layer_types, or those after the first
 * max_window_layers. */
static d9d_status windows_find(config *c, const char *where, d9d_arena *a)
{
    static const char *const words[] = {"full_attention", "sliding_attention", NULL};
    const bool used = c->use_sliding_window && c->sliding_window > 0;
    const int64_t first = used ? c->max_window_layers : c->num_hidden_layers;
    d9d_layer_types types = {0};

    if (!used || c->num_experts == 0)
        D9D_TRY(
            d9d_layer_types_read(&c->layer_types, words, c->num_hidden_layers, where, a, &types));
    for (int64_t l = 0; l < c->num_hidden_layers; l++) {
        c->windowed[l] =
            types.at != NULL ? types.at[l] == 1 : used && (c->num_experts > 0 || l >= first);
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
            return D9D_FAIL(D9D_ECONFIG, "%s: mlp_only_layers[%zu] is not a layer of 0..%lld",
                            where, i, (long long)c->num_hidden_layers - 1);
        c->is_moe[dense[i]] = false;
    }
    for (int64_t l = 0; l < c->num_hidden_layers; l++)
        all &= c->is_moe[l];
    if (!all && c->intermediate_size == 0)
        return D9D_FAIL(D9D_ECONFIG, "%s: intermediate_size is missing, of layers without experts",
                        where);
    return D9D_OK;
}

static d9d_status check(void *dims, const char *where, d9d_arena *a)
{
    config *c = dims;

    c->windowed = d9d_arena_alloc(a, 2 * (size_t)c->num_hidden_layers);
    if (c->windowed == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", where);
    c->is_moe = c->windowed + c->num_hidden_layers;
    D9D_TRY(windows_find(c, where, a));
    D9D_TRY(mixtures_find(c, where));
    if (c->num_experts_per_tok > c->num_experts)
        return D9D_FAIL(D9D_ECONFIG, "%s: num_experts_per_tok is %lld, num_experts %lld", where,
                        (long long)c->num_experts_per_tok, (long long)c->num_experts);
    return D9D_OK;
}

/* --- a layer -------------------------------------------------------------------------------- */

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
        .rope = base->rope,
        .norm_eps = (float)c->norm_eps,
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
        D9D_BLOCK_ADD(&base->module, "mlp", ffn, &l->mlp, opts, c->hidden_size,
                      c->intermediate_size);
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
    D9D_TRY(d9d_block_moe_forward(&l->moe, t, h, &h));
    return d9d_op_add(t, x, h, y);
}

static void shape(const void *dims, d9d_decoder_shape *s)
{
    s->has_experts = ((const config *)dims)->num_experts > 0;
}

/* --- the families --------------------------------------------------------------------------- */

#define FAMILY(word, class, keys)                                                                  \
    {                                                                                              \
        .size = sizeof(d9d_family), .name = (word), .class_name = (class),                         \
        .model_types = keys##_types, .config = &keys##_table, .fields = keys##_fields,             \
        .tensors = tensors, .check = check, .shape = shape, .layer = sizeof(layer), .init = init,  \
        .forward = forward, .ffn = ffn                                                             \
    }
static const d9d_family dense = FAMILY("qwen3", "Qwen3", dense);
static const d9d_family moe = FAMILY("qwen3_moe", "Qwen3Moe", moe);

static d9d_status dense_read(const void *section, d9d_arena *a, const void **out)
{
    return d9di_qwen3_section_read(&dense, section, a, out);
}

static d9d_status moe_read(const void *section, d9d_arena *a, const void **out)
{
    return d9di_qwen3_section_read(&moe, section, a, out);
}

const d9d_model_provider d9d_qwen3_dense_provider = {.table = &d9d_qwen3_dense_section,
                                                     .read = dense_read,
                                                     D9D_FAMILY_PROVIDER(dense_types, &dense)};
const d9d_model_provider d9d_qwen3_moe_provider = {
    .table = &d9d_qwen3_moe_section, .read = moe_read, D9D_FAMILY_PROVIDER(moe_types, &moe)};
