/* test_golden_families.c - every family against transformers: logits, losses and gradients for each
 * directory of families/; hidden states of packed documents, and gradients, for each of encoders/.
 *
 *     test_golden_families DIR...     # absolute: of these alone, and how far each is away
 */
#include "support/unit.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/json.h"
#include "d9d/ckpt/dir/checkpoint.h"
#include "d9d/model/hf/hf_config.h"
#include "d9d/model/params_io.h"
#include "d9d/model/weights.h"
#include "d9d/models/models.h"
#include "support/unit_device.h"
#include "support/vectors.h"

/* One case, on the device. */
typedef struct fixture {
    const char *name; /* "families/llama" */
    d9d_arena arena;
    d9d_model_spec spec;
    d9d_device *dev;
    d9d_model *model;
    d9d_params params;
    d9d_tape *tape;
    d9d_safetensors_file *want;
    d9d_tensor ids, labels, positions, each; /* each: 0, 1, ... of the tokens */
    d9d_tensor segments, seed;               /* of encoders: documents; gradient of hidden */
    d9d_weights_layout layout;
    int64_t tokens, targets;
    double limit; /* of the relative L2 error */
    double worst; /* the largest one */
} fixture;

static void rows_upload(fixture *f)
{
    const d9d_safetensors_tensor *t = vectors_find(f->want, "input_ids");
    const d9d_shape shape = D9D_SHAPE(t->shape[0], t->shape[1]);
    size_t n;
    int32_t *ids = vectors_i32(f->want, "input_ids", &n);
    int32_t *labels = vectors_i32(f->want, "labels", &n);
    int32_t *numbers = malloc(n * sizeof(*numbers));

    assert_non_null(numbers);
    f->tokens = (int64_t)n;
    for (size_t i = 0; i < n; i++)
        f->targets += labels[i] != D9D_IGNORE_INDEX;
    assert_ok(d9d_tensor_from_host(f->dev, D9D_I32, shape, ids, &f->ids));
    assert_ok(d9d_tensor_from_host(f->dev, D9D_I32, shape, labels, &f->labels));
    for (size_t i = 0; i < n; i++)
        numbers[i] = (int32_t)i % (int32_t)t->shape[1];
    assert_ok(d9d_tensor_from_host(f->dev, D9D_I32, shape, numbers, &f->positions));
    for (size_t i = 0; i < n; i++)
        numbers[i] = (int32_t)i;
    assert_ok(d9d_tensor_from_host(f->dev, D9D_I32, D9D_SHAPE(f->tokens), numbers, &f->each));
    free(ids);
    free(labels);
    free(numbers);
}

static void i32_upload(fixture *f, const char *name, d9d_tensor *out)
{
    const d9d_safetensors_tensor *t = vectors_find(f->want, name);
    size_t n;
    int32_t *host = vectors_i32(f->want, name, &n);

    assert_ok(
        d9d_tensor_from_host(f->dev, D9D_I32, D9D_SHAPE(t->shape[0], t->shape[1]), host, out));
    free(host);
}

/* Packed documents and padding, and the gradient of what comes out. */
static void documents_upload(fixture *f)
{
    const d9d_safetensors_tensor *t = vectors_find(f->want, "hidden_seed");
    size_t n;
    float *seed = vectors_f32(f->want, "hidden_seed", &n);

    i32_upload(f, "input_ids", &f->ids);
    i32_upload(f, "positions", &f->positions);
    i32_upload(f, "segments", &f->segments);
    assert_ok(d9d_tensor_from_host(
        f->dev, D9D_F32, D9D_SHAPE(t->shape[0], t->shape[1], t->shape[2]), seed, &f->seed));
    free(seed);
}

/* 1e-5, or five times what transformers' own float32 is away where a model amplifies rounding. */
static void limit_read(fixture *f)
{
    size_t n;
    float *apart = vectors_f32(f->want, "float32_apart", &n);

    f->limit = unit_device_tolerance(1e-5, 1e-4);
    if (5 * (double)apart[0] > f->limit)
        f->limit = 5 * (double)apart[0];
    free(apart);
}

static void spec_read(fixture *f)
{
    const char *path = d9d_arena_strdup(&f->arena, vectors_path(f->name, "config.json"));
    json_t *doc;

    assert_ok(d9d_hf_config_load(path, &doc));
    if (d9d_model_spec_of(d9d_model_choices, doc, path, &f->arena, &f->spec) != D9D_OK)
        fail_msg("%s", d9d_err_message());
    json_decref(doc);
}

static void weights_load(fixture *f)
{
    d9d_weights *weights;

    if (d9d_weights_open(&f->spec, D9D_WHOLE_MODEL, vectors_path(f->name, ""), NULL, &weights) !=
        D9D_OK)
        fail_msg("%s: %s", f->name, d9d_err_message());
    assert_ok(d9d_weights_read(weights, &f->params, NULL));
    d9d_weights_close(weights);
}

