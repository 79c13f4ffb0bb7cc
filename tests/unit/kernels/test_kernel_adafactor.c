/* Adafactor's step of a matrix that four ranks store, against the formulas in double. */
#include "support/arrays.h"
#include "support/host_kernels.h"
#include "support/unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BOXES = 4 };

/* Matrices [e, rows, cols] and their step. */
typedef struct test_case {
    d9d_dtype t, gt;
    int64_t e, rows, cols;
    bool factored, masters;
    float scale;
    d9d_adafactor_step step;
} test_case;

/* The whole, in double. */
typedef struct book {
    double *p, *g, *row, *col, *mean;
    double squares[2];
} book;

static double *doubles(int64_t n)
{
    double *x = calloc((size_t)n + 1, sizeof(*x));

    assert_non_null(x);
    return x;
}

static void moments_by_the_book(const test_case *c, book *b)
{
    const double w = c->step.one_minus_beta2;

    for (int64_t m = 0; m < c->e; m++) {
        for (int64_t i = 0; i < c->rows; i++) {
            double sum = 0;

            for (int64_t j = 0; j < c->cols; j++)
                sum += pow(b->g[(m * c->rows + i) * c->cols + j], 2);
            b->row[m * c->rows + i] += w * (sum / (double)c->cols - b->row[m * c->rows + i]);
            b->mean[m] += b->row[m * c->rows + i] / (double)c->rows;
        }
        for (int64_t j = 0; j < c->cols; j++) {
            double sum = 0;

            for (int64_t i = 0; i < c->rows; i++)
                sum += pow(b->g[(m * c->rows + i) * c->cols + j], 2);
            b->col[m * c->cols + j] += w * (sum / (double)c->rows - b->col[m * c->cols + j]);
        }
    }
}

static void step_by_the_book(const test_case *c, book *b)
{
    const d9d_adafactor_step *s = &c->step;
    const int64_t n = c->e * c->rows * c->cols;
    double *u = doubles(n), alpha;

    moments_by_the_book(c, b);
    for (int64_t k = 0; k < n; k++) {
        const int64_t i = k / c->cols, m = i / c->rows;
        double v = b->row[i];

        if (c->factored)
            v *= b->col[m * c->cols + k % c->cols] / fmax(b->mean[m], s->eps1);
        u[k] = b->g[k] / sqrt(fmax(v, s->eps1 * s->eps1));
        b->squares[0] += u[k] * u[k];
        b->squares[1] += b->p[k] * b->p[k];
    }
    alpha = s->relative_lr;
    if (s->scale_parameter)
        alpha *= fmax(s->eps2, sqrt(b->squares[1] / (double)n));
    alpha /= fmax(1, sqrt(b->squares[0] / (double)n) / s->clip_threshold);
    for (int64_t k = 0; k < n; k++)
        b->p[k] = b->p[k] * (1 - s->lr * s->weight_decay) - alpha * u[k];
    free(u);
}

/* Box q of four: above or below, left or right; the halves differ where sizes are odd. */
static d9d_adafactor_array box_make(const test_case *c, int q)
{
    const int64_t r = c->rows / 2, k = c->cols / 2;
    d9d_adafactor_array a = {0};

    a.e = c->e;
    a.rows = c->rows;
    a.cols = c->cols;
    a.numel = (double)(c->e * c->rows * c->cols);
    a.r0 = q / 2 * r;
    a.c0 = q % 2 * k;
    a.r = q / 2 == 0 ? r : c->rows - r;
    a.c = q % 2 == 0 ? k : c->cols - k;
    a.p = array_poison(c->t, a.e * a.r * a.c);
    a.g = array_poison(c->gt, a.e * a.r * a.c);
    a.residual = c->masters ? calloc((size_t)(a.e * a.r * a.c) + 1, sizeof(*a.residual)) : NULL;
    a.row = array_poison(D9D_F32, a.e * a.r);
    a.col = c->factored ? array_poison(D9D_F32, a.e * a.c) : NULL;
    return a;
}

static void box_free(d9d_adafactor_array *a)
{
    free(a->p);
    free((void *)(uintptr_t)a->g);
    free(a->residual);
    free(a->row);
    free(a->col);
}

static int64_t index_of(const test_case *c, const d9d_adafactor_array *a, int64_t i)
{
    const int64_t m = i / (a->r * a->c), row = i / a->c % a->r, col = i % a->c;

    return (m * c->rows + a->r0 + row) * c->cols + a->c0 + col;
}

