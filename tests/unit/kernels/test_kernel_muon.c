/* The elementwise parts of Muon against their formulas in double. */
#include "support/arrays.h"
#include "support/host_kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct call {
    d9d_dtype t, gt; /* of p; of g */
    int64_t n;
    d9d_muon_step step;
    float scale;
    void *p, *g;
    float *m;
    int16_t *residual;
} call;

static d9d_optim_arrays arrays(const call *c)
{
    return (d9d_optim_arrays){.p = c->p, .g = c->g, .m = c->m, .n = c->n, .residual = c->residual};
}

static call call_make(int flags, bool masters)
{
    const int64_t n = array_sizes[flags % 8];
    call c = {.t = array_types[flags & 1],
              .gt = array_types[flags >> 1 & 1],
              .n = n,
              .step = {.lr = 0.02,
                       .weight_decay = flags & 8 ? 0.1 : 0,
                       .momentum = 0.95,
                       .adjusted_lr = 0.05,
                       .nesterov = (flags & 4) != 0},
              .scale = 0.25f};

    c.p = array_random(c.t, n, 1, 0.5);
    c.g = array_random(c.gt, n, 2, 1);
    c.m = array_random(D9D_F32, n, 3, 0.5);
    c.residual = masters ? calloc((size_t)n + 1, sizeof(*c.residual)) : NULL;
    return c;
}

static void call_free(call *c)
{
    free(c->p);
    free(c->g);
    free(c->m);
    free(c->residual);
}

static void test_momentum(void **state)
{
    (void)state;
    for (int flags = 0; flags < 32; flags++) {
        call c = call_make(flags, false);
        const d9d_optim_arrays a = arrays(&c);
        double *u = calloc((size_t)c.n + 1, sizeof(*u)), *m = array_doubles(D9D_F32, c.m, c.n);
        const double mu = c.step.momentum;

        for (int64_t i = 0; i < c.n; i++) {
            const double g = (double)c.scale * array_get(c.gt, c.g, i);

            m[i] = mu * m[i] + (1 - mu) * g;
            u[i] = c.step.nesterov ? (1 - mu) * g + mu * m[i] : m[i];
        }
        assert_int_equal(
            host_kernels()->optim->muon_momentum(NULL, &c.step, &c.scale, c.t, c.gt, &a, 1),
            D9D_OK);
        array_close("u", c.t, c.p, u, c.n, 1e-6);
        array_close("m", D9D_F32, c.m, m, c.n, 1e-6);
        free(u);
        free(m);
        call_free(&c);
    }
}

/* A weight, or the float32 master of a bfloat16 weight and its residual. */
static double weight(const call *c, int64_t i)
{
    uint32_t u;
    float f;

    if (c->residual == NULL)
        return array_get(c->t, c->p, i);
    u = ((uint32_t)((const uint16_t *)c->p)[i] << 16) + (uint32_t)(int32_t)c->residual[i];
    memcpy(&f, &u, sizeof(f));
    return (double)f;
}

/* The scale of the gradient is no factor of the orthogonalized update. */
static void check_update(int flags, bool masters)
{
    call c = call_make(flags, masters);
    const d9d_optim_arrays a = arrays(&c);
    double *want = calloc((size_t)c.n + 1, sizeof(*want)),
           *got = calloc((size_t)c.n + 1, sizeof(*got));

    for (int64_t i = 0; i < c.n; i++)
        want[i] = weight(&c, i) * (1 - c.step.lr * c.step.weight_decay) -
                  c.step.adjusted_lr * array_get(c.gt, c.g, i);
    assert_int_equal(host_kernels()->optim->muon(NULL, &c.step, &c.scale, c.t, c.gt, &a, 1),
                     D9D_OK);
    for (int64_t i = 0; i < c.n && masters; i++) {
        got[i] = weight(&c, i);
        assert_true(fabs(got[i] - want[i]) <= 1e-6 * (1 + fabs(want[i])));
    }
    if (!masters)
        array_close("p", c.t, c.p, want, c.n, 1e-6);
    free(want);
    free(got);
    call_free(&c);
}

static void test_update(void **state)
{
    (void)state;
    for (int flags = 0; flags < 32; flags++) {
        check_update(flags, false);
        check_update(flags | 1, true);
    }
}

/* Each array by its own norm, or by eps where that is larger. */
static void test_normalize(void **state)
{
    static const int64_t counts[] = {0, 1, 3};

    (void)state;
    for (int flags = 0; flags < 48; flags++) {
        const d9d_dtype t = array_types[flags & 1];
        const int64_t n = array_sizes[flags / 2 % 8], count = counts[flags / 16];
        const float eps = 0.01f;
        void *x = array_random(t, count * n, 1, 1);
        double *want = array_doubles(t, x, count * n), squares[3];

        for (int64_t i = 0; i < count; i++) {
            squares[i] = i == 1 ? 1e-6 : 0;
            for (int64_t j = 0; j < n && i != 1; j++)
                squares[i] += pow(want[i * n + j], 2);
            for (int64_t j = 0; j < n; j++)
                want[i * n + j] /= fmax(sqrt(squares[i]), (double)eps);
        }
        assert_int_equal(host_kernels()->optim->muon_normalize(NULL, t, x, squares, count, n, eps),
                         D9D_OK);
        array_close("x", t, x, want, count * n, 1e-6);
        free(x);
        free(want);
    }
}

static void test_nan_scale(void **state)
{
    (void)state;
    for (int flags = 0; flags < 4; flags++) {
        call c = call_make(flags + 4, false), before = call_make(flags + 4, false);
        const d9d_optim_arrays a = arrays(&c);

        c.scale = NAN;
        assert_int_equal(
            host_kernels()->optim->muon_momentum(NULL, &c.step, &c.scale, c.t, c.gt, &a, 1),
            D9D_OK);
        assert_int_equal(host_kernels()->optim->muon(NULL, &c.step, &c.scale, c.t, c.gt, &a, 1),
                         D9D_OK);
        assert_memory_equal(c.p, before.p, (size_t)c.n * d9d_dtype_size(c.t));
        assert_memory_equal(c.m, before.m, (size_t)c.n * sizeof(float));
        call_free(&c);
        call_free(&before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_momentum),
        cmocka_unit_test(test_update),
        cmocka_unit_test(test_normalize),
        cmocka_unit_test(test_nan_scale),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
