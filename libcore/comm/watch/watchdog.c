/* watchdog.c - the watchdog thread.  See comm/watch/watchdog.h. */
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
    SETTLE_MS = 300,        /* until others have had another heartbeat */
    GRACE_MS = 2000,        /* that a launcher has to end the job of a dead rank */
    POLL_PEERS_MS = 500,    /* between checks of the local peers */
    MAX_PAUSE_MS = 5000,    /* after a pause of this length earlier observations are void */
    REPORT_DELAY_MS = 1500, /* that a rank leaves to the one that should report */
    FAIL_DELAY_MS = 1000,   /* within which ranks fail of one cause */
    EXIT_S = 3              /* until the process ends by itself, whatever the launcher does */
};

struct d9di_watchdog {
    d9di_flight_ring *ring;
    d9di_flight_writer *writer;
    d9d_bootstrap *bootstrap;
    d9d_mesh_opts opts;
    int64_t timeout;          /* ns, atomic; 0: none */
    const char *timeout_name; /* atomic: configuration key of the timeout; NULL: none */
    d9di_local_peers *local_peers;
    int64_t dead_since, stopped_since; /* since when a local peer is dead or stopped; 0: none */
    int64_t polled_at;                 /* when the local peers were checked last */
    int64_t init_since; /* since when the network initialises, atomic; 0: it does not */
    pthread_t thread;
    pthread_mutex_t lock; /* protects what follows */
    pthread_cond_t wake;  /* when `stop` is set */
    bool stop;
    d9di_comm_backend backend; /* poll NULL: nothing to ask */
};

/* --- overdue calls ------------------------------------------------------------------- */

/* The oldest pending call, and since when it waits.  The wait of an enqueued call counts from the
 * device's last progress.  NULL: none. */
static const d9di_flight_call *oldest_call(const d9di_flight_ring *r, int64_t *since)
{
    const d9di_flight_call *found = NULL;
    int64_t done = 0;
    int32_t state = D9DI_FLIGHT_CALL_STARTED;

    for (int i = 0; i < D9DI_FLIGHT_CALLS; i++) {
        const d9di_flight_call *x = &r->call[i];
        const int32_t step = __atomic_load_n(&x->state, __ATOMIC_ACQUIRE);
        const int64_t begin = __atomic_load_n(&x->begin, __ATOMIC_RELAXED);
        const int64_t end = __atomic_load_n(&x->end, __ATOMIC_RELAXED);

        if (__atomic_load_n(&x->number, __ATOMIC_ACQUIRE) == 0)
            continue;
        if (step == D9DI_FLIGHT_CALL_COMPLETED || step == D9DI_FLIGHT_CALL_FAILED) {
            done = end > done ? end : done;
        } else if (found == NULL || begin < *since) {
            found = x;
            state = step;
            *since = begin;
        }
    }
    if (state == D9DI_FLIGHT_CALL_ENQUEUED && done > *since)
        *since = done;
    return found;
}

static void sleep_ms(int ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    (void)nanosleep(&t, NULL);
}

/* The message without a diagnosis: this rank's own pending call. */
static void describe_own_call(const d9di_watchdog *w, bool answers, d9d_buf *text)
{
    int64_t begin = 0;
    const d9di_flight_call *x = oldest_call(w->ring, &begin);
    const char *why = answers ? "without a flight recorder's directory"
                              : "as the flight recorder's file system gives no answer";

    if (x == NULL)
        (void)!d9d_buf_printf(text,
                              "ranks wait for each other while the network between them opens");
    else
        (void)!d9d_buf_printf(text,
                              "call %lld, of %.59s, waits since %.1f s for ranks that are not "
                              "known %s",
                              (long long)x->seq, x->label, (double)(d9d_clock_ns() - begin) / 1e9,
                              why);
}

/* An alarm that ends the process even if this thread blocks, whatever signal mask and dispositions
 * the process inherited. */
