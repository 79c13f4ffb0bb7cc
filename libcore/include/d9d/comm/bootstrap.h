/* bootstrap.h - rank, size and node of this process, and small out-of-band exchanges between the
 * tasks of a job before MPI or NCCL is running.
 *
 *     d9d_bootstrap *b;
 *     D9D_TRY(d9d_bootstrap_open(&b));
 *     st = d9d_bootstrap_rank(b) == 0 ? make_directory(dst) : D9D_OK;
 *     D9D_TRY_OR(st, d9d_bootstrap_agree_status(b, st), out);   // the same on every rank
 *     ...
 *
 * Under `srun --mpi=pmix` and `mpirun` every task is a rank, and PMIx says which; the library is
 * loaded only then.  Without a launcher the process is a world of one, in which every call returns
 * at once.  A launch that d9d does not understand - several tasks without PMIx - is an error: it
 * must never become several worlds of one that write the same files.
 *
 * At the first exchange the ranks of large jobs, of more than 64, connect with each other by TCP,
 * as a tree: PMIx carries one address of each rank.  In others, where they cannot, or where
 * D9D_BOOTSTRAP=pmix says so, PMIx carries everything, at a request for each message of each rank.
 * D9D_BOOTSTRAP=tcp: connect, however few they are.  Ranks that would choose differently are
 * ECONFIG in the first exchange, in a sentence that names two of them.
 *
 * Every rank makes the collective calls, in the same order.  Send kilobytes, not tensors.  A rank
 * that dies does not reliably fail the calls of the others: launch with `srun --kill-on-bad-exit=1`
 * (mpirun always kills).  Not thread-safe.
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
/* True if the launcher's environment says that this process is not task 0.  A configuration error
 * that every task meets is printed by task 0 only. */
D9D_API bool d9d_bootstrap_is_nonroot_task(void);
/* A world of one, even under a launcher. */
D9D_API D9D_MUST_USE d9d_status d9d_bootstrap_single(d9d_bootstrap **out);
/* Rank `rank` of `size` simulated ranks: every exchange acts as if the other ranks had sent what
 * this one sends. */
D9D_API D9D_MUST_USE d9d_status d9d_bootstrap_simulate(int rank, int size, d9d_bootstrap **out);
/* Close the connection to the launcher.  Not collective: no collective call of another rank may
 * still need this rank. */
D9D_API void d9d_bootstrap_close(d9d_bootstrap *b);

D9D_API int d9d_bootstrap_rank(const d9d_bootstrap *b);
D9D_API int d9d_bootstrap_size(const d9d_bootstrap *b);
/* True for one that d9d_bootstrap_simulate() made. */
D9D_API bool d9d_bootstrap_is_simulated(const d9d_bootstrap *b);
/* The launcher's name of this node; several nodes on one host have different names.  Borrowed. */
D9D_API const char *d9d_bootstrap_node(const d9d_bootstrap *b);

typedef struct d9d_bootstrap_blob {
    const void *data; /* followed by a NUL */
    size_t n;
} d9d_bootstrap_blob;

/* Timeout of an exchange in seconds: one that takes longer fails with ECOMM.  0, the
 * default, means no timeout.  Returns the previous value. */
D9D_API double d9d_bootstrap_set_timeout(d9d_bootstrap *b, double seconds);

/* Why the ranks are not connected, and the launcher carries their messages: "rank 5 (node): ...";
 * NULL if they are, or need not be.  Borrowed. */
D9D_API const char *d9d_bootstrap_unconnected(const d9d_bootstrap *b);

/* True if the ranks of a job of this size, with this D9D_BOOTSTRAP, connect by TCP. */
D9D_API bool d9d_bootstrap_connects(int size);
/* Exchanges so far that the launcher or the connections carried: those of a mesh, while it is open,
 * are its own. */
D9D_API int64_t d9d_bootstrap_exchanges(const d9d_bootstrap *b);

/* The most bytes that a rank may send in one all-gather. */
D9D_API size_t d9d_bootstrap_max_bytes(const d9d_bootstrap *b);
/* All-gather: all[r] becomes the n bytes that rank r sent, in the arena; at most 16 MiB over all
 * ranks.  Collective.  No rank returns before every rank has called. */
D9D_API D9D_MUST_USE d9d_status d9d_bootstrap_allgather(d9d_bootstrap *b, const void *local,
                                                        size_t n, d9d_arena *a,
                                                        d9d_bootstrap_blob *all /* [size] */);
/* Returns, on every rank, the status and the message of the first rank whose status is not D9D_OK.
 * The message of another rank begins with "rank 3 (node): ".  Collective. */
D9D_API D9D_MUST_USE d9d_status d9d_bootstrap_agree_status(d9d_bootstrap *b, d9d_status local);
#ifdef __clang_analyzer__ /* which must see that this rank's failure is one of all */
static inline d9d_status d9d_bootstrap_agree_seen(d9d_bootstrap *b, d9d_status local)
{
    const d9d_status all = d9d_bootstrap_agree_status(b, local);

    return local != D9D_OK ? local : all;
}
#define d9d_bootstrap_agree_status(b, local) d9d_bootstrap_agree_seen(b, local)
#endif
/* True if the last failure is one that all ranks know of.  After any other failure the other ranks
 * may be waiting: end the job with d9d_bootstrap_abort(). */
D9D_API bool d9d_bootstrap_failure_is_collective(const d9d_bootstrap *b);
/* Forget the collective failure because all ranks continue; the next failure is a new one, which
 * may not be collective. */
D9D_API void d9d_bootstrap_clear_failure(d9d_bootstrap *b);
/* True if another rank reports this failure and ends the job. */
D9D_API bool d9d_bootstrap_failure_reported(const d9d_bootstrap *b);
/* Ask the launcher to end all ranks, this one too, with this exit code.  Returns after two seconds
 * if the launcher has not done so, and at once in a world of one. */
D9D_API void d9d_bootstrap_abort(d9d_bootstrap *b, int code, const char *why);

#ifdef __cplusplus
}
#endif
#endif /* D9D_COMM_BOOTSTRAP_H */
