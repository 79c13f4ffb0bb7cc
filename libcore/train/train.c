/* train.c - the training loop.  See d9d/train/train.h. */
#include "d9d/train/train.h"

#include <math.h>
#include <stdio.h>

#include "d9d/base/thread.h"
#include "engine/job_start.h"
#include "engine/sleep.h"
#include "train/train_run.h"

/* `last`: nothing follows that could be done meanwhile. */
static d9d_status save(d9di_train *r, bool last)
{
    if (r->where->trial)
        return D9D_OK;
    d9di_train_allow(r, D9DI_TRAIN_SAVE);
    if (r->saved_step != r->state.step) {
        D9D_TRY(d9di_train_record_sync(r));
        D9D_TRY(d9di_saver_begin(r->saver, &r->state, last));
        r->saved_step = r->state.step;
    }
    if (last)
        D9D_TRY(d9di_saver_finish(r->saver));
    d9di_train_allow(r, D9DI_TRAIN_STEP);
    return D9D_OK;
}

/* All ranks fail together: the checkpoint that is being written was not to blame. */
static d9d_status save_rest(d9di_train *r, d9d_status st)
{
    d9d_err_copy why;

    if (st == D9D_OK || (d9d_boot_size(r->where->boot) > 1 && !d9d_boot_agreed(r->where->boot)))
        return st;
    d9d_err_save(&why, st);
    d9di_train_allow(r, D9DI_TRAIN_SAVE);
    if (d9di_saver_finish(r->saver) != D9D_OK)
        d9d_log_warn(r->log, "%s", d9d_err_message());
    return d9d_boot_agree(r->where->boot, d9d_err_restore(&why));
}

/* The loop, and what it tells people. */
typedef struct talk {
    d9d_progress progress;
    d9d_train_summary *summary;
} talk;

/* Take what queued steps have given, oldest first; all of them, or those that are older than the
 * newest, and alone whatever is there without waiting: many ranks learn of a step at one point. */