/* Draw a box's arrays, and copy them into the whole. */
static void box_fill(const test_case *c, const d9d_adafactor_array *a, const float *p,
                     const float *g, const float *second, book *b)
{
    for (int64_t i = 0; i < a->e * a->r * a->c; i++) {
        const int64_t at = index_of(c, a, i);

        array_set(c->t, a->p, i, (double)p[at]);
        array_set(c->gt, (void *)(uintptr_t)a->g, i, (double)g[at]);
        b->p[at] = array_get(c->t, a->p, i);
        b->g[at] = (double)c->scale * array_get(c->gt, a->g, i);
    }
    for (int64_t i = 0; i < a->e * a->r; i++) {
        const int64_t at = i / a->r * c->rows + a->r0 + i % a->r;

        b->row[at] = (double)(a->row[i] = fabsf(second[at]));
    }
    for (int64_t i = 0; a->col != NULL && i < a->e * a->c; i++) {
        const int64_t at = i / a->c * c->cols + a->c0 + i % a->c;

        b->col[at] = (double)(a->col[i] = fabsf(second[at + 1]));
    }
}

static double master(const test_case *c, const d9d_adafactor_array *a, int64_t i)
{
    uint32_t u;
    float f;

    if (!c->masters)
        return array_get(c->t, a->p, i);
    u = ((uint32_t)((const uint16_t *)a->p)[i] << 16) + (uint32_t)(int32_t)a->residual[i];
    memcpy(&f, &u, sizeof(f));
    return (double)f;
}

static void expect_near(const char *what, double got, double want, double limit)
{
    if (!(fabs(got - want) <= limit * (1e-3 + fabs(want))))
        fail_msg("%s: %.9g, the formula gives %.9g", what, got, want);
}

static void box_compare(const test_case *c, const d9d_adafactor_array *a, const book *b)
{
    const double limit = c->t == D9D_BF16 && !c->masters ? 1.0 / 128 : 2e-5;

    for (int64_t i = 0; i < a->e * a->r * a->c; i++)
        expect_near("p", master(c, a, i), b->p[index_of(c, a, i)], limit);
    for (int64_t i = 0; i < a->e * a->r; i++)
        expect_near("row", (double)a->row[i], b->row[i / a->r * c->rows + a->r0 + i % a->r], 1e-5);
    for (int64_t i = 0; a->col != NULL && i < a->e * a->c; i++)
        expect_near("col", (double)a->col[i], b->col[i / a->c * c->cols + a->c0 + i % a->c], 1e-5);
}

static int64_t sums_numel(const test_case *c)
{
    return c->e * (c->rows + c->cols + 1);
}

/* The places of an array's sums. */
static void sums_set(const test_case *c, d9d_adafactor_array *a, float *sums)
{
    a->row_sum = sums;
    a->col_sum = sums + c->e * c->rows;
    a->mean = sums + c->e * (c->rows + c->cols);
}

/* As the all-reduce: each rank gets the sum of what all have computed. */
static void sums_reduce(const test_case *c, d9d_adafactor_array a[BOXES])
{
    for (int64_t i = 0; i < sums_numel(c); i++) {
        float sum = 0;

        for (int q = 0; q < BOXES; q++)
            sum += a[q].row_sum[i];
        for (int q = 0; q < BOXES; q++)
            a[q].row_sum[i] = sum;
    }
}

static void boxes_step(const test_case *c, d9d_adafactor_array a[BOXES])
{
    const d9d_optim_kernels *k = host_kernels()->optim;
    double squares[2] = {0}, box[2];

    for (int q = 0; q < BOXES; q++)
        assert_ok(k->adafactor_sums(NULL, &c->scale, c->gt, &a[q]));
    sums_reduce(c, a);
    for (int q = 0; q < BOXES; q++) {
        assert_ok(k->adafactor_moments(NULL, &c->step, &c->scale, &a[q]));
        memset(box, 0, sizeof(box));
        a[q].squares = box;
        assert_ok(k->adafactor_squares(NULL, &c->step, &c->scale, c->t, c->gt, &a[q]));
        squares[0] += box[0];
        squares[1] += box[1];
    }
    for (int q = 0; q < BOXES; q++) {
        a[q].squares = squares;
        assert_ok(k->adafactor(NULL, &c->step, &c->scale, c->t, c->gt, &a[q]));
    }
}

