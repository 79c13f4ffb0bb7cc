/* Attention against the definition in double: all scores, then the softmax. */
#include "support/arrays.h"
#include "support/host_kernels.h"
#include "support/unit_device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct call {
    d9d_attention_dims n;
    void *q, *k, *v, *dout, *o, *grads; /* grads: dq, dk, dv in one block */
    float *lse;
} call;

static void run_forward(void *arg)
{
    call *p = arg;

    assert_int_equal(host_kernels()->attention(NULL, &p->n, p->o, p->lse, p->q, p->k, p->v),
                     D9D_OK);
}

static int64_t q_size(const d9d_attention_dims *n)
{
    return n->b * n->s * n->a * n->d;
}
static int64_t k_size(const d9d_attention_dims *n)
{
    return n->b * n->s * n->kv * n->d;
}
static void *grad(const call *p, int64_t first)
{
    return (char *)p->grads + (size_t)first * d9d_dtype_size(p->n.t);
}

static void run_backward(void *arg)
{
    call *p = arg;
    int64_t nq = q_size(&p->n), nk = k_size(&p->n);

    assert_int_equal(host_kernels()->attention_din(NULL, &p->n, grad(p, 0), grad(p, nq),
                                                   grad(p, nq + nk), p->dout, p->q, p->k, p->v,
                                                   p->o, p->lse),
                     D9D_OK);
}

/* The document of a token, counted over B and S. */
static int64_t document_of(const d9d_attention_dims *n, int64_t token)
{
    int64_t i = 0;

    while (n->bounds != NULL && n->bounds[i + 1] <= token)
        i++;
    return i;
}

static bool visible(const d9d_attention_dims *n, int64_t b, int64_t i, int64_t j)
{
    return (!n->causal || j <= i) && document_of(n, b * n->s + i) == document_of(n, b * n->s + j);
}

/* A feature of row i of head h, of `heads`. */
static int64_t at(const d9d_attention_dims *n, int64_t b, int64_t i, int64_t heads, int64_t h)
{
    return ((b * n->s + i) * heads + h) * n->d;
}

static double dot(const d9d_attention_dims *n, const void *x, int64_t ix, const void *y, int64_t iy)
{
    double sum = 0.0;

    for (int64_t f = 0; f < n->d; f++)
        sum += array_get(n->t, x, ix + f) * array_get(n->t, y, iy + f);
    return sum;
}

/* One query row: output, lse, and its share of the gradients. */
static void naive_row(const call *p, int64_t b, int64_t h, int64_t i, double *w, double *o,
                      double *lse, double *g)
{
    const d9d_attention_dims *n = &p->n;
    int64_t kh = h / (n->a / n->kv), iq = at(n, b, i, n->a, h);
    double most = -INFINITY, sum = 0.0, delta = 0.0, *dq = g, *dk = g + q_size(n);
    double *dv = dk + k_size(n);

    for (int64_t j = 0; j < n->s; j++) {
        w[j] = visible(n, b, i, j)
                   ? (double)n->scale * dot(n, p->q, iq, p->k, at(n, b, j, n->kv, kh))
                   : -INFINITY;
        most = w[j] > most ? w[j] : most;
    }
    for (int64_t j = 0; j < n->s; j++)
        sum += w[j] = exp(w[j] - most);
    *lse = most + log(sum);
    for (int64_t j = 0; j < n->s; j++) {
        w[j] /= sum;
        delta += w[j] * dot(n, p->dout, iq, p->v, at(n, b, j, n->kv, kh));
    }
    for (int64_t j = 0; j < n->s; j++) {
        int64_t ik = at(n, b, j, n->kv, kh);
        double ds = (double)n->scale * w[j] * (dot(n, p->dout, iq, p->v, ik) - delta);

        for (int64_t f = 0; f < n->d; f++) {
            o[iq + f] += w[j] * array_get(n->t, p->v, ik + f);
            dq[iq + f] += ds * array_get(n->t, p->k, ik + f);
            dk[ik + f] += ds * array_get(n->t, p->q, iq + f);
            dv[ik + f] += w[j] * array_get(n->t, p->dout, iq + f);
        }
    }
}

static void naive(const call *p, double *o, double *lse, double *g)
{
    const d9d_attention_dims *n = &p->n;
    double *w = calloc((size_t)n->s + 1, sizeof(*w));

    for (int64_t b = 0; b < n->b; b++)
        for (int64_t h = 0; h < n->a; h++)
            for (int64_t i = 0; i < n->s; i++)
                naive_row(p, b, h, i, w, o, lse + (b * n->a + h) * n->s + i, g);
    free(w);
}

