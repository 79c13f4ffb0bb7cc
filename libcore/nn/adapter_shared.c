/* adapter_shared.c - arrays that matrices share: one parameter for those that need the same part.
 * See d9d/nn/adapter.h.
 */
#include <stdlib.h>
#include <string.h>

#include "d9d/base/hash.h"
#include "d9d/base/plugin_call.h"
#include "d9d/nn/adapter.h"

bool d9d_adapter_is_shared(const d9d_param *w, int i)
{
    const d9d_param_adapter *a = w->peft.adapter;

    return a != NULL && a->forward != NULL && a->param[i] != NULL && a->kind->params[i].shared;
}

int d9d_adapter_divided_dim(const d9d_param *w, int i)
{
    const int dim = d9d_parallel_style_dim(w->spec.parallel.style);

    return dim < 0 ? -1 : d9d_adapter_shared_dim(w->peft.adapter->kind, i, &w->spec.shape, dim);
}

/* --- one parameter of several matrices ---------------------------------------------------------
 */

/* Does the adapter of w have parameter i of its own, or is it that of another matrix? */
static bool owns(const d9d_param *w, int i)
{
    return w->peft.adapter->param[i]->peft.adapts == w;
}

/* Do two matrices need the same part of array i, on every mesh? */
static bool is_same_part(const d9d_param *a, const d9d_param *b, int i)
{
    const d9d_param_adapter *x = a->peft.adapter, *y = b->peft.adapter;
    const d9d_param_parallel *p = &a->spec.parallel, *q = &b->spec.parallel;
    const int dim = d9d_adapter_divided_dim(a, i);

    return x->kind == y->kind && x->r == y->r && x->seed == y->seed &&
           x->param[i]->spec.dtype == y->param[i]->spec.dtype &&
           d9d_shape_equal(&x->param[i]->spec.shape, &y->param[i]->spec.shape) &&
           dim == d9d_adapter_divided_dim(b, i) &&
           (dim < 0 || (p->units == q->units && p->shared == q->shared));
}

typedef D9D_VEC(d9d_param *) matrix_list;

/* The matrix of the list that owns what w needs of array i; NULL: none. */
static d9d_param *owner_find(const matrix_list *list, const d9d_param *w, int i)
{
    for (size_t k = 0; k < list->len; k++)
        if (owns(list->data[k], i) && is_same_part(list->data[k], w, i))
            return list->data[k];
    return NULL;
}

static d9d_status matrix_share(void *arg, d9d_param *w)
{
    matrix_list *list = arg;
    bool any = false;

    for (int i = 0; i < D9D_ADAPTER_PARAMS; i++) {
        const d9d_param *owner;

        if (!d9d_adapter_is_shared(w, i))
            continue;
        owner = owner_find(list, w, i);
        if (owner != NULL)
            w->peft.adapter->param[i] = owner->peft.adapter->param[i];
        else
            any = true;
    }
    return any ? D9D_VEC_PUSH(list, w) : D9D_OK;
}

/* Has the adapter of its matrix another in its place? */
static bool is_replaced(const d9d_param *p)
{
    if (p == NULL || p->peft.adapts == NULL)
        return false;
    for (int i = 0; i < D9D_ADAPTER_PARAMS; i++)
        if (p->peft.adapts->peft.adapter->param[i] == p)
            return false;
    return true;
}

static d9d_status replaced_remove(void *arg, const char *name, d9d_module *m)
{
    (void)arg, (void)name;
    for (size_t i = m->entries.len; i-- > 0;)
        if (is_replaced(m->entries.data[i].param))
            d9d_module_remove(m, m->entries.data[i].param);
    return D9D_OK;
}

d9d_status d9d_adapter_share(d9d_module *root)
{
    matrix_list list = {0};
    d9d_status st = d9d_module_each(root, matrix_share, &list);

    if (st == D9D_OK && list.len > 0)
        st = d9d_module_walk(root, replaced_remove, NULL);
    D9D_VEC_RELEASE(&list);
    return st;
}

static const d9d_param *param_find(const d9d_params *params, const char *name)
{
    for (size_t i = 0; i < params->n; i++)
        if (strcmp(params->p[i]->name, name) == 0)
            return params->p[i];
    return NULL;
}

void d9d_adapter_shared_set_names(const d9d_params *whole, const d9d_params *params)
{
    for (size_t k = 0; k < params->n; k++) {
        const d9d_param *w = params->p[k], *same = NULL;

        for (int i = 0; i < D9D_ADAPTER_PARAMS; i++) {
            d9d_param *p;

            if (!d9d_adapter_is_shared(w, i) || !owns(w, i))
                continue;
            same = same != NULL ? same : param_find(whole, w->name);
            p = w->peft.adapter->param[i];
            p->name = same->peft.adapter->param[i]->name;
            p->id = d9d_hash_u64(p->name, strlen(p->name));
            p->placement.is_primary = owns(same, i);
        }
    }
}

/* --- their numbers -----------------------------------------------------------------------------
 */

void d9d_adapter_shared_part(const float *all, int64_t columns, const d9d_shape *shape,
                             const int64_t *first, float *to)
{
    const int64_t rows = shape->dim[0], n = shape->ndim > 1 ? shape->dim[1] : 1,
                  at = shape->ndim > 1 ? first[1] : 0;

    for (int64_t i = 0; i < rows; i++)
        memcpy(to + i * n, all + (first[0] + i) * columns + at, (size_t)n * sizeof(*to));
}

static bool has_shared(const d9d_param *w)
{
    for (int i = 0; i < D9D_ADAPTER_PARAMS; i++)
        if (d9d_adapter_is_shared(w, i))
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

/* Draw array i and set the parts of it that matrices of `params` own. */
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
        const d9d_param *w = params->p[k];

        if (d9d_adapter_is_shared(w, i) && owns(w, i))
            st = part_put(w->peft.adapter->param[i], dev, v, all.ndim > 1 ? all.dim[1] : 1);
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
