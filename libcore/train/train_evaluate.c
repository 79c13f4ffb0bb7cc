/* train_evaluate.c - see train/train_evaluate.h. */
#include "train/train_evaluate.h"

#include <string.h>

/* An evaluation waits for nothing: a stream has its samples when the run begins. */
static d9d_status check_stream(const d9di_evaluation *v)
{
    d9d_dataset *stream = d9d_loader_stream(v->data.loader);
    d9d_dataset_presence there = D9D_DATASET_PRESENT;

    if (stream != NULL)
        D9D_TRY(d9d_dataset_poll(stream, v->samples - 1, &there));
    return there == D9D_DATASET_PRESENT
               ? D9D_OK
               : D9D_FAIL(D9D_ECONFIG,
                          "evaluation %s: samples is %lld, and the stream %s has fewer", v->c->name,
                          (long long)v->samples, v->data.sections[0].dataset);
}

d9d_status d9di_train_evaluator_open(d9di_train_evaluator *v, const d9di_train_run *run,
                                     d9d_arena *a)
{
    D9D_TRY(d9di_evaluations_open(run->c, v->task, &run->c->mesh, a, &v->list));
    for (size_t i = 0; i < v->list.n; i++)
        D9D_TRY(check_stream(&v->list.v[i]));
    return D9D_OK;
}

void d9di_train_evaluator_close(d9di_train_evaluator *v)
{
    d9di_evaluations_release(&v->list);
}

d9d_status d9di_train_evaluator_rank_state(d9di_train_evaluator *v, d9d_arena *a,
                                           d9d_checkpointer_set *set)
{
    for (size_t i = 0; i < v->list.n; i++) {
        d9di_evaluation *e = &v->list.v[i];
        const d9d_checkpointer_rank_state c = {
            .name = d9d_arena_printf(a, "evaluation.%s", e->c->name),
            .dtype = D9D_I64,
            .n = 1,
            .reduce_op = D9D_COMM_MAX,
            .data = &e->done_step,
        };

        D9D_TRY(d9d_checkpointer_set_add_rank_state(set, &c, 1, a));
    }
    return D9D_OK;
}

/* After a change of the number of ranks, only rank 0 has read it. */
d9d_status d9di_train_evaluator_sync(d9di_train_evaluator *v, const d9di_train_run *run)
{
    const int ranks = d9d_bootstrap_size(run->where->bootstrap);
    d9d_arena a = {0};
    d9d_bootstrap_blob *all = d9d_arena_alloc(&a, (size_t)ranks * sizeof(*all));
    d9d_status st = D9D_OK;

    if (all == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "evaluation: words of %d ranks", ranks);
    for (size_t i = 0; i < v->list.n && ranks > 1 && st == D9D_OK; i++) {
        int64_t *done = &v->list.v[i].done_step;

        st = d9d_bootstrap_allgather(run->where->bootstrap, done, sizeof(*done), &a, all);
        if (st == D9D_OK)
            memcpy(done, all[0].data, sizeof(*done));
    }
    d9d_arena_release(&a);
    return st;
}

/* A trial runs no evaluations, but their configuration is still checked. */
bool d9di_train_evaluator_is_due(const d9di_train_evaluator *v, const d9di_train_run *run,
                                 int64_t step)
{
    for (size_t i = 0; run->where->trial == 0 && i < v->list.n; i++)
        if (d9di_evaluation_is_due(&v->list.v[i], step, run->total_steps))
            return true;
    return false;
}

static d9d_status trigger_event(const d9di_train_run *run, const char *id, const d9di_evaluation *e,
                                int64_t step)
{
    return d9di_train_run_trigger(
        run, id,
        (d9d_job_event){.step = step, .total_steps = run->total_steps, .name = e->c->name});
}

static d9d_status run_evaluation(d9di_train_evaluator *v, const d9di_train_run *run,
                                 d9d_tracker *tracker, int64_t step, d9di_evaluation *e, bool *cut)
{
    const d9di_evaluation_opts opts = {.engine = v->engine,
                                       .task = v->task,
                                       .preemption = v->preemption,
                                       .step = step,
                                       .log = run->log};

    D9D_TRY(trigger_event(run, "train.evaluation.pre", e, step));
    D9D_TRY(d9di_evaluation_run(e, &opts, cut));
    if (*cut)
        return D9D_OK;
    e->done_step = step;
    if (tracker != NULL)
        D9D_TRY(d9d_tracker_evaluation(tracker, e->c->name, step, e->names, e->values, e->n,
                                       D9DI_EVALUATION_INTEGERS));
    return trigger_event(run, "train.evaluation.post", e, step);
}

d9d_status d9di_train_evaluator_run(d9di_train_evaluator *v, const d9di_train_run *run,
                                    d9d_tracker *tracker, int64_t step, bool *cut)
{
    *cut = false;
    for (size_t i = 0; i < v->list.n && !*cut; i++)
        if (d9di_evaluation_is_due(&v->list.v[i], step, run->total_steps))
            D9D_TRY(run_evaluation(v, run, tracker, step, &v->list.v[i], cut));
    return D9D_OK;
}
