/* flight_writer.c - the writer thread of the flight recorder.  See comm/watch/flight_writer.h. */
#include "comm/watch/flight_writer.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/watch/flight_ring.h"
#include "d9d/base/thread.h"

enum { SALVAGE_MS = 500 }; /* between checks for dead local peers */

typedef enum writer_task {
    TASK_NONE,
    TASK_SYNC,
    TASK_DIAGNOSE,
    TASK_CHECK_FAILED,
    TASK_STOP
} writer_task;

struct d9di_flight_writer {
    d9di_flight_ring *ring;
    d9di_local_peers *local_peers;
    char *dir; /* NULL: no files */
    const d9d_log *log;
    pthread_t thread;
    /* Used by the writer thread only. */
    d9di_flight_store store;
    int64_t synced_at, salvaged_at;
    bool warned;

    pthread_mutex_t lock; /* protects what follows */
    pthread_cond_t wake, answer;
    writer_task pending_task;
    int64_t n_asked, n_answered; /* numbers of requests: a reply after its timeout is ignored */
    d9d_buf text;                /* the diagnosis */
    bool result;                 /* already reported; or, for a sync or stop: written */
};

/* --- the thread ------------------------------------------------------------------------------ */

d9d_status d9di_flight_writer_diagnose_here(const d9di_flight_ring *ring,
                                            const d9di_local_peers *local_peers, const char *dir,
                                            d9d_buf *text, bool *already_reported)
{
    d9d_flight_diagnosis v;
    d9d_flight *f;
    d9d_status st;

    D9D_TRY(d9di_flight_open_live(ring, local_peers, dir, &f));
    for (int r = 0; r < f->size; r++)
        *already_reported |= f->record[r].known && f->record[r].header.abort_message[0] != '\0';
    st = *already_reported ? D9D_OK : d9d_flight_diagnose(f, &v, text);
    if (st != D9D_OK)
        text->len = 0;
    d9d_flight_close(f);
    return st;
}

static bool lower_rank_failed(const d9di_flight_writer *s)
{
    const d9di_flight_header *h = &s->ring->header;

    for (int r = 0; r < h->rank; r++) {
        const d9di_flight_ring *ring = d9di_local_peers_ring(s->local_peers, r);
        d9di_flight_state state = D9DI_FLIGHT_RUNNING;

        if (ring != NULL)
            state = d9di_flight_ring_state(ring);
        else if (s->dir != NULL)
            (void)d9di_flight_store_read_state(s->dir, r, h->job, &state);
        if (state == D9DI_FLIGHT_FAILED)
            return true;
    }
    return false;
}

/* A failed write does not fail the job. */
static bool write_ring(d9di_flight_writer *s)
{
    d9d_status st = D9D_OK;

    if (s->dir == NULL)
        return false;
    if (s->store.written == NULL)
        st = d9di_flight_store_open(s->dir, s->ring->header.rank, &s->store);
    if (st == D9D_OK)
        st = d9di_flight_store_write(&s->store, s->ring);
    if (st != D9D_OK && !s->warned)
        d9d_log_warn(s->log, "no flight recorder: %s", d9d_err_message());
    s->warned = s->warned || st != D9D_OK;
    return st == D9D_OK;
}

