/* schedule_free.c - schedule-free AdamW (Defazio et al. 2024, The road less scheduled).
 *
 *     g = scale grad
 *     v = beta2 v + (1 - beta2) g^2
 *     u = g / (sqrt(v / bias_correction2) + eps) + wd y
 *     y = y + weight (z - y) + lr (beta1 (1 - weight) - 1) u
 *     z = z - lr u
 */
#include "cpu/optim_apply.h"

/* The constants of a step, each rounded to float32 once. */
typedef struct schedule_free_consts {
    float scale, b2, c2, correction, eps, decay, weight, lr, lr_y;
    bool first;
} schedule_free_consts;

D9DI_CLONES static void schedule_free_update(schedule_free_consts k, float *restrict y,
                                             const float *restrict grad, float *restrict z,
                                             float *restrict v, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const float g = grad[i] * k.scale, from = k.first ? y[i] : z[i];
        float u;

        v[i] = k.b2 * v[i] + k.c2 * (g * g);
        u = g / (sqrtf(v[i] / k.correction) + k.eps) + k.decay * y[i];
        y[i] = y[i] + k.weight * (from - y[i]) + k.lr_y * u;
        z[i] = from - k.lr * u;
    }
}

static void schedule_free_rule(const void *consts, float *p, const float *g, float *const *state,
                               int64_t n)
{
    schedule_free_update(*(const schedule_free_consts *)consts, p, g, state[0], state[1], n);
}

d9d_status d9d_ref_schedule_free(d9d_stream s, const d9d_schedule_free_step *c, const float *scale,
                                 d9d_dtype t, d9d_dtype gt, const d9d_optim_arrays *list,
                                 int64_t count)
{
    const schedule_free_consts k = {
        .scale = *scale,
        .b2 = (float)c->beta2,
        .c2 = (float)(1.0 - c->beta2),
        .correction = (float)c->bias_correction2,
        .eps = (float)c->eps,
        .decay = (float)c->weight_decay,
        .weight = (float)c->weight,
        .lr = (float)c->lr,
        .lr_y = (float)(c->lr * (c->beta1 * (1.0 - c->weight) - 1.0)),
        .first = c->first,
    };
    const d9di_cpu_optim_rule rule = {"schedule_free", schedule_free_rule, &k, 2};

    (void)s;
    return d9di_cpu_optim_apply(&rule, scale, t, gt, D9D_F32, list, count);
}
