/* test_golden_optim.c - optimizers and clipping against torch.optim, step by step. */
#include "support/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/json.h"
#include "d9d/optim/optim.h"
#include "support/optimizer_config.h"
#include "support/unit_device.h"
#include "support/vectors.h"

static const double limit = 1e-6; /* relative L2 error in float32 */
enum { STEPS = 5 };

static json_t *read_cases(const char *op, d9d_safetensors_file **f)
{
    char name[64];
    json_t *root, *cases;

    (void)snprintf(name, sizeof(name), "%s.safetensors", op);
    assert_ok(d9d_safetensors_open(vectors_path("ops", name), f));
    assert_ok(d9d_json_read(vectors_path("ops", "ops.json"), 1 << 20, &root));
    cases = json_incref(json_object_get(root, op));
    assert_true(json_object_size(cases) > 0);
    json_decref(root);
    return cases;
}

static void load(const d9d_safetensors_file *f, const char *name, const char *what, int k,
                 d9d_tensor *t)
{
    char full[128];
    float *x;
    size_t n;

    (void)snprintf(full, sizeof(full), "%s.%s%d", name, what, k);
    x = vectors_f32(f, full, &n);
    assert_int_equal(n, d9d_tensor_numel(t));
    assert_ok(d9d_device_upload(d9d_tensor_device(t), d9d_tensor_data(t), x, n * sizeof(*x)));
    free(x);
}

static void compare(const d9d_safetensors_file *f, const char *name, const char *what, int k,
                    const d9d_tensor *t)
{
    char full[128];
    double distance;
    float *want, *got;
    size_t n;

    (void)snprintf(full, sizeof(full), "%s.%s%d", name, what, k);
    want = vectors_f32(f, full, &n);
    got = malloc(n * sizeof(*got));
    assert_non_null(got);
    assert_ok(d9d_tensor_to_f32(t, got));
    distance = vectors_distance(got, want, n, 1e-30);
    if (!(distance <= limit))
        fail_msg("%s: relative distance %.3g, at most %.0e is fine", full, distance, limit);
    free(got);
    free(want);
}

/* Takes the shape of the parameter from the options. */
static d9d_shape case_shape(json_t *options)
{
    const json_t *dims = json_object_get(options, "shape");
    d9d_shape shape = {.ndim = (int)json_array_size(dims)};

    for (int i = 0; i < shape.ndim; i++)
        shape.dim[i] = json_integer_value(json_array_get(dims, (size_t)i));
    if (dims == NULL)
        shape = D9D_SHAPE(5, 7);
    (void)json_object_del(options, "shape");
    return shape;
}

static void run_case(const char *op, const char *name, const json_t *options,
                     d9d_safetensors_file *f)
{
    json_t *doc = NULL, *of_case = json_copy((json_t *)(uintptr_t)options);
    d9d_arena a = {0};
    d9d_union optimizer;
    char *text;
    d9d_device *dev;
    d9d_module m;
    d9d_param p;
    d9d_params params;
    d9d_optimizer *opt;
    d9d_tensor scale;
    d9d_shape shape;

    shape = case_shape(of_case);
    assert_int_equal(json_object_set_new(of_case, "name", json_string(op)), 0);
    text = json_dumps(of_case, 0);
    assert_non_null(text);
    assert_ok(optimizer_config_bind(text, &a, &doc, &optimizer));
    free(text);
    json_decref(of_case);
    assert_ok(d9d_device_open(unit_device_name(), &dev));
    d9d_module_init(&m);
    assert_ok(d9d_module_param(&m, "p", &p, D9D_F32, shape, D9D_INIT_ZEROS, 0));
    assert_ok(d9d_module_bind(&m));
    assert_ok(d9d_module_materialise(&m, dev, true));
    assert_ok(d9d_module_params(&m, &a, &params));
    assert_ok(d9d_tensor_from_host(dev, D9D_F32, D9D_SCALAR, &(float){1.0f}, &scale));
    assert_ok(d9d_optimizer_create(&optimizer, dev, &params, NULL, 0, &opt));
    load(f, name, "p", 0, &p.local.data);
    for (int k = 1; k <= STEPS; k++) {
        load(f, name, "g", k, &p.local.grad);
        p.local.has_grad = true;
        assert_ok(d9d_optimizer_step(opt, d9d_optimizer_lr(&optimizer), &scale));
        compare(f, name, "p", k, &p.local.data);
        if (d9d_optimizer_has_averages(opt)) {
            assert_ok(d9d_optimizer_use_averages(opt));
            compare(f, name, "x", k, &p.local.data);
            assert_ok(d9d_optimizer_use_weights(opt));
            compare(f, name, "p", k, &p.local.data);
        }
    }
    d9d_optimizer_free(opt);
    d9d_tensor_release(&scale);
    d9d_module_release(&m);
    d9d_device_close(dev);
    d9d_arena_release(&a);
    json_decref(doc);
}

