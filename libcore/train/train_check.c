/* train_check.c - the checks of training before memory is allocated, cheapest first.  See
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

    D9D_TRY(d9di_run_data_open(&r->c->data, &r->c->trainer.data_loading, &r->c->mesh, g, &r->data));
    D9D_TRY(d9di_run_data_steps(&r->data, g, r->c->trainer.run.steps, &r->total_steps));
    return d9di_task_set_data(&r->task, &r->data, r->total_steps * g);
}

static d9d_status init_state(d9di_train *r)
{
    r->state = (d9d_checkpointer_state){
        .seed = (uint64_t)r->c->trainer.determinism.base_seed,
        .dataset = d9d_loader_data_hash(r->data.loader),
        .finite = true,
        .parent = -1,
        .origin = r->origin,
    };
    return d9d_loader_order_hash(r->data.loader, &r->state.config);
}

static bool hash_is_zero(d9d_hash h)
{
    return d9d_hash_equal(h, (d9d_hash){0});
}

/* Warns if hf_config has changed: a number such as the RoPE base may differ although every shape
 * fits. */
static void check_hf_config(const d9di_train *r, const char *path,
                            const struct d9d_checkpointer_origin *was)
{
    if (!hash_is_zero(was->hf_config) && !d9d_hash_equal(was->hf_config, r->origin.hf_config))
        d9d_log_warn(r->log,
                     "%s: %s is another one than it was trained with; what was learned until now "
                     "was learned with that",
                     path,
                     r->engine.spec.hf_config != NULL ? r->engine.spec.hf_config
                                                      : "model_provider.hf_config");
}

/* Frozen weights are not in checkpoints, so they must be the ones the run was trained on.  Another
 * path with the same content is allowed; the run's records warn of it (train_record.c). */
