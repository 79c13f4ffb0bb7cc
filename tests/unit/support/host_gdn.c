/* host_gdn.c - the gated delta rule and its convolution for arrays in host memory, see host_call.h.
 */
#include "host_call.h"

#include <stdlib.h>

static d9d_varlen varlen_on(host_call *c, const d9d_varlen *x)
{
    d9d_varlen d = *x;

    d.segment = host_in(c, D9D_I32, x->segment, 4 * x->segments);
    return d;
}

static d9d_status on_causal_conv1d(d9d_stream s, const d9d_causal_conv1d_dims *n, void *y,
                                   const void *x, const void *w)
{
    const int64_t all = n->docs.b * n->docs.s * n->n;
    host_call c = host_begin();
    d9d_causal_conv1d_dims d = *n;

    (void)s;
    d.docs = varlen_on(&c, &n->docs);
    return host_end(&c, c.k->gdn->causal_conv1d(c.s, &d, host_out(&c, n->t, y, all),
                                                host_in(&c, n->t, x, all),
                                                host_in(&c, n->t, w, n->n * n->w)));
}

static d9d_status on_causal_conv1d_bwd(d9d_stream s, const d9d_causal_conv1d_dims *n, void *dx,
                                       d9d_dtype gt, void *dw, float beta, const void *dy,
                                       const void *x, const void *w)
{
    const int64_t all = n->docs.b * n->docs.s * n->n, weights = n->n * n->w;
    host_call c = host_begin();
    d9d_causal_conv1d_dims d = *n;

    (void)s;
    d.docs = varlen_on(&c, &n->docs);
    return host_end(&c, c.k->gdn->causal_conv1d_bwd(
                            c.s, &d, host_out(&c, n->t, dx, all), gt, host_out(&c, gt, dw, weights),
                            beta, host_in(&c, n->t, dy, all), host_in(&c, n->t, x, all),
                            host_in(&c, n->t, w, weights)));
}

static d9d_status on_gdn_gate(d9d_stream s, d9d_dtype t, float *g, const void *x, const void *rate,
                              const void *bias, int64_t m, int64_t n)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->gdn->gate(c.s, t, host_out(&c, D9D_F32, g, m * n),
                                       host_in(&c, t, x, m * n), host_in(&c, t, rate, n),
                                       host_in(&c, t, bias, n), m, n));
}

static d9d_status on_gdn_gate_dgrad(d9d_stream s, d9d_dtype t, void *dx, const float *dg,
                                    const void *x, const void *rate, const void *bias, int64_t m,
                                    int64_t n)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c,
                    c.k->gdn->gate_dgrad(c.s, t, host_out(&c, t, dx, m * n),
                                         host_floats(&c, dg, m * n), host_in(&c, t, x, m * n),
                                         host_in(&c, t, rate, n), host_in(&c, t, bias, n), m, n));
}

static d9d_status on_gdn_gate_wgrad(d9d_stream s, d9d_dtype t, d9d_dtype gt, void *dw, float beta,
                                    bool of_bias, const float *dg, const void *x, const void *rate,
                                    const void *bias, int64_t m, int64_t n)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c,
                    c.k->gdn->gate_wgrad(c.s, t, gt, host_out(&c, gt, dw, n), beta, of_bias,
                                         host_floats(&c, dg, m * n), host_in(&c, t, x, m * n),
                                         host_in(&c, t, rate, n), host_in(&c, t, bias, n), m, n));
}

static d9d_gated_delta_dims gated_delta_dims_on(host_call *c, const d9d_gated_delta_dims *n)
{
    d9d_gated_delta_dims d = *n;

    d.docs = varlen_on(c, &n->docs);
    return d;
}

static d9d_status on_gated_delta(d9d_stream s, const d9d_gated_delta_dims *n, void *o,
                                 float *states, const void *q, const void *k, const void *v,
                                 const float *g, const void *b)
{
    const int64_t tokens = n->docs.b * n->docs.s, keys = tokens * n->k * n->d;
    const int64_t values = tokens * n->a * n->f;
    host_call c = host_begin();
    const d9d_gated_delta_dims d = gated_delta_dims_on(&c, n);

    (void)s;
    return host_end(
        &c,
        c.k->gdn->gated_delta(
            c.s, &d, host_out(&c, n->t, o, values),
            host_out(&c, D9D_F32, states, d9d_gated_delta_states(&n->docs) * n->a * n->d * n->f),
            host_in(&c, n->t, q, keys), host_in(&c, n->t, k, keys), host_in(&c, n->t, v, values),
            host_floats(&c, g, tokens * n->a), host_in(&c, n->t, b, tokens * n->a)));
}

