/* copy_strided.c - some columns of an array beside those of others, for each head. */
#include "cpu/common.h"

d9d_status d9d_ref_columns(d9d_stream s, const d9d_columns_dims *n, void *y, const void *x)
{
    const size_t bytes = (size_t)n->n * d9d_dtype_size(n->t);

    (void)s;
    D9D_TRY(d9di_check_float("columns", n->t));
    if (n->n == 0)
        return D9D_OK;
#pragma omp parallel for if (n->m * n->heads * n->n > D9DI_SERIAL)
    for (int64_t i = 0; i < n->m; i++)
        for (int64_t h = 0; h < n->heads; h++)
            memcpy(d9di_at(n->t, y, (i * n->heads + h) * n->y + n->to),
                   d9di_cat(n->t, x, i * n->x + n->from), bytes);
    return D9D_OK;
}

/* One row of x: columns in blocks. */
static void sum_heads(const d9d_columns_dims *n, int64_t i, void *x, const void *y)
{
    float sum[D9DI_BLOCK], one[D9DI_BLOCK];

    for (int64_t j = 0; j < n->n; j += D9DI_BLOCK) {
        const int64_t some = d9di_min(D9DI_BLOCK, n->n - j);

        memset(sum, 0, (size_t)some * sizeof(*sum));
        for (int64_t h = 0; h < n->heads; h++)
            d9di_row_axpy(sum, 1.0f,
                          d9di_in(n->t, y, (i * n->heads + h) * n->y + n->to + j, some, one), some);
        d9di_store(n->t, x, i * n->x + n->from + j, some, sum);
    }
}

d9d_status d9d_ref_columns_din(d9d_stream s, const d9d_columns_dims *n, void *x, const void *y)
{
    (void)s;
    D9D_TRY(d9di_check_float("columns_din", n->t));
#pragma omp parallel for if (n->m * n->heads * n->n > D9DI_SERIAL)
    for (int64_t i = 0; i < n->m; i++)
        sum_heads(n, i, x, y);
    return D9D_OK;
}
