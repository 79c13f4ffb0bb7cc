/* host_elementwise.c - elementwise kernels, embeddings, copies for arrays in host memory, see
 * host_call.h. */
#include "host_call.h"

static d9d_status on_fill(d9d_stream s, d9d_dtype t, void *y, int64_t n, float v)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->elementwise->fill(c.s, t, host_out(&c, t, y, n), n, v));
}

static d9d_status on_cast(d9d_stream s, d9d_dtype yt, void *y, d9d_dtype xt, const void *x,
                          int64_t n)
{
    host_call c = host_begin();

    (void)s;
    return host_end(
        &c, c.k->elementwise->cast(c.s, yt, host_out(&c, yt, y, n), xt, host_in(&c, xt, x, n), n));
}

static d9d_status on_softcap(d9d_stream s, d9d_dtype t, void *y, const void *x, float cap,
                             int64_t n)
{
    host_call c = host_begin();

    (void)s;
    return host_end(
        &c, c.k->elementwise->softcap(c.s, t, host_out(&c, t, y, n), host_in(&c, t, x, n), cap, n));
}

static d9d_status on_add(d9d_stream s, d9d_dtype t, void *y, const void *const *x, int of,
                         int64_t n)
{
    host_call c = host_begin();
    const void *there[D9D_ADD_MAX_ARRAYS] = {0};

    (void)s;
    for (int i = 0; i < of && i < D9D_ADD_MAX_ARRAYS; i++)
        there[i] = host_in(&c, t, x[i], n);
    return host_end(&c, c.k->elementwise->add(c.s, t, host_out(&c, t, y, n), there, of, n));
}

static d9d_status on_accumulate(d9d_stream s, d9d_dtype yt, void *y, float beta, d9d_dtype xt,
                                const void *x, int64_t n)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->elementwise->accumulate(c.s, yt, host_out(&c, yt, y, n), beta, xt,
                                                     host_in(&c, xt, x, n), n));
}

static d9d_status on_axpy(d9d_stream s, d9d_dtype t, void *y, float alpha, const void *x,
                          const void *plus, int64_t n)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->elementwise->axpy(c.s, t, host_out(&c, t, y, n), alpha,
                                               host_in(&c, t, x, n), host_in(&c, t, plus, n), n));
}

static d9d_status on_foreach_axpby(d9d_stream s, d9d_dtype yt, d9d_dtype xt,
                                   const d9d_foreach_matrix *list, int count)
{
    host_call c = host_begin();
    d9d_foreach_matrix on[D9D_FOREACH_MAX];

    (void)s;
    for (int i = 0; i < count && i < D9D_FOREACH_MAX; i++) {
        on[i] = list[i];
        on[i].x = host_in(&c, xt, list[i].x, list[i].m * list[i].x_ld);
        on[i].y = host_out(&c, yt, list[i].y, list[i].m * list[i].y_ld);
    }
    return host_end(&c, c.k->elementwise->foreach_axpby(c.s, yt, xt, on, count));
}

static d9d_status on_glu(d9d_stream s, const d9d_glu *f, d9d_dtype t, void *y, const void *gate,
                         const void *up, int64_t n)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->elementwise->glu(c.s, f, t, host_out(&c, t, y, n),
                                              host_in(&c, t, gate, n), host_in(&c, t, up, n), n));
}

static d9d_status on_glu_bwd(d9d_stream s, const d9d_glu *f, d9d_dtype t, void *dgate, void *dup,
                             const void *dy, const void *gate, const void *up, int64_t n)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c,
                    c.k->elementwise->glu_bwd(c.s, f, t, host_out(&c, t, dgate, n),
                                              host_out(&c, t, dup, n), host_in(&c, t, dy, n),
                                              host_in(&c, t, gate, n), host_in(&c, t, up, n), n));
}

static d9d_status on_add_bias(d9d_stream s, d9d_dtype t, void *y, const void *x, const void *b,
                              const int32_t *offset, int64_t m, int64_t e, int64_t n)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->elementwise->add_bias(
                            c.s, t, host_out(&c, t, y, m * n), host_in(&c, t, x, m * n),
                            host_in(&c, t, b, e * n), host_ints(&c, offset, e + 1), m, e, n));
}

static d9d_status on_sigmoid_gate(d9d_stream s, d9d_dtype t, void *y, const void *x, const void *g,
                                  int64_t m, int64_t n)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->elementwise->sigmoid_gate(c.s, t, host_out(&c, t, y, m * n),
                                                       host_in(&c, t, x, m * n),
                                                       host_in(&c, t, g, m), m, n));
}

static d9d_status on_sigmoid_gate_bwd(d9d_stream s, d9d_dtype t, void *dx, void *dg, const void *dy,
                                      const void *x, const void *g, int64_t m, int64_t n)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->elementwise->sigmoid_gate_bwd(
                            c.s, t, host_out(&c, t, dx, m * n), host_out(&c, t, dg, m),
                            host_in(&c, t, dy, m * n), host_in(&c, t, x, m * n),
                            host_in(&c, t, g, m), m, n));
}

