/* gated_delta_bwd_sm90.cu - the gated delta rule in bfloat16 on Hopper: what there is of a chunk
 * once the gradient of the states has gone through its document; see gated_delta.cuh.
 *
 * A block has a chunk of a head of keys, whose gradients it sums in registers over the heads of
 * values that read it.  Two warp groups have half the features each; Q and K are as they are
 * given, and what they are to be multiplied with is in the squares and the rows of sums:
 *
 *     R = beta V - write_up K X       U = S R          in turned sums of 64 features
 *     F_ij = G q_i k_j (dO U')_ij     H_ij = -G k_i k_j (dV U')_ij, of which dV has its beta
 *     dQ += q_up dO X' + F K
 *     dK += -up_k dV X' + H K + k_on U dX'' + F' Q + H' K
 *
 * By b_i, E_ij of kernels/cpu/gated_delta_bwd.c are q_i (F K)_i and so on: a row of a product times
 * that of Q or K, so no square is made for them.  An entry of F or H is the same number in the row
 * and in the column it is summed in, and what should go out goes out but for float32's last bits.
 * Rows dq and dk through their lengths need the same dots.
 *
 * Two blocks share a multiprocessor, so that one loads while the other multiplies; places in shared
 * memory are used again as soon as they are free:
 *
 *     K Q | X -> dX'' | dO -> F H | V -> dV -> sums | T -> U
 *
 * Operands are rounded to bfloat16, sums are float32.  Each rounding moves a sum of n products by
 * about 2^-9 / sqrt(3) of its root mean square, as the rounding of the result to bfloat16 does: dq
 * and dk are off by 3.3e-3 of theirs, 1.7e-3 when all between is exact, and dg by 2.8e-3.
 *
 * A chunk and head is 18 MFLOP and reads 150 KiB.  4 x 4096 tokens, 16 and 32 heads of 128, on one
 * H100: 0.89 ms by difference, 165 TFLOP/s, 1.6 TB/s.  Blocks wait for what they load: there is no
 * room for the next head's while this one's is in use.
 *
 * flash-linear-attention does this in prepare_wy_repr_bwd_kernel, chunk_bwd_kernel_dqkwg and
 * chunk_bwd_kernel_dv_local, and sums its heads in another.
 */
#include "cuda/gdn/gated_delta_sm90.cuh"

namespace
{

/* Shared memory. */
enum {
    AT_STATE = KEYS_BYTES,
    AT_DOUT = AT_STATE + 4 * TILE_BYTES,
    AT_VALUES = AT_DOUT + 2 * TILE_BYTES,
    AT_WRITTEN = AT_VALUES + 2 * TILE_BYTES, /* T, U' */
    DIN_BYTES = AT_WRITTEN + 2 * TILE_BYTES,
    AT_F = AT_DOUT,
    AT_H = AT_F + TILE_BYTES,
    AT_SUMS = AT_VALUES
};

/* Sums of a head, in shared memory: those of rows by warp group. */
struct row_sums {
    float q[2][CHUNK], n[2][CHUNK], k[2][CHUNK]; /* q dQ, k (beta N), k (dK - beta N) */
    float dv[CHUNK];                             /* dv v */
    float w[8], through[8];                      /* by warp; <X, dX''> */
};
/* And of all heads: q dQ, k dK. */
struct key_sums {
    float q[2][CHUNK], k[2][CHUNK];
};

typedef float half_rows[32]; /* a group's half of the features, of a warp's rows */

struct block {
    const gated_delta_call<bf16> &v;
    int first, h, n; /* of the chunk */
    bool fresh, last;
    uint32_t base;
    lane_position s;

