/* fp8_gemm.c - products of quantised operands: both are dequantised to float32, which is exact, and
 * multiplied as float32 matrices are.  Sums keep all bits, also with fast_accum. */
#include "common/fp8_scale.h"
#include "cpu/common.h"

/* The values of all bytes of a format. */
static void values_list(d9d_dtype t, float value[256])
{
    const int mantissa = t == D9D_F8_E4M3 ? 3 : 2, bias = t == D9D_F8_E4M3 ? 7 : 15;
    const int nan = t == D9D_F8_E4M3 ? 0x7f : 0x7d;

    for (int i = 0; i < 256; i++) {
        const int e = (i & 0x7f) >> mantissa, m = i & ((1 << mantissa) - 1);
        const float v = e == 0 ? ldexpf((float)m, 1 - bias - mantissa)
                               : ldexpf((float)(m + (1 << mantissa)), e - bias - mantissa);

        value[i] = (i & 0x80) != 0 ? -v : v;
        if ((i & 0x7f) >= nan)
            value[i] = NAN;
        else if (t == D9D_F8_E5M2 && (i & 0x7f) == 0x7c)
            value[i] = (i & 0x80) != 0 ? -INFINITY : INFINITY;
    }
}

void d9di_cpu_fp8_dequantise(const d9d_fp8_operand *x, int64_t first, int64_t rows, int64_t from,
                             int64_t k, float *y)
{
    float value[256];

    values_list(x->t, value);
#pragma omp parallel for if (rows * k > D9DI_MIN_PARALLEL)
    for (int64_t r = 0; r < rows; r++) {
        const uint8_t *q = (const uint8_t *)x->data + (first + r) * x->row_stride + from;
        const float scale = x->scale[x->scale_by_row ? first + r : 0];

        for (int64_t i = 0; i < k; i++)
            y[r * k + i] = value[q[i]] * scale;
    }
}

d9d_status d9d_ref_fp8_gemm(d9d_stream s, const d9d_fp8_gemm_dims *g, const d9d_fp8_operand *a,
                            const d9d_fp8_operand *b, void *c)
{
    const d9d_gemm wide = {.t = D9D_F32,
                           .ct = g->ct,
                           .trans_b = true,
                           .m = g->m,
                           .n = g->n,
                           .k = g->k,
                           .beta = g->beta,
                           .addend = g->addend};
    float *x;
    d9d_status st;

    D9D_TRY(d9di_args_check_fp8_gemm(g, a, b));
    x = d9di_cpu_scratch_alloc("fp8_gemm", (g->m + g->n) * g->k);
    if (x == NULL)
        return D9D_ENOMEM;
    d9di_cpu_fp8_dequantise(a, 0, g->m, 0, g->k, x);
    d9di_cpu_fp8_dequantise(b, 0, g->n, 0, g->k, x + g->m * g->k);
    st = d9d_ref_gemm(s, &wide, x, x + g->m * g->k, c);
    free(x);
    return st;
}
