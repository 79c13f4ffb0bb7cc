/* attention_bwd_sm90_dq.cuh - attention backward on Hopper, dQ = scale dS K from the dS in scratch:
 * each consumer warpgroup has 64 stationary queries of its own. See attention_bwd_sm90.cu. */
#ifndef D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_DQ_CUH
#define D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_DQ_CUH

#include "cuda/attention/attention_bwd_sm90_mainloop.cuh"

namespace
{

template <class L> struct dq_any : consumer_warpgroup<L> {
    typedef consumer_warpgroup<L> C;
    using C::current_work_tile;
    using C::for_each_work_tile;
    using C::gemm_accumulate;
    using C::group;
    using C::load_ds_transposed;
    using C::next_tile;
    using C::p;
    using C::stage_release;
    using C::sum_begin;
    using C::sum_end;
    using C::work_release;

    __device__ __forceinline__ void compute_tile(const work_tile &o)
    {
        const bool any = o.tokens > group * SIDE;
        float dq[L::FEATURES / 2];
        uint32_t x[16];
        int steps = o.steps, here, held = NONE;

        sum_begin(o, 0, dq);
        while (next_tile(any, &steps, &here, &held)) {
            load_ds_transposed(x, here);
            gemm_accumulate(dq, x, here, 0);
            wgmma_wait<0>();
            stage_release(here);
        }
        wgmma_fence_operand(dq);
        const work_tile done = current_work_tile();

        work_release();
        sum_end(done, 0, dq, p.scale);
    }

    __device__ __forceinline__ void run()
    {
        for_each_work_tile([&](const work_tile &o) { compute_tile(o); });
    }
};

} // namespace

#endif /* D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_DQ_CUH */
