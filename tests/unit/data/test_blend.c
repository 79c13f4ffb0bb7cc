/* test_blend.c - drawing from a blend: shares of every prefix, repetition, and the inverse. */
#include "support/unit.h"

#include <math.h>

#include "d9d/base/rng.h"
#include "d9d/data/loader/blend.h"

static double sum_of(const double *w, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += w[i];
    return sum;
}

/* No source is ever a whole sample away from its share of the first `draws`. */
static void check_shares(const double *w, size_t n, int64_t draws)
{
    const double sum = sum_of(w, n);
    int64_t given[D9D_BLEND_SOURCES] = {0};
    d9d_blend *b;

    assert_ok(d9d_blend_create(w, n, &b));
    for (int64_t k = 0; k < draws; k++) {
        const d9d_blend_ref d = d9d_blend_at(b, k);

        assert_in_range(d.source, 0, n - 1);
        assert_int_equal(d.number, given[d.source]++);
        if (k % 97 == 0)
            assert_int_equal(d9d_blend_find(b, d.source, d.number), k);
        for (size_t i = 0; i < n; i++)
            assert_true(fabs((double)given[i] - (double)(k + 1) * w[i] / sum) < 1 + 1e-9);
    }
    d9d_blend_free(b);
}

static void test_shares(void **state)
{
    static const double some[][5] = {
        {1, 1},    {3, 1, 1}, {0.7, 0.2, 0.1}, {5, 4, 3, 2, 1}, {0.5, 0.25, 0.125, 0.0625, 0.0625},
        {1, 1000}, {99, 1}};
    static const size_t n[] = {2, 3, 3, 5, 5, 2, 2};

    (void)state;
    for (size_t i = 0; i < sizeof(n) / sizeof(*n); i++)
        check_shares(some[i], n[i], 3003);
}

/* Random integer weights, few and many. */
static void test_random_weights(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        const d9d_rng r = {seed, 1};
        const size_t n = 2 + d9d_rng_below(r, 0, seed % 10 == 0 ? 200 : 9);
        double w[D9D_BLEND_SOURCES];

        for (size_t i = 0; i < n; i++)
            w[i] = 1 + (double)d9d_rng_below((d9d_rng){seed, 2}, i, 1 + seed * seed);
        check_shares(w, n, 1500);
    }
}

/* Weights that are not small integers: right to a millionth. */
static void test_odd_weights(void **state)
{
    static const double w[] = {0.1234567891, 3.14159265358979, 1e-9, 123456789};
    int64_t given[4] = {0};
    d9d_blend *b;

    (void)state;
    check_shares((const double[]){1.0 / 3, 2.0 / 3}, 2, 100000);
    assert_ok(d9d_blend_create(w, 4, &b));
    for (int64_t k = 0; k < (1 << 20) + 8; k++) /* the small ones make the period longer */
        given[d9d_blend_at(b, k).source]++;
    for (size_t i = 0; i < 4; i++) {
        assert_true(given[i] >= 1);
        assert_true(fabs((double)given[i] / (1 << 20) - w[i] / sum_of(w, 4)) < 1e-5);
    }
    d9d_blend_free(b);
}

static void test_refusals(void **state)
{
    double many[D9D_BLEND_SOURCES + 1] = {0};
    d9d_blend *b;

    (void)state;
    assert_fails_like(d9d_blend_create(many, 2, &b), D9D_ECONFIG, "weight 0 of a blend is 0");
    assert_fails_like(d9d_blend_create((const double[]){1, NAN}, 2, &b), D9D_ECONFIG,
                      "weight 1 of a blend is");
    assert_fails_like(d9d_blend_create((const double[]){1, INFINITY}, 2, &b), D9D_ECONFIG,
                      "weight 1 of a blend is inf");
    assert_fails_like(d9d_blend_create(many, D9D_BLEND_SOURCES + 1, &b), D9D_ECONFIG,
                      "a blend of 257 datasets; it takes from 1 to 256");
    assert_fails_like(d9d_blend_create(many, 0, &b), D9D_ECONFIG, "a blend of 0 datasets");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_random_weights),
        cmocka_unit_test(test_odd_weights),
        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
