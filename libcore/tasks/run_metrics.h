/* run_metrics.h - the metrics of a training run: what its task's predictions are worth.
 *
 * Predictions come back behind the step that has made them, and are counted when that step's report
 * is taken; what all ranks have counted is summed behind the step that is queued by then, and is
 * there with that one's report.  So the host waits for nothing that it would not wait for without:
 *
 *     queue     k-1             k                 k+1
 *     device        k-1             k             ranks(k-1)   k+1
 *     host      watch(k-1)   watch(k), update(k-1), begin(k-1)   watch(k+1), end(k-1), update(k)
 */
#ifndef D9DI_TASKS_RUN_METRICS_H
#define D9DI_TASKS_RUN_METRICS_H

#include "d9d/checkpointer/checkpointer.h"
#include "d9d/device/readback.h"
#include "d9d/metric/metric.h"
#include "d9d/model/head.h"
#include "d9d/tensor/tensor.h"

/* Predictions of a micro-batch, on their way. */
typedef struct d9di_run_metrics_pending {
    d9d_readback *logits, *labels;
    d9d_dtype dtype;
    int64_t rows, classes;
} d9di_run_metrics_pending;

typedef struct d9di_run_metrics {
    size_t n, width; /* metrics; values of all of them */
    d9d_metric **metric;
    const char **names; /* [width] "accuracy", "f1/3"; "accuracy[1]" of metrics[1] where an earlier
                           metric has that name; in the arena */
    double *values;     /* [width] */
    D9D_VEC(d9di_run_metrics_pending) watched;
    D9D_VEC(float) logits;      /* of a micro-batch */
    D9D_VEC(double) prediction; /* of the rows that count */
    D9D_VEC(double) target;
} d9di_run_metrics;

/* `list` of d9d_union is borrowed; `where` begins sentences: "metrics". */
d9d_status d9di_run_metrics_open(const d9d_list *list, const char *where, d9d_arena *a,
                                 d9di_run_metrics *out);
void d9di_run_metrics_release(d9di_run_metrics *m);
/* ECONFIG, after `where`, for one that does not take the scores of this head.  Before anything is
 * counted. */
d9d_status d9di_run_metrics_check_head(d9di_run_metrics *m, const char *where,
                                       const d9d_head *head);

/* logits [T, C], labels of T int32: what is in them now is read back. */
d9d_status d9di_run_metrics_enqueue(d9di_run_metrics *m, const d9d_tensor *logits,
                                    const d9d_tensor *labels);
/* The n oldest that were watched are counted: rows whose label counts.  Waits for these alone. */
d9d_status d9di_run_metrics_update(d9di_run_metrics *m, size_t n);
/* What all ranks have counted since the last end, between which there is no update.  Collective:
 * over `world`. */
d9d_status d9di_run_metrics_sync_begin(d9di_run_metrics *m, d9d_device *dev, d9d_comm *world);
/* ... is in m->values, and counting begins anew. */
d9d_status d9di_run_metrics_sync_end(d9di_run_metrics *m);
/* As cells of a checkpoint, in the arena; appended. */
d9d_status d9di_run_metrics_rank_state(const d9di_run_metrics *m, const char *where, d9d_arena *a,
                                       d9d_checkpointer_set *set);

#endif /* D9DI_TASKS_RUN_METRICS_H */
