/* infer.c - the inference loop.  See d9d/infer/infer.h. */
#include "d9d/infer/infer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/plugin_call.h"
#include "d9d/base/thread.h"
#include "d9d/comm/exchange.h"
#include "d9d/job/preemption.h"
#include "engine/job_start.h"
#include "engine/profiler.h"
#include "infer/generate.h"
#include "infer/infer_job.h"
#include "infer/infer_rows.h"

typedef struct infer_run {
    const d9d_infer_config *c;
    const d9d_job *where;
    const d9d_log *log;
    int rank;
    d9d_preemption *stop;
    d9d_job_events *events;
    d9d_arena arena;           /* what the events refer to */
    int64_t step, total_steps; /* in global batches */
    d9di_run_data data;
    d9d_prefetcher *feed;
    d9di_engine engine;
    const d9d_infer_task_kind *task;
    const d9d_job_output_section *output;
    d9di_task body; /* kind NULL: the model's own losses */
    d9di_infer_rows rows;
    d9d_hash key;                    /* on rank 0: hash of everything the output depends on */
    int64_t at, end;                 /* first sample of the next batch; number of samples */
    int64_t requests;                /* batches requested, of those that run together */
    bool has_rows;                   /* the newest batch has samples of this rank */
    d9d_batch_buffer *idle;          /* of a rank without samples */
    d9d_hf_sentence_modules modules; /* of the weights' folder, if the task asked */
    d9di_run_metrics metrics;
    d9di_profiler profiler;
    int64_t rounds; /* of batches that ran together, by this process */
} infer_run;

/* --- events --------------------------------------------------------------------------- */

static d9d_status trigger_event(const infer_run *r, const char *id, d9d_job_event e)
{
    e.size = sizeof(e);
    e.id = id;
    return d9d_job_events_trigger(r->events, &e);
}

static d9d_status trigger_step_event(const infer_run *r, const char *id)
{
    return trigger_event(r, id, (d9d_job_event){.step = r->step, .total_steps = r->total_steps});
}

/* --- the loop -------------------------------------------------------------------------------- */

static d9di_engine_opts engine_opts(const infer_run *r)
{
    return d9di_infer_engine_opts(r->c, r->where, &r->data, r->body.kind != NULL ? &r->body : NULL);
}

/* Metrics of classes, or of losses, and those of heads. */
static d9d_status metrics_open(infer_run *r)
{
    d9di_run_metrics_source sources[1 + D9D_TASK_PARTS_MAX] = {
        {.list = &r->c->metrics, .where = "metrics"}};
    size_t n;

    if (r->task->shape != NULL && r->c->metrics.n > 0)
        return D9D_FAIL(D9D_ECONFIG, "metrics: the task %s writes arrays, and no predictions",
                        r->c->task.choice->name);
    D9D_TRY(d9di_task_head_sources(&r->body, "task.heads", false, &r->arena, sources + 1, &n));
    D9D_TRY(d9di_run_metrics_open(sources, 1 + n, &r->arena, &r->metrics));
    if (r->metrics.n == 0)
        return D9D_OK;
    if (r->metrics.width > D9D_INFER_TASK_METRICS_MAX)
        return D9D_FAIL(D9D_ECONFIG, "metrics: %zu values, more than %d", r->metrics.width,
                        D9D_INFER_TASK_METRICS_MAX);
    r->rows.metrics = &r->metrics;
    return d9di_infer_rows_are_values(&r->rows)
               ? d9di_run_metrics_check_head(&r->metrics, &r->engine.spec.opts.head)
               : d9di_run_metrics_check_losses(&r->metrics);
}

/* The values over all rows, which rank 0 has counted. */
static d9d_status metrics_finish(infer_run *r, d9d_infer_task_summary *s)
{
    D9D_TRY(d9di_run_metrics_sync_begin(&r->metrics, r->engine.dev, r->engine.world));
    D9D_TRY(d9di_run_metrics_sync_end(&r->metrics));
    s->n_metrics = r->metrics.width;
    for (size_t i = 0; i < r->metrics.width; i++) {
        (void)snprintf(s->metrics[i].name, sizeof(s->metrics[i].name), "%s", r->metrics.names[i]);
        s->metrics[i].value = r->metrics.values[i];
    }
    return D9D_OK;
}

