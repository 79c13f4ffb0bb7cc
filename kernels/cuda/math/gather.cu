/* gather.cu - y[i][j] = x[i][index[i][j]], and the gradient of x: of several equal indices of a
 * row, the first adds all of them up.
 */
#include "cuda/common/common.cuh"

template <class T>
static __global__ void gather_kernel(T *y, const T *x, const int32_t *index, int64_t m, int64_t n,
                                     int64_t k)
{
    const int64_t all = m * k;

    for (int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x; e < all;
         e += (int64_t)gridDim.x * THREADS) {
        const int64_t at = index[e];

        store_float(y + e, at < 0   ? 0.0f
                           : at < n ? to_float(x[e / k * n + at])
                                    : __int_as_float(0x7fffffff));
    }
}

template <class T>
static __global__ void scatter_kernel(T *dx, const T *dy, const int32_t *index, int64_t m,
                                      int64_t n, int64_t k)
{
    const int64_t all = m * k;

    for (int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x; e < all;
         e += (int64_t)gridDim.x * THREADS) {
        const int64_t first = e / k * k, at = index[e];
        bool later = at < 0 || at >= n;
        float sum = 0.0f;

        for (int64_t j = first; j < e; j++)
            later |= index[j] == at;
        if (later)
            continue;
        for (int64_t j = e; j < first + k; j++)
            sum += index[j] == at ? to_float(dy[j]) : 0.0f;
        store_float(dx + e / k * n + at, sum);
    }
}

template <class T>
static d9d_status launch_gather(d9d_stream s, void *y, const void *x, const int32_t *index,
                                int64_t m, int64_t n, int64_t k)
{
    gather_kernel<<<grid_for(s, m * k), THREADS, 0, d9di_cuda_stream(s)>>>((T *)y, (const T *)x,
                                                                           index, m, n, k);
    return d9di_cuda_check_launch("gather");
}

template <class T>
static d9d_status launch_scatter(d9d_stream s, void *dx, const void *dy, const int32_t *index,
                                 int64_t m, int64_t n, int64_t k)
{
    scatter_kernel<<<grid_for(s, m * k), THREADS, 0, d9di_cuda_stream(s)>>>((T *)dx, (const T *)dy,
                                                                            index, m, n, k);
    return d9di_cuda_check_launch("gather_bwd");
}

d9d_status d9d_k_gather(d9d_stream s, d9d_dtype t, void *y, const void *x, const int32_t *index,
                        int64_t m, int64_t n, int64_t k)
{
    D9D_TRY(d9di_args_check_float("gather", t));
    return m * k == 0 ? D9D_OK
                      : D9DI_DISPATCH_DTYPE(t, T, launch_gather<T>(s, y, x, index, m, n, k));
}

d9d_status d9d_k_gather_bwd(d9d_stream s, d9d_dtype t, void *dx, const void *dy,
                            const int32_t *index, int64_t m, int64_t n, int64_t k)
{
    D9D_TRY(d9di_args_check_float("gather_bwd", t));
    D9D_TRY(d9d_k_fill(s, t, dx, m * n, 0.0f));
    return m * k == 0 ? D9D_OK
                      : D9DI_DISPATCH_DTYPE(t, T, launch_scatter<T>(s, dx, dy, index, m, n, k));
}
