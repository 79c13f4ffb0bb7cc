/* test_optim.c - optimizers against their formulas in double, their configuration and what they
 * print. */
#include <math.h>
#include <stdlib.h>

#include "d9d/base/json.h"
#include "d9d/optim/optim.h"
#include "support/optimizer_config.h"
#include "support/optimizer_rig.h"
#include "support/unit.h"

/* --- the formulas of optim.h, in double ---------------------------------------------------- */

typedef struct naive {
    double b1, b2, eps, wd, mom, damp;
    bool decoupled, amsgrad, maximize, nesterov, sgd, lion;
} naive;

typedef struct naive_state {
    double p, m, v, vmax;
} naive_state;

static void naive_adam(const naive *c, naive_state *s, double g, double lr, int n)
{
    double v;

    if (c->decoupled)
        s->p -= lr * c->wd * s->p;
    else
        g += c->wd * s->p;
    s->m = c->b1 * s->m + (1 - c->b1) * g;
    s->v = c->b2 * s->v + (1 - c->b2) * g * g;
    s->vmax = fmax(s->vmax, s->v);
    v = c->amsgrad ? s->vmax : s->v;
    s->p -= lr * (s->m / (1 - pow(c->b1, n))) / (sqrt(v / (1 - pow(c->b2, n))) + c->eps);
}

static void naive_lion(const naive *c, naive_state *s, double g, double lr)
{
    const double u = c->b1 * s->m + (1 - c->b1) * g;

    s->p -= lr * c->wd * s->p;
    s->p -= lr * ((u > 0) - (u < 0));
    s->m = c->b2 * s->m + (1 - c->b2) * g;
}

static void naive_sgd(const naive *c, naive_state *s, double g, double lr, int n)
{
    g += c->wd * s->p;
    if (c->mom != 0) {
        s->m = n == 1 ? g : c->mom * s->m + (1 - c->damp) * g;
        g = c->nesterov ? g + c->mom * s->m : s->m;
    }
    s->p -= lr * g;
}

static void naive_step(const naive *c, naive_state *s, double g, double lr, int n)
{
    g = c->maximize ? -g : g;
    if (c->lion)
        naive_lion(c, s, g, lr);
    else
        (c->sgd ? naive_sgd : naive_adam)(c, s, g, lr, n);
}

static const struct formula {
    const char *config;
    naive c;
} formulas[] = {
    {"{\"name\": \"adamw\", \"lr\": 0.01}",
     {.b1 = 0.9, .b2 = 0.999, .eps = 1e-8, .wd = 0.01, .decoupled = true}},
    {"{\"name\": \"adamw\", \"lr\": 0.01, \"betas\": [0.8, 0.95], \"eps\": 0.001, "
     "\"weight_decay\": 0.3, \"amsgrad\": true, \"maximize\": true}",
     {.b1 = 0.8,
      .b2 = 0.95,
      .eps = 1e-3,
      .wd = 0.3,
      .decoupled = true,
      .amsgrad = true,
      .maximize = true}},
    {"{\"name\": \"adam\", \"lr\": 0.01, \"weight_decay\": 0.3}",
     {.b1 = 0.9, .b2 = 0.999, .eps = 1e-8, .wd = 0.3}},
    {"{\"name\": \"adam\", \"lr\": 0.01, \"betas\": [0, 0.5], \"decoupled_weight_decay\": true}",
     {.b1 = 0, .b2 = 0.5, .eps = 1e-8, .wd = 0.01, .decoupled = true}},
    {"{\"name\": \"lion\", \"lr\": 0.01}", {.lion = true, .b1 = 0.9, .b2 = 0.99}},
    {"{\"name\": \"lion\", \"lr\": 0.01, \"betas\": [0.5, 0.75], \"weight_decay\": 0.3}",
     {.lion = true, .b1 = 0.5, .b2 = 0.75, .wd = 0.3}},
    {"{\"name\": \"sgd\", \"lr\": 0.01}", {.sgd = true}},
    {"{\"name\": \"sgd\", \"lr\": 0.01, \"weight_decay\": 0.2, \"maximize\": true}",
     {.sgd = true, .wd = 0.2, .maximize = true}},
    {"{\"name\": \"sgd\", \"lr\": 0.01, \"momentum\": 0.9, \"dampening\": 0.4}",
     {.sgd = true, .mom = 0.9, .damp = 0.4}},
    {"{\"name\": \"sgd\", \"lr\": 0.01, \"momentum\": 0.7, \"nesterov\": true}",
     {.sgd = true, .mom = 0.7, .nesterov = true}},
};
enum { FORMULAS = sizeof(formulas) / sizeof(formulas[0]), STEPS = 6 };

