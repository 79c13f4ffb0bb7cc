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
#include "engine/expert_nodes.h"
#include "engine/expert_replication.h"
#include "engine/fp8.h"
#include "engine/frozen_model.h"
#include "engine/job_start.h"
#include "engine/prompt.h"
#include "engine/quant_weights.h"
#include "engine/stage_tuple.h"

/* --- the program ---------------------------------------------------------------------- */

/* Without a pipeline there is one stage, and micro-batches run one by one, whatever the
 * schedule. */
static d9d_pipe_schedule_opts pipe_opts(const d9di_engine_opts *opts)
{
    const d9d_pipe_schedule_opts alone = {.kind = D9D_PIPE_1F1B, .stages_per_rank = 1};

    if (!opts->train)
        return (d9d_pipe_schedule_opts){.kind = D9D_PIPE_INFERENCE};
    return opts->mesh->pipeline_parallel == 1 ? alone : opts->pipe;
}

/* The program of training or, with `train`, that of an evaluation between its steps. */
static d9d_status program_make(const d9di_engine_pipe *pipe, const d9d_program *train,
                               int64_t micros, d9d_program *out)
{
    const int64_t max_group = D9D_PIPE_MAX_MICROS + 1; /* more is refused by number */
    const int n = (int)(micros < max_group ? micros : max_group);
    d9d_program p;
    d9d_status st;

    if (train != NULL)
        D9D_TRY(
            d9d_program_forward(pipe->ranks, train->stages / pipe->ranks, n, train->layout, &p));
    else
        D9D_TRY(d9d_program_build(&pipe->opts, pipe->ranks, n, &p));
    st = d9d_program_insert_p2p(&p);
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
    const d9d_executor_opts opts = {.program = &e->exec.program,
                                    .rank = e->pipe.rank,
                                    .dev = e->dev,
                                    .down = e->pipe.down,
                                    .up = e->pipe.up,
                                    .tensors = d9di_stage_tuple_longest(e),
                                    .simulated = e->simulated,
                                    .ops = &d9di_engine_executor_ops,
                                    .self = e};

    return d9d_executor_create(&opts, &e->exec.executor);
}

bool d9di_engine_is_evaluating(const d9di_engine *e)
{
    return e->train_exec.executor != NULL;
}

d9d_status d9di_engine_build_pipe(d9di_engine *e, int64_t micros)
{
    d9d_program p;

    if (e->exec.program.micros == micros)
        return D9D_OK;
    D9D_TRY(program_make(&e->pipe, d9di_engine_is_evaluating(e) ? &e->train_exec.program : NULL,
                         micros, &p));
    d9d_executor_free(e->exec.executor);
    e->exec.executor = NULL;
    d9d_program_release(&e->exec.program);
    e->exec.program = p;
    return executor_make(e);
}

/* Saves the training program. */
d9d_status d9di_engine_eval_begin(d9di_engine *e, int64_t micros)
{
    d9d_status st;

    e->train_exec = e->exec;
    e->exec = (d9di_engine_exec){.executor = NULL};
    st = d9di_engine_build_pipe(e, micros);
    if (st != D9D_OK)
        d9di_engine_eval_end(e);
    return st;
}

void d9di_engine_eval_end(d9di_engine *e)
{
    d9d_executor_free(e->exec.executor);
    d9d_program_release(&e->exec.program);
    e->exec = e->train_exec;
    e->train_exec = (d9di_engine_exec){.executor = NULL};
}

