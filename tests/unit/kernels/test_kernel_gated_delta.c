/* The gated delta rule and its auxiliary kernels, compared with their definitions in double: the
 * rule as a plain recurrence, token by token. */
#include "support/arrays.h"
#include "support/host_kernels.h"
#include "support/unit_device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DOCUMENTS = 16 };

/* Documents of these lengths; 0 ends the list, -1 is an empty one. */
static int64_t list_of(const int32_t *length, d9d_segment *out)
{
    int32_t at = 0;
    int64_t n = 0;

    for (; length[n] != 0; n++) {
        const int32_t len = length[n] < 0 ? 0 : length[n];

        out[n] = (d9d_segment){at, len, at, len};
        at += len;
    }
    return n;
}

/* Document of a token: [first, end). */
static void document_of(const d9d_varlen *x, int64_t token, int64_t *first, int64_t *end)
{
    *first = token / x->s * x->s;
    *end = *first + x->s;
    for (int64_t i = 0; x->segment != NULL && i < x->segments; i++)
        if (token >= x->segment[i].q && token < x->segment[i].q + x->segment[i].nq) {
            *first = x->segment[i].q;
            *end = *first + x->segment[i].nq;
        }
}

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static double *zeros(int64_t n)
{
    double *x = calloc((size_t)n + 1, sizeof(*x));

    assert_non_null(x);
    return x;
}

/* --- convolution ---------------------------------------------------------------------------- */

typedef struct conv {
    d9d_causal_conv1d_dims n;
    d9d_dtype gt;
    float beta;
    void *x, *w, *dy, *y, *dx, *dw;
} conv;

static void run_conv(void *arg)
{
    conv *p = arg;

    assert_int_equal(host_kernels()->gdn->causal_conv1d(NULL, &p->n, p->y, p->x, p->w), D9D_OK);
}
static d9d_status conv_grad(conv *p, void *dx, void *dw)
{
    return host_kernels()->gdn->causal_conv1d_bwd(NULL, &p->n, dx, p->gt, dw, p->beta, p->dy, p->x,
                                                  p->w);
}
static void run_conv_dx(void *arg)
{
    conv *p = arg;

    assert_int_equal(conv_grad(p, p->dx, NULL), D9D_OK);
}
static void run_conv_wgrad(void *arg)
{
    conv *p = arg;

    assert_int_equal(conv_grad(p, NULL, p->dw), D9D_OK);
}

static void naive_conv(const conv *p, double *y, double *dx, double *dw)
{
    const d9d_causal_conv1d_dims *n = &p->n;

    for (int64_t t = 0; t < n->docs.b * n->docs.s; t++)
        for (int64_t c = 0; c < n->n; c++) {
            int64_t first, end, from;
            double z = 0.0, dz;

            document_of(&n->docs, t, &first, &end);
            for (int64_t j = 0; j < n->w; j++)
                if ((from = t - n->w + 1 + j) >= first)
                    z += array_get(n->t, p->w, c * n->w + j) *
                         array_get(n->t, p->x, from * n->n + c);
            y[t * n->n + c] = z * sigmoid(z);
            dz = array_get(n->t, p->dy, t * n->n + c) * sigmoid(z) * (1 + z * (1 - sigmoid(z)));
            for (int64_t j = 0; j < n->w; j++)
                if ((from = t - n->w + 1 + j) >= first) {
                    dw[c * n->w + j] += dz * array_get(n->t, p->x, from * n->n + c);
                    dx[from * n->n + c] += dz * array_get(n->t, p->w, c * n->w + j);
                }
        }
}

static void check_conv(conv p)
{
    const int64_t all = p.n.docs.b * p.n.docs.s * p.n.n, weights = p.n.n * p.n.w;
    void *before = p.beta == 0.0f ? NULL : array_random(p.gt, weights, 4, 1.0);
    double *y = zeros(all), *dx = zeros(all), *dw = zeros(weights);

    p.x = array_random(p.n.t, all, 1, 1.0);
    p.w = array_random(p.n.t, weights, 2, 1.0);
    p.dy = array_random(p.n.t, all, 3, 1.0);
    p.y = array_poison(p.n.t, all);
    p.dx = array_poison(p.n.t, all);
    p.dw = array_poison(p.gt, weights);
    naive_conv(&p, y, dx, dw);
    for (int64_t i = 0; i < weights && before != NULL; i++)
        dw[i] += array_get(p.gt, before, i);
    array_same_for_threads(run_conv, &p, p.y, (size_t)all * d9d_dtype_size(p.n.t), NULL);
    array_same_for_threads(run_conv_dx, &p, p.dx, (size_t)all * d9d_dtype_size(p.n.t), NULL);
    array_same_for_threads(run_conv_wgrad, &p, p.dw, (size_t)weights * d9d_dtype_size(p.gt),
                           before);
    array_close("y", p.n.t, p.y, y, all, 3e-6);
    array_close("dx", p.n.t, p.dx, dx, all, 1e-5);
    array_close("dw", p.gt, p.dw, dw, weights, 1e-4);
    void *parts[] = {p.x, p.w, p.dy, p.y, p.dx, p.dw, before, y, dx, dw};
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        free(parts[i]);
}

