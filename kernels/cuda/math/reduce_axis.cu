/* reduce_axis.cu - sum, mean, maximum and logsumexp along an axis or over segments of rows, and
 * their gradients. See d9d_reduce_axis_dims.
 *
 * A block has groups of lanes by columns: the lanes of a column read its rows in turn and are
 * folded in a fixed tree. The layout depends on sizes alone:
 *
 *     thread = (group * lanes + lane) * columns + column
 */
#include "cuda/common/common.cuh"

/* What is folded: sum, and maximum. TIES counts the elements that equal y. */
enum { TIES = D9D_N_REDUCE_KINDS };
struct partial {
    float sum, max;
};

struct reduce_args {
    float *y;
    const void *x;
    const float *ref;      /* of TIES: y */
    const int32_t *offset; /* NULL: rows as below */
    int64_t m, r, n;       /* as in d9d_reduce_axis_dims */
    int64_t parts, part_rows;
    float factor; /* of a sum */
    int lanes, columns, groups;
};

/* Rows of x that result i, of m times parts, is of. */
static __device__ __forceinline__ void rows_of(const reduce_args &p, int64_t i, int64_t &first,
                                               int64_t &end)
{
    if (p.offset != NULL) {
        first = d9di_i64_max(0, d9di_i64_min(p.r, p.offset[i]));
        end = d9di_i64_max(first, d9di_i64_min(p.r, p.offset[i + 1]));
        return;
    }
    first = i / p.parts * p.r + i % p.parts * p.part_rows;
    end = d9di_i64_min(first + p.part_rows, (i / p.parts + 1) * p.r);
}

/* NaN is larger than any number. */
static __device__ __forceinline__ float larger(float a, float b)
{
    return a > b || a != a ? a : b;
}

/* exp(x - max) of a running maximum; 1 where both are the same infinity. */
static __device__ __forceinline__ float exp_less(float x, float max)
{
    return x == max ? 1.0f : expf(x - max);
}

template <int KIND> static __device__ __forceinline__ partial empty(void)
{
    return {0.0f, -INFINITY};
}
template <int KIND> static __device__ __forceinline__ partial fold(partial a, partial b)
{
    const float max = larger(a.max, b.max);

    if (KIND == D9D_REDUCE_MAX)
        return {0.0f, max};
    if (KIND != D9D_REDUCE_LOGSUMEXP)
        return {a.sum + b.sum, 0.0f};
    return {(a.sum > 0.0f ? a.sum * exp_less(a.max, max) : 0.0f) +
                (b.sum > 0.0f ? b.sum * exp_less(b.max, max) : 0.0f),
            max};
}
template <int KIND> static __device__ __forceinline__ partial of_element(float x, float ref)
{
    return {KIND == TIES ? (x == ref ? 1.0f : 0.0f) : KIND == D9D_REDUCE_LOGSUMEXP ? 1.0f : x, x};
}
template <int KIND>
static __device__ __forceinline__ float result_of(partial v, int64_t rows, float factor)
{
    if (KIND == D9D_REDUCE_MAX)
        return v.max;
    if (KIND == D9D_REDUCE_LOGSUMEXP)
        return isinf(v.max) ? v.max : v.max + logf(v.sum);
    if (KIND == D9D_REDUCE_MEAN)
        return rows > 0 ? v.sum / (float)rows : 0.0f;
    return v.sum * factor;
}

/* A work item is `groups` results by `columns` columns. */
template <int KIND, class T>
static __global__ void __launch_bounds__(THREADS) reduce_kernel(reduce_args p)
{
    __shared__ partial all[THREADS];
    const int column = threadIdx.x % p.columns, lane = threadIdx.x / p.columns % p.lanes,
              group = threadIdx.x / p.columns / p.lanes;
    const int64_t results = p.m * p.parts, across = d9di_i64_ceil_div(p.n, p.columns),
                  items = d9di_i64_ceil_div(results, p.groups) * across;
    const T *x = (const T *)p.x;

    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        const int64_t i = item / across * p.groups + group, j = item % across * p.columns + column;
        const bool in_range = i < results && j < p.n;
        const float ref = KIND == TIES && in_range ? p.ref[i / p.parts * p.n + j] : 0.0f;
        int64_t first = 0, end = 0;
        partial v = empty<KIND>();

        if (in_range)
            rows_of(p, i, first, end);
        for (int64_t r = first + lane; r < end; r += p.lanes)
            v = fold<KIND>(v, of_element<KIND>(to_float(x[r * p.n + j]), ref));
        __syncthreads(); /* the last item has been read */
        all[threadIdx.x] = v;
        for (int o = p.lanes / 2; o > 0; o /= 2) {
            __syncthreads();
            if (lane < o)
                all[threadIdx.x] = fold<KIND>(all[threadIdx.x], all[threadIdx.x + o * p.columns]);
        }
        if (lane == 0 && in_range)
            p.y[i * p.n + j] = result_of<KIND>(all[threadIdx.x], end - first, p.factor);
    }
}

