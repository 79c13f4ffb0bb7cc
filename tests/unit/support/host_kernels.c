/* host_kernels.c - see host_kernels.h. */
#include "host_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit_device.h"

enum { MOST = 1024, MOST_SPLITS = 8, MOST_ARRAYS = 160 };

/* The arrays of one call, and where they are on the device. */
typedef struct call {
    d9d_device *dev;
    const d9d_kernels *k;
    d9d_stream s;
    size_t n;
    struct {
        void *host, *dev;
        uint64_t bytes;
        bool out;
    } array[MOST];
} call;

static void check(d9d_status st)
{
    if (st == D9D_OK)
        return;
    (void)fprintf(stderr, "%s: %s\n", d9d_status_name(st), d9d_err_message());
    abort();
}

/* What the device has said, line after line. */
static char said[1 << 16];

static void hear(void *arg, d9d_log_level level, const char *text)
{
    const size_t at = strlen(said);

    (void)arg, (void)level;
    (void)snprintf(said + at, sizeof(said) - at, "%s\n", text);
}

/* The device stays open for all calls of a program. */
static call begin(void)
{
    static const d9d_log log = {.line = hear, .level = D9D_LOG_INFO};
    static d9d_device *dev;

    if (dev == NULL) {
        check(d9d_device_open(unit_device_name(), &dev));
        dev->log = &log;
    }
    return (call){.dev = dev, .k = dev->kernels, .s = dev->stream};
}

/* The device's copy; an array that is given twice has one. */
static void *copy(call *c, const void *host, d9d_dtype t, int64_t n, bool out)
{
    const uint64_t bytes = (uint64_t)n * d9d_dtype_size(t);
    size_t i = 0;

    if (host == NULL)
        return NULL;
    while (i < c->n && (c->array[i].host != host || c->array[i].bytes != bytes))
        i++;
    if (i == c->n) {
        if (i == MOST)
            abort();
        c->n++;
        memcpy(&c->array[i].host, &host, sizeof(host));
        c->array[i].bytes = bytes;
        c->array[i].out = false;
        check(d9d_device_alloc(c->dev, bytes, &c->array[i].dev));
        check(d9d_device_upload(c->dev, c->array[i].dev, host, bytes));
    }
    c->array[i].out |= out;
    return c->array[i].dev;
}

static const void *in(call *c, d9d_dtype t, const void *host, int64_t n)
{
    return copy(c, host, t, n, false);
}
static void *out(call *c, d9d_dtype t, void *host, int64_t n)
{
    return copy(c, host, t, n, true);
}
static const int32_t *ints(call *c, const int32_t *host, int64_t n)
{
    return copy(c, host, D9D_I32, n, false);
}
static const float *floats(call *c, const float *host, int64_t n)
{
    return copy(c, host, D9D_F32, n, false);
}

/* Outputs to the host; a call that was refused has written none. */
static d9d_status end(call *c, d9d_status st)
{
    for (size_t i = 0; i < c->n; i++) {
        if (st == D9D_OK && c->array[i].out)
            check(
                d9d_device_download(c->dev, c->array[i].host, c->array[i].dev, c->array[i].bytes));
        d9d_device_free(c->dev, c->array[i].dev, c->array[i].bytes);
    }
    return st;
}

static int64_t numel(int ndim, const int64_t *box)
{
    int64_t n = 1;

    for (int d = 0; d < ndim; d++)
        n *= box[d];
    return n;
}

/* --- elementwise ---------------------------------------------------------------------- */

static d9d_status on_fill(d9d_stream s, d9d_dtype t, void *y, int64_t n, float v)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->elementwise->fill(c.s, t, out(&c, t, y, n), n, v));
}

static d9d_status on_cast(d9d_stream s, d9d_dtype yt, void *y, d9d_dtype xt, const void *x,
                          int64_t n)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->elementwise->cast(c.s, yt, out(&c, yt, y, n), xt, in(&c, xt, x, n), n));
}

static d9d_status on_softcap(d9d_stream s, d9d_dtype t, void *y, const void *x, float cap,
                             int64_t n)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->elementwise->softcap(c.s, t, out(&c, t, y, n), in(&c, t, x, n), cap, n));
}

static d9d_status on_add(d9d_stream s, d9d_dtype t, void *y, const void *const *x, int of,
                         int64_t n)
{
    call c = begin();
    const void *there[D9D_ADD_MAX_ARRAYS] = {0};

    (void)s;
    for (int i = 0; i < of && i < D9D_ADD_MAX_ARRAYS; i++)
        there[i] = in(&c, t, x[i], n);
    return end(&c, c.k->elementwise->add(c.s, t, out(&c, t, y, n), there, of, n));
}

static d9d_status on_accumulate(d9d_stream s, d9d_dtype yt, void *y, float beta, d9d_dtype xt,
                                const void *x, int64_t n)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->elementwise->accumulate(c.s, yt, out(&c, yt, y, n), beta, xt,
                                                in(&c, xt, x, n), n));
}

static d9d_status on_axpy(d9d_stream s, d9d_dtype t, void *y, float alpha, const void *x,
                          const void *plus, int64_t n)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->elementwise->axpy(c.s, t, out(&c, t, y, n), alpha, in(&c, t, x, n),
                                          in(&c, t, plus, n), n));
}

static d9d_status on_glu(d9d_stream s, const d9d_glu *f, d9d_dtype t, void *y, const void *gate,
                         const void *up, int64_t n)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->elementwise->glu(c.s, f, t, out(&c, t, y, n), in(&c, t, gate, n),
                                         in(&c, t, up, n), n));
}

static d9d_status on_glu_bwd(d9d_stream s, const d9d_glu *f, d9d_dtype t, void *dgate, void *dup,
                             const void *dy, const void *gate, const void *up, int64_t n)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->elementwise->glu_bwd(c.s, f, t, out(&c, t, dgate, n), out(&c, t, dup, n),
                                             in(&c, t, dy, n), in(&c, t, gate, n), in(&c, t, up, n),
                                             n));
}

static d9d_status on_add_bias(d9d_stream s, d9d_dtype t, void *y, const void *x, const void *b,
                              const int32_t *offset, int64_t m, int64_t e, int64_t n)
{
    call c = begin();

    (void)s;
    return end(&c,
               c.k->elementwise->add_bias(c.s, t, out(&c, t, y, m * n), in(&c, t, x, m * n),
                                          in(&c, t, b, e * n), ints(&c, offset, e + 1), m, e, n));
}

static d9d_status on_sigmoid_gate(d9d_stream s, d9d_dtype t, void *y, const void *x, const void *g,
                                  int64_t m, int64_t n)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->elementwise->sigmoid_gate(c.s, t, out(&c, t, y, m * n), in(&c, t, x, m * n),
                                                  in(&c, t, g, m), m, n));
}

