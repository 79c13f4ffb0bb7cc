/* train_control.c - see train/train_control.h. */
#include "train/train_control.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

/* A rank's flags are 1 if it was asked to exit, plus SLEEP_FLAG if it is to sleep. */
enum { SLEEP_FLAG = 1 << 20 };

d9d_status d9di_train_control_open(d9di_train_control *t, bool is_root, int64_t margin_s,
                                   const d9d_log *log)
{
    t->is_root = is_root;
    return d9d_preemption_open(is_root ? margin_s : D9D_PREEMPTION_NO_LIMIT, log, &t->preemption);
}

void d9di_train_control_close(d9di_train_control *t)
{
    d9d_preemption_close(t->preemption);
}

double d9di_train_control_flags(d9di_train_control *t, bool alone)
{
    const bool sleeps = t->is_root && !alone && d9d_preemption_sleep_requested(t->preemption);

    return (d9d_preemption_reason(t->preemption) != NULL) + (sleeps ? SLEEP_FLAG : 0);
}

void d9di_train_control_receive(d9di_train_control *t, double flags)
{
    t->should_exit = t->should_exit || fmod(flags, SLEEP_FLAG) > 0;
    t->should_sleep = t->should_sleep || flags >= SLEEP_FLAG;
}

void d9di_train_control_request_exit(d9di_train_control *t, const char *why)
{
    (void)snprintf(t->why, sizeof(t->why), "%s", why);
    t->should_exit = true;
}

const char *d9di_train_control_reason(const d9di_train_control *t)
{
    const char *reason = d9d_preemption_reason(t->preemption);

    if (reason == NULL && t->why[0] != '\0')
        reason = t->why;
    return reason != NULL ? reason : "a signal to another rank";
}

bool d9di_train_control_should_exit(const d9di_train_control *t, bool alone)
{
    return alone ? d9d_preemption_reason(t->preemption) != NULL : t->should_exit;
}

bool d9di_train_control_should_sleep(d9di_train_control *t, bool alone)
{
    if (alone)
        t->should_sleep = d9d_preemption_sleep_requested(t->preemption);
    return t->should_sleep;
}
