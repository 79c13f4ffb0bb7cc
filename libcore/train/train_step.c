/* train_step.c - see train/train_step.h. */
#include "train/train_step.h"

#include <math.h>

#include "d9d/base/num_format.h"
#include "d9d/device/trace.h"

/* A loss of several parts needs the targets of the step before its first forward, and so all of its
 * micro-batches. */
static d9d_status ahead_open(d9di_train_stepper *s, const d9di_train_run *run, d9d_arena *a)
{
    const size_t parts = d9di_task_parts(s->engine->task, NULL, -1, NULL);

    if (parts == 0)
        return D9D_OK;
    s->ahead = d9d_arena_alloc(a, (size_t)run->n_micro * sizeof(*s->ahead));
    if (s->ahead == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %lld micro-batches", (long long)run->n_micro);
    return d9d_tensor_alloc(s->engine->dev, D9D_F32, D9D_SHAPE((int64_t)parts), &s->part_targets);
}

d9d_status d9di_train_stepper_open(d9di_train_stepper *s, const d9di_train_run *run, d9d_arena *a)
{
    d9di_engine *e = s->engine;

    D9D_TRY(d9di_pipeline_stats_open(e, run->n_micro, a, &s->pipeline_stats));
    D9D_TRY(d9d_grad_finalize_init(e->dev, run->n_micro, s->pipeline_stats.n, e->world,
                                   &s->grad_finalize));
    for (int i = 0; i < 2; i++) {
        D9D_TRY(d9d_readback_create(e->dev,
                                    (uint64_t)s->pipeline_stats.n * sizeof(double) +
                                        sizeof(d9d_grad_finalize_report),
                                    &s->pending[i].report));
        D9D_TRY(d9d_device_event_create(e->dev, &s->pending[i].start_event));
    }
    for (int i = 0; i < 4; i++)
        D9D_TRY(d9d_device_event_create(e->dev, &s->ends[i]));
    D9D_TRY(ahead_open(s, run, a));
    D9D_TRY(d9di_train_in_backward_open(s, run));
    return d9di_moe_stats_open(e, run->c->trainer.logging.experts, &s->replication, a,
                               &s->moe_stats);
}

void d9di_train_stepper_close(d9di_train_stepper *s)
{
    d9d_optimizer_free(s->optimizer);
    for (int i = 0; i < 2; i++) {
        d9d_readback_free(s->pending[i].report);
        d9d_device_event_free(s->pending[i].start_event);
    }
    for (int i = 0; i < 4; i++)
        d9d_device_event_free(s->ends[i]);
    d9d_grad_finalize_release(&s->grad_finalize);
    d9d_tensor_release(&s->part_targets);
    d9di_pipeline_stats_release(&s->pipeline_stats);
    d9di_moe_stats_release(&s->moe_stats);
    d9di_expert_replication_close(&s->replication);
    d9d_prefetcher_close(s->prefetcher);
}

/* This rank's share of the batch's model FLOP. */
static double batch_flops(const d9di_engine *e, const d9d_batch *b)
{
    return d9d_model_batch_flops(e->whole.model, b) /
           d9d_mesh_count(e->mesh, D9D_AXES_CP | D9D_AXIS(TP) | D9D_AXIS(PP));
}

d9d_status d9di_train_stepper_open_prefetcher(d9di_train_stepper *s, const d9di_train_run *run,
                                              int ahead)
{
    const int dp = d9d_mesh_count(s->engine->mesh, D9D_AXES_DP);
    const d9d_job_trainer_section *c = &run->c->trainer;
    const int64_t g = c->batching.global_batch_size, left = run->total_steps - s->state.step;
    d9d_prefetcher_opts opts = d9di_run_data_prefetch_opts(
        &c->data_loading, s->state.samples, g,
        (d9d_mesh_index(s->engine->mesh, D9D_AXES_DP) + ahead) % dp, d9di_train_run_dp_size(run),
        c->batching.microbatch_size,
        s->state.samples + (left + run->iterations - 1) / run->iterations * g);

    d9d_prefetcher_close(s->prefetcher);
    s->prefetcher = NULL;
    opts.held = s->ahead != NULL ? run->n_micro : 1;
    return d9d_prefetcher_open(run->data.loader, &opts, &s->prefetcher);
}

/* Targets and FLOP of this rank's share of a step. */
typedef struct step_tally {
    d9di_train_stepper *s;
    const d9di_train_run *run;
    int64_t at; /* next of the micro-batches that were read ahead */
    int64_t targets;
    double flops;
} step_tally;

static d9d_status add_targets(step_tally *t, const d9d_batch *b)
{
    const int64_t n = d9di_task_targets(t->s->engine->task, b);

    if (n < 0 || n > INT64_C(1) << 53)
        return D9D_FAIL(D9D_EINVAL, "%s: targets() gave %lld for %lld row%s",
                        t->run->c->task.choice->name, (long long)n, (long long)b->seqs,
                        D9D_PLURAL(b->seqs));
    t->targets += n;
    return D9D_OK;
}

static d9d_status next_micro_batch(void *arg, d9d_batch *b)
{
    step_tally *t = arg;

    if (t->s->ahead != NULL)
        *b = t->s->ahead[t->at++];
    else
        D9D_TRY(t->s->rollout->c != NULL ? d9di_rollout_next(t->s->rollout, b)
                                         : d9d_prefetcher_next(t->s->prefetcher, b));
    D9D_TRY(add_targets(t, b));
    t->flops += batch_flops(t->s->engine, b);
    return D9D_OK;
}

static d9d_status pre_backward(void *arg)
{
    const step_tally *t = arg;

    return d9di_train_in_backward_start(t->s, t->run, t->targets);
}

/* Reads the step's micro-batches, and sums the targets of each part over all ranks.  Of ranks with
 * the same samples one counts them. */
static d9d_status read_ahead(d9di_train_stepper *s, const d9di_train_run *run)
{
    const bool counts =
        d9d_mesh_index(s->engine->mesh, D9D_AXES_CP | D9D_AXIS(TP) | D9D_AXIS(PP)) == 0;
    int64_t n[D9D_TASK_PARTS_MAX] = {0};
    float local[D9D_TASK_PARTS_MAX];
    size_t parts = 0;

    if (s->ahead == NULL)
        return D9D_OK;
    for (int64_t i = 0; i < run->n_micro; i++) {
        D9D_TRY(d9d_prefetcher_next(s->prefetcher, &s->ahead[i]));
        parts = d9di_task_parts(s->engine->task, &s->ahead[i], -1, n);
    }
    for (size_t i = 0; i < parts; i++)
        local[i] = counts ? (float)n[i] : 0;
    D9D_TRY(d9d_device_upload(s->engine->dev, d9d_tensor_data(&s->part_targets), local,
                              parts * sizeof(*local)));
    D9D_TRY(d9d_comm_all_reduce(s->engine->world, s->engine->dev->stream, "targets of heads",
                                D9D_F32, d9d_tensor_data(&s->part_targets), (int64_t)parts,
                                D9D_COMM_SUM));
    s->engine->step.part_targets = &s->part_targets;
    return D9D_OK;
}

/* Copies of experts are placed by the loads of all steps before this one. */
static d9d_status place_copies(d9di_train_stepper *s, const d9di_train_run *run)
{
    const int64_t step = s->state.step;
    const d9di_train_pending_step *p = d9di_train_stepper_pending(s, 1);

    if (p != NULL && d9di_expert_replication_is_due(&s->replication, step))
        D9D_TRY(
            d9di_moe_stats_count(&s->moe_stats, step - 1, p->counts ? (int)((step - 1) % 2) : -1));
    return d9di_expert_replication_begin(&s->replication, step, run->log);
}

d9d_status d9di_train_stepper_forward_backward(d9di_train_stepper *s, const d9di_train_run *run,
                                               int64_t *targets, double *flops)
{
    step_tally t = {.s = s, .run = run};

    D9D_TRY(read_ahead(s, run));
    D9D_TRY(place_copies(s, run));
    D9D_TRY(d9di_moe_stats_begin(&s->moe_stats));
    D9D_TRY(d9di_engine_forward_backward(
        s->engine,
        &(d9di_engine_callbacks){.next = next_micro_batch, .pre_backward = pre_backward, .arg = &t},
        run->n_micro, &s->grad_finalize.loss));
    *targets = t.targets;
    *flops = t.flops;
    return D9D_OK;
}

/* A rank without any looks at the other ranks' micro-batches, so that all ranks know without
 * communication; a pair is in one of them. */
d9d_status d9di_train_stepper_has_targets(const d9di_train_stepper *s, const d9di_train_run *run,
                                          int64_t targets, bool *out)
{
    const int64_t g = run->c->trainer.batching.global_batch_size;
    const int64_t micro = run->c->trainer.batching.microbatch_size;
    d9d_batch_buffer *buffer;
    d9d_status st = D9D_OK;

    *out = targets > 0 || (s->rollout->c != NULL && s->rollout->has_targets);
    if (*out || s->engine->world == NULL || s->rollout->c != NULL)
        return D9D_OK;
    D9D_TRY(d9d_batch_buffer_create(&buffer));
    for (int64_t i = 0; i < g && !*out && st == D9D_OK; i += micro) {
        d9d_batch b;

        st = d9d_loader_fill(run->data.loader, s->state.samples + i, micro, buffer, &b);
        *out = st == D9D_OK && d9di_task_targets(s->engine->task, &b) > 0;
    }
    d9d_batch_buffer_free(buffer);
    return st;
}

/* True if weights of the next step may be unsharded while this step's are updated: there is a next
 * step, and in between no event handler could change them, and no averages take their place. */
static bool can_prefetch(const d9di_train_stepper *s, const d9di_train_run *run, int64_t step)
{
    static const char *const between[] = {
        "train.optimizer_step.post", "train.step.post", "train.evaluation.pre",
        "train.evaluation.post",     "train.step.pre",  "train.forward_backward.pre",
    };
    bool has_subscriber = false;

    for (size_t i = 0; i < sizeof(between) / sizeof(between[0]); i++)
        has_subscriber = has_subscriber || d9d_job_events_has_subscriber(run->events, between[i]);
    if (run->c->evaluation.n > 0 && d9d_optimizer_has_averages(s->optimizer))
        return false;
    return !has_subscriber && step + 1 < run->total_steps;
}

static d9d_status record_step_end(d9di_train_stepper *s, d9di_train_pending_step *p)
{
    p->end_event = s->ends[p->state_before.step % 4];
    D9D_TRY(d9d_device_event_record(p->end_event));
    d9di_train_stragglers_begin_step(s->stragglers, p->state_before.step + 1);
    return D9D_OK;
}

/* Of ranks with the same targets, and with the same losses, one counts. */
d9d_grad_finalize_local d9di_train_stepper_targets(const d9di_train_stepper *s, int64_t targets)
{
    const d9d_mesh *m = s->engine->mesh;
    const bool first = d9d_mesh_index(m, D9D_AXES_CP | D9D_AXIS(TP) | D9D_AXIS(PP)) == 0;

    return (d9d_grad_finalize_local){
        .targets = first ? (double)targets : 0,
        .is_replica = d9d_mesh_index(m, D9D_AXIS(TP)) > 0 || !d9di_engine_has_last_stage(s->engine),
    };
}

/* What a step whose update begins within backward has done before. */
static d9d_status before_update(d9di_train_stepper *s, const d9di_train_run *run,
                                d9di_train_checkpointer *saves)
{
    if (s->in_backward.began)
        return D9D_OK;
    D9D_TRY(d9di_train_checkpointer_wait_copy(saves));
    return d9di_train_run_trigger_step(run, "train.optimizer_step.pre", s->state.step);
}

/* Normalises by targets, clips and updates in one pass.  Pending gradient reductions overlap with
 * the norm, and the prefetch of the next step's weights overlaps with the update. */
static d9d_status enqueue_update(d9di_train_stepper *s, const d9di_train_run *run,
                                 d9di_train_control *control, d9di_train_checkpointer *saves,
                                 d9di_train_pending_step *p, int64_t targets)
{
    d9d_grad_finalize_local own = d9di_train_stepper_targets(s, targets);

    own.flag = d9di_train_control_flags(control, s->engine->world == NULL);
    own.saved = d9di_checkpointer_async_progress(saves->async, p->state_before.step);
    own.extra = s->pipeline_stats.local;
    D9D_TRY(d9d_grad_finalize_enqueue(&s->grad_finalize, &s->engine->params, &own,
                                      run->c->trainer.gradient_clipping.max_norm));
    d9d_trace_mark(s->engine->dev, "norm", "");
    D9D_TRY(d9di_engine_wait_grads(s->engine));
    D9D_TRY(before_update(s, run, saves));
    D9D_TRY(d9di_moe_stats_end(&s->moe_stats, &s->grad_finalize.scale,
                               (int)(p->state_before.step % 2)));
    s->engine->step.prefetch = can_prefetch(s, run, s->state.step);
    D9D_TRY(d9d_optimizer_step(s->optimizer, p->lr, &s->grad_finalize.scale));
    D9D_TRY(d9di_train_run_trigger_step(run, "train.optimizer_step.post", s->state.step));
    d9d_trace_mark(s->engine->dev, "optimizer", "");
    D9D_TRY(record_step_end(s, p));
    return d9d_readback_enqueue(p->report, d9d_tensor_data(&s->grad_finalize.extra));
}

/* Updates nothing; but handlers of the step's end may change tensors that are being saved. */
static d9d_status skip_update(d9di_train_stepper *s, const d9di_train_run *run,
                              d9di_train_checkpointer *saves, d9di_train_pending_step *p)
{
    d9d_log_warn(run->log, "step %lld: no target in %s; nothing to learn",
                 (long long)(s->state.step + 1),
                 d9di_train_run_describe_step(run, s->state.samples).text);
    D9D_TRY(d9di_engine_wait_grads(s->engine));
    D9D_TRY(d9di_train_checkpointer_wait_copy(saves));
    return record_step_end(s, p);
}

/* In a trial, weights must move: at a warm-up's rate of zero, the first steps would hide a wrong
 * update. */
static double lr_factor(const d9di_train_run *run, int64_t step)
{
    return run->where->trial > 0 ? 1 : d9d_lr_schedule_at(run->lr, step);
}

/* A step is timed from the end of the previous one.  If the host has already waited for that end,
 * and may have done other work since, it is timed from its own beginning. */
static d9d_status record_step_begin(d9di_train_stepper *s, d9di_train_pending_step *p)
{
    p->start = s->pending[(s->state.step + 1) % 2].open ? s->ends[(s->state.step + 3) % 4]
                                                        : p->start_event;
    if (p->start == p->start_event)
        d9di_train_stragglers_begin_step(s->stragglers, s->state.step);
    return d9d_device_event_record(p->start_event);
}

/* Both events have passed, or will pass without further host work. */
static d9d_status measure_step_ms(const d9di_train_pending_step *p, double *out)
{
    D9D_TRY(d9d_device_event_wait(p->end_event));
    return d9d_device_event_elapsed_ms(p->start, p->end_event, out);
}

/* Micro-batches whose predictions, or whose losses of documents, are being read back. */
static size_t n_predictions(const d9di_train_stepper *s)
{
    return s->engine->task->metrics->watched.len;
}
static size_t n_losses(const d9di_train_stepper *s)
{
    return s->engine->step.loss_attribution->watched.len;
}

/* Next tokens count in some of the steps: the same on every rank. */
static void set_token_metrics(const d9di_train_stepper *s, const d9di_train_run *run)
{
    s->engine->task->metrics->pauses_tokens =
        !d9d_step_period_due(run->c->trainer.logging.token_metrics_period_steps, s->state.step + 1,
                             run->total_steps, D9D_DUE_ON_LAST | D9D_DUE_AFTER_STEP);
}

d9d_status d9di_train_stepper_enqueue(d9di_train_stepper *s, const d9di_train_run *run,
                                      d9di_train_control *control, d9di_train_checkpointer *saves)
{
    d9di_train_pending_step *p = &s->pending[s->state.step % 2];
    const size_t watched = n_predictions(s), watched_losses = n_losses(s);
    int64_t targets;

    p->state_before = s->state;
    D9D_TRY(record_step_begin(s, p));
    p->lr = d9d_optimizer_lr(&run->c->optimizer) * lr_factor(run, s->state.step);
    if (!isfinite((float)p->lr)) /* possible with a plugin's schedule; the update uses float32 */
        return D9D_FAIL(D9D_ENUMERIC, "lr_scheduler: the learning rate of step %lld is %g",
                        (long long)s->state.step + 1, p->lr);
    set_token_metrics(s, run);
    d9d_values_set_step(run->values, s->state.step + 1);
    D9D_TRY(d9di_train_run_trigger_step(run, "train.step.pre", s->state.step));
    D9D_TRY(d9di_train_run_trigger_step(run, "train.forward_backward.pre", s->state.step));
    D9D_TRY(d9di_pipeline_stats_begin(&s->pipeline_stats, s->state.step));
    D9D_TRY(d9di_train_integrity_begin_step(s->integrity, run, s->state.step));
    D9D_TRY(d9di_train_rerun_begin(s->integrity, s, run));
    p->data_ns = -d9d_prefetcher_wait_ns(s->prefetcher);
    D9D_TRY(d9di_rollout_begin_step(s->rollout, run, s->prefetcher, s->state.step));
    d9di_train_in_backward_begin_step(s, p->lr, saves);
    D9D_TRY(d9di_train_stepper_forward_backward(s, run, &targets, &p->flops));
    p->data_ns += d9d_prefetcher_wait_ns(s->prefetcher);
    D9D_TRY(d9di_train_rerun_check(s->integrity, s, run));
    D9D_TRY(d9di_train_run_trigger_step(run, "train.forward_backward.post", s->state.step));
    p->n_predictions = n_predictions(s) - watched;
    p->n_losses = n_losses(s) - watched_losses;
    D9D_TRY(d9di_train_stepper_has_targets(s, run, targets, &p->counts));
    if (!s->in_backward.began)
        D9D_TRY(d9di_train_integrity_verify(s->integrity, s->state.step));
    D9D_TRY(p->counts ? enqueue_update(s, run, control, saves, p, targets)
                      : skip_update(s, run, saves, p));
    D9D_TRY(d9di_train_run_trigger_step(run, "train.step.post", s->state.step));
    D9D_TRY(d9di_train_integrity_end_step(s->integrity));
    p->open = true;
    s->state.step++;
    if (d9di_train_run_is_at_round(run, s->state.step))
        s->state.samples += run->c->trainer.batching.global_batch_size;
    return D9D_OK;
}

d9di_train_pending_step *d9di_train_stepper_pending(d9di_train_stepper *s, int64_t age)
{
    d9di_train_pending_step *p = &s->pending[(s->state.step + age) % 2];

    return p->open ? p : NULL;
}

bool d9di_train_pending_step_is_ready(const d9di_train_pending_step *p)
{
    return !p->counts || d9d_readback_ready(p->report);
}

d9d_status d9di_train_stepper_collect(d9di_train_stepper *s, const d9di_train_run *run,
                                      d9di_train_pending_step *p, d9di_train_step_result *out)
{
    const double peak = s->engine->spec.opts.dtype == D9D_BF16 ? s->engine->dev->peak_flops : 0;
    const d9d_grad_finalize_report none = {0}, *report = &none;
    const void *back;
    double ms;

    p->open = false;
    D9D_TRY(d9di_train_integrity_collect(s->integrity, run, p->state_before.step));
    if (p->counts) {
        D9D_TRY(d9d_readback_wait(p->report, &back));
        report = (const void *)((const double *)back + s->pipeline_stats.n);
        d9di_pipeline_stats_receive(&s->pipeline_stats, p->state_before.step, back);
        if (!isfinite(report->loss) || !isfinite(report->norm))
            return d9di_train_stepper_diagnose(s, run, p, report);
    }
    D9D_TRY(d9di_moe_stats_collect(&s->moe_stats, p->state_before.step,
                                   p->counts ? (int)(p->state_before.step % 2) : -1,
                                   report->targets));
    D9D_TRY(measure_step_ms(p, &ms));
    D9D_TRY(d9di_train_stragglers_collect(s->stragglers, run, p->state_before.step, ms));
    s->state.tokens += (int64_t)report->targets;
    *out = (d9di_train_step_result){
        .loss = p->counts ? report->loss / report->targets : NAN,
        .norm = p->counts ? report->norm : NAN,
        .lr = p->lr,
        .ms = ms,
        .data_ms = (double)p->data_ns * 1e-6,
        .host_bytes =
            d9d_optimizer_host_bytes(s->optimizer) + d9di_engine_host_activations(s->engine),
        .targets = (int64_t)report->targets,
        .step = p->state_before.step + 1,
        .tokens = s->state.tokens,
        .samples = p->state_before.samples + run->c->trainer.batching.global_batch_size,
        .n_predictions = p->n_predictions,
        .n_losses = p->n_losses,
        .expert_stats = s->moe_stats.values,
        .flags = report->flags,
        .saved = report->saved,
    };
    out->mfu = peak > 0 ? p->flops / (out->ms * 1e-3) / peak : NAN;
    return D9D_OK;
}
