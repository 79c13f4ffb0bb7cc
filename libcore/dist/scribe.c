/* scribe.c - see dist/scribe.h. */
#include "dist/scribe.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "d9d/base/thread.h"
#include "dist/flight_rings.h"

enum {
    SYNC_MS = 5000,   /* between writings to the file's own storage */
    FILES_MS = 10000, /* that files may take to be written or read, */
    LAST_MS = 1000    /* and last words */
};

typedef enum task { NOTHING, SYNC, LOOK, END } task;

struct d9di_scribe {
    d9di_ring *ring;
    const char *dir;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wake, answer;
    bool stop;
    task wanted;
    int64_t asked, answered; /* numbers of questions: one that came too late is of no interest */
    char said[sizeof(((d9di_flight_head *)NULL)->said)]; /* of END */
    d9d_buf text;                                        /* the answer to LOOK */
    bool was_said;
};

/* --- the thread ------------------------------------------------------------------------------ */

static void look(const char *dir, d9d_buf *text, bool *was_said)
{
    d9d_flight_verdict v;
    d9d_flight *f;

    if (dir == NULL || d9d_flight_open(dir, &f) != D9D_OK)
        return;
    for (int r = 0; r < f->size; r++)
        *was_said |= f->record[r].known && f->record[r].head.said[0] != '\0';
    if (!*was_said && d9d_flight_judge(f, &v, text) != D9D_OK)
        text->len = 0;
    d9d_flight_close(f);
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

/* The next task, for which it waits a beat; false: it is to stop. */
static bool next(d9di_scribe *s, task *out, int64_t *number)
{
    const struct timespec beat = after_ms(D9DI_FLIGHT_BEAT_MS);
    bool stop;

    (void)pthread_mutex_lock(&s->lock);
    if (!s->stop && s->wanted == NOTHING)
        (void)pthread_cond_timedwait(&s->wake, &s->lock, &beat);
    *out = s->wanted;
    *number = s->asked;
    s->wanted = NOTHING;
    stop = s->stop;
    (void)pthread_mutex_unlock(&s->lock);
    return !stop;
}

static void reply(d9di_scribe *s, int64_t number, d9d_buf *text, bool was_said)
{
    (void)pthread_mutex_lock(&s->lock);
    if (number == s->asked) {
        d9d_buf_release(&s->text);
        s->text = *text;
        *text = (d9d_buf){0};
        s->was_said = was_said;
        s->answered = number;
        (void)pthread_cond_signal(&s->answer);
    }
    (void)pthread_mutex_unlock(&s->lock);
    d9d_buf_release(text);
}

static void *scribble(void *arg)
{
    d9di_scribe *s = arg;
    d9di_flight_head *h = &s->ring->head;
    int64_t synced = d9d_clock_ns(), calls = 0, number;
    task t;

    while (next(s, &t, &number)) {
        const int64_t now = d9d_clock_ns(), made = __atomic_load_n(&h->calls, __ATOMIC_RELAXED);
        d9d_buf text = {0};
        bool was_said = false;

        __atomic_store_n(&h->beat, now, __ATOMIC_RELAXED);
        if (t == END) {
            (void)snprintf(h->said, sizeof(h->said), "%s", s->said);
            __atomic_store_n(&h->state, D9DI_FLIGHT_ENDED, __ATOMIC_RELEASE);
        }
        if (t == SYNC || t == END || (now - synced > (int64_t)SYNC_MS * 1000000 && calls != made)) {
            d9di_ring_sync(s->ring);
            synced = now;
            calls = made;
        }
        if (t == LOOK)
            look(s->dir, &text, &was_said);
        if (t != NOTHING)
            reply(s, number, &text, was_said);
    }
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

static bool ask(d9di_scribe *s, task t, int ms)
{
    bool in_time;

    begin(s, t);
    in_time = await(s, ms);
    (void)pthread_mutex_unlock(&s->lock);
    return in_time;
}

bool d9di_scribe_sync(d9di_scribe *s)
{
    return ask(s, SYNC, FILES_MS);
}

bool d9di_scribe_look(d9di_scribe *s, d9d_buf *text, bool *was_said)
{
    bool in_time;

    begin(s, LOOK);
    in_time = await(s, FILES_MS);
    if (in_time) {
        *was_said = s->was_said;
        if (s->text.len > 0 && d9d_buf_append(text, s->text.data, s->text.len) != D9D_OK)
            text->len = 0;
    }
    (void)pthread_mutex_unlock(&s->lock);
    return in_time;
}

bool d9di_scribe_end(d9di_scribe *s, const char *said)
{
    (void)pthread_mutex_lock(&s->lock);
    (void)snprintf(s->said, sizeof(s->said), "%s", said);
    (void)pthread_mutex_unlock(&s->lock);
    return ask(s, END, LAST_MS);
}

/* --- its life ------------------------------------------------------------------------------- */

d9d_status d9di_scribe_start(d9di_ring *ring, const char *dir, d9di_scribe **out)
{
    d9di_scribe *s = calloc(1, sizeof(*s));
    pthread_condattr_t clock;
    d9d_heard before;
    int rc;

    if (s == NULL)
        return D9D_FAIL(D9D_ENOMEM, "mesh: no memory for a flight recorder's thread");
    s->ring = ring;
    s->dir = dir;
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
        free(s);
        return D9D_FAIL(D9D_ENOMEM, "mesh: no thread for a flight recorder: %s", strerror(rc));
    }
    *out = s;
    return D9D_OK;
}

void d9di_scribe_stop(d9di_scribe *s)
{
    if (s == NULL)
        return;
    (void)pthread_mutex_lock(&s->lock);
    s->stop = true;
    (void)pthread_cond_signal(&s->wake);
    (void)pthread_mutex_unlock(&s->lock);
    (void)pthread_join(s->thread, NULL);
    (void)pthread_cond_destroy(&s->wake);
    (void)pthread_cond_destroy(&s->answer);
    (void)pthread_mutex_destroy(&s->lock);
    d9d_buf_release(&s->text);
    free(s);
}