static d9d_status on_sigmoid_gate_bwd(d9d_stream s, d9d_dtype t, void *dx, void *dg, const void *dy,
                                      const void *x, const void *g, int64_t m, int64_t n)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->elementwise->sigmoid_gate_bwd(c.s, t, out(&c, t, dx, m * n),
                                                      out(&c, t, dg, m), in(&c, t, dy, m * n),
                                                      in(&c, t, x, m * n), in(&c, t, g, m), m, n));
}

static d9d_status on_random(d9d_stream s, d9d_dtype t, void *y, d9d_init_kind kind, float scale,
                            d9d_rng r, int ndim, const int64_t *box, const int64_t *start,
                            const int64_t *whole)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->elementwise->random(c.s, t, out(&c, t, y, numel(ndim, box)), kind, scale, r,
                                            ndim, box, start, whole));
}

static d9d_status on_dropout(d9d_stream s, d9d_dtype t, void *y, const void *x, float p,
                             float factor, d9d_rng r, const int64_t *token, int64_t m, int64_t n,
                             int64_t first, int64_t width)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->elementwise->dropout(
                       c.s, t, out(&c, t, y, m * n), in(&c, t, x, m * n), p, factor, r,
                       token != NULL ? in(&c, D9D_I64, token, m) : NULL, m, n, first, width));
}

/* --- products ------------------------------------------------------------------------- */

static d9d_status on_gemm(d9d_stream s, const d9d_gemm *g, const void *a, const void *b, void *y)
{
    call c = begin();
    d9d_gemm d = *g;

    (void)s;
    d.addend = in(&c, g->ct, g->addend, g->m * g->n);
    return end(&c, c.k->gemm->dense(c.s, &d, in(&c, g->t, a, g->m * g->k),
                                    in(&c, g->t, b, g->k * g->n), out(&c, g->ct, y, g->m * g->n)));
}

static d9d_status on_gemm_multi(d9d_stream s, int n, const d9d_gemm *g, const void *a,
                                const void *const *b, void *const *y)
{
    const void *bs[MOST_SPLITS];
    void *ys[MOST_SPLITS];
    d9d_gemm d[MOST_SPLITS];
    call c = begin();

    (void)s;
    if (n > MOST_SPLITS)
        abort();
    for (int i = 0; i < n; i++) {
        d[i] = g[i];
        d[i].addend = in(&c, g->ct, g[i].addend, g[i].m * g[i].n);
        bs[i] = in(&c, g->t, b[i], g[i].k * g[i].n);
        ys[i] = out(&c, g->ct, y[i], g[i].m * g[i].n);
    }
    return end(&c, c.k->gemm->multi(c.s, n, d, in(&c, g->t, a, g->m * g->k), bs, ys));
}

static d9d_status on_grouped_gemm(d9d_stream s, d9d_dtype t, void *y, const void *x, const void *w,
                                  const int32_t *offset, int64_t rows, int64_t e, int64_t n_in,
                                  int64_t n_out)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->gemm->grouped(c.s, t, out(&c, t, y, rows * n_out),
                                      in(&c, t, x, rows * n_in), in(&c, t, w, e * n_in * n_out),
                                      ints(&c, offset, e + 1), rows, e, n_in, n_out));
}

static d9d_status on_grouped_gemm_dgrad(d9d_stream s, d9d_dtype t, void *dx, float beta, int n,
                                        const void *const *dy, const void *const *w,
                                        const int32_t *offset, int64_t rows, int64_t e,
                                        int64_t n_in, int64_t n_out)
{
    const void *dys[2], *ws[2];
    call c = begin();

    (void)s;
    for (int i = 0; i < n; i++) {
        dys[i] = in(&c, t, dy[i], rows * n_out);
        ws[i] = in(&c, t, w[i], e * n_in * n_out);
    }
    return end(&c, c.k->gemm->grouped_dgrad(c.s, t, out(&c, t, dx, rows * n_in), beta, n, dys, ws,
                                            ints(&c, offset, e + 1), rows, e, n_in, n_out));
}

static d9d_status on_grouped_gemm_wgrad(d9d_stream s, d9d_dtype t, d9d_dtype gt, void *dw,
                                        float beta, const void *x, const void *dy,
                                        const int32_t *offset, int64_t rows, int64_t e,
                                        int64_t n_in, int64_t n_out)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->gemm->grouped_wgrad(c.s, t, gt, out(&c, gt, dw, e * n_in * n_out), beta,
                                            in(&c, t, x, rows * n_in), in(&c, t, dy, rows * n_out),
                                            ints(&c, offset, e + 1), rows, e, n_in, n_out));
}

static d9d_status on_grouped_bias_wgrad(d9d_stream s, d9d_dtype t, d9d_dtype gt, void *db,
                                        float beta, const void *dy, const int32_t *offset,
                                        int64_t rows, int64_t e, int64_t n)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->gemm->grouped_bias_wgrad(c.s, t, gt, out(&c, gt, db, e * n), beta,
                                                 in(&c, t, dy, rows * n), ints(&c, offset, e + 1),
                                                 rows, e, n));
}

static d9d_gemm_glu_dims gated_dims(call *c, const d9d_gemm_glu_dims *n)
{
    d9d_gemm_glu_dims there = *n;

    there.offset = ints(c, n->offset, n->e + 1);
    there.b_gate = in(c, n->t, n->b_gate, n->e * n->i);
    there.b_up = in(c, n->t, n->b_up, n->e * n->i);
    return there;
}

static d9d_status on_gemm_glu(d9d_stream s, const d9d_gemm_glu_dims *n, void *y, void *gate,
                              void *up, const void *x, const void *w_gate, const void *w_up)
{
    const int64_t wide = n->rows * n->i, weights = n->e * n->h * n->i;
    call c = begin();
    const d9d_gemm_glu_dims there = gated_dims(&c, n);

    (void)s;
    return end(&c, c.k->gemm->glu(c.s, &there, out(&c, n->t, y, wide), out(&c, n->t, gate, wide),
                                  out(&c, n->t, up, wide), in(&c, n->t, x, n->rows * n->h),
                                  in(&c, n->t, w_gate, weights), in(&c, n->t, w_up, weights)));
}

static d9d_status on_gemm_glu_bwd(d9d_stream s, const d9d_gemm_glu_dims *n, void *dgate, void *dup,
                                  const void *dout, const void *w, const void *gate, const void *up)
{
    const int64_t wide = n->rows * n->i;
    call c = begin();
    const d9d_gemm_glu_dims there = gated_dims(&c, n);

    (void)s;
    return end(&c, c.k->gemm->glu_bwd(c.s, &there, out(&c, n->t, dgate, wide),
                                      out(&c, n->t, dup, wide), in(&c, n->t, dout, n->rows * n->h),
                                      in(&c, n->t, w, n->e * n->h * n->i), in(&c, n->t, gate, wide),
                                      in(&c, n->t, up, wide)));
}

/* --- norm, position, attention ---------------------------------------------------------- */

