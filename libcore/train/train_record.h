/* train_record.h - the recorder: metrics.jsonl, samples.jsonl, sinks, the manifest, and the changes
 * of the configuration since the last start.  It is on every rank; rank 0 writes.
 *
 *     D9D_TRY(d9di_train_recorder_open_metrics(&rec, &run, &task, &arena));
 *     D9D_TRY(d9di_train_recorder_open(&rec, &run, step, resolved, NULL));
 *     D9D_TRY(d9di_train_recorder_open_values(&rec, dev, world, names, n, &arena));
 *     each step:
 *         D9D_TRY(d9di_train_recorder_flush(&rec, &run));     // before its report is collected
 *         D9D_TRY(d9di_train_recorder_add(&rec, &run, &result));
 *     st = d9di_train_recorder_end(&rec, &run, st, step);
 *
 * With metrics, a step's record is held until the next step's report, which the reduction of the
 * metrics arrives with.  The recorder sees what a step has reported, never what the step owns.
 */
#ifndef D9DI_TRAIN_TRAIN_RECORD_H
#define D9DI_TRAIN_TRAIN_RECORD_H

#include "d9d/device/energy.h"
#include "d9d/track/sink.h"
#include "d9d/track/track.h"
#include "engine/loss_attribution.h"
#include "tasks/run_metrics.h"
#include "train/samples_log.h"
#include "train/train_run.h"
#include "train/train_step_result.h"

typedef struct d9di_train_recorder {
    d9d_tracker *tracker;         /* on rank 0 */
    d9d_file lock;                /* of the checkpoint directory, on rank 0 */
    d9d_sinks *sinks;             /* of the tracker */
    d9di_samples_log samples_log; /* closed if it is disabled */
    d9di_run_metrics metrics;
    d9di_loss_attribution loss_attribution; /* opened by the owner, before the values */
    d9d_device *dev;                        /* borrowed, as world */
    d9d_comm *world;                        /* NULL: a single rank */
    const char **names; /* [n] of values in records: metrics, then statistics of experts */
    double *values;     /* [n] of the held record */
    size_t n;
    d9di_train_step_result held; /* a record that waits for the reduction of metrics */
    bool has_held;
    d9d_energy_meter *meter; /* of rank 0's device; NULL: none */
    struct d9di_train_energy {
        int64_t tokens;                  /* of the run, at the last reading */
        double joules, tokens_per_joule; /* of the held record; NaN: unknown */
        bool is_metered;                 /* once the meter has been read */
    } energy;
} d9di_train_recorder;

/* Opens and checks the configuration's metrics, before there are any records. */
d9d_status d9di_train_recorder_open_metrics(d9di_train_recorder *rec, const d9di_train_run *run,
                                            const d9di_task *task, d9d_arena *a);
/* Opens the records of a start after `step` steps; one process at a time may write them.
 * resume_from: the checkpoint, or NULL.  Collective over the job. */
d9d_status d9di_train_recorder_open(d9di_train_recorder *rec, const d9di_train_run *run,
                                    int64_t step, const json_t *resolved, const char *resume_from);
/* Collects the names of values: the metrics', then those of the experts' statistics. */
d9d_status d9di_train_recorder_open_values(d9di_train_recorder *rec, d9d_device *dev,
                                           d9d_comm *world, const char *const *experts, size_t n,
                                           d9d_arena *a);
void d9di_train_recorder_close(d9di_train_recorder *rec); /* before the engine is released */

/* Records a step's report; call in step order. */
d9d_status d9di_train_recorder_add(d9di_train_recorder *rec, const d9di_train_run *run,
                                   const d9di_train_step_result *s);
/* Writes the held record, if any. */
d9d_status d9di_train_recorder_flush(d9di_train_recorder *rec, const d9di_train_run *run);
/* Writes the own values of steps up to this one, whose reports have been collected. */
d9d_status d9di_train_recorder_write_values(d9di_train_recorder *rec, const d9di_train_run *run,
                                            int64_t step);
/* Records a pipeline's times, if their step has a record. */
d9d_status d9di_train_recorder_add_pipeline(d9di_train_recorder *rec, const d9di_train_run *run,
                                            d9d_track_pipeline_record *record);
/* Makes the records durable, before a checkpoint is committed. */
d9d_status d9di_train_recorder_sync(d9di_train_recorder *rec, const d9di_train_run *run);
/* Writes the end line.  Its failure does not hide the status `st`. */
d9d_status d9di_train_recorder_end(d9di_train_recorder *rec, const d9di_train_run *run,
                                   d9d_status st, int64_t step);

#endif /* D9DI_TRAIN_TRAIN_RECORD_H */
