/* train_open.c - opens the parts of a run: the checks before memory is allocated, cheapest first,
 * then the memory; and closes them.  See train/train_parts.h.
 */
#include <string.h>

#include "d9d/model/family/family.h"
#include "d9d/model/lora/peft.h"
#include "engine/rank_consistency.h"
#include "train/train_export.h"
#include "train/train_parts.h"

/* --- checks -------------------------------------------------------------------------- */

static d9di_engine_opts engine_opts(const d9di_train *r, bool resumes)
{
    const d9d_job_trainer_section *t = &r->run.c->trainer;

    return (d9di_engine_opts){
        .where = r->run.where,
        .mesh = &r->run.c->mesh,
        .provider = &r->run.c->model_provider,
        .peft = &r->run.c->peft,
        .source = t->model_stage_factory.source_checkpoint,
        .adapter = t->model_stage_factory.source_adapter,
        .data = &r->run.data,
        .seed = (uint64_t)t->determinism.base_seed,
        .pipe = d9d_job_pipe_schedule_opts(&t->pipelining),
        .micros = r->run.n_micro,
        .task = &r->task,
        .train = true,
        .initialise = !resumes || t->model_stage_factory.checkpoint_only_trainable_parameters,
        .optimizer = r->stepper.optimizer,
        .gradients = &t->gradient_manager,
        .sharding = &t->sharding,
        .offload = &t->offload,
        .fp8 = t->fp8,
        .release_grads = t->optimizer_in_backward,
        .quantised = {(d9d_quant_format)t->model_stage_factory.quantization,
                      (d9d_quant_format)t->model_stage_factory.head_quantization},
        .replication = t->expert_replication,
        .timeout_s = (double)t->timeout.init_timeout,
        .timeout_name = D9DI_TRAIN_START_TIMEOUT_NAME,
        .stopped_s = (double)t->timeout.step_timeout,
        .flight = r->run.dir.flight,
        .more_bytes = d9di_rollout_bytes,
        .more_bytes_arg = &r->rollout,
    };
}

/* The elements of a quantised base are neither saved nor exported. */
static d9d_status check_quantization(const d9d_train_config *c)
{
    const struct d9d_job_factory_section *f = &c->trainer.model_stage_factory;
    const char *name = d9d_quant_name((d9d_quant_format)f->quantization);

    if (f->quantization == D9D_QUANT_NONE)
        return D9D_OK;
    if (f->source_checkpoint == NULL)
        return D9D_FAIL(D9D_ECONFIG,
                        "trainer.model_stage_factory.quantization \"%s\": there are no weights to "
                        "quantise; name them with source_checkpoint",
                        name);
    if (!f->checkpoint_only_trainable_parameters)
        return D9D_FAIL(D9D_ECONFIG,
                        "trainer.model_stage_factory.quantization \"%s\": a checkpoint has the "
                        "adapters alone: checkpoint_only_trainable_parameters true",
                        name);
    if (c->export_to != NULL)
        return D9D_FAIL(D9D_ECONFIG,
                        "export_to: the layers' matrices are in %s, so that the run writes its "
                        "adapters alone; d9d-map merges them into the weights",
                        name);
    return D9D_OK;
}

/* No weights can hold virtual tokens. */
static d9d_status check_prompt(const d9d_train_config *c)
{
    if (d9d_peft_prompt_of(&c->peft) == NULL || c->export_to == NULL)
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG,
                    "export_to: prompt_tuning changes no weights, so that the run writes its "
                    "adapter alone");
}

