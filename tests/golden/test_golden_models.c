/* test_golden_models.c - logits, losses and gradients against transformers, for every checkpoint
 * of cases.json: in float32 to its rounding, in bfloat16 to half as much again as transformers' own
 * bfloat16 (bf16.json); and that neither recomputation nor splitting backward changes a bit. */
#include "support/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/json.h"
#include "d9d/ckpt/mapper/map_memory.h"
#include "d9d/job/job.h"
#include "d9d/model/model.h"
#include "d9d/model/params_io.h"
#include "d9d/model/weights/weights.h"
#include "d9d/models/models.h"
#include "support/family.h"
#include "support/unit_device.h"
#include "support/vectors.h"

enum { FEW = 16 }; /* fewer numbers do not count in bfloat16 */

/* Squares of the distances of some tensors, where they are judged together. */
typedef struct tally {
    double sum;
    int n;
} tally;

/* One case, on the device. */
typedef struct fixture {
    d9d_dtype dtype;
    tally tally; /* of bfloat16 */
    const char *checkpoint, *golden;
    d9d_arena arena;
    d9d_family_config config;
    d9d_device *dev;
    d9d_model *model;
    d9d_params params;
    d9d_tape *tape;
    d9d_safetensors_file *want;
    d9d_tensor ids, labels, positions, each; /* each: 0, 1, ... of the tokens */
    int64_t tokens, targets;
} fixture;

static void upload(fixture *f, const d9d_safetensors_file *batch, const char *name, d9d_tensor *out)
{
    const d9d_safetensors_tensor *t = vectors_find(batch, name);
    size_t n;
    int32_t *host = vectors_i32(batch, name, &n);

    assert_ok(
        d9d_tensor_from_host(f->dev, D9D_I32, D9D_SHAPE(t->shape[0], t->shape[1]), host, out));
    f->tokens = (int64_t)n;
    if (out == &f->labels)
        for (size_t i = 0; i < n; i++)
            f->targets += host[i] != D9D_IGNORE_INDEX;
    free(host);
}

static void number(fixture *f)
{
    int32_t *host = malloc((size_t)f->tokens * sizeof(*host));

    assert_non_null(host);
    for (int64_t i = 0; i < f->tokens; i++)
        host[i] = (int32_t)i;
    assert_ok(d9d_tensor_from_host(f->dev, D9D_I32, D9D_SHAPE(f->tokens), host, &f->each));
    free(host);
}

static void fixture_open(fixture *f, const json_t *c, d9d_dtype t, d9d_model_recompute_mode mode)
{
    const d9d_model_opts options = {.dtype = t, .recompute = mode};
    const d9d_model_spec spec = {
        .provider = &d9d_qwen3_moe_provider, .config = &f->config, .opts = options};
    d9d_weights *weights;
    d9d_safetensors_file *batch;

    *f = (fixture){.dtype = t,
                   .checkpoint = json_string_value(json_object_get(c, "checkpoint")),
                   .golden = json_string_value(json_object_get(c, "golden"))};
    assert_ok(family_read(vectors_path(f->checkpoint, "config.json"), &f->arena, &f->config));
    assert_ok(d9d_family_create(&f->config, D9D_WHOLE_MODEL, &options, &f->model));
    assert_ok(d9d_module_bind(f->model->module));
    assert_ok(d9d_module_params(f->model->module, &f->arena, &f->params));
    for (size_t i = 0; i < f->params.n; i++)
        f->params.p[i]->spec.grad_dtype = D9D_F32;
    assert_ok(d9d_device_open(unit_device_name(), &f->dev));
    assert_ok(d9d_module_materialise(f->model->module, f->dev, true));
    assert_ok(
        d9d_weights_open(&spec, D9D_WHOLE_MODEL, vectors_path(f->checkpoint, ""), NULL, &weights));
    assert_ok(d9d_weights_read(weights, &f->params, NULL));
    d9d_weights_close(weights);
    assert_ok(d9d_tape_create(f->dev, &f->tape));
    assert_ok(d9d_safetensors_open(vectors_path(f->golden, "golden.safetensors"), &f->want));
    assert_ok(d9d_safetensors_open(vectors_path(f->golden, "batch.safetensors"), &batch));
    upload(f, batch, "input_ids", &f->ids);
    upload(f, batch, "labels", &f->labels);
    upload(f, batch, "position_ids", &f->positions);
    number(f);
    d9d_safetensors_close(batch);
}

static void fixture_close(fixture *f)
{
    d9d_tensor_release(&f->ids);
    d9d_tensor_release(&f->labels);
    d9d_tensor_release(&f->positions);
    d9d_tensor_release(&f->each);
    d9d_tape_free(f->tape);
    d9d_model_free(f->model);
    assert_int_equal(d9d_device_memory(f->dev).in_use, 0);
    d9d_device_close(f->dev);
    d9d_safetensors_close(f->want);
    d9d_arena_release(&f->arena);
}

