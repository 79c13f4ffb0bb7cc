/* gemm_skinny_mma.cu - skinny GEMM for decode in bfloat16 on tensor cores, up to 16 rows of x. See
 * gemm_skinny.cu.
 *
 * mma.m16n8k16 takes sixteen rows of W and eight of x, so that eight rows cost nearly as much as
 * one: W is read once, at memory bandwidth. A block processes one tile of sixteen rows of W after
 * the other. The two halves of a tile, of eight rows, come from different places: with GATED they
 * are the same features of gate and up, and SwiGLU follows at once. The block's warps split K: each
 * has every eighth chunk of 64, of which a lane loads twice 16 bytes per row. These are eight
 * consecutive elements where mma expects others; x is permuted alike, which does not change the
 * sums.
 *
 * Memory must stay busy, also between kernels and during the small kernels that compute x:
 *
 *  - A lane copies its part of W into its own ring in shared memory (cp.async), STAGES chunks
 *    ahead, across tiles and, with b_constant, before x is ready (PDL). It requests chunks one
 *    after the other; a full ring requested at once would delay the kernels that compute x.
 *  - x comes from L2, with a latency of a few chunks: AHEAD chunks of it are in flight to
 *    registers.
 *  - BLOCKS blocks share an SM: while one reduces a tile or ends, the other reads.
 */
#include "cuda/common/cp_async.cuh"
#include "cuda/common/mma.cuh"
#include "cuda/elementwise/swiglu.cuh"
#include "cuda/gemm/gemm_skinny.h"

enum {
    EIGHT = 8,
    K_CHUNK = 64,
    BLOCK_WARPS = 8, /* warps of a block */
    HALF = 8,        /* rows of half a tile, which are contiguous */
    PARTS = 4,       /* of a chunk: 16 bytes of each half, twice */
    STEP = BLOCK_WARPS * K_CHUNK,
    BLOCKS = 2,
    DEEP_STAGES = 6, /* depth of the ring if shared memory has space for BLOCKS of it; else */
    SHALLOW_STAGES = 4,
    MAX_MATRICES = 6
};

/* --- work ------------------------------------------------------------------------------------- */
template <class C> struct weight_matrix {
    const bf16 *w;
    C *y;
    const C *plus, *bias; /* addend; each may be NULL */
    int64_t n, tiles;
};
template <class C> struct skinny_params {
    const bf16 *x;
    int64_t m, k, tiles;
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

/* A lane's iteration over W: its warp's chunks of each tile of its block. */
template <bool GATED, class C> struct weight_iterator {
    const skinny_params<C> &p;
    int64_t t;
    int at;           /* of the chunk, within a row */
    const bf16 *w[2]; /* the lane's row of each half */
    bool there[2];
    uint64_t policy;

    __device__ __forceinline__ weight_iterator(const skinny_params<C> &of, int first)
        : p(of), t(blockIdx.x), at(first), policy(evict_first_policy())
    {
        set_tile();
    }
    __device__ __forceinline__ void set_tile(void)
    {
        const int row = threadIdx.x % WARP / 4, lane = threadIdx.x % 4 * EIGHT;
        int64_t tile = t < p.tiles ? t : 0;
        const int i = matrix_of<GATED>(p, &tile);

#pragma unroll
        for (int h = 0; h < 2; h++) {
            const weight_matrix<C> &m = p.of[GATED ? h : i];
            const int64_t r = GATED ? tile * HALF + row : (2 * tile + h) * HALF + row;

            there[h] = t < p.tiles && r < m.n;
            w[h] = m.w + (there[h] ? r * p.k + lane : 0);
        }
    }
    /* Requests a chunk (zeros beyond W), and advances. */
    __device__ __forceinline__ void load_chunk(uint4 (&to)[PARTS][WARP], int first)
    {
        const int lane = threadIdx.x % 4 * EIGHT;

#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            const int a = at + i / 2 * (K_CHUNK / 2);
            const bool yes = there[i % 2] && a + lane < p.k;

            cp_async_16(&to[i][threadIdx.x % WARP], w[i % 2] + (yes ? a : 0), yes, policy);
        }
        cp_async_commit();
        at += STEP;
        if (at >= p.k) {
            at = first;
            t += gridDim.x;
            set_tile();
        }
    }
};

