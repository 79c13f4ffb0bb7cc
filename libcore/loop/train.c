/* train.c - the training loop.  See d9d/loop/train.h. */
#include "d9d/loop/train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/thread.h"
#include "d9d/device/readback.h"
#include "d9d/device/trace.h"
#include "d9d/loop/events.h"
#include "d9d/loop/save.h"
#include "d9d/loop/stop.h"
#include "d9d/model/weights.h"
#include "d9d/track/sink.h"
#include "d9d/track/track.h"
#include "loop/engine.h"
#include "loop/launch.h"
#include "loop/ledger.h"
#include "loop/run_dir.h"
#include "loop/save_behind.h"
#include "loop/sleep.h"

/* A rank's flag in a step's report is 1 where it is told to leave, and TIRED more where it is to
 * sleep: sums say of both whether there is one. */
enum { TIRED = 1 << 20 };

/* A step that is queued on the device, until its loss has come back. */
typedef struct pending {
    bool open;
    d9d_readback *report; /* d9d_step_end's; of a step without targets it is not used */
    bool counts;          /* there are targets in it, on some rank */
    d9d_save_state before;
    double lr, flops;
    int64_t start_ns, data_ns;
    double *metrics; /* their values, where the step is to be recorded */
} pending;

/* What one step found out, and where the run stood after it. */
typedef struct step_result {
    double loss, norm, lr, ms, data_ms;
    double mfu; /* NaN where the device's peak is not known */
    int64_t targets;
    int64_t step, tokens, samples;
    const double *metrics;
} step_result;

typedef struct run {
    const d9d_train_config *c;
    const d9d_job *where;
    const d9d_log *log;
    int rank;
    d9d_arena arena;
    d9di_run_dir dir;
    d9d_stop *stop;
    d9d_events *events;
    d9di_task task;
    d9di_metrics metrics;
    d9di_data data;
    d9d_feed *feed;
    d9di_ledger ledger; /* closed where it is not wanted */
    d9di_engine engine;
    d9d_optimizer *optimizer;
    d9d_lr *lr;
    d9d_tracker *tracker;
    d9d_sinks *sinks;     /* of the tracker */
    d9d_save_set set;     /* what is kept here */
    d9d_save_state state; /* after the steps that were queued; tokens: whose reports have come */
    d9d_step_end end;
    pending pending[2]; /* of the step k: [k % 2] */
    int64_t last_ns;    /* when the last report came */
    d9d_trace *trace;   /* of the steps that are being traced; NULL: none */
    uint64_t waits;     /* for the device while steps were queued, but the first two */
    int64_t n_micro, total_steps;
    d9di_saver *saver;  /* NULL: of a trial */
    int64_t saved_step; /* of the newest checkpoint that this life read or began; -1: none */
    bool goes_on;       /* the directory has records of this run */
    bool told;          /* by some rank, to save and leave */
    bool tired;         /* by rank 0, to sleep */
} run;

/* --- telling ------------------------------------------------------------------------ */

static d9d_status tell(const run *r, const char *id, d9d_event e)
{
    e.size = sizeof(e);
    e.id = id;
    return d9d_events_trigger(r->events, &e);
}

/* What happens in the step that comes, or is being queued. */
static d9d_status tell_step(const run *r, const char *id)
{
    return tell(r, id, (d9d_event){.step = r->state.step, .total_steps = r->total_steps});
}

/* --- opening: cheapest first ------------------------------------------------------ */

static d9d_status data_open(run *r)
{
    const int64_t g = r->c->trainer.batching.global_batch_size;

    D9D_TRY(d9di_data_open(&r->c->data, &r->c->trainer.data_loading, &r->c->mesh, g, &r->data));
    return d9di_data_steps(&r->data, g, r->c->trainer.run.steps, &r->total_steps);
}

static d9d_status state_fresh(run *r)
{
    r->state = (d9d_save_state){
        .seed = (uint64_t)r->c->trainer.determinism.base_seed,
        .dataset = d9d_loader_data_hash(r->data.loader),
        .finite = true,
        .parent = -1,
    };
    return d9d_loader_order_hash(r->data.loader, &r->state.config);
}

/* Where a checkpoint stands, and whether it is of this model and this stream of samples. */
static d9d_status state_check(run *r, const char *path, const d9d_save_set *set)
{
    const d9d_save_state fresh = r->state;
    d9d_save_state *s = &r->state;

    D9D_TRY(d9d_save_check(path, set, s));
    if (!d9d_hash_equal(s->dataset, fresh.dataset))
        return D9D_FAIL(D9D_EMISMATCH, "%s: was trained on another dataset than %s", path,
                        r->data.sections[0].dataset);
    if (!d9d_hash_equal(s->config, fresh.config))
        return D9D_FAIL(D9D_EMISMATCH,
                        "%s: was trained with another data.split, data.order%s or "
                        "data.seed",
                        path, r->data.n > 1 ? ", data.weight" : "");
    if (s->seed != fresh.seed)
        return D9D_FAIL(D9D_EMISMATCH,
                        "%s: has trainer.determinism.base_seed %llu, and the "
                        "configuration %llu",
                        path, (unsigned long long)s->seed, (unsigned long long)fresh.seed);
    return D9D_OK;
}

/* What checkpoints have. */
static d9d_status set_make(run *r, const d9d_params *params, d9d_optimizer *opt, d9d_save_set *out)
{
    return d9d_save_set_make(params, opt,
                             r->c->trainer.model_stage_factory.checkpoint_only_trainable_parameters,
                             &r->arena, out);
}

