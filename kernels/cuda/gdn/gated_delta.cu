/* gated_delta.cu - the gated delta rule, forward; see gated_delta.cuh. */
#include "cuda/gdn/gated_delta.cuh"

/* W, and U as if there were no state. */
template <bool TENSOR, class T>
static __global__ void __launch_bounds__(THREADS) solve_kernel(delta<T> v)
{
    extern __shared__ __align__(128) unsigned char raw[];
    shared &m = *(shared *)raw;
    const chunk x = chunk_mine(v);
    tile_sum<TENSOR, TILE> sum;

    if (x.n == 0)
        return;
    const places<T> at(v, x);
    open_gates(m.g, v, x);
    solve<TENSOR>(m, v, x, at);
    store_w<TENSOR>(m, v, x, at);
    for (int64_t c = 0; c < v.n.f; c += TILE) {
        write_values<TENSOR>(sum, m, v, x, at, c);
        sum.give(m.one);
        store_values(v.u, m.one, v, x, at, c);
    }
}

/* U = S (beta V) - W X        X <- e^(b_C) X + (on K)' U */
template <class T> struct onward {
    enum { BACK = 0 };

    static __device__ __forceinline__ bool begins(const chunk &x) { return x.fresh; }
    static __device__ __forceinline__ float *array(const delta<T> &v) { return v.u; }
    static __device__ __forceinline__ scaled<float> rows(const gates &, const delta<T> &v,
                                                         const places<T> &at)
    {
        return plain((const float *)v.w + at.wide, at.d_step, 1, NULL, NULL, -1.0f);
    }
    static __device__ __forceinline__ void add(walk_sum &sum, walk &m, const delta<T> &v,
                                               const chunk &x, const places<T> &at, int64_t r,
                                               int64_t)
    {
        sum.add(m.sh, plain(v.k + at.key, 1, at.key_step, NULL, m.g.k_on), r, v.n.d,
                plain(&m.u[0][0], 1, COLUMNS + PAD), 0, COLUMNS, x.n);
    }
};

/* O = e^b Q X + P U */
template <bool TENSOR, class T>
static __global__ void __launch_bounds__(THREADS) output_kernel(delta<T> v)
{
    extern __shared__ __align__(128) unsigned char raw[];
    shared &m = *(shared *)raw;
    const chunk x = chunk_mine(v);
    tile_sum<TENSOR, TILE> sum;

    if (x.n == 0)
        return;
    const places<T> at(v, x);
    open_gates(m.g, v, x);
    attend<TENSOR>(m, v, x, at);
    for (int64_t c = 0; c < v.n.f; c += TILE) {
        sum.clear();
        if (!x.fresh)
            sum.add(m.sh, plain(v.q + at.key, at.key_step, 1, m.g.q_up), 0, x.n,
                    plain((const float *)at.state, 1, v.n.f), c, v.n.f, v.n.d);
        sum.add(m.sh, plain(&m.one[0][0], TILE + PAD, 1), 0, x.n,
                plain((const float *)v.u + at.value, 1, at.step), c, v.n.f, x.n);
        sum.give(m.two);
        store_values(v.o, m.two, v, x, at, c);
    }
}

template <class T> static d9d_status launch(d9d_stream s, const delta<T> &v)
{
    const unsigned all = (unsigned)(chunks_most(v.n.of) * v.n.a);
    cudaStream_t queue = d9di_queue(s);

    D9D_TRY(d9di_allow_shared("delta", (const void *)solve_kernel<false, T>, sizeof(shared)));
    D9D_TRY(d9di_allow_shared("delta", (const void *)output_kernel<false, T>, sizeof(shared)));
    find_lengths(queue, v);
    solve_kernel<false><<<all, THREADS, sizeof(shared), queue>>>(v);
    D9D_TRY(plain_walk<onward<T>>("delta", queue, v));
    output_kernel<false><<<all, THREADS, sizeof(shared), queue>>>(v);
    return d9di_launched("delta");
}

