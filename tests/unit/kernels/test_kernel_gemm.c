/* Matrix products against loops in double. */
#include "support/arrays.h"
#include "support/host_kernels.h"
#include "support/unit.h"
#include "support/unit_device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const int64_t shapes[][3] = {
    {0, 3, 3},  {3, 0, 3},     {3, 3, 0},      {1, 1, 1},      {1, 33, 17},    {33, 1, 17},
    {3, 17, 1}, {17, 33, 129}, {130, 65, 600}, {257, 513, 12}, {530, 40, 700}, {65, 1030, 64},
};

typedef struct call {
    d9d_gemm g;
    void *a, *b, *c;
} call;

static void run(void *arg)
{
    call *p = arg;

    assert_int_equal(host_kernels()->gemm->dense(NULL, &p->g, p->a, p->b, p->c), D9D_OK);
}

/* C = op(A) op(B) + beta C + bias. */
static void naive(const call *p, double *c)
{
    const d9d_gemm *g = &p->g;
    double *a = array_doubles(g->t, p->a, g->m * g->k), *b = array_doubles(g->t, p->b, g->k * g->n);

    for (int64_t i = 0; i < g->m; i++)
        for (int64_t k = 0; k < g->k; k++)
            for (int64_t j = 0; j < g->n; j++)
                c[i * g->n + j] += a[g->trans_a ? k * g->m + i : i * g->k + k] *
                                   b[g->trans_b ? j * g->k + k : k * g->n + j];
    free(a);
    free(b);
}

static void check(const d9d_gemm *g)
{
    int64_t n = g->m * g->n;
    size_t bytes = (size_t)n * d9d_dtype_size(g->ct);
    call p = {.g = *g};
    void *before = g->beta == 0.0f ? NULL : array_random(g->ct, n, 3, 1.0);
    void *bias = (g->m + g->n) % 2 == 0 ? NULL : array_random(g->ct, g->n, 4, 1.0);
    double *want = calloc((size_t)n + 1, sizeof(*want));

    p.a = array_random(g->t, g->m * g->k, 1, 1.0);
    p.b = array_random(g->t, g->k * g->n, 2, 1.0 / sqrt((double)g->k + 1.0));
    p.c = array_poison(g->ct, n);
    assert_non_null(want);
    for (int64_t i = 0; i < n && before != NULL; i++)
        want[i] = (double)g->beta * array_get(g->ct, before, i);
    for (int64_t i = 0; i < n && bias != NULL; i++)
        want[i] += array_get(g->ct, bias, i % g->n);
    p.g.bias = bias;
    naive(&p, want);
    array_same_for_threads(run, &p, p.c, bytes, before);
    array_close("c", g->ct, p.c, want, n,
                bias != NULL && g->ct == D9D_BF16 ? unit_device_tolerance(1e-5, 1e-2) : 1e-5);
    if (before != NULL) { /* added from elsewhere it is the same bits */
        void *in_place = p.c;

        p.c = array_poison(g->ct, n);
        p.g.addend = before;
        run(&p);
        assert_memory_equal(p.c, in_place, bytes);
        free(in_place);
    }
    free(p.a);
    free(p.b);
    free(p.c);
    free(before);
    free(bias);
    free(want);
}

static void test_shapes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (int flags = 0; flags < 8; flags += unit_step(3)) {
            d9d_gemm g = {.m = shapes[i][0], .n = shapes[i][1], .k = shapes[i][2]};

            g.t = array_types[flags & 1];
            g.ct = array_types[flags >> 2 & flags & 1];
            g.trans_a = (flags & 2) != 0;
            g.trans_b = (flags & 4) != 0;
            g.beta = flags % 3 == 0 ? 1.0f : 0.0f;
            check(&g);
        }
}

/* Rows of the result have the same bits whatever rows are computed with them. */
static void check_rows(const call *all, int64_t first, int64_t n)
{
    const size_t size = d9d_dtype_size(all->g.t), out = d9d_dtype_size(all->g.ct);
    const d9d_gemm *g = &all->g;
    call some = *all;

    some.g.m = n;
    some.a = (char *)all->a + (size_t)(first * g->k) * size;
    some.c = array_poison(g->ct, n * g->n);
    run(&some);
    assert_memory_equal(some.c, (char *)all->c + (size_t)(first * g->n) * out,
                        (size_t)(n * g->n) * out);
    free(some.c);
}