static d9d_status on_rms_norm(d9d_stream s, d9d_dtype t, void *y, float *inv, const void *x,
                              const void *w, int64_t m, int64_t n, float eps, bool zero_centred)
{
    call c = begin();

    (void)s;
    return end(&c,
               c.k->norm->rms_norm(c.s, t, out(&c, t, y, m * n), out(&c, D9D_F32, inv, m),
                                   in(&c, t, x, m * n), in(&c, t, w, n), m, n, eps, zero_centred));
}

static d9d_status on_rms_norm_bwd(d9d_stream s, d9d_dtype t, void *dx, const void *plus,
                                  d9d_dtype gt, void *dw, float beta, const void *dy, const void *x,
                                  const void *w, const float *inv, int64_t m, int64_t n,
                                  bool zero_centred)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->norm->rms_norm_bwd(c.s, t, out(&c, t, dx, m * n), in(&c, t, plus, m * n),
                                           gt, out(&c, gt, dw, n), beta, in(&c, t, dy, m * n),
                                           in(&c, t, x, m * n), in(&c, t, w, n), floats(&c, inv, m),
                                           m, n, zero_centred));
}

static d9d_status on_layer_norm(d9d_stream s, d9d_dtype t, void *y, float *mean, float *inv,
                                const void *x, const void *w, const void *b, int64_t m, int64_t n,
                                float eps)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->norm->layer_norm(c.s, t, out(&c, t, y, m * n), out(&c, D9D_F32, mean, m),
                                         out(&c, D9D_F32, inv, m), in(&c, t, x, m * n),
                                         in(&c, t, w, n), in(&c, t, b, n), m, n, eps));
}

static d9d_status on_layer_norm_bwd(d9d_stream s, d9d_dtype t, void *dx, const void *plus,
                                    const d9d_layer_norm_grads *of, const void *dy, const void *x,
                                    const void *w, const float *mean, const float *inv, int64_t m,
                                    int64_t n)
{
    call c = begin();
    d9d_layer_norm_grads d = *of;

    (void)s;
    d.dw = out(&c, of->wt, of->dw, n);
    d.db = out(&c, of->bt, of->db, n);
    return end(&c,
               c.k->norm->layer_norm_bwd(c.s, t, out(&c, t, dx, m * n), in(&c, t, plus, m * n), &d,
                                         in(&c, t, dy, m * n), in(&c, t, x, m * n), in(&c, t, w, n),
                                         floats(&c, mean, m), floats(&c, inv, m), m, n));
}

static d9d_status on_rms_norm_dot(d9d_stream s, const d9d_rms_norm_parallel_dims *n, float *dot,
                                  const void *x, const void *y, const void *w)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->norm->rms_norm_dot(c.s, n, out(&c, D9D_F32, dot, n->m),
                                           in(&c, n->t, x, n->m * n->n),
                                           in(&c, n->t, y, n->m * n->n), in(&c, n->t, w, n->n)));
}

static d9d_status on_rms_norm_parallel(d9d_stream s, const d9d_rms_norm_parallel_dims *n, void *y,
                                       float *inv, const float *sum, const void *x, const void *w)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->norm->rms_norm_parallel(
                       c.s, n, out(&c, n->t, y, n->m * n->n), out(&c, D9D_F32, inv, n->m),
                       floats(&c, sum, n->m), in(&c, n->t, x, n->m * n->n), in(&c, n->t, w, n->n)));
}

static d9d_status on_rms_norm_parallel_bwd(d9d_stream s, const d9d_rms_norm_parallel_dims *n,
                                           void *dx, d9d_dtype gt, void *dw, float beta,
                                           const void *dy, const void *x, const void *w,
                                           const float *inv, const float *dot)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->norm->rms_norm_parallel_bwd(
                       c.s, n, out(&c, n->t, dx, n->m * n->n), gt, out(&c, gt, dw, n->n), beta,
                       in(&c, n->t, dy, n->m * n->n), in(&c, n->t, x, n->m * n->n),
                       in(&c, n->t, w, n->n), floats(&c, inv, n->m), floats(&c, dot, n->m)));
}

static d9d_qk_norm_rope_dims norm_rope_of(call *c, const d9d_qk_norm_rope_dims *n)
{
    d9d_qk_norm_rope_dims d = *n;

    d.positions = ints(c, n->positions, n->m);
    d.inv_freq = floats(c, n->inv_freq, n->r / 2);
    return d;
}

static d9d_status on_norm_rope(d9d_stream s, const d9d_qk_norm_rope_dims *n, void *y, float *inv,
                               const void *x, const void *w)
{
    const int64_t all = n->m * n->heads * n->d;
    call c = begin();
    const d9d_qk_norm_rope_dims d = norm_rope_of(&c, n);

    (void)s;
    return end(&c, c.k->norm->norm_rope(c.s, &d, out(&c, n->t, y, all),
                                        out(&c, D9D_F32, inv, n->m * n->heads),
                                        in(&c, n->t, x, all), in(&c, n->t, w, n->d)));
}

static d9d_status on_norm_rope_bwd(d9d_stream s, const d9d_qk_norm_rope_dims *n, void *dx,
                                   d9d_dtype gt, void *dw, float beta, const void *dy,
                                   const void *x, const void *w, const float *inv)
{
    const int64_t all = n->m * n->heads * n->d;
    call c = begin();
    const d9d_qk_norm_rope_dims d = norm_rope_of(&c, n);

    (void)s;
    return end(&c,
               c.k->norm->norm_rope_bwd(c.s, &d, out(&c, n->t, dx, all), gt, out(&c, gt, dw, n->d),
                                        beta, in(&c, n->t, dy, all), in(&c, n->t, x, all),
                                        in(&c, n->t, w, n->d), floats(&c, inv, n->m * n->heads)));
}

static d9d_status on_position_scale(d9d_stream s, d9d_dtype t, void *y, const void *x,
                                    const int32_t *positions, int64_t m, int64_t n, float beta,
                                    int64_t period)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->norm->position_scale(c.s, t, out(&c, t, y, m * n), in(&c, t, x, m * n),
                                             in(&c, D9D_I32, positions, m), m, n, beta, period));
}

static d9d_status on_rope(d9d_stream s, d9d_dtype t, void *y, const void *x,
                          const int32_t *positions, const float *inv_freq, int64_t m, int64_t heads,
                          int64_t d, int64_t r, bool interleaved, float mscale, float sign)
{
    call c = begin();

    (void)s;
    return end(&c,
               c.k->norm->rope(c.s, t, out(&c, t, y, m * heads * d), in(&c, t, x, m * heads * d),
                               ints(&c, positions, m), floats(&c, inv_freq, r / 2), m, heads, d, r,
                               interleaved, mscale, sign));
}

