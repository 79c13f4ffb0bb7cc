/* argmax.cu - argmax of each row.
 *
 * A value and its index are one 64-bit key, of which the largest wins. The upper half are the
 * value's bits in an order-preserving form, with NaN on top. The lower half is larger for a smaller
 * index.
 */
#include "cuda/common/common.cuh"

enum { WIDE_BLOCK = 1024, LOADS_IN_FLIGHT = 16 };

struct argmax_op {
    __device__ __forceinline__ uint64_t operator()(uint64_t a, uint64_t b) const
    {
        return a > b ? a : b;
    }
};

static __device__ __forceinline__ uint64_t pack_value_index(float x, int64_t at)
{
    const uint32_t bits = __float_as_uint(x + 0.0f); /* no -0 */
    const uint32_t order = x != x ? ~0u : bits >> 31 ? ~bits : bits | 0x80000000u;

    return (uint64_t)order << 32 | (uint32_t) ~(uint32_t)at;
}

/* Each thread has LOADS_IN_FLIGHT values, WIDE_BLOCK apart, in flight. */
static __device__ __forceinline__ uint64_t block_argmax(const float *x, int64_t n)
{
    uint64_t best = 0;

    for (int64_t from = threadIdx.x; from < n; from += LOADS_IN_FLIGHT * WIDE_BLOCK) {
        float v[LOADS_IN_FLIGHT];

#pragma unroll
        for (int i = 0; i < LOADS_IN_FLIGHT; i++)
            v[i] = from + i * WIDE_BLOCK < n ? x[from + i * WIDE_BLOCK] : 0.0f;
#pragma unroll
        for (int i = 0; i < LOADS_IN_FLIGHT; i++)
            if (from + i * WIDE_BLOCK < n)
                best = argmax_op()(best, pack_value_index(v[i], from + i * WIDE_BLOCK));
    }
    return best;
}

static __global__ void __launch_bounds__(WIDE_BLOCK)
    argmax_kernel(int32_t *at, float *value, const float *x, int64_t n)
{
    const float *row = x + blockIdx.x * n;
    uint64_t best;

    pdl_launch_dependents();
    pdl_wait();
    best = group_reduce<WIDE_BLOCK>(block_argmax(row, n), argmax_op());
    if (threadIdx.x == 0) {
        const int32_t i = (int32_t) ~(uint32_t)best;

        at[blockIdx.x] = i;
        value[blockIdx.x] = row[i];
    }
}

d9d_status d9d_k_argmax(d9d_stream s, int32_t *at, float *value, const float *x, int64_t m,
                        int64_t n)
{
    return m == 0
               ? D9D_OK
               : pdl_launch(s, "argmax", argmax_kernel, (unsigned)m, WIDE_BLOCK, at, value, x, n);
}
