/* dropout.cu - dropout by counter-based random numbers. */
#include "cuda/common/philox.cuh"

template <class T>
static __global__ void dropout_kernel(T *y, const T *x, float p, float factor, d9d_rng r,
                                      const int64_t *token, int64_t m, int64_t n, int64_t first,
                                      int64_t width)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < m * n;
         i += (int64_t)gridDim.x * THREADS) {
        bool keep = true;

        if (p > 0) {
            const uint64_t at = (uint64_t)token[i / n] * (uint64_t)width + (uint64_t)first;

            keep = (float)(random_u32(r, at + (uint64_t)(i % n)) >> 8) * 0x1p-24f >= p;
        }
        store_float(y + i, keep ? factor * to_float(x[i]) : 0.0f);
    }
}

template <class T>
static d9d_status launch_dropout(d9d_stream s, void *y, const void *x, float p, float factor,
                                 d9d_rng r, const int64_t *token, int64_t m, int64_t n,
                                 int64_t first, int64_t width)
{
    if (m * n == 0)
        return D9D_OK;
    dropout_kernel<<<grid_for(s, m * n), THREADS, 0, d9di_cuda_stream(s)>>>(
        (T *)y, (const T *)x, p, factor, r, token, m, n, first, width);
    return d9di_cuda_check_launch("dropout");
}

d9d_status d9d_k_dropout(d9d_stream s, d9d_dtype t, void *y, const void *x, float p, float factor,
                         d9d_rng r, const int64_t *token, int64_t m, int64_t n, int64_t first,
                         int64_t width)
{
    D9D_TRY(d9di_args_check_float("dropout", t));
    return D9DI_DISPATCH_DTYPE(t, T,
                               launch_dropout<T>(s, y, x, p, factor, r, token, m, n, first, width));
}
