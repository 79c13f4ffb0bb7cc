/* The next token of rows of logits, compared with a slow one that sorts. */
#include "support/arrays.h"
#include "support/host_kernels.h"
#include "support/unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef d9d_sample_tokens_args args;

/* --- calls ---------------------------------------------------------------------------------- */

typedef struct sampled {
    int32_t *token;
    float *largest;
    double *stats;
    int64_t *draw;
} sampled;

static void *alloc(size_t bytes)
{
    void *p = calloc(1, bytes > 0 ? bytes : 1);

    assert_non_null(p);
    return p;
}

/* Row i draws number 17 + i of stream 5 i. */
static sampled sample_with(const d9d_kernels *k, args a)
{
    sampled s = {alloc((size_t)a.m * sizeof(int32_t)), alloc((size_t)a.m * sizeof(float)),
                 alloc((size_t)a.m * 2 * sizeof(double)), alloc((size_t)a.m * 2 * sizeof(int64_t))};

    for (int64_t i = 0; i < a.m; i++) {
        s.draw[2 * i] = 5 * i;
        s.draw[2 * i + 1] = 17 + i;
    }
    a.token = s.token;
    a.largest = s.largest;
    a.stats = s.stats;
    a.draw = s.draw;
    assert_ok(k->elementwise->sample_tokens(NULL, &a));
    return s;
}

static sampled sample(args a)
{
    return sample_with(host_kernels(), a);
}

static void sampled_free(sampled *s)
{
    free(s->token);
    free(s->largest);
    free(s->stats);
    free(s->draw);
}

/* --- the slow one ---------------------------------------------------------------------------- */

typedef struct slow_token {
    float x;
    int64_t i;
} slow_token;

static int is_less_likely(const void *a, const void *b)
{
    const slow_token *p = a, *q = b;

    return p->x != q->x ? (p->x < q->x) - (p->x > q->x) : (p->i > q->i) - (p->i < q->i);
}

typedef struct slow_row {
    double *weight; /* [n], 0: does not remain */
    double log_sum, entropy, largest;
    bool border; /* rounding decides what remains */
} slow_row;

#define NEAR 1e-9

static void slow_limit(const args *a, const slow_token *order, slow_row *r)
{
    const int64_t most = a->top_k > 0 && a->top_k < a->n ? a->top_k : a->n;
    double sum = 0, above = 0;
    int64_t i;

    for (i = 0; i < most; i++)
        sum += r->weight[order[i].i];
    for (i = 0; i < most; i++) {
        const double off = above - a->top_p * sum;

        if (a->top_p < 1 && i > 0 && fabs(off) < NEAR * sum)
            r->border = true;
        if (a->top_p < 1 && i > 0 && off >= 0)
            break;
        above += r->weight[order[i].i];
    }
    for (; i < a->n; i++)
        r->weight[order[i].i] = 0;
    for (i = 0; i < a->n; i++) {
        r->border |= a->min_p > 0 && r->weight[i] != 1 && fabs(r->weight[i] - a->min_p) < NEAR;
        if (r->weight[i] < a->min_p)
            r->weight[i] = 0;
    }
}

static slow_row slow_weigh(const args *a, const float *x)
{
    const double t = a->temperature > 0 ? a->temperature : 1;
    slow_row r = {alloc((size_t)a->n * sizeof(double)), 0, 0, -INFINITY, false};
    slow_token *order = alloc((size_t)a->n * sizeof(*order));
    double sum = 0, moment = 0;

    for (int64_t i = 0; i < a->n; i++)
        r.largest = x[i] > r.largest ? (double)x[i] : r.largest;
    for (int64_t i = 0; i < a->n; i++) {
        const double z = ((double)x[i] - r.largest) / t;

        order[i] = (slow_token){x[i], i};
        r.weight[i] = exp(z);
        sum += r.weight[i];
        moment += r.weight[i] > 0 ? r.weight[i] * z : 0;
    }
    r.log_sum = log(sum);
    r.entropy = log(sum) - moment / sum;
    qsort(order, (size_t)a->n, sizeof(*order), is_less_likely);
    slow_limit(a, order, &r);
    free(order);
    return r;
}

