/* writer.c - a thread that appends to a file.  See d9d/base/writer.h. */
#include "d9d/base/writer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "d9d/base/thread.h"

enum { MOST = 16 << 20 /* bytes that wait */, STALL_S = 10 };

struct d9d_writer {
    d9d_file file;
    d9d_writer_how how;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wake;  /* for the thread: there is something to do */
    pthread_cond_t done;  /* for the others: it was done */
    d9d_buf next;         /* what waits */
    bool sync, stop;      /* to be done behind it */
    bool busy;
    int64_t since; /* when the thread began what it does */
    bool said;     /* that this takes long */
    d9d_status st; /* the first failure, and why */
    d9d_err_copy err;
};

/* --- the thread ------------------------------------------------------------------------------ */

static d9d_status write_out(d9d_writer *w, const d9d_buf *bytes, bool sync)
{
    if (w->how.check != NULL)
        D9D_TRY(w->how.check(w->how.self));
    if (bytes->len > 0)
        D9D_TRY(d9d_file_write(&w->file, bytes->data, bytes->len));
    return sync ? d9d_file_sync(&w->file) : D9D_OK;
}

/* Under the lock. */
static void note_end(d9d_writer *w, d9d_status st)
{
    w->busy = false;
    if (st != D9D_OK && !w->how.forgives) {
        w->st = st;
        d9d_err_save(&w->err, st);
    }
    if (w->said)
        d9d_log_info(w->how.log, "%s: its file system answers again, after %.0f s", w->file.path,
                     (double)(d9d_clock_ns() - w->since) / 1e9);
    w->said = false;
    (void)pthread_cond_broadcast(&w->done);
}

static void *work(void *arg)
{
    d9d_writer *w = arg;
    d9d_buf bytes = {0};

    (void)pthread_mutex_lock(&w->lock);
    while (w->st == D9D_OK) {
        const d9d_buf spare = bytes;
        bool sync;
        d9d_status st;

        while (w->next.len == 0 && !w->sync && !w->stop)
            (void)pthread_cond_wait(&w->wake, &w->lock);
        if (w->next.len == 0 && !w->sync)
            break;
        bytes = w->next;
        w->next = spare;
        w->next.len = 0;
        sync = w->sync;
        w->sync = false;
        w->busy = true;
        w->since = d9d_clock_ns();
        (void)pthread_mutex_unlock(&w->lock);
        st = write_out(w, &bytes, sync);
        (void)pthread_mutex_lock(&w->lock);
        note_end(w, st);
    }
    (void)pthread_mutex_unlock(&w->lock);
    d9d_buf_release(&bytes);
    return NULL;
}

/* --- the others, under the lock -------------------------------------------------------------- */

static d9d_status failure(const d9d_writer *w)
{
    return w->st == D9D_OK ? D9D_OK : d9d_err_restore(&w->err);
}

static double busy_s(const d9d_writer *w)
{
    return w->busy ? (double)(d9d_clock_ns() - w->since) / 1e9 : 0;
}

static void note_stall(d9d_writer *w)
{
    if (w->said || busy_s(w) < STALL_S)
        return;
    w->said = true;
    d9d_log_warn(w->how.log,
                 "%s: its file system has not answered for %.0f s; what is to be written waits in "
                 "memory",
                 w->file.path, busy_s(w));
}

static void wait_ms(d9d_writer *w, int ms)
{
    struct timespec t = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += ms % 1000 * 1000000L;
    t.tv_sec += ms / 1000 + t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    (void)pthread_cond_timedwait(&w->done, &w->lock, &t);
}

static void wait_a_second(d9d_writer *w)
{
    wait_ms(w, 1000);
    note_stall(w);
}

static bool has_room(const d9d_writer *w, size_t n)
{
    return w->next.len == 0 || w->next.len + n <= MOST;
}

static bool has_all(const d9d_writer *w)
{
    return w->next.len == 0 && !w->sync && !w->busy;
}

