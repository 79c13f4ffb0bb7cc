/* position_scale.c - rows of queries times 1 + beta log(1 + floor(position / period)). */
#include <math.h>

#include "cpu/common.h"

d9d_status d9d_ref_position_scale(d9d_stream s, d9d_dtype t, void *y, const void *x,
                                  const int32_t *positions, int64_t m, int64_t n, float beta,
                                  int64_t period)
{
    (void)s;
    D9D_TRY(d9di_args_check_float("position_scale", t));
#pragma omp parallel for if (m * n > D9DI_MIN_PARALLEL)
    for (int64_t r = 0; r < m; r++) {
        const float by = 1.0f + beta * log1pf((float)(positions[r] / period));
        float buf[D9DI_BLOCK];

        for (int64_t i = 0; i < n; i += D9DI_BLOCK) {
            const int64_t c = d9di_i64_min(n - i, D9DI_BLOCK), at = r * n + i;
            float *out = d9di_cpu_write_ptr(t, y, at, buf);

            d9di_cpu_row_scale(out, by, d9di_cpu_read(t, x, at, c, buf), c);
            d9di_cpu_write(t, y, at, c, out);
        }
    }
    return D9D_OK;
}
