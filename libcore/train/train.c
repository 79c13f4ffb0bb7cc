/* train.c - the training loop.  See d9d/train/train.h. */
#include "d9d/train/train.h"

#include <math.h>
#include <stdio.h>

#include "d9d/base/thread.h"
#include "engine/job_start.h"
#include "engine/sleep.h"
#include "train/train_run.h"

/* `last`: synchronous, as no step follows. */
static d9d_status save_checkpoint(d9di_train *r, bool last)
{
    if (r->where->trial)
        return D9D_OK;
    d9di_train_set_timeout(r, D9DI_TRAIN_SAVE);
    if (r->saved_step != r->state.step) {
        D9D_TRY(d9di_train_record_sync(r));
        D9D_TRY(d9di_checkpointer_async_begin(r->checkpointer, &r->state, last));
        r->saved_step = r->state.step;
    }
    if (last)
        D9D_TRY(d9di_checkpointer_async_finish(r->checkpointer));
    d9di_train_set_timeout(r, D9DI_TRAIN_STEP);
    return D9D_OK;
}

/* All ranks fail together: the checkpoint being written is valid, so finish it. */
static d9d_status finish_saves(d9di_train *r, d9d_status st)
{
    d9d_err_copy why;

    if (st == D9D_OK || (d9d_bootstrap_size(r->where->boot) > 1 &&
                         !d9d_bootstrap_failure_is_collective(r->where->boot)))
        return st;
    d9d_err_save(&why, st);
    d9di_train_set_timeout(r, D9DI_TRAIN_SAVE);
    if (d9di_checkpointer_async_finish(r->checkpointer) != D9D_OK)
        d9d_log_warn(r->log, "%s", d9d_err_message());
    return d9d_bootstrap_agree_status(r->where->boot, d9d_err_restore(&why));
}

/* The loop's output to people: progress and summary. */
typedef struct loop_output {
    d9d_progress progress;
    d9d_train_summary *summary;
} loop_output;

/* Collects the reports of enqueued steps, oldest first: all of them, or all but the newest.  A
 * single rank also collects the newest if it is ready.  Several ranks do not, since all must
 * collect a step at the same point of the program. */
static d9d_status collect_steps(d9di_train *r, bool all, loop_output *t)
{
    for (int64_t i = 2; i > 0; i--) {
        d9di_train_pending_step *p = &r->pending[(r->state.step + i) % 2];
        d9di_train_step_result s = {.loss = NAN};

        if (!p->open)
            continue;
        if (i == 1 && !all &&
            (r->engine.world != NULL || (p->counts && !d9d_readback_ready(p->report))))
            continue;
        D9D_TRY(d9di_train_record_held(r));
        D9D_TRY(d9di_train_collect_step(r, p, &s));
        if (isnan(t->summary->first_loss))
            t->summary->first_loss = s.loss;
        t->summary->last_loss = s.loss;
        d9d_progress_note(&t->progress, "loss %.4f  lr %.3g  %.0f tok/s", s.loss, s.lr,
                          (double)s.targets / (s.ms * 1e-3));
        d9d_progress_add(&t->progress, 1);
        D9D_TRY(d9di_train_record(r, &s));
        D9D_TRY(d9di_train_record_pipeline(r));
    }
    return all || r->engine.world == NULL ? d9di_train_record_held(r) : D9D_OK;
}

/* A single rank reacts to a signal at once.  With several ranks, a signal counts when all ranks
 * know of it, through a step's report. */
static bool should_exit(const d9di_train *r)
{
    return r->engine.world != NULL ? r->should_exit : d9d_preemption_reason(r->preemption) != NULL;
}

/* Saves everything done so far, and exits. */
static d9d_status save_and_exit(d9di_train *r)
{
    const char *reason = d9d_preemption_reason(r->preemption);
    d9d_status st;

    D9D_TRY(d9di_engine_reshard(&r->engine));
    D9D_TRY(save_checkpoint(r, true));
    st = D9D_FAIL(D9D_EINTR, "%s: saved after step %lld of %lld in %s",
                  reason != NULL ? reason : "a signal to another rank", (long long)r->state.step,
                  (long long)r->total_steps, r->dir.checkpoints);
    return d9d_bootstrap_agree_status(r->where->boot, st);
}

/* True if rank 0 was asked to sleep, or has told the other ranks so. */
static bool should_sleep(d9di_train *r)
{
    if (r->engine.world == NULL)
        r->should_sleep = d9d_preemption_sleep_requested(r->preemption);
    return r->should_sleep;
}

/* Moves device memory to the host until the next SIGUSR2. */
static d9d_status sleep_until_woken(d9di_train *r)
{
    const d9di_sleep_opts opts = {.dev = r->engine.dev,
                                  .mesh = r->engine.mesh,
                                  .boot = r->where->boot,
                                  .preemption = r->preemption,
                                  .log = r->log};

    r->should_sleep = false;
    d9di_train_set_timeout(r, D9DI_TRAIN_SAVE);
    D9D_TRY(d9di_checkpointer_async_finish(r->checkpointer));
    d9di_train_set_timeout(r, D9DI_TRAIN_START);
    D9D_TRY(d9di_train_trigger_step_event(r, "train.sleep.pre"));
    for (size_t k = 0; k < r->engine.n_stages; k++)
        d9d_fsdp_invalidate(r->engine.stages[k].sharded);
    D9D_TRY(d9di_sleep_begin(&opts));
    D9D_TRY(d9di_train_trigger_step_event(r, "train.sleep.post"));
    D9D_TRY(d9di_sleep_wait(&opts));
    D9D_TRY(d9di_train_trigger_step_event(r, "train.wake.pre"));
    D9D_TRY(d9di_sleep_end(&opts));
    D9D_TRY(d9di_train_trigger_step_event(r, "train.wake.post"));
    d9di_train_set_timeout(r, D9DI_TRAIN_STEP);
    return D9D_OK;
}