static void fixture_open(fixture *f, const char *name, void (*upload)(fixture *f))
{
    d9d_checkpoint *ckpt;
    d9d_tensor_source src;

    *f = (fixture){.name = name};
    spec_read(f);
    f->spec.opts.dtype = D9D_F32;
    assert_ok(f->spec.provider->create(f->spec.config, D9D_WHOLE_MODEL, &f->spec.opts, &f->model));
    assert_ok(d9d_module_bind(f->model->module));
    assert_ok(d9d_module_params(f->model->module, &f->arena, &f->params));
    assert_ok(d9d_device_open(unit_device_name(), &f->dev));
    assert_ok(d9d_module_materialise(f->model->module, f->dev, true));
    weights_load(f);
    assert_ok(d9d_checkpoint_open(vectors_path(name, ""), &ckpt));
    src = d9d_checkpoint_source(ckpt);
    f->layout = d9d_model_layout(&f->spec, &src);
    d9d_checkpoint_close(ckpt);
    assert_ok(d9d_tape_create(f->dev, &f->tape));
    assert_ok(d9d_safetensors_open(vectors_path(name, "golden.safetensors"), &f->want));
    upload(f);
    limit_read(f);
}

static void fixture_close(fixture *f)
{
    d9d_tensor_release(&f->ids);
    d9d_tensor_release(&f->labels);
    d9d_tensor_release(&f->positions);
    d9d_tensor_release(&f->each);
    d9d_tensor_release(&f->segments);
    d9d_tensor_release(&f->seed);
    d9d_tape_free(f->tape);
    d9d_model_free(f->model);
    assert_int_equal(d9d_device_memory(f->dev).in_use, 0);
    d9d_device_close(f->dev);
    d9d_safetensors_close(f->want);
    d9d_arena_release(&f->arena);
}

/* --- comparing ------------------------------------------------------------------------------- */

