/* grad_finalize.c - gradient norm, clipping, finiteness.  See d9d/optim/optim.h.
 */
#include <stddef.h>
#include <stdlib.h>

#include "d9d/device/trace.h"
#include "optim/grad_squares.h"

enum {
    REPORT = sizeof(d9d_grad_finalize_report) / sizeof(double),
    SUMMED = 4 /* of these, summed over ranks */
};

d9d_status d9d_grad_finalize_init(d9d_device *dev, int64_t micro_batches, int64_t n_extra,
                                  d9d_comm *world, d9d_grad_finalize *out)
{
    const float one = 1.0f;
    d9d_grad_finalize e = {.world = world};
    d9d_status st;

    D9D_TRY_OR(st,
               d9d_tensor_alloc(dev, D9D_F64, D9D_SHAPE(micro_batches + n_extra + REPORT), &e.all),
               out);
    e.loss = d9d_tensor_rows(&e.all, 0, micro_batches);
    e.extra = d9d_tensor_rows(&e.all, micro_batches, n_extra);
    e.report = d9d_tensor_rows(&e.all, micro_batches + n_extra, REPORT);
    D9D_TRY_OR(st, d9d_tensor_from_host(dev, D9D_F32, D9D_SCALAR, &one, &e.scale), out);
    *out = e;
    e = (d9d_grad_finalize){0};
out:
    d9d_grad_finalize_release(&e);
    return st;
}

void d9d_grad_finalize_release(d9d_grad_finalize *e)
{
    d9d_tensor_release(&e->loss);
    d9d_tensor_release(&e->extra);
    d9d_tensor_release(&e->report);
    d9d_tensor_release(&e->all);
    d9d_tensor_release(&e->scale);
    d9di_grad_finalize_squares_release(e);
    *e = (d9d_grad_finalize){0};
}

/* --- the norm ----------------------------------------------------------------------------- *
 *
 * Each gradient's sum of squares has a place of its own.  They are added in the order of
 * parameters, so the result does not depend on the order in which gradients arrive, bit by bit.
 *
 * They are computed from the last parameter to the first, as backward finishes them, in many
 * launches.  A launch waits for all of its own gradients, so each covers a small share. */
enum { MAX_ARRAYS = D9DI_GRAD_SQUARES_MAX_ARRAYS, LAUNCHES = 32 };

typedef struct norm_work {
    d9d_device *dev;
    const d9d_param **p; /* [n] those in the norm */
    size_t n;
    int64_t n_elements; /* number of their elements */
    double *squares;    /* [n] on the device */
} norm_work;

static int64_t grad_numel(const d9d_param *p)
{
    return d9d_tensor_numel(&p->shard.grad);
}

static void norm_collect(norm_work *q, const d9d_params *params)
{
    for (size_t i = 0; i < params->n; i++)
        if (params->p[i]->placement.is_primary && d9d_param_has_shard_grad(params->p[i])) {
            q->n_elements += grad_numel(params->p[i]);
            q->p[q->n++] = params->p[i];
        }
}

/* First array of the launch that ends before `end`. */
static size_t launch_first(const norm_work *q, size_t end)
{
    const d9d_param *last = q->p[end - 1];
    int64_t n = grad_numel(last);
    size_t i = end - 1;

    for (; i > 0 && end - i < MAX_ARRAYS; i--) {
        const d9d_param *p = q->p[i - 1];

        if (p->shard.grad.dtype != last->shard.grad.dtype)
            break;
        if (p->shard.pending_reduce != q->p[i]->shard.pending_reduce &&
            n >= q->n_elements / LAUNCHES)
            break;
        n += grad_numel(p);
    }
    return i;
}

static d9d_status grad_wait(d9d_device *dev, const d9d_param *p)
{
    if (p->shard.pending_reduce == NULL)
        return D9D_OK;
    d9d_trace_mark(dev, "norm", "");
    D9D_TRY(d9d_param_wait_grad(&p->shard, dev->stream));
    d9d_trace_mark(dev, "wait", "for sums");
    return D9D_OK;
}

static d9d_status norm_launch(const norm_work *q, size_t begin, size_t end)
{
    d9d_device *dev = q->dev;
    d9d_sum_squares_array list[MAX_ARRAYS];

    for (size_t i = begin; i < end; i++) {
        if (i == begin || q->p[i]->shard.pending_reduce != q->p[i - 1]->shard.pending_reduce)
            D9D_TRY(grad_wait(dev, q->p[i]));
        list[i - begin] = d9di_grad_squares_array(q->p[i]);
    }
    return dev->kernels->reduce->sum_squares(dev->stream, q->squares + begin,
                                             q->p[begin]->shard.grad.dtype, list,
                                             (int64_t)(end - begin));
}

