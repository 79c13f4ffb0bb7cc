/* train_open.c - a run that has its memory, until it is closed.  See train/train_run.h. */
#include <string.h>

#include "d9d/comm/exchange.h"
#include "train/train_run.h"

/* Saves other than the last are to be written behind, where there are any. */
static d9d_status saver_open(d9di_train *r)
{
    const struct d9d_checkpointing_section *c = &r->c->trainer.checkpointing;
    const int64_t p = c->period_steps;
    const d9di_saver_how how = {
        .dir = r->dir.checkpoints,
        .keep = c->num_to_keep,
        .behind = c->asynchronous && p > 0 && (r->state.step / p + 1) * p < r->total_steps,
        .set = &r->set,
        .dev = r->engine.dev,
        .mesh = r->engine.mesh,
        .timeout_s = d9di_train_save_s(r),
        .limit = D9DI_TRAIN_SAVE_LIMIT,
        .tracker = r->tracker,
        .log = r->log,
    };

    return r->where->trial ? D9D_OK : d9di_saver_open(&how, &r->saver);
}

/* What no checkpoint could say of itself is refused before there is anything to save. */
static d9d_status manifest_check(d9di_train *r)
{
    d9d_boot *boot = r->where->boot;
    uint64_t share[2] = {0}, sum = 0;
    d9d_boot_word *all;
    d9d_save_set here;
    d9d_status st = d9d_save_set_here(&r->set, &r->arena, &here);

    if (st == D9D_OK)
        st = d9d_save_manifest_share(&here, &share[0], &share[1]);
    D9D_TRY(d9d_boot_agree(boot, st));
    D9D_TRY(d9d_bootstrap_allgather_arena(boot, share, sizeof(share), &r->arena, &all));
    for (int k = 0; k < d9d_boot_size(boot); k++) {
        if (all[k].n != sizeof(share))
            return D9D_FAIL(D9D_ECOMM, "rank %d says its share of a manifest in %zu bytes", k,
                            all[k].n);
        memcpy(share, all[k].data, sizeof(share));
        sum += share[0] + share[1];
    }
    D9D_TRY(d9d_boot_agree(boot, d9d_save_manifest_check(sum, d9d_boot_size(boot), &sum)));
    d9d_log_debug(r->log, "a checkpoint's manifest has at most %llu bytes",
                  (unsigned long long)sum);
    return D9D_OK;
}

static d9d_status state_resume(d9di_train *r, const char *path)
{
    D9D_TRY(d9d_save_read(path, &r->set, r->log, &r->state));
    D9D_TRY(d9d_save_read_cells(path, &r->set, r->rank, d9d_boot_size(r->where->boot), r->log));
    D9D_TRY(d9di_train_evaluation_agree(r));
    r->state.origin = r->origin;
    r->state.parent = r->saved_step = r->state.step;
    d9d_log_info(r->log, "resuming after step %lld from %s", (long long)r->state.step, path);
    return D9D_OK;
}

/* What records have besides. */
static d9d_status values_make(d9di_train *r)
{
    const size_t width = r->metrics.width, n = width + r->experts.n_values;

    r->names = d9d_arena_alloc(&r->arena, (n + 1) * sizeof(*r->names));
    r->values = d9d_arena_alloc(&r->arena, (n + 1) * sizeof(*r->values));
    if (r->names == NULL || r->values == NULL)
        return D9D_FAIL(D9D_ENOMEM, "records: %zu values", n);
    for (size_t i = 0; i < n; i++)
        r->names[i] = i < width ? r->metrics.names[i] : r->experts.names[i - width];
    return D9D_OK;
}

/* The losses of rows are gathered on the first of the ranks that have positions of them. */
static d9d_status culprits_open(d9di_train *r)
{
    const d9di_engine *e = &r->engine;

    r->culprits = (d9di_culprits){
        .most = r->c->trainer.logging.documents,
        .mine = d9d_mesh_index(e->mesh, D9D_AXES_CP | D9D_AXIS(TP)) == 0 && d9di_engine_ends(e),
        .slot = d9di_train_replica(r),
        .all = d9di_train_replicas(r),
        .dev = e->dev,
        .world = e->world,
    };
    r->engine.culprits = &r->culprits;
    return d9di_culprits_open(&r->culprits, &r->arena);
}

