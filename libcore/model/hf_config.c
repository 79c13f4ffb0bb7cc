/* hf_config.c - see d9d/model/hf_config.h.  Fields are rows of tables: numbers that are read,
 * and values that must be what they are. */
#include "model/hf_fields.h"

#include <inttypes.h>
#include <string.h>

#include "d9d/base/fs.h"

enum { ABSENT = -1 };

struct number {
    const char *name, *other; /* of either generation */
    size_t offset;
    int64_t otherwise; /* value when absent, or D9DI_HF_REQUIRED */
    enum { EVERY, MIXTURE } models;
};

#define NUMBER(n, o, field, d, m)                                                                  \
    {                                                                                              \
        n, o, offsetof(d9d_qwen3_config, field), d, m                                              \
    }

static const struct number numbers[] = {
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

static d9d_status read_number(const d9di_hf *r, const struct number *n, d9d_qwen3_config *c)
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

/* --- what must be as it is built ------------------------------------------------------- */

static d9d_status check_supported(const d9di_hf *r)
{
    static const struct {
        const char *name;
        enum { FALSE_ONLY, SILU_ONLY, NULL_ONLY, ONE_ONLY } wants;
    } rows[] = {
        {"attention_bias", FALSE_ONLY},
        {"hidden_act", SILU_ONLY},
        {"quantization_config", NULL_ONLY},
        {"partial_rotary_factor", ONE_ONLY},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const json_t *v = d9di_hf_member(r->doc, rows[i].name);
        bool fine = v == NULL;

        switch (rows[i].wants) {
        case FALSE_ONLY: fine |= json_is_false(v); break;
        case ONE_ONLY: fine |= json_is_number(v) && json_number_value(v) == 1; break;
        case SILU_ONLY: fine |= json_is_string(v) && !strcmp(json_string_value(v), "silu"); break;
        case NULL_ONLY: break;
        }
        if (!fine)
            return d9di_hf_refuse(r, rows[i].name, v);
    }
    return D9D_OK;
}

/* --- the whole ---------------------------------------------------------------------------- */

static d9d_status read_vocabulary(const d9di_hf *r, d9d_arena *a, d9d_qwen3_config *c)
{
    d9d_vocab_split *split = d9d_arena_alloc(a, sizeof(*split));

    if (split == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", r->where);
    split->name = "regular";
    D9D_TRY(d9di_hf_i64(r, "vocab_size", D9DI_HF_REQUIRED, &split->size));
    c->splits = split;
    c->n_splits = 1;
    return D9D_OK;
}

static d9d_status read_type(d9di_hf *r)
{
    const json_t *v = d9di_hf_member(r->doc, "model_type");
    const char *type = json_string_value(v);

    if (type == NULL)
        return D9D_FAIL(D9D_ECONFIG, "%s: model_type is missing", r->where);
    r->moe = strcmp(type, "qwen3_moe") == 0;
    if (!r->moe && strcmp(type, "qwen3") != 0)
        return D9D_FAIL(D9D_ENOTSUP,
                        "%s: model_type: \"%.64s\" is not supported; qwen3 and qwen3_moe are",
                        r->where, type);
    return D9D_OK;
}

static void fill_absent(const d9di_hf *r, d9d_qwen3_config *c)
{
    if (c->kv_heads == ABSENT)
        c->kv_heads = c->heads;
    /* A dense model's class says 128; null, and a mixture, share hidden_size out. */
    if (c->head_dim == ABSENT)
        c->head_dim = r->moe || json_object_get(r->doc, "head_dim") != NULL
                          ? (c->heads > 0 ? c->hidden / c->heads : 0)
                          : 128;
}

d9d_status d9d_hf_config_parse(const json_t *doc, const char *where, d9d_arena *a,
                               d9d_qwen3_config *out)
{
    d9di_hf r = {doc, where, false};
    d9d_qwen3_config c = {0};
    double eps;

    D9D_TRY(read_type(&r));
    D9D_TRY(check_supported(&r));
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        D9D_TRY(read_number(&r, &numbers[i], &c));
    fill_absent(&r, &c);
    D9D_TRY(read_vocabulary(&r, a, &c));
    D9D_TRY(d9di_hf_rope(&r, &c));
    D9D_TRY(d9di_hf_f64(&r, doc, "rms_norm_eps", 1e-6, &eps));
    D9D_TRY(d9di_hf_f64(&r, doc, "initializer_range", 0.02, &c.init_std));
    D9D_TRY(d9di_hf_f64(&r, doc, "attention_dropout", 0, &c.attention_dropout));
    D9D_TRY(d9di_hf_bool(&r, "norm_topk_prob", &c.renormalise));
    D9D_TRY(d9di_hf_bool(&r, "tie_word_embeddings", &c.tied));
    D9D_TRY(d9di_hf_head(&r, &c));
    c.norm_eps = (float)eps;
    /* The number of layers is checked before anything is made for each. */
    if (c.layers > 1 << 16)
        return D9D_FAIL(D9D_ECONFIG, "%s: num_hidden_layers is %" PRId64 ", at most 65536", where,
                        c.layers);
    D9D_TRY(d9di_hf_window(&r, a, &c));
    if (r.moe)
        D9D_TRY(d9di_hf_moe_layers(&r, a, &c));
    D9D_TRY(d9d_qwen3_check(&c));
    *out = c;
    return D9D_OK;
}

/* --- files -------------------------------------------------------------------------------- */

d9d_status d9d_hf_config_place(const char *path, d9d_arena *a, const char **file,
                               const char **beside)
{
    const bool is_dir = d9d_fs_is_dir(path);
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    const bool alone = !is_dir && strcmp(name, D9D_HF_CONFIG_NAME) != 0;

    *file = is_dir ? d9d_fs_join(a, path, D9D_HF_CONFIG_NAME) : d9d_arena_strdup(a, path);
    *beside = alone           ? NULL
              : is_dir        ? d9d_arena_strdup(a, path)
              : slash == NULL ? d9d_arena_strdup(a, ".")
                              : d9d_arena_strndup(a, path, (size_t)(slash - path) + 1);
    return *file == NULL || (*beside == NULL && !alone)
               ? D9D_FAIL(D9D_ENOMEM, "%s: out of memory", path)
               : D9D_OK;
}

d9d_status d9d_hf_config_load(const char *path, json_t **out)
{
    d9d_arena a = {0};
    const char *file, *beside;
    json_t *doc = NULL;
    d9d_status st;

    D9D_TRY_OR(st, d9d_hf_config_place(path, &a, &file, &beside), out);
    D9D_TRY_OR(st, d9d_json_read(file, D9D_HF_CONFIG_MAX, &doc), out);
    if (!json_is_object(doc)) {
        st = D9D_FAIL(D9D_EFORMAT, "%s: must be an object", file);
        goto out;
    }
    *out = json_incref(doc);
out:
    json_decref(doc);
    d9d_arena_release(&a);
    return st;
}

d9d_status d9d_hf_config_read(const char *path, d9d_arena *a, d9d_qwen3_config *out)
{
    const char *file, *beside;
    json_t *doc;
    d9d_status st;

    D9D_TRY(d9d_hf_config_place(path, a, &file, &beside));
    D9D_TRY(d9d_hf_config_load(path, &doc));
    st = d9d_hf_config_parse(doc, file, a, out);
    json_decref(doc);
    return st;
}

/* --- dtypes ---------------------------------------------------------------------------------- */

static const char *dtype_field(const json_t *doc)
{
    return d9di_hf_member(doc, "dtype") != NULL ? "dtype" : "torch_dtype";
}

d9d_status d9d_hf_config_dtype(const json_t *doc, const char *where, d9d_dtype otherwise,
                               d9d_dtype *out)
{
    const json_t *v = d9di_hf_member(doc, dtype_field(doc));
    const char *word = json_string_value(v);
    int t = word == NULL ? -1 : d9d_dtype_find(word);

    if (v != NULL && t < 0)
        return D9D_FAIL(D9D_ECONFIG, "%s: %s: unknown type", where, dtype_field(doc));
    *out = v == NULL ? otherwise : (d9d_dtype)t;
    return D9D_OK;
}

d9d_status d9d_hf_config_set_dtype(json_t *doc, d9d_dtype dtype)
{
    if (json_object_set_new(doc, dtype_field(doc), json_string(d9d_dtype_word(dtype))) != 0)
        return D9D_FAIL(D9D_ENOMEM, "config.json: out of memory");
    return D9D_OK;
}
