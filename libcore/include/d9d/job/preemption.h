/* preemption.h - when a run must save and exit: signals, and the Slurm time limit.
 *
 * SIGTERM, SIGUSR1, SIGINT and SIGUSR2 are blocked for the process and polled between steps, so no
 * step is interrupted and no signal handler runs.  Threads created after opening inherit the mask.
 * Inside a Slurm job, opening determines the end of the allocation once: from SLURM_JOB_END_TIME,
 * or else by asking the controller.
 */
#ifndef D9D_JOB_PREEMPTION_H
#define D9D_JOB_PREEMPTION_H

#include <stdbool.h>

#include "d9d/base/log.h"
#include "d9d/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_preemption d9d_preemption;

enum { D9D_PREEMPTION_NO_LIMIT = -1 };
/* margin_s: request an exit this many seconds before the allocation ends.  D9D_PREEMPTION_NO_LIMIT:
 * signals only, for ranks other than 0, which watches the time.  If no more than the margin is
 * left: EINTR if the whole allocation is longer by SLURM_JOB_START_TIME, as of a second start in a
 * job; else ECONFIG, since a requeued job would end here again and again. */
D9D_API D9D_MUST_USE d9d_status d9d_preemption_open(int64_t margin_s, const d9d_log *log,
                                                    d9d_preemption **out);
/* Consumes pending signals.  Restores the signal mask, unless a signal was received: then the
 * process is exiting, and further signals must not change its exit status. */
D9D_API void d9d_preemption_close(d9d_preemption *s);
/* True if SIGUSR2 arrived since the last call, or since opening.  It requests sleep, or wake-up. */
D9D_API bool d9d_preemption_sleep_requested(d9d_preemption *s);
/* Blocks until SIGUSR2 arrives or there is a reason to exit. */
D9D_API void d9d_preemption_wait_wake(d9d_preemption *s);
/* The reason to exit now ("SIGTERM", "the end of the Slurm allocation"), or NULL.  Stays set. */
D9D_API const char *d9d_preemption_reason(d9d_preemption *s);

/* Parses a Slurm time ("1-02:03:04", "59:59", "UNLIMITED") into seconds; -1 without a limit or for
 * invalid text. */
D9D_API int64_t d9d_preemption_parse_slurm_time(const char *text);

#ifdef __cplusplus
}
#endif
#endif /* D9D_JOB_PREEMPTION_H */
