/* muon.c - the elementwise parts of Muon (Jordan et al. 2024, Muon: An optimizer for hidden layers
 * in neural networks), before and after Newton-Schulz.
 *
 *     g = scale grad
 *     m = mu m + (1 - mu) g
 *     u = (1 - mu) g + mu m, or m without nesterov
 *     x = u / max(|u|, eps)
 *     p = (1 - lr wd) p - adjusted_lr g,   g now the orthogonalized update
 */
#include "cpu/optim_apply.h"

/* The constants of a step, each rounded to float32 once. */
typedef struct muon_consts {
    float scale, decay_factor, lr, mu, one_minus_mu;
    bool nesterov;
} muon_consts;

static muon_consts muon_consts_make(const d9d_muon_step *c, const float *scale)
{
    return (muon_consts){
        .scale = *scale,
        .decay_factor = (float)(1.0 - c->lr * c->weight_decay),
        .lr = (float)c->adjusted_lr,
        .mu = (float)c->momentum,
        .one_minus_mu = (float)(1.0 - c->momentum),
        .nesterov = c->nesterov,
    };
}

D9DI_CLONES static void momentum_update(muon_consts k, float *restrict u,
                                        const float *restrict grad, float *restrict m, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * k.scale;

        m[i] = k.mu * m[i] + k.one_minus_mu * g;
        u[i] = k.nesterov ? k.one_minus_mu * g + k.mu * m[i] : m[i];
    }
}

static void momentum_rule(const void *consts, float *p, const float *g, float *const *state,
                          int64_t n)
{
    momentum_update(*(const muon_consts *)consts, p, g, state[0], n);
}

D9DI_CLONES static void weight_update(muon_consts k, float *restrict p, const float *restrict g,
                                      int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        p[i] = p[i] * k.decay_factor - k.lr * g[i];
}

static void muon_rule(const void *consts, float *p, const float *g, float *const *state, int64_t n)
{
    (void)state;
    weight_update(*(const muon_consts *)consts, p, g, n);
}

d9d_status d9d_ref_muon_momentum(d9d_stream s, const d9d_muon_step *c, const float *scale,
                                 d9d_dtype ut, d9d_dtype gt, const d9d_optim_arrays *list,
                                 int64_t count)
{
    const muon_consts k = muon_consts_make(c, scale);
    const d9di_cpu_optim_rule rule = {"muon_momentum", momentum_rule, &k, 1};

    (void)s;
    return d9di_cpu_optim_apply(&rule, scale, ut, gt, D9D_F32, list, count);
}

d9d_status d9d_ref_muon(d9d_stream s, const d9d_muon_step *c, const float *scale, d9d_dtype t,
                        d9d_dtype gt, const d9d_optim_arrays *list, int64_t count)
{
    const muon_consts k = muon_consts_make(c, scale);
    const d9di_cpu_optim_rule rule = {"muon", muon_rule, &k, 0};

    (void)s;
    return d9di_cpu_optim_apply(&rule, scale, t, gt, D9D_F32, list, count);
}

d9d_status d9d_ref_muon_normalize(d9d_stream s, d9d_dtype t, void *x, const double *squares,
                                  int64_t count, int64_t n, float eps)
{
    const int64_t per_array = d9di_i64_ceil_div(n, D9DI_BLOCK);

    (void)s;
    D9D_TRY(d9di_args_check_float("muon_normalize", t));
#pragma omp parallel for if (count * n > D9DI_MIN_PARALLEL)
    for (int64_t j = 0; j < count * per_array; j++) {
        const int64_t array = j / per_array, at = j % per_array * D9DI_BLOCK;
        const int64_t first = array * n + at, len = d9di_i64_min(n - at, D9DI_BLOCK);
        const float factor = 1.0f / fmaxf((float)sqrt(squares[array]), eps);
        float buf[D9DI_BLOCK], *y = d9di_cpu_modify(t, x, first, len, buf);

        for (int64_t i = 0; i < len; i++)
            y[i] *= factor;
        d9di_cpu_write(t, x, first, len, y);
    }
    return D9D_OK;
}
