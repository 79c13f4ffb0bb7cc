/* train_export.c - see train/train_export.h. */
#include "train/train_export.h"

#include <stdio.h>

#include "d9d/convert/model_export.h"

/* Adapters that are the run's only result must be such that peft can have them. */
static d9d_status check_adapters(const d9di_engine *e)
{
    d9d_arena a = {0};
    d9d_model_matrices of;
    d9d_status st = d9d_model_spec_matrices(&e->spec, &a, &of);

    if (st == D9D_OK)
        st = d9d_adapters_check_writable(&e->whole.params, &of);
    d9d_arena_release(&a);
    return st;
}

d9d_status d9di_train_export_check(const d9di_train_run *run, const d9di_engine *e, bool done)
{
    const bool alone = d9di_train_run_exports_adapters(run);
    d9d_status st = alone ? check_adapters(e) : d9d_model_export_check(&e->spec);

    if (st == D9D_ENOTSUP && !alone)
        d9d_log_warn(run->log, "%s; the model will be written in d9d's own layout",
                     d9d_err_message());
    else
        D9D_TRY(st);
    if (d9d_fs_is_empty(d9di_train_run_export_dir(run)) ||
        (done && d9di_train_run_is_exported(run)))
        return D9D_OK;
    return D9D_FAIL(
        D9D_ECONFIG,
        "%s: the finished model is to go there, and it is not empty: move what is there "
        "away, or set %s",
        d9di_train_run_export_dir(run), alone ? "trainer.run.dir" : "export_to");
}

/* Saves parameters only, for a run whose checkpoints are disabled or partial; of a quantised base
 * those that are trained. */
static d9d_status save_params(const d9di_train_run *run, const d9di_engine *e,
                              const d9d_checkpointer_state *state, const char *dir)
{
    d9d_arena a = {0};
    d9d_checkpointer_set all, here;
    d9d_status st;

    D9D_TRY_OR(
        st,
        d9d_checkpointer_set_make(&e->params, NULL, d9di_train_run_exports_adapters(run), &a, &all),
        out);
    D9D_TRY_OR(st, d9d_checkpointer_set_local(&all, &a, &here), out);
    st = d9d_checkpointer_write(dir, state, &here, e->mesh, run->log);
out:
    d9d_arena_release(&a);
    return st;
}

/* Writes the model's adapters, or those of its checkpoint `saved`, to the run directory; *out is
 * NULL if there are none. */
static d9d_status adapters_export(const d9di_train_run *run, const d9di_engine *e,
                                  const char *saved, d9d_adapters **out)
{
    const char *source = run->c->trainer.model_stage_factory.source_checkpoint;

    *out = NULL;
    if (e->whole.adapters.n == 0 && e->whole.model->virtual_tokens == 0)
        return D9D_OK;
    D9D_TRY(d9di_engine_adapters(e, saved, out));
    if (run->rank > 0)
        return D9D_OK;
    return d9di_engine_adapters_write(e, saved, source, run->dir.adapter, run->log);
}

/* Exports on a process that has all weights. */
static d9d_status export_local(const d9di_train_run *run, const d9di_engine *e, const char *dir)
{
    d9d_adapters *ad = NULL;
    d9d_status st = adapters_export(run, e, NULL, &ad);

    if (st == D9D_OK && !d9di_train_run_exports_adapters(run))
        st = d9d_model_export_params(&e->spec, &e->whole.base, ad, dir, run->log);
    d9d_adapters_free(ad);
    return st;
}

/* Exports from the checkpoint of all ranks at `path`. */
static d9d_status export_from(const d9di_train_run *run, const d9di_engine *e, const char *path,
                              const char *dir)
{
    d9d_bootstrap *bootstrap = run->where->bootstrap;
    d9d_adapters *ad = NULL;
    d9d_status st = d9d_bootstrap_agree_status(bootstrap, adapters_export(run, e, path, &ad));

    if (st == D9D_OK && !d9di_train_run_exports_adapters(run))
        st = d9d_model_export_checkpoint(&e->spec, path, ad, dir, bootstrap, run->log);
    d9d_adapters_free(ad);
    return st;
}