template <class T> static d9d_status run(d9d_stream s, delta<T> v)
{
    const int64_t tokens = v.n.of.b * v.n.of.s, cells = tokens * v.n.a;
    const int64_t bytes =
        4 * (2 * piece(tokens * v.n.k) + piece(cells * v.n.d) + piece(cells * v.n.f));
    void *room;
    d9d_status st;

    D9D_TRY(d9di_take(s, bytes, &room));
    pieces p = {(float *)room};
    v.inv_q = p.take(tokens * v.n.k);
    v.inv_k = p.take(tokens * v.n.k);
    v.w = p.take(cells * v.n.d);
    v.u = p.take(cells * v.n.f);
    st = launch(s, v);
    d9di_give(s, room, bytes);
    return st;
}

/* Where gated_delta_scan.cu takes it. */
static d9d_status run_prepared(d9d_stream s, const char *op, delta<bf16> v)
{
    const int64_t rows = v.n.of.b * v.n.of.s * v.n.k;
    const int64_t bytes = 4 * (2 * piece(rows) + piece(prepared_floats(v.n)));
    void *room;
    d9d_status st;

    D9D_TRY(d9di_take(s, bytes, &room));
    pieces p = {(float *)room};
    v.inv_q = p.take(rows);
    v.inv_k = p.take(rows);
    v.ready = (prepared *)p.take(prepared_floats(v.n));
    find_lengths(d9di_queue(s), v);
    st = d9di_delta_prepare(s, op, v);
    if (st == D9D_OK)
        st = d9di_delta_onward(s, op, v);
    d9di_give(s, room, bytes);
    return st;
}

template <class T>
static delta<T> call_of(const d9d_delta_dims *n, void *o, const void *q, const void *k,
                        const void *v, const float *g, const void *b)
{
    delta<T> c = {};

    c.n = *n, c.q = (const T *)q, c.k = (const T *)k, c.v = (const T *)v, c.b = (const T *)b;
    c.g = g, c.o = (T *)o;
    return c;
}

d9d_status d9d_k_delta(d9d_stream s, const d9d_delta_dims *n, void *o, float *states, const void *q,
                       const void *k, const void *v, const float *g, const void *b)
{
    const void *const arrays[] = {o, q, k, v};
    bool none = false;

    D9D_TRY(delta_check("delta", n, &none));
    if (none)
        return D9D_OK;
    if (d9di_delta_takes(n, arrays, 4)) {
        delta<bf16> c = call_of<bf16>(n, o, q, k, v, g, b);

        c.state = states;
        return run_prepared(s, "delta", c);
    }
    return D9DI_TYPED(n->t, T, [&] {
        delta<T> c = call_of<T>(n, o, q, k, v, g, b);

        c.state = states;
        return run(s, c);
    }());
}

/* --- generation: rows of a few tokens by the rule itself, longer ones as above -------------------
 *
 * A block has WARP features of the values of a head, whose state is in the registers of its warps:
 * every WARPS-th row in each.  What the state says to a key or a query is summed over warps.  So
 * the state is read and written once, in rows of 128 bytes, whatever the number of tokens.
 */

enum { FEW_TOKENS = 8 }; /* of a row, on average */

/* Some rows of q or k of a token: lane l has features l, l + WARP ...; length 1. */
template <int N, class T>
static __device__ __forceinline__ void unit_row(float (&y)[N], const T *x, int64_t d, float scale)
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

/* Over the warps of a column. */
static __device__ __forceinline__ float sum_warps(float (&part)[WARPS][WARP], float v)
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

/* Row `j` of this warp is feature WARPS j + warp: of which lane, and the how many-th there. */
#define FROM_ROW(row, j) __shfl_sync(~0u, (row)[(j) / 4], (j) % 4 * WARPS + threadIdx.x / WARP)

