/* Router: scores, choice, weights, the losses that keep it even, counts and the bias. */
#include "support/arrays.h"
#include "support/host_kernels.h"
#include "support/unit_device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct call {
    d9d_router_dims n;
    d9d_router_balance even;
    void *logits, *dlogits;
    float *bias, *p, *prob, *dprob, *weight, *load, *aux, *z;
    int32_t *expert;
} call;

static void run_router(void *arg)
{
    call *c = arg;

    assert_int_equal(
        host_kernels()->moe->router(NULL, &c->n, c->p, c->prob, c->expert, c->logits, c->bias),
        D9D_OK);
}
static void run_router_bwd(void *arg)
{
    call *c = arg;

    assert_int_equal(host_kernels()->moe->router_bwd(NULL, &c->n, c->dlogits, c->dprob, c->p,
                                                     c->prob, c->expert,
                                                     c->even.weight != NULL ? &c->even : NULL),
                     D9D_OK);
}
static void run_losses(void *arg)
{
    call *c = arg;

    assert_int_equal(host_kernels()->moe->router_losses(NULL, &c->n, c->aux, c->z, c->p, &c->even),
                     D9D_OK);
}

enum { MOST_EXPERTS = 640 };
enum { LENGTH = 7, FIRST = 3 }; /* of rows of the batch; of the tokens that are here */

static int64_t batch_rows(const call *c)
{
    return (FIRST + c->n.rows + LENGTH - 1) / LENGTH;
}

static void make(call *c)
{
    const int64_t rows = c->n.rows, e = c->n.e, k = c->n.k;

    c->logits = array_random(c->n.t, rows * e, 1, 1.0);
    c->bias = array_random(D9D_F32, e, 2, 0.1);
    c->dprob = array_random(D9D_F32, rows * k, 3, 1.0);
    c->weight = array_random(D9D_F32, rows, 4, 1.0);
    for (int64_t r = 0; r < rows; r++)
        c->weight[r] = r % 5 == 2 ? 0.0f : fabsf(c->weight[r]);
    c->load = calloc((size_t)(batch_rows(c) * e) + 1, sizeof(float));
    c->dlogits = array_poison(c->n.t, rows * e);
    c->p = array_poison(D9D_F32, rows * e);
    c->prob = array_poison(D9D_F32, rows * k);
    c->aux = array_poison(D9D_F32, rows);
    c->z = array_poison(D9D_F32, rows);
    c->expert = array_poison(D9D_F32, rows * k);
    c->even = (d9d_router_balance){c->weight, c->load, c->logits, FIRST, LENGTH, 0.5f, 0.25f};
}

static void release(call *c)
{
    void *parts[] = {c->logits, c->bias, c->dprob, c->weight, c->load,  c->dlogits,
                     c->p,      c->prob, c->aux,   c->z,      c->expert};

    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        free(parts[i]);
}

/* --- in double ---------------------------------------------------------------------------- */

/* Scores of token r with a step to logit `at`, and the log of the sum of their exponents. */
static double scores(const call *c, int64_t r, int64_t at, double step, double *s)
{
    double all = 0.0;

    for (int64_t i = 0; i < c->n.e; i++) {
        const double x = array_get(c->n.t, c->logits, r * c->n.e + i) + (i == at ? step : 0.0);

        all += exp(x);
        s[i] = c->n.sigmoid ? 1.0 / (1.0 + exp(-x)) : exp(x);
    }
    for (int64_t i = 0; i < c->n.e && !c->n.sigmoid; i++)
        s[i] /= all;
    return log(all);
}

static void losses_of(const call *c, int64_t r, const double *s, double lse, double *aux, double *z)
{
    const float *load = c->load + (FIRST + r) / LENGTH * c->n.e;
    double sum = 0.0, all = 0.0, dot = 0.0;

    for (int64_t i = 0; i < c->n.e; i++) {
        sum += s[i];
        all += (double)load[i];
        dot += s[i] * (double)load[i];
    }
    *aux = *z = 0.0;
    if (c->weight[r] == 0.0f)
        return;
    *aux = (double)c->weight[r] * dot / sum * (double)c->n.e / all;
    *z = (double)c->weight[r] * lse * lse;
}

