/* gated_delta_scan_sm90.cu - the gated delta rule in bfloat16 on Hopper: states, and their
 * gradients, through documents; see gated_delta.cuh.
 *
 * As gated_delta_scan.cu, in products of a warp group: 64 columns of a head's state are its sums,
 * X' [64, D] in float32, from a document's first chunk to its last.  They are operands in
 * registers, and so is all that is made for them; K, Q, S and P come through shared memory, the
 * next chunk's while this one is worked on:
 *
 *     copies        | K Q V T P of n+1                  | of n+2
 *     group 0, 1    | K X', Q X' -> R -> U -> O, X      | ...      of chunk n
 *
 * A state that the backward needs leaves through two tiles of shared memory by the copy engine.
 *
 * X and S are rounded to bfloat16 where they are operands, R, U and Y are in two parts (2^-17),
 * sums and states stay float32.  Rows of K and Q have length 1, so the rounding of X, at most 2^-9
 * of each element, moves k X and q X by at most 2^-9 of the length of a column of X, as much as the
 * rounding of V and of O moves them; that of S moves U by 2^-9 of what U is a sum of.  Against the
 * same in float32, O is off by 2.4e-3 of its root mean square, of which the rounding of O itself
 * is 2.3e-3.
 *
 * A chunk and head takes 6.3 MFLOP of operands in one part and 2.1 in two, and moves 96 KiB, 32 of
 * them the state: memory is what bounds it.  4 x 4096 tokens, 32 heads of 128, on one H100: 0.30 ms
 * onward and 0.29 back, at 77 and 82 % of the memory's rate (S and P before it 0.18 ms).
 *
 * flash-linear-attention has this in two kernels, chunk_gated_delta_rule_fwd_kernel_h (our X and U)
 * and chunk_fwd_kernel_o (O), and the gradient's in ..._bwd_kernel_dhu (dX and Y).
 */
#include "cuda/gdn/gated_delta_sm90.cuh"

namespace
{

/* Shared memory of a chunk. */
enum {
    AT_VALUES = KEYS_BYTES, /* V or dO, a tile a group */
    AT_T = AT_VALUES + 2 * TILE_BYTES,
    AT_P = AT_T + TILE_BYTES,
    AT_FACTORS = AT_P + TILE_BYTES,
    STAGE_BYTES = AT_FACTORS + 2048,
    AT_SAVED = 2 * STAGE_BYTES, /* two tiles a group: its state on its way to memory */
    WALK_BYTES = AT_SAVED + 4 * TILE_BYTES,
    WALK_FACTORS = offsetof(chunk_factors, up_k),
    AT_WRITE = AT_FACTORS,
    AT_WRITE_UP = AT_WRITE + CHUNK * 4,
    AT_K_ON = AT_WRITE_UP + CHUNK * 4,
    AT_Q_UP = AT_K_ON + CHUNK * 4,
    AT_LAST = AT_Q_UP + CHUNK * 4
};

typedef float state[64];           /* X' or dX', of 64 columns and all features of a key */
typedef float token_fragments[32]; /* of 64 columns, by the tokens of a chunk */

template <int GROUPS>
DEVICE void stage_load(uint32_t to, const gated_delta_call<bf16> &v, const bf16 *values,
                       const chunk &x, const prepared_chunk &r, int64_t col)
{
    const int64_t value = (x.first * v.n.a + x.h) * v.n.f + col;

    copy_keys<GROUPS>(to, v, (x.first * v.n.k + x.kh) * v.n.d, x.n);
    copy_rows<GROUPS, CHUNK, GROUPS>(to + AT_VALUES, TILE_BYTES, values + value, v.n.a * v.n.f, x.n,
                                     v.n.f - col);
    copy_bytes<GROUPS, TILE_BYTES>(to + AT_T, r.t[0]);
    copy_bytes<GROUPS, TILE_BYTES>(to + AT_P, r.p);
    copy_bytes<GROUPS, WALK_FACTORS>(to + AT_FACTORS, &r.f);
}

/* --- what a group does ------------------------------------------------------------------------ */

/* The state of generation, float32 [D, F]. */
template <bool STORE>
DEVICE void state_transfer(state &x, float *p, const gated_delta_call<bf16> &v,
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

/* The state for the backward, of which a group's rows of 64 features lie together. */
DEVICE void keep_state(const bf16_split (&x)[8], bf16 *to, uint32_t tile,
                       const gated_delta_call<bf16> &v, const lane_position &s, int64_t col)
{
    const int64_t rows = d9di_i64_min(64, v.n.f - col);

#pragma unroll
    for (int k = 0; k < 8; k++)
        stmatrix_x4(s.upright(tile + k / 4 * TILE_BYTES, k % 4), x[k].hi);
    fence_proxy_async();
    named_barrier_sync(1 + s.group, GROUP);
    if (s.warp != 0 || s.lane != 0 || rows <= 0)
        return;
    for (int i = 0; i * 64 < v.n.d; i++)
        bytes_store(to + (i * v.n.f + col) * 64, tile + i * TILE_BYTES, (uint32_t)rows * 128);
    tma_store_commit();
}

template <int N> DEVICE void scale_all(float (&x)[N], float by)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] *= by;
}

