/* plan.c - see d9d/plan/plan.h. */
#include "d9d/plan/plan.h"

#include "d9d/device/simulated.h"
#include "engine/job_start.h"
#include "job/run_dir.h"
#include "plan/measured_costs.h"
#include "plan/plan_private.h"
#include "plan/plan_simulate.h"

/* --- ranks --------------------------------------------------------------------------------- */

static uint64_t sub_or_zero(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* True if checkpoints will be asynchronous, as far as is known; as in train_checkpoint.c. */
static bool saves_async(const d9d_train_config *c, int64_t steps)
{
    const struct d9d_job_checkpointing_section *s = &c->trainer.checkpointing;

    return s->asynchronous && s->period_steps > 0 && (steps < 0 || s->period_steps < steps);
}

/* Copies of a rank's state in its host's memory: two of its own, and two of a rank of another host
 * (checkpointer/checkpointer_local.h). */
static uint64_t local_copies(const d9d_train_config *c, const d9d_plan *p)
{
    if (c->trainer.checkpointing.local_period_steps == D9D_PERIOD_DISABLE)
        return 0;
    return p->ranks > p->chip->per_node ? 4 : 2;
}

/* Bytes of ids, labels and positions that a prefetcher holds. */
static uint64_t batch_bytes(const d9d_train_config *c, int64_t n_tokens)
{
    const struct d9d_job_data_loading_section *l = &c->trainer.data_loading;
    const int64_t ahead = l->num_workers > 0 ? l->num_workers * l->prefetch_factor : 1;

    return (uint64_t)((ahead + 1) * n_tokens) * 3 * sizeof(int32_t);
}

/* Consecutive ranks are on the same host. */
static void find_largest_host(d9d_plan *p)
{
    const int64_t node = p->chip->per_node < p->ranks ? p->chip->per_node : p->ranks;
    const int64_t each = p->ranks / p->mesh.pipeline_parallel;

    for (int64_t first = 0; first < p->ranks; first += node) {
        const int64_t n = first + node <= p->ranks ? node : p->ranks - first;
        uint64_t sum = 0;

        for (int64_t r = first, stop; r < first + n; r = stop) {
            const d9d_plan_rank *s = &p->stages[r / each];
            uint64_t copies;

            stop = (r / each + 1) * each;
            stop = stop < first + n ? stop : first + n;
            copies = (uint64_t)(stop - r) * s->copy; /* only one replica writes */
            sum += (uint64_t)(stop - r) *
                       (s->batches + s->host_optimizer + s->host_activations + s->local) +
                   (copies < s->saved ? copies : s->saved);
        }
        if (sum > p->host) {
            p->host = sum;
            p->host_ranks = n;
        }
    }
}

/* The peak where the rank's experts are full; 0 if they have no capacity. */
static d9d_status simulate_full(const d9di_plan_simulate_opts *opts, double capacity, d9d_arena *a,
                                uint64_t *peak)
{
    d9di_plan_simulate_opts full = *opts;
    d9di_plan_simulation sim;

    if (capacity <= 0)
        return D9D_OK;
    full.experts_full = true;
    D9D_TRY(d9di_plan_simulate(&full, a, &sim));
    *peak = sim.peak;
    return D9D_OK;
}

/* Memory from the longest sequences, time from those of mean length. */
static d9d_status simulate_stage(const d9di_plan_simulate_opts *opts, const d9di_plan_lengths *r,
                                 d9d_arena *a, d9d_plan_rank *stage, d9di_plan_simulation *sim)
{
    d9di_plan_simulate_opts at = *opts;
    d9di_plan_simulation mean;
    uint64_t full = 0;

    at.batch.length = r->longest;
    D9D_TRY(d9di_plan_simulate(&at, a, sim));
    D9D_TRY(simulate_full(&at, sim->capacity, a, &full));
    mean = *sim;
    at.batch.length = r->mean;
    at.evaluation.rows = 0;
    if (r->mean < r->longest)
        D9D_TRY(d9di_plan_simulate(&at, a, &mean));
    *stage = (d9d_plan_rank){
        .rank = opts->rank,
        .weights = sim->weights,
        .gradients = sim->gradients,
        .optimizer = sim->optimizer,
        .host_optimizer = sim->host_optimizer,
        .host_activations = sim->host_activations,
        .residuals = sim->residuals,
        .units = sim->group_bytes,
        .scratch = sim->scratch,
        .peak = sim->peak,
        .full_peak = full > sim->peak || full == 0 ? full : sim->peak,
        .outside = d9d_sim_chip_find(opts->chip)->library_memory,
        .cache = sim->cache,
        .copies = sim->copies,
        .step_s = mean.step_s,
        .bus_wait_s = mean.bus_wait_s,
        .tally = mean.tally,
    };
    stage->activations = sub_or_zero(sim->peak, sim->weights + sim->gradients + sim->optimizer +
                                                    sim->group_bytes + sim->scratch);
    sim->model_flops = mean.model_flops;
    sim->once_s = mean.once_s;
    sim->transfer_s = mean.transfer_s;
    sim->stages = mean.stages;
    sim->generate_s = mean.generate_s;
    return D9D_OK;
}

/* Adds the ranks of one pipeline coordinate to the totals. */
static void add_stage(d9d_plan *p, const d9di_plan_simulation *sim, double *flops, double *once_s)
{
    p->parameters += sim->parameters;
    p->frozen += sim->frozen;
    p->generate_s += sim->generate_s; /* a token passes through all stages */
    p->checkpoint += sim->saved;
    p->exported += sim->exported;
    p->updates = p->updates != NULL ? p->updates : sim->updates;
    *flops = sim->model_flops;
    *once_s = sim->once_s > *once_s ? sim->once_s : *once_s;
    p->transfer_s = sim->transfer_s > p->transfer_s ? sim->transfer_s : p->transfer_s;
    for (size_t k = 0; k < sim->n_stages; k++)
        p->stage_costs[sim->stages[k].stage] = sim->stages[k].costs;
}

static d9d_status simulate_stages(d9di_plan_simulate_opts *opts, const d9di_plan_lengths *r,
                                  int64_t evaluated, d9d_arena *a, d9d_plan *p)
{
    const int64_t n = p->mesh.pipeline_parallel;
    const uint64_t batches = batch_bytes(opts->config, opts->batch.rows * r->longest + evaluated);
    double flops = 0, once_s = 0;

    p->stages = d9d_arena_alloc(a, (size_t)n * sizeof(*p->stages));
    p->stage_costs =
        d9d_arena_alloc(a, (size_t)n * (size_t)d9d_pipe_schedule_stages_per_rank(&p->pipe) *
                               sizeof(*p->stage_costs));
    if (p->stages == NULL || p->stage_costs == NULL)
        return D9D_FAIL(D9D_ENOMEM, "plan: %lld stages", (long long)n);
    for (int64_t i = 0; i < n; i++) {
        d9d_plan_rank *stage = &p->stages[p->n_stages++];
        d9di_plan_simulation sim;

        opts->rank = (int)(i * (p->ranks / n));
        D9D_TRY(simulate_stage(opts, r, a, stage, &sim));
        stage->ranks = p->ranks / n;
        stage->live = 1;
        stage->copy = saves_async(opts->config, p->steps) ? sim.written : 0;
        stage->local = local_copies(opts->config, p) * sim.written;
        stage->batches = batches;
        stage->state = sim.written;
        stage->saved = sim.saved;
        add_stage(p, &sim, &flops, &once_s);
    }
    find_largest_host(p);
    p->step_s = p->stages[0].step_s;
    if (p->measured_run != NULL)
        D9D_TRY(d9di_measured_costs_apply(p->measured_run, p));
    if (n > 1)
        D9D_TRY(d9di_plan_simulate_pipe(p, once_s + p->generate_s));
    p->mfu = p->tokens * flops / (p->step_s * (double)p->ranks * p->chip->flops);
    return D9D_OK;
}

/* --- the plan ------------------------------------------------------------------------------- */

d9d_status d9di_plan_estimate(const d9d_train_config *c, const d9d_plan_opts *opts,
                              const d9di_plan_data *data, const d9di_plan_lengths *measured,
                              d9d_arena *a, d9d_plan *out)
{
    const struct d9d_job_batching_section *b = &c->trainer.batching;
    const int64_t replicas = c->mesh.data_parallel_replicate * c->mesh.data_parallel_shard;
    const d9d_grpo_section *generation = d9di_task_generation(&data->task);
    const int64_t group = generation != NULL ? generation->num_generations : 1,
                  rows = b->microbatch_size * group;
    const d9di_plan_lengths r = d9di_plan_lengths_pad(measured, c);
    d9di_plan_simulate_opts sim = {.config = c,
                                   .chip = opts->chip,
                                   .data = &data->data,
                                   .evaluations = &data->evaluations,
                                   .length = data->length,
                                   .batch = {rows, r.longest, data->document}};
    const int64_t padded = d9di_plan_lengths_round(data->evaluated_longest, c);
    d9di_run_dir dir;
    d9d_plan p = {
        .mesh = c->mesh,
        .chip = d9d_sim_chip_find(opts->chip),
        .memory_requested = opts->memory > 0,
        .ranks = d9d_parallel_degrees_ranks(&c->mesh),
        .rows = rows,
        .samples = b->microbatch_size,
        .longest = r.longest,
        .length = r.mean,
        .document = data->document,
        .micro_batch_term = d9di_task_micro_batch_term(&data->task),
        .steps = data->steps,
        .tokens = r.tokens * (double)(b->global_batch_size * group),
        .pipe = d9d_job_pipe_schedule_opts(&c->trainer.pipelining),
        .measured_run = opts->measured_run,
    };

    D9D_TRY(d9d_parallel_degrees_check(&c->mesh, p.ranks));
    D9D_TRY(d9di_task_check_config(&data->task, c));
    D9D_TRY(d9di_run_dir_set_paths(&c->trainer, a, &dir));
    D9D_TRY(d9di_run_dir_check(c, &dir));
    if (p.measured_run != NULL && p.mesh.pipeline_parallel == 1)
        return D9D_FAIL(D9D_ECONFIG, "%s: costs are of a pipeline, mesh.pipeline_parallel is 1",
                        p.measured_run);
    (void)d9d_parallel_degrees_text(&c->mesh, p.mesh_text, sizeof(p.mesh_text));
    sim.evaluation = (d9di_plan_simulate_batch){data->evaluated_rows, padded, 0};
    sim.n_evaluations = (data->evaluated_batches + replicas - 1) / replicas;
    p.memory = p.memory_requested ? opts->memory : p.chip->memory;
    p.micro_batches = b->global_batch_size / replicas / b->microbatch_size;
    if (p.mesh.pipeline_parallel > 1)
        (void)d9d_pipe_schedule_format(&p.pipe, p.schedule);
    D9D_TRY(simulate_stages(&sim, &r, data->evaluated_rows * padded, a, &p));
    d9di_plan_set_start(&p);
    d9di_plan_set_goodput(c, opts, &p);
    *out = p;
    return D9D_OK;
}

d9d_status d9di_plan_released_bytes(const d9d_train_config *c, const d9d_plan_opts *opts,
                                    const d9di_plan_data *data, const d9di_plan_lengths *measured,
                                    d9d_arena *a, uint64_t *out)
{
    d9d_train_config released = *c;
    d9d_plan p;
    d9d_status st;

    *out = 0;
    released.trainer.optimizer_in_backward = true;
    if (c->trainer.optimizer_in_backward ||
        d9d_job_check_optimizer_in_backward(&released) != D9D_OK)
        return D9D_OK;
    st = d9di_plan_estimate(&released, opts, data, measured, a, &p);
    if (st == D9D_ECONFIG || st == D9D_ENOTSUP || st == D9D_EMISMATCH)
        return D9D_OK;
    D9D_TRY(st);
    *out = d9d_plan_rank_bytes(d9d_plan_largest_rank(&p));
    return D9D_OK;
}

/* With the method of context parallelism that "auto" stands for. */
static d9d_status estimate_any_method(const d9d_train_config *c, const d9d_plan_opts *opts,
                                      const d9di_plan_data *data, const d9di_plan_lengths *measured,
                                      d9d_arena *a, d9d_plan *out)
{
    d9d_train_config settled = *c;
    d9d_plan_cp_choice choice;

    if (c->mesh.context_parallel_method != D9D_CP_AUTO) {
        D9D_TRY(d9di_plan_estimate(c, opts, data, measured, a, out));
    } else {
        D9D_TRY(d9di_plan_choose_cp_method(c, opts, data, measured, a, &choice));
        settled.mesh.context_parallel_method = (int)choice.method;
        D9D_TRY(d9di_plan_estimate(&settled, opts, data, measured, a, out));
        out->cp_choice = choice;
    }
    return d9d_plan_fits(out)
               ? D9D_OK
               : d9di_plan_released_bytes(&settled, opts, data, measured, a, &out->released);
}

d9d_status d9d_plan_estimate(const d9d_train_config *c, const d9d_plan_opts *opts, d9d_arena *a,
                             d9d_plan *out)
{
    d9di_plan_data data = {0};
    d9di_plan_lengths rows;
    d9d_status st;

    D9D_TRY(d9d_device_check_simulated(opts->chip));
    D9D_TRY(d9di_plan_data_open(c, opts->length, &data));
    st = d9di_plan_lengths_measure(&data, c->trainer.batching.microbatch_size, &rows);
    if (st == D9D_OK)
        st = estimate_any_method(c, opts, &data, &rows, a, out);
    d9di_plan_data_release(&data);
    return st;
}

/* --- queries -------------------------------------------------------------------------- */

uint64_t d9d_plan_rank_bytes(const d9d_plan_rank *r)
{
    return r->peak + r->outside;
}

uint64_t d9d_plan_full_bytes(const d9d_plan *p)
{
    uint64_t most = 0;

    for (size_t i = 0; i < p->n_stages; i++) {
        const d9d_plan_rank *r = &p->stages[i];
        const uint64_t bytes = r->full_peak > 0 ? r->full_peak + r->outside : 0;

        most = bytes > most ? bytes : most;
    }
    return most;
}

const d9d_plan_rank *d9d_plan_largest_rank(const d9d_plan *p)
{
    const d9d_plan_rank *largest = p->stages;

    for (size_t i = 1; i < p->n_stages; i++)
        if (d9d_plan_rank_bytes(&p->stages[i]) > d9d_plan_rank_bytes(largest))
            largest = &p->stages[i];
    return largest;
}

bool d9d_plan_fits(const d9d_plan *p)
{
    return p->memory == 0 || d9d_plan_rank_bytes(d9d_plan_largest_rank(p)) <= p->memory;
}

d9d_status d9d_plan_check_memory(const d9d_plan *p)
{
    const d9d_plan_rank *largest = d9d_plan_largest_rank(p);
    const bool helps = p->released > 0 && p->released <= p->memory;

    if (!p->memory_requested || d9d_plan_fits(p))
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG,
                    "rank %lld (%s) needs %.2f GiB and may take %.2f GiB: it does not fit; "
                    "%sactivation checkpointing, smaller micro-batches and more ranks need less "
                    "(--suggest tries them)",
                    (long long)largest->rank, p->mesh_text,
                    (double)d9d_plan_rank_bytes(largest) / 0x1p30, (double)p->memory / 0x1p30,
                    helps ? "trainer.optimizer_in_backward makes it fit; " : "");
}

double d9d_plan_tokens_per_hour(const d9d_plan *p)
{
    return p->tokens / p->step_s * 3600;
}
