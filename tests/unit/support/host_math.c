/* host_math.c - functions of elements, reductions and gather for arrays in host memory, see
 * host_call.h. */
#include "host_call.h"

/* Elements of an input: those along dimensions that it is not repeated along. */
static int64_t input_numel(const d9d_pointwise_dims *d, const d9d_pointwise_input *x)
{
    int64_t n = 1;

    for (int i = 0; i < d->ndim; i++)
        n *= x->stride[i] != 0 ? d->dim[i] : 1;
    return n;
}

static d9d_status on_pointwise(d9d_stream s, const d9d_pointwise_dims *d, void *y,
                               const void *const x[D9D_POINTWISE_INPUTS])
{
    const void *at[D9D_POINTWISE_INPUTS];
    host_call c = host_begin();

    (void)s;
    for (int i = 0; i < D9D_POINTWISE_INPUTS; i++)
        at[i] = host_in(&c, d->x[i].t, x[i], input_numel(d, &d->x[i]));
    return host_end(
        &c, c.k->math->pointwise(c.s, d, host_out(&c, d->yt, y, host_numel(d->ndim, d->dim)), at));
}

/* The same reduction with its offsets on the device; elements of x in *n. */
static d9d_reduce_axis_dims reduce_there(host_call *c, const d9d_reduce_axis_dims *d, int64_t *n)
{
    d9d_reduce_axis_dims on = *d;

    on.offset = host_ints(c, d->offset, d->m + 1);
    *n = (d->offset != NULL ? 1 : d->m) * d->r * d->n;
    return on;
}

static d9d_status on_reduce_axis(d9d_stream s, const d9d_reduce_axis_dims *d, float *y,
                                 const void *x)
{
    host_call c = host_begin();
    int64_t n;
    const d9d_reduce_axis_dims on = reduce_there(&c, d, &n);

    (void)s;
    return host_end(&c, c.k->math->reduce_axis(c.s, &on, host_out(&c, D9D_F32, y, d->m * d->n),
                                               host_in(&c, d->t, x, n)));
}

static d9d_status on_reduce_axis_bwd(d9d_stream s, const d9d_reduce_axis_dims *d, void *dx,
                                     const float *dy, const void *x, const float *y)
{
    host_call c = host_begin();
    int64_t n;
    const d9d_reduce_axis_dims on = reduce_there(&c, d, &n);

    (void)s;
    return host_end(&c, c.k->math->reduce_axis_bwd(
                            c.s, &on, host_out(&c, d->t, dx, n), host_floats(&c, dy, d->m * d->n),
                            host_in(&c, d->t, x, n), host_floats(&c, y, d->m * d->n)));
}

static d9d_status on_gather(d9d_stream s, d9d_dtype t, void *y, const void *x, const int32_t *index,
                            int64_t m, int64_t n, int64_t k)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c,
                    c.k->math->gather(c.s, t, host_out(&c, t, y, m * k), host_in(&c, t, x, m * n),
                                      host_ints(&c, index, m * k), m, n, k));
}

static d9d_status on_gather_bwd(d9d_stream s, d9d_dtype t, void *dx, const void *dy,
                                const int32_t *index, int64_t m, int64_t n, int64_t k)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->math->gather_bwd(c.s, t, host_out(&c, t, dx, m * n),
                                              host_in(&c, t, dy, m * k),
                                              host_ints(&c, index, m * k), m, n, k));
}

HOST_KERNELS(math, D9D_MATH_KERNELS)
