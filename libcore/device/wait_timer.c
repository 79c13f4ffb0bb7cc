/* wait_timer.c - see d9d/device/wait_timer.h. */
#include "d9d/device/wait_timer.h"

#include <math.h>
#include <stdlib.h>

#include "d9d/base/mem.h"
#include "d9d/device/readback.h"

enum { MARKS_MAX = 1 << 16 }; /* an evaluation or a rollout makes any number */

struct d9d_wait_timer {
    d9d_device *dev;
    D9D_VEC(d9d_device_event *) marks; /* a begin and an end in turn; events are reused */
    size_t n;
    d9d_err_copy failure;
    bool failed;
};

d9d_status d9d_wait_timer_create(d9d_device *dev, d9d_wait_timer **out)
{
    d9d_wait_timer *t = calloc(1, sizeof(*t));

    if (t == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a timer of waits", dev->name);
    t->dev = dev;
    *out = t;
    return D9D_OK;
}

void d9d_wait_timer_free(d9d_wait_timer *t)
{
    if (t == NULL)
        return;
    for (size_t i = 0; i < t->marks.len; i++)
        d9d_device_event_free(t->marks.data[i]);
    D9D_VEC_RELEASE(&t->marks);
    free(t);
}

void d9d_wait_timer_reset(d9d_wait_timer *t)
{
    t->n = 0;
    t->failed = false;
}

static d9d_status mark_add(d9d_wait_timer *t)
{
    d9d_device_event *fresh;

    if (t->n == t->marks.len) {
        D9D_TRY(D9D_VEC_RESERVE(&t->marks, 1));
        D9D_TRY(d9d_device_event_create(t->dev, &fresh));
        t->marks.data[t->marks.len++] = fresh;
    }
    D9D_TRY(d9d_device_event_record(t->marks.data[t->n]));
    t->n++;
    return D9D_OK;
}

void d9d_wait_timer_mark(void *self, bool begins)
{
    d9d_wait_timer *t = self;
    d9d_status st;

    if (t->n == MARKS_MAX)
        return;
    if (t->failed || begins != (t->n % 2 == 0)) /* an end whose begin was before the reset */
        return;
    st = mark_add(t);
    t->failed = st != D9D_OK;
    if (t->failed)
        d9d_err_save(&t->failure, st);
}

d9d_status d9d_wait_timer_read(const d9d_wait_timer *t, double *ms)
{
    double one, sum = 0;

    *ms = (double)NAN;
    if (t->failed)
        return d9d_err_restore(&t->failure);
    if (t->n == MARKS_MAX)
        return D9D_OK;
    for (size_t i = 0; i + 1 < t->n; i += 2) {
        D9D_TRY(d9d_device_event_elapsed_ms(t->marks.data[i], t->marks.data[i + 1], &one));
        sum += one;
    }
    *ms = sum;
    return D9D_OK;
}
