/* LayerNorm against loops in double. */
#include "support/arrays.h"
#include "support/host_kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const float EPS = 1e-3f;

typedef struct norm {
    d9d_dtype t, gt;
    int64_t m, n;
    float beta;
    void *x, *w, *b, *dy, *y, *dx, *dw, *db; /* w and b may be NULL */
    float *mean, *inv;
} norm;

static void run_norm(void *arg)
{
    norm *p = arg;

    assert_int_equal(host_kernels()->norm->layer_norm(NULL, p->t, p->y, p->mean, p->inv, p->x, p->w,
                                                      p->b, p->m, p->n, EPS),
                     D9D_OK);
}

/* The type of db, which is another than that of dw. */
static d9d_dtype bias_type(const norm *p)
{
    return p->gt == D9D_F32 ? D9D_BF16 : D9D_F32;
}

static d9d_status norm_grad(norm *p, void *dx, const void *plus, void *dw, void *db)
{
    const d9d_layer_norm_grads of = {.wt = p->gt,
                                     .bt = bias_type(p),
                                     .dw = dw,
                                     .db = db,
                                     .beta_w = p->beta,
                                     .beta_b = 1.0f - p->beta};

    return host_kernels()->norm->layer_norm_bwd(NULL, p->t, dx, plus, &of, p->dy, p->x, p->w,
                                                p->mean, p->inv, p->m, p->n);
}
static void run_dgrad(void *arg)
{
    norm *p = arg;

    assert_int_equal(norm_grad(p, p->dx, NULL, NULL, NULL), D9D_OK);
}
static void run_wgrad(void *arg)
{
    norm *p = arg;

    assert_int_equal(norm_grad(p, NULL, NULL, p->dw, NULL), D9D_OK);
}
static void run_bgrad(void *arg)
{
    norm *p = arg;

    assert_int_equal(norm_grad(p, NULL, NULL, NULL, p->db), D9D_OK);
}

/* Statistics of a row, of numbers far from zero. */
static void naive_stats(const norm *p, int64_t r, double *mean, double *inv)
{
    double sum = 0.0, square = 0.0;

    for (int64_t i = 0; i < p->n; i++)
        sum += array_get(p->t, p->x, r * p->n + i);
    *mean = sum / (double)p->n;
    for (int64_t i = 0; i < p->n; i++)
        square += pow(array_get(p->t, p->x, r * p->n + i) - *mean, 2.0);
    *inv = 1.0 / sqrt(square / (double)p->n + (double)EPS);
}

static void naive_norm(const norm *p, double *y, double *dx, double *dw, double *db)
{
    for (int64_t r = 0; r < p->m; r++) {
        double mean, inv, sum = 0.0, dot = 0.0;

        naive_stats(p, r, &mean, &inv);
        for (int64_t i = 0; i < p->n; i++) {
            const double x = (array_get(p->t, p->x, r * p->n + i) - mean) * inv,
                         d = array_get(p->t, p->dy, r * p->n + i),
                         w = p->w != NULL ? array_get(p->t, p->w, i) : 1.0;

            y[r * p->n + i] = x * w + (p->b != NULL ? array_get(p->t, p->b, i) : 0.0);
            dw[i] += d * x;
            db[i] += d;
            sum += d * w;
            dot += d * w * x;
        }
        for (int64_t i = 0; i < p->n; i++) {
            const double x = (array_get(p->t, p->x, r * p->n + i) - mean) * inv,
                         d = array_get(p->t, p->dy, r * p->n + i),
                         w = p->w != NULL ? array_get(p->t, p->w, i) : 1.0;

            dx[r * p->n + i] = inv * (d * w - sum / (double)p->n - x * dot / (double)p->n);
        }
    }
}

/* All at once are the bits of each alone; what is added to dx may lie in it. */
static void check_together(norm *p, const double *want, const void *before, const void *before_b)
{
    const int64_t all = p->m * p->n;
    const size_t bytes = (size_t)all * d9d_dtype_size(p->t),
                 bytes_w = (size_t)p->n * d9d_dtype_size(p->gt),
                 bytes_b = (size_t)p->n * d9d_dtype_size(bias_type(p));
    void *dx = array_poison(p->t, all), *dw = array_poison(p->gt, p->n),
         *db = array_poison(bias_type(p), p->n), *plus = array_random(p->t, all, 6, 1.0);
    double *sum = array_doubles(p->t, plus, all);

    memcpy(dw, before, bytes_w);
    memcpy(db, before_b, bytes_b);
    assert_int_equal(norm_grad(p, dx, NULL, dw, db), D9D_OK);
    assert_memory_equal(dx, p->dx, bytes);
    assert_memory_equal(dw, p->dw, bytes_w);
    assert_memory_equal(db, p->db, bytes_b);
    for (int64_t i = 0; i < all; i++)
        sum[i] += want[i];
    assert_int_equal(norm_grad(p, dx, plus, NULL, NULL), D9D_OK);
    array_close("dx added", p->t, dx, sum, all, 2e-5);
    assert_int_equal(norm_grad(p, plus, plus, NULL, NULL), D9D_OK);
    assert_memory_equal(plus, dx, bytes);
    free(dx);
    free(dw);
    free(db);
    free(plus);
    free(sum);
}

