/* train_checkpoint.h - the checkpointer of a training run: which checkpoint it resumes from,
 * whether that one is its own, and its saves.
 *
 *     D9D_TRY(d9di_train_checkpointer_find(&run, true, &arena, &path));
 *     D9D_TRY(d9di_train_checkpointer_start(&ck, &run, &state));
 *     D9D_TRY(d9di_train_checkpointer_check(&ck, &run, hf_config, path, &set, &state));
 *     ... memory is allocated; ck.set is made ...
 *     D9D_TRY(d9di_train_checkpointer_open(&ck, &run, &engine, &timeouts, tracker, state.step));
 *     D9D_TRY(d9di_train_checkpointer_resume(&ck, &run, path, &state));
 *     D9D_TRY(d9di_train_checkpointer_save(&ck, &state, false));
 *     D9D_TRY(d9di_train_checkpointer_wait_copy(&ck));        // then what is saved may change
 */
#ifndef D9DI_TRAIN_TRAIN_CHECKPOINT_H
#define D9DI_TRAIN_TRAIN_CHECKPOINT_H

#include "checkpointer/checkpointer_async.h"
#include "checkpointer/checkpointer_local.h"
#include "d9d/checkpointer/checkpointer.h"
#include "engine/engine.h"
#include "train/train_run.h"
#include "train/train_timeout.h"

typedef struct d9di_train_checkpointer {
    d9di_checkpointer_async *async;        /* NULL in a trial */
    d9d_checkpointer_set set;              /* what this rank's checkpoints contain; the owner's */
    struct d9d_checkpointer_origin origin; /* stored in every checkpoint */
    d9d_hash reference;                    /* of a frozen model, also where it is not stored */
    const d9di_frozen_model *frozen;       /* the engine's */
    int64_t saved_step; /* the newest checkpoint that this process read or began; -1: none */
    int64_t read_step;  /* the one that it read, or that is older than local ones; -1: none */
    d9di_checkpointer_local *local;      /* NULL: off */
    int64_t local_step;                  /* the newest local checkpoint that it began; -1: none */
    d9di_checkpointer_local_found found; /* step -1: the run does not resume from local ones */
} d9di_train_checkpointer;

/* The step of the newest complete checkpoint; -1: none. */
int64_t d9di_train_checkpointer_complete_step(const d9di_train_checkpointer *ck);
/* The checkpoint to resume from, or NULL; in the arena.  `whole`: each rank verifies a share of it.
 * Otherwise the one that is probably the newest, unverified.  Collective over the job. */
d9d_status d9di_train_checkpointer_find(const d9di_train_run *run, bool whole, d9d_arena *a,
                                        const char **path);
/* ECONFIG if local checkpoints are on and this rank has no folder for them. */
d9d_status d9di_train_checkpointer_check_local_dir(const d9di_train_run *run);
/* If local checkpoints are on and newer than the checkpoint at *path, which may be NULL: ck->found
 * is where they are, and *path a name of them for people.  Collective over the job. */
d9d_status d9di_train_checkpointer_find_local(d9di_train_checkpointer *ck,
                                              const d9di_train_run *run, d9d_arena *a,
                                              const char **path);
/* Rank 0 computes the origin and broadcasts it.  Collective over the job. */
d9d_status d9di_train_checkpointer_open_origin(d9di_train_checkpointer *ck,
                                               const d9di_train_run *run, const d9di_engine *e);
/* The position of a run from scratch. */
d9d_status d9di_train_checkpointer_start(const d9di_train_checkpointer *ck,
                                         const d9di_train_run *run, d9d_checkpointer_state *out);
/* Checks that the checkpoint at `path` belongs to this set, the whole model's, and to the sample
 * stream of *s, a run from scratch; takes its position.  hf_config: the file's path, or NULL. */
d9d_status d9di_train_checkpointer_check(const d9di_train_checkpointer *ck,
                                         const d9di_train_run *run, const char *hf_config,
                                         const char *path, const d9d_checkpointer_set *set,
                                         d9d_checkpointer_state *s);

/* Prepares the saves after `step` steps.  `tracker`: NULL on ranks other than 0.  Collective. */
d9d_status d9di_train_checkpointer_open(d9di_train_checkpointer *ck, const d9di_train_run *run,
                                        const d9di_engine *e, const d9di_train_timeouts *timeouts,
                                        d9d_tracker *tracker, int64_t step);
void d9di_train_checkpointer_close(d9di_train_checkpointer *ck);
/* Fills the set from a checkpoint. */
d9d_status d9di_train_checkpointer_resume(d9di_train_checkpointer *ck, const d9di_train_run *run,
                                          const char *path, d9d_checkpointer_state *state);
/* Local checkpoints: after d9di_train_checkpointer_open().  If there are some to resume from, fills
 * the set and the state, which was that of a run from scratch.  Collective. */
d9d_status d9di_train_checkpointer_open_local(d9di_train_checkpointer *ck,
                                              const d9di_train_run *run, const d9di_engine *e,
                                              const d9di_train_timeouts *timeouts,
                                              d9d_tracker *tracker);
d9d_status d9di_train_checkpointer_resume_local(d9di_train_checkpointer *ck,
                                                const d9di_train_run *run, const char *path,
                                                d9d_checkpointer_state *state);
bool d9di_train_checkpointer_local_is_due(const d9di_train_checkpointer *ck,
                                          const d9di_train_run *run, int64_t step);
/* Begins a save.  `last`: returns when it is complete, as no step follows.  Collective. */
d9d_status d9di_train_checkpointer_save(d9di_train_checkpointer *ck,
                                        const d9d_checkpointer_state *state, bool last);
d9d_status d9di_train_checkpointer_save_local(d9di_train_checkpointer *ck,
                                              const d9d_checkpointer_state *state);
/* Waits until what is saved, on the disk or in memory, may be changed. */
d9d_status d9di_train_checkpointer_wait_copy(d9di_train_checkpointer *ck);
/* Waits until nothing of this rank is saved any more.  Collective. */
d9d_status d9di_train_checkpointer_finish(d9di_train_checkpointer *ck);

#endif /* D9DI_TRAIN_TRAIN_CHECKPOINT_H */
