/* gated_delta_prepare.cu - what a chunk of the gated delta rule has without the state, in bfloat16;
 * see gated_delta.cuh.
 *
 * A block has a chunk of a key head. It computes K K' and Q K' once, from unscaled inputs, for all
 * value heads that share the key head. A warpgroup of four warps has one of those heads at a time:
 *
 *     A = beta G k K K' k     P = G q Q K' k     T = (1 + A')^-1 = S'
 *
 * T is computed in blocks of BLOCK. First come the diagonal blocks, one lane per row. Then a warp
 * computes block row c, T_cr = -(sum over c <= m < r of T_cm A_rm') T_rr. Its intermediates stay
 * in registers as split operands (mma.cuh); A and the diagonal blocks come from shared memory. The
 * product of two low parts is left out, 2^-18 of the whole.
 */
#include "cuda/common/mma.cuh"
#include "cuda/gdn/gated_delta.cuh"

enum {
    ROW_PAD = 8, /* between rows, so that eight rows are in distinct banks */
    KEY_STRIDE = MAX_KEY_SIZE + ROW_PAD,
    TILE_STRIDE = CHUNK + ROW_PAD,
    HEADS = 2,                       /* value heads at a time, one per warpgroup */
    GROUP_THREADS = THREADS / HEADS, /* threads of a warpgroup */
    N_BLOCKS = CHUNK / BLOCK,        /* blocks in a row of A; warps in a warpgroup */
    VECTORS = CHUNK / 8              /* 16-byte vectors in a row */
};
static_assert((int)N_BLOCKS == GROUP_THREADS / WARP, "one warp per block row");

/* A below its block diagonal, and the diagonal blocks of T, in two bfloat16 parts. */
typedef bf16 split_tile[2][CHUNK][TILE_STRIDE];

/* Shared memory of a warpgroup. */
struct warpgroup_smem {
    split_tile a;
    float b[2][CHUNK]; /* cumulative sums of g, high and low part */
    float beta[CHUNK];
};
struct block_smem {
    union {
        struct {
            bf16 k[CHUNK][KEY_STRIDE], q[CHUNK][KEY_STRIDE];
        } row;
        padded_tile product[2]; /* K K', Q K' */
    };
    warpgroup_smem warpgroup[HEADS];
    float inv_q[CHUNK], inv_k[CHUNK];
};

static __device__ __forceinline__ void group_sync(int warpgroup)
{
    asm volatile("bar.sync %0, %1;" ::"r"(1 + warpgroup), "r"((int)GROUP_THREADS) : "memory");
}

/* Stores or loads eight elements, 16-byte aligned. */
static __device__ __forceinline__ void store_eight(bf16 *p, const float *v)
{
    *(uint4 *)p = make_uint4(pack_bf16x2(v[0], v[1]), pack_bf16x2(v[2], v[3]),
                             pack_bf16x2(v[4], v[5]), pack_bf16x2(v[6], v[7]));
}
static __device__ __forceinline__ void load_eight(float *v, const bf16 *p)
{
    const uint4 x = *(const uint4 *)p;
    const uint32_t w[4] = {x.x, x.y, x.z, x.w};

#pragma unroll
    for (int j = 0; j < 4; j++) {
        v[2 * j] = __uint_as_float(w[j] << 16);
        v[2 * j + 1] = __uint_as_float(w[j] & 0xffff0000u);
    }
}
static __device__ __forceinline__ void load_eight(float *v, const float *p)
{
    *(float4 *)v = ((const float4 *)p)[0];
    *(float4 *)(v + 4) = ((const float4 *)p)[1];
}

