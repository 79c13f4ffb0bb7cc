/* dropout.c - dropout by counter-based random numbers. */
#include "cpu/common.h"

/* At most D9DI_BLOCK elements, with random numbers from `index` on. */
static void block_dropout(float *y, const float *x, float p, float factor, d9d_rng r,
                          uint64_t index, int64_t n)
{
    const bool drops = p > 0;
    uint32_t bits[D9DI_BLOCK];

    if (drops)
        d9di_cpu_random_bits(bits, r, index, n);
    for (int64_t i = 0; i < n; i++)
        y[i] = drops && (float)(bits[i] >> 8) * 0x1p-24f < p ? 0.0f : factor * x[i];
}

d9d_status d9d_ref_dropout(d9d_stream s, d9d_dtype t, void *y, const void *x, float p, float factor,
                           d9d_rng r, const int64_t *token, int64_t m, int64_t n, int64_t first,
                           int64_t width)
{
    (void)s;
    D9D_TRY(d9di_args_check_float("dropout", t));
#pragma omp parallel for if (m * n > D9DI_MIN_PARALLEL)
    for (int64_t row = 0; row < m; row++) {
        const uint64_t from = p > 0 ? (uint64_t)token[row] * (uint64_t)width + (uint64_t)first : 0;
        float bx[D9DI_BLOCK], by[D9DI_BLOCK];

        for (int64_t i = 0; i < n; i += D9DI_BLOCK) {
            const int64_t c = d9di_i64_min(n - i, D9DI_BLOCK), at = row * n + i;

            block_dropout(by, d9di_cpu_read(t, x, at, c, bx), p, factor, r, from + (uint64_t)i, c);
            d9di_cpu_store(t, y, at, c, by);
        }
    }
    return D9D_OK;
}
