/* Strided copies: columns of one array into another, per head, and back. */
#include "support/arrays.h"
#include "support/host_kernels.h"

#include <stdlib.h>
#include <string.h>

typedef struct call {
    d9d_copy_strided_dims n;
    void *x, *y, *dx;
} call;

static void check(call *c)
{
    const d9d_copy_strided_dims *n = &c->n;
    const int64_t size = n->m * n->heads * n->y_cols, back = n->m * n->x_cols;
    double *y = calloc((size_t)size + 1, sizeof(*y)), *dx = calloc((size_t)back + 1, sizeof(*dx));

    c->x = array_random(n->t, back, 1, 1.0);
    c->y = array_random(n->t, size, 2, 1.0);
    c->dx = array_random(n->t, back, 3, 1.0);
    for (int64_t i = 0; i < size; i++)
        y[i] = array_get(n->t, c->y, i);
    for (int64_t i = 0; i < back; i++)
        dx[i] = array_get(n->t, c->dx, i);
    for (int64_t r = 0; r < n->m * n->heads; r++)
        for (int64_t j = 0; j < n->n; j++)
            y[r * n->y_cols + n->y_first + j] =
                array_get(n->t, c->x, r / n->heads * n->x_cols + n->x_first + j);
    assert_int_equal(host_kernels()->elementwise->copy_strided(NULL, n, c->y, c->x), D9D_OK);
    array_close("copy_strided", n->t, c->y, y, size, 0.0);
    for (int64_t i = 0; i < n->m; i++)
        for (int64_t j = 0; j < n->n; j++) {
            double *to = &dx[i * n->x_cols + n->x_first + j];

            *to = 0;
            for (int64_t h = 0; h < n->heads; h++)
                *to += y[(i * n->heads + h) * n->y_cols + n->y_first + j];
        }
    assert_int_equal(host_kernels()->elementwise->copy_strided_bwd(NULL, n, c->dx, c->y), D9D_OK);
    array_close("copy_strided_bwd", n->t, c->dx, dx, back, 1e-6);
    free(c->x);
    free(c->y);
    free(c->dx);
    free(y);
    free(dx);
}

static void test_columns(void **state)
{
    const d9d_copy_strided_dims shapes[] = {
        {.m = 5, .heads = 1, .n = 7, .x_cols = 9, .x_first = 2, .y_cols = 8, .y_first = 1},
        {.m = 3, .heads = 4, .n = 64, .x_cols = 64, .x_first = 0, .y_cols = 192, .y_first = 128},
        {.m = 4,
         .heads = 3,
         .n = 1500,
         .x_cols = 1600,
         .x_first = 40,
         .y_cols = 1501,
         .y_first = 1},
        {.m = 70, .heads = 16, .n = 33, .x_cols = 33, .x_first = 0, .y_cols = 40, .y_first = 7},
        {.m = 2, .heads = 2, .n = 0, .x_cols = 3, .x_first = 3, .y_cols = 2, .y_first = 2},
        {.m = 0, .heads = 2, .n = 3, .x_cols = 3, .x_first = 0, .y_cols = 4, .y_first = 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (int t = 0; t < 2; t++) {
            call c = {.n = shapes[i]};

            c.n.t = array_types[t];
            check(&c);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_columns)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
