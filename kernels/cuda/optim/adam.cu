/* adam.cu - Adam and AdamW, also with stochastic rounding.
 *
 *     g = scale grad, negated to maximize
 *     decoupled (AdamW): p -= lr wd p; else g += wd p
 *     m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
 *     p -= lr / bias_correction1 * m / (sqrt(v) / sqrt(bias_correction2) + eps)
 *
 * With amsgrad, the largest v so far takes the place of v.
 */
#include "cuda/optim/optim_apply.cuh"

/* The constants of a step, each rounded to float32 once. States: m, v, and the largest v. */
template <bool AMSGRAD> struct adam_rule {
    enum { STATES = AMSGRAD ? 3 : 2 };
    bool maximize;
    float decay, wd, b1, b2, c1, c2, step_size, inv_sqrt_bias2, eps;

    __device__ __forceinline__ void update(float scale, float &p, float g,
                                           float (&state)[STATES]) const
    {
        float &m = state[0], &v = state[1], &v_max = state[STATES - 1];

        g = g * scale + (wd == 0.0f ? 0.0f : wd * p);
        m = b1 * m + c1 * g;
        v = b2 * v + c2 * (g * g);
        v_max = AMSGRAD && v_max > v ? v_max : v;
        p = p * decay - step_size * m / (sqrtf(v_max) * inv_sqrt_bias2 + eps);
    }
};

template <bool AMSGRAD> static adam_rule<AMSGRAD> adam_rule_make(const d9d_adam_step *c)
{
    adam_rule<AMSGRAD> k = {};

    k.maximize = c->maximize;
    k.decay = c->decoupled ? (float)(1.0 - c->lr * c->weight_decay) : 1.0f;
    k.wd = c->decoupled ? 0.0f : (float)c->weight_decay;
    k.b1 = (float)c->beta1;
    k.b2 = (float)c->beta2;
    k.c1 = (float)(1.0 - c->beta1);
    k.c2 = (float)(1.0 - c->beta2);
    k.step_size = (float)(c->lr / c->bias_correction1);
    k.inv_sqrt_bias2 = (float)(1.0 / sqrt(c->bias_correction2));
    k.eps = (float)c->eps;
    return k;
}

d9d_status d9d_k_adam(d9d_stream s, const d9d_adam_step *c, const float *scale, d9d_dtype t,
                      d9d_dtype gt, d9d_dtype st, const d9d_optim_arrays *list, int64_t count)
{
    return c->amsgrad
               ? optim_apply(s, "adam", adam_rule_make<true>(c), scale, t, gt, st, list, count)
               : optim_apply(s, "adam", adam_rule_make<false>(c), scale, t, gt, st, list, count);
}

d9d_status d9d_k_adam_stochastic(d9d_stream s, const d9d_adam_step *c, const float *scale,
                                 d9d_dtype t, d9d_dtype gt, d9d_dtype st, const d9d_optim_arrays *a,
                                 d9d_rng r, int ndim, const int64_t *box, const int64_t *start,
                                 const int64_t *whole)
{
    return optim_apply_stochastic(s, "adam_stochastic", adam_rule_make<false>(c), scale, t, gt, st,
                                  a, r, ndim, box, start, whole);
}
