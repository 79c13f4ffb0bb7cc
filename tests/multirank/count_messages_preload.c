/* count_messages_preload.c - LD_PRELOAD library: what each rank sends, by collective and receiver.
 *
 * When a rank ends it writes $COUNT_DIR/sent.RANK: lines "COLLECTIVE TO MESSAGES BYTES SMALL", of
 * payload alone; SMALL are the bytes in messages below SMALL_BYTES, such as sums of a few numbers.
 * The collective is in the tag (comm_mpi.c).
 */
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_private.h"

enum { MAX_RANKS = 256, PHASES = 32, COLLS = 8, SMALL_BYTES = 256 };

static struct {
    uint64_t messages, bytes, small;
} sent[COLLS][MAX_RANKS];

int MPI_Isend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *out)
{
    int (*next)(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
    void *found = dlsym(RTLD_NEXT, "MPI_Isend");
    const int coll = tag / PHASES % COLLS;

    _Static_assert((int)D9DI_COLL_COUNT <= COLLS, "a tag has three bits of a collective");
    memcpy(&next, &found, sizeof(next));
    sent[coll][to].messages++;
    sent[coll][to].bytes += (uint64_t)n;
    sent[coll][to].small += n < SMALL_BYTES ? (uint64_t)n : 0;
    return next(data, n, type, to, tag, comm, out);
}

static void __attribute__((destructor)) counts_write(void)
{
    static const char *const names[] = {
#define X(name, text) text,
        D9DI_COLL_MAP(X)
#undef X
    };
    const char *dir = getenv("COUNT_DIR"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    char path[4096];
    FILE *f;

    (void)snprintf(path, sizeof(path), "%s/sent.%s", dir != NULL ? dir : ".",
                   rank != NULL ? rank : "0");
    f = fopen(path, "w");
    for (int c = 0; f != NULL && c < D9DI_COLL_COUNT; c++)
        for (int r = 0; r < MAX_RANKS; r++)
            if (sent[c][r].messages > 0)
                (void)fprintf(f, "%s %d %llu %llu %llu\n", names[c], r,
                              (unsigned long long)sent[c][r].messages,
                              (unsigned long long)sent[c][r].bytes,
                              (unsigned long long)sent[c][r].small);
    if (f != NULL)
        (void)fclose(f);
}
