/* bench_heads.c - benchmark of attention by head size, forward and backward.
 *
 *     bench_heads [window] [documents] [row=LENGTH] [FEATURES[/VALUES] ...]
 *
 * Causal attention, bfloat16, random data, 4 sequences of 4096 tokens or one of LENGTH, 16 query
 * heads over 8 key heads (GQA).  Either full attention, a sliding window of 1024, or packed
 * documents (varlen).
 * Prints a line per head size, by default 32 to 256 in steps of 8: its features, and those of a
 * value where they differ, microseconds forward and backward, and TFLOP/s of the unmasked products.
 * Best of five series of ten calls, of one if the sequence is longer than 16,384.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/thread.h"
#include "support/unit_device.h"

enum { B = 4, S = 4096, A = 16, KV = 8, MOST = 256, SERIES = 5, CALLS = 10 };
enum { Q, K, V, O, DOUT, DQ, DK, DV, ARRAYS };
enum { WINDOW = 1024, DOCUMENTS = 5 };

/* Of a row. */
static const int32_t lengths[DOCUMENTS] = {1500, 40, 700, 1000, 856};

typedef struct bench {
    d9d_device *dev;
    const d9d_kernels *k;
    d9d_stream s;
    void *p[ARRAYS];
    float *lse;
    int64_t rows, length, window, segments;
    d9d_segment *segment; /* of the device */
} bench;

typedef d9d_status call(const bench *b, const d9d_attention_dims *n);

static d9d_status forward(const bench *b, const d9d_attention_dims *n)
{
    return b->k->attention->fwd(b->s, n, b->p[O], b->lse, b->p[Q], b->p[K], b->p[V]);
}
static d9d_status backward(const bench *b, const d9d_attention_dims *n)
{
    return b->k->attention->bwd(b->s, n, b->p[DQ], b->p[DK], b->p[DV], b->p[DOUT], b->p[Q], b->p[K],
                                b->p[V], b->p[O], b->lse);
}

static void must(d9d_status st)
{
    if (st == D9D_OK)
        return;
    fprintf(stderr, "bench_heads: %s\n", d9d_err_message());
    exit(1);
}

static double best_seconds(const bench *b, const d9d_attention_dims *n, call *run)
{
    const int calls = b->length > 4 * S ? 1 : CALLS;
    double best = INFINITY;

    must(run(b, n)); /* plans */
    must(d9d_device_sync(b->dev));
    for (int i = 0; i < SERIES; i++) {
        const int64_t start = d9d_clock_ns();

        for (int j = 0; j < calls; j++)
            must(run(b, n));
        must(d9d_device_sync(b->dev));
        best = fmin(best, (double)(d9d_clock_ns() - start) * 1e-9 / calls);
    }
    return best;
}

/* Scores of n tokens that the mask leaves. */
static double seen(int64_t n, int64_t window)
{
    const int64_t w = window > 0 && window < n ? window : n;

    return (double)w * (double)(w + 1) / 2 + (double)(n - w) * (double)w;
}

static double seen_of_row(const bench *b)
{
    double sum = 0.0;

    if (b->segments == 0)
        return seen(b->length, b->window);
    for (int i = 0; i < DOCUMENTS; i++)
        sum += seen(lengths[i], b->window);
    return sum;
}

/* All rows of documents. */
static void pack(bench *b)
{
    d9d_segment all[B * DOCUMENTS];
    int32_t at = 0;

    for (int i = 0; i < B * DOCUMENTS; i++) {
        const int32_t n = lengths[i % DOCUMENTS];

        all[i] = (d9d_segment){at, n, at, n};
        at += n;
    }
    b->segments = B * DOCUMENTS;
    must(d9d_device_alloc(b->dev, sizeof(all), (void **)&b->segment));
    must(d9d_device_upload(b->dev, b->segment, all, sizeof(all)));
}

static void show(const bench *b, int64_t features, int64_t values)
{
    const d9d_attention_dims n = {.t = D9D_BF16,
                                  .b = b->rows,
                                  .s = b->length,
                                  .z = b->length,
                                  .a = A,
                                  .kv = KV,
                                  .d = features,
                                  .dv = values,
                                  .causal = true,
                                  .window = b->window,
                                  .segments = b->segments,
                                  .segment = b->segment,
                                  .scale = 1.0f / sqrtf((float)features)};
    const double of_feature = 2.0 * (double)(b->rows * A) * seen_of_row(b);
    const double out = best_seconds(b, &n, forward), back = best_seconds(b, &n, backward);
    char name[48];

    (void)snprintf(name, sizeof(name), values == features ? "%lld" : "%lld/%lld",
                   (long long)features, (long long)values);
    printf("%3s %9.0f us %9.0f us %7.0f %7.0f TFLOP/s\n", name, out * 1e6, back * 1e6,
           of_feature * (double)(features + values) / out * 1e-12,
           of_feature * (double)(3 * features + 2 * values) / back * 1e-12);
    fflush(stdout);
}

/* FEATURES or FEATURES/VALUES. */
static void show_word(const bench *b, const char *word)
{
    char *end;
    const int64_t features = strtol(word, &end, 10);

    show(b, features, *end == '/' ? strtol(end + 1, NULL, 10) : features);
}

/* Reads the words before the features; returns the number of arguments read. */
static int read_words(bench *b, int argc, char **argv, bool *packed)
{
    int i = 1;

    for (; i < argc && strtol(argv[i], NULL, 10) == 0; i++)
        if (strcmp(argv[i], "window") == 0) {
            b->window = WINDOW;
        } else if (strcmp(argv[i], "documents") == 0) {
            *packed = true;
        } else if (strncmp(argv[i], "row=", 4) == 0) {
            b->rows = 1;
            b->length = strtol(argv[i] + 4, NULL, 10);
        }
    return i;
}

int main(int argc, char **argv)
{
    bench b = {.rows = B, .length = S};
    bool packed = false;
    const int first = read_words(&b, argc, argv, &packed);
    const int64_t tokens = b.rows * b.length, n = tokens * A * MOST, zero = 0;

    must(d9d_device_open(unit_device_name(), &b.dev));
    b.k = b.dev->kernels;
    b.s = b.dev->stream;
    for (int i = 0; i < ARRAYS; i++) {
        must(d9d_device_alloc(b.dev, (uint64_t)n * 2, &b.p[i]));
        must(b.k->elementwise->random(b.s, D9D_BF16, b.p[i], D9D_INIT_NORMAL, 1.0f,
                                      (d9d_rng){1, (uint64_t)i}, 1, &n, &zero, &n));
    }
    must(d9d_device_alloc(b.dev, (uint64_t)(tokens * A) * 4, (void **)&b.lse));
    if (packed && b.length == S)
        pack(&b);
    for (int i = first; i < argc; i++)
        show_word(&b, argv[i]);
    for (int64_t d = 32; first == argc && d <= MOST; d += 8)
        show(&b, d, d);
    for (int i = 0; i < ARRAYS; i++)
        d9d_device_free(b.dev, b.p[i], (uint64_t)n * 2);
    if (b.segment != NULL)
        d9d_device_free(b.dev, b.segment, sizeof(*b.segment) * B * DOCUMENTS);
    d9d_device_free(b.dev, b.lse, (uint64_t)(tokens * A) * 4);
    d9d_device_close(b.dev);
    return 0;
}
