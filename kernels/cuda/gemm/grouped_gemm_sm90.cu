/* grouped_gemm_sm90.cu - grouped GEMM of MoE experts on Hopper in bfloat16: an epilogue that stores
 * C, on the mainloop of gemm_sm90_mainloop.cuh and cuda/gemm/gemm_sm90.cuh.
 *
 * Algorithm: experts have ragged numbers of rows, offset[e + 1] - offset[e], which only the GPU
 * knows. Each launch covers all experts; a persistent scheduler enumerates the tiles of all of
 * them. TMA descriptors span the arrays of all experts, so none is rewritten on the device. A load
 * may run into the next expert's rows; the rows of C beyond the expert are not stored.
 *
 *     CUTLASS grouped GEMM, Transformer Engine    here
 *     GroupProblemShape, problem_sizes            offset [E + 1] on the GPU
 *     PersistentTileSchedulerSm90Group            run_scheduler(), expert_first_pairs()
 *     tensormap update per group                  none: one descriptor per array
 *     LinearCombination (alpha, beta)             output_kind: BF16, F32, BF16_ADD, F32_ADD
 *     Sm90 TMA store epilogue                     store_epilogue, tma_store(), tma_reduce_add()
 *
 *     rows of x     | expert 0 | e1 |   expert 2   | e3 |    tiles of BM = 128 rows restart at each
 *     row tiles     |0000|00   |11  |2222|2222|22  |33  |    expert; pairs of them multicast B
 *
 *     epilogue of a tile (64 x 256 per warpgroup)
 *     bfloat16   64 packed registers, stored in 4 parts during the next tile's first steps
 *     float32    half stored at once, the other half (64 registers) in 4 parts likewise
 *     adding     float32: TMA reduce-add; bfloat16: C is read and added before rounding
 *
 * Measured (docs/benchmarks/kernels.md), one H200, Qwen3-30B-A3B: forward 724, dgrad of two weights
 * 760, dgrad of one 707, wgrad 649 TFLOP/s (91, 96, 89, 82 % of a dense GEMM); wgrad added to
 * float32 gradients 504. PyTorch's grouped_mm: 1.04, 1.25, 1.09 times slower (forward, dgrad,
 * wgrad).
 */
#include "cuda/gemm/gemm_store_sm90.cuh"

namespace
{

template <int SUM> struct store_epilogue : consumer_stores<SUM> {
    static constexpr int COLUMNS = BN;
    static constexpr bool ADDS = SUM >= BF16_ADD;
    static constexpr bool WIDE = consumer_stores<SUM>::WIDE;

    struct args {
        void *c;
    };
    int held_next = 4, held_row, held_column; /* of the previous tile: its next part to store; 4:
                                                 all are stored */

    __device__ __forceinline__ store_epilogue(const consumer_warpgroup &w, const args &x)
        : consumer_stores<SUM>(w, x.c)
    {
    }

    __device__ __forceinline__ bool epilogue_pending() const { return held_next < 4; }

    /* Stores one of the four parts of the previous tile. The switch keeps register indices
     * constant. */
    __device__ __forceinline__ void epilogue_step(const uint32_t (&held)[64])
    {
        constexpr int first = WIDE ? 4 : 0;

        switch (held_next++) {
        case 0: this->store_columns(held, first, held_row, held_column, HALF); break;
        case 1: this->store_columns(held + 16, first + 1, held_row, held_column, HALF); break;
        case 2: this->store_columns(held + 32, first + 2, held_row, held_column, HALF); break;
        case 3: this->store_columns(held + 48, first + 3, held_row, held_column, HALF); break;
        }
    }

    /* Stores half of a float32 tile at once; the rest is stored during the next tile's mainloop. */
    __device__ __forceinline__ void epilogue_begin(float (&d)[128], uint32_t (&held)[64], int row,
                                                   int column, int live, bool none)
    {
        if (SUM == BF16_ADD)
            this->add_c(d, row, column, live);
#pragma unroll
        for (int i = 0; i < (WIDE ? 4 : 0); i++) {
            uint32_t v[16];

#pragma unroll
            for (int j = 0; j < 16; j++)
                v[j] = none ? 0 : __float_as_uint(d[i * 16 + j]);
            this->store_columns(v, i, row, column, live);
        }
#pragma unroll
        for (int j = 0; j < (WIDE ? 64 : 0); j++)
            held[j] = none ? 0 : __float_as_uint(d[64 + j]);
        if (!WIDE)
            pack_accumulators(held, d, none);
        if (live < HALF) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                this->store_columns(held + i * 16, (WIDE ? 4 : 0) + i, row, column, live);
            return;
        }
        held_next = 0;
        held_row = row;
        held_column = column;
    }
};