/* All of it against all of the model, whatever of that will be here. */
static d9d_status state_check_whole(run *r, const char *path)
{
    d9d_optimizer *opt;
    d9d_save_set set;
    d9d_status st;

    D9D_TRY(d9d_optimizer_create(&r->c->optimizer, NULL, &r->engine.all, r->state.seed, &opt));
    st = set_make(r, &r->engine.all, opt, &set);
    if (st == D9D_OK)
        st = state_check(r, path, &set);
    d9d_optimizer_free(opt);
    return st;
}

static d9d_status state_resume(run *r, const char *path)
{
    D9D_TRY(d9d_save_read(path, &r->set, &r->state));
    r->state.parent = r->saved_step = r->state.step;
    d9d_log_info(r->log, "resuming after step %lld from %s", (long long)r->state.step, path);
    return D9D_OK;
}

/* A directory that holds a run is gone on with, or refused. */
static d9d_status dir_check(run *r)
{
    const d9d_trainer_section *t = &r->c->trainer;

    r->goes_on = d9d_fs_exists(r->dir.metrics);
    if (!t->checkpointing.resume && (r->goes_on || !d9d_fs_is_vacant(r->dir.checkpoints)))
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: holds a run already; set trainer.checkpointing.resume "
                        "or another trainer.run.dir",
                        r->dir.path);
    return D9D_OK;
}

/* Rank 0 looks, for all of them. */
static d9d_status checkpoint_find(run *r, const char **path)
{
    d9d_status st = D9D_OK;

    *path = NULL;
    if (r->rank == 0 && r->c->trainer.checkpointing.resume)
        st = d9d_save_newest(r->dir.checkpoints, r->log, &r->arena, path);
    D9D_TRY(d9d_boot_agree(r->where->boot, st));
    return d9di_launch_tell(r->where->boot, &r->arena, path);
}

static bool steps_done(const run *r)
{
    return r->state.step >= r->total_steps;
}

static const char *export_dir(const run *r)
{
    return r->c->export_to != NULL ? r->c->export_to : r->dir.export;
}

/* Nothing is left to do: every step is done and the model was exported. */
static bool run_complete(const run *r)
{
    return steps_done(r) && !d9d_fs_is_vacant(export_dir(r));
}

/* What the end of the run would refuse is refused at its beginning. */
static d9d_status export_check(const run *r)
{
    d9d_status st = d9d_weights_check_export(&r->engine.spec);

    if (st == D9D_ENOTSUP)
        d9d_log_warn(r->log, "%s; the model will be written in d9d's own layout",
                     d9d_err_message());
    else
        D9D_TRY(st);
    if (steps_done(r) || d9d_fs_is_vacant(export_dir(r)))
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG, "%s: the finished model is to go there, and it is not empty",
                    export_dir(r));
}

static d9di_engine_how engine_how(const run *r, bool resumes)
{
    const d9d_trainer_section *t = &r->c->trainer;

    return (d9di_engine_how){
        .where = r->where,
        .mesh = &r->c->mesh,
        .provider = &r->c->model_provider,
        .peft = &r->c->peft,
        .source = t->model_stage_factory.source_checkpoint,
        .adapter = t->model_stage_factory.source_adapter,
        .data = &r->data,
        .seed = (uint64_t)t->determinism.base_seed,
        .pipe = d9d_job_pipe(&t->pipelining),
        .micros = r->n_micro,
        .task = &r->task,
        .train = true,
        .initialise = !resumes || t->model_stage_factory.checkpoint_only_trainable_parameters,
        .optimizer = r->optimizer,
        .gradients = &t->gradient_manager,
        .timeout_s = (double)t->timeout.init_timeout,
        .flight = r->dir.flight,
    };
}

/* Ranks that have other samples than this one, and its number among them. */
static int64_t replicas(const run *r)
{
    return r->c->mesh.data_parallel_replicate * r->c->mesh.data_parallel_shard;
}
static int replica(const run *r)
{
    return d9d_mesh_index(r->engine.mesh, D9D_AXES_DP);
}

/* What the configuration says, against the data and the run directory. */
static d9d_status config_check(run *r)
{
    const d9d_trainer_section *t = &r->c->trainer;

    D9D_TRY(d9di_task_open(&r->c->task, &r->task));
    r->task.metrics = &r->metrics;
    D9D_TRY(d9di_events_open(r->where, &r->c->model_provider, &r->task, &r->events));
    D9D_TRY(tell(r, "train.configuration.start", (d9d_event){.boot = r->where->boot}));
    D9D_TRY(d9d_degrees_check(&r->c->mesh, d9d_boot_size(r->where->boot)));
    D9D_TRY(d9d_job_check_batching(&r->c->mesh, &t->batching));
    D9D_TRY(d9di_run_dir_name(t, &r->arena, &r->dir));
    r->n_micro = t->batching.global_batch_size / replicas(r) / t->batching.microbatch_size;
    D9D_TRY(data_open(r));
    D9D_TRY(tell(r, "train.configuration.data_loader", (d9d_event){.loader = r->data.loader}));
    D9D_TRY(d9di_metrics_open(&r->c->metrics, &r->arena, &r->metrics));
    D9D_TRY(d9d_lr_create(&r->c->lr_scheduler, "lr_scheduler", r->total_steps, &r->lr));
    return dir_check(r);
}

