/* gemm_skinny_mma.cuh - the skinny GEMM for decode on tensor cores: a few rows of bfloat16 by
 * matrices of any format, which are read once.  gemm_skinny_mma.cu says how it works, for bfloat16.
 *
 * A format F says what 16 bytes of a row of W are:
 *
 *     F::ELEMENTS          elements of 16 bytes, a multiple of 8
 *     F::depth(x, deep)    stages of the ring for x tiles of rows, with much or little memory
 *     F::HAS_SUM_SCALES    a row's sum is multiplied by a float, the first of the row's scales
 *     F::tables            in shared memory, which all threads fill(); HAS_TABLES: they are read
 *     F::chunk_scales      of the 16 rows of a tile, in each stage; request_scales() copies them
 *     F::LANES_SHARE       lanes read scales that other lanes have copied
 *     F::row_scales        of a lane's two rows, in registers
 *     F::expand            eight elements of a lane as bfloat16
 *     F::launch            the kernel: launch_by_rows() or another
 */
#ifndef D9DI_CUDA_GEMM_GEMM_SKINNY_MMA_CUH
#define D9DI_CUDA_GEMM_GEMM_SKINNY_MMA_CUH

#include "cuda/common/cp_async.cuh"
#include "cuda/common/mma.cuh"
#include "cuda/elementwise/swiglu.cuh"
#include "cuda/gemm/gemm_skinny.h"

namespace skinny_mma
{

enum {
    EIGHT = 8,
    LOAD_BYTES = 16,        /* bytes of a lane's load */
    CHUNK = 8 * LOAD_BYTES, /* bytes of a row that a warp takes at a time: four lanes, twice */
    BLOCK_WARPS = 8,        /* warps of a block */
    HALF = 8,               /* rows of half a tile, which are contiguous */
    PARTS = 4,              /* of a chunk: a load of each half of the tile, twice */
    STEP = BLOCK_WARPS * CHUNK,
    BLOCKS = 2,
    MAX_MATRICES = 6
};

/* --- work ------------------------------------------------------------------------------------- */
template <class C> struct weight_matrix {
    const char *w;
    C *y;
    const C *plus, *bias; /* addend; each may be NULL */
    int64_t n, tiles;
};
template <class C> struct skinny_params {
    const bf16 *x;
    int64_t m, k, tiles;
    int64_t pitch;             /* bytes from a row of W to the next */
    int code_bytes, scales_at; /* of a row: bytes of elements; where its scales are */
    bool still;
    weight_matrix<C> of[MAX_MATRICES]; /* or gate and up */
    C *gated;
};

/* The matrix of tile t; t becomes the tile's number within it. */
template <bool GATED, class C>
static __device__ __forceinline__ int matrix_of(const skinny_params<C> &p, int64_t *t)
{
    int i = 0;

#pragma unroll
    for (; !GATED && i < MAX_MATRICES - 1 && *t >= p.of[i].tiles; i++)
        *t -= p.of[i].tiles;
    return i;
}

/* A lane's rows of W in a tile, one of each half. */
struct lane_rows {
    const char *w[2]; /* the first row where there is none */
    bool there[2];
};
template <bool GATED, class C>
static __device__ __forceinline__ lane_rows rows_of_tile(const skinny_params<C> &p, int64_t t)
{
    const int row = threadIdx.x % WARP / 4;
    int64_t tile = t < p.tiles ? t : 0;
    const int i = matrix_of<GATED>(p, &tile);
    lane_rows y;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const weight_matrix<C> &m = p.of[GATED ? h : i];
        const int64_t r = GATED ? tile * HALF + row : (2 * tile + h) * HALF + row;

        y.there[h] = t < p.tiles && r < m.n;
        y.w[h] = m.w + (y.there[h] ? r * p.pitch : 0);
    }
    return y;
}

template <class F> struct weight_stage {
    uint4 part[PARTS][WARP];
    typename F::chunk_scales scales;
};

