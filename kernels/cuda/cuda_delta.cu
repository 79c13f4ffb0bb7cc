/* cuda_delta.cu - the gated delta rule, forward; see cuda_delta.cuh. */
#include "cuda_delta.cuh"

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
    for (int64_t c = 0; c < v.n.f; c += TILE) {
        write_values<TENSOR>(sum, m, v, x, at, c);
        sum.give(m.one);
        store_values(v.u, m.one, v, x, at, c);
    }
}

/* U of the chunk from what solve_kernel left: less W X. */
template <bool TENSOR, class T>
static __device__ __forceinline__ void finish_writes(walk &m, const state_row *state,
                                                     const delta<T> &v, const chunk &x,
                                                     const places<T> &at, int64_t col)
{
    tile_sum<TENSOR, COLUMNS> sum;

    sum.clear();
    if (!x.fresh)
        sum.add(m.sh, plain(v.w + at.wide, at.d_step, 1), 0, x.n,
                plain(&state[0][0], 1, COLUMNS + PAD), 0, COLUMNS, v.n.d);
    sum.give(m.out);
    EACH_CELL(i, j, COLUMNS)
    {
        float *u = v.u + at.value + i * at.step + col + j;
        const bool there = i < x.n && col + j < v.n.f;

        m.u[i][j] = there ? *u - m.out[i][j] : 0.0f;
        if (there && !x.fresh)
            *u = m.u[i][j];
    }
    __syncthreads();
}

/* X <- e^(b_C) X + (on K)' U */
template <bool TENSOR, class T>
static __device__ __forceinline__ void go_on(walk &m, state_row *state, const delta<T> &v,
                                             const chunk &x, const places<T> &at)
{
    tile_sum<TENSOR, COLUMNS> sum;

    for (int64_t r = 0; r < v.n.d; r += TILE) {
        sum.clear();
        sum.add(m.sh, plain(v.k + at.key, 1, at.key_step, NULL, m.g.k_on), r, v.n.d,
                plain(&m.u[0][0], 1, COLUMNS + PAD), 0, COLUMNS, x.n);
        sum.give(m.out);
        EACH_CELL(i, j, COLUMNS)
        state[r + i][j] = m.g.last * state[r + i][j] + m.out[i][j];
        __syncthreads();
    }
}

template <bool TENSOR, class T>
static __global__ void __launch_bounds__(THREADS) walk_kernel(delta<T> v)
{
    extern __shared__ __align__(128) unsigned char raw[];
    walk &m = *(walk *)raw;
    state_row *state = (state_row *)(raw + sizeof(walk));
    const walker<T> w(v);

    for (int64_t e = threadIdx.x; e < d9di_ceil_div(v.n.d, TILE) * TILE * COLUMNS; e += THREADS)
        state[e / COLUMNS][e % COLUMNS] = 0.0f;
    for (int64_t c = 0; c < w.chunks; c++) {
        const chunk x = chunk_of(v, w.d, c, w.h);
        const places<T> at(v, x);

        open_gates(m.g, v, x);
        for (int64_t e = threadIdx.x; e < v.n.d * COLUMNS && !x.fresh; e += THREADS)
            if (w.col + e % COLUMNS < v.n.f)
                at.state[e / COLUMNS * v.n.f + w.col + e % COLUMNS] =
                    state[e / COLUMNS][e % COLUMNS];
        finish_writes<TENSOR>(m, state, v, x, at, w.col);
        if (!x.last)
            go_on<TENSOR>(m, state, v, x, at);
    }
}

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
    constexpr bool TENSOR = std::is_same_v<T, bf16>;
    const int64_t state = walk_bytes(v.n.d);
    const unsigned all = (unsigned)(chunks_most(v.n.of) * v.n.a);
    cudaStream_t queue = d9di_queue(s);

    D9D_TRY(d9di_allow_shared("delta", (const void *)solve_kernel<TENSOR, T>, sizeof(shared)));
    D9D_TRY(d9di_allow_shared("delta", (const void *)walk_kernel<TENSOR, T>, state));
    D9D_TRY(d9di_allow_shared("delta", (const void *)output_kernel<TENSOR, T>, sizeof(shared)));
    find_lengths(queue, v);
    solve_kernel<TENSOR><<<all, THREADS, sizeof(shared), queue>>>(v);
    walk_kernel<TENSOR><<<(unsigned)walks(v), THREADS, (size_t)state, queue>>>(v);
    output_kernel<TENSOR><<<all, THREADS, sizeof(shared), queue>>>(v);
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

d9d_status d9d_k_delta(d9d_stream s, const d9d_delta_dims *n, void *o, float *states, const void *q,
                       const void *k, const void *v, const float *g, const void *b)
{
    bool none = false;

    D9D_TRY(delta_check("delta", n, &none));
    if (none)
        return D9D_OK;
    return D9DI_TYPED(n->t, T, [&] {
        delta<T> c = {};

        c.n = *n, c.q = (const T *)q, c.k = (const T *)k, c.v = (const T *)v, c.b = (const T *)b;
        c.g = g, c.o = (T *)o, c.state = states;
        return run(s, c);
    }());
}
