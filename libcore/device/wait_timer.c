/* wait_timer.c - see d9d/device/wait_timer.h. */
#include "d9d/device/wait_timer.h"

#include <math.h>
#include <stdlib.h>

#include "d9d/device/event_list.h"

enum { MARKS_MAX = 1 << 16 }; /* an evaluation or a rollout makes any number */

struct d9d_wait_timer {
    d9d_device *dev;
    d9d_event_list marks; /* a begin and an end in turn */
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
    d9d_event_list_release(&t->marks);
    free(t);
}

void d9d_wait_timer_reset(d9d_wait_timer *t)
{
    t->marks.n = 0;
    t->failed = false;
}

void d9d_wait_timer_mark(void *self, bool begins)
{
    d9d_wait_timer *t = self;
    d9d_status st;

    if (t->marks.n == MARKS_MAX)
        return;
    if (t->failed || begins != (t->marks.n % 2 == 0)) /* an end whose begin was before the reset */
        return;
    st = d9d_event_list_record(&t->marks, t->dev);
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
    if (t->marks.n == MARKS_MAX)
        return D9D_OK;
    for (size_t i = 0; i + 1 < t->marks.n; i += 2) {
        D9D_TRY(d9d_event_list_elapsed_ms(&t->marks, i, &one));
        sum += one;
    }
    *ms = sum;
    return D9D_OK;
}
