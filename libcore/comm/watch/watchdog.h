/* watchdog.h - the thread beside the computation: shows that this process lives, and ends it when
 * a call between ranks has taken too long, or a rank of this host is dead and the launcher lets the
 * others be.  It asks no file system: rings of this host are memory, and for others' files it asks
 * the scribe, with a limit. */
#ifndef D9DI_COMM_WATCH_WATCHDOG_H
#define D9DI_COMM_WATCH_WATCHDOG_H

#include "comm/watch/local_peers.h"

typedef struct d9di_watchdog d9di_watchdog;

/* What `how` points to must live as long.  The ring and `local_peers` (or NULL) are its own from
 * then on; where it cannot be started they stay the caller's. */
d9d_status d9di_watchdog_start(d9di_flight_ring *ring, d9d_bootstrap *boot,
                               const d9d_mesh_opts *how, d9di_local_peers *local_peers,
                               d9di_watchdog **out);
/* Calls that are queued on a device are asked for there; NULL: none are. */
void d9di_watchdog_set_backend(d9di_watchdog *w, const d9di_comm_backend *backend);
/* The ring's last state, which is written to its file. */
void d9di_watchdog_stop(d9di_watchdog *w, d9di_flight_state state);
/* This process fails, which others may see before it is gone.  Did one before it, too? */
bool d9di_watchdog_report_failure(d9di_watchdog *w);
/* See d9d_mesh_set_timeout(). */
void d9di_watchdog_set_timeout(d9di_watchdog *w, double seconds, const char *limit);
/* What is no call of a ring and may wait for others as well: the network opens, or it has. */
void d9di_watchdog_set_initializing(d9di_watchdog *w, bool initializing);

#endif /* D9DI_COMM_WATCH_WATCHDOG_H */
