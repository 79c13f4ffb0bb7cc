/* gated_delta_scan.cu - scan of states, or of their gradients, over the chunks of documents with
 * mma.sync, in bfloat16; see gated_delta.cuh.
 *
 * A block of scan_kernel() has some value features of a head of a document. A warp has 16 of them,
 * independent of all others: it keeps X' [16, D] and the chunk's X-dependent matrices, transposed,
 * in registers. The rest comes through shared memory in two stages. Intermediate results are
 * split into two bfloat16 parts where they become operands (mma.cuh); K, Q, V and dO are used as
 * given.
 *
 *     forward    R = beta V - beta_k_from_start K X       U = S R        O = q_from_start Q X + P U
 *                X <- decay_last X + K' (k_to_end U)
 *     backward   dU = P' dO + k_to_end K dX               Y = S' dU
 *                dX <- decay_last dX + Q' (q_from_start dO) - K' (beta_k_from_start Y)
 */
#include "cuda/common/mma.cuh"
#include "cuda/gdn/gated_delta.cuh"

enum {
    COLS = 16, /* value features of a warp */
    MAX_COLS = WARPS * COLS,
    ROW_PAD = 8, /* between rows, so that eight rows are in distinct banks */
    TILE_STRIDE = CHUNK + ROW_PAD,
    N_FRAGMENTS = CHUNK / 8 /* C tiles along the tokens of a chunk */
};

typedef float token_fragments[N_FRAGMENTS][4]; /* [16 value features, CHUNK tokens] */

/* --- a stage in shared memory ----------------------------------------------------------------- */

template <int D> struct chunk_stage {
    bf16 k[CHUNK][D + ROW_PAD], q[CHUNK][D + ROW_PAD];
    bf16 v[CHUNK][MAX_COLS + ROW_PAD]; /* or dO */
    bf16 t[2][CHUNK][TILE_STRIDE], p[CHUNK][TILE_STRIDE];
    chunk_factors f;
};

/* Copies n rows of `from` with `columns` features into [CHUNK, wide]; the rest is zeroed. */
template <int STRIDE>
static __device__ __forceinline__ void copy_rows(bf16 (*to)[STRIDE], const bf16 *from, int64_t step,
                                                 int n, int wide, int64_t columns)
{
    const int vectors = wide / 8;

    for (int e = threadIdx.x; e < CHUNK * vectors; e += blockDim.x) {
        const int i = e / vectors, j = e % vectors * 8;
        const bool valid = i < n && j < columns;

        cp_async_16(&to[i][j], valid ? from + i * step + j : from, valid);
    }
}

/* Copies a swizzled tile [CHUNK, CHUNK] to rows of TILE_STRIDE elements. */
static __device__ __forceinline__ void copy_swizzled(bf16 (*to)[TILE_STRIDE], const bf16 *from)
{
    for (int e = threadIdx.x; e < CHUNK * CHUNK / 8; e += blockDim.x) {
        const int i = e / (CHUNK / 8), u = e % (CHUNK / 8);

        cp_async_16(&to[i][u * 8], swizzled_vector((bf16 *)from, i, u), true);
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
    copy_swizzled(m.t[0], r.t[0]);
    copy_swizzled(m.t[1], r.t[1]);
    copy_swizzled(m.p, r.p);
    for (int e = threadIdx.x; e < (int)sizeof(chunk_factors) / 16; e += blockDim.x)
        cp_async_16((char *)&m.f + e * 16, (const char *)&r.f + e * 16, true);
}

/* --- operations of a warp --------------------------------------------------------------------- */

/* Position of a lane in a C tile: value feature g of the warp's 16 (and g + 8), token or key
 * feature t (and t + 1). col and f are the warp's first value feature, in the block and in the
 * head. */
struct lane_position {
    int g, t, col;
    int64_t f;
};

/* Row (token or key feature) and column (value feature) of element e of C tile i. */
static __device__ __forceinline__ int fragment_row(const lane_position &s, int i, int e)
{
    return i * 8 + s.t + e % 2;
}
static __device__ __forceinline__ int64_t fragment_column(const lane_position &s, int e)
{
    return s.f + s.g + e / 2 * 8;
}

/* Loads or stores the state X [D, F] of `p`. */
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

/* Stores O, rows of 32 bytes. The warp's V tile, which is no longer needed, is overwritten as
 * staging. */
static __device__ __forceinline__ void store_output(bf16 (*tile)[MAX_COLS + ROW_PAD],
                                                    const token_fragments &x,
                                                    const gated_delta_call<bf16> &v, const chunk &c,
                                                    const lane_position &s)
{
    const int lane = threadIdx.x % WARP, half = lane % 2 * 8;

    __syncwarp(); /* all lanes have read their part of V */
#pragma unroll
    for (int i = 0; i < N_FRAGMENTS; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            store_float(&tile[fragment_row(s, i, e)][s.col + s.g + e / 2 * 8], x[i][e]);
    __syncwarp();
    for (int i = lane / 2; i < c.n; i += WARP / 2)
        if (s.f + half < v.n.f)
            *(uint4 *)(v.o + ((c.first + i) * v.n.a + c.h) * v.n.f + s.f + half) =
                *(const uint4 *)&tile[i][s.col + half];
}

/* k += (K X)' and, if BOTH, q += (Q X)'; [16, CHUNK]. */
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
            mma_accumulate<false, D + ROW_PAD>(k[i], k[i + 1], a, &m.k[i * 8][j * 16]);
            if (BOTH)
                mma_accumulate<false, D + ROW_PAD>(q[i], q[i + 1], a, &m.q[i * 8][j * 16]);
        }
    }
}

