/* gemm_swiglu_sm90.cu - gate and up projections with SwiGLU in the epilogue, on Hopper in bfloat16;
 * dense or grouped (experts). An epilogue on the mainloop of gemm_sm90_mainloop.cuh.
 *
 * Algorithm: B is two matrices, and a tile has the same 128 columns of gate = x Wg and of up = x
 * Wu. Both are stored, because the backward pass needs them, and so is y = silu(gate) up of the
 * rounded values. x is read once, and y needs no kernel of its own.
 *
 *     CUTLASS dual GEMM (example 45), Liger     here
 *     DualGemm: B0, B1                          m.b, m.b2: halves of the B tile
 *     LeftSiLUAndMul epilogue                   swiglu_epilogue::store_activation()
 *     StoreD0, StoreD1                          store_projection(): gate, up
 *     LigerSiLUMulFunction (Triton)             cuda/elementwise/swiglu.cuh: swiglu_of()
 *
 *     tile of a warpgroup    | gate, 128 columns | up, 128 columns |   x 64 rows
 *                                   \________ _________/
 *     three stores                    y = silu(gate) up, 128 columns
 *
 *     during the next tile's first 28 steps (TICKS), per half of 64 columns:
 *     tick 0  store gate   3  store up   6, 8  y   12  store up   15  store gate   18, 20  y
 *     warpgroup 1 is GROUP_DELAY = 3 steps later, so that one computes while the other feeds wgmma
 *
 * Measured (docs/benchmarks/kernels.md), one H200, held at the power limit: dense 676, experts 602
 * TFLOP/s (85 and 76 % of a dense GEMM).
 */
#include "cuda/gemm/gemm_swiglu_sm90.cuh"

namespace
{

struct swiglu_epilogue : spread_epilogue<swiglu_epilogue> {
    static constexpr int COLUMNS = BN / 2;
    static constexpr bool ADDS = false;

    struct args {
        void *gate, *up, *y; /* in m.c[0], m.c[1] and m.c[2] */
    };
    const args &x;

    __device__ __forceinline__ swiglu_epilogue(const consumer_warpgroup &w, const args &x)
        : spread_epilogue(w), x(x)
    {
    }

    /* Stores gate (WHAT 0) or up (1) of half of the tile's columns, 64. */
    template <int HALF_OF, int WHAT>
    __device__ __forceinline__ void store_projection(const uint32_t (&held)[64], int row,
                                                     int column, int live)
    {
        store_bf16_columns(held + 16 * HALF_OF + 32 * WHAT, out_buffer(WHAT), WHAT,
                           WHAT == 0 ? x.gate : x.up, row, column + 64 * HALF_OF, live);
    }

    /* y of 32 columns, four registers at a time to save registers; PART 1 then stores all 64. */
    template <int HALF_OF, int PART>
    __device__ __forceinline__ void store_activation(const uint32_t (&held)[64], int row,
                                                     int column, int live)
    {
        const uint32_t to = out_buffer(HALF_OF);

        if (PART == 0)
            wait_out_buffers<BUFFERS - 1>();
#pragma unroll
        for (int j = 2 * PART; j < 2 * PART + 2; j++) {
            uint32_t v[4];

#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t g = materialize(held[16 * HALF_OF + 4 * j + i]);
                const uint32_t u = materialize(held[32 + 16 * HALF_OF + 4 * j + i]);

                v[i] = pack_bf16(swiglu_of<bf16>(bf16_low(g), bf16_low(u)),
                                 swiglu_of<bf16>(bf16_high(g), bf16_high(u)));
            }
            stmatrix_x4(matrices_at(to, j), v);
        }
        if (PART == 1)
            tma_store_bf16(to, 2, x.y, row, column + 64 * HALF_OF, live);
    }

    /* This order alternates between the two output buffers. */
    __device__ __forceinline__ void epilogue_part(int i, const uint32_t (&held)[64], int row,
                                                  int column, int live)
    {
        switch (i) {
        case 0: store_projection<0, 0>(held, row, column, live); break;
        case 3: store_projection<0, 1>(held, row, column, live); break;
        case 6: store_activation<0, 0>(held, row, column, live); break;
        case 8: store_activation<0, 1>(held, row, column, live); break;
        case 12: store_projection<1, 1>(held, row, column, live); break;
        case 15: store_projection<1, 0>(held, row, column, live); break;
        case 18: store_activation<1, 0>(held, row, column, live); break;
        case 20: store_activation<1, 1>(held, row, column, live); break;
        }
    }
};

} // namespace

/* Below this the other kernels are faster. */
enum { MIN_ROWS = 2 * BM };

bool d9di_gemm_swiglu_sm90_supported(d9d_stream s, const d9d_gemm_glu_dims *n)
{
    return n->rows >= MIN_ROWS && wgmma_gemm_supported(s, D9DI_SLOW_SWIGLU, "gemm_swiglu", n->t,
                                                       n->rows, n->e, n->h, n->i);
}

/* A dense matrix is stored [I, H], which is the DGRAD form (transposed); an expert's is [H, I], the
 * FWD form. */
d9d_status d9di_gemm_swiglu_sm90(d9d_stream s, const d9d_gemm_glu_dims *n, void *y, void *gate,
                                 void *up, const void *x, const void *w_gate, const void *w_up)
{
    const bool dense = n->offset == NULL;
    const gemm_params p = {n->offset, NULL, n->rows, (int)n->e, (int)n->i, (int)n->h, 1};
    const int64_t rows = dense ? n->i : n->e * n->h, columns = dense ? n->h : n->i;
    tma_descriptor_encoder map = {"gemm_swiglu", (tensor_map_encode_fn *)s->tensor_map_encode,
                                  D9D_OK};
    tma_descriptors m = {};

    map.encode_operand(&m.a, x, n->rows, n->h, false, BM / 2);
    map.encode_operand(&m.b, w_gate, rows, columns, !dense, BN / 2);
    map.encode_operand(&m.b2, w_up, rows, columns, !dense, BN / 2);
    map.encode_output(&m.c[0], D9D_BF16, gate, n->rows, n->i);
    map.encode_output(&m.c[1], D9D_BF16, up, n->rows, n->i);
    map.encode_output(&m.c[2], D9D_BF16, y, n->rows, n->i);
    D9D_TRY(map.st);
    return dense ? launch_wgmma_gemm<D9DI_GROUPED_GEMM_DGRAD, swiglu_epilogue>(s, map.op, m, p,
                                                                               {gate, up, y})
                 : launch_wgmma_gemm<D9DI_GROUPED_GEMM_FWD, swiglu_epilogue>(s, map.op, m, p,
                                                                             {gate, up, y});
}