/* The least power of two that is at least n, at most `limit`. */
static int power_of_two(int64_t n, int limit)
{
    int p = 1;

    while (p < n && p < limit)
        p *= 2;
    return p;
}

template <int KIND, class T> static d9d_status launch_reduce(d9d_stream s, reduce_args p)
{
    enum { COLUMNS = 64 };
    int64_t items;

    p.columns = power_of_two(p.n, COLUMNS);
    p.lanes = power_of_two(p.offset != NULL ? p.r / d9di_i64_max(1, p.m) : p.part_rows,
                           THREADS / p.columns);
    p.groups = THREADS / p.columns / p.lanes;
    items = d9di_i64_ceil_div(p.m * p.parts, p.groups) * d9di_i64_ceil_div(p.n, p.columns);
    if (items == 0)
        return D9D_OK;
    reduce_kernel<KIND, T>
        <<<(unsigned)d9di_i64_min(items, 1 << 20), THREADS, 0, d9di_cuda_stream(s)>>>(p);
    return d9di_cuda_check_launch("reduce_axis");
}

/* A kernel of kind A, of partial results too; the results of several parts are reduced as sums or
 * as A. */
template <int KIND, class T> static d9d_status run_parts(d9d_stream s, reduce_args p)
{
    constexpr int SUM = D9D_REDUCE_SUM, OF_PARTS = KIND == D9D_REDUCE_MEAN ? SUM : KIND,
                  OVER_PARTS = KIND == TIES || KIND == D9D_REDUCE_MEAN ? SUM : KIND;
    const int64_t bytes = p.m * p.parts * p.n * 4;
    reduce_args of = p, over = p;
    void *part;
    d9d_status st;

    if (p.parts == 1)
        return launch_reduce<KIND, T>(s, p);
    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &part));
    of.y = (float *)part;
    over.x = part;
    over.r = over.part_rows = p.parts;
    over.parts = 1;
    over.factor = KIND == D9D_REDUCE_MEAN ? 1.0f / (float)p.r : 1.0f;
    st = launch_reduce<OF_PARTS, T>(s, of);
    if (st == D9D_OK)
        st = launch_reduce<OVER_PARTS, float>(s, over);
    d9di_cuda_scratch_free(s, part, bytes);
    return st;
}

template <class T> static d9d_status run_kind(d9d_stream s, int kind, const reduce_args &p)
{
    switch (kind) {
    case D9D_REDUCE_SUM: return run_parts<D9D_REDUCE_SUM, T>(s, p);
    case D9D_REDUCE_MEAN: return run_parts<D9D_REDUCE_MEAN, T>(s, p);
    case D9D_REDUCE_MAX: return run_parts<D9D_REDUCE_MAX, T>(s, p);
    case TIES: return run_parts<TIES, T>(s, p);
    default: return run_parts<D9D_REDUCE_LOGSUMEXP, T>(s, p);
    }
}

static d9d_status reduce(d9d_stream s, int kind, const d9d_reduce_axis_dims *d, float *y,
                         const void *x, const float *ref)
{
    const d9di_reduce_parts parts = d9di_reduce_parts_of(d);
    const reduce_args p = {y,           x,          ref,  d->offset, d->m, d->r, d->n,
                           parts.parts, parts.rows, 1.0f, 0,         0,    0};

    return D9DI_DISPATCH_DTYPE(d->t, T, run_kind<T>(s, kind, p));
}

