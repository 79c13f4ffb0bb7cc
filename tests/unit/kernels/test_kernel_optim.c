/* Optimizer steps against the formulas in double; reductions. */
#include "support/arrays.h"
#include "support/host_kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Parameter and states in one block, so that one comparison sees them all. */
typedef struct call {
    d9d_dtype t, gt, st;
    int64_t n;
    const d9d_adam_step *adam;
    const d9d_lion_step *lion;
    const d9d_sgd_step *sgd;
    d9d_rng r;
    void *block, *g;
    float scale;
    bool masters;
} call;

enum { P, M, V, X, LOW, ARRAYS };

static d9d_dtype type(const call *c, int array)
{
    return array == P ? c->t : array == LOW ? D9D_I16 : c->st;
}

/* Bytes before an array; each starts on a cache line. */
static size_t place(const call *c, int array)
{
    size_t at = 0;

    for (int a = 0; a < array; a++)
        at += ((size_t)c->n * d9d_dtype_size(type(c, a)) + 63) / 64 * 64;
    return at;
}
static void *get(const call *c, int array)
{
    return (char *)c->block + place(c, array);
}
static int16_t *residual(const call *c)
{
    return c->masters ? get(c, LOW) : NULL;
}
static d9d_optim_arrays arrays(const call *c)
{
    return (d9d_optim_arrays){.p = get(c, P),
                              .g = c->g,
                              .m = get(c, M),
                              .v = get(c, V),
                              .vmax = get(c, X),
                              .n = c->n,
                              .residual = residual(c)};
}

/* The number that is updated: a parameter, or its master. */
static double weight(const call *c, int64_t i)
{
    uint32_t u;
    float f;

    if (!c->masters)
        return array_get(c->t, get(c, P), i);
    u = ((uint32_t)((const uint16_t *)get(c, P))[i] << 16) +
        (uint32_t)(int32_t)((const int16_t *)get(c, LOW))[i];
    memcpy(&f, &u, sizeof(f));
    return (double)f;
}

static void run_adam(void *arg)
{
    call *c = arg;

    const d9d_optim_arrays a = arrays(c);

    assert_int_equal(
        host_kernels()->optim->adam(NULL, c->adam, &c->scale, c->t, c->gt, c->st, &a, 1), D9D_OK);
}
static void run_stochastic(void *arg)
{
    const int64_t zero = 0;
    call *c = arg;
    const d9d_optim_arrays a = arrays(c);

    assert_int_equal(host_kernels()->optim->adam_stochastic(NULL, c->adam, &c->scale, c->t, c->gt,
                                                            c->st, &a, c->r, 1, &c->n, &zero,
                                                            &c->n),
                     D9D_OK);
}
static void run_lion(void *arg)
{
    call *c = arg;
    const d9d_optim_arrays a = arrays(c);

    assert_int_equal(
        host_kernels()->optim->lion(NULL, c->lion, &c->scale, c->t, c->gt, c->st, &a, 1), D9D_OK);
}
static void run_lion_stochastic(void *arg)
{
    const int64_t zero = 0;
    call *c = arg;
    const d9d_optim_arrays a = arrays(c);

    assert_int_equal(host_kernels()->optim->lion_stochastic(NULL, c->lion, &c->scale, c->t, c->gt,
                                                            c->st, &a, c->r, 1, &c->n, &zero,
                                                            &c->n),
                     D9D_OK);
}
static void run_sgd(void *arg)
{
    call *c = arg;

    assert_int_equal(host_kernels()->optim->sgd(NULL, c->sgd, c->t, get(c, P), residual(c), c->gt,
                                                c->g, &c->scale, c->st, get(c, M), c->n),
                     D9D_OK);
}

/* Random parameter, gradient and first moment; positive second moments. */
static void *start(call *c)
{
    void *before;

    c->block = array_poison(D9D_BF16, (int64_t)place(c, ARRAYS) / 2);
    c->g = array_random(c->gt, c->n, 1, 1.0);
    for (int64_t i = 0; i < c->n; i++) /* of any residual */
        ((int16_t *)get(c, LOW))[i] = (int16_t)(i * 40503 % 65536 - 32768);
    for (int a = 0; a < LOW; a++) {
        void *x = array_random(type(c, a), c->n, 2 + (uint64_t)a, 0.5);

        for (int64_t i = 0; i < c->n && a >= V; i++)
            array_set(type(c, a), x, i, fabs(array_get(type(c, a), x, i)));
        memcpy(get(c, a), x, (size_t)c->n * d9d_dtype_size(type(c, a)));
        free(x);
    }
    before = malloc(place(c, ARRAYS) + 1);
    assert_non_null(before);
    memcpy(before, c->block, place(c, ARRAYS));
    return before;
}

