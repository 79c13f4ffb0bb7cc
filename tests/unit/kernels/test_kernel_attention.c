/* Attention against the definition in double: all scores, then the softmax. */
#include "d9d/data/loader/cp_slice.h"
#include "support/arrays.h"
#include "support/host_kernels.h"
#include "support/unit_device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct call {
    d9d_attention_dims n;
    void *q, *k, *v, *dout, *o, *grads; /* grads: dq, dk, dv in one block */
    float *lse;
    void *sink, *dsink; /* [A], or NULL */
} call;

static void run_forward(void *arg)
{
    call *p = arg;

    assert_int_equal(host_kernels()->attention->fwd(NULL, &p->n, p->o, p->lse, p->q, p->k, p->v),
                     D9D_OK);
    if (p->sink != NULL)
        assert_int_equal(host_kernels()->attention->sink(NULL, &p->n, p->o, p->lse, p->sink),
                         D9D_OK);
}

static void run_sink_dw(void *arg)
{
    call *p = arg;

    assert_int_equal(host_kernels()->attention->sink_wgrad(NULL, &p->n, p->n.t, p->dsink, 1.0f,
                                                           p->dout, p->o, p->lse, p->sink),
                     D9D_OK);
}

/* Elements of q, k, v, and of o. */
static int64_t q_size(const d9d_attention_dims *n)
{
    return n->b * n->s * n->a * n->d;
}
static int64_t k_size(const d9d_attention_dims *n)
{
    return n->b * n->z * n->kv * n->d;
}
static int64_t v_size(const d9d_attention_dims *n)
{
    return n->b * n->z * n->kv * d9d_attention_dims_resolve(n).dv;
}
static int64_t o_size(const d9d_attention_dims *n)
{
    return n->b * n->s * n->a * d9d_attention_dims_resolve(n).dv;
}
static int64_t grads_size(const d9d_attention_dims *n)
{
    return q_size(n) + k_size(n) + v_size(n);
}
static void *grad(const call *p, int64_t first)
{
    return (char *)p->grads + (size_t)first * d9d_dtype_size(p->n.t);
}

static void run_backward(void *arg)
{
    call *p = arg;
    int64_t nq = q_size(&p->n), nk = k_size(&p->n);

    assert_int_equal(host_kernels()->attention->bwd(NULL, &p->n, grad(p, 0), grad(p, nq),
                                                    grad(p, nq + nk), p->dout, p->q, p->k, p->v,
                                                    p->o, p->lse),
                     D9D_OK);
}

/* The prefix of the segment of query i, counted over B and S. */
static int64_t prefix_of(const d9d_attention_dims *n, int64_t i)
{
    int64_t at = 0;

    while (n->prefix != NULL && n->segment[at].q + n->segment[at].nq <= i)
        at++;
    return n->prefix != NULL ? n->prefix[at] : 0;
}

/* The segment of query i, counted over B and S. */
static d9d_segment segment_of(const d9d_attention_dims *n, int64_t i)
{
    const int64_t row = i / n->s, size = n->chunks > 0 ? n->s / n->chunks : n->s;
    const int64_t piece = i % n->s / size;
    const d9d_segment *x = n->segment;

    if (x == NULL && n->chunks > 0)
        return (d9d_segment){(int32_t)(row * n->s + piece * size), (int32_t)size,
                             (int32_t)(row * n->z), (int32_t)n->chunk_end[piece]};
    if (x == NULL)
        return (d9d_segment){(int32_t)(row * n->s), (int32_t)n->s, (int32_t)(row * n->z),
                             (int32_t)n->z};
    while (x->q + x->nq <= i)
        x++;
    return *x;
}

/* Whether query i of a row may see key j of it. */
static bool visible(const d9d_attention_dims *n, int64_t b, int64_t i, int64_t j)
{
    const d9d_segment x = segment_of(n, b * n->s + i);
    const int64_t q = b * n->s + i - x.q, k = b * n->z + j - x.k;
    const int64_t back = x.nk - x.nq + q - k; /* from the query's own place */
    const int64_t prefix = prefix_of(n, b * n->s + i);

    return k >= 0 && (k < x.nk || k < prefix) && (!n->causal || back >= 0 || k < prefix) &&
           (n->window == 0 || llabs(back) < n->window);
}

/* Head ix of x [heads, d] times head iy of y. */
static double dot(d9d_dtype t, int64_t d, const void *x, int64_t ix, const void *y, int64_t iy)
{
    double sum = 0.0;

    for (int64_t f = 0; f < d; f++)
        sum += array_get(t, x, ix * d + f) * array_get(t, y, iy * d + f);
    return sum;
}

/* The score of scale q.k = x, and its derivative. */
static double capped(const d9d_attention_dims *n, double x, double *derivative)
{
    const double cap = (double)n->softcap, t = cap > 0.0 ? tanh(x / cap) : 0.0;

    *derivative = 1.0 - t * t;
    return cap > 0.0 ? cap * t : x;
}

/* What dropout multiplies the probability of a key of query i, counted over B and S, by. */
static double kept(const d9d_attention_dims *n, int64_t h, int64_t i, int64_t key)
{
    const d9d_attention_dropout *d = &n->dropout;
    const d9d_rng rng = {d->rng.seed, d->rng.stream + (uint64_t)h};

    if (d->p == 0.0f)
        return 1.0;
    return d9d_rng_uniform(rng, (uint64_t)(d->token[i] * d->width + key - segment_of(n, i).k)) <
                   d->p
               ? 0.0
               : 1.0 / (1.0 - (double)d->p);
}

/* One query row: output, lse, and its share of the gradients: dq, dk, dv, dsink. */
static void naive_row(const call *p, int64_t b, int64_t h, int64_t i, double *w, double *o,
                      double *lse, double *g)
{
    const d9d_attention_dims *n = &p->n;
    const int64_t d = n->d, values = d9d_attention_dims_resolve(n).dv; /* features */
    const int64_t iq = (b * n->s + i) * n->a + h, k0 = b * n->z * n->kv + h / (n->a / n->kv);
    double most = -INFINITY, sum = 0.0, delta = 0.0, *dq = g, *dk = g + q_size(n);
    double *dv = dk + k_size(n), *dsink = dv + v_size(n);
    const double sink = p->sink != NULL ? array_get(n->t, p->sink, h) : -INFINITY;
    double *derivative = w + n->z;

    for (int64_t j = 0; j < n->z; j++) {
        w[j] = -INFINITY;
        if (visible(n, b, i, j))
            w[j] = capped(n, (double)n->scale * dot(n->t, d, p->q, iq, p->k, k0 + j * n->kv),
                          &derivative[j]);
        most = w[j] > most ? w[j] : most;
    }
    for (int64_t j = 0; j < n->z; j++)
        sum += w[j] = exp(w[j] - most);
    sum += exp(sink - most);
    *lse = most + log(sum);
    for (int64_t j = 0; j < n->z; j++) {
        if (w[j] == 0.0)
            continue;
        w[j] /= sum;
        delta += kept(n, h, b * n->s + i, b * n->z + j) * w[j] *
                 dot(n->t, values, p->dout, iq, p->v, k0 + j * n->kv);
    }
    dsink[h] -= exp(sink - *lse) * delta;
    for (int64_t j = 0; j < n->z; j++) {
        const int64_t ik = k0 + j * n->kv;
        double ds, keep;

        if (w[j] == 0.0)
            continue;
        keep = kept(n, h, b * n->s + i, b * n->z + j);
        ds = (double)n->scale * w[j] * (keep * dot(n->t, values, p->dout, iq, p->v, ik) - delta) *
             derivative[j];
        w[j] *= keep;
        for (int64_t f = 0; f < d; f++) {
            dq[iq * d + f] += ds * array_get(n->t, p->k, ik * d + f);
            dk[ik * d + f] += ds * array_get(n->t, p->q, iq * d + f);
        }
        for (int64_t f = 0; f < values; f++) {
            o[iq * values + f] += w[j] * array_get(n->t, p->v, ik * values + f);
            dv[ik * values + f] += w[j] * array_get(n->t, p->dout, iq * values + f);
        }
    }
}

