/* adapter_factors_read.c - factors and vectors of matrices, of adapter_model.safetensors.  See
 * adapter_reader.h.
 *
 * A matrix is looked for in its tensor of transformers' model, then of files with fused experts,
 * then with a tensor for each expert; adapter_private.h says how experts lie in a tensor's factors.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "model/lora/adapter_reader.h"

enum { NAME_BYTES = 640 };

/* --- tensors ---------------------------------------------------------------------------------- */

const d9d_safetensors_tensor *d9di_peft_tensor_find(const d9di_peft_reader *r, const char *module,
                                                    const char *end)
{
    char name[NAME_BYTES];

    (void)snprintf(name, sizeof(name), D9DI_ADAPTER_PREFIX "%s.%s", module, end);
    return d9d_safetensors_find(r->file, name);
}

static const d9d_safetensors_tensor *factor_find(const d9di_peft_reader *r, const char *module,
                                                 char which)
{
    return d9di_peft_tensor_find(r, module, which == 'A' ? "lora_A.weight" : "lora_B.weight");
}

/* A vector of a module: "lora_magnitude_vector", which newer files call weight of a module of its
 * own, or "ia3_l". */
static const d9d_safetensors_tensor *vector_find(const d9di_peft_reader *r, const char *module,
                                                 const char *vector)
{
    const d9d_safetensors_tensor *t = d9di_peft_tensor_find(r, module, vector);
    char end[64];

    if (t != NULL)
        return t;
    (void)snprintf(end, sizeof(end), "%s.weight", vector);
    return d9di_peft_tensor_find(r, module, end);
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
d9d_status d9di_peft_tensor_read_f32(d9di_peft_reader *r, const d9d_safetensors_tensor *t,
                                     float *out)
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

static d9d_status factor_pair_find(const d9di_peft_reader *r, const char *module, factor_pair *out)
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

static d9d_status check_shape(const d9di_peft_reader *r, const tensor_adapter *x,
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
                          "%s: the factors of %s have %lld rank%s, and the model has %lld experts",
                          d9d_safetensors_path(r->file), x->module, (long long)f->a->shape[0],
                          D9D_PLURAL(f->a->shape[0]), (long long)x->experts);
}

