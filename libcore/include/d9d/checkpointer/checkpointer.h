/* checkpointer.h - training checkpoints: written whole, found again, read on any topology.
 *
 *     runs/demo/checkpoints/
 *         .lock                             held while a process writes or removes here
 *         step-00001000/
 *             manifest.json                 what is here, to the byte (d9d/ckpt/dir/manifest.h)
 *             model-r00000.safetensors      parameters, one file a rank
 *             optimizer-r00000.safetensors  optimizer state, one file a rank
 *             state-r00000.safetensors      what a rank has counted, where there is any such
 *         step-00002000.tmp-4711-0/         a save that goes on, or was killed
 *
 *     path = newest(dir)                    D9D_TRY(d9d_checkpointer_latest(dir, boot, log, &a,
 * &path)); if (path) read(path, set, &state)     D9D_TRY(d9d_checkpointer_read(path, &set,
 * &state)); each period: write, then prune        D9D_TRY(d9d_checkpointer_write(dir, &state, &set,
 * log)); D9D_TRY(d9d_checkpointer_prune(dir, keep, log));
 *
 * Commit.  A checkpoint is written in step-N.tmp-PID-n; its files are hashed on the way out,
 * the manifest is written last, every file and the directory are synced, and the directory gets
 * its name in one rename.  A process that dies at any point leaves either no step-N or all of
 * it; a call that fails leaves neither half of one nor a changed older one.
 *
 * Discovery.  Which checkpoint is the newest is decided by what is on disk: the manifest
 * reads and agrees with its own hash, every file has its size and its hashes, the step is that
 * of the name, and the step was finite.  Whatever fails this is passed over with a warning that
 * says why.  There is no pointer file.
 *
 * Topology.  The manifest names every tensor with its dtype and whole shape, and the slices
 * that make it up: file, first index, shape.  Slices of a tensor never overlap.  A reader takes
 * for each of its own boxes what it needs from the slices that meet it:
 *
 *      saved by two ranks          read by two others
 *      .-----.-----.               .-----------.
 *      |  a  |  b  |               | a a | b b |
 *      |     |     |               :-----------:
 *      '-----'-----'               | a a | b b |
 *                                  '-----------'
 *
 * Memory: tensors are streamed in both directions in pieces of a few MiB.  Training writes behind,
 * from a copy: checkpointer/checkpointer_async.h.
 *
 * One process writes into a checkpoint directory at a time.  Writing and pruning hold an
 * flock() on `.lock` meanwhile, so what is called step-N.tmp-* and is found under the lock was
 * left behind by a process that died, whatever its host, and is removed.  Where the file system
 * has no locks, such a directory is removed when nothing in it has changed for a day.
 *
 * manifest.json, d9d.checkpoint.v1, beside the members that d9d/ckpt/dir/manifest.h describes:
 *
 *     "step": 1000, "samples": 4000, "tokens": 512000,     optimizer steps done, data consumed
 *     "seed": 0, "parent": 500, "finite": true,            d9d_checkpointer_state, below
 *     "config": "<32 hex digits>", "dataset": "<32 hex digits>",
 *     "hf_config": "<32 hex digits>", "source": "...", "source_path": "...",   left out where zero
 *     "optimizer_steps": {"model.norm.weight": 1000, ...},
 *     "tensors": [{"name": "model.norm.weight", "dtype": "F32", "shape": [64], "slices":
 *                  [{"file": "model-r00000.safetensors", "start": [0], "shape": [64]}]}, ...],
 *     "rank_state": ["state-r00000.safetensors", ...]      a file a rank; left out without any
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

/* The position of a run, as numbers. */
typedef struct d9d_checkpointer_state {
    int64_t step;     /* optimizer steps done */
    int64_t samples;  /* of the stream, consumed */
    int64_t tokens;   /* target tokens seen */
    uint64_t seed;    /* at most INT64_MAX */
    d9d_hash config;  /* of the resolved configuration's parts that must not change */
    d9d_hash dataset; /* of the dataset's manifest */
    bool finite;      /* loss and norm of the last step were */
    int64_t parent;   /* step that this life of the run started from; -1: from scratch */
    /* What a run takes from elsewhere in each of its lives, zero where there is none. */
    struct d9d_checkpointer_origin {
        d9d_hash hf_config; /* its bytes */
        /* Of a checkpoint that leaves frozen weights out: the identity of those
         * (d9d/ckpt/dir/content_hash.h), and a hash of the path by which the configuration names
         * them. */
        d9d_hash source, source_path;
    } origin;
} d9d_checkpointer_state;

/* One array to save or to fill: a box of the tensor `name`, which has shape `whole`. */
typedef struct d9d_checkpointer_tensor {
    const char *name;
    const char *group; /* "model" or "optimizer": the file it goes to */
    d9d_tensor *tensor;
    d9d_shape global_shape;
    int64_t start[D9D_MAX_DIMS]; /* first index of the box */
    bool is_remote;              /* empty, or another rank writes it */
    bool residual;               /* of a master weight: zero where a checkpoint has none */
    bool widens;                 /* float32 is made of a checkpoint's bfloat16 */
    int64_t n_boxes;             /* of the tensor, on all ranks; 0: this one */
    const void *host;            /* its bytes, where they were copied to; NULL: where it is */
} d9d_checkpointer_tensor;

/* A number that is saved by name: how often the optimizer has stepped a parameter. */
typedef struct d9d_checkpointer_count {
    const char *name;
    int64_t *value;
} d9d_checkpointer_count;

/* Numbers in host memory of which every rank has its own: what a metric has counted since the last
 * record, what a task keeps.  A run that goes on with as many ranks gives each its own again, to
 * the bit; with another number rank 0 has those of all, joined in their order, and the others
 * what they began with: it all counts once. */
