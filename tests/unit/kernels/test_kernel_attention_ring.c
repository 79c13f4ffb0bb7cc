/* Ring attention of all ranks in one process: the kernels for each rank's queries and each chunk of
 * keys, joined as libcore/op/attention/op_cp_ring.c joins them, against the definition for whole
 * rows.  A chunk that is left out, or joined twice, must show. */
#include "support/attention_call.h"
#include "support/host_kernels.h"
#include "support/unit_device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNKS = 2 };

/* What a ring may do wrong with one chunk of keys. */
typedef enum mistake { NONE, LEFT_OUT, JOINED_TWICE, GRADIENT_LEFT_OUT, GRADIENT_TWICE } mistake;

/* A ring of n ranks whose chunks have P positions.  `of` counts whole rows. */
typedef struct ring {
    attention_call of;
    int64_t n, p;
    mistake mistake;
    int64_t by, chunk; /* the rank that makes it, and the chunk */
    bool joined;       /* both chunks of a rank in one call, where they can be */
    float *dk, *dv;    /* sums over the ranks */
} ring;

/* A rank's queries, and a chunk of keys. */
typedef struct ring_rank {
    int64_t number;
    attention_call call;
    float *o, *lse, *dq; /* over the chunks so far */
    bool any;
} ring_rank;

/* --- chunks of arrays ----------------------------------------------------------------------- */

/* Copies `rows` of x [B, L, w], from row `from`, to those of part [B, N, w] from row `at`, or back.
 */
static void rows_copy(const ring *r, d9d_dtype t, void *part, int64_t n, int64_t at, void *x,
                      int64_t from, int64_t rows, int64_t b, int64_t w, bool back)
{
    const size_t width = (size_t)w * d9d_dtype_size(t);

    for (int64_t i = 0; i < b; i++) {
        char *y = (char *)part + (size_t)(i * n + at) * width;
        char *all = (char *)x + (size_t)(i * r->of.n.s + from) * width;

        memcpy(back ? all : y, back ? y : all, (size_t)rows * width);
    }
}

static int64_t chunk_number(const ring *r, int64_t rank, int64_t c)
{
    return c == 0 ? rank : 2 * r->n - 1 - rank;
}

/* A rank's two chunks of x [B, L, w]. */
static void queries_copy(const ring *r, int64_t rank, d9d_dtype t, void *part, void *x, int64_t b,
                         int64_t w, bool back)
{
    for (int64_t c = 0; c < CHUNKS; c++)
        rows_copy(r, t, part, CHUNKS * r->p, c * r->p, x, chunk_number(r, rank, c) * r->p, r->p, b,
                  w, back);
}

static int64_t values(const ring *r)
{
    return d9d_attention_dims_resolve(&r->of.n).dv;
}

static ring_rank rank_create(const ring *r, int64_t number)
{
    ring_rank x = {.number = number};
    d9d_attention_dims n = r->of.n;
    int64_t rows;

    n.s = n.z = CHUNKS * r->p; /* of the arrays */
    x.call = attention_call_create(&n);
    x.call.sink = r->of.sink;
    n.z = r->of.n.z;
    n.chunks = CHUNKS;
    for (int64_t c = 0; c < CHUNKS; c++)
        n.chunk_end[c] = (chunk_number(r, number, c) + 1) * r->p;
    x.call.n = n;
    queries_copy(r, number, n.t, x.call.q, r->of.q, n.b, n.a * n.d, false);
    queries_copy(r, number, n.t, x.call.dout, r->of.dout, n.b, n.a * values(r), false);
    rows = n.b * n.s * n.a;
    x.o = array_poison(D9D_F32, rows * values(r));
    x.lse = array_poison(D9D_F32, rows);
    x.dq = calloc((size_t)(rows * n.d) + 1, sizeof(*x.dq));
    return x;
}

static void rank_release(ring_rank *x)
{
    attention_call_release(&x->call);
    free(x->o);
    free(x->lse);
    free(x->dq);
}

