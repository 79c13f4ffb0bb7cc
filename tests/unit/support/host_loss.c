/* host_loss.c - losses for arrays in host memory, see host_call.h. */
#include "host_call.h"

/* The logits of all vocabularies, or of the whole one that is sharded. */
static int64_t logits_count(const d9d_linear_cross_entropy_dims *n)
{
    int64_t all = n->vocab;

    for (int i = 0; i < n->n_split && n->first == NULL; i++)
        all += n->v[i];
    return all;
}

/* The same dimensions with the bias on the device, and no gradient of it. */
static d9d_linear_cross_entropy_dims loss_dims_on(host_call *c,
                                                  const d9d_linear_cross_entropy_dims *n)
{
    d9d_linear_cross_entropy_dims on = *n;

    on.bias = host_in(c, n->t, n->bias, logits_count(n));
    on.dbias = NULL;
    return on;
}

/* The parts of a split vocabulary. */
static void copy_splits(host_call *c, const d9d_linear_cross_entropy_dims *n, const void *const *w,
                        const void *on[])
{
    for (int i = 0; i < n->n_split; i++)
        on[i] = host_in(c, n->t, w[i], n->v[i] * n->h);
}

static d9d_status on_linear_cross_entropy(d9d_stream s, const d9d_linear_cross_entropy_dims *n,
                                          float *loss, float *lse, void *unit, const void *hidden,
                                          const void *const *w, const int32_t *targets)
{
    const void *head[HOST_MAX_SPLITS];
    host_call c = host_begin();
    const d9d_linear_cross_entropy_dims dims = loss_dims_on(&c, n);

    (void)s;
    copy_splits(&c, n, w, head);
    return host_end(
        &c, c.k->loss->linear_cross_entropy(
                c.s, &dims, host_out(&c, D9D_F32, loss, n->rows),
                host_out(&c, D9D_F32, lse, n->rows), host_out(&c, n->t, unit, n->rows * n->h),
                host_in(&c, n->t, hidden, n->rows * n->h), head, host_ints(&c, targets, n->rows)));
}

static d9d_status on_linear_cross_entropy_combine(d9d_stream s,
                                                  const d9d_linear_cross_entropy_dims *d,
                                                  float *loss, float *lse, void *unit,
                                                  const float *parts, int64_t n, int64_t rank,
                                                  const void *const *w, const int32_t *targets)
{
    const void *head[HOST_MAX_SPLITS];
    host_call c = host_begin();

    (void)s;
    copy_splits(&c, d, w, head);
    return host_end(
        &c, c.k->loss->linear_cross_entropy_combine(
                c.s, d, host_out(&c, D9D_F32, loss, d->rows), host_out(&c, D9D_F32, lse, d->rows),
                host_out(&c, d->t, unit, d->rows * d->h), host_floats(&c, parts, 2 * n * d->rows),
                n, rank, head, host_ints(&c, targets, d->rows)));
}

static d9d_status on_linear_cross_entropy_dgrad(d9d_stream s, d9d_dtype t, void *dhidden,
                                                const float *dloss, const void *unit, int64_t rows,
                                                int64_t h)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->loss->linear_cross_entropy_dgrad(
                            c.s, t, host_out(&c, t, dhidden, rows * h),
                            host_floats(&c, dloss, rows), host_in(&c, t, unit, rows * h), rows, h));
}

static d9d_status on_linear_cross_entropy_wgrad(d9d_stream s,
                                                const d9d_linear_cross_entropy_dims *n,
                                                d9d_dtype gt, void *const *dw, const float *beta,
                                                const float *dloss, const float *lse,
                                                const void *hidden, const void *const *w,
                                                const int32_t *targets)
{
    const void *head[HOST_MAX_SPLITS];
    void *grad[HOST_MAX_SPLITS];
    host_call c = host_begin();
    d9d_linear_cross_entropy_dims dims = loss_dims_on(&c, n);

    (void)s;
    dims.dbias = host_out(&c, gt, n->dbias, logits_count(n));
    copy_splits(&c, n, w, head);
    for (int i = 0; i < n->n_split; i++)
        grad[i] = host_out(&c, gt, dw[i], n->v[i] * n->h);
    return host_end(&c,
                    c.k->loss->linear_cross_entropy_wgrad(
                        c.s, &dims, gt, grad, beta, host_floats(&c, dloss, n->rows),
                        host_floats(&c, lse, n->rows), host_in(&c, n->t, hidden, n->rows * n->h),
                        head, host_ints(&c, targets, n->rows)));
}

static d9d_status on_linear_cross_entropy_fwd_bwd(d9d_stream s,
                                                  const d9d_linear_cross_entropy_dims *n,
                                                  d9d_dtype gt, float *loss, void *unit,
                                                  void *const *dw, const float *beta,
                                                  const void *hidden, const void *const *w,
                                                  const int32_t *targets)
{
    const void *head[HOST_MAX_SPLITS];
    void *grad[HOST_MAX_SPLITS];
    host_call c = host_begin();

    (void)s;
    copy_splits(&c, n, w, head);
    for (int i = 0; i < n->n_split; i++)
        grad[i] = host_out(&c, gt, dw[i], n->v[i] * n->h);
    return host_end(&c, c.k->loss->linear_cross_entropy_fwd_bwd(
                            c.s, n, gt, host_out(&c, D9D_F32, loss, n->rows),
                            host_out(&c, n->t, unit, n->rows * n->h), grad, beta,
                            host_in(&c, n->t, hidden, n->rows * n->h), head,
                            host_ints(&c, targets, n->rows)));
}

HOST_KERNELS(loss, D9D_LOSS_KERNELS)