/* Key heads side by side: no other has to do with their gradients. */
static void naive(const call *p, double *o, double *lse, double *g)
{
    const d9d_attention_dims *n = &p->n;
    const int64_t group = n->kv > 0 ? n->a / n->kv : 0;

#pragma omp parallel for
    for (int64_t kh = 0; kh < n->kv; kh++) {
        double *w = calloc(2 * (size_t)n->z + 1, sizeof(*w));

        for (int64_t b = 0; b < n->b; b++)
            for (int64_t h = kh * group; h < (kh + 1) * group; h++)
                for (int64_t i = 0; i < n->s; i++)
                    naive_row(p, b, h, i, w, o, lse + (b * n->a + h) * n->s + i, g);
        free(w);
    }
}

static void check_sink(call *p, const double *want)
{
    void *before = array_random(p->n.t, p->n.a, 6, 1.0);
    double *all = calloc((size_t)p->n.a + 1, sizeof(*all));

    p->dsink = array_poison(p->n.t, p->n.a);
    for (int64_t h = 0; h < p->n.a; h++)
        all[h] = want[h] + array_get(p->n.t, before, h);
    array_same_for_threads(run_sink_dw, p, p->dsink, (size_t)p->n.a * d9d_dtype_size(p->n.t),
                           before);
    array_close("dsink", p->n.t, p->dsink, all, p->n.a, p->n.t == D9D_F32 ? 2e-5 : 2e-2);
    free(p->dsink);
    free(before);
    free(all);
}

/* The same forward as that of a KV cache, which may be another algorithm. */
static void check_decode(call *p, const double *o, const double *lse, double tolerance)
{
    memset(p->o, 0xff, (size_t)o_size(&p->n) * d9d_dtype_size(p->n.t));
    p->n.decode = true;
    run_forward(p);
    p->n.decode = false;
    array_close("o of a cache", p->n.t, p->o, o, o_size(&p->n), tolerance);
    array_close("lse of a cache", D9D_F32, p->lse, lse, p->n.b * p->n.a * p->n.s, 5e-6);
}

static void check_with(const d9d_attention_dims *n, bool sinks)
{
    const int64_t no = o_size(n), ng = grads_size(n), rows = n->b * n->a * n->s;
    size_t size = d9d_dtype_size(n->t);
    const double tolerance =
        n->t == D9D_F32 ? 5e-6 : unit_device_tolerance(sinks ? 1e-2 : 5e-6, 1e-2);
    call p = {.n = *n};
    double *o = calloc((size_t)no + 1, sizeof(*o)), *lse = calloc((size_t)rows + 1, sizeof(*lse));
    double *g = calloc((size_t)(ng + n->a) + 1, sizeof(*g));

    p.sink = sinks ? array_random(n->t, n->a, 5, 1.0) : NULL;
    p.q = array_random(n->t, q_size(n), 1, 1.0);
    p.k = array_random(n->t, k_size(n), 2, 1.0);
    p.v = array_random(n->t, v_size(n), 3, 1.0);
    p.dout = array_random(n->t, no, 4, 1.0);
    p.o = array_poison(n->t, no);
    p.lse = array_poison(D9D_F32, rows);
    p.grads = array_poison(n->t, ng);
    naive(&p, o, lse, g);
    array_same_for_threads(run_forward, &p, p.o, (size_t)no * size, NULL);
    /* Where a GPU multiplies in bfloat16, the probabilities are rounded to it; and with a sink what
     * is scaled was. */
    array_close("o", n->t, p.o, o, no, tolerance);
    array_close("lse", D9D_F32, p.lse, lse, rows, 5e-6);
    if (n->softcap > 0.0f && n->dropout.p == 0.0f)
        check_decode(&p, o, lse, tolerance);
    array_same_for_threads(run_backward, &p, p.grads, (size_t)ng * size, NULL);
    /* In bfloat16 the kernel has o rounded, on a GPU with a sink twice. */
    array_close("dq, dk, dv", n->t, p.grads, g, ng,
                n->t == D9D_F32 ? 2e-5 : unit_device_tolerance(2e-2, sinks ? 3e-2 : 2e-2));
    if (sinks)
        check_sink(&p, g + ng);
    void *parts[] = {p.q, p.k, p.v, p.dout, p.o, p.lse, p.grads, p.sink, o, lse, g};
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        free(parts[i]);
}

/* As it is, and under one window or other with sinks. */
static void check(const d9d_attention_dims *n)
{
    static const int64_t windows[] = {5, 64, 1, 130, 33};
    d9d_attention_dims w = *n;

    check_with(n, false);
    w.window = windows[(n->s + n->d + n->t) % 5];
    if (n->causal || n->t == D9D_F32)
        check_with(&w, true);
}

static const struct shape {
    int64_t b, s, a, kv, d;
} shapes[] = {
    {0, 4, 2, 1, 8},
    {1, 1, 1, 1, 1},
    {2, 3, 2, 2, 5},
    {1, 17, 4, 2, 16},
    {1, 64, 3, 1, 8},
    {2, 65, 2, 1, 33},
    {1, 200, 6, 2, 24},
    {1, 300, 1, 1, 7},
    /* heads that libraries know */
    {1, 1, 2, 1, 64},
    {2, 260, 4, 2, 64},
    {1, 129, 2, 2, 64},
    {1, 193, 2, 1, 128},
    /* and between their tiles */
    {2, 130, 4, 2, 72},
    {1, 140, 2, 2, 96},
    /* and lengths that they are planned for */
    {2, 256, 4, 2, 64},
    {1, 176, 2, 1, 128},
};

static void test_shapes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (int flags = 0; flags < 4; flags++) {
            const struct shape *x = &shapes[i];
            d9d_attention_dims n = {.t = array_types[flags & 1],
                                    .b = x->b,
                                    .s = x->s,
                                    .z = x->s,
                                    .a = x->a,
                                    .kv = x->kv,
                                    .d = x->d,
                                    .causal = (flags & 2) != 0,
                                    .scale = 1.0f / sqrtf((float)x->d)};

            check(&n);
        }
}

/* Packed documents as segments, into out [documents]. */
static void square(const int32_t *bounds, int documents, d9d_segment *out)
{
    for (int i = 0; i < documents; i++) {
        const int32_t size = bounds[i + 1] - bounds[i];

        out[i] = (d9d_segment){bounds[i], size, bounds[i], size};
    }
}

