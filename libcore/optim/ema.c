/* ema.c - moving averages of the weights, and averages in the place of the weights.  See
 * d9d/optim/optim.h.
 */
#include <string.h>

#include "d9d/base/hash.h"
#include "d9d/base/plugin_call.h"
#include "optim/optimizer_private.h"

/* --- the moving averages ---------------------------------------------------------------------- */

static bool kind_averages(const d9d_optimizer *o)
{
    bool any = false;

    for (size_t i = 0; i < o->uses.len; i++)
        any = any || o->uses.data[i].choice.kind->average != NULL;
    return any;
}

static bool has_ema(const d9d_optimizer *o)
{
    return o->ema.names != NULL;
}

d9d_status d9d_optimizer_set_ema(d9d_optimizer *o, const d9d_ema_opts *opts)
{
    d9di_optimizer_ema e = {.opts = *opts};

    if (kind_averages(o))
        return D9D_FAIL(
            D9D_ECONFIG,
            "trainer.ema: the optimizer %s averages the weights itself; set one of both",
            d9d_optimizer_name(o));
    e.names = d9d_arena_alloc(&o->arena, (o->params.n + 1) * sizeof(*e.names));
    e.state = d9d_arena_alloc(&o->arena, (o->params.n + 1) * sizeof(*e.state));
    if (e.names == NULL || e.state == NULL)
        return D9D_FAIL(D9D_ENOMEM, "EMA: no memory for records of %zu parameters", o->params.n);
    for (size_t i = 0; i < o->params.n; i++) {
        const d9d_param *p = o->params.p[i];

        if (!p->spec.trainable)
            continue;
        e.state[i] = (d9d_tensor){.dtype = opts->dtype, .shape = p->shard.shape};
        e.names[i] = d9d_arena_printf(&o->arena, "%s.ema", p->name);
        if (e.names[i] == NULL)
            return D9D_FAIL(D9D_ENOMEM, "EMA: no memory for the name of %s", p->name);
        e.n++;
    }
    o->ema = e;
    return D9D_OK;
}

d9d_status d9di_optimizer_ema_fill(d9d_optimizer *o)
{
    for (size_t i = 0; has_ema(o) && i < o->params.n; i++) {
        d9d_tensor *t = &o->ema.state[i];

        if (o->ema.names[i] == NULL)
            continue;
        t->shape = o->params.p[i]->shard.shape;
        D9D_TRY(d9di_optimizer_state_fill(o, t));
    }
    return D9D_OK;
}

void d9di_optimizer_ema_release(d9d_optimizer *o)
{
    for (size_t i = 0; has_ema(o) && i < o->params.n; i++)
        d9d_tensor_release(&o->ema.state[i]);
    for (size_t i = 0; o->stash.weights != NULL && i < o->params.n; i++) {
        d9d_tensor_release(&o->stash.weights[i]);
        d9d_tensor_release(&o->stash.residuals[i]);
    }
    d9d_arena_release(&o->stash.arena);
}

uint64_t d9di_optimizer_ema_bytes(const d9d_optimizer *o)
{
    uint64_t sum = 0;

    for (size_t i = 0; has_ema(o) && i < o->params.n; i++)
        if (o->ema.names[i] != NULL)
            sum += (uint64_t)d9d_shape_numel(&o->params.p[i]->shard.shape) *
                   d9d_dtype_size(o->ema.opts.dtype);
    return sum;
}

d9d_optimizer_state d9di_optimizer_ema_state_at(d9d_optimizer *o, size_t k)
{
    size_t i = 0;

    while (o->ema.names[i] == NULL || k-- > 0)
        i++;
    return (d9d_optimizer_state){
        .name = o->ema.names[i], .param = o->params.p[i], .tensor = &o->ema.state[i]};
}

/* --- a step ----------------------------------------------------------------------------------- */

