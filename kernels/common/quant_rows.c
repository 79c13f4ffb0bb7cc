/* quant_rows.c - rows of frozen matrices in 8 or 4 bits, made on the host.  See
 * d9d/kernels/quant.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/fp8_scale.h"
#include "common/quant_code.h"

enum { BLOCK = D9D_QUANT_NF4_BLOCK, MAPPED = 256 };

const char *d9d_quant_name(d9d_quant_format f)
{
    static const char *const names[] = {"none", "fp8", "nf4"};

    return (unsigned)f < sizeof(names) / sizeof(names[0]) ? names[f] : "unknown";
}

/* A whole row as float32, and the part of it that is stored. */
typedef struct source_row {
    const float *x;
    int64_t cols, first, n;
} source_row;

static void scales_put(uint8_t *to, float a, float b)
{
    const float both[] = {a, b};

    memcpy(to, both, sizeof(both));
}

/* --- fp8 -------------------------------------------------------------------------------------- */

static void fp8_row(const source_row *r, uint8_t *out)
{
    uint8_t *const scale = out + d9d_quant_scale_at(D9D_QUANT_FP8, r->n);
    uint32_t amax = 0;
    float inverse;
    int e;

    for (int64_t i = 0; i < r->cols; i++) {
        const uint32_t a = d9di_fp8_magnitude(r->x[i]);

        amax = a > amax ? a : amax;
    }
    e = d9di_fp8_scale_exponent(amax, d9di_fp8_max_exponent(D9D_F8_E4M3));
    inverse = d9di_fp8_bits_float(d9di_fp8_power_bits(-e));
    scales_put(scale, amax < D9DI_FP8_NONFINITE ? d9di_fp8_bits_float(d9di_fp8_power_bits(e)) : NAN,
               0);
    if (amax >= D9DI_FP8_NONFINITE)
        return;
    for (int64_t i = 0; i < r->n; i++)
        out[i] = d9di_fp8_round(r->x[r->first + i] * inverse, D9D_F8_E4M3);
}

/* --- nf4 -------------------------------------------------------------------------------------- */

/* Between a code and the next: those of bitsandbytes, the middles rounded to float32. */
static uint8_t nf4_code(float v)
{
    static const float above[15] = {
        -0.8480964004993439f,  -0.6106329262256622f,  -0.4599952697753906f,   -0.33967943489551544f,
        -0.23460740596055984f, -0.13791173323988914f, -0.045525018125772476f, 0.03979014977812767f,
        0.1202552504837513f,   0.2035212516784668f,   0.2920137718319893f,    0.3893125355243683f,
        0.5016634166240692f,   0.6427869200706482f,   0.8614784181118011f};
    int code = (v > above[7]) * 8;

    code += (v > above[code + 3]) * 4;
    code += (v > above[code + 1]) * 2;
    code += v > above[code];
    return (uint8_t)code;
}

/* The nearest of the ascending map, of two the lower. */
static uint8_t map_code(const float map[MAPPED], float v)
{
    int low = 0, high = MAPPED - 1;

    while (high - low > 1) {
        const int middle = (low + high) / 2;

        if (map[middle] <= v)
            low = middle;
        else
            high = middle;
    }
    return (uint8_t)(v - map[low] > map[high] - v ? high : low);
}

