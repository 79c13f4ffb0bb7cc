/* evaluate.c - see engine/evaluate.h. */
#include "engine/evaluate.h"

#include <math.h>
#include <string.h>

#include "d9d/base/thread.h"
#include "d9d/comm/exchange.h"

/* --- opening ------------------------------------------------------------------------ */

static d9d_status check_name(const char *name)
{
    static const char known[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

    if (name[strspn(name, known)] == '\0')
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG, "evaluation.name: \"%s\": letters, digits, \".\", \"_\" and \"-\"",
                    name);
}

/* The number of samples: some or all of a finite stream. */
static d9d_status count_samples(d9di_evaluation *v)
{
    const int64_t all = d9d_loader_samples(v->data.loader), wanted = v->c->samples;

    if (wanted == D9D_INT_NULL && d9d_loader_stream(v->data.loader) != NULL)
        return D9D_FAIL(D9D_ECONFIG, "evaluation %s: %s is a stream, so samples must say how many",
                        v->c->name, v->data.sections[0].dataset);
    if (wanted == D9D_INT_NULL && d9d_loader_last_source(v->data.loader) < 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "evaluation %s: data.epochs is null, so samples must say how "
                        "many",
                        v->c->name);
    if (wanted != D9D_INT_NULL && wanted > all)
        return D9D_FAIL(D9D_ECONFIG, "evaluation %s: samples is %lld, and %s has %lld", v->c->name,
                        (long long)wanted, v->data.sections[0].dataset, (long long)all);
    v->samples = wanted != D9D_INT_NULL ? wanted : all;
    return D9D_OK;
}

static d9d_status names_make(d9di_evaluation *v, d9d_arena *a)
{
    static const char *const own[] = {"tokens", "samples", "loss", "ms"};

    v->n = D9DI_EVALUATION_VALUES + v->metrics.width;
    v->names = d9d_arena_alloc(a, v->n * sizeof(char *));
    v->values = d9d_arena_alloc(a, v->n * sizeof(double));
    if (v->names == NULL || v->values == NULL)
        return D9D_FAIL(D9D_ENOMEM, "evaluation %s: %zu names", v->c->name, v->n);
    for (size_t i = 0; i < v->n; i++) {
        v->names[i] = d9d_arena_printf(
            a, "%s/%s", v->c->name,
            i < D9DI_EVALUATION_VALUES ? own[i] : v->metrics.names[i - D9DI_EVALUATION_VALUES]);
        if (v->names[i] == NULL)
            return D9D_FAIL(D9D_ENOMEM, "evaluation %s: its names", v->c->name);
    }
    return D9D_OK;
}

/* Checks a section by itself, against the earlier ones, and against the task. */
static d9d_status check_section(const d9di_evaluations *list, const d9di_task *task, d9d_arena *a,
                                d9di_evaluation *v)
{
    const char *where = d9d_arena_printf(a, "evaluation.%s", v->c->name);

    v->where = d9d_arena_printf(a, "%s.metrics", where != NULL ? where : "");
    if (where == NULL || v->where == NULL)
        return D9D_FAIL(D9D_ENOMEM, "evaluation %s: its names", v->c->name);
    D9D_TRY(check_name(v->c->name));
    for (const d9di_evaluation *u = list->v; u < v; u++)
        if (strcmp(u->c->name, v->c->name) == 0)
            return D9D_FAIL(D9D_ECONFIG, "evaluation: [%td] and [%td] are both called \"%s\"",
                            u - list->v, v - list->v, v->c->name);
    D9D_TRY(d9di_task_check_micro_batch(task, where, v->micro));
    D9D_TRY(d9di_task_open_metrics(task, &v->c->metrics, v->where, a, &v->metrics));
    return names_make(v, a);
}

static d9d_status data_open(d9di_evaluation *v, const d9di_task *task,
                            const d9d_parallel_degrees *mesh)
{
    D9D_TRY(d9di_run_data_open(&v->c->data, v->loading_section, mesh, v->micro, &v->data));
    D9D_TRY(count_samples(v));
    return d9di_task_set_data(task, &v->data, v->samples);
}

