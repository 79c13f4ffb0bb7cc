/* train_open.c - allocates and releases a run.  See train/train_run.h. */
#include <string.h>

#include "d9d/comm/exchange.h"
#include "train/train_run.h"

/* Saves are asynchronous if there is any besides the last. */
static d9d_status checkpointer_open(d9di_train *r)
{
    const struct d9d_job_checkpointing_section *c = &r->c->trainer.checkpointing;
    const int64_t p = c->period_steps;
    const d9di_checkpointer_async_opts opts = {
        .dir = r->dir.checkpoints,
        .keep = c->num_to_keep,
        .async = c->asynchronous && p > 0 && (r->state.step / p + 1) * p < r->total_steps,
        .set = &r->set,
        .dev = r->engine.dev,
        .mesh = r->engine.mesh,
        .timeout_s = d9di_train_save_timeout_s(r),
        .timeout_name = D9DI_TRAIN_SAVE_TIMEOUT_NAME,
        .tracker = r->tracker,
        .log = r->log,
    };

    return r->where->trial ? D9D_OK : d9di_checkpointer_async_open(&opts, &r->checkpointer);
}

/* Refuses a model whose checkpoint manifest would be too large, before there is anything to
 * save. */
static d9d_status check_manifest_size(d9di_train *r)
{
    d9d_bootstrap *boot = r->where->boot;
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
            return D9D_FAIL(D9D_ECOMM, "rank %d sent %zu bytes as the size of its manifest", k,
                            all[k].n);
        memcpy(share, all[k].data, sizeof(share));
        sum += share[0] + share[1];
    }
    D9D_TRY(d9d_bootstrap_agree_status(
        boot, d9d_checkpointer_manifest_check_bytes(sum, d9d_bootstrap_size(boot), &sum)));
    d9d_log_debug(r->log, "a checkpoint's manifest has at most %llu bytes",
                  (unsigned long long)sum);
    return D9D_OK;
}

static d9d_status state_resume(d9di_train *r, const char *path)
{
    D9D_TRY(d9d_checkpointer_read(path, &r->set, r->log, &r->state));
    D9D_TRY(d9d_checkpointer_read_rank_state(path, &r->set, r->rank,
                                             d9d_bootstrap_size(r->where->boot), r->log));
    D9D_TRY(d9di_train_evaluation_sync(r));
    r->state.origin = r->origin;
    r->state.parent = r->saved_step = r->state.step;
    d9d_log_info(r->log, "resuming after step %lld from %s", (long long)r->state.step, path);
    return D9D_OK;
}

/* Collects the names of additional values in records. */
static d9d_status collect_value_names(d9di_train *r)
{
    const size_t width = r->metrics.width, n = width + r->moe_stats.n_values;

    r->names = d9d_arena_alloc(&r->arena, (n + 1) * sizeof(*r->names));
    r->values = d9d_arena_alloc(&r->arena, (n + 1) * sizeof(*r->values));
    if (r->names == NULL || r->values == NULL)
        return D9D_FAIL(D9D_ENOMEM, "records: %zu values", n);
    for (size_t i = 0; i < n; i++)
        r->names[i] = i < width ? r->metrics.names[i] : r->moe_stats.names[i - width];
    return D9D_OK;
}

/* The losses of rows are gathered on the first of the context-parallel ranks. */
static d9d_status loss_attribution_open(d9di_train *r)
{
    const d9di_engine *e = &r->engine;

    r->loss_attribution = (d9di_loss_attribution){
        .max_n = r->c->trainer.logging.documents,
        .is_reader = d9d_mesh_index(e->mesh, D9D_AXES_CP | D9D_AXIS(TP)) == 0 &&
                     d9di_engine_has_last_stage(e),
        .group = d9di_train_dp_rank(r),
        .n_groups = d9di_train_dp_size(r),
        .dev = e->dev,
        .world = e->world,
    };
    r->engine.loss_attribution = &r->loss_attribution;
    return d9di_loss_attribution_open(&r->loss_attribution, &r->arena);
}

