/* train_times.h - where the time of a run went, since this start, on this rank.
 *
 *     d9di_train_times_enter(&t, D9DI_TRAIN_START);      // first
 *     d9di_train_times_enter(&t, D9DI_TRAIN_STEP);       // ends the phase before
 *     d9di_train_times_wait(&t, report.data_ms);         // part of the steps
 *     d9di_train_times_log(&t, log);
 *
 * prints, and then what would make the run faster:
 *
 *     time: 1:02:03: start 1 %, steps 90 % (waiting for batches 2 %), evaluation 6 %, saves 2 %
 */
#ifndef D9DI_TRAIN_TRAIN_TIMES_H
#define D9DI_TRAIN_TRAIN_TIMES_H

#include "d9d/base/log.h"
#include "train/train_timeout.h"

typedef struct d9di_train_times {
    bool begun;
    d9di_train_phase phase;
    int64_t since_ns;
    double seconds[D9DI_TRAIN_PHASES];
    double waited; /* seconds of the steps that passed in waiting for batches */
} d9di_train_times;

/* Counts the time from now on to a phase. */
void d9di_train_times_enter(d9di_train_times *t, d9di_train_phase phase);
void d9di_train_times_wait(d9di_train_times *t, double ms);
/* One line, and of a run of a minute or more a line for each phase that takes too much of it. */
void d9di_train_times_log(d9di_train_times *t, const d9d_log *log);

#endif /* D9DI_TRAIN_TRAIN_TIMES_H */
