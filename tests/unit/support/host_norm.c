/* host_norm.c - norms and positions for arrays in host memory, see host_call.h. */
#include "host_call.h"

#include <stdlib.h>

static d9d_status on_rms_norm(d9d_stream s, d9d_dtype t, void *y, float *inv, const void *x,
                              const void *w, int64_t m, int64_t n, float eps, bool zero_centred)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->norm->rms_norm(c.s, t, host_out(&c, t, y, m * n),
                                            host_out(&c, D9D_F32, inv, m), host_in(&c, t, x, m * n),
                                            host_in(&c, t, w, n), m, n, eps, zero_centred));
}

static d9d_status on_rms_norm_bwd(d9d_stream s, d9d_dtype t, void *dx, const void *plus,
                                  d9d_dtype gt, void *dw, float beta, const void *dy, const void *x,
                                  const void *w, const float *inv, int64_t m, int64_t n,
                                  bool zero_centred)
{
    host_call c = host_begin();

    (void)s;
    return host_end(
        &c, c.k->norm->rms_norm_bwd(c.s, t, host_out(&c, t, dx, m * n), host_in(&c, t, plus, m * n),
                                    gt, host_out(&c, gt, dw, n), beta, host_in(&c, t, dy, m * n),
                                    host_in(&c, t, x, m * n), host_in(&c, t, w, n),
                                    host_floats(&c, inv, m), m, n, zero_centred));
}

static d9d_status on_layer_norm(d9d_stream s, d9d_dtype t, void *y, float *mean, float *inv,
                                const void *x, const void *w, const void *b, int64_t m, int64_t n,
                                float eps)
{
    host_call c = host_begin();

    (void)s;
    return host_end(
        &c, c.k->norm->layer_norm(c.s, t, host_out(&c, t, y, m * n), host_out(&c, D9D_F32, mean, m),
                                  host_out(&c, D9D_F32, inv, m), host_in(&c, t, x, m * n),
                                  host_in(&c, t, w, n), host_in(&c, t, b, n), m, n, eps));
}

static d9d_status on_layer_norm_bwd(d9d_stream s, d9d_dtype t, void *dx, const void *plus,
                                    const d9d_layer_norm_grads *of, const void *dy, const void *x,
                                    const void *w, const float *mean, const float *inv, int64_t m,
                                    int64_t n)
{
    host_call c = host_begin();
    d9d_layer_norm_grads d = *of;

    (void)s;
    d.dw = host_out(&c, of->wt, of->dw, n);
    d.db = host_out(&c, of->bt, of->db, n);
    return host_end(
        &c, c.k->norm->layer_norm_bwd(c.s, t, host_out(&c, t, dx, m * n),
                                      host_in(&c, t, plus, m * n), &d, host_in(&c, t, dy, m * n),
                                      host_in(&c, t, x, m * n), host_in(&c, t, w, n),
                                      host_floats(&c, mean, m), host_floats(&c, inv, m), m, n));
}

static d9d_status on_rms_norm_dot(d9d_stream s, const d9d_rms_norm_parallel_dims *n, float *dot,
                                  const void *x, const void *y, const void *w)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->norm->rms_norm_dot(c.s, n, host_out(&c, D9D_F32, dot, n->m),
                                                host_in(&c, n->t, x, n->m * n->n),
                                                host_in(&c, n->t, y, n->m * n->n),
                                                host_in(&c, n->t, w, n->n)));
}

static d9d_status on_rms_norm_parallel(d9d_stream s, const d9d_rms_norm_parallel_dims *n, void *y,
                                       float *inv, const float *sum, const void *x, const void *w)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->norm->rms_norm_parallel(
                            c.s, n, host_out(&c, n->t, y, n->m * n->n),
                            host_out(&c, D9D_F32, inv, n->m), host_floats(&c, sum, n->m),
                            host_in(&c, n->t, x, n->m * n->n), host_in(&c, n->t, w, n->n)));
}

static d9d_status on_rms_norm_parallel_bwd(d9d_stream s, const d9d_rms_norm_parallel_dims *n,
                                           void *dx, d9d_dtype gt, void *dw, float beta,
                                           const void *dy, const void *x, const void *w,
                                           const float *inv, const float *dot)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->norm->rms_norm_parallel_bwd(
                            c.s, n, host_out(&c, n->t, dx, n->m * n->n), gt,
                            host_out(&c, gt, dw, n->n), beta, host_in(&c, n->t, dy, n->m * n->n),
                            host_in(&c, n->t, x, n->m * n->n), host_in(&c, n->t, w, n->n),
                            host_floats(&c, inv, n->m), host_floats(&c, dot, n->m)));
}

static d9d_qk_norm_rope_dims norm_rope_dims_on(host_call *c, const d9d_qk_norm_rope_dims *n)
{
    d9d_qk_norm_rope_dims d = *n;

    d.positions = host_ints(c, n->positions, n->m);
    d.inv_freq = host_floats(c, n->inv_freq, n->r / 2);
    return d;
}

static d9d_status on_norm_rope(d9d_stream s, const d9d_qk_norm_rope_dims *n, void *y, float *inv,
                               const void *x, const void *w)
{
    const int64_t all = n->m * n->heads * n->d;
    host_call c = host_begin();
    const d9d_qk_norm_rope_dims d = norm_rope_dims_on(&c, n);

    (void)s;
    return host_end(&c,
                    c.k->norm->norm_rope(c.s, &d, host_out(&c, n->t, y, all),
                                         host_out(&c, D9D_F32, inv, n->m * n->heads),
                                         host_in(&c, n->t, x, all), host_in(&c, n->t, w, n->d)));
}

