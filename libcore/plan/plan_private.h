/* plan_private.h - planning many configurations on data that are open already. */
#ifndef D9DI_PLAN_PLAN_PRIVATE_H
#define D9DI_PLAN_PLAN_PRIVATE_H

#include "d9d/plan/plan.h"
#include "plan/plan_lengths.h"

/* As d9d_plan_estimate(); `measured` comes from d9di_plan_lengths_measure() for the configuration's
 * micro-batches.
 */
d9d_status d9di_plan_estimate(const d9d_train_config *c, const d9d_plan_opts *opts,
                              const d9di_plan_data *data, const d9di_plan_lengths *measured,
                              d9d_arena *a, d9d_plan *out);

/* Plans c with trainer.optimizer_in_backward: the bytes of the rank that needs most; 0 if c has it
 * already, or is refused with it. */
d9d_status d9di_plan_released_bytes(const d9d_train_config *c, const d9d_plan_opts *opts,
                                    const d9di_plan_data *data, const d9di_plan_lengths *measured,
                                    d9d_arena *a, uint64_t *out);

/* Plans c with each method of context parallelism; c->mesh need not name one. */
d9d_status d9di_plan_choose_cp_method(const d9d_train_config *c, const d9d_plan_opts *opts,
                                      const d9di_plan_data *data, const d9di_plan_lengths *measured,
                                      d9d_arena *a, d9d_plan_cp_choice *out);

/* Computes the pipeline's time and bubble from the stage costs; once_s is added once per step. */
d9d_status d9di_plan_simulate_pipe(d9d_plan *p, double once_s);

/* The degrees in the form of a configuration; NULL if out of memory. */
json_t *d9di_plan_mesh_json(const d9d_parallel_degrees *d);

/* Fills p->goodput, if the options ask for it, from the other members. */
void d9di_plan_set_goodput(const d9d_train_config *c, const d9d_plan_opts *opts, d9d_plan *p);
/* Fills p->start from the other members. */
void d9di_plan_set_start(d9d_plan *p);

#endif /* D9DI_PLAN_PLAN_PRIVATE_H */
