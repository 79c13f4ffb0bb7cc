/* gated_delta_bwd.cu - the gated delta rule, backward; see gated_delta.cuh, and the formulas in
 * kernels/cpu/gated_delta_bwd.c.
 *
 * recompute_kernel() makes S, W and U of every chunk again, and what its own tokens put into dU; a
 * walk takes the gradient of the state through each document from its last chunk on; chunk_kernel()
 * has all there is of a chunk then; reduce_heads_kernel() adds what heads of values have for the
 * head of keys that they share.  Where gated_delta_scan.cu takes the call, it does the first two,
 * and has made Y = S' dU too.
 */
#include "cuda/gdn/gated_delta.cuh"

template <bool TENSOR, class T>
static __global__ void __launch_bounds__(THREADS) recompute_kernel(gated_delta_call<T> v)
{
    extern __shared__ __align__(128) unsigned char raw[];
    chunk_smem &m = *(chunk_smem *)raw;
    const chunk x = chunk_of_block(v);
    tile_sum<TENSOR, TILE> sum;

    if (x.n == 0)
        return;
    const chunk_offsets<T> at(v, x);
    gates_load(m.g, v, x);
    solve_chunk<TENSOR>(m, v, x, at);
    store_w<TENSOR>(m, v, x, at);
    FOR_EACH_ELEMENT(i, j, TILE)
    if (i < x.n)
        v.s[(at.gate + i * v.n.a) * CHUNK + j] = m.two[i][j];
    __syncthreads();
    for (int64_t c = 0; c < v.n.f; c += TILE) {
        make_values<TENSOR>(sum, m, v, x, at, c);
        if (!x.fresh)
            sum.add(
                m.sh,
                scaled_matrix_make((const float *)v.w + at.wide, at.d_step, 1, NULL, NULL, -1.0f),
                0, x.n, scaled_matrix_make((const float *)at.state, 1, v.n.f), c, v.n.f, v.n.d);
        sum.store(m.one);
        store_values(v.u, m.one, v, x, at, c);
    }
    make_qk<TENSOR>(m, v, x, at);
    for (int64_t c = 0; c < v.n.f; c += TILE) {
        sum.clear();
        sum.add(m.sh, scaled_matrix_make(&m.one[0][0], 1, TILE + PAD), 0, x.n,
                scaled_matrix_make(v.dout + at.value, 1, at.step), c, v.n.f, x.n);
        sum.store(m.two);
        store_values(v.du, m.two, v, x, at, c);
    }
}

/* dU = P' dO + (on K) dX'        dX = e^(b_C) dX' + (e^b Q)' dO - W' dU */
template <class T> struct scan_bwd {
    enum { BACK = 1 };

    static __device__ __forceinline__ bool starts_without_state(const chunk &x) { return x.last; }
    static __device__ __forceinline__ float *array(const gated_delta_call<T> &v) { return v.du; }
    static __device__ __forceinline__ scaled_matrix<T> rows(const chunk_gates &g,
                                                            const gated_delta_call<T> &v,
                                                            const chunk_offsets<T> &at)
    {
        return scaled_matrix_make(v.k + at.key, at.key_step, 1, g.k_on);
    }
    static __device__ __forceinline__ void add(scan_sum &sum, scan_smem &m,
                                               const gated_delta_call<T> &v, const chunk &x,
                                               const chunk_offsets<T> &at, int64_t r, int64_t col)
    {
        sum.add(m.sh, scaled_matrix_make(v.q + at.key, 1, at.key_step, NULL, m.g.q_up), r, v.n.d,
                scaled_matrix_make(v.dout + at.value + col, 1, at.step), 0, v.n.f - col, x.n);
        sum.add(m.sh,
                scaled_matrix_make((const float *)v.w + at.wide, 1, at.d_step, NULL, NULL, -1.0f),
                r, v.n.d, scaled_matrix_make(&m.u[0][0], 1, COLUMNS + PAD), 0, COLUMNS, x.n);
    }
};

/* --- a chunk ---------------------------------------------------------------------------------- */

/* Sums over the features of each token. */
struct row_dots {
    float yv[CHUNK], qx[CHUNK], kx[CHUNK], r[CHUNK], w[CHUNK];
};

