/* metric_grpo.c - completions of a policy, by TRL's names.  See d9d/metric/metric.h.
 *
 * A row is a token of a completion, with the columns of tasks/grpo_batch.h.
 */
#include <math.h>
#include <stdio.h>

#include "metric/metric_kinds.h"

static const d9d_key no_keys[] = {D9D_KEY_END};

/* Of a token; from FIRST on, of its completion at its first token, and 0 at the others. */
enum {
    LOW,
    HIGH,
    KL,
    DIFFERENCE,
    MASK,
    ENTROPY,
    FIRST,
    REWARD,
    ZERO_STD,
    LENGTH,
    TRUNCATED,
    COLUMNS
};
/* The state: sums over rows. */
enum { SUM_ROWS = COLUMNS, SUM_SQUARES, SUM_TERMINATED_LENGTH, SUMS };

enum {
    LABEL_REWARD,
    LABEL_REWARD_STD,
    LABEL_ZERO_STD,
    LABEL_LENGTH,
    LABEL_TERMINATED_LENGTH,
    LABEL_TRUNCATED,
    LABEL_LOW,
    LABEL_HIGH,
    LABEL_REGION,
    LABEL_KL,
    LABEL_ENTROPY,
    LABEL_DIFFERENCE,
    N_LABELS
};
static const char *const labels[N_LABELS] = {
    [LABEL_REWARD] = "reward",
    [LABEL_REWARD_STD] = "reward_std",
    [LABEL_ZERO_STD] = "frac_reward_zero_std",
    [LABEL_LENGTH] = "completions/mean_length",
    [LABEL_TERMINATED_LENGTH] = "completions/mean_terminated_length",
    [LABEL_TRUNCATED] = "completions/clipped_ratio",
    [LABEL_LOW] = "clip_ratio/low_mean",
    [LABEL_HIGH] = "clip_ratio/high_mean",
    [LABEL_REGION] = "clip_ratio/region_mean",
    [LABEL_KL] = "kl",
    [LABEL_ENTROPY] = "entropy",
    [LABEL_DIFFERENCE] = "sampling/sampling_logp_difference/mean",
};

static d9d_status grpo_form(const void *config, const char *where, d9d_metric_form *out)
{
    (void)config, (void)where;
    *out = (d9d_metric_form){D9D_F64, SUMS, D9D_COMM_SUM, N_LABELS};
    return D9D_OK;
}

static void row_add(const double *x, double *sums)
{
    for (int i = 0; i < COLUMNS; i++)
        sums[i] += x[i];
    sums[SUM_ROWS] += 1;
    sums[SUM_SQUARES] += x[REWARD] * x[REWARD];
    sums[SUM_TERMINATED_LENGTH] += x[LENGTH] * (1 - x[TRUNCATED]);
}

static d9d_status grpo_update(const void *config, const d9d_predictions *b, void *state)
{
    (void)config;
    D9D_TRY(d9di_metric_check_columns("grpo", b, COLUMNS, -1));
    for (int64_t i = 0; i < b->rows; i++)
        row_add(b->prediction + i * COLUMNS, state);
    return D9D_OK;
}

static double mean(double sum, double n)
{
    return n > 0 ? sum / n : NAN;
}

/* With the divisor n - 1; NaN of fewer than two. */
static double deviation(double sum, double squares, double n)
{
    const double variance = n > 1 ? (squares - sum * sum / n) / (n - 1) : NAN;

    return variance < 0 ? 0 : sqrt(variance);
}

static void grpo_compute(const void *config, const void *state, double *values)
{
    const double *s = state;
    const double n = s[FIRST], tokens = s[MASK], terminated = n - s[TRUNCATED];

    (void)config;
    values[LABEL_REWARD] = mean(s[REWARD], n);
    values[LABEL_REWARD_STD] = deviation(s[REWARD], s[SUM_SQUARES], n);
    values[LABEL_ZERO_STD] = mean(s[ZERO_STD], n);
    values[LABEL_LENGTH] = mean(s[LENGTH], n);
    values[LABEL_TERMINATED_LENGTH] = mean(s[SUM_TERMINATED_LENGTH], terminated);
    values[LABEL_TRUNCATED] = mean(s[TRUNCATED], n);
    values[LABEL_LOW] = mean(s[LOW], tokens);
    values[LABEL_HIGH] = mean(s[HIGH], tokens);
    values[LABEL_REGION] = mean(s[LOW] + s[HIGH], tokens);
    values[LABEL_KL] = mean(s[KL], tokens);
    values[LABEL_ENTROPY] = mean(s[ENTROPY], s[SUM_ROWS]);
    values[LABEL_DIFFERENCE] = mean(s[DIFFERENCE], tokens);
}

static void grpo_label(const void *config, size_t i, char *out, size_t n)
{
    (void)config;
    (void)snprintf(out, n, "%s", labels[i]);
}

static const d9d_metric_kind grpo_kind = {.size = sizeof(d9d_metric_kind),
                                          .table = &d9di_metric_grpo_table,
                                          .form = grpo_form,
                                          .update = grpo_update,
                                          .compute = grpo_compute,
                                          .label = grpo_label};
const d9d_table d9di_metric_grpo_table = {
    .name = "grpo",
    .keys = no_keys,
    .doc = "of the task grpo: rewards and lengths of completions, clipped ratios, divergence from "
           "the reference, entropy, and how far the sampler's log-probabilities are from "
           "training's",
    .row = &grpo_kind};
