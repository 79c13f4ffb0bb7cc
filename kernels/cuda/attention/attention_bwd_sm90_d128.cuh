/* attention_bwd_sm90_d128.cuh - attention backward on Hopper, heads of up to 128 features: each
 * consumer warpgroup has 64 stationary tokens of its own. See attention_bwd_sm90.cu. */
#ifndef D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_D128_CUH
#define D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_D128_CUH

#include "cuda/attention/attention_bwd_sm90_mainloop.cuh"

namespace
{

template <int D, bool KEYS> struct bwd_d128 : consumer_warpgroup<D, KEYS> {
    typedef consumer_warpgroup<D, KEYS> C;
    using C::at;
    using C::clear_rows;
    using C::current_work_tile;
    using C::for_each_work_tile;
    using C::gemm_accumulate;
    using C::gemm_scores;
    using C::group;
    using C::HELD;
    using C::held_stage_release;
    using C::load_ds_transposed;
    using C::load_row_stats_regs;
    using C::load_stationary_regs;
    using C::make_p_ds;
    using C::next_tile;
    using C::p;
    using C::softmax_recompute;
    using C::stage_release;
    using C::stationary_release;
    using C::stationary_tile_at;
    using C::store_ds;
    using C::store_grad;

    __device__ __forceinline__ void compute_tile(const work_tile &o)
    {
        const bool any = o.tokens > group * SIDE;
        const int still = o.first + group * SIDE;
        float a[D / 2], b[KEYS ? D / 2 : 1], x[32], y[32], lse[2], delta[2];
        uint32_t weights[16], ds[16], first[HELD], second[HELD];
        int steps = o.steps, here, held = NONE;

        load_row_stats_regs(lse, p.lse, still, o.head);
        load_row_stats_regs(delta, p.delta, still, o.head);
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            a[i] = 0.0f;
#pragma unroll
        for (int i = 0; i < (KEYS ? D / 2 : 1); i++)
            b[i] = 0.0f;
        /* Missing keys are cleared too, because the dS of their rows is stored. */
        for (int i = 0; KEYS && any && i < 2; i++)
            clear_rows(stationary_tile_at(i), 1, o.tokens - group * SIDE);
        load_stationary_regs(first, 0);
        load_stationary_regs(second, 1);
        if (next_tile(any, 2, &steps, &here, &held)) {
            gemm_scores(x, first, here, 0);
            for (;;) {
                gemm_scores(y, second, here, 1);
                wgmma_wait<1>();
                wgmma_fence_operand(x);
                softmax_recompute(x, lse, here);
                wgmma_wait<0>();
                wgmma_fence_operand(y);
                make_p_ds(weights, ds, x, y, delta, here);
                if constexpr (KEYS)
                    gemm_accumulate(b, weights, here, 1);
                gemm_accumulate(a, ds, here, 0);
                if constexpr (KEYS)
                    store_ds(ds, here);
                held = here;
                if (!next_tile(any, 2, &steps, &here, &held))
                    break;
                gemm_scores(x, first, here, 0);
                wgmma_wait<1>();
                held_stage_release(&held);
            }
            wgmma_wait<0>();
            held_stage_release(&held);
        }
        wgmma_fence_operand(a);
        wgmma_fence_operand(b);
        epilogue(a, b);
    }

    /* dQ of a head whose dS the first launch stored: one GEMM a tile. */
    __device__ __forceinline__ void compute_tile_from_ds(const work_tile &o)
    {
        const bool any = o.tokens > group * SIDE;
        float a[D / 2], none[1] = {0.0f};
        uint32_t x[16];
        int steps = o.steps, here, held = NONE;

#pragma unroll
        for (int i = 0; i < D / 2; i++)
            a[i] = 0.0f;
        while (next_tile(any, 1, &steps, &here, &held)) {
            load_ds_transposed(x, here);
            gemm_accumulate(a, x, here, 0);
            wgmma_wait<0>();
            stage_release(here);
        }
        wgmma_fence_operand(a);
        epilogue(a, none);
    }

    __device__ __forceinline__ void epilogue(const float (&a)[D / 2],
                                             const float (&b)[KEYS ? D / 2 : 1]) const
    {
        const work_tile o = current_work_tile();

        stationary_release();
        store_grad(o, 0, a, p.scale);
        if constexpr (KEYS)
            store_grad(o, 1, b, 1.0f);
    }

    __device__ __forceinline__ void run()
    {
        for_each_work_tile([&](const work_tile &o) {
            if constexpr (!KEYS)
                if (has_stored_ds<D, KEYS>(p, o)) {
                    compute_tile_from_ds(o);
                    return;
                }
            compute_tile(o);
        });
    }
};

} // namespace

#endif /* D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_D128_CUH */