static void test_conv(void **state)
{
    static const int32_t lengths[] = {1, 3, 2, -1, 70, 1, 1, 62, 0};
    static const int64_t shapes[][4] = {{0, 4, 3, 2},   {2, 0, 5, 4},  {1, 1, 1, 1},
                                        {3, 5, 7, 4},   {2, 70, 9, 8}, {1, 140, 40, 4},
                                        {2, 300, 33, 3}};
    d9d_segment list[MOST_DOCUMENTS];
    const int64_t documents = list_of(lengths, list);

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (int flags = 0; flags < 8; flags++) {
            const bool packed = shapes[i][1] == 140 && (flags & 1);
            const d9d_varlen of = {shapes[i][0], shapes[i][1], packed ? documents : 0,
                                   packed ? list : NULL};

            check_conv((conv){.n = {array_types[flags >> 2], of, shapes[i][2], shapes[i][3]},
                              .gt = array_types[flags >> 1 & 1],
                              .beta = flags % 3 == 0 ? 1.0f : 0.0f});
        }
}

/* --- decay ------------------------------------------------------------------------------------ */

typedef struct decay {
    d9d_dtype t, gt;
    int64_t m, n;
    float beta;
    bool of_bias;
    void *x, *rate, *bias, *dx, *dw;
    float *g, *dg;
} decay;

static void run_decay(void *arg)
{
    decay *p = arg;

    assert_int_equal(
        host_kernels()->gdn->gate(NULL, p->t, p->g, p->x, p->rate, p->bias, p->m, p->n), D9D_OK);
}
static void run_decay_dgrad(void *arg)
{
    decay *p = arg;

    assert_int_equal(host_kernels()->gdn->gate_dgrad(NULL, p->t, p->dx, p->dg, p->x, p->rate,
                                                     p->bias, p->m, p->n),
                     D9D_OK);
}
static void run_decay_wgrad(void *arg)
{
    decay *p = arg;

    assert_int_equal(host_kernels()->gdn->gate_wgrad(NULL, p->t, p->gt, p->dw, p->beta, p->of_bias,
                                                     p->dg, p->x, p->rate, p->bias, p->m, p->n),
                     D9D_OK);
}

static void check_decay(decay p)
{
    const int64_t all = p.m * p.n;
    void *before = p.beta == 0.0f ? NULL : array_random(p.gt, p.n, 4, 1.0);
    double *g = zeros(all), *dx = zeros(all), *dw = zeros(p.n);

    p.x = array_random(p.t, all, 1, 8.0);
    p.rate = array_random(p.t, p.n, 2, 1.0);
    p.bias = array_random(p.t, p.n, 3, 1.0);
    p.dg = array_random(D9D_F32, all, 5, 1.0);
    p.g = array_poison(D9D_F32, all);
    p.dx = array_poison(p.t, all);
    p.dw = array_poison(p.gt, p.n);
    for (int64_t i = 0; i < p.n && before != NULL; i++)
        dw[i] = array_get(p.gt, before, i);
    for (int64_t i = 0; i < all; i++) {
        const double x = array_get(p.t, p.x, i) + array_get(p.t, p.bias, i % p.n);
        const double rate = exp(array_get(p.t, p.rate, i % p.n));

        g[i] = -rate * (x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)));
        dx[i] = -rate * sigmoid(x) * (double)p.dg[i];
        dw[i % p.n] += p.of_bias ? dx[i] : g[i] * (double)p.dg[i];
    }
    array_same_for_threads(run_decay, &p, p.g, (size_t)all * sizeof(float), NULL);
    array_same_for_threads(run_decay_dgrad, &p, p.dx, (size_t)all * d9d_dtype_size(p.t), NULL);
    array_same_for_threads(run_decay_wgrad, &p, p.dw, (size_t)p.n * d9d_dtype_size(p.gt), before);
    array_close("g", D9D_F32, p.g, g, all, 1e-6);
    array_close("dx", p.t, p.dx, dx, all, 1e-6);
    array_close("dw", p.gt, p.dw, dw, p.n, 1e-3);
    void *parts[] = {p.x, p.rate, p.bias, p.dg, p.g, p.dx, p.dw, before, g, dx, dw};
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        free(parts[i]);
}

