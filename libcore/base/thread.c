/* thread.c - a thread pool over a list of items.  See d9d/base/thread.h. */
#include "d9d/base/thread.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CPUS = 1 << 20 };

int d9d_thread_cpus(void)
{
    /* The kernel's mask may be wider than cpu_set_t: grow until it fits. */
    for (int n = CPU_SETSIZE; n <= MAX_CPUS; n *= 2) {
        const size_t size = CPU_ALLOC_SIZE(n);
        cpu_set_t *set = CPU_ALLOC(n);
        const bool ok = set != NULL && sched_getaffinity(0, size, set) == 0;
        const bool wider = !ok && set != NULL && errno == EINVAL;
        const int count = ok ? CPU_COUNT_S(size, set) : 0;

        CPU_FREE(set);
        if (!wider)
            return count > 0 ? count : 1;
    }
    return 1;
}

struct team {
    d9d_thread_fn fn;
    void *arg;
    size_t n;

    pthread_mutex_t lock; /* protects all below */
    size_t next;
    bool failed;
    size_t failed_item; /* lowest so far */
    d9d_err_copy err;
};

struct team_worker {
    struct team *team;
    int number;
};

static bool claim_item(struct team *t, size_t *item)
{
    bool got;

    (void)pthread_mutex_lock(&t->lock);
    got = !t->failed && t->next < t->n;
    if (got)
        *item = t->next++;
    (void)pthread_mutex_unlock(&t->lock);
    return got;
}

static void note_failure(struct team *t, size_t item, d9d_status st)
{
    (void)pthread_mutex_lock(&t->lock);
    if (!t->failed || item < t->failed_item) {
        t->failed = true;
        t->failed_item = item;
        d9d_err_save(&t->err, st);
    }
    (void)pthread_mutex_unlock(&t->lock);
}

/* Every item below a failed one was assigned before it and runs to its end, so the failure with the
 * lowest number does not depend on timing. */
static void *worker_main(void *arg)
{
    const struct team_worker *w = arg;
    size_t item;
    d9d_status st;

    while (claim_item(w->team, &item)) {
        st = w->team->fn(w->team->arg, w->number, item);
        if (st != D9D_OK)
            note_failure(w->team, item, st);
    }
    return NULL;
}

_Static_assert(sizeof(sigset_t) <= sizeof(d9d_thread_sigmask), "a set of signals fits");

void d9d_thread_block_signals(d9d_thread_sigmask *before)
{
    static const int faults[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL};
    sigset_t others, old_mask;

    (void)sigfillset(&others);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        (void)sigdelset(&others, faults[i]);
    (void)pthread_sigmask(SIG_SETMASK, &others, &old_mask);
    memcpy(before, &old_mask, sizeof(old_mask));
}

void d9d_thread_restore_signals(const d9d_thread_sigmask *before)
{
    sigset_t old_mask;

    memcpy(&old_mask, before, sizeof(old_mask));
    (void)pthread_sigmask(SIG_SETMASK, &old_mask, NULL);
}

/* Start workers 1 .. jobs-1; returns how many run.  Fewer than asked for is slower, not wrong. */
static int start_workers(struct team_worker *workers, pthread_t *threads, int jobs)
{
    d9d_thread_sigmask before;
    int started = 0;

    d9d_thread_block_signals(&before);
    for (int i = 1; i < jobs; i++) {
        if (pthread_create(&threads[started], NULL, worker_main, &workers[i]) != 0)
            break;
        started++;
    }
    d9d_thread_restore_signals(&before);
    return started;
}

static d9d_status run_inline(size_t n, d9d_thread_fn fn, void *arg)
{
    for (size_t i = 0; i < n; i++)
        D9D_TRY(fn(arg, 0, i));
    return D9D_OK;
}

static d9d_status run_team(int jobs, size_t n, d9d_thread_fn fn, void *arg)
{
    struct team team = {.fn = fn, .arg = arg, .n = n, .lock = PTHREAD_MUTEX_INITIALIZER};
    struct team_worker *workers = calloc((size_t)jobs, sizeof(*workers));
    pthread_t *threads = calloc((size_t)jobs, sizeof(*threads));
    d9d_status st = D9D_OK;
    int started;

    if (workers == NULL || threads == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "threads: cannot allocate %d workers", jobs);
        goto out;
    }
    for (int i = 0; i < jobs; i++)
        workers[i] = (struct team_worker){.team = &team, .number = i};
    started = start_workers(workers, threads, jobs);
    (void)worker_main(&workers[0]);
    for (int i = 0; i < started; i++)
        (void)pthread_join(threads[i], NULL);
    if (team.failed)
        st = d9d_err_restore(&team.err);
out:
    (void)pthread_mutex_destroy(&team.lock);
    free(threads);
    free(workers);
    return st;
}

d9d_status d9d_thread_run(int jobs, size_t n, d9d_thread_fn fn, void *arg)
{
    if (jobs < 0)
        return D9D_FAIL(D9D_EINVAL, "threads: %d jobs; must be 0 or more", jobs);
    if (jobs == 0)
        jobs = d9d_thread_cpus();
    if ((size_t)jobs > n)
        jobs = (int)n;
    return jobs <= 1 ? run_inline(n, fn, arg) : run_team(jobs, n, fn, arg);
}