static double loss_of(const call *c, int64_t r, int64_t at, double step)
{
    double s[MOST_EXPERTS], sum = 0.0, loss = 0.0, aux, z;
    const double lse = scores(c, r, at, step, s);

    for (int64_t j = 0; j < c->n.k; j++)
        sum += s[c->expert[r * c->n.k + j]];
    for (int64_t j = 0; j < c->n.k; j++)
        loss += s[c->expert[r * c->n.k + j]] / (c->n.renormalise ? sum : 1.0) * (double)c->n.scale *
                (double)c->dprob[r * c->n.k + j];
    if (c->even.weight == NULL)
        return loss;
    losses_of(c, r, s, lse, &aux, &z);
    return loss + aux * (double)c->even.aux + z * (double)c->even.z;
}

/* --- against it --------------------------------------------------------------------------- */

static float key_of(const call *c, int64_t r, int64_t i)
{
    return c->p[r * c->n.e + i] + (c->bias == NULL ? 0.0f : c->bias[i]);
}

/* Two best keys of a group together, or the best. */
static float worth_of(const call *c, int64_t r, int64_t g)
{
    const int64_t each = c->n.e / c->n.groups;
    float one = -INFINITY, two = -INFINITY;

    for (int64_t i = g * each; i < (g + 1) * each; i++) {
        const float k = key_of(c, r, i);

        two = fmaxf(two, fminf(k, one));
        one = fmaxf(one, k);
    }
    return one + (each > 1 && !c->n.group_max ? two : 0.0f);
}

static bool is_open(const call *c, int64_t r, int64_t expert)
{
    int64_t g, before = 0;

    if (c->n.groups <= 1)
        return true;
    g = expert / (c->n.e / c->n.groups);
    for (int64_t o = 0; o < c->n.groups; o++)
        before += worth_of(c, r, o) > worth_of(c, r, g) ||
                  (worth_of(c, r, o) == worth_of(c, r, g) && o < g);
    return before < c->n.top_groups;
}

/* The choice of a token is what sorting by (key falling, expert rising) puts first. */
static void check_choice(const call *c, int64_t r)
{
    const int64_t e = c->n.e, k = c->n.k;
    double s[MOST_EXPERTS], sum = 0.0;
    bool open[MOST_EXPERTS];

    (void)scores(c, r, -1, 0, s);
    for (int64_t i = 0; i < e; i++)
        open[i] = is_open(c, r, i);
    for (int64_t j = 0; j < k; j++)
        sum += (double)c->p[r * e + c->expert[r * k + j]];
    for (int64_t i = 0; i < e; i++) {
        const double want = (double)c->p[r * e + i] * (double)c->n.scale;
        int64_t before = 0;

        assert_true(fabs((double)c->p[r * e + i] - s[i]) < 1e-6);
        for (int64_t o = 0; o < e; o++)
            before += open[o] && (key_of(c, r, o) > key_of(c, r, i) ||
                                  (key_of(c, r, o) == key_of(c, r, i) && o < i));
        if (before >= k || !open[i])
            continue;
        assert_int_equal(c->expert[r * k + before], i);
        assert_true(fabs((double)c->prob[r * k + before] -
                         want / (c->n.renormalise ? sum + 1e-20 : 1.0)) < 2e-6);
    }
}