/* Shared memory of chunk_kernel(). */
struct chunk_bwd_smem {
    chunk_smem m; /* one: what is made; two: S, K K', N */
    square f, h;
    row_dots d;
    double b[CHUNK];
};

/* to[i] += sum over the tile's columns j of t[i][j] x[i * step + j] by[i]; four threads a row. */
template <class T>
static __device__ __forceinline__ void add_dots(float *to, const square &t, const T *x,
                                                int64_t step, const float *by, int n,
                                                int64_t columns)
{
    const int i = threadIdx.x / 4, part = threadIdx.x % 4 * (TILE / 4);
    float sum = 0.0f;

    for (int j = part; j < part + TILE / 4; j++)
        if (i < n && j < columns)
            sum = fmaf(t[i][j], to_float(x[i * step + j]), sum);
    sum = group_sum<4>(sum);
    if (threadIdx.x % 4 == 0)
        to[i] += by != NULL ? sum * by[i] : sum;
    __syncthreads();
}

/* Columns of Y from c on, to m.one: S' dU, in whose place it comes, unless it is there. */
template <bool MADE, class T>
static __device__ __forceinline__ void make_y(chunk_smem &m, const gated_delta_call<T> &v,
                                              const chunk &x, const chunk_offsets<T> &at, int64_t c)
{
    tile_sum<false, TILE> sum;

    if (MADE) {
        FOR_EACH_ELEMENT(i, j, TILE)
        m.one[i][j] = i < x.n && c + j < v.n.f ? v.du[at.value + i * at.step + c + j] : 0.0f;
        __syncthreads();
        return;
    }
    sum.clear();
    sum.add(m.sh, scaled_matrix_make(&m.two[0][0], 1, TILE + PAD), 0, x.n,
            scaled_matrix_make((const float *)v.du + at.value, 1, at.step), c, v.n.f, x.n);
    sum.store(m.one);
    store_values(v.du, m.one, v, x, at, c);
}

/* Y, and dV. */
template <bool MADE, class T>
static __device__ void make_dv(chunk_bwd_smem &w, const gated_delta_call<T> &v, const chunk &x,
                               const chunk_offsets<T> &at)
{
    chunk_smem &m = w.m;

    FOR_EACH_ELEMENT(i, j, TILE)
    m.two[i][j] = !MADE && i < x.n ? v.s[(at.gate + i * v.n.a) * CHUNK + j] : 0.0f;
    __syncthreads();
    for (int64_t c = 0; c < v.n.f; c += TILE) {
        make_y<MADE>(m, v, x, at, c);
        add_dots(w.d.yv, m.one, v.v + at.value + c, at.step, NULL, x.n, v.n.f - c);
        FOR_EACH_ELEMENT(i, j, TILE)
        m.one[i][j] *= m.g.beta[i];
        __syncthreads();
        store_values(v.dv, m.one, v, x, at, c);
    }
}

/* What pairs of tokens have for b: from dO U' and Y U' in f and h, and Q K' and K K' in one and
 * two. One number is in both places, so that it leaves nothing where both are added. */
static __device__ void dgate_add_pairs(chunk_bwd_smem &w, const chunk_gates &g)
{
    square &e = w.m.one;
    double sum = 0.0;

    FOR_EACH_ELEMENT(i, j, TILE)
    e[i][j] =
        j < i ? gate_decay(g, i, j) * (w.f[i][j] * e[i][j] - w.h[i][j] * w.m.two[i][j] * g.beta[i])
              : 0.0f;
    __syncthreads();
    if (threadIdx.x < CHUNK) {
        for (int j = 0; j < CHUNK; j++)
            sum += (double)e[threadIdx.x][j] - (double)e[j][threadIdx.x];
        w.b[threadIdx.x] = sum;
    }
    __syncthreads();
}

