/* lion.c - Lion (Chen et al. 2023, Symbolic Discovery of Optimization Algorithms), also with
 * stochastic rounding.
 *
 *     g = scale grad
 *     p -= lr wd p
 *     p -= lr sign(beta1 m + (1 - beta1) g)
 *     m = beta2 m + (1 - beta2) g
 */
#include "cpu/optim_apply.h"

/* The constants of a step, each rounded to float32 once. */
typedef struct lion_consts {
    float scale, decay_factor, lr, b1, b2, c1, c2;
} lion_consts;

static lion_consts lion_consts_make(const d9d_lion_step *c, const float *scale)
{
    return (lion_consts){
        .scale = *scale,
        .decay_factor = (float)(1.0 - c->lr * c->weight_decay),
        .lr = (float)c->lr,
        .b1 = (float)c->beta1,
        .b2 = (float)c->beta2,
        .c1 = (float)(1.0 - c->beta1),
        .c2 = (float)(1.0 - c->beta2),
    };
}

D9DI_CLONES static void lion_update(lion_consts k, float *restrict p, const float *restrict grad,
                                    float *restrict m, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * k.scale, u = k.b1 * m[i] + k.c1 * g;
        float sign = (u > 0.0f ? 1.0f : 0.0f) - (u < 0.0f ? 1.0f : 0.0f);

        p[i] = p[i] * k.decay_factor - k.lr * sign;
        m[i] = k.b2 * m[i] + k.c2 * g;
    }
}

static void lion_rule(const void *consts, float *p, const float *g, float *const *state, int64_t n)
{
    lion_update(*(const lion_consts *)consts, p, g, state[0], n);
}

d9d_status d9d_ref_lion(d9d_stream s, const d9d_lion_step *c, const float *scale, d9d_dtype t,
                        d9d_dtype gt, d9d_dtype st, const d9d_optim_arrays *list, int64_t count)
{
    const lion_consts k = lion_consts_make(c, scale);
    const d9di_cpu_optim_rule rule = {"lion", lion_rule, &k, 1};

    (void)s;
    return d9di_cpu_optim_apply(&rule, scale, t, gt, st, list, count);
}

d9d_status d9d_ref_lion_stochastic(d9d_stream s, const d9d_lion_step *c, const float *scale,
                                   d9d_dtype t, d9d_dtype gt, d9d_dtype st,
                                   const d9d_optim_arrays *a, d9d_rng r, int ndim,
                                   const int64_t *box, const int64_t *start, const int64_t *whole)
{
    const lion_consts k = lion_consts_make(c, scale);
    const d9di_cpu_optim_rule rule = {"lion_stochastic", lion_rule, &k, 1};
    const d9di_cpu_box b = {ndim, box, start, whole};

    (void)s;
    return d9di_cpu_optim_apply_stochastic(&rule, scale, t, gt, st, a, r, &b);
}
