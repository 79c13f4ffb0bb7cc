/* train_stragglers.h - stragglers in a run: ranks that compute slower than their peers.
 *
 * In a synchronous job every rank takes as long as the slowest, since the others wait for it in
 * collectives: the times of steps do not tell who it is.  So each rank measures how long its device
 * computes in a step, without the waits (d9d/device/wait_timer.h).  After each period the medians
 * of all ranks are shared, and compared among ranks with the same work (train/straggler.h).
 *
 *     stepper    step begins | waits of step k ... | step ends
 *     recorder               collect(k): ms - waits --> the period's median
 *                            one step later: the medians of all --> verdicts
 *
 * A verdict is a warning, a line of metrics.jsonl and, if the configuration says so, the end of the
 * run: it saves and exits 75, and the node's name becomes a file in RUN/excluded_nodes.
 *
 * Cost.  Two events of the stream for each wait, and a sum of 16 bytes a rank each period, which
 * nobody waits for.
 */
#ifndef D9DI_TRAIN_TRAIN_STRAGGLERS_H
#define D9DI_TRAIN_TRAIN_STRAGGLERS_H

#include "d9d/device/async_host_reduce.h"
#include "d9d/device/wait_timer.h"
#include "d9d/track/track.h"
#include "engine/engine.h"
#include "train/straggler.h"
#include "train/train_run.h"

typedef struct d9di_train_stragglers {
    const struct d9d_job_stragglers_section *c; /* borrowed; NULL: off */
    d9di_engine *engine;                        /* borrowed */
    d9di_straggler_watch watch;
    const char **node; /* [ranks] */
    int n_ranks;
    d9d_wait_timer *timer[4]; /* of step k: [k % 4], as the stepper's ends */
    double *window;           /* [capacity] milliseconds of computing, of the period's steps */
    size_t n, capacity;
    d9d_async_host_reduce reduce;
    d9di_straggler_time *times; /* [ranks]: this rank's; then all */
    d9di_straggler_verdict *verdicts;
    int n_verdicts;
    int64_t sent_step; /* whose medians are on the way; -1: none */
} d9di_train_stragglers;

/* After the engine has its memory; `step`: the steps that are done.  Warns where no rank has peers.
 * Collective. */
d9d_status d9di_train_stragglers_open(d9di_train_stragglers *s, const d9di_train_run *run,
                                      d9di_engine *e, int64_t step, d9d_arena *a);
void d9di_train_stragglers_close(d9di_train_stragglers *s); /* before the engine is released */

/* The waits from here on are of step k, counted from 0. */
void d9di_train_stragglers_begin_step(d9di_train_stragglers *s, int64_t k);
/* Step k took so many milliseconds; called in order, when the device has passed its end. Collective
 * over the job. */
d9d_status d9di_train_stragglers_collect(d9di_train_stragglers *s, const d9di_train_run *run,
                                         int64_t k, double ms);

/* The next verdict as a record; false: there is none.  The texts are valid until the next call. */
bool d9di_train_stragglers_poll(d9di_train_stragglers *s, d9d_track_straggler_record *out);
/* "rank 5 (h2) computes 1.31 times slower than its peers since step 40: 13.1 ms a step, and 10.0"
 */
d9d_status d9di_train_stragglers_text(const d9d_track_straggler_record *r, d9d_buf *out);

#endif /* D9DI_TRAIN_TRAIN_STRAGGLERS_H */
