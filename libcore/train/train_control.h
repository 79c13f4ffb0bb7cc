/* train_control.h - what asks a training run to exit or to sleep: signals to any rank, and the end
 * of the allocation.
 *
 * A single rank reacts to a signal at once.  Several ranks must react at the same point of the
 * program: each adds its flags to its step's report, and the sum says whether any rank has one.
 */
#ifndef D9DI_TRAIN_TRAIN_CONTROL_H
#define D9DI_TRAIN_TRAIN_CONTROL_H

#include "d9d/job/preemption.h"

typedef struct d9di_train_control {
    d9d_preemption *preemption;
    bool is_root;      /* rank 0, which watches the time and is asked to sleep */
    bool should_exit;  /* some rank requested to save and exit */
    bool should_sleep; /* rank 0 requested to sleep */
    char why[400];     /* what else than a signal asked to exit; "": nothing */
} d9di_train_control;

/* margin_s: as for d9d_preemption_open(). */
d9d_status d9di_train_control_open(d9di_train_control *t, bool is_root, int64_t margin_s,
                                   const d9d_log *log);
void d9di_train_control_close(d9di_train_control *t);

/* This rank's flags for the report of a step.  `alone`: the job has a single rank. */
double d9di_train_control_flags(d9di_train_control *t, bool alone);
/* Takes the sum of all ranks' flags. */
void d9di_train_control_receive(d9di_train_control *t, double flags);

/* The run exits after this step, for a reason that all ranks know.  Collective. */
void d9di_train_control_request_exit(d9di_train_control *t, const char *why);
/* What asked to exit; valid until the next call. */
const char *d9di_train_control_reason(const d9di_train_control *t);

bool d9di_train_control_should_exit(const d9di_train_control *t, bool alone);
/* True until should_sleep is reset. */
bool d9di_train_control_should_sleep(d9di_train_control *t, bool alone);

#endif /* D9DI_TRAIN_TRAIN_CONTROL_H */
