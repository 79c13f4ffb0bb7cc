/* cache.c - see d9d/model/cache.h. */
#include "d9d/model/cache.h"

#include <stdlib.h>

/* A table of an older header ends before. */
static bool has_cache(const d9d_model_ops *ops)
{
    return ops->size > offsetof(d9d_model_ops, cache_cell) && ops->cache_cell != NULL;
}

d9d_status d9d_cache_check(const d9d_model *m)
{
    return has_cache(m->ops) ? D9D_OK
                             : D9D_FAIL(D9D_ENOTSUP,
                                        "%s: keeps no keys and values, without which nothing is "
                                        "generated",
                                        m->ops->name);
}

uint64_t d9d_cache_bytes(const d9d_model *m, int64_t cells)
{
    uint64_t sum = 0;

    for (int64_t i = 0; has_cache(m->ops) && i < m->layers; i++) {
        const d9d_shape cell = m->ops->cache_cell(m, i);

        sum += 2 * (uint64_t)cells * (uint64_t)d9d_shape_numel(&cell) * d9d_dtype_size(m->dtype);
    }
    return sum;
}

static d9d_status layers_create(const d9d_model *m, d9d_device *dev, d9d_cache *c)
{
    c->k = calloc((size_t)c->layers + 1, sizeof(*c->k));
    c->v = calloc((size_t)c->layers + 1, sizeof(*c->v));
    if (c->k == NULL || c->v == NULL)
        return D9D_FAIL(D9D_ENOMEM, "cache: %lld layers", (long long)c->layers);
    for (int64_t i = 0; i < c->layers; i++) {
        const d9d_shape cell = m->ops->cache_cell(m, i);
        const d9d_shape all = D9D_SHAPE(c->cells, cell.dim[0], cell.dim[1]);

        D9D_TRY(d9d_tensor_alloc(dev, m->dtype, all, &c->k[i]));
        D9D_TRY(d9d_tensor_alloc(dev, m->dtype, all, &c->v[i]));
    }
    return D9D_OK;
}

d9d_status d9d_cache_create(const d9d_model *m, d9d_device *dev, int64_t cells, d9d_cache *out)
{
    d9d_cache c = {.layers = m->layers, .cells = cells};
    d9d_status st;

    D9D_TRY(d9d_cache_check(m));
    st = layers_create(m, dev, &c);
    if (st == D9D_OK)
        *out = c;
    else
        d9d_cache_release(&c);
    return st;
}

void d9d_cache_release(d9d_cache *c)
{
    for (int64_t i = 0; i < c->layers; i++) {
        if (c->k != NULL)
            d9d_tensor_release(&c->k[i]);
        if (c->v != NULL)
            d9d_tensor_release(&c->v[i]);
    }
    free(c->k);
    free(c->v);
    *c = (d9d_cache){0};
}