/* x += a times 16 rows of K or Q [16, D]: X' += u' K for a = u' [16, 16]. */
template <int D>
static __device__ __forceinline__ void update_state(float (&x)[D / 8][4], const bf16_split &a,
                                                    const bf16 (*rows)[D + ROW_PAD])
{
#pragma unroll
    for (int i = 0; i < D / 8; i += 2)
        mma_accumulate<true, D + ROW_PAD>(x[i], x[i + 1], a, &rows[0][i * 8]);
}

/* y += x' T or, with TRANS, x' T' for the upper triangular T = S' in two parts: y = (S x)' or (S'
 * x)'. */
template <bool TRANS>
static __device__ __forceinline__ void multiply_inverse(token_fragments &y,
                                                        const token_fragments &x,
                                                        const bf16 (*t)[CHUNK][TILE_STRIDE])
{
#pragma unroll
    for (int j = 0; j < N_FRAGMENTS; j += 2) {
        const bf16_split a = split_bf16(x[j], x[j + 1]);

#pragma unroll
        for (int i = 0; i < N_FRAGMENTS; i += 2) {
            if (TRANS ? i > j : i < j)
                continue;
            mma_accumulate<!TRANS, TILE_STRIDE>(y[i], y[i + 1], a,
                                                TRANS ? &t[0][i * 8][j * 8] : &t[0][j * 8][i * 8]);
            mma_accumulate<!TRANS, TILE_STRIDE>(y[i], y[i + 1], a.hi,
                                                TRANS ? &t[1][i * 8][j * 8] : &t[1][j * 8][i * 8]);
        }
    }
}

/* C tiles j and j + 1 times sign by[token], as an A tile in two parts. */
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

/* The two elements of a register of an A tile. */
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

/* --- forward and backward --------------------------------------------------------------------- */

/* x = R, from K X. */
template <int D>
static __device__ __forceinline__ void make_residual(token_fragments &x, const chunk_stage<D> &m,
                                                     const lane_position &s)
{
#pragma unroll
    for (int j = 0; j < N_FRAGMENTS; j += 2) {
        uint32_t value[4];

        load_a_trans<MAX_COLS + ROW_PAD>(value, &m.v[j * 8][s.col]);
#pragma unroll
        for (int r = 0; r < 4; r++) {
            float two[2];

            unpack_bf16x2(two, value[r]);
#pragma unroll
            for (int u = 0; u < 2; u++) {
                const int i = j + r / 2, e = r % 2 * 2 + u, t = fragment_row(s, i, e);

                x[i][e] = fmaf(-m.f.beta_k_from_start[t], x[i][e], m.f.beta[t] * two[u]);
            }
        }
    }
}

/* o = O = q_from_start Q X + P U, from o = Q X. */
template <int D>
static __device__ __forceinline__ void make_output(token_fragments &o, const token_fragments &u,
                                                   const chunk_stage<D> &m, const lane_position &s)
{
#pragma unroll
    for (int i = 0; i < N_FRAGMENTS; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            o[i][e] *= m.f.q_from_start[fragment_row(s, i, e)];
#pragma unroll
    for (int j = 0; j < N_FRAGMENTS; j += 2) {
        const bf16_split a = split_bf16(u[j], u[j + 1]);

#pragma unroll
        for (int i = j; i < N_FRAGMENTS; i += 2)
            mma_accumulate<false, TILE_STRIDE>(o[i], o[i + 1], a, &m.p[i * 8][j * 8]);
    }
}

/* Forward scan of a document or, with RECOMPUTE, U of a single chunk from its saved state. */
template <bool RECOMPUTE> struct scan_fwd {
    enum { REVERSE = 0, ONE_CHUNK = RECOMPUTE };

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

        if (!RECOMPUTE && at.state != NULL)
            state_transfer<D, true>(x, at.state, v, s);
        multiply_state<D, !RECOMPUTE>(r, o, x, m);
        make_residual(r, m, s);
        multiply_inverse<false>(u, r, m.t);
        if (RECOMPUTE) {
            store_tokens(v.u, u, v, c, s);
            return;
        }
        make_output(o, u, m, s);
        store_output(m.v, o, v, c, s);
        if (c.last && v.past.slots == NULL)
            return;
        scale_state<D>(x, m.f.decay_last);
#pragma unroll
        for (int j = 0; j < N_FRAGMENTS; j += 2)
            update_state<D>(x, split_scaled(u, j, m.f.k_to_end, s, 1.0f), &m.k[j * 8]);
    }
};

