/* bench_fp8_experts.c - benchmark of FP8 in experts: their grouped products beside bfloat16, and
 * what quantising costs.
 *
 *     bench_fp8_experts
 *
 * Qwen3-30B-A3B: 128 experts, 8 a token, width 2048, FFN 768, 16384 tokens.  Experts have random
 * numbers of rows.  TFLOP/s of calls that are held for HELD seconds.
 */
#include <stdio.h>
#include <stdlib.h>

#include "d9d/base/thread.h"
#include "d9d/tensor/tensor.h"
#include "support/unit_device.h"

#define HELD 0.15

enum { E = 128, R = 16384 * 8, H = 2048, I = 768 };
enum { X, X2, W, C, X8, XT8, D8, DT8, W8, WT8, BUFFERS };

typedef struct bench {
    d9d_device *dev;
    const d9d_kernels *k;
    d9d_stream s;
    void *p[BUFFERS];
    float *scale[BUFFERS];
    int32_t *offset; /* [E + 1] on the device */
} bench;

static const uint64_t buffer_bytes[BUFFERS] = {
    [X] = (uint64_t)R * H * 2,   [X2] = (uint64_t)R * H * 2, [W] = (uint64_t)E * H * I * 2,
    [C] = (uint64_t)R * H * 4,   [X8] = (uint64_t)R * H,     [XT8] = (uint64_t)R * H,
    [D8] = (uint64_t)R * H,      [DT8] = (uint64_t)R * H,    [W8] = (uint64_t)E * H * I,
    [WT8] = (uint64_t)E * H * I,
};

static void must(d9d_status st)
{
    if (st == D9D_OK)
        return;
    fprintf(stderr, "bench_fp8_experts: %s\n", d9d_err_message());
    exit(1);
}

/* One call, in any way: of matrices [in, out]. */
typedef struct call {
    d9d_fp8_grouped_form form;
    int64_t in, out;
    d9d_dtype ct, gt; /* of the result; of gradients of outputs */
    float beta;
    bool fp8, by_row, fast;
} call;

static d9d_fp8_operand operand(const bench *b, int which, d9d_dtype t, int64_t k, bool by_row)
{
    return (d9d_fp8_operand){t, by_row, k, b->p[which], b->scale[which]};
}

static void run_fp8(const bench *b, const call *c)
{
    const bool is_wgrad = c->form == D9D_FP8_GROUPED_WGRAD, is_fwd = c->form == D9D_FP8_GROUPED_FWD;
    const d9d_fp8_grouped_dims g = {.form = c->form,
                                    .ct = c->ct,
                                    .rows = R,
                                    .e = E,
                                    .in = c->in,
                                    .out = c->out,
                                    .offset = b->offset,
                                    .beta = c->beta,
                                    .fast_accum = c->fast};
    const d9d_fp8_operand x = is_wgrad ? operand(b, XT8, D9D_F8_E4M3, R, c->by_row)
                              : is_fwd ? operand(b, X8, D9D_F8_E4M3, c->in, c->by_row)
                                       : operand(b, D8, c->gt, c->out, c->by_row),
                          w = is_wgrad ? operand(b, DT8, c->gt, R, c->by_row)
                              : is_fwd ? operand(b, WT8, D9D_F8_E4M3, E * c->in, c->by_row)
                                       : operand(b, W8, D9D_F8_E4M3, c->out, c->by_row);

    must(b->k->fp8->grouped(b->s, &g, &x, &w, b->p[C]));
}

static void run_bf16(const bench *b, const call *c)
{
    const void *dy = b->p[X2], *w = b->p[W];

    if (c->form == D9D_FP8_GROUPED_FWD)
        must(b->k->gemm->grouped(b->s, D9D_BF16, b->p[C], b->p[X], w, b->offset, R, E, c->in,
                                 c->out));
    else if (c->form == D9D_FP8_GROUPED_DGRAD)
        must(b->k->gemm->grouped_dgrad(b->s, D9D_BF16, b->p[C], c->beta, 1, &dy, &w, b->offset, R,
                                       E, c->in, c->out));
    else
        must(b->k->gemm->grouped_wgrad(b->s, D9D_BF16, c->ct, b->p[C], c->beta, b->p[X], b->p[X2],
                                       b->offset, R, E, c->in, c->out));
}

/* Seconds of a call, held. */
static double seconds(const bench *b, void (*run)(const bench *, const void *), const void *arg)
{
    int64_t start, calls = 0;
    double s;

    run(b, arg);
    must(d9d_device_sync(b->dev));
    start = d9d_clock_ns();
    do {
        for (int i = 0; i < 10; i++, calls++)
            run(b, arg);
        must(d9d_device_sync(b->dev));
        s = (double)(d9d_clock_ns() - start) * 1e-9;
    } while (s < HELD);
    return s / (double)calls;
}

static void product_run(const bench *b, const void *arg)
{
    const call *c = arg;

    if (c->fp8)
        run_fp8(b, c);
    else
        run_bf16(b, c);
}

/* One quantisation: x [m, n] to both copies, or a copy of it for comparison. */
typedef struct quantisation {
    int64_t m, n;
    bool copies;
} quantisation;

static void quantise_run(const bench *b, const void *arg)
{
    const quantisation *q = arg;
    const d9d_fp8_operand rows = operand(b, X8, D9D_F8_E4M3, q->n, true),
                          cols = operand(b, XT8, D9D_F8_E4M3, d9d_fp8_padded(q->m), true);

    must(q->copies
             ? b->k->elementwise->cast(b->s, D9D_BF16, b->p[C], D9D_BF16, b->p[X], q->m * q->n)
             : b->k->fp8->quantise(b->s, D9D_BF16, b->p[X], q->m, q->n, &rows, &cols));
}

