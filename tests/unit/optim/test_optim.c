/* test_optim.c - optimizers against their formulas in double, their configuration and state;
 * gradients as a whole. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/json.h"
#include "d9d/base/rng.h"
#include "d9d/optim/optim.h"
#include "support/optimizer_config.h"
#include "support/unit.h"

/* --- a configuration and a few parameters -------------------------------------------------- */

enum { WIDE, FROZEN, SHORT, PARAMS };

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

static void rig_open(rig *r, const char *config, d9d_dtype t)
{
    *r = (rig){0};
    assert_ok(d9d_device_open("cpu", &r->dev));
    d9d_module_init(&r->module);
    assert_ok(d9d_module_param(&r->module, "wide", &r->param[WIDE], t, D9D_SHAPE(9, 31),
                               D9D_INIT_NORMAL, 1.0f));
    assert_ok(d9d_module_param(&r->module, "frozen", &r->param[FROZEN], t, D9D_SHAPE(5),
                               D9D_INIT_ONES, 0));
    assert_ok(d9d_module_param(&r->module, "short", &r->param[SHORT], t, D9D_SHAPE(3),
                               D9D_INIT_NORMAL, 0.1f));
    r->param[FROZEN].spec.trainable = false;
    assert_ok(d9d_module_bind(&r->module));
    assert_ok(d9d_module_materialise(&r->module, r->dev, true));
    assert_ok(d9d_module_reset(&r->module, 7));
    assert_ok(d9d_module_params(&r->module, &r->arena, &r->params));
    assert_ok(d9d_tensor_alloc(r->dev, D9D_F32, D9D_SCALAR, &r->scale));
    assert_ok(optimizer_config_bind(config, &r->arena, &r->doc, &r->section));
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

static void create(rig *r, uint64_t seed)
{
    assert_ok(d9d_optimizer_create(&r->section, r->dev, &r->params, NULL, seed, &r->opt));
}

/* A gradient of float32 numbers that differs in every step. */
static void set_grad(d9d_param *p, int step)
{
    float *g = d9d_tensor_data(&p->local.grad);

    for (int64_t i = 0; i < d9d_tensor_numel(&p->local.grad); i++)
        g[i] = d9d_rng_normal((d9d_rng){99, p->id + (uint64_t)step}, (uint64_t)i) +
               (i % 7 == 0 ? 3.0f : 0.0f);
    p->local.has_grad = true;
}

static void step(rig *r, double lr, float scale)
{
    *(float *)d9d_tensor_data(&r->scale) = scale;
    assert_ok(d9d_optimizer_step(r->opt, lr, &r->scale));
}

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
    rig r;

    assert_non_null(s);
    rig_open(&r, f->config, D9D_F32);
    create(&r, 1);
    for (int64_t i = 0; i < n; i++)
        s[i].p = ((const float *)d9d_tensor_data(&r.param[p].local.data))[i];
    for (int k = 0; k < STEPS; k++) {
        set_grad(&r.param[WIDE], k);
        set_grad(&r.param[SHORT], k);
        for (int64_t i = 0; i < n; i++)
            naive_step(&f->c, &s[i],
                       (double)((const float *)d9d_tensor_data(&r.param[p].local.grad))[i] * scale,
                       lr[k], k + 1);
        step(&r, lr[k], scale);
        for (int64_t i = 0; i < n; i++) {
            const double got = ((const float *)d9d_tensor_data(&r.param[p].local.data))[i];

            if (!(fabs(got - s[i].p) <= 2e-6 * (1 + fabs(s[i].p))))
                fail_msg("%s: step %d, element %lld: %.9g, the formula gives %.9g", f->config,
                         k + 1, (long long)i, got, s[i].p);
        }
    }
    rig_close(&r);
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
    rig r;

    (void)state;
    rig_open(&r, "{\"name\": \"stochastic_adamw\", \"lr\": 0.1}", D9D_F32);
    assert_fails_like(d9d_optimizer_create(&r.section, r.dev, &r.params, NULL, 1, &r.opt),
                      D9D_ECONFIG, "stochastic_adamw rounds to bfloat16, and wide is float32");
    rig_close(&r);
}