/* The residual of parameter i, or NULL. */
static int16_t *residual_of(const d9d_optimizer *o, size_t i)
{
    const d9di_optimizer_use *use = &o->uses.data[o->use_of[i]];

    return use->masters
               ? d9d_tensor_data(&o->state[i * (size_t)o->n_stored + (size_t)use->n_states])
               : NULL;
}

/* Move the average towards the weights, masters where there are. */
static d9d_status ema_move(d9d_optimizer *o, size_t i, double to_weights, const d9d_tensor *scale)
{
    const d9d_param *p = o->params.p[i];
    const d9d_average_step step = {.to_weights = to_weights};
    const uint64_t key[3] = {p->id, (uint64_t)o->steps[i], 1};
    const d9d_optim_kernels *k = o->dev->kernels->optim;
    const d9d_optim_arrays a = {
        .p = d9d_tensor_data(&p->shard.data),
        .g = d9d_tensor_data(&p->shard.data),
        .m = d9d_tensor_data(&o->ema.state[i]),
        .n = d9d_tensor_numel(&p->shard.data),
        .residual = residual_of(o, i),
    };

    if (o->ema.opts.dtype == D9D_F32)
        return k->average(o->dev->stream, &step, d9d_tensor_data(scale), p->spec.dtype, D9D_F32, &a,
                          1);
    return k->average_stochastic(
        o->dev->stream, &step, d9d_tensor_data(scale), p->spec.dtype, o->ema.opts.dtype, &a,
        (d9d_rng){o->seed, d9d_hash_u64(key, sizeof(key))}, p->shard.shape.ndim, p->shard.shape.dim,
        p->shard.offset, p->spec.shape.dim);
}

static bool is_in_step(const d9d_optimizer *o, size_t i)
{
    return has_ema(o) && o->ema.names[i] != NULL && d9d_param_has_shard_grad(o->params.p[i]);
}

/* The average begins as the weights of start_step.  Until then it is the weights too, those after a
 * multiple of every_steps: a run may go on with an earlier start_step. */
d9d_status d9di_optimizer_ema_begin(d9d_optimizer *o, const d9d_tensor *scale, const size_t *which,
                                    size_t n)
{
    for (size_t k = 0; k < n; k++) {
        const size_t i = which[k];

        if (is_in_step(o, i) && (o->steps[i] == 0 || o->steps[i] == o->ema.opts.start_step))
            D9D_TRY(ema_move(o, i, 1, scale));
    }
    return D9D_OK;
}

d9d_status d9di_optimizer_ema_update(d9d_optimizer *o, const d9d_tensor *scale, const size_t *which,
                                     size_t n)
{
    const d9d_ema_opts *e = &o->ema.opts;

    for (size_t k = 0; k < n; k++) {
        const size_t i = which[k];
        const int64_t since = o->steps[i] - e->start_step;

        if (is_in_step(o, i) && since != 0 &&
            (since > 0 ? since : o->steps[i]) % e->every_steps == 0)
            D9D_TRY(ema_move(o, i, since > 0 ? 1 - e->decay : 1, scale));
    }
    return D9D_OK;
}

/* --- averages in the place of weights --------------------------------------------------------- */

bool d9d_optimizer_has_averages(const d9d_optimizer *o)
{
    return has_ema(o) || kind_averages(o);
}

static bool has_average(const d9d_optimizer *o, size_t i)
{
    if (!o->params.p[i]->spec.trainable)
        return false;
    if (has_ema(o))
        return o->steps[i] > o->ema.opts.start_step;
    return o->uses.data[o->use_of[i]].choice.kind->average != NULL && o->steps[i] > 0;
}

static d9d_status tensor_copy(d9d_device *dev, const d9d_tensor *from, d9d_tensor *to)
{
    D9D_TRY(d9d_tensor_alloc(dev, from->dtype, from->shape, to));
    return d9d_device_copy(dev, d9d_tensor_data(to), d9d_tensor_data(from), d9d_tensor_bytes(to));
}

