/* train_step.h - the stepper: enqueues a step, and collects its report one step later.
 *
 *     D9D_TRY(d9di_train_stepper_open(&s, &run, &arena));     // after the engine
 *     D9D_TRY(d9di_train_stepper_open_prefetcher(&s, &run, 0));
 *     each step:
 *         D9D_TRY(d9di_train_stepper_enqueue(&s, &run, &control, saves));
 *         p = d9di_train_stepper_pending(&s, 2);
 *         if (p != NULL)
 *             D9D_TRY(d9di_train_stepper_collect(&s, &run, p, &result));
 *
 * It owns what a step changes: the optimizer, the position, and what is on the device between two
 * steps.  What others need of a step is in its result.
 */
#ifndef D9DI_TRAIN_TRAIN_STEP_H
#define D9DI_TRAIN_TRAIN_STEP_H

#include "d9d/device/readback.h"
#include "engine/moe_stats.h"
#include "engine/pipeline_stats.h"
#include "train/rollout.h"
#include "train/train_checkpoint.h"
#include "train/train_control.h"
#include "train/train_in_backward.h"
#include "train/train_integrity.h"
#include "train/train_run.h"
#include "train/train_step_result.h"
#include "train/train_stragglers.h"

/* A step enqueued on the device, whose report is pending. */
typedef struct d9di_train_pending_step {
    bool open;
    d9d_readback *report; /* of d9d_grad_finalize; unused in a step without targets */
    bool counts;          /* some rank has targets in it */
    d9d_checkpointer_state state_before;
    double lr, flops;
    d9d_device_event *start_event; /* recorded when the step began */
    const d9d_device_event
        *start; /* that, or the end of the previous step if the host waited for it */
    d9d_device_event *end_event;
    int64_t data_ns;
    size_t n_predictions; /* micro-batches with pending predictions */
    size_t n_losses;      /* micro-batches with pending losses of documents */
} d9di_train_pending_step;

typedef struct d9di_train_stepper {
    d9di_engine *engine;               /* borrowed, with its task */
    d9di_train_integrity *integrity;   /* borrowed */
    d9di_train_stragglers *stragglers; /* borrowed */
    d9d_optimizer *optimizer;
    d9d_checkpointer_state
        state; /* after the enqueued steps; `tokens` covers collected reports only */
    d9d_prefetcher *prefetcher;
    d9di_rollout *rollout;   /* borrowed: what is learned, if the task generates it */
    d9d_batch *ahead;        /* [micro-batches of a step] of a task whose loss has parts, or NULL */
    d9d_tensor part_targets; /* of the newest step, for such a task */
    d9d_grad_finalize grad_finalize;
    d9di_train_in_backward in_backward;
    d9di_expert_replication replication;
    d9di_moe_stats moe_stats;
    d9di_pipeline_stats pipeline_stats; /* compute and wait times of the pipeline */
    d9di_train_pending_step pending[2]; /* step k is at [k % 2] */
    d9d_device_event *ends[4];          /* [k % 4]: the end of step k on the device */
} d9di_train_stepper;

/* Allocates everything but the optimizer and the copies of experts, for a materialised engine.  `a`
 * outlives the stepper. */
d9d_status d9di_train_stepper_open(d9di_train_stepper *s, const d9di_train_run *run, d9d_arena *a);
/* Opens the prefetcher for the remaining steps.  With `ahead` it reads the samples of the
 * data-parallel rank so many places after this one. */
d9d_status d9di_train_stepper_open_prefetcher(d9di_train_stepper *s, const d9di_train_run *run,
                                              int ahead);
void d9di_train_stepper_close(d9di_train_stepper *s); /* before the engine is released */

/* Enqueues the whole next step, without blocking the host.  `saves`: those in flight, whose copies
 * the update waits for. */
d9d_status d9di_train_stepper_enqueue(d9di_train_stepper *s, const d9di_train_run *run,
                                      d9di_train_control *control, d9di_train_checkpointer *saves);
/* The pending step that was enqueued as the last one (age 1) or the one before (2), or NULL. */
d9di_train_pending_step *d9di_train_stepper_pending(d9di_train_stepper *s, int64_t age);
/* True if collecting it blocks the host for no report. */
bool d9di_train_pending_step_is_ready(const d9di_train_pending_step *p);
/* Collects the report of a pending step; call in step order. */
d9d_status d9di_train_stepper_collect(d9di_train_stepper *s, const d9di_train_run *run,
                                      d9di_train_pending_step *p, d9di_train_step_result *out);

/* --- shared with train_in_backward.c -------------------------------------------------- */

/* What this rank adds to a step's targets and losses. */
d9d_grad_finalize_local d9di_train_stepper_targets(const d9di_train_stepper *s, int64_t targets);
/* True if some rank has a target in the step that is being enqueued. */
d9d_status d9di_train_stepper_has_targets(const d9di_train_stepper *s, const d9di_train_run *run,
                                          int64_t targets, bool *out);

/* --- shared with train_nonfinite.c ---------------------------------------------------- */

/* Enqueues forward and backward of all micro-batches of the next step. */
d9d_status d9di_train_stepper_forward_backward(d9di_train_stepper *s, const d9di_train_run *run,
                                               int64_t *targets, double *flops);
/* Ends the run after a step whose loss or norm is not finite: never returns D9D_OK. */
d9d_status d9di_train_stepper_diagnose(d9di_train_stepper *s, const d9di_train_run *run,
                                       const d9di_train_pending_step *p,
                                       const d9d_grad_finalize_report *report);

#endif /* D9DI_TRAIN_TRAIN_STEP_H */
