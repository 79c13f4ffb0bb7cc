/* qwen3_provider.c - Qwen3 as a provider of models.  See d9d/model/provider.h. */
#include <string.h>

#include "d9d/models/models.h"
#include "d9d/models/qwen3/qwen3_config.h"
#include "d9d/models/qwen3/qwen3_map.h"
#include "d9d/parallel/parallel_plan.h"

typedef struct shared_section {
    int64_t intermediate_size;
    bool enable_gate;
} shared_section;

/* "model_provider": {"name": "qwen3_moe", "hf_config": FILE}, or with "model": {...}. */
typedef struct layer_section {
    int64_t hidden_size, intermediate_size, num_attention_heads, num_key_value_heads, head_dim;
    double rms_norm_eps;
    int64_t num_experts, experts_top_k; /* for a mixture only */
    shared_section *shared_expert;      /* NULL: none */
} layer_section;

typedef struct model_section {
    layer_section layer;
    int64_t num_hidden_layers;
    double rope_base;
    d9d_union rope_scaling; /* d9d_rope_scaling */
    int64_t max_position_ids;
    d9d_str_int_map split_vocab_size;
    d9d_list split_vocab_order; /* const char * */
    int64_t pipeline_num_virtual_layers_pre, pipeline_num_virtual_layers_post;
    bool tie_word_embeddings;
    double initializer_range; /* 0: uniform by fan-in, d9d/models/qwen3/qwen3.h */
} model_section;

typedef struct provider_section {
    d9d_model_section head;
    model_section *model;    /* either this or head.hf_config */
    d9d_block_router router; /* for a mixture */
} provider_section;

/* --- the section ---------------------------------------------------------------- */

static const d9d_key string_elem = {.kind = D9D_KIND_STR, .doc = "a name"};

#define LAYER_KEYS                                                                                 \
    D9D_KEY_INT(layer_section, hidden_size, D9D_REQUIRED, 1, 1 << 20,                              \
                "size of the hidden states"),                                                      \
        D9D_KEY_INT(layer_section, intermediate_size, D9D_REQUIRED, 1, 1 << 20,                    \
                    "FFN size, or that of one expert"),                                            \
        D9D_KEY_INT(layer_section, num_attention_heads, D9D_REQUIRED, 1, 1 << 16, "query heads"),  \
        D9D_KEY_INT(layer_section, num_key_value_heads, D9D_REQUIRED, 1, 1 << 16,                  \
                    "key and value heads"),                                                        \
        D9D_KEY_INT(layer_section, head_dim, D9D_REQUIRED, 2, 1 << 16, "head size"),               \
        D9D_KEY_REAL(layer_section, rms_norm_eps, "1e-6", 0, 1, "epsilon of every RMSNorm",        \
                     .flags = D9D_FLOAT32)

static const d9d_key dense_layer_keys[] = {LAYER_KEYS, D9D_KEY_END};
static const d9d_key shared_keys[] = {
    D9D_KEY_INT(shared_section, intermediate_size, D9D_REQUIRED, 1, 1 << 20, "its FFN size"),
    D9D_KEY_BOOL(shared_section, enable_gate, "false",
                 "scale its output by the sigmoid of a linear gate"),
    D9D_KEY_END,
};
static const d9d_table shared_table =
    D9D_TABLE(shared_section, "shared_expert", shared_keys, "an expert that computes every token");
static const d9d_key moe_layer_keys[] = {
    LAYER_KEYS,
    D9D_KEY_INT(layer_section, num_experts, D9D_REQUIRED, 1, 1 << 16, "experts of a layer"),
    D9D_KEY_INT(layer_section, experts_top_k, D9D_REQUIRED, 1, 1 << 16, "experts per token"),
    {.name = "shared_expert",
     .kind = D9D_KIND_TABLE,
     .flags = D9D_NULLABLE,
     .offset = offsetof(layer_section, shared_expert),
     .def = "null",
     .table = &shared_table,
     .doc = "an expert that computes every token, or null"},
    D9D_KEY_END,
};
static const d9d_table dense_layer_table =
    D9D_TABLE(layer_section, "qwen3_dense_layer", dense_layer_keys, "one decoder layer");
