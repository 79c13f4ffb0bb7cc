/* adapter_read.c - reads an adapter directory of peft.  See d9d/model/lora/adapters.h.
 *
 * The model determines which tensors may be present; any other tensor is refused.  peft has the
 * factors of fused experts in one matrix each (e expert, k column of rank r):
 *
 *     A [r E, in]: row e r + k        B [out, r E]: column k E + e
 *
 * and a fused gate and up share one A.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <math.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "d9d/base/fs.h"
#include "d9d/base/json.h"
#include "model/lora/adapter_private.h"

enum { CONFIG_BYTES = 16 << 20, MATCH_LIMIT = 100000 };

typedef struct adapter_reader {
    const d9d_model_matrices *matrices;
    const char *config_path;
    d9d_adapters *ad;
    json_t *doc;
    double alpha; /* for modules that no pattern matches */
    bool by_root; /* the scale is alpha / sqrt(r) */
    d9d_safetensors_file *file;
    bool *taken; /* which of its tensors were read */
    size_t used;
} adapter_reader;

/* --- adapter_config.json --------------------------------------------------------------------- */

/* Refuse a field that is not false, null, empty or absent: it changes weights in another way. */
static d9d_status require_unset(const adapter_reader *r, const char *key)
{
    const json_t *v = json_object_get(r->doc, key);

    if (v == NULL || json_is_null(v) || json_is_false(v) ||
        ((json_is_array(v) || json_is_object(v)) && json_array_size(v) + json_object_size(v) == 0))
        return D9D_OK;
    return D9D_FAIL(D9D_ENOTSUP, "%s: %s is set; adapters of the form B A alone are read",
                    r->config_path, key);
}

/* Refuse initialisations that take the factors from the matrix, so that they belong to the
 * remainder of the matrix.  peft records them until it has converted the adapter; its other
 * initialisations leave the matrix unchanged. */
static d9d_status init_check(const adapter_reader *r)
{
    static const char *const taking[] = {"pissa", "olora", "corda", "loftq", "lora_ga", NULL};
    const char *start = json_string_value(json_object_get(r->doc, "init_lora_weights"));

    for (size_t i = 0; start != NULL && taking[i] != NULL; i++)
        if (strncasecmp(start, taking[i], strlen(taking[i])) == 0)
            return D9D_FAIL(D9D_ENOTSUP,
                            "%s: init_lora_weights is \"%s\", which changes the base's weights; "
                            "peft converts such adapters with "
                            "path_initial_model_for_weight_conversion",
                            r->config_path, start);
    return D9D_OK;
}

static d9d_status config_check(adapter_reader *r)
{
    static const char *const others[] = {"use_dora",
                                         "use_qalora",
                                         "use_bdlora",
                                         "fan_in_fan_out",
                                         "lora_bias",
                                         "layer_replication",
                                         "megatron_config",
                                         "arrow_config",
                                         "kasa_config",
                                         "monteclora_config",
                                         "alora_invocation_tokens",
                                         "trainable_token_indices",
                                         NULL};
    const char *type;
    const json_t *bias = json_object_get(r->doc, "bias");

    D9D_TRY(d9d_json_get_str(r->doc, r->config_path, "peft_type", &type));
    if (strcmp(type, "LORA") != 0)
        return D9D_FAIL(D9D_ENOTSUP, "%s: peft_type is \"%s\"; \"LORA\" is read", r->config_path,
                        type);
    for (size_t i = 0; others[i] != NULL; i++)
        D9D_TRY(require_unset(r, others[i]));
    if (json_is_string(bias) && strcmp(json_string_value(bias), "none") != 0)
        return D9D_FAIL(D9D_ENOTSUP, "%s: bias is \"%s\"; only \"none\" is read", r->config_path,
                        json_string_value(bias));
    D9D_TRY(init_check(r));
    D9D_TRY(d9d_json_get_f64(r->doc, r->config_path, "lora_alpha", &r->alpha));
    r->by_root = json_is_true(json_object_get(r->doc, "use_rslora"));
    return D9D_OK;
}

/* Does peft's pattern match a whole name?  `before` is a regular expression that is put before it.
 */
