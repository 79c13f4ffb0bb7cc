/* optimizer.c - optimizer state of each parameter, and the step.  See d9d/optim/optim.h.
 */
#include "optim/optimizer_private.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "d9d/base/plugin_call.h"
#include "d9d/kernels/sim.h"
#include "d9d/nn/adapter.h"

double d9d_optimizer_lr(const d9d_union *section)
{
    return *(const double *)section->value;
}

/* --- what updates each parameter -------------------------------------------------------------- */

static d9d_status states_count(const d9d_optimizer_choice *c, int *out)
{
    const d9d_optimizer_kind *kind = c->kind;
    int names = 0, n;

    while (names < D9D_OPTIMIZER_STATES && kind->states[names] != NULL)
        names++;
    n = kind->n_states != NULL ? kind->n_states(c->config) : names;
    if (n < 0 || n > names)
        return D9D_FAIL(D9D_EINVAL, "optimizer %s: n_states() gave %d, it has %d names",
                        kind->table->name, n, names);
    *out = n;
    return D9D_OK;
}

static bool updates_masters(const d9d_optimizer_choice *c)
{
    return c->kind->weight_update != NULL && c->kind->weight_update(c->config) == D9D_UPDATE_MASTER;
}

static d9d_dtype state_dtype(const d9di_optimizer_use *use, const d9d_param *p)
{
    const d9d_optimizer_choice *c = &use->choice;

    return c->kind->state_dtype != NULL ? c->kind->state_dtype(c->config, p) : p->spec.dtype;
}

static d9d_status use_add(d9d_optimizer *o, const d9d_optimizer_choice *c, size_t *out)
{
    d9di_optimizer_use use = {.choice = *c, .masters = updates_masters(c)};

    D9D_TRY(states_count(c, &use.n_states));
    if (2 * use.n_states + 1 > o->n_stored)
        o->n_stored = 2 * use.n_states + 1;
    *out = o->uses.len;
    return D9D_VEC_PUSH(&o->uses, use);
}

/* The kind of one parameter of a group, and what else has it. */
static d9d_status use_choose(d9d_optimizer *o, size_t group, const d9d_param *p, size_t *out)
{
    d9d_optimizer_choice c = {o->kind, o->groups.v[group].config, 1};

    if (o->kind->choose != NULL)
        D9D_TRY(D9D_PLUGIN_CALL(o->kind->table->name, o->kind, choose, c.config, p, &c));
    if (c.kind->accepts != NULL)
        D9D_TRY(D9D_PLUGIN_CALL(c.kind->table->name, c.kind, accepts, p));
    for (*out = 0; *out < o->uses.len; (*out)++)
        if (o->uses.data[*out].choice.kind == c.kind &&
            o->uses.data[*out].choice.config == c.config)
            return D9D_OK;
    return use_add(o, &c, out);
}

static d9d_status uses_choose(d9d_optimizer *o)
{
    o->use_of = d9d_arena_alloc(&o->arena, (o->params.n + 1) * sizeof(*o->use_of));
    if (o->use_of == NULL)
        return D9D_FAIL(D9D_ENOMEM, "optimizer: no memory for the kinds of %zu parameters",
                        o->params.n);
    for (size_t i = 0; i < o->params.n; i++)
        if (o->params.p[i]->spec.trainable)
            D9D_TRY(use_choose(o, o->groups.of[i], o->params.p[i], &o->use_of[i]));
    return D9D_OK;
}

/* --- state ------------------------------------------------------------------------------------ */

/* Places among the states of a parameter: of the kind's, the residual, and their scales. */
static int residual_place(const d9di_optimizer_use *use)
{
    return use->n_states;
}
static int scale_place(const d9di_optimizer_use *use, int state)
{
    return use->n_states + 1 + state;
}

/* A parameter with an element for each block of a row of p, placed as p is. */
static void param_blocks(d9d_param *p)
{
    const int d = p->spec.shape.ndim - 1;
    const int64_t block = D9D_STATE_BLOCK;

    p->spec.shape.dim[d] = (p->spec.shape.dim[d] + block - 1) / block;
    p->local.shape.dim[d] = (p->local.shape.dim[d] + block - 1) / block;
    p->shard.shape.dim[d] = (p->shard.shape.dim[d] + block - 1) / block;
    p->local.offset[d] /= block;
    p->shard.offset[d] /= block;
}

