/* train_check.c - what training says before it takes memory, cheapest first.  See
 * train/train_run.h.
 */
#include <string.h>

#include "checkpointer/checkpointer_private.h"
#include "d9d/ckpt/dir/content_hash.h"
#include "d9d/comm/exchange.h"
#include "d9d/convert/model_export.h"
#include "d9d/model/weights.h"
#include "engine/job_start.h"
#include "engine/rank_consistency.h"
#include "train/train_run.h"

static d9d_status data_open(d9di_train *r)
{
    const int64_t g = r->c->trainer.batching.global_batch_size;

    D9D_TRY(d9di_data_open(&r->c->data, &r->c->trainer.data_loading, &r->c->mesh, g, &r->data));
    D9D_TRY(d9di_data_steps(&r->data, g, r->c->trainer.run.steps, &r->total_steps));
    return d9di_task_data(&r->task, &r->data, r->total_steps * g);
}

static d9d_status state_fresh(d9di_train *r)
{
    r->state = (d9d_save_state){
        .seed = (uint64_t)r->c->trainer.determinism.base_seed,
        .dataset = d9d_loader_data_hash(r->data.loader),
        .finite = true,
        .parent = -1,
        .origin = r->origin,
    };
    return d9d_loader_order_hash(r->data.loader, &r->state.config);
}

static bool is_none(d9d_hash h)
{
    return d9d_hash_equal(h, (d9d_hash){0});
}

/* Its numbers may be others, as a base of rope is, and every shape fit. */
static void hf_config_check(const d9di_train *r, const char *path,
                            const struct d9d_save_origin *was)
{
    if (!is_none(was->hf_config) && !d9d_hash_equal(was->hf_config, r->origin.hf_config))
        d9d_log_warn(r->log,
                     "%s: %s is another one than it was trained with; what was learned until now "
                     "was learned with that",
                     path,
                     r->engine.spec.hf_config != NULL ? r->engine.spec.hf_config
                                                      : "model_provider.hf_config");
}

/* What is frozen lies outside of checkpoints: it must be what the run has learned over.  Another
 * path in the configuration is a choice, which the run's records warn of (train_record.c). */
static d9d_status source_check(const d9di_train *r, const char *path,
                               const struct d9d_save_origin *was)
{
    const char *source = r->c->trainer.model_stage_factory.source_checkpoint;
    char then[D9D_HASH_HEX], now[D9D_HASH_HEX];

    if (is_none(r->origin.source) || d9d_hash_equal(r->origin.source, was->source))
        return D9D_OK;
    if (is_none(was->source)) {
        d9d_log_warn(r->log, "%s: does not say which weights it was trained over; %s is taken",
                     path, source);
        return D9D_OK;
    }
    if (!d9d_hash_equal(was->source_path, r->origin.source_path))
        return D9D_OK;
    d9d_hash_hex(was->source, then);
    d9d_hash_hex(r->origin.source, now);
    return D9D_FAIL(D9D_EMISMATCH,
                    "%s: was trained over other weights than %s has now: their identity was %s and "
                    "is %s; put them back, or begin another trainer.run.dir with source_adapter",
                    path, source, then, now);
}

/* Where a checkpoint stands, and whether it is of this model and this stream of samples. */
static d9d_status state_check(d9di_train *r, const char *path, const d9d_save_set *set)
{
    const d9d_save_state fresh = r->state;
    d9d_save_state *s = &r->state;

    D9D_TRY(d9d_save_check(path, set, s));
    if (!d9d_hash_equal(s->dataset, fresh.dataset))
        return D9D_FAIL(D9D_EMISMATCH, "%s: was trained on another dataset than %s", path,
                        r->data.sections[0].dataset);
    if (!d9d_hash_equal(s->config, fresh.config))
        return D9D_FAIL(D9D_EMISMATCH,
                        "%s: was trained with another data.split, data.order%s or "
                        "data.seed",
                        path, r->data.n > 1 ? ", data.weight" : "");
    if (s->seed != fresh.seed)
        return D9D_FAIL(D9D_EMISMATCH,
                        "%s: has trainer.determinism.base_seed %llu, and the "
                        "configuration %llu",
                        path, (unsigned long long)s->seed, (unsigned long long)fresh.seed);
    if (r->rank > 0)
        return D9D_OK;
    hf_config_check(r, path, &s->origin);
    return source_check(r, path, &s->origin);
}

