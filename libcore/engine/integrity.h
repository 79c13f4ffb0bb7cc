/* integrity.h - silent data corruption: checksums of a rank's arrays, and whose differ.
 *
 * A run is deterministic to the bit.  So ranks that store the same array (replicas of data or
 * tensor parallelism) have the same bits of it, and nothing between two updates changes them.  Both
 * are compared by checksums (d9d/kernels/reduce.h) without any tolerance:
 *
 *     D9D_TRY(d9di_integrity_open(&e, optimizer, &scale, &arena, &x));
 *     D9D_TRY(d9di_integrity_enqueue(&x, sums));           // checksums, on the device
 *     D9D_TRY(d9di_integrity_compare(&x, &v, &equal));     // replicas, over all ranks
 *     if (!equal) ... v.rank[0] on v.node[0] has other bits of v.name ...
 *
 * The comparison is one all-reduce of 8 bytes over the world, whatever the mesh.  Of the k ranks
 * that have an array the first contributes its checksum times 1 - k, the others theirs, so the sum
 * modulo 2^64 is 0 if all are equal.  Only otherwise the ranks gather all checksums, and the vote
 * of each array's replicas says who is in the minority.
 */
#ifndef D9DI_ENGINE_INTEGRITY_H
#define D9DI_ENGINE_INTEGRITY_H

#include "engine/engine.h"

/* An array of this rank: a parameter's shard, or a state of the optimizer. */
typedef struct d9di_integrity_array {
    const char *name; /* "model.norm.weight.exp_avg"; borrowed */
    const d9d_tensor *tensor;
    uint64_t key;  /* of the name and of the box in the whole: equal on all ranks that have it */
    int64_t share; /* factor of its checksum in the sum over all ranks */
} d9di_integrity_array;

typedef struct d9di_integrity {
    d9di_engine *engine; /* borrowed */
    d9di_integrity_array *arrays;
    d9d_checksum_array *list; /* scratch of a call */
    uint64_t *sums;           /* scratch on the host */
    size_t n;
    size_t n_state;    /* of these, parameters and optimizer state; the scale follows */
    bool replicated;   /* some rank's parameter or state has a replica */
    d9d_tensor device; /* [n] */
} d9di_integrity;

/* Lists the parameters and, unless `optimizer` is NULL, its state; and `scale`, what the optimizer
 * multiplies gradients by, of which every rank has one.  Finds out who has the same.  Collective.
 */
d9d_status d9di_integrity_open(d9di_engine *e, d9d_optimizer *optimizer, const d9d_tensor *scale,
                               d9d_arena *a, d9di_integrity *out);
void d9di_integrity_release(d9di_integrity *x);
/* Bytes that a pass over all arrays reads. */
uint64_t d9di_integrity_bytes(const d9di_integrity *x);

/* Enqueues the checksums of all arrays into out [n] on the device. */
d9d_status d9di_integrity_enqueue(d9di_integrity *x, void *out);

/* --- replicas --------------------------------------------------------------------------------- */

enum { D9DI_INTEGRITY_RANKS = 8, D9DI_INTEGRITY_NODE = 256 };

/* Who is to blame. */
typedef struct d9di_integrity_verdict {
    size_t n_ranks; /* suspects */
    bool tied;      /* no majority: one of them, it is unknown which */
    int rank[D9DI_INTEGRITY_RANKS];
    char where[D9DI_INTEGRITY_RANKS][D9DI_INTEGRITY_NODE]; /* "node7, NVIDIA H100 GPU-..." */
    char node[D9DI_INTEGRITY_RANKS][D9DI_INTEGRITY_NODE];
    char name[D9DI_INTEGRITY_NODE]; /* the first array in question */
    size_t n_arrays;                /* how many are */
    int copies, others;             /* ranks that have it; that agree against the suspect */
} d9di_integrity_verdict;

/* Compares the replicas on all ranks; the same answer on each.  The verdict is set unless they are
 * equal; without a suspect in it, the message of a checksum itself was corrupted.  Waits for the
 * device.  Collective. */
d9d_status d9di_integrity_compare(d9di_integrity *x, d9di_integrity_verdict *out, bool *equal);

/* This rank's node, and "node7, NVIDIA H100 GPU-..."; both [D9DI_INTEGRITY_NODE]. */
void d9di_integrity_where(const d9di_engine *e, char *node, char *where);

/* --- the vote, a function of what all ranks have sent ----------------------------------------- */

typedef struct d9di_integrity_entry {
    uint64_t key, sum;
    char name[112]; /* cut */
} d9di_integrity_entry;

typedef struct d9di_integrity_rank {
    char node[D9DI_INTEGRITY_NODE], where[D9DI_INTEGRITY_NODE];
    const d9di_integrity_entry *entries;
    size_t n;
} d9di_integrity_rank;

/* Suspects are the ranks that are in a minority for some array; where no array has a majority, all
 * that disagree.  ENOMEM. */
d9d_status d9di_integrity_vote(const d9di_integrity_rank *ranks, int n_ranks,
                               d9di_integrity_verdict *out);

#endif /* D9DI_ENGINE_INTEGRITY_H */