/* The model, whole and without memory, against its sources. */
static d9d_status model_check(run *r, const char *resume_from)
{
    const d9di_engine_how how = engine_how(r, resume_from != NULL);

    D9D_TRY(d9di_engine_open(&how, &r->engine));
    D9D_TRY(
        d9d_optimizer_create(&r->c->optimizer, NULL, &r->engine.params, how.seed, &r->optimizer));
    D9D_TRY(state_fresh(r));
    if (resume_from != NULL)
        D9D_TRY(state_check_whole(r, resume_from));
    return export_check(r);
}

/* All that can be wrong without memory for a model.  `resume_from` is NULL when the run begins. */
static d9d_status run_check(run *r, const char **resume_from)
{
    d9d_boot *boot = r->where->boot;

    D9D_TRY(d9d_boot_agree(boot, d9di_launch_checked(config_check(r))));
    D9D_TRY(checkpoint_find(r, resume_from));
    return d9d_boot_agree(boot, d9di_launch_checked(model_check(r, *resume_from)));
}

/* Saves other than the last are to be written behind, where there are any. */
static d9d_status saver_open(run *r)
{
    const struct d9d_checkpointing_section *c = &r->c->trainer.checkpointing;
    const int64_t p = c->period_steps;
    const d9di_saver_how how = {
        .dir = r->dir.checkpoints,
        .keep = c->num_to_keep,
        .behind = c->asynchronous && p > 0 && (r->state.step / p + 1) * p < r->total_steps,
        .set = &r->set,
        .dev = r->engine.dev,
        .mesh = r->engine.mesh,
        .timeout_s = (double)r->c->trainer.timeout.init_timeout,
        .tracker = r->tracker,
        .log = r->log,
    };

    return r->where->trial ? D9D_OK : d9di_saver_open(&how, &r->saver);
}

static d9d_status model_fill(run *r, const char *resume_from)
{
    const d9di_engine_how how = engine_how(r, resume_from != NULL);
    d9di_engine *e = &r->engine;

    D9D_TRY(d9di_data_tell_padding(&r->data, r->c->trainer.batching.microbatch_size, r->log));
    D9D_TRY(d9di_engine_fill(e, &how));
    D9D_TRY(tell(r, "train.configuration.model_stages",
                 (d9d_event){.models = e->models, .n_models = e->n_stages}));
    D9D_TRY(d9d_optimizer_fill(r->optimizer, e->dev));
    D9D_TRY(tell(r, "train.configuration.optimizer", (d9d_event){.optimizer = r->optimizer}));
    D9D_TRY(tell(r, "train.configuration.lr_scheduler", (d9d_event){.lr = r->lr}));
    D9D_TRY(set_make(r, &e->params, r->optimizer, &r->set));
    r->set.partial = r->set.partial || e->program.ranks > 1; /* other stages' */
    D9D_TRY(d9d_step_end_open(e->dev, r->n_micro, e->world, &r->end));
    for (int i = 0; i < 2; i++) {
        D9D_TRY(d9d_readback_create(e->dev, sizeof(d9d_step_report), &r->pending[i].report));
        r->pending[i].metrics = d9d_arena_alloc(&r->arena, (r->metrics.width + 1) * sizeof(double));
        if (r->pending[i].metrics == NULL)
            return D9D_FAIL(D9D_ENOMEM, "metrics: %zu values", r->metrics.width);
    }
    d9d_log_debug(r->log, "%s: all of the model has its memory", e->dev->name);
    D9D_TRY(saver_open(r));
    return resume_from != NULL ? state_resume(r, resume_from) : D9D_OK;
}

static d9d_status sinks_open(run *r, const char *id)
{
    const d9d_run_section *section = &r->c->trainer.run;
    const d9d_sink_run about = {
        .id = id,
        .name = section->name,
        .description = section->description,
        .dir = r->dir.path,
        .hparams = section->hparams,
        .restarts = d9d_tracker_restarts(r->tracker),
        .step = r->state.step,
        .log = r->log,
    };

    D9D_TRY(d9d_sinks_open(&r->c->trainer.logging.tracker, &about, &r->sinks));
    d9d_tracker_attach(r->tracker, r->sinks);
    return D9D_OK;
}

/* The records, which one process at a time may write. */
static d9d_status record_open(run *r, const json_t *resolved)
{
    const d9d_run_section *section = &r->c->trainer.run;
    char id[D9DI_RUN_ID];

    if (r->rank > 0)
        return D9D_OK;
    D9D_TRY(d9d_fs_mkdirs(r->dir.path));
    D9D_TRY(d9d_tracker_open(r->dir.metrics, &r->tracker));
    if (r->c->trainer.logging.samples)
        D9D_TRY(d9di_ledger_open(r->dir.samples, r->state.step, &r->ledger));
    if (r->goes_on && !steps_done(r))
        D9D_TRY(d9d_tracker_restart(r->tracker, r->state.step));
    D9D_TRY(d9di_run_dir_make(&r->dir, section, resolved, d9d_tracker_restarts(r->tracker), id));
    return r->where->trial ? D9D_OK : sinks_open(r, id);
}