/* Which columns of the tensor's adapter are the matrix's?  All, unless the file says it. */
static d9d_status columns_find(d9di_peft_reader *r, const d9d_model_matrix *m, tensor_adapter *x)
{
    const char *key = d9d_arena_printf(&r->arena, D9DI_ADAPTER_COLUMNS "%s", m->name), *text;
    long long first, count;
    int end = 0;

    x->first = 0;
    x->count = x->r;
    if (key == NULL)
        return d9di_peft_no_memory(r);
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
static d9d_status factors_add(d9di_peft_reader *r, const d9d_model_matrix *m,
                              const tensor_adapter *x, d9di_adapters_factors **out)
{
    const d9di_adapters_factors f = {.name = m->name,
                                     .stack = m->experts > 0,
                                     .experts = m->experts > 0 ? m->experts : 1,
                                     .in = m->in,
                                     .out = m->out,
                                     .r = x->count,
                                     .alpha = x->alpha * (double)x->count / (double)x->r,
                                     .dtype = x->pair.a->dtype,
                                     .params =
                                         1 << D9D_ADAPTER_A | 1 << D9D_ADAPTER_B |
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
static d9d_status features_read(d9di_peft_reader *r, const d9d_model_matrix_place *p,
                                const d9d_safetensors_tensor *t, int64_t n, float *out)
{
    float *all = malloc((size_t)tensor_numel(t) * sizeof(*all) + 1);
    d9d_status st = all != NULL ? d9di_peft_tensor_read_f32(r, t, all) : d9di_peft_no_memory(r);

    for (int64_t i = 0; i < n && st == D9D_OK; i++)
        out[i] = all[d9di_peft_place_feature(p, i)];
    free(all);
    return st;
}

static d9d_status part_read(d9di_peft_reader *r, const d9d_model_matrix_place *p,
                            const tensor_adapter *x, int64_t e, d9di_adapters_factors *f)
{
    const factor_pair *of = &x->pair;
    float *a = malloc((size_t)(of->a->shape[0] * of->a->shape[1]) * sizeof(*a) + 1);
    float *b = malloc((size_t)(of->b->shape[0] * of->b->shape[1]) * sizeof(*b) + 1);
    d9d_status st = a != NULL && b != NULL ? D9D_OK : d9di_peft_no_memory(r);

    if (st == D9D_OK)
        st = d9di_peft_tensor_read_f32(r, of->a, a);
    if (st == D9D_OK)
        st = d9di_peft_tensor_read_f32(r, of->b, b);
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
static d9d_status magnitude_find(d9di_peft_reader *r, const d9d_model_matrix *m,
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
static d9d_status tensor_adapter_find(d9di_peft_reader *r, const d9d_model_matrix *m,
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
        return d9di_peft_no_memory(r);
    D9D_TRY(factor_pair_find(r, out->module, &out->pair));
    if (out->pair.a == NULL)
        return D9D_OK;
    out->experts = stack ? m->experts : 1;
    D9D_TRY(check_shape(r, out, m, p));
    D9D_TRY(magnitude_find(r, m, p, out));
    out->r = out->pair.a->shape[0] / out->experts;
    D9D_TRY(d9di_peft_alpha_of(r, d9di_peft_is_listed_parameter(r, tensor) ? tensor : out->module,
                               out->r, &out->alpha));
    return columns_find(r, m, out);
}

/* --- matrices --------------------------------------------------------------------------------- */

const char *d9di_peft_tensor_name(d9di_peft_reader *r, const d9d_model_matrix_place *p, int64_t e)
{
    const char *name = d9di_peft_place_tensor(p, e, &r->arena);

    return name != NULL && r->matrices->parts != NULL
               ? d9d_hf_name_as(r->matrices->parts, r->as, name, &r->arena)
               : name;
}

const d9d_model_matrix_place *d9di_peft_place_of(const d9d_model_matrix *m, int i)
{
    const d9d_model_matrix_place *const all[D9DI_PEFT_PLACES] = {&m->module, &m->fused, &m->hf};

    return all[i];
}

/* How many wrappers has peft put around this one, which is of a parameter?  One for each later
 * parameter of the module. */
static d9d_status depth_of(d9di_peft_reader *r, int which, const d9d_model_matrix_place *p,
                           int *depth)
{
    *depth = 0;
    for (size_t i = 0; i < r->matrices->n; i++) {
        const d9d_model_matrix_place *o = d9di_peft_place_of(&r->matrices->items[i], which);
        const char *name;

        if (o->tensor == NULL || o->order <= p->order || o->offset > 0 ||
            d9di_peft_place_is_each(o) || !d9di_peft_is_same_module(o->tensor, p->tensor))
            continue;
        name = d9di_peft_tensor_name(r, o, 0);
        if (name == NULL)
            return d9di_peft_no_memory(r);
        *depth += d9di_peft_is_listed_parameter(r, name);
    }
    return D9D_OK;
}

/* Read the adapter of a matrix in one tensor. */
static d9d_status tensor_read(d9di_peft_reader *r, const d9d_model_matrix *m, int which,
                              bool *found)
{
    const d9d_model_matrix_place *p = d9di_peft_place_of(m, which);
    const char *tensor = d9di_peft_tensor_name(r, p, 0);
    d9di_adapters_factors *f;
    tensor_adapter x = {0};
    int depth = 0;

    if (tensor == NULL)
        return d9di_peft_no_memory(r);
    if (m->experts > 0 && !d9di_peft_is_listed_parameter(r, tensor))
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
static d9d_status experts_read(d9di_peft_reader *r, const d9d_model_matrix *m, int which,
                               bool *found)
{
    const d9d_model_matrix_place *p = d9di_peft_place_of(m, which);
    d9di_adapters_factors *f = NULL;

    for (int64_t e = 0; e < m->experts; e++) {
        const char *tensor = d9di_peft_tensor_name(r, p, e);
        tensor_adapter x = {0};

        if (tensor == NULL)
            return d9di_peft_no_memory(r);
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
static d9d_status scales_read(d9di_peft_reader *r, const d9d_model_matrix *m, int which,
                              bool *found)
{
    const d9d_model_matrix_place *p = d9di_peft_place_of(m, which);
    const char *tensor = d9di_peft_tensor_name(r, p, 0), *module;
    const d9d_safetensors_tensor *t;
    d9di_adapters_factors f = {.name = m->name, .experts = 1, .in = m->in, .out = m->out}, *added;
    bool of_output;

    if (tensor == NULL || m->experts > 0)
        return tensor == NULL ? d9di_peft_no_memory(r) : D9D_OK;
    module = d9d_arena_strndup(&r->arena, tensor, d9di_peft_module_length(tensor));
    if (module == NULL)
        return d9di_peft_no_memory(r);
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
    f.params = of_output ? 1 << D9D_ADAPTER_OUTPUT : 1 << D9D_ADAPTER_INPUT;
    D9D_TRY(d9di_adapters_add(r->ad, &f, &added));
    return of_output ? features_read(r, p, t, m->out, added->v[D9D_ADAPTER_OUTPUT])
                     : d9di_peft_tensor_read_f32(r, t, added->v[D9D_ADAPTER_INPUT]);
}

/* --- all ------------------------------------------------------------------------------------- */

/* Has the file an adapter of the module, though perhaps not of each part? */
bool d9di_peft_module_is_adapted(const d9di_peft_reader *r, const char *module)
{
    return r->own != NULL
               ? d9di_peft_own_is_adapted(r, module)
               : factor_find(r, module, 'A') != NULL || vector_find(r, module, "ia3_l") != NULL;
}

d9d_status d9di_peft_matrix_read(d9di_peft_reader *r, const d9d_model_matrix *m)
{
    bool found = false;

    if (r->own != NULL)
        return d9di_peft_own_read(r, m);
    if (d9di_adapters_is_embedding(r->matrices, m))
        return d9di_peft_embedding_read(r, m);
    for (int i = 0; i < D9DI_PEFT_PLACES && !found; i++) {
        const d9d_model_matrix_place *p = d9di_peft_place_of(m, i);

        if (p->tensor == NULL)
            continue;
        if (r->type == D9DI_PEFT_IA3)
            D9D_TRY(scales_read(r, m, i, &found));
        else
            D9D_TRY(d9di_peft_place_is_each(p) ? experts_read(r, m, i, &found)
                                               : tensor_read(r, m, i, &found));
    }
    return D9D_OK;
}
