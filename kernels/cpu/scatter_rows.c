/* scatter_rows.c - writes rows of an array to indexed rows of another (index_put). */
#include "cpu/common.h"

d9d_status d9d_ref_scatter_rows(d9d_stream s, d9d_dtype t, void *y, int64_t ld, int64_t first,
                                const int32_t *at, const void *x, int64_t m, int64_t n)
{
    (void)s;
    D9D_TRY(d9di_args_check_float("scatter_rows", t));
    if (n == 0)
        return D9D_OK;
#pragma omp parallel for if (m * n > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < m; i++) {
        const int64_t row = at != NULL ? at[i] : i;

        if (row >= 0)
            memcpy(d9di_elem_at(t, y, row * ld + first), d9di_elem_cat(t, x, i * n),
                   (size_t)n * d9d_dtype_size(t));
    }
    return D9D_OK;
}