/* Classes that do not exclude each other have other probabilities. */
static d9d_status check_problem(const d9d_model_spec *m)
{
    if (m->provider->family == NULL)
        return D9D_OK;
    return d9d_family_check_problem(m->config,
                                    m->hf_config != NULL ? m->hf_config : "model_provider.model");
}

/* Tells the task what the folder of the weights says of vectors of texts. */
static d9d_status source_ask(infer_run *r, const char *source)
{
    if (source == NULL || r->body.kind == NULL || r->body.kind->set_source == NULL)
        return D9D_OK;
    D9D_TRY(d9d_hf_sentence_modules_read(source, &r->arena, &r->modules));
    return D9D_PLUGIN_CALL(r->c->task.choice->name, r->body.kind, set_source, r->body.self,
                           &r->modules);
}

/* Runs all checks that need no model memory. */
static d9d_status run_check(infer_run *r)
{
    d9di_engine_opts opts;

    if (r->task->body != NULL)
        D9D_TRY(d9di_task_open_kind(r->task->body, r->output, &r->body));
    D9D_TRY(
        d9di_job_start_open_events(r->where, &r->c->model_provider, NULL, &r->arena, &r->events));
    D9D_TRY(trigger_event(r, "inference.configuration.start",
                          (d9d_job_event){.bootstrap = r->where->bootstrap}));
    D9D_TRY(d9di_infer_check(r->c, r->where, r->output->output));
    if (r->c->data.n == 0)
        return D9D_FAIL(D9D_ECONFIG, "data.dataset: name the samples");
    D9D_TRY(d9di_run_data_open(&r->c->data, &r->c->trainer.data_loading, &r->c->mesh,
                               r->c->trainer.batching.microbatch_size, &r->data));
    d9di_run_data_warn_special(&r->data, NULL, r->log);
    D9D_TRY(d9di_run_data_check_end(&r->data));
    if (r->body.kind != NULL && (r->body.kind->collate != NULL || r->body.kind->set_data != NULL))
        D9D_TRY(d9di_task_set_data(&r->body, &r->data, 0));
    else if (r->body.kind != NULL && d9di_task_pooling(&r->body) != D9D_POOLING_NONE)
        D9D_TRY(d9di_run_data_set_no_targets(&r->data, true, false, r->c->task.choice->name));
    D9D_TRY(trigger_event(r, "inference.configuration.data_loader",
                          (d9d_job_event){.loader = r->data.loader}));
    opts = engine_opts(r);
    D9D_TRY(d9di_engine_open(&opts, &r->engine));
    D9D_TRY(check_problem(&r->engine.spec));
    D9D_TRY(source_ask(r, opts.source));
    D9D_TRY(metrics_open(r));
    return d9di_infer_rows_check(&r->rows);
}

/* Checks that all inputs are the same on all ranks. */
static d9d_status check_sources_uniform(infer_run *r, const json_t *resolved)
{
    const d9di_engine_opts opts = engine_opts(r);
    d9di_rank_consistency same = {0};

    d9di_rank_consistency_add_data(&same, &r->data);
    d9di_rank_consistency_add(&same, "the samples", d9d_loader_data_hash(r->data.loader));
    if (r->modules.file != NULL) {
        const int says[] = {(int)r->modules.pooling, r->modules.normalize};

        d9di_rank_consistency_add(&same, "modules.json of source_checkpoint",
                                  d9d_hash_bytes(says, sizeof(says)));
    }
    return d9di_infer_check_sources(r->where, &r->engine, &opts, resolved, &same,
                                    d9di_infer_rows_are_written(&r->rows) ? &r->key : NULL);
}

