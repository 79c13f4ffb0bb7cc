/* checkpointer_private.h - what the files of training checkpoints share.  See
 * d9d/checkpointer/checkpointer.h. */
#ifndef D9DI_CHECKPOINTER_CHECKPOINTER_PRIVATE_H
#define D9DI_CHECKPOINTER_CHECKPOINTER_PRIVATE_H

#include "d9d/checkpointer/checkpointer.h"
#include "d9d/ckpt/mapper/slices.h"
#include "d9d/ckpt/safetensors/safetensors.h"

enum { D9DI_CHECKPOINTER_IO_BYTES = 4 << 20 }; /* bytes that pass through host memory at a time */

/* The box that an item is. */
static inline d9d_box d9di_checkpointer_tensor_box(const d9d_checkpointer_tensor *t)
{
    d9d_box b = {.ndim = t->tensor->shape.ndim};

    for (int d = 0; d < b.ndim; d++) {
        b.start[d] = t->start[d];
        b.size[d] = t->tensor->shape.dim[d];
    }
    return b;
}

/* --- what a manifest says: checkpointer_manifest.c ----------------------------------------- */

/* A checkpoint whose manifest is sound. */
typedef struct d9di_checkpointer_manifest {
    const char *dir, *path; /* of the manifest */
    d9d_manifest *manifest;
    d9d_checkpointer_state state;
    d9d_slices slices;
    const json_t *counts;
    const json_t *rank_states; /* names of files, one a rank; NULL: none */
    d9d_arena arena;
} d9di_checkpointer_manifest;

/* A failure leaves nothing to release.  The manifest is taken, also then. */
d9d_status d9di_checkpointer_manifest_open(const char *dir, d9di_checkpointer_manifest *out);
d9d_status d9di_checkpointer_manifest_take(const char *dir, d9d_manifest *manifest,
                                           d9di_checkpointer_manifest *out);
void d9di_checkpointer_manifest_release(d9di_checkpointer_manifest *s);

/* EINVAL for a state that no manifest can say. */
d9d_status d9di_checkpointer_state_check(const d9d_checkpointer_state *state);
/* What one rank adds to the manifest, "optimizer_steps" and "tensors" with its slices; and the
 * members of the whole manifest, from what all have added.  New references. */
d9d_status d9di_checkpointer_manifest_describe_rank(const d9d_checkpointer_set *set, size_t rank,
                                                    json_t **out);
d9d_status d9di_checkpointer_manifest_merge(const d9d_checkpointer_state *state,
                                            const json_t *const *shares, size_t n, json_t **out);
/* "model-r00000.safetensors" */
enum { D9DI_CHECKPOINTER_FILE_NAME_MAX = 256 };
#define D9DI_CHECKPOINTER_RANK_STATE "state" /* the group of rank state's files */
d9d_status d9di_checkpointer_file_name(const char *group, size_t rank,
                                       char out[D9DI_CHECKPOINTER_FILE_NAME_MAX]);

/* --- optimizer state of another kind: checkpointer_optimizer.c -------------------------------- */

/* EMISMATCH: the state is another optimizer's, or that of master weights, which the set lacks. */
d9d_status d9di_checkpointer_check_optimizer(const d9di_checkpointer_manifest *s,
                                             const d9d_checkpointer_set *set);
d9d_status d9di_checkpointer_check_masters(const d9di_checkpointer_manifest *s,
                                           const d9d_checkpointer_set *set);
/* Residuals of any parameter of the set. */
bool d9di_checkpointer_has_masters(const d9di_checkpointer_manifest *s,
                                   const d9d_checkpointer_set *set);

/* --- the directory: checkpointer_dir.c ------------------------------------------------------ */

/* Steps that have a directory of a checkpoint's name, newest first; in the arena.  An absent
 * `dir` has none. */
typedef struct d9di_checkpointer_steps {
    int64_t *step;
    size_t n;
} d9di_checkpointer_steps;
d9d_status d9di_checkpointer_steps_list(const char *dir, d9d_arena *a,
                                        d9di_checkpointer_steps *out);