/* Checks the configuration against the data and the run directory. */
static d9d_status check_config(d9di_train *r)
{
    const d9d_train_config *c = r->run.c;

    D9D_TRY(check_quantization(c));
    D9D_TRY(check_prompt(c));
    D9D_TRY(d9di_task_open(&c->task, &r->task));
    D9D_TRY(d9di_train_integrity_check_task(c, &r->task));
    r->task.metrics = &r->recorder.metrics;
    D9D_TRY(d9di_train_run_open(&r->run, &r->task, &r->arena));
    d9di_train_stream_open(&r->stream, &r->run);
    D9D_TRY(d9di_train_recorder_open_metrics(&r->recorder, &r->run, &r->task, &r->arena));
    D9D_TRY(d9di_train_evaluator_open(&r->evaluator, &r->run, &r->arena));
    D9D_TRY(d9di_train_run_open_schedule(&r->run));
    D9D_TRY(d9di_rollout_check(&r->run, &r->task));
    if (r->run.rank == 0 && !r->run.where->trial)
        D9D_TRY(d9d_sinks_check(&c->trainer.logging.tracker));
    return d9di_train_run_check_dir(&r->run);
}

/* Checks the model, built whole and without memory, against its sources. */
static d9d_status check_model(d9di_train *r, const char *resume_from)
{
    const d9di_engine_opts opts = engine_opts(r, resume_from != NULL);

    D9D_TRY(d9di_engine_open(&opts, &r->engine));
    D9D_TRY(d9di_rollout_open(&r->rollout, &r->run, &r->engine));
    D9D_TRY(d9di_evaluations_check(&r->evaluator.list, opts.task, r->engine.whole.model,
                                   opts.source, r->engine.spec.hf_config));
    D9D_TRY(d9di_run_metrics_check_head(&r->recorder.metrics, &r->engine.spec.opts.head));
    D9D_TRY(d9di_run_metrics_check_vocab(&r->recorder.metrics, r->engine.whole.model->vocab));
    D9D_TRY(d9di_evaluations_check_head(&r->evaluator.list, &r->engine.spec.opts.head));
    return d9di_engine_create_optimizer(r->run.c, &r->engine.params, &r->engine.whole.params,
                                        opts.seed, &r->stepper.optimizer);
}

/* Builds the set of a checkpoint's tensors. */
static d9d_status checkpoint_set(d9di_train *r, const d9d_params *params, d9d_optimizer *opt,
                                 d9d_checkpointer_set *out)
{
    D9D_TRY(d9d_checkpointer_set_make(
        params, opt, r->run.c->trainer.model_stage_factory.checkpoint_only_trainable_parameters,
        &r->arena, out));
    D9D_TRY(d9di_run_metrics_rank_state(&r->recorder.metrics, &r->arena, out));
    D9D_TRY(d9di_train_evaluator_rank_state(&r->evaluator, &r->arena, out));
    D9D_TRY(d9di_train_stream_rank_state(&r->stream, &r->arena, out));
    D9D_TRY(d9di_expert_replication_rank_state(&r->stepper.replication, &r->arena, out));
    return d9di_task_rank_state(&r->task, &r->arena, out);
}

/* Checks the whole checkpoint against the whole model, whatever this rank has of it. */
static d9d_status check_state_whole(d9di_train *r, const char *path)
{
    d9d_optimizer *opt;
    d9d_checkpointer_set set;
    d9d_status st;

    D9D_TRY(d9di_engine_create_optimizer(r->run.c, &r->engine.whole.params, NULL,
                                         r->stepper.state.seed, &opt));
    st = checkpoint_set(r, &r->engine.whole.params, opt, &set);
    if (st == D9D_OK)
        st = d9di_train_checkpointer_check(&r->checkpointer, &r->run, r->engine.spec.hf_config,
                                           path, &set, &r->stepper.state);
    d9d_optimizer_free(opt);
    return st;
}

static bool is_local(const d9di_train *r)
{
    return r->checkpointer.found.step >= 0;
}

/* A run whose stream has ended, and whose model is exported, is done. */
static d9d_status check_stream(d9di_train *r, const char *resume_from)
{
    const d9d_checkpointer_state *s = &r->stepper.state;
    bool ended;

    D9D_TRY(d9di_train_stream_peek(&r->stream, &r->run, resume_from, s->samples, &ended));
    if (ended && s->step < r->run.total_steps && d9di_train_run_is_exported(&r->run))
        r->run.total_steps = s->step;
    return D9D_OK;
}