static void arm_exit_alarm(void)
{
    sigset_t bell;

    (void)sigemptyset(&bell);
    (void)sigaddset(&bell, SIGALRM);
    (void)signal(SIGALRM, SIG_DFL); /* the default ends the process */
    (void)pthread_sigmask(SIG_UNBLOCK, &bell, NULL);
    (void)alarm(EXIT_S);
}

/* Abort the job through the launcher, then end this process. */
static void abort_job(const d9di_watchdog *w, const char *why)
{
    d9di_flight_header *h = &w->ring->header;
    bool written;

    arm_exit_alarm();
    (void)snprintf(h->abort_message, sizeof(h->abort_message), "%s", why);
    d9di_flight_ring_set_state(w->ring, D9DI_FLIGHT_ABORTED);
    if (d9di_flight_writer_sync(w->writer, D9DI_FLIGHT_WRITER_EXIT_MS, &written) && written)
        d9di_flight_ring_unlink(w->ring);
    if (why[0] != '\0')
        d9d_log_write(w->opts.log, D9D_LOG_ERROR, "%s", why);
    d9d_bootstrap_abort(w->bootstrap, 1, why);
    if (w->opts.exit_fn != NULL)
        w->opts.exit_fn(1);
    (void)kill(getpid(), SIGKILL);
}

/* The timeout in ns now; 0: none. */
static int64_t current_timeout(const d9di_watchdog *w, int64_t now)
{
    const int64_t limit = __atomic_load_n(&w->timeout, __ATOMIC_RELAXED);
    const int64_t stopped = (int64_t)(w->opts.stopped_timeout_s * 1e9);

    if (stopped > 0 && w->stopped_since != 0 && now - w->stopped_since > stopped)
        return limit > 0 && limit < stopped ? limit : stopped;
    return limit;
}

static bool call_is_overdue(const d9di_watchdog *w, int64_t now)
{
    const int64_t limit = current_timeout(w, now);
    const int64_t opens = __atomic_load_n(&w->init_since, __ATOMIC_RELAXED);
    int64_t begin = now;

    if (limit <= 0)
        return false;
    return (opens > 0 && now - opens > limit) ||
           (oldest_call(w->ring, &begin) != NULL && now - begin > limit);
}

/* The start of a condition that held since `before`; 0: it does not hold, or did not. */
static int64_t since(bool is, int64_t before, int64_t now)
{
    if (!is)
        return 0;
    return before != 0 ? before : now;
}

/* Check the local peers at intervals.  If all ranks were stopped, this one too, and continue one
 * after the other, none counts as stopped for long. */
static void poll_peers(d9di_watchdog *w, int64_t now)
{
    const int64_t pause = now - w->polled_at;
    d9di_local_peers_health t;

    if (w->local_peers == NULL || pause < (int64_t)POLL_PEERS_MS * 1000000)
        return;
    if (pause > (int64_t)MAX_PAUSE_MS * 1000000)
        w->stopped_since = 0;
    w->polled_at = now;
    t = d9di_local_peers_poll(w->local_peers);
    w->dead_since = since(t.died, w->dead_since, now);
    w->stopped_since = since(t.stopped, w->stopped_since, now);
}

/* True if a local peer has been dead for the grace time. */
static bool peer_lost(const d9di_watchdog *w, int64_t now)
{
    return w->dead_since != 0 && now - w->dead_since > (int64_t)GRACE_MS * 1000000;
}

/* One rank reports and ends the others.  If rank 0 is the one that is missing, the next one
 * reports. */
static int report_delay_ms(int rank)
{
    return rank == 0 ? 0 : REPORT_DELAY_MS + 100 * (rank < 16 ? rank : 16);
}

