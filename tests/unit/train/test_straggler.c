/* test_straggler.c - who is named as slow, by numbers: teams, periods, recovery, and how often
 * chance alone names somebody. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "d9d/base/rng.h"
#include "support/unit.h"
#include "train/straggler.h"

enum { RANKS = 8, STEPS = 20, MAX_RANKS = 64 };

typedef struct bench {
    d9d_arena a;
    d9di_straggler_watch w;
    d9di_straggler_verdict verdicts[MAX_RANKS];
    int n;
    int64_t step;
} bench;

static void open_teams(bench *b, const int *team, int n, int64_t periods)
{
    memset(b, 0, sizeof(*b));
    assert_ok(d9di_straggler_watch_open(
        &b->w, &(d9di_straggler_watch_opts){.factor = 1.2, .periods = periods}, team, n, 0, &b->a));
}

/* A period in which every rank took exactly so long. */
static void period(bench *b, const double *ms)
{
    d9di_straggler_time times[MAX_RANKS] = {{0}};

    for (int i = 0; i < b->w.n; i++)
        times[i].ms = ms[i];
    b->step += STEPS;
    d9di_straggler_watch_judge(&b->w, b->step, times, b->verdicts, &b->n);
}

static void named_after_periods_in_a_row(void **state)
{
    static const int team[4] = {0};
    static const double even[4] = {10, 10, 10, 10}, slow[4] = {10, 10, 13.1, 10};
    bench b;

    (void)state;
    open_teams(&b, team, 4, 3);
    period(&b, even);
    period(&b, slow);
    period(&b, slow);
    period(&b, even); /* a row ends */
    assert_int_equal(b.n, 0);
    period(&b, slow);
    period(&b, slow);
    assert_int_equal(b.n, 0);
    period(&b, slow);
    assert_int_equal(b.n, 1);
    assert_int_equal(b.verdicts[0].rank, 2);
    assert_false(b.verdicts[0].recovered);
    assert_int_equal(b.verdicts[0].since, 4 * STEPS);
    assert_true(b.verdicts[0].ms == 13.1 && b.verdicts[0].peers_ms == 10);
    assert_true(b.verdicts[0].before == 1);
    period(&b, slow); /* said once */
    assert_int_equal(b.n, 0);
    period(&b, even);
    period(&b, even);
    period(&b, even);
    assert_int_equal(b.n, 1);
    assert_true(b.verdicts[0].recovered);
    assert_int_equal(b.verdicts[0].since, 8 * STEPS);
    d9d_arena_release(&b.a);
}

/* Stages take different times; who does what nobody else does is not judged. */
static void compared_within_teams(void **state)
{
    static const int team[7] = {0, 0, 1, 1, 1, 2, 0};
    static const double ms[7] = {10, 10, 30, 30, 40, 99, 10};
    bench b;

    (void)state;
    open_teams(&b, team, 7, 1);
    assert_true(d9di_straggler_watch_has_peers(&b.w));
    period(&b, ms);
    assert_int_equal(b.n, 1);
    assert_int_equal(b.verdicts[0].rank, 4);
    assert_true(b.verdicts[0].peers_ms == 30);
    d9d_arena_release(&b.a);
    open_teams(&b, (const int[3]){0, 1, 2}, 3, 1);
    assert_false(d9di_straggler_watch_has_peers(&b.w));
    period(&b, ms);
    assert_int_equal(b.n, 0);
    d9d_arena_release(&b.a);
}

/* Of two ranks the slower one; of many, half of which are slow, those. */
static void small_and_divided_teams(void **state)
{
    static const int team[6] = {0};
    bench b;

    (void)state;
    open_teams(&b, team, 2, 1);
    period(&b, (const double[2]){13, 10});
    assert_int_equal(b.n, 1);
    assert_int_equal(b.verdicts[0].rank, 0);
    d9d_arena_release(&b.a);
    open_teams(&b, team, 6, 1);
    period(&b, (const double[6]){13, 10, 13, 10, 10, 10});
    assert_int_equal(b.n, 2);
    assert_int_equal(b.verdicts[0].rank, 0);
    assert_int_equal(b.verdicts[1].rank, 2);
    d9d_arena_release(&b.a);
}

static void median_and_its_error(void **state)
{
    double ms[5] = {1, 2, 3, 4, 100}; /* deviations 2 1 0 1 97 */
    const d9di_straggler_time t = d9di_straggler_time_of(ms, 5);

    (void)state;
    assert_true(t.ms == 3);
    assert_true(d9di_straggler_time_of(NULL, 0).ms == 0);
    assert_true(fabs(t.error - 1.2533 * 1.4826 / sqrt(5.0)) < 1e-12);
}

/* --- chance ----------------------------------------------------------------------------------- */

/* A step of a busy machine: normal with a spread of a fifth, and in every fifth step somebody
 * else's time slice before it. */
typedef struct draws {
    d9d_rng normal, uniform;
    uint64_t at;
} draws;

static double busy_ms(draws *d, double mean)
{
    const double normal = (double)d9d_rng_normal(d->normal, d->at),
                 slice = (double)d9d_rng_uniform(d->uniform, d->at) < 0.2 ? 4 * mean : 0;
    const double ms = mean * (1 + 0.2 * normal) + slice;

    d->at++;
    return ms > 0 ? ms : 0;
}

static void busy_period(bench *b, draws *rng, int slow, double by)
{
    d9di_straggler_time times[MAX_RANKS];
    double ms[STEPS];

    for (int r = 0; r < b->w.n; r++) {
        for (int i = 0; i < STEPS; i++)
            ms[i] = busy_ms(rng, r == slow ? by * 10 : 10);
        times[r] = d9di_straggler_time_of(ms, STEPS);
    }
    b->step += STEPS;
    d9di_straggler_watch_judge(&b->w, b->step, times, b->verdicts, &b->n);
}

/* 64 ranks over 3000 periods: 192,000 judgements without a reason.  And a rank of 1.5 times is
 * named in at most eight periods, of which three are the fewest possible. */
static void chance_names_nobody(void **state)
{
    static const int team[MAX_RANKS] = {0};
    draws rng = {.normal = {5, 1}, .uniform = {5, 2}};
    int alarms = 0, soon = 0;
    bench b;

    (void)state;
    open_teams(&b, team, MAX_RANKS, 3);
    for (int i = 0; i < 3000; i++) {
        busy_period(&b, &rng, -1, 1);
        alarms += b.n;
    }
    d9d_arena_release(&b.a);
    for (int i = 0; i < 100; i++) {
        open_teams(&b, team, RANKS, 3);
        b.n = 0;
        for (int k = 0; k < 8 && b.n == 0; k++)
            busy_period(&b, &rng, 5, 1.5);
        soon += b.n == 1 && b.verdicts[0].rank == 5;
        d9d_arena_release(&b.a);
    }
    print_message("%d false alarms in 192000 judgements; 1.5 times found soon %d times of 100\n",
                  alarms, soon);
    assert_int_equal(alarms, 0);
    assert_true(soon >= 98);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(named_after_periods_in_a_row), cmocka_unit_test(compared_within_teams),
        cmocka_unit_test(small_and_divided_teams),      cmocka_unit_test(median_and_its_error),
        cmocka_unit_test(chance_names_nobody),
    };

    return cmocka_run_group_tests_name("straggler", tests, NULL, NULL);
}