static void check_formula(const struct formula *f, int p, float scale)
{
    const double lr[STEPS] = {0.1, 0.05, 0.2, 0, 0.01, 0.3}; /* a schedule moves it */
    const int64_t n = p == WIDE ? 9 * 31 : 3;
    naive_state *s = calloc((size_t)n, sizeof(*s));
    optim_rig r;

    assert_non_null(s);
    optim_rig_open(&r, f->config, D9D_F32);
    optim_rig_create(&r, 1);
    for (int64_t i = 0; i < n; i++)
        s[i].p = ((const float *)d9d_tensor_data(&r.param[p].local.data))[i];
    for (int k = 0; k < STEPS; k++) {
        optim_rig_set_grad(&r.param[WIDE], k);
        optim_rig_set_grad(&r.param[SHORT], k);
        for (int64_t i = 0; i < n; i++)
            naive_step(&f->c, &s[i],
                       (double)((const float *)d9d_tensor_data(&r.param[p].local.grad))[i] * scale,
                       lr[k], k + 1);
        optim_rig_step(&r, lr[k], scale);
        for (int64_t i = 0; i < n; i++) {
            const double got = ((const float *)d9d_tensor_data(&r.param[p].local.data))[i];

            if (!(fabs(got - s[i].p) <= 2e-6 * (1 + fabs(s[i].p))))
                fail_msg("%s: step %d, element %lld: %.9g, the formula gives %.9g", f->config,
                         k + 1, (long long)i, got, s[i].p);
        }
    }
    optim_rig_close(&r);
    free(s);
}

static void test_formulas(void **state)
{
    (void)state;
    for (size_t i = 0; i < FORMULAS; i++) {
        check_formula(&formulas[i], WIDE, 1.0f);
        check_formula(&formulas[i], SHORT, 0.25f);
    }
}

/* Weights of an average as large and as small as a configuration may make them: their powers are
 * beyond a double. */
static void test_extreme_weights(void **state)
{
    static const char *const configs[] = {
        "{\"name\": \"schedule_free_adamw\", \"lr\": 0.01, \"r\": 100}",
        "{\"name\": \"schedule_free_adamw\", \"lr\": 0.01, \"warmup_steps\": 1000000, "
        "\"weight_lr_power\": 100}"};

    (void)state;
    for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++) {
        optim_rig r;

        optim_rig_open(&r, configs[i], D9D_F32);
        optim_rig_create(&r, 1);
        for (int k = 0; k < 1500; k++) {
            optim_rig_set_grad(&r.param[SHORT], k);
            optim_rig_step(&r, 0.01, 1.0f);
            if (!isfinite(optim_rig_first_of(&r.param[SHORT])))
                fail_msg("%s: step %d is not finite", configs[i], k + 1);
        }
        optim_rig_close(&r);
    }
}

/* --- configuration
 * ---------------------------------------------------------------------------------- */

static void test_bad_configurations(void **state)
{
    static const struct {
        const char *config, *sentence;
    } rows[] = {
        {"{\"name\": \"adamw\"}", "lr"},
        {"{\"name\": \"adamw\", \"lr\": 0}", "lr"},
        {"{\"name\": \"sgd\", \"lr\": -0.1}", "lr"},
        {"{\"name\": \"adamw\", \"lr\": 1, \"betas\": [0.9]}", "betas"},
        {"{\"name\": \"adamw\", \"lr\": 1, \"betas\": [0.9, 0.9, 0.9]}", "betas"},
        {"{\"name\": \"adam\", \"lr\": 1, \"betas\": [0.9, 1.0]}", "betas"},
        {"{\"name\": \"adam\", \"lr\": 1, \"betas\": [-0.1, 0.9]}", "betas"},
        {"{\"name\": \"adamw\", \"lr\": 1, \"eps\": 0}", "eps"},
        {"{\"name\": \"adamw\", \"lr\": 1, \"weight_decay\": -1}", "weight_decay"},
        {"{\"name\": \"adamw\", \"lr\": 1, \"momentum\": 0.9}", "momentum"},
        {"{\"name\": \"sgd\", \"lr\": 1, \"nesterov\": true}",
         "nesterov needs a momentum and no dampening"},
        {"{\"name\": \"sgd\", \"lr\": 1, \"nesterov\": true, \"momentum\": 0.9, "
         "\"dampening\": 0.1}",
         "nesterov needs a momentum and no dampening"},
        {"{\"name\": \"stochastic_adamw\", \"lr\": 1, \"state_dtype\": \"float16\"}",
         "state_dtype"},
        {"{\"name\": \"adam\", \"lr\": 1, \"amsgrad\": true, \"weight_update\": \"stochastic\"}",
         "amsgrad does not support stochastic rounding"},
        {"{\"name\": \"adamw\", \"lr\": 1, \"amsgrad\": true, \"state_dtype\": \"bfloat16\"}",
         "amsgrad does not support stochastic rounding"},
        {"{\"name\": \"sgd\", \"lr\": 1, \"weight_update\": \"stochastic\"}", "weight_update"},
        {"{\"name\": \"adamw\", \"lr\": 1, \"eps\": 1e-300}", "eps: 1e-300 is 0 in float32"},
        {"{\"name\": \"adamw\", \"lr\": 1, \"betas\": [0.9, 0.99999999]}",
         "betas[1]: 0.99999999 is 1 in float32"},
        {"{\"name\": \"adamw\", \"lr\": 1e-46}", "lr: 1e-46 is 0 in float32"},
        {"{\"name\": \"adam\", \"lr\": 1, \"weight_decay\": 1e-60}",
         "weight_decay: 1e-60 is 0 in float32"},
        {"{\"name\": \"sgd\", \"lr\": 1, \"momentum\": 1e-50}", "momentum: 1e-50 is 0 in float32"},
        {"{\"name\": \"lion\", \"lr\": 1, \"eps\": 1e-8}", "eps"},
        {"{\"name\": \"lion\", \"lr\": 1, \"betas\": [0.9, 1]}", "betas"},
        {"{\"name\": \"adamv\", \"lr\": 1}", "adamw"},
    };
    d9d_arena a = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        d9d_union bound;
        json_t *doc = NULL;

        assert_fails_like(optimizer_config_bind(rows[i].config, &a, &doc, &bound), D9D_ECONFIG,
                          rows[i].sentence);
        json_decref(doc);
    }
    d9d_arena_release(&a);
}