/* A parameter of size 1 along some dimensions, placed as p is.  The shards that begin there are all
 * of it, and one of the ranks that have the first is primary. */
static void param_reduce(d9d_param *p, int dims)
{
    for (int d = 0; d < p->spec.shape.ndim; d++) {
        if ((dims >> d & 1) == 0)
            continue;
        p->placement.is_primary = p->placement.is_primary && p->shard.offset[d] == 0;
        p->spec.shape.dim[d] = p->local.shape.dim[d] = p->shard.shape.dim[d] = 1;
        p->local.offset[d] = p->shard.offset[d] = 0;
        if (p->placement.shard_dim == d)
            p->placement.shard_group = NULL;
    }
}

/* The parameter whose placement a state has.  Both may change until the state has memory. */
static const d9d_param *state_param(const d9d_optimizer *o, size_t at)
{
    const d9d_param *p = o->params.p[at / (size_t)o->n_stored];

    if (o->reduced[at] == NULL)
        return p;
    *o->reduced[at] = *p;
    if (o->dims[at] == D9DI_STATE_SCALES)
        param_blocks(o->reduced[at]);
    else
        param_reduce(o->reduced[at], o->dims[at]);
    return o->reduced[at];
}

/* `dims`: of the state. */
static d9d_status state_add(d9d_optimizer *o, size_t i, int s, d9d_dtype t, int dims,
                            const char *name)
{
    const d9d_param *p = o->params.p[i];
    const size_t at = i * (size_t)o->n_stored + (size_t)s;

    o->dims[at] = dims;
    o->reduced[at] = dims != 0 ? d9d_arena_alloc(&o->arena, sizeof(**o->reduced)) : NULL;
    if (dims != 0 && o->reduced[at] == NULL)
        return D9D_FAIL(D9D_ENOMEM, "optimizer: no memory for the shape of a state of %s", p->name);
    o->state[at] = (d9d_tensor){.dtype = t, .shape = state_param(o, at)->shard.shape};
    o->names[o->n_index] = d9d_arena_printf(&o->arena, "%s.%s", p->name, name);
    if (o->names[o->n_index] == NULL)
        return D9D_FAIL(D9D_ENOMEM, "optimizer: no memory for the name of a state of %s", p->name);
    o->index[o->n_index++] = at;
    return D9D_OK;
}

/* The type of state s, of those that the kind says are of type t. */
static d9d_dtype type_of_state(d9d_dtype t, int s)
{
    return t == D9D_I8 && s > 0 ? D9D_U8 : t;
}

/* The scales of state s of parameter i, if it has some. */
static d9d_status scale_add(d9d_optimizer *o, size_t i, int s)
{
    const d9d_param *p = o->params.p[i];
    const d9di_optimizer_use *use = &o->uses.data[o->use_of[i]];
    const char *name;

    if (state_dtype(use, p) != D9D_I8)
        return D9D_OK;
    name = d9d_arena_printf(&o->arena, "%s_scale", use->choice.kind->states[s]);
    if (name == NULL)
        return D9D_FAIL(D9D_ENOMEM, "optimizer: no memory for the name of a state of %s", p->name);
    return state_add(o, i, scale_place(use, s), D9D_BF16, D9DI_STATE_SCALES, name);
}

/* Declare the states of parameter i: names, types and shapes. */
static d9d_status states_add(d9d_optimizer *o, size_t i)
{
    const d9d_param *p = o->params.p[i];
    const d9di_optimizer_use *use = &o->uses.data[o->use_of[i]];
    const d9d_optimizer_kind *kind = use->choice.kind;
    const d9d_dtype t = use->n_states > 0 ? state_dtype(use, p) : D9D_F32;

    if (t != D9D_F32 && t != D9D_BF16 && t != D9D_I8)
        return D9D_FAIL(
            D9D_EINVAL,
            "optimizer %s: a state of %s has the type %d, not float32, bfloat16 or int8",
            kind->table->name, p->name, (int)t);
    for (int s = 0; s < use->n_states; s++) {
        const int dims =
            kind->state_reduced != NULL ? kind->state_reduced(use->choice.config, p, s) : 0;

        if (dims >= 0) {
            D9D_TRY(state_add(o, i, s, type_of_state(t, s), dims, kind->states[s]));
            D9D_TRY(scale_add(o, i, s));
        }
    }
    if (use->masters && p->spec.dtype == D9D_BF16)
        D9D_TRY(state_add(o, i, residual_place(use), D9D_I16, 0, "master_residual"));
    return D9D_OK;
}

