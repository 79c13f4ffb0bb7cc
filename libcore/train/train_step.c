/* train_step.c - enqueues a step; collects its report one step later.  See train/train_run.h. */
#include <math.h>

#include "d9d/base/thread.h"
#include "train/train_run.h"

/* A rank's flag in a step's report is 1 if it was told to exit, plus SLEEP_FLAG if it is to sleep.
 * The sum over ranks shows whether any rank has either. */
enum { SLEEP_FLAG = 1 << 20 };

/* This rank's share of the batch's model FLOP. */
static double batch_flops(const d9di_train *r, const d9d_batch *b)
{
    const d9d_model *m = r->engine.whole;
    double sum = 0;

    for (int64_t i = 0; i < b->seqs; i++)
        sum += (double)b->lengths[i] * d9d_model_flops(m, b->lengths[i]);
    return sum / d9d_mesh_count(r->engine.mesh, D9D_AXES_CP | D9D_AXIS(TP) | D9D_AXIS(PP));
}

d9d_status d9di_train_open_prefetcher(d9di_train *r)
{
    const d9d_job_trainer_section *c = &r->c->trainer;
    const int64_t g = c->batching.global_batch_size, left = r->total_steps - r->state.step;
    const d9d_prefetcher_opts opts = d9di_run_data_prefetch_opts(
        &c->data_loading, r->state.samples, g, d9di_train_dp_rank(r), d9di_train_dp_size(r),
        c->batching.microbatch_size, r->state.samples + left * g);

    d9d_prefetcher_close(r->prefetcher);
    r->prefetcher = NULL;
    return d9d_prefetcher_open(r->data.loader, &opts, &r->prefetcher);
}

/* Targets and FLOP of this rank's share of a step. */
typedef struct step_tally {
    d9di_train *r;
    int64_t targets;
    double flops;
} step_tally;

static d9d_status add_targets(step_tally *t, const d9d_batch *b)
{
    const int64_t n = d9di_task_targets(&t->r->task, b);

    if (n < 0 || n > INT64_C(1) << 53)
        return D9D_FAIL(D9D_EINVAL, "%s: targets() gave %lld for %lld rows",
                        t->r->c->task.choice->name, (long long)n, (long long)b->seqs);
    t->targets += n;
    return D9D_OK;
}

static d9d_status next_micro_batch(void *arg, d9d_batch *b)
{
    step_tally *t = arg;

    D9D_TRY(d9d_prefetcher_next(t->r->prefetcher, b));
    D9D_TRY(add_targets(t, b));
    t->flops += batch_flops(t->r, b);
    return D9D_OK;
}

d9d_status d9di_train_forward_backward(d9di_train *r, int64_t *targets, double *flops)
{
    step_tally t = {.r = r};

    D9D_TRY(d9di_moe_stats_begin(&r->moe_stats));
    D9D_TRY(d9di_engine_forward_backward(
        &r->engine, &(d9di_engine_callbacks){.next = next_micro_batch, .arg = &t}, r->n_micro,
        &r->grad_finalize.loss));
    *targets = t.targets;
    *flops = t.flops;
    return D9D_OK;
}

d9di_run_data_samples_text d9di_train_describe_samples(const d9di_train *r)
{
    return d9di_run_data_describe_samples(&r->data, r->state.samples,
                                          r->c->trainer.batching.global_batch_size);
}

/* True if some rank has a target in this step.  A rank without any looks at the other ranks'
 * samples, so that all ranks know without communication. */
static d9d_status step_has_targets(d9di_train *r, int64_t targets, bool *out)
{
    const int64_t g = r->c->trainer.batching.global_batch_size;
    d9d_batch_buffer *buffer;
    d9d_status st = D9D_OK;

    *out = targets > 0;
    if (*out || r->engine.world == NULL)
        return D9D_OK;
    D9D_TRY(d9d_batch_buffer_create(&buffer));
    for (int64_t i = 0; i < g && !*out && st == D9D_OK; i++) {
        d9d_batch b;

        st = d9d_loader_fill(r->data.loader, r->state.samples + i, 1, buffer, &b);
        *out = st == D9D_OK && d9di_task_targets(&r->task, &b) > 0;
    }
    d9d_batch_buffer_free(buffer);
    return st;
}

/* True if weights of the next step may be unsharded while this step's are updated: there is a next
 * step, and no event handler in between could change them. */
