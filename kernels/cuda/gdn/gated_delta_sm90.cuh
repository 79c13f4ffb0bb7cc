/* gated_delta_sm90.cuh - shared memory tiles and WGMMA of the gated delta rule's kernels on Hopper.
 *
 * A tile is 64 rows of 128 bytes in the 128-byte swizzle. Rows of D = 128 features take two tiles,
 * one per half of the features. The K tile of a half is directly above its Q tile, so that both are
 * one WGMMA operand of 128 rows. States that the backward reads are stored in global memory in this
 * layout.
 *
 * Names in flash-linear-attention: h is X, v_new is U, and A^-1 is S. Its w and u are not computed
 * separately, since U = S R contains both.
 */
#ifndef D9DI_CUDA_GDN_GATED_DELTA_SM90_CUH
#define D9DI_CUDA_GDN_GATED_DELTA_SM90_CUH

#include "cuda/common/mma.cuh"
#include "cuda/common/sm90.cuh"
#include "cuda/gdn/gated_delta.cuh"

namespace
{

enum {
    WARPGROUP = 128, /* threads of a warpgroup */
    TILE_BYTES = CHUNK * 128,
    QK_BYTES = 4 * TILE_BYTES,   /* K and Q tiles of both halves of the features */
    HALF_BYTES = 2 * TILE_BYTES, /* from one half of the features to the other */
    K_MAJOR_STEP = 2,            /* 16 of k in a K-major operand, in descriptor units of 16 bytes */
    MN_MAJOR_STEP = 128          /* 16 of k in an MN-major operand: 16 rows */
};

/* Warpgroup of this thread, warp in the warpgroup, lane in the warp. */
struct lane_position {
    int group, warp, lane;

