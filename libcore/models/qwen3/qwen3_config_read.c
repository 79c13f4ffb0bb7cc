/* qwen3_config_read.c - see d9d/models/qwen3/qwen3_config.h.
 *
 * Fields are rows of tables: accepted fields, and numbers that are read.
 */
#include <inttypes.h>
#include <string.h>

#include "models/qwen3/qwen3_config_parts.h"

enum { ABSENT = -1 };

struct number_field {
    const char *name, *other; /* names in either generation */
    size_t offset;
    int64_t otherwise; /* value when absent, or D9DI_HF_REQUIRED */
    enum { EVERY, MIXTURE } models;
};

#define NUMBER(n, o, field, d, m)                                                                  \
    {                                                                                              \
        n, o, offsetof(d9d_qwen3_config, field), d, m                                              \
    }

static const struct number_field number_fields[] = {
    NUMBER("hidden_size", NULL, hidden, D9DI_HF_REQUIRED, EVERY),
    NUMBER("num_hidden_layers", NULL, layers, D9DI_HF_REQUIRED, EVERY),
    NUMBER("num_attention_heads", NULL, heads, D9DI_HF_REQUIRED, EVERY),
    NUMBER("num_key_value_heads", NULL, kv_heads, ABSENT, EVERY),
    NUMBER("head_dim", NULL, head_dim, ABSENT, EVERY),
    NUMBER("intermediate_size", NULL, dense_intermediate, 0, EVERY),
    NUMBER("max_position_embeddings", NULL, max_positions, 32768, EVERY),
    NUMBER("num_experts", "num_local_experts", experts, D9DI_HF_REQUIRED, MIXTURE),
    NUMBER("num_experts_per_tok", NULL, top_k, D9DI_HF_REQUIRED, MIXTURE),
    NUMBER("moe_intermediate_size", NULL, expert_intermediate, D9DI_HF_REQUIRED, MIXTURE),
};

static d9d_status read_number(const d9di_hf_reader *r, const struct number_field *n,
                              d9d_qwen3_config *c)
{
    int64_t *field = (int64_t *)(void *)((char *)c + n->offset), a, b;
    bool both = d9di_hf_member(r->doc, n->name) != NULL && d9di_hf_member(r->doc, n->other) != NULL;
    const char *name = d9di_hf_member(r->doc, n->other) != NULL ? n->other : n->name;

    if (n->models == MIXTURE && !r->moe) {
        *field = 0;
        return D9D_OK;
    }
    if (both) {
        D9D_TRY(d9di_hf_i64(r, n->name, D9DI_HF_REQUIRED, &a));
        D9D_TRY(d9di_hf_i64(r, n->other, D9DI_HF_REQUIRED, &b));
        if (a != b)
            return D9D_FAIL(D9D_ECONFIG, "%s: %s is %" PRId64 " and %s is %" PRId64, r->where,
                            n->name, a, n->other, b);
    }
    return d9di_hf_i64(r, name, n->otherwise, field);
}

/* --- accepted fields --------------------------------------------------------------------- */

/* Balancing losses of routers belong to a job, not to a model, so the file's values are ignored. */
const d9d_hf_field d9d_qwen3_fields[] = {
    D9D_HF_READ("architectures"),
    D9D_HF_READ("d9d"),
    D9D_HF_READ("hidden_size"),
    D9D_HF_READ("num_hidden_layers"),
    D9D_HF_READ("num_attention_heads"),
    D9D_HF_READ("num_key_value_heads"),
    D9D_HF_READ("head_dim"),
    D9D_HF_READ("intermediate_size"),
    D9D_HF_READ("max_position_embeddings"),
    D9D_HF_READ("vocab_size"),
    D9D_HF_READ("rms_norm_eps"),
    D9D_HF_READ("initializer_range"),
    D9D_HF_READ("attention_dropout"),
    D9D_HF_READ("tie_word_embeddings"),
    D9D_HF_READ("rope_theta"),
    D9D_HF_READ("rope_scaling"),
    D9D_HF_READ("original_max_position_embeddings"),
    D9D_HF_READ("use_sliding_window"),
    D9D_HF_READ("sliding_window"),
    D9D_HF_READ("max_window_layers"),
    D9D_HF_READ("layer_types"),
    D9D_HF_READ("num_experts"),
    D9D_HF_READ("num_local_experts"),
    D9D_HF_READ("num_experts_per_tok"),
    D9D_HF_READ("moe_intermediate_size"),
    D9D_HF_READ("norm_topk_prob"),
    D9D_HF_READ("decoder_sparse_step"),
    D9D_HF_READ("mlp_only_layers"),
    D9D_HF_READ("num_labels"),
    D9D_HF_READ("id2label"),
    D9D_HF_ONLY("attention_bias", "[false]"),
    D9D_HF_ONLY("hidden_act", "[\"silu\"]"),
    D9D_HF_IGNORED("output_router_logits"),
    D9D_HF_IGNORED("router_aux_loss_coef"),
    D9D_HF_END,
};
const char *const d9d_qwen3_model_types[] = {"qwen3", "qwen3_moe", NULL};
static const d9d_hf_family qwen3_family = {
    .name = "qwen3", .model_types = d9d_qwen3_model_types, .fields = d9d_qwen3_fields};

