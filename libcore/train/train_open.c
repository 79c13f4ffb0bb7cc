/* train_open.c - allocates and releases a run.  See train/train_parts.h. */
#include <string.h>

#include "d9d/comm/exchange.h"
#include "train/train_parts.h"

/* Saves are asynchronous if there is any besides the last. */
static d9d_status checkpointer_open(d9di_train *r)
{
    const struct d9d_job_checkpointing_section *c = &r->run.c->trainer.checkpointing;
    const int64_t p = c->period_steps;
    const d9di_checkpointer_async_opts how = {
        .dir = r->run.dir.checkpoints,
        .keep = c->num_to_keep,
        .async = c->asynchronous && p > 0 && (r->state.step / p + 1) * p < r->run.total_steps,
        .set = &r->set,
        .dev = r->engine.dev,
        .mesh = r->engine.mesh,
        .timeout_s = d9di_train_timeouts_save_s(&r->timeouts),
        .timeout_name = D9DI_TRAIN_SAVE_TIMEOUT_NAME,
        .tracker = r->recorder.tracker,
        .log = r->run.log,
    };

    return r->run.where->trial ? D9D_OK : d9di_checkpointer_async_open(&how, &r->checkpointer);
}

/* Refuses a model whose checkpoint manifest would be too large, before there is anything to
 * save. */
static d9d_status check_manifest_size(d9di_train *r)
{
    d9d_bootstrap *boot = r->run.where->boot;
    uint64_t share[2] = {0}, sum = 0;
    d9d_bootstrap_blob *all;
    d9d_checkpointer_set here;
    d9d_status st = d9d_checkpointer_set_local(&r->set, &r->arena, &here);

    if (st == D9D_OK)
        st = d9d_checkpointer_manifest_bytes(&here, &share[0], &share[1]);
    D9D_TRY(d9d_bootstrap_agree_status(boot, st));
    D9D_TRY(d9d_bootstrap_allgather_arena(boot, share, sizeof(share), &r->arena, &all));
    for (int k = 0; k < d9d_bootstrap_size(boot); k++) {
        if (all[k].n != sizeof(share))
            return D9D_FAIL(D9D_ECOMM, "rank %d says its share of a manifest in %zu bytes", k,
                            all[k].n);
        memcpy(share, all[k].data, sizeof(share));
        sum += share[0] + share[1];
    }
    D9D_TRY(d9d_bootstrap_agree_status(
        boot, d9d_checkpointer_manifest_check_bytes(sum, d9d_bootstrap_size(boot), &sum)));
    d9d_log_debug(r->run.log, "a checkpoint's manifest has at most %llu bytes",
                  (unsigned long long)sum);
    return D9D_OK;
}

static d9d_status state_resume(d9di_train *r, const char *path)
{
    D9D_TRY(d9d_checkpointer_read(path, &r->set, r->run.log, &r->state));
    D9D_TRY(d9d_checkpointer_read_rank_state(path, &r->set, r->run.rank,
                                             d9d_bootstrap_size(r->run.where->boot), r->run.log));
    D9D_TRY(d9di_train_evaluator_sync(&r->evaluator, &r->run));
    r->state.origin = r->origin;
    r->state.parent = r->saved_step = r->state.step;
    d9d_log_info(r->run.log, "resuming after step %lld from %s", (long long)r->state.step, path);
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
    r->engine.loss_attribution = d;
    return d9di_loss_attribution_open(d, &r->arena);
}

static d9d_status log_optimizer(const d9di_train *r)
{
    d9d_buf text = {0};
    const d9d_status st = d9d_optimizer_describe(r->optimizer, &text);

    if (st == D9D_OK && text.len > 0)
        d9d_log_info(r->run.log, "%s", text.data);
    d9d_buf_release(&text);
    return st;
}