template <int N, class T>
static __device__ __forceinline__ void step(float (&state)[4 * N], float (&part)[2][WARPS][WARP],
                                            const delta<T> &v, const places<T> &at, int64_t col)
{
    const float fade = expf(v.g[at.cell]), beta = sigmoid(to_float(v.b[at.cell]));
    const int64_t f = col + threadIdx.x % WARP;
    float q[N], k[N], sum = 0.0f, u;

    unit_row(q, v.q + at.key, v.n.d, v.n.scale);
    unit_row(k, v.k + at.key, v.n.d, 1.0f);
#pragma unroll
    for (int j = 0; j < 4 * N; j++) {
        state[j] *= fade;
        sum = fmaf(FROM_ROW(k, j), state[j], sum);
    }
    sum = sum_warps(part[0], sum);
    u = f < v.n.f ? beta * (to_float(v.v[at.value + f]) - sum) : 0.0f;
    sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 4 * N; j++) {
        state[j] = fmaf(FROM_ROW(k, j), u, state[j]);
        sum = fmaf(FROM_ROW(q, j), state[j], sum);
    }
    sum = sum_warps(part[1], sum);
    if (threadIdx.x < WARP && f < v.n.f)
        put(v.o + at.value + f, sum);
}

/* N: eighths of WARPS rows of a warp, 32 features each. */
template <int N, class T> static __global__ void __launch_bounds__(THREADS) step_kernel(delta<T> v)
{
    __shared__ float part[2][WARPS][WARP];
    const int64_t across = d9di_ceil_div(v.n.f, WARP), col = blockIdx.x % across * WARP;
    const int64_t h = blockIdx.x / across % v.n.a, i = blockIdx.x / across / v.n.a;
    const document d = document_of(v.n.of, i);
    const bool fresh = v.n.of.segment[i].nk <= v.n.of.segment[i].nq;
    const int64_t f = col + threadIdx.x % WARP, row = threadIdx.x / WARP;
    float *cell = (float *)v.past.cell + (v.past.at[i] * v.n.a + h) * v.n.d * v.n.f + f;
    float state[4 * N];

    if (d.n == 0)
        return;
#pragma unroll
    for (int j = 0; j < 4 * N; j++)
        state[j] =
            !fresh && f < v.n.f && row + WARPS * j < v.n.d ? cell[(row + WARPS * j) * v.n.f] : 0.0f;
    for (int64_t t = d.first; t < d.first + d.n; t++)
        step<N>(state, part, v, places<T>(v, chunk{t, h, h / (v.n.a / v.n.k), 1, true, true}), col);
#pragma unroll
    for (int j = 0; j < 4 * N; j++)
        if (f < v.n.f && row + WARPS * j < v.n.d)
            cell[(row + WARPS * j) * v.n.f] = state[j];
}

template <int N, class T> static d9d_status launch_steps(d9d_stream s, const delta<T> &v)
{
    const int64_t blocks = v.n.of.segments * v.n.a * d9di_ceil_div(v.n.f, WARP);

    step_kernel<N><<<(unsigned)blocks, THREADS, 0, d9di_queue(s)>>>(v);
    return d9di_launched("delta_on");
}

template <class T> static d9d_status run_steps(d9d_stream s, const delta<T> &v)
{
    if (v.n.d > 16 * WARP)
        return D9D_FAIL(D9D_ENOTSUP, "delta_on: keys of %lld features, at most %d are supported",
                        (long long)v.n.d, 16 * WARP);
    return v.n.d <= 2 * WARP   ? launch_steps<2>(s, v)
           : v.n.d <= 4 * WARP ? launch_steps<4>(s, v)
           : v.n.d <= 8 * WARP ? launch_steps<8>(s, v)
                               : launch_steps<16>(s, v);
}

d9d_status d9d_k_delta_on(d9d_stream s, const d9d_delta_dims *n, const d9d_past *past, void *o,
                          const void *q, const void *k, const void *v, const float *g,
                          const void *b)
{
    const void *const arrays[] = {o, q, k, v};
    bool none = false;

    D9D_TRY(delta_check("delta_on", n, &none));
    if (n->of.segment == NULL)
        return D9D_FAIL(D9D_EINVAL, "delta_on: which documents go on?");
    if (none)
        return D9D_OK;
    if (n->of.b * n->of.s > FEW_TOKENS * n->of.segments && d9di_delta_takes(n, arrays, 4)) {
        delta<bf16> c = call_of<bf16>(n, o, q, k, v, g, b);

        c.past = *past;
        return run_prepared(s, "delta_on", c);
    }
    return D9DI_TYPED(n->t, T, [&] {
        delta<T> c = call_of<T>(n, o, q, k, v, g, b);

        c.past = *past;
        return run_steps(s, c);
    }());
}
