/* test_state_dtype.c - states in 8 bits: which parameters have them, their scales, shards; and
 * states in host memory. */
#include <stdio.h>
#include <string.h>

#include "d9d/base/json.h"
#include "d9d/base/rng.h"
#include "d9d/optim/optim.h"
#include "support/optimizer_config.h"
#include "support/unit.h"

enum { MATRIX, STACK, NARROW, VECTOR, PARAMS };
static const struct {
    const char *name;
    d9d_shape shape;
} declared[PARAMS] = {{"matrix", {2, {6, 100}}},
                      {"stack", {3, {2, 3, 64}}},
                      {"narrow", {2, {40, 31}}},
                      {"vector", {1, {64}}}};

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

/* `place` divides the parameters before they have memory; NULL: nothing. */
static void rig_open(rig *r, const char *config, void (*place)(d9d_param *p))
{
    const float one = 1.0f;

    *r = (rig){0};
    assert_ok(d9d_device_open("cpu", &r->dev));
    d9d_module_init(&r->module);
    for (int i = 0; i < PARAMS; i++)
        assert_ok(d9d_module_param(&r->module, declared[i].name, &r->param[i], D9D_BF16,
                                   declared[i].shape, D9D_INIT_NORMAL, 0.5f));
    assert_ok(d9d_module_bind(&r->module));
    if (place != NULL)
        place(r->param);
    assert_ok(d9d_module_materialise(&r->module, r->dev, true));
    assert_ok(d9d_module_reset(&r->module, 7));
    assert_ok(d9d_module_params(&r->module, &r->arena, &r->params));
    assert_ok(d9d_tensor_from_host(r->dev, D9D_F32, D9D_SCALAR, &one, &r->scale));
    assert_ok(optimizer_config_bind(config, &r->arena, &r->doc, &r->section));
}

static d9d_status create(rig *r, bool offload)
{
    D9D_TRY(d9d_optimizer_create(&r->section, NULL, &r->params, NULL, 3, &r->opt));
    if (offload)
        d9d_optimizer_set_offload(r->opt);
    return d9d_optimizer_fill(r->opt, r->dev);
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

/* Index in the whole parameter of element i of the shard of a matrix. */
static int64_t index_of(const d9d_param *p, int64_t i)
{
    const int64_t cols = p->shard.shape.dim[p->shard.shape.ndim - 1];

    if (p->shard.shape.ndim != 2)
        return i;
    return (p->shard.offset[0] + i / cols) * p->spec.shape.dim[1] + p->shard.offset[1] + i % cols;
}

/* Gradients that an element of the whole has wherever it is. */
static void step(rig *r, int k)
{
    for (int p = 0; p < PARAMS; p++) {
        float *g = d9d_tensor_data(&r->param[p].shard.grad);

        for (int64_t i = 0; i < d9d_tensor_numel(&r->param[p].shard.grad); i++)
            g[i] = d9d_rng_normal((d9d_rng){5, (uint64_t)(100 * k + p)},
                                  (uint64_t)index_of(&r->param[p], i));
        r->param[p].shard.has_grad = r->param[p].local.has_grad = true;
    }
    assert_ok(d9d_optimizer_step(r->opt, 1e-3, &r->scale));
}

static const char int8[] = "{\"name\": \"adamw\", \"lr\": 1, \"state_dtype\": \"int8\"}";

static d9d_optimizer_state state_of(rig *r, const char *name)
{
    for (size_t i = 0; i < d9d_optimizer_state_count(r->opt); i++) {
        const d9d_optimizer_state s = d9d_optimizer_state_at(r->opt, i);

        if (strcmp(s.name, name) == 0)
            return s;
    }
    fail_msg("no state %s", name);
    return (d9d_optimizer_state){0};
}

static void test_states(void **state)
{
    static const struct {
        const char *name;
        d9d_dtype t;
        d9d_shape shape;
    } rows[] = {
        {"matrix.exp_avg", D9D_I8, {2, {6, 100}}},
        {"matrix.exp_avg_scale", D9D_BF16, {2, {6, 4}}},
        {"matrix.exp_avg_sq", D9D_U8, {2, {6, 100}}},
        {"matrix.exp_avg_sq_scale", D9D_BF16, {2, {6, 4}}},
        {"matrix.master_residual", D9D_I16, {2, {6, 100}}},
        {"stack.exp_avg_sq", D9D_U8, {3, {2, 3, 64}}},
        {"stack.exp_avg_sq_scale", D9D_BF16, {3, {2, 3, 2}}},
        {"narrow.exp_avg", D9D_F32, {2, {40, 31}}},
        {"vector.exp_avg_sq", D9D_F32, {1, {64}}},
    };
    rig r;

    (void)state;
    rig_open(&r, int8, NULL);
    assert_ok(create(&r, false));
    assert_int_equal(d9d_optimizer_state_count(r.opt), 2 * 5 + 2 * 3);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const d9d_optimizer_state s = state_of(&r, rows[i].name);

        assert_int_equal(s.tensor->dtype, rows[i].t);
        assert_true(d9d_shape_equal(&s.tensor->shape, &rows[i].shape));
        assert_true(d9d_shape_equal(&s.param->spec.shape, &rows[i].shape));
        assert_int_equal(s.residual, strstr(rows[i].name, "residual") != NULL);
    }
    for (int k = 0; k < 3; k++)
        step(&r, k);
    for (int64_t i = 0; i < 600; i++)
        assert_int_not_equal(
            ((uint8_t *)d9d_tensor_data(state_of(&r, "matrix.exp_avg_sq").tensor))[i], 0);
    rig_close(&r);
}

