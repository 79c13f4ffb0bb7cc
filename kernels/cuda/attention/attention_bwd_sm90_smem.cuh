/* attention_bwd_sm90_smem.cuh - attention's gradient on Hopper: a block's shared memory, what is
 * told of it, and the producer.  See attention_bwd_sm90.cu.
 */
#ifndef D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_SMEM_CUH
#define D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_SMEM_CUH

#include "cuda/attention/attention_bwd_sm90_ds.cuh"

#include <math_constants.h>

namespace
{

enum { GROUP = 128, BLOCK = (CREWS + 1) * GROUP, CREW_WARPS = CREWS * GROUP / WARP };

struct job {
    sizes n;
    float scale;
    const float *lse;   /* [A, B S], times log2(e) */
    const float *delta; /* [A, B S] */
    bf16 *to[2];        /* dq; dk and dv */
    tasks of;
    slopes kept;
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
        TOGETHER = D > 128,
        TILES = TOGETHER ? 1 : +CREWS, /* of a still array */
        SLABS = (D + 63) / 64,
        TILE = SIDE * SLABS * 128,
        STAGES = !TOGETHER    ? 4
                 : SLABS <= 3 ? 3
                              : 2,
        OUT_SLABS = TOGETHER ? 1 : SLABS, /* that are stored at a time */
        OUT = SIDE * OUT_SLABS * 128,
        AT_STILL = 0, /* [2, TILES] */
        AT_STAGES = 2 * TILES * TILE,
        STAGE = TILE + (TILE > UNIT_BYTES ? TILE : +UNIT_BYTES),
        AT_OUT = AT_STAGES + STAGES * STAGE,                          /* [CREWS] */
        AT_WEIGHTS = AT_OUT + CREWS * OUT,                            /* [BUFFERS] */
        AT_ROWS = AT_WEIGHTS + (TOGETHER ? BUFFERS * TILE_BYTES : 0), /* of keys: lse and delta of a
                                                                         stage, [STAGES, 2, SIDE] */
        AT_STEPS = AT_ROWS + STAGES * 2 * SIDE * 4,
        AT_TOLD = AT_STEPS + STAGES * 16,
        AT_BARRIERS = AT_TOLD + 16,
        BARRIERS = 2 * STAGES + 2 + (TOGETHER ? 2 * BUFFERS * GROUP / WARP : 0),
        BYTES = AT_BARRIERS + 8 * BARRIERS
    };
    static_assert(BYTES <= 232448, "shared memory of a block");
};

/* Barriers: a stage is full or free; the still side is there, or used; and, of crews together, of
 * a buffer and a warp of each crew, weights are given, or taken. */
struct place {
    uint32_t base, full, free, there, used, given, taken;
};
template <int D> DEVICE place place_of(uint32_t base)
{
    enum { STAGES = layout<D>::STAGES };
    const uint32_t b = base + layout<D>::AT_BARRIERS, rest = b + 16 * STAGES;

    return {
        base, b, b + 8 * STAGES, rest, rest + 8, rest + 16, rest + 16 + 8 * BUFFERS * GROUP / WARP};
}

/* Array i of a stage's tiles; what is told of it. */
template <int D> DEVICE uint32_t moving_at(const place &at, uint32_t stage, int i)
{
    return at.base + layout<D>::AT_STAGES + stage * layout<D>::STAGE + i * layout<D>::TILE;
}
template <int D> DEVICE uint32_t step_at(const place &at, uint32_t stage)
{
    return at.base + layout<D>::AT_STEPS + stage * 16;
}

/* --- what the producer tells
 * ------------------------------------------------------------------------ */

/* Of the still side. */
template <bool KEYS> DEVICE int heads_of(const sizes &n)
{
    return KEYS ? n.kv : n.a;
}

struct maps {
    CUtensorMap still[2], moving[2];
};

/* What is told of a task. */
struct order {
    int first, cells; /* of the still side: where it begins, and how many there are */
    int head;         /* of the still side; -1: there is no more */
    int steps;        /* tiles along which to go */
};