static const d9d_table moe_layer_table =
    D9D_TABLE(layer_section, "qwen3_moe_layer", moe_layer_keys, "one decoder layer");

/* --- RoPE scaling ----------------------------------------------------------------------------- */

static const char *const scaling_tag[] = {"type", NULL};
#define FACTOR_KEY                                                                                 \
    D9D_KEY_REAL(d9d_rope_scaling, factor, D9D_REQUIRED, 1, 1e6, "how many times longer")
#define ORIGINAL_KEY                                                                               \
    {                                                                                              \
        .name = "original_max_position_embeddings", .kind = D9D_KIND_REAL,                         \
        .offset = offsetof(d9d_rope_scaling, original), .def = D9D_REQUIRED, .min = 1,             \
        .max = INT32_MAX, .doc = "positions that the model was pretrained on"                      \
    }
#define BOUND_KEY(word, field, d, text)                                                            \
    {                                                                                              \
        .name = (word), .kind = D9D_KIND_REAL, .offset = offsetof(d9d_rope_scaling, field),        \
        .def = (d), .flags = D9D_ABOVE_MIN, .min = 0, .max = 1e9, .doc = (text)                    \
    }
static const d9d_key scale_keys[] = {FACTOR_KEY, D9D_KEY_END};
static const d9d_key yarn_keys[] = {
    FACTOR_KEY,
    ORIGINAL_KEY,
    BOUND_KEY("beta_fast", fast, "32",
              "a frequency that rotates at least so often over those positions is unchanged"),
    BOUND_KEY("beta_slow", slow, "1",
              "a frequency that rotates at most so often is divided by the factor"),
    {.name = "attention_factor",
     .kind = D9D_KIND_REAL,
     .offset = offsetof(d9d_rope_scaling, mscale),
     .flags = D9D_FLOAT32,
     .def = "0",
     .max = 1e6,
     .doc = "scale of cosines and sines; 0: 0.1 ln(factor) + 1"},
    {.name = "truncate",
     .kind = D9D_KIND_BOOL,
     .offset = offsetof(d9d_rope_scaling, whole),
     .def = "true",
     .doc = "round the bounds outwards to whole features"},
    D9D_KEY_END,
};
static const d9d_key llama3_keys[] = {
    FACTOR_KEY,
    ORIGINAL_KEY,
    BOUND_KEY("high_freq_factor", fast, "4",
              "a frequency that rotates at least so often over those positions is unchanged"),
    BOUND_KEY("low_freq_factor", slow, "1",
              "a frequency that rotates at most so often is divided by the factor"),
    D9D_KEY_END,
};
#define SCALING(var, word, k, text)                                                                \
    static const d9d_table var = {                                                                 \
        .name = (word), .size = sizeof(d9d_rope_scaling), .keys = (k), .doc = (text)}
SCALING(linear_table, "linear", scale_keys, "all frequencies divided by the factor");
SCALING(ntk_table, "ntk", scale_keys, "a larger base, the slowest frequency divided by the factor");
SCALING(yarn_table, "yarn", yarn_keys,
        "slow frequencies divided by the factor, fast ones unchanged");
SCALING(llama3_table, "llama3", llama3_keys, "as yarn, by wavelength, as Llama 3.1");
/* In the order of d9d_rope_kind, from LINEAR on. */
static const d9d_table *const scalings[] = {&linear_table, &ntk_table, &yarn_table, &llama3_table,
                                            NULL};

