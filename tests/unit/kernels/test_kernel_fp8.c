/* Quantisation against a search of the nearest number in double, and products of quantised matrices
 * against loops in double over their values. */
#include "d9d/tensor/tensor.h"
#include "support/arrays.h"
#include "support/host_kernels.h"
#include "support/unit.h"
#include "support/unit_device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const d9d_dtype formats[] = {D9D_F8_E4M3, D9D_F8_E5M2};

static double largest(d9d_dtype f)
{
    return f == D9D_F8_E4M3 ? 448 : 57344;
}

static double value_of(d9d_dtype f, uint8_t q)
{
    float v;

    d9d_tensor_elements_to_f32(f, &q, 1, &v);
    return v;
}

/* The nearest number of a format, whose bytes ascend with their numbers; of two the one with an
 * even last bit. */
static uint8_t nearest(d9d_dtype f, double v)
{
    const double a = fmin(fabs(v), largest(f));
    int below = 0, above = f == D9D_F8_E4M3 ? 0x7e : 0x7b;
    double down, up;

    while (above - below > 1) {
        const int q = (below + above) / 2;

        *(value_of(f, (uint8_t)q) <= a ? &below : &above) = q;
    }
    down = a - value_of(f, (uint8_t)below);
    up = value_of(f, (uint8_t)above) - a;
    return (uint8_t)((up < down || (up == down && above % 2 == 0) ? above : below) |
                     (signbit(v) ? 0x80 : 0));
}

/* The scale of the largest magnitude, by its definition. */
static double scale_of(d9d_dtype f, double amax)
{
    double s = ldexp(1, -100);

    if (amax == 0 || !isfinite(amax))
        return 1;
    while (amax > s * largest(f))
        s *= 2;
    return s;
}

typedef struct copy {
    d9d_fp8_operand o;
    int64_t rows, length; /* elements of a row that matter */
    size_t bytes;
} copy;

static copy copy_make(d9d_dtype f, bool by_row, int64_t rows, int64_t length, int64_t stride)
{
    copy c = {{.t = f, .scale_by_row = by_row, .row_stride = stride}, rows, length, 0};

    c.bytes = (size_t)(rows * stride) + 1;
    c.o.data = malloc(c.bytes);
    c.o.scale = malloc((size_t)rows * sizeof(float) + 4);
    assert_true(c.o.data != NULL && c.o.scale != NULL);
    memset(c.o.data, 0x55, c.bytes);
    return c;
}

static void copy_free(copy *c)
{
    free(c->o.data);
    free(c->o.scale);
}

static uint8_t byte_at(const copy *c, int64_t r, int64_t k)
{
    return ((const uint8_t *)c->o.data)[r * c->o.row_stride + k];
}
static double scale_at(const copy *c, int64_t r)
{
    return (double)c->o.scale[c->o.scale_by_row ? r : 0];
}

/* x [m, n] by (r, k) of a copy, which may be transposed. */
typedef struct matrix {
    d9d_dtype t;
    const void *x;
    int64_t m, n;
} matrix;
static double at(const matrix *a, bool turned, int64_t r, int64_t k)
{
    return array_get(a->t, a->x, turned ? k * a->n + r : r * a->n + k);
}

static double amax_of(const matrix *a, bool turned, int64_t first, int64_t end, int64_t length)
{
    double amax = 0;

    for (int64_t r = first; r < end; r++)
        for (int64_t k = 0; k < length; k++) {
            const double v = fabs(at(a, turned, r, k));

            amax = v > amax || !isfinite(v) ? (isfinite(v) ? v : INFINITY) : amax;
        }
    return amax;
}

static void check_copy(const copy *c, const matrix *a, bool turned)
{
    const double all = amax_of(a, turned, 0, c->rows, c->length);

    for (int64_t r = 0; r < c->rows; r++) {
        const double amax = c->o.scale_by_row ? amax_of(a, turned, r, r + 1, c->length) : all;
        const double s = scale_of(c->o.t, amax);

        if (c->length > 0 || turned)
            assert_true(scale_at(c, r) == s);
        for (int64_t k = 0; k < c->length; k++) {
            const double v = at(a, turned, r, k);

            if (isfinite(v))
                assert_int_equal(byte_at(c, r, k), nearest(c->o.t, v / s));
            else
                assert_int_equal(byte_at(c, r, k) & 0x7f, 0x7f);
        }
        for (int64_t k = c->length; k < c->o.row_stride && turned; k++)
            assert_int_equal(byte_at(c, r, k), 0);
    }
}

typedef struct quantise_call {
    matrix a;
    copy rows, cols;
} quantise_call;

