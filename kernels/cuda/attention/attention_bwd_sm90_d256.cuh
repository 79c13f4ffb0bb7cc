/* attention_bwd_sm90_d256.cuh - attention backward on Hopper, heads of more than 128 features: both
 * consumer warpgroups share the same 64 stationary tokens. See attention_bwd_sm90.cu.
 *
 * A tile of 64 x 64 scores, P and dS, and the sums:
 *
 *     warpgroup 0  X = stationary[0] streamed[0]'  P = exp(scale X - lse)  KEYS: dV += P' dO
 *     warpgroup 1  Y = stationary[1] streamed[1]'  dS = P (Y - delta)      dQ, dK += dS streamed[0]
 *
 * so that each warpgroup has 64 x D accumulators. A thread of warpgroup 1 needs the P of the same
 * thread of warpgroup 0, rounded to bfloat16. P is passed in shared memory, 64 bytes a thread,
 * double-buffered (BUFFERS); a warp waits only for its counterpart.
 */
#ifndef D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_D256_CUH
#define D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_D256_CUH

#include "cuda/attention/attention_bwd_sm90_mainloop.cuh"

namespace
{

/* Hands P from warpgroup 0 to warpgroup 1: the view of one thread. */
template <int D> struct p_handoff {
    typedef layout<D> L;
    const smem_offsets &at;
    int thread, warp, lane;
    pipeline_state<BUFFERS> buffer = {0, 0};

    /* warp_barrier(): this warp's barrier of a kind, full or empty. p_smem_at(): the j-th of this
     * thread's four 16-byte parts of the buffer. */
    __device__ __forceinline__ uint32_t warp_barrier(uint32_t barriers) const
    {
        return barriers + 8 * (buffer.i * (GROUP / WARP) + warp);
    }
    __device__ __forceinline__ uint32_t p_smem_at(int j) const
    {
        return at.base + L::OFFSET_P + buffer.i * TILE_BYTES + (j * GROUP + thread) * 16;
    }

    /* Releases the buffer for this warp's counterpart. */
    __device__ __forceinline__ void buffer_release(uint32_t barriers)
    {
        __syncwarp();
        if (lane == 0)
            mbarrier_arrive(warp_barrier(barriers));
        buffer.next();
    }

    /* Called by warpgroup 0. */
    __device__ __forceinline__ void send_p(const uint32_t (&x)[16])
    {
        mbarrier_wait(warp_barrier(at.p_empty), buffer.parity ^ 1);
#pragma unroll
        for (int j = 0; j < 4; j++)
            smem_store4(p_smem_at(j), x[4 * j], x[4 * j + 1], x[4 * j + 2], x[4 * j + 3]);
        buffer_release(at.p_full);
    }

    /* Called by warpgroup 1. */
    __device__ __forceinline__ void receive_p(uint32_t (&x)[16])
    {
        mbarrier_wait(warp_barrier(at.p_full), buffer.parity);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int4 v = smem_load4(p_smem_at(j));

            x[4 * j] = (uint32_t)v.x;
            x[4 * j + 1] = (uint32_t)v.y;
            x[4 * j + 2] = (uint32_t)v.z;
            x[4 * j + 3] = (uint32_t)v.w;
        }
        buffer_release(at.p_empty);
    }
};

template <int D, bool KEYS> struct bwd_d256 : consumer_warpgroup<D, KEYS> {
    typedef consumer_warpgroup<D, KEYS> C;
    using C::current_work_tile;
    using C::for_each_work_tile;
    using C::gemm_accumulate;
    using C::gemm_scores;
    using C::group;
    using C::HELD;
    using C::held_stage_release;
    using C::load_row_stats_regs;
    using C::load_stationary_regs;
    using C::next_tile;
    using C::p;
    using C::row_stats_of;
    using C::softmax_recompute;
    using C::stage_release;
    using C::stationary_release;
    using C::store_grad;

    p_handoff<D> weights = {this->at, this->thread, this->warp, this->lane};

    /* P in pairs of bfloat16. */
    __device__ __forceinline__ void pack_p(uint32_t (&pairs)[16], const float (&x)[32]) const
    {
#pragma unroll
        for (int i = 0; i < 16; i++)
            pairs[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
    }

    /* dS = P (Y - delta), in place of P. */
    __device__ __forceinline__ void make_ds_in_place(uint32_t (&x)[16], const float (&y)[32],
                                                     const float (&delta)[2], uint32_t s) const
    {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float v[4];

            row_stats_of(v, delta, s, 1, j);
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                uint32_t &w = x[2 * j + i / 2];
                const float *const dp = y + 4 * j + i;

                w = pack_bf16(__uint_as_float(w << 16) * (dp[0] - v[i]),
                              __uint_as_float(w & 0xffff0000u) * (dp[1] - v[i + 1]));
            }
        }
    }

    /* Warpgroup 0: softmax, and dV. */
    __device__ __forceinline__ void softmax_warpgroup(const work_tile &o)
    {
        enum { ACCUMULATORS = KEYS ? D / 2 : 1 };
        float sum[ACCUMULATORS], x[32], lse[2];
        uint32_t pairs[16], first[HELD];
        int steps = o.steps, here, held = NONE;

        load_row_stats_regs(lse, p.lse, o.first, o.head);
#pragma unroll
        for (int i = 0; i < ACCUMULATORS; i++)
            sum[i] = 0.0f;
        load_stationary_regs(first, 0);
        while (next_tile(true, 2, &steps, &here, &held)) {
            gemm_scores(x, first, here, 0);
            if constexpr (KEYS) {
                wgmma_wait<1>();
                held_stage_release(&held);
            }
            wgmma_wait<0>();
            wgmma_fence_operand(x);
            softmax_recompute(x, lse, here);
            pack_p(pairs, x);
            weights.send_p(pairs);
            if constexpr (KEYS) {
                gemm_accumulate(sum, pairs, here, 1);
                held = here;
            } else {
                stage_release(here);
            }
        }
        if constexpr (KEYS) {
            wgmma_wait<0>();
            held_stage_release(&held);
            wgmma_fence_operand(sum);
        }
        const work_tile done = current_work_tile();

        stationary_release();
        if constexpr (KEYS)
            store_grad(done, 1, sum, 1.0f);
    }

    /* Warpgroup 1: dS, and dQ or dK. */
    __device__ __forceinline__ void ds_warpgroup(const work_tile &o)
    {
        float sum[D / 2], y[32], delta[2];
        uint32_t x[16], none[1];
        int steps = o.steps, here, held = NONE;

        load_row_stats_regs(delta, p.delta, o.first, o.head);
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            sum[i] = 0.0f;
        while (next_tile(true, 2, &steps, &here, &held)) {
            gemm_scores(y, none, here, 1);
            wgmma_wait<1>();
            held_stage_release(&held);
            wgmma_wait<0>();
            wgmma_fence_operand(y);
            weights.receive_p(x);
            make_ds_in_place(x, y, delta, here);
            gemm_accumulate(sum, x, here, 0);
            held = here;
        }
        wgmma_wait<0>();
        held_stage_release(&held);
        wgmma_fence_operand(sum);

        const work_tile done = current_work_tile();

        stationary_release();
        store_grad(done, 0, sum, p.scale);
    }

    __device__ __forceinline__ void run()
    {
        if (group == 0)
            for_each_work_tile([&](const work_tile &o) { softmax_warpgroup(o); });
        else
            for_each_work_tile([&](const work_tile &o) { ds_warpgroup(o); });
    }
};

} // namespace

#endif /* D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_D256_CUH */
