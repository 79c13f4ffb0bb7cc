/* attention_bwd_sm90_smem.cuh - attention's gradient on Hopper: a block's shared memory, what is
 * told of it, and the producer.  See attention_bwd_sm90.cu.
 */
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
    bf16 *to[2];        /* dq; dk and dv */
    tile_tasks of;
    ds_buffer kept;
    int d; /* features of a head: at most those of a tile */
};

/* --- a block's shared memory ------------------------------------------------------------------ */

/* Tiles of 64 cells and D features: slabs of 64 features, 64 rows of 128 bytes each, swizzled. What
 * a head does not have of a slab the copy engine fills with zeros.  A stage has one of each array,
 * or one of keys and of slopes one for each crew.  Of large heads the crews work TOGETHER, on one
 * tile of still cells, and pass weights through shared memory. */
enum { BUFFERS = 2 };
template <int D> struct layout {
    enum {
        SHARED_TILE = D > 128,
        TILES = SHARED_TILE ? 1 : +CONSUMERS, /* of a still array */
        SLABS = (D + 63) / 64,
        TILE = SIDE * SLABS * 128,
        STAGES = !SHARED_TILE ? 4
                 : SLABS <= 3 ? 3
                              : 2,
        OUT_SLABS = SHARED_TILE ? 1 : SLABS, /* that are stored at a time */
        OUT = SIDE * OUT_SLABS * 128,
        OFFSET_STATIONARY = 0, /* [2, TILES] */
        OFFSET_STAGES = 2 * TILES * TILE,
        STAGE = TILE + (TILE > DS_BLOCK_BYTES ? TILE : +DS_BLOCK_BYTES),
        OFFSET_OUT = OFFSET_STAGES + STAGES * STAGE, /* [CREWS] */
        OFFSET_P = OFFSET_OUT + CONSUMERS * OUT,     /* [BUFFERS] */
        OFFSET_ROW_STATS =
            OFFSET_P + (SHARED_TILE ? BUFFERS * TILE_BYTES : 0), /* of keys: lse and delta of a
                                                          stage, [STAGES, 2, SIDE] */
        OFFSET_STAGE_INFO = OFFSET_ROW_STATS + STAGES * 2 * SIDE * 4,
        OFFSET_WORK_TILE = OFFSET_STAGE_INFO + STAGES * 16,
        OFFSET_BARRIERS = OFFSET_WORK_TILE + 16,
        BARRIERS = 2 * STAGES + 2 + (SHARED_TILE ? 2 * BUFFERS * GROUP / WARP : 0),
        BYTES = OFFSET_BARRIERS + 8 * BARRIERS
    };
    static_assert(BYTES <= 232448, "shared memory of a block");
};

/* Barriers: a stage is full or free; the still side is there, or used; and, of crews together, of
 * a buffer and a warp of each crew, weights are given, or taken. */
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

/* Array i of a stage's tiles; what is told of it. */
template <int D> DEVICE uint32_t streamed_tile_at(const smem_offsets &at, uint32_t stage, int i)
{
    return at.base + layout<D>::OFFSET_STAGES + stage * layout<D>::STAGE + i * layout<D>::TILE;
}
template <int D> DEVICE uint32_t stage_info_at(const smem_offsets &at, uint32_t stage)
{
    return at.base + layout<D>::OFFSET_STAGE_INFO + stage * 16;
}

/* --- what the producer tells
 * ------------------------------------------------------------------------ */

/* Of the still side. */
template <bool KEYS> DEVICE int heads_of(const bwd_sizes &n)
{
    return KEYS ? n.kv : n.a;
}

struct tma_descriptors {
    CUtensorMap stationary[2], streamed[2];
};

/* What is told of a task. */
struct work_tile {
    int first, cells; /* of the still side: where it begins, and how many there are */
    int head;         /* of the still side; -1: there is no more */
    int steps;        /* tiles along which to go */
};

/* What is told of a stage: the first query and the first key, counted from the segment so that
 * query i sees keys up to i; how many queries there are; and the unit in which slopes are kept, or
 * NONE. */
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

