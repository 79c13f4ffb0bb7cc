/* save.h - training checkpoints: written whole, found again, read on any topology.
 *
 *     runs/demo/checkpoints/step-00001000/
 *         manifest.json                 what is here; its presence makes it a checkpoint
 *         model-r00000.safetensors      parameters, by rank
 *         optimizer-r00000.safetensors  optimizer state, by rank
 *
 * A checkpoint is written as step-N.tmp-*, every file is synced, then the directory is
 * renamed.  Which one is newest is decided by what is on disk (manifest, sizes, hashes),
 * never by a pointer file; incomplete and damaged ones are skipped with a warning that says
 * what is wrong with them.
 *
 * The manifest (d9d.checkpoint.v1) names every tensor with dtype and whole shape and the
 * slices that make it up: file, first index, shape.  A reader takes what its own box
 * needs from the slices that meet it, so the topology may change between save and resume.
 */
#ifndef D9D_LOOP_SAVE_H
#define D9D_LOOP_SAVE_H

#include "d9d/base/hash.h"
#include "d9d/base/log.h"
#include "d9d/optim/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The position of a run, as numbers. */
typedef struct d9d_save_state {
    int64_t step;     /* optimizer steps done */
    int64_t samples;  /* of the stream, consumed */
    int64_t tokens;   /* target tokens seen */
    uint64_t seed;
    d9d_hash config;  /* of the resolved configuration's parts that must not change */
    d9d_hash dataset; /* of the dataset's manifest */
    bool finite;      /* loss and norm of the last step were */
    int64_t parent;   /* step this life of the run started from; -1: from scratch */
} d9d_save_state;

/* One array to save or to fill. */
typedef struct d9d_save_tensor {
    const char *name;
    const char *group; /* "model" or "optimizer": the file it goes to */
    d9d_tensor *tensor;
    d9d_shape whole;
    int64_t start[D9D_MAX_DIMS];
} d9d_save_tensor;

/* All of a run's arrays: parameters, optimizer state, step counts; in the arena. */
typedef struct d9d_save_set {
    d9d_save_tensor *items;
    size_t n;
    int64_t *steps; /* the optimizer's, saved in the manifest */
    size_t n_steps;
} d9d_save_set;
D9D_API D9D_MUST_USE d9d_status d9d_save_set_make(const d9d_params *params, d9d_optimizer *opt,
                                                  d9d_arena *a, d9d_save_set *out);

/* Write `dir`/step-N.  Failing leaves nothing behind; older checkpoints are untouched. */
D9D_API D9D_MUST_USE d9d_status d9d_save_write(const char *dir, const d9d_save_state *state,
                                               const d9d_save_set *set, const d9d_log *log);
/* Remove all but the newest `keep` complete checkpoints (0: keep all) and what killed saves
 * left behind. */
D9D_API D9D_MUST_USE d9d_status d9d_save_prune(const char *dir, int64_t keep, const d9d_log *log);

/* The newest complete checkpoint in `dir`: its path in the arena, or NULL when there is none. */
D9D_API D9D_MUST_USE d9d_status d9d_save_newest(const char *dir, const d9d_log *log, d9d_arena *a,
                                                const char **path);
/* Fill the set and the state.  A tensor that is missing, of another dtype or whole shape is
 * EMISMATCH before any is read. */
D9D_API D9D_MUST_USE d9d_status d9d_save_read(const char *path, const d9d_save_set *set,
                                              d9d_save_state *state);

#ifdef __cplusplus
}
#endif
#endif /* D9D_LOOP_SAVE_H */
