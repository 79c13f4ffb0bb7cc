/* measured_costs.h - prices of a pipeline's stages as a run has measured them, for a plan. */
#ifndef D9DI_PLAN_MEASURED_COSTS_H
#define D9DI_PLAN_MEASURED_COSTS_H

#include "d9d/plan/plan.h"

/* Medians over the newest steps of the run, a directory or its metrics.jsonl, into the plan's
 * prices.  ECONFIG where the run has no pipeline line, or of another number of stages or rows. */
d9d_status d9di_measured_costs_apply(const char *run, d9d_plan *p);

#endif /* D9DI_PLAN_MEASURED_COSTS_H */
