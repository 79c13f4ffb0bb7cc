/* local_peers.h - the ranks whose processes can be seen from here: those of this host.
 *
 * A launcher ends a job of which a rank has died, or it does not: srun without --kill-on-bad-exit,
 * mpirun with --enable-recovery.  Then the others would wait for as long as a call may take.  One
 * on the same host need not: the kernel knows who is gone, and the ring of a rank that left says
 * so. That lies in memory: nothing here asks a file system, but d9di_neighbours_salvage().
 */
#ifndef D9DI_COMM_WATCH_LOCAL_PEERS_H
#define D9DI_COMM_WATCH_LOCAL_PEERS_H

#include "comm/watch/flight_file.h"

typedef struct d9di_neighbours d9di_neighbours;

/* Where a rank is, and where its ring is. */
typedef struct d9di_whereabouts {
    d9di_presence self;
    char memory[D9DI_FLIGHT_MEMORY];
} d9di_whereabouts;

/* Of the `size` ranks those that live here, without rank `self`; none, NULL, where nobody does. */
d9d_status d9di_neighbours_open(const d9di_whereabouts *all, int size, int self,
                                d9di_neighbours **out);
void d9di_neighbours_close(d9di_neighbours *n);

/* Is there one that died without a word, its mesh open; one that a signal has stopped?  One that a
 * debugger holds is not. */
typedef struct d9di_trouble {
    bool died, stopped;
} d9di_trouble;
d9di_trouble d9di_neighbours_look(const d9di_neighbours *n);

/* The ring of a rank of this host; NULL: it is not to be seen, or none of those.  NULL has none. */
const d9di_ring *d9di_neighbours_ring(const d9di_neighbours *n, int rank);
/* Those that are gone are written to their files, once each. */
void d9di_neighbours_salvage(d9di_neighbours *n, const char *dir);

#endif /* D9DI_COMM_WATCH_LOCAL_PEERS_H */
