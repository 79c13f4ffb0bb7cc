/* Attention against the definition in double: all scores, then the softmax. */
#include "support/arrays.h"
#include "support/host_kernels.h"

#include <math.h>
#include <stdlib.h>

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

static bool visible(const d9d_attention_dims *n, int64_t b, int64_t i, int64_t j)
{
    return (!n->causal || j <= i) &&
           (n->segments == NULL || n->segments[b * n->s + i] == n->segments[b * n->s + j]);
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
    array_close("o", n->t, p.o, o, nq, 5e-6);
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
    {0, 4, 2, 1, 8},  {1, 1, 1, 1, 1},   {2, 3, 2, 2, 5},    {1, 17, 4, 2, 16},
    {1, 64, 3, 1, 8}, {2, 65, 2, 1, 33}, {1, 200, 6, 2, 24}, {1, 300, 1, 1, 7},
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

/* Packed documents, ids in any order: a block with nothing to see comes first for some rows. */
static void test_segments(void **state)
{
    enum { B = 2, S = 311 };
    int32_t segments[B * S];

    (void)state;
    for (int i = 0; i < B * S; i++)
        segments[i] = i < 150 ? 7 : i < S ? 3 : (i * 31) % 5;
    for (int how = 0; how < 4; how++) {
        d9d_attention_dims n = {.t = array_types[how & 1],
                                .b = B,
                                .s = S,
                                .a = 2,
                                .kv = 1,
                                .d = 12,
                                .causal = (how & 2) != 0,
                                .scale = 0.3f,
                                .segments = segments};

        check(&n);
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
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_segments),
        cmocka_unit_test(test_extremes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
