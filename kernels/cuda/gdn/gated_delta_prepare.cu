/* gated_delta_prepare.cu - the gated delta rule in bfloat16: what chunks have without the state;
 * see gated_delta.cuh.
 *
 * A block has a chunk of a head of keys.  Products of K and Q are made once, from the numbers as
 * they are, for all heads of values that read it; four warps have one of those at a time:
 *
 *     A = beta G k K K' k     P = G q Q K' k     T = (1 + A')^-1 = S'
 *
 * T is made in squares of BLOCK, those of its diagonal first, a lane a row, and then, of a row of
 * squares c each by a warp, T_cr = -(sum over c <= m < r of T_cm A_rm') T_rr: all that is made on
 * the way is an operand in registers (mma.cuh), all else comes from shared memory.  Of the
 * products of two parts the one of both rests is left out, 2^-18 of the whole.
 */
#include "cuda/common/mma.cuh"
#include "cuda/gdn/gated_delta.cuh"

enum {
    SLACK = 8, /* elements between rows, so that eight of them are in banks of their own */
    WIDE = MAX_KEY_SIZE + SLACK,
    SQUARE = CHUNK + SLACK,
    GROUPS = 2,                       /* heads of values at a time */
    GROUP_THREADS = THREADS / GROUPS, /* threads of each */
    SQUARES = CHUNK / BLOCK,          /* in a row of A; a warpgroup's warps */
    UNITS = CHUNK / 8                 /* sixteen bytes each, in a row */
};
static_assert((int)SQUARES == GROUP_THREADS / WARP, "a warp a row of squares");

/* Two parts of A below its diagonal, and of T's squares on it. */
typedef bf16 parts_of[2][CHUNK][SQUARE];

/* A warpgroup's. */
struct group_smem {
    parts_of a;
    float b[2][CHUNK]; /* sums of g, and the rest */
    float beta[CHUNK];
};
struct block_smem {
    union {
        struct {
            bf16 k[CHUNK][WIDE], q[CHUNK][WIDE];
        } row;
        square product[2]; /* K K', Q K' */
    };
    group_smem of[GROUPS];
    float inv_q[CHUNK], inv_k[CHUNK];
};

static __device__ __forceinline__ void group_sync(int warpgroup)
{
    asm volatile("bar.sync %0, %1;" ::"r"(1 + warpgroup), "r"((int)GROUP_THREADS) : "memory");
}

/* Eight elements, sixteen bytes aligned. */
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

/* n rows; zeros elsewhere. */
static __device__ __forceinline__ void fetch_rows(bf16 (*to)[WIDE], const bf16 *from, int64_t step,
                                                  int n, int d)
{
    enum { ACROSS = MAX_KEY_SIZE / 8, EACH = THREADS / ACROSS };
    const int i = threadIdx.x / ACROSS, j = threadIdx.x % ACROSS * 8;
    const bf16 *at = from + i * step + j;

#pragma unroll
    for (int r = 0; r < CHUNK; r += EACH) {
        const bool there = i + r < n && j < d;

        cp_async_16(&to[i + r][j], there ? at : from, there);
        at += EACH * step;
    }
}

/* 1 over the lengths of rows of K and Q, two threads a row. */
static __device__ __forceinline__ void measure_rows(block_smem &m)
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

/* An A of 16 by 16 from rows. */
template <int STRIDE> static __device__ __forceinline__ void load_a(uint32_t (&v)[4], const bf16 *p)
{
    const int l = threadIdx.x % WARP;

    ldmatrix_16x16<false>(v, p + (l / 8 % 2 * 8 + l % 8) * STRIDE + l / 16 * 8);
}

/* Rows of a warp of K K' or Q K', as far as the diagonal. */
static __device__ __forceinline__ void multiply_rows(block_smem &m, int d)
{
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = warp % SQUARES * 16;
    const bf16(*a)[WIDE] = warp < SQUARES ? m.row.k : m.row.q;
    float c[UNITS][4] = {};

    for (int k = 0; k < d; k += 16) {
        uint32_t x[4];

        load_a<WIDE>(x, &a[row][k]);
#pragma unroll
        for (int j = 0; j < UNITS; j += 2)
            if (j * 8 <= row)
                mma_accumulate<false, WIDE>(c[j], c[j + 1], x, &m.row.k[j * 8][k]);
    }
    __syncthreads(); /* products come where the rows are */
#pragma unroll
    for (int j = 0; j < UNITS; j++)
#pragma unroll
        for (int e = 0; e < 4; e += 2)
            *(float2 *)&m.product[warp / SQUARES][row + lane / 4 + e * 4][j * 8 + lane % 4 * 2] =
                make_float2(c[j][e], c[j][e + 1]);
    __syncthreads();
}