/* --- the whole ---------------------------------------------------------------------------- */

static d9d_status read_vocabulary(const d9di_hf_reader *r, d9d_arena *a, d9d_qwen3_config *c)
{
    d9d_block_vocab_split *split = d9d_arena_alloc(a, sizeof(*split));

    if (split == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", r->where);
    split->name = "regular";
    D9D_TRY(d9di_hf_i64(r, "vocab_size", D9DI_HF_REQUIRED, &split->size));
    c->splits = split;
    c->n_splits = 1;
    return D9D_OK;
}

static bool is_mixture(const json_t *doc)
{
    return strcmp(json_string_value(json_object_get(doc, "model_type")), "qwen3_moe") == 0;
}

static void fill_absent(const d9di_hf_reader *r, d9d_qwen3_config *c)
{
    if (c->kv_heads == ABSENT)
        c->kv_heads = c->heads;
    /* The default of a dense model's class is 128; null, and a mixture, use hidden_size / heads. */
    if (c->head_dim == ABSENT)
        c->head_dim = r->moe || json_object_get(r->doc, "head_dim") != NULL
                          ? (c->heads > 0 ? c->hidden / c->heads : 0)
                          : 128;
}

/* Read a document whose fields have all been checked. */
static d9d_status config_read(const d9di_hf_reader *r, d9d_arena *a, d9d_qwen3_config *c)
{
    double eps;

    for (size_t i = 0; i < sizeof(number_fields) / sizeof(number_fields[0]); i++)
        D9D_TRY(read_number(r, &number_fields[i], c));
    fill_absent(r, c);
    D9D_TRY(read_vocabulary(r, a, c));
    D9D_TRY(d9di_hf_rope(r, c->max_positions, &c->rope_scaling, &c->rope_base));
    D9D_TRY(d9di_hf_f64(r, r->doc, "rms_norm_eps", 1e-6, &eps));
    D9D_TRY(d9di_hf_f64(r, r->doc, "initializer_range", 0.02, &c->init_std));
    D9D_TRY(d9di_hf_f64(r, r->doc, "attention_dropout", 0, &c->attention_dropout));
    D9D_TRY(d9di_hf_bool(r, "norm_topk_prob", &c->renormalise));
    D9D_TRY(d9di_hf_bool(r, "tie_word_embeddings", &c->tied));
    D9D_TRY(d9di_qwen3_config_head(r, c));
    c->norm_eps = (float)eps;
    /* Check the number of layers before anything is allocated for each. */
    if (c->layers > 1 << 16)
        return D9D_FAIL(D9D_ECONFIG, "%s: num_hidden_layers is %" PRId64 ", at most 65536",
                        r->where, c->layers);
    D9D_TRY(d9di_qwen3_config_window(r, a, c));
    if (r->moe)
        D9D_TRY(d9di_qwen3_config_moe_layers(r, a, c));
    return d9d_qwen3_check(c);
}

d9d_status d9d_qwen3_config_parse(const json_t *doc, const char *where, d9d_arena *a,
                                  d9d_qwen3_config *out)
{
    d9d_qwen3_config c = {0};
    json_t *read;
    d9d_status st;

    D9D_TRY(d9d_hf_family_select(&qwen3_family, doc, where, &read));
    st = config_read(&(d9di_hf_reader){read, where, is_mixture(doc)}, a, &c);
    json_decref(read);
    if (st == D9D_OK)
        *out = c;
    return st;
}

d9d_status d9d_qwen3_config_read(const char *path, d9d_arena *a, d9d_qwen3_config *out)
{
    const char *file, *beside;
    json_t *doc;
    d9d_status st;

    D9D_TRY(d9d_hf_config_locate(path, a, &file, &beside));
    D9D_TRY(d9d_hf_config_load(path, &doc));
    st = d9d_qwen3_config_parse(doc, file, a, out);
    json_decref(doc);
    return st;
}
