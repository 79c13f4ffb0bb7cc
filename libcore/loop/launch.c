/* launch.c - see loop/launch.h. */
#include "loop/launch.h"

#include <stdlib.h>

d9d_status d9di_launch_checked(d9d_status st)
{
    return st == D9D_ENOTFOUND ? D9D_FAIL(D9D_ECONFIG, "%s", d9d_err_message()) : st;
}

int64_t d9di_launch_ranks(void)
{
    static const char *const counts[] = {"SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"};

    for (int i = 0; i < 2; i++) {
        const char *text = getenv(counts[i]);
        long n = text != NULL ? strtol(text, NULL, 10) : 0;

        if (n > 0)
            return n;
    }
    return 1;
}
