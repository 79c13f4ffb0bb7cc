/* engine.c - a model on the ranks of a job.  See engine/engine.h. */
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/environment.h"
#include "d9d/base/plugin_call.h"
#include "d9d/model/lora/peft.h"
#include "d9d/parallel/parallel_plan.h"
#include "d9d/parallel/tied_weights.h"
#include "engine/job_start.h"

/* --- the program ---------------------------------------------------------------------- */

/* Alone there is one stage, and micro-batches go through it one by one whatever the schedule. */
static d9d_pipe_how pipe_of(const d9di_engine_how *how)
{
    const d9d_pipe_how alone = {.kind = D9D_PIPE_1F1B, .stages_per_rank = 1};

    if (!how->train)
        return (d9d_pipe_how){.kind = D9D_PIPE_INFERENCE};
    return how->mesh->pipeline_parallel == 1 ? alone : how->pipe;
}

static d9d_status program_make(const d9di_engine *e, int64_t micros, d9d_program *out)
{
    const int64_t most = D9D_PIPE_MAX_MICROS + 1; /* is refused with its number */
    const int n = (int)(micros < most ? micros : most);
    d9d_program p;
    d9d_status st;

    if (e->aside.executor != NULL)
        D9D_TRY(d9d_program_forward(e->pipe_ranks, e->aside.program.stages / e->pipe_ranks, n,
                                    e->aside.program.layout, &p));
    else
        D9D_TRY(d9d_program_build(&e->pipe, e->pipe_ranks, n, &p));
    st = d9d_program_connect(&p);
    if (st == D9D_OK)
        st = d9d_program_check(&p);
    if (st == D9D_OK)
        *out = p;
    else
        d9d_program_release(&p);
    return st;
}

static d9d_status executor_make(d9di_engine *e)
{
    const d9d_executor_how how = {.program = &e->program,
                                  .rank = e->pipe_rank,
                                  .dev = e->dev,
                                  .down = e->down,
                                  .up = e->up,
                                  .ops = &d9di_engine_ops,
                                  .self = e};

    return d9d_executor_create(&how, &e->executor);
}

d9d_status d9di_engine_pipe(d9di_engine *e, int64_t micros)
{
    d9d_program p;

    if (e->program.micros == micros)
        return D9D_OK;
    D9D_TRY(program_make(e, micros, &p));
    d9d_executor_free(e->executor);
    e->executor = NULL;
    d9d_program_release(&e->program);
    e->program = p;
    return executor_make(e);
}

/* The training's program stands aside meanwhile. */
d9d_status d9di_engine_forward_begin(d9di_engine *e, int64_t micros)
{
    d9d_status st;

    e->aside = (d9di_engine_aside){e->program, e->executor, e->meter};
    e->program = (d9d_program){0};
    e->executor = NULL;
    e->meter = NULL;
    st = d9di_engine_pipe(e, micros);
    if (st != D9D_OK)
        d9di_engine_forward_end(e);
    return st;
}

void d9di_engine_forward_end(d9di_engine *e)
{
    d9d_executor_free(e->executor);
    d9d_program_release(&e->program);
    e->program = e->aside.program;
    e->executor = e->aside.executor;
    e->meter = e->aside.meter;
    e->aside = (d9di_engine_aside){.executor = NULL};
}

static d9d_status program_open(d9di_engine *e, const d9di_engine_how *how)
{
    d9d_status st;

    e->pipe = pipe_of(how);
    e->pipe_ranks = (int)how->mesh->pipeline_parallel;
    e->pipe_rank = d9d_degrees_index(how->mesh, D9D_AXIS(PP), d9d_boot_rank(how->where->boot));
    st = program_make(e, e->pipe_ranks > 1 && how->train ? how->micros : 1, &e->program);
    if (st == D9D_EINVAL && e->pipe.own != NULL) /* a plugin's */
        return D9D_FAIL(D9D_ECONFIG, "schedule %s: %s", e->pipe.own->table->name,
                        d9d_err_message());
    D9D_TRY(st);
    if (how->train && !e->program.backward)
        return D9D_FAIL(D9D_ECONFIG, "trainer.pipelining.schedule: \"%s\" computes no gradients",
                        d9d_pipe_kind_word(e->pipe.kind));
    return D9D_OK;
}

