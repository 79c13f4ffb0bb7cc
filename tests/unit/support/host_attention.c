/* host_attention.c - attention for arrays in host memory, see host_call.h. */
#include "host_call.h"

static d9d_attention_dims attention_dims_on(host_call *c, const d9d_attention_dims *n)
{
    d9d_attention_dims d = *n;

    d.segment = host_in(c, D9D_I32, n->segment, 4 * n->segments);
    d.dropout.token = host_in(c, D9D_I64, n->dropout.token, n->b * n->s);
    d.prefix = host_in(c, D9D_I32, n->prefix, n->segments);
    d.k_scale = host_floats(c, n->k_scale, n->b * n->z * n->kv);
    d.v_scale = host_floats(c, n->v_scale, n->b * n->z * n->kv);
    return d;
}

static d9d_dtype cached_type(const d9d_attention_dims *n)
{
    return n->k_scale != NULL ? D9D_F8_E4M3 : n->t;
}

static d9d_status on_attention(d9d_stream s, const d9d_attention_dims *n, void *o, float *lse,
                               const void *q, const void *k, const void *v)
{
    const int64_t rows = n->b * n->s * n->a, keys = n->b * d9d_attention_array_keys(n) * n->kv;
    const int64_t dv = d9d_attention_dims_resolve(n).dv;
    host_call c = host_begin();
    const d9d_attention_dims d = attention_dims_on(&c, n);

    (void)s;
    return host_end(&c, c.k->attention->fwd(c.s, &d, host_out(&c, n->t, o, rows * dv),
                                            host_out(&c, D9D_F32, lse, rows),
                                            host_in(&c, n->t, q, rows * n->d),
                                            host_in(&c, cached_type(n), k, keys * n->d),
                                            host_in(&c, cached_type(n), v, keys * dv)));
}

static d9d_status on_attention_bwd(d9d_stream s, const d9d_attention_dims *n, void *dq, void *dk,
                                   void *dv, const void *dout, const void *q, const void *k,
                                   const void *v, const void *o, const float *lse)
{
    const int64_t rows = n->b * n->s * n->a, keys = n->b * d9d_attention_array_keys(n) * n->kv;
    const int64_t nq = rows * n->d, nk = keys * n->d;
    const int64_t no = rows * d9d_attention_dims_resolve(n).dv,
                  nv = keys * d9d_attention_dims_resolve(n).dv;
    host_call c = host_begin();
    const d9d_attention_dims d = attention_dims_on(&c, n);

    (void)s;
    return host_end(&c, c.k->attention->bwd(c.s, &d, host_out(&c, n->t, dq, nq),
                                            host_out(&c, n->t, dk, nk), host_out(&c, n->t, dv, nv),
                                            host_in(&c, n->t, dout, no), host_in(&c, n->t, q, nq),
                                            host_in(&c, n->t, k, nk), host_in(&c, n->t, v, nv),
                                            host_in(&c, n->t, o, no), host_floats(&c, lse, rows)));
}

static d9d_status on_attention_sink(d9d_stream s, const d9d_attention_dims *n, void *o, float *lse,
                                    const void *sink)
{
    const int64_t rows = n->b * n->s * n->a, size = rows * d9d_attention_dims_resolve(n).dv;
    host_call c = host_begin();
    const d9d_attention_dims d = attention_dims_on(&c, n);

    (void)s;
    return host_end(&c, c.k->attention->sink(c.s, &d, host_out(&c, n->t, o, size),
                                             host_out(&c, D9D_F32, lse, rows),
                                             host_in(&c, n->t, sink, n->a)));
}

static d9d_status on_attention_sink_wgrad(d9d_stream s, const d9d_attention_dims *n, d9d_dtype gt,
                                          void *dsink, float beta, const void *dout, const void *o,
                                          const float *lse, const void *sink)
{
    const int64_t rows = n->b * n->s * n->a, size = rows * d9d_attention_dims_resolve(n).dv;
    host_call c = host_begin();
    const d9d_attention_dims d = attention_dims_on(&c, n);

    (void)s;
    return host_end(
        &c, c.k->attention->sink_wgrad(c.s, &d, gt, host_out(&c, gt, dsink, n->a), beta,
                                       host_in(&c, n->t, dout, size), host_in(&c, n->t, o, size),
                                       host_floats(&c, lse, rows), host_in(&c, n->t, sink, n->a)));
}

static d9d_status on_attention_merge(d9d_stream s, const d9d_attention_dims *n, bool first,
                                     float *acc, float *acc_lse, const void *o, const float *lse)
{
    const int64_t rows = n->b * n->s * n->a, size = rows * d9d_attention_dims_resolve(n).dv;
    host_call c = host_begin();
    const d9d_attention_dims d = attention_dims_on(&c, n);

    (void)s;
    return host_end(&c,
                    c.k->attention->merge(c.s, &d, first, host_out(&c, D9D_F32, acc, size),
                                          host_out(&c, D9D_F32, acc_lse, rows),
                                          host_in(&c, n->t, o, size), host_floats(&c, lse, rows)));
}

static d9d_status on_cp_zigzag(d9d_stream s, d9d_dtype t, void *y, const void *x, int64_t n,
                               int64_t b, int64_t p, int64_t w, bool in_order)
{
    const int64_t size = 2 * n * b * p * w;
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->attention->cp_zigzag(c.s, t, host_out(&c, t, y, size),
                                                  host_in(&c, t, x, size), n, b, p, w, in_order));
}

static d9d_status on_kv_append_fp8(d9d_stream s, d9d_dtype t, int n,
                                   const d9d_attention_append_fp8 *list, const int32_t *at,
                                   int64_t m, int64_t kv, int64_t d)
{
    d9d_attention_append_fp8 on[D9D_ATTENTION_APPEND_FP8_MAX];
    int64_t slots = 0;
    host_call c = host_begin();

    (void)s;
    for (int64_t i = 0; i < m; i++)
        slots = at[i] >= slots ? at[i] + 1 : slots;
    for (int i = 0; i < n && i < D9D_ATTENTION_APPEND_FP8_MAX; i++)
        on[i] = (d9d_attention_append_fp8){host_in(&c, t, list[i].x, m * kv * d),
                                           host_out(&c, D9D_F8_E4M3, list[i].codes, slots * kv * d),
                                           host_out(&c, D9D_F32, list[i].scale, slots * kv)};
    return host_end(&c,
                    c.k->attention->kv_append_fp8(c.s, t, n, on, host_ints(&c, at, m), m, kv, d));
}

HOST_KERNELS(attention, D9D_ATTENTION_KERNELS)
