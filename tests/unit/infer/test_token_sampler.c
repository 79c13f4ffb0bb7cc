/* test_token_sampler.c - the next token from its logits. */
#include "support/unit.h"

#include <math.h>

#include "infer/token_sampler.h"

typedef d9di_token_sampler_opts opts;

static uint32_t choose(d9di_token_sampler *s, opts o, uint64_t stream, int64_t position,
                       const float *logits, int64_t n)
{
    uint32_t token = UINT32_MAX;

    assert_ok(d9di_token_sampler_sample(s, &o, (d9d_rng){3, stream}, NULL, position, logits, n,
                                        &token, NULL));
    assert_true(token < n);
    return token;
}

static void cold_takes_the_largest(void **state)
{
    static const float logits[] = {-2, 5, 1, 5, -INFINITY};
    const opts cold = {.top_p = 1};
    d9di_token_sampler s = {0};

    (void)state;
    for (int64_t i = 0; i < 4; i++)
        assert_int_equal(choose(&s, cold, 0, i, logits, 5), 1);
    assert_int_equal(choose(&s, cold, 0, 0, logits + 2, 3), 1);
    d9di_token_sampler_release(&s);
}

static void what_is_no_number_is_refused(void **state)
{
    static const float nan_last[] = {0, 1, NAN}, nan_first[] = {NAN, 1, 2};
    static const float inf[] = {0, INFINITY}, none[] = {-INFINITY, -INFINITY};
    static const struct {
        const float *logits;
        int64_t n;
        const char *sentence;
    } cases[] = {{nan_last, 3, "the logit of token 2 is nan"},
                 {nan_first, 3, "the logit of token 0 is nan"},
                 {inf, 2, "the logit of token 1 is inf"},
                 {none, 2, "the logit of token 0 is -inf"}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int warm = 0; warm < 2; warm++) {
            const opts o = {.temperature = warm, .top_p = 1};
            d9di_token_sampler s = {0};
            uint32_t token;

            assert_fails(d9di_token_sampler_sample(&s, &o, (d9d_rng){0, 0}, NULL, 0,
                                                   cases[i].logits, cases[i].n, &token, NULL),
                         D9D_ENUMERIC, cases[i].sentence);
            d9di_token_sampler_release(&s);
        }
}

/* Shares of 4000 draws against the weights that must be left, to four standard deviations. */
static void shares(opts o, const float *logits, int64_t n, const double *want)
{
    enum { DRAWS = 4000 };
    d9di_token_sampler s = {0};
    int count[16] = {0};

    for (int64_t i = 0; i < DRAWS; i++)
        count[choose(&s, o, (uint64_t)(i % 7), i, logits, n)]++;
    for (int64_t i = 0; i < n; i++) {
        const double off = count[i] - DRAWS * want[i];

        if (want[i] == 0)
            assert_int_equal(count[i], 0);
        assert_true(fabs(off) <= 4 * sqrt(DRAWS * want[i]) + 1e-9);
    }
    d9di_token_sampler_release(&s);
}

static void draws_have_the_right_shares(void **state)
{
    /* Probabilities 0.1 0.4 0.2 0.2 0.1. */
    const float l[] = {logf(0.1f), logf(0.4f), logf(0.2f), logf(0.2f), logf(0.1f)};
    const double all[] = {0.1, 0.4, 0.2, 0.2, 0.1};
    const double sharp[] = {0.01 / 0.26, 0.16 / 0.26, 0.04 / 0.26, 0.04 / 0.26, 0.01 / 0.26};
    const double two[] = {0, 2. / 3, 1. / 3, 0, 0}, three[] = {0, 0.5, 0.25, 0.25, 0};
    const double one[] = {0, 1, 0, 0, 0}, four[] = {1. / 9, 4. / 9, 2. / 9, 2. / 9, 0};

    (void)state;
    shares((opts){.temperature = 1, .top_p = 1}, l, 5, all);
    shares((opts){.temperature = 0.5, .top_p = 1}, l, 5, sharp);
    shares((opts){.temperature = 1, .top_p = 1, .top_k = 2}, l, 5, two);
    shares((opts){.temperature = 1, .top_p = 1, .top_k = 3}, l, 5, three);
    shares((opts){.temperature = 1, .top_p = 1, .top_k = 9}, l, 5, all);
    shares((opts){.temperature = 1, .top_p = 0.3}, l, 5, one);
    shares((opts){.temperature = 1, .top_p = 0.55}, l, 5, two);
    shares((opts){.temperature = 1, .top_p = 0.85}, l, 5, four);
    /* The share is one of what top_k left: 0.4 of 0.8. */
    shares((opts){.temperature = 1, .top_p = 0.45, .top_k = 3}, l, 5, one);
    shares((opts){.temperature = 1, .top_p = 0.55, .top_k = 3}, l, 5, two);
    shares((opts){.temperature = 1, .top_p = 1, .top_k = 1}, l, 5, one);
    /* The most likely token remains whatever the share. */
    shares((opts){.temperature = 1, .top_p = 0}, l, 5, one);
    /* At least so much of the largest: 0.4 of 0.4 is 0.16. */
    shares((opts){.temperature = 1, .top_p = 1, .min_p = 0.4}, l, 5, three);
    shares((opts){.temperature = 1, .top_p = 1, .min_p = 0.2}, l, 5, all);
    shares((opts){.temperature = 1, .top_p = 1, .min_p = 1}, l, 5, one);
    shares((opts){.temperature = 1, .top_p = 1, .top_k = 2, .min_p = 0.4}, l, 5, two);
    /* At the temperature, where 0.5 of the largest is 0.25 of it. */
    shares((opts){.temperature = 0.5, .top_p = 1, .min_p = 0.4}, l, 5, one);
}