/* F and H. */
template <bool TENSOR, class T>
static __device__ void make_score_grads(chunk_bwd_smem &w, const gated_delta_call<T> &v,
                                        const chunk &x, const chunk_offsets<T> &at)
{
    const scaled_matrix<float> u = scaled_matrix_make((const float *)v.u + at.value, at.step, 1);
    const scaled_matrix<T> k = scaled_matrix_make(v.k + at.key, at.key_step, 1, w.m.g.k);
    tile_sum<TENSOR, TILE> sum;

    sum.clear();
    sum.add(w.m.sh, scaled_matrix_make(v.dout + at.value, at.step, 1), 0, x.n, u, 0, x.n, v.n.f);
    sum.store(w.f);
    sum.clear();
    sum.add(w.m.sh, scaled_matrix_make((const float *)v.du + at.value, at.step, 1), 0, x.n, u, 0,
            x.n, v.n.f);
    sum.store(w.h);
    sum.clear();
    sum.add(w.m.sh, scaled_matrix_make(v.q + at.key, at.key_step, 1, w.m.g.q), 0, x.n, k, 0, x.n,
            v.n.d);
    sum.store(w.m.one);
    sum.clear();
    sum.add(w.m.sh, k, 0, x.n, k, 0, x.n, v.n.d);
    sum.store(w.m.two);
    dgate_add_pairs(w, w.m.g);
    FOR_EACH_ELEMENT(i, j, TILE)
    {
        const float g = j <= i ? gate_decay(w.m.g, i, j) : 0.0f;

        w.f[i][j] *= g;
        w.h[i][j] *= j < i ? -g : 0.0f;
    }
    __syncthreads();
}

/* A tile of gradients by heads of values. */
template <class T>
static __device__ __forceinline__ void store_keys(float *y, const square &t,
                                                  const gated_delta_call<T> &v, const chunk &x,
                                                  const chunk_offsets<T> &at, int64_t c)
{
    FOR_EACH_ELEMENT(i, j, TILE)
    if (i < x.n && c + j < v.n.d)
        y[at.wide + i * at.d_step + c + j] = t[i][j];
    __syncthreads();
}

/* dQ = e^b dO X' + F K, columns from c on. */
template <bool TENSOR, class T>
static __device__ void make_dq(chunk_bwd_smem &w, const gated_delta_call<T> &v, const chunk &x,
                               const chunk_offsets<T> &at, int64_t c)
{
    chunk_smem &m = w.m;
    tile_sum<TENSOR, TILE> sum;

    sum.clear();
    if (!x.fresh) {
        sum.add(m.sh, scaled_matrix_make(v.dout + at.value, at.step, 1, m.g.up), 0, x.n,
                scaled_matrix_make((const float *)at.state, v.n.f, 1), c, v.n.d, v.n.f);
        sum.store(m.one);
        add_dots(w.d.qx, m.one, v.q + at.key + c, at.key_step, m.g.q, x.n, v.n.d - c);
    }
    sum.add(m.sh, scaled_matrix_make(&w.f[0][0], TILE + PAD, 1), 0, x.n,
            scaled_matrix_make(v.k + at.key, 1, at.key_step, NULL, m.g.k), c, v.n.d, x.n);
    sum.store(m.one);
    store_keys(v.hq, m.one, v, x, at, c);
}

/* N = H K - e^b Y X' to m.two, then dK. */
template <bool TENSOR, class T>
static __device__ void make_dk(chunk_bwd_smem &w, const gated_delta_call<T> &v, const chunk &x,
                               const chunk_offsets<T> &at, int64_t c)
{
    chunk_smem &m = w.m;
    const T *k = v.k + at.key;
    tile_sum<TENSOR, TILE> sum;

    sum.clear();
    if (!x.fresh) {
        sum.add(m.sh,
                scaled_matrix_make((const float *)v.du + at.value, at.step, 1, m.g.up, NULL, -1.0f),
                0, x.n, scaled_matrix_make((const float *)at.state, v.n.f, 1), c, v.n.d, v.n.f);
        sum.store(m.two);
        add_dots(w.d.kx, m.two, k + c, at.key_step, m.g.k, x.n, v.n.d - c);
    }
    sum.add(m.sh, scaled_matrix_make(&w.h[0][0], TILE + PAD, 1), 0, x.n,
            scaled_matrix_make(k, 1, at.key_step, NULL, m.g.k), c, v.n.d, x.n);
    sum.store(m.two);
    add_dots(w.d.r, m.two, k + c, at.key_step, m.g.k, x.n, v.n.d - c);
    sum.clear();
    if (!x.last) {
        sum.add(m.sh, scaled_matrix_make((const float *)v.u + at.value, at.step, 1, m.g.on), 0, x.n,
                scaled_matrix_make((const float *)at.dstate, v.n.f, 1), c, v.n.d, v.n.f);
        sum.store(m.one);
        add_dots(w.d.w, m.one, k + c, at.key_step, m.g.k, x.n, v.n.d - c);
    }
    sum.add(m.sh, scaled_matrix_make(&w.f[0][0], 1, TILE + PAD), 0, x.n,
            scaled_matrix_make(v.q + at.key, 1, at.key_step, NULL, m.g.q), c, v.n.d, x.n);
    sum.add(m.sh, scaled_matrix_make(&w.h[0][0], 1, TILE + PAD, NULL, m.g.beta), 0, x.n,
            scaled_matrix_make(k, 1, at.key_step, NULL, m.g.k), c, v.n.d, x.n);
    sum.store(m.one);
    FOR_EACH_ELEMENT(i, j, TILE)
    m.one[i][j] += m.g.beta[i] * m.two[i][j];
    __syncthreads();
    store_keys(v.hk, m.one, v, x, at, c);
}

