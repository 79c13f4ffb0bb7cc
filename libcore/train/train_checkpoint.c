/* train_checkpoint.c - see train/train_checkpoint.h. */
#include "train/train_checkpoint.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "d9d/ckpt/dir/content_hash.h"
#include "d9d/comm/exchange.h"

/* --- what a run resumes from ------------------------------------------------------------------ */

d9d_status d9di_train_checkpointer_find(const d9di_train_run *run, bool whole, d9d_arena *a,
                                        const char **path)
{
    d9d_status st = D9D_OK;

    *path = NULL;
    if (!run->c->trainer.checkpointing.resume)
        return D9D_OK;
    if (whole)
        return d9d_checkpointer_latest(run->dir.checkpoints, run->where->bootstrap, run->log, a,
                                       path);
    if (run->rank == 0)
        st = d9d_checkpointer_latest_unverified(run->dir.checkpoints, a, path);
    D9D_TRY(d9d_bootstrap_agree_status(run->where->bootstrap, st));
    return d9d_bootstrap_broadcast_text(run->where->bootstrap, a, path);
}

/* The step in a checkpoint's path, ".../step-00001000". */
static int64_t step_of_path(const char *path)
{
    const char *at = path != NULL ? strrchr(path, '-') : NULL;

    return at != NULL ? strtoll(at + 1, NULL, 10) : -1;
}

static bool local_is_on(const d9di_train_run *run)
{
    return run->c->trainer.checkpointing.local_period_steps != D9D_PERIOD_DISABLE &&
           run->where->trial == 0;
}

d9d_status d9di_train_checkpointer_check_local_dir(const d9di_train_run *run)
{
    return local_is_on(run) ? d9di_checkpointer_local_check_dir() : D9D_OK;
}

/* Replicas have the same states, unless rows of expert ranks lie over several of them. */
static d9di_checkpointer_local_mesh local_mesh(const d9di_train_run *run)
{
    d9d_parallel_degrees d = run->c->mesh;
    int64_t values[D9D_N_PARALLEL_DEGREES];
    const int64_t ranks =
        d9d_parallel_degrees_ranks(&d) / d.pipeline_parallel / d.data_parallel_replicate;
    d9di_checkpointer_local_mesh m = {.replicas = (int)d.data_parallel_replicate,
                                      .ranks = (int)ranks,
                                      .replicas_vary = ranks % d.expert_parallel == 0};

    if (m.replicas_vary)
        d.data_parallel_replicate = 0;
    d9d_parallel_degrees_values(&d, values);
    m.job = d9d_hash_u64(values, sizeof(values));
    return m;
}

d9d_status d9di_train_checkpointer_find_local(d9di_train_checkpointer *ck,
                                              const d9di_train_run *run, d9d_arena *a,
                                              const char **path)
{
    const int64_t disk = step_of_path(*path);
    const d9di_checkpointer_local_mesh mesh = local_mesh(run);
    char id[D9DI_RUN_DIR_ID_SIZE];

    ck->found.step = -1;
    if (!local_is_on(run) || !run->c->trainer.checkpointing.resume)
        return D9D_OK;
    D9D_TRY(d9d_bootstrap_agree_status(run->where->bootstrap, d9di_run_dir_read_id(&run->dir, id)));
    D9D_TRY(d9di_checkpointer_local_find(run->where->bootstrap, id, &mesh, a, &ck->found));
    if (ck->found.step <= disk) {
        ck->found.step = -1;
        return D9D_OK;
    }
    ck->saved_step = ck->read_step = disk;
    *path = ck->found.ranks == d9d_bootstrap_size(run->where->bootstrap)
                ? d9d_arena_printf(a, "local checkpoints of step %lld", (long long)ck->found.step)
                : d9d_arena_printf(a, "local checkpoints of step %lld, of %d ranks",
                                   (long long)ck->found.step, ck->found.ranks);
    return *path != NULL ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "local checkpoints: their name");
}

/* Content hash of weights that checkpoints leave out, and of adapters merged into them. */
static d9d_status source_content_hash(const d9di_train_run *run, const d9di_engine *e,
                                      d9d_hash *out)
{
    const struct d9d_job_factory_section *f = &run->c->trainer.model_stage_factory;
    d9d_hash of[2] = {{0}};

    D9D_TRY(d9d_content_hash_checkpoint(f->source_checkpoint, 0, &of[0]));
    if (f->source_adapter != NULL && e->whole.adapters.n == 0)
        D9D_TRY(d9d_content_hash_adapter(f->source_adapter, &of[1]));
    *out = d9d_hash_bytes(of, sizeof(of));
    return D9D_OK;
}

/* Without its adapters the model is its own reference, whose weights a checkpoint may have: the
 * source may then be gone. */
