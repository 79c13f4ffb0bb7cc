/* grouped_gemm_skinny.cu - grouped GEMM for decode in bfloat16: a few rows for each of a few
 * experts, whose matrices are read once, at memory bandwidth.
 *
 * y = x W_g + b for the rows of group g: an expert, or a head. A block has 64 columns of one
 * group's matrix [in, out], and up to four rows of x at a time; its warps share K. A lane has eight
 * columns of every fourth eight rows of W, so that eight loads of 16 bytes are in flight per lane:
 *
 *     a warp, 32 rows of W    k  0 ..  7   lanes  0 ..  7   8 columns each: 128 bytes of a row
 *                             k  8 .. 15   lanes  8 .. 15
 *                             k 16 .. 23   lanes 16 .. 23
 *                             k 24 .. 31   lanes 24 .. 31
 *     eight warps             k 0 .. 255, then the next 256
 *
 * One launch takes up to two matrices of the same x, such as gate and up. The grid has as many
 * groups as rows could belong to; a block finds its own, the n-th expert that has rows.
 *
 * Batch-invariant: the order of a sum depends on K only, not on the number of rows.
 */
#include "cuda/common/common.cuh"
#include "cuda/gemm/grouped_gemm.h"

enum {
    EIGHT = 8,
    COLUMN_LANES = 8, /* lanes that share rows of W */
    BLOCK_COLUMNS = COLUMN_LANES * EIGHT,
    K_GROUPS = WARP / COLUMN_LANES,
    BLOCK_WARPS = 8,
    STEP = BLOCK_WARPS * K_GROUPS * EIGHT, /* of K */
    ROW_TILE = 4,
    MAX_GROUPED_ROWS = 160, /* of all experts: 16 tokens with 10 experts */
    MAX_TOKENS = 16         /* of heads */
};

struct skinny_args {
    const bf16 *x;
    const int32_t *offset;                /* [groups + 1] rows of groups; NULL: each has all */
    int64_t rows, groups, in, out, tiles; /* tiles of columns */
    int64_t x_row, x_group, y_row, y_group, w_group; /* strides */
    d9di_grouped_gemm_matrix of[D9DI_GROUPED_GEMM_MATRICES];
};

struct row_range {
    int64_t group, first, end;
};

/* The n-th group that has rows. All lanes agree; without one the range is empty. */
static __device__ __forceinline__ row_range find_group(const skinny_args &p, int n)
{
    const int lane = threadIdx.x % WARP;

    if (p.offset == NULL)
        return {n, 0, p.rows};
    for (int64_t base = 0; base < p.groups; base += WARP) {
        const int64_t g = base + lane;
        unsigned mask = __ballot_sync(~0u, g < p.groups && p.offset[g] < p.offset[g + 1]);
        const int found = __popc(mask);

        if (n >= found) {
            n -= found;
            continue;
        }
        for (; n > 0; n--)
            mask &= mask - 1;
        const int64_t at = base + __ffs((int)mask) - 1;

        return {at, d9di_i64_max(0, p.offset[at]), d9di_i64_min(p.rows, p.offset[at + 1])};
    }
    return {0, 0, 0};
}

/* 16 bytes of a matrix, of which each block reads its own once. */
static __device__ __forceinline__ uint4 load_weights(const bf16 *p)
{
    uint4 v;

    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

static __device__ __forceinline__ void unpack(float (&to)[EIGHT], const uint4 &v)
{
    const uint32_t two[] = {v.x, v.y, v.z, v.w};

#pragma unroll
    for (int i = 0; i < EIGHT / 2; i++) {
        to[2 * i] = __uint_as_float(two[i] << 16);
        to[2 * i + 1] = __uint_as_float(two[i] & 0xffff0000u);
    }
}

/* Rows row .. row + live - 1, of R: sums of this thread's columns over its part of K. */
template <int R>
static __device__ __forceinline__ void sum_rows(float (&sum)[R][EIGHT], const skinny_args &p,
                                                const bf16 *w, const bf16 *x, int live)
{
    const int first = threadIdx.x / COLUMN_LANES * EIGHT;

    for (int64_t k = first; k < p.in; k += STEP) {
        uint4 v[EIGHT];
        float u[R][EIGHT];

#pragma unroll
        for (int i = 0; i < EIGHT; i++)
            v[i] = load_weights(w + (k + i) * p.out);
#pragma unroll
        for (int r = 0; r < R; r++)
            unpack(u[r], *(const uint4 *)(x + (r < live ? r : 0) * p.x_row + k));
#pragma unroll
        for (int i = 0; i < EIGHT; i++) {
            float c[EIGHT];

            unpack(c, v[i]);
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int j = 0; j < EIGHT; j++)
                    sum[r][j] = fmaf(u[r][i], c[j], sum[r][j]);
        }
    }
}

using block_sums = float[BLOCK_WARPS][ROW_TILE][BLOCK_COLUMNS];

