/* flip_message_preload.c - LD_PRELOAD library: one bit of the FLIP_CALL-th message that rank
 * FLIP_RANK sends, of those with 64 bytes or more, is another one on arrival; FLIP_BIT chooses it.
 */
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long number(const char *name)
{
    const char *s = getenv(name);

    return s != NULL ? atol(s) : -1;
}

int MPI_Isend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *out)
{
    static long calls;
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    int (*next)(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
    void *found = dlsym(RTLD_NEXT, "MPI_Isend");
    unsigned char *copy;
    size_t bit;

    memcpy(&next, &found, sizeof(next));
    if (n < 64 || rank == NULL || atol(rank) != number("FLIP_RANK") ||
        ++calls != number("FLIP_CALL"))
        return next(data, n, type, to, tag, comm, out);
    copy = malloc((size_t)n); /* stays until the process ends */
    if (copy == NULL)
        abort();
    memcpy(copy, data, (size_t)n);
    bit = (size_t)number("FLIP_BIT") % ((size_t)n * 8);
    copy[bit / 8] ^= (unsigned char)(1u << bit % 8);
    (void)fprintf(stderr, "flipped bit %zu of a message of %d bytes to rank %d\n", bit, n, to);
    return next(copy, n, type, to, tag, comm, out);
}
