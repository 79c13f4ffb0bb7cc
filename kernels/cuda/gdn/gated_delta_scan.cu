/* gated_delta_scan.cu - the gated delta rule in bfloat16: states, and their gradients, through
 * documents; see gated_delta.cuh.
 *
 * A block of scan_kernel() takes some columns of a head's state through a document.  A warp has
 * sixteen, and needs none of the others: what it holds in registers is X', and of a chunk what is
 * made for its columns, turned as well; all else comes through shared memory, the next chunk's
 * while this one is worked on.  Sums of products are rounded to no less than sixteen bits where
 * they go into the next product (mma.cuh), which K, Q, V and dO are as they are.
 *
 *     onward     R = beta V - write_up K X        U = S R        O = q_up Q X + P U
 *                X <- last X + K' (k_on U)
 *     back       dU = P' dO + k_on K dX           Y = S' dU
 *                dX <- last dX + Q' (q_up dO) - K' (write_up Y)
 */
#include "cuda/common/mma.cuh"
#include "cuda/gdn/gated_delta.cuh"

enum {
    COLS = 16, /* of a warp */
    MAX_COLS = WARPS * COLS,
    SLACK = 8, /* elements between rows, so that eight of them are in banks of their own */
    SQUARE = CHUNK + SLACK,
    N_FRAGMENTS = CHUNK / 8 /* of C along the tokens of a chunk */
};

typedef float token_fragments[N_FRAGMENTS][4]; /* of sixteen columns, by the tokens of a chunk */

/* --- what a block has of a chunk -------------------------------------------------------------- */

template <int D> struct chunk_stage {
    bf16 k[CHUNK][D + SLACK], q[CHUNK][D + SLACK];
    bf16 v[CHUNK][MAX_COLS + SLACK]; /* or dO */
    bf16 t[2][CHUNK][SQUARE], p[CHUNK][SQUARE];
    chunk_factors f;
};

/* n rows of `from`, of `columns` of which `wide` are to be filled; zeros elsewhere. */
template <int STRIDE>
static __device__ __forceinline__ void copy_rows(bf16 (*to)[STRIDE], const bf16 *from, int64_t step,
                                                 int n, int wide, int64_t columns)
{
    const int eights = wide / 8;

    for (int e = threadIdx.x; e < CHUNK * eights; e += blockDim.x) {
        const int i = e / eights, j = e % eights * 8;
        const bool there = i < n && j < columns;

        cp_async_16(&to[i][j], there ? from + i * step + j : from, there);
    }
}

/* One whose rows are swizzled. */
static __device__ __forceinline__ void copy_square(bf16 (*to)[SQUARE], const bf16 *from)
{
    for (int e = threadIdx.x; e < CHUNK * CHUNK / 8; e += blockDim.x) {
        const int i = e / (CHUNK / 8), u = e % (CHUNK / 8);

        cp_async_16(&to[i][u * 8], unit_of((bf16 *)from, i, u), true);
    }
}

template <int D>
static __device__ __forceinline__ void stage_load(chunk_stage<D> &m,
                                                  const gated_delta_call<bf16> &v,
                                                  const bf16 *values, const chunk &x,
                                                  const prepared_chunk &r, int64_t col)
{
    const chunk_offsets<bf16> at(v, x);
    const int wide = blockDim.x / WARP * COLS;

    copy_rows(m.k, v.k + at.key, at.key_step, x.n, D, v.n.d);
    copy_rows(m.q, v.q + at.key, at.key_step, x.n, D, v.n.d);
    copy_rows(m.v, values + at.value + col, at.step, x.n, wide, v.n.f - col);
    copy_square(m.t[0], r.t[0]);
    copy_square(m.t[1], r.t[1]);
    copy_square(m.p, r.p);
    for (int e = threadIdx.x; e < (int)sizeof(chunk_factors) / 16; e += blockDim.x)
        cp_async_16((char *)&m.f + e * 16, (const char *)&r.f + e * 16, true);
}

/* --- what a warp does ------------------------------------------------------------------------- */

/* A lane's place: of its elements in C the first, as a column of the warp's and a token or a
 * feature of a key; and the warp's first column, among those of the block and of all. */
struct lane_position {
    int g, t, mine;
    int64_t f;
};

