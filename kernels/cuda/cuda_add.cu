/* cuda_add.cu - y = a + b, and y = beta y + x. */
#include "cuda_common.cuh"

template <class T> static __global__ void add_kernel(T *y, const T *a, const T *b, int64_t n)
{
    let_next_begin();
    wait_for_last();
    D9DI_EACH8 (i, n) {
        float u[8], v[8];

        load8(u, a + i, n - i);
        load8(v, b + i, n - i);
        for (int j = 0; j < 8; j++)
            u[j] += v[j];
        store8(y + i, u, n - i);
    }
}

template <class T>
static d9d_status add(d9d_stream s, void *y, const void *a, const void *b, int64_t n)
{
    return launch_early(s, "add", add_kernel<T>, blocks_for(s, n / 8), THREADS, (T *)y,
                        (const T *)a, (const T *)b, n);
}

d9d_status d9d_k_add(d9d_stream s, d9d_dtype t, void *y, const void *a, const void *b, int64_t n)
{
    D9D_TRY(d9di_check_float("add", t));
    return n == 0 ? D9D_OK : D9DI_TYPED(t, T, add<T>(s, y, a, b, n));
}

/* What y held is not read when beta is 0. */
template <class Y, class X>
static __global__ void accumulate_kernel(Y *y, float beta, const X *x, int64_t n)
{
    D9DI_EACH8 (i, n) {
        float u[8], v[8];

        load8(u, x + i, n - i);
        if (beta != 0.0f) {
            load8(v, y + i, n - i);
            for (int j = 0; j < 8; j++)
                u[j] += beta * v[j];
        }
        store8(y + i, u, n - i);
    }
}

template <class Y, class X>
static d9d_status accumulate(d9d_stream s, void *y, float beta, const void *x, int64_t n)
{
    accumulate_kernel<<<blocks_for(s, n / 8), THREADS, 0, d9di_queue(s)>>>((Y *)y, beta,
                                                                           (const X *)x, n);
    return d9di_launched("accumulate");
}

d9d_status d9d_k_accumulate(d9d_stream s, d9d_dtype yt, void *y, float beta, d9d_dtype xt,
                            const void *x, int64_t n)
{
    D9D_TRY(d9di_check_float("accumulate", yt));
    D9D_TRY(d9di_check_float("accumulate", xt));
    return n == 0 ? D9D_OK
                  : D9DI_TYPED(yt, Y, D9DI_TYPED(xt, T, accumulate<Y, T>(s, y, beta, x, n)));
}
