/* llama.c - Llama 2 and 3, SmolLM2 and 3, Mistral, Ministral, Mixtral, Phi-3 and Phi-4.
 *
 *     x = x + attention(norm(x))         grouped-query attention with RoPE
 *     x = x + mlp(norm(x))               SwiGLU, in Mixtral a mixture of SwiGLU experts
 *
 * Layers of Mistral, Mixtral and Phi-3 may see a window, and some of Ministral.  Queries of
 * Ministral 3 grow with their position.  Some layers of SmolLM3 have no RoPE.  Phi-4 rotates the
 * first features of a head, and Phi's projections are fused in the files.  Touvron et al., "Llama
 * 2", 2023; Grattafiori et al., "The Llama 3 herd of models", 2024; Jiang et al., "Mistral 7B",
 * 2023, and "Mixtral of experts", 2024; Bakouch et al., "SmolLM3", 2025; Abdin et al., "Phi-3
 * technical report", arXiv:2404.14219, and "Phi-4", arXiv:2412.08905.
 */
#include "d9d/model/family/family.h"

typedef struct config {
    D9D_FAMILY_DIMS;
    bool use_sliding_window; /* of SmolLM3 */
    int64_t sliding_window;  /* 0: none */
    int64_t num_local_experts, num_experts_per_tok;
    int64_t no_rope_layer_interval;
    int64_t original_max_position_embeddings; /* of Phi-3, in rope_scaling too */
    int hidden_act;                           /* of d9d_family_activation_names */
    bool attention_bias, mlp_bias;
    double partial_rotary_factor; /* 0: the whole head is rotated */
    d9d_list no_rope_layers;      /* of 0 and 1: 1 for a layer with RoPE */
    d9d_list layer_types;
    d9d_layer_types types;       /* 1: with the window */
    double llama_4_scaling_beta; /* 0: none */
} config;

#define DIMS(kv_heads, positions)                                                                  \
    D9D_FAMILY_KEYS_GQA(config, kv_heads), D9D_FAMILY_INTERMEDIATE(config),                        \
        D9D_FAMILY_POSITIONS(config, positions)
#define KEYS(kv_heads, positions, eps, theta)                                                      \
    DIMS(kv_heads, positions), D9D_FAMILY_HEAD_DIM(config),                                        \
        D9D_FAMILY_NORM(config, rms_norm_eps, eps), D9D_FAMILY_ROPE(config, theta)
#define WINDOW(otherwise)                                                                          \
    D9D_KEY_INT(config, sliding_window, otherwise, 1, INT32_MAX,                                   \
                "keys that a query sees, its own counted; null: all", .flags = D9D_NULLABLE)
#define BIASES                                                                                     \
    D9D_KEY_BOOL(config, attention_bias, "false", "all projections of attention have biases"),     \
        D9D_KEY_BOOL(config, mlp_bias, "false", "feed-forward layers have biases")
static const d9d_key llama_keys[] = {KEYS("null", "2048", "1e-6", "10000"),
                                     D9D_FAMILY_TIED(config, "false"),
                                     D9D_FAMILY_PADDING(config, "null"),
                                     D9D_FAMILY_HIDDEN_ACT(config, "\"silu\""),
                                     BIASES,
                                     D9D_KEY_END};
static const d9d_key mistral_keys[] = {KEYS("8", "131072", "1e-6", "10000"), WINDOW("4096"),
                                       D9D_FAMILY_TIED(config, "false"),
                                       D9D_FAMILY_PADDING(config, "null"), D9D_KEY_END};
static const d9d_key ministral_keys[] = {KEYS("8", "131072", "1e-6", "10000"),
                                         WINDOW("4096"),
                                         D9D_FAMILY_TIED(config, "false"),
                                         D9D_FAMILY_PADDING(config, "null"),
                                         D9D_FAMILY_LAYER_TYPES(config, layer_types),
                                         D9D_KEY_END};
