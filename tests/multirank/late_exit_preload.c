/* late_exit_preload.c - before a program: the task of $LAST_OUT is a second later than the others
 * in leaving, as one is whose device takes long to give its memory back. */
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
