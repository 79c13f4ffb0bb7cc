/* attention_bwd_sm90_smem.cuh - attention backward on Hopper: shared memory layout, work
 * descriptions, and the producer warp. See attention_bwd_sm90.cu. */
#ifndef D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_SMEM_CUH
#define D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_SMEM_CUH

#include "cuda/attention/attention_bwd_sm90_ds.cuh"

#include <math_constants.h>

namespace
{

enum { GROUP = 128, BLOCK = (CONSUMERS + 1) * GROUP, CONSUMER_WARPS = CONSUMERS * GROUP / WARP };

struct bwd_params {
    bwd_sizes n;
    float scale;
    const float *lse;   /* [A, B S], times log2(e) */
    const float *delta; /* [A, B S] */
    bf16 *to[2];        /* gradients of the stationary side: dq; dk and dv */
    tile_tasks of;
    ds_buffer ds;
    int d; /* features of a head: at most those of a tile */
};

/* --- shared memory layout -------------------------------------------------------------------- */

/* Tiles of 64 tokens and D features: slabs of 64 features, 64 rows of 128 bytes each, swizzled. TMA
 * fills features that a head lacks with zeros. A stage has one tile of each streamed array, or one
 * of keys and a dS tile for each warpgroup. Above 128 features (SHARED_TILE) the warpgroups share
 * one stationary tile and pass P through shared memory. */
enum { BUFFERS = 2 };
template <int D> struct layout {
    enum {
        SHARED_TILE = D > 128,
        TILES = SHARED_TILE ? 1 : +CONSUMERS, /* per stationary array */
        SLABS = (D + 63) / 64,
        TILE = SIDE * SLABS * 128,
        STAGES = !SHARED_TILE ? 4
                 : SLABS <= 3 ? 3
                              : 2,
        OUT_SLABS = SHARED_TILE ? 1 : SLABS, /* stored at a time */
        OUT = SIDE * OUT_SLABS * 128,
        OFFSET_STATIONARY = 0, /* [2, TILES] */
        OFFSET_STAGES = 2 * TILES * TILE,
        STAGE = TILE + (TILE > DS_BLOCK_BYTES ? TILE : +DS_BLOCK_BYTES),
        OFFSET_OUT = OFFSET_STAGES + STAGES * STAGE, /* [CONSUMERS] */
        OFFSET_P = OFFSET_OUT + CONSUMERS * OUT,     /* [BUFFERS] */
        OFFSET_ROW_STATS =
            OFFSET_P + (SHARED_TILE ? BUFFERS * TILE_BYTES : 0), /* KEYS: lse and delta of a stage,
                                                               [STAGES, 2, SIDE] */
        OFFSET_STAGE_INFO = OFFSET_ROW_STATS + STAGES * 2 * SIDE * 4,
        OFFSET_WORK_TILE = OFFSET_STAGE_INFO + STAGES * 16,
        OFFSET_BARRIERS = OFFSET_WORK_TILE + 16,
        BARRIERS = 2 * STAGES + 2 + (SHARED_TILE ? 2 * BUFFERS * GROUP / WARP : 0),
        BYTES = OFFSET_BARRIERS + 8 * BARRIERS
    };
    static_assert(BYTES <= 232448, "shared memory of a block");
};

/* Addresses of the mbarriers: a stage is full or empty; the stationary tiles are loaded or
 * released; with SHARED_TILE, a P buffer is full or empty, per buffer and pair of warps. */
struct smem_offsets {
    uint32_t base, full, empty, stationary_full, stationary_empty, p_full, p_empty;
};
template <int D> DEVICE smem_offsets smem_offsets_make(uint32_t base)
{
    enum { STAGES = layout<D>::STAGES };
    const uint32_t b = base + layout<D>::OFFSET_BARRIERS, rest = b + 16 * STAGES;

    return {
        base, b, b + 8 * STAGES, rest, rest + 8, rest + 16, rest + 16 + 8 * BUFFERS * GROUP / WARP};
}

/* Tile of streamed array i in a stage; the stage's stage_info. */
template <int D> DEVICE uint32_t streamed_tile_at(const smem_offsets &at, uint32_t stage, int i)
{
    return at.base + layout<D>::OFFSET_STAGES + stage * layout<D>::STAGE + i * layout<D>::TILE;
}
template <int D> DEVICE uint32_t stage_info_at(const smem_offsets &at, uint32_t stage)
{
    return at.base + layout<D>::OFFSET_STAGE_INFO + stage * 16;
}

/* --- what the producer publishes -------------------------------------------------------------- */

/* Heads of the stationary side. */
template <bool KEYS> DEVICE int heads_of(const bwd_sizes &n)
{
    return KEYS ? n.kv : n.a;
}

struct tma_descriptors {
    CUtensorMap stationary[2], streamed[2];
};

/* A block's current task and head. */
struct work_tile {
    int first, tokens; /* stationary tokens: the first, and how many are left in the segment */
    int head;          /* of the stationary side; -1: no more work */
    int steps;         /* streamed tiles, over all segments and heads */
};

/* A stage's tile. query, key: its first ones, counted from the segment such that query i sees keys
 * up to i. nq: the segment's queries. ds_block: the tile's dS block, or NONE. */
enum { NONE = -1 };
struct stage_info {
    int query, key, nq, ds_block;
};

template <class T> DEVICE void publish(uint32_t at, const T &x)
{
    const int4 v = __builtin_bit_cast(int4, x);

    smem_store2(at, (uint32_t)v.x, (uint32_t)v.y);
    smem_store2(at + 8, (uint32_t)v.z, (uint32_t)v.w);
}
template <class T> DEVICE T read_published(uint32_t at)
{
    return __builtin_bit_cast(T, smem_load4(at));
}

/* The mask of 64 x 64 scores, from query i and key j on. */
struct score_mask {
    int i, j, nq, window;