/* A lane's iteration over W: its warp's chunks of each tile of its block. */
template <class F, bool GATED, class C> struct weight_iterator {
    const skinny_params<C> &p;
    int64_t t;
    int at; /* of the chunk, within a row */
    lane_rows rows;
    uint64_t policy;

    __device__ __forceinline__ weight_iterator(const skinny_params<C> &of, int first)
        : p(of), t(blockIdx.x), at(first), rows(rows_of_tile<GATED>(of, blockIdx.x)),
          policy(evict_first_policy())
    {
    }
    /* Requests a chunk (zeros beyond W), and advances. */
    __device__ __forceinline__ void load_chunk(weight_stage<F> &to, int first)
    {
        const int lane = threadIdx.x % 4 * LOAD_BYTES;

#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            const int a = at + i / 2 * (CHUNK / 2) + lane;
            const bool yes = rows.there[i % 2] && a < p.code_bytes;

            cp_async_16(&to.part[i][threadIdx.x % WARP], rows.w[i % 2] + (yes ? a : 0), yes,
                        policy);
        }
        F::request_scales(to.scales, rows, at, p.code_bytes);
        cp_async_commit();
        at += STEP;
        if (at >= p.code_bytes) {
            at = first;
            t += gridDim.x;
            rows = rows_of_tile<GATED>(p, t);
        }
    }
};

/* --- x ------------------------------------------------------------------------------------- */

/* x beside a chunk of W, in the layout of mma: of both halves of the chunk, each eight elements of
 * a load, for X tiles of eight rows. */
template <class F, int X> struct x_chunk {
    enum { EIGHTS = F::ELEMENTS / EIGHT };
    uint4 v[2][EIGHTS][X];

    /* at: elements; x: the lane's row and its first load's elements */
    __device__ __forceinline__ void load(const bf16 *x, int at, int64_t m, int64_t k)
    {
        const int lane = threadIdx.x % 4 * F::ELEMENTS;

#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int q = 0; q < EIGHTS; q++)
#pragma unroll
                for (int i = 0; i < X; i++) {
                    const int from = at + h * 4 * F::ELEMENTS + q * EIGHT;

                    v[h][q][i] = from + lane < k && m > i * EIGHT
                                     ? *(const uint4 *)(x + i * EIGHT * k + from)
                                     : make_uint4(0, 0, 0, 0);
                }
    }
};

/* --- results --------------------------------------------------------------------------------- */

template <int X> using parts = float[BLOCK_WARPS][2 * HALF][X * EIGHT];

/* The sum of the warps' parts, in their order. */
template <int X>
static __device__ __forceinline__ float sum_warps(const parts<X> &part, int row, int r)
{
    float all = part[0][row][r];

#pragma unroll
    for (int p = 1; p < BLOCK_WARPS; p++)
        all += part[p][row][r];
    return all;
}

template <class C> static __device__ __forceinline__ float store_rounded(C *to, float v)
{
    const C c = (C)v;

    *to = c;
    return to_float(c);
}

/* A thread has one row of x and one row of the tile. */
template <bool GATED, class C> struct thread_place {
    enum { ROWS = GATED ? HALF : 2 * HALF };
    int i, r, row; /* matrix; row of x; row of the tile */
    int64_t col;
    bool there;

    __device__ __forceinline__ thread_place(const skinny_params<C> &p, int64_t t)
        : r(threadIdx.x / ROWS), row(threadIdx.x % ROWS)
    {
        i = matrix_of<GATED>(p, &t);
        col = t * ROWS + row;
        there = r < p.m && col < p.of[i].n;
    }
};

/* What the sums of the thread's row are multiplied by, requested before they are known. */
template <class F, bool GATED, class C> struct sum_scales {
    float of[2];

    __device__ __forceinline__ void load(const skinny_params<C> &p, int64_t t)
    {
        if (!F::HAS_SUM_SCALES || t >= p.tiles)
            return;
        const thread_place<GATED, C> at(p, t);

#pragma unroll
        for (int h = 0; h < (GATED ? 2 : 1); h++)
            of[h] =
                at.there
                    ? *(const float *)(p.of[GATED ? h : at.i].w + at.col * p.pitch + p.scales_at)
                    : 0.0f;
    }
    __device__ __forceinline__ float times(int h, float v) const
    {
        return F::HAS_SUM_SCALES ? v * of[h] : v;
    }
};

template <class F, int X, bool GATED, class C>
static __device__ __forceinline__ void store_tile(const skinny_params<C> &p, int64_t t,
                                                  const parts<X> &part,
                                                  const sum_scales<F, GATED, C> &scale)
{
    const thread_place<GATED, C> at(p, t);
    const weight_matrix<C> &m = p.of[at.i];
    const int64_t to = at.r * m.n + at.col;

    if (!at.there)
        return;
    const float v = scale.times(0, sum_warps<X>(part, at.row, at.r));

    if (GATED)
        store_float(
            p.gated + to,
            swiglu_of<C>(store_rounded(m.y + to, v),
                         store_rounded(p.of[1].y + to,
                                       scale.times(1, sum_warps<X>(part, at.row + HALF, at.r)))));
    else
        store_float(m.y + to, v + (m.plus != NULL ? to_float(m.plus[to]) : 0.0f) +
                                  (m.bias != NULL ? to_float(m.bias[at.col]) : 0.0f));
}

