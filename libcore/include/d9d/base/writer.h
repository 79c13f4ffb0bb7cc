/* writer.h - a file that a thread of its own appends to, so that nobody waits for its file system.
 *
 *     D9D_TRY(d9d_file_open_append("metrics.jsonl", end, &f));
 *     D9D_TRY(d9d_writer_open(&f, &(d9d_writer_opts){.log = log}, &w));
 *     D9D_TRY(d9d_writer_put(w, line, n));     // copied; written soon
 *     D9D_TRY(d9d_writer_sync(w));             // all of it is durable
 *     d9d_writer_close(w);
 *
 * What is put is written in its order, whatever one put has in one piece with what is there beside
 * it.  A failure is returned by the next put, and by every call after it.  Where the file system
 * gives no answer for ten seconds that is one line of the log, and what is put waits in memory, up
 * to 16 MiB; beyond, and in flush and sync, the caller waits.  Who must not wait offers.
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
    /* Asked by the thread before it writes; a failure is one of writing.  NULL: nothing is. */
    d9d_status (*check)(void *self);
    void (*release)(void *self); /* of `self`, the writer's own from open on; NULL: nothing to do */
    void *self;
    const d9d_log *log;
    bool ignore_errors; /* a failure is forgotten: of what is worth no run */
} d9d_writer_opts;

/* Takes the file, and how->self, where it succeeds. */
D9D_API D9D_MUST_USE d9d_status d9d_writer_open(d9d_file *f, const d9d_writer_opts *how,
                                                d9d_writer **out);
D9D_API D9D_MUST_USE d9d_status d9d_writer_put(d9d_writer *w, const void *p, size_t n);
/* Until it is written, for `ms` at most, and for no time where what is there has taken as long
 * already.  False: there is no room, and it is left out. */
D9D_API bool d9d_writer_try_put(d9d_writer *w, const void *p, size_t n, int ms);
/* Until all that was put is written; ... and durable. */
D9D_API D9D_MUST_USE d9d_status d9d_writer_flush(d9d_writer *w);
D9D_API D9D_MUST_USE d9d_status d9d_writer_sync(d9d_writer *w);
/* Writes the rest.  Where the file system gives no answer for ten seconds that is left to the
 * thread, and a warning.  NULL is fine. */
D9D_API void d9d_writer_close(d9d_writer *w);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_WRITER_H */
