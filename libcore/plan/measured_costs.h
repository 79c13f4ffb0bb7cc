/* measured_costs.h - stage times that a run has measured, as costs of a plan. */
#ifndef D9DI_PLAN_MEASURED_COSTS_H
#define D9DI_PLAN_MEASURED_COSTS_H

#include "d9d/plan/plan.h"

/* Sets the plan's costs to the medians of the newest steps of a run, given by its directory or
 * metrics.jsonl.  ECONFIG if the run has no pipeline lines, or another number of stages or
 * sequences. */
d9d_status d9di_measured_costs_apply(const char *run, d9d_plan *p);

#endif /* D9DI_PLAN_MEASURED_COSTS_H */
