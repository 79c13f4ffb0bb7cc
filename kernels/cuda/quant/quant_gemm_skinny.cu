/* quant_gemm_skinny.cu - skinny GEMM for decode with matrices in 8 or 4 bits, which are read as
 * they are stored and become bfloat16 in registers.  The kernel is in quant_skinny_mma.cuh.
 *
 * fp8: the bits of e4m3 moved to their places in bfloat16 are the number times 2^-120, subnormal
 * ones included, and a multiplication by 2^120 is exact. The row's scale multiplies the sum.
 *
 * nf4: a table in shared memory has both numbers of a byte, a copy for each lane, so that 32 lanes
 * read 32 banks. They are multiplied by the block's scale, two at a time. A chunk of a row has four
 * blocks, whose scale codes are copied with it, as are the row's offset and range.
 *
 *     one chunk of a row   | 256 codes: 128 bytes | 4 scale codes |
 *                            lane 0..3, 16 bytes of each half: 32 elements of one block
 *
 * A line of shared memory is 256 bytes, so that one byte permutation makes a lane's address of a
 * code.  The first half of line c has the pair of code c for each lane, the second is the ring's:
 *
 *     address   | 0 | code | 0 . lane . 00 |
 *     lines 0 .. 255          | pairs of the table | stages 0 and 1 |
 *     lines 256 .. 383        | stage 2            | stage 3        |
 */
#include "common/quant_code.h"
#include "cuda/quant/quant.h"
#include "cuda/quant/quant_skinny_mma.cuh"

using namespace quant_skinny;

enum { MAX_ROWS = D9DI_QUANT_SKINNY_ROWS, MAX_COLUMNS = 1 << 30 };

static __device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b)
{
    const __nv_bfloat162 y = __hmul2(*(const __nv_bfloat162 *)&a, *(const __nv_bfloat162 *)&b);

    return *(const uint32_t *)&y;
}

struct fp8_format {
    enum { ELEMENTS = 16, AHEAD = 2, HAS_TABLES = false, HAS_SUM_SCALES = true, PITCH = LINE };
    static constexpr int depth(int, bool deep) { return deep ? 6 : 4; }
    static constexpr int lines(int depth) { return depth * STAGE; }
    static __device__ __forceinline__ int stage(int i) { return i * STAGE; }
    template <bool GATED, class C>
    static d9d_status launch(d9d_stream s, const char *op, const skinny_params<C> &p)
    {
        return quant_skinny::launch_by_rows<fp8_format, GATED>(s, op, p);
    }
    struct tables {
    };
    static __device__ __forceinline__ void fill(char *, tables &) {}
    struct chunk_scales {
        float of[2][HALF];
    };
    /* Lanes 0 and 1 of a row copy those of its two halves. */
    static __device__ __forceinline__ void request_scales(uint32_t to, const lane_rows &rows, int,
                                                          int, int scales_at)
    {
        const int l = threadIdx.x % WARP, h = l % 4;

        if (h < 2)
            cp_async_few<4>(to + (h * HALF + l / 4) * (uint32_t)sizeof(float),
                            (h == 0 ? rows.w[0] : rows.w[1]) + scales_at,
                            h == 0 ? rows.there[0] : rows.there[1]);
    }
    static __device__ __forceinline__ float sum_scale(const chunk_scales &chunk, int half)
    {
        return chunk.of[half][threadIdx.x % WARP / 4];
    }
    struct expand {
        __device__ __forceinline__ expand(const char *, const tables &, const chunk_scales &, int,
                                          int)
        {
        }
        /* The magnitudes of one word at their places, and the signs of another: LOP3 by hand, of
         * which nvcc makes two. */
        static __device__ __forceinline__ uint32_t two(uint32_t signs, uint32_t magnitudes)
        {
            uint32_t v;

            asm("lop3.b32 %0, %1, %2, 0x07f007f0, 0xe4;" : "=r"(v) : "r"(magnitudes), "r"(signs));
            return multiply_bf16x2(v, 0x7b807b80u);
        }
        __device__ __forceinline__ uint2 four(uint32_t word) const
        {
            const uint32_t w = __byte_perm(word, 0, 0x3120), sign = w & 0x80808080u;

            return make_uint2(two(sign << 8, w << 4), two(sign, w >> 4));
        }
        __device__ __forceinline__ uint4 operator()(const uint4 &w, int q) const
        {
            const uint2 a = four(q == 0 ? w.x : w.z), b = four(q == 0 ? w.y : w.w);

            return make_uint4(a.x, a.y, b.x, b.y);
        }
    };

  private:
    enum { STAGE = BLOCK_WARPS * WARP_LINES * LINE };
};

