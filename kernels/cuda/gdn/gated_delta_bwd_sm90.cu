/* gated_delta_bwd_sm90.cu - backward of the gated delta rule within a chunk, bfloat16 on Hopper:
 * all gradients but dV, after the scan of the state gradients; see gated_delta.cuh.
 *
 * A block has a chunk and key head. It accumulates dQ and dK in registers over the value heads that
 * share the key head. Each of the two warpgroups has half of the features. Q and K stay as given;
 * their row factors are applied to F and H and to the accumulators:
 *
 *     R = beta V - beta_k_from_start K X     U = S R          U' in 64-feature accumulators
 *     F_ij = G q_i k_j (dO U')_ij            H_ij = -G k_i k_j (dV U')_ij; dV already contains beta
 *     dQ += q_from_start dO X' + F K
 *     dK += -k_from_start dV X' + H K + k_to_end U dX'' + F' Q + H' K
 *
 * In db the sums over E_ij of kernels/cpu/gated_delta_bwd.c are q_i (F K)_i and its like: the dot
 * of a row of a product with that row of Q or K, so E is not computed. An entry of F or H enters
 * its row's sum and its column's sum as the same number, so that they cancel but for float32
 * rounding. The same dots are needed for the backward of the L2 normalisation of q and k.
 *
 * Two blocks per SM: one loads while the other multiplies. Buffers in shared memory are reused as
 * soon as they are free:
 *
 *     K Q | X -> dX'' | dO -> F H | V -> dV -> dots | T -> U
 *
 * Accuracy. Operands are rounded to bfloat16, accumulators are float32. Each rounding moves a sum
 * of n products by about 2^-9 / sqrt(3) of its root mean square, as the rounding of the result to
 * bfloat16 does. dq and dk are off by 3.3e-3 of theirs (1.7e-3 with exact intermediates), dg by
 * 2.8e-3.
 *
 * Cost. A chunk and value head is 18 MFLOP and reads 150 KiB. Blocks wait for their loads: shared
 * memory has no second stage for the next head. Timings: docs/benchmarks/kernels.md.
 *
 * In flash-linear-attention these are prepare_wy_repr_bwd_kernel, chunk_bwd_kernel_dqkwg and
 * chunk_bwd_kernel_dv_local, and another kernel sums over the value heads.
 */
#include "cuda/gdn/gated_delta_sm90.cuh"

namespace
{

/* Offsets in shared memory. */
enum {
    SMEM_STATE = QK_BYTES,
    SMEM_DOUT = SMEM_STATE + 4 * TILE_BYTES,
    SMEM_V = SMEM_DOUT + 2 * TILE_BYTES,
    SMEM_T = SMEM_V + 2 * TILE_BYTES, /* T, then U' */
    SMEM_BYTES = SMEM_T + 2 * TILE_BYTES,
    SMEM_F = SMEM_DOUT,
    SMEM_H = SMEM_F + TILE_BYTES,
    SMEM_DOTS = SMEM_V
};

/* Row dots of a value head, in shared memory; N as in gated_delta_bwd.c. [2] is the warpgroup,
 * which sums over its half of the features. */
struct head_dots {
    float q[2][CHUNK], n[2][CHUNK], k[2][CHUNK]; /* q dQ, k (beta N), k (dK - beta N) */
    float dv[CHUNK];                             /* dV v */
    float w[8], state_dot[8]; /* by warp: sum of k (k_to_end U dX''); <X, dX''> */
};
/* The same over all value heads of the key head: q dQ, k dK. */
struct key_head_dots {
    float q[2][CHUNK], k[2][CHUNK];
};

typedef float acc_fragments[32]; /* accumulator [64, 64] of a warpgroup */

struct head_task {
    const gated_delta_call<bf16> &v;
    int first, h, n; /* first token, value head, tokens of the chunk */
    bool fresh, last;
    uint32_t base;
    lane_position s;

