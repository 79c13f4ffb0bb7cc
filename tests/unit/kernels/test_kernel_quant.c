/* Frozen matrices in 8 and 4 bits: rows against a search of the nearest numbers in double, and
 * products against loops in double over the dequantised values. */
#include "common/quant_code.h"
#include "support/arrays.h"
#include "support/host_kernels.h"
#include "support/unit.h"
#include "support/unit_device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = D9D_QUANT_NF4_BLOCK };
static const d9d_quant_format formats[] = {D9D_QUANT_FP8, D9D_QUANT_NF4};

/* A matrix, with the rows that are made of it. */
typedef struct matrix {
    d9d_dtype t;
    void *x;
    uint8_t *bytes;
    d9d_quant_matrix q;
} matrix;

/* Rows of different magnitudes. */
static matrix matrix_make(d9d_quant_format f, d9d_dtype t, int64_t rows, int64_t cols,
                          uint64_t seed)
{
    matrix m = {.t = t, .x = array_random(t, rows * cols, seed, 1.0 / sqrt((double)cols + 1))};
    const size_t bytes = (size_t)(rows * d9d_quant_row_bytes(f, cols));

    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < cols; k++)
            array_set(t, m.x, r * cols + k,
                      ldexp(array_get(t, m.x, r * cols + k), -(int)(r * 5 % 7)));
    m.bytes = aligned_alloc(64, (bytes + 64) / 64 * 64);
    assert_non_null(m.bytes);
    assert_ok(d9d_quant_rows(f, t, m.x, rows, cols, 0, cols, m.bytes));
    m.q = (d9d_quant_matrix){f, rows, cols, m.bytes};
    return m;
}

static void matrix_free(matrix *m)
{
    free(m->x);
    free(m->bytes);
}

static double distance(double a, double b)
{
    return fabs(a - b);
}

/* --- rows ------------------------------------------------------------------------------------- */

static void check_nf4_block(const matrix *m, int64_t r, int64_t b, const uint8_t *row)
{
    static const float value[16] = D9DI_QUANT_NF4_VALUES;
    double amax = 0;

    for (int64_t k = b * BLOCK; k < (b + 1) * BLOCK; k++)
        amax = fmax(amax, fabs(array_get(m->t, m->x, r * m->q.cols + k)));
    for (int64_t k = b * BLOCK; k < (b + 1) * BLOCK; k++) {
        const double v = array_get(m->t, m->x, r * m->q.cols + k) / amax;
        const int code = row[k / 2] >> (k % 2 == 0 ? 4 : 0) & 15;

        for (int i = 0; i < 16 && amax > 0; i++)
            assert_true(distance(v, (double)value[code]) <= distance(v, (double)value[i]) + 1e-6);
    }
}

/* Scale codes are the nearest of the map to (a - offset) / range. */
static void check_nf4_scales(const matrix *m, int64_t r, const uint8_t *row)
{
    const int64_t blocks = m->q.cols / BLOCK;
    const uint8_t *codes = row + m->q.cols / 2;
    double amax[64], mean = 0, range = 0;
    float of[2];

    memcpy(of, row + d9d_quant_scale_at(D9D_QUANT_NF4, m->q.cols), sizeof(of));
    for (int64_t b = 0; b < blocks; b++) {
        amax[b] = 0;
        for (int64_t k = b * BLOCK; k < (b + 1) * BLOCK; k++)
            amax[b] = fmax(amax[b], fabs(array_get(m->t, m->x, r * m->q.cols + k)));
        mean += amax[b] / (double)blocks;
    }
    for (int64_t b = 0; b < blocks; b++)
        range = fmax(range, fabs(amax[b] - mean));
    assert_true(distance((double)of[0], mean) <= 1e-6 * mean);
    assert_true(distance((double)of[1], range) <= 1e-5 * mean);
    for (int64_t b = 0; b < blocks && of[1] > 0; b++) {
        const double v = (amax[b] - (double)of[0]) / (double)of[1];

        for (int i = 0; i < 256; i++)
            assert_true(distance(v, (double)d9di_quant_map(codes[b])) <=
                        distance(v, (double)d9di_quant_map(i)) + 1e-6);
    }
}

