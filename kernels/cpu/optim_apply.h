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

/* The box of a whole array that an array is. */
typedef struct d9di_cpu_box {
    int ndim;
    const int64_t *box, *start, *whole;
} d9di_cpu_box;

/* One array, a box of a whole array, rounded stochastically; rules of at most two states. With st
 * D9D_I8 by the next function. */
d9d_status d9di_cpu_optim_apply_stochastic(const d9di_cpu_optim_rule *rule, const float *scale,
                                           d9d_dtype t, d9d_dtype gt, d9d_dtype st,
                                           const d9d_optim_arrays *a, d9d_rng r,
                                           const d9di_cpu_box *box);
/* The same with states in 8 bits. */
d9d_status d9di_cpu_optim_apply_blocks(const d9di_cpu_optim_rule *rule, const float *scale,
                                       d9d_dtype t, d9d_dtype gt, const d9d_optim_arrays *a,
                                       d9d_rng r, const d9di_cpu_box *box);

/* Offset of the first state's random stream from the parameter's. */
enum { D9DI_STATE_STREAM = 42 };
/* Weights from `i` on, whose index in the whole array is `index`: masters as they are, bfloat16
 * without a residual rounded stochastically. */
void d9di_cpu_write_weights_stochastic(d9d_dtype t, void *p, int16_t *residual, int64_t i,
                                       int64_t n, const float *x, d9d_rng r, uint64_t index);

#endif /* D9DI_CPU_OPTIM_APPLY_H */
