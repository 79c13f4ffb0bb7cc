/* adam.c - Adam, AdamW and AdamW with stochastic rounding.
 *
 *     g = scale grad, negated to maximize
 *     decoupled (AdamW): p -= lr wd p; else g += wd p
 *     m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
 *     p -= lr / bias_correction1 * m / (sqrt(v) / sqrt(bias_correction2) + eps)
 *
 * With amsgrad, the largest v so far takes the place of v.
 */
#include "cpu/common.h"
#include "cpu/math.h"

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

static void adam(adam_consts k, bool amsgrad, d9d_dtype t, d9d_dtype gt, d9d_dtype st,
                 const d9d_adam_arrays *a)
{
#pragma omp parallel for if (a->n > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < a->n; i += D9DI_BLOCK) {
        float buf[5][D9DI_BLOCK];
        int64_t len = d9di_i64_min(a->n - i, D9DI_BLOCK);
        float *pf = d9di_cpu_modify_weights(t, a->p, a->residual, i, len, buf[0]);
        float *mf = d9di_cpu_modify(st, a->m, i, len, buf[1]);
        float *vf = d9di_cpu_modify(st, a->v, i, len, buf[2]), *xf;
        const float *gf = d9di_cpu_read(gt, a->g, i, len, buf[3]);

        if (amsgrad) {
            xf = d9di_cpu_modify(st, a->vmax, i, len, buf[4]);
            adam_update_amsgrad(k, pf, gf, mf, vf, xf, len);
            d9di_cpu_write(st, a->vmax, i, len, xf);
        } else {
            adam_update(k, pf, gf, mf, vf, len);
        }
        d9di_cpu_write_weights(t, a->p, a->residual, i, len, pf);
        d9di_cpu_write(st, a->m, i, len, mf);
        d9di_cpu_write(st, a->v, i, len, vf);
    }
}

d9d_status d9d_ref_adam(d9d_stream s, const d9d_adam_step *c, const float *scale, d9d_dtype t,
                        d9d_dtype gt, d9d_dtype st, const d9d_adam_arrays *list, int64_t count)
{
    const adam_consts k = adam_consts_make(c, scale);

    (void)s;
    D9D_TRY(d9di_args_check_float("adam", t));
    D9D_TRY(d9di_args_check_float("adam", gt));
    D9D_TRY(d9di_args_check_float("adam", st));
    for (int64_t i = 0; i < count && !isnan(*scale); i++)
        adam(k, c->amsgrad, t, gt, st, &list[i]);
    return D9D_OK;
}

/* bits = (float32 bits + random & 0xffff) >> 16: rounds up with the probability of the fraction
 * that is dropped. NaN and infinity are kept. */
D9DI_CLONES static void round_stochastic(uint16_t *restrict y, const float *restrict x,
                                         const uint32_t *restrict bits, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = d9di_cpu_float_to_bits(x[i]);
        uint32_t up = u + (bits[i] & 0xffffu), nan = u | 0x00400000u;

        y[i] = (uint16_t)(((u & 0x7fffffffu) > 0x7f800000u ? nan : up) >> 16);
    }
}

static void store_stochastic(d9d_dtype t, void *y, int64_t i, int64_t n, const float *x, d9d_rng r,
                             uint64_t offset, uint64_t index)
{
    uint32_t bits[D9DI_BLOCK];

    if (t == D9D_F32)
        return;
    r.stream += offset;
    d9di_cpu_random_bits(bits, r, index, n);
    round_stochastic((uint16_t *)y + i, x, bits, n);
}

d9d_status d9d_ref_adam_stochastic(d9d_stream s, const d9d_adam_step *c, const float *scale,
                                   d9d_dtype t, d9d_dtype gt, d9d_dtype st,
                                   const d9d_adam_arrays *a, d9d_rng r, int ndim,
                                   const int64_t *box, const int64_t *start, const int64_t *whole)
{
    const adam_consts k = adam_consts_make(c, scale);
    d9di_subarray b = d9di_subarray_make(ndim, box, start, whole);
    int64_t per_run = d9di_i64_ceil_div(b.run, D9DI_BLOCK);

    (void)s;
    D9D_TRY(d9di_args_check_float("adam_stochastic", t));
    D9D_TRY(d9di_args_check_float("adam_stochastic", gt));
    D9D_TRY(d9di_args_check_float("adam_stochastic", st));
    if (isnan(*scale))
        return D9D_OK;
#pragma omp parallel for if (b.run * b.n_runs > D9DI_MIN_PARALLEL)
    for (int64_t j = 0; j < b.n_runs * per_run; j++) {
        int64_t at = j % per_run * D9DI_BLOCK, len = d9di_i64_min(b.run - at, D9DI_BLOCK);
        int64_t i = j / per_run * b.run + at;
        uint64_t index = (uint64_t)(d9di_subarray_index(&b, j / per_run) + at);
        float buf[4][D9DI_BLOCK];
        float *pf = d9di_cpu_modify_weights(t, a->p, a->residual, i, len, buf[0]);
        float *mf = d9di_cpu_modify(st, a->m, i, len, buf[1]);
        float *vf = d9di_cpu_modify(st, a->v, i, len, buf[2]);

        adam_update(k, pf, d9di_cpu_read(gt, a->g, i, len, buf[3]), mf, vf, len);
        if (a->residual != NULL)
            d9di_cpu_write_weights(t, a->p, a->residual, i, len, pf);
        else
            store_stochastic(t, a->p, i, len, pf, r, 0, index);
        store_stochastic(st, a->m, i, len, mf, r, 42, index);
        store_stochastic(st, a->v, i, len, vf, r, 67, index);
    }
    return D9D_OK;
}