static void test_optimizers(void **state)
{
    static const char *const ops[] = {
        "adamw", "adam", "sgd", "lion", "muon", "adafactor", "schedule_free_adamw"};

    (void)state;
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        d9d_safetensors_file *f;
        json_t *cases = read_cases(ops[i], &f), *options;
        const char *name;

        json_object_foreach(cases, name, options) run_case(ops[i], name, options, f);
        json_decref(cases);
        d9d_safetensors_close(f);
    }
}

static double scalar(const d9d_safetensors_file *f, const char *name, const char *what)
{
    char full[128];
    size_t n;
    float *x, v;

    (void)snprintf(full, sizeof(full), "%s.%s", name, what);
    x = vectors_f32(f, full, &n);
    assert_int_equal(n, 1);
    v = *x;
    free(x);
    return v;
}

static void run_clip(const char *name, const json_t *options, const d9d_safetensors_file *f)
{
    enum { MOST = 8 };
    static d9d_param p[MOST];
    const size_t n = json_array_size(json_object_get(options, "shapes"));
    const double max_norm = json_number_value(json_object_get(options, "max_norm"));
    d9d_param *list[MOST];
    d9d_params params = {list, n};
    d9d_device *dev;
    d9d_module m;
    const d9d_grad_finalize_local own = {.targets = 1};
    double zero = 0, norm;
    d9d_grad_finalize_report report;
    d9d_grad_finalize end;
    float coef;

    assert_true(n <= MOST);
    assert_ok(d9d_device_open(unit_device_name(), &dev));
    d9d_module_init(&m);
    for (size_t i = 0; i < n; i++) {
        const json_t *dims = json_array_get(json_object_get(options, "shapes"), i);
        d9d_shape shape = {.ndim = (int)json_array_size(dims)};
        char local[32];

        for (int d = 0; d < shape.ndim; d++)
            shape.dim[d] = json_integer_value(json_array_get(dims, (size_t)d));
        (void)snprintf(local, sizeof(local), "g%zu", i);
        assert_ok(d9d_module_param(&m, local, &p[i], D9D_F32, shape, D9D_INIT_ZEROS, 0));
        list[i] = &p[i];
    }
    assert_ok(d9d_module_bind(&m));
    assert_ok(d9d_module_materialise(&m, dev, true));
    for (size_t i = 0; i < n; i++) {
        load(f, name, "g", (int)i, &p[i].local.grad);
        p[i].local.has_grad = true;
    }
    assert_ok(d9d_grad_finalize_init(dev, 1, 0, NULL, &end));
    assert_ok(d9d_device_upload(dev, d9d_tensor_data(&end.loss), &zero, sizeof(zero)));
    assert_ok(d9d_grad_finalize_enqueue(&end, &params, &own, max_norm));
    assert_ok(d9d_device_download(dev, &report, d9d_tensor_data(&end.report), sizeof(report)));
    assert_ok(d9d_device_download(dev, &coef, d9d_tensor_data(&end.scale), sizeof(coef)));
    norm = report.norm;
    assert_true(fabs(norm - scalar(f, name, "norm")) <= limit * norm);
    assert_true(fabs((double)coef - scalar(f, name, "coef")) <= limit);
    d9d_grad_finalize_release(&end);
    d9d_module_release(&m);
    d9d_device_close(dev);
}

static void test_clipping(void **state)
{
    d9d_safetensors_file *f;
    json_t *cases = read_cases("clip", &f), *options;
    const char *name;

    (void)state;
    json_object_foreach(cases, name, options) run_clip(name, options, f);
    json_decref(cases);
    d9d_safetensors_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimizers),
        cmocka_unit_test(test_clipping),
    };

    return cmocka_run_group_tests_name("golden_optim", tests, NULL, NULL);
}