/* What is told of a stage: the first query and the first key, counted from the segment so that
 * query i sees keys up to i; how many queries there are; and the unit in which slopes are kept, or
 * NONE. */
enum { NONE = -1 };
struct step {
    int query, key, nq, unit;
};

template <class T> DEVICE void tell(uint32_t at, const T &x)
{
    const int4 v = __builtin_bit_cast(int4, x);

    shared_store2(at, (uint32_t)v.x, (uint32_t)v.y);
    shared_store2(at + 8, (uint32_t)v.z, (uint32_t)v.w);
}
template <class T> DEVICE T told(uint32_t at)
{
    return __builtin_bit_cast(T, shared_load4(at));
}

/* 64 x 64 scores, from query i and key j on. */
struct scores {
    int i, j, nq, window;

    __device__ __forceinline__ bool seen(int a, int b) const
    {
        return i + a < nq && j + b <= i + a && j + b > i + a - window;
    }
    __device__ __forceinline__ bool all_seen() const
    {
        return i + SIDE <= nq && j + SIDE - 1 <= i && j > i + SIDE - 1 - window;
    }
    __device__ __forceinline__ bool none_seen() const
    {
        return i >= nq || j > min(i + SIDE, nq) - 1 || j + SIDE - 1 <= i - window;
    }
};

/* Those of a crew. */
template <bool KEYS> DEVICE scores scores_of(const step &x, int crew, int window)
{
    const int more = crew * SIDE;

    return {x.query + (KEYS ? 0 : more), x.key + (KEYS ? more : 0), x.nq, window};
}

/* --- the producers --------------------------------------------------------------------------- */

/* The order that number i of those claimed is, and its task. */
template <bool KEYS> DEVICE order order_of(const job &p, int i, task *t)
{
    const int heads = heads_of<KEYS>(p.n);

    if (i >= p.of.count[0] * heads)
        return {0, 0, -1, 0};
    *t = p.of.list[i / heads];
    const int2 cells = side_of<KEYS>(span_of(p.n, t->end - 1));

    return {t->first, cells.x + cells.y - t->first, i % heads,
            steps_of<KEYS>(p.n, *t) * (KEYS ? p.n.group : 1)};
}

/* Are the slopes of an order's head kept? */
template <int D, bool KEYS> DEVICE bool is_kept(const job &p, const order &o)
{
    return !layout<D>::TOGETHER && (KEYS ? o.head : o.head / p.n.group) < *p.kept.heads;
}

