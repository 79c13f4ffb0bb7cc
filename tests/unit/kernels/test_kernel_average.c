/* Averages of weights and schedule-free AdamW against the formulas in double. */
#include "support/arrays.h"
#include "support/host_kernels.h"
#include "support/unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STATES = 2 };

/* Weights, states and gradients of n elements, and what they are to become. */
typedef struct test_arrays {
    d9d_dtype t, gt, st;
    bool masters;
    int64_t n;
    d9d_optim_arrays a;
    double *p, *g, *state[STATES];
} test_arrays;

static double weight(const test_arrays *x, int64_t i)
{
    uint32_t u;
    float f;

    if (!x->masters)
        return array_get(x->t, x->a.p, i);
    u = ((uint32_t)((const uint16_t *)x->a.p)[i] << 16) + (uint32_t)(int32_t)x->a.residual[i];
    memcpy(&f, &u, sizeof(f));
    return (double)f;
}

static void arrays_make(test_arrays *x, float scale)
{
    x->a = (d9d_optim_arrays){
        .p = array_random(x->t, x->n, 1, 1.0),
        .g = array_random(x->gt, x->n, 2, 1.0),
        .m = array_random(x->st, x->n, 3, 1.0),
        .v = array_random(x->st, x->n, 4, 1.0),
        .residual = x->masters ? calloc((size_t)x->n + 1, sizeof(int16_t)) : NULL,
        .n = x->n,
    };
    for (int64_t i = 0; i < x->n; i++)
        array_set(x->st, x->a.v, i, fabs(array_get(x->st, x->a.v, i)));
    x->p = array_doubles(x->t, x->a.p, x->n);
    x->g = array_doubles(x->gt, x->a.g, x->n);
    x->state[0] = array_doubles(x->st, x->a.m, x->n);
    x->state[1] = array_doubles(x->st, x->a.v, x->n);
    for (int64_t i = 0; i < x->n; i++)
        x->g[i] *= (double)scale;
}

static void arrays_free(test_arrays *x)
{
    free(x->a.p);
    free((void *)(uintptr_t)x->a.g);
    free(x->a.m), free(x->a.v), free(x->a.residual);
    free(x->p), free(x->g), free(x->state[0]), free(x->state[1]);
}

static void compare(const test_arrays *x)
{
    if (!x->masters)
        array_close("weights", x->t, x->a.p, x->p, x->n, 2e-6);
    for (int64_t i = 0; i < x->n && x->masters; i++)
        if (!(fabs(weight(x, i) - x->p[i]) <= 2e-6 * (1 + fabs(x->p[i]))))
            fail_msg("master %lld: %.9g, the formula gives %.9g", (long long)i, weight(x, i),
                     x->p[i]);
    array_close("m", x->st, x->a.m, x->state[0], x->n, 2e-6);
    array_close("v", x->st, x->a.v, x->state[1], x->n, 2e-6);
}

static void schedule_free_by_the_book(const d9d_schedule_free_step *s, test_arrays *x)
{
    for (int64_t i = 0; i < x->n; i++) {
        const double z = s->first ? x->p[i] : x->state[0][i], g = x->g[i];
        double *v = &x->state[1][i], u;

        *v = s->beta2 * *v + (1 - s->beta2) * g * g;
        u = g / (sqrt(*v / s->bias_correction2) + s->eps) + s->weight_decay * x->p[i];
        x->p[i] += s->weight * (z - x->p[i]) + s->lr * (s->beta1 * (1 - s->weight) - 1) * u;
        x->state[0][i] = z - s->lr * u;
    }
}

static void test_schedule_free(void **state)
{
    (void)state;
    for (int flags = 0; flags < 32; flags++) {
        const d9d_schedule_free_step s = {.lr = 0.01,
                                          .beta1 = 0.9,
                                          .beta2 = 0.99,
                                          .eps = 1e-8,
                                          .weight_decay = flags & 8 ? 0.1 : 0,
                                          .bias_correction2 = 0.2,
                                          .weight = flags & 16 ? 1 : 0.3,
                                          .first = (flags & 16) != 0};
        test_arrays x = {.t = array_types[flags & 1],
                         .gt = array_types[flags >> 1 & 1],
                         .st = D9D_F32,
                         .n = array_sizes[(flags + flags / 8) % 8],
                         .masters = (flags & 5) == 5};
        const float scale = 0.25f;

        arrays_make(&x, scale);
        assert_ok(host_kernels()->optim->schedule_free(NULL, &s, &scale, x.t, x.gt, &x.a, 1));
        schedule_free_by_the_book(&s, &x);
        compare(&x);
        arrays_free(&x);
    }
}

