/* test_optim_state.c - states of optimizers, weights of bfloat16 and their rounding. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "d9d/optim/optim.h"
#include "support/optimizer_rig.h"
#include "support/unit.h"

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
        optim_rig r;

        optim_rig_open(&r, rows[i].config, rows[i].param);
        optim_rig_create(&r, 1);
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
        optim_rig_close(&r);
    }
}

/* A parameter that is frozen, or has no gradient in a step, stays with its state and count. */
static void test_untouched(void **state)
{
    float before[3], moment[3];
    int64_t *steps;
    size_t n;
    optim_rig r;

    (void)state;
    optim_rig_open(&r, "{\"name\": \"adamw\", \"lr\": 1}", D9D_F32);
    optim_rig_create(&r, 1);
    optim_rig_set_grad(&r.param[WIDE], 0);
    optim_rig_set_grad(&r.param[SHORT], 0);
    optim_rig_step(&r, 0.1, 1.0f);
    memcpy(before, d9d_tensor_data(&r.param[SHORT].local.data), sizeof(before));
    memcpy(moment, d9d_tensor_data(d9d_optimizer_state_at(r.opt, 2).tensor), sizeof(moment));
    assert_true(moment[0] != 0);
    r.param[SHORT].local.has_grad = false;
    optim_rig_step(&r, 0.1, 1.0f);
    assert_memory_equal(before, d9d_tensor_data(&r.param[SHORT].local.data), sizeof(before));
    assert_memory_equal(moment, d9d_tensor_data(d9d_optimizer_state_at(r.opt, 2).tensor),
                        sizeof(moment));
    steps = d9d_optimizer_steps(r.opt, &n);
    assert_int_equal(steps[WIDE], 2);
    assert_int_equal(steps[FROZEN], 0);
    assert_int_equal(steps[SHORT], 1);
    for (int i = 0; i < 5; i++)
        assert_true(((const float *)d9d_tensor_data(&r.param[FROZEN].local.data))[i] == 1.0f);
    optim_rig_close(&r);
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
        optim_rig a, b;

        optim_rig_open(&a, configs[c], t);
        optim_rig_open(&b, configs[c], t);
        optim_rig_create(&a, 5);
        optim_rig_create(&b, 5);
        for (int k = 0; k < 4; k++) {
            optim_rig_set_grad(&a.param[WIDE], k);
            optim_rig_step(&a, 0.1, 1.0f);
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
            optim_rig_set_grad(&a.param[WIDE], k);
            optim_rig_set_grad(&b.param[WIDE], k);
            optim_rig_step(&a, 0.1, 1.0f);
            optim_rig_step(&b, 0.1, 1.0f);
        }
        assert_memory_equal(d9d_tensor_data(&a.param[WIDE].local.data),
                            d9d_tensor_data(&b.param[WIDE].local.data),
                            d9d_tensor_bytes(&a.param[WIDE].local.data));
        optim_rig_close(&a);
        optim_rig_close(&b);
    }
}

/* --- weights of bfloat16
 * ---------------------------------------------------------------------- */

enum { FOLLOWED = 400 };

/* The weight, or its master. */
static double weight_of(optim_rig *r, int64_t i)
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
    optim_rig r;

    optim_rig_open(&r, config, t);
    optim_rig_create(&r, 3);
    for (int64_t i = 0; i < n; i++) { /* representable in both */
        const float start = 1 + (float)(i % 16) / 16;

        if (t == D9D_F32)
            ((float *)d9d_tensor_data(&r.param[WIDE].shard.data))[i] = start;
        else
            ((uint16_t *)d9d_tensor_data(&r.param[WIDE].shard.data))[i] = d9d_bf16_from_f32(start);
    }
    for (int k = 0; k < FOLLOWED; k++) {
        set_gradient(&r.param[WIDE]);
        optim_rig_step(&r, 1e-4, 1.0f);
    }
    for (int64_t i = 0; i < n; i++) {
        to[i] = weight_of(&r, i);
        sum += pow(to[i] - (from != NULL ? from[i] : 1 + (double)(i % 16) / 16), 2);
    }
    optim_rig_close(&r);
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

/* --- stochastic rounding
 * --------------------------------------------------------------------------- */

static const char stochastic[] = "{\"name\": \"stochastic_adamw\", \"lr\": 1, "
                                 "\"weight_decay\": 0, \"state_dtype\": \"bfloat16\"}";

static void run_steps(optim_rig *r, uint64_t seed, int steps)
{
    optim_rig_open(r, stochastic, D9D_BF16);
    optim_rig_create(r, seed);
    for (int k = 0; k < steps; k++) {
        optim_rig_set_grad(&r->param[WIDE], k);
        optim_rig_step(r, 1e-3, 1.0f);
    }
}

static void test_noise_is_keyed(void **state)
{
    optim_rig a, b, c;

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
    optim_rig_close(&a);
    optim_rig_close(&b);
    optim_rig_close(&c);
}

/* Two boxes of a parameter round as the whole does. */
static void test_noise_knows_no_boxes(void **state)
{
    enum { CUT = 13, ROWS = 9, COLUMNS = 31 };
    const uint16_t *want;
    optim_rig whole;

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
        optim_rig r;

        optim_rig_open(&r, stochastic, D9D_BF16); /* its whole parameter gives the gradients */
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
            optim_rig_set_grad(&full, k);
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
        optim_rig_close(&r);
    }
    optim_rig_close(&whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states_and_counts),
        cmocka_unit_test(test_untouched),
        cmocka_unit_test(test_state_is_all_there_is),
        cmocka_unit_test(test_bfloat16_follows_float32),
        cmocka_unit_test(test_noise_is_keyed),
        cmocka_unit_test(test_noise_knows_no_boxes),
    };

    return cmocka_run_group_tests_name("optim state", tests, NULL, NULL);
}