static d9d_status pattern_matches(const adapter_reader *r, const char *field, const char *before,
                                  const char *pattern, const char *module, bool *out)
{
    pcre2_match_context *limits = pcre2_match_context_create(NULL);
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    d9d_buf text = {0};
    pcre2_code *code = NULL;
    d9d_status st = d9d_buf_printf(&text, "%s(%s)", before, pattern);
    PCRE2_SIZE at;
    int rc;

    if (st == D9D_OK && limits != NULL && data != NULL) {
        pcre2_set_match_limit(limits, MATCH_LIMIT);
        code = pcre2_compile((PCRE2_SPTR)text.data, text.len, PCRE2_ANCHORED | PCRE2_ENDANCHORED,
                             &rc, &at, NULL);
    }
    rc = code == NULL ? PCRE2_ERROR_INTERNAL
                      : pcre2_match(code, (PCRE2_SPTR)module, strlen(module), 0, 0, data, limits);
    *out = rc >= 0;
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH)
        st = D9D_FAIL(D9D_EFORMAT, "%s: %s: \"%.200s\" cannot be matched", r->config_path, field,
                      pattern);
    pcre2_code_free(code);
    pcre2_match_data_free(data);
    pcre2_match_context_free(limits);
    d9d_buf_release(&text);
    return st;
}

/* The value of the first pattern of a field that matches the module; else *out is unchanged. */
static d9d_status pattern_value(const adapter_reader *r, const char *field, const char *module,
                                double *value)
{
    const char *pattern;
    json_t *v;

    json_object_foreach(json_object_get(r->doc, field), pattern, v)
    {
        bool match = false;

        D9D_TRY(pattern_matches(r, field, "(.*\\.)?", pattern, module, &match));
        if (!match)
            continue;
        if (!json_is_number(v))
            return D9D_FAIL(D9D_EFORMAT, "%s: %s: \"%.200s\" is no number", r->config_path, field,
                            pattern);
        *value = json_number_value(v);
        break;
    }
    return D9D_OK;
}

/* alpha such that alpha / r is the scale of the module's adapter.  Its rank must be the configured
 * one. */
static d9d_status alpha_of(const adapter_reader *r, const char *module, int64_t rank, double *out)
{
    double alpha = r->alpha, said = (double)rank;

    if (json_object_get(r->doc, "r") != NULL)
        D9D_TRY(d9d_json_get_f64(r->doc, r->config_path, "r", &said));
    D9D_TRY(pattern_value(r, "rank_pattern", module, &said));
    if (said != (double)rank)
        return D9D_FAIL(D9D_EMISMATCH, "%s: the adapter of %s has rank %lld, and %s says %g",
                        d9d_safetensors_path(r->file), module, (long long)rank, r->config_path,
                        said);
    D9D_TRY(pattern_value(r, "alpha_pattern", module, &alpha));
    *out = r->by_root ? alpha * sqrt((double)rank) : alpha;
    return D9D_OK;
}

/* --- tensors ---------------------------------------------------------------------------------- */

static const d9d_safetensors_tensor *factor_find(const adapter_reader *r, const char *module,
                                                 char which)
{
    char name[2 * D9DI_HF_MODULE_MAX];

    (void)snprintf(name, sizeof(name), D9DI_ADAPTER_PREFIX "%s.lora_%c.weight", module, which);
    return d9d_safetensors_find(r->file, name);
}

static const d9d_safetensors_tensor *file_at(void *self, size_t i)
{
    return d9d_safetensors_at(self, i);
}

static d9d_status file_read(void *self, size_t i, uint64_t at, void *dst, uint64_t n)
{
    return d9d_safetensors_read(self, d9d_safetensors_at(self, i), at, dst, n);
}

/* Read a whole tensor and mark it as read. */
static d9d_status tensor_read_f32(adapter_reader *r, const d9d_safetensors_tensor *t, float *out)
{
    const d9d_tensor_source src = {
        .self = r->file, .n = d9d_safetensors_count(r->file), .at = file_at, .read = file_read};
    size_t i = 0;

    while (d9d_safetensors_at(r->file, i) != t)
        i++;
    r->used += !r->taken[i];
    r->taken[i] = true;
    return d9di_adapters_read_f32(&src, i, t->shape[0] * t->shape[1], out);
}

/* Both factors of a module: [r, in] and [out, r], r a multiple of `experts`.  `a` NULL: none. */
typedef struct factor_pair {
    const d9d_safetensors_tensor *a, *b;
} factor_pair;