/* --- the kernel ------------------------------------------------------------------------------- */

template <class F, int X, int DEPTH> struct skinny_smem {
    weight_stage<F> ring[BLOCK_WARPS][DEPTH];
    parts<X> part[2]; /* partial sums of a tile, double-buffered */
    typename F::tables tables;
};

/* sum += 16 rows of W times rows of x, over a chunk. */
template <class F, int X>
static __device__ __forceinline__ void chunk_multiply(float (&sum)[X][2][4],
                                                      const weight_stage<F> &stage,
                                                      const x_chunk<F, X> &u,
                                                      const typename F::tables &tables,
                                                      const typename F::row_scales &rows)
{
    uint4 w[PARTS];

#pragma unroll
    for (int i = 0; i < PARTS; i++)
        w[i] = stage.part[i][threadIdx.x % WARP];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const typename F::expand low(tables, stage.scales, rows, 0, h),
            high(tables, stage.scales, rows, 1, h);

#pragma unroll
        for (int q = 0; q < F::ELEMENTS / EIGHT; q++) {
            const uint4 a = low(w[2 * h], q), b = high(w[2 * h + 1], q);

#pragma unroll
            for (int i = 0; i < X; i++) {
                const uint4 v = u.v[h][q][i];

                mma(sum[i][h], {a.x, b.x, a.y, b.y}, v.x, v.y);
                mma(sum[i][h], {a.z, b.z, a.w, b.w}, v.z, v.w);
            }
        }
    }
}

template <class F, int X, int DEPTH, bool GATED, class C>
static __global__ void __launch_bounds__(BLOCK_WARPS *WARP, BLOCKS)
    gemm_skinny_mma_kernel(skinny_params<C> p)
{
    /* Chunks of x in flight: 128 bytes a lane, or one. */
    enum { AHEAD = 32 / (F::ELEMENTS * X) > 0 ? 32 / (F::ELEMENTS * X) : 1 };
    extern __shared__ uint4 memory[];
    skinny_smem<F, X, DEPTH> &s = *(skinny_smem<F, X, DEPTH> *)memory;
    const int warp = threadIdx.x / WARP, l = threadIdx.x % WARP, row = l / 4, first = warp * CHUNK;
    const int k = (int)p.k;
    const bf16 *x = p.x + row * p.k + l % 4 * F::ELEMENTS;
    weight_iterator<F, GATED, C> ahead(p, first);
    weight_stage<F>(&ring)[DEPTH] = s.ring[warp];
    typename F::row_scales rows, next_rows;
    sum_scales<F, GATED, C> scale;
    x_chunk<F, X> u[AHEAD];
    float sum[X][2][4] = {};
    int slot = 0, side = 0, at = first, at_x = first;
    const auto after = [&](int a) { return a + STEP < p.code_bytes ? a + STEP : first; };
    const auto elements = [](int bytes) { return bytes / LOAD_BYTES * F::ELEMENTS; };

    pdl_launch_dependents();
    if (!p.still)
        pdl_wait();
    for (int i = 0; i < DEPTH; i++) {
        ahead.load_chunk(ring[i], first);
        if (i == 0)
            F::fill(s.tables);
        if (p.still && i < DEPTH - 1)
            cp_async_wait<0>();
    }
    rows.load(rows_of_tile<GATED>(p, blockIdx.x), p.scales_at);
    next_rows.load(rows_of_tile<GATED>(p, blockIdx.x + gridDim.x), p.scales_at);
    scale.load(p, blockIdx.x);
    if (F::HAS_TABLES)
        __syncthreads();
    pdl_wait();
#pragma unroll
    for (int j = 0; j < AHEAD; j++, at_x = after(at_x))
        u[j].load(x, elements(at_x), p.m - row, k);
    for (int64_t t = blockIdx.x; t < p.tiles;) {
#pragma unroll
        for (int j = 0; j < AHEAD && t < p.tiles; j++, at_x = after(at_x)) {
            cp_async_wait<DEPTH - 1>();
            if (F::LANES_SHARE)
                __syncwarp();
            chunk_multiply<F, X>(sum, ring[slot], u[j], s.tables, rows);
            u[j].load(x, elements(at_x), p.m - row, k);
            if (F::LANES_SHARE)
                __syncwarp();
            ahead.load_chunk(ring[slot], first);
            slot = slot + 1 < DEPTH ? slot + 1 : 0;
            at += STEP;
            if (at < p.code_bytes)
                continue;
            at = first;
#pragma unroll
            for (int i = 0; i < X; i++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    s.part[side][warp][row + c / 2 * HALF][i * EIGHT + l % 4 * 2 + c % 2] =
                        sum[i][0][c] + sum[i][1][c];
                    sum[i][0][c] = sum[i][1][c] = 0.0f;
                }
            __syncthreads();
            store_tile<F, X, GATED>(p, t, s.part[side], scale);
            side ^= 1;
            t += gridDim.x;
            scale.load(p, t);
            rows = next_rows;
            next_rows.load(rows_of_tile<GATED>(p, t + gridDim.x), p.scales_at);
        }
    }
}

