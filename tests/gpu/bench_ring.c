/* bench_ring.c - benchmark of the kernels of ring attention, for one rank of several, without
 * messages.
 *
 *     bench_ring [RANKS [POSITIONS [FEATURES]]]
 *
 * Causal attention, bfloat16, random data, one sequence of 2 RANKS chunks of POSITIONS (4 and
 * 4096), 16 query heads over 8 key heads (GQA) of FEATURES (128).  Prints what a full chunk and a
 * chunk on the diagonal take, forward and backward, the merge beside a copy of as many bytes, and a
 * rank's whole ring beside one call on the keys of all ranks, gathered.  Best of five series of
 * five calls.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "d9d/base/thread.h"
#include "support/unit_device.h"

enum { A = 16, KV = 8, SERIES = 5, CALLS = 5 };
enum { Q, K, V, O, DOUT, DQ, DK, DV, ARRAYS };

typedef struct bench {
    d9d_device *dev;
    const d9d_kernels *k;
    d9d_stream s;
    int64_t ranks, chunk, d, rank;
    d9d_attention_dims all; /* of the keys of all ranks */
    void *p[ARRAYS];
    uint64_t bytes[ARRAYS];
    float *acc, *lse, *lse_sum;
} bench;

static void must(d9d_status st)
{
    if (st == D9D_OK)
        return;
    fprintf(stderr, "bench_ring: %s\n", d9d_err_message());
    exit(1);
}

/* --- what is timed -------------------------------------------------------------------------- */

typedef void call(const bench *b, const d9d_attention_dims *n);

static void forward(const bench *b, const d9d_attention_dims *n)
{
    must(b->k->attention->fwd(b->s, n, b->p[O], b->lse, b->p[Q], b->p[K], b->p[V]));
}

static void backward_with(const bench *b, const d9d_attention_dims *n, const float *lse)
{
    must(b->k->attention->bwd(b->s, n, b->p[DQ], b->p[DK], b->p[DV], b->p[DOUT], b->p[Q], b->p[K],
                              b->p[V], b->p[O], lse));
}

static void backward(const bench *b, const d9d_attention_dims *n)
{
    backward_with(b, n, b->lse);
}

static void merge(const bench *b, const d9d_attention_dims *n)
{
    must(b->k->attention->merge(b->s, n, false, b->acc, b->lse_sum, b->p[O], b->lse));
}

/* Moves as many bytes as a merge. */
static void copy(const bench *b, const d9d_attention_dims *n)
{
    const d9d_copy_strided_dims dims = {
        .t = D9D_BF16, .m = 1, .heads = 1, .n = n->s * A * b->d * 5 / 2};

    must(b->k->elementwise->copy_strided(b->s, &dims, b->p[DK], b->p[K]));
}

static d9d_attention_dims part_of(const bench *b, int64_t chunk)
{
    d9d_attention_dims n = b->all;

    n.part = (d9d_attention_key_part){chunk * b->chunk, b->chunk};
    return n;
}

/* The call for the block of rank `of`: both chunks, or the one that is seen. */
static d9d_attention_dims block_of(const bench *b, int64_t of)
{
    d9d_attention_dims n = part_of(b, of);

    if (of < b->rank)
        return n;
    n.part = (d9d_attention_key_part){(b->rank + 1) * b->chunk, 2 * b->chunk};
    if (of > b->rank)
        return n;
    n.part.n = 0;
    n.z = n.s;
    n.chunks = 0;
    return n;
}

/* Both ways as op_cp_ring.c: the own block first, and what joins the results. */
static void ring_forward(const bench *b, const d9d_attention_dims *n)
{
    for (int64_t step = 0; step < b->ranks; step++) {
        const d9d_attention_dims block = block_of(b, (b->rank + step) % b->ranks);

        forward(b, &block);
        must(b->k->attention->merge(b->s, n, step == 0, b->acc, b->lse_sum, b->p[O], b->lse));
    }
}

static void ring_backward(const bench *b, const d9d_attention_dims *n)
{
    const int64_t all = n->s * A * b->d;

    for (int64_t step = 0; step < b->ranks; step++) {
        const int64_t of = (b->rank + step) % b->ranks, first = of > b->rank ? all / 2 : 0;
        const d9d_attention_dims block = block_of(b, of);

        backward_with(b, &block, b->lse_sum);
        must(b->k->elementwise->accumulate(b->s, D9D_F32, b->acc + first, step == 0 ? 0.0f : 1.0f,
                                           D9D_BF16, (char *)b->p[DQ] + 2 * first, all - first));
    }
}

static double best_seconds(const bench *b, const d9d_attention_dims *n, call *run)
{
    double best = INFINITY;

    run(b, n); /* plans */
    must(d9d_device_sync(b->dev));
    for (int i = 0; i < SERIES; i++) {
        const int64_t start = d9d_clock_ns();

        for (int j = 0; j < CALLS; j++)
            run(b, n);
        must(d9d_device_sync(b->dev));
        best = fmin(best, (double)(d9d_clock_ns() - start) * 1e-9 / CALLS);
    }
    return best;
}

/* --- lines ---------------------------------------------------------------------------------- */

/* Products of `features` features in all of so many pairs of a query and a key. */
static double flop(double pairs, int64_t features)
{
    return 2.0 * pairs * A * (double)features;
}

