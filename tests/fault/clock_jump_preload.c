/* clock_jump_preload.c - LD_PRELOAD library: the host's clock jumps an hour ahead and an hour back.
 *
 *     JUMP_S=3           every JUMP_S seconds (default 3) the time of day is right, an hour ahead,
 *                        right, an hour behind, and so on; by CLOCK_MONOTONIC, so for all
 *                        processes of a host at the same moment
 *     JUMP_FILE=path     instead, the clock is ahead by the seconds that the file holds
 *
 * CLOCK_MONOTONIC and relative sleeps are unchanged.  Absolute waits end by the changed clock.
 * Times of files are right. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { HOUR_S = 3600, PERIOD_S = 3, SECOND_NS = 1000000000, LOOK_NS = 20000000 };

static int64_t clock_ns(clockid_t id)
{
    struct timespec t = {0};

    (void)syscall(SYS_clock_gettime, id, &t);
    return (int64_t)t.tv_sec * SECOND_NS + t.tv_nsec;
}

static int64_t from_file(const char *path)
{
    const int saved = errno, fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    char text[32] = "";

    if (fd >= 0) {
        (void)!syscall(SYS_read, fd, text, sizeof(text) - 1);
        (void)syscall(SYS_close, fd);
    }
    errno = saved;
    return strtoll(text, NULL, 10);
}

static int64_t ahead_s(void)
{
    static const int64_t by[] = {0, HOUR_S, 0, -HOUR_S};
    const char *path = getenv("JUMP_FILE"), *period = getenv("JUMP_S");
    const int64_t s = period != NULL && atoi(period) > 0 ? atoi(period) : PERIOD_S;

    if (path != NULL)
        return from_file(path);
    return by[clock_ns(CLOCK_MONOTONIC) / SECOND_NS / s % 4];
}

static int64_t time_of_day(void)
{
    return clock_ns(CLOCK_REALTIME) + ahead_s() * SECOND_NS;
}

/* --- reading the clock ------------------------------------------------------------------------ */

int clock_gettime(clockid_t id, struct timespec *t)
{
    const int rc = (int)syscall(SYS_clock_gettime, id, t);

    if (rc == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        t->tv_sec += (time_t)ahead_s();
    return rc;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    const int64_t now = time_of_day();

    (void)zone;
    t->tv_sec = (time_t)(now / SECOND_NS);
    t->tv_usec = (suseconds_t)(now % SECOND_NS / 1000);
    return 0;
}

time_t time(time_t *out)
{
    const time_t now = (time_t)(time_of_day() / SECOND_NS);

    if (out != NULL)
        *out = now;
    return now;
}

int timespec_get(struct timespec *t, int base)
{
    return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, t) == 0 ? base : 0;
}

/* --- absolute waits --------------------------------------------------------------------------- */

/* When to read the clock again, by CLOCK_MONOTONIC; whether the absolute time has passed. */
static bool look_at(const struct timespec *until, struct timespec *look)
{
    int64_t left = (int64_t)until->tv_sec * SECOND_NS + until->tv_nsec - time_of_day(), then;
    const bool last = left <= LOOK_NS;

    left = left < 0 ? 0 : last ? left : LOOK_NS;
    then = clock_ns(CLOCK_MONOTONIC) + left;
    *look = (struct timespec){.tv_sec = (time_t)(then / SECOND_NS), .tv_nsec = then % SECOND_NS};
    return last;
}

#define UNTIL(rc, late, until, wait)                                                               \
    do {                                                                                           \
        struct timespec look;                                                                      \
        bool last;                                                                                 \
        do {                                                                                       \
            last = look_at(until, &look);                                                          \
            rc = wait;                                                                             \
        } while (!last && (late));                                                                 \
    } while (0)

/* glibc stores the clock of a condition variable there. */
static bool is_monotonic(const pthread_cond_t *c)
{
    return (c->__data.__wrefs & 2) != 0;
}

int pthread_cond_timedwait(pthread_cond_t *restrict c, pthread_mutex_t *restrict m,
                           const struct timespec *restrict until)
{
    int rc;

    if (is_monotonic(c))
        return pthread_cond_clockwait(c, m, CLOCK_MONOTONIC, until);
    UNTIL(rc, rc == ETIMEDOUT, until, pthread_cond_clockwait(c, m, CLOCK_MONOTONIC, &look));
    return rc;
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict m, const struct timespec *restrict until)
{
    int rc;

    UNTIL(rc, rc == ETIMEDOUT, until, pthread_mutex_clocklock(m, CLOCK_MONOTONIC, &look));
    return rc;
}

int sem_timedwait(sem_t *restrict s, const struct timespec *restrict until)
{
    int rc;

    UNTIL(rc, rc != 0 && errno == ETIMEDOUT, until, sem_clockwait(s, CLOCK_MONOTONIC, &look));
    return rc;
}
