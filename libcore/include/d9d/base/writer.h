/* writer.h - a file that a thread of its own appends to, so that callers do not wait for the file
 * system.
 *
 *     D9D_TRY(d9d_file_open_append("metrics.jsonl", end, &f));
 *     D9D_TRY(d9d_writer_open(&f, &(d9d_writer_opts){.log = log}, &w));
 *     D9D_TRY(d9d_writer_put(w, line, n));     // copied; written soon
 *     D9D_TRY(d9d_writer_sync(w));             // all of it is durable
 *     d9d_writer_close(w);
 *
 * Data are written in the order of the puts; the bytes of one put are never split between two
 * writes.  A failure is returned by the next call and every call after it.  If the file system does
 * not answer for ten seconds, one log line says so, and data wait in memory, up to 16 MiB.  Beyond
 * that, and in flush and sync, the caller blocks.  A caller that must not block uses
 * d9d_writer_try_put().
 */
#ifndef D9D_BASE_WRITER_H
#define D9D_BASE_WRITER_H

#include "d9d/base/fs.h"
#include "d9d/base/log.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_writer d9d_writer;

typedef struct d9d_writer_opts {
    /* Called by the thread before it writes; its failure counts as a write failure.  NULL: none. */
    d9d_status (*check)(void *self);
    void (*release)(
        void *self); /* frees `self`, which the writer owns after open; NULL: nothing to do */
    void *self;
    const d9d_log *log;
    bool ignore_errors; /* failures are dropped, for files that are worth less than the run */
} d9d_writer_opts;

/* On success takes over the file and opts->self. */
D9D_API D9D_MUST_USE d9d_status d9d_writer_open(d9d_file *f, const d9d_writer_opts *opts,
                                                d9d_writer **out);
D9D_API D9D_MUST_USE d9d_status d9d_writer_put(d9d_writer *w, const void *p, size_t n);
/* Put, and wait until it is written, for `ms` at most; does not wait if the pending write has taken
 * as long already.  False: the buffer is full, and the data are dropped. */
D9D_API bool d9d_writer_try_put(d9d_writer *w, const void *p, size_t n, int ms);
/* Wait until all that was put is written (flush), or durable (sync). */
D9D_API D9D_MUST_USE d9d_status d9d_writer_flush(d9d_writer *w);
D9D_API D9D_MUST_USE d9d_status d9d_writer_sync(d9d_writer *w);
/* Write the rest.  If the file system does not answer for ten seconds, the thread is left to
 * finish, with a warning.  NULL is fine. */
D9D_API void d9d_writer_close(d9d_writer *w);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_WRITER_H */
