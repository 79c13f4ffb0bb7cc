/* attention_bwd_sm90_mainloop.cuh - attention backward on Hopper: the parts of the consumers'
 * mainloops and epilogues. See attention_bwd_sm90.cu. */
#ifndef D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_MAINLOOP_CUH
#define D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_MAINLOOP_CUH

#include "cuda/attention/attention_bwd_sm90_smem.cuh"

namespace
{

DEVICE float exp2_approx(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float2 smem_load2(uint32_t a)
{
    float2 v;

    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(a) : "memory");
    return v;
}

/* A consumer warpgroup and its 64 stationary tokens: its own, or the block's (SHARED_TILE). */
template <class L> struct consumer_warpgroup {
    enum { KEYS = L::KEYS };
    const bwd_params &p;
    const smem_offsets &at;
    int group, thread, warp, lane;
    pipeline_state<L::STAGES> stage = {0, 0};

    /* Index of this warpgroup's stationary tile within the block. */
    __device__ __forceinline__ int tile(void) const { return L::SHARED_TILE ? 0 : group; }

    /* Signals the producer that this warp no longer reads stage i. */
    __device__ __forceinline__ void stage_release(uint32_t i) const
    {
        __syncwarp();
        if (lane == 0)
            mbarrier_arrive(at.empty + 8 * i);
    }

    /* Releases the stage whose wgmma may have been in flight, unless NONE. */
    __device__ __forceinline__ void held_stage_release(int *held) const
    {
        if (*held != NONE)
            stage_release(*held);
        *held = NONE;
    }

    /* The current work tile, read from shared memory each time to save registers. */
    __device__ __forceinline__ work_tile current_work_tile(void) const
    {
        return read_published<work_tile>(at.base + L::OFFSET_WORK_TILE);
    }
    __device__ __forceinline__ stage_info stage_info_of(uint32_t s) const
    {
        return read_published<stage_info>(stage_info_at<L>(at, s));
    }
    __device__ __forceinline__ score_mask mask_of(uint32_t s) const
    {
        return score_mask_of<KEYS>(stage_info_of(s), tile(), p.n.window);
    }

    /* Zeroes rows from `live` on of that many slabs. Their scores are 0, but 0 times NaN is NaN. */
    __device__ __forceinline__ void clear_rows(uint32_t from, int slabs, int live) const
    {
        if (live >= SIDE)
            return;
        for (int i = live * 8 + thread; i < SIDE * 8; i += GROUP)
            for (int j = 0; j < slabs; j++)
                smem_clear4(from + j * SIDE * 128 + i * 16);
        fence_proxy_async();
        named_barrier_sync(1 + group, GROUP);
    }

    /* Clears rows after the segment's end. Both warpgroups do, since one of them may skip this
     * tile. */
    __device__ __forceinline__ void clear_streamed_tail(uint32_t s) const
    {
        const stage_info x = stage_info_of(s);

        clear_rows(streamed_tile_at<L>(at, s, 0), L::SLABS + L::VALUE_SLABS,
                   x.nq - (KEYS ? x.query : x.key));
    }

    /* Advances to the next tile with visible scores, which becomes stage *here. Skipped tiles may
     * outnumber the stages, so the held stage is released before waiting for one. */
    __device__ __forceinline__ bool next_tile(bool any, int *steps, int *here, int *held)
    {
        while (--*steps >= 0) {
            *here = (int)stage.i;
            mbarrier_wait(at.full + 8 * stage.i, stage.parity);
            stage.next();
            if (any && !mask_of((uint32_t)*here).none_visible()) {
                clear_streamed_tail((uint32_t)*here);
                return true;
            }
            if (*held != NONE)
                wgmma_wait<0>();
            held_stage_release(held);
            stage_release((uint32_t)*here);
        }
        return false;
    }

    /* This warpgroup's stationary keys (i = 0) or values (i = 1). */
    __device__ __forceinline__ uint32_t stationary_tile_at(int i) const
    {
        return at.base + L::OFFSET_STATIONARY +
               (i == 0 ? tile() * L::TILE : L::TILES * L::TILE + tile() * L::VALUE_TILE);
    }
    /* Address of this thread's row of four 8 x 8 matrices in a tile, features 16 j on (ldmatrix).
     */
    __device__ __forceinline__ uint32_t matrices_at(uint32_t tile, int j) const
    {
        const int r = warp * 16 + lane % 16;

        return swizzle_128b(tile + j / 4 * SIDE * 128, r, j % 4 * 2 + lane / 16);
    }

    /* x = stationary[I] streamed[I]' */
    template <int I> __device__ __forceinline__ void gemm_scores(float (&x)[32], uint32_t s) const
    {
        const uint64_t a = smem_descriptor<false>(stationary_tile_at(I)),
                       b = smem_descriptor<false>(streamed_tile_at<L>(at, s, I));

        wgmma_fence();
#pragma unroll
        for (int k = 0; k < (I == 0 ? L::FEATURES : L::VALUE_FEATURES) / 16; k++)
            wgmma_64x64x16(x, a + k / 4 * 512 + k % 4 * 2, b + k / 4 * 512 + k % 4 * 2, k);
        wgmma_commit();
    }

    /* sum += x streamed[i] */
    template <int N>
    __device__ __forceinline__ void gemm_accumulate(float (&sum)[N], const uint32_t (&x)[16],
                                                    uint32_t s, int i) const
    {
        const uint64_t b = smem_descriptor<true>(streamed_tile_at<L>(at, s, i));

        wgmma_fence();
#pragma unroll
        for (int k = 0; k < SIDE / 16; k++)
            wgmma_rs<true>(sum, x + 4 * k, b + k * 128, 1);
        wgmma_commit();
    }

    /* Row and column within the 64 x 64 tile of a thread's score 4 j + i. */
    __device__ __forceinline__ int row_of(int i) const
    {
        return warp * 16 + lane / 4 + i / 2 * 8;
    }
    __device__ __forceinline__ int column_of(int j, int i) const
    {
        return j * 8 + lane % 4 * 2 + i % 2;
    }

    /* lse (which 0) or delta (which 1) of the stage's queries of scores 4 j and 4 j + 1, which are
     * those of 4 j + 2 and 4 j + 3. */
    __device__ __forceinline__ float2 row_stats_of(uint32_t s, int which, int j) const
    {
        return smem_load2(at.base + L::OFFSET_ROW_STATS + (s * 2 + which) * SIDE * 4 +
                          column_of(j, 0) * 4);
    }

    /* x, scores, becomes P = exp2(scale log2(e) x - lse2), 0 where masked. */
    __device__ __forceinline__ void softmax_recompute(float (&x)[32], uint32_t s) const
    {
        const float scale = p.scale * CUDART_L2E_F;

#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float2 lse = row_stats_of(s, 0, j);

#pragma unroll
            for (int i = 0; i < 4; i++)
                x[4 * j + i] = exp2_approx(fmaf(x[4 * j + i], scale, i % 2 ? -lse.y : -lse.x));
        }
        const score_mask of = mask_of(s);

        if (of.all_visible())
            return;
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (!of.visible(column_of(j, i), row_of(i)))
                    x[4 * j + i] = 0.0f;
    }

