/* adapters.c - copies adapters from a model to host memory, and back.  See
 * d9d/model/lora/adapters.h.
 */
#include "model/lora/adapter_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/model/params_io.h"

static const char weight[] = ".weight";

d9d_status d9di_adapters_create(d9d_adapters **out)
{
    d9d_adapters *ad = calloc(1, sizeof(*ad));

    if (ad == NULL)
        return D9D_FAIL(D9D_ENOMEM, "adapters: out of memory");
    *out = ad;
    return D9D_OK;
}

void d9d_adapters_free(d9d_adapters *ad)
{
    if (ad == NULL)
        return;
    D9D_VEC_RELEASE(&ad->list);
    D9D_VEC_RELEASE(&ad->saved);
    d9d_arena_release(&ad->arena);
    free(ad);
}

static float *numbers(d9d_arena *a, int64_t experts, const d9d_shape *shape)
{
    uint64_t n = (uint64_t)experts;

    for (int d = 0; d < shape->ndim; d++)
        if (!d9d_checked_mul_u64(n, (uint64_t)shape->dim[d], &n))
            return NULL;
    return d9d_checked_mul_u64(n, sizeof(float), &n) ? d9d_arena_alloc(a, n) : NULL;
}

float *d9di_adapters_shared_numbers(const d9d_adapters *ad, const d9di_adapters_factors *f, int i)
{
    const d9d_shape want = d9di_adapters_shape(f, i);

    for (size_t k = 0; d9di_adapters_is_shared(f, i) && k < ad->list.len; k++) {
        const d9di_adapters_factors *other = &ad->list.data[k];
        const d9d_shape have = d9di_adapters_shape(other, i);

        if (other == f)
            break;
        if (other->own == f->own && d9d_shape_equal(&have, &want))
            return other->v[i];
    }
    return NULL;
}

d9d_status d9di_adapters_add(d9d_adapters *ad, const d9di_adapters_factors *like,
                             d9di_adapters_factors **out)
{
    d9di_adapters_factors f = *like;

    f.name = d9d_arena_strdup(&ad->arena, like->name);
    for (int i = 0; i < D9D_ADAPTER_PARAMS; i++) {
        const bool has = d9di_adapters_has_param(&f, i);
        const d9d_shape shape = d9di_adapters_shape(&f, i);

        f.v[i] = d9di_adapters_shared_numbers(ad, &f, i);
        if (has && f.v[i] == NULL)
            f.v[i] = numbers(&ad->arena, f.experts, &shape);
        if (f.name == NULL || (has && f.v[i] == NULL))
            return D9D_FAIL(D9D_ENOMEM, "adapter of %s: no memory for rank %lld", like->name,
                            (long long)f.r);
    }
    D9D_TRY(D9D_VEC_PUSH(&ad->list, f));
    *out = &ad->list.data[ad->list.len - 1];
    return D9D_OK;
}

const d9di_adapters_factors *d9di_adapters_find(const d9d_adapters *ad, const d9d_model_matrix *m)
{
    for (size_t i = 0; i < ad->list.len; i++)
        if (strcmp(ad->list.data[i].name, m->name) == 0)
            return &ad->list.data[i];
    return NULL;
}

const d9d_model_matrix *d9di_adapters_find_matrix(const d9d_model_matrices *of, const char *name)
{
    for (size_t i = 0; i < of->n; i++)
        if (strcmp(of->items[i].name, name) == 0)
            return &of->items[i];
    return NULL;
}

const d9d_model_matrix *d9di_adapters_matrix_of(const d9d_model_matrices *of,
                                                const d9di_adapters_factors *f)
{
    return d9di_adapters_find_matrix(of, f->name);
}

/* Is it the name of parameter i of a kind of its own?  Of a shared array, checkpoints of before had
 * one for each matrix. */
static bool is_own_param(const d9di_adapters_factors *f, int i, const char *name)
{
    const size_t n = strlen(f->name);

    return f->own != NULL && d9di_adapters_has_param(f, i) && strncmp(name, f->name, n) == 0 &&
           name[n] == '.' && strcmp(name + n + 1, f->own->params[i].name) == 0;
}

