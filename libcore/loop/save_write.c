/* save_write.c - one checkpoint, whole or not at all.  See d9d/loop/save.h.
 *
 * Every rank writes files of its own and describes them in a manifest of its own, its share; rank
 * 0, which makes and commits the directory, joins the shares. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/dist/mesh.h"
#include "loop/save_parts.h"

typedef struct file_list {
    d9d_manifest_file *data;
    size_t len, cap;
} file_list;

/* --- a rank's share ------------------------------------------------------------------ */

/* A file for each group of the set. */
static d9d_status write_files(const char *tmp, size_t rank, const d9d_save_set *set,
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

d9d_status d9di_save_write_share(const char *tmp, const d9d_save_set *set, size_t rank,
                                 d9d_progress *progress, d9d_buf *share)
{
    json_t *members = NULL;
    file_list files = {0};
    d9d_arena a = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9di_saved_describe(set, rank, &members), out);
    D9D_TRY_OR(st, write_files(tmp, rank, set, progress, &a, &files), out);
    st = d9d_manifest_text(members, files.data, files.len, share);
out:
    json_decref(members);
    D9D_VEC_RELEASE(&files);
    d9d_arena_release(&a);
    return st;
}

/* --- all of them ---------------------------------------------------------------------- */

static d9d_status take_files(const d9d_manifest *share, file_list *files)
{
    for (size_t i = 0; i < d9d_manifest_count(share); i++)
        D9D_TRY(D9D_VEC_PUSH(files, *d9d_manifest_at(share, i)));
    return D9D_OK;
}

d9d_status d9di_save_join_shares(const char *tmp, const d9d_save_state *state,
                                 const d9d_comm_word *shares, size_t n)
{
    d9d_manifest **parsed = calloc(n, sizeof(*parsed));
    const json_t **roots = calloc(n, sizeof(*roots));
    json_t *members = NULL;
    file_list files = {0};
    d9d_status st = D9D_OK;

    if (parsed == NULL || roots == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: shares of %zu ranks", tmp, n);
        goto out;
    }
    for (size_t i = 0; i < n; i++) {
        D9D_TRY_OR(st, d9d_manifest_parse(tmp, shares[i].data, shares[i].n, &parsed[i]), out);
        D9D_TRY_OR(st, take_files(parsed[i], &files), out);
        roots[i] = d9d_manifest_root(parsed[i]);
    }
    D9D_TRY_OR(st, d9di_saved_join(state, roots, n, &members), out);
    st = d9d_manifest_put(tmp, members, files.data, files.len);
out:
    json_decref(members);
    for (size_t i = 0; i < n && parsed != NULL; i++)
        d9d_manifest_close(parsed[i]);
    D9D_VEC_RELEASE(&files);
    free(roots);
    free(parsed);
    return st;
}

/* --- together ----------------------------------------------------------------------------- */

/* One call of d9d_save_write(). */
typedef struct save {
    d9d_mesh *mesh; /* NULL: alone */
    d9d_comm *world;
    int rank, ranks;
    d9d_arena arena;
    d9di_save_lock lock; /* rank 0 */
    d9d_outdir dest;     /* rank 0 */
    const char *tmp;     /* where all write */
    d9d_comm_word *words;
} save;

/* The first failure of any rank, on all of them. */
static d9d_status agree(const save *s, d9d_status st)
{
    return s->mesh != NULL ? d9d_boot_agree(d9d_mesh_boot(s->mesh), st) : st;
}

static d9d_status begin(save *s, d9d_mesh *mesh)
{
    *s = (save){.mesh = mesh, .ranks = 1, .lock = {.fd = -1}};
    if (mesh != NULL) {
        D9D_TRY(d9d_mesh_group(mesh, D9D_AXES_WORLD, &s->world));
        s->rank = d9d_mesh_rank(mesh);
        s->ranks = d9d_mesh_size(mesh);
    }
    s->words = d9d_arena_alloc(&s->arena, (size_t)s->ranks * sizeof(*s->words));
    return s->words != NULL ? D9D_OK
                            : D9D_FAIL(D9D_ENOMEM, "checkpoint: words of %d ranks", s->ranks);
}

/* Rank 0 makes the directory. */
static d9d_status open_dir(save *s, const char *dir, const d9d_save_state *state)
{
    const char *path = d9d_save_path(&s->arena, dir, state->step);

    D9D_TRY(d9di_save_state_check(state));
    if (s->rank != 0)
        return D9D_OK;
    if (path == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for the name of a checkpoint", dir);
    D9D_TRY(d9d_fs_mkdirs(dir));
    D9D_TRY(d9di_save_lock_take(dir, &s->lock));
    return d9d_outdir_begin(&s->dest, path, D9D_OUTDIR_REPLACE);
}

/* What every rank gives, on all of them. */
static d9d_status exchange(save *s, const char *what, const void *mine, size_t n)
{
    return d9d_comm_gather_words(s->world, what, mine, n, &s->arena, s->words);
}

/* Where rank 0 made it. */
static d9d_status tell_dir(save *s)
{
    const char *mine = s->rank == 0 ? s->dest.tmp : "";

    D9D_TRY(exchange(s, "the checkpoint's directory", mine, strlen(mine)));
    s->tmp = s->words[0].data;
    return D9D_OK;
}

static uint64_t bytes_of(const d9d_save_set *set)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < set->n; i++)
        bytes += d9d_tensor_bytes(set->items[i].tensor);
    return bytes;
}

static d9d_status write_share(const save *s, const d9d_save_state *state, const d9d_save_set *set,
                              const d9d_log *log, d9d_buf *share)
{
    d9d_progress progress;
    char what[64];
    d9d_status st;

    (void)snprintf(what, sizeof(what), "save step %lld", (long long)state->step);
    d9d_progress_start(&progress, s->rank == 0 ? log : NULL, what, "B", bytes_of(set));
    st = d9di_save_write_share(s->tmp, set, (size_t)s->rank, &progress, share);
    if (st == D9D_OK)
        d9d_progress_end(&progress);
    return st;
}

/* Rank 0 makes it a checkpoint. */
static d9d_status commit(save *s, const d9d_save_state *state)
{
    if (s->rank != 0)
        return D9D_OK;
    D9D_TRY(d9di_save_join_shares(s->tmp, state, s->words, (size_t)s->ranks));
    return d9d_outdir_commit(&s->dest);
}

d9d_status d9d_save_write(const char *dir, const d9d_save_state *state, const d9d_save_set *set,
                          d9d_mesh *mesh, const d9d_log *log)
{
    d9d_buf share = {0};
    save s;
    d9d_status st = begin(&s, mesh);

    D9D_TRY_OR(st, agree(&s, st == D9D_OK ? open_dir(&s, dir, state) : st), out);
    D9D_TRY_OR(st, tell_dir(&s), out);
    D9D_TRY_OR(st, agree(&s, write_share(&s, state, set, log, &share)), out);
    D9D_TRY_OR(st, exchange(&s, "the checkpoint's manifests", share.data, share.len), out);
    st = agree(&s, commit(&s, state));
out:
    d9d_buf_release(&share);
    d9d_outdir_release(&s.dest);
    d9di_save_lock_release(&s.lock);
    d9d_arena_release(&s.arena);
    return st;
}
