/* gather.c - y[i][j] = x[i][index[i][j]], and the gradient of x. */
#include "cpu/common.h"

static d9d_status check_index(const int32_t *index, int64_t m, int64_t n, int64_t k)
{
    for (int64_t i = 0; i < m * k; i++)
        if (index[i] >= n)
            return D9D_FAIL(D9D_EINVAL, "gather: index %d of row %lld, rows have %lld elements",
                            index[i], (long long)(i / k), (long long)n);
    return D9D_OK;
}

d9d_status d9d_ref_gather(d9d_stream s, d9d_dtype t, void *y, const void *x, const int32_t *index,
                          int64_t m, int64_t n, int64_t k)
{
    (void)s;
    D9D_TRY(d9di_args_check_float("gather", t));
    D9D_TRY(check_index(index, m, n, k));
    for (int64_t i = 0; i < m * k; i++) {
        float v = 0;

        if (index[i] >= 0)
            d9di_cpu_load(t, &v, x, i / k * n + index[i], 1);
        d9di_cpu_store(t, y, i, 1, &v);
    }
    return D9D_OK;
}

/* Row i of the gradient; sum [N] is scratch. */
static void row_scatter(d9d_dtype t, float *sum, void *dx, const void *dy, const int32_t *index,
                        int64_t i, int64_t n, int64_t k)
{
    memset(sum, 0, (size_t)n * sizeof(*sum));
    for (int64_t j = i * k; j < (i + 1) * k; j++) {
        float v;

        d9di_cpu_load(t, &v, dy, j, 1);
        if (index[j] >= 0)
            sum[index[j]] += v;
    }
    d9di_cpu_store(t, dx, i * n, n, sum);
}

d9d_status d9d_ref_gather_bwd(d9d_stream s, d9d_dtype t, void *dx, const void *dy,
                              const int32_t *index, int64_t m, int64_t n, int64_t k)
{
    float *sums;

    (void)s;
    D9D_TRY(d9di_args_check_float("gather_bwd", t));
    D9D_TRY(check_index(index, m, n, k));
    if ((sums = d9di_cpu_scratch_alloc_threads("gather_bwd", n)) == NULL)
        return D9D_ENOMEM;
#pragma omp parallel for if (m * n > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < m; i++)
        row_scatter(t, d9di_cpu_scratch_of_thread(sums, n), dx, dy, index, i, n, k);
    free(sums);
    return D9D_OK;
}
