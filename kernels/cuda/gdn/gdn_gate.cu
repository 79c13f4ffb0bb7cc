/* gdn_gate.cu - g = -exp(rate) log(1 + exp(x + bias)), of each of N heads; see gdn_gate.c. */
#include "cuda/norm/norm.cuh"

enum { ROWS = 64, MOST_PARTS = 256 };

enum made { MADE_G, MADE_DX, MADE_DRATE };

/* What each of the entries makes of one element. */
static __device__ __forceinline__ float make(made what, float x, float rate, float bias, float dg)
{
    const float z = x + bias, e = expf(rate);
    const float g = -e * (fmaxf(z, 0.0f) + log1pf(expf(-fabsf(z))));

    return what == MADE_G ? g : what == MADE_DX ? -dg * e * sigmoid(z) : dg * g;
}

template <class T> struct decay {
    const T *x, *rate, *bias;
    const float *dg;
    int64_t m, n;
};

template <class T>
static __device__ __forceinline__ float element(made what, const decay<T> &v, int64_t i)
{
    return make(what, to_float(v.x[i]), to_float(v.rate[i % v.n]), to_float(v.bias[i % v.n]),
                v.dg != NULL ? v.dg[i] : 0.0f);
}

template <class T, class Y> static __global__ void each_kernel(made what, decay<T> v, Y *y)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < v.m * v.n;
         i += (int64_t)gridDim.x * THREADS)
        put(y + i, element(what, v, i));
}

/* Sums of some rows. */
template <class T>
static __global__ void part_kernel(made what, decay<T> v, int64_t rows, float *part)
{
    const int64_t first = blockIdx.x * rows, end = d9di_min(v.m, first + rows);

    for (int64_t c = threadIdx.x; c < v.n; c += THREADS) {
        float sum = 0.0f;

        for (int64_t r = first; r < end; r++)
            sum += element(what, v, r * v.n + c);
        part[blockIdx.x * v.n + c] = sum;
    }
}

template <class T, class Y>
static d9d_status each(d9d_stream s, const char *op, made what, const decay<T> &v, Y *y)
{
    if (v.m * v.n == 0)
        return D9D_OK;
    each_kernel<<<blocks_for(s, v.m * v.n), THREADS, 0, d9di_queue(s)>>>(what, v, y);
    return d9di_launched(op);
}

template <class T, class G>
static d9d_status sums(d9d_stream s, made what, const decay<T> &v, G *dw, float beta)
{
    const int64_t rows = d9di_max(ROWS, d9di_ceil_div(v.m, MOST_PARTS));
    const int64_t parts = d9di_ceil_div(v.m, rows), bytes = parts * v.n * 4;
    void *part;

    D9D_TRY(d9di_take(s, bytes, &part));
    if (parts > 0)
        part_kernel<<<(unsigned)parts, THREADS, 0, d9di_queue(s)>>>(what, v, rows, (float *)part);
    parts_add(d9di_queue(s), dw, beta, (const float *)part, v.n, parts);
    d9di_give(s, part, bytes);
    return d9di_launched("decay_dw");
}

template <class T>
static decay<T> of(const void *x, const void *rate, const void *bias, const float *dg, int64_t m,
                   int64_t n)
{
    return {(const T *)x, (const T *)rate, (const T *)bias, dg, m, n};
}

d9d_status d9d_k_decay(d9d_stream s, d9d_dtype t, float *g, const void *x, const void *rate,
                       const void *bias, int64_t m, int64_t n)
{
    D9D_TRY(d9di_check_float("decay", t));
    return D9DI_TYPED(t, T, each(s, "decay", MADE_G, of<T>(x, rate, bias, NULL, m, n), g));
}

d9d_status d9d_k_decay_din(d9d_stream s, d9d_dtype t, void *dx, const float *dg, const void *x,
                           const void *rate, const void *bias, int64_t m, int64_t n)
{
    D9D_TRY(d9di_check_float("decay_din", t));
    return D9DI_TYPED(t, T, each(s, "decay_din", MADE_DX, of<T>(x, rate, bias, dg, m, n), (T *)dx));
}

d9d_status d9d_k_decay_dw(d9d_stream s, d9d_dtype t, d9d_dtype gt, void *dw, float beta,
                          bool of_bias, const float *dg, const void *x, const void *rate,
                          const void *bias, int64_t m, int64_t n)
{
    const made what = of_bias ? MADE_DX : MADE_DRATE;

    D9D_TRY(d9di_check_float("decay_dw", t));
    D9D_TRY(d9di_check_float("decay_dw", gt));
    if (n == 0)
        return D9D_OK;
    return D9DI_TYPED(
        t, T, D9DI_TYPED(gt, G, sums(s, what, of<T>(x, rate, bias, dg, m, n), (G *)dw, beta)));
}