/* Hash of the metrics, of which the key has only the heads'. */
static d9d_status metrics_id(const json_t *resolved, uint64_t *out)
{
    d9d_buf text = {0};
    const json_t *list = json_object_get(resolved, "metrics");
    const d9d_status st = list != NULL ? d9d_json_put(&text, list, -1) : D9D_OK;

    if (st == D9D_OK)
        *out = d9d_hash_u64(text.data, text.len);
    d9d_buf_release(&text);
    return st;
}

/* Where to resume, and what was counted until there. */
typedef struct resume_point {
    int64_t first, counted_from;
    struct d9di_infer_totals totals;
} resume_point;

/* Rank 0 opens the output, and broadcasts where to resume. */
static d9d_status output_open(infer_run *r, const json_t *resolved, int64_t *first)
{
    d9d_bootstrap_blob *all;
    resume_point p = {0};
    d9d_status st = D9D_OK;

    if (r->rank == 0 && d9di_infer_rows_are_written(&r->rows))
        st = metrics_id(resolved, &r->rows.metrics_id);
    if (st == D9D_OK && r->rank == 0 && d9di_infer_rows_are_written(&r->rows))
        st = d9di_infer_rows_open(&r->rows, r->key, &r->engine.arena, &p.first);
    D9D_TRY(d9d_bootstrap_agree_status(r->where->bootstrap, st));
    p.counted_from = r->rows.counted_from;
    p.totals = r->rows.totals;
    D9D_TRY(
        d9d_bootstrap_allgather_arena(r->where->bootstrap, &p, sizeof(p), &r->engine.arena, &all));
    memcpy(&p, all[0].data, sizeof(p));
    *first = p.first;
    r->rows.counted_from = p.counted_from;
    r->rows.totals = r->rows.resumed = p.totals;
    return D9D_OK;
}

static d9d_status run_open(infer_run *r, const json_t *resolved, int64_t *first)
{
    d9di_engine_opts opts = engine_opts(r);

    D9D_TRY(output_open(r, resolved, first));
    D9D_TRY(d9di_job_start_flight_dir(r->where->bootstrap, r->output->output, &r->engine.arena,
                                      &opts.flight));
    D9D_TRY(d9d_batch_buffer_create(&r->idle));
    D9D_TRY(d9di_engine_materialize(&r->engine, &opts));
    return trigger_event(
        r, "inference.configuration.model_stages",
        (d9d_job_event){.models = r->engine.models, .n_models = r->engine.n_stages});
}

static void run_close(infer_run *r)
{
    d9di_profiler_close(&r->profiler);
    d9di_infer_rows_release(&r->rows);     /* writes the states of metrics */
    d9di_run_metrics_release(&r->metrics); /* owns memory of the engine's device */
    d9di_task_close(&r->body);             /* may own memory of the engine's device */
    d9di_engine_release(&r->engine);
    d9d_prefetcher_close(r->feed);
    d9d_batch_buffer_free(r->idle);
    d9di_run_data_release(&r->data);
    d9d_preemption_close(r->stop);
    d9d_job_events_free(r->events);
    d9d_arena_release(&r->arena);
}

/* This rank's part of the next global batch.  A rank without a sample computes along, since it may
 * hold a shard of the other ranks' parameters. */
static d9d_status next_batch(void *arg, d9d_batch *b)
{
    infer_run *r = arg;
    const int64_t micro = r->c->trainer.batching.microbatch_size, first = r->at;
    const int64_t local_first = first + d9d_mesh_index(r->engine.mesh, D9D_AXES_DP) * micro;

    r->at += micro * d9d_mesh_count(r->engine.mesh, D9D_AXES_DP);
    r->has_rows = local_first < r->end;
    r->requests++;
    return r->has_rows ? d9d_prefetcher_next(r->feed, b)
                       : d9d_loader_fill(r->data.loader, first, 1, r->idle, b);
}

static d9d_status add_losses(void *arg, const d9d_batch *b, const d9d_tensor *loss)
{
    infer_run *r = arg;

    return r->has_rows ? d9di_infer_rows_add_losses(&r->rows, r->requests - 1, b, loss) : D9D_OK;
}

