/* add_bias.c - y[r] = x[r] + b[e] for the rows of each expert, and the gradient of b: sums of an
 * expert's rows, in their order. */
#include "cpu/common.h"

/* The rows of expert e, within `rows` whatever the offsets are. */
static void expert_rows(const int32_t *offset, int64_t rows, int64_t e, int64_t *first,
                        int64_t *end)
{
    *first = offset == NULL ? 0 : d9di_i64_max(0, d9di_i64_min(rows, offset[e]));
    *end = offset == NULL ? rows : d9di_i64_max(*first, d9di_i64_min(rows, offset[e + 1]));
}

D9DI_CLONES static void block_add(float *y, const float *x, const float *b, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] + b[i];
}

d9d_status d9d_ref_add_bias(d9d_stream s, d9d_dtype t, void *y, const void *x, const void *b,
                            const int32_t *offset, int64_t m, int64_t e, int64_t n)
{
    (void)s;
    D9D_TRY(d9di_args_check_float("add_bias", t));
    for (int64_t i = 0; i < e; i++) {
        int64_t first, end;

        expert_rows(offset, m, i, &first, &end);
#pragma omp parallel for collapse(2) if ((end - first) * n > D9DI_MIN_PARALLEL)
        for (int64_t r = first; r < end; r++)
            for (int64_t j = 0; j < n; j += D9DI_BLOCK) {
                int64_t c = d9di_i64_min(n - j, D9DI_BLOCK);
                float bx[D9DI_BLOCK], bb[D9DI_BLOCK];
                float *out = d9di_cpu_write_ptr(t, y, r * n + j, bx);

                block_add(out, d9di_cpu_read(t, x, r * n + j, c, bx),
                          d9di_cpu_read(t, b, i * n + j, c, bb), c);
                d9di_cpu_write(t, y, r * n + j, c, out);
            }
    }
    return D9D_OK;
}

d9d_status d9d_ref_grouped_bias_wgrad(d9d_stream s, d9d_dtype t, d9d_dtype gt, void *db, float beta,
                                      const void *dy, const int32_t *offset, int64_t rows,
                                      int64_t e, int64_t n)
{
    (void)s;
    D9D_TRY(d9di_args_check_float("grouped_bias_wgrad", t));
    D9D_TRY(d9di_args_check_float("grouped_bias_wgrad", gt));
#pragma omp parallel for collapse(2) schedule(dynamic) if (rows * n > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < e; i++)
        for (int64_t j = 0; j < n; j += D9DI_BLOCK) {
            int64_t c = d9di_i64_min(n - j, D9DI_BLOCK), first, end;
            float sum[D9DI_BLOCK] = {0}, buf[D9DI_BLOCK];

            expert_rows(offset, rows, i, &first, &end);
            for (int64_t r = first; r < end; r++)
                d9di_cpu_row_axpy(sum, 1.0f, d9di_cpu_read(t, dy, r * n + j, c, buf), c);
            d9di_cpu_store_add(gt, db, i * n + j, c, beta, sum);
        }
    return D9D_OK;
}