/* True if `token` is the row's, or rounding decides. */
static bool slow_accepts(const args *a, slow_row *r, d9d_rng rng, int64_t position, int32_t token)
{
    const double share = (double)d9d_rng_u64(rng, (uint64_t)position) * 0x1p-64;
    double sum = 0, until = 0;

    if (a->temperature == 0)
        return token >= 0 && token < a->n && r->weight[token] == 1;
    for (int64_t i = 0; i < a->n; i++)
        sum += r->weight[i];
    for (int64_t i = 0; i < token; i++)
        until += r->weight[i];
    return share * sum >= until - NEAR * sum &&
           share * sum <= until + r->weight[token] + NEAR * sum;
}

static void expect_slow(args a)
{
    sampled s = sample(a);
    /* A weight is off by half a unit, times its logarithm by as many of these. */
    const double off = 1e-12 + (double)a.n * 0x1p-43;
    int64_t borders = 0;

    for (int64_t i = 0; i < a.m; i++) {
        const float *x = a.x + i * a.n;
        const double t = a.temperature > 0 ? a.temperature : 1;
        slow_row r = slow_weigh(&a, x);
        const d9d_rng rng = {a.seed, (uint64_t)s.draw[2 * i]};

        assert_in_range(s.token[i], 0, a.n - 1);
        assert_true((double)s.largest[i] == r.largest);
        borders += r.border;
        if (!r.border && !slow_accepts(&a, &r, rng, s.draw[2 * i + 1], s.token[i]))
            fail_msg("row %lld of %lld: token %d, temperature %g, top_k %lld, top_p %g, min_p %g",
                     (long long)i, (long long)a.n, s.token[i], a.temperature, (long long)a.top_k,
                     a.top_p, a.min_p);
        assert_true(fabs(s.stats[2 * i] - (((double)x[s.token[i]] - r.largest) / t - r.log_sum)) <=
                    off);
        assert_true(fabs(s.stats[2 * i + 1] - r.entropy) <= 64 * off);
        free(r.weight);
    }
    assert_true(borders <= a.m / 4);
    sampled_free(&s);
}

/* --- rows ------------------------------------------------------------------------------------ */

/* Logits as models give them; many are equal if `step` is above 0, and each ninth may not be. */
static float *rows_make(int64_t m, int64_t n, uint64_t seed, double scale, float step)
{
    float *x = array_random(D9D_F32, m * n, seed, scale);

    for (int64_t i = 0; i < m * n && step > 0; i++)
        x[i] = i % 9 == 4 && i % n != 0 ? -INFINITY : step * roundf(x[i] / step);
    return x;
}

static const args limits[] = {
    {.temperature = 1, .top_p = 1},
    {.temperature = 0.7, .top_p = 1, .min_p = 0.05},
    {.temperature = 1, .top_k = 1, .top_p = 1},
    {.temperature = 1.5, .top_k = 20, .top_p = 1},
    {.temperature = 1, .top_k = 1 << 20, .top_p = 0.9},
    {.temperature = 0.6, .top_k = 21, .top_p = 0.95},
    {.temperature = 1, .top_p = 1e-9},
    {.temperature = 1, .top_p = 0},
    {.temperature = 1, .top_p = 0.35},
    {.temperature = 2, .top_k = 7, .top_p = 0.8, .min_p = 0.1},
    {.temperature = 1, .top_p = 0.99, .min_p = 1},
    {.temperature = 0.01, .top_p = 0.97},
    {.temperature = 1e4, .top_k = 300, .top_p = 0.51},
    {.temperature = 0, .top_k = 3, .top_p = 0.5},
};
enum { N_LIMITS = sizeof(limits) / sizeof(limits[0]) };

static void expect_limits(int64_t m, int64_t n, double scale, float step)
{
    float *x = rows_make(m, n, (uint64_t)(n + m), scale, step);

    for (size_t i = 0; i < N_LIMITS; i++) {
        args a = limits[i];

        a.seed = 40 + i;
        a.m = m;
        a.n = n;
        a.x = x;
        expect_slow(a);
    }
    free(x);
}

static void random_rows_of_any_length(void **state)
{
    static const int64_t sizes[] = {1, 2, 3, 31, 257, 1000, 4095, 4097, 5003};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        expect_limits(5, sizes[i], 4, 0);
        expect_limits(3, sizes[i], 4, 0.25f);
    }
}