static d9d_status factor_pair_find(const adapter_reader *r, const char *module, factor_pair *out)
{
    const factor_pair p = {factor_find(r, module, 'A'), factor_find(r, module, 'B')};
    const d9d_safetensors_tensor *one = p.a != NULL ? p.a : p.b;

    *out = p;
    if (one == NULL)
        return D9D_OK;
    if (p.a == NULL || p.b == NULL)
        return D9D_FAIL(D9D_EMISMATCH, "%s: has one factor of %s alone",
                        d9d_safetensors_path(r->file), module);
    if (p.a->ndim != 2 || p.b->ndim != 2 || p.a->shape[0] != p.b->shape[1] || p.a->shape[0] < 1 ||
        p.a->dtype != p.b->dtype)
        return D9D_FAIL(D9D_EMISMATCH, "%s: the factors of %s do not fit each other",
                        d9d_safetensors_path(r->file), module);
    return D9D_OK;
}

static d9d_status pair_check_shape(const adapter_reader *r, const factor_pair *p,
                                   const char *module, int64_t in, int64_t out)
{
    if (p->a->shape[1] == in && p->b->shape[0] == out)
        return D9D_OK;
    return D9D_FAIL(D9D_EMISMATCH,
                    "%s: the factors of %s are for a matrix [%lld, %lld], the model's is [%lld, "
                    "%lld]",
                    d9d_safetensors_path(r->file), module, (long long)p->b->shape[0],
                    (long long)p->a->shape[1], (long long)out, (long long)in);
}

/* Add an adapter for a matrix. */
static d9d_status factors_add(adapter_reader *r, const d9d_model_matrix *m, const factor_pair *p,
                              int64_t rank, double alpha, d9di_adapters_factors **out)
{
    const d9di_adapters_factors f = {.name = m->name,
                                     .stack = m->experts > 0,
                                     .experts = m->experts > 0 ? m->experts : 1,
                                     .in = m->in,
                                     .out = m->out,
                                     .r = rank,
                                     .alpha = alpha,
                                     .dtype = p->a->dtype};

    return d9di_adapters_add(r->ad, &f, out);
}

/* Read one module, or those of all experts. */
static d9d_status modules_read(adapter_reader *r, const d9d_model_matrix *m)
{
    d9di_adapters_factors *f = NULL;

    for (int64_t e = 0; e < (m->experts > 0 ? m->experts : 1); e++) {
        char module[D9DI_HF_MODULE_MAX];
        double alpha;
        factor_pair p;

        d9di_hf_module(m, e, module);
        D9D_TRY(factor_pair_find(r, module, &p));
        if (p.a == NULL && e == 0)
            return D9D_OK;
        if (p.a == NULL)
            return D9D_FAIL(D9D_EMISMATCH,
                            "%s: has no adapter of %s, but of another expert of the layer",
                            d9d_safetensors_path(r->file), module);
        D9D_TRY(pair_check_shape(r, &p, module, m->in, m->out));
        D9D_TRY(alpha_of(r, module, p.a->shape[0], &alpha));
        if (f == NULL)
            D9D_TRY(factors_add(r, m, &p, p.a->shape[0], alpha, &f));
        if (f->r != p.a->shape[0] || f->alpha != alpha || f->dtype != p.a->dtype)
            return D9D_FAIL(D9D_ENOTSUP,
                            "%s: the adapter of %s differs in rank, alpha or type from the other "
                            "experts of the layer",
                            d9d_safetensors_path(r->file), module);
        D9D_TRY(tensor_read_f32(r, p.a, f->a + e * f->r * f->in));
        D9D_TRY(tensor_read_f32(r, p.b, f->b + e * f->out * f->r));
    }
    return D9D_OK;
}

/* --- fused experts --------------------------------------------------------------------------- */

/* Unpack rows [first, first + f->out) of peft's fused B. */
static void fused_unpack(d9di_adapters_factors *f, const float *a, const float *b, int64_t first)
{
    const int64_t E = f->experts, R = f->r;

    memcpy(f->a, a, (size_t)(E * R * f->in) * sizeof(*a));
    for (int64_t e = 0; e < E; e++)
        for (int64_t i = 0; i < f->out; i++)
            for (int64_t k = 0; k < R; k++)
                f->b[(e * f->out + i) * R + k] = b[(first + i) * R * E + k * E + e];
}

