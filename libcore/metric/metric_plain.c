/* metric_plain.c - sum, mean, minimum and maximum.  See d9d/metric/metric.h. */
#include <math.h>

#include "metric/metric_kinds.h"

static const d9d_key no_keys[] = {D9D_KEY_END};

/* All numbers of a row have the row's weight. */
static double row_weight(const d9d_predictions *b, int64_t row)
{
    return b->weight != NULL ? b->weight[row] : 1;
}

/* Compensated (Neumaier) summation, so that the result does not depend on how rows are
 * distributed.
 */
typedef struct neumaier_sum {
    double sum, compensation;
} neumaier_sum;

static void neumaier_add(neumaier_sum *e, double v)
{
    const double sum = e->sum + v;

    if (isfinite(sum))
        e->compensation += fabs(e->sum) >= fabs(v) ? (e->sum - sum) + v : (v - sum) + e->sum;
    e->sum = sum;
}

static double neumaier_value(const neumaier_sum *e)
{
    return e->sum + e->compensation;
}

/* the state: sums of p w, and of w */
enum { SUM_VALUES, SUM_WEIGHTS, NUM_SUMS };

static d9d_status sums_form(const void *config, const char *where, d9d_metric_form *out)
{
    (void)config, (void)where;
    *out = (d9d_metric_form){D9D_F64, NUM_SUMS * sizeof(neumaier_sum) / sizeof(double),
                             D9D_COMM_SUM, 1};
    return D9D_OK;
}

static d9d_status sums_update(const void *config, const d9d_predictions *b, void *state)
{
    const int64_t columns = b->prediction_columns;
    neumaier_sum *sums = state;

    (void)config;
    for (int64_t i = 0; i < b->rows * columns; i++) {
        neumaier_add(&sums[SUM_VALUES], b->prediction[i] * row_weight(b, i / columns));
        neumaier_add(&sums[SUM_WEIGHTS], row_weight(b, i / columns));
    }
    return D9D_OK;
}

static void sum_compute(const void *config, const void *state, double *values)
{
    (void)config;
    values[0] = neumaier_value(&((const neumaier_sum *)state)[SUM_VALUES]);
}

static void mean_compute(const void *config, const void *state, double *values)
{
    const neumaier_sum *sums = state;
    const double weights = neumaier_value(&sums[SUM_WEIGHTS]);

    (void)config;
    values[0] = weights != 0 ? neumaier_value(&sums[SUM_VALUES]) / weights : NAN;
}

/* state: the maximum; for min the maximum of the negated values */
static d9d_status extreme_form(const void *config, const char *where, d9d_metric_form *out)
{
    (void)config, (void)where;
    *out = (d9d_metric_form){D9D_F64, 1, D9D_COMM_MAX, 1};
    return D9D_OK;
}

static void extreme_update(const d9d_predictions *b, double sign, double *extreme)
{
    for (int64_t i = 0; i < b->rows * b->prediction_columns; i++)
        if (!(sign * b->prediction[i] <= *extreme)) /* a NaN is kept */
            *extreme = isnan(*extreme) ? *extreme : sign * b->prediction[i];
}

static void extreme_compute(const void *state, double sign, double *values)
{
    const double extreme = *(const double *)state;

    values[0] = extreme == -INFINITY ? NAN : sign * extreme;
}

#define EXTREME(name, sign)                                                                        \
    static d9d_status name##_update(const void *config, const d9d_predictions *b, void *state)     \
    {                                                                                              \
        (void)config;                                                                              \
        extreme_update(b, sign, state);                                                            \
        return D9D_OK;                                                                             \
    }                                                                                              \
    static void name##_compute(const void *config, const void *state, double *values)              \
    {                                                                                              \
        (void)config;                                                                              \
        extreme_compute(state, sign, values);                                                      \
    }
EXTREME(min, -1)
EXTREME(max, 1)

#define KIND(word, form_fn, update_fn, by_weight, text)                                            \
    static const d9d_metric_kind word##_kind = {.size = sizeof(d9d_metric_kind),                   \
                                                .table = &d9di_metric_##word##_table,              \
                                                .form = (form_fn),                                 \
                                                .update = (update_fn),                             \
                                                .compute = word##_compute,                         \
                                                .weighted = (by_weight)};                          \
    const d9d_table d9di_metric_##word##_table = {                                                 \
        .name = #word, .keys = no_keys, .doc = (text), .row = &word##_kind}

KIND(sum, sums_form, sums_update, true, "sum of predictions, each times its weight");
KIND(mean, sums_form, sums_update, true, "weighted mean of predictions");
KIND(min, extreme_form, min_update, false, "the smallest prediction");
KIND(max, extreme_form, max_update, false, "the largest prediction");
