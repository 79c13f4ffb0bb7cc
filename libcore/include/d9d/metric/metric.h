/* metric.h - metrics of predictions, accumulated over batches, ranks and restarts.
 *
 *     {"name": "f1", "problem": "multiclass", "num_classes": 10, "average": "macro"}
 *
 *     D9D_TRY(d9d_metric_create(&bound, "metrics[0]", &m));   // a D9D_KIND_UNION
 *     for each batch:
 *         D9D_TRY(d9d_metric_update(m, &batch));       // local: this rank's rows
 *     D9D_TRY(d9d_metric_sync(m, dev, world));         // collective: all-reduce of the states
 *     D9D_TRY(d9d_metric_compute(m, values));          // d9d_metric_width(m) of them
 *     d9d_metric_reset(m);
 *
 * Between updates, the state of a metric is one array of counts or sums with one reduction
 * operation.  Ranks may therefore see any share of the rows: the values do not depend on the
 * distribution. A checkpoint stores the reduced state.  After a restart, one rank resumes from it
 * and the others begin empty, so each row counts once on any mesh.
 *
 *     name               predictions; targets                        value
 *     sum mean           [N, C] numbers, weights [N]                  sum(p w), sum(p w) / sum(w)
 *     min max            [N, C] numbers
 *     rewards            [N, 7] of a preference or reward task     means of rewards, margins, ...
 *     tokens             [N, 5] of a language model; [N] tokens    accuracy, entropy, calibration,
 *     binary_auroc       [N] probabilities; 0 or 1                    area under the ROC curve
 *     multilabel_auroc   [N, C] probabilities; [N, C] 0 or 1          the same of each class
 *     mse mae r2 pearson [N, C] numbers; [N, C] numbers               of each of C outputs: errors,
 *                                                            explained variance, correlation
 *     accuracy precision recall f1 fbeta confusion_matrix
 *         binary         [N] probabilities; 0 or 1
 *         multiclass     [N, C] scores, or [N] classes; [N] classes, or [N, C] one-hot
 *         multilabel     [N, C] probabilities; [N, C] 0 or 1
 *
 * A probability above `threshold` predicts class 1.  Among scores the largest is predicted, the
 * first of equal ones.  With `top_k`, a row is correct if its class is among the k largest scores.
 * Binary problems report class 1 only.  `average` over classes:
 *
 *     micro      counts of all classes together; for multiclass accuracy the share of correct rows
 *     macro      unweighted mean over classes
 *     weighted   mean over classes, weighted by support (rows whose target is the class)
 *     none       a value for each class
 *
 * If a ratio is 0/0 for a class, its value is `zero_division`, 0 by default.  With null the value
 * is NaN, and macro and weighted averages leave the class out.  Values equal scikit-learn's for the
 * same names, with two exceptions.  The AUROC bins the scores: it treats scores as equal if they
 * differ by less than a thousandth of themselves or of their distance from 1.  With `num_bins`, it
 * treats scores in the same of `num_bins` equal bins of [0, 1] as equal.  A class needs no
 * prediction to be known.  A class without rows of both targets has no area, an output without two
 * rows no r2, and one that does not vary no correlation: their value is NaN, and averages leave
 * them out.  Sums of regressions are exact (metric/exact_sum.h): the values are the same, to the
 * bit, on any distribution of the rows.
 *
 * A user-defined metric is a table as well: d9d_metric_kind.
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
    const double *weight;     /* [rows], for weighted metrics; NULL: every weight is 1 */
    int64_t prediction_columns, target_columns;
} d9d_predictions;

typedef struct d9d_metric_form {
    d9d_dtype dtype;       /* of the state: D9D_F64, or D9D_I64 for counts */
    int64_t state_size;    /* elements of the state, at least 1 */
    d9d_comm_op reduce_op; /* combines the states of two ranks; a state begins at 0, and with MAX at
                              the smallest number of the dtype */
    size_t width;          /* values that compute() returns, at least 1 */
} d9d_metric_form;

/* What a metric reads where predictions are next tokens.  Logits of all tokens never exist at once:
 * the first two are computed beside them, in one pass for all such metrics.
 *
 *     D9D_METRIC_SCORES    [N, V] logits, which the host reads for some tokens at a time: dear
 *     D9D_METRIC_CLASSES   [N] the token with the largest logit, the first of equal ones
 *     D9D_METRIC_TOKENS    [N, 5] d9d_metric_token_column
 *
 * Of other predictions all metrics read the scores. */
typedef enum d9d_metric_input {
    D9D_METRIC_SCORES,
    D9D_METRIC_CLASSES,
    D9D_METRIC_TOKENS
} d9d_metric_input;

