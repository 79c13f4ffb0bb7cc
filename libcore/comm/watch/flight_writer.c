/* flight_writer.c - see comm/watch/flight_writer.h. */
#include "comm/watch/flight_writer.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/watch/flight_ring.h"
#include "d9d/base/thread.h"

enum { SALVAGE_MS = 500 }; /* between looks for neighbours that are gone */

typedef enum task { NOTHING, SYNC, LOOK, FAILED, STOP } task;

struct d9di_scribe {
    d9di_ring *ring;
    d9di_neighbours *near;
    char *dir; /* NULL: no files */
    const d9d_log *log;
    pthread_t thread;
    /* The thread's own. */
    d9di_flight_store store;
    int64_t synced, visited;
    bool complained;

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wake, answer;
    task wanted;
    int64_t asked, answered; /* numbers of questions: one that came too late is of no interest */
    d9d_buf text;            /* the answer to LOOK */
    bool is;                 /* ... was it said already; to SYNC and STOP: it is written */
};

/* --- the thread ------------------------------------------------------------------------------ */

d9d_status d9di_scribe_judge(const d9di_ring *ring, const d9di_neighbours *near, const char *dir,
                             d9d_buf *text, bool *was_said)
{
    d9d_flight_verdict v;
    d9d_flight *f;
    d9d_status st;

    D9D_TRY(d9di_flight_gather(ring, near, dir, &f));
    for (int r = 0; r < f->size; r++)
        *was_said |= f->record[r].known && f->record[r].head.said[0] != '\0';
    st = *was_said ? D9D_OK : d9d_flight_judge(f, &v, text);
    if (st != D9D_OK)
        text->len = 0;
    d9d_flight_close(f);
    return st;
}

static bool failed_before(const d9di_scribe *s)
{
    const d9di_flight_head *h = &s->ring->head;

    for (int r = 0; r < h->rank; r++) {
        const d9di_ring *ring = d9di_neighbours_ring(s->near, r);
        d9di_flight_state state = D9DI_FLIGHT_RUNS;

        if (ring != NULL)
            state = d9di_ring_state(ring);
        else if (s->dir != NULL)
            (void)d9di_store_state(s->dir, r, h->job, &state);
        if (state == D9DI_FLIGHT_FAILED)
            return true;
    }
    return false;
}

/* A job goes on without the files of its flight recorder. */
static bool write_ring(d9di_scribe *s)
{
    d9d_status st = D9D_OK;

    if (s->dir == NULL)
        return false;
    if (s->store.last == NULL)
        st = d9di_store_open(s->dir, s->ring->head.rank, &s->store);
    if (st == D9D_OK)
        st = d9di_store_write(&s->store, s->ring);
    if (st != D9D_OK && !s->complained)
        d9d_log_warn(s->log, "no flight recorder: %s", d9d_err_message());
    s->complained = s->complained || st != D9D_OK;
    return st == D9D_OK;
}

