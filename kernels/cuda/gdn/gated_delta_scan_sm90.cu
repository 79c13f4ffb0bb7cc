/* gated_delta_scan_sm90.cu - scan of states, or of their gradients, over the chunks of documents on
 * Hopper, in bfloat16; see gated_delta.cuh.
 *
 * The algorithm of gated_delta_scan.cu with WGMMA. A warpgroup keeps 64 value features of a head's
 * state, X' [64, D] float32, in accumulator registers from the first chunk of a document to the
 * last. A operands (X', R, U) come from registers; B operands (K, Q, T, P) from shared memory, with
 * two stages:
 *
 *     cp.async        | K Q V T P of chunk n+1            | of n+2
 *     warpgroup 0, 1  | K X', Q X' -> R -> U -> O, X      | ...      of chunk n
 *
 * A state that the backward needs is staged in two tiles of shared memory and stored by TMA.
 *
 * Accuracy. X and T are rounded to bfloat16 as operands. R, U and Y are split into two parts
 * (2^-17). Accumulators and states are float32. Rows of K and Q have length 1, so rounding X by at
 * most 2^-9 per element moves k X and q X by at most 2^-9 of the length of a column of X. The
 * rounding of V and O moves them as much. Rounding T moves U by 2^-9 of the terms that U sums.
 * Against float32, O is off by 2.4e-3 of its root mean square; the rounding of O alone is 2.3e-3.
 *
 * Cost. A chunk and head is 6.3 MFLOP with operands in one part and 2.1 in two. It moves 96 KiB, of
 * which 32 are the state, so the scan is bound by memory. Timings: docs/benchmarks/kernels.md.
 *
 * In flash-linear-attention these are chunk_gated_delta_rule_fwd_kernel_h (X and U),
 * chunk_fwd_kernel_o (O) and chunk_gated_delta_rule_bwd_kernel_dhu (dX and Y).
 */
#include "cuda/gdn/gated_delta_sm90.cuh"

namespace
{

/* Shared memory: two stages, each with the inputs of a chunk, then the states to be saved. */
enum {
    SMEM_V = QK_BYTES, /* V or dO, one tile per warpgroup */
    SMEM_T = SMEM_V + 2 * TILE_BYTES,
    SMEM_P = SMEM_T + TILE_BYTES,
    SMEM_FACTORS = SMEM_P + TILE_BYTES,
    STAGE_BYTES = SMEM_FACTORS + 2048,
    SMEM_SAVED = 2 * STAGE_BYTES, /* two tiles per warpgroup: the state that TMA is storing */
    SMEM_BYTES = SMEM_SAVED + 4 * TILE_BYTES,
    FACTOR_BYTES = offsetof(chunk_factors, k_from_start),
    SMEM_BETA = SMEM_FACTORS,
    SMEM_BETA_K = SMEM_BETA + CHUNK * 4,
    SMEM_K_TO_END = SMEM_BETA_K + CHUNK * 4,
    SMEM_Q_FROM_START = SMEM_K_TO_END + CHUNK * 4,
    SMEM_DECAY_LAST = SMEM_Q_FROM_START + CHUNK * 4
};

typedef float state_fragments[64]; /* X' or dX' [64 value features, 128 key features] */
typedef float token_fragments[32]; /* [64 value features, CHUNK tokens] */

template <int GROUPS>
DEVICE void stage_load(uint32_t to, const gated_delta_call<bf16> &v, const bf16 *values,
                       const chunk &x, const prepared_chunk &r, int64_t col)
{
    const int64_t value = (x.first * v.n.a + x.h) * v.n.f + col;

    copy_qk<GROUPS>(to, v, (x.first * v.n.k + x.kh) * v.n.d, x.n);
    copy_rows<GROUPS, CHUNK, GROUPS>(to + SMEM_V, TILE_BYTES, values + value, v.n.a * v.n.f, x.n,
                                     v.n.f - col);
    copy_bytes<GROUPS, TILE_BYTES>(to + SMEM_T, r.t[0]);
    copy_bytes<GROUPS, TILE_BYTES>(to + SMEM_P, r.p);
    copy_bytes<GROUPS, FACTOR_BYTES>(to + SMEM_FACTORS, &r.f);
}

/* --- operations of a warpgroup ---------------------------------------------------------------- */

/* Loads or stores the recurrent state of decode, float32 [D, F]. */
template <bool STORE>
DEVICE void state_transfer(state_fragments &x, float *p, const gated_delta_call<bf16> &v,
                           const lane_position &s, int64_t col)
{
#pragma unroll
    for (int i = 0; i < 64; i++) {
        const int64_t d = s.column(i / 4) + i % 2, f = col + s.row() + i / 2 % 2 * 8;

        if (d >= v.n.d || f >= v.n.f)
            continue;
        if (STORE)
            p[d * v.n.f + f] = x[i];
        else
            x[i] = p[d * v.n.f + f];
    }
}

/* Saves X' in bfloat16 for the backward: the warpgroup's rows [min(64, F - col), 64] of each half
 * of the features are contiguous. Returns when the TMA store is issued. */
DEVICE void save_state(const bf16_split (&x)[8], bf16 *to, uint32_t tile,
                       const gated_delta_call<bf16> &v, const lane_position &s, int64_t col)
{
    const int64_t rows = d9di_i64_min(64, v.n.f - col);

#pragma unroll
    for (int k = 0; k < 8; k++)
        stmatrix_x4(s.row_address(tile + k / 4 * TILE_BYTES, k % 4), x[k].hi);
    fence_proxy_async();
    named_barrier_sync(1 + s.group, WARPGROUP);
    if (s.warp != 0 || s.lane != 0 || rows <= 0)
        return;
    for (int i = 0; i * 64 < v.n.d; i++)
        tma_bulk_store(to + (i * v.n.f + col) * 64, tile + i * TILE_BYTES, (uint32_t)rows * 128);
    tma_store_commit();
}

template <int N> DEVICE void scale_fragments(float (&x)[N], float by)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] *= by;
}