    /* Of its first token, and from token to token. */
    __device__ __forceinline__ int64_t gate() const { return first * v.n.a + h; }
    __device__ __forceinline__ int64_t value() const { return gate() * v.n.f; }
    __device__ __forceinline__ int64_t step() const { return v.n.a * v.n.f; }
};

/* The same, for all the compiler knows another: there are no registers to keep what is made of it
 * from one step to the next. */
DEVICE block anew(block b)
{
    int t;

    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    asm volatile("" : "+r"(b.base), "+r"(b.h));
    b.s.group = t / GROUP;
    b.s.warp = t % GROUP / WARP;
    b.s.lane = t % WARP;
    return b;
}

/* What a thread has of the dots of a head, of its rows: q dQ, k (beta N), k (dK - beta N). */
struct mine {
    float q[2], n[2], k[2];
};

/* --- products --------------------------------------------------------------------------------- */

/* y = A B, of `steps` 16 deep, begun only; operands 64 along are `far` on. */
template <bool A_MN_MAJOR, bool B_MN_MAJOR, int STEPS>
DEVICE void begin_product(half_rows &y, uint64_t a, int a_far, uint64_t b, int b_far, int keep)
{
    enum {
        ALONG_A = A_MN_MAJOR ? +STEP_DOWN : +STEP_ACROSS,
        ALONG_B = B_MN_MAJOR ? +STEP_DOWN : +STEP_ACROSS
    };

#pragma unroll
    for (int k = 0; k < STEPS; k++)
        product_of_tiles<A_MN_MAJOR, B_MN_MAJOR>(y, a + k / 4 * (a_far >> 4) + k % 4 * ALONG_A,
                                                 b + k / 4 * (b_far >> 4) + k % 4 * ALONG_B,
                                                 keep || k > 0);
}

DEVICE uint64_t upright_at(uint32_t a)
{
    return smem_descriptor<false>(a);
}
DEVICE uint64_t sideways_at(uint32_t a)
{
    return sideways(a, TILE_BYTES);
}

DEVICE uint32_t word_at(uint32_t a)
{
    uint32_t x;

    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(a) : "memory");
    return x;
}

/* sum += y times `by`, of each row one; dot += that times the rows in a tile. */
DEVICE void add_rows(half_rows &sum, float (&dot)[2], const half_rows &y, const float (&by)[2],
                     uint32_t tile, const lane_position &s)
{
    const uint32_t at = tile + s.row() * 128 + s.lane % 4 * 4;

#pragma unroll
    for (int e = 0; e < 2; e++) {
        float fragment_row = 0.0f;

#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int i = 4 * j + 2 * e;
            const uint32_t x = word_at(at + e * 1024 + ((j ^ (s.lane / 4)) << 4));

            fragment_row = fmaf(y[i], low_of(x), fmaf(y[i + 1], high_of(x), fragment_row));
            sum[i] = fmaf(y[i], by[e], sum[i]);
            sum[i + 1] = fmaf(y[i + 1], by[e], sum[i + 1]);
        }
        dot[e] = fmaf(fragment_row, by[e], dot[e]);
    }
}

/* --- a head, in the order it goes ------------------------------------------------------------- */

/* Sixteen bytes of a saved state, number e of those of a thread: where they go, and whether there
 * are any in `from`. */
struct saved_part {
    uint32_t to;
    const bf16 *from;
    bool there;
};
enum { SAVED_PARTS = 4 * TILE_BYTES / 16 / (2 * GROUP) };
DEVICE saved_part part_len(uint32_t to, const bf16 *saved, const gated_delta_call<bf16> &v, int e)
{
    const int side = e / (SAVED_PARTS / 2), at = e % (SAVED_PARTS / 2) * 2 * GROUP + threadIdx.x;

    return {to + side * SIDE_BYTES + at * 16, saved + side * v.n.f * 64 + at * 8,
            at / 8 < v.n.f && side * 64 < v.n.d};
}
DEVICE void copy_state(uint32_t to, const bf16 *saved, const gated_delta_call<bf16> &v)
{
#pragma unroll 2
    for (int e = 0; e < SAVED_PARTS; e++) {
        const saved_part p = part_len(to, saved, v, e);

        copy16_to(p.to, p.there ? p.from : saved, p.there);
    }
}

DEVICE void fetch_head(const block &b, const prepared_chunk &r)
{
    const gated_delta_call<bf16> &v = b.v;
    const bf16 *const saved = saved_before(v, b.first, b.h);

    if (!b.fresh)
        copy_state(b.base + AT_STATE, saved, v);
    copy_rows<2, CHUNK, 2>(b.base + AT_VALUES, TILE_BYTES, v.v + b.value(), b.step(), b.n, v.n.f);
    copy_bytes<2, TILE_BYTES>(b.base + AT_WRITTEN, r.t[0]);
    copy_rows<2, CHUNK, 2>(b.base + AT_DOUT, TILE_BYTES, v.dout + b.value(), b.step(), b.n, v.n.f);
}

/* dV in the place of V. */
DEVICE void fetch_values(const block &b)
{
    copy_rows<2, CHUNK, 2>(b.base + AT_VALUES, TILE_BYTES, b.v.dv + b.value(), b.step(), b.n,
                           b.v.n.f);
}