d9d_status d9di_train_set(d9di_train *r, const d9d_params *params, d9d_optimizer *opt,
                          d9d_save_set *out)
{
    D9D_TRY(d9d_save_set_make(
        params, opt, r->c->trainer.model_stage_factory.checkpoint_only_trainable_parameters,
        &r->arena, out));
    D9D_TRY(d9di_metrics_cells(&r->metrics, "metrics", &r->arena, out));
    D9D_TRY(d9di_train_evaluation_cells(r, out));
    return d9di_task_cells(&r->task, &r->arena, out);
}

/* All of it against all of the model, whatever of that will be here. */
static d9d_status state_check_whole(d9di_train *r, const char *path)
{
    d9d_optimizer *opt;
    d9d_save_set set;
    d9d_status st;

    D9D_TRY(d9d_optimizer_create(&r->c->optimizer, NULL, &r->engine.all, r->state.seed, &opt));
    st = d9di_train_set(r, &r->engine.all, opt, &set);
    if (st == D9D_OK)
        st = state_check(r, path, &set);
    d9d_optimizer_free(opt);
    return st;
}

/* A directory that holds a run is gone on with, or refused. */
static d9d_status dir_check(d9di_train *r)
{
    const d9d_trainer_section *t = &r->c->trainer;

    r->goes_on = d9d_fs_exists(r->dir.metrics);
    D9D_TRY(d9di_run_dir_spares(&r->dir));
    if (!t->checkpointing.resume && (r->goes_on || !d9d_fs_is_vacant(r->dir.checkpoints)))
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: holds a run already; set trainer.checkpointing.resume "
                        "or another trainer.run.dir",
                        r->dir.path);
    return D9D_OK;
}

/* The checkpoint that will be gone on with, of which each rank reads a part; or, for rank 0 to
 * tell at once, the one that is likely to be. */
static d9d_status checkpoint_find(d9di_train *r, bool whole, const char **path)
{
    d9d_status st = D9D_OK;

    *path = NULL;
    if (!r->c->trainer.checkpointing.resume)
        return D9D_OK;
    if (whole)
        return d9d_save_newest(r->dir.checkpoints, r->where->boot, r->log, &r->arena, path);
    if (r->rank == 0)
        st = d9d_save_likely(r->dir.checkpoints, &r->arena, path);
    D9D_TRY(d9d_boot_agree(r->where->boot, st));
    return d9d_bootstrap_broadcast_text(r->where->boot, &r->arena, path);
}

/* What the end of the run would refuse is refused at its beginning. */
static d9d_status export_check(const d9di_train *r)
{
    d9d_status st = d9d_export_check(&r->engine.spec);

    if (st == D9D_ENOTSUP)
        d9d_log_warn(r->log, "%s; the model will be written in d9d's own layout",
                     d9d_err_message());
    else
        D9D_TRY(st);
    if (d9d_fs_is_vacant(d9di_train_export_dir(r)) ||
        (d9di_train_done(r) && d9di_train_exported(r)))
        return D9D_OK;
    return D9D_FAIL(
        D9D_ECONFIG,
        "%s: the finished model is to go there, and it is not empty: move what is there "
        "away, or set export_to",
        d9di_train_export_dir(r));
}

/* Where the run stands, and what that leaves of it. */
static d9d_status start_check(d9di_train *r, const char *resume_from)
{
    D9D_TRY(state_fresh(r));
    if (resume_from != NULL)
        D9D_TRY(state_check_whole(r, resume_from));
    return export_check(r);
}

