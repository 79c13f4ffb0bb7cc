/* grouped_gemm_skinny.cu - grouped GEMM for decode in bfloat16: a few rows for each of a few
 * experts, whose matrices are read once, at memory bandwidth.
 *
 * y = x W_g + b for the rows of group g: an expert, or a head. A block has 64 columns of one
 * group's matrix [in, out], and up to four rows of x at a time; eight warps share K. With GATED
 * eight warps have gate and eight have the same columns of up, and the gated unit follows at once.
 * A lane has eight columns of every fourth eight rows of W, so that eight loads of 16 bytes are in
 * flight per lane:
 *
 *     a warp, 32 rows of W    k  0 ..  7   lanes  0 ..  7   8 columns each: 128 bytes of a row
 *                             k  8 .. 15   lanes  8 .. 15
 *                             k 16 .. 23   lanes 16 .. 23
 *                             k 24 .. 31   lanes 24 .. 31
 *     eight warps             k 0 .. 255, then the next 256
 *
 * The grid has as many groups as rows could belong to; a block finds its own, the n-th expert that
 * has rows. Rows of x are in expert order or, with `source`, tokens' rows wherever they are.
 *
 * PDL: a block lets the next kernel begin when it has waited for the previous one. So a kernel
 * that follows this one may read what was complete before this one began: the routing. It finds
 * its expert and requests its first weights while this kernel ends (`early`).
 *
 * Batch-invariant: the order of a sum depends on K only, not on the number of rows.
 */
#include "cuda/elementwise/glu.cuh"
#include "cuda/gemm/grouped_gemm.h"

enum {
    EIGHT = 8,
    COLUMN_LANES = 8, /* lanes that share rows of W */
    BLOCK_COLUMNS = COLUMN_LANES * EIGHT,
    K_GROUPS = WARP / COLUMN_LANES,
    K_WARPS = 8, /* warps of a matrix */
    MATRIX_THREADS = K_WARPS * WARP,
    STEP = K_WARPS * K_GROUPS * EIGHT, /* of K */
    ROW_TILE = 4,
    MAX_GROUPED_ROWS = 160, /* of all experts: 16 tokens with 10 experts */
    MAX_TOKENS = 16         /* of heads */
};

struct skinny_args {
    const bf16 *x;
    const int32_t *offset; /* [groups + 1] rows of groups; NULL: each has all */
    const int32_t *source; /* row r is row source[r] / choices of x; NULL: row r */
    int choices;
    int64_t rows, groups, in, out;
    int64_t x_row, x_group, y_row, y_group, w_group; /* strides */
    const bf16 *w, *bias, *w_up, *bias_up;           /* up: GATED only */
    bf16 *y;
    d9d_glu glu;
    bool early;
};

/* Sums of a matrix's warps. */
using warp_sums = float[K_WARPS][ROW_TILE][BLOCK_COLUMNS];

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

/* A lane's part of a group's matrix: where it begins, and where K begins. */
struct weight_part {
    const bf16 *w; /* NULL: no columns */
    int64_t first;
};

template <bool GATED>
static __device__ __forceinline__ weight_part part_of(const skinny_args &p, int64_t group)
{
    const int64_t column = (int64_t)blockIdx.x * BLOCK_COLUMNS + threadIdx.x % COLUMN_LANES * EIGHT;
    const bf16 *w = GATED && threadIdx.x >= MATRIX_THREADS ? p.w_up : p.w;

    return {column < p.out ? w + group * p.w_group + column : NULL,
            threadIdx.x % MATRIX_THREADS / COLUMN_LANES * EIGHT};
}

/* Requests eight rows from k on, if they are there. */
static __device__ __forceinline__ void load_rows(uint4 (&v)[EIGHT], const skinny_args &p,
                                                 const weight_part &w, int64_t k)
{
    if (w.w != NULL && k < p.in)
#pragma unroll
        for (int i = 0; i < EIGHT; i++)
            v[i] = load_weights(w.w + (k + i) * p.out);
}