static d9d_status program_open(d9di_engine *e, const d9di_engine_opts *opts)
{
    d9d_status st;

    e->pipe.opts = pipe_opts(opts);
    e->pipe.ranks = (int)opts->mesh->pipeline_parallel;
    e->pipe.rank = d9d_parallel_degrees_index(opts->mesh, D9D_AXIS(PP),
                                              d9d_bootstrap_rank(opts->where->bootstrap));
    st = program_make(&e->pipe, NULL, e->pipe.ranks > 1 && opts->train ? opts->micros : 1,
                      &e->exec.program);
    if (st == D9D_EINVAL && e->pipe.opts.custom != NULL) /* a plugin's schedule */
        return D9D_FAIL(D9D_ECONFIG, "schedule %s: %s", e->pipe.opts.custom->table->name,
                        d9d_err_message());
    D9D_TRY(st);
    if (opts->train && !e->exec.program.backward)
        return D9D_FAIL(D9D_ECONFIG, "trainer.pipelining.schedule: \"%s\" computes no gradients",
                        d9d_pipe_schedule_name(e->pipe.opts.kind));
    return D9D_OK;
}

/* --- opening ------------------------------------------------------------------------ */

static const d9d_dtype dtypes[] = {D9D_F32, D9D_BF16}; /* by d9d_model_dtype_names */

/* Builds a stage's structure, and its parameters. */
static d9d_status model_open(d9di_engine *e, const d9di_engine_opts *opts, d9d_stage stage,
                             d9d_model **model, d9d_params *params)
{
    const d9d_model_spec *s = &e->spec;

    D9D_TRY(D9D_PLUGIN_CALL(s->provider->table->name, s->provider, create, s->config, stage,
                            &s->opts, model));
    D9D_TRY(d9di_task_extend(opts->task, *model, &s->opts));
    e->seed = opts->seed;
    if (opts->peft != NULL)
        D9D_TRY(d9d_peft_apply(opts->peft, *model, stage.count > 1));
    D9D_TRY(d9d_module_bind((*model)->module));
    D9D_TRY(d9d_module_params((*model)->module, &e->arena, params));
    if (stage.count > 1)
        d9d_adapter_shared_set_names(&e->whole.params, params);
    d9di_engine_quant_apply(params, &opts->quantised);
    for (size_t i = 0; i < params->n; i++) {
        d9d_param *p = params->p[i];

        if (opts->train)
            p->spec.grad_dtype = opts->gradients->grad_dtype < 0
                                     ? p->spec.dtype
                                     : dtypes[opts->gradients->grad_dtype];
        p->shard.data = d9d_param_stored(p, &p->shard);
    }
    return D9D_OK;
}

d9d_status d9di_engine_check_adapter(const d9di_engine *e, const char *adapter, const char *source)
{
    if (adapter == NULL)
        return D9D_OK;
    if (e->whole.adapters.n == 0 && source == NULL)
        return D9D_FAIL(D9D_ECONFIG,
                        "trainer.model_stage_factory: source_adapter is given and nothing that it "
                        "could be merged into, no source_checkpoint");
    return D9D_OK;
}

/* Refuses adapters that peft cannot have, before anything is spent; those of matrices that
 * HuggingFace does not have are kept in the suite's own layout. */
static d9d_status check_writable(const d9di_engine *e, const d9d_model_matrices *of)
{
    const d9d_status st = d9d_adapters_check_writable(&e->whole.params, of);

    return st == D9D_ENOTSUP ? D9D_OK : st;
}

/* Opens the adapters to start from, if any. */
static d9d_status adapter_open(d9di_engine *e, const d9di_engine_opts *opts)
{
    d9d_model_matrices of;

    D9D_TRY(d9d_peft_params_of(&e->whole.params, false, &e->arena, &e->whole.base));
    D9D_TRY(d9d_peft_params_of(&e->whole.params, true, &e->arena, &e->whole.adapters));
    D9D_TRY(d9d_model_spec_matrices(&e->spec, &e->arena, &of));
    D9D_TRY(d9d_adapter_shared_check(&e->whole.params));
    if (e->whole.adapters.n > 0)
        D9D_TRY(check_writable(e, &of));
    if (opts->adapter == NULL || !opts->initialise)
        return D9D_OK;
    D9D_TRY(d9di_engine_check_adapter(e, opts->adapter, opts->source));
    D9D_TRY(d9d_adapters_read(opts->adapter, &of, d9d_plugins_adapter_kinds(opts->where->plugins),
                              opts->source, opts->where->log, &e->given_adapters));
    D9D_TRY(d9d_adapters_prompt_check(e->given_adapters, opts->adapter, &e->whole.params));
    if (e->whole.adapters.n == 0)
        return D9D_OK;
    D9D_TRY(d9d_adapters_check(e->given_adapters, &e->whole.adapters));
    return opts->train ? d9d_adapters_saved_check_trained(e->given_adapters, &e->whole.params)
                       : D9D_OK;
}

