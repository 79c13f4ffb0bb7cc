/* hf_config.c - see d9d/model/hf_config.h.  Fields are rows of tables: numbers that are read,
 * and values that must be what they are. */
#include "d9d/model/hf_config.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "d9d/base/fs.h"

struct reader {
    const json_t *doc;
    const char *where;
    bool moe;
};

/* A member that is there and not null. */
static const json_t *member(const json_t *doc, const char *name)
{
    const json_t *v = name == NULL ? NULL : json_object_get(doc, name);

    return v == NULL || json_is_null(v) ? NULL : v;
}

/* --- numbers -------------------------------------------------------------------------- */

enum { ABSENT = -1, REQUIRED = -2 };

struct number {
    const char *name, *other; /* of either generation */
    size_t offset;
    int64_t otherwise; /* value when absent, or REQUIRED */
    enum { EVERY, MIXTURE } models;
};

#define NUMBER(n, o, field, d, m)                                                                  \
    {                                                                                              \
        n, o, offsetof(d9d_qwen3_config, field), d, m                                              \
    }

static const struct number numbers[] = {
    NUMBER("hidden_size", NULL, hidden, REQUIRED, EVERY),
    NUMBER("num_hidden_layers", NULL, layers, REQUIRED, EVERY),
    NUMBER("num_attention_heads", NULL, heads, REQUIRED, EVERY),
    NUMBER("num_key_value_heads", NULL, kv_heads, ABSENT, EVERY),
    NUMBER("head_dim", NULL, head_dim, ABSENT, EVERY),
    NUMBER("intermediate_size", NULL, dense_intermediate, 0, EVERY),
    NUMBER("max_position_embeddings", NULL, max_positions, 32768, EVERY),
    NUMBER("num_experts", "num_local_experts", experts, REQUIRED, MIXTURE),
    NUMBER("num_experts_per_tok", NULL, top_k, REQUIRED, MIXTURE),
    NUMBER("moe_intermediate_size", NULL, expert_intermediate, REQUIRED, MIXTURE),
};

static d9d_status get_i64(const struct reader *r, const char *name, int64_t otherwise, int64_t *out)
{
    const json_t *v = member(r->doc, name);

    if (v == NULL && otherwise == REQUIRED)
        return D9D_FAIL(D9D_ECONFIG, "%s: %s is missing", r->where, name);
    if (v != NULL && (!json_is_integer(v) || json_integer_value(v) < 0))
        return D9D_FAIL(D9D_ECONFIG, "%s: %s must be a non-negative integer", r->where, name);
    *out = v == NULL ? otherwise : (int64_t)json_integer_value(v);
    return D9D_OK;
}

static d9d_status get_f64(const struct reader *r, const json_t *from, const char *name,
                          double otherwise, double *out)
{
    const json_t *v = member(from, name);

    if (v != NULL && (!json_is_number(v) || !isfinite(json_number_value(v))))
        return D9D_FAIL(D9D_ECONFIG, "%s: %s must be a number", r->where, name);
    *out = v == NULL ? otherwise : json_number_value(v);
    return D9D_OK;
}

static d9d_status get_bool(const struct reader *r, const char *name, bool *out)
{
    const json_t *v = member(r->doc, name);

    if (v != NULL && !json_is_boolean(v))
        return D9D_FAIL(D9D_ECONFIG, "%s: %s must be true or false", r->where, name);
    *out = v != NULL && json_is_true(v);
    return D9D_OK;
}

static d9d_status read_number(const struct reader *r, const struct number *n, d9d_qwen3_config *c)
{
    int64_t *field = (int64_t *)(void *)((char *)c + n->offset), a, b;
    bool both = member(r->doc, n->name) != NULL && member(r->doc, n->other) != NULL;
    const char *name = member(r->doc, n->other) != NULL ? n->other : n->name;

    if (n->models == MIXTURE && !r->moe) {
        *field = 0;
        return D9D_OK;
    }
    if (both) {
        D9D_TRY(get_i64(r, n->name, REQUIRED, &a));
        D9D_TRY(get_i64(r, n->other, REQUIRED, &b));
        if (a != b)
            return D9D_FAIL(D9D_ECONFIG, "%s: %s is %" PRId64 " and %s is %" PRId64, r->where,
                            n->name, a, n->other, b);
    }
    return get_i64(r, name, n->otherwise, field);
}

/* --- what must be as it is built ------------------------------------------------------- */

