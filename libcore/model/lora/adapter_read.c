/* adapter_read.c - reads an adapter directory of peft.  See d9d/model/lora/adapters.h.
 *
 * The model determines which tensors may be present; any other tensor is refused.  A matrix is
 * looked for in its tensor of transformers' model, then of files with fused experts, then with a
 * tensor for each expert; adapter_private.h says how experts lie in a tensor's factors.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "d9d/base/fs.h"
#include "d9d/base/json.h"
#include "d9d/config/name_pattern.h"
#include "model/lora/adapter_private.h"

enum { CONFIG_BYTES = 16 << 20, NAME_BYTES = 640 };

typedef struct adapter_reader {
    const d9d_model_matrices *matrices;
    const char *config_path;
    d9d_adapters *ad;
    json_t *doc;
    double alpha; /* for modules that no pattern matches */
    bool by_root; /* the scale is alpha / sqrt(r) */
    d9di_peft_type type;
    d9d_safetensors_file *file;
    bool *taken; /* which of its tensors were read */
    size_t used;
    const d9d_hf_prefixes *as; /* how it begins its names */
    d9d_arena arena;
} adapter_reader;

/* --- adapter_config.json --------------------------------------------------------------------- */

/* Refuse a field that is not false, null, empty or absent: it changes weights in another way. */
static d9d_status require_unset(const adapter_reader *r, const char *key)
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
    if (strcmp(type, "LORA") != 0)
        return D9D_FAIL(D9D_ENOTSUP, "%s: peft_type is \"%s\"; \"LORA\" and \"IA3\" are read",
                        r->config_path, type);
    for (size_t i = 0; others[i] != NULL; i++)
        D9D_TRY(require_unset(r, others[i]));
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
static d9d_status pattern_ends(adapter_reader *r, const char *field, const char *pattern,
                               const char *module, bool *out)
{
    const char *key = d9d_arena_printf(&r->arena, "%s: %s", r->config_path, field);

    return key != NULL ? d9d_name_pattern_ends(key, pattern, module, out)
                       : D9D_FAIL(D9D_ENOMEM, "%s: out of memory", r->config_path);
}

/* The value of the first pattern of a field that matches the module; else *out is unchanged. */
static d9d_status pattern_value(adapter_reader *r, const char *field, const char *module,
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
static d9d_status alpha_of(adapter_reader *r, const char *module, int64_t rank, double *out)
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

/* Does peft adapt this parameter by its name? */
static bool is_listed_parameter(const adapter_reader *r, const char *name)
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

/* --- tensors ---------------------------------------------------------------------------------- */

static d9d_status no_memory(const adapter_reader *r)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", r->config_path);
}

static const d9d_safetensors_tensor *factor_find(const adapter_reader *r, const char *module,
                                                 char which)
{
    char name[NAME_BYTES];

    (void)snprintf(name, sizeof(name), D9DI_ADAPTER_PREFIX "%s.lora_%c.weight", module, which);
    return d9d_safetensors_find(r->file, name);
}

/* A vector of a module: "lora_magnitude_vector", which newer files call weight of a module of its
 * own, or "ia3_l". */