static void run_quantise(void *arg)
{
    quantise_call *p = arg;

    assert_ok(host_kernels()->fp8->quantise(NULL, p->a.t, p->a.x, p->a.m, p->a.n, &p->rows.o,
                                            &p->cols.o));
}

static void check_quantise(const matrix *a, d9d_dtype f, bool by_row)
{
    quantise_call p = {*a, copy_make(f, by_row, a->m, a->n, a->n),
                       copy_make(f, by_row, a->n, a->m, d9d_fp8_padded(a->m))};
    copy alone = copy_make(f, by_row, a->m, a->n, a->n);

    array_same_for_threads(run_quantise, &p, p.cols.o.data, p.cols.bytes - 1, NULL);
    check_copy(&p.rows, a, false);
    check_copy(&p.cols, a, true);
    assert_ok(host_kernels()->fp8->quantise(NULL, a->t, a->x, a->m, a->n, &alone.o, NULL));
    assert_memory_equal(alone.o.data, p.rows.o.data, alone.bytes - 1);
    copy_free(&p.rows);
    copy_free(&p.cols);
    copy_free(&alone);
}

static const int64_t sizes[][2] = {{1, 16},    {3, 32},   {16, 48},   {17, 16},   {130, 144},
                                   {65, 1040}, {64, 256}, {129, 272}, {333, 400}, {0, 16}};

/* Magnitudes over many binades, rows and columns of different ones, zeros, one row of zeros. */
static void *spread(d9d_dtype t, int64_t m, int64_t n)
{
    void *x = array_random(t, m * n, 7, 1.0);

    for (int64_t r = 0; r < m; r++)
        for (int64_t k = 0; k < n; k++) {
            double v = array_get(t, x, r * n + k) * ldexp(1, (int)((r * 5 + k * 3) % 40) - 20);

            array_set(t, x, r * n + k, r == 2 || (r + k) % 11 == 0 ? 0.0 : v);
        }
    return x;
}

static void test_quantise(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        for (int flags = 0; flags < 8; flags += unit_step(3)) {
            const d9d_dtype t = array_types[flags & 1];
            const matrix a = {t, spread(t, sizes[i][0], sizes[i][1]), sizes[i][0], sizes[i][1]};

            check_quantise(&a, formats[flags >> 1 & 1], (flags & 4) != 0);
            free((void *)(uintptr_t)a.x);
        }
}

/* --- the steps of a quantisation of which ranks have parts ------------------------------------ */

enum { BY_ARRAY, BY_ROW, BY_COL, KINDS };

/* One step with other threads too. */
typedef struct steps {
    matrix a;
    d9d_fp8_maxima maxima, by;
    copy bytes;
} steps;

static void run_encode(void *arg)
{
    steps *p = arg;

    assert_ok(host_kernels()->fp8->encode(NULL, p->a.t, p->a.x, p->a.m, p->a.n, &p->by,
                                          p->bytes.o.t, p->bytes.o.data));
}

static d9d_fp8_maxima maxima_zero(int64_t m, int64_t n)
{
    return (d9d_fp8_maxima){.all = calloc(1, sizeof(int32_t)),
                            .rows = calloc((size_t)m + 1, sizeof(int32_t)),
                            .cols = calloc((size_t)n + 1, sizeof(int32_t))};
}

static void maxima_free(d9d_fp8_maxima *a)
{
    free(a->all);
    free(a->rows);
    free(a->cols);
}

static d9d_fp8_maxima maxima_of_kind(const d9d_fp8_maxima *a, int kind)
{
    return (d9d_fp8_maxima){.all = kind == BY_ARRAY ? a->all : NULL,
                            .rows = kind == BY_ROW ? a->rows : NULL,
                            .cols = kind == BY_COL ? a->cols : NULL};
}

