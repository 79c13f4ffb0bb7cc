/* plan_simulate.c - see plan/plan_simulate.h. */
#include "plan/plan_simulate.h"

#include <string.h>

#include "d9d/checkpointer/checkpointer.h"
#include "d9d/device/simulated.h"
#include "engine/engine.h"
#include "engine/frozen_model.h"
#include "engine/moe_stats.h"
#include "engine/pipeline_stats.h"
#include "tasks/grpo_batch.h"
#include "train/train_integrity.h"

typedef struct simulation {
    const d9di_plan_simulate_opts *opts;
    d9d_bootstrap *bootstrap;
    d9d_job where;
    d9di_task task;
    d9di_engine engine;
    d9d_optimizer *optimizer;
    d9d_train_config averaging; /* of the optimizer */
    d9d_job_ema_section ema;    /* of `averaging` */
    d9di_expert_replication replication;
    d9di_moe_stats moe_stats;
    d9d_grad_finalize grad_finalize;
    d9d_stage_timer *stage_timer;
    d9d_tensor part_targets;
    d9di_train_run run; /* for `integrity` */
    d9di_train_integrity integrity;
    d9d_arena arena;
    d9d_batch batch;
    d9di_grpo_buffer completions; /* of a task that generates */
    d9di_run_metrics metrics;     /* of next tokens, which a step computes */
    int64_t n_micro;              /* of a step */
    int64_t few;                  /* micro-batches that are executed; the others cost the same */
    int64_t period;               /* steps with this many more micro-batches have the same form */
} simulation;

/* --- a batch ---------------------------------------------------------------------------- */

/* Documents of a row, of about one length; with records of answers, those of whole records. */
static int64_t row_documents(const simulation *r, const d9di_plan_simulate_batch *b)
{
    const int64_t width = d9di_answers_width(d9di_task_answers(&r->task)),
                  doc_length = b->document > 0 ? b->document : b->length,
                  n = (b->length + doc_length - 1) / doc_length;

    return n > width ? n / width * width : width;
}

/* Every position is a target; positions restart at 0 in each document. */
static d9d_status make_packed_batch(simulation *r, const d9di_plan_simulate_batch *b)
{
    const int64_t n_tokens = b->rows * b->length, in_row = row_documents(r, b),
                  doc_length = (b->length + in_row - 1) / in_row;
    const bool packed = b->document > 0 || in_row > 1;
    int32_t *ids = d9d_arena_alloc(&r->arena, (size_t)(2 * n_tokens) * sizeof(*ids));
    int32_t *bounds = d9d_arena_alloc(&r->arena, (size_t)(n_tokens + 1) * sizeof(*bounds));
    int64_t *lengths = d9d_arena_alloc(&r->arena, (size_t)b->rows * sizeof(*lengths));
    int64_t documents = 0;

    if (ids == NULL || bounds == NULL || lengths == NULL)
        return D9D_FAIL(D9D_ENOMEM, "plan: a batch of %lld positions", (long long)n_tokens);
    memset(ids, 0, (size_t)n_tokens * sizeof(*ids));
    for (int64_t i = 0; i < n_tokens; i++) {
        const int64_t at = i % b->length % doc_length;

        ids[n_tokens + i] = (int32_t)at;
        if (at == 0)
            bounds[documents++] = (int32_t)i;
    }
    bounds[documents] = (int32_t)n_tokens;
    for (int64_t i = 0; i < b->rows; i++)
        lengths[i] = b->length;
    r->batch = (d9d_batch){.seqs = b->rows,
                           .length = b->length,
                           .ids = ids,
                           .labels = ids,
                           .positions = ids + n_tokens,
                           .documents = packed ? documents : 0,
                           .cu_seqlens = packed ? bounds : NULL,
                           .lengths = lengths,
                           .tokens = n_tokens,
                           .targets = n_tokens};
    return D9D_OK;
}

