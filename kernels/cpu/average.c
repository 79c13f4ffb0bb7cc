/* average.c - moving averages of weights, also with stochastic rounding.
 *
 *     p = (1 - to_state) p + to_state m
 *     m = (1 - to_weights) m + to_weights p      with p as it was
 */
#include "cpu/optim_apply.h"

typedef struct average_consts {
    float p_stays, m_stays, to_state, to_weights;
} average_consts;

static average_consts average_consts_make(const d9d_average_step *c)
{
    return (average_consts){.p_stays = (float)(1.0 - c->to_state),
                            .m_stays = (float)(1.0 - c->to_weights),
                            .to_state = (float)c->to_state,
                            .to_weights = (float)c->to_weights};
}

D9DI_CLONES static void average_update(average_consts k, float *restrict p, float *restrict m,
                                       int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const float x = p[i];

        if (k.to_state != 0.0f)
            p[i] = k.p_stays * x + k.to_state * m[i];
        m[i] = k.m_stays * m[i] + k.to_weights * x;
    }
}

static void average_rule(const void *consts, float *p, const float *g, float *const *state,
                         int64_t n)
{
    (void)g;
    average_update(*(const average_consts *)consts, p, state[0], n);
}

d9d_status d9d_ref_average(d9d_stream s, const d9d_average_step *c, const float *scale, d9d_dtype t,
                           d9d_dtype st, const d9d_optim_arrays *list, int64_t count)
{
    const average_consts k = average_consts_make(c);
    const d9di_cpu_optim_rule rule = {"average", average_rule, &k, 1};

    (void)s;
    return d9di_cpu_optim_apply(&rule, scale, t, t, st, list, count);
}

d9d_status d9d_ref_average_stochastic(d9d_stream s, const d9d_average_step *c, const float *scale,
                                      d9d_dtype t, d9d_dtype st, const d9d_optim_arrays *a,
                                      d9d_rng r, int ndim, const int64_t *box, const int64_t *start,
                                      const int64_t *whole)
{
    const average_consts k = average_consts_make(c);
    const d9di_cpu_optim_rule rule = {"average_stochastic", average_rule, &k, 1};
    const d9di_cpu_box b = {ndim, box, start, whole};

    (void)s;
    return d9di_cpu_optim_apply_stochastic(&rule, scale, t, t, st, a, r, &b);
}