static struct timespec deadline_after_ms(int ms)
{
    struct timespec t = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += ms / 1000;
    t.tv_nsec += ms % 1000 * 1000000L;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

/* Wait for the next request, or until a periodic write is due. */
static writer_task next_task(d9di_flight_writer *s, int64_t *number)
{
    const struct timespec beat = deadline_after_ms(D9DI_FLIGHT_HEARTBEAT_MS);
    writer_task t;

    (void)pthread_mutex_lock(&s->lock);
    if (s->pending_task == TASK_NONE)
        (void)pthread_cond_timedwait(&s->wake, &s->lock, &beat);
    t = s->pending_task;
    *number = s->n_asked;
    s->pending_task = TASK_NONE;
    (void)pthread_mutex_unlock(&s->lock);
    return t;
}

static void post_reply(d9di_flight_writer *s, int64_t number, d9d_buf *text, bool is)
{
    (void)pthread_mutex_lock(&s->lock);
    if (number == s->n_asked) {
        d9d_buf_release(&s->text);
        s->text = *text;
        *text = (d9d_buf){0};
        s->result = is;
        s->n_answered = number;
        (void)pthread_cond_signal(&s->answer);
    }
    (void)pthread_mutex_unlock(&s->lock);
    d9d_buf_release(text);
}

static bool interval_elapsed(int64_t *last, int64_t now, int ms)
{
    if (now - *last < (int64_t)ms * 1000000)
        return false;
    *last = now;
    return true;
}

static void run_task(d9di_flight_writer *s, writer_task t, int64_t number)
{
    d9d_buf text = {0};
    bool is = false;

    if (t == TASK_SYNC || t == TASK_STOP)
        is = write_ring(s);
    else if (t == TASK_DIAGNOSE)
        (void)!d9di_flight_writer_diagnose_here(s->ring, s->local_peers, s->dir, &text, &is);
    else
        is = lower_rank_failed(s);
    post_reply(s, number, &text, is);
}

static void *writer_main(void *arg)
{
    d9di_flight_writer *s = arg;
    int64_t number;
    writer_task t;

    do {
        const int64_t now = d9d_clock_ns();

        t = next_task(s, &number);
        if (t != TASK_NONE)
            run_task(s, t, number);
        else if (interval_elapsed(&s->synced_at, now, D9DI_FLIGHT_SYNC_MS))
            (void)write_ring(s);
        else if (s->dir != NULL && interval_elapsed(&s->salvaged_at, now, SALVAGE_MS))
            d9di_local_peers_salvage(s->local_peers, s->dir);
    } while (t != TASK_STOP);
    return NULL;
}

/* --- requests ------------------------------------------------------------------------ */

/* Wait for the reply, with a timeout; under the lock. */
static bool wait_reply(d9di_flight_writer *s, int ms)
{
    const struct timespec until = deadline_after_ms(ms);
    int rc = 0;

    while (s->n_answered != s->n_asked && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&s->answer, &s->lock, &until);
    return s->n_answered == s->n_asked;
}

static void post_task(d9di_flight_writer *s, writer_task t)
{
    (void)pthread_mutex_lock(&s->lock);
    s->pending_task = t;
    s->n_asked++;
    (void)pthread_cond_signal(&s->wake);
}

/* A request whose reply is yes or no. */
static bool request(d9di_flight_writer *s, writer_task t, int ms, bool *is)
{
    bool in_time;

    post_task(s, t);
    in_time = wait_reply(s, ms);
    *is = in_time && s->result;
    (void)pthread_mutex_unlock(&s->lock);
    return in_time;
}

bool d9di_flight_writer_sync(d9di_flight_writer *s, d9di_flight_writer_timeout ms, bool *written)
{
    return request(s, TASK_SYNC, ms, written);
}

bool d9di_flight_writer_lower_rank_failed(d9di_flight_writer *s, bool *one)
{
    return request(s, TASK_CHECK_FAILED, D9DI_FLIGHT_WRITER_EXIT_MS, one);
}

bool d9di_flight_writer_diagnose(d9di_flight_writer *s, d9d_buf *text, bool *already_reported)
{
    bool in_time;

    post_task(s, TASK_DIAGNOSE);
    in_time = wait_reply(s, D9DI_FLIGHT_WRITER_FILES_MS);
    if (in_time) {
        *already_reported = s->result;
        if (s->text.len > 0 && d9d_buf_append(text, s->text.data, s->text.len) != D9D_OK)
            text->len = 0;
    }
    (void)pthread_mutex_unlock(&s->lock);
    return in_time;
}

/* --- start and stop ------------------------------------------------------------------ */

static void writer_free(d9di_flight_writer *s)
{
    (void)pthread_cond_destroy(&s->wake);
    (void)pthread_cond_destroy(&s->answer);
    (void)pthread_mutex_destroy(&s->lock);
    d9di_flight_store_close(&s->store);
    d9d_buf_release(&s->text);
    free(s->dir);
    free(s);
}

d9d_status d9di_flight_writer_start(d9di_flight_ring *ring, d9di_local_peers *local_peers,
                                    const char *dir, const d9d_log *log, d9di_flight_writer **out)
{
    d9di_flight_writer *s = calloc(1, sizeof(*s));
    pthread_condattr_t clock;
    d9d_thread_sigmask before;
    int rc;

    if (s == NULL || (dir != NULL && (s->dir = strdup(dir)) == NULL)) {
        free(s);
        return D9D_FAIL(D9D_ENOMEM, "mesh: no memory for a flight recorder's thread");
    }
    s->ring = ring;
    s->local_peers = local_peers;
    s->log = log;
    s->store.file.fd = -1;
    s->synced_at = d9d_clock_ns();
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&s->wake, &clock);
    (void)pthread_cond_init(&s->answer, &clock);
    (void)pthread_condattr_destroy(&clock);
    d9d_thread_block_signals(&before);
    rc = pthread_create(&s->thread, NULL, writer_main, s);
    d9d_thread_restore_signals(&before);
    if (rc != 0) {
        writer_free(s);
        return D9D_FAIL(D9D_ENOMEM, "mesh: no thread for a flight recorder: %s", strerror(rc));
    }
    *out = s;
    return D9D_OK;
}

bool d9di_flight_writer_stop(d9di_flight_writer *s, d9di_flight_writer_timeout ms, bool *written)
{
    if (!request(s, TASK_STOP, ms, written)) {
        (void)pthread_detach(s->thread);
        return false;
    }
    (void)pthread_join(s->thread, NULL);
    writer_free(s);
    return true;
}
