/* test_rng.c - Philox against its published vectors; distributions of random numbers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/rng.h"
#include "support/unit.h"

/* Known answers of the Random123 distribution (philox4x32, 10 rounds). */
static void philox_gives_the_known_answers(void **state)
{
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } rows[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint32_t out[4];

        d9d_philox(rows[i].counter, rows[i].key, out);
        assert_memory_equal(out, rows[i].want, sizeof(out));
    }
}

static void words_follow_the_layout_of_the_header(void **state)
{
    const d9d_rng r = {.seed = 0x299f31d0a4093822, .stream = 0x0370734413198a2e};
    const uint64_t block = 0x05a308d3243f6a88;
    const uint32_t counter[4] = {0x243f6a88, 0x05a308d3, 0x13198a2e, 0x03707344};
    const uint32_t key[2] = {0xa4093822, 0x299f31d0};
    uint32_t want[4];

    (void)state;
    d9d_philox(counter, key, want);
    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(d9d_rng_u32(r, 4 * block + i), want[i]);
    for (uint64_t i = 0; i < 2; i++)
        assert_int_equal(d9d_rng_u64(r, 2 * block + i),
                         (uint64_t)want[2 * i + 1] << 32 | want[2 * i]);
}

static void streams_and_seeds_differ(void **state)
{
    (void)state;
    assert_int_not_equal(d9d_rng_u64((d9d_rng){1, 1}, 0), d9d_rng_u64((d9d_rng){1, 2}, 0));
    assert_int_not_equal(d9d_rng_u64((d9d_rng){1, 1}, 0), d9d_rng_u64((d9d_rng){2, 1}, 0));
    assert_int_not_equal(d9d_rng_u64((d9d_rng){1, 1}, 0), d9d_rng_u64((d9d_rng){1, 1}, 1));
}

static void uniform_and_normal_have_their_moments(void **state)
{
    enum { N = 1 << 17 };
    const d9d_rng r = {.seed = 7, .stream = 3};
    double u1 = 0, u2 = 0, n1 = 0, n2 = 0, n4 = 0;

    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        const double u = d9d_rng_uniform(r, i), n = d9d_rng_normal(r, i);

        assert_true(u >= 0 && u < 1);
        assert_true(isfinite(n));
        u1 += u / N;
        u2 += u * u / N;
        n1 += n / N;
        n2 += n * n / N;
        n4 += n * n * n * n / N;
    }
    /* Five standard errors each. */
    assert_float_equal(u1, 0.5, 5 * sqrt(1.0 / 12 / N));
    assert_float_equal(u2, 1.0 / 3, 5 * sqrt(4.0 / 45 / N));
    assert_float_equal(n1, 0, 5 * sqrt(1.0 / N));
    assert_float_equal(n2, 1, 5 * sqrt(2.0 / N));
    assert_float_equal(n4, 3, 5 * sqrt(96.0 / N));
}

static void normal_follows_the_formula_of_the_header(void **state)
{
    const d9d_rng r = {.seed = 11, .stream = 12};

    (void)state;
    for (uint64_t i = 0; i < 100; i++) {
        const double a = d9d_rng_u32(r, 2 * i), b = d9d_rng_u32(r, 2 * i + 1);
        const double want = sqrt(-2 * log((a + 1) / 4294967296.0)) *
                            cos(2 * 3.14159265358979323846 * b / 4294967296.0);

        assert_float_equal(d9d_rng_normal(r, i), want, 1e-6);
    }
}

static void below_is_even_over_its_range(void **state)
{
    enum { SIDES = 6, N = 60000 };
    const d9d_rng r = {.seed = 5, .stream = 9};
    double chi = 0;
    int count[SIDES] = {0};

    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        const uint64_t v = d9d_rng_below(r, i, SIDES);

        assert_true(v < SIDES);
        count[v]++;
    }
    for (int k = 0; k < SIDES; k++)
        chi += pow(count[k] - N / SIDES, 2) / (N / SIDES);
    assert_true(chi < 25.7); /* 5 degrees of freedom, p = 1e-4 */
}

