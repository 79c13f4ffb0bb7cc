/* softcap.c - y = cap tanh(x / cap). */
#include "cpu/common.h"

d9d_status d9d_ref_softcap(d9d_stream s, d9d_dtype t, void *y, const void *x, float cap, int64_t n)
{
    (void)s;
    D9D_TRY(d9di_args_check_float("softcap", t));
#pragma omp parallel for if (n > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < n; i += D9DI_BLOCK) {
        const int64_t c = d9di_i64_min(n - i, D9DI_BLOCK);
        float buf[D9DI_BLOCK], *out = d9di_cpu_write_ptr(t, y, i, buf);

        d9di_cpu_row_softcap(out, cap, d9di_cpu_read(t, x, i, c, buf), c);
        d9di_cpu_write(t, y, i, c, out);
    }
    return D9D_OK;
}