bool d9di_adapters_is_param(const d9d_adapters *ad, const char *name)
{
    static const char *const usual[] = {".lora_A.", ".lora_B.", ".lora_magnitude_vector.", ".ia3_l",
                                        NULL};

    for (size_t i = 0; usual[i] != NULL; i++)
        if (strstr(name, usual[i]) != NULL)
            return true;
    for (size_t i = 0; i < ad->list.len; i++)
        for (int k = 0; k < D9D_ADAPTER_PARAMS; k++)
            if ((ad->list.data[i].param[k] != NULL &&
                 strcmp(ad->list.data[i].param[k], name) == 0) ||
                is_own_param(&ad->list.data[i], k, name))
                return true;
    return false;
}

/* --- numbers ------------------------------------------------------------------------------ */

static d9d_status values_to_f32(const d9d_safetensors_tensor *t, const void *from, float *to,
                                int64_t n)
{
    if (t->dtype == D9D_F32)
        memcpy(to, from, (size_t)n * sizeof(float));
    else if (t->dtype == D9D_BF16)
        for (int64_t i = 0; i < n; i++)
            to[i] = d9d_bf16_to_f32(((const uint16_t *)from)[i]);
    else
        return D9D_FAIL(D9D_ENOTSUP, "tensor %s is %s; adapters are float32 or bfloat16", t->name,
                        d9d_dtype_name(t->dtype));
    return D9D_OK;
}

d9d_status d9di_adapters_read_f32(const d9d_tensor_source *src, size_t i, int64_t n, float *out)
{
    const d9d_safetensors_tensor *t = src->at(src->self, i);
    const uint64_t bytes = (uint64_t)n * d9d_dtype_size(t->dtype);
    void *raw = malloc(bytes + 1);
    d9d_status st;

    if (raw == NULL)
        return D9D_FAIL(D9D_ENOMEM, "tensor %s: %llu bytes", t->name, (unsigned long long)bytes);
    st = src->read(src->self, i, 0, raw, bytes);
    if (st == D9D_OK)
        st = values_to_f32(t, raw, out, n);
    free(raw);
    return st;
}

/* [E, rows, columns] to [E, columns, rows]. */
static void transpose(const float *from, float *to, int64_t experts, int64_t rows, int64_t columns)
{
    for (int64_t e = 0; e < experts; e++)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < columns; j++)
                to[(e * columns + j) * rows + i] = from[(e * rows + i) * columns + j];
}

/* --- from a model --------------------------------------------------------------------------- */

d9d_status d9di_adapters_source_find(const d9d_tensor_source *src, const char *name, size_t *out)
{
    for (size_t i = 0; i < src->n; i++)
        if (strcmp(src->at(src->self, i)->name, name) == 0) {
            *out = i;
            return D9D_OK;
        }
    return D9D_FAIL(D9D_EMISMATCH, "%s: the checkpoint does not have it", name);
}

/* Read a factor; of a stack [E, rows, columns] into `to` [E, columns, rows]. */
static d9d_status factor_read(const d9d_param *p, const d9d_tensor_source *src, float *to)
{
    const int64_t n = d9d_shape_numel(&p->spec.shape), *d = p->spec.shape.dim;
    const bool stack = p->spec.shape.ndim == 3;
    float *buffer = stack ? malloc((size_t)n * sizeof(float) + 1) : to;
    size_t i = 0;
    d9d_status st;

    if (buffer == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %lld numbers", p->name, (long long)n);
    st = d9di_adapters_source_find(src, p->name, &i);
    if (st == D9D_OK)
        st = d9di_adapters_read_f32(src, i, n, buffer);
    if (st == D9D_OK && stack)
        transpose(buffer, to, d[0], d[1], d[2]);
    if (stack)
        free(buffer);
    return st;
}

/* Describe an adapter without its numbers. */
static d9d_status factors_describe(d9d_arena *a, const d9d_param *w, d9di_adapters_factors *out)
{
    const bool stack = w->spec.shape.ndim == 3;
    const d9d_param_adapter *adapter = w->peft.adapter;
    const int64_t *d = w->spec.shape.dim;

    *out = (d9di_adapters_factors){
        .name = d9d_arena_strndup(a, w->name, strlen(w->name) - strlen(weight)),
        .stack = stack,
        .experts = stack ? d[0] : 1,
        .in = d[1],
        .out = stack ? d[2] : d[0],
        .r = adapter->r,
        .alpha = adapter->alpha,
        .dropout = (double)adapter->dropout,
        .dtype = w->spec.dtype,
        .seed = adapter->seed,
        .own = adapter->forward != NULL ? adapter->kind : NULL,
    };
    for (int i = 0; i < D9D_ADAPTER_PARAMS && out->name != NULL; i++) {
        if (adapter->param[i] == NULL)
            continue;
        out->params |= 1u << i;
        out->param[i] = d9d_arena_strdup(a, adapter->param[i]->name);
        if (out->param[i] == NULL)
            out->name = NULL;
    }
    return out->name != NULL ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "%s: its name", w->name);
}

