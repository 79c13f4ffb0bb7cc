/* job_faults_preload.c - LD_PRELOAD library for job_faults: one fault of one rank, at a call
 * that the test chooses.
 *
 *     FAULT="KIND RANK CALL SEED" FAULT_LOG=file
 *
 *     kill      the rank is killed
 *     stop      it stops, as a host does that hangs
 *     pause     it stands still for 0.3 s
 *     link      messages that it sends from then on do not arrive
 *     message   one bit of a message is another one on arrival; SEED chooses it
 *     sent      it is killed while a local checkpoint is sent
 *     frozen    it stops then
 *     bit       one bit of a local checkpoint is another one on arrival
 *     slow      the next writes to the run's checkpoints take 20 ms longer
 *     full      they fail with ENOSPC
 *
 * CALL counts the messages that the rank sends; for the last two, its writes to checkpoints; for
 * the three before, what its thread of local checkpoints sends. FAULT_LOG gets a line when the
 * fault happens.  FAULT="count RANK 0 0" gets the numbers of messages and of writes at the end. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SLOW_WRITES = 50, SLOW_MS = 20, PAUSE_MS = 300, NO_TAG = 40000 /* that nobody waits for */ };

static struct fault {
    char kind[16];
    long call, seed;
    long sends, writes, local;
    int is_here;
} fault;

static void say(const char *line)
{
    const char *log = getenv("FAULT_LOG");
    const long fd =
        log != NULL ? syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0644) : -1;

    if (fd < 0)
        return;
    (void)syscall(SYS_write, fd, line, strlen(line));
    (void)syscall(SYS_close, fd);
}

static void happen(void)
{
    char line[64];

    (void)snprintf(line, sizeof(line), "%s at %ld\n", fault.kind, fault.call);
    say(line);
}

__attribute__((constructor)) static void begin(void)
{
    const char *given = getenv("FAULT"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    long at;

    fault.is_here =
        given != NULL && rank != NULL &&
        sscanf(given, "%15s %ld %ld %ld", fault.kind, &at, &fault.call, &fault.seed) == 4 &&
        at == atol(rank);
}

__attribute__((destructor)) static void end(void)
{
    char line[64];

    (void)snprintf(line, sizeof(line), "sends %ld writes %ld\n", fault.sends, fault.writes);
    if (fault.is_here && fault.sends > 0 && strcmp(fault.kind, "count") == 0)
        say(line);
}

static int is(const char *kind)
{
    return strcmp(fault.kind, kind) == 0;
}

/* The fault is in what the thread of local checkpoints sends. */
static int is_local(void)
{
    return fault.is_here && (is("sent") || is("frozen") || is("bit"));
}

static void nap(long ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    while (nanosleep(&t, &t) != 0)
        ;
}

/* --- messages --------------------------------------------------------------------------------- */

static const void *flipped(const void *data, int n)
{
    unsigned char *copy = malloc((size_t)n); /* stays until the process ends */
    const size_t bit = (size_t)fault.seed % ((size_t)n * 8);

    if (copy == NULL)
        abort();
    memcpy(copy, data, (size_t)n);
    copy[bit / 8] ^= (unsigned char)(1u << bit % 8);
    return copy;
}

int MPI_Isend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *out)
{
    int (*next)(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
    void *found = dlsym(RTLD_NEXT, "MPI_Isend");
    long call;

    memcpy(&next, &found, sizeof(next));
    if (!fault.is_here)
        return next(data, n, type, to, tag, comm, out);
    call = ++fault.sends;
    if (call == fault.call && !is("slow") && !is("full") && !is("count") && !is_local())
        happen();
    if (call == fault.call && is("kill"))
        (void)kill(getpid(), SIGKILL);
    if (call == fault.call && is("stop"))
        (void)kill(getpid(), SIGSTOP);
    if (call == fault.call && is("pause"))
        nap(PAUSE_MS);
    if (call == fault.call && is("message") && n > 0)
        data = flipped(data, n);
    if (call >= fault.call && is("link"))
        tag += NO_TAG;
    return next(data, n, type, to, tag, comm, out);
}

/* --- local checkpoints ------------------------------------------------------------------------ */

/* A few bytes at a time, so that there are many moments, also within a header. */
ssize_t send(int fd, const void *data, size_t n, int flags)
{
    enum { CHUNK = 4096 };
    const int flag = MSG_NOSIGNAL | MSG_DONTWAIT;

    if (!is_local() || flags != flag || n == 0)
        return syscall(SYS_sendto, fd, data, n, flags, NULL, 0);
    n = n < CHUNK ? n : CHUNK;
    if (++fault.local != fault.call)
        return syscall(SYS_sendto, fd, data, n, flags, NULL, 0);
    happen();
    if (is("bit"))
        return syscall(SYS_sendto, fd, flipped(data, (int)n), n, flags, NULL, 0);
    (void)syscall(SYS_sendto, fd, data, n / 2, flags, NULL, 0);
    (void)kill(getpid(), is("sent") ? SIGKILL : SIGSTOP);
    return (ssize_t)(n / 2);
}

/* --- files ------------------------------------------------------------------------------------ */

/* True if the write is to fail. */
static int spoil(int fd)
{
    char link[64], path[4096];
    ssize_t len;
    long call;

    if (!fault.is_here || !(is("slow") || is("full") || is("count")))
        return 0;
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    len = readlink(link, path, sizeof(path) - 1);
    path[len > 0 ? len : 0] = '\0';
    if (strstr(path, "/run/checkpoints/") == NULL)
        return 0;
    call = ++fault.writes;
    if (call == fault.call && !is("count"))
        happen();
    if (call >= fault.call && call < fault.call + SLOW_WRITES && is("slow"))
        nap(SLOW_MS);
    errno = ENOSPC;
    return call >= fault.call && is("full");
}

ssize_t write(int fd, const void *p, size_t n)
{
    return spoil(fd) ? -1 : syscall(SYS_write, fd, p, n);
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
    return spoil(fd) ? -1 : syscall(SYS_pwrite64, fd, p, n, at);
}