/* The sums of g in order, two tokens a lane, and beta: by the warpgroup's first warp. */
static __device__ __forceinline__ void sum_gates(group_smem &w, const gated_delta_call<bf16> &v,
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

/* What follows of them, a thread a token. */
static __device__ __forceinline__ void make_factors(const block_smem &m, const group_smem &w,
                                                    chunk_factors &f, float scale, int n)
{
    const int i = threadIdx.x % GROUP_THREADS;
    const float b = w.b[0][i], rest = w.b[1][i];
    const float all = w.b[0][CHUNK - 1], rest_all = w.b[1][CHUNK - 1];
    const float ceil_div_int = expf(b), on = expf((all - b) + (rest_all - rest)), beta = w.beta[i];
    const float q = i < n ? m.inv_q[i] * scale : 0.0f, k = i < n ? m.inv_k[i] : 0.0f;

    f.write[i] = beta;
    f.write_up[i] = beta * ceil_div_int * k;
    f.k_on[i] = k * on;
    f.q_up[i] = q * ceil_div_int;
    f.up_k[i] = ceil_div_int * k;
    f.q[i] = q;
    f.k[i] = k;
    f.inv_q[i] = i < n ? m.inv_q[i] : 0.0f;
    f.b[i] = (double)b + (double)rest;
    if (i == 0)
        f.last = expf(all);
}

/* What is not made of P and T: zeros. */
template <int PARTS> static __device__ __forceinline__ void clear_entries(prepared_chunk &to)
{
#pragma unroll
    for (int r = 0; r < CHUNK * UNITS / GROUP_THREADS; r++) {
        const int e = r * GROUP_THREADS + threadIdx.x % GROUP_THREADS, i = e / UNITS, u = e % UNITS;

        if (u > i / 8)
            *(uint4 *)unit_of(to.p, i, u) = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            if (u / 2 < i / BLOCK)
                *(uint4 *)unit_of(to.t[part], i, u) = make_uint4(0, 0, 0, 0);
    }
}

/* P to memory, A to shared memory in two parts: what is not above the diagonal, by eights. */
static __device__ __forceinline__ void make_entries(const block_smem &m, group_smem &w,
                                                    prepared_chunk &to, float scale)
{
    enum { ALL = UNITS * (UNITS + 1) / 2 * 8 };

    for (int e = threadIdx.x % GROUP_THREADS; e < ALL; e += GROUP_THREADS) {
        const int row = (int)((sqrtf((float)(e + 1)) - 1.0f) * 0.5f); /* of eights by eights */
        const int t = e - 4 * row * (row + 1), i = 8 * row + t % 8, j = t / 8 * 8;
        const float k = m.inv_k[i] * w.beta[i], q = m.inv_q[i] * scale;
        const float b = w.b[0][i], rest_b = w.b[1][i];
        float p[8], a[8], rest[8];

        load_eight(a, &m.product[0][i][j]);
        load_eight(p, &m.product[1][i][j]);
#pragma unroll
        for (int u = 0; u < 8; u++) {
            const float fall = (b - w.b[0][j + u]) + (rest_b - w.b[1][j + u]);
            const float g = j + u <= i ? __expf(fall) * m.inv_k[j + u] : 0.0f;

            p[u] *= g * q;
            a[u] *= g * k;
            rest[u] = a[u] - to_float(__float2bfloat16_rn(a[u]));
        }
        store_eight(&w.a[0][i][j], a);
        store_eight(&w.a[1][i][j], rest);
        store_eight(unit_of(to.p, i, j / 8), p);
    }
}

/* The square of T on the diagonal of this warp's row, in the place of A's: a lane has a row of A,
 * and then of T, of which half of the lanes store the rest. */
template <int PARTS>
static __device__ __forceinline__ void invert_square(group_smem &w, prepared_chunk &to)
{
    const int at = threadIdx.x % GROUP_THREADS / WARP * BLOCK, lane = threadIdx.x % WARP;
    const int mine = lane % BLOCK, row = at + mine, part = lane / BLOCK;
    float a[BLOCK], x[BLOCK];

#pragma unroll
    for (int u = 0; u < BLOCK; u += 8) {
        float rest[8];

        load_eight(a + u, &w.a[0][row][at + u]);
        load_eight(rest, &w.a[1][row][at + u]);
#pragma unroll
        for (int i = 0; i < 8; i++)
            a[u + i] += rest[i];
    }
#pragma unroll
    for (int i = 0; i < BLOCK; i++)
        x[i] = i == mine ? 1.0f : 0.0f;
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
            store_eight(unit_of(to.t[part], row, at / 8 + u), x + u * 8);
    }
}

