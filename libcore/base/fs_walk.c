/* fs_walk.c - post-order walks over a directory tree.  See base/fs_private.h.
 *
 * A walk uses directory descriptors and never follows a link, so a tree that changes meanwhile
 * cannot lead it elsewhere. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs_private.h"

enum { MAX_DEPTH = 256 };

/* Visit one entry; `dir` is its directory's descriptor.  A directory's entries were visited before
 * it. */
typedef d9d_status (*visit_fn)(int dir, const char *name, mode_t mode, const char *path);

static d9d_status walk_dir(int dir, const char *name, d9d_buf *path, visit_fn visit, int depth);

/* The mark goes last, so that a half-removed directory still has it. */
static void move_mark_last(d9d_fs_names *names)
{
    for (size_t i = 0; i + 1 < names->n; i++)
        if (strcmp(names->name[i], D9D_PARTIAL_MARK) == 0) {
            char *mark = names->name[i];

            names->name[i] = names->name[names->n - 1];
            names->name[names->n - 1] = mark;
        }
}

/* Visit every entry of the directory `fd`, then close it. */
static d9d_status walk_entries(int fd, d9d_buf *path, visit_fn visit, int depth)
{
    const size_t len = path->len;
    d9d_arena arena = {0};
    d9d_fs_names names = {0};
    d9d_status st;
    DIR *d = fdopendir(fd);

    if (d == NULL) {
        st = D9DI_FAIL_ERRNO(path->data, "cannot open the directory");
        (void)close(fd);
        return st;
    }
    D9D_TRY_OR(st, d9di_fs_names(d, path->data, &arena, &names), out);
    move_mark_last(&names);
    for (size_t i = 0; i < names.n; i++) {
        D9D_TRY_OR(st, d9d_buf_printf(path, "/%s", names.name[i]), out);
        D9D_TRY_OR(st, walk_dir(dirfd(d), names.name[i], path, visit, depth + 1), out);
        path->len = len;
        path->data[len] = '\0';
    }
out:
    d9d_arena_release(&arena);
    (void)closedir(d);
    return st;
}

static d9d_status walk_dir(int dir, const char *name, d9d_buf *path, visit_fn visit, int depth)
{
    struct stat s;

    if (fstatat(dir, name, &s, AT_SYMLINK_NOFOLLOW) != 0)
        return D9DI_FAIL_ERRNO(path->data, "cannot look at it");
    if (S_ISDIR(s.st_mode)) {
        const int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

        if (fd < 0)
            return D9DI_FAIL_ERRNO(path->data, "cannot open the directory");
        if (depth >= MAX_DEPTH) {
            (void)close(fd);
            return D9D_FAIL(D9D_EIO, "%s: is %d directories deep, at most %d are walked",
                            path->data, depth, MAX_DEPTH);
        }
        D9D_TRY(walk_entries(fd, path, visit, depth));
    }
    return visit(dir, name, s.st_mode, path->data);
}

static d9d_status walk_tree(const char *root, visit_fn visit)
{
    d9d_buf path = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9d_buf_append(&path, root, strlen(root)), out);
    D9D_TRY_OR(st, walk_dir(AT_FDCWD, root, &path, visit, 0), out);
out:
    d9d_buf_release(&path);
    return st;
}

static d9d_status remove_entry(int dir, const char *name, mode_t mode, const char *path)
{
    if (unlinkat(dir, name, S_ISDIR(mode) ? AT_REMOVEDIR : 0) != 0 && errno != ENOENT)
        return D9DI_FAIL_ERRNO(path, "cannot remove");
    return D9D_OK;
}

static d9d_status sync_entry(int dir, const char *name, mode_t mode, const char *path)
{
    d9d_status st;
    int fd;

    if (!S_ISREG(mode) && !S_ISDIR(mode))
        return D9D_OK;
    fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return D9DI_FAIL_ERRNO(path, "cannot open to sync");
    st = d9di_fs_fsync(fd, path);
    (void)close(fd);
    return st;
}

d9d_status d9d_fs_remove_tree(const char *path)
{
    struct stat s;

    if (lstat(path, &s) != 0 && errno == ENOENT)
        return D9D_OK;
    return walk_tree(path, remove_entry);
}

d9d_status d9di_fs_sync_tree(const char *path)
{
    return walk_tree(path, sync_entry);
}
