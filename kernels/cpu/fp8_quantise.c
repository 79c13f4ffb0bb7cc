/* fp8_quantise.c - quantisation to e4m3 and e5m2 with scales.
 *
 * First the largest magnitude of each row and column, or of all, then the elements.  Columns are
 * read COLS at a time, row after row.
 */
#include "common/fp8_scale.h"
#include "cpu/common.h"

enum { COLS = 64 };

/* x [M, N] of type t. */
typedef struct source {
    d9d_dtype t;
    const void *x;
    int64_t m, n;
} source;

/* Folds the magnitudes of row r, columns [c, c + n), n at most D9DI_BLOCK, into amax: one of each
 * column, or one of all. */
static void row_fold(const source *s, int64_t r, int64_t c, int64_t n, bool by_column,
                     uint32_t *amax)
{
    float buf[D9DI_BLOCK];
    const float *x = d9di_cpu_read(s->t, s->x, r * s->n + c, n, buf);

    for (int64_t j = 0; j < n; j++) {
        uint32_t *to = &amax[by_column ? j : 0];
        const uint32_t a = d9di_fp8_magnitude(x[j]);

        *to = a > *to ? a : *to;
    }
}

static uint32_t row_amax(const source *s, int64_t r)
{
    uint32_t amax = 0;

    for (int64_t c = 0; c < s->n; c += D9DI_BLOCK)
        row_fold(s, r, c, d9di_i64_min(s->n - c, D9DI_BLOCK), false, &amax);
    return amax;
}

static uint32_t array_amax(const source *s)
{
    uint32_t amax = 0;

#pragma omp parallel for reduction(max : amax) if (s->m * s->n > D9DI_MIN_PARALLEL)
    for (int64_t r = 0; r < s->m; r++) {
        const uint32_t a = row_amax(s, r);

        amax = a > amax ? a : amax;
    }
    return amax;
}

static int scale_set(const d9d_fp8_operand *to, int64_t row, uint32_t amax)
{
    const int e = d9di_fp8_scale_exponent(amax, d9di_fp8_max_exponent(to->t));

    if (to->scale_by_row || row == 0)
        to->scale[to->scale_by_row ? row : 0] = d9di_fp8_bits_float(d9di_fp8_power_bits(e));
    return e;
}

/* `all` is the largest magnitude of the array, for an operand with one scale. */
static void rows_quantise(const source *s, const d9d_fp8_operand *to, uint32_t all)
{
#pragma omp parallel for if (s->m * s->n > D9DI_MIN_PARALLEL)
    for (int64_t r = 0; r < s->m; r++) {
        const int e = scale_set(to, r, to->scale_by_row ? row_amax(s, r) : all);
        const float inverse = d9di_fp8_bits_float(d9di_fp8_power_bits(-e));
        uint8_t *y = (uint8_t *)to->data + r * to->row_stride;

        for (int64_t c = 0; c < s->n; c += D9DI_BLOCK) {
            const int64_t n = d9di_i64_min(s->n - c, D9DI_BLOCK);
            float buf[D9DI_BLOCK];
            const float *x = d9di_cpu_read(s->t, s->x, r * s->n + c, n, buf);

            for (int64_t j = 0; j < n; j++)
                y[c + j] = d9di_fp8_round(x[j] * inverse, to->t);
        }
    }
}

/* Columns [c, c + n) become rows of `to`. */
static void columns_quantise(const source *s, const d9d_fp8_operand *to, int64_t c, int64_t n,
                             uint32_t all)
{
    uint8_t *y = (uint8_t *)to->data + c * to->row_stride;
    uint32_t amax[COLS] = {0};
    float inverse[COLS];

    for (int64_t r = 0; r < s->m && to->scale_by_row; r++)
        row_fold(s, r, c, n, true, amax);
    for (int64_t j = 0; j < n; j++)
        inverse[j] = d9di_fp8_bits_float(
            d9di_fp8_power_bits(-scale_set(to, c + j, to->scale_by_row ? amax[j] : all)));
    for (int64_t r = 0; r < s->m; r++) {
        float buf[COLS];
        const float *x = d9di_cpu_read(s->t, s->x, r * s->n + c, n, buf);

        for (int64_t j = 0; j < n; j++)
            y[j * to->row_stride + r] = d9di_fp8_round(x[j] * inverse[j], to->t);
    }
    for (int64_t j = 0; j < n; j++)
        memset(y + j * to->row_stride + s->m, 0, (size_t)(d9d_fp8_padded(s->m) - s->m));
}

d9d_status d9d_ref_fp8_quantise(d9d_stream stream, d9d_dtype t, const void *x, int64_t m, int64_t n,
                                const d9d_fp8_operand *rows, const d9d_fp8_operand *cols)
{
    const source s = {t, x, m, n};
    uint32_t all = 0;

    (void)stream;
    D9D_TRY(d9di_args_check_fp8_quantise(t, m, n, rows, cols));
    if ((rows != NULL && !rows->scale_by_row) || (cols != NULL && !cols->scale_by_row))
        all = array_amax(&s);
    if (rows != NULL)
        rows_quantise(&s, rows, all);
    if (cols == NULL)
        return D9D_OK;
#pragma omp parallel for if (m * n > D9DI_MIN_PARALLEL)
    for (int64_t c = 0; c < n; c += COLS)
        columns_quantise(&s, cols, c, d9di_i64_min(n - c, COLS), all);
    return D9D_OK;
}