/* True if weights are read from the source; adapters that are not trained are merged into them. */
static bool reads_source(const d9di_engine_opts *opts)
{
    return opts->source != NULL && opts->initialise;
}
static const d9d_adapters *merged_adapters(const d9di_engine *e)
{
    return e->whole.adapters.n == 0 && !d9d_adapters_are_prompt(e->given_adapters)
               ? e->given_adapters
               : NULL;
}

static bool is_in_source(const d9d_weights *w, const char *name)
{
    const d9d_map_plan *plan = d9d_weights_plan(w);

    for (size_t i = 0; i < d9d_map_plan_output_count(plan); i++)
        if (strcmp(d9d_map_plan_output(plan, i)->name, name) == 0)
            return true;
    return false;
}

/* Parameters that a task has added must be in the checkpoint or in the adapters, or be trained. */
static d9d_status check_task_params(const d9di_engine *e, const d9di_engine_opts *opts,
                                    const d9di_engine_stage *s)
{
    for (size_t i = 0; i < s->params.n; i++) {
        const d9d_param *p = s->params.p[i];

        if (!p->spec.from_task || p->spec.is_buffer || (opts->train && p->spec.trainable) ||
            is_in_source(s->weights, p->name) ||
            (e->given_adapters != NULL && d9d_adapters_have_saved(e->given_adapters, p->name)))
            continue;
        if (!opts->train)
            return D9D_FAIL(D9D_EMISMATCH,
                            "task: %s would be random: %s does not have it, and it is not learned "
                            "here",
                            p->name, opts->source);
        return D9D_FAIL(D9D_ECONFIG,
                        "peft: %s would stay random: %s does not have it, and no method trains it; "
                        "\"full_tune\" does",
                        p->name, opts->source);
    }
    return D9D_OK;
}

static d9d_status stage_open(d9di_engine *e, const d9di_engine_opts *opts, int k,
                             d9di_engine_stage *out)
{
    const d9d_stage stage = {d9d_program_stage_of(&e->exec.program, e->pipe.rank, k),
                             e->exec.program.stages};
    d9d_model_spec spec = e->spec;

    if (stage.count == 1) {
        out->model = e->whole.model;
        out->params = e->whole.params;
    } else {
        D9D_TRY(model_open(e, opts, stage, &out->model, &out->params));
    }
    D9D_TRY(d9d_peft_params_of(&out->params, false, &e->arena, &out->base));
    spec.params = &out->params;
    if (!reads_source(opts))
        return D9D_OK;
    D9D_TRY(d9d_weights_open(&spec, stage, opts->source, merged_adapters(e), &out->weights));
    return check_task_params(e, opts, out);
}