static d9d_status fused_read(adapter_reader *r, const d9d_model_matrix *m, const factor_pair *p,
                             double alpha)
{
    float *a = malloc((size_t)(p->a->shape[0] * p->a->shape[1]) * sizeof(*a) + 1);
    float *b = malloc((size_t)(p->b->shape[0] * p->b->shape[1]) * sizeof(*b) + 1);
    d9di_adapters_factors *f = NULL;
    d9d_status st = factors_add(r, m, p, p->a->shape[0] / m->experts, alpha, &f);

    if (st == D9D_OK && (a == NULL || b == NULL))
        st =
            D9D_FAIL(D9D_ENOMEM, "%s: the factors of fused experts", d9d_safetensors_path(r->file));
    if (st == D9D_OK)
        st = tensor_read_f32(r, p->a, a);
    if (st == D9D_OK)
        st = tensor_read_f32(r, p->b, b);
    if (st == D9D_OK)
        fused_unpack(f, a, b, m->fused_row);
    free(a);
    free(b);
    return st;
}

/* The shape tells which fused tensor an adapter of "experts" is for: peft nests them. */
static d9d_status fused_visit(adapter_reader *r, const d9d_model_matrix *m)
{
    static const char *const nested[] = {"", ".base_layer"};
    char experts[D9DI_HF_MODULE_MAX];

    for (int i = 0; i < 2; i++) {
        double alpha;
        factor_pair p;

        (void)snprintf(experts, sizeof(experts), "%.*s%s", (int)(strrchr(m->fused, '.') - m->fused),
                       m->fused, nested[i]);
        D9D_TRY(factor_pair_find(r, experts, &p));
        if (p.a == NULL || p.a->shape[1] != m->in || p.b->shape[0] != m->fused_rows ||
            p.a->shape[0] % m->experts != 0)
            continue;
        D9D_TRY(alpha_of(r, m->fused, p.a->shape[0] / m->experts, &alpha));
        return fused_read(r, m, &p, alpha);
    }
    return D9D_OK;
}

/* --- heads ----------------------------------------------------------------------------------- */

/* Read a head that peft saved in full, under its own name. */
static d9d_status head_read(adapter_reader *r, const d9d_model_matrix *m)
{
    char name[2 * D9DI_HF_MODULE_MAX];
    const d9d_safetensors_tensor *t;
    d9di_adapters_head *w;

    (void)snprintf(name, sizeof(name), D9DI_ADAPTER_PREFIX "%s.weight", m->hf);
    t = d9d_safetensors_find(r->file, name);
    if (t == NULL)
        return D9D_OK;
    if (t->ndim != 2 || t->shape[0] != m->out || t->shape[1] != m->in)
        return D9D_FAIL(D9D_EMISMATCH, "%s: %s is not the model's [%lld, %lld]",
                        d9d_safetensors_path(r->file), name, (long long)m->out, (long long)m->in);
    D9D_TRY(d9di_adapters_add_head(
        r->ad,
        &(d9di_adapters_head){.name = m->name, .rows = m->out, .columns = m->in, .dtype = t->dtype},
        &w));
    return tensor_read_f32(r, t, w->v);
}

/* --- missing adapters ------------------------------------------------------------------------ */

/* Does peft's configuration list this module as a target?  False if it uses more than names. */
static bool is_target(const adapter_reader *r, const char *module)
{
    const json_t *targets = json_object_get(r->doc, "target_modules"), *v;
    const size_t n = strlen(module);
    bool match = false;
    size_t i;

    if (require_unset(r, "layers_to_transform") != D9D_OK ||
        require_unset(r, "exclude_modules") != D9D_OK)
        return false;
    if (json_is_string(targets) && strcmp(json_string_value(targets), "all-linear") == 0)
        return strcmp(module, "lm_head") != 0;
    if (json_is_string(targets))
        return pattern_matches(r, "target_modules", "", json_string_value(targets), module,
                               &match) == D9D_OK &&
               match;
    json_array_foreach(targets, i, v)
    {
        const size_t m = json_string_length(v);

        if (m > 0 && m <= n && strcmp(module + n - m, json_string_value(v)) == 0 &&
            (m == n || module[n - m - 1] == '.'))
            return true;
    }
    return false;
}

/* peft treats these as zero, with a warning; so do we. */
static void warn_missing(const adapter_reader *r, const d9d_log *log)
{
    const char *first = NULL;
    size_t n = 0;

    for (size_t i = 0; i < r->matrices->n; i++) {
        const d9d_model_matrix *m = &r->matrices->items[i];

        if (m->experts > 0 || d9di_adapters_is_head(m) || d9di_adapters_find(r->ad, m) != NULL ||
            !is_target(r, m->hf))
            continue;
        first = n++ == 0 ? m->hf : first;
    }
    if (n == 1)
        d9d_log_warn(
            log,
            "%s: has no adapter of %s, which target_modules of %s names; it adds nothing there",
            d9d_safetensors_path(r->file), first, r->config_path);
    else if (n > 1)
        d9d_log_warn(log,
                     "%s: has no adapters of %s and %zu more modules that target_modules of %s "
                     "names; they add nothing there",
                     d9d_safetensors_path(r->file), first, n - 1, r->config_path);
}

