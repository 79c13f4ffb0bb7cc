/* train_step.c - one step: queued whole, its report taken one step late.  See train/train_run.h. */
#include <math.h>

#include "d9d/base/thread.h"
#include "train/train_run.h"

/* A rank's flag in a step's report is 1 where it is told to leave, and TIRED more where it is to
 * sleep: sums say of both whether there is one. */
enum { TIRED = 1 << 20 };

/* This rank's share of them. */
static double batch_flops(const d9di_train *r, const d9d_batch *b)
{
    const d9d_model *m = r->engine.whole;
    double sum = 0;

    for (int64_t i = 0; i < b->rows; i++)
        sum += (double)b->lengths[i] * d9d_model_flops(m, b->lengths[i]);
    return sum / d9d_mesh_count(r->engine.mesh, D9D_AXES_CP | D9D_AXIS(TP) | D9D_AXIS(PP));
}

d9d_status d9di_train_feed(d9di_train *r)
{
    const d9d_trainer_section *c = &r->c->trainer;
    const int64_t g = c->batching.global_batch_size, left = r->total_steps - r->state.step;
    const d9d_feed_how how = d9di_data_feed(
        &c->data_loading, r->state.samples, g, d9di_train_replica(r), d9di_train_replicas(r),
        c->batching.microbatch_size, r->state.samples + left * g);

    d9d_feed_close(r->feed);
    r->feed = NULL;
    return d9d_feed_open(r->data.loader, &how, &r->feed);
}

/* Targets and operations of this rank's part of a step. */
typedef struct tally {
    d9di_train *r;
    int64_t targets;
    double flops;
} tally;

static d9d_status targets_count(tally *t, const d9d_batch *b)
{
    const int64_t n = d9di_task_targets(&t->r->task, b);

    if (n < 0 || n > INT64_C(1) << 53)
        return D9D_FAIL(D9D_EINVAL, "%s: targets() gave %lld for %lld rows",
                        t->r->c->task.choice->name, (long long)n, (long long)b->rows);
    t->targets += n;
    return D9D_OK;
}

static d9d_status micro_next(void *arg, d9d_batch *b)
{
    tally *t = arg;

    D9D_TRY(d9d_feed_next(t->r->feed, b));
    D9D_TRY(targets_count(t, b));
    t->flops += batch_flops(t->r, b);
    return D9D_OK;
}

d9d_status d9di_train_learn(d9di_train *r, int64_t *targets, double *flops)
{
    tally t = {.r = r};

    D9D_TRY(d9di_experts_begin(&r->experts));
    D9D_TRY(d9di_engine_learn(&r->engine, &(d9di_flow){.next = micro_next, .arg = &t}, r->n_micro,
                              &r->end.loss));
    *targets = t.targets;
    *flops = t.flops;
    return D9D_OK;
}

d9di_samples_text d9di_train_samples(const d9di_train *r)
{
    return d9di_data_say(&r->data, r->state.samples, r->c->trainer.batching.global_batch_size);
}

/* Has some rank a target in this step?  One that has none itself looks at what the others have, so
 * that all know without a word. */
static d9d_status step_counts(d9di_train *r, int64_t targets, bool *out)
{
    const int64_t g = r->c->trainer.batching.global_batch_size;
    d9d_batch_room *room;
    d9d_status st = D9D_OK;

    *out = targets > 0;
    if (*out || r->engine.world == NULL)
        return D9D_OK;
    D9D_TRY(d9d_batch_room_create(&room));
    for (int64_t i = 0; i < g && !*out && st == D9D_OK; i++) {
        d9d_batch b;

        st = d9d_loader_fill(r->data.loader, r->state.samples + i, 1, room, &b);
        *out = st == D9D_OK && d9di_task_targets(&r->task, &b) > 0;
    }
    d9d_batch_room_free(room);
    return st;
}

/* May weights of the next step be gathered while those of this one are updated?  Where there is
 * one, and nobody hears of what comes between, who could change them. */
static bool may_look_ahead(const d9di_train *r)
{
    static const char *const between[] = {
        "train.optimizer_step.post", "train.step.post", "train.evaluation.pre",
        "train.evaluation.post",     "train.step.pre",  "train.forward_backward.pre",
    };
    bool heard = false;

    for (size_t i = 0; i < sizeof(between) / sizeof(between[0]); i++)
        heard = heard || d9d_events_heard(r->events, between[i]);
    return !heard && r->state.step + 1 < r->total_steps;
}

static d9d_status step_done(d9di_train *r, d9di_pending *p)
{
    p->done = r->ends[p->before.step % 4];
    return d9d_device_event_record(p->done);
}

/* Divided by the targets, clipped and updated with one factor.  Gradients that are late come beside
 * the norm, and weights of the next step beside the update. */
static d9d_status step_update(d9di_train *r, d9di_pending *p, int64_t targets)
{
    const d9d_mesh *m = r->engine.mesh;
    const bool first = d9d_mesh_index(m, D9D_AXES_CP | D9D_AXIS(TP) | D9D_AXIS(PP)) == 0;
    const d9d_step_own own = {
        .targets = first ? (double)targets : 0,
        .shadow = d9d_mesh_index(m, D9D_AXIS(TP)) > 0 || !d9di_engine_ends(&r->engine),
        .flag = (d9d_stop_reason(r->stop) != NULL) +
                (r->rank == 0 && r->engine.world != NULL && d9d_stop_doze(r->stop) ? TIRED : 0),
        .saved = d9di_saver_number(r->saver, p->before.step),
        .more = r->bubble.mine,
    };

    D9D_TRY(d9d_step_end_queue(&r->end, &r->engine.params, &own,
                               r->c->trainer.gradient_clipping.max_norm));
    d9d_trace_lap(r->engine.dev, "norm", "");
    D9D_TRY(d9di_engine_settle(&r->engine));
    D9D_TRY(d9di_saver_hold(r->saver));
    D9D_TRY(d9di_train_tell_step(r, "train.optimizer_step.pre"));
    D9D_TRY(d9di_experts_end(&r->experts, &r->end.scale, (int)(p->before.step % 2)));
    r->engine.ahead = may_look_ahead(r);
    D9D_TRY(d9d_optimizer_step(r->optimizer, p->lr, &r->end.scale));
    D9D_TRY(d9di_train_tell_step(r, "train.optimizer_step.post"));
    d9d_trace_lap(r->engine.dev, "optimizer", "");
    D9D_TRY(step_done(r, p));
    return d9d_readback_begin(p->report, d9d_tensor_data(&r->end.more));
}