/* Of a thread's row, of which four have one: dV, and its dot with V. */
struct row_part {
    int4 x[4];
};
DEVICE row_part load_row(const block &b)
{
    const int i = threadIdx.x / 4, part = threadIdx.x % 4 * 8;
    const bf16 *const row = b.v.dv + b.value() + i * b.step() + part;
    row_part y;

#pragma unroll
    for (int j = 0; j < 4; j++)
        y.x[j] = i < b.n && 32 * j + part < b.v.n.f ? *(const int4 *)(row + 32 * j)
                                                    : make_int4(0, 0, 0, 0);
    return y;
}
DEVICE float dot_row(const row_part &y, const block &b)
{
    const int i = threadIdx.x / 4, part = threadIdx.x % 4;
    float sum = 0.0f;

#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int u = 4 * j + part;
        const int4 v = smem_load4(swizzle_128b(b.base + AT_VALUES + u / 8 * TILE_BYTES, i, u % 8));
        const uint32_t a[4] = {(uint32_t)v.x, (uint32_t)v.y, (uint32_t)v.z, (uint32_t)v.w};
        const uint32_t c[4] = {(uint32_t)y.x[j].x, (uint32_t)y.x[j].y, (uint32_t)y.x[j].z,
                               (uint32_t)y.x[j].w};

#pragma unroll
        for (int e = 0; e < 4; e++)
            sum = fmaf(low_of(a[e]), low_of(c[e]), fmaf(high_of(a[e]), high_of(c[e]), sum));
    }
    return group_sum<4>(sum);
}

/* U of the group's features, turned. */
DEVICE void make_written(half_rows &u, const block &b, const chunk_factors &f)
{
    const uint32_t tile = b.base + AT_VALUES + b.s.group * TILE_BYTES;
    const uint64_t t = sideways_at(b.base + AT_WRITTEN);
    half_rows y;
    bf16_split r[4];

    if (!b.fresh) {
        wgmma_fence();
        begin_product<false, false, 8>(y, upright_at(b.base + AT_STATE + b.s.group * TILE_BYTES),
                                       SIDE_BYTES, upright_at(b.base), SIDE_BYTES, 0);
        take_products(y);
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t value[4];

        ldmatrix_x4_trans(value, b.s.turned(tile, k));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = 8 * k + 2 * i, col = b.s.column(at / 4);
            const float2 w = *(const float2 *)(f.write + col);
            const float2 ceil_div_int = *(const float2 *)(f.write_up + col);
            float a = w.x * low_of(value[i]), c = w.y * high_of(value[i]);

            if (!b.fresh) {
                a = fmaf(-ceil_div_int.x, y[at], a);
                c = fmaf(-ceil_div_int.y, y[at + 1], c);
            }
            split_bf16x2(r[k], i, a, c);
        }
    }
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        wgmma_rs<true>(u, r[k].hi, t + k * STEP_DOWN, k);
    }
    take_products(u);
}

/* A warp's rows of a sum to the group's tile. */
DEVICE void store_rows(uint32_t smem_offsets, const half_rows &x, const block &b)
{
    const uint32_t tile = b.base + smem_offsets + b.s.group * TILE_BYTES;

#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t y[4];

#pragma unroll
        for (int i = 0; i < 4; i++)
            y[i] = pack_bf16(x[8 * k + 2 * i], x[8 * k + 2 * i + 1]);
        stmatrix_x4(b.s.upright(tile, k), y);
    }
}

DEVICE void rows_of(float (&y)[2], const float *x, const lane_position &s, float sign = 1.0f)
{
    y[0] = sign * x[s.row()];
    y[1] = sign * x[s.row() + 8];
}

/* What the state before says of dQ and dK. */
DEVICE void add_state(half_rows &dq, half_rows &dk, mine &m, const block &b, const chunk_factors &f)
{
    const uint64_t x = sideways_at(b.base + AT_STATE + b.s.group * SIDE_BYTES);
    const uint32_t keys = b.base + b.s.group * SIDE_BYTES;
    half_rows y;
    float by[2];

    wgmma_fence();
    begin_product<false, true, 8>(y, upright_at(b.base + AT_DOUT), TILE_BYTES, x, TILE_BYTES, 0);
    take_products(y);
    rows_of(by, f.q_up, b.s);
    add_rows(dq, m.q, y, by, keys + TILE_BYTES, b.s);
    wgmma_fence();
    begin_product<false, true, 8>(y, upright_at(b.base + AT_VALUES), TILE_BYTES, x, TILE_BYTES, 0);
    take_products(y);
    rows_of(by, f.up_k, b.s, -1.0f);
    add_rows(dk, m.n, y, by, keys, b.s);
}

