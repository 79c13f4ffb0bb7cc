/* update_lists.h - calls the kernels of an optimizer: for lists of parameters (multi-tensor apply),
 * or one by one with stochastic rounding. */
#ifndef D9DI_OPTIM_UPDATE_LISTS_H
#define D9DI_OPTIM_UPDATE_LISTS_H

#include "optim/optimizer.h"

enum { D9DI_OPTIMIZER_LIST_MAX = 64 }; /* parameters of one kernel call */

/* What one step of an optimizer runs.  Updates of one list have the types, the rate and the step
 * count of `u`. */
typedef struct d9di_optimizer_rule {
    const void *arg; /* of the functions */
    d9d_status (*list)(const void *arg, const d9d_optimizer_update *u, const d9d_optim_arrays *list,
                       int64_t n);
    d9d_status (*stochastic)(const void *arg, const d9d_optimizer_update *u,
                             const d9d_optim_arrays *a, d9d_rng rng);
    int states;
    d9d_optimizer_weight_update weight_update;
} d9di_optimizer_rule;

/* Stochastic rounding, of bfloat16 weights or of the states of master weights? */
bool d9di_optimizer_rounds_stochastically(d9d_optimizer_weight_update update, d9d_dtype states);
/* ECONFIG for states in 8 bits with weights that are rounded to nearest. */
d9d_status d9di_optimizer_check_rounding(d9d_optimizer_weight_update update, d9d_dtype states,
                                         const char *path);
d9d_status d9di_optimizer_update_lists(const d9di_optimizer_rule *rule,
                                       const d9d_optimizer_update *u, size_t n);

#endif /* D9DI_OPTIM_UPDATE_LISTS_H */
