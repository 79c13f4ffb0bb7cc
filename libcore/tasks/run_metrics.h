/* run_metrics.h - the metrics of a training run, updated without blocking the host.
 *
 * A step's predictions are read back asynchronously, and counted when the step's report is
 * collected.  The reduction over ranks is enqueued after the newest step, and its result arrives
 * with that step's report.  So metrics add no synchronization:
 *
 *     enqueue   k-1             k                                    k+1
 *     device        k-1             k               reduce(k-1)          k+1
 *     host      enqueue(k-1)    enqueue(k), update(k-1), begin(k-1)  enqueue(k+1), end(k-1), ...
 *
 * With one exception: a metric that reads logits of tokens waits for them, some at a time
 * (tasks/token_predictions.h).
 */
#ifndef D9DI_TASKS_RUN_METRICS_H
#define D9DI_TASKS_RUN_METRICS_H

#include "d9d/checkpointer/checkpointer.h"
#include "d9d/device/readback.h"
#include "d9d/metric/metric.h"
#include "d9d/model/head.h"
#include "d9d/nn/block.h"
#include "d9d/tasks/task.h"
#include "d9d/tensor/tensor.h"

/* Predictions of a micro-batch whose readback is pending. */
typedef struct d9di_run_metrics_pending {
    size_t source;
    d9d_readback *logits, *labels; /* labels NULL: a mean with a weight */
    d9d_readback *mask;            /* or NULL */
    bool of_tokens;                /* `logits` are of d9di_token_predictions_make() */
    d9d_metric **counted; /* [n of the metrics], of those that have read the logits; or NULL */
    d9d_dtype dtype, label_dtype;
    int64_t rows, classes;
} d9di_run_metrics_pending;

typedef struct d9di_run_metrics {
    size_t n, width; /* number of metrics; values of all metrics */
    d9d_metric **metric;
    size_t *source;            /* [n]: whose predictions a metric is of */
    d9d_task_targets *targets; /* [n] */
    const d9d_union **section; /* [n] */
    const char **place;        /* [n]: "metrics[0]", for messages and saved states */
    const char **names; /* [width] value names such as "accuracy", "f1/3"; metrics[1] is called
                           "accuracy[1]" if an earlier metric has its name; in the arena */
    double *values;     /* [width] */
    D9D_VEC(d9di_run_metrics_pending) watched;
    D9D_VEC(float) logits;      /* of a micro-batch */
    D9D_VEC(double) prediction; /* of the rows that count */
    D9D_VEC(double) target;
    D9D_VEC(double) token; /* that are predicted */
    bool of_tokens;        /* source 0 is the next tokens of a language model */
    bool pauses_tokens;    /* they do not count now */
    d9d_err_copy failed;   /* of logits that were read */
} d9di_run_metrics;

/* Metrics of the predictions of the task itself, or of a head. */
typedef struct d9di_run_metrics_source {
    const d9d_list *list; /* d9d_union */
    const char *where;    /* begins messages: "metrics" */
    const char *head;     /* values are HEAD.accuracy; NULL: the task itself, whose predictions are
                             source 0 */
    bool has_loss;        /* of a head: the first value is HEAD.loss, a mean */
    int64_t columns;      /* that predictions have; 0: not known */
    d9d_task_targets targets;
    bool of_tokens; /* they are next tokens; of the first source alone */
} d9di_run_metrics_source;
/* Lists are borrowed; strings are the arena's. */
d9d_status d9di_run_metrics_open(const d9di_run_metrics_source *sources, size_t n, d9d_arena *a,
                                 d9di_run_metrics *out);
void d9di_run_metrics_release(d9di_run_metrics *m);
/* ECONFIG for a metric that does not accept this head's scores.  Call before the first update. */
d9d_status d9di_run_metrics_check_head(d9di_run_metrics *m, const d9d_head *head);
/* The same of next tokens of a vocabulary. */
d9d_status d9di_run_metrics_check_vocab(d9di_run_metrics *m, int64_t vocab);

/* ECONFIG for a metric that does not accept losses: a column of numbers without targets. */
d9d_status d9di_run_metrics_check_losses(d9di_run_metrics *m);

/* Enqueues the readback of a source's logits [T, C], labels, [T] int32 or [T, C] float32, and mask
 * [T] float32, 0 for rows that do not count (NULL: none); nothing if no metric reads them. */
d9d_status d9di_run_metrics_enqueue(d9di_run_metrics *m, size_t source, const d9d_tensor *logits,
                                    const d9d_tensor *labels, const d9d_tensor *mask);
/* True if next tokens are wanted now. */
bool d9di_run_metrics_wants_tokens(const d9di_run_metrics *m);
/* The same of what a language model's head predicts of h [T/tp, H].  Collective over the tp ranks,
 * of which one counts. */
d9d_status d9di_run_metrics_enqueue_tokens(d9di_run_metrics *m, d9d_block_vocab *head,
                                           const d9d_tensor *h, const d9d_tensor *labels,
                                           bool is_counted);
/* The same of a head's mean loss [1] and the number of its targets [1], float32. */
d9d_status d9di_run_metrics_enqueue_mean(d9di_run_metrics *m, size_t source, const d9d_tensor *mean,
                                         const d9d_tensor *count);
/* Counts rows of a source on the host, of which all count: outputs [rows, C] and what they are
 * compared with, [rows] or [rows, C]. */
d9d_status d9di_run_metrics_count(d9di_run_metrics *m, size_t source, int64_t rows, int64_t columns,
                                  const double *outputs, const double *targets);
/* Counts the n oldest pending micro-batches: the rows whose label counts.  Waits for these only. */
d9d_status d9di_run_metrics_update(d9di_run_metrics *m, size_t n);
/* Starts the reduction over all ranks of everything counted since the last sync_end.  No update may
 * come before sync_end.  Collective over `world`. */
d9d_status d9di_run_metrics_sync_begin(d9di_run_metrics *m, d9d_device *dev, d9d_comm *world);
/* Stores the values in m->values, and resets the metrics. */
d9d_status d9di_run_metrics_sync_end(d9di_run_metrics *m);
/* Appends the metrics' states as rank state of a checkpoint; in the arena. */
d9d_status d9di_run_metrics_rank_state(const d9di_run_metrics *m, d9d_arena *a,
                                       d9d_checkpointer_set *set);

#endif /* D9DI_TASKS_RUN_METRICS_H */
