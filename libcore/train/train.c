/* train.c - the training loop.  See d9d/train/train.h. */
#include "d9d/train/train.h"

#include <math.h>
#include <stdio.h>

#include "d9d/base/num_format.h"
#include "d9d/base/thread.h"
#include "engine/frozen_model.h"
#include "engine/job_start.h"
#include "engine/sleep.h"
#include "train/train_export.h"
#include "train/train_parts.h"

static void enter_phase(d9di_train *r, d9di_train_phase phase)
{
    d9di_train_timeouts_set(&r->timeouts, phase);
    d9di_train_times_enter(&r->times, phase);
}

/* Compares the replicas if they are due; `saves`: a save follows, of what must be good. */
static d9d_status check_integrity(d9di_train *r, bool saves)
{
    const int64_t step = r->stepper.state.step;

    r->integrity.good_step = d9di_train_checkpointer_complete_step(&r->checkpointer);
    if (saves)
        D9D_TRY(d9di_train_integrity_check_memory(&r->integrity, &r->run, step));
    return d9di_train_integrity_is_due(&r->integrity, &r->run, step, saves)
               ? d9di_train_integrity_check(&r->integrity, &r->run, step)
               : D9D_OK;
}

/* `last`: synchronous, as no step follows. */
static d9d_status save_checkpoint(d9di_train *r, bool last)
{
    if (r->run.where->trial)
        return D9D_OK;
    D9D_TRY(check_integrity(r, true));
    enter_phase(r, D9DI_TRAIN_SAVE);
    if (r->checkpointer.saved_step != r->stepper.state.step) {
        D9D_TRY(d9di_train_recorder_sync(&r->recorder, &r->run));
        D9D_TRY(d9di_rollout_sync(&r->rollout));
        D9D_TRY(d9di_train_stream_store(&r->stream, &r->run, r->stepper.state.samples));
        D9D_TRY(d9di_train_checkpointer_save(&r->checkpointer, &r->stepper.state, last));
    }
    if (last)
        D9D_TRY(d9di_checkpointer_async_finish(r->checkpointer.async));
    enter_phase(r, D9DI_TRAIN_STEP);
    return D9D_OK;
}

static bool local_is_due(const d9di_train *r)
{
    return d9di_train_checkpointer_local_is_due(&r->checkpointer, &r->run, r->stepper.state.step);
}

/* A local checkpoint, if one is due. */
static d9d_status save_local(d9di_train *r)
{
    if (!local_is_due(r))
        return D9D_OK;
    enter_phase(r, D9DI_TRAIN_SAVE);
    D9D_TRY(check_integrity(r, true));
    D9D_TRY(d9di_train_recorder_sync(&r->recorder, &r->run));
    D9D_TRY(d9di_rollout_sync(&r->rollout));
    D9D_TRY(d9di_train_stream_store(&r->stream, &r->run, r->stepper.state.samples));
    D9D_TRY(d9di_train_checkpointer_save_local(&r->checkpointer, &r->stepper.state));
    enter_phase(r, D9DI_TRAIN_STEP);
    return D9D_OK;
}

/* All ranks fail together: the checkpoint being written is valid, so finish it. */
static d9d_status finish_saves(d9di_train *r, d9d_status st)
{
    d9d_err_copy why;

    if (st == D9D_OK || (d9d_bootstrap_size(r->run.where->bootstrap) > 1 &&
                         !d9d_bootstrap_failure_is_collective(r->run.where->bootstrap)))
        return st;
    d9d_err_save(&why, st);
    enter_phase(r, D9DI_TRAIN_SAVE);
    if (d9di_train_checkpointer_finish(&r->checkpointer) != D9D_OK)
        d9d_log_warn(r->run.log, "%s", d9d_err_message());
    return d9d_bootstrap_agree_status(r->run.where->bootstrap, d9d_err_restore(&why));
}

/* The loop's output to people: progress and summary. */
typedef struct loop_output {
    d9d_progress progress;
    d9d_train_summary *summary;
    bool stepped; /* at least one report was collected */
} loop_output;

static bool is_alone(const d9di_train *r)
{
    return r->engine.world == NULL;
}

