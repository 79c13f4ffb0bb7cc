/* flight.h - the flight recorder: the last collective and point-to-point calls of each rank, read
 * from a run's files.
 *
 * A mesh that is opened with a flight_dir keeps a ring of records for each rank, DIR/rank-3.bin.
 * The ring has the last 1024 calls: group, sequence number, collective, type, count, label, and the
 * times at which each was made and completed.  The ring is shared memory (/dev/shm): a call costs a
 * few stores, and the records survive when the process is killed.
 *
 * A writer thread copies the ring to the file every five seconds; another thread writes a
 * heartbeat ten times a second.  A reader on the same host reads the shared memory.  On another
 * host, or after a reboot, the last five seconds may be missing.  A rank writes at once when it
 * fails, ends the job, or sees a local peer die.
 *
 * All ranks of a group make the same calls in the same order, so call n of a group is comparable
 * between ranks (a desynchronisation shows as different calls with the same number):
 *
 *     rank 0   dp_shard 16 done   dp_shard 17 all_reduce of loss, float64 [1]   waits
 *     rank 1   dp_shard 16 done   dp_shard 17 all_reduce of loss, float64 [1]   waits
 *     rank 2   dp_shard 16 done                                                 stopped
 *
 *     -> "dp_shard: all_reduce 17 of loss, float64 [1]: ranks 0 1 wait since 30.0 s for rank 2
 *        (n1, dps 2), which is stopped; its last call: ..."
 *
 * The watchdog of a running job prints the same diagnosis before it ends the job: see
 * d9d_mesh_open().  If a rank waits for one that waits in another group, the analysis follows the
 * chain to its end.  The reader validates everything: a damaged ring counts as a rank without one.
 */
#ifndef D9D_COMM_FLIGHT_H
#define D9D_COMM_FLIGHT_H

#include <jansson.h>

#include "d9d/base/mem.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_flight d9d_flight;

/* Read the rings of the last job in DIR, from shared memory where this host still has it.
 * ENOTFOUND if there are none. */
D9D_API D9D_MUST_USE d9d_status d9d_flight_open(const char *dir, d9d_flight **out);
D9D_API void d9d_flight_close(d9d_flight *f);
/* Remove this rank's ring from DIR.  False: there was none, or another kind of file has its
 * name. */
D9D_API bool d9d_flight_remove(const char *dir, int rank);
D9D_API int d9d_flight_size(const d9d_flight *f);

typedef enum d9d_flight_fault {
    D9D_FLIGHT_HEALTHY,  /* nothing pending, or only briefly, for ranks that run */
    D9D_FLIGHT_MISMATCH, /* desynchronised: ranks make different calls */
    D9D_FLIGHT_MISSING,  /* ranks have not made a call that others wait in */
    D9D_FLIGHT_CYCLE,    /* deadlock: ranks wait for each other */
    D9D_FLIGHT_LOST,     /* a rank died, failed or shows no life; none waits for it */
    D9D_FLIGHT_STUCK     /* all ranks have made the call, and it does not complete */
} d9d_flight_fault;

typedef struct d9d_flight_diagnosis {
    d9d_flight_fault fault;
    int n_culprits;  /* the ranks that caused it ... */
    int *culprit;    /* ... in order; freed with the flight */
    double waited_s; /* age of the oldest pending call; 0: none */
    int reporter;    /* the first rank that waits; -1: none */
} d9d_flight_diagnosis;

/* The diagnosis as a sentence without a full stop, and as numbers. */
D9D_API D9D_MUST_USE d9d_status d9d_flight_diagnose(d9d_flight *f, d9d_flight_diagnosis *out,
                                                    d9d_buf *sentence);

/* One line for each rank: node and coordinates, state, last call. */
D9D_API D9D_MUST_USE d9d_status d9d_flight_text(d9d_flight *f, d9d_buf *out);
/* The diagnosis, and the last `calls` calls of each rank: schemas/d9d.flight.v1.json. */
D9D_API D9D_MUST_USE d9d_status d9d_flight_json(d9d_flight *f, int calls, json_t **out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_COMM_FLIGHT_H */