static void test_lion_has_one(void **state)
{
    rig r;

    (void)state;
    rig_open(&r,
             "{\"name\": \"lion\", \"lr\": 1, \"state_dtype\": \"int8\", \"weight_update\": "
             "\"stochastic\"}",
             NULL);
    assert_ok(create(&r, false));
    assert_int_equal(d9d_optimizer_state_count(r.opt), 2 * 2 + 2);
    step(&r, 0);
    assert_int_equal(state_of(&r, "matrix.exp_avg").tensor->dtype, D9D_I8);
    assert_int_equal(state_of(&r, "vector.exp_avg").tensor->dtype, D9D_F32);
    rig_close(&r);
}

/* --- shards ----------------------------------------------------------------------------------- */

/* FSDP's second of two shards of the matrix along its rows, and of the others nothing. */
static void second_half(d9d_param *p)
{
    d9d_param_shard(&p[MATRIX], NULL, 1, 2, 1);
    p[MATRIX].local.shape = p[MATRIX].shard.shape;
    memcpy(p[MATRIX].local.offset, p[MATRIX].shard.offset, sizeof(p[MATRIX].local.offset));
}

/* Rows are cut between blocks, and a shard has the bits of the whole. */
static void test_shard(void **state)
{
    rig whole, part;
    const uint8_t *all, *here;

    (void)state;
    rig_open(&whole, int8, NULL);
    rig_open(&part, int8, second_half);
    assert_int_equal(part.param[MATRIX].shard.offset[1], 64);
    assert_int_equal(part.param[MATRIX].shard.shape.dim[1], 36);
    assert_ok(create(&whole, false));
    assert_ok(create(&part, false));
    for (int k = 0; k < 4; k++) {
        step(&whole, k);
        step(&part, k);
    }
    all = d9d_tensor_data(state_of(&whole, "matrix.exp_avg_sq").tensor);
    here = d9d_tensor_data(state_of(&part, "matrix.exp_avg_sq").tensor);
    for (int64_t i = 0; i < 6 * 36; i++)
        assert_int_equal(here[i], all[i / 36 * 100 + 64 + i % 36]);
    assert_int_equal(state_of(&part, "matrix.exp_avg_scale").param->shard.offset[1], 2);
    assert_int_equal(state_of(&part, "matrix.exp_avg_scale").tensor->shape.dim[1], 2);
    all = d9d_tensor_data(&whole.param[MATRIX].shard.data);
    here = d9d_tensor_data(&part.param[MATRIX].shard.data);
    for (int64_t i = 0; i < 6 * 36; i++)
        assert_memory_equal(here + 2 * i, all + 2 * (i / 36 * 100 + 64 + i % 36), 2);
    rig_close(&whole);
    rig_close(&part);
}