/* Loads n rows of d features by cp.async; the rest of the tile is zeroed. */
static __device__ __forceinline__ void load_rows(bf16 (*to)[KEY_STRIDE], const bf16 *from,
                                                 int64_t step, int n, int d)
{
    enum { ACROSS = MAX_KEY_SIZE / 8, ROWS_PER_ITERATION = THREADS / ACROSS };
    const int i = threadIdx.x / ACROSS, j = threadIdx.x % ACROSS * 8;
    const bf16 *at = from + i * step + j;

#pragma unroll
    for (int r = 0; r < CHUNK; r += ROWS_PER_ITERATION) {
        const bool valid = i + r < n && j < d;

        cp_async_16(&to[i + r][j], valid ? at : from, valid);
        at += ROWS_PER_ITERATION * step;
    }
}

/* inv_k = 1 / |k|, inv_q = 1 / |q|; two threads per row. */
static __device__ __forceinline__ void compute_inverse_lengths(block_smem &m)
{
    const int r = threadIdx.x / 2, i = r % CHUNK;
    const bf16 *row = r < CHUNK ? m.row.k[i] : m.row.q[i];
    float sum = 0.0f;

#pragma unroll
    for (int j = 0; j < MAX_KEY_SIZE; j += 16) {
        float x[8];

        load_eight(x, row + j + threadIdx.x % 2 * 8);
#pragma unroll
        for (int u = 0; u < 8; u++)
            sum = fmaf(x[u], x[u], sum);
    }
    sum = group_sum<2>(sum);
    if (threadIdx.x % 2 == 0)
        (r < CHUNK ? m.inv_k : m.inv_q)[i] = 1.0f / sqrtf(sum + 1e-6f);
}

/* Loads an A tile [16, 16]. */
template <int STRIDE> static __device__ __forceinline__ void load_a(uint32_t (&v)[4], const bf16 *p)
{
    const int l = threadIdx.x % WARP;

    ldmatrix_16x16<false>(v, p + (l / 8 % 2 * 8 + l % 8) * STRIDE + l / 16 * 8);
}

/* product[0] = K K', product[1] = Q K', lower triangles: a warp has 16 rows of one. Overwrites K
 * and Q. */
static __device__ __forceinline__ void multiply_rows(block_smem &m, int d)
{
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = warp % N_BLOCKS * 16;
    const bf16(*a)[KEY_STRIDE] = warp < N_BLOCKS ? m.row.k : m.row.q;
    float c[VECTORS][4] = {};

    for (int k = 0; k < d; k += 16) {
        uint32_t x[4];

        load_a<KEY_STRIDE>(x, &a[row][k]);
#pragma unroll
        for (int j = 0; j < VECTORS; j += 2)
            if (j * 8 <= row)
                mma_accumulate<false, KEY_STRIDE>(c[j], c[j + 1], x, &m.row.k[j * 8][k]);
    }
    __syncthreads(); /* the products overwrite K and Q */
#pragma unroll
    for (int j = 0; j < VECTORS; j++)
#pragma unroll
        for (int e = 0; e < 4; e += 2)
            *(float2 *)&m.product[warp / N_BLOCKS][row + lane / 4 + e * 4][j * 8 + lane % 4 * 2] =
                make_float2(c[j][e], c[j][e + 1]);
    __syncthreads();
}

/* b = cumulative sums of g, and beta; two tokens per lane, by the first warp of the warpgroup. */
static __device__ __forceinline__ void sum_gates(warpgroup_smem &w, const gated_delta_call<bf16> &v,
                                                 const chunk &x)
{
    const int lane = threadIdx.x % WARP;
    double sum[2], before;

#pragma unroll
    for (int u = 0; u < 2; u++) {
        const int i = 2 * lane + u;
        const int64_t gate = (x.first + i) * v.n.a + x.h;

        sum[u] = i < x.n ? (double)v.g[gate] : 0.0;
        w.beta[i] = i < x.n ? to_float(v.b[gate]) : 0.0f;
    }
    sum[1] += sum[0];
    before = sum[1];
#pragma unroll
    for (int o = 1; o < WARP; o *= 2) {
        const double left = __shfl_up_sync(~0u, before, o);

        before += lane >= o ? left : 0.0;
    }
    before -= sum[1];
#pragma unroll
    for (int u = 0; u < 2; u++) {
        const double b = before + sum[u];
        const int i = 2 * lane + u;

        w.b[0][i] = (float)b;
        w.b[1][i] = (float)(b - (double)w.b[0][i]);
        w.beta[i] = i < x.n ? sigmoid(w.beta[i]) : 0.0f;
    }
}