/* Counts are those of tokens with weight; the total of all rows is their sum. */
static void check_counts(call *c)
{
    double *total = calloc((size_t)c->n.e, sizeof(*total)), sum;
    float *want = calloc((size_t)(batch_rows(c) * c->n.e) + 1, sizeof(*want));

    for (int64_t i = 0; i < c->n.rows * c->n.k; i++)
        want[(FIRST + i / c->n.k) / LENGTH * c->n.e + c->expert[i]] +=
            c->weight[i / c->n.k] > 0.0f ? 1.0f : 0.0f;
    for (int twice = 0; twice < 2; twice++)
        assert_int_equal(host_kernels()->moe->expert_load(NULL, &c->n, twice ? NULL : c->load,
                                                          total, c->expert, &c->even),
                         D9D_OK);
    for (int64_t i = 0; i < batch_rows(c) * c->n.e; i++)
        assert_true(c->load[i] == want[i]);
    for (int64_t e = 0; e < c->n.e; e++) {
        sum = 0;
        for (int64_t b = 0; b < batch_rows(c); b++)
            sum += (double)want[b * c->n.e + e];
        assert_true(total[e] == 2 * sum);
    }
    free(total);
    free(want);
}

static void check_gradient(call *c)
{
    const int64_t n = c->n.rows * c->n.e;
    double *want = calloc((size_t)n + 1, sizeof(*want));

    array_same_for_threads(run_router_bwd, c, c->dlogits, (size_t)n * d9d_dtype_size(c->n.t), NULL);
    for (int64_t r = 0; r < c->n.rows; r++)
        for (int64_t i = 0; i < c->n.e; i++)
            want[r * c->n.e + i] = (loss_of(c, r, i, 1e-5) - loss_of(c, r, i, -1e-5)) / 2e-5;
    array_close("dlogits", c->n.t, c->dlogits, want, n, 1e-5);
    free(want);
}

static void check_losses(call *c)
{
    const int64_t n = c->n.rows;
    double *aux = calloc((size_t)n + 1, sizeof(*aux)), *z = calloc((size_t)n + 1, sizeof(*z));
    double s[MOST_EXPERTS];

    array_same_for_threads(run_losses, c, c->aux, (size_t)n * 4, NULL);
    for (int64_t r = 0; r < n; r++) {
        const double lse = scores(c, r, -1, 0, s);

        losses_of(c, r, s, lse, &aux[r], &z[r]);
    }
    array_close("aux", D9D_F32, c->aux, aux, n, 1e-5);
    array_close("z", D9D_F32, c->z, z, n, 1e-4);
    free(aux);
    free(z);
}

static void check_all(call *c)
{
    const d9d_router_balance even = c->even;
    const size_t n = (size_t)(c->n.rows * c->n.k) * 4;

    array_same_for_threads(run_router, c, c->prob, n, NULL);
    array_same_for_threads(run_router, c, c->expert, n, NULL);
    for (int64_t r = 0; r < c->n.rows; r++)
        check_choice(c, r);
    check_counts(c);
    check_losses(c);
    check_gradient(c);
    c->even.weight = NULL;
    check_gradient(c);
    c->even = even;
    c->even.load = NULL;
    c->even.aux = 0;
    check_gradient(c);
}

static void test_router(void **state)
{
    const struct {
        int64_t rows, e, k;
        int groups, top;
    } shapes[] = {{0, 4, 2, 0, 0},    {1, 1, 1, 1, 1},    {17, 5, 3, 0, 0},   {33, 8, 8, 4, 4},
                  {40, 64, 6, 8, 3},  {9, 130, 1, 10, 2}, {20, 32, 4, 32, 7}, {3, 200, 9, 0, 0},
                  {2, 512, 10, 8, 4}, {2, 640, 5, 0, 0},  {3, 70, 33, 0, 0}};

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (int flags = 0; flags < (shapes[i].groups > 1 ? 32 : 16); flags++) {
            call c = {.n = {.t = array_types[flags & 1],
                            .rows = shapes[i].rows,
                            .e = shapes[i].e,
                            .k = shapes[i].k,
                            .renormalise = (flags & 2) != 0,
                            .sigmoid = (flags & 4) != 0,
                            .groups = shapes[i].groups,
                            .top_groups = shapes[i].top,
                            .scale = flags & 8 ? 2.5f : 1.0f,
                            .group_max = (flags & 16) != 0}};
            float *bias;

            make(&c);
            bias = c.bias;
            if ((flags & 8) == 0)
                c.bias = NULL;
            check_all(&c);
            c.bias = bias;
            release(&c);
        }
}