#define MODEL_KEYS(layer_table)                                                                    \
    D9D_KEY_TABLE(model_section, layer, layer_table, "dimensions of a layer"),                     \
        D9D_KEY_INT(model_section, num_hidden_layers, D9D_REQUIRED, 1, 1 << 16, "decoder layers"), \
        D9D_KEY_REAL(model_section, rope_base, "10000", 1, 1e15,                                   \
                     "base of RoPE's frequencies (theta)"),                                        \
        D9D_KEY_UNION(model_section, rope_scaling, "null", scaling_tag, scalings,                  \
                      "RoPE scaling for sequences longer than those of the pretraining",           \
                      .flags = D9D_NULLABLE),                                                      \
        D9D_KEY_INT(model_section, max_position_ids, D9D_REQUIRED, 1, INT32_MAX,                   \
                    "longest sequence"),                                                           \
        D9D_KEY_MAP(model_section, split_vocab_size, D9D_REQUIRED, 1, INT32_MAX,                   \
                    "ids in each split of the vocabulary"),                                        \
        D9D_KEY_LIST(model_section, split_vocab_order, D9D_REQUIRED, &string_elem,                 \
                     "the splits in the order of their ids"),                                      \
        D9D_KEY_INT(model_section, pipeline_num_virtual_layers_pre, "0", 0, 1 << 16,               \
                    "layers that the embedding counts for when layers are divided into stages"),   \
        D9D_KEY_INT(model_section, pipeline_num_virtual_layers_post, "0", 0, 1 << 16,              \
                    "layers that the head counts for"),                                            \
        D9D_KEY_BOOL(model_section, tie_word_embeddings, "false",                                  \
                     "the head uses the embedding's weights"),                                     \
        D9D_KEY_REAL(model_section, initializer_range, "0", 0, 1e3,                                \
                     "standard deviation of initial matrices; 0: uniform by fan-in",               \
                     .flags = D9D_FLOAT32)

static const d9d_key dense_model_keys[] = {MODEL_KEYS(&dense_layer_table), D9D_KEY_END};
static const d9d_key moe_model_keys[] = {MODEL_KEYS(&moe_layer_table), D9D_KEY_END};
static const d9d_table dense_model_table =
    D9D_TABLE(model_section, "qwen3_dense_model", dense_model_keys, "Qwen3, dense");
static const d9d_table moe_model_table =
    D9D_TABLE(model_section, "qwen3_moe_model", moe_model_keys, "Qwen3, mixture of experts");

static d9d_status provider_check(const void *value, const char *path)
{
    const provider_section *p = value;

    if ((p->head.hf_config == NULL) == (p->model == NULL))
        return D9D_FAIL(D9D_ECONFIG, "%s: give either hf_config or model", path);
    return D9D_OK;
}

#define PROVIDER_KEYS(model_table)                                                                 \
    D9D_MODEL_SECTION_KEYS,                                                                        \
    {                                                                                              \
        .name = "model", .kind = D9D_KIND_TABLE, .flags = D9D_NULLABLE,                            \
        .offset = offsetof(provider_section, model), .def = "null", .table = model_table,          \
        .doc = "the dimensions, in place of hf_config"                                             \
    }

/* In the order of d9d_block_router_score. */
static const char *const score_names[] = {"softmax", "sigmoid", NULL};
#define COEFFICIENT(word, field, d, flag, text)                                                    \
    {                                                                                              \
        .name = (word), .kind = D9D_KIND_REAL, .offset = offsetof(d9d_block_router, field),        \
        .def = (d), .flags = D9D_FLOAT32 | (flag), .min = 0, .max = 1e3, .doc = (text)             \
    }
static const d9d_key router_keys[] = {
    D9D_KEY_ENUM(d9d_block_router, score, "\"softmax\"", score_names,
                 "scores of a token's logits: their softmax, or the sigmoid of each"),
    D9D_KEY_INT(
        d9d_block_router, groups, "1", 1, D9D_ROUTER_MAX_GROUPS,
        "groups of experts, scored by the sum of their two best; 1: any expert can be chosen"),
    D9D_KEY_INT(d9d_block_router, top_groups, "1", 1, D9D_ROUTER_MAX_GROUPS,
                "groups with the highest scores, from which a token's experts are chosen"),
    COEFFICIENT("scale", scale, "1", D9D_ABOVE_MIN, "factor of the routing weights"),
    D9D_KEY_BOOL(d9d_block_router, expert_bias, "false",
                 "a bias of each expert's score, for the choice only, that balances their loads"),
    COEFFICIENT("bias_update_rate", bias_rate, "0.001", 0,
                "change of a bias in a step, upwards if the expert's load was below the mean"),
    COEFFICIENT(
        "aux_loss_coef", aux_loss, "0", 0,
        "coefficient of the load-balancing loss of each sequence; the loss is 1 for even loads"),
    COEFFICIENT("z_loss_coef", z_loss, "0", 0,
                "coefficient of the squared log-sum-exp of each token's logits"),
    D9D_KEY_END,
};
static const d9d_table router_table =
    D9D_TABLE(d9d_block_router, "router", router_keys, "how experts are chosen and balanced");