typedef struct d9d_checkpointer_rank_state {
    const char *name;
    d9d_dtype dtype;       /* D9D_F64 or D9D_I64 */
    int64_t n;             /* at least 1 */
    d9d_comm_op reduce_op; /* how those of two ranks become those of both */
    void *data;
} d9d_checkpointer_rank_state;

/* What a run keeps.  Names are borrowed; a name stands for one box at most. */
typedef struct d9d_checkpointer_set {
    d9d_checkpointer_tensor *items;
    size_t n;
    d9d_checkpointer_count *counts;
    size_t n_counts;
    d9d_checkpointer_rank_state *rank_states; /* the same of all ranks */
    size_t n_rank_states;
    bool partial;          /* the checkpoint may hold tensors that are not in the set */
    const char *optimizer; /* name of the kind whose state is in it; NULL: of none */
} d9d_checkpointer_set;

/* All of a run's arrays: parameters, or those that are trained alone (the set is partial then),
 * optimizer state (`opt` may be NULL), and step counts of trainable parameters; in the arena.
 * Parameters and optimizer must outlive it. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpointer_set_make(const d9d_params *params,
                                                          d9d_optimizer *opt, bool trainable_only,
                                                          d9d_arena *a, d9d_checkpointer_set *out);

/* Cells besides; the list is in the arena.  EINVAL for what is none. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpointer_set_add_rank_state(
    d9d_checkpointer_set *set, const d9d_checkpointer_rank_state *states, size_t n, d9d_arena *a);

/* Those of the set that this rank writes; in the arena. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpointer_set_local(const d9d_checkpointer_set *set,
                                                           d9d_arena *a, d9d_checkpointer_set *out);

/* Of all its tensors. */
D9D_API uint64_t d9d_checkpointer_set_bytes(const d9d_checkpointer_set *set);

/* Bytes that the ranks' parts take in a checkpoint's manifest, at most, of which each rank, or each
 * stage's first for ranks that are like it, gives what its set of d9d_checkpointer_set_local()
 * knows: all boxes of tensors whose first is here, and this rank's files. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpointer_manifest_bytes(const d9d_checkpointer_set *here,
                                                                uint64_t *tensors, uint64_t *files);
/* *bytes: of the manifest, with the sum of all shares.  ECONFIG where it is larger than what is
 * read. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpointer_manifest_check_bytes(uint64_t shares,
                                                                      int64_t ranks,
                                                                      uint64_t *bytes);

/* "dir/step-00001000", in the arena; NULL when memory is out. */
D9D_API char *d9d_checkpointer_path(d9d_arena *a, const char *dir, int64_t step);

/* Write `dir`/step-N, making `dir` if need be.  A step-N that is there (damaged, or not finite,
 * for else the run would have resumed from it) is replaced whole.  A full disk is EIO with path
 * and bytes; EIO too when another process holds the lock.
 *
 * Collective: over the world of `mesh` (NULL: this process alone), with the same directory and
 * state.  Each rank writes what its set has; a box that several keep is in one of their sets. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpointer_write(const char *dir,
                                                       const d9d_checkpointer_state *state,
                                                       const d9d_checkpointer_set *set,
                                                       d9d_mesh *mesh, const d9d_log *log);

/* Remove what killed saves left behind and, unless `keep` is 0, every checkpoint that is older
 * than the `keep` newest usable ones.  Usable is: finite, with all files at their sizes; hashes
 * are not read.  A directory without a manifest is not touched. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpointer_prune(const char *dir, int64_t keep,
                                                       const d9d_log *log);
/* Remove the checkpoint of `step`, the lock, and `dir` itself unless something else lies in it. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpointer_remove(const char *dir, int64_t step,
                                                        const d9d_log *log);

/* The newest usable checkpoint in `dir`, hashes verified: its path in the arena.  NULL when there
 * is no step-* at all (or no `dir`).  EVERIFY when there are some and none can be used: a run
 * does not start from scratch over them unasked.
 *
 * Collective: over the job (NULL: this process alone).  Rank 0 looks in `dir`, and each rank reads
 * its part of the bytes. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpointer_latest(const char *dir, d9d_bootstrap *boot,
                                                        const d9d_log *log, d9d_arena *a,
                                                        const char **path);
/* The one that it will be if no file is damaged: manifests and sizes alone are looked at. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpointer_latest_unverified(const char *dir, d9d_arena *a,
                                                                   const char **path);

/* The state alone; and that the set could be filled, EMISMATCH as below.  The set's tensors may
 * have no memory yet. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpointer_check(const char *path,
                                                       const d9d_checkpointer_set *set,
                                                       d9d_checkpointer_state *state);

/* Fill the set and the state.  Only files that have some of the set are looked at, as many ranks
 * read at once; their sizes are checked, hashes are not read again.  EMISMATCH, before
 * any tensor is changed, for a tensor or count of the set that the checkpoint lacks, has in
 * another dtype or whole shape, or has in part only; and for one that the set lacks, unless it
 * is partial.  Residuals that are not there and optimizer state that is widened, as of older
 * checkpoints, are a line each in the log. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpointer_read(const char *path,
                                                      const d9d_checkpointer_set *set,
                                                      const d9d_log *log,
                                                      d9d_checkpointer_state *state);
/* The set's rank state, of rank `rank` of `ranks`.  What a checkpoint does not hold, as older ones
 * do not, or has in another form, stays as it is, which one warning says. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpointer_read_rank_state(const char *path,
                                                                 const d9d_checkpointer_set *set,
                                                                 int rank, int ranks,
                                                                 const d9d_log *log);

#ifdef __cplusplus
}
#endif
#endif /* D9D_CHECKPOINTER_CHECKPOINTER_H */
