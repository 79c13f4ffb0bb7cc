/* checkpointer_local.h - local checkpoints: the state of each rank in its host's memory, replicated
 * in that of another host.  What a rank or a host takes with it, its neighbour gives back: a job
 * goes on from the last local checkpoint without a read of the disk.
 *
 *     hosts      n0              n1              n2
 *     ranks      0   1           2   3           4   5
 *     own        0   1           2   3           4   5       files of shared memory, in DIR
 *     peer       4   5           0   1           2   3       the same of the host before
 *
 *     before the model has memory:
 *         D9D_TRY(d9di_checkpointer_local_find(bootstrap, id, job, &a, &found));
 *     D9D_TRY(d9di_checkpointer_local_open(&opts, &found, &x));
 *     if (found.step >= 0)
 *         D9D_TRY(d9di_checkpointer_local_restore(x, &found, &state));
 *     each period:
 *         D9D_TRY(d9di_checkpointer_local_begin(x, &state));
 *     each step:
 *         D9D_TRY(d9di_checkpointer_local_wait_copy(x));          // then the update
 *     at the end:
 *         d9di_checkpointer_local_remove(x);
 *
 * DIR is /dev/shm, or what D9D_LOCAL_DIR names, which may differ from host to host.  A host is a
 * node and a DIR.  Files outlive their processes, so ranks that start again find them, wherever
 * each is.
 *
 * Files.  DIR/d9d-<run id>-<ranks>-<rank>-{own,peer}-{0,1}: a header and the bytes of all arrays of
 * the rank, replicas included, so that nothing is gathered when they are read.  A save overwrites
 * the older of two; its header is invalid until all bytes are there.
 *
 * A save runs beside the steps after it, in a thread, which copies the arrays while forward and
 * backward read them, and then exchanges them with the neighbours over TCP (d9d/comm/links.h):
 *
 *     step        k  |  k+1: forward, backward    update |  k+2  | ...  | k+p
 *     training  begin|                         wait_copy                begin
 *     thread         | copy, checksums ..... | send, receive ....... |
 *
 * Each begin() waits for the save before it, and all ranks agree that it has ended well; only then
 * the older files are overwritten.  So whatever is killed at whatever moment, one complete set of
 * one step remains.
 *
 * A local checkpoint is of one mesh: the same ranks must have the same arrays.  The number of
 * replicas alone may be another one, where all replicas have the same: each rank then takes the
 * state of its part of the model from any replica, so that a job goes on without the hosts it has
 * lost. Another job reads checkpoints of the disk (d9d/checkpointer/checkpointer.h).
 *
 *     2 replicas of 2 ranks     0 1 | 2 3      3 is lost with its host
 *     1 replica of 2 ranks      0 1            1 takes the state of 1; of 3 where 1 were lost
 *
 * Cost.  With S bytes of state a rank, its host holds 4 S: own and peer, two each.  Training waits
 * where a forward and backward are over before S is copied, and where a period is over before S is
 * with the neighbour: of 12 GB, 2 s at 6 GB/s and 10 s at 1.2 (plan/plan_goodput.c has the same).
 * Checksums on the device are a read of S.
 */
#ifndef D9DI_CHECKPOINTER_CHECKPOINTER_LOCAL_H
#define D9DI_CHECKPOINTER_CHECKPOINTER_LOCAL_H

#include "d9d/checkpointer/checkpointer.h"
#include "d9d/track/track.h"

typedef struct d9di_checkpointer_local d9di_checkpointer_local;

/* The mesh, as far as local checkpoints see it. */
typedef struct d9di_checkpointer_local_mesh {
    uint64_t job; /* a hash of all that must be the same */
    int replicas;
    int ranks;          /* of a replica in one pipeline stage */
    bool replicas_vary; /* another number of replicas may read it: `job` is without theirs */
} d9di_checkpointer_local_mesh;

typedef struct d9di_checkpointer_local_opts {
    const char *id; /* of the run, [0-9a-f]+ */
    d9di_checkpointer_local_mesh job;
    const d9d_checkpointer_set *set;
    d9d_device *dev;
    d9d_mesh *mesh;
    d9d_comm *world;          /* NULL: a single rank */
    double timeout_s;         /* how long a save may take at most; 0: without limit */
    const char *timeout_name; /* its name in messages */
    d9d_tracker *tracker;     /* records what each save cost; NULL: none */
    const d9d_log *log;
} d9di_checkpointer_local_opts;

/* Where the state of a rank is. */
typedef struct d9di_checkpointer_local_place {
    int holder;             /* a rank that sees the file */
    const char *file;       /* its name in the holder's DIR; in the arena */
    uint64_t layout, bytes; /* as its header says */
} d9di_checkpointer_local_place;

typedef struct d9di_checkpointer_local_found {
    int64_t step;                         /* of the newest complete one; -1: none */
    int ranks;                            /* that wrote it */
    d9di_checkpointer_local_place *place; /* [ranks]; in the arena */
} d9di_checkpointer_local_found;

/* ECONFIG if this rank's DIR is none, or cannot be written to. */
d9d_status d9di_checkpointer_local_check_dir(void);

/* The newest step of which the state of every rank is on some host.  The contents are not read.
 * Collective over the job. */
d9d_status d9di_checkpointer_local_find(d9d_bootstrap *bootstrap, const char *id,
                                        const d9di_checkpointer_local_mesh *job, d9d_arena *a,
                                        d9di_checkpointer_local_found *out);

/* Makes this rank's files, and those that its host holds for others.  EIO if a DIR has not enough
 * memory.  Collective, as all below. */
d9d_status d9di_checkpointer_local_open(const d9di_checkpointer_local_opts *opts,
                                        const d9di_checkpointer_local_found *found,
                                        d9di_checkpointer_local **out);
/* Fills the set and the state.  EVERIFY for bytes that are not those that were saved, EMISMATCH for
 * other arrays. */
d9d_status d9di_checkpointer_local_restore(d9di_checkpointer_local *x,
                                           const d9di_checkpointer_local_found *found,
                                           d9d_checkpointer_state *state);
/* Begins a save of the set as of now, with no step enqueued; until wait_copy() its arrays may only
 * be read.  Waits for the save before it: the status is that one's, of the first rank on which it
 * failed. ECORRUPT if bits changed while they were copied or sent, ETIMEOUT after timeout_s. */
d9d_status d9di_checkpointer_local_begin(d9di_checkpointer_local *x,
                                         const d9d_checkpointer_state *state);
/* The functions below are not collective, and NULL is fine for them. */
/* Waits until the arrays may be changed. */
d9d_status d9di_checkpointer_local_wait_copy(d9di_checkpointer_local *x);
/* Waits for this rank's part of the save in progress, whose status the next begin() returns. */
void d9di_checkpointer_local_wait(d9di_checkpointer_local *x);
/* Abandons the save in progress, and removes the files of this rank and of those whose peer it is.
 */
void d9di_checkpointer_local_remove(d9di_checkpointer_local *x);
void d9di_checkpointer_local_close(
    d9di_checkpointer_local *x); /* abandons it, and keeps the files */

#endif /* D9DI_CHECKPOINTER_CHECKPOINTER_LOCAL_H */
