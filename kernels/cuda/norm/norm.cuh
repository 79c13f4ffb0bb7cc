/* norm.cuh - wgrad of norms: each block sums some rows, then the blocks' partial sums are added,
 * all in an order that only sizes decide. */
#ifndef D9DI_CUDA_NORM_NORM_CUH
#define D9DI_CUDA_NORM_NORM_CUH

#include "cuda/common/common.cuh"

/* First element of vector c of this thread, in a row that G threads share. */
#define EIGHT(c, G) (((c) * (G) + (int)threadIdx.x % (G)) * 8)

/* Adds the sums of a block's groups in order, into the block's row of `part`. */
template <int G, int CH>
static __device__ void part_store(float *part, const float (&sum)[CH][8], int64_t n)
{
    constexpr int GROUPS = THREADS / G, WIDTH = G * CH * 8;
    __shared__ float sums[GROUPS][WIDTH];

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

#endif /* D9DI_CUDA_NORM_NORM_CUH */