static bool can_prefetch(const d9di_train *r)
{
    static const char *const between[] = {
        "train.optimizer_step.post", "train.step.post", "train.evaluation.pre",
        "train.evaluation.post",     "train.step.pre",  "train.forward_backward.pre",
    };
    bool has_subscriber = false;

    for (size_t i = 0; i < sizeof(between) / sizeof(between[0]); i++)
        has_subscriber = has_subscriber || d9d_job_events_has_subscriber(r->events, between[i]);
    return !has_subscriber && r->state.step + 1 < r->total_steps;
}

static d9d_status record_step_end(d9di_train *r, d9di_train_pending_step *p)
{
    p->end_event = r->ends[p->state_before.step % 4];
    return d9d_device_event_record(p->end_event);
}

/* Normalises by targets, clips and updates in one pass.  Pending gradient reductions overlap with
 * the norm, and the prefetch of the next step's weights overlaps with the update. */
static d9d_status enqueue_update(d9di_train *r, d9di_train_pending_step *p, int64_t targets)
{
    const d9d_mesh *m = r->engine.mesh;
    const bool first = d9d_mesh_index(m, D9D_AXES_CP | D9D_AXIS(TP) | D9D_AXIS(PP)) == 0;
    const d9d_grad_finalize_local own = {
        .targets = first ? (double)targets : 0,
        .is_replica =
            d9d_mesh_index(m, D9D_AXIS(TP)) > 0 || !d9di_engine_has_last_stage(&r->engine),
        .flag = (d9d_preemption_reason(r->preemption) != NULL) +
                (r->rank == 0 && r->engine.world != NULL &&
                         d9d_preemption_sleep_requested(r->preemption)
                     ? SLEEP_FLAG
                     : 0),
        .saved = d9di_checkpointer_async_progress(r->checkpointer, p->state_before.step),
        .extra = r->pipeline_stats.local,
    };

    D9D_TRY(d9d_grad_finalize_enqueue(&r->grad_finalize, &r->engine.params, &own,
                                      r->c->trainer.gradient_clipping.max_norm));
    d9d_trace_mark(r->engine.dev, "norm", "");
    D9D_TRY(d9di_engine_wait_grads(&r->engine));
    D9D_TRY(d9di_checkpointer_async_wait_copy(r->checkpointer));
    D9D_TRY(d9di_train_trigger_step_event(r, "train.optimizer_step.pre"));
    D9D_TRY(d9di_moe_stats_end(&r->moe_stats, &r->grad_finalize.scale,
                               (int)(p->state_before.step % 2)));
    r->engine.prefetch = can_prefetch(r);
    D9D_TRY(d9d_optimizer_step(r->optimizer, p->lr, &r->grad_finalize.scale));
    D9D_TRY(d9di_train_trigger_step_event(r, "train.optimizer_step.post"));
    d9d_trace_mark(r->engine.dev, "optimizer", "");
    D9D_TRY(record_step_end(r, p));
    return d9d_readback_enqueue(p->report, d9d_tensor_data(&r->grad_finalize.extra));
}

/* Updates nothing; but handlers of the step's end may change tensors that are being saved. */
static d9d_status skip_update(d9di_train *r, d9di_train_pending_step *p)
{
    d9d_log_warn(r->log, "step %lld: no target in %s; nothing to learn",
                 (long long)(r->state.step + 1), d9di_train_describe_samples(r).text);
    D9D_TRY(d9di_engine_wait_grads(&r->engine));
    D9D_TRY(d9di_checkpointer_async_wait_copy(r->checkpointer));
    return record_step_end(r, p);
}

/* In a trial, weights must move: at a warm-up's rate of zero, the first steps would hide a wrong
 * update. */
static double lr_factor(const d9di_train *r)
{
    return r->where->trial > 0 ? 1 : d9d_lr_schedule_at(r->lr, r->state.step);
}

/* A step is timed from the end of the previous one.  If the host has already waited for that end,
 * and may have done other work since, it is timed from its own beginning. */
static d9d_status record_step_begin(d9di_train *r, d9di_train_pending_step *p)
{
    p->start = r->pending[(r->state.step + 1) % 2].open ? r->ends[(r->state.step + 3) % 4]
                                                        : p->start_event;
    return d9d_device_event_record(p->start_event);
}

