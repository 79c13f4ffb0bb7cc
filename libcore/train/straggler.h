/* straggler.h - which ranks compute slowly: the judgement, apart from any measurement.
 *
 *     D9D_TRY(d9di_straggler_watch_open(&w, &opts, team, n, &arena));
 *     each period:
 *         times[rank] = d9di_straggler_time_of(ms, n);              // its steps, shared with all
 *         d9di_straggler_watch_judge(&w, step, times, verdicts, &n_verdicts);
 *
 *     rank        0     1     2     3        team 0: ranks 0 to 3
 *     ms         10.1   9.9  13.2  10.0      medians of the period's steps
 *     ratio      1.01  0.98  1.31  0.99      to the median of the other members of its team
 *
 * A team are ranks with the same work: those of a pipeline stage that have the same experts.  A
 * rank is slow when its ratio exceeds the factor, and the difference three standard errors of the
 * medians. It is named when it was so in as many periods in a row as the options say: a machine
 * that is busy for a moment is not a straggler.  A named rank that is not slow for as many periods
 * has recovered. A rank without others in its team is never judged.
 *
 * Errors come from median absolute deviations, so that a few outliers change neither the times nor
 * the errors.  Three of them are exceeded by chance in 1 period of 700, and in three in a row
 * hardly ever: tests/unit/train/test_straggler.c counts.
 *
 * All ranks judge the same numbers and come to the same verdicts.
 */
#ifndef D9DI_TRAIN_STRAGGLER_H
#define D9DI_TRAIN_STRAGGLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "d9d/base/mem.h"
#include "d9d/base/status.h"

typedef struct d9di_straggler_watch_opts {
    double factor;   /* above 1 */
    int64_t periods; /* at least 1 */
} d9di_straggler_watch_opts;

/* The computing of a rank in the steps of a period. */
typedef struct d9di_straggler_time {
    double ms;    /* the median */
    double error; /* its standard error */
} d9di_straggler_time;

/* Of n steps; sorts ms, and then overwrites it.  Zeros if n is 0: such a rank is not judged, nor
 * are those whose peers had none. */
d9di_straggler_time d9di_straggler_time_of(double *ms, size_t n);

/* A change of a rank. */
typedef struct d9di_straggler_verdict {
    int rank;
    bool recovered;
    int64_t since; /* the step after which the slow periods began, or the quick ones */
    double ms, peers_ms;
    double before; /* its mean ratio before it was slow; NaN: it was never otherwise */
} d9di_straggler_verdict;

typedef struct d9di_straggler_watch {
    d9di_straggler_watch_opts opts;
    int n;
    const int *team;               /* [n]; in the arena */
    struct d9di_straggler *member; /* [n] */
    double *others, *errors;       /* [n]: scratch */
    int64_t last_step;             /* the end of the period before */
} d9di_straggler_watch;

/* team [n]: a number for each rank; copied.  step: of the first period's begin. */
d9d_status d9di_straggler_watch_open(d9di_straggler_watch *w, const d9di_straggler_watch_opts *opts,
                                     const int *team, int n, int64_t step, d9d_arena *a);
/* True if some rank has others in its team. */
bool d9di_straggler_watch_has_peers(const d9di_straggler_watch *w);
/* The period that ended after `step`; times [n].  Sets verdicts [n] of the ranks that changed, in
 * their order. */
void d9di_straggler_watch_judge(d9di_straggler_watch *w, int64_t step,
                                const d9di_straggler_time *times, d9di_straggler_verdict *verdicts,
                                int *n_verdicts);

#endif /* D9DI_TRAIN_STRAGGLER_H */