static void one_row_and_many(void **state)
{
    (void)state;
    if (!unit_is_wrapped()) {
        expect_limits(1, 151936, 3, 0);
        expect_limits(2, 40961, 3, 0.125f);
    }
    expect_limits(64, 333, 2, 0);
    expect_limits(64, 97, 1, 1);
}

/* Logits that are all equal, and of any magnitude. */
static void flat_and_steep_rows(void **state)
{
    static const float values[] = {0, -3e38f, 3e38f, 1e-40f, -1e-40f, -0.0f};

    (void)state;
    for (size_t v = 0; v < sizeof(values) / sizeof(values[0]); v++)
        for (size_t i = 0; i < N_LIMITS; i++) {
            enum { N = 101 };
            float x[2 * N];
            args a = limits[i];

            for (int k = 0; k < 2 * N; k++)
                x[k] = k < N || k % 3 > 0 ? values[v] : 0;
            a.x = x;
            a.m = 2;
            a.n = N;
            expect_slow(a);
        }
}

/* --- what a row depends on ------------------------------------------------------------------- */

/* Row i as the only one of a call, with its own random number. */
static void expect_alone(const args *a, const sampled *s, int64_t i)
{
    args one = *a;
    int32_t token = -1;
    float largest;
    double stats[2];

    one.x = a->x + i * a->n;
    one.m = 1;
    one.draw = s->draw + 2 * i;
    one.token = &token;
    one.largest = &largest;
    one.stats = i % 2 == 0 ? stats : NULL;
    assert_ok(host_kernels()->elementwise->sample_tokens(NULL, &one));
    assert_int_equal(token, s->token[i]);
    assert_memory_equal(&largest, &s->largest[i], sizeof(largest));
    if (i % 2 == 0)
        assert_memory_equal(stats, s->stats + 2 * i, sizeof(stats));
}

static void a_row_is_the_same_alone(void **state)
{
    enum { M = 9, N = 20011 };
    float *x = rows_make(M, N, 3, 3, 0);

    (void)state;
    x[4 * N + 77] = NAN; /* what another row has does not count */
    for (size_t l = 0; l < N_LIMITS; l++) {
        args a = limits[l];
        sampled s;

        a.x = x;
        a.m = M;
        a.n = N;
        s = sample(a);
        for (int64_t i = 0; i < M; i++)
            expect_alone(&a, &s, i);
        sampled_free(&s);
    }
    free(x);
}

/* The reference has the same tokens; logarithms may be another library's. */
static void every_processor_has_the_same_tokens(void **state)
{
    enum { M = 64, N = 32003 };
    float *x = rows_make(M, N, 5, 3, 0);

    (void)state;
    for (size_t l = 0; l < N_LIMITS; l++) {
        args a = limits[l];
        sampled here, there;

        a.x = x;
        a.m = M;
        a.n = N;
        a.seed = l;
        here = sample_with(d9d_kernels_cpu(), a);
        there = sample(a);
        assert_memory_equal(here.token, there.token, M * sizeof(*here.token));
        assert_memory_equal(here.largest, there.largest, M * sizeof(*here.largest));
        for (int64_t i = 0; i < 2 * M; i++)
            assert_true(fabs(here.stats[i] - there.stats[i]) <= 1e-12 * (1 + fabs(here.stats[i])));
        sampled_free(&here);
        sampled_free(&there);
    }
    free(x);
}

static void other_numbers_draw_other_tokens(void **state)
{
    enum { M = 100, N = 64 };
    float *x = alloc(M * N * sizeof(*x));
    args a = {.temperature = 1, .top_p = 1, .x = x, .m = M, .n = N};
    sampled s, t;
    int other_seed = 0, other_row = 0;

    (void)state;
    s = sample(a);
    a.seed = 1;
    t = sample(a);
    for (int i = 0; i < M; i++) {
        other_seed += s.token[i] != t.token[i];
        other_row += s.token[i] != s.token[(i + 1) % M];
    }
    assert_true(other_seed > 80 && other_row > 80);
    sampled_free(&s);
    sampled_free(&t);
    free(x);
}