/* Completions as long as they may be. */
static d9d_status make_completions(simulation *r, const d9d_grpo_section *c,
                                   const d9di_plan_simulate_batch *b)
{
    const int64_t prompt = b->length - c->max_completion_length;
    d9di_grpo_completion *x = d9d_arena_alloc(&r->arena, (size_t)b->rows * sizeof(*x));
    uint32_t *ids = d9d_arena_alloc(&r->arena, (size_t)(b->length + 1) * sizeof(*ids));
    d9di_grpo_token *tokens = d9d_arena_alloc(&r->arena, (size_t)b->length * sizeof(*tokens));

    if (x == NULL || ids == NULL || tokens == NULL)
        return D9D_FAIL(D9D_ENOMEM, "plan: %lld completions", (long long)b->rows);
    memset(ids, 0, (size_t)(b->length + 1) * sizeof(*ids));
    memset(tokens, 0, (size_t)b->length * sizeof(*tokens));
    for (int64_t i = 0; i < b->rows; i++)
        x[i] = (d9di_grpo_completion){
            .ids = ids, .prompt = prompt + 1, .n = c->max_completion_length, .tokens = tokens};
    return d9di_grpo_batch_make(c, x, b->rows, 0, 1, &r->completions, &r->batch);
}

static d9d_status make_batch(simulation *r, const d9di_plan_simulate_batch *b)
{
    const d9d_grpo_section *c = d9di_task_generation(&r->task);

    return c != NULL ? make_completions(r, c, b) : make_packed_batch(r, b);
}

/* --- the rank ----------------------------------------------------------------------------- */

static d9di_engine_opts engine_opts(const simulation *r)
{
    const d9d_train_config *c = r->opts->config;

    return (d9di_engine_opts){
        .where = &r->where,
        .mesh = &c->mesh,
        .provider = &c->model_provider,
        .peft = &c->peft,
        .data = r->opts->data,
        .task = &r->task,
        .seed = (uint64_t)c->trainer.determinism.base_seed,
        .pipe = d9d_job_pipe_schedule_opts(&c->trainer.pipelining),
        .micros = r->few,
        .train = true,
        .optimizer = r->optimizer,
        .gradients = &c->trainer.gradient_manager,
        .sharding = &c->trainer.sharding,
        .offload = &c->trainer.offload,
        .fp8 = c->trainer.fp8,
        .release_grads = c->trainer.optimizer_in_backward,
        .quantised = {(d9d_quant_format)c->trainer.model_stage_factory.quantization,
                      (d9d_quant_format)c->trainer.model_stage_factory.head_quantization},
        .replication = c->trainer.expert_replication,
    };
}

/* The batch's named tensors, once the engine knows what is wanted. */
static d9d_status add_fields(simulation *r)
{
    d9d_field_request wanted[D9D_FIELDS_MAX];
    size_t n;

    if (d9di_task_generation(&r->task) != NULL) /* the batch has them */
        return D9D_OK;
    D9D_TRY(d9di_task_fields(&r->task, r->engine.whole.model, wanted, &n));
    return d9d_batch_plan_fields(r->opts->data != NULL ? r->opts->data->loader : NULL, wanted, n,
                                 &r->arena, &r->batch);
}

/* As d9di_train_stepper_open() does. */
static d9d_status part_targets_make(simulation *r)
{
    const size_t parts = d9di_task_parts(&r->task, NULL, -1, NULL);

    if (parts == 0)
        return D9D_OK;
    r->engine.step.part_targets = &r->part_targets;
    return d9d_tensor_alloc(r->engine.dev, D9D_F32, D9D_SHAPE((int64_t)parts), &r->part_targets);
}

/* The capacity factor of the model's experts; 0: none. */
static double capacity_of(const simulation *r)
{
    const d9d_model *m = r->engine.whole.model;

    return m->n_mixtures > 0 ? m->mixtures[0]->shape.router.capacity : 0;
}

/* Experts take the mean, or as much as they can. */
static void set_expert_load(const simulation *r)
{
    const double capacity = capacity_of(r);

    if (capacity > 0 && (capacity < 1 || r->opts->experts_full))
        d9d_sim_set_expert_load(d9d_sim_of_stream(r->engine.dev->stream), capacity);
}

