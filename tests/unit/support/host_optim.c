/* host_optim.c - optimizers for arrays in host memory, see host_call.h. */
#include "host_call.h"

static d9d_status on_grad_scale(d9d_stream s, float *scale, double *report, const double *loss,
                                int64_t n, const double *weight, const double *squares,
                                double max_norm)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->optim->grad_scale(
                            c.s, host_out(&c, D9D_F32, scale, 1), host_out(&c, D9D_F64, report, 2),
                            host_in(&c, D9D_F64, loss, n), n, host_in(&c, D9D_F64, weight, 1),
                            host_in(&c, D9D_F64, squares, 1), max_norm));
}

/* Scales of a box of states in 8 bits: one for each block of a row. */
static int64_t host_scales(int ndim, const int64_t *box)
{
    int64_t n = (box[ndim - 1] + D9D_STATE_BLOCK - 1) / D9D_STATE_BLOCK;

    for (int d = 0; d + 1 < ndim; d++)
        n *= box[d];
    return n;
}

static void host_scales_on(host_call *c, const d9d_optim_arrays *a, int64_t n, d9d_optim_arrays *on)
{
    on->m_scale = host_out(c, D9D_BF16, a->m_scale, n);
    on->v_scale = host_out(c, D9D_BF16, a->v_scale, n);
}

static d9d_optim_arrays optim_arrays_on(host_call *c, d9d_dtype t, d9d_dtype gt, d9d_dtype st,
                                        const d9d_optim_arrays *a, int64_t n)
{
    return (d9d_optim_arrays){
        .p = host_out(c, t, a->p, n),
        .g = host_in(c, gt, a->g, n),
        .m = host_out(c, st, a->m, n),
        .v = host_out(c, st, a->v, n),
        .vmax = host_out(c, st, a->vmax, n),
        .n = n,
        .residual = host_out(c, D9D_I16, a->residual, n),
    };
}

static d9d_status on_adam(d9d_stream s, const d9d_adam_step *step, const float *scale, d9d_dtype t,
                          d9d_dtype gt, d9d_dtype st, const d9d_optim_arrays *list, int64_t count)
{
    d9d_optim_arrays lists[HOST_MAX_ARRAYS];
    host_call c = host_begin();

    (void)s;
    for (int64_t i = 0; i < count; i++)
        lists[i] = optim_arrays_on(&c, t, gt, st, &list[i], list[i].n);
    return host_end(
        &c, c.k->optim->adam(c.s, step, host_floats(&c, scale, 1), t, gt, st, lists, count));
}

static d9d_status on_adam_stochastic(d9d_stream s, const d9d_adam_step *step, const float *scale,
                                     d9d_dtype t, d9d_dtype gt, d9d_dtype st,
                                     const d9d_optim_arrays *a, d9d_rng r, int ndim,
                                     const int64_t *box, const int64_t *start, const int64_t *whole)
{
    host_call c = host_begin();
    d9d_optim_arrays on = optim_arrays_on(&c, t, gt, st, a, host_numel(ndim, box));

    (void)s;
    host_scales_on(&c, a, host_scales(ndim, box), &on);
    return host_end(&c, c.k->optim->adam_stochastic(c.s, step, host_floats(&c, scale, 1), t, gt, st,
                                                    &on, r, ndim, box, start, whole));
}

static d9d_status on_lion(d9d_stream s, const d9d_lion_step *step, const float *scale, d9d_dtype t,
                          d9d_dtype gt, d9d_dtype st, const d9d_optim_arrays *list, int64_t count)
{
    d9d_optim_arrays lists[HOST_MAX_ARRAYS];
    host_call c = host_begin();

    (void)s;
    for (int64_t i = 0; i < count; i++)
        lists[i] = optim_arrays_on(&c, t, gt, st, &list[i], list[i].n);
    return host_end(
        &c, c.k->optim->lion(c.s, step, host_floats(&c, scale, 1), t, gt, st, lists, count));
}