static bool is_residual(const d9d_optimizer *o, size_t at)
{
    const d9di_optimizer_use *use = &o->uses.data[o->use_of[at / (size_t)o->n_stored]];

    return at % (size_t)o->n_stored == (size_t)residual_place(use);
}

static d9d_status states_create(d9d_optimizer *o)
{
    size_t n = o->params.n * (size_t)o->n_stored + 1;

    o->state = d9d_arena_alloc(&o->arena, n * sizeof(*o->state));
    o->reduced = d9d_arena_alloc(&o->arena, n * sizeof(*o->reduced));
    o->dims = d9d_arena_alloc(&o->arena, n * sizeof(*o->dims));
    o->index = d9d_arena_alloc(&o->arena, n * sizeof(*o->index));
    o->names = d9d_arena_alloc(&o->arena, n * sizeof(*o->names));
    o->steps = d9d_arena_alloc(&o->arena, (o->params.n + 1) * sizeof(*o->steps));
    o->updates = d9d_arena_alloc(&o->arena, (o->params.n + 1) * sizeof(*o->updates));
    o->order = d9d_arena_alloc(&o->arena, (o->params.n + 1) * sizeof(*o->order));
    o->some = d9d_arena_alloc(&o->arena, (o->params.n + 1) * sizeof(*o->some));
    if (o->state == NULL || o->reduced == NULL || o->dims == NULL || o->index == NULL ||
        o->names == NULL || o->steps == NULL || o->updates == NULL || o->order == NULL ||
        o->some == NULL)
        return D9D_FAIL(D9D_ENOMEM, "optimizer: no memory for records of %zu states", n - 1);
    for (size_t i = 0; i + 1 < n; i++)
        o->dims[i] = -1;
    for (size_t i = 0; i < o->params.n; i++) {
        o->order[i] = i;
        if (o->params.p[i]->spec.trainable)
            D9D_TRY(states_add(o, i));
    }
    return D9D_OK;
}

/* The dimension that tensor parallelism divides, of an adapter with its matrix; -1: none. */
static int divided_dim(const d9d_param *p)
{
    const d9d_param *w = p->peft.adapts;
    int i = 0;

    if (w == NULL)
        return d9d_parallel_style_dim(p->spec.parallel.style);
    while (w->peft.adapter->param[i] != p)
        i++;
    return d9d_adapter_divided_dim(w, i);
}

/* Has parameter i states in 8 bits, and do so many ranks divide its rows within a block? */
static bool divides_block(const d9d_optimizer *o, size_t i, int64_t ranks)
{
    const d9d_param *p = o->params.p[i];
    const d9d_shape *s = &p->spec.shape;

    return ranks > 1 && p->spec.trainable && s->ndim == 2 && divided_dim(p) == 1 &&
           state_dtype(&o->uses.data[o->use_of[i]], p) == D9D_I8 &&
           s->dim[1] % (ranks * D9D_STATE_BLOCK) != 0;
}

d9d_status d9d_optimizer_check_rowwise(const d9d_optimizer *o, int64_t ranks)
{
    for (size_t i = 0; i < o->params.n; i++)
        if (divides_block(o, i, ranks))
            return D9D_FAIL(
                D9D_ECONFIG,
                "mesh.tensor_parallel: %lld rank%s divide rows of %lld element%s of %s, "
                "and optimizer.state_dtype int8 needs multiples of %d on each; choose "
                "another number, or state_dtype bfloat16",
                (long long)ranks, D9D_PLURAL(ranks), (long long)o->params.p[i]->spec.shape.dim[1],
                D9D_PLURAL(o->params.p[i]->spec.shape.dim[1]), o->params.p[i]->name,
                D9D_STATE_BLOCK);
    return D9D_OK;
}