/* p are the probabilities of a token's successors, t the token that came. */
typedef enum d9d_metric_token_column {
    D9D_METRIC_TOKEN_LOSS,       /* -log p(t) */
    D9D_METRIC_TOKEN_ENTROPY,    /* -sum p log p */
    D9D_METRIC_TOKEN_CONFIDENCE, /* the largest p */
    D9D_METRIC_TOKEN_CLASS,      /* whose it is, the first of equal ones */
    D9D_METRIC_TOKEN_RANK,       /* how many tokens have a larger p than t */
    D9D_METRIC_TOKEN_COLUMNS
} d9d_metric_token_column;

typedef struct d9d_metric_kind {
    size_t size;            /* sizeof(d9d_metric_kind) */
    const d9d_table *table; /* of its section; the table's name is the metric's name */
    /* `config` is the bound section.  ECONFIG messages begin with `where`. */
    d9d_status (*form)(const void *config, const char *where, d9d_metric_form *out);
    /* Adds a batch.  A batch of no rows is valid and checks the columns before there is data.
     * EINVAL if the batch does not fit the metric; the state is then unchanged. */
    d9d_status (*update)(const void *config, const d9d_predictions *b, void *state);
    void (*compute)(const void *config, const void *state, double *values);
    /* Suffix of value i after the metric's name, such as "tp/3".  NULL: "" for a single value, else
     * its index. */
    void (*label)(const void *config, size_t i, char *out, size_t n);
    bool weighted; /* rows count by their weights; false: all weights are 1 */
    /* What it reads of next tokens.  NULL: D9D_METRIC_SCORES. */
    d9d_metric_input (*input)(const void *config);
} d9d_metric_kind;

/* The tag "name", and the built-in choices of a union of metrics: tables whose `row` is their
 * kind. */
D9D_API extern const char *const d9d_metric_tag[];
D9D_API extern const d9d_table *const d9d_metric_choices[];

typedef struct d9d_metric d9d_metric;

/* Creates a metric.  `section` is bound, and its value is borrowed for the metric's lifetime.
 * Error messages begin with `where`. */
D9D_API D9D_MUST_USE d9d_status d9d_metric_create(const d9d_union *section, const char *where,
                                                  d9d_metric **out);
D9D_API void d9d_metric_free(d9d_metric *m); /* NULL is fine */

/* Adds rows of this rank.  After a sync, counting continues with this rank's own state. */
D9D_API D9D_MUST_USE d9d_status d9d_metric_update(d9d_metric *m, const d9d_predictions *b);
/* Adds what `other`, a metric of the same section, has counted on this rank. */
D9D_API void d9d_metric_merge(d9d_metric *m, const d9d_metric *other);
/* Clears the state. */
D9D_API void d9d_metric_reset(d9d_metric *m);

/* Reduces the states of all ranks.  Until the next update or reset, values are over the rows of all
 * ranks.  Waits for the device unless it is the CPU.  Collective over `world`; all ranks pass the
 * same metrics. */
D9D_API D9D_MUST_USE d9d_status d9d_metric_sync(d9d_metric *m, d9d_device *dev, d9d_comm *world);
/* d9d_metric_sync() in two halves, so that a step can be enqueued between them.  The values are
 * valid after the second half.  The metric may be reset and updated in between; the reduction uses
 * the state at sync_begin. */
D9D_API D9D_MUST_USE d9d_status d9d_metric_sync_begin(d9d_metric *m, d9d_device *dev,
                                                      d9d_comm *world);
D9D_API D9D_MUST_USE d9d_status d9d_metric_sync_end(d9d_metric *m);

/* values[d9d_metric_width()]: over all ranks' rows after a sync, else over this rank's.  NaN where
 * the value is undefined. */
D9D_API void d9d_metric_compute(const d9d_metric *m, double *values);
D9D_API size_t d9d_metric_width(const d9d_metric *m);
D9D_API const char *d9d_metric_name(const d9d_metric *m); /* the name of its kind */
D9D_API bool d9d_metric_is_weighted(const d9d_metric *m); /* whether its kind uses weights */
D9D_API d9d_metric_input d9d_metric_input_of(const d9d_metric *m);
/* Suffix of value i after the metric's name: "", "/3", "/tp/3".  Returns `out`. */
D9D_API char *d9d_metric_label(const d9d_metric *m, size_t i, char *out, size_t n);

/* --- saving -------------------------------------------------------------------------- * ---- *
 *
 * After a sync, the state covers all ranks: one rank saves it.  After a restart one rank loads it,
 * and the others begin empty. */
D9D_API const d9d_metric_form *d9d_metric_form_of(const d9d_metric *m);
/* [state_size] elements of the form's dtype. */
D9D_API void d9d_metric_save_state(const d9d_metric *m, void *state);
D9D_API void d9d_metric_load_state(d9d_metric *m, const void *state);
/* The local state, for a checkpoint that stores one state per rank; valid for the metric's
 * lifetime.  Write to it only before the first update. */
D9D_API void *d9d_metric_local_state(const d9d_metric *m);

#ifdef __cplusplus
}
#endif
#endif /* D9D_METRIC_METRIC_H */
