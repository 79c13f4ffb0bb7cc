/* hang_in_mpi_init_preload.c - LD_PRELOAD library: the rank $HALT hangs in MPI_Init. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

int PMPI_Init_thread(int *argc, char ***argv, int wanted, int *got);
int MPI_Init_thread(int *argc, char ***argv, int wanted, int *got);

int MPI_Init_thread(int *argc, char ***argv, int wanted, int *got)
{
    if (strcmp(getenv("OMPI_COMM_WORLD_RANK"), getenv("HALT")) == 0)
        (void)raise(SIGSTOP);
    return PMPI_Init_thread(argc, argv, wanted, got);
}