/* One element by the book: value[P..X] are changed. */
static void adam_by_the_book(const d9d_adam_step *s, double g, double value[LOW])
{
    double second;

    g = s->maximize ? -g : g;
    if (s->decoupled)
        value[P] *= 1.0 - s->lr * s->weight_decay;
    else
        g += s->weight_decay * value[P];
    value[M] = s->beta1 * value[M] + (1.0 - s->beta1) * g;
    value[V] = s->beta2 * value[V] + (1.0 - s->beta2) * g * g;
    value[X] = s->amsgrad ? fmax(value[X], value[V]) : value[X];
    second = s->amsgrad ? value[X] : value[V];
    value[P] -=
        s->lr / s->bias_correction1 * value[M] / (sqrt(second / s->bias_correction2) + s->eps);
}

static void lion_by_the_book(const d9d_lion_step *s, double g, double value[LOW])
{
    const double u = s->beta1 * value[M] + (1.0 - s->beta1) * g;

    value[P] = value[P] * (1.0 - s->lr * s->weight_decay) - s->lr * ((u > 0) - (u < 0));
    value[M] = s->beta2 * value[M] + (1.0 - s->beta2) * g;
}

static void sgd_by_the_book(const d9d_sgd_step *s, double g, double value[LOW])
{
    g = s->maximize ? -g : g;
    g += s->weight_decay * value[P];
    if (s->momentum != 0.0) {
        value[M] = s->first ? g : s->momentum * value[M] + (1.0 - s->dampening) * g;
        g = s->nesterov ? g + s->momentum * value[M] : value[M];
    }
    value[P] -= s->lr * g;
}

/* A parameter is its master rounded to nearest, and the master has the bits of float32. */
static void check_masters(const call *c, const double *want)
{
    for (int64_t i = 0; i < c->n; i++) {
        const double got = weight(c, i), near = array_get(D9D_BF16, get(c, P), i);

        if (!(fabs(got - want[i]) <= 1e-6 * (1 + fabs(want[i]))))
            fail_msg("master %lld: %.9g, the formula gives %.9g", (long long)i, got, want[i]);
        assert_true(fabs(near - got) <= fabs(got) / 256);
    }
}

static void check(call *c, array_run run)
{
    void *before = start(c);
    double *want[LOW];

    for (int a = 0; a < LOW; a++)
        assert_non_null(want[a] = calloc((size_t)c->n + 1, sizeof(double)));
    for (int64_t i = 0; i < c->n; i++) {
        double value[LOW];

        for (int a = M; a < LOW; a++)
            value[a] = array_get(type(c, a), get(c, a), i);
        value[P] = weight(c, i);
        if (c->adam != NULL)
            adam_by_the_book(c->adam, (double)c->scale * array_get(c->gt, c->g, i), value);
        else if (c->lion != NULL)
            lion_by_the_book(c->lion, (double)c->scale * array_get(c->gt, c->g, i), value);
        else
            sgd_by_the_book(c->sgd, (double)c->scale * array_get(c->gt, c->g, i), value);
        for (int a = 0; a < LOW; a++)
            want[a][i] = value[a];
    }
    array_same_for_threads(run, c, c->block, place(c, ARRAYS), before);
    for (int a = 0; a < LOW; a++) {
        if (a == P && c->masters)
            check_masters(c, want[P]);
        else
            array_close("state", type(c, a), get(c, a), want[a], c->n, 1e-6);
        free(want[a]);
    }
    free(c->block);
    free(c->g);
    free(before);
}

static void test_adam(void **state)
{
    (void)state;
    for (int flags = 0; flags < 128; flags++) {
        d9d_adam_step s = {.lr = 0.01,
                           .beta1 = 0.9,
                           .beta2 = 0.999,
                           .eps = 1e-8,
                           .weight_decay = 0.1,
                           .bias_correction1 = 1.0 - pow(0.9, 3.0),
                           .bias_correction2 = 1.0 - pow(0.999, 3.0),
                           .decoupled = (flags & 8) != 0,
                           .amsgrad = (flags & 16) != 0,
                           .maximize = (flags & 32) != 0};
        call c = {.t = array_types[flags & 1],
                  .gt = array_types[flags >> 1 & 1],
                  .st = array_types[flags >> 2 & 1],
                  .n = array_sizes[flags % 8],
                  .adam = &s,
                  .scale = 0.25f,
                  .masters = (flags & 65) == 65};

        check(&c, run_adam);
    }
}