/* dg and db: the sum over a token and those behind it. */
template <class T>
static __device__ void make_gate_grads(chunk_bwd_smem &w, const gated_delta_call<T> &v,
                                       const chunk &x, const chunk_offsets<T> &at)
{
    const int i = threadIdx.x;
    const chunk_gates &g = w.m.g;
    const row_dots &d = w.d;
    float through = 0.0f;

    if (!x.fresh && !x.last)
        for (int64_t e = i; e < v.n.d * v.n.f; e += THREADS)
            through = fmaf(at.state[e], at.dstate[e], through);
    through = group_sum<THREADS>(through) * g.last;
    if (i < CHUNK)
        w.b[i] += (double)d.qx[i] + (double)(g.beta[i] * d.kx[i]) - (double)d.w[i];
    if (i == CHUNK - 1) {
        w.b[i] += (double)through;
        for (int j = 0; j < CHUNK; j++)
            w.b[i] += (double)d.w[j];
    }
    __syncthreads();
    for (int o = 1; o < CHUNK; o *= 2) {
        const double behind = i + o < CHUNK ? w.b[i + o] : 0.0;

        __syncthreads();
        if (i < CHUNK)
            w.b[i] += behind;
        __syncthreads();
    }
    if (i >= x.n)
        return;
    v.dg[at.gate + i * v.n.a] = (float)w.b[i];
    store_float(v.db + at.gate + i * v.n.a, (d.yv[i] + d.r[i]) * (g.beta[i] * (1.0f - g.beta[i])));
}

template <bool TENSOR, class T>
static __global__ void __launch_bounds__(THREADS, 2) chunk_kernel(gated_delta_call<T> v)
{
    extern __shared__ __align__(128) unsigned char raw[];
    chunk_bwd_smem &w = *(chunk_bwd_smem *)raw;
    const chunk x = chunk_of_block(v);

    if (x.n == 0)
        return;
    const chunk_offsets<T> at(v, x);
    for (int e = threadIdx.x; e < (int)(sizeof(row_dots) / sizeof(float)); e += THREADS)
        ((float *)&w.d)[e] = 0.0f;
    gates_load(w.m.g, v, x);
    make_dv<TENSOR>(w, v, x, at);
    make_score_grads<TENSOR>(w, v, x, at);
    for (int64_t c = 0; c < v.n.d; c += TILE) {
        make_dq<TENSOR>(w, v, x, at, c);
        make_dk<TENSOR>(w, v, x, at, c);
    }
    make_gate_grads(w, v, x, at);
}

/* --- heads ------------------------------------------------------------------------------------ */

