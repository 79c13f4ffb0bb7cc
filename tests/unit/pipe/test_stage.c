/* test_stage.c - assigning layers to pipeline stages. */
#include "d9d/pipe/stage.h"
#include "support/unit.h"

typedef struct deal {
    int64_t layers;
    int count;
    int64_t pre, post;
    int64_t end[8]; /* end of the layers of each stage; the next stage begins there */
} deal;

static void layers_are_dealt_evenly(void **state)
{
    static const deal deals[] = {
        {24, 4, 1, 1, {6, 13, 19, 24}},
        {30, 4, 0, 2, {8, 16, 24, 30}},
        {34, 4, 0, 0, {9, 18, 26, 34}},
        {12, 2, 1, 1, {6, 12}},
        {10, 1, 1, 2, {10}},
        {16, 8, 0, 1, {3, 5, 7, 9, 11, 13, 15, 16}},
        {3, 3, 0, 0, {1, 2, 3}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(deals) / sizeof(deals[0]); i++) {
        const deal *d = &deals[i];
        int64_t expected = 0, first, end;

        for (int s = 0; s < d->count; s++) {
            assert_ok(d9d_stage_layers(d->layers, d->pre, d->post, (d9d_stage){s, d->count}, &first,
                                       &end));
            assert_int_equal(first, expected);
            assert_int_equal(end, d->end[s]);
            expected = end;
        }
        assert_int_equal(expected, d->layers);
    }
}

static void a_stage_without_layers_is_named(void **state)
{
    int64_t first = -7, end = -7;

    (void)state;
    assert_fails(d9d_stage_layers(0, 1, 1, (d9d_stage){0, 4}, &first, &end), D9D_ECONFIG,
                 "pipeline: stage 0 of 4 gets no layer: 0 layers, 1 virtual before and 1 after");
    /* Layers on every stage, also on those that have few. */
    for (int s = 0; s < 4; s++)
        assert_fails(
            d9d_stage_layers(2, 1, 1, (d9d_stage){s, 4}, &first, &end), D9D_ECONFIG,
            "pipeline: stage 0 of 4 gets no layer: 2 layers, 1 virtual before and 1 after");
    assert_fails(d9d_stage_layers(4, 0, 2, (d9d_stage){0, 3}, &first, &end), D9D_ECONFIG,
                 "pipeline: stage 2 of 3 gets no layer: 4 layers, 0 virtual before and 2 after");
    assert_fails(d9d_stage_layers(0, 0, 0, D9D_WHOLE_MODEL, &first, &end), D9D_ECONFIG,
                 "pipeline: stage 0 of 1 gets no layer: 0 layers, 0 virtual before and 0 after");
    assert_int_equal(first, -7);
    assert_int_equal(end, -7);
}

static void nonsense_is_refused(void **state)
{
    int64_t first, end;

    (void)state;
    assert_fails(d9d_stage_layers(4, 0, 0, (d9d_stage){2, 2}, &first, &end), D9D_ECONFIG,
                 "pipeline: stage 2 of 2");
    assert_fails(d9d_stage_layers(4, 0, 0, (d9d_stage){0, 0}, &first, &end), D9D_ECONFIG,
                 "pipeline: stage 0 of 0");
    assert_fails(d9d_stage_layers(4, -1, 0, (d9d_stage){0, 2}, &first, &end), D9D_ECONFIG,
                 "pipeline: 4 layers with -1 virtual before and 0 after");
    assert_fails_like(d9d_stage_layers(INT64_MAX, 1, 0, (d9d_stage){0, 2}, &first, &end),
                      D9D_ECONFIG, "with 1 virtual before");
}

static void ends_know_themselves(void **state)
{
    (void)state;
    assert_true(d9d_stage_is_first(D9D_WHOLE_MODEL) && d9d_stage_is_last(D9D_WHOLE_MODEL));
    assert_true(d9d_stage_is_first((d9d_stage){0, 3}) && !d9d_stage_is_last((d9d_stage){0, 3}));
    assert_true(!d9d_stage_is_first((d9d_stage){2, 3}) && d9d_stage_is_last((d9d_stage){2, 3}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_are_dealt_evenly),
        cmocka_unit_test(a_stage_without_layers_is_named),
        cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(ends_know_themselves),
    };

    return cmocka_run_group_tests_name("stage", tests, NULL, NULL);
}