/* The first parameter of its own of each adapter stands for it: its matrix; else NULL. */
static const d9d_param *matrix_of_first(const d9d_param *p)
{
    const d9d_param *w = p->peft.adapts;

    for (int i = 0; w != NULL && i < D9D_ADAPTER_PARAMS; i++)
        if (w->peft.adapter->param[i] != NULL && !d9d_adapter_is_shared(w, i))
            return w->peft.adapter->param[i] == p ? w : NULL;
    return NULL;
}

static d9d_status factors_read(const d9d_params *params, const d9d_tensor_source *src,
                               d9d_adapters *ad)
{
    for (size_t i = 0; i < params->n; i++) {
        const d9d_param *w = matrix_of_first(params->p[i]);
        d9di_adapters_factors f, *added;

        if (w == NULL)
            continue;
        D9D_TRY(factors_describe(&ad->arena, w, &f));
        D9D_TRY(d9di_adapters_add(ad, &f, &added));
        for (int k = 0; k < D9D_ADAPTER_PARAMS; k++)
            if (d9di_adapters_has_param(&f, k) &&
                d9di_adapters_shared_numbers(ad, added, k) == NULL)
                D9D_TRY(factor_read(w->peft.adapter->param[k], src, added->v[k]));
    }
    return D9D_OK;
}

d9d_status d9d_adapters_from_model(const d9d_params *params, const d9d_tensor_source *src,
                                   bool saved, d9d_adapters **out)
{
    d9d_adapters *ad = NULL;
    d9d_status st;

    D9D_TRY(d9di_adapters_create(&ad));
    st = factors_read(params, src, ad);
    if (st == D9D_OK && saved)
        st = d9di_adapters_saved_list(params, ad);
    if (st == D9D_OK && saved)
        st = d9di_adapters_saved_read(src, ad);
    if (st == D9D_OK)
        *out = ad;
    else
        d9d_adapters_free(ad);
    return st;
}

/* List the adapters of a model without their numbers. */
static d9d_status factors_list(const d9d_params *params, d9d_adapters *ad)
{
    for (size_t i = 0; i < params->n; i++) {
        const d9d_param *w = matrix_of_first(params->p[i]);
        d9di_adapters_factors f;

        if (w == NULL)
            continue;
        D9D_TRY(factors_describe(&ad->arena, w, &f));
        D9D_TRY(D9D_VEC_PUSH(&ad->list, f));
    }
    return D9D_OK;
}

d9d_status d9d_adapters_check_writable(const d9d_params *params, const d9d_model_matrices *of)
{
    d9di_peft_modules modules = {0};
    d9d_adapters *ad = NULL;
    d9d_status st;

    D9D_TRY(d9di_adapters_create(&ad));
    st = factors_list(params, ad);
    if (st == D9D_OK)
        st = d9di_peft_modules_make(ad, of, &modules);
    if (st == D9D_OK)
        st = d9di_adapters_saved_list(params, ad);
    if (st == D9D_OK)
        st = d9di_adapters_saved_check(ad, of);
    d9di_peft_modules_release(&modules);
    d9d_adapters_free(ad);
    return st;
}