bool d9d_optimizer_needs_group(const d9d_optimizer *o)
{
    return o->kind->open != NULL;
}

void d9d_optimizer_set_group(d9d_optimizer *o, d9d_comm *group)
{
    o->group = group;
}

static d9d_status uses_open(d9d_optimizer *o)
{
    const d9d_optimizer_open_opts opts = {o->dev, &o->params, o->group};

    for (size_t i = 0; i < o->uses.len; i++) {
        d9di_optimizer_use *use = &o->uses.data[i];
        const d9d_optimizer_kind *kind = use->choice.kind;

        if (kind->open != NULL)
            D9D_TRY(D9D_PLUGIN_CALL(kind->table->name, kind, open, &opts, &use->self));
    }
    return D9D_OK;
}

void d9d_optimizer_set_offload(d9d_optimizer *o)
{
    o->is_offloaded = true;
}

d9d_status d9di_optimizer_state_fill(d9d_optimizer *o, d9d_tensor *t)
{
    d9d_device *dev = o->dev;

    D9D_TRY(
        (o->is_offloaded ? d9d_tensor_alloc_pinned : d9d_tensor_alloc)(dev, t->dtype, t->shape, t));
    return dev->kernels->elementwise->fill(dev->stream, t->dtype, d9d_tensor_data(t),
                                           d9d_tensor_numel(t), 0);
}

/* The host would kill a job that asks for more than it has. */
static d9d_status check_host_memory(const d9d_optimizer *o)
{
    const uint64_t needs = d9d_optimizer_host_bytes(o), has = d9d_mem_available();

    if (needs <= has || o->dev->kernels == d9d_kernels_sim())
        return D9D_OK;
    return D9D_FAIL(D9D_EOOM,
                    "trainer.offload: optimizer states of %.2f GiB on this rank, and the host has "
                    "%.2f GiB available",
                    (double)needs / (1 << 30), (double)has / (1 << 30));
}

d9d_status d9d_optimizer_fill(d9d_optimizer *o, d9d_device *dev)
{
    o->dev = dev;
    D9D_TRY(check_host_memory(o));
    for (size_t i = 0; i < o->n_index; i++) {
        d9d_tensor *t = &o->state[o->index[i]];

        t->shape = state_param(o, o->index[i])->shard.shape;
        D9D_TRY(d9di_optimizer_state_fill(o, t));
    }
    D9D_TRY(d9di_optimizer_ema_fill(o));
    return uses_open(o);
}

d9d_status d9d_optimizer_create(const d9d_union *section, d9d_device *dev, const d9d_params *params,
                                const d9d_params *whole, uint64_t seed, d9d_optimizer **out)
{
    d9d_optimizer *o = calloc(1, sizeof(*o));
    d9d_status st;

    if (o == NULL)
        return D9D_FAIL(D9D_ENOMEM, "optimizer: %zu bytes", sizeof(*o));
    o->kind = section->choice->row;
    o->params = *params;
    o->seed = seed;
    D9D_TRY_OR(st,
               d9di_optimizer_groups_assign(section, &o->params, whole != NULL ? whole : &o->params,
                                            &o->arena, &o->groups),
               out);
    D9D_TRY_OR(st, uses_choose(o), out);
    D9D_TRY_OR(st, d9di_optimizer_index_make(&o->params, &o->index_of), out);
    D9D_TRY_OR(st, states_create(o), out);
    if (dev != NULL)
        D9D_TRY_OR(st, d9d_optimizer_fill(o, dev), out);
    *out = o;
    o = NULL;
out:
    d9d_optimizer_free(o);
    return st;
}

