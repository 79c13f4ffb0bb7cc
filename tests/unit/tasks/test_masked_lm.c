/* test_masked_lm.c - which tokens are masked: shares, special tokens, and that nothing but seed,
 * sample and position decides. */
#include "support/unit.h"

#include <math.h>
#include <string.h>

#include "d9d/tasks/masked_lm.h"

enum { VOCAB = 1000, MASK = 4, SPECIAL = 5, LENGTH = 20000 };

static const bool special[SPECIAL] = {true, true, true, true, true};
static const d9d_masked_lm_opts bert = {.mlm_probability = 0.3,
                                        .mask_replace_prob = 0.8,
                                        .random_replace_prob = 0.1,
                                        .seed = 7,
                                        .mask_id = MASK,
                                        .special = special,
                                        .n_special = SPECIAL};

typedef struct sequence {
    int32_t before[LENGTH], ids[LENGTH], labels[LENGTH];
} sequence;

/* Every seventh token is special. */
static void mask(const d9d_masked_lm_opts *o, int64_t sample, int64_t n, sequence *s)
{
    for (int64_t i = 0; i < n; i++)
        s->before[i] = (int32_t)(i % 7 == 3 ? i % SPECIAL : SPECIAL + i * 7919 % (VOCAB - SPECIAL));
    memcpy(s->ids, s->before, (size_t)n * sizeof(*s->ids));
    memset(s->labels, 0x11, (size_t)n * sizeof(*s->labels));
    d9d_masked_lm_mask(o, sample, VOCAB, n, s->ids, s->labels);
}

/* Counts within four standard deviations of what they should be. */
static void assert_share(int64_t got, int64_t of, double share)
{
    const double want = share * (double)of, sd = sqrt(want * (1 - share));

    if (fabs((double)got - want) > 4 * sd)
        fail_msg("%lld of %lld, expected %g", (long long)got, (long long)of, want);
}

static void shares_are_those_of_the_options(void **state)
{
    int64_t plain = 0, chosen = 0, masked = 0, random = 0, same = 0;
    sequence s;

    (void)state;
    mask(&bert, 3, LENGTH, &s);
    for (int i = 0; i < LENGTH; i++) {
        const bool is_special = s.before[i] < SPECIAL;

        plain += !is_special;
        if (s.labels[i] == -100) {
            assert_int_equal(s.ids[i], s.before[i]);
            continue;
        }
        assert_false(is_special);
        assert_int_equal(s.labels[i], s.before[i]);
        assert_in_range(s.ids[i], 0, VOCAB - 1);
        chosen++;
        masked += s.ids[i] == MASK;
        same += s.ids[i] == s.before[i];
        random += s.ids[i] != MASK && s.ids[i] != s.before[i];
    }
    assert_share(chosen, plain, 0.3);
    assert_share(masked, chosen, 0.8);
    assert_share(random, chosen, 0.1);
    assert_share(same, chosen, 0.1);
}

static void a_share_of_one_is_all_and_of_zero_none(void **state)
{
    d9d_masked_lm_opts o = bert;
    sequence s;

    (void)state;
    o.mlm_probability = o.mask_replace_prob = 1;
    o.random_replace_prob = 0;
    mask(&o, 0, 1000, &s);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(s.ids[i], s.before[i] < SPECIAL ? s.before[i] : MASK);
    o.mask_replace_prob = 0;
    mask(&o, 0, 1000, &s);
    assert_memory_equal(s.ids, s.before, 1000 * sizeof(*s.ids));
    o.mlm_probability = 0;
    mask(&o, 0, 1000, &s);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(s.labels[i], -100);
}

/* The beginning of a longer text is masked as a shorter one; other samples and seeds otherwise. */
static void a_position_is_masked_by_seed_sample_and_number_alone(void **state)
{
    d9d_masked_lm_opts other = bert;
    sequence a, b;

    (void)state;
    mask(&bert, 5, 1000, &a);
    mask(&bert, 5, 300, &b);
    assert_memory_equal(a.ids, b.ids, 300 * sizeof(*a.ids));
    assert_memory_equal(a.labels, b.labels, 300 * sizeof(*a.labels));
    mask(&bert, 6, 1000, &b);
    assert_memory_not_equal(a.labels, b.labels, 1000 * sizeof(*a.labels));
    mask(&bert, 5 + (INT64_C(1) << 32), 1000, &b);
    assert_memory_not_equal(a.labels, b.labels, 1000 * sizeof(*a.labels));
    other.seed += UINT64_C(1) << 32;
    mask(&other, 5, 1000, &b);
    assert_memory_not_equal(a.labels, b.labels, 1000 * sizeof(*a.labels));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_those_of_the_options),
        cmocka_unit_test(a_share_of_one_is_all_and_of_zero_none),
        cmocka_unit_test(a_position_is_masked_by_seed_sample_and_number_alone),
    };

    return cmocka_run_group_tests_name("masked_lm", tests, NULL, NULL);
}
