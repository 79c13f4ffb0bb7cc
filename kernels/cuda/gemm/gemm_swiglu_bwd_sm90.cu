/* gemm_swiglu_bwd_sm90.cu - dgrad of the down projection with the backward of SwiGLU in the
 * epilogue, on Hopper in bfloat16; dense or grouped (experts). On the mainloop of
 * gemm_sm90_mainloop.cuh.
 *
 * Algorithm: dh = dout Wd' is computed in tiles of 128 x 256, rounded to bfloat16 and never stored.
 * The epilogue loads gate and up, and stores dgate and dup:
 *
 *     dup = dh gate s        dgate = dh up s (1 + gate (1 - s))        s = sigmoid(gate)
 *
 *     CUTLASS, Liger                            here
 *     epilogue visitor (EVT), AuxLoad           load_gate_up(): TMA into the output buffers
 *     TMA store of D and aux outputs            store_gradients()
 *     LigerSiLUMulFunction.backward (Triton)    swiglu_bwd_columns(), swiglu_bwd_of()
 *
 *     a quarter of the tile (64 columns) takes 7 of the next tile's first 28 steps:
 *
 *     tick   0              4                    5                      7
 *            TMA load       first 32 columns,    other 32 columns,      next quarter
 *            gate, up  ...  in place             TMA store dgate, dup
 *            `------------- two buffers of 64 x 64 bfloat16 ----------'
 *
 * Measured (docs/benchmarks/kernels.md), one H200, held at the power limit: dense 550, experts 450
 * TFLOP/s (69 and 57 % of a dense GEMM).
 */
#include "cuda/gemm/gemm_swiglu_sm90.cuh"

namespace
{

struct swiglu_bwd_epilogue : spread_epilogue<swiglu_bwd_epilogue> {
    static constexpr int COLUMNS = BN;
    static constexpr bool ADDS = false;

    struct args {
        void *dgate, *dup; /* in m.c[0] and m.c[1]; gate and up are in m.c[2] and m.c[3] */
    };
    const args &x;
    uint32_t parity = 0;

    __device__ __forceinline__ swiglu_bwd_epilogue(const consumer_warpgroup &w, const args &x)
        : spread_epilogue(w), x(x)
    {
    }

    /* Loads gate and up of 64 columns into the two output buffers. */
    __device__ __forceinline__ void load_gate_up(int row, int at)
    {
        const uint32_t b = this->at.epilogue_full + 8 * group;

        if (thread != 0)
            return;
        tma_store_wait_read<0>();
        if (at >= p.n) { /* beyond the last column */
            mbarrier_arrive(b);
            return;
        }
        mbarrier_arrive_expect_tx(b, 2 * CHUNK);
        tma_load(out_buffer(0), &m.c[2], b, at, row);
        tma_load(out_buffer(1), &m.c[3], b, at, row);
    }

    /* 32 columns, in place: a warp reads and writes the same rows of all three arrays. */
    template <int PART> __device__ __forceinline__ void swiglu_bwd_columns(const uint32_t *dh)
    {
        const uint32_t gates = out_buffer(0), ups = out_buffer(1);

        if (PART == 0) {
            mbarrier_wait(this->at.epilogue_full + 8 * group, parity);
            parity ^= 1;
        }
#pragma unroll
        for (int j = 2 * PART; j < 2 * PART + 2; j++) {
            uint32_t g[4], u[4];

            ldmatrix_x4(g, matrices_at(gates, j));
            ldmatrix_x4(u, matrices_at(ups, j));
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t d = materialize(dh[4 * j + i]);
                float g0, u0, g1, u1;

                swiglu_bwd_of<bf16>(g0, u0, bf16_low(d), bf16_low(g[i]), bf16_low(u[i]));
                swiglu_bwd_of<bf16>(g1, u1, bf16_high(d), bf16_high(g[i]), bf16_high(u[i]));
                g[i] = pack_bf16(g0, g1);
                u[i] = pack_bf16(u0, u1);
            }
            stmatrix_x4(matrices_at(gates, j), g);
            stmatrix_x4(matrices_at(ups, j), u);
        }
    }

    /* The same for a quarter of the tile's columns. The switch keeps register indices constant. */
    template <int PART>
    __device__ __forceinline__ void swiglu_bwd_columns(int quarter, const uint32_t (&held)[64])
    {
        switch (quarter) {
        case 0: swiglu_bwd_columns<PART>(held); break;
        case 1: swiglu_bwd_columns<PART>(held + 16); break;
        case 2: swiglu_bwd_columns<PART>(held + 32); break;
        case 3: swiglu_bwd_columns<PART>(held + 48); break;
        }
    }

    /* Stores dgate and dup of the 64 columns. */
    __device__ __forceinline__ void store_gradients(int row, int at, int live)
    {
        const uint32_t gates = out_buffer(0), ups = out_buffer(1);

        fence_proxy_async();
        named_barrier_sync(1 + group, GROUP);
        if (live < HALF) {
            store_rows(gates, x.dgate, row, at, live);
            store_rows(ups, x.dup, row, at, live);
            named_barrier_sync(1 + group, GROUP); /* before the buffers are loaded again */
        } else if (thread == 0 && at < p.n) {
            tma_store(&m.c[0], gates, at, row);
            tma_store(&m.c[1], ups, at, row);
        }
        if (thread == 0)
            tma_store_commit();
    }

    __device__ __forceinline__ void epilogue_part(int i, const uint32_t (&held)[64], int row,
                                                  int column, int live)
    {
        constexpr int EACH = TICKS / 4;
        const int at = column + i / EACH * 64;

        switch (i % EACH) {
        case 0: load_gate_up(row, at); break;
        case 4: swiglu_bwd_columns<0>(i / EACH, held); break;
        case 5:
            swiglu_bwd_columns<1>(i / EACH, held);
            store_gradients(row, at, live);
            break;
        }
    }
};

} // namespace

d9d_status d9di_gemm_swiglu_bwd_sm90(d9d_stream s, const d9d_gemm_glu_dims *n, void *dgate,
                                     void *dup, const void *dy, const void *w, const void *gate,
                                     const void *up)
{
    const bool dense = n->offset == NULL;
    const gemm_params p = {n->offset, NULL, n->rows, (int)n->e, (int)n->i, (int)n->h, 1};
    const int64_t rows = dense ? n->h : n->e * n->i, columns = dense ? n->i : n->h;
    tma_descriptor_encoder map = {"gemm_swiglu_bwd", (tensor_map_encode_fn *)s->tensor_map_encode,
                                  D9D_OK};
    tma_descriptors m = {};

    map.encode_operand(&m.a, dy, n->rows, n->h, false, BM / 2);
    map.encode_operand(&m.b, w, rows, columns, dense, BN / 2);
    map.encode_output(&m.c[0], D9D_BF16, dgate, n->rows, n->i);
    map.encode_output(&m.c[1], D9D_BF16, dup, n->rows, n->i);
    map.encode_output(&m.c[2], D9D_BF16, gate, n->rows, n->i);
    map.encode_output(&m.c[3], D9D_BF16, up, n->rows, n->i);
    D9D_TRY(map.st);
    return dense ? launch_wgmma_gemm<D9DI_GROUPED_GEMM_FWD, swiglu_bwd_epilogue>(s, map.op, m, p,
                                                                                 {dgate, dup})
                 : launch_wgmma_gemm<D9DI_GROUPED_GEMM_DGRAD, swiglu_bwd_epilogue>(s, map.op, m, p,
                                                                                   {dgate, dup});
}