/* Metrics of next tokens multiply by the head once more.  Others take what there is. */
static d9d_status open_metrics(simulation *r)
{
    if (!d9di_task_predicts_tokens(&r->task))
        return D9D_OK;
    D9D_TRY(d9di_task_open_metrics(&r->task, &r->opts->config->metrics, "metrics", &r->arena,
                                   &r->metrics));
    D9D_TRY(d9di_run_metrics_check_vocab(&r->metrics, r->engine.whole.model->vocab));
    r->task.metrics = &r->metrics;
    return D9D_OK;
}

/* With trainer.optimizer_in_backward, as in train_in_backward.c. */
static d9d_status pre_backward(void *arg)
{
    simulation *r = arg;

    if (r->grad_finalize.squares == NULL)
        return D9D_OK;
    return d9d_grad_finalize_begin(&r->grad_finalize, 0,
                                   &(d9d_grad_finalize_local){.targets = (double)r->batch.targets});
}

static d9d_status update_some(void *arg, const d9d_params *some)
{
    simulation *r = arg;

    D9D_TRY(d9d_grad_finalize_add(&r->grad_finalize, some));
    return d9d_optimizer_step_some(r->optimizer, some, 1e-3, &r->grad_finalize.scale);
}

static d9d_status set_in_backward(simulation *r)
{
    if (!r->opts->config->trainer.optimizer_in_backward)
        return D9D_OK;
    for (size_t k = 0; k < r->engine.n_stages; k++)
        d9d_fsdp_set_post_accumulate_grad_hook(r->engine.stages[k].sharded, update_some, r);
    return d9d_grad_finalize_set_released(&r->grad_finalize, &r->engine.params);
}

/* An average begins with the first step: the simulated ones are few. */
static d9d_status create_optimizer(simulation *r, uint64_t seed)
{
    r->averaging = *r->opts->config;
    if (r->averaging.trainer.ema != NULL) {
        r->ema = *r->averaging.trainer.ema;
        r->ema.start_step = 0;
        r->averaging.trainer.ema = &r->ema;
    }
    return d9di_engine_create_optimizer(&r->averaging, &r->engine.params, &r->engine.whole.params,
                                        seed, &r->optimizer);
}

/* The checksums of trainer.integrity. */
static d9d_status open_integrity(simulation *r)
{
    r->run = (d9di_train_run){.c = r->opts->config, .where = &r->where, .n_micro = r->n_micro};
    return d9di_train_integrity_open(&r->integrity, &r->run, &r->engine, r->optimizer,
                                     &r->grad_finalize.scale, &r->arena);
}

/* Opens and materialises the rank as train.c does. */
static d9d_status open_rank(simulation *r)
{
    const d9d_train_config *c = r->opts->config;
    const struct d9d_job_factory_section *from = &c->trainer.model_stage_factory;
    d9di_engine_opts opts;

    D9D_TRY(d9d_bootstrap_simulate(r->opts->rank, (int)d9d_parallel_degrees_ranks(&c->mesh),
                                   &r->bootstrap));
    r->where = (d9d_job){.bootstrap = r->bootstrap, .device = r->opts->chip};
    D9D_TRY(d9di_task_open(&c->task, &r->task));
    opts = engine_opts(r);
    D9D_TRY(d9di_engine_open(&opts, &r->engine));
    D9D_TRY(open_metrics(r));
    D9D_TRY(d9di_engine_check_adapter(&r->engine, from->source_adapter, from->source_checkpoint));
    D9D_TRY(d9di_evaluations_check(r->opts->evaluations, &r->task, r->engine.whole.model,
                                   from->source_checkpoint, r->engine.spec.hf_config));
    if (r->opts->length > r->engine.whole.model->max_positions)
        return D9D_FAIL(D9D_ECONFIG, "plan: rows of %lld positions, and the model has %lld",
                        (long long)r->opts->length,
                        (long long)r->engine.whole.model->max_positions);
    D9D_TRY(create_optimizer(r, opts.seed));
    opts.optimizer = r->optimizer;
    D9D_TRY(d9di_engine_materialize(&r->engine, &opts));
    D9D_TRY(d9di_engine_fill_optimizer(&r->engine, r->optimizer));
    D9D_TRY(d9di_engine_set_prefetch(&r->engine, r->optimizer));
    r->engine.step.prefetch = true;
    set_expert_load(r);
    D9D_TRY(d9di_expert_replication_open(&r->engine, opts.replication, &r->arena, &r->replication));
    D9D_TRY(d9di_expert_replication_fill(&r->replication));
    D9D_TRY(d9di_moe_stats_open(&r->engine, c->trainer.logging.experts, &r->replication, &r->arena,
                                &r->moe_stats));
    D9D_TRY(d9d_stage_timer_create(r->engine.dev, &r->stage_timer));
    r->engine.exec.stage_timer = r->stage_timer;
    D9D_TRY(part_targets_make(r));
    D9D_TRY(d9d_grad_finalize_init(r->engine.dev, r->n_micro, d9di_pipeline_stats_width(&r->engine),
                                   r->engine.world, &r->grad_finalize));
    D9D_TRY(open_integrity(r));
    return set_in_backward(r);
}

