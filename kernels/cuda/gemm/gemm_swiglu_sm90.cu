/* gemm_swiglu_sm90.cu - products with SwiGLU in their end on Hopper: wgmma.cuh.
 *
 * A tile has the same 128 columns of the gate and of the up product; both are stored, and y of what
 * was rounded.
 */
#include "cuda/gemm/gemm_swiglu_sm90.cuh"

namespace
{

struct swiglu_epilogue : spread_epilogue<swiglu_epilogue> {
    static constexpr int COLUMNS = BN / 2;
    static constexpr bool ADDS = false;

    struct args {
        void *gate, *up, *y; /* c[0], c[1] and c[2] of the maps */
    };
    const args &x;

    __device__ __forceinline__ swiglu_epilogue(const consumer_warpgroup &w, const args &x)
        : spread_epilogue(w), x(x)
    {
    }

    /* Gate or up of 64 columns, which are half of the tile's. */
    template <int HALF_OF, int WHAT>
    __device__ __forceinline__ void store_projection(const uint32_t (&held)[64], int row,
                                                     int column, int live)
    {
        store_bf16_columns(held + 16 * HALF_OF + 32 * WHAT, out_buffer(WHAT), WHAT,
                           WHAT == 0 ? x.gate : x.up, row, column + 64 * HALF_OF, live);
    }

    /* y of 32 of them, four registers at a time, since there are few; the last sends all 64. */
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

    /* In an order that takes the buffers in turn. */
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

/* Of few rows other ways are faster. */
enum { MIN_ROWS = 2 * BM };

bool d9di_gemm_swiglu_sm90_supported(d9d_stream s, const d9d_gemm_swiglu_dims *n)
{
    return n->rows >= MIN_ROWS && wgmma_gemm_supported(s, n->t, n->rows, n->e, n->h, n->i);
}

/* A matrix is [H, I] in the sense of FORM Y, or turned. */
d9d_status d9di_gemm_swiglu_sm90(d9d_stream s, const d9d_gemm_swiglu_dims *n, void *y, void *gate,
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