static void test_decay(void **state)
{
    static const int64_t shapes[][2] = {{0, 4}, {1, 1}, {3, 5}, {130, 33}, {20000, 2}, {700, 64}};

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (int flags = 0; flags < 8; flags++)
            check_decay((decay){.t = array_types[flags & 1],
                                .gt = array_types[flags >> 1 & 1],
                                .m = shapes[i][0],
                                .n = shapes[i][1],
                                .of_bias = (flags & 4) != 0,
                                .beta = flags % 3 == 0 ? 1.0f : 0.0f});
}

/* --- gated norm ------------------------------------------------------------------------------- */

typedef struct norm {
    d9d_dtype t, gt;
    int64_t m, n;
    float beta;
    void *x, *z, *w, *dy, *y, *both, *dw; /* both: dx, dz */
    float *inv;
} norm;

static void run_norm(void *arg)
{
    norm *p = arg;

    assert_int_equal(host_kernels()->norm->rms_norm_gated(NULL, p->t, p->y, p->inv, p->x, p->z,
                                                          p->w, p->m, p->n, 1e-3f),
                     D9D_OK);
}
static d9d_status norm_grad(norm *p, void *both, void *dw)
{
    char *dz = both == NULL ? NULL : (char *)both + (size_t)(p->m * p->n) * d9d_dtype_size(p->t);

    return host_kernels()->norm->rms_norm_gated_bwd(NULL, p->t, both, dz, p->gt, dw, p->beta, p->dy,
                                                    p->x, p->z, p->w, p->inv, p->m, p->n);
}
static void run_norm_bwd(void *arg)
{
    norm *p = arg;

    assert_int_equal(norm_grad(p, p->both, NULL), D9D_OK);
}
static void run_norm_wgrad(void *arg)
{
    norm *p = arg;

    assert_int_equal(norm_grad(p, NULL, p->dw), D9D_OK);
}

static void naive_norm(const norm *p, double *y, double *both, double *dw)
{
    double *dz = both + p->m * p->n;

    for (int64_t r = 0; r < p->m; r++) {
        double square = 0.0, dot = 0.0, inv;

        for (int64_t i = 0; i < p->n; i++)
            square += pow(array_get(p->t, p->x, r * p->n + i), 2.0);
        inv = 1.0 / sqrt(square / (double)p->n + 1e-3);
        for (int64_t pass = 0; pass < 2; pass++)
            for (int64_t i = 0; i < p->n; i++) {
                const int64_t at = r * p->n + i;
                const double x = array_get(p->t, p->x, at), z = array_get(p->t, p->z, at);
                const double w = array_get(p->t, p->w, i), d = array_get(p->t, p->dy, at);
                const double s = sigmoid(z), gated = d * z * s;

                if (pass == 0) {
                    y[at] = x * inv * w * z * s;
                    dz[at] = d * x * inv * w * s * (1 + z * (1 - s));
                    dw[i] += gated * x * inv;
                    dot += gated * w * x * inv;
                } else {
                    both[at] = inv * (gated * w - x * inv * dot / (double)p->n);
                }
            }
    }
}