/* x [64, N] times by[column], a float array in shared memory. */
template <int N> DEVICE void scale_columns(float (&x)[N], uint32_t by, const lane_position &s)
{
#pragma unroll
    for (int j = 0; j < N / 4; j++) {
        const float2 f = smem_load_float2(by + s.column(j) * 4);

        x[4 * j] *= f.x;
        x[4 * j + 1] *= f.y;
        x[4 * j + 2] *= f.x;
        x[4 * j + 3] *= f.y;
    }
}

DEVICE void split_state(bf16_split (&y)[8], const state_fragments &x)
{
#pragma unroll
    for (int k = 0; k < 8; k++)
        y[k] = split_bf16x8(x + 8 * k);
}

/* y [64, N] = X' times N rows of K, or of K and Q (N = 128). Issues the WGMMAs without waiting. */
template <int N>
DEVICE void issue_qk_products(float (&y)[N / 2], const bf16_split (&a)[8], uint32_t keys)
{
    const uint64_t b = smem_descriptor<false>(keys);

    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const uint64_t at = b + k / 4 * (HALF_BYTES >> 4) + k % 4 * K_MAJOR_STEP;

        wgmma_rs<false>(y, a[k].hi, at, k);
    }
    wgmma_commit();
}

/* y [64, CHUNK] = x T, or x S = x T' with TRANS; x in two parts. Issues the WGMMAs without
 * waiting. */
template <bool TRANS>
DEVICE void issue_inverse(token_fragments &y, const bf16_split (&x)[4], uint32_t t)
{
    const uint64_t b = TRANS ? smem_descriptor<false>(t) : mn_major_descriptor(t, TILE_BYTES);
    enum { STEP = TRANS ? +K_MAJOR_STEP : +MN_MAJOR_STEP };

#pragma unroll
    for (int k = 0; k < 4; k++) {
        wgmma_rs<!TRANS>(y, x[k].hi, b + k * STEP, k);
        wgmma_rs<!TRANS>(y, x[k].lo, b + k * STEP, 1);
    }
}

/* X' += u' times rows of K or Q, with u' [64, CHUNK] in two parts. Issues the WGMMAs without
 * waiting. */
DEVICE void issue_state_update(state_fragments &x, const bf16_split (&u)[4], uint32_t rows)
{
    const uint64_t b = mn_major_descriptor(rows, HALF_BYTES);

#pragma unroll
    for (int k = 0; k < 4; k++) {
        wgmma_rs<true>(x, u[k].hi, b + k * MN_MAJOR_STEP, 1);
        wgmma_rs<true>(x, u[k].lo, b + k * MN_MAJOR_STEP, 1);
    }
}

