/* metric_tokens.c - how well a language model predicts tokens.  See d9d/metric/metric.h.
 *
 *     {"name": "tokens", "top_k": 5, "target_ids": [11, 13]}
 *
 * The calibration error is the expected one (ECE) of Guo et al. 2017: rows fall into num_bins equal
 * bins of the confidence, and
 *
 *     sum over bins of |sum of confidences - number of right rows| / number of all rows
 */
#include <math.h>
#include <stdio.h>

#include "metric/metric_kinds.h"

typedef struct tokens_config {
    int64_t top_k, num_bins;
    d9d_list target_ids; /* int64_t; empty: all */
} tokens_config;

enum { MAX_BINS = 1 << 16 };

static const d9d_key id_elem = {
    .kind = D9D_KIND_INT, .min = 0, .max = INT32_MAX - 1, .doc = "a token"};
static const d9d_key keys[] = {
    D9D_KEY_INT(tokens_config, top_k, "5", 1, 1 << 20,
                "top_k is the share of tokens that are among so many of the likeliest"),
    D9D_KEY_INT(tokens_config, num_bins, "15", 1, MAX_BINS,
                "bins of the confidence, for calibration_error"),
    D9D_KEY_LIST(tokens_config, target_ids, "[]", &id_elem,
                 "tokens that count where they are the target; none named: all"),
    D9D_KEY_END};

/* The state: sums over rows, then for each bin the sums of confidences and of right rows. */
enum { ROWS, LOSS, RIGHT, IN_TOP_K, ENTROPY, CONFIDENCE, SUMS };
enum { BIN_CONFIDENCE, BIN_RIGHT, BIN_SUMS };

static const char *const labels[] = {"loss",    "accuracy",   "top_k",
                                     "entropy", "confidence", "calibration_error"};
enum { N_LABELS = sizeof(labels) / sizeof(labels[0]) };

static d9d_status tokens_form(const void *config, const char *where, d9d_metric_form *out)
{
    const tokens_config *c = config;

    (void)where;
    *out = (d9d_metric_form){D9D_F64, SUMS + BIN_SUMS * c->num_bins, D9D_COMM_SUM, N_LABELS};
    return D9D_OK;
}

static bool counts(const tokens_config *c, double target)
{
    const int64_t *ids = c->target_ids.items;

    for (size_t i = 0; i < c->target_ids.n; i++)
        if ((double)ids[i] == target)
            return true;
    return c->target_ids.n == 0;
}

static void row_add(const tokens_config *c, const double *x, double target, double *sums)
{
    const double confidence = x[D9D_METRIC_TOKEN_CONFIDENCE],
                 right = x[D9D_METRIC_TOKEN_CLASS] == target;
    const int64_t bin = (int64_t)(fmin(fmax(confidence, 0), 1) * (double)c->num_bins);
    double *bins = sums + SUMS + BIN_SUMS * (bin < c->num_bins ? bin : c->num_bins - 1);

    sums[ROWS] += 1;
    sums[LOSS] += x[D9D_METRIC_TOKEN_LOSS];
    sums[RIGHT] += right;
    sums[IN_TOP_K] += x[D9D_METRIC_TOKEN_RANK] < (double)c->top_k;
    sums[ENTROPY] += x[D9D_METRIC_TOKEN_ENTROPY];
    sums[CONFIDENCE] += confidence;
    bins[BIN_CONFIDENCE] += confidence;
    bins[BIN_RIGHT] += right;
}

static d9d_status tokens_update(const void *config, const d9d_predictions *b, void *state)
{
    const tokens_config *c = config;

    D9D_TRY(d9di_metric_check_columns("tokens", b, D9D_METRIC_TOKEN_COLUMNS, 1));
    for (int64_t i = 0; i < b->rows; i++)
        if (counts(c, b->target[i]))
            row_add(c, b->prediction + i * D9D_METRIC_TOKEN_COLUMNS, b->target[i], state);
    return D9D_OK;
}

static void tokens_compute(const void *config, const void *state, double *values)
{
    const tokens_config *c = config;
    const double *s = state;
    double error = 0;

    for (int64_t i = 0; i < c->num_bins; i++) {
        const double *bin = s + SUMS + BIN_SUMS * i;

        error += fabs(bin[BIN_CONFIDENCE] - bin[BIN_RIGHT]);
    }
    for (int i = LOSS; i < SUMS; i++)
        values[i - LOSS] = s[ROWS] > 0 ? s[i] / s[ROWS] : NAN;
    values[N_LABELS - 1] = s[ROWS] > 0 ? error / s[ROWS] : NAN;
}

static void tokens_label(const void *config, size_t i, char *out, size_t n)
{
    (void)config;
    (void)snprintf(out, n, "%s", labels[i]);
}

static d9d_metric_input tokens_input(const void *config)
{
    (void)config;
    return D9D_METRIC_TOKENS;
}

static const d9d_metric_kind tokens_kind = {.size = sizeof(d9d_metric_kind),
                                            .table = &d9di_metric_tokens_table,
                                            .form = tokens_form,
                                            .update = tokens_update,
                                            .compute = tokens_compute,
                                            .label = tokens_label,
                                            .input = tokens_input};
const d9d_table d9di_metric_tokens_table =
    D9D_TABLE(tokens_config, "tokens", keys,
              "of a language model: loss, accuracy, entropy and calibration of its next tokens",
              .row = &tokens_kind);