    /* Offsets of the first token in g b and in v o; stride from token to token. */
    __device__ __forceinline__ int64_t gate() const { return first * v.n.a + h; }
    __device__ __forceinline__ int64_t value() const { return gate() * v.n.f; }
    __device__ __forceinline__ int64_t step() const { return v.n.a * v.n.f; }
};

/* The same task, opaque to the compiler. It then recomputes addresses at each step rather than keep
 * them in registers, of which there are none to spare. */
DEVICE head_task launder_task(head_task b)
{
    int t;

    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    asm volatile("" : "+r"(b.base), "+r"(b.h));
    b.s.group = t / WARPGROUP;
    b.s.warp = t % WARPGROUP / WARP;
    b.s.lane = t % WARP;
    return b;
}

/* Partial dots of the two rows of a thread: q dQ, k (beta N), k (dK - beta N). */
struct dot_fragments {
    float q[2], n[2], k[2];
};

/* --- WGMMA and accumulators ------------------------------------------------------------------- */

/* y [64, 64] = A B (+ y if `keep`) of depth 16 STEPS. a_next and b_next are the bytes from one 64
 * of the depth to the next. Issues the WGMMAs without waiting. */
template <bool A_MN_MAJOR, bool B_MN_MAJOR, int STEPS>
DEVICE void issue_product(acc_fragments &y, uint64_t a, int a_next, uint64_t b, int b_next,
                          int keep)
{
    enum {
        STEP_A = A_MN_MAJOR ? +MN_MAJOR_STEP : +K_MAJOR_STEP,
        STEP_B = B_MN_MAJOR ? +MN_MAJOR_STEP : +K_MAJOR_STEP
    };

#pragma unroll
    for (int k = 0; k < STEPS; k++)
        wgmma_64x64x16_ss<A_MN_MAJOR, B_MN_MAJOR>(y, a + k / 4 * (a_next >> 4) + k % 4 * STEP_A,
                                                  b + k / 4 * (b_next >> 4) + k % 4 * STEP_B,
                                                  keep || k > 0);
}

DEVICE uint64_t k_major_descriptor(uint32_t a)
{
    return smem_descriptor<false>(a);
}
DEVICE uint64_t tile_mn_major_descriptor(uint32_t a)
{
    return mn_major_descriptor(a, TILE_BYTES);
}

DEVICE uint32_t smem_load_u32(uint32_t a)
{
    uint32_t x;

    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(a) : "memory");
    return x;
}

/* sum += scale y, with a factor per row; dot += scale times the dots of the rows of y with those of
 * a tile. */
DEVICE void accumulate_rows(acc_fragments &sum, float (&dot)[2], const acc_fragments &y,
                            const float (&scale)[2], uint32_t tile, const lane_position &s)
{
    const uint32_t at = tile + s.row() * 128 + s.lane % 4 * 4;

#pragma unroll
    for (int e = 0; e < 2; e++) {
        float row_dot = 0.0f;

#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int i = 4 * j + 2 * e;
            const uint32_t x = smem_load_u32(at + e * 1024 + ((j ^ (s.lane / 4)) << 4));

            row_dot = fmaf(y[i], bf16x2_low(x), fmaf(y[i + 1], bf16x2_high(x), row_dot));
            sum[i] = fmaf(y[i], scale[e], sum[i]);
            sum[i + 1] = fmaf(y[i + 1], scale[e], sum[i + 1]);
        }
        dot[e] = fmaf(row_dot, scale[e], dot[e]);
    }
}

/* --- one value head, in the order of execution ------------------------------------------------ */

/* 16-byte vector e of this thread's part of a saved state: its shared memory address, its source,
 * and whether the state has it. */
struct saved_vector {
    uint32_t to;
    const bf16 *from;
    bool valid;
};
enum { SAVED_VECTORS = 4 * TILE_BYTES / 16 / (2 * WARPGROUP) };
DEVICE saved_vector saved_vector_at(uint32_t to, const bf16 *saved, const gated_delta_call<bf16> &v,
                                    int e)
{
    const int side = e / (SAVED_VECTORS / 2),
              at = e % (SAVED_VECTORS / 2) * 2 * WARPGROUP + threadIdx.x;

    return {to + side * HALF_BYTES + at * 16, saved + side * v.n.f * 64 + at * 8,
            at / 8 < v.n.f && side * 64 < v.n.d};
}
DEVICE void copy_state(uint32_t to, const bf16 *saved, const gated_delta_call<bf16> &v)
{
#pragma unroll 2
    for (int e = 0; e < SAVED_VECTORS; e++) {
        const saved_vector p = saved_vector_at(to, saved, v, e);

        cp_async_16_zfill(p.to, p.valid ? p.from : saved, p.valid);
    }
}