static void test_nf4_rows(void **state)
{
    static const int64_t sizes[][2] = {{5, 64}, {3, 128}, {4, 320}, {2, 2048}, {0, 64}};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        for (int t = 0; t < 2; t++) {
            matrix m = matrix_make(D9D_QUANT_NF4, array_types[t], sizes[i][0], sizes[i][1], 1);

            for (int64_t r = 0; r < m.q.rows; r++) {
                const uint8_t *row = m.bytes + r * d9d_quant_row_bytes(D9D_QUANT_NF4, m.q.cols);

                for (int64_t b = 0; b < m.q.cols / BLOCK; b++)
                    check_nf4_block(&m, r, b, row);
                check_nf4_scales(&m, r, row);
            }
            matrix_free(&m);
        }
}

/* The map ascends from its least negative end to 1, and has 0. */
static void test_map(void **state)
{
    (void)state;
    for (int i = 1; i < 256; i++)
        assert_true(d9di_quant_map(i) > d9di_quant_map(i - 1));
    assert_true(d9di_quant_map(127) == 0 && d9di_quant_map(255) == 1);
    assert_true(distance((double)d9di_quant_map(128), 5.5e-7) < 1e-12);
    assert_true(distance((double)d9di_quant_map(254), 0.99296875) < 1e-7);
}

/* Rows of e4m3 are those of d9d_fp8_kernels, whose test has their numbers. */
static void test_fp8_rows(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        matrix m = matrix_make(D9D_QUANT_FP8, array_types[t], 9, 208, 2);
        uint8_t *data = malloc(9 * 208);
        float scale[9], of;
        const d9d_fp8_operand rows = {D9D_F8_E4M3, true, 208, data, scale};

        assert_non_null(data);
        assert_ok(d9d_kernels_cpu()->fp8->quantise(NULL, m.t, m.x, 9, 208, &rows, NULL));
        for (int64_t r = 0; r < 9; r++) {
            const uint8_t *row = m.bytes + r * d9d_quant_row_bytes(D9D_QUANT_FP8, 208);

            memcpy(&of, row + d9d_quant_scale_at(D9D_QUANT_FP8, 208), sizeof(of));
            assert_memory_equal(row, data + r * 208, 208);
            assert_true(of == scale[r]);
        }
        free(data);
        matrix_free(&m);
    }
}

/* A part of the columns has the same numbers as the whole. */
static void test_parts(void **state)
{
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        enum { ROWS = 5, COLS = 384, PART = 128 };
        matrix m = matrix_make(formats[f], D9D_BF16, ROWS, COLS, 3);
        const d9d_quant_matrix part = {formats[f], ROWS, PART, m.bytes};
        uint16_t whole[ROWS * COLS], some[ROWS * PART];

        assert_ok(d9d_kernels_cpu()->quant->dequantise(NULL, D9D_BF16, whole, &m.q));
        for (int64_t first = 0; first < COLS; first += PART) {
            assert_ok(d9d_quant_rows(formats[f], D9D_BF16, m.x, ROWS, COLS, first, PART, m.bytes));
            assert_ok(d9d_kernels_cpu()->quant->dequantise(NULL, D9D_BF16, some, &part));
            for (int64_t r = 0; r < ROWS; r++)
                assert_memory_equal(some + r * PART, whole + r * COLS + first,
                                    PART * sizeof(*some));
        }
        matrix_free(&m);
    }
}

/* A row that is not finite is NaN; the others are not. */
static void test_nonfinite(void **state)
{
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        matrix m = matrix_make(formats[f], D9D_F32, 3, 128, 4);
        float y[3 * 128];

        ((float *)m.x)[128 + 70] = INFINITY;
        assert_ok(d9d_quant_rows(formats[f], D9D_F32, m.x, 3, 128, 0, 128, m.bytes));
        assert_ok(host_kernels()->quant->dequantise(NULL, D9D_F32, y, &m.q));
        for (int i = 0; i < 3 * 128; i++)
            assert_true((i / 128 == 1) == (isnan(y[i]) != 0));
        matrix_free(&m);
    }
}

/* --- products --------------------------------------------------------------------------------- */

