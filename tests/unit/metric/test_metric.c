/* test_metric.c - metrics: definitions, rejected input, saved state, merging over ranks. */
#include "support/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/metric/metric.h"

typedef struct one {
    d9d_union metric;
} one;

/* A metric of JSON text; its configuration lives in the arena. */
static d9d_status make(const char *text, d9d_arena *a, d9d_metric **out)
{
    static const d9d_key keys[] = {
        D9D_KEY_UNION(one, metric, D9D_REQUIRED, d9d_metric_tag, d9d_metric_choices, "a metric"),
        D9D_KEY_END};
    static const d9d_table table = D9D_TABLE(one, "one", keys, "one metric");
    json_t *doc = json_pack("{s:o}", "metric", json_loads(text, 0, NULL));
    one o;
    d9d_status st;

    assert_non_null(doc);
    st = d9d_config_bind(&table, doc, "c.json", NULL, a, &o);
    json_decref(doc);
    if (st != D9D_OK)
        return st;
    return d9d_metric_create(&o.metric, "metric", out);
}

static d9d_predictions batch(int64_t rows, const double *p, int64_t pc, const double *y, int64_t yc)
{
    return (d9d_predictions){
        .rows = rows, .prediction = p, .prediction_columns = pc, .target = y, .target_columns = yc};
}

/* The values of a metric over one batch. */
static void value_is(const char *text, d9d_predictions b, const double *want, size_t n)
{
    d9d_arena a = {0};
    d9d_metric *m;
    double got[64];

    assert_ok(make(text, &a, &m));
    assert_int_equal(d9d_metric_width(m), n);
    assert_ok(d9d_metric_update(m, &b));
    d9d_metric_compute(m, got);
    for (size_t i = 0; i < n; i++)
        if (isnan(want[i]) ? !isnan(got[i]) : fabs(got[i] - want[i]) > 1e-15)
            fail_msg("%s [%zu]: %.17g, must be %.17g", text, i, got[i], want[i]);
    d9d_metric_free(m);
    d9d_arena_release(&a);
}
#define VALUE_IS(text, b, ...)                                                                     \
    value_is(text, b, (const double[]){__VA_ARGS__},                                               \
             sizeof((const double[]){__VA_ARGS__}) / sizeof(double))

static void numbers_are_summed(void **state)
{
    static const double p[] = {1, 2, 4, -5}, w[] = {3, 1};
    d9d_predictions b = batch(2, p, 2, NULL, 0), none = batch(0, p, 2, NULL, 0);

    (void)state;
    VALUE_IS("{\"name\": \"sum\"}", b, 2);
    VALUE_IS("{\"name\": \"mean\"}", b, 0.5);
    VALUE_IS("{\"name\": \"min\"}", b, -5);
    VALUE_IS("{\"name\": \"max\"}", b, 4);
    b.weight = w;
    VALUE_IS("{\"name\": \"sum\"}", b, 8);
    VALUE_IS("{\"name\": \"mean\"}", b, 1);
    VALUE_IS("{\"name\": \"sum\"}", none, 0);
    VALUE_IS("{\"name\": \"mean\"}", none, NAN);
    VALUE_IS("{\"name\": \"max\"}", none, NAN);
    VALUE_IS("{\"name\": \"min\"}", none, NAN);
}

/* Rows of loss, entropy, confidence, class and rank; targets 3, 3, 5, 7. */
static const double token_rows[] = {0.5, 1.0, 0.9, 3, 0, 1.5, 2.0, 0.5, 4, 1,
                                    2.5, 3.0, 0.3, 5, 0, 3.5, 4.0, 0.1, 6, 9};
static const double token_targets[] = {3, 3, 5, 7};

static void next_tokens_are_in_five_columns(void **state)
{
    const d9d_predictions b = batch(4, token_rows, 5, token_targets, 1);

    (void)state;
    /* of four: 2 right, 3 among two, 4 among ten */
    VALUE_IS("{\"name\": \"tokens\", \"top_k\": 2, \"num_bins\": 1}", b, 2, 0.5, 0.75, 2.5, 0.45,
             fabs(1.8 - 2) / 4);
    /* bins [0, 1/2) and [1/2, 1]: 0.4 and 1 right; 1.4 and 1 right */
    VALUE_IS("{\"name\": \"tokens\", \"top_k\": 10, \"num_bins\": 2}", b, 2, 0.5, 1, 2.5, 0.45,
             (0.6 + 0.4) / 4);
    VALUE_IS("{\"name\": \"tokens\", \"target_ids\": [7, 3], \"num_bins\": 1}", b, 5.5 / 3, 1.0 / 3,
             2.0 / 3, 7.0 / 3, 0.5, 0.5 / 3);
    VALUE_IS("{\"name\": \"tokens\", \"target_ids\": [4]}", b, NAN, NAN, NAN, NAN, NAN, NAN);
}

