/* add.c - sums of arrays, y = beta y + x, and y = alpha x + plus. */
#include "cpu/common.h"

D9DI_CLONES static void add_block(float *y, const float *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] += x[i];
}

d9d_status d9d_ref_add(d9d_stream s, d9d_dtype t, void *y, const void *const *x, int of, int64_t n)
{
    (void)s;
    D9D_TRY(d9di_args_check_float("add", t));
    D9D_TRY(d9di_args_check_addends(of));
#pragma omp parallel for if (n > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < n; i += D9DI_BLOCK) {
        int64_t c = d9di_i64_min(n - i, D9DI_BLOCK);
        float sum[D9DI_BLOCK], in[D9DI_BLOCK];

        d9di_cpu_load(t, sum, x[0], i, c);
        for (int k = 1; k < of; k++)
            add_block(sum, d9di_cpu_read(t, x[k], i, c, in), c);
        d9di_cpu_store(t, y, i, c, sum);
    }
    return D9D_OK;
}

d9d_status d9d_ref_accumulate(d9d_stream s, d9d_dtype yt, void *y, float beta, d9d_dtype xt,
                              const void *x, int64_t n)
{
    (void)s;
    D9D_TRY(d9di_args_check_float("accumulate", yt));
    D9D_TRY(d9di_args_check_float("accumulate", xt));
#pragma omp parallel for if (n > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < n; i += D9DI_BLOCK) {
        int64_t c = d9di_i64_min(n - i, D9DI_BLOCK);
        float buf[D9DI_BLOCK];

        d9di_cpu_store_add(yt, y, i, c, beta, d9di_cpu_read(xt, x, i, c, buf));
    }
    return D9D_OK;
}

d9d_status d9d_ref_axpy(d9d_stream s, d9d_dtype t, void *y, float alpha, const void *x,
                        const void *plus, int64_t n)
{
    (void)s;
    D9D_TRY(d9di_args_check_float("axpy", t));
#pragma omp parallel for if (n > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < n; i += D9DI_BLOCK) {
        int64_t c = d9di_i64_min(n - i, D9DI_BLOCK);
        float out[D9DI_BLOCK], in[D9DI_BLOCK];

        d9di_cpu_row_scale(out, alpha, d9di_cpu_read(t, x, i, c, in), c);
        if (plus != NULL)
            add_block(out, d9di_cpu_read(t, plus, i, c, in), c);
        d9di_cpu_store(t, y, i, c, out);
    }
    return D9D_OK;
}