static void test_rate_of_a_section(void **state)
{
    d9d_arena a = {0};
    d9d_union bound;
    json_t *doc = NULL;

    (void)state;
    assert_ok(optimizer_config_bind("{\"name\": \"sgd\", \"lr\": 0.125}", &a, &doc, &bound));
    assert_true(d9d_optimizer_lr(&bound) == 0.125);
    json_decref(doc);
    d9d_arena_release(&a);
}

static void test_stochastic_wants_bfloat16(void **state)
{
    optim_rig r;

    (void)state;
    optim_rig_open(&r, "{\"name\": \"stochastic_adamw\", \"lr\": 0.1}", D9D_F32);
    assert_fails_like(d9d_optimizer_create(&r.section, r.dev, &r.params, NULL, 1, &r.opt),
                      D9D_ECONFIG, "stochastic_adamw rounds to bfloat16, and wide is float32");
    optim_rig_close(&r);
}

static void test_describe(void **state)
{
    static const struct {
        const char *config;
        d9d_dtype t;
        const char *text;
    } rows[] = {
        {"{\"name\": \"adamw\", \"lr\": 1}", D9D_BF16,
         "adamw: bfloat16 weights updated as float32 master weights; bytes a parameter: weights 2, "
         "gradients 4, exp_avg 4, exp_avg_sq 4, master_residual 2, in all 16"},
        {"{\"name\": \"adamw\", \"lr\": 1}", D9D_F32,
         "adamw: float32 weights; bytes a parameter: weights 4, gradients 4, exp_avg 4, "
         "exp_avg_sq 4, in all 16"},
        {"{\"name\": \"stochastic_adamw\", \"lr\": 1}", D9D_BF16,
         "stochastic_adamw: bfloat16 weights rounded stochastically; bytes a parameter: weights 2, "
         "gradients 4, exp_avg 4, exp_avg_sq 4, in all 14"},
        {"{\"name\": \"lion\", \"lr\": 1}", D9D_BF16,
         "lion: bfloat16 weights updated as float32 master weights; bytes a parameter: weights 2, "
         "gradients 4, exp_avg 4, master_residual 2, in all 12"},
        {"{\"name\": \"sgd\", \"lr\": 1, \"weight_update\": \"nearest\"}", D9D_BF16,
         "sgd: bfloat16 weights rounded to nearest, so that small updates are lost; bytes a "
         "parameter: weights 2, gradients 4, in all 6"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        d9d_buf text = {0};
        optim_rig r;

        optim_rig_open(&r, rows[i].config, rows[i].t);
        optim_rig_create(&r, 1);
        assert_ok(d9d_optimizer_describe(r.opt, &text));
        assert_string_equal(text.data, rows[i].text);
        d9d_buf_release(&text);
        optim_rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formulas),
        cmocka_unit_test(test_extreme_weights),
        cmocka_unit_test(test_bad_configurations),
        cmocka_unit_test(test_rate_of_a_section),
        cmocka_unit_test(test_stochastic_wants_bfloat16),
        cmocka_unit_test(test_describe),
    };

    return cmocka_run_group_tests_name("optim", tests, NULL, NULL);
}
