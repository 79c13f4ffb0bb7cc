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
    bwd_part part;
    float scale;
    const float *lse;   /* [A, B S], times log2(e) */
    const float *delta; /* [A, B S] */
    bf16 *to[2];        /* gradients of the stationary side: dq; dk and dv */
    tile_tasks of;
    ds_buffer ds;
    float4 *unfinished; /* the sums of tasks between parts, or NULL if no part continues another */
    int d, dv;          /* features of a query and key, and of a value: at most those of a tile */
};

/* --- shared memory layout -------------------------------------------------------------------- */

/* Tiles of 64 tokens and D or DV features: slabs of 64 features, 64 rows of 128 bytes each,
 * swizzled. TMA fills features that a head lacks with zeros.
 *
 *     launch          stationary   a stage                                     warpgroups share
 *     dK, dV (KEYS)   K V          queries and dO                              above 128: a tile
 *     dQ              none         keys, and a dS tile for each warpgroup      nothing
 *
 * Above 128 features the warpgroups of the dK, dV launch share one stationary tile (SHARED_TILE)
 * and pass P through shared memory. */
enum { BUFFERS = 2 };
template <int D, int DV, bool IS_KEYS> struct layout {
    enum {
        KEYS = IS_KEYS,
        FEATURES = D,
        VALUE_FEATURES = DV,
        SHARED_TILE = KEYS && D > 128,
        TILES = SHARED_TILE ? 1 : +CONSUMERS, /* stationary tiles of a block */
        SLABS = (D + 63) / 64,
        VALUE_SLABS = KEYS ? (DV + 63) / 64 : 0,
        TILE = SIDE * SLABS * 128,
        VALUE_TILE = SIDE * VALUE_SLABS * 128,
        STAGE = TILE + (KEYS ? +VALUE_TILE : CONSUMERS * TILE_BYTES),
        STAGES = !SHARED_TILE               ? 4
                 : SLABS + VALUE_SLABS <= 6 ? 3
                                            : 2,
        OUT_SLABS = D > 128 ? 1 : SLABS, /* stored at a time */
        OUT = SIDE * OUT_SLABS * 128,
        STATIONARY_BYTES = KEYS ? TILES * (TILE + VALUE_TILE) : 0,
        OFFSET_STATIONARY = 0, /* [TILES] of keys, [TILES] of values */
        OFFSET_STAGES = OFFSET_STATIONARY + STATIONARY_BYTES,
        OFFSET_OUT = OFFSET_STAGES + STAGES * STAGE, /* [CONSUMERS] */
        OFFSET_P = OFFSET_OUT + CONSUMERS * OUT,     /* [BUFFERS] */
        OFFSET_ROW_STATS =
            OFFSET_P + (SHARED_TILE ? BUFFERS * TILE_BYTES : 0), /* KEYS: lse and delta of a stage,
                                                               [STAGES, 2, SIDE] */
        OFFSET_STAGE_INFO = OFFSET_ROW_STATS + (KEYS ? STAGES * 2 * SIDE * 4 : 0),
        OFFSET_WORK_TILE = OFFSET_STAGE_INFO + STAGES * 16,
        OFFSET_BARRIERS = OFFSET_WORK_TILE + 32,
        BARRIERS = 2 * STAGES + 2 + (SHARED_TILE ? 2 * BUFFERS * GROUP / WARP : 0),
        BYTES = OFFSET_BARRIERS + 8 * BARRIERS,
        SUMS = KEYS && !SHARED_TILE ? 2 : 1, /* of a warpgroup, of D or DV features */
        SUM4 = (D > DV ? D : DV) / 8 * GROUP /* float4 of a sum */
    };
    static_assert(BYTES <= 232448, "shared memory of a block");
};

/* Addresses of the mbarriers: a stage is full or empty; the work tile, with its stationary tiles,
 * is published or released; with SHARED_TILE, a P buffer is full or empty, per buffer and pair of
 * warps. */
struct smem_offsets {
    uint32_t base, full, empty, work_full, work_empty, p_full, p_empty;
};
template <class L> DEVICE smem_offsets smem_offsets_make(uint32_t base)
{
    const uint32_t b = base + L::OFFSET_BARRIERS, rest = b + 16 * L::STAGES;

    return {base,
            b,
            b + 8 * L::STAGES,
            rest,
            rest + 8,
            rest + 16,
            rest + 16 + 8 * BUFFERS * GROUP / WARP};
}

