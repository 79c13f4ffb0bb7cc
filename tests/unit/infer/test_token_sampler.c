/* test_token_sampler.c - the next tokens of sequences, on the device. */
#include "support/unit.h"
#include "support/unit_device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/rng.h"
#include "infer/token_sampler.h"

typedef d9di_token_sampler_opts opts;

enum { V = 5, MAX_N = 8, MAX_IDS = 16 };

/* A sampler, and on the device what a call of it reads. */
typedef struct rig {
    d9d_device *dev;
    d9di_token_sampler *s;
    d9d_tensor logits, draws, ids, slots, segments;
} rig;

static rig rig_open(opts o, bool keeps)
{
    const d9di_token_sampler_sizes sizes = {
        .vocab = V, .tokens = MAX_N, .slots = MAX_IDS, .keeps = keeps};
    rig r = {.dev = NULL};

    assert_ok(d9d_device_open(unit_device_name(), &r.dev));
    assert_ok(d9di_token_sampler_open(r.dev, &o, &sizes, &r.s));
    return r;
}

static void rig_release_arrays(rig *r)
{
    d9d_tensor *all[] = {&r->logits, &r->draws, &r->ids, &r->slots, &r->segments};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        d9d_tensor_release(all[i]);
}

static void rig_close(rig *r)
{
    rig_release_arrays(r);
    d9di_token_sampler_close(r->s);
    d9d_device_close(r->dev);
}

static void upload(rig *r, d9d_dtype t, int64_t n, const void *host, d9d_tensor *out)
{
    d9d_tensor_release(out);
    assert_ok(d9d_tensor_from_host(r->dev, t, D9D_SHAPE(n), host, out));
}

/* A call of n sequences with `logits` [n, V], one of a sequence of the tokens ids [n_ids]; sequence
 * i draws number `position` of stream i. */
static d9di_token_sampler_call call_make(rig *r, const float *logits, int64_t n, int64_t position,
                                         const int32_t *ids, int64_t n_ids)
{
    int64_t draws[2 * MAX_N] = {0};
    int32_t slots[MAX_IDS] = {0};
    d9d_segment segments[MAX_N] = {{.k = 0, .nk = (int32_t)n_ids}};

    for (int64_t i = 0; i < n; i++) {
        draws[2 * i] = i;
        draws[2 * i + 1] = position;
    }
    for (int32_t i = 0; i < MAX_IDS; i++)
        slots[i] = i;
    upload(r, D9D_F32, n * V, logits, &r->logits);
    upload(r, D9D_I64, 2 * n, draws, &r->draws);
    upload(r, D9D_I32, n_ids > 0 ? n_ids : 1, ids != NULL ? ids : slots, &r->ids);
    upload(r, D9D_I32, n_ids > 0 ? n_ids : 1, slots, &r->slots);
    upload(r, D9D_I32, 4 * n, segments, &r->segments);
    return (d9di_token_sampler_call){.logits = d9d_tensor_data(&r->logits),
                                     .n = n,
                                     .draws = d9d_tensor_data(&r->draws),
                                     .ids = d9d_tensor_data(&r->ids),
                                     .slots = d9d_tensor_data(&r->slots),
                                     .tokens = n_ids,
                                     .segments = d9d_tensor_data(&r->segments)};
}

static d9di_token_sampler_tokens finish(rig *r, int k)
{
    d9di_token_sampler_tokens out;

    assert_ok(d9di_token_sampler_enqueue_readback(r->s, k));
    assert_ok(d9di_token_sampler_wait(r->s, k, &out));
    return out;
}

static d9di_token_sampler_tokens choose(rig *r, const float *logits, int64_t n, int64_t position)
{
    const d9di_token_sampler_call c = call_make(r, logits, n, position, NULL, 1);

    assert_ok(d9di_token_sampler_enqueue(r->s, &c));
    return finish(r, (int)(position % D9DI_SAMPLER_READBACKS));
}

static void cold_takes_the_largest(void **state)
{
    static const float logits[] = {-2, 5, 1, 5, -INFINITY, 1, 5, -INFINITY, 7, 7};
    rig r = rig_open((opts){.top_p = 1}, false);

    (void)state;
    for (int64_t i = 0; i < 4; i++) {
        const d9di_token_sampler_tokens got = choose(&r, logits, 2, i);

        assert_int_equal(got.token[0], 1);
        assert_int_equal(got.token[1], 3);
        assert_true(got.largest[0] == 5 && got.largest[1] == 7);
        assert_null(got.stats);
    }
    rig_close(&r);
}

