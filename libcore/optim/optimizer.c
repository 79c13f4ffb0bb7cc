/* optimizer.c - optimizer state of each parameter, and the step.  See d9d/optim/optim.h.
 */
#include "optim/optimizer.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/plugin_call.h"
#include "optim/param_groups.h"

struct d9d_optimizer {
    const d9d_optimizer_kind *kind;
    const void *config;
    d9d_device *dev;
    d9d_params params;
    d9di_optimizer_groups groups;
    uint64_t seed;
    int n_states;      /* states of the kind */
    int n_stored;      /* n_states, and the residual of a master weight as the last one */
    d9d_tensor *state; /* [params.n * n_kept]; storage NULL for frozen parameters */
    int64_t *steps;    /* [params.n] */
    d9d_optimizer_update *updates; /* [params.n], of the current call */
    size_t *order;                 /* [params.n]: order of updates, as indices into params */
    size_t *end; /* [n_first]: end of each list of parameters that are updated first, in `order` */
    size_t n_first;
    d9d_optimizer_enqueued_fn *enqueued;
    void *enqueued_arg;
    size_t *index; /* the states that exist, as indices into `state` */
    char **names;  /* their names */
    size_t n_index;
    d9d_arena arena;
};

double d9d_optimizer_lr(const d9d_union *section)
{
    return *(const double *)section->value;
}

static d9d_status states_count(const d9d_optimizer *o, int *out)
{
    int names = 0, n;

    while (names < D9D_OPTIMIZER_STATES && o->kind->states[names] != NULL)
        names++;
    n = o->kind->n_states != NULL ? o->kind->n_states(o->config) : names;
    if (n < 0 || n > names)
        return D9D_FAIL(D9D_EINVAL, "optimizer %s: n_states() gave %d, it has %d names",
                        o->kind->table->name, n, names);
    *out = n;
    return D9D_OK;
}

static bool updates_masters(const d9d_optimizer *o)
{
    return o->kind->weight_update != NULL && o->kind->weight_update(o->config) == D9D_UPDATE_MASTER;
}

static d9d_dtype state_dtype(const d9d_optimizer *o, const d9d_param *p)
{
    return o->kind->state_dtype != NULL ? o->kind->state_dtype(o->config, p) : p->spec.dtype;
}

static d9d_status state_add(d9d_optimizer *o, size_t i, int s, d9d_dtype t, const char *name)
{
    const d9d_param *p = o->params.p[i];
    const size_t at = i * (size_t)o->n_stored + (size_t)s;

    o->state[at] = (d9d_tensor){.dtype = t, .shape = p->shard.shape};
    o->names[o->n_index] = d9d_arena_printf(&o->arena, "%s.%s", p->name, name);
    if (o->names[o->n_index] == NULL)
        return D9D_FAIL(D9D_ENOMEM, "optimizer: no memory for the name of a state of %s", p->name);
    o->index[o->n_index++] = at;
    return D9D_OK;
}

/* Declare the states of parameter i: names, types and shapes. */
static d9d_status states_add(d9d_optimizer *o, size_t i)
{
    const d9d_param *p = o->params.p[i];
    const d9d_dtype t = o->n_states > 0 ? state_dtype(o, p) : D9D_F32;

    if (t != D9D_F32 && t != D9D_BF16)
        return D9D_FAIL(D9D_EINVAL,
                        "optimizer %s: a state of %s has the type %d, not float32 or bfloat16",
                        o->kind->table->name, p->name, (int)t);
    for (int s = 0; s < o->n_states; s++)
        D9D_TRY(state_add(o, i, s, t, o->kind->states[s]));
    if (o->n_stored > o->n_states && p->spec.dtype == D9D_BF16)
        D9D_TRY(state_add(o, i, o->n_states, D9D_I16, "master_residual"));
    return D9D_OK;
}

static const d9d_param *state_param(const d9d_optimizer *o, size_t at)
{
    return o->params.p[at / (size_t)o->n_stored];
}

static bool is_residual(const d9d_optimizer *o, size_t at)
{
    return at % (size_t)o->n_stored >= (size_t)o->n_states;
}

