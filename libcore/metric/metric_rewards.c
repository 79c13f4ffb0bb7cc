/* metric_rewards.c - rewards of chosen and rejected answers, by TRL's names.  See
 * d9d/metric/metric.h.
 *
 * A row has the columns of d9d/tasks/preference.h; a side that is absent has the weight 0.
 */
#include <math.h>
#include <stdio.h>

#include "metric/metric_kinds.h"

static const d9d_key no_keys[] = {D9D_KEY_END};

enum { CHOSEN, REJECTED, CHOSEN_LOG_P, REJECTED_LOG_P, HAS_CHOSEN, HAS_REJECTED, KL, COLUMNS };
/* The state: sums over rows. */
enum { SUM_ROWS = COLUMNS, SUM_PAIRS, SUM_RIGHT, SUMS };

static const char *const labels[] = {"chosen",       "rejected",       "margins", "accuracies",
                                     "logps_chosen", "logps_rejected", "kl"};
enum { N_LABELS = sizeof(labels) / sizeof(labels[0]) };

static d9d_status rewards_form(const void *config, const char *where, d9d_metric_form *out)
{
    (void)config, (void)where;
    *out = (d9d_metric_form){D9D_F64, SUMS, D9D_COMM_SUM, N_LABELS};
    return D9D_OK;
}

static void row_add(const double *x, double *sums)
{
    const double has[] = {x[HAS_CHOSEN], x[HAS_REJECTED]};

    for (int i = CHOSEN; i <= REJECTED_LOG_P; i++)
        sums[i] += x[i] * has[i % 2];
    sums[HAS_CHOSEN] += has[0];
    sums[HAS_REJECTED] += has[1];
    sums[KL] += x[KL];
    sums[SUM_ROWS] += 1;
    sums[SUM_PAIRS] += has[0] * has[1];
    sums[SUM_RIGHT] += has[0] * has[1] * (x[CHOSEN] > x[REJECTED]);
}

static d9d_status rewards_update(const void *config, const d9d_predictions *b, void *state)
{
    (void)config;
    D9D_TRY(d9di_metric_check_columns("rewards", b, COLUMNS, -1));
    for (int64_t i = 0; i < b->rows; i++)
        row_add(b->prediction + i * COLUMNS, state);
    return D9D_OK;
}

static double mean(double sum, double n)
{
    return n > 0 ? sum / n : NAN;
}

static void rewards_compute(const void *config, const void *state, double *values)
{
    const double *s = state;
    const double chosen = mean(s[CHOSEN], s[HAS_CHOSEN]),
                 rejected = mean(s[REJECTED], s[HAS_REJECTED]);
    const double all[N_LABELS] = {chosen,
                                  rejected,
                                  chosen - rejected,
                                  mean(s[SUM_RIGHT], s[SUM_PAIRS]),
                                  mean(s[CHOSEN_LOG_P], s[HAS_CHOSEN]),
                                  mean(s[REJECTED_LOG_P], s[HAS_REJECTED]),
                                  mean(s[KL], s[SUM_ROWS])};

    (void)config;
    for (int i = 0; i < N_LABELS; i++)
        values[i] = all[i];
}

static void rewards_label(const void *config, size_t i, char *out, size_t n)
{
    (void)config;
    (void)snprintf(out, n, "%s", labels[i]);
}

static const d9d_metric_kind rewards_kind = {.size = sizeof(d9d_metric_kind),
                                             .table = &d9di_metric_rewards_table,
                                             .form = rewards_form,
                                             .update = rewards_update,
                                             .compute = rewards_compute,
                                             .label = rewards_label};
const d9d_table d9di_metric_rewards_table = {
    .name = "rewards",
    .keys = no_keys,
    .doc = "of a preference or reward task: rewards of chosen and rejected answers, their margins "
           "and accuracies, log-probabilities and kto's kl",
    .row = &rewards_kind};
