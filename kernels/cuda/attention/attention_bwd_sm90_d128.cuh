/* attention_bwd_sm90_d128.cuh - attention backward on Hopper, dK and dV of heads of up to 128
 * features: each consumer warpgroup has 64 stationary keys of its own. See attention_bwd_sm90.cu.
 */
#ifndef D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_D128_CUH
#define D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_D128_CUH

#include "cuda/attention/attention_bwd_sm90_mainloop.cuh"

namespace
{

template <class L> struct dkv_d128 : consumer_warpgroup<L> {
    typedef consumer_warpgroup<L> C;
    using C::clear_rows;
    using C::current_work_tile;
    using C::for_each_work_tile;
    using C::gemm_accumulate;
    using C::group;
    using C::held_stage_release;
    using C::make_p_ds;
    using C::next_tile;
    using C::p;
    using C::softmax_recompute;
    using C::stationary_tile_at;
    using C::store_ds;
    using C::sum_begin;
    using C::sum_end;
    using C::work_release;

    __device__ __forceinline__ void compute_tile(const work_tile &o)
    {
        const bool any = o.tokens > group * SIDE;
        float dk[L::FEATURES / 2], dv[L::VALUE_FEATURES / 2], x[32], y[32];
        uint32_t weights[16], ds[16];
        int steps = o.steps, here, held = NONE;

        sum_begin(o, 0, dk);
        sum_begin(o, 1, dv);
        /* Missing values are cleared too, because the dS of their rows is stored. */
        if (any)
            clear_rows(stationary_tile_at(1), L::VALUE_SLABS, o.tokens - group * SIDE);
        if (next_tile(any, &steps, &here, &held)) {
            C::template gemm_scores<0>(x, here);
            for (;;) {
                C::template gemm_scores<1>(y, here);
                wgmma_wait<1>();
                wgmma_fence_operand(x);
                softmax_recompute(x, here);
                wgmma_wait<0>();
                wgmma_fence_operand(y);
                make_p_ds(weights, ds, x, y, here);
                gemm_accumulate(dv, weights, here, 1);
                gemm_accumulate(dk, ds, here, 0);
                store_ds(ds, here);
                held = here;
                if (!next_tile(any, &steps, &here, &held))
                    break;
                C::template gemm_scores<0>(x, here);
                wgmma_wait<1>();
                held_stage_release(&held);
            }
            wgmma_wait<0>();
            held_stage_release(&held);
        }
        wgmma_fence_operand(dk);
        wgmma_fence_operand(dv);
        const work_tile done = current_work_tile();

        work_release();
        sum_end(done, 0, dk, p.scale);
        sum_end(done, 1, dv, 1.0f);
    }

    __device__ __forceinline__ void run()
    {
        for_each_work_tile([&](const work_tile &o) { compute_tile(o); });
    }
};

} // namespace

#endif /* D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_D128_CUH */