static d9d_status refuse(const struct reader *r, const char *field, const json_t *v)
{
    d9d_buf text = {0};
    d9d_status st = d9d_json_put(&text, v, -1);

    if (st == D9D_OK)
        st = D9D_FAIL(D9D_ENOTSUP, "%s: %s: %.64s is not supported", r->where, field, text.data);
    d9d_buf_release(&text);
    return st;
}

static d9d_status check_supported(const struct reader *r)
{
    static const struct {
        const char *name;
        enum { FALSE_ONLY, ZERO_ONLY, SILU_ONLY, NULL_ONLY, ONE_ONLY } wants;
    } rows[] = {
        {"attention_bias", FALSE_ONLY},      {"attention_dropout", ZERO_ONLY},
        {"hidden_act", SILU_ONLY},           {"quantization_config", NULL_ONLY},
        {"partial_rotary_factor", ONE_ONLY},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const json_t *v = member(r->doc, rows[i].name);
        bool fine = v == NULL;

        switch (rows[i].wants) {
        case FALSE_ONLY: fine |= json_is_false(v); break;
        case ZERO_ONLY: fine |= json_is_number(v) && json_number_value(v) == 0; break;
        case ONE_ONLY: fine |= json_is_number(v) && json_number_value(v) == 1; break;
        case SILU_ONLY: fine |= json_is_string(v) && !strcmp(json_string_value(v), "silu"); break;
        case NULL_ONLY: break;
        }
        if (!fine)
            return refuse(r, rows[i].name, v);
    }
    return D9D_OK;
}

/* --- the rest ----------------------------------------------------------------------------- */

/* A number of the scaling's object; it may be absent unless `otherwise` is NaN. */
static d9d_status get_scaling(const struct reader *r, const json_t *from, const char *name,
                              double otherwise, double *out)
{
    D9D_TRY(get_f64(r, from, name, otherwise, out));
    if (isnan(*out))
        return D9D_FAIL(D9D_ECONFIG, "%s: %s of scaled rotary embedding is missing", r->where,
                        name);
    return D9D_OK;
}

/* cosines and sines of yarn: given, of two more numbers, or by its own formula */
static d9d_status read_yarn_mscale(const struct reader *r, const json_t *from, d9d_rope_scaling *s)
{
    double over, under;

    D9D_TRY(get_f64(r, from, "attention_factor", 0, &s->mscale));
    D9D_TRY(get_f64(r, from, "mscale", 0, &over));
    D9D_TRY(get_f64(r, from, "mscale_all_dim", 0, &under));
    if (s->mscale == 0 && over != 0 && under != 0 && s->factor > 1)
        s->mscale = (0.1 * over * log(s->factor) + 1) / (0.1 * under * log(s->factor) + 1);
    return D9D_OK;
}

static d9d_status read_linear(const struct reader *r, const json_t *from, d9d_rope_scaling *s)
{
    s->kind = D9D_ROPE_LINEAR;
    return get_scaling(r, from, "factor", NAN, &s->factor);
}

static d9d_status read_yarn(const struct reader *r, const json_t *from, d9d_rope_scaling *s)
{
    const json_t *whole = member(from, "truncate");

    s->kind = D9D_ROPE_YARN;
    s->whole = whole == NULL || json_is_true(whole);
    D9D_TRY(get_scaling(r, from, "factor", NAN, &s->factor));
    D9D_TRY(get_scaling(r, from, "beta_fast", 32, &s->fast));
    D9D_TRY(get_scaling(r, from, "beta_slow", 1, &s->slow));
    return read_yarn_mscale(r, from, s);
}

static d9d_status read_llama3(const struct reader *r, const json_t *from, d9d_rope_scaling *s)
{
    s->kind = D9D_ROPE_LLAMA3;
    D9D_TRY(get_scaling(r, from, "factor", NAN, &s->factor));
    D9D_TRY(get_scaling(r, from, "high_freq_factor", NAN, &s->fast));
    return get_scaling(r, from, "low_freq_factor", NAN, &s->slow);
}

static d9d_status read_plain(const struct reader *r, const json_t *from, d9d_rope_scaling *s)
{
    (void)r, (void)from, (void)s;
    return D9D_OK;
}

