/* run_metrics.h - the metrics of a training run: what its task's predictions are worth.
 *
 * Predictions are read back for every micro-batch: a run without metrics does not wait for them.
 */
#ifndef D9DI_LOOP_RUN_METRICS_H
#define D9DI_LOOP_RUN_METRICS_H

#include "d9d/metric/metric.h"
#include "d9d/tensor/tensor.h"

typedef struct d9di_metrics {
    size_t n, width; /* metrics; values of all of them */
    d9d_metric **metric;
    const char **names;    /* [width] "accuracy", "f1/3"; in the arena */
    D9D_VEC(float) logits; /* of a micro-batch */
    D9D_VEC(int32_t) labels;
    D9D_VEC(double) prediction; /* of the rows that count */
    D9D_VEC(double) target;
} d9di_metrics;

/* `list` of d9d_union is borrowed. */
d9d_status d9di_metrics_open(const d9d_list *list, d9d_arena *a, d9di_metrics *out);
void d9di_metrics_release(d9di_metrics *m);

/* logits [T, C], labels of T int32: rows whose label counts are added. */
d9d_status d9di_metrics_update(d9di_metrics *m, const d9d_tensor *logits, const d9d_tensor *labels);
/* What all ranks have seen since the last call; values[width].  Collective: over `world`. */
d9d_status d9di_metrics_take(d9di_metrics *m, d9d_device *dev, d9d_comm *world, double *values);

#endif /* D9DI_LOOP_RUN_METRICS_H */