static void check_all_rows(const int64_t *n, int flags, int64_t most)
{
    call p = {.g = {.t = array_types[flags & 1],
                    .ct = array_types[flags >> 2 & flags & 1],
                    .trans_b = (flags & 2) != 0,
                    .m = n[0],
                    .n = n[1],
                    .k = n[2]}};

    p.a = array_random(p.g.t, n[0] * n[2], 1, 1.0);
    p.b = array_random(p.g.t, n[1] * n[2], 2, 1.0);
    p.c = array_poison(p.g.ct, n[0] * n[1]);
    run(&p);
    for (int64_t row = 0; row < n[0]; row += 1 + n[0] / 23)
        check_rows(&p, row, 1 + row % most < n[0] - row ? 1 + row % most : 1);
    for (int64_t rows = 1; rows <= most && rows <= n[0]; rows++)
        check_rows(&p, 0, rows);
    free(p.a);
    free(p.b);
    free(p.c);
}

/* On the CPU any number of rows. */
static void test_rows_alone(void **state)
{
    static const int64_t sizes[][3] = {
        {30, 5, 7}, {14, 64, 64}, {131, 33, 300}, {600, 200, 65}, {70, 700, 1030}};

    (void)state;
    if (host_kernels() != d9d_kernels_cpu())
        skip();
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        for (int flags = 0; flags < 8; flags += unit_step(3))
            check_all_rows(sizes[i], flags, 13);
}

/* Everywhere up to eight, in bfloat16 sixteen, which a GPU has kernels for, of B transposed. */
static void test_few_rows(void **state)
{
    static const int64_t sizes[][3] = {
        {16, 1, 8}, {16, 37, 264}, {15, 1030, 1024}, {9, 515, 3080}, {16, 9001, 72}};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        for (int flags = 2; flags < 8; flags += flags == 3 ? 3 : unit_step(5)) {
            const int64_t most = flags & 1 ? 16 : 8;
            const int64_t size[] = {sizes[i][0] < most ? sizes[i][0] : most, sizes[i][1],
                                    sizes[i][2]};
            d9d_gemm g = {.t = array_types[flags & 1],
                          .ct = array_types[flags >> 2 & flags & 1],
                          .trans_b = true,
                          .m = size[0],
                          .n = size[1],
                          .k = size[2]};

            check_all_rows(size, flags, most);
            check(&g);
        }
}

/* Several products of one A have the bits of each by itself. */
static void check_gemms(d9d_dtype t, d9d_dtype ct, int64_t m, int64_t k, const int64_t *n,
                        int count)
{
    enum { MOST = 6 };
    d9d_gemm g[MOST];
    void *b[MOST], *c[MOST], *bias[MOST], *alone, *a = array_random(t, m * k, 1, 1.0);

    for (int i = 0; i < count; i++) {
        g[i] = (d9d_gemm){.t = t, .ct = ct, .trans_b = true, .m = m, .n = n[i], .k = k};
        b[i] = array_random(t, n[i] * k, 2 + (uint64_t)i, 1.0);
        c[i] = array_poison(ct, m * n[i]);
        bias[i] = array_random(ct, n[i], 9 + (uint64_t)i, 1.0);
        g[i].bias = i % 2 == 0 ? NULL : bias[i];
    }
    assert_int_equal(host_kernels()->gemm->multi(NULL, count, g, a, (const void *const *)b, c),
                     D9D_OK);
    for (int i = 0; i < count; i++) {
        alone = array_poison(ct, m * n[i]);
        assert_int_equal(host_kernels()->gemm->dense(NULL, &g[i], a, b[i], alone), D9D_OK);
        assert_memory_equal(alone, c[i], (size_t)(m * n[i]) * d9d_dtype_size(ct));
        free(alone);
        free(b[i]);
        free(bias[i]);
        free(c[i]);
    }
    free(a);
}

static void test_several(void **state)
{
    static const int64_t n[] = {40, 8, 17, 3, 64, 1}, none[] = {5, 0, 33, 1, 0, 24};

    (void)state;
    for (int flags = 0; flags < 4; flags += unit_step(3))
        for (int count = 0; count <= 6; count++) {
            const d9d_dtype t = array_types[flags & 1], ct = array_types[flags >> 1 & flags & 1];

            for (int64_t m = 1; m <= 17; m += 4) {
                check_gemms(t, ct, m, 136, n, count);
                check_gemms(t, ct, m, 1032, none, count);
            }
        }
}

