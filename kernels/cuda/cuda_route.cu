/* cuda_route.cu - the permuted order: choices by expert, tokens ascending inside one. */
#include "cuda_common.cuh"

static __global__ void row_kernel(int32_t *row, const int32_t *source, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < n)
        row[source[i]] = (int32_t)i;
}

d9d_status d9d_k_route(d9d_stream s, int32_t *offset, int32_t *row, int32_t *source,
                       const int32_t *expert, int64_t rows, int64_t e, int64_t k)
{
    const int64_t n = rows * k;

    if (n > INT32_MAX)
        return D9D_FAIL(D9D_EINVAL, "route: %lld tokens of %lld experts are over %d rows",
                        (long long)rows, (long long)k, INT32_MAX);
    D9D_TRY(d9di_sort(s, "route", expert, n, e, source, offset));
    if (n == 0)
        return D9D_OK;
    row_kernel<<<(unsigned)d9di_ceil_div(n, THREADS), THREADS, 0, d9di_queue(s)>>>(row, source, n);
    return d9di_launched("route");
}
