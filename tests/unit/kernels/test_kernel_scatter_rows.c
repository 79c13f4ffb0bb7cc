/* Rows of a small array into a larger one. */
#include "support/arrays.h"
#include "support/host_kernels.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 9 }; /* of the larger one */

typedef struct call {
    d9d_dtype t;
    int64_t ld, first, m, n;
    const int32_t *at;
    void *x, *y;
} call;

static void run(void *arg)
{
    call *c = arg;

    assert_int_equal(host_kernels()->elementwise->scatter_rows(NULL, c->t, c->y, c->ld, c->first,
                                                               c->at, c->x, c->m, c->n),
                     D9D_OK);
}

static void check(d9d_dtype t, const int32_t *at, int64_t m, int64_t n, int64_t before,
                  int64_t after)
{
    call c = {t, before + n + after, before, m, n, at, NULL, NULL};
    const size_t bytes = (size_t)(ROWS * c.ld) * d9d_dtype_size(t);
    void *old = array_random(t, ROWS * c.ld, 2, 1);
    double *want = array_doubles(t, old, ROWS * c.ld);

    c.x = array_random(t, m * n, 1, 1);
    c.y = malloc(bytes + 1);
    assert_non_null(c.y);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            if (at == NULL || at[i] >= 0)
                want[(at != NULL ? at[i] : i) * c.ld + before + j] = array_get(t, c.x, i * n + j);
    array_same_for_threads(run, &c, c.y, bytes, old);
    array_close("y", t, c.y, want, ROWS * c.ld, 0);
    free(want);
    free(old);
    free(c.x);
    free(c.y);
}

static void rows_go_where_they_are_sent(void **state)
{
    static const int32_t at[] = {7, 0, -1, 3, 8};

    (void)state;
    for (int i = 0; i < 2; i++)
        for (size_t s = 0; s < sizeof(array_sizes) / sizeof(array_sizes[0]); s++) {
            check(array_types[i], at, 5, array_sizes[s], 0, 0);
            check(array_types[i], at, 5, array_sizes[s], 3, 8);
            check(array_types[i], NULL, ROWS, array_sizes[s], 8, 1);
            check(array_types[i], at, 0, array_sizes[s], 1, 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_go_where_they_are_sent)};

    return cmocka_run_group_tests_name("kernel_put_rows", tests, NULL, NULL);
}
