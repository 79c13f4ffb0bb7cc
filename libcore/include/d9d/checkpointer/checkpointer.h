/* checkpointer.h - training checkpoints: written atomically, discovered, read on any mesh.
 *
 *     runs/demo/checkpoints/
 *         .lock                             held while a process writes or removes here
 *         step-00001000/
 *             manifest.json                 the root: state, tensors, hashes of the manifests below
 *             ranks-00000/                  the files of ranks 0 to 63
 *                 manifest.json                 their names, sizes and hashes
 *                 model-r00000.safetensors      parameters, one file per rank
 *                 optimizer-r00000.safetensors  optimizer state, one file per rank
 *                 state-r00000.safetensors      rank state, if there is any
 *             ranks-00064/ ...
 *         step-00002000.tmp-4711-0/         a save in progress, or one that was killed
 *
 *     resume:       D9D_TRY(d9d_checkpointer_latest(dir, bootstrap, log, &a, &path));
 *                   if (path != NULL) D9D_TRY(d9d_checkpointer_read(path, &set, &state));
 *     each period:  D9D_TRY(d9d_checkpointer_write(dir, &state, &set, log));
 *                   D9D_TRY(d9d_checkpointer_prune(dir, step, keep, log));
 *
 * Commit.  A checkpoint is written in step-N.tmp-PID-n.  Its files are hashed while they are
 * written, the root manifest is written last, and all files and directories are synced.  Then one
 * rename gives the directory its name.  A process that dies at any point leaves either no step-N or
 * a complete one. A call that fails leaves no partial checkpoint and does not change an older one.
 *
 * Discovery.  The newest usable checkpoint is found from the files alone; there is no pointer file.
 * A checkpoint is usable if its manifests are valid and agree with their hashes, every file has its
 * size and hashes, the step matches the directory name, and the step was finite.  An unusable one
 * is skipped with a warning that says why.
 *
 * Resharding.  The root names every tensor with its dtype and global shape, and the slices that it
 * consists of (d9d/ckpt/dir/slices.h): rank, first index, shape, and repetitions.  Slices of a
 * tensor never overlap.  A reader fills each of its boxes from the slices that intersect it:
 *
 *      saved by two ranks          read by two others
 *      .-----.-----.               .-----------.
 *      |  a  |  b  |               | a a | b b |
 *      |     |     |               :-----------:
 *      '-----'-----'               | a a | b b |
 *                                  '-----------'
 *
 * Memory.  Tensors are streamed in both directions through buffers of a few MiB.  Training saves
 * asynchronously from a host copy: checkpointer/checkpointer_async.h.
 *
 * Locking.  One process at a time writes into a checkpoint directory.  Writing and pruning hold an
 * flock() on `.lock`.  A step-N.tmp-* found under the lock is therefore left over from a process
 * that died, on whatever host, and is removed.  On a file system without locks, such a directory is
 * removed once nothing in it has changed for a day.
 *
 * manifest.json, d9d.checkpoint.v2, has these members in addition to those of
 * d9d/ckpt/dir/manifest.h:
 *
 *     "step": 1000, "samples": 4000, "tokens": 512000,     optimizer steps done, data consumed
 *     "seed": 0, "parent": 500, "finite": true,            d9d_checkpointer_state, below
 *     "config": "<32 hex digits>", "dataset": "<32 hex digits>",
 *     "hf_config": "<32 hex digits>", "source": "...",         left out where zero
 *     "reference": "...", "run": "...",                        the same
 *     "ranks": 4096, "ranks_per_dir": 64,
 *     "optimizer_steps": {"model.norm.weight": 1000, ...},
 *     "tensors": [{"name": "model.norm.weight", "group": "model", "dtype": "F32", "shape": [64],
 *                  "slices": [{"rank": 0, "start": [0], "shape": [16],
 *                              "steps": [{"n": 4, "dim": 0, "by": 16, "ranks": 1}]}]}, ...],
 *     "rank_state": true                                   left out where there is none
 *
 * Checkpoints of d9d.checkpoint.v1 are read: all files in one directory, one manifest.
 */
