/* fs.c - names, directories and whole files.  See d9d/base/fs.h. */
#include "d9d/base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utf8proc.h>

#include "base/fs_private.h"

enum { MAX_NAME = 255, READ_BLOCK = 1 << 16 };

/* --- names -------------------------------------------------------------- */

static bool has_control(const char *name, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return true;
    return false;
}

static bool is_utf8(const char *name, size_t len)
{
    utf8proc_int32_t code;
    utf8proc_ssize_t step;

    for (size_t i = 0; i < len; i += (size_t)step) {
        step = utf8proc_iterate((const utf8proc_uint8_t *)name + i, (utf8proc_ssize_t)(len - i),
                                &code);
        if (step <= 0)
            return false;
    }
    return true;
}

d9d_status d9d_fs_check_name(const char *name, size_t len, const char *where)
{
    const bool dot = len > 0 && name[0] == '.' && (len == 1 || (len == 2 && name[1] == '.'));
    const struct {
        bool bad;
        const char *why;
    } rules[] = {
        {len == 0, "it is empty"},
        {len > MAX_NAME, "it is longer than 255 bytes"},
        {dot, "it names a directory"},
        {len > 0 && memchr(name, '/', len) != NULL, "it has a \"/\""},
        {has_control(name, len), "it has a control character"},
        {!is_utf8(name, len), "it is not UTF-8"},
    };

    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
        if (rules[i].bad)
            return D9D_FAIL(D9D_EFORMAT, "%s: \"%.*s\" is not a plain file name: %s", where,
                            len > MAX_NAME ? MAX_NAME : (int)len, name, rules[i].why);
    return D9D_OK;
}

char *d9d_fs_join(d9d_arena *a, const char *dir, const char *name)
{
    const size_t len = strlen(dir);

    return d9d_arena_printf(a, "%s%s%s", dir, len == 0 || dir[len - 1] == '/' ? "" : "/", name);
}

d9d_status d9di_fs_temp_path(const char *path, const char *tag, unsigned n, char **out)
{
    d9d_buf b = {0};

    D9D_TRY(d9d_buf_printf(&b, "%s.%s-%ld-%u", path, tag, (long)getpid(), n));
    *out = b.data;
    return D9D_OK;
}

d9d_status d9di_fs_parent(const char *path, char **out)
{
    const char *slash = strrchr(path, '/');
    d9d_buf b = {0};

    if (slash == NULL)
        D9D_TRY(d9d_buf_append(&b, ".", 1));
    else
        D9D_TRY(d9d_buf_append(&b, path, slash == path ? 1 : (size_t)(slash - path)));
    *out = b.data;
    return D9D_OK;
}

/* --- queries ------------------------------------------------------------------------- */

bool d9d_fs_exists(const char *path)
{
    struct stat s;

    return stat(path, &s) == 0;
}

bool d9d_fs_is_dir(const char *path)
{
    struct stat s;

    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

bool d9d_fs_is_empty(const char *path)
{
    struct stat s;
    const struct dirent *e;
    bool vacant = true;
    DIR *d;

    if (lstat(path, &s) != 0)
        return true; /* creating it will report the error */
    d = opendir(path);
    if (d == NULL)
        return false;
    errno = 0;
    while (vacant && (e = readdir(d)) != NULL)
        vacant = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
    vacant = vacant && errno == 0;
    (void)closedir(d);
    return vacant;
}

d9d_status d9di_fs_check_type(const char *path, mode_t mode)
{
    static const struct {
        mode_t type;
        const char *name;
    } others[] = {{S_IFDIR, "a directory"}, {S_IFIFO, "a pipe"}, {S_IFSOCK, "a socket"}};
    const char *is = "a device";

    if (S_ISREG(mode))
        return D9D_OK;
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if ((mode & S_IFMT) == others[i].type)
            is = others[i].name;
    return D9D_FAIL(D9D_EPATH, "%s: is %s, must be a file", path, is);
}

d9d_status d9d_fs_check_regular(const char *path)
{
    struct stat s;

    if (stat(path, &s) != 0)
        return D9DI_FAIL_ERRNO(path, "cannot open");
    return d9di_fs_check_type(path, s.st_mode);
}

bool d9d_fs_head_has(const char *dir, const char *name, const char *text)
{
    char head[4096 + 1];
    d9d_buf path = {0};
    struct stat s;
    ssize_t got = -1;
    int fd = -1;

    if (d9d_buf_printf(&path, "%s/%s", dir, name) == D9D_OK)
        fd = open(path.data, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &s) == 0 && S_ISREG(s.st_mode))
        got = pread(fd, head, sizeof(head) - 1, 0);
    if (fd >= 0)
        (void)close(fd);
    d9d_buf_release(&path);
    return got >= 0 && memmem(head, (size_t)got, text, strlen(text)) != NULL;
}

