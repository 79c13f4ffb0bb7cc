/* sgd.c - stochastic gradient descent with momentum.
 *
 *     g = scale grad, negated to maximize; g += wd p
 *     momentum: b = g at first, then momentum b + (1 - dampening) g
 *               g = nesterov ? g + momentum b : b
 *     p -= lr g
 */
#include "cpu/common.h"

typedef struct sgd_consts {
    float scale, weight_decay, lr, old, new,
        nesterov_momentum; /* b = old b + new g; g = g + nesterov_momentum b, or b if that is 0 */
} sgd_consts;

static sgd_consts sgd_consts_make(const d9d_sgd_step *c, const float *scale)
{
    return (sgd_consts){
        .scale = c->maximize ? -*scale : *scale,
        .weight_decay = (float)c->weight_decay,
        .lr = (float)c->lr,
        .old = c->first ? 0.0f : (float)c->momentum,
        .new = c->first ? 1.0f : (float)(1.0 - c->dampening),
        .nesterov_momentum = c->nesterov ? (float)c->momentum : 0.0f,
    };
}

D9DI_CLONES static void sgd_update(sgd_consts k, float *restrict p, const float *restrict grad,
                                   int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        p[i] -=
            k.lr * (grad[i] * k.scale + (k.weight_decay == 0.0f ? 0.0f : k.weight_decay * p[i]));
}

D9DI_CLONES static void sgd_update_momentum(sgd_consts k, float *restrict p,
                                            const float *restrict grad, float *restrict b,
                                            int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * k.scale + (k.weight_decay == 0.0f ? 0.0f : k.weight_decay * p[i]);

        b[i] = k.old == 0.0f ? k.new *g : k.old *b[i] + k.new *g;
        p[i] -= k.lr * (k.nesterov_momentum != 0.0f ? g + k.nesterov_momentum * b[i] : b[i]);
    }
}

d9d_status d9d_ref_sgd(d9d_stream s, const d9d_sgd_step *c, d9d_dtype t, void *p, int16_t *residual,
                       d9d_dtype gt, const void *g, const float *scale, d9d_dtype st,
                       void *momentum, int64_t n)
{
    const sgd_consts k = sgd_consts_make(c, scale);

    (void)s;
    D9D_TRY(d9di_args_check_float("sgd", t));
    D9D_TRY(d9di_args_check_float("sgd", gt));
    D9D_TRY(d9di_args_check_float("sgd", st));
    if (isnan(*scale))
        return D9D_OK;
#pragma omp parallel for if (n > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < n; i += D9DI_BLOCK) {
        float bp[D9DI_BLOCK], bg[D9DI_BLOCK], bb[D9DI_BLOCK];
        int64_t len = d9di_i64_min(n - i, D9DI_BLOCK);
        const float *gf = d9di_cpu_read(gt, g, i, len, bg);
        float *pf = d9di_cpu_modify_weights(t, p, residual, i, len, bp);

        if (c->momentum != 0.0) {
            float *bf = d9di_cpu_modify(st, momentum, i, len, bb);

            sgd_update_momentum(k, pf, gf, bf, len);
            d9di_cpu_write(st, momentum, i, len, bf);
        } else {
            sgd_update(k, pf, gf, len);
        }
        d9di_cpu_write_weights(t, p, residual, i, len, pf);
    }
    return D9D_OK;
}
