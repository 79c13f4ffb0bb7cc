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

typedef struct auroc_config {
    int64_t num_bins;
} auroc_config;

static const d9d_key auroc_keys[] = {
    D9D_KEY_INT(
        auroc_config, num_bins, "0", 0, 1 << 24,
        "equal steps to which probabilities, of 0 to 1, are rounded down; 0: bins for any scores"),
    D9D_KEY_END,
};

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

static int64_t num_bins_or_default(const auroc_config *c)
{
    return c->num_bins > 0 ? c->num_bins : BINS;
}

/* state: rows of class 0 per bin, then of class 1 */
static d9d_status auroc_form(const void *config, const char *where, d9d_metric_form *out)
{
    (void)where;
    *out = (d9d_metric_form){D9D_I64, 2 * num_bins_or_default(config), D9D_COMM_SUM, 1};
    return D9D_OK;
}

/* Scores must be numbers; with equal bins they must be probabilities. */
static d9d_status scores_check(const auroc_config *c, const d9d_predictions *b)
{
    for (int64_t i = 0; i < b->rows; i++) {
        const double x = b->prediction[i];

        if (isnan(x))
            return D9D_FAIL(D9D_EINVAL, "binary_auroc: row %lld: the prediction is not a number",
                            (long long)i);
        if (c->num_bins > 0 && (x < 0.0 || x > 1.0))
            return D9D_FAIL(
                D9D_EINVAL,
                "binary_auroc: row %lld: %.9g is no probability; num_bins has steps of 0 to 1, "
                "without it any scores are taken",
                (long long)i, x);
    }
    return D9D_OK;
}

static d9d_status auroc_update(const void *config, const d9d_predictions *b, void *state)
{
    const auroc_config *c = config;
    const int64_t bins = num_bins_or_default(c);
    int64_t *rows = state;

    D9D_TRY(d9di_metric_check_columns("binary_auroc", b, 1, 1));
    D9D_TRY(d9di_metric_check_classes("binary_auroc", b, 2));
    D9D_TRY(scores_check(c, b));
    for (int64_t i = 0; i < b->rows; i++) {
        const double x = b->prediction[i];
        const int64_t bin =
            c->num_bins == 0 ? score_bin(x) : min_i64((int64_t)(x * (double)bins), bins - 1);

        rows[(b->target[i] != 0 ? bins : 0) + bin]++;
    }
    return D9D_OK;
}

static void auroc_compute(const void *config, const void *state, double *values)
{
    const int64_t bins = num_bins_or_default(config);
    const int64_t *negative = state, *positive = negative + bins;
    double below = 0, above = 0, pairs = 0;

    for (int64_t i = 0; i < bins; i++) {
        pairs += (double)positive[i] * (below + 0.5 * (double)negative[i]);
        below += (double)negative[i];
        above += (double)positive[i];
    }
    values[0] = below > 0 && above > 0 ? pairs / (below * above) : NAN;
}

static const d9d_metric_kind auroc_kind = {.size = sizeof(d9d_metric_kind),
                                           .table = &d9di_metric_binary_auroc_table,
                                           .form = auroc_form,
                                           .update = auroc_update,
                                           .compute = auroc_compute};
const d9d_table d9di_metric_binary_auroc_table = D9D_TABLE(
    auroc_config, "binary_auroc", auroc_keys, "area under the ROC curve", .row = &auroc_kind);