/* 64 x 64 scores, from query i and key j on. */
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

/* Those of a crew. */
template <bool KEYS> DEVICE score_mask score_mask_of(const stage_info &x, int crew, int window)
{
    const int more = crew * SIDE;

    return {x.query + (KEYS ? 0 : more), x.key + (KEYS ? more : 0), x.nq, window};
}

/* --- the producers --------------------------------------------------------------------------- */

/* The order that number i of those claimed is, and its task. */
template <bool KEYS> DEVICE work_tile work_tile_of(const bwd_params &p, int i, tile_task *t)
{
    const int heads = heads_of<KEYS>(p.n);

    if (i >= p.of.count[0] * heads)
        return {0, 0, -1, 0};
    *t = p.of.list[i / heads];
    const int2 cells = stationary_range<KEYS>(segment_range_of(p.n, t->end - 1));

    return {t->first, cells.x + cells.y - t->first, i % heads,
            count_tiles<KEYS>(p.n, *t) * (KEYS ? p.n.group : 1)};
}

/* Are the slopes of an order's head kept? */
template <int D, bool KEYS> DEVICE bool has_stored_ds(const bwd_params &p, const work_tile &o)
{
    return !layout<D>::SHARED_TILE && (KEYS ? o.head : o.head / p.n.group) < *p.kept.heads;
}

/* A warp: claims tasks, and brings both sides. */
template <int D, bool KEYS> struct producer {
    typedef layout<D> L;
    const bwd_params &p;
    const tma_descriptors &m;
    const smem_offsets &at;
    int lane;

    __device__ __forceinline__ void load(uint32_t to, const CUtensorMap *map, uint32_t b, int head,
                                         int cell) const
    {
        for (int i = 0; i < L::SLABS; i++)
            tma_load(to + i * SIDE * 128, map, b, i * 64, head, cell);
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

    /* Of queries whose slopes are kept: keys, and what each crew has of slopes. */
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
                                   p.kept.at + (int64_t)(x.ds_block + i) * DS_BLOCK_BYTES +
                                       w.tile / SIDE % CONSUMERS * TILE_BYTES,
                                   TILE_BYTES, full);
    }

    /* Of keys, lse and delta of the tile's queries, two a lane; those that are not there weigh
     * nothing. */
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

    /* All of a task's tiles. */
    __device__ __forceinline__ void load_streamed(const work_tile &o, const tile_task &t, bool kept,
                                                  pipeline_state<L::STAGES> *stage) const
    {
        ds_block_cursor<KEYS> cursor(p.n, p.kept);

        for (tile_iterator<KEYS> w(p.n, t); w.next(); stage->next()) {
            const int head = w.streamed_head(o.head);
            stage_info x = stage_info_of(w);
            float2 rows[2];

            if (kept && cursor.seek(w))
                x.ds_block =
                    (KEYS ? head : o.head) * *p.kept.each + cursor.blocks.index_of(x.query);
            if constexpr (KEYS)
                load_row_stats(rows, w, head);
            mbarrier_wait_or_trap(at.empty + 8 * stage->i, stage->parity);
            if (lane == 0) {
                publish(stage_info_at<D>(at, stage->i), x);
                if (!KEYS && kept)
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
            const int mine = lane == 0 ? atomicAdd(&p.of.count[1], 1) : 0;
            tile_task t;
            const work_tile o = work_tile_of<KEYS>(p, __shfl_sync(~0u, mine, 0), &t);

            mbarrier_wait_or_trap(at.stationary_empty, parity);
            parity ^= 1;
            const bool kept = has_stored_ds<D, KEYS>(p, o);

            if (lane == 0) {
                publish(at.base + L::OFFSET_WORK_TILE, o);
                if (o.head < 0 || (!KEYS && kept))
                    mbarrier_arrive(at.stationary_full);
                else
                    load_stationary(o);
            }
            if (o.head < 0)
                return;
            load_streamed(o, t, kept, &stage);
        }
    }
};

} // namespace

#endif /* D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_SMEM_CUH */
