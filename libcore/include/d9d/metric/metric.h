/* metric.h - what predictions are worth: numbers added up over batches, ranks and restarts.
 *
 *     {"name": "f1", "problem": "multiclass", "num_classes": 10, "average": "macro"}
 *
 *     D9D_TRY(d9d_metric_create(&bound, "metrics[0]", &m));   // a D9D_KIND_UNION
 *     for each batch:
 *         D9D_TRY(d9d_metric_update(m, &batch));       // on this rank alone
 *     D9D_TRY(d9d_metric_sync(m, dev, world));         // every rank: what all have seen
 *     D9D_TRY(d9d_metric_compute(m, values));          // d9d_metric_width(m) of them
 *     d9d_metric_reset(m);
 *
 * Between updates a metric is nothing but an array of cells, counts or sums, and one way to join
 * those of two ranks.  So ranks may have seen any share of the rows, and nothing depends on which;
 * what is saved is the cells of all ranks, which one of them goes on with while the others begin
 * anew, and each row counts once, whatever the mesh then is.
 *
 *     name               predictions; targets                        value
 *     sum mean           [N, C] numbers, weights [N]                  sum(p w), sum(p w) / sum(w)
 *     min max            [N, C] numbers
 *     binary_auroc       [N] probabilities; 0 or 1                    area under the ROC curve
 *     accuracy precision recall f1 fbeta confusion_matrix
 *         binary         [N] probabilities; 0 or 1
 *         multiclass     [N, C] scores, or [N] classes; [N] classes, or [N, C] one of them 1
 *         multilabel     [N, C] probabilities; [N, C] 0 or 1
 *
 * A probability above `threshold` says yes.  Of scores the largest wins, of equal ones the first;
 * with `top_k` a row is right when its class is among the k largest.  Binary problems speak of the
 * class 1 alone.  `average` over classes:
 *
 *     micro      counts of all classes together; for accuracy of one class among many the share
 *                of rows that are right
 *     macro      mean of the classes, each counting once
 *     weighted   mean of the classes by how often each is the target
 *     none       a value for each class
 *
 * A class without what is asked of it (0/0) has the value `zero_division`: 0 by default, with null
 * NaN, and such classes are then left out of macro and weighted.  Values are scikit-learn's for the
 * same names, but that the area under the ROC curve takes scores for equal that differ by less than
 * a thousandth of themselves or of their distance from 1 (or that `num_bins` equal steps of 0 to 1
 * do not tell apart), and that a class needs no prediction to be known.
 *
 * A metric of one's own is a table too: d9d_metric_kind.
 */
#ifndef D9D_METRIC_METRIC_H
#define D9D_METRIC_METRIC_H

#include "d9d/comm/comm.h"
#include "d9d/config/config.h"
#include "d9d/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A batch of rows, on the host. */
typedef struct d9d_predictions {
    int64_t rows;
    const double *prediction; /* [rows, prediction_columns] */
    const double *target;     /* [rows, target_columns]; NULL where none is needed */
    const double *weight;     /* [rows], for weighted metrics; NULL: 1 */
    int64_t prediction_columns, target_columns;
} d9d_predictions;

typedef struct d9d_metric_form {
    d9d_dtype dtype;       /* of the cells: D9D_F64, or D9D_I64 for counts */
    int64_t state_size;    /* at least 1 */
    d9d_comm_op reduce_op; /* how the cells of two ranks become those of both: they begin at 0, and
                         where the largest counts at the least number there is */
    size_t width;          /* values that it computes, at least 1 */
} d9d_metric_form;

typedef struct d9d_metric_kind {
    size_t size;            /* sizeof(d9d_metric_kind) */
    const d9d_table *table; /* of its section; its name is the metric's */
    /* `config` is that section, bound; ECONFIG begins with `where`. */
    d9d_status (*form)(const void *config, const char *where, d9d_metric_form *out);
    /* Add a batch, which may have no rows: so a form is asked about before there are any.  EINVAL
     * for one of another form, and then no cell has changed. */
    d9d_status (*update)(const void *config, const d9d_predictions *b, void *state);
    void (*compute)(const void *config, const void *state, double *values);
    /* The name of value i behind the metric's own, "tp/3"; NULL: "" of one value, else its
     * number. */
    void (*label)(const void *config, size_t i, char *out, size_t n);
    bool weighted; /* rows count by their weights; else all alike */
} d9d_metric_kind;

/* "name", and the built-in choices of a union of metrics: tables whose `row` is their kind. */
D9D_API extern const char *const d9d_metric_tag[];
D9D_API extern const d9d_table *const d9d_metric_choices[];

typedef struct d9d_metric d9d_metric;

/* `section` is bound; its value is borrowed while the metric lives.  `where` begins sentences. */
D9D_API D9D_MUST_USE d9d_status d9d_metric_create(const d9d_union *section, const char *where,
                                                  d9d_metric **out);
D9D_API void d9d_metric_free(d9d_metric *m); /* NULL is fine */

/* Rows of this rank; after a sync it counts from there on for this rank alone again. */
D9D_API D9D_MUST_USE d9d_status d9d_metric_update(d9d_metric *m, const d9d_predictions *b);
/* Forget every row. */
D9D_API void d9d_metric_reset(d9d_metric *m);

/* From here until the next update or reset, values are of the rows of all ranks.  Waits for the
 * device where it is not the host.  Collective: over `world`, with the same metrics. */
D9D_API D9D_MUST_USE d9d_status d9d_metric_sync(d9d_metric *m, d9d_device *dev, d9d_comm *world);
/* The same in two halves, so that a step may be queued between them: values are there after the
 * second.  The metric may be reset and updated between them; what was begun stays what it was. */
D9D_API D9D_MUST_USE d9d_status d9d_metric_sync_begin(d9d_metric *m, d9d_device *dev,
                                                      d9d_comm *world);
D9D_API D9D_MUST_USE d9d_status d9d_metric_sync_end(d9d_metric *m);

/* values[d9d_metric_width()]: of all ranks' rows behind a sync, else of this rank's.  NaN where
 * there is nothing to tell. */
D9D_API void d9d_metric_compute(const d9d_metric *m, double *values);
D9D_API size_t d9d_metric_width(const d9d_metric *m);
D9D_API const char *d9d_metric_name(const d9d_metric *m); /* of its kind */
D9D_API bool d9d_metric_is_weighted(const d9d_metric *m); /* so is its kind */
/* "", "/3", "/tp/3": what stands behind the metric's name for value i. */
D9D_API char *d9d_metric_label(const d9d_metric *m, size_t i, char *out, size_t n);

/* --- saving -------------------------------------------------------------------------- *
 *
 * Behind a sync the cells are those of all ranks: one rank keeps them, and in another life one
 * takes them while the others begin anew. */
D9D_API const d9d_metric_form *d9d_metric_form_of(const d9d_metric *m);
/* [cells] of its type. */
D9D_API void d9d_metric_save_state(const d9d_metric *m, void *state);
D9D_API void d9d_metric_load_state(d9d_metric *m, const void *state);
/* Or each rank keeps its own: the cells of its rows, as long as the metric lives.  To be written to
 * before the first update alone. */
D9D_API void *d9d_metric_local_state(const d9d_metric *m);

#ifdef __cplusplus
}
#endif
#endif /* D9D_METRIC_METRIC_H */
