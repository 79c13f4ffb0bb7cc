/* train_record.c - the records of a run.  See train/train_run.h. */
#include <math.h>
#include <string.h>

#include "d9d/comm/exchange.h"
#include "job/config_diff.h"
#include "train/train_run.h"

enum { MAX_CONFIG_BYTES = 16 << 20 }; /* limit of a config.json */

static d9d_status sinks_open(d9di_train *r, const char *id)
{
    const d9d_job_run_section *section = &r->c->trainer.run;
    const d9d_sink_run about = {
        .id = id,
        .name = section->name,
        .description = section->description,
        .dir = r->dir.path,
        .hparams = section->hparams,
        .restarts = d9d_tracker_restarts(r->tracker),
        .step = r->state.step,
        .log = r->log,
    };

    D9D_TRY(d9d_sinks_open(&r->c->trainer.logging.tracker, &about, &r->sinks));
    d9d_tracker_set_sinks(r->tracker, r->sinks);
    return D9D_OK;
}

/* --- changes since the last start ---------------------------------------------------- */

typedef struct config_change {
    const d9di_train *r;
    const char *path; /* of the previous configuration */
} config_change;

/* True if a change of this key changes what is trained. */
static bool changes_training(const d9di_train *r, const char *key)
{
    /* The first matching prefix decides.  hf_config is compared by content, dtype by the
     * checkpoint's, and a model family's name adds nothing to hf_config. */
    static const struct {
        const char *begin;
        bool meaning;
    } rows[] = {
        {"peft", true},
        {"task", true},
        {"model_provider.name", false},
        {"model_provider.hf_config", false},
        {"model_provider.dtype", false},
        {"model_provider.checkpointing", false},
        {"model_provider.router.bias_update_rate", false},
        {"model_provider.router.aux_loss_coef", false},
        {"model_provider.router.z_loss_coef", false},
        {"model_provider.", true},
    };
    const struct d9d_job_factory_section *factory = &r->c->trainer.model_stage_factory;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strncmp(key, rows[i].begin, strlen(rows[i].begin)) == 0)
            return rows[i].meaning;
    return factory->checkpoint_only_trainable_parameters &&
           strcmp(key, "trainer.model_stage_factory.source_checkpoint") == 0;
}

static bool log_change(void *self, const char *key, const json_t *was, const json_t *is)
{
    const config_change *c = self;
    d9d_buf a = {0}, b = {0};

    if (was != NULL && is != NULL && changes_training(c->r, key))
        d9d_log_warn(
            c->r->log, "%s: %s was %s and is %s; what was learned until now was learned with that",
            c->path, key, d9di_config_diff_format(was, &a), d9di_config_diff_format(is, &b));
    else if (was != NULL && is != NULL)
        d9d_log_info(c->r->log, "%s: %s was %s and is %s", c->path, key,
                     d9di_config_diff_format(was, &a), d9di_config_diff_format(is, &b));
    d9d_buf_release(&a);
    d9d_buf_release(&b);
    return false;
}

/* Logs the changes when a run resumes from a checkpoint. */
static void log_changes(const d9di_train *r, const json_t *resolved)
{
    d9d_arena a = {0};
    config_change c = {r, d9d_fs_join(&a, r->dir.path, "config.json")};
    json_t *was = NULL, *is = json_deep_copy(resolved);

    if (r->state.step > 0 && is != NULL && c.path != NULL && d9d_fs_exists(c.path) &&
        d9d_json_read(c.path, MAX_CONFIG_BYTES, &was) == D9D_OK)
        (void)d9di_config_diff(was, is, log_change, &c);
    json_decref(was);
    json_decref(is);
    d9d_arena_release(&a);
}

/* --- opening ------------------------------------------------------------------------- */

/* The nodes of the job, each once, in rank order. */
static d9d_status hosts_list(d9d_bootstrap *boot, json_t **out)
{
    const char *node = d9d_bootstrap_node(boot);
    json_t *list = json_array();
    d9d_bootstrap_blob *all;
    d9d_arena a = {0};
    d9d_map seen = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9d_bootstrap_allgather_arena(boot, node, strlen(node), &a, &all), out);
    for (int i = 0; i < d9d_bootstrap_size(boot); i++) {
        if (d9d_map_has(&seen, all[i].data, all[i].n))
            continue;
        D9D_TRY_OR(st, d9d_map_put(&seen, all[i].data, all[i].n, NULL), out);
        if (json_array_append_new(list, d9d_json_str(all[i].data)) != 0) {
            st =
                D9D_FAIL(D9D_ENOMEM, "records: names of %d ranks' nodes", d9d_bootstrap_size(boot));
            goto out;
        }
    }
    *out = list;
    list = NULL;
