/* cast.c - change of element type, rounding to nearest even. */
#include "cpu/common.h"

d9d_status d9d_ref_cast(d9d_stream s, d9d_dtype yt, void *y, d9d_dtype xt, const void *x, int64_t n)
{
    (void)s;
    D9D_TRY(d9di_args_check_float("cast", yt));
    D9D_TRY(d9di_args_check_float("cast", xt));
#pragma omp parallel for if (n > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < n; i += D9DI_BLOCK) {
        int64_t c = d9di_i64_min(n - i, D9DI_BLOCK);
        float buf[D9DI_BLOCK];

        d9di_cpu_store(yt, y, i, c, d9di_cpu_read(xt, x, i, c, buf));
    }
    return D9D_OK;
}