/* Pearson's chi-square of 20000 draws from 40 tokens of which 31 remain, against the 0.9999
 * quantile of 30 degrees of freedom. */
static void draws_have_the_right_frequencies(void **state)
{
    enum { M = 20000, N = 40, LEFT = 31 };
    float *x = alloc((size_t)M * N * sizeof(*x));
    const args a = {
        .temperature = 0.8, .top_k = LEFT, .top_p = 1, .seed = 11, .x = x, .m = M, .n = N};
    int count[N] = {0};
    double sum = 0, chi = 0;
    slow_row r;
    sampled s;

    (void)state;
    for (int64_t i = 0; i < (int64_t)M * N; i++)
        x[i] = (float)(i % N * 7 % N) * 0.05f;
    s = sample(a);
    for (int64_t i = 0; i < M; i++)
        count[s.token[i]]++;
    r = slow_weigh(&a, x);
    for (int64_t i = 0; i < N; i++)
        sum += r.weight[i];
    for (int64_t i = 0; i < N; i++) {
        const double want = M * r.weight[i] / sum;

        assert_true(want > 0 || count[i] == 0);
        chi += want > 0 ? (count[i] - want) * (count[i] - want) / want : 0;
    }
    assert_true(chi < 67.6);
    free(r.weight);
    sampled_free(&s);
    free(x);
}

/* Shares of 4000 draws against the weights that must be left, to four standard deviations. */
static void shares(args a, const float *logits, const double *want)
{
    enum { M = 4000 };
    float *x = alloc((size_t)(M * a.n) * sizeof(*x));
    int count[16] = {0};
    sampled s;

    for (int64_t i = 0; i < M * a.n; i++)
        x[i] = logits[i % a.n];
    a.x = x;
    a.m = M;
    a.seed = 3;
    s = sample(a);
    for (int64_t i = 0; i < M; i++)
        count[s.token[i]]++;
    for (int64_t i = 0; i < a.n; i++) {
        if (want[i] == 0)
            assert_int_equal(count[i], 0);
        assert_true(fabs(count[i] - M * want[i]) <= 4 * sqrt(M * want[i]) + 1e-9);
    }
    sampled_free(&s);
    free(x);
}

static void limits_leave_the_right_shares(void **state)
{
    /* Probabilities 0.1 0.4 0.2 0.2 0.1. */
    const float l[] = {logf(0.1f), logf(0.4f), logf(0.2f), logf(0.2f), logf(0.1f)};
    const struct {
        args a;
        double want[5];
    } rows[] = {
        {{.temperature = 1, .top_p = 1}, {0.1, 0.4, 0.2, 0.2, 0.1}},
        {{.temperature = 0.5, .top_p = 1},
         {0.01 / 0.26, 0.16 / 0.26, 0.04 / 0.26, 0.04 / 0.26, 0.01 / 0.26}},
        {{.temperature = 1, .top_p = 1, .top_k = 2}, {0, 2. / 3, 1. / 3, 0, 0}},
        {{.temperature = 1, .top_p = 1, .top_k = 3}, {0, 0.5, 0.25, 0.25, 0}},
        {{.temperature = 1, .top_p = 1, .top_k = 9}, {0.1, 0.4, 0.2, 0.2, 0.1}},
        {{.temperature = 1, .top_p = 0.3}, {0, 1, 0, 0, 0}},
        {{.temperature = 1, .top_p = 0.55}, {0, 2. / 3, 1. / 3, 0, 0}},
        {{.temperature = 1, .top_p = 0.85}, {1. / 9, 4. / 9, 2. / 9, 2. / 9, 0}},
        /* The share is one of what top_k left: 0.4 of 0.8. */
        {{.temperature = 1, .top_p = 0.45, .top_k = 3}, {0, 1, 0, 0, 0}},
        {{.temperature = 1, .top_p = 0.55, .top_k = 3}, {0, 2. / 3, 1. / 3, 0, 0}},
        {{.temperature = 1, .top_p = 1, .top_k = 1}, {0, 1, 0, 0, 0}},
        /* The most likely token remains whatever the share. */
        {{.temperature = 1, .top_p = 0}, {0, 1, 0, 0, 0}},
        /* At least so much of the largest: 0.4 of 0.4 is 0.16. */
        {{.temperature = 1, .top_p = 1, .min_p = 0.4}, {0, 0.5, 0.25, 0.25, 0}},
        {{.temperature = 1, .top_p = 1, .min_p = 0.2}, {0.1, 0.4, 0.2, 0.2, 0.1}},
        {{.temperature = 1, .top_p = 1, .min_p = 1}, {0, 1, 0, 0, 0}},
        {{.temperature = 1, .top_p = 1, .top_k = 2, .min_p = 0.4}, {0, 2. / 3, 1. / 3, 0, 0}},
        /* At the temperature, where 0.5 of the largest is 0.25 of it. */
        {{.temperature = 0.5, .top_p = 1, .min_p = 0.4}, {0, 1, 0, 0, 0}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        args a = rows[i].a;

        a.n = 5;
        shares(a, l, rows[i].want);
    }
}

/* --- what is no row -------------------------------------------------------------------------- */

static void no_number_is_found_by_its_token(void **state)
{
    static const float x[] = {0, 1,        NAN, NAN,       1,         2,
                              0, INFINITY, 2,   -INFINITY, -INFINITY, -INFINITY};
    static const int32_t want[] = {2, 0, 1, 0};

    (void)state;
    for (size_t l = 0; l < N_LIMITS; l++) {
        args a = limits[l];
        sampled s;

        a.x = x;
        a.m = 4;
        a.n = 3;
        s = sample(a);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(s.token[i], want[i]);
            assert_false(isfinite(s.largest[i]));
            assert_true(isnan(s.stats[2 * i]) && isnan(s.stats[2 * i + 1]));
        }
        sampled_free(&s);
    }
}

