/* Dropout: which elements are dropped, by the random numbers of d9d/base/rng.h, and how many. */
#include "support/arrays.h"
#include "support/host_kernels.h"

#include <stdlib.h>

#include "d9d/base/rng.h"

enum { ROWS = 5, WIDTH = 5000 };

typedef struct call {
    d9d_dtype t;
    float p, factor;
    const int64_t *token;
    int64_t m, n, first;
    void *x, *y;
} call;

static const d9d_rng rng = {7, 0x123456789abcdef0u};

static void run(void *arg)
{
    call *c = arg;

    assert_int_equal(host_kernels()->elementwise->dropout(NULL, c->t, c->y, c->x, c->p, c->factor,
                                                          rng, c->token, c->m, c->n, c->first,
                                                          WIDTH),
                     D9D_OK);
}

static void check(d9d_dtype t, float p, const int64_t *token, int64_t m, int64_t n, int64_t first)
{
    call c = {t, p, 1.25f, token, m, n, first, NULL, NULL};
    double *want = calloc((size_t)(m * n) + 1, sizeof(*want));

    assert_non_null(want);
    c.x = array_random(t, m * n, 1, 1);
    c.y = array_poison(t, m * n);
    for (int64_t i = 0; i < m * n; i++) {
        const uint64_t at = p > 0 ? (uint64_t)token[i / n] * WIDTH + (uint64_t)(first + i % n) : 0;

        if (p == 0 || d9d_rng_uniform(rng, at) >= p)
            want[i] = 1.25 * array_get(t, c.x, i);
    }
    array_same_for_threads(run, &c, c.y, (size_t)(m * n) * d9d_dtype_size(t), NULL);
    array_close("y", t, c.y, want, m * n, 1e-6);
    free(want);
    free(c.x);
    free(c.y);
}

static void elements_are_left_out_by_number(void **state)
{
    static const int64_t token[ROWS] = {3, 0, INT64_C(1) << 40, 3, 77};

    (void)state;
    for (int i = 0; i < 2; i++)
        for (size_t s = 0; s < sizeof(array_sizes) / sizeof(array_sizes[0]); s++) {
            check(array_types[i], 0.3f, token, ROWS, array_sizes[s], 0);
            check(array_types[i], 0.9f, token, ROWS, array_sizes[s], 101);
            check(array_types[i], 0, NULL, ROWS, array_sizes[s], 0);
            check(array_types[i], 0.5f, token, 0, array_sizes[s], 0);
        }
}

static void as_many_are_left_out_as_should_be(void **state)
{
    const int64_t token[] = {12};
    const float p = 0.2f;
    float *x = array_random(D9D_F32, WIDTH, 1, 1), *y = array_poison(D9D_F32, WIDTH);
    int left_out = 0;

    (void)state;
    assert_int_equal(host_kernels()->elementwise->dropout(NULL, D9D_F32, y, x, p, 1, rng, token, 1,
                                                          WIDTH, 0, WIDTH),
                     D9D_OK);
    for (int i = 0; i < WIDTH; i++)
        left_out += y[i] == 0;
    assert_in_range(left_out, 900, 1100); /* 1000, and 28 is one deviation */
    free(x);
    free(y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_are_left_out_by_number),
        cmocka_unit_test(as_many_are_left_out_as_should_be),
    };

    return cmocka_run_group_tests_name("kernel_dropout", tests, NULL, NULL);
}