static void what_is_no_number_is_refused(void **state)
{
    static const struct {
        float logits[V];
        const char *sentence;
    } cases[] = {
        {{0, 1, NAN, 3, 4}, "the logit of token 2 is nan"},
        {{NAN, 1, 2, 3, 4}, "the logit of token 0 is nan"},
        {{0, INFINITY, 2, 3, 4}, "the logit of token 1 is inf"},
        {{-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY}, "the logit of token 0 is -inf"}};

    (void)state;
    for (int warm = 0; warm < 2; warm++) {
        rig r = rig_open((opts){.temperature = warm, .top_p = 0.9, .wants_stats = true}, false);

        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            const d9di_token_sampler_tokens got = choose(&r, cases[i].logits, 1, 0);

            assert_fails(d9di_token_sampler_check_logit((uint32_t)got.token[0], got.largest[0]),
                         D9D_ENUMERIC, cases[i].sentence);
        }
        rig_close(&r);
    }
    assert_ok(d9di_token_sampler_check_logit(3, -7));
}

/* Logits of tokens that were there, once each: divided above 0, multiplied below. */
static void repeated_tokens_are_penalised(void **state)
{
    static const float l[V] = {2, 3, -1, 2.5f, -4};
    static const int32_t ids[] = {1, 1, 2, 1, 4};
    const struct {
        double penalty;
        int64_t n;
        int32_t want;
        double log_sum; /* of the exponentials of what becomes of the logits */
    } rows[] = {
        {1, 5, 1, log(exp(2) + exp(3) + exp(-1) + exp(2.5) + exp(-4))},
        {0, 5, 1, log(exp(2) + exp(3) + exp(-1) + exp(2.5) + exp(-4))},
        {2, 0, 1, log(exp(2) + exp(3) + exp(-1) + exp(2.5) + exp(-4))},
        {2, 2, 3, log(exp(2) + exp(1.5) + exp(-1) + exp(2.5) + exp(-4))},
        {2, 5, 3, log(exp(2) + exp(1.5) + exp(-2) + exp(2.5) + exp(-8))},
        {0.5, 5, 1, log(exp(2) + exp(6) + exp(-.5) + exp(2.5) + exp(-2))},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const double at = rows[i].want == 3 ? 2.5 : rows[i].penalty == 0.5 ? 6 : 3;
        rig r = rig_open(
            (opts){.top_p = 1, .repetition_penalty = rows[i].penalty, .wants_stats = true}, false);
        const d9di_token_sampler_call c = call_make(&r, l, 1, 0, ids, rows[i].n);
        d9di_token_sampler_tokens got;

        assert_ok(d9di_token_sampler_enqueue(r.s, &c));
        got = finish(&r, 0);
        assert_int_equal(got.token[0], rows[i].want);
        assert_true(fabs(got.stats->log_prob - (at - rows[i].log_sum)) < 1e-6);
        rig_close(&r);
    }
}

/* Virtual tokens begin a sequence with ids behind the vocabulary; a token that a call adds joins
 * those of earlier calls, and another row's copy has them all. */
static void history_grows_and_is_copied(void **state)
{
    static const int32_t ids[] = {5, 1 << 30, 0, 1};
    static const float l[V] = {3, 2, 1, 1, 1};
    static const int32_t want[] = {0, 0, 1, 0};
    rig r = rig_open((opts){.top_p = 1, .repetition_penalty = 2}, false);
    d9d_segment copied = {.k = 8, .nk = 3};
    d9di_token_sampler_call c;

    (void)state;
    for (int32_t i = 0; i < 4; i++) { /* a token a call, in its slot */
        const d9d_segment has = {.k = 0, .nk = i + 1};

        c = call_make(&r, l, 1, 0, NULL, 1);
        upload(&r, D9D_I32, 1, &ids[i], &r.ids);
        upload(&r, D9D_I32, 1, &i, &r.slots);
        upload(&r, D9D_I32, 4, &has, &r.segments);
        c.ids = d9d_tensor_data(&r.ids);
        c.slots = d9d_tensor_data(&r.slots);
        c.segments = d9d_tensor_data(&r.segments);
        assert_ok(d9di_token_sampler_enqueue(r.s, &c));
        assert_int_equal(finish(&r, 0).token[0], want[i]);
    }
    assert_ok(d9di_token_sampler_copy(r.s, 0, 8, 3));
    upload(&r, D9D_I32, 4, &copied, &r.segments);
    c.segments = d9d_tensor_data(&r.segments);
    c.tokens = 0;
    assert_ok(d9di_token_sampler_enqueue(r.s, &c));
    assert_int_equal(finish(&r, 0).token[0], want[2]);
    rig_close(&r);
}

