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

typedef struct d9di_flight_writer d9di_flight_writer;

typedef enum d9di_flight_writer_timeout { /* ms that an answer may take: */
                                          D9DI_FLIGHT_WRITER_FILES_MS =
                                              10000, /* while ranks wait anyway, */
                                          D9DI_FLIGHT_WRITER_EXIT_MS =
                                              1000 /* of a process that ends */
} d9di_flight_writer_timeout;

/* Until it is stopped it writes the ring to its file every few seconds, and those of neighbours
 * that are gone once.  `ring` and `local_peers` (or NULL) must live as long; `dir` NULL: there are
 * no files.  A file that cannot be written is one warning. */
d9d_status d9di_flight_writer_start(d9di_flight_ring *ring, d9di_local_peers *local_peers,
                                    const char *dir, const d9d_log *log, d9di_flight_writer **out);
/* Writes once more, or could not: `written`.  False where the file system has not answered after a
 * while: then the thread lives on, and what it was given is its own. */
bool d9di_flight_writer_stop(d9di_flight_writer *s, d9di_flight_writer_timeout ms, bool *written);

/* False where the file system has not answered in time; then nothing was set. */
bool d9di_flight_writer_sync(d9di_flight_writer *s, d9di_flight_writer_timeout ms, bool *written);
/* What the rings of all ranks say, appended, unless some rank's watchdog has said it. */
bool d9di_flight_writer_diagnose(d9di_flight_writer *s, d9d_buf *text, bool *already_reported);
/* Does the ring of a rank before this one say that it failed? */
bool d9di_flight_writer_lower_rank_failed(d9di_flight_writer *s, bool *one);
/* In the caller's thread, of this host's ranks alone. */
d9d_status d9di_flight_writer_diagnose_here(const d9di_flight_ring *ring,
                                            const d9di_local_peers *local_peers, const char *dir,
                                            d9d_buf *text, bool *already_reported);

#endif /* D9DI_COMM_WATCH_FLIGHT_WRITER_H */
