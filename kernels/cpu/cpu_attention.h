/* cpu_attention.h - what the forward and the backward of attention share.
 *
 * Queries and keys are taken in blocks; a block of scores, its softmax and its products
 * stay in the cache.  Blocks that a causal mask or other segments hide are skipped.
 */
#ifndef D9D_CPU_ATTENTION_H
#define D9D_CPU_ATTENTION_H

#include "cpu_common.h"

enum {
    D9DI_Q_BLOCK = 64, /* query rows of a block of scores */
    D9DI_K_BLOCK = 128 /* key rows */
};

/* Rows of one head as a float32 matrix: where they are, or converted into a buffer. */
typedef struct d9di_rows {
    const float *x;
    int64_t ld;
} d9di_rows;

/* Rows [first, first + n) of head h of x [B, S, heads, D], counted over B and S. */
static inline d9di_rows d9di_rows_of(d9d_dtype t, const void *x, int64_t first, int64_t n,
                                     int64_t heads, int64_t h, int64_t d, float *buf)
{
    if (t == D9D_F32)
        return (d9di_rows){(const float *)x + (first * heads + h) * d, heads * d};
    for (int64_t i = 0; i < n; i++)
        d9di_from_bf16(buf + i * d, (const uint16_t *)x + ((first + i) * heads + h) * d, d);
    return (d9di_rows){buf, d};
}

/* One block of scores: queries [q, q + nq) and keys [k, k + nk) of batch entry b. */
typedef struct d9di_tile {
    int64_t b, q, nq, k, nk;
} d9di_tile;

/* Whether some query of the tile may see some key. */
bool d9di_tile_visible(const d9d_attention_dims *n, const d9di_tile *t);
/* How many of the tile's keys, from the first, query i of it may see by the causal rule. */
static inline int64_t d9di_tile_limit(const d9d_attention_dims *n, const d9di_tile *t, int64_t i)
{
    int64_t limit = t->q + i - t->k + 1;

    if (!n->causal)
        return t->nk;
    return limit < 0 ? 0 : d9di_min(limit, t->nk);
}
/* Set the scores of query i, for keys of other segments, to -inf. */
void d9di_tile_mask(const d9d_attention_dims *n, const d9di_tile *t, int64_t i, float *score);
/* One past the last key that a block of queries may see. */
static inline int64_t d9di_key_end(const d9d_attention_dims *n, int64_t q, int64_t nq)
{
    return n->causal ? d9di_min(n->s, q + nq) : n->s;
}

#endif /* D9D_CPU_ATTENTION_H */