/* Whether a query of the rank sees a key of the chunk: those of its last chunk see the most. */
static bool rank_sees(const ring *r, const ring_rank *x, int64_t chunk)
{
    for (int64_t c = 0; c < CHUNKS; c++) {
        const int64_t q = chunk_number(r, x->number, c);

        if (chunk <= q &&
            (r->of.n.window == 0 || q == chunk || (q - chunk - 1) * r->p + 1 < r->of.n.window))
            return true;
    }
    return false;
}

/* A call of the kernels: one chunk of keys, or both of a rank. */
typedef struct block {
    int64_t chunk[CHUNKS];
    int n;
    d9d_attention_dims dims;
} block;

/* Chunk c of rank `of`. */
static block block_of_chunk(const ring *r, const ring_rank *x, int64_t of, int64_t c)
{
    const int64_t chunk = chunk_number(r, of, c);
    block b = {.chunk = {chunk}, .n = 1, .dims = x->call.n};

    b.dims.part = (d9d_attention_key_part){chunk * r->p, r->p};
    return b;
}

/* Both of them. The own two are a row; those of a later rank lie between the own. */
static block block_of_rank(const ring *r, const ring_rank *x, int64_t of)
{
    block b = {
        .chunk = {chunk_number(r, of, 0), chunk_number(r, of, 1)}, .n = CHUNKS, .dims = x->call.n};

    if (of == x->number) {
        b.dims.z = b.dims.s;
        b.dims.chunks = 0;
    } else {
        b.dims.part = (d9d_attention_key_part){(x->number + 1) * r->p, CHUNKS * r->p};
    }
    return b;
}

/* The calls of rank x for the keys of rank `of`. */
static int blocks_of(const ring *r, const ring_rank *x, int64_t of, block out[CHUNKS])
{
    int n = 0;

    if (r->joined && of >= x->number) {
        out[0] = block_of_rank(r, x, of);
        return 1;
    }
    for (int64_t c = 0; c < CHUNKS; c++)
        if (rank_sees(r, x, chunk_number(r, of, c)))
            out[n++] = block_of_chunk(r, x, of, c);
    return n;
}

/* The keys and values of a call; chunks of a row lie one after the other. */
static void rank_receive(const ring *r, ring_rank *x, const block *b)
{
    const d9d_attention_dims *n = &b->dims;

    for (int64_t c = 0; c < b->n; c++) {
        rows_copy(r, n->t, x->call.k, b->n * r->p, c * r->p, r->of.k, b->chunk[c] * r->p, r->p,
                  n->b, n->kv * n->d, false);
        rows_copy(r, n->t, x->call.v, b->n * r->p, c * r->p, r->of.v, b->chunk[c] * r->p, r->p,
                  n->b, n->kv * values(r), false);
    }
}

/* How often the rank joins a call's results, given the mistake that leaves them out or takes them
 * twice. */
static int times(const ring *r, const ring_rank *x, const block *b, mistake none, mistake twice)
{
    const bool here = b->chunk[0] == r->chunk || (b->n > 1 && b->chunk[1] == r->chunk);

    if (r->mistake == NONE || x->number != r->by || !here)
        return 1;
    return r->mistake == none ? 0 : r->mistake == twice ? 2 : 1;
}

/* --- both ways ------------------------------------------------------------------------------ */

static void block_fwd(const ring *r, ring_rank *x, const block *b)
{
    const d9d_kernels *k = host_kernels();
    attention_call *c = &x->call;

    rank_receive(r, x, b);
    assert_int_equal(k->attention->fwd(NULL, &b->dims, c->o, c->lse, c->q, c->k, c->v), D9D_OK);
    for (int i = times(r, x, b, LEFT_OUT, JOINED_TWICE); i > 0; i--) {
        assert_int_equal(k->attention->merge(NULL, &c->n, !x->any, x->o, x->lse, c->o, c->lse),
                         D9D_OK);
        x->any = true;
    }
}