/* Both types, with a mask and without, heads that libraries know and others. */
static void check_list(int64_t b, int64_t s, int64_t z, const d9d_segment *list, int64_t segments)
{
    for (int flags = 0; flags < 8; flags++)
        check(&(d9d_attention_dims){.t = array_types[flags & 1],
                                    .b = b,
                                    .s = s,
                                    .z = z,
                                    .a = 2,
                                    .kv = flags & 4 ? 2 : 1,
                                    .d = flags & 4 ? 64 : 12,
                                    .causal = (flags & 2) != 0,
                                    .scale = flags & 4 ? 0.125f : 0.3f,
                                    .segments = segments,
                                    .segment = list});
}

/* Packed documents: of one token, over block edges, empty ones, a row that is one. */
static void test_documents(void **state)
{
    enum { B = 3, S = 311, N = 11 };
    static const int32_t bounds[N + 1] = {0, 0, 1,     150,        151,   281,
                                          S, S, 2 * S, 2 * S + 64, 3 * S, 3 * S};
    d9d_segment list[N];

    (void)state;
    square(bounds, N, list);
    check_list(B, S, S, list, N);
}

/* More keys than queries: all of a row's, some of them, twice the same ones, none at the end. */
static void test_segments(void **state)
{
    static const d9d_segment tiny[] = {{0, 1, 0, 1}, {1, 2, 1, 2}, {3, 1, 8, 6}},
                             twice[] = {{0, 70, 0, 70}, {70, 63, 0, 400}},
                             odd[] = {{0, 1, 3, 200},    {1, 0, 3, 201},      {1, 65, 3, 265},
                                      {66, 64, 270, 64}, {130, 3, 340, 61},   {133, 10, 401, 200},
                                      {143, 0, 601, 9},  {143, 123, 651, 150}};

    (void)state;
    check_list(2, 2, 7, (d9d_segment[]){{0, 2, 0, 5}, {2, 2, 7, 7}}, 2);
    check_list(1, 4, 14, tiny, 3);
    check_list(1, 133, 400, twice, 2);
    check_list(2, 133, 401, odd, 8);
    check_list(2, 3, 150, NULL, 0);
    check_list(2, 0, 5, NULL, 0);
}

/* Rows whose scores are capped, as heads of every size that a kernel of its own takes. */
static const struct {
    int64_t b, s, z, window, chunks;
    int segments;
    d9d_segment segment[3];
} capped_rows[] = {
    {2, 37, 37, 0, 0, 0, {{0}}},
    {1, 70, 70, 33, 0, 0, {{0}}},
    {1, 75, 75, 9, 0, 3, {{0, 33, 0, 33}, {33, 39, 33, 39}, {72, 3, 72, 3}}},
    {1, 41, 110, 0, 0, 2, {{0, 10, 0, 60}, {10, 31, 60, 50}}},
    {1, 41, 110, 20, 0, 2, {{0, 10, 0, 60}, {10, 31, 60, 50}}},
    {1, 36, 72, 0, 2, 0, {{0}}},
    {1, 36, 72, 20, 2, 0, {{0}}},
};
static const int64_t capped_sizes[] = {64, 80, 128, 256};

static void test_softcap(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(capped_rows) / sizeof(*capped_rows); i++)
        for (int flags = 0; flags < 8; flags++) {
            const int64_t d = capped_sizes[flags / 2];

            check_with(&(d9d_attention_dims){.t = array_types[(i + (size_t)flags / 2) % 2],
                                             .b = capped_rows[i].b,
                                             .s = capped_rows[i].s,
                                             .z = capped_rows[i].z,
                                             .a = 2,
                                             .kv = flags & 2 ? 2 : 1,
                                             .d = d,
                                             .causal = flags % 2 == 0,
                                             .scale = 2.0f / sqrtf((float)d),
                                             .softcap = 1.5f,
                                             .window = capped_rows[i].window,
                                             .segments = capped_rows[i].segments,
                                             .segment = capped_rows[i].segments > 0
                                                            ? capped_rows[i].segment
                                                            : NULL,
                                             .chunks = capped_rows[i].chunks,
                                             .chunk_end = {18, 72}},
                       i % 3 == 1);
        }
}

/* What each of n ranks has of two rows, their documents between `bounds`, or whole; under a prefix
 * mask if there are labels. */
static void check_ranks(int n, int64_t length, const int32_t *bounds, const int32_t *labels,
                        const d9d_attention_dims *as)
{
    int32_t *cells = calloc((size_t)(2 * length), sizeof(*cells));
    const d9d_batch batch = {.seqs = 2,
                             .length = length,
                             .ids = cells,
                             .labels = labels != NULL ? labels : cells,
                             .positions = cells,
                             .cu_seqlens = bounds};
    d9d_cp_slice_buffer room = {0};

    for (int rank = 0; rank < n; rank++) {
        d9d_attention_dims x = *as;
        d9d_cp_slice part;

        assert_int_equal(d9d_cp_slice_make(&batch, rank, n, &room, &part), D9D_OK);
        if (labels != NULL)
            assert_int_equal(d9d_cp_slice_add_prefixes(&batch, rank, n, &room, &part), D9D_OK);
        x.prefix = part.prefix;
        x.b = part.seqs;
        x.s = part.length;
        x.z = length;
        x.segments = part.segments;
        x.segment = part.segment;
        x.chunks = 2;
        x.chunk_end[0] = (rank + 1) * part.length / 2;
        x.chunk_end[1] = (2 * n - rank) * part.length / 2;
        check(&x);
    }
    d9d_cp_slice_buffer_release(&room);
    free(cells);
}

/* Documents that begin and end where pieces do, lie in many pieces, or are empty. */
static const int32_t documents_600[] = {0,   150, 150, 151, 320,  600,  600,
                                        601, 899, 900, 901, 1050, 1200, 1200};
static const int32_t documents_304[] = {0, 1, 39, 114, 300, 304, 310, 456, 608};
static const int32_t documents_180[] = {0, 10, 30, 61, 145, 150, 180, 181, 300, 360};

static const d9d_attention_dims as_64 = {
    .t = D9D_BF16, .a = 2, .kv = 1, .d = 64, .causal = true, .scale = 0.125f};
static const d9d_attention_dims as_128 = {
    .t = D9D_BF16, .a = 2, .kv = 2, .d = 128, .causal = true, .scale = 0.1f};
static const d9d_attention_dims as_groups = {
    .t = D9D_BF16, .a = 4, .kv = 1, .d = 128, .causal = true, .scale = 0.1f};
static const d9d_attention_dims as_window = {
    .t = D9D_BF16, .a = 4, .kv = 2, .d = 128, .causal = true, .scale = 0.1f, .window = 70};
/* Between tiles. */
static const d9d_attention_dims as_80 = {
    .t = D9D_BF16, .a = 2, .kv = 1, .d = 80, .causal = true, .scale = 0.1f};
static const d9d_attention_dims as_96 = {
    .t = D9D_BF16, .a = 4, .kv = 2, .d = 96, .causal = true, .scale = 0.1f};
/* Of which a block has fewer cells. */
static const d9d_attention_dims as_160 = {
    .t = D9D_BF16, .a = 2, .kv = 1, .d = 160, .causal = true, .scale = 0.08f, .window = 70};
static const d9d_attention_dims as_256 = {
    .t = D9D_BF16, .a = 4, .kv = 1, .d = 256, .causal = true, .scale = 0.06f};
