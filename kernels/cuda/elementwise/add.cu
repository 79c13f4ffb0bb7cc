/* add.cu - sums of arrays, y = beta y + x, and y = alpha x + plus. */
#include "cuda/common/common.cuh"

template <class T> struct add_inputs {
    const T *x[D9D_ADD_MAX_ARRAYS];
};

/* N arrays; 0 if the number is not known at compile time. */
template <class T, int N>
static __global__ void add_kernel(T *y, const add_inputs<T> a, int of, int64_t n)
{
    pdl_launch_dependents();
    pdl_wait();
    D9DI_EACH8 (i, n) {
        float sum[8], v[8];

        load8(sum, a.x[0] + i, n - i);
#pragma unroll
        for (int k = 1; k < (N > 0 ? N : of); k++) {
            load8(v, a.x[k] + i, n - i);
            for (int j = 0; j < 8; j++)
                sum[j] += v[j];
        }
        store8(y + i, sum, n - i);
    }
}

template <class T>
static d9d_status launch_add(d9d_stream s, void *y, const void *const *x, int of, int64_t n)
{
    static const decltype(&add_kernel<T, 0>) kernels[] = {add_kernel<T, 0>, add_kernel<T, 1>,
                                                          add_kernel<T, 2>, add_kernel<T, 3>,
                                                          add_kernel<T, 4>, add_kernel<T, 5>};
    const int known = sizeof(kernels) / sizeof(*kernels);
    add_inputs<T> a = {};

    for (int k = 0; k < of; k++)
        a.x[k] = (const T *)x[k];
    return pdl_launch(s, "add", kernels[of < known ? of : 0], grid_for(s, n / 8), THREADS, (T *)y,
                      a, of, n);
}

d9d_status d9d_k_add(d9d_stream s, d9d_dtype t, void *y, const void *const *x, int of, int64_t n)
{
    D9D_TRY(d9di_args_check_float("add", t));
    D9D_TRY(d9di_args_check_addends(of));
    return n == 0 ? D9D_OK : D9DI_DISPATCH_DTYPE(t, T, launch_add<T>(s, y, x, of, n));
}

/* y is not read if beta is 0. */
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
static d9d_status launch_accumulate(d9d_stream s, void *y, float beta, const void *x, int64_t n)
{
    accumulate_kernel<<<grid_for(s, n / 8), THREADS, 0, d9di_cuda_stream(s)>>>((Y *)y, beta,
                                                                               (const X *)x, n);
    return d9di_cuda_check_launch("accumulate");
}

d9d_status d9d_k_accumulate(d9d_stream s, d9d_dtype yt, void *y, float beta, d9d_dtype xt,
                            const void *x, int64_t n)
{
    D9D_TRY(d9di_args_check_float("accumulate", yt));
    D9D_TRY(d9di_args_check_float("accumulate", xt));
    return n == 0
               ? D9D_OK
               : D9DI_DISPATCH_DTYPE(
                     yt, Y, D9DI_DISPATCH_DTYPE(xt, T, launch_accumulate<Y, T>(s, y, beta, x, n)));
}

/* plus is not read if it is NULL. */
template <class T>
static __global__ void axpy_kernel(T *y, float alpha, const T *x, const T *plus, int64_t n)
{
    pdl_launch_dependents();
    pdl_wait();
    D9DI_EACH8 (i, n) {
        float u[8], v[8] = {};

        load8(u, x + i, n - i);
        if (plus != NULL)
            load8(v, plus + i, n - i);
        for (int j = 0; j < 8; j++)
            u[j] = alpha * u[j] + v[j];
        store8(y + i, u, n - i);
    }
}

template <class T>
static d9d_status launch_axpy(d9d_stream s, void *y, float alpha, const void *x, const void *plus,
                              int64_t n)
{
    return pdl_launch(s, "axpy", axpy_kernel<T>, grid_for(s, n / 8), THREADS, (T *)y, alpha,
                      (const T *)x, (const T *)plus, n);
}

d9d_status d9d_k_axpy(d9d_stream s, d9d_dtype t, void *y, float alpha, const void *x,
                      const void *plus, int64_t n)
{
    D9D_TRY(d9di_args_check_float("axpy", t));
    return n == 0 ? D9D_OK : D9DI_DISPATCH_DTYPE(t, T, launch_axpy<T>(s, y, alpha, x, plus, n));
}
