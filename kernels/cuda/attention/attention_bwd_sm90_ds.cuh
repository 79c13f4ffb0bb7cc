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

enum { TILE_BYTES = SIDE * SIDE * 2, UNIT_BYTES = CREWS * TILE_BYTES };
static_assert(SIDE == +D9DI_UNIT_QUERIES && BLOCK_ROWS == +D9DI_UNIT_KEYS &&
                  UNIT_BYTES == +D9DI_UNIT_BYTES,
              "what plans count");

struct slopes {
    char *at;
    int64_t room; /* units */
    int32_t
        *first; /* [segments] the unit with which a segment begins, of a head; and, behind them, */
    int32_t *each;  /* units of a head */
    int32_t *heads; /* key heads that are kept */
};

/* The first unit of a block of keys, of head 0, and the tile of queries that it is of. */
struct units {
    int first, tile;

    __device__ __forceinline__ int of(int query) const { return first + (query - tile) / SIDE; }
};

/* Of keys from `key` on, counted from the segment. */
DEVICE int2 queries_of(const sizes &n, const span &x, int key)
{
    return range_of<true>(n, x, x.k + key, BLOCK_ROWS);
}
DEVICE int count_units(const sizes &n, const span &x, int key)
{
    return tiles_in(queries_of(n, x, key));
}

/* All threads of a warp.  In a list that is not well-formed a block may be none of the segment's.
 */
DEVICE bool find_units(const sizes &n, const slopes &to, int segment, const span &x, int key,
                       units *out)
{
    int before = 0;

    if (key < 0 || key >= x.nk || key % BLOCK_ROWS != 0)
        return false;
    for (int k = (int)(threadIdx.x % WARP) * BLOCK_ROWS; k < key; k += WARP * BLOCK_ROWS)
        before += count_units(n, x, k);
    *out = {to.first[segment] + __reduce_add_sync(~0u, before), queries_of(n, x, key).x};
    return true;
}

/* Goes with a walk: the units of the keys of its tile. */
template <bool KEYS> struct follower {
    const sizes &n;
    const slopes &to;
    int segment, key;
    bool found;
    units of;

    __device__ __forceinline__ follower(const sizes &n, const slopes &to)
        : n(n), to(to), segment(-1), key(0), found(false), of{0, 0}
    {
    }

    /* Are there any?  All threads of a warp. */
    __device__ __forceinline__ bool follow(const walk<KEYS> &w)
    {
        const int mine = KEYS ? w.still() : w.tile / BLOCK_ROWS * BLOCK_ROWS;

        if (segment != w.segment || key != mine)
            found = find_units(n, to, w.segment, w.x, mine, &of);
        segment = w.segment;
        key = mine;
        return found;
    }
};

/* Sums that no memory has room for are all the same. */
enum { TOO_MANY = 1 << 20 };

/* One block places the units of all segments, each thread of some that follow each other. */
DEVICE void place_slopes(const sizes &n, const slopes &out)
{
    __shared__ int begin[LIST_BLOCK];
    const int some = up(n.segments, LIST_BLOCK), me = (int)threadIdx.x;
    const int from = min(n.segments, me * some), end = min(n.segments, from + some);
    int64_t sum = 0;
    int all;

    for (int i = from; i < end; i++) {
        const span x = span_of(n, i);

        out.first[i] = (int)sum;
        for (int key = 0; key < x.nk; key += BLOCK_ROWS)
            sum += count_units(n, x, key);
        sum = d9di_min(sum, TOO_MANY);
    }
    begin[me] = (int)sum;
    __syncthreads();
    add_before(begin, &all);
    for (int i = from; i < end; i++)
        out.first[i] += begin[me];
    if (me != 0)
        return;
    *out.each = all;
    *out.heads =
        all >= TOO_MANY ? 0 : (int)d9di_min(n.kv, out.room / d9di_max(1, (int64_t)all * n.group));
}

} // namespace

#endif /* D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_DS_CUH */
