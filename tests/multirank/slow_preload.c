/* slow_preload.c - LD_PRELOAD library: a file system that is slow for chosen files.
 *
 *     SLOW="write:rank-1.bin:3000,open:metrics.jsonl:60000" SLOW_WHEN=file
 *
 * Operations (open, write, stat, sync) on files whose names contain the second word take the given
 * milliseconds longer, once SLOW_WHEN exists; with 0 they block until SLOW_WHEN is removed.  Mapped
 * memory of such a file is written back as on file systems with stable pages: a thread that stores
 * into it waits.  SLOW_LOG: a file that gets one line per waiting thread, with "main" or "other"
 * and the path. */
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MAPS = 64 };

static struct map {
    char *at;
    size_t n;
    char path[256];
} maps[MAPS];
static int n_maps;

enum { NONE = -1 };

static void nap(long ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    while (nanosleep(&t, &t) != 0)
        ;
}

static int is_time(void)
{
    const char *when = getenv("SLOW_WHEN");

    return when == NULL || syscall(SYS_faccessat, AT_FDCWD, when, F_OK) == 0;
}

static void tell(const char *path)
{
    const char *log = getenv("SLOW_LOG");
    const long fd =
        log != NULL ? syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0644) : -1;
    char line[512];
    int n = snprintf(line, sizeof(line), "%s %.400s\n",
                     syscall(SYS_gettid) == getpid() ? "main" : "other", path);

    if (fd >= 0) {
        (void)syscall(SYS_write, fd, line, (size_t)n);
        (void)syscall(SYS_close, fd);
    }
}

static void wait_out(long ms, const char *path)
{
    if (ms == NONE)
        return;
    tell(path);
    if (ms > 0)
        nap(ms);
    else
        while (is_time())
            nap(5);
}

/* Milliseconds from the rules, or NONE. */
static long delay_of(const char *what, const char *path)
{
    const char *rules = getenv("SLOW");

    if (rules == NULL || path == NULL || !is_time())
        return NONE;
    for (const char *p = rules; p != NULL; p = strchr(p, ',') != NULL ? strchr(p, ',') + 1 : NULL) {
        char op[16], name[64];
        long ms;

        if (sscanf(p, "%15[^:]:%63[^:]:%ld", op, name, &ms) == 3 && strcmp(op, what) == 0 &&
            strstr(path, name) != NULL)
            return ms;
    }
    return NONE;
}

static const char *path_of(int fd, char *buf, size_t n)
{
    char link[64];
    ssize_t len;

    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    len = readlink(link, buf, n - 1);
    buf[len > 0 ? len : 0] = '\0';
    return buf;
}

static void delay_fd(const char *what, int fd)
{
    char path[4096];

    wait_out(delay_of(what, path_of(fd, path, sizeof(path))), path);
}

static int open_slowly(int dir, const char *path, int flags, mode_t mode)
{
    wait_out(delay_of("open", path), path);
    return (int)syscall(SYS_openat, dir, path, flags, mode);
}

#define MODE_OF(flags, mode)                                                                       \
    do {                                                                                           \
        va_list ap;                                                                                \
        va_start(ap, flags);                                                                       \
        mode = ((flags)&O_CREAT) != 0 ? va_arg(ap, mode_t) : 0;                                    \
        va_end(ap);                                                                                \
    } while (0)

int open(const char *path, int flags, ...)
{
    mode_t mode;

    MODE_OF(flags, mode);
    return open_slowly(AT_FDCWD, path, flags, mode);
}

int openat(int dir, const char *path, int flags, ...)
{
    mode_t mode;

    MODE_OF(flags, mode);
    return open_slowly(dir, path, flags, mode);
}

ssize_t write(int fd, const void *p, size_t n)
{
    delay_fd("write", fd);
    return syscall(SYS_write, fd, p, n);
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
    delay_fd("write", fd);
    return syscall(SYS_pwrite64, fd, p, n, at);
}

int fsync(int fd)
{
    delay_fd("sync", fd);
    return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    delay_fd("sync", fd);
    return (int)syscall(SYS_fdatasync, fd);
}

int stat(const char *path, struct stat *out)
{
    wait_out(delay_of("stat", path), path);
    return fstatat(AT_FDCWD, path, out, 0);
}

/* --- mapped memory of a file ------------------------------------------------------------------ */

/* SIGSEGV handler: a thread stores into a page that is being written back. */
static void wait_for_it(int number, siginfo_t *info, void *context)
{
    (void)context;
    for (int i = 0; i < n_maps; i++)
        if ((char *)info->si_addr >= maps[i].at && (char *)info->si_addr < maps[i].at + maps[i].n) {
            tell(maps[i].path);
            nap(5);
            return; /* and retries the store */
        }
    (void)signal(number, SIG_DFL);
}

void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t from)
{
    void *p = (void *)syscall(SYS_mmap, at, n, prot, flags, fd, from);
    char path[4096];

    if (p != MAP_FAILED && fd >= 0 && (flags & MAP_SHARED) != 0 && (prot & PROT_WRITE) != 0 &&
        n_maps < MAPS) {
        struct map *m = &maps[n_maps];

        m->at = p;
        m->n = n;
        (void)snprintf(m->path, sizeof(m->path), "%.255s", path_of(fd, path, sizeof(path)));
        n_maps++;
    }
    return p;
}

int msync(void *p, size_t n, int flags)
{
    const struct sigaction action = {.sa_sigaction = wait_for_it, .sa_flags = SA_SIGINFO};
    const char *path = NULL;
    long ms = NONE;

    for (int i = 0; i < n_maps; i++)
        if ((char *)p == maps[i].at) {
            path = maps[i].path;
            ms = delay_of("write", path);
        }
    if (ms != NONE) {
        (void)sigaction(SIGSEGV, &action, NULL);
        (void)mprotect(p, n, PROT_READ);
        wait_out(ms, path);
        (void)mprotect(p, n, PROT_READ | PROT_WRITE);
    }
    return (int)syscall(SYS_msync, p, n, flags);
}
