/* softcap.cu - y = cap tanh(x / cap). */
#include "cuda/common/common.cuh"

template <class T> static __global__ void softcap_kernel(T *y, const T *x, float cap, int64_t n)
{
    D9DI_EACH8 (i, n) {
        float v[8];

        load8(v, x + i, n - i);
        for (int j = 0; j < 8; j++)
            v[j] = softcap(v[j], cap);
        store8(y + i, v, n - i);
    }
}

template <class T>
static d9d_status launch_softcap(d9d_stream s, void *y, const void *x, float cap, int64_t n)
{
    softcap_kernel<<<grid_for(s, n / 8), THREADS, 0, d9di_cuda_stream(s)>>>((T *)y, (const T *)x,
                                                                            cap, n);
    return d9di_cuda_check_launch("softcap");
}

d9d_status d9d_k_softcap(d9d_stream s, d9d_dtype t, void *y, const void *x, float cap, int64_t n)
{
    D9D_TRY(d9di_args_check_float("softcap", t));
    return n == 0 ? D9D_OK : D9DI_DISPATCH_DTYPE(t, T, launch_softcap<T>(s, y, x, cap, n));
}