static d9d_attention_dims dims_of(call *c, const d9d_attention_dims *n)
{
    d9d_attention_dims d = *n;

    d.segment = copy(c, n->segment, D9D_I32, 4 * n->segments, false);
    d.dropout.token = copy(c, n->dropout.token, D9D_I64, n->b * n->s, false);
    d.prefix = copy(c, n->prefix, D9D_I32, n->segments, false);
    return d;
}

static d9d_status on_attention(d9d_stream s, const d9d_attention_dims *n, void *o, float *lse,
                               const void *q, const void *k, const void *v)
{
    const int64_t rows = n->b * n->s * n->a, keys = n->b * n->z * n->kv;
    const int64_t dv = d9d_attention_dims_resolve(n).dv;
    call c = begin();
    const d9d_attention_dims d = dims_of(&c, n);

    (void)s;
    return end(&c, c.k->attention->fwd(c.s, &d, out(&c, n->t, o, rows * dv),
                                       out(&c, D9D_F32, lse, rows), in(&c, n->t, q, rows * n->d),
                                       in(&c, n->t, k, keys * n->d), in(&c, n->t, v, keys * dv)));
}

static d9d_status on_attention_bwd(d9d_stream s, const d9d_attention_dims *n, void *dq, void *dk,
                                   void *dv, const void *dout, const void *q, const void *k,
                                   const void *v, const void *o, const float *lse)
{
    const int64_t rows = n->b * n->s * n->a, keys = n->b * n->z * n->kv;
    const int64_t nq = rows * n->d, nk = keys * n->d;
    const int64_t no = rows * d9d_attention_dims_resolve(n).dv,
                  nv = keys * d9d_attention_dims_resolve(n).dv;
    call c = begin();
    const d9d_attention_dims d = dims_of(&c, n);

    (void)s;
    return end(&c, c.k->attention->bwd(
                       c.s, &d, out(&c, n->t, dq, nq), out(&c, n->t, dk, nk), out(&c, n->t, dv, nv),
                       in(&c, n->t, dout, no), in(&c, n->t, q, nq), in(&c, n->t, k, nk),
                       in(&c, n->t, v, nv), in(&c, n->t, o, no), floats(&c, lse, rows)));
}

static d9d_status on_attention_sink(d9d_stream s, const d9d_attention_dims *n, void *o, float *lse,
                                    const void *sink)
{
    const int64_t rows = n->b * n->s * n->a, size = rows * d9d_attention_dims_resolve(n).dv;
    call c = begin();
    const d9d_attention_dims d = dims_of(&c, n);

    (void)s;
    return end(&c, c.k->attention->sink(c.s, &d, out(&c, n->t, o, size),
                                        out(&c, D9D_F32, lse, rows), in(&c, n->t, sink, n->a)));
}

static d9d_status on_attention_sink_wgrad(d9d_stream s, const d9d_attention_dims *n, d9d_dtype gt,
                                          void *dsink, float beta, const void *dout, const void *o,
                                          const float *lse, const void *sink)
{
    const int64_t rows = n->b * n->s * n->a, size = rows * d9d_attention_dims_resolve(n).dv;
    call c = begin();
    const d9d_attention_dims d = dims_of(&c, n);

    (void)s;
    return end(&c, c.k->attention->sink_wgrad(c.s, &d, gt, out(&c, gt, dsink, n->a), beta,
                                              in(&c, n->t, dout, size), in(&c, n->t, o, size),
                                              floats(&c, lse, rows), in(&c, n->t, sink, n->a)));
}

static d9d_status on_cp_zigzag(d9d_stream s, d9d_dtype t, void *y, const void *x, int64_t n,
                               int64_t b, int64_t p, int64_t w, bool in_order)
{
    const int64_t size = 2 * n * b * p * w;
    call c = begin();

    (void)s;
    return end(&c, c.k->attention->cp_zigzag(c.s, t, out(&c, t, y, size), in(&c, t, x, size), n, b,
                                             p, w, in_order));
}

static d9d_status on_copy_strided(d9d_stream s, const d9d_copy_strided_dims *n, void *y,
                                  const void *x)
{
    call c = begin();

    (void)s;
    return end(&c,
               c.k->elementwise->copy_strided(c.s, n, out(&c, n->t, y, n->m * n->heads * n->y_cols),
                                              in(&c, n->t, x, n->m * n->x_cols)));
}

static d9d_status on_copy_strided_bwd(d9d_stream s, const d9d_copy_strided_dims *n, void *x,
                                      const void *y)
{
    call c = begin();

    (void)s;
    return end(&c,
               c.k->elementwise->copy_strided_bwd(c.s, n, out(&c, n->t, x, n->m * n->x_cols),
                                                  in(&c, n->t, y, n->m * n->heads * n->y_cols)));
}

/* Rows up to the last of those that `at` [m] names. */
static int64_t rows_reached(const int32_t *at, int64_t m)
{
    int64_t rows = at == NULL ? m : 0;

    for (int64_t i = 0; at != NULL && i < m; i++)
        rows = at[i] >= rows ? at[i] + 1 : rows;
    return rows;
}

static d9d_status on_scatter_rows(d9d_stream s, d9d_dtype t, void *y, int64_t ld, int64_t first,
                                  const int32_t *at, const void *x, int64_t m, int64_t n)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->elementwise->scatter_rows(c.s, t, out(&c, t, y, rows_reached(at, m) * ld),
                                                  ld, first, at == NULL ? NULL : ints(&c, at, m),
                                                  in(&c, t, x, m * n), m, n));
}

static d9d_status on_qk_norm_rope_append(d9d_stream s, const d9d_qk_norm_rope_dims *n, int count,
                                         const d9d_qk_norm_rope_heads *list)
{
    d9d_qk_norm_rope_heads there[MOST_SPLITS];
    call c = begin();
    const d9d_qk_norm_rope_dims d = norm_rope_of(&c, n);

    (void)s;
    if (count > MOST_SPLITS)
        abort();
    for (int j = 0; j < count; j++) {
        const d9d_qk_norm_rope_heads *h = &list[j];
        const int64_t row = h->heads * n->d;
        const int64_t rows = rows_reached(h->row_index, n->m);

        there[j] =
            (d9d_qk_norm_rope_heads){in(&c, n->t, h->x, n->m * row),
                                     in(&c, n->t, h->w, n->d),
                                     out(&c, n->t, h->y, rows * row),
                                     h->heads,
                                     h->rotates,
                                     h->row_index == NULL ? NULL : ints(&c, h->row_index, n->m)};
    }
    return end(&c, c.k->norm->qk_norm_rope_append(c.s, &d, count, there));
}

static d9d_varlen documents_of(call *c, const d9d_varlen *x)
{
    d9d_varlen d = *x;

    d.segment = in(c, D9D_I32, x->segment, 4 * x->segments);
    return d;
}

