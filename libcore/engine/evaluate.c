/* evaluate.c - see engine/evaluate.h. */
#include "engine/evaluate.h"

#include <math.h>
#include <string.h>

#include "d9d/base/thread.h"
#include "d9d/comm/exchange.h"

/* --- opening ------------------------------------------------------------------------ */

static d9d_status name_check(const char *name)
{
    static const char known[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

    if (name[strspn(name, known)] == '\0')
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG, "evaluation.name: \"%s\": letters, digits, \".\", \"_\" and \"-\"",
                    name);
}

/* How many samples: some or all of a stream that has an end. */
static d9d_status samples_count(d9di_evaluation *v)
{
    const int64_t all = d9d_loader_samples(v->data.loader), wanted = v->c->samples;

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

    v->n = D9DI_EVALUATION_OWN + v->metrics.width;
    v->names = d9d_arena_alloc(a, v->n * sizeof(char *));
    v->values = d9d_arena_alloc(a, v->n * sizeof(double));
    if (v->names == NULL || v->values == NULL)
        return D9D_FAIL(D9D_ENOMEM, "evaluation %s: %zu names", v->c->name, v->n);
    for (size_t i = 0; i < v->n; i++) {
        v->names[i] = d9d_arena_printf(
            a, "%s/%s", v->c->name,
            i < D9DI_EVALUATION_OWN ? own[i] : v->metrics.names[i - D9DI_EVALUATION_OWN]);
        if (v->names[i] == NULL)
            return D9D_FAIL(D9D_ENOMEM, "evaluation %s: its names", v->c->name);
    }
    return D9D_OK;
}

/* What the section says by itself, against those before it and the task. */
static d9d_status open_alone(const d9di_evaluations *list, const d9di_task *task, d9d_arena *a,
                             d9di_evaluation *v)
{
    const char *where = d9d_arena_printf(a, "evaluation.%s", v->c->name);

    v->where = d9d_arena_printf(a, "%s.metrics", where != NULL ? where : "");
    if (where == NULL || v->where == NULL)
        return D9D_FAIL(D9D_ENOMEM, "evaluation %s: its names", v->c->name);
    D9D_TRY(name_check(v->c->name));
    for (const d9di_evaluation *u = list->v; u < v; u++)
        if (strcmp(u->c->name, v->c->name) == 0)
            return D9D_FAIL(D9D_ECONFIG, "evaluation: [%td] and [%td] are both called \"%s\"",
                            u - list->v, v - list->v, v->c->name);
    D9D_TRY(d9di_task_check_micro(task, where, v->micro));
    D9D_TRY(d9di_metrics_open(&v->c->metrics, v->where, a, &v->metrics));
    D9D_TRY(d9di_task_check_metrics(task, v->where, &v->metrics));
    return names_make(v, a);
}

static d9d_status data_open(d9di_evaluation *v, const d9di_task *task, const d9d_degrees *mesh)
{
    D9D_TRY(d9di_data_open(&v->c->data, v->loading, mesh, v->micro, &v->data));
    D9D_TRY(samples_count(v));
    return d9di_task_data(task, &v->data, v->samples);
}

d9d_status d9di_evaluations_open(const d9d_train_config *c, const d9di_task *task,
                                 const d9d_degrees *mesh, d9d_arena *a, d9di_evaluations *out)
{
    const d9d_evaluation_section *sections = c->evaluation.items;

    *out = (d9di_evaluations){.v = d9d_arena_alloc(a, (c->evaluation.n + 1) * sizeof(*out->v))};
    if (out->v == NULL)
        return D9D_FAIL(D9D_ENOMEM, "evaluation: %zu of them", c->evaluation.n);
    for (size_t i = 0; i < c->evaluation.n; i++) {
        const int64_t own = sections[i].microbatch_size;
        d9di_evaluation *v = &out->v[out->n++];

        *v = (d9di_evaluation){
            .c = &sections[i],
            .loading = &c->trainer.data_loading,
            .micro = own != D9D_INT_NULL ? own : c->trainer.batching.microbatch_size,
            .done = -1,
        };
        D9D_TRY(open_alone(out, task, a, v));
        if (mesh != NULL)
            D9D_TRY(data_open(v, task, mesh));
    }
    return D9D_OK;
}

void d9di_evaluations_release(d9di_evaluations *list)
{
    for (size_t i = 0; i < list->n; i++) {
        d9di_metrics_release(&list->v[i].metrics);
        d9di_data_release(&list->v[i].data);
    }
    *list = (d9di_evaluations){0};
}

