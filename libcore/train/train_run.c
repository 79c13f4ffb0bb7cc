/* train_run.c - queries about a training run, and its timeouts.  See train/train_run.h. */
#include "train/train_run.h"

#include "d9d/base/fs.h"
#include "d9d/ckpt/dir/manifest.h"

d9d_status d9di_train_trigger_event(const d9di_train *r, const char *id, d9d_job_event e)
{
    e.size = sizeof(e);
    e.id = id;
    return d9d_job_events_trigger(r->events, &e);
}

d9d_status d9di_train_trigger_step_event(const d9di_train *r, const char *id)
{
    return d9di_train_trigger_event(
        r, id, (d9d_job_event){.step = r->state.step, .total_steps = r->total_steps});
}

bool d9di_train_is_done(const d9di_train *r)
{
    return r->state.step >= r->total_steps;
}

const char *d9di_train_export_dir(const d9di_train *r)
{
    return r->c->export_to != NULL ? r->c->export_to : r->dir.export;
}

bool d9di_train_is_exported(const d9di_train *r)
{
    static const char *const names[] = {D9D_MANIFEST_NAME, "config.json"};
    const char *dir = d9di_train_export_dir(r);
    d9d_arena a = {0};
    bool found = false;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && !found; i++) {
        const char *path = d9d_fs_join(&a, dir, names[i]);

        found = path != NULL && d9d_fs_exists(path);
    }
    d9d_arena_release(&a);
    return found;
}

int64_t d9di_train_dp_size(const d9di_train *r)
{
    return r->c->mesh.data_parallel_replicate * r->c->mesh.data_parallel_shard;
}

int d9di_train_dp_rank(const d9di_train *r)
{
    return d9d_mesh_index(r->engine.mesh, D9D_AXES_DP);
}

/* The time that a rank's write may take. */
static double write_seconds(const d9di_train *r)
{
    return (double)d9d_checkpointer_set_bytes(&r->set) / 100e6;
}

double d9di_train_save_timeout_s(const d9di_train *r)
{
    const struct d9d_job_timeout_section *t = &r->c->trainer.timeout;

    return t->save_timeout > 0 ? (double)t->save_timeout
                               : (double)t->init_timeout + write_seconds(r);
}

void d9di_train_set_timeout(d9di_train *r, d9di_train_phase phase)
{
    const struct d9d_job_timeout_section *t = &r->c->trainer.timeout;
    const struct {
        const char *name;
        int64_t said;
        double otherwise;
    } limits[] = {
        [D9DI_TRAIN_START] = {D9DI_TRAIN_START_TIMEOUT_NAME, t->init_timeout, 0},
        [D9DI_TRAIN_STEP] = {"trainer.timeout.step_timeout", t->step_timeout, 0},
        [D9DI_TRAIN_EVALUATION] = {"in an evaluation, trainer.timeout.evaluation_timeout",
                                   t->evaluation_timeout, (double)t->init_timeout},
        [D9DI_TRAIN_SAVE] = {D9DI_TRAIN_SAVE_TIMEOUT_NAME, t->save_timeout,
                             d9di_train_save_timeout_s(r)},
        [D9DI_TRAIN_EXPORT] = {"in the export, trainer.timeout.export_timeout", t->export_timeout,
                               (double)t->init_timeout + write_seconds(r)},
    };

    d9d_mesh_set_timeout(r->engine.mesh,
                         limits[phase].said > 0 ? (double)limits[phase].said
                                                : limits[phase].otherwise,
                         limits[phase].name);
}