template <class F, int X, int DEPTH, bool GATED, class C>
static d9d_status launch(d9d_stream s, const char *op, const skinny_params<C> &p)
{
    const auto kernel = gemm_skinny_mma_kernel<F, X, DEPTH, GATED, C>;
    const size_t shared = sizeof(skinny_smem<F, X, DEPTH>);

    D9D_TRY(d9di_cuda_set_max_smem(op, (const void *)kernel, (int64_t)shared));
    return pdl_launch_smem(s, op, shared, kernel, (unsigned)d9di_i64_min(p.tiles, BLOCKS * s->sms),
                           BLOCK_WARPS * WARP, p);
}

template <class F, int X, bool GATED, class C>
static d9d_status launch_by_smem(d9d_stream s, const char *op, const skinny_params<C> &p)
{
    constexpr int deep = F::depth(X, true), shallow = F::depth(X, false);

    return s->max_smem >= (int64_t)sizeof(skinny_smem<F, X, deep>)
               ? launch<F, X, deep, GATED>(s, op, p)
               : launch<F, X, shallow, GATED>(s, op, p);
}

template <class F, bool GATED, class C>
static d9d_status launch_by_rows(d9d_stream s, const char *op, const skinny_params<C> &p)
{
    return p.m <= EIGHT ? launch_by_smem<F, 1, GATED>(s, op, p)
                        : launch_by_smem<F, 2, GATED>(s, op, p);
}

/* How the rows of W lie in memory. */
struct row_layout {
    int64_t pitch;
    int code_bytes, scales_at;
};

template <class F, class C>
static d9d_status launch_gemms(d9d_stream s, const char *op, const row_layout &rows, int n,
                               const d9d_gemm *g, const void *x, const void *const *w,
                               void *const *y)
{
    skinny_params<C> p = {(const bf16 *)x, g->m,           g->k, 0,  rows.pitch,
                          rows.code_bytes, rows.scales_at, true, {}, NULL};

    for (int i = 0; i < n; i++) {
        p.of[i] = {(const char *)w[i],   (C *)y[i], (const C *)d9di_gemm_addend(&g[i], y[i]),
                   (const C *)g[i].bias, g[i].n,    d9di_i64_ceil_div(g[i].n, 2 * HALF)};
        p.tiles += p.of[i].tiles;
        p.still = p.still && g[i].b_constant;
    }
    return p.tiles == 0 ? D9D_OK : F::template launch<false>(s, op, p);
}

/* Results of either type. */
template <class F>
static d9d_status multiply(d9d_stream s, const char *op, const row_layout &rows, int n,
                           const d9d_gemm *g, const void *x, const void *const *w, void *const *y)
{
    return g->ct == D9D_F32 ? launch_gemms<F, float>(s, op, rows, n, g, x, w, y)
                            : launch_gemms<F, bf16>(s, op, rows, n, g, x, w, y);
}

/* gate, up, y = silu(gate) up of x. */
template <class F>
static d9d_status multiply_swiglu(d9d_stream s, const char *op, const row_layout &rows,
                                  const d9d_gemm_glu_dims *n, void *y, void *gate, void *up,
                                  const void *x, const void *w_gate, const void *w_up)
{
    const int64_t tiles = d9di_i64_ceil_div(n->i, HALF);
    const skinny_params<bf16> p = {(const bf16 *)x,
                                   n->rows,
                                   n->h,
                                   tiles,
                                   rows.pitch,
                                   rows.code_bytes,
                                   rows.scales_at,
                                   n->weights_constant,
                                   {{(const char *)w_gate, (bf16 *)gate, NULL, NULL, n->i, tiles},
                                    {(const char *)w_up, (bf16 *)up, NULL, NULL, n->i, tiles}},
                                   (bf16 *)y};

    return F::template launch<true>(s, op, p);
}

} /* namespace skinny_mma */

#endif /* D9DI_CUDA_GEMM_GEMM_SKINNY_MMA_CUH */
