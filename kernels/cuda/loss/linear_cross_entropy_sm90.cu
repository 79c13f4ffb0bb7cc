/* linear_cross_entropy_sm90.cu - softmax_exp.h on Hopper: an epilogue for cuda/gemm/gemm_sm90.cuh
 * that exponentiates the logits. */
#include <math_constants.h>

#include "cuda/gemm/gemm_sm90.cuh"
#include "cuda/loss/softmax_exp.h"

namespace
{

DEVICE float exp2_approx(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The maximum, or the sum, over the four threads that share rows. */
template <class F> DEVICE float quad_reduce(float v, F f)
{
    v = f(v, __shfl_xor_sync(~0u, v, 1));
    return f(v, __shfl_xor_sync(~0u, v, 2));
}

struct softmax_exp_epilogue : consumer_warpgroup {
    static constexpr int COLUMNS = BN;
    static constexpr bool ADDS = false;

    struct args {
        const float *reference;
        d9di_softmax_exp_part *part;
        int64_t stride;
        void *p;
    };
    const args &x;
    int held_next = 4, held_row, held_column;

    __device__ __forceinline__ softmax_exp_epilogue(const consumer_warpgroup &w, const args &x)
        : consumer_warpgroup(w), x(x)
    {
    }

    __device__ __forceinline__ bool epilogue_pending() const { return held_next < 4; }

    __device__ __forceinline__ void store_columns(const uint32_t *v, int i)
    {
        store_bf16_columns(v, out_buffer(i), 0, x.p, held_row, held_column + i * 64, HALF);
    }
    __device__ __forceinline__ void epilogue_step(const uint32_t (&held)[64])
    {
        switch (held_next++) {
        case 0: store_columns(held, 0); break;
        case 1: store_columns(held + 16, 1); break;
        case 2: store_columns(held + 32, 2); break;
        case 3: store_columns(held + 48, 3); break;
        }
    }

    /* Columns beyond the last. */
    __device__ __forceinline__ void mask_columns(float (&d)[128], int column)
    {
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
            if (column + 8 * j >= p.n) {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    d[4 * j + i] = -CUDART_INF_F;
            }
    }

    /* One of a thread's two rows: n, the exponentials in place of the logits, and their sum. */
    template <int ROW>
    __device__ __forceinline__ void exponentiate_row(float (&d)[128], int row, int column,
                                                     bool real)
    {
        constexpr float log2e = 1.4426950408889634f;
        float n = real ? x.reference[row] : CUDART_INF_F, max_logit = -CUDART_INF_F, sum = 0.0f;

#pragma unroll
        for (int j = 0; j < BN / 8; j++)
            max_logit = fmaxf(max_logit, fmaxf(d[4 * j + 2 * ROW], d[4 * j + 2 * ROW + 1]));
        max_logit = quad_reduce(max_logit, max_op()) * log2e;
        if (max_logit > n + D9DI_SOFTMAX_EXP_SLACK)
            n = rintf(max_logit);
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int i = 2 * ROW; i < 2 * ROW + 2; i++) {
                d[4 * j + i] = exp2_approx(fmaf(d[4 * j + i], log2e, -n));
                sum += d[4 * j + i];
            }
        sum = quad_reduce(sum, plus());
        if (real && lane % 4 == 0)
            x.part[row * x.stride + column / BN] = {n, sum};
        if (n == CUDART_INF_F) { /* also where a logit is not finite */
#pragma unroll
            for (int j = 0; j < BN / 8; j++)
                d[4 * j + 2 * ROW] = d[4 * j + 2 * ROW + 1] = 0.0f;
        }
    }

    __device__ __forceinline__ void epilogue_begin(float (&d)[128], uint32_t (&held)[64], int row,
                                                   int column, int live, bool none)
    {
        const int r = warp * 16 + lane / 4;

        if (column + BN > p.n)
            mask_columns(d, column);
        exponentiate_row<0>(d, row + r, column, r < live);
        exponentiate_row<1>(d, row + r + 8, column, r + 8 < live);
        pack_accumulators(held, d, none);
        held_next = 0;
        held_row = row;
        held_column = column;
    }
};

} // namespace

bool d9di_softmax_exp_sm90_supported(d9d_stream s, d9d_dtype t, int64_t rows, int64_t h, int64_t n)
{
    enum { LEAST = 8 }; /* fewer are what is left of a vocabulary */

    return n >= LEAST && wgmma_gemm_supported(s, D9DI_SLOW_HEAD, "cross-entropy", t, rows, 1, h, n);
}

d9d_status d9di_softmax_exp_sm90(d9d_stream s, const char *op, const d9di_softmax_exp_args *c,
                                 void *p, const void *hidden, const void *w)
{
    const gemm_params j = {NULL, NULL, c->rows, 1, (int)c->n, (int)c->h, 1};
    tma_descriptor_encoder map = {op, (tensor_map_encode_fn *)s->tensor_map_encode, D9D_OK};
    tma_descriptors m = {};

    map.encode_operand(&m.a, hidden, c->rows, c->h, false, BM / 2);
    map.encode_operand(&m.b, w, c->n, c->h, false, BN / 2);
    map.encode_output(&m.c[0], D9D_BF16, p, c->rows, c->n);
    D9D_TRY(map.st);
    return launch_wgmma_gemm<D9DI_GROUPED_GEMM_DGRAD, softmax_exp_epilogue>(
        s, op, m, j, {c->reference, c->part, c->stride, p});
}
