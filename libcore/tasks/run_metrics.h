/* run_metrics.h - the metrics of a training run, updated without blocking the host.
 *
 * A step's predictions are read back asynchronously, and counted when the step's report is
 * collected.  The reduction over ranks is enqueued after the newest step, and its result arrives
 * with that step's report.  So metrics add no synchronization:
 *
 *     enqueue   k-1             k                                    k+1
 *     device        k-1             k               reduce(k-1)          k+1
 *     host      enqueue(k-1)    enqueue(k), update(k-1), begin(k-1)  enqueue(k+1), end(k-1), ...
 */
#ifndef D9DI_TASKS_RUN_METRICS_H
#define D9DI_TASKS_RUN_METRICS_H

#include "d9d/checkpointer/checkpointer.h"
#include "d9d/device/readback.h"
#include "d9d/metric/metric.h"
#include "d9d/model/head.h"
#include "d9d/tensor/tensor.h"

/* Predictions of a micro-batch whose readback is pending. */
typedef struct d9di_run_metrics_pending {
    d9d_readback *logits, *labels;
    d9d_dtype dtype;
    int64_t rows, classes;
} d9di_run_metrics_pending;

typedef struct d9di_run_metrics {
    size_t n, width; /* number of metrics; values of all metrics */
    d9d_metric **metric;
    const char **names; /* [width] value names such as "accuracy", "f1/3"; metrics[1] is called
                           "accuracy[1]" if an earlier metric has its name; in the arena */
    double *values;     /* [width] */
    D9D_VEC(d9di_run_metrics_pending) watched;
    D9D_VEC(float) logits;      /* of a micro-batch */
    D9D_VEC(double) prediction; /* of the rows that count */
    D9D_VEC(double) target;
} d9di_run_metrics;

/* `list` of d9d_union is borrowed; error messages begin with `where`, such as "metrics". */
d9d_status d9di_run_metrics_open(const d9d_list *list, const char *where, d9d_arena *a,
                                 d9di_run_metrics *out);
void d9di_run_metrics_release(d9di_run_metrics *m);
/* ECONFIG, beginning with `where`, for a metric that does not accept this head's scores.  Call
 * before the first update. */
d9d_status d9di_run_metrics_check_head(d9di_run_metrics *m, const char *where,
                                       const d9d_head *head);

/* Enqueues the readback of logits [T, C] and labels [T] int32. */
d9d_status d9di_run_metrics_enqueue(d9di_run_metrics *m, const d9d_tensor *logits,
                                    const d9d_tensor *labels);
/* Counts the n oldest pending micro-batches: the rows whose label counts.  Waits for these only. */
d9d_status d9di_run_metrics_update(d9di_run_metrics *m, size_t n);
/* Starts the reduction over all ranks of everything counted since the last sync_end.  No update may
 * come before sync_end.  Collective over `world`. */
d9d_status d9di_run_metrics_sync_begin(d9di_run_metrics *m, d9d_device *dev, d9d_comm *world);
/* Stores the values in m->values, and resets the metrics. */
d9d_status d9di_run_metrics_sync_end(d9di_run_metrics *m);
/* Appends the metrics' states as rank state of a checkpoint; in the arena. */
d9d_status d9di_run_metrics_rank_state(const d9di_run_metrics *m, const char *where, d9d_arena *a,
                                       d9d_checkpointer_set *set);

#endif /* D9DI_TASKS_RUN_METRICS_H */
