/* mpi_module.h - what libd9d_mpi.so gives: messages between the ranks of an MPI job.
 *
 * The module is the only file that includes mpi.h.  The library loads it when a mesh of CPU ranks
 * is opened, so that nothing else depends on MPI, and a build for one MPI works wherever this one
 * file is built again.  It calls nothing of the library: errors are texts.
 */
#ifndef D9DI_COMM_BACKEND_MPI_MODULE_H
#define D9DI_COMM_BACKEND_MPI_MODULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* n > 0 bytes that go to a rank of the world or come from it. */
typedef struct d9di_mpi_msg {
    void *data;
    size_t n;
    int peer;
    bool receive;
} d9di_mpi_msg;

/* The ranks of the job. */
typedef struct d9di_mpi_world {
    int rank, size;
    int64_t poll_ns; /* how long a wait polls before it sleeps between polls */
} d9di_mpi_world;

typedef struct d9di_mpi_module {
    /* Collective.  false: `why` says what is wrong.  From then on any thread may exchange. */
    bool (*open)(d9di_mpi_world *out, char *why, size_t why_n);
    /* Returns when all pieces are where they belong.  Those of one pair of ranks and one tag are
     * matched in the order in which they are given, and their sizes must agree. */
    bool (*exchange)(const d9di_mpi_world *w, const d9di_mpi_msg *msgs, int n, int tag, char *why,
                     size_t why_n);
    /* One piece that goes on by itself, until end() returns; the piece is copied, `w` is not.
     * NULL: `why`. */
    struct d9di_mpi_post *(*post)(const d9di_mpi_world *w, const d9di_mpi_msg *msg, int tag,
                                  char *why, size_t why_n);
    bool (*test)(struct d9di_mpi_post *p);
    bool (*wait)(struct d9di_mpi_post *p, char *why, size_t why_n); /* waits; takes it */
    void (*close)(void);                                            /* collective */
} d9di_mpi_module;

#define D9DI_MPI_MODULE "d9d_mpi_module_v3" /* the symbol, a d9di_mpi_module */

#endif /* D9DI_COMM_BACKEND_MPI_MODULE_H */
