/* gated_delta_sm90.cuh - what the kernels of the gated delta rule on Hopper share: tiles in shared
 * memory, and products of them.
 *
 * A tile is 64 rows of 128 bytes, swizzled.  Rows of keys take two tiles side by side, those of K
 * above those of Q, so that both are one operand; states are saved for the backward as it has them
 * in shared memory.  Names of others: W and U of flash-linear-attention are not made
 * apart (U = S R has both); h is X, v_new U, A^-1 S.
 */
#ifndef D9DI_CUDA_GDN_GATED_DELTA_SM90_CUH
#define D9DI_CUDA_GDN_GATED_DELTA_SM90_CUH

#include "cuda/common/mma.cuh"
#include "cuda/common/sm90.cuh"
#include "cuda/gdn/gated_delta.cuh"

namespace
{

enum {
    GROUP = 128, /* threads of a warp group */
    TILE_BYTES = CHUNK * 128,
    KEYS_BYTES = 4 * TILE_BYTES, /* K and Q */
    SIDE_BYTES = 2 * TILE_BYTES, /* of features 64 on */
    STEP_ACROSS = 2,             /* of an operand, 16 elements along its rows */
    STEP_DOWN = 128              /* 16 rows */
};

/* A thread: its warp group, and in it its place. */
struct lane_position {
    int group, warp, lane;