/* Element i times by[its column]. */
template <int N> DEVICE void scale_columns(float (&x)[N], uint32_t by, const lane_position &s)
{
#pragma unroll
    for (int j = 0; j < N / 4; j++) {
        const float2 f = two_at(by + s.column(j) * 4);

        x[4 * j] *= f.x;
        x[4 * j + 1] *= f.y;
        x[4 * j + 2] *= f.x;
        x[4 * j + 3] *= f.y;
    }
}

DEVICE void split_state(bf16_split (&y)[8], const state &x)
{
#pragma unroll
    for (int k = 0; k < 8; k++)
        y[k] = split_eight(x + 8 * k);
}

/* y = X times rows of K, or of K and Q: N of them; begun only. */
template <int N> DEVICE void begin_read(float (&y)[N / 2], const bf16_split (&a)[8], uint32_t keys)
{
    const uint64_t b = smem_descriptor<false>(keys);

    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const uint64_t at = b + k / 4 * (SIDE_BYTES >> 4) + k % 4 * STEP_ACROSS;

        wgmma_rs<false>(y, a[k].hi, at, k);
    }
    wgmma_commit();
}

/* y = x T, or x T' = x S, of T in parts; begun only. */
template <bool TRANS>
DEVICE void begin_inverse(token_fragments &y, const bf16_split (&x)[4], uint32_t t)
{
    const uint64_t b = TRANS ? smem_descriptor<false>(t) : sideways(t, TILE_BYTES);
    enum { STEP = TRANS ? +STEP_ACROSS : +STEP_DOWN };

#pragma unroll
    for (int k = 0; k < 4; k++) {
        wgmma_rs<!TRANS>(y, x[k].hi, b + k * STEP, k);
        wgmma_rs<!TRANS>(y, x[k].lo, b + k * STEP, 1);
    }
}

/* X += what tokens write, by rows of K or Q; begun only. */
DEVICE void begin_write(state &x, const bf16_split (&u)[4], uint32_t rows)
{
    const uint64_t b = sideways(rows, SIDE_BYTES);

#pragma unroll
    for (int k = 0; k < 4; k++) {
        wgmma_rs<true>(x, u[k].hi, b + k * STEP_DOWN, 1);
        wgmma_rs<true>(x, u[k].lo, b + k * STEP_DOWN, 1);
    }
}

DEVICE void split_tokens(bf16_split (&y)[4], const token_fragments &x)
{
#pragma unroll
    for (int k = 0; k < 4; k++)
        y[k] = split_eight(x + 8 * k);
}
/* Times sign by[token]. */
DEVICE void split_scaled(bf16_split (&y)[4], const token_fragments &x, uint32_t by, float sign,
                         const lane_position &s)
{
#pragma unroll
    for (int k = 0; k < 4; k++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int j = 2 * k + i;
            const float2 f = two_at(by + s.column(j) * 4);

            split_bf16x2(y[k], 2 * i, sign * f.x * x[4 * j], sign * f.y * x[4 * j + 1]);
            split_bf16x2(y[k], 2 * i + 1, sign * f.x * x[4 * j + 2], sign * f.y * x[4 * j + 3]);
        }
    }
}

/* Tokens of the group's columns to memory, through the place of its values, which have been read.
 */
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
        shared_store_turned(s.turned(tile, k), y);
    }
    named_barrier_sync(1 + s.group, GROUP);
    give_values(to + (c.first * v.n.a + c.h) * v.n.f + col, step, tile, c.n, v.n.f - col);
}

/* --- the two ways ----------------------------------------------------------------------------- */

/* A group's columns of a chunk. */
struct task {
    const gated_delta_call<bf16> &v;
    const chunk &c;
    lane_position s;
    uint32_t stage, tile; /* what the block has of the chunk, what the group of its values */
    uint32_t saved;       /* the group's tiles */
    int64_t col;          /* the group's first */
};