/* Row `row` of x. */
static __device__ __forceinline__ const bf16 *x_row(const skinny_args &p, int64_t group,
                                                    int64_t row)
{
    const int64_t at = p.source != NULL ? p.source[row] / p.choices : row;

    return p.x + group * p.x_group + at * p.x_row;
}

/* Rows row .. row + live - 1, of R: sums of this thread's columns over its part of K. v: the first
 * weights, requested. */
template <int R>
static __device__ __forceinline__ void sum_rows(float (&sum)[R][EIGHT], uint4 (&v)[EIGHT],
                                                const skinny_args &p, const weight_part &w,
                                                int64_t group, int64_t row, int live)
{
    const bf16 *x[R];

#pragma unroll
    for (int i = 0; i < R; i++)
        x[i] = x_row(p, group, row + (i < live ? i : 0));
    for (int64_t k = w.first; k < p.in && w.w != NULL; k += STEP) {
        float u[R][EIGHT];

#pragma unroll
        for (int i = 0; i < R; i++)
            unpack(u[i], *(const uint4 *)(x[i] + k));
#pragma unroll
        for (int i = 0; i < EIGHT; i++) {
            float c[EIGHT];

            unpack(c, v[i]);
#pragma unroll
            for (int j = 0; j < R; j++)
#pragma unroll
                for (int e = 0; e < EIGHT; e++)
                    sum[j][e] = fmaf(u[j][i], c[e], sum[j][e]);
        }
        load_rows(v, p, w, k + STEP);
    }
}

/* The sum of the warps' parts, in their order, plus a bias. */
static __device__ __forceinline__ float sum_warps(const warp_sums &part, int row, int column,
                                                  const bf16 *bias, int64_t at)
{
    float all = part[0][row][column];

#pragma unroll
    for (int w = 1; w < K_WARPS; w++)
        all += part[w][row][column];
    return bias != NULL ? all + to_float(bias[at]) : all;
}

template <bool GATED>
static __device__ __forceinline__ void store_rows(const skinny_args &p, const warp_sums *part,
                                                  int64_t group, int64_t row, int live)
{
    for (int i = threadIdx.x; i < live * BLOCK_COLUMNS; i += blockDim.x) {
        const int r = i / BLOCK_COLUMNS, c = i % BLOCK_COLUMNS;
        const int64_t column = (int64_t)blockIdx.x * BLOCK_COLUMNS + c, at = group * p.out + column;

        if (column >= p.out)
            continue;
        float v = sum_warps(part[0], r, c, p.bias, at);

        if (GATED) /* of gate and up as they would be stored */
            v = glu_of<bf16>(
                p.glu, to_float(__float2bfloat16_rn(v)),
                to_float(__float2bfloat16_rn(sum_warps(part[1], r, c, p.bias_up, at))));
        store_float(p.y + group * p.y_group + (row + r) * p.y_row + column, v);
    }
}

template <int R, bool GATED>
static __device__ __forceinline__ void product_rows(const skinny_args &p, warp_sums *part,
                                                    uint4 (&v)[EIGHT], const weight_part &w,
                                                    int64_t group, int64_t row, int live)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float sum[R][EIGHT] = {};

    sum_rows<R>(sum, v, p, w, group, row, live);
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int j = 0; j < EIGHT; j++) {
            float all = sum[r][j];

            all += __shfl_xor_sync(~0u, all, COLUMN_LANES);
            all += __shfl_xor_sync(~0u, all, 2 * COLUMN_LANES);
            if (lane < COLUMN_LANES)
                part[warp / K_WARPS][warp % K_WARPS][r][lane * EIGHT + j] = all;
        }
    __syncthreads();
    store_rows<GATED>(p, part, group, row, live);
    __syncthreads();
}