d9d_status d9di_evaluations_check(const d9di_evaluations *list, const d9d_model *m)
{
    for (size_t i = 0; i < list->n; i++)
        D9D_TRY(d9di_data_check(&list->v[i].data, m->vocab, m->max_positions));
    return D9D_OK;
}

d9d_status d9di_evaluations_check_head(d9di_evaluations *list, const d9d_head *head)
{
    for (size_t i = 0; i < list->n; i++)
        D9D_TRY(d9di_metrics_check_head(&list->v[i].metrics, list->v[i].where, head));
    return D9D_OK;
}

bool d9di_evaluation_due(const d9di_evaluation *v, int64_t step, int64_t total)
{
    const d9d_step_period p = v->c->period_steps;

    if (v->done == step)
        return false;
    if (step == 0)
        return v->c->at_start;
    return (step == total && v->c->at_end) ||
           d9d_step_period_due(p, step, total, D9D_DUE_AFTER_STEP);
}

/* --- batches ------------------------------------------------------------------------- */

typedef struct pass {
    d9di_evaluation *v;
    const d9di_evaluation_how *how;
    int64_t at;    /* the next batch of all ranks begins at this sample */
    int64_t round; /* batches that go through the model together */
    d9d_feed *feed;
    d9d_batch_room *room; /* of a rank that is left without samples */
    D9D_VEC(int32_t) unlabelled;
    d9d_tensor sums; /* [round] */
    int64_t targets; /* of this rank, in a round */
    double sum, all; /* of losses and targets of all ranks */
} pass;

/* A batch that computes along and counts for nothing. */
static d9d_status batch_idle(pass *p, d9d_batch *b)
{
    D9D_TRY(d9d_loader_fill(p->v->data.loader, 0, 1, p->room, b));
    p->unlabelled.len = 0;
    for (int64_t i = 0; i < b->rows * b->length; i++)
        D9D_TRY(D9D_VEC_PUSH(&p->unlabelled, D9D_IGNORE_INDEX));
    b->labels = p->unlabelled.data;
    b->targets = 0;
    return D9D_OK;
}

static d9d_status batch_next(void *arg, d9d_batch *b)
{
    pass *p = arg;
    const d9d_mesh *m = p->how->engine->mesh;
    const int64_t mine = p->at + d9d_mesh_index(m, D9D_AXES_DP) * p->v->micro;

    p->at += p->v->micro * d9d_mesh_count(m, D9D_AXES_DP);
    if (mine >= p->v->samples)
        return batch_idle(p, b);
    D9D_TRY(d9d_feed_next(p->feed, b));
    p->targets += d9di_task_targets(p->how->task, b);
    return D9D_OK;
}

/* --- rounds -------------------------------------------------------------------------- */

/* What a rank has of a round. */
typedef struct word {
    double sum;
    int64_t targets;
    bool told; /* to leave */
} word;

