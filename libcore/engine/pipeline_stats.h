/* pipeline_stats.h - compute and wait times of a pipeline's ranks, measured in every training step
 * and shared with all ranks without a collective of their own.
 *
 *     D9D_TRY(d9di_pipeline_stats_open(&engine, n_micro, &arena, &b));
 *     d9d_grad_finalize_init(..., b.n, ...);
 *     each step k:
 *         D9D_TRY(d9di_pipeline_stats_begin(&b, k));       // times this step's executions
 *         ... the micro-batches, then the end of the step with b.local ...
 *     when the sums of step k are there:
 *         d9di_pipeline_stats_receive(&b, k, sums);
 *         if (d9di_pipeline_stats_poll(&b, &record))       // of step k - 2
 *
 * The times of a step are known when the device has finished it, one step later.  They are then
 * summed with the report of the step after that.
 */
#ifndef D9DI_ENGINE_PIPELINE_STATS_H
#define D9DI_ENGINE_PIPELINE_STATS_H

#include "d9d/track/track.h"
#include "engine/engine.h"

typedef struct d9di_pipeline_stats {
    d9di_engine *engine;
    int64_t n;                       /* numbers per rank; 0 without a pipeline: off */
    d9d_stage_timer *stage_timer[2]; /* of step k: [k % 2] */
    int64_t step[2];                 /* the step that each timer has; -1: none */
    int64_t reported[2];             /* the step that step k's report carries: [k % 2]; -1: none */
    double *local;                   /* [n]: added to this step's report */
    d9d_stage_times *times;
    int64_t micros;
    d9d_track_pipeline_record record;
    double *values; /* of the record */
    bool has_record;
} d9di_pipeline_stats;

int64_t d9di_pipeline_stats_width(const d9di_engine *e); /* n */
d9d_status d9di_pipeline_stats_open(d9di_engine *e, int64_t n_micro, d9d_arena *a,
                                    d9di_pipeline_stats *out);
void d9di_pipeline_stats_release(d9di_pipeline_stats *b);

/* Call for every step in order; the timer's previous step, k - 2, must have completed. */
d9d_status d9di_pipeline_stats_begin(d9di_pipeline_stats *b, int64_t step);
/* sums [n]: the sum of all ranks' `local` in that step's report. */
void d9di_pipeline_stats_receive(d9di_pipeline_stats *b, int64_t step, const double *sums);
/* Returns the newest received record once; valid until the next receive. */
bool d9di_pipeline_stats_poll(d9di_pipeline_stats *b, d9d_track_pipeline_record *out);

#endif /* D9DI_ENGINE_PIPELINE_STATS_H */
