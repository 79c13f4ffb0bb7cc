/* clock.c - elapsed time and the time of day.  See d9d/base/thread.h. */
#include <time.h>

#include "d9d/base/thread.h"

int64_t d9d_clock_ns(void)
{
    struct timespec t = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void d9d_clock_iso(char out[24])
{
    struct timespec t = {0};
    struct tm tm = {0};

    (void)clock_gettime(CLOCK_REALTIME, &t);
    if (gmtime_r(&t.tv_sec, &tm) == NULL || strftime(out, 24, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
        out[0] = '\0';
}