/* Quantised by steps, the maxima folded part by part, an array is what one call makes of it. */
static void check_steps(const matrix *a, d9d_dtype f)
{
    const d9d_fp8_kernels *k = host_kernels()->fp8;
    const int64_t m = a->m, n = a->n, half = m / 2;
    const size_t size = d9d_dtype_size(a->t);
    const char *second = (const char *)a->x + (size_t)(half * n) * size;
    d9d_fp8_maxima all = maxima_zero(m, n), below = all;

    below.rows += half;
    assert_ok(k->amax(NULL, a->t, a->x, half, n, &all));
    assert_ok(k->amax(NULL, a->t, second, m - half, n, &below));
    for (int kind = 0; kind < KINDS; kind++) {
        const bool by_row = kind != BY_ARRAY;
        const int64_t scales = kind == BY_ARRAY ? 1 : kind == BY_ROW ? m : n;
        steps p = {*a, all, maxima_of_kind(&all, kind), copy_make(f, by_row, m, n, n)};
        copy rows = copy_make(f, by_row, m, n, n),
             cols = copy_make(f, by_row, n, m, d9d_fp8_padded(m)),
             turned = copy_make(f, by_row, n, m, d9d_fp8_padded(m));
        float *scale = calloc((size_t)scales + 1, sizeof(*scale));

        assert_non_null(scale);
        array_same_for_threads(run_encode, &p, p.bytes.o.data, p.bytes.bytes - 1, NULL);
        assert_ok(k->scales(NULL, f,
                            kind == BY_ARRAY ? all.all
                            : kind == BY_ROW ? all.rows
                                             : all.cols,
                            scales, scale));
        assert_ok(k->transpose(NULL, p.bytes.o.data, m, n, turned.o.data));
        assert_ok(k->quantise(NULL, a->t, a->x, m, n, &rows.o, &cols.o));
        if (kind != BY_COL)
            assert_memory_equal(p.bytes.o.data, rows.o.data, rows.bytes);
        if (kind != BY_ROW)
            assert_memory_equal(turned.o.data, cols.o.data, cols.bytes);
        if (m > 0 || kind == BY_COL)
            assert_memory_equal(scale, kind == BY_COL ? cols.o.scale : rows.o.scale,
                                (size_t)scales * sizeof(*scale));
        free(scale);
        copy_free(&p.bytes);
        copy_free(&rows);
        copy_free(&cols);
        copy_free(&turned);
    }
    maxima_free(&all);
}

static void test_steps(void **state)
{
    static const float odd[][16] = {{INFINITY, 1, -2}, {1, -INFINITY}, {NAN, 3}, {-0.0f}, {1e-45f}};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        for (int flags = 0; flags < 4; flags += unit_step(3)) {
            const d9d_dtype t = array_types[flags & 1];
            const matrix a = {t, spread(t, sizes[i][0], sizes[i][1]), sizes[i][0], sizes[i][1]};

            check_steps(&a, formats[flags >> 1]);
            free((void *)(uintptr_t)a.x);
        }
    for (size_t i = 0; i < sizeof(odd) / sizeof(*odd); i++)
        check_steps(&(matrix){D9D_F32, odd[i], 1, 16}, D9D_F8_E4M3);
}

/* Rows of groups find their places among those of a larger array, and larger maxima stay. */
static void test_groups_of_rows(void **state)
{
    enum { GROUPS = 3, GROUP = 5, SKIP = 4, FIRST = 2, M = GROUPS * GROUP, N = 48 };
    enum { PLACES = GROUPS * (GROUP + SKIP) };
    const d9d_fp8_kernels *k = host_kernels()->fp8;
    float *x = spread(D9D_F32, M, N);
    int32_t plain[M] = {0}, places[PLACES] = {0};
    const d9d_fp8_maxima own = {.rows = plain},
                         among = {.rows = places + FIRST, .group = GROUP, .skip = SKIP};
    uint8_t y[M * N], z[M * N];

    (void)state;
    places[FIRST + GROUP + SKIP + 1] = 0x7f000000;
    assert_ok(k->amax(NULL, D9D_F32, x, M, N, &own));
    assert_ok(k->amax(NULL, D9D_F32, x, M, N, &among));
    assert_int_equal(places[FIRST + GROUP + SKIP + 1], 0x7f000000);
    places[FIRST + GROUP + SKIP + 1] = plain[GROUP + 1];
    for (int i = 0, r = 0; i < PLACES; i++) {
        const int at = i - FIRST;

        assert_int_equal(places[i], at >= 0 && at % (GROUP + SKIP) < GROUP ? plain[r++] : 0);
    }
    assert_ok(k->encode(NULL, D9D_F32, x, M, N, &own, D9D_F8_E4M3, y));
    assert_ok(k->encode(NULL, D9D_F32, x, M, N, &among, D9D_F8_E4M3, z));
    assert_memory_equal(y, z, sizeof(y));
    free(x);
}