/* Fills what the products read. */
static void fill(const bench *b, const call *c, bool by_row)
{
    const d9d_fp8_operand x = operand(b, X8, D9D_F8_E4M3, c->in, by_row),
                          xt = operand(b, XT8, D9D_F8_E4M3, R, by_row),
                          d = operand(b, D8, c->gt, c->out, by_row),
                          dt = operand(b, DT8, c->gt, R, by_row),
                          w = operand(b, W8, D9D_F8_E4M3, c->out, by_row),
                          wt = operand(b, WT8, D9D_F8_E4M3, E * c->in, by_row);

    must(b->k->fp8->quantise(b->s, D9D_BF16, b->p[X], R, c->in, &x, &xt));
    must(b->k->fp8->quantise(b->s, D9D_BF16, b->p[X2], R, c->out, &d, &dt));
    must(b->k->fp8->quantise(b->s, D9D_BF16, b->p[W], E * c->in, c->out, &w, &wt));
}

static void show_product(const bench *b, const char *name, call c)
{
    static const struct {
        bool by_row, fast;
        const char *name;
    } ways[] = {{true, false, "rows"}, {true, true, "rows fast"}, {false, false, "array"}};
    const double flop = 2.0 * R * (double)c.in * (double)c.out, base = seconds(b, product_run, &c);

    printf("%-22s %s%s bf16 %4.0f TFLOP/s %5.0f us", name, c.ct == D9D_F32 ? "f32" : "bf16",
           c.beta != 0 ? "+" : " ", flop / base * 1e-12, base * 1e6);
    c.fp8 = true;
    for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
        double s;

        c.by_row = ways[i].by_row, c.fast = ways[i].fast;
        fill(b, &c, c.by_row);
        s = seconds(b, product_run, &c);
        printf(" | %s %4.0f %5.0f us %.2f", ways[i].name, flop / s * 1e-12, s * 1e6, base / s);
    }
    printf("\n");
    fflush(stdout);
}

static void show_quantise(const bench *b, const char *name, int64_t m, int64_t n)
{
    const quantisation both = {m, n, false}, copy = {m, n, true};
    const double s = seconds(b, quantise_run, &both), c = seconds(b, quantise_run, &copy);

    printf("%-22s quantise %5.0f us %4.0f GB/s | copy %5.0f us %4.0f GB/s\n", name, s * 1e6,
           (double)(m * n) * 6e-9 / s, c * 1e6, (double)(m * n) * 4e-9 / c);
    fflush(stdout);
}

/* Random numbers of rows, of choices that are as good as even. */
static void offsets_make(bench *b)
{
    int32_t count[E] = {0}, offset[E + 1] = {0};
    uint64_t x = 1;
    d9d_tensor t;

    for (int i = 0; i < R; i++) {
        x = x * UINT64_C(6364136223846793005) + 1442695040888963407u;
        count[(x >> 33) % E]++;
    }
    for (int i = 0; i < E; i++)
        offset[i + 1] = offset[i] + count[i];
    must(d9d_tensor_from_host(b->dev, D9D_I32, D9D_SHAPE(E + 1), offset, &t));
    b->offset = d9d_tensor_data(&t); /* until the program ends */
}

int main(void)
{
    const int64_t n = (int64_t)R * H, nw = (int64_t)E * H * I, zero = 0;
    bench b = {0};

    must(d9d_device_open(unit_device_name(), &b.dev));
    b.k = b.dev->kernels;
    b.s = b.dev->stream;
    for (int i = 0; i < BUFFERS; i++) {
        must(d9d_device_alloc(b.dev, buffer_bytes[i], &b.p[i]));
        must(d9d_device_alloc(b.dev, (uint64_t)E * H * sizeof(float), (void **)&b.scale[i]));
    }
    for (int i = X; i <= W; i++)
        must(b.k->elementwise->random(b.s, D9D_BF16, b.p[i], D9D_INIT_NORMAL, i == W ? 0.02f : 1.0f,
                                      (d9d_rng){1, (uint64_t)i}, 1, i == W ? &nw : &n, &zero,
                                      i == W ? &nw : &n));
    offsets_make(&b);
    for (int down = 0; down < 2; down++) {
        const int64_t in = down ? I : H, out = down ? H : I;
        const char *const names[] = {down ? "down forward" : "gate, up forward",
                                     down ? "down dgrad" : "gate, up dgrad",
                                     down ? "down wgrad" : "gate, up wgrad"};

        for (int form = 0; form < 3; form++) {
            call c = {.form = (d9d_fp8_grouped_form)form,
                      .in = in,
                      .out = out,
                      .ct = form == 2 ? D9D_F32 : D9D_BF16,
                      .gt = D9D_F8_E4M3};

            show_product(&b, names[form], c);
            if (form == 0 || (form == 1 && down))
                continue;
            c.beta = 1.0f; /* the second of gate and up; a later micro-batch */
            show_product(&b, names[form], c);
            c.ct = D9D_BF16, c.beta = 0.0f;
            if (form == 2)
                show_product(&b, names[form], c);
        }
    }
    show_quantise(&b, "x, dy of down", R, H);
    show_quantise(&b, "h, dgate, dup", R, I);
    show_quantise(&b, "gate, up", (int64_t)E * H, I);
    show_quantise(&b, "down", (int64_t)E * I, H);
    return 0;
}