static void forward(fixture *f, const d9d_tensor *pick, d9d_model_out *out)
{
    const d9d_model_in in = {
        .ids = &f->ids, .positions = &f->positions, .labels = &f->labels, .pick = pick};

    d9d_tape_set_recording(f->tape, pick == NULL); /* logits have no backward */
    assert_ok(f->model->ops->forward(f->model, f->tape, &in, out));
}

static void check_near(fixture *f, const char *name, const float *got, size_t n, double floor)
{
    size_t n_want;
    float *want = vectors_f32(f->want, name, &n_want);
    /* of the relative L2 error in float32 */
    const double limit = unit_device_tolerance(1e-5, 1e-4);
    double d;

    assert_int_equal(n, n_want);
    d = vectors_distance(got, want, n, floor);
    if (f->dtype == D9D_BF16 && n >= FEW && vectors_norm(want, n) > 0) {
        f->tally.sum += d * d;
        f->tally.n++;
    }
    if (f->dtype == D9D_F32 && !(d < limit))
        fail_msg("%s: %s is %.3g away, limit %.3g", f->checkpoint, name, d, limit);
    free(want);
}

static void check_var(fixture *f, const char *name, const d9d_var *v)
{
    const d9d_tensor *t = d9d_var_tensor(v);
    size_t n = (size_t)d9d_tensor_numel(t);
    float *host = malloc((n + 1) * sizeof(*host));

    assert_non_null(host);
    assert_ok(d9d_tensor_to_f32(t, host));
    check_near(f, name, host, n, 1e-30);
    free(host);
}

/* Backward of the mean loss. */
static void backward(fixture *f, d9d_var *loss, bool split)
{
    d9d_tensor seed;
    float *host = malloc((size_t)f->tokens * sizeof(*host));

    assert_non_null(host);
    for (int64_t i = 0; i < f->tokens; i++)
        host[i] = (float)(1.0 / (double)f->targets);
    assert_ok(d9d_tensor_from_host(f->dev, D9D_F32, D9D_SHAPE(f->tokens), host, &seed));
    d9d_module_clear_grads(f->model->module);
    assert_ok(d9d_tape_backward(f->tape, &loss, &seed, 1,
                                split ? D9D_BACKWARD_DGRAD : D9D_BACKWARD_FULL));
    if (split)
        assert_ok(d9d_tape_backward(f->tape, NULL, NULL, 0, D9D_BACKWARD_WGRAD));
    d9d_tensor_release(&seed);
    d9d_tape_reset(f->tape);
    free(host);
}

/* --- gradients under HuggingFace's names ------------------------------------------------ */

/* A gradient that is zero by mathematics is measured by all of them together. */
static void check_gradients(fixture *f)
{
    d9d_map_memory got = {0};
    const d9d_tensor_sink sink = d9d_map_memory_sink(&got);
    d9d_params_io *io;
    d9d_mapper *mapper;
    d9d_map_plan *plan;
    d9d_tensor_source source;
    double all = 0;

    assert_ok(d9d_params_io_open(&f->params, D9D_PARAMS_GRADS, &io));
    assert_ok(d9d_params_io_source(io, &source));
    assert_ok(
        d9d_family_mapper(&f->config, D9D_WHOLE_MODEL, &source, D9D_LAYOUT_HF_FUSED, &mapper));
    assert_ok(d9d_map_plan_create(mapper, &source, &(d9d_map_plan_opts){0}, &plan));
    assert_ok(d9d_map_plan_run(plan, &sink, 1, NULL));
    for (size_t i = 0; i < got.n; i++)
        all += pow(vectors_norm(got.data[i], got.tensors[i].bytes / 4), 2);
    for (size_t i = 0; i < got.n; i++) {
        size_t n = got.tensors[i].bytes / 4, n_want;
        float *want = vectors_f32(f->want, got.tensors[i].name, &n_want);
        bool zero = vectors_norm(want, n_want) == 0;

        check_near(f, got.tensors[i].name, got.data[i], n, zero ? sqrt(all) : 1e-30);
        free(want);
    }
    d9d_map_memory_release(&got);
    d9d_map_plan_free(plan);
    d9d_mapper_free(mapper);
    d9d_params_io_close(io);
}

/* --- the tests ---------------------------------------------------------------------------- */

