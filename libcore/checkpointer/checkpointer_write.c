/* checkpointer_write.c - one checkpoint, whole or not at all.  See d9d/checkpointer/checkpointer.h
 * and checkpointer/checkpointer_private.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpointer/checkpointer_private.h"
#include "d9d/comm/mesh.h"

typedef struct file_list {
    d9d_manifest_file *data;
    size_t len, cap;
} file_list;

/* --- the directory -------------------------------------------------------------------- */

/* Rank 0 makes it. */
static d9d_status open_dir(d9di_save *s, const char *dir)
{
    const char *path = d9d_save_path(&s->arena, dir, s->state.step);

    D9D_TRY(d9di_save_state_check(&s->state));
    if (s->rank != 0)
        return D9D_OK;
    if (path == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for the name of a checkpoint", dir);
    D9D_TRY(d9d_fs_mkdirs(dir));
    D9D_TRY(d9di_save_lock_take(dir, &s->lock));
    D9D_TRY(d9d_outdir_begin(&s->dest, path, D9D_OUTDIR_REPLACE, d9di_save_kind()));
    s->tmp = s->dest.tmp;
    return D9D_OK;
}

/* The first failure of any rank, on all of them. */
static d9d_status agree(const d9di_save *s, d9d_status st)
{
    return s->mesh != NULL ? d9d_boot_agree(d9d_mesh_boot(s->mesh), st) : st;
}

/* All learn where it is, or why it is not. */
static d9d_status tell_dir(d9di_save *s, d9d_status st)
{
    const char *mine = st == D9D_OK && s->rank == 0 ? s->tmp : "";
    d9d_boot_word *all;

    if (s->mesh == NULL)
        return st;
    all = d9d_arena_alloc(&s->arena, (size_t)s->ranks * sizeof(*all));
    if (all == NULL)
        return D9D_FAIL(D9D_ENOMEM, "checkpoint: words of %d ranks", s->ranks);
    D9D_TRY(d9d_boot_gather(d9d_mesh_boot(s->mesh), mine, strlen(mine), &s->arena, all));
    if (all[0].n == 0)
        return agree(s, st);
    s->tmp = all[0].data;
    return st;
}

d9d_status d9di_save_begin(const char *dir, const d9d_save_state *state, d9d_mesh *mesh,
                           d9di_save *out)
{
    d9di_save s = {.state = *state, .mesh = mesh, .ranks = 1, .lock = {.fd = -1}};
    d9d_status st;

    if (mesh != NULL) {
        s.rank = d9d_mesh_rank(mesh);
        s.ranks = d9d_mesh_size(mesh);
    }
    st = tell_dir(&s, open_dir(&s, dir));
    if (st == D9D_OK)
        *out = s;
    else
        d9di_save_release(&s);
    return st;
}

void d9di_save_release(d9di_save *s)
{
    d9d_outdir_release(&s->dest);
    d9di_save_lock_release(&s->lock);
    d9d_arena_release(&s->arena);
}

/* --- a rank's share ------------------------------------------------------------------ */

enum { SHARE_NAME = 32 };

static const char *share_name(int rank, char out[SHARE_NAME])
{
    (void)snprintf(out, SHARE_NAME, ".share-r%05d", rank);
    return out;
}

/* A file for each group of the set. */
static d9d_status write_files(const d9di_save *s, const d9d_save_set *set, d9d_progress *progress,
                              d9d_arena *a, file_list *files)
{
    d9d_map groups = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < set->n; i++) {
        const char *group = set->items[i].group;
        d9d_manifest_file f;

        if (d9d_map_has(&groups, group, strlen(group)))
            continue;
        D9D_TRY_OR(st, d9d_map_put(&groups, group, strlen(group), NULL), out);
        D9D_TRY_OR(st, d9di_save_file_write(s, group, set, progress, a, &f), out);
        D9D_TRY_OR(st, D9D_VEC_PUSH(files, f), out);
    }
    if (set->n_cells > 0) {
        d9d_manifest_file f;

        D9D_TRY_OR(st, d9di_save_cells_write(s, set, a, &f), out);
        st = D9D_VEC_PUSH(files, f);
    }
out:
    d9d_map_release(&groups);
    return st;
}