/* Nothing is updated, but who hears of the step's end may change what is being saved. */
static d9d_status step_skip(d9di_train *r, d9di_pending *p)
{
    d9d_log_warn(r->log, "step %lld: no target in %s; nothing to learn",
                 (long long)(r->state.step + 1), d9di_train_samples(r).text);
    D9D_TRY(d9di_engine_settle(&r->engine));
    D9D_TRY(d9di_saver_hold(r->saver));
    return step_done(r, p);
}

/* A trial is to move weights: where the rate rises from nothing, first steps would show no update
 * that went wrong. */
static double rate_factor(const d9di_train *r)
{
    return r->where->trial > 0 ? 1 : d9d_lr_at(r->lr, r->state.step);
}

/* A step lasts from the end of the one before it, or where the host knew of that already, and may
 * have done something else, from its own beginning. */
static d9d_status step_begin(d9di_train *r, d9di_pending *p)
{
    p->from =
        r->pending[(r->state.step + 1) % 2].open ? r->ends[(r->state.step + 3) % 4] : p->begun;
    return d9d_device_event_record(p->begun);
}

/* Both have passed, or will without the host. */
static d9d_status step_ms(const d9di_pending *p, double *out)
{
    D9D_TRY(d9d_device_event_wait(p->done));
    return d9d_device_event_ms(p->from, p->done, out);
}

d9d_status d9di_train_queue(d9di_train *r)
{
    d9di_pending *p = &r->pending[r->state.step % 2];
    const size_t watched = r->metrics.watched.len, told = r->culprits.watched.len;
    int64_t targets;

    p->before = r->state;
    D9D_TRY(step_begin(r, p));
    p->lr = d9d_optimizer_lr(&r->c->optimizer) * rate_factor(r);
    if (!isfinite((float)p->lr)) /* a kind of a plugin; steps use float32 */
        return D9D_FAIL(D9D_ENUMERIC, "lr_scheduler: the learning rate of step %lld is %g",
                        (long long)r->state.step + 1, p->lr);
    p->data_ns = -d9d_feed_waited_ns(r->feed);
    D9D_TRY(d9di_train_tell_step(r, "train.step.pre"));
    D9D_TRY(d9di_train_tell_step(r, "train.forward_backward.pre"));
    D9D_TRY(d9di_bubble_begin(&r->bubble, r->state.step));
    D9D_TRY(d9di_train_learn(r, &targets, &p->flops));
    D9D_TRY(d9di_train_tell_step(r, "train.forward_backward.post"));
    p->watched = r->metrics.watched.len - watched;
    p->told = r->culprits.watched.len - told;
    p->data_ns += d9d_feed_waited_ns(r->feed);
    D9D_TRY(step_counts(r, targets, &p->counts));
    D9D_TRY(p->counts ? step_update(r, p, targets) : step_skip(r, p));
    D9D_TRY(d9di_train_tell_step(r, "train.step.post"));
    p->open = true;
    r->state.step++;
    r->state.samples += r->c->trainer.batching.global_batch_size;
    return D9D_OK;
}

d9d_status d9di_train_take(d9di_train *r, d9di_pending *p, d9di_train_result *out)
{
    const double peak = r->engine.spec.options.dtype == D9D_BF16 ? r->engine.dev->peak_flops : 0;
    const d9d_step_report none = {0}, *report = &none;
    const void *back;
    double ms;

    p->open = false;
    if (p->counts) {
        D9D_TRY(d9d_readback_end(p->report, &back));
        report = (const void *)((const double *)back + r->bubble.n);
        d9di_bubble_hear(&r->bubble, p->before.step, back);
        if (!isfinite(report->loss) || !isfinite(report->norm))
            return d9di_train_blame(r, p, report);
    }
    D9D_TRY(d9di_experts_take(&r->experts, p->counts ? (int)(p->before.step % 2) : -1,
                              report->targets));
    if (!r->stepped)
        d9di_train_allow(r, D9DI_TRAIN_STEP);
    r->stepped = true;
    D9D_TRY(step_ms(p, &ms));
    r->told = r->told || fmod(report->flags, TIRED) > 0;
    r->tired = r->tired || report->flags >= TIRED;
    D9D_TRY(d9di_saver_told(r->saver, p->before.step, report->saved));
    r->state.tokens += (int64_t)report->targets;
    *out = (d9di_train_result){
        .loss = p->counts ? report->loss / report->targets : 0,
        .norm = report->norm,
        .lr = p->lr,
        .ms = ms,
        .data_ms = (double)p->data_ns * 1e-6,
        .targets = (int64_t)report->targets,
        .step = p->before.step + 1,
        .tokens = r->state.tokens,
        .samples = p->before.samples + r->c->trainer.batching.global_batch_size,
        .watched = p->watched,
        .told = p->told,
    };
    out->mfu = peak > 0 ? p->flops / (out->ms * 1e-3) / peak : NAN;
    return D9D_OK;
}