/* F by group 0, H by group 1; times what makes them so. */
DEVICE void make_square(half_rows &y, const block &b, const chunk_factors &f)
{
    const bool of_keys = b.s.group == 1;

    wgmma_fence();
    begin_product<false, true, 8>(y,
                                  upright_at(b.base + AT_DOUT + b.s.group * (AT_VALUES - AT_DOUT)),
                                  TILE_BYTES, sideways_at(b.base + AT_WRITTEN), TILE_BYTES, 0);
    take_products(y);
    const int row = b.s.row();
    const double at[2] = {f.b[row], f.b[row + 8]};
    const float *const rows = of_keys ? f.k : f.q;
    const float by[2] = {of_keys ? -rows[row] : rows[row],
                         of_keys ? -rows[row + 8] : rows[row + 8]};

#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int col = b.s.column(j) + of_keys; /* the first that is not seen from row col - 1 */
        const double2 from = *(const double2 *)(f.b + col - of_keys);
        const float2 k = *(const float2 *)(f.k + col - of_keys);

#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int i = row + e * 8;
            float *const p = y + 4 * j + 2 * e;

            p[0] *= col <= i ? __expf((float)(at[e] - from.x)) * by[e] * k.x : 0.0f;
            p[1] *= col + 1 <= i ? __expf((float)(at[e] - from.y)) * by[e] * k.y : 0.0f;
        }
    }
}

/* The gradient of the state after in the place of the one before, and their product. */
DEVICE void change_state(row_sums &to, const block &b)
{
    const bf16 *const saved = saved_after(b.v, b.first, b.h);
    const uint32_t state = b.base + AT_STATE;
    float sum = 0.0f;
    int4 y[SAVED_PARTS];

#pragma unroll
    for (int e = 0; e < SAVED_PARTS; e++) {
        const saved_part p = part_len(state, saved, b.v, e);

        y[e] = p.there ? *(const int4 *)p.from : make_int4(0, 0, 0, 0);
    }
#pragma unroll
    for (int e = 0; e < SAVED_PARTS; e++) {
        const uint32_t at = part_len(state, saved, b.v, e).to;
        const uint32_t w[4] = {(uint32_t)y[e].x, (uint32_t)y[e].y, (uint32_t)y[e].z,
                               (uint32_t)y[e].w};

        if (!b.fresh) {
            const int4 was = smem_load4(at);
            const uint32_t x[4] = {(uint32_t)was.x, (uint32_t)was.y, (uint32_t)was.z,
                                   (uint32_t)was.w};

#pragma unroll
            for (int c = 0; c < 4; c++)
                sum = fmaf(low_of(x[c]), low_of(w[c]), fmaf(high_of(x[c]), high_of(w[c]), sum));
        }
        smem_store4(at, w[0], w[1], w[2], w[3]);
    }
    sum = group_sum<WARP>(sum);
    if (b.s.lane == 0)
        to.through[threadIdx.x / WARP] = sum;
}

/* What tokens of the chunk say of each other, and the gradient of the state after. */
DEVICE void dgate_add_pairs(half_rows &dq, half_rows &dk, mine &m, row_sums &to, const block &b,
                            const chunk_factors &f)
{
    const uint32_t keys = b.base + b.s.group * SIDE_BYTES;
    const uint64_t k = sideways_at(keys), q = sideways_at(keys + TILE_BYTES);
    const float one[2] = {1.0f, 1.0f};
    half_rows y;
    float by[2];

    wgmma_fence();
    begin_product<false, true, 4>(y, upright_at(b.base + AT_F), 0, k, 0, 0);
    take_products(y);
    add_rows(dq, m.q, y, one, keys + TILE_BYTES, b.s);
    wgmma_fence();
    begin_product<false, true, 4>(y, upright_at(b.base + AT_H), 0, k, 0, 0);
    take_products(y);
    add_rows(dk, m.n, y, one, keys, b.s);
    wgmma_fence();
    begin_product<true, true, 4>(y, sideways_at(b.base + AT_F), 0, q, 0, 0);
    begin_product<true, true, 4>(y, sideways_at(b.base + AT_H), 0, k, 0, 1);
    take_products(y);
    add_rows(dk, m.k, y, one, keys, b.s);
    if (b.last) {
        if (b.s.lane == 0)
            to.w[threadIdx.x / WARP] = to.through[threadIdx.x / WARP] = 0.0f;
        return;
    }
    float dot[2] = {};

    wgmma_fence();
    begin_product<true, true, 8>(y, sideways_at(b.base + AT_WRITTEN), TILE_BYTES,
                                 sideways_at(b.base + AT_STATE + b.s.group * SIDE_BYTES),
                                 TILE_BYTES, 0);
    take_products(y);
    rows_of(by, f.k_on, b.s);
    add_rows(dk, dot, y, by, keys, b.s);
    m.k[0] += dot[0];
    m.k[1] += dot[1];
    const float w = group_sum<WARP>(dot[0] + dot[1]);

    if (b.s.lane == 0)
        to.w[threadIdx.x / WARP] = w;
}

