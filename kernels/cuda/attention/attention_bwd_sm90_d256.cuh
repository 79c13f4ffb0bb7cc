/* attention_bwd_sm90_d256.cuh - attention backward on Hopper, dK and dV of heads of more than 128
 * features: both consumer warpgroups share the same 64 stationary keys. See attention_bwd_sm90.cu.
 *
 * A tile of 64 x 64 scores, P and dS, and the sums:
 *
 *     warpgroup 0    X = K Q'     P = exp(scale X - lse)    dV += P dO
 *     warpgroup 1    Y = V dO'    dS = P (Y - delta)        dK += dS Q
 *
 * so that each warpgroup has the accumulators of one sum. A thread of warpgroup 1 needs the P of
 * the same thread of warpgroup 0, rounded to bfloat16. P is passed in shared memory, 64 bytes a
 * thread, double-buffered (BUFFERS); a warp waits only for its counterpart.
 */
#ifndef D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_D256_CUH
#define D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_D256_CUH

#include "cuda/attention/attention_bwd_sm90_mainloop.cuh"

namespace
{

/* Hands P from warpgroup 0 to warpgroup 1: the view of one thread. */
template <class L> struct p_handoff {
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

template <class L> struct dkv_d256 : consumer_warpgroup<L> {
    typedef consumer_warpgroup<L> C;
    using C::clear_rows;
    using C::current_work_tile;
    using C::for_each_work_tile;
    using C::gemm_accumulate;
    using C::group;
    using C::held_stage_release;
    using C::next_tile;
    using C::p;
    using C::row_stats_of;
    using C::softmax_recompute;
    using C::stationary_tile_at;
    using C::store_ds;
    using C::sum_begin;
    using C::sum_end;
    using C::work_release;

    p_handoff<L> weights = {this->at, this->thread, this->warp, this->lane};

    /* P in pairs of bfloat16. */
    __device__ __forceinline__ void pack_p(uint32_t (&pairs)[16], const float (&x)[32]) const
    {
#pragma unroll
        for (int i = 0; i < 16; i++)
            pairs[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
    }

    /* dS = P (Y - delta), in place of P. */
    __device__ __forceinline__ void make_ds_in_place(uint32_t (&x)[16], const float (&y)[32],
                                                     uint32_t s) const
    {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float2 delta = row_stats_of(s, 1, j);

#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                uint32_t &w = x[2 * j + i / 2];
                const float *const dp = y + 4 * j + i;

                w = pack_bf16(__uint_as_float(w << 16) * (dp[0] - delta.x),
                              __uint_as_float(w & 0xffff0000u) * (dp[1] - delta.y));
            }
        }
    }

    /* Warpgroup 0: softmax, and dV. */
    __device__ __forceinline__ void softmax_warpgroup(const work_tile &o)
    {
        float dv[L::VALUE_FEATURES / 2], x[32];
        uint32_t pairs[16];
        int steps = o.steps, here, held = NONE;

        sum_begin(o, 1, dv);
        while (next_tile(true, &steps, &here, &held)) {
            C::template gemm_scores<0>(x, here);
            wgmma_wait<1>();
            held_stage_release(&held);
            wgmma_wait<0>();
            wgmma_fence_operand(x);
            softmax_recompute(x, here);
            pack_p(pairs, x);
            weights.send_p(pairs);
            gemm_accumulate(dv, pairs, here, 1);
            held = here;
        }
        wgmma_wait<0>();
        held_stage_release(&held);
        wgmma_fence_operand(dv);
        const work_tile done = current_work_tile();

        work_release();
        sum_end(done, 1, dv, 1.0f);
    }

    /* Warpgroup 1: dS, and dK. */
    __device__ __forceinline__ void ds_warpgroup(const work_tile &o)
    {
        float dk[L::FEATURES / 2], y[32];
        uint32_t x[16];
        int steps = o.steps, here, held = NONE;

        sum_begin(o, 0, dk);
        clear_rows(stationary_tile_at(1), L::VALUE_SLABS, o.tokens); /* as in dkv_d128 */
        while (next_tile(true, &steps, &here, &held)) {
            C::template gemm_scores<1>(y, here);
            wgmma_wait<1>();
            held_stage_release(&held);
            wgmma_wait<0>();
            wgmma_fence_operand(y);
            weights.receive_p(x);
            make_ds_in_place(x, y, here);
            gemm_accumulate(dk, x, here, 0);
            store_ds(x, here);
            held = here;
        }
        wgmma_wait<0>();
        held_stage_release(&held);
        wgmma_fence_operand(dk);
        const work_tile done = current_work_tile();

        work_release();
        sum_end(done, 0, dk, p.scale);
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