/* Is a component of the path this name, also in the Hub cache's form? */
static bool path_has(const char *path, const char *name, size_t n)
{
    static const char hub[] = "--";

    for (size_t len; *path != '\0'; path += len) {
        path += strspn(path, "/");
        len = strcspn(path, "/");
        if (len >= n && memcmp(path + len - n, name, n) == 0 &&
            (len == n || (len >= n + 2 && memcmp(path + len - n - 2, hub, 2) == 0)))
            return true;
    }
    return false;
}

/* Warn if the adapter names another base model; the factors themselves do not tell. */
static void warn_other_base(const adapter_reader *r, const char *base, const d9d_log *log)
{
    const char *name = json_string_value(json_object_get(r->doc, "base_model_name_or_path"));
    size_t n = name != NULL ? strlen(name) : 0, from;
    char *real;

    while (n > 0 && name[n - 1] == '/')
        n--;
    for (from = n; from > 0 && name[from - 1] != '/';)
        from--;
    if (base == NULL || n == 0)
        return;
    real = realpath(base, NULL);
    if (!path_has(base, name + from, n - from) &&
        (real == NULL || !path_has(real, name + from, n - from)))
        d9d_log_warn(log, "%s: was trained over %s, and is added to %s", r->config_path, name,
                     base);
    free(real);
}

/* --- all ------------------------------------------------------------------------------------- */

static d9d_status matrix_visit(adapter_reader *r, const d9d_model_matrix *m)
{
    const size_t before = r->ad->list.len;

    D9D_TRY(modules_read(r, m));
    if (d9di_adapters_is_head(m) && r->ad->list.len == before)
        D9D_TRY(head_read(r, m));
    return m->fused != NULL && r->ad->list.len == before ? fused_visit(r, m) : D9D_OK;
}

static d9d_status tensors_check_used(const adapter_reader *r)
{
    const size_t n = d9d_safetensors_count(r->file);

    for (size_t i = 0; i < n; i++)
        if (!r->taken[i])
            return D9D_FAIL(D9D_EMISMATCH,
                            "%s: of %zu tensors %zu are factors of matrices of this model; %s is "
                            "not",
                            d9d_safetensors_path(r->file), n, r->used,
                            d9d_safetensors_at(r->file, i)->name);
    return n > 0 ? D9D_OK
                 : D9D_FAIL(D9D_EMISMATCH, "%s: has no tensors", d9d_safetensors_path(r->file));
}

static d9d_status adapter_read(adapter_reader *r, const char *dir, d9d_arena *a)
{
    const char *tensors = d9d_fs_join(a, dir, D9DI_ADAPTER_TENSORS);

    r->config_path = d9d_fs_join(a, dir, D9DI_ADAPTER_CONFIG);
    if (tensors == NULL || r->config_path == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", dir);
    D9D_TRY(d9d_json_read(r->config_path, CONFIG_BYTES, &r->doc));
    D9D_TRY(config_check(r));
    D9D_TRY(d9d_safetensors_open(tensors, &r->file));
    D9D_TRY(d9di_adapters_create(&r->ad));
    r->taken = d9d_arena_alloc(a, d9d_safetensors_count(r->file) + 1);
    if (r->taken == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %zu tensors", tensors, d9d_safetensors_count(r->file));
    for (size_t i = 0; i < r->matrices->n; i++)
        D9D_TRY(matrix_visit(r, &r->matrices->items[i]));
    if (r->ad->heads.len == 0)
        D9D_TRY(require_unset(r, "modules_to_save"));
    return tensors_check_used(r);
}

d9d_status d9d_adapters_read(const char *dir, const d9d_model_matrices *of, const char *base,
                             const d9d_log *log, d9d_adapters **out)
{
    adapter_reader r = {.matrices = of};
    d9d_arena a = {0};
    const d9d_status st = adapter_read(&r, dir, &a);

    if (st == D9D_OK) {
        warn_missing(&r, log);
        warn_other_base(&r, base, log);
        *out = r.ad;
    } else {
        d9d_adapters_free(r.ad);
    }
    d9d_safetensors_close(r.file);
    json_decref(r.doc);
    d9d_arena_release(&a);
    return st;
}
