/* test_grad_finalize.c - gradients as a whole: norm, clipping, numbers that are not finite. */
#include <math.h>
#include <string.h>

#include "d9d/optim/optim.h"
#include "support/optimizer_rig.h"
#include "support/unit.h"

/* --- gradients as a whole
 * ---------------------------------------------------------------------------- */

/* Norm of the gradients times `mean`, as a step finds it. */
static double step_norm(optim_rig *r, double mean)
{
    const d9d_grad_finalize_local own = {.targets = 1.0 / mean};
    double zero = 0;
    d9d_grad_finalize_report report;
    d9d_grad_finalize end;

    assert_ok(d9d_grad_finalize_init(r->dev, 1, 0, NULL, &end));
    *(double *)d9d_tensor_data(&end.loss) = zero;
    assert_ok(d9d_grad_finalize_enqueue(&end, &r->params, &own, 0));
    assert_ok(d9d_device_download(r->dev, &report, d9d_tensor_data(&end.report), sizeof(report)));
    d9d_grad_finalize_release(&end);
    assert_true(report.targets == own.targets && report.loss == 0);
    return report.norm;
}

static void test_norm(void **state)
{
    double want = 0, got;
    optim_rig r;

    (void)state;
    optim_rig_open(&r, "{\"name\": \"sgd\", \"lr\": 1}", D9D_F32);
    assert_true(step_norm(&r, 2.0) == 0); /* no gradients */
    optim_rig_set_grad(&r.param[WIDE], 1);
    optim_rig_set_grad(&r.param[SHORT], 1);
    for (int p = WIDE; p < PARAMS; p += SHORT)
        for (int64_t i = 0; i < d9d_tensor_numel(&r.param[p].local.grad); i++)
            want += pow(((const float *)d9d_tensor_data(&r.param[p].local.grad))[i], 2);
    got = step_norm(&r, -0.5);
    assert_true(fabs(got - 0.5 * sqrt(want)) <= 1e-12 * sqrt(want));
    r.param[WIDE].local.has_grad = false;
    ((float *)d9d_tensor_data(&r.param[WIDE].local.grad))[0] = NAN; /* forgotten: does not count */
    got = step_norm(&r, 1.0);
    assert_true(isfinite(got) && got > 0);
    optim_rig_close(&r);
}

static void test_nonfinite(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    const d9d_param *found;
    int64_t at;
    optim_rig r;

    (void)state;
    optim_rig_open(&r, "{\"name\": \"sgd\", \"lr\": 1}", D9D_F32);
    optim_rig_set_grad(&r.param[WIDE], 1);
    optim_rig_set_grad(&r.param[SHORT], 1);
    found = &r.param[WIDE];
    assert_ok(d9d_optimizer_find_nonfinite_grad(r.dev, &r.params, &found, &at));
    assert_null(found);
    for (size_t i = 0; i < 3; i++) {
        optim_rig_set_grad(&r.param[WIDE], 1);
        ((float *)d9d_tensor_data(&r.param[SHORT].local.grad))[2] = bad[i];
        assert_ok(d9d_optimizer_find_nonfinite_grad(r.dev, &r.params, &found, &at));
        assert_ptr_equal(found, &r.param[SHORT]);
        assert_int_equal(at, 2);
        ((float *)d9d_tensor_data(&r.param[WIDE].local.grad))[77] = bad[i];
        assert_ok(d9d_optimizer_find_nonfinite_grad(r.dev, &r.params, &found, &at));
        assert_ptr_equal(found, &r.param[WIDE]);
        assert_int_equal(at, 77);
    }
    optim_rig_close(&r);
}

/* A step whose gradients come one after the other; of `first`, then of the rest. */
static d9d_grad_finalize_report released_step(optim_rig *r, d9d_grad_finalize *end, int64_t k,
                                              int first)
{
    const d9d_grad_finalize_local own = {.targets = 4};
    d9d_param *some[] = {&r->param[first]};
    d9d_grad_finalize_report report;

    *(double *)d9d_tensor_data(&end->loss) = 3;
    assert_ok(d9d_grad_finalize_begin(end, k, &own));
    assert_ok(d9d_grad_finalize_add(end, &(d9d_params){some, 1}));
    assert_ok(d9d_optimizer_step_some(r->opt, &(d9d_params){some, 1}, 0.1, &end->scale));
    some[0]->local.has_grad = false;
    assert_ok(d9d_grad_finalize_enqueue(end, &r->params, &own, NAN));
    assert_ok(d9d_optimizer_step(r->opt, 0.1, &end->scale));
    assert_ok(d9d_device_download(r->dev, &report, d9d_tensor_data(&end->report), sizeof(report)));
    return report;
}

/* The norm's bits and the factor do not depend on what came first, or on ranks that count a copy.
 */
static void test_released_norm(void **state)
{
    d9d_grad_finalize_report report;
    d9d_grad_finalize end;
    double want;
    optim_rig r;

    (void)state;
    optim_rig_open(&r, "{\"name\": \"sgd\", \"lr\": 1}", D9D_F32);
    optim_rig_create(&r, 1);
    for (int k = 0; k < 4; k++) {
        r.param[WIDE].placement.is_primary = k < 2;
        assert_ok(d9d_grad_finalize_init(r.dev, 1, 0, NULL, &end));
        assert_ok(d9d_grad_finalize_set_released(&end, &r.params));
        optim_rig_set_grad(&r.param[WIDE], k);
        optim_rig_set_grad(&r.param[SHORT], k);
        want = step_norm(&r, 0.25);
        report = released_step(&r, &end, k, k % 2 == 0 ? SHORT : WIDE);
        assert_memory_equal(&report.norm, &want, sizeof(want));
        assert_true(report.loss == 3 && report.targets == 4);
        assert_true(*(const float *)d9d_tensor_data(&end.scale) == 0.25f);
        d9d_grad_finalize_release(&end);
    }
    optim_rig_close(&r);
}

