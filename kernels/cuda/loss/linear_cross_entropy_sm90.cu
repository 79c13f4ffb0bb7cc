/* linear_cross_entropy_sm90.cu - softmax_exp.h on Hopper: wgmma.cuh, and powers of what comes out.
 */
#include <math_constants.h>

#include "cuda/common/wgmma.cuh"
#include "cuda/loss/softmax_exp.h"

namespace
{

DEVICE float power_of_two(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The largest, or the sum, over the four threads that share rows. */
template <class F> DEVICE float fold_four(float v, F f)
{
    v = f(v, __shfl_xor_sync(~0u, v, 1));
    return f(v, __shfl_xor_sync(~0u, v, 2));
}

struct powers : crew {
    static constexpr int COLUMNS = BN;
    static constexpr bool ADDS = false;

    struct args {
        const float *reference;
        d9di_xent_part *part;
        int64_t stride;
        void *p;
    };
    const args &x;
    int held_next = 4, held_row, held_column;

    __device__ __forceinline__ powers(const crew &w, const args &x) : crew(w), x(x) {}

    __device__ __forceinline__ bool holds() const { return held_next < 4; }

    __device__ __forceinline__ void store(const uint32_t *v, int i)
    {
        store_narrow(v, buffer(i), 0, x.p, held_row, held_column + i * 64, HALF);
    }
    __device__ __forceinline__ void step(const uint32_t (&held)[64])
    {
        switch (held_next++) {
        case 0: store(held, 0); break;
        case 1: store(held + 16, 1); break;
        case 2: store(held + 32, 2); break;
        case 3: store(held + 48, 3); break;
        }
    }

    /* Columns behind the last. */
    __device__ __forceinline__ void hide(float (&d)[128], int column)
    {
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
            if (column + 8 * j >= p.n) {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    d[4 * j + i] = -CUDART_INF_F;
            }
    }

    /* One of a thread's two rows: n, powers in place of logits, and their sum. */
    template <int ROW>
    __device__ __forceinline__ void raise(float (&d)[128], int row, int column, bool real)
    {
        constexpr float log2e = 1.4426950408889634f;
        float n = real ? x.reference[row] : CUDART_INF_F, most = -CUDART_INF_F, sum = 0.0f;

#pragma unroll
        for (int j = 0; j < BN / 8; j++)
            most = fmaxf(most, fmaxf(d[4 * j + 2 * ROW], d[4 * j + 2 * ROW + 1]));
        most = fold_four(most, largest()) * log2e;
        if (most > n + D9DI_XENT_SLACK)
            n = rintf(most);
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int i = 2 * ROW; i < 2 * ROW + 2; i++) {
                d[4 * j + i] = power_of_two(fmaf(d[4 * j + i], log2e, -n));
                sum += d[4 * j + i];
            }
        sum = fold_four(sum, plus());
        if (real && lane % 4 == 0)
            x.part[row * x.stride + column / BN] = {n, sum};
        if (n == CUDART_INF_F) { /* also where a logit is not finite */
#pragma unroll
            for (int j = 0; j < BN / 8; j++)
                d[4 * j + 2 * ROW] = d[4 * j + 2 * ROW + 1] = 0.0f;
        }
    }

    __device__ __forceinline__ void finish(float (&d)[128], uint32_t (&held)[64], int row,
                                           int column, int live, bool none)
    {
        const int r = warp * 16 + lane / 4;

        if (column + BN > p.n)
            hide(d, column);
        raise<0>(d, row + r, column, r < live);
        raise<1>(d, row + r + 8, column, r + 8 < live);
        hold(held, d, none);
        held_next = 0;
        held_row = row;
        held_column = column;
    }
};

} // namespace

bool d9di_xent_wgmma_takes(d9d_stream s, d9d_dtype t, int64_t rows, int64_t h, int64_t n)
{
    return wgmma_takes(s, t, rows, 1, n, h);
}

d9d_status d9di_xent_wgmma(d9d_stream s, const char *op, const d9di_xent_powers *c, void *p,
                           const void *hidden, const void *w)
{
    const job j = {NULL, NULL, c->rows, 1, (int)c->n, (int)c->h, 1};
    mapper map = {op, (encode *)s->encode_map, D9D_OK};
    maps m = {};

    map.operand(&m.a, hidden, c->rows, c->h, false, BM / 2);
    map.operand(&m.b, w, c->n, c->h, false, BN / 2);
    map.result(&m.c[0], D9D_BF16, p, c->rows, c->n);
    D9D_TRY(map.st);
    return wgmma<D9DI_DX, powers>(s, op, m, j, {c->reference, c->part, c->stride, p});
}