/* A run goes on where a round begins, also where it was told another task.num_iterations before. */
static d9d_status check_round(const d9di_train *r)
{
    const int64_t step = r->stepper.state.step;

    if (d9di_train_run_is_at_round(&r->run, step))
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG,
                    "task.num_iterations is %lld, and the run goes on after step %lld, which is no "
                    "multiple of it: a round would begin in its middle",
                    (long long)r->run.iterations, (long long)step);
}

/* The position of the run, and the remaining steps. */
static d9d_status check_start(d9di_train *r, const char *resume_from)
{
    D9D_TRY(d9di_train_checkpointer_start(&r->checkpointer, &r->run, &r->stepper.state));
    if (is_local(r))
        r->stepper.state.step = r->checkpointer.found.step;
    else if (resume_from != NULL) {
        D9D_TRY(check_state_whole(r, resume_from));
        D9D_TRY(d9di_train_run_go_on(&r->run, r->stepper.state.step, r->stepper.state.samples));
        D9D_TRY(check_stream(r, resume_from));
    }
    D9D_TRY(check_round(r));
    return d9di_train_export_check(&r->run, &r->engine,
                                   d9di_train_run_is_done(&r->run, r->stepper.state.step));
}

/* The position of the run, and its output paths, which one that is complete does not write to. */
static d9d_status check_run(d9di_train *r, const char *resume_from)
{
    D9D_TRY(check_start(r, resume_from));
    if (d9di_train_run_is_complete(&r->run, r->stepper.state.step))
        return D9D_OK;
    D9D_TRY(d9di_train_checkpointer_check_local_dir(&r->run));
    return r->run.rank == 0 ? d9di_train_run_check_paths(&r->run) : D9D_OK;
}

/* Checks that all input files are the same on all ranks, on shared or local disks. */
static d9d_status check_sources_uniform(d9di_train *r, const char *resume_from)
{
    const d9di_engine_opts opts = engine_opts(r, resume_from != NULL);
    d9di_rank_consistency same = {0};

    d9di_rank_consistency_add_data(&same, &r->run.data);
    for (size_t i = 0; i < r->evaluator.list.n; i++)
        d9di_rank_consistency_add_data(&same, &r->evaluator.list.v[i].data);
    d9di_rank_consistency_add_engine(&same, &r->engine, &opts);
    d9di_rollout_add_consistency(&r->rollout, &same);
    d9di_rank_consistency_add_checkpoint(&same, resume_from);
    return d9di_rank_consistency_check(&same, r->run.where->bootstrap);
}