/* Element e of piece i of token_fragments, or of a state: how far along, and its column. */
static __device__ __forceinline__ int fragment_row(const lane_position &s, int i, int e)
{
    return i * 8 + s.t + e % 2;
}
static __device__ __forceinline__ int64_t fragment_column(const lane_position &s, int e)
{
    return s.f + s.g + e / 2 * 8;
}

/* The state to memory [D, F], or from there. */
template <int D, bool STORE>
static __device__ __forceinline__ void state_transfer(float (&x)[D / 8][4], float *p,
                                                      const gated_delta_call<bf16> &v,
                                                      const lane_position &s)
{
#pragma unroll
    for (int i = 0; i < D / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int64_t d = fragment_row(s, i, e), f = fragment_column(s, e);
            float *at = p + d * v.n.f + f;

            if (d >= v.n.d || f >= v.n.f)
                continue;
            if (STORE)
                *at = x[i][e];
            else
                x[i][e] = *at;
        }
}

static __device__ __forceinline__ void store_tokens(float *y, const token_fragments &x,
                                                    const gated_delta_call<bf16> &v, const chunk &c,
                                                    const lane_position &s)
{
#pragma unroll
    for (int i = 0; i < N_FRAGMENTS; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (fragment_row(s, i, e) < c.n && fragment_column(s, e) < v.n.f)
                y[((c.first + fragment_row(s, i, e)) * v.n.a + c.h) * v.n.f +
                  fragment_column(s, e)] = x[i][e];
}

/* O through the place of the warp's values, which have been read, for rows of 32 bytes. */
static __device__ __forceinline__ void store_output(bf16 (*tile)[MAX_COLS + SLACK],
                                                    const token_fragments &x,
                                                    const gated_delta_call<bf16> &v, const chunk &c,
                                                    const lane_position &s)
{
    const int lane = threadIdx.x % WARP, half = lane % 2 * 8;

    __syncwarp(); /* all lanes have what they read there */
#pragma unroll
    for (int i = 0; i < N_FRAGMENTS; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            store_float(&tile[fragment_row(s, i, e)][s.mine + s.g + e / 2 * 8], x[i][e]);
    __syncwarp();
    for (int i = lane / 2; i < c.n; i += WARP / 2)
        if (s.f + half < v.n.f)
            *(uint4 *)(v.o + ((c.first + i) * v.n.a + c.h) * v.n.f + s.f + half) =
                *(const uint4 *)&tile[i][s.mine + half];
}

/* y = rows of K or Q times X, for one or both. */
template <int D, bool BOTH>
static __device__ __forceinline__ void multiply_state(token_fragments &k, token_fragments &q,
                                                      const float (&x)[D / 8][4],
                                                      const chunk_stage<D> &m)
{
#pragma unroll
    for (int j = 0; j < D / 16; j++) {
        const bf16_split a = split_bf16(x[2 * j], x[2 * j + 1]);

#pragma unroll
        for (int i = 0; i < N_FRAGMENTS; i += 2) {
            mma_accumulate<false, D + SLACK>(k[i], k[i + 1], a, &m.k[i * 8][j * 16]);
            if (BOTH)
                mma_accumulate<false, D + SLACK>(q[i], q[i + 1], a, &m.q[i * 8][j * 16]);
        }
    }
}

/* x += K' or Q' times what tokens write: `a` of sixteen of them. */
template <int D>
static __device__ __forceinline__ void update_state(float (&x)[D / 8][4], const bf16_split &a,
                                                    const bf16 (*rows)[D + SLACK])
{
#pragma unroll
    for (int i = 0; i < D / 8; i += 2)
        mma_accumulate<true, D + SLACK>(x[i], x[i + 1], a, &rows[0][i * 8]);
}

/* y = T' x or, UPRIGHT, T x, for an upper half T in two parts. */
template <bool UPRIGHT>
static __device__ __forceinline__ void multiply_inverse(token_fragments &y,
                                                        const token_fragments &x,
                                                        const bf16 (*t)[CHUNK][SQUARE])
{
#pragma unroll
    for (int j = 0; j < N_FRAGMENTS; j += 2) {
        const bf16_split a = split_bf16(x[j], x[j + 1]);

#pragma unroll
        for (int i = 0; i < N_FRAGMENTS; i += 2) {
            if (UPRIGHT ? i > j : i < j)
                continue;
            mma_accumulate<!UPRIGHT, SQUARE>(y[i], y[i + 1], a,
                                             UPRIGHT ? &t[0][i * 8][j * 8] : &t[0][j * 8][i * 8]);
            mma_accumulate<!UPRIGHT, SQUARE>(y[i], y[i + 1], a.hi,
                                             UPRIGHT ? &t[1][i * 8][j * 8] : &t[1][j * 8][i * 8]);
        }
    }
}

/* Pieces j and j + 1 of tokens, times a number each. */
static __device__ __forceinline__ bf16_split split_scaled(const token_fragments &x, int j,
                                                          const float *by, const lane_position &s,
                                                          float sign)
{
    float a[4], b[4];

#pragma unroll
    for (int e = 0; e < 4; e++) {
        a[e] = sign * by[fragment_row(s, j, e)] * x[j][e];
        b[e] = sign * by[fragment_row(s, j + 1, e)] * x[j + 1][e];
    }
    return split_bf16(a, b);
}

/* The two numbers of a register of an A or of two C. */
static __device__ __forceinline__ void unpack_bf16x2(float (&x)[2], uint32_t v)
{
    x[0] = __uint_as_float(v << 16);
    x[1] = __uint_as_float(v & 0xffff0000u);
}

template <int D> static __device__ __forceinline__ void scale_state(float (&x)[D / 8][4], float by)
{
#pragma unroll
    for (int i = 0; i < D / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[i][e] *= by;
}

/* --- the two ways ----------------------------------------------------------------------------- */

/* R in place of K X. */
template <int D>
static __device__ __forceinline__ void make_residual(token_fragments &x, const chunk_stage<D> &m,
                                                     const lane_position &s)
{
#pragma unroll
    for (int j = 0; j < N_FRAGMENTS; j += 2) {
        uint32_t value[4];

        load_a_trans<MAX_COLS + SLACK>(value, &m.v[j * 8][s.mine]);
#pragma unroll
        for (int r = 0; r < 4; r++) {
            float two[2];

            unpack_bf16x2(two, value[r]);
#pragma unroll
            for (int u = 0; u < 2; u++) {
                const int i = j + r / 2, e = r % 2 * 2 + u, t = fragment_row(s, i, e);

                x[i][e] = fmaf(-m.f.write_up[t], x[i][e], m.f.write[t] * two[u]);
            }
        }
    }
}

/* O, from Q X. */
template <int D>
static __device__ __forceinline__ void make_output(token_fragments &o, const token_fragments &u,
                                                   const chunk_stage<D> &m, const lane_position &s)
{
#pragma unroll
    for (int i = 0; i < N_FRAGMENTS; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            o[i][e] *= m.f.q_up[fragment_row(s, i, e)];
#pragma unroll
    for (int j = 0; j < N_FRAGMENTS; j += 2) {
        const bf16_split a = split_bf16(u[j], u[j + 1]);

#pragma unroll
        for (int i = j; i < N_FRAGMENTS; i += 2)
            mma_accumulate<false, SQUARE>(o[i], o[i + 1], a, &m.p[i * 8][j * 8]);
    }
}

/* A document from its first chunk on, or, ALONE, one chunk, of which U is wanted. */
template <bool ALONE> struct scan_fwd {
    enum { BACK = 0, SINGLE = ALONE };

    static __device__ __forceinline__ const bf16 *values(const gated_delta_call<bf16> &v)
    {
        return v.v;
    }

    template <int D>
    static __device__ __forceinline__ void process_chunk(float (&x)[D / 8][4], chunk_stage<D> &m,
                                                         const gated_delta_call<bf16> &v,
                                                         const chunk &c,
                                                         const chunk_offsets<bf16> &at,
                                                         const lane_position &s)
    {
        token_fragments r = {}, o = {}, u = {};

        if (!ALONE && at.state != NULL)
            state_transfer<D, true>(x, at.state, v, s);
        multiply_state<D, !ALONE>(r, o, x, m);
        make_residual(r, m, s);
        multiply_inverse<false>(u, r, m.t);
        if (ALONE) {
            store_tokens(v.u, u, v, c, s);
            return;
        }
        make_output(o, u, m, s);
        store_output(m.v, o, v, c, s);
        if (c.last && v.past.slots == NULL)
            return;
        scale_state<D>(x, m.f.last);
#pragma unroll
        for (int j = 0; j < N_FRAGMENTS; j += 2)
            update_state<D>(x, split_scaled(u, j, m.f.k_on, s, 1.0f), &m.k[j * 8]);
    }
};

/* A document from its last chunk on. */
struct scan_bwd {
    enum { BACK = 1, SINGLE = 0 };

    static __device__ __forceinline__ const bf16 *values(const gated_delta_call<bf16> &v)
    {
        return v.dout;
    }

    /* dU in place of K dX. */
    template <int D>
    static __device__ __forceinline__ void make_du(token_fragments &x, const chunk_stage<D> &m,
                                                   const lane_position &s)
    {
#pragma unroll
        for (int i = 0; i < N_FRAGMENTS; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                x[i][e] *= m.f.k_on[fragment_row(s, i, e)];
#pragma unroll
        for (int j = 0; j < N_FRAGMENTS; j += 2) {
            uint32_t a[4];

            load_a_trans<MAX_COLS + SLACK>(a, &m.v[j * 8][s.mine]);
#pragma unroll
            for (int i = 0; i <= j; i += 2)
                mma_accumulate<true, SQUARE>(x[i], x[i + 1], a, &m.p[j * 8][i * 8]);
        }
    }

    template <int D>
    static __device__ __forceinline__ void process_chunk(float (&x)[D / 8][4], chunk_stage<D> &m,
                                                         const gated_delta_call<bf16> &v,
                                                         const chunk &c,
                                                         const chunk_offsets<bf16> &at,
                                                         const lane_position &s)
    {
        token_fragments u = {}, y = {}, none;

        if (at.dstate != NULL)
            state_transfer<D, true>(x, at.dstate, v, s);
        multiply_state<D, false>(u, none, x, m);
        make_du(u, m, s);
        multiply_inverse<true>(y, u, m.t);
        store_tokens(v.du, y, v, c, s);
        if (c.fresh)
            return;
        scale_state<D>(x, m.f.last);
#pragma unroll
        for (int j = 0; j < N_FRAGMENTS; j += 2) {
            uint32_t value[4];
            bf16_split a;

            load_a_trans<MAX_COLS + SLACK>(value, &m.v[j * 8][s.mine]);
#pragma unroll
            for (int r = 0; r < 4; r++) {
                float two[2];

                unpack_bf16x2(two, value[r]);
                split_bf16x2(a, r, m.f.q_up[fragment_row(s, j + r / 2, 0)] * two[0],
                             m.f.q_up[fragment_row(s, j + r / 2, 1)] * two[1]);
            }
            update_state<D>(x, a, &m.q[j * 8]);
            update_state<D>(x, split_scaled(y, j, m.f.write_up, s, -1.0f), &m.k[j * 8]);
        }
    }
};

/* --- the walk --------------------------------------------------------------------------------- */

/* The chunks of a block, of a head of a document: `count` from c on; `number` is that of the
 * document's first. */
struct scan_route {
    document d;
    int64_t h, c, count, number;
    float *past; /* NULL: the state begins as 0 and ends for nothing */
    bool fresh;
};

template <class SCAN>
static __device__ scan_route scan_route_of(const gated_delta_call<bf16> &v, int64_t block)
{
    const int64_t h = block % v.n.a, i = block / v.n.a;
    scan_route r = {};

    r.h = h;
    if (SCAN::SINGLE) {
        const chunk_ref x = chunk_find(v, i);

        r.d = x.d, r.c = x.c, r.number = i - x.c;
        r.count = x.c * CHUNK < x.d.n ? 1 : 0;
        return r;
    }
    r.d = document_of(v.n.docs, i);
    r.count = d9di_i64_ceil_div(r.d.n, CHUNK);
    r.c = SCAN::BACK ? r.count - 1 : 0;
    r.number = r.d.first / CHUNK + i;
    if (v.past.slots != NULL) {
        r.past = (float *)v.past.slots + (v.past.slot_index[i] * v.n.a + h) * v.n.d * v.n.f;
        r.fresh = v.n.docs.segment[i].nk <= v.n.docs.segment[i].nq;
    }
    return r;
}

template <class SCAN, int D>
static __global__ void __launch_bounds__(THREADS, 1) scan_kernel(gated_delta_call<bf16> v)
{
    extern __shared__ __align__(128) unsigned char raw[];
    chunk_stage<D> *stage = (chunk_stage<D> *)raw;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int64_t wide = blockDim.x / WARP * COLS, across = d9di_i64_ceil_div(v.n.f, wide);
    const int64_t col = blockIdx.x % across * wide;
    const scan_route r = scan_route_of<SCAN>(v, blockIdx.x / across);
    const lane_position s = {lane / 4, lane % 4 * 2, warp * COLS, col + warp * COLS};
    float x[D / 8][4] = {};

    if (r.count == 0)
        return;
    if (r.past != NULL && !r.fresh)
        state_transfer<D, false>(x, r.past, v, s);
    for (int64_t n = -1; n < r.count; n++) {
        const int64_t next = SCAN::BACK ? r.c - n - 1 : r.c + n + 1;

        cp_async_wait_all();
        __syncthreads();
        if (n + 1 < r.count)
            stage_load(stage[(n + 1) % 2], v, SCAN::values(v), chunk_of(v, r.d, next, r.h),
                       v.ready[(r.number + next) * v.n.a + r.h], col);
        if (n < 0)
            continue;

        const chunk c = chunk_of(v, r.d, SCAN::BACK ? next + 1 : next - 1, r.h);
        const chunk_offsets<bf16> at(v, c);

        if (SCAN::SINGLE && at.state != NULL)
            state_transfer<D, false>(x, at.state, v, s);
        SCAN::template process_chunk<D>(x, stage[n % 2], v, c, at, s);
    }
    if (r.past != NULL)
        state_transfer<D, true>(x, r.past, v, s);
}

/* --- calls ------------------------------------------------------------------------------------ */

bool d9di_gated_delta_scan_supported(const d9d_gated_delta_dims *n, const void *const *arrays,
                                     int count)
{
    bool takes = n->t == D9D_BF16 && n->d <= MAX_KEY_SIZE && n->d % 8 == 0 && n->f % 8 == 0;

    for (int i = 0; i < count; i++)
        takes = takes && ((uintptr_t)arrays[i] & 15) == 0;
    return takes;
}

/* `each`: documents or chunks.  Fewer columns a block where there are not blocks enough. */
template <class SCAN, int D>
static d9d_status launch(d9d_stream s, const char *op, const gated_delta_call<bf16> &v,
                         int64_t each)
{
    const int64_t heads = each * v.n.a, bytes = 2 * (int64_t)sizeof(chunk_stage<D>);
    int warps = (int)d9di_i64_min(WARPS, d9di_i64_ceil_div(v.n.f, COLS));

    while (warps > 2 && heads * d9di_i64_ceil_div(v.n.f, warps * COLS) * 3 < (int64_t)s->sms * 2)
        warps = (warps + 1) / 2;
    D9D_TRY(d9di_cuda_set_max_smem(op, (const void *)scan_kernel<SCAN, D>, bytes));
    scan_kernel<SCAN, D><<<(unsigned)(heads * d9di_i64_ceil_div(v.n.f, warps * COLS)), warps * WARP,
                           (size_t)bytes, d9di_cuda_stream(s)>>>(v);
    return d9di_cuda_check_launch(op);
}

template <class SCAN>
static d9d_status launch_by_key_size(d9d_stream s, const char *op, const gated_delta_call<bf16> &v,
                                     int64_t each)
{
    return v.n.d <= 64 ? launch<SCAN, 64>(s, op, v, each)
                       : launch<SCAN, MAX_KEY_SIZE>(s, op, v, each);
}

d9d_status d9di_gated_delta_scan_fwd(d9d_stream s, const char *op, const gated_delta_call<bf16> &v)
{
    return launch_by_key_size<scan_fwd<false>>(s, op, v, documents_in(v.n.docs));
}
d9d_status d9di_gated_delta_scan_recompute(d9d_stream s, const char *op,
                                           const gated_delta_call<bf16> &v)
{
    return launch_by_key_size<scan_fwd<true>>(s, op, v, chunks_max(v.n.docs));
}
d9d_status d9di_gated_delta_scan_bwd(d9d_stream s, const char *op, const gated_delta_call<bf16> &v)
{
    return launch_by_key_size<scan_bwd>(s, op, v, documents_in(v.n.docs));
}
