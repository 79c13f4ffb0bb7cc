/* metric_regression.c - how far numbers are from their targets.  See d9d/metric/metric.h.
 *
 * With predictions p and targets t of N rows, of each output
 *
 *     mse      S(p - t)^2 / N
 *     mae      S|p - t| / N
 *     r2       1 - S(p - t)^2 / (S t^2 - (S t)^2 / N)
 *     pearson  (N S p t - S p S t) / sqrt((N S p^2 - (S p)^2) (N S t^2 - (S t)^2))
 *
 * The sums S over rows are exact, so that the values do not depend on the order of rows or on who
 * has them.  Neither does the difference of large numbers in a variance lose digits.
 */
#include <math.h>

#include "metric/exact_sum.h"
#include "metric/metric_kinds.h"

typedef enum average { MACRO, NONE } average;

typedef struct regression_config {
    int64_t num_outputs;
    int average;
} regression_config;

static const char *const average_names[] = {"macro", "none", NULL};
static const d9d_key keys[] = {
    D9D_KEY_INT(regression_config, num_outputs, "1", 1, 1 << 16, "numbers of a row"),
    D9D_KEY_ENUM(regression_config, average, "\"macro\"", average_names,
                 "how outputs become one: their mean, or a value of each"),
    D9D_KEY_END};

/* The state: the number of rows, then of each output its sums. */
enum { LIMBS = D9DI_EXACT_SUM_LIMBS };

typedef void (*add_fn)(int64_t *sums, double p, double t);
typedef double (*value_fn)(const int64_t *sums, double n);

static int64_t *sum_at(int64_t *sums, int i)
{
    return sums + (ptrdiff_t)i * LIMBS;
}
static d9di_exact_sum_pair value_at(const int64_t *sums, int i)
{
    return d9di_exact_sum_value(sums + (ptrdiff_t)i * LIMBS);
}

/* N S a b - S a S b, and 0 where that is nothing but the rounding of its terms. */
static double covariance(d9di_exact_sum_pair ab, d9di_exact_sum_pair a, d9di_exact_sum_pair b,
                         double n)
{
    const d9di_exact_sum_pair large = d9di_exact_sum_product((d9di_exact_sum_pair){n, 0}, ab);
    const double v = d9di_exact_sum_difference(large, d9di_exact_sum_product(a, b)).high;

    return fabs(v) > ldexp(fabs(large.high), -90) ? v : 0;
}

/* --- the metrics: their sums, and the value of an output ---------------------------------------
 */

enum { MSE_ERRORS, MSE_SUMS };

static void mse_add(int64_t *sums, double p, double t)
{
    d9di_exact_sum_add_product(sum_at(sums, MSE_ERRORS), p - t, p - t);
}

static double mse_value(const int64_t *sums, double n)
{
    return value_at(sums, MSE_ERRORS).high / n;
}

enum { MAE_ERRORS, MAE_SUMS };

static void mae_add(int64_t *sums, double p, double t)
{
    d9di_exact_sum_add(sum_at(sums, MAE_ERRORS), fabs(p - t));
}

static double mae_value(const int64_t *sums, double n)
{
    return value_at(sums, MAE_ERRORS).high / n;
}

enum { R2_ERRORS, R2_TARGETS, R2_SQUARES, R2_SUMS };

static void r2_add(int64_t *sums, double p, double t)
{
    d9di_exact_sum_add_product(sum_at(sums, R2_ERRORS), p - t, p - t);
    d9di_exact_sum_add(sum_at(sums, R2_TARGETS), t);
    d9di_exact_sum_add_product(sum_at(sums, R2_SQUARES), t, t);
}

/* Of targets that are all equal: 1 if the predictions are them, else 0. */
static double r2_value(const int64_t *sums, double n)
{
    const d9di_exact_sum_pair t = value_at(sums, R2_TARGETS);
    const double errors = value_at(sums, R2_ERRORS).high,
                 spread = covariance(value_at(sums, R2_SQUARES), t, t, n);

    if (n < 2)
        return NAN;
    return spread > 0 ? 1 - errors / (spread / n) : errors == 0;
}

enum { R_PREDICTIONS, R_TARGETS, R_PP, R_TT, R_PT, PEARSON_SUMS };

static void pearson_add(int64_t *sums, double p, double t)
{
    d9di_exact_sum_add(sum_at(sums, R_PREDICTIONS), p);
    d9di_exact_sum_add(sum_at(sums, R_TARGETS), t);
    d9di_exact_sum_add_product(sum_at(sums, R_PP), p, p);
    d9di_exact_sum_add_product(sum_at(sums, R_TT), t, t);
    d9di_exact_sum_add_product(sum_at(sums, R_PT), p, t);
}

