/* Gated linear units and plain activations against double arithmetic by their definitions. */
#include "support/arrays.h"
#include "support/host_kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct call {
    const d9d_glu *f;
    bool gated;
    d9d_dtype t;
    int64_t n;
    void *gate, *up, *dy, *y, *d; /* d: dgate, then dup */
} call;

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

/* The activation itself; its derivative is a central difference of it, but at the bounds of a
 * clamp. */
static double act_of(const d9d_glu *f, double x)
{
    switch (f->act) {
    case D9D_ACT_GELU: return 0.5 * x * erfc(-x * sqrt(0.5));
    case D9D_ACT_GELU_TANH:
        return 0.5 * x *
               (1.0 + tanh(sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    case D9D_ACT_SWIGLU_OAI: return x * sigmoid((double)f->alpha * x);
    case D9D_ACT_HARDTANH: return fmax(-(double)f->limit, fmin(x, (double)f->limit));
    default: return x * sigmoid(x);
    }
}

static double derivative_of(const d9d_glu *f, double x)
{
    if (f->act == D9D_ACT_HARDTANH)
        return fabs(x) <= (double)f->limit ? 1.0 : 0.0;
    return (act_of(f, x + 1e-5) - act_of(f, x - 1e-5)) / 2e-5;
}

/* y, dgate and dup of an element. */
static void want_of(const call *c, int64_t i, double *y, double *dgate, double *dup)
{
    const bool clamped = c->f->act == D9D_ACT_SWIGLU_OAI;
    const double limit = (double)c->f->limit, raw = array_get(c->t, c->gate, i),
                 u = c->gated ? array_get(c->t, c->up, i) : 1.0, dy = array_get(c->t, c->dy, i);
    const double g = clamped ? fmin(raw, limit) : raw;
    const double factor = clamped ? fmax(-limit, fmin(u, limit)) + 1.0 : u;

    *y = act_of(c->f, g) * factor;
    *dgate = clamped && raw > limit ? 0.0 : dy * factor * derivative_of(c->f, g);
    *dup = clamped && fabs(u) > limit ? 0.0 : dy * act_of(c->f, g);
}

static void *dup_of(const call *c)
{
    return c->gated ? (char *)c->d + (size_t)c->n * d9d_dtype_size(c->t) : NULL;
}

static void run_forward(void *arg)
{
    call *c = arg;

    assert_int_equal(host_kernels()->elementwise->glu(NULL, c->f, c->t, c->y, c->gate,
                                                      c->gated ? c->up : NULL, c->n),
                     D9D_OK);
}
static void run_bwd(void *arg)
{
    call *c = arg;

    assert_int_equal(host_kernels()->elementwise->glu_bwd(NULL, c->f, c->t, c->d, dup_of(c), c->dy,
                                                          c->gate, c->gated ? c->up : NULL, c->n),
                     D9D_OK);
}

static void check(const d9d_glu *f, bool gated, d9d_dtype t, int64_t n)
{
    call c = {.f = f, .gated = gated, .t = t, .n = n};
    const size_t bytes = (size_t)n * d9d_dtype_size(t);
    double *want[3];

    c.gate = array_random(t, n, 1, 3.0);
    c.up = array_random(t, n, 2, 3.0);
    c.dy = array_random(t, n, 3, 1.0);
    c.y = array_poison(t, n);
    c.d = array_poison(t, 2 * n);
    for (int i = 0; i < 3; i++)
        assert_non_null(want[i] = calloc((size_t)n + 1, sizeof(double)));
    for (int64_t i = 0; i < n; i++)
        want_of(&c, i, &want[0][i], &want[1][i], &want[2][i]);
    array_same_for_threads(run_forward, &c, c.y, bytes, NULL);
    array_same_for_threads(run_bwd, &c, c.d, gated ? 2 * bytes : bytes, NULL);
    array_close("y", t, c.y, want[0], n, 4e-6);
    array_close("dgate", t, c.d, want[1], n, 4e-6);
    if (gated)
        array_close("dup", t, dup_of(&c), want[2], n, 4e-6);
    for (int i = 0; i < 3; i++)
        free(want[i]);
    free(c.gate), free(c.up), free(c.dy), free(c.y), free(c.d);
}

static const d9d_glu units[] = {
    {D9D_ACT_SILU, 0, 0},         {D9D_ACT_GELU, 0, 0},
    {D9D_ACT_GELU_TANH, 0, 0},    {D9D_ACT_SWIGLU_OAI, 1.702f, 2.0f},
    {D9D_ACT_HARDTANH, 0, 1.25f},
};

static void units_are_their_formulas(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof(units) / sizeof(units[0]); f++)
        for (int gated = units[f].act == D9D_ACT_SWIGLU_OAI; gated < 2; gated++)
            for (size_t i = 0; i < 16; i++)
                check(&units[f], gated, array_types[i / 8], array_sizes[i % 8]);
}

/* Large arguments do not overflow, and NaN is not hidden by a clamp. */
static void ends_are_finite(void **state)
{
    const float x[5] = {-1e4f, -50.0f, 50.0f, 1e4f, NAN}, one[5] = {1, 1, 1, 1, 1};

    (void)state;
    for (size_t f = 0; f < sizeof(units) / sizeof(units[0]); f++) {
        float y[5], dgate[5], dup[5];

        assert_int_equal(host_kernels()->elementwise->glu(NULL, &units[f], D9D_F32, y, x, one, 5),
                         D9D_OK);
        assert_int_equal(host_kernels()->elementwise->glu_bwd(NULL, &units[f], D9D_F32, dgate, dup,
                                                              one, x, one, 5),
                         D9D_OK);
        for (int i = 0; i < 4; i++)
            assert_true(isfinite(y[i]) && isfinite(dgate[i]) && isfinite(dup[i]));
        assert_true(units[f].act == D9D_ACT_HARDTANH ? y[0] == -1.25f : fabsf(y[0]) < 1e-6f);
        assert_true(fabsf(dgate[0]) < 1e-6f);
        assert_true(isnan(y[4]) && isnan(dup[4]));
        assert_true(units[f].act == D9D_ACT_HARDTANH || isnan(dgate[4]));
    }
}

/* Backward may write dgate over dy, as the unfused feed-forward layer does. */
static void dgate_may_be_dy(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof(units) / sizeof(units[0]); f++)
        for (int t = 0; t < 2; t++) {
            const int64_t n = 37;
            const size_t bytes = (size_t)n * d9d_dtype_size(array_types[t]);
            call c = {.f = &units[f], .gated = true, .t = array_types[t], .n = n};
            void *over;

            c.gate = array_random(c.t, n, 1, 3.0);
            c.up = array_random(c.t, n, 2, 3.0);
            c.dy = array_random(c.t, n, 3, 1.0);
            c.d = array_poison(c.t, 2 * n);
            assert_non_null(over = malloc(bytes));
            memcpy(over, c.dy, bytes);
            run_bwd(&c);
            assert_int_equal(host_kernels()->elementwise->glu_bwd(NULL, c.f, c.t, over, dup_of(&c),
                                                                  over, c.gate, c.up, n),
                             D9D_OK);
            assert_memory_equal(over, c.d, bytes);
            free(c.gate), free(c.up), free(c.dy), free(c.d), free(over);
        }
}

