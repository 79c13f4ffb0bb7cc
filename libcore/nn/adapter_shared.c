/* adapter_shared.c - arrays that matrices share: drawn once, a part for each.  See
 * d9d/nn/adapter.h.
 */
#include <stdlib.h>
#include <string.h>

#include "d9d/base/plugin_call.h"
#include "d9d/nn/adapter.h"

void d9d_adapter_shared_part(const float *all, int64_t columns, const d9d_shape *shape,
                             const int64_t *first, float *to)
{
    const int64_t rows = shape->dim[0], n = shape->ndim > 1 ? shape->dim[1] : 1,
                  at = shape->ndim > 1 ? first[1] : 0;

    for (int64_t i = 0; i < rows; i++)
        memcpy(to + i * n, all + (first[0] + i) * columns + at, (size_t)n * sizeof(*to));
}

/* Shared parameter i of a matrix; NULL: it has none. */
static d9d_param *shared_of(const d9d_param *w, int i)
{
    const d9d_param_adapter *a = w->peft.adapter;

    return a != NULL && a->forward != NULL && a->kind->params[i].shared ? a->param[i] : NULL;
}

static bool has_shared(const d9d_param *w)
{
    for (int i = 0; i < D9D_ADAPTER_PARAMS; i++)
        if (shared_of(w, i) != NULL)
            return true;
    return false;
}

d9d_status d9d_adapter_shared_check(const d9d_params *params)
{
    const d9d_param *first = NULL;

    for (size_t i = 0; i < params->n; i++) {
        const d9d_param *w = params->p[i];
        const d9d_param_adapter *a, *b;

        if (!has_shared(w))
            continue;
        first = first != NULL ? first : w;
        a = first->peft.adapter;
        b = w->peft.adapter;
        if (a->kind != b->kind || a->r != b->r || a->seed != b->seed)
            return D9D_FAIL(D9D_ECONFIG,
                            "peft: %s has an adapter %s of rank %lld and seed %llu, %s one %s of "
                            "rank %lld and seed %llu, and adapters with shared arrays are of one "
                            "kind, rank and seed",
                            first->name, a->name, (long long)a->r, (unsigned long long)a->seed,
                            w->name, b->name, (long long)b->r, (unsigned long long)b->seed);
    }
    return D9D_OK;
}

/* The sizes of the arrays, of all matrices that share them; a->out is 0 if there are none. */
static d9d_adapter_arrays sizes_of(const d9d_params *whole)
{
    d9d_adapter_arrays of = {0};

    for (size_t i = 0; i < whole->n; i++) {
        const d9d_param *w = whole->p[i];

        if (!has_shared(w))
            continue;
        of.out = w->spec.shape.dim[0] > of.out ? w->spec.shape.dim[0] : of.out;
        of.in = w->spec.shape.dim[1] > of.in ? w->spec.shape.dim[1] : of.in;
        of.r = w->peft.adapter->r;
        of.scale = w->peft.adapter->scale;
        of.seed = w->peft.adapter->seed;
    }
    return of;
}

/* Set a rank's part of a parameter. */
static d9d_status part_put(d9d_param *p, d9d_device *dev, const float *all, int64_t columns)
{
    const d9d_shape *s = &p->shard.shape;
    float *part = malloc((size_t)d9d_shape_numel(s) * sizeof(*part) + 1);
    d9d_tensor host;
    d9d_status st;

    if (part == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %lld numbers", p->name, (long long)d9d_shape_numel(s));
    d9d_adapter_shared_part(all, columns, s, p->shard.offset, part);
    st = d9d_tensor_from_host(dev, D9D_F32, *s, part, &host);
    free(part);
    D9D_TRY(st);
    st = dev->kernels->elementwise->cast(dev->stream, p->shard.data.dtype,
                                         d9d_tensor_data(&p->shard.data), D9D_F32,
                                         d9d_tensor_data(&host), d9d_shape_numel(s));
    d9d_tensor_release(&host);
    return st;
}

/* Draw array i and give each matrix of `params` its part. */
static d9d_status array_start(const d9d_adapter_kind *kind, const d9d_adapter_arrays *of, int i,
                              const d9d_params *params, d9d_device *dev)
{
    const d9d_shape all = d9d_adapter_shape(kind, i, &D9D_SHAPE(of->out, of->in), of->r);
    float *v = malloc((size_t)d9d_shape_numel(&all) * sizeof(*v) + 1);
    d9d_status st;

    if (v == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %s of %lld numbers", kind->name, kind->params[i].name,
                        (long long)d9d_shape_numel(&all));
    st = D9D_PLUGIN_CALL(kind->name, kind, draw, of, i, v);
    for (size_t k = 0; k < params->n && st == D9D_OK; k++) {
        d9d_param *p = shared_of(params->p[k], i);

        if (p != NULL)
            st = part_put(p, dev, v, all.ndim > 1 ? all.dim[1] : 1);
    }
    free(v);
    return st;
}

d9d_status d9d_adapter_shared_start(const d9d_params *whole, const d9d_params *params,
                                    d9d_device *dev)
{
    const d9d_adapter_arrays of = sizes_of(whole);
    const d9d_adapter_kind *kind = NULL;

    for (size_t i = 0; i < params->n && kind == NULL; i++)
        kind = has_shared(params->p[i]) ? params->p[i]->peft.adapter->kind : NULL;
    for (int i = 0; kind != NULL && i < D9D_ADAPTER_PARAMS; i++)
        if (kind->params[i].name != NULL && kind->params[i].shared)
            D9D_TRY(array_start(kind, &of, i, params, dev));
    return D9D_OK;
}