static d9d_status add_values(void *arg, const d9d_batch *b, const d9d_tensor *v, int64_t at)
{
    infer_run *r = arg;

    return r->has_rows ? d9di_infer_rows_add_values(&r->rows, r->requests - 1, b, v, at) : D9D_OK;
}

/* Samples of a global batch. */
static int64_t global_batch(const infer_run *r)
{
    return r->c->trainer.batching.microbatch_size * d9d_mesh_count(r->engine.mesh, D9D_AXES_DP);
}

/* Runs n global batches through the model together. */
static d9d_status run_round(infer_run *r, int64_t n)
{
    const d9di_engine_callbacks flow = {
        .next = next_batch, .loss = add_losses, .values = add_values, .arg = r};
    const int64_t first = r->at;

    r->requests = 0;
    d9di_infer_rows_begin(&r->rows);
    D9D_TRY(trigger_step_event(r, "inference.forward.pre"));
    D9D_TRY(d9di_engine_forward(&r->engine, &flow, n));
    D9D_TRY(trigger_step_event(r, "inference.forward.post"));
    for (int64_t k = 0; k < n; k++)
        D9D_TRY(d9di_infer_rows_gather(&r->rows, k, first + k * global_batch(r)));
    return D9D_OK;
}

/* After a signal to any rank, all ranks exit. */
static d9d_status check_preemption(infer_run *r, int64_t done, int64_t n)
{
    const char *reason = r->stop != NULL ? d9d_preemption_reason(r->stop) : NULL;
    const int ranks = d9d_comm_size(r->engine.world);
    d9d_arena a = {0};
    d9d_comm_blob *all;
    d9d_status st = d9d_comm_allgather_arena(r->engine.world, "signals", reason,
                                             reason != NULL ? strlen(reason) : 0, &a, &all);

    for (int k = 0; st == D9D_OK && k < ranks; k++)
        if (all[k].n > 0)
            st = d9d_bootstrap_agree_status(r->where->bootstrap,
                                            D9D_FAIL(D9D_EINTR, "%s: %lld of %lld samples are done",
                                                     (const char *)all[k].data, (long long)done,
                                                     (long long)n));
    d9d_arena_release(&a);
    return st;
}

/* Runs the batches from r->at on: enough to keep a pipeline mostly full, or the remaining ones. */
static d9d_status run_step(infer_run *r, int64_t max_batches)
{
    const int64_t global = global_batch(r), batches = (r->end - r->at + global - 1) / global;
    const int64_t n = batches < max_batches ? batches : max_batches, k = ++r->rounds;

    r->step = r->at / global;
    D9D_TRY(check_preemption(r, r->at, r->end));
    D9D_TRY(trigger_step_event(r, "inference.step.pre"));
    D9D_TRY(d9di_profiler_begin(&r->profiler, r->engine.dev, k));
    D9D_TRY(run_round(r, n));
    d9di_profiler_end(&r->profiler, r->engine.dev, k, n == batches);
    return trigger_step_event(r, "inference.step.post");
}

static d9d_status run_batches(infer_run *r, int64_t first, int64_t n)
{
    const int64_t micro = r->c->trainer.batching.microbatch_size, global = global_batch(r);
    const int stages = d9d_mesh_count(r->engine.mesh, D9D_AXIS(PP));
    const int64_t max_batches = stages > 1 ? 4 * stages : 1;
    const d9d_prefetcher_opts opts = d9di_run_data_prefetch_opts(
        &r->c->trainer.data_loading, first, global, d9d_mesh_index(r->engine.mesh, D9D_AXES_DP),
        d9d_mesh_count(r->engine.mesh, D9D_AXES_DP), micro, n);
    d9d_progress progress;
    d9d_status st = D9D_OK;

    D9D_TRY(d9di_infer_rows_prepare(&r->rows, global, max_batches));
    D9D_TRY(d9d_prefetcher_open(r->data.loader, &opts, &r->feed));
    r->total_steps = (n + global - 1) / global;
    D9D_TRY(trigger_event(r, "inference.ready", (d9d_job_event){.user = NULL}));
    d9d_progress_start(&progress, r->log, "infer", "samples", (uint64_t)n);
    progress.first = progress.done = (uint64_t)first;
    r->at = first;
    r->end = n;
    while (st == D9D_OK && r->at < n) {
        const int64_t from = r->at;

        st = run_step(r, max_batches);
        d9d_progress_add(&progress, (uint64_t)((r->at < n ? r->at : n) - from));
    }
    d9d_progress_end(&progress);
    return st == D9D_OK ? trigger_event(r, "inference.finished", (d9d_job_event){.user = NULL})
                        : st;
}

