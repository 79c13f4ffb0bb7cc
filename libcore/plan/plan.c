/* plan.c - see d9d/plan/plan.h. */
#include "d9d/plan/plan.h"

#include "d9d/device/simulated.h"
#include "engine/job_start.h"
#include "job/run_dir.h"
#include "plan/measured_costs.h"
#include "plan/plan_private.h"
#include "plan/plan_simulate.h"

/* --- ranks --------------------------------------------------------------------------------- */

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* Are checkpoints written behind, as far as is known?  As train_open.c has it. */
static bool writes_behind(const d9d_train_config *c, int64_t steps)
{
    const struct d9d_checkpointing_section *s = &c->trainer.checkpointing;

    return s->asynchronous && s->period_steps > 0 && (steps < 0 || s->period_steps < steps);
}

/* Ids, labels and positions of the batches that a feed holds. */
static uint64_t batches_of(const d9d_train_config *c, int64_t cells)
{
    const struct d9d_data_loading_section *l = &c->trainer.data_loading;
    const int64_t ahead = l->num_workers > 0 ? l->num_workers * l->prefetch_factor : 1;

    return (uint64_t)((ahead + 1) * cells) * 3 * sizeof(int32_t);
}

/* Ranks lie on hosts one after the other. */
static void host_find(d9d_forecast *p)
{
    const int64_t node = p->chip->node < p->ranks ? p->chip->node : p->ranks;
    const int64_t each = p->ranks / p->mesh.pipeline_parallel;

    for (int64_t first = 0; first < p->ranks; first += node) {
        const int64_t n = first + node <= p->ranks ? node : p->ranks - first;
        uint64_t sum = 0;

        for (int64_t r = first, stop; r < first + n; r = stop) {
            const d9d_forecast_rank *s = &p->stages[r / each];
            uint64_t copies;

            stop = (r / each + 1) * each;
            stop = stop < first + n ? stop : first + n;
            copies = (uint64_t)(stop - r) * s->copy; /* but of replicas one alone writes */
            sum += (uint64_t)(stop - r) * s->batches + (copies < s->saved ? copies : s->saved);
        }
        if (sum > p->host) {
            p->host = sum;
            p->host_ranks = n;
        }
    }
}

/* What is of the longest rows, and what of those of the mean length. */
static d9d_status stage_make(const d9di_dry_how *how, const d9di_plan_lengths *r, d9d_arena *a,
                             d9d_forecast_rank *stage, d9di_dry_run *dry)
{
    d9di_dry_how at = *how;
    d9di_dry_run mean;

    at.batch.length = r->longest;
    D9D_TRY(d9di_dry_run_make(&at, a, dry));
    mean = *dry;
    at.batch.length = r->mean;
    at.evaluation.rows = 0;
    if (r->mean < r->longest)
        D9D_TRY(d9di_dry_run_make(&at, a, &mean));
    *stage = (d9d_forecast_rank){
        .rank = how->rank,
        .weights = dry->weights,
        .gradients = dry->gradients,
        .optimizer = dry->optimizer,
        .residuals = dry->residuals,
        .units = dry->units,
        .scratch = dry->scratch,
        .peak = dry->peak,
        .outside = d9d_paper_chip_find(how->chip)->outside,
        .step_s = mean.step_s,
        .tally = mean.tally,
    };
    stage->activations =
        less(dry->peak, dry->weights + dry->gradients + dry->optimizer + dry->units + dry->scratch);
    dry->model_flops = mean.model_flops;
    dry->once_s = mean.once_s;
    dry->transfer_s = mean.transfer_s;
    dry->stages = mean.stages;
    return D9D_OK;
}

/* What the ranks of one coordinate add to the whole. */
static void stage_add(d9d_forecast *p, const d9di_dry_run *dry, double *flops, double *once_s)
{
    p->parameters += dry->parameters;
    p->checkpoint += dry->saved;
    p->manifest += dry->tensors + (uint64_t)(p->ranks / p->mesh.pipeline_parallel) * dry->files;
    p->exported += dry->exported;
    p->updates = p->updates != NULL ? p->updates : dry->updates;
    *flops += dry->model_flops;
    *once_s = dry->once_s > *once_s ? dry->once_s : *once_s;
    p->transfer_s = dry->transfer_s > p->transfer_s ? dry->transfer_s : p->transfer_s;
    for (size_t k = 0; k < dry->n_stages; k++)
        p->prices[dry->stages[k].stage] = dry->stages[k].price;
}

static d9d_status stages_make(d9di_dry_how *how, const d9di_plan_lengths *r, int64_t evaluated,
                              d9d_arena *a, d9d_forecast *p)
{
    const int64_t n = p->mesh.pipeline_parallel;
    const uint64_t batches = batches_of(how->config, how->batch.rows * r->longest + evaluated);
    double flops = 0, once_s = 0;

    p->stages = d9d_arena_alloc(a, (size_t)n * sizeof(*p->stages));
    p->prices = d9d_arena_alloc(a, (size_t)n * (size_t)d9d_pipe_stages_per_rank(&p->pipe) *
                                       sizeof(*p->prices));
    if (p->stages == NULL || p->prices == NULL)
        return D9D_FAIL(D9D_ENOMEM, "plan: %lld stages", (long long)n);
    for (int64_t i = 0; i < n; i++) {
        d9d_forecast_rank *stage = &p->stages[p->n_stages++];
        d9di_dry_run dry;

        how->rank = (int)(i * (p->ranks / n));
        D9D_TRY(stage_make(how, r, a, stage, &dry));
        stage->ranks = p->ranks / n;
        stage->live = 1;
        stage->copy = writes_behind(how->config, p->steps) ? dry.written : 0;
        stage->batches = batches;
        stage->saved = dry.saved;
        stage_add(p, &dry, &flops, &once_s);
    }
    host_find(p);
    p->step_s = p->stages[0].step_s;
    if (p->costs != NULL)
        D9D_TRY(d9di_costs_apply(p->costs, p));
    if (n > 1)
        D9D_TRY(d9di_forecast_pipe(p, once_s));
    p->mfu = p->tokens * flops / (p->step_s * (double)p->ranks * p->chip->flops);
    return D9D_OK;
}