static void check_norm(norm p)
{
    const int64_t all = p.m * p.n;
    const size_t size = d9d_dtype_size(p.t);
    void *before = p.beta == 0.0f ? NULL : array_random(p.gt, p.n, 4, 1.0);
    double *y = zeros(all), *both = zeros(2 * all), *dw = zeros(p.n);

    p.x = array_random(p.t, all, 1, 1.0);
    p.z = array_random(p.t, all, 5, 1.0);
    p.w = array_random(p.t, p.n, 2, 1.0);
    p.dy = array_random(p.t, all, 3, 1.0);
    p.y = array_poison(p.t, all);
    p.both = array_poison(p.t, 2 * all);
    p.dw = array_poison(p.gt, p.n);
    p.inv = array_poison(D9D_F32, p.m);
    naive_norm(&p, y, both, dw);
    for (int64_t i = 0; i < p.n && before != NULL; i++)
        dw[i] += array_get(p.gt, before, i);
    array_same_for_threads(run_norm, &p, p.y, (size_t)all * size, NULL);
    array_same_for_threads(run_norm_bwd, &p, p.both, 2 * (size_t)all * size, NULL);
    array_same_for_threads(run_norm_wgrad, &p, p.dw, (size_t)p.n * d9d_dtype_size(p.gt), before);
    array_close("y", p.t, p.y, y, all, 3e-6);
    array_close("dx, dz", p.t, p.both, both, 2 * all, 2e-5);
    array_close("dw", p.gt, p.dw, dw, p.n, 1e-4);
    void *parts[] = {p.x, p.z, p.w, p.dy, p.y, p.both, p.dw, p.inv, before, y, both, dw};
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        free(parts[i]);
}

static void test_gated_norm(void **state)
{
    static const int64_t shapes[][2] = {{0, 5},    {1, 1},   {3, 17},   {129, 33},
                                        {70, 128}, {9, 300}, {4000, 8}, {3, 1200}};

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (int flags = 0; flags < 8; flags++)
            check_norm((norm){.t = array_types[flags & 1],
                              .gt = array_types[flags >> 1 & 1],
                              .m = shapes[i][0],
                              .n = shapes[i][1],
                              .beta = (flags & 4) != 0 ? 1.0f : 0.0f});
}

/* --- the delta rule --------------------------------------------------------------------------- */

typedef struct delta {
    d9d_gated_delta_dims n;
    double steep;                           /* decays, and lengths of q and k */
    void *q, *k, *v, *b, *dout, *o, *grads; /* dq, dk, dv, db in one block */
    float *g, *dg, *states;
} delta;

static int64_t tokens(const d9d_gated_delta_dims *n)
{
    return n->docs.b * n->docs.s;
}
static int64_t q_size(const d9d_gated_delta_dims *n)
{
    return tokens(n) * n->k * n->d;
}
static int64_t v_size(const d9d_gated_delta_dims *n)
{
    return tokens(n) * n->a * n->f;
}
static int64_t all_size(const d9d_gated_delta_dims *n)
{
    return 2 * q_size(n) + v_size(n) + tokens(n) * n->a;
}

static void run_delta(void *arg)
{
    delta *p = arg;

    assert_int_equal(host_kernels()->gdn->gated_delta(NULL, &p->n, p->o, p->states, p->q, p->k,
                                                      p->v, p->g, p->b),
                     D9D_OK);
}
static void run_delta_bwd(void *arg)
{
    delta *p = arg;
    const size_t size = d9d_dtype_size(p->n.t), nq = (size_t)q_size(&p->n) * size;
    char *dq = p->grads, *dk = dq + nq, *dv = dk + nq, *db = dv + (size_t)v_size(&p->n) * size;

    assert_int_equal(host_kernels()->gdn->gated_delta_bwd(NULL, &p->n, dq, dk, dv, p->dg, db,
                                                          p->dout, p->q, p->k, p->v, p->g, p->b,
                                                          p->states),
                     D9D_OK);
}

/* Numbers of one head of one token. */
typedef struct token_inputs {
    double *q, *k, *v, g, b;
} token_inputs;

/* One document and head by the recurrence: every state is kept for the way back. */
typedef struct naive {
    const delta *p;
    int64_t first, n, h;
    double *q, *k, *v, *x, *dx, *dq, *dk; /* [n, D], [n, F]; x [n + 1, D, F]; dx [D, F] */
} naive;

static double unit_row(const delta *p, const void *x, int64_t at, double *y)
{
    double square = 1e-6, inv;

    for (int64_t i = 0; i < p->n.d; i++)
        square += pow(array_get(p->n.t, x, at + i), 2);
    inv = 1 / sqrt(square);
    for (int64_t i = 0; i < p->n.d; i++)
        y[i] = array_get(p->n.t, x, at + i) * inv;
    return inv;
}

static int64_t key_at(const naive *w, int64_t i)
{
    const d9d_gated_delta_dims *n = &w->p->n;

    return ((w->first + i) * n->k + w->h / (n->a / n->k)) * n->d;
}
static int64_t value_at(const naive *w, int64_t i)
{
    return (w->first + i) * w->p->n.a + w->h;
}