static d9d_status on_lion_stochastic(d9d_stream s, const d9d_lion_step *step, const float *scale,
                                     d9d_dtype t, d9d_dtype gt, d9d_dtype st,
                                     const d9d_optim_arrays *a, d9d_rng r, int ndim,
                                     const int64_t *box, const int64_t *start, const int64_t *whole)
{
    host_call c = host_begin();
    d9d_optim_arrays on = optim_arrays_on(&c, t, gt, st, a, host_numel(ndim, box));

    (void)s;
    host_scales_on(&c, a, host_scales(ndim, box), &on);
    return host_end(&c, c.k->optim->lion_stochastic(c.s, step, host_floats(&c, scale, 1), t, gt, st,
                                                    &on, r, ndim, box, start, whole));
}

static d9d_status on_schedule_free(d9d_stream s, const d9d_schedule_free_step *step,
                                   const float *scale, d9d_dtype t, d9d_dtype gt,
                                   const d9d_optim_arrays *list, int64_t count)
{
    d9d_optim_arrays lists[HOST_MAX_ARRAYS];
    host_call c = host_begin();

    (void)s;
    for (int64_t i = 0; i < count; i++)
        lists[i] = optim_arrays_on(&c, t, gt, D9D_F32, &list[i], list[i].n);
    return host_end(
        &c, c.k->optim->schedule_free(c.s, step, host_floats(&c, scale, 1), t, gt, lists, count));
}

static d9d_status on_average(d9d_stream s, const d9d_average_step *step, const float *scale,
                             d9d_dtype t, d9d_dtype st, const d9d_optim_arrays *list, int64_t count)
{
    d9d_optim_arrays lists[HOST_MAX_ARRAYS];
    host_call c = host_begin();

    (void)s;
    for (int64_t i = 0; i < count; i++)
        lists[i] = optim_arrays_on(&c, t, t, st, &list[i], list[i].n);
    return host_end(&c,
                    c.k->optim->average(c.s, step, host_floats(&c, scale, 1), t, st, lists, count));
}

static d9d_status on_average_stochastic(d9d_stream s, const d9d_average_step *step,
                                        const float *scale, d9d_dtype t, d9d_dtype st,
                                        const d9d_optim_arrays *a, d9d_rng r, int ndim,
                                        const int64_t *box, const int64_t *start,
                                        const int64_t *whole)
{
    host_call c = host_begin();
    const d9d_optim_arrays on = optim_arrays_on(&c, t, t, st, a, host_numel(ndim, box));

    (void)s;
    return host_end(&c, c.k->optim->average_stochastic(c.s, step, host_floats(&c, scale, 1), t, st,
                                                       &on, r, ndim, box, start, whole));
}

static d9d_status on_muon_momentum(d9d_stream s, const d9d_muon_step *step, const float *scale,
                                   d9d_dtype ut, d9d_dtype gt, const d9d_optim_arrays *list,
                                   int64_t count)
{
    d9d_optim_arrays lists[HOST_MAX_ARRAYS];
    host_call c = host_begin();

    (void)s;
    for (int64_t i = 0; i < count; i++)
        lists[i] = optim_arrays_on(&c, ut, gt, D9D_F32, &list[i], list[i].n);
    return host_end(
        &c, c.k->optim->muon_momentum(c.s, step, host_floats(&c, scale, 1), ut, gt, lists, count));
}

static d9d_status on_muon_normalize(d9d_stream s, d9d_dtype t, void *x, const double *squares,
                                    int64_t count, int64_t n, float eps)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->optim->muon_normalize(c.s, t, host_out(&c, t, x, count * n),
                                                   host_in(&c, D9D_F64, squares, count), count, n,
                                                   eps));
}

