/* stale_nfs_preload.c - LD_PRELOAD library: NFS with a negative lookup cache.
 *
 * Like NFS for half a minute and more: a name that was missing once stays missing, whatever other
 * hosts have created, until its directory is opened. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NAMES = 256, LENGTH = 512 };

static char missing[NAMES][LENGTH];
static int n;

static int find(const char *path, size_t len)
{
    for (int i = 0; i < n; i++)
        if (strlen(missing[i]) == len && strncmp(missing[i], path, len) == 0)
            return i;
    return -1;
}

/* Is the path, or a directory above it, in the negative cache? */
static int is_stale(const char *path)
{
    for (size_t len = strlen(path); len > 0; len--)
        if ((path[len] == '\0' || path[len] == '/') && find(path, len) >= 0)
            return 1;
    return 0;
}

/* The first missing component of a relative path. */
static void remember(const char *path)
{
    char part[LENGTH] = "";

    for (size_t len = 1; path[0] != '/' && path[len - 1] != '\0' && len < LENGTH; len++) {
        if (path[len] != '\0' && path[len] != '/')
            continue;
        memcpy(part, path, len);
        part[len] = '\0';
        if (syscall(SYS_faccessat, AT_FDCWD, part, F_OK) == 0)
            continue;
        if (n < NAMES && find(part, len) < 0)
            memcpy(missing[n++], part, len + 1);
        return;
    }
}

/* Opening a directory drops its entries from the cache. */
static void forget(const char *dir)
{
    for (int i = n; i-- > 0;) {
        const char *slash = strrchr(missing[i], '/');
        const size_t len = slash != NULL ? (size_t)(slash - missing[i]) : 0;

        if (slash == NULL ? strcmp(dir, ".") == 0
                          : strlen(dir) == len && strncmp(dir, missing[i], len) == 0)
            memcpy(missing[i], missing[--n], LENGTH);
    }
}

static int absent(void)
{
    errno = ENOENT;
    return -1;
}

int open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    va_list ap;
    int fd;

    va_start(ap, flags);
    if ((flags & O_CREAT) != 0)
        mode = va_arg(ap, mode_t);
    va_end(ap);
    if ((flags & O_CREAT) == 0 && is_stale(path))
        return absent();
    fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    if (fd < 0 && errno == ENOENT) {
        remember(path);
        errno = ENOENT;
    } else if (fd >= 0 && (flags & O_DIRECTORY) != 0) {
        forget(path);
    }
    return fd;
}

int stat(const char *path, struct stat *out)
{
    const int rc = is_stale(path) ? absent() : fstatat(AT_FDCWD, path, out, 0);

    if (rc != 0 && errno == ENOENT) {
        remember(path);
        errno = ENOENT;
    }
    return rc;
}
