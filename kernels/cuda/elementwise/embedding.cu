/* embedding.cu - embedding lookup, and its wgrad. */
#include "cuda/common/common.cuh"

/* Row of the table for an id, or -1 if this split lacks the id. */
static __device__ __forceinline__ int64_t table_row(int32_t id, int64_t first, int64_t v)
{
    const int64_t row = (int64_t)id - first;

    return row >= 0 && row < v ? row : -1;
}

template <class T>
static __global__ void embedding_kernel(T *y, const int32_t *ids, const T *table, int64_t rows,
                                        int64_t first, int64_t v, int64_t h, bool clear)
{
    const int64_t per_row = d9di_i64_ceil_div(h, 8);

    pdl_launch_dependents();
    pdl_wait();
    for (int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x; e < rows * per_row;
         e += (int64_t)gridDim.x * THREADS) {
        const int64_t i = e / per_row, at = e % per_row * 8, row = table_row(ids[i], first, v);
        float x[8] = {};

        if (row >= 0)
            load8(x, table + row * h + at, h - at);
        if (row >= 0 || clear)
            store8(y + i * h + at, x, h - at);
    }
}

template <class T>
static d9d_status launch_embedding(d9d_stream s, void *y, const int32_t *ids, const void *table,
                                   int64_t rows, int64_t first, int64_t v, int64_t h, bool clear)
{
    return pdl_launch(s, "embedding", embedding_kernel<T>,
                      grid_for(s, rows * d9di_i64_ceil_div(h, 8)), THREADS, (T *)y, ids,
                      (const T *)table, rows, first, v, h, clear);
}

d9d_status d9d_k_embedding(d9d_stream s, d9d_dtype t, void *y, const int32_t *ids,
                           const void *table, int64_t rows, int64_t first, int64_t v, int64_t h,
                           bool clear)
{
    D9D_TRY(d9di_args_check_float("embedding", t));
    if (rows * h == 0)
        return D9D_OK;
    return D9DI_DISPATCH_DTYPE(t, T,
                               launch_embedding<T>(s, y, ids, table, rows, first, v, h, clear));
}

/* --- gradient: tokens sorted by row, each row sums its own in order -------------------------
 *
 * Of a row with many tokens, as that of padding is, every CHUNK of the sorted tokens that are all
 * its is summed by a block first. */

enum { CHUNK = 32 };

/* Sort keys: table rows, and v for tokens of other splits. */
static __global__ void row_keys_kernel(int32_t *key, const int32_t *ids, int64_t rows,
                                       int64_t first, int64_t v)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < rows) {
        const int64_t row = table_row(ids[i], first, v);

        key[i] = (int32_t)(row >= 0 ? row : v);
    }
}

/* Eight columns of sorted tokens [first, end), added up. */
template <class T>
static __device__ __forceinline__ void add_tokens(float (&sum)[8], const int32_t *order,
                                                  int32_t first, int32_t end, const T *dy,
                                                  int64_t h, int64_t at)
{
    float v[8];

    for (int32_t i = first; i < end; i++) {
        load8(v, dy + order[i] * h + at, h - at);
        for (int j = 0; j < 8; j++)
            sum[j] += v[j];
    }
}

/* A block has a chunk: its sum, if the chunk is of one row of the table. */
template <class T>
static __global__ void chunk_kernel(float *chunks, const int32_t *key, const int32_t *order,
                                    const T *dy, int64_t v, int64_t h)
{
    const int32_t first = (int32_t)blockIdx.x * CHUNK, end = first + CHUNK;
    const int32_t row = key[order[first]];

    if (row == v || row != key[order[end - 1]])
        return;
    D9DI_ROW8 (at, h, THREADS) {
        float sum[8] = {};

        add_tokens(sum, order, first, end, dy, h, at);
        store8(chunks + blockIdx.x * h + at, sum, h - at);
    }
}

/* A block has a row of the table. */
template <class T, class G>
static __global__ void wgrad_kernel(G *dtable, float beta, const int32_t *order,
                                    const int32_t *start, const float *chunks, const T *dy,
                                    int64_t h)
{
    const int64_t r = blockIdx.x;
    const int32_t first = start[r], end = start[r + 1];
    const int32_t whole = (first + CHUNK - 1) / CHUNK; /* the first chunk, where there is one */
    const int32_t after = d9di_i64_max(whole, end / CHUNK);

    if (first == end && beta == 1.0f)
        return;
    D9DI_ROW8 (at, h, THREADS) {
        float sum[8] = {}, v[8];

        add_tokens(sum, order, first, d9di_i64_min(end, whole * CHUNK), dy, h, at);
        for (int32_t i = whole; i < after; i++) {
            load8(v, chunks + i * h + at, h - at);
            for (int j = 0; j < 8; j++)
                sum[j] += v[j];
        }
        add_tokens(sum, order, after * CHUNK, end, dy, h, at);
        if (beta != 0.0f) {
            load8(v, dtable + r * h + at, h - at);
            for (int j = 0; j < 8; j++)
                sum[j] += beta * v[j];
        }
        store8(dtable + r * h + at, sum, h - at);
    }
}

template <class T, class G>
static d9d_status launch_wgrad(d9d_stream s, void *dtable, float beta, const int32_t *ids,
                               const void *dy, int64_t rows, int64_t first, int64_t v, int64_t h)
{
    const int64_t chunks = rows / CHUNK, sums = d9di_i64_round_up(chunks * h * 4, 256);
    const int64_t bytes = sums + (2 * rows + v + 2) * (int64_t)sizeof(int32_t);
    cudaStream_t queue = d9di_cuda_stream(s);
    int32_t *key, *order, *start;
    void *scratch;
    d9d_status st;

    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &scratch));
    key = (int32_t *)((char *)scratch + sums);
    order = key + rows;
    start = order + rows;
    if (rows > 0)
        row_keys_kernel<<<(unsigned)d9di_i64_ceil_div(rows, THREADS), THREADS, 0, queue>>>(
            key, ids, rows, first, v);
    st = d9di_radix_sort(s, "embedding_wgrad", key, rows, v + 1, order, start);
    if (st == D9D_OK && chunks > 0)
        chunk_kernel<<<(unsigned)chunks, THREADS, 0, queue>>>((float *)scratch, key, order,
                                                              (const T *)dy, v, h);
    if (st == D9D_OK)
        wgrad_kernel<<<(unsigned)v, THREADS, 0, queue>>>((G *)dtable, beta, order, start,
                                                         (const float *)scratch, (const T *)dy, h);
    d9di_cuda_scratch_free(s, scratch, bytes);
    D9D_TRY(st);
    return d9di_cuda_check_launch("embedding_wgrad");
}

d9d_status d9d_k_embedding_wgrad(d9d_stream s, d9d_dtype t, d9d_dtype gt, void *dtable, float beta,
                                 const int32_t *ids, const void *dy, int64_t rows, int64_t first,
                                 int64_t v, int64_t h)
{
    D9D_TRY(d9di_args_check_float("embedding_wgrad", t));
    D9D_TRY(d9di_args_check_float("embedding_wgrad", gt));
    if (rows > INT32_MAX || v >= INT32_MAX)
        return D9D_FAIL(D9D_EINVAL, "embedding_wgrad: %lld tokens of %lld ids are over %d",
                        (long long)rows, (long long)v, INT32_MAX);
    if (v * h == 0)
        return D9D_OK;
    return D9DI_DISPATCH_DTYPE(
        t, T,
        D9DI_DISPATCH_DTYPE(gt, G,
                            launch_wgrad<T, G>(s, dtable, beta, ids, dy, rows, first, v, h)));
}
