/* watchdog.c - see comm/watch/watchdog.h. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "comm/watch/flight_ring.h"
#include "comm/watch/flight_writer.h"
#include "comm/watch/watchdog.h"
#include "d9d/base/thread.h"

enum {
    LOOK_MS = 300,     /* until others have shown themselves once more */
    GRACE_MS = 2000,   /* that a launcher has to end the job of a dead rank, */
    VISIT_MS = 500,    /* who is looked for this often, */
    ABSENT_MS = 5000,  /* and what was seen before a pause of so long is of no interest */
    YIELD_MS = 1500,   /* that a rank leaves to the one that should speak */
    FAILING_MS = 1000, /* between ranks that fail of one cause */
    END_S = 3          /* until the process ends by itself whatever the launcher does */
};

struct d9di_watchdog {
    d9di_ring *ring;
    d9di_scribe *scribe;
    d9d_boot *boot;
    d9d_mesh_how how;
    int64_t limit;      /* ns, atomic; 0: none */
    const char *called; /* atomic: what the limit is; NULL: nobody has said */
    d9di_neighbours *neighbours;
    int64_t dead, stopped; /* since when one is, 0: none, */
    int64_t visited;       /* when that was looked at last */
    int64_t opens;         /* since when the network opens, atomic; 0: it does not */
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wake;  /* when `stop` is set */
    bool stop;
    d9di_net net; /* without a poll where nothing is to be asked */
};

/* --- a call that is overdue ------------------------------------------------------------ */

/* The call that waits longest, and since when: one that a device has not done since the device was
 * last seen to do something.  NULL: none. */
static const d9di_flight_call *oldest(const d9di_ring *r, int64_t *since)
{
    const d9di_flight_call *found = NULL;
    int64_t done = 0;
    int32_t how = D9DI_STEP_INSIDE;

    for (int i = 0; i < D9DI_FLIGHT_CALLS; i++) {
        const d9di_flight_call *x = &r->call[i];
        const int32_t step = __atomic_load_n(&x->step, __ATOMIC_ACQUIRE);
        const int64_t begin = __atomic_load_n(&x->begin, __ATOMIC_RELAXED);
        const int64_t end = __atomic_load_n(&x->end, __ATOMIC_RELAXED);

        if (__atomic_load_n(&x->number, __ATOMIC_ACQUIRE) == 0)
            continue;
        if (step == D9DI_STEP_DONE || step == D9DI_STEP_FAILED) {
            done = end > done ? end : done;
        } else if (found == NULL || begin < *since) {
            found = x;
            how = step;
            *since = begin;
        }
    }
    if (how == D9DI_STEP_QUEUED && done > *since)
        *since = done;
    return found;
}

static void nap(int ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    (void)nanosleep(&t, NULL);
}

/* Without the rings: this rank's own call. */
static void ask_ring(const d9di_watchdog *w, bool answers, d9d_buf *text)
{
    int64_t begin = 0;
    const d9di_flight_call *x = oldest(w->ring, &begin);
    const char *why = answers ? "without a flight recorder's directory"
                              : "as the flight recorder's file system gives no answer";

    if (x == NULL)
        (void)!d9d_buf_printf(text,
                              "ranks wait for each other while the network between them opens");
    else
        (void)!d9d_buf_printf(text,
                              "call %lld, of %.59s, waits since %.1f s for ranks that are not "
                              "known %s",
                              (long long)x->seq, x->what, (double)(d9d_clock_ns() - begin) / 1e9,
                              why);
}

/* Whatever this thread then waits for, and whatever mask and habits a process has from whoever
 * started it. */
static void end_soon(void)
{
    sigset_t bell;

    (void)sigemptyset(&bell);
    (void)sigaddset(&bell, SIGALRM);
    (void)signal(SIGALRM, SIG_DFL); /* which ends a process */
    (void)pthread_sigmask(SIG_UNBLOCK, &bell, NULL);
    (void)alarm(END_S);
}

/* All ranks are told to end; this one ends. */
static void end_job(const d9di_watchdog *w, const char *why)
{
    d9di_flight_head *h = &w->ring->head;
    bool written;

    end_soon();
    (void)snprintf(h->said, sizeof(h->said), "%s", why);
    d9di_ring_set_state(w->ring, D9DI_FLIGHT_ENDED);
    if (d9di_scribe_sync(w->scribe, D9DI_SCRIBE_LAST_MS, &written) && written)
        d9di_ring_unlink(w->ring);
    if (why[0] != '\0')
        d9d_log_write(w->how.log, D9D_LOG_ERROR, "%s", why);
    d9d_boot_abort(w->boot, 1, why);
    if (w->how.end != NULL)
        w->how.end(1);
    (void)kill(getpid(), SIGKILL);
}

