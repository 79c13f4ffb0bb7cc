/* The first of the largest numbers of each row. */
#include "support/arrays.h"
#include "support/host_kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 5 };

typedef struct found {
    int32_t at[ROWS];
    float value[ROWS];
} found;

static found look(const float *x, int64_t m, int64_t n)
{
    found f = {{-1, -1, -1, -1, -1}, {0}};

    assert_int_equal(host_kernels()->elementwise->argmax(NULL, f.at, f.value, x, m, n), D9D_OK);
    return f;
}

static int64_t slow(const float *x, int64_t n)
{
    int64_t best = 0;

    for (int64_t i = 1; i < n && !isnan(x[best]); i++)
        if (isnan(x[i]) || x[i] > x[best])
            best = i;
    return best;
}

static void expect_slow(const float *x, int64_t n)
{
    const found f = look(x, ROWS, n);

    for (int64_t r = 0; r < ROWS; r++) {
        assert_int_equal(f.at[r], slow(x + r * n, n));
        assert_memory_equal(&f.value[r], x + r * n + f.at[r], sizeof(float));
    }
}

static const int64_t sizes[] = {1, 2, 7, 31, 33, 1023, 1024, 1025, 16384, 16390, 40961};

static void random_numbers_of_any_count(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        float *x = array_random(D9D_F32, ROWS * sizes[s], 3, 1);

        expect_slow(x, sizes[s]);
        for (int64_t i = 0; i < ROWS * sizes[s]; i++)
            x[i] = -1 - fabsf(x[i]);
        expect_slow(x, sizes[s]);
        free(x);
    }
}

/* Equal numbers, both zeros, infinities and what is no number, wherever they are. */
static void of_equal_ones_the_first(void **state)
{
    static const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-45f, 3e38f};

    (void)state;
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
        for (size_t a = 0; a < sizeof(special) / sizeof(special[0]); a++)
            for (size_t b = 0; b < sizeof(special) / sizeof(special[0]); b++) {
                const int64_t n = sizes[s];
                float *x = malloc((size_t)(ROWS * n) * sizeof(*x));

                assert_non_null(x);
                for (int64_t i = 0; i < ROWS * n; i++)
                    x[i] = special[a];
                for (int64_t r = 0; r < ROWS; r++) {
                    x[r * n + n * r / ROWS] = special[b];
                    x[r * n + n - 1] = special[b];
                }
                expect_slow(x, n);
                free(x);
            }
}

static void no_rows_are_none(void **state)
{
    (void)state;
    assert_int_equal(look(NULL, 0, 5).at[0], -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_numbers_of_any_count),
                                       cmocka_unit_test(of_equal_ones_the_first),
                                       cmocka_unit_test(no_rows_are_none)};

    return cmocka_run_group_tests_name("kernel_largest", tests, NULL, NULL);
}
