/* stage_timer.c - see d9d/pipe/stage_timer.h. */
#include "d9d/pipe/stage_timer.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/device/event_list.h"

enum { NO_STAGE = -1 };

/* What the device does from an event on. */
typedef struct timer_mark {
    int stage; /* NO_STAGE: none */
    d9d_pipe_action_kind kind;
} timer_mark;

struct d9d_stage_timer {
    d9d_device *dev;
    d9d_event_list events;     /* of this run */
    D9D_VEC(timer_mark) marks; /* [events.n] */
};

d9d_status d9d_stage_timer_create(d9d_device *dev, d9d_stage_timer **out)
{
    d9d_stage_timer *m = calloc(1, sizeof(*m));

    if (m == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a stage timer", dev->name);
    m->dev = dev;
    *out = m;
    return D9D_OK;
}

void d9d_stage_timer_free(d9d_stage_timer *m)
{
    if (m == NULL)
        return;
    d9d_event_list_release(&m->events);
    D9D_VEC_RELEASE(&m->marks);
    free(m);
}

d9d_status d9d_stage_timer_begin(d9d_stage_timer *m)
{
    m->events.n = m->marks.len = 0;
    return d9d_stage_timer_record(m, NULL);
}

d9d_status d9d_stage_timer_record(d9d_stage_timer *m, const d9d_pipe_action *a)
{
    D9D_TRY(D9D_VEC_RESERVE(&m->marks, 1));
    D9D_TRY(d9d_event_list_record(&m->events, m->dev));
    m->marks.data[m->marks.len++] =
        (timer_mark){a != NULL ? a->stage : NO_STAGE, a != NULL ? a->kind : D9D_PIPE_FORWARD};
    return D9D_OK;
}

bool d9d_stage_timer_is_done(const d9d_stage_timer *m)
{
    return d9d_event_list_is_done(&m->events);
}

d9d_status d9d_stage_timer_read(const d9d_stage_timer *m, int stages, d9d_stage_times *work,
                                double *busy, double *total)
{
    double ms;

    memset(work, 0, (size_t)stages * sizeof(*work));
    *busy = *total = 0;
    for (size_t i = 0; i + 1 < m->events.n; i++) {
        const timer_mark *k = &m->marks.data[i];

        D9D_TRY(d9d_event_list_elapsed_ms(&m->events, i, &ms));
        *total += ms * 1e-3;
        if (k->stage == NO_STAGE)
            continue;
        if (k->stage >= stages || k->kind > D9D_PIPE_WGRAD)
            return D9D_FAIL(D9D_EINVAL, "pipeline: work of stage %d of %d", k->stage, stages);
        *busy += ms * 1e-3;
        work[k->stage].seconds[k->kind] += ms * 1e-3;
    }
    return D9D_OK;
}

d9d_stage_costs d9d_stage_times_cost(const d9d_stage_times *w, const d9d_program *p, int stage)
{
    const d9d_pipe_lane *lane = &p->lanes[d9d_program_rank_of(p, stage)];
    int64_t calls[D9D_PIPE_ACTION_COUNT] = {0};
    double mean[D9D_PIPE_WGRAD + 1];

    for (size_t i = 0; i < lane->len; i++)
        calls[lane->data[i].kind] += lane->data[i].stage == stage;
    for (int v = 0; v <= D9D_PIPE_WGRAD; v++)
        mean[v] = calls[v] > 0 ? w->seconds[v] / (double)calls[v] : 0;
    return (d9d_stage_costs){
        .forward = mean[D9D_PIPE_FORWARD],
        .dgrad = calls[D9D_PIPE_DGRAD] > 0 ? mean[D9D_PIPE_DGRAD] : mean[D9D_PIPE_BACKWARD] / 2,
        .wgrad = calls[D9D_PIPE_DGRAD] > 0 ? mean[D9D_PIPE_WGRAD] : mean[D9D_PIPE_BACKWARD] / 2,
    };
}