DEVICE void load_head(const head_task &b, const prepared_chunk &r)
{
    const gated_delta_call<bf16> &v = b.v;
    const bf16 *const saved = saved_state_before(v, b.first, b.h);

    if (!b.fresh)
        copy_state(b.base + SMEM_STATE, saved, v);
    copy_rows<2, CHUNK, 2>(b.base + SMEM_V, TILE_BYTES, v.v + b.value(), b.step(), b.n, v.n.f);
    copy_bytes<2, TILE_BYTES>(b.base + SMEM_T, r.t[0]);
    copy_rows<2, CHUNK, 2>(b.base + SMEM_DOUT, TILE_BYTES, v.dout + b.value(), b.step(), b.n,
                           v.n.f);
}

/* Overwrites the V tiles with dV. */
DEVICE void load_dv_tile(const head_task &b)
{
    copy_rows<2, CHUNK, 2>(b.base + SMEM_V, TILE_BYTES, b.v.dv + b.value(), b.step(), b.n, b.v.n.f);
}

/* Part of a row of dV: four threads share a row. */
struct dv_row {
    int4 x[4];
};
DEVICE dv_row load_dv_row(const head_task &b)
{
    const int i = threadIdx.x / 4, part = threadIdx.x % 4 * 8;
    const bf16 *const row = b.v.dv + b.value() + i * b.step() + part;
    dv_row y;

#pragma unroll
    for (int j = 0; j < 4; j++)
        y.x[j] = i < b.n && 32 * j + part < b.v.n.f ? *(const int4 *)(row + 32 * j)
                                                    : make_int4(0, 0, 0, 0);
    return y;
}
DEVICE float dot_dv_v(const dv_row &y, const head_task &b)
{
    const int i = threadIdx.x / 4, part = threadIdx.x % 4;
    float sum = 0.0f;

#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int u = 4 * j + part;
        const int4 v = smem_load4(swizzle_128b(b.base + SMEM_V + u / 8 * TILE_BYTES, i, u % 8));
        const uint32_t a[4] = {(uint32_t)v.x, (uint32_t)v.y, (uint32_t)v.z, (uint32_t)v.w};
        const uint32_t c[4] = {(uint32_t)y.x[j].x, (uint32_t)y.x[j].y, (uint32_t)y.x[j].z,
                               (uint32_t)y.x[j].w};

#pragma unroll
        for (int e = 0; e < 4; e++)
            sum = fmaf(bf16x2_low(a[e]), bf16x2_low(c[e]),
                       fmaf(bf16x2_high(a[e]), bf16x2_high(c[e]), sum));
    }
    return group_sum<4>(sum);
}

/* u = U' [64 value features of the warpgroup, CHUNK tokens]. */
DEVICE void compute_u(acc_fragments &u, const head_task &b, const chunk_factors &f)
{
    const uint32_t tile = b.base + SMEM_V + b.s.group * TILE_BYTES;
    const uint64_t t = tile_mn_major_descriptor(b.base + SMEM_T);
    acc_fragments y;
    bf16_split r[4];

    if (!b.fresh) {
        wgmma_fence();
        issue_product<false, false, 8>(
            y, k_major_descriptor(b.base + SMEM_STATE + b.s.group * TILE_BYTES), HALF_BYTES,
            k_major_descriptor(b.base), HALF_BYTES, 0);
        wgmma_commit_and_wait(y);
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t value[4];

        ldmatrix_x4_trans(value, b.s.trans_address(tile, k));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = 8 * k + 2 * i, col = b.s.column(at / 4);
            const float2 beta = *(const float2 *)(f.beta + col);
            const float2 beta_k = *(const float2 *)(f.beta_k_from_start + col);
            float a = beta.x * bf16x2_low(value[i]), c = beta.y * bf16x2_high(value[i]);

            if (!b.fresh) {
                a = fmaf(-beta_k.x, y[at], a);
                c = fmaf(-beta_k.y, y[at + 1], c);
            }
            split_bf16x2(r[k], i, a, c);
        }
    }
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        wgmma_rs<true>(u, r[k].hi, t + k * MN_MAJOR_STEP, k);
    }
    wgmma_commit_and_wait(u);
}

