/* kv_append_fp8.c - keys or values of new tokens, quantised to e4m3 with a scale for each token's
 * head, to their slots of a cache. */
#include "common/fp8_scale.h"
#include "cpu/common.h"

static void head_quantise(d9d_dtype t, uint8_t *codes, float *scale, const void *x, int64_t first,
                          int64_t d)
{
    float buf[D9DI_BLOCK], inverse;
    uint32_t amax = 0;
    int e;

    for (int64_t c = 0; c < d; c += D9DI_BLOCK) {
        const int64_t n = d9di_i64_min(d - c, D9DI_BLOCK);
        const float *v = d9di_cpu_read(t, x, first + c, n, buf);

        for (int64_t j = 0; j < n; j++) {
            const uint32_t a = d9di_fp8_magnitude(v[j]);

            amax = a > amax ? a : amax;
        }
    }
    e = d9di_fp8_scale_exponent(amax, d9di_fp8_max_exponent(D9D_F8_E4M3));
    *scale = d9di_fp8_bits_float(d9di_fp8_power_bits(e));
    inverse = d9di_fp8_bits_float(d9di_fp8_power_bits(-e));
    for (int64_t c = 0; c < d; c += D9DI_BLOCK) {
        const int64_t n = d9di_i64_min(d - c, D9DI_BLOCK);
        const float *v = d9di_cpu_read(t, x, first + c, n, buf);

        for (int64_t j = 0; j < n; j++)
            codes[c + j] = d9di_fp8_round(v[j] * inverse, D9D_F8_E4M3);
    }
}

d9d_status d9d_ref_kv_append_fp8(d9d_stream s, d9d_dtype t, int n,
                                 const d9d_attention_append_fp8 *list, const int32_t *at, int64_t m,
                                 int64_t kv, int64_t d)
{
    const int64_t heads = m * kv;

    (void)s;
    D9D_TRY(d9di_args_check_float("kv_append_fp8", t));
    D9D_TRY(d9di_args_check_kv_append_fp8("kv_append_fp8", n));
#pragma omp parallel for if (n * heads * d > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < n * heads; i++) {
        const d9d_attention_append_fp8 *y = &list[i / heads];
        const int64_t from = i % heads, slot = at[from / kv], to = slot * kv + from % kv;

        if (slot >= 0)
            head_quantise(t, (uint8_t *)y->codes + to * d, y->scale + to, y->x, from * d, d);
    }
    return D9D_OK;
}
