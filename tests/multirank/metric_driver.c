/* metric_driver.c - launched by tests/multirank/metric.bats: metrics over all ranks.
 *
 * Predictions are distributed over the ranks.  In the middle the metric state is saved, and a
 * single rank continues with it.  Every value must be that of all predictions on one rank. */
#include "support/ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/rng.h"
#include "d9d/metric/metric.h"

enum { ROWS = 100000, CLASSES = 5 };

static double scores[ROWS * CLASSES], classes[ROWS], yes[ROWS];

/* Predictions, the same on every rank; scores correlate with the class. */
static void rows_make(void)
{
    const d9d_rng r = {.seed = 1, .stream = 2};

    for (int64_t i = 0; i < ROWS; i++) {
        classes[i] = (double)(i * i % CLASSES);
        yes[i] = classes[i] == 0;
        for (int64_t k = 0; k < CLASSES; k++)
            scores[i * CLASSES + k] = (double)d9d_rng_uniform(r, (uint64_t)(i * CLASSES + k)) +
                                      0.3 * (double)((double)k == classes[i]);
    }
}

static d9d_predictions rows_of(bool multi, int64_t first, int64_t n)
{
    return (d9d_predictions){
        .rows = n,
        .prediction = scores + first * (multi ? CLASSES : 1),
        .prediction_columns = multi ? CLASSES : 1,
        .target = (multi ? classes : yes) + first,
        .target_columns = 1,
        .weight = yes + first,
    };
}

typedef struct one {
    d9d_union metric;
} one;

static void config_read(const char *text, d9d_arena *a, d9d_union *out)
{
    static const d9d_key keys[] = {
        D9D_KEY_UNION(one, metric, D9D_REQUIRED, d9d_metric_tag, d9d_metric_choices, "a metric"),
        D9D_KEY_END};
    static const d9d_table table = D9D_TABLE(one, "one", keys, "one metric");
    json_t *doc = json_pack("{s:o}", "metric", json_loads(text, 0, NULL));
    one o;

    assert_ok(d9d_config_bind(&table, doc, "c.json", NULL, a, &o));
    json_decref(doc);
    *out = o.metric;
}

/* Rows [first, end) in chunks of uneven size, distributed over the ranks in turn. */
static void rows_deal(const ranks *w, d9d_metric *m, bool multi, int64_t first, int64_t end)
{
    for (int64_t at = first, chunk = 0; at < end; chunk++) {
        const int64_t n = at + 1 + chunk * 37 % 500 < end ? 1 + chunk * 37 % 500 : end - at;
        const d9d_predictions b = rows_of(multi, at, n);

        if (chunk % w->size == w->rank)
            assert_ok(d9d_metric_update(m, &b));
        at += n;
    }
}

/* Compares: all ranks, saved and resumed in the middle; and one rank. */
static void check(const ranks *w, const char *text, bool multi, double tolerance)
{
    const d9d_predictions all = rows_of(multi, 0, ROWS);
    d9d_arena a = {0};
    d9d_metric *alone, *first, *second;
    double want[32], got[32], half[32];
    d9d_union u;
    void *saved;

    config_read(text, &a, &u);
    assert_ok(d9d_metric_create(&u, "m", &alone));
    assert_ok(d9d_metric_create(&u, "m", &first));
    assert_ok(d9d_metric_create(&u, "m", &second));
    assert_ok(d9d_metric_update(alone, &all));
    d9d_metric_compute(alone, want);

    rows_deal(w, first, multi, 0, ROWS / 3);
    assert_ok(d9d_metric_sync(first, w->dev, w->comm));
    saved = calloc((size_t)d9d_metric_form_of(first)->state_size, 8);
    d9d_metric_save_state(first, saved);
    if (w->rank == w->size - 1)
        d9d_metric_load_state(second, saved);
    free(saved);
    rows_deal(w, second, multi, ROWS / 3, ROWS);
    assert_ok(d9d_metric_sync_begin(second, w->dev, w->comm));
    assert_ok(d9d_metric_sync_end(second));
    d9d_metric_compute(second, got);
    for (size_t i = 0; i < d9d_metric_width(second); i++)
        if (!(fabs(got[i] - want[i]) <= tolerance * fabs(want[i])))
            fail_msg("%s [%zu]: %.17g on %d ranks, %.17g on one", text, i, got[i], w->size,
                     want[i]);

    d9d_metric_compute(first, half); /* a synced metric continues for itself */
    rows_deal(w, first, multi, ROWS / 3, ROWS);
    assert_ok(d9d_metric_sync(first, w->dev, w->comm));
    d9d_metric_compute(first, got);
    for (size_t i = 0; i < d9d_metric_width(first); i++)
        assert_true(fabs(got[i] - want[i]) <= tolerance * fabs(want[i]));
    d9d_metric_free(alone);
    d9d_metric_free(first);
    d9d_metric_free(second);
    d9d_arena_release(&a);
}

static void counts_are_exact(void **state)
{
    check(*state, "{\"name\": \"binary_auroc\"}", false, 0);
    check(*state, "{\"name\": \"f1\"}", false, 0);
    check(*state, "{\"name\": \"max\"}", true, 0);
    check(*state, "{\"name\": \"min\"}", true, 0);
    check(*state,
          "{\"name\": \"recall\", \"problem\": \"multiclass\", \"num_classes\": 5, "
          "\"average\": \"none\"}",
          true, 0);
    check(*state,
          "{\"name\": \"confusion_matrix\", \"problem\": \"multiclass\", \"num_classes\": 5}", true,
          0);
}

static void sums_are_rounded_in_another_order(void **state)
{
    check(*state, "{\"name\": \"mean\"}", true, 1e-15);
    check(*state, "{\"name\": \"sum\"}", false, 1e-15);
}

int main(void)
{
    d9d_parallel_degrees d = {1, 1, 1, 1, 1, 1, 1, 1, D9D_CP_ALL_GATHER};
    d9d_bootstrap *bootstrap;
    ranks w;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(counts_are_exact, &w),
        cmocka_unit_test_prestate(sums_are_rounded_in_another_order, &w),
    };

    rows_make();
    assert_ok(d9d_bootstrap_open(&bootstrap));
    d.data_parallel_replicate = d9d_bootstrap_size(bootstrap);
    assert_ok(ranks_open(bootstrap, &d, D9D_AXES_WORLD, &w));
    return ranks_run(&w, "metrics", tests, sizeof(tests) / sizeof(*tests));
}
