/* adapter_own_read.c - parameters of a kind of its own, of adapter_model.safetensors.  See
 * adapter_reader.h. */
#include <stdlib.h>
#include <string.h>

#include "d9d/base/plugin_call.h"
#include "model/lora/adapter_reader.h"

/* Of a module's own parameters, shared arrays are none. */
static const d9d_safetensors_tensor *param_find(const d9di_peft_reader *r, const char *module,
                                                int i)
{
    return r->own->params[i].name == NULL || r->own->params[i].shared
               ? NULL
               : d9di_peft_tensor_find(r, module, d9di_peft_own_name(r->own, i));
}

bool d9di_peft_own_is_adapted(const d9di_peft_reader *r, const char *module)
{
    for (int i = 0; i < D9D_ADAPTER_PARAMS; i++)
        if (param_find(r, module, i) != NULL)
            return true;
    return false;
}

/* The shared array i of the file; NULL: it has none. */
static const d9d_safetensors_tensor *shared_find(const d9di_peft_reader *r, int i)
{
    const d9d_adapter_param *p = &r->own->params[i];

    for (size_t k = 0; p->name != NULL && p->shared && k < d9d_safetensors_count(r->file); k++)
        if (strcmp(d9d_safetensors_at(r->file, k)->name, p->file) == 0)
            return d9d_safetensors_at(r->file, k);
    return NULL;
}

/* The rank of a module's adapter, by the first dimension that has it; 0: the kind has none. */
static int64_t rank_of(const d9di_peft_reader *r, const char *module, int64_t in)
{
    for (int i = 0; i < D9D_ADAPTER_PARAMS; i++) {
        const d9d_safetensors_tensor *own = param_find(r, module, i),
                                     *t = own != NULL ? own : shared_find(r, i);
        const d9d_adapter_dim *dim = r->own->params[i].dim;

        for (int d = 0; t != NULL && d < t->ndim && d < 2; d++)
            if (dim[d] == D9D_ADAPTER_RANK)
                return t->shape[d];
            else if (dim[d] == D9D_ADAPTER_IN_BLOCKS)
                return t->shape[d] > 0 && in % t->shape[d] == 0 ? in / t->shape[d] : 0;
    }
    return 0;
}

/* All parameters are there: a rank may be that of one that is missing. */
static d9d_status params_check(const d9di_peft_reader *r, const char *module)
{
    for (int i = 0; i < D9D_ADAPTER_PARAMS; i++)
        if (r->own->params[i].name != NULL && !r->own->params[i].shared &&
            param_find(r, module, i) == NULL)
            return D9D_FAIL(D9D_EMISMATCH, "%s: the adapter of %s has no %s",
                            d9d_safetensors_path(r->file), module, d9di_peft_own_name(r->own, i));
    return D9D_OK;
}

/* A parameter, which is there. */
static d9d_status param_check(const d9di_peft_reader *r, const char *module,
                              const d9di_adapters_factors *f, int i)
{
    const d9d_safetensors_tensor *t = param_find(r, module, i);
    const d9d_shape want = d9di_adapters_shape(f, i);
    const long long rows = want.dim[0], columns = want.ndim > 1 ? want.dim[1] : 1;

    if (t->ndim != want.ndim || t->shape[0] != rows || (t->ndim > 1 && t->shape[1] != columns))
        return D9D_FAIL(D9D_EMISMATCH, "%s: %s is not [%lld, %lld] as the model and rank %lld need",
                        d9d_safetensors_path(r->file), t->name, rows, columns, (long long)f->r);
    if (t->dtype != f->dtype)
        return D9D_FAIL(D9D_EMISMATCH, "%s: %s is %s, the adapter's first tensor %s",
                        d9d_safetensors_path(r->file), t->name, d9d_dtype_name(t->dtype),
                        d9d_dtype_name(f->dtype));
    return D9D_OK;
}

/* Read parameter i; rows of outputs lie in the tensor's order. */
static d9d_status param_read(d9di_peft_reader *r, const d9d_model_matrix_place *p,
                             const char *module, d9di_adapters_factors *f, int i)
{
    const d9d_shape s = d9di_adapters_shape(f, i);
    const int64_t columns = s.ndim > 1 ? s.dim[1] : 1;
    const bool by_output = r->own->params[i].dim[0] == D9D_ADAPTER_OUT;
    float *all = malloc((size_t)d9d_shape_numel(&s) * sizeof(*all) + 1);
    d9d_status st = all != NULL ? d9di_peft_tensor_read_f32(r, param_find(r, module, i), all)
                                : d9di_peft_no_memory(r);

    for (int64_t k = 0; st == D9D_OK && k < s.dim[0]; k++)
        memcpy(f->v[i] + k * columns,
               all + (by_output ? d9di_peft_place_feature(p, k) : k) * columns,
               (size_t)columns * sizeof(*all));
    free(all);
    return st;
}

static d9d_status module_read(d9di_peft_reader *r, const d9d_model_matrix *m, const char *module,
                              const d9d_model_matrix_place *p)
{
    d9di_adapters_factors f = {.name = m->name,
                               .experts = 1,
                               .in = m->in,
                               .out = m->out,
                               .own = r->own,
                               .seed = r->seed,
                               .r = rank_of(r, module, m->in)},
                          *added;

    D9D_TRY(d9di_peft_own_check(r->own, r->matrices, m));
    D9D_TRY(params_check(r, module));
    if (r->own->files->rank != NULL)
        D9D_TRY(d9di_peft_alpha_of(r, module, f.r, &f.alpha));
    if (r->own->files->alpha == NULL)
        f.alpha = (double)f.r;
    for (int i = 0; i < D9D_ADAPTER_PARAMS; i++) {
        const d9d_safetensors_tensor *t = param_find(r, module, i);

        f.params |= r->own->params[i].name != NULL ? 1u << i : 0;
        f.dtype = t != NULL ? t->dtype : f.dtype;
    }
    for (int i = 0; i < D9D_ADAPTER_PARAMS; i++)
        if (d9di_adapters_has_param(&f, i) && !d9di_adapters_is_shared(&f, i))
            D9D_TRY(param_check(r, module, &f, i));
    D9D_TRY(d9di_adapters_add(r->ad, &f, &added));
    for (int i = 0; i < D9D_ADAPTER_PARAMS; i++)
        if (d9di_adapters_has_param(&f, i) && !d9di_adapters_is_shared(&f, i))
            D9D_TRY(param_read(r, p, module, added, i));
    return D9D_OK;
}

