/* RMSNorm of rows in parts, against loops in double: each part by itself, with the sums that all
 * ranks would make. */
#include "support/arrays.h"
#include "support/host_kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A row is this rank's n elements, of which those from `first` on count, and others' squares. */
typedef struct part {
    d9d_rms_norm_parallel_dims n;
    d9d_dtype gt;
    float beta;
    void *x, *w, *dy, *y, *dx, *dw;
    float *dot, *sum, *inv, *c;
} part;

static void run_squares(void *arg)
{
    part *p = arg;

    assert_int_equal(host_kernels()->norm->rms_norm_dot(NULL, &p->n, p->dot, p->x, p->x, NULL),
                     D9D_OK);
}
static void run_dot(void *arg)
{
    part *p = arg;

    assert_int_equal(host_kernels()->norm->rms_norm_dot(NULL, &p->n, p->dot, p->dy, p->x, p->w),
                     D9D_OK);
}
static void run_norm(void *arg)
{
    part *p = arg;

    assert_int_equal(
        host_kernels()->norm->rms_norm_parallel(NULL, &p->n, p->y, p->inv, p->sum, p->x, p->w),
        D9D_OK);
}
static d9d_status part_grad(part *p, void *dx, void *dw)
{
    return host_kernels()->norm->rms_norm_parallel_bwd(NULL, &p->n, dx, p->gt, dw, p->beta, p->dy,
                                                       p->x, p->w, p->inv, p->c);
}
static void run_dgrad(void *arg)
{
    part *p = arg;

    assert_int_equal(part_grad(p, p->dx, NULL), D9D_OK);
}
static void run_wgrad(void *arg)
{
    part *p = arg;

    assert_int_equal(part_grad(p, NULL, p->dw), D9D_OK);
}

static double weight(const part *p, int64_t i)
{
    return array_get(p->n.t, p->w, i) + (p->n.zero_centred ? 1.0 : 0.0);
}

static void check_dots(part *p)
{
    double *squares = calloc((size_t)p->n.m + 1, sizeof(*squares)),
           *dots = calloc((size_t)p->n.m + 1, sizeof(*dots));

    for (int64_t r = 0; r < p->n.m; r++)
        for (int64_t i = p->n.first; i < p->n.n; i++) {
            const double x = array_get(p->n.t, p->x, r * p->n.n + i);

            squares[r] += x * x;
            dots[r] += x * array_get(p->n.t, p->dy, r * p->n.n + i) * weight(p, i);
        }
    array_same_for_threads(run_squares, p, p->dot, (size_t)p->n.m * 4, NULL);
    array_close("squares", D9D_F32, p->dot, squares, p->n.m, 1e-5);
    array_same_for_threads(run_dot, p, p->dot, (size_t)p->n.m * 4, NULL);
    array_close("dots", D9D_F32, p->dot, dots, p->n.m, 2e-4);
    free(squares);
    free(dots);
}

static void naive_norm(const part *p, double *y, double *dx, double *dw)
{
    const double total = (double)p->n.total;

    for (int64_t r = 0; r < p->n.m; r++) {
        const double inv = 1.0 / sqrt((double)p->sum[r] / total + (double)p->n.eps);

        for (int64_t i = 0; i < p->n.n; i++) {
            const double x = array_get(p->n.t, p->x, r * p->n.n + i),
                         d = array_get(p->n.t, p->dy, r * p->n.n + i), w = weight(p, i);

            y[r * p->n.n + i] = x * inv * w;
            dw[i] += d * x * inv;
            dx[r * p->n.n + i] =
                inv * (d * w - (i < p->n.first ? 0.0 : x * inv * inv * (double)p->c[r] / total));
        }
    }
}

static void check_norm(part *p)
{
    const int64_t all = p->n.m * p->n.n;
    const size_t bytes = (size_t)all * d9d_dtype_size(p->n.t),
                 bytes_w = (size_t)p->n.n * d9d_dtype_size(p->gt);
    void *before = p->beta == 0.0f ? NULL : array_random(p->gt, p->n.n, 4, 1.0);
    double *y = calloc((size_t)all + 1, sizeof(*y)), *dx = calloc((size_t)all + 1, sizeof(*dx)),
           *dw = calloc((size_t)p->n.n + 1, sizeof(*dw));

    naive_norm(p, y, dx, dw);
    for (int64_t i = 0; i < p->n.n && before != NULL; i++)
        dw[i] += array_get(p->gt, before, i);
    array_same_for_threads(run_norm, p, p->y, bytes, NULL);
    array_same_for_threads(run_dgrad, p, p->dx, bytes, NULL);
    array_same_for_threads(run_wgrad, p, p->dw, bytes_w, before);
    array_close("y", p->n.t, p->y, y, all, 3e-6);
    array_close("dx", p->n.t, p->dx, dx, all, 1e-5);
    array_close("dw", p->gt, p->dw, dw, p->n.n, 1e-4);
    free(before);
    free(y);
    free(dx);
    free(dw);
}

