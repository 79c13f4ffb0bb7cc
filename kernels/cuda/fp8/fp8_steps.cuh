/* fp8_steps.cuh - the steps of a quantisation, which one call does together and others one by one:
 * maxima of magnitudes, rounding.
 */
#ifndef D9DI_CUDA_FP8_FP8_STEPS_CUH
#define D9DI_CUDA_FP8_FP8_STEPS_CUH

#include <cuda_fp8.h>

#include "cuda/common/common.cuh"
#include "cuda/fp8/fp8.h"

enum {
    VEC = 8,        /* columns of a thread */
    AMAX_ROWS = 64, /* of a block of amax_kernel */
    AMAX_COLS = WARP * VEC
};

/* The magnitudes' maxima: of all elements to `all`, of rows to `row`, of columns to `col`; NULL for
 * what is not wanted.  Grouped: rows have their places as d9d_fp8_maxima says. */
template <class T, bool Grouped>
static __global__ void __launch_bounds__(THREADS)
    amax_kernel(const T *x, int64_t m, int64_t n, uint32_t *all, uint32_t *row, uint32_t *col,
                int64_t group, int64_t skip)
{
    __shared__ uint32_t shared[WARPS][AMAX_COLS];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int64_t c = (int64_t)blockIdx.x * AMAX_COLS + lane * VEC,
                  first = (int64_t)blockIdx.y * AMAX_ROWS;
    uint32_t most[VEC] = {}, whole = 0;

#pragma unroll 4
    for (int i = 0; i < AMAX_ROWS / WARPS; i++) {
        const int64_t r = first + i * WARPS + warp;
        uint32_t of_row = 0;

        if (r < m && c < n) {
            float v[VEC];

            load8(v, x + r * n + c, VEC);
#pragma unroll
            for (int j = 0; j < VEC; j++) {
                const uint32_t a = __float_as_uint(v[j]) & 0x7fffffffu;

                most[j] = max(most[j], a);
                of_row = max(of_row, a);
            }
        }
        if (row != NULL) {
            of_row = __reduce_max_sync(~0u, of_row);
            if (lane == 0 && r < m)
                atomicMax(&row[Grouped ? r + r / group * skip : r], of_row);
        }
    }
    if (col != NULL) {
#pragma unroll
        for (int j = 0; j < VEC; j++)
            shared[warp][lane * VEC + j] = most[j];
        __syncthreads();
        for (int i = threadIdx.x; i < AMAX_COLS; i += THREADS) {
            uint32_t a = 0;

#pragma unroll
            for (int w = 0; w < WARPS; w++)
                a = max(a, shared[w][i]);
            if ((int64_t)blockIdx.x * AMAX_COLS + i < n)
                atomicMax(&col[(int64_t)blockIdx.x * AMAX_COLS + i], a);
        }
    }
    if (all != NULL) {
#pragma unroll
        for (int j = 0; j < VEC; j++)
            whole = max(whole, most[j]);
        whole = __reduce_max_sync(~0u, whole);
        if (lane == 0)
            atomicMax(all, whole);
    }
}

static inline dim3 amax_grid(int64_t m, int64_t n)
{
    return dim3((unsigned)d9di_i64_ceil_div(n, AMAX_COLS),
                (unsigned)d9di_i64_max(1, d9di_i64_ceil_div(m, AMAX_ROWS)));
}

/* Two elements, the first in the low byte.  What is not finite becomes NaN. */
static __device__ __forceinline__ uint32_t round_pair(float lo, float hi, bool e5m2)
{
    uint16_t q;

    lo = fabsf(lo) < INFINITY ? lo : NAN;
    hi = fabsf(hi) < INFINITY ? hi : NAN;
    q = __nv_cvt_float2_to_fp8x2(make_float2(lo, hi), __NV_SATFINITE, e5m2 ? __NV_E5M2 : __NV_E4M3);
    return q;
}

#endif /* D9DI_CUDA_FP8_FP8_STEPS_CUH */