/* Half of all draws are rejected for this n: thirds must still be uniform. */
static void below_rejects_without_bias(void **state)
{
    enum { N = 30000 };
    const uint64_t n = (UINT64_C(1) << 63) + 1;
    const d9d_rng r = {.seed = 6, .stream = 9};
    int low = 0;

    (void)state;
    assert_int_equal(d9d_rng_below(r, 3, 1), 0);
    for (uint64_t i = 0; i < N; i++) {
        const uint64_t v = d9d_rng_below(r, i, n);

        assert_true(v < n);
        assert_int_equal(v, d9d_rng_below(r, i, n));
        low += v < n / 3;
    }
    assert_float_equal((double)low / N, 1.0 / 3, 5 * sqrt(2.0 / 9 / N));
}

static void permute_is_a_permutation_of_every_size(void **state)
{
    unsigned char seen[300];

    (void)state;
    for (uint64_t n = 1; n <= sizeof(seen); n++) {
        const d9d_rng r = {.seed = n, .stream = 4};

        memset(seen, 0, sizeof(seen));
        for (uint64_t i = 0; i < n; i++) {
            const uint64_t v = d9d_rng_permute(r, i, n);

            assert_true(v < n);
            assert_int_equal(seen[v]++, 0);
        }
    }
}

static void permute_puts_every_element_anywhere(void **state)
{
    enum { N = 10, SEEDS = 20000 };
    double chi = 0;
    static int count[N][N];

    (void)state;
    for (uint64_t s = 0; s < SEEDS; s++)
        for (uint64_t i = 0; i < N; i++)
            count[i][d9d_rng_permute((d9d_rng){.seed = s, .stream = 1}, i, N)]++;
    for (int i = 0; i < N; i++)
        for (int k = 0; k < N; k++)
            chi += pow(count[i][k] - SEEDS / N, 2) / (SEEDS / N);
    assert_true(chi < 133.5); /* 81 degrees of freedom, p = 2e-4 */
}

/* Neighbours must not stay neighbours, and the permutations of n and n + 1 must be independent. */
static void permute_scatters(void **state)
{
    const uint64_t n = 100000;
    const d9d_rng r = {.seed = 1, .stream = 2};
    int near = 0, same = 0;

    (void)state;
    for (uint64_t i = 0; i + 1 < n; i++) {
        const uint64_t v = d9d_rng_permute(r, i, n), w = d9d_rng_permute(r, i + 1, n);

        near += (v > w ? v - w : w - v) < 10;
        same += i < 1000 && v == d9d_rng_permute(r, i, n + 1);
    }
    assert_in_range(near, 0, 50); /* 18 expected */
    assert_in_range(same, 0, 5);  /* 0.01 expected */
}

static void permute_reaches_the_largest_domain(void **state)
{
    const uint64_t n = UINT64_C(1) << 62;
    const d9d_rng r = {.seed = 1, .stream = 2};

    (void)state;
    for (uint64_t i = 0; i < 100; i++)
        assert_true(d9d_rng_permute(r, n - 1 - i, n) < n);
    assert_int_not_equal(d9d_rng_permute(r, 0, n), d9d_rng_permute(r, 1, n));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_known_answers),
        cmocka_unit_test(words_follow_the_layout_of_the_header),
        cmocka_unit_test(streams_and_seeds_differ),
        cmocka_unit_test(uniform_and_normal_have_their_moments),
        cmocka_unit_test(normal_follows_the_formula_of_the_header),
        cmocka_unit_test(below_is_even_over_its_range),
        cmocka_unit_test(below_rejects_without_bias),
        cmocka_unit_test(permute_is_a_permutation_of_every_size),
        cmocka_unit_test(permute_puts_every_element_anywhere),
        cmocka_unit_test(permute_scatters),
        cmocka_unit_test(permute_reaches_the_largest_domain),
    };

    return cmocka_run_group_tests_name("rng", tests, NULL, NULL);
}