/* Beta1 has few bits, so that a sum of bfloat16 numbers is 0 where it is in double. */
static void test_lion(void **state)
{
    (void)state;
    for (int flags = 0; flags < 64; flags++) {
        d9d_lion_step s = {
            .lr = 0.01, .beta1 = 0.875, .beta2 = 0.99, .weight_decay = flags & 8 ? 0.1 : 0.0};
        call c = {.t = array_types[flags & 1],
                  .gt = array_types[flags >> 1 & 1],
                  .st = array_types[flags >> 2 & 1],
                  .n = array_sizes[(flags / 8 + flags) % 8],
                  .lion = &s,
                  .scale = 0.25f,
                  .masters = (flags & 33) == 33};

        check(&c, run_lion);
    }
}

/* Where the moment and the gradient say nothing, the weight only decays. */
static void test_lion_of_zero(void **state)
{
    const d9d_lion_step s = {.lr = 0.5, .beta1 = 0.5, .beta2 = 0.5, .weight_decay = 0.5};
    float p[3] = {1, 1, 1}, g[3] = {0, -2, 1}, m[3] = {0, 2, 1}, scale = 1;
    const d9d_optim_arrays a = {.p = p, .g = g, .m = m, .n = 3};

    (void)state;
    assert_int_equal(
        host_kernels()->optim->lion(NULL, &s, &scale, D9D_F32, D9D_F32, D9D_F32, &a, 1), D9D_OK);
    assert_true(p[0] == 0.75f && p[1] == 0.75f && p[2] == 0.25f);
    assert_true(m[0] == 0 && m[1] == 0 && m[2] == 1);
}

static void test_sgd(void **state)
{
    (void)state;
    for (int flags = 0; flags < 128; flags++) {
        d9d_sgd_step s = {.lr = 0.01,
                          .momentum = flags & 8 ? 0.9 : 0.0,
                          .dampening = 0.1,
                          .weight_decay = 0.1,
                          .nesterov = (flags & 16) != 0,
                          .first = (flags & 4) != 0,
                          .maximize = (flags & 32) != 0};
        call c = {.t = array_types[flags & 1],
                  .gt = array_types[flags >> 1 & 1],
                  .st = array_types[flags >> 2 & 1],
                  .n = array_sizes[(flags + 3) % 8],
                  .sgd = &s,
                  .scale = 0.25f,
                  .masters = (flags & 65) == 65};

        check(&c, run_sgd);
    }
}

/* --- masters -------------------------------------------------------------------------- */

/* Weights of 2 + 2 bytes go where float32 weights go, to the bit, over many steps. */
static void check_same_as_float32(int64_t n, d9d_dtype gt, bool momentum)
{
    float *p = array_random(D9D_F32, n, 1, 0.02), *x = array_poison(D9D_F32, n), scale = 1.0f;
    uint16_t *w = array_poison(D9D_BF16, n);
    int16_t *low = array_poison(D9D_I16, n);
    float *state[4];
    d9d_adam_step adam = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .decoupled = true};

    for (int i = 0; i < 4; i++)
        assert_non_null(state[i] = calloc((size_t)n + 1, sizeof(float)));
    for (int64_t i = 0; i < n; i++) {
        w[i] = d9d_bf16_from_f32(p[i]);
        low[i] = 0;
        p[i] = d9d_bf16_to_f32(w[i]);
    }
    for (int step = 1; step <= 20; step++) {
        void *g = array_random(gt, n, 10 + (uint64_t)step, 1.0);
        d9d_sgd_step sgd = {.lr = 1e-5, .momentum = momentum ? 0.9 : 0, .first = step == 1};
        const d9d_optim_arrays plain = {.p = p, .g = g, .m = state[0], .v = state[1], .n = n};
        const d9d_optim_arrays split = {
            .p = w, .g = g, .m = state[2], .v = state[3], .n = n, .residual = low};

        adam.lr = 1e-5;
        adam.bias_correction1 = 1 - pow(0.9, step);
        adam.bias_correction2 = 1 - pow(0.99, step);
        assert_int_equal(
            host_kernels()->optim->adam(NULL, &adam, &scale, D9D_F32, gt, D9D_F32, &plain, 1),
            D9D_OK);
        assert_int_equal(
            host_kernels()->optim->adam(NULL, &adam, &scale, D9D_BF16, gt, D9D_F32, &split, 1),
            D9D_OK);
        assert_int_equal(host_kernels()->optim->sgd(NULL, &sgd, D9D_F32, p, NULL, gt, g, &scale,
                                                    D9D_F32, state[0], n),
                         D9D_OK);
        assert_int_equal(host_kernels()->optim->sgd(NULL, &sgd, D9D_BF16, w, low, gt, g, &scale,
                                                    D9D_F32, state[2], n),
                         D9D_OK);
        free(g);
    }
    for (int64_t i = 0; i < n; i++) {
        const uint32_t u = ((uint32_t)w[i] << 16) + (uint32_t)(int32_t)low[i];

        memcpy(&x[i], &u, sizeof(u));
    }
    assert_memory_equal(x, p, (size_t)n * sizeof(float));
    assert_memory_equal(state[0], state[2], (size_t)n * sizeof(float));
    assert_memory_equal(state[1], state[3], (size_t)n * sizeof(float));
    for (int i = 0; i < 4; i++)
        free(state[i]);
    free(p);
    free(x);
    free(w);
    free(low);
}