/* Rank 0 makes the run directory later, checkpoints later still, and the finished model last. */
static d9d_status places_check(const d9di_train *r)
{
    const char *const places[] = {r->dir.path, r->dir.checkpoints, d9di_train_export_dir(r)};

    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
        D9D_TRY(d9d_fs_check_place(places[i]));
    return d9di_save_check_names(r->dir.checkpoints);
}

d9di_engine_how d9di_train_engine_how(const d9di_train *r, bool resumes)
{
    const d9d_trainer_section *t = &r->c->trainer;

    return (d9di_engine_how){
        .where = r->where,
        .mesh = &r->c->mesh,
        .provider = &r->c->model_provider,
        .peft = &r->c->peft,
        .source = t->model_stage_factory.source_checkpoint,
        .adapter = t->model_stage_factory.source_adapter,
        .data = &r->data,
        .seed = (uint64_t)t->determinism.base_seed,
        .pipe = d9d_job_pipe(&t->pipelining),
        .micros = r->n_micro,
        .task = &r->task,
        .train = true,
        .initialise = !resumes || t->model_stage_factory.checkpoint_only_trainable_parameters,
        .optimizer = r->optimizer,
        .gradients = &t->gradient_manager,
        .sharding = &t->sharding,
        .timeout_s = (double)t->timeout.init_timeout,
        .limit = D9DI_TRAIN_START_LIMIT,
        .stopped_s = (double)t->timeout.step_timeout,
        .flight = r->dir.flight,
    };
}

/* What the configuration says, against the data and the run directory. */
static d9d_status config_check(d9di_train *r)
{
    const d9d_trainer_section *t = &r->c->trainer;

    D9D_TRY(d9di_task_open(&r->c->task, &r->task));
    r->task.metrics = &r->metrics;
    D9D_TRY(d9di_events_open(r->where, &r->c->model_provider, &r->task, &r->events));
    D9D_TRY(d9di_train_tell(r, "train.configuration.start", (d9d_event){.boot = r->where->boot}));
    D9D_TRY(d9d_degrees_check(&r->c->mesh, d9d_boot_size(r->where->boot)));
    D9D_TRY(d9di_launch_check(r->where->boot, r->where->device));
    D9D_TRY(d9di_task_check_config(&r->task, r->c));
    D9D_TRY(d9di_run_dir_name(t, &r->arena, &r->dir));
    D9D_TRY(d9di_run_dir_check(r->c, &r->dir));
    r->n_micro =
        t->batching.global_batch_size / d9di_train_replicas(r) / t->batching.microbatch_size;
    D9D_TRY(data_open(r));
    D9D_TRY(d9di_data_check_rows(&r->data, t->batching.microbatch_size));
    D9D_TRY(d9di_train_tell(r, "train.configuration.data_loader",
                            (d9d_event){.loader = r->data.loader}));
    D9D_TRY(d9di_metrics_open(&r->c->metrics, "metrics", &r->arena, &r->metrics));
    D9D_TRY(d9di_task_check_metrics(&r->task, "metrics", &r->metrics));
    D9D_TRY(d9di_evaluations_open(r->c, &r->task, &r->c->mesh, &r->arena, &r->evaluations));
    D9D_TRY(d9d_lr_create(&r->c->lr_scheduler, "lr_scheduler", r->total_steps, &r->lr));
    if (r->where->trial > 0 && r->total_steps > r->where->trial)
        r->total_steps = r->where->trial;
    return dir_check(r);
}

