/* test_param_groups.c - groups of parameters by pattern, and learning rates by layer: each
 * parameter moves as under an optimizer of its own that has the group's values. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "d9d/base/json.h"
#include "d9d/base/rng.h"
#include "d9d/optim/optim.h"
#include "support/optimizer_config.h"
#include "support/unit.h"

/* A model of three layers, named as decoders name theirs. */
static const char *const names[] = {"embed.weight", "layers.0.w",  "layers.1.w", "layers.1.norm",
                                    "layers.2.w",   "norm.weight", "head.weight"};
enum { PARAMS = sizeof(names) / sizeof(names[0]), STEPS = 3 };
static const double layer_rates[PARAMS] = {0.125, 0.25, 0.5, 0.5, 1, 1, 1}; /* decay 0.5 */

typedef struct rig {
    d9d_device *dev;
    d9d_arena arena;
    d9d_module module;
    d9d_param param[PARAMS];
    d9d_params params;
    json_t *doc;
    d9d_union section;
    d9d_optimizer *opt;
    d9d_tensor scale;
} rig;

static d9d_status rig_bind(rig *r, const char *config)
{
    return optimizer_config_bind(config, &r->arena, &r->doc, &r->section);
}

static void rig_open(rig *r, d9d_dtype t)
{
    *r = (rig){0};
    assert_ok(d9d_device_open("cpu", &r->dev));
    d9d_module_init(&r->module);
    for (int i = 0; i < PARAMS; i++)
        assert_ok(d9d_module_param(&r->module, names[i], &r->param[i], t, D9D_SHAPE(3 + i, 5),
                                   D9D_INIT_NORMAL, 1.0f));
    assert_ok(d9d_module_bind(&r->module));
    assert_ok(d9d_module_materialise(&r->module, r->dev, true));
    assert_ok(d9d_module_reset(&r->module, 7));
    assert_ok(d9d_module_params(&r->module, &r->arena, &r->params));
    assert_ok(d9d_tensor_alloc(r->dev, D9D_F32, D9D_SCALAR, &r->scale));
    *(float *)d9d_tensor_data(&r->scale) = 0.5f;
}

static void rig_close(rig *r)
{
    d9d_optimizer_free(r->opt);
    d9d_tensor_release(&r->scale);
    d9d_module_release(&r->module);
    json_decref(r->doc);
    d9d_arena_release(&r->arena);
    d9d_device_close(r->dev);
}

static void run_steps(rig *r, double lr)
{
    for (int k = 0; k < STEPS; k++) {
        for (int p = 0; p < PARAMS; p++) {
            float *g = d9d_tensor_data(&r->param[p].local.grad);

            for (int64_t i = 0; i < d9d_tensor_numel(&r->param[p].local.grad); i++)
                g[i] = d9d_rng_normal((d9d_rng){9, r->param[p].id + (uint64_t)k}, (uint64_t)i);
            r->param[p].local.has_grad = true;
        }
        assert_ok(d9d_optimizer_step(r->opt, lr, &r->scale));
    }
}

/* What all parameters are after STEPS under one configuration without groups. */
static void run_plain(rig *r, d9d_dtype t, const char *config, double lr)
{
    rig_open(r, t);
    assert_ok(rig_bind(r, config));
    assert_ok(d9d_optimizer_create(&r->section, r->dev, &r->params, NULL, 1, &r->opt));
    run_steps(r, lr);
}

static bool param_equal(const rig *a, const rig *b, int p)
{
    return memcmp(d9d_tensor_data(&a->param[p].local.data),
                  d9d_tensor_data(&b->param[p].local.data),
                  d9d_tensor_bytes(&a->param[p].local.data)) == 0;
}

/* --- groups ------------------------------------------------------------------------------------
 */

typedef struct group_case {
    const char *config;   /* with groups */
    const char *plain[3]; /* without: the values of groups 0 and 1 and of the others */
    double lr_scale[3];   /* of these */
    int group[PARAMS];    /* which of the three each parameter has */
} group_case;

static const group_case group_cases[] = {
    {"{\"name\": \"adamw\", \"lr\": 1, \"weight_decay\": 0.5, \"groups\": [{\"pattern\": "
     "\".*norm.*\", \"weight_decay\": 0}, {\"pattern\": \"embed\\\\..*|.*\\\\.norm\", "
     "\"lr_scale\": 0.25}]}",
     {"{\"name\": \"adamw\", \"lr\": 1, \"weight_decay\": 0}",
      "{\"name\": \"adamw\", \"lr\": 1, \"weight_decay\": 0.5}",
      "{\"name\": \"adamw\", \"lr\": 1, \"weight_decay\": 0.5}"},
     {1, 0.25, 1},
     {1, 2, 2, 0, 2, 0, 2}},
    {"{\"name\": \"adam\", \"lr\": 1, \"groups\": [{\"pattern\": \"layers\\\\.[01].*\", \"betas\": "
     "[0.5, 0.75], \"eps\": 0.125}, {\"pattern\": \"head.weight\", \"lr_scale\": 0}]}",
     {"{\"name\": \"adam\", \"lr\": 1, \"betas\": [0.5, 0.75], \"eps\": 0.125}",
      "{\"name\": \"adam\", \"lr\": 1}", "{\"name\": \"adam\", \"lr\": 1}"},
     {1, 0, 1},
     {2, 0, 0, 0, 2, 2, 1}},
    {"{\"name\": \"sgd\", \"lr\": 1, \"momentum\": 0.5, \"groups\": [{\"pattern\": \"head.*\", "
     "\"weight_decay\": 0.5, \"lr_scale\": 2}, {\"pattern\": \".*\"}]}",
     {"{\"name\": \"sgd\", \"lr\": 1, \"momentum\": 0.5, \"weight_decay\": 0.5}",
      "{\"name\": \"sgd\", \"lr\": 1, \"momentum\": 0.5}",
      "{\"name\": \"sgd\", \"lr\": 1, \"momentum\": 0.5}"},
     {2, 1, 1},
     {1, 1, 1, 1, 1, 1, 0}},
};