static const d9d_key dense_provider_keys[] = {PROVIDER_KEYS(&dense_model_table), D9D_KEY_END};
static const d9d_key moe_provider_keys[] = {
    PROVIDER_KEYS(&moe_model_table),
    D9D_KEY_TABLE(provider_section, router, &router_table,
                  "routers of all layers, beyond what the dimensions say"),
    D9D_KEY_END,
};
static const d9d_table dense_provider_table = {.name = "qwen3_dense",
                                               .size = sizeof(provider_section),
                                               .keys = dense_provider_keys,
                                               .doc = "Qwen3 with dense feed-forward layers",
                                               .check = provider_check,
                                               .row = &d9d_qwen3_dense_provider};
static const d9d_table moe_provider_table = {.name = "qwen3_moe",
                                             .size = sizeof(provider_section),
                                             .keys = moe_provider_keys,
                                             .doc = "Qwen3 with mixtures of experts",
                                             .check = provider_check,
                                             .row = &d9d_qwen3_moe_provider};
const d9d_table *const d9d_job_model_choices[] = {&dense_provider_table, &moe_provider_table, NULL};

/* --- reading the section ---------------------------------------------------------------- */

static int64_t *split_size(const d9d_str_int_map *sizes, const char *name)
{
    for (size_t i = 0; i < sizes->n; i++)
        if (strcmp(sizes->names[i], name) == 0)
            return &sizes->values[i];
    return NULL;
}

/* The splits in split_vocab_order: each named once, none left out. */
static d9d_status splits_read(const model_section *m, d9d_arena *a, d9d_qwen3_config *c)
{
    const char *const *order = m->split_vocab_order.items;
    size_t n = m->split_vocab_order.n;
    d9d_block_vocab_split *splits = d9d_arena_alloc(a, (n + 1) * sizeof(*splits));

    if (splits == NULL)
        return D9D_FAIL(D9D_ENOMEM, "model_provider.model: %zu splits", n);
    for (size_t i = 0; i < n; i++) {
        const int64_t *size = split_size(&m->split_vocab_size, order[i]);

        if (size == NULL)
            return D9D_FAIL(D9D_ECONFIG,
                            "model_provider.model.split_vocab_order[%zu]: \"%s\" is "
                            "not in split_vocab_size",
                            i, order[i]);
        for (size_t j = 0; j < i; j++)
            if (strcmp(order[j], order[i]) == 0)
                return D9D_FAIL(D9D_ECONFIG,
                                "model_provider.model.split_vocab_order[%zu]: \"%s\" "
                                "stands there twice",
                                i, order[i]);
        splits[i] = (d9d_block_vocab_split){order[i], *size};
    }
    if (n != m->split_vocab_size.n)
        return D9D_FAIL(D9D_ECONFIG,
                        "model_provider.model: split_vocab_order names %zu of %zu "
                        "splits",
                        n, m->split_vocab_size.n);
    c->splits = splits;
    c->n_splits = n;
    return D9D_OK;
}

static d9d_status dimensions_read(const model_section *m, d9d_arena *a, d9d_qwen3_config *c)
{
    const layer_section *l = &m->layer;
    const shared_section *shared = l->shared_expert;
    bool moe = l->num_experts > 0;

    *c = (d9d_qwen3_config){
        .hidden = l->hidden_size,
        .layers = m->num_hidden_layers,
        .heads = l->num_attention_heads,
        .kv_heads = l->num_key_value_heads,
        .head_dim = l->head_dim,
        .dense_intermediate = moe ? 0 : l->intermediate_size,
        .expert_intermediate = moe ? l->intermediate_size : 0,
        .shared_intermediate = shared != NULL ? shared->intermediate_size : 0,
        .shared_gate = shared != NULL && shared->enable_gate,
        .experts = l->num_experts,
        .top_k = l->experts_top_k,
        .renormalise = true, /* always, in this family */
        .norm_eps = (float)l->rms_norm_eps,
        .rope_base = m->rope_base,
        .max_positions = m->max_position_ids,
        .tied = m->tie_word_embeddings,
        .init_std = m->initializer_range,
        .virtual_pre = m->pipeline_num_virtual_layers_pre,
        .virtual_post = m->pipeline_num_virtual_layers_post,
    };
    if (m->rope_scaling.which >= 0) {
        c->rope_scaling = *(const d9d_rope_scaling *)m->rope_scaling.value;
        c->rope_scaling.kind = (d9d_rope_kind)(m->rope_scaling.which + D9D_ROPE_LINEAR);
    }
    return splits_read(m, a, c);
}

