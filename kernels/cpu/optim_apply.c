/* optim_apply.c - the rule of an optimizer over arrays, block by block in float32; the result is
 * rounded to nearest or stochastically. */
#include "cpu/optim_apply.h"

#include <assert.h>

enum { STOCHASTIC_STATES = 2 }; /* that have a random stream */

static d9d_status types_check(const char *name, d9d_dtype t, d9d_dtype gt, d9d_dtype st)
{
    D9D_TRY(d9di_args_check_float(name, t));
    D9D_TRY(d9di_args_check_float(name, gt));
    return d9di_args_check_float(name, st);
}

static void array_apply(const d9di_cpu_optim_rule *rule, d9d_dtype t, d9d_dtype gt, d9d_dtype st,
                        const d9d_optim_arrays *a)
{
    void *const states[D9DI_CPU_OPTIM_STATES] = {a->m, a->v, a->vmax};

    assert(rule->states <= D9DI_CPU_OPTIM_STATES);
#pragma omp parallel for if (a->n > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < a->n; i += D9DI_BLOCK) {
        float buf[2 + D9DI_CPU_OPTIM_STATES][D9DI_BLOCK], *sf[D9DI_CPU_OPTIM_STATES];
        int64_t len = d9di_i64_min(a->n - i, D9DI_BLOCK);
        float *pf = d9di_cpu_modify_weights(t, a->p, a->residual, i, len, buf[0]);

        for (int k = 0; k < rule->states; k++)
            sf[k] = d9di_cpu_modify(st, states[k], i, len, buf[2 + k]);
        rule->update(rule->consts, pf, d9di_cpu_read(gt, a->g, i, len, buf[1]), sf, len);
        d9di_cpu_write_weights(t, a->p, a->residual, i, len, pf);
        for (int k = 0; k < rule->states; k++)
            d9di_cpu_write(st, states[k], i, len, sf[k]);
    }
}

d9d_status d9di_cpu_optim_apply(const d9di_cpu_optim_rule *rule, const float *scale, d9d_dtype t,
                                d9d_dtype gt, d9d_dtype st, const d9d_optim_arrays *list,
                                int64_t count)
{
    D9D_TRY(types_check(rule->name, t, gt, st));
    for (int64_t i = 0; i < count && !isnan(*scale); i++)
        array_apply(rule, t, gt, st, &list[i]);
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

void d9di_cpu_write_weights_stochastic(d9d_dtype t, void *p, int16_t *residual, int64_t i,
                                       int64_t n, const float *x, d9d_rng r, uint64_t index)
{
    if (residual != NULL)
        d9di_cpu_write_weights(t, p, residual, i, n, x);
    else
        store_stochastic(t, p, i, n, x, r, 0, index);
}

d9d_status d9di_cpu_optim_apply_stochastic(const d9di_cpu_optim_rule *rule, const float *scale,
                                           d9d_dtype t, d9d_dtype gt, d9d_dtype st,
                                           const d9d_optim_arrays *a, d9d_rng r,
                                           const d9di_cpu_box *box)
{
    /* Of the states; the parameter has r itself. */
    static const uint64_t streams[STOCHASTIC_STATES] = {D9DI_STATE_STREAM, 67};
    const d9di_subarray b = d9di_subarray_make(box->ndim, box->box, box->start, box->whole);
    const int64_t per_run = d9di_i64_ceil_div(b.run, D9DI_BLOCK);
    void *const states[STOCHASTIC_STATES] = {a->m, a->v};

    assert(rule->states <= STOCHASTIC_STATES);
    D9D_TRY(types_check(rule->name, t, gt, st == D9D_I8 ? D9D_F32 : st));
    if (st == D9D_I8)
        return d9di_cpu_optim_apply_blocks(rule, scale, t, gt, a, r, box);
    if (isnan(*scale))
        return D9D_OK;
#pragma omp parallel for if (b.run * b.n_runs > D9DI_MIN_PARALLEL)
    for (int64_t j = 0; j < b.n_runs * per_run; j++) {
        int64_t at = j % per_run * D9DI_BLOCK, len = d9di_i64_min(b.run - at, D9DI_BLOCK);
        int64_t i = j / per_run * b.run + at;
        uint64_t index = (uint64_t)(d9di_subarray_index(&b, j / per_run) + at);
        float buf[2 + STOCHASTIC_STATES][D9DI_BLOCK], *sf[STOCHASTIC_STATES];
        float *pf = d9di_cpu_modify_weights(t, a->p, a->residual, i, len, buf[0]);

        for (int k = 0; k < rule->states; k++)
            sf[k] = d9di_cpu_modify(st, states[k], i, len, buf[2 + k]);
        rule->update(rule->consts, pf, d9di_cpu_read(gt, a->g, i, len, buf[1]), sf, len);
        d9di_cpu_write_weights_stochastic(t, a->p, a->residual, i, len, pf, r, index);
        for (int k = 0; k < rule->states; k++)
            store_stochastic(st, states[k], i, len, sf[k], r, streams[k], index);
    }
    return D9D_OK;
}
