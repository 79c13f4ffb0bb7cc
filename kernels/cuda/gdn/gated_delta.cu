/* gated_delta.cu - the gated delta rule, forward; see gated_delta.cuh. */
#include "cuda/gdn/gated_delta.cuh"

/* w = W, u = S (beta V): U without the state. One block per chunk and head. */
template <bool TENSOR, class T>
static __global__ void __launch_bounds__(THREADS) solve_kernel(gated_delta_call<T> v)
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
    for (int64_t c = 0; c < v.n.f; c += TILE) {
        make_values<TENSOR>(sum, m, v, x, at, c);
        sum.store(m.one);
        store_values(v.u, m.one, v, x, at, c);
    }
}

/* The scan of the forward: U = S (beta V) - W X, X <- e^(b_C) X + (to_end K)' U. */
template <class T> struct scan_fwd {
    enum { REVERSE = 0 };

    static __device__ __forceinline__ bool starts_without_state(const chunk &x) { return x.fresh; }
    static __device__ __forceinline__ float *array(const gated_delta_call<T> &v) { return v.u; }
    static __device__ __forceinline__ scaled_matrix<float> rows(const chunk_gates &,
                                                                const gated_delta_call<T> &v,
                                                                const chunk_offsets<T> &at)
    {
        return scaled_matrix_make((const float *)v.w + at.wide, at.d_step, 1, NULL, NULL, -1.0f);
    }
    static __device__ __forceinline__ void add(scan_sum &sum, scan_smem &m,
                                               const gated_delta_call<T> &v, const chunk &x,
                                               const chunk_offsets<T> &at, int64_t r, int64_t)
    {
        sum.add(m.sh, scaled_matrix_make(v.k + at.key, 1, at.key_step, NULL, m.g.k_to_end), r,
                v.n.d, scaled_matrix_make(&m.u[0][0], 1, COLUMNS + PAD), 0, COLUMNS, x.n);
    }
};

/* O = e^b Q X + P U. One block per chunk and head. */
template <bool TENSOR, class T>
static __global__ void __launch_bounds__(THREADS) output_kernel(gated_delta_call<T> v)
{
    extern __shared__ __align__(128) unsigned char raw[];
    chunk_smem &m = *(chunk_smem *)raw;
    const chunk x = chunk_of_block(v);
    tile_sum<TENSOR, TILE> sum;

    if (x.n == 0)
        return;
    const chunk_offsets<T> at(v, x);
    gates_load(m.g, v, x);
    make_qk<TENSOR>(m, v, x, at);
    for (int64_t c = 0; c < v.n.f; c += TILE) {
        sum.clear();
        if (!x.fresh)
            sum.add(m.sh, scaled_matrix_make(v.q + at.key, at.key_step, 1, m.g.q_from_start), 0,
                    x.n, scaled_matrix_make((const float *)at.state, 1, v.n.f), c, v.n.f, v.n.d);
        sum.add(m.sh, scaled_matrix_make(&m.one[0][0], TILE + PAD, 1), 0, x.n,
                scaled_matrix_make((const float *)v.u + at.value, 1, at.step), c, v.n.f, x.n);
        sum.store(m.two);
        store_values(v.o, m.two, v, x, at, c);
    }
}

template <class T> static d9d_status launch_simt(d9d_stream s, const gated_delta_call<T> &v)
{
    const unsigned blocks = (unsigned)(chunks_max(v.n.docs) * v.n.a);
    cudaStream_t stream = d9di_cuda_stream(s);

    D9D_TRY(d9di_cuda_set_max_smem("gated_delta", (const void *)solve_kernel<false, T>,
                                   sizeof(chunk_smem)));
    D9D_TRY(d9di_cuda_set_max_smem("gated_delta", (const void *)output_kernel<false, T>,
                                   sizeof(chunk_smem)));
    launch_qk_norms(stream, v);
    solve_kernel<false><<<blocks, THREADS, sizeof(chunk_smem), stream>>>(v);
    D9D_TRY(scan_simt<scan_fwd<T>>("gated_delta", stream, v));
    output_kernel<false><<<blocks, THREADS, sizeof(chunk_smem), stream>>>(v);
    return d9di_cuda_check_launch("gated_delta");
}

template <class T> static d9d_status run_simt(d9d_stream s, gated_delta_call<T> v)
{
    const int64_t tokens = v.n.docs.b * v.n.docs.s, n_gates = tokens * v.n.a;
    const int64_t bytes = 4 * (2 * scratch_floats(tokens * v.n.k) +
                               scratch_floats(n_gates * v.n.d) + scratch_floats(n_gates * v.n.f));
    void *scratch;
    d9d_status st;

    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &scratch));
    scratch_arena p = {(float *)scratch};
    v.inv_q = p.alloc(tokens * v.n.k);
    v.inv_k = p.alloc(tokens * v.n.k);
    v.w = p.alloc(n_gates * v.n.d);
    v.u = p.alloc(n_gates * v.n.f);
    st = launch_simt(s, v);
    d9di_cuda_scratch_free(s, scratch, bytes);
    return st;
}