static void test_steps_refused(void **state)
{
    const d9d_fp8_kernels *k = d9d_kernels_cpu()->fp8;
    int32_t most[32] = {0};
    float x[64] = {0};
    const d9d_fp8_maxima all = {.all = most}, two = {.all = most, .cols = most},
                         none = {.all = NULL}, back = {.rows = most, .group = 2, .skip = -1};

    (void)state;
    assert_fails(k->amax(NULL, D9D_F32, x, 2, 20, &all), D9D_EINVAL,
                 "fp8_amax: rows of 20 elements, possible are multiples of 16");
    assert_fails(k->amax(NULL, D9D_F16, x, 2, 32, &all), D9D_EINVAL,
                 "fp8_amax: works on float32 and bfloat16, not on float16");
    assert_fails(k->amax(NULL, D9D_F32, x, 2, 32, &back), D9D_EINVAL,
                 "fp8_amax: groups of 2 rows, -1 places apart");
    assert_fails(k->encode(NULL, D9D_F32, x, 2, 32, &two, D9D_F8_E4M3, x), D9D_EINVAL,
                 "fp8_encode: maxima of 2 kinds, one says the scale of an element");
    assert_fails(k->encode(NULL, D9D_F32, x, 2, 32, &none, D9D_F8_E4M3, x), D9D_EINVAL,
                 "fp8_encode: maxima of 0 kinds, one says the scale of an element");
    assert_fails(k->encode(NULL, D9D_F32, x, 2, 32, &all, D9D_U8, x), D9D_EINVAL,
                 "fp8_encode: y is uint8, not float8_e4m3fn or float8_e5m2");
    assert_fails(k->encode(NULL, D9D_F32, x, 2, 20, &all, D9D_F8_E4M3, x), D9D_EINVAL,
                 "fp8_encode: rows of 20 elements, possible are multiples of 16");
    assert_fails(k->scales(NULL, D9D_BF16, most, 2, x), D9D_EINVAL,
                 "fp8_scales: the format is bfloat16, not float8_e4m3fn or float8_e5m2");
    assert_fails(k->transpose(NULL, x, 2, 20, x), D9D_EINVAL,
                 "fp8_transpose: rows of 20 elements, possible are multiples of 16");
}

/* Every number of the format, every middle between two of them, and its neighbours in float32. */
static void test_rounding(void **state)
{
    enum { N = 16 };
    float x[2 * 128 * 3][N];

    (void)state;
    for (size_t f = 0; f < 2; f++) {
        int64_t m = 0;

        memset(x, 0, sizeof(x));
        for (int q = 0; q < 126; q++) {
            const double lo = value_of(formats[f], (uint8_t)q),
                         hi = value_of(formats[f], (uint8_t)(q + 1));

            if (!isfinite(hi))
                continue;
            for (int i = 0; i < 5; i++) {
                const float middle = (float)((lo + hi) / 2);

                x[m][i] = i == 0   ? (float)lo
                          : i == 1 ? middle
                          : i == 2 ? nextafterf(middle, 0)
                          : i == 3 ? nextafterf(middle, INFINITY)
                                   : -middle;
            }
            x[m][N - 1] = (float)largest(formats[f]); /* so that the scale is 1 */
            m++;
        }
        check_quantise(&(matrix){D9D_F32, x, m, N}, formats[f], true);
        check_quantise(&(matrix){D9D_F32, x, m, N}, formats[f], false);
    }
}

/* What is not finite, at the edges of the scale. */
static void test_extremes(void **state)
{
    static const float row[][16] = {
        {INFINITY, 1, -2, 500, -1e30f},      {1, -INFINITY},       {NAN, 3},
        {3.4028235e38f, 1e30f, -1},          {1e-45f, -1e-40f, 0}, {0x1p-100f, 1e-38f},
        {448, 449, 0.0009765625f, -0.0005f}, {57344, 57345, 1},    {-0.0f},
    };

    (void)state;
    for (size_t f = 0; f < 2; f++)
        for (size_t i = 0; i < sizeof(row) / sizeof(*row); i++)
            for (int by_row = 0; by_row < 2; by_row++)
                check_quantise(&(matrix){D9D_F32, row[i], 1, 16}, formats[f], by_row);
}

typedef struct product_call {
    d9d_fp8_gemm_dims g;
    copy a, b;
    void *c;
} product_call;

static void run_product(void *arg)
{
    product_call *p = arg;

    assert_ok(host_kernels()->fp8->product(NULL, &p->g, &p->a.o, &p->b.o, p->c));
}

static copy quantised_random(d9d_dtype f, bool by_row, int64_t rows, int64_t k, int64_t stride,
                             uint64_t seed)
{
    void *x = array_random(D9D_F32, rows * stride, seed, 1.0 / sqrt((double)k + 1.0));
    copy c = copy_make(f, by_row, rows, k, stride);

    assert_ok(host_kernels()->fp8->quantise(NULL, D9D_F32, x, rows, stride, &c.o, NULL));
    free(x);
    return c;
}

/* c is within the tolerance of want.  A GPU may round A B to bfloat16 before it adds to a bfloat16
 * C: by half of 2^-8 of what was not there before. */
