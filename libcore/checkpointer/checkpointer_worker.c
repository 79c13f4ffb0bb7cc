/* checkpointer_worker.c - see checkpointer/checkpointer_worker.h. */
#include "checkpointer/checkpointer_worker.h"

#include "d9d/base/thread.h"
#include "d9d/device/readback.h"

/* Waits are measured by the clock of d9d_clock_ns(). */
static void init_condition(pthread_cond_t *c)
{
    pthread_condattr_t attr;

    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(c, &attr);
    (void)pthread_condattr_destroy(&attr);
}

void d9di_checkpointer_worker_init(d9di_checkpointer_worker *w)
{
    *w = (d9di_checkpointer_worker){.running = false};
    (void)pthread_mutex_init(&w->lock, NULL);
    init_condition(&w->changed);
}

void d9di_checkpointer_worker_release(d9di_checkpointer_worker *w)
{
    (void)pthread_mutex_destroy(&w->lock);
    (void)pthread_cond_destroy(&w->changed);
}

static void *work(void *arg)
{
    d9di_checkpointer_worker *w = arg;
    const d9d_status st = w->fn(w->arg);

    (void)pthread_mutex_lock(&w->lock);
    d9d_err_save(&w->result, st);
    w->end = d9d_clock_ns();
    w->ended = true;
    (void)pthread_cond_signal(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
    return NULL;
}

void d9di_checkpointer_worker_start(d9di_checkpointer_worker *w, bool threaded,
                                    d9di_checkpointer_worker_fn *fn, void *arg)
{
    d9d_thread_sigmask before;

    w->fn = fn;
    w->arg = arg;
    w->copied = w->ended = false;
    d9d_thread_block_signals(&before);
    w->running = threaded && pthread_create(&w->thread, NULL, work, w) == 0;
    d9d_thread_restore_signals(&before);
    if (!w->running)
        (void)work(w);
}

void d9di_checkpointer_worker_set_copied(d9di_checkpointer_worker *w)
{
    (void)pthread_mutex_lock(&w->lock);
    w->copied = true;
    (void)pthread_cond_signal(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
}

static d9d_status wait_measured(d9di_checkpointer_worker *w, d9d_device_event *queued,
                                int64_t *blocked)
{
    const int64_t since = d9d_clock_ns();

    D9D_TRY(d9d_device_event_record(queued));
    (void)pthread_mutex_lock(&w->lock);
    while (!w->copied && !w->ended)
        (void)pthread_cond_wait(&w->changed, &w->lock);
    (void)pthread_mutex_unlock(&w->lock);
    if (d9d_device_event_query(queued))
        *blocked += d9d_clock_ns() - since;
    return D9D_OK;
}

d9d_status d9di_checkpointer_worker_wait_copied(d9di_checkpointer_worker *w, d9d_device *dev,
                                                int64_t *blocked)
{
    d9d_device_event *queued;
    d9d_status st;
    bool at_once;

    (void)pthread_mutex_lock(&w->lock);
    at_once = w->copied || w->ended;
    (void)pthread_mutex_unlock(&w->lock);
    if (at_once)
        return D9D_OK;
    D9D_TRY(d9d_device_event_create(dev, &queued));
    st = wait_measured(w, queued, blocked);
    d9d_device_event_free(queued);
    return st;
}

bool d9di_checkpointer_worker_wait_ended(d9di_checkpointer_worker *w, int64_t deadline)
{
    const struct timespec until = {deadline / 1000000000, deadline % 1000000000};
    bool ended;

    (void)pthread_mutex_lock(&w->lock);
    while (!w->ended && d9d_clock_ns() < deadline)
        (void)pthread_cond_timedwait(&w->changed, &w->lock, &until);
    ended = w->ended;
    (void)pthread_mutex_unlock(&w->lock);
    return ended;
}

void d9di_checkpointer_worker_abandon(d9di_checkpointer_worker *w)
{
    if (w->running)
        (void)pthread_join(w->thread, NULL);
    w->running = false;
}

d9d_status d9di_checkpointer_worker_join(d9di_checkpointer_worker *w)
{
    d9di_checkpointer_worker_abandon(w);
    return d9d_err_restore(&w->result);
}
