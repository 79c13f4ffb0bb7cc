/* adapter_own_read.c - parameters of a kind of its own, of adapter_model.safetensors.  See
 * adapter_reader.h. */
#include <stdlib.h>
#include <string.h>

#include "model/lora/adapter_reader.h"

static const d9d_safetensors_tensor *param_find(const d9di_peft_reader *r, const char *module,
                                                int i)
{
    return r->own->params[i].name == NULL
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

/* The rank of a module's adapter, by the first dimension that has it; 0: the kind has none. */
static int64_t rank_of(const d9di_peft_reader *r, const char *module)
{
    for (int i = 0; i < D9D_ADAPTER_PARAMS; i++) {
        const d9d_safetensors_tensor *t = param_find(r, module, i);

        for (int d = 0; t != NULL && d < t->ndim && d < 2; d++)
            if (r->own->params[i].dim[d] == D9D_ADAPTER_RANK)
                return t->shape[d];
    }
    return 0;
}

static d9d_status param_check(const d9di_peft_reader *r, const char *module,
                              const d9di_adapters_factors *f, int i)
{
    const d9d_safetensors_tensor *t = param_find(r, module, i);
    const d9d_shape want = d9di_adapters_shape(f, i);
    const long long rows = want.dim[0], columns = want.ndim > 1 ? want.dim[1] : 1;

    if (t == NULL)
        return D9D_FAIL(D9D_EMISMATCH, "%s: the adapter of %s has no %s",
                        d9d_safetensors_path(r->file), module, d9di_peft_own_name(r->own, i));
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
                               .r = rank_of(r, module)},
                          *added;

    D9D_TRY(d9di_peft_own_check(r->own, r->matrices, m));
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
        if (d9di_adapters_has_param(&f, i))
            D9D_TRY(param_check(r, module, &f, i));
    D9D_TRY(d9di_adapters_add(r->ad, &f, &added));
    for (int i = 0; i < D9D_ADAPTER_PARAMS; i++)
        if (d9di_adapters_has_param(&f, i))
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