static const d9d_safetensors_tensor *vector_find(const adapter_reader *r, const char *module,
                                                 const char *vector)
{
    const d9d_safetensors_tensor *t;
    char name[NAME_BYTES];

    (void)snprintf(name, sizeof(name), D9DI_ADAPTER_PREFIX "%s.%s", module, vector);
    t = d9d_safetensors_find(r->file, name);
    if (t != NULL)
        return t;
    (void)snprintf(name, sizeof(name), D9DI_ADAPTER_PREFIX "%s.%s.weight", module, vector);
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

static int64_t tensor_numel(const d9d_safetensors_tensor *t)
{
    int64_t n = 1;

    for (int i = 0; i < t->ndim; i++)
        n *= t->shape[i];
    return n;
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
    return d9di_adapters_read_f32(&src, i, tensor_numel(t), out);
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

/* One tensor's adapter in the file. */
typedef struct tensor_adapter {
    factor_pair pair;
    const d9d_safetensors_tensor *vector; /* a magnitude, or NULL */
    const char *module;
    int64_t experts; /* in it; 1: a matrix */
    int64_t r;       /* for each */
    double alpha;
    int64_t first, count; /* the matrix's own columns */
} tensor_adapter;

static d9d_status check_shape(const adapter_reader *r, const tensor_adapter *x,
                              const d9d_model_matrix *m, const d9d_model_matrix_place *p)
{
    const factor_pair *f = &x->pair;

    if (f->a->shape[1] != m->in || f->b->shape[0] != p->features)
        return D9D_FAIL(D9D_EMISMATCH,
                        "%s: the factors of %s are for a matrix [%lld, %lld], the model's is "
                        "[%lld, %lld]",
                        d9d_safetensors_path(r->file), x->module, (long long)f->b->shape[0],
                        (long long)f->a->shape[1], (long long)p->features, (long long)m->in);
    return f->a->shape[0] % x->experts == 0
               ? D9D_OK
               : D9D_FAIL(D9D_EMISMATCH,
                          "%s: the factors of %s have %lld ranks, and the model has %lld experts",
                          d9d_safetensors_path(r->file), x->module, (long long)f->a->shape[0],
                          (long long)x->experts);
}

/* Which columns of the tensor's adapter are the matrix's?  All, unless the file says it. */
static d9d_status columns_find(adapter_reader *r, const d9d_model_matrix *m, tensor_adapter *x)
{
    const char *key = d9d_arena_printf(&r->arena, D9DI_ADAPTER_COLUMNS "%s", m->name), *text;
    long long first, count;
    int end = 0;

    x->first = 0;
    x->count = x->r;
    if (key == NULL)
        return no_memory(r);
    text = d9d_safetensors_metadata(r->file, key);
    if (text == NULL)
        return D9D_OK;
    if (sscanf(text, "%18lld %18lld%n", &first, &count, &end) != 2 || text[end] != '\0' ||
        first < 0 || count < 0 || first > x->r - count)
        return D9D_FAIL(D9D_EFORMAT, "%s: %s is \"%.40s\", and the adapter has %lld columns",
                        d9d_safetensors_path(r->file), key, text, (long long)x->r);
    x->first = first;
    x->count = count;
    return D9D_OK;
}

/* Add an adapter for a matrix. */
static d9d_status factors_add(adapter_reader *r, const d9d_model_matrix *m, const tensor_adapter *x,
                              d9di_adapters_factors **out)
{
    const d9di_adapters_factors f = {.name = m->name,
                                     .stack = m->experts > 0,
                                     .experts = m->experts > 0 ? m->experts : 1,
                                     .in = m->in,
                                     .out = m->out,
                                     .r = x->count,
                                     .alpha = x->alpha * (double)x->count / (double)x->r,
                                     .dtype = x->pair.a->dtype,
                                     .roles = 1 << D9D_ADAPTER_A | 1 << D9D_ADAPTER_B |
                                              (x->vector != NULL ? 1 << D9D_ADAPTER_MAGNITUDE : 0)};

    return d9di_adapters_add(r->ad, &f, out);
}

/* Copy the part of a matrix, from expert e on.  False if B has numbers in its rows and in columns
 * of others. */
static bool part_unpack(const tensor_adapter *x, const d9d_model_matrix_place *p, const float *a,
                        const float *b, int64_t e, d9di_adapters_factors *f)
{
    const int64_t E = x->experts;
    bool fits = true;

    for (int64_t i = 0; i < E; i++)
        memcpy(f->v[D9D_ADAPTER_A] + (e + i) * f->r * f->in, a + (i * x->r + x->first) * f->in,
               (size_t)(f->r * f->in) * sizeof(*a));
    for (int64_t i = 0; i < f->out; i++) {
        const float *row = b + d9di_peft_place_feature(p, i) * x->r * E;

        for (int64_t k = 0; k < x->r * E; k++) {
            const int64_t column = k / E - x->first;

            if (column >= 0 && column < f->r)
                f->v[D9D_ADAPTER_B][((e + k % E) * f->out + i) * f->r + column] = row[k];
            else
                fits &= row[k] == 0;
        }
    }
    return fits;
}

/* Read the rows of a matrix from a vector of its tensor's features. */
static d9d_status features_read(adapter_reader *r, const d9d_model_matrix_place *p,
                                const d9d_safetensors_tensor *t, int64_t n, float *out)
{
    float *all = malloc((size_t)tensor_numel(t) * sizeof(*all) + 1);
    d9d_status st = all != NULL ? tensor_read_f32(r, t, all) : no_memory(r);

    for (int64_t i = 0; i < n && st == D9D_OK; i++)
        out[i] = all[d9di_peft_place_feature(p, i)];
    free(all);
    return st;
}

static d9d_status part_read(adapter_reader *r, const d9d_model_matrix_place *p,
                            const tensor_adapter *x, int64_t e, d9di_adapters_factors *f)
{
    const factor_pair *of = &x->pair;
    float *a = malloc((size_t)(of->a->shape[0] * of->a->shape[1]) * sizeof(*a) + 1);
    float *b = malloc((size_t)(of->b->shape[0] * of->b->shape[1]) * sizeof(*b) + 1);
    d9d_status st = a != NULL && b != NULL ? D9D_OK : no_memory(r);

    if (st == D9D_OK)
        st = tensor_read_f32(r, of->a, a);
    if (st == D9D_OK)
        st = tensor_read_f32(r, of->b, b);
    if (st == D9D_OK && !part_unpack(x, p, a, b, e, f))
        st =
            D9D_FAIL(D9D_EFORMAT,
                     "%s: the adapter of %s has numbers outside of columns %lld to %lld, which its "
                     "metadata say are those of %s",
                     d9d_safetensors_path(r->file), x->module, (long long)x->first,
                     (long long)(x->first + x->count - 1), f->name);
    free(a);
    free(b);
    return st == D9D_OK && x->vector != NULL
               ? features_read(r, p, x->vector, f->out, f->v[D9D_ADAPTER_MAGNITUDE])
               : st;
}

/* Find the magnitude of a tensor's adapter, which all adapters of DoRA have. */
static d9d_status magnitude_find(adapter_reader *r, const d9d_model_matrix *m,
                                 const d9d_model_matrix_place *p, tensor_adapter *x)
{
    const d9d_safetensors_tensor *t = vector_find(r, x->module, "lora_magnitude_vector");

    if (r->type != D9DI_PEFT_DORA)
        return D9D_OK;
    if (m->experts > 0)
        return D9D_FAIL(D9D_ENOTSUP,
                        "%s: use_dora is set, and %s has experts, whose adapters are "
                        "LoRA alone",
                        r->config_path, x->module);
    if (t == NULL || tensor_numel(t) != p->features)
        return D9D_FAIL(D9D_EMISMATCH, "%s: %s has no magnitude (use_dora) of %lld features",
                        d9d_safetensors_path(r->file), x->module, (long long)p->features);
    x->vector = t;
    return D9D_OK;
}

/* Find the adapter of a tensor; out->pair.a is NULL if there is none. */
static d9d_status tensor_adapter_find(adapter_reader *r, const d9d_model_matrix *m,
                                      const d9d_model_matrix_place *p, const char *tensor,
                                      int depth, tensor_adapter *out)
{
    const bool stack = m->experts > 0 && !d9di_peft_place_is_each(p);
    d9d_buf text = {0};
    d9d_status st = d9d_buf_printf(&text, "%.*s", (int)d9di_peft_module_length(tensor), tensor);

    for (int i = 0; i < depth && st == D9D_OK; i++)
        st = d9d_buf_printf(&text, ".base_layer");
    out->module =
        st == D9D_OK ? d9d_arena_strndup(&r->arena, (const char *)text.data, text.len) : NULL;
    d9d_buf_release(&text);
    if (out->module == NULL)
        return no_memory(r);
    D9D_TRY(factor_pair_find(r, out->module, &out->pair));
    if (out->pair.a == NULL)
        return D9D_OK;
    out->experts = stack ? m->experts : 1;
    D9D_TRY(check_shape(r, out, m, p));
    D9D_TRY(magnitude_find(r, m, p, out));
    out->r = out->pair.a->shape[0] / out->experts;
    D9D_TRY(
        alpha_of(r, is_listed_parameter(r, tensor) ? tensor : out->module, out->r, &out->alpha));
    return columns_find(r, m, out);
}

/* --- matrices --------------------------------------------------------------------------------- */

static const char *tensor_name(adapter_reader *r, const d9d_model_matrix_place *p, int64_t e)
{
    const char *name = d9di_peft_place_tensor(p, e, &r->arena);

    return name != NULL && r->matrices->parts != NULL
               ? d9d_hf_name_as(r->matrices->parts, r->as, name, &r->arena)
               : name;
}

enum { PLACES = 3 };
static const d9d_model_matrix_place *place_of(const d9d_model_matrix *m, int i)
{
    const d9d_model_matrix_place *const all[PLACES] = {&m->module, &m->fused, &m->hf};

    return all[i];
}

/* How many wrappers has peft put around this one, which is of a parameter?  One for each later
 * parameter of the module. */
static d9d_status depth_of(adapter_reader *r, int which, const d9d_model_matrix_place *p,
                           int *depth)
{
    *depth = 0;
    for (size_t i = 0; i < r->matrices->n; i++) {
        const d9d_model_matrix_place *o = place_of(&r->matrices->items[i], which);
        const char *name;

        if (o->tensor == NULL || o->order <= p->order || o->offset > 0 ||
            d9di_peft_place_is_each(o) || !d9di_peft_is_same_module(o->tensor, p->tensor))
            continue;
        name = tensor_name(r, o, 0);
        if (name == NULL)
            return no_memory(r);
        *depth += is_listed_parameter(r, name);
    }
    return D9D_OK;
}

/* Read the adapter of a matrix in one tensor. */
static d9d_status tensor_read(adapter_reader *r, const d9d_model_matrix *m, int which, bool *found)
{
    const d9d_model_matrix_place *p = place_of(m, which);
    const char *tensor = tensor_name(r, p, 0);
    d9di_adapters_factors *f;
    tensor_adapter x = {0};
    int depth = 0;

    if (tensor == NULL)
        return no_memory(r);
    if (m->experts > 0 && !is_listed_parameter(r, tensor))
        return D9D_OK;
    if (m->experts > 0)
        D9D_TRY(depth_of(r, which, p, &depth));
    D9D_TRY(tensor_adapter_find(r, m, p, tensor, depth, &x));
    *found = x.pair.a != NULL;
    if (!*found || x.count == 0)
        return D9D_OK;
    D9D_TRY(factors_add(r, m, &x, &f));
    return part_read(r, p, &x, 0, f);
}

/* Read the adapters of a stack in one tensor for each expert. */
static d9d_status experts_read(adapter_reader *r, const d9d_model_matrix *m, int which, bool *found)
{
    const d9d_model_matrix_place *p = place_of(m, which);
    d9di_adapters_factors *f = NULL;

    for (int64_t e = 0; e < m->experts; e++) {
        const char *tensor = tensor_name(r, p, e);
        tensor_adapter x = {0};

        if (tensor == NULL)
            return no_memory(r);
        D9D_TRY(tensor_adapter_find(r, m, p, tensor, 0, &x));
        if (x.pair.a == NULL && e == 0)
            return D9D_OK;
        *found = true;
        if (x.pair.a == NULL)
            return D9D_FAIL(D9D_EMISMATCH,
                            "%s: has no adapter of %s, but of another expert of the layer",
                            d9d_safetensors_path(r->file), x.module);
        if (x.count == 0)
            return D9D_OK;
        if (f == NULL)
            D9D_TRY(factors_add(r, m, &x, &f));
        if (f->r != x.count || f->alpha != x.alpha * (double)x.count / (double)x.r ||
            f->dtype != x.pair.a->dtype)
            return D9D_FAIL(D9D_ENOTSUP,
                            "%s: the adapter of %s differs in rank, alpha or type from the other "
                            "experts of the layer",
                            d9d_safetensors_path(r->file), x.module);
        D9D_TRY(part_read(r, p, &x, e, f));
    }
    return D9D_OK;
}

/* --- (IA)^3 ---------------------------------------------------------------------------------- */

/* Read the factors of a matrix's outputs, [features, 1], or of its inputs, [1, in]. */
static d9d_status scales_read(adapter_reader *r, const d9d_model_matrix *m, int which, bool *found)
{
    const d9d_model_matrix_place *p = place_of(m, which);
    const char *tensor = tensor_name(r, p, 0), *module;
    const d9d_safetensors_tensor *t;
    d9di_adapters_factors f = {.name = m->name, .experts = 1, .in = m->in, .out = m->out}, *added;
    bool of_output;

    if (tensor == NULL || m->experts > 0)
        return tensor == NULL ? no_memory(r) : D9D_OK;
    module = d9d_arena_strndup(&r->arena, tensor, d9di_peft_module_length(tensor));
    if (module == NULL)
        return no_memory(r);
    t = vector_find(r, module, "ia3_l");
    if (t == NULL)
        return D9D_OK;
    of_output = t->ndim == 2 && t->shape[0] == p->features && t->shape[1] == 1;
    if (!of_output && (t->ndim != 2 || t->shape[0] != 1 || t->shape[1] != m->in))
        return D9D_FAIL(D9D_EMISMATCH, "%s: ia3_l of %s is neither [%lld, 1] nor [1, %lld]",
                        d9d_safetensors_path(r->file), module, (long long)p->features,
                        (long long)m->in);
    *found = true;
    f.dtype = t->dtype;
    f.roles = of_output ? 1 << D9D_ADAPTER_OUTPUT : 1 << D9D_ADAPTER_INPUT;
    D9D_TRY(d9di_adapters_add(r->ad, &f, &added));
    return of_output ? features_read(r, p, t, m->out, added->v[D9D_ADAPTER_OUTPUT])
                     : tensor_read_f32(r, t, added->v[D9D_ADAPTER_INPUT]);
}

/* --- heads ----------------------------------------------------------------------------------- */

/* Read a head that peft saved in full, under its own name. */
static d9d_status head_read(adapter_reader *r, const d9d_model_matrix *m)
{
    char name[NAME_BYTES];
    const d9d_safetensors_tensor *t;
    d9di_adapters_head *w;

    (void)snprintf(name, sizeof(name), D9DI_ADAPTER_PREFIX "%s", m->module.tensor);
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
static bool is_target(const adapter_reader *r, const char *module)
{
    const json_t *targets = json_object_get(r->doc, "target_modules"), *v;
    const size_t n = strlen(module);
    size_t i;

    if (require_unset(r, "layers_to_transform") != D9D_OK ||
        require_unset(r, "exclude_modules") != D9D_OK)
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

/* Has the file an adapter of the module, though perhaps not of each part? */
static bool module_is_adapted(const adapter_reader *r, const char *module)
{
    return factor_find(r, module, 'A') != NULL || vector_find(r, module, "ia3_l") != NULL;
}

/* peft treats these as zero, with a warning; so do we. */
static void warn_missing(adapter_reader *r, const d9d_log *log)
{
    const char *first = NULL;
    size_t n = 0;

    for (size_t i = 0; i < r->matrices->n; i++) {
        const d9d_model_matrix *m = &r->matrices->items[i];
        const char *name = m->experts == 0 ? tensor_name(r, &m->module, 0) : NULL;

        if (name != NULL)
            name = d9d_arena_strndup(&r->arena, name, d9di_peft_module_length(name));
        if (name == NULL || d9di_adapters_is_head(m) || d9di_adapters_find(r->ad, m) != NULL ||
            !is_target(r, name) || module_is_adapted(r, name))
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
    bool found = false;

    for (int i = 0; i < PLACES && !found; i++) {
        const d9d_model_matrix_place *p = place_of(m, i);

        if (p->tensor == NULL)
            continue;
        if (r->type == D9DI_PEFT_IA3)
            D9D_TRY(scales_read(r, m, i, &found));
        else
            D9D_TRY(d9di_peft_place_is_each(p) ? experts_read(r, m, i, &found)
                                               : tensor_read(r, m, i, &found));
    }
    return d9di_adapters_is_head(m) && !found ? head_read(r, m) : D9D_OK;
}

/* The tensors of a file under shorter names. */
typedef struct memory_names {
    d9d_safetensors_tensor *tensors;
} memory_names;

static const d9d_safetensors_tensor *names_at(void *self, size_t i)
{
    return &((memory_names *)self)->tensors[i];
}

/* Find how the file begins its names, as if they were those of a checkpoint. */
static d9d_status prefixes_find(adapter_reader *r)
{
    const size_t n = d9d_safetensors_count(r->file), k = strlen(D9DI_ADAPTER_PREFIX);
    memory_names names = {.tensors = d9d_arena_alloc(&r->arena, (n + 1) * sizeof(*names.tensors))};

    if (names.tensors == NULL)
        return no_memory(r);
    for (size_t i = 0; i < n; i++) {
        const d9d_safetensors_tensor *t = d9d_safetensors_at(r->file, i);

        names.tensors[i] = *t;
        if (strncmp(t->name, D9DI_ADAPTER_PREFIX, k) == 0)
            names.tensors[i].name = t->name + k;
    }
    if (r->matrices->parts != NULL)
        r->as = d9d_hf_prefixes_of(r->matrices->parts,
                                   &(d9d_tensor_source){.self = &names, .n = n, .at = names_at});
    return D9D_OK;
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
    return r->ad->list.len + r->ad->heads.len > 0
               ? D9D_OK
               : D9D_FAIL(D9D_EMISMATCH, "%s: has no tensors", d9d_safetensors_path(r->file));
}

static d9d_status adapter_read(adapter_reader *r, const char *dir)
{
    d9d_arena *a = &r->arena;
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
    D9D_TRY(prefixes_find(r));
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
    const d9d_status st = adapter_read(&r, dir);

    if (st == D9D_OK) {
        warn_missing(&r, log);
        warn_other_base(&r, base, log);
        *out = r.ad;
    } else {
        d9d_adapters_free(r.ad);
    }
    d9d_safetensors_close(r.file);
    json_decref(r.doc);
    d9d_arena_release(&r.arena);
    return st;
}