/* Grid: column tiles, groups. */
template <bool GATED>
static __global__ void __launch_bounds__(GATED ? 2 * MATRIX_THREADS : MATRIX_THREADS, GATED ? 1 : 2)
    grouped_gemm_skinny_kernel(skinny_args p)
{
    __shared__ warp_sums part[GATED ? 2 : 1];
    uint4 v[EIGHT] = {};

    if (!p.early)
        pdl_wait();
    pdl_launch_dependents();
    const row_range g = find_group(p, blockIdx.y);
    const weight_part w = part_of<GATED>(p, g.group);

    if (g.first < g.end)
        load_rows(v, p, w, w.first);
    if (p.early)
        pdl_wait();
    for (int64_t r = g.first; r < g.end; r += ROW_TILE) {
        const int left = (int)d9di_i64_min(ROW_TILE, g.end - r);

        if (r > g.first)
            load_rows(v, p, w, w.first);
        if (left == 1)
            product_rows<1, GATED>(p, part, v, w, g.group, r, left);
        else if (left == 2)
            product_rows<2, GATED>(p, part, v, w, g.group, r, left);
        else
            product_rows<ROW_TILE, GATED>(p, part, v, w, g.group, r, left);
    }
}

template <bool GATED>
static d9d_status launch(d9d_stream s, const char *op, const skinny_args &p, int64_t groups)
{
    const int64_t tiles = d9di_i64_ceil_div(p.out, BLOCK_COLUMNS);

    return pdl_launch(s, op, grouped_gemm_skinny_kernel<GATED>,
                      dim3((unsigned)tiles, (unsigned)groups),
                      GATED ? 2 * MATRIX_THREADS : MATRIX_THREADS, p);
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

/* The matrix of the call, which the others follow. */
static skinny_args args_of(const d9di_grouped_gemm_call *g)
{
    skinny_args p = {};

    p.x = (const bf16 *)g->a;
    p.w = (const bf16 *)g->b;
    p.y = (bf16 *)g->c;
    p.offset = g->offset;
    p.rows = g->rows;
    p.groups = g->e;
    p.in = p.x_row = g->in;
    p.out = p.y_row = g->out;
    p.w_group = g->in * g->out;
    return p;
}

static int64_t groups_of(const d9di_grouped_gemm_call *g)
{
    return d9di_i64_min(g->e, g->rows);
}

d9d_status d9di_grouped_gemm_skinny(d9d_stream s, const d9di_grouped_gemm_call *g)
{
    return launch<false>(s, g->op, args_of(g), groups_of(g));
}

d9d_status d9di_grouped_gemm_skinny_glu(d9d_stream s, const d9di_grouped_gemm_call *g,
                                        const d9di_grouped_gemm_gate *gate)
{
    skinny_args p = args_of(g);

    p.source = gate->source;
    p.choices = (int)gate->choices;
    p.w_up = (const bf16 *)gate->up;
    p.bias = (const bf16 *)gate->b_gate;
    p.bias_up = (const bf16 *)gate->b_up;
    p.glu = *gate->glu;
    return launch<true>(s, g->op, p, groups_of(g));
}

d9d_status d9di_grouped_gemm_skinny_after(d9d_stream s, const d9di_grouped_gemm_call *g,
                                          const void *bias)
{
    skinny_args p = args_of(g);

    p.bias = (const bf16 *)bias;
    p.early = true;
    return launch<false>(s, g->op, p, groups_of(g));
}

bool d9di_gemm_per_head_skinny_supported(const d9d_gemm_per_head_dims *n, const void *x,
                                         const void *w)
{
    return n->t == D9D_BF16 && !n->trans_w && n->m <= MAX_TOKENS && n->in % EIGHT == 0 &&
           n->x_cols % EIGHT == 0 && n->x_first % EIGHT == 0 && n->out % EIGHT == 0 &&
           is_aligned(x) && is_aligned(w);
}

d9d_status d9di_gemm_per_head_skinny(d9d_stream s, const d9d_gemm_per_head_dims *n, void *y,
                                     const void *x, const void *w)
{
    skinny_args p = {};

    p.x = (const bf16 *)x + n->x_first;
    p.w = (const bf16 *)w + n->w_first * n->out;
    p.y = (bf16 *)y;
    p.rows = n->m;
    p.groups = n->heads;
    p.in = n->in;
    p.out = n->out;
    p.x_group = n->x_cols;
    p.y_group = n->y_cols;
    p.x_row = n->heads * n->x_cols;
    p.y_row = n->heads * n->y_cols;
    p.w_group = n->w_head_rows * n->out;
    return launch<false>(s, "gemm_per_head", p, n->heads);
}
