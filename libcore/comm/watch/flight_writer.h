/* flight_writer.h - the writer thread: the only thread that touches a flight recorder's files.
 *
 * A file system that hangs blocks whoever reads or writes it.  The thread that makes the calls and
 * the watchdog, which must detect a hang, therefore touch no file: they send requests to the writer
 * thread and wait with a timeout.
 */
#ifndef D9DI_COMM_WATCH_FLIGHT_WRITER_H
#define D9DI_COMM_WATCH_FLIGHT_WRITER_H

#include "comm/watch/local_peers.h"
#include "d9d/base/log.h"
#include "d9d/base/mem.h"

typedef struct d9di_flight_writer d9di_flight_writer;

typedef enum d9di_flight_writer_timeout { /* timeout of a reply, in ms: */
                                          D9DI_FLIGHT_WRITER_FILES_MS =
                                              10000, /* while ranks wait anyway */
                                          D9DI_FLIGHT_WRITER_EXIT_MS =
                                              1000 /* while the process ends */
} d9di_flight_writer_timeout;

/* Start the thread.  It writes the ring to its file every five seconds, and the rings of dead local
 * peers once.  `ring` and `local_peers` (or NULL) must outlive it; `dir` NULL: no files.  A file
 * that cannot be written is one warning. */
d9d_status d9di_flight_writer_start(d9di_flight_ring *ring, d9di_local_peers *local_peers,
                                    const char *dir, const d9d_log *log, d9di_flight_writer **out);
/* Write once more and stop; *written: it succeeded.  False if the file system has not answered in
 * time: then the thread keeps running, and owns what it was given. */
bool d9di_flight_writer_stop(d9di_flight_writer *s, d9di_flight_writer_timeout ms, bool *written);

/* Write now.  False if the file system has not answered in time; *written is then not set. */
bool d9di_flight_writer_sync(d9di_flight_writer *s, d9di_flight_writer_timeout ms, bool *written);
/* Append the diagnosis from the rings of all ranks, unless some rank's watchdog has reported it. */
bool d9di_flight_writer_diagnose(d9di_flight_writer *s, d9d_buf *text, bool *already_reported);
/* *one: the ring of a lower rank says that it failed. */
bool d9di_flight_writer_lower_rank_failed(d9di_flight_writer *s, bool *one);
/* The diagnosis in the caller's thread, from this host's rings only. */
d9d_status d9di_flight_writer_diagnose_here(const d9di_flight_ring *ring,
                                            const d9di_local_peers *local_peers, const char *dir,
                                            d9d_buf *text, bool *already_reported);

#endif /* D9DI_COMM_WATCH_FLIGHT_WRITER_H */
