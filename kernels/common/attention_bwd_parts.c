/* attention_bwd_parts.c - the parts in which the Hopper backward computes attention, and bounds of
 * their dS blocks that hold for any well-formed list of segments (d9d/kernels/segment.h).
 *
 * A document of n queries and keys has at most g(n) = sum over i of ceil((n - i key_rows) / 64)
 * blocks. Without ceil g is convex, so that packed documents have at most the blocks of a whole row,
 * and a partial one for each of their blocks of keys. Sliding windows bound each term of the sum.
 */
#include "common/kernel_common.h"

enum { QUERIES = D9DI_DS_BLOCK_QUERIES };

/* Blocks of a row's chunk of `size` queries, the last of its `end` keys. */
static int64_t piece_blocks(const d9d_attention_dims *n, int64_t key_rows, int64_t size,
                            int64_t end)
{
    const int64_t wide =
        n->window > 0 ? (n->window + key_rows - 1) / QUERIES + 2 : d9di_i64_ceil_div(size, QUERIES);
    int64_t blocks = 0;

    for (int64_t key = 0; key < end; key += key_rows) {
        const int64_t first = d9di_i64_max(0, key - (end - size)) / QUERIES;

        blocks += d9di_i64_max(0, d9di_i64_min(wide, d9di_i64_ceil_div(size, QUERIES) - first));
    }
    return blocks;
}

/* Blocks of all rows if each row, or each chunk of it, is one document. */
static int64_t row_blocks(const d9d_attention_dims *n, int64_t key_rows)
{
    const int64_t pieces = d9di_i64_max(1, n->chunks);
    int64_t blocks = 0;

    for (int64_t p = 0; p < pieces; p++)
        blocks += piece_blocks(n, key_rows, n->s / pieces, n->chunks > 0 ? n->chunk_end[p] : n->z);
    return n->b * blocks;
}

/* Most blocks of a query head of so many successive queries and keys: each tile of queries meets at
 * most so many blocks of keys. */
static int64_t pair_blocks(const d9d_attention_dims *n, int64_t key_rows, int64_t queries,
                           int64_t keys, int64_t segments)
{
    const int64_t most = n->window > 0 ? d9di_i64_min(keys, n->window + QUERIES) : keys;

    return (d9di_i64_ceil_div(queries, QUERIES) + 2 * segments) * (most / key_rows + 2);
}

/* Keys of all segments, if documents are packed: those of chunks may be read once more by each. */
static int64_t keys_of_segments(const d9d_attention_dims *n)
{
    const int64_t chunks = n->z == n->s && n->chunks == 0 ? 0 : d9di_i64_max(1, n->chunks);

    return n->b * (n->s + chunks * n->z);
}

/* Most blocks of a query head in any of `chunks` chunks of queries and as many of keys. */
static int64_t head_blocks(const d9d_attention_dims *n, const d9di_attention_bwd_parts *x)
{
    const bool all = x->n_chunks == 1, of_rows = n->z == n->s || n->chunks > 0;
    const int64_t rows = n->b * d9di_i64_max(1, n->chunks);
    const int64_t segments = n->segments > 0 ? n->segments : rows;
    const int64_t keys = d9di_i64_min(n->z, x->chunk_keys);
    const int64_t any = pair_blocks(n, x->key_rows, x->chunk_queries, keys, segments);

    if (n->segments == 0)
        return all ? row_blocks(n, x->key_rows) : any;
    if (!of_rows)
        return any;
    const int64_t whole = all && n->chunks == 0
                              ? row_blocks(n, x->key_rows)
                              : pair_blocks(n, x->key_rows, x->chunk_queries, keys, 0);

    return d9di_i64_min(any, whole + 2 * (keys_of_segments(n) / x->key_rows + 2 * segments));
}

/* A chunk of `tokens`, of which there are `chunks`: whole blocks. */
static int64_t chunk_size(int64_t tokens, int64_t chunks)
{
    return chunks == 1 ? tokens
                       : d9di_i64_round_up(d9di_i64_ceil_div(tokens, chunks),
                                           D9DI_DS_BLOCK_QUERY_ROWS);
}

d9di_attention_bwd_parts d9di_attention_bwd_parts_of(const d9d_attention_dims *n,
                                                     int64_t max_bytes)
{
    const int64_t queries = d9di_i64_max(1, n->b * n->s), keys = d9di_i64_max(1, n->b * n->z);
    const int64_t key_rows = n->d > 128 ? 64 : 128, bytes = key_rows * QUERIES * 2;
    const int64_t most = d9di_i64_max(1, max_bytes / bytes);
    d9di_attention_bwd_parts x = {.key_rows = key_rows, .ds_block_bytes = bytes, .heads = 1};
    int64_t blocks;

    do {
        x.n_chunks++;
        x.chunk_queries = chunk_size(queries, x.n_chunks);
        x.chunk_keys = chunk_size(keys, x.n_chunks);
        blocks = d9di_i64_max(1, n->a / n->kv * head_blocks(n, &x));
    } while (blocks > most && (x.chunk_queries > D9DI_DS_BLOCK_QUERY_ROWS ||
                               x.chunk_keys > D9DI_DS_BLOCK_QUERY_ROWS));
    if (x.n_chunks == 1) {
        const int64_t at_once = d9di_i64_max(1, d9di_i64_min(n->kv, most / blocks));

        x.heads = d9di_i64_ceil_div(n->kv, d9di_i64_ceil_div(n->kv, at_once));
    }
    x.n_parts = x.n_chunks * x.n_chunks * d9di_i64_ceil_div(n->kv, x.heads);
    x.ds_blocks = blocks * x.heads;
    return x;
}
