/* common.c - see common.h. */
#include "cpu/common.h"

#include "cpu/math.h"

#include <omp.h>

D9DI_CLONES void d9di_cpu_from_bf16(float *restrict y, const uint16_t *restrict x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = d9di_cpu_bits_to_float((uint32_t)x[i] << 16);
}

/* d9d_bf16_from_f32() without a branch. */
D9DI_CLONES void d9di_cpu_to_bf16(uint16_t *restrict y, const float *restrict x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = d9di_cpu_float_to_bits(x[i]);
        uint32_t rounded = u + 0x7fffu + ((u >> 16) & 1u);
        uint32_t nan = u | 0x00400000u;

        y[i] = (uint16_t)(((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded) >> 16);
    }
}

D9DI_CLONES static void master_load(float *restrict y, const uint16_t *restrict p,
                                    const int16_t *restrict residual, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = d9di_cpu_bits_to_float(((uint32_t)p[i] << 16) + (uint32_t)(int32_t)residual[i]);
}

D9DI_CLONES static void master_store(uint16_t *restrict p, int16_t *restrict residual,
                                     const float *restrict x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const uint32_t u = d9di_cpu_float_to_bits(x[i]);
        const bool is_nan = (u & 0x7fffffffu) > 0x7f800000u;
        const uint32_t high = (is_nan ? u | 0x00400000u : u + 0x8000u) & 0xffff0000u;

        p[i] = (uint16_t)(high >> 16);
        residual[i] = (int16_t)(is_nan ? 0u : u - high);
    }
}

float *d9di_cpu_modify_weights(d9d_dtype t, void *p, const int16_t *residual, int64_t i, int64_t n,
                               float *buf)
{
    if (residual == NULL)
        return d9di_cpu_modify(t, p, i, n, buf);
    master_load(buf, (const uint16_t *)p + i, residual + i, n);
    return buf;
}

void d9di_cpu_write_weights(d9d_dtype t, void *p, int16_t *residual, int64_t i, int64_t n,
                            const float *buf)
{
    if (residual == NULL)
        d9di_cpu_write(t, p, i, n, buf);
    else
        master_store((uint16_t *)p + i, residual + i, buf, n);
}

void d9di_cpu_load(d9d_dtype t, float *y, const void *x, int64_t i, int64_t n)
{
    if (t == D9D_F32)
        memcpy(y, (const float *)x + i, (size_t)n * sizeof(float));
    else
        d9di_cpu_from_bf16(y, (const uint16_t *)x + i, n);
}

void d9di_cpu_store(d9d_dtype t, void *y, int64_t i, int64_t n, const float *x)
{
    if (t == D9D_F32)
        memcpy((float *)y + i, x, (size_t)n * sizeof(float));
    else
        d9di_cpu_to_bf16((uint16_t *)y + i, x, n);
}

void d9di_cpu_store_add(d9d_dtype t, void *y, int64_t i, int64_t n, float beta, const float *x)
{
    float buf[D9DI_BLOCK];

    if (beta == 0.0f) {
        d9di_cpu_store(t, y, i, n, x);
        return;
    }
    for (int64_t j = 0; j < n; j += D9DI_BLOCK) {
        int64_t c = d9di_i64_min(n - j, D9DI_BLOCK);

        d9di_cpu_load(t, buf, y, i + j, c);
        if (beta != 1.0f)
            d9di_cpu_row_scale(buf, beta, buf, c);
        d9di_cpu_row_axpy(buf, 1.0f, x + j, c);
        d9di_cpu_store(t, y, i + j, c, buf);
    }
}

float *d9di_cpu_scratch_alloc(const char *op, int64_t n)
{
    float *p = NULL;
    int64_t bytes;

    if (__builtin_mul_overflow(d9di_i64_ceil_div(d9di_i64_max(n, 1), 16), 64, &bytes) ||
        (p = aligned_alloc(64, (size_t)bytes)) == NULL)
        (void)D9D_FAIL(D9D_ENOMEM, "%s: no memory for scratch of %lld floats", op, (long long)n);
    return p;
}

/* Rounded up to cache lines, so that threads share none. */
static int64_t padded_floats(int64_t n)
{
    return d9di_i64_ceil_div(n, 16) * 16;
}

float *d9di_cpu_scratch_alloc_threads(const char *op, int64_t n)
{
    return d9di_cpu_scratch_alloc(op, padded_floats(n) * omp_get_max_threads());
}

float *d9di_cpu_scratch_of_thread(float *scratch, int64_t n)
{
    return scratch + padded_floats(n) * omp_get_thread_num();
}

static float fold_lanes(const d9di_cpu_v16 *v)
{
    float f[16];

    memcpy(f, v, sizeof(f));
    for (int w = 8; w > 0; w /= 2)
        for (int j = 0; j < w; j++)
            f[j] += f[j + w];
    return f[0];
}

D9DI_CLONES float d9di_cpu_row_sum(const float *x, int64_t n)
{
    d9di_cpu_v16 acc = {0}, last = {0};
    int64_t i = 0;

    for (; i + 16 <= n; i += 16)
        acc += *(const d9di_cpu_v16 *)(x + i);
    for (int j = 0; i + j < n; j++)
        last[j] = x[i + j];
    acc += last;
    return fold_lanes(&acc);
}

D9DI_CLONES float d9di_cpu_row_dot(const float *x, const float *y, int64_t n)
{
    d9di_cpu_v16 acc = {0}, last = {0};
    int64_t i = 0;

    for (; i + 16 <= n; i += 16)
        acc += *(const d9di_cpu_v16 *)(x + i) * *(const d9di_cpu_v16 *)(y + i);
    for (int j = 0; i + j < n; j++)
        last[j] = x[i + j] * y[i + j];
    acc += last;
    return fold_lanes(&acc);
}

/* Ignores NaN; -inf for no elements. */
D9DI_CLONES float d9di_cpu_row_max(const float *x, int64_t n)
{
    float lane[16], m = -INFINITY;
    int64_t i = 0;

    for (int j = 0; j < 16; j++)
        lane[j] = -INFINITY;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++)
            lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
    for (; i < n; i++)
        m = x[i] > m ? x[i] : m;
    for (int j = 0; j < 16; j++)
        m = lane[j] > m ? lane[j] : m;
    return m;
}

D9DI_CLONES void d9di_cpu_row_axpy(float *restrict y, float a, const float *restrict x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

D9DI_CLONES void d9di_cpu_row_scale(float *y, float a, const float *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = a * x[i];
}

D9DI_CLONES static void row_exp(float *y, const float *x, float m, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = d9di_cpu_expf(x[i] - m);
}

float d9di_cpu_row_exp(float *y, const float *x, float m, int64_t n)
{
    row_exp(y, x, m, n);
    return d9di_cpu_row_sum(y, n);
}

D9DI_CLONES static void row_tanh(float *y, float cap, const float *x, int64_t n)
{
    const float by = 1.0f / cap;

#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = cap * d9di_cpu_tanhf(by * x[i]);
}

void d9di_cpu_row_softcap(float *y, float cap, const float *x, int64_t n)
{
    if (cap > 0.0f)
        row_tanh(y, cap, x, n);
    else if (y != x)
        memcpy(y, x, (size_t)n * sizeof(*y));
}
