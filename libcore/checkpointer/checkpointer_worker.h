/* checkpointer_worker.h - the thread of a save, and the main thread's waits for it.
 *
 *     main thread     start |  forward, backward  wait_copied | update ...     wait_ended, join
 *     worker                | copy .... copied | write or send ............ ended
 *
 * One piece of work at a time.  The thread makes no collective call. */
#ifndef D9DI_CHECKPOINTER_CHECKPOINTER_WORKER_H
#define D9DI_CHECKPOINTER_CHECKPOINTER_WORKER_H

#include <pthread.h>

#include "d9d/device/device.h"

typedef d9d_status d9di_checkpointer_worker_fn(void *arg);

typedef struct d9di_checkpointer_worker {
    d9di_checkpointer_worker_fn *fn;
    void *arg;
    pthread_t thread;
    bool running;         /* the thread is there: it is to be joined */
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    bool copied, ended;
    int64_t end; /* in ns: of the work */
    d9d_err_copy result;
} d9di_checkpointer_worker;

void d9di_checkpointer_worker_init(d9di_checkpointer_worker *w);
void d9di_checkpointer_worker_release(d9di_checkpointer_worker *w); /* joined */

/* Calls fn(arg) in a thread with all signals blocked; inline without `threaded`, and where there is
 * no thread, which is slower, but correct. */
void d9di_checkpointer_worker_start(d9di_checkpointer_worker *w, bool threaded,
                                    d9di_checkpointer_worker_fn *fn, void *arg);
/* In the work: what is saved may be changed. */
void d9di_checkpointer_worker_set_copied(d9di_checkpointer_worker *w);

/* Waits until what is saved may be changed.  *blocked grows by the nanoseconds in which the device
 * had nothing enqueued meanwhile. */
d9d_status d9di_checkpointer_worker_wait_copied(d9di_checkpointer_worker *w, d9d_device *dev,
                                                int64_t *blocked);
/* Waits for the end of the work until a time of d9d_clock_ns(); true if it has ended. */
bool d9di_checkpointer_worker_wait_ended(d9di_checkpointer_worker *w, int64_t deadline);
/* Waits for the end of the work, and returns its status with its message; or not even looks at it.
 */
d9d_status d9di_checkpointer_worker_join(d9di_checkpointer_worker *w);
void d9di_checkpointer_worker_abandon(d9di_checkpointer_worker *w);

#endif /* D9DI_CHECKPOINTER_CHECKPOINTER_WORKER_H */
