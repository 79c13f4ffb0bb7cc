/* checkpointer_write.c - writes one checkpoint atomically.  See d9d/checkpointer/checkpointer.h and
 * checkpointer/checkpointer_private.h.
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

/* Rank 0 creates it. */
static d9d_status open_dir(d9di_checkpointer_save *s, const char *dir)
{
    const char *path = d9d_checkpointer_path(&s->arena, dir, s->state.step);

    D9D_TRY(d9di_checkpointer_state_check(&s->state));
    if (s->rank != 0)
        return D9D_OK;
    if (path == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for the name of a checkpoint", dir);
    D9D_TRY(d9d_fs_mkdirs(dir));
    D9D_TRY(d9di_checkpointer_lock_acquire(dir, &s->lock));
    D9D_TRY(d9d_outdir_begin(&s->dest, path, D9D_OUTDIR_REPLACE, d9di_checkpointer_outdir_kind()));
    s->tmp = s->dest.tmp;
    return D9D_OK;
}

/* The first failure of any rank, on all ranks. */
static d9d_status agree_status(const d9di_checkpointer_save *s, d9d_status st)
{
    return s->mesh != NULL ? d9d_bootstrap_agree_status(d9d_mesh_bootstrap(s->mesh), st) : st;
}

/* Broadcasts its path, or why there is none. */
static d9d_status broadcast_dir(d9di_checkpointer_save *s, d9d_status st)
{
    const char *local = st == D9D_OK && s->rank == 0 ? s->tmp : "";
    d9d_bootstrap_blob *all;

    if (s->mesh == NULL)
        return st;
    all = d9d_arena_alloc(&s->arena, (size_t)s->ranks * sizeof(*all));
    if (all == NULL)
        return D9D_FAIL(D9D_ENOMEM, "checkpoint: no memory for records of %d ranks", s->ranks);
    D9D_TRY(
        d9d_bootstrap_allgather(d9d_mesh_bootstrap(s->mesh), local, strlen(local), &s->arena, all));
    if (all[0].n == 0)
        return agree_status(s, st);
    s->tmp = all[0].data;
    return st;
}

d9d_status d9di_checkpointer_save_begin(const char *dir, const d9d_checkpointer_state *state,
                                        d9d_mesh *mesh, d9di_checkpointer_save *out)
{
    d9di_checkpointer_save s = {.state = *state, .mesh = mesh, .ranks = 1, .lock = {.fd = -1}};
    d9d_status st;

    if (mesh != NULL) {
        s.rank = d9d_mesh_rank(mesh);
        s.ranks = d9d_mesh_size(mesh);
    }
    st = broadcast_dir(&s, open_dir(&s, dir));
    if (st == D9D_OK)
        *out = s;
    else
        d9di_checkpointer_save_release(&s);
    return st;
}

void d9di_checkpointer_save_release(d9di_checkpointer_save *s)
{
    d9d_outdir_release(&s->dest);
    d9di_checkpointer_lock_release(&s->lock);
    d9d_arena_release(&s->arena);
}

/* --- a rank's share ------------------------------------------------------------------ */

enum { RANK_MANIFEST_NAME_MAX = 32 };

static const char *rank_manifest_name(int rank, char out[RANK_MANIFEST_NAME_MAX])
{
    (void)snprintf(out, RANK_MANIFEST_NAME_MAX, ".share-r%05d", rank);
    return out;
}

/* Writes one file per group of the set. */
static d9d_status write_files(const d9di_checkpointer_save *s, const d9d_checkpointer_set *set,
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
        D9D_TRY_OR(st, d9di_checkpointer_file_write(s, group, set, progress, a, &f), out);
        D9D_TRY_OR(st, D9D_VEC_PUSH(files, f), out);
    }
    if (set->n_rank_states > 0) {
        d9d_manifest_file f;

        D9D_TRY_OR(st, d9di_checkpointer_rank_state_write(s, set, a, &f), out);
        st = D9D_VEC_PUSH(files, f);
    }
out:
    d9d_map_release(&groups);
    return st;
}

d9d_status d9di_checkpointer_save_write_rank(const d9di_checkpointer_save *s,
                                             const d9d_checkpointer_set *set,
                                             d9d_progress *progress)
{
    char name[RANK_MANIFEST_NAME_MAX];
    json_t *members = NULL;
    file_list files = {0};
    d9d_buf text = {0};
    d9d_arena a = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9di_checkpointer_manifest_describe_rank(set, (size_t)s->rank, &members), out);
    D9D_TRY_OR(st, write_files(s, set, progress, &a, &files), out);
    D9D_TRY_OR(st, d9d_manifest_text(members, files.data, files.len, &text), out);
    st = d9d_fs_write_in(s->tmp, rank_manifest_name(s->rank, name), text.data, text.len);
