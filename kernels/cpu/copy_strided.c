/* copy_strided.c - copies some columns of an array into columns of another, repeated for each head.
 */
#include "cpu/common.h"

d9d_status d9d_ref_copy_strided(d9d_stream s, const d9d_copy_strided_dims *n, void *y,
                                const void *x)
{
    const size_t bytes = (size_t)n->n * d9d_dtype_size(n->t);

    (void)s;
    D9D_TRY(d9di_args_check_float("copy_strided", n->t));
    if (n->n == 0)
        return D9D_OK;
#pragma omp parallel for if (n->m * n->heads * n->n > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < n->m; i++)
        for (int64_t h = 0; h < n->heads; h++)
            memcpy(d9di_elem_at(n->t, y, (i * n->heads + h) * n->y_cols + n->y_first),
                   d9di_elem_cat(n->t, x, i * n->x_cols + n->x_first), bytes);
    return D9D_OK;
}

/* One row of x: sums over heads, in blocks of columns. */
static void row_sum_heads(const d9d_copy_strided_dims *n, int64_t i, void *x, const void *y)
{
    float sum[D9DI_BLOCK], one[D9DI_BLOCK];

    for (int64_t j = 0; j < n->n; j += D9DI_BLOCK) {
        const int64_t some = d9di_i64_min(D9DI_BLOCK, n->n - j);

        memset(sum, 0, (size_t)some * sizeof(*sum));
        for (int64_t h = 0; h < n->heads; h++)
            d9di_cpu_row_axpy(
                sum, 1.0f,
                d9di_cpu_read(n->t, y, (i * n->heads + h) * n->y_cols + n->y_first + j, some, one),
                some);
        d9di_cpu_store(n->t, x, i * n->x_cols + n->x_first + j, some, sum);
    }
}

d9d_status d9d_ref_copy_strided_bwd(d9d_stream s, const d9d_copy_strided_dims *n, void *x,
                                    const void *y)
{
    (void)s;
    D9D_TRY(d9di_args_check_float("copy_strided_bwd", n->t));
#pragma omp parallel for if (n->m * n->heads * n->n > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < n->m; i++)
        row_sum_heads(n, i, x, y);
    return D9D_OK;
}