/* --- state
 * ------------------------------------------------------------------------------------------ */

static void test_states_and_counts(void **state)
{
    static const struct {
        const char *config;
        d9d_dtype param, want;
        const char *names[9];
    } rows[] = {
        {"{\"name\": \"adamw\", \"lr\": 1}",
         D9D_F32,
         D9D_F32,
         {"wide.exp_avg", "wide.exp_avg_sq", "short.exp_avg", "short.exp_avg_sq"}},
        {"{\"name\": \"adam\", \"lr\": 1, \"amsgrad\": true}",
         D9D_BF16,
         D9D_F32,
         {"wide.exp_avg", "wide.exp_avg_sq", "wide.max_exp_avg_sq", "wide.master_residual",
          "short.exp_avg", "short.exp_avg_sq", "short.max_exp_avg_sq", "short.master_residual"}},
        {"{\"name\": \"adamw\", \"lr\": 1, \"state_dtype\": \"bfloat16\"}",
         D9D_BF16,
         D9D_BF16,
         {"wide.exp_avg", "wide.exp_avg_sq", "wide.master_residual", "short.exp_avg",
          "short.exp_avg_sq", "short.master_residual"}},
        {"{\"name\": \"adamw\", \"lr\": 1, \"weight_update\": \"nearest\"}",
         D9D_BF16,
         D9D_F32,
         {"wide.exp_avg", "wide.exp_avg_sq", "short.exp_avg", "short.exp_avg_sq"}},
        {"{\"name\": \"sgd\", \"lr\": 1}",
         D9D_BF16,
         D9D_F32,
         {"wide.master_residual", "short.master_residual"}},
        {"{\"name\": \"sgd\", \"lr\": 1}", D9D_F32, D9D_F32, {NULL}},
        {"{\"name\": \"sgd\", \"lr\": 1, \"momentum\": 0.5}",
         D9D_F32,
         D9D_F32,
         {"wide.momentum_buffer", "short.momentum_buffer"}},
        {"{\"name\": \"lion\", \"lr\": 1}",
         D9D_BF16,
         D9D_F32,
         {"wide.exp_avg", "wide.master_residual", "short.exp_avg", "short.master_residual"}},
        {"{\"name\": \"lion\", \"lr\": 1, \"weight_update\": \"stochastic\", \"state_dtype\": "
         "\"bfloat16\"}",
         D9D_BF16,
         D9D_BF16,
         {"wide.exp_avg", "short.exp_avg"}},
        {"{\"name\": \"stochastic_adamw\", \"lr\": 1}",
         D9D_BF16,
         D9D_F32,
         {"wide.exp_avg", "wide.exp_avg_sq", "short.exp_avg", "short.exp_avg_sq"}},
        {"{\"name\": \"stochastic_adamw\", \"lr\": 1, \"state_dtype\": \"bfloat16\"}",
         D9D_BF16,
         D9D_BF16,
         {"wide.exp_avg", "wide.exp_avg_sq", "short.exp_avg", "short.exp_avg_sq"}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        size_t n = 0;
        int64_t *steps;
        rig r;

        rig_open(&r, rows[i].config, rows[i].param);
        create(&r, 1);
        for (; rows[i].names[n] != NULL; n++) {
            const d9d_optimizer_state s = d9d_optimizer_state_at(r.opt, n);
            const unsigned char *bytes = d9d_tensor_data(s.tensor);

            assert_string_equal(s.name, rows[i].names[n]);
            assert_int_equal(s.residual, strstr(s.name, ".master_residual") != NULL);
            assert_int_equal(s.tensor->dtype, s.residual ? D9D_I16 : rows[i].want);
            assert_ptr_equal(s.param, &r.param[s.name[0] == 'w' ? WIDE : SHORT]);
            assert_true(d9d_shape_equal(&s.tensor->shape, &s.param->shard.shape));
            for (uint64_t b = 0; b < d9d_tensor_bytes(s.tensor); b++)
                assert_int_equal(bytes[b], 0);
        }
        assert_int_equal(d9d_optimizer_state_count(r.opt), n);
        steps = d9d_optimizer_steps(r.opt, &n);
        assert_int_equal(n, PARAMS);
        for (size_t p = 0; p < PARAMS; p++)
            assert_int_equal(steps[p], 0);
        rig_close(&r);
    }
}

/* A parameter that is frozen, or has no gradient in a step, stays with its state and count. */
static void test_untouched(void **state)
{
    float before[3], moment[3];
    int64_t *steps;
    size_t n;
    rig r;

    (void)state;
    rig_open(&r, "{\"name\": \"adamw\", \"lr\": 1}", D9D_F32);
    create(&r, 1);
    set_grad(&r.param[WIDE], 0);
    set_grad(&r.param[SHORT], 0);
    step(&r, 0.1, 1.0f);
    memcpy(before, d9d_tensor_data(&r.param[SHORT].local.data), sizeof(before));
    memcpy(moment, d9d_tensor_data(d9d_optimizer_state_at(r.opt, 2).tensor), sizeof(moment));
    assert_true(moment[0] != 0);
    r.param[SHORT].local.has_grad = false;
    step(&r, 0.1, 1.0f);
    assert_memory_equal(before, d9d_tensor_data(&r.param[SHORT].local.data), sizeof(before));
    assert_memory_equal(moment, d9d_tensor_data(d9d_optimizer_state_at(r.opt, 2).tensor),
                        sizeof(moment));
    steps = d9d_optimizer_steps(r.opt, &n);
    assert_int_equal(steps[WIDE], 2);
    assert_int_equal(steps[FROZEN], 0);
    assert_int_equal(steps[SHORT], 1);
    for (int i = 0; i < 5; i++)
        assert_true(((const float *)d9d_tensor_data(&r.param[FROZEN].local.data))[i] == 1.0f);
    rig_close(&r);
}

/* Going on from copied state and counts gives the bits of going on. */
static void test_state_is_all_there_is(void **state)
{
    static const char *const configs[] = {
        "{\"name\": \"adamw\", \"lr\": 1, \"amsgrad\": true}",
        "{\"name\": \"sgd\", \"lr\": 1, \"momentum\": 0.9, \"dampening\": 0.5}",
        "{\"name\": \"stochastic_adamw\", \"lr\": 1, \"state_dtype\": \"bfloat16\"}",
        "{\"name\": \"adamw\", \"lr\": 1}",
        "{\"name\": \"adam\", \"lr\": 1, \"state_dtype\": \"bfloat16\"}",
        "{\"name\": \"sgd\", \"lr\": 1, \"momentum\": 0.9}",
    };

    (void)state;
    for (size_t c = 0; c < sizeof(configs) / sizeof(configs[0]); c++) {
        const d9d_dtype t = c >= 2 ? D9D_BF16 : D9D_F32;
        size_t n;
        rig a, b;

        rig_open(&a, configs[c], t);
        rig_open(&b, configs[c], t);
        create(&a, 5);
        create(&b, 5);
        for (int k = 0; k < 4; k++) {
            set_grad(&a.param[WIDE], k);
            step(&a, 0.1, 1.0f);
        }
        for (size_t p = 0; p < PARAMS; p++)
            memcpy(d9d_tensor_data(&b.param[p].local.data), d9d_tensor_data(&a.param[p].local.data),
                   d9d_tensor_bytes(&a.param[p].local.data));
        for (size_t i = 0; i < d9d_optimizer_state_count(a.opt); i++) {
            const d9d_tensor *from = d9d_optimizer_state_at(a.opt, i).tensor;

            memcpy(d9d_tensor_data(d9d_optimizer_state_at(b.opt, i).tensor), d9d_tensor_data(from),
                   d9d_tensor_bytes(from));
        }
        memcpy(d9d_optimizer_steps(b.opt, &n), d9d_optimizer_steps(a.opt, &n),
               PARAMS * sizeof(int64_t));
        for (int k = 4; k < 6; k++) {
            set_grad(&a.param[WIDE], k);
            set_grad(&b.param[WIDE], k);
            step(&a, 0.1, 1.0f);
            step(&b, 0.1, 1.0f);
        }
        assert_memory_equal(d9d_tensor_data(&a.param[WIDE].local.data),
                            d9d_tensor_data(&b.param[WIDE].local.data),
                            d9d_tensor_bytes(&a.param[WIDE].local.data));
        rig_close(&a);
        rig_close(&b);
    }
}

/* --- weights of bfloat16
 * ---------------------------------------------------------------------- */

enum { FOLLOWED = 400 };

/* The weight, or its master. */
static double weight_of(rig *r, int64_t i)
{
    const d9d_param *p = &r->param[WIDE];
    uint32_t bits;
    float f;

    if (p->spec.dtype == D9D_F32)
        return (double)((const float *)d9d_tensor_data(&p->shard.data))[i];
    bits = (uint32_t)((const uint16_t *)d9d_tensor_data(&p->shard.data))[i] << 16;
    for (size_t k = 0; k < d9d_optimizer_state_count(r->opt); k++) {
        const d9d_optimizer_state s = d9d_optimizer_state_at(r->opt, k);

        if (s.residual && s.param == p)
            bits += (uint32_t)(int32_t)((const int16_t *)d9d_tensor_data(s.tensor))[i];
    }
    memcpy(&f, &bits, sizeof(f));
    return (double)f;
}

/* Of 0.5 (p - target)^2, by the weight as a forward sees it. */
static void set_gradient(d9d_param *p)
{
    float *g = d9d_tensor_data(&p->local.grad);

    for (int64_t i = 0; i < d9d_tensor_numel(&p->local.grad); i++) {
        const float at =
            p->spec.dtype == D9D_F32
                ? ((const float *)d9d_tensor_data(&p->shard.data))[i]
                : d9d_bf16_to_f32(((const uint16_t *)d9d_tensor_data(&p->shard.data))[i]);

        g[i] = at - 0.5f * (float)(i % 5);
    }
    p->local.has_grad = true;
}

/* Root mean square over weights of how far they went. */
static double went(const char *config, d9d_dtype t, const double *from, double *to)
{
    const int64_t n = 9 * 31;
    double sum = 0;
    rig r;

    rig_open(&r, config, t);
    create(&r, 3);
    for (int64_t i = 0; i < n; i++) { /* representable in both */
        const float start = 1 + (float)(i % 16) / 16;

        if (t == D9D_F32)
            ((float *)d9d_tensor_data(&r.param[WIDE].shard.data))[i] = start;
        else
            ((uint16_t *)d9d_tensor_data(&r.param[WIDE].shard.data))[i] = d9d_bf16_from_f32(start);
    }
    for (int k = 0; k < FOLLOWED; k++) {
        set_gradient(&r.param[WIDE]);
        step(&r, 1e-4, 1.0f);
    }
    for (int64_t i = 0; i < n; i++) {
        to[i] = weight_of(&r, i);
        sum += pow(to[i] - (from != NULL ? from[i] : 1 + (double)(i % 16) / 16), 2);
    }
    rig_close(&r);
    return sqrt(sum / (double)n);
}

/* In 400 small steps bfloat16 goes where float32 goes by default; rounded to nearest it stays. */
static void test_bfloat16_follows_float32(void **state)
{
    static const char *const kinds[] = {
        "\"name\": \"adamw\", \"lr\": 1, \"weight_decay\": 0",
        "\"name\": \"adam\", \"lr\": 1, \"weight_decay\": 0",
        "\"name\": \"sgd\", \"lr\": 1, \"momentum\": 0.5",
        "\"name\": \"lion\", \"lr\": 1",
    };
    static const struct {
        const char *section;
        double least, most; /* of the distance to float32, in its way */
    } rows[] = {{"", 0, 0.01},
                {", \"weight_update\": \"nearest\"", 0.9, 2},
                {", \"state_dtype\": \"bfloat16\"", 0, 0.05},
                {", \"weight_update\": \"stochastic\"", 1e-3, 0.7}}; /* noise */
    double exact[9 * 31], other[9 * 31];
    char config[256];

    (void)state;
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++)
        for (size_t i = 0; i < 4; i++) {
            const bool no_such = k == 2 && i == 3;
            double way, off;

            if (no_such)
                continue;
            (void)snprintf(config, sizeof(config), "{%s}", kinds[k]);
            way = went(config, D9D_F32, NULL, exact);
            (void)snprintf(config, sizeof(config), "{%s%s}", kinds[k], rows[i].section);
            off = went(config, D9D_BF16, exact, other) / way;
            if (!(off >= rows[i].least && off <= rows[i].most))
                fail_msg("%s: %.4f of float32's way of %g apart", config, off, way);
        }
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
        rig r;

        rig_open(&r, rows[i].config, rows[i].t);
        create(&r, 1);
        assert_ok(d9d_optimizer_describe(r.opt, &text));
        assert_string_equal(text.data, rows[i].text);
        d9d_buf_release(&text);
        rig_close(&r);
    }
}

