/* grad_squares.c - see optim/grad_squares.h. */
#include "optim/grad_squares.h"

#include <math.h>
#include <stdlib.h>

d9d_sum_squares_array d9di_grad_squares_array(const d9d_param *p)
{
    return (d9d_sum_squares_array){d9d_tensor_data(&p->shard.grad),
                                   d9d_tensor_numel(&p->shard.grad)};
}

/* --- opening ---------------------------------------------------------------------------------- */

static d9d_status places_make(d9di_grad_squares *q, const d9d_params *params)
{
    size_t at = 0;

    q->place = d9d_arena_alloc(&q->arena, (params->n + 1) * sizeof(*q->place));
    q->sorted = d9d_arena_alloc(&q->arena, (params->n + 1) * sizeof(*q->sorted));
    if (q->place == NULL || q->sorted == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the norm of %zu gradients", params->n);
    for (int primary = 1; primary >= 0; primary--) {
        for (size_t i = 0; i < params->n; i++)
            if (params->p[i]->placement.is_primary == (primary > 0))
                q->place[i] = at++;
        q->n_primary = primary > 0 ? at : q->n_primary;
    }
    return D9D_OK;
}

static void squares_free(d9di_grad_squares *q)
{
    if (q == NULL)
        return;
    for (int i = 0; i < 2; i++)
        d9d_tensor_release(&q->sums[i]);
    d9d_tensor_release(&q->early);
    d9d_tensor_release(&q->guard);
    d9di_optimizer_index_release(&q->index);
    d9d_arena_release(&q->arena);
    free(q);
}

d9d_status d9d_grad_finalize_set_released(d9d_grad_finalize *e, const d9d_params *params)
{
    d9d_device *dev = d9d_tensor_device(&e->all);
    const int64_t n = (int64_t)params->n + 1;
    d9di_grad_squares *q = calloc(1, sizeof(*q));
    d9d_status st;

    if (q == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the norm of %zu gradients", params->n);
    q->dev = dev;
    D9D_TRY_OR(st, d9di_optimizer_index_make(params, &q->index), out);
    D9D_TRY_OR(st, places_make(q, params), out);
    for (int i = 0; i < 2; i++)
        D9D_TRY_OR(st, d9d_tensor_alloc(dev, D9D_F64, D9D_SHAPE(n), &q->sums[i]), out);
    D9D_TRY_OR(st,
               d9d_tensor_alloc(dev, D9D_F64, D9D_SHAPE(d9d_tensor_numel(&e->loss) + 1), &q->early),
               out);
    D9D_TRY_OR(st, d9d_tensor_alloc(dev, D9D_F64, D9D_SHAPE(3), &q->guard), out);
    e->squares = q;
    q = NULL;
out:
    squares_free(q);
    return st;
}

void d9di_grad_finalize_squares_release(d9d_grad_finalize *e)
{
    squares_free(e->squares);
    e->squares = NULL;
}

/* --- a step ----------------------------------------------------------------------------------- */

d9d_status d9di_grad_squares_begin(d9di_grad_squares *q, int64_t step)
{
    const d9d_tensor *sums = &q->sums[step % 2];

    q->step = step;
    return q->dev->kernels->elementwise->fill(q->dev->stream, D9D_F64, d9d_tensor_data(sums),
                                              d9d_tensor_numel(sums), 0.0f);
}

/* The given ones by place, in *sorted; the number of them. */
static size_t params_sort(d9di_grad_squares *q, const d9d_params *some, size_t *places)
{
    size_t n = 0;

    for (size_t i = 0; i < some->n; i++) {
        size_t index, at = n;

        if (!d9di_optimizer_index_find(&q->index, some->p[i], &index))
            continue;
        for (; at > 0 && places[at - 1] > q->place[index]; at--) {
            places[at] = places[at - 1];
            q->sorted[at] = q->sorted[at - 1];
        }
        places[at] = q->place[index];
        q->sorted[at] = some->p[i];
        n++;
    }
    return n;
}

/* One launch: parameters whose places follow each other, of one type. */
static size_t run_end(const d9di_grad_squares *q, const size_t *places, size_t begin, size_t n)
{
    size_t end = begin + 1;

    while (end < n && end - begin < D9DI_GRAD_SQUARES_MAX_ARRAYS &&
           places[end] == places[end - 1] + 1 &&
           q->sorted[end]->shard.grad.dtype == q->sorted[begin]->shard.grad.dtype)
        end++;
    return end;
}

/* Their squares, and whether these are finite, for the step's factor. */
static d9d_status run_launch(d9di_grad_squares *q, size_t place, size_t begin, size_t end,
                             const d9d_tensor *scale)
{
    const d9d_kernels *k = q->dev->kernels;
    double *at = (double *)d9d_tensor_data(&q->sums[q->step % 2]) + place,
           *guard = d9d_tensor_data(&q->guard), *early = d9d_tensor_data(&q->early);
    const int64_t losses = d9d_tensor_numel(&q->early) - 1;
    d9d_sum_squares_array list[D9DI_GRAD_SQUARES_MAX_ARRAYS];

    for (size_t i = begin; i < end; i++) {
        D9D_TRY(d9d_param_wait_grad(&q->sorted[i]->shard, q->dev->stream));
        list[i - begin] = d9di_grad_squares_array(q->sorted[i]);
    }
    D9D_TRY(k->reduce->sum_squares(q->dev->stream, at, q->sorted[begin]->shard.grad.dtype, list,
                                   (int64_t)(end - begin)));
    D9D_TRY(k->reduce->sum_ordered(q->dev->stream, guard, at, (int64_t)(end - begin)));
    return k->optim->grad_scale(q->dev->stream, d9d_tensor_data(scale), guard + 1, early, losses,
                                early + losses, guard, NAN);
}

d9d_status d9di_grad_squares_add(d9di_grad_squares *q, const d9d_params *some,
                                 const d9d_tensor *scale)
{
    size_t *places = malloc((some->n + 1) * sizeof(*places));
    d9d_status st = D9D_OK;
    size_t n;

    if (places == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the norm of %zu gradients", some->n);
    n = params_sort(q, some, places);
    for (size_t begin = 0, end; begin < n && st == D9D_OK; begin = end) {
        end = run_end(q, places, begin, n);
        st = run_launch(q, places[begin], begin, end, scale);
    }
    free(places);
    return st;
}

d9d_status d9di_grad_squares_sum(const d9di_grad_squares *q, double *out)
{
    return q->dev->kernels->reduce->sum_ordered(
        q->dev->stream, out, d9d_tensor_data(&q->sums[q->step % 2]), (int64_t)q->n_primary);
}

/* --- within backward -------------------------------------------------------------------------- */

d9d_status d9d_grad_finalize_begin(d9d_grad_finalize *e, int64_t step,
                                   const d9d_grad_finalize_local *local)
{
    d9di_grad_squares *q = e->squares;
    const d9d_kernels *k = q->dev->kernels;
    const int64_t n = d9d_tensor_numel(&e->loss);
    double *early = d9d_tensor_data(&q->early), *guard = d9d_tensor_data(&q->guard);

    D9D_TRY(d9di_grad_squares_begin(q, step));
    if (local->is_replica)
        D9D_TRY(k->elementwise->fill(q->dev->stream, D9D_F64, early, n, 0.0f));
    else
        D9D_TRY(d9d_device_copy(q->dev, early, d9d_tensor_data(&e->loss),
                                (uint64_t)n * sizeof(double)));
    D9D_TRY(d9d_device_upload(q->dev, early + n, &local->targets, sizeof(double)));
    D9D_TRY(d9d_comm_all_reduce(e->world, q->dev->stream, "loss and targets", D9D_F64, early, n + 1,
                                D9D_COMM_SUM));
    D9D_TRY(k->elementwise->fill(q->dev->stream, D9D_F64, guard, 1, 0.0f));
    return k->optim->grad_scale(q->dev->stream, d9d_tensor_data(&e->scale), guard + 1, early, n,
                                early + n, guard, NAN);
}

d9d_status d9d_grad_finalize_add(d9d_grad_finalize *e, const d9d_params *some)
{
    return d9di_grad_squares_add(e->squares, some, &e->scale);
}

d9d_status d9d_grad_finalize_find_nonfinite(const d9d_grad_finalize *e, int64_t step,
                                            const d9d_param **out)
{
    const d9di_grad_squares *q = e->squares;
    const d9d_params *params = &q->index.params;
    double *sums = malloc((params->n + 1) * sizeof(*sums));
    d9d_status st;

    *out = NULL;
    if (sums == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the squares of %zu gradients", params->n);
    st = d9d_device_download(q->dev, sums, d9d_tensor_data(&q->sums[step % 2]),
                             params->n * sizeof(*sums));
    for (size_t i = params->n; st == D9D_OK && i-- > 0 && *out == NULL;)
        if (!isfinite(sums[q->place[i]]))
            *out = params->p[i];
    free(sums);
    return st;
}
