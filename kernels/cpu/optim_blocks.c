/* optim_blocks.c - the rule of an optimizer over states in 8 bits, block by block.  See
 * common/state_blocks.h. */
#include "common/state_blocks.h"
#include "cpu/optim_apply.h"

enum { STATES = 2, STEP = 8 * D9D_STATE_BLOCK }; /* elements that are updated at once */

/* One state of an array: which codes it has, and where. */
typedef struct state_blocks {
    bool is_signed;
    void *codes;
    uint16_t *scales;
} state_blocks;

D9DI_CLONES static void decode_m(float *restrict y, const int8_t *restrict codes, float scale,
                                 int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = d9di_state_m(codes[i], scale);
}

D9DI_CLONES static void decode_v(float *restrict y, const uint8_t *restrict codes, float scale,
                                 int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = d9di_state_v(codes[i], scale);
}

D9DI_CLONES static void encode_m(int8_t *restrict codes, const float *restrict x, float inverse,
                                 const uint32_t *restrict bits, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        codes[i] = (int8_t)d9di_state_m_code(x[i], inverse, bits[i] & 0xffffu);
}

D9DI_CLONES static void encode_v(uint8_t *restrict codes, const float *restrict x, float inverse,
                                 const uint32_t *restrict bits, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        codes[i] = (uint8_t)d9di_state_v_code(x[i], inverse, bits[i] >> 16);
}

/* NaN if there is one, as the largest bits. */
D9DI_CLONES static float largest(const float *x, int64_t n)
{
    uint32_t max = 0;
    float f;

    for (int64_t i = 0; i < n; i++) {
        const uint32_t u = d9di_cpu_float_to_bits(x[i]) & 0x7fffffffu;

        max = u > max ? u : max;
    }
    memcpy(&f, &max, sizeof(f));
    return f;
}

/* The n elements from i on, of which a block is the one number `block`. */
static void blocks_read(const state_blocks *s, int64_t i, int64_t block, int64_t n, float *y)
{
    for (int64_t at = 0; at < n; at += D9D_STATE_BLOCK, block++) {
        const int64_t len = d9di_i64_min(n - at, D9D_STATE_BLOCK);
        const float scale = d9d_bf16_to_f32(s->scales[block]);

        if (s->is_signed)
            decode_m(y + at, (const int8_t *)s->codes + i + at, scale, len);
        else
            decode_v(y + at, (const uint8_t *)s->codes + i + at, scale, len);
    }
}

static void blocks_write(const state_blocks *s, int64_t i, int64_t block, int64_t n, const float *x,
                         const uint32_t *bits)
{
    for (int64_t at = 0; at < n; at += D9D_STATE_BLOCK, block++) {
        const int64_t len = d9di_i64_min(n - at, D9D_STATE_BLOCK);
        const uint16_t scale = d9di_state_scale_bits(largest(x + at, len));
        const float inverse = d9di_state_inverse(d9d_bf16_to_f32(scale));

        s->scales[block] = scale;
        if (s->is_signed)
            encode_m((int8_t *)s->codes + i + at, x + at, inverse, bits + at, len);
        else
            encode_v((uint8_t *)s->codes + i + at, x + at, inverse, bits + at, len);
    }
}

d9d_status d9di_cpu_optim_apply_blocks(const d9di_cpu_optim_rule *rule, const float *scale,
                                       d9d_dtype t, d9d_dtype gt, const d9d_optim_arrays *a,
                                       d9d_rng r, const d9di_cpu_box *box)
{
    const d9di_subarray rows = d9di_subarray_make_rows(box->ndim, box->box, box->start, box->whole);
    const int64_t steps = d9di_i64_ceil_div(rows.run, STEP),
                  row_blocks = d9di_i64_ceil_div(rows.run, D9D_STATE_BLOCK);
    const state_blocks states[STATES] = {{true, a->m, a->m_scale}, {false, a->v, a->v_scale}};

    assert(rule->states <= STATES);
    D9D_TRY(d9di_args_check_state_box(rule->name, a, rule->states, box->ndim, box->box, box->start,
                                      box->whole));
    if (isnan(*scale))
        return D9D_OK;
#pragma omp parallel for if (rows.run * rows.n_runs > D9DI_MIN_PARALLEL)
    for (int64_t j = 0; j < rows.n_runs * steps; j++) {
        const int64_t row = j / steps, at = j % steps * STEP,
                      len = d9di_i64_min(rows.run - at, STEP);
        const int64_t i = row * rows.run + at, block = row * row_blocks + at / D9D_STATE_BLOCK;
        const uint64_t index = (uint64_t)(d9di_subarray_index(&rows, row) + at);
        float buf[2 + STATES][STEP], *sf[STATES] = {buf[2], buf[3]};
        uint32_t bits[STEP];
        float *pf = d9di_cpu_modify_weights(t, a->p, a->residual, i, len, buf[0]);

        for (int k = 0; k < rule->states; k++)
            blocks_read(&states[k], i, block, len, sf[k]);
        rule->update(rule->consts, pf, d9di_cpu_read(gt, a->g, i, len, buf[1]), sf, len);
        d9di_cpu_write_weights_stochastic(t, a->p, a->residual, i, len, pf, r, index);
        d9di_cpu_random_bits(bits, (d9d_rng){r.seed, r.stream + D9DI_STATE_STREAM}, index, len);
        for (int k = 0; k < rule->states; k++)
            blocks_write(&states[k], i, block, len, sf[k], bits);
    }
    return D9D_OK;
}