/* f = the factors of every token, one thread per token. */
static __device__ __forceinline__ void make_factors(const block_smem &m, const warpgroup_smem &w,
                                                    chunk_factors &f, float scale, int n)
{
    const int i = threadIdx.x % GROUP_THREADS;
    const float b = w.b[0][i], lo = w.b[1][i];
    const float b_end = w.b[0][CHUNK - 1], lo_end = w.b[1][CHUNK - 1];
    const float from_start = expf(b), to_end = expf((b_end - b) + (lo_end - lo)), beta = w.beta[i];
    const float q = i < n ? m.inv_q[i] * scale : 0.0f, k = i < n ? m.inv_k[i] : 0.0f;

    f.beta[i] = beta;
    f.beta_k_from_start[i] = beta * from_start * k;
    f.k_to_end[i] = k * to_end;
    f.q_from_start[i] = q * from_start;
    f.k_from_start[i] = from_start * k;
    f.q[i] = q;
    f.k[i] = k;
    f.inv_q[i] = i < n ? m.inv_q[i] : 0.0f;
    f.b[i] = (double)b + (double)lo;
    if (i == 0)
        f.decay_last = expf(b_end);
}

/* Zeroes the vectors of P above and of T below the (block) diagonal. */
template <int PARTS> static __device__ __forceinline__ void clear_triangle(prepared_chunk &to)
{
#pragma unroll
    for (int r = 0; r < CHUNK * VECTORS / GROUP_THREADS; r++) {
        const int e = r * GROUP_THREADS + threadIdx.x % GROUP_THREADS, i = e / VECTORS,
                  u = e % VECTORS;

        if (u > i / 8)
            *(uint4 *)swizzled_vector(to.p, i, u) = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            if (u / 2 < i / BLOCK)
                *(uint4 *)swizzled_vector(to.t[part], i, u) = make_uint4(0, 0, 0, 0);
    }
}

/* Stores P to global memory and A, in two parts, to shared memory: the vectors that reach the lower
 * triangle. */
static __device__ __forceinline__ void compute_p_a(const block_smem &m, warpgroup_smem &w,
                                                   prepared_chunk &to, float scale)
{
    enum { ALL = VECTORS * (VECTORS + 1) / 2 * 8 };

    for (int e = threadIdx.x % GROUP_THREADS; e < ALL; e += GROUP_THREADS) {
        const int row = (int)((sqrtf((float)(e + 1)) - 1.0f) * 0.5f); /* of 8 x 8 blocks */
        const int t = e - 4 * row * (row + 1), i = 8 * row + t % 8, j = t / 8 * 8;
        const float k = m.inv_k[i] * w.beta[i], q = m.inv_q[i] * scale;
        const float b = w.b[0][i], lo_b = w.b[1][i];
        float p[8], a[8], lo[8];

        load_eight(a, &m.product[0][i][j]);
        load_eight(p, &m.product[1][i][j]);
#pragma unroll
        for (int u = 0; u < 8; u++) {
            const float log_decay = (b - w.b[0][j + u]) + (lo_b - w.b[1][j + u]);
            const float g = j + u <= i ? __expf(log_decay) * m.inv_k[j + u] : 0.0f;

            p[u] *= g * q;
            a[u] *= g * k;
            lo[u] = a[u] - to_float(__float2bfloat16_rn(a[u]));
        }
        store_eight(&w.a[0][i][j], a);
        store_eight(&w.a[1][i][j], lo);
        store_eight(swizzled_vector(to.p, i, j / 8), p);
    }
}

