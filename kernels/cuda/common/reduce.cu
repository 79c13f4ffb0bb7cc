/* reduce.cu - float64 sums, and the search for NaN and infinity.
 *
 * An array is divided into at most PARTS parts, by its length only. A block reduces a part in a
 * fixed tree, and one block per array reduces the parts.
 */
#include "cuda/common/multi_tensor.cuh"

enum { PARTS = 2048, STEP = THREADS * 8, MIN_PART = 8 * STEP, MAX_ARRAYS = 128 };

/* Elements per part. */
static __host__ __device__ int64_t part_len(int64_t n)
{
    return d9di_i64_max(MIN_PART, d9di_i64_round_up(d9di_i64_ceil_div(n, PARTS), STEP));
}

/* A reduction: eight of them run through a part in parallel. */
struct add_values {
    typedef double value;
    static __device__ double identity() { return 0.0; }
    static __device__ double accumulate(double v, float x, int64_t) { return v + (double)x; }
    __device__ double operator()(double a, double b) const { return a + b; }
};
struct add_squares : add_values {
    static __device__ double accumulate(double v, float x, int64_t)
    {
        return fma((double)x, (double)x, v);
    }
};
struct first_nonfinite {
    typedef long long value;
    static __device__ value identity() { return INT64_MAX; }
    static __device__ value accumulate(value v, float x, int64_t i)
    {
        return isfinite(x) || v < i ? v : i;
    }
    __device__ value operator()(value a, value b) const { return a < b ? a : b; }
};

struct array_list {
    chunk_map<MAX_ARRAYS> chunks;
    d9d_sum_squares_array arrays[MAX_ARRAYS];
};

template <class F, class T>
static __global__ void part_kernel(typename F::value *part, const __grid_constant__ array_list list)
{
    const int tensor = list.chunks.tensor_of_block();
    const T *x = (const T *)list.arrays[tensor].x;
    const int64_t n = list.arrays[tensor].n, size = part_len(n);
    const int64_t first = list.chunks.chunk_begin(tensor, size),
                  end = d9di_i64_min(n, first + size);
    typename F::value v[8];
    F f;

    for (int j = 0; j < 8; j++)
        v[j] = F::identity();
#pragma unroll 4
    for (int64_t i = first + threadIdx.x * 8; i < end; i += STEP) {
        float e[8];

        load8(e, x + i, end - i); /* zeros beyond the end change nothing */
        for (int j = 0; j < 8; j++)
            v[j] = F::accumulate(v[j], e[j], i + j);
    }
    for (int o = 4; o > 0; o /= 2)
        for (int j = 0; j < o; j++)
            v[j] = f(v[j], v[j + o]);
    v[0] = group_reduce<THREADS>(v[0], f);
    if (threadIdx.x == 0)
        part[blockIdx.x] = v[0];
}

static __device__ void store_result(double *out, double beta, double v)
{
    *out = (beta != 0.0 ? *out : 0.0) + v;
}
static __device__ void store_result(int64_t *out, double, long long v)
{
    *out = v == INT64_MAX ? -1 : v;
}

/* One block per array. */
template <class F, class Y>
static __global__ void parts_fold_kernel(Y *out, double beta, const typename F::value *part,
                                         const __grid_constant__ chunk_map<MAX_ARRAYS> chunks)
{
    const int tensor = (int)blockIdx.x, end = chunks.chunk_end(tensor);
    typename F::value v = F::identity();
    F f;

    for (int i = chunks.first[tensor] + (int)threadIdx.x; i < end; i += THREADS)
        v = f(v, part[i]);
    v = group_reduce<THREADS>(v, f);
    if (threadIdx.x == 0)
        store_result(out + tensor, beta, v);
}

/* Reduces up to MAX_ARRAYS arrays. */
template <class F, class T, class Y>
static d9d_status reduce_batch(d9d_stream s, const char *op, Y *out, double beta,
                               const d9d_sum_squares_array *arrays, int64_t count)
{
    cudaStream_t stream = d9di_cuda_stream(s);
    array_list list = {};
    int64_t bytes;
    void *part;

    for (int64_t i = 0; i < count; i++) {
        list.arrays[i] = arrays[i];
        list.chunks.append_tensor(arrays[i].n, part_len(arrays[i].n));
    }
    bytes = (list.chunks.parts + 1) * (int64_t)sizeof(typename F::value);
    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &part));
    if (list.chunks.parts > 0)
        part_kernel<F, T>
            <<<(unsigned)list.chunks.parts, THREADS, 0, stream>>>((typename F::value *)part, list);
    parts_fold_kernel<F><<<(unsigned)count, THREADS, 0, stream>>>(
        out, beta, (const typename F::value *)part, list.chunks);
    d9di_cuda_scratch_free(s, part, bytes);
    return d9di_cuda_check_launch(op);
}

template <class F, class Y>
static d9d_status reduce_arrays(d9d_stream s, const char *op, Y *out, double beta, d9d_dtype t,
                                const d9d_sum_squares_array *array_list, int64_t count)
{
    D9D_TRY(d9di_args_check_float(op, t));
    for (int64_t i = 0; i < count; i += MAX_ARRAYS) {
        const int64_t n = d9di_i64_min(count - i, MAX_ARRAYS);

        D9D_TRY(
            D9DI_DISPATCH_DTYPE(t, T, reduce_batch<F, T>(s, op, out + i, beta, array_list + i, n)));
    }
    return D9D_OK;
}

d9d_status d9d_k_sum_squares(d9d_stream s, double *out, d9d_dtype t,
                             const d9d_sum_squares_array *array_list, int64_t count)
{
    return reduce_arrays<add_squares>(s, "sum_squares", out, 0.0, t, array_list, count);
}

/* One thread adds, in order, what the block has loaded. */
static __global__ void sum_ordered_kernel(double *out, const double *x, int64_t n)
{
    __shared__ double staged[THREADS];
    double sum = 0.0;

    for (int64_t first = 0; first < n; first += THREADS) {
        const int loaded = (int)d9di_i64_min(n - first, THREADS);

        if ((int)threadIdx.x < loaded)
            staged[threadIdx.x] = x[first + threadIdx.x];
        __syncthreads();
        for (int i = 0; threadIdx.x == 0 && i < loaded; i++)
            sum += staged[i];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        *out = sum;
}

d9d_status d9d_k_sum_ordered(d9d_stream s, double *out, const double *x, int64_t n)
{
    sum_ordered_kernel<<<1, THREADS, 0, d9di_cuda_stream(s)>>>(out, x, n);
    return d9di_cuda_check_launch("sum_ordered");
}

d9d_status d9d_k_sum(d9d_stream s, double *out, double beta, d9d_dtype t, const void *x, int64_t n)
{
    const d9d_sum_squares_array one = {x, n};

    return reduce_arrays<add_values>(s, "sum", out, beta, t, &one, 1);
}

d9d_status d9d_k_find_nonfinite(d9d_stream s, int64_t *out, d9d_dtype t, const void *x, int64_t n)
{
    const d9d_sum_squares_array one = {x, n};

    return reduce_arrays<first_nonfinite>(s, "find_nonfinite", out, 0.0, t, &one, 1);
}