/* --- opening ------------------------------------------------------------------------ */

/* A stage's structure, and its parameters. */
static d9d_status model_open(d9di_engine *e, const d9di_engine_how *how, d9d_stage stage,
                             d9d_model **model, d9d_params *params)
{
    static const d9d_dtype dtypes[] = {D9D_F32, D9D_BF16};
    const d9d_model_spec *s = &e->spec;

    D9D_TRY(D9D_CALL(s->provider->table->name, s->provider, create, s->config, stage, &s->options,
                     model));
    D9D_TRY(d9di_task_extend(how->task, *model, &s->options));
    e->seed = how->seed;
    if (how->peft != NULL)
        D9D_TRY(d9d_peft_apply(how->peft, (*model)->module, stage.count > 1));
    D9D_TRY(d9d_module_bind((*model)->module));
    D9D_TRY(d9d_module_params((*model)->module, &e->arena, params));
    for (size_t i = 0; i < params->n; i++) {
        d9d_param *p = params->p[i];

        if (how->train)
            p->grad_dtype =
                how->gradients->grad_dtype < 0 ? p->dtype : dtypes[how->gradients->grad_dtype];
        p->own = (d9d_tensor){.dtype = p->dtype, .shape = p->box};
    }
    return D9D_OK;
}

d9d_status d9di_engine_check_adapter(const d9di_engine *e, const char *adapter, const char *source)
{
    if (adapter == NULL)
        return D9D_OK;
    if (e->adapters.n == 0 && source == NULL)
        return D9D_FAIL(D9D_ECONFIG,
                        "trainer.model_stage_factory: source_adapter is given and nothing that it "
                        "could be merged into, no source_checkpoint");
    return D9D_OK;
}

/* The adapters to begin with, if any. */
static d9d_status adapter_open(d9di_engine *e, const d9di_engine_how *how)
{
    d9d_model_matrices of;

    D9D_TRY(d9d_peft_params_of(&e->all, false, &e->arena, &e->base));
    D9D_TRY(d9d_peft_params_of(&e->all, true, &e->arena, &e->adapters));
    if (how->adapter == NULL || !how->initialise)
        return D9D_OK;
    D9D_TRY(d9di_engine_check_adapter(e, how->adapter, how->source));
    D9D_TRY(d9d_model_spec_matrices(&e->spec, &e->arena, &of));
    D9D_TRY(d9d_adapters_read(how->adapter, &of, how->source, how->where->log, &e->given));
    return e->adapters.n > 0 ? d9d_adapters_check(e->given, &e->adapters) : D9D_OK;
}

/* Weights are read from the source; adapters that are not trained are merged into them. */
static bool reads_source(const d9di_engine_how *how)
{
    return how->source != NULL && how->initialise;
}
static const d9d_adapters *merged_ones(const d9di_engine *e)
{
    return e->adapters.n == 0 ? e->given : NULL;
}

static bool is_read(const d9d_weights *w, const char *name)
{
    const d9d_map_plan *plan = d9d_weights_plan(w);

    for (size_t i = 0; i < d9d_plan_output_count(plan); i++)
        if (strcmp(d9d_plan_output(plan, i)->name, name) == 0)
            return true;
    return false;
}

/* What a task has added is in the checkpoint, or in the adapters, or is trained. */
static d9d_status heads_check(const d9di_engine *e, const d9di_engine_how *how, const d9di_stage *s)
{
    for (size_t i = 0; i < s->params.n; i++) {
        const d9d_param *p = s->params.p[i];

        if (!p->added || p->buffer || p->trainable || is_read(s->weights, p->name) ||
            (e->given != NULL && d9d_adapters_have_head(e->given, p->name)))
            continue;
        return D9D_FAIL(D9D_ECONFIG,
                        "peft: %s would stay random: %s does not have it, and no method trains it; "
                        "\"full_tune\" does",
                        p->name, how->source);
    }
    return D9D_OK;
}