struct scan_fwd {
    enum { BACK = 0 };

    static __device__ __forceinline__ const bf16 *values(const gated_delta_call<bf16> &v)
    {
        return v.v;
    }

    /* R in place of K X. */
    static __device__ __forceinline__ void make_residual(bf16_split (&r)[4], const float (&x)[64],
                                                         const task &t)
    {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t value[4];

            ldmatrix_x4_trans(value, t.s.turned(t.tile, k));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int at = 8 * k + 2 * i, col = t.s.column(at / 4) * 4;
                const float2 w = two_at(t.stage + AT_WRITE + col);
                const float2 ceil_div_int = two_at(t.stage + AT_WRITE_UP + col);

                split_bf16x2(r[k], i, fmaf(-ceil_div_int.x, x[at], w.x * low_of(value[i])),
                             fmaf(-ceil_div_int.y, x[at + 1], w.y * high_of(value[i])));
            }
        }
    }

    static __device__ __forceinline__ void process_chunk(state &x, const task &t)
    {
        const bool ends = t.c.last && t.v.past.slots == NULL;
        float y[64];
        token_fragments u;
        bf16_split r[4], on[4];

        {
            bf16_split a[8];

            split_state(a, x);
            begin_read<128>(y, a, t.stage);
            if (!t.c.fresh && t.v.state != NULL)
                keep_state(a, saved_before(t.v, t.c.first, t.c.h), t.saved, t.v, t.s, t.col);
            wgmma_wait<0>();
            wgmma_fence_operand(y);
        }
        make_residual(r, y, t);
        wgmma_fence();
        begin_inverse<false>(u, r, t.stage + AT_T);
        wgmma_commit();
        scale_all(x, two_at(t.stage + AT_LAST).x);

        token_fragments &o = *(token_fragments *)(y + 32);

        scale_columns(o, t.stage + AT_Q_UP, t.s);
        wgmma_wait<0>();
        wgmma_fence_operand(u);
        split_tokens(r, u);
        split_scaled(on, u, t.stage + AT_K_ON, 1.0f, t.s);
        wgmma_fence();
        begin_output(o, r, t.stage + AT_P);
        wgmma_commit();
        if (!ends)
            begin_write(x, on, t.stage);
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_fence_operand(o);
        store_tokens(t.v.o, o, t.tile, t.v, t.c, t.s, t.col);
        wgmma_wait<0>();
        wgmma_fence_operand(x);
    }

    /* O += U P'; begun only. */
    static __device__ __forceinline__ void begin_output(token_fragments &o,
                                                        const bf16_split (&u)[4], uint32_t p)
    {
        const uint64_t b = smem_descriptor<false>(p);

#pragma unroll
        for (int k = 0; k < 4; k++) {
            wgmma_rs<false>(o, u[k].hi, b + k * STEP_ACROSS, 1);
            wgmma_rs<false>(o, u[k].lo, b + k * STEP_ACROSS, 1);
        }
    }
};

struct scan_bwd {
    enum { BACK = 1 };

    static __device__ __forceinline__ const bf16 *values(const gated_delta_call<bf16> &v)
    {
        return v.dout;
    }

    /* dO turned, as it is and times q_up. */
    static __device__ __forceinline__ void load_dout(uint32_t (&out)[4][4],
                                                     bf16_split (&ceil_div_int)[4], const task &t)
    {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            ldmatrix_x4_trans(out[k], t.s.turned(t.tile, k));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 f = two_at(t.stage + AT_Q_UP + t.s.column(2 * k + i / 2) * 4);

                split_bf16x2(ceil_div_int[k], i, f.x * low_of(out[k][i]), f.y * high_of(out[k][i]));
            }
        }
    }

    static __device__ __forceinline__ void process_chunk(state &x, const task &t)
    {
        token_fragments u, y;
        uint32_t out[4][4];
        bf16_split ceil_div_int[4], du[4];
        const uint64_t p = sideways(t.stage + AT_P, TILE_BYTES);

        {
            bf16_split a[8];

            split_state(a, x);
            begin_read<64>(u, a, t.stage);
            if (!t.c.last)
                keep_state(a, saved_after(t.v, t.c.first, t.c.h), t.saved, t.v, t.s, t.col);
            load_dout(out, ceil_div_int, t);
            wgmma_wait<0>();
            wgmma_fence_operand(u);
        }
        scale_columns(u, t.stage + AT_K_ON, t.s);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++)
            wgmma_rs<true>(u, out[k], p + k * STEP_DOWN, 1);
        wgmma_commit();
        scale_all(x, two_at(t.stage + AT_LAST).x);
        wgmma_wait<0>();
        wgmma_fence_operand(u);
        split_tokens(du, u);
        wgmma_fence();
        begin_inverse<true>(y, du, t.stage + AT_T);
        wgmma_commit();
        if (!t.c.fresh)
            begin_write(x, ceil_div_int, t.stage + TILE_BYTES);
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_fence_operand(y);
        split_scaled(du, y, t.stage + AT_WRITE_UP, -1.0f, t.s);
        wgmma_fence();
        if (!t.c.fresh)
            begin_write(x, du, t.stage);
        wgmma_commit();
        scale_columns(y, t.stage + AT_WRITE, t.s);
        store_tokens(t.v.dv, y, t.tile, t.v, t.c, t.s, t.col);
        wgmma_wait<0>();
        wgmma_fence_operand(x);
    }
};