/* Every device has the CPU's values, to the bit. */
static void test_dequantise(void **state)
{
    static const int64_t sizes[][2] = {{1, 64}, {7, 192}, {33, 1024}, {0, 64}, {3, 0}};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        for (int flags = 0; flags < 4; flags++) {
            const d9d_dtype t = array_types[flags & 1];
            matrix m = matrix_make(formats[flags >> 1], t, sizes[i][0], sizes[i][1], 5);
            const int64_t n = m.q.rows * m.q.cols;
            void *y = array_poison(t, n), *want = array_poison(t, n);

            assert_ok(host_kernels()->quant->dequantise(NULL, t, y, &m.q));
            assert_ok(d9d_kernels_cpu()->quant->dequantise(NULL, t, want, &m.q));
            assert_memory_equal(y, want, (size_t)n * d9d_dtype_size(t));
            for (int64_t k = 0; k < n; k++) /* half of the widest step of 4 bits */
                assert_true(distance(array_get(t, y, k), array_get(t, m.x, k)) <=
                            0.17 * ldexp(5, -(int)(k / m.q.cols * 5 % 7)) / sqrt((double)m.q.cols));
            free(y);
            free(want);
            matrix_free(&m);
        }
}

typedef struct product_call {
    d9d_gemm g;
    matrix w;
    void *a, *c;
} product_call;

static void run_product(void *arg)
{
    product_call *p = arg;

    assert_ok(host_kernels()->quant->product(NULL, &p->g, p->a, &p->w.q, p->c));
}

/* Loops in double over the values of the operand. */
static double *product_wanted(const product_call *p, const void *before)
{
    const d9d_gemm *g = &p->g;
    void *w = array_poison(g->t, p->w.q.rows * p->w.q.cols);
    double *want = calloc((size_t)(g->m * g->n) + 1, sizeof(*want));

    assert_non_null(want);
    assert_ok(d9d_kernels_cpu()->quant->dequantise(NULL, g->t, w, &p->w.q));
    for (int64_t i = 0; i < g->m * g->n; i++) {
        const int64_t r = i / g->n, c = i % g->n;

        want[i] = before != NULL ? (double)g->beta * array_get(g->ct, before, i) : 0;
        for (int64_t k = 0; k < g->k; k++)
            want[i] += array_get(g->t, p->a, r * g->k + k) *
                       array_get(g->t, w, g->trans_b ? c * g->k + k : k * g->n + c);
    }
    free(w);
    return want;
}

/* A GPU may round A B to bfloat16 before it adds to a bfloat16 C: by half of 2^-8 of it. */
static void product_close(const char *name, const product_call *p, const void *before,
                          const double *want)
{
    const d9d_gemm *g = &p->g;
    const double tolerance = unit_device_is_cpu() ? 1e-5 : 2e-3;

    for (int64_t i = 0; i < g->m * g->n; i++) {
        const double had = before != NULL ? (double)g->beta * array_get(g->ct, before, i) : want[i];
        const double twice =
            unit_device_is_cpu() || g->ct != D9D_BF16 ? 0 : fabs(want[i] - had) / 512.0;

        array_close(name, g->ct, (const char *)p->c + (uint64_t)i * d9d_dtype_size(g->ct), &want[i],
                    1, tolerance + twice);
    }
}

static void check_product(d9d_quant_format f, const d9d_gemm *g)
{
    const int64_t n = g->m * g->n;
    product_call p = {
        .g = *g,
        .w = matrix_make(f, g->t, g->trans_b ? g->n : g->k, g->trans_b ? g->k : g->n, 6),
        .a = array_random(g->t, g->m * g->k, 7, 1.0),
        .c = array_poison(g->ct, n)};
    void *before = g->beta == 0.0f ? NULL : array_random(g->ct, n, 8, 1.0);
    double *want = product_wanted(&p, before);

    array_same_for_threads(run_product, &p, p.c, (size_t)n * d9d_dtype_size(g->ct), before);
    product_close("c", &p, before, want);
    if (before != NULL) {
        p.g.addend = before;
        run_product(&p);
        product_close("c, added from elsewhere", &p, before, want);
    }
    free(want);
    free(before);
    free(p.a);
    free(p.c);
    matrix_free(&p.w);
}

/* Few rows and many, tiles of 16 rows of W that are not full, more tiles than a GPU has blocks, K
 * of one chunk and of several. */