/* A metric that counts a batch as two, the second through a copy. */
static void merged_is(const char *text, d9d_predictions b)
{
    d9d_predictions first = b, rest = b;
    d9d_metric *whole, *parts, *copy;
    double want[64], got[64];
    d9d_arena a = {0};

    first.rows = b.rows / 2;
    rest.rows = b.rows - first.rows;
    rest.prediction += first.rows * b.prediction_columns;
    rest.target += b.target != NULL ? first.rows * b.target_columns : 0;
    assert_ok(make(text, &a, &whole));
    assert_ok(make(text, &a, &parts));
    assert_ok(make(text, &a, &copy));
    assert_ok(d9d_metric_update(whole, &b));
    assert_ok(d9d_metric_update(parts, &first));
    assert_ok(d9d_metric_update(copy, &rest));
    d9d_metric_merge(parts, copy);
    d9d_metric_compute(whole, want);
    d9d_metric_compute(parts, got);
    for (size_t i = 0; i < d9d_metric_width(whole); i++)
        if (isnan(want[i]) ? !isnan(got[i]) : !(fabs(got[i] - want[i]) <= 1e-12))
            fail_msg("%s [%zu]: %.17g, must be %.17g", text, i, got[i], want[i]);
    d9d_metric_free(whole);
    d9d_metric_free(parts);
    d9d_metric_free(copy);
    d9d_arena_release(&a);
}

static void what_two_have_counted_adds_up(void **state)
{
    static const double p[] = {1, 2, 4, -5, 7, 3}, odd[] = {1, 2, 4, NAN, 7, 3},
                        y[] = {0, 1, 1, 0, 1, 0};
    const char *const numbers[] = {"sum", "mean", "min", "max"};

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        char text[64];

        (void)snprintf(text, sizeof(text), "{\"name\": \"%s\"}", numbers[i]);
        merged_is(text, batch(3, p, 2, y, 1));
        merged_is(text, batch(3, odd, 2, y, 1));
    }
    merged_is("{\"name\": \"accuracy\"}", batch(6, p, 1, y, 1));
    merged_is("{\"name\": \"binary_auroc\"}", batch(6, p, 1, y, 1));
    merged_is("{\"name\": \"tokens\"}", batch(4, token_rows, 5, token_targets, 1));
}

static void a_number_that_is_none_shows(void **state)
{
    static const double p[] = {1, NAN, 3};
    const d9d_predictions b = batch(3, p, 1, NULL, 0);

    (void)state;
    VALUE_IS("{\"name\": \"max\"}", b, NAN);
    VALUE_IS("{\"name\": \"mean\"}", b, NAN);
}

/* Rewards of two pairs, and of a chosen and a rejected answer alone; a row is right whose chosen
 * reward is above the other. */
/* Two completions: of two tokens with the reward 1, and a truncated one of one token with 0, which
 * is not trained. */
static void completions_are_counted_at_their_first_token(void **state)
{
    /* low high kl difference mask entropy first reward zero_std length truncated */
    static const double p[] = {1, 0, 0.5, 0.25, 1, 2, 1, 1, 1, 2, 0, /* */
                               0, 1, 1.5, 0.75, 1, 4, 0, 0, 0, 0, 0, /* */
                               0, 0, 0,   0,    0, 3, 1, 0, 1, 1, 1};
    static const double y[3] = {0};

    (void)state;
    VALUE_IS("{\"name\": \"grpo\"}", batch(3, p, 11, y, 1), 0.5, sqrt(0.5), 1, 1.5, 2, 0.5, 0.5,
             0.5, 1, 1, 3, 0.5);
    VALUE_IS("{\"name\": \"grpo\"}", batch(1, p + 22, 11, y, 1), 0, NAN, 1, 1, NAN, 1, NAN, NAN,
             NAN, NAN, 3, NAN);
}