static const d9d_attention_dims as_float = {
    .t = D9D_F32, .a = 2, .kv = 1, .d = 12, .causal = true, .scale = 0.3f};

static const struct {
    int n;
    int64_t length;
    const int32_t *bounds;
    const d9d_attention_dims *as;
} rank_cases[] = {
    {2, 600, documents_600, &as_64},
    {4, 304, NULL, &as_64},
    {3, 180, documents_180, &as_64},
    {2, 304, documents_304, &as_128},
    {2, 180, NULL, &as_128},
    {3, 180, documents_180, &as_128},
    {2, 260, NULL, &as_groups},
    {4, 304, documents_304, &as_groups},
    {4, 8, NULL, &as_groups},
    {2, 512, NULL, &as_groups},
    {3, 1200, NULL, &as_64},
    {2, 400, NULL, &as_window},
    {2, 640, NULL, &as_window},
    {2, 180, documents_180, &as_80},
    {4, 80, NULL, &as_80},
    {2, 304, documents_304, &as_96},
    {2, 512, NULL, &as_96},
    {2, 180, documents_180, &as_160},
    {2, 304, documents_304, &as_256},
    {2, 304, NULL, &as_256},
    {3, 180, documents_180, &as_float},
    {2, 180, documents_180, &as_float},
    {4, 304, NULL, &as_float},
};

/* A number below n. */
static int64_t draw(uint64_t *seed, int64_t n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((*seed >> 33) % (uint64_t)n);
}

/* Packed documents of `rows` rows of `length` tokens, with prefixes of 0, 1, some or all tokens. */
static int64_t draw_documents(uint64_t *seed, int64_t rows, int64_t length, d9d_segment *list,
                              int32_t *prefix)
{
    int64_t count = 0;

    for (int64_t begin = 0; begin < rows * length;) {
        const int64_t left = length - begin % length, half = (left + 1) / 2;
        const int32_t size = (int32_t)(draw(seed, 3) == 0 ? left : 1 + draw(seed, half));
        const int32_t choices[] = {0, 1, size, (int32_t)draw(seed, size + 1)};

        list[count] = (d9d_segment){(int32_t)begin, size, (int32_t)begin, size};
        prefix[count++] = choices[draw(seed, 4)];
        begin += size;
    }
    return count;
}

/* Prefix masks of documents at random, with groups of heads, softcaps, windows and sinks. */
static void test_prefix(void **state)
{
    enum { CASES = 24, MOST = 3 * 300 };
    static const int64_t sizes[] = {12, 64, 80, 128, 200, 5};
    d9d_segment *list = calloc(MOST, sizeof(*list));
    int32_t *prefix = calloc(MOST, sizeof(*prefix));
    uint64_t seed = 7;

    (void)state;
    for (int i = 0; i < CASES; i++) {
        const int64_t rows = 1 + draw(&seed, 3), length = 1 + draw(&seed, i % 2 == 0 ? 90 : 300);
        const int64_t kv = 1 + draw(&seed, 2), d = sizes[draw(&seed, 6)];

        check(&(d9d_attention_dims){.t = array_types[i / 2 % 2],
                                    .b = rows,
                                    .s = length,
                                    .z = length,
                                    .a = kv * (1 + draw(&seed, 2)),
                                    .kv = kv,
                                    .d = d,
                                    .causal = true,
                                    .scale = 1.0f / sqrtf((float)d),
                                    .softcap = i % 5 == 0 ? 1.5f : 0.0f,
                                    .segments = draw_documents(&seed, rows, length, list, prefix),
                                    .segment = list,
                                    .prefix = prefix});
    }
    free(list);
    free(prefix);
}

/* Prefixes that end before, in and behind the keys of a segment with more keys than queries; the
 * last keys are in no segment. */
static void test_prefix_of_more_keys(void **state)
{
    static const d9d_segment list[] = {{0, 70, 0, 70}, {70, 63, 0, 200}, {133, 30, 260, 90}};
    static const int32_t prefixes[][3] = {{40, 40, 0}, {150, 150, 90}, {230, 230, 75}, {0, 0, 120}};

    (void)state;
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(*prefixes); i++)
        for (int flags = 0; flags < 4; flags++)
            check(&(d9d_attention_dims){.t = array_types[flags & 1],
                                        .b = 1,
                                        .s = 163,
                                        .z = 390,
                                        .a = 4,
                                        .kv = 2,
                                        .d = flags & 2 ? 64 : 12,
                                        .causal = true,
                                        .scale = 0.2f,
                                        .segments = 3,
                                        .segment = list,
                                        .prefix = prefixes[i]});
}

/* A prefix of no or of one key is a causal mask, to the bit. */
static void test_prefix_of_one(void **state)
{
    enum { S = 150, D = 64, N = 2 };
    static const d9d_segment list[N] = {{0, 100, 0, 100}, {100, 50, 100, 50}};
    static const int32_t prefix[] = {1, 0};
    float *q = array_random(D9D_F32, S * D, 1, 1.0), *k = array_random(D9D_F32, S * D, 2, 1.0);
    float *v = array_random(D9D_F32, S * D, 3, 1.0), o[N][S * D], lse[N][S];

    (void)state;
    for (int i = 0; i < 2; i++)
        assert_int_equal(
            host_kernels()->attention->fwd(NULL,
                                           &(d9d_attention_dims){.t = D9D_F32,
                                                                 .b = 1,
                                                                 .s = S,
                                                                 .z = S,
                                                                 .a = 1,
                                                                 .kv = 1,
                                                                 .d = D,
                                                                 .causal = true,
                                                                 .scale = 1.0f,
                                                                 .segments = N,
                                                                 .segment = list,
                                                                 .prefix = i == 0 ? prefix : NULL},
                                           o[i], lse[i], q, k, v),
            D9D_OK);
    assert_memory_equal(o[0], o[1], sizeof(o[0]));
    assert_memory_equal(lse[0], lse[1], sizeof(lse[0]));
    free(q);
    free(k);
    free(v);
}

/* A library that takes documents takes their pieces. */
static void test_ranks(void **state)
{
    const int refused = host_kernels_said("slower kernels");

    (void)state;
    for (size_t i = 0; i < sizeof(rank_cases) / sizeof(*rank_cases); i++)
        check_ranks(rank_cases[i].n, rank_cases[i].length, rank_cases[i].bounds, NULL,
                    rank_cases[i].as);
    if (refused == 0)
        assert_int_equal(host_kernels_said("slower kernels"), 0);
}

/* Prompts over many chunks: a chunk inside a prompt sees keys of later ones. */
static void test_prefix_ranks(void **state)
{
    static const size_t cases[] = {0, 1, 11, 16, 17, 18};
    uint64_t seed = 3;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const int64_t length = rank_cases[cases[i]].length;
        int32_t *labels = calloc((size_t)(2 * length), sizeof(*labels));

        for (int64_t at = 0; at < 2 * length; at++)
            labels[at] = draw(&seed, length) < 6 ? 1 : -100;
        check_ranks(rank_cases[cases[i]].n, length, rank_cases[cases[i]].bounds, labels,
                    rank_cases[cases[i]].as);
        free(labels);
    }
}