static void product_close(const char *name, const d9d_fp8_gemm_dims *g, const void *c,
                          const void *before, const double *want, double tolerance)
{
    for (int64_t i = 0; i < g->m * g->n; i++) {
        const double had = before != NULL ? (double)g->beta * array_get(g->ct, before, i) : want[i];
        const double twice =
            unit_device_is_cpu() || g->ct != D9D_BF16 ? 0 : fabs(want[i] - had) / 512.0;

        array_close(name, g->ct, (const char *)c + (uint64_t)i * d9d_dtype_size(g->ct), &want[i], 1,
                    tolerance + twice);
    }
}

/* Error of the sum: float32 over K products of |a| |b|, in any order, on top of the output's own
 * rounding; the inputs are exact.  Tensor cores align the products of an instruction to the largest
 * and cut about 14 bits below it. */
static void check_product(const d9d_fp8_gemm_dims *g, d9d_dtype at, d9d_dtype bt, bool by_row)
{
    const int64_t n = g->m * g->n;
    const size_t bytes = (size_t)n * d9d_dtype_size(g->ct);
    product_call p = {.g = *g,
                      .a = quantised_random(at, by_row, g->m, g->k, g->k + 32, 1),
                      .b = quantised_random(bt, by_row, g->n, g->k, g->k, 2)};
    const double tolerance = unit_device_is_cpu() ? 1e-5 : 1e-3;
    void *before = g->beta == 0.0f ? NULL : array_random(g->ct, n, 3, 1.0);
    double *want = calloc((size_t)n + 1, sizeof(*want));

    assert_non_null(want);
    p.c = array_poison(g->ct, n);
    for (int64_t i = 0; i < n; i++) {
        const int64_t r = i / g->n, col = i % g->n;

        want[i] = before != NULL ? (double)g->beta * array_get(g->ct, before, i) : 0;
        for (int64_t k = 0; k < g->k; k++)
            want[i] += value_of(at, byte_at(&p.a, r, k)) * scale_at(&p.a, r) *
                       value_of(bt, byte_at(&p.b, col, k)) * scale_at(&p.b, col);
    }
    array_same_for_threads(run_product, &p, p.c, bytes, before);
    product_close("c", g, p.c, before, want, tolerance);
    if (before != NULL) { /* added from elsewhere: the same bits on a CPU, as near on a GPU */
        void *in_place = p.c;

        p.c = array_poison(g->ct, n);
        p.g.addend = before;
        run_product(&p);
        product_close("c, added from elsewhere", g, p.c, before, want, tolerance);
        if (unit_device_is_cpu())
            assert_memory_equal(p.c, in_place, bytes);
        free(in_place);
    }
    copy_free(&p.a);
    copy_free(&p.b);
    free(p.c);
    free(before);
    free(want);
}

static void test_product(void **state)
{
    static const int64_t shapes[][3] = {{1, 16, 16}, {17, 32, 64}, {130, 64, 608}, {64, 528, 16},
                                        {0, 16, 16}, {16, 16, 0},  {33, 48, 320},  {256, 128, 512}};

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (int flags = 0; flags < 8; flags += unit_step(3)) {
            const int kinds = flags % 3;
            const d9d_fp8_gemm_dims g = {.ct = array_types[flags & 1],
                                         .m = shapes[i][0],
                                         .n = shapes[i][1],
                                         .k = shapes[i][2],
                                         .beta = (flags & 2) != 0 ? 1.0f : 0.0f};

            check_product(&g, formats[kinds == 1], formats[kinds == 2], (flags & 4) != 0);
        }
}

/* Rows have the same bits whatever rows are computed with them. */
static void test_rows(void **state)
{
    d9d_fp8_gemm_dims g = {.ct = D9D_BF16, .m = 70, .n = 64, .k = 160};
    product_call p = {.g = g,
                      .a = quantised_random(D9D_F8_E4M3, true, 70, 160, 160, 1),
                      .b = quantised_random(D9D_F8_E4M3, true, 64, 160, 160, 2),
                      .c = array_poison(D9D_BF16, 70 * 64)};
    uint16_t *some = array_poison(D9D_BF16, 70 * 64);
    d9d_fp8_operand a = p.a.o;

    (void)state;
    if (!unit_device_is_cpu())
        skip();
    run_product(&p);
    g.m = 20;
    a.data = (uint8_t *)a.data + 33 * 160;
    a.scale += 33;
    assert_ok(host_kernels()->fp8->product(NULL, &g, &a, &p.b.o, some));
    assert_memory_equal(some, (uint16_t *)p.c + 33 * 64, 20 * 64 * 2);
    copy_free(&p.a);
    copy_free(&p.b);
    free(p.c);
    free(some);
}

