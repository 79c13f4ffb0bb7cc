/* direct_file.c - see direct_file.h. */
#include "ckpt/dir/direct_file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

d9d_status d9di_direct_file_open(const char *path, d9di_direct_file *out)
{
    int fd;

    D9D_TRY(d9d_file_open_rw(path, &out->file));
    fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
    out->direct = fd < 0 ? 0 : fd + 1;
    return D9D_OK;
}

/* Bytes of the whole blocks at the start of a write. */
static size_t direct_bytes(const d9di_direct_file *f, size_t n)
{
    return f->direct > 0 ? n - n % D9DI_DIRECT_FILE_BLOCK : 0;
}

/* Writes as much as possible with O_DIRECT and the rest through the page cache, which also reports
 * the errors. */
d9d_status d9di_direct_file_write(d9di_direct_file *f, const void *p, size_t n, uint64_t at)
{
    const char *bytes = p;
    size_t done = 0;
    ssize_t put;

    while (done < direct_bytes(f, n)) {
        put = pwrite(f->direct - 1, bytes + done, direct_bytes(f, n) - done, (off_t)(at + done));
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0 || put % D9DI_DIRECT_FILE_BLOCK != 0)
            break;
        done += (size_t)put;
    }
    if (done == n)
        return D9D_OK;
    D9D_TRY(d9d_file_write_at(&f->file, bytes + done, n - done, at + done));
    (void)sync_file_range(f->file.fd, (off_t)(at + done), (off_t)(n - done), SYNC_FILE_RANGE_WRITE);
    return D9D_OK;
}

d9d_status d9di_direct_file_read(const d9di_direct_file *f, void *p, size_t n, uint64_t at)
{
    char *bytes = p;
    size_t done = 0;
    ssize_t got;

    while (done < direct_bytes(f, n)) {
        got = pread(f->direct - 1, bytes + done, direct_bytes(f, n) - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0 || got % D9DI_DIRECT_FILE_BLOCK != 0)
            break;
        done += (size_t)got;
    }
    return done == n ? D9D_OK : d9d_file_read_at(&f->file, bytes + done, n - done, at + done);
}

d9d_status d9di_direct_file_close(d9di_direct_file *f)
{
    const int fd = f->direct - 1;

    f->direct = 0;
    if (fd >= 0 && close(fd) != 0 && errno != EINTR)
        return D9D_FAIL(D9D_EIO, "%s: cannot close: %m", f->file.path);
    return d9d_file_close(&f->file);
}

void d9di_direct_file_release(d9di_direct_file *f)
{
    if (f->direct > 0)
        (void)close(f->direct - 1);
    f->direct = 0;
    d9d_file_release(&f->file);
}
