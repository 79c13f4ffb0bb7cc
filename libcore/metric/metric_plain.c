/* metric_plain.c - sums, means and extremes of numbers.  See d9d/metric/metric.h. */
#include <math.h>

#include "metric/metric_kinds.h"

static const d9d_key no_keys[] = {D9D_KEY_END};

/* A row's numbers all have its weight. */
static double weight_of(const d9d_predictions *b, int64_t row)
{
    return b->weight != NULL ? b->weight[row] : 1;
}

/* A sum whose rounding is kept beside it (Neumaier), so that it does not show how rows were dealt.
 */
typedef struct exact {
    double sum, rest;
} exact;

static void exact_add(exact *e, double v)
{
    const double sum = e->sum + v;

    if (isfinite(sum))
        e->rest += fabs(e->sum) >= fabs(v) ? (e->sum - sum) + v : (v - sum) + e->sum;
    e->sum = sum;
}

static double exact_value(const exact *e)
{
    return e->sum + e->rest;
}

/* cells: of p w, of w */
enum { OF_VALUES, OF_WEIGHTS, SUMS };

static d9d_status sums_form(const void *config, const char *where, d9d_metric_form *out)
{
    (void)config, (void)where;
    *out = (d9d_metric_form){D9D_F64, SUMS * sizeof(exact) / sizeof(double), D9D_COMM_SUM, 1};
    return D9D_OK;
}

static d9d_status sums_update(const void *config, const d9d_predictions *b, void *cells)
{
    const int64_t columns = b->prediction_columns;
    exact *sums = cells;

    (void)config;
    for (int64_t i = 0; i < b->rows * columns; i++) {
        exact_add(&sums[OF_VALUES], b->prediction[i] * weight_of(b, i / columns));
        exact_add(&sums[OF_WEIGHTS], weight_of(b, i / columns));
    }
    return D9D_OK;
}

static void sum_compute(const void *config, const void *cells, double *values)
{
    (void)config;
    values[0] = exact_value(&((const exact *)cells)[OF_VALUES]);
}

static void mean_compute(const void *config, const void *cells, double *values)
{
    const exact *sums = cells;
    const double weights = exact_value(&sums[OF_WEIGHTS]);

    (void)config;
    values[0] = weights != 0 ? exact_value(&sums[OF_VALUES]) / weights : NAN;
}

/* cells: the largest; of min the largest of the negated */
static d9d_status extreme_form(const void *config, const char *where, d9d_metric_form *out)
{
    (void)config, (void)where;
    *out = (d9d_metric_form){D9D_F64, 1, D9D_COMM_MAX, 1};
    return D9D_OK;
}

static void extreme_update(const d9d_predictions *b, double sign, double *most)
{
    for (int64_t i = 0; i < b->rows * b->prediction_columns; i++)
        if (!(sign * b->prediction[i] <= *most)) /* NaN is kept */
            *most = isnan(*most) ? *most : sign * b->prediction[i];
}

static void extreme_compute(const void *cells, double sign, double *values)
{
    const double most = *(const double *)cells;

    values[0] = most == -INFINITY ? NAN : sign * most;
}

#define EXTREME(name, sign)                                                                        \
    static d9d_status name##_update(const void *config, const d9d_predictions *b, void *cells)     \
    {                                                                                              \
        (void)config;                                                                              \
        extreme_update(b, sign, cells);                                                            \
        return D9D_OK;                                                                             \
    }                                                                                              \
    static void name##_compute(const void *config, const void *cells, double *values)              \
    {                                                                                              \
        (void)config;                                                                              \
        extreme_compute(cells, sign, values);                                                      \
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