/* The section's router options; those that determine the model come from its file, if that has
 * them. */
static void router_read(const d9d_block_router *section, d9d_block_router *out)
{
    const d9d_block_router file = *out;

    *out = *section;
    if (!d9d_block_router_is_custom(&file))
        return;
    out->score = file.score;
    out->groups = file.groups;
    out->top_groups = file.top_groups;
    out->scale = file.scale;
    out->expert_bias = file.expert_bias;
}

static d9d_status section_read(const void *section, d9d_arena *a, const void **config)
{
    const provider_section *p = section;
    d9d_qwen3_config *c = d9d_arena_alloc(a, sizeof(*c));

    if (c == NULL)
        return D9D_FAIL(D9D_ENOMEM, "model_provider: %zu bytes", sizeof(*c));
    if (p->head.hf_config != NULL)
        D9D_TRY(d9d_qwen3_config_read(p->head.hf_config, a, c));
    else
        D9D_TRY(dimensions_read(p->model, a, c));
    router_read(&p->router, &c->router);
    *config = c;
    return d9d_qwen3_check(c);
}

/* --- the table ------------------------------------------------------------------------ */

static d9d_status mesh_check(const void *config, const d9d_parallel_degrees *mesh)
{
    return d9d_qwen3_plan_check(config, mesh);
}

static d9d_status model_create(const void *config, d9d_stage stage, const d9d_model_opts *options,
                               d9d_model **out)
{
    return d9d_qwen3_create(config, stage, options, out);
}

static d9d_status model_place(const void *config, d9d_mesh *mesh, d9d_model *m)
{
    return d9d_qwen3_plan(config, mesh, m);
}

static d9d_status weights_mapper(const void *config, d9d_stage stage, const d9d_tensor_source *src,
                                 d9d_weights_layout to, d9d_mapper **out)
{
    return d9d_qwen3_mapper(config, stage, src, to, out);
}

static d9d_status hf_config_build(const void *config, d9d_dtype dtype, json_t **doc)
{
    return d9d_qwen3_config_make(config, dtype, doc);
}

static d9d_status matrices_list(const void *config, d9d_arena *a, d9d_model_matrices *out)
{
    return d9d_qwen3_matrices(config, a, out);
}

static d9d_status head_set(const void *config, d9d_arena *a, d9d_head *head, const void **out)
{
    return d9d_qwen3_set_head(config, a, head, (const d9d_qwen3_config **)out);
}

static d9d_status hf_config_set_head(const void *config, json_t *doc)
{
    return d9d_qwen3_config_set_head(doc, config);
}

static d9d_status check_trainable(const void *config)
{
    return d9d_qwen3_trainable(config);
}

/* Both are in d9d_qwen3_model_types, which maps read alike. */
static const char *const dense_types[] = {"qwen3", NULL};
static const char *const moe_types[] = {"qwen3_moe", NULL};

#define PROVIDER(name, section_table, types)                                                       \
    const d9d_model_provider name = {                                                              \
        .size = sizeof(d9d_model_provider),                                                        \
        .table = &(section_table),                                                                 \
        .read = section_read,                                                                      \
        .check = mesh_check,                                                                       \
        .create = model_create,                                                                    \
        .place = model_place,                                                                      \
        .layout = d9d_qwen3_layout,                                                                \
        .mapper = weights_mapper,                                                                  \
        .hf_config = hf_config_build,                                                              \
        .matrices = matrices_list,                                                                 \
        .set_head = head_set,                                                                      \
        .hf_head = hf_config_set_head,                                                             \
        .trainable = check_trainable,                                                              \
        .model_types = (types),                                                                    \
        .fields = d9d_qwen3_fields,                                                                \
    }
PROVIDER(d9d_qwen3_dense_provider, dense_provider_table, dense_types);
PROVIDER(d9d_qwen3_moe_provider, moe_provider_table, moe_types);
