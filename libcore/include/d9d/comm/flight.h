/* flight.h - what each rank was doing: its last calls to other ranks, read from a run's files.
 *
 * A mesh that is opened with a flight_dir keeps a ring there for each rank, DIR/rank-3.bin: the
 * last 1024 calls with group, number, verb, type, count, what, and when each was made and done.
 * The ring is shared memory (/dev/shm), which a call takes a few stores into, and which is there
 * when the process has been killed.  A thread beside the computation writes it to the file every
 * five seconds, and another shows ten times a second that the process lives.  A reader on the same
 * host reads the memory; on another one, or when the host has been started anew, up to five seconds
 * are missing, but for what a rank wrote when it failed, ended the job, or saw that a neighbour
 * died.
 *
 * Every rank of a group makes the same calls in the same order, so that call n of a group can be
 * compared between ranks:
 *
 *     rank 0   dp_shard 16 done   dp_shard 17 all_reduce of loss, float64 [1]   waits
 *     rank 1   dp_shard 16 done   dp_shard 17 all_reduce of loss, float64 [1]   waits
 *     rank 2   dp_shard 16 done                                                 stopped
 *
 *     -> "dp_shard: all_reduce 17 of loss, float64 [1]: ranks 0 1 wait since 30.0 s for rank 2
 *        (n1, dps 2), which is stopped; its last call: ..."
 *
 * The same sentence is what the watchdog of a living job says before it ends it: see
 * d9d_mesh_open().  Where a rank waits for one that waits in another group, the chain is followed
 * to its end.  Files are trusted in nothing: damage makes a rank one without a record.
 */
#ifndef D9D_COMM_FLIGHT_H
#define D9D_COMM_FLIGHT_H

#include <jansson.h>

#include "d9d/base/mem.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_flight d9d_flight;

/* The rings of the job that ran last in DIR, from this host's memory where they are there still;
 * ENOTFOUND when there are none. */
D9D_API D9D_MUST_USE d9d_status d9d_flight_open(const char *dir, d9d_flight **out);
D9D_API void d9d_flight_close(d9d_flight *f);
/* Remove the ring of this rank from DIR.  False: there was none, or its name is another file's. */
D9D_API bool d9d_flight_remove(const char *dir, int rank);
D9D_API int d9d_flight_size(const d9d_flight *f);

typedef enum d9d_flight_fault {
    D9D_FLIGHT_HEALTHY,  /* nobody waits, or since a moment for ranks that run */
    D9D_FLIGHT_MISMATCH, /* ranks make different calls */
    D9D_FLIGHT_MISSING,  /* ranks have not come, and do not wait themselves */
    D9D_FLIGHT_CYCLE,    /* ranks wait for each other, in different calls */
    D9D_FLIGHT_LOST,     /* a rank fell silent, died or failed without being waited for */
    D9D_FLIGHT_STUCK     /* all have come, and it does not end */
} d9d_flight_fault;

typedef struct d9d_flight_diagnosis {
    d9d_flight_fault fault;
    int n_culprits;  /* ranks to blame ... */
    int *culprit;    /* ... in order; freed with the flight */
    double waited_s; /* by the oldest call that waits; 0: none does */
    int reporter;    /* the first rank that waits; -1: none does */
} d9d_flight_diagnosis;

/* One sentence without a full stop, and what it says in numbers. */
D9D_API D9D_MUST_USE d9d_status d9d_flight_diagnose(d9d_flight *f, d9d_flight_diagnosis *out,
                                                    d9d_buf *sentence);

/* A line a rank: where it is, what it does, its last call. */
D9D_API D9D_MUST_USE d9d_status d9d_flight_text(d9d_flight *f, d9d_buf *out);
/* The verdict and every rank with its last `calls` calls: schemas/d9d.flight.v1.json. */
D9D_API D9D_MUST_USE d9d_status d9d_flight_json(d9d_flight *f, int calls, json_t **out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_COMM_FLIGHT_H */
