/* local_peers.h - the ranks whose processes can be seen from here: those of this host.
 *
 * A launcher ends a job of which a rank has died, or it does not: srun without --kill-on-bad-exit,
 * mpirun with --enable-recovery.  Then the others would wait for as long as a call may take.  One
 * on the same host need not: the kernel knows who is gone, and the ring of a rank that left says
 * so. That lies in memory: nothing here asks a file system, but d9di_local_peers_salvage().
 */
#ifndef D9DI_COMM_WATCH_LOCAL_PEERS_H
#define D9DI_COMM_WATCH_LOCAL_PEERS_H

#include "comm/watch/flight_file.h"

typedef struct d9di_local_peers d9di_local_peers;

/* Where a rank is, and where its ring is. */
typedef struct d9di_local_peers_address {
    d9di_flight_process self;
    char shm_path[D9DI_FLIGHT_SHM_PATH_MAX];
} d9di_local_peers_address;

/* Of the `size` ranks those that live here, without rank `self`; none, NULL, where nobody does. */
d9d_status d9di_local_peers_open(const d9di_local_peers_address *all, int size, int self,
                                 d9di_local_peers **out);
void d9di_local_peers_close(d9di_local_peers *n);

/* Is there one that died without a word, its mesh open; one that a signal has stopped?  One that a
 * debugger holds is not. */
typedef struct d9di_local_peers_health {
    bool died, stopped;
} d9di_local_peers_health;
d9di_local_peers_health d9di_local_peers_poll(const d9di_local_peers *n);

/* The ring of a rank of this host; NULL: it is not to be seen, or none of those.  NULL has none. */
const d9di_flight_ring *d9di_local_peers_ring(const d9di_local_peers *n, int rank);
/* Those that are gone are written to their files, once each. */
void d9di_local_peers_salvage(d9di_local_peers *n, const char *dir);

#endif /* D9DI_COMM_WATCH_LOCAL_PEERS_H */
