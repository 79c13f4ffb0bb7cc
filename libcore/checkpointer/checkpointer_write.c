/* checkpointer_write.c - writes one checkpoint atomically.  See d9d/checkpointer/checkpointer.h and
 * checkpointer/checkpointer_private.h.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "checkpointer/checkpointer_private.h"
#include "d9d/comm/mesh.h"

/* --- the directory -------------------------------------------------------------------- */

/* The path of the directory of a rank, in the arena. */
static const char *part_dir(const d9di_checkpointer_save *s, int rank, d9d_arena *a)
{
    char name[D9D_SLICES_FILE];

    d9d_slices_dir_name(rank, s->ranks_per_dir, name);
    return d9d_fs_join(a, s->tmp, name);
}

static d9d_status make_part_dirs(d9di_checkpointer_save *s)
{
    for (int rank = 0; rank < s->ranks; rank += s->ranks_per_dir) {
        const char *path = part_dir(s, rank, &s->arena);

        if (path == NULL)
            return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a name", s->tmp);
        D9D_TRY(d9d_fs_mkdirs(path));
    }
    return D9D_OK;
}

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
    return make_part_dirs(s);
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
                                        d9d_mesh *mesh, int ranks_per_dir,
                                        d9di_checkpointer_save *out)
{
    d9di_checkpointer_save s = {.state = *state,
                                .mesh = mesh,
                                .ranks = 1,
                                .ranks_per_dir = ranks_per_dir,
                                .lock = {.fd = -1}};
    d9d_status st;

    if (mesh != NULL) {
        s.rank = d9d_mesh_rank(mesh);
        s.ranks = d9d_mesh_size(mesh);
    }
    st = broadcast_dir(&s, open_dir(&s, dir));
    s.part = st == D9D_OK ? part_dir(&s, s.rank, &s.arena) : NULL;
    if (st == D9D_OK && s.part == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for a name", s.tmp);
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

#define PART_SHARE ".share" /* in the directory of a part, until the commit */

enum { SHARE_NAME = 32 };

static const char *share_name(int rank, char out[SHARE_NAME])
{
    (void)snprintf(out, SHARE_NAME, PART_SHARE "-r%05d", rank);
    return out;
}

/* Writes one file per group of the set. */
static d9d_status write_files(const d9di_checkpointer_save *s, const d9d_checkpointer_set *set,
                              d9d_progress *progress, d9d_arena *a, d9di_checkpointer_files *files)
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

d9d_status d9di_checkpointer_save_write_share(const d9di_checkpointer_save *s,
                                              const d9d_checkpointer_set *set,
                                              const d9d_manifest_file *files, size_t n)
{
    char name[SHARE_NAME];
    d9di_checkpointer_share share;
    json_t *members = NULL;
    d9d_buf text = {0};
    d9d_status st;

    D9D_TRY(d9di_checkpointer_share_of_rank(set, s->rank, s->ranks, s->ranks_per_dir, &share));
    D9D_TRY_OR(st, d9di_checkpointer_share_members(&share, NULL, &members), out);
    D9D_TRY_OR(st, d9d_manifest_text(members, files, n, &text), out);
    st = d9d_fs_write_in(s->part, share_name(s->rank, name), text.data, text.len);
out:
    json_decref(members);
    d9di_checkpointer_share_release(&share);
    d9d_buf_release(&text);
    return st;
}

/* A box that does not fit fails before anything is written. */
static d9d_status check_boxes(const d9di_checkpointer_save *s, const d9d_checkpointer_set *set)
{
    d9di_checkpointer_share share;

    D9D_TRY(d9di_checkpointer_share_of_rank(set, s->rank, s->ranks, s->ranks_per_dir, &share));
    d9di_checkpointer_share_release(&share);
    return D9D_OK;
}

d9d_status d9di_checkpointer_save_write_rank(const d9di_checkpointer_save *s,
                                             const d9d_checkpointer_set *set,
                                             d9d_progress *progress)
{
    d9di_checkpointer_files files = {0};
    d9d_arena a = {0};
    d9d_status st;

    D9D_TRY_OR(st, check_boxes(s, set), out);
    D9D_TRY_OR(st, write_files(s, set, progress, &a, &files), out);
    st = d9di_checkpointer_save_write_share(s, set, files.data, files.len);
out:
    D9D_VEC_RELEASE(&files);
    d9d_arena_release(&a);
    return st;
}

/* --- merging -------------------------------------------------------------------------- */

/* Adds the share in a file, and removes it. */
static d9d_status add_share(const char *dir, const char *name, d9di_checkpointer_share *to)
{
    d9d_arena a = {0};
    d9d_buf text = {0};
    const char *path = d9d_fs_join(&a, dir, name);
    d9d_status st;

    if (path == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for a name", dir);
        goto out;
    }
    D9D_TRY_OR(st, d9d_fs_read(path, D9D_MANIFEST_MAX, &text), out);
    D9D_TRY_OR(st, d9di_checkpointer_share_add(to, path, text.data, text.len), out);
    (void)unlink(path); /* its name shows that it is not part of a checkpoint */
out:
    d9d_buf_release(&text);
    d9d_arena_release(&a);
    return st;
}

/* Writes the manifest of a part.  The share then has that one file, and the part. */
static d9d_status write_part_manifest(const d9di_checkpointer_save *s,
                                      d9di_checkpointer_share *share)
{
    char dir[D9D_SLICES_FILE];
    d9d_arena *a = &share->slices.arena;
    d9d_manifest_file own;
    d9d_buf text = {0};
    const char *name;
    uint64_t bytes = 0;
    d9d_status st;

    d9d_slices_dir_name(s->rank, s->ranks_per_dir, dir);
    for (size_t i = 0; i < share->files.len; i++)
        bytes += share->files.data[i].bytes;
    D9D_TRY_OR(st, d9d_manifest_text(NULL, share->files.data, share->files.len, &text), out);
    D9D_TRY_OR(st, d9d_fs_write_in(s->part, D9D_MANIFEST_NAME, text.data, text.len), out);
    name = d9d_arena_printf(a, "%s/%s", dir, D9D_MANIFEST_NAME);
    share->parts = json_pack("[{s:s, s:I}]", "dir", dir, "bytes", (json_int_t)bytes);
    if (name == NULL || share->parts == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for its manifest", s->part);
        goto out;
    }
    D9D_TRY_OR(st, d9d_manifest_file_of_text(name, text.data, text.len, a, &own), out);
    share->files.len = 0;
    st = D9D_VEC_PUSH(&share->files, own);
out:
    d9d_buf_release(&text);
    return st;
}

bool d9di_checkpointer_save_leads(const d9di_checkpointer_save *s)
{
    return s->rank % s->ranks_per_dir == 0;
}

d9d_status d9di_checkpointer_save_write_part(const d9di_checkpointer_save *s)
{
    const int end = s->ranks - s->rank < s->ranks_per_dir ? s->ranks : s->rank + s->ranks_per_dir;
    d9di_checkpointer_share share = {.counts = NULL};
    char name[SHARE_NAME];
    json_t *members = NULL;
    d9d_buf text = {0};
    d9d_status st;

    if (!d9di_checkpointer_save_leads(s))
        return D9D_OK;
    for (int rank = s->rank; rank < end; rank++)
        D9D_TRY_OR(st, add_share(s->part, share_name(rank, name), &share), out);
    D9D_TRY_OR(st, write_part_manifest(s, &share), out);
    D9D_TRY_OR(st, d9di_checkpointer_share_members(&share, NULL, &members), out);
    D9D_TRY_OR(st, d9d_manifest_text(members, share.files.data, share.files.len, &text), out);
    st = d9d_fs_write_in(s->part, PART_SHARE, text.data, text.len);
out:
    json_decref(members);
    d9di_checkpointer_share_release(&share);
    d9d_buf_release(&text);
    return st;
}

d9d_status d9di_checkpointer_save_write_root(const d9di_checkpointer_save *s)
{
    d9di_checkpointer_share share = {.counts = NULL};
    json_t *members = NULL;
    d9d_status st = D9D_OK;

    for (int rank = 0; rank < s->ranks; rank += s->ranks_per_dir) {
        const char *part = part_dir(s, rank, &share.slices.arena);

        if (part == NULL) {
            st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for a name", s->tmp);
            goto out;
        }
        D9D_TRY_OR(st, add_share(part, PART_SHARE, &share), out);
    }
    D9D_TRY_OR(st, d9di_checkpointer_share_members(&share, &s->state, &members), out);
    st = d9d_manifest_write_hashed(s->tmp, members, share.files.data, share.files.len);
out:
    json_decref(members);
    d9di_checkpointer_share_release(&share);
    return st;
}

d9d_status d9di_checkpointer_save_commit(d9di_checkpointer_save *s)
{
    if (s->rank != 0)
        return D9D_OK;
    D9D_TRY(d9di_checkpointer_save_write_root(s));
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

d9d_status d9di_checkpointer_save_all(const char *dir, const d9d_checkpointer_state *state,
                                      const d9d_checkpointer_set *set, d9d_mesh *mesh,
                                      int ranks_per_dir, const d9d_log *log)
{
    d9di_checkpointer_save s;
    d9d_status st;

    D9D_TRY(d9di_checkpointer_save_begin(dir, state, mesh, ranks_per_dir, &s));
    D9D_TRY_OR(st, agree_status(&s, write_all_ranks(&s, set, log)), out);
    D9D_TRY_OR(st, agree_status(&s, d9di_checkpointer_save_write_part(&s)), out);
    st = agree_status(&s, d9di_checkpointer_save_commit(&s));
out:
    d9di_checkpointer_save_release(&s);
    return st;
}

d9d_status d9d_checkpointer_write(const char *dir, const d9d_checkpointer_state *state,
                                  const d9d_checkpointer_set *set, d9d_mesh *mesh,
                                  const d9d_log *log)
{
    return d9di_checkpointer_save_all(dir, state, set, mesh, D9DI_CHECKPOINTER_RANKS_PER_DIR, log);
}
