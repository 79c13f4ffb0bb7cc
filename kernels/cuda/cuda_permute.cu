/* cuda_permute.cu - rows to expert order and back: choice j of token t is row[t k + j] there, -1
 * for none.  G threads have a token, whose own row is touched once. */
#include "cuda_common.cuh"

template <class T, int G>
static __global__ void permute_kernel(d9d_permute_dims n, T *__restrict__ y,
                                      const T *__restrict__ x, const int32_t *__restrict__ row)
{
    const int64_t t = row_mine<G>();

    if (t >= n.rows)
        return;
    row += t * n.k;
    D9DI_ROW8 (i, n.h, G) {
        float v[8];

        load8(v, x + t * n.h + i, n.h - i);
#pragma unroll 8
        for (int64_t c = 0; c < n.k; c++)
            if (row[c] >= 0 && row[c] < n.n)
                store8(y + row[c] * n.h + i, v, n.h - i);
    }
}

/* Eights at `i` of the rows of choices [c, c + CHOICES) of a token, all on their way at once; zeros
 * for what is not there. */
enum { CHOICES = 8 };
template <class T>
static __device__ __forceinline__ void fetch_choices(raw8<T> (&to)[CHOICES], const T *x,
                                                     const int32_t *row, int64_t c, int64_t i,
                                                     const d9d_permute_dims &n)
{
#pragma unroll
    for (int j = 0; j < CHOICES; j++) {
        const int64_t r = c + j < n.k ? row[c + j] : -1;

        fetch8(to[j], x + r * n.h + i, r < 0 ? 0 : n.h - i);
    }
}

/* y[t] = sum over j ascending of w_j x[row(t, j)]; w NULL: all ones. */
template <class T, int G>
static __global__ void gather_kernel(d9d_permute_dims n, T *__restrict__ y, const T *__restrict__ x,
                                     const float *__restrict__ w, const int32_t *__restrict__ row)
{
    const int64_t t = row_mine<G>();

    if (t >= n.rows)
        return;
    row += t * n.k;
    w += w == NULL ? 0 : t * n.k;
    D9DI_ROW8 (i, n.h, G) {
        float sum[8] = {}, v[8];

        for (int64_t c = 0; c < n.k; c += CHOICES) {
            raw8<T> some[CHOICES];

            fetch_choices(some, x, row, c, i, n);
#pragma unroll
            for (int k = 0; k < CHOICES; k++) {
                const float by =
                    c + k < n.k && row[c + k] >= 0 ? w == NULL ? 1.0f : w[c + k] : 0.0f;

                unpack8(v, some[k]);
                for (int j = 0; j < 8; j++)
                    sum[j] += by * v[j];
            }
        }
        store8(y + t * n.h + i, sum, n.h - i);
    }
}

/* Each of the sums of a token's threads, to to[0 .. n): within warps, then over them. */
template <int G>
static __device__ __forceinline__ void sums_store(float *to, const float (&v)[CHOICES], int64_t n)
{
    constexpr int PARTS = G > WARP ? G / WARP : 1;
    __shared__ float part[THREADS / G][PARTS][CHOICES];
    const int group = threadIdx.x / G, at = threadIdx.x % G;

    __syncthreads(); /* the last ones have been read */
#pragma unroll
    for (int c = 0; c < CHOICES; c++) {
        const float sum = group_sum<(G < WARP ? G : WARP)>(v[c]);

        if (at % WARP == 0)
            part[group][at / WARP][c] = sum;
    }
    __syncthreads();
    if (at < CHOICES && at < n) {
        float sum = part[group][0][at];

        for (int p = 1; p < PARTS; p++)
            sum += part[group][p][at];
        to[at] = sum;
    }
}

/* dx[row(t, j)] = prob dy[t], dprob[t, j] = dy[t] . x[row(t, j)]. */
template <class T, int G>
static __global__ void scatter_kernel(d9d_permute_dims n, T *__restrict__ dx, float *dprob,
                                      const T *__restrict__ dy, const T *__restrict__ x,
                                      const float *__restrict__ prob,
                                      const int32_t *__restrict__ row)
{
    const int64_t t = row_mine<G>(), h = t < n.rows ? n.h : 0; /* all threads meet in the sums */
    const int64_t at = h > 0 ? t * n.k : 0;

    for (int64_t c = 0; c < n.k; c += CHOICES) {
        float dot[CHOICES] = {}, d[8], v[8];

        D9DI_ROW8 (i, h, G) {
            raw8<T> some[CHOICES];

            load8(d, dy + t * n.h + i, n.h - i);
            fetch_choices(some, x, row + at, c, i, n);
#pragma unroll
            for (int k = 0; k < CHOICES; k++) {
                const int64_t to = c + k < n.k ? row[at + c + k] : -1;

                if (to < 0)
                    continue;
                unpack8(v, some[k]);
                for (int j = 0; j < 8; j++) {
                    dot[k] = fmaf(d[j], v[j], dot[k]);
                    v[j] = d[j] * prob[at + c + k];
                }
                store8(dx + to * n.h + i, v, n.h - i);
            }
        }
        sums_store<G>(dprob + at + c, dot, t < n.rows ? n.k - c : 0);
    }
}

template <class T>
static d9d_status permute(d9d_stream s, const d9d_permute_dims *n, void *y, const void *x,
                          const int32_t *row)
{
    D9DI_BY_ROWS(n->h, G,
                 permute_kernel<T, G><<<blocks_of_rows(n->rows, G), THREADS, 0, d9di_queue(s)>>>(
                     *n, (T *)y, (const T *)x, row));
    return d9di_launched("permute");
}

template <class T>
static d9d_status gather(d9d_stream s, const char *op, const d9d_permute_dims *n, void *y,
                         const void *x, const float *w, const int32_t *row)
{
    D9DI_BY_ROWS(n->h, G,
                 gather_kernel<T, G><<<blocks_of_rows(n->rows, G), THREADS, 0, d9di_queue(s)>>>(
                     *n, (T *)y, (const T *)x, w, row));
    return d9di_launched(op);
}

template <class T, int G>
static d9d_status scatter(d9d_stream s, const d9d_permute_dims *n, void *dx, float *dprob,
                          const void *dy, const void *x, const float *prob, const int32_t *row)
{
    scatter_kernel<T, G><<<blocks_of_rows(n->rows, G), THREADS, 0, d9di_queue(s)>>>(
        *n, (T *)dx, dprob, (const T *)dy, (const T *)x, prob, row);
    return d9di_launched("unpermute_din");
}

d9d_status d9d_k_permute(d9d_stream s, const d9d_permute_dims *n, void *y, const void *x,
                         const int32_t *row)
{
    D9D_TRY(d9di_check_float("permute", n->t));
    if (n->rows * n->h == 0)
        return D9D_OK;
    return D9DI_TYPED(n->t, T, permute<T>(s, n, y, x, row));
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
                      D9DI_BY_ROWS(n->h, G, scatter<T, G>(s, n, dx, dprob, dy, x, prob, row)));
}
