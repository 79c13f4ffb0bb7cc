/* gated_delta_bwd.cu - the gated delta rule, backward; see gated_delta.cuh, and the formulas in
 * ../cpu/cpu_delta_din.c.
 *
 * regain_kernel() makes S, W and U of every chunk again, and what its own tokens put into dU; a
 * walk takes the gradient of the state through each document from its last chunk on; chunk_kernel()
 * has all there is of a chunk then; heads_kernel() adds what heads of values have for the head of
 * keys that they share.  Where gated_delta_scan.cu takes the call, it does the first two, and has
 * made Y = S' dU too.
 */
#include "cuda/gdn/gated_delta.cuh"

template <bool TENSOR, class T>
static __global__ void __launch_bounds__(THREADS) regain_kernel(delta<T> v)
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
    EACH_CELL(i, j, TILE)
    if (i < x.n)
        v.s[(at.cell + i * v.n.a) * CHUNK + j] = m.two[i][j];
    __syncthreads();
    for (int64_t c = 0; c < v.n.f; c += TILE) {
        write_values<TENSOR>(sum, m, v, x, at, c);
        if (!x.fresh)
            sum.add(m.sh, plain((const float *)v.w + at.wide, at.d_step, 1, NULL, NULL, -1.0f), 0,
                    x.n, plain((const float *)at.state, 1, v.n.f), c, v.n.f, v.n.d);
        sum.give(m.one);
        store_values(v.u, m.one, v, x, at, c);
    }
    attend<TENSOR>(m, v, x, at);
    for (int64_t c = 0; c < v.n.f; c += TILE) {
        sum.clear();
        sum.add(m.sh, plain(&m.one[0][0], 1, TILE + PAD), 0, x.n,
                plain(v.dout + at.value, 1, at.step), c, v.n.f, x.n);
        sum.give(m.two);
        store_values(v.du, m.two, v, x, at, c);
    }
}

/* dU = P' dO + (on K) dX'        dX = e^(b_C) dX' + (e^b Q)' dO - W' dU */
template <class T> struct backward {
    enum { BACK = 1 };

    static __device__ __forceinline__ bool begins(const chunk &x) { return x.last; }
    static __device__ __forceinline__ float *array(const delta<T> &v) { return v.du; }
    static __device__ __forceinline__ scaled<T> rows(const gates &g, const delta<T> &v,
                                                     const places<T> &at)
    {
        return plain(v.k + at.key, at.key_step, 1, g.k_on);
    }
    static __device__ __forceinline__ void add(walk_sum &sum, walk &m, const delta<T> &v,
                                               const chunk &x, const places<T> &at, int64_t r,
                                               int64_t col)
    {
        sum.add(m.sh, plain(v.q + at.key, 1, at.key_step, NULL, m.g.q_up), r, v.n.d,
                plain(v.dout + at.value + col, 1, at.step), 0, v.n.f - col, x.n);
        sum.add(m.sh, plain((const float *)v.w + at.wide, 1, at.d_step, NULL, NULL, -1.0f), r,
                v.n.d, plain(&m.u[0][0], 1, COLUMNS + PAD), 0, COLUMNS, x.n);
    }
};

/* --- a chunk ------------------------------------------------------------------------------------
 */

/* Sums over the features of each token. */
struct dots {
    float yv[CHUNK], qx[CHUNK], kx[CHUNK], r[CHUNK], w[CHUNK];
};

