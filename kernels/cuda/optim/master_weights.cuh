/* master_weights.cuh - weights as an optimizer reads and writes them: as stored, or as float32
 * master weights of bfloat16 weights and residuals. See d9d_optim_arrays in d9d/kernels/optim.h. */
#ifndef D9DI_CUDA_OPTIM_MASTER_WEIGHTS_CUH
#define D9DI_CUDA_OPTIM_MASTER_WEIGHTS_CUH

#include "cuda/common/common.cuh"

/* Eight residuals are 16 bytes, like eight bfloat16, and use the same accesses. */
static __device__ __forceinline__ void load8_bits(uint16_t (&b)[8], const bf16 *p, int64_t n)
{
    if (can_vectorize(p, n)) {
        const uint4 a = *(const uint4 *)p;
        const uint32_t w[4] = {a.x, a.y, a.z, a.w};

#pragma unroll
        for (int j = 0; j < 8; j++)
            b[j] = (uint16_t)(w[j / 2] >> j % 2 * 16);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        b[j] = j < n ? __bfloat16_as_ushort(p[j]) : (uint16_t)0;
}

template <class T> struct plain_weights {
    void *p;
    int16_t *residual; /* NULL */

    __device__ __forceinline__ void load(float (&v)[8], int64_t i, int64_t n) const
    {
        load8(v, (const T *)p + i, n);
    }
    __device__ __forceinline__ void store(int64_t i, const float (&v)[8], int64_t n) const
    {
        store8((T *)p + i, v, n);
    }
};

struct master_weights {
    void *p;
    int16_t *residual;

    __device__ __forceinline__ void load(float (&v)[8], int64_t i, int64_t n) const
    {
        uint16_t high[8], low[8];

        load8_bits(high, (const bf16 *)p + i, n);
        load8_bits(low, (const bf16 *)residual + i, n);
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = __uint_as_float(((uint32_t)high[j] << 16) + (uint32_t)(int32_t)(int16_t)low[j]);
    }
    __device__ __forceinline__ void store(int64_t i, const float (&v)[8], int64_t n) const
    {
        uint16_t high[8], low[8];

#pragma unroll
        for (int j = 0; j < 8; j++) {
            const uint32_t u = __float_as_uint(v[j]);
            const bool is_nan = (u & 0x7fffffffu) > 0x7f800000u;
            const uint32_t h = (is_nan ? u | 0x00400000u : u + 0x8000u) & 0xffff0000u;

            high[j] = (uint16_t)(h >> 16);
            low[j] = (uint16_t)(is_nan ? 0u : u - h);
        }
        store8_bits((bf16 *)p + i, high, n);
        store8_bits((bf16 *)residual + i, low, n);
    }
};

/* Evaluates an expression with W the weights of a checked dtype, with residuals or without. */
#define D9DI_WEIGHTS(t, residual, W, ...)                                                          \
    ((residual) != NULL ? [&] { typedef master_weights W; return __VA_ARGS__; }()                  \
     : (t) == D9D_F32   ? [&] { typedef plain_weights<float> W; return __VA_ARGS__; }()            \
                        : [&] { typedef plain_weights<bf16> W; return __VA_ARGS__; }())

#endif /* D9DI_CUDA_OPTIM_MASTER_WEIGHTS_CUH */