d9d_status d9di_evaluations_open(const d9d_train_config *c, const d9di_task *task,
                                 const d9d_parallel_degrees *mesh, d9d_arena *a,
                                 d9di_evaluations *out)
{
    const d9d_job_evaluation_section *sections = c->evaluation.items;

    *out = (d9di_evaluations){.v = d9d_arena_alloc(a, (c->evaluation.n + 1) * sizeof(*out->v))};
    if (out->v == NULL)
        return D9D_FAIL(D9D_ENOMEM, "evaluation: %zu of them", c->evaluation.n);
    for (size_t i = 0; i < c->evaluation.n; i++) {
        const int64_t own = sections[i].microbatch_size;
        d9di_evaluation *v = &out->v[out->n++];

        *v = (d9di_evaluation){
            .c = &sections[i],
            .loading_section = &c->trainer.data_loading,
            .micro = own != D9D_INT_NULL ? own : c->trainer.batching.microbatch_size,
            .done_step = -1,
        };
        D9D_TRY(check_section(out, task, a, v));
        if (mesh != NULL)
            D9D_TRY(data_open(v, task, mesh));
    }
    return D9D_OK;
}

void d9di_evaluations_release(d9di_evaluations *list)
{
    for (size_t i = 0; i < list->n; i++) {
        d9di_run_metrics_release(&list->v[i].metrics);
        d9di_run_data_release(&list->v[i].data);
    }
    *list = (d9di_evaluations){0};
}

d9d_status d9di_evaluations_check(const d9di_evaluations *list, const d9di_task *task,
                                  const d9d_model *m, const char *source, const char *hf_config)
{
    for (size_t i = 0; i < list->n; i++) {
        D9D_TRY(d9di_run_data_check(&list->v[i].data, m->vocab, m->max_positions));
        D9D_TRY(d9di_task_set_fields(task, m, &list->v[i].data));
        D9D_TRY(d9di_run_metrics_check_vocab(&list->v[i].metrics, m->vocab));
        D9D_TRY(d9di_run_data_add_prompt(&list->v[i].data, m));
        D9D_TRY(d9di_run_data_check_tokenizer(&list->v[i].data, source, hf_config));
    }
    return D9D_OK;
}

d9d_status d9di_evaluations_check_head(d9di_evaluations *list, const d9d_head *head)
{
    for (size_t i = 0; i < list->n; i++)
        D9D_TRY(d9di_run_metrics_check_head(&list->v[i].metrics, head));
    return D9D_OK;
}

bool d9di_evaluation_is_due(const d9di_evaluation *v, int64_t step, int64_t total)
{
    const d9d_step_period p = v->c->period_steps;

    if (v->done_step == step)
        return false;
    if (step == 0)
        return v->c->at_start;
    return (step == total && v->c->at_end) ||
           d9d_step_period_due(p, step, total, D9D_DUE_AFTER_STEP);
}

/* --- batches ------------------------------------------------------------------------- */

typedef struct eval_pass {
    d9di_evaluation *v;
    const d9di_evaluation_opts *opts;
    int64_t at;    /* the next global batch begins at this sample */
    int64_t round; /* batches that run through the pipeline together */
    d9d_prefetcher *prefetcher;
    d9d_batch_buffer *idle_buffer; /* of a rank without samples */
    d9d_tensor part_targets;       /* of the whole evaluation */
    d9d_tensor sums;               /* [round] */
    int64_t targets;               /* of this rank, in one round */
    double sum, all;               /* losses and targets of all ranks */
} eval_pass;

static d9d_status next_batch(void *arg, d9d_batch *b)
{
    eval_pass *p = arg;
    const d9d_mesh *m = p->opts->engine->mesh;
    const int64_t local_first = p->at + d9d_mesh_index(m, D9D_AXES_DP) * p->v->micro;

    p->at += p->v->micro * d9d_mesh_count(m, D9D_AXES_DP);
    if (local_first >= p->v->samples)
        return d9d_loader_fill_idle(p->v->data.loader, p->idle_buffer, b);
    D9D_TRY(d9d_prefetcher_next(p->prefetcher, b));
    p->targets += d9di_task_targets(p->opts->task, b);
    return D9D_OK;
}

/* --- rounds -------------------------------------------------------------------------- */

/* A rank's result of a round. */
typedef struct round_result {
    double sum;
    int64_t targets;
    bool stop_requested; /* this rank was asked to exit */
} round_result;

