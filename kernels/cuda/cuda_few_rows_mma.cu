/* cuda_few_rows_mma.cu - cuda_few_rows.cu's products in bfloat16, of up to sixteen rows of x.
 *
 * The rows of x are the sixteen of a product of warps, so that as many cost nearly what one does: W
 * is read once, at the speed of memory.  A block has eight rows of W.  Its warps share K: each has
 * every eighth piece of 32, of which a lane fetches 16 bytes a row, AHEAD pieces before it needs
 * them.  Those are eight neighbours, where a product of warps would have others; x comes in the
 * same order, and sums do not mind.
 */
#include "cuda_mma.cuh"

enum { PIECE = 32, SHARING = 8, STEP = SHARING * PIECE, AHEAD = 2, ROWS = 16, COLS = 8 };

/* Past the cache of a multiprocessor, which is left to x. */
static __device__ __forceinline__ uint4 fetch_once(const bf16 *p)
{
    uint4 v;

    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* Some pieces of a lane's row of W; zeros where there are none. */
static __device__ __forceinline__ void fetch(uint4 (&piece)[AHEAD], const bf16 *w, int64_t from,
                                             int64_t k)
{
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
        piece[a] = from + a * STEP < k ? fetch_once(w + from + a * STEP) : make_uint4(0, 0, 0, 0);
}

/* Two rows of x, eight apart, as products take them. */
static __device__ __forceinline__ void fetch_x(uint32_t (&x)[2][4], const bf16 *row, int64_t m,
                                               int64_t k, bool there)
{
    const uint4 none = make_uint4(0, 0, 0, 0);
    const uint4 a = there && m > 0 ? *(const uint4 *)row : none;
    const uint4 b = there && m > COLS ? *(const uint4 *)(row + COLS * k) : none;

    x[0][0] = a.x, x[0][1] = b.x, x[0][2] = a.y, x[0][3] = b.y;
    x[1][0] = a.z, x[1][1] = b.z, x[1][2] = a.w, x[1][3] = b.w;
}

template <class C>
static __global__ void __launch_bounds__(SHARING *WARP)
    few_rows_kernel(C *y, const bf16 *x, const bf16 *w, const C *plus, int64_t m, int64_t n,
                    int64_t k, bool early)
{
    __shared__ float part[SHARING][ROWS][COLS];
    const int64_t first = (int64_t)blockIdx.x * COLS;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = lane / 4,
              at = lane % 4 * 8;
    const int64_t known = first + row < n ? k : 0;
    uint4 piece[AHEAD], now[AHEAD];
    float sum[4] = {};

    if (!early)
        wait_for_last();
    w += (first + row) * k + at;
    x += row * k + at;
    fetch(piece, w, warp * PIECE, known - at);
    wait_for_last();
    let_next_begin();
    for (int64_t from = warp * PIECE; from < k; from += AHEAD * STEP) {
        memcpy(now, piece, sizeof(now));
        fetch(piece, w, from + AHEAD * STEP, known - at);
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            uint32_t u[2][4];

            fetch_x(u, x + from + a * STEP, m - row, k, from + a * STEP < k - at);
            mma(sum, u[0], now[a].x, now[a].y);
            mma(sum, u[1], now[a].z, now[a].w);
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        part[warp][row + j / 2 * COLS][lane % 4 * 2 + j % 2] = sum[j];
    __syncthreads();
    if (threadIdx.x < m * COLS && first + threadIdx.x % COLS < n) {
        const int r = threadIdx.x / COLS, c = threadIdx.x % COLS;
        const int64_t to = r * n + first + c;
        float all = part[0][r][c];

#pragma unroll
        for (int s = 1; s < SHARING; s++)
            all += part[s][r][c];
        put(y + to, plus != NULL ? all + to_float(plus[to]) : all);
    }
}

template <class C>
static d9d_status launch(d9d_stream s, const d9d_gemm *g, const void *x, const void *w, void *y)
{
    return launch_early(s, "gemm", few_rows_kernel<C>, (unsigned)d9di_ceil_div(g->n, COLS),
                        SHARING * WARP, (C *)y, (const bf16 *)x, (const bf16 *)w,
                        (const C *)d9di_gemm_plus(g, y), g->m, g->n, g->k, g->b_early);
}

d9d_status d9di_few_rows_mma(d9d_stream s, const d9d_gemm *g, const void *x, const void *w, void *y)
{
    return g->ct == D9D_F32 ? launch<float>(s, g, x, w, y) : launch<bf16>(s, g, x, w, y);
}
