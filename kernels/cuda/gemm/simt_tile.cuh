/* simt_tile.cuh - a GEMM tile in float32 on CUDA cores (SIMT), for any sizes and layouts.
 *
 *     C[r, c] = sum_k A[r, k] B[k, c] + beta C[r, c] + bias[c]      r < m, c < n, k < depth
 *
 * A block of THREADS computes a SIDE x SIDE tile of C, a thread MICRO x MICRO of its elements, with
 * DEPTH of k at a time in shared memory. Operands are given by their strides.
 */
#ifndef D9DI_CUDA_GEMM_SIMT_TILE_CUH
#define D9DI_CUDA_GEMM_SIMT_TILE_CUH

#include "cuda/common/common.cuh"

enum { SIDE = 64, DEPTH = 16, MICRO = 4 };

/* Element (i, k) of an operand is p[i * side + k * along]: i is a row of A or a column of B. */
template <class T> struct operand {
    const T *p;
    int64_t side, along;
};

struct tile_shared {
    float a[DEPTH][SIDE + 4], b[DEPTH][SIDE + 4];
};

/* Loads SIDE x DEPTH elements, zeros outside. Consecutive threads read consecutive addresses. */
template <class T>
static __device__ __forceinline__ void tile_load(float (*to)[SIDE + 4], const operand<T> &x,
                                                 int64_t i0, int64_t n, int64_t k0, int64_t depth)
{
#pragma unroll
    for (int e = threadIdx.x; e < SIDE * DEPTH; e += THREADS) {
        const int i = x.side == 1 ? e % SIDE : e / DEPTH, k = x.side == 1 ? e / SIDE : e % DEPTH;

        to[k][i] = i0 + i < n && k0 + k < depth
                       ? to_float(x.p[(i0 + i) * x.side + (k0 + k) * x.along])
                       : 0.0f;
    }
}

/* sum += what is in shared memory */
static __device__ __forceinline__ void tile_multiply(float (&sum)[MICRO][MICRO],
                                                     const tile_shared &sh)
{
    const int ty = threadIdx.x / (SIDE / MICRO), tx = threadIdx.x % (SIDE / MICRO);

#pragma unroll
    for (int z = 0; z < DEPTH; z++) {
        const float4 u = *(const float4 *)&sh.a[z][ty * MICRO];
        const float4 v = *(const float4 *)&sh.b[z][tx * MICRO];
        const float ua[MICRO] = {u.x, u.y, u.z, u.w}, vb[MICRO] = {v.x, v.y, v.z, v.w};

#pragma unroll
        for (int i = 0; i < MICRO; i++)
#pragma unroll
            for (int j = 0; j < MICRO; j++)
                sum[i][j] = fmaf(ua[i], vb[j], sum[i][j]);
    }
}

/* sum += A B */
template <class T>
static __device__ __forceinline__ void tile_add(float (&sum)[MICRO][MICRO], tile_shared &sh,
                                                const operand<T> &a, const operand<T> &b,
                                                int64_t row, int64_t col, int64_t m, int64_t n,
                                                int64_t depth)
{
    for (int64_t k = 0; k < depth; k += DEPTH) {
        tile_load(sh.a, a, row, m, k, depth);
        tile_load(sh.b, b, col, n, k, depth);
        __syncthreads();
        tile_multiply(sum, sh);
        __syncthreads();
    }
}

/* C = sum + beta C + bias */
template <class C>
static __device__ __forceinline__ void tile_store(C *c, int64_t ld,
                                                  const float (&sum)[MICRO][MICRO], int64_t row,
                                                  int64_t col, int64_t m, int64_t n, float beta,
                                                  const C *bias)
{
    const int ty = threadIdx.x / (SIDE / MICRO), tx = threadIdx.x % (SIDE / MICRO);

#pragma unroll
    for (int i = 0; i < MICRO; i++)
#pragma unroll
        for (int j = 0; j < MICRO; j++) {
            const int64_t r = row + ty * MICRO + i, q = col + tx * MICRO + j;

            if (r < m && q < n)
                store_float(c + r * ld + q,
                            sum[i][j] + (beta == 0.0f ? 0.0f : beta * to_float(c[r * ld + q])) +
                                (bias == NULL ? 0.0f : to_float(bias[q])));
        }
}

template <class T, class C>
static __device__ __forceinline__ void tile_product(C *c, int64_t ld, const operand<T> &a,
                                                    const operand<T> &b, int64_t row, int64_t col,
                                                    int64_t m, int64_t n, int64_t depth, float beta,
                                                    const C *bias)
{
    __shared__ tile_shared sh;
    float sum[MICRO][MICRO] = {};

    tile_add(sum, sh, a, b, row, col, m, n, depth);
    tile_store(c, ld, sum, row, col, m, n, beta, bias);
}

#endif /* D9DI_CUDA_GEMM_SIMT_TILE_CUH */
