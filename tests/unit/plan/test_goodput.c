/* test_goodput.c - the formula of the goodput, against runs whose failures are drawn. */
#include <math.h>

#include "d9d/base/rng.h"
#include "d9d/plan/goodput.h"
#include "support/unit.h"

/* Seconds until failure number i. */
static double draw(d9d_rng rng, uint64_t i, double mtbf_s)
{
    return -mtbf_s * log1p(-(double)d9d_rng_uniform(rng, i));
}

/* A run as it happens: work, saves that become complete while the next period runs, failures that
 * go back to the newest complete one, restarts that may fail too. */
static double simulate(const d9d_goodput_costs *c, double period_s, int periods, uint64_t seed)
{
    const double hidden_s = c->save_s - c->blocked_s, attempt_s = period_s + c->blocked_s;
    const d9d_rng rng = {seed, 1};
    double wall_s = 0, restart_s = 0, failure_s = draw(rng, 0, c->mtbf_s);

    for (uint64_t done = 0, i = 1; done < (uint64_t)periods;) {
        const double into_s = failure_s - wall_s - restart_s;

        if (into_s >= attempt_s) {
            wall_s += restart_s + attempt_s;
            restart_s = 0;
            done++;
            continue;
        }
        if (into_s > 0 && into_s < hidden_s && restart_s == 0 && done > 0)
            done--; /* its checkpoint was not complete */
        wall_s = failure_s;
        failure_s += draw(rng, i++, c->mtbf_s);
        restart_s = c->restart_s;
    }
    return periods * period_s / wall_s;
}

static void test_is_what_happens(void **state)
{
    const d9d_goodput_costs costs[] = {{44000, 0.2, 26, 300},
                                       {44000, 60, 60, 300},
                                       {3600, 5, 5, 120},
                                       {3600, 0, 30, 600},
                                       {600, 10, 10, 60}};
    const double periods_s[] = {120, 900, 3000};

    (void)state;
    for (size_t i = 0; i < sizeof(costs) / sizeof(*costs); i++)
        for (size_t k = 0; k < sizeof(periods_s) / sizeof(*periods_s); k++) {
            const double want = simulate(&costs[i], periods_s[k], 200000, 7 + i),
                         got = d9d_goodput_fraction(&costs[i], periods_s[k]);

            if (fabs(got - want) > 0.01 * want)
                fail_msg("costs %zu, period %.0f s: %.4f, and %.4f happens", i, periods_s[k], got,
                         want);
        }
}

/* Where saves are short beside the time between failures, the best period is Young's sqrt(2 B M).
 */
static void test_the_best_period(void **state)
{
    const d9d_goodput_costs c = {100000, 10, 10, 300}, never = {1e12, 10, 10, 300},
                            hidden = {100000, 0, 40, 300};
    const double best_s = d9d_goodput_best_period(&c, 1);

    (void)state;
    assert_true(fabs(best_s - sqrt(2 * 10 * 100000.0)) < 0.02 * best_s);
    for (double f = 0.5; f < 2; f *= 1.07)
        assert_true(d9d_goodput_fraction(&c, best_s) >=
                    d9d_goodput_fraction(&c, best_s * f) - 1e-12);
    assert_true(d9d_goodput_fraction(&never, 1e6) > 0.99998);
    /* Saves that cost nothing: as often as they can be made. */
    assert_true(fabs(d9d_goodput_best_period(&hidden, 1) - 40) < 0.1);
    assert_true(fabs(d9d_goodput_best_period(&hidden, 90) - 90) < 0.1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_is_what_happens),
        cmocka_unit_test(test_the_best_period),
    };

    return cmocka_run_group_tests_name("goodput", tests, NULL, NULL);
}
