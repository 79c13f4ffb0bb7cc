/* Functions of elements and their derivatives against double arithmetic by their definitions, over
 * types, sizes and strides. */
#include "support/arrays.h"
#include "support/host_kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const float K0 = 0.7f, K1 = 1.3f;

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}
static double huber(double d)
{
    return fabs(d) <= (double)K0 ? d * d / 2 : (double)K0 * (fabs(d) - (double)K0 / 2);
}

/* f(a, b, c) by its definition. */
static double value_of(d9d_pointwise f, double a, double b, double c)
{
    const double k0 = (double)K0, k1 = (double)K1;

    switch (f) {
    case D9D_POINTWISE_CAST: return a;
    case D9D_POINTWISE_AFFINE: return k0 * a + k1;
    case D9D_POINTWISE_ABS: return fabs(a);
    case D9D_POINTWISE_SQUARE: return pow(a, 2);
    case D9D_POINTWISE_SQRT: return sqrt(a);
    case D9D_POINTWISE_EXP: return exp(a);
    case D9D_POINTWISE_LOG: return log(a);
    case D9D_POINTWISE_SIGMOID: return sigmoid(a);
    case D9D_POINTWISE_LOG_SIGMOID: return log(sigmoid(a));
    case D9D_POINTWISE_TANH: return tanh(a);
    case D9D_POINTWISE_SOFTCAP: return k0 * tanh(a / k0);
    case D9D_POINTWISE_RELU: return fmax(a, 0);
    case D9D_POINTWISE_SILU: return a * sigmoid(a);
    case D9D_POINTWISE_GELU: return a * erfc(-a * sqrt(0.5)) / 2;
    case D9D_POINTWISE_GELU_TANH:
        return a / 2 * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (a + 0.044715 * pow(a, 3))));
    case D9D_POINTWISE_CLAMP: return fmin(fmax(a, k0), k1);
    case D9D_POINTWISE_GE: return a >= k0;
    case D9D_POINTWISE_ADD: return a + b;
    case D9D_POINTWISE_SUB: return a - b;
    case D9D_POINTWISE_MUL: return a * b;
    case D9D_POINTWISE_DIV: return a / b;
    case D9D_POINTWISE_MINIMUM: return fmin(a, b);
    case D9D_POINTWISE_MAXIMUM: return fmax(a, b);
    case D9D_POINTWISE_EXP_SUB: return exp(a - b);
    case D9D_POINTWISE_MSE: return pow(a - b, 2);
    case D9D_POINTWISE_L1: return fabs(a - b);
    case D9D_POINTWISE_HUBER: return huber(a - b);
    case D9D_POINTWISE_BCE_WITH_LOGITS: return -b * log(sigmoid(a)) - (1 - b) * log(sigmoid(-a));
    case D9D_POINTWISE_KL_DIV: return b * (log(b) - a);
    case D9D_POINTWISE_WHERE: return a != 0 ? b : c;
    default: fail_msg("function %d has no definition here", (int)f);
    }
    return NAN;
}

/* By a central difference, of order h^4. */
static double derivative_of(d9d_pointwise f, int of, const double *x)
{
    const double h = 1e-4;
    double derivative[2];

    if (d9d_pointwise_reads(f, of) == D9D_POINTWISE_NO_GRAD)
        return 0;
    for (int i = 0; i < 2; i++) {
        double up[3] = {x[0], x[1], x[2]}, down[3] = {x[0], x[1], x[2]};

        up[of] += h * (i + 1);
        down[of] -= h * (i + 1);
        derivative[i] =
            (value_of(f, up[0], up[1], up[2]) - value_of(f, down[0], down[1], down[2])) /
            (2 * h * (i + 1));
    }
    return (4 * derivative[0] - derivative[1]) / 3;
}

/* Logarithms, roots and denominators are of positive numbers. */
static bool is_positive(d9d_pointwise f, int input)
{
    if (input == 0)
        return f == D9D_POINTWISE_LOG || f == D9D_POINTWISE_SQRT;
    return input == 1 && (f == D9D_POINTWISE_DIV || f == D9D_POINTWISE_KL_DIV);
}

typedef struct call {
    d9d_pointwise_dims d;
    int64_t n, len[D9D_POINTWISE_INPUTS]; /* elements of y, of the inputs */
    void *x[D9D_POINTWISE_INPUTS], *y;
} call;

static void run(void *arg)
{
    const call *c = arg;
    const void *x[D9D_POINTWISE_INPUTS];

    memcpy(x, c->x, sizeof(x));
    for (int i = 0; i < D9D_POINTWISE_GRAD; i++)
        if (!(d9d_pointwise_reads(c->d.f, c->d.of) >> i & 1))
            x[i] = NULL;
    if (c->d.of == D9D_POINTWISE_VALUE)
        x[D9D_POINTWISE_GRAD] = NULL;
    assert_int_equal(host_kernels()->math->pointwise(NULL, &c->d, c->y, x), D9D_OK);
}

