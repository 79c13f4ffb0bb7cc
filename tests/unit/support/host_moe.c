/* host_moe.c - mixtures of experts for arrays in host memory, see host_call.h. */
#include "host_call.h"

static d9d_status on_router(d9d_stream s, const d9d_router_dims *n, float *p, float *prob,
                            int32_t *expert, const void *logits, const float *bias)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->moe->router(c.s, n, host_out(&c, D9D_F32, p, n->rows * n->e),
                                         host_out(&c, D9D_F32, prob, n->rows * n->k),
                                         host_out(&c, D9D_I32, expert, n->rows * n->k),
                                         host_in(&c, n->t, logits, n->rows * n->e),
                                         host_floats(&c, bias, n->e)));
}

/* The same with its arrays on the device. */
static d9d_router_balance router_balance_on(host_call *c, const d9d_router_dims *n,
                                            const d9d_router_balance *b)
{
    const int64_t batch = n->rows > 0 ? (b->first + n->rows - 1) / b->seq_len + 1 : 0;
    d9d_router_balance d = *b;

    d.weight = host_floats(c, b->weight, n->rows);
    d.load = host_floats(c, b->load, batch * n->e);
    d.logits = host_in(c, n->t, b->logits, n->rows * n->e);
    return d;
}

static d9d_status on_router_bwd(d9d_stream s, const d9d_router_dims *n, void *dlogits,
                                const float *dprob, const float *p, const float *prob,
                                const int32_t *expert, const d9d_router_balance *b)
{
    host_call c = host_begin();
    d9d_router_balance d = {0};

    (void)s;
    if (b != NULL)
        d = router_balance_on(&c, n, b);
    return host_end(&c, c.k->moe->router_bwd(c.s, n, host_out(&c, n->t, dlogits, n->rows * n->e),
                                             host_floats(&c, dprob, n->rows * n->k),
                                             host_floats(&c, p, n->rows * n->e),
                                             host_floats(&c, prob, n->rows * n->k),
                                             host_ints(&c, expert, n->rows * n->k),
                                             b != NULL ? &d : NULL));
}

static d9d_status on_expert_load(d9d_stream s, const d9d_router_dims *n, float *load, double *total,
                                 const int32_t *expert, const d9d_router_balance *b)
{
    const int64_t batch = n->rows > 0 ? (b->first + n->rows - 1) / b->seq_len + 1 : 0;
    host_call c = host_begin();
    const d9d_router_balance d = router_balance_on(&c, n, b);

    (void)s;
    return host_end(&c, c.k->moe->expert_load(c.s, n, host_out(&c, D9D_F32, load, batch * n->e),
                                              host_out(&c, D9D_F64, total, n->e),
                                              host_ints(&c, expert, n->rows * n->k), &d));
}

static d9d_status on_router_losses(d9d_stream s, const d9d_router_dims *n, float *aux, float *z,
                                   const float *p, const d9d_router_balance *b)
{
    host_call c = host_begin();
    const d9d_router_balance d = router_balance_on(&c, n, b);

    (void)s;
    return host_end(&c, c.k->moe->router_losses(c.s, n, host_out(&c, D9D_F32, aux, n->rows),
                                                host_out(&c, D9D_F32, z, n->rows),
                                                host_floats(&c, p, n->rows * n->e), &d));
}

static d9d_status on_router_bias(d9d_stream s, float *bias, const double *load, const float *scale,
                                 float rate, int64_t first, int64_t n, int64_t e)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->moe->router_bias(c.s, host_out(&c, D9D_F32, bias, n),
                                              host_in(&c, D9D_F64, load, e),
                                              host_floats(&c, scale, 1), rate, first, n, e));
}

static d9d_status on_sort_by_expert(d9d_stream s, int32_t *offset, int32_t *row, int32_t *source,
                                    const int32_t *expert, int64_t rows, int64_t e, int64_t k)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->moe->sort_by_expert(c.s, host_out(&c, D9D_I32, offset, e + 1),
                                                 host_out(&c, D9D_I32, row, rows * k),
                                                 host_out(&c, D9D_I32, source, rows * k),
                                                 host_ints(&c, expert, rows * k), rows, e, k));
}

static d9d_status on_permute(d9d_stream s, const d9d_moe_permute_dims *n, void *y, const void *x,
                             const int32_t *row)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->moe->permute(c.s, n, host_out(&c, n->t, y, n->n * n->h),
                                          host_in(&c, n->t, x, n->rows * n->h),
                                          host_ints(&c, row, n->rows * n->k)));
}

static d9d_status on_permute_bwd(d9d_stream s, const d9d_moe_permute_dims *n, void *dx,
                                 const void *dy, const int32_t *row)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->moe->permute_bwd(c.s, n, host_out(&c, n->t, dx, n->rows * n->h),
                                              host_in(&c, n->t, dy, n->n * n->h),
                                              host_ints(&c, row, n->rows * n->k)));
}