static d9d_status stage_open(d9di_engine *e, const d9di_engine_how *how, int k, d9di_stage *out)
{
    const d9d_stage stage = {d9d_program_stage_of(&e->program, e->pipe_rank, k), e->program.stages};
    d9d_model_spec spec = e->spec;

    if (stage.count == 1) {
        out->model = e->whole;
        out->params = e->all;
    } else {
        D9D_TRY(model_open(e, how, stage, &out->model, &out->params));
    }
    D9D_TRY(d9d_peft_params_of(&out->params, false, &e->arena, &out->base));
    spec.params = &out->params;
    if (!reads_source(how))
        return D9D_OK;
    D9D_TRY(d9d_weights_open(&spec, stage, how->source, merged_ones(e), &out->weights));
    return how->train ? heads_check(e, how, out) : D9D_OK;
}

static d9d_status stages_open(d9di_engine *e, const d9di_engine_how *how)
{
    const int n = e->program.stages / e->program.ranks;
    size_t total = 0;

    e->stages = d9d_arena_alloc(&e->arena, (size_t)n * sizeof(*e->stages));
    e->models = d9d_arena_alloc(&e->arena, (size_t)n * sizeof(*e->models));
    if (e->stages == NULL || e->models == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %d stages", n);
    if (reads_source(how) && e->program.stages > 1)
        D9D_TRY(d9d_weights_check(&e->spec, how->source, merged_ones(e)));
    for (int k = 0; k < n; k++) {
        e->n_stages++;
        D9D_TRY(stage_open(e, how, k, &e->stages[k]));
        e->models[k] = e->stages[k].model;
        total += e->stages[k].params.n;
    }
    e->params.p = d9d_arena_alloc(&e->arena, (total + 1) * sizeof(d9d_param *));
    if (e->params.p == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a list of %zu parameters", total);
    for (int k = 0; k < n; k++)
        for (size_t i = 0; i < e->stages[k].params.n; i++)
            e->params.p[e->params.n++] = e->stages[k].params.p[i];
    return D9D_OK;
}

static d9d_status open_into(d9di_engine *e, const d9di_engine_how *how)
{
    const d9d_head head = d9di_task_head(how->task);

    D9D_TRY(d9di_launch_check(how->where->boot, how->where->device));
    D9D_TRY(d9d_model_spec_read(how->provider, &e->arena, &e->spec));
    D9D_TRY(d9d_model_spec_rehead(&e->spec, &e->arena, &head));
    D9D_TRY(how->train ? d9d_model_spec_trainable(&e->spec) : D9D_OK);
    D9D_TRY(d9d_model_plan_check(&e->spec, how->mesh));
    D9D_TRY(program_open(e, how));
    D9D_TRY(model_open(e, how, D9D_WHOLE_MODEL, &e->whole, &e->all));
    e->spec.params = &e->all;
    e->task = how->task;
    if (how->data != NULL)
        D9D_TRY(d9di_data_check(how->data, e->whole->vocab, e->whole->max_positions));
    D9D_TRY(adapter_open(e, how));
    return stages_open(e, how);
}

d9d_status d9di_engine_open(const d9di_engine_how *how, d9di_engine *out)
{
    d9di_engine e = {0};
    d9d_status st = open_into(&e, how);

    if (st == D9D_OK) {
        *out = e;
        out->spec.params = &out->all;
    } else {
        d9di_engine_release(&e);
    }
    return st;
}

static d9d_status weights_read(d9di_stage *s, const d9d_log *log)
{
    d9d_status st = d9d_weights_read(s->weights, &s->base, log);

    d9d_weights_close(s->weights);
    s->weights = NULL;
    return st;
}

/* What is known before a batch is: activations come on top. */
static uint64_t bytes_needed(const d9di_engine *e, const d9di_engine_how *how)
{
    uint64_t sum = how->optimizer != NULL ? d9d_optimizer_bytes(how->optimizer) : 0;

    for (size_t i = 0; i < e->params.n; i++) {
        const d9d_param *p = e->params.p[i];
        const bool has_grad = how->train && p->trainable;

        sum += (uint64_t)d9d_shape_numel(&p->box) *
               (d9d_dtype_size(p->dtype) + (has_grad ? d9d_dtype_size(p->grad_dtype) : 0));
    }
    return sum;
}

d9d_sharded_how d9di_engine_sharding(const d9di_engine_how *how)
{
    if (!how->train)
        return (d9d_sharded_how){.with_grads = false};
    return (d9d_sharded_how){
        .with_grads = true,
        .reduce_once = how->gradients->reduce == D9D_REDUCE_STEP,
        .keep = !how->sharding->reshard_after_forward,
        .bucket_bytes = (uint64_t)how->gradients->bucket_size_mb << 20,
    };
}

static void trim(void *dev)
{
    d9d_device_trim(dev);
}

/* The ranks, and what each of them has of the model. */
static d9d_status ranks_join(d9di_engine *e, const d9di_engine_how *how)
{
    const d9d_mesh_how mesh = {.timeout_s = how->timeout_s,
                               .limit = how->limit,
                               .stopped_s = how->stopped_s,
                               .flight_dir = how->flight,
                               .log = how->where->log,
                               .trim = trim,
                               .trim_arg = e->dev};
    const char *net = e->dev->kernels->name;
    const d9d_sharded_how sharded = d9di_engine_sharding(how);
    uint64_t units, most = 0;

    D9D_TRY(d9d_mesh_open(how->where->boot, how->mesh, net, e->dev->stream, &mesh, &e->mesh));
    D9D_TRY(d9d_mesh_group(e->mesh, D9D_AXES_WORLD, &e->world));
    D9D_TRY(d9d_mesh_group(e->mesh, D9D_AXIS(PP), &e->down));
    D9D_TRY(d9d_mesh_group_beside(e->mesh, D9D_AXIS(PP), 1, &e->up));
    for (size_t k = 0; k < e->n_stages; k++) {
        D9D_TRY(d9d_model_plan(&e->spec, e->mesh, e->stages[k].model));
        d9d_tied_place(e->stages[k].model);
        D9D_TRY(d9d_sharded_bytes(e->stages[k].model, &sharded, &units));
        most = units > most ? units : most;
    }
    D9D_TRY(d9d_device_expect(e->dev, bytes_needed(e, how) + most));
    if (e->pipe_ranks > 1) /* then two of its actions may be done in turns */
        D9D_TRY(d9d_comm_rooms_agree(e->models[0]->cut.ep, e->world));
    for (size_t k = 0; k < e->n_stages; k++)
        D9D_TRY(d9d_sharded_create(e->stages[k].model, e->dev, &sharded, &e->stages[k].sharded));
    return executor_make(e);
}

/* "4 ranks: data_parallel_shard 2, tensor_parallel 2"; "" for one. */
static void ranks_text(const d9d_mesh *mesh, char *out, size_t n)
{
    const d9d_degrees *d = d9d_mesh_degrees(mesh);
    const struct {
        const char *name;
        int64_t degree;
    } axes[] = {
        {"data_parallel_replicate", d->data_parallel_replicate},
        {"data_parallel_shard", d->data_parallel_shard},
        {"context_parallel_shard", d->context_parallel_shard},
        {"context_parallel_replicate", d->context_parallel_replicate},
        {"tensor_parallel", d->tensor_parallel},
        {"pipeline_parallel", d->pipeline_parallel},
        {"expert_parallel", d->expert_parallel},
    };
    const char *between = ": ";
    int at;

    out[0] = '\0';
    if (d9d_mesh_size(mesh) == 1)
        return;
    at = snprintf(out, n, ", %d ranks", d9d_mesh_size(mesh));
    for (size_t i = 0; i < sizeof(axes) / sizeof(axes[0]) && at >= 0 && (size_t)at < n; i++) {
        if (axes[i].degree == 1)
            continue;
        at += snprintf(out + at, n - (size_t)at, "%s%s %lld", between, axes[i].name,
                       (long long)axes[i].degree);
        between = ", ";
    }
}

static void tell(const d9di_engine *e, const d9d_log *log)
{
    char ranks[256], some[64] = "";

    ranks_text(e->mesh, ranks, sizeof(ranks));
    if (d9di_engine_count(e, true) < d9di_engine_count(e, false))
        (void)snprintf(some, sizeof(some), ", of which %lld are trained",
                       (long long)d9di_engine_count(e, true));
    d9d_log_info(log, "%s: %s, %lld parameters%s, %s%s", e->dev->name, e->whole->ops->name,
                 (long long)d9di_engine_count(e, false), some,
                 d9d_dtype_word(e->spec.options.dtype), ranks);
}

/* What adapts a model, or a task has added, begins at random; the latter only where the checkpoint
 * does not have it. */
static d9d_status stage_fill(d9di_engine *e, const d9di_engine_how *how, d9di_stage *s)
{
    D9D_TRY(d9d_module_materialise(s->model->module, e->dev, how->train));
    if (!how->initialise)
        return D9D_OK;
    for (size_t i = 0; i < s->params.n; i++)
        if (s->weights == NULL || s->params.p[i]->adapts != NULL || s->params.p[i]->added)
            D9D_TRY(d9d_param_reset(s->params.p[i], how->seed));
    return s->weights != NULL ? weights_read(s, how->where->log) : D9D_OK;
}

/* Adapters that are not trained have been merged, but for heads beside them. */
static d9d_status stage_adapt(d9di_engine *e, const d9di_stage *s, const d9d_log *log)
{
    d9d_params mine;

    D9D_TRY(d9d_peft_params_of(&s->params, true, &e->arena, &mine));
    D9D_TRY(d9d_adapters_fill(e->given, &mine, log));
    return d9d_adapters_fill_heads(e->given, &s->params, log);
}

/* What of the environment concerns the device that was found. */
static void tell_environment(const d9d_device *dev, const d9d_job *where,
                             const d9d_environment *env)
{
    const bool gpu = strcmp(dev->kernels->name, "cuda") == 0;
    const bool could = d9d_device_check("cuda") == D9D_OK; /* this build */
    unsigned uses = 0;

    if (gpu)
        uses = D9D_ENVIRONMENT_GPU | (d9d_boot_size(where->boot) > 1 ? D9D_ENVIRONMENT_NCCL : 0);
    else if (could && strncmp(where->device, "auto", 4) == 0)
        uses = D9D_ENVIRONMENT_NO_GPU;
    d9d_environment_say(env, uses, where->log);
}

d9d_status d9di_engine_fill(d9di_engine *e, const d9di_engine_how *how)
{
    d9d_environment env;

    d9d_environment_read(~0u, getenv, &env);
    D9D_TRY(d9di_launch_device(how->where->boot, how->where->device, &e->dev));
    e->dev->log = how->where->log;
    tell_environment(e->dev, how->where, &env);
    D9D_TRY(ranks_join(e, how));
    tell(e, how->where->log);
    for (size_t k = 0; k < e->n_stages; k++) {
        D9D_TRY(stage_fill(e, how, &e->stages[k]));
        D9D_TRY(e->given != NULL ? stage_adapt(e, &e->stages[k], how->where->log) : D9D_OK);
    }
    d9d_adapters_free(e->given);
    e->given = NULL;
    return D9D_OK;
}

void d9di_engine_release(d9di_engine *e)
{
    if (e->aside.executor != NULL)
        d9di_engine_forward_end(e);
    d9d_executor_free(e->executor);
    for (size_t k = 0; k < e->n_stages; k++) {
        d9di_stage *s = &e->stages[k];

        d9d_weights_close(s->weights);
        d9d_sharded_free(s->sharded);
        if (s->model != e->whole)
            d9d_model_free(s->model);
    }
    d9d_model_free(e->whole);
    d9d_program_release(&e->program);
    d9d_adapters_free(e->given);
    d9d_mesh_close(e->mesh);
    d9d_device_close(e->dev);
    D9D_VEC_RELEASE(&e->micros);
    d9d_part_room_release(&e->room);
    d9d_pool_room_release(&e->pool_room);
    d9d_arena_release(&e->arena);
    *e = (d9di_engine){0};
}

int64_t d9di_engine_count(const d9di_engine *e, bool trainable_only)
{
    int64_t n = 0;

    for (size_t i = 0; i < e->all.n; i++)
        if (e->all.p[i]->trainable || !trainable_only)
            n += d9d_shape_numel(&e->all.p[i]->whole);
    return n;
}

bool d9di_engine_ends(const d9di_engine *e)
{
    return d9d_stage_is_last(e->stages[e->n_stages - 1].model->stage); /* they ascend */
}
