/* train_record.c - the records of a run.  See train/train_parts.h. */
#include "train/train_record.h"

#include <math.h>
#include <string.h>

#include "d9d/comm/exchange.h"
#include "job/config_diff.h"

enum { MAX_CONFIG_BYTES = 16 << 20 }; /* limit of a config.json */

static d9d_status sinks_open(d9di_train_recorder *rec, const d9di_train_run *run, int64_t step,
                             const json_t *resolved, const char *id)
{
    const d9d_job_run_section *section = &run->c->trainer.run;
    const d9d_sink_run about = {
        .id = id,
        .name = section->name,
        .description = section->description,
        .dir = run->dir.path,
        .hparams = section->hparams,
        .restarts = d9d_tracker_restarts(rec->tracker),
        .step = step,
        .log = run->log,
        .config = resolved,
    };

    D9D_TRY(d9d_sinks_open(&run->c->trainer.logging.tracker, &about, &rec->sinks));
    d9d_tracker_set_sinks(rec->tracker, rec->sinks);
    return D9D_OK;
}

/* --- changes since the last start ------------------------------------------------------------- */

typedef struct config_change {
    const d9di_train_run *run;
    const char *path; /* of the previous configuration */
} config_change;

/* True if a change of this key changes what is trained. */
static bool changes_training(const d9di_train_run *run, const char *key)
{
    /* The first matching prefix decides.  hf_config and checkpoints are compared by content, dtype
     * by the checkpoint's, and a model family's name adds nothing to hf_config. */
    static const struct {
        const char *begin;
        bool meaning;
    } rows[] = {
        {"peft", true},
        {"task.reference.checkpoint", false},
        {"task.teacher.checkpoint", false},
        {"task", true},
        {"trainer.model_stage_factory.quantization", true},
        {"model_provider.name", false},
        {"model_provider.hf_config", false},
        {"model_provider.dtype", false},
        {"model_provider.checkpointing", false},
        {"model_provider.router.bias_update_rate", false},
        {"model_provider.router.aux_loss_coef", false},
        {"model_provider.router.z_loss_coef", false},
        {"model_provider.router.capacity_factor", false},
        {"model_provider.", true},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strncmp(key, rows[i].begin, strlen(rows[i].begin)) == 0)
            return rows[i].meaning;
    return run->micro_batch_term != NULL && strcmp(key, "trainer.batching.microbatch_size") == 0;
}

/* True if a member is below a key of any JSON, or of a map: what has none there has no default. */
static bool is_below_json(const d9d_table *t, const char *member)
{
    while (t != NULL) {
        const size_t len = strcspn(member, ".");
        const d9d_key *k = d9d_config_find_key(t, member, len);

        if (k == NULL || member[len] == '\0')
            return false;
        if (k->kind == D9D_KIND_JSON || k->kind == D9D_KIND_STR_INT_MAP)
            return true;
        t = k->kind == D9D_KIND_TABLE ? k->table : NULL;
        member += len + 1;
    }
    return false;
}

/* A member that one of two configurations lacks differs if the user wrote it or left it out, and
 * not if another version of this program has a key more. */
static bool is_written(const d9di_train_run *run, const char *member)
{
    const struct {
        const char *name;
        const d9d_union *section;
    } rows[] = {{"model_provider.", &run->c->model_provider},
                {"task.", &run->c->task},
                {"peft.", &run->c->peft}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strncmp(member, rows[i].name, strlen(rows[i].name)) == 0)
            return is_below_json(rows[i].section->choice, member + strlen(rows[i].name));
    return false;
}

static bool log_change(void *self, const char *key, const json_t *before, const json_t *now)
{
    const config_change *c = self;
    d9d_buf a = {0}, b = {0};

    if ((before == NULL || now == NULL) && !is_written(c->run, key))
        return false;
    if (changes_training(c->run, key))
        d9d_log_warn(c->run->log,
                     "%s: %s was %s and is %s; what was learned until now was learned with that",
                     c->path, key, d9di_config_diff_format(before, &a),
                     d9di_config_diff_format(now, &b));
    else
        d9d_log_info(c->run->log, "%s: %s was %s and is %s", c->path, key,
                     d9di_config_diff_format(before, &a), d9di_config_diff_format(now, &b));
    d9d_buf_release(&a);
    d9d_buf_release(&b);
    return false;
}