/* However many ranks there are: no block belongs to two, and all elements to one. */
static void test_split(void **state)
{
    static const int64_t extents[] = {1, 31, 32, 33, 100, 2048, 5000};

    (void)state;
    for (size_t e = 0; e < sizeof(extents) / sizeof(extents[0]); e++)
        for (int64_t parts = 1; parts < 70; parts += 3) {
            const d9d_shape shape = {2, {3, extents[e]}}, vector = {1, {extents[e]}};
            int64_t first, n, next = 0, even, most = 0;

            for (int64_t i = 0; i < parts; i++, next += n) {
                d9d_param_split(&shape, 1, parts, i, &first, &n);
                assert_true(n == 0 || (first == next && first % D9D_PARAM_BLOCK == 0));
                most = i == 0 ? n : most;
                assert_true(n >= 0 && n <= most);
            }
            assert_int_equal(next, extents[e]);
            d9d_param_split(&vector, 0, parts, parts - 1, &first, &n);
            d9d_param_split_even(extents[e], parts, parts - 1, &next, &even);
            assert_true(first == next && n == even);
        }
}

static void test_refusals(void **state)
{
    static const struct {
        const char *config, *sentence;
    } rows[] = {
        {"{\"name\": \"adamw\", \"lr\": 1, \"state_dtype\": \"int8\", \"weight_update\": "
         "\"nearest\"}",
         "state_dtype int8 rounds stochastically: it needs weight_update master or stochastic, not "
         "nearest"},
        {"{\"name\": \"lion\", \"lr\": 1, \"state_dtype\": \"int8\", \"weight_update\": "
         "\"nearest\"}",
         "state_dtype int8 rounds stochastically"},
        {"{\"name\": \"adam\", \"lr\": 1, \"state_dtype\": \"int8\", \"amsgrad\": true}",
         "amsgrad does not support stochastic rounding"},
        {"{\"name\": \"muon\", \"lr\": 1, \"adamw\": {\"state_dtype\": \"int8\", "
         "\"weight_update\": "
         "\"nearest\"}}",
         "state_dtype int8 rounds stochastically"},
        {"{\"name\": \"sgd\", \"lr\": 1, \"state_dtype\": \"int8\"}", "state_dtype"},
    };
    d9d_arena a = {0};
    rig r;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        d9d_union bound;
        json_t *doc = NULL;

        assert_fails_like(optimizer_config_bind(rows[i].config, &a, &doc, &bound), D9D_ECONFIG,
                          rows[i].sentence);
        json_decref(doc);
    }
    d9d_arena_release(&a);
    rig_open(&r, int8, NULL);
    r.param[MATRIX].spec.parallel.style = r.param[NARROW].spec.parallel.style = D9D_ROWWISE;
    assert_ok(create(&r, false));
    assert_ok(d9d_optimizer_check_rowwise(r.opt, 1));
    assert_fails_like(d9d_optimizer_check_rowwise(r.opt, 2), D9D_ECONFIG,
                      "mesh.tensor_parallel: 2 ranks divide rows of 100 elements of matrix, and "
                      "optimizer.state_dtype int8 needs multiples of 32 on each");
    rig_close(&r);
}

/* --- host memory ------------------------------------------------------------------------------ */