static void test_masters_are_float32(void **state)
{
    (void)state;
    for (size_t i = 0; i < 8; i++)
        check_same_as_float32(array_sizes[i] + 1, array_types[i & 1], (i & 2) != 0);
}

/* Every kind of number splits and joins again: ties, signs, subnormals, infinity; NaN stays NaN. */
static void test_masters_split(void **state)
{
    static const uint32_t bits[] = {0,          0x80000000, 0x00000001, 0x80000001, 0x00007fff,
                                    0x00008000, 0x80008000, 0x3f808000, 0x3f818000, 0xbf808000,
                                    0x3f807fff, 0x3fffffff, 0x7f7fffff, 0xff7fffff, 0x7f7f8000,
                                    0x7f800000, 0xff800000, 0x7f800001, 0x7fffffff, 0xffffffff,
                                    0xffc00000, 0x7fc08000, 0x00800000, 0x007fffff};
    enum { N = sizeof(bits) / sizeof(bits[0]) };
    const d9d_sgd_step step = {.lr = 1};
    uint16_t w[N] = {0};
    int16_t low[N] = {0};
    float g[N], scale = -1.0f;

    (void)state;
    memcpy(g, bits, sizeof(g)); /* 0 - 1 (-1 g) */
    assert_int_equal(host_kernels()->optim->sgd(NULL, &step, D9D_BF16, w, low, D9D_F32, g, &scale,
                                                D9D_F32, NULL, N),
                     D9D_OK);
    for (int i = 0; i < N; i++) {
        const uint32_t u = ((uint32_t)w[i] << 16) + (uint32_t)(int32_t)low[i];

        if (isnan(g[i]))
            assert_true(isnan(d9d_bf16_to_f32(w[i])) && low[i] == 0);
        else
            assert_int_equal(u, bits[i] == 0x80000000 ? 0 : bits[i]);
    }
}

/* --- stochastic rounding ------------------------------------------------------------ */

/* Each stored number is the float32 step's, cut after the element's own 16 random bits. */
static void check_stochastic(const d9d_adam_step *adam, const d9d_lion_step *lion)
{
    enum { N = 5000 };
    const uint64_t streams[] = {0, 42, 67};
    const int last = adam != NULL ? V : M;

    for (int flags = 0; flags < 16; flags++) {
        call c = {.t = flags & 8 ? D9D_F32 : D9D_BF16,
                  .masters = (flags & 12) == 4,
                  .gt = array_types[flags & 1],
                  .st = array_types[flags >> 1 & 1],
                  .n = N,
                  .adam = adam,
                  .lion = lion,
                  .scale = 0.5f,
                  .r = {.seed = 11, .stream = 0xfffffffffffffff0u}};
        void *before = start(&c);
        float *exact[3] = {NULL}, *g = array_poison(D9D_F32, N), one = 1.0f;

        for (int i = 0; i < N; i++)
            g[i] = 0.5f * (float)array_get(c.gt, c.g, i);
        for (int a = P; a <= last; a++) {
            exact[a] = array_poison(D9D_F32, N);
            for (int i = 0; i < N; i++)
                exact[a][i] = (float)(a == P ? weight(&c, i) : array_get(c.st, get(&c, a), i));
        }
        const d9d_optim_arrays plain = {
            .p = exact[P], .g = g, .m = exact[M], .v = exact[V], .n = N};
        assert_int_equal(adam != NULL ? host_kernels()->optim->adam(NULL, adam, &one, D9D_F32,
                                                                    D9D_F32, D9D_F32, &plain, 1)
                                      : host_kernels()->optim->lion(NULL, lion, &one, D9D_F32,
                                                                    D9D_F32, D9D_F32, &plain, 1),
                         D9D_OK);
        array_same_for_threads(adam != NULL ? run_stochastic : run_lion_stochastic, &c, c.block,
                               place(&c, ARRAYS), before);
        for (int a = P; a <= last; a++)
            for (int i = 0; i < N; i++) {
                d9d_rng r = {.seed = c.r.seed, .stream = c.r.stream + streams[a]};
                uint32_t u;

                memcpy(&u, &exact[a][i], sizeof(u));
                u += d9d_rng_u32(r, (uint64_t)i) & 0xffffu;
                if (a == P && c.masters)
                    assert_true((float)weight(&c, i) == exact[P][i]);
                else if (type(&c, a) == D9D_BF16)
                    assert_int_equal(((uint16_t *)get(&c, a))[i], u >> 16);
                else
                    assert_true(((float *)get(&c, a))[i] == exact[a][i]);
            }
        for (int a = P; a <= last; a++)
            free(exact[a]);
        free(g);
        free(before);
        free(c.block);
        free(c.g);
    }
}

