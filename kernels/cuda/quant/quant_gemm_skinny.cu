/* quant_gemm_skinny.cu - skinny GEMM for decode with matrices in 8 or 4 bits, which are read as
 * they are stored and become bfloat16 in registers.  The kernel is that of gemm_skinny_mma.cuh.
 *
 * fp8: the bits of e4m3 moved to their places in bfloat16 are the number times 2^-120, subnormal
 * ones included, and a multiplication by 2^120 is exact. The row's scale multiplies the sum.
 *
 * nf4: a table in shared memory has both numbers of a byte, a copy for each lane, so that 32 lanes
 * read 32 banks. They are multiplied by the block's scale, two at a time. A chunk of a row has four
 * blocks, whose scale codes are copied with it; the row's offset and range are in registers.
 *
 *     one chunk of a row   | 256 codes: 128 bytes | 4 scale codes |
 *                            lane 0..3, 16 bytes of each half: 32 elements of one block
 *
 * An H100 reads 8 bits at 0.85 of a copy for gate and up of Qwen3-8B, 4 bits at 0.63: those are
 * bound by the instructions of bytes, table and product.
 */
#include "common/quant_code.h"
#include "cuda/gemm/gemm_skinny_mma.cuh"
#include "cuda/quant/quant.h"

using namespace skinny_mma;

enum { MAX_ROWS = 16 };

static __device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b)
{
    const __nv_bfloat162 y = __hmul2(*(const __nv_bfloat162 *)&a, *(const __nv_bfloat162 *)&b);

    return *(const uint32_t *)&y;
}

struct fp8_format {
    enum { ELEMENTS = 16, HAS_TABLES = false, HAS_SUM_SCALES = true, LANES_SHARE = false };
    static constexpr int depth(int x, bool deep) { return deep ? 6 : 4; }
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
        /* Bytes i and i + 1 of a word, i as the places of a permutation. */
        static __device__ __forceinline__ uint32_t two(uint32_t word, uint32_t places)
        {
            const uint32_t v = __byte_perm(word, 0, places);

            return multiply_bf16x2((v & 0x80008000u) | (v & 0x7f007f00u) >> 4, 0x7b807b80u);
        }
        __device__ __forceinline__ uint4 operator()(const uint4 &w, int q) const
        {
            const uint32_t a = q == 0 ? w.x : w.z, b = q == 0 ? w.y : w.w;

            return make_uint4(two(a, 0x1404), two(a, 0x3424), two(b, 0x1404), two(b, 0x3424));
        }
    };
};

static __constant__ const float nf4_values[16] = D9DI_QUANT_NF4_VALUES;

struct nf4_format {
    enum {
        ELEMENTS = 32,
        HAS_TABLES = true,
        HAS_SUM_SCALES = false,
        LANES_SHARE = true,
        BLOCKS_OF_CHUNK = 4
    };
    static constexpr int depth(int x, bool deep) { return deep ? 5 - x : 2; }
    struct tables {
        uint32_t pair[256][WARP];
        float map[256];
    };
    static __device__ __forceinline__ void fill(tables &to)
    {
        const int i = threadIdx.x;
        const uint32_t pair = pack_bf16x2(nf4_values[i >> 4], nf4_values[i & 15]);

        static_assert(BLOCK_WARPS * WARP == 256, "a thread fills a line of the tables");
        to.map[i] = d9di_quant_map(i);
#pragma unroll
        for (int j = 0; j < WARP; j++)
            to.pair[i][(i + j) % WARP] = pair;
    }
    struct chunk_scales {
        uint32_t codes[2][HALF]; /* a byte a block */
    };
    /* Lanes 0 and 1 of a row copy those of its two halves. */
    static __device__ __forceinline__ void request_scales(chunk_scales &to, const lane_rows &rows,
                                                          int at, int code_bytes)
    {
        const int l = threadIdx.x % WARP, h = l % 4;

        if (h >= 2)
            return;
        const bool yes = (h == 0 ? rows.there[0] : rows.there[1]) && at < code_bytes;
        const char *from = (h == 0 ? rows.w[0] : rows.w[1]) +
                           (yes ? code_bytes + at / CHUNK * BLOCKS_OF_CHUNK : 0);

        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(
                         (uint32_t)__cvta_generic_to_shared(&to.codes[h][l / 4])),
                     "l"(from), "r"(yes ? 4 : 0)
                     : "memory");
    }
    struct row_scales {
        float2 of[2]; /* offset, range */

        __device__ __forceinline__ void load(const lane_rows &rows, int scales_at)
        {
#pragma unroll
            for (int h = 0; h < 2; h++)
                of[h] = *(const float2 *)(rows.w[h] + scales_at);
        }
    };
    struct expand {
        const uint32_t *pair; /* the lane's column of the table */
        uint32_t scale;

        __device__ __forceinline__ expand(const tables &t, const chunk_scales &chunk,
                                          const row_scales &rows, int half, int h)
            : pair(&t.pair[0][threadIdx.x % WARP])
        {
            const int l = threadIdx.x % WARP, block = 2 * h + l % 4 / 2;
            const float code = t.map[chunk.codes[half][l / 4] >> 8 * block & 0xff];
            const float v = __fadd_rn(__fmul_rn(code, rows.of[half].y), rows.of[half].x);

            scale = pack_bf16x2(v, v);
        }
        __device__ __forceinline__ uint32_t two(uint32_t byte) const
        {
            return multiply_bf16x2(pair[byte * WARP], scale);
        }
        __device__ __forceinline__ uint4 operator()(const uint4 &w, int q) const
        {
            const uint32_t v = q == 0 ? w.x : q == 1 ? w.y : q == 2 ? w.z : w.w;

            return make_uint4(two(v & 0xff), two(v >> 8 & 0xff), two(v >> 16 & 0xff), two(v >> 24));
        }
    };
};

