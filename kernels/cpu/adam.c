/* adam.c - Adam and AdamW, also with stochastic rounding.
 *
 *     g = scale grad, negated to maximize
 *     decoupled (AdamW): p -= lr wd p; else g += wd p
 *     m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
 *     p -= lr / bias_correction1 * m / (sqrt(v) / sqrt(bias_correction2) + eps)
 *
 * With amsgrad, the largest v so far takes the place of v.
 */
#include "cpu/optim_apply.h"

/* The constants of a step, each rounded to float32 once. */
typedef struct adam_consts {
    float scale, decay_factor, weight_decay, b1, b2, c1, c2, size, root, eps;
} adam_consts;

static adam_consts adam_consts_make(const d9d_adam_step *c, const float *scale)
{
    adam_consts k = {.scale = c->maximize ? -*scale : *scale, .decay_factor = 1.0f};

    if (c->decoupled)
        k.decay_factor = (float)(1.0 - c->lr * c->weight_decay);
    else
        k.weight_decay = (float)c->weight_decay;
    k.b1 = (float)c->beta1;
    k.b2 = (float)c->beta2;
    k.c1 = (float)(1.0 - c->beta1);
    k.c2 = (float)(1.0 - c->beta2);
    k.size = (float)(c->lr / c->bias_correction1);
    k.root = (float)(1.0 / sqrt(c->bias_correction2));
    k.eps = (float)c->eps;
    return k;
}

D9DI_CLONES static void adam_update(adam_consts k, float *restrict p, const float *restrict grad,
                                    float *restrict m, float *restrict v, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * k.scale + (k.weight_decay == 0.0f ? 0.0f : k.weight_decay * p[i]);

        m[i] = k.b1 * m[i] + k.c1 * g;
        v[i] = k.b2 * v[i] + k.c2 * (g * g);
        p[i] = p[i] * k.decay_factor - k.size * m[i] / (sqrtf(v[i]) * k.root + k.eps);
    }
}

D9DI_CLONES static void adam_update_amsgrad(adam_consts k, float *restrict p,
                                            const float *restrict grad, float *restrict m,
                                            float *restrict v, float *restrict vmax, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * k.scale + (k.weight_decay == 0.0f ? 0.0f : k.weight_decay * p[i]);

        m[i] = k.b1 * m[i] + k.c1 * g;
        v[i] = k.b2 * v[i] + k.c2 * (g * g);
        vmax[i] = vmax[i] > v[i] ? vmax[i] : v[i];
        p[i] = p[i] * k.decay_factor - k.size * m[i] / (sqrtf(vmax[i]) * k.root + k.eps);
    }
}

static void adam_rule(const void *consts, float *p, const float *g, float *const *state, int64_t n)
{
    adam_update(*(const adam_consts *)consts, p, g, state[0], state[1], n);
}

static void adam_rule_amsgrad(const void *consts, float *p, const float *g, float *const *state,
                              int64_t n)
{
    adam_update_amsgrad(*(const adam_consts *)consts, p, g, state[0], state[1], state[2], n);
}

d9d_status d9d_ref_adam(d9d_stream s, const d9d_adam_step *c, const float *scale, d9d_dtype t,
                        d9d_dtype gt, d9d_dtype st, const d9d_optim_arrays *list, int64_t count)
{
    const adam_consts k = adam_consts_make(c, scale);
    const d9di_cpu_optim_rule rule = {"adam", c->amsgrad ? adam_rule_amsgrad : adam_rule, &k,
                                      c->amsgrad ? 3 : 2};

    (void)s;
    return d9di_cpu_optim_apply(&rule, scale, t, gt, st, list, count);
}

d9d_status d9d_ref_adam_stochastic(d9d_stream s, const d9d_adam_step *c, const float *scale,
                                   d9d_dtype t, d9d_dtype gt, d9d_dtype st,
                                   const d9d_optim_arrays *a, d9d_rng r, int ndim,
                                   const int64_t *box, const int64_t *start, const int64_t *whole)
{
    const adam_consts k = adam_consts_make(c, scale);
    const d9di_cpu_optim_rule rule = {"adam_stochastic", adam_rule, &k, 2};
    const d9di_cpu_box b = {ndim, box, start, whole};

    (void)s;
    return d9di_cpu_optim_apply_stochastic(&rule, scale, t, gt, st, a, r, &b);
}
