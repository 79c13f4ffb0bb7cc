/* add_bias.cu - y[r] = x[r] + b[e] for the rows of each expert, and the gradient of b. */
#include "cuda/common/common.cuh"

/* --- forward ------------------------------------------------------------------------------- */

/* Binary search: the expert whose rows have r; e if none has. */
static __device__ __forceinline__ int64_t expert_of(const int32_t *offset, int64_t e, int64_t r)
{
    int64_t low = 0, high = e; /* offset[low] <= r, if any is */

    if (offset == NULL)
        return 0;
    while (low + 1 < high) {
        const int64_t mid = (low + high) / 2;

        if (offset[mid] <= r)
            low = mid;
        else
            high = mid;
    }
    return low < e && offset[low] <= r && r < offset[low + 1] ? low : e;
}

template <class T>
static __global__ void add_bias_kernel(T *y, const T *x, const T *b, const int32_t *offset,
                                       int64_t m, int64_t e, int64_t n)
{
    pdl_launch_dependents();
    pdl_wait();
    EACH_ROW8 (r, j, m, n) {
        const int64_t expert = expert_of(offset, e, r);
        float v[8], add[8];

        if (expert == e)
            continue;
        load8(v, x + r * n + j, n - j);
        load8(add, b + expert * n + j, n - j);
        for (int i = 0; i < 8; i++)
            v[i] += add[i];
        store8(y + r * n + j, v, n - j);
    }
}

template <class T>
static d9d_status launch_add(d9d_stream s, void *y, const void *x, const void *b,
                             const int32_t *offset, int64_t m, int64_t e, int64_t n)
{
    const int64_t eights = m * d9di_i64_ceil_div(n, 8);

    if (eights == 0 || e == 0)
        return D9D_OK;
    return pdl_launch(s, "add_bias", add_bias_kernel<T>, grid_for(s, eights), THREADS, (T *)y,
                      (const T *)x, (const T *)b, offset, m, e, n);
}

d9d_status d9d_k_add_bias(d9d_stream s, d9d_dtype t, void *y, const void *x, const void *b,
                          const int32_t *offset, int64_t m, int64_t e, int64_t n)
{
    D9D_TRY(d9di_args_check_float("add_bias", t));
    return D9DI_DISPATCH_DTYPE(t, T, launch_add<T>(s, y, x, b, offset, m, e, n));
}

/* --- backward: a block has COLUMNS columns of an expert -------------------------------------- */

enum { COLUMNS = 64, ROW_LANES = THREADS / (COLUMNS / 8) };

/* A thread sums eight columns of every ROW_LANES-th row; then the lanes are added in one order. */
template <class T, class G>
static __global__ void __launch_bounds__(THREADS)
    bias_wgrad_kernel(G *db, float beta, const T *dy, const int32_t *offset, int64_t rows,
                      int64_t n)
{
    __shared__ float part[ROW_LANES][COLUMNS];
    const int64_t e = blockIdx.y,
                  first = offset == NULL ? 0 : d9di_i64_max(0, d9di_i64_min(rows, offset[e])),
                  end = offset == NULL ? rows : d9di_i64_min(rows, offset[e + 1]);
    const int at = threadIdx.x % (COLUMNS / 8) * 8, lane = threadIdx.x / (COLUMNS / 8);
    const int64_t column = (int64_t)blockIdx.x * COLUMNS + at;
    float sum[8] = {}, v[8];

    for (int64_t r = first + lane; r < end && column < n; r += ROW_LANES) {
        load8(v, dy + r * n + column, n - column);
        for (int i = 0; i < 8; i++)
            sum[i] += v[i];
    }
    for (int i = 0; i < 8; i++)
        part[lane][at + i] = sum[i];
    __syncthreads();
    for (int c = threadIdx.x; c < COLUMNS; c += THREADS) {
        const int64_t to = e * n + (int64_t)blockIdx.x * COLUMNS + c;
        float all = 0.0f;

        if ((int64_t)blockIdx.x * COLUMNS + c >= n)
            break;
        for (int l = 0; l < ROW_LANES; l++)
            all += part[l][c];
        store_float(db + to, beta == 0.0f ? all : beta * to_float(db[to]) + all);
    }
}

template <class T, class G>
static d9d_status launch_wgrad(d9d_stream s, void *db, float beta, const void *dy,
                               const int32_t *offset, int64_t rows, int64_t e, int64_t n)
{
    const dim3 grid((unsigned)d9di_i64_ceil_div(n, COLUMNS), (unsigned)e);

    bias_wgrad_kernel<T, G>
        <<<grid, THREADS, 0, d9di_cuda_stream(s)>>>((G *)db, beta, (const T *)dy, offset, rows, n);
    return d9di_cuda_check_launch("grouped_bias_wgrad");
}

d9d_status d9d_k_grouped_bias_wgrad(d9d_stream s, d9d_dtype t, d9d_dtype gt, void *db, float beta,
                                    const void *dy, const int32_t *offset, int64_t rows, int64_t e,
                                    int64_t n)
{
    D9D_TRY(d9di_args_check_float("grouped_bias_wgrad", t));
    D9D_TRY(d9di_args_check_float("grouped_bias_wgrad", gt));
    if (e == 0 || n == 0)
        return D9D_OK;
    return D9DI_DISPATCH_DTYPE(
        t, T,
        D9DI_DISPATCH_DTYPE(gt, G, (launch_wgrad<T, G>(s, db, beta, dy, offset, rows, e, n))));
}