/* Among ranks with the same losses or samples, only one contributes. */
static d9d_status make_round_result(eval_pass *p, int64_t n, round_result *out)
{
    const d9di_engine *e = p->opts->engine;
    const d9d_mesh *m = e->mesh;
    double sums[64];

    *out = (round_result){.stop_requested = p->opts->preemption != NULL &&
                                            d9d_preemption_reason(p->opts->preemption) != NULL};
    if (d9d_mesh_index(m, D9D_AXES_CP | D9D_AXIS(TP) | D9D_AXIS(PP)) == 0)
        out->targets = p->targets;
    p->targets = 0;
    if (d9d_mesh_index(m, D9D_AXIS(TP)) > 0 || !d9di_engine_has_last_stage(e))
        return D9D_OK;
    for (int64_t i = 0, some; i < n; i += some) {
        const double *from = (const double *)d9d_tensor_data(&p->sums) + i;

        some = n - i < 64 ? n - i : 64;
        D9D_TRY(d9d_device_download(e->dev, sums, from, (uint64_t)some * sizeof(double)));
        for (int64_t k = 0; k < some; k++)
            out->sum += sums[k];
    }
    return D9D_OK;
}

/* Adds the results of all ranks; *cut: one was asked to exit. */
static d9d_status add_round_results(eval_pass *p, const round_result *local, bool *cut)
{
    d9d_comm *world = p->opts->engine->world;
    const int ranks = d9d_comm_size(world);
    d9d_arena a = {0};
    d9d_comm_blob *all;
    d9d_status st = d9d_comm_allgather_arena(world, "evaluation", local, sizeof(*local), &a, &all);

    for (int k = 0; st == D9D_OK && k < ranks; k++) {
        round_result w;

        memcpy(&w, all[k].data, sizeof(w));
        p->sum += w.sum;
        p->all += (double)w.targets;
        *cut |= w.stop_requested;
    }
    d9d_arena_release(&a);
    return st;
}

static d9d_status run_round(eval_pass *p, int64_t n, bool *cut)
{
    const d9di_engine_callbacks flow = {.next = next_batch, .arg = p};
    d9di_run_metrics *m = &p->v->metrics;
    round_result local;

    D9D_TRY(d9di_engine_eval_forward(p->opts->engine, &flow, n, &p->sums));
    D9D_TRY(make_round_result(p, n, &local));
    D9D_TRY(add_round_results(p, &local, cut));
    return d9di_run_metrics_update(m, m->watched.len);
}

static d9d_status run_rounds(eval_pass *p, bool *cut)
{
    const d9di_evaluation *v = p->v;
    const int64_t global = v->micro * d9d_mesh_count(p->opts->engine->mesh, D9D_AXES_DP);
    char label[96];
    d9d_progress progress;
    d9d_status st = D9D_OK;

    (void)snprintf(label, sizeof(label), "evaluate %s", v->c->name);
    d9d_progress_start(&progress, p->opts->log, label, "samples", (uint64_t)v->samples);
    while (p->at < v->samples && st == D9D_OK && !*cut) {
        const int64_t from = p->at, left = (v->samples - from + global - 1) / global;

        st = run_round(p, left < p->round ? left : p->round, cut);
        d9d_progress_note(&progress, "step %lld, loss %.4f", (long long)p->opts->step,
                          p->all > 0 ? p->sum / p->all : (double)NAN);
        d9d_progress_add(&progress, (uint64_t)((p->at < v->samples ? p->at : v->samples) - from));
    }
    if (*cut) /* the values would cover only some of the samples */
        d9d_progress_note(&progress, "step %lld, cut short: no loss", (long long)p->opts->step);
    d9d_progress_end(&progress);
    return st;
}

/* --- a pass --------------------------------------------------------------------------- */

/* Targets of each part of the loss in the samples that this rank counts, one of as many as there
 * are ranks. */
static d9d_status count_part_targets(const eval_pass *p, int64_t *n)
{
    const int64_t ranks = d9d_comm_size(p->opts->engine->world);
    int64_t i = d9d_comm_rank(p->opts->engine->world);
    d9d_status st = D9D_OK;
    d9d_batch b;

    for (; i * p->v->micro < p->v->samples && st == D9D_OK; i += ranks) {
        const int64_t first = i * p->v->micro, left = p->v->samples - first;

        st = d9d_loader_fill(p->v->data.loader, first, left < p->v->micro ? left : p->v->micro,
                             p->idle_buffer, &b);
        if (st == D9D_OK)
            (void)d9di_task_parts(p->opts->task, &b, -1, n);
    }
    return st;
}