void d9d_optimizer_free(d9d_optimizer *o)
{
    if (o == NULL)
        return;
    for (size_t i = 0; o->state != NULL && i < o->params.n * (size_t)o->n_stored; i++)
        d9d_tensor_release(&o->state[i]);
    d9di_optimizer_ema_release(o);
    for (size_t i = 0; i < o->uses.len; i++)
        if (o->uses.data[i].self != NULL)
            o->uses.data[i].choice.kind->close(o->uses.data[i].self);
    D9D_VEC_RELEASE(&o->uses);
    d9di_optimizer_index_release(&o->index_of);
    d9d_arena_release(&o->arena);
    free(o);
}

/* --- a step ----------------------------------------------------------------------------------- */

/* Move the parameter up to place *to, if it is behind it. */
static void order_move_up(d9d_optimizer *o, const d9d_param *p, size_t *to)
{
    for (size_t i = *to; i < o->params.n; i++) {
        const size_t at = o->order[i];

        if (o->params.p[at] != p)
            continue;
        memmove(&o->order[*to + 1], &o->order[*to], (i - *to) * sizeof(*o->order));
        o->order[(*to)++] = at;
        return;
    }
}

d9d_status d9d_optimizer_set_order(d9d_optimizer *o, const d9d_params *const *first, size_t n,
                                   d9d_optimizer_enqueued_fn *enqueued, void *arg)
{
    const bool at_once = o->kind->update_list != NULL && !o->kind->partial_lists_ok;
    size_t to = 0;

    o->end = d9d_arena_alloc(&o->arena, (n + 1) * sizeof(*o->end));
    if (o->end == NULL)
        return D9D_FAIL(D9D_ENOMEM, "optimizer: no memory for the order of %zu parameters",
                        o->params.n);
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < first[i]->n && !at_once; k++)
            order_move_up(o, first[i]->p[k], &to);
        o->end[i] = at_once ? o->params.n : to;
    }
    o->n_first = n;
    o->enqueued = enqueued;
    o->enqueued_arg = arg;
    return D9D_OK;
}

d9d_optimizer_update d9di_optimizer_update_make(d9d_optimizer *o, size_t i)
{
    const d9di_optimizer_use *use = &o->uses.data[o->use_of[i]];

    return (d9d_optimizer_update){
        .dev = o->dev,
        .param = o->params.p[i],
        .state = &o->state[i * (size_t)o->n_stored],
        .state_scale = &o->state[i * (size_t)o->n_stored + (size_t)scale_place(use, 0)],
        .state_dtype = state_dtype(use, o->params.p[i]),
        .step = o->steps[i],
        .seed = o->seed,
        .self = use->self,
    };
}

/* The updates of one kind among `count` parameters. */
static size_t updates_collect(d9d_optimizer *o, size_t of, double lr, const d9d_tensor *scale,
                              const size_t *which, size_t count)
{
    const d9di_optimizer_use *use = &o->uses.data[of];
    size_t n = 0;

    for (size_t k = 0; k < count; k++) {
        const size_t i = which[k];

        if (!d9d_param_has_shard_grad(o->params.p[i]) || o->use_of[i] != of)
            continue;
        o->steps[i]++;
        o->updates[n] = d9di_optimizer_update_make(o, i);
        o->updates[n].scale = d9d_tensor_data(scale);
        o->updates[n++].lr = lr * use->choice.lr_scale * o->groups.lr_scale[i];
    }
    return n;
}

/* Make n updates of one kind. */
static d9d_status updates_apply(d9d_optimizer *o, const d9d_optimizer_choice *c, size_t n)
{
    if (c->kind->update_list != NULL)
        return n == 0 ? D9D_OK
                      : D9D_PLUGIN_CALL(c->kind->table->name, c->kind, update_list, c->config,
                                        o->updates, n);
    for (size_t i = 0; i < n; i++)
        D9D_TRY(D9D_PLUGIN_CALL(c->kind->table->name, c->kind, update, c->config, &o->updates[i]));
    return D9D_OK;
}

/* Update these parameters in this order, kind by kind. */
static d9d_status update_these(d9d_optimizer *o, double lr, const d9d_tensor *scale,
                               const size_t *which, size_t n)
{
    for (size_t i = 0; i < o->uses.len; i++)
        D9D_TRY(
            updates_apply(o, &o->uses.data[i].choice, updates_collect(o, i, lr, scale, which, n)));
    return D9D_OK;
}

