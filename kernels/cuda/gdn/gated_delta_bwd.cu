/* gated_delta_bwd.cu - the gated delta rule, backward, and the choice of kernels; formulas in
 * kernels/cpu/gated_delta_bwd.c, chunks in gated_delta.cuh.
 *
 * recompute_kernel() computes S, W and U of every chunk, and P' dO. The scan carries the gradient
 * of the state through each document from the last chunk to the first. chunk_kernel() computes all
 * gradients within a chunk. reduce_heads_kernel() sums dQ and dK over the value heads of a key
 * head. Where gated_delta_scan.cu is supported it does the first two and also computes Y = S' dU.
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

/* The scan of the backward: dU = P' dO + (to_end K) dX', dX = e^(b_C) dX' + (e^b Q)' dO - W' dU. */
template <class T> struct scan_bwd {
    enum { REVERSE = 1 };

    static __device__ __forceinline__ bool starts_without_state(const chunk &x) { return x.last; }
    static __device__ __forceinline__ float *array(const gated_delta_call<T> &v) { return v.du; }
    static __device__ __forceinline__ scaled_matrix<T> rows(const chunk_gates &g,
                                                            const gated_delta_call<T> &v,
                                                            const chunk_offsets<T> &at)
    {
        return scaled_matrix_make(v.k + at.key, at.key_step, 1, g.k_to_end);
    }
    static __device__ __forceinline__ void add(scan_sum &sum, scan_smem &m,
                                               const gated_delta_call<T> &v, const chunk &x,
                                               const chunk_offsets<T> &at, int64_t r, int64_t col)
    {
        sum.add(m.sh, scaled_matrix_make(v.q + at.key, 1, at.key_step, NULL, m.g.q_from_start), r,
                v.n.d, scaled_matrix_make(v.dout + at.value + col, 1, at.step), 0, v.n.f - col,
                x.n);
        sum.add(m.sh,
                scaled_matrix_make((const float *)v.w + at.wide, 1, at.d_step, NULL, NULL, -1.0f),
                r, v.n.d, scaled_matrix_make(&m.u[0][0], 1, COLUMNS + PAD), 0, COLUMNS, x.n);
    }
};

/* --- gradients within a chunk ----------------------------------------------------------------- */

/* Dots per token: y v; q, k with the state terms of dQ, N; k N; k with the dX'' term of dK. */
struct row_dots {
    float yv[CHUNK], qx[CHUNK], kx[CHUNK], r[CHUNK], w[CHUNK];
};

/* Shared memory of chunk_kernel(). */
struct chunk_bwd_smem {
    chunk_smem m; /* one: result; two: S, K K', N */
    padded_tile f, h;
    row_dots d;
    double b[CHUNK];
};