static void close_rank(simulation *r)
{
    d9d_stage_timer_free(r->stage_timer);
    d9di_train_integrity_close(&r->integrity);
    d9d_tensor_release(&r->part_targets);
    d9d_grad_finalize_release(&r->grad_finalize);
    d9d_optimizer_free(r->optimizer);
    d9di_moe_stats_release(&r->moe_stats);
    d9di_run_metrics_release(&r->metrics);
    d9di_expert_replication_close(&r->replication);
    d9di_task_close(&r->task);
    d9di_grpo_buffer_release(&r->completions);
    d9di_engine_release(&r->engine);
    d9d_bootstrap_close(r->bootstrap);
    d9d_arena_release(&r->arena);
}

/* --- memory --------------------------------------------------------------------------- */

static uint64_t shape_bytes(const d9d_shape *s, d9d_dtype t)
{
    return (uint64_t)d9d_shape_numel(s) * d9d_dtype_size(t);
}

static d9d_status describe_optimizer(const d9d_optimizer *o, d9d_arena *a, const char **out)
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

/* What adapter/ has. */
static bool is_adapter(const d9d_param *p)
{
    return p->peft.adapts != NULL || strcmp(p->name, D9D_MODEL_PROMPT_PARAM) == 0;
}

static d9d_status count_persistent(simulation *r, d9di_plan_simulation *out)
{
    const d9d_job_trainer_section *t = &r->opts->config->trainer;
    const d9di_engine_opts opts = engine_opts(r);
    const d9d_fsdp_opts sharded = d9di_engine_fsdp_opts(&opts);
    const d9d_params *params = &r->engine.params;
    const bool exports_adapters = t->model_stage_factory.quantization != D9D_QUANT_NONE ||
                                  r->engine.whole.model->virtual_tokens > 0;
    d9d_checkpointer_set set, here;
    uint64_t group_bytes;

    for (size_t i = 0; i < params->n; i++) {
        const d9d_param *p = params->p[i];

        out->weights += d9d_param_stored_bytes(p, &p->shard);
        out->gradients += p->spec.trainable && !opts.release_grads
                              ? shape_bytes(&p->shard.shape, p->spec.grad_dtype)
                              : 0;
        out->exported += is_adapter(p) == exports_adapters && p->placement.is_primary
                             ? shape_bytes(&p->spec.shape, p->spec.dtype)
                             : 0;
    }
    out->copies = d9di_expert_replication_bytes(&r->engine, t->expert_replication);
    out->weights += d9di_frozen_model_bytes(&r->engine) + out->copies.weights;
    out->gradients += out->copies.gradients;
    out->frozen = d9di_frozen_model_param_count(&r->engine);
    out->optimizer = d9d_optimizer_bytes(r->optimizer);
    out->host_optimizer = d9d_optimizer_host_bytes(r->optimizer);
    out->residuals = d9d_optimizer_residual_bytes(r->optimizer);
    out->model_flops =
        d9d_model_batch_flops(r->engine.whole.model, &r->batch) / (double)r->batch.tokens;
    for (size_t k = 0; k < r->engine.n_stages; k++) {
        const d9di_engine_stage *s = &r->engine.stages[k];

        for (size_t i = 0; i < s->params.n; i++)
            out->parameters += s->params.p[i]->placement.is_primary
                                   ? d9d_shape_numel(&s->params.p[i]->spec.shape)
                                   : 0;
        D9D_TRY(d9d_fsdp_bytes(s->model, &sharded, &group_bytes));
        out->group_bytes = group_bytes > out->group_bytes ? group_bytes : out->group_bytes;
    }
    D9D_TRY(d9d_checkpointer_set_make(
        params, r->optimizer,
        r->opts->config->trainer.model_stage_factory.checkpoint_only_trainable_parameters,
        &r->arena, &set));
    D9D_TRY(d9d_checkpointer_set_local(&set, &r->arena, &here));
    out->written = d9d_checkpointer_set_bytes(&here);
    for (size_t i = 0; i < here.n; i++)
        out->saved += shape_bytes(&here.items[i].global_shape, here.items[i].tensor->dtype);
    return D9D_OK;
}