static d9d_status states_create(d9d_optimizer *o)
{
    size_t n = o->params.n * (size_t)o->n_stored + 1;

    o->state = d9d_arena_alloc(&o->arena, n * sizeof(*o->state));
    o->index = d9d_arena_alloc(&o->arena, n * sizeof(*o->index));
    o->names = d9d_arena_alloc(&o->arena, n * sizeof(*o->names));
    o->steps = d9d_arena_alloc(&o->arena, (o->params.n + 1) * sizeof(*o->steps));
    o->updates = d9d_arena_alloc(&o->arena, (o->params.n + 1) * sizeof(*o->updates));
    o->order = d9d_arena_alloc(&o->arena, (o->params.n + 1) * sizeof(*o->order));
    if (o->state == NULL || o->index == NULL || o->names == NULL || o->steps == NULL ||
        o->updates == NULL || o->order == NULL)
        return D9D_FAIL(D9D_ENOMEM, "optimizer: no memory for records of %zu states", n - 1);
    for (size_t i = 0; i < o->params.n; i++) {
        o->order[i] = i;
        if (!o->params.p[i]->spec.trainable)
            continue;
        if (o->kind->accepts != NULL)
            D9D_TRY(D9D_PLUGIN_CALL(o->kind->table->name, o->kind, accepts, o->params.p[i]));
        D9D_TRY(states_add(o, i));
    }
    return D9D_OK;
}

d9d_status d9d_optimizer_fill(d9d_optimizer *o, d9d_device *dev)
{
    o->dev = dev;
    for (size_t i = 0; i < o->n_index; i++) {
        d9d_tensor *t = &o->state[o->index[i]];
        const d9d_param *p = state_param(o, o->index[i]);

        D9D_TRY(d9d_tensor_alloc(dev, t->dtype, p->shard.shape, t));
        D9D_TRY(dev->kernels->elementwise->fill(dev->stream, t->dtype, d9d_tensor_data(t),
                                                d9d_tensor_numel(t), 0));
    }
    return D9D_OK;
}

d9d_status d9d_optimizer_create(const d9d_union *section, d9d_device *dev, const d9d_params *params,
                                const d9d_params *whole, uint64_t seed, d9d_optimizer **out)
{
    d9d_optimizer *o = calloc(1, sizeof(*o));
    d9d_status st;

    if (o == NULL)
        return D9D_FAIL(D9D_ENOMEM, "optimizer: %zu bytes", sizeof(*o));
    o->kind = section->choice->row;
    o->config = section->value;
    o->params = *params;
    o->seed = seed;
    D9D_TRY_OR(st, states_count(o, &o->n_states), out);
    o->n_stored = o->n_states + (updates_masters(o) ? 1 : 0);
    D9D_TRY_OR(st, states_create(o), out);
    D9D_TRY_OR(st,
               d9di_optimizer_groups_assign(section, &o->params, whole != NULL ? whole : &o->params,
                                            &o->arena, &o->groups),
               out);
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

/* The updates of a group's parameters from `begin` to `end` in the order. */
static size_t updates_collect(d9d_optimizer *o, size_t group, double lr, const d9d_tensor *scale,
                              size_t begin, size_t end)
{
    size_t n = 0;

    for (size_t k = begin; k < end; k++) {
        const size_t i = o->order[k];
        d9d_param *p = o->params.p[i];

        if (o->groups.of[i] != group || !d9d_param_has_shard_grad(p))
            continue;
        o->updates[n++] = (d9d_optimizer_update){
            .dev = o->dev,
            .param = p,
            .state = &o->state[i * (size_t)o->n_stored],
            .state_dtype = state_dtype(o, p),
            .scale = d9d_tensor_data(scale),
            .lr = lr * o->groups.lr_scale[i],
            .step = ++o->steps[i],
            .seed = o->seed,
        };
    }
    return n;
}

/* Make n updates with the values of one group. */
static d9d_status updates_apply(d9d_optimizer *o, const void *config, size_t n)
{
    if (o->kind->update_list != NULL)
        return n == 0 ? D9D_OK
                      : D9D_PLUGIN_CALL(o->kind->table->name, o->kind, update_list, config,
                                        o->updates, n);
    for (size_t i = 0; i < n; i++)
        D9D_TRY(D9D_PLUGIN_CALL(o->kind->table->name, o->kind, update, config, &o->updates[i]));
    return D9D_OK;
}

/* Update the parameters from `begin` to `end` in the order, group by group. */
static d9d_status update_range(d9d_optimizer *o, double lr, const d9d_tensor *scale, size_t begin,
                               size_t end)
{
    for (size_t g = 0; g < o->groups.n; g++)
        D9D_TRY(
            updates_apply(o, o->groups.v[g].config, updates_collect(o, g, lr, scale, begin, end)));
    return D9D_OK;
}

d9d_status d9d_optimizer_step(d9d_optimizer *o, double lr, const d9d_tensor *scale)
{
    size_t done = 0;

    for (size_t i = 0; i < o->n_first; done = o->end[i++]) {
        D9D_TRY(update_range(o, lr, scale, done, o->end[i]));
        D9D_TRY(o->enqueued(o->enqueued_arg, i));
    }
    return update_range(o, lr, scale, done, o->params.n);
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
            sum += (uint64_t)d9d_shape_numel(&state_param(o, at)->shard.shape) *
                   d9d_dtype_size(o->state[at].dtype);
    }
    return sum;
}