/* By the ranks' numbers: a ring's order is another. */
static void rank_fwd(const ring *r, ring_rank *x)
{
    attention_call *c = &x->call;
    block b[CHUNKS];

    for (int64_t of = 0; of < r->n; of++)
        for (int i = 0, n = blocks_of(r, x, of, b); i < n; i++)
            block_fwd(r, x, &b[i]);
    for (int64_t i = 0; i < attention_o_size(&c->n); i++)
        array_set(c->n.t, c->o, i, (double)x->o[i]);
    memcpy(c->lse, x->lse, (size_t)(c->n.b * c->n.s * c->n.a) * sizeof(*x->lse));
    if (c->sink != NULL)
        assert_int_equal(host_kernels()->attention->sink(NULL, &c->n, c->o, c->lse, c->sink),
                         D9D_OK);
}

/* Adds the gradients of a call's keys, w numbers each, to `sum`. */
static void keys_add(const ring *r, float *sum, const void *part, const block *x, int64_t w)
{
    const d9d_attention_dims *n = &r->of.n;
    const int64_t size = r->p * w;

    for (int64_t b = 0; b < n->b; b++)
        for (int64_t c = 0; c < x->n; c++)
            for (int64_t i = 0; i < size; i++)
                sum[(b * n->s + x->chunk[c] * r->p) * w + i] +=
                    (float)array_get(n->t, part, (b * x->n + c) * size + i);
}

static void block_bwd(ring *r, ring_rank *x, const block *b)
{
    attention_call *c = &x->call;
    const int64_t nq = attention_q_size(&c->n), nk = c->n.b * b->n * r->p * c->n.kv * c->n.d;
    void *const dk = attention_call_grad(c, nq), *const dv = attention_call_grad(c, nq + nk);

    rank_receive(r, x, b);
    assert_int_equal(host_kernels()->attention->bwd(NULL, &b->dims, c->grads, dk, dv, c->dout, c->q,
                                                    c->k, c->v, c->o, c->lse),
                     D9D_OK);
    for (int i = times(r, x, b, GRADIENT_LEFT_OUT, GRADIENT_TWICE); i > 0; i--) {
        for (int64_t j = 0; j < nq; j++)
            x->dq[j] += (float)array_get(c->n.t, c->grads, j);
        keys_add(r, r->dk, dk, b, c->n.kv * c->n.d);
        keys_add(r, r->dv, dv, b, c->n.kv * values(r));
    }
}

static void rank_bwd(ring *r, ring_rank *x)
{
    block b[CHUNKS];

    for (int64_t of = 0; of < r->n; of++)
        for (int i = 0, n = blocks_of(r, x, of, b); i < n; i++)
            block_bwd(r, x, &b[i]);
    for (int64_t j = 0; j < attention_q_size(&x->call.n); j++)
        array_set(x->call.n.t, x->call.grads, j, (double)x->dq[j]);
}

/* Writes o, lse and gradients of whole rows to r->of. */
static void ring_run(ring *r)
{
    attention_call *p = &r->of;
    const d9d_attention_dims *n = &p->n;
    const int64_t nq = attention_q_size(n), nk = attention_k_size(n), nv = attention_v_size(n);

    r->dk = calloc((size_t)nk + 1, sizeof(*r->dk));
    r->dv = calloc((size_t)nv + 1, sizeof(*r->dv));
    for (int64_t i = 0; i < r->n; i++) {
        ring_rank x = rank_create(r, i);

        rank_fwd(r, &x);
        queries_copy(r, i, n->t, x.call.o, p->o, n->b, n->a * values(r), true);
        queries_copy(r, i, D9D_F32, x.call.lse, p->lse, n->b * n->a, 1, true);
        rank_bwd(r, &x);
        queries_copy(r, i, n->t, x.call.grads, p->grads, n->b, n->a * n->d, true);
        rank_release(&x);
    }
    for (int64_t i = 0; i < nk; i++)
        array_set(n->t, p->grads, nq + i, (double)r->dk[i]);
    for (int64_t i = 0; i < nv; i++)
        array_set(n->t, p->grads, nq + nk + i, (double)r->dv[i]);
    free(r->dk);
    free(r->dv);
}

