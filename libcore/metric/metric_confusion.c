/* metric_confusion.c - metrics of binary decisions: accuracy, precision, recall, F-beta, confusion
 * matrix.  See d9d/metric/metric.h.
 *
 * Each class is one binary decision per row.  Over N rows it counts
 *
 *                     predicted yes  predicted no
 *     target is yes      TP             FN        precision TP / (TP + FP)
 *     target is no       FP             TN        recall    TP / (TP + FN)
 *                                                 accuracy  (TP + TN) / N
 *     F_beta = (1 + beta^2) TP / ((1 + beta^2) TP + beta^2 FN + FP)
 */
#include <math.h>
#include <stdio.h>

#include "metric/metric_kinds.h"

typedef enum problem { BINARY, MULTICLASS, MULTILABEL } problem;
typedef enum average { MICRO, MACRO, WEIGHTED, NONE } average;

typedef struct decision_config {
    int problem;
    int64_t num_classes;
    double threshold;
    int64_t top_k; /* for accuracy; 0: off */
    int average;
    double beta;          /* for fbeta */
    double zero_division; /* NaN: leave such classes out */
} decision_config;

/* The outcome of one decision; one counter each. */
typedef enum outcome { TP, FP, FN, TN, OUTCOMES } outcome;

enum { MAX_CLASSES = 1 << 20, MAX_MATRIX = 1 << 12 };

static const char *const problem_names[] = {"binary", "multiclass", "multilabel", NULL};
static const char *const average_names[] = {"micro", "macro", "weighted", "none", NULL};

#define PROBLEM_KEYS                                                                               \
    D9D_KEY_ENUM(decision_config, problem, "\"binary\"", problem_names,                            \
                 "yes or no, one of the classes, or any of them"),                                 \
        D9D_KEY_INT(decision_config, num_classes, "null", 1, MAX_CLASSES,                          \
                    "how many classes; needless where the problem is binary",                      \
                    .flags = D9D_NULLABLE),                                                        \
        D9D_KEY_REAL(decision_config, threshold, "0.5", -1e300, 1e300,                             \
                     "predictions above it say yes")
#define AVERAGE_KEYS(by_default)                                                                   \
    D9D_KEY_ENUM(decision_config, average, by_default, average_names, "how classes become one"),   \
        D9D_KEY_REAL(decision_config, zero_division, "0", 0, 1,                                    \
                     "value of a class that has nothing to count; null: none",                     \
                     .flags = D9D_NULLABLE)

static const d9d_key matrix_keys[] = {PROBLEM_KEYS, D9D_KEY_END};
static const d9d_key statistic_keys[] = {PROBLEM_KEYS, AVERAGE_KEYS("\"macro\""), D9D_KEY_END};
static const d9d_key fbeta_keys[] = {PROBLEM_KEYS, AVERAGE_KEYS("\"macro\""),
                                     D9D_KEY_REAL(decision_config, beta, D9D_REQUIRED, 0, 1e6,
                                                  "how many times as important recall is"),
                                     D9D_KEY_END};
static const d9d_key accuracy_keys[] = {
    PROBLEM_KEYS, AVERAGE_KEYS("\"micro\""),
    D9D_KEY_INT(decision_config, top_k, "1", 1, MAX_CLASSES,
                "multiclass: right is a class among so many of the highest scores"),
    D9D_KEY_END};

static d9d_status config_check(const void *value, const char *path)
{
    const decision_config *c = value;
    const bool counted = c->num_classes != D9D_INT_NULL;

    if (c->problem != BINARY && !counted)
        return D9D_FAIL(D9D_ECONFIG, "%s.num_classes: needed where the problem is %s", path,
                        problem_names[c->problem]);
    if (c->problem == BINARY && counted && c->num_classes > 2)
        return D9D_FAIL(D9D_ECONFIG, "%s.num_classes: a binary problem has 2 classes, not %lld",
                        path, (long long)c->num_classes);
    if (c->top_k > 1 && (c->problem != MULTICLASS || c->average != MICRO))
        return D9D_FAIL(D9D_ECONFIG,
                        "%s.top_k: %lld needs the problem \"multiclass\" and the average \"micro\"",
                        path, (long long)c->top_k);
    if (c->top_k > 1 && c->top_k > c->num_classes)
        return D9D_FAIL(D9D_ECONFIG, "%s.top_k: %lld of %lld classes", path, (long long)c->top_k,
                        (long long)c->num_classes);
    return D9D_OK;
}

