/* test_golden_train.c - twenty steps of AdamW with clipping, and log-probabilities, against
 * transformers, for every checkpoint of cases.json: losses, norms of the gradient and exported
 * weights; and that neither the micro-batch nor the layout of the checkpoint matters. */
#include "support/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "d9d/base/json.h"
#include "d9d/data/build/shard.h"
#include "d9d/infer/infer.h"
#include "d9d/train/train.h"
#include "support/unit_device.h"
#include "support/vectors.h"

enum { STEPS = 20, GLOBAL = 4, SAMPLES = STEPS * GLOBAL, MAX_TEXT = 1 << 24 };

/* Relative errors.  In float32 transformers is a half to a fifth of this away from the golden
 * values; norms are the worst, as they see the rounding of the weight decay's 1 - 1e-4. */
static const double loss_limit = 2e-6, norm_limit = 1e-5, weight_limit = 2e-5, logprob_limit = 2e-6,
                    micro_limit = 1e-6;

/* Another device adds in other orders. */
static double allowed(double limit)
{
    return unit_device_tolerance(limit, 10 * limit);
}

typedef struct history {
    double loss[STEPS], norm[STEPS];
    int64_t targets[STEPS];
} history;

/* --- files --------------------------------------------------------------------------------- */

static json_t *json_file(const char *path)
{
    json_t *v = NULL;

    assert_ok(d9d_json_read(path, MAX_TEXT, &v));
    return v;
}

static double number(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);

    if (!json_is_number(v))
        fail_msg("no number \"%s\"", key);
    return json_number_value(v);
}

