/* watchdog.h - the watchdog thread: shows that this process lives, and ends it after a timeout.
 *
 * It ends the process when a collective exceeds the timeout, or when a rank of this host is dead
 * and the launcher does not end the job.  It touches no file system.  Rings of this host are shared
 * memory; for the files of other hosts it asks the writer thread, with a timeout. */
#ifndef D9DI_COMM_WATCH_WATCHDOG_H
#define D9DI_COMM_WATCH_WATCHDOG_H

#include "comm/watch/local_peers.h"

typedef struct d9di_watchdog d9di_watchdog;

/* Start the watchdog.  What `opts` points to must outlive it.  It takes over the ring and
 * `local_peers` (or NULL); if it cannot be started they stay the caller's. */
d9d_status d9di_watchdog_start(d9di_flight_ring *ring, d9d_bootstrap *bootstrap,
                               const d9d_mesh_opts *opts, d9di_local_peers *local_peers,
                               d9di_watchdog **out);
/* The backend to poll for completion of enqueued calls; NULL: none. */
void d9di_watchdog_set_backend(d9di_watchdog *w, const d9di_comm_backend *backend);
/* Stop the watchdog; `state` becomes the ring's last state and is written to its file. */
void d9di_watchdog_stop(d9di_watchdog *w, d9di_flight_state state);
/* Record that this process fails, so that others can see it before it is gone.  True if a lower
 * rank failed too. */
bool d9di_watchdog_report_failure(d9di_watchdog *w);
/* See d9d_mesh_set_timeout(). */
void d9di_watchdog_set_timeout(d9di_watchdog *w, double seconds, const char *limit);
/* Mark the network as initialising, which may wait for others without a call in the ring. */
void d9di_watchdog_set_initializing(d9di_watchdog *w, bool initializing);

#endif /* D9DI_COMM_WATCH_WATCHDOG_H */
