/* schedule_free.cu - schedule-free AdamW (Defazio et al. 2024, The road less scheduled).
 *
 *     g = scale grad
 *     v = beta2 v + (1 - beta2) g^2
 *     u = g / (sqrt(v / bias_correction2) + eps) + wd y
 *     y = y + weight (z - y) + lr (beta1 (1 - weight) - 1) u
 *     z = z - lr u
 */
#include "cuda/optim/optim_apply.cuh"

/* The constants of a step, each rounded to float32 once. */
struct schedule_free_rule {
    enum { STATES = 2 };
    bool maximize, first;
    float b2, c2, correction, eps, decay, weight, lr, lr_y;

    __device__ __forceinline__ void update(float scale, float &y, float g, float (&state)[2]) const
    {
        const float z = first ? y : state[0];
        float &v = state[1], u;

        g = g * scale;
        v = b2 * v + c2 * (g * g);
        u = g / (sqrtf(v / correction) + eps) + decay * y;
        y = y + weight * (z - y) + lr_y * u;
        state[0] = z - lr * u;
    }
};

d9d_status d9d_k_schedule_free(d9d_stream s, const d9d_schedule_free_step *c, const float *scale,
                               d9d_dtype t, d9d_dtype gt, const d9d_optim_arrays *list,
                               int64_t count)
{
    schedule_free_rule k = {};

    k.first = c->first;
    k.b2 = (float)c->beta2;
    k.c2 = (float)(1.0 - c->beta2);
    k.correction = (float)c->bias_correction2;
    k.eps = (float)c->eps;
    k.decay = (float)c->weight_decay;
    k.weight = (float)c->weight;
    k.lr = (float)c->lr;
    k.lr_y = (float)(c->lr * (c->beta1 * (1.0 - c->weight) - 1.0));
    return optim_apply(s, "schedule_free", k, scale, t, gt, D9D_F32, list, count);
}
