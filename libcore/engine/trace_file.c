/* trace_file.c - see engine/trace_file.h. */
#include "engine/trace_file.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "d9d/base/fs.h"
#include "d9d/base/thread.h"

enum { MAX_WAIT_S = 10, TICK_MS = 2 };

struct d9di_trace_file {
    const d9d_log *log;
    d9d_arena arena; /* owns the names */
    const char *dir, *path;
    d9d_buf text, top;
    pthread_t thread;
    int64_t since;
    bool written, left; /* atomic */
};

static d9d_status write_trace(const d9di_trace_file *f)
{
    d9d_file file;
    d9d_status st;

    D9D_TRY(d9d_fs_mkdirs(f->dir));
    D9D_TRY(d9d_file_create(f->path, &file));
    st = d9d_file_write(&file, f->text.data, f->text.len);
    if (st == D9D_OK)
        return d9d_file_close(&file);
    d9d_file_release(&file);
    return st;
}

/* A trace that cannot be written does not end the run. */
static void *writer_main(void *arg)
{
    d9di_trace_file *f = arg;
    const d9d_status st = write_trace(f);

    if (__atomic_load_n(&f->left, __ATOMIC_ACQUIRE))
        return NULL; /* the owner detached: free it here */
    if (st == D9D_OK)
        d9d_log_info(f->log, "%s: %s", f->path, f->top.data);
    else
        d9d_log_warn(f->log, "%s; the run goes on without this trace", d9d_err_message());
    __atomic_store_n(&f->written, true, __ATOMIC_RELEASE);
    return NULL;
}

static void trace_file_free(d9di_trace_file *f)
{
    d9d_buf_release(&f->text);
    d9d_buf_release(&f->top);
    d9d_arena_release(&f->arena);
    free(f);
}

static bool start_thread(d9di_trace_file *f)
{
    d9d_thread_sigmask before;
    int rc;

    d9d_thread_block_signals(&before);
    rc = pthread_create(&f->thread, NULL, writer_main, f);
    d9d_thread_restore_signals(&before);
    return rc == 0;
}

d9d_status d9di_trace_file_begin(const char *dir, int rank, d9d_buf *text, d9d_buf *top,
                                 const d9d_log *log, d9di_trace_file **out)
{
    d9di_trace_file *f = calloc(1, sizeof(*f));

    if (f == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a trace", dir);
    f->log = log;
    f->since = d9d_clock_ns();
    f->dir = d9d_arena_printf(&f->arena, "%s", dir);
    f->path = d9d_arena_printf(&f->arena, "%s/rank-%d.json", dir, rank);
    f->text = *text;
    f->top = *top;
    *text = *top = (d9d_buf){0};
    if (f->dir == NULL || f->path == NULL || !start_thread(f)) {
        trace_file_free(f);
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory, or no thread, for a trace", dir);
    }
    *out = f;
    return D9D_OK;
}

bool d9di_trace_file_end(d9di_trace_file **f)
{
    const struct timespec tick = {.tv_nsec = TICK_MS * 1000000L};

    if (*f == NULL)
        return true;
    while (!__atomic_load_n(&(*f)->written, __ATOMIC_ACQUIRE)) {
        if (d9d_clock_ns() - (*f)->since > (int64_t)MAX_WAIT_S * 1000000000)
            return false;
        (void)nanosleep(&tick, NULL);
    }
    (void)pthread_join((*f)->thread, NULL);
    trace_file_free(*f);
    *f = NULL;
    return true;
}

void d9di_trace_file_detach(d9di_trace_file *f)
{
    if (d9di_trace_file_end(&f))
        return;
    d9d_log_warn(f->log, "%s: its file system gives no answer; the run ends without this trace",
                 f->path);
    __atomic_store_n(&f->left, true, __ATOMIC_RELEASE);
    (void)pthread_detach(f->thread);
}
