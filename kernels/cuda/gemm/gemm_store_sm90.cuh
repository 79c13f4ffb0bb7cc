/* gemm_store_sm90.cuh - how epilogues on Hopper store a tile of C, or add it, part by part. */
#ifndef D9DI_CUDA_GEMM_GEMM_STORE_SM90_CUH
#define D9DI_CUDA_GEMM_GEMM_STORE_SM90_CUH

#include "cuda/gemm/gemm_sm90.cuh"

namespace
{

/* Type of C, and whether it is added to. */
enum output_kind { BF16, F32, BF16_ADD, F32_ADD };

/* A consumer warpgroup with C, which is m.c[0] too. */
template <int SUM> struct consumer_stores : consumer_warpgroup {
    static constexpr bool WIDE = SUM == F32 || SUM == F32_ADD; /* C is float32 */
    void *const &c;                                            /* in the kernel's arguments */

    __device__ __forceinline__ consumer_stores(const consumer_warpgroup &w, void *const &c)
        : consumer_warpgroup(w), c(c)
    {
    }

    /* 32 columns of C in float32, of the last rows of a matrix. */
    __device__ __forceinline__ void store_wide(uint32_t from, int row, int at, int live) const
    {
        each_of_rows<float>(from, c, row, at, live, [](int4 *to, int4 v) {
            float4 output_kind = __builtin_bit_cast(float4, v);

            if (SUM == F32_ADD) {
                const float4 old = *(const float4 *)to;

                output_kind = {old.x + output_kind.x, old.y + output_kind.y, old.z + output_kind.z,
                               old.w + output_kind.w};
            }
            *(float4 *)to = output_kind;
        });
    }

    /* Chunk i of the columns of 64 rows of C, `live` of them real. */
    __device__ __forceinline__ void store_columns(const uint32_t *v, int i, int row, int column,
                                                  int live)
    {
        const uint32_t from = out_buffer(i);
        const int at = column + i * 32;

        if (!WIDE) {
            store_bf16_columns(v, from, 0, c, row, column + i * 64, live);
            return;
        }
        wait_out_buffers<BUFFERS - 1>();
        smem_store_f32(from, v);
        fence_proxy_async();
        named_barrier_sync(1 + group, GROUP);
        if (live < HALF)
            store_wide(from, row, at, live);
        if (thread != 0)
            return;
        if (live < HALF) {
            tma_store_commit();
            return;
        }
        if (at < p.n && SUM == F32_ADD)
            tma_reduce_add(&m.c[0], from, at, row);
        else if (at < p.n)
            tma_store(&m.c[0], from, at, row);
        tma_store_commit();
    }

    /* Adds a bfloat16 C in float32, before it is rounded. */
    template <int N>
    __device__ __forceinline__ void add_c(float (&d)[N], int row, int column, int live) const
    {
        const bf16 *old = (const bf16 *)c;

#pragma unroll
        for (int j = 0; j < N / 4; j++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int r = row + warp * 16 + lane / 4 + 8 * h;
                const int at = column + 8 * j + lane % 4 * 2;
                uint32_t two = 0;

                if (at < p.n && r - row < live)
                    two = *(const uint32_t *)(old + (int64_t)r * p.n + at);
                d[4 * j + 2 * h] += __uint_as_float(two << 16);
                d[4 * j + 2 * h + 1] += __uint_as_float(two & 0xffff0000u);
            }
    }
};

} // namespace

#endif /* D9DI_CUDA_GEMM_GEMM_STORE_SM90_CUH */