static const d9d_key ministral3_keys[] = {
    DIMS("8", "262144"),
    D9D_KEY_INT(config, head_dim, "128", 1, 1 << 16,
                "features of a head; null: a share of hidden_size", .flags = D9D_NULLABLE),
    D9D_FAMILY_NORM(config, rms_norm_eps, "1e-5"),
    D9D_FAMILY_ROPE_SCALED(config, "10000",
                           "{\"rope_type\": \"yarn\", \"rope_theta\": 1e6, \"factor\": 16, "
                           "\"original_max_position_embeddings\": 16384, \"mscale\": 1, "
                           "\"mscale_all_dim\": 1, \"llama_4_scaling_beta\": 0.1}"),
    WINDOW("null"),
    D9D_FAMILY_TIED(config, "false"),
    D9D_FAMILY_PADDING(config, "11"),
    D9D_KEY_REAL(config, llama_4_scaling_beta, "0", 0, 1e3,
                 "queries times 1 + beta log(1 + floor(position / "
                 "original_max_position_embeddings))",
                 .flags = D9D_FLOAT32),
    D9D_KEY_END};
static const d9d_key mixtral_keys[] = {
    KEYS("8", "131072", "1e-5", "1e6"),
    WINDOW("null"),
    D9D_FAMILY_TIED(config, "false"),
    D9D_FAMILY_PADDING(config, "null"),
    D9D_KEY_INT(config, num_local_experts, "8", 1, 1 << 16, "experts of a layer"),
    D9D_KEY_INT(config, num_experts_per_tok, "2", 1, 1 << 16, "experts of a token"),
    D9D_KEY_END};
static const d9d_key zero_or_one = {.kind = D9D_KIND_INT, .max = 1, .doc = "1: with RoPE"};
static const d9d_key smollm3_keys[] = {
    KEYS("4", "32768", "1e-6", "2e6"),
    D9D_FAMILY_TIED(config, "true"),
    D9D_FAMILY_PADDING(config, "128004"),
    D9D_KEY_INT(config, no_rope_layer_interval, "4", 1, 1 << 16, "every such layer has no RoPE"),
    D9D_KEY_LIST(config, no_rope_layers, "null", &zero_or_one, "layers with RoPE: 1, without: 0",
                 .flags = D9D_NULLABLE),
    BIASES,
    WINDOW("null"),
    D9D_FAMILY_LAYER_TYPES(config, layer_types),
    D9D_KEY_BOOL(config, use_sliding_window, "false", "some layers see a window"),
    D9D_KEY_END};
static const d9d_key phi3_keys[] = {
    KEYS("null", "4096", "1e-5", "10000"),
    WINDOW("null"),
    D9D_FAMILY_TIED(config, "false"),
    D9D_FAMILY_PADDING(config, "32000"),
    D9D_FAMILY_DROPOUT(config, resid_pdrop, residual_dropout, "0", "of what layers add"),
    D9D_KEY_REAL(config, partial_rotary_factor, "1", 0, 1, "share of a head that is rotated",
                 .flags = D9D_ABOVE_MIN),
    D9D_KEY_INT(config, original_max_position_embeddings, "4096", 1, INT32_MAX,
                "positions that it was trained on before its RoPE was scaled"),
    D9D_KEY_END};
#define TABLE(name, text)                                                                          \
    static const d9d_table name##_table = D9D_TABLE(config, #name "_config", name##_keys, text);   \
    static const char *const name##_types[] = {#name, NULL}
TABLE(llama, "Llama");
TABLE(mistral, "Mistral");
TABLE(ministral, "Ministral");
TABLE(ministral3, "Ministral 3");
TABLE(mixtral, "Mixtral");
TABLE(smollm3, "SmolLM3");
TABLE(phi3, "Phi-3 and Phi-4");

#define FIELDS                                                                                     \
    D9D_HF_ONLY("hidden_act", "[\"silu\"]"), D9D_HF_ONLY("attention_bias", "[false]"),             \
        D9D_HF_ONLY("mlp_bias", "[false]"), D9D_HF_IGNORED("pretraining_tp")
static const d9d_hf_field llama_fields[] = {D9D_HF_IGNORED("pretraining_tp"),
                                            D9D_HF_IGNORED("is_llama_config"),
                                            D9D_HF_ONLY("rope_interleaved", "[false]"), D9D_HF_END};
static const d9d_hf_field fields[] = {FIELDS, D9D_HF_END};
static const d9d_hf_field mixtral_fields[] = {
    FIELDS, D9D_HF_ONLY("router_jitter_noise", "[0]"), D9D_HF_ROUTER_LOSS("output_router_logits"),
    D9D_HF_ROUTER_LOSS("router_aux_loss_coef"), D9D_HF_END};
static const d9d_hf_field smollm3_fields[] = {D9D_HF_ONLY("hidden_act", "[\"silu\"]"),
                                              D9D_HF_IGNORED("pretraining_tp"),
                                              D9D_HF_IGNORED("max_window_layers"), D9D_HF_END};

