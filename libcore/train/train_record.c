/* train_record.c - what a run writes about itself.  See train/train_run.h. */
#include <math.h>
#include <string.h>

#include "d9d/comm/exchange.h"
#include "job/config_diff.h"
#include "train/train_run.h"

enum { MOST_CONFIG = 16 << 20 }; /* bytes */

static d9d_status sinks_open(d9di_train *r, const char *id)
{
    const d9d_run_section *section = &r->c->trainer.run;
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
    d9d_tracker_attach(r->tracker, r->sinks);
    return D9D_OK;
}

/* --- what was another configuration before ------------------------------------------- */

typedef struct change {
    const d9di_train *r;
    const char *path; /* of the configuration until now */
} change;

/* What is learned is another thing with another value of these. */
static bool is_meaning(const d9di_train *r, const char *key)
{
    /* The first that a key begins with.  What hf_config has is compared by its content, dtype with
     * the checkpoint's, and the name of a family says nothing that hf_config does not. */
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
    const struct d9d_factory_section *factory = &r->c->trainer.model_stage_factory;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strncmp(key, rows[i].begin, strlen(rows[i].begin)) == 0)
            return rows[i].meaning;
    return factory->checkpoint_only_trainable_parameters &&
           strcmp(key, "trainer.model_stage_factory.source_checkpoint") == 0;
}

static bool tell_change(void *self, const char *key, const json_t *was, const json_t *is)
{
    const change *c = self;
    d9d_buf a = {0}, b = {0};

    if (was != NULL && is != NULL && is_meaning(c->r, key))
        d9d_log_warn(c->r->log,
                     "%s: %s was %s and is %s; what was learned until now was learned with that",
                     c->path, key, d9di_differ_shown(was, &a), d9di_differ_shown(is, &b));
    else if (was != NULL && is != NULL)
        d9d_log_info(c->r->log, "%s: %s was %s and is %s", c->path, key, d9di_differ_shown(was, &a),
                     d9di_differ_shown(is, &b));
    d9d_buf_release(&a);
    d9d_buf_release(&b);
    return false;
}

/* Where a run goes on from a checkpoint. */
static void tell_changes(const d9di_train *r, const json_t *resolved)
{
    d9d_arena a = {0};
    change c = {r, d9d_fs_join(&a, r->dir.path, "config.json")};
    json_t *was = NULL, *is = json_deep_copy(resolved);

    if (r->state.step > 0 && is != NULL && c.path != NULL && d9d_fs_exists(c.path) &&
        d9d_json_read(c.path, MOST_CONFIG, &was) == D9D_OK)
        (void)d9di_differ(was, is, tell_change, &c);
    json_decref(was);
    json_decref(is);
    d9d_arena_release(&a);
}

/* --- opening ------------------------------------------------------------------------- */