static double pearson_value(const int64_t *sums, double n)
{
    const d9di_exact_sum_pair p = value_at(sums, R_PREDICTIONS), t = value_at(sums, R_TARGETS);
    const double pp = covariance(value_at(sums, R_PP), p, p, n),
                 tt = covariance(value_at(sums, R_TT), t, t, n),
                 pt = covariance(value_at(sums, R_PT), p, t, n);

    return pp > 0 && tt > 0 ? fmax(-1, fmin(1, pt / (sqrt(pp) * sqrt(tt)))) : NAN;
}

/* --- rows and values -------------------------------------------------------------------------- */

/* Sums are exact of what a float32 reaches. */
static d9d_status check_number(const char *name, int64_t row, const char *side, double v)
{
    return isfinite((float)v)
               ? D9D_OK
               : D9D_FAIL(D9D_EINVAL, "%s: row %lld: the %s is %g, no finite float32", name,
                          (long long)row, side, v);
}

static d9d_status check_rows(const char *name, const regression_config *c, const d9d_predictions *b)
{
    D9D_TRY(d9di_metric_check_columns(name, b, c->num_outputs, c->num_outputs));
    for (int64_t i = 0; i < b->rows * c->num_outputs; i++) {
        D9D_TRY(check_number(name, i / c->num_outputs, "prediction", b->prediction[i]));
        D9D_TRY(check_number(name, i / c->num_outputs, "target", b->target[i]));
    }
    return D9D_OK;
}

static d9d_status rows_add(const char *name, const void *config, const d9d_predictions *b,
                           int64_t *state, int n_sums, add_fn add)
{
    const regression_config *c = config;
    const int64_t n = c->num_outputs, stride = (int64_t)n_sums * LIMBS;
    int64_t *sums = state + 1;

    D9D_TRY(check_rows(name, c, b));
    state[0] += b->rows;
    for (int64_t i = 0; i < b->rows * n; i++)
        add(sums + i % n * stride, b->prediction[i], b->target[i]);
    for (int64_t i = 0; i < n * n_sums; i++)
        d9di_exact_sum_carry(sums + i * LIMBS);
    return D9D_OK;
}

static d9d_status state_form(const void *config, d9d_metric_form *out, int n_sums)
{
    const regression_config *c = config;

    *out = (d9d_metric_form){D9D_I64, 1 + c->num_outputs * n_sums * LIMBS, D9D_COMM_SUM,
                             c->average == NONE ? (size_t)c->num_outputs : 1};
    return D9D_OK;
}

/* The mean is over the outputs that have a value. */
static void values_make(const void *config, const int64_t *state, double *values, int n_sums,
                        value_fn value)
{
    const regression_config *c = config;
    double sum = 0, counted = 0;

    for (int64_t k = 0; k < c->num_outputs; k++) {
        const double v =
            state[0] > 0 ? value(state + 1 + k * n_sums * LIMBS, (double)state[0]) : NAN;

        if (c->average == NONE)
            values[k] = v;
        sum += isnan(v) ? 0 : v;
        counted += !isnan(v);
    }
    if (c->average == MACRO)
        values[0] = counted > 0 ? sum / counted : NAN;
}

#define REGRESSION(word, n_sums, text)                                                             \
    static d9d_status word##_form(const void *config, const char *where, d9d_metric_form *out)     \
    {                                                                                              \
        (void)where;                                                                               \
        return state_form(config, out, n_sums);                                                    \
    }                                                                                              \
    static d9d_status word##_update(const void *config, const d9d_predictions *b, void *state)     \
    {                                                                                              \
        return rows_add(#word, config, b, state, n_sums, word##_add);                              \
    }                                                                                              \
    static void word##_compute(const void *config, const void *state, double *values)              \
    {                                                                                              \
        values_make(config, state, values, n_sums, word##_value);                                  \
    }                                                                                              \
    static const d9d_metric_kind word##_kind = {.size = sizeof(d9d_metric_kind),                   \
                                                .table = &d9di_metric_##word##_table,              \
                                                .form = word##_form,                               \
                                                .update = word##_update,                           \
                                                .compute = word##_compute};                        \
    const d9d_table d9di_metric_##word##_table =                                                   \
        D9D_TABLE(regression_config, #word, keys, text, .row = &word##_kind)

REGRESSION(mse, MSE_SUMS, "mean squared error of numbers");
REGRESSION(mae, MAE_SUMS, "mean absolute error of numbers");
REGRESSION(r2, R2_SUMS, "share of the targets' variance that the predictions explain");
REGRESSION(pearson, PEARSON_SUMS, "correlation of predictions and targets");