/* A prompt beside others in a cache, of its first tokens and of more behind those. */
static void test_prompts(void **state)
{
    static const d9d_segment prompts[] = {
        {0, 150, 0, 150}, {0, 150, 250, 150}, {0, 200, 20, 350}, {0, 129, 200, 200}};
    const int refused = host_kernels_said("slower kernels");

    (void)state;
    for (size_t i = 0; i < sizeof(prompts) / sizeof(*prompts); i++) {
        d9d_attention_dims x = i % 2 == 0 ? as_64 : as_groups;

        x.b = 1;
        x.s = prompts[i].nq;
        x.z = 400;
        x.segments = 1;
        x.segment = &prompts[i];
        x.chunks = 1;
        check(&x);
    }
    if (refused == 0)
        assert_int_equal(host_kernels_said("slower kernels"), 0);
}

/* Dropout of rows, chunks and lists, of heads of every size that a kernel of its own takes. */
static const struct {
    int64_t b, s, z, d, window, chunks;
    float p, softcap;
    bool open, sinks;
    int segments;
    d9d_segment segment[3];
} dropped_rows[] = {
    {2, 70, 70, 64, 0, 0, 0.3f, 0, false, false, 0, {{0}}},
    {1, 200, 200, 12, 33, 0, 0.5f, 0, false, true, 0, {{0}}},
    {1,
     75,
     75,
     80,
     0,
     0,
     0.1f,
     0,
     true,
     false,
     3,
     {{0, 33, 0, 33}, {33, 39, 33, 39}, {72, 3, 72, 3}}},
    {1, 41, 110, 128, 0, 0, 0.3f, 2, false, true, 2, {{0, 10, 0, 60}, {10, 31, 60, 50}}},
    {2, 36, 72, 64, 0, 2, 0.6f, 0, false, false, 0, {{0}}},
    {1, 36, 72, 160, 20, 2, 0.3f, 0, false, false, 0, {{0}}},
    {1, 40, 40, 300, 0, 0, 0.3f, 1.5f, false, false, 0, {{0}}},
    {1, 1, 1, 8, 0, 0, 0.5f, 0, false, false, 0, {{0}}},
};

static void test_dropout(void **state)
{
    enum { TOKENS = 200, WIDTH = 4001 };
    int64_t token[TOKENS];

    (void)state;
    for (int64_t i = 0; i < TOKENS; i++)
        token[i] = (i % 7 << 33) + 11 * i;
    for (size_t i = 0; i < sizeof(dropped_rows) / sizeof(*dropped_rows); i++)
        for (int t = 0; t < 2; t++)
            check_with(&(d9d_attention_dims){.t = array_types[t],
                                             .b = dropped_rows[i].b,
                                             .s = dropped_rows[i].s,
                                             .z = dropped_rows[i].z,
                                             .a = 4,
                                             .kv = i % 2 == 0 ? 2 : 1,
                                             .d = dropped_rows[i].d,
                                             .causal = !dropped_rows[i].open,
                                             .scale = 1.0f / sqrtf((float)dropped_rows[i].d),
                                             .softcap = dropped_rows[i].softcap,
                                             .window = dropped_rows[i].window,
                                             .segments = dropped_rows[i].segments,
                                             .segment = dropped_rows[i].segments > 0
                                                            ? dropped_rows[i].segment
                                                            : NULL,
                                             .chunks = dropped_rows[i].chunks,
                                             .chunk_end = {18, 72},
                                             .dropout = {dropped_rows[i].p, {5, 77}, token, WIDTH}},
                       dropped_rows[i].sinks);
}

/* A key that is dropped gives nothing, whatever it is; its score is part of the softmax. */
static void test_dropped_keys(void **state)
{
    enum { S = 64 };
    const d9d_rng rng = {5, 77};
    const int64_t token[S] = {0};
    const d9d_attention_dims n = {.t = D9D_F32,
                                  .b = 1,
                                  .s = S,
                                  .z = S,
                                  .a = 1,
                                  .kv = 1,
                                  .d = 1,
                                  .dropout = {0.25f, rng, token, S}};
    float zero[S] = {0}, one[S], o[S], lse[S];
    int dropped = 0;

    (void)state;
    for (int i = 0; i < S; i++) {
        one[i] = 1;
        dropped += d9d_rng_uniform(rng, (uint64_t)i) < 0.25f;
    }
    assert_in_range(dropped, 6, 26); /* 16, and 3.5 is one deviation */
    assert_int_equal(host_kernels()->attention->fwd(NULL, &n, o, lse, zero, zero, one), D9D_OK);
    for (int i = 0; i < S; i++) {
        assert_float_equal(o[i], (float)(S - dropped) / S / 0.75f, 1e-6);
        assert_float_equal(lse[i], logf(S), 1e-5);
    }
}

/* --- a document alone, and packed --------------------------------------------------------- */

enum { ARRAYS = 9, LSE = 8 }; /* q dout o dq | k v dk dv | lse */

/* Arrays of a call, in the order above. */
static void arrays_of(const call *p, void *out[ARRAYS])
{
    int64_t nq = q_size(&p->n), nk = k_size(&p->n);
    void *all[ARRAYS] = {p->q,        p->dout,          p->o,  grad(p, 0), p->k, p->v,
                         grad(p, nq), grad(p, nq + nk), p->lse};

    memcpy(out, all, sizeof(all));
}

static call call_make(const d9d_attention_dims *n)
{
    call p = {.n = *n};

    p.q = array_random(n->t, q_size(n), 1, 1.0);
    p.dout = array_random(n->t, o_size(n), 2, 1.0);
    p.k = array_random(n->t, k_size(n), 3, 1.0);
    p.v = array_random(n->t, v_size(n), 4, 1.0);
    p.o = array_poison(n->t, o_size(n));
    p.lse = array_poison(D9D_F32, n->b * n->a * n->s);
    p.grads = array_poison(n->t, grads_size(n));
    return p;
}

static void call_release(call *p)
{
    void *parts[] = {p->q, p->k, p->v, p->dout, p->o, p->lse, p->grads};

    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        free(parts[i]);
}

/* Elements of a token in array i. */
static int64_t token_size(const call *p, int i)
{
    const bool of_values = i == 1 || i == 2 || i == 5 || i == 7;

    return (i < 4 ? p->n.a : p->n.kv) * (of_values ? d9d_attention_dims_resolve(&p->n).dv : p->n.d);
}
/* Where a token's part of array i begins. */
static void *token_at(const call *p, void *const *all, int i, int64_t token)
{
    return (char *)all[i] + (size_t)(token * token_size(p, i)) * d9d_dtype_size(p->n.t);
}

/* Where the first token of a segment has its part of array i, and how much is the segment's. */
static void *segment_at(const call *p, int i, const d9d_segment *x, size_t *bytes)
{
    const bool query = i < 4;
    void *all[ARRAYS];

    arrays_of(p, all);
    *bytes = (size_t)((query ? x->nq : x->nk) * token_size(p, i)) * d9d_dtype_size(p->n.t);
    return token_at(p, all, i, query ? x->q : x->k);
}

/* What a segment gives by itself must be what it gave in the pack; the arrays that differ are
 * counted.  Where a library is likely, by itself is a pack of one; of pieces one with a key more,
 * as rows with as many keys as queries may differ. */