/* If all ranks are on this host, no file is needed. */
static bool diagnose(d9di_watchdog *w, bool near, bool answers, d9d_buf *text,
                     bool *already_reported)
{
    if (near)
        return d9di_flight_writer_diagnose_here(w->ring, w->local_peers, NULL, text,
                                                already_reported) == D9D_OK;
    return answers && d9di_flight_writer_diagnose(w->writer, text, already_reported);
}

/* Append which timeout ended the job, if one did. */
static void append_timeout(const d9di_watchdog *w, d9d_buf *text)
{
    const char *called = __atomic_load_n(&w->timeout_name, __ATOMIC_RELAXED);
    const int64_t limit = __atomic_load_n(&w->timeout, __ATOMIC_RELAXED);

    if (called != NULL && text->len > 0 && w->dead_since == 0 && w->stopped_since == 0)
        (void)!d9d_buf_printf(text, "; %s is %.0f s", called, (double)limit / 1e9);
}

/* Wait with heartbeats: a rank that leaves the report to another is not down. */
static void wait_alive(d9di_watchdog *w, int ms)
{
    for (; ms > 0; ms -= D9DI_FLIGHT_HEARTBEAT_MS) {
        sleep_ms(ms < D9DI_FLIGHT_HEARTBEAT_MS ? ms : D9DI_FLIGHT_HEARTBEAT_MS);
        d9di_flight_ring_heartbeat(w->ring, d9d_clock_ns());
    }
}

static void on_timeout(d9di_watchdog *w)
{
    const bool near = d9di_flight_is_single_host(w->ring, w->local_peers);
    bool already_reported = false, answers = true, written;
    d9d_buf text = {0};

    if (!near)
        answers = d9di_flight_writer_sync(w->writer, D9DI_FLIGHT_WRITER_FILES_MS, &written);
    wait_alive(w, SETTLE_MS + report_delay_ms(w->ring->header.rank));
    answers = diagnose(w, near, answers, &text, &already_reported);
    if (!already_reported && text.len == 0)
        describe_own_call(w, answers, &text);
    append_timeout(w, &text);
    if (w->dead_since != 0 ||
        call_is_overdue(w, d9d_clock_ns())) /* not if it made progress meanwhile */
        abort_job(w, already_reported || text.len == 0 ? "" : text.data);
    d9d_buf_release(&text);
}

/* --- the thread ------------------------------------------------------------------------------ */

static bool wait_heartbeat(d9di_watchdog *w)
{
    struct timespec t = {0};
    bool stop;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += D9DI_FLIGHT_HEARTBEAT_MS * 1000000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    (void)pthread_mutex_lock(&w->lock);
    if (!w->stop)
        (void)pthread_cond_timedwait(&w->wake, &w->lock, &t);
    stop = w->stop;
    (void)pthread_mutex_unlock(&w->lock);
    return !stop;
}

static void poll_backend(d9di_watchdog *w)
{
    char why[512] = "";
    bool well = true;

    (void)pthread_mutex_lock(&w->lock);
    if (w->backend.poll != NULL)
        well = w->backend.poll(w->backend.self, why, sizeof(why));
    (void)pthread_mutex_unlock(&w->lock);
    if (!well)
        abort_job(w, why);
}

void d9di_watchdog_set_backend(d9di_watchdog *w, const d9di_comm_backend *backend)
{
    if (w == NULL)
        return;
    (void)pthread_mutex_lock(&w->lock);
    w->backend = backend != NULL ? *backend : (d9di_comm_backend){0};
    (void)pthread_mutex_unlock(&w->lock);
}

static void *watch(void *arg)
{
    d9di_watchdog *w = arg;

    while (wait_heartbeat(w)) {
        const int64_t now = d9d_clock_ns();

        d9di_flight_ring_heartbeat(w->ring, now);
        poll_backend(w);
        poll_peers(w, now);
        if (call_is_overdue(w, now) || peer_lost(w, now))
            on_timeout(w);
    }
    return NULL;
}