/* --- the plan ------------------------------------------------------------------------------- */

d9d_status d9di_forecast_of(const d9d_train_config *c, const d9d_forecast_how *how,
                            const d9di_plan_data *data, const d9di_plan_lengths *measured,
                            d9d_arena *a, d9d_forecast *out)
{
    const struct d9d_batching_section *b = &c->trainer.batching;
    const int64_t replicas = c->mesh.data_parallel_replicate * c->mesh.data_parallel_shard;
    const d9di_plan_lengths r = d9di_rows_padded(measured, c);
    d9di_dry_how dry = {.config = c,
                        .chip = how->chip,
                        .data = &data->data,
                        .evaluations = &data->evaluations,
                        .length = data->length,
                        .batch = {b->microbatch_size, r.longest, data->document}};
    const int64_t padded = d9di_rows_round(data->evaluated_longest, c);
    d9di_run_dir dir;
    d9d_forecast p = {
        .mesh = c->mesh,
        .chip = d9d_paper_chip_find(how->chip),
        .asked = how->memory > 0,
        .ranks = d9d_degrees_ranks(&c->mesh),
        .rows = b->microbatch_size,
        .longest = r.longest,
        .length = r.mean,
        .document = data->document,
        .steps = data->steps,
        .tokens = r.tokens * (double)b->global_batch_size,
        .pipe = d9d_job_pipe(&c->trainer.pipelining),
        .costs = how->costs,
    };

    D9D_TRY(d9d_degrees_check(&c->mesh, p.ranks));
    D9D_TRY(d9di_task_check_config(&data->task, c));
    D9D_TRY(d9di_run_dir_name(&c->trainer, a, &dir));
    D9D_TRY(d9di_run_dir_check(c, &dir));
    if (p.costs != NULL && p.mesh.pipeline_parallel == 1)
        return D9D_FAIL(D9D_ECONFIG, "%s: costs are of a pipeline, mesh.pipeline_parallel is 1",
                        p.costs);
    (void)d9d_degrees_text(&c->mesh, p.mesh_text, sizeof(p.mesh_text));
    if (data->evaluated_rows * padded > b->microbatch_size * r.longest)
        dry.evaluation = (d9di_dry_batch){data->evaluated_rows, padded, 0};
    dry.evaluated = (data->evaluated_batches + replicas - 1) / replicas;
    p.memory = p.asked ? how->memory : p.chip->memory;
    p.micro_batches = b->global_batch_size / replicas / b->microbatch_size;
    if (p.mesh.pipeline_parallel > 1)
        (void)d9d_pipe_schedule_format(&p.pipe, p.schedule);
    D9D_TRY(stages_make(&dry, &r, data->evaluated_rows * padded, a, &p));
    D9D_TRY(d9d_save_manifest_check(p.manifest, p.ranks, &p.manifest));
    *out = p;
    return D9D_OK;
}

d9d_status d9d_forecast_make(const d9d_train_config *c, const d9d_forecast_how *how, d9d_arena *a,
                             d9d_forecast *out)
{
    d9di_plan_data data = {0};
    d9di_plan_lengths rows;
    d9d_status st;

    D9D_TRY(d9d_device_check_imagined(how->chip));
    D9D_TRY(d9di_plan_data_open(c, how->length, &data));
    st = d9di_rows_measure(&data, c->trainer.batching.microbatch_size, &rows);
    if (st == D9D_OK)
        st = d9di_forecast_of(c, how, &data, &rows, a, out);
    d9di_plan_data_release(&data);
    return st;
}

/* --- what it says ----------------------------------------------------------------------------- */

uint64_t d9d_forecast_bytes(const d9d_forecast_rank *r)
{
    return r->peak + r->outside;
}

const d9d_forecast_rank *d9d_forecast_largest(const d9d_forecast *p)
{
    const d9d_forecast_rank *most = p->stages;

    for (size_t i = 1; i < p->n_stages; i++)
        if (d9d_forecast_bytes(&p->stages[i]) > d9d_forecast_bytes(most))
            most = &p->stages[i];
    return most;
}

bool d9d_forecast_fits(const d9d_forecast *p)
{
    return p->memory == 0 || d9d_forecast_bytes(d9d_forecast_largest(p)) <= p->memory;
}

d9d_status d9d_forecast_verdict(const d9d_forecast *p)
{
    const d9d_forecast_rank *most = d9d_forecast_largest(p);

    if (!p->asked || d9d_forecast_fits(p))
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG,
                    "rank %lld (%s) needs %.2f GiB and may take %.2f GiB: it does not fit; "
                    "activation checkpointing, smaller micro-batches and more ranks need less "
                    "(--suggest tries them)",
                    (long long)most->rank, p->mesh_text, (double)d9d_forecast_bytes(most) / 0x1p30,
                    (double)p->memory / 0x1p30);
}

double d9d_forecast_tokens_per_hour(const d9d_forecast *p)
{
    return p->tokens / p->step_s * 3600;
}
