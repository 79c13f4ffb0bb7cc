/* grouped_gemm_simt.cu - grouped GEMM in SIMT tiles, for any sizes and types.
 *
 * A launch has a block for every tile that there could be: the tiles of all rows, and one more for
 * each expert, whose last tile may be ragged. tile_list_kernel() assigns the tiles.
 */
#include "cuda/gemm/grouped_gemm.h"
#include "cuda/gemm/simt_tile.cuh"

/* The rows of an expert, clamped in case the offsets are invalid. */
static __device__ __forceinline__ void expert_rows(const int32_t *offset, int64_t rows, int64_t x,
                                                   int64_t *first, int64_t *end)
{
    *first = d9di_i64_max(0, d9di_i64_min(rows, offset[x]));
    *end = d9di_i64_max(*first, d9di_i64_min(rows, offset[x + 1]));
}

static int64_t max_tiles(int64_t rows, int64_t e)
{
    return d9di_i64_ceil_div(rows, SIDE) + e;
}

/* A tile of rows: its expert, -1 for none, and its first row. */
struct row_tile {
    int32_t expert, row;
};

/* One block lists the experts' tiles in order, THREADS experts at a time. */
static __global__ void tile_list_kernel(row_tile *tile, int64_t tile_limit, const int32_t *offset,
                                        int64_t rows, int64_t e)
{
    __shared__ int64_t count[THREADS];
    int64_t before = 0;

    for (int64_t x0 = 0; x0 < e; x0 += THREADS) {
        const int64_t x = x0 + threadIdx.x;
        int64_t first = 0, end = 0, at = before;

        if (x < e)
            expert_rows(offset, rows, x, &first, &end);
        count[threadIdx.x] = d9di_i64_ceil_div(end - first, SIDE);
        __syncthreads();
        for (int i = 0; i < THREADS; i++) {
            at += i < threadIdx.x ? count[i] : 0;
            before += count[i];
        }
        for (int64_t r = first; r < end && at < tile_limit; r += SIDE, at++)
            tile[at] = {(int32_t)x, (int32_t)r};
        __syncthreads();
    }
    for (int64_t at = before + threadIdx.x; at < tile_limit; at += THREADS)
        tile[at] = {-1, 0};
}

/* Y = X W_e or X W_e', plus the product of a second X and W, if any. w is the strides within an
 * expert's matrix of `size` elements. */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    rows_kernel(T *y, const T *x, operand<T> w, const T *x2, const T *w2, int64_t size,
                const row_tile *tile, const int32_t *offset, int64_t rows, int64_t n, int64_t k,
                float beta)
{
    __shared__ tile_shared sh;
    const row_tile block_tile = tile[blockIdx.y];
    const int64_t column = (int64_t)blockIdx.x * SIDE;
    float sum[MICRO][MICRO] = {};
    int64_t first, end;

    if (block_tile.expert < 0)
        return;
    expert_rows(offset, rows, block_tile.expert, &first, &end);
    for (; x != NULL; x = x2, w.p = w2, x2 = NULL) {
        const operand<T> a = {x, k, 1}, b = {w.p + block_tile.expert * size, w.side, w.along};

        tile_add(sum, sh, a, b, block_tile.row, column, end, n, k);
    }
    tile_store(y, n, sum, block_tile.row, column, end, n, beta, (const T *)NULL);
}

/* dW_e = X_e' dY_e + beta dW_e */
template <class T, class G>
static __global__ void __launch_bounds__(THREADS)
    dw_kernel(G *dw, float beta, const T *x, const T *dy, const int32_t *offset, int64_t rows,
              int64_t in, int64_t out)
{
    const int64_t across = d9di_i64_ceil_div(out, SIDE);
    int64_t first, end;

    expert_rows(offset, rows, blockIdx.y, &first, &end);
    const operand<T> a = {x + first * in, 1, in}, b = {dy + first * out, 1, out};
    tile_product(dw + blockIdx.y * in * out, out, a, b, blockIdx.x / across * SIDE,
                 blockIdx.x % across * SIDE, in, out, end - first, beta, (const G *)NULL);
}

template <class T>
static d9d_status launch_rows(d9d_stream s, const d9di_grouped_gemm_call &g, int64_t n, int64_t k,
                              const operand<T> &w)
{
    const int64_t tile_limit = max_tiles(g.rows, g.e), bytes = tile_limit * sizeof(row_tile);
    const dim3 grid((unsigned)d9di_i64_ceil_div(n, SIDE), (unsigned)tile_limit);
    cudaStream_t queue = d9di_cuda_stream(s);
    void *tile;

    if (g.rows == 0 || n == 0)
        return D9D_OK;
    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &tile));
    tile_list_kernel<<<1, THREADS, 0, queue>>>((row_tile *)tile, tile_limit, g.offset, g.rows, g.e);
    rows_kernel<<<grid, THREADS, 0, queue>>>((T *)g.c, (const T *)g.a, w, (const T *)g.a2,
                                             (const T *)g.b2, n * k, (const row_tile *)tile,
                                             g.offset, g.rows, n, k, g.beta);
    d9di_cuda_scratch_free(s, tile, bytes);
    return d9di_cuda_check_launch(g.op);
}

template <class T, class G>
static d9d_status launch_wgrad(d9d_stream s, const d9di_grouped_gemm_call &g)
{
    const dim3 grid((unsigned)(d9di_i64_ceil_div(g.in, SIDE) * d9di_i64_ceil_div(g.out, SIDE)),
                    (unsigned)g.e);

    if (g.in == 0 || g.out == 0)
        return D9D_OK;
    dw_kernel<<<grid, THREADS, 0, d9di_cuda_stream(s)>>>(
        (G *)g.c, g.beta, (const T *)g.a, (const T *)g.b, g.offset, g.rows, g.in, g.out);
    return d9di_cuda_check_launch(g.op);
}

template <class T> static d9d_status launch(d9d_stream s, const d9di_grouped_gemm_call &g)
{
    switch (g.form) {
    case D9DI_GROUPED_GEMM_FWD:
        return launch_rows<T>(s, g, g.out, g.in, {(const T *)g.b, 1, g.out});
    case D9DI_GROUPED_GEMM_DGRAD:
        return launch_rows<T>(s, g, g.in, g.out, {(const T *)g.b, g.out, 1});
    default: return D9DI_DISPATCH_DTYPE(g.ct, G, launch_wgrad<T, G>(s, g));
    }
}

bool d9di_grouped_gemm_simt_supported(d9d_stream s, const d9di_grouped_gemm_call *g)
{
    (void)s, (void)g;
    return true;
}

/* Checks the grid limits: 65535 blocks in y, 2^31 - 1 rows. */
d9d_status d9di_grouped_gemm_simt(d9d_stream s, const d9di_grouped_gemm_call *g)
{
    enum { MAX_GRID_Y = 65535 };

    if (g->rows > INT32_MAX || max_tiles(g->rows, g->e) > MAX_GRID_Y)
        return D9D_FAIL(D9D_EINVAL, "%s: %lld rows of %lld experts are over %lld tiles of %d",
                        g->op, (long long)g->rows, (long long)g->e, (long long)MAX_GRID_Y, SIDE);
    return D9DI_DISPATCH_DTYPE(g->t, T, launch<T>(s, *g));
}
