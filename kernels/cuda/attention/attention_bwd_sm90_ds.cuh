/* attention_bwd_sm90_ds.cuh - the layout of dS in scratch, which the dK, dV launch of a part writes
 * and its dQ launch reads.
 *
 * A dS block is the part of dS of `key_rows` keys and SIDE queries of a segment, for one head. It
 * consists of tiles of SIDE keys. A tile consists of 8 x 8 matrices of 128 bytes, keys by queries,
 * in key-major order. A segment's blocks follow in the order in which the blocks of keys stream its
 * queries; segments follow each other, then the query heads of the part.
 */
#ifndef D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_DS_CUH
#define D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_DS_CUH

#include "cuda/attention/attention_bwd_sm90_scheduler.cuh"

namespace
{

enum { TILE_BYTES = SIDE * SIDE * 2 };
static_assert(SIDE == +D9DI_DS_BLOCK_QUERIES && BLOCK_ROWS == +D9DI_DS_BLOCK_QUERY_ROWS,
              "the blocks that d9di_attention_bwd_parts_of() counts");

struct ds_buffer {
    char *at;
    int64_t capacity; /* in dS blocks */
    int32_t *first;   /* [pairs, segments] index of each segment's first dS block, within a head */
    int32_t *each;    /* [pairs] dS blocks per head */
};

/* Where the dS blocks of a pair of chunks are. */
struct ds_chunk {
    const chunk_pair &in;
    int32_t *first, *each;
};
DEVICE ds_chunk ds_chunk_of(const bwd_sizes &n, const ds_buffer &ds, const chunk_pair &in)
{
    return {in, ds.first + (int64_t)in.index * n.segments, ds.each + in.index};
}

/* The dS blocks of a block of keys: index of the first, within head 0, and the tile of queries that
 * it belongs to. */
struct ds_blocks {
    int first, tile;

    __device__ __forceinline__ int index_of(int query) const
    {
        return first + (query - tile) / SIDE;
    }
};

/* The queries of the chunk that see the block of keys that begins with `key`, counted from the
 * segment. */
DEVICE int2 queries_of(const bwd_sizes &n, const segment_range &x, int key,
                       const token_chunk &chunk)
{
    return clip_to_chunk<true>(n, x, streamed_range<true>(n, x, x.k + key, n.key_rows), chunk);
}
DEVICE int ds_blocks_count(const bwd_sizes &n, const segment_range &x, int key,
                           const token_chunk &chunk)
{
    return tiles_in_range(queries_of(n, x, key, chunk));
}

/* The keys of the segment that are in the chunk. */
DEVICE int2 keys_of(const bwd_sizes &n, const segment_range &x, const token_chunk &chunk)
{
    return clip_to_chunk<false>(n, x, make_int2(0, x.nk), chunk);
}

/* Finds the dS blocks of a block of keys. Called by all threads of a warp. False if the list of
 * segments is not well-formed and the key is not in the segment. */
DEVICE bool ds_blocks_find(const bwd_sizes &n, const ds_chunk &to, int segment,
                           const segment_range &x, int key, ds_blocks *out)
{
    const int2 keys = keys_of(n, x, to.in.keys);
    int before = 0;

    if (key < keys.x || key >= keys.y || key % n.key_rows != 0)
        return false;
    for (int k = keys.x + (int)(threadIdx.x % WARP) * n.key_rows; k < key; k += WARP * n.key_rows)
        before += ds_blocks_count(n, x, k, to.in.queries);
    *out = {to.first[segment] + __reduce_add_sync(~0u, before),
            queries_of(n, x, key, to.in.queries).x};
    return true;
}

/* Follows a tile_iterator: the dS blocks of the keys of its tile. */
template <bool KEYS> struct ds_block_cursor {
    const bwd_sizes &n;
    const ds_chunk to;
    int segment, key;
    bool found;
    ds_blocks blocks;

    __device__ __forceinline__ ds_block_cursor(const bwd_sizes &n, const ds_chunk &to)
        : n(n), to(to), segment(-1), key(0), found(false), blocks{0, 0}
    {
    }

    /* True if there are any. Called by all threads of a warp. */
    __device__ __forceinline__ bool seek(const tile_iterator<KEYS> &w)
    {
        const int first = KEYS ? w.stationary() : w.tile / n.key_rows * n.key_rows;

        if (segment != w.segment || key != first)
            found = ds_blocks_find(n, to, w.segment, w.x, first, &blocks);
        segment = w.segment;
        key = first;
        return found;
    }
};

/* Clamps sums. */
enum { MAX_DS_BLOCKS = 1 << 30 };

/* One block assigns the dS blocks of all segments in a pair of chunks; each thread has a contiguous
 * range of segments. */
DEVICE void place_ds_blocks(const bwd_sizes &n, const ds_chunk &out)
{
    __shared__ int begin[LIST_BLOCK];
    const int some = ceil_div_int(n.segments, LIST_BLOCK), me = (int)threadIdx.x;
    const int from = min(n.segments, me * some), end = min(n.segments, from + some);
    int64_t sum = 0;
    int all;

    for (int i = from; i < end; i++) {
        const segment_range x = segment_range_of(n, i);
        const int2 keys = keys_of(n, x, out.in.keys);

        out.first[i] = (int)sum;
        for (int key = keys.x; key < keys.y; key += n.key_rows)
            sum += ds_blocks_count(n, x, key, out.in.queries);
        sum = d9di_i64_min(sum, MAX_DS_BLOCKS / LIST_BLOCK);
    }
    begin[me] = (int)sum;
    __syncthreads();
    block_exclusive_scan(begin, &all);
    for (int i = from; i < end; i++)
        out.first[i] += begin[me];
    if (me == 0)
        *out.each = all;
}

} // namespace

#endif /* D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_DS_CUH */
