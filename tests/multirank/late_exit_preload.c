/* late_exit_preload.c - LD_PRELOAD library: the task $LAST_OUT exits a second later than the
 * others, like a rank whose device is slow to release its memory. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

__attribute__((destructor)) static void dawdle(void)
{
    const char *task = getenv("SLURM_PROCID"), *last = getenv("LAST_OUT");
    struct timespec left = {.tv_sec = 1};

    if (task != NULL && last != NULL && strcmp(task, last) == 0)
        while (nanosleep(&left, &left) != 0)
            ;
}
