/* cpu_add.c - y = a + b, and y = beta y + x. */
#include "cpu_common.h"

D9DI_CLONES static void add_block(float *y, const float *a, const float *b, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

d9d_status d9d_ref_add(d9d_stream s, d9d_dtype t, void *y, const void *a, const void *b, int64_t n)
{
    (void)s;
    D9D_TRY(d9di_check_float("add", t));
#pragma omp parallel for if (n > D9DI_SERIAL)
    for (int64_t i = 0; i < n; i += D9DI_BLOCK) {
        int64_t c = d9di_min(n - i, D9DI_BLOCK);
        float ba[D9DI_BLOCK], bb[D9DI_BLOCK], *out = d9di_out(t, y, i, ba);

        add_block(out, d9di_in(t, a, i, c, ba), d9di_in(t, b, i, c, bb), c);
        d9di_put(t, y, i, c, out);
    }
    return D9D_OK;
}

d9d_status d9d_ref_accumulate(d9d_stream s, d9d_dtype yt, void *y, float beta, d9d_dtype xt,
                              const void *x, int64_t n)
{
    (void)s;
    D9D_TRY(d9di_check_float("accumulate", yt));
    D9D_TRY(d9di_check_float("accumulate", xt));
#pragma omp parallel for if (n > D9DI_SERIAL)
    for (int64_t i = 0; i < n; i += D9DI_BLOCK) {
        int64_t c = d9di_min(n - i, D9DI_BLOCK);
        float buf[D9DI_BLOCK];

        d9di_store_add(yt, y, i, c, beta, d9di_in(xt, x, i, c, buf));
    }
    return D9D_OK;
}
