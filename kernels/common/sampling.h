/* sampling.h - the weights of tokens to sample from, for CPU and CUDA.  See sample_tokens in
 * d9d/kernels/elementwise.h.
 *
 * A weight exp((x - max) / temperature) is an integer, in units of 2^-43: 2^43 for the largest
 * logit, rounded to the nearest.  Sums of integers have no order, so that they are those of any
 * division of a row.  All steps are IEEE operations of float64 without contraction: every processor
 * has the same weights.
 *
 *     token      0     1     2     3     4
 *     weight     3     9     2     9     5        sum 28
 *     threshold  top_p 0.6: {key of the 9s, 2 ties}, whose sum 18 first reaches 0.6 x 28
 *     draw       a number below 18: of token 1 below 9, else of token 3
 */
#ifndef D9DI_COMMON_SAMPLING_H
#define D9DI_COMMON_SAMPLING_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define D9DI_SAMPLING_FN static __host__ __device__ __forceinline__
#else
#define D9DI_SAMPLING_FN static inline
#endif

enum {
    D9DI_WEIGHT_BITS = 43,
    D9DI_SAMPLE_PASSES = 3,    /* digits of a key */
    D9DI_SAMPLE_BINS = 1 << 11 /* values of the longest digit */
};

/* What is left of a vocabulary: keys above `key`, and of those that are equal the first `ties`. */
typedef struct d9di_sampling_threshold {
    uint32_t key;
    uint64_t ties;
} d9di_sampling_threshold;

/* Orders as logits do; both zeros have one key.  Of numbers only. */
D9DI_SAMPLING_FN uint32_t d9di_sampling_key(float x)
{
    const float y = x + 0.0f; /* no -0 */
    uint32_t bits;

    memcpy(&bits, &y, sizeof(bits));
    return bits >> 31 ? ~bits : bits | UINT32_C(0x80000000);
}

/* The logit of a key. */
D9DI_SAMPLING_FN float d9di_sampling_logit(uint32_t key)
{
    const uint32_t bits = key >> 31 ? key & UINT32_C(0x7fffffff) : ~key;
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Digit `pass` of a key, the highest first, is (key >> shift) % bins; the digits before it are key
 * >> shift of the pass before. */
D9DI_SAMPLING_FN int d9di_sampling_shift(int pass)
{
    return pass == 0 ? 21 : pass == 1 ? 10 : 0;
}
D9DI_SAMPLING_FN uint32_t d9di_sampling_digit(uint32_t key, int pass)
{
    return (key >> d9di_sampling_shift(pass)) &
           (pass < 2 ? D9DI_SAMPLE_BINS - 1 : D9DI_SAMPLE_BINS / 2 - 1);
}
D9DI_SAMPLING_FN int d9di_sampling_digit_bits(int pass)
{
    return pass < 2 ? 11 : 10;
}

/* log2(e) / temperature; of temperature 0, that of 1. */
D9DI_SAMPLING_FN double d9di_sampling_scale(double temperature)
{
    return 1.4426950408889634 / (temperature > 0 ? temperature : 1);
}

/* The weight's logarithm to base 2, at most 0. */
D9DI_SAMPLING_FN double d9di_sampling_log2(float x, float max, double scale)
{
    const double d = (double)x - (double)max;

    return d < 0 ? d * scale : 0;
}

/* 2^z in units of 2^-43, for -44 < z <= 0: 2^(f - 1/2) with |f| <= 1/2 by its Taylor series, whose
 * error is below 2^-55 of it, shifted. */
D9DI_SAMPLING_FN uint64_t d9di_sampling_power(double z)
{
    const int whole = (int)z; /* towards 0 */
    const double f = z - whole + 0.5;
    double p = 1.815739622126023e-11;

    p = p * f + 3.1434702580641764e-10;
    p = p * f + 4.9885758477402514e-09;
    p = p * f + 7.196993636633317e-08;
    p = p * f + 9.344760325992282e-07;
    p = p * f + 1.0785311504483997e-05;
    p = p * f + 0.00010891940795373224;
    p = p * f + 0.0009428249382684685;
    p = p * f + 0.006801044314331813;
    p = p * f + 0.03924733162061035;
    p = p * f + 0.16986579209153746;
    p = p * f + 0.4901290717342736;
    p = p * f + 0.7071067811865476;
    return ((uint64_t)(int64_t)(p * 0x1p44) + ((uint64_t)1 << -whole)) >> (1 - whole);
}
D9DI_SAMPLING_FN uint64_t d9di_sampling_weight(double z)
{
    return z > -1 - D9DI_WEIGHT_BITS ? d9di_sampling_power(z) : 0;
}

/* Its share in the sum of weight x -log2(weight), of which a weight has at most 0.54 x 2^43. */
D9DI_SAMPLING_FN uint64_t d9di_sampling_moment(uint64_t weight, double z)
{
    return (uint64_t)(int64_t)((double)(int64_t)weight * -z);
}

/* The least weight that min_p leaves; the largest one always. */
D9DI_SAMPLING_FN uint64_t d9di_sampling_least(double min_p)
{
    return min_p >= 1 ? UINT64_C(1) << D9DI_WEIGHT_BITS : (uint64_t)(int64_t)ceil(min_p * 0x1p43);
}

/* The sum that the most likely tokens must reach to be top_p of `sum`; at least one token. */
D9DI_SAMPLING_FN uint64_t d9di_sampling_mass(double top_p, uint64_t sum)
{
    const double mass = ceil(top_p * (double)(int64_t)sum);

    return mass < 1 ? 1 : mass < (double)(int64_t)sum ? (uint64_t)(int64_t)mass : sum;
}

/* Equal tokens of `weight` that reach `mass`, which is at least 1. */
D9DI_SAMPLING_FN uint64_t d9di_sampling_ties(uint64_t mass, uint64_t weight)
{
    return (mass + weight - 1) / weight;
}

/* Of the chosen token and of the softmax: natural logarithms. */
D9DI_SAMPLING_FN double d9di_sampling_log_prob(double z, uint64_t sum)
{
    return z * 0.6931471805599453 - log((double)(int64_t)sum * 0x1p-43);
}
D9DI_SAMPLING_FN double d9di_sampling_entropy(uint64_t sum, uint64_t moment)
{
    return log((double)(int64_t)sum * 0x1p-43) +
           0.6931471805599453 * ((double)(int64_t)moment / (double)(int64_t)sum);
}

#endif /* D9DI_COMMON_SAMPLING_H */