static void lengths_that_cannot_be_are_refused(void **state)
{
    args a = {.temperature = 1, .top_p = 1, .m = 1, .n = (1 << 20) + 1};

    (void)state;
    assert_fails(d9d_kernels_cpu()->elementwise->sample_tokens(NULL, &a), D9D_EINVAL,
                 "sample_tokens: 1048577 tokens, possible are 1 to 1048576");
    a.stats = (double[2]){0};
    a.temperature = 0;
    assert_fails(d9d_kernels_cpu()->elementwise->sample_tokens(NULL, &a), D9D_EINVAL,
                 "sample_tokens: 1048577 tokens, possible are 1 to 1048576");
    a.temperature = 1;
    a.n = 0;
    assert_fails(d9d_kernels_cpu()->elementwise->sample_tokens(NULL, &a), D9D_EINVAL,
                 "sample_tokens: 0 tokens, possible are 1 to 1048576");
    a.m = 0;
    assert_ok(host_kernels()->elementwise->sample_tokens(NULL, &a));
}

/* No weights are summed. */
static void the_likeliest_is_taken_of_any_number(void **state)
{
    enum { N = D9D_SAMPLE_MAX_VOCAB + 1 };
    float *x = calloc(N, sizeof(*x)), largest = 0;
    int32_t token = 0;
    const args a = {.top_p = 1, .x = x, .token = &token, .largest = &largest, .m = 1, .n = N};

    (void)state;
    assert_non_null(x);
    x[N - 1] = 1;
    assert_ok(host_kernels()->elementwise->sample_tokens(NULL, &a));
    assert_int_equal(token, N - 1);
    assert_true(largest == 1);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_rows_of_any_length),
        cmocka_unit_test(one_row_and_many),
        cmocka_unit_test(flat_and_steep_rows),
        cmocka_unit_test(a_row_is_the_same_alone),
        cmocka_unit_test(every_processor_has_the_same_tokens),
        cmocka_unit_test(other_numbers_draw_other_tokens),
        cmocka_unit_test(draws_have_the_right_frequencies),
        cmocka_unit_test(limits_leave_the_right_shares),
        cmocka_unit_test(no_number_is_found_by_its_token),
        cmocka_unit_test(lengths_that_cannot_be_are_refused),
        cmocka_unit_test(the_likeliest_is_taken_of_any_number),
    };

    return cmocka_run_group_tests_name("kernel_sample_tokens", tests, NULL, NULL);
}