d9d_status encode_descriptors(d9d_stream s, const d9di_grouped_gemm_call *g, tma_descriptors *m)
{
    const int64_t depth = g->form == D9DI_GROUPED_GEMM_DGRAD ? g->out : g->in;
    const bool across = g->form == D9DI_GROUPED_GEMM_FWD; /* B is [in, out]: its columns are C's */
    tma_descriptor_encoder map = {g->op, (tensor_map_encode_fn *)s->tensor_map_encode, D9D_OK};

    map.encode_operand(&m->a, g->a, g->rows, depth, g->form == D9DI_GROUPED_GEMM_WGRAD, BM / 2);
    if (g->form == D9DI_GROUPED_GEMM_WGRAD) {
        map.encode_operand(&m->b, g->b, g->rows, g->out, true, BN / 2);
        map.encode_output(&m->c[0], g->ct, g->c, g->e * g->in, g->out);
        return map.st;
    }
    map.encode_operand(&m->b, g->b, g->e * g->in, g->out, across, BN / 2);
    if (g->a2 != NULL) {
        map.encode_operand(&m->a2, g->a2, g->rows, depth, false, BM / 2);
        map.encode_operand(&m->b2, g->b2, g->e * g->in, g->out, across, BN / 2);
    }
    map.encode_output(&m->c[0], g->ct, g->c, g->rows, across ? g->out : g->in);
    return map.st;
}

template <int FORM, int SUM> d9d_status launch_form(d9d_stream s, const d9di_grouped_gemm_call *g)
{
    const bool back = FORM == D9DI_GROUPED_GEMM_DGRAD;
    const gemm_params p = {g->offset,
                           NULL,
                           g->rows,
                           (int)g->e,
                           (int)(back ? g->in : g->out),
                           (int)(back ? g->out : g->in),
                           g->a2 != NULL ? 2 : 1};
    tma_descriptors m = {};

    D9D_TRY(encode_descriptors(s, g, &m));
    return launch_wgmma_gemm<FORM, store_epilogue<SUM>>(s, g->op, m, p, {g->c});
}

} // namespace

void *d9di_cuda_tensor_map_encode(int major)
{
    if (!D9D_SM90A || major != 9)
        return NULL;
    return d9d_cuda_driver_function("cuTensorMapEncodeTiled");
}

bool d9di_grouped_gemm_sm90_supported(d9d_stream s, const d9di_grouped_gemm_call *g)
{
    return wgmma_gemm_supported(s, D9DI_SLOW_GROUPED, g->op, g->t, g->rows, g->e, g->in, g->out) &&
           (g->beta == 0.0f || g->beta == 1.0f);
}

d9d_status d9di_grouped_gemm_sm90(d9d_stream s, const d9di_grouped_gemm_call *g)
{
    const bool adds = g->beta != 0.0f;

    if (g->form == D9DI_GROUPED_GEMM_FWD)
        return launch_form<D9DI_GROUPED_GEMM_FWD, BF16>(s, g);
    if (g->form == D9DI_GROUPED_GEMM_DGRAD)
        return adds ? launch_form<D9DI_GROUPED_GEMM_DGRAD, BF16_ADD>(s, g)
                    : launch_form<D9DI_GROUPED_GEMM_DGRAD, BF16>(s, g);
    if (g->ct == D9D_F32)
        return adds ? launch_form<D9DI_GROUPED_GEMM_WGRAD, F32_ADD>(s, g)
                    : launch_form<D9DI_GROUPED_GEMM_WGRAD, F32>(s, g);
    return adds ? launch_form<D9DI_GROUPED_GEMM_WGRAD, BF16_ADD>(s, g)
                : launch_form<D9DI_GROUPED_GEMM_WGRAD, BF16>(s, g);
}
