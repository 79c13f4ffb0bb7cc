/* fp8_parts.c - the steps of a quantisation, for an array of which ranks have parts. */
#include "common/fp8_scale.h"
#include "cpu/common.h"

enum { COLS = 64 };

static int32_t larger(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* Maxima of columns [c, c + n) go to `col`, that of row r over them comes back. */
static int32_t row_part_fold(d9d_dtype t, const void *x, int64_t at, int64_t n, int32_t *col)
{
    float buf[COLS];
    const float *v = d9di_cpu_read(t, x, at, n, buf);
    int32_t most = 0;

    for (int64_t j = 0; j < n; j++) {
        const int32_t a = (int32_t)d9di_fp8_magnitude(v[j]);

        most = larger(most, a);
        if (col != NULL)
            col[j] = larger(col[j], a);
    }
    return most;
}

d9d_status d9d_ref_fp8_amax(d9d_stream s, d9d_dtype t, const void *x, int64_t m, int64_t n,
                            const d9d_fp8_maxima *to)
{
    int32_t all = 0;

    (void)s;
    D9D_TRY(d9di_args_check_fp8_amax(t, n, to));
#pragma omp parallel for reduction(max : all) if (m * n > D9DI_MIN_PARALLEL)
    for (int64_t r = 0; r < m; r++) {
        int32_t most = 0;

        for (int64_t c = 0; c < n; c += COLS)
            most = larger(most, row_part_fold(t, x, r * n + c, d9di_i64_min(n - c, COLS), NULL));
        if (to->rows != NULL) {
            int32_t *row = &to->rows[d9di_fp8_row_place(to, r)];

            *row = larger(*row, most);
        }
        all = larger(all, most);
    }
    if (to->all != NULL)
        *to->all = larger(*to->all, all);
    if (to->cols == NULL)
        return D9D_OK;
#pragma omp parallel for if (m * n > D9DI_MIN_PARALLEL)
    for (int64_t c = 0; c < n; c += COLS)
        for (int64_t r = 0; r < m; r++)
            (void)row_part_fold(t, x, r * n + c, d9di_i64_min(n - c, COLS), to->cols + c);
    return D9D_OK;
}

static int exponent_of(int32_t amax, d9d_dtype f)
{
    return d9di_fp8_scale_exponent((uint32_t)amax, d9di_fp8_max_exponent(f));
}

static float inverse_of(int32_t amax, d9d_dtype f)
{
    return d9di_fp8_bits_float(d9di_fp8_power_bits(-exponent_of(amax, f)));
}

d9d_status d9d_ref_fp8_encode(d9d_stream s, d9d_dtype t, const void *x, int64_t m, int64_t n,
                              const d9d_fp8_maxima *by, d9d_dtype f, void *y)
{
    (void)s;
    D9D_TRY(d9di_args_check_fp8_encode(t, n, by, f));
#pragma omp parallel for if (m * n > D9DI_MIN_PARALLEL)
    for (int64_t r = 0; r < m; r++) {
        const float of_row = by->cols != NULL   ? 0.0f
                             : by->rows != NULL ? inverse_of(by->rows[d9di_fp8_row_place(by, r)], f)
                                                : inverse_of(*by->all, f);

        for (int64_t c = 0; c < n; c += COLS) {
            const int64_t part = d9di_i64_min(n - c, COLS);
            float buf[COLS];
            const float *v = d9di_cpu_read(t, x, r * n + c, part, buf);

            for (int64_t j = 0; j < part; j++)
                ((uint8_t *)y)[r * n + c + j] = d9di_fp8_round(
                    v[j] * (by->cols != NULL ? inverse_of(by->cols[c + j], f) : of_row), f);
        }
    }
    return D9D_OK;
}

d9d_status d9d_ref_fp8_scales(d9d_stream s, d9d_dtype f, const int32_t *maxima, int64_t n,
                              float *scale)
{
    (void)s;
    D9D_TRY(d9di_args_check_fp8_scales(f));
    for (int64_t i = 0; i < n; i++)
        scale[i] = d9di_fp8_bits_float(d9di_fp8_power_bits(exponent_of(maxima[i], f)));
    return D9D_OK;
}

d9d_status d9d_ref_fp8_transpose(d9d_stream s, const void *x, int64_t m, int64_t n, void *y)
{
    const int64_t stride = d9d_fp8_padded(m);
    const uint8_t *from = x;
    uint8_t *to = y;

    (void)s;
    D9D_TRY(d9di_args_check_fp8_transpose(n));
#pragma omp parallel for if (m * n > D9DI_MIN_PARALLEL)
    for (int64_t c = 0; c < n; c += COLS)
        for (int64_t r = 0; r < stride; r++)
            for (int64_t j = c; j < d9di_i64_min(c + COLS, n); j++)
                to[j * stride + r] = r < m ? from[r * n + j] : 0;
    return D9D_OK;
}