d9d_status d9di_save_share(const d9di_save *s, const d9d_save_set *set, d9d_progress *progress)
{
    char name[SHARE_NAME];
    json_t *members = NULL;
    file_list files = {0};
    d9d_buf text = {0};
    d9d_arena a = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9di_saved_describe(set, (size_t)s->rank, &members), out);
    D9D_TRY_OR(st, write_files(s, set, progress, &a, &files), out);
    D9D_TRY_OR(st, d9d_manifest_text(members, files.data, files.len, &text), out);
    st = d9d_fs_write_in(s->tmp, share_name(s->rank, name), text.data, text.len);
out:
    json_decref(members);
    D9D_VEC_RELEASE(&files);
    d9d_buf_release(&text);
    d9d_arena_release(&a);
    return st;
}

/* --- all of them ---------------------------------------------------------------------- */

/* The share of a rank, whose file is not needed any more. */
static d9d_status share_take(const d9di_save *s, int rank, d9d_arena *a, d9d_manifest **out)
{
    char name[SHARE_NAME];
    const char *path = d9d_fs_join(a, s->tmp, share_name(rank, name));
    d9d_buf text = {0};
    d9d_status st;

    if (path == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a name", s->tmp);
    D9D_TRY_OR(st, d9d_fs_read(path, D9D_MANIFEST_MAX, &text), out);
    D9D_TRY_OR(st, d9d_manifest_parse(s->tmp, text.data, text.len, out), out);
    (void)unlink(path); /* the name says that it is no part of a checkpoint */
out:
    d9d_buf_release(&text);
    return st;
}

static d9d_status take_files(const d9d_manifest *share, file_list *files)
{
    for (size_t i = 0; i < d9d_manifest_count(share); i++)
        D9D_TRY(D9D_VEC_PUSH(files, *d9d_manifest_at(share, i)));
    return D9D_OK;
}

/* The manifest of all, from the shares of all ranks in their order. */
static d9d_status join_shares(const d9di_save *s)
{
    const size_t n = (size_t)s->ranks;
    d9d_manifest **parsed = calloc(n, sizeof(*parsed));
    const json_t **roots = calloc(n, sizeof(*roots));
    json_t *members = NULL;
    file_list files = {0};
    d9d_arena a = {0};
    d9d_status st = D9D_OK;

    if (parsed == NULL || roots == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: shares of %zu ranks", s->tmp, n);
        goto out;
    }
    for (size_t i = 0; i < n; i++) {
        D9D_TRY_OR(st, share_take(s, (int)i, &a, &parsed[i]), out);
        D9D_TRY_OR(st, take_files(parsed[i], &files), out);
        roots[i] = d9d_manifest_root(parsed[i]);
    }
    D9D_TRY_OR(st, d9di_saved_join(&s->state, roots, n, &members), out);
    st = d9d_manifest_put(s->tmp, members, files.data, files.len);
out:
    json_decref(members);
    for (size_t i = 0; i < n && parsed != NULL; i++)
        d9d_manifest_close(parsed[i]);
    D9D_VEC_RELEASE(&files);
    d9d_arena_release(&a);
    free(roots);
    free(parsed);
    return st;
}

d9d_status d9di_save_commit(d9di_save *s)
{
    if (s->rank != 0)
        return D9D_OK;
    D9D_TRY(join_shares(s));
    return d9d_outdir_commit(&s->dest);
}

/* --- at once ------------------------------------------------------------------------------ */

uint64_t d9d_save_bytes(const d9d_save_set *set)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < set->n; i++)
        bytes += d9d_tensor_bytes(set->items[i].tensor);
    return bytes;
}

static d9d_status share_all(const d9di_save *s, const d9d_save_set *set, const d9d_log *log)
{
    d9d_progress progress;
    char what[64];
    d9d_status st;

    (void)snprintf(what, sizeof(what), "save step %lld", (long long)s->state.step);
    d9d_progress_start(&progress, s->rank == 0 ? log : NULL, what, "B", d9d_save_bytes(set));
    st = d9di_save_share(s, set, &progress);
    if (st == D9D_OK)
        d9d_progress_end(&progress);
    return st;
}

d9d_status d9d_save_write(const char *dir, const d9d_save_state *state, const d9d_save_set *set,
                          d9d_mesh *mesh, const d9d_log *log)
{
    d9di_save s;
    d9d_status st;

    D9D_TRY(d9di_save_begin(dir, state, mesh, &s));
    D9D_TRY_OR(st, agree(&s, share_all(&s, set, log)), out);
    st = agree(&s, d9di_save_commit(&s));
out:
    d9di_save_release(&s);
    return st;
}