static void note_step(d9d_progress *p, const d9di_train_step_result *s)
{
    char mfu[32] = "";

    if (isnan(s->loss)) /* no target */
        return;
    if (s->mfu > 0)
        (void)snprintf(mfu, sizeof(mfu), "  %.1f %% MFU", 100 * s->mfu);
    d9d_progress_note(p, "loss %.4f  lr %.3g  %.0f tok/s%s", s->loss, s->lr,
                      (double)s->targets / (s->ms * 1e-3), mfu);
}

/* A rank that has become slow, or no longer is: said, recorded, and acted upon. */
static d9d_status report_straggler(d9di_train *r, const d9d_track_straggler_record *v)
{
    const bool stops =
        !v->recovered && r->run.c->trainer.stragglers.action == D9D_JOB_STRAGGLER_STOP;
    d9d_buf text = {0};
    d9d_status st = d9di_train_stragglers_text(v, &text);

    if (st == D9D_OK && r->run.rank == 0) {
        if (v->recovered)
            d9d_log_info(r->run.log, "%s", text.data);
        else
            d9d_log_warn(r->run.log, "%s", text.data);
        st = d9d_tracker_straggler(r->recorder.tracker, v);
        if (stops)
            d9di_train_integrity_exclude(&r->run, v->host, text.data);
    }
    if (st == D9D_OK && stops)
        d9di_train_control_request_exit(&r->control, text.data);
    d9d_buf_release(&text);
    return st;
}

static d9d_status report_stragglers(d9di_train *r)
{
    d9d_track_straggler_record v;

    while (d9di_train_stragglers_poll(&r->stragglers, &v))
        D9D_TRY(report_straggler(r, &v));
    return D9D_OK;
}

/* Collects the report of a step, and passes it on. */
static d9d_status collect_step(d9di_train *r, d9di_train_pending_step *p, loop_output *t)
{
    d9di_train_step_result s;
    d9d_track_pipeline_record pipeline;

    D9D_TRY(d9di_train_recorder_flush(&r->recorder, &r->run));
    D9D_TRY(d9di_train_stepper_collect(&r->stepper, &r->run, p, &s));
    if (!t->stepped)
        enter_phase(r, D9DI_TRAIN_STEP);
    t->stepped = true;
    d9di_train_control_receive(&r->control, s.flags);
    D9D_TRY(d9di_checkpointer_async_advance(r->checkpointer.async, s.step - 1, s.saved));
    if (isnan(t->summary->first_loss))
        t->summary->first_loss = s.loss;
    if (!isnan(s.loss))
        t->summary->last_loss = s.loss;
    d9di_train_times_wait(&r->times, s.data_ms);
    note_step(&t->progress, &s);
    d9d_progress_add(&t->progress, 1);
    if (r->run.c->trainer.logging.line_steps > 0 &&
        s.step % r->run.c->trainer.logging.line_steps == 0 && s.step < r->run.total_steps)
        d9d_progress_show(&t->progress);
    D9D_TRY(d9di_train_recorder_add(&r->recorder, &r->run, &s));
    d9di_train_memory_collect(&r->memory, r->engine.dev, r->run.log);
    D9D_TRY(report_stragglers(r));
    return d9di_pipeline_stats_poll(&r->stepper.pipeline_stats, &pipeline)
               ? d9di_train_recorder_add_pipeline(&r->recorder, &r->run, &pipeline)
               : D9D_OK;
}

/* Collects the reports of enqueued steps, oldest first: all of them, or all but the newest.  A
 * single rank also collects the newest if it is ready.  Several ranks do not, since all must
 * collect a step at the same point of the program. */
static d9d_status collect_steps(d9di_train *r, bool all, loop_output *t)
{
    for (int64_t age = 2; age > 0; age--) {
        d9di_train_pending_step *p = d9di_train_stepper_pending(&r->stepper, age);
        const bool must = all || age == 2;

        if (p != NULL && (must || (is_alone(r) && d9di_train_pending_step_is_ready(p))))
            D9D_TRY(collect_step(r, p, t));
    }
    return all || is_alone(r) ? d9di_train_recorder_flush(&r->recorder, &r->run) : D9D_OK;
}