/* Stores an accumulator in bfloat16 to the warpgroup's tile at `offset`. */
DEVICE void store_accumulator(uint32_t offset, const acc_fragments &x, const head_task &b)
{
    const uint32_t tile = b.base + offset + b.s.group * TILE_BYTES;

#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t y[4];

#pragma unroll
        for (int i = 0; i < 4; i++)
            y[i] = pack_bf16(x[8 * k + 2 * i], x[8 * k + 2 * i + 1]);
        stmatrix_x4(b.s.row_address(tile, k), y);
    }
}

DEVICE void load_row_factors(float (&y)[2], const float *x, const lane_position &s,
                             float sign = 1.0f)
{
    y[0] = sign * x[s.row()];
    y[1] = sign * x[s.row() + 8];
}

/* Adds the terms of the state before the chunk: dq += q_from_start dO X', dk -= k_from_start dV
 * X'. */
DEVICE void add_state_terms(acc_fragments &dq, acc_fragments &dk, dot_fragments &m,
                            const head_task &b, const chunk_factors &f)
{
    const uint64_t x = tile_mn_major_descriptor(b.base + SMEM_STATE + b.s.group * HALF_BYTES);
    const uint32_t keys = b.base + b.s.group * HALF_BYTES;
    acc_fragments y;
    float scale[2];

    wgmma_fence();
    issue_product<false, true, 8>(y, k_major_descriptor(b.base + SMEM_DOUT), TILE_BYTES, x,
                                  TILE_BYTES, 0);
    wgmma_commit_and_wait(y);
    load_row_factors(scale, f.q_from_start, b.s);
    accumulate_rows(dq, m.q, y, scale, keys + TILE_BYTES, b.s);
    wgmma_fence();
    issue_product<false, true, 8>(y, k_major_descriptor(b.base + SMEM_V), TILE_BYTES, x, TILE_BYTES,
                                  0);
    wgmma_commit_and_wait(y);
    load_row_factors(scale, f.k_from_start, b.s, -1.0f);
    accumulate_rows(dk, m.n, y, scale, keys, b.s);
}

/* y = F [64, 64] in warpgroup 0, H in warpgroup 1. */
DEVICE void compute_f_h(acc_fragments &y, const head_task &b, const chunk_factors &f)
{
    const bool is_h = b.s.group == 1;

    wgmma_fence();
    issue_product<false, true, 8>(
        y, k_major_descriptor(b.base + SMEM_DOUT + b.s.group * (SMEM_V - SMEM_DOUT)), TILE_BYTES,
        tile_mn_major_descriptor(b.base + SMEM_T), TILE_BYTES, 0);
    wgmma_commit_and_wait(y);
    const int row = b.s.row();
    const double at[2] = {f.b[row], f.b[row + 8]};
    const float *const rows = is_h ? f.k : f.q;
    const float scale[2] = {is_h ? -rows[row] : rows[row], is_h ? -rows[row + 8] : rows[row + 8]};

#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int col =
            b.s.column(j) + is_h; /* H is strictly lower triangular: masks by column + 1 */
        const double2 from = *(const double2 *)(f.b + col - is_h);
        const float2 k = *(const float2 *)(f.k + col - is_h);

#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int i = row + e * 8;
            float *const p = y + 4 * j + 2 * e;

            p[0] *= col <= i ? __expf((float)(at[e] - from.x)) * scale[e] * k.x : 0.0f;
            p[1] *= col + 1 <= i ? __expf((float)(at[e] - from.y)) * scale[e] * k.y : 0.0f;
        }
    }
}

/* Overwrites the X tiles with dX'', the gradient of the state after the chunk. Also computes <X,
 * dX''> per warp. */
