/* gemm_per_head.cu - per-head linear layer (block-diagonal): a GEMM per head, whose matrix is some
 * rows of w. */
#include "cuda/common/block_mma.cuh"
#include "cuda/gemm/grouped_gemm.h"

template <class T> struct per_head_args {
    d9d_gemm_per_head_dims n;
    T *y;
    const T *x, *w;
};

/* --- a few tokens, transposed matrices: a warp has OUTPUTS of them ---------------------------- */

enum { OUTPUTS = 4, MAX_TOKENS = 16, EIGHT = 8 };

/* y[t, h, j] = x[t, h] . row j of the head's matrix. Grid: groups of outputs, heads. */
static __global__ void __launch_bounds__(THREADS) heads_skinny_kernel(per_head_args<bf16> v)
{
    const int64_t h = blockIdx.y, in = v.n.in,
                  j0 = ((int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP) * OUTPUTS;
    const int lane = threadIdx.x % WARP;
    const bf16 *w = v.w + (h * v.n.w_head_rows + v.n.w_first + j0) * in;

    pdl_launch_dependents();
    pdl_wait();
    for (int64_t t = 0; t < v.n.m && j0 < v.n.out; t++) {
        const bf16 *x = v.x + (t * v.n.heads + h) * v.n.x_cols + v.n.x_first;
        float sum[OUTPUTS] = {};

        for (int64_t k = lane * EIGHT; k < in; k += WARP * EIGHT) {
            float a[EIGHT], b[EIGHT];

            load8(a, x + k, EIGHT);
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
                load8(b, w + (j0 + o < v.n.out ? o : 0) * in + k, EIGHT);
#pragma unroll
                for (int i = 0; i < EIGHT; i++)
                    sum[o] = fmaf(a[i], b[i], sum[o]);
            }
        }
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
            const float all = group_reduce<WARP>(sum[o], ::plus());

            if (lane == 0 && j0 + o < v.n.out)
                store_float(v.y + (t * v.n.heads + h) * v.n.y_cols + j0 + o, all);
        }
    }
}

static bool is_skinny(const d9d_gemm_per_head_dims *n, const void *x, const void *w)
{
    return n->t == D9D_BF16 && n->trans_w && n->m <= MAX_TOKENS && n->in % EIGHT == 0 &&
           n->x_cols % EIGHT == 0 && n->x_first % EIGHT == 0 &&
           ((uintptr_t)x | (uintptr_t)w) % 16 == 0;
}

static d9d_status launch_skinny(d9d_stream s, const d9d_gemm_per_head_dims *n, void *y,
                                const void *x, const void *w)
{
    const dim3 grid((unsigned)d9di_i64_ceil_div(n->out, OUTPUTS * (THREADS / WARP)),
                    (unsigned)n->heads);

    return pdl_launch(s, "gemm_per_head", heads_skinny_kernel, grid, THREADS,
                      per_head_args<bf16>{*n, (bf16 *)y, (const bf16 *)x, (const bf16 *)w});
}

/* --- any number of tokens ----------------------------------------------------------------------
 */

/* A block has a tile of rows and columns of one head. */
template <bool TENSOR, class T>
static __global__ void __launch_bounds__(THREADS) heads_kernel(per_head_args<T> v)
{
    __shared__ smem_operands<TILE> sh;
    __shared__ float out[TILE][TILE + PAD];
    const int64_t h = blockIdx.y, c0 = (int64_t)blockIdx.x * TILE, r0 = (int64_t)blockIdx.z * TILE;
    const int64_t wide = v.n.trans_w ? v.n.in : v.n.out, row = v.n.heads * v.n.x_cols;
    const T *w = v.w + (h * v.n.w_head_rows + v.n.w_first) * wide;
    tile_sum<TENSOR, TILE> sum;

    sum.clear();
    sum.add(sh, scaled_matrix_make(v.x + h * v.n.x_cols + v.n.x_first, row, 1), r0, v.n.m,
            v.n.trans_w ? scaled_matrix_make(w, wide, 1) : scaled_matrix_make(w, 1, wide), c0,
            v.n.out, v.n.in);
    sum.store(out);
    for (int e = threadIdx.x; e < TILE * TILE; e += THREADS) {
        const int64_t i = r0 + e / TILE, j = c0 + e % TILE;

        if (i < v.n.m && j < v.n.out)
            store_float(v.y + (i * v.n.heads + h) * v.n.y_cols + j, out[e / TILE][e % TILE]);
    }
}

template <class T>
static d9d_status launch(d9d_stream s, const d9d_gemm_per_head_dims *n, void *y, const void *x,
                         const void *w)
{
    const dim3 grid((unsigned)d9di_i64_ceil_div(n->out, TILE), (unsigned)n->heads,
                    (unsigned)d9di_i64_ceil_div(n->m, TILE));

    heads_kernel<std::is_same_v<T, bf16>><<<grid, THREADS, 0, d9di_cuda_stream(s)>>>(
        per_head_args<T>{*n, (T *)y, (const T *)x, (const T *)w});
    return d9di_cuda_check_launch("gemm_per_head");
}

d9d_status d9d_k_gemm_per_head(d9d_stream s, const d9d_gemm_per_head_dims *n, void *y,
                               const void *x, const void *w)
{
    D9D_TRY(d9di_args_check_float("gemm_per_head", n->t));
    if (n->m * n->heads * n->out == 0)
        return D9D_OK;
    if (d9di_gemm_per_head_skinny_supported(n, x, w))
        return d9di_gemm_per_head_skinny(s, n, y, x, w);
    if (is_skinny(n, x, w))
        return launch_skinny(s, n, y, x, w);
    return D9DI_DISPATCH_DTYPE(n->t, T, launch<T>(s, n, y, x, w));
}