/* Backward scan of a document, from the last chunk to the first. */
struct scan_bwd {
    enum { REVERSE = 1, ONE_CHUNK = 0 };

    static __device__ __forceinline__ const bf16 *values(const gated_delta_call<bf16> &v)
    {
        return v.dout;
    }

    /* x = dU = P' dO + k_to_end K dX, from x = K dX. */
    template <int D>
    static __device__ __forceinline__ void make_du(token_fragments &x, const chunk_stage<D> &m,
                                                   const lane_position &s)
    {
#pragma unroll
        for (int i = 0; i < N_FRAGMENTS; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                x[i][e] *= m.f.k_to_end[fragment_row(s, i, e)];
#pragma unroll
        for (int j = 0; j < N_FRAGMENTS; j += 2) {
            uint32_t a[4];

            load_a_trans<MAX_COLS + ROW_PAD>(a, &m.v[j * 8][s.col]);
#pragma unroll
            for (int i = 0; i <= j; i += 2)
                mma_accumulate<true, TILE_STRIDE>(x[i], x[i + 1], a, &m.p[j * 8][i * 8]);
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
        scale_state<D>(x, m.f.decay_last);
#pragma unroll
        for (int j = 0; j < N_FRAGMENTS; j += 2) {
            uint32_t value[4];
            bf16_split a;

            load_a_trans<MAX_COLS + ROW_PAD>(value, &m.v[j * 8][s.col]);
#pragma unroll
            for (int r = 0; r < 4; r++) {
                float two[2];

                unpack_bf16x2(two, value[r]);
                split_bf16x2(a, r, m.f.q_from_start[fragment_row(s, j + r / 2, 0)] * two[0],
                             m.f.q_from_start[fragment_row(s, j + r / 2, 1)] * two[1]);
            }
            update_state<D>(x, a, &m.q[j * 8]);
            update_state<D>(x, split_scaled(y, j, m.f.beta_k_from_start, s, -1.0f), &m.k[j * 8]);
        }
    }
};

/* --- loop over chunks ------------------------------------------------------------------------- */

/* The chunks of a head of a document that a block processes: `count` from c on. `number` is that of
 * the document's first chunk. */
struct scan_range {
    document d;
    int64_t h, c, count, number;
    float *past; /* recurrent state of decode; NULL: starts from zero and is not stored */
    bool fresh;
};

template <class SCAN>
static __device__ scan_range scan_range_of(const gated_delta_call<bf16> &v, int64_t block)
{
    const int64_t h = block % v.n.a, i = block / v.n.a;
    scan_range r = {};

    r.h = h;
    if (SCAN::ONE_CHUNK) {
        const chunk_ref x = chunk_find(v, i);

        r.d = x.d, r.c = x.c, r.number = i - x.c;
        r.count = x.c * CHUNK < x.d.n ? 1 : 0;
        return r;
    }
    r.d = document_of(v.n.docs, i);
    r.count = d9di_i64_ceil_div(r.d.n, CHUNK);
    r.c = SCAN::REVERSE ? r.count - 1 : 0;
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
    const scan_range r = scan_range_of<SCAN>(v, blockIdx.x / across);
    const lane_position s = {lane / 4, lane % 4 * 2, warp * COLS, col + warp * COLS};
    float x[D / 8][4] = {};

    if (r.count == 0)
        return;
    if (r.past != NULL && !r.fresh)
        state_transfer<D, false>(x, r.past, v, s);
    for (int64_t n = -1; n < r.count; n++) {
        const int64_t next = SCAN::REVERSE ? r.c - n - 1 : r.c + n + 1;

        cp_async_wait_all();
        __syncthreads();
        if (n + 1 < r.count)
            stage_load(stage[(n + 1) % 2], v, SCAN::values(v), chunk_of(v, r.d, next, r.h),
                       v.prepared[(r.number + next) * v.n.a + r.h], col);
        if (n < 0)
            continue;

        const chunk c = chunk_of(v, r.d, SCAN::REVERSE ? next + 1 : next - 1, r.h);
        const chunk_offsets<bf16> at(v, c);

        if (SCAN::ONE_CHUNK && at.state != NULL)
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
    bool supported = n->t == D9D_BF16 && n->d <= MAX_KEY_SIZE && n->d % 8 == 0 && n->f % 8 == 0;

    for (int i = 0; i < count; i++)
        supported = supported && ((uintptr_t)arrays[i] & 15) == 0;
    return supported;
}

/* Launches for `sequences` documents or chunks. Halves the warps per block while the GPU would be
 * under two thirds full. */
template <class SCAN, int D>
static d9d_status launch(d9d_stream s, const char *op, const gated_delta_call<bf16> &v,
                         int64_t sequences)
{
    const int64_t heads = sequences * v.n.a, bytes = 2 * (int64_t)sizeof(chunk_stage<D>);
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
                                     int64_t sequences)
{
    return v.n.d <= 64 ? launch<SCAN, 64>(s, op, v, sequences)
                       : launch<SCAN, MAX_KEY_SIZE>(s, op, v, sequences);
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
