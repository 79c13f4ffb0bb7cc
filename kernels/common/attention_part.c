/* attention_part.c - a part of the keys, for ring attention, as rows of those keys alone; and how
 * chunks of queries see them.
 *
 *     zigzag chunks of 2 ranks, of which rank 0 has queries a and d
 *
 *     keys    a         b         c         d
 *     a       causal    hidden    hidden    hidden
 *     d       full      full      full      causal
 */
#include "common/kernel_common.h"

bool d9di_attention_part_as_rows(const d9d_attention_dims *n, d9d_attention_dims *out)
{
    d9d_attention_dims x = *n;

    if (n->part.n == 0 || n->segment != NULL || n->prefix != NULL || !n->causal || n->decode)
        return false;
    x.part = (d9d_attention_key_part){0, 0};
    x.z = n->part.n;
    x.chunks = d9di_i64_max(1, n->chunks);
    for (int64_t i = 0; i < x.chunks; i++)
        x.chunk_end[i] = (n->chunks > 0 ? n->chunk_end[i] : n->z) - n->part.first;
    *out = x;
    return true;
}

d9di_attention_chunk_mask d9di_attention_chunk_mask_of(const d9d_attention_dims *rows, int64_t i)
{
    const int64_t size = rows->s / rows->chunks, end = rows->chunk_end[i];
    const int64_t diagonal = end - size; /* the first query's */

    if (end <= 0 || (rows->window > 0 && diagonal - rows->window + 1 >= rows->z))
        return D9DI_CHUNK_HIDDEN;
    if (diagonal >= rows->z - 1 && (rows->window == 0 || end <= rows->window))
        return D9DI_CHUNK_FULL;
    return size <= end && end <= rows->z ? D9DI_CHUNK_CAUSAL : D9DI_CHUNK_PARTIAL;
}

bool d9di_attention_part_is_blocks(const d9d_attention_dims *rows)
{
    for (int64_t i = 0; i < rows->chunks; i++)
        if (d9di_attention_chunk_mask_of(rows, i) == D9DI_CHUNK_PARTIAL)
            return false;
    return true;
}

bool d9di_attention_part_is_tiles(const d9d_attention_dims *rows)
{
    for (int64_t i = 0; i < rows->chunks; i++)
        if (rows->chunk_end[i] > rows->z && rows->z % D9DI_DS_BLOCK_QUERIES != 0)
            return false;
    return true;
}