/* Forward on tensor cores: WGMMA where supported, else mma.sync. */
static d9d_status run_scan(d9d_stream s, const char *op, gated_delta_call<bf16> v)
{
    const int64_t bytes = 4 * scratch_floats(prepared_size(v.n));
    const bool wgmma = d9di_gated_delta_sm90_supported(s, &v.n);
    void *scratch;
    d9d_status st;

    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &scratch));
    v.prepared = (prepared_chunk *)scratch;
    st = d9di_gated_delta_scan_prepare(s, op, v, wgmma ? +WGMMA_PARTS : 2);
    if (st == D9D_OK)
        st = wgmma ? d9di_gated_delta_scan_fwd_sm90(s, op, v) : d9di_gated_delta_scan_fwd(s, op, v);
    d9di_cuda_scratch_free(s, scratch, bytes);
    return st;
}

/* The layout of saved states must not depend on alignment, so the sm90 path copies unaligned
 * arrays. */
static d9d_status run_aligned(d9d_stream s, const char *op, gated_delta_call<bf16> v)
{
    const int64_t tokens = v.n.docs.b * v.n.docs.s;
    const int64_t keys = 2 * tokens * v.n.k * v.n.d, values = 2 * tokens * v.n.a * v.n.f;
    const aligned_arg arrays[] = {{(void **)&v.q, keys, false},
                                  {(void **)&v.k, keys, false},
                                  {(void **)&v.v, values, false},
                                  {(void **)&v.o, values, true}};

    return with_aligned_copies(s, op, arrays, 4, [&] { return run_scan(s, op, v); });
}

template <class T>
static gated_delta_call<T> call_make(const d9d_gated_delta_dims *n, void *o, const void *q,
                                     const void *k, const void *v, const float *g, const void *b)
{
    gated_delta_call<T> c = {};

    c.n = *n, c.q = (const T *)q, c.k = (const T *)k, c.v = (const T *)v, c.b = (const T *)b;
    c.g = g, c.o = (T *)o;
    return c;
}

d9d_status d9d_k_gated_delta(d9d_stream s, const d9d_gated_delta_dims *n, void *o, float *states,
                             const void *q, const void *k, const void *v, const float *g,
                             const void *b)
{
    const void *const arrays[] = {o, q, k, v};
    bool none = false;

    D9D_TRY(gated_delta_check("gated_delta", n, &none));
    if (none)
        return D9D_OK;
    if (d9di_gated_delta_sm90_supported(s, n) || d9di_gated_delta_scan_supported(n, arrays, 4)) {
        gated_delta_call<bf16> c = call_make<bf16>(n, o, q, k, v, g, b);

        c.state = states;
        return run_aligned(s, "gated_delta", c);
    }
    return D9DI_DISPATCH_DTYPE(n->t, T, [&] {
        gated_delta_call<T> c = call_make<T>(n, o, q, k, v, g, b);

        c.state = states;
        return run_simt(s, c);
    }());
}

/* --- decode: few tokens by the recurrence, more as above --------------------------------------
 *
 * A block has WARP value features of a head. Warp w keeps rows w, w + WARPS ... of the state [D,
 * WARP] in registers; k X and q X are summed over the warps. The state is read and written once, in
 * rows of 128 bytes, whatever the number of tokens.
 */

enum { MAX_STEP_TOKENS = 8 }; /* average tokens per document up to which the recurrence is used */

/* y = scale x / |x| for a row x [d] of q or k; lane l has features l, l + WARP ... */
template <int N, class T>
static __device__ __forceinline__ void l2_normalize_row(float (&y)[N], const T *x, int64_t d,
                                                        float scale)
{
    const int lane = threadIdx.x % WARP;
    float sum = 0.0f;

#pragma unroll
    for (int i = 0; i < N; i++) {
        y[i] = lane + i * WARP < d ? to_float(x[lane + i * WARP]) : 0.0f;
        sum = fmaf(y[i], y[i], sum);
    }
    scale *= 1.0f / sqrtf(group_sum<WARP>(sum) + 1e-6f);
#pragma unroll
    for (int i = 0; i < N; i++)
        y[i] *= scale;
}

/* Sums v over the warps, for each lane. */
static __device__ __forceinline__ float reduce_warps(float (&part)[WARPS][WARP], float v)
{
    const int lane = threadIdx.x % WARP;

    part[threadIdx.x / WARP][lane] = v;
    __syncthreads();
    v = part[0][lane];
#pragma unroll
    for (int w = 1; w < WARPS; w++)
        v += part[w][lane];
    return v;
}

/* Element of `row` for row j of this warp, which is feature WARPS j + warp, by shuffle. */
#define FROM_ROW(row, j) __shfl_sync(~0u, (row)[(j) / 4], (j) % 4 * WARPS + threadIdx.x / WARP)

