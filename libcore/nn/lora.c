/* lora.c - see d9d/nn/lora.h. */
#include "d9d/nn/lora.h"

#include <math.h>
#include <string.h>

typedef struct adapter_record {
    d9d_adapter adapter;
    d9d_param a, b;
} adapter_record;

d9d_param *d9d_lora_matrix(const d9d_module *m)
{
    for (size_t i = 0; i < m->entries.len; i++) {
        d9d_param *p = m->entries.data[i].param;

        if (p != NULL && p->spec.adaptable && strcmp(m->entries.data[i].name, "weight") == 0)
            return p;
    }
    return NULL;
}

d9d_status d9d_lora_add(d9d_module *m, const d9d_lora_opts *opts)
{
    d9d_param *w = d9d_lora_matrix(m);
    const bool stack = w != NULL && w->spec.shape.ndim == 3;
    const int64_t *d = w != NULL ? w->spec.shape.dim : NULL, r = opts->r;
    adapter_record *l;

    if (w == NULL || w->lora.adapter != NULL)
        return D9D_FAIL(D9D_EINVAL, "LoRA: the module has %s",
                        w == NULL ? "no matrix" : "an adapter already");
    if (stack && opts->dropout > 0)
        return D9D_FAIL(D9D_EINVAL, "LoRA: adapters of experts support no dropout, it is %g",
                        opts->dropout);
    l = d9d_arena_alloc(&m->names, sizeof(*l));
    if (l == NULL)
        return D9D_FAIL(D9D_ENOMEM, "LoRA: no memory for the record of an adapter");
    D9D_TRY(d9d_module_param(m, "lora_A.weight", &l->a, w->spec.dtype,
                             stack ? D9D_SHAPE(d[0], d[1], r) : D9D_SHAPE(r, d[1]),
                             D9D_INIT_UNIFORM, 1.0f / sqrtf((float)d[1])));
    D9D_TRY(d9d_module_param(m, "lora_B.weight", &l->b, w->spec.dtype,
                             stack ? D9D_SHAPE(d[0], r, d[2]) : D9D_SHAPE(d[0], r), D9D_INIT_ZEROS,
                             0));
    l->a.lora.adapts = l->b.lora.adapts = w;
    l->adapter = (d9d_adapter){
        .a = &l->a,
        .b = &l->b,
        .alpha = opts->alpha,
        .scale = (float)(opts->alpha / (double)r),
        .dropout = (float)opts->dropout,
    };
    w->lora.adapter = &l->adapter;
    return D9D_OK;
}
