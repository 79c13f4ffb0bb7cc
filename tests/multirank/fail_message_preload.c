/* fail_message_preload.c - LD_PRELOAD library: the FAIL_CALL-th message that rank FAIL_RANK sends
 * is refused by MPI.
 */
#include <dlfcn.h>
#include <mpi.h>
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
    int (*next)(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
    void *found = dlsym(RTLD_NEXT, "MPI_Isend");

    memcpy(&next, &found, sizeof(next));
    if (number("OMPI_COMM_WORLD_RANK") == number("FAIL_RANK") && ++calls == number("FAIL_CALL"))
        return MPI_ERR_OTHER;
    return next(data, n, type, to, tag, comm, out);
}
