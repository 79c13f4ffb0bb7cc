/* train_export.c - exports the finished model.  See train/train_run.h. */
#include <stdio.h>

#include "d9d/convert/model_export.h"
#include "engine/job_start.h"
#include "train/train_run.h"

/* Saves parameters only, for a run whose checkpoints are disabled or partial. */
static d9d_status save_params(d9di_train *r, const char *dir)
{
    d9d_arena a = {0};
    d9d_checkpointer_set all, here;
    d9d_status st;

    D9D_TRY_OR(st, d9d_checkpointer_set_make(&r->engine.params, NULL, false, &a, &all), out);
    D9D_TRY_OR(st, d9d_checkpointer_set_local(&all, &a, &here), out);
    st = d9d_checkpointer_write(dir, &r->state, &here, r->engine.mesh, r->log);
out:
    d9d_arena_release(&a);
    return st;
}

/* Writes the model's adapters, or those of its checkpoint `saved`, to the run directory; *out is
 * NULL if there are none. */
static d9d_status adapters_export(d9di_train *r, const char *saved, d9d_adapters **out)
{
    const char *source = r->c->trainer.model_stage_factory.source_checkpoint;

    *out = NULL;
    if (r->engine.adapters.n == 0)
        return D9D_OK;
    D9D_TRY(d9di_engine_adapters(&r->engine, saved, out));
    if (r->rank > 0)
        return D9D_OK;
    return d9di_engine_adapters_write(&r->engine, *out, source, r->dir.adapter, r->log);
}

/* Exports on a process that has all weights. */
static d9d_status export_local(d9di_train *r, const char *dir)
{
    d9d_adapters *ad = NULL;
    d9d_status st = adapters_export(r, NULL, &ad);

    if (st == D9D_OK)
        st = d9d_model_export_params(&r->engine.spec, &r->engine.base, ad, dir, r->log);
    d9d_adapters_free(ad);
    return st;
}

/* Exports from the ranks' checkpoint, as no rank has all weights. */
static d9d_status export_from_checkpoint(d9di_train *r, const char *dir)
{
    const bool saved = r->saved_step == r->state.step && !r->set.partial;
    const char *params_set =
        saved ? r->dir.checkpoints : d9d_arena_printf(&r->arena, "%s/export.parts", r->dir.path);
    const char *path =
        params_set != NULL ? d9d_checkpointer_path(&r->arena, params_set, r->state.step) : NULL;
    d9d_adapters *ad = NULL;
    d9d_status st;

    if (path == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: the name of a checkpoint", r->dir.path);
    if (!saved)
        D9D_TRY(save_params(r, params_set));
    st = d9d_bootstrap_agree_status(r->where->boot, adapters_export(r, path, &ad));
    if (st == D9D_OK)
        st = d9d_model_export_checkpoint(&r->engine.spec, path, ad, dir, r->where->boot, r->log);
    d9d_adapters_free(ad);
    D9D_TRY(st);
    if (saved)
        return D9D_OK;
    /* On NFS, a removed file that another rank has open keeps a temporary name in the directory
     * until it is closed, and the directory could not be removed. */
    D9D_TRY(d9d_bootstrap_agree_status(r->where->boot, D9D_OK));
    return r->rank == 0 ? d9d_checkpointer_remove(params_set, r->state.step, r->log) : D9D_OK;
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

d9d_status d9di_train_export(d9di_train *r, d9d_train_summary *out)
{
    const char *dir = d9di_train_export_dir(r);

    if (r->where->trial)
        return D9D_OK;
    D9D_TRY(d9d_bootstrap_agree_status(r->where->boot, r->rank == 0 ? check_empty(dir) : D9D_OK));
    D9D_TRY((r->engine.world != NULL ? export_from_checkpoint : export_local)(r, dir));
    (void)snprintf(out->export_dir, sizeof(out->export_dir), "%s", dir);
    return D9D_OK;
}