static d9d_status steps_take(d9di_train *r, bool all, talk *t)
{
    for (int64_t i = 2; i > 0; i--) {
        d9di_pending *p = &r->pending[(r->state.step + i) % 2];
        d9di_train_result s = {.loss = NAN};

        if (!p->open)
            continue;
        if (i == 1 && !all &&
            (r->engine.world != NULL || (p->counts && !d9d_readback_ready(p->report))))
            continue;
        D9D_TRY(d9di_train_record_held(r));
        D9D_TRY(d9di_train_take(r, p, &s));
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

/* Alone a signal counts at once; of many ranks some have none, so it counts when all have heard of
 * it, with the report of a step. */
static bool must_leave(const d9di_train *r)
{
    return r->engine.world != NULL ? r->told : d9d_stop_reason(r->stop) != NULL;
}

/* Told to leave: everything that was done is kept. */
static d9d_status leave(d9di_train *r)
{
    const char *reason = d9d_stop_reason(r->stop);
    d9d_status st;

    D9D_TRY(d9di_engine_drop(&r->engine));
    D9D_TRY(save(r, true));
    st = D9D_FAIL(D9D_EINTR, "%s: saved after step %lld of %lld in %s",
                  reason != NULL ? reason : "a signal to another rank", (long long)r->state.step,
                  (long long)r->total_steps, r->dir.checkpoints);
    return d9d_boot_agree(r->where->boot, st);
}

/* Rank 0 is asked to sleep, or has said so to all. */
static bool must_sleep(d9di_train *r)
{
    if (r->engine.world == NULL)
        r->tired = d9d_stop_doze(r->stop);
    return r->tired;
}

/* What the job holds of its devices goes to the host until SIGUSR2 comes again. */
static d9d_status rest(d9di_train *r)
{
    const d9di_sleep_how how = {.dev = r->engine.dev,
                                .mesh = r->engine.mesh,
                                .boot = r->where->boot,
                                .stop = r->stop,
                                .log = r->log};

    r->tired = false;
    d9di_train_allow(r, D9DI_TRAIN_SAVE);
    D9D_TRY(d9di_saver_finish(r->saver));
    d9di_train_allow(r, D9DI_TRAIN_START);
    D9D_TRY(d9di_train_tell_step(r, "train.sleep.pre"));
    for (size_t k = 0; k < r->engine.n_stages; k++)
        d9d_sharded_moves(r->engine.stages[k].sharded);
    D9D_TRY(d9di_sleep_begin(&how));
    D9D_TRY(d9di_train_tell_step(r, "train.sleep.post"));
    D9D_TRY(d9di_sleep_through(&how));
    D9D_TRY(d9di_train_tell_step(r, "train.wake.pre"));
    D9D_TRY(d9di_sleep_end(&how));
    D9D_TRY(d9di_train_tell_step(r, "train.wake.post"));
    d9di_train_allow(r, D9DI_TRAIN_STEP);
    return D9D_OK;
}

static d9d_status steps_run(d9di_train *r, talk *t)
{
    const d9d_trainer_section *c = &r->c->trainer;
    const int64_t first = r->state.step;

    while (!d9di_train_done(r) || d9di_train_evaluates(r)) {
        const uint64_t waits = r->engine.dev->waits;
        bool due;

        if (must_leave(r)) {
            D9D_TRY(steps_take(r, true, t));
            return leave(r);
        }
        if (must_sleep(r)) {
            D9D_TRY(steps_take(r, true, t));
            D9D_TRY(rest(r));
            continue;
        }
        if (d9di_train_evaluates(r)) { /* before the first step of a life */
            D9D_TRY(d9di_train_evaluate(r));
            continue;
        }
        D9D_TRY(d9di_train_traced(r));
        r->waits += r->state.step > first + 2 ? r->engine.dev->waits - waits : 0;
        due = d9d_step_period_due(c->checkpointing.period_steps, r->state.step, r->total_steps,
                                  D9D_DUE_ON_LAST | D9D_DUE_AFTER_STEP);
        D9D_TRY(steps_take(r, due || d9di_train_done(r) || d9di_train_evaluates(r), t));
        D9D_TRY(d9di_train_evaluate(r));
        if (due)
            D9D_TRY(save(r, r->state.step == r->total_steps));
    }
    return D9D_OK;
}

static d9d_status steps_watch(d9di_train *r, d9d_train_summary *out)
{
    talk t = {.summary = out};
    d9d_status st;

    D9D_TRY(d9di_train_feed(r));
    D9D_TRY(d9di_train_tell(r, "train.ready", (d9d_event){.tracker = r->tracker}));
    d9d_progress_start(&t.progress, r->log, "train", "steps", (uint64_t)r->total_steps);
    t.progress.first = t.progress.done = (uint64_t)r->state.step;
    st = steps_run(r, &t);
    d9d_progress_end(&t.progress);
    D9D_TRY(st);
    D9D_TRY(d9di_task_finalize(&r->task));
    return d9di_train_tell(r, "train.finished", (d9d_event){.user = NULL});
}

static void summarise(const d9di_train *r, d9d_train_summary *out)
{
    out->steps = r->state.step;
    out->total_steps = r->total_steps;
    out->tokens = r->state.tokens;
    out->samples = r->state.samples;
    out->waits = r->waits;
    out->mem_bytes = r->engine.dev != NULL ? d9d_device_memory(r->engine.dev).peak : 0;
    if (r->dir.path != NULL)
        (void)snprintf(out->run_dir, sizeof(out->run_dir), "%s", r->dir.path);
}

/* Nothing is left to do: every step is done and the model was exported. */
static bool run_complete(const d9di_train *r)
{
    return d9di_train_done(r) && d9di_train_exported(r);
}

/* From the first step to the end. */
static d9d_status work(d9di_train *r, d9d_train_summary *out)
{
    D9D_TRY(save_rest(r, steps_watch(r, out)));
    d9di_train_allow(r, D9DI_TRAIN_EXPORT);
    return d9di_train_export(r, out);
}

/* From the memory of the model to the end. */
static d9d_status run_through(d9di_train *r, const char *resume_from, d9d_train_summary *out)
{
    D9D_TRY(d9di_train_fill(r, resume_from));
    return d9di_launch_under_way(work(r, out));
}

/* A life of the run that has something to do. */
static d9d_status run_live(d9di_train *r, const json_t *resolved, const char *resume_from,
                           d9d_train_summary *out)
{
    D9D_TRY(d9di_train_record_open(r, resolved, resume_from));
    return d9di_train_record_end(r, run_through(r, resume_from, out));
}

d9d_status d9d_train(const d9d_train_config *config, const json_t *resolved, const d9d_job *where,
                     d9d_train_summary *out)
{
    d9di_train r = {.c = config,
                    .where = where,
                    .log = where->log,
                    .rank = d9d_boot_rank(where->boot),
                    .saved_step = -1};
    const int64_t margin = config->trainer.timeout.save_margin;
    d9d_train_summary summary = {.first_loss = NAN, .last_loss = NAN};
    const char *resume_from = NULL;
    d9d_status st;

    D9D_TRY_OR(st, d9d_stop_open(r.rank == 0 ? margin : D9D_STOP_NO_LIMIT, r.log, &r.stop), out);
    D9D_TRY_OR(st, d9di_train_check(&r, &resume_from), out);
    summary.first_step = r.state.step;
    if (d9di_train_done(&r))
        d9d_log_info(r.log, "all %lld steps are done already", (long long)r.total_steps);
    if (run_complete(&r))
        (void)snprintf(summary.export_dir, sizeof(summary.export_dir), "%s",
                       d9di_train_export_dir(&r));
    else
        st = run_live(&r, resolved, resume_from, &summary);
out:
    summarise(&r, &summary);
    *out = summary;
    st = d9di_launch_failed(where->boot, r.engine.mesh, st);
    d9di_train_close(&r);
    return st;
}
