/* attention_call.c - see attention_call.h. */
#include "attention_call.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention_parts.h"
#include "host_kernels.h"
#include "unit.h"
#include "unit_device.h"

void attention_call_fwd(void *arg)
{
    attention_call *p = arg;

    assert_int_equal(host_kernels()->attention->fwd(NULL, &p->n, p->o, p->lse, p->q, p->k, p->v),
                     D9D_OK);
    if (p->sink != NULL)
        assert_int_equal(host_kernels()->attention->sink(NULL, &p->n, p->o, p->lse, p->sink),
                         D9D_OK);
}

static void run_sink_wgrad(void *arg)
{
    attention_call *p = arg;

    assert_int_equal(host_kernels()->attention->sink_wgrad(NULL, &p->n, p->n.t, p->dsink, 1.0f,
                                                           p->dout, p->o, p->lse, p->sink),
                     D9D_OK);
}

int64_t attention_q_size(const d9d_attention_dims *n)
{
    return n->b * n->s * n->a * n->d;
}
int64_t attention_k_size(const d9d_attention_dims *n)
{
    return n->b * n->z * n->kv * n->d;
}
int64_t attention_v_size(const d9d_attention_dims *n)
{
    return n->b * n->z * n->kv * d9d_attention_dims_resolve(n).dv;
}
int64_t attention_o_size(const d9d_attention_dims *n)
{
    return n->b * n->s * n->a * d9d_attention_dims_resolve(n).dv;
}
int64_t attention_grads_size(const d9d_attention_dims *n)
{
    return attention_q_size(n) + attention_k_size(n) + attention_v_size(n);
}
void *attention_call_grad(const attention_call *p, int64_t first)
{
    return (char *)p->grads + (size_t)first * d9d_dtype_size(p->n.t);
}

void attention_call_bwd(void *arg)
{
    attention_call *p = arg;
    int64_t nq = attention_q_size(&p->n), nk = attention_k_size(&p->n);

    assert_int_equal(host_kernels()->attention->bwd(
                         NULL, &p->n, attention_call_grad(p, 0), attention_call_grad(p, nq),
                         attention_call_grad(p, nq + nk), p->dout, p->q, p->k, p->v, p->o, p->lse),
                     D9D_OK);
}

attention_call attention_call_create(const d9d_attention_dims *n)
{
    attention_call p = {.n = *n};

    p.q = array_random(n->t, attention_q_size(n), 1, 1.0);
    p.k = array_random(n->t, attention_k_size(n), 2, 1.0);
    p.v = array_random(n->t, attention_v_size(n), 3, 1.0);
    p.dout = array_random(n->t, attention_o_size(n), 4, 1.0);
    p.o = array_poison(n->t, attention_o_size(n));
    p.lse = array_poison(D9D_F32, n->b * n->a * n->s);
    p.grads = array_poison(n->t, attention_grads_size(n));
    return p;
}

void attention_call_release(attention_call *p)
{
    void *parts[] = {p->q, p->k, p->v, p->dout, p->o, p->lse, p->grads};

    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        free(parts[i]);
}

int64_t attention_prefix_of(const d9d_attention_dims *n, int64_t i)
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
    const int64_t chunk = i % n->s / size;
    const d9d_segment *x = n->segment;

    if (x == NULL && n->chunks > 0)
        return (d9d_segment){(int32_t)(row * n->s + chunk * size), (int32_t)size,
                             (int32_t)(row * n->z), (int32_t)n->chunk_end[chunk]};
    if (x == NULL)
        return (d9d_segment){(int32_t)(row * n->s), (int32_t)n->s, (int32_t)(row * n->z),
                             (int32_t)n->z};
    while (x->q + x->nq <= i)
        x++;
    return *x;
}

/* Whether query i of a row, of segment x and with that prefix, may see key j of it. */
static bool visible(const d9d_attention_dims *n, d9d_segment x, int64_t prefix, int64_t b,
                    int64_t i, int64_t j)
{
    const int64_t q = b * n->s + i - x.q, k = b * n->z + j - x.k;
    const int64_t back = x.nk - x.nq + q - k; /* from the query's own place */

    return k >= 0 && (k < x.nk || k < prefix) && (!n->causal || back >= 0 || k < prefix) &&
           (n->window == 0 || llabs(back) < n->window);
}

static double dot(int64_t d, const double *x, const double *y)
{
    double sum = 0.0;

    for (int64_t f = 0; f < d; f++)
        sum += x[f] * y[f];
    return sum;
}