static void run_close(run *r)
{
    d9d_trace_drop(r->trace);
    d9di_saver_close(r->saver);
    d9d_tracker_close(r->tracker);
    d9d_sinks_close(r->sinks);
    d9d_lr_free(r->lr);
    d9d_optimizer_free(r->optimizer);
    for (int i = 0; i < 2; i++)
        d9d_readback_free(r->pending[i].report);
    d9d_step_end_release(&r->end);
    d9di_metrics_release(&r->metrics);
    d9di_engine_release(&r->engine);
    d9di_task_close(&r->task);
    d9d_feed_close(r->feed);
    d9di_data_release(&r->data);
    d9di_ledger_release(&r->ledger);
    d9d_stop_close(r->stop);
    d9d_events_free(r->events);
    d9d_arena_release(&r->arena);
}

/* --- one step ------------------------------------------------------------------------- */

/* This rank's share of them. */
static double batch_flops(const run *r, const d9d_batch *b)
{
    const d9d_model *m = r->engine.whole;
    double sum = 0;

    for (int64_t i = 0; i < b->rows; i++)
        sum += (double)b->lengths[i] * d9d_model_flops(m, b->lengths[i]);
    return sum / d9d_mesh_count(r->engine.mesh, D9D_AXES_CP | D9D_AXIS(TP) | D9D_AXIS(PP));
}

/* The batches of the steps that are left. */
static d9d_status feed_open(run *r)
{
    const d9d_trainer_section *c = &r->c->trainer;
    const int64_t g = c->batching.global_batch_size, left = r->total_steps - r->state.step;
    const d9d_feed_how how =
        d9di_data_feed(&c->data_loading, r->state.samples, g, replica(r), replicas(r),
                       c->batching.microbatch_size, r->state.samples + left * g);

    d9d_feed_close(r->feed);
    r->feed = NULL;
    return d9d_feed_open(r->data.loader, &how, &r->feed);
}

/* Targets and operations of this rank's part of a step. */
typedef struct tally {
    run *r;
    int64_t targets;
    double flops;
} tally;

static d9d_status micro_next(void *arg, d9d_batch *b)
{
    tally *t = arg;

    D9D_TRY(d9d_feed_next(t->r->feed, b));
    t->targets += d9di_task_targets(&t->r->task, b);
    t->flops += batch_flops(t->r, b);
    return D9D_OK;
}

/* Forward and backward of every micro-batch. */
static d9d_status step_learn(run *r, int64_t *targets, double *flops)
{
    tally t = {.r = r};

    D9D_TRY(d9di_engine_learn(&r->engine, &(d9di_flow){.next = micro_next, .arg = &t}, r->n_micro,
                              &r->end.loss));
    *targets = t.targets;
    *flops = t.flops;
    return D9D_OK;
}

static d9di_samples_text step_samples(const run *r)
{
    return d9di_data_say(&r->data, r->state.samples, r->c->trainer.batching.global_batch_size);
}

/* The loss of micro-batch i of this rank is not finite: is it the weights? */
static d9d_status loss_blame(run *r, int64_t i, double loss)
{
    const int64_t micro = r->c->trainer.batching.microbatch_size;
    const int64_t first = r->state.samples + (replica(r) * r->n_micro + i) * micro;
    const d9di_samples_text s = d9di_data_say(&r->data, first, micro);
    const d9d_param *culprit;
    char weights[600] = "every parameter is finite";
    int64_t at;

    D9D_TRY(d9d_data_find_nonfinite(r->engine.dev, &r->engine.params, &culprit, &at));
    if (culprit != NULL)
        (void)snprintf(weights, sizeof(weights), "%.500s is not finite at element %lld",
                       culprit->name, (long long)at);
    return D9D_FAIL(D9D_ENUMERIC, "step %lld: the loss of %s is %s; %s; nothing was updated",
                    (long long)(r->state.step + 1), s.text, d9di_nonfinite_word(loss), weights);
}

/* Is there anything in this rank's gradients? */
static d9d_status gradient_blame(run *r)
{
    const d9d_param *culprit;
    int64_t at;

    D9D_TRY(d9d_grad_find_nonfinite(r->engine.dev, &r->engine.params, &culprit, &at));
    if (culprit == NULL)
        return D9D_OK;
    return D9D_FAIL(D9D_ENUMERIC,
                    "step %lld: the gradient of %s is not finite at element %lld; "
                    "%s; nothing was updated",
                    (long long)(r->state.step + 1), culprit->name, (long long)at,
                    step_samples(r).text);
}

/* What this rank finds wrong with the step that it has just done again. */
static d9d_status blame_here(run *r, const d9d_step_report *report)
{
    double *sums = d9d_arena_alloc(&r->arena, (size_t)r->n_micro * sizeof(double));

    if (sums == NULL)
        return D9D_FAIL(D9D_ENOMEM, "train: %lld micro-batches", (long long)r->n_micro);
    D9D_TRY(d9d_device_download(r->engine.dev, sums, d9d_tensor_data(&r->end.loss),
                                (uint64_t)r->n_micro * sizeof(double)));
    for (int64_t i = 0; i < r->n_micro && d9di_engine_ends(&r->engine); i++)
        if (!isfinite(sums[i]))
            return loss_blame(r, i, sums[i]);
    return isfinite(report->loss) ? gradient_blame(r) : D9D_OK;
}

/* A step whose loss or norm is not finite ends the run.  Nothing has been updated since it began,
 * so doing it again shows what is wrong with it, and on which rank. */