/* Of ranks that have the same losses, or the same samples, one counts. */
static d9d_status word_make(pass *p, int64_t n, word *out)
{
    const d9di_engine *e = p->how->engine;
    const d9d_mesh *m = e->mesh;
    double sums[64];

    *out = (word){.told = p->how->stop != NULL && d9d_stop_reason(p->how->stop) != NULL};
    if (d9d_mesh_index(m, D9D_AXES_CP | D9D_AXIS(TP) | D9D_AXIS(PP)) == 0)
        out->targets = p->targets;
    p->targets = 0;
    if (d9d_mesh_index(m, D9D_AXIS(TP)) > 0 || !d9di_engine_ends(e))
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

/* The words of all ranks; *cut: one was told to leave. */
static d9d_status words_add(pass *p, const word *mine, bool *cut)
{
    d9d_comm *world = p->how->engine->world;
    const int ranks = d9d_comm_size(world);
    d9d_arena a = {0};
    d9d_comm_word *all;
    d9d_status st = d9d_comm_allgather_arena(world, "evaluation", mine, sizeof(*mine), &a, &all);

    for (int k = 0; st == D9D_OK && k < ranks; k++) {
        word w;

        memcpy(&w, all[k].data, sizeof(w));
        p->sum += w.sum;
        p->all += (double)w.targets;
        *cut |= w.told;
    }
    d9d_arena_release(&a);
    return st;
}

static d9d_status round_run(pass *p, int64_t n, bool *cut)
{
    const d9di_flow flow = {.next = batch_next, .arg = p};
    d9di_metrics *m = &p->v->metrics;
    word mine;

    D9D_TRY(d9di_engine_measure(p->how->engine, &flow, n, &p->sums));
    D9D_TRY(word_make(p, n, &mine));
    D9D_TRY(words_add(p, &mine, cut));
    return d9di_metrics_update(m, m->watched.len);
}

static d9d_status rounds_run(pass *p, bool *cut)
{
    const d9di_evaluation *v = p->v;
    const int64_t global = v->micro * d9d_mesh_count(p->how->engine->mesh, D9D_AXES_DP);
    char what[96];
    d9d_progress progress;
    d9d_status st = D9D_OK;

    (void)snprintf(what, sizeof(what), "evaluate %s", v->c->name);
    d9d_progress_start(&progress, p->how->log, what, "samples", (uint64_t)v->samples);
    while (p->at < v->samples && st == D9D_OK && !*cut) {
        const int64_t from = p->at, left = (v->samples - from + global - 1) / global;

        st = round_run(p, left < p->round ? left : p->round, cut);
        d9d_progress_note(&progress, "step %lld, loss %.4f", (long long)p->how->step,
                          p->all > 0 ? p->sum / p->all : (double)NAN);
        d9d_progress_add(&progress, (uint64_t)((p->at < v->samples ? p->at : v->samples) - from));
    }
    if (*cut) /* some samples have no loss that could be compared */
        d9d_progress_note(&progress, "step %lld, cut short: no loss", (long long)p->how->step);
    d9d_progress_end(&progress);
    return st;
}

/* --- a pass --------------------------------------------------------------------------- */

static d9d_status pass_open(pass *p)
{
    const d9di_evaluation *v = p->v;
    d9di_engine *e = p->how->engine;
    const int replicas = d9d_mesh_count(e->mesh, D9D_AXES_DP), pipe = e->program.ranks;
    const d9d_feed_how how =
        d9di_data_feed(v->loading, 0, v->micro * replicas, d9d_mesh_index(e->mesh, D9D_AXES_DP),
                       replicas, v->micro, v->samples);

    p->round = pipe > 1 ? 4 * (int64_t)pipe : 8; /* a pipeline is mostly full */
    D9D_TRY(d9d_batch_room_create(&p->room));
    D9D_TRY(d9d_feed_open(v->data.loader, &how, &p->feed));
    D9D_TRY(d9d_tensor_alloc(e->dev, D9D_F64, D9D_SHAPE(p->round), &p->sums));
    return d9di_engine_forward_begin(e, pipe > 1 ? p->round : 1);
}

static void pass_close(pass *p)
{
    if (p->how->engine->aside.executor != NULL)
        d9di_engine_forward_end(p->how->engine);
    d9d_tensor_release(&p->sums);
    d9d_feed_close(p->feed);
    d9d_batch_room_free(p->room);
    D9D_VEC_RELEASE(&p->unlabelled);
}

/* Also after a pass that was cut: the next one begins anew. */
static d9d_status values_take(pass *p)
{
    d9di_evaluation *v = p->v;

    D9D_TRY(d9di_metrics_begin(&v->metrics, p->how->engine->dev, p->how->engine->world));
    D9D_TRY(d9di_metrics_end(&v->metrics));
    v->values[D9DI_EVALUATION_LOSS] = p->all > 0 ? p->sum / p->all : (double)NAN;
    v->values[D9DI_EVALUATION_TOKENS] = p->all;
    v->values[D9DI_EVALUATION_SAMPLES] = (double)v->samples;
    memcpy(v->values + D9DI_EVALUATION_OWN, v->metrics.values,
           v->metrics.width * sizeof(*v->values));
    return D9D_OK;
}

d9d_status d9di_evaluation_run(d9di_evaluation *v, const d9di_evaluation_how *how, bool *cut)
{
    pass p = {.v = v, .how = how};
    d9di_metrics *trained = how->task->metrics;
    const int64_t begun = d9d_clock_ns();
    d9d_status st;

    *cut = false;
    how->task->metrics = &v->metrics;
    st = pass_open(&p);
    if (st == D9D_OK)
        st = rounds_run(&p, cut);
    pass_close(&p);
    how->task->metrics = trained;
    D9D_TRY(st);
    D9D_TRY(values_take(&p));
    v->values[D9DI_EVALUATION_MS] = (double)(d9d_clock_ns() - begun) * 1e-6;
    return D9D_OK;
}