static bool reads_reference(const d9di_engine *e)
{
    return e->frozen.source != NULL &&
           (!e->frozen.without_adapters || d9d_fs_exists(e->frozen.source));
}

static d9d_status origin_make(const d9di_train_run *run, const d9di_engine *e,
                              struct d9d_checkpointer_origin *out)
{
    const struct d9d_job_factory_section *f = &run->c->trainer.model_stage_factory;
    const char *hf = e->spec.hf_config, *name = run->c->trainer.run.name;

    if (run->c->trainer.checkpointing.save_dir != NULL)
        out->run = d9d_hash_bytes(name, strlen(name));
    if (hf != NULL)
        D9D_TRY(d9d_content_hash_file(hf, &out->hf_config));
    if (reads_reference(e))
        D9D_TRY(d9d_content_hash_checkpoint(e->frozen.source, 0, &out->reference));
    if (!f->checkpoint_only_trainable_parameters || f->source_checkpoint == NULL)
        return D9D_OK;
    return source_content_hash(run, e, &out->source);
}

d9d_status d9di_train_checkpointer_open_origin(d9di_train_checkpointer *ck,
                                               const d9di_train_run *run, const d9di_engine *e)
{
    d9d_arena a = {0};
    d9d_bootstrap_blob *all;
    d9d_status st = run->rank == 0 ? origin_make(run, e, &ck->origin) : D9D_OK;

    ck->frozen = &e->frozen;
    D9D_TRY(d9d_bootstrap_agree_status(run->where->bootstrap, st));
    st = d9d_bootstrap_allgather_arena(run->where->bootstrap, &ck->origin, sizeof(ck->origin), &a,
                                       &all);
    if (st == D9D_OK)
        memcpy(&ck->origin, all[0].data, sizeof(ck->origin));
    ck->reference = ck->origin.reference;
    if (e->frozen.without_adapters)
        ck->origin.reference = (d9d_hash){0};
    d9d_arena_release(&a);
    return st;
}

d9d_status d9di_train_checkpointer_start(const d9di_train_checkpointer *ck,
                                         const d9di_train_run *run, d9d_checkpointer_state *out)
{
    *out = (d9d_checkpointer_state){
        .seed = (uint64_t)run->c->trainer.determinism.base_seed,
        .dataset = d9d_loader_samples_hash(run->data.loader),
        .finite = true,
        .parent = -1,
        .origin = ck->origin,
    };
    return d9d_loader_order_hash(run->data.loader, &out->config);
}

static bool hash_is_zero(d9d_hash h)
{
    return d9d_hash_equal(h, (d9d_hash){0});
}

/* Warns if hf_config has changed: a number such as the RoPE base may differ although every shape
 * fits. */
static void check_hf_config(const d9di_train_checkpointer *ck, const d9di_train_run *run,
                            const char *hf_config, const char *path,
                            const struct d9d_checkpointer_origin *saved)
{
    if (!hash_is_zero(saved->hf_config) && !d9d_hash_equal(saved->hf_config, ck->origin.hf_config))
        d9d_log_warn(run->log,
                     "%s: %s is another one than it was trained with; what was learned until now "
                     "was learned with that",
                     path, hf_config != NULL ? hf_config : "model_provider.hf_config");
}

/* Weights that are not in checkpoints, of which a run remembers the identity. */
typedef struct outside_weights {
    const char *from;   /* the directory now, or what they are without one */
    const char *use;    /* "over": what they are for the run */
    const char *advice; /* besides putting them back */
    bool are_taken;     /* the run takes such weights */
    bool are_saved;     /* a checkpoint of now has their identity */
    d9d_hash now, saved;
} outside_weights;

/* They must be the ones the run was trained with, wherever they are. */
static d9d_status check_outside(const outside_weights *w, const d9d_log *log, const char *path)
{
    char then[D9D_HASH_HEX], now[D9D_HASH_HEX];

    if (!w->are_taken || d9d_hash_equal(w->now, w->saved))
        return D9D_OK;
    if (hash_is_zero(w->saved)) {
        if (w->are_saved)
            d9d_log_warn(log, "%s: does not say which weights it was trained %s; %s is taken", path,
                         w->use, w->from);
        return D9D_OK;
    }
    d9d_hash_hex(w->saved, then);
    d9d_hash_hex(w->now, now);
    return D9D_FAIL(D9D_EMISMATCH,
                    "%s: was trained %s other weights than %s has now: their identity was %s and "
                    "is %s; put them back, or begin another trainer.run.dir%s",
                    path, w->use, w->from, then, hash_is_zero(w->now) ? "unknown" : now, w->advice);
}