/* --- stochastic rounding
 * --------------------------------------------------------------------------- */

static const char stochastic[] = "{\"name\": \"stochastic_adamw\", \"lr\": 1, "
                                 "\"weight_decay\": 0, \"state_dtype\": \"bfloat16\"}";

static void run_steps(rig *r, uint64_t seed, int steps)
{
    rig_open(r, stochastic, D9D_BF16);
    create(r, seed);
    for (int k = 0; k < steps; k++) {
        set_grad(&r->param[WIDE], k);
        step(r, 1e-3, 1.0f);
    }
}

static void test_noise_is_keyed(void **state)
{
    rig a, b, c;

    (void)state;
    run_steps(&a, 1, 3);
    run_steps(&b, 1, 3);
    run_steps(&c, 2, 3);
    assert_memory_equal(d9d_tensor_data(&a.param[WIDE].local.data),
                        d9d_tensor_data(&b.param[WIDE].local.data),
                        d9d_tensor_bytes(&a.param[WIDE].local.data));
    assert_memory_not_equal(d9d_tensor_data(&a.param[WIDE].local.data),
                            d9d_tensor_data(&c.param[WIDE].local.data),
                            d9d_tensor_bytes(&a.param[WIDE].local.data));
    rig_close(&a);
    rig_close(&b);
    rig_close(&c);
}