/* --- x ------------------------------------------------------------------------------------- */

/* Loads one of each eight rows of x in the layout of mma: both halves of a chunk. */
template <int X>
static __device__ __forceinline__ void load_x(uint4 (&v)[2][X], const bf16 *x, int at, int64_t m,
                                              int64_t k)
{
    const int lane = threadIdx.x % 4 * EIGHT;

#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int i = 0; i < X; i++) {
            const int from = at + h * (K_CHUNK / 2);

            v[h][i] = from + lane < k && m > i * EIGHT ? *(const uint4 *)(x + i * EIGHT * k + from)
                                                       : make_uint4(0, 0, 0, 0);
        }
}

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
template <int X, bool GATED, class C>
static __device__ __forceinline__ void store_tile(const skinny_params<C> &p, int64_t t,
                                                  const parts<X> &part)
{
    enum { ROWS = GATED ? HALF : 2 * HALF };
    const int r = threadIdx.x / ROWS, row = threadIdx.x % ROWS;
    const weight_matrix<C> &m = p.of[matrix_of<GATED>(p, &t)];
    const int64_t col = t * ROWS + row, at = r * m.n + col;

    if (r >= p.m || col >= m.n)
        return;
    const float v = sum_warps<X>(part, row, r);

    if (GATED)
        store_float(p.gated + at,
                    swiglu_of<C>(store_rounded(m.y + at, v),
                                 store_rounded(p.of[1].y + at, sum_warps<X>(part, row + HALF, r))));
    else
        store_float(m.y + at, v + (m.plus != NULL ? to_float(m.plus[at]) : 0.0f) +
                                  (m.bias != NULL ? to_float(m.bias[col]) : 0.0f));
}

/* --- the kernel ------------------------------------------------------------------------------- */

template <int X, int DEPTH> struct skinny_smem {
    uint4 ring[BLOCK_WARPS][DEPTH][PARTS][WARP];
    parts<X> part[2]; /* partial sums of a tile, double-buffered */
};

template <int X, int DEPTH, bool GATED, class C>
static __global__ void __launch_bounds__(BLOCK_WARPS *WARP, BLOCKS)
    gemm_skinny_mma_kernel(skinny_params<C> p)
{
    enum { AHEAD = 4 / X };
    extern __shared__ uint4 memory[];
    skinny_smem<X, DEPTH> &s = *(skinny_smem<X, DEPTH> *)memory;
    const int warp = threadIdx.x / WARP, l = threadIdx.x % WARP, row = l / 4,
              first = warp * K_CHUNK;
    const int k = (int)p.k;
    const bf16 *x = p.x + row * p.k + l % 4 * EIGHT;
    weight_iterator<GATED, C> ahead(p, first);
    uint4(&ring)[DEPTH][PARTS][WARP] = s.ring[warp];
    uint4 u[AHEAD][2][X];
    float sum[X][2][4] = {};
    int slot = 0, side = 0, at = first, at_x = first;
    const auto after = [&](int a) { return a + STEP < k ? a + STEP : first; };

    pdl_launch_dependents();
    if (!p.still)
        pdl_wait();
    for (int i = 0; i < DEPTH; i++) {
        ahead.load_chunk(ring[i], first);
        if (p.still && i < DEPTH - 1)
            cp_async_wait<0>();
    }
    pdl_wait();
#pragma unroll
    for (int j = 0; j < AHEAD; j++, at_x = after(at_x))
        load_x<X>(u[j], x, at_x, p.m - row, k);
    for (int64_t t = blockIdx.x; t < p.tiles;) {
#pragma unroll
        for (int j = 0; j < AHEAD && t < p.tiles; j++, at_x = after(at_x)) {
            uint4 w[PARTS];

            cp_async_wait<DEPTH - 1>();
#pragma unroll
            for (int i = 0; i < PARTS; i++)
                w[i] = ring[slot][i][l];
#pragma unroll
            for (int i = 0; i < X; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const uint4 a = w[2 * h], b = w[2 * h + 1], v = u[j][h][i];

                    mma(sum[i][h], {a.x, b.x, a.y, b.y}, v.x, v.y);
                    mma(sum[i][h], {a.z, b.z, a.w, b.w}, v.z, v.w);
                }
            load_x<X>(u[j], x, at_x, p.m - row, k);
            ahead.load_chunk(ring[slot], first);
            slot = slot + 1 < DEPTH ? slot + 1 : 0;
            at += STEP;
            if (at < k)
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
            store_tile<X, GATED>(p, t, s.part[side]);
            side ^= 1;
            t += gridDim.x;
        }
    }
}

