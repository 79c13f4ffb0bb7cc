/* writer.c - a thread that appends to a file.  See d9d/base/writer.h. */
#include "d9d/base/writer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "d9d/base/thread.h"

enum { MAX_PENDING = 16 << 20 /* bytes in memory */, STALL_S = 10 };

struct d9d_writer {
    d9d_file file;
    d9d_writer_opts opts;
    pthread_t thread;
    pthread_mutex_t lock; /* protects what follows */
    pthread_cond_t wake;  /* signals the thread: work is pending */
    pthread_cond_t done;  /* signals callers: work is done */
    d9d_buf next;         /* pending data */
    bool sync, stop;      /* requested after the pending data */
    bool busy;
    int64_t since;     /* start of the current write */
    bool stall_logged; /* a line said that it takes long */
    d9d_status st;     /* the first failure; err: its message */
    d9d_err_copy err;
};

/* --- the thread ------------------------------------------------------------------------------ */

static d9d_status write_pending(d9d_writer *w, const d9d_buf *bytes, bool sync)
{
    if (w->opts.check != NULL)
        D9D_TRY(w->opts.check(w->opts.self));
    if (bytes->len > 0)
        D9D_TRY(d9d_file_write(&w->file, bytes->data, bytes->len));
    return sync ? d9d_file_sync(&w->file) : D9D_OK;
}

/* Under the lock. */
static void finish_write(d9d_writer *w, d9d_status st)
{
    w->busy = false;
    if (st != D9D_OK && !w->opts.ignore_errors) {
        w->st = st;
        d9d_err_save(&w->err, st);
    }
    if (w->stall_logged)
        d9d_log_info(w->opts.log, "%s: its file system answers again, after %.0f s", w->file.path,
                     (double)(d9d_clock_ns() - w->since) / 1e9);
    w->stall_logged = false;
    (void)pthread_cond_broadcast(&w->done);
}

static void *writer_main(void *arg)
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
        st = write_pending(w, &bytes, sync);
        (void)pthread_mutex_lock(&w->lock);
        finish_write(w, st);
    }
    (void)pthread_mutex_unlock(&w->lock);
    d9d_buf_release(&bytes);
    return NULL;
}

/* --- callers, under the lock --------------------------------------------------------- */

static d9d_status first_failure(const d9d_writer *w)
{
    return w->st == D9D_OK ? D9D_OK : d9d_err_restore(&w->err);
}

static double busy_seconds(const d9d_writer *w)
{
    return w->busy ? (double)(d9d_clock_ns() - w->since) / 1e9 : 0;
}

static void log_stall(d9d_writer *w)
{
    if (w->stall_logged || busy_seconds(w) < STALL_S)
        return;
    w->stall_logged = true;
    d9d_log_warn(w->opts.log,
                 "%s: its file system has not answered for %.0f s; what is to be written waits in "
                 "memory",
                 w->file.path, busy_seconds(w));
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

static void wait_one_second(d9d_writer *w)
{
    wait_ms(w, 1000);
    log_stall(w);
}

static bool has_space(const d9d_writer *w, size_t n)
{
    return w->next.len == 0 || w->next.len + n <= MAX_PENDING;
}

static bool is_drained(const d9d_writer *w)
{
    return w->next.len == 0 && !w->sync && !w->busy;
}

static d9d_status wait_flushed(d9d_writer *w, bool sync)
{
    d9d_status st;

    (void)pthread_mutex_lock(&w->lock);
    w->sync = w->sync || sync;
    (void)pthread_cond_signal(&w->wake);
    while (w->st == D9D_OK && !is_drained(w))
        wait_one_second(w);
    st = first_failure(w);
    (void)pthread_mutex_unlock(&w->lock);
    return st;
}

d9d_status d9d_writer_put(d9d_writer *w, const void *p, size_t n)
{
    d9d_status st;

    (void)pthread_mutex_lock(&w->lock);
    log_stall(w);
    while (w->st == D9D_OK && !has_space(w, n))
        wait_one_second(w);
    st = first_failure(w);
    if (st == D9D_OK)
        st = d9d_buf_append(&w->next, p, n);
    (void)pthread_cond_signal(&w->wake);
    (void)pthread_mutex_unlock(&w->lock);
    return st;
}

bool d9d_writer_try_put(d9d_writer *w, const void *p, size_t n, int ms)
{
    const int64_t until = d9d_clock_ns() + (int64_t)ms * 1000000;
    int64_t left = 1;
    bool taken;

    (void)pthread_mutex_lock(&w->lock);
    taken = w->st == D9D_OK && has_space(w, n) && d9d_buf_append(&w->next, p, n) == D9D_OK;
    (void)pthread_cond_signal(&w->wake);
    while (taken && w->st == D9D_OK && !is_drained(w) && left > 0 && busy_seconds(w) * 1e3 < ms) {
        left = (until - d9d_clock_ns()) / 1000000;
        wait_ms(w, left > 0 ? (int)left : 0);
    }
    (void)pthread_mutex_unlock(&w->lock);
    return taken;
}

d9d_status d9d_writer_flush(d9d_writer *w)
{
    return wait_flushed(w, false);
}

d9d_status d9d_writer_sync(d9d_writer *w)
{
    return wait_flushed(w, true);
}

/* --- open and close ------------------------------------------------------------------ */

static void writer_destroy(d9d_writer *w)
{
    (void)pthread_cond_destroy(&w->wake);
    (void)pthread_cond_destroy(&w->done);
    (void)pthread_mutex_destroy(&w->lock);
    d9d_file_release(&w->file);
    d9d_buf_release(&w->next);
    if (w->opts.release != NULL)
        w->opts.release(w->opts.self);
    free(w);
}

d9d_status d9d_writer_open(d9d_file *f, const d9d_writer_opts *opts, d9d_writer **out)
{
    d9d_writer *w = calloc(1, sizeof(*w));
    pthread_condattr_t clock;
    d9d_thread_sigmask before;
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
    w->opts = *opts;
    d9d_thread_block_signals(&before);
    rc = pthread_create(&w->thread, NULL, writer_main, w);
    d9d_thread_restore_signals(&before);
    if (rc != 0) {
        w->file.fd = -1;
        w->file.path = NULL;
        w->opts.release = NULL;
        writer_destroy(w);
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
    while (w->st == D9D_OK && !is_drained(w) && busy_seconds(w) < STALL_S)
        wait_one_second(w);
    ended = w->st != D9D_OK || is_drained(w);
    if (!ended)
        d9d_log_warn(w->opts.log,
                     "%s: lacks its last records, because its file system did not answer",
                     w->file.path);
    (void)pthread_mutex_unlock(&w->lock);
    if (ended) {
        (void)pthread_join(w->thread, NULL);
        writer_destroy(w);
    } else {
        (void)pthread_detach(w->thread);
    }
}