/* Two boxes of a parameter round as the whole does. */
static void test_noise_knows_no_boxes(void **state)
{
    enum { CUT = 13, ROWS = 9, COLUMNS = 31 };
    const uint16_t *want;
    rig whole;

    (void)state;
    run_steps(&whole, 1, 3);
    want = d9d_tensor_data(&whole.param[WIDE].local.data);
    for (int half = 0; half < 2; half++) {
        const int64_t first = half == 0 ? 0 : CUT, n = half == 0 ? CUT : COLUMNS - CUT;
        d9d_module m;
        d9d_param p, full;
        d9d_param *list[] = {&p};
        d9d_params params = {list, 1};
        d9d_optimizer *opt;
        rig r;

        rig_open(&r, stochastic, D9D_BF16); /* its whole parameter gives the gradients */
        full = r.param[WIDE];
        d9d_module_init(&m);
        assert_ok(d9d_module_param(&m, "wide", &p, D9D_BF16, D9D_SHAPE(ROWS, COLUMNS),
                                   D9D_INIT_NORMAL, 1.0f));
        assert_ok(d9d_module_bind(&m));
        p.shard.shape.dim[1] = n;
        p.shard.offset[1] = first;
        assert_ok(d9d_module_materialise(&m, r.dev, true));
        assert_ok(d9d_module_reset(&m, 7));
        assert_ok(d9d_optimizer_create(&r.section, r.dev, &params, NULL, 1, &opt));
        for (int k = 0; k < 3; k++) {
            set_grad(&full, k);
            for (int64_t i = 0; i < ROWS; i++)
                memcpy((float *)d9d_tensor_data(&p.local.grad) + i * n,
                       (float *)d9d_tensor_data(&full.local.grad) + i * COLUMNS + first,
                       (size_t)n * sizeof(float));
            p.local.has_grad = true;
            *(float *)d9d_tensor_data(&r.scale) = 1.0f;
            assert_ok(d9d_optimizer_step(opt, 1e-3, &r.scale));
        }
        for (int64_t i = 0; i < ROWS; i++)
            assert_memory_equal((uint16_t *)d9d_tensor_data(&p.local.data) + i * n,
                                want + i * COLUMNS + first, (size_t)n * sizeof(*want));
        d9d_optimizer_free(opt);
        d9d_module_release(&m);
        rig_close(&r);
    }
    rig_close(&whole);
}