/* Element i of y's input. */
static double input_at(const call *c, int input, int64_t i)
{
    int64_t at = 0;

    for (int k = c->d.ndim - 1; k >= 0; k--) {
        at += i % c->d.dim[k] * c->d.x[input].stride[k];
        i /= c->d.dim[k];
    }
    return c->d.x[input].t == D9D_I32 ? ((const int32_t *)c->x[input])[at]
                                      : array_get(c->d.x[input].t, c->x[input], at);
}

static void draw_input(call *c, int i)
{
    const d9d_dtype t = c->d.x[i].t;
    int64_t n = 1;

    for (int k = 0; k < c->d.ndim; k++)
        n *= c->d.x[i].stride[k] != 0 ? c->d.dim[k] : 1;
    if (t == D9D_I32) {
        int32_t *whole = malloc((size_t)(n + 1) * sizeof(*whole));

        assert_non_null(whole);
        for (int64_t k = 0; k < n; k++)
            whole[k] = (int32_t)(k * 7 % 5) + (is_positive(c->d.f, i) ? 1 : -2);
        c->x[i] = whole;
        return;
    }
    c->x[i] = array_random(t, n, (uint64_t)i + 1, 1.5);
    for (int64_t k = 0; k < n && is_positive(c->d.f, i); k++)
        array_set(t, c->x[i], k, fabs(array_get(t, c->x[i], k)) + 0.125);
}

/* Value and derivatives of one call. */
static void check(const d9d_pointwise_dims *d)
{
    call c = {.d = *d, .n = 1};
    double *want;
    char name[64];

    for (int k = 0; k < d->ndim; k++)
        c.n *= d->dim[k];
    assert_non_null(want = calloc((size_t)c.n + 1, sizeof(*want)));
    for (int i = 0; i < D9D_POINTWISE_INPUTS; i++)
        draw_input(&c, i);
    c.y = array_poison(d->yt, c.n);
    for (c.d.of = D9D_POINTWISE_VALUE; c.d.of < d9d_pointwise_inputs(d->f); c.d.of++) {
        for (int64_t i = 0; i < c.n; i++) {
            const double x[3] = {input_at(&c, 0, i), input_at(&c, 1, i), input_at(&c, 2, i)};

            want[i] = c.d.of == D9D_POINTWISE_VALUE
                          ? value_of(d->f, x[0], x[1], x[2])
                          : derivative_of(d->f, c.d.of, x) * input_at(&c, D9D_POINTWISE_GRAD, i);
        }
        array_same_for_threads(run, &c, c.y, (size_t)c.n * d9d_dtype_size(d->yt), NULL);
        (void)snprintf(name, sizeof(name), "%s by input %d", d9d_pointwise_name(d->f), c.d.of);
        array_close(name, d->yt, c.y, want, c.n, 8e-6);
    }
    for (int i = 0; i < D9D_POINTWISE_INPUTS; i++)
        free(c.x[i]);
    free(c.y);
    free(want);
}

/* All inputs of y's shape. */
static d9d_pointwise_dims dense(d9d_pointwise f, d9d_dtype t, int64_t n)
{
    d9d_pointwise_dims d = {.f = f, .k = {K0, K1}, .ndim = 1, .dim = {n}, .yt = t};

    for (int i = 0; i < D9D_POINTWISE_INPUTS; i++)
        d.x[i] = (d9d_pointwise_input){t, {1}};
    return d;
}

static void functions_are_their_formulas(void **state)
{
    (void)state;
    for (int f = 0; f < D9D_N_POINTWISE; f++)
        for (size_t i = 0; i < 14; i++) {
            const d9d_pointwise_dims d =
                dense((d9d_pointwise)f, array_types[i / 7], array_sizes[i % 7]);

            check(&d);
        }
    for (size_t i = 0; i < 2; i++) { /* several threads */
        const d9d_pointwise_dims d = dense(D9D_POINTWISE_MSE, array_types[i], array_sizes[7]);

        check(&d);
    }
}

static void inputs_broadcast(void **state)
{
    static const struct {
        int ndim;
        int64_t dim[3], a[3], b[3], c[3], g[3];
    } all[] = {
        {2, {5, 37}, {37, 1}, {0, 1}, {1, 0}, {37, 1}},
        {2, {37, 5}, {0, 0}, {5, 1}, {0, 1}, {1, 0}},
        {3, {3, 2, 9}, {9, 0, 1}, {0, 9, 1}, {2, 1, 0}, {18, 9, 1}},
        {3, {2, 3, 2050}, {0, 2050, 1}, {1, 0, 0}, {0, 0, 1}, {6150, 2050, 1}},
        {2, {0, 3}, {3, 1}, {0, 1}, {1, 0}, {3, 1}},
        {2, {3, 0}, {0, 1}, {0, 1}, {1, 0}, {0, 1}},
    };
    static const d9d_pointwise functions[] = {D9D_POINTWISE_MUL, D9D_POINTWISE_KL_DIV,
                                              D9D_POINTWISE_WHERE};

    (void)state;
    for (size_t f = 0; f < sizeof(functions) / sizeof(functions[0]); f++)
        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
            for (int mix = 0; mix < 3; mix++) {
                d9d_pointwise_dims d = {.f = functions[f], .ndim = all[i].ndim};

                d.yt = mix == 2 ? D9D_BF16 : D9D_F32;
                memcpy(d.dim, all[i].dim, sizeof(all[i].dim));
                memcpy(d.x[0].stride, all[i].a, sizeof(all[i].a));
                memcpy(d.x[1].stride, all[i].b, sizeof(all[i].b));
                memcpy(d.x[2].stride, all[i].c, sizeof(all[i].c));
                memcpy(d.x[D9D_POINTWISE_GRAD].stride, all[i].g, sizeof(all[i].g));
                d.x[0].t = mix == 0 ? D9D_BF16 : D9D_I32;
                d.x[1].t = mix == 1 ? D9D_BF16 : mix == 2 ? D9D_I32 : D9D_F32;
                d.x[2].t = D9D_BF16;
                check(&d);
            }
}

