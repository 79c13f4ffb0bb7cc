/* train_run.h - what is fixed for a training run once it is checked: its configuration, job, paths,
 * data and length.  Every other part reads it, and none of them writes it.  Where a stream ends
 * before its steps are done, train.c shortens it to those that were.
 */
#ifndef D9DI_TRAIN_TRAIN_RUN_H
#define D9DI_TRAIN_TRAIN_RUN_H

#include "d9d/job/events.h"
#include "d9d/sched/lr.h"
#include "d9d/train/train.h"
#include "job/run_dir.h"
#include "tasks/tasks.h"

typedef struct d9di_train_run {
    const d9d_train_config *c; /* borrowed, as where and log */
    const d9d_job *where;
    const d9d_log *log;
    int rank;
    d9di_run_dir dir;
    d9d_job_events *events;
    d9d_values *values; /* what event handlers record; on rank 0 they are written */
    d9di_run_data data;
    d9d_lr_schedule *lr;
    int64_t n_micro, total_steps; /* n_micro: micro-batches of this rank in a step */
    const char *micro_batch_term; /* what of the loss is over a micro-batch; NULL: nothing */
    int64_t iterations;           /* steps that take the same samples; 1 but for generated ones */
    bool resumes;                 /* the run directory already has records of this run */
} d9di_train_run;

/* Checks what of the configuration needs no model; opens events and data, and sets the paths.  `a`
 * outlives the run. */
d9d_status d9di_train_run_open(d9di_train_run *run, const d9di_task *task, d9d_arena *a);
/* Opens the learning rate's schedule, of all steps; then limits a trial to its own. */
d9d_status d9di_train_run_open_schedule(d9di_train_run *run);
/* The steps of a run that goes on after `step` steps and `samples` samples, which may have been of
 * another size: those that the data has samples for.  ECONFIG if trainer.run.steps are more. */
d9d_status d9di_train_run_go_on(d9di_train_run *run, int64_t step, int64_t samples);
/* Finds out whether the run directory has records; refuses it if the configuration does not
 * resume. */
d9d_status d9di_train_run_check_dir(d9di_train_run *run);
/* Refuses paths of outputs that could not be created. */
d9d_status d9di_train_run_check_paths(const d9di_train_run *run);
void d9di_train_run_close(d9di_train_run *run);

/* Triggers an event; its size and id are set here. */
d9d_status d9di_train_run_trigger(const d9di_train_run *run, const char *id, d9d_job_event e);
/* Triggers an event of the step after `step` steps. */
d9d_status d9di_train_run_trigger_step(const d9di_train_run *run, const char *id, int64_t step);
/* True if the step after `step` steps takes new samples: a run can be saved there. */
bool d9di_train_run_is_at_round(const d9di_train_run *run, int64_t step);
/* True if `step` steps are all of them. */
bool d9di_train_run_is_done(const d9di_train_run *run, int64_t step);
/* True if the base is quantised: the run's result is its adapters alone. */
bool d9di_train_run_exports_adapters(const d9di_train_run *run);
/* Where the finished model, or the adapters, are to be. */
const char *d9di_train_run_export_dir(const d9di_train_run *run);
/* True if the export directory has them. */
bool d9di_train_run_is_exported(const d9di_train_run *run);
/* True if nothing is left to do after this step: it is the last, and the model is exported. */
bool d9di_train_run_is_complete(const d9di_train_run *run, int64_t step);
/* The data-parallel size: the number of ranks with different samples. */
int64_t d9di_train_run_dp_size(const d9di_train_run *run);
/* Describes the samples of the step that begins at this sample of the stream. */
d9di_run_data_samples_text d9di_train_run_describe_step(const d9di_train_run *run, int64_t first);

#endif /* D9DI_TRAIN_TRAIN_RUN_H */
