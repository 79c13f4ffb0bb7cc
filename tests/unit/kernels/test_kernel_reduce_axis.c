/* Reductions along an axis and over segments, and gather, with their gradients, against double
 * arithmetic by their definitions. */
#include "support/arrays.h"
#include "support/host_kernels.h"
#include "support/unit_device.h"

#include <math.h>
#include <stdlib.h>

typedef struct call {
    d9d_reduce_axis_dims d;
    int64_t n; /* elements of x */
    void *x, *dx;
    float *y, *dy;
} call;

static void run(void *arg)
{
    const call *c = arg;

    assert_int_equal(host_kernels()->math->reduce_axis(NULL, &c->d, c->y, c->x), D9D_OK);
}
static void run_bwd(void *arg)
{
    const call *c = arg;
    const bool reads = c->d.kind == D9D_REDUCE_MAX || c->d.kind == D9D_REDUCE_LOGSUMEXP;

    assert_int_equal(host_kernels()->math->reduce_axis_bwd(
                         NULL, &c->d, c->dx, c->dy, reads ? c->x : NULL, reads ? c->y : NULL),
                     D9D_OK);
}

static void rows_of(const d9d_reduce_axis_dims *d, int64_t i, int64_t *first, int64_t *end)
{
    *first = d->offset != NULL ? d->offset[i] : i * d->r;
    *end = d->offset != NULL ? d->offset[i + 1] : (i + 1) * d->r;
}

/* The result of row i and column j, and the gradients of its elements for dy. */
static double want_of(const call *c, int64_t i, int64_t j, double dy, double *dx)
{
    const int64_t n = c->d.n;
    double sum = 0, max = -INFINITY, ties = 0, exps = 0;
    int64_t first, end;

    rows_of(&c->d, i, &first, &end);
    for (int64_t r = first; r < end; r++) {
        sum += array_get(c->d.t, c->x, r * n + j);
        max = fmax(max, array_get(c->d.t, c->x, r * n + j));
    }
    for (int64_t r = first; r < end; r++) {
        ties += array_get(c->d.t, c->x, r * n + j) == max;
        exps += exp(array_get(c->d.t, c->x, r * n + j) - max);
    }
    for (int64_t r = first; r < end; r++) {
        const double x = array_get(c->d.t, c->x, r * n + j);

        dx[r * n + j] = c->d.kind == D9D_REDUCE_SUM    ? dy
                        : c->d.kind == D9D_REDUCE_MEAN ? dy / (double)(end - first)
                        : c->d.kind == D9D_REDUCE_MAX  ? (x == max ? dy / ties : 0)
                                                       : dy * exp(x - max) / exps;
    }
    return c->d.kind == D9D_REDUCE_SUM    ? sum
           : c->d.kind == D9D_REDUCE_MEAN ? (end > first ? sum / (double)(end - first) : 0)
           : c->d.kind == D9D_REDUCE_MAX  ? max
                                          : max + log(exps);
}

static void check(const d9d_reduce_axis_dims *d)
{
    const double tolerance = d->kind == D9D_REDUCE_SUM ? 3e-6 * sqrt((double)d->r + 1) : 4e-6;
    const int64_t results = d->m * d->n;
    call c = {.d = *d, .n = (d->offset != NULL ? 1 : d->m) * d->r * d->n};
    double *y = calloc((size_t)results + 1, sizeof(*y)), *dx = calloc((size_t)c.n + 1, sizeof(*dx));

    assert_true(y != NULL && dx != NULL);
    c.x = array_random(d->t, c.n, 1, 1.0);
    c.dx = array_poison(d->t, c.n);
    c.y = array_poison(D9D_F32, results);
    c.dy = array_random(D9D_F32, results, 2, 1.0);
    for (int64_t i = 0; i < d->m; i++)
        for (int64_t j = 0; j < d->n; j++)
            y[i * d->n + j] = want_of(&c, i, j, (double)c.dy[i * d->n + j], dx);
    array_same_for_threads(run, &c, c.y, (size_t)results * sizeof(float), NULL);
    for (int64_t i = 0; i < results; i++)
        if (isinf(y[i]) && c.y[i] == (float)y[i])
            c.y[i] = 0, y[i] = 0;
    array_close("y", D9D_F32, c.y, y, results, tolerance);
    run(&c);
    array_same_for_threads(run_bwd, &c, c.dx, (size_t)c.n * d9d_dtype_size(d->t), NULL);
    array_close("dx", d->t, c.dx, dx, c.n, 8e-6);
    free(c.x), free(c.dx), free(c.y), free(c.dy), free(y), free(dx);
}

