/* math.h - exp, sigmoid, tanh, sine and cosine that a compiler can vectorise.
 *
 * Straight-line float32 code without branches, so that a loop over it vectorises and gives the bits
 * of the scalar code. Errors are under 2 units in the last place;
 * tests/unit/kernels/test_kernel_math.c measures them.
 */
#ifndef D9DI_CPU_MATH_H
#define D9DI_CPU_MATH_H

#include <stdint.h>
#include <string.h>

static inline float d9di_cpu_bits_to_float(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}
static inline uint32_t d9di_cpu_float_to_bits(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}

/* exp(x) = 2^k (1 + m), with m = exp(r) - 1. */
typedef struct d9di_cpu_exp_parts {
    int32_t k;
    float m;
} d9di_cpu_exp_parts;

/* r = x - k ln 2 in two parts, |r| <= ln 2 / 2; a polynomial fitted to (exp(r) - 1 - r) / r^2, for
 * -105 <= x <= 90. NaN stays NaN. */
static inline d9di_cpu_exp_parts d9di_cpu_exp_split(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float shifted = x * 1.44269504f + magic;
    float k = shifted - magic;
    float r = x - k * 0.693359375f + k * 2.12194440e-4f;
    float p = 0x1.a17e2ep-13f;

    p = p * r + 0x1.6d4352p-10f;
    p = p * r + 0x1.1110acp-7f;
    p = p * r + 0x1.5554e8p-5f;
    p = p * r + 0x1.555556p-3f;
    p = p * r + 0.5f;
    p = p * (r * r) + r;
    return (d9di_cpu_exp_parts){(int32_t)d9di_cpu_float_to_bits(shifted) - 0x4b400000, p};
}

/* 2^k, -126 <= k <= 127. */
static inline float d9di_cpu_exp2i(int32_t k)
{
    return d9di_cpu_bits_to_float((uint32_t)(k + 127) << 23);
}

/* 2^k is applied in two steps, so that denormals and overflow are right. */
static inline float d9di_cpu_expf(float x)
{
    float c = x < -105.0f ? -105.0f : x;
    d9di_cpu_exp_parts e = d9di_cpu_exp_split(c > 90.0f ? 90.0f : c);
    int32_t half = e.k >> 1;

    return (e.m + 1.0f) * d9di_cpu_exp2i(half) * d9di_cpu_exp2i(e.k - half);
}

static inline float d9di_cpu_sigmoid(float x)
{
    return 1.0f / (1.0f + d9di_cpu_expf(-x));
}

/* tanh(x) = n / (n + 2), n = exp(2 |x|) - 1, with the sign of x; 1 from 10 on. */
static inline float d9di_cpu_tanhf(float x)
{
    const uint32_t sign = d9di_cpu_float_to_bits(x) & 0x80000000u;
    float a = d9di_cpu_bits_to_float(d9di_cpu_float_to_bits(x) ^ sign);
    d9di_cpu_exp_parts e = d9di_cpu_exp_split(2.0f * (a > 10.0f ? 10.0f : a));
    float s = d9di_cpu_exp2i(e.k), n = e.m * s + (s - 1.0f);

    return d9di_cpu_bits_to_float(d9di_cpu_float_to_bits(n / (n + 2.0f)) | sign);
}

/* Subtracts the multiple of pi/2 in double, which leaves |r| <= pi/4. For angles up to ten million
 * the error is at most 1e-7. */
static inline void d9di_cpu_sincosf(float x, float *sine, float *cosine)
{
    const double magic = 6755399441055744.0; /* 1.5 * 2^52 */
    double shifted = (double)x * 0.63661977236758134308 + magic;
    double k = shifted - magic;
    float r = (float)((double)x - k * 1.57079632679489661923);
    float z = r * r;
    float s = 2.724939e-06f, c = -2.7300504e-07f, a, b;
    uint64_t bits;
    uint32_t quarter;

    memcpy(&bits, &shifted, sizeof(bits));
    quarter = (uint32_t)bits & 3u;
    s = s * z - 1.9840083e-4f;
    s = s * z + 8.333332e-3f;
    s = s * z - 0.16666667f;
    s = s * (z * r) + r;
    c = c * z + 2.4800596e-05f;
    c = c * z - 1.3888888e-3f;
    c = c * z + 4.1666668e-2f;
    c = c * (z * z) - 0.5f * z + 1.0f;
    a = quarter & 1u ? c : s;
    b = quarter & 1u ? s : c;
    *sine = d9di_cpu_bits_to_float(d9di_cpu_float_to_bits(a) ^ ((quarter & 2u) << 30));
    *cosine = d9di_cpu_bits_to_float(d9di_cpu_float_to_bits(b) ^ (((quarter + 1u) & 2u) << 30));
}

#endif /* D9DI_CPU_MATH_H */