/* Saves everything done so far, and exits. */
static d9d_status save_and_exit(d9di_train *r)
{
    d9d_status st;

    D9D_TRY(d9di_engine_reshard(&r->engine));
    D9D_TRY(save_checkpoint(r, true));
    d9di_checkpointer_local_remove(r->checkpointer.local);
    st = D9D_FAIL(D9D_EINTR, "%s: saved after step %lld of %lld in %s",
                  d9di_train_control_reason(&r->control), (long long)r->stepper.state.step,
                  (long long)r->run.total_steps, r->run.dir.checkpoints);
    return d9d_bootstrap_agree_status(r->run.where->bootstrap, st);
}

/* Moves device memory to the host until the next SIGUSR2. */
static d9d_status sleep_until_woken(d9di_train *r)
{
    const d9di_sleep_opts opts = {.dev = r->engine.dev,
                                  .mesh = r->engine.mesh,
                                  .bootstrap = r->run.where->bootstrap,
                                  .preemption = r->control.preemption,
                                  .log = r->run.log};

    r->control.should_sleep = false;
    enter_phase(r, D9DI_TRAIN_SAVE);
    D9D_TRY(d9di_train_checkpointer_finish(&r->checkpointer));
    enter_phase(r, D9DI_TRAIN_START);
    D9D_TRY(d9di_train_run_trigger_step(&r->run, "train.sleep.pre", r->stepper.state.step));
    for (size_t k = 0; k < r->engine.n_stages; k++)
        d9d_fsdp_invalidate(r->engine.stages[k].sharded);
    d9di_frozen_model_invalidate(&r->engine);
    D9D_TRY(d9di_sleep_begin(&opts));
    D9D_TRY(d9di_train_run_trigger_step(&r->run, "train.sleep.post", r->stepper.state.step));
    D9D_TRY(d9di_sleep_wait(&opts));
    D9D_TRY(d9di_train_run_trigger_step(&r->run, "train.wake.pre", r->stepper.state.step));
    D9D_TRY(d9di_sleep_end(&opts));
    D9D_TRY(d9di_train_run_trigger_step(&r->run, "train.wake.post", r->stepper.state.step));
    enter_phase(r, D9DI_TRAIN_STEP);
    return D9D_OK;
}

static bool evaluation_is_due(const d9di_train *r)
{
    return d9di_train_evaluator_is_due(&r->evaluator, &r->run, r->stepper.state.step);
}

/* With the averages of the weights, where there are some to be evaluated. */
static d9d_status run_evaluations(d9di_train *r, bool *cut)
{
    const d9d_job_ema_section *ema = r->run.c->trainer.ema;
    const bool averaged =
        d9d_optimizer_has_averages(r->stepper.optimizer) && (ema == NULL || ema->is_evaluated);

    if (averaged)
        D9D_TRY(d9di_engine_use_averages(&r->engine, r->stepper.optimizer));
    D9D_TRY(d9di_train_evaluator_run(&r->evaluator, &r->run, r->recorder.tracker,
                                     r->stepper.state.step, cut));
    return averaged ? d9di_engine_use_weights(&r->engine, r->stepper.optimizer) : D9D_OK;
}

static bool integrity_is_due(const d9di_train *r)
{
    return d9di_train_integrity_is_due(&r->integrity, &r->run, r->stepper.state.step, false);
}

/* Runs the evaluations that are due, with no step enqueued. */
static d9d_status evaluate(d9di_train *r)
{
    bool cut;

    if (!evaluation_is_due(r))
        return D9D_OK;
    enter_phase(r, D9DI_TRAIN_EVALUATION);
    D9D_TRY(
        d9di_train_checkpointer_wait_copy(&r->checkpointer)); /* averages take weights' places */
    D9D_TRY(run_evaluations(r, &cut));
    D9D_TRY(d9di_train_recorder_write_values(&r->recorder, &r->run, r->stepper.state.step));
    r->control.should_exit |= cut;
    enter_phase(r, D9DI_TRAIN_STEP);
    return D9D_OK;
}

/* Enqueues the next step, traced if the configuration says so. */
static d9d_status enqueue_step(d9di_train *r)
{
    const int64_t k = r->stepper.state.step + 1;

    D9D_TRY(d9di_profiler_begin(&r->profiler, r->engine.dev, k));
    D9D_TRY(d9di_train_stepper_enqueue(&r->stepper, &r->run, &r->control, &r->checkpointer));
    d9di_profiler_end(&r->profiler, r->engine.dev, k, k == r->run.total_steps);
    return D9D_OK;
}