d9d_status d9di_train_open(d9di_train *r, const char *resume_from)
{
    const d9di_engine_opts how = d9di_train_engine_opts(r, resume_from != NULL);
    d9di_engine *e = &r->engine;

    D9D_TRY(d9di_run_data_log_padding(&r->run.data, r->run.c->trainer.batching.microbatch_size,
                                      r->run.log));
    D9D_TRY(d9di_engine_materialize(e, &how));
    D9D_TRY(d9di_train_run_trigger(&r->run, "train.configuration.model_stages",
                                   (d9d_job_event){.models = e->models, .n_models = e->n_stages}));
    D9D_TRY(d9d_optimizer_fill(r->optimizer, e->dev));
    D9D_TRY(log_optimizer(r));
    D9D_TRY(d9di_engine_set_prefetch(e, r->optimizer));
    D9D_TRY(d9di_train_run_trigger(&r->run, "train.configuration.optimizer",
                                   (d9d_job_event){.optimizer = r->optimizer}));
    D9D_TRY(d9di_train_run_trigger(&r->run, "train.configuration.lr_scheduler",
                                   (d9d_job_event){.lr = r->run.lr}));
    D9D_TRY(d9di_train_checkpoint_set(r, &e->params, r->optimizer, &r->set));
    r->set.partial = r->set.partial || e->program.ranks > 1; /* other ranks have the other stages */
    r->timeouts = (d9di_train_timeouts){
        .c = &r->run.c->trainer.timeout,
        .mesh = e->mesh,
        .write_s = (double)d9d_checkpointer_set_bytes(&r->set) / 100e6,
    };
    D9D_TRY(check_manifest_size(r));
    D9D_TRY(d9di_pipeline_stats_open(e, r->run.n_micro, &r->arena, &r->pipeline_stats));
    D9D_TRY(d9d_grad_finalize_init(e->dev, r->run.n_micro, r->pipeline_stats.n, e->world,
                                   &r->grad_finalize));
    for (int i = 0; i < 2; i++) {
        D9D_TRY(d9d_readback_create(e->dev,
                                    (uint64_t)r->pipeline_stats.n * sizeof(double) +
                                        sizeof(d9d_grad_finalize_report),
                                    &r->pending[i].report));
        D9D_TRY(d9d_device_event_create(e->dev, &r->pending[i].start_event));
    }
    for (int i = 0; i < 4; i++)
        D9D_TRY(d9d_device_event_create(e->dev, &r->ends[i]));
    D9D_TRY(d9di_moe_stats_open(e, r->run.c->trainer.logging.experts, &r->arena, &r->moe_stats));
    D9D_TRY(loss_attribution_open(r));
    D9D_TRY(d9di_train_recorder_open_values(&r->recorder, e->dev, e->world, r->moe_stats.names,
                                            r->moe_stats.n_values, &r->arena));
    d9d_log_debug(r->run.log, "%s: all of the model has its memory", e->dev->name);
    D9D_TRY(checkpointer_open(r));
    return resume_from != NULL ? state_resume(r, resume_from) : D9D_OK;
}

void d9di_train_close(d9di_train *r)
{
    d9di_train_profiler_close(&r->profiler);
    d9di_checkpointer_async_close(r->checkpointer);
    d9di_train_recorder_close(&r->recorder);
    d9d_optimizer_free(r->optimizer);
    for (int i = 0; i < 2; i++) {
        d9d_readback_free(r->pending[i].report);
        d9d_device_event_free(r->pending[i].start_event);
    }
    for (int i = 0; i < 4; i++)
        d9d_device_event_free(r->ends[i]);
    d9d_grad_finalize_release(&r->grad_finalize);
    d9di_pipeline_stats_release(&r->pipeline_stats);
    d9di_train_evaluator_close(&r->evaluator);
    d9di_moe_stats_release(&r->moe_stats);
    d9di_task_close(&r->task); /* may own memory of the engine's device */
    d9di_engine_release(&r->engine);
    d9d_prefetcher_close(r->prefetcher);
    d9di_train_control_close(&r->control);
    d9di_train_run_close(&r->run);
    d9d_arena_release(&r->arena);
}
