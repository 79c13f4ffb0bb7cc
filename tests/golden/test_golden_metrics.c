/* test_golden_metrics.c - metrics of random predictions against scikit-learn. */
#include "support/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/report/eval_predictions.h"

/* One value, or a list of them. */
static double value_at(const json_t *v, size_t i)
{
    return json_number_value(json_is_array(v) ? json_array_get(v, i) : v);
}

static void check_case(const char *dir, const json_t *want)
{
    char path[4096];
    const char *metric = json_string_value(json_array_get(want, 1));
    const char *paths[] = {path};
    const d9d_eval_predictions_opts opts = {&metric, 1, "prediction", "target", NULL,
                                            paths,   1, NULL};
    const json_t *expected = json_array_get(want, 2), *m, *got;
    const double tolerance = value_at(json_array_get(want, 3), 0);
    const size_t n = json_is_array(expected) ? json_array_size(expected) : 1;
    json_t *result;

    (void)snprintf(path, sizeof(path), "%s/metrics/%s.jsonl", dir,
                   json_string_value(json_array_get(want, 0)));
    assert_ok(d9d_eval_predictions(&opts, &result));
    assert_int_equal(json_integer_value(json_object_get(result, "rows")), 300);
    m = json_array_get(json_object_get(result, "metrics"), 0);
    got = json_object_get(m, json_is_array(expected) ? "values" : "value");
    assert_non_null(got);
    assert_int_equal(json_is_array(got) ? json_array_size(got) : 1, n);
    for (size_t i = 0; i < n; i++)
        if (!(fabs(value_at(got, i) - value_at(expected, i)) <= tolerance))
            fail_msg("%s of %s [%zu]: %.17g, must be %.17g", metric, path, i, value_at(got, i),
                     value_at(expected, i));
    json_decref(result);
}

static void values_are_those_of_scikit_learn(void **state)
{
    const char *dir = "tests/golden";
    char path[4096];
    json_t *cases;

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/metrics/expected.json", dir);
    assert_ok(d9d_json_read(path, 1 << 20, &cases));
    assert_true(json_array_size(cases) > 40);
    for (size_t i = 0; i < json_array_size(cases); i++)
        check_case(dir, json_array_get(cases, i));
    json_decref(cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(values_are_those_of_scikit_learn)};

    return cmocka_run_group_tests_name("golden metrics", tests, NULL, NULL);
}