/* The score of scale q.k = x, and its derivative. */
static double capped(const d9d_attention_dims *n, double x, double *derivative)
{
    const double cap = (double)n->softcap, t = cap > 0.0 ? tanh(x / cap) : 0.0;

    *derivative = 1.0 - t * t;
    return cap > 0.0 ? cap * t : x;
}

/* What dropout multiplies the probability of a key of query i, counted over B and S, by; the
 * query's segment is x. */
static double kept(const d9d_attention_dims *n, d9d_segment x, int64_t h, int64_t i, int64_t key)
{
    const d9d_attention_dropout *d = &n->dropout;
    const d9d_rng rng = {d->rng.seed, d->rng.stream + (uint64_t)h};

    if (d->p == 0.0f)
        return 1.0;
    return d9d_rng_uniform(rng, (uint64_t)(d->token[i] * d->width + key - x.k)) < d->p
               ? 0.0
               : 1.0 / (1.0 - (double)d->p);
}

/* The inputs of a call as doubles, and scratch of a row. */
typedef struct naive_call {
    const attention_call *p;
    double *q, *k, *v, *dout;
} naive_call;
typedef struct naive_scratch {
    double *w, *derivative, *dw; /* of each key: its weight, that of its score, dout v */
} naive_scratch;

/* One query row: output, lse, and its share of the gradients: dq, dk, dv, dsink. */
static void naive_row(const naive_call *c, int64_t b, int64_t h, int64_t i, naive_scratch at,
                      double *o, double *lse, double *g)
{
    const d9d_attention_dims *n = &c->p->n;
    const int64_t d = n->d, values = d9d_attention_dims_resolve(n).dv; /* features */
    const int64_t query = b * n->s + i, iq = query * n->a + h;
    const int64_t k0 = b * n->z * n->kv + h / (n->a / n->kv);
    const d9d_segment segment = segment_of(n, query);
    const int64_t prefix = attention_prefix_of(n, query);
    const double sink = c->p->sink != NULL ? array_get(n->t, c->p->sink, h) : -INFINITY;
    const double *q = c->q + iq * d, *dout = c->dout + iq * values;
    double *dq = g + iq * d, *dk = g + attention_q_size(n);
    double *dv = dk + attention_k_size(n), *dsink = dv + attention_v_size(n);
    double most = -INFINITY, sum = 0.0, delta = 0.0, *w = at.w;

    o += iq * values;
    for (int64_t j = 0; j < n->z; j++) {
        w[j] = -INFINITY;
        if (visible(n, segment, prefix, b, i, j))
            w[j] = capped(n, (double)n->scale * dot(d, q, c->k + (k0 + j * n->kv) * d),
                          &at.derivative[j]);
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
        at.dw[j] = kept(n, segment, h, query, b * n->z + j) *
                   dot(values, dout, c->v + (k0 + j * n->kv) * values);
        delta += w[j] * at.dw[j];
    }
    dsink[h] -= exp(sink - *lse) * delta;
    for (int64_t j = 0; j < n->z; j++) {
        const int64_t ik = k0 + j * n->kv;
        double ds;

        if (w[j] == 0.0)
            continue;
        ds = (double)n->scale * w[j] * (at.dw[j] - delta) * at.derivative[j];
        w[j] *= kept(n, segment, h, query, b * n->z + j);
        for (int64_t f = 0; f < d; f++) {
            dq[f] += ds * c->k[ik * d + f];
            dk[ik * d + f] += ds * q[f];
        }
        for (int64_t f = 0; f < values; f++) {
            o[f] += w[j] * c->v[ik * values + f];
            dv[ik * values + f] += w[j] * dout[f];
        }
    }
}

void attention_naive(const attention_call *p, double *o, double *lse, double *g)
{
    const d9d_attention_dims *n = &p->n;
    const int64_t group = n->kv > 0 ? n->a / n->kv : 0;
    const naive_call c = {p, array_doubles(n->t, p->q, attention_q_size(n)),
                          array_doubles(n->t, p->k, attention_k_size(n)),
                          array_doubles(n->t, p->v, attention_v_size(n)),
                          array_doubles(n->t, p->dout, attention_o_size(n))};

    /* Key heads side by side: no other has to do with their gradients. */
#pragma omp parallel for
    for (int64_t kh = 0; kh < n->kv; kh++) {
        double *w = calloc(3 * (size_t)n->z + 1, sizeof(*w));
        const naive_scratch at = {w, w + n->z, w + 2 * n->z};

        for (int64_t b = 0; b < n->b; b++)
            for (int64_t h = kh * group; h < (kh + 1) * group; h++)
                for (int64_t i = 0; i < n->s; i++)
                    naive_row(&c, b, h, i, at, o, lse + (b * n->a + h) * n->s + i, g);
        free(w);
    }
    free(c.q);
    free(c.k);
    free(c.v);
    free(c.dout);
}