/* Of weights that stay to the bit, and of weights that become the average. */
static void test_average(void **state)
{
    (void)state;
    for (int flags = 0; flags < 32; flags++) {
        const d9d_average_step s = {.to_state = flags & 8 ? -0.11 : 0,
                                    .to_weights = flags & 16 ? 0.001 : 0};
        test_arrays x = {.t = array_types[flags & 1],
                         .gt = D9D_F32,
                         .st = array_types[flags >> 1 & 1],
                         .n = array_sizes[(flags + flags / 8) % 8],
                         .masters = (flags & 5) == 5};
        const float scale = 1;

        arrays_make(&x, scale);
        assert_ok(host_kernels()->optim->average(NULL, &s, &scale, x.t, x.st, &x.a, 1));
        for (int64_t i = 0; i < x.n; i++) {
            const double p = x.p[i];

            x.p[i] = (1 - s.to_state) * p + s.to_state * x.state[0][i];
            x.state[0][i] = (1 - s.to_weights) * x.state[0][i] + s.to_weights * p;
            if (s.to_state == 0)
                assert_true(weight(&x, i) == p);
        }
        compare(&x);
        arrays_free(&x);
    }
}

/* With to_state 1 the weights are the bits of the average, with to_weights 1 the reverse. */
static void test_average_copies(void **state)
{
    const float scale = 1, nan = NAN;
    float p[9], m[9], from[9];
    const d9d_optim_arrays a = {.p = p, .g = p, .m = m, .n = 9};

    (void)state;
    for (int i = 0; i < 9; i++) {
        p[i] = (float)i / 3;
        from[i] = m[i] = -1e-30f * (float)(i + 1);
    }
    assert_ok(host_kernels()->optim->average(NULL, &(d9d_average_step){.to_state = 1}, &nan,
                                             D9D_F32, D9D_F32, &a, 1));
    assert_true(p[3] == 1.0f);
    assert_ok(host_kernels()->optim->average(NULL, &(d9d_average_step){.to_state = 1}, &scale,
                                             D9D_F32, D9D_F32, &a, 1));
    assert_memory_equal(p, from, sizeof(p));
    memset(m, 0, sizeof(m));
    assert_ok(host_kernels()->optim->average(NULL, &(d9d_average_step){.to_weights = 1}, &scale,
                                             D9D_F32, D9D_F32, &a, 1));
    assert_memory_equal(m, from, sizeof(m));
}

/* A bfloat16 average follows small steps in the mean, which rounding to nearest would lose. */
static void test_average_stochastic(void **state)
{
    enum { N = 20000 };
    const d9d_average_step s = {.to_weights = 0.001};
    float *p = malloc(N * sizeof(*p)), scale = 1;
    uint16_t *m = malloc(N * sizeof(*m));
    const int64_t n = N, zero = 0;
    const d9d_optim_arrays a = {.p = p, .g = p, .m = m, .n = N};
    double mean = 0;

    (void)state;
    assert_true(p != NULL && m != NULL);
    for (int i = 0; i < N; i++) {
        p[i] = 2;
        m[i] = d9d_bf16_from_f32(1);
    }
    assert_ok(host_kernels()->optim->average_stochastic(NULL, &s, &scale, D9D_F32, D9D_BF16, &a,
                                                        (d9d_rng){.seed = 1, .stream = 2}, 1, &n,
                                                        &zero, &n));
    for (int i = 0; i < N; i++) {
        assert_true(p[i] == 2);
        mean += (double)d9d_bf16_to_f32(m[i]) / N;
    }
    assert_true(fabs(mean - 1.001) < 2e-4);
    free(p);
    free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedule_free),
        cmocka_unit_test(test_average),
        cmocka_unit_test(test_average_copies),
        cmocka_unit_test(test_average_stochastic),
    };

    return cmocka_run_group_tests_name("kernel_average", tests, NULL, NULL);
}
