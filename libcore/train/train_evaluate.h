/* train_evaluate.h - the evaluator: evaluations between two steps of a training run.
 *
 * It runs the engine's forward (engine/evaluate.h), and sees neither the optimizer nor the position
 * that a step moves.
 */
#ifndef D9DI_TRAIN_TRAIN_EVALUATE_H
#define D9DI_TRAIN_TRAIN_EVALUATE_H

#include "engine/evaluate.h"
#include "train/train_run.h"

typedef struct d9di_train_evaluator {
    d9di_evaluations list;
    d9di_engine *engine; /* borrowed, as the task and the preemption */
    d9di_task *task;
    d9d_preemption *preemption;
} d9di_train_evaluator;

/* Opens the configuration's evaluations; the borrowed members are set.  `a` outlives them. */
d9d_status d9di_train_evaluator_open(d9di_train_evaluator *v, const d9di_train_run *run,
                                     d9d_arena *a);
void d9di_train_evaluator_close(d9di_train_evaluator *v);
/* Appends the steps of the last evaluations as rank state of a checkpoint; in the arena. */
d9d_status d9di_train_evaluator_rank_state(d9di_train_evaluator *v, d9d_arena *a,
                                           d9d_checkpointer_set *set);
/* After rank state was read from a checkpoint.  Collective over the job. */
d9d_status d9di_train_evaluator_sync(d9di_train_evaluator *v, const d9di_train_run *run);

/* True if an evaluation is due after `step` steps. */
bool d9di_train_evaluator_is_due(const d9di_train_evaluator *v, const d9di_train_run *run,
                                 int64_t step);
/* Runs the evaluations that are due, with no step enqueued; `tracker` records them, NULL on ranks
 * other than 0.  *cut: a rank was asked to exit meanwhile, and the rest is skipped.  Collective. */
d9d_status d9di_train_evaluator_run(d9di_train_evaluator *v, const d9di_train_run *run,
                                    d9d_tracker *tracker, int64_t step, bool *cut);

#endif /* D9DI_TRAIN_TRAIN_EVALUATE_H */