static void test_stochastic(void **state)
{
    const d9d_adam_step adam = {.lr = 0.01,
                                .beta1 = 0.9,
                                .beta2 = 0.999,
                                .eps = 1e-8,
                                .weight_decay = 0.1,
                                .bias_correction1 = 0.1,
                                .bias_correction2 = 0.001,
                                .decoupled = true};
    const d9d_lion_step lion = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1};

    (void)state;
    check_stochastic(&adam, NULL);
    check_stochastic(NULL, &lion);
}

/* A shard of rows and columns rounds as the whole does. */
static void test_stochastic_box(void **state)
{
    const int64_t whole[] = {30, 40}, zero[] = {0, 0}, box[] = {7, 9}, at[] = {20, 31};
    const d9d_adam_step s = {.lr = 0.01,
                             .beta1 = 0.9,
                             .beta2 = 0.99,
                             .eps = 1e-8,
                             .bias_correction1 = 0.1,
                             .bias_correction2 = 0.01,
                             .decoupled = true};
    const d9d_rng r = {.seed = 1, .stream = 2};
    uint16_t *p[2], *m[2], *v[2], *g = array_random(D9D_BF16, 1200, 4, 1.0), part_g[63];
    float scale = 1.0f;

    (void)state;
    for (int i = 0; i < 2; i++) {
        p[i] = array_random(D9D_BF16, 1200, 1, 1.0);
        m[i] = calloc(1200, sizeof(**m));
        v[i] = calloc(1200, sizeof(**v));
    }
    for (int i = 0; i < 63; i++) {
        int whole_i = (20 + i / 9) * 40 + 31 + i % 9;

        p[1][i] = p[0][whole_i];
        part_g[i] = g[whole_i];
    }
    const d9d_optim_arrays all = {.p = p[0], .g = g, .m = m[0], .v = v[0]};
    const d9d_optim_arrays part = {.p = p[1], .g = part_g, .m = m[1], .v = v[1]};
    assert_int_equal(host_kernels()->optim->adam_stochastic(NULL, &s, &scale, D9D_BF16, D9D_BF16,
                                                            D9D_BF16, &all, r, 2, whole, zero,
                                                            whole),
                     D9D_OK);
    assert_int_equal(host_kernels()->optim->adam_stochastic(NULL, &s, &scale, D9D_BF16, D9D_BF16,
                                                            D9D_BF16, &part, r, 2, box, at, whole),
                     D9D_OK);
    for (int i = 0; i < 63; i++) {
        int whole_i = (20 + i / 9) * 40 + 31 + i % 9;

        assert_int_equal(p[1][i], p[0][whole_i]);
        assert_int_equal(m[1][i], m[0][whole_i]);
        assert_int_equal(v[1][i], v[0][whole_i]);
    }
    for (int i = 0; i < 2; i++) {
        free(p[i]);
        free(m[i]);
        free(v[i]);
    }
    free(g);
}

/* Rounding is right on average; NaN and infinity stay what they are. */
static void test_stochastic_mean(void **state)
{
    enum { N = 200000 };
    const int64_t n = N, zero = 0;
    const d9d_adam_step s = {.lr = 0.3 / 128.0,
                             .beta1 = 0.0,
                             .beta2 = 0.0,
                             .bias_correction1 = 1.0,
                             .bias_correction2 = 1.0,
                             .decoupled = true};
    uint16_t *p = array_poison(D9D_BF16, N);
    float *g = array_poison(D9D_F32, N), *m = calloc(N, 4), *v = calloc(N, 4), scale = 1.0f;
    double sum = 0.0;

    (void)state;
    for (int i = 0; i < N; i++) {
        p[i] = 0x3f80;
        g[i] = -1.0f;
    }
    p[7] = 0x7f80;
    p[8] = 0xff80;
    p[9] = 0x7fff;
    const d9d_optim_arrays a = {.p = p, .g = g, .m = m, .v = v};
    assert_int_equal(host_kernels()->optim->adam_stochastic(NULL, &s, &scale, D9D_BF16, D9D_F32,
                                                            D9D_F32, &a, (d9d_rng){1, 2}, 1, &n,
                                                            &zero, &n),
                     D9D_OK);
    assert_int_equal(p[7], 0x7f80);
    assert_int_equal(p[8], 0xff80);
    assert_true(isnan(d9d_bf16_to_f32(p[9])));
    for (int i = 10; i < N; i++)
        sum += (double)d9d_bf16_to_f32(p[i]) - 1.0;
    assert_true(fabs(sum / (N - 10) * 128.0 - 0.3) < 0.005);
    free(p);
    free(g);
    free(m);
    free(v);
}

