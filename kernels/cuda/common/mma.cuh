/* mma.cuh - mma.m16n8k16 in bfloat16 with float32 accumulators, from compute capability 8.0 on.
 *
 *     C [16, 8] += A [16, 16] B [16, 8]
 *
 * Lane l holds elements (l / 4, 2 (l % 4)) of C, the one to the right of it, and both eight rows
 * below. So two adjacent C tiles, once rounded, are an A tile. bf16_split is an A tile that is not
 * rounded but split: hi + lo has sixteen bits of mantissa.
 */
#ifndef D9DI_CUDA_COMMON_MMA_CUH
#define D9DI_CUDA_COMMON_MMA_CUH

#include "cuda/common/common.cuh"

/* b0 and b1 are the two halves of B. */
static __device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

struct bf16_split {
    uint32_t hi[4], lo[4];
};

static __device__ __forceinline__ uint32_t pack_bf16x2(float a, float b)
{
    const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);

    return *(const uint32_t *)&v;
}
static __device__ __forceinline__ void split_bf16x2(bf16_split &y, int i, float a, float b)
{
    y.hi[i] = pack_bf16x2(a, b);
    y.lo[i] =
        pack_bf16x2(a - __uint_as_float(y.hi[i] << 16), b - __uint_as_float(y.hi[i] & 0xffff0000u));
}
/* Splits two adjacent C tiles into an A tile. */
static __device__ __forceinline__ bf16_split split_bf16(const float (&a)[4], const float (&b)[4])
{
    bf16_split y;

    split_bf16x2(y, 0, a[0], a[1]);
    split_bf16x2(y, 1, a[2], a[3]);
    split_bf16x2(y, 2, b[0], b[1]);
    split_bf16x2(y, 3, b[2], b[3]);
    return y;
}

/* --- from shared memory, rows 16-byte aligned and STRIDE elements apart ----------------------- */
template <bool TRANS>
static __device__ __forceinline__ void ldmatrix_16x16(uint32_t (&v)[4], const bf16 *p)
{
    const uint32_t a = (uint32_t)__cvta_generic_to_shared(p);

    if (TRANS)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                     : "r"(a)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                     : "r"(a)
                     : "memory");
}
/* Two adjacent B tiles, v[0] v[1] and v[2] v[3]: from rows of n or, with TRANS, rows of k. */
template <bool TRANS, int STRIDE>
static __device__ __forceinline__ void load_b(uint32_t (&v)[4], const bf16 *p)
{
    const int l = threadIdx.x % WARP, outer = l / 16 * 8, inner = l / 8 % 2 * 8;

    ldmatrix_16x16<TRANS>(v,
                          p + ((TRANS ? inner : outer) + l % 8) * STRIDE + (TRANS ? outer : inner));
}
/* An A tile from rows of k. */
template <int STRIDE>
static __device__ __forceinline__ void load_a_trans(uint32_t (&v)[4], const bf16 *p)
{
    const int l = threadIdx.x % WARP;

    ldmatrix_16x16<true>(v, p + (l / 16 * 8 + l % 8) * STRIDE + l / 8 % 2 * 8);
}

/* Two C tiles, the second eight columns to the right, from the tile at p. */
template <bool TRANS, int STRIDE>
static __device__ __forceinline__ void mma_accumulate(float (&c)[4], float (&d)[4],
                                                      const uint32_t (&a)[4], const bf16 *p)
{
    uint32_t b[4];

    load_b<TRANS, STRIDE>(b, p);
    mma(c, a, b[0], b[1]);
    mma(d, a, b[2], b[3]);
}
template <bool TRANS, int STRIDE>
static __device__ __forceinline__ void mma_accumulate(float (&c)[4], float (&d)[4],
                                                      const bf16_split &a, const bf16 *p)
{
    uint32_t b[4];

    load_b<TRANS, STRIDE>(b, p);
    mma(c, a.hi, b[0], b[1]);
    mma(d, a.hi, b[2], b[3]);
    mma(c, a.lo, b[0], b[1]);
    mma(d, a.lo, b[2], b[3]);
}

/* --- asynchronous copies to shared memory ----------------------------------------------------- */

/* Copies 16 bytes, or writes zeros. */
static __device__ __forceinline__ void cp_async_16(void *to, const void *from, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
}
/* Waits for this thread's copies; those of others are visible after __syncthreads(). */
static __device__ __forceinline__ void cp_async_wait_all(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

#endif /* D9DI_CUDA_COMMON_MMA_CUH */