/* The sum of what the heads of values have for a row of keys, through its length: a warp a row. */
template <class T>
static __device__ __forceinline__ void l2_normalize_bwd_row(T *dx, const T *x, const float *part,
                                                            int64_t r,
                                                            const d9d_gated_delta_dims &n,
                                                            float inv, float scale)
{
    const int64_t group = n.a / n.k, d = n.d, first = (r / n.k * n.a + r % n.k * group) * d;
    float dot = 0.0f;

    for (int pass = 0; pass < 2; pass++) {
        const float along = pass == 0 ? 0.0f : group_sum<WARP>(dot);

        D9DI_ROW8 (i, d, WARP) {
            float sum[8] = {}, u[8];

            load8(u, x + r * d + i, d - i);
            for (int64_t h = 0; h < group; h++) {
                float one[8];

                load8(one, part + first + h * d + i, d - i);
                for (int j = 0; j < 8; j++)
                    sum[j] += one[j];
            }
            for (int j = 0; j < 8; j++) {
                dot = fmaf(u[j] * inv, sum[j], dot);
                sum[j] = scale * inv * (sum[j] - u[j] * inv * along);
            }
            if (pass == 1)
                store8(dx + r * d + i, sum, d - i);
        }
    }
}

template <class T> static __global__ void reduce_heads_kernel(gated_delta_call<T> v, int64_t rows)
{
    const int64_t r = group_row<WARP>();

    if (r >= rows)
        return;
    l2_normalize_bwd_row(v.dq, v.q, v.hq, r, v.n, v.inv_q[r], v.n.scale);
    l2_normalize_bwd_row(v.dk, v.k, v.hk, r, v.n, v.inv_k[r], 1.0f);
}

/* --- calls ------------------------------------------------------------------------------------ */

/* What is done of chunks and heads at the end; MADE: on tensor cores, from Y. */
template <bool MADE, class T>
static d9d_status launch_chunks(const char *op, cudaStream_t queue, const gated_delta_call<T> &v)
{
    const int64_t rows = v.n.docs.b * v.n.docs.s * v.n.k;
    const unsigned all = (unsigned)(chunks_max(v.n.docs) * v.n.a);

    D9D_TRY(
        d9di_cuda_set_max_smem(op, (const void *)chunk_kernel<MADE, T>, sizeof(chunk_bwd_smem)));
    chunk_kernel<MADE><<<all, THREADS, sizeof(chunk_bwd_smem), queue>>>(v);
    reduce_heads_kernel<<<grid_for_rows(rows, WARP), THREADS, 0, queue>>>(v, rows);
    return d9di_cuda_check_launch(op);
}

template <class T> static d9d_status launch_simt(d9d_stream s, const gated_delta_call<T> &v)
{
    const unsigned all = (unsigned)(chunks_max(v.n.docs) * v.n.a);
    const char *op = "gated_delta_bwd";
    cudaStream_t queue = d9di_cuda_stream(s);

    D9D_TRY(
        d9di_cuda_set_max_smem(op, (const void *)recompute_kernel<false, T>, sizeof(chunk_smem)));
    launch_qk_norms(queue, v);
    recompute_kernel<false><<<all, THREADS, sizeof(chunk_smem), queue>>>(v);
    D9D_TRY(scan_simt<scan_bwd<T>>(op, queue, v));
    return launch_chunks<false>(op, queue, v);
}

static d9d_status launch_wgmma(d9d_stream s, const gated_delta_call<bf16> &v)
{
    const char *op = "delta_din";

    D9D_TRY(d9di_gated_delta_scan_prepare(s, op, v, WGMMA_PARTS));
    D9D_TRY(d9di_gated_delta_scan_bwd_sm90(s, op, v));
    return d9di_gated_delta_bwd_sm90(s, op, v);
}

/* Scratch: the gradients of states in bfloat16. */
static d9d_status run_wgmma(d9d_stream s, gated_delta_call<bf16> v)
{
    const int64_t states =
        scratch_floats(d9d_gated_delta_states(&v.n.docs) * v.n.a * saved_size(v.n) / 2);
    const int64_t bytes = 4 * (states + prepared_size(v.n));
    void *scratch;
    d9d_status st;

    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &scratch));
    v.dstate = (float *)scratch;
    v.ready = (prepared_chunk *)(v.dstate + states);
    st = launch_wgmma(s, v);
    d9di_cuda_scratch_free(s, scratch, bytes);
    return st;
}

