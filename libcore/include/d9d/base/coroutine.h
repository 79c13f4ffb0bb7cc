/* coroutine.h - two pieces of work of one thread, in turns.
 *
 *     static d9d_status work(void *arg, d9d_co *t)
 *     {
 *         ... queue what goes on by itself ...
 *         D9D_TRY(d9d_co_yield(t));        // the other one goes on, until it says so too
 *         ... use what has been done meanwhile ...
 *     }
 *     D9D_TRY(d9d_co_run(work, &a, &b));
 *
 *     a  ====next        ====next        ===
 *     b          ====next        ========
 *
 * Which goes on when is decided by the calls alone, not by time: the same calls give the same order
 * on every run, and on every rank.  Each has a stack of its own; all else, the error record too, is
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

/* fn(a) and fn(b), the first begins; returns when both have.  The first failure is returned. */
D9D_API D9D_MUST_USE d9d_status d9d_co_run(d9d_co_fn fn, void *a, void *b);
/* From one of the two: let the other go on.  Where that one is through it returns at once; where it
 * has failed, with its failure, for this one to end with too. */
D9D_API D9D_MUST_USE d9d_status d9d_co_yield(d9d_co *t);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_COROUTINE_H */
