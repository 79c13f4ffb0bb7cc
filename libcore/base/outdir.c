/* outdir.c - a directory that is committed atomically.  See d9d/base/fs.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs_private.h"
#include "d9d/base/fs.h"

/* The final name without slashes at its end.  A link is followed here, so that
 * what it points to is replaced and not the link. */
static d9d_status final_name(const char *path, char **out)
{
    size_t len = strlen(path);
    const char *base;
    struct stat s;
    char *name;

    while (len > 1 && path[len - 1] == '/')
        len--;
    name = strndup(path, len);
    if (name == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for its name", path);
    if (lstat(name, &s) == 0 && S_ISLNK(s.st_mode)) {
        free(name);
        name = realpath(path, NULL);
        if (name == NULL)
            return D9DI_FAIL_ERRNO(path, "cannot follow the link");
    }
    base = strrchr(name, '/');
    base = base != NULL ? base + 1 : name;
    if (*base == '\0' || strcmp(base, ".") == 0 || strcmp(base, "..") == 0) {
        free(name);
        return D9D_FAIL(D9D_ECONFIG, "\"%s\" cannot be written whole: name a new directory", path);
    }
    *out = name;
    return D9D_OK;
}

/* In a directory with the sticky bit only the owner of an entry, or of the directory, can replace
 * it.  Check before the work, not after it. */
static d9d_status check_owner(const char *path)
{
    char *parent = NULL;
    struct stat above, s;
    d9d_status st = D9D_OK;
    const uid_t me = geteuid();

    D9D_TRY(d9di_fs_parent(path, &parent));
    if (me != 0 && lstat(path, &s) == 0 && stat(parent, &above) == 0 &&
        (above.st_mode & S_ISVTX) != 0 && s.st_uid != me && above.st_uid != me)
        st = D9D_FAIL(D9D_EPATH,
                      "%s: cannot be replaced: it is another user's, in a directory where only "
                      "owners may (sticky bit)",
                      path);
    free(parent);
    return st;
}

static d9d_status check_available(const char *path, bool replace, const d9d_outdir_kind *kind)
{
    D9D_TRY(check_owner(path));
    if (d9d_fs_is_empty(path))
        return D9D_OK;
    if (!d9d_fs_is_dir(path))
        return D9D_FAIL(D9D_ECONFIG, "%s: is there already and is not a directory", path);
    if (!replace)
        return D9D_FAIL(D9D_ECONFIG, "%s: is there already and is not empty; --force replaces it",
                        path);
    if (kind != NULL && !kind->is_complete(path))
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: is no %s, which alone --force replaces; move it away or name another "
                        "directory",
                        path, kind->label);
    if (faccessat(AT_FDCWD, path, W_OK | X_OK, AT_EACCESS) != 0)
        return D9DI_FAIL_ERRNO(path, "cannot be emptied");
    return D9D_OK;
}

static d9d_status make_tmp(const char *path, const d9d_outdir_kind *kind, char **out)
{
    (void)kind;
    for (unsigned n = 0; n < D9DI_FS_TEMP_MAX; n++) {
        char *tmp;

        D9D_TRY(d9di_fs_temp_path(path, "tmp", n, &tmp));
        if (mkdir(tmp, 0777) == 0) {
            *out = tmp;
            return D9D_OK;
        }
        if (errno != EEXIST) {
            const d9d_status st = D9DI_FAIL_ERRNO(tmp, "cannot create the directory");

            free(tmp);
            return st;
        }
        free(tmp);
    }
    return D9D_FAIL(D9D_EIO, "%s: %d temporary directories are there already", path,
                    D9DI_FS_TEMP_MAX);
}

static d9d_status partial_path(const char *path, char **out)
{
    if (asprintf(out, "%s.partial", path) < 0)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for its name", path);
    return D9D_OK;
}

static d9d_status make_partial(const char *path, const d9d_outdir_kind *kind, char **out)
{
    char *tmp = NULL;
    d9d_status st;

    D9D_TRY(partial_path(path, &tmp));
    D9D_TRY_OR(st, d9di_partial_check(tmp, kind), out);
    if (mkdir(tmp, 0777) != 0 && errno != EEXIST) {
        st = D9DI_FAIL_ERRNO(tmp, "cannot create the directory");
        goto out;
    }
    *out = tmp;
    tmp = NULL;
out:
    free(tmp);
    return st;
}

d9d_status d9d_outdir_check_disjoint(const char *path, const char *input)
{
    char *out = realpath(path, NULL), *in = realpath(input, NULL);
    const size_t n = out != NULL ? strlen(out) : 0;
    const bool begins = out != NULL && in != NULL && strncmp(in, out, n) == 0;
    const bool inside = begins && in[n] == '/', same = begins && in[n] == '\0';

    free(out);
    free(in);
    if (inside || same)
        return D9D_FAIL(D9D_ECONFIG, "%s: is to be replaced, but the input %s is %s", path, input,
                        same ? "the same" : "in it");
    return D9D_OK;
}

