/* record_events_plugin.c - a plugin for plugin.bats: writes each rank's lifecycle events and their
 * fields to events.RANK; fails at the event D9D_FAIL_AT. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <d9d/tasks/plugin.h>

static int rank; /* of this process */

static d9d_status heard(void *self, const d9d_job_event *e)
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
    const d9d_job_event mine = {.size = sizeof(mine), .id = "mine.ready", .user = "user"};

    D9D_TRY(heard(self, e));
    return d9d_job_events_trigger(e->events, &mine);
}

/* The second handler of an event comes behind the first; the third is told by and_tell(). */
static d9d_status again(void *self, const d9d_job_event *e)
{
    d9d_job_event twice = *e;

    twice.user = "again";
    return heard(self, &twice);
}

static const d9d_job_event_handler events[] = {
    {"train.configuration.start", heard},
    {"train.configuration.data_loader", heard},
    {"train.configuration.model_stages", heard},
    {"train.configuration.optimizer", heard},
    {"train.configuration.lr_scheduler", heard},
    {"train.ready", and_tell},
    {"train.ready", again},
    {"mine.ready", heard},
    {"train.step.pre", heard},
    {"train.forward_backward.pre", heard},
    {"train.forward_backward.post", heard},
    {"train.optimizer_step.pre", heard},
    {"train.optimizer_step.post", heard},
    {"train.step.post", heard},
    {"train.evaluation.pre", heard},
    {"train.evaluation.post", heard},
    {"train.finished", heard},
    {"inference.configuration.start", heard},
    {"inference.configuration.data_loader", heard},
    {"inference.configuration.model_stages", heard},
    {"inference.ready", heard},
    {"inference.step.pre", heard},
    {"inference.forward.pre", heard},
    {"inference.forward.post", heard},
    {"inference.step.post", heard},
    {"inference.finished", heard},
    {NULL, NULL},
};
D9D_PLUGIN(.events = events);
