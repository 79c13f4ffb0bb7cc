/* shard_workdir.c - the working directory of a run: locked, and kept for a resume. */
#include "data/build/shard_private.h"

static bool is_whole(const char *dir)
{
    return d9d_fs_head_has(dir, "manifest.json", "\"d9d.dataset.v") ||
           d9d_fs_head_has(dir, "plan.json", "\"d9d.part.v");
}

static bool is_begun(const char *dir)
{
    return d9d_fs_head_has(dir, "plan.json", "\"d9d.part.v");
}

static const d9d_outdir_kind dataset_kind = {"dataset", is_whole, is_begun};

d9d_status d9di_shard_workdir_open(d9d_outdir *o, const char *path, bool replace)
{
    D9D_TRY(d9d_outdir_begin(o, path, D9D_OUTDIR_KEEP | (replace ? D9D_OUTDIR_REPLACE : 0),
                             &dataset_kind));
    D9D_TRY(d9d_outdir_lock(o));
    d9d_fs_remove_stale_in(o->tmp);
    return D9D_OK;
}

d9d_status d9di_shard_workdir_clear(const d9d_outdir *o)
{
    d9d_arena arena = {0};
    d9d_fs_names names;
    d9d_status st;

    D9D_TRY_OR(st, d9d_fs_list(o->tmp, &arena, &names), out);
    for (size_t i = 0; i < names.n && st == D9D_OK; i++) {
        const char *path = d9d_fs_join(&arena, o->tmp, names.name[i]);

        st = path ? d9d_fs_remove_tree(path) : D9D_FAIL(D9D_ENOMEM, "%s: no memory", o->tmp);
    }
out:
    d9d_arena_release(&arena);
    return st;
}

void d9di_shard_workdir_release(d9d_outdir *o, bool keep)
{
    o->keep = keep || o->lock == 0;
    d9d_outdir_release(o);
}
