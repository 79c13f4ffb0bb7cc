/* bench_fp8.c - benchmark of FP8: quantisation beside a copy, and the products of dense models
 * beside bfloat16.
 *
 *     bench_fp8 [part of a model's name ...]
 *
 * Random data.  Quantisation in GB/s of its reads (twice) and writes.  Products in TFLOP/s, each
 * held for HELD seconds, so that a power limit shows: bfloat16 in the layout that training has, FP8
 * with scales by row and by array, and with fast accumulation.  Gradients of weights are float32
 * and added to, or bfloat16.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/thread.h"
#include "support/unit_device.h"

#define HELD 0.4

enum { A, B, C, A8, B8, BUFFERS };
enum { MOST = 16384 * 19456, SCALES = 32768 }; /* most elements of an array; rows */

typedef struct bench {
    d9d_device *dev;
    const d9d_kernels *k;
    d9d_stream s;
    void *p[BUFFERS];
    float *scale[2];
} bench;

typedef enum product_kind { FORWARD, DGRAD, WGRAD } product_kind;

/* One call, in any way. */
typedef struct product {
    const char *name;
    product_kind kind;
    int64_t m, n, k;
    d9d_dtype ct;
    float beta;
    bool fp8, by_row, fast;
    d9d_dtype at;
} product;

static void must(d9d_status st)
{
    if (st == D9D_OK)
        return;
    fprintf(stderr, "bench_fp8: %s\n", d9d_err_message());
    exit(1);
}

static d9d_fp8_operand operand(const bench *b, int which, d9d_dtype t, int64_t k, bool by_row)
{
    return (d9d_fp8_operand){t, by_row, k, b->p[A8 + which], b->scale[which]};
}

static void run(const bench *b, const product *p)
{
    if (p->fp8) {
        const d9d_fp8_operand x = operand(b, 0, p->at, p->k, p->by_row),
                              y = operand(b, 1, D9D_F8_E4M3, p->k, p->by_row);

        must(b->k->fp8->product(b->s,
                                &(d9d_fp8_gemm_dims){.ct = p->ct,
                                                     .m = p->m,
                                                     .n = p->n,
                                                     .k = p->k,
                                                     .beta = p->beta,
                                                     .fast_accum = p->fast},
                                &x, &y, b->p[C]));
    } else {
        must(b->k->gemm->dense(b->s,
                               &(d9d_gemm){.t = D9D_BF16,
                                           .ct = p->ct,
                                           .trans_a = p->kind == WGRAD,
                                           .trans_b = p->kind == FORWARD,
                                           .m = p->m,
                                           .n = p->n,
                                           .k = p->k,
                                           .beta = p->beta},
                               b->p[A], b->p[B], b->p[C]));
    }
}

/* Seconds of a call, held. */
static double seconds(const bench *b, const product *p)
{
    int64_t start, calls = 0;
    double s;

    for (int i = 0; i < 12; i++) /* plans, and trials of algorithms */
        run(b, p);
    must(d9d_device_sync(b->dev));
    start = d9d_clock_ns();
    do {
        for (int i = 0; i < 20; i++, calls++)
            run(b, p);
        must(d9d_device_sync(b->dev));
        s = (double)(d9d_clock_ns() - start) * 1e-9;
    } while (s < HELD);
    return s / (double)calls;
}

static void show_product(const bench *b, product p)
{
    static const struct {
        bool by_row, fast;
        const char *name;
    } ways[] = {{true, false, "rows"},
                {true, true, "rows fast"},
                {false, false, "array"},
                {false, true, "array fast"}};
    const double flop = 2.0 * (double)p.m * (double)p.n * (double)p.k, base = seconds(b, &p);

    printf("%-26s %6lld %6lld %6lld %s%s bf16 %5.0f", p.name, (long long)p.m, (long long)p.n,
           (long long)p.k, p.ct == D9D_F32 ? "f32" : "bf16", p.beta != 0 ? "+" : " ",
           flop / base * 1e-12);
    for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
        d9d_fp8_operand x, y;
        double s;

        p.fp8 = true, p.by_row = ways[i].by_row, p.fast = ways[i].fast;
        x = operand(b, 0, p.at, p.k, p.by_row), y = operand(b, 1, D9D_F8_E4M3, p.k, p.by_row);
        must(b->k->fp8->quantise(b->s, D9D_BF16, b->p[A], p.m, p.k, &x, NULL));
        must(b->k->fp8->quantise(b->s, D9D_BF16, b->p[B], p.n, p.k, &y, NULL));
        s = seconds(b, &p);
        printf(" | %s %5.0f %.2f", ways[i].name, flop / s * 1e-12, base / s);
        fflush(stdout);
    }
    printf("\n");
}

