/* plan_simulate.c - see plan/plan_simulate.h. */
#include "plan/plan_simulate.h"

#include <string.h>

#include "d9d/checkpointer/checkpointer.h"
#include "d9d/device/simulated.h"
#include "engine/engine.h"
#include "engine/moe_stats.h"
#include "engine/pipeline_stats.h"

typedef struct rehearsal {
    const d9di_dry_how *how;
    d9d_boot *boot;
    d9d_job where;
    d9di_task task;
    d9di_engine engine;
    d9d_optimizer *optimizer;
    d9di_experts experts;
    d9d_step_end end;
    d9d_meter *meter;
    d9d_arena arena;
    d9d_batch batch;
    int64_t n_micro; /* of a step */
    int64_t few;     /* that are played: the others are like these */
    int64_t period;  /* so many more make no other kind of step */
} rehearsal;

/* --- a batch ---------------------------------------------------------------------------- */

/* Every position a target, positions from 0 in each document. */
static d9d_status batch_make(rehearsal *r, const d9di_dry_batch *b)
{
    const int64_t cells = b->rows * b->length, part = b->document > 0 ? b->document : b->length;
    int32_t *ids = d9d_arena_alloc(&r->arena, (size_t)(2 * cells) * sizeof(*ids));
    int32_t *bounds = d9d_arena_alloc(&r->arena, (size_t)(cells + 1) * sizeof(*bounds));
    int64_t *lengths = d9d_arena_alloc(&r->arena, (size_t)b->rows * sizeof(*lengths));
    int64_t documents = 0;

    if (ids == NULL || bounds == NULL || lengths == NULL)
        return D9D_FAIL(D9D_ENOMEM, "plan: a batch of %lld positions", (long long)cells);
    memset(ids, 0, (size_t)cells * sizeof(*ids));
    for (int64_t i = 0; i < cells; i++) {
        const int64_t at = i % b->length % part;

        ids[cells + i] = (int32_t)at;
        if (at == 0)
            bounds[documents++] = (int32_t)i;
    }
    bounds[documents] = (int32_t)cells;
    for (int64_t i = 0; i < b->rows; i++)
        lengths[i] = b->length;
    r->batch = (d9d_batch){.rows = b->rows,
                           .length = b->length,
                           .ids = ids,
                           .labels = ids,
                           .positions = ids + cells,
                           .documents = b->document > 0 ? documents : 0,
                           .bounds = b->document > 0 ? bounds : NULL,
                           .lengths = lengths,
                           .tokens = cells,
                           .targets = cells};
    return D9D_OK;
}

/* --- the rank ----------------------------------------------------------------------------- */

static d9di_engine_how engine_how(const rehearsal *r)
{
    const d9d_train_config *c = r->how->config;

    return (d9di_engine_how){
        .where = &r->where,
        .mesh = &c->mesh,
        .provider = &c->model_provider,
        .peft = &c->peft,
        .data = r->how->data,
        .task = &r->task,
        .seed = (uint64_t)c->trainer.determinism.base_seed,
        .pipe = d9d_job_pipe(&c->trainer.pipelining),
        .micros = r->few,
        .train = true,
        .optimizer = r->optimizer,
        .gradients = &c->trainer.gradient_manager,
        .sharding = &c->trainer.sharding,
    };
}