d9d_status d9d_fs_check_readable(const char *path)
{
    return access(path, R_OK) == 0 ? D9D_OK : D9DI_FAIL_ERRNO(path, "cannot open");
}

/* True for a dangling link. */
static bool is_dangling_link(const char *path)
{
    struct stat s;

    return lstat(path, &s) == 0 && !d9d_fs_exists(path);
}

static d9d_status fail_dangling_link(const char *path)
{
    return D9D_FAIL(D9D_EPATH, "%s: cannot create the directory: a link to nothing has its name",
                    path);
}

d9d_status d9d_fs_check_creatable(const char *path)
{
    char *above = NULL;
    d9d_status st = D9D_OK;

    if (is_dangling_link(path))
        return fail_dangling_link(path);

    if (d9d_fs_exists(path) || strcmp(path, ".") == 0) {
        if (!d9d_fs_is_dir(path))
            return D9D_FAIL(D9D_EPATH, "%s: is no directory", path);
        if (faccessat(AT_FDCWD, path, W_OK | X_OK, AT_EACCESS) != 0)
            return D9DI_FAIL_ERRNO(path, "cannot be written to");
        return D9D_OK;
    }
    D9D_TRY(d9di_fs_parent(path, &above));
    st = d9d_fs_check_creatable(above);
    free(above);
    return st;
}

d9d_status d9d_fs_size(const char *path, uint64_t *out)
{
    struct stat s;

    if (stat(path, &s) != 0)
        return D9DI_FAIL_ERRNO(path, "cannot find its size");
    *out = (uint64_t)s.st_size;
    return D9D_OK;
}

d9d_status d9d_fs_check_new(const char *path)
{
    char *parent = NULL;
    struct stat s;
    d9d_status st = D9D_OK;

    if (lstat(path, &s) == 0)
        return D9D_FAIL(D9D_ECONFIG, "%s: exists already%s; remove it or name another output", path,
                        d9d_fs_exists(path) ? "" : ", as a link to nothing");
    D9D_TRY(d9di_fs_parent(path, &parent));
    if (access(parent, W_OK | X_OK) != 0)
        st = D9DI_FAIL_ERRNO(path, "cannot be made");
    free(parent);
    return st;
}

/* --- directories -------------------------------------------------------- */

static d9d_status make_dir(const char *path)
{
    int err;

    if (mkdir(path, 0777) == 0)
        return D9D_OK;
    /* Some file systems answer EROFS or EACCES for a directory that exists. */
    err = errno;
    if (d9d_fs_is_dir(path))
        return D9D_OK;
    if (err == EEXIST && is_dangling_link(path))
        return fail_dangling_link(path);
    errno = err;
    return D9DI_FAIL_ERRNO(path, "cannot create the directory");
}