DEVICE void swap_state(head_dots &to, const head_task &b)
{
    const bf16 *const saved = saved_dstate_after(b.v, b.first, b.h);
    const uint32_t state = b.base + SMEM_STATE;
    float sum = 0.0f;
    int4 y[SAVED_VECTORS];

#pragma unroll
    for (int e = 0; e < SAVED_VECTORS; e++) {
        const saved_vector p = saved_vector_at(state, saved, b.v, e);

        y[e] = p.valid ? *(const int4 *)p.from : make_int4(0, 0, 0, 0);
    }
#pragma unroll
    for (int e = 0; e < SAVED_VECTORS; e++) {
        const uint32_t at = saved_vector_at(state, saved, b.v, e).to;
        const uint32_t w[4] = {(uint32_t)y[e].x, (uint32_t)y[e].y, (uint32_t)y[e].z,
                               (uint32_t)y[e].w};

        if (!b.fresh) {
            const int4 old = smem_load4(at);
            const uint32_t x[4] = {(uint32_t)old.x, (uint32_t)old.y, (uint32_t)old.z,
                                   (uint32_t)old.w};

#pragma unroll
            for (int c = 0; c < 4; c++)
                sum = fmaf(bf16x2_low(x[c]), bf16x2_low(w[c]),
                           fmaf(bf16x2_high(x[c]), bf16x2_high(w[c]), sum));
        }
        smem_store4(at, w[0], w[1], w[2], w[3]);
    }
    sum = group_sum<WARP>(sum);
    if (b.s.lane == 0)
        to.state_dot[threadIdx.x / WARP] = sum;
}

/* Adds the terms of the chunk's own tokens and of the state after it: dq += F K, dk += H K + F' Q +
 * H' K + k_to_end U dX''. */
DEVICE void add_chunk_terms(acc_fragments &dq, acc_fragments &dk, dot_fragments &m, head_dots &to,
                            const head_task &b, const chunk_factors &f)
{
    const uint32_t keys = b.base + b.s.group * HALF_BYTES;
    const uint64_t k = tile_mn_major_descriptor(keys),
                   q = tile_mn_major_descriptor(keys + TILE_BYTES);
    const float one[2] = {1.0f, 1.0f};
    acc_fragments y;
    float scale[2];

    wgmma_fence();
    issue_product<false, true, 4>(y, k_major_descriptor(b.base + SMEM_F), 0, k, 0, 0);
    wgmma_commit_and_wait(y);
    accumulate_rows(dq, m.q, y, one, keys + TILE_BYTES, b.s);
    wgmma_fence();
    issue_product<false, true, 4>(y, k_major_descriptor(b.base + SMEM_H), 0, k, 0, 0);
    wgmma_commit_and_wait(y);
    accumulate_rows(dk, m.n, y, one, keys, b.s);
    wgmma_fence();
    issue_product<true, true, 4>(y, tile_mn_major_descriptor(b.base + SMEM_F), 0, q, 0, 0);
    issue_product<true, true, 4>(y, tile_mn_major_descriptor(b.base + SMEM_H), 0, k, 0, 1);
    wgmma_commit_and_wait(y);
    accumulate_rows(dk, m.k, y, one, keys, b.s);
    if (b.last) {
        if (b.s.lane == 0)
            to.w[threadIdx.x / WARP] = to.state_dot[threadIdx.x / WARP] = 0.0f;
        return;
    }
    float dot[2] = {};

    wgmma_fence();
    issue_product<true, true, 8>(
        y, tile_mn_major_descriptor(b.base + SMEM_T), TILE_BYTES,
        tile_mn_major_descriptor(b.base + SMEM_STATE + b.s.group * HALF_BYTES), TILE_BYTES, 0);
    wgmma_commit_and_wait(y);
    load_row_factors(scale, f.k_to_end, b.s);
    accumulate_rows(dk, dot, y, scale, keys, b.s);
    m.k[0] += dot[0];
    m.k[1] += dot[1];
    const float w = group_sum<WARP>(dot[0] + dot[1]);

    if (b.s.lane == 0)
        to.w[threadIdx.x / WARP] = w;
}

/* Reduces the partial dots of a thread over the four threads of a row and stores them. */
DEVICE void store_row_dots(head_dots &to, const dot_fragments &m, const lane_position &s)
{
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int i = s.row() + e * 8;
        const float q = group_sum<4>(m.q[e]), n = group_sum<4>(m.n[e]);
        const float k = group_sum<4>(m.k[e]);

        if (s.lane % 4 == 0) {
            to.q[s.group][i] = q;
            to.n[s.group][i] = n;
            to.k[s.group][i] = k;
        }
    }
}