/* What token i writes, of feature f of its value. */
static double writes(const naive *w, int64_t i, int64_t f, double *miss)
{
    const d9d_gated_delta_dims *n = &w->p->n;
    const double fade = exp((double)w->p->g[value_at(w, i)]);
    const double *x = w->x + i * n->d * n->f;
    double seen = 0.0;

    for (int64_t d = 0; d < n->d; d++)
        seen += fade * x[d * n->f + f] * w->k[i * n->d + d];
    *miss = array_get(n->t, w->p->v, value_at(w, i) * n->f + f) - seen;
    return sigmoid(array_get(n->t, w->p->b, value_at(w, i))) * *miss;
}

static void forward(naive *w, double *o)
{
    const d9d_gated_delta_dims *n = &w->p->n;
    double miss;

    for (int64_t i = 0; i < w->n; i++) {
        const double *x = w->x + i * n->d * n->f;
        double *next = w->x + (i + 1) * n->d * n->f;

        (void)unit_row(w->p, w->p->q, key_at(w, i), w->q + i * n->d);
        (void)unit_row(w->p, w->p->k, key_at(w, i), w->k + i * n->d);
        for (int64_t f = 0; f < n->f; f++) {
            const double u = writes(w, i, f, &miss);
            double sum = 0.0;

            for (int64_t d = 0; d < n->d; d++) {
                next[d * n->f + f] =
                    exp((double)w->p->g[value_at(w, i)]) * x[d * n->f + f] + w->k[i * n->d + d] * u;
                sum += (double)n->scale * w->q[i * n->d + d] * next[d * n->f + f];
            }
            o[value_at(w, i) * n->f + f] = sum;
        }
    }
}

/* Through the length of a row. */
static void unit_back(const delta *p, const void *x, int64_t at, const double *unit, double *du,
                      double scale, double *dx)
{
    double dot = 0.0, row[512];
    const double inv = unit_row(p, x, at, row);

    for (int64_t d = 0; d < p->n.d; d++)
        dot += unit[d] * du[d];
    for (int64_t d = 0; d < p->n.d; d++)
        dx[at + d] += scale * inv * (du[d] - unit[d] * dot);
}

/* Token i: gradients of what it has; w->dx becomes that of the state before it. */
static void token_back(naive *w, int64_t i, double *dq, double *dk, double *dv, double *dg,
                       double *db)
{
    const d9d_gated_delta_dims *n = &w->p->n;
    const double fade = exp((double)w->p->g[value_at(w, i)]);
    const double beta = sigmoid(array_get(n->t, w->p->b, value_at(w, i)));
    const double *x = w->x + i * n->d * n->f, *next = x + n->d * n->f, *k = w->k + i * n->d;
    double dbeta = 0.0, dfade = 0.0, miss;

    memset(w->dq, 0, (size_t)n->d * sizeof(double));
    memset(w->dk, 0, (size_t)n->d * sizeof(double));
    for (int64_t f = 0; f < n->f; f++) {
        const double dout = array_get(n->t, w->p->dout, value_at(w, i) * n->f + f);
        const double u = writes(w, i, f, &miss);
        double du = 0.0;

        for (int64_t d = 0; d < n->d; d++) {
            w->dq[d] += dout * next[d * n->f + f];
            w->dx[d * n->f + f] += (double)n->scale * dout * w->q[i * n->d + d];
            du += w->dx[d * n->f + f] * k[d];
            w->dk[d] += w->dx[d * n->f + f] * u;
        }
        dbeta += du * miss;
        dv[value_at(w, i) * n->f + f] = du * beta;
        for (int64_t d = 0; d < n->d; d++) {
            w->dk[d] -= du * beta * fade * x[d * n->f + f];
            w->dx[d * n->f + f] -= du * beta * k[d];
            dfade += w->dx[d * n->f + f] * x[d * n->f + f];
            w->dx[d * n->f + f] *= fade;
        }
    }
    db[value_at(w, i)] = dbeta * beta * (1 - beta);
    dg[value_at(w, i)] = dfade * fade;
    unit_back(w->p, w->p->q, key_at(w, i), w->q + i * n->d, w->dq, (double)n->scale, dq);
    unit_back(w->p, w->p->k, key_at(w, i), k, w->dk, 1.0, dk);
}

