/* file.c - one file, written once or read by ranges; copies.  See d9d/base/fs.h. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs_private.h"
#include "d9d/base/fs.h"

enum { COPY_BLOCK = 1 << 20 };

/* The message for open()'s errno: links that are not followed and sockets have misleading ones. */
static d9d_status fail_open(const char *path, int flags, const char *what)
{
    const int why = errno;
    struct stat s;

    if (why == ELOOP && (flags & O_NOFOLLOW) != 0)
        return D9D_FAIL(D9D_EPATH, "%s: is a link, must be a file", path);
    if (why == ENXIO && stat(path, &s) == 0 && S_ISSOCK(s.st_mode))
        return d9di_fs_check_type(path, s.st_mode);
    errno = why;
    return D9DI_FAIL_ERRNO(path, what);
}

static d9d_status open_file(const char *path, int flags, const char *what, d9d_file *out)
{
    d9d_file f = {.fd = -1, .path = strdup(path)};

    if (f.path == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for its name", path);
    do
        f.fd = open(path, flags | O_CLOEXEC, 0666);
    while (f.fd < 0 && errno == EINTR);
    if (f.fd < 0) {
        const d9d_status st = fail_open(path, flags, what);

        d9d_file_release(&f);
        return st;
    }
    *out = f;
    return D9D_OK;
}

d9d_status d9d_file_create(const char *path, d9d_file *out)
{
    return open_file(path, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW, "cannot create", out);
}

d9d_status d9d_file_create_new(const char *path, d9d_file *out)
{
    return open_file(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, "cannot create", out);
}

d9d_status d9d_file_open_stream(const char *path, d9d_file *out)
{
    return open_file(path, O_RDONLY, "cannot open", out);
}

/* Does not block on a pipe without a writer. */
static d9d_status open_regular(const char *path, int flags, d9d_file *out, uint64_t *bytes)
{
    struct stat s;
    d9d_file f = {.fd = -1};
    d9d_status st;

    D9D_TRY(open_file(path, O_RDONLY | O_NONBLOCK | flags, "cannot open", &f));
    if (fstat(f.fd, &s) != 0)
        st = D9DI_FAIL_ERRNO(path, "cannot find its size");
    else
        st = d9di_fs_check_type(path, s.st_mode);
    if (st != D9D_OK) {
        d9d_file_release(&f);
        return st;
    }
    *out = f;
    *bytes = (uint64_t)s.st_size;
    return D9D_OK;
}

d9d_status d9d_file_open(const char *path, d9d_file *out)
{
    uint64_t bytes;

    return open_regular(path, 0, out, &bytes);
}

d9d_status d9d_file_open_regular(const char *path, d9d_file *out, uint64_t *bytes)
{
    return open_regular(path, O_NOFOLLOW, out, bytes);
}

d9d_status d9d_file_open_rw(const char *path, d9d_file *out)
{
    return open_file(path, O_RDWR | O_CREAT | O_NOFOLLOW, "cannot open", out);
}

static d9d_status check_own(const d9d_file *f)
{
    struct stat s;

    if (fstat(f->fd, &s) != 0)
        return D9DI_FAIL_ERRNO(f->path, "cannot find whose it is");
    if (!S_ISREG(s.st_mode))
        return D9D_FAIL(D9D_EPATH, "%s: is not a regular file", f->path);
    if (s.st_uid != geteuid())
        return D9D_FAIL(D9D_EPATH, "%s: belongs to user %lu, this is user %lu", f->path,
                        (unsigned long)s.st_uid, (unsigned long)geteuid());
    return D9D_OK;
}

d9d_status d9d_file_open_rw_owned(const char *path, d9d_file *out)
{
    struct stat s;
    d9d_file f;
    d9d_status st;

    if (lstat(path, &s) == 0 && S_ISLNK(s.st_mode))
        return D9D_FAIL(D9D_EPATH, "%s: is a symbolic link, which is not followed", path);
    D9D_TRY(open_file(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, "cannot open", &f));
    st = check_own(&f);
    if (st != D9D_OK)
        d9d_file_release(&f);
    else
        *out = f;
    return st;
}

d9d_status d9d_file_lock(const d9d_file *f)
{
    int rc;

    do
        rc = flock(f->fd, LOCK_EX | LOCK_NB);
    while (rc != 0 && errno == EINTR);
    if (rc != 0 && errno == EWOULDBLOCK)
        return D9D_FAIL(D9D_EIO,
                        "%s: another process is writing it; wait for its end, or name another",
                        f->path);
    return D9D_OK;
}

d9d_status d9d_file_open_locked(const char *path, d9d_file *out)
{
    d9d_file f = {.fd = -1};
    d9d_status st = d9d_file_open_rw(path, &f);

    if (st == D9D_OK)
        st = d9d_file_lock(&f);
    if (st == D9D_OK)
        *out = f;
    else
        d9d_file_release(&f);
    return st;
}

d9d_status d9d_file_resize(d9d_file *f, uint64_t n)
{
    struct stat s;

    if (fstat(f->fd, &s) != 0)
        return D9DI_FAIL_ERRNO(f->path, "cannot find its size");
    if ((uint64_t)s.st_size != n && ftruncate(f->fd, (off_t)n) != 0)
        return D9D_FAIL(d9di_status_from_errno(errno),
                        "%s: cannot make it %" PRIu64 " bytes long: %m", f->path, n);
    return D9D_OK;
}

d9d_status d9d_file_truncate(d9d_file *f, uint64_t at)
{
    struct stat s;

    if (fstat(f->fd, &s) != 0)
        return D9DI_FAIL_ERRNO(f->path, "cannot find its size");
    if ((uint64_t)s.st_size < at)
        return D9D_FAIL(D9D_EFORMAT, "%s: has %" PRIu64 " bytes, must have %" PRIu64, f->path,
                        (uint64_t)s.st_size, at);
    if (ftruncate(f->fd, (off_t)at) != 0 || lseek(f->fd, (off_t)at, SEEK_SET) < 0)
        return D9DI_FAIL_ERRNO(f->path, "cannot cut the file");
    f->offset = at;
    return D9D_OK;
}

d9d_status d9d_file_open_append(const char *path, uint64_t at, d9d_file *out)
{
    d9d_file f;
    d9d_status st;

    D9D_TRY(open_file(path, O_RDWR | O_CREAT | O_NOFOLLOW, "cannot open", &f));
    st = d9d_file_truncate(&f, at);
    if (st != D9D_OK)
        d9d_file_release(&f);
    else
        *out = f;
    return st;
}

/* One write(2) or pwrite(2), repeated after a signal. */
static ssize_t write_some(int fd, const void *p, size_t n, const uint64_t *at)
{
    ssize_t put;

    do
        put = at != NULL ? pwrite(fd, p, n, (off_t)*at) : write(fd, p, n);
    while (put < 0 && errno == EINTR);
    if (put == 0) {
        errno = ENOSPC;
        put = -1;
    }
    return put;
}

/* Write all n bytes, at `at` if `seek`, else at the file's position; `at` is the offset in the
 * message.  *done is how many were written. */
static d9d_status write_all(const d9d_file *f, const void *p, size_t n, uint64_t at, bool seek,
                            size_t *done)
{
    const char *bytes = p;

    for (*done = 0; *done < n;) {
        const uint64_t here = at + *done;
        const ssize_t put = write_some(f->fd, bytes + *done, n - *done, seek ? &here : NULL);

        if (put < 0)
            return D9D_FAIL(d9di_status_from_errno(errno),
                            "%s: cannot write %zu bytes at %" PRIu64 ": %m", f->path, n - *done,
                            here);
        *done += (size_t)put;
    }
    return D9D_OK;
}

/* Offsets of files are signed. */
static d9d_status check_range(const d9d_file *f, size_t n, uint64_t at)
{
    uint64_t end;

    if (!d9d_checked_add_u64(at, n, &end) || end > INT64_MAX)
        return D9D_FAIL(D9D_EINVAL, "%s: %zu bytes at %" PRIu64 " are beyond any file's end",
                        f->path, n, at);
    return D9D_OK;
}

d9d_status d9d_file_write(d9d_file *f, const void *p, size_t n)
{
    size_t done;
    d9d_status st;

    D9D_TRY(check_range(f, n, f->offset));
    st = write_all(f, p, n, f->offset, false, &done);
    f->offset += done;
    return st;
}

d9d_status d9d_file_write_at(d9d_file *f, const void *p, size_t n, uint64_t at)
{
    size_t done;

    D9D_TRY(check_range(f, n, at));
    return write_all(f, p, n, at, true, &done);
}

d9d_status d9d_file_read_at(const d9d_file *f, void *p, size_t n, uint64_t at)
{
    char *bytes = p;
    size_t done = 0;

    D9D_TRY(check_range(f, n, at));
    while (done < n) {
        const ssize_t got = pread(f->fd, bytes + done, n - done, (off_t)(at + done));

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return D9D_FAIL(d9di_status_from_errno(errno),
                            "%s: cannot read %zu bytes at %" PRIu64 ": %m", f->path, n - done,
                            at + done);
        if (got == 0)
            return D9D_FAIL(D9D_EFORMAT,
                            "%s: needs %zu bytes at %" PRIu64 ", the file ends after %zu of them",
                            f->path, n, at, done);
        done += (size_t)got;
    }
    return D9D_OK;
}

d9d_status d9d_file_sync(d9d_file *f)
{
    return d9di_fs_fsync(f->fd, f->path);
}

d9d_status d9d_file_close(d9d_file *f)
{
    d9d_status st = D9D_OK;

    if (f->fd >= 0 && f->path != NULL && close(f->fd) != 0 && errno != EINTR)
        st = D9DI_FAIL_ERRNO(f->path, "cannot close");
    f->fd = -1;
    d9d_file_release(f);
    return st;
}

void d9d_file_release(d9d_file *f)
{
    if (f->fd >= 0 && f->path != NULL)
        (void)close(f->fd);
    free(f->path);
    f->fd = -1;
    f->path = NULL;
}

/* --- copies ------------------------------------------------------------- */

/* Copy in the kernel, from the positions of both files on: all of it, or nothing if the file
 * systems cannot. */
static void copy_in_kernel(const d9d_file *src, d9d_file *dst)
{
    for (;;) {
        const ssize_t put = copy_file_range(src->fd, NULL, dst->fd, NULL, (size_t)1 << 30, 0);

        if (put > 0)
            dst->offset += (uint64_t)put;
        else if (put == 0 || errno != EINTR)
            return;
    }
}

/* Copy the rest through user memory; this also finds the error that stopped the kernel. */
static d9d_status copy_in_userspace(const d9d_file *src, d9d_file *dst)
{
    char *block = malloc(COPY_BLOCK);
    d9d_status st = D9D_OK;
    ssize_t got;

    if (block == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: cannot allocate %d bytes to copy it", src->path,
                        COPY_BLOCK);
    while ((got = read(src->fd, block, COPY_BLOCK)) != 0) {
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            st = D9D_FAIL(d9di_status_from_errno(errno), "%s: cannot read at %" PRIu64 ": %m",
                          src->path, dst->offset);
            goto out;
        }
        D9D_TRY_OR(st, d9d_file_write(dst, block, (size_t)got), out);
    }
out:
    free(block);
    return st;
}

d9d_status d9d_fs_copy(const char *src, const char *dst)
{
    d9d_file from = {.fd = -1}, to = {.fd = -1};
    bool made = false;
    d9d_status st;

    D9D_TRY_OR(st, d9d_file_open(src, &from), out);
    D9D_TRY_OR(st, open_file(dst, O_WRONLY | O_CREAT | O_EXCL, "cannot create", &to), out);
    made = true;
    copy_in_kernel(&from, &to);
    D9D_TRY_OR(st, copy_in_userspace(&from, &to), out);
    D9D_TRY_OR(st, d9d_file_close(&to), out);
out:
    if (st != D9D_OK && made)
        (void)unlink(dst);
    d9d_file_release(&to);
    d9d_file_release(&from);
    return st;
}