static d9d_status on_causal_conv1d(d9d_stream s, const d9d_causal_conv1d_dims *n, void *y,
                                   const void *x, const void *w)
{
    const int64_t all = n->docs.b * n->docs.s * n->n;
    call c = begin();
    d9d_causal_conv1d_dims d = *n;

    (void)s;
    d.docs = documents_of(&c, &n->docs);
    return end(&c, c.k->gdn->causal_conv1d(c.s, &d, out(&c, n->t, y, all), in(&c, n->t, x, all),
                                           in(&c, n->t, w, n->n * n->w)));
}

static d9d_status on_causal_conv1d_bwd(d9d_stream s, const d9d_causal_conv1d_dims *n, void *dx,
                                       d9d_dtype gt, void *dw, float beta, const void *dy,
                                       const void *x, const void *w)
{
    const int64_t all = n->docs.b * n->docs.s * n->n, weights = n->n * n->w;
    call c = begin();
    d9d_causal_conv1d_dims d = *n;

    (void)s;
    d.docs = documents_of(&c, &n->docs);
    return end(&c, c.k->gdn->causal_conv1d_bwd(
                       c.s, &d, out(&c, n->t, dx, all), gt, out(&c, gt, dw, weights), beta,
                       in(&c, n->t, dy, all), in(&c, n->t, x, all), in(&c, n->t, w, weights)));
}

static d9d_status on_gdn_gate(d9d_stream s, d9d_dtype t, float *g, const void *x, const void *rate,
                              const void *bias, int64_t m, int64_t n)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->gdn->gate(c.s, t, out(&c, D9D_F32, g, m * n), in(&c, t, x, m * n),
                                  in(&c, t, rate, n), in(&c, t, bias, n), m, n));
}

static d9d_status on_gdn_gate_dgrad(d9d_stream s, d9d_dtype t, void *dx, const float *dg,
                                    const void *x, const void *rate, const void *bias, int64_t m,
                                    int64_t n)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->gdn->gate_dgrad(c.s, t, out(&c, t, dx, m * n), floats(&c, dg, m * n),
                                        in(&c, t, x, m * n), in(&c, t, rate, n), in(&c, t, bias, n),
                                        m, n));
}

static d9d_status on_gdn_gate_wgrad(d9d_stream s, d9d_dtype t, d9d_dtype gt, void *dw, float beta,
                                    bool of_bias, const float *dg, const void *x, const void *rate,
                                    const void *bias, int64_t m, int64_t n)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->gdn->gate_wgrad(c.s, t, gt, out(&c, gt, dw, n), beta, of_bias,
                                        floats(&c, dg, m * n), in(&c, t, x, m * n),
                                        in(&c, t, rate, n), in(&c, t, bias, n), m, n));
}

static d9d_gated_delta_dims delta_of(call *c, const d9d_gated_delta_dims *n)
{
    d9d_gated_delta_dims d = *n;

    d.docs = documents_of(c, &n->docs);
    return d;
}

static d9d_status on_gated_delta(d9d_stream s, const d9d_gated_delta_dims *n, void *o,
                                 float *states, const void *q, const void *k, const void *v,
                                 const float *g, const void *b)
{
    const int64_t tokens = n->docs.b * n->docs.s, keys = tokens * n->k * n->d;
    const int64_t values = tokens * n->a * n->f;
    call c = begin();
    const d9d_gated_delta_dims d = delta_of(&c, n);

    (void)s;
    return end(&c,
               c.k->gdn->gated_delta(
                   c.s, &d, out(&c, n->t, o, values),
                   out(&c, D9D_F32, states, d9d_gated_delta_states(&n->docs) * n->a * n->d * n->f),
                   in(&c, n->t, q, keys), in(&c, n->t, k, keys), in(&c, n->t, v, values),
                   floats(&c, g, tokens * n->a), in(&c, n->t, b, tokens * n->a)));
}

static d9d_status on_gated_delta_bwd(d9d_stream s, const d9d_gated_delta_dims *n, void *dq,
                                     void *dk, void *dv, float *dg, void *db, const void *dout,
                                     const void *q, const void *k, const void *v, const float *g,
                                     const void *b, const float *states)
{
    const int64_t tokens = n->docs.b * n->docs.s, keys = tokens * n->k * n->d;
    const int64_t values = tokens * n->a * n->f, slots = d9d_gated_delta_states(&n->docs);
    call c = begin();
    const d9d_gated_delta_dims d = delta_of(&c, n);

    (void)s;
    return end(&c, c.k->gdn->gated_delta_bwd(
                       c.s, &d, out(&c, n->t, dq, keys), out(&c, n->t, dk, keys),
                       out(&c, n->t, dv, values), out(&c, D9D_F32, dg, tokens * n->a),
                       out(&c, n->t, db, tokens * n->a), in(&c, n->t, dout, values),
                       in(&c, n->t, q, keys), in(&c, n->t, k, keys), in(&c, n->t, v, values),
                       floats(&c, g, tokens * n->a), in(&c, n->t, b, tokens * n->a),
                       floats(&c, states, slots * n->a * n->d * n->f)));
}

/* Cells of so many elements. */
static d9d_state_slots past_of(call *c, const d9d_varlen *of, const d9d_state_slots *x, d9d_dtype t,
                               int64_t each)
{
    int64_t cells = 0;

    for (int64_t i = 0; i < of->segments; i++)
        cells = x->slot_index[i] >= cells ? x->slot_index[i] + 1 : cells;
    return (d9d_state_slots){out(c, t, x->slots, cells * each),
                             ints(c, x->slot_index, of->segments)};
}

static d9d_status on_causal_conv1d_update(d9d_stream s, const d9d_causal_conv1d_dims *n,
                                          const d9d_state_slots *past, void *y, const void *x,
                                          const void *w)
{
    const int64_t all = n->docs.b * n->docs.s * n->n;
    call c = begin();
    const d9d_state_slots p = past_of(&c, &n->docs, past, n->t, (n->w - 1) * n->n);
    d9d_causal_conv1d_dims d = *n;

    (void)s;
    d.docs = documents_of(&c, &n->docs);
    return end(&c,
               c.k->gdn->causal_conv1d_update(c.s, &d, &p, out(&c, n->t, y, all),
                                              in(&c, n->t, x, all), in(&c, n->t, w, n->n * n->w)));
}

static d9d_status on_gated_delta_step(d9d_stream s, const d9d_gated_delta_dims *n,
                                      const d9d_state_slots *past, void *o, const void *q,
                                      const void *k, const void *v, const float *g, const void *b)
{
    const int64_t tokens = n->docs.b * n->docs.s, keys = tokens * n->k * n->d;
    const int64_t values = tokens * n->a * n->f;
    call c = begin();
    const d9d_state_slots p = past_of(&c, &n->docs, past, D9D_F32, n->a * n->d * n->f);
    const d9d_gated_delta_dims d = delta_of(&c, n);

    (void)s;
    return end(&c, c.k->gdn->gated_delta_step(c.s, &d, &p, out(&c, n->t, o, values),
                                              in(&c, n->t, q, keys), in(&c, n->t, k, keys),
                                              in(&c, n->t, v, values), floats(&c, g, tokens * n->a),
                                              in(&c, n->t, b, tokens * n->a)));
}