/* Computes this warp's diagonal block of T, which overwrites that of A, and stores it. A lane has a
 * row; lanes 0-15 store the high part, the others the low part. */
template <int PARTS>
static __device__ __forceinline__ void invert_diagonal_block(warpgroup_smem &w, prepared_chunk &to)
{
    const int at = threadIdx.x % GROUP_THREADS / WARP * BLOCK, lane = threadIdx.x % WARP;
    const int lane_row = lane % BLOCK, row = at + lane_row, part = lane / BLOCK;
    float a[BLOCK], x[BLOCK];

#pragma unroll
    for (int u = 0; u < BLOCK; u += 8) {
        float lo[8];

        load_eight(a + u, &w.a[0][row][at + u]);
        load_eight(lo, &w.a[1][row][at + u]);
#pragma unroll
        for (int i = 0; i < 8; i++)
            a[u + i] += lo[i];
    }
#pragma unroll
    for (int i = 0; i < BLOCK; i++)
        x[i] = i == lane_row ? 1.0f : 0.0f;
#pragma unroll
    for (int m = 0; m < BLOCK - 1; m++)
#pragma unroll
        for (int i = m + 1; i < BLOCK; i++)
            x[i] = fmaf(-__shfl_sync(~0u, a[m], i), x[m], x[i]);
#pragma unroll
    for (int i = 0; i < BLOCK; i++)
        x[i] = part == 0 ? x[i] : x[i] - to_float(__float2bfloat16_rn(x[i]));
    __syncwarp();
#pragma unroll
    for (int u = 0; u < 2; u++) {
        store_eight(&w.a[part][row][at + u * 8], x + u * 8);
        if (part < PARTS)
            store_eight(swizzled_vector(to.t[part], row, at / 8 + u), x + u * 8);
    }
}

/* Accumulators of a block: [0] of the high parts, [1] of the products with a low part, whose
 * dependency chain is longer. */
typedef float block_acc[2][2][4];

/* c += x times the block of `a` at (row, col), or its transpose with TRANS; both in two parts,
 * without the product of the low parts. */
template <bool TRANS>
static __device__ __forceinline__ void multiply_block(block_acc &c, const bf16_split &x,
                                                      const split_tile &a, int row, int col)
{
    uint32_t hi[4], lo[4];

    load_b<TRANS, TILE_STRIDE>(hi, &a[0][row][col]);
    load_b<TRANS, TILE_STRIDE>(lo, &a[1][row][col]);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        mma(c[0][i], x.hi, hi[2 * i], hi[2 * i + 1]);
        mma(c[1][i], x.lo, hi[2 * i], hi[2 * i + 1]);
        mma(c[1][i], x.hi, lo[2 * i], lo[2 * i + 1]);
    }
}
static __device__ __forceinline__ bf16_split split_acc(const block_acc &c, float sign)
{
    float x[2][4];

#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[i][e] = sign * (c[0][i][e] + c[1][i][e]);
    return split_bf16(x[0], x[1]);
}

static __device__ __forceinline__ void store_block(bf16 *to, const uint32_t (&x)[4], int row,
                                                   int unit)
{
    const int lane = threadIdx.x % WARP;

#pragma unroll
    for (int e = 0; e < 4; e++)
        *((uint32_t *)swizzled_vector(to, row + lane / 4 + e % 2 * 8, unit + e / 2) + lane % 4) =
            x[e];
}