template <int X, int DEPTH, bool GATED, class C>
static d9d_status launch(d9d_stream s, const char *op, const skinny_params<C> &p)
{
    const auto kernel = gemm_skinny_mma_kernel<X, DEPTH, GATED, C>;
    const size_t shared = sizeof(skinny_smem<X, DEPTH>);

    D9D_TRY(d9di_cuda_set_max_smem(op, (const void *)kernel, (int64_t)shared));
    return pdl_launch_smem(s, op, shared, kernel, (unsigned)d9di_i64_min(p.tiles, BLOCKS * s->sms),
                           BLOCK_WARPS * WARP, p);
}

template <int X, bool GATED, class C>
static d9d_status launch_by_smem(d9d_stream s, const char *op, const skinny_params<C> &p)
{
    return s->max_smem >= (int64_t)sizeof(skinny_smem<X, DEEP_STAGES>)
               ? launch<X, DEEP_STAGES, GATED>(s, op, p)
               : launch<X, SHALLOW_STAGES, GATED>(s, op, p);
}

template <bool GATED, class C>
static d9d_status launch_by_rows(d9d_stream s, const char *op, const skinny_params<C> &p)
{
    return p.m <= EIGHT ? launch_by_smem<1, GATED>(s, op, p) : launch_by_smem<2, GATED>(s, op, p);
}

template <class C>
static d9d_status launch_gemms(d9d_stream s, int n, const d9d_gemm *g, const void *x,
                               const void *const *w, void *const *y)
{
    skinny_params<C> p = {(const bf16 *)x, g->m, g->k, 0, true, {}, NULL};

    for (int i = 0; i < n; i++) {
        p.of[i] = {(const bf16 *)w[i],   (C *)y[i], (const C *)d9di_gemm_addend(&g[i], y[i]),
                   (const C *)g[i].bias, g[i].n,    d9di_i64_ceil_div(g[i].n, 2 * HALF)};
        p.tiles += p.of[i].tiles;
        p.still = p.still && g[i].b_constant;
    }
    return p.tiles == 0 ? D9D_OK : launch_by_rows<false>(s, "gemm", p);
}

bool d9di_gemm_skinny_mma_supported(int n, const d9d_gemm *g)
{
    for (int i = 1; i < n; i++)
        if (g[i].m != g->m || g[i].k != g->k || g[i].ct != g->ct || g[i].t != g->t)
            return false;
    return n > 0 && n <= MAX_MATRICES && g->t == D9D_BF16;
}

d9d_status d9di_gemm_skinny_mma(d9d_stream s, int n, const d9d_gemm *g, const void *x,
                                const void *const *w, void *const *y)
{
    return g->ct == D9D_F32 ? launch_gemms<float>(s, n, g, x, w, y)
                            : launch_gemms<bf16>(s, n, g, x, w, y);
}

d9d_status d9di_gemm_skinny_swiglu(d9d_stream s, const d9d_gemm_glu_dims *n, void *y, void *gate,
                                   void *up, const void *x, const void *w_gate, const void *w_up)
{
    const int64_t tiles = d9di_i64_ceil_div(n->i, HALF);
    const skinny_params<bf16> p = {(const bf16 *)x,
                                   n->rows,
                                   n->h,
                                   tiles,
                                   n->weights_constant,
                                   {{(const bf16 *)w_gate, (bf16 *)gate, NULL, NULL, n->i, tiles},
                                    {(const bf16 *)w_up, (bf16 *)up, NULL, NULL, n->i, tiles}},
                                   (bf16 *)y};

    return launch_by_rows<true>(s, "gemm_swiglu", p);
}