static d9d_status matrix_check(const void *value, const char *path)
{
    const decision_config *c = value;

    D9D_TRY(config_check(value, path));
    if (c->num_classes > MAX_MATRIX)
        return D9D_FAIL(D9D_ECONFIG, "%s.num_classes: a matrix of %lld classes, at most %d", path,
                        (long long)c->num_classes, MAX_MATRIX);
    return D9D_OK;
}

/* --- decisions of a row ---------------------------------------------------------------- */

/* Number of decisions per row. */
static int64_t num_decisions(const decision_config *c)
{
    return c->problem == BINARY || c->top_k > 1 ? 1 : c->num_classes;
}

static int64_t argmax(const double *x, int64_t n)
{
    int64_t best = 0;

    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

/* The class itself, or the argmax of scores. */
static int64_t predicted_class(const double *x, int64_t columns)
{
    return columns == 1 ? (int64_t)x[0] : argmax(x, columns);
}

/* True if class k is among the n highest scores; of equal scores the first counts as higher. */
static bool is_in_top_k(const double *score, int64_t classes, int64_t k, int64_t n)
{
    int64_t before = 0;

    for (int64_t i = 0; i < classes; i++)
        before += score[i] > score[k] || (score[i] == score[k] && i < k);
    return before < n;
}

static d9d_status check_finite(const char *name, const d9d_predictions *b)
{
    for (int64_t i = 0; i < b->rows * b->prediction_columns; i++)
        if (isnan(b->prediction[i]))
            return D9D_FAIL(D9D_EINVAL, "%s: row %lld: a prediction is not a number", name,
                            (long long)(i / b->prediction_columns));
    return D9D_OK;
}

/* Checks predictions that are classes rather than scores. */
static d9d_status check_classes(const char *name, const decision_config *c,
                                const d9d_predictions *b)
{
    if (c->top_k > 1)
        return d9di_metric_check_columns(name, b, c->num_classes, -1);
    if (b->prediction_columns != 1 || c->num_classes == 1)
        return d9di_metric_check_columns(name, b, c->num_classes, -1);
    for (int64_t i = 0; i < b->rows; i++)
        if (!d9di_metric_is_class(b->prediction[i], c->num_classes))
            return D9D_FAIL(D9D_EINVAL, "%s: row %lld: the prediction %g is none of %lld classes",
                            name, (long long)i, b->prediction[i], (long long)c->num_classes);
    return D9D_OK;
}

static d9d_status check_one_hot(const char *name, const d9d_predictions *b)
{
    for (int64_t i = 0; i < b->rows; i++) {
        double sum = 0;

        for (int64_t k = 0; k < b->target_columns; k++)
            sum += b->target[i * b->target_columns + k];
        if (sum != 1)
            return D9D_FAIL(D9D_EINVAL, "%s: row %lld: its target has %g classes, must be 1", name,
                            (long long)i, sum);
    }
    return D9D_OK;
}

static d9d_status check_batch(const char *name, const decision_config *c, const d9d_predictions *b)
{
    D9D_TRY(check_finite(name, b));
    if (c->problem != MULTICLASS) {
        const int64_t n = num_decisions(c);

        D9D_TRY(d9di_metric_check_columns(name, b, n, n));
        return d9di_metric_check_classes(name, b, 2);
    }
    D9D_TRY(check_classes(name, c, b));
    if (b->target_columns == 1 && b->target != NULL)
        return d9di_metric_check_classes(name, b, c->num_classes);
    D9D_TRY(d9di_metric_check_columns(name, b, -1, c->num_classes));
    D9D_TRY(d9di_metric_check_classes(name, b, 2));
    return check_one_hot(name, b);
}

/* --- counting ---------------------------------------------------------------------------- */

static outcome outcome_of(bool predicted_value, bool is)
{
    return is ? (predicted_value ? TP : FN) : (predicted_value ? FP : TN);
}

static void labels_count(const decision_config *c, const d9d_predictions *b, int64_t *counts)
{
    const int64_t n = num_decisions(c);

    for (int64_t i = 0; i < b->rows * n; i++)
        counts[i % n * OUTCOMES + outcome_of(b->prediction[i] > c->threshold, b->target[i] != 0)]++;
}

/* One row of a class; a row is TN of every class before. */
static void row_count(int64_t *counts, int64_t is, int64_t predicted_value)
{
    counts[is * OUTCOMES + TN]--;
    counts[is * OUTCOMES + outcome_of(predicted_value == is, true)]++;
    if (predicted_value == is)
        return;
    counts[predicted_value * OUTCOMES + TN]--;
    counts[predicted_value * OUTCOMES + FP]++;
}

/* There may be as many classes as a vocabulary has tokens: no row looks at all of them. */
static void classes_count(const decision_config *c, const d9d_predictions *b, int64_t *counts)
{
    for (int64_t k = 0; k < c->num_classes && c->top_k <= 1; k++)
        counts[k * OUTCOMES + TN] += b->rows;
    for (int64_t i = 0; i < b->rows; i++) {
        const double *p = b->prediction + i * b->prediction_columns;
        const int64_t is = predicted_class(b->target + i * b->target_columns, b->target_columns);
        const int64_t predicted_value = predicted_class(p, b->prediction_columns);

        if (c->top_k > 1) {
            counts[is_in_top_k(p, c->num_classes, is, c->top_k) ? TP : FN]++;
            continue;
        }
        row_count(counts, is, predicted_value);
    }
}

/* The predicted class says all, but where the largest few count. */
static d9d_metric_input decision_input(const void *config)
{
    const decision_config *c = config;

    return c->problem == MULTICLASS && c->top_k <= 1 ? D9D_METRIC_CLASSES : D9D_METRIC_SCORES;
}

static d9d_status count_form(const void *config, const char *where, d9d_metric_form *out)
{
    const decision_config *c = config;
    const int64_t n = num_decisions(c);

    (void)where;
    *out =
        (d9d_metric_form){D9D_I64, n * OUTCOMES, D9D_COMM_SUM, c->average == NONE ? (size_t)n : 1};
    return D9D_OK;
}

static d9d_status count_update(const char *name, const void *config, const d9d_predictions *b,
                               void *counts)
{
    const decision_config *c = config;

    D9D_TRY(check_batch(name, c, b));
    (c->problem == MULTICLASS ? classes_count : labels_count)(c, b, counts);
    return D9D_OK;
}

/* --- statistics ----------------------------------------------------------------------------- */

typedef struct ratio {
    double numerator, denominator;
} ratio;
typedef ratio (*statistic_fn)(const decision_config *c, const double n[OUTCOMES]);

static ratio accuracy(const decision_config *c, const double n[OUTCOMES])
{
    (void)c;
    return (ratio){n[TP] + n[TN], n[TP] + n[FP] + n[FN] + n[TN]};
}

static ratio precision(const decision_config *c, const double n[OUTCOMES])
{
    (void)c;
    return (ratio){n[TP], n[TP] + n[FP]};
}

static ratio recall(const decision_config *c, const double n[OUTCOMES])
{
    (void)c;
    return (ratio){n[TP], n[TP] + n[FN]};
}

static ratio f_score(double beta, const double n[OUTCOMES])
{
    const double b = beta * beta;

    return (ratio){(1 + b) * n[TP], (1 + b) * n[TP] + b * n[FN] + n[FP]};
}

static ratio f1(const decision_config *c, const double n[OUTCOMES])
{
    (void)c;
    return f_score(1, n);
}

static ratio fbeta(const decision_config *c, const double n[OUTCOMES])
{
    return f_score(c->beta, n);
}

static double ratio_value(const decision_config *c, ratio s)
{
    return s.denominator > 0 ? s.numerator / s.denominator : c->zero_division;
}

static void read_outcomes(const int64_t *counts, int64_t k, double n[OUTCOMES])
{
    for (int j = 0; j < OUTCOMES; j++)
        n[j] = (double)counts[k * OUTCOMES + j];
}

static double micro_average(const decision_config *c, const int64_t *counts, statistic_fn fn)
{
    double all[OUTCOMES] = {0}, n[OUTCOMES];

    for (int64_t k = 0; k < num_decisions(c); k++) {
        read_outcomes(counts, k, n);
        for (int j = 0; j < OUTCOMES; j++)
            all[j] += n[j];
    }
    if (fn == accuracy && c->problem == MULTICLASS)
        fn = recall; /* multiclass accuracy is the share of correct rows, which is recall */
    return ratio_value(c, fn(c, all));
}

/* Mean over the classes that have a value. */
static double macro_average(const decision_config *c, const int64_t *counts, statistic_fn fn)
{
    double sum = 0, weights = 0, n[OUTCOMES];

    for (int64_t k = 0; k < num_decisions(c); k++) {
        double v, w;

        read_outcomes(counts, k, n);
        v = ratio_value(c, fn(c, n));
        w = c->average == MACRO ? 1 : n[TP] + n[FN];
        if (isnan(v))
            continue;
        sum += w * v;
        weights += w;
    }
    return weights > 0 ? sum / weights : c->zero_division;
}

static void statistic_compute(const void *config, const void *counts, double *values,
                              statistic_fn fn)
{
    const decision_config *c = config;
    double n[OUTCOMES];

    if (c->average == MICRO) {
        values[0] = micro_average(c, counts, fn);
    } else if (c->average != NONE) {
        values[0] = macro_average(c, counts, fn);
    } else {
        for (int64_t k = 0; k < num_decisions(c); k++) {
            read_outcomes(counts, k, n);
            values[k] = ratio_value(c, fn(c, n));
        }
    }
}

#define STATISTIC(word, key_table, text)                                                           \
    static d9d_status word##_update(const void *config, const d9d_predictions *b, void *counts)    \
    {                                                                                              \
        return count_update(#word, config, b, counts);                                             \
    }                                                                                              \
    static void word##_compute(const void *config, const void *counts, double *values)             \
    {                                                                                              \
        statistic_compute(config, counts, values, word);                                           \
    }                                                                                              \
    static const d9d_metric_kind word##_kind = {.size = sizeof(d9d_metric_kind),                   \
                                                .table = &d9di_metric_##word##_table,              \
                                                .form = count_form,                                \
                                                .update = word##_update,                           \
                                                .compute = word##_compute,                         \
                                                .input = decision_input};                          \
    const d9d_table d9di_metric_##word##_table = D9D_TABLE(                                        \
        decision_config, #word, key_table, text, .check = config_check, .row = &word##_kind)

STATISTIC(accuracy, accuracy_keys, "share of right answers");
STATISTIC(precision, statistic_keys, "share of the yes that are right");
STATISTIC(recall, statistic_keys, "share of what is to be found that was");
STATISTIC(f1, statistic_keys, "harmonic mean of precision and recall");
STATISTIC(fbeta, fbeta_keys, "mean of precision and recall, one of them more important");

/* --- the confusion matrix: a row per target, a column per prediction ---------------------- */

/* Classes per side, and the number of matrices. */
static int64_t matrix_size(const decision_config *c)
{
    return c->problem == MULTICLASS ? c->num_classes : 2;
}
static int64_t num_matrices(const decision_config *c)
{
    return c->problem == MULTILABEL ? c->num_classes : 1;
}

static d9d_status matrix_form(const void *config, const char *where, d9d_metric_form *out)
{
    const decision_config *c = config;
    const int64_t n = num_matrices(c) * matrix_size(c) * matrix_size(c);

    (void)where;
    *out = (d9d_metric_form){D9D_I64, n, D9D_COMM_SUM, (size_t)n};
    return D9D_OK;
}

static d9d_status matrix_update(const void *config, const d9d_predictions *b, void *counts)
{
    const decision_config *c = config;
    const int64_t side = matrix_size(c), n = num_decisions(c);
    int64_t *count = counts;

    D9D_TRY(check_batch("confusion_matrix", c, b));
    if (c->problem == MULTICLASS) {
        for (int64_t i = 0; i < b->rows; i++)
            count[predicted_class(b->target + i * b->target_columns, b->target_columns) * side +
                  predicted_class(b->prediction + i * b->prediction_columns,
                                  b->prediction_columns)]++;
        return D9D_OK;
    }
    for (int64_t i = 0; i < b->rows * n; i++)
        count[i % n * 4 + (b->target[i] != 0 ? 2 : 0) + (b->prediction[i] > c->threshold)]++;
    return D9D_OK;
}

static void matrix_compute(const void *config, const void *counts, double *values)
{
    const decision_config *c = config;
    const int64_t *count = counts;
    const int64_t n = num_matrices(c) * matrix_size(c) * matrix_size(c);

    for (int64_t i = 0; i < n; i++)
        values[i] = (double)count[i];
}

/* "target/prediction", after the label's index if there are several matrices */
static void matrix_label(const void *config, size_t i, char *out, size_t n)
{
    const decision_config *c = config;
    const size_t side = (size_t)matrix_size(c), index = i % (side * side);

    if (c->problem == MULTILABEL)
        (void)snprintf(out, n, "%zu/%zu/%zu", i / (side * side), index / side, index % side);
    else
        (void)snprintf(out, n, "%zu/%zu", index / side, index % side);
}

static const d9d_metric_kind matrix_kind = {.size = sizeof(d9d_metric_kind),
                                            .table = &d9di_metric_confusion_matrix_table,
                                            .form = matrix_form,
                                            .update = matrix_update,
                                            .compute = matrix_compute,
                                            .label = matrix_label,
                                            .input = decision_input};
const d9d_table d9di_metric_confusion_matrix_table =
    D9D_TABLE(decision_config, "confusion_matrix", matrix_keys,
              "rows of each target, a row, by prediction, a column", .check = matrix_check,
              .row = &matrix_kind);