struct number_map {
    float of[256];
};
static constexpr number_map make_number_map(void)
{
    number_map m = {};

    for (int i = 0; i < 256; i++)
        m.of[i] = d9di_quant_map(i);
    return m;
}
static __device__ const number_map numbers = make_number_map();
static __constant__ const float nf4_values[16] = D9DI_QUANT_NF4_VALUES;

struct nf4_format {
    enum {
        ELEMENTS = 32,
        AHEAD = 1,
        HAS_TABLES = true,
        HAS_SUM_SCALES = false,
        BLOCKS_OF_CHUNK = 4,
        PITCH = 2 * LINE
    };
    static constexpr int depth(int x, bool deep) { return deep && x == 1 ? 4 : 2; }
    static constexpr int lines(int depth) { return (depth == 2 ? 2 : 3) * STAGE; }
    static __device__ __forceinline__ int stage(int i)
    {
        return i < 2 ? LINE + i * STAGE : 2 * STAGE + i % 2 * LINE;
    }
    template <bool GATED, class C>
    static d9d_status launch(d9d_stream s, const char *op, const skinny_params<C> &p)
    {
        return quant_skinny::launch_by_rows<nf4_format, GATED>(s, op, p);
    }
    struct tables {
        float map[256];
    };
    static __device__ __forceinline__ void fill(char *lines, tables &to)
    {
        const int i = threadIdx.x;
        const uint32_t pair = pack_bf16x2(nf4_values[i >> 4], nf4_values[i & 15]);

        static_assert(BLOCK_WARPS * WARP == 256, "a thread fills a line of the table");
        to.map[i] = numbers.of[i];
#pragma unroll
        for (int j = 0; j < LINE_LANES; j++)
            *(uint4 *)(lines + i * PITCH + (i + j) % LINE_LANES * LOAD_BYTES) =
                make_uint4(pair, pair, pair, pair);
    }
    struct chunk_scales {
        float2 row[2][HALF];     /* offset, range */
        uint32_t codes[2][HALF]; /* a byte a block */
    };
    /* Lanes 0 and 1 of a row copy the codes of its two halves, lanes 2 and 3 the row's scales. */
    static __device__ __forceinline__ void request_scales(uint32_t to, const lane_rows &rows,
                                                          int at, int code_bytes, int scales_at)
    {
        const int l = threadIdx.x % WARP, h = l % 2, place = h * HALF + l / 4;
        const bool yes = (h == 0 ? rows.there[0] : rows.there[1]) && at < code_bytes;
        const char *from = h == 0 ? rows.w[0] : rows.w[1];

        if (l % 4 < 2)
            cp_async_few<4>(to + (uint32_t)offsetof(chunk_scales, codes) +
                                place * (uint32_t)sizeof(uint32_t),
                            from + (yes ? code_bytes + at / CHUNK * BLOCKS_OF_CHUNK : 0), yes);
        else
            cp_async_few<8>(to + place * (uint32_t)sizeof(float2), from + scales_at, yes);
    }
    static __device__ __forceinline__ float sum_scale(const chunk_scales &, int)
    {
        return 1.0f;
    }
    struct expand {
        const char *lines;
        uint32_t lane; /* the lane's place in a line */
        uint32_t scale;

        __device__ __forceinline__ expand(const char *table, const tables &t,
                                          const chunk_scales &chunk, int half, int h)
            : lines(table), lane(threadIdx.x % WARP * sizeof(uint32_t))
        {
            const int l = threadIdx.x % WARP, block = 2 * h + l % 4 / 2;
            const float code = t.map[((const uint8_t *)&chunk.codes[half][l / 4])[block]];
            const float2 by = chunk.row[half][l / 4];
            const float v = __fadd_rn(__fmul_rn(code, by.y), by.x);

            scale = pack_bf16x2(v, v);
        }
        /* Both numbers of byte i of a word: its address is of bytes 0 of lane and i of word. */
        __device__ __forceinline__ uint32_t two(uint32_t word, int i) const
        {
            const uint32_t at = __byte_perm(word, lane, 0x5504u | (uint32_t)i << 4);

            return multiply_bf16x2(*(const uint32_t *)(lines + at), scale);
        }
        __device__ __forceinline__ uint4 operator()(const uint4 &w, int q) const
        {
            const uint32_t v = q == 0 ? w.x : q == 1 ? w.y : q == 2 ? w.z : w.w;

            return make_uint4(two(v, 0), two(v, 1), two(v, 2), two(v, 3));
        }
    };

  private:
    enum { STAGE = BLOCK_WARPS * WARP_LINES * PITCH };
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
        if (g[i].m > MAX_ROWS || g[i].n > MAX_COLUMNS || !g[i].trans_b ||
            (g[i].beta != 0.0f && g[i].beta != 1.0f))
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
           n->i <= MAX_COLUMNS && (uintptr_t)x % 16 == 0 && is_alike(2, w);
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
