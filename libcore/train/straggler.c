/* straggler.c - see train/straggler.h. */
#include "train/straggler.h"

#include <math.h>
#include <string.h>

#include "d9d/base/median.h"

/* Of normal values: the standard error of a median of n is MEDIAN_ERROR s / sqrt(n), and s is
 * DEVIATION times the median absolute deviation. */
static const double MEDIAN_ERROR = 1.2533, DEVIATION = 1.4826;

static const double ERRORS = 3; /* standard errors that a difference exceeds */

struct d9di_straggler {
    bool named;
    int64_t row;   /* periods in a row that speak against its state */
    int64_t since; /* the step after which they began */
    double sum;    /* of the ratios of its quick periods, and how many they were */
    int64_t n;
};

d9di_straggler_time d9di_straggler_time_of(double *ms, size_t n)
{
    const double median = d9d_median(ms, n);

    if (n == 0)
        return (d9di_straggler_time){0};
    for (size_t i = 0; i < n; i++)
        ms[i] = fabs(ms[i] - median);
    return (d9di_straggler_time){
        .ms = median,
        .error = MEDIAN_ERROR * DEVIATION * d9d_median(ms, n) / sqrt((double)n),
    };
}

d9d_status d9di_straggler_watch_open(d9di_straggler_watch *w, const d9di_straggler_watch_opts *opts,
                                     const int *team, int n, int64_t step, d9d_arena *a)
{
    int *copy = d9d_arena_alloc(a, (size_t)n * sizeof(*copy));

    *w = (d9di_straggler_watch){.opts = *opts,
                                .n = n,
                                .team = copy,
                                .member = d9d_arena_alloc(a, (size_t)n * sizeof(*w->member)),
                                .others = d9d_arena_alloc(a, (size_t)n * sizeof(*w->others)),
                                .errors = d9d_arena_alloc(a, (size_t)n * sizeof(*w->errors)),
                                .last_step = step};
    if (copy == NULL || w->member == NULL || w->others == NULL || w->errors == NULL)
        return D9D_FAIL(D9D_ENOMEM, "stragglers: no memory for %d ranks", n);
    memcpy(copy, team, (size_t)n * sizeof(*copy));
    return D9D_OK;
}

bool d9di_straggler_watch_has_peers(const d9di_straggler_watch *w)
{
    for (int i = 0; i < w->n; i++)
        for (int k = i + 1; k < w->n; k++)
            if (w->team[i] == w->team[k])
                return true;
    return false;
}

/* The median over the other members of its team; NaN: there are none. */
static d9di_straggler_time peers_of(const d9di_straggler_watch *w, const d9di_straggler_time *times,
                                    int rank)
{
    size_t n = 0;

    for (int i = 0; i < w->n; i++) {
        if (i == rank || w->team[i] != w->team[rank])
            continue;
        w->others[n] = times[i].ms;
        w->errors[n++] = times[i].error;
    }
    return (d9di_straggler_time){.ms = d9d_median(w->others, n),
                                 .error =
                                     MEDIAN_ERROR * d9d_median(w->errors, n) / sqrt((double)n)};
}

static bool is_slow(const d9di_straggler_watch *w, d9di_straggler_time own,
                    d9di_straggler_time peers)
{
    return own.ms > w->opts.factor * peers.ms &&
           own.ms - peers.ms > ERRORS * hypot(own.error, peers.error);
}

/* Takes a period of a rank.  True if it changes what the rank is taken for. */
static bool period_add(const d9di_straggler_watch *w, struct d9di_straggler *x, bool slow,
                       double ratio)
{
    if (slow == x->named) {
        x->row = 0;
    } else if (x->row++ == 0) {
        x->since = w->last_step;
    }
    if (x->row < w->opts.periods) {
        x->sum += slow ? 0 : ratio;
        x->n += slow ? 0 : 1;
        return false;
    }
    x->named = slow;
    x->row = 0;
    return true;
}

void d9di_straggler_watch_judge(d9di_straggler_watch *w, int64_t step,
                                const d9di_straggler_time *times, d9di_straggler_verdict *verdicts,
                                int *n_verdicts)
{
    *n_verdicts = 0;
    for (int i = 0; i < w->n; i++) {
        struct d9di_straggler *x = &w->member[i];
        const d9di_straggler_time own = times[i], peers = peers_of(w, times, i);
        const double before = x->n > 0 ? x->sum / (double)x->n : (double)NAN;

        if (peers.ms > 0 && /* not NaN */
            period_add(w, x, is_slow(w, own, peers), own.ms / peers.ms))
            verdicts[(*n_verdicts)++] = (d9di_straggler_verdict){.rank = i,
                                                                 .recovered = !x->named,
                                                                 .since = x->since,
                                                                 .ms = own.ms,
                                                                 .peers_ms = peers.ms,
                                                                 .before = before};
    }
    w->last_step = step;
}