static void check_groups(const group_case *c, d9d_dtype t)
{
    const double lr = 0.0625;
    rig r, plain[3];

    run_plain(&r, t, c->config, lr);
    for (int g = 0; g < 3; g++)
        run_plain(&plain[g], t, c->plain[g], lr * c->lr_scale[g]);
    for (int p = 0; p < PARAMS; p++)
        for (int g = 0; g < 3; g++)
            if (g == c->group[p] && !param_equal(&r, &plain[g], p))
                fail_msg("%s: %s is not as in group %d", c->config, names[p], g);
    for (int g = 0; g < 3; g++)
        rig_close(&plain[g]);
    rig_close(&r);
}

static void test_groups(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(group_cases) / sizeof(group_cases[0]); i++) {
        check_groups(&group_cases[i], D9D_F32);
        check_groups(&group_cases[i], D9D_BF16);
    }
}

/* The values make a difference: the first case's groups are not the others. */
static void test_groups_differ(void **state)
{
    const group_case *c = &group_cases[0];
    rig r, plain;

    (void)state;
    run_plain(&r, D9D_F32, c->config, 0.0625);
    run_plain(&plain, D9D_F32, c->plain[2], 0.0625);
    for (int p = 0; p < PARAMS; p++)
        assert_int_equal(param_equal(&r, &plain, p), c->group[p] == 2);
    rig_close(&plain);
    rig_close(&r);
}

/* --- layers ------------------------------------------------------------------------------------
 */

/* Parameter p of `part` parameters from `first` on, as a pipeline stage has them. */
static void check_layers(const char *config, size_t first, size_t part)
{
    rig r, plain;
    d9d_params stage;

    rig_open(&r, D9D_F32);
    assert_ok(rig_bind(&r, config));
    stage = (d9d_params){r.params.p + first, part};
    assert_ok(d9d_optimizer_create(&r.section, r.dev, &stage, &r.params, 1, &r.opt));
    run_steps(&r, 0.0625);
    for (size_t p = first; p < first + part; p++) {
        run_plain(&plain, D9D_F32, "{\"name\": \"adamw\", \"lr\": 1}", 0.0625 * layer_rates[p]);
        if (!param_equal(&r, &plain, (int)p))
            fail_msg("%s has not %g of the rate", names[p], layer_rates[p]);
        rig_close(&plain);
    }
    rig_close(&r);
}

static void test_layers(void **state)
{
    const char *config = "{\"name\": \"adamw\", \"lr\": 1, \"layer_lr_decay\": 0.5}";

    (void)state;
    check_layers(config, 0, PARAMS);
    check_layers(config, 0, 3); /* a stage knows the layers of the whole */
    check_layers(config, 2, 5);
}

/* --- errors and description --------------------------------------------------------------------
 */

