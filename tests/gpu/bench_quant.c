/* bench_quant.c - benchmark of decode's products with matrices in 8 and 4 bits, beside bfloat16 and
 * a copy.
 *
 *     bench_quant [ROWS ...]
 *
 * The matrices of Qwen3-8B and its head, of so many rows of x (1, 4 and 8 by default).  Several
 * copies of each, more than the L2 cache has, are read in turn.  Microseconds a product, and GB/s
 * of the bytes that are stored, over those of a copy (bytes read and written).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/thread.h"
#include "support/unit_device.h"

enum { ROUNDS = 40, FORMATS = 3 };
#define SMALL (UINT64_C(1) << 26) /* bytes of activations */
#define POOL  (UINT64_C(2) << 30) /* bytes of the copies of a matrix */

typedef struct bench {
    d9d_device *dev;
    const d9d_kernels *k;
    d9d_stream s;
    char *w, *to;
    void *x, *y, *z, *out;
    double copy; /* GB/s */
} bench;

/* One product: of gate and up at once, and the unit, if gated. */
typedef struct product {
    const char *name;
    int64_t n, k;
    bool gated;
    d9d_dtype ct; /* of its results */
} product;

static void must(d9d_status st)
{
    if (st == D9D_OK)
        return;
    fprintf(stderr, "bench_quant: %s\n", d9d_err_message());
    exit(1);
}

static uint64_t matrix_bytes(const product *p, d9d_quant_format f)
{
    const int64_t row = f == D9D_QUANT_NONE ? 2 * p->k : d9d_quant_row_bytes(f, p->k);

    return (uint64_t)(p->n * row);
}

static void run(const bench *b, const product *p, d9d_quant_format f, int64_t rows, char *w)
{
    const uint64_t bytes = matrix_bytes(p, f);
    const d9d_quant_matrix q[] = {{f, p->n, p->k, w}, {f, p->n, p->k, w + bytes}};
    const d9d_gemm g = {.t = D9D_BF16,
                        .ct = p->ct,
                        .trans_b = true,
                        .m = rows,
                        .n = p->n,
                        .k = p->k,
                        .b_constant = true};
    const d9d_gemm_glu_dims n = {.t = D9D_BF16,
                                 .rows = rows,
                                 .h = p->k,
                                 .i = p->n,
                                 .e = 1,
                                 .weights_constant = true,
                                 .glu = {.act = D9D_ACT_SILU}};

    if (f == D9D_QUANT_NONE)
        must(p->gated ? b->k->gemm->glu(b->s, &n, b->out, b->y, b->z, b->x, w, w + bytes)
                      : b->k->gemm->dense(b->s, &g, b->x, w, b->y));
    else
        must(p->gated ? b->k->quant->glu(b->s, &n, b->out, b->y, b->z, b->x, q)
                      : b->k->quant->product(b->s, &g, b->x, q, b->y));
}

/* Seconds of a product. */
static double seconds(const bench *b, const product *p, d9d_quant_format f, int64_t rows)
{
    const uint64_t bytes = matrix_bytes(p, f) * (p->gated ? 2 : 1);
    const int64_t copies = (int64_t)(POOL / bytes);
    int64_t start = 0;

    for (int i = -1; i < ROUNDS; i++) {
        for (int64_t c = 0; c < copies; c++)
            run(b, p, f, rows, b->w + (uint64_t)c * bytes);
        if (i == -1) {
            must(d9d_device_sync(b->dev));
            start = d9d_clock_ns();
        }
    }
    must(d9d_device_sync(b->dev));
    return (double)(d9d_clock_ns() - start) * 1e-9 / ROUNDS / (double)copies;
}

static double copy_rate(const bench *b)
{
    int64_t start = 0;

    for (int i = -1; i < ROUNDS; i++) {
        must(d9d_device_copy(b->dev, b->to, b->w, POOL));
        if (i == -1) {
            must(d9d_device_sync(b->dev));
            start = d9d_clock_ns();
        }
    }
    must(d9d_device_sync(b->dev));
    return 2.0 * (double)POOL * ROUNDS / (double)(d9d_clock_ns() - start);
}

/* Any bytes are a matrix: zeros have scales of zero. */
static void open_bench(bench *b)
{
    const uint64_t small = SMALL;
    void **const arrays[] = {&b->x, &b->y, &b->z, &b->out};

    b->k = b->dev->kernels;
    b->s = b->dev->stream;
    must(d9d_device_alloc(b->dev, POOL, (void **)&b->w));
    must(d9d_device_alloc(b->dev, POOL, (void **)&b->to));
    must(b->k->elementwise->fill(b->s, D9D_F32, b->w, (int64_t)(POOL / 4), 0.0f));
    for (size_t i = 0; i < sizeof(arrays) / sizeof(*arrays); i++) {
        must(d9d_device_alloc(b->dev, small, arrays[i]));
        must(b->k->elementwise->fill(b->s, D9D_F32, *arrays[i], (int64_t)(small / 4), 1.0f));
    }
    b->copy = copy_rate(b);
    printf("copy %.0f GB/s\n", b->copy);
}

static void show(const bench *b, const product *p, int64_t rows)
{
    double base = 0;

    printf("%-12s %6lld x %-6lld %2lld rows", p->name, (long long)p->n, (long long)p->k,
           (long long)rows);
    for (int f = 0; f < FORMATS; f++) {
        const double s = seconds(b, p, (d9d_quant_format)f, rows);
        const double rate =
            (double)matrix_bytes(p, (d9d_quant_format)f) * (p->gated ? 2 : 1) / s * 1e-9;

        base = f == 0 ? s : base;
        printf(" | %s %7.2f us %.2f of a copy, %.2f times",
               f == 0 ? "bf16" : d9d_quant_name((d9d_quant_format)f), s * 1e6, rate / b->copy,
               base / s);
        fflush(stdout);
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    static const product products[] = {{"q, k, v", 6144, 4096, false, D9D_BF16},
                                       {"o", 4096, 4096, false, D9D_BF16},
                                       {"gate, up", 12288, 4096, true, D9D_BF16},
                                       {"down", 4096, 12288, false, D9D_BF16},
                                       {"head", 151936, 4096, false, D9D_F32}};
    static const int64_t usual[] = {1, 4, 8};
    bench b = {.copy = 0};

    must(d9d_device_open(unit_device_name(), &b.dev));
    open_bench(&b);
    for (int i = 0; i < (argc > 1 ? argc - 1 : 3); i++)
        for (size_t k = 0; k < sizeof(products) / sizeof(*products); k++)
            show(&b, &products[k], argc > 1 ? strtoll(argv[i + 1], NULL, 10) : usual[i]);
    d9d_device_free(b.dev, b.w, POOL);
    d9d_device_free(b.dev, b.to, POOL);
    for (int i = 0; i < 4; i++)
        d9d_device_free(b.dev, ((void *[]){b.x, b.y, b.z, b.out})[i], SMALL);
    d9d_device_close(b.dev);
    return 0;
}
