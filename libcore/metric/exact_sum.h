/* exact_sum.h - sums of numbers without rounding, which therefore do not depend on their order.
 *
 * A sum is a fixed-point number of 64-bit integers, each of which stands for 32 of its bits:
 *
 *     sum = 2^-320 (limb[0] + 2^32 limb[1] + ... + 2^608 limb[19])
 *
 * so that two sums are added element by element, by an all-reduce of int64.  Bits below 2^-320 are
 * dropped from each number, towards 0.
 */
#ifndef D9DI_METRIC_EXACT_SUM_H
#define D9DI_METRIC_EXACT_SUM_H

#include <stdint.h>

enum { D9DI_EXACT_SUM_LIMBS = 20 };

/* Adds v, of magnitude below 2^260.  At most 2^30 numbers may be added, or sums that were carried,
 * before the next carry. */
void d9di_exact_sum_add(int64_t *limb, double v);
/* Adds a b, both of magnitude below 2^130. */
void d9di_exact_sum_add_product(int64_t *limb, double a, double b);
/* Brings all limbs but the last into [0, 2^32). */
void d9di_exact_sum_carry(int64_t *limb);

/* About 106 bits of a number: high + low, where high is the number as a double. */
typedef struct d9di_exact_sum_pair {
    double high, low;
} d9di_exact_sum_pair;
d9di_exact_sum_pair d9di_exact_sum_value(const int64_t *limb);
d9di_exact_sum_pair d9di_exact_sum_product(d9di_exact_sum_pair a, d9di_exact_sum_pair b);
d9di_exact_sum_pair d9di_exact_sum_difference(d9di_exact_sum_pair a, d9di_exact_sum_pair b);

#endif /* D9DI_METRIC_EXACT_SUM_H */