/* Does this name a directory in which a checkpoint was or is being written? */
bool d9di_checkpointer_is_unfinished(const char *name);
/* In the first bytes of a manifest.json of a checkpoint, which alone retention removes. */
#define D9DI_SAVE_SCHEMA "\"d9d.checkpoint.v"
/* What a checkpoint may take the place of: one of a run, a damaged one too. */
const d9d_outdir_kind *d9di_checkpointer_outdir_kind(void);
/* ECONFIG for what has the name of a checkpoint in `dir` and is none: it is somebody's. */
d9d_status d9di_checkpointer_check_names(const char *dir);

/* The right to write into `dir`. */
typedef struct d9di_checkpointer_lock {
    int fd;
    bool held; /* false: this file system has no locks */
} d9di_checkpointer_lock;
d9d_status d9di_checkpointer_lock_acquire(const char *dir, d9di_checkpointer_lock *out);
void d9di_checkpointer_lock_release(d9di_checkpointer_lock *l);

/* --- one checkpoint in the making: checkpointer_write.c ------------------------------------------
 * *
 *
 *     begin     collective: rank 0 makes a directory, of which all learn
 *     share     every rank writes its files there, and its share: a manifest of them
 *     commit    rank 0 joins the shares and gives the directory its name
 *
 * Share and commit talk to no other rank, and may be called from any thread; the caller sees to
 * it that every rank has done the one before rank 0 does the other.  Shares go through files,
 * ".share-r00003" in the directory: rank 0 must see there what others have written anyway. */
typedef struct d9di_checkpointer_save {
    d9d_checkpointer_state state;
    d9d_mesh *mesh; /* NULL: alone */
    int rank, ranks;
    const char *tmp; /* the directory */
    bool cancelled;  /* set by another thread: what is being written is not wanted any more */
    d9di_checkpointer_lock lock; /* rank 0, as the next one */
    d9d_outdir dest;
    d9d_arena arena;
} d9di_checkpointer_save;

/* A failure leaves nothing to release. */
d9d_status d9di_checkpointer_save_begin(const char *dir, const d9d_checkpointer_state *state,
                                        d9d_mesh *mesh, d9di_checkpointer_save *out);
d9d_status d9di_checkpointer_save_write_rank(const d9di_checkpointer_save *s,
                                             const d9d_checkpointer_set *set,
                                             d9d_progress *progress);
d9d_status d9di_checkpointer_save_commit(d9di_checkpointer_save *s);
/* Removes what was not committed; again is fine. */
void d9di_checkpointer_save_release(d9di_checkpointer_save *s);

/* --- files: checkpointer_file.c ------------------------------------------------------------ */

/* Write the tensors of one group into a new file of the save's directory, hashing them on the way;
 * a group without tensors is EINVAL.  Names and hashes in `out` are in the arena. */
d9d_status d9di_checkpointer_file_write(const d9di_checkpointer_save *s, const char *group,
                                        const d9d_checkpointer_set *set, d9d_progress *progress,
                                        d9d_arena *a, d9d_manifest_file *out);

/* --- cells: checkpointer_rank_state.c ------------------------------------------------------------
 */

/* The file of this rank's cells, of which there are some. */
d9d_status d9di_checkpointer_rank_state_write(const d9di_checkpointer_save *s,
                                              const d9d_checkpointer_set *set, d9d_arena *a,
                                              d9d_manifest_file *out);
/* `to` gets cells of its own, in the arena; and later what the others have then. */
d9d_status d9di_checkpointer_rank_state_copy(const d9d_checkpointer_set *from, d9d_arena *a,
                                             d9d_checkpointer_set *to);
void d9di_checkpointer_rank_state_update(const d9d_checkpointer_set *from,
                                         d9d_checkpointer_set *to);

#endif /* D9DI_CHECKPOINTER_CHECKPOINTER_PRIVATE_H */