/* M, R, N: short and long axes, few and many columns, and axes that are reduced in parts. */
static void axes_are_reduced(void **state)
{
    static const int64_t sizes[][3] = {{3, 5, 1},    {3, 5, 4},     {1, 1000, 1}, {7, 33, 1},
                                       {2, 300, 3},  {5, 2, 70},    {2, 17, 513}, {1, 5000, 3},
                                       {2, 4097, 1}, {1, 70001, 1}, {0, 5, 3},    {3, 0, 2},
                                       {3, 4, 0},    {600, 3, 1}};

    (void)state;
    for (int kind = 0; kind < D9D_N_REDUCE_KINDS; kind++)
        for (size_t i = 0; i < 2 * sizeof(sizes) / sizeof(sizes[0]); i++) {
            const int64_t *n = sizes[i / 2];

            check(&(d9d_reduce_axis_dims){.kind = (d9d_reduce_kind)kind,
                                          .t = array_types[i % 2],
                                          .m = n[0],
                                          .r = n[1],
                                          .n = n[2]});
        }
}

static void segments_are_reduced(void **state)
{
    static const int32_t offset[7] = {2, 5, 5, 6, 300, 301, 310};

    (void)state;
    for (int kind = 0; kind < D9D_N_REDUCE_KINDS; kind++)
        for (int64_t n = 1; n < 600; n = 3 * n + 1)
            for (size_t t = 0; t < 2; t++)
                check(&(d9d_reduce_axis_dims){.kind = (d9d_reduce_kind)kind,
                                              .t = array_types[t],
                                              .m = 6,
                                              .r = 320,
                                              .n = n,
                                              .offset = offset});
}

