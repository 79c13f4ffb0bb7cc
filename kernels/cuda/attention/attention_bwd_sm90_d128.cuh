/* attention_bwd_sm90_d128.cuh - attention's gradient on Hopper, heads of up to 128 features: each
 * crew has 64 cells of its own.  See attention_bwd_sm90.cu.
 */
#ifndef D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_D128_CUH
#define D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_D128_CUH

#include "cuda/attention/attention_bwd_sm90_mainloop.cuh"

namespace
{

template <int D, bool KEYS> struct apart : crew<D, KEYS> {
    typedef crew<D, KEYS> C;
    using C::add;
    using C::at;
    using C::clear_rows;
    using C::each_order;
    using C::group;
    using C::HELD;
    using C::keep;
    using C::load_numbers;
    using C::load_still;
    using C::mine;
    using C::multiply;
    using C::next;
    using C::p;
    using C::pair;
    using C::put;
    using C::release;
    using C::release_held;
    using C::release_still;
    using C::still_at;
    using C::take;
    using C::weigh;

    __device__ __forceinline__ void work(const order &o)
    {
        const bool any = o.cells > group * SIDE;
        const int still = o.first + group * SIDE;
        float a[D / 2], b[KEYS ? D / 2 : 1], x[32], y[32], lse[2], delta[2];
        uint32_t weights[16], slopes[16], first[HELD], second[HELD];
        int steps = o.steps, here, held = NONE;

        load_numbers(lse, p.lse, still, o.head);
        load_numbers(delta, p.delta, still, o.head);
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            a[i] = 0.0f;
#pragma unroll
        for (int i = 0; i < (KEYS ? D / 2 : 1); i++)
            b[i] = 0.0f;
        /* Slopes are kept of what is not there, too. */
        for (int i = 0; KEYS && any && i < 2; i++)
            clear_rows(still_at(i), 1, o.cells - group * SIDE);
        load_still(first, 0);
        load_still(second, 1);
        if (next(any, 2, &steps, &here, &held)) {
            multiply(x, first, here, 0);
            for (;;) {
                multiply(y, second, here, 1);
                product_wait<1>();
                product_taken(x);
                weigh(x, lse, here);
                product_wait<0>();
                product_taken(y);
                pair(weights, slopes, x, y, delta, here);
                if constexpr (KEYS)
                    add(b, weights, here, 1);
                add(a, slopes, here, 0);
                if constexpr (KEYS)
                    keep(slopes, here);
                held = here;
                if (!next(any, 2, &steps, &here, &held))
                    break;
                multiply(x, first, here, 0);
                product_wait<1>();
                release_held(&held);
            }
            product_wait<0>();
            release_held(&held);
        }
        product_taken(a);
        product_taken(b);
        finish(a, b);
    }

    /* Of queries, with slopes that are kept. */
    __device__ __forceinline__ void work_kept(const order &o)
    {
        const bool any = o.cells > group * SIDE;
        float a[D / 2], none[1] = {0.0f};
        uint32_t x[16];
        int steps = o.steps, here, held = NONE;

#pragma unroll
        for (int i = 0; i < D / 2; i++)
            a[i] = 0.0f;
        while (next(any, 1, &steps, &here, &held)) {
            take(x, here);
            add(a, x, here, 0);
            product_wait<0>();
            release(here);
        }
        product_taken(a);
        finish(a, none);
    }

    __device__ __forceinline__ void finish(const float (&a)[D / 2],
                                           const float (&b)[KEYS ? D / 2 : 1]) const
    {
        const order o = mine();

        release_still();
        put(o, 0, a, p.scale);
        if constexpr (KEYS)
            put(o, 1, b, 1.0f);
    }

    __device__ __forceinline__ void run()
    {
        each_order([&](const order &o) {
            if constexpr (!KEYS)
                if (is_kept<D, KEYS>(p, o)) {
                    work_kept(o);
                    return;
                }
            work(o);
        });
    }
};

} // namespace

#endif /* D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_D128_CUH */