static void check_near(fixture *f, const char *name, const float *got, size_t n, double floor)
{
    size_t n_want;
    float *want = vectors_f32(f->want, name, &n_want);
    double d;

    if (n != n_want)
        fail_msg("%s: %s has %zu elements, not %zu", f->name, name, n, n_want);
    d = vectors_distance(got, want, n, vectors_norm(want, n) == 0 ? floor : 1e-30);
    f->worst = d > f->worst ? d : f->worst;
    if (!(d < f->limit))
        fail_msg("%s: %s is %.3g away, limit %.3g", f->name, name, d, f->limit);
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

static void forward(fixture *f, const d9d_tensor *pick, d9d_model_out *out)
{
    const d9d_model_in in = {
        .ids = &f->ids, .positions = &f->positions, .labels = &f->labels, .pick = pick};

    d9d_tape_set_recording(f->tape, pick == NULL); /* logits have no backward */
    assert_ok(f->model->ops->forward(f->model, f->tape, &in, out));
}

/* Backward of the mean loss. */
static void backward(fixture *f, d9d_var *loss)
{
    float *host = malloc((size_t)f->tokens * sizeof(*host));
    d9d_tensor seed;

    assert_non_null(host);
    for (int64_t i = 0; i < f->tokens; i++)
        host[i] = (float)(1.0 / (double)f->targets);
    assert_ok(d9d_tensor_from_host(f->dev, D9D_F32, D9D_SHAPE(f->tokens), host, &seed));
    assert_ok(d9d_tape_backward(f->tape, &loss, &seed, 1, D9D_BACKWARD_FULL));
    d9d_tensor_release(&seed);
    d9d_tape_reset(f->tape);
    free(host);
}

typedef struct memory {
    const d9d_safetensors_tensor *tensor;
    float **data;
    size_t n;
} memory;

static d9d_status memory_begin(void *self, const d9d_safetensors_tensor *outputs, size_t n,
                               size_t *pieces, uint64_t *bytes)
{
    memory *m = self;

    m->tensor = outputs;
    m->n = *pieces = n;
    m->data = calloc(n + 1, sizeof(*m->data));
    *bytes = 0;
    for (size_t i = 0; i < n; i++) {
        m->data[i] = malloc(outputs[i].bytes + 8);
        *bytes += outputs[i].bytes;
    }
    return D9D_OK;
}

static d9d_status memory_fill(void *self, size_t i, d9d_map_reader *make)
{
    const memory *m = self;

    return d9d_map_read(make, i, 0, m->data[i], m->tensor[i].bytes);
}

/* Gradients under the names and in the forms of the files; those that are zero by mathematics are
 * measured by all of them together. */
static void check_gradients(fixture *f)
{
    memory got = {0};
    const d9d_tensor_sink sink = {.self = &got, .begin = memory_begin, .fill = memory_fill};
    d9d_params_io *io;
    d9d_mapper *mapper;
    d9d_map_plan *plan;
    d9d_tensor_source source;
    double all = 0;
    char name[256];

    assert_ok(d9d_params_io_open(&f->params, D9D_PARAMS_GRADS, &io));
    assert_ok(d9d_params_io_source(io, &source));
    for (size_t i = 0; i < source.n; i++)
        assert_non_null(source.at(source.self, i));
    if (d9d_model_mapper(&f->spec, D9D_WHOLE_MODEL, &source, f->layout, &mapper) != D9D_OK ||
        d9d_map_plan_create(mapper, &source, &(d9d_map_plan_opts){0}, &plan) != D9D_OK)
        fail_msg("%s: %s", f->name, d9d_err_message());
    assert_ok(d9d_map_plan_run(plan, &sink, 1, NULL));
    for (size_t i = 0; i < got.n; i++)
        all += pow(vectors_norm(got.data[i], got.tensor[i].bytes / 4), 2);
    for (size_t i = 0; i < got.n; i++) {
        (void)snprintf(name, sizeof(name), "grad.%s", got.tensor[i].name);
        check_near(f, name, got.data[i], got.tensor[i].bytes / 4, sqrt(all));
        free(got.data[i]);
    }
    free(got.data);
    d9d_map_plan_free(plan);
    d9d_mapper_free(mapper);
    d9d_params_io_close(io);
}

/* --- the tests ---------------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void each_case(const char *folder, double (*fn)(const char *name))
{
    DIR *dir = opendir(vectors_path(folder, ""));
    struct dirent *e;
    char *names[256];
    size_t n = 0;

    assert_non_null(dir);
    while ((e = readdir(dir)) != NULL && n < 256)
        if (e->d_name[0] != '.') {
            char name[300];

            (void)snprintf(name, sizeof(name), "%s/%s", folder, e->d_name);
            names[n++] = strdup(name);
        }
    assert_int_equal(closedir(dir), 0);
    assert_true(n > 0 && n < 256);
    qsort(names, n, sizeof(*names), compare_names);
    for (size_t i = 0; i < n; i++) {
        (void)fn(names[i]);
        free(names[i]);
    }
}

/* The largest relative distance. */
static double case_values(const char *name)
{
    fixture f;
    d9d_model_out out;

    fixture_open(&f, name, rows_upload);
    forward(&f, &f.each, &out);
    check_var(&f, "logits", out.logits);
    check_var(&f, "token_losses", out.loss);
    d9d_tape_reset(f.tape);
    forward(&f, NULL, &out);
    backward(&f, out.loss);
    check_gradients(&f);
    fixture_close(&f);
    return f.worst;
}

static void values_equal_transformers(void **state)
{
    (void)state;
    each_case("families", case_values);
}

static double case_hidden(const char *name)
{
    fixture f;
    d9d_model_in in;
    d9d_model_out out = {0};

    fixture_open(&f, name, documents_upload);
    in = (d9d_model_in){.ids = &f.ids, .positions = &f.positions, .segments = &f.segments};
    assert_ok(f.model->ops->forward(f.model, f.tape, &in, &out));
    check_var(&f, "hidden", out.hidden);
    assert_ok(d9d_tape_backward(f.tape, &out.hidden, &f.seed, 1, D9D_BACKWARD_FULL));
    d9d_tape_reset(f.tape);
    check_gradients(&f);
    fixture_close(&f);
    return f.worst;
}

static void hidden_states_equal_transformers(void **state)
{
    (void)state;
    each_case("encoders", case_hidden);
}

/* A directory of one case: an encoder's golden file has documents. */
static void given_equals_transformers(void **state)
{
    const char *name = *state;
    d9d_safetensors_file *want;
    bool encoder;

    assert_ok(d9d_safetensors_open(vectors_path(name, "golden.safetensors"), &want));
    encoder = d9d_safetensors_find(want, "segments") != NULL;
    d9d_safetensors_close(want);
    printf("%s is %.3g away\n", name, encoder ? case_hidden(name) : case_values(name));
}

static int run_given(int n, char **names)
{
    struct CMUnitTest tests[256];

    n = n < 256 ? n : 256;
    for (int i = 0; i < n; i++)
        tests[i] = (struct CMUnitTest){
            .name = names[i], .test_func = given_equals_transformers, .initial_state = names[i]};
    return _cmocka_run_group_tests("given", tests, (size_t)n, NULL, NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_equal_transformers),
        cmocka_unit_test(hidden_states_equal_transformers),
    };

    return argc > 1 ? run_given(argc - 1, argv + 1)
                    : cmocka_run_group_tests_name("golden families", tests, NULL, NULL);
}