/* C_i = alpha op(A_i) op(B_i) + beta D_i, where D is C or another array. */
static void check_batched(d9d_gemm_batched n, bool elsewhere)
{
    const d9d_gemm *g = &n.gemm;
    const int64_t a_size = g->m * g->k, b_size = g->k * g->n, size = g->m * g->n;
    void *a = array_random(g->t, n.count * a_size, 1, 1.0),
         *b = array_random(g->t, n.count * b_size, 2, 1.0 / sqrt((double)g->k + 1.0)),
         *d = array_random(g->ct, n.count * size, 3, 1.0),
         *c = elsewhere ? array_poison(g->ct, n.count * size) : d;
    double *want = calloc((size_t)(n.count * size) + 1, sizeof(*want));

    assert_non_null(want);
    for (int64_t i = 0; i < n.count; i++) {
        const call one = {.g = *g,
                          .a = (char *)a + (size_t)(i * a_size) * d9d_dtype_size(g->t),
                          .b = (char *)b + (size_t)(i * b_size) * d9d_dtype_size(g->t)};

        naive(&one, want + i * size);
    }
    for (int64_t i = 0; i < n.count * size; i++)
        want[i] = (double)n.alpha * want[i] +
                  (g->beta != 0 ? (double)g->beta * array_get(g->ct, d, i) : 0);
    n.gemm.addend = elsewhere ? d : NULL;
    assert_int_equal(host_kernels()->gemm->batched(NULL, &n, a, b, c), D9D_OK);
    array_close("c", g->ct, c, want, n.count * size, 1e-5);
    free(a);
    free(b);
    if (elsewhere)
        free(d);
    free(c);
    free(want);
}

static void test_batched(void **state)
{
    static const int64_t sizes[][4] = {{0, 3, 3, 3},    {3, 0, 5, 7},     {2, 5, 4, 0},
                                       {1, 33, 17, 9},  {3, 1, 1, 1},     {5, 13, 7, 3},
                                       {4, 64, 24, 40}, {2, 130, 65, 300}};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        for (int flags = 0; flags < 32; flags += unit_step(7))
            check_batched((d9d_gemm_batched){.gemm = {.t = array_types[flags & 1],
                                                      .ct = array_types[flags >> 2 & flags & 1],
                                                      .trans_a = (flags & 2) != 0,
                                                      .trans_b = (flags & 4) != 0,
                                                      .m = sizes[i][1],
                                                      .n = sizes[i][2],
                                                      .k = sizes[i][3],
                                                      .beta = flags & 8 ? -0.75f : 0.0f},
                                             .count = sizes[i][0],
                                             .alpha = flags & 2 ? 2.5f : 1.0f},
                          (flags & 16) != 0);
}

/* Products of a matrix by its transpose, small and of several panels, added to symmetric matrices.
 */
static void check_symmetric(int64_t m, int64_t k, int flags)
{
    const d9d_dtype t = array_types[flags & 1];
    const bool from_left = (flags & 2) != 0, add = (flags & 4) != 0;
    enum { COUNT = 2 };
    d9d_gemm_batched n = {
        .gemm =
            {.t = t, .ct = t, .trans_a = from_left, .trans_b = !from_left, .m = m, .n = m, .k = k},
        .count = COUNT,
        .alpha = 0.5f,
        .symmetric = true};
    void *x = array_random(t, COUNT * m * k, 1, 1.0 / sqrt((double)k)),
         *d = array_random(t, COUNT * m * m, 2, 1.0), *c = array_poison(t, COUNT * m * m);
    double *want = calloc((size_t)(COUNT * m * m), sizeof(*want));

    assert_non_null(want);
    for (int64_t i = 0; i < COUNT; i++) {
        void *of = (char *)x + (size_t)(i * m * k) * d9d_dtype_size(t);
        const call one = {.g = n.gemm, .a = of, .b = of};

        naive(&one, want + i * m * m);
        for (int64_t r = 0; r < m; r++)
            for (int64_t q = 0; q < m; q++) {
                const int64_t at = (i * m + r) * m + q;

                if (q < r)
                    array_set(t, d, at, array_get(t, d, (i * m + q) * m + r));
                want[at] = 0.5 * want[at] + (add ? -2 * array_get(t, d, at) : 0);
            }
    }
    if (add) {
        n.gemm.beta = -2;
        n.gemm.addend = d;
    }
    assert_int_equal(host_kernels()->gemm->batched(NULL, &n, x, x, c), D9D_OK);
    array_close("c", t, c, want, COUNT * m * m, 1e-5);
    free(x);
    free(d);
    free(c);
    free(want);
}