/* Lines of a JSONL file as an array. */
static json_t *json_lines(const char *path)
{
    json_t *all = json_array();
    d9d_buf text = {0};
    char *line, *rest;

    assert_ok(d9d_fs_read(path, MAX_TEXT, &text));
    for (line = strtok_r(text.data, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        json_t *v = json_loads(line, 0, NULL);

        assert_non_null(v);
        assert_int_equal(json_array_append_new(all, v), 0);
    }
    d9d_buf_release(&text);
    return all;
}

static const char *absolute(const char *dir, const char *file)
{
    static _Thread_local char path[4][4200];
    static _Thread_local int next;
    char *to = path[next++ % 4];

    (void)snprintf(to, sizeof(path[0]), "%s", vectors_path(dir, file));
    return to;
}

static void dataset_make(const char *golden, const char *out)
{
    const char *input = absolute(golden, "train.jsonl");
    d9d_shard_report report;

    assert_ok(d9d_shard_run(
        &(d9d_shard_opts){
            .inputs = &input, .n_inputs = 1, .out = out, .format = D9D_SHARD_TOKENS, .seed = -1},
        NULL, &report));
    assert_int_equal(report.samples, SAMPLES);
}

/* --- the library, as the tools call it ------------------------------------------------------ */

/* The parts that training and inference share. */
static json_t *config_make(const char *checkpoint, const char *data, int micro)
{
    const char *provider = strncmp(checkpoint, "dense", 5) == 0 ? "qwen3_dense" : "qwen3_moe";
    json_t *doc = json_pack("{s:{s:s}, s:{s:s, s:s}, s:{s:{s:i, s:i}, s:{s:s}}}", "data", "dataset",
                            data, "model_provider", "name", provider, "hf_config",
                            absolute(checkpoint, "config.json"), "trainer", "batching",
                            "global_batch_size", GLOBAL, "microbatch_size", micro,
                            "model_stage_factory", "source_checkpoint", absolute(checkpoint, ""));

    assert_non_null(doc);
    return doc;
}

static void config_set(json_t *doc, const char *assignment)
{
    assert_ok(d9d_config_set(&d9d_train_config_table, doc, assignment));
}

/* Bind, call, release.  The summary is of the table's own kind. */
static void train(json_t *doc, d9d_train_summary *out)
{
    d9d_arena arena = {0};
    d9d_train_config c;
    d9d_job where = {.device = unit_device_name()};
    json_t *resolved;

    assert_ok(d9d_config_resolve(&d9d_train_config_table, doc, "config", NULL, &resolved));
    assert_ok(d9d_config_bind(&d9d_train_config_table, resolved, "config", NULL, &arena, &c));
    assert_ok(d9d_bootstrap_open(&where.bootstrap));
    assert_ok(d9d_train(&c, resolved, &where, out));
    d9d_bootstrap_close(where.bootstrap);
    assert_int_equal(out->host_waits, 0); /* inside its steps the host never stood still */
    json_decref(resolved);
    d9d_arena_release(&arena);
}

static void infer(json_t *doc, d9d_infer_task_summary *out)
{
    d9d_arena arena = {0};
    d9d_infer_config c;
    d9d_job where = {.device = unit_device_name()};
    json_t *resolved;

    assert_ok(d9d_config_resolve(&d9d_infer_config_table, doc, "config", NULL, &resolved));
    assert_ok(d9d_config_bind(&d9d_infer_config_table, resolved, "config", NULL, &arena, &c));
    assert_ok(d9d_bootstrap_open(&where.bootstrap));
    assert_ok(d9d_infer(&c, resolved, &where, out));
    d9d_bootstrap_close(where.bootstrap);
    json_decref(resolved);
    d9d_arena_release(&arena);
}

/* Train as train.json says, into the run directory `run`. */
static void run_train(const char *checkpoint, const char *data, int micro, const json_t *recipe,
                      const char *run, history *out)
{
    json_t *doc = config_make(checkpoint, data, micro), *lines;
    d9d_train_summary summary;
    char text[256];
    int64_t before = 0;

    assert_int_equal(json_object_set(doc, "optimizer", json_object_get(recipe, "optimizer")), 0);
    (void)snprintf(text, sizeof(text), "trainer.gradient_clipping.max_norm=%.17g",
                   number(recipe, "max_norm"));
    config_set(doc, text);
    (void)snprintf(text, sizeof(text), "trainer.run.dir=%s", run);
    config_set(doc, text);
    config_set(doc, "trainer.checkpointing.period_steps=disable");
    train(doc, &summary);
    assert_int_equal(summary.steps, STEPS);
    (void)snprintf(text, sizeof(text), "%s/metrics.jsonl", run);
    lines = json_lines(text);
    assert_int_equal(json_array_size(lines), STEPS + 1); /* and that it is done */
    for (size_t i = 0; i < STEPS; i++) {
        const json_t *line = json_array_get(lines, i);

        assert_int_equal((int64_t)number(line, "step"), (int64_t)i + 1);
        out->loss[i] = number(line, "loss");
        out->norm[i] = number(line, "grad_norm");
        out->targets[i] = (int64_t)number(line, "tokens") - before;
        before += out->targets[i];
    }
    json_decref(lines);
    json_decref(doc);
}

/* --- the exported weights -------------------------------------------------------------------- */

/* Where a weight of an expert is when the layer's experts are one tensor. */
typedef struct fused {
    const char *part, *tensor;
    size_t half; /* of the rows: 0 or 1 of `halves` */
    size_t halves;
} fused;

static const fused fusings[] = {{".gate_proj.weight", "gate_up_proj", 0, 2},
                                {".up_proj.weight", "gate_up_proj", 1, 2},
                                {".down_proj.weight", "down_proj", 0, 1}};

/* Expert k of n: rows of [n, rows, cols]. */
static float *expert_read(const d9d_safetensors_file *f, const char *name, size_t *n)
{
    const char *experts = strstr(name, ".experts.");
    char whole[512], *end;
    long k;

    assert_non_null(experts);
    k = strtol(experts + strlen(".experts."), &end, 10);
    for (size_t i = 0; i < 3; i++) {
        const d9d_safetensors_tensor *t;
        float *all, *one;
        size_t elements;

        if (strcmp(end, fusings[i].part) != 0)
            continue;
        (void)snprintf(whole, sizeof(whole), "%.*s.experts.%s", (int)(experts - name), name,
                       fusings[i].tensor);
        t = vectors_find(f, whole);
        all = vectors_f32(f, whole, &elements);
        *n = elements / (size_t)t->shape[0] / fusings[i].halves;
        one = malloc(*n * sizeof(*one));
        assert_non_null(one);
        memcpy(one, all + ((size_t)k * fusings[i].halves + fusings[i].half) * *n,
               *n * sizeof(*one));
        free(all);
        return one;
    }
    fail_msg("no way to find %s", name);
    return NULL;
}

static float *weight_read(const d9d_safetensors_file *f, const char *name, size_t *n)
{
    return d9d_safetensors_find(f, name) != NULL ? vectors_f32(f, name, n)
                                                 : expert_read(f, name, n);
}

static void check_weights(const char *what, const char *golden, const char *exported,
                          const json_t *recipe)
{
    const json_t *norms = json_object_get(recipe, "final_norms"), *v;
    d9d_safetensors_file *got, *want;
    const char *name;
    size_t n, n_want;

    assert_ok(d9d_safetensors_open(exported, &got));
    assert_ok(d9d_safetensors_open(absolute(golden, "final.safetensors"), &want));
    for (size_t i = 0; i < d9d_safetensors_count(want); i++) {
        float *b = vectors_f32(want, d9d_safetensors_at(want, i)->name, &n_want);
        float *a = weight_read(got, d9d_safetensors_at(want, i)->name, &n);
        double d;

        assert_int_equal(n, n_want);
        d = vectors_distance(a, b, n, 1e-30);
        if (!(d < allowed(weight_limit)))
            fail_msg("%s: %s is %.3g away, limit %.3g", what, d9d_safetensors_at(want, i)->name, d,
                     allowed(weight_limit));
        free(a);
        free(b);
    }
    json_object_foreach((json_t *)(uintptr_t)norms, name, v)
    {
        float *a = weight_read(got, name, &n);
        double d = fabs(vectors_norm(a, n) / json_number_value(v) - 1);

        if (!(d < allowed(weight_limit)))
            fail_msg("%s: norm of %s is %.3g away, limit %.3g", what, name, d,
                     allowed(weight_limit));
        free(a);
    }
    d9d_safetensors_close(got);
    d9d_safetensors_close(want);
}

/* --- training --------------------------------------------------------------------------------- */

static void check_relative(const char *what, const char *of, size_t step, double got, double want,
                           double limit)
{
    double d = fabs(got / want - 1);

    if (!(d < allowed(limit)))
        fail_msg("%s: %s of step %zu is %.17g, must be %.17g: %.3g away, limit %.3g", what, of,
                 step, got, want, d, allowed(limit));
}

static void check_golden(const char *what, const history *h, const json_t *recipe)
{
    const json_t *steps = json_object_get(recipe, "steps");

    assert_int_equal(json_array_size(steps), STEPS);
    for (size_t i = 0; i < STEPS; i++) {
        const json_t *s = json_array_get(steps, i);

        check_relative(what, "loss", i + 1, h->loss[i], number(s, "loss"), loss_limit);
        check_relative(what, "norm", i + 1, h->norm[i], number(s, "grad_norm"), norm_limit);
        assert_int_equal(h->targets[i], (int64_t)number(s, "targets"));
    }
}

static const char *text_of(const json_t *c, const char *key)
{
    return json_string_value(json_object_get(c, key));
}

/* A case with its dataset, and what the first layout of the same weights gave. */
typedef struct fixture {
    const char *checkpoint, *golden;
    bool first; /* of the layouts of its weights */
    json_t *recipe;
    history want;
} fixture;

/* Layouts of the same weights stand one behind the other. */
static void each_case(void (*run)(fixture *f))
{
    json_t *cases = json_file(absolute("", "cases.json"));
    fixture f = {.golden = ""};

    assert_true(json_array_size(cases) > 5);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);

        f.first = strcmp(f.golden, text_of(c, "golden")) != 0;
        f.golden = text_of(c, "golden");
        f.checkpoint = text_of(c, "checkpoint");
        f.recipe = json_file(absolute(f.golden, "train.json"));
        if (f.first) {
            assert_ok(d9d_fs_remove_tree("data"));
            dataset_make(f.golden, "data");
        }
        run(&f);
        json_decref(f.recipe);
    }
    json_decref(cases);
}

