/* bench_optim.c - benchmark of optimizer steps on the matrices of a model's layers.
 *
 *     bench_optim [LAYERS]
 *
 * bfloat16 weights and float32 gradients of the linear layers of Qwen3-1.7B, 28 layers by default.
 * Prints a line per optimizer: its name, milliseconds of a step, the best of five, GB/s that the
 * step reads and writes, and GB of its states; and the GB/s of a copy on the device.
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

static const struct {
    const char *name, *config;
    bool offload;
} optimizers[] = {
    {"adamw", "{\"name\": \"adamw\", \"lr\": 1e-3}", false},
    {"adamw_bfloat16", "{\"name\": \"adamw\", \"lr\": 1e-3, \"state_dtype\": \"bfloat16\"}", false},
    {"adamw_int8", "{\"name\": \"adamw\", \"lr\": 1e-3, \"state_dtype\": \"int8\"}", false},
    {"adamw_int8_stochastic",
     "{\"name\": \"adamw\", \"lr\": 1e-3, \"state_dtype\": \"int8\", \"weight_update\": "
     "\"stochastic\"}",
     false},
    {"adamw_host", "{\"name\": \"adamw\", \"lr\": 1e-3}", true},
    {"adamw_int8_host", "{\"name\": \"adamw\", \"lr\": 1e-3, \"state_dtype\": \"int8\"}", true},
    {"muon", "{\"name\": \"muon\", \"lr\": 1e-3, \"adjust_lr_fn\": \"match_rms_adamw\"}", false},
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

/* Milliseconds of a step, without those in which algorithms are chosen; and bytes of states. */
static double step_ms(bench *b, const char *config, bool offload, double *bytes)
{
    double best = INFINITY;
    json_t *optimizer, *doc;
    d9d_optimizer *o;
    section s = {0};

    must(d9d_json_parse("optimizer", config, strlen(config), &optimizer));
    doc = json_pack("{s:o}", "optimizer", optimizer);
    must(d9d_config_bind(&section_table, doc, "bench", NULL, &b->arena, &s));
    must(d9d_optimizer_create(&s.optimizer, NULL, &b->params, NULL, 1, &o));
    if (offload)
        d9d_optimizer_set_offload(o);
    must(d9d_optimizer_fill(o, b->dev));
    *bytes = (double)(d9d_optimizer_bytes(o) + d9d_optimizer_host_bytes(o));
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

/* GB/s that a copy on the device reads and writes. */
static double copy_rate(bench *b)
{
    const uint64_t n = UINT64_C(1) << 30;
    double best = INFINITY;
    void *from, *to;

    must(d9d_device_alloc(b->dev, n, &from));
    must(d9d_device_alloc(b->dev, n, &to));
    for (int i = 0; i < SERIES + 1; i++) {
        const int64_t start = d9d_clock_ns();

        must(d9d_device_copy(b->dev, to, from, n));
        must(d9d_device_sync(b->dev));
        best = fmin(best, (double)(d9d_clock_ns() - start) * 1e-9);
    }
    d9d_device_free(b->dev, from, n);
    d9d_device_free(b->dev, to, n);
    return 2e-9 * (double)n / best;
}

/* Bytes of weights, which are read and written, and of gradients, which are read. */
static double model_bytes(const bench *b)
{
    double sum = 0;

    for (size_t i = 0; i < b->params.n; i++)
        sum += (2 * 2 + 4) * (double)d9d_tensor_numel(&b->params.p[i]->local.grad);
    return sum;
}

int main(int argc, char **argv)
{
    bench b = {0};

    model_open(&b, argc > 1 ? atoi(argv[1]) : LAYERS);
    for (size_t i = 0; i < sizeof(optimizers) / sizeof(optimizers[0]); i++) {
        double bytes;
        const double ms = step_ms(&b, optimizers[i].config, optimizers[i].offload, &bytes);

        printf("%-22s %8.2f ms %8.0f GB/s %6.2f GB\n", optimizers[i].name, ms,
               (2 * bytes + model_bytes(&b)) / ms * 1e-6, bytes * 1e-9);
        fflush(stdout);
    }
    printf("%-22s %8s    %8.0f GB/s\n", "copy", "-", copy_rate(&b));
    model_close(&b);
    return 0;
}