/* What a call may take now, ns; 0: as long as it does. */
static int64_t limit_of(const d9di_watchdog *w, int64_t now)
{
    const int64_t limit = __atomic_load_n(&w->limit, __ATOMIC_RELAXED);
    const int64_t stopped = (int64_t)(w->how.stopped_s * 1e9);

    if (stopped > 0 && w->stopped != 0 && now - w->stopped > stopped)
        return limit > 0 && limit < stopped ? limit : stopped;
    return limit;
}

static bool overdue(const d9di_watchdog *w, int64_t now)
{
    const int64_t limit = limit_of(w, now);
    const int64_t opens = __atomic_load_n(&w->opens, __ATOMIC_RELAXED);
    int64_t begin = now;

    if (limit <= 0)
        return false;
    return (opens > 0 && now - opens > limit) ||
           (oldest(w->ring, &begin) != NULL && now - begin > limit);
}

/* Since when something is so that was since `before`; 0: it is not, or was not. */
static int64_t since(bool is, int64_t before, int64_t now)
{
    if (!is)
        return 0;
    return before != 0 ? before : now;
}

/* The ranks of this host, now and then.  Where all of them were stopped, this one too, and go on
 * one after the other, none was for long. */
static void visit(d9di_watchdog *w, int64_t now)
{
    const int64_t pause = now - w->visited;
    d9di_trouble t;

    if (w->neighbours == NULL || pause < (int64_t)VISIT_MS * 1000000)
        return;
    if (pause > (int64_t)ABSENT_MS * 1000000)
        w->stopped = 0;
    w->visited = now;
    t = d9di_neighbours_look(w->neighbours);
    w->dead = since(t.died, w->dead, now);
    w->stopped = since(t.stopped, w->stopped, now);
}

/* A rank of this host is dead, and has been for long enough. */
static bool forlorn(const d9di_watchdog *w, int64_t now)
{
    return w->dead != 0 && now - w->dead > (int64_t)GRACE_MS * 1000000;
}

/* One voice is enough: it ends the others too.  Where the first rank is the one that is waited for,
 * the next one speaks. */
static int patience_ms(int rank)
{
    return rank == 0 ? 0 : YIELD_MS + 100 * (rank < 16 ? rank : 16);
}

/* Where all ranks are of this host no file is needed. */
static bool look(d9di_watchdog *w, bool near, bool answers, d9d_buf *text, bool *was_said)
{
    if (near)
        return d9di_scribe_judge(w->ring, w->neighbours, NULL, text, was_said) == D9D_OK;
    return answers && d9di_scribe_look(w->scribe, text, was_said);
}

/* Which limit it was, where none but a limit ends the job. */
static void add_limit(const d9di_watchdog *w, d9d_buf *text)
{
    const char *called = __atomic_load_n(&w->called, __ATOMIC_RELAXED);
    const int64_t limit = __atomic_load_n(&w->limit, __ATOMIC_RELAXED);

    if (called != NULL && text->len > 0 && w->dead == 0 && w->stopped == 0)
        (void)!d9d_buf_printf(text, "; %s is %.0f s", called, (double)limit / 1e9);
}

static void bark(d9di_watchdog *w)
{
    const bool near = d9di_flight_is_near(w->ring, w->neighbours);
    bool was_said = false, answers = true, written;
    d9d_buf text = {0};

    if (!near)
        answers = d9di_scribe_sync(w->scribe, D9DI_SCRIBE_FILES_MS, &written);
    nap(LOOK_MS + patience_ms(w->ring->head.rank));
    answers = look(w, near, answers, &text, &was_said);
    if (!was_said && text.len == 0)
        ask_ring(w, answers, &text);
    add_limit(w, &text);
    if (w->dead != 0 || overdue(w, d9d_clock_ns())) /* not if it went on meanwhile */
        end_job(w, was_said || text.len == 0 ? "" : text.data);
    d9d_buf_release(&text);
}

/* --- the thread ------------------------------------------------------------------------------ */

static bool wait_a_beat(d9di_watchdog *w)
{
    struct timespec t = {0};
    bool stop;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += D9DI_FLIGHT_BEAT_MS * 1000000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    (void)pthread_mutex_lock(&w->lock);
    if (!w->stop)
        (void)pthread_cond_timedwait(&w->wake, &w->lock, &t);
    stop = w->stop;
    (void)pthread_mutex_unlock(&w->lock);
    return !stop;
}

