/* metric_auroc.c - area under the ROC curve from histograms of both classes.
 *
 * The area is the share of (positive, negative) pairs in which the positive row has the higher
 * score; a pair in the same bin counts one half.  Only the order of scores matters, so the bins
 * follow a logarithmic scale with OCTAVE_STEPS bins per octave.  The scale applies to x below 1/2
 * and from 1 on, to 1 - x between 1/2 and 1, and to -x for negative x.  The relative resolution is
 * about a thousandth for logits, and for probabilities near 0 and near 1.  Magnitudes beyond 2^-64
 * and 2^64 count as equal. */
#include <math.h>

#include "metric/metric_kinds.h"

typedef enum average { MICRO, MACRO, WEIGHTED, NONE } average;

typedef struct auroc_config {
    int64_t num_bins;
    int64_t num_classes; /* that are not exclusive; 0: the problem is binary */
    int average;
} auroc_config;

static const char *const average_names[] = {"micro", "macro", "weighted", "none", NULL};

static const d9d_key binary_keys[] = {
    D9D_KEY_INT(
        auroc_config, num_bins, "0", 0, 1 << 24,
        "equal steps to which probabilities, of 0 to 1, are rounded down; 0: bins for any scores"),
    D9D_KEY_END};
static const d9d_key multilabel_keys[] = {
    D9D_KEY_INT(auroc_config, num_bins, "0", 0, 1 << 24,
                "equal steps to which probabilities are rounded down; 0: steps of about a "
                "thousandth of them, 2 MB of memory for each class"),
    D9D_KEY_INT(auroc_config, num_classes, D9D_REQUIRED, 1, 1 << 20, "how many classes"),
    D9D_KEY_ENUM(auroc_config, average, "\"macro\"", average_names, "how classes become one"),
    D9D_KEY_END};

/* Octaves of a segment begin at 2^MIN_EXPONENT; the segments are stored one after the other. */
enum { OCTAVE_STEPS = 1024, MIN_EXPONENT = -64, MAX_EXPONENT = 64, MIN_EXPONENT_NEAR_1 = -53 };
enum {
    BINS_NEGATIVE = (MAX_EXPONENT - MIN_EXPONENT) * OCTAVE_STEPS, /* below 0 */
    BINS_LOW = (-1 - MIN_EXPONENT) * OCTAVE_STEPS,                /* 0 to 1/2 */
    BINS_HIGH = (0 - MIN_EXPONENT_NEAR_1) * OCTAVE_STEPS,         /* 1/2 to 1: distances from 1 */
    BINS_ABOVE = MAX_EXPONENT * OCTAVE_STEPS,                     /* from 1 on */
    BINS = BINS_NEGATIVE + BINS_LOW + BINS_HIGH + BINS_ABOVE
};

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Index of x >= 0 in octaves that begin at 2^least, clamped to [0, steps). */
static int64_t log_step_index(double x, int least, int64_t steps)
{
    int exponent;
    double fraction;

    if (x < ldexp(1.0, least))
        return 0;
    if (isinf(x))
        return steps - 1;
    fraction = frexp(x, &exponent); /* 1/2 to 1 */
    return min_i64((exponent - 1 - least) * (int64_t)OCTAVE_STEPS +
                       (int64_t)((2.0 * fraction - 1.0) * OCTAVE_STEPS),
                   steps - 1);
}

/* The bin of any score. */
static int64_t score_bin(double x)
{
    if (x < 0.0)
        return BINS_NEGATIVE - 1 - log_step_index(-x, MIN_EXPONENT, BINS_NEGATIVE);
    if (x < 0.5)
        return BINS_NEGATIVE + log_step_index(x, MIN_EXPONENT, BINS_LOW);
    if (x < 1.0)
        return BINS_NEGATIVE + BINS_LOW + BINS_HIGH - 1 -
               log_step_index(1.0 - x, MIN_EXPONENT_NEAR_1, BINS_HIGH);
    return BINS_NEGATIVE + BINS_LOW + BINS_HIGH + log_step_index(x, 0, BINS_ABOVE);
}

static bool is_multilabel(const auroc_config *c)
{
    return c->num_classes > 0;
}

/* Bins of a histogram: of several classes those of [0, 1] alone. */
static int64_t num_bins_or_default(const auroc_config *c)
{
    return c->num_bins > 0 ? c->num_bins : is_multilabel(c) ? BINS_LOW + BINS_HIGH : BINS;
}

static int64_t bin_of(const auroc_config *c, double x)
{
    const int64_t bins = num_bins_or_default(c);

    if (c->num_bins > 0)
        return min_i64((int64_t)(x * (double)bins), bins - 1);
    return is_multilabel(c) ? min_i64(score_bin(x) - BINS_NEGATIVE, bins - 1) : score_bin(x);
}

