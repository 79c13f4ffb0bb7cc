/* train_run.h - a training run, as its files share it.
 *
 *     train_check.c    what is wrong with it, found without memory for a model
 *     train_open.c     its memory, until it is closed
 *     train_step.c     a step, queued whole; its report, taken one step late
 *     train_nonfinite.c    why a step is not finite
 *     train_trace.c    steps that are traced
 *     train_evaluate.c  what is measured between steps
 *     train_record.c   what it writes about itself
 *     train_export.c   the finished model
 *     train.c          the loop
 */
#ifndef D9DI_TRAIN_TRAIN_RUN_H
#define D9DI_TRAIN_TRAIN_RUN_H

#include "checkpointer/checkpointer_async.h"
#include "d9d/checkpointer/checkpointer.h"
#include "d9d/device/readback.h"
#include "d9d/device/trace.h"
#include "d9d/job/events.h"
#include "d9d/job/preemption.h"
#include "d9d/track/sink.h"
#include "d9d/track/track.h"
#include "d9d/train/train.h"
#include "engine/engine.h"
#include "engine/evaluate.h"
#include "engine/moe_stats.h"
#include "engine/pipeline_stats.h"
#include "engine/trace_file.h"
#include "job/run_dir.h"
#include "train/samples_log.h"

/* A step that is queued on the device, until its loss has come back. */
typedef struct d9di_train_pending_step {
    bool open;
    d9d_readback *report; /* d9d_grad_finalize's more and report; without targets it is not used */
    bool counts;          /* there are targets in it, on some rank */
    d9d_checkpointer_state state_before;
    double lr, flops;
    d9d_device_event *start_event; /* the device's, when it was begun */
    const d9d_device_event
        *start; /* that, or the end of the step before where the host waited for it */
    d9d_device_event *end_event;
    int64_t data_ns;
    size_t n_predictions; /* micro-batches whose predictions come */
    size_t n_losses;      /* ... and whose documents' losses do */
} d9di_train_pending_step;

/* What one step found out, and where the run stood after it. */
typedef struct d9di_train_step_result {
    double loss, norm, lr, ms, data_ms;
    double mfu; /* NaN where the device's peak is not known */
    int64_t targets;
    int64_t step, tokens, samples;
    size_t n_predictions, n_losses; /* as in d9di_train_pending_step */
} d9di_train_step_result;

typedef struct d9di_train {
    const d9d_train_config *c;
    const d9d_job *where;
    const d9d_log *log;
    int rank;
    d9d_arena arena;
    d9di_run_dir dir;
    d9d_preemption *preemption;
    d9d_job_events *events;
    d9di_task task;
    d9di_run_metrics metrics;
    d9di_evaluations evaluations;
    d9di_moe_stats moe_stats;
    d9di_loss_attribution loss_attribution;
    const char **names; /* of values in records: those of metrics, then of experts */
    double *values;     /* of the record that is held */
    d9di_run_data data;
    d9d_prefetcher *prefetcher;
    d9di_samples_log samples_log; /* closed where it is not wanted */
    d9di_engine engine;
    d9d_optimizer *optimizer;
    d9d_lr_schedule *lr;
    d9d_tracker *tracker;
    d9d_sinks *sinks;         /* of the tracker */
    d9d_checkpointer_set set; /* what is kept here */
    d9d_checkpointer_state
        state; /* after the steps that were queued; tokens: whose reports have come */
    d9d_grad_finalize grad_finalize;
    d9di_pipeline_stats pipeline_stats; /* what the ranks of the pipeline wait for */
    d9di_train_pending_step pending[2]; /* of the step k: [k % 2] */
    d9d_device_event *ends[4];          /* [k % 4]: the device is done with it */
    d9di_train_step_result held_record; /* a record that waits for what all ranks' metrics say */
    bool has_held_record;
    bool stepped;            /* a report has come */
    d9d_trace *trace;        /* of the steps that are being traced; NULL: none */
    d9di_trace_file *traced; /* of those before, on its way; NULL: none */
    uint64_t host_waits;     /* for the device while steps were queued, but the first two */
    struct d9d_checkpointer_origin origin; /* of every state that is saved */
    int64_t n_micro, total_steps;
    d9di_checkpointer_async *checkpointer; /* NULL: of a trial */
    int64_t saved_step; /* of the newest checkpoint that this life read or began; -1: none */
    bool resumes;       /* the directory has records of this run */
    bool should_exit;   /* by some rank, to save and leave */
    bool should_sleep;  /* by rank 0, to sleep */
} d9di_train;

/* --- train_run.c -------------------------------------------------------------------- */

