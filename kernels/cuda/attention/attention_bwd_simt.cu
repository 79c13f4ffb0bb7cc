/* attention_bwd_simt.cu - backward of softmax attention in float32 tiles (SIMT), for any shape and
 * type.
 *
 * With P = exp(scale Q K' - lse) recomputed and delta = sum over features of dO O:
 *     dV = P' dO,  dP = dO V',  dS = scale P (dP - delta),  dQ = dS K,  dK = dS' Q.
 *
 * With a softcap c, score = c t with t = tanh(scale Q K' / c), and dS has the factor 1 - t^2.
 *
 * With dropout, M the matrix of its factors 0 and 1 / (1 - p): dV = (M P)' dO, dP = M (dO V').
 *
 * One launch gives each tile of queries to a block, which sums dQ over keys. A second launch gives
 * each tile of keys to a block, which sums dK and dV over the query heads and queries that read it.
 * So every sum has one order, at the price of computing the scores twice.
 */
#include "cuda/attention/attention_simt.cuh"

template <class T> struct attention_bwd_args {
    d9d_attention_dims n;
    T *dq, *dk, *dv;
    const T *dout, *q, *k, *v, *o;
    const float *lse;
    float *delta; /* [B, A, S] */
};

/* A warp computes delta of one query and head. */
template <class T> static __global__ void row_dot_kernel(attention_bwd_args<T> g)
{
    const d9d_attention_dims &n = g.n;
    const int64_t row = group_row<WARP>(), h = row % n.a, i = row / n.a % n.s, b = row / n.a / n.s;
    float sum = 0.0f;

    if (row >= n.b * n.s * n.a)
        return;
    for (int64_t f = threadIdx.x % WARP; f < n.dv; f += WARP)
        sum = fmaf(to_float(g.dout[row * n.dv + f]), to_float(g.o[row * n.dv + f]), sum);
    sum = group_sum<WARP>(sum);
    if (threadIdx.x % WARP == 0)
        g.delta[(b * n.a + h) * n.s + i] = sum;
}

/* A block's tiles in shared memory. */
template <class Z> struct smem_tiles {
    float *q, *dout, *k, *v; /* rows */
    float *p, *ds;           /* scores */
};
template <class Z> static __device__ __forceinline__ smem_tiles<Z> smem_tiles_make(float *shared)
{
    enum { ROWS = Z::SIDE * Z::STEP };

    return {shared,
            shared + ROWS,
            shared + 2 * ROWS,
            shared + 3 * ROWS,
            shared + 4 * ROWS,
            shared + 4 * ROWS + Z::SIDE * Z::SCORES};
}

/* P and dS of the tile of queries at q0 and keys at k0, counted over B and S, of query head h. */
template <class Z, class T>
static __device__ __forceinline__ void tile_p_ds(const attention_bwd_args<T> &g,
                                                 const smem_tiles<Z> &sh, const segment &x,
                                                 int64_t b, int64_t h, int64_t q0, int64_t k0)
{
    const d9d_attention_dims &n = g.n;
    float s[Z::R][Z::R], dp[Z::R][Z::R];

    dot_rows<Z>(s, sh.q, sh.k, n.d);
    dot_rows<Z>(dp, sh.dout, sh.v, n.dv);
#pragma unroll
    for (int r = 0; r < Z::R; r++) {
        const int i = thread_row() * Z::R + r;
        const int64_t at = row_stat_index(n, b, h, q0 + i);
        const bool in_range = range_contains(x.q, q0 + i);
        const float lse = in_range ? g.lse[at] : 0.0f, delta = in_range ? g.delta[at] : 0.0f;

#pragma unroll
        for (int c = 0; c < Z::R; c++) {
            const int j = thread_col() + c * THREAD_GRID;
            const bool seen = visible(n, x, q0 + i, k0 + j);
            const float score = softcap(s[r][c] * n.scale, n.softcap);
            const float p = seen ? expf(score - lse) : 0.0f;
            const float derivative = n.scale * softcap_grad(score, n.softcap);
            float kept = 1.0f;

            if constexpr (Z::DROPS)
                kept = seen ? dropout_factor(n, x, h, q0 + i, k0 + j) : 0.0f;
            sh.p[i * Z::SCORES + j] = kept * p;
            sh.ds[i * Z::SCORES + j] = seen ? derivative * p * (kept * dp[r][c] - delta) : 0.0f;
        }
    }
}

