/* partial_dir.c - ownership of an unfinished directory: its mark, which is its lock.  See
 * d9d/base/fs.h.
 *
 *     DST.partial/.d9d-partial      d9d.partial.v1
 *                                   HOST PID        of the process that writes, or wrote last
 *
 * The directory is opened without following a link, and the mark relative to its descriptor. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs_private.h"

#define MAGIC "d9d.partial.v1\n"

int d9di_partial_open_dir(const char *dir)
{
    return open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* True for a mark: by its content, or empty, as it is before that is written. */
static bool is_mark(int fd)
{
    char text[sizeof(MAGIC) - 1];
    struct stat s;
    ssize_t got;

    if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode))
        return false;
    got = pread(fd, text, sizeof(text), 0);
    return got == 0 || (got == (ssize_t)sizeof(text) && memcmp(text, MAGIC, sizeof(text)) == 0);
}

static int open_mark(int dir, int flags)
{
    return openat(dir, D9D_PARTIAL_MARK, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags,
                  0666);
}

bool d9di_partial_is_marked(const char *dir)
{
    const int d = d9di_partial_open_dir(dir), fd = d >= 0 ? open_mark(d, 0) : -1;
    const bool is = fd >= 0 && is_mark(fd);

    if (fd >= 0)
        (void)close(fd);
    if (d >= 0)
        (void)close(d);
    return is;
}

char *d9di_partial_mark_path(const char *dir)
{
    char *path = NULL;

    return asprintf(&path, "%s/" D9D_PARTIAL_MARK, dir) < 0 ? NULL : path;
}

static d9d_status write_mark(int fd, const char *dir)
{
    d9d_file f = {.fd = fd, .path = d9di_partial_mark_path(dir)};
    char host[256] = "", text[sizeof(MAGIC) + sizeof(host) + 32];
    d9d_status st;
    int n;

    if (f.path == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for the name of its mark", dir);
    (void)gethostname(host, sizeof(host) - 1);
    n = snprintf(text, sizeof(text), MAGIC "%s %ld\n", host, (long)getpid());
    D9D_TRY_OR(st, d9d_file_write_at(&f, text, (size_t)n, 0), out);
    st = d9d_file_resize(&f, (uint64_t)n);
out:
    free(f.path);
    return st;
}

d9d_status d9di_partial_mark(const char *path)
{
    const int d = d9di_partial_open_dir(path), m = d >= 0 ? open_mark(d, O_CREAT) : -1;
    d9d_status st;

    if (m < 0)
        st = D9DI_FAIL_ERRNO(path, "cannot mark the directory");
    else
        st = write_mark(m, path);
    if (m >= 0)
        (void)close(m);
    if (d >= 0)
        (void)close(d);
    return st;
}

static d9d_status fail_busy(const char *dir)
{
    return D9D_FAIL(D9D_EIO, "%s: another process is writing it; wait for its end, or name another",
                    dir);
}

/* The directory may have been renamed to its final name between finding and locking it. */
static bool is_same_inode(int fd, const char *path)
{
    struct stat a, b;

    return fstat(fd, &a) == 0 && lstat(path, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

static bool is_locked_elsewhere(int fd)
{
    return flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

/* Lock both: the mark's lock reaches other hosts if the file system's locks do; the directory's is
 * what earlier versions take. */
static d9d_status lock_dir_and_mark(int dir, int mark, const char *path)
{
    if (is_locked_elsewhere(dir) || is_locked_elsewhere(mark) || !is_same_inode(dir, path))
        return fail_busy(path);
    return write_mark(mark, path);
}

d9d_status d9di_partial_lock(const char *path, int *dir, int *mark)
{
    const int d = d9di_partial_open_dir(path), m = d >= 0 ? open_mark(d, O_CREAT) : -1;
    d9d_status st;

    if (d < 0) {
        st = D9DI_FAIL_ERRNO(path, "cannot open the directory");
    } else if (m < 0 || !is_mark(m)) {
        st = D9D_FAIL(m < 0 ? d9di_status_from_errno(errno) : D9D_EPATH,
                      "%s/" D9D_PARTIAL_MARK ": %s", path,
                      m < 0 ? strerror(errno) : "is no mark of an unfinished directory");
    } else {
        st = lock_dir_and_mark(d, m, path);
    }
    if (st == D9D_OK) {
        *dir = d;
        *mark = m;
        return D9D_OK;
    }
    if (m >= 0)
        (void)close(m);
    if (d >= 0)
        (void)close(d);
    return st;
}

d9d_status d9di_partial_check(const char *path, const d9d_outdir_kind *kind)
{
    struct stat s;

    if (lstat(path, &s) != 0)
        return errno == ENOENT ? D9D_OK : D9DI_FAIL_ERRNO(path, "cannot look at it");
    if (!S_ISDIR(s.st_mode))
        return D9D_FAIL(D9D_ECONFIG, "%s: is a %s; the work is done in a directory of that name",
                        path, S_ISLNK(s.st_mode) ? "link" : "file");
    if (d9d_fs_is_empty(path) || d9di_partial_is_marked(path) ||
        (kind != NULL && kind->is_partial(path)))
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG,
                    "%s: is there already and is no unfinished %s of this suite, which would be "
                    "made there: move it away",
                    path, kind != NULL ? kind->label : "directory");
}
