/* gdn_gate.cu - g = -exp(rate) log(1 + exp(x + bias)), of each of N heads; see gdn_gate.c. */
#include "cuda/norm/norm.cuh"

enum { ROWS = 64, MAX_PARTS = 256 };

enum gate_output { GATE_VALUE, GATE_DX, GATE_DRATE };

/* One element of g, dx (also dbias) or drate. */
static __device__ __forceinline__ float gate_element(gate_output what, float x, float rate,
                                                     float bias, float dg)
{
    const float z = x + bias, e = expf(rate);
    const float g = -e * (fmaxf(z, 0.0f) + log1pf(expf(-fabsf(z))));

    return what == GATE_VALUE ? g : what == GATE_DX ? -dg * e * sigmoid(z) : dg * g;
}

template <class T> struct gate_args {
    const T *x, *rate, *bias;
    const float *dg;
    int64_t m, n;
};

template <class T>
static __device__ __forceinline__ float gate_element_at(gate_output what, const gate_args<T> &v,
                                                        int64_t i)
{
    return gate_element(what, to_float(v.x[i]), to_float(v.rate[i % v.n]),
                        to_float(v.bias[i % v.n]), v.dg != NULL ? v.dg[i] : 0.0f);
}

template <class T, class Y>
static __global__ void elementwise_kernel(gate_output what, gate_args<T> v, Y *y)
{
    pdl_launch_dependents();
    pdl_wait();
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < v.m * v.n;
         i += (int64_t)gridDim.x * THREADS)
        store_float(y + i, gate_element_at(what, v, i));
}

/* part[block, N] = column sums of `rows` rows. */
template <class T>
static __global__ void partial_sums_kernel(gate_output what, gate_args<T> v, int64_t rows,
                                           float *part)
{
    const int64_t first = blockIdx.x * rows, end = d9di_i64_min(v.m, first + rows);

    for (int64_t c = threadIdx.x; c < v.n; c += THREADS) {
        float sum = 0.0f;

        for (int64_t r = first; r < end; r++)
            sum += gate_element_at(what, v, r * v.n + c);
        part[blockIdx.x * v.n + c] = sum;
    }
}

template <class T, class Y>
static d9d_status launch_elementwise(d9d_stream s, const char *op, gate_output what,
                                     const gate_args<T> &v, Y *y)
{
    if (v.m * v.n == 0)
        return D9D_OK;
    return pdl_launch(s, op, elementwise_kernel<T, Y>, grid_for(s, v.m * v.n), THREADS, what, v, y);
}

template <class T, class G>
static d9d_status launch_wgrad(d9d_stream s, gate_output what, const gate_args<T> &v, G *dw,
                               float beta)
{
    const int64_t rows = d9di_i64_max(ROWS, d9di_i64_ceil_div(v.m, MAX_PARTS));
    const int64_t parts = d9di_i64_ceil_div(v.m, rows), bytes = parts * v.n * 4;
    void *part;

    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &part));
    if (parts > 0)
        partial_sums_kernel<<<(unsigned)parts, THREADS, 0, d9di_cuda_stream(s)>>>(what, v, rows,
                                                                                  (float *)part);
    parts_sum(d9di_cuda_stream(s), dw, beta, (const float *)part, v.n, parts);
    d9di_cuda_scratch_free(s, part, bytes);
    return d9di_cuda_check_launch("gdn_gate_wgrad");
}

template <class T>
static gate_args<T> gate_args_make(const void *x, const void *rate, const void *bias,
                                   const float *dg, int64_t m, int64_t n)
{
    return {(const T *)x, (const T *)rate, (const T *)bias, dg, m, n};
}

d9d_status d9d_k_gdn_gate(d9d_stream s, d9d_dtype t, float *g, const void *x, const void *rate,
                          const void *bias, int64_t m, int64_t n)
{
    D9D_TRY(d9di_args_check_float("gdn_gate", t));
    return D9DI_DISPATCH_DTYPE(t, T,
                               launch_elementwise(s, "gdn_gate", GATE_VALUE,
                                                  gate_args_make<T>(x, rate, bias, NULL, m, n), g));
}

d9d_status d9d_k_gdn_gate_dgrad(d9d_stream s, d9d_dtype t, void *dx, const float *dg, const void *x,
                                const void *rate, const void *bias, int64_t m, int64_t n)
{
    D9D_TRY(d9di_args_check_float("gdn_gate_dgrad", t));
    return D9DI_DISPATCH_DTYPE(t, T,
                               launch_elementwise(s, "gdn_gate_dgrad", GATE_DX,
                                                  gate_args_make<T>(x, rate, bias, dg, m, n),
                                                  (T *)dx));
}

d9d_status d9d_k_gdn_gate_wgrad(d9d_stream s, d9d_dtype t, d9d_dtype gt, void *dw, float beta,
                                bool of_bias, const float *dg, const void *x, const void *rate,
                                const void *bias, int64_t m, int64_t n)
{
    const gate_output what = of_bias ? GATE_DX : GATE_DRATE;

    D9D_TRY(d9di_args_check_float("gdn_gate_wgrad", t));
    D9D_TRY(d9di_args_check_float("gdn_gate_wgrad", gt));
    if (n == 0)
        return D9D_OK;
    return D9DI_DISPATCH_DTYPE(
        t, T,
        D9DI_DISPATCH_DTYPE(
            gt, G,
            launch_wgrad(s, what, gate_args_make<T>(x, rate, bias, dg, m, n), (G *)dw, beta)));
}