/* Several runs may have been given one directory.  Said before what else differs between them. */
static d9d_status check_run(const d9di_train_run *run, const char *path, d9d_hash now)
{
    const d9d_checkpointer_set nothing = {.partial = true};
    d9d_checkpointer_state saved;

    if (run->rank > 0 || hash_is_zero(now))
        return D9D_OK;
    D9D_TRY(d9d_checkpointer_check(path, &nothing, &saved));
    if (hash_is_zero(saved.origin.run) || d9d_hash_equal(now, saved.origin.run))
        return D9D_OK;
    return D9D_FAIL(D9D_EMISMATCH,
                    "%s: is of a run with another trainer.run.name than \"%s\"; give this run a "
                    "trainer.checkpointing.save_dir of its own",
                    path, run->c->trainer.run.name);
}

static d9d_status check_origin(const d9di_train_checkpointer *ck, const d9di_train_run *run,
                               const char *path, const struct d9d_checkpointer_origin *saved)
{
    const struct d9d_checkpointer_origin *o = &ck->origin;
    const d9di_frozen_model *frozen = ck->frozen;
    const char *reference = frozen->source != NULL ? frozen->source : "the model's start";
    const outside_weights all[] = {{run->c->trainer.model_stage_factory.source_checkpoint, "over",
                                    " with source_adapter", !hash_is_zero(o->source), true,
                                    o->source, saved->source},
                                   {reference, "beside", "", frozen->is_on,
                                    !hash_is_zero(o->reference), ck->reference, saved->reference}};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        D9D_TRY(check_outside(&all[i], run->log, path));
    return D9D_OK;
}

/* Checkpoints of earlier versions have the hash of the manifests. */
static bool is_dataset(const d9di_train_run *run, d9d_hash saved)
{
    return d9d_hash_equal(saved, d9d_loader_samples_hash(run->data.loader)) ||
           d9d_hash_equal(saved, d9d_loader_data_hash(run->data.loader));
}

d9d_status d9di_train_checkpointer_check(const d9di_train_checkpointer *ck,
                                         const d9di_train_run *run, const char *hf_config,
                                         const char *path, const d9d_checkpointer_set *set,
                                         d9d_checkpointer_state *s)
{
    const d9d_checkpointer_state fresh = *s;

    D9D_TRY(check_run(run, path, fresh.origin.run));
    D9D_TRY(d9d_checkpointer_check(path, set, s));
    if (!is_dataset(run, s->dataset))
        return D9D_FAIL(D9D_EMISMATCH, "%s: was trained on another dataset than %s", path,
                        run->data.sections[0].dataset);
    s->dataset = fresh.dataset;
    if (!d9d_hash_equal(s->config, fresh.config))
        return D9D_FAIL(D9D_EMISMATCH,
                        "%s: was trained with another data.split, data.order%s or "
                        "data.seed",
                        path, run->data.n > 1 ? ", data.weight" : "");
    if (s->seed != fresh.seed)
        return D9D_FAIL(D9D_EMISMATCH,
                        "%s: has trainer.determinism.base_seed %llu, and the "
                        "configuration %llu",
                        path, (unsigned long long)s->seed, (unsigned long long)fresh.seed);
    if (run->rank > 0)
        return D9D_OK;
    check_hf_config(ck, run, hf_config, path, &s->origin);
    return check_origin(ck, run, path, &s->origin);
}

/* --- saves ------------------------------------------------------------------------------------ */

/* A save waits this long at least for the one before it, as periods of small models are short. */
static const double SAVE_PATIENCE_S = 60;

/* Saves are asynchronous if there is any besides the last. */
d9d_status d9di_train_checkpointer_open(d9di_train_checkpointer *ck, const d9di_train_run *run,
                                        const d9di_engine *e, const d9di_train_timeouts *timeouts,
                                        d9d_tracker *tracker, int64_t step)
{
    const struct d9d_job_checkpointing_section *c = &run->c->trainer.checkpointing;
    const int64_t p = c->period_steps;
    const d9di_checkpointer_async_opts opts = {
        .dir = run->dir.checkpoints,
        .keep = c->num_to_keep,
        .async = c->asynchronous && p > 0 && (step / p + 1) * p < run->total_steps,
        .set = &ck->set,
        .dev = e->dev,
        .mesh = e->mesh,
        .patience_s = SAVE_PATIENCE_S,
        .timeout_s = d9di_train_timeouts_save_s(timeouts),
        .timeout_name = D9DI_TRAIN_SAVE_TIMEOUT_NAME,
        .tracker = tracker,
        .log = run->log,
    };

    return run->where->trial ? D9D_OK : d9di_checkpointer_async_open(&opts, &ck->async);
}

void d9di_train_checkpointer_close(d9di_train_checkpointer *ck)
{
    d9di_checkpointer_async_close(ck->async);
    d9di_checkpointer_local_close(ck->local);
}