/* Collects what is due, evaluates and saves after a step, or at the end. */
static d9d_status end_step(d9di_train *r, loop_output *t)
{
    const int64_t step = r->stepper.state.step;
    const bool due = d9d_step_period_due(r->run.c->trainer.checkpointing.period_steps, step,
                                         r->run.total_steps, D9D_DUE_ON_LAST | D9D_DUE_AFTER_STEP);

    D9D_TRY(collect_steps(r,
                          due || d9di_train_run_is_done(&r->run, step) || evaluation_is_due(r) ||
                              integrity_is_due(r) || local_is_due(r),
                          t));
    D9D_TRY(due ? D9D_OK : check_integrity(r, false));
    D9D_TRY(evaluate(r));
    D9D_TRY(save_local(r));
    return due ? save_checkpoint(r, step == r->run.total_steps) : D9D_OK;
}

/* The stream has no samples for another step: this was the last one. */
static d9d_status end_stream(d9di_train *r, loop_output *t)
{
    const int64_t step = r->stepper.state.step;

    if (step == 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: the stream has ended before it had the %lld sample%s of a "
                        "step",
                        r->run.data.sections[0].dataset,
                        (long long)r->run.c->trainer.batching.global_batch_size,
                        D9D_PLURAL(r->run.c->trainer.batching.global_batch_size));
    d9d_log_info(r->run.log, "%s: the stream has ended after %lld of at most %lld step%s",
                 r->run.data.sections[0].dataset, (long long)step, (long long)r->run.total_steps,
                 D9D_PLURAL(r->run.total_steps));
    r->run.total_steps = step;
    return end_step(r, t);
}

/* Waits for the samples of the next step of a stream.  A rank that reads its share of a large file
 * lets the others wait for longer than a step takes. */
static d9d_status await_samples(d9di_train *r, d9di_train_stream_next *next)
{
    const d9di_train_phase phase = r->times.phase;
    const bool steady = phase == D9DI_TRAIN_STEP && r->stream.shares;

    if (steady)
        enter_phase(r, D9DI_TRAIN_STREAM);
    D9D_TRY(
        d9di_train_stream_await(&r->stream, &r->run, &r->control, r->stepper.state.samples, next));
    if (steady)
        enter_phase(r, phase);
    return D9D_OK;
}

static d9d_status run_steps(d9di_train *r, loop_output *t)
{
    const int64_t first = r->stepper.state.step;

    while (!d9di_train_run_is_done(&r->run, r->stepper.state.step) || evaluation_is_due(r)) {
        const uint64_t waits = r->engine.dev->host_waits;
        const bool may_stop = d9di_train_run_is_at_round(&r->run, r->stepper.state.step);
        d9di_train_stream_next next = D9DI_TRAIN_STREAM_STEP;

        if (may_stop && d9di_train_control_should_exit(&r->control, is_alone(r))) {
            D9D_TRY(collect_steps(r, true, t));
            return save_and_exit(r);
        }
        if (may_stop && d9di_train_control_should_sleep(&r->control, is_alone(r))) {
            D9D_TRY(collect_steps(r, true, t));
            D9D_TRY(sleep_until_woken(r));
            continue;
        }
        if (evaluation_is_due(r)) { /* before the first step of this start */
            D9D_TRY(evaluate(r));
            continue;
        }
        if (may_stop)
            D9D_TRY(await_samples(r, &next));
        if (next == D9DI_TRAIN_STREAM_END)
            return end_stream(r, t);
        if (next == D9DI_TRAIN_STREAM_EXIT)
            continue;
        D9D_TRY(enqueue_step(r));
        if (r->stepper.state.step > first + 2)
            t->summary->host_waits += r->engine.dev->host_waits - waits;
        D9D_TRY(end_step(r, t));
    }
    return D9D_OK;
}