static row_layout layout_of(const d9d_quant_matrix *w)
{
    return {d9d_quant_row_bytes(w->format, w->cols), (int)d9d_quant_code_bytes(w->format, w->cols),
            (int)d9d_quant_scale_at(w->format, w->cols)};
}

/* Matrices of one format with rows of one length. */
static bool is_alike(int n, const d9d_quant_matrix *w)
{
    for (int i = 0; i < n; i++)
        if (w[i].format != w->format || w[i].cols != w->cols ||
            (uintptr_t)w[i].data % D9D_QUANT_ROW_ALIGN != 0)
            return false;
    return true;
}

bool d9di_quant_gemm_skinny_supported(int n, const d9d_gemm *g, const void *x,
                                      const d9d_quant_matrix *w)
{
    for (int i = 0; i < n; i++)
        if (g[i].m > MAX_ROWS || !g[i].trans_b || (g[i].beta != 0.0f && g[i].beta != 1.0f))
            return false;
    return d9di_gemm_skinny_mma_supported(n, g) && is_alike(n, w) && g->m > 0 && g->k > 0 &&
           (uintptr_t)x % 16 == 0;
}

d9d_status d9di_quant_gemm_skinny(d9d_stream s, int n, const d9d_gemm *g, const void *x,
                                  const d9d_quant_matrix *w, void *const *y)
{
    const void *data[MAX_MATRICES];

    for (int i = 0; i < n; i++)
        data[i] = w[i].data;
    return w->format == D9D_QUANT_FP8
               ? multiply<fp8_format>(s, "quant_gemm", layout_of(w), n, g, x, data, y)
               : multiply<nf4_format>(s, "quant_gemm", layout_of(w), n, g, x, data, y);
}

bool d9di_quant_swiglu_skinny_supported(const d9d_gemm_glu_dims *n, const void *x,
                                        const d9d_quant_matrix *w)
{
    return n->t == D9D_BF16 && n->rows > 0 && n->rows <= MAX_ROWS && n->h > 0 && n->i > 0 &&
           (uintptr_t)x % 16 == 0 && is_alike(2, w);
}

d9d_status d9di_quant_swiglu_skinny(d9d_stream s, const d9d_gemm_glu_dims *n, void *y, void *gate,
                                    void *up, const void *x, const d9d_quant_matrix *w)
{
    static const char op[] = "quant_gemm_glu";
    const row_layout rows = layout_of(w);

    return w->format == D9D_QUANT_FP8
               ? multiply_swiglu<fp8_format>(s, op, rows, n, y, gate, up, x, w[0].data, w[1].data)
               : multiply_swiglu<nf4_format>(s, op, rows, n, y, gate, up, x, w[0].data, w[1].data);
}
