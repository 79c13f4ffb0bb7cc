/* grouped_gemm_sm90.cu - one product per expert on Hopper, in bfloat16: wgmma.cuh, and C as
 * it is. */
#include "cuda/common/wgmma.cuh"

namespace
{

/* What C is: bfloat16, float32, and added to. */
enum output_kind { BF16, F32, BF16_ADD, F32_ADD };

template <int SUM> struct store_epilogue : consumer_warpgroup {
    static constexpr int COLUMNS = BN;
    static constexpr bool ADDS = SUM >= BF16_ADD;
    static constexpr bool WIDE = SUM == F32 || SUM == F32_ADD; /* C is float32 */

    struct args {
        void *c;
    };
    const args &x;
    int held_next = 4, held_row, held_column; /* of the last tile: 4 when all chunks are stored */

    __device__ __forceinline__ store_epilogue(const consumer_warpgroup &w, const args &x)
        : consumer_warpgroup(w), x(x)
    {
    }

    /* 32 columns of C in float32, of the last rows of a matrix. */
    __device__ __forceinline__ void store_wide(uint32_t from, int row, int at, int live) const
    {
        each_of_rows<float>(from, x.c, row, at, live, [](int4 *to, int4 v) {
            float4 output_kind = __builtin_bit_cast(float4, v);

            if (SUM == F32_ADD) {
                const float4 old = *(const float4 *)to;

                output_kind = {old.x + output_kind.x, old.y + output_kind.y, old.z + output_kind.z,
                               old.w + output_kind.w};
            }
            *(float4 *)to = output_kind;
        });
    }

    /* Chunk i of the columns of 64 rows of C, `live` of them real. */
    __device__ __forceinline__ void store_columns(const uint32_t *v, int i, int row, int column,
                                                  int live)
    {
        const uint32_t from = out_buffer(i);
        const int at = column + i * 32;

        if (!WIDE) {
            store_bf16_columns(v, from, 0, x.c, row, column + i * 64, live);
            return;
        }
        wait_out_buffers<BUFFERS - 1>();
        smem_store_f32(from, v);
        fence_proxy_async();
        named_barrier_sync(1 + group, GROUP);
        if (live < HALF)
            store_wide(from, row, at, live);
        if (thread != 0)
            return;
        if (live < HALF) {
            tma_store_commit();
            return;
        }
        if (at < p.n && SUM == F32_ADD)
            tma_reduce_add(&m.c[0], from, at, row);
        else if (at < p.n)
            tma_store(&m.c[0], from, at, row);
        tma_store_commit();
    }

    __device__ __forceinline__ bool epilogue_pending() const { return held_next < 4; }

    /* A quarter of what is held; arrays in registers want constant indices. */
    __device__ __forceinline__ void epilogue_step(const uint32_t (&held)[64])
    {
        constexpr int first = WIDE ? 4 : 0;

        switch (held_next++) {
        case 0: store_columns(held, first, held_row, held_column, HALF); break;
        case 1: store_columns(held + 16, first + 1, held_row, held_column, HALF); break;
        case 2: store_columns(held + 32, first + 2, held_row, held_column, HALF); break;
        case 3: store_columns(held + 48, first + 3, held_row, held_column, HALF); break;
        }
    }

    /* C is bfloat16 and added to, in float32 before it is rounded. */
    __device__ __forceinline__ void add_c(float (&d)[128], int row, int column, int live)
    {
        const bf16 *old = (const bf16 *)x.c;

#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int r = row + warp * 16 + lane / 4 + 8 * h;
                const int at = column + 8 * j + lane % 4 * 2;
                uint32_t two = 0;

                if (at < p.n && r - row < live)
                    two = *(const uint32_t *)(old + (int64_t)r * p.n + at);
                d[4 * j + 2 * h] += __uint_as_float(two << 16);
                d[4 * j + 2 * h + 1] += __uint_as_float(two & 0xffff0000u);
            }
    }

    /* Half of a float32 tile is stored at once; the rest waits for the next tile's products. */
    __device__ __forceinline__ void epilogue_begin(float (&d)[128], uint32_t (&held)[64], int row,
                                                   int column, int live, bool none)
    {
        if (SUM == BF16_ADD)
            add_c(d, row, column, live);
#pragma unroll
        for (int i = 0; i < (WIDE ? 4 : 0); i++) {
            uint32_t v[16];

#pragma unroll
            for (int j = 0; j < 16; j++)
                v[j] = none ? 0 : __float_as_uint(d[i * 16 + j]);
            store_columns(v, i, row, column, live);
        }
#pragma unroll
        for (int j = 0; j < (WIDE ? 64 : 0); j++)
            held[j] = none ? 0 : __float_as_uint(d[64 + j]);
        if (!WIDE)
            pack_accumulators(held, d, none);
        if (live < HALF) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                store_columns(held + i * 16, (WIDE ? 4 : 0) + i, row, column, live);
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
    const bool across =
        g->form == D9DI_GROUPED_GEMM_FWD; /* B is [in, out], and its columns are C's */
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
    cudaDriverEntryPointQueryResult found;
    void *f = NULL;

    if (!D9D_SM90A || major != 9)
        return NULL;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault,
                                         &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess)
        return NULL;
    return f;
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
