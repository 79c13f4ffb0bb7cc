/* bench_load.c - the time from a HuggingFace checkpoint to a model's memory.
 *
 *     bench_load DIR [TIMES]
 *
 * Reads the weights of DIR in their own dtype into the device that D9D_TEST_DEVICE names, TIMES
 * times.  Prints a line each: bytes, seconds until the last byte is there, GB/s.  Then prints the
 * bounds: reading and arranging without a device, and the transfer to the device alone.
 */
#include <stdio.h>
#include <stdlib.h>

#include "d9d/base/thread.h"
#include "d9d/ckpt/dir/checkpoint.h"
#include "d9d/job/job.h"
#include "d9d/model/model.h"
#include "d9d/model/weights/weights.h"
#include "d9d/models/models.h"
#include "support/family.h"
#include "support/unit_device.h"

typedef struct bench {
    d9d_arena arena;
    d9d_family_config config;
    d9d_device *dev;
    d9d_model *model;
    d9d_params params;
} bench;

static double seconds_since(int64_t ns)
{
    return (double)(d9d_clock_ns() - ns) * 1e-9;
}

static d9d_status dtype_of(const char *dir, d9d_dtype *out)
{
    d9d_checkpoint *c;

    D9D_TRY(d9d_checkpoint_open(dir, &c));
    const d9d_tensor_source src = d9d_checkpoint_source(c);
    *out = src.at(src.self, 0)->dtype;
    d9d_checkpoint_close(c);
    return D9D_OK;
}

static d9d_status model_make(bench *b, const char *dir, d9d_dtype t)
{
    const d9d_model_opts options = {.dtype = t};

    D9D_TRY(family_read(dir, &b->arena, &b->config));
    D9D_TRY(d9d_family_create(&b->config, D9D_WHOLE_MODEL, &options, &b->model));
    D9D_TRY(d9d_module_bind(b->model->module));
    D9D_TRY(d9d_module_params(b->model->module, &b->arena, &b->params));
    D9D_TRY(d9d_device_open(unit_device_name(), &b->dev));
    return d9d_module_materialise(b->model->module, b->dev, false);
}

static d9d_status load(bench *b, const char *dir, d9d_dtype t)
{
    const int64_t start = d9d_clock_ns();
    const d9d_model_spec spec = {
        .provider = &d9d_qwen3_moe_provider, .config = &b->config, .opts = {.dtype = t}};
    d9d_weights *w;
    double opened, s;
    uint64_t bytes;
    d9d_status st;

    D9D_TRY(d9d_weights_open(&spec, D9D_WHOLE_MODEL, dir, NULL, &w));
    opened = seconds_since(start);
    bytes = d9d_map_plan_bytes(d9d_weights_plan(w));
    st = d9d_weights_read(w, &b->params, NULL);
    d9d_weights_close(w);
    if (st == D9D_OK)
        st = d9d_device_sync(b->dev);
    s = seconds_since(start);
    if (st == D9D_OK)
        printf("%.2f GB in %.3f s, the plan %.3f s of it: %.1f GB/s\n", (double)bytes * 1e-9, s,
               opened, (double)bytes / s * 1e-9);
    return st;
}

/* --- its halves --------------------------------------------------------------------------- */

enum { SPAN = 2 << 20, SENT = 64 << 20, SENDS = 64 };

typedef struct span {
    size_t output;
    uint64_t at, n;
} span;

typedef struct nowhere {
    D9D_VEC(span) spans;
} nowhere;

static d9d_status nowhere_begin(void *self, const d9d_safetensors_tensor *outputs, size_t n,
                                size_t *n_items, uint64_t *bytes)
{
    nowhere *s = self;

    *bytes = 0;
    for (size_t i = 0; i < n; i++) {
        const d9d_safetensors_tensor *t = &outputs[i];
        const uint64_t matrix = t->ndim < 3 ? SPAN : t->bytes / (uint64_t)t->shape[0];

        for (uint64_t at = 0; at < t->bytes; at += matrix) {
            const uint64_t left = t->bytes - at;

            D9D_TRY(D9D_VEC_PUSH(&s->spans, (span){i, at, left < matrix ? left : matrix}));
        }
        *bytes += t->bytes;
    }
    *n_items = s->spans.len;
    return D9D_OK;
}

static d9d_status nowhere_fill(void *self, size_t k, d9d_map_reader *make)
{
    const span *p = &((const nowhere *)self)->spans.data[k];
    void *scratch;

    D9D_TRY(d9d_map_reader_scratch(make, p->n, &scratch));
    return d9d_map_read(make, p->output, p->at, scratch, p->n);
}

static d9d_status read_alone(bench *b, const char *dir, d9d_dtype t)
{
    nowhere s = {0};
    const d9d_tensor_sink sink = {.self = &s, .begin = nowhere_begin, .fill = nowhere_fill};
    const d9d_model_spec spec = {
        .provider = &d9d_qwen3_moe_provider, .config = &b->config, .opts = {.dtype = t}};
    d9d_weights *w;
    int64_t start;
    d9d_status st;

    D9D_TRY(d9d_weights_open(&spec, D9D_WHOLE_MODEL, dir, NULL, &w));
    start = d9d_clock_ns();
    st = d9d_map_plan_run(d9d_weights_plan(w), &sink, 0, NULL);
    if (st == D9D_OK)
        printf("reading alone: %.1f GB/s\n",
               (double)d9d_map_plan_bytes(d9d_weights_plan(w)) / seconds_since(start) * 1e-9);
    D9D_VEC_RELEASE(&s.spans);
    d9d_weights_close(w);
    return st;
}

static d9d_status send_alone(bench *b)
{
    void *from, *to;
    int64_t start;

    D9D_TRY(d9d_device_pin(b->dev, SENT, &from));
    D9D_TRY(d9d_device_alloc(b->dev, SENT, &to));
    start = d9d_clock_ns();
    for (int i = 0; i < SENDS; i++)
        D9D_TRY(d9d_device_h2d_async(b->dev, to, from, SENT));
    D9D_TRY(d9d_device_sync(b->dev));
    printf("the way to %s alone: %.1f GB/s\n", b->dev->name,
           (double)SENDS * SENT / seconds_since(start) * 1e-9);
    d9d_device_free(b->dev, to, SENT);
    d9d_device_unpin(b->dev, from);
    return D9D_OK;
}

static d9d_status run(bench *b, const char *dir, int times)
{
    d9d_dtype t = D9D_F32;

    D9D_TRY(dtype_of(dir, &t));
    D9D_TRY(model_make(b, dir, t));
    for (int i = 0; i < times; i++)
        D9D_TRY(load(b, dir, t));
    D9D_TRY(read_alone(b, dir, t));
    return send_alone(b);
}

int main(int argc, char **argv)
{
    bench b = {0};
    d9d_status st;

    if (argc < 2 || argc > 3) {
        (void)fprintf(stderr, "usage: bench_load DIR [TIMES]\n");
        return 2;
    }
    st = run(&b, argv[1], argc > 2 ? atoi(argv[2]) : 3);
    if (st != D9D_OK)
        (void)fprintf(stderr, "bench_load: %s\n", d9d_err_message());
    d9d_model_free(b.model);
    d9d_device_close(b.dev);
    d9d_arena_release(&b.arena);
    return d9d_status_exit_code(st);
}
