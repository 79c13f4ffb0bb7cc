/* mpi_module.h - the interface of libd9d_mpi.so: messages between the ranks of an MPI job.
 *
 * The module is the only file that includes mpi.h.  The library loads it when a mesh of CPU ranks
 * is opened, so that nothing else depends on MPI, and only this file must be rebuilt for another
 * MPI.  It calls nothing of the library: errors are texts.
 */
#ifndef D9DI_COMM_BACKEND_MPI_MODULE_H
#define D9DI_COMM_BACKEND_MPI_MODULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A message: n > 0 bytes to or from a rank of the world. */
typedef struct d9di_mpi_msg {
    void *data;
    size_t n;
    int peer;
    bool receive;
} d9di_mpi_msg;

/* The ranks of the job. */
typedef struct d9di_mpi_world {
    int rank, size;
    int64_t poll_ns;     /* how long the next wait polls before it sleeps between polls; atomic */
    int64_t poll_max_ns; /* the longest that poll_ns becomes */
    uint64_t n_waits;    /* begun so far; atomic */
    int64_t nap_max_ns;  /* the longest sleep between two polls, less than a second */
    int sizes; /* classes of sizes that this MPI's tags can tell apart, beside what callers give */
} d9di_mpi_world;

typedef struct d9di_mpi_module {
    /* Collective.  false: `why` is the error.  Afterwards any thread may exchange.  Nothing else
     * here calls MPI's own collectives: they spin, and ranks that share a processor take it from
     * each other. */
    bool (*open)(int ranks_per_processor, d9di_mpi_world *out, char *why, size_t why_n);
    /* Returns when all messages are sent and received.  Messages of one pair of ranks and one tag,
     * at most D9DI_MPI_TAG_MAX, match in the order in which they are given, and their sizes must
     * agree.  After a failure nothing more is received, but for messages whose transfer has begun
     * and does not end soon: memory that the caller alone owns should stay allocated. */
    bool (*exchange)(d9di_mpi_world *w, const d9di_mpi_msg *msgs, int n, int tag, char *why,
                     size_t why_n);
    /* Post one message, complete when wait() returns; *msg is copied, `w` is borrowed.  NULL: `why`
     * is the error. */
    struct d9di_mpi_post *(*post)(d9di_mpi_world *w, const d9di_mpi_msg *msg, int tag, char *why,
                                  size_t why_n);
    bool (*test)(struct d9di_mpi_post *p);
    bool (*wait)(struct d9di_mpi_post *p, char *why, size_t why_n); /* blocks; frees p */
    void (*cancel)(struct d9di_mpi_post *p); /* instead of wait(), as after a failed exchange */
    void (*close)(void);                     /* collective */
} d9di_mpi_module;

enum { D9DI_MPI_TAG_MAX = 32767 }; /* as MPI guarantees; larger ones carry sizes of messages */

#define D9DI_MPI_MODULE "d9d_mpi_module_v6" /* the symbol, a d9di_mpi_module */

#endif /* D9DI_COMM_BACKEND_MPI_MODULE_H */