/* --- some before the others ---------------------------------------------------------------- */

typedef struct order_calls {
    rig *r;
    float before[PARAMS]; /* the first element of each */
    size_t calls;
} order_calls;

static float first_of(const d9d_param *p)
{
    return *(const float *)d9d_tensor_data(&p->shard.data);
}

/* SHORT is updated when it is called for, and WIDE is not. */
static d9d_status update_before(void *arg, size_t i)
{
    order_calls *t = arg;

    assert_true(first_of(&t->r->param[SHORT]) != t->before[SHORT]);
    assert_true(first_of(&t->r->param[WIDE]) == t->before[WIDE]);
    assert_int_equal(t->calls++ % 2, i);
    return D9D_OK;
}

static void test_some_first(void **state)
{
    d9d_param *listed[] = {NULL, NULL};
    const d9d_params lists[] = {{listed, 1}, {listed + 1, 1}}, *first[] = {&lists[0], &lists[1]};
    rig plain, r;
    order_calls t = {.r = &r};

    (void)state;
    rig_open(&plain, "{\"name\": \"adamw\", \"lr\": 0.1}", D9D_F32);
    rig_open(&r, "{\"name\": \"adamw\", \"lr\": 0.1}", D9D_F32);
    create(&plain, 1);
    create(&r, 1);
    listed[0] = &r.param[SHORT];
    listed[1] = &r.param[FROZEN];
    assert_ok(d9d_optimizer_set_order(r.opt, first, 2, update_before, &t));
    for (int k = 0; k < 3; k++) {
        rig *both[] = {&plain, &r};

        for (int i = WIDE; i < PARAMS; i += SHORT)
            t.before[i] = first_of(&r.param[i]);
        for (int b = 0; b < 2; b++) {
            set_grad(&both[b]->param[WIDE], k);
            set_grad(&both[b]->param[SHORT], k);
            step(both[b], 0.1, 0.5f);
        }
    }
    assert_int_equal(t.calls, 6);
    for (int i = WIDE; i < PARAMS; i += SHORT)
        assert_memory_equal(d9d_tensor_data(&plain.param[i].shard.data),
                            d9d_tensor_data(&r.param[i].shard.data),
                            d9d_tensor_bytes(&r.param[i].shard.data));
    rig_close(&plain);
    rig_close(&r);
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
    rig r;

    (void)state;
    rig_open(&r, "{\"name\": \"adamw\", \"lr\": 0.1}", D9D_F32);
    table = *r.section.choice;
    table.row = &kind;
    kind.table = &table;
    r.section.choice = &table;
    create(&r, 1);
    listed[0] = &r.param[SHORT];
    assert_ok(d9d_optimizer_set_order(r.opt, first, 1, update_after, &calls));
    set_grad(&r.param[WIDE], 1);
    set_grad(&r.param[SHORT], 1);
    listed_calls = 0;
    step(&r, 0.1, 1.0f);
    assert_true(listed_n == 2 && listed_calls == 1 && calls == 1);
    rig_close(&r);
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
        rig plain, r, *both[] = {&plain, &r};
        int64_t *steps;
        size_t n;

        for (int b = 0; b < 2; b++) {
            rig_open(both[b], sections[c], D9D_F32);
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
                    set_grad(&both[b]->param[i], k);
            *(float *)d9d_tensor_data(&r.scale) = 0.5f;
            assert_ok(d9d_optimizer_step_some(r.opt, &(d9d_params){some, 3}, 0.1, &r.scale));
            some[0]->local.has_grad = false; /* as a gradient that is released */
            step(&r, 0.1, 0.5f);
            step(&plain, 0.1, 0.5f);
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
        rig_close(&plain);
        rig_close(&r);
    }
}