void d9di_watchdog_set_timeout(d9di_watchdog *w, double seconds, const char *limit)
{
    if (w == NULL)
        return;
    __atomic_store_n(&w->timeout_name, limit, __ATOMIC_RELAXED);
    __atomic_store_n(&w->timeout, seconds < 9e9 ? (int64_t)(seconds * 1e9) : 0, __ATOMIC_RELAXED);
}

void d9di_watchdog_set_initializing(d9di_watchdog *w, bool opens)
{
    if (w != NULL)
        __atomic_store_n(&w->init_since, opens ? d9d_clock_ns() : 0, __ATOMIC_RELAXED);
}

d9d_status d9di_watchdog_start(d9di_flight_ring *ring, d9d_bootstrap *bootstrap,
                               const d9d_mesh_opts *opts, d9di_local_peers *local_peers,
                               d9di_watchdog **out)
{
    d9di_watchdog *w = calloc(1, sizeof(*w));
    pthread_condattr_t clock;
    d9d_thread_sigmask before;
    bool written;
    d9d_status st;
    int rc;

    if (w == NULL)
        return D9D_FAIL(D9D_ENOMEM, "mesh: no memory for a watchdog");
    w->ring = ring;
    w->bootstrap = bootstrap;
    w->opts = *opts;
    w->local_peers = local_peers;
    st = d9di_flight_writer_start(ring, local_peers, opts->flight_dir, opts->log, &w->writer);
    if (st != D9D_OK) {
        free(w);
        return st;
    }
    d9di_watchdog_set_timeout(w, opts->timeout_s, opts->timeout_name);
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&w->wake, &clock);
    (void)pthread_condattr_destroy(&clock);
    d9d_thread_block_signals(&before);
    rc = pthread_create(&w->thread, NULL, watch, w);
    d9d_thread_restore_signals(&before);
    if (rc != 0) {
        (void)d9di_flight_writer_stop(w->writer, D9DI_FLIGHT_WRITER_EXIT_MS, &written);
        free(w);
        return D9D_FAIL(D9D_ENOMEM, "mesh: no thread for a watchdog: %s", strerror(rc));
    }
    (void)d9di_flight_writer_sync(w->writer, D9DI_FLIGHT_WRITER_FILES_MS,
                                  &written); /* so that the first file exists at once */
    *out = w;
    return D9D_OK;
}

bool d9di_watchdog_report_failure(d9di_watchdog *w)
{
    bool one = false;

    if (w == NULL)
        return false;
    d9di_flight_ring_set_state(w->ring, D9DI_FLIGHT_FAILED);
    (void)d9di_flight_writer_sync(w->writer, D9DI_FLIGHT_WRITER_EXIT_MS, &one);
    if (w->ring->header.rank > 0)
        sleep_ms(FAIL_DELAY_MS); /* lower ranks may be about to fail */
    return d9di_flight_writer_lower_rank_failed(w->writer, &one) && one;
}

void d9di_watchdog_stop(d9di_watchdog *w, d9di_flight_state state)
{
    const d9di_flight_writer_timeout limit =
        state == D9DI_FLIGHT_CLOSED ? D9DI_FLIGHT_WRITER_FILES_MS : D9DI_FLIGHT_WRITER_EXIT_MS;
    bool written;

    if (w == NULL)
        return;
    (void)pthread_mutex_lock(&w->lock);
    w->stop = true;
    (void)pthread_cond_signal(&w->wake);
    (void)pthread_mutex_unlock(&w->lock);
    (void)pthread_join(w->thread, NULL);
    d9di_flight_ring_set_state(w->ring, state);
    if (d9di_flight_writer_stop(w->writer, limit, &written)) {
        d9di_local_peers_close(w->local_peers);
        d9di_flight_ring_release(w->ring, state != D9DI_FLIGHT_CLOSED && !written);
    }
    (void)pthread_cond_destroy(&w->wake);
    (void)pthread_mutex_destroy(&w->lock);
    free(w);
}