/* The nodes of the job, each once, in the order of its ranks. */
static d9d_status hosts_list(d9d_boot *boot, json_t **out)
{
    const char *node = d9d_boot_node(boot);
    json_t *list = json_array();
    d9d_boot_word *all;
    d9d_arena a = {0};
    d9d_map seen = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9d_bootstrap_allgather_arena(boot, node, strlen(node), &a, &all), out);
    for (int i = 0; i < d9d_boot_size(boot); i++) {
        if (d9d_map_has(&seen, all[i].data, all[i].n))
            continue;
        D9D_TRY_OR(st, d9d_map_put(&seen, all[i].data, all[i].n, NULL), out);
        if (json_array_append_new(list, d9d_json_str(all[i].data)) != 0) {
            st = D9D_FAIL(D9D_ENOMEM, "records: names of %d ranks' nodes", d9d_boot_size(boot));
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

/* From here on no step waits for the directory's file system. */
static d9d_status write_behind(d9di_train *r)
{
    d9di_run_dir_held *held;
    d9d_status st;

    D9D_TRY(d9di_held_open(r->dir.path, &held));
    st = d9d_tracker_write_behind(r->tracker, &(d9d_writer_how){.check = d9di_held_check,
                                                                .release = d9di_held_free,
                                                                .self = held,
                                                                .log = r->log});
    if (st != D9D_OK)
        d9di_held_free(held);
    return st;
}

static void tell_damage(const d9di_train *r)
{
    int64_t first;
    const int64_t n = d9d_tracker_damaged(r->tracker, &first);

    if (n > 0)
        d9d_log_warn(r->log,
                     "%s: line %lld is damaged, %lld in all; they stay, and readers leave them "
                     "out",
                     r->dir.metrics, (long long)first, (long long)n);
}

/* Rank 0's part. */
static d9d_status open_here(d9di_train *r, const json_t *resolved, const char *resume_from,
                            const json_t *hosts, char id[D9DI_RUN_ID])
{
    const d9d_run_section *section = &r->c->trainer.run;

    D9D_TRY(d9d_fs_mkdirs(r->dir.path));
    D9D_TRY(d9d_tracker_open(r->dir.metrics, &r->tracker));
    tell_damage(r);
    if (r->c->trainer.logging.samples)
        D9D_TRY(d9di_ledger_open(r->dir.samples, r->state.step, r->log, &r->ledger));
    if (r->goes_on && !d9di_train_done(r))
        D9D_TRY(d9d_tracker_restart(r->tracker, r->state.step));
    if (r->goes_on && resume_from == NULL)
        d9d_log_info(r->log, "%s: has no checkpoint of this run, which begins again",
                     r->dir.checkpoints);
    tell_changes(r, resolved);
    D9D_TRY(
        d9di_run_dir_make(&r->dir, section, resolved, hosts, d9d_tracker_restarts(r->tracker), id));
    D9D_TRY(write_behind(r));
    D9D_TRY(r->where->trial ? D9D_OK : sinks_open(r, id));
    return d9di_run_dir_mark(&r->dir, r->rank, id);
}

/* Another rank's: what it writes would be in no checkpoint on a disk of its own. */
static d9d_status join_here(const d9di_train *r, const char *id)
{
    D9D_TRY(d9di_run_dir_is(&r->dir, id));
    return d9di_run_dir_mark(&r->dir, r->rank, id);
}

d9d_status d9di_train_record_open(d9di_train *r, const json_t *resolved, const char *resume_from)
{
    d9d_boot *boot = r->where->boot;
    char id[D9DI_RUN_ID] = "";
    const char *told = id;
    json_t *hosts = NULL;
    d9d_status st;

    D9D_TRY(hosts_list(boot, &hosts));
    st = r->rank == 0 ? open_here(r, resolved, resume_from, hosts, id) : D9D_OK;
    json_decref(hosts);
    D9D_TRY(d9d_boot_agree(boot, st));
    D9D_TRY(d9d_bootstrap_broadcast_text(boot, &r->arena, &told));
    st = d9d_boot_agree(boot, r->rank > 0 ? join_here(r, told) : D9D_OK);
    d9di_run_dir_unmark(&r->dir, r->rank);
    return st;
}

bool d9di_train_recorded(const d9di_train *r, int64_t k)
{
    return d9d_step_period_due(r->c->trainer.logging.period_steps, k, r->total_steps,
                               D9D_DUE_ON_LAST | D9D_DUE_AFTER_STEP);
}

static d9d_status step_write(d9di_train *r, const d9di_train_result *s)
{
    bool with_norm = d9d_step_period_due(r->c->trainer.gradient_clipping.log_total_steps, s->step,
                                         r->total_steps, D9D_DUE_AFTER_STEP);

    if (r->rank > 0)
        return D9D_OK;
    for (size_t i = 0; i < r->metrics.width; i++)
        r->values[i] = r->metrics.values[i];
    return d9d_tracker_step(r->tracker, &(d9d_step_record){
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
                                            .n = r->metrics.width + r->experts.n_values,
                                        });
}

static d9d_status documents_write(d9di_train *r, const d9di_train_result *s)
{
    if (r->rank > 0 || r->culprits.n_worst == 0)
        return D9D_OK;
    return d9d_tracker_documents(r->tracker, &(d9d_documents_record){.step = s->step,
                                                                     .targets = s->targets,
                                                                     .blended = r->data.n > 1,
                                                                     .worst = r->culprits.worst,
                                                                     .n = r->culprits.n_worst});
}

d9d_status d9di_train_record(d9di_train *r, const d9di_train_result *s)
{
    const d9d_trainer_section *t = &r->c->trainer;
    const int64_t g = t->batching.global_batch_size;

    D9D_TRY(d9di_metrics_update(&r->metrics, s->watched));
    D9D_TRY(d9di_culprits_judge(&r->culprits, s->told, s->loss));
    if (r->rank == 0 && t->logging.samples)
        D9D_TRY(d9di_ledger_add(&r->ledger, s->step, r->data.loader, s->samples - g, g));
    if (!d9di_train_recorded(r, s->step))
        return D9D_OK;
    D9D_TRY(d9di_metrics_begin(&r->metrics, r->engine.dev, r->engine.world));
    D9D_TRY(d9di_culprits_begin(&r->culprits));
    for (size_t i = 0; i < r->experts.n_values; i++)
        r->values[r->metrics.width + i] = r->experts.values[i];
    r->held = *s;
    r->holds = true;
    return r->metrics.n == 0 && r->culprits.most == 0 ? d9di_train_record_held(r) : D9D_OK;
}

d9d_status d9di_train_record_held(d9di_train *r)
{
    if (!r->holds)
        return D9D_OK;
    r->holds = false;
    D9D_TRY(d9di_metrics_end(&r->metrics));
    D9D_TRY(d9di_culprits_end(&r->culprits));
    D9D_TRY(step_write(r, &r->held));
    return documents_write(r, &r->held);
}

d9d_status d9di_train_record_pipeline(d9di_train *r)
{
    d9d_pipeline_record heard;

    if (!d9di_bubble_take(&r->bubble, &heard) || r->rank > 0 || !d9di_train_recorded(r, heard.step))
        return D9D_OK;
    heard.rows = r->c->trainer.batching.microbatch_size;
    return d9d_tracker_pipeline(r->tracker, &heard);
}

d9d_status d9di_train_record_sync(d9di_train *r)
{
    if (r->rank > 0)
        return D9D_OK;
    D9D_TRY(d9d_tracker_sync(r->tracker));
    return r->c->trainer.logging.samples ? d9di_ledger_sync(&r->ledger) : D9D_OK;
}

/* All of it is in the files. */
static d9d_status flush(d9di_train *r)
{
    D9D_TRY(d9d_tracker_flush(r->tracker));
    return r->c->trainer.logging.samples ? d9di_ledger_flush(&r->ledger) : D9D_OK;
}

d9d_status d9di_train_record_end(d9di_train *r, d9d_status st)
{
    const char *how = st == D9D_OK ? "done" : st == D9D_EINTR ? "saved" : "failed";
    d9d_err_copy why;
    d9d_status written;

    if (r->rank > 0)
        return st;
    d9d_err_save(&why, st);
    written = d9d_tracker_end(r->tracker, how, r->state.step);
    if (written == D9D_OK && (st == D9D_OK || st == D9D_EINTR))
        written = flush(r);
    return st == D9D_OK ? written : d9d_err_restore(&why);
}