out:
    json_decref(list);
    d9d_map_release(&seen);
    d9d_arena_release(&a);
    return st;
}

/* Starts the writer thread, so that no step waits for the file system. */
static d9d_status start_writer(d9di_train *r)
{
    d9di_run_dir_watch *held;
    d9d_status st;

    D9D_TRY(d9di_run_dir_watch_open(r->dir.path, &held));
    st = d9d_tracker_start_writer(r->tracker, &(d9d_writer_opts){.check = d9di_run_dir_watch_check,
                                                                 .release = d9di_run_dir_watch_free,
                                                                 .self = held,
                                                                 .log = r->log});
    if (st != D9D_OK)
        d9di_run_dir_watch_free(held);
    return st;
}

static void log_damaged_lines(const d9di_train *r)
{
    int64_t first;
    const int64_t n = d9d_tracker_damaged_lines(r->tracker, &first);

    if (n > 0)
        d9d_log_warn(r->log,
                     "%s: line %lld is damaged, %lld in all; they stay, and readers leave them "
                     "out",
                     r->dir.metrics, (long long)first, (long long)n);
}

/* Rank 0's part. */
static d9d_status open_on_root(d9di_train *r, const json_t *resolved, const char *resume_from,
                               const json_t *hosts, char id[D9DI_RUN_DIR_ID_SIZE])
{
    const d9d_job_run_section *section = &r->c->trainer.run;

    D9D_TRY(d9d_fs_mkdirs(r->dir.path));
    D9D_TRY(d9d_tracker_open(r->dir.metrics, &r->tracker));
    log_damaged_lines(r);
    if (r->c->trainer.logging.samples)
        D9D_TRY(d9di_samples_log_open(r->dir.samples, r->state.step, r->log, &r->samples_log));
    if (r->resumes && !d9di_train_is_done(r))
        D9D_TRY(d9d_tracker_restart(r->tracker, r->state.step));
    if (r->resumes && resume_from == NULL)
        d9d_log_info(r->log, "%s: has no checkpoint of this run, which begins again",
                     r->dir.checkpoints);
    log_changes(r, resolved);
    D9D_TRY(d9di_run_dir_create(&r->dir, section, resolved, hosts, d9d_tracker_restarts(r->tracker),
                                id));
    D9D_TRY(start_writer(r));
    D9D_TRY(r->where->trial ? D9D_OK : sinks_open(r, id));
    return d9di_run_dir_write_rank_file(&r->dir, r->rank, id);
}

/* On other ranks: a checkpoint directory on a local disk would be missing from rank 0's
 * checkpoint. */
static d9d_status check_run_dir(const d9di_train *r, const char *id)
{
    D9D_TRY(d9di_run_dir_check_id(&r->dir, id));
    return d9di_run_dir_write_rank_file(&r->dir, r->rank, id);
}

d9d_status d9di_train_record_open(d9di_train *r, const json_t *resolved, const char *resume_from)
{
    d9d_bootstrap *boot = r->where->boot;
    char id[D9DI_RUN_DIR_ID_SIZE] = "";
    const char *root_id = id;
    json_t *hosts = NULL;
    d9d_status st;

    D9D_TRY(hosts_list(boot, &hosts));
    st = r->rank == 0 ? open_on_root(r, resolved, resume_from, hosts, id) : D9D_OK;
    json_decref(hosts);
    D9D_TRY(d9d_bootstrap_agree_status(boot, st));
    D9D_TRY(d9d_bootstrap_broadcast_text(boot, &r->arena, &root_id));
    st = d9d_bootstrap_agree_status(boot, r->rank > 0 ? check_run_dir(r, root_id) : D9D_OK);
    d9di_run_dir_remove_rank_file(&r->dir, r->rank);
    return st;
}

bool d9di_train_record_is_due(const d9di_train *r, int64_t k)
{
    return d9d_step_period_due(r->c->trainer.logging.period_steps, k, r->total_steps,
                               D9D_DUE_ON_LAST | D9D_DUE_AFTER_STEP);
}

