/* grad_finalize.c - the gradient as a whole: norm, clipping, finiteness.  See d9d/optim/optim.h. */
#include <stddef.h>
#include <stdlib.h>

#include "d9d/device/trace.h"
#include "d9d/optim/optim.h"

enum { REPORT = sizeof(d9d_step_report) / sizeof(double), SUMMED = 4 /* of them, over ranks */ };

d9d_status d9d_step_end_open(d9d_device *dev, int64_t micro_batches, int64_t more, d9d_comm *world,
                             d9d_step_end *out)
{
    const float one = 1.0f;
    d9d_step_end e = {.world = world};
    d9d_status st;

    D9D_TRY_OR(st, d9d_tensor_alloc(dev, D9D_F64, D9D_SHAPE(micro_batches + more + REPORT), &e.all),
               out);
    e.loss = d9d_tensor_rows(&e.all, 0, micro_batches);
    e.more = d9d_tensor_rows(&e.all, micro_batches, more);
    e.report = d9d_tensor_rows(&e.all, micro_batches + more, REPORT);
    D9D_TRY_OR(st, d9d_tensor_from_host(dev, D9D_F32, D9D_SCALAR, &one, &e.scale), out);
    *out = e;
    e = (d9d_step_end){0};
out:
    d9d_step_end_release(&e);
    return st;
}

void d9d_step_end_release(d9d_step_end *e)
{
    d9d_tensor_release(&e->loss);
    d9d_tensor_release(&e->more);
    d9d_tensor_release(&e->report);
    d9d_tensor_release(&e->all);
    d9d_tensor_release(&e->scale);
    *e = (d9d_step_end){0};
}

/* --- the norm ----------------------------------------------------------------------------- *
 *
 * Every gradient has a number of its own, its sum of squares, and these are added in the order of
 * parameters, so that no bit depends on which were there first.  They are made from the last
 * parameter to the first, as backward goes and gradients arrive: some at a time, so that those of
 * one launch, which awaits all of its own, are a small share of all. */
enum { AT_ONCE = 128, SHARES = 32 };

typedef struct norm {
    d9d_device *dev;
    const d9d_param **p; /* [n] those that count */
    size_t n;
    int64_t all; /* elements of them */
    double *of;  /* [n] on the device */
} norm;

static int64_t elements(const d9d_param *p)
{
    return d9d_tensor_numel(&p->own_grad);
}

static void norm_find(norm *q, const d9d_params *params)
{
    for (size_t i = 0; i < params->n; i++)
        if (params->p[i]->counts && d9d_param_has_own_grad(params->p[i])) {
            q->all += elements(params->p[i]);
            q->p[q->n++] = params->p[i];
        }
}

/* Where the launch begins that ends before `end`. */
static size_t launch_begin(const norm *q, size_t end)
{
    const d9d_param *last = q->p[end - 1];
    int64_t n = elements(last);
    size_t i = end - 1;

    for (; i > 0 && end - i < AT_ONCE; i--) {
        const d9d_param *p = q->p[i - 1];

        if (p->own_grad.dtype != last->own_grad.dtype)
            break;
        if (p->late != q->p[i]->late && n >= q->all / SHARES)
            break;
        n += elements(p);
    }
    return i;
}

static d9d_status await(d9d_device *dev, const d9d_param *p)
{
    if (p->late == NULL)
        return D9D_OK;
    d9d_trace_lap(dev, "norm", "");
    D9D_TRY(d9d_param_await(p, dev->stream));
    d9d_trace_lap(dev, "wait", "for sums");
    return D9D_OK;
}

static d9d_status launch(const norm *q, size_t begin, size_t end)
{
    d9d_device *dev = q->dev;
    d9d_array list[AT_ONCE];

    for (size_t i = begin; i < end; i++) {
        if (i == begin || q->p[i]->late != q->p[i - 1]->late)
            D9D_TRY(await(dev, q->p[i]));
        list[i - begin] = (d9d_array){d9d_tensor_data(&q->p[i]->own_grad), elements(q->p[i])};
    }
    return dev->kernels->sum_squares(dev->stream, q->of + begin, q->p[begin]->own_grad.dtype, list,
                                     (int64_t)(end - begin));
}