static d9d_status log_optimizer(const d9di_train *r)
{
    d9d_buf text = {0};
    const d9d_status st = d9d_optimizer_describe(r->optimizer, &text);

    if (st == D9D_OK && text.len > 0)
        d9d_log_info(r->log, "%s", text.data);
    d9d_buf_release(&text);
    return st;
}

d9d_status d9di_train_open(d9di_train *r, const char *resume_from)
{
    const d9di_engine_opts opts = d9di_train_engine_opts(r, resume_from != NULL);
    d9di_engine *e = &r->engine;

    D9D_TRY(d9di_run_data_log_padding(&r->data, r->c->trainer.batching.microbatch_size, r->log));
    D9D_TRY(d9di_engine_materialize(e, &opts));
    D9D_TRY(
        d9di_train_trigger_event(r, "train.configuration.model_stages",
                                 (d9d_job_event){.models = e->models, .n_models = e->n_stages}));
    D9D_TRY(d9d_optimizer_fill(r->optimizer, e->dev));
    D9D_TRY(log_optimizer(r));
    D9D_TRY(d9di_engine_set_prefetch(e, r->optimizer));
    D9D_TRY(d9di_train_trigger_event(r, "train.configuration.optimizer",
                                     (d9d_job_event){.optimizer = r->optimizer}));
    D9D_TRY(d9di_train_trigger_event(r, "train.configuration.lr_scheduler",
                                     (d9d_job_event){.lr = r->lr}));
    D9D_TRY(d9di_train_checkpoint_set(r, &e->params, r->optimizer, &r->set));
    r->set.partial = r->set.partial || e->program.ranks > 1; /* other ranks have the other stages */
    D9D_TRY(check_manifest_size(r));
    D9D_TRY(d9di_pipeline_stats_open(e, r->n_micro, &r->arena, &r->pipeline_stats));
    D9D_TRY(d9d_grad_finalize_init(e->dev, r->n_micro, r->pipeline_stats.n, e->world,
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
    D9D_TRY(d9di_moe_stats_open(e, r->c->trainer.logging.experts, &r->arena, &r->moe_stats));
    D9D_TRY(loss_attribution_open(r));
    D9D_TRY(collect_value_names(r));
    d9d_log_debug(r->log, "%s: all of the model has its memory", e->dev->name);
    D9D_TRY(checkpointer_open(r));
    return resume_from != NULL ? state_resume(r, resume_from) : D9D_OK;
}

void d9di_train_close(d9di_train *r)
{
    d9d_trace_discard(r->trace);
    d9di_trace_file_detach(r->traced);
    d9di_checkpointer_async_close(r->checkpointer);
    d9d_tracker_close(r->tracker);
    d9d_sinks_close(r->sinks);
    d9d_lr_schedule_free(r->lr);
    d9d_optimizer_free(r->optimizer);
    for (int i = 0; i < 2; i++) {
        d9d_readback_free(r->pending[i].report);
        d9d_device_event_free(r->pending[i].start_event);
    }
    for (int i = 0; i < 4; i++)
        d9d_device_event_free(r->ends[i]);
    d9d_grad_finalize_release(&r->grad_finalize);
    d9di_run_metrics_release(&r->metrics);
    d9di_loss_attribution_release(&r->loss_attribution);
    d9di_pipeline_stats_release(&r->pipeline_stats);
    d9di_evaluations_release(&r->evaluations);
    d9di_moe_stats_release(&r->moe_stats);
    d9di_task_close(&r->task); /* may own memory of the engine's device */
    d9di_engine_release(&r->engine);
    d9d_prefetcher_close(r->prefetcher);
    d9di_run_data_release(&r->data);
    d9di_samples_log_release(&r->samples_log);
    d9d_preemption_close(r->preemption);
    d9d_job_events_free(r->events);
    d9d_arena_release(&r->arena);
}
