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
    size_t n_rank_states;      /* ranks that have written rank state */
    const json_t *rank_states; /* of d9d.checkpoint.v1: names of their files; otherwise NULL */
    d9d_arena arena;
} d9di_checkpointer_manifest;

/* open and take parse the root manifest, not those of its parts; take consumes `manifest`, even on
 * failure.  After a failure there is nothing to release. */
d9d_status d9di_checkpointer_manifest_open(const char *dir, d9di_checkpointer_manifest *out);
d9d_status d9di_checkpointer_manifest_take(const char *dir, d9d_manifest *manifest,
                                           d9di_checkpointer_manifest *out);
void d9di_checkpointer_manifest_release(d9di_checkpointer_manifest *s);
/* The file of rank state i: its name in the directory. */
const char *d9di_checkpointer_manifest_rank_state(const d9di_checkpointer_manifest *s, size_t i,
                                                  char buf[D9D_SLICES_FILE]);
#define D9DI_CHECKPOINTER_RANK_STATE "state" /* file group of rank state */

/* --- writing manifests: checkpointer_share.c ------------------------------------------- *
 *
 * A share says what some ranks have written: their files, tensors and step counts.  It is a
 * manifest, so that the share of many is merged from those of fewer:
 *
 *      .share-r00000 -.
 *      .share-r00001 -+-> ranks-00000/.share -.
 *         ...         |   ranks-00000/manifest.json
 *      .share-r00063 -'                       +-> manifest.json
 *                         ranks-00064/.share -'
 */

/* Files of a share. */
typedef struct d9di_checkpointer_files {
    d9d_manifest_file *data;
    size_t len, cap;
} d9di_checkpointer_files;

typedef struct d9di_checkpointer_share {
    d9d_slices slices;
    json_t *counts; /* "optimizer_steps" */
    json_t *parts;  /* "parts" */
    bool rank_state;
    d9di_checkpointer_files files; /* in the arena of `slices` */
} d9di_checkpointer_share;

/* The share of one rank; boxes that are not part of their tensors are EINVAL. */
d9d_status d9di_checkpointer_share_of_rank(const d9d_checkpointer_set *set, int64_t rank,
                                           int64_t ranks, int64_t ranks_per_dir,
                                           d9di_checkpointer_share *out);
/* Adds the share in the text of a manifest; `label` is its name in messages. */
d9d_status d9di_checkpointer_share_add(d9di_checkpointer_share *to, const char *label,
                                       const char *text, size_t n);
/* The members of a manifest; with those of the state, if it is not NULL. */
d9d_status d9di_checkpointer_share_members(d9di_checkpointer_share *s,
                                           const d9d_checkpointer_state *state, json_t **out);
void d9di_checkpointer_share_release(d9di_checkpointer_share *s);

/* EINVAL for a state that a manifest cannot express. */
d9d_status d9di_checkpointer_state_check(const d9d_checkpointer_state *state);
/* Adds the state's members. */
d9d_status d9di_checkpointer_state_add(json_t *root, const d9d_checkpointer_state *state);

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
 *     begin       collective: rank 0 creates the directories and broadcasts their path
 *     write_rank  every rank writes its files, and its share (above)
 *     write_part  the first rank of each directory merges the shares there, writes the manifest
 *     commit      rank 0 merges those shares, writes the root manifest, renames the directory
 *
 * All but begin use no collectives and may run on any thread.  The caller ensures that every rank
 * has finished one before any begins the next.  Shares are files, since the other ranks' files must
 * be seen there anyway. */
enum { D9DI_CHECKPOINTER_RANKS_PER_DIR = 64 }; /* each writes up to 3 files */

typedef struct d9di_checkpointer_save {
    d9d_checkpointer_state state;
    d9d_mesh *mesh; /* NULL: alone */
    int rank, ranks, ranks_per_dir;
    const char *tmp;             /* the temporary directory */
    const char *part;            /* in it, the directory of this rank */
    bool cancelled;              /* set by another thread: abandon the save */
    d9di_checkpointer_lock lock; /* on rank 0, as are the next members */
    d9d_outdir dest;
    d9d_arena arena;
} d9di_checkpointer_save;

/* After a failure there is nothing to release. */
d9d_status d9di_checkpointer_save_begin(const char *dir, const d9d_checkpointer_state *state,
                                        d9d_mesh *mesh, int ranks_per_dir,
                                        d9di_checkpointer_save *out);
d9d_status d9di_checkpointer_save_write_rank(const d9di_checkpointer_save *s,
                                             const d9d_checkpointer_set *set,
                                             d9d_progress *progress);
/* The share alone, of files that are written: the second half of write_rank. */
d9d_status d9di_checkpointer_save_write_share(const d9di_checkpointer_save *s,
                                              const d9d_checkpointer_set *set,
                                              const d9d_manifest_file *files, size_t n);
d9d_status d9di_checkpointer_save_write_part(const d9di_checkpointer_save *s);
/* True for the ranks that write_part() has work for. */
bool d9di_checkpointer_save_leads(const d9di_checkpointer_save *s);
d9d_status d9di_checkpointer_save_commit(d9di_checkpointer_save *s);
/* The first half of commit: the root manifest. */
d9d_status d9di_checkpointer_save_write_root(const d9di_checkpointer_save *s);
/* Removes what was not committed.  May be called again. */
void d9di_checkpointer_save_release(d9di_checkpointer_save *s);

/* d9d_checkpointer_write() with any number of ranks a directory. */
d9d_status d9di_checkpointer_save_all(const char *dir, const d9d_checkpointer_state *state,
                                      const d9d_checkpointer_set *set, d9d_mesh *mesh,
                                      int ranks_per_dir, const d9d_log *log);

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