static void check(const d9d_attention_dims *n)
{
    int64_t nq = q_size(n), nk = k_size(n), rows = n->b * n->a * n->s;
    size_t size = d9d_dtype_size(n->t);
    call p = {.n = *n};
    double *o = calloc((size_t)nq + 1, sizeof(*o)), *lse = calloc((size_t)rows + 1, sizeof(*lse));
    double *g = calloc((size_t)(nq + 2 * nk) + 1, sizeof(*g));

    p.q = array_random(n->t, nq, 1, 1.0);
    p.k = array_random(n->t, nk, 2, 1.0);
    p.v = array_random(n->t, nk, 3, 1.0);
    p.dout = array_random(n->t, nq, 4, 1.0);
    p.o = array_poison(n->t, nq);
    p.lse = array_poison(D9D_F32, rows);
    p.grads = array_poison(n->t, nq + 2 * nk);
    naive(&p, o, lse, g);
    array_same_for_threads(run_forward, &p, p.o, (size_t)nq * size, NULL);
    /* Where a GPU multiplies in bfloat16, the probabilities are rounded to it. */
    array_close("o", n->t, p.o, o, nq, n->t == D9D_F32 ? 5e-6 : unit_device_tolerance(5e-6, 1e-2));
    array_close("lse", D9D_F32, p.lse, lse, rows, 5e-6);
    array_same_for_threads(run_backward, &p, p.grads, (size_t)(nq + 2 * nk) * size, NULL);
    /* In bfloat16 the kernel has o rounded. */
    array_close("dq, dk, dv", n->t, p.grads, g, nq + 2 * nk, n->t == D9D_F32 ? 2e-5 : 2e-2);
    void *parts[] = {p.q, p.k, p.v, p.dout, p.o, p.lse, p.grads, o, lse, g};
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        free(parts[i]);
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
};

static void test_shapes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (int how = 0; how < 4; how++) {
            const struct shape *x = &shapes[i];
            d9d_attention_dims n = {.t = array_types[how & 1],
                                    .b = x->b,
                                    .s = x->s,
                                    .a = x->a,
                                    .kv = x->kv,
                                    .d = x->d,
                                    .causal = (how & 2) != 0,
                                    .scale = 1.0f / sqrtf((float)x->d)};

            check(&n);
        }
}

/* Packed documents: of one token, over block edges, empty ones, a row that is one. */
static void test_documents(void **state)
{
    enum { B = 3, S = 311 };
    static const int32_t bounds[] = {0, 0, 1, 150, 151, 281, S, S, 2 * S, 2 * S + 64, 3 * S, 3 * S};

    (void)state;
    for (int how = 0; how < 8; how++) {
        d9d_attention_dims n = {.t = array_types[how & 1],
                                .b = B,
                                .s = S,
                                .a = 2,
                                .kv = 1,
                                .d = how & 4 ? 64 : 12,
                                .causal = (how & 2) != 0,
                                .scale = how & 4 ? 0.125f : 0.3f,
                                .documents = sizeof(bounds) / sizeof(*bounds) - 1,
                                .bounds = bounds};

        check(&n);
    }
}

/* --- a document alone, and packed --------------------------------------------------------- */

enum { ARRAYS = 9, LSE = 8 }; /* q dout o dq | k v dk dv | lse */

/* Arrays of a call, in the order above. */
static void arrays_of(call *p, void *out[ARRAYS])
{
    int64_t nq = q_size(&p->n), nk = k_size(&p->n);
    void *all[ARRAYS] = {p->q,        p->dout,          p->o,  grad(p, 0), p->k, p->v,
                         grad(p, nq), grad(p, nq + nk), p->lse};

    memcpy(out, all, sizeof(all));
}

static call call_make(const d9d_attention_dims *n)
{
    int64_t nq = q_size(n), nk = k_size(n);
    call p = {.n = *n};

    p.q = array_random(n->t, nq, 1, 1.0);
    p.dout = array_random(n->t, nq, 2, 1.0);
    p.k = array_random(n->t, nk, 3, 1.0);
    p.v = array_random(n->t, nk, 4, 1.0);
    p.o = array_poison(n->t, nq);
    p.lse = array_poison(D9D_F32, n->b * n->a * n->s);
    p.grads = array_poison(n->t, nq + 2 * nk);
    return p;
}

static void call_release(call *p)
{
    void *parts[] = {p->q, p->k, p->v, p->dout, p->o, p->lse, p->grads};

    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        free(parts[i]);
}

/* Where a token's part of array i begins. */
static void *token_at(const call *p, void *const *all, int i, int64_t token)
{
    int64_t heads = i < 4 ? p->n.a : p->n.kv;

    return (char *)all[i] + (size_t)(token * heads * p->n.d) * d9d_dtype_size(p->n.t);
}

/* What the document of n tokens at `token` gives by itself must be what it gave in the pack; the
 * arrays that differ are counted.  Where a library is likely, by itself is a pack of one. */