/* --- a step ---------------------------------------------------------------------------------- */

static d9d_status next_micro_batch(void *arg, d9d_batch *b)
{
    *b = ((simulation *)arg)->batch;
    return D9D_OK;
}

/* As in train.c. */
static d9d_status run_step(simulation *r, int64_t n_micro)
{
    d9di_engine *e = &r->engine;
    double *more =
        d9d_arena_alloc(&r->arena, (size_t)(d9di_pipeline_stats_width(e) + 1) * sizeof(*more));
    const d9d_grad_finalize_local own = {.targets = (double)(n_micro * r->batch.targets),
                                         .extra = more};

    if (more == NULL)
        return D9D_FAIL(D9D_ENOMEM, "plan: the numbers of a step");
    D9D_TRY(d9di_expert_replication_begin(&r->replication, 0, NULL));
    D9D_TRY(d9di_moe_stats_begin(&r->moe_stats));
    D9D_TRY(d9di_engine_forward_backward(
        e,
        &(d9di_engine_callbacks){.next = next_micro_batch, .pre_backward = pre_backward, .arg = r},
        n_micro, &r->grad_finalize.loss));
    D9D_TRY(d9d_grad_finalize_enqueue(&r->grad_finalize, &e->params, &own,
                                      r->opts->config->trainer.gradient_clipping.max_norm));
    D9D_TRY(d9di_engine_wait_grads(e));
    D9D_TRY(d9di_moe_stats_end(&r->moe_stats, &r->grad_finalize.scale, 0));
    return d9d_optimizer_step(r->optimizer, 1e-3, &r->grad_finalize.scale);
}

/* Measurements of a step; with more micro-batches, cost grows linearly with all but the last. */
typedef struct step_sample {
    double step_s, bus_wait_s;
    d9d_sim_tally tally;
} step_sample;

static d9d_status measure_step(simulation *r, int64_t n_micro, d9d_arena *a, step_sample *out)
{
    d9d_sim *p = d9d_sim_of_stream(r->engine.dev->stream);
    const double before = d9d_sim_now(r->engine.dev->stream),
                 waited = d9d_device_bus_wait_s(r->engine.dev);
    size_t bytes;

    d9d_sim_reset_tally(p);
    D9D_TRY(run_step(r, n_micro));
    *out = (step_sample){d9d_sim_now(r->engine.dev->stream) - before,
                         d9d_device_bus_wait_s(r->engine.dev) - waited, *d9d_sim_get_tally(p)};
    bytes = out->tally.n_traffic * sizeof(*out->tally.traffic);
    out->tally.traffic = d9d_arena_alloc(a, bytes + 1);
    if (out->tally.traffic == NULL)
        return D9D_FAIL(D9D_ENOMEM, "plan: %zu kinds of messages", out->tally.n_traffic);
    if (bytes > 0)
        memcpy(out->tally.traffic, d9d_sim_get_tally(p)->traffic, bytes);
    return D9D_OK;
}

static double extrapolate(double few, double more, double by)
{
    return few + by * (more - few);
}

static int64_t extrapolate_count(int64_t few, int64_t more, double by)
{
    return (int64_t)(extrapolate((double)few, (double)more, by) + 0.5);
}

