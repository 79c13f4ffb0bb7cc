/* bootstrap.h - who this process is among the tasks of its job, and the few words that they
 * exchange before, or instead of, anything faster.
 *
 *     d9d_bootstrap *b;
 *     D9D_TRY(d9d_bootstrap_open(&b));
 *     st = d9d_bootstrap_rank(b) == 0 ? make_directory(dst) : D9D_OK;
 *     D9D_TRY_OR(st, d9d_bootstrap_agree_status(b, st), out);      // on every rank the same status
 *     ...
 *
 * Under `srun --mpi=pmix` and `mpirun` every task is a rank, told by PMIx; the library is
 * loaded only then.  Without a launcher the process is a world of one, in which every call
 * is immediate.  A launch that is not understood - several tasks without PMIx - is an error,
 * never many worlds of one that write the same files.
 *
 * Collective calls are made by every rank, in the same order.  Messages are copied through
 * the launcher's servers: kilobytes, not tensors.  A rank that dies does not reliably fail the
 * calls of the others: launch with `srun --kill-on-bad-exit=1` (mpirun always kills).  Not
 * thread-safe.
 */
#ifndef D9D_COMM_BOOTSTRAP_H
#define D9D_COMM_BOOTSTRAP_H

#include "d9d/base/mem.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_bootstrap d9d_bootstrap;

/* ECONFIG for a launch that is not understood, ENOTSUP when this build or machine has no
 * PMIx, ECOMM when the launcher's server does not answer.  Every rank must open. */
D9D_API D9D_MUST_USE d9d_status d9d_bootstrap_open(d9d_bootstrap **out);
/* Is this another task than the first of several, by what their launcher has put into its
 * environment?  The ECONFIG that all have met is said by the first. */
D9D_API bool d9d_bootstrap_is_nonroot_task(void);
/* A world of one, whoever launched this process. */
D9D_API D9D_MUST_USE d9d_status d9d_bootstrap_single(d9d_bootstrap **out);
/* Rank `rank` of `size`, of which the others are imagined: they say what this one says. */
D9D_API D9D_MUST_USE d9d_status d9d_bootstrap_simulate(int rank, int size, d9d_bootstrap **out);
/* Leave: not collective, and no collective call of another rank may need this one any more. */
D9D_API void d9d_bootstrap_close(d9d_bootstrap *b);

D9D_API int d9d_bootstrap_rank(const d9d_bootstrap *b);
D9D_API int d9d_bootstrap_size(const d9d_bootstrap *b);
/* By d9d_bootstrap_simulate()? */
D9D_API bool d9d_bootstrap_is_simulated(const d9d_bootstrap *b);
/* The node's name as the launcher knows it: several nodes of one host have several. */
D9D_API const char *d9d_bootstrap_node(const d9d_bootstrap *b);

typedef struct d9d_bootstrap_blob {
    const void *data; /* followed by a NUL */
    size_t n;
} d9d_bootstrap_blob;

/* Seconds that this rank waits for others in the launcher's calls, before that is ECOMM; 0, as at
 * the first: for ever.  Returns what it was. */
D9D_API double d9d_bootstrap_set_timeout(d9d_bootstrap *b, double seconds);

/* Bytes that each rank may give to one gather. */
D9D_API size_t d9d_bootstrap_max_bytes(const d9d_bootstrap *b);
/* Collective: all[r] becomes what rank r gave, up to 16 MiB in all; from the arena.  No rank
 * returns before every rank has called. */
D9D_API D9D_MUST_USE d9d_status d9d_bootstrap_allgather(d9d_bootstrap *b, const void *mine,
                                                        size_t n, d9d_arena *a,
                                                        d9d_bootstrap_blob *all /* [size] */);
/* Collective: the status of the first rank that has not D9D_OK, with its sentence, on every
 * rank; another rank's sentence begins with "rank 3 (node): ". */
D9D_API D9D_MUST_USE d9d_status d9d_bootstrap_agree_status(d9d_bootstrap *b, d9d_status mine);
/* Have all ranks agreed on a failure?  One that they have not may leave the others waiting: it ends
 * with d9d_bootstrap_abort(). */
D9D_API bool d9d_bootstrap_failure_is_collective(const d9d_bootstrap *b);
/* That failure ends nothing, all go on: the next one is another, which all may not agree on. */
D9D_API void d9d_bootstrap_clear_failure(d9d_bootstrap *b);
/* Does another rank say what both have met, and end the job? */
D9D_API bool d9d_bootstrap_failure_reported(const d9d_bootstrap *b);
/* End all ranks with this exit code, at once, this one among them.  Returns after two seconds if
 * the launcher has not done it, and at once in a world of one, which is left to its caller. */
D9D_API void d9d_bootstrap_abort(d9d_bootstrap *b, int code, const char *why);

#ifdef __cplusplus
}
#endif
#endif /* D9D_COMM_BOOTSTRAP_H */