/* --- products of experts --------------------------------------------------------------------- */

enum { EXPERTS = 5 };

typedef struct grouped_call {
    d9d_fp8_grouped_dims g;
    copy a, b;
    void *c;
} grouped_call;

static void run_grouped(void *arg)
{
    grouped_call *p = arg;

    assert_ok(host_kernels()->fp8->grouped(NULL, &p->g, &p->a.o, &p->b.o, p->c));
}

/* Row r and column n of an expert's product: which rows of A and B, and which elements of them. */
typedef struct grouped_sum {
    int64_t a_row, a_from, b_row, b_from, k;
} grouped_sum;
static grouped_sum grouped_sum_of(const d9d_fp8_grouped_dims *g, int64_t e, int64_t r, int64_t n)
{
    const int64_t first = g->offset[e];

    switch (g->form) {
    case D9D_FP8_GROUPED_FWD: return (grouped_sum){first + r, 0, n, e * g->in, g->in};
    case D9D_FP8_GROUPED_DGRAD: return (grouped_sum){first + r, 0, e * g->in + n, 0, g->out};
    default: return (grouped_sum){r, first, n, first, g->offset[e + 1] - first};
    }
}

/* The values of all elements of a copy; freed by the caller. */
static double *copy_values(const copy *c)
{
    double *v = calloc((size_t)(c->rows * c->o.row_stride) + 1, sizeof(*v)), of[256];

    assert_non_null(v);
    for (int q = 0; q < 256; q++)
        of[q] = value_of(c->o.t, (uint8_t)q);
    for (int64_t r = 0; r < c->rows; r++)
        for (int64_t k = 0; k < c->o.row_stride; k++)
            v[r * c->o.row_stride + k] = of[byte_at(c, r, k)] * scale_at(c, r);
    return v;
}

/* All results in double, by the definition. */
static void grouped_want(const grouped_call *p, const void *before, double *want)
{
    const d9d_fp8_grouped_dims *g = &p->g;
    const int64_t n = g->form == D9D_FP8_GROUPED_DGRAD ? g->in : g->out;
    double *a = copy_values(&p->a), *b = copy_values(&p->b);
    int64_t i = 0;

    for (int64_t e = 0; e < g->e; e++) {
        const int64_t rows =
            g->form == D9D_FP8_GROUPED_WGRAD ? g->in : g->offset[e + 1] - g->offset[e];

        for (int64_t at = 0; at < rows * n; at++, i++) {
            const grouped_sum s = grouped_sum_of(g, e, at / n, at % n);
            const double *x = a + s.a_row * p->a.o.row_stride + s.a_from,
                         *y = b + s.b_row * p->b.o.row_stride + s.b_from;

            want[i] = before != NULL ? array_get(g->ct, before, i) : 0;
            for (int64_t k = 0; k < s.k; k++)
                want[i] += x[k] * y[k];
        }
    }
    free(a);
    free(b);
}

/* Errors as of a dense product. */
static void check_grouped(const d9d_fp8_grouped_dims *g, d9d_dtype at, d9d_dtype bt, bool by_row)
{
    const bool is_wgrad = g->form == D9D_FP8_GROUPED_WGRAD;
    const int64_t a_rows = is_wgrad ? g->in : g->rows,
                  a_k = is_wgrad                         ? d9d_fp8_padded(g->rows)
                        : g->form == D9D_FP8_GROUPED_FWD ? g->in
                                                         : g->out,
                  b_rows = g->form == D9D_FP8_GROUPED_DGRAD ? g->e * g->in : g->out,
                  b_k = is_wgrad                         ? d9d_fp8_padded(g->rows)
                        : g->form == D9D_FP8_GROUPED_FWD ? g->e * g->in
                                                         : g->out;
    const int64_t n = is_wgrad                           ? g->e * g->in * g->out
                      : g->form == D9D_FP8_GROUPED_DGRAD ? g->rows * g->in
                                                         : g->rows * g->out;
    const size_t bytes = (size_t)n * d9d_dtype_size(g->ct);
    grouped_call p = {.g = *g,
                      .a = quantised_random(at, by_row, a_rows, a_k, a_k + 16, 1),
                      .b = quantised_random(bt, by_row, b_rows, b_k, b_k, 2)};
    void *before = g->beta == 0.0f ? NULL : array_random(g->ct, n, 3, 1.0);
    double *want = calloc((size_t)n + 1, sizeof(*want));

    assert_non_null(want);
    p.c = array_poison(g->ct, n);
    grouped_want(&p, before, want);
    array_same_for_threads(run_grouped, &p, p.c, bytes, before);
    array_close("c", g->ct, p.c, want, n,
                unit_device_is_cpu() ? 1e-5 : (g->fast_accum ? 4e-3 : 1e-3));
    copy_free(&p.a);
    copy_free(&p.b);
    free(p.c);
    free(before);
    free(want);
}

