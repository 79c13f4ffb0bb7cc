/* swiglu.cu - y = silu(gate) up, elementwise. */
#include "cuda/elementwise/swiglu.cuh"

template <class T> static __global__ void swiglu_kernel(T *y, const T *gate, const T *up, int64_t n)
{
    pdl_launch_dependents();
    pdl_wait();
    D9DI_EACH8 (i, n) {
        float g[8], u[8];

        load8(g, gate + i, n - i);
        load8(u, up + i, n - i);
        for (int j = 0; j < 8; j++)
            u[j] = swiglu_of<T>(g[j], u[j]);
        store8(y + i, u, n - i);
    }
}

template <class T>
static __global__ void swiglu_bwd_kernel(T *dgate, T *dup, const T *dy, const T *gate, const T *up,
                                         int64_t n)
{
    D9DI_EACH8 (i, n) {
        float d[8], g[8], u[8];

        load8(d, dy + i, n - i);
        load8(g, gate + i, n - i);
        load8(u, up + i, n - i);
        for (int j = 0; j < 8; j++)
            swiglu_bwd_of<T>(g[j], u[j], d[j], g[j], u[j]);
        store8(dgate + i, g, n - i);
        store8(dup + i, u, n - i);
    }
}

template <class T>
static d9d_status launch_swiglu(d9d_stream s, void *y, const void *gate, const void *up, int64_t n)
{
    return pdl_launch(s, "swiglu", swiglu_kernel<T>, grid_for(s, n / 8), THREADS, (T *)y,
                      (const T *)gate, (const T *)up, n);
}

template <class T>
static d9d_status launch_bwd(d9d_stream s, void *dgate, void *dup, const void *dy, const void *gate,
                             const void *up, int64_t n)
{
    swiglu_bwd_kernel<<<grid_for(s, n / 8), THREADS, 0, d9di_cuda_stream(s)>>>(
        (T *)dgate, (T *)dup, (const T *)dy, (const T *)gate, (const T *)up, n);
    return d9di_cuda_check_launch("swiglu_bwd");
}

d9d_status d9d_k_swiglu(d9d_stream s, d9d_dtype t, void *y, const void *gate, const void *up,
                        int64_t n)
{
    D9D_TRY(d9di_args_check_float("swiglu", t));
    return n == 0 ? D9D_OK : D9DI_DISPATCH_DTYPE(t, T, launch_swiglu<T>(s, y, gate, up, n));
}

d9d_status d9d_k_swiglu_bwd(d9d_stream s, d9d_dtype t, void *dgate, void *dup, const void *dy,
                            const void *gate, const void *up, int64_t n)
{
    D9D_TRY(d9di_args_check_float("swiglu_bwd", t));
    return n == 0 ? D9D_OK
                  : D9DI_DISPATCH_DTYPE(t, T, launch_bwd<T>(s, dgate, dup, dy, gate, up, n));
}
