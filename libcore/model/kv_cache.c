/* kv_cache.c - see d9d/model/kv_cache.h. */
#include "d9d/model/kv_cache.h"

#include <stdlib.h>

/* A table built with an older header has no cache_spec. */
static bool has_cache_spec(const d9d_model_ops *ops)
{
    return ops->size > offsetof(d9d_model_ops, cache_spec) && ops->cache_spec != NULL;
}

d9d_status d9d_kv_cache_check(const d9d_model *m)
{
    return has_cache_spec(m->ops)
               ? D9D_OK
               : D9D_FAIL(D9D_ENOTSUP, "%s: this model has no KV cache, so it cannot generate",
                          m->ops->name);
}

/* Shape of all slots of an entry: [Z or R, ...]. */
static d9d_shape entry_shape(const d9d_block_cache_entry *c, int64_t tokens, int64_t seqs)
{
    d9d_shape s = {.ndim = c->shape.ndim + 1, .dim = {c->per_seq ? seqs : tokens}};

    for (int i = 0; i < c->shape.ndim; i++)
        s.dim[i + 1] = c->shape.dim[i];
    return s;
}

uint64_t d9d_kv_cache_bytes(const d9d_model *m, int64_t tokens, int64_t seqs)
{
    uint64_t sum = 0;
    d9d_block_cache_spec cache_spec;

    for (int64_t l = 0; has_cache_spec(m->ops) && l < m->layers; l++) {
        m->ops->cache_spec(m, l, &cache_spec);
        for (size_t i = 0; i < cache_spec.n; i++) {
            const d9d_shape all = entry_shape(&cache_spec.item[i], tokens, seqs);

            sum += (uint64_t)d9d_shape_numel(&all) * d9d_dtype_size(cache_spec.item[i].dtype);
        }
    }
    return sum;
}

static d9d_status layers_alloc(const d9d_model *m, d9d_device *dev, d9d_kv_cache *c)
{
    d9d_block_cache_spec cache_spec;

    c->entry = calloc((size_t)c->layers + 1, sizeof(*c->entry));
    if (c->entry == NULL)
        return D9D_FAIL(D9D_ENOMEM, "KV cache: no memory for %lld layers", (long long)c->layers);
    for (int64_t l = 0; l < c->layers; l++) {
        m->ops->cache_spec(m, l, &cache_spec);
        for (size_t i = 0; i < cache_spec.n; i++)
            D9D_TRY(d9d_tensor_alloc(dev, cache_spec.item[i].dtype,
                                     entry_shape(&cache_spec.item[i], c->tokens, c->seqs),
                                     &c->entry[l][i]));
    }
    return D9D_OK;
}

d9d_status d9d_kv_cache_create(const d9d_model *m, d9d_device *dev, int64_t tokens, int64_t seqs,
                               d9d_kv_cache *out)
{
    d9d_kv_cache c = {.layers = m->layers, .tokens = tokens, .seqs = seqs};
    d9d_status st;

    D9D_TRY(d9d_kv_cache_check(m));
    st = layers_alloc(m, dev, &c);
    if (st == D9D_OK)
        *out = c;
    else
        d9d_kv_cache_release(&c);
    return st;
}

void d9d_kv_cache_release(d9d_kv_cache *c)
{
    for (int64_t l = 0; c->entry != NULL && l < c->layers; l++)
        for (int i = 0; i < D9D_BLOCK_CACHE_MAX; i++)
            d9d_tensor_release(&c->entry[l][i]);
    free(c->entry);
    *c = (d9d_kv_cache){0};
}