/* Rotary embedding for longer rows, of an object that has its type under either name. */
static d9d_status read_scaling(const struct reader *r, const char *field, d9d_qwen3_config *c)
{
    static const struct {
        const char *type;
        d9d_status (*read)(const struct reader *r, const json_t *from, d9d_rope_scaling *s);
    } types[] = {{"default", read_plain},
                 {"linear", read_linear},
                 {"yarn", read_yarn},
                 {"llama3", read_llama3}};
    const json_t *from = member(r->doc, field), *type = member(from, "rope_type");

    if (from == NULL)
        return D9D_OK;
    if (!json_is_object(from))
        return refuse(r, field, from);
    type = type != NULL ? type : member(from, "type");
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (type == NULL ||
            (json_is_string(type) && !strcmp(json_string_value(type), types[i].type)))
            return types[i].read(r, from, &c->rope_scaling);
    return refuse(r, field, type);
}

/* The positions that the model was trained on: of the scaling, or beside it, or all there are. */
static d9d_status read_original(const struct reader *r, const char *field, d9d_qwen3_config *c)
{
    static const char name[] = "original_max_position_embeddings";
    double *out = &c->rope_scaling.original;

    D9D_TRY(get_f64(r, r->doc, name, 0, out));
    if (*out == 0)
        D9D_TRY(get_f64(r, member(r->doc, field), name, (double)c->max_positions, out));
    return D9D_OK;
}

static bool scalings_equal(const d9d_rope_scaling *a, const d9d_rope_scaling *b)
{
    return a->kind == b->kind && a->factor == b->factor && a->original == b->original &&
           a->fast == b->fast && a->slow == b->slow && a->whole == b->whole &&
           a->mscale == b->mscale;
}

/* rope_scaling of the one generation, or rope_parameters of the other; not both different. */
static d9d_status read_scalings(const struct reader *r, d9d_qwen3_config *c)
{
    static const char *const fields[] = {"rope_scaling", "rope_parameters"};

    for (size_t i = 0; i < 2; i++) {
        d9d_qwen3_config one = {.max_positions = c->max_positions};

        D9D_TRY(read_scaling(r, fields[i], &one));
        if (one.rope_scaling.kind == D9D_ROPE_PLAIN)
            continue;
        if (one.rope_scaling.kind != D9D_ROPE_LINEAR)
            D9D_TRY(read_original(r, fields[i], &one));
        if (c->rope_scaling.kind != D9D_ROPE_PLAIN &&
            !scalings_equal(&c->rope_scaling, &one.rope_scaling))
            return D9D_FAIL(D9D_ECONFIG, "%s: rope_scaling and rope_parameters are not the same",
                            r->where);
        c->rope_scaling = one.rope_scaling;
    }
    return D9D_OK;
}

static d9d_status read_rope(const struct reader *r, d9d_qwen3_config *c)
{
    const json_t *params = member(r->doc, "rope_parameters");
    bool old = member(r->doc, "rope_theta") != NULL, new = member(params, "rope_theta") != NULL;
    double other;

    D9D_TRY(read_scalings(r, c));
    D9D_TRY(get_f64(r, new ? params : r->doc, "rope_theta", 10000.0, &c->rope_base));
    if (!old || !new)
        return D9D_OK;
    D9D_TRY(get_f64(r, r->doc, "rope_theta", 0, &other));
    if (other != c->rope_base)
        return D9D_FAIL(D9D_ECONFIG, "%s: rope_theta is %g and rope_parameters.rope_theta is %g",
                        r->where, other, c->rope_base);
    return D9D_OK;
}

/* Layer types by name, or those behind the first max_window_layers. */
static d9d_status read_windowed(const struct reader *r, int64_t layers, int64_t behind,
                                bool *windowed)
{
    static const char *const words[] = {"full_attention", "sliding_attention"};
    const json_t *types = member(r->doc, "layer_types");

    if (types != NULL && (int64_t)json_array_size(types) != layers)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: layer_types has %zu layers, num_hidden_layers is %" PRId64, r->where,
                        json_array_size(types), layers);
    for (int64_t l = 0; l < layers; l++) {
        const json_t *v = json_array_get(types, (size_t)l);
        const char *word = json_is_string(v) ? json_string_value(v) : "";

        windowed[l] = types != NULL ? strcmp(word, words[true]) == 0 : l >= behind;
        if (types != NULL && !windowed[l] && strcmp(word, words[false]) != 0)
            return refuse(r, "layer_types", v);
    }
    return D9D_OK;
}