d9d_status d9d_outdir_begin(d9d_outdir *o, const char *path, unsigned flags,
                            const d9d_outdir_kind *kind)
{
    const bool replace = (flags & D9D_OUTDIR_REPLACE) != 0, keep = (flags & D9D_OUTDIR_KEEP) != 0;
    char *name = NULL, *tmp = NULL;
    d9d_status st;

    D9D_TRY_OR(st, final_name(path, &name), out);
    D9D_TRY_OR(st, check_available(name, replace, kind), out);
    D9D_TRY_OR(st, d9d_fs_make_parents(name), out);
    if (!keep)
        d9d_fs_remove_stale(name);
    D9D_TRY_OR(st, (keep ? make_partial : make_tmp)(name, kind, &tmp), out);
    *o = (d9d_outdir){.path = name, .tmp = tmp, .replace = replace, .keep = keep, .kind = kind};
    if (!keep)
        o->lock = d9di_fs_try_lock(tmp) + 1;
    name = tmp = NULL;
out:
    free(name);
    free(tmp);
    return st;
}

d9d_status d9d_outdir_join(d9d_outdir *o, const char *path)
{
    char *name = NULL, *tmp = NULL;
    d9d_status st;

    D9D_TRY_OR(st, final_name(path, &name), out);
    D9D_TRY_OR(st, partial_path(name, &tmp), out);
    *o = (d9d_outdir){.path = name, .tmp = tmp, .keep = true};
    name = NULL;
out:
    free(name);
    return st;
}

d9d_status d9d_outdir_lock(d9d_outdir *o)
{
    int dir, mark;

    D9D_TRY(d9di_partial_lock(o->tmp, &dir, &mark));
    o->lock = dir + 1;
    o->mark = mark + 1;
    return D9D_OK;
}

/* A kept directory is complete when it has its final name, whether or not its mark is removed. */
static d9d_status remove_mark(const d9d_outdir *o)
{
    if (o->lock > 0 && o->mark > 0 && unlinkat(o->lock - 1, D9D_PARTIAL_MARK, 0) != 0 &&
        errno != ENOENT)
        return D9DI_FAIL_ERRNO(o->path, "cannot remove the mark of an unfinished directory");
    return D9D_OK;
}

/* Rename to a name that is free or an empty directory. */
static d9d_status rename_into_place(const d9d_outdir *o, bool *moved)
{
    *moved = rename(o->tmp, o->path) == 0;
    if (*moved || ((errno == ENOTEMPTY || errno == EEXIST) && o->replace))
        return D9D_OK;
    if (errno == ENOTEMPTY || errno == EEXIST)
        return D9D_FAIL(D9D_ECONFIG, "%s: was written by someone else meanwhile", o->path);
    return D9DI_FAIL_ERRNO(o->path, "cannot give the directory its name");
}

/* Without RENAME_EXCHANGE: move the old directory aside first, and back if the new one cannot be
 * renamed. */
static d9d_status replace_by_renames(const d9d_outdir *o, char **old)
{
    char *aside = NULL;
    d9d_status st = D9D_OK;

    D9D_TRY(d9di_fs_temp_path(o->tmp, "old", 0, &aside));
    if (rename(o->path, aside) != 0) {
        st = D9DI_FAIL_ERRNO(o->path, "cannot move the old directory aside");
        goto out;
    }
    if (rename(o->tmp, o->path) != 0) {
        st = D9DI_FAIL_ERRNO(o->path, "cannot give the directory its name");
        if (rename(aside, o->path) != 0)
            st = D9D_FAIL(st, "%s; what was there is now %s", d9d_err_message(), aside);
        goto out;
    }
    *old = aside;
    aside = NULL;
out:
    free(aside);
    return st;
}

/* Replace the old directory by the new one; *old is the old one's new name. */
static d9d_status replace_dir(const d9d_outdir *o, char **old)
{
    if (renameat2(AT_FDCWD, o->tmp, AT_FDCWD, o->path, RENAME_EXCHANGE) != 0)
        return replace_by_renames(o, old);
    *old = strdup(o->tmp);
    if (*old == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for its name", o->tmp);
    return D9D_OK;
}

d9d_status d9d_outdir_commit(d9d_outdir *o)
{
    char *parent = NULL, *old = NULL;
    bool moved = false;
    d9d_status st;

    D9D_TRY_OR(st, d9di_fs_parent(o->path, &parent), out);
    D9D_TRY_OR(st, d9di_fs_sync_tree(o->tmp), out);
    D9D_TRY_OR(st, rename_into_place(o, &moved), out);
    if (!moved) {
        D9D_TRY_OR(st, check_available(o->path, true, o->kind), out);
        /* The old directory has the name of the unfinished one while it is removed. */
        if (o->keep)
            D9D_TRY_OR(st, d9di_partial_mark(o->path), out);
        D9D_TRY_OR(st, replace_dir(o, &old), out);
    }
    free(o->tmp);
    o->tmp = NULL;
    D9D_TRY_OR(st, remove_mark(o), out);
    D9D_TRY_OR(st, d9d_fs_sync_dir(parent), out);
    if (old != NULL)
        D9D_TRY_OR(st, d9d_fs_remove_tree(old), out);
out:
    free(old);
    free(parent);
    return st;
}

void d9d_outdir_release(d9d_outdir *o)
{
    d9d_err_copy first;

    /* An earlier failure's message is worth more than this one's. */
    d9d_err_save(&first, D9D_OK);
    if (o->tmp != NULL && !o->keep && d9d_fs_remove_tree(o->tmp) != D9D_OK)
        (void)d9d_err_restore(&first);
    if (o->lock > 0)
        (void)close(o->lock - 1);
    if (o->mark > 0)
        (void)close(o->mark - 1);
    free(o->tmp);
    free(o->path);
    *o = (d9d_outdir){0};
}