static void test_symmetric(void **state)
{
    (void)state;
    for (int flags = 0; flags < 8; flags += unit_step(3)) {
        check_symmetric(33, 70, flags);
        check_symmetric(1072, 24, flags);
    }
    check_symmetric(4104, 8, 5);
    if (!unit_device_is_cpu()) /* large enough for trials of algorithms */
        check_symmetric(1072, 4096, 5);
}

static void test_wrong_type(void **state)
{
    const d9d_gemm g = {.t = D9D_I32, .ct = D9D_F32, .m = 1, .n = 1, .k = 1};
    float x = 0.0f;

    (void)state;
    assert_int_equal(host_kernels()->gemm->dense(NULL, &g, &x, &x, &x), D9D_EINVAL);
    assert_non_null(strstr(d9d_err_message(), "int32"));
}

/* --- grouped -------------------------------------------------------------------- */

/* Experts that end in the middle of any tile, without rows, and with all; sides that fill tiles
 * of a GPU, that are the least multiples of what they are made of, and others. */
enum { E = 9 };
static const struct grouped_case {
    int64_t in, out;
    int32_t offset[E + 1];
} cases[] = {
    {70, 41, {0}},
    {70, 41, {0, 0, 17, 17, 18, 90, 90, 90, 90, 90}},
    {70, 41, {0, 33, 34, 37, 200, 200, 201, 201, 202, 202}},
    {64, 64, {0, 1, 2, 3, 4, 300, 300, 364, 491, 491}},
    {192, 576, {0, 0, 1, 64, 128, 193, 193, 322, 462, 462}},
    {320, 192, {0, 129, 129, 130, 131, 131, 131, 131, 380, 443}},
    {8, 8, {0, 1, 2, 3, 4, 300, 300, 364, 491, 491}},
    {72, 296, {0, 0, 1, 64, 128, 193, 193, 322, 462, 462}},
    {200, 136, {0, 129, 129, 130, 131, 131, 131, 131, 380, 443}},
    {264, 136, {0, 0, 1, 3, 3, 6, 10, 10, 31, 31}},
    {72, 24, {0, 160, 160, 160, 160, 160, 160, 160, 160, 160}},
};

typedef struct grouped {
    d9d_dtype t, gt;
    const struct grouped_case *c;
    int64_t rows;
    float beta;
    void *x, *w, *dy, *y, *dx, *dw;
    int sums; /* products that dx is the sum of; w and dy are the first one's */
    const void *w_of[2], *dy_of[2];
} grouped;

static void run_y(void *arg)
{
    grouped *p = arg;

    assert_int_equal(host_kernels()->gemm->grouped(NULL, p->t, p->y, p->x, p->w, p->c->offset,
                                                   p->rows, E, p->c->in, p->c->out),
                     D9D_OK);
}
static void run_dx(void *arg)
{
    grouped *p = arg;

    assert_int_equal(host_kernels()->gemm->grouped_dgrad(NULL, p->t, p->dx, p->beta, p->sums,
                                                         p->dy_of, p->w_of, p->c->offset, p->rows,
                                                         E, p->c->in, p->c->out),
                     D9D_OK);
}
static void run_wgrad(void *arg)
{
    grouped *p = arg;

    assert_int_equal(host_kernels()->gemm->grouped_wgrad(NULL, p->t, p->gt, p->dw, p->beta, p->x,
                                                         p->dy, p->c->offset, p->rows, E, p->c->in,
                                                         p->c->out),
                     D9D_OK);
}