/* As a run is opened and filled: train.c. */
static d9d_status rank_make(rehearsal *r)
{
    const d9d_train_config *c = r->how->config;
    const struct d9d_factory_section *from = &c->trainer.model_stage_factory;
    d9di_engine_how how;

    D9D_TRY(d9d_boot_imagine(r->how->rank, (int)d9d_degrees_ranks(&c->mesh), &r->boot));
    r->where = (d9d_job){.boot = r->boot, .device = r->how->chip};
    D9D_TRY(d9di_task_open(&c->task, &r->task));
    how = engine_how(r);
    D9D_TRY(d9di_engine_open(&how, &r->engine));
    D9D_TRY(d9di_engine_check_adapter(&r->engine, from->source_adapter, from->source_checkpoint));
    D9D_TRY(d9di_evaluations_check(r->how->evaluations, r->engine.whole));
    if (r->how->length > r->engine.whole->max_positions)
        return D9D_FAIL(D9D_ECONFIG, "plan: rows of %lld positions, and the model has %lld",
                        (long long)r->how->length, (long long)r->engine.whole->max_positions);
    D9D_TRY(d9d_optimizer_create(&c->optimizer, NULL, &r->engine.params, how.seed, &r->optimizer));
    how.optimizer = r->optimizer;
    D9D_TRY(d9di_engine_fill(&r->engine, &how));
    D9D_TRY(d9d_optimizer_fill(r->optimizer, r->engine.dev));
    D9D_TRY(d9di_engine_look_ahead(&r->engine, r->optimizer));
    r->engine.ahead = true;
    D9D_TRY(d9di_experts_open(&r->engine, c->trainer.logging.experts, &r->arena, &r->experts));
    D9D_TRY(d9d_meter_create(r->engine.dev, &r->meter));
    r->engine.meter = r->meter;
    return d9d_step_end_open(r->engine.dev, r->n_micro, d9di_bubble_width(&r->engine),
                             r->engine.world, &r->end);
}

static void rank_release(rehearsal *r)
{
    d9d_meter_free(r->meter);
    d9d_step_end_release(&r->end);
    d9d_optimizer_free(r->optimizer);
    d9di_experts_release(&r->experts);
    d9di_task_close(&r->task);
    d9di_engine_release(&r->engine);
    d9d_boot_close(r->boot);
    d9d_arena_release(&r->arena);
}

/* --- what it keeps --------------------------------------------------------------------------- */

static uint64_t bytes_of(const d9d_shape *s, d9d_dtype t)
{
    return (uint64_t)d9d_shape_numel(s) * d9d_dtype_size(t);
}

static d9d_status describe(const d9d_optimizer *o, d9d_arena *a, const char **out)
{
    d9d_buf text = {0};
    d9d_status st = d9d_optimizer_describe(o, &text);

    if (st == D9D_OK) {
        *out = d9d_arena_strdup(a, text.len > 0 ? text.data : "");
        if (*out == NULL)
            st = D9D_FAIL(D9D_ENOMEM, "plan: no memory for %zu bytes of text", text.len);
    }
    d9d_buf_release(&text);
    return st;
}

static d9d_status count_kept(rehearsal *r, d9di_dry_run *out)
{
    const d9d_trainer_section *t = &r->how->config->trainer;
    const d9d_sharded_how sharded = d9di_engine_sharding(&(d9di_engine_how){
        .train = true, .gradients = &t->gradient_manager, .sharding = &t->sharding});
    const d9d_params *params = &r->engine.params;
    d9d_save_set set, here;
    uint64_t units;

    for (size_t i = 0; i < params->n; i++) {
        const d9d_param *p = params->p[i];

        out->weights += bytes_of(&p->box, p->dtype);
        out->gradients += p->trainable ? bytes_of(&p->box, p->grad_dtype) : 0;
        out->exported += p->adapts == NULL && p->counts ? bytes_of(&p->whole, p->dtype) : 0;
    }
    out->optimizer = d9d_optimizer_bytes(r->optimizer);
    out->residuals = d9d_optimizer_residual_bytes(r->optimizer);
    for (size_t k = 0; k < r->engine.n_stages; k++) {
        const d9di_stage *s = &r->engine.stages[k];

        for (size_t i = 0; i < s->params.n; i++)
            out->parameters += s->params.p[i]->counts ? d9d_shape_numel(&s->params.p[i]->whole) : 0;
        out->model_flops += d9d_model_flops(s->model, r->batch.length);
        D9D_TRY(d9d_sharded_bytes(s->model, &sharded, &units));
        out->units = units > out->units ? units : out->units;
    }
    D9D_TRY(d9d_save_set_make(
        params, r->optimizer,
        r->how->config->trainer.model_stage_factory.checkpoint_only_trainable_parameters, &r->arena,
        &set));
    D9D_TRY(d9d_save_set_here(&set, &r->arena, &here));
    out->written = d9d_save_bytes(&here);
    D9D_TRY(d9d_save_manifest_share(&here, &out->tensors, &out->files));
    for (size_t i = 0; i < here.n; i++)
        out->saved += bytes_of(&here.items[i].whole, here.items[i].tensor->dtype);
    return D9D_OK;
}