static void case_trains(fixture *f)
{
    history h;
    char run[64];

    (void)snprintf(run, sizeof(run), "%s-1", f->checkpoint);
    run_train(f->checkpoint, "data", 1, f->recipe, run, &h);
    check_golden(f->checkpoint, &h, f->recipe);
    (void)strcat(run, "/export/model.safetensors");
    check_weights(f->checkpoint, f->golden, run, f->recipe);
    if (f->first)
        f->want = h;
    else
        assert_memory_equal(&h, &f->want, sizeof(h)); /* other layouts: not one bit */
}

static void training_equals_transformers(void **state)
{
    (void)state;
    each_case(case_trains);
}

static void case_micro(fixture *f)
{
    history one, h;

    if (!f->first)
        return;
    run_train(f->checkpoint, "data", 1, f->recipe, "micro-1", &one);
    for (int micro = 2; micro <= GLOBAL; micro *= 2) {
        char run[32];

        (void)snprintf(run, sizeof(run), "micro-%d", micro);
        run_train(f->checkpoint, "data", micro, f->recipe, run, &h);
        for (size_t i = 0; i < STEPS; i++) {
            check_relative(run, "loss", i + 1, h.loss[i], one.loss[i], micro_limit);
            check_relative(run, "norm", i + 1, h.norm[i], one.norm[i], norm_limit / 2);
            assert_int_equal(h.targets[i], one.targets[i]);
        }
        assert_ok(d9d_fs_remove_tree(run));
    }
    assert_ok(d9d_fs_remove_tree("micro-1"));
}

