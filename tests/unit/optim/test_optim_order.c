/* test_optim_order.c - parameters that are updated before others, and one after the other. */
#include <string.h>

#include "d9d/optim/optim.h"
#include "support/optimizer_rig.h"
#include "support/unit.h"

/* --- some before the others ---------------------------------------------------------------- */

typedef struct order_calls {
    optim_rig *r;
    float before[PARAMS]; /* the first element of each */
    size_t calls;
} order_calls;

/* SHORT is updated when it is called for, and WIDE is not. */
static d9d_status update_before(void *arg, size_t i)
{
    order_calls *t = arg;

    assert_true(optim_rig_first_of(&t->r->param[SHORT]) != t->before[SHORT]);
    assert_true(optim_rig_first_of(&t->r->param[WIDE]) == t->before[WIDE]);
    assert_int_equal(t->calls++ % 2, i);
    return D9D_OK;
}

static void test_some_first(void **state)
{
    d9d_param *listed[] = {NULL, NULL};
    const d9d_params lists[] = {{listed, 1}, {listed + 1, 1}}, *first[] = {&lists[0], &lists[1]};
    optim_rig plain, r;
    order_calls t = {.r = &r};

    (void)state;
    optim_rig_open(&plain, "{\"name\": \"adamw\", \"lr\": 0.1}", D9D_F32);
    optim_rig_open(&r, "{\"name\": \"adamw\", \"lr\": 0.1}", D9D_F32);
    optim_rig_create(&plain, 1);
    optim_rig_create(&r, 1);
    listed[0] = &r.param[SHORT];
    listed[1] = &r.param[FROZEN];
    assert_ok(d9d_optimizer_set_order(r.opt, first, 2, update_before, &t));
    for (int k = 0; k < 3; k++) {
        optim_rig *both[] = {&plain, &r};

        for (int i = WIDE; i < PARAMS; i += SHORT)
            t.before[i] = optim_rig_first_of(&r.param[i]);
        for (int b = 0; b < 2; b++) {
            optim_rig_set_grad(&both[b]->param[WIDE], k);
            optim_rig_set_grad(&both[b]->param[SHORT], k);
            optim_rig_step(both[b], 0.1, 0.5f);
        }
    }
    assert_int_equal(t.calls, 6);
    for (int i = WIDE; i < PARAMS; i += SHORT)
        assert_memory_equal(d9d_tensor_data(&plain.param[i].shard.data),
                            d9d_tensor_data(&r.param[i].shard.data),
                            d9d_tensor_bytes(&r.param[i].shard.data));
    optim_rig_close(&plain);
    optim_rig_close(&r);
}

/* What update_list was called with, and how often. */
static size_t listed_n, listed_calls;

static d9d_status list_all(const void *config, const d9d_optimizer_update *u, size_t n)
{
    (void)config;
    assert_string_equal(u[0].param->name, "wide");
    listed_n = n;
    listed_calls++;
    return D9D_OK;
}

static d9d_status update_after(void *arg, size_t i)
{
    (void)i;
    assert_int_equal(listed_calls, 1);
    ++*(size_t *)arg;
    return D9D_OK;
}

/* A kind of somebody's who wants all parameters of a step gets them, in their order. */
static void test_all_at_once(void **state)
{
    d9d_param *listed[] = {NULL};
    const d9d_params list = {listed, 1}, *first[] = {&list};
    d9d_optimizer_kind kind = {.size = sizeof(kind), .update_list = list_all};
    size_t calls = 0;
    d9d_table table;
    optim_rig r;

    (void)state;
    optim_rig_open(&r, "{\"name\": \"adamw\", \"lr\": 0.1}", D9D_F32);
    table = *r.section.choice;
    table.row = &kind;
    kind.table = &table;
    r.section.choice = &table;
    optim_rig_create(&r, 1);
    listed[0] = &r.param[SHORT];
    assert_ok(d9d_optimizer_set_order(r.opt, first, 1, update_after, &calls));
    optim_rig_set_grad(&r.param[WIDE], 1);
    optim_rig_set_grad(&r.param[SHORT], 1);
    listed_calls = 0;
    optim_rig_step(&r, 0.1, 1.0f);
    assert_true(listed_n == 2 && listed_calls == 1 && calls == 1);
    optim_rig_close(&r);
}

/* --- one after the other ------------------------------------------------------------------- */