/* Linear extrapolation: *few becomes few + by (more - few). */
static void extrapolate_sample(step_sample *few, const step_sample *more, double by)
{
    few->step_s = extrapolate(few->step_s, more->step_s, by);
    few->bus_wait_s = extrapolate(few->bus_wait_s, more->bus_wait_s, by);
    for (int i = 0; i < D9D_SIM_KIND_COUNT; i++) {
        d9d_sim_work *w = &few->tally.work[i];
        const d9d_sim_work *m = &more->tally.work[i];

        w->calls = extrapolate_count(w->calls, m->calls, by);
        w->flops = extrapolate(w->flops, m->flops, by);
        w->bytes = extrapolate(w->bytes, m->bytes, by);
        w->seconds = extrapolate(w->seconds, m->seconds, by);
    }
    for (size_t i = 0; i < few->tally.n_traffic && i < more->tally.n_traffic; i++) {
        d9d_sim_traffic *t = &few->tally.traffic[i];
        const d9d_sim_traffic *m = &more->tally.traffic[i];

        t->calls = extrapolate_count(t->calls, m->calls, by);
        t->bytes = extrapolate(t->bytes, m->bytes, by);
        t->seconds = extrapolate(t->seconds, m->seconds, by);
    }
}

/* Chooses how many micro-batches to execute.  Without a pipeline: the last one and two before it.
 * The second accumulates into the first one's gradients, and the last one overlaps the second's
 * reduction.
 *
 * A pipeline in steady state holds a bounded number of micro-batches per rank.  A breadth-first
 * schedule holds all, so that each additional one takes the same memory.  Nothing is assumed about
 * a plugin's schedule. */
static void choose_micro_batches(simulation *r)
{
    enum { MICROS_WITHOUT_PIPE = 3, MICROS_PER_STAGE = 3, MAX_PERIOD = 128 };
    const d9d_pipe_schedule_opts pipe =
        d9d_job_pipe_schedule_opts(&r->opts->config->trainer.pipelining);
    const int64_t ranks = r->opts->config->mesh.pipeline_parallel;
    const bool breadth = pipe.kind == D9D_PIPE_GPIPE || pipe.kind == D9D_PIPE_LOOPED_BFS;
    const int64_t max_bytes = ranks == 1 ? MICROS_WITHOUT_PIPE
                              : breadth  ? MAX_PERIOD
                                         : MICROS_PER_STAGE * ranks;

    r->period = ranks;
    r->few = r->n_micro;
    if (r->n_micro > max_bytes && (ranks == 1 || pipe.custom == NULL))
        r->few -= (r->n_micro - max_bytes) / ranks * ranks;
}

/* Runs two steps: what persists from the first is there in the second. */
static d9d_status simulate_steps(simulation *r, d9d_arena *a, d9di_plan_simulation *out)
{
    step_sample s, more;
    int64_t by;

    D9D_TRY(run_step(r, r->few));
    D9D_TRY(measure_step(r, r->few, a, &s));
    out->peak = d9d_device_memory(r->engine.dev).peak;
    out->scratch = d9d_device_peak_scratch(r->engine.dev);
    out->host_activations = d9di_engine_host_activations(&r->engine);
    out->tally = s.tally;
    if (r->period > 1)
        D9D_TRY(d9di_plan_simulate_costs(&r->engine, r->stage_timer, a, out));
    out->once_s = s.step_s - out->pipeline_s;
    if (r->n_micro > r->few) {
        if (r->period > 1)
            D9D_TRY(d9di_engine_build_pipe(&r->engine, r->few + r->period));
        D9D_TRY(measure_step(r, r->few + r->period, a, &more));
        by = (r->n_micro - r->few) / r->period;
        extrapolate_sample(&s, &more, (double)by);
        out->peak += (uint64_t)by * (d9d_device_memory(r->engine.dev).peak - out->peak);
        out->host_activations +=
            (uint64_t)by * (d9di_engine_host_activations(&r->engine) - out->host_activations);
    }
    out->step_s = s.step_s;
    out->bus_wait_s = s.bus_wait_s;
    out->tally = s.tally;
    return D9D_OK;
}

