/* kv_cache.c - see d9d/model/kv_cache.h. */
#include "d9d/model/kv_cache.h"

#include <stdlib.h>

/* A table of an older header ends before. */
static bool has_cells(const d9d_model_ops *ops)
{
    return ops->size > offsetof(d9d_model_ops, cells) && ops->cells != NULL;
}

d9d_status d9d_cache_check(const d9d_model *m)
{
    return has_cells(m->ops) ? D9D_OK
                             : D9D_FAIL(D9D_ENOTSUP,
                                        "%s: keeps nothing of the tokens that it has seen, without "
                                        "which nothing is generated",
                                        m->ops->name);
}

/* All cells of a kind: [Z or R, ...]. */
static d9d_shape all_of(const d9d_cell *c, int64_t tokens, int64_t rows)
{
    d9d_shape s = {.ndim = c->shape.ndim + 1, .dim = {c->of_row ? rows : tokens}};

    for (int i = 0; i < c->shape.ndim; i++)
        s.dim[i + 1] = c->shape.dim[i];
    return s;
}

uint64_t d9d_cache_bytes(const d9d_model *m, int64_t tokens, int64_t rows)
{
    uint64_t sum = 0;
    d9d_cells cells;

    for (int64_t l = 0; has_cells(m->ops) && l < m->layers; l++) {
        m->ops->cells(m, l, &cells);
        for (size_t i = 0; i < cells.n; i++) {
            const d9d_shape all = all_of(&cells.item[i], tokens, rows);

            sum += (uint64_t)d9d_shape_numel(&all) * d9d_dtype_size(cells.item[i].dtype);
        }
    }
    return sum;
}

static d9d_status layers_create(const d9d_model *m, d9d_device *dev, d9d_cache *c)
{
    d9d_cells cells;

    c->cell = calloc((size_t)c->layers + 1, sizeof(*c->cell));
    if (c->cell == NULL)
        return D9D_FAIL(D9D_ENOMEM, "cache: %lld layers", (long long)c->layers);
    for (int64_t l = 0; l < c->layers; l++) {
        m->ops->cells(m, l, &cells);
        for (size_t i = 0; i < cells.n; i++)
            D9D_TRY(d9d_tensor_alloc(dev, cells.item[i].dtype,
                                     all_of(&cells.item[i], c->tokens, c->rows), &c->cell[l][i]));
    }
    return D9D_OK;
}

d9d_status d9d_cache_create(const d9d_model *m, d9d_device *dev, int64_t tokens, int64_t rows,
                            d9d_cache *out)
{
    d9d_cache c = {.layers = m->layers, .tokens = tokens, .rows = rows};
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
    for (int64_t l = 0; c->cell != NULL && l < c->layers; l++)
        for (int i = 0; i < D9D_CELLS_MOST; i++)
            d9d_tensor_release(&c->cell[l][i]);
    free(c->cell);
    *c = (d9d_cache){0};
}