static d9d_status on_gemm_per_head(d9d_stream s, const d9d_gemm_per_head_dims *n, void *y,
                                   const void *x, const void *w)
{
    const int64_t rows = n->heads * n->m, wide = n->trans_w ? n->in : n->out;
    call c = begin();

    (void)s;
    return end(&c, c.k->gemm->per_head(c.s, n, out(&c, n->t, y, rows * n->out),
                                       in(&c, n->t, x, rows * n->in),
                                       in(&c, n->t, w, n->heads * n->w_head_rows * wide)));
}

static d9d_status on_rms_norm_gated(d9d_stream s, d9d_dtype t, void *y, float *inv, const void *x,
                                    const void *z, const void *w, int64_t m, int64_t n, float eps)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->norm->rms_norm_gated(c.s, t, out(&c, t, y, m * n), out(&c, D9D_F32, inv, m),
                                             in(&c, t, x, m * n), in(&c, t, z, m * n),
                                             in(&c, t, w, n), m, n, eps));
}

static d9d_status on_rms_norm_gated_bwd(d9d_stream s, d9d_dtype t, void *dx, void *dz, d9d_dtype gt,
                                        void *dw, float beta, const void *dy, const void *x,
                                        const void *z, const void *w, const float *inv, int64_t m,
                                        int64_t n)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->norm->rms_norm_gated_bwd(
                       c.s, t, out(&c, t, dx, m * n), out(&c, t, dz, m * n), gt, out(&c, gt, dw, n),
                       beta, in(&c, t, dy, m * n), in(&c, t, x, m * n), in(&c, t, z, m * n),
                       in(&c, t, w, n), floats(&c, inv, m), m, n));
}

/* --- embedding and loss ------------------------------------------------------------------ */

static d9d_status on_embedding(d9d_stream s, d9d_dtype t, void *y, const int32_t *ids,
                               const void *table, int64_t rows, int64_t first, int64_t v, int64_t h,
                               bool clear)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->elementwise->embedding(c.s, t, out(&c, t, y, rows * h), ints(&c, ids, rows),
                                               in(&c, t, table, v * h), rows, first, v, h, clear));
}

static d9d_status on_embedding_wgrad(d9d_stream s, d9d_dtype t, d9d_dtype gt, void *dtable,
                                     float beta, const int32_t *ids, const void *dy, int64_t rows,
                                     int64_t first, int64_t v, int64_t h)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->elementwise->embedding_wgrad(c.s, t, gt, out(&c, gt, dtable, v * h), beta,
                                                     ints(&c, ids, rows), in(&c, t, dy, rows * h),
                                                     rows, first, v, h));
}

/* The same dimensions, with the bias and its gradient on the device. */
static d9d_linear_cross_entropy_dims dims_on(call *c, const d9d_linear_cross_entropy_dims *n,
                                             d9d_dtype gt)
{
    d9d_linear_cross_entropy_dims on = *n;
    int64_t all = n->vocab;

    for (int i = 0; i < n->n_split && n->first == NULL; i++)
        all += n->v[i];
    on.bias = in(c, n->t, n->bias, all);
    on.dbias = out(c, gt, n->dbias, all);
    return on;
}

/* The parts of a split vocabulary. */
static void splits(call *c, const d9d_linear_cross_entropy_dims *n, const void *const *w,
                   const void *on[])
{
    for (int i = 0; i < n->n_split; i++)
        on[i] = in(c, n->t, w[i], n->v[i] * n->h);
}

static d9d_status on_linear_cross_entropy(d9d_stream s, const d9d_linear_cross_entropy_dims *n,
                                          float *loss, float *lse, void *unit, const void *hidden,
                                          const void *const *w, const int32_t *targets)
{
    const void *head[MOST_SPLITS];
    call c = begin();
    const d9d_linear_cross_entropy_dims dims = dims_on(&c, n, D9D_F32);

    (void)s;
    splits(&c, n, w, head);
    return end(&c, c.k->loss->linear_cross_entropy(
                       c.s, &dims, out(&c, D9D_F32, loss, n->rows), out(&c, D9D_F32, lse, n->rows),
                       out(&c, n->t, unit, n->rows * n->h), in(&c, n->t, hidden, n->rows * n->h),
                       head, ints(&c, targets, n->rows)));
}

static d9d_status on_linear_cross_entropy_combine(d9d_stream s,
                                                  const d9d_linear_cross_entropy_dims *d,
                                                  float *loss, float *lse, void *unit,
                                                  const float *parts, int64_t n, int64_t rank,
                                                  const void *const *w, const int32_t *targets)
{
    const void *head[MOST_SPLITS];
    call c = begin();

    (void)s;
    splits(&c, d, w, head);
    return end(&c, c.k->loss->linear_cross_entropy_combine(
                       c.s, d, out(&c, D9D_F32, loss, d->rows), out(&c, D9D_F32, lse, d->rows),
                       out(&c, d->t, unit, d->rows * d->h), floats(&c, parts, 2 * n * d->rows), n,
                       rank, head, ints(&c, targets, d->rows)));
}

static d9d_status on_linear_cross_entropy_dgrad(d9d_stream s, d9d_dtype t, void *dhidden,
                                                const float *dloss, const void *unit, int64_t rows,
                                                int64_t h)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->loss->linear_cross_entropy_dgrad(c.s, t, out(&c, t, dhidden, rows * h),
                                                         floats(&c, dloss, rows),
                                                         in(&c, t, unit, rows * h), rows, h));
}

static d9d_status on_linear_cross_entropy_wgrad(d9d_stream s,
                                                const d9d_linear_cross_entropy_dims *n,
                                                d9d_dtype gt, void *const *dw, const float *beta,
                                                const float *dloss, const float *lse,
                                                const void *hidden, const void *const *w,
                                                const int32_t *targets)
{
    const void *head[MOST_SPLITS];
    void *grad[MOST_SPLITS];
    call c = begin();
    const d9d_linear_cross_entropy_dims dims = dims_on(&c, n, gt);

    (void)s;
    splits(&c, n, w, head);
    for (int i = 0; i < n->n_split; i++)
        grad[i] = out(&c, gt, dw[i], n->v[i] * n->h);
    return end(&c,
               c.k->loss->linear_cross_entropy_wgrad(
                   c.s, &dims, gt, grad, beta, floats(&c, dloss, n->rows), floats(&c, lse, n->rows),
                   in(&c, n->t, hidden, n->rows * n->h), head, ints(&c, targets, n->rows)));
}