/* --- the walk --------------------------------------------------------------------------------- */

template <class SCAN, int GROUPS>
__global__ void __launch_bounds__(GROUPS *GROUP, 1) scan_kernel(gated_delta_call<bf16> v)
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
        const int64_t mine = col + s.group * 64;
        float *past = NULL;
        state x;

#pragma unroll
        for (int e = 0; e < 64; e++)
            x[e] = 0.0f;
        if (count == 0)
            return;
        if (v.past.slots != NULL) {
            past = (float *)v.past.slots + (v.past.slot_index[i] * v.n.a + h) * v.n.d * v.n.f;
            if (v.n.docs.segment[i].nk > v.n.docs.segment[i].nq)
                state_transfer<false>(x, past, v, s, mine);
        }
        for (int64_t n = -1; n < count; n++) {
            const int64_t next = SCAN::BACK ? count - 2 - n : n + 1;

            tma_store_wait_read<0>(); /* the last state has left shared memory */
            all_there();
            if (n + 1 < count)
                stage_load<GROUPS>(base + (uint32_t)((n + 1) % 2) * STAGE_BYTES, v, SCAN::values(v),
                                   chunk_of(v, d, next, h), v.ready[(number + next) * v.n.a + h],
                                   col);
            if (n < 0)
                continue;

            const chunk c = chunk_of(v, d, SCAN::BACK ? next + 1 : next - 1, h);
            const uint32_t stage = base + (uint32_t)(n % 2) * STAGE_BYTES;

            SCAN::process_chunk(x, {v, c, s, stage, stage + AT_VALUES + s.group * TILE_BYTES,
                                    base + AT_SAVED + s.group * 2 * TILE_BYTES, mine});
        }
        if (past != NULL)
            state_transfer<true>(x, past, v, s, mine);
        tma_store_wait();
    }
}

template <class SCAN, int GROUPS>
d9d_status launch_walk(d9d_stream s, const char *op, const gated_delta_call<bf16> &v)
{
    const int64_t blocks = documents_in(v.n.docs) * v.n.a * d9di_i64_ceil_div(v.n.f, GROUPS * 64);
    auto *const k = scan_kernel<SCAN, GROUPS>;

    D9D_TRY(d9di_cuda_set_max_smem(op, (const void *)k, WALK_BYTES));
    k<<<(unsigned)blocks, GROUPS * GROUP, WALK_BYTES, d9di_cuda_stream(s)>>>(v);
    return d9di_cuda_check_launch(op);
}

/* Half the columns a block where there are not blocks enough. */
template <class SCAN>
d9d_status launch_by_key_size(d9d_stream s, const char *op, const gated_delta_call<bf16> &v)
{
    const bool many =
        documents_in(v.n.docs) * v.n.a * d9di_i64_ceil_div(v.n.f, 128) * 3 >= (int64_t)s->sms * 2;

    return v.n.f > 64 && many ? launch_walk<SCAN, 2>(s, op, v) : launch_walk<SCAN, 1>(s, op, v);
}

} // namespace

/* Of fewer features a state saved in bfloat16 takes more room than in float32. */
enum { LEAST_KEYS = 32 };

bool d9di_gated_delta_sm90_supported(d9d_stream s, const d9d_gated_delta_dims *n)
{
    return s->tensor_map_encode != NULL && n->t == D9D_BF16 && n->d <= MAX_KEY_SIZE &&
           n->d >= LEAST_KEYS && n->d % 8 == 0 && n->f <= MAX_KEY_SIZE && n->f % 8 == 0 &&
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