static d9d_status launch_scan(d9d_stream s, const gated_delta_call<bf16> &v)
{
    const char *op = "gated_delta_bwd";
    cudaStream_t queue = d9di_cuda_stream(s);

    launch_qk_norms(queue, v);
    D9D_TRY(d9di_gated_delta_scan_prepare(s, op, v, 2));
    D9D_TRY(d9di_gated_delta_scan_recompute(s, op, v));
    D9D_TRY(d9di_gated_delta_scan_bwd(s, op, v));
    return launch_chunks<true>(op, queue, v);
}

/* Scratch, the last of which is for one way or the other. */
template <class T> static d9d_status run_bwd(d9d_stream s, gated_delta_call<T> v, bool made)
{
    const int64_t tokens = v.n.docs.b * v.n.docs.s, n_gates = tokens * v.n.a;
    const int64_t states = d9d_gated_delta_states(&v.n.docs) * v.n.a * v.n.d * v.n.f;
    const int64_t scaled_matrix_make =
        scratch_floats(n_gates * v.n.d) + scratch_floats(n_gates * CHUNK);
    const int64_t bytes =
        4 * (2 * scratch_floats(tokens * v.n.k) + 2 * scratch_floats(n_gates * v.n.d) +
             2 * scratch_floats(n_gates * v.n.f) + scratch_floats(states) +
             (made ? prepared_size(v.n) : scaled_matrix_make));
    void *scratch;
    d9d_status st;

    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &scratch));
    scratch_arena p = {(float *)scratch};
    v.inv_q = p.alloc(tokens * v.n.k);
    v.inv_k = p.alloc(tokens * v.n.k);
    v.hq = p.alloc(n_gates * v.n.d);
    v.hk = p.alloc(n_gates * v.n.d);
    v.u = p.alloc(n_gates * v.n.f);
    v.du = p.alloc(n_gates * v.n.f);
    v.dstate = p.alloc(states);
    v.w = p.alloc(n_gates * v.n.d);
    v.s = v.w + scratch_floats(n_gates * v.n.d);
    v.ready = (prepared_chunk *)v.w;
    if constexpr (std::is_same_v<T, bf16>)
        st = made ? launch_scan(s, v) : launch_simt(s, v);
    else
        st = launch_simt(s, v);
    d9di_cuda_scratch_free(s, scratch, bytes);
    return st;
}

static d9d_status run_wgmma_placed(d9d_stream s, gated_delta_call<bf16> v)
{
    const int64_t tokens = v.n.docs.b * v.n.docs.s;
    const int64_t keys = 2 * tokens * v.n.k * v.n.d, values = 2 * tokens * v.n.a * v.n.f;
    const placed arrays[] = {{(void **)&v.q, keys, false},   {(void **)&v.k, keys, false},
                             {(void **)&v.v, values, false}, {(void **)&v.dout, values, false},
                             {(void **)&v.dq, keys, true},   {(void **)&v.dk, keys, true},
                             {(void **)&v.dv, values, true}};

    return with_places(s, "delta_din", arrays, 7, [&] { return run_wgmma(s, v); });
}

template <class T> static d9d_status run_best(d9d_stream s, const gated_delta_call<T> &v, bool made)
{
    if constexpr (std::is_same_v<T, bf16>)
        if (d9di_gated_delta_sm90_supported(s, &v.n))
            return run_wgmma_placed(s, v);
    return run_bwd(s, v, made);
}

d9d_status d9d_k_gated_delta_bwd(d9d_stream s, const d9d_gated_delta_dims *n, void *dq, void *dk,
                                 void *dv, float *dg, void *db, const void *dout, const void *q,
                                 const void *k, const void *v, const float *g, const void *b,
                                 const float *states)
{
    const void *const arrays[] = {dout, q, k, v};
    bool none = false;

    D9D_TRY(gated_delta_check("gated_delta_bwd", n, &none));
    if (none)
        return D9D_OK;
    return D9DI_DISPATCH_DTYPE(n->t, T, [&] {
        gated_delta_call<T> c = {};

        c.n = *n, c.q = (const T *)q, c.k = (const T *)k, c.v = (const T *)v, c.b = (const T *)b;
        c.g = g, c.dout = (const T *)dout, c.state = (float *)states;
        c.dq = (T *)dq, c.dk = (T *)dk, c.dv = (T *)dv, c.db = (T *)db, c.dg = dg;
        return run_best(s, c, d9di_gated_delta_scan_supported(n, arrays, 4));
    }());
}
