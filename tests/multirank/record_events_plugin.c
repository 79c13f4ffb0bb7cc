/* record_events_plugin.c - a plugin for plugin.bats: writes each rank's lifecycle events and their
 * fields to events.RANK; fails at the event D9D_FAIL_AT. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <d9d/tasks/plugin.h>

static int rank; /* rank of this process */

static d9d_status record_event(void *self, const d9d_job_event *e)
{
    const char *fail = getenv("D9D_FAIL_AT");
    char path[32];
    FILE *f;

    if (e->bootstrap != NULL)
        rank = d9d_bootstrap_rank(e->bootstrap);
    (void)snprintf(path, sizeof(path), "events.%d", rank);
    f = fopen(path, "a");
    if (f == NULL)
        return D9D_FAIL(D9D_EIO, "%s", path);
    fprintf(f, "%s%s%s%s%s%s%s", e->id, e->bootstrap != NULL ? " bootstrap" : "",
            e->loader != NULL ? " loader" : "", e->models != NULL ? " models" : "",
            e->optimizer != NULL ? " optimizer" : "", e->lr != NULL ? " lr" : "",
            e->tracker != NULL ? " tracker" : "");
    if (e->total_steps > 0)
        fprintf(f, " %lld/%lld", (long long)e->step, (long long)e->total_steps);
    if (e->user != NULL)
        fprintf(f, " %s", (const char *)e->user);
    if (e->name != NULL)
        fprintf(f, " %s", e->name);
    fprintf(f, "%s\n", self != NULL ? " self" : "");
    fclose(f);
    for (size_t i = 0; i < e->n_models; i++)
        if (e->models[i]->n_units == 0 || d9d_module_find(e->models[i]->module, "no such") != NULL)
            return D9D_FAIL(D9D_EINVAL, "model %zu", i);
    if (fail != NULL && strcmp(fail, e->id) == 0)
        return D9D_FAIL(D9D_EVERIFY, "a handler of %s has seen enough", e->id);
    return D9D_OK;
}

static d9d_status and_tell(void *self, const d9d_job_event *e)
{
    const d9d_job_event event = {.size = sizeof(event), .id = "mine.ready", .user = "user"};

    D9D_TRY(record_event(self, e));
    return d9d_job_events_trigger(e->events, &event);
}

/* The second handler of an event runs after the first; and_tell() calls the third. */
static d9d_status again(void *self, const d9d_job_event *e)
{
    d9d_job_event twice = *e;

    twice.user = "again";
    return record_event(self, &twice);
}

static const d9d_job_event_handler events[] = {
    {"train.configuration.start", record_event},
    {"train.configuration.data_loader", record_event},
    {"train.configuration.model_stages", record_event},
    {"train.configuration.optimizer", record_event},
    {"train.configuration.lr_scheduler", record_event},
    {"train.ready", and_tell},
    {"train.ready", again},
    {"mine.ready", record_event},
    {"train.step.pre", record_event},
    {"train.forward_backward.pre", record_event},
    {"train.forward_backward.post", record_event},
    {"train.optimizer_step.pre", record_event},
    {"train.optimizer_step.post", record_event},
    {"train.step.post", record_event},
    {"train.evaluation.pre", record_event},
    {"train.evaluation.post", record_event},
    {"train.finished", record_event},
    {"inference.configuration.start", record_event},
    {"inference.configuration.data_loader", record_event},
    {"inference.configuration.model_stages", record_event},
    {"inference.ready", record_event},
    {"inference.step.pre", record_event},
    {"inference.forward.pre", record_event},
    {"inference.forward.post", record_event},
    {"inference.step.post", record_event},
    {"inference.finished", record_event},
    {NULL, NULL},
};
D9D_PLUGIN(.events = events);
