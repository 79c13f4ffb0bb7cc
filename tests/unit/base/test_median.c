/* test_median.c - the median of none, odd and even numbers of values. */
#include <math.h>
#include <string.h>

#include "d9d/base/median.h"
#include "support/unit.h"

static void median_of_values(void **state)
{
    static const struct {
        size_t n;
        double v[5], median;
    } cases[] = {
        {1, {-3}, -3},          {2, {7, 2}, 4.5},        {3, {9, -1, 4}, 4},
        {4, {8, 1, 2, 100}, 5}, {5, {3, 3, 1, 3, 2}, 3}, {3, {INFINITY, 0, -INFINITY}, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        double v[5];

        memcpy(v, cases[i].v, sizeof(v));
        assert_true(d9d_median(v, cases[i].n) == cases[i].median);
        for (size_t k = 1; k < cases[i].n; k++)
            assert_true(v[k - 1] <= v[k]);
    }
    assert_true(isnan(d9d_median(NULL, 0)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(median_of_values),
    };

    return cmocka_run_group_tests_name("median", tests, NULL, NULL);
}