static void same_alone(const call *pack, const d9d_segment *x, int different[ARRAYS])
{
    const d9d_segment one = {0, x->nq, 0, x->nk};
    const int32_t prefix = (int32_t)prefix_of(&pack->n, x->q);
    const int64_t row = x->q / pack->n.s;
    d9d_attention_dims n = pack->n;
    size_t bytes;
    call p;

    n.b = 1;
    n.s = x->nq;
    n.segments = 1;
    n.segment = n.d >= 64 || n.prefix != NULL ? &one : NULL;
    n.prefix = n.prefix != NULL ? &prefix : NULL;
    n.chunks = n.chunks > 0 && n.segment != NULL;
    n.z = x->nk + n.chunks;
    p = call_make(&n);
    for (int i = 0; i < LSE; i++)
        if (i % 4 < 2) {
            void *alone = segment_at(&p, i, &one, &bytes);

            memcpy(alone, segment_at(pack, i, x, &bytes), bytes);
        }
    run_forward(&p);
    run_backward(&p);
    for (int i = 0; i < LSE; i++) {
        const void *alone = segment_at(&p, i, &one, &bytes);

        different[i] += memcmp(alone, segment_at(pack, i, x, &bytes), bytes) != 0;
    }
    for (int64_t h = 0; h < n.a; h++)
        different[LSE] +=
            memcmp(p.lse + h * n.s, pack->lse + (row * n.a + h) * pack->n.s + x->q % pack->n.s,
                   (size_t)n.s * sizeof(float)) != 0;
    call_release(&p);
}

static const struct {
    d9d_dtype t;
    int64_t d, window;
    bool causal;
    float softcap;
    int64_t dv; /* 0: d */
} alone_cases[] = {
    {D9D_F32, 20, 0, false, 0, 0},      {D9D_BF16, 20, 0, false, 0, 0},
    {D9D_F32, 20, 0, true, 0, 0},       {D9D_BF16, 20, 0, true, 0, 0},
    {D9D_F32, 64, 0, false, 0, 0},      {D9D_BF16, 64, 0, false, 0, 0},
    {D9D_F32, 64, 0, true, 0, 0},       {D9D_BF16, 64, 0, true, 0, 0},
    {D9D_F32, 20, 60, true, 0, 0},      {D9D_BF16, 64, 60, true, 0, 0},
    {D9D_BF16, 256, 0, true, 0, 0},     {D9D_BF16, 200, 60, true, 0, 0},
    {D9D_BF16, 64, 60, false, 2.0f, 0}, {D9D_F32, 20, 60, false, 2.0f, 0},
    {D9D_BF16, 64, 0, true, 2.0f, 0},   {D9D_BF16, 192, 0, true, 0, 128},
    {D9D_BF16, 64, 60, true, 0, 96},
};

/* Makes the segment's part of x, array i, NaN. */
static void spoil(const call *p, void *x, int i, const d9d_segment *of)
{
    const int64_t each = token_size(p, i);

    for (int64_t j = of->k * each; j < (of->k + of->nk) * each; j++)
        array_set(p->n.t, x, j, NAN);
}

/* To the bit, wherever a segment lies, and with NaN in the neighbour number `spoilt`. */
static void check_alone(int64_t s, int64_t z, int64_t pieces, const d9d_segment *list,
                        const int32_t *prefix, int segments, int spoilt)
{
    static const char *const names[ARRAYS] = {"q", "dout", "o", "dq", "k", "v", "dk", "dv", "lse"};

    for (size_t flags = 0; flags < sizeof(alone_cases) / sizeof(*alone_cases); flags++) {
        d9d_attention_dims n = {.t = alone_cases[flags].t,
                                .b = 2,
                                .s = s,
                                .z = z,
                                .a = 4,
                                .kv = 2,
                                .d = alone_cases[flags].d,
                                .dv = alone_cases[flags].dv,
                                .causal = alone_cases[flags].causal,
                                .window = alone_cases[flags].window,
                                .softcap = alone_cases[flags].softcap,
                                .scale = 0.3f,
                                .segments = segments,
                                .segment = list,
                                .prefix = alone_cases[flags].causal ? prefix : NULL,
                                .chunks = pieces};
        int different[ARRAYS] = {0};
        call p = call_make(&n);

        spoil(&p, p.k, 4, &list[spoilt]);
        spoil(&p, p.v, 5, &list[spoilt]);
        run_forward(&p);
        run_backward(&p);
        for (int i = 0; i < segments && getenv("D9D_TEST_ONCE") == NULL; i++)
            if (i != spoilt)
                same_alone(&p, &list[i], different);
        for (int i = 0; i < ARRAYS; i++)
            if (different[i] > 0)
                fail_msg("%s, %lld features: %d segments have other bits of %s alone",
                         d9d_dtype_name(n.t), (long long)n.d, different[i], names[i]);
        call_release(&p);
    }
}

static void test_alone(void **state)
{
    enum { S = 413, N = 9 };
    static const int32_t bounds[N + 1] = {0, 3, 4, 137, 200, 264, 400, S, S + 129, 2 * S};
    static const int32_t prefix[N] = {2, 1, 133, 40, 0, 70, 13, 129, 100};
    static const d9d_segment pieces[] = {
        {0, 3, 0, 50},      {3, 1, 50, 2},       {4, 100, 60, 200},   {104, 65, 300, 66},
        {169, 30, 400, 97}, {199, 70, 500, 170}, {269, 129, 670, 280}};
    static const d9d_segment halves[] = {
        {0, 30, 0, 130},    {30, 3, 130, 3},    {33, 67, 133, 67},
        {100, 60, 240, 90}, {160, 40, 330, 40}, {200, 100, 500, 200},
        {300, 5, 720, 155}, {305, 1, 875, 1},   {306, 94, 876, 94}};
    d9d_segment list[N];

    (void)state;
    square(bounds, N, list);
    check_alone(S, S, 0, list, NULL, N, 3);
    check_alone(S, S, 0, list, prefix, N, 3);
    check_alone(199, 500, 0, pieces, NULL, 7, 3);
    check_alone(200, 500, 2, halves, NULL, 9, 3);
}

/* What no list may be, of two rows. */
static const struct {
    int64_t z;
    bool open;
    d9d_segment list[3];
    const char *says;
} bad[] = {
    {3,
     false,
     {{0, 3, 0, 3}, {3, -1, 3, -1}, {2, 4, 2, 4}},
     "segment 1 has queries [3, 2), must begin at 3 and end within its row of 3"},
    {3,
     false,
     {{0, 4, 0, 4}, {4, 1, 4, 1}, {5, 1, 5, 1}},
     "segment 0 has queries [0, 4), must begin at 0 and end within its row of 3"},
    {3,
     false,
     {{1, 2, 1, 2}, {3, 2, 3, 2}, {5, 1, 5, 1}},
     "segment 0 has queries [1, 3), must begin at 0 and end within its row of 3"},
    {3, false, {{0, 3, 0, 3}, {3, 1, 3, 1}, {4, 1, 4, 1}}, "segments end at query 5 of 6"},
    {3,
     false,
     {{0, 3, 0, 3}, {3, 1, 3, 1}, {4, 2, 3, 3}},
     "segment 2 has 2 queries from 4 on and 3 keys from 3 on, in rows of 3 and 3"},
    {5,
     false,
     {{0, 3, 1, 5}, {3, 3, 5, 5}, {6, 0, 0, 0}},
     "segment 0 has keys [1, 6), in a row of [0, 5)"},
    {5,
     false,
     {{0, 3, 0, 5}, {3, 3, 4, 5}, {6, 0, 0, 0}},
     "segment 1 has keys [4, 9), in a row of [5, 10)"},
    {5,
     false,
     {{0, 3, 0, 2}, {3, 3, 5, 5}, {6, 0, 0, 0}},
     "segment 0 has 3 queries from 0 on and 2 keys from 0 on, in rows of 3 and 5"},
    {5,
     true,
     {{0, 3, 0, 0}, {3, 3, 5, 5}, {6, 0, 0, 0}},
     "segment 0 has 3 queries from 0 on and 0 keys from 0 on, in rows of 3 and 5"},
    {5,
     false,
     {{0, 1, 0, 3}, {1, 2, 0, 2}, {3, 3, 5, 5}},
     "segment 1 has keys [0, 2), must come after [0, 3) of the segment before"},
    {5,
     false,
     {{0, 1, 0, 3}, {1, 2, 1, 4}, {3, 3, 5, 5}},
     "segment 1 has keys [1, 5), must come after [0, 3) of the segment before"},
};