static void each_case(void (*fn)(const json_t *c))
{
    json_t *cases, *c;
    size_t i;

    assert_ok(d9d_json_read(vectors_path(".", "cases.json"), 1 << 20, &cases));
    assert_true(json_array_size(cases) > 0);
    json_array_foreach(cases, i, c)
    {
        fn(c);
    }
    json_decref(cases);
}

static void case_values(const json_t *c)
{
    fixture f;
    d9d_model_out out;

    fixture_open(&f, c, D9D_F32, D9D_RECOMPUTE_OFF);
    forward(&f, &f.each, &out);
    check_var(&f, "logits", out.logits);
    check_var(&f, "token_losses", out.loss);
    d9d_tape_reset(f.tape);
    forward(&f, NULL, &out);
    backward(&f, out.loss, false);
    check_gradients(&f);
    fixture_close(&f);
}

static void values_equal_transformers(void **state)
{
    (void)state;
    each_case(case_values);
}

/* What has been compared since the last, against transformers. */
static void check_tally(fixture *f, const json_t *theirs, const char *what)
{
    const double limit = 1.5 * json_real_value(json_object_get(theirs, what));
    const double ours = sqrt(f->tally.sum / f->tally.n);

    if (f->tally.n > 0 && !(ours <= limit))
        fail_msg("%s in bfloat16: %s are %.3g away, limit %.3g", f->checkpoint, what, ours, limit);
    f->tally = (tally){0};
}

static void case_bfloat16(const json_t *c)
{
    const char *golden = json_string_value(json_object_get(c, "golden"));
    json_t *all, *theirs;
    fixture f;
    d9d_model_out out;

    assert_ok(d9d_json_read(vectors_path(".", "bf16.json"), 1 << 20, &all));
    theirs = json_object_get(json_object_get(all, "models"), golden);
    fixture_open(&f, c, D9D_BF16, D9D_RECOMPUTE_OFF);
    forward(&f, &f.each, &out);
    check_var(&f, "logits", out.logits);
    check_tally(&f, theirs, "logits");
    check_var(&f, "token_losses", out.loss);
    check_tally(&f, theirs, "token_losses");
    d9d_tape_reset(f.tape);
    forward(&f, NULL, &out);
    backward(&f, out.loss, false);
    check_gradients(&f);
    check_tally(&f, theirs, "gradients");
    fixture_close(&f);
    json_decref(all);
}

static void bfloat16_is_as_good_as_transformers(void **state)
{
    (void)state;
    each_case(case_bfloat16);
}

/* All gradients of a case as bytes. */
static void gradients(const json_t *c, d9d_model_recompute_mode mode, bool split, d9d_buf *out)
{
    fixture f;
    d9d_model_out model_out;

    fixture_open(&f, c, D9D_F32, mode);
    forward(&f, NULL, &model_out);
    backward(&f, model_out.loss, split);
    for (size_t i = 0; i < f.params.n; i++) {
        const d9d_tensor *g = &f.params.p[i]->local.grad;

        assert_true(f.params.p[i]->local.has_grad);
        assert_ok(d9d_buf_reserve(out, d9d_tensor_bytes(g)));
        assert_ok(d9d_device_download(f.dev, (char *)out->data + out->len, d9d_tensor_data(g),
                                      d9d_tensor_bytes(g)));
        out->len += d9d_tensor_bytes(g);
    }
    fixture_close(&f);
}

static void case_bitwise(const json_t *c)
{
    static const struct {
        const char *what;
        d9d_model_recompute_mode mode;
        bool split;
    } ways[] = {
        {"split backward", D9D_RECOMPUTE_OFF, true},
        {"full recomputation", D9D_RECOMPUTE_FULL, false},
        {"full recomputation, split", D9D_RECOMPUTE_FULL, true},
        {"selective recomputation", D9D_RECOMPUTE_SELECTIVE, false},
        {"selective recomputation, split", D9D_RECOMPUTE_SELECTIVE, true},
    };
    d9d_buf want = {0};

    gradients(c, D9D_RECOMPUTE_OFF, false, &want);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        d9d_buf got = {0};

        gradients(c, ways[i].mode, ways[i].split, &got);
        if (got.len != want.len || memcmp(got.data, want.data, want.len) != 0)
            fail_msg("%s: %s changes the gradients",
                     json_string_value(json_object_get(c, "checkpoint")), ways[i].what);
        d9d_buf_release(&got);
    }
    d9d_buf_release(&want);
}

static void recomputing_and_splitting_change_no_bit(void **state)
{
    (void)state;
    each_case(case_bitwise);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_equal_transformers),
        cmocka_unit_test(bfloat16_is_as_good_as_transformers),
        cmocka_unit_test(recomputing_and_splitting_change_no_bit),
    };

    return cmocka_run_group_tests_name("golden models", tests, NULL, NULL);
}
