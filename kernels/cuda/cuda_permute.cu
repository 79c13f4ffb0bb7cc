/* cuda_permute.cu - rows to expert order and back.  Row r of the permuted order is choice
 * source[r] % k of token source[r] / k; choice j of token t is row[t k + j], -1 for none. */
#include "cuda_common.cuh"

/* A warp has a row. */
template <class T>
static __global__ void permute_kernel(d9d_permute_dims n, T *__restrict__ y,
                                      const T *__restrict__ x, const int32_t *source)
{
    const int64_t r = row_mine<WARP>();
    const int32_t from = r < n.n ? source[r] : -1;

    if (from < 0)
        return;
    x += from / n.k * n.h;
    y += r * n.h;
#pragma unroll 4
    D9DI_ROW8 (i, n.h, WARP) {
        float v[8];

        load8(v, x + i, n.h - i);
        store8(y + i, v, n.h - i);
    }
}

/* y[t] = sum over j ascending of w_j x[row(t, j)]; w NULL: all ones.  A warp has a token. */
template <class T>
static __global__ void gather_kernel(d9d_permute_dims n, T *__restrict__ y, const T *__restrict__ x,
                                     const float *w, const int32_t *row)
{
    const int64_t t = row_mine<WARP>();

    if (t >= n.rows)
        return;
    row += t * n.k;
    w += w == NULL ? 0 : t * n.k;
    D9DI_ROW8 (i, n.h, WARP) {
        float sum[8] = {}, v[8];

#pragma unroll 8
        for (int64_t c = 0; c < n.k; c++) {
            const bool none = row[c] < 0;
            const float by = none ? 0.0f : w == NULL ? 1.0f : w[c];

            load8(v, x + (none ? 0 : row[c]) * n.h + i, none ? 0 : n.h - i);
            for (int j = 0; j < 8; j++)
                sum[j] += by * v[j];
        }
        store8(y + t * n.h + i, sum, n.h - i);
    }
}

/* dx[row(t, j)] = prob dy[t], dprob[t, j] = dy[t] . x[row(t, j)]; G threads have a choice. */
template <class T, int G>
static __global__ void scatter_kernel(d9d_permute_dims n, T *__restrict__ dx, float *dprob,
                                      const T *__restrict__ dy, const T *__restrict__ x,
                                      const float *prob, const int32_t *row)
{
    const int64_t i = row_mine<G>();
    int64_t to, from, h;
    float by, dot = 0.0f, d[8], v[8];

    if (i >= n.rows * n.k)
        return;
    to = row[i] * n.h, from = i / n.k * n.h, by = prob[i];
    h = row[i] < 0 ? 0 : n.h;
#pragma unroll 4
    D9DI_ROW8 (c, h, G) {
        load8(d, dy + from + c, n.h - c);
        load8(v, x + to + c, n.h - c);
        for (int j = 0; j < 8; j++) {
            dot = fmaf(d[j], v[j], dot);
            d[j] *= by;
        }
        store8(dx + to + c, d, n.h - c);
    }
    dot = group_sum<G>(dot);
    if (threadIdx.x % G == 0)
        dprob[i] = dot;
}

template <class T>
static d9d_status permute(d9d_stream s, const d9d_permute_dims *n, void *y, const void *x,
                          const int32_t *source)
{
    permute_kernel<<<blocks_of_rows(n->n, WARP), THREADS, 0, d9di_queue(s)>>>(*n, (T *)y,
                                                                              (const T *)x, source);
    return d9di_launched("permute");
}

template <class T>
static d9d_status gather(d9d_stream s, const char *op, const d9d_permute_dims *n, void *y,
                         const void *x, const float *w, const int32_t *row)
{
    gather_kernel<<<blocks_of_rows(n->rows, WARP), THREADS, 0, d9di_queue(s)>>>(
        *n, (T *)y, (const T *)x, w, row);
    return d9di_launched(op);
}

template <class T, int G>
static d9d_status scatter(d9d_stream s, const d9d_permute_dims *n, void *dx, float *dprob,
                          const void *dy, const void *x, const float *prob, const int32_t *row)
{
    scatter_kernel<T, G><<<blocks_of_rows(n->rows * n->k, G), THREADS, 0, d9di_queue(s)>>>(
        *n, (T *)dx, dprob, (const T *)dy, (const T *)x, prob, row);
    return d9di_launched("unpermute_din");
}

d9d_status d9d_k_permute(d9d_stream s, const d9d_permute_dims *n, void *y, const void *x,
                         const int32_t *source)
{
    D9D_TRY(d9di_check_float("permute", n->t));
    if (n->n * n->h == 0)
        return D9D_OK;
    return D9DI_TYPED(n->t, T, permute<T>(s, n, y, x, source));
}

d9d_status d9d_k_permute_din(d9d_stream s, const d9d_permute_dims *n, void *dx, const void *dy,
                             const int32_t *row)
{
    D9D_TRY(d9di_check_float("permute_din", n->t));
    if (n->rows * n->h == 0)
        return D9D_OK;
    return D9DI_TYPED(n->t, T, gather<T>(s, "permute_din", n, dx, dy, NULL, row));
}

d9d_status d9d_k_unpermute(d9d_stream s, const d9d_permute_dims *n, void *y, const void *x,
                           const float *prob, const int32_t *row)
{
    D9D_TRY(d9di_check_float("unpermute", n->t));
    if (n->rows * n->h == 0)
        return D9D_OK;
    return D9DI_TYPED(n->t, T, gather<T>(s, "unpermute", n, y, x, prob, row));
}

d9d_status d9d_k_unpermute_din(d9d_stream s, const d9d_permute_dims *n, void *dx, float *dprob,
                               const void *dy, const void *x, const float *prob, const int32_t *row)
{
    D9D_TRY(d9di_check_float("unpermute_din", n->t));
    if (n->rows * n->k == 0)
        return D9D_OK;
    return D9DI_TYPED(n->t, T,
                      n->h <= HEAD_ROW ? scatter<T, WARP / 2>(s, n, dx, dprob, dy, x, prob, row)
                                       : scatter<T, WARP>(s, n, dx, dprob, dy, x, prob, row));
}
