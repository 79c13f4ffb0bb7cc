/* thread.h - a thread pool over a list of items (parallel for), signal masks, and clocks. */
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

/* Call fn(arg, worker, item) for every item of [0, n) on `jobs` threads (0: one for each
 * processor), items assigned in increasing order.  After a failure no new item starts.  The failure
 * with the lowest item number is returned and becomes the caller's error record.  Results must not
 * depend on which worker ran an item. */
typedef d9d_status (*d9d_thread_fn)(void *arg, int worker, size_t item);
D9D_API D9D_MUST_USE d9d_status d9d_thread_run(int jobs, size_t n, d9d_thread_fn fn, void *arg);

/* Block signals in threads that are created between these two calls, so that the thread that
 * handles signals gets them.  Signals of a thread's own faults (SIGSEGV, SIGBUS, ...) stay
 * unblocked. */
typedef struct d9d_thread_sigmask {
    uint64_t signals[16]; /* a sigset_t */
} d9d_thread_sigmask;
D9D_API void d9d_thread_block_signals(d9d_thread_sigmask *before);
D9D_API void d9d_thread_restore_signals(const d9d_thread_sigmask *before);

/* Nanoseconds of the monotonic clock. */
D9D_API int64_t d9d_clock_ns(void);
/* The time now as "2026-01-31T12:00:00Z". */
D9D_API void d9d_clock_iso(char out[24]);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_THREAD_H */
