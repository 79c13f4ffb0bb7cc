/* pointwise.h - the formulas of d9d_pointwise and their derivatives, once for C and for CUDA.
 *
 * A backend that includes it has defined D9DI_POINTWISE_EXP, _LOG, _LOG1P, _TANH, _SIGMOID and
 * _NORMAL_CDF, functions of a float, and D9DI_POINTWISE_INLINE, the head of an inline function.
 */
#ifndef D9DI_COMMON_POINTWISE_H
#define D9DI_COMMON_POINTWISE_H

#include <math.h>

#include "common/pointwise_table.h"

/* 2 z of GELU's approximation, whose tanh is a sigmoid: (1 + tanh z) / 2 = s(2 z). */
D9DI_POINTWISE_INLINE float gelu_tanh_sigmoid(float x)
{
    return D9DI_POINTWISE_SIGMOID(2.0f * 0.797884561f * (x + 0.044715f * x * x * x));
}
D9DI_POINTWISE_INLINE float gelu_tanh_prime(float x)
{
    const float s = gelu_tanh_sigmoid(x);

    return s * (1.0f + x * (1.0f - s) * (2.0f * 0.797884561f * (1.0f + 3.0f * 0.044715f * x * x)));
}
D9DI_POINTWISE_INLINE float gelu_prime(float x)
{
    return D9DI_POINTWISE_NORMAL_CDF(x) + x * 0.398942280f * D9DI_POINTWISE_EXP(-0.5f * x * x);
}
D9DI_POINTWISE_INLINE float silu_prime(float x)
{
    const float s = D9DI_POINTWISE_SIGMOID(x);

    return s * (1.0f + x * (1.0f - s));
}
/* log(1 + exp(-|x|)) */
D9DI_POINTWISE_INLINE float log1p_exp_neg(float x)
{
    return D9DI_POINTWISE_LOG1P(D9DI_POINTWISE_EXP(x > 0.0f ? -x : x));
}
D9DI_POINTWISE_INLINE float sign_of(float x)
{
    return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x;
}
/* NaN stays NaN. */
D9DI_POINTWISE_INLINE float clamp_to(float x, float low, float high)
{
    return x < low ? low : x > high ? high : x;
}
/* The share of x in the gradient of the larger of x and y. */
D9DI_POINTWISE_INLINE float larger_share(float x, float y)
{
    return x > y ? 1.0f : x == y ? 0.5f : 0.0f;
}
D9DI_POINTWISE_INLINE float softcap_prime(float x, float cap)
{
    const float t = D9DI_POINTWISE_TANH(x / cap);

    return 1.0f - t * t;
}
D9DI_POINTWISE_INLINE float huber_of(float d, float delta)
{
    const float size = fabsf(d);

    return size <= delta ? 0.5f * d * d : delta * (size - 0.5f * delta);
}

/* d9di_pointwise_NAME() and, of the inputs, _d0() to _d2(). */
#define D9DI_POINTWISE_FUNCTION(function, formula)                                                 \
    D9DI_POINTWISE_INLINE float function(float a, float b, float c, float k0, float k1)            \
    {                                                                                              \
        (void)a, (void)b, (void)c, (void)k0, (void)k1;                                             \
        return formula;                                                                            \
    }
#define D9DI_POINTWISE_DEFINE(NAME, name, n, value, r0, d0, r1, d1, r2, d2)                        \
    D9DI_POINTWISE_FUNCTION(d9di_pointwise_##name, value)                                          \
    D9DI_POINTWISE_FUNCTION(d9di_pointwise_##name##_d0, d0)                                        \
    D9DI_POINTWISE_FUNCTION(d9di_pointwise_##name##_d1, d1)                                        \
    D9DI_POINTWISE_FUNCTION(d9di_pointwise_##name##_d2, d2)
D9DI_POINTWISE_TABLE(D9DI_POINTWISE_DEFINE)
#undef D9DI_POINTWISE_DEFINE

#endif /* D9DI_COMMON_POINTWISE_H */