/* Stores dg (suffix sums of db_i in the chunk) and db; one warp, two tokens per lane. */
DEVICE void store_gate_grads(const head_dots &r, const head_task &b, const chunk_factors &f)
{
    const int lane = b.s.lane;
    double e[2], suffix, last = 0.0;
    float n[2];

#pragma unroll
    for (int w = 0; w < 8; w++)
        last += (double)r.w[w] + (double)(r.state_dot[w] * f.decay_last);
#pragma unroll
    for (int u = 0; u < 2; u++) {
        const int i = 2 * lane + u;
        const float dot_q = r.q[0][i] + r.q[1][i], dot_k = r.k[0][i] + r.k[1][i];

        n[u] = r.n[0][i] + r.n[1][i];
        e[u] = (double)dot_q + (double)n[u] - (double)dot_k;
    }
    e[0] += e[1];
    suffix = e[0];
#pragma unroll
    for (int o = 1; o < WARP; o *= 2) {
        const double right = __shfl_down_sync(~0u, suffix, o);

        suffix += lane + o < WARP ? right : 0.0;
    }
    suffix = suffix - e[0] + last;
#pragma unroll
    for (int u = 0; u < 2; u++) {
        const int i = 2 * lane + u;
        const int64_t gate = b.gate() + i * b.v.n.a;

        if (i >= b.n)
            continue;
        b.v.dg[gate] = (float)(suffix + e[u]);
        store_float(b.v.db + gate, (r.dv[i] + n[u]) * (1.0f - f.beta[i]));
    }
}

DEVICE void process_head(acc_fragments &dq, acc_fragments &dk, head_dots &to, const head_task &b,
                         const chunk_factors &f)
{
    acc_fragments y;
    dot_fragments m = {};

    const dv_row row = load_dv_row(launder_task(b));

    smem_wait_copies();
    const float dv = dot_dv_v(row, launder_task(b));

    compute_u(y, launder_task(b), f);
    __syncthreads(); /* V and T are no longer needed */
    load_dv_tile(launder_task(b));
    store_accumulator(SMEM_T, y, launder_task(b));
    smem_wait_copies();
    if (!b.fresh)
        add_state_terms(dq, dk, m, launder_task(b), f);
    compute_f_h(y, launder_task(b), f);
    __syncthreads(); /* X, dO and dV are no longer needed */
    store_accumulator(SMEM_F, y, launder_task(b));
    if (threadIdx.x % 4 == 0)
        to.dv[threadIdx.x / 4] = dv;
    if (!b.last)
        swap_state(to, launder_task(b));
    fence_proxy_async();
    __syncthreads();
    add_chunk_terms(dq, dk, m, to, launder_task(b), f);
    store_row_dots(to, m, launder_task(b).s);
}

/* to[i] = dot of row i of sum with row i of a tile, for this warpgroup's half of the features. */
DEVICE void store_final_dots(float *to, const acc_fragments &sum, uint32_t tile,
                             const lane_position &s)
{
    const uint32_t at = tile + s.row() * 128 + s.lane % 4 * 4;

#pragma unroll
    for (int e = 0; e < 2; e++) {
        float dot = 0.0f;

#pragma unroll
        for (int j = 0; j < 8; j++) {
            const uint32_t x = smem_load_u32(at + e * 1024 + ((j ^ (s.lane / 4)) << 4));

            dot = fmaf(sum[4 * j + 2 * e], bf16x2_low(x), dot);
            dot = fmaf(sum[4 * j + 2 * e + 1], bf16x2_high(x), dot);
        }
        dot = group_sum<4>(dot);
        if (s.lane % 4 == 0)
            to[s.row() + e * 8] = dot;
    }
}

/* Stores dQ or dK [n, D]: sum through the backward of the L2 normalisation. Overwrites the Q or K
 * tile as staging. */