static void rewards_are_means_of_what_is_there(void **state)
{
    static const double p[] = {
        3, 1, -10, -20, 1, 1, 0.5, 0, 2, -30, -40, 1, 1, 0.5, //
        6, 9, -20, -99, 1, 0, 1,   9, 3, -99, -30, 0, 1, 2,
    };
    static const double y[] = {0, 1, 2, 3};

    (void)state;
    VALUE_IS("{\"name\": \"rewards\"}", batch(2, p, 7, y, 1), 1.5, 1.5, 0, 0.5, -20, -30, 0.5);
    VALUE_IS("{\"name\": \"rewards\"}", batch(4, p, 7, y, 1), 3, 2, 1, 0.5, -20, -30, 1);
    VALUE_IS("{\"name\": \"rewards\"}", batch(1, p + 14, 7, y, 1), 6, NAN, NAN, NAN, -20, NAN, 1);
}

static void area_under_the_curve(void **state)
{
    static const double p[] = {0.1, 0.4, 0.35, 0.8}, y[] = {0, 0, 1, 1}, ones[] = {1, 1, 1, 1};

    (void)state;
    VALUE_IS("{\"name\": \"binary_auroc\"}", batch(4, p, 1, y, 1), 0.75);
    VALUE_IS("{\"name\": \"binary_auroc\", \"num_bins\": 2}", batch(4, p, 1, y, 1), 0.75);
    VALUE_IS("{\"name\": \"binary_auroc\", \"num_bins\": 1}", batch(4, p, 1, y, 1), 0.5);
    VALUE_IS("{\"name\": \"binary_auroc\"}", batch(4, p, 1, ones, 1), NAN);
    VALUE_IS("{\"name\": \"binary_auroc\"}",
             batch(2, (const double[]){-INFINITY, INFINITY}, 1, (const double[]){0, 1}, 1), 1);
}

/* The area is of the order of scores: what keeps that keeps it, whatever their range. */
static void area_of_any_scores(void **state)
{
    static const double p[] = {0.02, 0.31, 0.309, 0.5, 0.77, 0.501, 0.9993, 0.996, 0.04, 0.62},
                        y[] = {0, 1, 0, 0, 1, 1, 1, 0, 1, 0};
    enum { N = sizeof(p) / sizeof(*p) };
    double logits[N], tiny[N], huge[N], below[N];

    (void)state;
    for (int i = 0; i < N; i++) {
        logits[i] = log(p[i] / (1.0 - p[i]));
        tiny[i] = p[i] * 1e-9;
        huge[i] = 1e6 * p[i] - 3e5;
        below[i] = 1e3 * (p[i] - 1.0);
    }
    const double want = 15.0 / 25.0;

    VALUE_IS("{\"name\": \"binary_auroc\"}", batch(N, p, 1, y, 1), want);
    VALUE_IS("{\"name\": \"binary_auroc\"}", batch(N, logits, 1, y, 1), want);
    VALUE_IS("{\"name\": \"binary_auroc\"}", batch(N, tiny, 1, y, 1), want);
    VALUE_IS("{\"name\": \"binary_auroc\"}", batch(N, huge, 1, y, 1), want);
    VALUE_IS("{\"name\": \"binary_auroc\"}", batch(N, below, 1, y, 1), want);
    VALUE_IS("{\"name\": \"binary_auroc\"}",
             batch(4, (const double[]){-0.0, 0.0, 1.0, 1.0}, 1, (const double[]){0, 1, 0, 1}, 1),
             0.5);
}

/* Equal steps are of probabilities: others are refused by name, and no sum has changed. */
static void area_by_steps_is_of_probabilities(void **state)
{
    static const double p[] = {0.5, 1.25}, y[] = {0, 1};
    const d9d_predictions b = batch(2, p, 1, y, 1);
    d9d_arena a = {0};
    d9d_metric *m;
    double value;

    (void)state;
    assert_ok(make("{\"name\": \"binary_auroc\", \"num_bins\": 100}", &a, &m));
    assert_int_equal(d9d_metric_update(m, &b), D9D_EINVAL);
    assert_non_null(strstr(d9d_err_message(), "row 1: 1.25 is no probability"));
    d9d_metric_compute(m, &value);
    assert_true(isnan(value));
    d9d_metric_free(m);
    d9d_arena_release(&a);
}