    /* Packs P = x and dS = x (y - delta) to pairs of bfloat16. */
    __device__ __forceinline__ void make_p_ds(uint32_t (&weights)[16], uint32_t (&ds)[16],
                                              const float (&x)[32], const float (&y)[32],
                                              uint32_t s) const
    {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float2 delta = row_stats_of(s, 1, j);

#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                const float *const p = x + 4 * j + i, *const dp = y + 4 * j + i;

                weights[2 * j + i / 2] = pack_bf16(p[0], p[1]);
                ds[2 * j + i / 2] = pack_bf16(p[0] * (dp[0] - delta.x), p[1] * (dp[1] - delta.y));
            }
        }
    }

    /* Stores dS to scratch: register r of a thread belongs to matrix r % 2 of the warp's keys and
     * matrix r / 2 of the queries. */
    __device__ __forceinline__ void store_ds(const uint32_t (&x)[16], uint32_t s) const
    {
        const int ds_block = stage_info_of(s).ds_block;

        if (ds_block == NONE)
            return;
        char *const to = p.ds.at + ((int64_t)ds_block * L::TILES + tile()) * TILE_BYTES +
                         warp * 2 * SIDE * 16 + lane * 4;

#pragma unroll
        for (int r = 0; r < 16; r++)
            __stcs((uint32_t *)(to + (r % 2 * (SIDE / 8) + r / 2) * 128), x[r]);
    }

    /* Loads what store_ds() stored, transposed: the warp's 16 queries by all keys of the tile. */
    __device__ __forceinline__ void load_ds_transposed(uint32_t (&x)[16], uint32_t s) const
    {
        const uint32_t from = streamed_tile_at<L>(at, s, 1) + group * TILE_BYTES +
                              (lane / 16 * (SIDE / 8) + warp * 2 + lane / 8 % 2) * 128 +
                              lane % 8 * 16;

#pragma unroll
        for (int k = 0; k < SIDE / 16; k++) {
            uint32_t v[4];

            ldmatrix_x4_trans(v, from + k * 2 * SIDE * 16);
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[4 * k + i] = v[i];
        }
    }

    /* Epilogue: writes scale times x, `live` rows of `features`, through shared memory to `to`. */
    template <int N>
    __device__ __forceinline__ void store(bf16 *to, const float (&x)[N], float scale, int features,
                                          int token, int live, int head) const
    {
        const uint32_t out = at.base + L::OFFSET_OUT + group * L::OUT;
        const int64_t row = (int64_t)heads_of<KEYS>(p.n) * features;

        to += token * row + (int64_t)head * features;
#pragma unroll
        for (int from = 0; from < (N + 31) / 32; from += L::OUT_SLABS) {
            const int chunks = min(features / 8 - from * 8, L::OUT_SLABS * 8); /* of 16 bytes */

            if (chunks <= 0) /* features of the tile that the head has not */
                break;
            named_barrier_sync(1 + group, GROUP); /* the previous chunk has been read */
#pragma unroll
            for (int j = from * 4; j < N / 8 && j < (from + L::OUT_SLABS) * 4; j++) {
                uint32_t v[4];

#pragma unroll
                for (int i = 0; i < 4; i++)
                    v[i] = pack_bf16(x[8 * j + 2 * i] * scale, x[8 * j + 2 * i + 1] * scale);
                stmatrix_x4(matrices_at(out, j - from * 4), v);
            }
            named_barrier_sync(1 + group, GROUP);
            for (int i = thread; i < live * chunks; i += GROUP) {
                const int r = i / chunks, f = i % chunks;

                *(int4 *)(to + r * row + (from * 8 + f) * 8) =
                    smem_load4(out + f / 8 * SIDE * 128 + r * 128 + ((f % 8 ^ (r & 7)) << 4));
            }
        }
    }

    /* Signals the producer that this warp no longer reads the work tile and its stationary tiles.
     */
    __device__ __forceinline__ void work_release() const
    {
        __syncwarp();
        if (lane == 0)
            mbarrier_arrive(at.work_empty);
    }

    /* Writes scale times x, a sum, to p.to[i], for this warpgroup's tokens of work tile o. */
    template <int N>
    __device__ __forceinline__ void store_grad(const work_tile &o, int i, const float (&x)[N],
                                               float scale) const
    {
        store(p.to[i], x, scale, i == 0 ? p.d : p.dv, o.first + tile() * SIDE,
              min(+SIDE, o.tokens - tile() * SIDE), o.head);
    }

    /* --- sums over parts, in float32: the bits are those of one part --- */

    __device__ __forceinline__ float4 *unfinished_at(const work_tile &o, int i) const
    {
        return p.unfinished +
               (((int64_t)o.slot * CONSUMERS + group) * L::SUMS + (L::SUMS == 1 ? 0 : i)) *
                   L::SUM4 +
               thread;
    }

    /* Begins sum i of a work tile: with zeros, or where the previous part stopped. */
    template <int N>
    __device__ __forceinline__ void sum_begin(const work_tile &o, int i, float (&x)[N]) const
    {
        const float4 *const from = unfinished_at(o, i);

#pragma unroll
        for (int j = 0; j < N / 4; j++) {
            const float4 v = o.begun ? __ldcs(from + j * GROUP) : float4{0.0f, 0.0f, 0.0f, 0.0f};

            x[4 * j] = v.x;
            x[4 * j + 1] = v.y;
            x[4 * j + 2] = v.z;
            x[4 * j + 3] = v.w;
        }
    }

    /* Writes the gradient scale times x or, if later parts add to it, keeps the sum. */
    template <int N>
    __device__ __forceinline__ void sum_end(const work_tile &o, int i, const float (&x)[N],
                                            float scale) const
    {
        if (!o.unfinished) {
            store_grad(o, i, x, scale);
            return;
        }
        float4 *const to = unfinished_at(o, i);

#pragma unroll
        for (int j = 0; j < N / 4; j++)
            __stcs(to + j * GROUP, float4{x[4 * j], x[4 * j + 1], x[4 * j + 2], x[4 * j + 3]});
    }

    template <class F> __device__ __forceinline__ void for_each_work_tile(F work)
    {
        for (uint32_t parity = 0;; parity ^= 1) {
            mbarrier_wait(at.work_full, parity);
            const work_tile o = current_work_tile();

            if (o.head < 0)
                return;
            work(o);
        }
    }
};

} // namespace

#endif /* D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_MAINLOOP_CUH */