/* As transformers 5 has it: a mixture's window is in every layer, whatever its types. */
static d9d_status read_window(const struct reader *r, d9d_arena *a, d9d_qwen3_config *c)
{
    bool used, *windowed = d9d_arena_alloc(a, (size_t)c->layers), any = false;
    int64_t behind;

    if (windowed == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", r->where);
    D9D_TRY(get_bool(r, "use_sliding_window", &used));
    D9D_TRY(get_i64(r, "sliding_window", json_object_get(r->doc, "sliding_window") ? 0 : 4096,
                    &c->window));
    D9D_TRY(get_i64(r, "max_window_layers", 28, &behind));
    if (used && c->window == 0 && member(r->doc, "sliding_window") != NULL)
        return refuse(r, "sliding_window", member(r->doc, "sliding_window"));
    c->window = used ? c->window : 0;
    if (c->window > 0 && r->moe)
        return D9D_OK;
    D9D_TRY(read_windowed(r, c->layers, c->window > 0 ? behind : c->layers, windowed));
    for (int64_t l = 0; l < c->layers; l++)
        any |= windowed[l];
    if (any && c->window == 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: layer_types has sliding_attention, and no sliding_window is in use",
                        r->where);
    c->windowed = any ? windowed : NULL;
    c->window = any ? c->window : 0;
    return D9D_OK;
}

/* Every decoder_sparse_step-th layer is a mixture, unless mlp_only_layers lists it. */
static d9d_status read_moe_layers(const struct reader *r, d9d_arena *a, d9d_qwen3_config *c)
{
    const json_t *dense = member(r->doc, "mlp_only_layers");
    int64_t every;
    bool *moe;

    D9D_TRY(get_i64(r, "decoder_sparse_step", 1, &every));
    if (every == 0)
        return D9D_FAIL(D9D_ECONFIG, "%s: decoder_sparse_step must be at least 1", r->where);
    if (dense != NULL && !json_is_array(dense))
        return D9D_FAIL(D9D_ECONFIG, "%s: mlp_only_layers must be a list", r->where);
    moe = d9d_arena_alloc(a, (size_t)c->layers);
    if (moe == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", r->where);
    for (int64_t l = 0; l < c->layers; l++)
        moe[l] = (l + 1) % every == 0;
    for (size_t i = 0; i < json_array_size(dense); i++) {
        const json_t *v = json_array_get(dense, i);

        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= c->layers)
            return D9D_FAIL(D9D_ECONFIG, "%s: mlp_only_layers[%zu] is not a layer of 0..%" PRId64,
                            r->where, i, c->layers - 1);
        moe[json_integer_value(v)] = false;
    }
    c->moe_layer = moe;
    return D9D_OK;
}

static d9d_status read_vocabulary(const struct reader *r, d9d_arena *a, d9d_qwen3_config *c)
{
    d9d_vocab_split *split = d9d_arena_alloc(a, sizeof(*split));

    if (split == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", r->where);
    split->name = "regular";
    D9D_TRY(get_i64(r, "vocab_size", REQUIRED, &split->size));
    c->splits = split;
    c->n_splits = 1;
    return D9D_OK;
}

/* --- the head ------------------------------------------------------------------------------ */

/* Classes of transformers by their ends: trainers put words before them. */
static const struct {
    const char *end;
    d9d_head_kind head;
} classes[] = {
    {"ForCausalLM", D9D_HEAD_CAUSAL_LM},
    {"ForSequenceClassification", D9D_HEAD_CLASSIFICATION},
    {"Qwen3Model", D9D_HEAD_EMBEDDING},
    {"Qwen3MoeModel", D9D_HEAD_EMBEDDING},
};
enum { N_CLASSES = sizeof(classes) / sizeof(classes[0]) };

static d9d_status head_of_class(const struct reader *r, d9d_qwen3_config *c)
{
    const json_t *list = member(r->doc, "architectures"), *first = json_array_get(list, 0);
    const char *name = json_string_value(first);

    c->head_open = list == NULL || (json_is_array(list) && first == NULL);
    if (c->head_open)
        return D9D_OK;
    for (size_t i = 0; i < N_CLASSES && name != NULL; i++) {
        size_t n = strlen(name), k = strlen(classes[i].end);

        if (n >= k && strcmp(name + n - k, classes[i].end) == 0) {
            c->head = classes[i].head;
            return D9D_OK;
        }
    }
    return refuse(r, "architectures", list);
}

/* Routers that HuggingFace's format cannot say; rates and coefficients are no part of a model. */
static d9d_status router_of_mark(const struct reader *r, d9d_router *out)
{
    const json_t *mark = json_object_get(r->doc, "d9d");
    const struct reader router = {member(mark, "router"), r->where, r->moe};
    const json_t *score = member(router.doc, "score");
    const char *word = json_string_value(score);

    if (router.doc == NULL)
        return D9D_OK;
    if (score != NULL && (word == NULL || strcmp(word, "sigmoid") != 0))
        return refuse(&router, "d9d.router.score", score);
    out->score = score != NULL ? D9D_SCORE_SIGMOID : D9D_SCORE_SOFTMAX;
    D9D_TRY(get_i64(&router, "groups", 1, &out->groups));
    D9D_TRY(get_i64(&router, "top_groups", 1, &out->top_groups));
    D9D_TRY(get_f64(&router, router.doc, "scale", 1, &out->scale));
    return get_bool(&router, D9D_ROUTER_BIAS, &out->expert_bias);
}

/* What a directory of ours says of itself; it wins over the class. */
static d9d_status head_of_mark(const struct reader *r, d9d_qwen3_config *c)
{
    const struct reader mark = {json_object_get(r->doc, "d9d"), r->where, r->moe};
    const json_t *head = member(mark.doc, "head");
    const char *word = json_string_value(head);

    D9D_TRY(get_i64(&mark, "embedding_dim", 0, &c->embedding_dim));
    D9D_TRY(get_bool(&mark, "prefixed", &c->prefixed));
    for (int h = 0; word != NULL && h < D9D_HEAD_COUNT; h++)
        if (strcmp(word, d9d_head_word((d9d_head_kind)h)) == 0) {
            c->head = (d9d_head_kind)h;
            c->head_open = false;
            return D9D_OK;
        }
    return head == NULL ? D9D_OK : refuse(&mark, "d9d.head", head);
}

/* Two labels where nothing is said, as in transformers. */
static d9d_status read_labels(const struct reader *r, d9d_qwen3_config *c)
{
    const json_t *names = member(r->doc, "id2label");
    int64_t n;

    if (names != NULL && !json_is_object(names))
        return D9D_FAIL(D9D_ECONFIG, "%s: id2label must be an object", r->where);
    n = names != NULL ? (int64_t)json_object_size(names) : 2;
    D9D_TRY(get_i64(r, "num_labels", n, &c->labels));
    if (names != NULL && c->labels != n)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: num_labels is %" PRId64 " and id2label has %" PRId64 " labels",
                        r->where, c->labels, n);
    return D9D_OK;
}

static d9d_status read_head(const struct reader *r, d9d_qwen3_config *c)
{
    D9D_TRY(head_of_class(r, c));
    D9D_TRY(head_of_mark(r, c));
    D9D_TRY(router_of_mark(r, &c->router));
    return read_labels(r, c);
}

static d9d_status read_type(struct reader *r)
{
    const json_t *v = member(r->doc, "model_type");
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

static void fill_absent(const struct reader *r, d9d_qwen3_config *c)
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
    struct reader r = {doc, where, false};
    d9d_qwen3_config c = {0};
    double eps;

    D9D_TRY(read_type(&r));
    D9D_TRY(check_supported(&r));
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        D9D_TRY(read_number(&r, &numbers[i], &c));
    fill_absent(&r, &c);
    D9D_TRY(read_vocabulary(&r, a, &c));
    D9D_TRY(read_rope(&r, &c));
    D9D_TRY(get_f64(&r, doc, "rms_norm_eps", 1e-6, &eps));
    D9D_TRY(get_f64(&r, doc, "initializer_range", 0.02, &c.init_std));
    D9D_TRY(get_bool(&r, "norm_topk_prob", &c.renormalise));
    D9D_TRY(get_bool(&r, "tie_word_embeddings", &c.tied));
    D9D_TRY(read_head(&r, &c));
    c.norm_eps = (float)eps;
    /* The number of layers is checked before anything is made for each. */
    if (c.layers > 1 << 16)
        return D9D_FAIL(D9D_ECONFIG, "%s: num_hidden_layers is %" PRId64 ", at most 65536", where,
                        c.layers);
    D9D_TRY(read_window(&r, a, &c));
    if (r.moe)
        D9D_TRY(read_moe_layers(&r, a, &c));
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
    return member(doc, "dtype") != NULL ? "dtype" : "torch_dtype";
}

d9d_status d9d_hf_config_dtype(const json_t *doc, const char *where, d9d_dtype otherwise,
                               d9d_dtype *out)
{
    const json_t *v = member(doc, dtype_field(doc));
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

/* --- a new document -------------------------------------------------------------------------- */

static d9d_status check_sayable(const d9d_qwen3_config *c)
{
    const char *what =
        c->shared_intermediate > 0      ? "a shared expert"
        : c->n_splits != 1              ? "a vocabulary of several splits"
        : c->rope_interleaved           ? "interleaved RoPE"
        : d9d_router_is_own(&c->router) ? "routers of another kind than a softmax's best"
        : c->head == D9D_HEAD_EMBEDDING && c->embedding_dim > 0 ? "a projection of embeddings"
                                                                : NULL;

    if (what == NULL)
        return D9D_OK;
    return D9D_FAIL(D9D_ENOTSUP, "config.json: Qwen3 in HuggingFace's format cannot have %s", what);
}

static json_t *dense_layers(const d9d_qwen3_config *c)
{
    json_t *list = json_array();

    for (int64_t l = 0; l < c->layers; l++)
        if (!d9d_qwen3_is_moe(c, l))
            (void)json_array_append_new(list, json_integer(l));
    return list;
}

/* The smallest double that prints like the float: 1e-06, not 9.99999997e-07. */
static double short_double(float f)
{
    char text[32];

    (void)snprintf(text, sizeof(text), "%.7g", (double)f);
    return strtof(text, NULL) == f ? strtod(text, NULL) : (double)f;
}

/* Both ways between numbers and names of labels, as transformers writes them. */
static json_t *labels_made(int64_t n)
{
    json_t *names = json_object(), *ids = json_object();

    for (int64_t i = 0; i < n; i++) {
        char number[24], name[32];

        (void)snprintf(number, sizeof(number), "%" PRId64, i);
        (void)snprintf(name, sizeof(name), "LABEL_%" PRId64, i);
        (void)json_object_set_new(names, number, json_string(name));
        (void)json_object_set_new(ids, name, json_integer(i));
    }
    return json_pack("{s:o, s:o}", "id2label", names, "label2id", ids);
}

/* `more` is released. */
static json_t *joined(json_t *doc, json_t *more)
{
    bool fine = doc != NULL && more != NULL && json_object_update(doc, more) == 0;

    json_decref(more);
    if (!fine)
        json_decref(doc);
    return fine ? doc : NULL;
}

static const char *class_of(const d9d_qwen3_config *c)
{
    static const char *const names[D9D_HEAD_COUNT][2] = {
        [D9D_HEAD_CAUSAL_LM] = {"Qwen3ForCausalLM", "Qwen3MoeForCausalLM"},
        [D9D_HEAD_CLASSIFICATION] = {"Qwen3ForSequenceClassification",
                                     "Qwen3MoeForSequenceClassification"},
        [D9D_HEAD_EMBEDDING] = {"Qwen3Model", "Qwen3MoeModel"},
    };

    return names[c->head][c->experts > 0];
}

/* The object of scaled rotary embedding; null without. */
static json_t *scaling_made(const d9d_rope_scaling *s)
{
    json_t *o =
        json_pack("{s:s, s:f}", "rope_type", d9d_rope_kind_word(s->kind), "factor", s->factor);
    const bool yarn = s->kind == D9D_ROPE_YARN;

    if (s->kind == D9D_ROPE_PLAIN || s->kind == D9D_ROPE_NTK) { /* ntk is another base */
        json_decref(o);
        return json_null();
    }
    if (s->kind == D9D_ROPE_LINEAR)
        return o;
    o = joined(o, json_pack("{s:I, s:f, s:f}", "original_max_position_embeddings",
                            (json_int_t)s->original, yarn ? "beta_fast" : "high_freq_factor",
                            s->fast, yarn ? "beta_slow" : "low_freq_factor", s->slow));
    if (yarn && !s->whole)
        o = joined(o, json_pack("{s:b}", "truncate", 0));
    return yarn && s->mscale > 0 ? joined(o, json_pack("{s:f}", "attention_factor", s->mscale)) : o;
}

/* Of ntk the one that it stands for. */
static double base_made(const d9d_qwen3_config *c)
{
    const double d = (double)c->head_dim;

    return c->rope_scaling.kind == D9D_ROPE_NTK
               ? c->rope_base * pow(c->rope_scaling.factor, d / (d - 2))
               : c->rope_base;
}

/* What says of a dense model which layers have the window; of a mixture all have. */
static json_t *window_made(const d9d_qwen3_config *c)
{
    json_t *types = json_array();

    for (int64_t l = 0; l < c->layers; l++)
        (void)json_array_append_new(
            types,
            json_string(d9d_qwen3_window(c, l) > 0 ? "sliding_attention" : "full_attention"));
    return json_pack("{s:b, s:I, s:o}", "use_sliding_window", 1, "sliding_window",
                     (json_int_t)c->window, "layer_types", types);
}

d9d_status d9d_hf_config_make(const d9d_qwen3_config *c, d9d_dtype dtype, json_t **out)
{
    bool moe = c->experts > 0;
    json_t *doc;

    D9D_TRY(check_sayable(c));
    doc = json_pack(
        "{s:[s], s:b, s:f, s:I, s:s, s:I, s:f, s:I, s:I, s:s, s:I, s:I, s:I, s:f, s:o, "
        "s:f, s:b, s:s, s:b, s:I}",
        "architectures", class_of(c), "attention_bias", 0, "attention_dropout", 0.0, "head_dim",
        (json_int_t)c->head_dim, "hidden_act", "silu", "hidden_size", (json_int_t)c->hidden,
        "initializer_range", c->init_std > 0 ? c->init_std : 0.02, "intermediate_size",
        (json_int_t)(c->dense_intermediate > 0 ? c->dense_intermediate : c->expert_intermediate),
        "max_position_embeddings", (json_int_t)c->max_positions, "model_type",
        moe ? "qwen3_moe" : "qwen3", "num_attention_heads", (json_int_t)c->heads,
        "num_hidden_layers", (json_int_t)c->layers, "num_key_value_heads", (json_int_t)c->kv_heads,
        "rms_norm_eps", short_double(c->norm_eps), "rope_scaling", scaling_made(&c->rope_scaling),
        "rope_theta", base_made(c), "tie_word_embeddings", c->tied, "torch_dtype",
        d9d_dtype_word(dtype), "use_sliding_window", 0, "vocab_size",
        (json_int_t)d9d_qwen3_vocab(c));
    if (moe)
        doc = joined(doc, json_pack("{s:I, s:o, s:I, s:b, s:I, s:I}", "decoder_sparse_step",
                                    (json_int_t)1, "mlp_only_layers", dense_layers(c),
                                    "moe_intermediate_size", (json_int_t)c->expert_intermediate,
                                    "norm_topk_prob", c->renormalise, "num_experts",
                                    (json_int_t)c->experts, "num_experts_per_tok",
                                    (json_int_t)c->top_k));
    if (c->head == D9D_HEAD_CLASSIFICATION)
        doc = joined(doc, labels_made(c->labels));
    if (c->window > 0)
        doc = joined(doc, window_made(c));
    if (doc == NULL)
        return D9D_FAIL(D9D_ENOMEM, "config.json: out of memory");
    *out = doc;
    return D9D_OK;
}

/* The number of labels that a document of a classifier says; -1: it is none. */
static int64_t labels_said(const json_t *doc, const d9d_qwen3_config *c)
{
    const struct reader r = {doc, D9D_HF_CONFIG_NAME, c->experts > 0};
    d9d_qwen3_config said = {0};

    if (read_head(&r, &said) != D9D_OK || said.head != D9D_HEAD_CLASSIFICATION)
        return -1;
    return said.labels;
}

d9d_status d9d_hf_config_set_head(json_t *doc, const d9d_qwen3_config *c)
{
    const bool labelled = c->head == D9D_HEAD_CLASSIFICATION;
    json_t *more;
    int bad;

    if ((c->embedding_dim > 0 && c->head == D9D_HEAD_EMBEDDING) || d9d_router_is_own(&c->router))
        D9D_TRY(d9d_hf_config_mark(doc, c, d9d_hf_config_was_fused(doc)));
    D9D_TRY(check_sayable(c));
    if (!c->new_head || (labelled && labels_said(doc, c) == c->labels))
        return D9D_OK;
    more = labelled ? labels_made(c->labels) : json_object();
    if (labelled)
        (void)json_object_del(doc, "num_labels");
    bad = json_object_set_new(doc, "architectures", json_pack("[s]", class_of(c)));
    bad |= json_object_update(doc, more);
    json_decref(more);
    return bad == 0 ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "config.json: out of memory");
}
