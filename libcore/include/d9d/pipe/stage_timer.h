/* stage_timer.h - what a device has computed in a play, and how long it waited.
 *
 *     D9D_TRY(d9d_stage_timer_create(dev, &m));
 *     d9d_executor_set_timer(x, m);
 *     D9D_TRY(d9d_executor_run(x));
 *     ...                                          // the host goes on
 *     if (d9d_stage_timer_is_done(m))                     // the device has come to the end
 *         D9D_TRY(d9d_stage_timer_read(m, &reading));
 *
 *     marks     | nothing |   0F0   | nothing |  0B0  |
 *               ^ the play begins              the last one ends ^
 *
 * Marks are events in the device's queue, so that measuring waits for nothing; what lies between
 * two of them belongs to the first.  An action begins when what it takes has come: `busy` is what a
 * rank computed and `total` the whole play, and the bubble of a pipeline is the share of its
 * ranks' plays, each as long as the longest, in which they were not busy.  On the CPU marks are the
 * host's clock, on paper that of paper (d9d/device/simulated.h).
 */
#ifndef D9D_PIPE_STAGE_TIMER_H
#define D9D_PIPE_STAGE_TIMER_H

#include "d9d/device/device.h"
#include "d9d/pipe/program.h"
#include "d9d/pipe/timeline.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_stage_timer d9d_stage_timer;

D9D_API D9D_MUST_USE d9d_status d9d_stage_timer_create(d9d_device *dev, d9d_stage_timer **out);
D9D_API void d9d_stage_timer_free(d9d_stage_timer *m); /* NULL is fine */

/* Forget all marks, and set the first. */
D9D_API D9D_MUST_USE d9d_status d9d_stage_timer_begin(d9d_stage_timer *m);
/* From here on the device computes the action; NULL: nothing. */
D9D_API D9D_MUST_USE d9d_status d9d_stage_timer_record(d9d_stage_timer *m,
                                                       const d9d_pipe_action *a);

/* Has the device come to the last mark?  False where there is none. */
D9D_API bool d9d_stage_timer_is_done(const d9d_stage_timer *m);

/* Seconds of a stage, by d9d_pipe_action_kind: forward, whole backward and both halves. */
typedef struct d9d_stage_times {
    double seconds[D9D_PIPE_WGRAD + 1];
} d9d_stage_times;

/* All marks have passed.  work[0..stages) is written. */
D9D_API D9D_MUST_USE d9d_status d9d_stage_timer_read(const d9d_stage_timer *m, int stages,
                                                     d9d_stage_times *work, double *busy,
                                                     double *total);

/* Prices of a stage that has worked through the program once: means over its micro-batches.  Where
 * no half was done alone both are half of the whole. */
D9D_API d9d_stage_costs d9d_stage_times_cost(const d9d_stage_times *w, const d9d_program *p,
                                             int stage);

#ifdef __cplusplus
}
#endif
#endif /* D9D_PIPE_STAGE_TIMER_H */