/* Ragged experts, some without rows; tiles with and without partners; sums that end within a step.
 */
static void check_form(d9d_fp8_grouped_form form)
{
    static const int32_t offsets[][EXPERTS + 1] = {{0, 0, 1, 1, 3, 20},
                                                   {0, 130, 131, 131, 400, 415},
                                                   {0, 128, 384, 384, 500, 512},
                                                   {0, 0, 0, 0, 0, 0},
                                                   {0, 13, 90, 347, 348, 483}};
    static const int64_t shapes[][2] = {{16, 32}, {144, 272}, {128, 48}, {80, 160}};

    for (size_t o = 0; o < sizeof(offsets) / sizeof(*offsets); o++)
        for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
            for (int flags = 0; flags < 8; flags += unit_step(3)) {
                const d9d_fp8_grouped_dims g = {.form = form,
                                                .ct = array_types[flags & 1],
                                                .rows = offsets[o][EXPERTS],
                                                .e = EXPERTS,
                                                .in = shapes[i][0],
                                                .out = shapes[i][1],
                                                .offset = offsets[o],
                                                .beta = (flags & 2) != 0 ? 1.0f : 0.0f,
                                                .fast_accum = (flags / 4 + o) % 2 != 0};
                const bool coarse = (flags & 4) != 0;

                if ((o + i + (size_t)flags / 2) % 2 != 0) /* half of all: the rest says no more */
                    continue;
                check_grouped(&g, formats[coarse && g.form == D9D_FP8_GROUPED_DGRAD],
                              formats[coarse && g.form == D9D_FP8_GROUPED_WGRAD], (flags & 6) != 0);
            }
}

static void test_grouped_fwd(void **state)
{
    (void)state;
    check_form(D9D_FP8_GROUPED_FWD);
}
static void test_grouped_dgrad(void **state)
{
    (void)state;
    check_form(D9D_FP8_GROUPED_DGRAD);
}
static void test_grouped_wgrad(void **state)
{
    (void)state;
    check_form(D9D_FP8_GROUPED_WGRAD);
}

/* More than the kernel for Hopper takes, most of them without rows. */
static void test_grouped_many(void **state)
{
    enum { MANY = 520, EACH = 13 };
    int32_t offset[MANY + 1] = {0};
    d9d_fp8_grouped_dims g = {.ct = D9D_F32, .e = MANY, .in = 16, .out = 32, .offset = offset};

    (void)state;
    for (int i = 0; i < MANY; i++)
        offset[i + 1] = offset[i] + (i % EACH == 0 ? 3 : 0);
    g.rows = offset[MANY];
    for (int form = 0; form < 3; form++)
        for (int way = 0; way < 2; way++) {
            g.form = (d9d_fp8_grouped_form)form;
            g.beta = way == 0 ? 0.0f : 1.0f;
            check_grouped(&g, formats[way == 1 && form == D9D_FP8_GROUPED_DGRAD],
                          formats[way == 1 && form == D9D_FP8_GROUPED_WGRAD], way == 1);
        }
}

/* What is not finite in the elements of another expert does not reach a gradient of weights. */
static void test_grouped_foreign_nan(void **state)
{
    enum { ROWS = 40, SIDE = 32 };
    static const int32_t offset[] = {0, 19, ROWS};
    const d9d_fp8_grouped_dims g = {.form = D9D_FP8_GROUPED_WGRAD,
                                    .ct = D9D_F32,
                                    .rows = ROWS,
                                    .e = 2,
                                    .in = SIDE,
                                    .out = SIDE,
                                    .offset = offset};
    grouped_call p = {.g = g,
                      .a = quantised_random(D9D_F8_E4M3, true, SIDE, ROWS, 48, 1),
                      .b = quantised_random(D9D_F8_E4M3, true, SIDE, ROWS, 48, 2),
                      .c = array_poison(D9D_F32, 2 * SIDE * SIDE)};
    const float *c = p.c;

    (void)state;
    for (int r = 0; r < SIDE; r++)
        for (int k = 19; k < ROWS; k++)
            ((uint8_t *)p.a.o.data)[r * 48 + k] = ((uint8_t *)p.b.o.data)[r * 48 + k] = 0x7f;
    run_grouped(&p);
    for (int i = 0; i < SIDE * SIDE; i++)
        assert_true(isfinite(c[i]) && isnan(c[SIDE * SIDE + i]));
    copy_free(&p.a);
    copy_free(&p.b);
    free(p.c);
}