/* Logs the changes when a run resumes from a checkpoint. */
static void log_changes(const d9di_train_run *run, int64_t step, const json_t *resolved)
{
    d9d_arena a = {0};
    config_change c = {run, d9d_fs_join(&a, run->dir.path, "config.json")};
    json_t *before = NULL, *now = json_deep_copy(resolved);

    if (step > 0 && now != NULL && c.path != NULL && d9d_fs_exists(c.path) &&
        d9d_json_read(c.path, MAX_CONFIG_BYTES, &before) == D9D_OK)
        (void)d9di_config_diff(before, now, log_change, &c);
    json_decref(before);
    json_decref(now);
    d9d_arena_release(&a);
}

/* --- opening ---------------------------------------------------------------------------------- */

/* The nodes of the job, each once, in rank order. */
static d9d_status hosts_list(d9d_bootstrap *bootstrap, json_t **out)
{
    const char *node = d9d_bootstrap_node(bootstrap);
    json_t *list = json_array();
    d9d_bootstrap_blob *all;
    d9d_arena a = {0};
    d9d_map seen = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9d_bootstrap_allgather_arena(bootstrap, node, strlen(node), &a, &all), out);
    for (int i = 0; i < d9d_bootstrap_size(bootstrap); i++) {
        if (d9d_map_has(&seen, all[i].data, all[i].n))
            continue;
        D9D_TRY_OR(st, d9d_map_put(&seen, all[i].data, all[i].n, NULL), out);
        if (json_array_append_new(list, d9d_json_str(all[i].data)) != 0) {
            st = D9D_FAIL(D9D_ENOMEM, "records: names of %d ranks' nodes",
                          d9d_bootstrap_size(bootstrap));
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
static d9d_status start_writer(d9di_train_recorder *rec, const d9di_train_run *run)
{
    d9di_run_dir_watch *held;
    d9d_status st;

    D9D_TRY(d9di_run_dir_watch_open(run->dir.path, &held));
    st = d9d_tracker_start_writer(rec->tracker,
                                  &(d9d_writer_opts){.check = d9di_run_dir_watch_check,
                                                     .release = d9di_run_dir_watch_free,
                                                     .self = held,
                                                     .log = run->log});
    if (st != D9D_OK)
        d9di_run_dir_watch_free(held);
    return st;
}

static void log_damaged_lines(const d9di_train_recorder *rec, const d9di_train_run *run)
{
    int64_t first;
    const int64_t n = d9d_tracker_damaged_lines(rec->tracker, &first);

    if (n > 0)
        d9d_log_warn(run->log,
                     "%s: line %lld is damaged, %lld in all; they stay, and readers leave them "
                     "out",
                     run->dir.metrics, (long long)first, (long long)n);
}

/* Rank 0's part. */
static d9d_status open_on_root(d9di_train_recorder *rec, const d9di_train_run *run, int64_t step,
                               const json_t *resolved, const char *resume_from, const json_t *hosts,
                               char id[D9DI_RUN_DIR_ID_SIZE])
{
    const d9d_job_run_section *section = &run->c->trainer.run;

    D9D_TRY(d9d_fs_mkdirs(run->dir.path));
    D9D_TRY(d9d_tracker_open(run->dir.metrics, &rec->tracker));
    D9D_TRY(d9di_run_dir_lock_checkpoints(&run->dir, &rec->lock));
    log_damaged_lines(rec, run);
    if (run->c->trainer.logging.samples)
        D9D_TRY(d9di_samples_log_open(run->dir.samples, step, run->log, &rec->samples_log));
    if (run->resumes && !d9di_train_run_is_done(run, step))
        D9D_TRY(d9d_tracker_restart(rec->tracker, step));
    if (run->resumes && resume_from == NULL)
        d9d_log_warn(run->log, "%s: has no checkpoint of this run, which begins again",
                     run->dir.checkpoints);
    log_changes(run, step, resolved);
    D9D_TRY(d9di_run_dir_create(&run->dir, section, resolved, hosts,
                                d9d_tracker_restarts(rec->tracker), id));
    D9D_TRY(start_writer(rec, run));
    D9D_TRY(run->where->trial ? D9D_OK : sinks_open(rec, run, step, resolved, id));
    return d9di_run_dir_write_rank_file(&run->dir, run->rank, id);
}

/* On other ranks: a checkpoint directory on a local disk would be missing from rank 0's
 * checkpoint. */
static d9d_status check_run_dir(const d9di_train_run *run, const char *id)
{
    D9D_TRY(d9di_run_dir_check_id(&run->dir, id));
    return d9di_run_dir_write_rank_file(&run->dir, run->rank, id);
}

d9d_status d9di_train_recorder_open(d9di_train_recorder *rec, const d9di_train_run *run,
                                    int64_t step, const json_t *resolved, const char *resume_from)
{
    d9d_bootstrap *bootstrap = run->where->bootstrap;
    char id[D9DI_RUN_DIR_ID_SIZE] = "";
    const char *root_id = id;
    json_t *hosts = NULL;
    d9d_arena a = {0};
    d9d_status st;

    D9D_TRY(hosts_list(bootstrap, &hosts));
    st = run->rank == 0 ? open_on_root(rec, run, step, resolved, resume_from, hosts, id) : D9D_OK;
    json_decref(hosts);
    D9D_TRY_OR(st, d9d_bootstrap_agree_status(bootstrap, st), out);
    D9D_TRY_OR(st, d9d_bootstrap_broadcast_text(bootstrap, &a, &root_id), out);
    st =
        d9d_bootstrap_agree_status(bootstrap, run->rank > 0 ? check_run_dir(run, root_id) : D9D_OK);
    d9di_run_dir_remove_rank_file(&run->dir, run->rank);
out:
    d9d_arena_release(&a);
    return st;
}

d9d_status d9di_train_recorder_open_metrics(d9di_train_recorder *rec, const d9di_train_run *run,
                                            const d9di_task *task, d9d_arena *a)
{
    return d9di_task_open_metrics(task, &run->c->metrics, "metrics", a, &rec->metrics);
}

d9d_status d9di_train_recorder_open_values(d9di_train_recorder *rec, d9d_device *dev,
                                           d9d_comm *world, const char *const *experts, size_t n,
                                           d9d_arena *a)
{
    const size_t width = rec->metrics.width;

    rec->dev = dev;
    rec->world = world;
    rec->meter = d9d_comm_rank(world) == 0 ? d9d_energy_meter_open(dev) : NULL;
    rec->names = d9d_arena_alloc(a, (width + n + 1) * sizeof(*rec->names));
    rec->values = d9d_arena_alloc(a, (width + n + 1) * sizeof(*rec->values));
    if (rec->names == NULL || rec->values == NULL)
        return D9D_FAIL(D9D_ENOMEM, "records: %zu values", width + n);
    rec->n = width + n;
    for (size_t i = 0; i < rec->n; i++)
        rec->names[i] = i < width ? rec->metrics.names[i] : experts[i - width];
    return D9D_OK;
}

void d9di_train_recorder_close(d9di_train_recorder *rec)
{
    d9d_tracker_close(rec->tracker);
    d9d_file_release(&rec->lock);
    d9d_sinks_close(rec->sinks);
    d9d_energy_meter_close(rec->meter);
    d9di_samples_log_release(&rec->samples_log);
    d9di_run_metrics_release(&rec->metrics);
    d9di_loss_attribution_release(&rec->loss_attribution);
}

/* --- a step ----------------------------------------------------------------------------------- */

/* True if step k, counted from 1, has a record. */
static bool is_due(const d9di_train_run *run, int64_t k)
{
    return d9d_step_period_due(run->c->trainer.logging.period_steps, k, run->total_steps,
                               D9D_DUE_ON_LAST | D9D_DUE_AFTER_STEP);
}

static d9d_status step_write(d9di_train_recorder *rec, const d9di_train_run *run,
                             const d9di_train_step_result *s)
{
    bool with_norm = d9d_step_period_due(run->c->trainer.gradient_clipping.log_total_steps, s->step,
                                         run->total_steps, D9D_DUE_AFTER_STEP);

    if (run->rank > 0)
        return D9D_OK;
    for (size_t i = 0; i < rec->metrics.width; i++)
        rec->values[i] = rec->metrics.values[i];
    return d9d_tracker_step(rec->tracker, &(d9d_track_step_record){
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
                                              .mem_bytes = d9d_device_memory(rec->dev).peak,
                                              .host_bytes = s->host_bytes,
                                              .joules = rec->energy.joules,
                                              .tokens_per_joule = rec->energy.tokens_per_joule,
                                              .names = rec->names,
                                              .values = rec->values,
                                              .n = rec->n,
                                          });
}

static d9d_status documents_write(d9di_train_recorder *rec, const d9di_train_run *run,
                                  const d9di_train_step_result *s)
{
    if (run->rank > 0 || rec->loss_attribution.n_worst == 0)
        return D9D_OK;
    return d9d_tracker_documents(rec->tracker,
                                 &(d9d_track_documents_record){.step = s->step,
                                                               .targets = s->targets,
                                                               .blended = run->data.n > 1,
                                                               .worst = rec->loss_attribution.worst,
                                                               .n = rec->loss_attribution.n_worst});
}

/* Of rank 0's device since the record before, and its share of the tokens.  The first reading has
 * the start in it, and is dropped. */
static void read_energy(d9di_train_recorder *rec, int64_t tokens)
{
    struct d9di_train_energy *e = &rec->energy;
    const double joules = d9d_energy_meter_read(rec->meter),
                 share = (double)(tokens - e->tokens) / (double)d9d_comm_size(rec->world);

    e->joules = e->is_metered ? joules : NAN;
    e->tokens_per_joule = e->is_metered && joules > 0 ? share / joules : NAN;
    e->tokens = tokens;
    e->is_metered = true;
}

d9d_status d9di_train_recorder_add(d9di_train_recorder *rec, const d9di_train_run *run,
                                   const d9di_train_step_result *s)
{
    const d9d_job_trainer_section *t = &run->c->trainer;
    const int64_t g = t->batching.global_batch_size;

    D9D_TRY(d9di_run_metrics_update(&rec->metrics, s->n_predictions));
    D9D_TRY(d9di_loss_attribution_update(&rec->loss_attribution, s->n_losses, s->loss));
    if (run->rank == 0 && t->logging.samples)
        D9D_TRY(
            d9di_samples_log_add(&rec->samples_log, s->step, run->data.loader, s->samples - g, g));
    if (!is_due(run, s->step))
        return d9di_train_recorder_write_values(rec, run, s->step);
    D9D_TRY(d9di_run_metrics_sync_begin(&rec->metrics, rec->dev, rec->world));
    D9D_TRY(d9di_loss_attribution_sync_begin(&rec->loss_attribution));
    for (size_t i = rec->metrics.width; i < rec->n; i++)
        rec->values[i] = s->expert_stats[i - rec->metrics.width];
    read_energy(rec, s->tokens);
    rec->held = *s;
    rec->has_held = true;
    return rec->metrics.n == 0 && rec->loss_attribution.max_n == 0
               ? d9di_train_recorder_flush(rec, run)
               : D9D_OK;
}

d9d_status d9di_train_recorder_flush(d9di_train_recorder *rec, const d9di_train_run *run)
{
    if (!rec->has_held)
        return D9D_OK;
    rec->has_held = false;
    D9D_TRY(d9di_run_metrics_sync_end(&rec->metrics));
    D9D_TRY(d9di_loss_attribution_sync_end(&rec->loss_attribution));
    D9D_TRY(step_write(rec, run, &rec->held));
    D9D_TRY(documents_write(rec, run, &rec->held));
    return d9di_train_recorder_write_values(rec, run, rec->held.step);
}

d9d_status d9di_train_recorder_write_values(d9di_train_recorder *rec, const d9di_train_run *run,
                                            int64_t step)
{
    return d9d_values_write(run->values, step, rec->tracker, run->log);
}

d9d_status d9di_train_recorder_add_pipeline(d9di_train_recorder *rec, const d9di_train_run *run,
                                            d9d_track_pipeline_record *record)
{
    if (run->rank > 0 || !is_due(run, record->step))
        return D9D_OK;
    record->rows = run->c->trainer.batching.microbatch_size;
    return d9d_tracker_pipeline(rec->tracker, record);
}

d9d_status d9di_train_recorder_sync(d9di_train_recorder *rec, const d9di_train_run *run)
{
    if (run->rank > 0)
        return D9D_OK;
    D9D_TRY(d9d_tracker_sync(rec->tracker));
    return run->c->trainer.logging.samples ? d9di_samples_log_sync(&rec->samples_log) : D9D_OK;
}

/* Returns when all records are in the files. */
static d9d_status flush_files(d9di_train_recorder *rec, const d9di_train_run *run)
{
    D9D_TRY(d9d_tracker_flush(rec->tracker));
    return run->c->trainer.logging.samples ? d9di_samples_log_flush(&rec->samples_log) : D9D_OK;
}

d9d_status d9di_train_recorder_end(d9di_train_recorder *rec, const d9di_train_run *run,
                                   d9d_status st, int64_t step)
{
    const char *outcome = st == D9D_OK ? "done" : st == D9D_EINTR ? "saved" : "failed";
    d9d_err_copy why;
    d9d_status written;

    if (run->rank > 0)
        return st;
    d9d_err_save(&why, st);
    written = st == D9D_OK ? d9di_train_recorder_write_values(rec, run, step) : D9D_OK;
    if (written == D9D_OK)
        written = d9d_tracker_end(rec->tracker, outcome, step);
    if (written == D9D_OK && (st == D9D_OK || st == D9D_EINTR))
        written = flush_files(rec, run);
    return st == D9D_OK ? written : d9d_err_restore(&why);
}