out:
    json_decref(members);
    D9D_VEC_RELEASE(&files);
    d9d_buf_release(&text);
    d9d_arena_release(&a);
    return st;
}

/* --- merging -------------------------------------------------------------------------- */

/* Reads the share of a rank and removes its file. */
static d9d_status read_rank_manifest(const d9di_checkpointer_save *s, int rank, d9d_arena *a,
                                     d9d_manifest **out)
{
    char name[RANK_MANIFEST_NAME_MAX];
    const char *path = d9d_fs_join(a, s->tmp, rank_manifest_name(rank, name));
    d9d_buf text = {0};
    d9d_status st;

    if (path == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a name", s->tmp);
    D9D_TRY_OR(st, d9d_fs_read(path, D9D_MANIFEST_MAX, &text), out);
    D9D_TRY_OR(st, d9d_manifest_parse(s->tmp, text.data, text.len, out), out);
    (void)unlink(path); /* its name shows that it is not part of a checkpoint */
out:
    d9d_buf_release(&text);
    return st;
}

static d9d_status append_files(const d9d_manifest *share, file_list *files)
{
    for (size_t i = 0; i < d9d_manifest_count(share); i++)
        D9D_TRY(D9D_VEC_PUSH(files, *d9d_manifest_at(share, i)));
    return D9D_OK;
}

/* The complete manifest, from the shares of all ranks in rank order. */
static d9d_status merge_rank_manifests(const d9di_checkpointer_save *s)
{
    const size_t n = (size_t)s->ranks;
    d9d_manifest **parsed = calloc(n, sizeof(*parsed));
    const json_t **roots = calloc(n, sizeof(*roots));
    json_t *members = NULL;
    file_list files = {0};
    d9d_arena a = {0};
    d9d_status st = D9D_OK;

    if (parsed == NULL || roots == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for the files of %zu ranks", s->tmp, n);
        goto out;
    }
    for (size_t i = 0; i < n; i++) {
        D9D_TRY_OR(st, read_rank_manifest(s, (int)i, &a, &parsed[i]), out);
        D9D_TRY_OR(st, append_files(parsed[i], &files), out);
        roots[i] = d9d_manifest_root(parsed[i]);
    }
    D9D_TRY_OR(st, d9di_checkpointer_manifest_merge(&s->state, roots, n, &members), out);
    st = d9d_manifest_write_hashed(s->tmp, members, files.data, files.len);
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

d9d_status d9di_checkpointer_save_commit(d9di_checkpointer_save *s)
{
    if (s->rank != 0)
        return D9D_OK;
    D9D_TRY(merge_rank_manifests(s));
    return d9d_outdir_commit(&s->dest);
}

/* --- the whole save ----------------------------------------------------------------------- */

uint64_t d9d_checkpointer_set_bytes(const d9d_checkpointer_set *set)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < set->n; i++)
        bytes += d9d_tensor_bytes(set->items[i].tensor);
    return bytes;
}

static d9d_status write_all_ranks(const d9di_checkpointer_save *s, const d9d_checkpointer_set *set,
                                  const d9d_log *log)
{
    d9d_progress progress;
    char label[64];
    d9d_status st;

    (void)snprintf(label, sizeof(label), "save step %lld", (long long)s->state.step);
    d9d_progress_start(&progress, s->rank == 0 ? log : NULL, label, "B",
                       d9d_checkpointer_set_bytes(set));
    st = d9di_checkpointer_save_write_rank(s, set, &progress);
    if (st == D9D_OK)
        d9d_progress_end(&progress);
    return st;
}

d9d_status d9d_checkpointer_write(const char *dir, const d9d_checkpointer_state *state,
                                  const d9d_checkpointer_set *set, d9d_mesh *mesh,
                                  const d9d_log *log)
{
    d9di_checkpointer_save s;
    d9d_status st;

    D9D_TRY(d9di_checkpointer_save_begin(dir, state, mesh, &s));
    D9D_TRY_OR(st, agree_status(&s, write_all_ranks(&s, set, log)), out);
    st = agree_status(&s, d9di_checkpointer_save_commit(&s));
out:
    d9di_checkpointer_save_release(&s);
    return st;
}
