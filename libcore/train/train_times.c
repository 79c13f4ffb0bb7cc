/* train_times.c - see train/train_times.h. */
#include "train/train_times.h"

#include "d9d/base/mem.h"
#include "d9d/base/thread.h"

enum { ADVICE_S = 60 }; /* shorter runs are trials, whose start is most of them */

void d9di_train_times_enter(d9di_train_times *t, d9di_train_phase phase)
{
    const int64_t now = d9d_clock_ns();

    if (t->begun)
        t->seconds[t->phase] += (double)(now - t->since_ns) * 1e-9;
    t->begun = true;
    t->phase = phase;
    t->since_ns = now;
}

void d9di_train_times_wait(d9di_train_times *t, double ms)
{
    if (ms > 0) /* not NaN */
        t->waited += ms * 1e-3;
}

static double total(const d9di_train_times *t)
{
    double s = 0;

    for (int i = 0; i < D9DI_TRAIN_PHASES; i++)
        s += t->seconds[i];
    return s;
}

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

static const char *const phase_names[D9DI_TRAIN_PHASES] = {
    [D9DI_TRAIN_START] = "start", [D9DI_TRAIN_STREAM] = "stream",
    [D9DI_TRAIN_STEP] = "steps",  [D9DI_TRAIN_EVALUATION] = "evaluation",
    [D9DI_TRAIN_SAVE] = "saves",  [D9DI_TRAIN_EXPORT] = "export",
};

static d9d_status format_times(const d9di_train_times *t, d9d_buf *b)
{
    const double all = total(t);
    const long long s = (long long)(all + 0.5);

    if (s < 60)
        D9D_TRY(d9d_buf_printf(b, "time: %.1f s", all));
    else
        D9D_TRY(d9d_buf_printf(b, "time: %lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60));
    for (int i = 0; i < D9DI_TRAIN_PHASES; i++) {
        if (t->seconds[i] <= 0)
            continue;
        D9D_TRY(d9d_buf_printf(b, ", %s %.0f %%", phase_names[i], percent(t->seconds[i], all)));
        if (i == D9DI_TRAIN_STEP)
            D9D_TRY(d9d_buf_printf(b, " (waiting for batches %.0f %%)", percent(t->waited, all)));
    }
    return D9D_OK;
}

static double waited(const d9di_train_times *t)
{
    return t->waited;
}

static double saved(const d9di_train_times *t)
{
    return t->seconds[D9DI_TRAIN_SAVE];
}

static double evaluated(const d9di_train_times *t)
{
    return t->seconds[D9DI_TRAIN_EVALUATION];
}

/* What to do about a part of the time that is above so many percent of all. */
static const struct advice {
    double (*seconds)(const d9di_train_times *t);
    double above;
    const char *text;
} advices[] = {
    {waited, 5,
     "batches came late: more of trainer.data_loading.num_workers and prefetch_factor read further "
     "ahead"},
    {saved, 5,
     "saves held steps up: a larger trainer.checkpointing.period_steps, and asynchronous saves, "
     "cost less"},
    {evaluated, 20, "evaluations took long: a larger evaluation.period_steps, or fewer samples"},
};

void d9di_train_times_log(d9di_train_times *t, const d9d_log *log)
{
    d9d_buf line = {0};

    d9di_train_times_enter(t, t->phase); /* up to now */
    if (format_times(t, &line) == D9D_OK)
        d9d_log_info(log, "%s", line.data);
    d9d_buf_release(&line);
    for (size_t i = 0; i < sizeof(advices) / sizeof(advices[0]) && total(t) >= ADVICE_S; i++)
        if (percent(advices[i].seconds(t), total(t)) > advices[i].above)
            d9d_log_info(log, "%s", advices[i].text);
}