uint64_t d9d_optimizer_bytes(const d9d_optimizer *o)
{
    return state_bytes(o, false);
}

uint64_t d9d_optimizer_residual_bytes(const d9d_optimizer *o)
{
    return state_bytes(o, true);
}

size_t d9d_optimizer_state_count(const d9d_optimizer *o)
{
    return o->n_index;
}

d9d_optimizer_state d9d_optimizer_state_at(d9d_optimizer *o, size_t i)
{
    const size_t at = o->index[i];

    return (d9d_optimizer_state){o->names[i], state_param(o, at), &o->state[at],
                                 is_residual(o, at)};
}

int64_t *d9d_optimizer_steps(d9d_optimizer *o, size_t *n)
{
    *n = o->params.n;
    return o->steps;
}

/* --- description ------------------------------------------------------------------------------ */

static const char *update_text(const d9d_optimizer *o, const d9d_param *p)
{
    static const char *const words[] = {
        [D9D_UPDATE_MASTER] = " updated as float32 master weights",
        [D9D_UPDATE_STOCHASTIC] = " rounded stochastically",
        [D9D_UPDATE_NEAREST] = " rounded to nearest, so that small updates are lost",
    };

    return p->spec.dtype != D9D_BF16 || o->kind->weight_update == NULL
               ? ""
               : words[o->kind->weight_update(o->config)];
}

static d9d_status describe_param(const d9d_optimizer *o, size_t i, d9d_buf *out)
{
    const d9d_param *p = o->params.p[i];
    size_t sum = d9d_dtype_size(p->spec.dtype) + d9d_dtype_size(p->spec.grad_dtype);

    D9D_TRY(d9d_buf_printf(out, "%s%s: %s weights%s; bytes a parameter: weights %zu, gradients %zu",
                           out->len > 0 ? "; " : "", o->kind->table->name,
                           d9d_dtype_name(p->spec.dtype), update_text(o, p),
                           d9d_dtype_size(p->spec.dtype), d9d_dtype_size(p->spec.grad_dtype)));
    for (size_t k = 0; k < o->n_index; k++) {
        const size_t at = o->index[k], bytes = d9d_dtype_size(o->state[at].dtype);

        if (at / (size_t)o->n_stored != i)
            continue;
        D9D_TRY(d9d_buf_printf(out, ", %s %zu", o->names[k] + strlen(p->name) + 1, bytes));
        sum += bytes;
    }
    return d9d_buf_printf(out, ", in all %zu", sum);
}

/* One line for each type of parameter, from the first of that type, and for each group. */
d9d_status d9d_optimizer_describe(const d9d_optimizer *o, d9d_buf *out)
{
    bool logged[D9D_DTYPE_COUNT] = {false};

    for (size_t i = 0; i < o->params.n; i++) {
        const d9d_param *p = o->params.p[i];

        if (!p->spec.trainable || logged[p->spec.dtype])
            continue;
        logged[p->spec.dtype] = true;
        D9D_TRY(describe_param(o, i, out));
    }
    return d9di_optimizer_groups_describe(&o->groups, out);
}
