/* cuda_permute.cu - rows to expert order and back.  Row r of the permuted order is choice
 * source[r] % k of token source[r] / k; choice j of token t is row[t k + j]. */
#include "cuda_common.cuh"

template <class T>
static __global__ void permute_kernel(T *y, const T *x, const int32_t *source, int64_t rows,
                                      int64_t k, int64_t h)
{
    EACH_ROW8 (r, at, rows * k, h) {
        float v[8];

        load8(v, x + source[r] / k * h + at, h - at);
        store8(y + r * h + at, v, h - at);
    }
}

/* y[t] = sum over j ascending of w_j x[row(t, j)]; w NULL: all ones. */
template <class T>
static __global__ void gather_kernel(T *y, const T *x, const float *w, const int32_t *row,
                                     int64_t rows, int64_t k, int64_t h)
{
    EACH_ROW8 (r, at, rows, h) {
        float sum[8] = {}, v[8];

        for (int64_t c = r * k; c < (r + 1) * k; c++) {
            const float by = w == NULL ? 1.0f : w[c];

            load8(v, x + row[c] * h + at, h - at);
            for (int j = 0; j < 8; j++)
                sum[j] += by * v[j];
        }
        store8(y + r * h + at, sum, h - at);
    }
}

/* dx[row(t, j)] = prob dy[t], dprob[t, j] = dy[t] . x[row(t, j)]. */
template <class T, int G>
static __global__ void scatter_kernel(T *dx, float *dprob, const T *dy, const T *x,
                                      const float *prob, const int32_t *row, int64_t n, int64_t k,
                                      int64_t h)
{
    const int64_t i = row_mine<G>();
    int64_t to, from;
    float by, dot = 0.0f, d[8], v[8];

    if (i >= n)
        return;
    to = row[i] * h, from = i / k * h, by = prob[i];
    D9DI_ROW8 (c, h, G) {
        load8(d, dy + from + c, h - c);
        load8(v, x + to + c, h - c);
        for (int j = 0; j < 8; j++) {
            dot = fmaf(d[j], v[j], dot);
            d[j] *= by;
        }
        store8(dx + to + c, d, h - c);
    }
    dot = group_sum<G>(dot);
    if (threadIdx.x % G == 0)
        dprob[i] = dot;
}

template <class T>
static d9d_status permute(d9d_stream s, void *y, const void *x, const int32_t *source, int64_t rows,
                          int64_t k, int64_t h)
{
    permute_kernel<<<blocks_for(s, rows * k * d9di_ceil_div(h, 8)), THREADS, 0, d9di_queue(s)>>>(
        (T *)y, (const T *)x, source, rows, k, h);
    return d9di_launched("permute");
}

template <class T>
static d9d_status gather(d9d_stream s, const char *op, void *y, const void *x, const float *w,
                         const int32_t *row, int64_t rows, int64_t k, int64_t h)
{
    gather_kernel<<<blocks_for(s, rows * d9di_ceil_div(h, 8)), THREADS, 0, d9di_queue(s)>>>(
        (T *)y, (const T *)x, w, row, rows, k, h);
    return d9di_launched(op);
}

template <class T, int G>
static d9d_status scatter(d9d_stream s, void *dx, float *dprob, const void *dy, const void *x,
                          const float *prob, const int32_t *row, int64_t n, int64_t k, int64_t h)
{
    scatter_kernel<T, G><<<blocks_of_rows(n, G), THREADS, 0, d9di_queue(s)>>>(
        (T *)dx, dprob, (const T *)dy, (const T *)x, prob, row, n, k, h);
    return d9di_launched("unpermute_din");
}

d9d_status d9d_k_permute(d9d_stream s, d9d_dtype t, void *y, const void *x, const int32_t *source,
                         int64_t rows, int64_t k, int64_t h)
{
    D9D_TRY(d9di_check_float("permute", t));
    if (rows * k * h == 0)
        return D9D_OK;
    return D9DI_TYPED(t, T, permute<T>(s, y, x, source, rows, k, h));
}

d9d_status d9d_k_permute_din(d9d_stream s, d9d_dtype t, void *dx, const void *dy,
                             const int32_t *row, int64_t rows, int64_t k, int64_t h)
{
    D9D_TRY(d9di_check_float("permute_din", t));
    if (rows * h == 0)
        return D9D_OK;
    return D9DI_TYPED(t, T, gather<T>(s, "permute_din", dx, dy, NULL, row, rows, k, h));
}

d9d_status d9d_k_unpermute(d9d_stream s, d9d_dtype t, void *y, const void *x, const float *prob,
                           const int32_t *row, int64_t rows, int64_t k, int64_t h)
{
    D9D_TRY(d9di_check_float("unpermute", t));
    if (rows * h == 0)
        return D9D_OK;
    return D9DI_TYPED(t, T, gather<T>(s, "unpermute", y, x, prob, row, rows, k, h));
}

d9d_status d9d_k_unpermute_din(d9d_stream s, d9d_dtype t, void *dx, float *dprob, const void *dy,
                               const void *x, const float *prob, const int32_t *row, int64_t rows,
                               int64_t k, int64_t h)
{
    D9D_TRY(d9di_check_float("unpermute_din", t));
    if (rows * k == 0)
        return D9D_OK;
    return D9DI_TYPED(
        t, T, D9DI_BY_ROWS(h, G, scatter<T, G>(s, dx, dprob, dy, x, prob, row, rows * k, k, h)));
}