static d9d_status flush(d9d_writer *w, bool sync)
{
    d9d_status st;

    (void)pthread_mutex_lock(&w->lock);
    w->sync = w->sync || sync;
    (void)pthread_cond_signal(&w->wake);
    while (w->st == D9D_OK && !has_all(w))
        wait_a_second(w);
    st = failure(w);
    (void)pthread_mutex_unlock(&w->lock);
    return st;
}

d9d_status d9d_writer_put(d9d_writer *w, const void *p, size_t n)
{
    d9d_status st;

    (void)pthread_mutex_lock(&w->lock);
    note_stall(w);
    while (w->st == D9D_OK && !has_room(w, n))
        wait_a_second(w);
    st = failure(w);
    if (st == D9D_OK)
        st = d9d_buf_append(&w->next, p, n);
    (void)pthread_cond_signal(&w->wake);
    (void)pthread_mutex_unlock(&w->lock);
    return st;
}

bool d9d_writer_offer(d9d_writer *w, const void *p, size_t n, int ms)
{
    const int64_t until = d9d_clock_ns() + (int64_t)ms * 1000000;
    int64_t left = 1;
    bool taken;

    (void)pthread_mutex_lock(&w->lock);
    taken = w->st == D9D_OK && has_room(w, n) && d9d_buf_append(&w->next, p, n) == D9D_OK;
    (void)pthread_cond_signal(&w->wake);
    while (taken && w->st == D9D_OK && !has_all(w) && left > 0 && busy_s(w) * 1e3 < ms) {
        left = (until - d9d_clock_ns()) / 1000000;
        wait_ms(w, left > 0 ? (int)left : 0);
    }
    (void)pthread_mutex_unlock(&w->lock);
    return taken;
}

d9d_status d9d_writer_flush(d9d_writer *w)
{
    return flush(w, false);
}

d9d_status d9d_writer_sync(d9d_writer *w)
{
    return flush(w, true);
}

/* --- its life ----------------------------------------------------------------------------------
 */

static void dispose(d9d_writer *w)
{
    (void)pthread_cond_destroy(&w->wake);
    (void)pthread_cond_destroy(&w->done);
    (void)pthread_mutex_destroy(&w->lock);
    d9d_file_release(&w->file);
    d9d_buf_release(&w->next);
    if (w->how.release != NULL)
        w->how.release(w->how.self);
    free(w);
}

d9d_status d9d_writer_open(d9d_file *f, const d9d_writer_how *how, d9d_writer **out)
{
    d9d_writer *w = calloc(1, sizeof(*w));
    pthread_condattr_t clock;
    d9d_heard before;
    int rc;

    if (w == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for its writer", f->path);
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&w->wake, &clock);
    (void)pthread_cond_init(&w->done, &clock);
    (void)pthread_condattr_destroy(&clock);
    w->file = *f;
    w->how = *how;
    d9d_thread_deaf_begin(&before);
    rc = pthread_create(&w->thread, NULL, work, w);
    d9d_thread_deaf_end(&before);
    if (rc != 0) {
        w->file.fd = -1;
        w->file.path = NULL;
        w->how.release = NULL;
        dispose(w);
        return D9D_FAIL(D9D_ENOMEM, "%s: no thread for its writer: %s", f->path, strerror(rc));
    }
    *f = (d9d_file){.fd = -1};
    *out = w;
    return D9D_OK;
}

void d9d_writer_close(d9d_writer *w)
{
    bool ended;

    if (w == NULL)
        return;
    (void)pthread_mutex_lock(&w->lock);
    w->stop = true;
    (void)pthread_cond_signal(&w->wake);
    while (w->st == D9D_OK && !has_all(w) && busy_s(w) < STALL_S)
        wait_a_second(w);
    ended = w->st != D9D_OK || has_all(w);
    if (!ended)
        d9d_log_warn(w->how.log, "%s: ends before its last records, which it has no answer for",
                     w->file.path);
    (void)pthread_mutex_unlock(&w->lock);
    if (ended) {
        (void)pthread_join(w->thread, NULL);
        dispose(w);
    } else {
        (void)pthread_detach(w->thread);
    }
}