static void test_offload(void **state)
{
    static const char *const configs[] = {int8, "{\"name\": \"adamw\", \"lr\": 1}",
                                          "{\"name\": \"adam\", \"lr\": 1, \"amsgrad\": true}",
                                          "{\"name\": \"sgd\", \"lr\": 1, \"momentum\": 0.9}"};

    (void)state;
    for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++) {
        rig here, away;
        uint64_t before;

        rig_open(&here, configs[i], NULL);
        rig_open(&away, configs[i], NULL);
        assert_ok(create(&here, false));
        before = d9d_device_memory(away.dev).in_use;
        assert_ok(create(&away, true));
        assert_int_equal(d9d_device_memory(away.dev).in_use, before);
        assert_int_equal(d9d_optimizer_bytes(away.opt), 0);
        assert_int_equal(d9d_optimizer_host_bytes(away.opt), d9d_optimizer_bytes(here.opt));
        assert_int_equal(d9d_optimizer_host_bytes(here.opt), 0);
        for (int k = 0; k < 3; k++) {
            step(&here, k);
            step(&away, k);
        }
        for (int p = 0; p < PARAMS; p++)
            assert_memory_equal(d9d_tensor_data(&here.param[p].shard.data),
                                d9d_tensor_data(&away.param[p].shard.data),
                                d9d_tensor_bytes(&here.param[p].shard.data));
        for (size_t k = 0; k < d9d_optimizer_state_count(here.opt); k++) {
            const d9d_tensor *x = d9d_optimizer_state_at(here.opt, k).tensor;

            assert_memory_equal(d9d_tensor_data(x),
                                d9d_tensor_data(d9d_optimizer_state_at(away.opt, k).tensor),
                                d9d_tensor_bytes(x));
        }
        rig_close(&here);
        rig_close(&away);
    }
}

/* More than any host has is refused before a byte is taken. */
static void test_host_is_too_small(void **state)
{
    d9d_module module;
    d9d_param huge;
    d9d_params params;
    d9d_optimizer *opt;
    d9d_device *dev;
    d9d_arena a = {0};
    d9d_union bound;
    json_t *doc = NULL;

    (void)state;
    assert_ok(d9d_device_open("cpu", &dev));
    assert_ok(optimizer_config_bind(int8, &a, &doc, &bound));
    d9d_module_init(&module);
    assert_ok(d9d_module_param(&module, "huge", &huge, D9D_BF16, D9D_SHAPE(1 << 25, 1 << 20),
                               D9D_INIT_NORMAL, 1));
    assert_ok(d9d_module_bind(&module));
    assert_ok(d9d_module_params(&module, &a, &params));
    assert_ok(d9d_optimizer_create(&bound, NULL, &params, NULL, 1, &opt));
    d9d_optimizer_set_offload(opt);
    assert_fails_like(d9d_optimizer_fill(opt, dev), D9D_EOOM,
                      "trainer.offload: optimizer states of 135168.00 GiB on this rank, and the "
                      "host has ");
    d9d_optimizer_free(opt);
    d9d_module_release(&module);
    json_decref(doc);
    d9d_arena_release(&a);
    d9d_device_close(dev);
}

/* Sleep moves what is on the device, and leaves what is not. */
static void test_offload_and_sleep(void **state)
{
    rig r;

    (void)state;
    rig_open(&r, int8, NULL);
    assert_ok(create(&r, true));
    step(&r, 0);
    assert_ok(d9d_tensor_offload_all(r.dev));
    assert_null(d9d_tensor_data(&r.param[MATRIX].shard.data));
    assert_non_null(d9d_tensor_data(state_of(&r, "matrix.exp_avg").tensor));
    assert_fails_like(d9d_tensor_offload(state_of(&r, "matrix.exp_avg").tensor), D9D_EINVAL,
                      "is in host memory");
    assert_ok(d9d_tensor_restore_all(r.dev));
    step(&r, 1);
    rig_close(&r);
}

static void test_describe(void **state)
{
    d9d_buf text = {0};
    rig r;

    (void)state;
    rig_open(&r, int8, NULL);
    assert_ok(create(&r, false));
    assert_ok(d9d_optimizer_describe(r.opt, &text));
    /* (600 + 48) + (384 + 24) bytes of the matrix and the stack, 4 (1240 + 64) of the others, over
     * 2288 elements. */
    assert_string_equal(text.data,
                        "adamw: bfloat16 weights updated as float32 master weights; bytes a "
                        "parameter: weights 2, gradients 4, exp_avg 2.7, exp_avg_sq 2.7, "
                        "master_residual 2, in all 13.5");
    d9d_buf_release(&text);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states),
        cmocka_unit_test(test_lion_has_one),
        cmocka_unit_test(test_shard),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_offload),
        cmocka_unit_test(test_host_is_too_small),
        cmocka_unit_test(test_offload_and_sleep),
        cmocka_unit_test(test_describe),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
