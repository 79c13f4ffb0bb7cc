/* glu.cuh - gated linear units of one element, as d9d_glu says. T is the type that results are
 * rounded to.
 */
#ifndef D9DI_CUDA_ELEMENTWISE_GLU_CUH
#define D9DI_CUDA_ELEMENTWISE_GLU_CUH

#include "cuda/elementwise/swiglu.cuh"

/* 2 z of GELU's approximation, whose tanh is a sigmoid: (1 + tanh z) / 2 = s(2 z). */
static __device__ __forceinline__ float gelu_tanh_arg(float x)
{
    return 2.0f * 0.797884561f * (x + 0.044715f * x * x * x);
}

/* a(g), for the clamped gate of D9D_ACT_SWIGLU_OAI and D9D_ACT_HARDTANH. */
template <int A, class T> static __device__ __forceinline__ float act_of(float g, float alpha)
{
    if (A == D9D_ACT_HARDTANH)
        return g;
    if (A == D9D_ACT_GELU)
        return g * normcdff(g);
    if (A == D9D_ACT_GELU_TANH)
        return silu_bwd_of<T>(g, gelu_tanh_arg(g));
    return silu_bwd_of<T>(g, A == D9D_ACT_SWIGLU_OAI ? alpha * g : g);
}

/* NaN stays NaN. */
static __device__ __forceinline__ float clamp_both(float x, float limit)
{
    return x > limit ? limit : x < -limit ? -limit : x;
}

/* The factor of a(g): up, clamped and plus one for D9D_ACT_SWIGLU_OAI. */
template <int A> static __device__ __forceinline__ float up_of(float u, float limit)
{
    return A == D9D_ACT_SWIGLU_OAI ? clamp_both(u, limit) + 1.0f : u;
}
template <int A> static __device__ __forceinline__ float gate_of(float g, float limit)
{
    if (A == D9D_ACT_HARDTANH)
        return clamp_both(g, limit);
    return A == D9D_ACT_SWIGLU_OAI && g > limit ? limit : g;
}

/* The unit of a gate and an up, of an activation that is known at run time. */
template <int A, class T>
static __device__ __forceinline__ float glu_as(const d9d_glu &f, float g, float u)
{
    return up_of<A>(u, f.limit) * act_of<A, T>(gate_of<A>(g, f.limit), f.alpha);
}
template <class T>
static __device__ __forceinline__ float glu_of(const d9d_glu &f, float g, float u)
{
    switch (f.act) {
    case D9D_ACT_GELU: return glu_as<D9D_ACT_GELU, T>(f, g, u);
    case D9D_ACT_GELU_TANH: return glu_as<D9D_ACT_GELU_TANH, T>(f, g, u);
    case D9D_ACT_HARDTANH: return glu_as<D9D_ACT_HARDTANH, T>(f, g, u);
    case D9D_ACT_SWIGLU_OAI: return glu_as<D9D_ACT_SWIGLU_OAI, T>(f, g, u);
    default: return glu_as<D9D_ACT_SILU, T>(f, g, u);
    }
}

#endif /* D9DI_CUDA_ELEMENTWISE_GLU_CUH */