static d9d_status on_muon(d9d_stream s, const d9d_muon_step *step, const float *scale, d9d_dtype t,
                          d9d_dtype gt, const d9d_optim_arrays *list, int64_t count)
{
    d9d_optim_arrays lists[HOST_MAX_ARRAYS];
    host_call c = host_begin();

    (void)s;
    for (int64_t i = 0; i < count; i++)
        lists[i] = optim_arrays_on(&c, t, gt, D9D_F32, &list[i], list[i].n);
    return host_end(&c,
                    c.k->optim->muon(c.s, step, host_floats(&c, scale, 1), t, gt, lists, count));
}

static d9d_adafactor_array adafactor_on(host_call *c, d9d_dtype t, d9d_dtype gt,
                                        const d9d_adafactor_array *a)
{
    const int64_t n = a->e * a->r * a->c;
    d9d_adafactor_array on = *a;

    on.p = host_out(c, t, a->p, n);
    on.g = host_in(c, gt, a->g, n);
    on.residual = host_out(c, D9D_I16, a->residual, n);
    on.row = host_out(c, D9D_F32, a->row, a->e * a->r);
    on.col = host_out(c, D9D_F32, a->col, a->e * a->c);
    on.row_sum = host_out(c, D9D_F32, a->row_sum, a->e * a->rows);
    on.col_sum = host_out(c, D9D_F32, a->col_sum, a->e * a->cols);
    on.mean = host_out(c, D9D_F32, a->mean, a->e);
    on.squares = host_out(c, D9D_F64, a->squares, 2);
    return on;
}

static d9d_status on_adafactor_sums(d9d_stream s, const float *scale, d9d_dtype gt,
                                    const d9d_adafactor_array *a)
{
    host_call c = host_begin();
    const d9d_adafactor_array on = adafactor_on(&c, D9D_BF16, gt, a);

    (void)s;
    return host_end(&c, c.k->optim->adafactor_sums(c.s, host_floats(&c, scale, 1), gt, &on));
}

static d9d_status on_adafactor_moments(d9d_stream s, const d9d_adafactor_step *step,
                                       const float *scale, const d9d_adafactor_array *a)
{
    host_call c = host_begin();
    const d9d_adafactor_array on = adafactor_on(&c, D9D_BF16, D9D_BF16, a);

    (void)s;
    return host_end(&c, c.k->optim->adafactor_moments(c.s, step, host_floats(&c, scale, 1), &on));
}

static d9d_status on_adafactor_squares(d9d_stream s, const d9d_adafactor_step *step,
                                       const float *scale, d9d_dtype t, d9d_dtype gt,
                                       const d9d_adafactor_array *a)
{
    host_call c = host_begin();
    const d9d_adafactor_array on = adafactor_on(&c, t, gt, a);

    (void)s;
    return host_end(
        &c, c.k->optim->adafactor_squares(c.s, step, host_floats(&c, scale, 1), t, gt, &on));
}

static d9d_status on_adafactor(d9d_stream s, const d9d_adafactor_step *step, const float *scale,
                               d9d_dtype t, d9d_dtype gt, const d9d_adafactor_array *a)
{
    host_call c = host_begin();
    const d9d_adafactor_array on = adafactor_on(&c, t, gt, a);

    (void)s;
    return host_end(&c, c.k->optim->adafactor(c.s, step, host_floats(&c, scale, 1), t, gt, &on));
}

static d9d_status on_sgd(d9d_stream s, const d9d_sgd_step *step, d9d_dtype t, void *p,
                         int16_t *residual, d9d_dtype gt, const void *g, const float *scale,
                         d9d_dtype st, void *momentum, int64_t n)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->optim->sgd(c.s, step, t, host_out(&c, t, p, n),
                                        host_out(&c, D9D_I16, residual, n), gt,
                                        host_in(&c, gt, g, n), host_floats(&c, scale, 1), st,
                                        host_out(&c, st, momentum, n), n));
}

HOST_KERNELS(optim, D9D_OPTIM_KERNELS)
