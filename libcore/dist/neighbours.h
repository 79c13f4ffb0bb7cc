/* neighbours.h - the ranks whose processes can be seen from here: those of this host.
 *
 * A launcher ends a job of which a rank has died, or it does not: srun without --kill-on-bad-exit,
 * mpirun with --enable-recovery.  Then the others would wait for as long as a call may take.  One
 * on the same host need not: the kernel knows who is gone, and the flight recorder's file of a rank
 * that left says so.
 */
#ifndef D9DI_DIST_NEIGHBOURS_H
#define D9DI_DIST_NEIGHBOURS_H

#include "dist/flight_file.h"

typedef struct d9di_neighbours d9di_neighbours;

/* Of the `size` ranks those that live here, without rank `self`; none, NULL, where nobody does.
 * `dir` has the flight recorder's files, and must live as long. */
d9d_status d9di_neighbours_open(const d9di_presence *all, int size, int self, const char *dir,
                                int64_t job, d9di_neighbours **out);
void d9di_neighbours_close(d9di_neighbours *n);

/* Is there one that died without a word, its mesh open; one that a signal has stopped?  One that a
 * debugger holds is not. */
typedef struct d9di_trouble {
    bool died, stopped;
} d9di_trouble;
d9di_trouble d9di_neighbours_look(const d9di_neighbours *n);

#endif /* D9DI_DIST_NEIGHBOURS_H */