static void check_sink(attention_call *p, const double *want)
{
    void *before = array_random(p->n.t, p->n.a, 6, 1.0);
    double *all = calloc((size_t)p->n.a + 1, sizeof(*all));

    p->dsink = array_poison(p->n.t, p->n.a);
    for (int64_t h = 0; h < p->n.a; h++)
        all[h] = want[h] + array_get(p->n.t, before, h);
    array_same_for_threads(run_sink_wgrad, p, p->dsink, (size_t)p->n.a * d9d_dtype_size(p->n.t),
                           before);
    array_close("dsink", p->n.t, p->dsink, all, p->n.a, p->n.t == D9D_F32 ? 2e-5 : 2e-2);
    free(p->dsink);
    free(before);
    free(all);
}

/* The same forward as that of a KV cache, which may be another algorithm. */
static void check_decode(attention_call *p, const double *o, const double *lse, double tolerance)
{
    memset(p->o, 0xff, (size_t)attention_o_size(&p->n) * d9d_dtype_size(p->n.t));
    p->n.decode = true;
    attention_call_fwd(p);
    p->n.decode = false;
    array_close("o of a cache", p->n.t, p->o, o, attention_o_size(&p->n), tolerance);
    array_close("lse of a cache", D9D_F32, p->lse, lse, p->n.b * p->n.a * p->n.s, 5e-6);
}

void attention_check_with(const d9d_attention_dims *n, bool sinks)
{
    const int64_t no = attention_o_size(n), ng = attention_grads_size(n), rows = n->b * n->a * n->s;
    size_t size = d9d_dtype_size(n->t);
    const double tolerance =
        n->t == D9D_F32 ? 5e-6 : unit_device_tolerance(sinks ? 1e-2 : 5e-6, 1e-2);
    attention_call p;
    double *o, *lse, *g;

    if (unit_is_wrapped() && rows * n->z * n->d > 1 << 19)
        return;
    p = attention_call_create(n);
    o = calloc((size_t)no + 1, sizeof(*o));
    lse = calloc((size_t)rows + 1, sizeof(*lse));
    g = calloc((size_t)(ng + n->a) + 1, sizeof(*g));
    p.sink = sinks ? array_random(n->t, n->a, 5, 1.0) : NULL;
    attention_naive(&p, o, lse, g);
    array_same_for_threads(attention_call_fwd, &p, p.o, (size_t)no * size, NULL);
    /* Where a GPU multiplies in bfloat16, the probabilities are rounded to it; and with a sink what
     * is scaled was. */
    array_close("o", n->t, p.o, o, no, tolerance);
    array_close("lse", D9D_F32, p.lse, lse, rows, 5e-6);
    if (n->softcap > 0.0f && n->dropout.p == 0.0f)
        check_decode(&p, o, lse, tolerance);
    array_same_for_threads(attention_call_bwd, &p, p.grads, (size_t)ng * size, NULL);
    /* In bfloat16 the kernel has o rounded, on a GPU with a sink twice. */
    array_close("dq, dk, dv", n->t, p.grads, g, ng,
                n->t == D9D_F32 ? 2e-5 : unit_device_tolerance(2e-2, sinks ? 3e-2 : 2e-2));
    if (sinks)
        check_sink(&p, g + ng);
    attention_parts_check(&p, 1 + n->s % 4, o, lse, g);
    free(p.sink);
    attention_call_release(&p);
    free(o);
    free(lse);
    free(g);
}

void attention_check(const d9d_attention_dims *n)
{
    static const int64_t windows[] = {5, 64, 1, 130, 33};
    d9d_attention_dims w = *n;

    attention_check_with(n, false);
    w.window = windows[(n->s + n->d + n->t) % 5];
    if (n->causal || n->t == D9D_F32)
        attention_check_with(&w, true);
}

void attention_segments(const int32_t *bounds, int documents, d9d_segment *out)
{
    for (int i = 0; i < documents; i++) {
        const int32_t size = bounds[i + 1] - bounds[i];

        out[i] = (d9d_segment){bounds[i], size, bounds[i], size};
    }
}
