/* preemption.h - when a run must save and leave: signals, and the end of a Slurm allocation.
 *
 * SIGTERM, SIGUSR1, SIGINT and SIGUSR2 are blocked for the process and read between steps, so
 * nothing is interrupted half way and no handler runs.  Threads made after opening inherit
 * the mask.  Inside a Slurm job the end of the allocation is found out once, when opened:
 * SLURM_JOB_END_TIME says it, or else the controller is asked.
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
/* margin_s: leave this many seconds before the allocation ends; D9D_PREEMPTION_NO_LIMIT: signals
 * alone, of a rank whose rank 0 watches the time.  D9D_ECONFIG where no more than the margin is
 * left: a requeued job would come here again and again. */
D9D_API D9D_MUST_USE d9d_status d9d_preemption_open(int64_t margin_s, const d9d_log *log,
                                                    d9d_preemption **out);
/* A signal that came is consumed.  Where none did, the signal mask is restored; otherwise it stays,
 * since a process that was told to stop is on its way out, with a status that more of them must not
 * change. */
D9D_API void d9d_preemption_close(d9d_preemption *s);
/* Has SIGUSR2 come since the last call, or since it was opened?  It asks to sleep, or to wake. */
D9D_API bool d9d_preemption_sleep_requested(d9d_preemption *s);
/* Until SIGUSR2 comes, or there is a reason to leave. */
D9D_API void d9d_preemption_wait_wake(d9d_preemption *s);
/* Why to leave now ("SIGTERM", "the end of the Slurm allocation"), or NULL.  Once set it stays. */
D9D_API const char *d9d_preemption_reason(d9d_preemption *s);

/* Seconds in Slurm's way of printing them ("1-02:03:04", "59:59", "UNLIMITED"); -1 when there
 * is no limit or the text is not one. */
D9D_API int64_t d9d_preemption_parse_slurm_time(const char *text);

#ifdef __cplusplus
}
#endif
#endif /* D9D_JOB_PREEMPTION_H */