/* Computes and stores the blocks of this warp's row of T right of the diagonal. */
template <int PARTS>
static __device__ __forceinline__ void invert_row(const warpgroup_smem &w, prepared_chunk &to)
{
    const int c = threadIdx.x % GROUP_THREADS / WARP;
    bf16_split t[N_BLOCKS];

#pragma unroll
    for (int r = 0; r < N_BLOCKS; r++) {
        if (r == c) {
            load_a<TILE_STRIDE>(t[r].hi, &w.a[0][r * BLOCK][r * BLOCK]);
            load_a<TILE_STRIDE>(t[r].lo, &w.a[1][r * BLOCK][r * BLOCK]);
        }
        if (r <= c)
            continue;
        block_acc x = {}, y = {};

#pragma unroll
        for (int m = 0; m < r; m++)
            if (m >= c)
                multiply_block<false>(x, t[m], w.a, r * BLOCK, m * BLOCK);
        multiply_block<true>(y, split_acc(x, 1.0f), w.a, r * BLOCK, r * BLOCK);
        t[r] = split_acc(y, -1.0f);
        store_block(to.t[0], t[r].hi, c * BLOCK, r * 2);
        if (PARTS > 1)
            store_block(to.t[1], t[r].lo, c * BLOCK, r * 2);
    }
}

/* One block per chunk and key head. */
template <int PARTS>
static __global__ void __launch_bounds__(THREADS, 3) prepare_chunks_kernel(gated_delta_call<bf16> v)
{
    extern __shared__ __align__(128) unsigned char raw[];
    block_smem &m = *(block_smem *)raw;
    const int warpgroup = threadIdx.x / GROUP_THREADS;
    const unsigned heads = (unsigned)v.n.k, number = blockIdx.x / heads, kh = blockIdx.x % heads;
    const int group = (int)v.n.a / (int)heads;
    const chunk_ref at = chunk_find(v, number);
    const int64_t left = at.d.n - at.c * CHUNK, first = at.d.first + at.c * CHUNK;
    const int64_t key = (first * v.n.k + kh) * v.n.d, step = v.n.k * v.n.d;
    chunk x = {first, kh * group, kh, (int)d9di_i64_max(0, d9di_i64_min(CHUNK, left)),
               false, false};

    if (x.n == 0)
        return;
    load_rows(m.row.k, v.k + key, step, x.n, (int)v.n.d);
    load_rows(m.row.q, v.q + key, step, x.n, (int)v.n.d);
    x.h += warpgroup;
    const int64_t end = kh * group + group;
    warpgroup_smem &w = m.warpgroup[warpgroup];

    if (x.h < end && threadIdx.x % GROUP_THREADS < WARP)
        sum_gates(w, v, x);
    cp_async_wait_all();
    __syncthreads();
    compute_inverse_lengths(m);
    multiply_rows(m, (int)v.n.d);
    while (x.h < end) {
        prepared_chunk &to = v.prepared[number * v.n.a + x.h];

        if (threadIdx.x % GROUP_THREADS < CHUNK)
            make_factors(m, w, to.f, v.n.scale, x.n);
        compute_p_a(m, w, to, v.n.scale);
        clear_triangle<PARTS>(to);
        group_sync(warpgroup);
        invert_diagonal_block<PARTS>(w, to);
        group_sync(warpgroup);
        invert_row<PARTS>(w, to);
        x.h += HEADS;
        if (x.h >= end)
            break;
        group_sync(warpgroup);
        if (threadIdx.x % GROUP_THREADS < WARP)
            sum_gates(w, v, x);
        group_sync(warpgroup);
    }
}

template <int PARTS>
static d9d_status launch(d9d_stream s, const char *op, const gated_delta_call<bf16> &v)
{
    const unsigned blocks = (unsigned)(chunks_max(v.n.docs) * v.n.k);

    D9D_TRY(
        d9di_cuda_set_max_smem(op, (const void *)prepare_chunks_kernel<PARTS>, sizeof(block_smem)));
    prepare_chunks_kernel<PARTS><<<blocks, THREADS, sizeof(block_smem), d9di_cuda_stream(s)>>>(v);
    return d9di_cuda_check_launch(op);
}

d9d_status d9di_gated_delta_scan_prepare(d9d_stream s, const char *op,
                                         const gated_delta_call<bf16> &v, int parts)
{
    return parts > 1 ? launch<2>(s, op, v) : launch<1>(s, op, v);
}
