/* attention_bwd_sm90_ds.cuh - the layout of dS in scratch, which the dK, dV launch writes and the
 * dQ launch reads.
 *
 * A dS block is the part of dS of BLOCK_ROWS keys and SIDE queries of a segment, for one head. It
 * consists of two tiles of SIDE keys each. A tile consists of 8 x 8 matrices of 128 bytes, keys by
 * queries, in key-major order. A segment's blocks follow in the order in which the blocks of keys
 * stream its queries; segments follow each other, then heads. The scratch holds the blocks of a
 * number of key heads with all query heads of their groups; none if the warpgroups share a tile
 * (heads above 128).
 */
#ifndef D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_DS_CUH
#define D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_DS_CUH

#include "cuda/attention/attention_bwd_sm90_scheduler.cuh"

namespace
{

enum { TILE_BYTES = SIDE * SIDE * 2, DS_BLOCK_BYTES = CONSUMERS * TILE_BYTES };
static_assert(SIDE == +D9DI_DS_BLOCK_QUERIES && BLOCK_ROWS == +D9DI_DS_BLOCK_KEYS &&
                  DS_BLOCK_BYTES == +D9DI_DS_BLOCK_BYTES,
              "the block that kernels/sim counts");

struct ds_buffer {
    char *at;
    int64_t workspace; /* capacity, in dS blocks */
    int32_t *first;    /* [segments] index of each segment's first dS block, within a head */
    int32_t *each;     /* dS blocks per head */
    int32_t *heads;    /* key heads whose dS is stored */
};

/* The dS blocks of a block of keys: index of the first, within head 0, and the tile of queries that
 * it belongs to. */
struct ds_blocks {
    int first, tile;

    __device__ __forceinline__ int index_of(int query) const
    {
        return first + (query - tile) / SIDE;
    }
};

/* The queries that see the block of keys that begins with `key`, counted from the segment. */
DEVICE int2 queries_of(const bwd_sizes &n, const segment_range &x, int key)
{
    return streamed_range<true>(n, x, x.k + key, BLOCK_ROWS);
}
DEVICE int ds_blocks_count(const bwd_sizes &n, const segment_range &x, int key)
{
    return tiles_in_range(queries_of(n, x, key));
}

/* Finds the dS blocks of a block of keys. Called by all threads of a warp. False if the list of
 * segments is not well-formed and the key is not in the segment. */
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

/* Follows a tile_iterator: the dS blocks of the keys of its tile. */
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

    /* True if there are any. Called by all threads of a warp. */
    __device__ __forceinline__ bool seek(const tile_iterator<KEYS> &w)
    {
        const int first = KEYS ? w.stationary() : w.tile / BLOCK_ROWS * BLOCK_ROWS;

        if (segment != w.segment || key != first)
            found = ds_blocks_find(n, to, w.segment, w.x, first, &blocks);
        segment = w.segment;
        key = first;
        return found;
    }
};

/* Clamps sums, which then exceed any scratch. */
enum { MAX_DS_BLOCKS = 1 << 20 };

/* One block assigns the dS blocks of all segments; each thread has a contiguous range of segments.
 */
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
    *out.heads =
        all >= MAX_DS_BLOCKS
            ? 0
            : (int)d9di_i64_min(n.kv, out.workspace / d9di_i64_max(1, (int64_t)all * n.group));
}

} // namespace

#endif /* D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_DS_CUH */