d9d_status d9d_fs_mkdirs(const char *path)
{
    d9d_buf b = {0};
    d9d_status st;

    if (*path == '\0')
        return D9D_FAIL(D9D_EINVAL, "cannot create a directory without a name");
    D9D_TRY(d9d_buf_append(&b, path, strlen(path)));
    for (size_t i = 1; i < b.len; i++) {
        if (b.data[i] != '/' || b.data[i - 1] == '/')
            continue;
        b.data[i] = '\0';
        D9D_TRY_OR(st, make_dir(b.data), out);
        b.data[i] = '/';
    }
    D9D_TRY_OR(st, make_dir(b.data), out);
out:
    d9d_buf_release(&b);
    return st;
}

d9d_status d9d_fs_make_parents(const char *path)
{
    char *parent = NULL;
    d9d_status st;

    D9D_TRY(d9di_fs_parent(path, &parent));
    st = d9d_fs_mkdirs(parent);
    free(parent);
    return st;
}

d9d_status d9di_fs_fsync(int fd, const char *path)
{
    int rc;

    do
        rc = fsync(fd);
    while (rc != 0 && errno == EINTR);
    if (rc != 0 && errno != EINVAL && errno != ENOTSUP)
        return D9DI_FAIL_ERRNO(path, "cannot sync");
    return D9D_OK;
}