/* Tile of streamed array i in a stage, dS tiles being array 1; the stage's stage_info. */
template <class L> DEVICE uint32_t streamed_tile_at(const smem_offsets &at, uint32_t stage, int i)
{
    return at.base + L::OFFSET_STAGES + stage * L::STAGE + i * L::TILE;
}
template <class L> DEVICE uint32_t stage_info_at(const smem_offsets &at, uint32_t stage)
{
    return at.base + L::OFFSET_STAGE_INFO + stage * 16;
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
    int first, tokens;     /* stationary tokens: the first, and how many are left in the segment */
    int head;              /* of the stationary side; -1: no more work */
    int steps;             /* streamed tiles, over all segments and heads */
    int slot;              /* of its unfinished sums */
    int begun, unfinished; /* earlier parts have added to the sums; later ones will */
    int unused;
};

/* A stage's tile. query, key: its first ones, counted from the segment such that query i sees keys
 * up to i. nq: the segment's queries. ds_block: the tile's dS block, or NONE. The second
 * warpgroup's is the next one, so that NONE must not be followed by a block. */
enum { NONE = -2 };
struct stage_info {
    int query, key, nq, ds_block;
};

template <class T> DEVICE void publish(uint32_t at, const T &x)
{
    struct words {
        int4 v[sizeof(T) / 16];
    };
    const words w = __builtin_bit_cast(words, x);

    for (int i = 0; i < (int)(sizeof(T) / 16); i++)
        smem_store4(at + 16 * i, (uint32_t)w.v[i].x, (uint32_t)w.v[i].y, (uint32_t)w.v[i].z,
                    (uint32_t)w.v[i].w);
}
template <class T> DEVICE T read_published(uint32_t at)
{
    struct words {
        int4 v[sizeof(T) / 16];
    } w;

    for (int i = 0; i < (int)(sizeof(T) / 16); i++)
        w.v[i] = smem_load4(at + 16 * i);
    return __builtin_bit_cast(T, w);
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

/* The task's tiles in this part, before it and after it. */
template <bool KEYS> DEVICE void count_work(const bwd_params &p, const tile_task &t, work_tile *o)
{
    const token_chunk all = all_streamed<KEYS>(p.n), chunk = chunk_of<!KEYS>(p.part.in);

    o->steps = count_tiles<KEYS>(p.n, t, chunk) * (KEYS ? p.n.group : 1);
    if (p.unfinished == NULL)
        return;
    o->begun = count_tiles<KEYS>(p.n, t, {0, chunk.from});
    o->unfinished = count_tiles<KEYS>(p.n, t, {chunk.end, all.end});
}

/* False if this part leaves the work tile out: it is in another chunk, or all that it streams is.
 * What streams nothing belongs to the first chunk, which writes zeros. */
template <bool KEYS> DEVICE bool in_part(const bwd_params &p, const work_tile &o)
{
    const token_chunk &stationary = chunk_of<KEYS>(p.part.in),
                      &streamed = chunk_of<!KEYS>(p.part.in);

    return o.first >= stationary.from && o.first < stationary.end &&
           (o.steps > 0 || (o.begun == 0 && o.unfinished == 0 && streamed.from == 0));
}

/* Work tile number i of those claimed, and its task. */
template <bool KEYS> DEVICE work_tile work_tile_of(const bwd_params &p, int i, tile_task *t)
{
    const int per_key_head = KEYS ? 1 : p.n.group, heads = p.part.heads * per_key_head;
    work_tile o = {0, 0, -1, 0, i, 0, 0, 0};

    if (i / heads >= p.of.count[0])
        return o;
    *t = p.of.list[i / heads];
    const int2 range = stationary_range<KEYS>(segment_range_of(p.n, t->end - 1));

    o.first = t->first;
    o.tokens = range.x + range.y - t->first;
    o.head = p.part.head * per_key_head + i % heads;
    count_work<KEYS>(p, *t, &o);
    return o;
}

/* The producer warp: claims tasks and loads tiles with TMA. */
template <class L> struct producer {
    enum { KEYS = L::KEYS };
    const bwd_params &p;
    const tma_descriptors &m;
    const smem_offsets &at;
    int lane;

    /* Claims the next work tile of this part. Called by all threads of a warp. */
    __device__ __forceinline__ work_tile claim(tile_task *t) const
    {
        for (;;) {
            const int next = lane == 0 ? atomicAdd(&p.of.count[1 + p.part.index], 1) : 0;
            const work_tile o = work_tile_of<KEYS>(p, __shfl_sync(~0u, next, 0), t);

            if (o.head < 0 || in_part<KEYS>(p, o))
                return o;
        }
    }

    __device__ __forceinline__ void load(uint32_t to, const CUtensorMap *map, int slabs, uint32_t b,
                                         int head, int token) const
    {
        for (int i = 0; i < slabs; i++)
            tma_load(to + i * SIDE * 128, map, b, i * 64, head, token);
    }

    __device__ __forceinline__ void load_stationary(const work_tile &o) const
    {
        const uint32_t keys = at.base + L::OFFSET_STATIONARY, values = keys + L::TILES * L::TILE;

        mbarrier_arrive_expect_tx(at.work_full, L::STATIONARY_BYTES);
        for (int i = 0; i < L::TILES; i++) {
            const int token = o.first + i * SIDE;

            load(keys + i * L::TILE, &m.stationary[0], L::SLABS, at.work_full, o.head, token);
            load(values + i * L::VALUE_TILE, &m.stationary[1], L::VALUE_SLABS, at.work_full, o.head,
                 token);
        }
    }

    __device__ __forceinline__ void load_queries(uint32_t stage, const tile_iterator<KEYS> &w,
                                                 int head) const
    {
        const uint32_t full = at.full + 8 * stage;

        mbarrier_arrive_expect_tx(full, L::STAGE);
        load(streamed_tile_at<L>(at, stage, 0), &m.streamed[0], L::SLABS, full, head, w.streamed());
        load(streamed_tile_at<L>(at, stage, 1), &m.streamed[1], L::VALUE_SLABS, full, head,
             w.streamed());
    }

    /* Loads the keys, and the dS tile of each warpgroup that sees them. */
    __device__ __forceinline__ void load_keys(uint32_t stage, const tile_iterator<KEYS> &w,
                                              int head, const stage_info &x) const
    {
        const uint32_t full = at.full + 8 * stage;
        const int64_t block_bytes = p.n.key_rows / SIDE * TILE_BYTES;
        bool any[CONSUMERS];

        for (int i = 0; i < CONSUMERS; i++)
            any[i] =
                !score_mask_of<KEYS>(x, i, p.n.window).none_visible() && in_scratch(x.ds_block + i);
        mbarrier_arrive_expect_tx(full, L::TILE + (any[0] + any[1]) * TILE_BYTES);
        load(streamed_tile_at<L>(at, stage, 0), &m.streamed[0], L::SLABS, full, head, w.streamed());
        for (int i = 0; i < CONSUMERS; i++)
            if (any[i])
                tma_bulk_load_once(streamed_tile_at<L>(at, stage, 1) + i * TILE_BYTES,
                                   p.ds.at + (x.ds_block + i) * block_bytes +
                                       w.tile % p.n.key_rows / SIDE * TILE_BYTES,
                                   TILE_BYTES, full);
    }

    /* True of all dS blocks, if the list of segments is well-formed. */
    __device__ __forceinline__ bool in_scratch(int ds_block) const
    {
        return ds_block >= 0 && ds_block < p.ds.capacity;
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

    /* The tile's position, and the dS block of `head`, which counts query heads. */
    __device__ __forceinline__ stage_info stage_info_of(const tile_iterator<KEYS> &w,
                                                        ds_block_cursor<KEYS> *cursor,
                                                        int head) const
    {
        stage_info x = {KEYS ? w.tile : w.stationary(),
                        (KEYS ? w.stationary() : w.tile) - w.x.beyond, w.x.nq, NONE};

        if (cursor->seek(w))
            x.ds_block = (head - p.part.head * p.n.group) * *cursor->to.each +
                         cursor->blocks.index_of(x.query);
        if (KEYS && !in_scratch(x.ds_block))
            x.ds_block = NONE;
        return x;
    }

    /* Loads all tiles of a task. */
    __device__ __forceinline__ void load_streamed(const work_tile &o, const tile_task &t,
                                                  pipeline_state<L::STAGES> *stage) const
    {
        ds_block_cursor<KEYS> cursor(p.n, ds_chunk_of(p.n, p.ds, p.part.in));

        for (tile_iterator<KEYS> w(p.n, chunk_of<!KEYS>(p.part.in), t); w.next(); stage->next()) {
            const int head = w.streamed_head(o.head);
            const stage_info x = stage_info_of(w, &cursor, KEYS ? head : o.head);
            float2 rows[2];

            if constexpr (KEYS)
                load_row_stats(rows, w, head);
            mbarrier_wait_or_trap(at.empty + 8 * stage->i, stage->parity);
            if (lane == 0) {
                publish(stage_info_at<L>(at, stage->i), x);
                if constexpr (KEYS)
                    load_queries(stage->i, w, head);
                else
                    load_keys(stage->i, w, head, x);
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
            tile_task t;
            const work_tile o = claim(&t);

            mbarrier_wait_or_trap(at.work_empty, parity);
            parity ^= 1;
            if (lane == 0) {
                publish(at.base + L::OFFSET_WORK_TILE, o);
                if (!KEYS || o.head < 0)
                    mbarrier_arrive(at.work_full);
                else
                    load_stationary(o);
            }
            if (o.head < 0)
                return;
            load_streamed(o, t, &stage);
        }
    }
};

} // namespace

#endif /* D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_SMEM_CUH */
