/* quant_gemm.c - products with frozen matrices in 8 or 4 bits: dequantised to the type of the
 * activations, and multiplied as such. */
#include "common/fp8_scale.h"
#include "common/quant_code.h"
#include "cpu/common.h"

/* What codes stand for, in float32 or rounded to bfloat16. */
typedef struct code_values {
    bool rounded;
    float element[256]; /* of e4m3, or of NormalFloat */
    float scale[256];
} code_values;

static float rounded_to(const code_values *v, float x)
{
    return v->rounded ? d9d_bf16_to_f32(d9d_bf16_from_f32(x)) : x;
}

/* Numbers of e4m3; NaN has no code in a quantised row. */
static float e4m3_value(int i)
{
    const int e = (i & 0x7f) >> 3, m = i & 7;
    const float v = e == 0 ? ldexpf((float)m, -9) : ldexpf((float)(m + 8), e - 10);

    return (i & 0x80) != 0 ? -v : v;
}

static void values_fill(code_values *v, d9d_quant_format f, d9d_dtype t)
{
    static const float nf4[16] = D9DI_QUANT_NF4_VALUES;

    v->rounded = t != D9D_F32;
    for (int i = 0; i < 256; i++) {
        v->element[i] = f == D9D_QUANT_FP8 ? e4m3_value(i) : rounded_to(v, nf4[i % 16]);
        v->scale[i] = d9di_quant_map(i);
    }
}

static void fp8_row(const code_values *v, const uint8_t *row, int64_t cols, float *y)
{
    float scale;

    memcpy(&scale, row + d9d_quant_scale_at(D9D_QUANT_FP8, cols), sizeof(scale));
    for (int64_t i = 0; i < cols; i++)
        y[i] = v->element[row[i]] * scale;
}

static void nf4_row(const code_values *v, const uint8_t *row, int64_t cols, float *y)
{
    enum { BLOCK = D9D_QUANT_NF4_BLOCK };
    const uint8_t *codes = row + d9d_quant_code_bytes(D9D_QUANT_NF4, cols);
    float of[2];

    memcpy(of, row + d9d_quant_scale_at(D9D_QUANT_NF4, cols), sizeof(of));
    for (int64_t b = 0; b < cols / BLOCK; b++) {
        const float scale = rounded_to(v, v->scale[codes[b]] * of[1] + of[0]);

        for (int64_t i = b * BLOCK; i < (b + 1) * BLOCK; i += 2) {
            y[i] = v->element[row[i / 2] >> 4] * scale;
            y[i + 1] = v->element[row[i / 2] & 15] * scale;
        }
    }
}

d9d_status d9d_ref_quant_dequantise(d9d_stream s, d9d_dtype t, void *y, const d9d_quant_matrix *w)
{
    const int64_t bytes = d9d_quant_row_bytes(w->format, w->cols);
    code_values v;
    float *rows;

    (void)s;
    D9D_TRY(d9di_args_check_float("quant_dequantise", t));
    D9D_TRY(d9di_args_check_quant("quant_dequantise", w));
    values_fill(&v, w->format, t);
    rows = d9di_cpu_scratch_alloc_threads("quant_dequantise", w->cols);
    if (rows == NULL)
        return D9D_ENOMEM;
#pragma omp parallel for if (w->rows * w->cols > D9DI_MIN_PARALLEL)
    for (int64_t r = 0; r < w->rows; r++) {
        const uint8_t *row = (const uint8_t *)w->data + r * bytes;
        float *to = d9di_cpu_scratch_of_thread(rows, w->cols);

        (w->format == D9D_QUANT_FP8 ? fp8_row : nf4_row)(&v, row, w->cols, to);
        d9di_cpu_store(t, y, r * w->cols, w->cols, to);
    }
    free(rows);
    return D9D_OK;
}

d9d_status d9d_ref_quant_gemm(d9d_stream s, const d9d_gemm *g, const void *a,
                              const d9d_quant_matrix *w, void *c)
{
    float *panel;
    d9d_status st;

    D9D_TRY(d9di_args_check_quant_gemm("quant_gemm", g, w));
    panel = d9di_cpu_scratch_alloc("quant_gemm", w->rows * w->cols);
    if (panel == NULL)
        return D9D_ENOMEM;
    st = d9d_ref_quant_dequantise(s, g->t, panel, w);
    if (st == D9D_OK)
        st = d9d_ref_gemm(s, g, a, panel, c);
    free(panel);
    return st;
}

d9d_status d9d_ref_quant_gemm_multi(d9d_stream s, int n, const d9d_gemm *g, const void *a,
                                    const d9d_quant_matrix *w, void *const *c)
{
    return d9di_quant_gemm_each(d9d_kernels_cpu(), s, n, g, a, w, c);
}

d9d_status d9d_ref_quant_gemm_glu(d9d_stream s, const d9d_gemm_glu_dims *n, void *y, void *gate,
                                  void *up, const void *x, const d9d_quant_matrix *w)
{
    return d9di_quant_glu_parts(d9d_kernels_cpu(), s, n, y, gate, up, x, w);
}