static void the_micro_batch_does_not_matter(void **state)
{
    (void)state;
    each_case(case_micro);
}

/* --- inference ----------------------------------------------------------------------------- */

/* One line of logprobs against the losses of one sample. */
static void check_line(const char *what, const json_t *line, size_t sample, const json_t *losses)
{
    const json_t *got = json_object_get(line, "logprobs");
    size_t n = json_array_size(losses);
    double mean = 0;

    assert_int_equal((int64_t)number(line, "sample"), (int64_t)sample);
    assert_int_equal((int64_t)number(line, "tokens"), (int64_t)n);
    assert_int_equal(json_array_size(got), n);
    for (size_t i = 0; i < n; i++) {
        double want = json_number_value(json_array_get(losses, i));
        double d = fabs(json_number_value(json_array_get(got, i)) + want) / fmax(1, want);

        mean += want / (double)n;
        if (!(d < allowed(logprob_limit)))
            fail_msg("%s: sample %zu, target %zu: %.3g away, limit %.3g", what, sample, i, d,
                     allowed(logprob_limit));
    }
    if (n == 0)
        assert_true(json_is_null(json_object_get(line, "loss")));
    else
        check_relative(what, "sample's loss", sample, number(line, "loss"), mean, logprob_limit);
}

static void case_infers(fixture *f)
{
    static const int micros[] = {1, 3, SAMPLES + 1};
    const json_t *want = json_object_get(f->recipe, "initial_losses");

    for (int k = 0; k < 3; k++) {
        json_t *doc = config_make(f->checkpoint, "data", micros[k]), *lines;
        d9d_infer_task_summary written, printed;
        double sum = 0;
        int64_t n = 0;

        config_set(doc, "task={\"name\": \"logprobs\", \"output\": \"out.jsonl\"}");
        infer(doc, &written);
        lines = json_lines("out.jsonl");
        assert_int_equal(json_array_size(lines), json_array_size(want));
        for (size_t i = 0; i < json_array_size(want); i++) {
            const json_t *losses = json_array_get(want, i), *v;
            size_t j;

            check_line(f->checkpoint, json_array_get(lines, i), i, losses);
            json_array_foreach((json_t *)(uintptr_t)losses, j, v) sum += json_number_value(v);
            n += (int64_t)json_array_size(losses);
        }
        config_set(doc, "task={\"name\": \"perplexity\"}");
        infer(doc, &printed);
        assert_int_equal(printed.tokens, n);
        assert_int_equal(printed.samples, SAMPLES);
        check_relative(f->checkpoint, "mean loss", 0, printed.loss, sum / (double)n, logprob_limit);
        check_relative(f->checkpoint, "perplexity", 0, printed.perplexity, exp(printed.loss),
                       1e-15);
        assert_true(written.loss == printed.loss);
        assert_int_equal(unlink("out.jsonl"), 0);
        json_decref(lines);
        json_decref(doc);
    }
}

static void logprobs_equal_transformers(void **state)
{
    (void)state;
    each_case(case_infers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        unit_test_in_dir(training_equals_transformers),
        unit_test_in_dir(the_micro_batch_does_not_matter),
        unit_test_in_dir(logprobs_equal_transformers),
    };
    char root[4000];

    if (getenv("D9D_ROOT") == NULL && getcwd(root, sizeof(root)) != NULL)
        (void)setenv("D9D_ROOT", root, 1);
    if (getenv("TMPDIR") == NULL && access("/dev/shm", W_OK) == 0)
        (void)setenv("TMPDIR", "/dev/shm", 1); /* runs sync a lot */
    return cmocka_run_group_tests_name("golden training", tests, NULL, NULL);
}
