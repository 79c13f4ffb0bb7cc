/* permute.c - MoE permute (dispatch) and unpermute (combine): choice j of token t is row[t k + j]
 * in expert order, -1 for none. */
#include "cpu/common.h"

static bool is_serial(const d9d_moe_permute_dims *n)
{
    return n->rows * n->k * n->h <= D9DI_MIN_PARALLEL;
}

d9d_status d9d_ref_permute(d9d_stream s, const d9d_moe_permute_dims *n, void *y, const void *x,
                           const int32_t *row)
{
    size_t bytes = (size_t)n->h * d9d_dtype_size(n->t);

    (void)s;
    D9D_TRY(d9di_args_check_float("permute", n->t));
#pragma omp parallel for if (!is_serial(n))
    for (int64_t i = 0; i < n->rows * n->k; i++)
        if (row[i] >= 0)
            memcpy(d9di_elem_at(n->t, y, row[i] * n->h), d9di_elem_cat(n->t, x, i / n->k * n->h),
                   bytes);
    return D9D_OK;
}

/* y[t] = sum over j ascending of w_j x[row(t, j)], plus[t]; w NULL: all ones. */
static void row_gather_sum(const d9d_moe_permute_dims *n, void *y, int64_t token, const void *x,
                           const float *w, const int32_t *row, const void *plus)
{
    for (int64_t at = 0; at < n->h; at += D9DI_BLOCK) {
        int64_t c = d9di_i64_min(n->h - at, D9DI_BLOCK);
        float sum[D9DI_BLOCK] = {0}, buf[D9DI_BLOCK];

        for (int64_t j = token * n->k; j < (token + 1) * n->k; j++)
            if (row[j] >= 0)
                d9di_cpu_row_axpy(sum, w == NULL ? 1.0f : w[j],
                                  d9di_cpu_read(n->t, x, row[j] * n->h + at, c, buf), c);
        if (plus != NULL)
            d9di_cpu_row_axpy(sum, 1.0f, d9di_cpu_read(n->t, plus, token * n->h + at, c, buf), c);
        d9di_cpu_store(n->t, y, token * n->h + at, c, sum);
    }
}

d9d_status d9d_ref_permute_bwd(d9d_stream s, const d9d_moe_permute_dims *n, void *dx,
                               const void *dy, const int32_t *row)
{
    (void)s;
    D9D_TRY(d9di_args_check_float("permute_bwd", n->t));
#pragma omp parallel for if (!is_serial(n))
    for (int64_t i = 0; i < n->rows; i++)
        row_gather_sum(n, dx, i, dy, NULL, row, NULL);
    return D9D_OK;
}

d9d_status d9d_ref_unpermute(d9d_stream s, const d9d_moe_permute_dims *n, void *y, const void *x,
                             const float *prob, const int32_t *row, const void *plus)
{
    (void)s;
    D9D_TRY(d9di_args_check_float("unpermute", n->t));
#pragma omp parallel for if (!is_serial(n))
    for (int64_t i = 0; i < n->rows; i++)
        row_gather_sum(n, y, i, x, prob, row, plus);
    return D9D_OK;
}

/* dx[row(t, j)] = prob dy[t], dprob[t, j] = dy[t] . x[row(t, j)]. */
static float row_scatter(d9d_dtype t, void *dx, int64_t row, const void *dy, int64_t token,
                         const void *x, float prob, int64_t h)
{
    float dot = 0.0f;

    for (int64_t at = 0; at < h; at += D9DI_BLOCK) {
        int64_t c = d9di_i64_min(h - at, D9DI_BLOCK);
        float bd[D9DI_BLOCK], bx[D9DI_BLOCK];
        const float *d = d9di_cpu_read(t, dy, token * h + at, c, bd);
        float *out = d9di_cpu_write_ptr(t, dx, row * h + at, bx);

        dot += d9di_cpu_row_dot(d, d9di_cpu_read(t, x, row * h + at, c, bx), c);
        d9di_cpu_row_scale(out, prob, d, c);
        d9di_cpu_write(t, dx, row * h + at, c, out);
    }
    return dot;
}

d9d_status d9d_ref_unpermute_bwd(d9d_stream s, const d9d_moe_permute_dims *n, void *dx,
                                 float *dprob, const void *dy, const void *x, const float *prob,
                                 const int32_t *row)
{
    (void)s;
    D9D_TRY(d9di_args_check_float("unpermute_bwd", n->t));
#pragma omp parallel for if (!is_serial(n))
    for (int64_t i = 0; i < n->rows * n->k; i++)
        dprob[i] =
            row[i] < 0 ? 0.0f : row_scatter(n->t, dx, row[i], dy, i / n->k, x, prob[i], n->h);
    return D9D_OK;
}
