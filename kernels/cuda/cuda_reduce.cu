/* cuda_reduce.cu - sums in float64, and the search for what is not finite.
 *
 * An array is cut into at most PARTS parts by its length; a block folds a part in a fixed
 * tree, and one block folds the parts. */
#include "cuda_common.cuh"

enum { PARTS = 1024, PER_THREAD = 32 };

struct add_values {
    typedef double value;
    static __device__ double none() { return 0.0; }
    static __device__ double of(float x, int64_t) { return x; }
    __device__ double operator()(double a, double b) const { return a + b; }
};
struct add_squares : add_values {
    static __device__ double of(float x, int64_t) { return (double)x * x; }
};
struct first_bad {
    typedef long long value;
    static __device__ value none() { return INT64_MAX; }
    static __device__ value of(float x, int64_t i) { return isfinite(x) ? INT64_MAX : i; }
    __device__ value operator()(value a, value b) const { return a < b ? a : b; }
};

template <class F, class T>
static __global__ void part_kernel(typename F::value *part, const T *x, int64_t n, int64_t size)
{
    const int64_t end = d9di_min(n, (blockIdx.x + (int64_t)1) * size);
    typename F::value v = F::none();
    F f;

#pragma unroll 4
    for (int64_t i = blockIdx.x * size + threadIdx.x * 8; i < end; i += THREADS * 8) {
        typename F::value w[8];
        float e[8];

        load8(e, x + i, end - i);
        for (int j = 0; j < 8; j++)
            w[j] = i + j < end ? F::of(e[j], i + j) : F::none();
        for (int o = 4; o > 0; o /= 2)
            for (int j = 0; j < o; j++)
                w[j] = f(w[j], w[j + o]);
        v = f(v, w[0]);
    }
    v = group_fold<THREADS>(v, f);
    if (threadIdx.x == 0)
        part[blockIdx.x] = v;
}

static __device__ void finish(double *out, double beta, double v)
{
    *out = (beta != 0.0 ? *out : 0.0) + v;
}
static __device__ void finish(int64_t *out, double, long long v)
{
    *out = v == INT64_MAX ? -1 : v;
}

template <class F, class Y>
static __global__ void last_kernel(Y *out, double beta, const typename F::value *part, int64_t n)
{
    typename F::value v = F::none();
    F f;

    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        v = f(v, part[i]);
    v = group_fold<THREADS>(v, f);
    if (threadIdx.x == 0)
        finish(out, beta, v);
}

template <class F, class T, class Y>
static d9d_status reduce(d9d_stream s, const char *op, Y *out, double beta, const void *x,
                         int64_t n)
{
    const int64_t grain = THREADS * PER_THREAD;
    const int64_t size = grain * d9di_max(1, d9di_ceil_div(n, grain * PARTS));
    const int64_t parts = d9di_ceil_div(n, size), bytes = PARTS * sizeof(typename F::value);
    cudaStream_t queue = d9di_queue(s);
    void *part;

    D9D_TRY(d9di_take(s, bytes, &part));
    if (parts > 0)
        part_kernel<F, T><<<(unsigned)parts, THREADS, 0, queue>>>((typename F::value *)part,
                                                                  (const T *)x, n, size);
    last_kernel<F><<<1, THREADS, 0, queue>>>(out, beta, (const typename F::value *)part, parts);
    d9di_give(s, part, bytes);
    return d9di_launched(op);
}

d9d_status d9d_k_sum_squares(d9d_stream s, double *out, double beta, d9d_dtype t, const void *x,
                             int64_t n)
{
    D9D_TRY(d9di_check_float("sum_squares", t));
    return D9DI_TYPED(t, T, reduce<add_squares, T>(s, "sum_squares", out, beta, x, n));
}

d9d_status d9d_k_sum(d9d_stream s, double *out, double beta, d9d_dtype t, const void *x, int64_t n)
{
    D9D_TRY(d9di_check_float("sum", t));
    return D9DI_TYPED(t, T, reduce<add_values, T>(s, "sum", out, beta, x, n));
}

d9d_status d9d_k_find_nonfinite(d9d_stream s, int64_t *out, d9d_dtype t, const void *x, int64_t n)
{
    D9D_TRY(d9di_check_float("find_nonfinite", t));
    return D9DI_TYPED(t, T, reduce<first_bad, T>(s, "find_nonfinite", out, 0.0, x, n));
}