/* dQ of a tile of queries of a head. */
template <class Z, class T>
static __global__ void __launch_bounds__(THREADS) dq_kernel(attention_bwd_args<T> g)
{
    extern __shared__ float shared[];
    const d9d_attention_dims &n = g.n;
    const smem_tiles<Z> sh = smem_tiles_make<Z>(shared);
    const int64_t heads = n.b * n.a, all = d9di_i64_ceil_div(n.s, Z::SIDE);
    const int64_t b = blockIdx.x % heads / n.a, h = blockIdx.x % heads % n.a;
    const int64_t kh = h / (n.a / n.kv), row = (all - 1 - blockIdx.x / heads) * Z::SIDE;
    const int64_t q0 = b * n.s + row, nq = d9di_i64_min(Z::SIDE, n.s - row);
    segment x = segment_of(n, segment_find(n, false, q0), b);
    float dq[Z::R][Z::DV];

    load_rows<Z>(sh.q, g.q, q0, nq, n.a, h, n.d);
    load_rows<Z>(sh.dout, g.dout, q0, nq, n.a, h, n.dv);
    do {
        const int64_t end = visible_key_end(n, x, q0 + nq - 1);

        clear_acc<Z>(dq);
        for (int64_t k0 = first_visible_tile<Z>(n, x, q0); k0 < end; k0 += Z::SIDE) {
            const int64_t nk = d9di_i64_min(Z::SIDE, x.k.end - k0);

            load_rows<Z>(sh.k, g.k, key_at(n, b, k0), nk, n.kv, kh, n.d);
            load_rows<Z>(sh.v, g.v, key_at(n, b, k0), nk, n.kv, kh, n.dv);
            __syncthreads();
            tile_p_ds(g, sh, x, b, h, q0, k0);
            __syncthreads();
            add_rows<Z>(dq, sh.ds, Z::SCORES, 1, sh.k);
            __syncthreads();
        }
        store_rows<Z>(g.dq, dq, q0, x.q, n.a, h, n.d);
    } while (segment_next(n, b, q0 + nq, &x));
}

/* Segments [first, end) that begin with the same key; the last of them has all their keys. */
struct key_segments {
    int64_t first, end;
    token_range k;
};

/* The key_segments that segment i belongs to. */
static __device__ __forceinline__ key_segments key_segments_of(const d9d_attention_dims &n,
                                                               int64_t i, int64_t b)
{
    key_segments x = {n.segment != NULL ? i : 0, i + 1, {0, 0}};

    while (n.segment != NULL && x.first > 0 && n.segment[x.first - 1].k == n.segment[i].k)
        x.first--;
    while (n.segment != NULL && x.end < n.segments && n.segment[x.end].k == n.segment[i].k)
        x.end++;
    x.k = segment_of(n, x.end - 1, b).k;
    return x;
}

/* Advances to the next one; true if it has keys before `end`. */
static __device__ __forceinline__ bool key_segments_next(const d9d_attention_dims &n, int64_t b,
                                                         int64_t end, key_segments *x)
{
    if (n.segment == NULL || x->end >= n.segments || n.segment[x->end].k >= end)
        return false;
    *x = key_segments_of(n, x->end, b);
    return true;
}

/* Adds to dK and dV of the tile of keys at k0, from one query head and one segment. */
template <class Z, class T>
static __device__ __forceinline__ void add_query_tiles(const attention_bwd_args<T> &g,
                                                       const smem_tiles<Z> &sh, const segment &x,
                                                       int64_t b, int64_t h, int64_t k0,
                                                       float (&dk)[Z::R][Z::DV],
                                                       float (&dv)[Z::R][Z::DV])
{
    const d9d_attention_dims &n = g.n;
    /* Whole tiles of queries that do not reach key k0 are hidden, and those whose windows have
     * passed. */
    const bool causal = n.causal && k0 >= x.prefix;
    const int64_t ahead = causal ? 0 : n.window > 0 ? n.window - 1 : n.z;
    const int64_t hidden = d9di_i64_max(k0 - ahead - diagonal_key(x, x.q.first), 0);
    const int64_t past = k0 + Z::SIDE - 1 + n.window - diagonal_key(x, 0);
    const int64_t end = n.window > 0 ? d9di_i64_min(x.q.end, past) : x.q.end;

    for (int64_t q0 = x.q.first + hidden / Z::SIDE * Z::SIDE; q0 < end; q0 += Z::SIDE) {
        const int64_t nq = d9di_i64_min(Z::SIDE, x.q.end - q0);

        load_rows<Z>(sh.q, g.q, q0, nq, n.a, h, n.d);
        load_rows<Z>(sh.dout, g.dout, q0, nq, n.a, h, n.dv);
        __syncthreads();
        tile_p_ds(g, sh, x, b, h, q0, k0);
        __syncthreads();
        add_rows<Z>(dv, sh.p, 1, Z::SCORES, sh.dout);
        add_rows<Z>(dk, sh.ds, 1, Z::SCORES, sh.q);
        __syncthreads();
    }
}