d9d_status d9d_k_reduce_axis(d9d_stream s, const d9d_reduce_axis_dims *d, float *y, const void *x)
{
    D9D_TRY(d9di_args_check_reduce_axis("reduce_axis", d));
    return reduce(s, d->kind, d, y, x, NULL);
}

/* --- gradients ------------------------------------------------------------------------------- */

struct bwd_args {
    void *dx;
    const float *dy, *y, *ties;
    const void *x;
    const int32_t *offset;
    int64_t m, r, n, rows; /* rows of x */
};

/* Binary search: the result of row r of x; -1 if none has it. */
static __device__ __forceinline__ int64_t result_of_row(const bwd_args &p, int64_t r)
{
    int64_t low = 0, high = p.m;

    if (p.offset == NULL)
        return r / p.r;
    while (low + 1 < high) {
        const int64_t mid = (low + high) / 2;

        if (p.offset[mid] <= r)
            low = mid;
        else
            high = mid;
    }
    return p.m > 0 && p.offset[low] <= r && r < p.offset[low + 1] ? low : -1;
}

template <int KIND, class T>
static __device__ __forceinline__ float grad_of(const bwd_args &p, int64_t i, int64_t r, int64_t j)
{
    const int64_t at = i * p.n + j;
    const float dy = p.dy[at];

    if (KIND == D9D_REDUCE_SUM)
        return dy;
    if (KIND == D9D_REDUCE_MEAN)
        return dy / (float)(p.offset == NULL ? p.r : p.offset[i + 1] - p.offset[i]);
    if (KIND == D9D_REDUCE_LOGSUMEXP)
        return dy * expf(to_float(((const T *)p.x)[r * p.n + j]) - p.y[at]);
    return to_float(((const T *)p.x)[r * p.n + j]) == p.y[at] ? dy / p.ties[at] : 0.0f;
}

template <int KIND, class T> static __global__ void bwd_kernel(bwd_args p)
{
    const int64_t n = p.rows * p.n;

    for (int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x; e < n;
         e += (int64_t)gridDim.x * THREADS) {
        const int64_t r = e / p.n, i = result_of_row(p, r);

        store_float((T *)p.dx + e, i < 0 ? 0.0f : grad_of<KIND, T>(p, i, r, e % p.n));
    }
}

template <int KIND, class T> static d9d_status launch_bwd(d9d_stream s, const bwd_args &p)
{
    if (p.rows * p.n == 0)
        return D9D_OK;
    bwd_kernel<KIND, T><<<grid_for(s, p.rows * p.n), THREADS, 0, d9di_cuda_stream(s)>>>(p);
    return d9di_cuda_check_launch("reduce_axis_bwd");
}

template <class T> static d9d_status run_bwd(d9d_stream s, d9d_reduce_kind kind, const bwd_args &p)
{
    switch (kind) {
    case D9D_REDUCE_SUM: return launch_bwd<D9D_REDUCE_SUM, T>(s, p);
    case D9D_REDUCE_MEAN: return launch_bwd<D9D_REDUCE_MEAN, T>(s, p);
    case D9D_REDUCE_MAX: return launch_bwd<D9D_REDUCE_MAX, T>(s, p);
    default: return launch_bwd<D9D_REDUCE_LOGSUMEXP, T>(s, p);
    }
}

d9d_status d9d_k_reduce_axis_bwd(d9d_stream s, const d9d_reduce_axis_dims *d, void *dx,
                                 const float *dy, const void *x, const float *y)
{
    const int64_t bytes = d->m * d->n * 4;
    bwd_args p = {dx,        dy,   y,    NULL, x,
                  d->offset, d->m, d->r, d->n, d->offset != NULL ? d->r : d->m * d->r};
    void *ties = NULL;
    d9d_status st = D9D_OK;

    D9D_TRY(d9di_args_check_reduce_axis("reduce_axis_bwd", d));
    if (d->kind == D9D_REDUCE_MAX) {
        D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &ties));
        st = reduce(s, TIES, d, (float *)ties, x, y);
        p.ties = (const float *)ties;
    }
    if (st == D9D_OK)
        st = D9DI_DISPATCH_DTYPE(d->t, T, run_bwd<T>(s, d->kind, p));
    if (ties != NULL)
        d9di_cuda_scratch_free(s, ties, bytes);
    return st;
}
