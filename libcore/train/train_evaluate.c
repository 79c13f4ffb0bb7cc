/* train_evaluate.c - evaluations while training.  See train/train_run.h and engine/evaluate.h. */
#include <string.h>

#include "d9d/base/thread.h"
#include "train/train_run.h"

d9d_status d9di_train_evaluation_rank_state(d9di_train *r, d9d_checkpointer_set *set)
{
    for (size_t i = 0; i < r->evaluations.n; i++) {
        d9di_evaluation *v = &r->evaluations.v[i];
        const d9d_checkpointer_rank_state c = {
            .name = d9d_arena_printf(&r->arena, "evaluation.%s", v->c->name),
            .dtype = D9D_I64,
            .n = 1,
            .reduce_op = D9D_COMM_MAX,
            .data = &v->done_step,
        };

        D9D_TRY(d9d_checkpointer_set_add_rank_state(set, &c, 1, &r->arena));
    }
    return D9D_OK;
}

/* After a change of the number of ranks, only rank 0 has read it. */
d9d_status d9di_train_evaluation_sync(d9di_train *r)
{
    const int ranks = d9d_bootstrap_size(r->where->boot);
    d9d_arena a = {0};
    d9d_bootstrap_blob *all = d9d_arena_alloc(&a, (size_t)ranks * sizeof(*all));
    d9d_status st = D9D_OK;

    if (all == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "evaluation: no memory for records of %d ranks", ranks);
    for (size_t i = 0; i < r->evaluations.n && ranks > 1 && st == D9D_OK; i++) {
        int64_t *done = &r->evaluations.v[i].done_step;

        st = d9d_bootstrap_allgather(r->where->boot, done, sizeof(*done), &a, all);
        if (st == D9D_OK)
            memcpy(done, all[0].data, sizeof(*done));
    }
    d9d_arena_release(&a);
    return st;
}

/* A trial runs no evaluations, but their configuration is still checked. */
bool d9di_train_evaluation_is_due(const d9di_train *r)
{
    for (size_t i = 0; r->where->trial == 0 && i < r->evaluations.n; i++)
        if (d9di_evaluation_is_due(&r->evaluations.v[i], r->state.step, r->total_steps))
            return true;
    return false;
}

static d9d_status trigger_evaluation_event(const d9di_train *r, const char *id,
                                           const d9di_evaluation *v)
{
    return d9di_train_trigger_event(
        r, id,
        (d9d_job_event){.step = r->state.step, .total_steps = r->total_steps, .name = v->c->name});
}

static d9d_status run_evaluation(d9di_train *r, d9di_evaluation *v, bool *cut)
{
    const d9di_evaluation_opts opts = {.engine = &r->engine,
                                       .task = &r->task,
                                       .preemption = r->preemption,
                                       .step = r->state.step,
                                       .log = r->log};

    D9D_TRY(trigger_evaluation_event(r, "train.evaluation.pre", v));
    D9D_TRY(d9di_evaluation_run(v, &opts, cut));
    r->should_exit |= *cut;
    if (*cut)
        return D9D_OK;
    v->done_step = r->state.step;
    if (r->rank == 0)
        D9D_TRY(d9d_tracker_evaluation(r->tracker, v->c->name, r->state.step, v->names, v->values,
                                       v->n, D9DI_EVALUATION_INTEGERS));
    return trigger_evaluation_event(r, "train.evaluation.post", v);
}

d9d_status d9di_train_evaluate(d9di_train *r)
{
    bool cut = false;

    if (!d9di_train_evaluation_is_due(r))
        return D9D_OK;
    d9di_train_set_timeout(r, D9DI_TRAIN_EVALUATION);
    for (size_t i = 0; i < r->evaluations.n && !cut; i++)
        if (d9di_evaluation_is_due(&r->evaluations.v[i], r->state.step, r->total_steps))
            D9D_TRY(run_evaluation(r, &r->evaluations.v[i], &cut));
    d9di_train_set_timeout(r, D9DI_TRAIN_STEP);
    return D9D_OK;
}