/* Column 0 is ordered rightly, column 1 the wrong way round, column 2 is all of one class. */
static void area_of_several_classes(void **state)
{
    static const double p[] = {0.1, 0.9, 0.5, 0.6, 0.2, 0.5, 0.7, 1, 0},
                        y[] = {0, 0, 1, 1, 1, 1, 1, 0, 1}, score[] = {0.1, 0.9, 1.5};
    const d9d_predictions b = batch(3, p, 3, y, 3), bad = batch(1, score, 3, y, 3);
    d9d_arena a = {0};
    d9d_metric *m;

    (void)state;
    VALUE_IS("{\"name\": \"multilabel_auroc\", \"num_classes\": 3}", b, 0.5);
    VALUE_IS("{\"name\": \"multilabel_auroc\", \"num_classes\": 3, \"average\": \"none\"}", b, 1, 0,
             NAN);
    VALUE_IS("{\"name\": \"multilabel_auroc\", \"num_classes\": 3, \"average\": \"weighted\"}", b,
             2.0 / 3);
    VALUE_IS("{\"name\": \"multilabel_auroc\", \"num_classes\": 3, \"average\": \"micro\"}", b,
             5.0 / 18);
    assert_ok(make("{\"name\": \"multilabel_auroc\", \"num_classes\": 3}", &a, &m));
    assert_fails(d9d_metric_update(m, &bad), D9D_EINVAL,
                 "multilabel_auroc: row 0: 1.5 is no probability");
    d9d_metric_free(m);
    d9d_arena_release(&a);
}

static void numbers_have_errors_and_correlation(void **state)
{
    static const double p[] = {1, 5, 2, 5, 6, 5}, t[] = {2, 5, 4, 5, 6, 5}, lone[] = {3},
                        other[] = {4}, far[] = {1e200};
    const d9d_predictions b = batch(3, p, 2, t, 2), same = batch(3, t, 2, p, 2),
                          single = batch(1, lone, 1, other, 1), bad = batch(1, far, 1, lone, 1);
    d9d_arena a = {0};
    d9d_metric *m;

    (void)state;
    VALUE_IS("{\"name\": \"mse\", \"num_outputs\": 2, \"average\": \"none\"}", b, 5.0 / 3, 0);
    VALUE_IS("{\"name\": \"mae\", \"num_outputs\": 2}", b, 0.5);
    VALUE_IS("{\"name\": \"r2\", \"num_outputs\": 2, \"average\": \"none\"}", b, 0.375, 1);
    VALUE_IS("{\"name\": \"pearson\", \"num_outputs\": 2, \"average\": \"none\"}", b,
             10 / sqrt(14 * 8), NAN);
    VALUE_IS("{\"name\": \"pearson\", \"num_outputs\": 2}", same, 10 / sqrt(14 * 8));
    VALUE_IS("{\"name\": \"r2\"}", single, NAN);
    VALUE_IS("{\"name\": \"mae\"}", single, 1);
    VALUE_IS("{\"name\": \"mse\"}", batch(0, p, 1, t, 1), NAN);
    assert_ok(make("{\"name\": \"mse\"}", &a, &m));
    assert_fails(d9d_metric_update(m, &bad), D9D_EINVAL,
                 "mse: row 0: the prediction is 1e+200, no finite float32");
    assert_fails(d9d_metric_update(m, &b), D9D_EINVAL, "mse: a prediction of 2 numbers, must be 1");
    d9d_metric_free(m);
    d9d_arena_release(&a);
}

/* Targets of a large mean, in the order of their numbers, against it, and dealt to two ranks. */
static void regressions_do_not_depend_on_order(void **state)
{
    enum { N = 999 };
    static const char *const names[] = {"mse", "mae", "r2", "pearson"};
    static double p[N], t[N], q[N], u[N];
    char text[64];

    (void)state;
    for (int i = 0; i < N; i++) {
        t[i] = u[N - 1 - i] = 1e7 + (i * 7919 % N) * ldexp(1, i % 9 - 30);
        p[i] = q[N - 1 - i] = t[i] + (i * 104729 % N) * ldexp(1, i % 40 - 50);
    }
    for (size_t k = 0; k < sizeof(names) / sizeof(names[0]); k++) {
        const d9d_predictions all = batch(N, p, 1, t, 1), back = batch(N, q, 1, u, 1),
                              first = batch(300, p, 1, t, 1),
                              rest = batch(N - 300, p + 300, 1, t + 300, 1);
        d9d_metric *m[4];
        d9d_arena a = {0};
        double v[4];

        (void)snprintf(text, sizeof(text), "{\"name\": \"%s\"}", names[k]);
        for (int i = 0; i < 4; i++)
            assert_ok(make(text, &a, &m[i]));
        assert_ok(d9d_metric_update(m[0], &all));
        assert_ok(d9d_metric_update(m[1], &back));
        assert_ok(d9d_metric_update(m[2], &rest));
        assert_ok(d9d_metric_update(m[3], &first));
        d9d_metric_merge(m[2], m[3]);
        for (int i = 0; i < 3; i++)
            d9d_metric_compute(m[i], &v[i]);
        assert_true(isfinite(v[0]) && v[0] == v[1] && v[0] == v[2]);
        for (int i = 0; i < 4; i++)
            d9d_metric_free(m[i]);
        d9d_arena_release(&a);
    }
}