static d9d_status step_write(d9di_train *r, const d9di_train_step_result *s)
{
    bool with_norm = d9d_step_period_due(r->c->trainer.gradient_clipping.log_total_steps, s->step,
                                         r->total_steps, D9D_DUE_AFTER_STEP);

    if (r->rank > 0)
        return D9D_OK;
    for (size_t i = 0; i < r->metrics.width; i++)
        r->values[i] = r->metrics.values[i];
    return d9d_tracker_step(r->tracker, &(d9d_track_step_record){
                                            .step = s->step,
                                            .loss = s->loss,
                                            .grad_norm = with_norm ? s->norm : NAN,
                                            .lr = s->lr,
                                            .tokens = s->tokens,
                                            .samples = s->samples,
                                            .step_ms = s->ms,
                                            .data_ms = s->data_ms,
                                            .tokens_per_s = (double)s->targets / (s->ms * 1e-3),
                                            .mfu = s->mfu,
                                            .mem_bytes = d9d_device_memory(r->engine.dev).peak,
                                            .names = r->names,
                                            .values = r->values,
                                            .n = r->metrics.width + r->moe_stats.n_values,
                                        });
}

static d9d_status documents_write(d9di_train *r, const d9di_train_step_result *s)
{
    if (r->rank > 0 || r->loss_attribution.n_worst == 0)
        return D9D_OK;
    return d9d_tracker_documents(r->tracker,
                                 &(d9d_track_documents_record){.step = s->step,
                                                               .targets = s->targets,
                                                               .blended = r->data.n > 1,
                                                               .worst = r->loss_attribution.worst,
                                                               .n = r->loss_attribution.n_worst});
}

d9d_status d9di_train_record(d9di_train *r, const d9di_train_step_result *s)
{
    const d9d_job_trainer_section *t = &r->c->trainer;
    const int64_t g = t->batching.global_batch_size;

    D9D_TRY(d9di_run_metrics_update(&r->metrics, s->n_predictions));
    D9D_TRY(d9di_loss_attribution_update(&r->loss_attribution, s->n_losses, s->loss));
    if (r->rank == 0 && t->logging.samples)
        D9D_TRY(d9di_samples_log_add(&r->samples_log, s->step, r->data.loader, s->samples - g, g));
    if (!d9di_train_record_is_due(r, s->step))
        return D9D_OK;
    D9D_TRY(d9di_run_metrics_sync_begin(&r->metrics, r->engine.dev, r->engine.world));
    D9D_TRY(d9di_loss_attribution_sync_begin(&r->loss_attribution));
    for (size_t i = 0; i < r->moe_stats.n_values; i++)
        r->values[r->metrics.width + i] = r->moe_stats.values[i];
    r->held_record = *s;
    r->has_held_record = true;
    return r->metrics.n == 0 && r->loss_attribution.max_n == 0 ? d9di_train_record_held(r) : D9D_OK;
}

d9d_status d9di_train_record_held(d9di_train *r)
{
    if (!r->has_held_record)
        return D9D_OK;
    r->has_held_record = false;
    D9D_TRY(d9di_run_metrics_sync_end(&r->metrics));
    D9D_TRY(d9di_loss_attribution_sync_end(&r->loss_attribution));
    D9D_TRY(step_write(r, &r->held_record));
    return documents_write(r, &r->held_record);
}

d9d_status d9di_train_record_pipeline(d9di_train *r)
{
    d9d_track_pipeline_record record;

    if (!d9di_pipeline_stats_poll(&r->pipeline_stats, &record) || r->rank > 0 ||
        !d9di_train_record_is_due(r, record.step))
        return D9D_OK;
    record.rows = r->c->trainer.batching.microbatch_size;
    return d9d_tracker_pipeline(r->tracker, &record);
}

d9d_status d9di_train_record_sync(d9di_train *r)
{
    if (r->rank > 0)
        return D9D_OK;
    D9D_TRY(d9d_tracker_sync(r->tracker));
    return r->c->trainer.logging.samples ? d9di_samples_log_sync(&r->samples_log) : D9D_OK;
}

/* Returns when all records are in the files. */
static d9d_status flush_records(d9di_train *r)
{
    D9D_TRY(d9d_tracker_flush(r->tracker));
    return r->c->trainer.logging.samples ? d9di_samples_log_flush(&r->samples_log) : D9D_OK;
}

d9d_status d9di_train_record_end(d9di_train *r, d9d_status st)
{
    const char *outcome = st == D9D_OK ? "done" : st == D9D_EINTR ? "saved" : "failed";
    d9d_err_copy why;
    d9d_status written;

    if (r->rank > 0)
        return st;
    d9d_err_save(&why, st);
    written = d9d_tracker_end(r->tracker, outcome, r->state.step);
    if (written == D9D_OK && (st == D9D_OK || st == D9D_EINTR))
        written = flush_records(r);
    return st == D9D_OK ? written : d9d_err_restore(&why);
}
