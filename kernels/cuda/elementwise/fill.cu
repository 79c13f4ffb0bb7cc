/* fill.cu - y = v. */
#include "cuda/common/common.cuh"

template <class T> static __global__ void fill_kernel(T *y, int64_t n, T v)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS)
        y[i] = v;
}

template <class T> static d9d_status launch_fill(d9d_stream s, void *y, int64_t n, T v)
{
    if (n == 0)
        return D9D_OK;
    fill_kernel<<<grid_for(s, n), THREADS, 0, d9di_cuda_stream(s)>>>((T *)y, n, v);
    return d9di_cuda_check_launch("fill");
}

d9d_status d9d_k_fill(d9d_stream s, d9d_dtype t, void *y, int64_t n, float v)
{
    switch (t) {
    case D9D_F32: return launch_fill<float>(s, y, n, v);
    case D9D_BF16: return launch_fill<uint16_t>(s, y, n, d9d_bf16_from_f32(v));
    case D9D_I16: return launch_fill<int16_t>(s, y, n, (int16_t)v);
    case D9D_I8: return launch_fill<int8_t>(s, y, n, (int8_t)v);
    case D9D_U8: return launch_fill<uint8_t>(s, y, n, (uint8_t)v);
    case D9D_F64: return launch_fill<double>(s, y, n, v);
    case D9D_I32: return launch_fill<int32_t>(s, y, n, (int32_t)v);
    case D9D_I64: return launch_fill<int64_t>(s, y, n, (int64_t)v);
    default: return D9D_FAIL(D9D_EINVAL, "fill: cannot fill an array of %s", d9d_dtype_name(t));
    }
}
