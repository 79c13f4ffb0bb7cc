/* adapter_config_read.c - adapter_config.json of peft.  See adapter_reader.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "d9d/base/json.h"
#include "d9d/config/name_pattern.h"
#include "model/lora/adapter_reader.h"

/* Refuse a field that is not false, null, empty or absent: it changes weights in another way. */
d9d_status d9di_peft_require_unset(const d9di_peft_reader *r, const char *key)
{
    const json_t *v = json_object_get(r->doc, key);

    if (v == NULL || json_is_null(v) || json_is_false(v) ||
        ((json_is_array(v) || json_is_object(v)) && json_array_size(v) + json_object_size(v) == 0))
        return D9D_OK;
    return D9D_FAIL(D9D_ENOTSUP, "%s: %s is set, and adapters with it are not read", r->config_path,
                    key);
}

/* Refuse initialisations that take the factors from the matrix, so that they belong to the
 * remainder of the matrix.  peft records them until it has converted the adapter; its other
 * initialisations leave the matrix unchanged. */
static d9d_status init_check(const d9di_peft_reader *r)
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

bool d9d_adapters_is_built_in(const char *peft_type)
{
    return strcmp(peft_type, "LORA") == 0 || strcmp(peft_type, "IA3") == 0 ||
           strcmp(peft_type, "PROMPT_TUNING") == 0;
}

/* The kind of its own that has this peft_type; NULL: none. */
static const d9d_adapter_kind *own_find(const d9di_peft_reader *r, const char *type)
{
    for (size_t i = 0; r->kinds != NULL && r->kinds[i] != NULL; i++)
        if (r->kinds[i]->files != NULL && strcmp(r->kinds[i]->files->peft_type, type) == 0)
            return r->kinds[i];
    return NULL;
}

/* The seed of shared arrays, and whether the file has these. */
static d9d_status shared_config_read(d9di_peft_reader *r)
{
    const d9d_adapter_files *files = r->own->files;
    const json_t *has =
        files->has_shared != NULL ? json_object_get(r->doc, files->has_shared) : NULL;
    int64_t seed = 0;

    if (files->seed != NULL && json_object_get(r->doc, files->seed) != NULL)
        D9D_TRY(d9d_json_get_i64(r->doc, r->config_path, files->seed, 0, INT64_MAX, &seed));
    r->seed = (uint64_t)seed;
    r->draws = json_is_false(has);
    return D9D_OK;
}

/* Fields that need a value have it or are absent. */
static d9d_status needs_check(const d9di_peft_reader *r, json_t *needs)
{
    const char *key;
    json_t *want;

    json_object_foreach(needs, key, want)
    {
        const json_t *has = json_object_get(r->doc, key);

        if (has != NULL && json_equal(has, want) == 0)
            return D9D_FAIL(D9D_ENOTSUP, "%s: %s has another value than \"%s\" takes",
                            r->config_path, key, r->own->name);
    }
    return D9D_OK;
}

static d9d_status own_config_check(d9di_peft_reader *r)
{
    const d9d_adapter_files *files = r->own->files;
    json_t *needs = NULL;
    d9d_status st = D9D_OK;

    r->type = D9DI_PEFT_OWN;
    if (files->alpha != NULL)
        D9D_TRY(d9d_json_get_f64(r->doc, r->config_path, files->alpha, &r->alpha));
    D9D_TRY(shared_config_read(r));
    if (files->needs != NULL)
        D9D_TRY(d9d_json_parse(r->own->name, files->needs, strlen(files->needs), &needs));
    st = needs_check(r, needs);
    json_decref(needs);
    return st;
}