static d9d_status run_steps_with_progress(d9di_train *r, d9d_train_summary *out)
{
    loop_output t = {.summary = out};
    d9d_status st;

    D9D_TRY(d9di_train_stepper_open_prefetcher(&r->stepper, &r->run, 0));
    d9d_values_set_step(r->run.values, r->stepper.state.step);
    D9D_TRY(d9di_train_run_trigger(&r->run, "train.ready",
                                   (d9d_job_event){.tracker = r->recorder.tracker}));
    d9d_progress_start(&t.progress, r->run.log, "train", "steps", (uint64_t)r->run.total_steps);
    t.progress.first = t.progress.done = (uint64_t)r->stepper.state.step;
    st = run_steps(r, &t);
    d9d_progress_end(&t.progress);
    D9D_TRY(st);
    D9D_TRY(d9di_task_finalize(&r->task));
    return d9di_train_run_trigger(&r->run, "train.finished", (d9d_job_event){.user = NULL});
}

static void fill_summary(const d9di_train *r, d9d_train_summary *out)
{
    out->steps = r->stepper.state.step;
    out->total_steps = r->run.total_steps;
    out->tokens = r->stepper.state.tokens;
    out->samples = r->stepper.state.samples;
    out->mem_bytes = r->engine.dev != NULL ? d9d_device_memory(r->engine.dev).peak : 0;
    if (r->run.dir.path != NULL)
        (void)snprintf(out->run_dir, sizeof(out->run_dir), "%s", r->run.dir.path);
}

/* Runs from the first step to the end. */
static d9d_status run_to_end(d9di_train *r, d9d_train_summary *out)
{
    D9D_TRY(finish_saves(r, run_steps_with_progress(r, out)));
    D9D_TRY(d9di_train_checkpointer_wait_copy(&r->checkpointer));
    enter_phase(r, D9DI_TRAIN_EXPORT);
    D9D_TRY(d9di_train_export(&r->run, &r->engine, r->stepper.optimizer, &r->checkpointer,
                              &r->stepper.state, out));
    d9di_checkpointer_local_remove(r->checkpointer.local);
    if (!r->run.where->trial)
        d9di_train_times_log(&r->times, r->run.log);
    return D9D_OK;
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
    d9d_status st;

    D9D_TRY(d9di_train_recorder_open(&r->recorder, &r->run, r->stepper.state.step, resolved,
                                     resume_from));
    D9D_TRY(d9di_rollout_open_log(&r->rollout, &r->run, r->stepper.state.step));
    st = open_and_run(r, resume_from, out);
    return d9di_train_recorder_end(&r->recorder, &r->run, st, r->stepper.state.step);
}

d9d_status d9d_train(const d9d_train_config *config, const json_t *resolved, const d9d_job *where,
                     d9d_train_summary *out)
{
    d9di_train r = {.run = {.c = config,
                            .where = where,
                            .log = where->log,
                            .rank = d9d_bootstrap_rank(where->bootstrap)},
                    .stepper = {.engine = &r.engine,
                                .integrity = &r.integrity,
                                .stragglers = &r.stragglers,
                                .rollout = &r.rollout},
                    .evaluator = {.engine = &r.engine, .task = &r.task},
                    .checkpointer = {.saved_step = -1,
                                     .read_step = -1,
                                     .local_step = -1,
                                     .found = {.step = -1}},
                    .integrity = {.good_step = -1}};
    const int64_t margin = config->trainer.timeout.save_margin;
    d9d_train_summary summary = {.first_loss = NAN, .last_loss = NAN};
    const char *resume_from = NULL;
    d9d_status st;

    d9di_train_times_enter(&r.times, D9DI_TRAIN_START);
    D9D_TRY_OR(st, d9di_train_control_open(&r.control, r.run.rank == 0, margin, where->log), out);
    r.evaluator.preemption = r.control.preemption;
    D9D_TRY_OR(st, d9di_train_check(&r, &resume_from), out);
    summary.first_step = r.stepper.state.step;
    if (d9di_train_run_is_done(&r.run, r.stepper.state.step))
        d9d_log_info(r.run.log, "all %lld steps are done already", (long long)r.run.total_steps);
    if (d9di_train_run_is_complete(&r.run, r.stepper.state.step))
        (void)snprintf(summary.export_dir, sizeof(summary.export_dir), "%s",
                       d9di_train_run_export_dir(&r.run));
    else
        st = run_life(&r, resolved, resume_from, &summary);
out:
    fill_summary(&r, &summary);
    *out = summary;
    st = d9di_job_start_fail_rank(where->bootstrap, r.engine.mesh, st);
    d9di_train_close(&r);
    return st;
}
