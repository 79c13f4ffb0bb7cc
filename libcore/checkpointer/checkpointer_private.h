/* checkpointer_private.h - internals of the checkpointer.  See d9d/checkpointer/checkpointer.h. */
#ifndef D9DI_CHECKPOINTER_CHECKPOINTER_PRIVATE_H
#define D9DI_CHECKPOINTER_CHECKPOINTER_PRIVATE_H

#include "d9d/checkpointer/checkpointer.h"
#include "d9d/ckpt/dir/slices.h"
#include "d9d/ckpt/safetensors/safetensors.h"

enum { D9DI_CHECKPOINTER_IO_BYTES = 4 << 20 }; /* size of the host buffer for streaming */

/* The box of an item. */
static inline d9d_box d9di_checkpointer_tensor_box(const d9d_checkpointer_tensor *t)
{
    d9d_box b = {.ndim = t->tensor->shape.ndim};

    for (int d = 0; d < b.ndim; d++) {
        b.start[d] = t->start[d];
        b.size[d] = t->tensor->shape.dim[d];
    }
    return b;
}

/* --- the manifest: checkpointer_manifest.c -------------------------------------------- */

/* A checkpoint with a valid manifest. */
typedef struct d9di_checkpointer_manifest {
    const char *dir, *path; /* path: of the manifest */
    d9d_manifest *manifest;
    d9d_checkpointer_state state;
    d9d_slices slices;
    const json_t *counts;
    const json_t *rank_states; /* file names, one per rank; NULL: none */
    d9d_arena arena;
} d9di_checkpointer_manifest;

/* open and take parse the manifest; take consumes `manifest`, even on failure.  After a failure
 * there is nothing to release. */
d9d_status d9di_checkpointer_manifest_open(const char *dir, d9di_checkpointer_manifest *out);
d9d_status d9di_checkpointer_manifest_take(const char *dir, d9d_manifest *manifest,
                                           d9di_checkpointer_manifest *out);
void d9di_checkpointer_manifest_release(d9di_checkpointer_manifest *s);

/* EINVAL for a state that a manifest cannot express. */
d9d_status d9di_checkpointer_state_check(const d9d_checkpointer_state *state);
/* describe_rank: one rank's share of the manifest, "optimizer_steps" and "tensors" with its slices.
 * merge: the complete manifest's members, from the shares of all ranks.  New references. */
d9d_status d9di_checkpointer_manifest_describe_rank(const d9d_checkpointer_set *set, size_t rank,
                                                    json_t **out);
d9d_status d9di_checkpointer_manifest_merge(const d9d_checkpointer_state *state,
                                            const json_t *const *shares, size_t n, json_t **out);
/* "model-r00000.safetensors" */
enum { D9DI_CHECKPOINTER_FILE_NAME_MAX = 256 };
#define D9DI_CHECKPOINTER_RANK_STATE "state" /* file group of rank state */
d9d_status d9di_checkpointer_file_name(const char *group, size_t rank,
                                       char out[D9DI_CHECKPOINTER_FILE_NAME_MAX]);

/* --- optimizer state: checkpointer_optimizer.c ---------------------------------------- */

/* EMISMATCH if the state is another optimizer's, or has master weights, which the set lacks. */
d9d_status d9di_checkpointer_check_optimizer(const d9di_checkpointer_manifest *s,
                                             const d9d_checkpointer_set *set);
d9d_status d9di_checkpointer_check_masters(const d9di_checkpointer_manifest *s,
                                           const d9d_checkpointer_set *set);
/* True if the checkpoint has residuals of master weights for any parameter of the set. */
bool d9di_checkpointer_has_masters(const d9di_checkpointer_manifest *s,
                                   const d9d_checkpointer_set *set);

/* --- the directory: checkpointer_dir.c ------------------------------------------------------ */

/* The steps that have a directory with a checkpoint's name, newest first, in the arena; none if
 * `dir` does not exist. */
typedef struct d9di_checkpointer_steps {
    int64_t *step;
    size_t n;
} d9di_checkpointer_steps;
d9d_status d9di_checkpointer_steps_list(const char *dir, d9d_arena *a,
                                        d9di_checkpointer_steps *out);
