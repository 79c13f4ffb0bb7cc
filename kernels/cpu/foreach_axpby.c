/* foreach_axpby.c - y = alpha x + beta y, for each matrix of a list. */
#include "cpu/common.h"

static void row_axpby(d9d_dtype yt, d9d_dtype xt, const d9d_foreach_matrix *a, int64_t i)
{
    float x[D9DI_BLOCK], scaled[D9DI_BLOCK];

    for (int64_t j = 0; j < a->n; j += D9DI_BLOCK) {
        const int64_t some = d9di_i64_min(D9DI_BLOCK, a->n - j);

        d9di_cpu_row_scale(scaled, a->alpha,
                           d9di_cpu_read(xt, a->x, i * a->x_ld + a->x_first + j, some, x), some);
        d9di_cpu_store_add(yt, a->y, i * a->y_ld + a->y_first + j, some, a->beta, scaled);
    }
}

d9d_status d9d_ref_foreach_axpby(d9d_stream s, d9d_dtype yt, d9d_dtype xt,
                                 const d9d_foreach_matrix *list, int count)
{
    (void)s;
    D9D_TRY(d9di_args_check_float("foreach_axpby", yt));
    D9D_TRY(d9di_args_check_float("foreach_axpby", xt));
    D9D_TRY(d9di_args_check_foreach(count));
    for (int k = 0; k < count; k++) {
#pragma omp parallel for if (list[k].m * list[k].n > D9DI_MIN_PARALLEL)
        for (int64_t i = 0; i < list[k].m; i++)
            row_axpby(yt, xt, &list[k], i);
    }
    return D9D_OK;
}