static void check(const test_case *c)
{
    const int64_t n = c->e * c->rows * c->cols;
    float *p = array_random(D9D_F32, n, 1, 1.0), *g = array_random(D9D_F32, n, 2, 3.0);
    float *second = array_random(D9D_F32, sums_numel(c) + 1, 3, 1.0), *sums[BOXES];
    d9d_adafactor_array a[BOXES];
    book b = {.p = doubles(n),
              .g = doubles(n),
              .row = doubles(c->e * c->rows),
              .col = doubles(c->e * c->cols),
              .mean = doubles(c->e)};

    for (int q = 0; q < BOXES; q++) {
        a[q] = box_make(c, q);
        assert_non_null(sums[q] = calloc((size_t)sums_numel(c), sizeof(float)));
        sums_set(c, &a[q], sums[q]);
        box_fill(c, &a[q], p, g, second, &b);
    }
    step_by_the_book(c, &b);
    boxes_step(c, a);
    for (int q = 0; q < BOXES; q++) {
        box_compare(c, &a[q], &b);
        box_free(&a[q]);
        free(sums[q]);
    }
    free(p), free(g), free(second);
    free(b.p), free(b.g), free(b.row), free(b.col), free(b.mean);
}

/* Types, sizes and keys; the largest has several chunks of rows and of columns. */
static void test_adafactor(void **state)
{
    static const int64_t sizes[][3] = {{1, 2, 2},   {1, 7, 5},    {3, 4, 9},     {1, 33, 129},
                                       {2, 64, 48}, {1, 600, 37}, {1, 19, 2301}, {5, 3, 8}};

    (void)state;
    for (unsigned flags = 0; flags < 64; flags++) {
        const int64_t *size = sizes[(flags + flags / 8) % 8];
        const test_case c = {
            .t = array_types[flags & 1],
            .gt = array_types[flags >> 1 & 1],
            .masters = (flags & 5) == 5,
            .e = size[0],
            .rows = size[1],
            .cols = size[2],
            .factored = true,
            .scale = 0.25f,
            .step = {.lr = 0.01,
                     .relative_lr = flags & 8 ? 0.005 : 0.01,
                     .weight_decay = flags & 16 ? 0.1 : 0,
                     .one_minus_beta2 = flags & 32 ? 1 : 0.3,
                     .eps1 = flags & 8 ? 0.4 : 1e-15,
                     .eps2 = 1e-3,
                     .clip_threshold = flags & 16 ? 0.5 : 10,
                     .scale_parameter = (flags & 8) != 0},
        };

        check(&c);
    }
}

/* A vector of which four ranks have parts; two of them are empty, as it has one column. */
static void test_vector(void **state)
{
    (void)state;
    for (int64_t n = 1; n < 700; n = 3 * n + 1) {
        const test_case c = {.t = D9D_F32,
                             .gt = D9D_F32,
                             .e = 1,
                             .rows = n,
                             .cols = 1,
                             .scale = 2,
                             .step = {.lr = 0.01,
                                      .relative_lr = 0.01,
                                      .one_minus_beta2 = 0.4,
                                      .eps1 = 1e-15,
                                      .clip_threshold = 1}};

        check(&c);
    }
}

/* A step that is to be skipped changes nothing. */
static void test_nan_scale(void **state)
{
    const d9d_adafactor_step step = {.lr = 1, .one_minus_beta2 = 1, .clip_threshold = 1};
    const d9d_optim_kernels *k = host_kernels()->optim;
    const float scale = NAN;
    float p[4] = {1, 2, 3, 4}, g[4] = {1, 1, 1, 1}, row[2] = {5, 6}, col[2] = {7, 8}, sums[5] = {0};
    double squares[2] = {0};
    const d9d_adafactor_array a = {.p = p,
                                   .g = g,
                                   .row = row,
                                   .col = col,
                                   .row_sum = sums,
                                   .col_sum = sums + 2,
                                   .mean = sums + 4,
                                   .squares = squares,
                                   .e = 1,
                                   .r = 2,
                                   .c = 2,
                                   .rows = 2,
                                   .cols = 2,
                                   .numel = 4};

    (void)state;
    assert_ok(k->adafactor_sums(NULL, &scale, D9D_F32, &a));
    assert_ok(k->adafactor_moments(NULL, &step, &scale, &a));
    assert_ok(k->adafactor_squares(NULL, &step, &scale, D9D_F32, D9D_F32, &a));
    assert_ok(k->adafactor(NULL, &step, &scale, D9D_F32, D9D_F32, &a));
    for (int i = 0; i < 4; i++)
        assert_true(p[i] == (float)(i + 1));
    assert_true(row[0] == 5 && row[1] == 6 && col[0] == 7 && col[1] == 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adafactor),
        cmocka_unit_test(test_vector),
        cmocka_unit_test(test_nan_scale),
    };

    return cmocka_run_group_tests_name("kernel_adafactor", tests, NULL, NULL);
}
