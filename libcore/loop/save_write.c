/* save_write.c - one checkpoint, whole or not at all.  See d9d/loop/save.h. */
#include <string.h>

#include "loop/save_parts.h"

typedef struct file_list {
    d9d_manifest_file *data;
    size_t len, cap;
} file_list;

/* A file for each group of the set. */
static d9d_status write_rank(const char *tmp, size_t rank, const d9d_save_set *set,
                             d9d_progress *progress, d9d_arena *a, file_list *files)
{
    d9d_map groups = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < set->n; i++) {
        const char *group = set->items[i].group;
        d9d_manifest_file f;

        if (d9d_map_has(&groups, group, strlen(group)))
            continue;
        D9D_TRY_OR(st, d9d_map_put(&groups, group, strlen(group), NULL), out);
        D9D_TRY_OR(st, d9di_save_file_write(tmp, group, rank, set, progress, a, &f), out);
        D9D_TRY_OR(st, D9D_VEC_PUSH(files, f), out);
    }
out:
    d9d_map_release(&groups);
    return st;
}

static uint64_t bytes_of(const d9d_save_set *const *parts, size_t n)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < parts[i]->n; k++)
            bytes += d9d_tensor_bytes(parts[i]->items[k].tensor);
    return bytes;
}

/* Everything in the directory `tmp`. */
static d9d_status write_all(const char *tmp, const json_t *members,
                            const d9d_save_set *const *parts, size_t n, d9d_progress *progress)
{
    file_list files = {0};
    d9d_arena a = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < n; i++)
        D9D_TRY_OR(st, write_rank(tmp, i, parts[i], progress, &a, &files), out);
    st = d9d_manifest_put(tmp, members, files.data, files.len);
out:
    D9D_VEC_RELEASE(&files);
    d9d_arena_release(&a);
    return st;
}

d9d_status d9di_save_write_parts(const char *dir, const d9d_save_state *state,
                                 const d9d_save_set *const *parts, size_t n, const d9d_log *log)
{
    d9di_save_lock lock = {.fd = -1};
    d9d_outdir dest = {0};
    d9d_progress progress;
    d9d_arena a = {0};
    json_t *members = NULL;
    char *path = d9di_save_step_path(&a, dir, state->step);
    char *what = d9d_arena_printf(&a, "save step %lld", (long long)state->step);
    d9d_status st;

    if (path == NULL || what == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for the name of a checkpoint", dir);
        goto out;
    }
    D9D_TRY_OR(st, d9di_saved_describe(state, parts, n, &members), out);
    D9D_TRY_OR(st, d9d_fs_mkdirs(dir), out);
    D9D_TRY_OR(st, d9di_save_lock_take(dir, &lock), out);
    D9D_TRY_OR(st, d9d_outdir_begin(&dest, path, D9D_OUTDIR_REPLACE), out);
    d9d_progress_start(&progress, log, what, "B", bytes_of(parts, n));
    D9D_TRY_OR(st, write_all(dest.tmp, members, parts, n, &progress), out);
    D9D_TRY_OR(st, d9d_outdir_commit(&dest), out);
    d9d_progress_end(&progress);
out:
    d9d_outdir_release(&dest);
    d9di_save_lock_release(&lock);
    json_decref(members);
    d9d_arena_release(&a);
    return st;
}

d9d_status d9d_save_write(const char *dir, const d9d_save_state *state, const d9d_save_set *set,
                          const d9d_log *log)
{
    return d9di_save_write_parts(dir, state, &set, 1, log);
}
