/* attention_bwd_sm90_scheduler.cuh - attention backward on Hopper: the tile scheduler. Which
 * stationary tokens a block owns, and which tiles of the other side of the scores it streams.
 *
 * A block owns BLOCK_ROWS queries, or `key_rows` keys (KEYS), and streams the tiles of SIDE tokens
 * of the other side that can see them or be seen. Tiles begin with a segment, so that a segment's
 * sums do not depend on its position.
 *
 * A part of the call is some key heads, a chunk of queries and a chunk of keys, whose dS fits the
 * scratch. A block of tokens, counted from its segment, belongs to the chunk in which it begins.
 */
#ifndef D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_SCHEDULER_CUH
#define D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_SCHEDULER_CUH

#include "cuda/attention/attention_call.h"
#include "cuda/common/common.cuh"
#include "cuda/common/sm90.cuh"

namespace
{

enum { SIDE = 64, CONSUMERS = 2, BLOCK_ROWS = CONSUMERS * SIDE };
enum { NO_WINDOW = 1 << 29 }; /* larger than any row */

/* Stationary tokens [first, first + rows) and the segments [from, end) that involve them: those
 * that begin with the same key; one segment if the tokens are queries. */
struct tile_task {
    int32_t from, end, first;
};

/* All tasks, on the GPU. */
struct tile_tasks {
    int32_t *count;  /* [1 + parts]: number of tasks; (task, head) pairs claimed in each part */
    tile_task *list; /* [capacity], by descending work */
    int32_t capacity;
};

struct bwd_sizes {
    const d9d_segment *segment;
    int segments, b, s, z, a, kv;
    int group;    /* A / KV */
    int window;   /* NO_WINDOW: none */
    int key_rows; /* stationary keys of a block: SIDE or BLOCK_ROWS */
};

/* Tokens [from, end), counted over the batch. */
struct token_chunk {
    int from, end;
};

/* A chunk of queries and one of keys; `index` counts such pairs. */
struct chunk_pair {
    int index;
    token_chunk queries, keys;
};

/* Key heads [head, head + heads) and two chunks; `index` counts the parts. */
struct bwd_part {
    int index, head, heads;
    chunk_pair in;
};

/* Of the stationary side: tokens of a block, and the chunk. */
template <bool KEYS> DEVICE int rows_of(const bwd_sizes &n)
{
    return KEYS ? n.key_rows : +BLOCK_ROWS;
}
template <bool KEYS> DEVICE const token_chunk &chunk_of(const chunk_pair &in)
{
    return KEYS ? in.keys : in.queries;
}

/* A segment in tokens counted over the batch: query q + i sees keys before k + i + beyond + 1. */
struct segment_range {
    int q, nq, k, nk, beyond;
};

/* Clamped to one row, in case the list is not well-formed. Of a part of the keys (ring attention) a
 * segment may have more than the row, which then say where its diagonal is. */
DEVICE segment_range segment_range_of(const bwd_sizes &n, int i)
{
    const d9d_segment x = n.segment[i];
    const int row = max(0, min(n.b - 1, x.nq > 0 ? x.q / n.s : x.k / n.z));
    const int q = max(row * n.s, min((row + 1) * n.s, x.q));
    const int k = max(row * n.z, min((row + 1) * n.z, x.k));
    const int nq = max(0, min((row + 1) * n.s - q, x.nq));
    const int nk = max(0, min((row + 1) * n.z - k, x.nk));

    return {q, nq, k, nk, max(0, min(x.nk, +NO_WINDOW)) - nq};
}

/* The tokens [x, y) of the streamed side, counted from the segment, that `rows` stationary tokens
 * from `first` on stream. */
template <bool KEYS>
DEVICE int2 streamed_range(const bwd_sizes &n, const segment_range &x, int first, int rows)
{
    int from, end;

    if (KEYS) {
        from = first - x.k - x.beyond;
        end = min(x.nq, first - x.k - x.beyond + n.window + rows - 1);
    } else {
        from = first - x.q + x.beyond - n.window + 1;
        end = min(x.nk, first - x.q + x.beyond + rows);
    }
    from = max(0, from) / SIDE * SIDE;
    return make_int2(from, max(from, end));
}

/* The tokens of such a range that are in a chunk of the streamed side. */
template <bool KEYS>
DEVICE int2 clip_to_chunk(const bwd_sizes &n, const segment_range &x, int2 range,
                          const token_chunk &chunk)
{
    const int first = KEYS ? x.q : x.k, rows = rows_of<!KEYS>(n);
    const int from = max(range.x, round_up_int(max(0, chunk.from - first), rows));
    const int end = min(range.y, round_up_int(max(0, chunk.end - first), rows));

    return make_int2(from, max(from, end));
}

DEVICE int tiles_in_range(int2 range)
{
    return ceil_div_int(range.y - range.x, SIDE);
}

/* First token and number of tokens of a segment on the stationary side. */
template <bool KEYS> DEVICE int2 stationary_range(const segment_range &x)
{
    return KEYS ? make_int2(x.k, x.nk) : make_int2(x.q, x.nq);
}

/* What a task streams of segment x. */
template <bool KEYS>
DEVICE int2 task_range(const bwd_sizes &n, const segment_range &x, const tile_task &t,
                       const token_chunk &chunk)
{
    return clip_to_chunk<KEYS>(n, x, streamed_range<KEYS>(n, x, t.first, rows_of<KEYS>(n)), chunk);
}

template <bool KEYS>
DEVICE int count_tiles(const bwd_sizes &n, const tile_task &t, const token_chunk &chunk)
{
    int steps = 0;

    for (int i = t.from; i < t.end; i++)
        steps += tiles_in_range(task_range<KEYS>(n, segment_range_of(n, i), t, chunk));
    return steps;
}

/* All tokens of the streamed side. */
template <bool KEYS> DEVICE token_chunk all_streamed(const bwd_sizes &n)
{
    return {0, n.b * (KEYS ? n.s : n.z)};
}

/* Calls f for each task that begins with segment i. */
template <bool KEYS, class F> DEVICE void for_each_task(const bwd_sizes &n, int i, F f)
{
    int end = i + 1;

    if (KEYS) {
        if (i > 0 && n.segment[i - 1].k == n.segment[i].k)
            return;
        while (end < n.segments && n.segment[end].k == n.segment[i].k)
            end++;
    }
    const int2 range = stationary_range<KEYS>(segment_range_of(n, end - 1));

    for (int first = 0; first < range.y; first += rows_of<KEYS>(n))
        f(tile_task{i, end, range.x + first});
}

/* --- the task list --------------------------------------------------------------------------- */

enum { LIST_BLOCK = 1024 };

/* Exclusive prefix sum, in place; *all is the total. Called by all threads of a block. */
DEVICE void block_exclusive_scan(int *count, int *all)
{
    const int me = (int)threadIdx.x, own_count = count[me];

    for (int o = 1; o < LIST_BLOCK; o *= 2) {
        const int before = me >= o ? count[me - o] : 0;

        __syncthreads();
        count[me] += before;
        __syncthreads();
    }
    *all = count[LIST_BLOCK - 1];
    __syncthreads();
    count[me] -= own_count;
    __syncthreads();
}

/* One block makes the list by a counting sort: descending number of tiles, so that the longest
 * tasks start first. */
template <bool KEYS>
DEVICE void make_task_list(const bwd_sizes &n, const tile_tasks &out, int parts)
{
    __shared__ int bin[LIST_BLOCK];
    const int max_steps = ceil_div_int(KEYS ? n.s : n.z, SIDE), me = (int)threadIdx.x;
    const auto bin_of = [&](const tile_task &t) {
        const int64_t steps = count_tiles<KEYS>(n, t, all_streamed<KEYS>(n));

        return LIST_BLOCK - 1 -
               (int)d9di_i64_min(LIST_BLOCK - 1, steps * (LIST_BLOCK - 1) / max(1, max_steps));
    };
    int all;

    bin[me] = 0;
    __syncthreads();
    for (int i = me; i < n.segments; i += LIST_BLOCK)
        for_each_task<KEYS>(n, i, [&](const tile_task &t) { atomicAdd(&bin[bin_of(t)], 1); });
    __syncthreads();
    block_exclusive_scan(bin, &all);
    if (me == 0)
        out.count[0] = min(all, out.capacity);
    for (int i = me; i < parts; i += LIST_BLOCK)
        out.count[1 + i] = 0;
    for (int i = me; i < n.segments; i += LIST_BLOCK)
        for_each_task<KEYS>(n, i, [&](const tile_task &t) {
            const int at = atomicAdd(&bin[bin_of(t)], 1);

            if (at < out.capacity)
                out.list[at] = t;
        });
}

/* --- the iteration over tiles ---------------------------------------------------------------- */

/* Iterates over a task's tiles: segments, tiles, query heads of the group. next() is called before
 * each tile. Heads are innermost, so that sums have one order in any number of chunks. */
template <bool KEYS> struct tile_iterator {
    const bwd_sizes &n;
    const token_chunk &chunk;
    tile_task t;
    int heads, head; /* number of heads to stream, and the current one */
    int segment, tile;
    segment_range x;
    int2 range;

    __device__ __forceinline__ tile_iterator(const bwd_sizes &n, const token_chunk &chunk,
                                             const tile_task &t)
        : n(n), chunk(chunk), t(t), heads(KEYS ? n.group : 1), head(heads - 1), segment(t.from - 1),
          tile(0), range(make_int2(0, 0))
    {
    }

    __device__ __forceinline__ bool next()
    {
        if (++head < heads)
            return true;
        head = 0;
        tile += SIDE;
        if (tile < range.y)
            return true;
        do {
            if (++segment >= t.end)
                return false;
            x = segment_range_of(n, segment);
            range = task_range<KEYS>(n, x, t, chunk);
        } while (range.x == range.y);
        tile = range.x;
        return true;
    }

    /* Stationary: the task's first token, counted from the segment. Streamed: the tile's first
     * token, counted over the batch. */
    __device__ __forceinline__ int stationary() const { return t.first - (KEYS ? x.k : x.q); }
    __device__ __forceinline__ int streamed() const { return tile + (KEYS ? x.q : x.k); }
    /* The streamed head that belongs to stationary head `still`. */
    __device__ __forceinline__ int streamed_head(int still) const
    {
        return KEYS ? still * n.group + head : still / n.group;
    }
};

} // namespace

#endif /* D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_SCHEDULER_CUH */