/* A gradient that is not finite, or a loss: it and what follows it are not updated, also in later
 * steps, and it is named. */
static void test_released_nonfinite(void **state)
{
    const d9d_param *culprit;
    d9d_grad_finalize end;

    (void)state;
    for (int bad = 0; bad < 3; bad++) { /* WIDE, FROZEN for a loss, SHORT */
        float wide, brief;
        optim_rig r;

        optim_rig_open(&r, "{\"name\": \"sgd\", \"lr\": 1}", D9D_F32);
        optim_rig_create(&r, 1);
        assert_ok(d9d_grad_finalize_init(r.dev, 1, 0, NULL, &end));
        assert_ok(d9d_grad_finalize_set_released(&end, &r.params));
        for (int i = WIDE; i < PARAMS; i += SHORT)
            optim_rig_set_grad(&r.param[i], 1);
        (void)released_step(&r, &end, 6, SHORT);
        assert_ok(d9d_grad_finalize_find_nonfinite(&end, 6, &culprit));
        assert_null(culprit);
        for (int i = WIDE; i < PARAMS; i += SHORT)
            optim_rig_set_grad(&r.param[i], 2);
        if (bad != FROZEN)
            ((float *)d9d_tensor_data(&r.param[bad].local.grad))[1] = NAN;
        wide = optim_rig_first_of(&r.param[WIDE]);
        brief = optim_rig_first_of(&r.param[SHORT]);
        if (bad == FROZEN) {
            *(double *)d9d_tensor_data(&end.loss) = INFINITY;
            assert_ok(d9d_grad_finalize_begin(&end, 7, &(d9d_grad_finalize_local){.targets = 1}));
            assert_true(isnan(*(const float *)d9d_tensor_data(&end.scale)));
        }
        (void)released_step(&r, &end, 7, SHORT);
        assert_true(optim_rig_first_of(&r.param[WIDE]) == wide);
        assert_true((optim_rig_first_of(&r.param[SHORT]) == brief) == (bad != WIDE));
        assert_ok(d9d_grad_finalize_find_nonfinite(&end, 7, &culprit));
        assert_ptr_equal(culprit, bad == FROZEN ? NULL : &r.param[bad]);
        brief = optim_rig_first_of(&r.param[SHORT]);
        for (int i = WIDE; i < PARAMS; i += SHORT)
            optim_rig_set_grad(&r.param[i], 3);
        (void)released_step(&r, &end, 8, SHORT);
        assert_true(optim_rig_first_of(&r.param[SHORT]) == brief &&
                    optim_rig_first_of(&r.param[WIDE]) == wide);
        assert_ok(d9d_grad_finalize_find_nonfinite(&end, 7, &culprit));
        assert_ptr_equal(culprit, bad == FROZEN ? NULL : &r.param[bad]);
        d9d_grad_finalize_release(&end);
        optim_rig_close(&r);
    }
}

/* A step that must not count changes neither parameters nor state, whatever the optimizer. */
static void test_nan_scale_updates_nothing(void **state)
{
    static const struct {
        const char *section;
        d9d_dtype dtype;
    } cases[] = {
        {"{\"name\": \"adamw\", \"lr\": 1, \"weight_decay\": 0.5}", D9D_F32},
        {"{\"name\": \"adam\", \"lr\": 1, \"amsgrad\": true}", D9D_BF16},
        {"{\"name\": \"sgd\", \"lr\": 1, \"momentum\": 0.9, \"weight_decay\": 0.5}", D9D_F32},
        {"{\"name\": \"stochastic_adamw\", \"lr\": 1}", D9D_BF16},
        {"{\"name\": \"lion\", \"lr\": 1, \"weight_decay\": 0.5}", D9D_BF16},
    };

    (void)state;
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        unsigned char before[4096];
        uint64_t bytes;
        optim_rig r;

        optim_rig_open(&r, cases[c].section, cases[c].dtype);
        optim_rig_create(&r, 1);
        bytes = d9d_tensor_bytes(&r.param[WIDE].local.data);
        assert_true(bytes <= sizeof(before));
        memcpy(before, d9d_tensor_data(&r.param[WIDE].local.data), bytes);
        optim_rig_set_grad(&r.param[WIDE], 1);
        optim_rig_step(&r, 0.1, NAN);
        assert_memory_equal(before, d9d_tensor_data(&r.param[WIDE].local.data), bytes);
        for (size_t i = 0; i < d9d_optimizer_state_count(r.opt); i++) {
            const d9d_tensor *t = d9d_optimizer_state_at(r.opt, i).tensor;
            const unsigned char *x = d9d_tensor_data(t);

            for (uint64_t k = 0; k < d9d_tensor_bytes(t); k++)
                assert_int_equal(x[k], 0);
        }
        optim_rig_step(&r, 0.1, 1.0f);
        assert_memory_not_equal(before, d9d_tensor_data(&r.param[WIDE].local.data), bytes);
        optim_rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_released_norm),
        cmocka_unit_test(test_released_nonfinite),
        cmocka_unit_test(test_norm),
        cmocka_unit_test(test_nonfinite),
        cmocka_unit_test(test_nan_scale_updates_nothing),
    };

    return cmocka_run_group_tests_name("grad finalize", tests, NULL, NULL);
}