/* An evaluation between two steps; as in evaluate.c. */
static d9d_status evaluate(simulation *r)
{
    const int ranks = r->engine.exec.program.ranks, round = ranks > 1 ? 4 * ranks : 2;
    const int n = r->opts->n_evaluations < round ? (int)r->opts->n_evaluations : round;
    d9d_tensor sums;
    d9d_status st;

    D9D_TRY(make_batch(r, &r->opts->evaluation));
    D9D_TRY(add_fields(r));
    D9D_TRY(d9d_tensor_alloc(r->engine.dev, D9D_F64, D9D_SHAPE(ranks > 1 ? round : 8), &sums));
    st = d9di_engine_eval_begin(&r->engine, ranks > 1 ? round : 1);
    if (st == D9D_OK) {
        st = d9di_engine_eval_forward(
            &r->engine, &(d9di_engine_callbacks){.next = next_micro_batch, .arg = r}, n, &sums);
        d9di_engine_eval_end(&r->engine);
    }
    d9d_tensor_release(&sums);
    return st;
}

/* Evaluations and the export, if they need more than steps do: those of a larger batch, and those
 * of averages, beside which the weights are kept; as in train.c. */
static d9d_status simulate_between_steps(simulation *r, d9di_plan_simulation *out)
{
    const d9d_job_ema_section *ema = r->opts->config->trainer.ema;
    const d9di_plan_simulate_batch *b = &r->opts->evaluation, *step = &r->opts->batch;
    const bool averaged = d9d_optimizer_has_averages(r->optimizer),
               averages_evaluated = averaged && b->rows > 0 && (ema == NULL || ema->is_evaluated),
               averages_exported = averaged && (ema == NULL || ema->is_exported);
    const uint64_t before = d9d_device_memory(r->engine.dev).peak;
    uint64_t peak;

    if (averages_evaluated)
        D9D_TRY(d9di_engine_use_averages(&r->engine, r->optimizer));
    if (averages_evaluated || b->rows * b->length > step->rows * step->length)
        D9D_TRY(evaluate(r));
    if (averages_exported && !averages_evaluated)
        D9D_TRY(d9di_engine_use_averages(&r->engine, r->optimizer));
    if (averages_exported || averages_evaluated)
        D9D_TRY(d9di_engine_use_weights(&r->engine, r->optimizer));
    peak = d9d_device_memory(r->engine.dev).peak;
    if (peak > before && peak > out->peak)
        out->peak = peak;
    return D9D_OK;
}

/* The completions that the steps learn from. */
static d9d_status simulate_generation(simulation *r, d9di_plan_simulation *out)
{
    const d9d_grpo_section *c = d9di_task_generation(&r->task);
    const int64_t micro = r->opts->config->trainer.batching.microbatch_size;

    if (c == NULL)
        return D9D_OK;
    return d9di_plan_simulate_generation(&r->engine, c, d9di_grpo_decoded_rows(c, micro),
                                         r->n_micro * micro, r->opts->batch.length, out);
}

d9d_status d9di_plan_simulate(const d9di_plan_simulate_opts *opts, d9d_arena *a,
                              d9di_plan_simulation *out)
{
    const struct d9d_job_batching_section *b = &opts->config->trainer.batching;
    const d9d_parallel_degrees *m = &opts->config->mesh;
    simulation r = {.opts = opts,
                    .n_micro = b->global_batch_size /
                               (m->data_parallel_replicate * m->data_parallel_shard) /
                               b->microbatch_size};
    d9di_plan_simulation sim = {0};
    d9d_status st;

    choose_micro_batches(&r);
    D9D_TRY_OR(st, open_rank(&r), out);
    D9D_TRY_OR(st, make_batch(&r, &opts->batch), out);
    D9D_TRY_OR(st, add_fields(&r), out);
    D9D_TRY_OR(st, count_persistent(&r, &sim), out);
    sim.capacity = capacity_of(&r);
    D9D_TRY_OR(st, describe_optimizer(r.optimizer, a, &sim.updates), out);
    D9D_TRY_OR(st, simulate_steps(&r, a, &sim), out);
    D9D_TRY_OR(st, simulate_between_steps(&r, &sim), out);
    D9D_TRY_OR(st, simulate_generation(&r, &sim), out);
    *out = sim;
out:
    close_rank(&r);
    return st;
}