static d9d_status step_blame(run *r, const pending *p, const d9d_step_report *report)
{
    int64_t targets;
    double flops;
    d9d_status st;

    r->state = p->before;
    D9D_TRY(feed_open(r));
    D9D_TRY(step_learn(r, &targets, &flops));
    D9D_TRY(d9d_boot_agree(r->where->boot, blame_here(r, report)));
    if (isfinite(report->loss))
        st = D9D_FAIL(D9D_ENUMERIC,
                      "step %lld: the norm of the gradient is %s though every element is finite; "
                      "%s; nothing was updated",
                      (long long)(r->state.step + 1), d9di_nonfinite_word(report->norm),
                      step_samples(r).text);
    else
        st = D9D_FAIL(D9D_ENUMERIC,
                      "step %lld: the loss was %s, and is finite when computed again: %s does not "
                      "compute reliably; nothing was updated",
                      (long long)(r->state.step + 1), d9di_nonfinite_word(report->loss),
                      r->engine.dev->name);
    return d9d_boot_agree(r->where->boot, st);
}

/* Has some rank a target in this step?  One that has none itself looks at what the others have, so
 * that all know without a word. */
static d9d_status step_counts(run *r, int64_t targets, bool *out)
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

/* Divided by the targets, clipped and updated with one factor. */
static d9d_status step_update(run *r, pending *p, int64_t targets)
{
    const d9d_mesh *m = r->engine.mesh;
    const bool first = d9d_mesh_index(m, D9D_AXES_CP | D9D_AXIS(TP) | D9D_AXIS(PP)) == 0;
    const d9d_step_own own = {
        .targets = first ? (double)targets : 0,
        .shadow = d9d_mesh_index(m, D9D_AXIS(TP)) > 0 || !d9di_engine_ends(&r->engine),
        .flag = (d9d_stop_reason(r->stop) != NULL) +
                (r->rank == 0 && r->engine.world != NULL && d9d_stop_doze(r->stop) ? TIRED : 0),
        .saved = d9di_saver_number(r->saver, p->before.step),
    };

    D9D_TRY(d9d_step_end_queue(&r->end, &r->engine.params, &own,
                               r->c->trainer.gradient_clipping.max_norm));
    d9d_trace_lap(r->engine.dev, "norm", "");
    D9D_TRY(d9di_saver_hold(r->saver));
    D9D_TRY(tell_step(r, "train.optimizer_step.pre"));
    D9D_TRY(d9d_optimizer_step(r->optimizer, p->lr, &r->end.scale));
    D9D_TRY(tell_step(r, "train.optimizer_step.post"));
    d9d_trace_lap(r->engine.dev, "optimizer", "");
    return d9d_readback_begin(p->report, d9d_tensor_data(&r->end.report));
}

/* Does step k, counted from 1, have a record? */
static bool is_recorded(const run *r, int64_t k)
{
    return d9d_step_period_due(r->c->trainer.logging.period_steps, k, r->total_steps,
                               D9D_DUE_ON_LAST | D9D_DUE_AFTER_STEP);
}

/* Queue all of the next step; the host waits for nothing. */
static d9d_status step_queue(run *r)
{
    pending *p = &r->pending[r->state.step % 2];
    int64_t targets;

    p->before = r->state;
    p->start_ns = d9d_clock_ns();
    p->lr = d9d_optimizer_lr(&r->c->optimizer) * d9d_lr_at(r->lr, r->state.step);
    p->data_ns = -d9d_feed_waited_ns(r->feed);
    D9D_TRY(tell_step(r, "train.step.pre"));
    D9D_TRY(tell_step(r, "train.forward_backward.pre"));
    D9D_TRY(step_learn(r, &targets, &p->flops));
    D9D_TRY(tell_step(r, "train.forward_backward.post"));
    if (is_recorded(r, r->state.step + 1))
        D9D_TRY(d9di_metrics_take(&r->metrics, r->engine.dev, r->engine.world, p->metrics));
    p->data_ns += d9d_feed_waited_ns(r->feed);
    D9D_TRY(step_counts(r, targets, &p->counts));
    if (p->counts)
        D9D_TRY(step_update(r, p, targets));
    else
        d9d_log_warn(r->log, "step %lld: no target in %s; nothing to learn",
                     (long long)(r->state.step + 1), step_samples(r).text);
    D9D_TRY(tell_step(r, "train.step.post"));
    p->open = true;
    r->state.step++;
    r->state.samples += r->c->trainer.batching.global_batch_size;
    return D9D_OK;
}

/* What may take long is whatever is not a step: beginning, the first one, saving, the end. */
static void allow(run *r, bool much)
{
    const struct d9d_timeout_section *t = &r->c->trainer.timeout;

    d9d_mesh_set_timeout(r->engine.mesh, (double)(much ? t->init_timeout : t->step_timeout));
}

