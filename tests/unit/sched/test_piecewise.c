/* test_piecewise.c - piecewise learning-rate schedules. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "d9d/sched/piecewise.h"

#define LINEAR "\"curve\": {\"type\": \"linear\"}"

static const char reference[] =
    "{\"initial_multiplier\": 0.0, \"phases\": ["
    "{\"mode\": \"steps\", \"steps\": 2, \"target_multiplier\": 1.0, " LINEAR "},"
    "{\"mode\": \"percentage\", \"percentage\": 0.5, \"target_multiplier\": 0.1, " LINEAR "},"
    "{\"mode\": \"rest\", \"target_multiplier\": 0.01, " LINEAR "}]}";

static d9d_status make(const char *text, int64_t total, d9d_piecewise **out)
{
    d9d_arena a = {0};
    d9d_piecewise_config c;
    json_t *doc = json_loads(text, 0, NULL);
    d9d_status st;

    assert_non_null(doc);
    st = d9d_config_bind(&d9d_piecewise_table, doc, "s", NULL, &a, &c);
    if (st == D9D_OK)
        st = d9d_piecewise_create(&c, "s", total, out);
    d9d_arena_release(&a);
    json_decref(doc);
    return st;
}

static void the_reference_schedule_is_followed(void **state)
{
    static const double lr[] = {0, .05, .1, .07, .04, .01, .0082, .0064, .0046, .0028, .001, .001};
    d9d_piecewise *s = NULL;

    (void)state;
    assert_int_equal(make(reference, 10, &s), D9D_OK);
    assert_int_equal(d9d_piecewise_steps(s), 10);
    for (int k = 0; k < 12; k++)
        assert_true(fabs(0.1 * d9d_piecewise_at(s, k) - lr[k]) < 1e-12);
    assert_true(d9d_piecewise_at(s, -1) == 0.0);
    d9d_piecewise_free(s);
}

static void curves_have_their_shapes(void **state)
{
    static const struct {
        d9d_piecewise_curve_kind kind;
        double at[3]; /* at 1/4, 1/2, 3/4 of the way from 1 to 100 */
    } rows[] = {
        {D9D_CURVE_LINEAR, {25.75, 50.5, 75.25}},
        {D9D_CURVE_COSINE, {15.498, 50.5, 85.502}},
        {D9D_CURVE_POLY, {7.1875, 25.75, 56.6875}},
        {D9D_CURVE_EXPONENTIAL, {3.16228, 10, 31.6228}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_true(fabs(d9d_piecewise_curve_at(rows[i].kind, 2.0, 1, 100, 0) - 1) < 1e-9);
        for (int q = 0; q < 3; q++)
            assert_true(fabs(d9d_piecewise_curve_at(rows[i].kind, 2.0, 1, 100, 0.25 * (q + 1)) -
                             rows[i].at[q]) < 1e-3);
    }
    assert_true(fabs(d9d_piecewise_curve_at(D9D_CURVE_EXPONENTIAL, 2.0, 0, 1, 0) - 1e-8) < 1e-15);
}

static void phases_without_steps_are_skipped(void **state)
{
    d9d_piecewise *s = NULL;

    (void)state;
    assert_int_equal(make("{\"initial_multiplier\": 1, \"phases\": ["
                          "{\"mode\": \"percentage\", \"percentage\": 0, \"target_multiplier\": 5},"
                          "{\"mode\": \"rest\", \"target_multiplier\": 5}]}",
                          4, &s),
                     D9D_OK);
    for (int k = 0; k < 6; k++)
        assert_true(d9d_piecewise_at(s, k) == 5.0);
    d9d_piecewise_free(s);
}

static void steps_alone_need_no_total(void **state)
{
    d9d_piecewise *s = NULL;

    (void)state;
    assert_int_equal(
        make("{\"initial_multiplier\": 1, \"phases\": [{\"mode\": \"steps\", \"steps\": 4,"
             " \"target_multiplier\": 0, \"curve\": {\"type\": \"poly\", \"power\": 1}}]}",
             D9D_STEPS_UNKNOWN, &s),
        D9D_OK);
    assert_true(d9d_piecewise_at(s, 1) == 0.75);
    assert_true(d9d_piecewise_at(s, 1000000) == 0.0);
    d9d_piecewise_free(s);
}

static void mistakes_are_named(void **state)
{
    static const struct {
        const char *text;
        int64_t total;
        const char *sentence;
    } rows[] = {
        {"{\"initial_multiplier\": 1, \"phases\": []}", 10,
         "s: phases: has 0 elements, at least 1 is needed"},
        {"{\"initial_multiplier\": -1, \"phases\": []}", 10,
         "s: initial_multiplier: -1 is not at least 0"},
        {"{\"initial_multiplier\": 1, \"phases\": [{\"mode\": \"steps\", \"steps\": 11,"
         " \"target_multiplier\": 1}]}",
         10, "s: its phases last 11 steps, the run has 10"},
        {"{\"initial_multiplier\": 1, \"phases\": [{\"mode\": \"steps\", \"steps\": 6,"
         " \"target_multiplier\": 1}, {\"mode\": \"percentage\", \"percentage\": 0.5,"
         " \"target_multiplier\": 1}]}",
         10, "s.phases[1]: ends at step 5 of 10, before it begins at 6"},
        {"{\"initial_multiplier\": 1, \"phases\": [{\"mode\": \"steps\", \"steps\": 11,"
         " \"target_multiplier\": 1}, {\"mode\": \"rest\", \"target_multiplier\": 1}]}",
         10, "s.phases[1]: ends at step 10 of 10, before it begins at 11"},
        {reference, D9D_STEPS_UNKNOWN,
         "s.phases[1]: is a part of the run, whose steps are not known"},
        {"{\"initial_multiplier\": 1, \"phases\": [{\"mode\": \"percentage\","
         " \"percentage\": 1.5, \"target_multiplier\": 1}]}",
         10, "s: phases[0].percentage: 1.5 is not at most 1"},
        {"{\"initial_multiplier\": 1, \"phases\": [{\"mode\": \"step\", \"steps\": 1}]}", 10,
         "s: phases[0].mode: unknown word \"step\"; did you mean \"steps\"?"},
        {"{\"initial_multiplier\": 1, \"phases\": [{\"mode\": \"rest\", \"target_multiplier\": 1,"
         " \"curve\": {\"type\": \"poly\", \"power\": 0}}]}",
         10, "s: phases[0].curve.power: 0 is not above 0"},
        {"{\"initial_multiplier\": 1, \"phases\": [{\"mode\": \"steps\","
         " \"steps\": 9223372036854775807, \"target_multiplier\": 1},"
         " {\"mode\": \"steps\", \"steps\": 1, \"target_multiplier\": 1}]}",
         D9D_STEPS_UNKNOWN,
         "s.phases[1]: begins at step 9223372036854775807 and lasts 1, more than can be counted"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        d9d_piecewise *s = NULL;

        assert_int_equal(make(rows[i].text, rows[i].total, &s), D9D_ECONFIG);
        assert_string_equal(d9d_err_message(), rows[i].sentence);
        assert_null(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_schedule_is_followed),
        cmocka_unit_test(curves_have_their_shapes),
        cmocka_unit_test(phases_without_steps_are_skipped),
        cmocka_unit_test(steps_alone_need_no_total),
        cmocka_unit_test(mistakes_are_named),
    };

    return cmocka_run_group_tests_name("piecewise", tests, NULL, NULL);
}
