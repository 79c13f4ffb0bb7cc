/* lion.cu - Lion (Chen et al. 2023, Symbolic Discovery of Optimization Algorithms), also with
 * stochastic rounding.
 *
 *     g = scale grad
 *     p -= lr wd p
 *     p -= lr sign(beta1 m + (1 - beta1) g)
 *     m = beta2 m + (1 - beta2) g
 */
#include "cuda/optim/optim_apply.cuh"

/* The constants of a step, each rounded to float32 once. */
struct lion_rule {
    enum { STATES = 1 };
    bool maximize;
    float decay, lr, b1, b2, c1, c2;

    __device__ __forceinline__ void update(float scale, float &p, float g, float (&state)[1]) const
    {
        float &m = state[0], u;

        g = g * scale;
        u = b1 * m + c1 * g;
        p = p * decay - lr * ((u > 0.0f ? 1.0f : 0.0f) - (u < 0.0f ? 1.0f : 0.0f));
        m = b2 * m + c2 * g;
    }
};

static lion_rule lion_rule_make(const d9d_lion_step *c)
{
    lion_rule k = {};

    k.decay = (float)(1.0 - c->lr * c->weight_decay);
    k.lr = (float)c->lr;
    k.b1 = (float)c->beta1;
    k.b2 = (float)c->beta2;
    k.c1 = (float)(1.0 - c->beta1);
    k.c2 = (float)(1.0 - c->beta2);
    return k;
}

d9d_status d9d_k_lion(d9d_stream s, const d9d_lion_step *c, const float *scale, d9d_dtype t,
                      d9d_dtype gt, d9d_dtype st, const d9d_optim_arrays *list, int64_t count)
{
    return optim_apply(s, "lion", lion_rule_make(c), scale, t, gt, st, list, count);
}

d9d_status d9d_k_lion_stochastic(d9d_stream s, const d9d_lion_step *c, const float *scale,
                                 d9d_dtype t, d9d_dtype gt, d9d_dtype st, const d9d_optim_arrays *a,
                                 d9d_rng r, int ndim, const int64_t *box, const int64_t *start,
                                 const int64_t *whole)
{
    return optim_apply_stochastic(s, "lion_stochastic", lion_rule_make(c), scale, t, gt, st, a, r,
                                  ndim, box, start, whole);
}