/* The model, whole and without memory, against its sources. */
static d9d_status model_check(d9di_train *r, const char *resume_from)
{
    const d9di_engine_how how = d9di_train_engine_how(r, resume_from != NULL);

    D9D_TRY(d9di_engine_open(&how, &r->engine));
    D9D_TRY(d9di_evaluations_check(&r->evaluations, r->engine.whole));
    D9D_TRY(d9di_metrics_check_head(&r->metrics, "metrics", &r->engine.spec.options.head));
    D9D_TRY(d9di_evaluations_check_head(&r->evaluations, &r->engine.spec.options.head));
    return d9d_optimizer_create(&r->c->optimizer, NULL, &r->engine.params, how.seed, &r->optimizer);
}

/* Weights that checkpoints leave out, and adapters that are merged into them. */
static d9d_status source_identity(const d9di_train *r, d9d_hash *out)
{
    const struct d9d_factory_section *f = &r->c->trainer.model_stage_factory;
    d9d_hash of[2] = {{0}};

    D9D_TRY(d9d_identity_checkpoint(f->source_checkpoint, 0, &of[0]));
    if (f->source_adapter != NULL && r->engine.adapters.n == 0)
        D9D_TRY(d9d_identity_adapter(f->source_adapter, &of[1]));
    *out = d9d_hash_bytes(of, sizeof(of));
    return D9D_OK;
}

static d9d_status origin_make(const d9di_train *r, struct d9d_save_origin *out)
{
    const struct d9d_factory_section *f = &r->c->trainer.model_stage_factory;
    const char *hf = r->engine.spec.hf_config, *source = f->source_checkpoint;

    if (hf != NULL)
        D9D_TRY(d9d_identity_file(hf, &out->hf_config));
    if (!f->checkpoint_only_trainable_parameters || source == NULL)
        return D9D_OK;
    out->source_path = d9d_hash_bytes(source, strlen(source));
    return source_identity(r, &out->source);
}

/* Collective: over the job.  Rank 0 looks, and tells the others. */
static d9d_status origin_find(d9di_train *r)
{
    d9d_arena a = {0};
    d9d_boot_word *all;
    d9d_status st = r->rank == 0 ? origin_make(r, &r->origin) : D9D_OK;

    D9D_TRY(d9d_boot_agree(r->where->boot, st));
    st = d9d_bootstrap_allgather_arena(r->where->boot, &r->origin, sizeof(r->origin), &a, &all);
    if (st == D9D_OK)
        memcpy(&r->origin, all[0].data, sizeof(r->origin));
    d9d_arena_release(&a);
    return st;
}

/* Where the run stands, and where it is to go. */
static d9d_status run_check(d9di_train *r, const char *resume_from)
{
    D9D_TRY(start_check(r, resume_from));
    return r->rank == 0 ? places_check(r) : D9D_OK;
}

/* All that is read is the same on all ranks, on whatever disks it lies. */
static d9d_status sources_check(d9di_train *r, const char *resume_from)
{
    const d9di_engine_how how = d9di_train_engine_how(r, resume_from != NULL);
    d9di_same same = {0};

    d9di_same_data(&same, &r->data);
    for (size_t i = 0; i < r->evaluations.n; i++)
        d9di_same_data(&same, &r->evaluations.v[i].data);
    d9di_same_engine(&same, &r->engine, &how);
    d9di_same_saved(&same, resume_from);
    return d9di_same_agree(&same, r->where->boot);
}

static bool is_same(const char *a, const char *b)
{
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

d9d_status d9di_train_check(d9di_train *r, const char **resume_from)
{
    d9d_boot *boot = r->where->boot;
    const char *likely;

    D9D_TRY(d9d_boot_agree(boot, config_check(r)));
    D9D_TRY(checkpoint_find(r, false, &likely));
    D9D_TRY(d9d_boot_agree(boot, model_check(r, likely)));
    D9D_TRY(origin_find(r));
    D9D_TRY(d9d_boot_agree(boot, run_check(r, likely)));
    D9D_TRY(checkpoint_find(r, true, resume_from));
    if (!is_same(likely, *resume_from))
        D9D_TRY(d9d_boot_agree(boot, start_check(r, *resume_from)));
    return sources_check(r, *resume_from);
}
