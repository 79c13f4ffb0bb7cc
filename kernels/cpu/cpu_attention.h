/* cpu_attention.h - what the forward and the backward of attention share.
 *
 * Documents are worked on one by one.  Queries and keys of a document are taken in blocks from
 * its first token on; a block of scores, its softmax and its products stay in the cache.
 * Blocks that a causal mask hides are skipped.
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

/* Tokens [first, first + n) of all B S, inside batch entry b. */
typedef struct d9di_document {
    int64_t b, first, n;
} d9di_document;

static inline int64_t d9di_documents(const d9d_attention_dims *n)
{
    return n->bounds != NULL ? n->documents : n->b;
}
static inline d9di_document d9di_document_of(const d9d_attention_dims *n, int64_t i)
{
    int64_t first = n->bounds != NULL ? n->bounds[i] : i * n->s;
    int64_t end = n->bounds != NULL ? n->bounds[i + 1] : first + n->s;

    return (d9di_document){first / n->s, first, end - first};
}
/* EINVAL for bounds that are none; the length of the longest document. */
d9d_status d9di_documents_check(const char *op, const d9d_attention_dims *n, int64_t *longest);

/* Floats that the products of blocks of D features need. */
static inline int64_t d9di_attention_room(int64_t d)
{
    return d9di_max(d9di_sgemm_room(D9DI_Q_BLOCK, D9DI_K_BLOCK, d),
                    d9di_sgemm_room(D9DI_K_BLOCK, d, D9DI_K_BLOCK));
}

/* One block of scores: queries [q, q + nq) and keys [k, k + nk) of a document. */
typedef struct d9di_tile {
    int64_t q, nq, k, nk;
} d9di_tile;

/* How many of the tile's keys, from the first, query i of it may see. */
static inline int64_t d9di_tile_limit(const d9d_attention_dims *n, const d9di_tile *t, int64_t i)
{
    int64_t limit = t->q + i - t->k + 1;

    if (!n->causal)
        return t->nk;
    return limit < 0 ? 0 : d9di_min(limit, t->nk);
}
/* One past the last key that a block of queries may see. */
static inline int64_t d9di_key_end(const d9d_attention_dims *n, const d9di_document *doc, int64_t q,
                                   int64_t nq)
{
    return n->causal ? q + nq : doc->n;
}

#endif /* D9D_CPU_ATTENTION_H */