static const d9d_hf_field phi3_fields[] = {
    D9D_HF_ONLY("hidden_act", "[\"silu\"]"),
    D9D_HF_ONLY("embd_pdrop", "[0]"), /* which transformers reads and does not apply */
    D9D_HF_ONLY("attention_bias", "[false]"),
    D9D_HF_ONLY("mlp_bias", "[false]"),
    D9D_HF_ONLY("lm_head_bias", "[false]"),
    D9D_HF_ONLY("full_attn_mod", "[1]"), /* every such layer has no window of its own */
    D9D_HF_ONLY("interpolate_factor", "[1]"),
    D9D_HF_END};

static const d9d_hf_tensor tensors[] = {D9D_HF_UNUSED("self_attn.rotary_emb.inv_freq"),
                                        D9D_HF_TENSORS_END};
#define EXPERT(own, there)                                                                         \
    D9D_HF_STACK("mlp.grouped_experts." own ".weight",                                             \
                 "block_sparse_moe.experts.{expert}." there ".weight")
static const d9d_hf_tensor mixtral_tensors[] = {
    D9D_HF_NAME("mlp.router.gate.weight", "block_sparse_moe.gate.weight"),
    EXPERT("gate_proj", "w1"),
    EXPERT("up_proj", "w3"),
    EXPERT("down_proj", "w2"),
    D9D_HF_MODEL_NAME("mlp.router.gate.weight", "mlp.gate.weight"),
    D9D_HF_FUSED_EXPERTS("mlp.experts", D9D_HF_ROWS_MODEL),
    D9D_HF_TENSORS_END};

static const d9d_hf_tensor phi3_tensors[] = {
    {.own = {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"},
     .hf = "self_attn.qkv_proj.weight"},
    {.own = {"mlp.gate_proj.weight", "mlp.up_proj.weight"}, .hf = "mlp.gate_up_proj.weight"},
    D9D_HF_TENSORS_END};

typedef struct layer {
    d9d_decoder_layer base;
    d9d_block_norm input_layernorm, post_attention_layernorm;
    d9d_block_attention self_attn;
    d9d_block_ffn mlp;
    d9d_block_moe moe; /* in place of mlp, in Mixtral */
} layer;

static bool has_rope(const config *c, int64_t number)
{
    const int64_t *list = c->no_rope_layers.items;

    return c->no_rope_layers.n > 0
               ? list[number] != 0
               : c->no_rope_layer_interval == 0 || (number + 1) % c->no_rope_layer_interval != 0;
}

/* Without a list all layers of Mistral have a window, and those of SmolLM3 that have no RoPE. */
static int64_t window_of(const config *c, int64_t number)
{
    const bool windowed = c->types.at != NULL ? c->types.at[number] == 1
                                              : !c->use_sliding_window || !has_rope(c, number);

    return windowed ? c->sliding_window : 0;
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
        .out_dropout = (float)c->residual_dropout,
        .rope = has_rope(c, base->number) ? base->rope : NULL,
        .qkv_bias = c->attention_bias,
        .o_bias = c->attention_bias,
        .window = window_of(c, base->number),
        .temperature_beta = (float)c->llama_4_scaling_beta,
        .temperature_period = (int64_t)c->rope_scaling.original};
    const d9d_block_moe_shape moe = {.hidden = c->hidden_size,
                                     .intermediate = c->intermediate_size,
                                     .experts = c->num_local_experts,
                                     .top_k = c->num_experts_per_tok,
                                     .renormalise = true,
                                     .router = c->router,
                                     .layer = base->number};
    layer *l = (layer *)base;

    D9D_FAMILY_NORM_ADD(l, input_layernorm, opts, c);
    D9D_BLOCK_ADD(&base->module, "self_attn", attention, &l->self_attn, opts, &attention);
    D9D_FAMILY_NORM_ADD(l, post_attention_layernorm, opts, c);
    if (c->num_local_experts > 0)
        D9D_BLOCK_ADD(&base->module, "mlp", moe, &l->moe, opts, &moe);
    else
        D9D_BLOCK_ADD(&base->module, "mlp", ffn, &l->mlp, opts,
                      &(d9d_block_ffn_shape){.hidden = c->hidden_size,
                                             .intermediate = c->intermediate_size,
                                             .glu = d9d_family_glu(c->hidden_act),
                                             .out_dropout = (float)c->residual_dropout,
                                             .bias = c->mlp_bias});
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

/* A layer that is to have a window has one. */
static d9d_status window_check(const config *c, const char *where)
{
    for (size_t i = 0; i < c->types.n && c->sliding_window == 0; i++)
        if (c->types.at[i] == 1)
            return D9D_FAIL(D9D_ECONFIG,
                            "%s: layer_types has sliding_attention, and no sliding_window is in "
                            "use",
                            where);
    return D9D_OK;
}

static d9d_status check(void *dims, const char *where, d9d_arena *a)
{
    static const char *const words[] = {"full_attention", "sliding_attention", NULL};
    config *c = dims;

    D9D_TRY(d9d_layer_types_read(&c->layer_types, "layer_types", words, c->num_hidden_layers, where,
                                 a, &c->types));
    c->sliding_window = c->sliding_window > 0 ? c->sliding_window : 0;
    D9D_TRY(window_check(c, where));
    if (c->num_local_experts > 0)
        D9D_TRY(d9d_block_router_check(where, "num_local_experts", c->num_local_experts,
                                       c->num_experts_per_tok, &c->router));
    if (c->no_rope_layers.items != NULL && (int64_t)c->no_rope_layers.n != c->num_hidden_layers)
        return D9D_FAIL(D9D_ECONFIG, "%s: no_rope_layers has %zu layers, num_hidden_layers is %lld",
                        where, c->no_rope_layers.n, (long long)c->num_hidden_layers);
    return D9D_OK;
}

static d9d_status smollm3_check(void *dims, const char *where, d9d_arena *a)
{
    config *c = dims;

    c->sliding_window = c->use_sliding_window ? c->sliding_window : 0;
    return check(dims, where, a);
}

static d9d_status ministral3_check(void *dims, const char *where, d9d_arena *a)
{
    config *c = dims;

    if (c->llama_4_scaling_beta != 0 && c->rope_scaling.original < 1)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: llama_4_scaling_beta is %g: it needs a scaled rotary embedding with "
                        "original_max_position_embeddings",
                        where, c->llama_4_scaling_beta);
    return check(dims, where, a);
}