/* --- comparisons ---------------------------------------------------------------------------- */

/* By the definition. */
typedef struct expected {
    double *o, *lse, *grads;
} expected;

static expected expected_of(const attention_call *p)
{
    const d9d_attention_dims *n = &p->n;
    const expected x = {
        calloc((size_t)attention_o_size(n) + 1, sizeof(double)),
        calloc((size_t)(n->b * n->a * n->s) + 1, sizeof(double)),
        calloc((size_t)(attention_grads_size(n) + n->a) + 1, sizeof(double)),
    };

    attention_naive(p, x.o, x.lse, x.grads);
    return x;
}

static void expected_release(expected *x)
{
    free(x->o);
    free(x->lse);
    free(x->grads);
}

/* Elements that are off by more than the tolerance, as array_close() counts it. */
static int64_t count_off(d9d_dtype t, const void *got, const double *want, int64_t n,
                         double tolerance)
{
    int64_t off = 0;

    for (int64_t i = 0; i < n; i++) {
        const double w = want[i];

        off += !(fabs(array_get(t, got, i) - w) <=
                 tolerance * (1.0 + fabs(w)) + (t == D9D_BF16 ? fabs(w) / 256.0 : 0.0));
    }
    return off;
}

static double tolerance_of(const ring *r, double of_float, double of_bf16)
{
    return r->of.n.t == D9D_F32 ? of_float : of_bf16;
}

static void check_equal(const ring *r, const expected *x)
{
    const attention_call *p = &r->of;
    const d9d_attention_dims *n = &p->n;

    array_close("o of a ring", n->t, p->o, x->o, attention_o_size(n), tolerance_of(r, 5e-6, 2e-2));
    array_close("lse of a ring", D9D_F32, p->lse, x->lse, n->b * n->a * n->s, 5e-6);
    array_close("dq, dk, dv of a ring", n->t, p->grads, x->grads, attention_grads_size(n),
                tolerance_of(r, 2e-5, 3e-2));
}

/* As many elements are off as queries, at least: the mistake does not hide in the tolerances. */
static void check_mistake_shows(ring *r, const expected *x, mistake m)
{
    const attention_call *p = &r->of;
    const d9d_attention_dims *n = &p->n;
    int64_t o, grads;

    r->mistake = m;
    ring_run(r);
    r->mistake = NONE;
    o = count_off(n->t, p->o, x->o, attention_o_size(n), tolerance_of(r, 5e-6, 2e-2));
    grads =
        count_off(n->t, p->grads, x->grads, attention_grads_size(n), tolerance_of(r, 2e-5, 3e-2));
    if ((m == LEFT_OUT || m == JOINED_TWICE ? o : grads) < r->p)
        fail_msg("mistake %d of rank %lld with chunk %lld of %lld: %lld of o and %lld gradients "
                 "are off",
                 (int)m, (long long)r->by, (long long)r->chunk, (long long)(2 * r->n), (long long)o,
                 (long long)grads);
}

static ring ring_create(const d9d_attention_dims *as, int64_t n, int64_t p)
{
    d9d_attention_dims all = *as;

    all.s = all.z = 2 * n * p;
    return (ring){.of = attention_call_create(&all), .n = n, .p = p};
}

static void check_ring(const d9d_attention_dims *as, int64_t n, int64_t p, bool sinks)
{
    ring r = ring_create(as, n, p);
    expected x;

    if (sinks)
        r.of.sink = array_random(as->t, as->a, 5, 1.0);
    x = expected_of(&r.of);
    ring_run(&r);
    check_equal(&r, &x);
    r.joined = as->window == 0;
    if (r.joined) {
        ring_run(&r);
        check_equal(&r, &x);
    }
    expected_release(&x);
    free(r.of.sink);
    attention_call_release(&r.of);
}

/* --- tests ---------------------------------------------------------------------------------- */

