/* events.c - see d9d/job/events.h. */
#include "d9d/job/events.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/plugin_call.h"

enum { DEPTH_MAX = 16 };

typedef struct subscriber {
    const d9d_job_event_handler *handler;
    void *self;
} subscriber;

struct d9d_job_events {
    D9D_VEC(subscriber) subscribers;
    int depth;
};

d9d_status d9d_job_events_create(d9d_job_events **out)
{
    d9d_job_events *v = calloc(1, sizeof(*v));

    if (v == NULL)
        return D9D_FAIL(D9D_ENOMEM, "events: %zu bytes", sizeof(*v));
    *out = v;
    return D9D_OK;
}

void d9d_job_events_free(d9d_job_events *v)
{
    if (v != NULL)
        D9D_VEC_RELEASE(&v->subscribers);
    free(v);
}

/* All events that the loops trigger, in the header's order. */
static const char *const event_names[] = {
    "train.configuration.start",
    "train.configuration.data_loader",
    "train.configuration.model_stages",
    "train.configuration.optimizer",
    "train.configuration.lr_scheduler",
    "train.ready",
    "train.step.pre",
    "train.forward_backward.pre",
    "train.forward_backward.post",
    "train.optimizer_step.pre",
    "train.optimizer_step.post",
    "train.step.post",
    "train.evaluation.pre",
    "train.evaluation.post",
    "train.sleep.pre",
    "train.sleep.post",
    "train.wake.pre",
    "train.wake.post",
    "train.finished",
    "inference.configuration.start",
    "inference.configuration.data_loader",
    "inference.configuration.model_stages",
    "inference.ready",
    "inference.step.pre",
    "inference.forward.pre",
    "inference.forward.post",
    "inference.step.post",
    "inference.finished",
    NULL,
};

/* The id that an event is triggered by, of one that the reference framework calls otherwise since
 * its version 0.17. */
static const char *triggered_id(const char *id)
{
    static const struct {
        const char *other, *id;
    } names[] = {{"train.configuration.data_stream", "train.configuration.data_loader"},
                 {"inference.configuration.data_stream", "inference.configuration.data_loader"}};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(names[i].other, id) == 0)
            return names[i].id;
    return id;
}

/* Refuses a misspelt id, whose handler would never be called. */
static d9d_status check_handler(const d9d_job_event_handler *row)
{
    const char *near = NULL;
    bool is_notified = false;

    if (row->handle == NULL)
        return D9D_FAIL(D9D_ECONFIG, "event %s: its subscription has no function", row->id);
    for (size_t i = 0; event_names[i] != NULL; i++)
        is_notified = is_notified || strcmp(event_names[i], triggered_id(row->id)) == 0;
    if (is_notified ||
        (strncmp(row->id, "train.", 6) != 0 && strncmp(row->id, "inference.", 10) != 0))
        return D9D_OK;
    near = d9d_config_did_you_mean(row->id, event_names);
    return D9D_FAIL(D9D_ECONFIG, "event %s: there is none of this name%s%s%s", row->id,
                    near != NULL ? "; did you mean \"" : "", near != NULL ? near : "",
                    near != NULL ? "\"?" : "");
}

d9d_status d9d_job_events_subscribe(d9d_job_events *v, const d9d_job_event_handler *table,
                                    void *self)
{
    for (; table != NULL && table->id != NULL; table++) {
        D9D_TRY(check_handler(table));
        D9D_TRY(D9D_VEC_PUSH(&v->subscribers, (subscriber){table, self}));
    }
    return D9D_OK;
}

bool d9d_job_events_has_subscriber(const d9d_job_events *v, const char *id)
{
    for (size_t i = 0; i < v->subscribers.len; i++)
        if (strcmp(triggered_id(v->subscribers.data[i].handler->id), id) == 0)
            return true;
    return false;
}

d9d_status d9d_job_events_trigger(d9d_job_events *v, const d9d_job_event *e)
{
    d9d_job_event whole = {0};
    d9d_status st = D9D_OK;

    memcpy(&whole, e, e->size < sizeof(whole) ? e->size : sizeof(whole));
    whole.size = sizeof(whole);
    whole.events = v;
    if (v->depth == DEPTH_MAX)
        return D9D_FAIL(D9D_EINVAL, "event %s: handlers trigger each other %d deep", whole.id,
                        DEPTH_MAX);
    v->depth++;
    for (size_t i = 0; i < v->subscribers.len && st == D9D_OK; i++) {
        const subscriber s = v->subscribers.data[i];

        if (strcmp(triggered_id(s.handler->id), whole.id) == 0)
            st = D9D_PLUGIN_CALL(s.handler->id, s.handler, handle, s.self, &whole);
    }
    v->depth--;
    return st;
}