/* Equal logits go to the lower expert; NaN chooses distinct experts inside the range. */
static void test_ties_and_nan(void **state)
{
    enum { E = 6, K = 3 };
    call c = {.n = {.t = D9D_F32, .rows = 5, .e = E, .k = K, .renormalise = true, .scale = 1}};
    float *x, *bias;

    (void)state;
    make(&c);
    x = c.logits;
    bias = c.bias;
    c.bias = NULL;
    for (int i = 0; i < 5 * E; i++)
        x[i] = i < E ? 1.0f : i < 2 * E ? (i % 2 ? 2.0f : 1.0f) : NAN;
    x[2 * E + 1] = 4.0f;
    for (int i = 3 * E; i < 4 * E; i++)
        x[i] = i == 3 * E + 2 ? INFINITY : 0.0f;
    for (int i = 4 * E; i < 5 * E; i++)
        x[i] = -INFINITY;
    for (int groups = 0; groups <= 3; groups += 3) {
        c.n.groups = groups;
        c.n.top_groups = groups > 0 ? 2 : 0;
        run_router(&c);
        for (int j = 0; j < K; j++)
            assert_int_equal(c.expert[j], j);
        for (int j = 0; j < K && groups == 0; j++)
            assert_int_equal(c.expert[K + j], 2 * j + 1);
        for (int r = 2; r < 5; r++)
            for (int j = 0; j < K; j++) {
                assert_in_range(c.expert[r * K + j], 0, E - 1);
                for (int o = 0; o < j; o++)
                    assert_int_not_equal(c.expert[r * K + j], c.expert[r * K + o]);
            }
    }
    c.bias = bias;
    release(&c);
}

/* Up where there is less than the mean, down where there is more, not at all where it is equal. */
static void test_bias(void **state)
{
    const double load[] = {3, 9, 6, 6, 0, 12};
    const float one = 1.0f, none = NAN, rate = 0.25f;
    float bias[] = {0, 0.5f, 1, -1, 2, 0};
    const d9d_kernels *k = host_kernels();

    (void)state;
    assert_int_equal(k->moe->router_bias(NULL, bias, load, &one, rate, 0, 6, 6), D9D_OK);
    assert_memory_equal(bias, ((float[]){0.25f, 0.25f, 1, -1, 2.25f, -0.25f}), sizeof(bias));
    assert_int_equal(k->moe->router_bias(NULL, bias, load, &none, rate, 0, 6, 6), D9D_OK);
    assert_memory_equal(bias, ((float[]){0.25f, 0.25f, 1, -1, 2.25f, -0.25f}), sizeof(bias));
    /* A part of them: those of experts 4 and 5. */
    assert_int_equal(k->moe->router_bias(NULL, bias, load, &one, rate, 4, 2, 6), D9D_OK);
    assert_memory_equal(bias, ((float[]){0.5f, 0, 1, -1, 2.25f, -0.25f}), sizeof(bias));
    assert_int_equal(k->moe->router_bias(NULL, bias, load, &one, rate, 6, 0, 6), D9D_OK);
}

static void test_bad_calls(void **state)
{
    const d9d_router_dims many = {D9D_F32, 1, 2, 3, false, true, 0, 0, 1, false},
                          groups = {D9D_F32, 1, 4, 3, false, true, 2, 1, 1, false},
                          uneven = {D9D_F32, 1, 4, 1, false, true, 3, 1, 1, false};
    const d9d_router_dims *const bad[] = {&many, &groups, &uneven};
    int32_t out[4];
    float f[4] = {0};

    (void)state;
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(host_kernels()->moe->router(NULL, bad[i], f, f, out, f, NULL), D9D_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_router),
        cmocka_unit_test(test_ties_and_nan),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_bad_calls),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
