/* Embedding rows and their gradient. */
#include "support/arrays.h"
#include "support/host_kernels.h"

#include <stdlib.h>
#include <string.h>

typedef struct call {
    d9d_dtype t, gt;
    int64_t rows, first, v, h;
    float beta;
    int32_t *ids;
    void *table, *dy, *y, *dw;
} call;

static void run_forward(void *arg)
{
    call *p = arg;

    assert_int_equal(host_kernels()->elementwise->embedding(NULL, p->t, p->y, p->ids, p->table,
                                                            p->rows, p->first, p->v, p->h, true),
                     D9D_OK);
}
static void run_wgrad(void *arg)
{
    call *p = arg;

    assert_int_equal(host_kernels()->elementwise->embedding_wgrad(NULL, p->t, p->gt, p->dw, p->beta,
                                                                  p->ids, p->dy, p->rows, p->first,
                                                                  p->v, p->h),
                     D9D_OK);
}

static void naive(const call *p, double *y, double *dw)
{
    for (int64_t i = 0; i < p->rows * p->h; i++) {
        int64_t row = (int64_t)p->ids[i / p->h] - p->first;

        if (row < 0 || row >= p->v)
            continue;
        y[i] = array_get(p->t, p->table, row * p->h + i % p->h);
        dw[row * p->h + i % p->h] += array_get(p->t, p->dy, i);
    }
}

static void check(call *p)
{
    int64_t n = p->rows * p->h, n_w = p->v * p->h;
    void *before = p->beta == 0.0f ? NULL : array_random(p->gt, n_w, 3, 1.0);
    double *y = calloc((size_t)n + 1, sizeof(*y)), *dw = calloc((size_t)n_w + 1, sizeof(*dw));

    p->table = array_random(p->t, n_w, 1, 1.0);
    p->dy = array_random(p->t, n, 2, 1.0);
    p->y = array_poison(p->t, n);
    p->dw = array_poison(p->gt, n_w);
    p->ids = calloc((size_t)p->rows + 1, sizeof(*p->ids));
    for (int64_t i = 0; i < p->rows; i++)
        p->ids[i] = i % 11 == 3 ? (i % 2 ? INT32_MIN : INT32_MAX)
                                : (int32_t)(p->first + i * i * 7 % (p->v + 3) - 1);
    naive(p, y, dw);
    for (int64_t i = 0; i < n_w && before != NULL; i++)
        dw[i] += array_get(p->gt, before, i);
    array_same_for_threads(run_forward, p, p->y, (size_t)n * d9d_dtype_size(p->t), NULL);
    array_same_for_threads(run_wgrad, p, p->dw, (size_t)n_w * d9d_dtype_size(p->gt), before);
    array_close("y", p->t, p->y, y, n, 0.0);
    array_close("dw", p->gt, p->dw, dw, n_w, 1e-5);
    void *parts[] = {p->table, p->dy, p->y, p->dw, p->ids, before, y, dw};
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        free(parts[i]);
}

static void test_embedding(void **state)
{
    const int64_t shapes[][4] = {{0, 0, 5, 3},     {1, 0, 1, 1},       {17, 100, 3, 33},
                                 {33, 0, 0, 4},    {700, 10, 50, 130}, {90, 0, 1000, 1030},
                                 {2000, 5, 3, 72}, {1999, 0, 1, 12}};

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (int flags = 0; flags < 4; flags++) {
            call p = {.t = array_types[flags & 1],
                      .gt = array_types[flags >> 1],
                      .rows = shapes[i][0],
                      .first = shapes[i][1],
                      .v = shapes[i][2],
                      .h = shapes[i][3],
                      .beta = flags == 1 || flags == 2 ? 1.0f : 0.0f};

            check(&p);
        }
}

/* A second split fills in its rows and leaves the others. */
static void test_splits(void **state)
{
    const float a[] = {1, 2}, b[] = {3, 4};
    const int32_t ids[] = {3, 0, 9, 1, 2};
    const float want[] = {4, 1, 0, 2, 3};
    float y[5];

    (void)state;
    assert_int_equal(
        host_kernels()->elementwise->embedding(NULL, D9D_F32, y, ids, a, 5, 0, 2, 1, true), D9D_OK);
    assert_int_equal(
        host_kernels()->elementwise->embedding(NULL, D9D_F32, y, ids, b, 5, 2, 2, 1, false),
        D9D_OK);
    assert_memory_equal(y, want, sizeof(want));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_splits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