/* What came of a queued step. */
static d9d_status step_take(run *r, pending *p, step_result *out)
{
    const double peak = r->engine.spec.options.dtype == D9D_BF16 ? r->engine.dev->peak_flops : 0;
    const d9d_step_report none = {0}, *report = &none;
    const void *back;
    int64_t now;

    p->open = false;
    if (p->counts) {
        D9D_TRY(d9d_readback_end(p->report, &back));
        report = back;
        if (!isfinite(report->loss) || !isfinite(report->norm))
            return step_blame(r, p, report);
    }
    if (r->last_ns == 0)
        allow(r, false);
    now = d9d_clock_ns();
    r->told = r->told || fmod(report->flags, TIRED) > 0;
    r->tired = r->tired || report->flags >= TIRED;
    D9D_TRY(d9di_saver_told(r->saver, p->before.step, report->saved));
    r->state.tokens += (int64_t)report->targets;
    *out = (step_result){
        .loss = p->counts ? report->loss / report->targets : 0,
        .norm = report->norm,
        .lr = p->lr,
        .ms = (double)(now - (p->start_ns > r->last_ns ? p->start_ns : r->last_ns)) * 1e-6,
        .data_ms = (double)p->data_ns * 1e-6,
        .targets = (int64_t)report->targets,
        .step = p->before.step + 1,
        .tokens = r->state.tokens,
        .samples = p->before.samples + r->c->trainer.batching.global_batch_size,
        .metrics = p->metrics,
    };
    out->mfu = peak > 0 ? p->flops / (out->ms * 1e-3) / peak : NAN;
    r->last_ns = now;
    return D9D_OK;
}

/* --- around the steps ------------------------------------------------------------------- */

static d9d_status step_record(run *r, const step_result *s)
{
    const d9d_trainer_section *t = &r->c->trainer;
    bool with_norm = d9d_step_period_due(t->gradient_clipping.log_total_steps, s->step,
                                         r->total_steps, D9D_DUE_AFTER_STEP);

    if (r->rank > 0)
        return D9D_OK;
    if (t->logging.samples)
        D9D_TRY(d9di_ledger_add(&r->ledger, s->step, r->data.loader,
                                s->samples - t->batching.global_batch_size,
                                t->batching.global_batch_size));
    if (!is_recorded(r, s->step))
        return D9D_OK;
    return d9d_tracker_step(r->tracker, &(d9d_step_record){
                                            .step = s->step,
                                            .loss = s->loss,
                                            .grad_norm = with_norm ? s->norm : NAN,
                                            .lr = s->lr,
                                            .tokens = s->tokens,
                                            .samples = s->samples,
                                            .step_ms = s->ms,
                                            .data_ms = s->data_ms,
                                            .tokens_per_s = (double)s->targets / (s->ms * 1e-3),
                                            .mfu = s->mfu,
                                            .mem_bytes = d9d_device_memory(r->engine.dev).peak,
                                            .names = r->metrics.names,
                                            .values = s->metrics,
                                            .n = r->metrics.width,
                                        });
}

/* No checkpoint without its records. */
static d9d_status record_sync(run *r)
{
    if (r->rank > 0)
        return D9D_OK;
    D9D_TRY(d9d_tracker_sync(r->tracker));
    return r->c->trainer.logging.samples ? d9di_ledger_sync(&r->ledger) : D9D_OK;
}

/* `last`: nothing follows that could be done meanwhile. */
static d9d_status save(run *r, bool last)
{
    if (r->where->trial)
        return D9D_OK;
    allow(r, true);
    if (r->saved_step != r->state.step) {
        D9D_TRY(record_sync(r));
        D9D_TRY(d9di_saver_begin(r->saver, &r->state, last));
        r->saved_step = r->state.step;
    }
    if (last)
        D9D_TRY(d9di_saver_finish(r->saver));
    allow(r, false);
    return D9D_OK;
}

/* All ranks fail together: the checkpoint that is being written was not to blame. */
static d9d_status save_rest(run *r, d9d_status st)
{
    d9d_err_copy why;

    if (st == D9D_OK || (d9d_boot_size(r->where->boot) > 1 && !d9d_boot_agreed(r->where->boot)))
        return st;
    d9d_err_save(&why, st);
    allow(r, true);
    if (d9di_saver_finish(r->saver) != D9D_OK)
        d9d_log_warn(r->log, "%s", d9d_err_message());
    return d9d_boot_agree(r->where->boot, d9d_err_restore(&why));
}

/* --- traces ------------------------------------------------------------------------------- */

/* Is step k, counted from 1, one of those to trace? */
static bool trace_wants(const run *r, int64_t k)
{
    const d9d_profiling_section *p = r->c->trainer.profiling;

    return p != NULL && p->enabled &&
           (k - 1) % p->period_steps >= p->period_steps - p->active_steps;
}

static d9d_status trace_write(run *r)
{
    const d9d_profiling_section *p = r->c->trainer.profiling;
    char *dir = d9d_arena_printf(
        &r->arena, "%s%s%s/step-%08lld", p->traces_dir[0] == '/' ? "" : r->dir.path,
        p->traces_dir[0] == '/' ? "" : "/", p->traces_dir, (long long)r->state.step);
    char *path = dir != NULL ? d9d_arena_printf(&r->arena, "%s/rank-%d.json", dir, r->rank) : NULL;
    d9d_trace *t = r->trace;
    d9d_buf top = {0};
    d9d_status st;

    r->trace = NULL;
    st = path == NULL ? D9D_FAIL(D9D_ENOMEM, "trace: out of memory") : d9d_fs_mkdirs(dir);
    if (st == D9D_OK)
        st = d9d_trace_close(t, path, r->rank, &top);
    else
        d9d_trace_drop(t);
    if (st == D9D_OK)
        d9d_log_info(r->log, "%s: %s", path, top.data);
    d9d_buf_release(&top);
    return st;
}

/* The next step, traced where the configuration says so. */
static d9d_status step_traced(run *r)
{
    if (r->trace == NULL && trace_wants(r, r->state.step + 1))
        D9D_TRY(d9d_trace_open(r->engine.dev, &r->trace));
    d9d_trace_begin(r->engine.dev, "step %lld", (long long)(r->state.step + 1));
    D9D_TRY(step_queue(r));
    d9d_trace_end(r->engine.dev);
    if (r->trace != NULL && (r->state.step == r->total_steps || !trace_wants(r, r->state.step + 1)))
        return trace_write(r);
    return D9D_OK;
}

