/* pipeline_stats.h - how long the ranks of a pipeline compute and how long they wait, measured in
 * every step of training and heard by all ranks without a call of its own.
 *
 *     D9D_TRY(d9di_pipeline_stats_open(&engine, n_micro, &arena, &b));
 *     d9d_grad_finalize_init(..., b.n, ...);
 *     each step k:
 *         D9D_TRY(d9di_pipeline_stats_begin(&b, k));       // its plays are measured
 *         ... the micro-batches, then the step's end with b.mine ...
 *     when the sums of step k are there:
 *         d9di_pipeline_stats_receive(&b, k, sums);
 *         if (d9di_pipeline_stats_poll(&b, &record))       // of step k - 2
 *
 * What a step took is known when the device is through with it, one step later, and rides on the
 * sums of the step after that.
 */
#ifndef D9DI_ENGINE_PIPELINE_STATS_H
#define D9DI_ENGINE_PIPELINE_STATS_H

#include "d9d/track/track.h"
#include "engine/engine.h"

typedef struct d9di_pipeline_stats {
    d9di_engine *engine;
    int64_t n; /* numbers of a rank; 0 without a pipeline: nothing is measured */
    d9d_stage_timer *stage_timer[2]; /* of step k: [k % 2] */
    int64_t step[2];                 /* whose marks they have; -1: none's */
    int64_t reported[2];             /* by step k's report: [k % 2]; -1: none */
    double *local;                   /* [n]: what goes with this step's report */
    d9d_stage_times *times;
    int64_t micros;
    d9d_track_pipeline_record record;
    double *values; /* of it */
    bool has_record;
} d9di_pipeline_stats;

int64_t d9di_pipeline_stats_width(const d9di_engine *e); /* n */
d9d_status d9di_pipeline_stats_open(d9di_engine *e, int64_t n_micro, d9d_arena *a,
                                    d9di_pipeline_stats *out);
void d9di_pipeline_stats_release(d9di_pipeline_stats *b);

/* Steps in their order; before the second the one two before it is done. */
d9d_status d9di_pipeline_stats_begin(d9di_pipeline_stats *b, int64_t step);
/* sums [n]: of all ranks' `mine` of that step. */
void d9di_pipeline_stats_receive(d9di_pipeline_stats *b, int64_t step, const double *sums);
/* What was heard last, once; valid until the next is heard. */
bool d9di_pipeline_stats_poll(d9di_pipeline_stats *b, d9d_track_pipeline_record *out);

#endif /* D9DI_ENGINE_PIPELINE_STATS_H */
