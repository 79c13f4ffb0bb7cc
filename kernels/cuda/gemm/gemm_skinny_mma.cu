/* gemm_skinny_mma.cu - skinny GEMM for decode in bfloat16 on tensor cores, up to 16 rows of x. See
 * gemm_skinny.cu.
 *
 * mma.m16n8k16 takes sixteen rows of W and eight of x, so that eight rows cost nearly as much as
 * one: W is read once, at memory bandwidth. A block processes one tile of sixteen rows of W after
 * the other. The two halves of a tile, of eight rows, come from different places: with GATED they
 * are the same features of gate and up, and SwiGLU follows at once. The block's warps split K: each
 * has every eighth chunk of 64, of which a lane loads twice 16 bytes per row. These are eight
 * consecutive elements where mma expects others; x is permuted alike, which does not change the
 * sums.
 *
 * Memory must stay busy, also between kernels and during the small kernels that compute x:
 *
 *  - A lane copies its part of W into its own ring in shared memory (cp.async), STAGES chunks
 *    ahead, across tiles and, with b_constant, before x is ready (PDL). It requests chunks one
 *    after the other; a full ring requested at once would delay the kernels that compute x.
 *  - x comes from L2, with a latency of a few chunks: AHEAD chunks of it are in flight to
 *    registers.
 *  - BLOCKS blocks share an SM: while one reduces a tile or ends, the other reads.
 *
 * The kernel is in gemm_skinny_mma.cuh; quant/quant_skinny_mma.cuh has that for 8 and 4 bits.
 */
#include "cuda/gemm/gemm_skinny_mma.cuh"

using namespace skinny_mma;

/* Elements are what they are. */
struct dense_format {
    enum { ELEMENTS = 8, HAS_TABLES = false, HAS_SUM_SCALES = false, LANES_SHARE = false };
    static constexpr int depth(int, bool deep) { return deep ? 6 : 4; }
    template <bool GATED, class C>
    static d9d_status launch(d9d_stream s, const char *op, const skinny_params<C> &p)
    {
        return launch_by_rows<dense_format, GATED>(s, op, p);
    }
    struct tables {
    };
    static __device__ __forceinline__ void fill(tables &) {}
    struct chunk_scales {
    };
    static __device__ __forceinline__ void request_scales(chunk_scales &, const lane_rows &, int,
                                                          int)
    {
    }
    struct row_scales {
        __device__ __forceinline__ void load(const lane_rows &, int) {}
    };
    struct expand {
        __device__ __forceinline__ expand(const tables &, const chunk_scales &, const row_scales &,
                                          int, int)
        {
        }
        __device__ __forceinline__ uint4 operator()(const uint4 &w, int) const { return w; }
    };
};

static row_layout layout_of(int64_t k)
{
    const int64_t bytes = k * (int64_t)sizeof(bf16);

    return {bytes, (int)bytes, 0};
}

bool d9di_gemm_skinny_mma_supported(int n, const d9d_gemm *g)
{
    for (int i = 1; i < n; i++)
        if (g[i].m != g->m || g[i].k != g->k || g[i].ct != g->ct || g[i].t != g->t)
            return false;
    return n > 0 && n <= MAX_MATRICES && g->t == D9D_BF16;
}

d9d_status d9di_gemm_skinny_mma(d9d_stream s, int n, const d9d_gemm *g, const void *x,
                                const void *const *w, void *const *y)
{
    return multiply<dense_format>(s, "gemm", layout_of(g->k), n, g, x, w, y);
}

d9d_status d9di_gemm_skinny_swiglu(d9d_stream s, const d9d_gemm_glu_dims *n, void *y, void *gate,
                                   void *up, const void *x, const void *w_gate, const void *w_up)
{
    return multiply_swiglu<dense_format>(s, "gemm_swiglu", layout_of(n->h), n, y, gate, up, x,
                                         w_gate, w_up);
}