/* True for the name of a directory in which a checkpoint was or is being written. */
bool d9di_checkpointer_is_unfinished(const char *name);
/* Appears in the first bytes of a checkpoint's manifest.json; pruning removes nothing else. */
#define D9DI_CHECKPOINTER_SCHEMA "\"d9d.checkpoint.v"
/* What a checkpoint may replace: a checkpoint of a run, also a damaged one. */
const d9d_outdir_kind *d9di_checkpointer_outdir_kind(void);
/* ECONFIG if an entry of `dir` has a checkpoint's name but is not one: it is not ours to remove. */
d9d_status d9di_checkpointer_check_names(const char *dir);

/* The exclusive right to write into `dir`. */
typedef struct d9di_checkpointer_lock {
    int fd;
    bool held; /* false: the file system has no locks */
} d9di_checkpointer_lock;
d9d_status d9di_checkpointer_lock_acquire(const char *dir, d9di_checkpointer_lock *out);
void d9di_checkpointer_lock_release(d9di_checkpointer_lock *l);

/* --- one save: checkpointer_write.c --------------------------------------------------- *
 *
 *     begin       collective: rank 0 creates a directory and broadcasts its path
 *     write_rank  every rank writes its files, and a manifest of them ("share")
 *     commit      rank 0 merges the shares and renames the directory
 *
 * write_rank and commit use no collectives and may run on any thread.  The caller ensures that
 * every rank has finished write_rank before rank 0 commits.  Shares are files, ".share-r00003", in
 * the directory: rank 0 must see the other ranks' files there anyway. */
typedef struct d9di_checkpointer_save {
    d9d_checkpointer_state state;
    d9d_mesh *mesh; /* NULL: alone */
    int rank, ranks;
    const char *tmp;             /* the temporary directory */
    bool cancelled;              /* set by another thread: abandon the save */
    d9di_checkpointer_lock lock; /* on rank 0, as are the next members */
    d9d_outdir dest;
    d9d_arena arena;
} d9di_checkpointer_save;

/* After a failure there is nothing to release. */
d9d_status d9di_checkpointer_save_begin(const char *dir, const d9d_checkpointer_state *state,
                                        d9d_mesh *mesh, d9di_checkpointer_save *out);
d9d_status d9di_checkpointer_save_write_rank(const d9di_checkpointer_save *s,
                                             const d9d_checkpointer_set *set,
                                             d9d_progress *progress);
d9d_status d9di_checkpointer_save_commit(d9di_checkpointer_save *s);
/* Removes what was not committed.  May be called again. */
void d9di_checkpointer_save_release(d9di_checkpointer_save *s);

/* --- files: checkpointer_file.c ------------------------------------------------------------ */

/* Writes the tensors of one group into a new file of the save's directory, hashing it on the way.
 * EINVAL for a group without tensors.  Names and hashes in `out` are in the arena. */
d9d_status d9di_checkpointer_file_write(const d9di_checkpointer_save *s, const char *group,
                                        const d9d_checkpointer_set *set, d9d_progress *progress,
                                        d9d_arena *a, d9d_manifest_file *out);

/* --- rank state: checkpointer_rank_state.c -------------------------------------------- */

/* Writes this rank's rank state, which must not be empty, into a file. */
d9d_status d9di_checkpointer_rank_state_write(const d9di_checkpointer_save *s,
                                              const d9d_checkpointer_set *set, d9d_arena *a,
                                              d9d_manifest_file *out);
/* copy: gives `to` its own copies of the rank state, in the arena.  update: copies the present
 * values. */
d9d_status d9di_checkpointer_rank_state_copy(const d9d_checkpointer_set *from, d9d_arena *a,
                                             d9d_checkpointer_set *to);
void d9di_checkpointer_rank_state_update(const d9d_checkpointer_set *from,
                                         d9d_checkpointer_set *to);

#endif /* D9DI_CHECKPOINTER_CHECKPOINTER_PRIVATE_H */