DEVICE void split_tokens(bf16_split (&y)[4], const token_fragments &x)
{
#pragma unroll
    for (int k = 0; k < 4; k++)
        y[k] = split_bf16x8(x + 8 * k);
}
/* y = sign x [64, CHUNK] times by[token], a float array in shared memory. */
DEVICE void split_scaled(bf16_split (&y)[4], const token_fragments &x, uint32_t by, float sign,
                         const lane_position &s)
{
#pragma unroll
    for (int k = 0; k < 4; k++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int j = 2 * k + i;
            const float2 f = smem_load_float2(by + s.column(j) * 4);

            split_bf16x2(y[k], 2 * i, sign * f.x * x[4 * j], sign * f.y * x[4 * j + 1]);
            split_bf16x2(y[k], 2 * i + 1, sign * f.x * x[4 * j + 2], sign * f.y * x[4 * j + 3]);
        }
    }
}

/* Stores x' [CHUNK, 64] to columns [col, col + 64) of `to`. The warpgroup's V tile, which is no
 * longer needed, is overwritten as staging. */
DEVICE void store_tokens(bf16 *to, const token_fragments &x, uint32_t tile,
                         const gated_delta_call<bf16> &v, const chunk &c, const lane_position &s,
                         int64_t col)
{
    const int64_t step = v.n.a * v.n.f;

#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t y[4];

#pragma unroll
        for (int i = 0; i < 4; i++)
            y[i] = pack_bf16(x[8 * k + 2 * i], x[8 * k + 2 * i + 1]);
        stmatrix_x4_trans(s.trans_address(tile, k), y);
    }
    named_barrier_sync(1 + s.group, WARPGROUP);
    store_value_rows(to + (c.first * v.n.a + c.h) * v.n.f + col, step, tile, c.n, v.n.f - col);
}

/* --- forward and backward --------------------------------------------------------------------- */

/* The columns of a chunk that a warpgroup computes. */
struct chunk_task {
    const gated_delta_call<bf16> &v;
    const chunk &c;
    lane_position s;
    uint32_t stage, tile; /* the stage, and the warpgroup's V or dO tile in it */
    uint32_t saved;       /* the warpgroup's staging tiles for a saved state */
    int64_t col;          /* the warpgroup's first value feature */
};

struct scan_fwd {
    enum { REVERSE = 0 };

    static __device__ __forceinline__ const bf16 *values(const gated_delta_call<bf16> &v)
    {
        return v.v;
    }

    /* r = R' = beta V' - beta_k_from_start (K X)' [64, CHUNK], in two parts, from x = (K X)'. */
    static __device__ __forceinline__ void make_residual(bf16_split (&r)[4], const float (&x)[64],
                                                         const chunk_task &t)
    {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t value[4];

            ldmatrix_x4_trans(value, t.s.trans_address(t.tile, k));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int at = 8 * k + 2 * i, col = t.s.column(at / 4) * 4;
                const float2 beta = smem_load_float2(t.stage + SMEM_BETA + col);
                const float2 beta_k = smem_load_float2(t.stage + SMEM_BETA_K + col);

                split_bf16x2(r[k], i, fmaf(-beta_k.x, x[at], beta.x * bf16x2_low(value[i])),
                             fmaf(-beta_k.y, x[at + 1], beta.y * bf16x2_high(value[i])));
            }
        }
    }

    static __device__ __forceinline__ void process_chunk(state_fragments &x, const chunk_task &t)
    {
        const bool skip_update = t.c.last && t.v.past.slots == NULL;
        float y[64];
        token_fragments u;
        bf16_split r[4], u_to_end[4];

        {
            bf16_split a[8];

            split_state(a, x);
            issue_qk_products<128>(y, a, t.stage);
            if (!t.c.fresh && t.v.state != NULL)
                save_state(a, saved_state_before(t.v, t.c.first, t.c.h), t.saved, t.v, t.s, t.col);
            wgmma_wait<0>();
            wgmma_fence_operand(y);
        }
        make_residual(r, y, t);
        wgmma_fence();
        issue_inverse<false>(u, r, t.stage + SMEM_T);
        wgmma_commit();
        scale_fragments(x, smem_load_float2(t.stage + SMEM_DECAY_LAST).x);

        token_fragments &o = *(token_fragments *)(y + 32);

        scale_columns(o, t.stage + SMEM_Q_FROM_START, t.s);
        wgmma_wait<0>();
        wgmma_fence_operand(u);
        split_tokens(r, u);
        split_scaled(u_to_end, u, t.stage + SMEM_K_TO_END, 1.0f, t.s);
        wgmma_fence();
        issue_output(o, r, t.stage + SMEM_P);
        wgmma_commit();
        if (!skip_update)
            issue_state_update(x, u_to_end, t.stage);
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_fence_operand(o);
        store_tokens(t.v.o, o, t.tile, t.v, t.c, t.s, t.col);
        wgmma_wait<0>();
        wgmma_fence_operand(x);
    }

    /* O' += U' P'. Issues the WGMMAs without waiting. */
    static __device__ __forceinline__ void issue_output(token_fragments &o,
                                                        const bf16_split (&u)[4], uint32_t p)
    {
        const uint64_t b = smem_descriptor<false>(p);

#pragma unroll
        for (int k = 0; k < 4; k++) {
            wgmma_rs<false>(o, u[k].hi, b + k * K_MAJOR_STEP, 1);
            wgmma_rs<false>(o, u[k].lo, b + k * K_MAJOR_STEP, 1);
        }
    }
};