/* --- reductions --------------------------------------------------------------------- */

typedef struct reduction {
    d9d_dtype t;
    void *x;
    int64_t n, first;
    double beta, out[2];
} reduction;

static void run_sums(void *arg)
{
    reduction *p = arg;

    const d9d_sum_squares_array x = {p->x, p->n};

    assert_int_equal(host_kernels()->reduce->sum_squares(NULL, &p->out[0], p->t, &x, 1), D9D_OK);
    assert_int_equal(host_kernels()->reduce->sum(NULL, &p->out[1], p->beta, p->t, p->x, p->n),
                     D9D_OK);
}
static void run_search(void *arg)
{
    reduction *p = arg;

    assert_int_equal(host_kernels()->reduce->find_nonfinite(NULL, &p->first, p->t, p->x, p->n),
                     D9D_OK);
}

static void test_reductions(void **state)
{
    const double before[] = {3.0, 4.0};

    (void)state;
    for (size_t i = 0; i < 32; i++) {
        reduction p = {.t = array_types[i & 1], .n = array_sizes[i / 4], .beta = i & 2 ? 1.0 : 0.0};
        double squares = 0.0, sum = i & 2 ? 4.0 : 0.0;

        p.x = array_random(p.t, p.n, 1, 1.0);
        for (int64_t j = 0; j < p.n; j++) {
            squares += pow(array_get(p.t, p.x, j), 2.0);
            sum += array_get(p.t, p.x, j);
        }
        array_same_for_threads(run_sums, &p, p.out, sizeof(p.out), i & 2 ? before : NULL);
        assert_true(fabs(p.out[0] - squares) <= 1e-12 * (1.0 + squares));
        assert_true(fabs(p.out[1] - sum) <= 1e-12 * (1.0 + squares));
        free(p.x);
    }
}

/* Arrays of many lengths, one behind the other with a gap; more than go into a launch. */
enum { LIST = 150 };

static int64_t list_lengths(int64_t n[LIST], int64_t at[LIST])
{
    int64_t end = 0;

    for (int i = 0; i < LIST; i++) {
        n[i] = i % 7 == 3 ? 0 : i % 31 == 5 ? 70001 : 1 + i * 37 % 611;
        at[i] = end;
        end += (n[i] + 63) / 64 * 64;
    }
    return end;
}

/* Each has the bits that it has alone. */
static void test_list_of_squares(void **state)
{
    int64_t n[LIST], at[LIST];
    const int64_t all = list_lengths(n, at);

    (void)state;
    for (int flags = 0; flags < 2; flags++) {
        const d9d_dtype t = array_types[flags];
        char *x = array_random(t, all, 1, 1.0);
        double out[LIST + 1] = {[LIST] = 3.0}, alone;
        d9d_sum_squares_array list[LIST];

        for (int i = 0; i < LIST; i++)
            list[i] = (d9d_sum_squares_array){x + (size_t)at[i] * d9d_dtype_size(t), n[i]};
        assert_int_equal(host_kernels()->reduce->sum_squares(NULL, out, t, list, LIST), D9D_OK);
        for (int i = 0; i < LIST; i++) {
            double sum = 0;

            for (int64_t j = 0; j < n[i]; j++)
                sum += pow(array_get(t, x, at[i] + j), 2.0);
            assert_true(fabs(out[i] - sum) <= 1e-12 * sum);
            assert_int_equal(host_kernels()->reduce->sum_squares(NULL, &alone, t, &list[i], 1),
                             D9D_OK);
            assert_memory_equal(&out[i], &alone, sizeof(alone));
        }
        assert_int_equal(host_kernels()->reduce->sum_squares(NULL, out, t, list, 0), D9D_OK);
        assert_true(out[LIST] == 3.0);
        free(x);
    }
}