static void naive_delta(const delta *p, double *o, double *grads, double *dg)
{
    const d9d_gated_delta_dims *n = &p->n;
    double *dk = grads + q_size(n), *dv = dk + q_size(n), *db = dv + v_size(n);

    for (int64_t t = 0, end = 0; t < tokens(n); t = end) {
        naive w = {.p = p};

        document_of(&n->docs, t, &w.first, &end);
        w.n = end - w.first;
        w.q = zeros(w.n * n->d);
        w.k = zeros(w.n * n->d);
        w.x = zeros((w.n + 1) * n->d * n->f);
        w.dx = zeros(n->d * n->f);
        w.dq = zeros(n->d);
        w.dk = zeros(n->d);
        for (w.h = 0; w.h < n->a; w.h++) {
            memset(w.x, 0, (size_t)(n->d * n->f) * sizeof(double));
            memset(w.dx, 0, (size_t)(n->d * n->f) * sizeof(double));
            forward(&w, o);
            for (int64_t i = w.n - 1; i >= 0; i--)
                token_back(&w, i, grads, dk, dv, dg, db);
        }
        double *parts[] = {w.q, w.k, w.x, w.dx, w.dq, w.dk};
        for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
            free(parts[i]);
    }
}

static delta delta_make(const d9d_gated_delta_dims *n, double steep)
{
    delta p = {.n = *n, .steep = steep};

    p.q = array_random(n->t, q_size(n), 1, 1.0);
    p.k = array_random(n->t, q_size(n), 2, 1.0);
    p.v = array_random(n->t, v_size(n), 3, 1.0);
    p.b = array_random(n->t, tokens(n) * n->a, 4, 1.0);
    p.dout = array_random(n->t, v_size(n), 5, 1.0);
    p.g = array_random(D9D_F32, tokens(n) * n->a, 6, steep);
    for (int64_t i = 0; i < tokens(n) * n->a; i++)
        p.g[i] = -fabsf(p.g[i]);
    p.o = array_poison(n->t, v_size(n));
    p.grads = array_poison(n->t, all_size(n));
    p.dg = array_poison(D9D_F32, tokens(n) * n->a);
    p.states = array_poison(D9D_F32, d9d_gated_delta_states(&n->docs) * n->a * n->d * n->f);
    return p;
}

static void delta_release(delta *p)
{
    void *parts[] = {p->q, p->k, p->v, p->b, p->dout, p->g, p->o, p->grads, p->dg, p->states};

    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        free(parts[i]);
}

static void check_delta(const d9d_gated_delta_dims *n, double steep)
{
    delta p = delta_make(n, steep);
    const size_t size = d9d_dtype_size(n->t);
    double *o = zeros(v_size(n)), *grads = zeros(all_size(n)), *dg = zeros(tokens(n) * n->a);

    naive_delta(&p, o, grads, dg);
    array_same_for_threads(run_delta, &p, p.o, (size_t)v_size(n) * size, NULL);
    array_same_for_threads(run_delta_bwd, &p, p.grads, (size_t)all_size(n) * size, NULL);
    /* Where a GPU multiplies on tensor cores, what is between is rounded to ten bits. */
    array_close("o", n->t, p.o, o, v_size(n),
                n->t == D9D_F32 ? 5e-6 : unit_device_tolerance(5e-6, 1e-2));
    array_close("dq, dk, dv, db", n->t, p.grads, grads, all_size(n),
                n->t == D9D_F32 ? 5e-5 : unit_device_tolerance(5e-5, 3e-2));
    array_close("dg", D9D_F32, p.dg, dg, tokens(n) * n->a,
                n->t == D9D_F32 ? 5e-5 : unit_device_tolerance(5e-5, 3e-2));
    delta_release(&p);
    free(o);
    free(grads);
    free(dg);
}

static void test_delta(void **state)
{
    /* b, s, k, a, d, f */
    static const int64_t shapes[][6] = {{0, 4, 1, 1, 8, 8},     {1, 1, 1, 1, 1, 1},
                                        {2, 3, 2, 2, 5, 7},     {1, 64, 1, 3, 8, 16},
                                        {2, 65, 2, 4, 16, 9},   {1, 200, 1, 2, 33, 20},
                                        {1, 130, 2, 2, 70, 65}, {1, 150, 1, 2, 128, 128},
                                        {2, 129, 2, 6, 72, 40}, {1, 130, 1, 3, 32, 128}};

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (int flags = 0; flags < 4; flags++) {
            const int64_t *x = shapes[i];
            const d9d_gated_delta_dims n = {.t = array_types[flags & 1],
                                            .docs = {x[0], x[1], 0, NULL},
                                            .k = x[2],
                                            .a = x[3],
                                            .d = x[4],
                                            .f = x[5],
                                            .scale = 1.0f / sqrtf((float)x[4])};

            check_delta(&n, flags & 2 ? 30.0 : 0.1);
        }
}

