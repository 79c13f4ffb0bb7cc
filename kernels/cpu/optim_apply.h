/* optim_apply.h - applies the rule of an optimizer to parameters, gradients and states of any type.
 */
#ifndef D9DI_CPU_OPTIM_APPLY_H
#define D9DI_CPU_OPTIM_APPLY_H

#include "cpu/common.h"
#include "cpu/math.h"

enum { D9DI_CPU_OPTIM_STATES = 3 };

/* Updates n elements in float32. `consts` are the rule's, with the gradient's scale. state: m, v
 * and vmax of d9d_optim_arrays, as many as the rule has. */
typedef struct d9di_cpu_optim_rule {
    const char *name; /* for messages */
    void (*update)(const void *consts, float *p, const float *g, float *const *state, int64_t n);
    const void *consts;
    int states;
} d9di_cpu_optim_rule;

/* A list of arrays, rounded to nearest. Nothing happens where *scale is NaN. */
d9d_status d9di_cpu_optim_apply(const d9di_cpu_optim_rule *rule, const float *scale, d9d_dtype t,
                                d9d_dtype gt, d9d_dtype st, const d9d_optim_arrays *list,
                                int64_t count);
/* One array, a box of a whole array, rounded stochastically; rules of at most two states. */
d9d_status d9di_cpu_optim_apply_stochastic(const d9di_cpu_optim_rule *rule, const float *scale,
                                           d9d_dtype t, d9d_dtype gt, d9d_dtype st,
                                           const d9d_optim_arrays *a, d9d_rng r,
                                           const d9di_subarray *box);

#endif /* D9DI_CPU_OPTIM_APPLY_H */