static d9d_status open_and_run(infer_run *r, const json_t *resolved, d9d_infer_task_summary *s)
{
    int64_t start;

    D9D_TRY(d9d_bootstrap_agree_status(r->where->bootstrap, run_check(r)));
    D9D_TRY(check_sources_uniform(r, resolved));
    D9D_TRY(run_open(r, resolved, &s->first_sample));
    s->samples = d9d_loader_samples(r->data.loader);
    start = d9d_clock_ns();
    D9D_TRY(run_batches(r, s->first_sample, s->samples));
    s->counted_from = r->rows.counted_from;
    s->tokens = r->rows.totals.targets;
    s->output =
        d9di_infer_rows_are_values(&r->rows) ? D9D_INFER_TASK_VALUES : D9D_INFER_TASK_SCORES;
    s->loss = s->tokens > 0 && s->output == D9D_INFER_TASK_SCORES
                  ? r->rows.totals.sum / (double)s->tokens
                  : NAN;
    s->perplexity = exp(s->loss);
    D9D_TRY(metrics_finish(r, s));
    s->tokens_per_s =
        (double)(s->tokens - r->rows.resumed.targets) / ((double)(d9d_clock_ns() - start) * 1e-9);
    return d9d_bootstrap_agree_status(r->where->bootstrap,
                                      r->rank == 0 ? d9di_infer_rows_finish(&r->rows, s) : D9D_OK);
}

static d9d_status run_scoring(const d9d_infer_config *config, const json_t *resolved,
                              const d9d_job *where, d9d_infer_task_summary *out)
{
    infer_run r = {.c = config,
                   .where = where,
                   .log = where->log,
                   .rank = d9d_bootstrap_rank(where->bootstrap),
                   .task = config->task.choice->row,
                   .output = config->task.value};
    const int64_t margin = config->trainer.timeout.save_margin;
    d9d_infer_task_summary s = {0};
    d9d_status st;

    r.profiler = d9di_infer_profiler(config, where);
    r.rows = (d9di_infer_rows){.task = r.task,
                               .section = &config->task,
                               .where = where,
                               .engine = &r.engine,
                               .data = &r.data,
                               .body = &r.body,
                               .lines = {.file = {.fd = -1}, .journal = {.file = {.fd = -1}}}};
    if (d9di_infer_rows_are_written(&r.rows))
        D9D_TRY_OR(
            st, d9d_preemption_open(r.rank == 0 ? margin : D9D_PREEMPTION_NO_LIMIT, r.log, &r.stop),
            out);
    D9D_TRY_OR(st, open_and_run(&r, resolved, &s), out);
    *out = s;
out:
    st = d9di_job_start_fail_rank(where->bootstrap, r.engine.mesh, st);
    run_close(&r);
    if (st == D9D_OK)
        d9di_job_start_remove_flight_dir(where->bootstrap, r.output->output);
    return st;
}

d9d_status d9d_infer(const d9d_infer_config *config, const json_t *resolved, const d9d_job *where,
                     d9d_infer_task_summary *out)
{
    return config->task.choice->row == NULL ? d9di_generate(config, resolved, where, out)
                                            : run_scoring(config, resolved, where, out);
}
