/* plan_private.h - a plan of one configuration among many, on data that are open already. */
#ifndef D9DI_PLAN_PLAN_PRIVATE_H
#define D9DI_PLAN_PLAN_PRIVATE_H

#include "d9d/plan/plan.h"
#include "plan/plan_lengths.h"

/* As d9d_forecast_make(); `measured` is d9di_rows_measure() of the configuration's micro-batches.
 */
d9d_status d9di_forecast_of(const d9d_train_config *c, const d9d_forecast_how *how,
                            const d9di_plan_data *data, const d9di_plan_lengths *measured,
                            d9d_arena *a, d9d_forecast *out);

/* The pipeline's time and bubble, when prices are known; once_s: what comes once a step. */
d9d_status d9di_forecast_pipe(d9d_forecast *p, double once_s);

/* Degrees as a configuration has them; NULL when memory is out. */
json_t *d9di_mesh_json(const d9d_degrees *d);

#endif /* D9DI_PLAN_PLAN_PRIVATE_H */
