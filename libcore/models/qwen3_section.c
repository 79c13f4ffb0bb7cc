/* qwen3_section.c - Qwen3's sections of "model_provider", with the parameters of the reference
 * framework.  See qwen3_section.h.
 */
#include "models/qwen3_section.h"

#include <math.h>
#include <string.h>

#include "d9d/models/models.h"
#include "model/family/family_parts.h"
#include "model/hf/hf_config_fields.h"

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
    double initializer_range; /* 0: uniform by fan-in */
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
                     .flags = D9D_FLOAT32 | D9D_ABOVE_MIN)

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
    D9DI_ROUTER_CAPACITY_KEY("sequence"),
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
const d9d_table d9d_qwen3_dense_section = {.name = "qwen3_dense",
                                           .size = sizeof(provider_section),
                                           .keys = dense_provider_keys,
                                           .doc = "Qwen3 with dense feed-forward layers",
                                           .check = provider_check,
                                           .row = &d9d_qwen3_dense_provider};
const d9d_table d9d_qwen3_moe_section = {.name = "qwen3_moe",
                                         .size = sizeof(provider_section),
                                         .keys = moe_provider_keys,
                                         .doc = "Qwen3 with mixtures of experts",
                                         .check = provider_check,
                                         .row = &d9d_qwen3_moe_provider};

/* --- as a config.json --------------------------------------------------------------------- */

/* Splits in split_vocab_order: each named once, none left out. */
static int64_t *split_size(const d9d_str_int_map *sizes, const char *name)
{
    for (size_t i = 0; i < sizes->n; i++)
        if (strcmp(sizes->names[i], name) == 0)
            return &sizes->values[i];
    return NULL;
}

/* The splits in split_vocab_order: each named once, none left out. */
static d9d_status splits_read(const model_section *m, d9d_arena *a, d9d_family_config *c)
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

static int64_t vocab_size(const d9d_str_int_map *sizes)
{
    int64_t sum = 0;

    for (size_t i = 0; i < sizes->n; i++)
        sum += sizes->values[i];
    return sum;
}

/* Set members of a mixture of experts. */
static void experts_write(const layer_section *l, json_t **doc)
{
    d9d_json_set(doc, "num_experts", json_integer(l->num_experts));
    d9d_json_set(doc, "num_experts_per_tok", json_integer(l->experts_top_k));
    d9d_json_set(doc, "moe_intermediate_size", json_integer(l->intermediate_size));
    d9d_json_set(doc, "norm_topk_prob", json_true()); /* always, in the reference framework */
    if (l->shared_expert == NULL)
        return;
    d9d_json_set(doc, "shared_expert_intermediate_size",
                 json_integer(l->shared_expert->intermediate_size));
    d9d_json_set(doc, "shared_expert_gate", json_boolean(l->shared_expert->enable_gate));
}

static d9d_rope_scaling scaling_of(const model_section *m)
{
    d9d_rope_scaling s = {0};

    if (m->rope_scaling.which >= 0) {
        s = *(const d9d_rope_scaling *)m->rope_scaling.value;
        s.kind = (d9d_rope_kind)(m->rope_scaling.which + D9D_ROPE_LINEAR);
    }
    return s;
}

/* The base of ntk, which JSON can have if it is finite. */
static d9d_status base_check(const model_section *m)
{
    const d9d_rope_scaling s = scaling_of(m);

    return isfinite(d9d_rope_base(&s, m->rope_base, m->layer.head_dim))
               ? D9D_OK
               : D9D_FAIL(D9D_ECONFIG,
                          "model_provider.model: scaled rotary embedding (ntk): factor %g gives no "
                          "finite base of head_dim %lld",
                          s.factor, (long long)m->layer.head_dim);
}

/* The frequencies; those of ntk are plain ones of another base. */
static void rope_write(const model_section *m, json_t **doc)
{
    const d9d_rope_scaling s = scaling_of(m);

    d9d_json_set(doc, "rope_theta", json_real(d9d_rope_base(&s, m->rope_base, m->layer.head_dim)));
    d9d_json_set(doc, "rope_scaling", d9di_hf_rope_to_json(&s));
}

static json_t *document_build(const model_section *m)
{
    const layer_section *l = &m->layer;
    const bool moe = l->num_experts > 0;
    json_t *doc = json_pack(
        "{s:s, s:b, s:I, s:s, s:I, s:f, s:I, s:I, s:I, s:I, s:I, s:f, s:b, s:b, s:I}", "model_type",
        moe ? "qwen3_moe" : "qwen3", "attention_bias", 0, "head_dim", (json_int_t)l->head_dim,
        "hidden_act", "silu", "hidden_size", (json_int_t)l->hidden_size, "initializer_range",
        m->initializer_range, "intermediate_size", (json_int_t)l->intermediate_size,
        "max_position_embeddings", (json_int_t)m->max_position_ids, "num_attention_heads",
        (json_int_t)l->num_attention_heads, "num_hidden_layers", (json_int_t)m->num_hidden_layers,
        "num_key_value_heads", (json_int_t)l->num_key_value_heads, "rms_norm_eps", l->rms_norm_eps,
        "tie_word_embeddings", m->tie_word_embeddings, "use_sliding_window", 0, "vocab_size",
        (json_int_t)vocab_size(&m->split_vocab_size));

    rope_write(m, &doc);
    if (moe)
        experts_write(l, &doc);
    return doc;
}

static d9d_status dimensions_read(const d9d_family *f, const model_section *m, d9d_arena *a,
                                  d9d_family_config *c)
{
    json_t *doc;
    d9d_status st;

    D9D_TRY(base_check(m));
    doc = document_build(m);
    if (doc == NULL)
        return D9D_FAIL(D9D_ENOMEM, "model_provider.model: out of memory");
    st = d9d_family_read(f, doc, "model_provider.model", true, a, c);
    json_decref(doc);
    D9D_TRY(st);
    c->virtual_pre = m->pipeline_num_virtual_layers_pre;
    c->virtual_post = m->pipeline_num_virtual_layers_post;
    return splits_read(m, a, c);
}

static d9d_status file_read(const d9d_family *f, const char *path, d9d_arena *a,
                            d9d_family_config *c)
{
    json_t *doc;
    d9d_status st;

    D9D_TRY(d9d_hf_config_load(path, &doc));
    st = d9d_family_read(f, doc, path, false, a, c);
    json_decref(doc);
    return st;
}

d9d_status d9di_qwen3_section_read(const d9d_family *f, const void *section, d9d_arena *a,
                                   const void **config)
{
    const provider_section *p = section;
    d9d_family_config *c = d9d_arena_alloc(a, sizeof(*c));

    if (c == NULL)
        return D9D_FAIL(D9D_ENOMEM, "model_provider: %zu bytes", sizeof(*c));
    D9D_TRY(p->head.hf_config != NULL ? file_read(f, p->head.hf_config, a, c)
                                      : dimensions_read(f, p->model, a, c));
    d9d_family_set_router(c, &p->router);
    *config = c;
    return D9D_OK;
}