static void naive_grouped(const grouped *p, double *y, double *dx, double *dw)
{
    const int64_t n_in = p->c->in, n_out = p->c->out;
    double *x = array_doubles(p->t, p->x, p->rows * n_in);
    double *w = array_doubles(p->t, p->w, E * n_in * n_out);
    double *d = array_doubles(p->t, p->dy, p->rows * n_out);

    for (int64_t e = 0; e < E; e++)
        for (int64_t r = p->c->offset[e]; r < p->c->offset[e + 1]; r++)
            for (int64_t i = 0; i < n_in; i++)
                for (int64_t o = 0; o < n_out; o++) {
                    int64_t at = (e * n_in + i) * n_out + o;

                    y[r * n_out + o] += x[r * n_in + i] * w[at];
                    dx[r * n_in + i] += d[r * n_out + o] * w[at];
                    for (int s = 1; s < p->sums; s++)
                        dx[r * n_in + i] += array_get(p->t, p->dy_of[s], r * n_out + o) *
                                            array_get(p->t, p->w_of[s], at);
                    dw[at] += x[r * n_in + i] * d[r * n_out + o];
                }
    free(x);
    free(w);
    free(d);
}

static void check_grouped(grouped *p)
{
    int64_t n_y = p->rows * p->c->out, n_x = p->rows * p->c->in, n_w = E * p->c->in * p->c->out;
    size_t size = d9d_dtype_size(p->t);
    void *before = p->beta == 0.0f ? NULL : array_random(p->gt, n_w, 9, 1.0);
    void *before_x = p->beta == 0.0f ? NULL : array_random(p->t, n_x, 8, 1.0);
    void *w2 = array_random(p->t, n_w, 5, 1.0), *dy2 = array_random(p->t, n_y, 6, 1.0);
    double *y = calloc((size_t)n_y + 1, sizeof(*y));
    double *dx = calloc((size_t)n_x + 1, sizeof(*dx));
    double *dw = calloc((size_t)n_w, sizeof(*dw));

    p->x = array_random(p->t, n_x, 1, 1.0);
    p->w = array_random(p->t, n_w, 2, 1.0);
    p->dy = array_random(p->t, n_y, 3, 1.0);
    p->w_of[0] = p->w;
    p->dy_of[0] = p->dy;
    p->w_of[1] = w2;
    p->dy_of[1] = dy2;
    p->y = array_poison(p->t, n_y);
    p->dx = array_poison(p->t, n_x);
    p->dw = array_poison(p->gt, n_w);
    for (int64_t i = 0; i < n_w && before != NULL; i++)
        dw[i] = array_get(p->gt, before, i);
    for (int64_t i = 0; i < n_x && before_x != NULL; i++)
        dx[i] = array_get(p->t, before_x, i);
    naive_grouped(p, y, dx, dw);
    array_same_for_threads(run_y, p, p->y, (size_t)n_y * size, NULL);
    array_same_for_threads(run_dx, p, p->dx, (size_t)n_x * size, before_x);
    array_same_for_threads(run_wgrad, p, p->dw, (size_t)n_w * d9d_dtype_size(p->gt), before);
    array_close("y", p->t, p->y, y, n_y, 3e-5);
    array_close("dx", p->t, p->dx, dx, n_x, 3e-5 * p->sums);
    array_close("dw", p->gt, p->dw, dw, n_w, 3e-5);
    void *all[] = {p->x, p->w, p->dy, p->y, p->dx, p->dw, before, before_x, w2, dy2, y, dx, dw};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        free(all[i]);
}

static void test_grouped(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        for (int flags = 0; flags < 6; flags += unit_step(5)) {
            grouped p = {.sums = 1 + flags % 2,
                         .t = array_types[flags > 0 && flags < 5],
                         .gt = array_types[flags & 1],
                         .c = &cases[i],
                         .rows = cases[i].offset[E],
                         .beta = (float)(flags > 2)};

            check_grouped(&p);
        }
}

static void test_lying_offsets(void **state)
{
    const int32_t backwards[] = {0, 4, 2}, outside[] = {0, 4, 9};
    float x[64] = {0};

    (void)state;
    if (!unit_device_is_cpu())
        skip(); /* only what is on the host can be looked at in time */
    assert_int_equal(host_kernels()->gemm->grouped(NULL, D9D_F32, x, x, x, backwards, 2, 2, 1, 1),
                     D9D_EINVAL);
    assert_int_equal(host_kernels()->gemm->grouped(NULL, D9D_F32, x, x, x, outside, 8, 2, 1, 1),
                     D9D_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),        cmocka_unit_test(test_rows_alone),
        cmocka_unit_test(test_few_rows),      cmocka_unit_test(test_wrong_type),
        cmocka_unit_test(test_several),       cmocka_unit_test(test_grouped),
        cmocka_unit_test(test_lying_offsets), cmocka_unit_test(test_batched),
        cmocka_unit_test(test_symmetric),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