/* Nor, of two rows of 5 keys, where their 3 queries are so many pieces. */
static const struct {
    int64_t pieces;
    d9d_segment list[3];
    const char *says;
} bad_pieces[] = {
    {1,
     {{0, 2, 0, 2}, {2, 1, 2, 2}, {3, 3, 5, 5}},
     "segment 1 has 1 queries from 2 on and 2 keys, which do not fit a chunk of 3"},
    {1,
     {{0, 1, 0, 2}, {1, 2, 0, 2}, {3, 3, 5, 5}},
     "segment 1 has 2 queries from 1 on and 2 keys, which do not fit a chunk of 3"},
    {3,
     {{0, 2, 0, 2}, {2, 1, 2, 1}, {3, 3, 5, 5}},
     "segment 0 has 2 queries from 0 on and 2 keys, which do not fit a chunk of 1"},
};

/* Nor with these prefixes, of two rows of 5 keys. */
static const struct {
    bool open;
    int32_t prefix[3];
    d9d_segment list[3];
    const char *says;
} bad_prefixes[] = {
    {false,
     {0, 6, 0},
     {{0, 3, 0, 3}, {3, 3, 5, 3}, {6, 0, 0, 0}},
     "segment 1 has keys [5, 11), in a row of [5, 10)"},
    {false,
     {4, 0, 0},
     {{0, 2, 0, 2}, {2, 1, 3, 2}, {3, 3, 5, 5}},
     "segment 1 has keys [3, 5), must come after [0, 4) of the segment before"},
    {false,
     {2, 3, 0},
     {{0, 2, 0, 2}, {2, 1, 0, 4}, {3, 3, 5, 5}},
     "segments 0 and 1 begin with key 0 and have prefixes of 2 and 3 keys"},
    {false,
     {-1, 0, 0},
     {{0, 3, 0, 3}, {3, 3, 5, 3}, {6, 0, 0, 0}},
     "segment 0 has a prefix of -1 keys, at least 0 are allowed"},
    {true,
     {2, 0, 0},
     {{0, 3, 0, 3}, {3, 3, 5, 3}, {6, 0, 0, 0}},
     "segment 0 has a prefix of 2 keys, which needs a causal mask"},
};

static void check_bad(int64_t z, bool open, int64_t pieces, const d9d_segment *list,
                      const int32_t *prefix, const char *what)
{
    const d9d_attention_dims n = {.t = D9D_F32,
                                  .b = 2,
                                  .s = 3,
                                  .z = z,
                                  .a = 1,
                                  .kv = 1,
                                  .d = 1,
                                  .causal = !open,
                                  .segments = 3,
                                  .segment = list,
                                  .prefix = prefix,
                                  .chunks = pieces};
    float x[10] = {0}, lse[6];
    char says[128];

    (void)snprintf(says, sizeof(says), "attention: %s", what);
    assert_int_equal(host_kernels()->attention->fwd(NULL, &n, x, lse, x, x, x), D9D_EINVAL);
    assert_string_equal(d9d_err_message(), says);
}

static void test_bad_segments(void **state)
{
    (void)state;
    if (host_kernels() != d9d_kernels_cpu())
        return; /* a GPU would have to wait */
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        check_bad(bad[i].z, bad[i].open, 0, bad[i].list, NULL, bad[i].says);
    for (size_t i = 0; i < sizeof(bad_pieces) / sizeof(*bad_pieces); i++)
        check_bad(5, false, bad_pieces[i].pieces, bad_pieces[i].list, NULL, bad_pieces[i].says);
    for (size_t i = 0; i < sizeof(bad_prefixes) / sizeof(*bad_prefixes); i++)
        check_bad(5, bad_prefixes[i].open, 0, bad_prefixes[i].list, bad_prefixes[i].prefix,
                  bad_prefixes[i].says);
}

/* Large scores overflow no exponential; a NaN reaches its own rows and no others. */
static void test_extremes(void **state)
{
    enum { S = 150, D = 8 };
    d9d_attention_dims n = {.t = D9D_F32,
                            .b = 1,
                            .s = S,
                            .z = S,
                            .a = 1,
                            .kv = 1,
                            .d = D,
                            .causal = true,
                            .scale = 1.0f};
    float *q = array_random(D9D_F32, S * D, 1, 100.0), *k = array_random(D9D_F32, S * D, 2, 100.0);
    float *v = array_random(D9D_F32, S * D, 3, 1.0), o[S * D], lse[S];

    (void)state;
    assert_int_equal(host_kernels()->attention->fwd(NULL, &n, o, lse, q, k, v), D9D_OK);
    for (int i = 0; i < S * D; i++)
        assert_true(isfinite(o[i]));
    k[100 * D] = NAN;
    assert_int_equal(host_kernels()->attention->fwd(NULL, &n, o, lse, q, k, v), D9D_OK);
    for (int i = 0; i < S; i++)
        assert_int_equal(isnan(o[i * D]) && isnan(lse[i]), i >= 100);
    free(q);
    free(k);
    free(v);
}

/* --- pieces of rows ------------------------------------------------------------------------ */

/* Each cell of rows in order says where it is, and so must it in the pieces of the ranks. */
static void check_pieces(d9d_dtype t, int64_t n, int64_t b, int64_t p, int64_t w)
{
    const int64_t size = 2 * n * b * p * w;
    void *rows = array_random(t, size, 5, 1.0), *dealt = array_poison(t, size);
    void *back = array_poison(t, size);
    const size_t cell = (size_t)w * d9d_dtype_size(t);

    assert_int_equal(host_kernels()->attention->cp_zigzag(NULL, t, dealt, rows, n, b, p, w, false),
                     D9D_OK);
    for (int64_t i = 0; i < 2 * n * b * p; i++) {
        const int64_t rank = i / (2 * b * p), row = i / (2 * p) % b, half = i / p % 2;
        const int64_t piece = half == 0 ? rank : 2 * n - 1 - rank;

        assert_memory_equal((char *)dealt + (size_t)i * cell,
                            (char *)rows + (size_t)((row * 2 * n + piece) * p + i % p) * cell,
                            cell);
    }
    assert_int_equal(host_kernels()->attention->cp_zigzag(NULL, t, back, dealt, n, b, p, w, true),
                     D9D_OK);
    assert_memory_equal(back, rows, (size_t)size * d9d_dtype_size(t));
    free(rows);
    free(dealt);
    free(back);
}