/* Exports from parameters that are saved for that, and removed afterwards. */
static d9d_status export_from_params(const d9di_train_run *run, const d9di_engine *e,
                                     const d9d_checkpointer_state *state, const char *params_set,
                                     const char *path, const char *dir)
{
    D9D_TRY(save_params(run, e, state, params_set));
    D9D_TRY(export_from(run, e, path, dir));
    /* On NFS, a removed file that another rank has open keeps a temporary name in the directory
     * until it is closed, and the directory could not be removed. */
    D9D_TRY(d9d_bootstrap_agree_status(run->where->bootstrap, D9D_OK));
    return run->rank == 0 ? d9d_checkpointer_remove(params_set, state->step, run->log) : D9D_OK;
}

/* Exports from the ranks' checkpoint, as no rank has all weights.  A checkpoint has the trained
 * ones, not those that are `averaged`. */
static d9d_status export_from_checkpoint(const d9di_train_run *run, const d9di_engine *e,
                                         const d9di_train_checkpointer *ck,
                                         const d9d_checkpointer_state *state, bool averaged,
                                         const char *dir)
{
    const bool saved = !averaged && ck->saved_step == state->step &&
                       (!ck->set.partial || d9di_train_run_exports_adapters(run));
    d9d_arena a = {0};
    const char *params_set =
        saved ? run->dir.checkpoints : d9d_arena_printf(&a, "%s/export.parts", run->dir.path);
    const char *path =
        params_set != NULL ? d9d_checkpointer_path(&a, params_set, state->step) : NULL;
    d9d_status st;

    if (path == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "%s: the name of a checkpoint", run->dir.path);
    else if (saved)
        st = export_from(run, e, path, dir);
    else
        st = export_from_params(run, e, state, params_set, path, dir);
    d9d_arena_release(&a);
    return st;
}

/* It was empty when the run began. */
static d9d_status check_empty(const char *dir)
{
    if (d9d_fs_is_empty(dir))
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG,
                    "%s: is no longer empty, so the model was not exported; move its content away "
                    "and run the same command again",
                    dir);
}

static d9d_status export_to(const d9di_train_run *run, const d9di_engine *e,
                            const d9di_train_checkpointer *ck, const d9d_checkpointer_state *state,
                            bool averaged, const char *dir)
{
    return e->world != NULL ? export_from_checkpoint(run, e, ck, state, averaged, dir)
                            : export_local(run, e, dir);
}

static d9d_status export_averages(const d9di_train_run *run, d9di_engine *e, d9d_optimizer *o,
                                  const d9di_train_checkpointer *ck,
                                  const d9d_checkpointer_state *state, const char *dir)
{
    D9D_TRY(d9di_engine_use_averages(e, o));
    D9D_TRY(export_to(run, e, ck, state, true, dir));
    return d9di_engine_use_weights(e, o);
}

/* An EMA may be kept beside the model; what an optimizer averages is the model. */
static bool exports_averages(const d9di_train_run *run, const d9d_optimizer *o)
{
    const d9d_job_ema_section *ema = run->c->trainer.ema;

    return d9d_optimizer_has_averages(o) && (ema == NULL || ema->is_exported);
}

d9d_status d9di_train_export(const d9di_train_run *run, d9di_engine *e, d9d_optimizer *o,
                             const d9di_train_checkpointer *ck, const d9d_checkpointer_state *state,
                             d9d_train_summary *out)
{
    const char *dir = d9di_train_run_export_dir(run);

    if (run->where->trial)
        return D9D_OK;
    D9D_TRY(d9d_bootstrap_agree_status(run->where->bootstrap,
                                       run->rank == 0 ? check_empty(dir) : D9D_OK));
    D9D_TRY(exports_averages(run, o) ? export_averages(run, e, o, ck, state, dir)
                                     : export_to(run, e, ck, state, false, dir));
    (void)snprintf(out->export_dir, sizeof(out->export_dir), "%s", dir);
    return D9D_OK;
}