    __device__ __forceinline__ lane_position()
        : group(threadIdx.x / WARPGROUP), warp(threadIdx.x % WARPGROUP / WARP),
          lane(threadIdx.x % WARP)
    {
    }
    /* Layout of a WGMMA accumulator [64, N]: elements 4 j + e of a thread are in row() for e < 2,
     * else in row() + 8. column(j) is the column of elements 4 j and 4 j + 2. */
    __device__ __forceinline__ int row() const { return warp * 16 + lane / 4; }
    __device__ __forceinline__ int column(int j) const { return j * 8 + lane % 4 * 2; }
    /* This lane's address for ldmatrix or stmatrix with .trans: rows [16 j, 16 j + 16) of a tile,
     * the warp's 16 columns. Transposed, they are the warp's 16 rows of an accumulator and 16 of
     * its columns. */
    __device__ __forceinline__ uint32_t trans_address(uint32_t tile, int j) const
    {
        return swizzle_128b(tile, 16 * j + lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
    }
    /* The same without .trans: the warp's 16 rows of a tile, columns [16 j, 16 j + 16). */
    __device__ __forceinline__ uint32_t row_address(uint32_t tile, int j) const
    {
        return swizzle_128b(tile, warp * 16 + lane % 16, 2 * j + lane / 16);
    }
};

/* --- copies ----------------------------------------------------------------------------------- */

DEVICE void cp_async_16_zfill(uint32_t to, const void *from, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

/* Copies n rows, `step` elements apart, to ROWS rows of TILES adjacent tiles, `next` bytes apart.
 * Rows from n on and features from `columns` on are zeroed. Called by GROUPS warpgroups; each
 * thread copies one 16-byte column. */
template <int GROUPS, int ROWS, int TILES>
DEVICE void copy_rows(uint32_t to, uint32_t next, const bf16 *from, int64_t step, int n,
                      int64_t columns)
{
    enum { UNITS = TILES * 8, PER_ITERATION = GROUPS * WARPGROUP / UNITS }; /* rows per iteration */
    const int i = threadIdx.x / UNITS, u = threadIdx.x % UNITS;
    const bool wide = u * 8 < columns;
    const bf16 *at = from + i * step + u * 8;
    const uint32_t smem = swizzle_128b(to + u / 8 * next, i, u % 8);

    static_assert(PER_ITERATION % 8 == 0, "rows of one thread are swizzled alike");
#pragma unroll 2
    for (int r = 0; r < ROWS / PER_ITERATION; r++) {
        const bool valid = wide && i + r * PER_ITERATION < n;

        cp_async_16_zfill(smem + r * PER_ITERATION * 128, valid ? at : from, valid);
        at += PER_ITERATION * step;
    }
}

template <int GROUPS, int BYTES> DEVICE void copy_bytes(uint32_t to, const void *from)
{
    enum { PER_ITERATION = GROUPS * WARPGROUP * 16 };
    const int at = threadIdx.x * 16;

#pragma unroll
    for (int r = 0; r < (BYTES + PER_ITERATION - 1) / PER_ITERATION; r++)
        if ((r + 1) * PER_ITERATION <= BYTES || at + r * PER_ITERATION < BYTES)
            cp_async_16_zfill(to + at + r * PER_ITERATION,
                              (const char *)from + at + r * PER_ITERATION, true);
}

/* Copies K and Q [n, D] of a chunk. */
template <int GROUPS>
DEVICE void copy_qk(uint32_t to, const gated_delta_call<bf16> &v, int64_t key, int n)
{
    const int64_t step = v.n.k * v.n.d;

    copy_rows<GROUPS, CHUNK, 2>(to, HALF_BYTES, v.k + key, step, n, v.n.d);
    copy_rows<GROUPS, CHUNK, 2>(to + TILE_BYTES, HALF_BYTES, v.q + key, step, n, v.n.d);
}

/* Waits for all cp.async and makes shared memory visible to WGMMA; a block barrier. */
DEVICE void smem_wait_copies(void)
{
    cp_async_wait_all();
    fence_proxy_async();
    __syncthreads();
}

/* Stores bytes, a multiple of 16, from shared to global memory by TMA; called by one thread. */
DEVICE void tma_bulk_store(void *to, uint32_t from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
}

/* The saved state before a chunk, and the gradient of the state after it: transposed, bfloat16, [D
 * / 64, F, 64] with the rows of 128 bytes swizzled as in a tile. */
DEVICE bf16 *saved_state_at(const float *states, const gated_delta_call<bf16> &v, int64_t slot,
                            int64_t h)
{
    return (bf16 *)states + (slot * v.n.a + h) * saved_state_size(v.n);
}
DEVICE bf16 *saved_state_before(const gated_delta_call<bf16> &v, int64_t first, int64_t h)
{
    return saved_state_at(v.state, v, first / CHUNK - 1, h);
}
DEVICE bf16 *saved_dstate_after(const gated_delta_call<bf16> &v, int64_t first, int64_t h)
{
    return saved_state_at(v.dstate, v, first / CHUNK, h);
}

/* --- WGMMA ------------------------------------------------------------------------------------ */

/* Descriptor of an MN-major operand, `next` bytes from one group of 64 of M or N to the next. */
DEVICE uint64_t mn_major_descriptor(uint32_t address, uint32_t next)
{
    return (uint64_t)((address & 0x3FFFF) >> 4) | (uint64_t)(next >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}

/* D [64, 64] = A [64, 16] B [16, 64] (+ D if `keep`), both operands in shared memory. */
#define D9DI_R4(i)  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D9DI_R16(i) D9DI_R4(i), D9DI_R4(i + 4), D9DI_R4(i + 8), D9DI_R4(i + 12)
template <bool A_MN_MAJOR, bool B_MN_MAJOR>
DEVICE void wgmma_64x64x16_ss(float (&d)[32], uint64_t a, uint64_t b, int keep)
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

/* Commits the WGMMAs issued so far and waits for them, so that d may be read. */
template <int N> DEVICE void wgmma_commit_and_wait(float (&d)[N])
{
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_fence_operand(d);
}

/* Splits eight accumulator elements of a thread, 16 columns, into an A operand in two parts. */
DEVICE bf16_split split_bf16x8(const float *p)
{
    bf16_split y;

#pragma unroll
    for (int i = 0; i < 4; i++)
        split_bf16x2(y, i, p[2 * i], p[2 * i + 1]);
    return y;
}

/* Halves of a bf16x2 as float32. */
DEVICE float bf16x2_low(uint32_t v)
{
    return __uint_as_float(v << 16);
}
DEVICE float bf16x2_high(uint32_t v)
{
    return __uint_as_float(v & 0xffff0000u);
}

/* Loads two adjacent floats from shared memory. */
DEVICE float2 smem_load_float2(uint32_t a)
{
    float2 v;

    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(a) : "memory");
    return v;
}

/* Stores n rows of a tile [64 tokens, 64 features] of the warpgroup to global memory, features
 * below `columns`. */
DEVICE void store_value_rows(bf16 *to, int64_t step, uint32_t tile, int n, int64_t columns)
{
    for (int e = threadIdx.x % WARPGROUP; e < n * 8; e += WARPGROUP) {
        const int i = e / 8, u = e % 8;

        if (u * 8 < columns)
            *(int4 *)(to + i * step + u * 8) = smem_load4(swizzle_128b(tile, i, u));
    }
}

/* Stores four 8 x 8 matrices, each transposed. */
DEVICE void stmatrix_x4_trans(uint32_t a, const uint32_t *v)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(a),
                 "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
}

} // namespace

#endif /* D9DI_CUDA_GDN_GATED_DELTA_SM90_CUH */
