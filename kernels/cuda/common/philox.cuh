/* philox.cuh - Philox 4x32-10 on the GPU: the numbers of d9d/base/rng.h. */
#ifndef D9DI_CUDA_COMMON_PHILOX_CUH
#define D9DI_CUDA_COMMON_PHILOX_CUH

#include "cuda/common/common.cuh"

static __device__ __forceinline__ uint4 philox(d9d_rng r, uint64_t block)
{
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32);
    uint32_t c2 = (uint32_t)r.stream, c3 = (uint32_t)(r.stream >> 32);
    uint32_t k0 = (uint32_t)r.seed, k1 = (uint32_t)(r.seed >> 32);

#pragma unroll
    for (int i = 0; i < 10; i++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;

        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

/* d9d_rng_u32() */
static __device__ __forceinline__ uint32_t random_u32(d9d_rng r, uint64_t index)
{
    const uint4 w = philox(r, index / 4);

    switch (index % 4) {
    case 0: return w.x;
    case 1: return w.y;
    case 2: return w.z;
    default: return w.w;
    }
}

/* Random numbers of eight consecutive indices, in two cipher blocks if they are aligned. */
static __device__ __forceinline__ void random8(uint32_t (&v)[8], d9d_rng r, uint64_t index)
{
    if (index % 4 != 0) {
        for (int j = 0; j < 8; j++)
            v[j] = random_u32(r, index + j);
        return;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint4 w = philox(r, index / 4 + h);

        v[4 * h] = w.x, v[4 * h + 1] = w.y, v[4 * h + 2] = w.z, v[4 * h + 3] = w.w;
    }
}

#endif /* D9DI_CUDA_COMMON_PHILOX_CUH */