static d9d_status run_steps(d9di_train *r, loop_output *t)
{
    const d9d_job_trainer_section *c = &r->c->trainer;
    const int64_t first = r->state.step;

    while (!d9di_train_is_done(r) || d9di_train_evaluation_is_due(r)) {
        const uint64_t waits = r->engine.dev->host_waits;
        bool due;

        if (should_exit(r)) {
            D9D_TRY(collect_steps(r, true, t));
            return save_and_exit(r);
        }
        if (should_sleep(r)) {
            D9D_TRY(collect_steps(r, true, t));
            D9D_TRY(sleep_until_woken(r));
            continue;
        }
        if (d9di_train_evaluation_is_due(r)) { /* before the first step of this start */
            D9D_TRY(d9di_train_evaluate(r));
            continue;
        }
        D9D_TRY(d9di_train_enqueue_traced_step(r));
        r->host_waits += r->state.step > first + 2 ? r->engine.dev->host_waits - waits : 0;
        due = d9d_step_period_due(c->checkpointing.period_steps, r->state.step, r->total_steps,
                                  D9D_DUE_ON_LAST | D9D_DUE_AFTER_STEP);
        D9D_TRY(
            collect_steps(r, due || d9di_train_is_done(r) || d9di_train_evaluation_is_due(r), t));
        D9D_TRY(d9di_train_evaluate(r));
        if (due)
            D9D_TRY(save_checkpoint(r, r->state.step == r->total_steps));
    }
    return D9D_OK;
}

static d9d_status run_steps_with_progress(d9di_train *r, d9d_train_summary *out)
{
    loop_output t = {.summary = out};
    d9d_status st;

    D9D_TRY(d9di_train_open_prefetcher(r));
    D9D_TRY(d9di_train_trigger_event(r, "train.ready", (d9d_job_event){.tracker = r->tracker}));
    d9d_progress_start(&t.progress, r->log, "train", "steps", (uint64_t)r->total_steps);
    t.progress.first = t.progress.done = (uint64_t)r->state.step;
    st = run_steps(r, &t);
    d9d_progress_end(&t.progress);
    D9D_TRY(st);
    D9D_TRY(d9di_task_finalize(&r->task));
    return d9di_train_trigger_event(r, "train.finished", (d9d_job_event){.user = NULL});
}

static void fill_summary(const d9di_train *r, d9d_train_summary *out)
{
    out->steps = r->state.step;
    out->total_steps = r->total_steps;
    out->tokens = r->state.tokens;
    out->samples = r->state.samples;
    out->host_waits = r->host_waits;
    out->mem_bytes = r->engine.dev != NULL ? d9d_device_memory(r->engine.dev).peak : 0;
    if (r->dir.path != NULL)
        (void)snprintf(out->run_dir, sizeof(out->run_dir), "%s", r->dir.path);
}

/* True if nothing is left to do: all steps are done and the model is exported. */
static bool is_complete(const d9di_train *r)
{
    return d9di_train_is_done(r) && d9di_train_is_exported(r);
}

/* Runs from the first step to the end. */
static d9d_status run_to_end(d9di_train *r, d9d_train_summary *out)
{
    D9D_TRY(finish_saves(r, run_steps_with_progress(r, out)));
    d9di_train_set_timeout(r, D9DI_TRAIN_EXPORT);
    return d9di_train_export(r, out);
}

/* Runs from the allocation of the model to the end. */
static d9d_status open_and_run(d9di_train *r, const char *resume_from, d9d_train_summary *out)
{
    D9D_TRY(d9di_train_open(r, resume_from));
    return d9di_job_start_runtime_status(run_to_end(r, out));
}

/* Runs a start of the run that has work to do. */
static d9d_status run_life(d9di_train *r, const json_t *resolved, const char *resume_from,
                           d9d_train_summary *out)
{
    D9D_TRY(d9di_train_record_open(r, resolved, resume_from));
    return d9di_train_record_end(r, open_and_run(r, resume_from, out));
}

d9d_status d9d_train(const d9d_train_config *config, const json_t *resolved, const d9d_job *where,
                     d9d_train_summary *out)
{
    d9di_train r = {.c = config,
                    .where = where,
                    .log = where->log,
                    .rank = d9d_bootstrap_rank(where->boot),
                    .saved_step = -1};
    const int64_t margin = config->trainer.timeout.save_margin;
    d9d_train_summary summary = {.first_loss = NAN, .last_loss = NAN};
    const char *resume_from = NULL;
    d9d_status st;

    D9D_TRY_OR(
        st,
        d9d_preemption_open(r.rank == 0 ? margin : D9D_PREEMPTION_NO_LIMIT, r.log, &r.preemption),
        out);
    D9D_TRY_OR(st, d9di_train_check(&r, &resume_from), out);
    summary.first_step = r.state.step;
    if (d9di_train_is_done(&r))
        d9d_log_info(r.log, "all %lld steps are done already", (long long)r.total_steps);
    if (is_complete(&r))
        (void)snprintf(summary.export_dir, sizeof(summary.export_dir), "%s",
                       d9di_train_export_dir(&r));
    else
        st = run_life(&r, resolved, resume_from, &summary);
out:
    fill_summary(&r, &summary);
    *out = summary;
    st = d9di_job_start_fail_rank(where->boot, r.engine.mesh, st);
    d9di_train_close(&r);
    return st;
}