static d9d_status stages_open(d9di_engine *e, const d9di_engine_opts *opts)
{
    const int n = e->exec.program.stages / e->exec.program.ranks;
    size_t total = 0;

    e->stages = d9d_arena_alloc(&e->arena, (size_t)n * sizeof(*e->stages));
    e->models = d9d_arena_alloc(&e->arena, (size_t)n * sizeof(*e->models));
    if (e->stages == NULL || e->models == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %d stages", n);
    if (reads_source(opts) && e->exec.program.stages > 1)
        D9D_TRY(d9d_weights_check(&e->spec, opts->source, merged_adapters(e)));
    for (int k = 0; k < n; k++) {
        e->n_stages++;
        D9D_TRY(stage_open(e, opts, k, &e->stages[k]));
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

/* Refuses a prefix mask for models and tasks where it cannot hold. */
static d9d_status check_prefix_mask(const d9di_engine *e)
{
    const d9d_model *m = e->whole.model;

    if (!e->spec.opts.prefix_mask)
        return D9D_OK;
    if (m->whole_sequences || m->bidirectional)
        return D9D_FAIL(D9D_ECONFIG,
                        "model_provider.attention_mask: \"prefix\" needs causal attention in every "
                        "layer, and %s has %s layers",
                        m->ops->name, m->bidirectional ? "bidirectional" : "recurrent");
    if (d9di_task_pooling(e->task) != D9D_POOLING_NONE)
        return D9D_FAIL(D9D_ECONFIG,
                        "model_provider.attention_mask: \"prefix\" begins at a prompt without "
                        "targets, and the task %s has no next tokens as targets",
                        e->task->kind->table != NULL ? e->task->kind->table->name : "here");
    return D9D_OK;
}

/* A model that does not mark its layers would keep everything on the device. */
static d9d_status check_offload(const d9di_engine *e, const d9di_engine_opts *opts)
{
    if (opts->train && opts->offload->activations == D9D_JOB_OFFLOAD_HOST &&
        !e->whole.model->ops->offloads)
        return D9D_FAIL(D9D_ECONFIG,
                        "trainer.offload.activations: \"host\" needs a model that marks its "
                        "layers, and %s does not",
                        e->whole.model->ops->name);
    return D9D_OK;
}

static d9d_status check_release(const d9di_engine *e, const d9di_engine_opts *opts)
{
    if (opts->release_grads && e->whole.model->n_units == 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "trainer.optimizer_in_backward needs a model with units, whose gradients "
                        "are final together, and %s has none",
                        e->whole.model->ops->name);
    return D9D_OK;
}

static d9d_status open_parts(d9di_engine *e, const d9di_engine_opts *opts)
{
    const d9d_head head = d9di_task_head(opts->task);

    D9D_TRY(d9di_job_start_check_device(opts->where->bootstrap, opts->where->device));
    D9D_TRY(d9d_model_spec_read(opts->provider, &e->arena, &e->spec));
    e->spec.source = opts->source;
    D9D_TRY(d9d_model_spec_set_head(&e->spec, &e->arena, &head));
    D9D_TRY(opts->train ? d9d_model_spec_trainable(&e->spec) : D9D_OK);
    D9D_TRY(d9d_parallel_plan_check(&e->spec, opts->mesh));
    D9D_TRY(program_open(e, opts));
    D9D_TRY(model_open(e, opts, D9D_WHOLE_MODEL, &e->whole.model, &e->whole.params));
    e->spec.params = &e->whole.params;
    D9D_TRY(d9d_parallel_plan_check_adapters(&e->whole.params, opts->mesh));
    e->task = opts->task;
    D9D_TRY(check_prefix_mask(e));
    D9D_TRY(d9di_engine_prompt_check(e));
    D9D_TRY(check_offload(e, opts));
    D9D_TRY(check_release(e, opts));
    if (opts->fp8 != NULL)
        D9D_TRY(d9di_engine_fp8_check(opts->fp8, &e->whole.params, opts->mesh->tensor_parallel));
    D9D_TRY(d9di_engine_quant_check(&e->whole.params, opts));
    D9D_TRY(
        d9di_expert_replication_check(opts->replication, opts->mesh, opts->fp8, e->whole.model));
    if (opts->data != NULL) {
        D9D_TRY(
            d9di_run_data_check(opts->data, e->whole.model->vocab, e->whole.model->max_positions));
        D9D_TRY(d9di_task_set_fields(opts->task, e->whole.model, opts->data));
        D9D_TRY(d9di_run_data_add_prompt(opts->data, e->whole.model));
        D9D_TRY(d9di_run_data_check_tokenizer(opts->data, opts->source, e->spec.hf_config));
    }
    D9D_TRY(adapter_open(e, opts));
    D9D_TRY(stages_open(e, opts));
    D9D_TRY(d9di_frozen_model_open(e, opts));
    return d9di_stage_tuple_open(e);
}

d9d_status d9di_engine_open(const d9di_engine_opts *opts, d9di_engine *out)
{
    d9di_engine e = {0};
    d9d_status st = open_parts(&e, opts);

    if (st == D9D_OK) {
        *out = e;
        out->spec.params = &out->whole.params;
        out->frozen.spec.params = &out->frozen.params;
    } else {
        d9di_engine_release(&e);
    }
    return st;
}

static d9d_status weights_read(d9di_engine_stage *s, const d9d_log *log)
{
    d9d_status st = d9d_weights_read(s->weights, &s->base, log);

    d9d_weights_close(s->weights);
    s->weights = NULL;
    return st;
}

/* A lower bound that is known before a batch is; activations come on top. */
static uint64_t bytes_needed(const d9di_engine *e, const d9di_engine_opts *opts)
{
    const d9d_expert_copies_size copies = d9di_expert_replication_bytes(e, opts->replication);
    uint64_t sum = opts->optimizer != NULL ? d9d_optimizer_bytes(opts->optimizer) : 0;

    sum += opts->more_bytes != NULL ? opts->more_bytes(e, opts->more_bytes_arg) : 0;
    sum += d9di_frozen_model_bytes(e) + copies.weights + copies.gradients;
    for (size_t i = 0; i < e->params.n; i++) {
        const d9d_param *p = e->params.p[i];
        const bool has_grad = opts->train && p->spec.trainable && !opts->release_grads;

        sum += d9d_param_stored_bytes(p, &p->shard);
        sum += has_grad
                   ? (uint64_t)d9d_shape_numel(&p->shard.shape) * d9d_dtype_size(p->spec.grad_dtype)
                   : 0;
    }
    return sum;
}

d9d_fsdp_opts d9di_engine_fsdp_opts(const d9di_engine_opts *opts)
{
    if (!opts->train)
        return (d9d_fsdp_opts){.with_grads = false, .prefetch = 1};
    return (d9d_fsdp_opts){
        .with_grads = true,
        .reduce_once = opts->gradients->reduce == D9D_JOB_GRAD_REDUCE_STEP,
        .reshard = !opts->sharding->reshard_after_backward  ? D9D_RESHARD_AFTER_STEP
                   : !opts->sharding->reshard_after_forward ? D9D_RESHARD_AFTER_BACKWARD
                                                            : D9D_RESHARD_AFTER_FORWARD,
        .prefetch = (int)opts->sharding->prefetch,
        .bucket_bytes = (uint64_t)opts->gradients->bucket_size_mb << 20,
        .reduce_dtype =
            opts->gradients->reduce_dtype < 0 ? D9D_F32 : dtypes[opts->gradients->reduce_dtype],
        .float8_all_gather = opts->fp8 != NULL && opts->fp8->fsdp_float8_all_gather,
        .release_grads = opts->release_grads,
    };
}

static void trim_device_pool(void *dev)
{
    d9d_device_trim(dev);
}

/* Builds the mesh, and this rank's part of the model. */
static d9d_status join_ranks(d9di_engine *e, const d9di_engine_opts *opts)
{
    const d9d_mesh_opts mesh = {.timeout_s = opts->timeout_s,
                                .timeout_name = opts->timeout_name,
                                .stopped_timeout_s = opts->stopped_s,
                                .flight_dir = opts->flight,
                                .log = opts->where->log,
                                .trim = trim_device_pool,
                                .trim_arg = e->dev};
    const char *net = e->dev->kernels->name;
    const d9d_fsdp_opts sharded = d9di_engine_fsdp_opts(opts);
    uint64_t group_bytes, max_group = 0;

    D9D_TRY(
        d9d_mesh_open(opts->where->bootstrap, opts->mesh, net, e->dev->stream, &mesh, &e->mesh));
    D9D_TRY(d9d_mesh_group(e->mesh, D9D_AXES_WORLD, &e->world));
    D9D_TRY(d9d_mesh_group(e->mesh, D9D_AXIS(PP), &e->pipe.down));
    D9D_TRY(d9d_mesh_group_dup(e->mesh, D9D_AXIS(PP), 1, &e->pipe.up));
    for (size_t k = 0; k < e->n_stages; k++) {
        D9D_TRY(d9d_parallel_plan_apply(&e->spec, e->mesh, e->stages[k].model));
        if (opts->fp8 != NULL)
            D9D_TRY(d9di_engine_fp8_apply(opts->fp8, e->dev, &e->stages[k].params, &e->fp8));
        d9d_tied_weights_set_primary(e->stages[k].model);
        D9D_TRY(d9d_fsdp_bytes(e->stages[k].model, &sharded, &group_bytes));
        max_group = group_bytes > max_group ? group_bytes : max_group;
    }
    D9D_TRY(d9di_frozen_model_place(e, &max_group));
    D9D_TRY(d9d_device_require(e->dev, bytes_needed(e, opts) + max_group));
    if (e->pipe.ranks > 1) { /* then actions of two micro-batches may be interleaved */
        D9D_TRY(d9d_symm_buffer_agree(e->models[0]->groups.ep, e->world));
        D9D_TRY(d9d_symm_buffer_agree(e->models[0]->groups.ep_local, e->world));
    }
    D9D_TRY(d9di_expert_nodes_check(opts->where->bootstrap, opts->mesh, opts->where->log));
    for (size_t k = 0; k < e->n_stages; k++)
        D9D_TRY(d9d_fsdp_create(e->stages[k].model, e->dev, &sharded, &e->stages[k].sharded));
    D9D_TRY(d9di_frozen_model_create(e));
    return executor_make(e);
}

/* "4 ranks: data_parallel_shard 2, tensor_parallel 2"; "" for one. */
static void format_ranks(const d9d_mesh *mesh, char *out, size_t n)
{
    const d9d_parallel_degrees *d = d9d_mesh_degrees(mesh);
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
        {"expert_parallel_local", d->expert_parallel_local},
    };
    const char *between = ": ";
    int at;

    out[0] = '\0';
    if (d9d_mesh_size(mesh) == 1)
        return;
    at = snprintf(out, n, ", %d ranks", d9d_mesh_size(mesh));
    for (size_t i = 0; i < sizeof(axes) / sizeof(axes[0]) && at >= 0 && (size_t)at < n; i++) {
        if (axes[i].degree <= 1)
            continue;
        at += snprintf(out + at, n - (size_t)at, "%s%s %lld", between, axes[i].name,
                       (long long)axes[i].degree);
        between = ", ";
    }
    if (d->context_parallel_method != D9D_CP_ALL_GATHER && at >= 0 && (size_t)at < n)
        (void)snprintf(out + at, n - (size_t)at, ", context_parallel_method %s",
                       d9d_cp_method_name((d9d_cp_method)d->context_parallel_method));
}

static void log_engine(const d9di_engine *e, const d9di_engine_opts *opts, const d9d_log *log)
{
    const d9di_engine_quant *q = &opts->quantised;
    const bool both = q->layers != D9D_QUANT_NONE && q->head != D9D_QUANT_NONE;
    char ranks[320], some[64] = "", stored[64] = "";

    format_ranks(e->mesh, ranks, sizeof(ranks));
    if (d9di_engine_param_count(e, true) < d9di_engine_param_count(e, false))
        (void)snprintf(some, sizeof(some), ", of which %lld are trained",
                       (long long)d9di_engine_param_count(e, true));
    if (q->layers != D9D_QUANT_NONE || q->head != D9D_QUANT_NONE)
        (void)snprintf(stored, sizeof(stored), "%s%s%s%s",
                       q->layers != D9D_QUANT_NONE ? " and layers' matrices in " : "",
                       q->layers != D9D_QUANT_NONE ? d9d_quant_name(q->layers) : "",
                       both                        ? ", the head in "
                       : q->head != D9D_QUANT_NONE ? " and the head in "
                                                   : "",
                       q->head != D9D_QUANT_NONE ? d9d_quant_name(q->head) : "");
    d9d_log_info(log, "%s: %s, %lld parameters%s, %s%s%s%s", e->dev->name,
                 e->whole.model->ops->name, (long long)d9di_engine_param_count(e, false), some,
                 d9d_dtype_name(e->spec.opts.dtype), stored,
                 opts->fp8 != NULL ? ", products of layers in FP8" : "", ranks);
}

/* Initialises adapters and parameters that a task has added at random; the latter only if the
 * checkpoint lacks them. */
static d9d_status materialize_stage(d9di_engine *e, const d9di_engine_opts *opts,
                                    d9di_engine_stage *s)
{
    if (opts->train)
        d9d_module_set_grads_on_demand(s->model->module, opts->micros == 1);
    D9D_TRY(d9d_module_materialise(s->model->module, e->dev, opts->train));
    if (!opts->initialise)
        return D9D_OK;
    for (size_t i = 0; i < s->params.n; i++)
        if (s->weights == NULL || s->params.p[i]->peft.adapts != NULL ||
            s->params.p[i]->spec.from_task)
            D9D_TRY(d9d_module_reset_param(s->params.p[i], opts->seed));
    if (s->weights != NULL)
        D9D_TRY(weights_read(s, opts->where->log));
    for (size_t i = 0; i < s->params.n; i++)
        D9D_TRY(d9d_adapter_start(s->params.p[i], e->dev));
    D9D_TRY(d9d_adapter_shared_start(&e->whole.params, &s->params, e->dev));
    return e->given_adapters == NULL ? d9di_engine_prompt_start(e, opts, s->model) : D9D_OK;
}

/* Adapters that are not trained were merged, except for heads that the source lacks. */
static d9d_status load_stage_adapters(d9di_engine *e, const d9di_engine_stage *s,
                                      const d9d_log *log)
{
    d9d_params adapter_params;

    D9D_TRY(d9d_peft_params_of(&s->params, true, &e->arena, &adapter_params));
    D9D_TRY(d9d_adapters_to_model(e->given_adapters, &adapter_params, log));
    return d9d_adapters_saved_to_model(e->given_adapters, &s->params, log);
}

/* Layers of which activation_prefetch go. */
static int offload_depth(const struct d9d_job_offload_section *c)
{
    const double layers = (double)c->activation_prefetch / c->activation_fraction;

    return (int)layers + (layers > (int)layers);
}

/* Arrays below a page cost more calls than memory. */
static d9d_status offload_create(d9di_engine *e, const struct d9d_job_offload_section *c)
{
    const d9d_offload_opts opts = {.name = "activations",
                                   .key = "trainer.offload.activations",
                                   .depth = offload_depth(c),
                                   .min_bytes = 4096};

    if (c->activations != D9D_JOB_OFFLOAD_HOST)
        return D9D_OK;
    D9D_TRY(d9d_offload_create(e->dev, &opts, &e->step.offload.to));
    e->step.offload.fraction = c->activation_fraction;
    e->step.offload.prefetch = opts.depth;
    return D9D_OK;
}

uint64_t d9di_engine_host_activations(const d9di_engine *e)
{
    return e->step.offload.to != NULL ? d9d_offload_get_stats(e->step.offload.to).host : 0;
}

/* Logs environment variables that concern the device. */
static void log_environment(const d9d_device *dev, const d9d_job *where, const d9d_environment *env)
{
    const bool gpu = strcmp(dev->kernels->name, "cuda") == 0;
    const bool could = d9d_device_check("cuda") == D9D_OK; /* this build supports it */
    const bool several = d9d_bootstrap_size(where->bootstrap) > 1;
    unsigned uses = several ? D9D_ENVIRONMENT_RANKS : 0;

    if (gpu)
        uses |= D9D_ENVIRONMENT_GPU | (several ? D9D_ENVIRONMENT_NCCL | D9D_ENVIRONMENT_GPU_RANKS
                                               : D9D_ENVIRONMENT_GPU_ALONE);
    else if (could && strncmp(where->device, "auto", 4) == 0)
        uses |= D9D_ENVIRONMENT_NO_GPU;
    d9d_environment_log(env, uses, where->log);
}

d9d_status d9di_engine_materialize(d9di_engine *e, const d9di_engine_opts *opts)
{
    d9d_environment env;

    d9d_environment_read(~0u, getenv, &env);
    e->simulated = d9d_bootstrap_is_simulated(opts->where->bootstrap);
    D9D_TRY(d9di_job_start_open_device(opts->where->bootstrap, opts->where->device, &e->dev));
    e->dev->log = opts->where->log;
    log_environment(e->dev, opts->where, &env);
    D9D_TRY(join_ranks(e, opts));
    log_engine(e, opts, opts->where->log);
    if (opts->fp8 != NULL)
        d9di_engine_fp8_log(opts->fp8, opts->mesh, opts->where->log);
    for (size_t k = 0; k < e->n_stages; k++) {
        D9D_TRY(materialize_stage(e, opts, &e->stages[k]));
        D9D_TRY(e->given_adapters != NULL ? load_stage_adapters(e, &e->stages[k], opts->where->log)
                                          : D9D_OK);
    }
    d9d_adapters_free(e->given_adapters);
    e->given_adapters = NULL;
    if (opts->train)
        D9D_TRY(offload_create(e, opts->offload));
    return d9di_frozen_model_materialize(e, opts);
}

void d9di_engine_release(d9di_engine *e)
{
    if (d9di_engine_is_evaluating(e))
        d9di_engine_eval_end(e);
    d9d_executor_free(e->exec.executor);
    d9d_offload_free(e->step.offload.to);
    d9di_frozen_model_release(e);
    for (size_t k = 0; k < e->n_stages; k++) {
        d9di_engine_stage *s = &e->stages[k];

        d9d_weights_close(s->weights);
        d9d_fsdp_free(s->sharded);
        if (s->model != e->whole.model)
            d9d_model_free(s->model);
    }
    d9d_model_free(e->whole.model);
    d9d_program_release(&e->exec.program);
    d9d_adapters_free(e->given_adapters);
    d9d_mesh_close(e->mesh);
    d9d_device_close(e->dev);
    D9D_VEC_RELEASE(&e->step.micros);
    d9d_cp_slice_buffer_release(&e->step.cp_buffer);
    d9d_pooling_buffer_release(&e->step.pool_buffer);
    d9d_arena_release(&e->arena);
    *e = (d9di_engine){0};
}

int64_t d9di_engine_param_count(const d9di_engine *e, bool trainable_only)
{
    int64_t n = 0;

    for (size_t i = 0; i < e->whole.params.n; i++)
        if (e->whole.params.p[i]->spec.trainable || !trainable_only)
            n += d9d_shape_numel(&e->whole.params.p[i]->spec.shape);
    return n;
}

bool d9di_engine_has_last_stage(const d9di_engine *e)
{
    return d9d_stage_is_last(e->stages[e->n_stages - 1].model->stage); /* in ascending order */
}

size_t d9di_engine_mixture_number(const d9di_engine *e, const d9d_block_moe *b)
{
    size_t at = 0;

    while (e->whole.model->mixtures[at]->shape.layer != b->shape.layer)
        at++;
    return at;
}