/* A warp: claims tasks, and brings both sides. */
template <int D, bool KEYS> struct producer {
    typedef layout<D> L;
    const job &p;
    const maps &m;
    const place &at;
    int lane;

    __device__ __forceinline__ void load(uint32_t to, const CUtensorMap *map, uint32_t b, int head,
                                         int cell) const
    {
        for (int i = 0; i < L::SLABS; i++)
            box_load(to + i * SIDE * 128, map, b, i * 64, head, cell);
    }

    __device__ __forceinline__ void bring_still(const order &o) const
    {
        barrier_arrive_expecting(at.there, 2 * L::TILES * L::TILE);
        for (int i = 0; i < 2 * L::TILES; i++)
            load(at.base + L::AT_STILL + i * L::TILE, &m.still[i / L::TILES], at.there, o.head,
                 o.first + i % L::TILES * SIDE);
    }

    __device__ __forceinline__ void bring_tile(uint32_t stage, const walk<KEYS> &w, int head) const
    {
        const uint32_t full = at.full + 8 * stage;

        barrier_arrive_expecting(full, 2 * L::TILE);
        for (int i = 0; i < 2; i++)
            load(moving_at<D>(at, stage, i), &m.moving[i], full, head, w.moving());
    }

    /* Of queries whose slopes are kept: keys, and what each crew has of slopes. */
    __device__ __forceinline__ void bring_slopes(uint32_t stage, const walk<KEYS> &w, int head,
                                                 const step &x) const
    {
        const uint32_t full = at.full + 8 * stage;
        bool any[CREWS];

        for (int i = 0; i < CREWS; i++)
            any[i] = !scores_of<KEYS>(x, i, p.n.window).none_seen();
        barrier_arrive_expecting(full, L::TILE + (any[0] + any[1]) * TILE_BYTES);
        load(moving_at<D>(at, stage, 0), &m.moving[0], full, head, w.moving());
        for (int i = 0; i < CREWS; i++)
            if (any[i])
                bytes_load_once(moving_at<D>(at, stage, 1) + i * TILE_BYTES,
                                p.kept.at + (int64_t)(x.unit + i) * UNIT_BYTES +
                                    w.tile / SIDE % CREWS * TILE_BYTES,
                                TILE_BYTES, full);
    }

    /* Of keys, lse and delta of the tile's queries, two a lane; those that are not there weigh
     * nothing. */
    __device__ __forceinline__ void load_rows(float2 (&v)[2], const walk<KEYS> &w, int head) const
    {
        const int first = head * p.n.b * p.n.s + w.moving() + 2 * lane;
        const int left = w.x.nq - w.tile - 2 * lane;

        v[0] = {left > 0 ? p.lse[first] : CUDART_INF_F, left > 1 ? p.lse[first + 1] : CUDART_INF_F};
        v[1] = {left > 0 ? p.delta[first] : 0.0f, left > 1 ? p.delta[first + 1] : 0.0f};
    }

    __device__ __forceinline__ void bring_rows(uint32_t stage, const float2 (&v)[2]) const
    {
        for (int i = 0; i < 2; i++)
            shared_store2(at.base + L::AT_ROWS + ((stage * 2 + i) * SIDE + 2 * lane) * 4,
                          __float_as_uint(v[i].x), __float_as_uint(v[i].y));
        __syncwarp();
        if (lane == 0)
            barrier_arrive(at.full + 8 * stage);
    }

    __device__ __forceinline__ step step_of(const walk<KEYS> &w) const
    {
        const int query = KEYS ? w.tile : w.still(), key = KEYS ? w.still() : w.tile;

        return {query, key - w.x.beyond, w.x.nq, NONE};
    }

    /* All of a task's tiles. */
    __device__ __forceinline__ void bring(const order &o, const task &t, bool kept,
                                          turn<L::STAGES> *stage) const
    {
        follower<KEYS> units(p.n, p.kept);

        for (walk<KEYS> w(p.n, t); w.next(); stage->next()) {
            const int head = w.moving_head(o.head);
            step x = step_of(w);
            float2 rows[2];

            if (kept && units.follow(w))
                x.unit = (KEYS ? head : o.head) * *p.kept.each + units.of.of(x.query);
            if constexpr (KEYS)
                load_rows(rows, w, head);
            barrier_wait_or_trap(at.free + 8 * stage->i, stage->parity);
            if (lane == 0) {
                tell(step_at<D>(at, stage->i), x);
                if (!KEYS && kept)
                    bring_slopes(stage->i, w, head, x);
                else
                    bring_tile(stage->i, w, head);
            }
            if constexpr (KEYS)
                bring_rows(stage->i, rows);
        }
    }

    __device__ __forceinline__ void run() const
    {
        turn<L::STAGES> stage = {0, 1};
        uint32_t parity = 1;

        for (;;) {
            const int mine = lane == 0 ? atomicAdd(&p.of.count[1], 1) : 0;
            task t;
            const order o = order_of<KEYS>(p, __shfl_sync(~0u, mine, 0), &t);

            barrier_wait_or_trap(at.used, parity);
            parity ^= 1;
            const bool kept = is_kept<D, KEYS>(p, o);

            if (lane == 0) {
                tell(at.base + L::AT_TOLD, o);
                if (o.head < 0 || (!KEYS && kept))
                    barrier_arrive(at.there);
                else
                    bring_still(o);
            }
            if (o.head < 0)
                return;
            bring(o, t, kept, &stage);
        }
    }
};

} // namespace

#endif /* D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_SMEM_CUH */
