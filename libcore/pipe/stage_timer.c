/* stage_timer.c - see d9d/pipe/stage_timer.h. */
#include "d9d/pipe/stage_timer.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/device/readback.h"

enum { NOTHING = -1 };

typedef struct mark {
    d9d_device_event *at;
    int stage; /* NOTHING: none */
    d9d_verb verb;
} mark;

struct d9d_meter {
    d9d_device *dev;
    D9D_VEC(mark) marks; /* all that ever were at once; events are used again */
    size_t n;            /* of this play */
};

d9d_status d9d_meter_create(d9d_device *dev, d9d_meter **out)
{
    d9d_meter *m = calloc(1, sizeof(*m));

    if (m == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a meter", dev->name);
    m->dev = dev;
    *out = m;
    return D9D_OK;
}

void d9d_meter_free(d9d_meter *m)
{
    if (m == NULL)
        return;
    for (size_t i = 0; i < m->marks.len; i++)
        d9d_device_event_free(m->marks.data[i].at);
    D9D_VEC_RELEASE(&m->marks);
    free(m);
}

d9d_status d9d_meter_begin(d9d_meter *m)
{
    m->n = 0;
    return d9d_meter_mark(m, NULL);
}

d9d_status d9d_meter_mark(d9d_meter *m, const d9d_action *a)
{
    mark *k;

    if (m->n == m->marks.len) {
        mark fresh = {0};

        D9D_TRY(D9D_VEC_RESERVE(&m->marks, 1));
        D9D_TRY(d9d_device_event_create(m->dev, &fresh.at));
        m->marks.data[m->marks.len++] = fresh;
    }
    k = &m->marks.data[m->n];
    k->stage = a != NULL ? a->stage : NOTHING;
    k->verb = a != NULL ? a->verb : D9D_FORWARD;
    D9D_TRY(d9d_device_event_record(k->at));
    m->n++;
    return D9D_OK;
}

bool d9d_meter_passed(const d9d_meter *m)
{
    return m->n > 0 && d9d_device_event_passed(m->marks.data[m->n - 1].at);
}

d9d_status d9d_meter_read(const d9d_meter *m, int stages, d9d_stage_work *work, double *busy,
                          double *total)
{
    double ms;

    memset(work, 0, (size_t)stages * sizeof(*work));
    *busy = *total = 0;
    for (size_t i = 0; i + 1 < m->n; i++) {
        const mark *k = &m->marks.data[i];

        D9D_TRY(d9d_device_event_ms(k->at, k[1].at, &ms));
        *total += ms * 1e-3;
        if (k->stage == NOTHING)
            continue;
        if (k->stage >= stages || k->verb > D9D_WEIGHT)
            return D9D_FAIL(D9D_EINVAL, "pipeline: work of stage %d of %d", k->stage, stages);
        *busy += ms * 1e-3;
        work[k->stage].seconds[k->verb] += ms * 1e-3;
    }
    return D9D_OK;
}

d9d_stage_price d9d_stage_work_price(const d9d_stage_work *w, const d9d_program *p, int stage)
{
    const d9d_lane *lane = &p->lanes[d9d_program_rank_of(p, stage)];
    int64_t calls[D9D_VERB_COUNT] = {0};
    double mean[D9D_WEIGHT + 1];

    for (size_t i = 0; i < lane->len; i++)
        calls[lane->data[i].verb] += lane->data[i].stage == stage;
    for (int v = 0; v <= D9D_WEIGHT; v++)
        mean[v] = calls[v] > 0 ? w->seconds[v] / (double)calls[v] : 0;
    return (d9d_stage_price){
        .forward = mean[D9D_FORWARD],
        .input = calls[D9D_INPUT] > 0 ? mean[D9D_INPUT] : mean[D9D_BACKWARD] / 2,
        .weight = calls[D9D_INPUT] > 0 ? mean[D9D_WEIGHT] : mean[D9D_BACKWARD] / 2,
    };
}