static const int32_t packed[] = {1, 63, 64, -1, 65, 130, 1, 1, 7, 128, 4, 0};
enum { PACKED = 464 };

static void test_documents(void **state)
{
    d9d_segment list[MOST_DOCUMENTS];
    const int64_t documents = list_of(packed, list);

    (void)state;
    for (int flags = 0; flags < 4; flags++)
        check_delta(&(d9d_gated_delta_dims){.t = array_types[flags & 1],
                                            .docs = {1, PACKED, documents, list},
                                            .k = 2,
                                            .a = 4,
                                            .d = flags & 2 ? 40 : 12,
                                            .f = flags & 2 ? 72 : 10,
                                            .scale = 0.3f},
                    0.2);
}

/* A document's rows of o are what it gives alone, to the bit. */
static void test_alone(void **state)
{
    d9d_segment list[MOST_DOCUMENTS];
    const int64_t documents = list_of(packed, list);
    d9d_gated_delta_dims n = {.docs = {1, PACKED, documents, list}, .k = 1, .a = 2, .scale = 1};

    (void)state;
    for (int flags = 0; flags < 4; flags++) {
        n.t = array_types[flags & 1];
        n.d = flags & 2 ? 64 : 24;
        n.f = flags & 2 ? 72 : 16;
        delta all = delta_make(&n, 0.2);
        const size_t token = (size_t)(n.a * n.f) * d9d_dtype_size(n.t);
        const size_t keys = (size_t)(n.k * n.d) * d9d_dtype_size(n.t);

        run_delta(&all);
        for (int64_t i = 0; i < documents; i++) {
            const d9d_segment x = list[i];
            d9d_gated_delta_dims m = n;
            delta one;

            m.docs = (d9d_varlen){1, x.nq, 0, NULL};
            one = delta_make(&m, 0.2);
            memcpy(one.q, (char *)all.q + (size_t)x.q * keys, (size_t)x.nq * keys);
            memcpy(one.k, (char *)all.k + (size_t)x.q * keys, (size_t)x.nq * keys);
            memcpy(one.v, (char *)all.v + (size_t)x.q * token, (size_t)x.nq * token);
            memcpy(one.b, (char *)all.b + (size_t)(x.q * n.a) * d9d_dtype_size(n.t),
                   (size_t)(x.nq * n.a) * d9d_dtype_size(n.t));
            memcpy(one.g, all.g + x.q * n.a, (size_t)(x.nq * n.a) * sizeof(float));
            run_delta(&one);
            assert_memory_equal(one.o, (char *)all.o + (size_t)x.q * token, (size_t)x.nq * token);
            delta_release(&one);
        }
        delta_release(&all);
    }
}

/* Lists that are none. */
static void test_refused(void **state)
{
    static const d9d_segment bad[][2] = {{{0, 3, 0, 3}, {4, 2, 4, 2}},
                                         {{0, 7, 0, 7}, {7, 5, 7, 5}},
                                         {{0, 6, 0, 6}, {6, 5, 6, 5}},
                                         {{0, 6, 0, 6}, {6, -1, 6, -1}}};
    delta p;

    (void)state;
    if (!unit_device_is_cpu())
        skip();
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        p = delta_make(
            &(d9d_gated_delta_dims){
                .t = D9D_F32, .docs = {2, 6, 2, bad[i]}, .k = 1, .a = 1, .d = 2, .f = 2},
            1);
        assert_int_equal(
            host_kernels()->gdn->gated_delta(NULL, &p.n, p.o, p.states, p.q, p.k, p.v, p.g, p.b),
            D9D_EINVAL);
        delta_release(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conv),       cmocka_unit_test(test_decay),
        cmocka_unit_test(test_gated_norm), cmocka_unit_test(test_delta),
        cmocka_unit_test(test_documents),  cmocka_unit_test(test_alone),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests_name("kernel_delta", tests, NULL, NULL);
}