DEVICE void store_qk_grads(bf16 *to, const acc_fragments &sum, uint32_t keys,
                           const float (*row_dots)[CHUNK], const float *inv, const head_task &b,
                           int64_t kh)
{
    const lane_position &s = b.s;
    const uint32_t tile = keys + s.group * HALF_BYTES;
    const int64_t step = b.v.n.k * b.v.n.d;

#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int i = s.row() + e * 8;
        const float row_dot = -(row_dots[0][i] + row_dots[1][i]) * inv[i] * inv[i];

#pragma unroll
        for (int j = 0; j < 8; j++) {
            const uint32_t p = tile + i * 128 + s.lane % 4 * 4 + ((j ^ (s.lane / 4)) << 4);
            const uint32_t x = smem_load_u32(p);

            asm volatile("st.shared.b32 [%0], %1;" ::"r"(p),
                         "r"(pack_bf16(fmaf(row_dot, bf16x2_low(x), sum[4 * j + 2 * e]),
                                       fmaf(row_dot, bf16x2_high(x), sum[4 * j + 2 * e + 1])))
                         : "memory");
        }
    }
    named_barrier_sync(1 + s.group, WARPGROUP);
    store_value_rows(to + b.first * step + kh * b.v.n.d + s.group * 64, step, tile, b.n,
                     b.v.n.d - s.group * 64);
}

/* dq and dk = sums over the value heads of the key head. */
DEVICE void process_key_head(acc_fragments &dq, acc_fragments &dk, head_dots &dots, head_task &b,
                             const prepared_chunk *r)
{
    const int group = (int)b.v.n.a / (int)b.v.n.k;

#pragma unroll
    for (int i = 0; i < 32; i++)
        dq[i] = dk[i] = 0.0f;
#pragma unroll 1
    for (int i = 0; i < group; i++, r++, b.h++) {
        load_head(launder_task(b), *r);
        process_head(dq, dk, dots, b, r->f);
        __syncthreads();
        if (threadIdx.x < WARP)
            store_gate_grads(dots, b, r->f);
        __syncthreads(); /* also: all WGMMAs of this head are done */
    }
}

__global__ void __launch_bounds__(2 * WARPGROUP, 2) chunk_kernel(gated_delta_call<bf16> v)
{
    if constexpr (HAVE_WGMMA) {
        extern __shared__ __align__(1024) unsigned char raw[];
        key_head_dots &final_dots = *(key_head_dots *)(raw + SMEM_DOTS);
        const unsigned number = blockIdx.x / (unsigned)v.n.k, kh = blockIdx.x % (unsigned)v.n.k;
        const chunk_ref at = chunk_find(v, number);
        const int head = (int)kh * ((int)v.n.a / (int)v.n.k);
        const int64_t left = at.d.n - at.c * CHUNK;
        head_task b = {v,
                       (int)(at.d.first + at.c * CHUNK),
                       head,
                       (int)d9di_i64_max(0, d9di_i64_min(CHUNK, left)),
                       at.c == 0,
                       left <= CHUNK,
                       smem_address(raw),
                       lane_position()};
        const prepared_chunk *const r = v.prepared + number * v.n.a + head;
        const uint32_t keys = b.base + b.s.group * HALF_BYTES;
        acc_fragments dq, dk;

        if (b.n == 0)
            return;
        copy_qk<2>(b.base, v, (b.first * v.n.k + kh) * v.n.d, b.n);
        process_key_head(dq, dk, *(head_dots *)(raw + SMEM_DOTS), b, r);
        store_final_dots(final_dots.q[b.s.group], dq, keys + TILE_BYTES, b.s);
        store_final_dots(final_dots.k[b.s.group], dk, keys, b.s);
        __syncthreads();
        store_qk_grads(v.dq, dq, b.base + TILE_BYTES, final_dots.q, r->f.inv_q, b, kh);
        store_qk_grads(v.dk, dk, b.base, final_dots.k, r->f.k, b, kh);
    }
}

} // namespace

d9d_status d9di_gated_delta_bwd_sm90(d9d_stream s, const char *op, const gated_delta_call<bf16> &v)
{
    const unsigned blocks = (unsigned)(chunks_max(v.n.docs) * v.n.k);

    D9D_TRY(d9di_cuda_set_max_smem(op, (const void *)chunk_kernel, SMEM_BYTES));
    chunk_kernel<<<blocks, 2 * WARPGROUP, SMEM_BYTES, d9di_cuda_stream(s)>>>(v);
    return d9di_cuda_check_launch(op);
}