/* A parameter of no optimizer. */
static d9d_param stranger;

/* Every kind that can, with averages too: the bits of a step of all, whatever comes first. */
static void test_one_by_one(void **state)
{
    static const char *const sections[] = {
        "{\"name\": \"adamw\", \"lr\": 0.1, \"weight_decay\": 0.1}",
        ("{\"name\": \"adam\", \"lr\": 0.1, \"state_dtype\": \"int8\", "
         "\"groups\": [{\"pattern\": \"short\", \"lr_scale\": 2}]}"),
        "{\"name\": \"lion\", \"lr\": 0.1}",
        "{\"name\": \"sgd\", \"lr\": 0.1, \"momentum\": 0.9}",
        "{\"name\": \"schedule_free_adamw\", \"lr\": 0.1, \"warmup_steps\": 2}",
    };
    const d9d_ema_opts ema = {.decay = 0.5, .every_steps = 2, .start_step = 1, .dtype = D9D_F32};

    (void)state;
    for (size_t c = 0; c < sizeof(sections) / sizeof(sections[0]); c++) {
        const bool averages = strstr(sections[c], "schedule_free") == NULL;
        optim_rig plain, r, *both[] = {&plain, &r};
        int64_t *steps;
        size_t n;

        for (int b = 0; b < 2; b++) {
            optim_rig_open(both[b], sections[c], D9D_F32);
            assert_ok(d9d_optimizer_create(&both[b]->section, NULL, &both[b]->params, NULL, 1,
                                           &both[b]->opt));
            if (averages)
                assert_ok(d9d_optimizer_set_ema(both[b]->opt, &ema));
            assert_ok(d9d_optimizer_fill(both[b]->opt, both[b]->dev));
        }
        assert_ok(d9d_optimizer_check_step_some(r.opt));
        for (int k = 0; k < 4; k++) {
            d9d_param *some[] = {&r.param[k % 2 == 0 ? SHORT : WIDE], &r.param[FROZEN], &stranger};

            for (int b = 0; b < 2; b++)
                for (int i = WIDE; i < PARAMS; i += SHORT)
                    optim_rig_set_grad(&both[b]->param[i], k);
            *(float *)d9d_tensor_data(&r.scale) = 0.5f;
            assert_ok(d9d_optimizer_step_some(r.opt, &(d9d_params){some, 3}, 0.1, &r.scale));
            some[0]->local.has_grad = false; /* as a gradient that is released */
            optim_rig_step(&r, 0.1, 0.5f);
            optim_rig_step(&plain, 0.1, 0.5f);
        }
        for (int i = WIDE; i < PARAMS; i += SHORT)
            assert_memory_equal(d9d_tensor_data(&plain.param[i].shard.data),
                                d9d_tensor_data(&r.param[i].shard.data),
                                d9d_tensor_bytes(&r.param[i].shard.data));
        for (size_t i = 0; i < d9d_optimizer_state_count(r.opt); i++) {
            const d9d_tensor *a = d9d_optimizer_state_at(plain.opt, i).tensor,
                             *x = d9d_optimizer_state_at(r.opt, i).tensor;

            assert_memory_equal(d9d_tensor_data(a), d9d_tensor_data(x), d9d_tensor_bytes(x));
        }
        steps = d9d_optimizer_steps(r.opt, &n);
        assert_true(n == PARAMS && steps[WIDE] == 4 && steps[SHORT] == 4 && steps[FROZEN] == 0);
        optim_rig_close(&plain);
        optim_rig_close(&r);
    }
}

static void test_not_one_by_one(void **state)
{
    optim_rig r;

    (void)state;
    optim_rig_open(&r, "{\"name\": \"adafactor\", \"lr\": 0.1}", D9D_F32);
    optim_rig_create(&r, 1);
    assert_fails(d9d_optimizer_check_step_some(r.opt), D9D_ECONFIG,
                 "trainer.optimizer_in_backward: the optimizer adafactor updates all its "
                 "parameters together, so that their gradients stay; adamw, adam, lion, sgd and "
                 "schedule_free_adamw update one by one");
    optim_rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_some_first),
        cmocka_unit_test(test_all_at_once),
        cmocka_unit_test(test_one_by_one),
        cmocka_unit_test(test_not_one_by_one),
    };

    return cmocka_run_group_tests_name("optim order", tests, NULL, NULL);
}
