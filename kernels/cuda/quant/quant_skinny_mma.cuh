/* quant_skinny_mma.cuh - the skinny GEMM of gemm_skinny_mma.cuh for matrices in 8 or 4 bits: the
 * same tiles, order of sums and use of PDL.
 *
 * Half or a quarter of the bytes leave half or a quarter of the time for as many elements, so what
 * a warp executes besides its products counts:
 *
 *  - Scales travel with the chunk that they belong to, through the ring: no tile loads any.
 *  - Sixteen bytes of a chunk are requested in lines of PITCH bytes, of which a format may keep
 *    the rest for its tables (quant_gemm_skinny.cu).
 *  - Rows of x beyond the last are the last one again: their sums are not stored.
 *
 * A format F says what 16 bytes of a row of W are:
 *
 *     F::ELEMENTS             elements of 16 bytes, a multiple of 8
 *     F::depth(x, deep)       stages of the ring for x tiles of rows, with much or little memory
 *     F::AHEAD                chunks of x in flight, with one tile of rows
 *     F::PITCH, stage(i)      bytes of a line, and where stage i of the ring begins
 *     F::lines(depth)         bytes of the lines of a block
 *     F::chunk_scales         of a tile's 16 rows; request_scales() copies those of a chunk
 *     F::HAS_SUM_SCALES       a row's sum is multiplied by sum_scale()
 *     F::tables, fill()       further tables in shared memory, which all threads fill
 *     F::expand               eight elements of a lane as bfloat16
 */
#ifndef D9DI_CUDA_QUANT_QUANT_SKINNY_MMA_CUH
#define D9DI_CUDA_QUANT_QUANT_SKINNY_MMA_CUH

#include "cuda/gemm/gemm_skinny_mma.cuh"

namespace quant_skinny
{

using namespace skinny_mma;

enum {
    LINE = 128,                     /* bytes of a line that belong to the ring */
    LINE_LANES = LINE / LOAD_BYTES, /* lanes that share a line */
    WARP_LINES = WARP / LINE_LANES * PARTS
};

template <class F, int X, int DEPTH> struct block_smem {
    uint4 lines[F::lines(DEPTH) / LOAD_BYTES];
    typename F::chunk_scales scales[BLOCK_WARPS][DEPTH];
    parts<X> part[2]; /* partial sums of a tile, double-buffered */
    typename F::tables tables;
};

/* A lane's place in the lines of a stage. */
template <class F> static __device__ __forceinline__ int lane_offset(void)
{
    const int warp = threadIdx.x / WARP, l = threadIdx.x % WARP;

    return (warp * WARP_LINES + l / LINE_LANES) * F::PITCH + l % LINE_LANES * LOAD_BYTES;
}
/* A lane's address of shared memory, of which the compiler does not see that its base is uniform:
 * ptxas 13.0 encodes cp.async with a uniform base and a cache policy in the wrong registers, which
 * the GPU refuses as an illegal instruction. */
static __device__ __forceinline__ uint32_t lane_address(const void *p)
{
    return __shfl_sync(~0u, (uint32_t)__cvta_generic_to_shared(p), threadIdx.x % WARP);
}
/* From a part of a chunk to the next. */
template <class F> static constexpr int PART_PITCH = WARP / LINE_LANES *F::PITCH;

/* A lane's rows of W in tile t; none beyond the last. */
template <bool GATED, class C>
static __device__ __forceinline__ lane_rows lane_rows_of(const skinny_params<C> &p, int t)
{
    const int row = threadIdx.x % WARP / 4;
    const bool any = t < (int)p.tiles;
    lane_rows y;
    int i = 0;

    t = any ? t : 0;
#pragma unroll 1
    for (; !GATED && t >= (int)p.of[i].tiles; i++)
        t -= (int)p.of[i].tiles;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const weight_matrix<C> &m = p.of[GATED ? h : i];
        const int r = GATED ? t * HALF + row : (2 * t + h) * HALF + row;

        y.there[h] = any && r < (int)m.n;
        y.w[h] = m.w + (y.there[h] ? r * p.pitch : 0);
    }
    return y;
}