/* In their order, to the bit. */
static void test_add_up(void **state)
{
    static const int64_t counts[] = {0, 1, 2, 255, 256, 257, 1000};

    (void)state;
    for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
        double *x = malloc(((size_t)counts[k] + 1) * sizeof(*x)), sum = 0, out = 5;

        for (int64_t i = 0; i < counts[k]; i++) {
            x[i] = pow(-1.1, (double)(i * 7 % 61)) / 3;
            sum += x[i];
        }
        assert_int_equal(host_kernels()->reduce->sum_ordered(NULL, &out, x, counts[k]), D9D_OK);
        assert_memory_equal(&out, &sum, sizeof(sum));
        free(x);
    }
}

/* A list gives the bits of its arrays alone, and leaves what lies between them. */
static void check_list(bool masters)
{
    const d9d_adam_step s = {.lr = 0.01,
                             .beta1 = 0.9,
                             .beta2 = 0.999,
                             .eps = 1e-8,
                             .bias_correction1 = 0.1,
                             .bias_correction2 = 0.001,
                             .weight_decay = 0.1,
                             .decoupled = true};
    int64_t n[LIST], at[LIST];
    const int64_t all = list_lengths(n, at);
    const float scale = 0.5f;
    char *x[2][V + 1], *g = array_random(D9D_BF16, all, 9, 1.0);
    int16_t *low[2];
    d9d_optim_arrays list[LIST];

    for (int k = 0; k < 2; k++) {
        for (int a = P; a <= V; a++)
            x[k][a] = array_random(D9D_BF16, all, (uint64_t)a, 0.5);
        for (int64_t i = 0; i < all; i++)
            array_set(D9D_BF16, x[k][V], i, fabs(array_get(D9D_BF16, x[k][V], i)));
        assert_non_null(low[k] = calloc((size_t)all, sizeof(**low)));
        for (int i = 0; i < LIST; i++)
            list[i] = (d9d_optim_arrays){.p = x[k][P] + 2 * at[i],
                                         .g = g + 2 * at[i],
                                         .m = x[k][M] + 2 * at[i],
                                         .v = x[k][V] + 2 * at[i],
                                         .n = n[i],
                                         .residual = masters ? low[k] + at[i] : NULL};
        for (int i = 0; i < LIST; i += k == 0 ? LIST : 1)
            assert_int_equal(host_kernels()->optim->adam(NULL, &s, &scale, D9D_BF16, D9D_BF16,
                                                         D9D_BF16, &list[i], k == 0 ? LIST : 1),
                             D9D_OK);
    }
    for (int a = P; a <= V; a++) {
        assert_memory_equal(x[0][a], x[1][a], (size_t)all * 2);
        free(x[0][a]);
        free(x[1][a]);
    }
    assert_memory_equal(low[0], low[1], (size_t)all * sizeof(**low));
    free(low[0]);
    free(low[1]);
    free(g);
}

static void test_list_of_parameters(void **state)
{
    (void)state;
    check_list(false);
    check_list(true);
}

static void test_find_nonfinite(void **state)
{
    const double bad[] = {NAN, INFINITY, -INFINITY};

    (void)state;
    for (size_t i = 0; i < 16; i++) {
        reduction p = {.t = array_types[i & 1], .n = array_sizes[i / 2]};

        p.x = array_random(p.t, p.n, 1, 1e30);
        array_same_for_threads(run_search, &p, &p.first, sizeof(p.first), NULL);
        assert_int_equal(p.first, -1);
        for (int64_t at = p.n - 1; at >= 0; at = at / 3 - 1) {
            array_set(p.t, p.x, at, bad[at % 3]);
            array_same_for_threads(run_search, &p, &p.first, sizeof(p.first), NULL);
            assert_int_equal(p.first, at);
        }
        free(p.x);
    }
}

/* --- the end of a step ---------------------------------------------------------------- */

static void test_step_scale(void **state)
{
    static const struct {
        double squares, weight, max_norm, norm, scale;
    } rows[] = {
        {16.0, 2.0, 1.0, 2.0, 0.5 * (1.0 / (2.0 + 1e-6))},
        {16.0, -2.0, 3.0, 2.0, -0.5},
        {0.25, 1.0, 1.0, 0.5, 1.0},
        {0.0, 8.0, 1.0, 0.0, 0.125},
        {16.0, 4.0, 0.0, 1.0, 0.25},
        {16.0, 4.0, NAN, 1.0, 0.25},
    };
    const double loss[] = {1e16, 1.0, -1e16, 0.5};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        double report[2] = {-1, -1};
        float scale = 7.0f;

        assert_int_equal(host_kernels()->optim->grad_scale(NULL, &scale, report, loss, 4,
                                                           &rows[i].weight, &rows[i].squares,
                                                           rows[i].max_norm),
                         D9D_OK);
        assert_true(report[0] == 0.5); /* in their order: 1e16 + 1 is 1e16 */
        assert_true(report[1] == rows[i].norm);
        assert_true(scale == (float)rows[i].scale);
    }
}