struct scan_bwd {
    enum { REVERSE = 1 };

    static __device__ __forceinline__ const bf16 *values(const gated_delta_call<bf16> &v)
    {
        return v.dout;
    }

    /* Loads dO' [64, CHUNK] as A operands: `out` unscaled, dout_q times q_from_start in two
     * parts. */
    static __device__ __forceinline__ void load_dout(uint32_t (&out)[4][4], bf16_split (&dout_q)[4],
                                                     const chunk_task &t)
    {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            ldmatrix_x4_trans(out[k], t.s.trans_address(t.tile, k));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 f =
                    smem_load_float2(t.stage + SMEM_Q_FROM_START + t.s.column(2 * k + i / 2) * 4);

                split_bf16x2(dout_q[k], i, f.x * bf16x2_low(out[k][i]),
                             f.y * bf16x2_high(out[k][i]));
            }
        }
    }

    static __device__ __forceinline__ void process_chunk(state_fragments &x, const chunk_task &t)
    {
        token_fragments u, y;
        uint32_t out[4][4];
        bf16_split dout_q[4], du[4];
        const uint64_t p = mn_major_descriptor(t.stage + SMEM_P, TILE_BYTES);

        {
            bf16_split a[8];

            split_state(a, x);
            issue_qk_products<64>(u, a, t.stage);
            if (!t.c.last)
                save_state(a, saved_dstate_after(t.v, t.c.first, t.c.h), t.saved, t.v, t.s, t.col);
            load_dout(out, dout_q, t);
            wgmma_wait<0>();
            wgmma_fence_operand(u);
        }
        scale_columns(u, t.stage + SMEM_K_TO_END, t.s);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++)
            wgmma_rs<true>(u, out[k], p + k * MN_MAJOR_STEP, 1);
        wgmma_commit();
        scale_fragments(x, smem_load_float2(t.stage + SMEM_DECAY_LAST).x);
        wgmma_wait<0>();
        wgmma_fence_operand(u);
        split_tokens(du, u);
        wgmma_fence();
        issue_inverse<true>(y, du, t.stage + SMEM_T);
        wgmma_commit();
        if (!t.c.fresh)
            issue_state_update(x, dout_q, t.stage + TILE_BYTES);
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_fence_operand(y);
        split_scaled(du, y, t.stage + SMEM_BETA_K, -1.0f, t.s);
        wgmma_fence();
        if (!t.c.fresh)
            issue_state_update(x, du, t.stage);
        wgmma_commit();
        scale_columns(y, t.stage + SMEM_BETA, t.s);
        store_tokens(t.v.dv, y, t.tile, t.v, t.c, t.s, t.col);
        wgmma_wait<0>();
        wgmma_fence_operand(x);
    }
};

/* --- loop over chunks ------------------------------------------------------------------------- */

