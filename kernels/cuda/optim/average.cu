/* average.cu - moving averages of weights, also with stochastic rounding.
 *
 *     p = (1 - to_state) p + to_state m
 *     m = (1 - to_weights) m + to_weights p      with p as it was
 */
#include "cuda/optim/optim_apply.cuh"

struct average_rule {
    enum { STATES = 1 };
    bool maximize;
    float p_stays, m_stays, to_state, to_weights;

    __device__ __forceinline__ void update(float, float &p, float, float (&state)[1]) const
    {
        const float x = p;
        float &m = state[0];

        if (to_state != 0.0f)
            p = p_stays * x + to_state * m;
        m = m_stays * m + to_weights * x;
    }
};

static average_rule average_rule_make(const d9d_average_step *c)
{
    average_rule k = {};

    k.p_stays = (float)(1.0 - c->to_state);
    k.m_stays = (float)(1.0 - c->to_weights);
    k.to_state = (float)c->to_state;
    k.to_weights = (float)c->to_weights;
    return k;
}

d9d_status d9d_k_average(d9d_stream s, const d9d_average_step *c, const float *scale, d9d_dtype t,
                         d9d_dtype st, const d9d_optim_arrays *list, int64_t count)
{
    return optim_apply(s, "average", average_rule_make(c), scale, t, t, st, list, count);
}

d9d_status d9d_k_average_stochastic(d9d_stream s, const d9d_average_step *c, const float *scale,
                                    d9d_dtype t, d9d_dtype st, const d9d_optim_arrays *a, d9d_rng r,
                                    int ndim, const int64_t *box, const int64_t *start,
                                    const int64_t *whole)
{
    return optim_apply_stochastic(s, "average_stochastic", average_rule_make(c), scale, t, t, st, a,
                                  r, ndim, box, start, whole);
}
