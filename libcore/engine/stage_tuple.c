/* stage_tuple.c - see engine/stage_tuple.h. */
#include "engine/stage_tuple.h"

#include <string.h>

#include "engine/frozen_model.h"

#define FROZEN "reference." /* before the names of the frozen model's tensors */

/* --- declarations -------------------------------------------------------------------------- */

/* The frozen model's, as constants under names of their own. */
static d9d_status add_frozen(d9di_engine *e, int stage, d9di_stage_tuple *t)
{
    d9d_stage_spec own[D9D_STAGE_TENSORS_MAX];
    size_t n;

    D9D_TRY(d9d_model_stage_specs(d9di_frozen_model_stage_model(e, 0), stage, own, &n));
    for (size_t i = 0; i < n; i++) {
        own[i].constant = true;
        own[i].name = d9d_arena_printf(&e->arena, FROZEN "%s", own[i].name);
        if (own[i].name == NULL)
            return D9D_FAIL(D9D_ENOMEM, "the name of a stage tensor");
        t->specs[t->n++] = own[i];
    }
    return D9D_OK;
}

static d9d_status tuple_make(d9di_engine *e, int stage, d9di_stage_tuple *t)
{
    D9D_TRY(d9di_task_stage_specs(e->task, e->stages[0].model, stage, t->specs, &t->n_own));
    t->n = t->n_own;
    if (e->frozen.is_on)
        D9D_TRY(add_frozen(e, stage, t));
    return d9d_stage_specs_check(t->specs, t->n, e->whole.model->ops->name);
}

d9d_status d9di_stage_tuple_open(d9di_engine *e)
{
    const int stages = e->exec.program.stages;
    d9di_stage_tuple *tuples = d9d_arena_alloc(&e->arena, (size_t)stages * sizeof(*tuples));

    if (tuples == NULL)
        return D9D_FAIL(D9D_ENOMEM, "what enters %d stages", stages);
    tuples[0] = (d9di_stage_tuple){.n = 0};
    for (int s = 1; s < stages; s++) {
        tuples[s] = (d9di_stage_tuple){.n = 0};
        D9D_TRY(tuple_make(e, s, &tuples[s]));
    }
    e->pipe.tuples = tuples;
    return D9D_OK;
}

size_t d9di_stage_tuple_longest(const d9di_engine *e)
{
    size_t n = 0;

    for (int s = 1; s < e->exec.program.stages; s++)
        n = e->pipe.tuples[s].n > n ? e->pipe.tuples[s].n : n;
    return n;
}

/* --- of a micro-batch ---------------------------------------------------------------------- */

d9d_status d9di_stage_tuple_tensors(const d9di_engine *e, int stage, const d9d_model_in *in,
                                    d9d_stage_tensor *out, size_t *n)
{
    const d9di_stage_tuple *t = &e->pipe.tuples[stage];

    for (size_t i = 0; i < t->n; i++)
        D9D_TRY(d9d_model_stage_tensor(e->stages[0].model, &t->specs[i], in, &out[i]));
    *n = t->n;
    return D9D_OK;
}

/* Tensors of a transfer, which leaves or reaches the action's stage. */
static size_t messages_of(const d9di_engine *e, const d9d_pipe_action *a)
{
    const bool next = a->kind == D9D_PIPE_SEND_FORWARD || a->kind == D9D_PIPE_RECV_BACKWARD,
               grads = a->kind == D9D_PIPE_SEND_BACKWARD || a->kind == D9D_PIPE_RECV_BACKWARD;
    const d9di_stage_tuple *t = &e->pipe.tuples[a->stage + next];
    size_t n = 0;

    for (size_t i = 0; i < t->n; i++)
        n += !(grads && t->specs[i].constant);
    return n;
}

double d9di_stage_tuple_messages(const d9di_engine *e)
{
    const d9d_pipe_lane *lane = &e->exec.program.lanes[e->pipe.rank];
    size_t transfers = 0, messages = 0;

    for (size_t i = 0; i < lane->len; i++) {
        if (lane->data[i].kind < D9D_PIPE_SEND_FORWARD)
            continue;
        transfers++;
        messages += messages_of(e, &lane->data[i]);
    }
    return transfers > 0 ? (double)messages / (double)transfers : 0;
}

/* --- values -------------------------------------------------------------------------------- */

void d9di_stage_tuple_take(const d9di_engine *e, int stage, d9d_var *const *v,
                           d9di_stage_tuple_in *out)
{
    const d9di_stage_tuple *t = &e->pipe.tuples[stage];

    *out = (d9di_stage_tuple_in){.n_own = t->n_own, .n_frozen = t->n - t->n_own};
    for (size_t i = 0; i < t->n_own; i++)
        out->own[i] = (d9d_model_passed){t->specs[i].name, v[i]};
    for (size_t i = 0; i < out->n_frozen; i++)
        out->frozen[i] =
            (d9d_model_passed){t->specs[t->n_own + i].name + strlen(FROZEN), v[t->n_own + i]};
}

d9d_status d9di_stage_tuple_give(const d9di_engine *e, int stage, const d9d_model_out *own,
                                 const d9d_model_out *frozen, d9d_var **v)
{
    const d9di_stage_tuple *t = &e->pipe.tuples[stage + 1];
    const size_t n_frozen = t->n - t->n_own;
    d9d_stage_spec specs[D9D_STAGE_TENSORS_MAX];

    D9D_TRY(d9d_model_sort_passed(own, t->specs, t->n_own, e->whole.model->ops->name, v));
    if (frozen == NULL)
        return D9D_OK;
    for (size_t i = 0; i < n_frozen; i++) {
        specs[i] = t->specs[t->n_own + i];
        specs[i].name += strlen(FROZEN);
    }
    return d9d_model_sort_passed(frozen, specs, n_frozen,
                                 d9di_frozen_model_stage_model(e, 0)->ops->name, v + t->n_own);
}
