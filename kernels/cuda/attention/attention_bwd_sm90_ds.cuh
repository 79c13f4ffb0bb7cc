/* attention_bwd_sm90_ds.cuh - dS in memory, from the launch for keys to that for queries.
 *
 * A unit is what BLOCK_ROWS keys and SIDE queries of a segment have, of a head: two tiles, of SIDE
 * keys each, of 8 x 8 matrices, 128 bytes, keys by queries, those of the same keys behind each
 * other. The units of a segment are those that a block of keys goes along, block after block;
 * segments follow each other, and then heads.  There is room for so many key heads with their
 * groups; of crews that share a tile, for none.
 */
#ifndef D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_DS_CUH
#define D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_DS_CUH

#include "cuda/attention/attention_bwd_sm90_scheduler.cuh"

namespace
{

enum { TILE_BYTES = SIDE * SIDE * 2, DS_BLOCK_BYTES = CONSUMERS * TILE_BYTES };
static_assert(SIDE == +D9DI_DS_BLOCK_QUERIES && BLOCK_ROWS == +D9DI_DS_BLOCK_KEYS &&
                  DS_BLOCK_BYTES == +D9DI_DS_BLOCK_BYTES,
              "what plans count");

struct ds_buffer {
    char *at;
    int64_t room; /* units */
    int32_t
        *first; /* [segments] the unit with which a segment begins, of a head; and, behind them, */
    int32_t *each;  /* units of a head */
    int32_t *heads; /* key heads that are kept */
};

/* The first unit of a block of keys, of head 0, and the tile of queries that it is of. */
struct ds_blocks {
    int first, tile;

    __device__ __forceinline__ int index_of(int query) const
    {
        return first + (query - tile) / SIDE;
    }
};

/* Of keys from `key` on, counted from the segment. */
DEVICE int2 queries_of(const bwd_sizes &n, const segment_range &x, int key)
{
    return streamed_range<true>(n, x, x.k + key, BLOCK_ROWS);
}
DEVICE int ds_blocks_count(const bwd_sizes &n, const segment_range &x, int key)
{
    return tiles_in_range(queries_of(n, x, key));
}

/* All threads of a warp.  In a list that is not well-formed a block may be none of the segment's.
 */
DEVICE bool ds_blocks_find(const bwd_sizes &n, const ds_buffer &to, int segment,
                           const segment_range &x, int key, ds_blocks *out)
{
    int before = 0;

    if (key < 0 || key >= x.nk || key % BLOCK_ROWS != 0)
        return false;
    for (int k = (int)(threadIdx.x % WARP) * BLOCK_ROWS; k < key; k += WARP * BLOCK_ROWS)
        before += ds_blocks_count(n, x, k);
    *out = {to.first[segment] + __reduce_add_sync(~0u, before), queries_of(n, x, key).x};
    return true;
}

/* Goes with a walk: the units of the keys of its tile. */
template <bool KEYS> struct ds_block_cursor {
    const bwd_sizes &n;
    const ds_buffer &to;
    int segment, key;
    bool found;
    ds_blocks blocks;

    __device__ __forceinline__ ds_block_cursor(const bwd_sizes &n, const ds_buffer &to)
        : n(n), to(to), segment(-1), key(0), found(false), blocks{0, 0}
    {
    }

    /* Are there any?  All threads of a warp. */
    __device__ __forceinline__ bool seek(const tile_iterator<KEYS> &w)
    {
        const int mine = KEYS ? w.stationary() : w.tile / BLOCK_ROWS * BLOCK_ROWS;

        if (segment != w.segment || key != mine)
            found = ds_blocks_find(n, to, w.segment, w.x, mine, &blocks);
        segment = w.segment;
        key = mine;
        return found;
    }
};

/* Sums that no memory has room for are all the same. */
enum { MAX_DS_BLOCKS = 1 << 20 };

/* One block places the units of all segments, each thread of some that follow each other. */
DEVICE void place_ds_blocks(const bwd_sizes &n, const ds_buffer &out)
{
    __shared__ int begin[LIST_BLOCK];
    const int some = ceil_div_int(n.segments, LIST_BLOCK), me = (int)threadIdx.x;
    const int from = min(n.segments, me * some), end = min(n.segments, from + some);
    int64_t sum = 0;
    int all;

    for (int i = from; i < end; i++) {
        const segment_range x = segment_range_of(n, i);

        out.first[i] = (int)sum;
        for (int key = 0; key < x.nk; key += BLOCK_ROWS)
            sum += ds_blocks_count(n, x, key);
        sum = d9di_i64_min(sum, MAX_DS_BLOCKS);
    }
    begin[me] = (int)sum;
    __syncthreads();
    block_exclusive_scan(begin, &all);
    for (int i = from; i < end; i++)
        out.first[i] += begin[me];
    if (me != 0)
        return;
    *out.each = all;
    *out.heads = all >= MAX_DS_BLOCKS
                     ? 0
                     : (int)d9di_i64_min(n.kv, out.room / d9di_i64_max(1, (int64_t)all * n.group));
}

} // namespace

#endif /* D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_DS_CUH */