template <int R>
static __device__ __forceinline__ void product_rows(const skinny_args &p, block_sums &part,
                                                    const d9di_grouped_gemm_matrix &m,
                                                    int64_t group, int64_t row, int live)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int64_t column = blockIdx.x % p.tiles * BLOCK_COLUMNS,
                  at = column + lane % COLUMN_LANES * EIGHT;
    float sum[R][EIGHT] = {};

    if (at < p.out)
        sum_rows<R>(sum, p, (const bf16 *)m.w + group * p.w_group + at,
                    p.x + group * p.x_group + row * p.x_row, live);
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int j = 0; j < EIGHT; j++) {
            float all = sum[r][j];

            all += __shfl_xor_sync(~0u, all, COLUMN_LANES);
            all += __shfl_xor_sync(~0u, all, 2 * COLUMN_LANES);
            if (lane < COLUMN_LANES)
                part[warp][r][lane * EIGHT + j] = all;
        }
    __syncthreads();
    for (int i = threadIdx.x; i < live * BLOCK_COLUMNS; i += BLOCK_WARPS * WARP) {
        const int r = i / BLOCK_COLUMNS, c = i % BLOCK_COLUMNS;
        float all = part[0][r][c];

        if (column + c >= p.out)
            continue;
#pragma unroll
        for (int k = 1; k < BLOCK_WARPS; k++)
            all += part[k][r][c];
        if (m.bias != NULL)
            all += to_float(((const bf16 *)m.bias)[group * p.out + column + c]);
        store_float((bf16 *)m.y + group * p.y_group + (row + r) * p.y_row + column + c, all);
    }
    __syncthreads();
}

/* Grid: column tiles of all matrices, groups. */
static __global__ void __launch_bounds__(BLOCK_WARPS *WARP, 2)
    grouped_gemm_skinny_kernel(skinny_args p)
{
    __shared__ block_sums part;
    const d9di_grouped_gemm_matrix m = p.of[blockIdx.x / p.tiles];

    pdl_launch_dependents();
    pdl_wait();
    const row_range g = find_group(p, blockIdx.y);

    for (int64_t r = g.first; r < g.end; r += ROW_TILE) {
        const int left = (int)d9di_i64_min(ROW_TILE, g.end - r);

        if (left == 1)
            product_rows<1>(p, part, m, g.group, r, left);
        else if (left == 2)
            product_rows<2>(p, part, m, g.group, r, left);
        else
            product_rows<ROW_TILE>(p, part, m, g.group, r, left);
    }
}

static d9d_status launch(d9d_stream s, const char *op, int n, const skinny_args &p, int64_t groups)
{
    return pdl_launch(s, op, grouped_gemm_skinny_kernel,
                      dim3((unsigned)(n * p.tiles), (unsigned)groups), BLOCK_WARPS * WARP, p);
}

static bool is_aligned(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

bool d9di_grouped_gemm_skinny_supported(d9d_stream s, const d9di_grouped_gemm_call *g)
{
    (void)s;
    return g->form == D9DI_GROUPED_GEMM_FWD && g->t == D9D_BF16 && g->ct == D9D_BF16 &&
           g->rows > 0 && g->rows <= MAX_GROUPED_ROWS && g->in % EIGHT == 0 &&
           g->out % EIGHT == 0 && g->out > 0 && is_aligned(g->a) && is_aligned(g->b);
}

d9d_status d9di_grouped_gemm_skinny_multi(d9d_stream s, const d9di_grouped_gemm_call *g, int n,
                                          const d9di_grouped_gemm_matrix *of)
{
    skinny_args p = {(const bf16 *)g->a,
                     g->offset,
                     g->rows,
                     g->e,
                     g->in,
                     g->out,
                     d9di_i64_ceil_div(g->out, BLOCK_COLUMNS),
                     g->in,
                     0,
                     g->out,
                     0,
                     g->in * g->out,
                     {}};

    for (int i = 0; i < n; i++)
        p.of[i] = of[i];
    return launch(s, g->op, n, p, d9di_i64_min(g->e, g->rows));
}

d9d_status d9di_grouped_gemm_skinny(d9d_stream s, const d9di_grouped_gemm_call *g)
{
    const d9di_grouped_gemm_matrix one = {g->b, g->c, NULL};

    return d9di_grouped_gemm_skinny_multi(s, g, 1, &one);
}

bool d9di_gemm_per_head_skinny_supported(const d9d_gemm_per_head_dims *n, const void *x,
                                         const void *w)
{
    return n->t == D9D_BF16 && !n->trans_w && n->m <= MAX_TOKENS && n->in % EIGHT == 0 &&
           n->out % EIGHT == 0 && is_aligned(x) && is_aligned(w);
}

d9d_status d9di_gemm_per_head_skinny(d9d_stream s, const d9d_gemm_per_head_dims *n, void *y,
                                     const void *x, const void *w)
{
    const skinny_args p = {(const bf16 *)x,
                           NULL,
                           n->m,
                           n->heads,
                           n->in,
                           n->out,
                           d9di_i64_ceil_div(n->out, BLOCK_COLUMNS),
                           n->heads * n->in,
                           n->in,
                           n->heads * n->out,
                           n->out,
                           n->w_head_rows * n->out,
                           {{(const bf16 *)w + n->w_first * n->out, y, NULL}}};

    return launch(s, "gemm_per_head", 1, p, n->heads);
}