static void poll_device(d9di_watchdog *w)
{
    char why[512] = "";
    bool well = true;

    (void)pthread_mutex_lock(&w->lock);
    if (w->net.poll != NULL)
        well = w->net.poll(w->net.self, why, sizeof(why));
    (void)pthread_mutex_unlock(&w->lock);
    if (!well)
        end_job(w, why);
}

void d9di_watchdog_ask(d9di_watchdog *w, const d9di_net *net)
{
    if (w == NULL)
        return;
    (void)pthread_mutex_lock(&w->lock);
    w->net = net != NULL ? *net : (d9di_net){0};
    (void)pthread_mutex_unlock(&w->lock);
}

static void *watch(void *arg)
{
    d9di_watchdog *w = arg;

    while (wait_a_beat(w)) {
        const int64_t now = d9d_clock_ns();

        d9di_ring_beat(w->ring, now);
        poll_device(w);
        visit(w, now);
        if (overdue(w, now) || forlorn(w, now))
            bark(w);
    }
    return NULL;
}

void d9di_watchdog_set(d9di_watchdog *w, double seconds, const char *limit)
{
    if (w == NULL)
        return;
    __atomic_store_n(&w->called, limit, __ATOMIC_RELAXED);
    __atomic_store_n(&w->limit, seconds < 9e9 ? (int64_t)(seconds * 1e9) : 0, __ATOMIC_RELAXED);
}

void d9di_watchdog_opens(d9di_watchdog *w, bool opens)
{
    if (w != NULL)
        __atomic_store_n(&w->opens, opens ? d9d_clock_ns() : 0, __ATOMIC_RELAXED);
}

d9d_status d9di_watchdog_start(d9di_ring *ring, d9d_boot *boot, const d9d_mesh_how *how,
                               d9di_neighbours *neighbours, d9di_watchdog **out)
{
    d9di_watchdog *w = calloc(1, sizeof(*w));
    pthread_condattr_t clock;
    d9d_heard before;
    bool written;
    d9d_status st;
    int rc;

    if (w == NULL)
        return D9D_FAIL(D9D_ENOMEM, "mesh: no memory for a watchdog");
    w->ring = ring;
    w->boot = boot;
    w->how = *how;
    w->neighbours = neighbours;
    st = d9di_scribe_start(ring, neighbours, how->flight_dir, how->log, &w->scribe);
    if (st != D9D_OK) {
        free(w);
        return st;
    }
    d9di_watchdog_set(w, how->timeout_s, how->limit);
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&w->wake, &clock);
    (void)pthread_condattr_destroy(&clock);
    d9d_thread_deaf_begin(&before);
    rc = pthread_create(&w->thread, NULL, watch, w);
    d9d_thread_deaf_end(&before);
    if (rc != 0) {
        (void)d9di_scribe_stop(w->scribe, D9DI_SCRIBE_LAST_MS, &written);
        free(w);
        return D9D_FAIL(D9D_ENOMEM, "mesh: no thread for a watchdog: %s", strerror(rc));
    }
    (void)d9di_scribe_sync(w->scribe, D9DI_SCRIBE_FILES_MS,
                           &written); /* the first ring is there at once */
    *out = w;
    return D9D_OK;
}

bool d9di_watchdog_fail(d9di_watchdog *w)
{
    bool one = false;

    if (w == NULL)
        return false;
    d9di_ring_set_state(w->ring, D9DI_FLIGHT_FAILED);
    (void)d9di_scribe_sync(w->scribe, D9DI_SCRIBE_LAST_MS, &one);
    if (w->ring->head.rank > 0)
        nap(FAILING_MS); /* those before this one may be about to fail */
    return d9di_scribe_failed_before(w->scribe, &one) && one;
}

void d9di_watchdog_stop(d9di_watchdog *w, d9di_flight_state state)
{
    const d9di_scribe_limit limit =
        state == D9DI_FLIGHT_LEFT ? D9DI_SCRIBE_FILES_MS : D9DI_SCRIBE_LAST_MS;
    bool written;

    if (w == NULL)
        return;
    (void)pthread_mutex_lock(&w->lock);
    w->stop = true;
    (void)pthread_cond_signal(&w->wake);
    (void)pthread_mutex_unlock(&w->lock);
    (void)pthread_join(w->thread, NULL);
    d9di_ring_set_state(w->ring, state);
    if (d9di_scribe_stop(w->scribe, limit, &written)) {
        d9di_neighbours_close(w->neighbours);
        d9di_ring_release(w->ring, state != D9DI_FLIGHT_LEFT && !written);
    }
    (void)pthread_cond_destroy(&w->wake);
    (void)pthread_mutex_destroy(&w->lock);
    free(w);
}
