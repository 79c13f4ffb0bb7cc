/* attention_bwd_sm90_d256.cuh - attention's gradient on Hopper, heads of more than 128
 * features: both crews have the same 64 cells.  See attention_bwd_sm90.cu.
 *
 * A tile of 64 x 64 scores, P and dS, and what is added by them:
 *
 *     crew 0    X = still[0] moving[0]'    P = exp(scale X - lse)    of keys dV += P' dO
 *     crew 1    Y = still[1] moving[1]'    dS = P (Y - delta)        dQ or dK += dS moving[0]
 *
 * so that each has 64 x D sums.  A thread of crew 1 needs of P what its like in crew 0 has, rounded
 * to bfloat16: each gives 64 bytes in one of BUFFERS, and warps wait for their like alone.
 */
#ifndef D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_D256_CUH
#define D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_D256_CUH

#include "cuda/attention/attention_bwd_sm90_mainloop.cuh"

namespace
{

/* The way of weights from crew 0 to crew 1, as one of their threads has it. */
template <int D> struct passage {
    typedef layout<D> L;
    const place &at;
    int thread, warp, lane;
    turn<BUFFERS> buffer = {0, 0};

    /* What is this warp's of a kind of barrier, given or taken; this thread's sixteen bytes, number
     * j of four, of the buffer. */
    __device__ __forceinline__ uint32_t mine_of(uint32_t barriers) const
    {
        return barriers + 8 * (buffer.i * (GROUP / WARP) + warp);
    }
    __device__ __forceinline__ uint32_t weights_at(int j) const
    {
        return at.base + L::AT_WEIGHTS + buffer.i * TILE_BYTES + (j * GROUP + thread) * 16;
    }

    /* This warp has done with the buffer. */
    __device__ __forceinline__ void pass(uint32_t barriers)
    {
        __syncwarp();
        if (lane == 0)
            barrier_arrive(mine_of(barriers));
        buffer.next();
    }

    /* To crew 1. */
    __device__ __forceinline__ void give(const uint32_t (&x)[16])
    {
        barrier_wait(mine_of(at.taken), buffer.parity ^ 1);
#pragma unroll
        for (int j = 0; j < 4; j++)
            shared_store4(weights_at(j), x[4 * j], x[4 * j + 1], x[4 * j + 2], x[4 * j + 3]);
        pass(at.given);
    }

    /* From crew 0. */
    __device__ __forceinline__ void receive(uint32_t (&x)[16])
    {
        barrier_wait(mine_of(at.given), buffer.parity);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int4 v = shared_load4(weights_at(j));

            x[4 * j] = (uint32_t)v.x;
            x[4 * j + 1] = (uint32_t)v.y;
            x[4 * j + 2] = (uint32_t)v.z;
            x[4 * j + 3] = (uint32_t)v.w;
        }
        pass(at.taken);
    }
};

template <int D, bool KEYS> struct together : crew<D, KEYS> {
    typedef crew<D, KEYS> C;
    using C::add;
    using C::each_order;
    using C::group;
    using C::HELD;
    using C::load_numbers;
    using C::load_still;
    using C::mine;
    using C::multiply;
    using C::next;
    using C::numbers_of;
    using C::p;
    using C::put;
    using C::release;
    using C::release_held;
    using C::release_still;
    using C::weigh;

    passage<D> weights = {this->at, this->thread, this->warp, this->lane};

    /* Pairs of P. */
    __device__ __forceinline__ void round(uint32_t (&pairs)[16], const float (&x)[32]) const
    {
#pragma unroll
        for (int i = 0; i < 16; i++)
            pairs[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
    }

    /* Of P, and Y: dS in its place. */
    __device__ __forceinline__ void slope(uint32_t (&x)[16], const float (&y)[32],
                                          const float (&delta)[2], uint32_t s) const
    {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float v[4];

            numbers_of(v, delta, s, 1, j);
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                uint32_t &w = x[2 * j + i / 2];
                const float *const dp = y + 4 * j + i;

                w = pack_bf16(__uint_as_float(w << 16) * (dp[0] - v[i]),
                              __uint_as_float(w & 0xffff0000u) * (dp[1] - v[i + 1]));
            }
        }
    }

    /* Crew 0. */
    __device__ __forceinline__ void weigh_all(const order &o)
    {
        enum { SUMS = KEYS ? D / 2 : 1 };
        float sum[SUMS], x[32], lse[2];
        uint32_t pairs[16], first[HELD];
        int steps = o.steps, here, held = NONE;

        load_numbers(lse, p.lse, o.first, o.head);
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            sum[i] = 0.0f;
        load_still(first, 0);
        while (next(true, 2, &steps, &here, &held)) {
            multiply(x, first, here, 0);
            if constexpr (KEYS) {
                product_wait<1>();
                release_held(&held);
            }
            product_wait<0>();
            product_taken(x);
            weigh(x, lse, here);
            round(pairs, x);
            weights.give(pairs);
            if constexpr (KEYS) {
                add(sum, pairs, here, 1);
                held = here;
            } else {
                release(here);
            }
        }
        if constexpr (KEYS) {
            product_wait<0>();
            release_held(&held);
            product_taken(sum);
        }
        const order done = mine();

        release_still();
        if constexpr (KEYS)
            put(done, 1, sum, 1.0f);
    }

    /* Crew 1. */
    __device__ __forceinline__ void slope_all(const order &o)
    {
        float sum[D / 2], y[32], delta[2];
        uint32_t x[16], none[1];
        int steps = o.steps, here, held = NONE;

        load_numbers(delta, p.delta, o.first, o.head);
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            sum[i] = 0.0f;
        while (next(true, 2, &steps, &here, &held)) {
            multiply(y, none, here, 1);
            product_wait<1>();
            release_held(&held);
            product_wait<0>();
            product_taken(y);
            weights.receive(x);
            slope(x, y, delta, here);
            add(sum, x, here, 0);
            held = here;
        }
        product_wait<0>();
        release_held(&held);
        product_taken(sum);

        const order done = mine();

        release_still();
        put(done, 0, sum, p.scale);
    }

    __device__ __forceinline__ void run()
    {
        if (group == 0)
            each_order([&](const order &o) { weigh_all(o); });
        else
            each_order([&](const order &o) { slope_all(o); });
    }
};

} // namespace

#endif /* D9DI_CUDA_ATTENTION_ATTENTION_BWD_SM90_D256_CUH */
