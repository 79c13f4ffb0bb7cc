/* host_gemm.c - matrix products for arrays in host memory, see host_call.h. */
#include "host_call.h"

#include <stdlib.h>

static d9d_status on_gemm(d9d_stream s, const d9d_gemm *g, const void *a, const void *b, void *y)
{
    host_call c = host_begin();
    d9d_gemm d = *g;

    (void)s;
    d.addend = host_in(&c, g->ct, g->addend, g->m * g->n);
    d.bias = host_in(&c, g->ct, g->bias, g->n);
    return host_end(&c, c.k->gemm->dense(c.s, &d, host_in(&c, g->t, a, g->m * g->k),
                                         host_in(&c, g->t, b, g->k * g->n),
                                         host_out(&c, g->ct, y, g->m * g->n)));
}

static d9d_status on_gemm_batched(d9d_stream s, const d9d_gemm_batched *g, const void *a,
                                  const void *b, void *y)
{
    const int64_t m = g->gemm.m * g->count, n = g->gemm.n, k = g->gemm.k;
    host_call c = host_begin();
    d9d_gemm_batched d = *g;

    (void)s;
    d.gemm.addend = host_in(&c, d.gemm.ct, g->gemm.addend, m * n);
    return host_end(&c, c.k->gemm->batched(c.s, &d, host_in(&c, d.gemm.t, a, m * k),
                                           host_in(&c, d.gemm.t, b, g->count * k * n),
                                           host_out(&c, d.gemm.ct, y, m * n)));
}

static d9d_status on_gemm_multi(d9d_stream s, int n, const d9d_gemm *g, const void *a,
                                const void *const *b, void *const *y)
{
    const void *bs[HOST_MAX_SPLITS];
    void *ys[HOST_MAX_SPLITS];
    d9d_gemm d[HOST_MAX_SPLITS];
    host_call c = host_begin();

    (void)s;
    if (n > HOST_MAX_SPLITS)
        abort();
    for (int i = 0; i < n; i++) {
        d[i] = g[i];
        d[i].addend = host_in(&c, g->ct, g[i].addend, g[i].m * g[i].n);
        d[i].bias = host_in(&c, g->ct, g[i].bias, g[i].n);
        bs[i] = host_in(&c, g->t, b[i], g[i].k * g[i].n);
        ys[i] = host_out(&c, g->ct, y[i], g[i].m * g[i].n);
    }
    return host_end(&c, c.k->gemm->multi(c.s, n, d, host_in(&c, g->t, a, g->m * g->k), bs, ys));
}

static d9d_status on_grouped_gemm(d9d_stream s, d9d_dtype t, void *y, const void *x, const void *w,
                                  const int32_t *offset, int64_t rows, int64_t e, int64_t n_in,
                                  int64_t n_out)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->gemm->grouped(c.s, t, host_out(&c, t, y, rows * n_out),
                                           host_in(&c, t, x, rows * n_in),
                                           host_in(&c, t, w, e * n_in * n_out),
                                           host_ints(&c, offset, e + 1), rows, e, n_in, n_out));
}

static d9d_status on_grouped_gemm_dgrad(d9d_stream s, d9d_dtype t, void *dx, float beta, int n,
                                        const void *const *dy, const void *const *w,
                                        const int32_t *offset, int64_t rows, int64_t e,
                                        int64_t n_in, int64_t n_out)
{
    const void *dys[2], *ws[2];
    host_call c = host_begin();

    (void)s;
    for (int i = 0; i < n; i++) {
        dys[i] = host_in(&c, t, dy[i], rows * n_out);
        ws[i] = host_in(&c, t, w[i], e * n_in * n_out);
    }
    return host_end(&c, c.k->gemm->grouped_dgrad(c.s, t, host_out(&c, t, dx, rows * n_in), beta, n,
                                                 dys, ws, host_ints(&c, offset, e + 1), rows, e,
                                                 n_in, n_out));
}

static d9d_status on_grouped_gemm_wgrad(d9d_stream s, d9d_dtype t, d9d_dtype gt, void *dw,
                                        float beta, const void *x, const void *dy,
                                        const int32_t *offset, int64_t rows, int64_t e,
                                        int64_t n_in, int64_t n_out)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->gemm->grouped_wgrad(
                            c.s, t, gt, host_out(&c, gt, dw, e * n_in * n_out), beta,
                            host_in(&c, t, x, rows * n_in), host_in(&c, t, dy, rows * n_out),
                            host_ints(&c, offset, e + 1), rows, e, n_in, n_out));
}

static d9d_status on_grouped_bias_wgrad(d9d_stream s, d9d_dtype t, d9d_dtype gt, void *db,
                                        float beta, const void *dy, const int32_t *offset,
                                        int64_t rows, int64_t e, int64_t n)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->gemm->grouped_bias_wgrad(c.s, t, gt, host_out(&c, gt, db, e * n), beta,
                                                      host_in(&c, t, dy, rows * n),
                                                      host_ints(&c, offset, e + 1), rows, e, n));
}

static d9d_gemm_glu_dims glu_dims_on(host_call *c, const d9d_gemm_glu_dims *n)
{
    d9d_gemm_glu_dims there = *n;

    there.offset = host_ints(c, n->offset, n->e + 1);
    there.b_gate = host_in(c, n->t, n->b_gate, n->e * n->i);
    there.b_up = host_in(c, n->t, n->b_up, n->e * n->i);
    return there;
}

static d9d_status on_gemm_glu(d9d_stream s, const d9d_gemm_glu_dims *n, void *y, void *gate,
                              void *up, const void *x, const void *w_gate, const void *w_up)
{
    const int64_t wide = n->rows * n->i, weights = n->e * n->h * n->i;
    host_call c = host_begin();
    const d9d_gemm_glu_dims there = glu_dims_on(&c, n);

    (void)s;
    return host_end(
        &c, c.k->gemm->glu(c.s, &there, host_out(&c, n->t, y, wide), host_out(&c, n->t, gate, wide),
                           host_out(&c, n->t, up, wide), host_in(&c, n->t, x, n->rows * n->h),
                           host_in(&c, n->t, w_gate, weights), host_in(&c, n->t, w_up, weights)));
}

static d9d_status on_gemm_glu_bwd(d9d_stream s, const d9d_gemm_glu_dims *n, void *dgate, void *dup,
                                  const void *dout, const void *w, const void *gate, const void *up)
{
    const int64_t wide = n->rows * n->i;
    host_call c = host_begin();
    const d9d_gemm_glu_dims there = glu_dims_on(&c, n);

    (void)s;
    return host_end(&c, c.k->gemm->glu_bwd(
                            c.s, &there, host_out(&c, n->t, dgate, wide),
                            host_out(&c, n->t, dup, wide), host_in(&c, n->t, dout, n->rows * n->h),
                            host_in(&c, n->t, w, n->e * n->h * n->i), host_in(&c, n->t, gate, wide),
                            host_in(&c, n->t, up, wide)));
}

static d9d_status on_gemm_per_head(d9d_stream s, const d9d_gemm_per_head_dims *n, void *y,
                                   const void *x, const void *w)
{
    const int64_t rows = n->heads * n->m, wide = n->trans_w ? n->in : n->out;
    host_call c = host_begin();

    (void)s;
    return host_end(&c,
                    c.k->gemm->per_head(c.s, n, host_out(&c, n->t, y, rows * n->y_cols),
                                        host_in(&c, n->t, x, rows * n->x_cols),
                                        host_in(&c, n->t, w, n->heads * n->w_head_rows * wide)));
}

HOST_KERNELS(gemm, D9D_GEMM_KERNELS)
