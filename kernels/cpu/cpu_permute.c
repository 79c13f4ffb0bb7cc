/* cpu_permute.c - rows to expert order and back.  Row r of the permuted order is choice
 * source[r] % k of token source[r] / k; choice j of token t is row[t k + j]. */
#include "cpu_common.h"

d9d_status d9d_ref_permute(d9d_stream s, d9d_dtype t, void *y, const void *x, const int32_t *source,
                           int64_t rows, int64_t k, int64_t h)
{
    size_t bytes = (size_t)h * d9d_dtype_size(t);

    (void)s;
    D9D_TRY(d9di_check_float("permute", t));
#pragma omp parallel for if (rows * k * h > D9DI_SERIAL)
    for (int64_t r = 0; r < rows * k; r++)
        memcpy(d9di_at(t, y, r * h), d9di_cat(t, x, source[r] / k * h), bytes);
    return D9D_OK;
}

/* y[t] = sum over j ascending of w_j x[row(t, j)]; w NULL: all ones. */
static void gather_sum(d9d_dtype t, void *y, int64_t token, const void *x, const float *w,
                       const int32_t *row, int64_t k, int64_t h)
{
    for (int64_t at = 0; at < h; at += D9DI_BLOCK) {
        int64_t c = d9di_min(h - at, D9DI_BLOCK);
        float sum[D9DI_BLOCK] = {0}, buf[D9DI_BLOCK];

        for (int64_t j = 0; j < k; j++)
            d9di_row_axpy(sum, w == NULL ? 1.0f : w[j], d9di_in(t, x, row[j] * h + at, c, buf), c);
        d9di_store(t, y, token * h + at, c, sum);
    }
}

d9d_status d9d_ref_permute_din(d9d_stream s, d9d_dtype t, void *dx, const void *dy,
                               const int32_t *row, int64_t rows, int64_t k, int64_t h)
{
    (void)s;
    D9D_TRY(d9di_check_float("permute_din", t));
#pragma omp parallel for if (rows * k * h > D9DI_SERIAL)
    for (int64_t i = 0; i < rows; i++)
        gather_sum(t, dx, i, dy, NULL, row + i * k, k, h);
    return D9D_OK;
}

d9d_status d9d_ref_unpermute(d9d_stream s, d9d_dtype t, void *y, const void *x, const float *prob,
                             const int32_t *row, int64_t rows, int64_t k, int64_t h)
{
    (void)s;
    D9D_TRY(d9di_check_float("unpermute", t));
#pragma omp parallel for if (rows * k * h > D9DI_SERIAL)
    for (int64_t i = 0; i < rows; i++)
        gather_sum(t, y, i, x, prob + i * k, row + i * k, k, h);
    return D9D_OK;
}

/* dx[row(t, j)] = prob dy[t], dprob[t, j] = dy[t] . x[row(t, j)]. */
static float scatter(d9d_dtype t, void *dx, int64_t row, const void *dy, int64_t token,
                     const void *x, float prob, int64_t h)
{
    float dot = 0.0f;

    for (int64_t at = 0; at < h; at += D9DI_BLOCK) {
        int64_t c = d9di_min(h - at, D9DI_BLOCK);
        float bd[D9DI_BLOCK], bx[D9DI_BLOCK];
        const float *d = d9di_in(t, dy, token * h + at, c, bd);
        float *out = d9di_out(t, dx, row * h + at, bx);

        dot += d9di_row_dot(d, d9di_in(t, x, row * h + at, c, bx), c);
        d9di_row_scale(out, prob, d, c);
        d9di_put(t, dx, row * h + at, c, out);
    }
    return dot;
}

d9d_status d9d_ref_unpermute_din(d9d_stream s, d9d_dtype t, void *dx, float *dprob, const void *dy,
                                 const void *x, const float *prob, const int32_t *row, int64_t rows,
                                 int64_t k, int64_t h)
{
    (void)s;
    D9D_TRY(d9di_check_float("unpermute_din", t));
#pragma omp parallel for if (rows * k * h > D9DI_SERIAL)
    for (int64_t i = 0; i < rows * k; i++)
        dprob[i] = scatter(t, dx, row[i], dy, i / k, x, prob[i], h);
    return D9D_OK;
}
