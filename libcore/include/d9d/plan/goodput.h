/* goodput.h - the share of a job's time that ends up in its weights, when nodes fail.
 *
 *     const d9d_goodput_costs c = {.mtbf_s = 44000, .blocked_s = 2, .save_s = 60, .restart_s =
 * 300}; d9d_goodput_fraction(&c, 1800);          // with a checkpoint every half hour: 0.96
 *     d9d_goodput_best_period(&c, 15.4);       // of at least a step of 15.4 s
 *
 * Failures come at any time, once in mtbf_s seconds in the mean (exponentially distributed).  Each
 * costs what was computed since the newest complete checkpoint, and the restart.  The expected time
 * of a period P of work is then
 *
 *     M exp((R + S) / M) (exp((P + B) / M) - 1)
 *
 * with M mtbf_s, B blocked_s, R restart_s and S the part of save_s that training does not wait for,
 * since a checkpoint serves only once it is complete.  A save that takes longer than a period makes
 * the next one wait (Daly, A higher order estimate of the optimum
 * checkpoint interval for restart dumps, 2006).
 */
#ifndef D9D_PLAN_GOODPUT_H
#define D9D_PLAN_GOODPUT_H

#include "d9d/base/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In seconds. */
typedef struct d9d_goodput_costs {
    double mtbf_s;    /* between failures of the job: of a node, over the number of nodes */
    double blocked_s; /* that training waits for a save */
    double save_s;    /* until a save is complete; at least blocked_s */
    double restart_s; /* from a failure to the first step after it */
} d9d_goodput_costs;

/* From 0 to 1, with a checkpoint after every period_s seconds of work. */
D9D_API double d9d_goodput_fraction(const d9d_goodput_costs *c, double period_s);
/* The period of the largest fraction, of at least min_s and of a save's own time. */
D9D_API double d9d_goodput_best_period(const d9d_goodput_costs *c, double min_s);

#ifdef __cplusplus
}
#endif
#endif /* D9D_PLAN_GOODPUT_H */