static void check_grads(norm *p, const double *dx, double *dw, double *db)
{
    const d9d_dtype bt = bias_type(p);
    void *before = array_random(p->gt, p->n, 4, 1.0), *before_b = array_random(bt, p->n, 5, 1.0);

    for (int64_t i = 0; i < p->n; i++) {
        dw[i] += (double)p->beta * array_get(p->gt, before, i);
        db[i] += (1.0 - (double)p->beta) * array_get(bt, before_b, i);
    }
    array_same_for_threads(run_dgrad, p, p->dx, (size_t)(p->m * p->n) * d9d_dtype_size(p->t), NULL);
    array_same_for_threads(run_wgrad, p, p->dw, (size_t)p->n * d9d_dtype_size(p->gt), before);
    array_same_for_threads(run_bgrad, p, p->db, (size_t)p->n * d9d_dtype_size(bt), before_b);
    array_close("dx", p->t, p->dx, dx, p->m * p->n, 2e-5);
    array_close("dw", p->gt, p->dw, dw, p->n, 1e-4);
    array_close("db", bt, p->db, db, p->n, 1e-4);
    check_together(p, dx, before, before_b);
    free(before);
    free(before_b);
}

static void check_norm(norm *p, bool has_w, bool has_b)
{
    const int64_t all = p->m * p->n;
    double *y = calloc((size_t)all + 1, sizeof(*y)), *dx = calloc((size_t)all + 1, sizeof(*dx));
    double *dw = calloc((size_t)p->n + 1, sizeof(*dw)), *db = calloc((size_t)p->n + 1, sizeof(*db));

    p->x = array_random(p->t, all, 1, 1.0);
    for (int64_t i = 0; i < all; i++)
        array_set(p->t, p->x, i, array_get(p->t, p->x, i) + 3.0);
    p->w = has_w ? array_random(p->t, p->n, 2, 1.0) : NULL;
    p->b = has_b ? array_random(p->t, p->n, 7, 1.0) : NULL;
    p->dy = array_random(p->t, all, 3, 1.0);
    p->y = array_poison(p->t, all);
    p->dx = array_poison(p->t, all);
    p->dw = array_poison(p->gt, p->n);
    p->db = array_poison(bias_type(p), p->n);
    p->mean = array_poison(D9D_F32, p->m);
    p->inv = array_poison(D9D_F32, p->m);
    naive_norm(p, y, dx, dw, db);
    array_same_for_threads(run_norm, p, p->y, (size_t)all * d9d_dtype_size(p->t), NULL);
    array_close("y", p->t, p->y, y, all, 1e-5);
    check_grads(p, dx, dw, db);
    void *parts[] = {p->x,  p->w,    p->b,   p->dy, p->y, p->dx, p->dw,
                     p->db, p->mean, p->inv, y,     dx,   dw,    db};
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        free(parts[i]);
}

static void test_layer_norm(void **state)
{
    const int64_t shapes[][2] = {{0, 5},    {1, 1},     {3, 17},   {1, 1030}, {129, 33},
                                 {70, 128}, {17000, 4}, {700, 20}, {9, 1300}, {40, 2048},
                                 {5, 4000}, {3, 5128},  {2, 8192}, {3, 8201}};

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (int flags = 0; flags < 16; flags++) {
            norm p = {.t = array_types[flags & 1],
                      .gt = array_types[flags >> 1 & 1],
                      .m = shapes[i][0],
                      .n = shapes[i][1],
                      .beta = flags % 3 == 0 ? 1.0f : 0.0f};

            if (shapes[i][0] < 1000 || flags % 5 == 0)
                check_norm(&p, (flags & 4) != 0, (flags & 8) != 0);
        }
}

/* Equal elements have no variance; their gradient is finite. */
static void test_equal_elements(void **state)
{
    float x[6], y[6], dx[6], mean[2], inv[2];
    const d9d_layer_norm_grads none = {.wt = D9D_F32, .bt = D9D_F32};

    (void)state;
    for (int i = 0; i < 6; i++)
        x[i] = i < 3 ? 1e4f : -2.5f;
    assert_int_equal(
        host_kernels()->norm->layer_norm(NULL, D9D_F32, y, mean, inv, x, NULL, NULL, 2, 3, 1e-5f),
        D9D_OK);
    assert_int_equal(host_kernels()->norm->layer_norm_bwd(NULL, D9D_F32, dx, NULL, &none, x, x,
                                                          NULL, mean, inv, 2, 3),
                     D9D_OK);
    for (int i = 0; i < 6; i++) {
        assert_true(y[i] == 0.0f);
        assert_true(dx[i] == 0.0f);
    }
    assert_int_equal(
        host_kernels()->norm->layer_norm(NULL, D9D_I32, y, mean, inv, x, NULL, NULL, 2, 3, 1e-5f),
        D9D_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layer_norm),
        cmocka_unit_test(test_equal_elements),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
