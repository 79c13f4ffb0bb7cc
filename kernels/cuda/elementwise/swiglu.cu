/* swiglu.cu - y = silu(gate) up, elementwise. */
#include "cuda/elementwise/swiglu.cuh"

template <class T> static __global__ void swiglu_kernel(T *y, const T *gate, const T *up, int64_t n)
{
    let_next_begin();
    wait_for_last();
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
static __global__ void swiglu_din_kernel(T *dgate, T *dup, const T *dy, const T *gate, const T *up,
                                         int64_t n)
{
    D9DI_EACH8 (i, n) {
        float d[8], g[8], u[8];

        load8(d, dy + i, n - i);
        load8(g, gate + i, n - i);
        load8(u, up + i, n - i);
        for (int j = 0; j < 8; j++)
            swiglu_grad_of<T>(g[j], u[j], d[j], g[j], u[j]);
        store8(dgate + i, g, n - i);
        store8(dup + i, u, n - i);
    }
}

template <class T>
static d9d_status swiglu(d9d_stream s, void *y, const void *gate, const void *up, int64_t n)
{
    return launch_early(s, "swiglu", swiglu_kernel<T>, blocks_for(s, n / 8), THREADS, (T *)y,
                        (const T *)gate, (const T *)up, n);
}

template <class T>
static d9d_status swiglu_din(d9d_stream s, void *dgate, void *dup, const void *dy, const void *gate,
                             const void *up, int64_t n)
{
    swiglu_din_kernel<<<blocks_for(s, n / 8), THREADS, 0, d9di_queue(s)>>>(
        (T *)dgate, (T *)dup, (const T *)dy, (const T *)gate, (const T *)up, n);
    return d9di_launched("swiglu_din");
}

d9d_status d9d_k_swiglu(d9d_stream s, d9d_dtype t, void *y, const void *gate, const void *up,
                        int64_t n)
{
    D9D_TRY(d9di_check_float("swiglu", t));
    return n == 0 ? D9D_OK : D9DI_TYPED(t, T, swiglu<T>(s, y, gate, up, n));
}

d9d_status d9d_k_swiglu_din(d9d_stream s, d9d_dtype t, void *dgate, void *dup, const void *dy,
                            const void *gate, const void *up, int64_t n)
{
    D9D_TRY(d9di_check_float("swiglu_din", t));
    return n == 0 ? D9D_OK : D9DI_TYPED(t, T, swiglu_din<T>(s, dgate, dup, dy, gate, up, n));
}