static void test_bad_groups(void **state)
{
    static const struct {
        const char *config, *sentence;
    } rows[] = {
        {"{\"name\": \"adamw\", \"lr\": 1, \"groups\": [{\"pattern\": \"head.*\"}, {\"pattern\": "
         "\"bias\"}]}",
         "optimizer.groups[1].pattern \"bias\": of 7 parameters it matches none that is trained; "
         "the first is embed.weight"},
        {"{\"name\": \"adamw\", \"lr\": 1, \"groups\": [{\"pattern\": \"norm.weight\"}]}",
         "optimizer.groups[0].pattern \"norm.weight\": of 7 parameters it matches none"},
        {"{\"name\": \"adamw\", \"lr\": 1, \"groups\": [{\"pattern\": \"layers.*\"}, {\"pattern\": "
         "\"head.*\"}, {\"pattern\": \".*head.*\"}]}",
         "optimizer.groups[2].pattern \".*head.*\": earlier groups have all 1 parameter that it "
         "matches; head.weight is of groups[1] with \"head.*\""},
        {"{\"name\": \"adamw\", \"lr\": 1, \"groups\": [{\"pattern\": \"*.bias\"}]}",
         "optimizer.groups[0].pattern \"*.bias\": quantifier does not follow a repeatable item"},
        {"{\"name\": \"sgd\", \"lr\": 1, \"groups\": [{\"pattern\": \".*\", \"eps\": 0.5}]}",
         "optimizer.groups[0].eps: the optimizer sgd has no eps"},
        {"{\"name\": \"sgd\", \"lr\": 1, \"groups\": [{\"pattern\": \".*\", \"betas\": [0, 0]}]}",
         "optimizer.groups[0].betas: the optimizer sgd has no betas"},
        /* What the optimizer's own key refuses: beta1 divides. */
        {"{\"name\": \"schedule_free_adamw\", \"lr\": 1, \"groups\": [{\"pattern\": \".*\", "
         "\"betas\": [0, 0.9]}]}",
         "optimizer.groups[0]: betas[0]: 0 is not above 0"},
        {"{\"name\": \"adamw\", \"lr\": 1, \"groups\": [{\"weight_decay\": 1}]}", "pattern"},
        {"{\"name\": \"adamw\", \"lr\": 1, \"groups\": [{\"pattern\": \"\"}]}", "pattern"},
        {"{\"name\": \"adamw\", \"lr\": 1, \"groups\": [{\"pattern\": \".*\", \"lr_scale\": -1}]}",
         "lr_scale"},
        {"{\"name\": \"adamw\", \"lr\": 1, \"groups\": [{\"pattern\": \".*\", \"betas\": [1, 0]}]}",
         "betas"},
        {"{\"name\": \"adamw\", \"lr\": 1, \"groups\": [{\"pattern\": \".*\", \"lr\": 0.1}]}",
         "unknown key"},
        {"{\"name\": \"adamw\", \"lr\": 1, \"layer_lr_decay\": 0}", "layer_lr_decay"},
        {"{\"name\": \"adamw\", \"lr\": 1, \"layer_lr_decay\": 1.1}", "layer_lr_decay"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        d9d_optimizer *o = NULL;
        d9d_status st;
        rig r;

        rig_open(&r, D9D_F32);
        r.param[5].spec.trainable = false; /* norm.weight */
        st = rig_bind(&r, rows[i].config);
        if (st == D9D_OK)
            st = d9d_optimizer_create(&r.section, r.dev, &r.params, NULL, 1, &o);
        assert_fails_like(st, D9D_ECONFIG, rows[i].sentence);
        assert_null(o);
        rig_close(&r);
    }
}

static void test_no_layers(void **state)
{
    d9d_params head;
    d9d_optimizer *o;
    rig r;

    (void)state;
    rig_open(&r, D9D_F32);
    head = (d9d_params){r.params.p + 5, 2};
    assert_ok(rig_bind(&r, "{\"name\": \"sgd\", \"lr\": 1, \"layer_lr_decay\": 0.5}"));
    assert_fails_like(d9d_optimizer_create(&r.section, r.dev, &head, NULL, 1, &o), D9D_ECONFIG,
                      "optimizer.layer_lr_decay is 0.5, and none of the model's 2 parameters has a "
                      "name with \"layers.<number>.\"");
    assert_ok(rig_bind(&r, "{\"name\": \"sgd\", \"lr\": 1}"));
    assert_fails_like(d9d_optimizer_create(&r.section, r.dev, &r.params, &head, 1, &o), D9D_EINVAL,
                      "embed.weight is not among the 2 parameters of the model");
    rig_close(&r);
}

static void test_describe(void **state)
{
    d9d_buf text = {0};
    d9d_params stage;
    rig r;

    (void)state;
    rig_open(&r, D9D_F32);
    r.param[5].spec.trainable = false;
    stage = (d9d_params){r.params.p, 2};
    assert_ok(rig_bind(&r, "{\"name\": \"adamw\", \"lr\": 1, \"layer_lr_decay\": 0.5, \"groups\": "
                           "[{\"pattern\": \".*norm.*\", \"weight_decay\": 0, \"betas\": [0, 0.5], "
                           "\"eps\": 0.25}, {\"pattern\": \"embed.*\", \"lr_scale\": 0.1}]}"));
    assert_ok(d9d_optimizer_create(&r.section, r.dev, &stage, &r.params, 1, &r.opt));
    assert_ok(d9d_optimizer_describe(r.opt, &text));
    assert_string_equal(
        text.data,
        "adamw: float32 weights; bytes a parameter: weights 4, gradients 4, exp_avg 4, exp_avg_sq "
        "4, in all 16; group \".*norm.*\": 1 parameter of 30 elements, lr_scale 1, weight_decay "
        "0, "
        "betas 0 0.5, eps 0.25; group \"embed.*\": 1 parameter of 15 elements, lr_scale 0.1; the "
        "others: 4 parameters of 125 elements; layer_lr_decay 0.5 over 3 layers: embedding 0.125, "
        "head 1");
    d9d_buf_release(&text);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups),    cmocka_unit_test(test_groups_differ),
        cmocka_unit_test(test_layers),    cmocka_unit_test(test_bad_groups),
        cmocka_unit_test(test_no_layers), cmocka_unit_test(test_describe),
    };

    return cmocka_run_group_tests_name("param_groups", tests, NULL, NULL);
}