/* to[i] += by[i] times the dot of row i of t with row i of x [n, columns]; four threads per row. */
template <class T>
static __device__ __forceinline__ void add_dots(float *to, const padded_tile &t, const T *x,
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

/* m.one = Y = S' dU, columns from c on, and overwrites dU. With HAVE_Y, dU already is Y. */
template <bool HAVE_Y, class T>
static __device__ __forceinline__ void make_y(chunk_smem &m, const gated_delta_call<T> &v,
                                              const chunk &x, const chunk_offsets<T> &at, int64_t c)
{
    tile_sum<false, TILE> sum;

    if (HAVE_Y) {
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

/* Computes Y and stores dV = beta Y. */
template <bool HAVE_Y, class T>
static __device__ void make_dv(chunk_bwd_smem &w, const gated_delta_call<T> &v, const chunk &x,
                               const chunk_offsets<T> &at)
{
    chunk_smem &m = w.m;

    FOR_EACH_ELEMENT(i, j, TILE)
    m.two[i][j] = !HAVE_Y && i < x.n ? v.s[(at.gate + i * v.n.a) * CHUNK + j] : 0.0f;
    __syncthreads();
    for (int64_t c = 0; c < v.n.f; c += TILE) {
        make_y<HAVE_Y>(m, v, x, at, c);
        add_dots(w.d.yv, m.one, v.v + at.value + c, at.step, NULL, x.n, v.n.f - c);
        FOR_EACH_ELEMENT(i, j, TILE)
        m.one[i][j] *= m.g.beta[i];
        __syncthreads();
        store_values(v.dv, m.one, v, x, at, c);
    }
}

/* w.b = sum_j (E_ij - E_ji), from dO U' in f, Y U' in h, Q K' in one, K K' in two. The same number
 * is added and subtracted, so that it cancels exactly. */
static __device__ void dgate_add_pairs(chunk_bwd_smem &w, const chunk_gates &g)
{
    padded_tile &e = w.m.one;
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

/* w.f = F and w.h = H [CHUNK, CHUNK]; also the terms E of db. */
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

/* Stores a tile [CHUNK, TILE], columns from c on, to dq_heads or dk_heads [tokens, A, D]. */
template <class T>
static __device__ __forceinline__ void store_keys(float *y, const padded_tile &t,
                                                  const gated_delta_call<T> &v, const chunk &x,
                                                  const chunk_offsets<T> &at, int64_t c)
{
    FOR_EACH_ELEMENT(i, j, TILE)
    if (i < x.n && c + j < v.n.d)
        y[at.wide + i * at.d_step + c + j] = t[i][j];
    __syncthreads();
}

/* Stores dQ = e^b dO X' + F K of a value head, columns from c on. */
template <bool TENSOR, class T>
static __device__ void make_dq(chunk_bwd_smem &w, const gated_delta_call<T> &v, const chunk &x,
                               const chunk_offsets<T> &at, int64_t c)
{
    chunk_smem &m = w.m;
    tile_sum<TENSOR, TILE> sum;

    sum.clear();
    if (!x.fresh) {
        sum.add(m.sh, scaled_matrix_make(v.dout + at.value, at.step, 1, m.g.from_start), 0, x.n,
                scaled_matrix_make((const float *)at.state, v.n.f, 1), c, v.n.d, v.n.f);
        sum.store(m.one);
        add_dots(w.d.qx, m.one, v.q + at.key + c, at.key_step, m.g.q, x.n, v.n.d - c);
    }
    sum.add(m.sh, scaled_matrix_make(&w.f[0][0], TILE + PAD, 1), 0, x.n,
            scaled_matrix_make(v.k + at.key, 1, at.key_step, NULL, m.g.k), c, v.n.d, x.n);
    sum.store(m.one);
    store_keys(v.dq_heads, m.one, v, x, at, c);
}

/* Stores dK of a value head, columns from c on; m.two = N = H K - e^b Y X'. */
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
                scaled_matrix_make((const float *)v.du + at.value, at.step, 1, m.g.from_start, NULL,
                                   -1.0f),
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
        sum.add(m.sh, scaled_matrix_make((const float *)v.u + at.value, at.step, 1, m.g.to_end), 0,
                x.n, scaled_matrix_make((const float *)at.dstate, v.n.f, 1), c, v.n.d, v.n.f);
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
    store_keys(v.dk_heads, m.one, v, x, at, c);
}

/* Stores dg, the suffix sum of db_i in the chunk, and db. */
template <class T>
static __device__ void make_gate_grads(chunk_bwd_smem &w, const gated_delta_call<T> &v,
                                       const chunk &x, const chunk_offsets<T> &at)
{
    const int i = threadIdx.x;
    const chunk_gates &g = w.m.g;
    const row_dots &d = w.d;
    float state_dot = 0.0f;

    if (!x.fresh && !x.last)
        for (int64_t e = i; e < v.n.d * v.n.f; e += THREADS)
            state_dot = fmaf(at.state[e], at.dstate[e], state_dot);
    state_dot = group_sum<THREADS>(state_dot) * g.decay_last;
    if (i < CHUNK)
        w.b[i] += (double)d.qx[i] + (double)(g.beta[i] * d.kx[i]) - (double)d.w[i];
    if (i == CHUNK - 1) {
        w.b[i] += (double)state_dot;
        for (int j = 0; j < CHUNK; j++)
            w.b[i] += (double)d.w[j];
    }
    __syncthreads();
    for (int o = 1; o < CHUNK; o *= 2) {
        const double suffix = i + o < CHUNK ? w.b[i + o] : 0.0;

        __syncthreads();
        if (i < CHUNK)
            w.b[i] += suffix;
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

/* --- sum over value heads --------------------------------------------------------------------- */

/* dx = backward of the L2 normalisation of row r, of the gradient summed over the value heads; one
 * warp per row. */
template <class T>
static __device__ __forceinline__ void l2_normalize_bwd_row(T *dx, const T *x, const float *part,
                                                            int64_t r,
                                                            const d9d_gated_delta_dims &n,
                                                            float inv, float scale)
{
    const int64_t group = n.a / n.k, d = n.d, first = (r / n.k * n.a + r % n.k * group) * d;
    float dot = 0.0f;

    for (int pass = 0; pass < 2; pass++) {
        const float dot_sum = pass == 0 ? 0.0f : group_sum<WARP>(dot);

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
                sum[j] = scale * inv * (sum[j] - u[j] * inv * dot_sum);
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
    l2_normalize_bwd_row(v.dq, v.q, v.dq_heads, r, v.n, v.inv_q[r], v.n.scale);
    l2_normalize_bwd_row(v.dk, v.k, v.dk_heads, r, v.n, v.inv_k[r], 1.0f);
}

/* --- calls ------------------------------------------------------------------------------------ */

/* Launches chunk_kernel() and reduce_heads_kernel(). HAVE_Y: v.du contains Y. */
template <bool HAVE_Y, class T>
static d9d_status launch_chunks(const char *op, cudaStream_t stream, const gated_delta_call<T> &v)
{
    const int64_t rows = v.n.docs.b * v.n.docs.s * v.n.k;
    const unsigned blocks = (unsigned)(chunks_max(v.n.docs) * v.n.a);

    D9D_TRY(
        d9di_cuda_set_max_smem(op, (const void *)chunk_kernel<HAVE_Y, T>, sizeof(chunk_bwd_smem)));
    chunk_kernel<HAVE_Y><<<blocks, THREADS, sizeof(chunk_bwd_smem), stream>>>(v);
    reduce_heads_kernel<<<grid_for_rows(rows, WARP), THREADS, 0, stream>>>(v, rows);
    return d9di_cuda_check_launch(op);
}

template <class T> static d9d_status launch_simt(d9d_stream s, const gated_delta_call<T> &v)
{
    const unsigned blocks = (unsigned)(chunks_max(v.n.docs) * v.n.a);
    const char *op = "gated_delta_bwd";
    cudaStream_t stream = d9di_cuda_stream(s);

    D9D_TRY(
        d9di_cuda_set_max_smem(op, (const void *)recompute_kernel<false, T>, sizeof(chunk_smem)));
    launch_qk_norms(stream, v);
    recompute_kernel<false><<<blocks, THREADS, sizeof(chunk_smem), stream>>>(v);
    D9D_TRY(scan_simt<scan_bwd<T>>(op, stream, v));
    return launch_chunks<false>(op, stream, v);
}

static d9d_status launch_wgmma(d9d_stream s, const gated_delta_call<bf16> &v)
{
    const char *op = "gated_delta_bwd";

    D9D_TRY(d9di_gated_delta_scan_prepare(s, op, v, WGMMA_PARTS));
    D9D_TRY(d9di_gated_delta_scan_bwd_sm90(s, op, v));
    return d9di_gated_delta_bwd_sm90(s, op, v);
}

/* Allocates scratch for the state gradients in bfloat16 and for the prepared chunks. */
static d9d_status run_wgmma(d9d_stream s, gated_delta_call<bf16> v)
{
    const int64_t states =
        scratch_floats(d9d_gated_delta_states(&v.n.docs) * v.n.a * saved_state_size(v.n) / 2);
    const int64_t bytes = 4 * (states + prepared_size(v.n));
    void *scratch;
    d9d_status st;

    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &scratch));
    v.dstate = (float *)scratch;
    v.prepared = (prepared_chunk *)(v.dstate + states);
    st = launch_wgmma(s, v);
    d9di_cuda_scratch_free(s, scratch, bytes);
    return st;
}

static d9d_status launch_scan(d9d_stream s, const gated_delta_call<bf16> &v)
{
    const char *op = "gated_delta_bwd";
    cudaStream_t stream = d9di_cuda_stream(s);

    launch_qk_norms(stream, v);
    D9D_TRY(d9di_gated_delta_scan_prepare(s, op, v, 2));
    D9D_TRY(d9di_gated_delta_scan_recompute(s, op, v));
    D9D_TRY(d9di_gated_delta_scan_bwd(s, op, v));
    return launch_chunks<true>(op, stream, v);
}

/* Allocates scratch; the last part is `prepared` or W and S. scan: uses gated_delta_scan.cu. */
template <class T> static d9d_status run_bwd(d9d_stream s, gated_delta_call<T> v, bool scan)
{
    const int64_t tokens = v.n.docs.b * v.n.docs.s, n_gates = tokens * v.n.a;
    const int64_t states = d9d_gated_delta_states(&v.n.docs) * v.n.a * v.n.d * v.n.f;
    const int64_t w_s_floats = scratch_floats(n_gates * v.n.d) + scratch_floats(n_gates * CHUNK);
    const int64_t bytes =
        4 * (2 * scratch_floats(tokens * v.n.k) + 2 * scratch_floats(n_gates * v.n.d) +
             2 * scratch_floats(n_gates * v.n.f) + scratch_floats(states) +
             (scan ? prepared_size(v.n) : w_s_floats));
    void *scratch;
    d9d_status st;

    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &scratch));
    scratch_arena p = {(float *)scratch};
    v.inv_q = p.alloc(tokens * v.n.k);
    v.inv_k = p.alloc(tokens * v.n.k);
    v.dq_heads = p.alloc(n_gates * v.n.d);
    v.dk_heads = p.alloc(n_gates * v.n.d);
    v.u = p.alloc(n_gates * v.n.f);
    v.du = p.alloc(n_gates * v.n.f);
    v.dstate = p.alloc(states);
    v.w = p.alloc(n_gates * v.n.d);
    v.s = v.w + scratch_floats(n_gates * v.n.d);
    v.prepared = (prepared_chunk *)v.w;
    if constexpr (std::is_same_v<T, bf16>)
        st = scan ? launch_scan(s, v) : launch_simt(s, v);
    else
        st = launch_simt(s, v);
    d9di_cuda_scratch_free(s, scratch, bytes);
    return st;
}

static d9d_status run_wgmma_aligned(d9d_stream s, gated_delta_call<bf16> v)
{
    const int64_t tokens = v.n.docs.b * v.n.docs.s;
    const int64_t keys = 2 * tokens * v.n.k * v.n.d, values = 2 * tokens * v.n.a * v.n.f;
    const aligned_arg arrays[] = {{(void **)&v.q, keys, false},   {(void **)&v.k, keys, false},
                                  {(void **)&v.v, values, false}, {(void **)&v.dout, values, false},
                                  {(void **)&v.dq, keys, true},   {(void **)&v.dk, keys, true},
                                  {(void **)&v.dv, values, true}};

    return with_aligned_copies(s, "gated_delta_bwd", arrays, 7, [&] { return run_wgmma(s, v); });
}

template <class T>
static d9d_status run_fastest(d9d_stream s, const gated_delta_call<T> &v, bool scan)
{
    if constexpr (std::is_same_v<T, bf16>)
        if (d9di_gated_delta_sm90_supported(s, &v.n))
            return run_wgmma_aligned(s, v);
    return run_bwd(s, v, scan);
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
        return run_fastest(s, c, d9di_gated_delta_scan_supported(n, arrays, 4));
    }());
}