static d9d_status norm_accumulate(d9d_device *dev, const d9d_params *params, double *out)
{
    norm_work q = {.dev = dev, .p = calloc(params->n + 1, sizeof(d9d_param *))};
    d9d_tensor of = {0};
    d9d_status st;

    if (q.p == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the norm of %zu gradients", params->n);
    norm_collect(&q, params);
    D9D_TRY_OR(st, d9d_tensor_alloc(dev, D9D_F64, D9D_SHAPE((int64_t)q.n), &of), out);
    q.squares = d9d_tensor_data(&of);
    for (size_t end = q.n, begin; end > 0; end = begin) {
        begin = launch_first(&q, end);
        D9D_TRY_OR(st, norm_launch(&q, begin, end), out);
    }
    st = dev->kernels->reduce->sum_ordered(dev->stream, out, q.squares, (int64_t)q.n);
out:
    d9d_tensor_release(&of);
    free(q.p);
    return st;
}

/* The squares of gradients that were not released yet, and the sum of all. */
static d9d_status norm_complete(d9d_grad_finalize *e, const d9d_params *params, double *out)
{
    d9d_params left = {.p = calloc(params->n + 1, sizeof(d9d_param *))};
    d9d_status st;

    if (left.p == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the norm of %zu gradients", params->n);
    for (size_t i = 0; i < params->n; i++)
        if (d9d_param_has_shard_grad(params->p[i]))
            left.p[left.n++] = params->p[i];
    st = d9di_grad_squares_add(e->squares, &left, &e->scale);
    free(left.p);
    return st == D9D_OK ? d9di_grad_squares_sum(e->squares, out) : st;
}

d9d_status d9d_grad_finalize_enqueue(d9d_grad_finalize *e, const d9d_params *params,
                                     const d9d_grad_finalize_local *local, double max_norm)
{
    const d9d_grad_finalize_report summed = {
        .targets = local->targets, .flags = local->flag, .saved = local->saved};
    d9d_device *dev = d9d_tensor_device(&e->all);
    const d9d_kernels *k = dev->kernels;
    const int64_t n = d9d_tensor_numel(&e->loss), n_extra = d9d_tensor_numel(&e->extra);
    double *loss = d9d_tensor_data(&e->loss), *report = d9d_tensor_data(&e->report);
    double *targets = report + offsetof(d9d_grad_finalize_report, targets) / sizeof(double);
    double *squares = report + offsetof(d9d_grad_finalize_report, squares) / sizeof(double);

    D9D_TRY(d9d_device_upload(dev, report, &summed, SUMMED * sizeof(double)));
    if (n_extra > 0)
        D9D_TRY(d9d_device_upload(dev, d9d_tensor_data(&e->extra), local->extra,
                                  (uint64_t)n_extra * sizeof(double)));
    if (local->is_replica)
        D9D_TRY(k->elementwise->fill(dev->stream, D9D_F64, loss, n, 0.0f));
    D9D_TRY(e->squares != NULL ? norm_complete(e, params, squares)
                               : norm_accumulate(dev, params, squares));
    D9D_TRY(d9d_comm_all_reduce(e->world, dev->stream, "loss and norm", D9D_F64, loss,
                                n + n_extra + SUMMED, D9D_COMM_SUM));
    return k->optim->grad_scale(dev->stream, d9d_tensor_data(&e->scale),
                                report + offsetof(d9d_grad_finalize_report, loss) / sizeof(double),
                                loss, n, targets, squares, max_norm);
}

/* Selects the array of a parameter to check, or NULL. */
typedef const d9d_tensor *array_fn(const d9d_param *p);

static const d9d_tensor *shard_grad_of(const d9d_param *p)
{
    return d9d_param_has_shard_grad(p) ? &p->shard.grad : NULL;
}

static const d9d_tensor *shard_of(const d9d_param *p)
{
    return &p->shard.data;
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
                   dev->kernels->reduce->find_nonfinite(dev->stream, d9d_tensor_data(&where),
                                                        t->dtype, d9d_tensor_data(t),
                                                        d9d_tensor_numel(t)),
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

d9d_status d9d_optimizer_find_nonfinite_grad(d9d_device *dev, const d9d_params *params,
                                             const d9d_param **out, int64_t *index)
{
    return find_nonfinite(dev, params, shard_grad_of, out, index);
}

d9d_status d9d_optimizer_find_nonfinite_param(d9d_device *dev, const d9d_params *params,
                                              const d9d_param **out, int64_t *index)
{
    return find_nonfinite(dev, params, shard_of, out, index);
}