/* The thread's sums to those of rows. */
DEVICE void give_sums(row_sums &to, const mine &m, const lane_position &s)
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

/* dg and db, by a warp of which a lane has two tokens. */
DEVICE void give_gates(const row_sums &r, const block &b, const chunk_factors &f)
{
    const int lane = b.s.lane;
    double e[2], behind, last = 0.0;
    float n[2];

#pragma unroll
    for (int w = 0; w < 8; w++)
        last += (double)r.w[w] + (double)(r.through[w] * f.last);
#pragma unroll
    for (int u = 0; u < 2; u++) {
        const int i = 2 * lane + u;
        const float mine_q = r.q[0][i] + r.q[1][i], mine_k = r.k[0][i] + r.k[1][i];

        n[u] = r.n[0][i] + r.n[1][i];
        e[u] = (double)mine_q + (double)n[u] - (double)mine_k;
    }
    e[0] += e[1];
    behind = e[0];
#pragma unroll
    for (int o = 1; o < WARP; o *= 2) {
        const double right = __shfl_down_sync(~0u, behind, o);

        behind += lane + o < WARP ? right : 0.0;
    }
    behind = behind - e[0] + last;
#pragma unroll
    for (int u = 0; u < 2; u++) {
        const int i = 2 * lane + u;
        const int64_t gate = b.gate() + i * b.v.n.a;

        if (i >= b.n)
            continue;
        b.v.dg[gate] = (float)(behind + e[u]);
        store_float(b.v.db + gate, (r.dv[i] + n[u]) * (1.0f - f.write[i]));
    }
}

DEVICE void make_head(half_rows &dq, half_rows &dk, row_sums &to, const block &b,
                      const chunk_factors &f)
{
    half_rows y;
    mine m = {};

    const row_part row = load_row(anew(b));

    all_there();
    const float dv = dot_row(row, anew(b));

    make_written(y, anew(b), f);
    __syncthreads(); /* V and T have been read */
    fetch_values(anew(b));
    store_rows(AT_WRITTEN, y, anew(b));
    all_there();
    if (!b.fresh)
        add_state(dq, dk, m, anew(b), f);
    make_square(y, anew(b), f);
    __syncthreads(); /* X, dO and dV have been read */
    store_rows(AT_F, y, anew(b));
    if (threadIdx.x % 4 == 0)
        to.dv[threadIdx.x / 4] = dv;
    if (!b.last)
        change_state(to, anew(b));
    fence_proxy_async();
    __syncthreads();
    dgate_add_pairs(dq, dk, m, to, anew(b), f);
    give_sums(to, m, anew(b).s);
}

/* Dots of sums with the rows in a tile, to those of this group. */
DEVICE void give_dots(float *to, const half_rows &sum, uint32_t tile, const lane_position &s)
{
    const uint32_t at = tile + s.row() * 128 + s.lane % 4 * 4;

#pragma unroll
    for (int e = 0; e < 2; e++) {
        float dot = 0.0f;

#pragma unroll
        for (int j = 0; j < 8; j++) {
            const uint32_t x = word_at(at + e * 1024 + ((j ^ (s.lane / 4)) << 4));

            dot = fmaf(sum[4 * j + 2 * e], low_of(x), dot);
            dot = fmaf(sum[4 * j + 2 * e + 1], high_of(x), dot);
        }
        dot = group_sum<4>(dot);
        if (s.lane % 4 == 0)
            to[s.row() + e * 8] = dot;
    }
}

