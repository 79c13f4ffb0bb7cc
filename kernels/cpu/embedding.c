/* embedding.c - embedding lookup, and its wgrad. */
#include "cpu/common.h"

/* Row of the table for an id, or -1 if this split lacks the id. */
static inline int64_t table_row(int32_t id, int64_t first, int64_t v)
{
    int64_t row = (int64_t)id - first;

    return row >= 0 && row < v ? row : -1;
}

d9d_status d9d_ref_embedding(d9d_stream s, d9d_dtype t, void *y, const int32_t *ids,
                             const void *table, int64_t rows, int64_t first, int64_t v, int64_t h,
                             bool clear)
{
    size_t bytes = (size_t)h * d9d_dtype_size(t);

    (void)s;
    D9D_TRY(d9di_args_check_float("embedding", t));
#pragma omp parallel for if (rows * h > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < rows; i++) {
        int64_t row = table_row(ids[i], first, v);

        if (row >= 0)
            memcpy(d9di_elem_at(t, y, i * h), d9di_elem_cat(t, table, row * h), bytes);
        else if (clear)
            memset(d9di_elem_at(t, y, i * h), 0, bytes);
    }
    return D9D_OK;
}

/* Tokens by table row: those of row r are order[start[r] .. start[r + 1]), ascending. */
static void sort_by_row(const int32_t *ids, int64_t rows, int64_t first, int64_t v, int64_t *start,
                        int64_t *order)
{
    for (int64_t i = 0; i < rows; i++) {
        int64_t row = table_row(ids[i], first, v);

        if (row >= 0)
            start[row + 1]++;
    }
    for (int64_t r = 0; r < v; r++)
        start[r + 1] += start[r];
    for (int64_t i = 0; i < rows; i++) {
        int64_t row = table_row(ids[i], first, v);

        if (row >= 0)
            order[start[row]++] = i;
    }
    /* Placing moved each start to the next one's place. */
    memmove(start + 1, start, (size_t)v * sizeof(*start));
    start[0] = 0;
}

/* One row of the gradient, in parts that fit the stack. */
static void row_wgrad(d9d_dtype t, d9d_dtype gt, void *dtable, float beta, int64_t row,
                      const void *dy, const int64_t *tokens, int64_t n, int64_t h)
{
    for (int64_t at = 0; at < h; at += D9DI_BLOCK) {
        int64_t c = d9di_i64_min(h - at, D9DI_BLOCK);
        float sum[D9DI_BLOCK] = {0}, buf[D9DI_BLOCK];

        for (int64_t i = 0; i < n; i++)
            d9di_cpu_row_axpy(sum, 1.0f, d9di_cpu_read(t, dy, tokens[i] * h + at, c, buf), c);
        d9di_cpu_store_add(gt, dtable, row * h + at, c, beta, sum);
    }
}

d9d_status d9d_ref_embedding_wgrad(d9d_stream s, d9d_dtype t, d9d_dtype gt, void *dtable,
                                   float beta, const int32_t *ids, const void *dy, int64_t rows,
                                   int64_t first, int64_t v, int64_t h)
{
    int64_t *start, *order;

    (void)s;
    D9D_TRY(d9di_args_check_float("embedding_wgrad", t));
    D9D_TRY(d9di_args_check_float("embedding_wgrad", gt));
    if ((start = calloc((size_t)(v + 1 + rows), sizeof(*start))) == NULL)
        return D9D_FAIL(D9D_ENOMEM, "embedding_wgrad: no memory to sort %lld tokens by %lld ids",
                        (long long)rows, (long long)v);
    order = start + v + 1;
    sort_by_row(ids, rows, first, v, start, order);
#pragma omp parallel for schedule(dynamic, 64) if (v * h > D9DI_MIN_PARALLEL)
    for (int64_t r = 0; r < v; r++) {
        int64_t n = start[r + 1] - start[r];

        if (n > 0)
            row_wgrad(t, gt, dtable, beta, r, dy, order + start[r], n, h);
        else if (beta == 0.0f)
            memset(d9di_elem_at(gt, dtable, r * h), 0, (size_t)h * d9d_dtype_size(gt));
    }
    free(start);
    return D9D_OK;
}