static d9d_status on_random(d9d_stream s, d9d_dtype t, void *y, d9d_init_kind kind, float scale,
                            d9d_rng r, int ndim, const int64_t *box, const int64_t *start,
                            const int64_t *whole)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->elementwise->random(c.s, t, host_out(&c, t, y, host_numel(ndim, box)),
                                                 kind, scale, r, ndim, box, start, whole));
}

static d9d_status on_dropout(d9d_stream s, d9d_dtype t, void *y, const void *x, float p,
                             float factor, d9d_rng r, const int64_t *token, int64_t m, int64_t n,
                             int64_t first, int64_t width)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c,
                    c.k->elementwise->dropout(
                        c.s, t, host_out(&c, t, y, m * n), host_in(&c, t, x, m * n), p, factor, r,
                        token != NULL ? host_in(&c, D9D_I64, token, m) : NULL, m, n, first, width));
}

static d9d_status on_copy_strided(d9d_stream s, const d9d_copy_strided_dims *n, void *y,
                                  const void *x)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->elementwise->copy_strided(
                            c.s, n, host_out(&c, n->t, y, n->m * n->heads * n->y_cols),
                            host_in(&c, n->t, x, n->m * n->x_cols)));
}

static d9d_status on_copy_strided_bwd(d9d_stream s, const d9d_copy_strided_dims *n, void *x,
                                      const void *y)
{
    host_call c = host_begin();

    (void)s;
    return host_end(
        &c, c.k->elementwise->copy_strided_bwd(c.s, n, host_out(&c, n->t, x, n->m * n->x_cols),
                                               host_in(&c, n->t, y, n->m * n->heads * n->y_cols)));
}

static d9d_status on_scatter_rows(d9d_stream s, d9d_dtype t, void *y, int64_t ld, int64_t first,
                                  const int32_t *at, const void *x, int64_t m, int64_t n)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c,
                    c.k->elementwise->scatter_rows(
                        c.s, t, host_out(&c, t, y, host_rows_reached(at, m) * ld), ld, first,
                        at == NULL ? NULL : host_ints(&c, at, m), host_in(&c, t, x, m * n), m, n));
}

static d9d_status on_embedding(d9d_stream s, d9d_dtype t, void *y, const int32_t *ids,
                               const void *table, int64_t rows, int64_t first, int64_t v, int64_t h,
                               bool clear)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->elementwise->embedding(
                            c.s, t, host_out(&c, t, y, rows * h), host_ints(&c, ids, rows),
                            host_in(&c, t, table, v * h), rows, first, v, h, clear));
}

static d9d_status on_embedding_wgrad(d9d_stream s, d9d_dtype t, d9d_dtype gt, void *dtable,
                                     float beta, const int32_t *ids, const void *dy, int64_t rows,
                                     int64_t first, int64_t v, int64_t h)
{
    host_call c = host_begin();

    (void)s;
    return host_end(
        &c, c.k->elementwise->embedding_wgrad(c.s, t, gt, host_out(&c, gt, dtable, v * h), beta,
                                              host_ints(&c, ids, rows),
                                              host_in(&c, t, dy, rows * h), rows, first, v, h));
}

static d9d_status on_argmax(d9d_stream s, int32_t *at, float *value, const float *x, int64_t m,
                            int64_t n)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->elementwise->argmax(c.s, host_out(&c, D9D_I32, at, m),
                                                 host_out(&c, D9D_F32, value, m),
                                                 host_floats(&c, x, m * n), m, n));
}

static d9d_status on_repetition_penalty(d9d_stream s, const d9d_repetition_penalty_args *a)
{
    const int64_t slots = host_rows_reached(a->slots, a->tokens);
    int64_t history = slots;
    d9d_repetition_penalty_args there = *a;
    host_call c = host_begin();

    (void)s;
    for (int64_t i = 0; i < a->m; i++)
        if (a->segment[i].k + a->segment[i].nk > history)
            history = a->segment[i].k + a->segment[i].nk;
    there.history = host_out(&c, D9D_I32, a->history, history);
    there.ids = host_ints(&c, a->ids, a->tokens);
    there.slots = host_ints(&c, a->slots, a->tokens);
    there.segment = host_in(&c, D9D_I32, a->segment, 4 * a->m);
    there.x = host_floats(&c, a->x, a->m * a->n);
    there.y = host_out(&c, D9D_F32, a->y, a->m * a->n);
    return host_end(&c, c.k->elementwise->repetition_penalty(c.s, &there));
}

static d9d_status on_sample_tokens(d9d_stream s, const d9d_sample_tokens_args *a)
{
    d9d_sample_tokens_args there = *a;
    host_call c = host_begin();

    (void)s;
    there.draw = host_in(&c, D9D_I64, a->draw, 2 * a->m);
    there.x = host_floats(&c, a->x, a->m * a->n);
    there.token = host_out(&c, D9D_I32, a->token, a->m);
    there.largest = host_out(&c, D9D_F32, a->largest, a->m);
    there.stats = host_out(&c, D9D_F64, a->stats, 2 * a->m);
    return host_end(&c, c.k->elementwise->sample_tokens(c.s, &there));
}

HOST_KERNELS(elementwise, D9D_ELEMENTWISE_KERNELS)