/* The kept logits give each sequence the token that a call of its own would. */
static void kept_logits_are_drawn_from_again(void **state)
{
    static const float l[V] = {0, 0.5f, 0.2f, -1, 0.1f}, other[V] = {9, 0, 0, 0, 0};
    static const opts ways[] = {
        {.temperature = 1, .top_p = 1, .wants_stats = true},
        {.temperature = 1, .top_p = 0.9, .top_k = 4, .repetition_penalty = 1.5}};
    int64_t draws[2 * MAX_N];

    (void)state;
    for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
        rig r = rig_open(ways[w], true);
        float repeated[MAX_N * V];
        int32_t want[MAX_N];
        d9di_token_sampler_call c;
        d9di_token_sampler_tokens got;
        int differ = 0;

        for (int i = 0; i < MAX_N; i++) {
            c = call_make(&r, l, 1, 30 + i, NULL, 1);
            assert_ok(d9di_token_sampler_enqueue(r.s, &c));
            want[i] = finish(&r, 0).token[0];
            memcpy(repeated + V * i, other, sizeof(other));
            draws[2 * i] = 0;
            draws[2 * i + 1] = 30 + i;
        }
        c.keeps = true;
        assert_ok(d9di_token_sampler_enqueue(r.s, &c));
        (void)choose(&r, repeated, MAX_N, 1);
        assert_ok(d9di_token_sampler_draw_kept(r.s, draws, MAX_N));
        got = finish(&r, 1);
        for (int i = 0; i < MAX_N; i++) {
            assert_int_equal(got.token[i], want[i]);
            differ += want[i] != want[0];
        }
        assert_true(differ > 0 && got.largest[3] == got.largest[0] && got.largest[0] < 9);
        assert_true((got.stats != NULL) == ways[w].wants_stats);
        rig_close(&r);
    }
}

/* Two readbacks are in flight at a time, and the device has the tokens of the last call. */
static void readbacks_are_of_their_calls(void **state)
{
    static const float first[V] = {0, 9, 0, 0, 0}, second[V] = {0, 0, 0, 9, 0};
    rig r = rig_open((opts){.top_p = 1}, false);
    d9di_token_sampler_tokens a, b;
    d9di_token_sampler_call c = call_make(&r, first, 1, 0, NULL, 1);
    int32_t chosen = -1;

    (void)state;
    assert_ok(d9di_token_sampler_enqueue(r.s, &c));
    assert_ok(d9di_token_sampler_enqueue_readback(r.s, 0));
    c = call_make(&r, second, 1, 0, NULL, 1);
    assert_ok(d9di_token_sampler_enqueue(r.s, &c));
    assert_ok(d9di_token_sampler_enqueue_readback(r.s, 1));
    assert_ok(d9di_token_sampler_wait(r.s, 0, &a));
    assert_ok(d9di_token_sampler_wait(r.s, 1, &b));
    assert_int_equal(a.token[0], 1);
    assert_int_equal(b.token[0], 3);
    assert_ok(d9d_device_download(r.dev, &chosen, d9d_tensor_data(d9di_token_sampler_chosen(r.s)),
                                  sizeof(chosen)));
    assert_ok(d9d_device_sync(r.dev));
    assert_int_equal(chosen, 3);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cold_takes_the_largest),
        cmocka_unit_test(what_is_no_number_is_refused),
        cmocka_unit_test(repeated_tokens_are_penalised),
        cmocka_unit_test(history_grows_and_is_copied),
        cmocka_unit_test(kept_logits_are_drawn_from_again),
        cmocka_unit_test(readbacks_are_of_their_calls),
    };

    return cmocka_run_group_tests_name("token_sampler", tests, NULL, NULL);
}
