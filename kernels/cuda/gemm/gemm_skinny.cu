/* gemm_skinny.cu - skinny GEMM for decode: y = x W' (+ addend + bias), for a few rows of x.
 * Bandwidth-bound: W is read once.
 *
 * Algorithm (float32; gemm_skinny_mma.cu has bfloat16): a warp owns one or two rows of W and all
 * rows of x. It keeps AHEAD = 4 vectors of 8 floats per lane and row in flight, and reduces over
 * its lanes at the end.
 *
 *     known elsewhere as                          here
 *     vLLM skinny GEMM (wvSplitK), ggml mmvf      gemm_skinny_kernel
 *     cublasSgemv                                 m = 1
 *     griddepcontrol.launch_dependents, .wait     pdl_launch_dependents(), pdl_wait()
 *     L2 or shared-memory weight prefetch         weight_prefetch::fetch() before pdl_wait()
 *
 *     row of W    |-- 1 KiB --|-- 1 KiB --|-- 1 KiB --|-- 1 KiB --| ...
 *                   lane 0..31, 8 floats    4 loads in flight per lane
 *
 *     previous kernel   ==== computes x =====|
 *     this kernel           | fetch W ...    | pdl_wait | x . W | warp reduce | store
 *                           needs b_constant: no kernel in flight writes W
 *
 * Batch-invariant: the order of a sum depends on K only, so that a row's bits do not depend on the
 * number of rows.
 *
 * Measured: a GEMV alone reads at 104 % of a copy's bandwidth (docs/design/decode.md). Qwen3-8B in
 * bfloat16 decodes a token in 4.06 to 4.17 ms on one H200, with weights read at 3.63 to 3.73 TB/s
 * (docs/benchmarks/one-gpu.md).
 */
#include "cuda/common/common.cuh"
#include "cuda/gemm/gemm_skinny.h"

enum {
    EIGHT = 8,
    STEP = WARP * EIGHT,
    AHEAD = 4,
    MAX_ROWS = 8,
    MAX_ROWS_BF16 = 16,
    BLOCK_WARPS = 4
};

/* A lane's loads of W in flight, per column of the result. Loads beyond K keep the previous
 * content. */
template <int COLS> struct weight_prefetch {
    raw8<float> at[AHEAD][COLS];

    __device__ __forceinline__ void fetch(const float *w, int64_t from, int64_t k, int64_t cols)
    {
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
#pragma unroll
            for (int c = 0; c < COLS; c++)
                if (from + a * STEP < k && c < cols)
                    fetch8(at[a][c], w + c * k + from + a * STEP, EIGHT);
    }
};

template <class C, int M, int COLS>
static __global__ void __launch_bounds__(BLOCK_WARPS *WARP)
    gemm_skinny_kernel(C *y, const float *x, const float *w, const C *plus, const C *bias,
                       int64_t m, int64_t n, int64_t k, bool still)
{
    const int64_t col = ((int64_t)blockIdx.x * BLOCK_WARPS + threadIdx.x / WARP) * COLS;
    const int lane = threadIdx.x % WARP;
    weight_prefetch<COLS> next;
    float sum[M][COLS] = {};

    pdl_launch_dependents();
    if (!still)
        pdl_wait();
    next.fetch(w + col * k, lane * EIGHT, col < n ? k : 0, n - col);
    pdl_wait();
    if (col >= n)
        return;
    for (int64_t from = lane * EIGHT; from < k; from += AHEAD * STEP) {
        const weight_prefetch<COLS> now = next;

        next.fetch(w + col * k, from + AHEAD * STEP, k, n - col);
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const int64_t at = from + a * STEP;
            float v[COLS][EIGHT];

            if (at >= k)
                break;
#pragma unroll
            for (int c = 0; c < COLS; c++)
                unpack8(v[c], now.at[a][c]);
#pragma unroll
            for (int r = 0; r < M; r++) {
                float u[EIGHT];

                load8(u, x + d9di_i64_min(r, m - 1) * k + at, EIGHT);
#pragma unroll
                for (int c = 0; c < COLS; c++)
#pragma unroll
                    for (int j = 0; j < EIGHT; j++)
                        sum[r][c] = fmaf(u[j], v[c][j], sum[r][c]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < M; r++)
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            float all = group_reduce<WARP>(sum[r][c], ::plus());
            const int64_t at = r * n + col + c;

            if (lane != 0 || r >= m || col + c >= n)
                continue;
            all = plus != NULL ? all + to_float(plus[at]) : all;
            store_float(y + at, bias != NULL ? all + to_float(bias[col + c]) : all);
        }
}

template <class C, int M, int COLS>
static d9d_status launch(d9d_stream s, const d9d_gemm *g, const void *x, const void *w, void *y)
{
    const int64_t blocks = d9di_i64_ceil_div(g->n, BLOCK_WARPS * COLS);

    return pdl_launch(s, "gemm", gemm_skinny_kernel<C, M, COLS>, (unsigned)blocks,
                      BLOCK_WARPS * WARP, (C *)y, (const float *)x, (const float *)w,
                      (const C *)d9di_gemm_addend(g, y), (const C *)g->bias, g->m, g->n, g->k,
                      g->b_constant);
}

/* Narrow matrices use one column per warp, so that more warps share the work. */
template <class C, int M>
static d9d_status launch_by_columns(d9d_stream s, const d9d_gemm *g, const void *x, const void *w,
                                    void *y)
{
    return g->n <= 8192 && M < 8 ? launch<C, M, 1>(s, g, x, w, y) : launch<C, M, 2>(s, g, x, w, y);
}

template <class C>
static d9d_status launch_by_rows(d9d_stream s, const d9d_gemm *g, const void *x, const void *w,
                                 void *y)
{
    if (g->m == 1)
        return launch_by_columns<C, 1>(s, g, x, w, y);
    if (g->m == 2)
        return launch_by_columns<C, 2>(s, g, x, w, y);
    return g->m <= 4 ? launch_by_columns<C, 4>(s, g, x, w, y)
                     : launch_by_columns<C, 8>(s, g, x, w, y);
}

/* Limits on rows, K and alignment. */
static bool is_supported(d9d_dtype t, int64_t m, int64_t k, uintptr_t addresses)
{
    return m <= (t == D9D_BF16 ? MAX_ROWS_BF16 : MAX_ROWS) && k % EIGHT == 0 && addresses % 16 == 0;
}

bool d9di_gemm_skinny_supported(const d9d_gemm *g, const void *x, const void *w)
{
    return is_supported(g->t, g->m, g->k, (uintptr_t)x | (uintptr_t)w) && g->trans_b &&
           !g->trans_a && (g->beta == 0.0f || g->beta == 1.0f);
}

bool d9di_gemm_skinny_swiglu_supported(const d9d_gemm_glu_dims *n, const void *x,
                                       const void *w_gate, const void *w_up)
{
    return n->t == D9D_BF16 && n->offset == NULL && n->rows > 0 && n->h > 0 && n->i > 0 &&
           is_supported(n->t, n->rows, n->h, (uintptr_t)x | (uintptr_t)w_gate | (uintptr_t)w_up);
}

d9d_status d9di_gemm_skinny(d9d_stream s, const d9d_gemm *g, const void *x, const void *w, void *y)
{
    if (g->t == D9D_BF16)
        return d9di_gemm_skinny_mma(s, 1, g, x, &w, &y);
    return g->ct == D9D_F32 ? launch_by_rows<float>(s, g, x, w, y)
                            : launch_by_rows<bf16>(s, g, x, w, y);
}