d9d_status d9di_peft_own_read(d9di_peft_reader *r, const d9d_model_matrix *m)
{
    const d9d_model_matrix_place *p = &m->module;
    const char *tensor, *module;

    if (m->experts > 0 || p->tensor == NULL)
        return D9D_OK;
    tensor = d9di_peft_tensor_name(r, p, 0);
    module = tensor != NULL ? d9d_arena_strndup(&r->arena, tensor, d9di_peft_module_length(tensor))
                            : NULL;
    if (module == NULL)
        return d9di_peft_no_memory(r);
    return d9di_peft_own_is_adapted(r, module) ? module_read(r, m, module, p) : D9D_OK;
}

/* --- arrays that matrices share ----------------------------------------------------------------
 */

/* The shape of array i in the file, which may have more inputs or outputs than the matrices need.
 */
static d9d_status shared_check(const d9di_peft_reader *r, const d9d_safetensors_tensor *t, int i,
                               d9d_shape *shape)
{
    const d9d_adapter_param *p = &r->own->params[i];
    bool fits = t->ndim == shape->ndim;

    for (int d = 0; d < shape->ndim && fits; d++)
        fits = p->dim[d] == D9D_ADAPTER_RANK ? t->shape[d] == shape->dim[d]
                                             : t->shape[d] >= shape->dim[d];
    if (!fits)
        return D9D_FAIL(
            D9D_EMISMATCH, "%s: %s is not [%lld, %lld] or larger, as the model and rank %lld need",
            d9d_safetensors_path(r->file), t->name, (long long)shape->dim[0],
            (long long)(shape->ndim > 1 ? shape->dim[1] : 1), (long long)r->ad->list.data[0].r);
    for (int d = 0; d < shape->ndim; d++)
        shape->dim[d] = t->shape[d];
    return D9D_OK;
}

/* Has the file array i if the configuration says so, and not if it says no? */
static d9d_status presence_check(const d9di_peft_reader *r, const d9d_safetensors_tensor *t, int i)
{
    const char *has = r->own->files->has_shared;

    if (r->draws == (t == NULL))
        return D9D_OK;
    if (has == NULL)
        return D9D_FAIL(D9D_EMISMATCH, "%s: does not have %s, which the matrices share",
                        d9d_safetensors_path(r->file), r->own->params[i].file);
    return D9D_FAIL(D9D_EMISMATCH, "%s: %s %s, and %s of %s is %s", d9d_safetensors_path(r->file),
                    t == NULL ? "does not have" : "has", r->own->params[i].file, has,
                    r->config_path, r->draws ? "false" : "true");
}

/* Array i of the file, or drawn; in the arena. */
static d9d_status shared_load(d9di_peft_reader *r, int i, d9d_shape *shape, float **out)
{
    const d9d_safetensors_tensor *t = shared_find(r, i);
    const d9di_adapters_factors *first = r->ad->list.data;
    const d9d_shape largest = d9di_adapters_largest(r->ad);
    const d9d_adapter_arrays of = {.in = largest.dim[1],
                                   .out = largest.dim[0],
                                   .r = first->r,
                                   .scale = (float)(first->alpha / (double)first->r),
                                   .seed = r->seed};

    D9D_TRY(presence_check(r, t, i));
    *shape = d9d_adapter_shape(r->own, i, &largest, first->r);
    if (t != NULL)
        D9D_TRY(shared_check(r, t, i, shape));
    *out = d9d_arena_alloc(&r->arena, (uint64_t)d9d_shape_numel(shape) * sizeof(**out) + 1);
    if (*out == NULL)
        return d9di_peft_no_memory(r);
    return t != NULL ? d9di_peft_tensor_read_f32(r, t, *out)
                     : D9D_PLUGIN_CALL(r->own->name, r->own, draw, &of, i, *out);
}

static d9d_status shared_read(d9di_peft_reader *r, int i)
{
    static const int64_t begin[2] = {0, 0};
    d9d_shape all = D9D_SCALAR;
    float *v = NULL;

    D9D_TRY(shared_load(r, i, &all, &v));
    for (size_t k = 0; k < r->ad->list.len; k++) {
        const d9di_adapters_factors *f = &r->ad->list.data[k];
        const d9d_shape part = d9di_adapters_shape(f, i);

        if (d9di_adapters_shared_numbers(r->ad, f, i) != NULL)
            continue;
        d9d_adapter_shared_part(v, all.ndim > 1 ? all.dim[1] : 1, &part, begin, f->v[i]);
    }
    return D9D_OK;
}

d9d_status d9di_peft_shared_read(d9di_peft_reader *r)
{
    for (int i = 0; i < D9D_ADAPTER_PARAMS && r->own != NULL && r->ad->list.len > 0; i++)
        if (r->own->params[i].name != NULL && r->own->params[i].shared)
            D9D_TRY(shared_read(r, i));
    return D9D_OK;
}
