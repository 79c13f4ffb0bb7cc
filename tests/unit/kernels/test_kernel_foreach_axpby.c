/* Sums of columns of several matrices, against float64. */
#include "support/arrays.h"
#include "support/host_kernels.h"

#include <stdlib.h>

/* Matrices of a list whose arrays are its own, or those of the first. */
typedef struct list_case {
    int count;
    bool one_x, one_y;
    d9d_foreach_matrix of[D9D_FOREACH_MAX];
} list_case;

static const list_case cases[] = {
    /* three matrices of 16, 16 and 4 columns become one, as it is, and are taken apart again */
    {3,
     false,
     true,
     {{.m = 70, .n = 16, .x_ld = 16, .y_ld = 36, .alpha = 1},
      {.m = 70, .n = 16, .x_ld = 16, .y_ld = 36, .y_first = 16, .alpha = 1},
      {.m = 70, .n = 4, .x_ld = 4, .y_ld = 36, .y_first = 32, .alpha = 1}}},
    {3,
     true,
     false,
     {{.m = 70, .n = 16, .x_ld = 36, .y_ld = 16, .alpha = 2},
      {.m = 70, .n = 16, .x_ld = 36, .x_first = 16, .y_ld = 16, .alpha = 0.5f},
      {.m = 70, .n = 4, .x_ld = 36, .x_first = 32, .y_ld = 4, .alpha = -3}}},
    /* sums, odd columns, one row of many columns, nothing */
    {4,
     false,
     false,
     {{.m = 5, .n = 7, .x_ld = 9, .x_first = 2, .y_ld = 8, .y_first = 1, .alpha = 1, .beta = 1},
      {.m = 1, .n = 3001, .x_ld = 3001, .y_ld = 3001, .alpha = 0.25f, .beta = -2},
      {.m = 0, .n = 3, .x_ld = 3, .y_ld = 3, .alpha = 1},
      {.m = 3, .n = 0, .x_ld = 3, .y_ld = 3, .alpha = 1}}},
    {0, false, false, {{.m = 0}}},
};

static void fill(const list_case *c, d9d_dtype yt, d9d_dtype xt, d9d_foreach_matrix *list)
{
    for (int i = 0; i < c->count; i++) {
        list[i] = c->of[i];
        list[i].x = i > 0 && c->one_x
                        ? list[0].x
                        : array_random(xt, list[i].m * list[i].x_ld, (uint64_t)i + 1, 1.0);
        list[i].y = i > 0 && c->one_y
                        ? list[0].y
                        : array_random(yt, list[i].m * list[i].y_ld, (uint64_t)i + 9, 1.0);
    }
}

static void release(const list_case *c, const d9d_foreach_matrix *list)
{
    for (int i = 0; i < c->count; i++) {
        if (i == 0 || !c->one_x)
            free((void *)(uintptr_t)list[i].x);
        if (i == 0 || !c->one_y)
            free(list[i].y);
    }
}

/* All of a y as it should be after the matrices that write to it. */
static double *expected(const d9d_foreach_matrix *list, int count, int of, d9d_dtype yt,
                        d9d_dtype xt)
{
    const int64_t size = list[of].m * list[of].y_ld;
    double *y = calloc((size_t)size + 1, sizeof(*y));

    for (int64_t i = 0; i < size; i++)
        y[i] = array_get(yt, list[of].y, i);
    for (int k = 0; k < count; k++) {
        const d9d_foreach_matrix *a = &list[k];

        for (int64_t i = 0; a->y == list[of].y && i < a->m; i++)
            for (int64_t j = 0; j < a->n; j++) {
                double *to = &y[i * a->y_ld + a->y_first + j];

                *to = (double)a->alpha * array_get(xt, a->x, i * a->x_ld + a->x_first + j) +
                      (double)a->beta * *to;
            }
    }
    return y;
}

static void check(const list_case *c, d9d_dtype yt, d9d_dtype xt)
{
    d9d_foreach_matrix list[D9D_FOREACH_MAX];
    double *want[D9D_FOREACH_MAX] = {0};

    fill(c, yt, xt, list);
    for (int i = 0; i < c->count; i++)
        want[i] = expected(list, c->count, i, yt, xt);
    assert_int_equal(host_kernels()->elementwise->foreach_axpby(NULL, yt, xt, list, c->count),
                     D9D_OK);
    for (int i = 0; i < c->count; i++) {
        array_close("foreach_axpby", yt, list[i].y, want[i], list[i].m * list[i].y_ld, 1e-6);
        free(want[i]);
    }
    release(c, list);
}

static void test_lists(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int t = 0; t < 4; t++)
            check(&cases[i], array_types[t / 2], array_types[t % 2]);
}

static void test_too_many(void **state)
{
    static const d9d_foreach_matrix none[D9D_FOREACH_MAX + 1];

    (void)state;
    assert_int_equal(host_kernels()->elementwise->foreach_axpby(NULL, D9D_F32, D9D_F32, none,
                                                                D9D_FOREACH_MAX + 1),
                     D9D_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_too_many),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