/* --- into a model ---------------------------------------------------------------------------- */

/* Factors as a tensor source, with a model's names and shapes. */
typedef struct memory_source {
    d9d_safetensors_tensor *tensors;
    const float **values;
    size_t n;
    d9d_arena arena;
} memory_source;

static const d9d_safetensors_tensor *memory_at(void *self, size_t i)
{
    return &((memory_source *)self)->tensors[i];
}

static const char *memory_place(void *self, size_t i)
{
    (void)self, (void)i;
    return "adapter";
}

static d9d_status memory_read(void *self, size_t i, uint64_t at, void *dst, uint64_t n)
{
    memcpy(dst, (const char *)((memory_source *)self)->values[i] + at, n);
    return D9D_OK;
}

/* Add one parameter; of a stack transposed. */
static d9d_status memory_add(memory_source *m, const d9di_adapters_factors *f, int i,
                             const d9d_param *to)
{
    const d9d_shape s = d9di_adapters_shape(f, i);
    d9d_safetensors_tensor *t = &m->tensors[m->n];
    float *turned;

    t->name = to->name;
    t->dtype = D9D_F32;
    t->ndim = to->spec.shape.ndim;
    memcpy(t->shape, to->spec.shape.dim, (size_t)t->ndim * sizeof(t->shape[0]));
    t->bytes = (uint64_t)(f->experts * d9d_shape_numel(&s)) * sizeof(float);
    m->values[m->n++] = f->v[i];
    if (!f->stack)
        return D9D_OK;
    turned = numbers(&m->arena, f->experts, &s);
    if (turned == NULL)
        return D9D_FAIL(D9D_ENOMEM, "adapter of %s: %llu bytes", f->name,
                        (unsigned long long)t->bytes);
    transpose(f->v[i], turned, f->experts, s.dim[0], s.dim[1]);
    m->values[m->n - 1] = turned;
    return D9D_OK;
}

/* Is f the adapter of matrix w?  The two functions below find one by the other; NULL: none. */
static bool is_adapter_of(const d9di_adapters_factors *f, const d9d_param *w)
{
    const size_t n = strlen(f->name);

    return w != NULL && strncmp(w->name, f->name, n) == 0 && strcmp(w->name + n, weight) == 0;
}
static const d9d_param *param_of(const d9d_params *params, const d9di_adapters_factors *f)
{
    for (size_t i = 0; i < params->n; i++)
        if (is_adapter_of(f, params->p[i]->peft.adapts))
            return params->p[i]->peft.adapts;
    return NULL;
}
static const d9di_adapters_factors *factors_of(const d9d_adapters *ad, const d9d_param *w)
{
    for (size_t k = 0; k < ad->list.len; k++)
        if (is_adapter_of(&ad->list.data[k], w))
            return &ad->list.data[k];
    return NULL;
}

/* Collect the factors of these parameters, which may be those of one stage. */
static d9d_status memory_make(memory_source *m, const d9d_adapters *ad, const d9d_params *params)
{
    const size_t most = D9D_ADAPTER_PARAMS * ad->list.len + 1;

    m->tensors = d9d_arena_alloc(&m->arena, most * sizeof(*m->tensors));
    m->values = d9d_arena_alloc(&m->arena, most * sizeof(*m->values));
    if (m->tensors == NULL || m->values == NULL)
        return D9D_FAIL(D9D_ENOMEM, "adapters: no memory for records of %zu", ad->list.len);
    for (size_t i = 0; i < ad->list.len; i++) {
        const d9di_adapters_factors *f = &ad->list.data[i];
        const d9d_param *w = param_of(params, f);

        for (int k = 0; w != NULL && k < D9D_ADAPTER_PARAMS; k++)
            if (d9di_adapters_has_param(f, k) && w->peft.adapter->param[k]->peft.adapts == w)
                D9D_TRY(memory_add(m, f, k, w->peft.adapter->param[k]));
    }
    return D9D_OK;
}

