/* glu.c - gated linear units: y = a(gate) up, and activations y = a(x). See d9d_glu.
 * Backward: dup = dy a, dgate = dy up a'. With s = sigmoid(k) every activation but GELU and the
 * clamp is a = x s, a' = s + x s (1 - s) k'. SiLU: k = x. */
#include "cpu/common.h"
#include "cpu/math.h"

#define SQRT_2_PI      0.797884561f /* sqrt(2 / pi) */
#define INV_SQRT_2     0.707106781f
#define INV_SQRT_2PI   0.398942280f
#define GELU_TANH_CUBE 0.044715f

/* 2 z of GELU's approximation, whose tanh is a sigmoid: (1 + tanh z) / 2 = s(2 z). */
static inline float gelu_tanh_arg(float x)
{
    return 2.0f * SQRT_2_PI * (x + GELU_TANH_CUBE * x * x * x);
}
static inline float gelu_tanh_arg_bwd(float x)
{
    return 2.0f * SQRT_2_PI * (1.0f + 3.0f * GELU_TANH_CUBE * x * x);
}
/* P(X <= x), accurate in the tail too. */
static inline float normal_cdf(float x)
{
    return 0.5f * erfcf(-x * INV_SQRT_2);
}
/* NaN stays NaN. */
static inline float clamp_above(float x, float limit)
{
    return x > limit ? limit : x;
}
static inline float clamp_both(float x, float limit)
{
    return x > limit ? limit : x < -limit ? -limit : x;
}

D9DI_CLONES static void block_forward(const d9d_glu *f, float *y, const float *gate,
                                      const float *up, int64_t n)
{
    const float alpha = f->alpha, limit = f->limit;

    switch (f->act) {
    case D9D_ACT_GELU:
        for (int64_t i = 0; i < n; i++)
            y[i] = gate[i] * normal_cdf(gate[i]) * up[i];
        break;
    case D9D_ACT_GELU_TANH:
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] = gate[i] / (1.0f + d9di_cpu_expf(-gelu_tanh_arg(gate[i]))) * up[i];
        break;
    case D9D_ACT_SWIGLU_OAI:
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float g = clamp_above(gate[i], limit);

            y[i] = g / (1.0f + d9di_cpu_expf(-alpha * g)) * (clamp_both(up[i], limit) + 1.0f);
        }
        break;
    case D9D_ACT_HARDTANH:
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] = clamp_both(gate[i], limit) * up[i];
        break;
    default:
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] = gate[i] / (1.0f + d9di_cpu_expf(-gate[i])) * up[i];
    }
}

D9DI_CLONES static void block_bwd(const d9d_glu *f, float *dgate, float *dup, const float *dy,
                                  const float *gate, const float *up, int64_t n)
{
    const float alpha = f->alpha, limit = f->limit;

    switch (f->act) {
    case D9D_ACT_GELU:
        for (int64_t i = 0; i < n; i++) {
            float g = gate[i], d = dy[i], u = up[i], p = normal_cdf(g);

            dup[i] = d * (g * p);
            dgate[i] = d * u * (p + g * INV_SQRT_2PI * d9di_cpu_expf(-0.5f * g * g));
        }
        break;
    case D9D_ACT_GELU_TANH:
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float g = gate[i], d = dy[i], u = up[i], s = d9di_cpu_sigmoid(gelu_tanh_arg(g));

            dup[i] = d * (g * s);
            dgate[i] = d * u * (s * (1.0f + g * (1.0f - s) * gelu_tanh_arg_bwd(g)));
        }
        break;
    case D9D_ACT_SWIGLU_OAI:
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float raw = gate[i], g = clamp_above(raw, limit), u = up[i], d = dy[i];
            float s = d9di_cpu_sigmoid(alpha * g);
            float da = d * (clamp_both(u, limit) + 1.0f) * (s * (1.0f + alpha * g * (1.0f - s)));

            dup[i] = u > limit || u < -limit ? 0.0f : d * (g * s);
            dgate[i] = raw > limit ? 0.0f : da;
        }
        break;
    case D9D_ACT_HARDTANH:
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float g = gate[i], d = dy[i], u = up[i];

            dup[i] = d * clamp_both(g, limit);
            dgate[i] = g > limit || g < -limit ? 0.0f : d * u;
        }
        break;
    default:
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float g = gate[i], d = dy[i], u = up[i], s = d9di_cpu_sigmoid(g);

            dup[i] = d * (g * s);
            dgate[i] = d * u * (s * (1.0f + g * (1.0f - s)));
        }
    }
}

/* Elements of `up`, ones without it. */
static const float *read_up(d9d_dtype t, const void *up, int64_t i, int64_t n, float *buf)
{
    if (up != NULL)
        return d9di_cpu_read(t, up, i, n, buf);
    for (int64_t j = 0; j < n; j++)
        buf[j] = 1.0f;
    return buf;
}

d9d_status d9d_ref_glu(d9d_stream s, const d9d_glu *f, d9d_dtype t, void *y, const void *gate,
                       const void *up, int64_t n)
{
    (void)s;
    D9D_TRY(d9di_args_check_glu("glu", t, f, up != NULL));
#pragma omp parallel for if (n > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < n; i += D9DI_BLOCK) {
        int64_t c = d9di_i64_min(n - i, D9DI_BLOCK);
        float bg[D9DI_BLOCK], bu[D9DI_BLOCK], *out = d9di_cpu_write_ptr(t, y, i, bg);

        block_forward(f, out, d9di_cpu_read(t, gate, i, c, bg), read_up(t, up, i, c, bu), c);
        d9di_cpu_write(t, y, i, c, out);
    }
    return D9D_OK;
}

d9d_status d9d_ref_glu_bwd(d9d_stream s, const d9d_glu *f, d9d_dtype t, void *dgate, void *dup,
                           const void *dy, const void *gate, const void *up, int64_t n)
{
    (void)s;
    D9D_TRY(d9di_args_check_glu("glu_bwd", t, f, up != NULL));
#pragma omp parallel for if (n > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < n; i += D9DI_BLOCK) {
        int64_t c = d9di_i64_min(n - i, D9DI_BLOCK);
        float bd[D9DI_BLOCK], bg[D9DI_BLOCK], bu[D9DI_BLOCK];
        float *og = d9di_cpu_write_ptr(t, dgate, i, bg);
        float *ou = dup != NULL ? d9di_cpu_write_ptr(t, dup, i, bu) : bu;

        block_bwd(f, og, ou, d9di_cpu_read(t, dy, i, c, bd), d9di_cpu_read(t, gate, i, c, bg),
                  read_up(t, up, i, c, bu), c);
        d9di_cpu_write(t, dgate, i, c, og);
        if (dup != NULL)
            d9di_cpu_write(t, dup, i, c, ou);
    }
    return D9D_OK;
}
