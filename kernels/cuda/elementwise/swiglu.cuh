/* swiglu.cuh - SwiGLU of one element: y = silu(g) u with silu(g) = g s, s = 1 / (1 + exp(-g)).
 *
 *     du = dy g s        dg = dy u s (1 + g (1 - s))
 *
 * T is the type that results are rounded to. For float32 the exponential and the quotient are
 * accurate to the last bits, for bfloat16 to 2^-20, in every kernel that uses them.
 */
#ifndef D9DI_CUDA_ELEMENTWISE_SWIGLU_CUH
#define D9DI_CUDA_ELEMENTWISE_SWIGLU_CUH

#include "cuda/common/common.cuh"

/* a / (1 + exp(-g)) */
template <class T> static __device__ __forceinline__ float silu_bwd_of(float a, float g)
{
    return sizeof(T) == 4 ? a / (1.0f + expf(-g)) : __fdividef(a, 1.0f + __expf(-g));
}

template <class T> static __device__ __forceinline__ float swiglu_of(float g, float u)
{
    return u * silu_bwd_of<T>(g, g);
}

template <class T>
static __device__ __forceinline__ void swiglu_bwd_of(float &dg, float &du, float dy, float g,
                                                     float u)
{
    const float s = silu_bwd_of<T>(1.0f, g);

    du = dy * (g * s);
    dg = dy * u * (s * (1.0f + g * (1.0f - s)));
}

#endif /* D9DI_CUDA_ELEMENTWISE_SWIGLU_CUH */
