/* kv_cache.c - see d9d/model/kv_cache.h. */
#include "d9d/model/kv_cache.h"

#include <stdlib.h>

/* A table built with an older header has no cache_spec. */
static bool has_cache_spec(const d9d_model_ops *ops)
{
    return ops->size > offsetof(d9d_model_ops, cache_spec) && ops->cache_spec != NULL;
}

const char *const d9d_kv_cache_dtype_names[] = {"auto", "fp8", NULL};

/* What a layer stores: its entries, and in 8 bits their scales behind them. */
static d9d_status find_entries(const d9d_model *m, d9d_kv_cache_dtype t, int64_t layer,
                               d9d_block_cache_spec *out)
{
    size_t listed;

    m->ops->cache_spec(m, layer, out);
    listed = out->n;
    for (size_t i = 0; i < listed && t == D9D_KV_CACHE_FP8; i++) {
        d9d_block_cache_entry *e = &out->item[i];

        if (e->per_seq)
            continue;
        if (!e->narrows || e->shape.ndim != 2 || out->n == D9D_BLOCK_CACHE_MAX)
            return D9D_FAIL(D9D_ENOTSUP,
                            "%s: its KV cache stores \"%s\" of each token, which cannot be in fp8; "
                            "kv_cache_dtype auto",
                            m->ops->name, e->name);
        out->item[out->n++] = (d9d_block_cache_entry){
            .name = e->name, .dtype = D9D_F32, .shape = D9D_SHAPE(e->shape.dim[0])};
        e->dtype = D9D_F8_E4M3;
    }
    return D9D_OK;
}

d9d_status d9d_kv_cache_check(const d9d_model *m, d9d_kv_cache_dtype t)
{
    d9d_block_cache_spec entries;

    if (!has_cache_spec(m->ops))
        return D9D_FAIL(D9D_ENOTSUP, "%s: this model has no KV cache, so it cannot generate",
                        m->ops->name);
    for (int64_t l = 0; l < m->layers && t != D9D_KV_CACHE_AUTO; l++)
        D9D_TRY(find_entries(m, t, l, &entries));
    return D9D_OK;
}

/* Shape of all slots of an entry: [Z or R, ...]. */
static d9d_shape entry_shape(const d9d_block_cache_entry *c, int64_t tokens, int64_t seqs)
{
    d9d_shape s = {.ndim = c->shape.ndim + 1, .dim = {c->per_seq ? seqs : tokens}};

    for (int i = 0; i < c->shape.ndim; i++)
        s.dim[i + 1] = c->shape.dim[i];
    return s;
}

uint64_t d9d_kv_cache_bytes(const d9d_model *m, d9d_kv_cache_dtype t, int64_t tokens, int64_t seqs)
{
    uint64_t sum = 0;
    d9d_block_cache_spec entries;

    for (int64_t l = 0; has_cache_spec(m->ops) && l < m->layers; l++) {
        if (find_entries(m, t, l, &entries) != D9D_OK)
            return 0;
        for (size_t i = 0; i < entries.n; i++) {
            const d9d_shape all = entry_shape(&entries.item[i], tokens, seqs);

            sum += (uint64_t)d9d_shape_numel(&all) * d9d_dtype_size(entries.item[i].dtype);
        }
    }
    return sum;
}

static d9d_status layers_alloc(const d9d_model *m, d9d_device *dev, d9d_kv_cache_dtype t,
                               d9d_kv_cache *c)
{
    d9d_block_cache_spec entries;

    c->entry = calloc((size_t)c->layers + 1, sizeof(*c->entry));
    if (c->entry == NULL)
        return D9D_FAIL(D9D_ENOMEM, "KV cache: no memory for %lld layers", (long long)c->layers);
    for (int64_t l = 0; l < c->layers; l++) {
        D9D_TRY(find_entries(m, t, l, &entries));
        for (size_t i = 0; i < entries.n; i++)
            D9D_TRY(d9d_tensor_alloc(dev, entries.item[i].dtype,
                                     entry_shape(&entries.item[i], c->tokens, c->seqs),
                                     &c->entry[l][i]));
    }
    return D9D_OK;
}

d9d_status d9d_kv_cache_create(const d9d_model *m, d9d_device *dev, d9d_kv_cache_dtype t,
                               int64_t tokens, int64_t seqs, d9d_kv_cache *out)
{
    d9d_kv_cache c = {.layers = m->layers, .tokens = tokens, .seqs = seqs};
    d9d_status st;

    D9D_TRY(d9d_kv_cache_check(m, t));
    st = layers_alloc(m, dev, t, &c);
    if (st == D9D_OK)
        *out = c;
    else
        d9d_kv_cache_release(&c);
    return st;
}

/* n slots of an entry. */
static d9d_status slots_copy(d9d_device *dev, const d9d_tensor *entry, int64_t from, int64_t to,
                             int64_t n)
{
    const uint64_t slot = d9d_tensor_bytes(entry) / (uint64_t)entry->shape.dim[0];
    char *data = d9d_tensor_data(entry);

    return d9d_device_copy(dev, data + (uint64_t)to * slot, data + (uint64_t)from * slot,
                           (uint64_t)n * slot);
}

d9d_status d9d_kv_cache_copy(const d9d_model *m, d9d_device *dev, d9d_kv_cache_dtype t,
                             const d9d_kv_cache *c, const d9d_kv_cache_copy_opts *o)
{
    d9d_block_cache_spec entries;

    for (int64_t l = 0; l < c->layers; l++) {
        D9D_TRY(find_entries(m, t, l, &entries));
        for (size_t i = 0; i < entries.n; i++)
            D9D_TRY(entries.item[i].per_seq
                        ? slots_copy(dev, &c->entry[l][i], o->from_seq, o->to_seq, 1)
                        : slots_copy(dev, &c->entry[l][i], o->from_token, o->to_token, o->n));
    }
    return D9D_OK;
}

void d9d_kv_cache_release(d9d_kv_cache *c)
{
    for (int64_t l = 0; c->entry != NULL && l < c->layers; l++)
        for (int i = 0; i < D9D_BLOCK_CACHE_MAX; i++)
            d9d_tensor_release(&c->entry[l][i]);
    free(c->entry);
    *c = (d9d_kv_cache){0};
}