d9d_status d9di_train_checkpointer_open_local(d9di_train_checkpointer *ck,
                                              const d9di_train_run *run, const d9di_engine *e,
                                              const d9di_train_timeouts *timeouts,
                                              d9d_tracker *tracker)
{
    char id[D9DI_RUN_DIR_ID_SIZE];
    const d9di_checkpointer_local_opts opts = {.id = id,
                                               .job = local_mesh(run),
                                               .set = &ck->set,
                                               .dev = e->dev,
                                               .mesh = e->mesh,
                                               .world = e->world,
                                               .timeout_s = d9di_train_timeouts_save_s(timeouts),
                                               .timeout_name = D9DI_TRAIN_SAVE_TIMEOUT_NAME,
                                               .tracker = tracker,
                                               .log = run->log};

    if (!local_is_on(run))
        return D9D_OK;
    D9D_TRY(d9d_bootstrap_agree_status(run->where->bootstrap, d9di_run_dir_read_id(&run->dir, id)));
    return d9di_checkpointer_local_open(&opts, &ck->found, &ck->local);
}

d9d_status d9di_train_checkpointer_resume_local(d9di_train_checkpointer *ck,
                                                const d9di_train_run *run, const char *path,
                                                d9d_checkpointer_state *state)
{
    d9d_checkpointer_state s;

    D9D_TRY(d9di_checkpointer_local_restore(ck->local, &ck->found, &s));
    if (ck->set.n_rank_states > 0 && ck->found.ranks != d9d_bootstrap_size(run->where->bootstrap))
        d9d_log_warn(run->log,
                     "the local checkpoints of step %lld are of %d rank%s: what metrics had "
                     "accumulated until then is that of the replicas that are here",
                     (long long)s.step, ck->found.ranks, D9D_PLURAL(ck->found.ranks));
    if (!is_dataset(run, s.dataset) || !d9d_hash_equal(s.config, state->config) ||
        s.seed != state->seed)
        return D9D_FAIL(D9D_EMISMATCH,
                        "the local checkpoints of step %lld: data or trainer.determinism.base_seed "
                        "have changed since; put them back, or go on from the disk with "
                        "trainer.checkpointing.local_period_steps disable",
                        (long long)s.step);
    D9D_TRY(check_origin(ck, run, path, &s.origin));
    s.dataset = state->dataset;
    *state = s;
    state->origin = ck->origin;
    state->parent = s.step;
    return D9D_OK;
}

int64_t d9di_train_checkpointer_complete_step(const d9di_train_checkpointer *ck)
{
    const int64_t committed = d9di_checkpointer_async_committed(ck->async);

    return committed >= 0 ? committed : ck->read_step;
}

bool d9di_train_checkpointer_local_is_due(const d9di_train_checkpointer *ck,
                                          const d9di_train_run *run, int64_t step)
{
    return ck->local != NULL && ck->local_step != step &&
           d9d_step_period_due(run->c->trainer.checkpointing.local_period_steps, step,
                               run->total_steps, D9D_DUE_AFTER_STEP);
}

d9d_status d9di_train_checkpointer_resume(d9di_train_checkpointer *ck, const d9di_train_run *run,
                                          const char *path, d9d_checkpointer_state *state)
{
    const d9d_hash dataset = state->dataset;

    D9D_TRY(d9d_checkpointer_read(path, &ck->set, run->log, state));
    state->dataset = dataset; /* of this version */
    D9D_TRY(d9d_checkpointer_read_rank_state(path, &ck->set, run->rank,
                                             d9d_bootstrap_size(run->where->bootstrap), run->log));
    state->origin = ck->origin;
    state->parent = ck->saved_step = ck->read_step = state->step;
    return D9D_OK;
}

d9d_status d9di_train_checkpointer_save(d9di_train_checkpointer *ck,
                                        const d9d_checkpointer_state *state, bool last)
{
    bool begun;

    D9D_TRY(d9di_checkpointer_async_begin(ck->async, state, last, &begun));
    if (begun)
        ck->saved_step = state->step;
    return D9D_OK;
}

d9d_status d9di_train_checkpointer_save_local(d9di_train_checkpointer *ck,
                                              const d9d_checkpointer_state *state)
{
    D9D_TRY(d9di_checkpointer_local_begin(ck->local, state));
    ck->local_step = state->step;
    return D9D_OK;
}

d9d_status d9di_train_checkpointer_wait_copy(d9di_train_checkpointer *ck)
{
    D9D_TRY(d9di_checkpointer_async_wait_copy(ck->async));
    return d9di_checkpointer_local_wait_copy(ck->local);
}

d9d_status d9di_train_checkpointer_finish(d9di_train_checkpointer *ck)
{
    d9di_checkpointer_local_wait(ck->local);
    return d9di_checkpointer_async_finish(ck->async);
}