    __device__ __forceinline__ lane_position()
        : group(threadIdx.x / GROUP), warp(threadIdx.x % GROUP / WARP), lane(threadIdx.x % WARP)
    {
    }
    /* Of a sum of 64 rows: those of elements 4 j + e with e < 2, the others eight below; and the
     * first column of elements 4 j. */
    __device__ __forceinline__ int row() const { return warp * 16 + lane / 4; }
    __device__ __forceinline__ int column(int j) const { return j * 8 + lane % 4 * 2; }
    /* What this lane gives of four matrices: of rows 16 j on, of the sixteens of a tile that are
     * the warp's; turned, they are the warp's rows of a sum and 16 of its columns. */
    __device__ __forceinline__ uint32_t turned(uint32_t tile, int j) const
    {
        return swizzle_128b(tile, 16 * j + lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
    }
    /* The same of the warp's rows of a tile, 16 columns from 16 j on. */
    __device__ __forceinline__ uint32_t upright(uint32_t tile, int j) const
    {
        return swizzle_128b(tile, warp * 16 + lane % 16, 2 * j + lane / 16);
    }
};

/* --- copies ----------------------------------------------------------------------------------- */

DEVICE void copy16_to(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}

/* n rows, `step` elements apart, to ROWS of one or more tiles side by side, `next` bytes apart;
 * zeros elsewhere.  By a block of GROUPS warp groups, each thread of which has one column. */
template <int GROUPS, int ROWS, int TILES>
DEVICE void copy_rows(uint32_t to, uint32_t next, const bf16 *from, int64_t step, int n,
                      int64_t columns)
{
    enum { UNITS = TILES * 8, EACH = GROUPS * GROUP / UNITS }; /* rows at a time */
    const int i = threadIdx.x / UNITS, u = threadIdx.x % UNITS;
    const bool wide = u * 8 < columns;
    const bf16 *at = from + i * step + u * 8;
    const uint32_t smem_offsets = swizzle_128b(to + u / 8 * next, i, u % 8);

    static_assert(EACH % 8 == 0, "rows of one thread are swizzled alike");
#pragma unroll 2
    for (int r = 0; r < ROWS / EACH; r++) {
        const bool there = wide && i + r * EACH < n;

        copy16_to(smem_offsets + r * EACH * 128, there ? at : from, there);
        at += EACH * step;
    }
}

template <int GROUPS, int BYTES> DEVICE void copy_bytes(uint32_t to, const void *from)
{
    enum { EACH = GROUPS * GROUP * 16 };
    const int at = threadIdx.x * 16;

#pragma unroll
    for (int r = 0; r < (BYTES + EACH - 1) / EACH; r++)
        if ((r + 1) * EACH <= BYTES || at + r * EACH < BYTES)
            copy16_to(to + at + r * EACH, (const char *)from + at + r * EACH, true);
}

/* K and Q of a chunk. */
template <int GROUPS>
DEVICE void copy_keys(uint32_t to, const gated_delta_call<bf16> &v, int64_t key, int n)
{
    const int64_t step = v.n.k * v.n.d;

    copy_rows<GROUPS, CHUNK, 2>(to, SIDE_BYTES, v.k + key, step, n, v.n.d);
    copy_rows<GROUPS, CHUNK, 2>(to + TILE_BYTES, SIDE_BYTES, v.q + key, step, n, v.n.d);
}

/* What was copied and stored is there for products of the whole block. */
DEVICE void all_there(void)
{
    cp_async_wait_all();
    fence_proxy_async();
    __syncthreads();
}

/* Bytes of shared memory, a multiple of 16, to memory; one thread's. */
DEVICE void bytes_store(void *to, uint32_t from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
}

/* The state before a chunk, or the gradient of the one after it: turned, in bfloat16, 64 features
 * of keys [F, 64] after the other, swizzled as in a tile. */
DEVICE bf16 *saved_at(const float *states, const gated_delta_call<bf16> &v, int64_t slot, int64_t h)
{
    return (bf16 *)states + (slot * v.n.a + h) * saved_size(v.n);
}
DEVICE bf16 *saved_before(const gated_delta_call<bf16> &v, int64_t first, int64_t h)
{
    return saved_at(v.state, v, first / CHUNK - 1, h);
}
DEVICE bf16 *saved_after(const gated_delta_call<bf16> &v, int64_t first, int64_t h)
{
    return saved_at(v.dstate, v, first / CHUNK, h);
}

/* --- products --------------------------------------------------------------------------------- */

/* An operand whose M or N is contiguous, `next` bytes from one 64 to the next. */
DEVICE uint64_t sideways(uint32_t address, uint32_t next)
{
    return (uint64_t)((address & 0x3FFFF) >> 4) | (uint64_t)(next >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}

/* D [64, 64] = A [64, 16] B [16, 64] (+ D if `keep`), both in shared memory. */
#define D9DI_R4(i)  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D9DI_R16(i) D9DI_R4(i), D9DI_R4(i + 4), D9DI_R4(i + 8), D9DI_R4(i + 12)
template <bool A_MN_MAJOR, bool B_MN_MAJOR>
DEVICE void product_of_tiles(float (&d)[32], uint64_t a, uint64_t b, int keep)
{
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %34, 0;\n"
                 " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
                 " %32, %33, p, 1, 1, %35, %36;\n}"
                 : D9DI_R16(0), D9DI_R16(16)
                 : "l"(a), "l"(b), "r"(keep), "n"(A_MN_MAJOR), "n"(B_MN_MAJOR));
}
#undef D9DI_R16
#undef D9DI_R4

/* The products begun so far are in d. */
template <int N> DEVICE void take_products(float (&d)[N])
{
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_fence_operand(d);
}

/* Eight elements of a thread, 16 columns of a sum, as an operand. */
DEVICE bf16_split split_eight(const float *p)
{
    bf16_split y;

#pragma unroll
    for (int i = 0; i < 4; i++)
        split_bf16x2(y, i, p[2 * i], p[2 * i + 1]);
    return y;
}

/* The two numbers of a pair. */
DEVICE float low_of(uint32_t v)
{
    return __uint_as_float(v << 16);
}
DEVICE float high_of(uint32_t v)
{
    return __uint_as_float(v & 0xffff0000u);
}

/* Numbers of two columns, from shared memory. */
DEVICE float2 two_at(uint32_t a)
{
    float2 v;

    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(a) : "memory");
    return v;
}

/* Rows of 64 turned values, of the group, to memory: `tile` [64 tokens, 64 features]. */
DEVICE void give_values(bf16 *to, int64_t step, uint32_t tile, int n, int64_t columns)
{
    for (int e = threadIdx.x % GROUP; e < n * 8; e += GROUP) {
        const int i = e / 8, u = e % 8;

        if (u * 8 < columns)
            *(int4 *)(to + i * step + u * 8) = smem_load4(swizzle_128b(tile, i, u));
    }
}

/* Four matrices, each turned, to shared memory. */
DEVICE void shared_store_turned(uint32_t a, const uint32_t *v)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(a),
                 "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
}

} // namespace

#endif /* D9DI_CUDA_GDN_GATED_DELTA_SM90_CUH */