static float block_amax(const float *x)
{
    float amax = 0;

    for (int i = 0; i < BLOCK; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    return amax;
}

/* The largest magnitudes of a row's blocks, their mean, and the largest distance from it. */
static void row_scales(const source_row *r, float *amax, float *offset, float *range)
{
    const int64_t blocks = r->cols / BLOCK;
    double sum = 0;

    for (int64_t b = 0; b < blocks; b++)
        sum += amax[b] = block_amax(r->x + b * BLOCK);
    *offset = (float)(sum / (double)blocks);
    *range = 0;
    for (int64_t b = 0; b < blocks; b++)
        *range = fmaxf(*range, fabsf(amax[b] - *offset));
}

static void nf4_block(const float *x, float amax, uint8_t *out)
{
    const float inverse = amax > 0 ? 1.0f / amax : 0.0f;

    for (int i = 0; i < BLOCK / 2; i++)
        out[i] = (uint8_t)(nf4_code(x[2 * i] * inverse) << 4 | nf4_code(x[2 * i + 1] * inverse));
}

static bool is_finite_row(const source_row *r)
{
    uint32_t amax = 0;

    for (int64_t i = 0; i < r->cols; i++) {
        const uint32_t a = d9di_fp8_magnitude(r->x[i]);

        amax = a > amax ? a : amax;
    }
    return amax < D9DI_FP8_NONFINITE;
}

static void nf4_row(const source_row *r, const float map[MAPPED], float *amax, uint8_t *out)
{
    uint8_t *const codes = out + d9d_quant_code_bytes(D9D_QUANT_NF4, r->n), *const scales =
                                                                                out +
                                                                                d9d_quant_scale_at(
                                                                                    D9D_QUANT_NF4,
                                                                                    r->n);
    float offset, range;

    if (!is_finite_row(r)) {
        scales_put(scales, NAN, NAN);
        return;
    }
    row_scales(r, amax, &offset, &range);
    scales_put(scales, offset, range);
    for (int64_t b = 0; b < r->n / BLOCK; b++) {
        const int64_t of = r->first / BLOCK + b;

        codes[b] = map_code(map, range > 0 ? (amax[of] - offset) / range : 0.0f);
        nf4_block(r->x + of * BLOCK, amax[of], out + b * BLOCK / 2);
    }
}

/* --- any -------------------------------------------------------------------------------------- */

static d9d_status rows_check(d9d_quant_format f, d9d_dtype t, int64_t cols, int64_t first,
                             int64_t n)
{
    const int64_t to = d9d_quant_align(f);

    D9D_TRY(d9di_args_check_float("quant_rows", t));
    if (f != D9D_QUANT_FP8 && f != D9D_QUANT_NF4)
        return D9D_FAIL(D9D_EINVAL, "quant_rows: format %d, which is unknown", (int)f);
    if (cols % to != 0 || first % to != 0 || n % to != 0 || first < 0 || n < 0 || first > cols - n)
        return D9D_FAIL(D9D_EINVAL,
                        "quant_rows: columns [%lld, %lld + %lld) of %lld; in %s all are multiples "
                        "of %lld",
                        (long long)first, (long long)first, (long long)n, (long long)cols,
                        d9d_quant_name(f), (long long)to);
    return D9D_OK;
}

static void row_read(d9d_dtype t, const void *x, int64_t row, int64_t cols, float *y)
{
    if (t == D9D_F32)
        memcpy(y, (const float *)x + row * cols, (size_t)cols * sizeof(*y));
    else
        for (int64_t i = 0; i < cols; i++)
            y[i] = d9d_bf16_to_f32(((const uint16_t *)x)[row * cols + i]);
}

d9d_status d9d_quant_rows(d9d_quant_format f, d9d_dtype t, const void *x, int64_t rows,
                          int64_t cols, int64_t first, int64_t n, void *out)
{
    const int64_t bytes = d9d_quant_row_bytes(f, n);
    float map[MAPPED], *row, *amax;

    D9D_TRY(rows_check(f, t, cols, first, n));
    row = malloc((size_t)(cols + cols / BLOCK + 1) * sizeof(*row));
    if (row == NULL)
        return D9D_FAIL(D9D_ENOMEM, "quant_rows: no memory for a row of %lld", (long long)cols);
    amax = row + cols;
    for (int i = 0; i < MAPPED; i++)
        map[i] = d9di_quant_map(i);
    for (int64_t i = 0; i < rows; i++) {
        const source_row r = {row, cols, first, n};
        uint8_t *to = (uint8_t *)out + i * bytes;

        row_read(t, x, i, cols, row);
        memset(to, 0, (size_t)bytes);
        if (f == D9D_QUANT_FP8)
            fp8_row(&r, to);
        else
            nf4_row(&r, map, amax, to);
    }
    free(row);
    return D9D_OK;
}