#define MULTI(name, rest)                                                                          \
    "{\"name\": \"" name "\", \"problem\": \"multiclass\", \"num_classes\": 3" rest "}"

static void classes(void **state)
{
    /* said 0 1 1 1, is 0 1 0 1; class 2 does not occur */
    static const double p[] = {0, 1, 1, 1}, y[] = {0, 1, 0, 1};
    const d9d_predictions b = batch(4, p, 1, y, 1);

    (void)state;
    VALUE_IS(MULTI("accuracy", ""), b, 0.75);
    VALUE_IS(MULTI("accuracy", ", \"average\": \"none\""), b, 0.75, 0.75, 1);
    VALUE_IS(MULTI("precision", ", \"average\": \"none\""), b, 1, 2.0 / 3, 0);
    VALUE_IS(MULTI("precision", ", \"average\": \"none\", \"zero_division\": null"), b, 1, 2.0 / 3,
             NAN);
    VALUE_IS(MULTI("recall", ""), b, 0.5);
    VALUE_IS(MULTI("recall", ", \"zero_division\": null"), b, 0.75);
    VALUE_IS(MULTI("recall", ", \"zero_division\": 1"), b, 2.5 / 3);
    VALUE_IS(MULTI("recall", ", \"average\": \"weighted\""), b, 0.75);
    VALUE_IS(MULTI("confusion_matrix", ""), b, 1, 1, 0, 0, 2, 0, 0, 0, 0);
}

static void scores_and_ties(void **state)
{
    static const double p[] = {0.5, 0.5, 0.1, 0.2, 0.3, 0.3}, y[] = {1, 2},
                        hot[] = {0, 1, 0, 0, 0, 1};

    (void)state;
    VALUE_IS(MULTI("accuracy", ""), batch(2, p, 3, y, 1), 0);
    VALUE_IS(MULTI("accuracy", ", \"top_k\": 2"), batch(2, p, 3, y, 1), 1);
    VALUE_IS(MULTI("accuracy", ", \"top_k\": 2"), batch(2, p, 3, hot, 3), 1);
    VALUE_IS(MULTI("confusion_matrix", ""), batch(2, p, 3, hot, 3), 0, 0, 0, 1, 0, 0, 0, 1, 0);
    VALUE_IS("{\"name\": \"accuracy\"}",
             batch(2, (const double[]){0.5, 0.6}, 1, (const double[]){0, 1}, 1), 1);
}

static void a_configuration_is_checked(void **state)
{
    d9d_arena a = {0};
    d9d_metric *m;

    (void)state;
    assert_fails(make("{\"name\": \"f1\", \"problem\": \"multiclass\"}", &a, &m), D9D_ECONFIG,
                 "c.json: metric.num_classes: needed where the problem is multiclass");
    assert_fails(make(MULTI("accuracy", ", \"top_k\": 4"), &a, &m), D9D_ECONFIG,
                 "c.json: metric.top_k: 4 of 3 classes");
    assert_fails_like(make("{\"name\": \"f2\"}", &a, &m), D9D_ECONFIG,
                      "metric.name: unknown word \"f2\"");
    assert_fails_like(make("{\"name\": \"fbeta\"}", &a, &m), D9D_ECONFIG, "beta");
    d9d_arena_release(&a);
}

