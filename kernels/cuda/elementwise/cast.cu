/* cast.cu - change of element type, rounding to nearest even. */
#include "cuda/common/common.cuh"

template <class Y, class X> static __global__ void cast_kernel(Y *y, const X *x, int64_t n)
{
    D9DI_EACH8 (i, n) {
        float v[8];

        load8(v, x + i, n - i);
        store8(y + i, v, n - i);
    }
}

template <class Y, class X>
static d9d_status launch_cast(d9d_stream s, void *y, const void *x, int64_t n)
{
    cast_kernel<<<grid_for(s, n / 8), THREADS, 0, d9di_cuda_stream(s)>>>((Y *)y, (const X *)x, n);
    return d9di_cuda_check_launch("cast");
}

d9d_status d9d_k_cast(d9d_stream s, d9d_dtype yt, void *y, d9d_dtype xt, const void *x, int64_t n)
{
    D9D_TRY(d9di_args_check_float("cast", yt));
    D9D_TRY(d9di_args_check_float("cast", xt));
    return n == 0 ? D9D_OK
                  : D9DI_DISPATCH_DTYPE(yt, Y,
                                        D9DI_DISPATCH_DTYPE(xt, T, launch_cast<Y, T>(s, y, x, n)));
}