/* One bad loss or norm stops every update from then on. */
static void test_step_scale_stays_nan(void **state)
{
    static const double bad[] = {NAN, INFINITY, -INFINITY};

    (void)state;
    for (size_t i = 0; i < 6; i++) {
        const double weight = 2.0;
        double loss[2] = {1.0, 2.0}, squares = 4.0, report[2];
        float scale = 1.0f;

        *(i < 3 ? &loss[1] : &squares) = bad[i % 3];
        assert_int_equal(host_kernels()->optim->grad_scale(NULL, &scale, report, loss, 2, &weight,
                                                           &squares, 1.0),
                         D9D_OK);
        assert_true(isnan(scale));
        assert_true(!isfinite(report[i / 3]) && isfinite(report[1 - i / 3]));
        loss[1] = squares = 4.0;
        assert_int_equal(host_kernels()->optim->grad_scale(NULL, &scale, report, loss, 2, &weight,
                                                           &squares, 1.0),
                         D9D_OK);
        assert_true(isnan(scale));
        assert_true(isfinite(report[0]) && isfinite(report[1]));
    }
}

/* Where the scale is NaN, nothing changes. */
static void test_nan_scale(void **state)
{
    static const d9d_adam_step plain = {.lr = 1,
                                        .beta1 = 0.5,
                                        .beta2 = 0.5,
                                        .eps = 1e-8,
                                        .weight_decay = 0.5,
                                        .bias_correction1 = 0.5,
                                        .bias_correction2 = 0.5,
                                        .decoupled = true};
    static const d9d_adam_step other = {.lr = 1,
                                        .beta1 = 0.5,
                                        .beta2 = 0.5,
                                        .eps = 1e-8,
                                        .bias_correction1 = 0.5,
                                        .bias_correction2 = 0.5,
                                        .amsgrad = true,
                                        .maximize = true};
    static const d9d_lion_step lion = {.lr = 1, .weight_decay = 0.5, .beta1 = 0.5, .beta2 = 0.5};
    static const d9d_sgd_step sgd = {.lr = 1, .weight_decay = 0.5, .momentum = 0.5};
    const struct {
        array_run run;
        d9d_dtype t;
        const d9d_adam_step *adam;
        bool masters;
    } rows[] = {
        {run_adam, D9D_F32, &plain, false},       {run_adam, D9D_BF16, &other, false},
        {run_adam, D9D_BF16, &other, true},       {run_stochastic, D9D_BF16, &plain, false},
        {run_stochastic, D9D_BF16, &plain, true}, {run_sgd, D9D_F32, NULL, false},
        {run_sgd, D9D_BF16, NULL, true},          {run_lion, D9D_F32, NULL, false},
        {run_lion, D9D_BF16, NULL, true},         {run_lion_stochastic, D9D_BF16, NULL, false}};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        call c = {.t = rows[i].t,
                  .gt = D9D_F32,
                  .st = D9D_F32,
                  .n = 1000,
                  .adam = rows[i].adam,
                  .lion = &lion,
                  .sgd = &sgd,
                  .scale = NAN,
                  .masters = rows[i].masters};
        const size_t bytes = place(&c, ARRAYS);
        void *before = start(&c);

        rows[i].run(&c);
        assert_memory_equal(before, c.block, bytes);
        c.scale = 1.0f;
        rows[i].run(&c);
        assert_memory_not_equal(before, c.block, bytes);
        free(before);
        free(c.block);
        free(c.g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adam),
        cmocka_unit_test(test_lion),
        cmocka_unit_test(test_lion_of_zero),
        cmocka_unit_test(test_sgd),
        cmocka_unit_test(test_masters_are_float32),
        cmocka_unit_test(test_masters_split),
        cmocka_unit_test(test_stochastic),
        cmocka_unit_test(test_stochastic_box),
        cmocka_unit_test(test_stochastic_mean),
        cmocka_unit_test(test_reductions),
        cmocka_unit_test(test_list_of_squares),
        cmocka_unit_test(test_add_up),
        cmocka_unit_test(test_list_of_parameters),
        cmocka_unit_test(test_find_nonfinite),
        cmocka_unit_test(test_step_scale),
        cmocka_unit_test(test_step_scale_stays_nan),
        cmocka_unit_test(test_nan_scale),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
