/* workdir.c - the directory in which a dataset is made, locked and kept for the next run. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "data/shard_private.h"

/* What killed runs left beside the files that they were writing. */
static d9d_status sweep(const char *dir)
{
    d9d_arena arena = {0};
    d9d_fs_names names;
    d9d_status st;

    D9D_TRY_OR(st, d9d_fs_list(dir, &arena, &names), out);
    for (size_t i = 0; i < names.n; i++) {
        const char *end = strstr(names.name[i], ".tmp-");
        const char *path = end != NULL ? d9d_arena_printf(&arena, "%s/%.*s", dir,
                                                          (int)(end - names.name[i]), names.name[i])
                                       : NULL;

        if (path != NULL)
            d9d_fs_sweep(path);
    }
out:
    d9d_arena_release(&arena);
    return st;
}

d9d_status d9di_workdir_begin(d9di_workdir *w, const char *path, bool replace)
{
    *w = (d9di_workdir){.lock = -1};
    D9D_TRY(d9d_outdir_begin(&w->dir, path, D9D_OUTDIR_KEEP | (replace ? D9D_OUTDIR_REPLACE : 0)));
    w->lock = open(w->dir.tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (w->lock < 0)
        return D9D_FAIL(D9D_EIO, "%s: cannot open: %s", w->dir.tmp, strerror(errno));
    if (flock(w->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return D9D_FAIL(D9D_EIO, "%s: another d9d-shard is writing it", w->dir.tmp);
    w->owned = true;
    return sweep(w->dir.tmp);
}

d9d_status d9di_workdir_clear(const d9di_workdir *w)
{
    d9d_arena arena = {0};
    d9d_fs_names names;
    d9d_status st;
    size_t i;

    D9D_TRY_OR(st, d9d_fs_list(w->dir.tmp, &arena, &names), out);
    for (i = 0; i < names.n && st == D9D_OK; i++) {
        const char *path = d9d_fs_join(&arena, w->dir.tmp, names.name[i]);

        st = path ? d9d_fs_remove_tree(path) : D9D_FAIL(D9D_ENOMEM, "%s: no memory", w->dir.tmp);
    }
out:
    d9d_arena_release(&arena);
    return st;
}

d9d_status d9di_workdir_commit(d9di_workdir *w)
{
    return d9d_outdir_commit(&w->dir);
}

void d9di_workdir_release(d9di_workdir *w, bool keep)
{
    if (w->lock >= 0)
        close(w->lock);
    w->lock = -1;
    if (!w->dir.path)
        return;
    w->dir.keep = keep || !w->owned;
    d9d_outdir_release(&w->dir);
}
