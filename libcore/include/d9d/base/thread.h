/* thread.h - workers over a list of items, what threads hear, and clocks. */
#ifndef D9D_BASE_THREAD_H
#define D9D_BASE_THREAD_H

#include <stddef.h>
#include <stdint.h>

#include "d9d/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Processors that this process may use (its affinity mask), at least 1. */
D9D_API int d9d_thread_cpus(void);

/* Call fn(arg, worker, item) for every item of [0, n) on `jobs` threads (0: one a
 * processor), items handed out in increasing order.  After a failure no new item
 * starts; the failure with the lowest item number is returned and becomes the
 * caller's error record.  Results must not depend on which worker ran an item. */
typedef d9d_status (*d9d_thread_fn)(void *arg, int worker, size_t item);
D9D_API D9D_MUST_USE d9d_status d9d_thread_run(int jobs, size_t n, d9d_thread_fn fn, void *arg);

/* Threads that are begun between these two hear no signal: signals are for the thread that waits.
 * Their own faults they hear, for whoever says what happened. */
typedef struct d9d_thread_sigmask {
    uint64_t signals[16]; /* a sigset_t */
} d9d_thread_sigmask;
D9D_API void d9d_thread_block_signals(d9d_thread_sigmask *before);
D9D_API void d9d_thread_restore_signals(const d9d_thread_sigmask *before);

/* Nanoseconds of a clock that never goes back. */
D9D_API int64_t d9d_clock_ns(void);
/* "2026-01-31T12:00:00Z" of now. */
D9D_API void d9d_clock_iso(char out[24]);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_THREAD_H */