/* A square's sums, those of rests apart, for they are long in coming. */
typedef float square_sum[2][2][4];

/* c += x times the square at (row, col) of what is in two parts; TURNED: from rows of k. */
template <bool TRANS>
static __device__ __forceinline__ void add_parts(square_sum &c, const bf16_split &x,
                                                 const parts_of &a, int row, int col)
{
    uint32_t hi[4], lo[4];

    load_b<TRANS, SQUARE>(hi, &a[0][row][col]);
    load_b<TRANS, SQUARE>(lo, &a[1][row][col]);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        mma(c[0][i], x.hi, hi[2 * i], hi[2 * i + 1]);
        mma(c[1][i], x.lo, hi[2 * i], hi[2 * i + 1]);
        mma(c[1][i], x.hi, lo[2 * i], lo[2 * i + 1]);
    }
}
static __device__ __forceinline__ bf16_split split_sum(const square_sum &c, float sign)
{
    float x[2][4];

#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[i][e] = sign * (c[0][i][e] + c[1][i][e]);
    return split_bf16(x[0], x[1]);
}

static __device__ __forceinline__ void store_squares(bf16 *to, const uint32_t (&x)[4], int row,
                                                     int unit)
{
    const int lane = threadIdx.x % WARP;

#pragma unroll
    for (int e = 0; e < 4; e++)
        *((uint32_t *)unit_of(to, row + lane / 4 + e % 2 * 8, unit + e / 2) + lane % 4) = x[e];
}

/* The other squares of this warp's row. */
template <int PARTS>
static __device__ __forceinline__ void invert_row(const group_smem &w, prepared_chunk &to)
{
    const int c = threadIdx.x % GROUP_THREADS / WARP;
    bf16_split t[SQUARES];

#pragma unroll
    for (int r = 0; r < SQUARES; r++) {
        if (r == c) {
            load_a<SQUARE>(t[r].hi, &w.a[0][r * BLOCK][r * BLOCK]);
            load_a<SQUARE>(t[r].lo, &w.a[1][r * BLOCK][r * BLOCK]);
        }
        if (r <= c)
            continue;
        square_sum x = {}, y = {};

#pragma unroll
        for (int m = 0; m < r; m++)
            if (m >= c)
                add_parts<false>(x, t[m], w.a, r * BLOCK, m * BLOCK);
        add_parts<true>(y, split_sum(x, 1.0f), w.a, r * BLOCK, r * BLOCK);
        t[r] = split_sum(y, -1.0f);
        store_squares(to.t[0], t[r].hi, c * BLOCK, r * 2);
        if (PARTS > 1)
            store_squares(to.t[1], t[r].lo, c * BLOCK, r * 2);
    }
}

/* The chunk of a head of keys. */
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
    fetch_rows(m.row.k, v.k + key, step, x.n, (int)v.n.d);
    fetch_rows(m.row.q, v.q + key, step, x.n, (int)v.n.d);
    x.h += warpgroup;
    const int64_t end = kh * group + group;
    group_smem &w = m.of[warpgroup];

    if (x.h < end && threadIdx.x % GROUP_THREADS < WARP)
        sum_gates(w, v, x);
    cp_async_wait_all();
    __syncthreads();
    measure_rows(m);
    multiply_rows(m, (int)v.n.d);
    while (x.h < end) {
        prepared_chunk &to = v.ready[number * v.n.a + x.h];

        if (threadIdx.x % GROUP_THREADS < CHUNK)
            make_factors(m, w, to.f, v.n.scale, x.n);
        make_entries(m, w, to, v.n.scale);
        clear_entries<PARTS>(to);
        group_sync(warpgroup);
        invert_square<PARTS>(w, to);
        group_sync(warpgroup);
        invert_row<PARTS>(w, to);
        x.h += GROUPS;
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
    const unsigned all = (unsigned)(chunks_max(v.n.docs) * v.n.k);

    D9D_TRY(
        d9di_cuda_set_max_smem(op, (const void *)prepare_chunks_kernel<PARTS>, sizeof(block_smem)));
    prepare_chunks_kernel<PARTS><<<all, THREADS, sizeof(block_smem), d9di_cuda_stream(s)>>>(v);
    return d9di_cuda_check_launch(op);
}

d9d_status d9di_gated_delta_scan_prepare(d9d_stream s, const char *op,
                                         const gated_delta_call<bf16> &v, int parts)
{
    return parts > 1 ? launch<2>(s, op, v) : launch<1>(s, op, v);
}