static void test_refused(void **state)
{
    uint8_t data[64 * 64];
    float scale[64] = {0}, c[64 * 64];
    const d9d_fp8_operand fine = {D9D_F8_E4M3, true, 32, data, scale};
    const d9d_fp8_operand coarse = {D9D_F8_E5M2, true, 32, data, scale};
    const d9d_fp8_operand whole = {D9D_F8_E4M3, false, 32, data, scale};
    const d9d_fp8_operand odd = {D9D_F8_E4M3, true, 40, data, scale};
    const d9d_fp8_operand wide = {D9D_BF16, true, 32, data, scale};
    const d9d_fp8_gemm_dims g = {.ct = D9D_F32, .m = 2, .n = 16, .k = 32};
    d9d_fp8_gemm_dims other = g;
    static const int32_t offset[] = {0, 1, 2};
    d9d_fp8_grouped_dims grouped = {
        .ct = D9D_F32, .rows = 2, .e = 2, .in = 16, .out = 16, .offset = offset};
    const d9d_fp8_kernels *k = d9d_kernels_cpu()->fp8;

    (void)state;
    memset(data, 0, sizeof(data));
    assert_fails(k->quantise(NULL, D9D_F32, c, 2, 20, &fine, NULL), D9D_EINVAL,
                 "fp8_quantise: rows of 20 elements, possible are multiples of 16");
    assert_fails(k->quantise(NULL, D9D_F16, c, 2, 32, &fine, NULL), D9D_EINVAL,
                 "fp8_quantise: works on float32 and bfloat16, not on float16");
    assert_fails(k->quantise(NULL, D9D_F32, c, 33, 32, &fine, &fine), D9D_EINVAL,
                 "fp8_quantise: rows of cols have 48 elements and are 32 apart, which must be a "
                 "multiple of 16 and hold them");
    assert_fails(k->quantise(NULL, D9D_F32, c, 2, 32, &wide, NULL), D9D_EINVAL,
                 "fp8_quantise: rows is bfloat16, not float8_e4m3fn or float8_e5m2");
    assert_fails(k->product(NULL, &g, &odd, &fine, c), D9D_EINVAL,
                 "fp8_gemm: rows of A have 32 elements and are 40 apart, which must be a multiple "
                 "of 16 and hold them");
    assert_fails(k->product(NULL, &g, &coarse, &coarse, c), D9D_EINVAL,
                 "fp8_gemm: A and B are float8_e5m2, at most one may be");
    assert_fails(k->product(NULL, &g, &fine, &whole, c), D9D_EINVAL,
                 "fp8_gemm: A and B have scales of two kinds");
    other.n = 20;
    assert_fails(k->product(NULL, &other, &fine, &fine, c), D9D_EINVAL,
                 "fp8_gemm: N 20 and K 32, possible are multiples of 16");
    assert_fails(k->grouped(NULL, &grouped, &odd, &fine, c), D9D_EINVAL,
                 "fp8_grouped_gemm: rows of A have 16 elements and are 40 apart, which must be a "
                 "multiple of 16 and hold them");
    assert_fails(k->grouped(NULL, &grouped, &coarse, &coarse, c), D9D_EINVAL,
                 "fp8_grouped_gemm: A and B are float8_e5m2, at most one may be");
    grouped.in = 12;
    assert_fails(k->grouped(NULL, &grouped, &fine, &fine, c), D9D_EINVAL,
                 "fp8_grouped_gemm: matrices of 12 x 16, possible are multiples of 16");
    grouped.in = 16, grouped.beta = 0.5f;
    assert_fails(k->grouped(NULL, &grouped, &fine, &fine, c), D9D_EINVAL,
                 "fp8_grouped_gemm: beta is 0.5, possible are 0 and 1");
    grouped.beta = 0.0f, grouped.rows = 3;
    assert_fails(k->grouped(NULL, &grouped, &fine, &fine, c), D9D_EINVAL,
                 "fp8_grouped_gemm: offsets of 2 experts go from 0 to 2, rows are 3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantise),       cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_extremes),       cmocka_unit_test(test_product),
        cmocka_unit_test(test_rows),           cmocka_unit_test(test_grouped_fwd),
        cmocka_unit_test(test_grouped_dgrad),  cmocka_unit_test(test_grouped_wgrad),
        cmocka_unit_test(test_grouped_many),   cmocka_unit_test(test_grouped_foreign_nan),
        cmocka_unit_test(test_refused),        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_groups_of_rows), cmocka_unit_test(test_steps_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
