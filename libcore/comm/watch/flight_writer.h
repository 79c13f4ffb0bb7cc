/* flight_writer.h - the thread that touches a flight recorder's files, for all others.
 *
 * A file system that stands still keeps whoever reads or writes there.  The thread that makes the
 * calls and the watchdog, which is to notice just that, touch none: they ask, and wait for so long.
 */
#ifndef D9DI_COMM_WATCH_FLIGHT_WRITER_H
#define D9DI_COMM_WATCH_FLIGHT_WRITER_H

#include "comm/watch/local_peers.h"
#include "d9d/base/log.h"
#include "d9d/base/mem.h"

typedef struct d9di_scribe d9di_scribe;

typedef enum d9di_scribe_limit {                               /* ms that an answer may take: */
                                 D9DI_SCRIBE_FILES_MS = 10000, /* while ranks wait anyway, */
                                 D9DI_SCRIBE_LAST_MS = 1000    /* of a process that ends */
} d9di_scribe_limit;

/* Until it is stopped it writes the ring to its file every few seconds, and those of neighbours
 * that are gone once.  `ring` and `near` (or NULL) must live as long; `dir` NULL: there are no
 * files.  A file that cannot be written is one warning. */
d9d_status d9di_scribe_start(d9di_ring *ring, d9di_neighbours *near, const char *dir,
                             const d9d_log *log, d9di_scribe **out);
/* Writes once more, or could not: `written`.  False where the file system has not answered after a
 * while: then the thread lives on, and what it was given is its own. */
bool d9di_scribe_stop(d9di_scribe *s, d9di_scribe_limit ms, bool *written);

/* False where the file system has not answered in time; then nothing was set. */
bool d9di_scribe_sync(d9di_scribe *s, d9di_scribe_limit ms, bool *written);
/* What the rings of all ranks say, appended, unless some rank's watchdog has said it. */
bool d9di_scribe_look(d9di_scribe *s, d9d_buf *text, bool *was_said);
/* Does the ring of a rank before this one say that it failed? */
bool d9di_scribe_failed_before(d9di_scribe *s, bool *one);
/* In the caller's thread, of this host's ranks alone. */
d9d_status d9di_scribe_judge(const d9di_ring *ring, const d9di_neighbours *near, const char *dir,
                             d9d_buf *text, bool *was_said);

#endif /* D9DI_COMM_WATCH_FLIGHT_WRITER_H */
