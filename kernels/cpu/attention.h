/* attention.h - what the forward and the backward of attention share.
 *
 * Segments are processed one by one, in blocks of queries and keys that begin with the segment. A
 * block of scores, its softmax and its GEMMs stay in the cache. Blocks that a causal mask or a
 * window hides are skipped.
 */
#ifndef D9DI_CPU_ATTENTION_H
#define D9DI_CPU_ATTENTION_H

#include "common/fp8_scale.h"
#include "cpu/common.h"

enum {
    D9DI_Q_BLOCK = 64, /* queries of a block of scores */
    D9DI_K_BLOCK = 128 /* its keys */
};

/* Rows of one head as a float32 matrix: in place, or converted into a buffer. */
typedef struct d9di_attention_rows {
    const float *x;
    int64_t ld;
} d9di_attention_rows;

/* Rows [first, first + n) of head h of x [B, S, heads, D], counted over B and S. */
static inline d9di_attention_rows d9di_attention_rows_load(d9d_dtype t, const void *x,
                                                           int64_t first, int64_t n, int64_t heads,
                                                           int64_t h, int64_t d, float *buf)
{
    if (t == D9D_F32)
        return (d9di_attention_rows){(const float *)x + (first * heads + h) * d, heads * d};
    for (int64_t i = 0; i < n; i++)
        d9di_cpu_from_bf16(buf + i * d, (const uint16_t *)x + ((first + i) * heads + h) * d, d);
    return (d9di_attention_rows){buf, d};
}

/* The same of codes of e4m3 with scales [B, S, heads]; scale NULL: of x of type t. */
static inline d9di_attention_rows d9di_attention_cached_load(d9d_dtype t, const void *x,
                                                             const float *scale, int64_t first,
                                                             int64_t n, int64_t heads, int64_t h,
                                                             int64_t d, float *buf)
{
    if (scale == NULL)
        return d9di_attention_rows_load(t, x, first, n, heads, h, d, buf);
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = (first + i) * heads + h;
        const uint8_t *code = (const uint8_t *)x + row * d;

        for (int64_t j = 0; j < d; j++)
            buf[i * d + j] = d9di_fp8_e4m3_float(code[j]) * scale[row];
    }
    return (d9di_attention_rows){buf, d};
}

/* Keys [first, end). */
typedef struct d9di_attention_key_range {
    int64_t first, end;
} d9di_attention_key_range;

/* A segment of a list, a whole row, or a chunk of one. All its queries see keys before `prefix`. */
typedef struct d9di_attention_segment {
    int64_t q, nq, k, nk, prefix;
} d9di_attention_segment;

static inline int64_t d9di_attention_n_segments(const d9d_attention_dims *n)
{
    return n->segment != NULL ? n->segments : n->b * d9di_i64_max(1, n->chunks);
}
static inline d9di_attention_segment d9di_attention_segment_at(const d9d_attention_dims *n,
                                                               int64_t i)
{
    const d9d_segment *x = n->segment;
    const int64_t chunks = d9di_i64_max(1, n->chunks), size = n->s / chunks;

    if (x == NULL)
        return (d9di_attention_segment){i * size, size, i / chunks * n->z,
                                        n->chunks > 0 ? n->chunk_end[i % chunks] : n->z, 0};
    return (d9di_attention_segment){x[i].q, x[i].nq, x[i].k, x[i].nk,
                                    n->prefix != NULL ? n->prefix[i] : 0};
}
/* How many keys its queries see: a prefix may reach beyond the diagonal of the last. */
static inline int64_t d9di_attention_segment_keys(const d9di_attention_segment *x)
{
    return d9di_i64_max(x->nk, x->prefix);
}
/* Keys of a row of Z that k and v have. */
static inline d9di_attention_key_range d9di_attention_row_part(const d9d_attention_dims *n)
{
    return n->part.n > 0 ? (d9di_attention_key_range){n->part.first, n->part.first + n->part.n}
                         : (d9di_attention_key_range){0, n->z};
}
/* Of the first `keys` keys of a segment those that k and v have. */
static inline d9di_attention_key_range d9di_attention_segment_part(const d9d_attention_dims *n,
                                                                   const d9di_attention_segment *x,
                                                                   int64_t keys)
{
    const d9di_attention_key_range part = d9di_attention_row_part(n);
    const int64_t at = n->z > 0 ? x->k % n->z : 0;
    const int64_t first = d9di_i64_min(d9di_i64_max(part.first - at, 0), keys);

    return (d9di_attention_key_range){first,
                                      d9di_i64_max(first, d9di_i64_min(part.end - at, keys))};
}
/* Where key i of a segment, one of its part, lies in k and v. */
static inline int64_t d9di_attention_key_at(const d9d_attention_dims *n,
                                            const d9di_attention_segment *x, int64_t i)
{
    return n->part.n > 0 ? x->k / n->z * n->part.n + x->k % n->z + i - n->part.first : x->k + i;
}
/* EINVAL for a malformed list; returns the most keys of a segment. */
d9d_status d9di_attention_check_segments(const char *op, const d9d_attention_dims *n,
                                         int64_t *max_keys);

