/* norm.cuh - rows in registers, and wgrad of norms: each block sums some rows, then the blocks'
 * partial sums are added, all in an order that only sizes decide. */
#ifndef D9DI_CUDA_NORM_NORM_CUH
#define D9DI_CUDA_NORM_NORM_CUH

#include "cuda/common/common.cuh"

/* First element of vector c of this thread, in a row that G threads share. */
#define EIGHT(c, G) (((c) * (G) + (int)threadIdx.x % (G)) * 8)

/* Longest row that fits the registers of its threads. Longer rows are read twice, by other kernels.
 */
enum { MAX_FUSED = 8192 };
#define BY_EIGHTS(n, G, CH, ...)                                                                   \
    ((n) <= HEAD_ROW    ? [&] { constexpr int G = WARP / 2, CH = 1; return __VA_ARGS__; }()        \
     : (n) <= SHORT_ROW ? [&] { constexpr int G = WARP, CH = 4; return __VA_ARGS__; }()            \
     : (n) <= 2048      ? [&] { constexpr int G = THREADS, CH = 1; return __VA_ARGS__; }()         \
     : (n) <= 4096      ? [&] { constexpr int G = THREADS, CH = 2; return __VA_ARGS__; }()         \
     : (n) <= 6144      ? [&] { constexpr int G = THREADS, CH = 3; return __VA_ARGS__; }()         \
                        : [&] { constexpr int G = THREADS, CH = 4; return __VA_ARGS__; }())

/* Most parts: the blocks of a large GPU. Only sizes may decide, for the sake of the same bits. */
static inline int64_t max_parts(int64_t n)
{
    return n <= HEAD_ROW ? 384 : n <= SHORT_ROW ? 128 : n <= 2048 ? 384 : n <= 4096 ? 256 : 128;
}
/* Rows of a part. */
static inline int64_t part_rows(int64_t m, int64_t n)
{
    const int64_t least = n <= HEAD_ROW ? 2 * WARPS : n <= SHORT_ROW ? WARPS : 1;

    return d9di_i64_max(least, d9di_i64_ceil_div(m, max_parts(n)));
}

/* Adds the sums of a block's groups in order, into the block's row of `part`. */
template <int G, int CH>
static __device__ void part_store(float *part, const float (&sum)[CH][8], int64_t n)
{
    constexpr int GROUPS = THREADS / G, WIDTH = G * CH * 8;
    __shared__ float sums[GROUPS][WIDTH];

    __syncthreads(); /* an earlier call has read its sums */
    for (int c = 0; c < CH; c++)
        for (int j = 0; j < 8; j++)
            sums[threadIdx.x / G][EIGHT(c, G) + j] = sum[c][j];
    __syncthreads();
    for (int i = threadIdx.x; i < WIDTH && i < n; i += THREADS) {
        float all = sums[0][i];

        for (int g = 1; g < GROUPS; g++)
            all += sums[g][i];
        part[blockIdx.x * n + i] = all;
    }
}

/* Sums the parts of a column: each lane of a warp some of them, in one order. */
template <class G>
static __global__ void parts_sum_kernel(G *dw, float beta, const float *part, int64_t n,
                                        int64_t parts)
{
    __shared__ float sums[WARP][WARP + 1];
    const int64_t c = (int64_t)blockIdx.x * WARP + threadIdx.x;
    float sum = 0.0f;

    for (int64_t p = threadIdx.y; p < parts && c < n; p += WARP)
        sum += part[p * n + c];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    for (int l = 1; l < WARP && threadIdx.y == 0; l++)
        sum += sums[l][threadIdx.x];
    if (threadIdx.y == 0 && c < n)
        store_float(dw + c, sum + (beta == 0.0f ? 0.0f : beta * to_float(dw[c])));
}

template <class G>
static void parts_sum(cudaStream_t queue, G *dw, float beta, const float *part, int64_t n,
                      int64_t parts)
{
    parts_sum_kernel<<<(unsigned)d9di_i64_ceil_div(n, WARP), dim3(WARP, WARP), 0, queue>>>(
        dw, beta, part, n, parts);
}

/* --- wgrad by columns, for rows that do not fit registers --------------------------------------
 */

/* Sums over rows of dy (x - mean) inv, and of dy; db NULL: not computed, mean NULL: 0. */
template <class T> struct wgrad_columns_args {
    float *dw, *db;
    const T *dy, *x;
    const float *mean, *inv;
    int64_t m, n, rows;
};

/* A thread has a column of some rows. */
template <class T> static __global__ void wgrad_columns_kernel(wgrad_columns_args<T> p)
{
    const int64_t i = (int64_t)blockIdx.y * THREADS + threadIdx.x;
    const int64_t end = d9di_i64_min(p.m, (blockIdx.x + 1) * p.rows);
    float sum = 0.0f, sum_b = 0.0f;

    if (i >= p.n)
        return;
    for (int64_t r = blockIdx.x * p.rows; r < end; r++) {
        const float dy = to_float(p.dy[r * p.n + i]), x = to_float(p.x[r * p.n + i]);

        sum = fmaf(dy, (p.mean != NULL ? x - p.mean[r] : x) * p.inv[r], sum);
        sum_b += dy;
    }
    if (p.dw != NULL)
        p.dw[blockIdx.x * p.n + i] = sum;
    if (p.db != NULL)
        p.db[blockIdx.x * p.n + i] = sum_b;
}

template <class T>
static void wgrad_columns(cudaStream_t queue, const wgrad_columns_args<T> &p, int64_t parts)
{
    const dim3 blocks((unsigned)parts, (unsigned)d9di_i64_ceil_div(p.n, THREADS));

    wgrad_columns_kernel<T><<<blocks, THREADS, 0, queue>>>(p);
}

#endif /* D9DI_CUDA_NORM_NORM_CUH */