/* Both events have passed, or will pass without further host work. */
static d9d_status measure_step_ms(const d9di_train_pending_step *p, double *out)
{
    D9D_TRY(d9d_device_event_wait(p->end_event));
    return d9d_device_event_elapsed_ms(p->start, p->end_event, out);
}

d9d_status d9di_train_enqueue_step(d9di_train *r)
{
    d9di_train_pending_step *p = &r->pending[r->state.step % 2];
    const size_t watched = r->metrics.watched.len, watched_losses = r->loss_attribution.watched.len;
    int64_t targets;

    p->state_before = r->state;
    D9D_TRY(record_step_begin(r, p));
    p->lr = d9d_optimizer_lr(&r->c->optimizer) * lr_factor(r);
    if (!isfinite((float)p->lr)) /* possible with a plugin's schedule; the update uses float32 */
        return D9D_FAIL(D9D_ENUMERIC, "lr_scheduler: the learning rate of step %lld is %g",
                        (long long)r->state.step + 1, p->lr);
    p->data_ns = -d9d_prefetcher_wait_ns(r->prefetcher);
    D9D_TRY(d9di_train_trigger_step_event(r, "train.step.pre"));
    D9D_TRY(d9di_train_trigger_step_event(r, "train.forward_backward.pre"));
    D9D_TRY(d9di_pipeline_stats_begin(&r->pipeline_stats, r->state.step));
    D9D_TRY(d9di_train_forward_backward(r, &targets, &p->flops));
    D9D_TRY(d9di_train_trigger_step_event(r, "train.forward_backward.post"));
    p->n_predictions = r->metrics.watched.len - watched;
    p->n_losses = r->loss_attribution.watched.len - watched_losses;
    p->data_ns += d9d_prefetcher_wait_ns(r->prefetcher);
    D9D_TRY(step_has_targets(r, targets, &p->counts));
    D9D_TRY(p->counts ? enqueue_update(r, p, targets) : skip_update(r, p));
    D9D_TRY(d9di_train_trigger_step_event(r, "train.step.post"));
    p->open = true;
    r->state.step++;
    r->state.samples += r->c->trainer.batching.global_batch_size;
    return D9D_OK;
}

d9d_status d9di_train_collect_step(d9di_train *r, d9di_train_pending_step *p,
                                   d9di_train_step_result *out)
{
    const double peak = r->engine.spec.opts.dtype == D9D_BF16 ? r->engine.dev->peak_flops : 0;
    const d9d_grad_finalize_report none = {0}, *report = &none;
    const void *back;
    double ms;

    p->open = false;
    if (p->counts) {
        D9D_TRY(d9d_readback_wait(p->report, &back));
        report = (const void *)((const double *)back + r->pipeline_stats.n);
        d9di_pipeline_stats_receive(&r->pipeline_stats, p->state_before.step, back);
        if (!isfinite(report->loss) || !isfinite(report->norm))
            return d9di_train_diagnose_nonfinite(r, p, report);
    }
    D9D_TRY(d9di_moe_stats_collect(&r->moe_stats, p->counts ? (int)(p->state_before.step % 2) : -1,
                                   report->targets));
    if (!r->stepped)
        d9di_train_set_timeout(r, D9DI_TRAIN_STEP);
    r->stepped = true;
    D9D_TRY(measure_step_ms(p, &ms));
    r->should_exit = r->should_exit || fmod(report->flags, SLEEP_FLAG) > 0;
    r->should_sleep = r->should_sleep || report->flags >= SLEEP_FLAG;
    D9D_TRY(d9di_checkpointer_async_advance(r->checkpointer, p->state_before.step, report->saved));
    r->state.tokens += (int64_t)report->targets;
    *out = (d9di_train_step_result){
        .loss = p->counts ? report->loss / report->targets : 0,
        .norm = report->norm,
        .lr = p->lr,
        .ms = ms,
        .data_ms = (double)p->data_ns * 1e-6,
        .targets = (int64_t)report->targets,
        .step = p->state_before.step + 1,
        .tokens = r->state.tokens,
        .samples = p->state_before.samples + r->c->trainer.batching.global_batch_size,
        .n_predictions = p->n_predictions,
        .n_losses = p->n_losses,
    };
    out->mfu = peak > 0 ? p->flops / (out->ms * 1e-3) / peak : NAN;
    return D9D_OK;
}
