/* train_parts.h - a training run: its parts, for train.c and train_open.c, which compose them.
 *
 *     part          changes                                   may see
 *     run           nothing, once it is checked, but its      -
 *                   length where a stream ends
 *     stream        the place in the data                     run, control
 *     timeouts      nothing                                   -
 *     control       exit and sleep, as signals ask            -
 *     engine        the model on the ranks                    task, loss attribution
 *     integrity     checksums                                 run, engine, stepper
 *     stragglers    times of computing, who is slow       run, engine
 *     rollout       completions of the round                  run, engine
 *     stepper       optimizer, position, steps in flight      run, engine, control, saves,
 *                                                             integrity, stragglers, rollout
 *     recorder      metrics.jsonl and the other records       run, results of steps
 *     profiler      traces                                    run, device
 *     memory        requests to the system, as of a step      device
 *     evaluator     the steps of the last evaluations         run, engine, tracker
 *     checkpointer  saves, what a run resumes from            run, engine, position
 *     export        (train_export.h, without a state)         run, engine, checkpointer, position
 *
 * No part has a pointer to the whole.  What goes from one to another is a value, such as a step's
 * result, and train.c passes it on.
 */
#ifndef D9DI_TRAIN_TRAIN_PARTS_H
#define D9DI_TRAIN_TRAIN_PARTS_H

#include "engine/profiler.h"
#include "train/rollout.h"
#include "train/train_checkpoint.h"
#include "train/train_control.h"
#include "train/train_evaluate.h"
#include "train/train_integrity.h"
#include "train/train_memory.h"
#include "train/train_record.h"
#include "train/train_run.h"
#include "train/train_step.h"
#include "train/train_stream.h"
#include "train/train_timeout.h"
#include "train/train_times.h"

typedef struct d9di_train {
    d9di_train_run run;
    d9di_train_timeouts timeouts;
    d9di_train_times times;
    d9di_train_control control;
    d9di_task task;
    d9di_engine engine;
    d9di_train_integrity integrity;
    d9di_train_stragglers stragglers;
    d9di_rollout rollout;
    d9di_train_stepper stepper;
    d9di_train_recorder recorder;
    d9di_profiler profiler;
    d9di_train_memory memory;
    d9di_train_evaluator evaluator;
    d9di_train_stream stream;
    d9di_train_checkpointer checkpointer;
    d9d_arena arena; /* of all parts */
} d9di_train;

/* Runs all checks that need no model memory.  *resume_from is the checkpoint to resume from, or
 * NULL. */
d9d_status d9di_train_check(d9di_train *r, const char **resume_from);
/* Allocates everything, and reads the checkpoint. */
d9d_status d9di_train_open(d9di_train *r, const char *resume_from);
void d9di_train_close(d9di_train *r);

#endif /* D9DI_TRAIN_TRAIN_PARTS_H */
