/* fp8_scale.h - the scale of quantised elements, and arguments of kernels that make or read them.
 * Shared by the CPU and CUDA. */
#ifndef D9DI_COMMON_FP8_SCALE_H
#define D9DI_COMMON_FP8_SCALE_H

#include <string.h>

#include "common/kernel_common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Magnitudes are float32 without their sign, as bits: they compare as integers, infinity and NaN
 * above all others. */
enum { D9DI_FP8_NONFINITE = 0x7f800000, D9DI_FP8_NAN = 0x7f };

/* The exponent of a format's largest number, 1.75 times a power of two. */
D9DI_HOST_DEVICE static inline int d9di_fp8_max_exponent(d9d_dtype t)
{
    return t == D9D_F8_E4M3 ? 8 : 15;
}

/* e for the scale 2^e of elements whose largest magnitude has the bits `amax`: the smallest with
 * amax <= 1.75 2^(max_exponent + e).  From -100 on, so that scaled elements are exact in bfloat16
 * and 1 / scale in float32. */
D9DI_HOST_DEVICE static inline int d9di_fp8_scale_exponent(uint32_t amax, int max_exponent)
{
    const int e = (int)(amax >> 23) - 127 - max_exponent + ((amax & 0x7fffffu) > 0x600000u);

    if (amax == 0 || amax >= D9DI_FP8_NONFINITE)
        return 0;
    return e < -100 ? -100 : e;
}

/* The bits of 2^e. */
D9DI_HOST_DEVICE static inline uint32_t d9di_fp8_power_bits(int e)
{
    return (uint32_t)(e + 127) << 23;
}

static inline uint32_t d9di_fp8_float_bits(float v)
{
    uint32_t u;

    memcpy(&u, &v, sizeof(u));
    return u;
}
static inline float d9di_fp8_bits_float(uint32_t u)
{
    float v;

    memcpy(&v, &u, sizeof(v));
    return v;
}

static inline uint32_t d9di_fp8_magnitude(float v)
{
    return d9di_fp8_float_bits(v) & 0x7fffffffu;
}

/* To the nearest number of the format, ties to even; beyond the largest one to that. */
static inline uint8_t d9di_fp8_round(float v, d9d_dtype t)
{
    const int mantissa = t == D9D_F8_E4M3 ? 3 : 2, bias = t == D9D_F8_E4M3 ? 7 : 15;
    const uint32_t sign = d9di_fp8_float_bits(v) >> 24 & 0x80u,
                   largest = t == D9D_F8_E4M3 ? 0x7e : 0x7b;
    const uint32_t a = d9di_fp8_magnitude(v);
    const int drop = 23 - mantissa;
    uint32_t q;

    if (a >= D9DI_FP8_NONFINITE)
        return D9DI_FP8_NAN;
    if (a < d9di_fp8_power_bits(1 - bias)) {
        /* Added to a power of two whose last bit is the smallest subnormal, it is rounded there. */
        const uint32_t unit = d9di_fp8_power_bits(1 - bias - mantissa + 23);

        q = d9di_fp8_float_bits(d9di_fp8_bits_float(a) + d9di_fp8_bits_float(unit)) - unit;
    } else {
        q = (a + ((1u << (drop - 1)) - 1) + (a >> drop & 1u)) >> drop;
        q -= (uint32_t)(127 - bias) << mantissa;
        q = q < largest ? q : largest;
    }
    return (uint8_t)(sign | q);
}

/* The number of a code of e4m3. */
static inline float d9di_fp8_e4m3_float(uint8_t code)
{
    const int e = code >> 3 & 15, m = code & 7;
    const float v = e > 0 ? d9di_fp8_bits_float((uint32_t)(e + 120) << 23 | (uint32_t)m << 20)
                          : (float)m * (1.0f / 512);

    if ((code & 0x7f) == D9DI_FP8_NAN)
        return d9di_fp8_bits_float(0x7fc00000u);
    return code >> 7 != 0 ? -v : v;
}

/* EINVAL unless the kernel can quantise x [m, n] of type t to both (either may be NULL). */
d9d_status d9di_args_check_fp8_quantise(d9d_dtype t, int64_t m, int64_t n,
                                        const d9d_fp8_operand *rows, const d9d_fp8_operand *cols);
/* EINVAL unless A and B are operands of a product. */
d9d_status d9di_args_check_fp8_gemm(const d9d_fp8_gemm_dims *g, const d9d_fp8_operand *a,
                                    const d9d_fp8_operand *b);
d9d_status d9di_args_check_fp8_grouped_gemm(const d9d_fp8_grouped_dims *g, const d9d_fp8_operand *a,
                                            const d9d_fp8_operand *b);

/* What a grouped product sums over, and the rows that its operands have. */
typedef struct d9di_fp8_grouped_shape {
    int64_t a_rows, a_k, b_rows, b_k; /* all of A and B */
} d9di_fp8_grouped_shape;
d9di_fp8_grouped_shape d9di_fp8_grouped_shape_of(const d9d_fp8_grouped_dims *g);

/* EINVAL unless the steps of a quantisation can read x [m, n] of type t, and write format f. */
d9d_status d9di_args_check_fp8_amax(d9d_dtype t, int64_t n, const d9d_fp8_maxima *to);
d9d_status d9di_args_check_fp8_encode(d9d_dtype t, int64_t n, const d9d_fp8_maxima *by,
                                      d9d_dtype f);
d9d_status d9di_args_check_fp8_scales(d9d_dtype f);
d9d_status d9di_args_check_fp8_transpose(int64_t n);

/* The place of row r among maxima of rows. */
D9DI_HOST_DEVICE static inline int64_t d9di_fp8_row_place(const d9d_fp8_maxima *a, int64_t r)
{
    return a->group == 0 ? r : r + r / a->group * a->skip;
}

#ifdef __cplusplus
}
#endif
#endif /* D9DI_COMMON_FP8_SCALE_H */