#ifndef D9D_CHECKPOINTER_CHECKPOINTER_H
#define D9D_CHECKPOINTER_CHECKPOINTER_H

#include "d9d/base/hash.h"
#include "d9d/base/log.h"
#include "d9d/comm/mesh.h"
#include "d9d/optim/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The position of a run. */
typedef struct d9d_checkpointer_state {
    int64_t step;     /* optimizer steps done */
    int64_t samples;  /* samples of the stream consumed */
    int64_t tokens;   /* target tokens seen */
    uint64_t seed;    /* at most INT64_MAX */
    d9d_hash config;  /* of the parts of the resolved configuration that must not change */
    d9d_hash dataset; /* of the dataset's manifest */
    bool finite;      /* loss and gradient norm of the last step were finite */
    int64_t parent;   /* the step that the saving process resumed from; -1: from scratch */
    /* External inputs that must be the same at every start of the run; zero if there are none. */
    struct d9d_checkpointer_origin {
        d9d_hash hf_config; /* of the file's bytes */
        /* For a checkpoint without frozen weights: their content hash
         * (d9d/ckpt/dir/content_hash.h). */
        d9d_hash source;
        d9d_hash reference; /* the same of a task's frozen model, which is in no checkpoint */
        d9d_hash run;       /* of the run's name, where its checkpoints are not in its directory */
    } origin;
} d9d_checkpointer_state;

/* One array to save or to fill: a box of the tensor `name` with shape `global_shape`. */
typedef struct d9d_checkpointer_tensor {
    const char *name;
    const char *group; /* "model" or "optimizer": selects the file */
    d9d_tensor *tensor;
    d9d_shape global_shape;
    int64_t start[D9D_MAX_DIMS]; /* first index of the box */
    bool is_remote;              /* empty, or written by another rank */
    bool residual;               /* of master weights: zero if a checkpoint has none */
    bool widens;                 /* a checkpoint's bfloat16 is widened to float32 */
    const void *host;            /* host copy of its bytes; NULL: read the tensor itself */
} d9d_checkpointer_tensor;

/* A named number: how often the optimizer has stepped a parameter. */
typedef struct d9d_checkpointer_count {
    const char *name;
    int64_t *value;
} d9d_checkpointer_count;

/* A host array that each rank has its own values of: the state of a metric since its last record,
 * or a task's state.  On the same number of ranks, a resumed run restores each rank's values bit
 * for bit.  On another number, rank 0 gets the reduction over all old ranks in rank order, and the
 * others keep their initial values; so everything counts once. */
typedef struct d9d_checkpointer_rank_state {
    const char *name;
    d9d_dtype dtype;       /* D9D_F64 or D9D_I64 */
    int64_t n;             /* at least 1 */
    d9d_comm_op reduce_op; /* reduces the values of two ranks */
    void *data;
} d9d_checkpointer_rank_state;

/* The contents of a checkpoint.  Names are borrowed; each name has at most one box. */
typedef struct d9d_checkpointer_set {
    d9d_checkpointer_tensor *items;
    size_t n;
    d9d_checkpointer_count *counts;
    size_t n_counts;
    d9d_checkpointer_rank_state *rank_states; /* the same list on all ranks */
    size_t n_rank_states;
    const char **former; /* tensors that checkpoints of before may have besides: a shared array of
                            adapters, once more for each matrix */
    size_t n_former;
    bool partial;          /* the checkpoint may hold tensors that the set lacks */
    const char *optimizer; /* the kind whose state it has; NULL: none */
} d9d_checkpointer_set;

