/* argmax.cu - argmax of each row.
 *
 * A value and its index are one 64-bit key, of which the largest wins. The upper half are the
 * value's bits in an order-preserving form, with NaN on top. The lower half is larger for a smaller
 * index. A long row is divided among SPLITS blocks, whose keys a second launch compares.
 */
#include "cuda/common/common.cuh"

enum { WIDE_BLOCK = 1024, LOADS_IN_FLIGHT = 16, SPLITS = WARP };

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

/* Of n numbers, of which the first is `at` of its row. Each thread has LOADS_IN_FLIGHT values,
 * WIDE_BLOCK apart, in flight. */
static __device__ __forceinline__ uint64_t block_argmax(const float *x, int64_t at, int64_t n)
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
                best = argmax_op()(best, pack_value_index(v[i], at + from + i * WIDE_BLOCK));
    }
    return best;
}

static __device__ __forceinline__ void store_best(int32_t *at, float *value, const float *row,
                                                  uint64_t best)
{
    const int32_t i = (int32_t) ~(uint32_t)best;

    *at = i;
    *value = row[i];
}

/* Grid: SPLITS, rows. */
static __global__ void __launch_bounds__(WIDE_BLOCK)
    argmax_split_kernel(uint64_t *key, const float *x, int64_t n)
{
    const int64_t per = d9di_i64_ceil_div(n, SPLITS), first = blockIdx.x * per;
    uint64_t best;

    pdl_launch_dependents();
    pdl_wait();
    best = group_reduce<WIDE_BLOCK>(
        block_argmax(x + blockIdx.y * n + first, first, d9di_i64_min(per, n - first)), argmax_op());
    if (threadIdx.x == 0)
        key[blockIdx.y * SPLITS + blockIdx.x] = best;
}

/* A warp has a row. */
static __global__ void argmax_combine_kernel(int32_t *at, float *value, const float *x, int64_t n,
                                             const uint64_t *key)
{
    uint64_t best;

    pdl_launch_dependents();
    pdl_wait();
    best = group_reduce<WARP>(key[blockIdx.x * SPLITS + threadIdx.x], argmax_op());
    if (threadIdx.x == 0)
        store_best(at + blockIdx.x, value + blockIdx.x, x + blockIdx.x * n, best);
}

static __global__ void __launch_bounds__(WIDE_BLOCK)
    argmax_kernel(int32_t *at, float *value, const float *x, int64_t n)
{
    const float *row = x + blockIdx.x * n;
    uint64_t best;

    pdl_launch_dependents();
    pdl_wait();
    best = group_reduce<WIDE_BLOCK>(block_argmax(row, 0, n), argmax_op());
    if (threadIdx.x == 0)
        store_best(at + blockIdx.x, value + blockIdx.x, row, best);
}

static d9d_status launch_split(d9d_stream s, int32_t *at, float *value, const float *x, int64_t m,
                               int64_t n)
{
    const int64_t bytes = m * SPLITS * (int64_t)sizeof(uint64_t);
    d9d_status st;
    void *key;

    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &key));
    st = pdl_launch(s, "argmax", argmax_split_kernel, dim3(SPLITS, (unsigned)m), WIDE_BLOCK,
                    (uint64_t *)key, x, n);
    if (st == D9D_OK)
        st = pdl_launch(s, "argmax", argmax_combine_kernel, (unsigned)m, WARP, at, value, x, n,
                        (const uint64_t *)key);
    d9di_cuda_scratch_free(s, key, bytes);
    return st;
}

d9d_status d9d_k_argmax(d9d_stream s, int32_t *at, float *value, const float *x, int64_t m,
                        int64_t n)
{
    if (m > 0 && n >= SPLITS * WIDE_BLOCK)
        return launch_split(s, at, value, x, m, n);
    return m == 0
               ? D9D_OK
               : pdl_launch(s, "argmax", argmax_kernel, (unsigned)m, WIDE_BLOCK, at, value, x, n);
}