static void test_product(void **state)
{
    static const int64_t shapes[][3] = {{1, 64, 64},   {1, 200, 1088}, {3, 17, 2112}, {8, 64, 320},
                                        {9, 48, 4160}, {16, 33, 64},   {17, 64, 128}, {32, 40, 192},
                                        {33, 40, 192}, {70, 64, 192},  {0, 64, 64},   {2, 0, 64},
                                        {5, 40, 0},    {2, 9013, 192}};

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (int flags = 0; flags < 16; flags++) {
            const d9d_dtype t = array_types[flags & 1];
            d9d_gemm g = {.t = t,
                          .ct = t == D9D_F32 || (flags & 8) != 0 ? D9D_F32 : D9D_BF16,
                          .trans_b = true,
                          .m = shapes[i][0],
                          .n = shapes[i][1],
                          .k = shapes[i][2],
                          .beta = (flags & 4) != 0 ? 1.0f : 0.0f};

            check_product(formats[flags >> 1 & 1], &g);
        }
}

/* Gradients of inputs: W is not transposed. */
static void test_dgrad(void **state)
{
    (void)state;
    for (int flags = 0; flags < 8; flags++) {
        const d9d_gemm g = {.t = array_types[flags & 1],
                            .ct = array_types[flags & 1],
                            .m = 21,
                            .n = 128,
                            .k = 33,
                            .beta = (flags & 4) != 0 ? 1.0f : 0.0f};

        check_product(formats[flags >> 1 & 1], &g);
    }
}

/* Several matrices have the bits of each by itself, and rows those of any number of few rows. */
static void check_multi(int64_t m)
{
    static const int64_t n[] = {48, 17, 200};
    enum { K = 1216, MOST = D9D_QUANT_FEW_ROWS };

    for (size_t f = 0; f < 2; f++) {
        uint16_t *x = array_random(D9D_BF16, m * K, 9, 1.0);
        matrix w[3];
        d9d_quant_matrix q[3];
        d9d_gemm g[3];
        void *y[3];
        uint16_t alone[MOST * 200];

        for (int i = 0; i < 3; i++) {
            w[i] = matrix_make(formats[f], D9D_BF16, n[i], K, 10 + (uint64_t)i);
            q[i] = w[i].q;
            y[i] = array_poison(D9D_BF16, m * n[i]);
            g[i] = (d9d_gemm){
                .t = D9D_BF16, .ct = D9D_BF16, .trans_b = true, .m = m, .n = n[i], .k = K};
        }
        assert_ok(host_kernels()->quant->multi(NULL, 3, g, x, q, y));
        for (int i = 0; i < 3; i++) {
            assert_ok(host_kernels()->quant->product(NULL, &g[i], x, &q[i], alone));
            assert_memory_equal(alone, y[i], (size_t)(m * n[i]) * 2);
            g[i].m = 1;
            assert_ok(host_kernels()->quant->product(NULL, &g[i], x + (m - 3) * K, &q[i], alone));
            assert_memory_equal(alone, (uint16_t *)y[i] + (m - 3) * n[i], (size_t)n[i] * 2);
            free(y[i]);
            matrix_free(&w[i]);
        }
        free(x);
    }
}

static void test_multi(void **state)
{
    (void)state;
    check_multi(8);
    check_multi(27);
}

/* Gate and up are products, and y is the unit of them, with biases and without. */
static void check_glu(d9d_quant_format f, d9d_dtype t, int64_t rows, d9d_activation act,
                      bool biased, bool gated)
{
    enum { H = 320, I = 88 };
    const int64_t n = rows * I;
    matrix w[] = {matrix_make(f, t, I, H, 20), matrix_make(f, t, I, H, 21)};
    const d9d_quant_matrix q[] = {w[0].q, w[1].q};
    void *x = array_random(t, rows * H, 22, 1.0), *b = array_random(t, 2 * I, 23, 1.0);
    const d9d_gemm g = {.t = t, .ct = t, .trans_b = true, .m = rows, .n = I, .k = H};
    const d9d_gemm_glu_dims d = {.t = t,
                                 .rows = rows,
                                 .h = H,
                                 .i = I,
                                 .e = 1,
                                 .glu = {.act = act},
                                 .b_gate = biased ? b : NULL,
                                 .b_up = biased ? d9di_elem_cat(t, b, I) : NULL};
    void *made[3], *want[3];
    const size_t bytes = (size_t)n * d9d_dtype_size(t);

    for (int i = 0; i < 3; i++) {
        made[i] = array_poison(t, n);
        want[i] = array_poison(t, n);
    }
    assert_ok(host_kernels()->quant->glu(NULL, &d, made[0], made[1], gated ? made[2] : NULL, x, q));
    for (int i = 0; i < (gated ? 2 : 1); i++) {
        assert_ok(host_kernels()->quant->product(NULL, &g, x, &q[i], want[1 + i]));
        if (biased)
            assert_ok(host_kernels()->elementwise->add_bias(
                NULL, t, want[1 + i], want[1 + i], i == 0 ? d.b_gate : d.b_up, NULL, rows, 1, I));
        assert_memory_equal(made[1 + i], want[1 + i], bytes);
    }
    assert_ok(host_kernels()->elementwise->glu(NULL, &d.glu, t, want[0], made[1],
                                               gated ? made[2] : NULL, n));
    assert_memory_equal(made[0], want[0], bytes);
    for (int i = 0; i < 3; i++) {
        free(made[i]);
        free(want[i]);
    }
    for (int i = 0; i < 2; i++)
        matrix_free(&w[i]);
    free(x);
    free(b);
}