static d9d_status on_gated_delta_bwd(d9d_stream s, const d9d_gated_delta_dims *n, void *dq,
                                     void *dk, void *dv, float *dg, void *db, const void *dout,
                                     const void *q, const void *k, const void *v, const float *g,
                                     const void *b, const float *states)
{
    const int64_t tokens = n->docs.b * n->docs.s, keys = tokens * n->k * n->d;
    const int64_t values = tokens * n->a * n->f, slots = d9d_gated_delta_states(&n->docs);
    host_call c = host_begin();
    const d9d_gated_delta_dims d = gated_delta_dims_on(&c, n);

    (void)s;
    return host_end(&c,
                    c.k->gdn->gated_delta_bwd(
                        c.s, &d, host_out(&c, n->t, dq, keys), host_out(&c, n->t, dk, keys),
                        host_out(&c, n->t, dv, values), host_out(&c, D9D_F32, dg, tokens * n->a),
                        host_out(&c, n->t, db, tokens * n->a), host_in(&c, n->t, dout, values),
                        host_in(&c, n->t, q, keys), host_in(&c, n->t, k, keys),
                        host_in(&c, n->t, v, values), host_floats(&c, g, tokens * n->a),
                        host_in(&c, n->t, b, tokens * n->a),
                        host_floats(&c, states, slots * n->a * n->d * n->f)));
}

/* State slots of so many elements. */
static d9d_state_slots state_slots_on(host_call *c, const d9d_varlen *of, const d9d_state_slots *x,
                                      d9d_dtype t, int64_t each)
{
    int64_t slots = 0;

    for (int64_t i = 0; i < of->segments; i++)
        slots = x->slot_index[i] >= slots ? x->slot_index[i] + 1 : slots;
    return (d9d_state_slots){host_out(c, t, x->slots, slots * each),
                             host_ints(c, x->slot_index, of->segments)};
}

static d9d_status on_causal_conv1d_update(d9d_stream s, const d9d_causal_conv1d_dims *n, int count,
                                          const d9d_causal_conv1d_array *of)
{
    const int64_t tokens = n->docs.b * n->docs.s;
    d9d_causal_conv1d_array there[HOST_MAX_SPLITS];
    host_call c = host_begin();
    d9d_causal_conv1d_dims d = *n;

    (void)s;
    if (count > HOST_MAX_SPLITS)
        abort();
    d.docs = varlen_on(&c, &n->docs);
    for (int i = 0; i < count; i++)
        there[i] = (d9d_causal_conv1d_array){
            of[i].n, state_slots_on(&c, &n->docs, &of[i].past, n->t, (n->w - 1) * of[i].n),
            host_out(&c, n->t, of[i].y, tokens * of[i].n),
            host_in(&c, n->t, of[i].x, tokens * of[i].n),
            host_in(&c, n->t, of[i].w, of[i].n * n->w)};
    return host_end(&c, c.k->gdn->causal_conv1d_update(c.s, &d, count, there));
}

static d9d_status on_gated_delta_step(d9d_stream s, const d9d_gated_delta_dims *n,
                                      const d9d_state_slots *past, void *o, const void *q,
                                      const void *k, const void *v, const float *g, const void *b)
{
    const int64_t tokens = n->docs.b * n->docs.s, keys = tokens * n->k * n->d;
    const int64_t values = tokens * n->a * n->f;
    host_call c = host_begin();
    const d9d_state_slots p = state_slots_on(&c, &n->docs, past, D9D_F32, n->a * n->d * n->f);
    const d9d_gated_delta_dims d = gated_delta_dims_on(&c, n);

    (void)s;
    return host_end(&c,
                    c.k->gdn->gated_delta_step(
                        c.s, &d, &p, host_out(&c, n->t, o, values), host_in(&c, n->t, q, keys),
                        host_in(&c, n->t, k, keys), host_in(&c, n->t, v, values),
                        host_floats(&c, g, tokens * n->a), host_in(&c, n->t, b, tokens * n->a)));
}

HOST_KERNELS(gdn, D9D_GDN_KERNELS)