static d9d_status norm_add(d9d_device *dev, const d9d_params *params, double *out)
{
    norm q = {.dev = dev, .p = calloc(params->n + 1, sizeof(d9d_param *))};
    d9d_tensor of = {0};
    d9d_status st;

    if (q.p == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the norm of %zu gradients", params->n);
    norm_find(&q, params);
    D9D_TRY_OR(st, d9d_tensor_alloc(dev, D9D_F64, D9D_SHAPE((int64_t)q.n), &of), out);
    q.of = d9d_tensor_data(&of);
    for (size_t end = q.n, begin; end > 0; end = begin) {
        begin = launch_begin(&q, end);
        D9D_TRY_OR(st, launch(&q, begin, end), out);
    }
    st = dev->kernels->add_up(dev->stream, out, q.of, (int64_t)q.n);
out:
    d9d_tensor_release(&of);
    free(q.p);
    return st;
}

d9d_status d9d_step_end_queue(d9d_step_end *e, const d9d_params *params, const d9d_step_own *own,
                              double max_norm)
{
    const d9d_step_report mine = {.targets = own->targets, .flags = own->flag, .saved = own->saved};
    d9d_device *dev = d9d_tensor_device(&e->all);
    const d9d_kernels *k = dev->kernels;
    const int64_t n = d9d_tensor_numel(&e->loss), more = d9d_tensor_numel(&e->more);
    double *loss = d9d_tensor_data(&e->loss), *report = d9d_tensor_data(&e->report);
    double *targets = report + offsetof(d9d_step_report, targets) / sizeof(double);
    double *squares = report + offsetof(d9d_step_report, squares) / sizeof(double);

    D9D_TRY(d9d_device_upload(dev, report, &mine, SUMMED * sizeof(double)));
    if (more > 0)
        D9D_TRY(d9d_device_upload(dev, d9d_tensor_data(&e->more), own->more,
                                  (uint64_t)more * sizeof(double)));
    if (own->shadow)
        D9D_TRY(k->fill(dev->stream, D9D_F64, loss, n, 0.0f));
    D9D_TRY(norm_add(dev, params, squares));
    D9D_TRY(d9d_comm_all_reduce(e->world, dev->stream, "loss and norm", D9D_F64, loss,
                                n + more + SUMMED, D9D_COMM_SUM));
    return k->step_scale(dev->stream, d9d_tensor_data(&e->scale),
                         report + offsetof(d9d_step_report, loss) / sizeof(double), loss, n,
                         targets, squares, max_norm);
}

/* The array of a parameter to look at, or NULL. */
typedef const d9d_tensor *array_fn(const d9d_param *p);

static const d9d_tensor *grad_of(const d9d_param *p)
{
    return d9d_param_has_own_grad(p) ? &p->own_grad : NULL;
}

static const d9d_tensor *data_of(const d9d_param *p)
{
    return &p->own;
}

static d9d_status find_nonfinite(d9d_device *dev, const d9d_params *params, array_fn *array,
                                 const d9d_param **out, int64_t *index)
{
    d9d_tensor where = {0};
    int64_t at = -1;
    d9d_status st = D9D_OK;

    D9D_TRY(d9d_tensor_alloc(dev, D9D_I64, D9D_SCALAR, &where));
    *out = NULL;
    for (size_t i = 0; i < params->n && at < 0; i++) {
        const d9d_tensor *t = array(params->p[i]);

        if (t == NULL)
            continue;
        D9D_TRY_OR(st,
                   dev->kernels->find_nonfinite(dev->stream, d9d_tensor_data(&where), t->dtype,
                                                d9d_tensor_data(t), d9d_tensor_numel(t)),
                   out);
        D9D_TRY_OR(st, d9d_device_download(dev, &at, d9d_tensor_data(&where), sizeof(at)), out);
        if (at >= 0) {
            *out = params->p[i];
            *index = at;
        }
    }
out:
    d9d_tensor_release(&where);
    return st;
}

d9d_status d9d_grad_find_nonfinite(d9d_device *dev, const d9d_params *params, const d9d_param **out,
                                   int64_t *index)
{
    return find_nonfinite(dev, params, grad_of, out, index);
}

d9d_status d9d_data_find_nonfinite(d9d_device *dev, const d9d_params *params, const d9d_param **out,
                                   int64_t *index)
{
    return find_nonfinite(dev, params, data_of, out, index);
}