static d9d_status optimizer_tell(const d9di_train *r)
{
    d9d_buf text = {0};
    const d9d_status st = d9d_optimizer_describe(r->optimizer, &text);

    if (st == D9D_OK && text.len > 0)
        d9d_log_info(r->log, "%s", text.data);
    d9d_buf_release(&text);
    return st;
}

d9d_status d9di_train_fill(d9di_train *r, const char *resume_from)
{
    const d9di_engine_how how = d9di_train_engine_how(r, resume_from != NULL);
    d9di_engine *e = &r->engine;

    D9D_TRY(d9di_data_tell_padding(&r->data, r->c->trainer.batching.microbatch_size, r->log));
    D9D_TRY(d9di_engine_fill(e, &how));
    D9D_TRY(d9di_train_tell(r, "train.configuration.model_stages",
                            (d9d_event){.models = e->models, .n_models = e->n_stages}));
    D9D_TRY(d9d_optimizer_fill(r->optimizer, e->dev));
    D9D_TRY(optimizer_tell(r));
    D9D_TRY(d9di_engine_look_ahead(e, r->optimizer));
    D9D_TRY(d9di_train_tell(r, "train.configuration.optimizer",
                            (d9d_event){.optimizer = r->optimizer}));
    D9D_TRY(d9di_train_tell(r, "train.configuration.lr_scheduler", (d9d_event){.lr = r->lr}));
    D9D_TRY(d9di_train_set(r, &e->params, r->optimizer, &r->set));
    r->set.partial = r->set.partial || e->program.ranks > 1; /* other stages' */
    D9D_TRY(manifest_check(r));
    D9D_TRY(d9di_bubble_open(e, r->n_micro, &r->arena, &r->bubble));
    D9D_TRY(d9d_step_end_open(e->dev, r->n_micro, r->bubble.n, e->world, &r->end));
    for (int i = 0; i < 2; i++) {
        D9D_TRY(d9d_readback_create(
            e->dev, (uint64_t)r->bubble.n * sizeof(double) + sizeof(d9d_step_report),
            &r->pending[i].report));
        D9D_TRY(d9d_device_event_create(e->dev, &r->pending[i].begun));
    }
    for (int i = 0; i < 4; i++)
        D9D_TRY(d9d_device_event_create(e->dev, &r->ends[i]));
    D9D_TRY(d9di_experts_open(e, r->c->trainer.logging.experts, &r->arena, &r->experts));
    D9D_TRY(culprits_open(r));
    D9D_TRY(values_make(r));
    d9d_log_debug(r->log, "%s: all of the model has its memory", e->dev->name);
    D9D_TRY(saver_open(r));
    return resume_from != NULL ? state_resume(r, resume_from) : D9D_OK;
}

void d9di_train_close(d9di_train *r)
{
    d9d_trace_drop(r->trace);
    d9di_trace_file_leave(r->traced);
    d9di_saver_close(r->saver);
    d9d_tracker_close(r->tracker);
    d9d_sinks_close(r->sinks);
    d9d_lr_free(r->lr);
    d9d_optimizer_free(r->optimizer);
    for (int i = 0; i < 2; i++) {
        d9d_readback_free(r->pending[i].report);
        d9d_device_event_free(r->pending[i].begun);
    }
    for (int i = 0; i < 4; i++)
        d9d_device_event_free(r->ends[i]);
    d9d_step_end_release(&r->end);
    d9di_metrics_release(&r->metrics);
    d9di_culprits_release(&r->culprits);
    d9di_bubble_release(&r->bubble);
    d9di_evaluations_release(&r->evaluations);
    d9di_experts_release(&r->experts);
    d9di_task_close(&r->task); /* which may have memory of the engine's device */
    d9di_engine_release(&r->engine);
    d9d_feed_close(r->feed);
    d9di_data_release(&r->data);
    d9di_ledger_release(&r->ledger);
    d9d_stop_close(r->stop);
    d9d_events_free(r->events);
    d9d_arena_release(&r->arena);
}
