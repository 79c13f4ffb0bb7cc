/* train_parts.h - the parts of a training run, shared by these files.
 *
 *     train_check.c      checks that need no model memory
 *     train_open.c       allocation and release
 *     train_step.c       enqueues a step; collects its report one step later
 *     train_nonfinite.c  diagnosis of a step that is not finite
 *     train_trace.c      profiled steps
 *     train_evaluate.c   evaluations between steps
 *     train_record.c     records of the run
 *     train_export.c     the finished model
 *     train.c            the loop
 *
 * d9di_train owns all its members except for the borrowed c, where and log.
 */
#ifndef D9DI_TRAIN_TRAIN_PARTS_H
#define D9DI_TRAIN_TRAIN_PARTS_H

#include "d9d/device/readback.h"
#include "engine/engine.h"
#include "engine/moe_stats.h"
#include "engine/pipeline_stats.h"
#include "train/train_checkpoint.h"
#include "train/train_control.h"
#include "train/train_evaluate.h"
#include "train/train_record.h"
#include "train/train_run.h"
#include "train/train_timeout.h"
#include "train/train_trace.h"

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

typedef struct d9di_train {
    d9di_train_run run;
    d9di_train_timeouts timeouts;
    d9di_train_control control;
    d9di_train_recorder recorder;
    d9di_train_evaluator evaluator;
    d9di_train_profiler profiler;
    d9di_train_checkpointer checkpointer;
    d9d_arena arena;
    d9di_task task;
    d9di_moe_stats moe_stats;
    d9d_prefetcher *prefetcher;
    d9di_engine engine;
    d9d_optimizer *optimizer;
    d9d_checkpointer_state
        state; /* after the enqueued steps; `tokens` covers collected reports only */
    d9d_grad_finalize grad_finalize;
    d9di_pipeline_stats pipeline_stats; /* compute and wait times of the pipeline */
    d9di_train_pending_step pending[2]; /* step k is at [k % 2] */
    d9d_device_event *ends[4];          /* [k % 4]: the end of step k on the device */
} d9di_train;

/* --- opening ------------------------------------------------------------------------ */

/* Runs all checks that need no model memory.  *resume_from is the checkpoint to resume from, or
 * NULL. */
d9d_status d9di_train_check(d9di_train *r, const char **resume_from);

d9d_status d9di_train_open(d9di_train *r, const char *resume_from);
void d9di_train_close(d9di_train *r);

/* --- a step ------------------------------------------------------------------------- */

/* Opens the prefetcher for the remaining steps. */
d9d_status d9di_train_open_prefetcher(d9di_train *r);
/* Enqueues forward and backward of all micro-batches of the next step. */
d9d_status d9di_train_forward_backward(d9di_train *r, int64_t *targets, double *flops);
/* Enqueues the whole next step, without blocking the host. */
d9d_status d9di_train_enqueue_step(d9di_train *r);
/* Collects the report of an enqueued step. */
d9d_status d9di_train_collect_step(d9di_train *r, d9di_train_pending_step *p,
                                   d9di_train_step_result *out);

/* Ends the run after a step whose loss or norm is not finite: never returns D9D_OK. */
d9d_status d9di_train_diagnose_nonfinite(d9di_train *r, const d9di_train_pending_step *p,
                                         const d9d_grad_finalize_report *report);

#endif /* D9DI_TRAIN_TRAIN_PARTS_H */