static void test_glu(void **state)
{
    (void)state;
    for (int flags = 0; flags < 16; flags++)
        for (int64_t rows = 1; rows <= 33; rows += 8)
            check_glu(formats[flags & 1], array_types[flags >> 1 & 1], rows,
                      (flags & 4) != 0 ? D9D_ACT_SILU : D9D_ACT_GELU_TANH, (flags & 8) != 0, true);
    check_glu(D9D_QUANT_NF4, D9D_BF16, 3, D9D_ACT_GELU_TANH, true, false);
}

static void test_refused(void **state)
{
    float x[2 * 128] = {0}, c[4 * 128];
    uint8_t bytes[4 * 256] = {0};
    const d9d_quant_matrix fine = {D9D_QUANT_NF4, 4, 128, bytes};
    const d9d_quant_matrix odd = {D9D_QUANT_NF4, 4, 100, bytes};
    const d9d_quant_matrix none = {D9D_QUANT_NONE, 4, 128, bytes};
    d9d_gemm g = {.t = D9D_F32, .ct = D9D_F32, .trans_b = true, .m = 2, .n = 4, .k = 128};
    const d9d_quant_kernels *k = d9d_kernels_cpu()->quant;

    (void)state;
    assert_fails(d9d_quant_rows(D9D_QUANT_NF4, D9D_F32, x, 1, 128, 32, 64, bytes), D9D_EINVAL,
                 "quant_rows: columns [32, 32 + 64) of 128; in nf4 all are multiples of 64");
    assert_fails(d9d_quant_rows(D9D_QUANT_FP8, D9D_F32, x, 1, 120, 0, 120, bytes), D9D_EINVAL,
                 "quant_rows: columns [0, 0 + 120) of 120; in fp8 all are multiples of 16");
    assert_fails(d9d_quant_rows(D9D_QUANT_NF4, D9D_F16, x, 1, 128, 0, 128, bytes), D9D_EINVAL,
                 "quant_rows: works on float32 and bfloat16, not on float16");
    assert_fails(k->dequantise(NULL, D9D_F32, c, &none), D9D_EINVAL,
                 "quant_dequantise: a matrix of format 0, which is unknown");
    assert_fails(k->dequantise(NULL, D9D_F32, c, &odd), D9D_EINVAL,
                 "quant_dequantise: rows of 100 elements, in nf4 possible are multiples of 64");
    g.n = 3;
    assert_fails(k->product(NULL, &g, x, &fine, c), D9D_EINVAL,
                 "quant_gemm: a matrix of 4 x 128 where 3 x 128 is multiplied");
    g.n = 4;
    g.trans_a = true;
    assert_fails(k->product(NULL, &g, x, &fine, c), D9D_EINVAL,
                 "quant_gemm: A is transposed, which quantised products do not take");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nf4_rows),  cmocka_unit_test(test_map),
        cmocka_unit_test(test_fp8_rows),  cmocka_unit_test(test_parts),
        cmocka_unit_test(test_nonfinite), cmocka_unit_test(test_dequantise),
        cmocka_unit_test(test_product),   cmocka_unit_test(test_dgrad),
        cmocka_unit_test(test_multi),     cmocka_unit_test(test_glu),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