d9d_status d9d_optimizer_step(d9d_optimizer *o, double lr, const d9d_tensor *scale)
{
    size_t done = 0;

    D9D_TRY(d9di_optimizer_ema_begin(o, scale, o->order, o->params.n));
    for (size_t i = 0; i < o->n_first; done = o->end[i++]) {
        D9D_TRY(update_these(o, lr, scale, o->order + done, o->end[i] - done));
        D9D_TRY(o->enqueued(o->enqueued_arg, i));
    }
    D9D_TRY(update_these(o, lr, scale, o->order + done, o->params.n - done));
    return d9di_optimizer_ema_update(o, scale, o->order, o->params.n);
}

d9d_status d9d_optimizer_step_some(d9d_optimizer *o, const d9d_params *some, double lr,
                                   const d9d_tensor *scale)
{
    size_t n = 0;

    for (size_t i = 0; i < some->n; i++)
        n += d9di_optimizer_index_find(&o->index_of, some->p[i], &o->some[n]);
    D9D_TRY(d9di_optimizer_ema_begin(o, scale, o->some, n));
    D9D_TRY(update_these(o, lr, scale, o->some, n));
    return d9di_optimizer_ema_update(o, scale, o->some, n);
}

d9d_status d9d_optimizer_check_step_some(const d9d_optimizer *o)
{
    for (size_t i = 0; i < o->uses.len; i++) {
        const d9d_optimizer_kind *kind = o->uses.data[i].choice.kind;

        if (kind->update_list != NULL && !kind->partial_lists_ok)
            return D9D_FAIL(D9D_ECONFIG,
                            "trainer.optimizer_in_backward: the optimizer %s updates all its "
                            "parameters together, so that their gradients stay; adamw, adam, "
                            "lion, sgd and schedule_free_adamw update one by one",
                            kind->table->name);
    }
    return D9D_OK;
}

const char *d9d_optimizer_name(const d9d_optimizer *o)
{
    return o->kind->table->name;
}

static uint64_t state_bytes(const d9d_optimizer *o, bool residuals_alone)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < o->n_index; i++) {
        const size_t at = o->index[i];

        if (!residuals_alone || is_residual(o, at))
            sum +=
                (uint64_t)d9d_shape_numel(&o->state[at].shape) * d9d_dtype_size(o->state[at].dtype);
    }
    return sum;
}

static uint64_t all_bytes(const d9d_optimizer *o)
{
    return state_bytes(o, false) + d9di_optimizer_ema_bytes(o);
}

uint64_t d9d_optimizer_bytes(const d9d_optimizer *o)
{
    return o->is_offloaded ? 0 : all_bytes(o);
}

uint64_t d9d_optimizer_host_bytes(const d9d_optimizer *o)
{
    return o->is_offloaded ? all_bytes(o) : 0;
}

uint64_t d9d_optimizer_residual_bytes(const d9d_optimizer *o)
{
    return state_bytes(o, true);
}

size_t d9d_optimizer_state_count(const d9d_optimizer *o)
{
    return o->n_index + o->ema.n;
}

d9d_optimizer_state d9d_optimizer_state_at(d9d_optimizer *o, size_t i)
{
    size_t at;

    if (i >= o->n_index)
        return d9di_optimizer_ema_state_at(o, i - o->n_index);
    at = o->index[i];
    return (d9d_optimizer_state){o->names[i], state_param(o, at), &o->state[at],
                                 is_residual(o, at)};
}

int64_t *d9d_optimizer_steps(d9d_optimizer *o, size_t *n)
{
    *n = o->params.n;
    return o->steps;
}

/* --- description ------------------------------------------------------------------------------ */

static const char *update_text(const d9d_optimizer_choice *c, const d9d_param *p)
{
    static const char *const words[] = {
        [D9D_UPDATE_MASTER] = " updated as float32 master weights",
        [D9D_UPDATE_STOCHASTIC] = " rounded stochastically",
        [D9D_UPDATE_NEAREST] = " rounded to nearest, so that small updates are lost",
    };

    return p->spec.dtype != D9D_BF16 || c->kind->weight_update == NULL
               ? ""
               : words[c->kind->weight_update(c->config)];
}