/* dK and dV of a tile of keys of a key head. */
template <class Z, class T>
static __global__ void __launch_bounds__(THREADS) dkv_kernel(attention_bwd_args<T> g)
{
    extern __shared__ float shared[];
    const d9d_attention_dims &n = g.n;
    const smem_tiles<Z> sh = smem_tiles_make<Z>(shared);
    const int64_t heads = n.b * n.kv, group = n.a / n.kv;
    const int64_t b = blockIdx.x % heads / n.kv, kh = blockIdx.x % heads % n.kv;
    const token_range keys = keys_of_row(n, b);
    const int64_t k0 = keys.first + blockIdx.x / heads * Z::SIDE, at = key_at(n, b, k0);
    const int64_t nk = d9di_i64_min(Z::SIDE, keys.end - k0);
    key_segments s = key_segments_of(n, segment_find(n, true, k0), b);
    float dk[Z::R][Z::DV], dv[Z::R][Z::DV];

    load_rows<Z>(sh.k, g.k, at, nk, n.kv, kh, n.d);
    load_rows<Z>(sh.v, g.v, at, nk, n.kv, kh, n.dv);
    do {
        const token_range stored = {key_at(n, b, s.k.first), key_at(n, b, s.k.end)};

        clear_acc<Z>(dk);
        clear_acc<Z>(dv);
        for (int64_t h = kh * group; h < (kh + 1) * group; h++)
            for (int64_t i = s.first; i < s.end; i++)
                add_query_tiles<Z>(g, sh, segment_of(n, i, b), b, h, k0, dk, dv);
        store_rows<Z>(g.dk, dk, at, stored, n.kv, kh, n.d);
        store_rows<Z>(g.dv, dv, at, stored, n.kv, kh, n.dv);
    } while (key_segments_next(n, b, k0 + nk, &s));
}

template <class Z, class T> static d9d_status launch(d9d_stream s, const attention_bwd_args<T> &g)
{
    const int64_t shared = 4 * Z::ROWS_BYTES + 2 * Z::SCORES_BYTES;
    const int64_t q_tiles = d9di_i64_ceil_div(g.n.s, Z::SIDE),
                  k_tiles = d9di_i64_ceil_div(d9d_attention_array_keys(&g.n), Z::SIDE);
    const int64_t rows = g.n.b * g.n.s * g.n.a;
    cudaStream_t queue = d9di_cuda_stream(s);

    D9D_TRY(kernel_allow_smem(s, "attention_bwd", (const void *)dq_kernel<Z, T>, shared));
    D9D_TRY(kernel_allow_smem(s, "attention_bwd", (const void *)dkv_kernel<Z, T>, shared));
    row_dot_kernel<<<grid_for_rows(rows, WARP), THREADS, 0, queue>>>(g);
    dq_kernel<Z><<<(unsigned)(g.n.b * g.n.a * q_tiles), THREADS, shared, queue>>>(g);
    dkv_kernel<Z><<<(unsigned)(g.n.b * g.n.kv * k_tiles), THREADS, shared, queue>>>(g);
    return d9di_cuda_check_launch("attention_bwd");
}

template <bool DROPS, class T>
static d9d_status launch_by_head_size(d9d_stream s, const attention_bwd_args<T> &g)
{
    if (head_size_max(g.n) <= 128)
        return launch<tile_shape<32, 8, DROPS>>(s, g);
    if (head_size_max(g.n) <= 256)
        return launch<tile_shape<16, 16, DROPS>>(s, g);
    if (head_size_max(g.n) <= 512)
        return launch<tile_shape<16, 32, DROPS>>(s, g);
    return launch<tile_shape<16, 40, DROPS>>(s, g);
}

template <class T> static d9d_status run_with_scratch(d9d_stream s, const d9di_attention_call *c)
{
    const int64_t bytes = c->n.b * c->n.a * c->n.s * 4;
    d9d_status st;
    void *delta;

    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &delta));
    const attention_bwd_args<T> g = {c->n,
                                     (T *)c->dq,
                                     (T *)c->dk,
                                     (T *)c->dv,
                                     (const T *)c->dout,
                                     (const T *)c->q,
                                     (const T *)c->k,
                                     (const T *)c->v,
                                     (const T *)c->o,
                                     c->lse,
                                     (float *)delta};

    st = c->n.dropout.p > 0.0f ? launch_by_head_size<true>(s, g) : launch_by_head_size<false>(s, g);
    d9di_cuda_scratch_free(s, delta, bytes);
    return st;
}

d9d_status d9di_attention_bwd_simt(d9d_stream s, const d9di_attention_call *c)
{
    D9D_TRY(head_size_check(c->op, &c->n));
    return D9DI_DISPATCH_DTYPE(c->n.t, T, run_with_scratch<T>(s, c));
}
