/* exact_sum.c - see metric/exact_sum.h.  The sums and products of two doubles without rounding are
 * those of Dekker and Knuth. */
#include "metric/exact_sum.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { LIMBS = D9DI_EXACT_SUM_LIMBS, LIMB_BITS = 32, LEAST_BIT = -320, MANTISSA = 53 };
#define LIMB_MASK UINT32_MAX

/* --- adding ----------------------------------------------------------------------------------- */

void d9di_exact_sum_add(int64_t *limb, double v)
{
    int exponent, bit, shift;
    uint64_t mantissa, low, high;

    if (v == 0)
        return;
    mantissa = (uint64_t)ldexp(frexp(fabs(v), &exponent), MANTISSA);
    bit = exponent - MANTISSA - LEAST_BIT;
    if (bit < 0) {
        mantissa = bit > -MANTISSA ? mantissa >> -bit : 0;
        bit = 0;
    }
    shift = bit % LIMB_BITS;
    low = (mantissa & LIMB_MASK) << shift;
    high = (mantissa >> LIMB_BITS) << shift;
    high += low >> LIMB_BITS;
    {
        const int64_t part[3] = {(int64_t)(low & LIMB_MASK), (int64_t)(high & LIMB_MASK),
                                 (int64_t)(high >> LIMB_BITS)};

        for (int i = 0; i < 3; i++)
            limb[bit / LIMB_BITS + i] += v < 0 ? -part[i] : part[i];
    }
}

void d9di_exact_sum_add_product(int64_t *limb, double a, double b)
{
    const double high = a * b;

    d9di_exact_sum_add(limb, high);
    d9di_exact_sum_add(limb, fma(a, b, -high));
}

void d9di_exact_sum_carry(int64_t *limb)
{
    for (int i = 0; i + 1 < LIMBS; i++) {
        const int64_t rest = limb[i] & (int64_t)LIMB_MASK;

        limb[i + 1] += (limb[i] - rest) / (INT64_C(1) << LIMB_BITS);
        limb[i] = rest;
    }
}

/* --- values ----------------------------------------------------------------------------------- */

static d9di_exact_sum_pair two_sum(double a, double b)
{
    const double sum = a + b, rest = sum - a;

    return (d9di_exact_sum_pair){sum, (a - (sum - rest)) + (b - rest)};
}

d9di_exact_sum_pair d9di_exact_sum_value(const int64_t *limb)
{
    int64_t carried[LIMBS];
    d9di_exact_sum_pair v = {0, 0};
    bool negative;

    memcpy(carried, limb, sizeof(carried));
    d9di_exact_sum_carry(carried);
    negative = carried[LIMBS - 1] < 0;
    for (int i = 0; i < LIMBS && negative; i++)
        carried[i] = -carried[i];
    if (negative)
        d9di_exact_sum_carry(carried);
    for (int i = LIMBS; i-- > 0;) {
        const d9di_exact_sum_pair sum =
            two_sum(v.high, ldexp((double)carried[i], LIMB_BITS * i + LEAST_BIT));

        v = two_sum(sum.high, v.low + sum.low);
    }
    return negative ? (d9di_exact_sum_pair){-v.high, -v.low} : v;
}

d9di_exact_sum_pair d9di_exact_sum_product(d9di_exact_sum_pair a, d9di_exact_sum_pair b)
{
    const double high = a.high * b.high;

    return two_sum(high, fma(a.high, b.high, -high) + (a.high * b.low + a.low * b.high));
}

d9di_exact_sum_pair d9di_exact_sum_difference(d9di_exact_sum_pair a, d9di_exact_sum_pair b)
{
    const d9di_exact_sum_pair high = two_sum(a.high, -b.high), low = two_sum(a.low, -b.low);
    const d9di_exact_sum_pair sum = two_sum(high.high, high.low + low.high);

    return two_sum(sum.high, sum.low + low.low);
}