template <class SCAN, int GROUPS>
__global__ void __launch_bounds__(GROUPS *WARPGROUP, 1) scan_kernel(gated_delta_call<bf16> v)
{
    if constexpr (HAVE_WGMMA) {
        extern __shared__ __align__(1024) unsigned char raw[];
        const uint32_t base = smem_address(raw);
        const int64_t wide = GROUPS * 64, across = d9di_i64_ceil_div(v.n.f, wide);
        const int64_t col = blockIdx.x % across * wide, h = blockIdx.x / across % v.n.a;
        const int64_t i = blockIdx.x / across / v.n.a;
        const document d = document_of(v.n.docs, i);
        const int64_t count = d9di_i64_ceil_div(d.n, CHUNK), number = d.first / CHUNK + i;
        const lane_position s;
        const int64_t group_col = col + s.group * 64;
        float *past = NULL;
        state_fragments x;

#pragma unroll
        for (int e = 0; e < 64; e++)
            x[e] = 0.0f;
        if (count == 0)
            return;
        if (v.past.slots != NULL) {
            past = (float *)v.past.slots + (v.past.slot_index[i] * v.n.a + h) * v.n.d * v.n.f;
            if (v.n.docs.segment[i].nk > v.n.docs.segment[i].nq)
                state_transfer<false>(x, past, v, s, group_col);
        }
        for (int64_t n = -1; n < count; n++) {
            const int64_t next = SCAN::REVERSE ? count - 2 - n : n + 1;

            tma_store_wait_read<0>(); /* the previous TMA store has read its staging tiles */
            smem_wait_copies();
            if (n + 1 < count)
                stage_load<GROUPS>(base + (uint32_t)((n + 1) % 2) * STAGE_BYTES, v, SCAN::values(v),
                                   chunk_of(v, d, next, h), v.prepared[(number + next) * v.n.a + h],
                                   col);
            if (n < 0)
                continue;

            const chunk c = chunk_of(v, d, SCAN::REVERSE ? next + 1 : next - 1, h);
            const uint32_t stage = base + (uint32_t)(n % 2) * STAGE_BYTES;

            SCAN::process_chunk(x, {v, c, s, stage, stage + SMEM_V + s.group * TILE_BYTES,
                                    base + SMEM_SAVED + s.group * 2 * TILE_BYTES, group_col});
        }
        if (past != NULL)
            state_transfer<true>(x, past, v, s, group_col);
        tma_store_wait();
    }
}

template <class SCAN, int GROUPS>
d9d_status launch_scan(d9d_stream s, const char *op, const gated_delta_call<bf16> &v)
{
    const int64_t blocks = documents_in(v.n.docs) * v.n.a * d9di_i64_ceil_div(v.n.f, GROUPS * 64);
    auto *const k = scan_kernel<SCAN, GROUPS>;

    D9D_TRY(d9di_cuda_set_max_smem(op, (const void *)k, SMEM_BYTES));
    k<<<(unsigned)blocks, GROUPS * WARPGROUP, SMEM_BYTES, d9di_cuda_stream(s)>>>(v);
    return d9di_cuda_check_launch(op);
}

/* Two warpgroups per block, or one where that would leave the GPU under two thirds full. */
template <class SCAN>
d9d_status launch_by_key_size(d9d_stream s, const char *op, const gated_delta_call<bf16> &v)
{
    const bool many =
        documents_in(v.n.docs) * v.n.a * d9di_i64_ceil_div(v.n.f, 128) * 3 >= (int64_t)s->sms * 2;

    return v.n.f > 64 && many ? launch_scan<SCAN, 2>(s, op, v) : launch_scan<SCAN, 1>(s, op, v);
}

} // namespace

/* With fewer features a state saved in bfloat16 (D rounded up to 64) is larger than in float32. */
enum { MIN_KEY_SIZE = 32 };

bool d9di_gated_delta_sm90_supported(d9d_stream s, const d9d_gated_delta_dims *n)
{
    return s->tensor_map_encode != NULL && n->t == D9D_BF16 && n->d <= MAX_KEY_SIZE &&
           n->d >= MIN_KEY_SIZE && n->d % 8 == 0 && n->f <= MAX_KEY_SIZE && n->f % 8 == 0 &&
           n->docs.b * n->docs.s < INT32_MAX - CHUNK;
}

d9d_status d9di_gated_delta_scan_fwd_sm90(d9d_stream s, const char *op,
                                          const gated_delta_call<bf16> &v)
{
    return launch_by_key_size<scan_fwd>(s, op, v);
}
d9d_status d9di_gated_delta_scan_bwd_sm90(d9d_stream s, const char *op,
                                          const gated_delta_call<bf16> &v)
{
    return launch_by_key_size<scan_bwd>(s, op, v);
}