static bool text_equal(const char *a, const char *b)
{
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

d9d_status d9di_train_check(d9di_train *r, const char **resume_from)
{
    d9d_bootstrap *bootstrap = r->run.where->bootstrap;
    const char *likely;

    D9D_TRY(d9d_bootstrap_agree_status(bootstrap, check_config(r)));
    D9D_TRY(d9di_train_checkpointer_find(&r->run, false, &r->arena, &likely));
    D9D_TRY(d9di_train_checkpointer_find_local(&r->checkpointer, &r->run, &r->arena, &likely));
    D9D_TRY(d9d_bootstrap_agree_status(bootstrap, check_model(r, likely)));
    D9D_TRY(d9di_train_checkpointer_open_origin(&r->checkpointer, &r->run, &r->engine));
    D9D_TRY(d9d_bootstrap_agree_status(bootstrap, check_run(r, likely)));
    if (is_local(r)) {
        *resume_from = likely;
        return check_sources_uniform(r, NULL);
    }
    D9D_TRY(d9di_train_checkpointer_find(&r->run, true, &r->arena, resume_from));
    if (!text_equal(likely, *resume_from)) { /* damaged: local ones may be newer than the next */
        D9D_TRY(
            d9di_train_checkpointer_find_local(&r->checkpointer, &r->run, &r->arena, resume_from));
        D9D_TRY(d9d_bootstrap_agree_status(bootstrap, check_run(r, *resume_from)));
    }
    return check_sources_uniform(r, is_local(r) ? NULL : *resume_from);
}
/* --- memory -------------------------------------------------------------------------- */

static d9d_status state_resume(d9di_train *r, const char *path)
{
    D9D_TRY(is_local(r) ? d9di_train_checkpointer_resume_local(&r->checkpointer, &r->run, path,
                                                               &r->stepper.state)
                        : d9di_train_checkpointer_resume(&r->checkpointer, &r->run, path,
                                                         &r->stepper.state));
    if (is_local(r))
        D9D_TRY(d9di_train_run_go_on(&r->run, r->stepper.state.step, r->stepper.state.samples));
    D9D_TRY(d9di_train_evaluator_sync(&r->evaluator, &r->run));
    D9D_TRY(d9di_expert_replication_sync(&r->stepper.replication));
    D9D_TRY(d9di_train_stream_resume(&r->stream, &r->run, r->stepper.state.samples));
    d9d_log_info(r->run.log, "resuming after step %lld from %s", (long long)r->stepper.state.step,
                 path);
    return D9D_OK;
}

/* The losses of rows are gathered on the first of the context-parallel ranks. */
static d9d_status loss_attribution_open(d9di_train *r)
{
    const d9di_engine *e = &r->engine;
    d9di_loss_attribution *d = &r->recorder.loss_attribution;

    *d = (d9di_loss_attribution){
        .max_n = r->run.c->trainer.logging.documents,
        .is_reader = d9d_mesh_index(e->mesh, D9D_AXES_CP | D9D_AXIS(TP)) == 0 &&
                     d9di_engine_has_last_stage(e),
        .group = d9d_mesh_index(r->engine.mesh, D9D_AXES_DP),
        .n_groups = d9di_train_run_dp_size(&r->run),
        .dev = e->dev,
        .world = e->world,
    };
    r->engine.step.loss_attribution = d;
    return d9di_loss_attribution_open(d, &r->arena);
}

static d9d_status log_optimizer(const d9di_train *r)
{
    d9d_buf text = {0};
    const d9d_status st = d9d_optimizer_describe(r->stepper.optimizer, &text);

    if (st == D9D_OK && text.len > 0)
        d9d_log_info(r->run.log, "%s", text.data);
    d9d_buf_release(&text);
    return st;
}

static d9d_status log_micro_batch_term(const d9di_train_run *run)
{
    d9d_buf text = {0};
    d9d_status st;

    if (run->micro_batch_term == NULL)
        return D9D_OK;
    st = d9di_task_put_micro_batch_term(run->micro_batch_term,
                                        run->c->trainer.batching.microbatch_size, &text);
    if (st == D9D_OK)
        d9d_log_info(run->log, "%s", text.data);
    d9d_buf_release(&text);
    return st;
}

/* Documents that begin and end in different ways, within the run and its evaluations, or when the
 * model is used. */
static d9d_status warn_special(const d9di_train *r)
{
    d9di_run_data_warn_special(&r->run.data, NULL, r->run.log);
    for (size_t i = 0; i < r->evaluator.list.n; i++)
        d9di_run_data_warn_special(&r->evaluator.list.v[i].data, &r->run.data, r->run.log);
    return r->run.rank == 0 ? d9di_run_data_warn_bare(&r->run.data, r->run.log) : D9D_OK;
}

/* A loss that transformers has and this run has not. */
static d9d_status warn_router_loss(const d9di_train *r)
{
    const d9d_model_spec *m = &r->engine.spec;
    bool lacks = false;

    if (m->provider->family != NULL)
        D9D_TRY(d9d_family_lacks_router_loss(m->config, &lacks));
    if (lacks && r->run.rank == 0)
        d9d_log_warn(r->run.log,
                     "%s: output_router_logits is true, for which transformers adds the routers' "
                     "balancing loss to the loss; this run has none, "
                     "model_provider.router.aux_loss_coef adds one",
                     m->hf_config != NULL ? m->hf_config : "model_provider.model");
    return D9D_OK;
}

d9d_status d9di_train_open(d9di_train *r, const char *resume_from)
{
    const d9di_engine_opts opts = engine_opts(r, resume_from != NULL);
    d9di_engine *e = &r->engine;

    r->profiler = (d9di_profiler){.c = r->run.c->trainer.profiling,
                                  .dir = r->run.dir.path,
                                  .rank = r->run.rank,
                                  .log = r->run.log};
    D9D_TRY(warn_special(r));
    D9D_TRY(warn_router_loss(r));
    D9D_TRY(log_micro_batch_term(&r->run));
    D9D_TRY(d9di_run_data_log_padding(&r->run.data, r->run.c->trainer.batching.microbatch_size,
                                      r->run.log));
    D9D_TRY(d9di_engine_materialize(e, &opts));
    D9D_TRY(d9di_train_run_trigger(&r->run, "train.configuration.model_stages",
                                   (d9d_job_event){.models = e->models, .n_models = e->n_stages}));
    D9D_TRY(d9di_engine_fill_optimizer(e, r->stepper.optimizer));
    D9D_TRY(log_optimizer(r));
    D9D_TRY(d9di_engine_set_prefetch(e, r->stepper.optimizer));
    D9D_TRY(d9di_train_run_trigger(&r->run, "train.configuration.optimizer",
                                   (d9d_job_event){.optimizer = r->stepper.optimizer}));
    D9D_TRY(d9di_train_run_trigger(&r->run, "train.configuration.lr_scheduler",
                                   (d9d_job_event){.lr = r->run.lr}));
    D9D_TRY(d9di_expert_replication_open(e, opts.replication, &r->arena, &r->stepper.replication));
    D9D_TRY(checkpoint_set(r, &e->params, r->stepper.optimizer, &r->checkpointer.set));
    r->checkpointer.set.partial = r->checkpointer.set.partial ||
                                  e->exec.program.ranks > 1; /* other ranks have the other stages */
    r->timeouts = (d9di_train_timeouts){
        .c = &r->run.c->trainer.timeout,
        .mesh = e->mesh,
        .write_s = (double)d9d_checkpointer_set_bytes(&r->checkpointer.set) / 100e6,
    };
    D9D_TRY(d9di_train_stepper_open(&r->stepper, &r->run, &r->arena));
    D9D_TRY(d9di_train_integrity_open(&r->integrity, &r->run, e, r->stepper.optimizer,
                                      &r->stepper.grad_finalize.scale, &r->arena));
    D9D_TRY(
        d9di_train_stragglers_open(&r->stragglers, &r->run, e, r->stepper.state.step, &r->arena));
    D9D_TRY(loss_attribution_open(r));
    D9D_TRY(d9di_train_recorder_open_values(&r->recorder, e->dev, e->world,
                                            r->stepper.moe_stats.names,
                                            r->stepper.moe_stats.n_values, &r->arena));
    d9d_log_debug(r->run.log, "%s: all of the model has its memory", e->dev->name);
    D9D_TRY(d9di_train_checkpointer_open(&r->checkpointer, &r->run, e, &r->timeouts,
                                         r->recorder.tracker, r->stepper.state.step));
    D9D_TRY(d9di_train_checkpointer_open_local(&r->checkpointer, &r->run, e, &r->timeouts,
                                               r->recorder.tracker));
    return resume_from != NULL ? state_resume(r, resume_from) : D9D_OK;
}

void d9di_train_close(d9di_train *r)
{
    d9di_profiler_close(&r->profiler);
    d9di_train_checkpointer_close(&r->checkpointer);
    d9di_train_recorder_close(&r->recorder);
    d9d_values_free(r->run.values);
    d9di_train_integrity_close(&r->integrity);
    d9di_train_stragglers_close(&r->stragglers);
    d9di_train_stepper_close(&r->stepper);
    d9di_rollout_close(&r->rollout);
    d9di_train_evaluator_close(&r->evaluator);
    d9di_task_close(&r->task); /* may own memory of the engine's device */
    d9di_engine_release(&r->engine);
    d9di_train_control_close(&r->control);
    d9di_train_run_close(&r->run);
    d9d_arena_release(&r->arena);
}