static d9d_status on_linear_cross_entropy_fwd_bwd(d9d_stream s,
                                                  const d9d_linear_cross_entropy_dims *n,
                                                  d9d_dtype gt, float *loss, void *unit,
                                                  void *const *dw, const float *beta,
                                                  const void *hidden, const void *const *w,
                                                  const int32_t *targets)
{
    const void *head[MOST_SPLITS];
    void *grad[MOST_SPLITS];
    call c = begin();

    (void)s;
    splits(&c, n, w, head);
    for (int i = 0; i < n->n_split; i++)
        grad[i] = out(&c, gt, dw[i], n->v[i] * n->h);
    return end(&c, c.k->loss->linear_cross_entropy_fwd_bwd(
                       c.s, n, gt, out(&c, D9D_F32, loss, n->rows),
                       out(&c, n->t, unit, n->rows * n->h), grad, beta,
                       in(&c, n->t, hidden, n->rows * n->h), head, ints(&c, targets, n->rows)));
}

/* --- mixture of experts -------------------------------------------------------------------- */

static d9d_status on_router(d9d_stream s, const d9d_router_dims *n, float *p, float *prob,
                            int32_t *expert, const void *logits, const float *bias)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->moe->router(c.s, n, out(&c, D9D_F32, p, n->rows * n->e),
                                    out(&c, D9D_F32, prob, n->rows * n->k),
                                    out(&c, D9D_I32, expert, n->rows * n->k),
                                    in(&c, n->t, logits, n->rows * n->e), floats(&c, bias, n->e)));
}

/* The same with its arrays on the device. */
static d9d_router_balance balance(call *c, const d9d_router_dims *n, const d9d_router_balance *b)
{
    const int64_t batch = n->rows > 0 ? (b->first + n->rows - 1) / b->seq_len + 1 : 0;
    d9d_router_balance d = *b;

    d.weight = floats(c, b->weight, n->rows);
    d.load = floats(c, b->load, batch * n->e);
    d.logits = in(c, n->t, b->logits, n->rows * n->e);
    return d;
}

static d9d_status on_router_bwd(d9d_stream s, const d9d_router_dims *n, void *dlogits,
                                const float *dprob, const float *p, const float *prob,
                                const int32_t *expert, const d9d_router_balance *b)
{
    call c = begin();
    d9d_router_balance d = {0};

    (void)s;
    if (b != NULL)
        d = balance(&c, n, b);
    return end(&c,
               c.k->moe->router_bwd(c.s, n, out(&c, n->t, dlogits, n->rows * n->e),
                                    floats(&c, dprob, n->rows * n->k),
                                    floats(&c, p, n->rows * n->e), floats(&c, prob, n->rows * n->k),
                                    ints(&c, expert, n->rows * n->k), b != NULL ? &d : NULL));
}

static d9d_status on_expert_load(d9d_stream s, const d9d_router_dims *n, float *load, double *total,
                                 const int32_t *expert, const d9d_router_balance *b)
{
    const int64_t batch = n->rows > 0 ? (b->first + n->rows - 1) / b->seq_len + 1 : 0;
    call c = begin();
    const d9d_router_balance d = balance(&c, n, b);

    (void)s;
    return end(&c, c.k->moe->expert_load(c.s, n, out(&c, D9D_F32, load, batch * n->e),
                                         out(&c, D9D_F64, total, n->e),
                                         ints(&c, expert, n->rows * n->k), &d));
}

static d9d_status on_router_losses(d9d_stream s, const d9d_router_dims *n, float *aux, float *z,
                                   const float *p, const d9d_router_balance *b)
{
    call c = begin();
    const d9d_router_balance d = balance(&c, n, b);

    (void)s;
    return end(&c, c.k->moe->router_losses(c.s, n, out(&c, D9D_F32, aux, n->rows),
                                           out(&c, D9D_F32, z, n->rows),
                                           floats(&c, p, n->rows * n->e), &d));
}

static d9d_status on_router_bias(d9d_stream s, float *bias, const double *load, const float *scale,
                                 float rate, int64_t first, int64_t n, int64_t e)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->moe->router_bias(c.s, out(&c, D9D_F32, bias, n), in(&c, D9D_F64, load, e),
                                         floats(&c, scale, 1), rate, first, n, e));
}

static d9d_status on_sort_by_expert(d9d_stream s, int32_t *offset, int32_t *row, int32_t *source,
                                    const int32_t *expert, int64_t rows, int64_t e, int64_t k)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->moe->sort_by_expert(
                       c.s, out(&c, D9D_I32, offset, e + 1), out(&c, D9D_I32, row, rows * k),
                       out(&c, D9D_I32, source, rows * k), ints(&c, expert, rows * k), rows, e, k));
}

static d9d_status on_permute(d9d_stream s, const d9d_moe_permute_dims *n, void *y, const void *x,
                             const int32_t *row)
{
    call c = begin();

    (void)s;
    return end(&c,
               c.k->moe->permute(c.s, n, out(&c, n->t, y, n->n * n->h),
                                 in(&c, n->t, x, n->rows * n->h), ints(&c, row, n->rows * n->k)));
}

static d9d_status on_permute_bwd(d9d_stream s, const d9d_moe_permute_dims *n, void *dx,
                                 const void *dy, const int32_t *row)
{
    call c = begin();

    (void)s;
    return end(&c,
               c.k->moe->permute_bwd(c.s, n, out(&c, n->t, dx, n->rows * n->h),
                                     in(&c, n->t, dy, n->n * n->h), ints(&c, row, n->rows * n->k)));
}

static d9d_status on_unpermute(d9d_stream s, const d9d_moe_permute_dims *n, void *y, const void *x,
                               const float *prob, const int32_t *row)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->moe->unpermute(
                       c.s, n, out(&c, n->t, y, n->rows * n->h), in(&c, n->t, x, n->n * n->h),
                       floats(&c, prob, n->rows * n->k), ints(&c, row, n->rows * n->k)));
}

static d9d_status on_unpermute_bwd(d9d_stream s, const d9d_moe_permute_dims *n, void *dx,
                                   float *dprob, const void *dy, const void *x, const float *prob,
                                   const int32_t *row)
{
    call c = begin();

    (void)s;
    return end(&c,
               c.k->moe->unpermute_bwd(
                   c.s, n, out(&c, n->t, dx, n->n * n->h), out(&c, D9D_F32, dprob, n->rows * n->k),
                   in(&c, n->t, dy, n->rows * n->h), in(&c, n->t, x, n->n * n->h),
                   floats(&c, prob, n->rows * n->k), ints(&c, row, n->rows * n->k)));
}

static d9d_status on_expert_ranks(d9d_stream s, int32_t *rank, const int32_t *expert, int64_t rows,
                                  int64_t k, int64_t ranks, int64_t per)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->moe->expert_ranks(c.s, out(&c, D9D_I32, rank, rows * ranks),
                                          ints(&c, expert, rows * k), rows, k, ranks, per));
}

static d9d_status on_expert_local_ids(d9d_stream s, int32_t *local, const int32_t *source,
                                      const int32_t *expert, int64_t n, int64_t rows, int64_t k,
                                      int64_t ranks, int64_t per)
{
    call c = begin();

    (void)s;
    return end(&c,
               c.k->moe->expert_local_ids(c.s, out(&c, D9D_I32, local, n * k), ints(&c, source, n),
                                          ints(&c, expert, rows * k), n, rows, k, ranks, per));
}

