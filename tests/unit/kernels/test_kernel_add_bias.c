/* Biases of rows, of all or by expert, and their gradient, against sums in double. */
#include "support/arrays.h"
#include "support/host_kernels.h"

#include <stdlib.h>

enum { MOST_EXPERTS = 6 };

typedef struct call {
    d9d_dtype t, gt;
    int64_t m, e, n;
    const int32_t *offset; /* NULL: all rows have one bias */
    float beta;
    void *x, *b, *y, *db;
} call;

static void run_forward(void *arg)
{
    call *c = arg;

    assert_int_equal(host_kernels()->elementwise->add_bias(NULL, c->t, c->y, c->x, c->b, c->offset,
                                                           c->m, c->e, c->n),
                     D9D_OK);
}
static void run_in_place(void *arg)
{
    call *c = arg;

    assert_int_equal(host_kernels()->elementwise->add_bias(NULL, c->t, c->y, c->y, c->b, c->offset,
                                                           c->m, c->e, c->n),
                     D9D_OK);
}
static void run_wgrad(void *arg)
{
    call *c = arg;

    assert_int_equal(host_kernels()->gemm->grouped_bias_wgrad(NULL, c->t, c->gt, c->db, c->beta,
                                                              c->x, c->offset, c->m, c->e, c->n),
                     D9D_OK);
}

static int64_t expert_of(const call *c, int64_t row)
{
    int64_t e = 0;

    while (c->offset != NULL && row >= c->offset[e + 1])
        e++;
    return e;
}

static void check_forward(call *c)
{
    const size_t bytes = (size_t)(c->m * c->n) * d9d_dtype_size(c->t);
    double *want = array_doubles(c->t, c->x, c->m * c->n);

    for (int64_t r = 0; r < c->m; r++)
        for (int64_t j = 0; j < c->n; j++)
            want[r * c->n + j] += array_get(c->t, c->b, expert_of(c, r) * c->n + j);
    array_same_for_threads(run_forward, c, c->y, bytes, NULL);
    array_close("y", c->t, c->y, want, c->m * c->n, 1e-6);
    array_same_for_threads(run_in_place, c, c->y, bytes, c->x);
    array_close("y in place", c->t, c->y, want, c->m * c->n, 1e-6);
    free(want);
}

static void check_wgrad(call *c, d9d_dtype gt, float beta)
{
    void *before = array_random(gt, c->e * c->n, 4, 1.0);
    double *want = array_doubles(gt, before, c->e * c->n);

    c->gt = gt;
    c->beta = beta;
    c->db = array_poison(gt, c->e * c->n);
    for (int64_t i = 0; i < c->e * c->n; i++)
        want[i] *= (double)beta;
    for (int64_t r = 0; r < c->m; r++)
        for (int64_t j = 0; j < c->n; j++)
            want[expert_of(c, r) * c->n + j] += array_get(c->t, c->x, r * c->n + j);
    array_same_for_threads(run_wgrad, c, c->db, (size_t)(c->e * c->n) * d9d_dtype_size(gt),
                           beta == 0.0f ? NULL : before);
    array_close("db", gt, c->db, want, c->e * c->n, 1e-5);
    free(before), free(want), free(c->db);
}

static void check(d9d_dtype t, const int32_t *offset, int64_t m, int64_t e, int64_t n)
{
    call c = {.t = t, .offset = offset, .m = m, .e = e, .n = n};

    c.x = array_random(t, m * n, 1, 1.0);
    c.b = array_random(t, e * n, 2, 1.0);
    c.y = array_poison(t, m * n);
    check_forward(&c);
    for (int i = 0; i < 4 && offset != NULL; i++)
        check_wgrad(&c, array_types[i / 2], (float)(i % 2));
    free(c.x), free(c.b), free(c.y);
}

static void rows_get_one_bias(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; i < 8; i++) {
            check(array_types[t], NULL, 5, 1, array_sizes[i]);
            check(array_types[t], NULL, array_sizes[i], 1, 3);
        }
}

/* Experts without rows, with one, with many; none at all. */
static void rows_get_that_of_their_expert(void **state)
{
    static const struct {
        int64_t e;
        int32_t offset[MOST_EXPERTS + 1];
    } all[] = {{1, {0, 7}},
               {3, {0, 2, 2, 7}},
               {4, {0, 0, 1, 65, 257}},
               {6, {0, 130, 130, 387, 388, 452, 452}},
               {2, {0, 0, 0}}};
    static const int64_t columns[] = {0, 1, 7, 64, 200, 1031};

    (void)state;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        for (size_t j = 0; j < sizeof(columns) / sizeof(columns[0]); j++)
            for (int t = 0; t < 2; t++)
                check(array_types[t], all[i].offset, all[i].offset[all[i].e], all[i].e, columns[j]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_get_one_bias),
        cmocka_unit_test(rows_get_that_of_their_expert),
    };

    return cmocka_run_group_tests_name("kernel_add_bias", tests, NULL, NULL);
}
