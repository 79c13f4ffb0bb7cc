/* coroutine.h - two coroutines that share a thread and alternate where they yield.
 *
 *     static d9d_status work(void *arg, d9d_co *t)
 *     {
 *         ... enqueue asynchronous work ...
 *         D9D_TRY(d9d_co_yield(t));        // the other one runs, until it yields too
 *         ... use the results ...
 *     }
 *     D9D_TRY(d9d_co_run(work, &a, &b));
 *
 *     a  ====yield       ====yield       ===
 *     b          ====yield       ========
 *
 * The calls alone decide which one runs when, not time: the same calls give the same order in every
 * run and on every rank.  Each has a stack of its own; everything else, the error record too, is
 * the thread's.
 */
#ifndef D9D_BASE_COROUTINE_H
#define D9D_BASE_COROUTINE_H

#include "d9d/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_co d9d_co;
typedef d9d_status (*d9d_co_fn)(void *arg, d9d_co *t);

/* Run fn(a) and fn(b), the first one first; returns when both have returned.  Returns the first
 * failure. */
D9D_API D9D_MUST_USE d9d_status d9d_co_run(d9d_co_fn fn, void *a, void *b);
/* Called by one of the two: run the other.  Returns at once if the other has returned, and with its
 * failure if it has failed, so that this one ends too. */
D9D_API D9D_MUST_USE d9d_status d9d_co_yield(d9d_co *t);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_COROUTINE_H */