d9d_status d9di_train_trigger_event(const d9di_train *r, const char *id, d9d_job_event e);
/* What happens in the step that comes, or is being queued. */
d9d_status d9di_train_trigger_step_event(const d9di_train *r, const char *id);
/* Every step is. */
bool d9di_train_is_done(const d9di_train *r);
const char *d9di_train_export_dir(const d9di_train *r);
/* Is a model there? */
bool d9di_train_is_exported(const d9di_train *r);
/* Ranks that have other samples than this one, and its number among them. */
int64_t d9di_train_dp_size(const d9di_train *r);
int d9di_train_dp_rank(const d9di_train *r);
/* What may take long is whatever is not a step: beginning, the first one, saving, the end. */
typedef enum d9di_train_phase {
    D9DI_TRAIN_START, /* of a run, and of one that wakes */
    D9DI_TRAIN_STEP,
    D9DI_TRAIN_EVALUATION,
    D9DI_TRAIN_SAVE,
    D9DI_TRAIN_EXPORT
} d9di_train_phase;
#define D9DI_TRAIN_START_TIMEOUT_NAME "before the first step, trainer.timeout.init_timeout"
#define D9DI_TRAIN_SAVE_TIMEOUT_NAME  "in a save, trainer.timeout.save_timeout"
void d9di_train_set_timeout(d9di_train *r, d9di_train_phase phase);
/* Seconds of a collective call in a save. */
double d9di_train_save_timeout_s(const d9di_train *r);

/* --- opening ------------------------------------------------------------------------ */

/* All that can be wrong without memory for a model.  `resume_from` is NULL when the run begins. */
d9d_status d9di_train_check(d9di_train *r, const char **resume_from);
d9di_engine_opts d9di_train_engine_opts(const d9di_train *r, bool resumes);
/* What checkpoints have. */
d9d_status d9di_train_checkpoint_set(d9di_train *r, const d9d_params *params, d9d_optimizer *opt,
                                     d9d_checkpointer_set *out);

d9d_status d9di_train_open(d9di_train *r, const char *resume_from);
void d9di_train_close(d9di_train *r);

/* --- a step ------------------------------------------------------------------------- */

/* The batches of the steps that are left. */
d9d_status d9di_train_open_prefetcher(d9di_train *r);
/* Forward and backward of every micro-batch of the next step. */
d9d_status d9di_train_forward_backward(d9di_train *r, int64_t *targets, double *flops);
d9di_run_data_samples_text d9di_train_describe_samples(const d9di_train *r);
/* Queue all of the next step; the host waits for nothing. */
d9d_status d9di_train_enqueue_step(d9di_train *r);
/* What came of a queued step. */
d9d_status d9di_train_collect_step(d9di_train *r, d9di_train_pending_step *p,
                                   d9di_train_step_result *out);

/* A step whose loss or norm is not finite ends the run: never D9D_OK. */
d9d_status d9di_train_diagnose_nonfinite(d9di_train *r, const d9di_train_pending_step *p,
                                         const d9d_grad_finalize_report *report);

/* Queue the next step, traced where the configuration says so. */
d9d_status d9di_train_enqueue_traced_step(d9di_train *r);

/* --- records: on every rank, written by rank 0 -------------------------------------- */

/* One process at a time may write them. */
d9d_status d9di_train_record_open(d9di_train *r, const json_t *resolved, const char *resume_from);
/* Does step k, counted from 1, have a record? */
bool d9di_train_record_is_due(const d9di_train *r, int64_t k);
/* What came of a step, in their order.  With metrics its record is held until the next step's
 * report is there, before which it is to be written. */
d9d_status d9di_train_record(d9di_train *r, const d9di_train_step_result *s);
d9d_status d9di_train_record_held(d9di_train *r);
/* Of the pipeline in a step that is over, if it has been heard of. */
d9d_status d9di_train_record_pipeline(d9di_train *r);
/* No checkpoint without its records. */
d9d_status d9di_train_record_sync(d9di_train *r);
/* The last record of this life.  A failure to write it does not hide the one before. */
d9d_status d9di_train_record_end(d9di_train *r, d9d_status st);

/* --- evaluations --------------------------------------------------------------------- */

d9d_status d9di_train_evaluation_rank_state(d9di_train *r, d9d_checkpointer_set *set);
/* Behind cells that were read.  Collective. */
d9d_status d9di_train_evaluation_sync(d9di_train *r);
/* Is there one to be done after the steps that are done now? */
bool d9di_train_evaluation_is_due(const d9di_train *r);
/* Do what is due, with nothing queued; who is told to leave meanwhile leaves the rest. */
d9d_status d9di_train_evaluate(d9di_train *r);

d9d_status d9di_train_export(d9di_train *r, d9d_train_summary *out);

#endif /* D9DI_TRAIN_TRAIN_RUN_H */