static void shape(const void *dims, d9d_decoder_shape *s)
{
    const config *c = dims;

    s->has_experts = c->num_local_experts > 0;
    if (c->partial_rotary_factor > 0)
        s->rope.features = (int64_t)((double)c->head_dim * c->partial_rotary_factor);
}

#define LAYER_OF(check_of)                                                                         \
    .check = check_of, .shape = shape, .layer = sizeof(layer), .dropout = true, .init = init,      \
    .forward = forward, .ffn = ffn
#define LAYER LAYER_OF(check)
D9D_FAMILY(llama, "llama", "Llama 2 and 3, and what has their layers", llama_types,
           .class_name = "Llama", .config = &llama_table, .fields = llama_fields,
           .tensors = tensors, LAYER);
D9D_FAMILY(mistral, "mistral", "Mistral, whose layers see a window", mistral_types,
           .class_name = "Mistral", .config = &mistral_table, .fields = fields, .tensors = tensors,
           LAYER);
D9D_FAMILY(ministral, "ministral", "Ministral, some of whose layers see a window", ministral_types,
           .class_name = "Ministral", .config = &ministral_table, .fields = fields,
           .tensors = tensors, LAYER);
D9D_FAMILY(ministral3, "ministral3", "Ministral 3, whose queries grow with their position",
           ministral3_types, .class_name = "Ministral3", .config = &ministral3_table,
           .fields = fields, .tensors = tensors, LAYER_OF(ministral3_check));
D9D_FAMILY(mixtral, "mixtral", "Mixtral, a mixture of experts", mixtral_types,
           .class_name = "Mixtral", .config = &mixtral_table, .fields = mixtral_fields,
           .tensors = mixtral_tensors, LAYER);
D9D_FAMILY(smollm3, "smollm3", "SmolLM3, some of whose layers have no RoPE", smollm3_types,
           .class_name = "SmolLM3", .config = &smollm3_table, .fields = smollm3_fields,
           .tensors = tensors, LAYER_OF(smollm3_check));
D9D_FAMILY(phi3, "phi3", "Phi-3, Phi-3.5 and Phi-4", phi3_types, .class_name = "Phi3",
           .config = &phi3_table, .fields = phi3_fields, .tensors = phi3_tensors, LAYER);