static void check_part(part *p)
{
    const int64_t m = p->n.m, all = m * p->n.n;

    p->x = array_random(p->n.t, all, 1, 1.0);
    p->w = array_random(p->n.t, p->n.n, 2, 1.0);
    p->dy = array_random(p->n.t, all, 3, 1.0);
    p->y = array_poison(p->n.t, all);
    p->dx = array_poison(p->n.t, all);
    p->dw = array_poison(p->gt, p->n.n);
    p->dot = array_poison(D9D_F32, m);
    p->inv = array_poison(D9D_F32, m);
    p->sum = array_random(D9D_F32, m, 5, 1.0);
    p->c = array_random(D9D_F32, m, 6, 5.0);
    for (int64_t r = 0; r < m; r++)
        p->sum[r] = (float)p->n.total * (0.5f + p->sum[r] * p->sum[r]);
    check_dots(p);
    check_norm(p);
    void *parts[] = {p->x, p->w, p->dy, p->y, p->dx, p->dw, p->dot, p->inv, p->sum, p->c};
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        free(parts[i]);
}

static void test_parts(void **state)
{
    const int64_t shapes[][4] = {{0, 6, 2, 12},      {1, 1, 0, 1},         {3, 17, 5, 40},
                                 {9, 130, 128, 130}, {129, 33, 33, 33},    {70, 128, 64, 512},
                                 {17000, 4, 0, 8},   {5, 1030, 515, 2060}, {300, 96, 32, 192},
                                 {3, 8201, 7, 9000}};

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (int flags = 0; flags < 8; flags++) {
            part p = {.n = {.t = array_types[flags & 1],
                            .m = shapes[i][0],
                            .n = shapes[i][1],
                            .first = shapes[i][2],
                            .total = shapes[i][3],
                            .eps = 1e-3f,
                            .zero_centred = (flags & 4) != 0},
                      .gt = array_types[flags >> 1 & 1],
                      .beta = flags % 3 == 0 ? 1.0f : 0.0f};

            check_part(&p);
        }
}

/* One part that is the whole row: the fused kernel's numbers. */
static void test_whole_rows(void **state)
{
    enum { M = 7, N = 50 };
    const d9d_rms_norm_parallel_dims n = {D9D_F32, M, N, 0, N, 1e-5f, true};
    const d9d_norm_kernels *k = host_kernels()->norm;
    float *x = array_random(D9D_F32, M * N, 1, 1.0), *w = array_random(D9D_F32, N, 2, 1.0),
          *dy = array_random(D9D_F32, M * N, 3, 1.0), y[2][M * N], dx[2][M * N], dw[2][N],
          inv[2][M], dot[M];
    double want[M * N];

    (void)state;
    assert_int_equal(k->rms_norm(NULL, D9D_F32, y[0], inv[0], x, w, M, N, 1e-5f, true), D9D_OK);
    assert_int_equal(k->rms_norm_bwd(NULL, D9D_F32, dx[0], NULL, D9D_F32, dw[0], 0, dy, x, w,
                                     inv[0], M, N, true),
                     D9D_OK);
    assert_int_equal(k->rms_norm_dot(NULL, &n, dot, x, x, NULL), D9D_OK);
    assert_int_equal(k->rms_norm_parallel(NULL, &n, y[1], inv[1], dot, x, w), D9D_OK);
    assert_int_equal(k->rms_norm_dot(NULL, &n, dot, dy, x, w), D9D_OK);
    assert_int_equal(
        k->rms_norm_parallel_bwd(NULL, &n, dx[1], D9D_F32, dw[1], 0, dy, x, w, inv[1], dot),
        D9D_OK);
    for (int i = 0; i < M * N; i++)
        want[i] = (double)y[0][i];
    array_close("y", D9D_F32, y[1], want, M * N, 1e-6);
    for (int i = 0; i < M * N; i++)
        want[i] = (double)dx[0][i];
    array_close("dx", D9D_F32, dx[1], want, M * N, 1e-6);
    for (int i = 0; i < N; i++)
        want[i] = (double)dw[0][i];
    array_close("dw", D9D_F32, dw[1], want, N, 1e-6);
    free(x);
    free(w);
    free(dy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_whole_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
