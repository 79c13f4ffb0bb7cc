/* sigmoid_gate.cu - y = x sigmoid(g), one g per row; rows of one element are processed in vectors
 * of eight. With s = sigmoid(g): dx = dy s, dg = s (1 - s) sum(dy x). */
#include "cuda/common/common.cuh"

template <class T>
static __global__ void elementwise_kernel(T *y, const T *x, const T *g, int64_t n)
{
    pdl_launch_dependents();
    pdl_wait();
    D9DI_EACH8 (i, n) {
        float u[8], v[8];

        load8(u, x + i, n - i);
        load8(v, g + i, n - i);
        for (int j = 0; j < 8; j++)
            u[j] *= sigmoid(v[j]);
        store8(y + i, u, n - i);
    }
}

template <class T>
static __global__ void elementwise_bwd_kernel(T *dx, T *dg, const T *dy, const T *x, const T *g,
                                              int64_t n)
{
    D9DI_EACH8 (i, n) {
        float d[8], u[8], v[8];

        load8(d, dy + i, n - i);
        load8(u, x + i, n - i);
        load8(v, g + i, n - i);
        for (int j = 0; j < 8; j++) {
            const float s = sigmoid(v[j]);

            v[j] = d[j] * u[j] * (s * (1.0f - s));
            d[j] *= s;
        }
        store8(dx + i, d, n - i);
        store8(dg + i, v, n - i);
    }
}

template <class T>
static d9d_status launch_elementwise(d9d_stream s, void *y, const void *x, const void *g, int64_t n)
{
    return pdl_launch(s, "sigmoid_gate", elementwise_kernel<T>, grid_for(s, n / 8), THREADS, (T *)y,
                      (const T *)x, (const T *)g, n);
}

template <class T>
static d9d_status launch_elementwise_bwd(d9d_stream s, void *dx, void *dg, const void *dy,
                                         const void *x, const void *g, int64_t n)
{
    elementwise_bwd_kernel<<<grid_for(s, n / 8), THREADS, 0, d9di_cuda_stream(s)>>>(
        (T *)dx, (T *)dg, (const T *)dy, (const T *)x, (const T *)g, n);
    return d9di_cuda_check_launch("sigmoid_gate_bwd");
}

template <class T, int G>
static __global__ void gate_kernel(T *y, const T *x, const T *g, int64_t m, int64_t n)
{
    const int64_t r = group_row<G>();
    float s, v[8];

    pdl_launch_dependents();
    pdl_wait();
    if (r >= m)
        return;
    s = sigmoid(to_float(g[r]));
    D9DI_ROW8 (i, n, G) {
        load8(v, x + r * n + i, n - i);
        for (int j = 0; j < 8; j++)
            v[j] *= s;
        store8(y + r * n + i, v, n - i);
    }
}

template <class T, int G>
static __global__ void gate_bwd_kernel(T *dx, T *dg, const T *dy, const T *x, const T *g, int64_t m,
                                       int64_t n)
{
    const int64_t r = group_row<G>();
    float s, dot = 0.0f, u[8], v[8];

    if (r >= m)
        return;
    s = sigmoid(to_float(g[r]));
    D9DI_ROW8 (i, n, G) {
        load8(u, dy + r * n + i, n - i);
        load8(v, x + r * n + i, n - i);
        for (int j = 0; j < 8; j++) {
            dot = fmaf(u[j], v[j], dot);
            u[j] *= s;
        }
        store8(dx + r * n + i, u, n - i);
    }
    dot = group_sum<G>(dot);
    if (threadIdx.x % G == 0)
        store_float(dg + r, dot * (s * (1.0f - s)));
}

template <class T, int G>
static d9d_status launch_gate(d9d_stream s, void *y, const void *x, const void *g, int64_t m,
                              int64_t n)
{
    return pdl_launch(s, "sigmoid_gate", gate_kernel<T, G>, grid_for_rows(m, G), THREADS, (T *)y,
                      (const T *)x, (const T *)g, m, n);
}

template <class T, int G>
static d9d_status launch_gate_bwd(d9d_stream s, void *dx, void *dg, const void *dy, const void *x,
                                  const void *g, int64_t m, int64_t n)
{
    gate_bwd_kernel<T, G><<<grid_for_rows(m, G), THREADS, 0, d9di_cuda_stream(s)>>>(
        (T *)dx, (T *)dg, (const T *)dy, (const T *)x, (const T *)g, m, n);
    return d9di_cuda_check_launch("sigmoid_gate_bwd");
}

d9d_status d9d_k_sigmoid_gate(d9d_stream s, d9d_dtype t, void *y, const void *x, const void *g,
                              int64_t m, int64_t n)
{
    D9D_TRY(d9di_args_check_float("sigmoid_gate", t));
    if (m == 0)
        return D9D_OK;
    if (n == 1)
        return D9DI_DISPATCH_DTYPE(t, T, launch_elementwise<T>(s, y, x, g, m));
    return D9DI_DISPATCH_DTYPE(t, T, D9DI_BY_ROWS(n, G, launch_gate<T, G>(s, y, x, g, m, n)));
}

d9d_status d9d_k_sigmoid_gate_bwd(d9d_stream s, d9d_dtype t, void *dx, void *dg, const void *dy,
                                  const void *x, const void *g, int64_t m, int64_t n)
{
    D9D_TRY(d9di_args_check_float("sigmoid_gate_bwd", t));
    if (m == 0)
        return D9D_OK;
    if (n == 1)
        return D9DI_DISPATCH_DTYPE(t, T, launch_elementwise_bwd<T>(s, dx, dg, dy, x, g, m));
    return D9DI_DISPATCH_DTYPE(
        t, T, D9DI_BY_ROWS(n, G, launch_gate_bwd<T, G>(s, dx, dg, dy, x, g, m, n)));
}