static void show(const bench *b, const char *name, const d9d_attention_dims *n, double pairs,
                 call *fwd, call *bwd)
{
    const double out = best_seconds(b, n, fwd), back = best_seconds(b, n, bwd);

    printf("%-24s %9.0f us %9.0f us %7.0f %7.0f TFLOP/s\n", name, out * 1e6, back * 1e6,
           flop(pairs, 2 * b->d) / out * 1e-12, flop(pairs, 5 * b->d) / back * 1e-12);
    fflush(stdout);
}

static void show_merge(const bench *b)
{
    const double bytes = (double)(b->all.s * A * b->d) * 10;
    const double merged = best_seconds(b, &b->all, merge), copied = best_seconds(b, &b->all, copy);

    printf("%-24s %9.0f us %9.0f GB/s, a copy %.0f GB/s\n", "merge", merged * 1e6,
           bytes / merged * 1e-9, bytes / copied * 1e-9);
}

static void show_all(bench *b)
{
    const double p = (double)b->chunk, own = p * (p + 1) / 2;
    d9d_attention_dims one;

    b->rank = 1;
    b->all.chunk_end[0] = 2 * b->chunk;
    b->all.chunk_end[1] = (2 * b->ranks - 1) * b->chunk;
    one = part_of(b, 0);
    show(b, "a chunk, full twice", &one, 2 * p * p, forward, backward);
    one = part_of(b, 2);
    show(b, "a chunk, full once", &one, p * p, forward, backward);
    one = part_of(b, 1);
    show(b, "diagonal and full", &one, own + p * p, forward, backward);
    one = block_of(b, 2);
    show(b, "two chunks, full once", &one, 2 * p * p, forward, backward);
    one = block_of(b, 1);
    show(b, "the own two", &one, 2 * own + p * p, forward, backward);
    show_merge(b);
    for (b->rank = 0; b->rank < b->ranks; b->rank += b->ranks - 1) {
        const double pairs = 2 * own + (double)(2 * b->ranks - 1) * p * p;
        char name[40];

        b->all.chunk_end[0] = (b->rank + 1) * b->chunk;
        b->all.chunk_end[1] = (2 * b->ranks - b->rank) * b->chunk;
        (void)snprintf(name, sizeof(name), "gathered, rank %lld", (long long)b->rank);
        show(b, name, &b->all, pairs, forward, backward);
        (void)snprintf(name, sizeof(name), "ring, rank %lld", (long long)b->rank);
        show(b, name, &b->all, pairs, ring_forward, ring_backward);
    }
}

static void arrays_alloc(bench *b)
{
    const int64_t queries = 2 * b->chunk * A * b->d, keys = 2 * b->ranks * b->chunk * KV * b->d;
    const int64_t least = 3 * queries; /* for copies */

    for (int i = 0; i < ARRAYS; i++) {
        const bool of_keys = i == K || i == V || i == DK || i == DV;
        const int64_t n = of_keys ? (keys > least ? keys : least) : queries, zero = 0;

        b->bytes[i] = (uint64_t)n * 2;
        must(d9d_device_alloc(b->dev, b->bytes[i], &b->p[i]));
        must(b->k->elementwise->random(b->s, D9D_BF16, b->p[i], D9D_INIT_NORMAL, 1.0f,
                                       (d9d_rng){1, (uint64_t)i}, 1, &n, &zero, &n));
    }
    must(d9d_device_alloc(b->dev, (uint64_t)queries * 4, (void **)&b->acc));
    must(d9d_device_alloc(b->dev, (uint64_t)(2 * b->chunk * A) * 4, (void **)&b->lse));
    must(d9d_device_alloc(b->dev, (uint64_t)(2 * b->chunk * A) * 4, (void **)&b->lse_sum));
}

static void arrays_free(bench *b)
{
    for (int i = 0; i < ARRAYS; i++)
        d9d_device_free(b->dev, b->p[i], b->bytes[i]);
    d9d_device_free(b->dev, b->acc, (uint64_t)(2 * b->chunk * A * b->d) * 4);
    d9d_device_free(b->dev, b->lse, (uint64_t)(2 * b->chunk * A) * 4);
    d9d_device_free(b->dev, b->lse_sum, (uint64_t)(2 * b->chunk * A) * 4);
}

/* A positive number, the default without one. */
static int64_t argument(int argc, char **argv, int i, int64_t otherwise)
{
    const int64_t n = i < argc ? strtol(argv[i], NULL, 10) : otherwise;

    if (n < 1) {
        fprintf(stderr, "bench_ring: %s is not a positive number\n", argv[i]);
        exit(2);
    }
    return n;
}

int main(int argc, char **argv)
{
    bench b = {.ranks = argument(argc, argv, 1, 4),
               .chunk = argument(argc, argv, 2, 4096),
               .d = argument(argc, argv, 3, 128)};

    if (b.ranks < 2) {
        fprintf(stderr, "bench_ring: a ring of 1 rank\n");
        return 2;
    }
    b.all = (d9d_attention_dims){.t = D9D_BF16,
                                 .b = 1,
                                 .s = 2 * b.chunk,
                                 .z = 2 * b.ranks * b.chunk,
                                 .a = A,
                                 .kv = KV,
                                 .d = b.d,
                                 .causal = true,
                                 .scale = 1.0f / sqrtf((float)b.d),
                                 .chunks = 2};
    must(d9d_device_open(unit_device_name(), &b.dev));
    b.k = b.dev->kernels;
    b.s = b.dev->stream;
    arrays_alloc(&b);
    show_all(&b);
    arrays_free(&b);
    d9d_device_close(b.dev);
    return 0;
}