/* --- the loop ------------------------------------------------------------------------------ */

/* The loop, and what it tells people. */
typedef struct talk {
    d9d_progress progress;
    d9d_train_summary *summary;
} talk;

/* Take what queued steps have given, oldest first; all of them, or those that are older than the
 * newest, and alone whatever is there without waiting: many ranks learn of a step at one point. */
static d9d_status steps_take(run *r, bool all, talk *t)
{
    for (int64_t i = 2; i > 0; i--) {
        pending *p = &r->pending[(r->state.step + i) % 2];
        step_result s = {.loss = NAN};

        if (!p->open)
            continue;
        if (i == 1 && !all &&
            (r->engine.world != NULL || (p->counts && !d9d_readback_ready(p->report))))
            continue;
        D9D_TRY(step_take(r, p, &s));
        if (isnan(t->summary->first_loss))
            t->summary->first_loss = s.loss;
        t->summary->last_loss = s.loss;
        d9d_progress_note(&t->progress, "loss %.4f  lr %.3g  %.0f tok/s", s.loss, s.lr,
                          (double)s.targets / (s.ms * 1e-3));
        d9d_progress_add(&t->progress, 1);
        D9D_TRY(step_record(r, &s));
    }
    return D9D_OK;
}

/* Alone a signal counts at once; of many ranks some have none, so it counts when all have heard of
 * it, with the report of a step. */
static bool must_leave(const run *r)
{
    return r->engine.world != NULL ? r->told : d9d_stop_reason(r->stop) != NULL;
}

/* Told to leave: everything that was done is kept. */
static d9d_status leave(run *r)
{
    const char *reason = d9d_stop_reason(r->stop);
    d9d_status st;

    D9D_TRY(save(r, true));
    st = D9D_FAIL(D9D_EINTR, "%s: saved after step %lld of %lld in %s",
                  reason != NULL ? reason : "a signal to another rank", (long long)r->state.step,
                  (long long)r->total_steps, r->dir.checkpoints);
    return d9d_boot_agree(r->where->boot, st);
}

/* Rank 0 is asked to sleep, or has said so to all. */
static bool must_sleep(run *r)
{
    if (r->engine.world == NULL)
        r->tired = d9d_stop_doze(r->stop);
    return r->tired;
}

/* What the job holds of its devices goes to the host until SIGUSR2 comes again. */
static d9d_status rest(run *r)
{
    const d9di_sleep_how how = {.dev = r->engine.dev,
                                .mesh = r->engine.mesh,
                                .boot = r->where->boot,
                                .stop = r->stop,
                                .log = r->log};

    r->tired = false;
    allow(r, true);
    D9D_TRY(d9di_saver_finish(r->saver));
    D9D_TRY(tell_step(r, "train.sleep.pre"));
    for (size_t k = 0; k < r->engine.n_stages; k++)
        d9d_sharded_moves(r->engine.stages[k].sharded);
    D9D_TRY(d9di_sleep_begin(&how));
    D9D_TRY(tell_step(r, "train.sleep.post"));
    D9D_TRY(d9di_sleep_through(&how));
    D9D_TRY(tell_step(r, "train.wake.pre"));
    D9D_TRY(d9di_sleep_end(&how));
    D9D_TRY(tell_step(r, "train.wake.post"));
    allow(r, false);
    r->last_ns = d9d_clock_ns();
    return D9D_OK;
}

static d9d_status steps_run(run *r, talk *t)
{
    const d9d_trainer_section *c = &r->c->trainer;
    const int64_t first = r->state.step;

    while (r->state.step < r->total_steps) {
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
        D9D_TRY(step_traced(r));
        r->waits += r->state.step > first + 2 ? r->engine.dev->waits - waits : 0;
        due = d9d_step_period_due(c->checkpointing.period_steps, r->state.step, r->total_steps,
                                  D9D_DUE_ON_LAST | D9D_DUE_AFTER_STEP);
        D9D_TRY(steps_take(r, due || r->state.step == r->total_steps, t));
        if (due)
            D9D_TRY(save(r, r->state.step == r->total_steps));
    }
    return D9D_OK;
}

static d9d_status steps_watch(run *r, d9d_train_summary *out)
{
    talk t = {.summary = out};
    d9d_status st;

    D9D_TRY(feed_open(r));
    D9D_TRY(tell(r, "train.ready", (d9d_event){.tracker = r->tracker}));
    d9d_progress_start(&t.progress, r->log, "train", "steps", (uint64_t)r->total_steps);
    t.progress.first = t.progress.done = (uint64_t)r->state.step;
    st = steps_run(r, &t);
    d9d_progress_end(&t.progress);
    D9D_TRY(st);
    D9D_TRY(d9di_task_finalize(&r->task));
    return tell(r, "train.finished", (d9d_event){.user = NULL});
}

/* --- the end ------------------------------------------------------------------------------ */