/* Do two parameters have one line? */
static bool same_line(const d9d_optimizer *o, size_t i, size_t k)
{
    return o->params.p[k]->spec.trainable &&
           o->params.p[k]->spec.dtype == o->params.p[i]->spec.dtype &&
           o->uses.data[o->use_of[k]].choice.kind == o->uses.data[o->use_of[i]].choice.kind;
}

/* Bytes that this rank has of the state at `at`; 0 if it does not exist. */
static double stored_bytes(const d9d_optimizer *o, size_t at)
{
    return o->dims[at] < 0 ? 0
                           : (double)d9d_shape_numel(&state_param(o, at)->shard.shape) *
                                 (double)d9d_dtype_size(o->state[at].dtype);
}

/* Bytes of state s, with its scales, per element, over the parameters of a line. */
static double state_bytes_per_element(const d9d_optimizer *o, size_t i, int s)
{
    double bytes = 0, elements = 0;

    for (size_t k = 0; k < o->params.n; k++) {
        const d9di_optimizer_use *use = &o->uses.data[o->use_of[i]];
        const size_t first = k * (size_t)o->n_stored;

        if (!same_line(o, i, k))
            continue;
        elements += (double)d9d_shape_numel(&o->params.p[k]->shard.shape);
        bytes += stored_bytes(o, first + (size_t)s);
        if (s < use->n_states)
            bytes += stored_bytes(o, first + (size_t)scale_place(use, s));
    }
    return elements > 0 ? bytes / elements : 0;
}

static d9d_status describe_param(const d9d_optimizer *o, size_t i, d9d_buf *out)
{
    const d9d_param *p = o->params.p[i];
    const d9di_optimizer_use *use = &o->uses.data[o->use_of[i]];
    const d9d_optimizer_kind *kind = use->choice.kind;
    const int n = use->n_states + (use->masters && p->spec.dtype == D9D_BF16);
    const size_t fixed = d9d_dtype_size(p->spec.dtype) + d9d_dtype_size(p->spec.grad_dtype);
    double sum = (double)fixed;

    D9D_TRY(d9d_buf_printf(out, "%s%s: %s weights%s; bytes a parameter: weights %zu, gradients %zu",
                           out->len > 0 ? "; " : "", kind->table->name,
                           d9d_dtype_name(p->spec.dtype), update_text(&use->choice, p),
                           d9d_dtype_size(p->spec.dtype), d9d_dtype_size(p->spec.grad_dtype)));
    for (int s = 0; s < n; s++) {
        const double bytes = state_bytes_per_element(o, i, s);

        D9D_TRY(d9d_buf_printf(out, ", %s %.2g",
                               s < use->n_states ? kind->states[s] : "master_residual", bytes));
        sum += bytes;
    }
    return d9d_buf_printf(out, ", in all %.3g", sum);
}

/* Where there are several kinds: what the kind of parameter i updates. */
static d9d_status describe_kind(const d9d_optimizer *o, size_t i, d9d_buf *out)
{
    long long elements = 0;
    size_t n = 0;

    for (size_t k = 0; k < o->params.n && o->kind->choose != NULL; k++)
        if (same_line(o, i, k)) {
            n++;
            elements += (long long)d9d_shape_numel(&o->params.p[k]->spec.shape);
        }
    return n == 0 ? D9D_OK
                  : d9d_buf_printf(out, ", for %zu parameter%s of %lld element%s", n, D9D_PLURAL(n),
                                   elements, D9D_PLURAL(elements));
}

/* One line for each kind and type of parameter, from the first of them, and for each group. */
d9d_status d9d_optimizer_describe(const d9d_optimizer *o, d9d_buf *out)
{
    for (size_t i = 0; i < o->params.n; i++) {
        bool described = !o->params.p[i]->spec.trainable;

        for (size_t k = 0; k < i && !described; k++)
            described = same_line(o, i, k);
        if (described)
            continue;
        D9D_TRY(describe_param(o, i, out));
        D9D_TRY(describe_kind(o, i, out));
    }
    return d9di_optimizer_groups_describe(&o->groups, out);
}