/* Gradients of rows through their lengths, in the place of those rows, and to memory. */
DEVICE void give_rows(bf16 *to, const half_rows &sum, uint32_t keys, const float (*row_dots)[CHUNK],
                      const float *inv, const block &b, int64_t kh)
{
    const lane_position &s = b.s;
    const uint32_t tile = keys + s.group * SIDE_BYTES;
    const int64_t step = b.v.n.k * b.v.n.d;

#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int i = s.row() + e * 8;
        const float fragment_row = -(row_dots[0][i] + row_dots[1][i]) * inv[i] * inv[i];

#pragma unroll
        for (int j = 0; j < 8; j++) {
            const uint32_t p = tile + i * 128 + s.lane % 4 * 4 + ((j ^ (s.lane / 4)) << 4);
            const uint32_t x = word_at(p);

            asm volatile("st.shared.b32 [%0], %1;" ::"r"(p),
                         "r"(pack_bf16(fmaf(fragment_row, low_of(x), sum[4 * j + 2 * e]),
                                       fmaf(fragment_row, high_of(x), sum[4 * j + 2 * e + 1])))
                         : "memory");
        }
    }
    named_barrier_sync(1 + s.group, GROUP);
    give_values(to + b.first * step + kh * b.v.n.d + s.group * 64, step, tile, b.n,
                b.v.n.d - s.group * 64);
}

/* dQ and dK of all heads that read a head of keys. */
DEVICE void make_keys(half_rows &dq, half_rows &dk, row_sums &sums, block &b,
                      const prepared_chunk *r)
{
    const int group = (int)b.v.n.a / (int)b.v.n.k;

#pragma unroll
    for (int i = 0; i < 32; i++)
        dq[i] = dk[i] = 0.0f;
#pragma unroll 1
    for (int i = 0; i < group; i++, r++, b.h++) {
        fetch_head(anew(b), *r);
        make_head(dq, dk, sums, b, r->f);
        __syncthreads();
        if (threadIdx.x < WARP)
            give_gates(sums, b, r->f);
        __syncthreads(); /* and all products are done */
    }
}

__global__ void __launch_bounds__(2 * GROUP, 2) chunk_kernel(gated_delta_call<bf16> v)
{
    if constexpr (HAVE_WGMMA) {
        extern __shared__ __align__(1024) unsigned char raw[];
        key_sums &all = *(key_sums *)(raw + AT_SUMS);
        const unsigned number = blockIdx.x / (unsigned)v.n.k, kh = blockIdx.x % (unsigned)v.n.k;
        const chunk_ref at = chunk_find(v, number);
        const int head = (int)kh * ((int)v.n.a / (int)v.n.k);
        const int64_t left = at.d.n - at.c * CHUNK;
        block b = {v,
                   (int)(at.d.first + at.c * CHUNK),
                   head,
                   (int)d9di_i64_max(0, d9di_i64_min(CHUNK, left)),
                   at.c == 0,
                   left <= CHUNK,
                   smem_address(raw),
                   lane_position()};
        const prepared_chunk *const r = v.ready + number * v.n.a + head;
        const uint32_t keys = b.base + b.s.group * SIDE_BYTES;
        half_rows dq, dk;

        if (b.n == 0)
            return;
        copy_keys<2>(b.base, v, (b.first * v.n.k + kh) * v.n.d, b.n);
        make_keys(dq, dk, *(row_sums *)(raw + AT_SUMS), b, r);
        give_dots(all.q[b.s.group], dq, keys + TILE_BYTES, b.s);
        give_dots(all.k[b.s.group], dk, keys, b.s);
        __syncthreads();
        give_rows(v.dq, dq, b.base + TILE_BYTES, all.q, r->f.inv_q, b, kh);
        give_rows(v.dk, dk, b.base, all.k, r->f.k, b, kh);
    }
}

} // namespace

d9d_status d9di_gated_delta_bwd_sm90(d9d_stream s, const char *op, const gated_delta_call<bf16> &v)
{
    const unsigned all = (unsigned)(chunks_max(v.n.docs) * v.n.k);

    D9D_TRY(d9di_cuda_set_max_smem(op, (const void *)chunk_kernel, DIN_BYTES));
    chunk_kernel<<<all, 2 * GROUP, DIN_BYTES, d9di_cuda_stream(s)>>>(v);
    return d9di_cuda_check_launch(op);
}