static d9d_status on_norm_rope_bwd(d9d_stream s, const d9d_qk_norm_rope_dims *n, void *dx,
                                   d9d_dtype gt, void *dw, float beta, const void *dy,
                                   const void *x, const void *w, const float *inv)
{
    const int64_t all = n->m * n->heads * n->d;
    host_call c = host_begin();
    const d9d_qk_norm_rope_dims d = norm_rope_dims_on(&c, n);

    (void)s;
    return host_end(&c, c.k->norm->norm_rope_bwd(
                            c.s, &d, host_out(&c, n->t, dx, all), gt, host_out(&c, gt, dw, n->d),
                            beta, host_in(&c, n->t, dy, all), host_in(&c, n->t, x, all),
                            host_in(&c, n->t, w, n->d), host_floats(&c, inv, n->m * n->heads)));
}

static d9d_status on_position_scale(d9d_stream s, d9d_dtype t, void *y, const void *x,
                                    const int32_t *positions, int64_t m, int64_t n, float beta,
                                    int64_t period)
{
    host_call c = host_begin();

    (void)s;
    return host_end(
        &c, c.k->norm->position_scale(c.s, t, host_out(&c, t, y, m * n), host_in(&c, t, x, m * n),
                                      host_in(&c, D9D_I32, positions, m), m, n, beta, period));
}

static d9d_status on_rope(d9d_stream s, d9d_dtype t, void *y, const void *x,
                          const int32_t *positions, const float *inv_freq, int64_t m, int64_t heads,
                          int64_t d, int64_t r, bool interleaved, float mscale, float sign)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c,
                    c.k->norm->rope(c.s, t, host_out(&c, t, y, m * heads * d),
                                    host_in(&c, t, x, m * heads * d), host_ints(&c, positions, m),
                                    host_floats(&c, inv_freq, r / 2), m, heads, d, r, interleaved,
                                    mscale, sign));
}

static d9d_status on_qk_norm_rope_append(d9d_stream s, const d9d_qk_norm_rope_dims *n, int count,
                                         const d9d_qk_norm_rope_heads *list)
{
    d9d_qk_norm_rope_heads there[HOST_MAX_SPLITS];
    host_call c = host_begin();
    const d9d_qk_norm_rope_dims d = norm_rope_dims_on(&c, n);

    (void)s;
    if (count > HOST_MAX_SPLITS)
        abort();
    for (int j = 0; j < count; j++) {
        const d9d_qk_norm_rope_heads *h = &list[j];
        const int64_t row = h->heads * n->d;
        const int64_t rows = host_rows_reached(h->row_index, n->m);

        there[j] = (d9d_qk_norm_rope_heads){
            host_in(&c, n->t, h->x, n->m * row),
            host_in(&c, n->t, h->w, h->all_heads ? row : n->d),
            host_out(&c, n->t, h->y, rows * row),
            h->heads,
            h->rotates,
            h->row_index == NULL ? NULL : host_ints(&c, h->row_index, n->m),
            h->all_heads};
    }
    return host_end(&c, c.k->norm->qk_norm_rope_append(c.s, &d, count, there));
}

static d9d_status on_latent_append(d9d_stream s, const d9d_latent_append_args *a)
{
    host_call c = host_begin();
    d9d_latent_append_args d = *a;

    (void)s;
    d.positions = host_ints(&c, a->positions, a->m);
    d.row_index = host_ints(&c, a->row_index, a->m);
    d.inv_freq = host_floats(&c, a->inv_freq, a->r / 2);
    d.q = host_in(&c, a->t, a->q, a->m * a->heads * a->q_cols);
    d.latent = host_in(&c, a->t, a->latent, a->m * a->c);
    d.key = host_in(&c, a->t, a->key, a->m * a->r);
    d.w = host_in(&c, a->t, a->w, a->c);
    d.query = host_out(&c, a->t, a->query, a->m * a->heads * (a->c + a->r));
    d.cache = host_out(&c, a->t, a->cache, host_rows_reached(a->row_index, a->m) * (a->c + a->r));
    return host_end(&c, c.k->norm->latent_append(c.s, &d));
}

static d9d_status on_rms_norm_gated(d9d_stream s, d9d_dtype t, void *y, float *inv, const void *x,
                                    const void *z, const void *w, int64_t m, int64_t n, float eps)
{
    host_call c = host_begin();

    (void)s;
    return host_end(
        &c, c.k->norm->rms_norm_gated(c.s, t, host_out(&c, t, y, m * n),
                                      host_out(&c, D9D_F32, inv, m), host_in(&c, t, x, m * n),
                                      host_in(&c, t, z, m * n), host_in(&c, t, w, n), m, n, eps));
}

static d9d_status on_rms_norm_gated_bwd(d9d_stream s, d9d_dtype t, void *dx, void *dz, d9d_dtype gt,
                                        void *dw, float beta, const void *dy, const void *x,
                                        const void *z, const void *w, const float *inv, int64_t m,
                                        int64_t n)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->norm->rms_norm_gated_bwd(
                            c.s, t, host_out(&c, t, dx, m * n), host_out(&c, t, dz, m * n), gt,
                            host_out(&c, gt, dw, n), beta, host_in(&c, t, dy, m * n),
                            host_in(&c, t, x, m * n), host_in(&c, t, z, m * n),
                            host_in(&c, t, w, n), host_floats(&c, inv, m), m, n));
}

HOST_KERNELS(norm, D9D_NORM_KERNELS)
