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
typedef struct d9di_pending {
    bool open;
    d9d_readback *report; /* d9d_step_end's more and report; without targets it is not used */
    bool counts;          /* there are targets in it, on some rank */
    d9d_save_state before;
    double lr, flops;
    d9d_device_event *begun; /* the device's, when it was begun */
    const d9d_device_event
        *from; /* that, or the end of the step before where the host waited for it */
    d9d_device_event *done;
    int64_t data_ns;
    size_t watched; /* micro-batches whose predictions come */
    size_t told;    /* ... and whose documents' losses do */
} d9di_pending;

/* What one step found out, and where the run stood after it. */
typedef struct d9di_train_result {
    double loss, norm, lr, ms, data_ms;
    double mfu; /* NaN where the device's peak is not known */
    int64_t targets;
    int64_t step, tokens, samples;
    size_t watched, told; /* as in d9di_pending */
} d9di_train_result;

typedef struct d9di_train {
    const d9d_train_config *c;
    const d9d_job *where;
    const d9d_log *log;
    int rank;
    d9d_arena arena;
    d9di_run_dir dir;
    d9d_stop *stop;
    d9d_events *events;
    d9di_task task;
    d9di_metrics metrics;
    d9di_evaluations evaluations;
    d9di_experts experts;
    d9di_culprits culprits;
    const char **names; /* of values in records: those of metrics, then of experts */
    double *values;     /* of the record that is held */
    d9di_data data;
    d9d_feed *feed;
    d9di_ledger ledger; /* closed where it is not wanted */
    d9di_engine engine;
    d9d_optimizer *optimizer;
    d9d_lr *lr;
    d9d_tracker *tracker;
    d9d_sinks *sinks;     /* of the tracker */
    d9d_save_set set;     /* what is kept here */
    d9d_save_state state; /* after the steps that were queued; tokens: whose reports have come */
    d9d_step_end end;
    d9di_bubble bubble;        /* what the ranks of the pipeline wait for */
    d9di_pending pending[2];   /* of the step k: [k % 2] */
    d9d_device_event *ends[4]; /* [k % 4]: the device is done with it */
    d9di_train_result held;    /* a record that waits for what all ranks' metrics say */
    bool holds;
    bool stepped;                  /* a report has come */
    d9d_trace *trace;              /* of the steps that are being traced; NULL: none */
    d9di_trace_file *traced;       /* of those before, on its way; NULL: none */
    uint64_t waits;                /* for the device while steps were queued, but the first two */
    struct d9d_save_origin origin; /* of every state that is saved */
    int64_t n_micro, total_steps;
    d9di_saver *saver;  /* NULL: of a trial */
    int64_t saved_step; /* of the newest checkpoint that this life read or began; -1: none */
    bool goes_on;       /* the directory has records of this run */
    bool told;          /* by some rank, to save and leave */
    bool tired;         /* by rank 0, to sleep */
} d9di_train;

/* --- train_run.c -------------------------------------------------------------------- */

d9d_status d9di_train_tell(const d9di_train *r, const char *id, d9d_event e);
/* What happens in the step that comes, or is being queued. */
d9d_status d9di_train_tell_step(const d9di_train *r, const char *id);
/* Every step is. */
bool d9di_train_done(const d9di_train *r);
const char *d9di_train_export_dir(const d9di_train *r);
/* Is a model there? */
bool d9di_train_exported(const d9di_train *r);
/* Ranks that have other samples than this one, and its number among them. */
int64_t d9di_train_replicas(const d9di_train *r);
int d9di_train_replica(const d9di_train *r);
/* What may take long is whatever is not a step: beginning, the first one, saving, the end. */
typedef enum d9di_train_phase {
    D9DI_TRAIN_START, /* of a run, and of one that wakes */
    D9DI_TRAIN_STEP,
    D9DI_TRAIN_EVALUATION,
    D9DI_TRAIN_SAVE,
    D9DI_TRAIN_EXPORT
} d9di_train_phase;
#define D9DI_TRAIN_START_LIMIT "before the first step, trainer.timeout.init_timeout"
#define D9DI_TRAIN_SAVE_LIMIT  "in a save, trainer.timeout.save_timeout"
void d9di_train_allow(d9di_train *r, d9di_train_phase phase);
/* Seconds of a collective call in a save. */
double d9di_train_save_s(const d9di_train *r);

/* --- opening ------------------------------------------------------------------------ */

/* All that can be wrong without memory for a model.  `resume_from` is NULL when the run begins. */
d9d_status d9di_train_check(d9di_train *r, const char **resume_from);
d9di_engine_how d9di_train_engine_how(const d9di_train *r, bool resumes);
/* What checkpoints have. */
d9d_status d9di_train_set(d9di_train *r, const d9d_params *params, d9d_optimizer *opt,
                          d9d_save_set *out);

d9d_status d9di_train_fill(d9di_train *r, const char *resume_from);
void d9di_train_close(d9di_train *r);

/* --- a step ------------------------------------------------------------------------- */

/* The batches of the steps that are left. */
d9d_status d9di_train_feed(d9di_train *r);
/* Forward and backward of every micro-batch of the next step. */
d9d_status d9di_train_learn(d9di_train *r, int64_t *targets, double *flops);
d9di_samples_text d9di_train_samples(const d9di_train *r);
/* Queue all of the next step; the host waits for nothing. */
d9d_status d9di_train_queue(d9di_train *r);
/* What came of a queued step. */
d9d_status d9di_train_take(d9di_train *r, d9di_pending *p, d9di_train_result *out);

/* A step whose loss or norm is not finite ends the run: never D9D_OK. */
d9d_status d9di_train_blame(d9di_train *r, const d9di_pending *p, const d9d_step_report *report);

/* Queue the next step, traced where the configuration says so. */
d9d_status d9di_train_traced(d9di_train *r);

/* --- records: on every rank, written by rank 0 -------------------------------------- */

/* One process at a time may write them. */
d9d_status d9di_train_record_open(d9di_train *r, const json_t *resolved, const char *resume_from);
/* Does step k, counted from 1, have a record? */
bool d9di_train_recorded(const d9di_train *r, int64_t k);
/* What came of a step, in their order.  With metrics its record is held until the next step's
 * report is there, before which it is to be written. */
d9d_status d9di_train_record(d9di_train *r, const d9di_train_result *s);
d9d_status d9di_train_record_held(d9di_train *r);
/* Of the pipeline in a step that is over, if it has been heard of. */
d9d_status d9di_train_record_pipeline(d9di_train *r);
/* No checkpoint without its records. */
d9d_status d9di_train_record_sync(d9di_train *r);
/* The last record of this life.  A failure to write it does not hide the one before. */
d9d_status d9di_train_record_end(d9di_train *r, d9d_status st);

/* --- evaluations --------------------------------------------------------------------- */

d9d_status d9di_train_evaluation_cells(d9di_train *r, d9d_save_set *set);
/* Behind cells that were read.  Collective. */
d9d_status d9di_train_evaluation_agree(d9di_train *r);
/* Is there one to be done after the steps that are done now? */
bool d9di_train_evaluates(const d9di_train *r);
/* Do what is due, with nothing queued; who is told to leave meanwhile leaves the rest. */
d9d_status d9di_train_evaluate(d9di_train *r);

d9d_status d9di_train_export(d9di_train *r, d9d_train_summary *out);

#endif /* D9DI_TRAIN_TRAIN_RUN_H */