d9d_status d9di_peft_config_check(d9di_peft_reader *r)
{
    static const char *const others[] = {"use_qalora",
                                         "use_bdlora",
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
    if (strcmp(type, "IA3") == 0) {
        r->type = D9DI_PEFT_IA3;
        return D9D_OK;
    }
    if (strcmp(type, "PROMPT_TUNING") == 0) {
        r->type = D9DI_PEFT_PROMPT;
        return D9D_OK;
    }
    r->own = own_find(r, type);
    if (r->own != NULL)
        return own_config_check(r);
    if (strcmp(type, "LORA") != 0)
        return D9D_FAIL(
            D9D_ENOTSUP,
            "%s: peft_type is \"%s\"; \"LORA\", \"IA3\" and \"PROMPT_TUNING\" are read, "
            "and those of plugins",
            r->config_path, type);
    for (size_t i = 0; others[i] != NULL; i++)
        D9D_TRY(d9di_peft_require_unset(r, others[i]));
    if (json_is_string(bias) && strcmp(json_string_value(bias), "none") != 0)
        return D9D_FAIL(D9D_ENOTSUP, "%s: bias is \"%s\"; only \"none\" is read", r->config_path,
                        json_string_value(bias));
    D9D_TRY(init_check(r));
    D9D_TRY(d9d_json_get_f64(r->doc, r->config_path, "lora_alpha", &r->alpha));
    r->by_root = json_is_true(json_object_get(r->doc, "use_rslora"));
    r->type = json_is_true(json_object_get(r->doc, "use_dora")) ? D9DI_PEFT_DORA : D9DI_PEFT_LORA;
    return D9D_OK;
}

/* Does peft's pattern match a name, or its end? */
static d9d_status pattern_ends(d9di_peft_reader *r, const char *field, const char *pattern,
                               const char *module, bool *out)
{
    const char *key = d9d_arena_printf(&r->arena, "%s: %s", r->config_path, field);

    return key != NULL ? d9d_name_pattern_ends(key, pattern, module, out)
                       : D9D_FAIL(D9D_ENOMEM, "%s: out of memory", r->config_path);
}

/* The value of the first pattern of a field that matches the module; else *out is unchanged. */
static d9d_status pattern_value(d9di_peft_reader *r, const char *field, const char *module,
                                double *value)
{
    const char *pattern;
    json_t *v;

    json_object_foreach(json_object_get(r->doc, field), pattern, v)
    {
        bool match = false;

        D9D_TRY(pattern_ends(r, field, pattern, module, &match));
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
d9d_status d9di_peft_alpha_of(d9di_peft_reader *r, const char *module, int64_t rank, double *out)
{
    const char *key = r->own != NULL ? r->own->files->rank : "r";
    double alpha = r->alpha, said = (double)rank;

    if (key != NULL && json_object_get(r->doc, key) != NULL)
        D9D_TRY(d9d_json_get_f64(r->doc, r->config_path, key, &said));
    D9D_TRY(pattern_value(r, "rank_pattern", module, &said));
    if (said != (double)rank && !(said == 0 && r->own != NULL)) /* peft writes 0 for none */
        return D9D_FAIL(D9D_EMISMATCH, "%s: the adapter of %s has rank %lld, and %s says %g",
                        d9d_safetensors_path(r->file), module, (long long)rank, r->config_path,
                        said);
    D9D_TRY(pattern_value(r, "alpha_pattern", module, &alpha));
    *out = r->by_root ? alpha * sqrt((double)rank) : alpha;
    return D9D_OK;
}

/* Does peft adapt this parameter by its name? */
bool d9di_peft_is_listed_parameter(const d9di_peft_reader *r, const char *name)
{
    const size_t n = strlen(name);
    const json_t *v;
    size_t i;

    json_array_foreach(json_object_get(r->doc, "target_parameters"), i, v)
    {
        const size_t k = json_string_length(v);

        if (k > 0 && k <= n && strcmp(name + n - k, json_string_value(v)) == 0 &&
            (k == n || name[n - k - 1] == '.'))
            return true;
    }
    return false;
}

/* --- missing adapters ------------------------------------------------------------------------ */

/* False for what is no pattern. */
static bool whole_matches(const char *pattern, const char *module)
{
    d9d_name_pattern *p = NULL;
    bool match = false;

    if (d9d_name_pattern_create("target_modules", pattern, &p) == D9D_OK &&
        d9d_name_pattern_match(p, module, &match) != D9D_OK)
        match = false;
    d9d_name_pattern_free(p);
    return match;
}

/* Does peft's configuration list this module as a target?  False if it uses more than names. */
static bool is_target(const d9di_peft_reader *r, const char *module)
{
    const json_t *targets = json_object_get(r->doc, "target_modules"), *v;
    const size_t n = strlen(module);
    size_t i;

    if (d9di_peft_require_unset(r, "layers_to_transform") != D9D_OK ||
        d9di_peft_require_unset(r, "exclude_modules") != D9D_OK)
        return false;
    if (json_is_string(targets) && strcmp(json_string_value(targets), "all-linear") == 0)
        return strcmp(module, "lm_head") != 0;
    if (json_is_string(targets))
        return whole_matches(json_string_value(targets), module);
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
void d9di_peft_warn_missing(d9di_peft_reader *r, const d9d_log *log)
{
    const char *first = NULL;
    size_t n = 0;

    for (size_t i = 0; i < r->matrices->n; i++) {
        const d9d_model_matrix *m = &r->matrices->items[i];
        const char *name = m->experts == 0 ? d9di_peft_tensor_name(r, &m->module, 0) : NULL;

        if (name != NULL)
            name = d9d_arena_strndup(&r->arena, name, d9di_peft_module_length(name));
        if (name == NULL || strcmp(m->name, D9D_HEAD_SCORE) == 0 ||
            d9di_adapters_is_embedding(r->matrices, m) || d9di_adapters_find(r->ad, m) != NULL ||
            !is_target(r, name) || d9di_peft_module_is_adapted(r, name))
            continue;
        first = n++ == 0 ? name : first;
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
void d9di_peft_warn_other_base(const d9di_peft_reader *r, const char *base, const d9d_log *log)
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