/* A lane's iteration over W: its warp's chunks of each tile of its block. */
template <class F, int X, int DEPTH, bool GATED, class C> struct chunk_iterator {
    const skinny_params<C> &p;
    const uint32_t lines, scales; /* the lane's place in the ring; its warp's scales */
    const int first;
    int t, at; /* tile; of the chunk, within a row */
    lane_rows rows;
    uint64_t policy;

    __device__ __forceinline__ chunk_iterator(const skinny_params<C> &of,
                                              const block_smem<F, X, DEPTH> &s)
        : p(of), lines(lane_address((const char *)s.lines + lane_offset<F>())),
          scales(lane_address(s.scales[threadIdx.x / WARP])), first(threadIdx.x / WARP * CHUNK),
          t(blockIdx.x), at(first), rows(lane_rows_of<GATED>(of, blockIdx.x)),
          policy(evict_first_policy())
    {
    }
    /* Requests a chunk for stage i (zeros beyond W), and advances. */
    __device__ __forceinline__ void load_chunk(int i)
    {
        const uint32_t to = lines + F::stage(i);
        const int from = at + threadIdx.x % 4 * LOAD_BYTES;

#pragma unroll
        for (int j = 0; j < PARTS; j++) {
            const int a = from + j / 2 * (CHUNK / 2);
            const bool yes = rows.there[j % 2] && a < p.code_bytes;

            cp_async_16(to + j * PART_PITCH<F>, rows.w[j % 2] + a, yes, policy);
        }
        F::request_scales(scales + i * (uint32_t)sizeof(typename F::chunk_scales), rows, at,
                          p.code_bytes, p.scales_at);
        cp_async_commit();
        at += STEP;
        if (at >= p.code_bytes) {
            at = first;
            t += gridDim.x;
            rows = lane_rows_of<GATED>(p, t);
        }
    }
};

/* x beside a chunk of W, in the layout of mma: of both halves of the chunk, each eight elements of
 * a load, for X tiles of eight rows. */
template <class F, int X> struct x_lane {
    const bf16 *row[X]; /* the lane's first elements of its rows */
    int left;           /* elements of a row from there on */

    __device__ __forceinline__ x_lane(const bf16 *x, int m, int k)
    {
        const int l = threadIdx.x % WARP, at = l % 4 * F::ELEMENTS;

        left = k - at;
#pragma unroll
        for (int i = 0; i < X; i++)
            row[i] = x + (int64_t)min(i * EIGHT + l / 4, m - 1) * k + at;
    }
};
template <class F, int X> struct x_part {
    enum { EIGHTS = F::ELEMENTS / EIGHT };
    uint4 v[2][EIGHTS][X];

    __device__ __forceinline__ void load(const x_lane<F, X> &x, int at)
    {
        const int left = x.left - at;

#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int i = 0; i < X; i++) {
                const uint4 *from = (const uint4 *)(x.row[i] + at + h * 4 * F::ELEMENTS);
                const bool there = left > h * 4 * F::ELEMENTS;

#pragma unroll
                for (int q = 0; q < EIGHTS; q++)
                    v[h][q][i] = there ? from[q] : make_uint4(0, 0, 0, 0);
            }
    }
};

/* sum += 16 rows of W times rows of x, over a chunk; scale: what the sums are multiplied by. */
template <class F, int X, int DEPTH>
static __device__ __forceinline__ void chunk_multiply(float (&sum)[X][2][4], float (&scale)[2],
                                                      const block_smem<F, X, DEPTH> &s, int i,
                                                      int lane, const x_part<F, X> &x)
{
    const char *const from = (const char *)s.lines + F::stage(i) + lane;
    const typename F::chunk_scales &scales = s.scales[threadIdx.x / WARP][i];
    uint4 w[PARTS];

#pragma unroll
    for (int j = 0; j < PARTS; j++)
        w[j] = *(const uint4 *)(from + j * PART_PITCH<F>);
#pragma unroll
    for (int h = 0; h < 2 && F::HAS_SUM_SCALES; h++)
        scale[h] = F::sum_scale(scales, h);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const typename F::expand low((const char *)s.lines, s.tables, scales, 0, h),
            high((const char *)s.lines, s.tables, scales, 1, h);

#pragma unroll
        for (int q = 0; q < F::ELEMENTS / EIGHT; q++) {
            const uint4 a = low(w[2 * h], q), b = high(w[2 * h + 1], q);

#pragma unroll
            for (int j = 0; j < X; j++) {
                const uint4 v = x.v[h][q][j];

                mma(sum[j][h], {a.x, b.x, a.y, b.y}, v.x, v.y);
                mma(sum[j][h], {a.z, b.z, a.w, b.w}, v.z, v.w);
            }
        }
    }
}

/* A warp's sums to shared memory; they become zero. */
template <class F, int X>
static __device__ __forceinline__ void store_parts(parts<X> &to, float (&sum)[X][2][4],
                                                   const float (&scale)[2])
{
    const int warp = threadIdx.x / WARP, l = threadIdx.x % WARP;

#pragma unroll
    for (int i = 0; i < X; i++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const float v = sum[i][0][c] + sum[i][1][c];

            to[warp][l / 4 + c / 2 * HALF][i * EIGHT + l % 4 * 2 + c % 2] =
                F::HAS_SUM_SCALES ? v * scale[c / 2] : v;
            sum[i][0][c] = sum[i][1][c] = 0.0f;
        }
}