#define DIMS(dtype, rows, heads, keys, features, of_value, reach)                                  \
    {                                                                                              \
        .t = dtype, .b = rows, .a = heads, .kv = keys, .d = features, .dv = of_value,              \
        .causal = true, .scale = 0.1f, .window = reach                                             \
    }

static const struct {
    d9d_attention_dims as;
    int64_t n, p;
} cases[] = {
    {DIMS(D9D_F32, 2, 2, 1, 12, 0, 0), 2, 5},      {DIMS(D9D_F32, 1, 4, 2, 16, 8, 9), 3, 6},
    {DIMS(D9D_F32, 2, 2, 2, 8, 0, 1), 2, 4},       {DIMS(D9D_BF16, 1, 4, 2, 64, 0, 0), 2, 64},
    {DIMS(D9D_BF16, 2, 2, 1, 128, 0, 0), 2, 64},   {DIMS(D9D_BF16, 1, 2, 2, 128, 0, 0), 3, 64},
    {DIMS(D9D_BF16, 1, 2, 1, 64, 0, 0), 2, 128},   {DIMS(D9D_BF16, 1, 1, 1, 96, 0, 0), 4, 64},
    {DIMS(D9D_BF16, 1, 1, 1, 80, 0, 0), 2, 128},   {DIMS(D9D_BF16, 1, 2, 2, 192, 128, 0), 2, 64},
    {DIMS(D9D_BF16, 2, 2, 1, 256, 0, 0), 2, 64},   {DIMS(D9D_BF16, 1, 2, 1, 64, 128, 0), 2, 64},
    {DIMS(D9D_BF16, 1, 2, 1, 64, 0, 40), 2, 64},   /* reaches the chunk before */
    {DIMS(D9D_BF16, 2, 1, 1, 64, 0, 150), 3, 64},  /* and those before it, partly or all */
    {DIMS(D9D_BF16, 1, 2, 1, 128, 0, 256), 2, 64}, /* all of them */
    {DIMS(D9D_BF16, 2, 2, 1, 64, 0, 0), 2, 75},    /* between tiles */
    {DIMS(D9D_BF16, 1, 2, 1, 128, 0, 0), 3, 33},   {DIMS(D9D_BF16, 1, 2, 1, 160, 0, 70), 2, 64},
};

static void test_rings(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        check_ring(&cases[i].as, cases[i].n, cases[i].p, i % 2 > 0);
}

/* Whole chunks without a window need no slow kernel, on a GPU that has others. */
static void test_blocks_are_fast(void **state)
{
    static const d9d_attention_dims as = DIMS(D9D_BF16, 1, 2, 1, 128, 0, 0);
    const int before = host_kernels_said("by slower kernels");

    (void)state;
    if (before > 0)
        skip();
    check_ring(&as, 2, 64, false);
    assert_int_equal(host_kernels_said("by slower kernels"), 0);
}

/* Of each rank a chunk before its own, the own two, and one that a rank sees half of. */
static void test_mistakes_show(void **state)
{
    static const d9d_attention_dims as[] = {DIMS(D9D_F32, 1, 2, 1, 16, 0, 0),
                                            DIMS(D9D_BF16, 1, 1, 1, 64, 0, 0)};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        ring r = ring_create(&as[i], 2, i == 0 ? 16 : 64);
        expected x = expected_of(&r.of);

        for (r.by = 0; r.by < r.n; r.by++)
            for (r.chunk = 0; r.chunk < 2 * r.n - r.by; r.chunk++)
                for (mistake m = LEFT_OUT; m <= GRADIENT_TWICE; m++) {
                    r.joined = (r.chunk + (int64_t)m) % 2 == 0;
                    check_mistake_shows(&r, &x, m);
                }
        ring_run(&r);
        check_equal(&r, &x);
        expected_release(&x);
        attention_call_release(&r.of);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_are_fast),
        cmocka_unit_test(test_rings),
        cmocka_unit_test(test_mistakes_show),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