static struct timespec after_ms(int ms)
{
    struct timespec t = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += ms / 1000;
    t.tv_nsec += ms % 1000 * 1000000L;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

/* The next task, for which it waits a beat. */
static task next(d9di_scribe *s, int64_t *number)
{
    const struct timespec beat = after_ms(D9DI_FLIGHT_BEAT_MS);
    task t;

    (void)pthread_mutex_lock(&s->lock);
    if (s->wanted == NOTHING)
        (void)pthread_cond_timedwait(&s->wake, &s->lock, &beat);
    t = s->wanted;
    *number = s->asked;
    s->wanted = NOTHING;
    (void)pthread_mutex_unlock(&s->lock);
    return t;
}

static void reply(d9di_scribe *s, int64_t number, d9d_buf *text, bool is)
{
    (void)pthread_mutex_lock(&s->lock);
    if (number == s->asked) {
        d9d_buf_release(&s->text);
        s->text = *text;
        *text = (d9d_buf){0};
        s->is = is;
        s->answered = number;
        (void)pthread_cond_signal(&s->answer);
    }
    (void)pthread_mutex_unlock(&s->lock);
    d9d_buf_release(text);
}

static bool is_due(int64_t *last, int64_t now, int ms)
{
    if (now - *last < (int64_t)ms * 1000000)
        return false;
    *last = now;
    return true;
}

static void work(d9di_scribe *s, task t, int64_t number)
{
    d9d_buf text = {0};
    bool is = false;

    if (t == SYNC || t == STOP)
        is = write_ring(s);
    else if (t == LOOK)
        (void)!d9di_scribe_judge(s->ring, s->near, s->dir, &text, &is);
    else
        is = failed_before(s);
    reply(s, number, &text, is);
}

static void *scribble(void *arg)
{
    d9di_scribe *s = arg;
    int64_t number;
    task t;

    do {
        const int64_t now = d9d_clock_ns();

        t = next(s, &number);
        if (t != NOTHING)
            work(s, t, number);
        else if (is_due(&s->synced, now, D9DI_FLIGHT_SYNC_MS))
            (void)write_ring(s);
        else if (s->dir != NULL && is_due(&s->visited, now, SALVAGE_MS))
            d9di_neighbours_salvage(s->near, s->dir);
    } while (t != STOP);
    return NULL;
}

/* --- questions ---------------------------------------------------------------------------- */

/* Under the lock: the answer is there, by then. */
static bool await(d9di_scribe *s, int ms)
{
    const struct timespec until = after_ms(ms);
    int rc = 0;

    while (s->answered != s->asked && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&s->answer, &s->lock, &until);
    return s->answered == s->asked;
}

static void begin(d9di_scribe *s, task t)
{
    (void)pthread_mutex_lock(&s->lock);
    s->wanted = t;
    s->asked++;
    (void)pthread_cond_signal(&s->wake);
}

/* What needs yes or no. */
static bool ask(d9di_scribe *s, task t, int ms, bool *is)
{
    bool in_time;

    begin(s, t);
    in_time = await(s, ms);
    *is = in_time && s->is;
    (void)pthread_mutex_unlock(&s->lock);
    return in_time;
}

bool d9di_scribe_sync(d9di_scribe *s, d9di_scribe_limit ms, bool *written)
{
    return ask(s, SYNC, ms, written);
}

bool d9di_scribe_failed_before(d9di_scribe *s, bool *one)
{
    return ask(s, FAILED, D9DI_SCRIBE_LAST_MS, one);
}

bool d9di_scribe_look(d9di_scribe *s, d9d_buf *text, bool *was_said)
{
    bool in_time;

    begin(s, LOOK);
    in_time = await(s, D9DI_SCRIBE_FILES_MS);
    if (in_time) {
        *was_said = s->is;
        if (s->text.len > 0 && d9d_buf_append(text, s->text.data, s->text.len) != D9D_OK)
            text->len = 0;
    }
    (void)pthread_mutex_unlock(&s->lock);
    return in_time;
}

/* --- its life ------------------------------------------------------------------------------- */

static void dispose(d9di_scribe *s)
{
    (void)pthread_cond_destroy(&s->wake);
    (void)pthread_cond_destroy(&s->answer);
    (void)pthread_mutex_destroy(&s->lock);
    d9di_store_close(&s->store);
    d9d_buf_release(&s->text);
    free(s->dir);
    free(s);
}

d9d_status d9di_scribe_start(d9di_ring *ring, d9di_neighbours *near, const char *dir,
                             const d9d_log *log, d9di_scribe **out)
{
    d9di_scribe *s = calloc(1, sizeof(*s));
    pthread_condattr_t clock;
    d9d_heard before;
    int rc;

    if (s == NULL || (dir != NULL && (s->dir = strdup(dir)) == NULL)) {
        free(s);
        return D9D_FAIL(D9D_ENOMEM, "mesh: no memory for a flight recorder's thread");
    }
    s->ring = ring;
    s->near = near;
    s->log = log;
    s->store.file.fd = -1;
    s->synced = d9d_clock_ns();
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&s->wake, &clock);
    (void)pthread_cond_init(&s->answer, &clock);
    (void)pthread_condattr_destroy(&clock);
    d9d_thread_deaf_begin(&before);
    rc = pthread_create(&s->thread, NULL, scribble, s);
    d9d_thread_deaf_end(&before);
    if (rc != 0) {
        dispose(s);
        return D9D_FAIL(D9D_ENOMEM, "mesh: no thread for a flight recorder: %s", strerror(rc));
    }
    *out = s;
    return D9D_OK;
}

bool d9di_scribe_stop(d9di_scribe *s, d9di_scribe_limit ms, bool *written)
{
    if (!ask(s, STOP, ms, written)) {
        (void)pthread_detach(s->thread);
        return false;
    }
    (void)pthread_join(s->thread, NULL);
    dispose(s);
    return true;
}