/* --- reductions ---------------------------------------------------------------------------- */

static d9d_status on_sum_squares(d9d_stream s, double *y, d9d_dtype t,
                                 const d9d_sum_squares_array *list, int64_t count)
{
    d9d_sum_squares_array there[MOST_ARRAYS];
    call c = begin();

    (void)s;
    for (int64_t i = 0; i < count; i++)
        there[i] = (d9d_sum_squares_array){in(&c, t, list[i].x, list[i].n), list[i].n};
    return end(&c, c.k->reduce->sum_squares(c.s, out(&c, D9D_F64, y, count), t, there, count));
}

static d9d_status on_sum_ordered(d9d_stream s, double *y, const double *x, int64_t n)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->reduce->sum_ordered(c.s, out(&c, D9D_F64, y, 1), in(&c, D9D_F64, x, n), n));
}

static d9d_status on_sum(d9d_stream s, double *y, double beta, d9d_dtype t, const void *x,
                         int64_t n)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->reduce->sum(c.s, out(&c, D9D_F64, y, 1), beta, t, in(&c, t, x, n), n));
}

static d9d_status on_find_nonfinite(d9d_stream s, int64_t *y, d9d_dtype t, const void *x, int64_t n)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->reduce->find_nonfinite(c.s, out(&c, D9D_I64, y, 1), t, in(&c, t, x, n), n));
}

static d9d_status on_grad_scale(d9d_stream s, float *scale, double *report, const double *loss,
                                int64_t n, const double *weight, const double *squares,
                                double max_norm)
{
    call c = begin();

    (void)s;
    return end(&c,
               c.k->optim->grad_scale(c.s, out(&c, D9D_F32, scale, 1), out(&c, D9D_F64, report, 2),
                                      in(&c, D9D_F64, loss, n), n, in(&c, D9D_F64, weight, 1),
                                      in(&c, D9D_F64, squares, 1), max_norm));
}

/* --- optimizers ------------------------------------------------------------------------------ */

static d9d_optim_arrays there(call *c, d9d_dtype t, d9d_dtype gt, d9d_dtype st,
                              const d9d_optim_arrays *a, int64_t n)
{
    return (d9d_optim_arrays){
        .p = out(c, t, a->p, n),
        .g = in(c, gt, a->g, n),
        .m = out(c, st, a->m, n),
        .v = out(c, st, a->v, n),
        .vmax = out(c, st, a->vmax, n),
        .n = n,
        .residual = out(c, D9D_I16, a->residual, n),
    };
}

static d9d_status on_adam(d9d_stream s, const d9d_adam_step *step, const float *scale, d9d_dtype t,
                          d9d_dtype gt, d9d_dtype st, const d9d_optim_arrays *list, int64_t count)
{
    d9d_optim_arrays lists[MOST_ARRAYS];
    call c = begin();

    (void)s;
    for (int64_t i = 0; i < count; i++)
        lists[i] = there(&c, t, gt, st, &list[i], list[i].n);
    return end(&c, c.k->optim->adam(c.s, step, floats(&c, scale, 1), t, gt, st, lists, count));
}

static d9d_status on_adam_stochastic(d9d_stream s, const d9d_adam_step *step, const float *scale,
                                     d9d_dtype t, d9d_dtype gt, d9d_dtype st,
                                     const d9d_optim_arrays *a, d9d_rng r, int ndim,
                                     const int64_t *box, const int64_t *start, const int64_t *whole)
{
    call c = begin();
    const d9d_optim_arrays on = there(&c, t, gt, st, a, numel(ndim, box));

    (void)s;
    return end(&c, c.k->optim->adam_stochastic(c.s, step, floats(&c, scale, 1), t, gt, st, &on, r,
                                               ndim, box, start, whole));
}

static d9d_status on_lion(d9d_stream s, const d9d_lion_step *step, const float *scale, d9d_dtype t,
                          d9d_dtype gt, d9d_dtype st, const d9d_optim_arrays *list, int64_t count)
{
    d9d_optim_arrays lists[MOST_ARRAYS];
    call c = begin();

    (void)s;
    for (int64_t i = 0; i < count; i++)
        lists[i] = there(&c, t, gt, st, &list[i], list[i].n);
    return end(&c, c.k->optim->lion(c.s, step, floats(&c, scale, 1), t, gt, st, lists, count));
}

static d9d_status on_lion_stochastic(d9d_stream s, const d9d_lion_step *step, const float *scale,
                                     d9d_dtype t, d9d_dtype gt, d9d_dtype st,
                                     const d9d_optim_arrays *a, d9d_rng r, int ndim,
                                     const int64_t *box, const int64_t *start, const int64_t *whole)
{
    call c = begin();
    const d9d_optim_arrays on = there(&c, t, gt, st, a, numel(ndim, box));

    (void)s;
    return end(&c, c.k->optim->lion_stochastic(c.s, step, floats(&c, scale, 1), t, gt, st, &on, r,
                                               ndim, box, start, whole));
}

static d9d_status on_sgd(d9d_stream s, const d9d_sgd_step *step, d9d_dtype t, void *p,
                         int16_t *residual, d9d_dtype gt, const void *g, const float *scale,
                         d9d_dtype st, void *momentum, int64_t n)
{
    call c = begin();

    (void)s;
    return end(&c, c.k->optim->sgd(c.s, step, t, out(&c, t, p, n), out(&c, D9D_I16, residual, n),
                                   gt, in(&c, gt, g, n), floats(&c, scale, 1), st,
                                   out(&c, st, momentum, n), n));
}

static d9d_status on_argmax(d9d_stream s, int32_t *at, float *value, const float *x, int64_t m,
                            int64_t n)
{
    call c = begin();

    (void)s;
    return end(&c,
               c.k->elementwise->argmax(c.s, out(&c, D9D_I32, at, m), out(&c, D9D_F32, value, m),
                                        floats(&c, x, m * n), m, n));
}

#define ENTRY(family, member, op) .member = on_##op,
#define FAMILY(family, list)      static const d9d_##family##_kernels family##_kernels = {list(ENTRY)};
D9D_KERNEL_FAMILIES(FAMILY)
#undef FAMILY
#undef ENTRY

const d9d_kernels *host_kernels(void)
{
#define FAMILY(family, list) .family = &family##_kernels,
    static const d9d_kernels table = {.name = "host", D9D_KERNEL_FAMILIES(FAMILY)};
#undef FAMILY

    return unit_device_is_cpu() ? d9d_kernels_cpu() : &table;
}

int host_kernels_said(const char *text)
{
    int n = 0;

    for (const char *at = strstr(said, text); at != NULL; at = strstr(at + 1, text))
        n++;
    return n;
}