/* Index in lse [B, A, S] of query i [B, S] and head h. */
static inline int64_t d9di_attention_lse_index(const d9d_attention_dims *n, int64_t h, int64_t i)
{
    return (i / n->s * n->a + h) * n->s + i % n->s;
}

/* Floats of scratch for the GEMMs of blocks. */
static inline int64_t d9di_attention_gemm_scratch(const d9d_attention_dims *n)
{
    const int64_t d = d9di_i64_max(n->d, n->dv);

    return d9di_i64_max(d9di_sgemm_scratch(D9DI_Q_BLOCK, D9DI_K_BLOCK, d),
                        d9di_sgemm_scratch(D9DI_K_BLOCK, d, D9DI_K_BLOCK));
}

/* A block of scores: keys [k, k + nk) of a segment, and nq queries, of which the first is on the
 * diagonal with key q. */
typedef struct d9di_attention_tile {
    int64_t q, nq, k, nk, prefix;
} d9di_attention_tile;

/* End of the keys before key `end` that a query sees whose diagonal key is `diagonal`; all queries
 * see the keys before `prefix`. */
static inline int64_t d9di_attention_visible_end(const d9d_attention_dims *n, int64_t diagonal,
                                                 int64_t prefix, int64_t end)
{
    const int64_t open = n->causal ? prefix : end;
    const int64_t near = n->window > 0 ? d9di_i64_min(diagonal + n->window, open) : open;

    return d9di_i64_min(n->causal ? d9di_i64_max(diagonal + 1, near) : near, end);
}

/* The tile's keys that its query i may see, counted from its first. */
static inline d9di_attention_key_range d9di_attention_tile_visible(const d9d_attention_dims *n,
                                                                   const d9di_attention_tile *t,
                                                                   int64_t i)
{
    const int64_t diagonal = t->q + i - t->k;
    const int64_t first = n->window > 0 ? diagonal + 1 - n->window : 0;
    const int64_t end = d9di_attention_visible_end(n, diagonal, t->prefix - t->k, t->nk);

    return (d9di_attention_key_range){d9di_i64_min(d9di_i64_max(first, 0), t->nk),
                                      d9di_i64_max(end, 0)};
}
/* The tile of nq queries of a segment from its query q on, and of all keys in k and v that they may
 * see, rounded down to a block.  It has no keys if they see none. */
static inline d9di_attention_tile d9di_attention_tile_make(const d9d_attention_dims *n,
                                                           const d9di_attention_segment *x,
                                                           int64_t q, int64_t nq)
{
    const int64_t beside = q + x->nk - x->nq;
    const int64_t end =
        d9di_attention_visible_end(n, beside + nq - 1, x->prefix, d9di_attention_segment_keys(x));
    const d9di_attention_key_range part = d9di_attention_segment_part(n, x, end);
    const int64_t hidden = n->window > 0 ? d9di_i64_max(beside + 1 - n->window, 0) : 0;
    const int64_t k = d9di_i64_max(hidden / D9DI_K_BLOCK * D9DI_K_BLOCK, part.first);

    return (d9di_attention_tile){
        .q = beside, .nq = nq, .k = k, .nk = d9di_i64_max(part.end - k, 0), .prefix = x->prefix};
}

/* Multiplies what belongs to the probabilities of one query of a tile, x [nk], by 0 or 1 / (1 - p).
 * The query has this number, counted over B and S. */
void d9di_attention_dropout(const d9d_attention_dims *n, const d9di_attention_tile *t, int64_t h,
                            int64_t query, float *x);

#endif /* D9DI_CPU_ATTENTION_H */