/* Logits of tokens that were there, once each: divided above 0, multiplied below. */
static void repeated_tokens_are_penalised(void **state)
{
    static const float l[] = {2, 3, -1, 2.5f, -4};
    static const uint32_t ids[] = {1, 1, 2, 1, 4};
    const struct {
        double penalty;
        int64_t n;
        uint32_t want;
        double log_sum; /* of the exponentials of what becomes of the logits */
    } rows[] = {
        {1, 5, 1, log(exp(2) + exp(3) + exp(-1) + exp(2.5) + exp(-4))},
        {0, 5, 1, log(exp(2) + exp(3) + exp(-1) + exp(2.5) + exp(-4))},
        {2, 0, 1, log(exp(2) + exp(3) + exp(-1) + exp(2.5) + exp(-4))},
        {2, 2, 3, log(exp(2) + exp(1.5) + exp(-1) + exp(2.5) + exp(-4))},
        {2, 5, 3, log(exp(2) + exp(1.5) + exp(-2) + exp(2.5) + exp(-8))},
        {0.5, 5, 1, log(exp(2) + exp(6) + exp(-.5) + exp(2.5) + exp(-2))},
    };
    d9di_token_sampler s = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const opts o = {.top_p = 1, .repetition_penalty = rows[i].penalty};
        const bool plain = rows[i].penalty == 0 || rows[i].penalty == 1;
        const double at = rows[i].want == 3 ? 2.5 : rows[i].penalty == 0.5 ? 6 : 3;
        d9di_token_sampler_stats got;
        uint32_t token;

        assert_int_equal(d9di_token_sampler_is_argmax(&o), plain);
        assert_ok(
            d9di_token_sampler_sample(&s, &o, (d9d_rng){0, 0}, ids, rows[i].n, l, 5, &token, &got));
        assert_int_equal(token, rows[i].want);
        assert_true(fabs(got.log_prob - (at - rows[i].log_sum)) < 1e-6);
    }
    d9di_token_sampler_release(&s);
}

/* Virtual tokens begin a sequence with ids behind the vocabulary. */
static void virtual_tokens_are_not_penalised(void **state)
{
    const uint32_t ids[] = {5, UINT32_C(1) << 30, 0};
    const float l[] = {3, 2, 1, 1, 1};
    const opts o = {.top_p = 1, .repetition_penalty = 2};
    d9di_token_sampler s = {0};
    uint32_t token;

    (void)state;
    assert_ok(d9di_token_sampler_sample(&s, &o, (d9d_rng){0, 0}, ids, 2, l, 5, &token, NULL));
    assert_int_equal(token, 0);
    assert_ok(d9di_token_sampler_sample(&s, &o, (d9d_rng){0, 0}, ids, 3, l, 5, &token, NULL));
    assert_int_equal(token, 1);
    d9di_token_sampler_release(&s);
}

/* The same numbers give the same token, other streams and positions others. */
static void draws_are_numbers_of_seed_stream_and_position(void **state)
{
    float flat[64] = {0};
    const opts o = {.temperature = 1, .top_p = 1};
    d9di_token_sampler a = {0}, b = {0};
    int other_stream = 0, other_position = 0;

    (void)state;
    for (int64_t i = 0; i < 100; i++) {
        const uint32_t token = choose(&a, o, 1, i, flat, 64);

        choose(&b, o, 9, i, flat, 33); /* what was drawn before does not count */
        assert_int_equal(choose(&b, o, 1, i, flat, 64), token);
        other_stream += choose(&b, o, 2, i, flat, 64) != token;
        other_position += choose(&b, o, 1, i + 100, flat, 64) != token;
    }
    assert_true(other_stream > 80 && other_position > 80);
    d9di_token_sampler_release(&a);
    d9di_token_sampler_release(&b);
}

/* Of the whole vocabulary at the temperature, whatever is left of it to draw from. */
static void stats_are_those_of_the_softmax(void **state)
{
    const float l[] = {logf(0.1f), logf(0.4f), logf(0.2f), logf(0.3f), -INFINITY};
    const opts all[] = {{.temperature = 1, .top_p = 1},
                        {.temperature = 0.5, .top_p = 1},
                        {.temperature = 1, .top_p = 1, .top_k = 1},
                        {.temperature = 0, .top_p = 1}};

    (void)state;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        const double power = all[i].temperature == 0.5 ? 2 : 1;
        d9di_token_sampler s = {0};
        d9di_token_sampler_stats got;
        double sum = 0, entropy = 0;
        uint32_t token;

        assert_ok(
            d9di_token_sampler_sample(&s, &all[i], (d9d_rng){5, i}, NULL, 3, l, 5, &token, &got));
        for (int k = 0; k < 4; k++)
            sum += pow(exp((double)l[k]), power);
        for (int k = 0; k < 4; k++) {
            const double p = pow(exp((double)l[k]), power) / sum;

            entropy -= p * log(p);
        }
        assert_true(fabs(got.entropy - entropy) < 1e-6);
        assert_true(fabs(got.log_prob - (power * (double)l[token] - log(sum))) < 1e-6);
        d9di_token_sampler_release(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cold_takes_the_largest),
        cmocka_unit_test(what_is_no_number_is_refused),
        cmocka_unit_test(draws_have_the_right_shares),
        cmocka_unit_test(repeated_tokens_are_penalised),
        cmocka_unit_test(virtual_tokens_are_not_penalised),
        cmocka_unit_test(draws_are_numbers_of_seed_stream_and_position),
        cmocka_unit_test(stats_are_those_of_the_softmax),
    };

    return cmocka_run_group_tests_name("choose", tests, NULL, NULL);
}