static void what_is_no_unit_is_refused(void **state)
{
    static const struct {
        d9d_glu f;
        bool gated;
        const char *why;
    } all[] = {
        {{D9D_ACT_SWIGLU_OAI, 1, 7}, false, "glu: the clamped SwiGLU needs both gate and up"},
        {{D9D_ACT_SWIGLU_OAI, 1, 0}, true, "glu: a limit of 0, it must be positive"},
        {{D9D_ACT_HARDTANH, 0, 0}, false, "glu: a limit of 0, it must be positive"},
        {{D9D_N_ACTIVATIONS, 1, 1}, true, "glu: activation 5 of 5"},
    };
    const float x[1] = {1};
    float y[1];

    (void)state;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        assert_int_equal(host_kernels()->elementwise->glu(NULL, &all[i].f, D9D_F32, y, x,
                                                          all[i].gated ? x : NULL, 1),
                         D9D_EINVAL);
        assert_string_equal(d9d_err_message(), all[i].why);
    }
}

/* At a bound the derivative is 1, as that of torch's clamp. */
static void a_bound_is_inside(void **state)
{
    const d9d_glu clamp = {D9D_ACT_HARDTANH, 0, 0.5f};
    const float x[5] = {-0.75f, -0.5f, 0.25f, 0.5f, 0.5625f}, dy[5] = {1, 2, 3, 4, 5},
                want_y[5] = {-0.5f, -0.5f, 0.25f, 0.5f, 0.5f}, want_dx[5] = {0, 2, 3, 4, 0};
    float y[5], dx[5];

    (void)state;
    assert_int_equal(host_kernels()->elementwise->glu(NULL, &clamp, D9D_F32, y, x, NULL, 5),
                     D9D_OK);
    assert_int_equal(
        host_kernels()->elementwise->glu_bwd(NULL, &clamp, D9D_F32, dx, NULL, dy, x, NULL, 5),
        D9D_OK);
    assert_memory_equal(y, want_y, sizeof(y));
    assert_memory_equal(dx, want_dx, sizeof(dx));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_are_their_formulas),
        cmocka_unit_test(ends_are_finite),
        cmocka_unit_test(dgate_may_be_dy),
        cmocka_unit_test(a_bound_is_inside),
        cmocka_unit_test(what_is_no_unit_is_refused),
    };

    return cmocka_run_group_tests_name("kernel_glu", tests, NULL, NULL);
}