/* --- a step ---------------------------------------------------------------------------------- */

static d9d_status micro_next(void *arg, d9d_batch *b)
{
    *b = ((rehearsal *)arg)->batch;
    return D9D_OK;
}

/* As train.c does it. */
static d9d_status step(rehearsal *r, int64_t n_micro)
{
    d9di_engine *e = &r->engine;
    double *more = d9d_arena_alloc(&r->arena, (size_t)(d9di_bubble_width(e) + 1) * sizeof(*more));
    const d9d_step_own own = {.targets = (double)(n_micro * r->batch.targets), .more = more};

    if (more == NULL)
        return D9D_FAIL(D9D_ENOMEM, "plan: the numbers of a step");
    D9D_TRY(d9di_experts_begin(&r->experts));
    D9D_TRY(
        d9di_engine_learn(e, &(d9di_flow){.next = micro_next, .arg = r}, n_micro, &r->end.loss));
    D9D_TRY(d9d_step_end_queue(&r->end, &e->params, &own,
                               r->how->config->trainer.gradient_clipping.max_norm));
    D9D_TRY(d9di_engine_settle(e));
    D9D_TRY(d9di_experts_end(&r->experts, &r->end.scale, 0));
    return d9d_optimizer_step(r->optimizer, 1e-3, &r->end.scale);
}

/* Steps of many micro-batches differ by the number of those that are not the last. */
typedef struct sample {
    double step_s;
    d9d_paper_tally tally;
} sample;

static d9d_status sample_take(rehearsal *r, int64_t n_micro, d9d_arena *a, sample *out)
{
    d9d_paper *p = d9d_paper_of(r->engine.dev->stream);
    const double before = d9d_paper_now(r->engine.dev->stream);
    size_t bytes;

    d9d_paper_begin(p);
    D9D_TRY(step(r, n_micro));
    *out = (sample){d9d_paper_now(r->engine.dev->stream) - before, *d9d_paper_done(p)};
    bytes = out->tally.n_talk * sizeof(*out->tally.talk);
    out->tally.talk = d9d_arena_alloc(a, bytes + 1);
    if (out->tally.talk == NULL)
        return D9D_FAIL(D9D_ENOMEM, "plan: %zu kinds of messages", out->tally.n_talk);
    if (bytes > 0)
        memcpy(out->tally.talk, d9d_paper_done(p)->talk, bytes);
    return D9D_OK;
}

static double stretch_one(double few, double more, double by)
{
    return few + by * (more - few);
}

static int64_t stretch_count(int64_t few, int64_t more, double by)
{
    return (int64_t)(stretch_one((double)few, (double)more, by) + 0.5);
}

/* *few becomes few + by (more - few). */
static void stretch(sample *few, const sample *more, double by)
{
    few->step_s = stretch_one(few->step_s, more->step_s, by);
    for (int i = 0; i < D9D_PAPER_KIND_COUNT; i++) {
        d9d_paper_work *w = &few->tally.work[i];
        const d9d_paper_work *m = &more->tally.work[i];

        w->calls = stretch_count(w->calls, m->calls, by);
        w->flops = stretch_one(w->flops, m->flops, by);
        w->bytes = stretch_one(w->bytes, m->bytes, by);
        w->seconds = stretch_one(w->seconds, m->seconds, by);
    }
    for (size_t i = 0; i < few->tally.n_talk && i < more->tally.n_talk; i++) {
        d9d_paper_talk *t = &few->tally.talk[i];
        const d9d_paper_talk *m = &more->tally.talk[i];

        t->calls = stretch_count(t->calls, m->calls, by);
        t->bytes = stretch_one(t->bytes, m->bytes, by);
        t->seconds = stretch_one(t->seconds, m->seconds, by);
    }
}

/* How many micro-batches show all: alone the last one and two before it, of which the second finds
 * the first one's gradients added up and the last of them under way.  A pipeline that fills and
 * empties holds no more of them at once than some for each of its ranks; breadth first it holds
 * all, so that each more takes as much memory; of a plugin's schedule nothing is known. */