static void test_pieces(void **state)
{
    static const int64_t sizes[][4] = {{1, 1, 1, 1},  {1, 3, 2, 5},  {2, 2, 3, 8}, {3, 1, 5, 12},
                                       {4, 3, 1, 16}, {8, 2, 7, 33}, {2, 0, 3, 4}, {2, 3, 0, 4}};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        for (int t = 0; t < 2; t++)
            check_pieces(array_types[t], sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3]);
}

/* --- every size of heads ------------------------------------------------------------------- */

/* How rows lie: packed documents between bounds, or whole. */
static const struct {
    const char *name;
    int64_t b, s, z, window;
    int segments;
    d9d_segment segment[3];
} lies[] = {
    {"whole rows of a planned length", 2, 144, 144, 0, 0, {{0}}},
    {"whole rows of another", 2, 131, 131, 0, 0, {{0}}},
    {"a long row", 1, 389, 389, 0, 0, {{0}}},
    {"under a window", 1, 200, 200, 70, 0, {{0}}},
    {"documents", 1, 200, 200, 0, 3, {{0, 66, 0, 66}, {66, 129, 66, 129}, {195, 5, 195, 5}}},
    {"documents under a window", 1, 200, 200, 33, 2, {{0, 70, 0, 70}, {70, 130, 70, 130}}},
    {"more keys than queries", 1, 133, 400, 0, 2, {{0, 70, 0, 270}, {70, 63, 270, 130}}},
};

/* The largest error of what came out, in units of what is allowed. */
static double worst_of(d9d_dtype t, const void *got, const double *want, int64_t n,
                       double tolerance)
{
    double worst = 0.0;

    for (int64_t i = 0; i < n; i++) {
        const double w = want[i], error = fabs(array_get(t, got, i) - w);
        const double units = error / (tolerance * (1.0 + fabs(w)) + fabs(w) / 256.0);

        worst = units > worst || isnan(units) ? units : worst;
        if (isnan(worst))
            return worst;
    }
    return worst;
}

/* Two runs of it, which must give the same bits; returns whether they did. */
static bool runs_alike(array_run run, call *p, void *out, size_t bytes)
{
    void *first = malloc(bytes + 1);
    bool alike;

    run(p);
    memcpy(first, out, bytes);
    memset(out, 0xff, bytes);
    run(p);
    alike = memcmp(first, out, bytes) == 0;
    free(first);
    return alike;
}

/* Whether heads of so many features, and values of dv, are right, rows lying so; says what is not.
 */
static bool head_is_right(int64_t d, int64_t dv, int lie)
{
    const d9d_attention_dims n = {.t = D9D_BF16,
                                  .b = lies[lie].b,
                                  .s = lies[lie].s,
                                  .z = lies[lie].z,
                                  .a = 4,
                                  .kv = 2,
                                  .d = d,
                                  .dv = dv,
                                  .causal = true,
                                  .window = lies[lie].window,
                                  .scale = 1.0f / sqrtf((float)d),
                                  .segments = lies[lie].segments,
                                  .segment = lies[lie].segments > 0 ? lies[lie].segment : NULL};
    const int64_t no = o_size(&n), ng = grads_size(&n), rows = n.b * n.a * n.s;
    double *o = calloc((size_t)no, sizeof(*o)), *lse = calloc((size_t)rows, sizeof(*lse));
    double *g = calloc((size_t)(ng + n.a), sizeof(*g)), out, back;
    call p = call_make(&n);
    bool alike, right;

    naive(&p, o, lse, g);
    alike = runs_alike(run_forward, &p, p.o, (size_t)no * 2);
    alike = runs_alike(run_backward, &p, p.grads, (size_t)ng * 2) && alike;
    out = worst_of(n.t, p.o, o, no, 1e-2);
    /* o is rounded to bfloat16 before rows of dO O, whose error grows with the features. */
    back = worst_of(n.t, p.grads, g, ng, d > 128 || dv > 128 ? 3e-2 : 2e-2);
    right = alike && out <= 1.0 && back <= 1.0;
    if (!right)
        print_error("heads of %lld, values of %lld, %s: o %.2f, gradients %.2f times what is "
                    "allowed%s\n",
                    (long long)d, (long long)dv, lies[lie].name, out, back,
                    alike ? "" : "; two runs differ");
    call_release(&p);
    free(o);
    free(lse);
    free(g);
    return right;
}

/* All that kernels for some sizes take; where one kernel takes all, a few. */
static void test_heads(void **state)
{
    const int64_t step = unit_device_is_cpu() ? 56 : 8;
    int wrong = 0;

    (void)state;
    for (int64_t d = 8; d <= 264; d += step)
        for (size_t i = 0; i < sizeof(lies) / sizeof(*lies); i++)
            wrong += !head_is_right(d, d, (int)i);
    assert_int_equal(wrong, 0);
}

/* Values narrower and wider than keys, for each kernel that has sizes of its own. */
static void test_values(void **state)
{
    static const int64_t sizes[][2] = {{192, 128}, {64, 128},  {128, 64}, {96, 8},
                                       {176, 120}, {136, 192}, {72, 200}, {136, 224},
                                       {256, 128}, {64, 20},   {264, 40}};
    int wrong = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        for (size_t j = 0; j < sizeof(lies) / sizeof(*lies); j++)
            wrong += !head_is_right(sizes[i][0], sizes[i][1], (int)j);
    assert_int_equal(wrong, 0);
    for (int flags = 0; flags < 8; flags++)
        check(&(d9d_attention_dims){.t = array_types[flags & 1],
                                    .b = 2,
                                    .s = 70,
                                    .z = 70,
                                    .a = 4,
                                    .kv = 2,
                                    .d = flags & 2 ? 24 : 7,
                                    .dv = flags & 2 ? 9 : 40,
                                    .causal = (flags & 4) != 0,
                                    .scale = 0.3f,
                                    .softcap = flags & 4 ? 0.0f : 1.5f});
}

/* Latent rows of MLA in generation, as keys and, wholly or their first features, as values. */
static void test_latents(void **state)
{
    static const d9d_segment one_each[] = {{0, 1, 0, 30}, {1, 1, 60, 57}, {2, 1, 120, 3}};

    (void)state;
    for (int flags = 0; flags < 4; flags++)
        check_with(&(d9d_attention_dims){.t = array_types[flags & 1],
                                         .b = 3,
                                         .s = 1,
                                         .z = 60,
                                         .a = 6,
                                         .kv = 1,
                                         .d = 576,
                                         .dv = flags & 2 ? 512 : 576,
                                         .causal = true,
                                         .scale = 0.07f,
                                         .softcap = 30.0f,
                                         .segments = 3,
                                         .segment = one_each},
                   false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_documents),
        cmocka_unit_test(test_segments),
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_dropped_keys),
        cmocka_unit_test(test_softcap),
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_bad_segments),
        cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_latents),
        cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_prefix_of_more_keys),
        cmocka_unit_test(test_prefix_of_one),
        cmocka_unit_test(test_prefix_ranks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