static void test_not_one_by_one(void **state)
{
    rig r;

    (void)state;
    rig_open(&r, "{\"name\": \"adafactor\", \"lr\": 0.1}", D9D_F32);
    create(&r, 1);
    assert_fails(d9d_optimizer_check_step_some(r.opt), D9D_ECONFIG,
                 "trainer.optimizer_in_backward: the optimizer adafactor updates all its "
                 "parameters together, so that their gradients stay; adamw, adam, lion, sgd and "
                 "schedule_free_adamw update one by one");
    rig_close(&r);
}

/* --- gradients as a whole
 * ---------------------------------------------------------------------------- */

/* Norm of the gradients times `mean`, as a step finds it. */
static double step_norm(rig *r, double mean)
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
    rig r;

    (void)state;
    rig_open(&r, "{\"name\": \"sgd\", \"lr\": 1}", D9D_F32);
    assert_true(step_norm(&r, 2.0) == 0); /* no gradients */
    set_grad(&r.param[WIDE], 1);
    set_grad(&r.param[SHORT], 1);
    for (int p = WIDE; p < PARAMS; p += SHORT)
        for (int64_t i = 0; i < d9d_tensor_numel(&r.param[p].local.grad); i++)
            want += pow(((const float *)d9d_tensor_data(&r.param[p].local.grad))[i], 2);
    got = step_norm(&r, -0.5);
    assert_true(fabs(got - 0.5 * sqrt(want)) <= 1e-12 * sqrt(want));
    r.param[WIDE].local.has_grad = false;
    ((float *)d9d_tensor_data(&r.param[WIDE].local.grad))[0] = NAN; /* forgotten: does not count */
    got = step_norm(&r, 1.0);
    assert_true(isfinite(got) && got > 0);
    rig_close(&r);
}