/* Where a formula would overflow or divide by 0 if it were taken at its word, and NaN. */
static void ends_are_right(void **state)
{
    static const struct {
        d9d_pointwise f;
        int of;
        float a, b, want;
    } all[] = {
        {D9D_POINTWISE_LOG_SIGMOID, -1, -1e4f, 0, -1e4f},
        {D9D_POINTWISE_LOG_SIGMOID, 0, -1e4f, 0, 1},
        {D9D_POINTWISE_LOG_SIGMOID, -1, 1e4f, 0, 0},
        {D9D_POINTWISE_BCE_WITH_LOGITS, -1, 1e4f, 1, 0},
        {D9D_POINTWISE_BCE_WITH_LOGITS, -1, -1e4f, 1, 1e4f},
        {D9D_POINTWISE_KL_DIV, -1, -3, 0, 0},
        {D9D_POINTWISE_KL_DIV, 1, -3, 0, 0},
        {D9D_POINTWISE_TANH, 0, 1e4f, 0, 0},
        {D9D_POINTWISE_GELU, -1, -1e4f, 0, 0},
        {D9D_POINTWISE_SILU, 0, -1e3f, 0, 0},
        {D9D_POINTWISE_ABS, 0, 0, 0, 0},
        {D9D_POINTWISE_RELU, 0, 0, 0, 0},
        {D9D_POINTWISE_CLAMP, 0, 0.7f, 0, 1},
        {D9D_POINTWISE_GE, -1, 0.7f, 0, 1},
        {D9D_POINTWISE_MAXIMUM, 0, 2, 2, 0.5f},
        {D9D_POINTWISE_MINIMUM, 1, 2, 2, 0.5f},
        {D9D_POINTWISE_MAXIMUM, -1, NAN, 2, NAN},
        {D9D_POINTWISE_MAXIMUM, -1, 2, NAN, NAN},
        {D9D_POINTWISE_MINIMUM, -1, NAN, 2, NAN},
        {D9D_POINTWISE_MINIMUM, -1, 2, NAN, NAN},
        {D9D_POINTWISE_RELU, -1, NAN, 0, NAN},
        {D9D_POINTWISE_CLAMP, -1, NAN, 0, NAN},
        {D9D_POINTWISE_WHERE, -1, 0, NAN, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        const float one = 1, zero = 0;
        d9d_pointwise_dims d = dense(all[i].f, D9D_F32, 1);
        float y = 77;

        d.of = all[i].of;
        assert_int_equal(
            host_kernels()->math->pointwise(
                NULL, &d, &y, (const void *const[]){&all[i].a, &all[i].b, &zero, &one}),
            D9D_OK);
        if (isnan(all[i].want) ? !isnan(y) : !(fabsf(y - all[i].want) <= 1e-6f))
            fail_msg("row %zu, %s: %g, expected %g", i, d9d_pointwise_name(all[i].f), (double)y,
                     (double)all[i].want);
    }
}

static void what_is_impossible_is_refused(void **state)
{
    d9d_pointwise_dims d = dense(D9D_POINTWISE_MUL, D9D_F32, 1);
    const void *const x[D9D_POINTWISE_INPUTS] = {NULL};
    float y[1];

    (void)state;
    d.of = 2;
    assert_int_equal(host_kernels()->math->pointwise(NULL, &d, y, x), D9D_EINVAL);
    assert_string_equal(d9d_err_message(), "mul: a derivative by input 2 of 2");
    d.of = D9D_POINTWISE_VALUE;
    d.ndim = 0;
    assert_int_equal(host_kernels()->math->pointwise(NULL, &d, y, x), D9D_EINVAL);
    assert_string_equal(d9d_err_message(), "mul: 0 dimensions, possible are 1 to 6");
    d.f = D9D_N_POINTWISE;
    assert_int_equal(host_kernels()->math->pointwise(NULL, &d, y, x), D9D_EINVAL);
    assert_string_equal(d9d_err_message(), "pointwise: function 30 of 30");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_are_their_formulas),
        cmocka_unit_test(inputs_broadcast),
        cmocka_unit_test(ends_are_right),
        cmocka_unit_test(what_is_impossible_is_refused),
    };

    return cmocka_run_group_tests_name("kernel_pointwise", tests, NULL, NULL);
}
