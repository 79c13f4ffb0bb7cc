/* exp, sigmoid, tanh, sine and cosine of the kernels against double; sums in lanes. */
#include "support/arrays.h"

#include <math.h>
#include <stdlib.h>

#include "cpu/common.h"
#include "cpu/math.h"

/* Distance in units in the last place of the true value's float32 neighbourhood. */
static double ulps(float got, double want)
{
    float w = (float)want;
    double step;

    if (!isfinite(w))
        return got == w ? 0.0 : 1e9;
    step = (double)nextafterf(fabsf(w), INFINITY) - fabs((double)w);
    return fabs((double)got - want) / step;
}

static void test_exp(void **state)
{
    double worst = 0.0;

    (void)state;
    for (float x = -110.0f; x < 95.0f; x += 0.000731f) {
        double e = ulps(d9di_cpu_expf(x), exp((double)x));

        worst = e > worst ? e : worst;
    }
    assert_true(worst < 2.0);
    assert_true(d9di_cpu_expf(0.0f) == 1.0f);
    assert_true(d9di_cpu_expf(-INFINITY) == 0.0f);
    assert_true(d9di_cpu_expf(INFINITY) == INFINITY);
    assert_true(isnan(d9di_cpu_expf(NAN)));
    assert_true(isnan(d9di_cpu_expf(-NAN)));
}

static void test_sigmoid(void **state)
{
    (void)state;
    for (float x = -80.0f; x < 80.0f; x += 0.00131f)
        assert_true(ulps(d9di_cpu_sigmoid(x), 1.0 / (1.0 + exp(-(double)x))) < 3.0);
    assert_true(d9di_cpu_sigmoid(-INFINITY) == 0.0f);
    assert_true(d9di_cpu_sigmoid(INFINITY) == 1.0f);
}

static void test_tanh(void **state)
{
    double worst = 0.0;

    (void)state;
    for (float x = 1e-9f; x < 12.0f; x *= 1.0001f) {
        double e = ulps(d9di_cpu_tanhf(x), tanh((double)x));

        worst = e > worst ? e : worst;
        assert_true(d9di_cpu_tanhf(-x) == -d9di_cpu_tanhf(x));
    }
    assert_true(worst < 3.0);
    assert_true(d9di_cpu_tanhf(0.0f) == 0.0f);
    assert_true(d9di_cpu_tanhf(INFINITY) == 1.0f);
    assert_true(d9di_cpu_tanhf(-INFINITY) == -1.0f);
    assert_true(isnan(d9di_cpu_tanhf(NAN)));
    assert_true(isnan(d9di_cpu_tanhf(-NAN)));
}

static void test_sine_cosine(void **state)
{
    (void)state;
    for (double x = -3e5; x < 1e7; x = x * (x < 0 ? 0.9999 : 1.0001) + 0.0123) {
        float a = (float)x, s, c;

        d9di_cpu_sincosf(a, &s, &c);
        assert_true(fabs((double)s - sin((double)a)) < 1e-7);
        assert_true(fabs((double)c - cos((double)a)) < 1e-7);
    }
}

/* A vector and its tail give what single elements give, at any alignment. */
static void test_vectors_are_scalars(void **state)
{
    float *x = array_random(D9D_F32, 200, 5, 3.0), y[64];

    (void)state;
    for (int64_t first = 0; first < 17; first++)
        for (int64_t n = 0; n < 64; n++) {
            (void)d9di_cpu_row_exp(y, x + first, 1.0f, n);
            for (int64_t i = 0; i < n; i++)
                assert_true(y[i] == d9di_cpu_expf(x[first + i] - 1.0f));
            d9di_cpu_row_softcap(y, 2.0f, x + first, n);
            for (int64_t i = 0; i < n; i++)
                assert_true(y[i] == 2.0f * d9di_cpu_tanhf(0.5f * x[first + i]));
        }
    free(x);
}

static void test_rows(void **state)
{
    (void)state;
    for (size_t k = 0; k < 8; k++) {
        int64_t n = array_sizes[k];
        float *x = array_random(D9D_F32, n, 7, 1.0), *y = array_random(D9D_F32, n, 8, 1.0);
        double sum = 0.0, dot = 0.0, most = -INFINITY;

        for (int64_t i = 0; i < n; i++) {
            sum += (double)x[i];
            dot += (double)x[i] * (double)y[i];
            most = (double)x[i] > most ? (double)x[i] : most;
        }
        assert_true(fabs((double)d9di_cpu_row_sum(x, n) - sum) <= 1e-5 * sqrt((double)n + 1.0));
        assert_true(fabs((double)d9di_cpu_row_dot(x, y, n) - dot) <= 1e-5 * sqrt((double)n + 1.0));
        assert_true((double)d9di_cpu_row_max(x, n) == most);
        free(x);
        free(y);
    }
}

static void test_bf16(void **state)
{
    const uint32_t special[] = {0x7f800000, 0xff800000, 0x7f800001, 0xffffffff, 0x7fffffff,
                                0x00000001, 0x80000000, 0x7f7fffff, 0x3f808000, 0x3f818000};

    (void)state;
    for (uint32_t i = 0; i < 100000; i++) {
        uint32_t bits = i < 10 ? special[i] : i * 42949u;
        float x = d9di_cpu_bits_to_float(bits), back;
        uint16_t y;

        d9di_cpu_to_bf16(&y, &x, 1);
        assert_int_equal(y, d9d_bf16_from_f32(x));
        d9di_cpu_from_bf16(&back, &y, 1);
        assert_int_equal(d9di_cpu_float_to_bits(back), (uint32_t)y << 16);
    }
}

/* Every element of a box is in one run, at the index that its coordinates say. */
static void check_box(int ndim, const int64_t *box, const int64_t *start, const int64_t *whole)
{
    d9di_subarray b = d9di_subarray_make(ndim, box, start, whole);
    int64_t n = 1;

    for (int d = 0; d < ndim; d++)
        n *= box[d];
    assert_int_equal(b.run * b.n_runs, n);
    for (int64_t i = 0; i < n; i++) {
        int64_t index = 0, rest = i, stride = 1;

        for (int d = ndim - 1; d >= 0; d--) {
            index += (start[d] + rest % box[d]) * stride;
            rest /= box[d];
            stride *= whole[d];
        }
        assert_int_equal(d9di_subarray_index(&b, i / b.run) + i % b.run, index);
    }
}

static void test_boxes(void **state)
{
    const int64_t whole[] = {5, 6, 7, 8}, zero[] = {0, 0, 0, 0};
    const int64_t boxes[][4] = {{5, 6, 7, 8}, {2, 6, 7, 8}, {5, 3, 7, 8},
                                {5, 6, 7, 3}, {2, 3, 4, 5}, {5, 1, 7, 8},
                                {1, 1, 1, 1}, {0, 6, 7, 8}, {5, 6, 0, 8}};
    const int64_t start[] = {0, 2, 1, 3};

    (void)state;
    for (size_t i = 0; i < 9; i++)
        for (int ndim = 0; ndim <= 4; ndim++) {
            int64_t first[4];

            for (int d = 0; d < 4; d++)
                first[d] = d9di_i64_min(start[d], whole[d] - boxes[i][d]);
            check_box(ndim, boxes[i], zero, whole);
            check_box(ndim, boxes[i], first, whole);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_sigmoid),
        cmocka_unit_test(test_tanh),
        cmocka_unit_test(test_sine_cosine),
        cmocka_unit_test(test_vectors_are_scalars),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_boxes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
