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

/* Four elements of each of a warp's threads: 128 in a row. An access of eight bytes or more for
 * each thread then has no gap, which matters where an array is in host memory. */
static __device__ __forceinline__ void load4(float *v, const float *p, int64_t n)
{
    if (n >= 4 && ((uintptr_t)p & 15) == 0) {
        const float4 a = *(const float4 *)p;

        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        v[j] = j < n ? p[j] : 0.0f;
}
static __device__ __forceinline__ void store4(float *p, const float *v, int64_t n)
{
    if (n >= 4 && ((uintptr_t)p & 15) == 0) {
        *(float4 *)p = make_float4(v[0], v[1], v[2], v[3]);
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (j < n)
            p[j] = v[j];
}
static __device__ __forceinline__ void load4_bits(uint16_t *b, const bf16 *p, int64_t n)
{
    if (n >= 4 && ((uintptr_t)p & 7) == 0) {
        const uint2 a = *(const uint2 *)p;

        b[0] = (uint16_t)a.x, b[1] = (uint16_t)(a.x >> 16);
        b[2] = (uint16_t)a.y, b[3] = (uint16_t)(a.y >> 16);
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        b[j] = j < n ? __bfloat16_as_ushort(p[j]) : (uint16_t)0;
}
static __device__ __forceinline__ void store4_bits(bf16 *p, const uint16_t *b, int64_t n)
{
    if (n >= 4 && ((uintptr_t)p & 7) == 0) {
        *(uint2 *)p = make_uint2(b[0] | (uint32_t)b[1] << 16, b[2] | (uint32_t)b[3] << 16);
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (j < n)
            p[j] = __ushort_as_bfloat16(b[j]);
}
static __device__ __forceinline__ void load4(float *v, const bf16 *p, int64_t n)
{
    uint16_t b[4];

    load4_bits(b, p, n);
#pragma unroll
    for (int j = 0; j < 4; j++)
        v[j] = __uint_as_float((uint32_t)b[j] << 16);
}
static __device__ __forceinline__ void store4(bf16 *p, const float *v, int64_t n)
{
    uint16_t b[4];

#pragma unroll
    for (int j = 0; j < 4; j++)
        b[j] = __bfloat16_as_ushort(__float2bfloat16_rn(v[j]));
    store4_bits(p, b, n);
}

/* BYTES: of an element, in one access. */
template <class T> struct plain_weights {
    enum { BYTES = sizeof(T) };
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
    __device__ __forceinline__ void load4_at(float *v, int64_t i, int64_t n) const
    {
        load4(v, (const T *)p + i, n);
    }
    __device__ __forceinline__ void store4_at(int64_t i, const float *v, int64_t n) const
    {
        store4((T *)p + i, v, n);
    }
};

struct master_weights {
    enum { BYTES = sizeof(bf16) };
    void *p;
    int16_t *residual;

    static __device__ __forceinline__ float join(uint16_t high, uint16_t low)
    {
        return __uint_as_float(((uint32_t)high << 16) + (uint32_t)(int32_t)(int16_t)low);
    }
    static __device__ __forceinline__ void split(float v, uint16_t *high, uint16_t *low)
    {
        const uint32_t u = __float_as_uint(v);
        const bool is_nan = (u & 0x7fffffffu) > 0x7f800000u;
        const uint32_t h = (is_nan ? u | 0x00400000u : u + 0x8000u) & 0xffff0000u;

        *high = (uint16_t)(h >> 16);
        *low = (uint16_t)(is_nan ? 0u : u - h);
    }

    __device__ __forceinline__ void load(float (&v)[8], int64_t i, int64_t n) const
    {
        uint16_t high[8], low[8];

        load8_bits(high, (const bf16 *)p + i, n);
        load8_bits(low, (const bf16 *)residual + i, n);
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = join(high[j], low[j]);
    }
    __device__ __forceinline__ void store(int64_t i, const float (&v)[8], int64_t n) const
    {
        uint16_t high[8], low[8];

#pragma unroll
        for (int j = 0; j < 8; j++)
            split(v[j], &high[j], &low[j]);
        store8_bits((bf16 *)p + i, high, n);
        store8_bits((bf16 *)residual + i, low, n);
    }
    __device__ __forceinline__ void load4_at(float *v, int64_t i, int64_t n) const
    {
        uint16_t high[4], low[4];

        load4_bits(high, (const bf16 *)p + i, n);
        load4_bits(low, (const bf16 *)residual + i, n);
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[j] = join(high[j], low[j]);
    }
    __device__ __forceinline__ void store4_at(int64_t i, const float *v, int64_t n) const
    {
        uint16_t high[4], low[4];

#pragma unroll
        for (int j = 0; j < 4; j++)
            split(v[j], &high[j], &low[j]);
        store4_bits((bf16 *)p + i, high, n);
        store4_bits((bf16 *)residual + i, low, n);
    }
};

/* Evaluates an expression with W the weights of a checked dtype, with residuals or without. */
#define D9DI_WEIGHTS(t, residual, W, ...)                                                          \
    ((residual) != NULL ? [&] { typedef master_weights W; return __VA_ARGS__; }()                  \
     : (t) == D9D_F32   ? [&] { typedef plain_weights<float> W; return __VA_ARGS__; }()            \
                        : [&] { typedef plain_weights<bf16> W; return __VA_ARGS__; }())

#endif /* D9DI_CUDA_OPTIM_MASTER_WEIGHTS_CUH */