static void test_nonfinite(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    const d9d_param *found;
    int64_t at;
    rig r;

    (void)state;
    rig_open(&r, "{\"name\": \"sgd\", \"lr\": 1}", D9D_F32);
    set_grad(&r.param[WIDE], 1);
    set_grad(&r.param[SHORT], 1);
    found = &r.param[WIDE];
    assert_ok(d9d_optimizer_find_nonfinite_grad(r.dev, &r.params, &found, &at));
    assert_null(found);
    for (size_t i = 0; i < 3; i++) {
        set_grad(&r.param[WIDE], 1);
        ((float *)d9d_tensor_data(&r.param[SHORT].local.grad))[2] = bad[i];
        assert_ok(d9d_optimizer_find_nonfinite_grad(r.dev, &r.params, &found, &at));
        assert_ptr_equal(found, &r.param[SHORT]);
        assert_int_equal(at, 2);
        ((float *)d9d_tensor_data(&r.param[WIDE].local.grad))[77] = bad[i];
        assert_ok(d9d_optimizer_find_nonfinite_grad(r.dev, &r.params, &found, &at));
        assert_ptr_equal(found, &r.param[WIDE]);
        assert_int_equal(at, 77);
    }
    rig_close(&r);
}

/* A step whose gradients come one after the other; of `first`, then of the rest. */
static d9d_grad_finalize_report released_step(rig *r, d9d_grad_finalize *end, int64_t k, int first)
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
    rig r;

    (void)state;
    rig_open(&r, "{\"name\": \"sgd\", \"lr\": 1}", D9D_F32);
    create(&r, 1);
    for (int k = 0; k < 4; k++) {
        r.param[WIDE].placement.is_primary = k < 2;
        assert_ok(d9d_grad_finalize_init(r.dev, 1, 0, NULL, &end));
        assert_ok(d9d_grad_finalize_set_released(&end, &r.params));
        set_grad(&r.param[WIDE], k);
        set_grad(&r.param[SHORT], k);
        want = step_norm(&r, 0.25);
        report = released_step(&r, &end, k, k % 2 == 0 ? SHORT : WIDE);
        assert_memory_equal(&report.norm, &want, sizeof(want));
        assert_true(report.loss == 3 && report.targets == 4);
        assert_true(*(const float *)d9d_tensor_data(&end.scale) == 0.25f);
        d9d_grad_finalize_release(&end);
    }
    rig_close(&r);
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
        rig r;

        rig_open(&r, "{\"name\": \"sgd\", \"lr\": 1}", D9D_F32);
        create(&r, 1);
        assert_ok(d9d_grad_finalize_init(r.dev, 1, 0, NULL, &end));
        assert_ok(d9d_grad_finalize_set_released(&end, &r.params));
        for (int i = WIDE; i < PARAMS; i += SHORT)
            set_grad(&r.param[i], 1);
        (void)released_step(&r, &end, 6, SHORT);
        assert_ok(d9d_grad_finalize_find_nonfinite(&end, 6, &culprit));
        assert_null(culprit);
        for (int i = WIDE; i < PARAMS; i += SHORT)
            set_grad(&r.param[i], 2);
        if (bad != FROZEN)
            ((float *)d9d_tensor_data(&r.param[bad].local.grad))[1] = NAN;
        wide = first_of(&r.param[WIDE]);
        brief = first_of(&r.param[SHORT]);
        if (bad == FROZEN) {
            *(double *)d9d_tensor_data(&end.loss) = INFINITY;
            assert_ok(d9d_grad_finalize_begin(&end, 7, &(d9d_grad_finalize_local){.targets = 1}));
            assert_true(isnan(*(const float *)d9d_tensor_data(&end.scale)));
        }
        (void)released_step(&r, &end, 7, SHORT);
        assert_true(first_of(&r.param[WIDE]) == wide);
        assert_true((first_of(&r.param[SHORT]) == brief) == (bad != WIDE));
        assert_ok(d9d_grad_finalize_find_nonfinite(&end, 7, &culprit));
        assert_ptr_equal(culprit, bad == FROZEN ? NULL : &r.param[bad]);
        brief = first_of(&r.param[SHORT]);
        for (int i = WIDE; i < PARAMS; i += SHORT)
            set_grad(&r.param[i], 3);
        (void)released_step(&r, &end, 8, SHORT);
        assert_true(first_of(&r.param[SHORT]) == brief && first_of(&r.param[WIDE]) == wide);
        assert_ok(d9d_grad_finalize_find_nonfinite(&end, 7, &culprit));
        assert_ptr_equal(culprit, bad == FROZEN ? NULL : &r.param[bad]);
        d9d_grad_finalize_release(&end);
        rig_close(&r);
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
        rig r;

        rig_open(&r, cases[c].section, cases[c].dtype);
        create(&r, 1);
        bytes = d9d_tensor_bytes(&r.param[WIDE].local.data);
        assert_true(bytes <= sizeof(before));
        memcpy(before, d9d_tensor_data(&r.param[WIDE].local.data), bytes);
        set_grad(&r.param[WIDE], 1);
        step(&r, 0.1, NAN);
        assert_memory_equal(before, d9d_tensor_data(&r.param[WIDE].local.data), bytes);
        for (size_t i = 0; i < d9d_optimizer_state_count(r.opt); i++) {
            const d9d_tensor *t = d9d_optimizer_state_at(r.opt, i).tensor;
            const unsigned char *x = d9d_tensor_data(t);

            for (uint64_t k = 0; k < d9d_tensor_bytes(t); k++)
                assert_int_equal(x[k], 0);
        }
        step(&r, 0.1, 1.0f);
        assert_memory_not_equal(before, d9d_tensor_data(&r.param[WIDE].local.data), bytes);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formulas),
        cmocka_unit_test(test_bad_configurations),
        cmocka_unit_test(test_rate_of_a_section),
        cmocka_unit_test(test_stochastic_wants_bfloat16),
        cmocka_unit_test(test_states_and_counts),
        cmocka_unit_test(test_untouched),
        cmocka_unit_test(test_state_is_all_there_is),
        cmocka_unit_test(test_bfloat16_follows_float32),
        cmocka_unit_test(test_describe),
        cmocka_unit_test(test_noise_is_keyed),
        cmocka_unit_test(test_noise_knows_no_boxes),
        cmocka_unit_test(test_some_first),
        cmocka_unit_test(test_all_at_once),
        cmocka_unit_test(test_one_by_one),
        cmocka_unit_test(test_not_one_by_one),
        cmocka_unit_test(test_released_norm),
        cmocka_unit_test(test_released_nonfinite),
        cmocka_unit_test(test_norm),
        cmocka_unit_test(test_nonfinite),
        cmocka_unit_test(test_nan_scale_updates_nothing),
    };

    return cmocka_run_group_tests_name("optim", tests, NULL, NULL);
}