/* Shared memory of chunk_kernel(). */
struct full {
    shared m; /* one: what is made; two: S, K K', N */
    square f, h;
    dots d;
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
static __device__ __forceinline__ void make_y(shared &m, const delta<T> &v, const chunk &x,
                                              const places<T> &at, int64_t c)
{
    tile_sum<false, TILE> sum;

    if (MADE) {
        EACH_CELL(i, j, TILE)
        m.one[i][j] = i < x.n && c + j < v.n.f ? v.du[at.value + i * at.step + c + j] : 0.0f;
        __syncthreads();
        return;
    }
    sum.clear();
    sum.add(m.sh, plain(&m.two[0][0], 1, TILE + PAD), 0, x.n,
            plain((const float *)v.du + at.value, 1, at.step), c, v.n.f, x.n);
    sum.give(m.one);
    store_values(v.du, m.one, v, x, at, c);
}

/* Y, and dV. */
template <bool MADE, class T>
static __device__ void make_dv(full &w, const delta<T> &v, const chunk &x, const places<T> &at)
{
    shared &m = w.m;

    EACH_CELL(i, j, TILE)
    m.two[i][j] = !MADE && i < x.n ? v.s[(at.cell + i * v.n.a) * CHUNK + j] : 0.0f;
    __syncthreads();
    for (int64_t c = 0; c < v.n.f; c += TILE) {
        make_y<MADE>(m, v, x, at, c);
        add_dots(w.d.yv, m.one, v.v + at.value + c, at.step, NULL, x.n, v.n.f - c);
        EACH_CELL(i, j, TILE)
        m.one[i][j] *= m.g.beta[i];
        __syncthreads();
        store_values(v.dv, m.one, v, x, at, c);
    }
}

/* What pairs of tokens have for b: from dO U' and Y U' in f and h, and Q K' and K K' in one and
 * two. One number is in both places, so that it leaves nothing where both are added. */
static __device__ void add_pairs(full &w, const gates &g)
{
    square &e = w.m.one;
    double sum = 0.0;

    EACH_CELL(i, j, TILE)
    e[i][j] = j < i ? fade(g, i, j) * (w.f[i][j] * e[i][j] - w.h[i][j] * w.m.two[i][j] * g.beta[i])
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
static __device__ void make_squares(full &w, const delta<T> &v, const chunk &x, const places<T> &at)
{
    const scaled<float> u = plain((const float *)v.u + at.value, at.step, 1);
    const scaled<T> k = plain(v.k + at.key, at.key_step, 1, w.m.g.k);
    tile_sum<TENSOR, TILE> sum;

    sum.clear();
    sum.add(w.m.sh, plain(v.dout + at.value, at.step, 1), 0, x.n, u, 0, x.n, v.n.f);
    sum.give(w.f);
    sum.clear();
    sum.add(w.m.sh, plain((const float *)v.du + at.value, at.step, 1), 0, x.n, u, 0, x.n, v.n.f);
    sum.give(w.h);
    sum.clear();
    sum.add(w.m.sh, plain(v.q + at.key, at.key_step, 1, w.m.g.q), 0, x.n, k, 0, x.n, v.n.d);
    sum.give(w.m.one);
    sum.clear();
    sum.add(w.m.sh, k, 0, x.n, k, 0, x.n, v.n.d);
    sum.give(w.m.two);
    add_pairs(w, w.m.g);
    EACH_CELL(i, j, TILE)
    {
        const float g = j <= i ? fade(w.m.g, i, j) : 0.0f;

        w.f[i][j] *= g;
        w.h[i][j] *= j < i ? -g : 0.0f;
    }
    __syncthreads();
}

/* A tile of gradients by heads of values. */
template <class T>
static __device__ __forceinline__ void store_keys(float *y, const square &t, const delta<T> &v,
                                                  const chunk &x, const places<T> &at, int64_t c)
{
    EACH_CELL(i, j, TILE)
    if (i < x.n && c + j < v.n.d)
        y[at.wide + i * at.d_step + c + j] = t[i][j];
    __syncthreads();
}

/* dQ = e^b dO X' + F K, columns from c on. */
template <bool TENSOR, class T>
static __device__ void make_dq(full &w, const delta<T> &v, const chunk &x, const places<T> &at,
                               int64_t c)
{
    shared &m = w.m;
    tile_sum<TENSOR, TILE> sum;

    sum.clear();
    if (!x.fresh) {
        sum.add(m.sh, plain(v.dout + at.value, at.step, 1, m.g.up), 0, x.n,
                plain((const float *)at.state, v.n.f, 1), c, v.n.d, v.n.f);
        sum.give(m.one);
        add_dots(w.d.qx, m.one, v.q + at.key + c, at.key_step, m.g.q, x.n, v.n.d - c);
    }
    sum.add(m.sh, plain(&w.f[0][0], TILE + PAD, 1), 0, x.n,
            plain(v.k + at.key, 1, at.key_step, NULL, m.g.k), c, v.n.d, x.n);
    sum.give(m.one);
    store_keys(v.hq, m.one, v, x, at, c);
}

/* N = H K - e^b Y X' to m.two, then dK. */
template <bool TENSOR, class T>
static __device__ void make_dk(full &w, const delta<T> &v, const chunk &x, const places<T> &at,
                               int64_t c)
{
    shared &m = w.m;
    const T *k = v.k + at.key;
    tile_sum<TENSOR, TILE> sum;

    sum.clear();
    if (!x.fresh) {
        sum.add(m.sh, plain((const float *)v.du + at.value, at.step, 1, m.g.up, NULL, -1.0f), 0,
                x.n, plain((const float *)at.state, v.n.f, 1), c, v.n.d, v.n.f);
        sum.give(m.two);
        add_dots(w.d.kx, m.two, k + c, at.key_step, m.g.k, x.n, v.n.d - c);
    }
    sum.add(m.sh, plain(&w.h[0][0], TILE + PAD, 1), 0, x.n, plain(k, 1, at.key_step, NULL, m.g.k),
            c, v.n.d, x.n);
    sum.give(m.two);
    add_dots(w.d.r, m.two, k + c, at.key_step, m.g.k, x.n, v.n.d - c);
    sum.clear();
    if (!x.last) {
        sum.add(m.sh, plain((const float *)v.u + at.value, at.step, 1, m.g.on), 0, x.n,
                plain((const float *)at.dstate, v.n.f, 1), c, v.n.d, v.n.f);
        sum.give(m.one);
        add_dots(w.d.w, m.one, k + c, at.key_step, m.g.k, x.n, v.n.d - c);
    }
    sum.add(m.sh, plain(&w.f[0][0], 1, TILE + PAD), 0, x.n,
            plain(v.q + at.key, 1, at.key_step, NULL, m.g.q), c, v.n.d, x.n);
    sum.add(m.sh, plain(&w.h[0][0], 1, TILE + PAD, NULL, m.g.beta), 0, x.n,
            plain(k, 1, at.key_step, NULL, m.g.k), c, v.n.d, x.n);
    sum.give(m.one);
    EACH_CELL(i, j, TILE)
    m.one[i][j] += m.g.beta[i] * m.two[i][j];
    __syncthreads();
    store_keys(v.hk, m.one, v, x, at, c);
}

/* dg and db: the sum over a token and those behind it. */
template <class T>
static __device__ void make_gates(full &w, const delta<T> &v, const chunk &x, const places<T> &at)
{
    const int i = threadIdx.x;
    const gates &g = w.m.g;
    const dots &d = w.d;
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
    v.dg[at.cell + i * v.n.a] = (float)w.b[i];
    put(v.db + at.cell + i * v.n.a, (d.yv[i] + d.r[i]) * (g.beta[i] * (1.0f - g.beta[i])));
}

template <bool TENSOR, class T>
static __global__ void __launch_bounds__(THREADS, 2) chunk_kernel(delta<T> v)
{
    extern __shared__ __align__(128) unsigned char raw[];
    full &w = *(full *)raw;
    const chunk x = chunk_mine(v);

    if (x.n == 0)
        return;
    const places<T> at(v, x);
    for (int e = threadIdx.x; e < (int)(sizeof(dots) / sizeof(float)); e += THREADS)
        ((float *)&w.d)[e] = 0.0f;
    open_gates(w.m.g, v, x);
    make_dv<TENSOR>(w, v, x, at);
    make_squares<TENSOR>(w, v, x, at);
    for (int64_t c = 0; c < v.n.d; c += TILE) {
        make_dq<TENSOR>(w, v, x, at, c);
        make_dk<TENSOR>(w, v, x, at, c);
    }
    make_gates(w, v, x, at);
}

/* --- heads --------------------------------------------------------------------------------------
 */

/* The sum of what the heads of values have for a row of keys, through its length: a warp a row. */
template <class T>
static __device__ __forceinline__ void give_row(T *dx, const T *x, const float *part, int64_t r,
                                                const d9d_delta_dims &n, float inv, float scale)
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

template <class T> static __global__ void heads_kernel(delta<T> v, int64_t rows)
{
    const int64_t r = row_mine<WARP>();

    if (r >= rows)
        return;
    give_row(v.dq, v.q, v.hq, r, v.n, v.inv_q[r], v.n.scale);
    give_row(v.dk, v.k, v.hk, r, v.n, v.inv_k[r], 1.0f);
}

/* --- calls --------------------------------------------------------------------------------------
 */

/* What is done of chunks and heads at the end; MADE: on tensor cores, from Y. */
template <bool MADE, class T>
static d9d_status launch_chunks(const char *op, cudaStream_t queue, const delta<T> &v)
{
    const int64_t rows = v.n.of.b * v.n.of.s * v.n.k;
    const unsigned all = (unsigned)(chunks_most(v.n.of) * v.n.a);

    D9D_TRY(d9di_allow_shared(op, (const void *)chunk_kernel<MADE, T>, sizeof(full)));
    chunk_kernel<MADE><<<all, THREADS, sizeof(full), queue>>>(v);
    heads_kernel<<<blocks_of_rows(rows, WARP), THREADS, 0, queue>>>(v, rows);
    return d9di_launched(op);
}

template <class T> static d9d_status launch(d9d_stream s, const delta<T> &v)
{
    const unsigned all = (unsigned)(chunks_most(v.n.of) * v.n.a);
    const char *op = "delta_din";
    cudaStream_t queue = d9di_queue(s);

    D9D_TRY(d9di_allow_shared(op, (const void *)regain_kernel<false, T>, sizeof(shared)));
    find_lengths(queue, v);
    regain_kernel<false><<<all, THREADS, sizeof(shared), queue>>>(v);
    D9D_TRY(plain_walk<backward<T>>(op, queue, v));
    return launch_chunks<false>(op, queue, v);
}

static d9d_status launch_prepared(d9d_stream s, const delta<bf16> &v)
{
    const char *op = "delta_din";
    cudaStream_t queue = d9di_queue(s);

    find_lengths(queue, v);
    D9D_TRY(d9di_delta_prepare(s, op, v));
    D9D_TRY(d9di_delta_regain(s, op, v));
    D9D_TRY(d9di_delta_back(s, op, v));
    return launch_chunks<true>(op, queue, v);
}

/* Scratch, the last of which is for one way or the other. */
template <class T> static d9d_status run(d9d_stream s, delta<T> v, bool made)
{
    const int64_t tokens = v.n.of.b * v.n.of.s, cells = tokens * v.n.a;
    const int64_t states = d9d_delta_slots(&v.n.of) * v.n.a * v.n.d * v.n.f;
    const int64_t plain = piece(cells * v.n.d) + piece(cells * CHUNK);
    const int64_t bytes =
        4 * (2 * piece(tokens * v.n.k) + 2 * piece(cells * v.n.d) + 2 * piece(cells * v.n.f) +
             piece(states) + (made ? prepared_floats(v.n) : plain));
    void *room;
    d9d_status st;

    D9D_TRY(d9di_take(s, bytes, &room));
    pieces p = {(float *)room};
    v.inv_q = p.take(tokens * v.n.k);
    v.inv_k = p.take(tokens * v.n.k);
    v.hq = p.take(cells * v.n.d);
    v.hk = p.take(cells * v.n.d);
    v.u = p.take(cells * v.n.f);
    v.du = p.take(cells * v.n.f);
    v.dstate = p.take(states);
    v.w = p.take(cells * v.n.d);
    v.s = v.w + piece(cells * v.n.d);
    v.ready = (prepared *)v.w;
    if constexpr (std::is_same_v<T, bf16>)
        st = made ? launch_prepared(s, v) : launch(s, v);
    else
        st = launch(s, v);
    d9di_give(s, room, bytes);
    return st;
}

d9d_status d9d_k_delta_din(d9d_stream s, const d9d_delta_dims *n, void *dq, void *dk, void *dv,
                           float *dg, void *db, const void *dout, const void *q, const void *k,
                           const void *v, const float *g, const void *b, const float *states)
{
    const void *const arrays[] = {dout, q, k, v};
    bool none = false;

    D9D_TRY(delta_check("delta_din", n, &none));
    if (none)
        return D9D_OK;
    return D9DI_TYPED(n->t, T, [&] {
        delta<T> c = {};

        c.n = *n, c.q = (const T *)q, c.k = (const T *)k, c.v = (const T *)v, c.b = (const T *)b;
        c.g = g, c.dout = (const T *)dout, c.state = (float *)states;
        c.dq = (T *)dq, c.dk = (T *)dk, c.dv = (T *)dv, c.db = (T *)db, c.dg = dg;
        return run(s, c, d9di_delta_takes(n, arrays, 4));
    }());
}