/* Parameters alone, for a run that keeps no checkpoints, or not with all of them. */
static d9d_status parts_save(run *r, const char *dir)
{
    d9d_arena a = {0};
    d9d_save_set all, here;
    d9d_status st;

    D9D_TRY_OR(st, d9d_save_set_make(&r->engine.params, NULL, false, &a, &all), out);
    D9D_TRY_OR(st, d9d_save_set_here(&all, &a, &here), out);
    st = d9d_save_write(dir, &r->state, &here, r->engine.mesh, r->log);
out:
    d9d_arena_release(&a);
    return st;
}

/* Those of the model, or of its checkpoint `saved`, into the run directory; *out is NULL where
 * there are none. */
static d9d_status adapters_export(run *r, const char *saved, d9d_adapters **out)
{
    const char *source = r->c->trainer.model_stage_factory.source_checkpoint;

    *out = NULL;
    if (r->engine.adapters.n == 0)
        return D9D_OK;
    D9D_TRY(d9di_engine_adapters(&r->engine, saved, out));
    if (r->rank > 0)
        return D9D_OK;
    return d9di_engine_adapters_write(&r->engine, *out, source, r->dir.adapter, r->log);
}

/* This process has all weights. */
static d9d_status export_here(run *r, const char *dir)
{
    d9d_adapters *ad = NULL;
    d9d_status st = adapters_export(r, NULL, &ad);

    if (st == D9D_OK)
        st = d9d_weights_export(&r->engine.spec, &r->engine.base, ad, dir, r->log);
    d9d_adapters_free(ad);
    return st;
}

/* No rank has all weights: the model is made of what all have saved. */
static d9d_status export_saved(run *r, const char *dir)
{
    const bool saved = r->saved_step == r->state.step && !r->set.partial;
    const char *parts =
        saved ? r->dir.checkpoints : d9d_arena_printf(&r->arena, "%s/export.parts", r->dir.path);
    const char *path = parts != NULL ? d9d_save_path(&r->arena, parts, r->state.step) : NULL;
    d9d_adapters *ad = NULL;
    d9d_status st;

    if (path == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: the name of a checkpoint", r->dir.path);
    if (!saved)
        D9D_TRY(parts_save(r, parts));
    D9D_TRY(d9d_boot_agree(r->where->boot, adapters_export(r, path, &ad)));
    st = d9d_weights_export_saved(&r->engine.spec, path, ad, dir, r->where->boot, r->log);
    d9d_adapters_free(ad);
    D9D_TRY(st);
    return saved || r->rank > 0 ? D9D_OK : d9d_fs_remove_tree(parts);
}

static d9d_status export(run *r, d9d_train_summary *out)
{
    const char *dir = export_dir(r);
    const char *wanted = !r->where->trial && d9d_fs_is_vacant(dir) ? "" : NULL;

    D9D_TRY(d9di_launch_tell(r->where->boot, &r->arena, &wanted));
    if (wanted != NULL && r->engine.world != NULL)
        D9D_TRY(export_saved(r, dir));
    else if (wanted != NULL)
        D9D_TRY(export_here(r, dir));
    (void)snprintf(out->export_dir, sizeof(out->export_dir), "%s", dir);
    return D9D_OK;
}

static void summarise(const run *r, d9d_train_summary *out)
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

/* From the memory of the model to the end. */
static d9d_status run_through(run *r, const char *resume_from, d9d_train_summary *out)
{
    D9D_TRY(model_fill(r, resume_from));
    D9D_TRY(save_rest(r, steps_watch(r, out)));
    allow(r, true);
    return export(r, out);
}

/* The last record of this life.  A failure to write it does not hide the one before. */
static d9d_status record_end(run *r, d9d_status st)
{
    const char *how = st == D9D_OK ? "done" : st == D9D_EINTR ? "saved" : "failed";
    d9d_err_copy why;

    if (r->rank > 0)
        return st;
    if (st == D9D_OK)
        return d9d_tracker_end(r->tracker, how, r->state.step);
    d9d_err_save(&why, st);
    (void)!d9d_tracker_end(r->tracker, how, r->state.step);
    return d9d_err_restore(&why);
}

/* A life of the run that has something to do. */
static d9d_status run_live(run *r, const json_t *resolved, const char *resume_from,
                           d9d_train_summary *out)
{
    D9D_TRY(record_open(r, resolved));
    return record_end(r, run_through(r, resume_from, out));
}

d9d_status d9d_train(const d9d_train_config *config, const json_t *resolved, const d9d_job *where,
                     d9d_train_summary *out)
{
    run r = {.c = config,
             .where = where,
             .log = where->log,
             .rank = d9d_boot_rank(where->boot),
             .saved_step = -1};
    const int64_t margin = config->trainer.timeout.save_margin;
    d9d_train_summary summary = {.first_loss = NAN, .last_loss = NAN};
    const char *resume_from = NULL;
    d9d_status st;

    D9D_TRY_OR(st, d9d_stop_open(r.rank == 0 ? margin : D9D_STOP_NO_LIMIT, r.log, &r.stop), out);
    D9D_TRY_OR(st, run_check(&r, &resume_from), out);
    summary.first_step = r.state.step;
    if (steps_done(&r))
        d9d_log_info(r.log, "all %lld steps are done already", (long long)r.total_steps);
    if (run_complete(&r))
        (void)snprintf(summary.export_dir, sizeof(summary.export_dir), "%s", export_dir(&r));
    else
        st = run_live(&r, resolved, resume_from, &summary);
out:
    summarise(&r, &summary);
    *out = summary;
    st = d9di_launch_failed(where->boot, r.engine.mesh, st);
    run_close(&r);
    return st;
}
