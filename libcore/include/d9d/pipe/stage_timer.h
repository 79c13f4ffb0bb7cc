/* stage_timer.h - measures how long a device computes in a pipeline step, and how long it waits.
 *
 *     D9D_TRY(d9d_stage_timer_create(dev, &m));
 *     d9d_executor_set_timer(x, m);
 *     D9D_TRY(d9d_executor_run(x));
 *     ...                                              // the host continues
 *     if (d9d_stage_timer_is_done(m))                  // the device has passed the last event
 *         D9D_TRY(d9d_stage_timer_read(m, &reading));
 *
 *     events    | idle |   0F0   | idle |  0B0  |
 *               ^ the run begins        the last action ends ^
 *
 * The timer records events on the device's stream, so measuring never waits.  The time between two
 * events belongs to the first.  An action begins when its inputs have arrived.  `busy` is the time
 * in which the rank computed, `total` the whole run.  The bubble of a pipeline is the idle share of
 * all its ranks' runs, each counted as long as the longest.  On the CPU events are the host's
 * clock; on the simulated device they are simulated time (d9d/device/simulated.h).
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

/* Discard all events and record the first. */
D9D_API D9D_MUST_USE d9d_status d9d_stage_timer_begin(d9d_stage_timer *m);
/* Record that the device computes this action from here on; NULL: it is idle. */
D9D_API D9D_MUST_USE d9d_status d9d_stage_timer_record(d9d_stage_timer *m,
                                                       const d9d_pipe_action *a);

/* Has the device passed the last event?  False if there is none. */
D9D_API bool d9d_stage_timer_is_done(const d9d_stage_timer *m);

/* Seconds of a stage, by d9d_pipe_action_kind: F, B, I and W. */
typedef struct d9d_stage_times {
    double seconds[D9D_PIPE_WGRAD + 1];
} d9d_stage_times;

/* Read the times after d9d_stage_timer_is_done().  Writes work[0..stages). */
D9D_API D9D_MUST_USE d9d_status d9d_stage_timer_read(const d9d_stage_timer *m, int stages,
                                                     d9d_stage_times *work, double *busy,
                                                     double *total);

/* Costs of a stage that has run the program once: means over its micro-batches.  If I and W never
 * ran alone, each is half of B. */
D9D_API d9d_stage_costs d9d_stage_times_cost(const d9d_stage_times *w, const d9d_program *p,
                                             int stage);

#ifdef __cplusplus
}
#endif
#endif /* D9D_PIPE_STAGE_TIMER_H */
