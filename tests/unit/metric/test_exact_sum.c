/* test_exact_sum.c - sums without rounding: cancellation, signs, small and large numbers. */
#include "support/unit.h"

#include <math.h>

#include "metric/exact_sum.h"

static void sum_is(const double *v, int n, double high, double low)
{
    int64_t limb[D9DI_EXACT_SUM_LIMBS] = {0};
    d9di_exact_sum_pair got;

    for (int i = 0; i < n; i++)
        d9di_exact_sum_add(limb, v[i]);
    got = d9di_exact_sum_value(limb);
    if (got.high != high || got.low != low)
        fail_msg("%.17g + %.17g, must be %.17g + %.17g", got.high, got.low, high, low);
    d9di_exact_sum_carry(limb);
    got = d9di_exact_sum_value(limb);
    assert_true(got.high == high && got.low == low);
}
#define SUM_IS(high, low, ...)                                                                     \
    sum_is((const double[]){__VA_ARGS__}, sizeof((const double[]){__VA_ARGS__}) / sizeof(double),  \
           high, low)

static void nothing_is_rounded(void **state)
{
    (void)state;
    SUM_IS(0, 0, 0);
    SUM_IS(1, 0, 1e40, 1, -1e40);
    SUM_IS(-1, 0, 1e40, -1, -1e40);
    SUM_IS(0x1p-319, 0, 0x1p258, 0x1p-320, -0x1p258, 0x1p-320);
    SUM_IS(-0x1p-320, 0, -0x1p-320);
    SUM_IS(1, 0x1p-60, 0x1p-60, 1);
    SUM_IS(-1, -0x1p-60, -0x1p-60, -1);
    SUM_IS(0, 0, 0x1p-400, 0x1p-321); /* below the last bit */
    SUM_IS(0x1.fffffffffffffp100, 0, 0x1.fffffffffffffp100);
}

static void products_and_differences_keep_twice_the_digits(void **state)
{
    int64_t limb[D9DI_EXACT_SUM_LIMBS] = {0};
    const double x = 1 + 0x1p-40;
    d9di_exact_sum_pair v;

    (void)state;
    d9di_exact_sum_add_product(limb, x, x);
    d9di_exact_sum_add(limb, -1 - 0x1p-39);
    v = d9di_exact_sum_value(limb);
    assert_true(v.high == 0x1p-80 && v.low == 0);
    v = d9di_exact_sum_product((d9di_exact_sum_pair){x, 0}, (d9di_exact_sum_pair){x, 0});
    v = d9di_exact_sum_difference(v, (d9di_exact_sum_pair){1 + 0x1p-39, 0});
    assert_true(v.high == 0x1p-80 && v.low == 0);
}

static void a_million_numbers_of_any_size_cancel(void **state)
{
    int64_t limb[D9DI_EXACT_SUM_LIMBS] = {0};
    d9di_exact_sum_pair v;

    (void)state;
    for (int sign = 1; sign >= -1; sign -= 2) {
        for (int i = 0; i < 1000000; i++)
            d9di_exact_sum_add(limb, ldexp(sign * (1 + i % 97), i % 400 - 200));
        d9di_exact_sum_carry(limb);
    }
    for (int i = 0; i < D9DI_EXACT_SUM_LIMBS; i++)
        assert_int_equal(limb[i], 0);
    v = d9di_exact_sum_value(limb);
    assert_true(v.high == 0 && v.low == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_rounded),
        cmocka_unit_test(products_and_differences_keep_twice_the_digits),
        cmocka_unit_test(a_million_numbers_of_any_size_cancel),
    };

    return cmocka_run_group_tests_name("exact sums", tests, NULL, NULL);
}