/* A loss of several parts is divided by the targets of all samples, which are counted first. */
static d9d_status part_targets_make(eval_pass *p)
{
    int64_t n[D9D_TASK_PARTS_MAX] = {0};
    float counts[D9D_TASK_PARTS_MAX];
    d9di_engine *e = p->opts->engine;
    const size_t parts = d9di_task_parts(p->opts->task, NULL, -1, n);

    if (parts == 0)
        return D9D_OK;
    D9D_TRY(count_part_targets(p, n));
    for (size_t i = 0; i < parts; i++)
        counts[i] = (float)n[i];
    D9D_TRY(
        d9d_tensor_from_host(e->dev, D9D_F32, D9D_SHAPE((int64_t)parts), counts, &p->part_targets));
    D9D_TRY(d9d_comm_all_reduce(e->world, e->dev->stream, "targets of heads", D9D_F32,
                                d9d_tensor_data(&p->part_targets), (int64_t)parts, D9D_COMM_SUM));
    e->step.part_targets = &p->part_targets;
    return D9D_OK;
}

static d9d_status eval_pass_open(eval_pass *p)
{
    const d9di_evaluation *v = p->v;
    d9di_engine *e = p->opts->engine;
    const int replicas = d9d_mesh_count(e->mesh, D9D_AXES_DP), pipe = e->exec.program.ranks;
    const d9d_prefetcher_opts opts = d9di_run_data_prefetch_opts(
        v->loading_section, 0, v->micro * replicas, d9d_mesh_index(e->mesh, D9D_AXES_DP), replicas,
        v->micro, v->samples);

    p->round = pipe > 1 ? 4 * (int64_t)pipe : 8; /* keeps a pipeline mostly full */
    D9D_TRY(d9d_batch_buffer_create(&p->idle_buffer));
    D9D_TRY(part_targets_make(p));
    D9D_TRY(d9d_prefetcher_open(v->data.loader, &opts, &p->prefetcher));
    D9D_TRY(d9d_tensor_alloc(e->dev, D9D_F64, D9D_SHAPE(p->round), &p->sums));
    return d9di_engine_eval_begin(e, pipe > 1 ? p->round : 1);
}

static void eval_pass_close(eval_pass *p)
{
    if (d9di_engine_is_evaluating(p->opts->engine))
        d9di_engine_eval_end(p->opts->engine);
    p->opts->engine->step.part_targets = NULL;
    d9d_tensor_release(&p->sums);
    d9d_prefetcher_close(p->prefetcher);
    d9d_batch_buffer_free(p->idle_buffer);
    d9d_tensor_release(&p->part_targets);
}

/* Also resets the metrics after a pass that was cut short. */
static d9d_status collect_values(eval_pass *p)
{
    d9di_evaluation *v = p->v;

    D9D_TRY(d9di_run_metrics_sync_begin(&v->metrics, p->opts->engine->dev, p->opts->engine->world));
    D9D_TRY(d9di_run_metrics_sync_end(&v->metrics));
    v->values[D9DI_EVALUATION_LOSS] = p->all > 0 ? p->sum / p->all : (double)NAN;
    v->values[D9DI_EVALUATION_TOKENS] = p->all;
    v->values[D9DI_EVALUATION_SAMPLES] = (double)v->samples;
    memcpy(v->values + D9DI_EVALUATION_VALUES, v->metrics.values,
           v->metrics.width * sizeof(*v->values));
    return D9D_OK;
}

d9d_status d9di_evaluation_run(d9di_evaluation *v, const d9di_evaluation_opts *opts, bool *cut)
{
    eval_pass p = {.v = v, .opts = opts};
    d9di_run_metrics *trained = opts->task->metrics;
    const int64_t begun = d9d_clock_ns();
    d9d_status st;

    *cut = false;
    opts->task->metrics = &v->metrics;
    st = eval_pass_open(&p);
    if (st == D9D_OK)
        st = run_rounds(&p, cut);
    eval_pass_close(&p);
    opts->task->metrics = trained;
    D9D_TRY(st);
    D9D_TRY(collect_values(&p));
    v->values[D9DI_EVALUATION_MS] = (double)(d9d_clock_ns() - begun) * 1e-6;
    return D9D_OK;
}