static d9d_status check_source(const d9di_train *r, const char *path,
                               const struct d9d_checkpointer_origin *was)
{
    const char *source = r->c->trainer.model_stage_factory.source_checkpoint;
    char then[D9D_HASH_HEX], now[D9D_HASH_HEX];

    if (hash_is_zero(r->origin.source) || d9d_hash_equal(r->origin.source, was->source))
        return D9D_OK;
    if (hash_is_zero(was->source)) {
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

/* Checks that a checkpoint belongs to this model and this sample stream, and takes its position. */
static d9d_status check_state(d9di_train *r, const char *path, const d9d_checkpointer_set *set)
{
    const d9d_checkpointer_state fresh = r->state;
    d9d_checkpointer_state *s = &r->state;

    D9D_TRY(d9d_checkpointer_check(path, set, s));
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
    check_hf_config(r, path, &s->origin);
    return check_source(r, path, &s->origin);
}

d9d_status d9di_train_checkpoint_set(d9di_train *r, const d9d_params *params, d9d_optimizer *opt,
                                     d9d_checkpointer_set *out)
{
    D9D_TRY(d9d_checkpointer_set_make(
        params, opt, r->c->trainer.model_stage_factory.checkpoint_only_trainable_parameters,
        &r->arena, out));
    D9D_TRY(d9di_run_metrics_rank_state(&r->metrics, "metrics", &r->arena, out));
    D9D_TRY(d9di_train_evaluation_rank_state(r, out));
    return d9di_task_rank_state(&r->task, &r->arena, out);
}

/* Checks the whole checkpoint against the whole model, whatever this rank has of it. */
static d9d_status check_state_whole(d9di_train *r, const char *path)
{
    d9d_optimizer *opt;
    d9d_checkpointer_set set;
    d9d_status st;

    D9D_TRY(d9d_optimizer_create(&r->c->optimizer, NULL, &r->engine.all, r->state.seed, &opt));
    st = d9di_train_checkpoint_set(r, &r->engine.all, opt, &set);
    if (st == D9D_OK)
        st = check_state(r, path, &set);
    d9d_optimizer_free(opt);
    return st;
}

/* Resumes or refuses a directory that already holds a run. */
static d9d_status check_run_dir(d9di_train *r)
{
    const d9d_job_trainer_section *t = &r->c->trainer;

    r->resumes = d9d_fs_exists(r->dir.metrics);
    D9D_TRY(d9di_run_dir_check_foreign(&r->dir));
    if (!t->checkpointing.resume && (r->resumes || !d9d_fs_is_empty(r->dir.checkpoints)))
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: holds a run already; set trainer.checkpointing.resume "
                        "or another trainer.run.dir",
                        r->dir.path);
    return D9D_OK;
}

/* The checkpoint to resume from, with each rank verifying a share of it.  For rank 0's quick check:
 * the one that is probably the newest, unverified. */
static d9d_status find_checkpoint(d9di_train *r, bool whole, const char **path)
{
    d9d_status st = D9D_OK;

    *path = NULL;
    if (!r->c->trainer.checkpointing.resume)
        return D9D_OK;
    if (whole)
        return d9d_checkpointer_latest(r->dir.checkpoints, r->where->boot, r->log, &r->arena, path);
    if (r->rank == 0)
        st = d9d_checkpointer_latest_unverified(r->dir.checkpoints, &r->arena, path);
    D9D_TRY(d9d_bootstrap_agree_status(r->where->boot, st));
    return d9d_bootstrap_broadcast_text(r->where->boot, &r->arena, path);
}

/* Refuses now what the export at the end would refuse. */
static d9d_status check_export_dir(const d9di_train *r)
{
    d9d_status st = d9d_model_export_check(&r->engine.spec);

    if (st == D9D_ENOTSUP)
        d9d_log_warn(r->log, "%s; the model will be written in d9d's own layout",
                     d9d_err_message());
    else
        D9D_TRY(st);
    if (d9d_fs_is_empty(d9di_train_export_dir(r)) ||
        (d9di_train_is_done(r) && d9di_train_is_exported(r)))
        return D9D_OK;
    return D9D_FAIL(
        D9D_ECONFIG,
        "%s: the finished model is to go there, and it is not empty: move what is there "
        "away, or set export_to",
        d9di_train_export_dir(r));
}

/* The position of the run, and the remaining steps. */
static d9d_status check_start(d9di_train *r, const char *resume_from)
{
    D9D_TRY(init_state(r));
    if (resume_from != NULL)
        D9D_TRY(check_state_whole(r, resume_from));
    return check_export_dir(r);
}

/* Rank 0 creates the run directory later, checkpoints after that, and the finished model last. */
static d9d_status check_output_paths(const d9di_train *r)
{
    const char *const places[] = {r->dir.path, r->dir.checkpoints, d9di_train_export_dir(r)};

    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
        D9D_TRY(d9d_fs_check_creatable(places[i]));
    return d9di_checkpointer_check_names(r->dir.checkpoints);
}

d9di_engine_opts d9di_train_engine_opts(const d9di_train *r, bool resumes)
{
    const d9d_job_trainer_section *t = &r->c->trainer;

    return (d9di_engine_opts){
        .where = r->where,
        .mesh = &r->c->mesh,
        .provider = &r->c->model_provider,
        .peft = &r->c->peft,
        .source = t->model_stage_factory.source_checkpoint,
        .adapter = t->model_stage_factory.source_adapter,
        .data = &r->data,
        .seed = (uint64_t)t->determinism.base_seed,
        .pipe = d9d_job_pipe_schedule_opts(&t->pipelining),
        .micros = r->n_micro,
        .task = &r->task,
        .train = true,
        .initialise = !resumes || t->model_stage_factory.checkpoint_only_trainable_parameters,
        .optimizer = r->optimizer,
        .gradients = &t->gradient_manager,
        .sharding = &t->sharding,
        .timeout_s = (double)t->timeout.init_timeout,
        .timeout_name = D9DI_TRAIN_START_TIMEOUT_NAME,
        .stopped_s = (double)t->timeout.step_timeout,
        .flight = r->dir.flight,
    };
}

/* Checks the configuration against the data and the run directory. */
static d9d_status check_config(d9di_train *r)
{
    const d9d_job_trainer_section *t = &r->c->trainer;

    D9D_TRY(d9di_task_open(&r->c->task, &r->task));
    r->task.metrics = &r->metrics;
    D9D_TRY(d9di_job_start_open_events(r->where, &r->c->model_provider, &r->task, &r->events));
    D9D_TRY(d9di_train_trigger_event(r, "train.configuration.start",
                                     (d9d_job_event){.boot = r->where->boot}));
    D9D_TRY(d9d_parallel_degrees_check(&r->c->mesh, d9d_bootstrap_size(r->where->boot)));
    D9D_TRY(d9di_job_start_check_device(r->where->boot, r->where->device));
    D9D_TRY(d9di_task_check_config(&r->task, r->c));
    D9D_TRY(d9di_run_dir_set_paths(t, &r->arena, &r->dir));
    D9D_TRY(d9di_run_dir_check(r->c, &r->dir));
    r->n_micro =
        t->batching.global_batch_size / d9di_train_dp_size(r) / t->batching.microbatch_size;
    D9D_TRY(data_open(r));
    D9D_TRY(d9di_run_data_check_rows(&r->data, t->batching.microbatch_size));
    D9D_TRY(d9di_train_trigger_event(r, "train.configuration.data_loader",
                                     (d9d_job_event){.loader = r->data.loader}));
    D9D_TRY(d9di_run_metrics_open(&r->c->metrics, "metrics", &r->arena, &r->metrics));
    D9D_TRY(d9di_task_check_metrics(&r->task, "metrics", &r->metrics));
    D9D_TRY(d9di_evaluations_open(r->c, &r->task, &r->c->mesh, &r->arena, &r->evaluations));
    D9D_TRY(d9d_lr_schedule_create(&r->c->lr_scheduler, "lr_scheduler", r->total_steps, &r->lr));
    if (r->where->trial > 0 && r->total_steps > r->where->trial)
        r->total_steps = r->where->trial;
    return check_run_dir(r);
}

/* Checks the model, built whole and without memory, against its sources. */
static d9d_status check_model(d9di_train *r, const char *resume_from)
{
    const d9di_engine_opts opts = d9di_train_engine_opts(r, resume_from != NULL);

    D9D_TRY(d9di_engine_open(&opts, &r->engine));
    D9D_TRY(d9di_evaluations_check(&r->evaluations, r->engine.whole));
    D9D_TRY(d9di_run_metrics_check_head(&r->metrics, "metrics", &r->engine.spec.opts.head));
    D9D_TRY(d9di_evaluations_check_head(&r->evaluations, &r->engine.spec.opts.head));
    return d9d_optimizer_create(&r->c->optimizer, NULL, &r->engine.params, opts.seed,
                                &r->optimizer);
}

/* Content hash of weights that checkpoints leave out, and of adapters merged into them. */
static d9d_status source_content_hash(const d9di_train *r, d9d_hash *out)
{
    const struct d9d_job_factory_section *f = &r->c->trainer.model_stage_factory;
    d9d_hash of[2] = {{0}};

    D9D_TRY(d9d_content_hash_checkpoint(f->source_checkpoint, 0, &of[0]));
    if (f->source_adapter != NULL && r->engine.adapters.n == 0)
        D9D_TRY(d9d_content_hash_adapter(f->source_adapter, &of[1]));
    *out = d9d_hash_bytes(of, sizeof(of));
    return D9D_OK;
}

static d9d_status origin_make(const d9di_train *r, struct d9d_checkpointer_origin *out)
{
    const struct d9d_job_factory_section *f = &r->c->trainer.model_stage_factory;
    const char *hf = r->engine.spec.hf_config, *source = f->source_checkpoint;

    if (hf != NULL)
        D9D_TRY(d9d_content_hash_file(hf, &out->hf_config));
    if (!f->checkpoint_only_trainable_parameters || source == NULL)
        return D9D_OK;
    out->source_path = d9d_hash_bytes(source, strlen(source));
    return source_content_hash(r, &out->source);
}

/* Rank 0 computes the origin and broadcasts it.  Collective over the job. */
static d9d_status broadcast_origin(d9di_train *r)
{
    d9d_arena a = {0};
    d9d_bootstrap_blob *all;
    d9d_status st = r->rank == 0 ? origin_make(r, &r->origin) : D9D_OK;

    D9D_TRY(d9d_bootstrap_agree_status(r->where->boot, st));
    st = d9d_bootstrap_allgather_arena(r->where->boot, &r->origin, sizeof(r->origin), &a, &all);
    if (st == D9D_OK)
        memcpy(&r->origin, all[0].data, sizeof(r->origin));
    d9d_arena_release(&a);
    return st;
}

/* The position of the run, and its output paths. */
static d9d_status check_run(d9di_train *r, const char *resume_from)
{
    D9D_TRY(check_start(r, resume_from));
    return r->rank == 0 ? check_output_paths(r) : D9D_OK;
}

/* Checks that all input files are the same on all ranks, on shared or local disks. */
static d9d_status check_sources_uniform(d9di_train *r, const char *resume_from)
{
    const d9di_engine_opts opts = d9di_train_engine_opts(r, resume_from != NULL);
    d9di_rank_consistency same = {0};

    d9di_rank_consistency_add_data(&same, &r->data);
    for (size_t i = 0; i < r->evaluations.n; i++)
        d9di_rank_consistency_add_data(&same, &r->evaluations.v[i].data);
    d9di_rank_consistency_add_engine(&same, &r->engine, &opts);
    d9di_rank_consistency_add_checkpoint(&same, resume_from);
    return d9di_rank_consistency_check(&same, r->where->boot);
}

static bool text_equal(const char *a, const char *b)
{
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

d9d_status d9di_train_check(d9di_train *r, const char **resume_from)
{
    d9d_bootstrap *boot = r->where->boot;
    const char *likely;

    D9D_TRY(d9d_bootstrap_agree_status(boot, check_config(r)));
    D9D_TRY(find_checkpoint(r, false, &likely));
    D9D_TRY(d9d_bootstrap_agree_status(boot, check_model(r, likely)));
    D9D_TRY(broadcast_origin(r));
    D9D_TRY(d9d_bootstrap_agree_status(boot, check_run(r, likely)));
    D9D_TRY(find_checkpoint(r, true, resume_from));
    if (!text_equal(likely, *resume_from))
        D9D_TRY(d9d_bootstrap_agree_status(boot, check_start(r, *resume_from)));
    return check_sources_uniform(r, *resume_from);
}