static d9d_status factors_check(const d9di_adapters_factors *f, const d9d_param *w)
{
    const d9d_param_adapter *adapter = w->peft.adapter;
    const double here = (double)adapter->scale, there = f->alpha / (double)f->r;
    unsigned params = 0;

    for (int i = 0; i < D9D_ADAPTER_PARAMS; i++)
        params |= adapter->param[i] != NULL ? 1u << i : 0;
    if (f->params != params || f->own != (adapter->forward != NULL ? adapter->kind : NULL))
        return D9D_FAIL(D9D_EMISMATCH,
                        "%s: the adapter of the files is of another method than that of the "
                        "configuration",
                        w->name);
    if (f->own != NULL && f->own->files != NULL && f->own->files->seed != NULL &&
        f->seed != adapter->seed)
        return D9D_FAIL(D9D_EMISMATCH,
                        "%s: the adapter of the files has the seed %llu, that of the configuration "
                        "%llu",
                        w->name, (unsigned long long)f->seed, (unsigned long long)adapter->seed);
    if (f->r == 0 && adapter->r == 0)
        return D9D_OK;
    if (f->r != adapter->r)
        return D9D_FAIL(D9D_EMISMATCH,
                        "%s: the adapter of the files has rank %lld, that of the configuration "
                        "%lld",
                        w->name, (long long)f->r, (long long)adapter->r);
    if (here != (double)(float)there)
        return D9D_FAIL(D9D_EMISMATCH,
                        "%s: the adapter of the files has alpha / r = %g, that of the "
                        "configuration %g",
                        w->name, there, here);
    return D9D_OK;
}

d9d_status d9d_adapters_check(const d9d_adapters *ad, const d9d_params *params)
{
    for (size_t i = 0; i < params->n; i++) {
        const d9d_param *w = params->p[i]->peft.adapts;
        const d9di_adapters_factors *f = factors_of(ad, w);

        if (f == NULL)
            return D9D_FAIL(D9D_EMISMATCH,
                            "%s: has an adapter in the configuration and none in the files",
                            w->name);
        D9D_TRY(factors_check(f, w));
    }
    for (size_t k = 0; k < ad->list.len; k++)
        if (param_of(params, &ad->list.data[k]) == NULL)
            return D9D_FAIL(D9D_EMISMATCH,
                            "%s%s: has an adapter in the files and none in the configuration",
                            ad->list.data[k].name, weight);
    return D9D_OK;
}

d9d_status d9di_adapters_params_fill(d9d_safetensors_tensor *tensors, const float **values,
                                     size_t n, const d9d_params *params, const d9d_log *log)
{
    memory_source memory = {.tensors = tensors, .values = values, .n = n};
    const d9d_tensor_source src = {
        .self = &memory, .n = n, .at = memory_at, .path = memory_place, .read = memory_read};
    const d9d_map_plan_opts opt = {
        .cast = true, .cast_to = params->p[0]->spec.dtype, .source = "adapter", .mapper = "model"};
    d9d_params_io *io = NULL;
    d9d_mapper *m = NULL;
    d9d_map_plan *plan = NULL;
    d9d_tensor_sink sink;
    d9d_status st;

    D9D_TRY_OR(st, d9d_mapper_create(&m), out);
    for (size_t i = 0; i < n; i++)
        D9D_TRY_OR(st, d9d_mapper_identity(m, tensors[i].name), out);
    D9D_TRY_OR(st, d9d_map_plan_create(m, &src, &opt, &plan), out);
    D9D_TRY_OR(st, d9d_params_io_open(params, D9D_PARAMS_DATA, &io), out);
    sink = d9d_params_io_sink(io);
    st = d9d_map_plan_run(plan, &sink, 0, log);
out:
    d9d_params_io_close(io);
    d9d_map_plan_free(plan);
    d9d_mapper_free(m);
    return st;
}

d9d_status d9d_adapters_to_model(const d9d_adapters *ad, const d9d_params *params,
                                 const d9d_log *log)
{
    memory_source m = {0};
    d9d_status st;

    if (params->n == 0)
        return D9D_OK;
    D9D_TRY_OR(st, memory_make(&m, ad, params), out);
    st = d9di_adapters_params_fill(m.tensors, m.values, m.n, params, log);
out:
    d9d_arena_release(&m.arena);
    return st;
}