static void choose_few(rehearsal *r)
{
    enum { ALONE = 3, EACH = 3, BREADTH = 128 };
    const d9d_pipe_how pipe = d9d_job_pipe(&r->how->config->trainer.pipelining);
    const int64_t ranks = r->how->config->mesh.pipeline_parallel;
    const bool breadth = pipe.kind == D9D_PIPE_GPIPE || pipe.kind == D9D_PIPE_LOOPED_BFS;
    const int64_t most = ranks == 1 ? ALONE : breadth ? BREADTH : EACH * ranks;

    r->period = ranks;
    r->few = r->n_micro;
    if (r->n_micro > most && (ranks == 1 || pipe.own == NULL))
        r->few -= (r->n_micro - most) / ranks * ranks;
}

/* Two steps: what is kept from the first is there in the second. */
static d9d_status steps(rehearsal *r, d9d_arena *a, d9di_dry_run *out)
{
    sample s, more;
    int64_t by;

    D9D_TRY(step(r, r->few));
    D9D_TRY(sample_take(r, r->few, a, &s));
    out->peak = d9d_device_memory(r->engine.dev).peak;
    out->scratch = d9d_device_scratch(r->engine.dev);
    out->tally = s.tally;
    if (r->period > 1)
        D9D_TRY(d9di_dry_prices(&r->engine, r->meter, a, out));
    out->once_s = s.step_s - out->play_s;
    if (r->n_micro > r->few) {
        if (r->period > 1)
            D9D_TRY(d9di_engine_pipe(&r->engine, r->few + r->period));
        D9D_TRY(sample_take(r, r->few + r->period, a, &more));
        by = (r->n_micro - r->few) / r->period;
        stretch(&s, &more, (double)by);
        out->peak += (uint64_t)by * (d9d_device_memory(r->engine.dev).peak - out->peak);
    }
    out->step_s = s.step_s;
    out->tally = s.tally;
    return D9D_OK;
}

/* An evaluation between two steps, where it takes more than they do: as evaluate.c does it. */
static d9d_status evaluate(rehearsal *r, d9di_dry_run *out)
{
    const uint64_t before = d9d_device_memory(r->engine.dev).peak;
    const int ranks = r->engine.program.ranks, round = ranks > 1 ? 4 * ranks : 2;
    const int n = r->how->evaluated < round ? (int)r->how->evaluated : round;
    d9d_tensor sums;
    d9d_status st;

    if (r->how->evaluation.rows == 0)
        return D9D_OK;
    D9D_TRY(batch_make(r, &r->how->evaluation));
    D9D_TRY(d9d_tensor_alloc(r->engine.dev, D9D_F64, D9D_SHAPE(ranks > 1 ? round : 8), &sums));
    st = d9di_engine_forward_begin(&r->engine, ranks > 1 ? round : 1);
    if (st == D9D_OK) {
        st = d9di_engine_measure(&r->engine, &(d9di_flow){.next = micro_next, .arg = r}, n, &sums);
        d9di_engine_forward_end(&r->engine);
    }
    d9d_tensor_release(&sums);
    if (d9d_device_memory(r->engine.dev).peak > before &&
        d9d_device_memory(r->engine.dev).peak > out->peak)
        out->peak = d9d_device_memory(r->engine.dev).peak;
    return st;
}

d9d_status d9di_dry_run_make(const d9di_dry_how *how, d9d_arena *a, d9di_dry_run *out)
{
    const struct d9d_batching_section *b = &how->config->trainer.batching;
    const d9d_degrees *m = &how->config->mesh;
    rehearsal r = {.how = how,
                   .n_micro = b->global_batch_size /
                              (m->data_parallel_replicate * m->data_parallel_shard) /
                              b->microbatch_size};
    d9di_dry_run dry = {0};
    d9d_status st;

    choose_few(&r);
    D9D_TRY_OR(st, batch_make(&r, &how->batch), out);
    D9D_TRY_OR(st, rank_make(&r), out);
    D9D_TRY_OR(st, count_kept(&r, &dry), out);
    D9D_TRY_OR(st, describe(r.optimizer, a, &dry.updates), out);
    D9D_TRY_OR(st, steps(&r, a, &dry), out);
    D9D_TRY_OR(st, evaluate(&r, &dry), out);
    *out = dry;
out:
    rank_release(&r);
    return st;
}
