/* events.c - see d9d/loop/events.h. */
#include "d9d/loop/events.h"

#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 16 };

typedef struct subscriber {
    const d9d_subscription *row;
    void *self;
} subscriber;

struct d9d_events {
    D9D_VEC(subscriber) subscribers;
    int depth;
};

d9d_status d9d_events_create(d9d_events **out)
{
    d9d_events *v = calloc(1, sizeof(*v));

    if (v == NULL)
        return D9D_FAIL(D9D_ENOMEM, "events: %zu bytes", sizeof(*v));
    *out = v;
    return D9D_OK;
}

void d9d_events_free(d9d_events *v)
{
    if (v != NULL)
        D9D_VEC_RELEASE(&v->subscribers);
    free(v);
}

d9d_status d9d_events_subscribe(d9d_events *v, const d9d_subscription *table, void *self)
{
    for (; table != NULL && table->id != NULL; table++)
        D9D_TRY(D9D_VEC_PUSH(&v->subscribers, (subscriber){table, self}));
    return D9D_OK;
}

d9d_status d9d_events_trigger(d9d_events *v, const d9d_event *e)
{
    d9d_event whole = {0};
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

        if (strcmp(s.row->id, whole.id) == 0)
            st = s.row->handle(s.self, &whole);
    }
    v->depth--;
    return st;
}
