/* host_quant.c - products with quantised matrices in host memory, see host_call.h. */
#include "host_call.h"

#include <stdlib.h>

static d9d_quant_matrix matrix(host_call *c, const d9d_quant_matrix *w)
{
    d9d_quant_matrix d = *w;

    d.data = host_in(c, D9D_U8, w->data, w->rows * d9d_quant_row_bytes(w->format, w->cols));
    return d;
}

static d9d_status on_quant_dequantise(d9d_stream s, d9d_dtype t, void *y, const d9d_quant_matrix *w)
{
    host_call c = host_begin();
    const d9d_quant_matrix d = matrix(&c, w);

    (void)s;
    return host_end(&c, c.k->quant->dequantise(c.s, t, host_out(&c, t, y, w->rows * w->cols), &d));
}

static d9d_status on_quant_gemm(d9d_stream s, const d9d_gemm *g, const void *a,
                                const d9d_quant_matrix *w, void *y)
{
    host_call c = host_begin();
    const d9d_quant_matrix q = matrix(&c, w);
    d9d_gemm d = *g;

    (void)s;
    d.addend = host_in(&c, g->ct, g->addend, g->m * g->n);
    return host_end(&c, c.k->quant->product(c.s, &d, host_in(&c, g->t, a, g->m * g->k), &q,
                                            host_out(&c, g->ct, y, g->m * g->n)));
}

static d9d_status on_quant_gemm_multi(d9d_stream s, int n, const d9d_gemm *g, const void *a,
                                      const d9d_quant_matrix *w, void *const *y)
{
    d9d_quant_matrix q[HOST_MAX_SPLITS];
    void *ys[HOST_MAX_SPLITS];
    d9d_gemm d[HOST_MAX_SPLITS];
    host_call c = host_begin();

    (void)s;
    if (n > HOST_MAX_SPLITS)
        abort();
    for (int i = 0; i < n; i++) {
        d[i] = g[i];
        d[i].addend = host_in(&c, g->ct, g[i].addend, g[i].m * g[i].n);
        q[i] = matrix(&c, &w[i]);
        ys[i] = host_out(&c, g->ct, y[i], g[i].m * g[i].n);
    }
    return host_end(&c, c.k->quant->multi(c.s, n, d, host_in(&c, g->t, a, g->m * g->k), q, ys));
}

static d9d_status on_quant_gemm_glu(d9d_stream s, const d9d_gemm_glu_dims *n, void *y, void *gate,
                                    void *up, const void *x, const d9d_quant_matrix *w)
{
    host_call c = host_begin();
    d9d_gemm_glu_dims d = *n;
    d9d_quant_matrix q[2];

    (void)s;
    for (int i = 0; i < (up != NULL ? 2 : 1); i++)
        q[i] = matrix(&c, &w[i]);
    d.b_gate = host_in(&c, n->t, n->b_gate, n->i);
    d.b_up = host_in(&c, n->t, n->b_up, n->i);
    return host_end(&c, c.k->quant->glu(c.s, &d, host_out(&c, n->t, y, n->rows * n->i),
                                        host_out(&c, n->t, gate, n->rows * n->i),
                                        host_out(&c, n->t, up, n->rows * n->i),
                                        host_in(&c, n->t, x, n->rows * n->h), q));
}

HOST_KERNELS(quant, D9D_QUANT_KERNELS)
