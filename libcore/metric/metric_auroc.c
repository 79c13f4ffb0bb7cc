/* metric_auroc.c - area under the ROC curve, of histograms of both classes.
 *
 * The share of pairs of a positive and a negative row in which the positive has the higher
 * probability; a pair in the same bin counts one half. */
#include <math.h>

#include "metric/kinds.h"

typedef struct auroc_config {
    int64_t num_bins;
} auroc_config;

static const d9d_key auroc_keys[] = {
    D9D_KEY_INT(auroc_config, num_bins, "10000", 1, 1 << 24,
                "equal steps to which probabilities are rounded down"),
    D9D_KEY_END,
};

/* cells: rows of class 0 in each bin, then of class 1 */
static d9d_status auroc_form(const void *config, const char *where, d9d_metric_form *out)
{
    const auroc_config *c = config;

    (void)where;
    *out = (d9d_metric_form){D9D_I64, 2 * c->num_bins, D9D_COMM_SUM, 1};
    return D9D_OK;
}

static d9d_status probabilities_check(const d9d_predictions *b)
{
    for (int64_t i = 0; i < b->rows; i++)
        if (isnan(b->prediction[i]))
            return D9D_FAIL(D9D_EINVAL, "binary_auroc: row %lld: the prediction is not a number",
                            (long long)i);
    return D9D_OK;
}

static d9d_status auroc_update(const void *config, const d9d_predictions *b, void *cells)
{
    const auroc_config *c = config;
    int64_t *rows = cells;

    D9D_TRY(d9di_metric_columns("binary_auroc", b, 1, 1));
    D9D_TRY(d9di_metric_classes("binary_auroc", b, 2));
    D9D_TRY(probabilities_check(b));
    for (int64_t i = 0; i < b->rows; i++) {
        const double step = b->prediction[i] * (double)c->num_bins;
        const int64_t last = c->num_bins - 1;
        const int64_t bin = step <= 0 ? 0 : step >= (double)last ? last : (int64_t)step;

        rows[(b->target[i] != 0 ? c->num_bins : 0) + bin]++;
    }
    return D9D_OK;
}

static void auroc_compute(const void *config, const void *cells, double *values)
{
    const auroc_config *c = config;
    const int64_t *negative = cells, *positive = negative + c->num_bins;
    double below = 0, above = 0, pairs = 0;

    for (int64_t i = 0; i < c->num_bins; i++) {
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
