/* cuda_sigmoid_gate.cu - y = x sigmoid(g), one g a row.
 * With s = sigmoid(g): dx = dy s, dg = s (1 - s) sum(dy x). */
#include "cuda_common.cuh"

template <class T, int G>
static __global__ void gate_kernel(T *y, const T *x, const T *g, int64_t m, int64_t n)
{
    const int64_t r = row_mine<G>();
    float s, v[8];

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
static __global__ void gate_din_kernel(T *dx, T *dg, const T *dy, const T *x, const T *g, int64_t m,
                                       int64_t n)
{
    const int64_t r = row_mine<G>();
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
        put(dg + r, dot * (s * (1.0f - s)));
}

template <class T, int G>
static d9d_status gate(d9d_stream s, void *y, const void *x, const void *g, int64_t m, int64_t n)
{
    gate_kernel<T, G><<<blocks_of_rows(m, G), THREADS, 0, d9di_queue(s)>>>((T *)y, (const T *)x,
                                                                           (const T *)g, m, n);
    return d9di_launched("sigmoid_gate");
}

template <class T, int G>
static d9d_status gate_din(d9d_stream s, void *dx, void *dg, const void *dy, const void *x,
                           const void *g, int64_t m, int64_t n)
{
    gate_din_kernel<T, G><<<blocks_of_rows(m, G), THREADS, 0, d9di_queue(s)>>>(
        (T *)dx, (T *)dg, (const T *)dy, (const T *)x, (const T *)g, m, n);
    return d9di_launched("sigmoid_gate_din");
}

d9d_status d9d_k_sigmoid_gate(d9d_stream s, d9d_dtype t, void *y, const void *x, const void *g,
                              int64_t m, int64_t n)
{
    D9D_TRY(d9di_check_float("sigmoid_gate", t));
    if (m == 0)
        return D9D_OK;
    return D9DI_TYPED(t, T, D9DI_BY_ROWS(n, G, gate<T, G>(s, y, x, g, m, n)));
}

d9d_status d9d_k_sigmoid_gate_din(d9d_stream s, d9d_dtype t, void *dx, void *dg, const void *dy,
                                  const void *x, const void *g, int64_t m, int64_t n)
{
    D9D_TRY(d9di_check_float("sigmoid_gate_din", t));
    if (m == 0)
        return D9D_OK;
    return D9DI_TYPED(t, T, D9DI_BY_ROWS(n, G, gate_din<T, G>(s, dx, dg, dy, x, g, m, n)));
}