static void same_alone(call *pack, int64_t token, int64_t len, int different[ARRAYS])
{
    const int32_t bounds[] = {0, (int32_t)len};
    d9d_attention_dims n = pack->n;
    void *in_pack[ARRAYS], *alone[ARRAYS];
    call p;

    n.b = 1;
    n.s = len;
    n.documents = 1;
    n.bounds = n.d == 64 ? bounds : NULL;
    p = call_make(&n);
    arrays_of(pack, in_pack);
    arrays_of(&p, alone);
    for (int i = 0; i < LSE; i++) {
        size_t bytes = (size_t)(len * (i < 4 ? n.a : n.kv) * n.d) * d9d_dtype_size(n.t);

        if (i % 4 < 2)
            memcpy(alone[i], token_at(pack, in_pack, i, token), bytes);
    }
    run_forward(&p);
    run_backward(&p);
    for (int i = 0; i < LSE; i++) {
        size_t bytes = (size_t)(len * (i < 4 ? n.a : n.kv) * n.d) * d9d_dtype_size(n.t);

        different[i] += memcmp(alone[i], token_at(pack, in_pack, i, token), bytes) != 0;
    }
    for (int64_t h = 0; h < n.a; h++)
        different[LSE] +=
            memcmp(p.lse + h * len,
                   pack->lse + (token / pack->n.s * n.a + h) * pack->n.s + token % pack->n.s,
                   (size_t)len * sizeof(float)) != 0;
    call_release(&p);
}

/* To the bit, wherever the document lies, and with NaN in its neighbours. */
static void test_alone(void **state)
{
    enum { S = 413 };
    static const int32_t bounds[] = {0, 3, 4, 137, 200, 264, 400, S, S + 129, 2 * S};
    static const char *const names[ARRAYS] = {"q", "dout", "o", "dq", "k", "v", "dk", "dv", "lse"};
    enum { DOCUMENTS = sizeof(bounds) / sizeof(*bounds) - 1, SPOILT = 3 };

    (void)state;
    for (int how = 0; how < 8; how++) {
        d9d_attention_dims n = {.t = array_types[how & 1],
                                .b = 2,
                                .s = S,
                                .a = 4,
                                .kv = 2,
                                .d = how & 4 ? 64 : 20,
                                .causal = (how & 2) != 0,
                                .scale = 0.3f,
                                .documents = DOCUMENTS,
                                .bounds = bounds};
        int different[ARRAYS] = {0};
        call p = call_make(&n);

        for (int64_t i = (int64_t)bounds[SPOILT] * n.kv * n.d; i < bounds[SPOILT + 1] * n.kv * n.d;
             i++) {
            array_set(n.t, p.k, i, NAN);
            array_set(n.t, p.v, i, NAN);
        }
        run_forward(&p);
        run_backward(&p);
        for (int i = 0; i < DOCUMENTS; i++)
            if (i != SPOILT)
                same_alone(&p, bounds[i], bounds[i + 1] - bounds[i], different);
        for (int i = 0; i < ARRAYS; i++)
            if (different[i] > 0)
                fail_msg("%s, %lld features: %d documents have other bits of %s alone",
                         d9d_dtype_word(n.t), (long long)n.d, different[i], names[i]);
        call_release(&p);
    }
}

static void test_bad_documents(void **state)
{
    static const struct {
        int32_t bounds[4];
        const char *says;
    } bad[] = {
        {{0, 3, 2, 6}, "attention: document 1 is tokens [3, 2) behind 3, in rows of 3"},
        {{0, 4, 5, 6}, "attention: document 0 is tokens [0, 4) behind 0, in rows of 3"},
        {{1, 3, 5, 6}, "attention: document 0 is tokens [1, 3) behind 0, in rows of 3"},
        {{0, 3, 4, 5}, "attention: documents end at token 5 of 6"},
    };
    float x[6] = {0}, lse[6];

    (void)state;
    if (host_kernels() != d9d_kernels_cpu())
        return; /* a GPU would have to wait */
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        d9d_attention_dims n = {.t = D9D_F32,
                                .b = 2,
                                .s = 3,
                                .a = 1,
                                .kv = 1,
                                .d = 1,
                                .documents = 3,
                                .bounds = bad[i].bounds};

        assert_int_equal(host_kernels()->attention(NULL, &n, x, lse, x, x, x), D9D_EINVAL);
        assert_string_equal(d9d_err_message(), bad[i].says);
    }
}

/* Large scores overflow no exponential; a NaN reaches its own rows and no others. */
static void test_extremes(void **state)
{
    enum { S = 150, D = 8 };
    d9d_attention_dims n = {
        .t = D9D_F32, .b = 1, .s = S, .a = 1, .kv = 1, .d = D, .causal = true, .scale = 1.0f};
    float *q = array_random(D9D_F32, S * D, 1, 100.0), *k = array_random(D9D_F32, S * D, 2, 100.0);
    float *v = array_random(D9D_F32, S * D, 3, 1.0), o[S * D], lse[S];

    (void)state;
    assert_int_equal(host_kernels()->attention(NULL, &n, o, lse, q, k, v), D9D_OK);
    for (int i = 0; i < S * D; i++)
        assert_true(isfinite(o[i]));
    k[100 * D] = NAN;
    assert_int_equal(host_kernels()->attention(NULL, &n, o, lse, q, k, v), D9D_OK);
    for (int i = 0; i < S; i++)
        assert_int_equal(isnan(o[i * D]) && isnan(lse[i]), i >= 100);
    free(q);
    free(k);
    free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),   cmocka_unit_test(test_documents),
        cmocka_unit_test(test_alone),    cmocka_unit_test(test_bad_documents),
        cmocka_unit_test(test_extremes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