/* Large numbers do not overflow, infinities are results, NaN is not hidden. */
static void ends_are_right(void **state)
{
    static const struct {
        d9d_reduce_kind kind;
        float x[3], want;
    } all[] = {
        {D9D_REDUCE_LOGSUMEXP, {1e4f, 1e4f, -1e4f}, 10000.693f},
        {D9D_REDUCE_LOGSUMEXP, {-INFINITY, -INFINITY, -INFINITY}, -INFINITY},
        {D9D_REDUCE_LOGSUMEXP, {-INFINITY, 2, -INFINITY}, 2},
        {D9D_REDUCE_LOGSUMEXP, {INFINITY, 2, 1}, INFINITY},
        {D9D_REDUCE_LOGSUMEXP, {1, NAN, 1}, NAN},
        {D9D_REDUCE_MAX, {1, NAN, 3}, NAN},
        {D9D_REDUCE_MAX, {NAN, 1, 3}, NAN},
        {D9D_REDUCE_MAX, {-3, -1, -2}, -1},
        {D9D_REDUCE_SUM, {1, NAN, 3}, NAN},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        for (int64_t n = 1; n < 3; n++) { /* a row; one of two equal columns */
            const d9d_reduce_axis_dims d = {.kind = all[i].kind, .m = 1, .r = 3, .n = n};
            float x[6], y[2] = {77, 77};

            for (int64_t k = 0; k < 3 * n; k++)
                x[k] = all[i].x[k / n];
            assert_int_equal(host_kernels()->math->reduce_axis(NULL, &d, y, x), D9D_OK);
            if (isnan(all[i].want)
                    ? !isnan(y[n - 1])
                    : !(y[n - 1] == all[i].want || fabsf(y[n - 1] - all[i].want) <= 1e-3f))
                fail_msg("row %zu: %g, expected %g", i, (double)y[n - 1], (double)all[i].want);
        }
}

static void equal_maxima_share(void **state)
{
    const d9d_reduce_axis_dims d = {.kind = D9D_REDUCE_MAX, .m = 1, .r = 4, .n = 1};
    const float x[4] = {3, 1, 3, 2}, y = 3, dy = 5;
    float dx[4];

    (void)state;
    assert_int_equal(host_kernels()->math->reduce_axis_bwd(NULL, &d, dx, &dy, x, &y), D9D_OK);
    assert_memory_equal(dx, ((const float[]){2.5f, 0, 2.5f, 0}), sizeof(dx));
}

/* --- gather ---------------------------------------------------------------------------------- */

static void check_gather(d9d_dtype t, int64_t m, int64_t n, int64_t k)
{
    int32_t *index = malloc((size_t)(m * k + 1) * sizeof(*index));
    void *x = array_random(t, m * n, 1, 1.0), *dy = array_random(t, m * k, 2, 1.0);
    void *y = array_poison(t, m * k), *dx = array_poison(t, m * n);
    double *want = calloc((size_t)(m * k) + 1, sizeof(*want)),
           *want_dx = calloc((size_t)(m * n) + 1, sizeof(*want_dx));

    assert_true(index != NULL && want != NULL && want_dx != NULL);
    for (int64_t i = 0; i < m * k; i++) {
        index[i] = i % 7 == 3 ? -100 : (int32_t)(i * 31 % n);
        if (index[i] < 0)
            continue;
        want[i] = array_get(t, x, i / k * n + index[i]);
        want_dx[i / k * n + index[i]] += array_get(t, dy, i);
    }
    assert_int_equal(host_kernels()->math->gather(NULL, t, y, x, index, m, n, k), D9D_OK);
    array_close("y", t, y, want, m * k, 0);
    assert_int_equal(host_kernels()->math->gather_bwd(NULL, t, dx, dy, index, m, n, k), D9D_OK);
    array_close("dx", t, dx, want_dx, m * n, 2e-6);
    free(index), free(x), free(dy), free(y), free(dx), free(want), free(want_dx);
}

static void elements_are_gathered(void **state)
{
    static const int64_t sizes[][3] = {{3, 5, 1},  {5, 3, 4}, {1, 1025, 33},
                                       {33, 2, 7}, {0, 3, 1}, {3, 4, 0}};

    (void)state;
    for (size_t i = 0; i < 2 * sizeof(sizes) / sizeof(sizes[0]); i++)
        check_gather(array_types[i % 2], sizes[i / 2][0], sizes[i / 2][1], sizes[i / 2][2]);
}

static void an_index_outside_is_seen(void **state)
{
    const float x[2] = {1, 2};
    const int32_t index = 2;
    float y;

    (void)state;
    if (!unit_device_is_cpu()) {
        assert_int_equal(host_kernels()->math->gather(NULL, D9D_F32, &y, x, &index, 1, 2, 1),
                         D9D_OK);
        assert_true(isnan(y));
        return;
    }
    assert_int_equal(host_kernels()->math->gather(NULL, D9D_F32, &y, x, &index, 1, 2, 1),
                     D9D_EINVAL);
    assert_string_equal(d9d_err_message(), "gather: index 2 of row 0, rows have 2 elements");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(axes_are_reduced),      cmocka_unit_test(segments_are_reduced),
        cmocka_unit_test(ends_are_right),        cmocka_unit_test(equal_maxima_share),
        cmocka_unit_test(elements_are_gathered), cmocka_unit_test(an_index_outside_is_seen),
    };

    return cmocka_run_group_tests_name("kernel_reduce_axis", tests, NULL, NULL);
}