static d9d_status on_unpermute(d9d_stream s, const d9d_moe_permute_dims *n, void *y, const void *x,
                               const float *prob, const int32_t *row, const void *plus)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->moe->unpermute(c.s, n, host_out(&c, n->t, y, n->rows * n->h),
                                            host_in(&c, n->t, x, n->n * n->h),
                                            host_floats(&c, prob, n->rows * n->k),
                                            host_ints(&c, row, n->rows * n->k),
                                            host_in(&c, n->t, plus, n->rows * n->h)));
}

static d9d_status on_route(d9d_stream s, const d9d_router_dims *n, float *p, float *prob,
                           int32_t *expert, const d9d_expert_order *order, const void *logits,
                           const float *bias)
{
    const int64_t choices = n->rows * n->k;
    host_call c = host_begin();
    const d9d_expert_order there = {host_out(&c, D9D_I32, order->offset, n->e + 1),
                                    host_out(&c, D9D_I32, order->row, choices),
                                    host_out(&c, D9D_I32, order->source, choices)};

    (void)s;
    return host_end(&c, c.k->moe->route(c.s, n, host_out(&c, D9D_F32, p, n->rows * n->e),
                                        host_out(&c, D9D_F32, prob, choices),
                                        host_out(&c, D9D_I32, expert, choices), &there,
                                        host_in(&c, n->t, logits, n->rows * n->e),
                                        host_floats(&c, bias, n->e)));
}

static d9d_status on_experts(d9d_stream s, const d9d_experts_args *a, void *y)
{
    const int64_t choices = a->rows * a->k, weights = a->e * a->h * a->i;
    host_call c = host_begin();
    d9d_experts_args d = *a;

    (void)s;
    d.x = host_in(&c, a->t, a->x, a->rows * a->h);
    d.plus = host_in(&c, a->t, a->plus, a->rows * a->h);
    d.prob = host_floats(&c, a->prob, choices);
    d.order = (d9d_expert_order){host_out(&c, D9D_I32, a->order.offset, a->e + 1),
                                 host_out(&c, D9D_I32, a->order.row, choices),
                                 host_out(&c, D9D_I32, a->order.source, choices)};
    d.gate = host_in(&c, a->t, a->gate, weights);
    d.up = host_in(&c, a->t, a->up, weights);
    d.down = host_in(&c, a->t, a->down, weights);
    d.b_gate = host_in(&c, a->t, a->b_gate, a->e * a->i);
    d.b_up = host_in(&c, a->t, a->b_up, a->e * a->i);
    d.b_down = host_in(&c, a->t, a->b_down, a->e * a->h);
    d.sorted = host_out(&c, a->t, a->sorted, a->n * a->h);
    d.gates = host_out(&c, a->t, a->gates, a->n * a->i);
    d.ups = host_out(&c, a->t, a->ups, a->n * a->i);
    d.hidden = host_out(&c, a->t, a->hidden, a->n * a->i);
    return host_end(&c, c.k->moe->experts(c.s, &d, host_out(&c, a->t, y, a->rows * a->h)));
}

static d9d_status on_unpermute_bwd(d9d_stream s, const d9d_moe_permute_dims *n, void *dx,
                                   float *dprob, const void *dy, const void *x, const float *prob,
                                   const int32_t *row)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->moe->unpermute_bwd(c.s, n, host_out(&c, n->t, dx, n->n * n->h),
                                                host_out(&c, D9D_F32, dprob, n->rows * n->k),
                                                host_in(&c, n->t, dy, n->rows * n->h),
                                                host_in(&c, n->t, x, n->n * n->h),
                                                host_floats(&c, prob, n->rows * n->k),
                                                host_ints(&c, row, n->rows * n->k)));
}

static d9d_status on_expert_ranks(d9d_stream s, int32_t *rank, const int32_t *expert, int64_t rows,
                                  int64_t k, int64_t ranks, int64_t per)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c,
                    c.k->moe->expert_ranks(c.s, host_out(&c, D9D_I32, rank, rows * ranks),
                                           host_ints(&c, expert, rows * k), rows, k, ranks, per));
}

static d9d_status on_expert_local_ids(d9d_stream s, int32_t *local, const int32_t *source,
                                      const int32_t *expert, int64_t n, int64_t rows, int64_t k,
                                      int64_t ranks, int64_t per)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->moe->expert_local_ids(
                            c.s, host_out(&c, D9D_I32, local, n * k), host_ints(&c, source, n),
                            host_ints(&c, expert, rows * k), n, rows, k, ranks, per));
}

static d9d_status on_expert_numbers(d9d_stream s, int64_t *number, const int64_t *token,
                                    const int32_t *source, const int32_t *expert, int64_t n,
                                    int64_t rows, int64_t k, int64_t first, int64_t all)
{
    host_call c = host_begin();

    (void)s;
    return host_end(
        &c, c.k->moe->expert_numbers(c.s, host_out(&c, D9D_I64, number, n),
                                     host_in(&c, D9D_I64, token, rows), host_ints(&c, source, n),
                                     host_ints(&c, expert, rows * k), n, rows, k, first, all));
}

HOST_KERNELS(moe, D9D_MOE_KERNELS)