static d9d_tensor *residual_tensor(d9d_optimizer *o, size_t i)
{
    const d9di_optimizer_use *use = &o->uses.data[o->use_of[i]];

    return &o->state[i * (size_t)o->n_stored + (size_t)use->n_states];
}

static d9d_status weights_stash(d9d_optimizer *o, size_t i)
{
    D9D_TRY(tensor_copy(o->dev, &o->params.p[i]->shard.data, &o->stash.weights[i]));
    return residual_of(o, i) == NULL
               ? D9D_OK
               : tensor_copy(o->dev, residual_tensor(o, i), &o->stash.residuals[i]);
}

/* The bits of the EMA, rounded to the parameter's type. */
static d9d_status ema_use(d9d_optimizer *o, size_t i, const d9d_tensor *one)
{
    const d9d_param *p = o->params.p[i];
    const d9d_average_step step = {.to_state = 1};
    const d9d_optim_arrays a = {
        .p = d9d_tensor_data(&p->shard.data),
        .g = d9d_tensor_data(&p->shard.data),
        .m = d9d_tensor_data(&o->ema.state[i]),
        .n = d9d_tensor_numel(&p->shard.data),
    };

    return o->dev->kernels->optim->average(o->dev->stream, &step, d9d_tensor_data(one),
                                           p->spec.dtype, o->ema.opts.dtype, &a, 1);
}

static d9d_status average_use(d9d_optimizer *o, size_t i, const d9d_tensor *one)
{
    const d9d_optimizer_choice *c = &o->uses.data[o->use_of[i]].choice;
    d9d_optimizer_update u = d9di_optimizer_update_make(o, i);

    D9D_TRY(weights_stash(o, i));
    if (has_ema(o))
        return ema_use(o, i, one);
    u.scale = d9d_tensor_data(one);
    return D9D_PLUGIN_CALL(c->kind->table->name, c->kind, average, c->config, &u);
}

d9d_status d9d_optimizer_use_averages(d9d_optimizer *o)
{
    d9di_optimizer_stash *s = &o->stash;
    const float value = 1;
    d9d_tensor one;
    d9d_status st = D9D_OK;

    s->weights = d9d_arena_alloc(&s->arena, (o->params.n + 1) * sizeof(*s->weights));
    s->residuals = d9d_arena_alloc(&s->arena, (o->params.n + 1) * sizeof(*s->residuals));
    if (s->weights == NULL || s->residuals == NULL)
        return D9D_FAIL(D9D_ENOMEM, "averages: no memory for records of %zu parameters",
                        o->params.n);
    D9D_TRY(d9d_tensor_from_host(o->dev, D9D_F32, D9D_SCALAR, &value, &one));
    for (size_t i = 0; i < o->params.n && st == D9D_OK; i++)
        if (has_average(o, i))
            st = average_use(o, i, &one);
    d9d_tensor_release(&one);
    return st;
}

/* Back into `to`, if there is a copy. */
static d9d_status copy_restore(d9d_device *dev, d9d_tensor *copy, const d9d_tensor *to)
{
    if (copy->storage == NULL)
        return D9D_OK;
    D9D_TRY(
        d9d_device_copy(dev, d9d_tensor_data(to), d9d_tensor_data(copy), d9d_tensor_bytes(copy)));
    d9d_tensor_release(copy);
    return D9D_OK;
}

d9d_status d9d_optimizer_use_weights(d9d_optimizer *o)
{
    d9di_optimizer_stash *s = &o->stash;

    for (size_t i = 0; s->weights != NULL && i < o->params.n; i++) {
        D9D_TRY(copy_restore(o->dev, &s->weights[i], &o->params.p[i]->shard.data));
        if (s->residuals[i].storage != NULL)
            D9D_TRY(copy_restore(o->dev, &s->residuals[i], residual_tensor(o, i)));
    }
    d9d_arena_release(&s->arena);
    *s = (d9di_optimizer_stash){0};
    return D9D_OK;
}
