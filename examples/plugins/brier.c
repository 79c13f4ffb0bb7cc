/* brier.c - a custom metric as a plugin: the Brier score, the squared error of predicted
 * probabilities.
 *
 *     {"plugin": "libbrier.so", "metrics": [{"name": "brier"}], ...}
 *
 * The mean over predictions of sum_c (softmax(scores)_c - [c is the target])^2, between 0 and 2.
 * The states of ranks and of earlier runs are summed, so every prediction counts once.
 */
#include <math.h>

#include <d9d/tasks/plugin.h>

enum { SUM, ROWS, SUMS };

static const d9d_key keys[] = {D9D_KEY_END};
static const d9d_table table = {.name = "brier",
                                .keys = keys,
                                .bytes = {sizeof(d9d_table), sizeof(d9d_key)},
                                .doc = "mean squared distance of probabilities from the truth"};

static d9d_status form(const void *config, const char *where, d9d_metric_form *out)
{
    (void)config, (void)where;
    *out = (d9d_metric_form){
        .dtype = D9D_F64, .state_size = SUMS, .reduce_op = D9D_COMM_SUM, .width = 1};
    return D9D_OK;
}

static double distance(const double *score, int64_t n, int64_t target)
{
    double largest = score[0], sum = 0, d = 0;

    for (int64_t c = 1; c < n; c++)
        largest = fmax(largest, score[c]);
    for (int64_t c = 0; c < n; c++)
        sum += exp(score[c] - largest);
    for (int64_t c = 0; c < n; c++)
        d += pow(exp(score[c] - largest) / sum - (c == target), 2);
    return d;
}

static d9d_status update(const void *config, const d9d_predictions *b, void *state)
{
    double *sums = state;

    (void)config;
    if (b->target == NULL || b->target_columns != 1)
        return D9D_FAIL(D9D_EINVAL, "brier: needs one class a row, not %lld",
                        (long long)b->target_columns);
    for (int64_t i = 0; i < b->rows; i++)
        sums[SUM] += distance(b->prediction + i * b->prediction_columns, b->prediction_columns,
                              (int64_t)b->target[i]);
    sums[ROWS] += (double)b->rows;
    return D9D_OK;
}

static void compute(const void *config, const void *state, double *values)
{
    const double *sums = state;

    (void)config;
    values[0] = sums[SUM] / sums[ROWS];
}

static const d9d_metric_kind kind = {
    .size = sizeof(kind), .table = &table, .form = form, .update = update, .compute = compute};
static const d9d_metric_kind *const metrics[] = {&kind, NULL};
D9D_PLUGIN(.metrics = metrics);