static int64_t num_columns(const auroc_config *c)
{
    return is_multilabel(c) ? c->num_classes : 1;
}
static int64_t num_histograms(const auroc_config *c)
{
    return is_multilabel(c) && c->average != MICRO ? c->num_classes : 1;
}

/* state: of each histogram rows of class 0 per bin, then of class 1 */
static d9d_status auroc_form(const void *config, const char *where, d9d_metric_form *out)
{
    const auroc_config *c = config;
    const int64_t n = num_histograms(c);

    (void)where;
    *out = (d9d_metric_form){D9D_I64, 2 * n * num_bins_or_default(c), D9D_COMM_SUM,
                             is_multilabel(c) && c->average == NONE ? (size_t)n : 1};
    return D9D_OK;
}

static d9d_status fail_no_probability(const char *name, const auroc_config *c, int64_t row,
                                      double x)
{
    return D9D_FAIL(D9D_EINVAL, "%s: row %lld: %.9g is no probability%s", name, (long long)row, x,
                    is_multilabel(c) ? ""
                                     : "; num_bins has steps of 0 to 1, without it any scores are "
                                       "taken");
}

/* Scores must be numbers; with equal bins, and of several classes, they must be probabilities. */
static d9d_status scores_check(const char *name, const auroc_config *c, const d9d_predictions *b)
{
    const bool probabilities = c->num_bins > 0 || is_multilabel(c);
    const int64_t n = num_columns(c);

    for (int64_t i = 0; i < b->rows * n; i++) {
        const double x = b->prediction[i];

        if (isnan(x))
            return D9D_FAIL(D9D_EINVAL, "%s: row %lld: %s prediction is not a number", name,
                            (long long)(i / n), n > 1 ? "a" : "the");
        if (probabilities && (x < 0.0 || x > 1.0))
            return fail_no_probability(name, c, i / n, x);
    }
    return D9D_OK;
}

static d9d_status scores_add(const char *name, const auroc_config *c, const d9d_predictions *b,
                             int64_t *rows)
{
    const int64_t bins = num_bins_or_default(c), n = num_columns(c), histograms = num_histograms(c);

    D9D_TRY(d9di_metric_check_columns(name, b, n, n));
    D9D_TRY(d9di_metric_check_classes(name, b, 2));
    D9D_TRY(scores_check(name, c, b));
    for (int64_t i = 0; i < b->rows * n; i++)
        rows[(i % histograms * 2 + (b->target[i] != 0)) * bins + bin_of(c, b->prediction[i])]++;
    return D9D_OK;
}

/* *above is the number of positive rows. */
static double area(const int64_t *negative, int64_t bins, double *above)
{
    const int64_t *positive = negative + bins;
    double below = 0, pairs = 0;

    *above = 0;
    for (int64_t i = 0; i < bins; i++) {
        pairs += (double)positive[i] * (below + 0.5 * (double)negative[i]);
        below += (double)negative[i];
        *above += (double)positive[i];
    }
    return below > 0 && *above > 0 ? pairs / (below * *above) : NAN;
}

/* Classes without rows of both kinds have no area. */
static void auroc_compute(const void *config, const void *state, double *values)
{
    const auroc_config *c = config;
    const int64_t bins = num_bins_or_default(c), n = num_histograms(c);
    double sum = 0, weights = 0;

    for (int64_t k = 0; k < n; k++) {
        double above;
        const double v = area((const int64_t *)state + 2 * k * bins, bins, &above),
                     w = isnan(v)                 ? 0
                         : c->average == WEIGHTED ? above
                                                  : 1;

        if (is_multilabel(c) && c->average == NONE)
            values[k] = v;
        sum += w > 0 ? w * v : 0;
        weights += w;
    }
    if (!is_multilabel(c) || c->average != NONE)
        values[0] = weights > 0 ? sum / weights : NAN;
}

#define AUROC(word, key_table, text)                                                               \
    static d9d_status word##_update(const void *config, const d9d_predictions *b, void *state)     \
    {                                                                                              \
        return scores_add(#word, config, b, state);                                                \
    }                                                                                              \
    static const d9d_metric_kind word##_kind = {.size = sizeof(d9d_metric_kind),                   \
                                                .table = &d9di_metric_##word##_table,              \
                                                .form = auroc_form,                                \
                                                .update = word##_update,                           \
                                                .compute = auroc_compute};                         \
    const d9d_table d9di_metric_##word##_table =                                                   \
        D9D_TABLE(auroc_config, #word, key_table, text, .row = &word##_kind)

AUROC(binary_auroc, binary_keys, "area under the ROC curve");
AUROC(multilabel_auroc, multilabel_keys, "area under the ROC curve of classes of which any may be");