/* Builds a run's set in the arena: parameters, optimizer state (`opt` may be NULL) and step counts.
 * With trainable_only, only trainable parameters; the set is then partial.  Parameters and
 * optimizer must outlive it. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpointer_set_make(const d9d_params *params,
                                                          d9d_optimizer *opt, bool trainable_only,
                                                          d9d_arena *a, d9d_checkpointer_set *out);

/* Adds rank state; the list is in the arena.  EINVAL for an invalid entry. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpointer_set_add_rank_state(
    d9d_checkpointer_set *set, const d9d_checkpointer_rank_state *states, size_t n, d9d_arena *a);

/* The tensors of the set that this rank writes; in the arena. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpointer_set_local(const d9d_checkpointer_set *set,
                                                           d9d_arena *a, d9d_checkpointer_set *out);

/* Bytes of all its tensors. */
D9D_API uint64_t d9d_checkpointer_set_bytes(const d9d_checkpointer_set *set);

/* "dir/step-00001000", in the arena; NULL when memory is out. */
D9D_API char *d9d_checkpointer_path(d9d_arena *a, const char *dir, int64_t step);

/* Writes `dir`/step-N; creates `dir` if necessary.  Atomically replaces an existing step-N, which
 * is damaged or not finite, since otherwise the run would have resumed from it.  EIO with path and
 * bytes for a full disk; EIO also if another process holds the lock.
 *
 * Collective over the world of `mesh` (NULL: this process alone), with the same directory and
 * state. Each rank writes the tensors of its set; a replicated box is in the set of one rank. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpointer_write(const char *dir,
                                                       const d9d_checkpointer_state *state,
                                                       const d9d_checkpointer_set *set,
                                                       d9d_mesh *mesh, const d9d_log *log);

/* Removes leftovers of killed saves and, unless `keep` is 0, every checkpoint older than the `keep`
 * newest usable ones of a run whose newest is of step `last`.  Here usable means finite, with all
 * files at their sizes; hashes are not checked.  Those of later steps, which the run passed over
 * when it resumed, stay and do not count.  A directory without a manifest is left alone. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpointer_prune(const char *dir, int64_t last, int64_t keep,
                                                       const d9d_log *log);
/* Removes the checkpoint of `step`, the lock, and `dir` itself if it is then empty. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpointer_remove(const char *dir, int64_t step,
                                                        const d9d_log *log);

/* The newest usable checkpoint in `dir`, with verified hashes; its path is in the arena.  NULL if
 * there is no step-* or no `dir`.  EVERIFY if checkpoints exist but none is usable: a run must not
 * silently start from scratch over them.
 *
 * Collective over the job (NULL: this process alone).  Rank 0 lists `dir`, and the ranks divide the
 * reading of the files. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpointer_latest(const char *dir, d9d_bootstrap *bootstrap,
                                                        const d9d_log *log, d9d_arena *a,
                                                        const char **path);
/* The newest checkpoint by manifests and file sizes alone; hashes are not verified. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpointer_latest_unverified(const char *dir, d9d_arena *a,
                                                                   const char **path);

/* Reads the state, and checks that the set could be filled; EMISMATCH as for
 * d9d_checkpointer_read(). The set's tensors may be without memory. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpointer_check(const char *path,
                                                       const d9d_checkpointer_set *set,
                                                       d9d_checkpointer_state *state);

/* Fills the set and the state.  Opens only the files that hold part of the set, since many ranks
 * read concurrently.  Checks their sizes, but not their hashes again.
 *
 * EMISMATCH, before any tensor changes, for a tensor or count of the set that the checkpoint lacks,
 * has with another dtype or global shape, or covers only in part.  EMISMATCH also for one that the
 * set lacks, unless the set is partial.  Missing residuals and widened optimizer state, as of older
 * checkpoints, are a log line each. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpointer_read(const char *path,
                                                      const d9d_checkpointer_set *set,
                                                      const d9d_log *log,
                                                      d9d_checkpointer_state *state);
/* Fills the set's rank state for rank `rank` of `ranks`.  An entry that the checkpoint lacks or has
 * in another form keeps its value, with one warning for all of them. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpointer_read_rank_state(const char *path,
                                                                 const d9d_checkpointer_set *set,
                                                                 int rank, int ranks,
                                                                 const d9d_log *log);

#ifdef __cplusplus
}
#endif
#endif /* D9D_CHECKPOINTER_CHECKPOINTER_H */