d9d_status d9d_fs_sync_dir(const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    d9d_status st;

    if (fd < 0)
        return D9DI_FAIL_ERRNO(path, "cannot open the directory");
    st = d9di_fs_fsync(fd, path);
    (void)close(fd);
    return st;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

d9d_status d9di_fs_names(DIR *d, const char *path, d9d_arena *a, d9d_fs_names *out)
{
    D9D_VEC(char *) found = {0};
    const struct dirent *e;
    char **names = NULL;
    d9d_status st = D9D_OK;

    while (errno = 0, (e = readdir(d)) != NULL) {
        char *name;

        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        name = d9d_arena_strdup(a, e->d_name);
        if (name == NULL) {
            st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for %zu names", path, found.len + 1);
            goto out;
        }
        D9D_TRY_OR(st, D9D_VEC_PUSH(&found, name), out);
    }
    if (errno != 0) {
        st = D9DI_FAIL_ERRNO(path, "cannot list the directory");
        goto out;
    }
    names = d9d_arena_alloc(a, found.len * sizeof(*names));
    if (names == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for %zu names", path, found.len);
        goto out;
    }
    if (found.len > 0) {
        memcpy(names, found.data, found.len * sizeof(*names));
        qsort(names, found.len, sizeof(*names), compare_names);
    }
    *out = (d9d_fs_names){.name = names, .n = found.len};
out:
    D9D_VEC_RELEASE(&found);
    return st;
}

d9d_status d9d_fs_list(const char *dir, d9d_arena *a, d9d_fs_names *out)
{
    DIR *d = opendir(dir);
    d9d_status st;

    if (d == NULL)
        return D9DI_FAIL_ERRNO(dir, "cannot open the directory");
    st = d9di_fs_names(d, dir, a, out);
    (void)closedir(d);
    for (size_t i = 0; st == D9D_OK && i < out->n; i++)
        if (strcmp(out->name[i], D9D_PARTIAL_MARK) == 0) {
            out->n--;
            memmove(&out->name[i], &out->name[i + 1], (out->n - i) * sizeof(*out->name));
            break;
        }
    return st;
}

/* --- whole files -------------------------------------------------------- */

static d9d_status read_all(int fd, const char *path, uint64_t max, d9d_buf *b)
{
    for (;;) {
        ssize_t got;

        D9D_TRY(d9d_buf_reserve(b, READ_BLOCK));
        got = read(fd, b->data + b->len, b->cap - b->len - 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return D9DI_FAIL_ERRNO(path, "cannot read");
        if (got == 0)
            break;
        b->len += (size_t)got;
        if (b->len > max)
            return D9D_FAIL(D9D_EFORMAT,
                            "%s: has more than %" PRIu64 " bytes, the most that is read", path,
                            max);
    }
    b->data[b->len] = '\0';
    return D9D_OK;
}

/* A name of this process's streams may refer to any kind of file. */
static bool is_stream(const char *path)
{
    return strncmp(path, "/dev/", 5) == 0 || strncmp(path, "/proc/", 6) == 0;
}

/* Open without blocking on a pipe without a writer; then read in blocking mode. */
static d9d_status open_to_read(const char *path, int *fd, struct stat *s)
{
    int opened;
    d9d_status st;

    do
        opened = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    while (opened < 0 && errno == EINTR);
    if (opened < 0)
        return D9DI_FAIL_ERRNO(path, "cannot open");
    if (fstat(opened, s) != 0)
        st = D9DI_FAIL_ERRNO(path, "cannot find its size");
    else
        st =
            is_stream(path) && !S_ISDIR(s->st_mode) ? D9D_OK : d9di_fs_check_type(path, s->st_mode);
    if (st == D9D_OK && fcntl(opened, F_SETFL, 0) != 0)
        st = D9DI_FAIL_ERRNO(path, "cannot read");
    if (st != D9D_OK)
        (void)close(opened);
    else
        *fd = opened;
    return st;
}

d9d_status d9d_fs_read(const char *path, uint64_t max, d9d_buf *out)
{
    d9d_buf b = {0};
    struct stat s;
    int fd = -1;
    d9d_status st;

    D9D_TRY(open_to_read(path, &fd, &s));
    if (S_ISREG(s.st_mode) && (uint64_t)s.st_size > max) {
        st = D9D_FAIL(D9D_EFORMAT, "%s: has %" PRIu64 " bytes, at most %" PRIu64 " are read", path,
                      (uint64_t)s.st_size, max);
        goto out;
    }
    /* One byte more than the size, so that the end is found without growing. */
    if (S_ISREG(s.st_mode))
        D9D_TRY_OR(st, d9d_buf_reserve(&b, (size_t)s.st_size + READ_BLOCK), out);
    D9D_TRY_OR(st, read_all(fd, path, max, &b), out);
    *out = b;
    b = (d9d_buf){0};
out:
    d9d_buf_release(&b);
    (void)close(fd);
    return st;
}

/* Create a temporary file next to `path`: the pid distinguishes processes, n threads. */
static d9d_status create_temp(const char *path, d9d_file *f)
{
    for (unsigned n = 0; n < D9DI_FS_TEMP_MAX; n++) {
        D9D_TRY(d9di_fs_temp_path(path, "tmp", n, &f->path));
        f->fd = open(f->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (f->fd >= 0) {
            (void)flock(f->fd, LOCK_EX | LOCK_NB); /* against d9d_fs_remove_stale() */
            return D9D_OK;
        }
        if (errno != EEXIST)
            return D9DI_FAIL_ERRNO(f->path, "cannot create");
        free(f->path);
        f->path = NULL;
    }
    return D9D_FAIL(D9D_EIO, "%s: %d temporary files are there already", path, D9DI_FS_TEMP_MAX);
}

/* The file that `path` is or links to.  Renaming over a device would replace it. */
static d9d_status resolve_target(const char *path, char **out)
{
    struct stat s, name;
    const bool there = stat(path, &s) == 0;
    const bool link = there && lstat(path, &name) == 0 && S_ISLNK(name.st_mode);

    if (there && !S_ISREG(s.st_mode))
        return D9D_FAIL(D9D_ECONFIG, "%s: is there already and is not a regular file", path);
    if (is_dangling_link(path))
        return D9D_FAIL(D9D_EPATH, "%s: cannot create: a link to nothing has its name", path);
    *out = link ? realpath(path, NULL) : strdup(path);
    return *out != NULL ? D9D_OK : D9DI_FAIL_ERRNO(path, "cannot resolve its name");
}

/* Returns 0 or an errno.  A file system without RENAME_NOREPLACE may have links; the last resort
 * checks first. */
static int rename_noreplace(const char *from, const char *to)
{
    struct stat s;

    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP)
        return errno;
    if (link(from, to) == 0)
        return unlink(from) == 0 ? 0 : errno;
    if (errno == EEXIST || lstat(to, &s) == 0)
        return EEXIST;
    return rename(from, to) == 0 ? 0 : errno;
}

d9d_status d9d_fs_rename_new(const char *from, const char *to)
{
    const int err = rename_noreplace(from, to);

    errno = err;
    if (err == EEXIST)
        return D9D_FAIL(D9D_ECONFIG, "%s: was written by someone else meanwhile", to);
    return err == 0 ? D9D_OK : D9DI_FAIL_ERRNO(to, "cannot be given its name");
}

static d9d_status rename_into_place(const char *from, const char *to, bool fresh)
{
    if (fresh)
        return d9d_fs_rename_new(from, to);
    return rename(from, to) == 0 ? D9D_OK : D9DI_FAIL_ERRNO(to, "cannot replace");
}

/* Write a temporary file next to `target`, then rename it. */
static d9d_status write_and_rename(const char *target, const void *data, size_t n, bool fresh)
{
    d9d_file f = {.fd = -1};
    char *parent = NULL;
    bool there = false;
    d9d_status st;

    D9D_TRY_OR(st, d9di_fs_parent(target, &parent), out);
    D9D_TRY_OR(st, create_temp(target, &f), out);
    there = true;
    D9D_TRY_OR(st, d9d_file_write(&f, data, n), out);
    D9D_TRY_OR(st, d9d_file_sync(&f), out);
    if (close(f.fd) != 0) {
        f.fd = -1;
        st = D9DI_FAIL_ERRNO(f.path, "cannot close");
        goto out;
    }
    f.fd = -1;
    D9D_TRY_OR(st, rename_into_place(f.path, target, fresh), out);
    there = false;
    D9D_TRY_OR(st, d9d_fs_sync_dir(parent), out);
out:
    if (there)
        (void)unlink(f.path);
    d9d_file_release(&f);
    free(parent);
    return st;
}

d9d_status d9d_fs_write_atomic(const char *path, const void *data, size_t n)
{
    char *target = NULL;
    d9d_status st;

    D9D_TRY(resolve_target(path, &target));
    st = write_and_rename(target, data, n, false);
    free(target);
    return st;
}

d9d_status d9d_fs_write_new(const char *path, const void *data, size_t n)
{
    D9D_TRY(d9d_fs_check_new(path));
    return write_and_rename(path, data, n, true);
}

d9d_status d9d_fs_write_in(const char *dir, const char *name, const void *data, size_t n)
{
    d9d_arena a = {0};
    const char *path = d9d_fs_join(&a, dir, name);
    const d9d_status st = path == NULL ? D9D_FAIL(D9D_ENOMEM, "%s/%s: no memory", dir, name)
                                       : d9d_fs_write_atomic(path, data, n);

    d9d_arena_release(&a);
    return st;
}

/* --- statuses ----------------------------------------------------------- */

#undef d9di_status_from_errno /* what an analyzer has in its place */
d9d_status d9di_status_from_errno(int err)
{
    static const struct {
        int err;
        d9d_status st;
    } rows[] = {
        {ENOENT, D9D_ENOTFOUND}, {ENOTDIR, D9D_ENOTFOUND}, {EACCES, D9D_EPATH},
        {EPERM, D9D_EPATH},      {EROFS, D9D_EPATH},       {EEXIST, D9D_EPATH},
        {EISDIR, D9D_EPATH},     {ELOOP, D9D_EPATH},       {ENAMETOOLONG, D9D_EPATH},
        {ENXIO, D9D_EPATH},      {ENODEV, D9D_EPATH},      {ENOMEM, D9D_ENOMEM},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].err == err)
            return rows[i].st;
    return D9D_EIO;
}