    __device__ __forceinline__ bool visible(int a, int b) const
    {
        return i + a < nq && j + b <= i + a && j + b > i + a - window;
    }
    __device__ __forceinline__ bool all_visible() const
    {
        return i + SIDE <= nq && j + SIDE - 1 <= i && j > i + SIDE - 1 - window;
    }
    __device__ __forceinline__ bool none_visible() const
    {
        return i >= nq || j > min(i + SIDE, nq) - 1 || j + SIDE - 1 <= i - window;
    }
};

/* The mask of one warpgroup's scores. */
template <bool KEYS> DEVICE score_mask score_mask_of(const stage_info &x, int warpgroup, int window)
{
    const int more = warpgroup * SIDE;

    return {x.query + (KEYS ? 0 : more), x.key + (KEYS ? more : 0), x.nq, window};
}

/* --- the producer warp ------------------------------------------------------------------------ */

/* Work tile number i of those claimed, and its task. */
template <bool KEYS> DEVICE work_tile work_tile_of(const bwd_params &p, int i, tile_task *t)
{
    const int heads = heads_of<KEYS>(p.n);

    if (i >= p.of.count[0] * heads)
        return {0, 0, -1, 0};
    *t = p.of.list[i / heads];
    const int2 range = stationary_range<KEYS>(segment_range_of(p.n, t->end - 1));

    return {t->first, range.x + range.y - t->first, i % heads,
            count_tiles<KEYS>(p.n, *t) * (KEYS ? p.n.group : 1)};
}

/* True if the first launch stores the dS of the work tile's head. */
template <int D, bool KEYS> DEVICE bool has_stored_ds(const bwd_params &p, const work_tile &o)
{
    return !layout<D>::SHARED_TILE && (KEYS ? o.head : o.head / p.n.group) < *p.ds.heads;
}

/* The producer warp: claims tasks and loads both sides with TMA. */
template <int D, bool KEYS> struct producer {
    typedef layout<D> L;
    const bwd_params &p;
    const tma_descriptors &m;
    const smem_offsets &at;
    int lane;

    __device__ __forceinline__ void load(uint32_t to, const CUtensorMap *map, uint32_t b, int head,
                                         int token) const
    {
        for (int i = 0; i < L::SLABS; i++)
            tma_load(to + i * SIDE * 128, map, b, i * 64, head, token);
    }

    __device__ __forceinline__ void load_stationary(const work_tile &o) const
    {
        mbarrier_arrive_expect_tx(at.stationary_full, 2 * L::TILES * L::TILE);
        for (int i = 0; i < 2 * L::TILES; i++)
            load(at.base + L::OFFSET_STATIONARY + i * L::TILE, &m.stationary[i / L::TILES],
                 at.stationary_full, o.head, o.first + i % L::TILES * SIDE);
    }

    __device__ __forceinline__ void load_streamed_tile(uint32_t stage, const tile_iterator<KEYS> &w,
                                                       int head) const
    {
        const uint32_t full = at.full + 8 * stage;

        mbarrier_arrive_expect_tx(full, 2 * L::TILE);
        for (int i = 0; i < 2; i++)
            load(streamed_tile_at<D>(at, stage, i), &m.streamed[i], full, head, w.streamed());
    }

    /* dQ from stored dS: loads the keys, and each warpgroup's tile of dS. */
    __device__ __forceinline__ void load_ds(uint32_t stage, const tile_iterator<KEYS> &w, int head,
                                            const stage_info &x) const
    {
        const uint32_t full = at.full + 8 * stage;
        bool any[CONSUMERS];

        for (int i = 0; i < CONSUMERS; i++)
            any[i] = !score_mask_of<KEYS>(x, i, p.n.window).none_visible();
        mbarrier_arrive_expect_tx(full, L::TILE + (any[0] + any[1]) * TILE_BYTES);
        load(streamed_tile_at<D>(at, stage, 0), &m.streamed[0], full, head, w.streamed());
        for (int i = 0; i < CONSUMERS; i++)
            if (any[i])
                tma_bulk_load_once(streamed_tile_at<D>(at, stage, 1) + i * TILE_BYTES,
                                   p.ds.at + (int64_t)(x.ds_block + i) * DS_BLOCK_BYTES +
                                       w.tile / SIDE % CONSUMERS * TILE_BYTES,
                                   TILE_BYTES, full);
    }

    /* KEYS: lse and delta of the tile's queries, two per lane. Missing queries get lse = inf, so
     * that their P is 0. */
    __device__ __forceinline__ void load_row_stats(float2 (&v)[2], const tile_iterator<KEYS> &w,
                                                   int head) const
    {
        const int first = head * p.n.b * p.n.s + w.streamed() + 2 * lane;
        const int left = w.x.nq - w.tile - 2 * lane;

        v[0] = {left > 0 ? p.lse[first] : CUDART_INF_F, left > 1 ? p.lse[first + 1] : CUDART_INF_F};
        v[1] = {left > 0 ? p.delta[first] : 0.0f, left > 1 ? p.delta[first + 1] : 0.0f};
    }

    __device__ __forceinline__ void store_row_stats(uint32_t stage, const float2 (&v)[2]) const
    {
        for (int i = 0; i < 2; i++)
            smem_store2(at.base + L::OFFSET_ROW_STATS + ((stage * 2 + i) * SIDE + 2 * lane) * 4,
                        __float_as_uint(v[i].x), __float_as_uint(v[i].y));
        __syncwarp();
        if (lane == 0)
            mbarrier_arrive(at.full + 8 * stage);
    }

    __device__ __forceinline__ stage_info stage_info_of(const tile_iterator<KEYS> &w) const
    {
        const int query = KEYS ? w.tile : w.stationary(), key = KEYS ? w.stationary() : w.tile;

        return {query, key - w.x.beyond, w.x.nq, NONE};
    }

    /* Loads all tiles of a task. */
    __device__ __forceinline__ void load_streamed(const work_tile &o, const tile_task &t,
                                                  bool stored,
                                                  pipeline_state<L::STAGES> *stage) const
    {
        ds_block_cursor<KEYS> cursor(p.n, p.ds);

        for (tile_iterator<KEYS> w(p.n, t); w.next(); stage->next()) {
            const int head = w.streamed_head(o.head);
            stage_info x = stage_info_of(w);
            float2 rows[2];

            if (stored && cursor.seek(w))
                x.ds_block = (KEYS ? head : o.head) * *p.ds.each + cursor.blocks.index_of(x.query);
            if constexpr (KEYS)
                load_row_stats(rows, w, head);
            mbarrier_wait_or_trap(at.empty + 8 * stage->i, stage->parity);
            if (lane == 0) {
                publish(stage_info_at<D>(at, stage->i), x);
                if (!KEYS && stored)
                    load_ds(stage->i, w, head, x);
                else
                    load_streamed_tile(stage->i, w, head);
            }
            if constexpr (KEYS)
                store_row_stats(stage->i, rows);
        }
    }

    __device__ __forceinline__ void run() const
    {
        pipeline_state<L::STAGES> stage = {0, 1};
        uint32_t parity = 1;

        for (;;) {
            const int next = lane == 0 ? atomicAdd(&p.of.count[1], 1) : 0;
            tile_task t;
            const work_tile o = work_tile_of<KEYS>(p, __shfl_sync(~0u, next, 0), &t);

            mbarrier_wait_or_trap(at.stationary_empty, parity);
            parity ^= 1;
            const bool stored = has_stored_ds<D, KEYS>(p, o);

            if (lane == 0) {
                publish(at.base + L::OFFSET_WORK_TILE, o);
                if (o.head < 0 || (!KEYS && stored))
                    mbarrier_arrive(at.stationary_full);
                else
                    load_stationary(o);
            }
            if (o.head < 0)
                return;
            load_streamed(o, t, stored, &stage);
        }
    }
};

} // namespace

#endif /* D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_SMEM_CUH */