static void show_quantise(const bench *b, int64_t m, int64_t n)
{
    static const char *const names[] = {"copy", "rows", "cols", "both"};

    printf("quantise %6lld x %5lld, GB/s:", (long long)m, (long long)n);
    for (int by_row = 1; by_row >= 0; by_row--)
        for (int way = by_row ? 0 : 3; way < 4; way++) {
            const d9d_fp8_operand r = operand(b, 0, D9D_F8_E4M3, n, by_row),
                                  c = operand(b, 1, D9D_F8_E4M3, d9d_fp8_padded(m), by_row);
            const double bytes = (double)m * (double)n * (way == 0 ? 4 : way == 3 ? 6 : 5);
            double best = INFINITY;

            for (int i = 0; i < 6; i++) {
                int64_t start;

                must(d9d_device_sync(b->dev));
                start = d9d_clock_ns();
                for (int j = 0; j < 20; j++)
                    must(way == 0
                             ? b->k->elementwise->cast(b->s, D9D_BF16, b->p[C], D9D_BF16, b->p[A],
                                                       m * n)
                             : b->k->fp8->quantise(b->s, D9D_BF16, b->p[A], m, n,
                                                   way != 2 ? &r : NULL, way != 1 ? &c : NULL));
                must(d9d_device_sync(b->dev));
                best = fmin(best, (double)(d9d_clock_ns() - start) * 1e-9 / 20);
            }
            printf(" %s%s %.0f (%.0f us)", names[way], by_row ? "" : " by array",
                   bytes / best * 1e-9, best * 1e6);
        }
    printf("\n");
    fflush(stdout);
}

/* A layer's matrices: tokens, width, query and key features, FFN. */
typedef struct model {
    const char *name;
    int64_t t, h, q, kv, i;
} model;

static void show_model(const bench *b, const model *m)
{
    const struct {
        const char *name;
        int64_t out, in;
    } of[] = {{"q", m->q, m->h},
              {"k, v", m->kv, m->h},
              {"o", m->h, m->q},
              {"gate, up", m->i, m->h},
              {"down", m->h, m->i}};

    printf("# %s, %lld tokens\n", m->name, (long long)m->t);
    show_quantise(b, m->t, m->h);
    show_quantise(b, m->t, m->i);
    show_quantise(b, m->i, m->h);
    for (size_t i = 0; i < sizeof(of) / sizeof(*of); i++) {
        const int64_t out = of[i].out, in = of[i].in;
        char name[3][40];

        (void)snprintf(name[0], sizeof(name[0]), "%s forward", of[i].name);
        (void)snprintf(name[1], sizeof(name[1]), "%s dgrad", of[i].name);
        (void)snprintf(name[2], sizeof(name[2]), "%s wgrad", of[i].name);
        show_product(b, (product){.name = name[0],
                                  .kind = FORWARD,
                                  .m = m->t,
                                  .n = out,
                                  .k = in,
                                  .ct = D9D_BF16,
                                  .at = D9D_F8_E4M3});
        show_product(b, (product){.name = name[1],
                                  .kind = DGRAD,
                                  .m = m->t,
                                  .n = in,
                                  .k = out,
                                  .ct = D9D_BF16,
                                  .at = D9D_F8_E4M3});
        if (i == 3) {
            show_product(b, (product){.name = "the same, e5m2, added",
                                      .kind = DGRAD,
                                      .m = m->t,
                                      .n = in,
                                      .k = out,
                                      .ct = D9D_BF16,
                                      .beta = 1,
                                      .at = D9D_F8_E5M2});
            show_product(b, (product){.name = name[2],
                                      .kind = WGRAD,
                                      .m = out,
                                      .n = in,
                                      .k = m->t,
                                      .ct = D9D_F32,
                                      .at = D9D_F8_E4M3});
            show_product(b, (product){.name = name[2],
                                      .kind = WGRAD,
                                      .m = out,
                                      .n = in,
                                      .k = m->t,
                                      .ct = D9D_F32,
                                      .beta = 1,
                                      .at = D9D_F8_E4M3});
        }
        show_product(b, (product){.name = name[2],
                                  .kind = WGRAD,
                                  .m = out,
                                  .n = in,
                                  .k = m->t,
                                  .ct = D9D_BF16,
                                  .at = D9D_F8_E4M3});
    }
}

static uint64_t buffer_bytes(int which)
{
    return (uint64_t)MOST * (which == C ? sizeof(float) : which < C ? 2 : 1);
}

int main(int argc, char **argv)
{
    static const model models[] = {{"Qwen3-1.7B", 16384, 2048, 2048, 1024, 6144},
                                   {"Qwen3-8B", 8192, 4096, 4096, 1024, 12288},
                                   {"Qwen2.5-7B", 8192, 3584, 3584, 512, 18944}};
    const int64_t n = MOST, zero = 0;
    bench b = {0};

    must(d9d_device_open(unit_device_name(), &b.dev));
    b.k = b.dev->kernels;
    b.s = b.dev->stream;
    for (int i = 0; i < BUFFERS; i++)
        must(d9d_device_alloc(b.dev, buffer_bytes(i), &b.p[i]));
    for (int i = 0; i < 2; i++) {
        must(d9d_device_alloc(b.dev, SCALES * sizeof(float), (void **)&b.scale[i]));
        must(b.k->elementwise->random(b.s, D9D_BF16, b.p[i], D9D_INIT_NORMAL, 1.0f,
                                      (d9d_rng){1, (uint64_t)i}, 1, &n, &zero, &n));
    }
    for (size_t i = 0; i < sizeof(models) / sizeof(*models); i++) {
        bool wanted = argc == 1;

        for (int j = 1; j < argc; j++)
            wanted = wanted || strstr(models[i].name, argv[j]) != NULL;
        if (wanted)
            show_model(&b, &models[i]);
    }
    for (int i = 0; i < BUFFERS; i++)
        d9d_device_free(b.dev, b.p[i], buffer_bytes(i));
    for (int i = 0; i < 2; i++)
        d9d_device_free(b.dev, b.scale[i], SCALES * sizeof(float));
    d9d_device_close(b.dev);
    return 0;
}
