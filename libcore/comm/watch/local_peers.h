/* local_peers.h - the ranks on this host, whose processes and rings this process can see.
 *
 * Not every launcher ends a job in which a rank has died: srun without --kill-on-bad-exit and
 * mpirun with --enable-recovery do not.  The other ranks would then wait until the timeout.  A rank
 * on the same host need not: the kernel knows which process is gone, and the ring of a rank that
 * left says so.  All of this is memory; only d9di_local_peers_salvage() touches a file system.
 */
#ifndef D9DI_COMM_WATCH_LOCAL_PEERS_H
#define D9DI_COMM_WATCH_LOCAL_PEERS_H

#include "comm/watch/flight_file.h"

typedef struct d9di_local_peers d9di_local_peers;

/* The host and process of a rank, and the path of its shared ring. */
typedef struct d9di_local_peers_address {
    d9di_flight_process self;
    char shm_path[D9DI_FLIGHT_SHM_PATH_MAX];
} d9di_local_peers_address;

/* Open the rings of the ranks that are on this host, without rank `self`; *out is NULL if there are
 * none. */
d9d_status d9di_local_peers_open(const d9di_local_peers_address *all, int size, int self,
                                 d9di_local_peers **out);
void d9di_local_peers_close(d9di_local_peers *n);

/* Whether a local peer died with its mesh open, or is stopped by a signal (not by a debugger). */
typedef struct d9di_local_peers_health {
    bool died, stopped;
} d9di_local_peers_health;
d9di_local_peers_health d9di_local_peers_poll(const d9di_local_peers *n);

/* The ring of a local peer; NULL if it is not visible or not on this host.  `n` may be NULL. */
const d9di_flight_ring *d9di_local_peers_ring(const d9di_local_peers *n, int rank);
/* Write the rings of dead local peers to their files, once each. */
void d9di_local_peers_salvage(d9di_local_peers *n, const char *dir);

#endif /* D9DI_COMM_WATCH_LOCAL_PEERS_H */
