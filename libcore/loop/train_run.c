/* train_run.c - what a training run says of itself.  See loop/train_run.h. */
#include "loop/train_run.h"

d9d_status d9di_train_tell(const d9di_train *r, const char *id, d9d_event e)
{
    e.size = sizeof(e);
    e.id = id;
    return d9d_events_trigger(r->events, &e);
}

d9d_status d9di_train_tell_step(const d9di_train *r, const char *id)
{
    return d9di_train_tell(r, id,
                           (d9d_event){.step = r->state.step, .total_steps = r->total_steps});
}

bool d9di_train_done(const d9di_train *r)
{
    return r->state.step >= r->total_steps;
}

const char *d9di_train_export_dir(const d9di_train *r)
{
    return r->c->export_to != NULL ? r->c->export_to : r->dir.export;
}

int64_t d9di_train_replicas(const d9di_train *r)
{
    return r->c->mesh.data_parallel_replicate * r->c->mesh.data_parallel_shard;
}

int d9di_train_replica(const d9di_train *r)
{
    return d9d_mesh_index(r->engine.mesh, D9D_AXES_DP);
}

void d9di_train_allow(d9di_train *r, bool much)
{
    const struct d9d_timeout_section *t = &r->c->trainer.timeout;

    d9d_mesh_set_timeout(r->engine.mesh, (double)(much ? t->init_timeout : t->step_timeout));
}