/* What is refused changes nothing. */
static void a_batch_is_checked(void **state)
{
    static const double p[] = {0, 1, 2}, y[] = {0, 1, 3}, odd[] = {0, 0.5, 1};
    const d9d_predictions bad = batch(3, p, 1, y, 1),
                          nan = batch(1, (const double[]){NAN}, 1, y, 1);
    const d9d_predictions half = batch(3, odd, 1, y, 1), none = batch(3, p, 1, NULL, 0);
    d9d_arena a = {0};
    d9d_metric *m;
    double v;

    (void)state;
    assert_ok(make(MULTI("accuracy", ""), &a, &m));
    assert_fails(d9d_metric_update(m, &bad), D9D_EINVAL,
                 "accuracy: row 2: the target 3 is none of 3 classes");
    assert_fails(d9d_metric_update(m, &half), D9D_EINVAL,
                 "accuracy: row 1: the prediction 0.5 is none of 3 classes");
    assert_fails(d9d_metric_update(m, &nan), D9D_EINVAL,
                 "accuracy: row 0: a prediction is not a number");
    assert_fails(d9d_metric_update(m, &none), D9D_EINVAL,
                 "accuracy: a target of 0 numbers, must be 3");
    d9d_metric_compute(m, &v);
    assert_true(v == 0);
    d9d_metric_free(m);
    d9d_arena_release(&a);
}

/* A restored state goes on. */
static void state_is_all_there_is(void **state)
{
    static const double p[] = {0.2, 0.9, 0.6}, y[] = {0, 1, 0};
    const d9d_predictions all = batch(3, p, 1, y, 1), first = batch(1, p, 1, y, 1),
                          rest = batch(2, p + 1, 1, y + 1, 1);
    int64_t saved[20000]; /* of both classes */
    d9d_arena a = {0};
    d9d_metric *m, *n;
    double want, got;

    (void)state;
    assert_ok(make("{\"name\": \"binary_auroc\", \"num_bins\": 10000}", &a, &m));
    assert_ok(make("{\"name\": \"binary_auroc\", \"num_bins\": 10000}", &a, &n));
    assert_int_equal(d9d_metric_form_of(m)->state_size, 20000);
    assert_ok(d9d_metric_update(m, &all));
    d9d_metric_compute(m, &want);
    d9d_metric_reset(m);
    assert_ok(d9d_metric_update(m, &first));
    d9d_metric_save_state(m, saved);
    d9d_metric_load_state(n, saved);
    assert_ok(d9d_metric_update(n, &rest));
    d9d_metric_compute(n, &got);
    assert_true(got == want && want == 1);
    d9d_metric_free(m);
    d9d_metric_free(n);
    d9d_arena_release(&a);
}

/* Begun, then reset and updated: values are of what was begun, until the next update. */
static void a_sync_goes_beside_the_next_window(void **state)
{
    static const double p[] = {1, 5};
    const d9d_predictions first = batch(1, p, 1, NULL, 0), second = batch(1, p + 1, 1, NULL, 0);
    d9d_device *dev;
    d9d_arena a = {0};
    d9d_metric *m;
    double v;

    (void)state;
    assert_ok(d9d_device_open("cpu", &dev));
    assert_ok(make("{\"name\": \"sum\"}", &a, &m));
    assert_ok(d9d_metric_update(m, &first));
    assert_ok(d9d_metric_sync_begin(m, dev, NULL));
    d9d_metric_reset(m);
    assert_ok(d9d_metric_update(m, &second));
    assert_ok(d9d_metric_sync_end(m));
    d9d_metric_compute(m, &v);
    assert_true(v == 1);
    assert_ok(d9d_metric_update(m, &second));
    d9d_metric_compute(m, &v);
    assert_true(v == 10);
    d9d_metric_free(m);
    d9d_device_close(dev);
    d9d_arena_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_summed),
        cmocka_unit_test(next_tokens_are_in_five_columns),
        cmocka_unit_test(what_two_have_counted_adds_up),
        cmocka_unit_test(a_number_that_is_none_shows),
        cmocka_unit_test(completions_are_counted_at_their_first_token),
        cmocka_unit_test(rewards_are_means_of_what_is_there),
        cmocka_unit_test(area_under_the_curve),
        cmocka_unit_test(area_of_any_scores),
        cmocka_unit_test(area_by_steps_is_of_probabilities),
        cmocka_unit_test(area_of_several_classes),
        cmocka_unit_test(numbers_have_errors_and_correlation),
        cmocka_unit_test(regressions_do_not_depend_on_order),
        cmocka_unit_test(classes),
        cmocka_unit_test(scores_and_ties),
        cmocka_unit_test(a_configuration_is_checked),
        cmocka_unit_test(a_batch_is_checked),
        cmocka_unit_test(state_is_all_there_is),
        cmocka_unit_test(a_sync_goes_beside_the_next_window),
    };

    return cmocka_run_group_tests_name("metric", tests, NULL, NULL);
}
