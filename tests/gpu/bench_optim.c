/* bench_optim.c - benchmark of optimizer steps on the matrices of a model's layers.
 *
 *     bench_optim [LAYERS]
 *
 * bfloat16 weights and float32 gradients of the linear layers of Qwen3-1.7B, 28 layers by default.
 * Prints a line per optimizer: its name, milliseconds of a step, the best of five.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/json.h"
#include "d9d/base/thread.h"
#include "d9d/optim/optim.h"
#include "support/unit_device.h"

enum { LAYERS = 28, SERIES = 5 };

static const struct {
    const char *name;
    int64_t rows, cols;
} matrices[] = {
    {"q_proj", 2048, 2048},    {"k_proj", 1024, 2048},    {"v_proj", 1024, 2048},
    {"o_proj", 2048, 2048},    {"gate_proj", 6144, 2048}, {"up_proj", 6144, 2048},
    {"down_proj", 2048, 6144},
};
enum { MATRICES = sizeof(matrices) / sizeof(matrices[0]) };

static const char *const optimizers[][2] = {
    {"adamw", "{\"name\": \"adamw\", \"lr\": 1e-3}"},
    {"muon", "{\"name\": \"muon\", \"lr\": 1e-3, \"adjust_lr_fn\": \"match_rms_adamw\"}"},
};

typedef struct section {
    d9d_union optimizer;
} section;

static const d9d_key section_keys[] = {
    D9D_KEY_UNION(section, optimizer, D9D_REQUIRED, d9d_optimizer_tag, d9d_optimizer_choices,
                  "the optimizer"),
    D9D_KEY_END,
};
static const d9d_table section_table = D9D_TABLE(section, "bench", section_keys, "one section");

typedef struct bench {
    d9d_device *dev;
    d9d_module module;
    d9d_param *param;
    d9d_params params;
    d9d_arena arena;
    d9d_tensor scale;
} bench;

static void must(d9d_status st)
{
    if (st == D9D_OK)
        return;
    fprintf(stderr, "bench_optim: %s\n", d9d_err_message());
    exit(1);
}

static void model_open(bench *b, int layers)
{
    const float one = 1.0f;

    must(d9d_device_open(unit_device_name(), &b->dev));
    d9d_module_init(&b->module);
    b->param = d9d_arena_alloc(&b->arena, (size_t)(layers * MATRICES) * sizeof(*b->param));
    for (int i = 0; i < layers * MATRICES; i++) {
        const char *name = d9d_arena_printf(&b->arena, "layers.%d.%s.weight", i / MATRICES,
                                            matrices[i % MATRICES].name);

        must(d9d_module_param(&b->module, name, &b->param[i], D9D_BF16,
                              D9D_SHAPE(matrices[i % MATRICES].rows, matrices[i % MATRICES].cols),
                              D9D_INIT_NORMAL, 0.02f));
        b->param[i].spec.adaptable = true;
    }
    must(d9d_module_bind(&b->module));
    must(d9d_module_materialise(&b->module, b->dev, true));
    must(d9d_module_reset(&b->module, 1));
    must(d9d_module_params(&b->module, &b->arena, &b->params));
    must(d9d_tensor_from_host(b->dev, D9D_F32, D9D_SCALAR, &one, &b->scale));
    for (int i = 0; i < layers * MATRICES; i++) {
        const int64_t n = d9d_tensor_numel(&b->param[i].local.grad), zero = 0;

        must(b->dev->kernels->elementwise->random(
            b->dev->stream, D9D_F32, d9d_tensor_data(&b->param[i].local.grad), D9D_INIT_NORMAL,
            1.0f, (d9d_rng){2, (uint64_t)i}, 1, &n, &zero, &n));
        b->param[i].local.has_grad = true;
    }
}

static void model_close(bench *b)
{
    d9d_tensor_release(&b->scale);
    d9d_module_release(&b->module);
    d9d_arena_release(&b->arena);
    d9d_device_close(b->dev);
}

/* Milliseconds of a step, without those in which algorithms are chosen. */
static double step_ms(bench *b, const char *config)
{
    double best = INFINITY;
    json_t *optimizer, *doc;
    d9d_optimizer *o;
    section s = {0};

    must(d9d_json_parse("optimizer", config, strlen(config), &optimizer));
    doc = json_pack("{s:o}", "optimizer", optimizer);
    must(d9d_config_bind(&section_table, doc, "bench", NULL, &b->arena, &s));
    must(d9d_optimizer_create(&s.optimizer, b->dev, &b->params, NULL, 1, &o));
    for (int i = 0; i < SERIES + 3; i++) {
        const int64_t start = d9d_clock_ns();

        must(d9d_optimizer_step(o, 1e-4, &b->scale));
        must(d9d_device_sync(b->dev));
        if (i >= 3)
            best = fmin(best, (double)(d9d_clock_ns() - start) * 1e-6);
    }
    d9d_optimizer_free(o);
    json_decref(doc);
    return best;
}

int main(int argc, char **argv)
{
    bench b = {0};

    model_open(&b, argc > 1 ? atoi(argv[1]) : LAYERS);
    for (size_t i = 0; i < sizeof(optimizers) / sizeof(optimizers[0]); i++) {
        printf("%-8s %8.2f ms\n", optimizers[i][0], step_ms(&b, optimizers[i][1]));
        fflush(stdout);
    }
    model_close(&b);
    return 0;
}