/* A thread adds the parts of one row of x and one row of the tile. */
template <int X, bool GATED, class C>
static __device__ __forceinline__ void store_results(const skinny_params<C> &p, int t,
                                                     const parts<X> &part)
{
    enum { ROWS = GATED ? HALF : 2 * HALF };
    const int r = threadIdx.x / ROWS, row = threadIdx.x % ROWS;
    int i = 0;

    if (r >= (int)p.m)
        return;
#pragma unroll 1
    for (; !GATED && t >= (int)p.of[i].tiles; i++)
        t -= (int)p.of[i].tiles;

    const weight_matrix<C> &m = p.of[i];
    const int col = t * ROWS + row;
    const int64_t to = r * m.n + col;

    if (col >= (int)m.n)
        return;
    const float v = sum_warps<X>(part, row, r);

    if (GATED)
        store_float(p.gated + to,
                    swiglu_of<C>(store_rounded(m.y + to, v),
                                 store_rounded(p.of[1].y + to, sum_warps<X>(part, row + HALF, r))));
    else
        store_float(m.y + to, v + (m.plus != NULL ? to_float(m.plus[to]) : 0.0f) +
                                  (m.bias != NULL ? to_float(m.bias[col]) : 0.0f));
}

template <class F, int X, int DEPTH, bool GATED, class C>
static __global__ void __launch_bounds__(BLOCK_WARPS *WARP, BLOCKS)
    quant_skinny_kernel(skinny_params<C> p)
{
    enum { AHEAD = X == 1 ? F::AHEAD : 1 };
    extern __shared__ uint4 memory[];
    block_smem<F, X, DEPTH> &s = *(block_smem<F, X, DEPTH> *)memory;
    chunk_iterator<F, X, DEPTH, GATED, C> ahead(p, s);
    const int first = ahead.first, lane = lane_offset<F>();
    const x_lane<F, X> x(p.x, (int)p.m, (int)p.k);
    x_part<F, X> u[AHEAD];
    float sum[X][2][4] = {}, scale[2];
    int slot = (int)(ahead.lines >> 31), side = 0, at = first, at_x = first; /* slot: 0 */
    const auto after = [&](int a) { return a + STEP < p.code_bytes ? a + STEP : first; };
    const auto elements = [](int bytes) { return bytes / LOAD_BYTES * F::ELEMENTS; };

    pdl_launch_dependents();
    if (!p.still)
        pdl_wait();
#pragma unroll
    for (int i = 0; i < DEPTH; i++) {
        ahead.load_chunk(i);
        if (i == 0)
            F::fill((char *)s.lines, s.tables);
        if (p.still && i < DEPTH - 1)
            cp_async_wait<0>();
    }
    if (F::HAS_TABLES)
        __syncthreads();
    pdl_wait();
#pragma unroll
    for (int j = 0; j < AHEAD; j++, at_x = after(at_x))
        u[j].load(x, elements(at_x));
    for (int t = blockIdx.x; t < (int)p.tiles;) {
#pragma unroll
        for (int j = 0; j < AHEAD && t < (int)p.tiles; j++, at_x = after(at_x)) {
            cp_async_wait<DEPTH - 1>();
            __syncwarp(); /* lanes read scales that other lanes have copied */
            chunk_multiply(sum, scale, s, slot, lane, u[j]);
            u[j].load(x, elements(at_x));
            __syncwarp();
            ahead.load_chunk(slot);
            slot = slot + 1 < DEPTH ? slot + 1 : 0;
            at += STEP;
            if (at < p.code_bytes)
                continue;
            at = first;
            store_parts<F, X>(s.part[side], sum, scale);
            __syncthreads();
            store_results<X, GATED>(p, t, s.part[side]);
            side ^= 1;
            t += gridDim.x;
        }
    }
}

template <class F, int X, int DEPTH, bool GATED, class C>
static d9d_status launch_kernel(d9d_stream s, const char *op, const skinny_params<C> &p)
{
    const auto kernel = quant_skinny_kernel<F, X, DEPTH, GATED, C>;
    const size_t shared = sizeof(block_smem<F, X, DEPTH>);

    D9D_TRY(d9di_cuda_set_max_smem(op, (const void *)kernel, (int64_t)shared));
    return pdl_launch_smem(s, op, shared, kernel, (unsigned)d9di_i64_min(p.tiles, BLOCKS * s->sms),
                           BLOCK_WARPS * WARP, p);
}

template <class F, int X, bool GATED, class C>
static d9d_status launch_by_smem(d9d_stream s, const char *op, const skinny_params<C> &p)
{
    constexpr int deep = F::depth(X, true), shallow = F::depth(X, false);

    return s->max_smem >= (int64_t)sizeof(block_smem<F, X, deep>)
               ? launch_kernel<F, X, deep, GATED>(s, op, p)
               : launch_kernel<F, X, shallow, GATED>(s, op, p);
}

template <class F, bool GATED, class C>
static d9d_status launch_by_rows(d9d_stream s, const char *op, const skinny_params<C> &p)
{
    return p.m <= EIGHT ? quant_skinny::launch_by_smem<F, 1, GATED>(s, op, p)
                        : quant_skinny::launch_by_smem<F, 2, GATED>(s, op, p);
}

} /* namespace quant_skinny */

#endif /* D9DI_CUDA_QUANT_QUANT_SKINNY_MMA_CUH */
