/* attention_bwd_parts.c - the parts in which the Hopper backward computes attention, and bounds of
 * their dS blocks that hold for any well-formed list of segments (d9d/kernels/segment.h).
 *
 * A document of n queries and keys has at most g(n) = sum over i of ceil((n - i key_rows) / 64)
 * blocks. Without ceil g is convex, so that packed documents have at most the blocks of a whole
 * row, and a partial one for each of their blocks of keys. Sliding windows bound each term of the
 * sum.
 */
#include "common/kernel_common.h"

enum { QUERIES = D9DI_DS_BLOCK_QUERIES };

/* Blocks of a row's chunk of `size` queries, the last of its `end` keys; of a part of the keys
 * (d9di_attention_part_as_rows()) `end` may exceed those that there are. */
static int64_t chunk_blocks(const d9d_attention_dims *n, int64_t key_rows, int64_t size,
                            int64_t end)
{
    const int64_t keys = d9di_i64_min(end, n->z);
    const int64_t wide =
        n->window > 0 ? (n->window + key_rows - 1) / QUERIES + 2 : d9di_i64_ceil_div(size, QUERIES);
    int64_t blocks = 0;

    for (int64_t key = 0; key < keys; key += key_rows) {
        const int64_t first = d9di_i64_max(0, key - (end - size)) / QUERIES;

        blocks += d9di_i64_max(0, d9di_i64_min(wide, d9di_i64_ceil_div(size, QUERIES) - first));
    }
    return blocks;
}

/* Blocks of all rows if each row, or each chunk of it, is one document. */
static int64_t row_blocks(const d9d_attention_dims *n, int64_t key_rows)
{
    const int64_t chunks = d9di_i64_max(1, n->chunks);
    int64_t blocks = 0;

    for (int64_t p = 0; p < chunks; p++)
        blocks += chunk_blocks(n, key_rows, n->s / chunks, n->chunks > 0 ? n->chunk_end[p] : n->z);
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

static bool has_one_pair(const d9d_attention_dims *n, const d9di_attention_bwd_parts *x)
{
    return x->chunk_queries >= n->b * n->s && x->chunk_keys >= n->b * n->z;
}

/* Most blocks of a query head in any pair of chunks. */
static int64_t head_blocks(const d9d_attention_dims *n, const d9di_attention_bwd_parts *x)
{
    const bool all = has_one_pair(n, x), of_rows = n->z == n->s || n->chunks > 0;
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

/* Sets the chunks, unless the dS of such a pair has more than `most` blocks for a key head. */
static bool try_chunks(const d9d_attention_dims *n, int64_t queries, int64_t keys, int64_t most,
                       d9di_attention_bwd_parts *x)
{
    d9di_attention_bwd_parts y = *x;

    y.chunk_queries = d9di_i64_min(queries, d9di_i64_max(1, n->b * n->s));
    y.chunk_keys = d9di_i64_min(keys, d9di_i64_max(1, n->b * n->z));
    y.ds_blocks = d9di_i64_max(1, n->a / n->kv * head_blocks(n, &y));
    if (y.ds_blocks > most)
        return false;
    *x = y;
    return true;
}

/* Chunks of which each has work tiles for all `sms` blocks: a block of keys, or one of queries for
 * each query head. The least ones, then larger ones as long as they fit. */
static bool busy_chunks(const d9d_attention_dims *n, int64_t sms, int64_t most,
                        d9di_attention_bwd_parts *x)
{
    int64_t keys = sms * D9DI_DS_BLOCK_QUERY_ROWS, queries = keys;

    for (int64_t heads = n->a / n->kv; !try_chunks(n, queries, keys, most, x); heads /= 2) {
        if (heads < 2)
            return false;
        queries = d9di_i64_round_up(queries / 2, D9DI_DS_BLOCK_QUERY_ROWS);
    }
    for (;;) {
        if (keys < n->b * n->z && try_chunks(n, queries, 2 * keys, most, x))
            keys *= 2;
        else if (queries < n->b * n->s && try_chunks(n, 2 * queries, keys, most, x))
            queries *= 2;
        else
            return true;
    }
}

/* The same without regard to `sms`: as few chunks as possible. */
static void small_chunks(const d9d_attention_dims *n, int64_t most, d9di_attention_bwd_parts *x)
{
    const int64_t rows = D9DI_DS_BLOCK_QUERY_ROWS;
    int64_t queries = n->b * n->s, keys = n->b * n->z;

    do {
        queries = d9di_i64_round_up(d9di_i64_ceil_div(queries, 2), rows);
        keys = d9di_i64_round_up(d9di_i64_ceil_div(keys, 2), rows);
    } while (!try_chunks(n, queries, keys, most, x) && (queries > rows || keys > rows));
    if (x->ds_blocks == 0)
        (void)try_chunks(n, queries, keys, INT64_MAX, x);
}

d9di_attention_bwd_parts d9di_attention_bwd_parts_of(const d9d_attention_dims *n, int64_t max_bytes,
                                                     int64_t sms)
{
    const int64_t key_rows = d9di_i64_max(n->d, n->dv) > 128 ? 64 : 128;
    const int64_t bytes = key_rows * QUERIES * 2;
    const int64_t most = d9di_i64_max(1, max_bytes / bytes);
    d9di_attention_bwd_parts x = {.key_rows = key_rows, .ds_block_bytes = bytes, .heads = 1};

    if (try_chunks(n, INT64_MAX, INT64_MAX, most, &x)) {
        /* Several heads keep the device busy with less, and dS is read sooner. */
        const int64_t at_once = d9di_i64_max(1, d9di_i64_min(n->kv, most / 3 / x.ds_blocks));

        x.heads = d9di_i64_ceil_div(n->kv, d9di_i64_ceil_div(n->kv, at_once));
    } else if (!busy_chunks(n, sms, most, &x)) {
        small_chunks(n, most, &x);
    }
    x.query_chunks = d9di_i64_ceil_div(d9di_i64_max(1, n->b * n->s), x.chunk_queries);
    x.key_chunks = d9di_i64_ceil_div(d9di_i64_max(1, n->b * n->z), x.chunk_keys);
    x.n_parts = x.query_chunks * x.key_chunks * d9di_i64_ceil_div(n->kv, x.heads);
    x.ds_blocks *= x.heads;
    return x;
}