template <int N, class T>
static __device__ __forceinline__ void step_token(float (&state)[4 * N],
                                                  float (&part)[2][WARPS][WARP],
                                                  const gated_delta_call<T> &v,
                                                  const chunk_offsets<T> &at, int64_t col)
{
    const float decay = expf(v.g[at.gate]), beta = sigmoid(to_float(v.b[at.gate]));
    const int64_t f = col + threadIdx.x % WARP;
    float q[N], k[N], sum = 0.0f, u;

    l2_normalize_row(q, v.q + at.key, v.n.d, v.n.scale);
    l2_normalize_row(k, v.k + at.key, v.n.d, 1.0f);
#pragma unroll
    for (int j = 0; j < 4 * N; j++) {
        state[j] *= decay;
        sum = fmaf(FROM_ROW(k, j), state[j], sum);
    }
    sum = reduce_warps(part[0], sum);
    u = f < v.n.f ? beta * (to_float(v.v[at.value + f]) - sum) : 0.0f;
    sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 4 * N; j++) {
        state[j] = fmaf(FROM_ROW(k, j), u, state[j]);
        sum = fmaf(FROM_ROW(q, j), state[j], sum);
    }
    sum = reduce_warps(part[1], sum);
    if (threadIdx.x < WARP && f < v.n.f)
        store_float(v.o + at.value + f, sum);
}

/* One block per document, head and WARP value features. A thread has 4 N rows of the state, so D <=
 * 32 N. */
template <int N, class T>
static __global__ void __launch_bounds__(THREADS) step_kernel(gated_delta_call<T> v)
{
    __shared__ float part[2][WARPS][WARP];
    const int64_t across = d9di_i64_ceil_div(v.n.f, WARP), col = blockIdx.x % across * WARP;
    const int64_t h = blockIdx.x / across % v.n.a, i = blockIdx.x / across / v.n.a;
    const document d = document_of(v.n.docs, i);
    const bool fresh = v.n.docs.segment[i].nk <= v.n.docs.segment[i].nq;
    const int64_t f = col + threadIdx.x % WARP, row = threadIdx.x / WARP;
    float *slot = (float *)v.past.slots + (v.past.slot_index[i] * v.n.a + h) * v.n.d * v.n.f + f;
    float state[4 * N];

    pdl_launch_dependents();
    pdl_wait();
    if (d.n == 0)
        return;
#pragma unroll
    for (int j = 0; j < 4 * N; j++)
        state[j] =
            !fresh && f < v.n.f && row + WARPS * j < v.n.d ? slot[(row + WARPS * j) * v.n.f] : 0.0f;
    for (int64_t t = d.first; t < d.first + d.n; t++)
        step_token<N>(state, part, v,
                      chunk_offsets<T>(v, chunk{t, h, h / (v.n.a / v.n.k), 1, true, true}), col);
#pragma unroll
    for (int j = 0; j < 4 * N; j++)
        if (f < v.n.f && row + WARPS * j < v.n.d)
            slot[(row + WARPS * j) * v.n.f] = state[j];
}

template <int N, class T>
static d9d_status launch_step_sized(d9d_stream s, const gated_delta_call<T> &v)
{
    const int64_t blocks = v.n.docs.segments * v.n.a * d9di_i64_ceil_div(v.n.f, WARP);

    return pdl_launch(s, "gated_delta_step", step_kernel<N, T>, (unsigned)blocks, THREADS, v);
}

template <class T> static d9d_status launch_step(d9d_stream s, const gated_delta_call<T> &v)
{
    if (v.n.d > 16 * WARP)
        return D9D_FAIL(D9D_ENOTSUP,
                        "gated_delta_step: key head size %lld, at most %d is supported",
                        (long long)v.n.d, 16 * WARP);
    return v.n.d <= 2 * WARP   ? launch_step_sized<2>(s, v)
           : v.n.d <= 4 * WARP ? launch_step_sized<4>(s, v)
           : v.n.d <= 8 * WARP ? launch_step_sized<8>(s, v)
                               : launch_step_sized<16>(s, v);
}

d9d_status d9d_k_gated_delta_step(d9d_stream s, const d9d_gated_delta_dims *n,
                                  const d9d_state_slots *past, void *o, const void *q,
                                  const void *k, const void *v, const float *g, const void *b)
{
    const void *const arrays[] = {o, q, k, v};
    bool none = false;

    D9D_TRY(gated_delta_check("gated_delta_step", n, &none));
    if (n->docs.segment == NULL)
        return D9D_FAIL(D9D_EINVAL,
                        "gated_delta_step: a state cache needs segments, and none are given");
    if (none)
        return D9D_OK;
    if (n->docs.b * n->docs.s > MAX_STEP_TOKENS * n->docs.segments &&
        d9di_gated_delta_scan_supported(n, arrays, 4)) {
        gated_delta_call<bf16> c = call_make<bf16>(n, o, q, k, v, g, b);

        c.past = *past;
        return run_scan(s, "gated_delta_step", c);
    }
    return D9DI_DISPATCH_DTYPE(n->t, T, [&] {
        gated_delta_call<T> c = call_make<T>(n, o, q, k, v, g, b);

        c.past = *past;
        return launch_step(s, c);
    }());
}
