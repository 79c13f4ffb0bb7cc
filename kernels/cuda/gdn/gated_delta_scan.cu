/* gated_delta_scan.cu - the gated delta rule in bfloat16: states, and their gradients, through
 * documents; see gated_delta.cuh.
 *
 * prepare_kernel() makes what chunks have without the state, a block each.  A block of
 * walk_kernel() then takes some columns of a head's state through a document.  A warp has sixteen,
 * and needs none of the others: what it holds in registers is X', and of a chunk what is made for
 * its columns, turned as well; all else comes through shared memory, the next chunk's while this
 * one is worked on.  Sums of products are rounded to no less than sixteen bits where they go into
 * the next product (mma.cuh), which K, Q, V and dO are as they are.
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
    MOST_COLS = WARPS * COLS,
    SLACK = 8, /* elements between rows, so that eight of them are in banks of their own */
    SQUARE = CHUNK + SLACK,
    PIECES = CHUNK / 8 /* of C along the tokens of a chunk */
};

typedef float tokens_of[PIECES][4]; /* of sixteen columns, by the tokens of a chunk */

/* --- chunks without the state ------------------------------------------------------------------
 */

/* As bfloat16, and, where `rest` is not NULL, what that leaves. */
static __device__ __forceinline__ void store_square(bf16 (*to)[CHUNK], bf16 (*rest)[CHUNK],
                                                    const square &x)
{
    for (int e = threadIdx.x; e < CHUNK * CHUNK / 8; e += THREADS) {
        const int i = e / (CHUNK / 8), j = e % (CHUNK / 8) * 8;
        float v[8];

#pragma unroll
        for (int u = 0; u < 8; u++)
            v[u] = x[i][j + u];
        store8(&to[i][j], v, 8);
        if (rest == NULL)
            continue;
#pragma unroll
        for (int u = 0; u < 8; u++)
            v[u] -= to_float(__float2bfloat16_rn(v[u]));
        store8(&rest[i][j], v, 8);
    }
}

static __device__ __forceinline__ void store_factors(factors &f, const gates &g)
{
    const int i = threadIdx.x;

    if (i < CHUNK) {
        f.write[i] = g.write[i];
        f.write_up[i] = g.write_up[i];
        f.k_on[i] = g.k_on[i];
        f.q_up[i] = g.q_up[i];
    }
    if (i == 0)
        f.last = g.last;
}

static __global__ void __launch_bounds__(THREADS) prepare_kernel(delta<bf16> v)
{
    extern __shared__ __align__(128) unsigned char raw[];
    shared &m = *(shared *)raw;
    const chunk x = chunk_mine(v);
    prepared &to = v.ready[blockIdx.x];

    if (x.n == 0)
        return;
    const places<bf16> at(v, x);
    open_gates(m.g, v, x);
    store_factors(to.f, m.g);
    solve<true>(m, v, x, at);
    store_square(to.s[0], to.s[1], m.two);
    attend<true>(m, v, x, at);
    store_square(to.p, NULL, m.one);
}

/* --- what a block has of a chunk ----------------------------------------------------------------
 */

template <int D> struct staged {
    bf16 k[CHUNK][D + SLACK], q[CHUNK][D + SLACK];
    bf16 v[CHUNK][MOST_COLS + SLACK]; /* or dO */
    bf16 s[2][CHUNK][SQUARE], p[CHUNK][SQUARE];
    factors f;
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

        copy16(&to[i][j], there ? from + i * step + j : from, there);
    }
}

template <int D>
static __device__ __forceinline__ void fetch(staged<D> &m, const delta<bf16> &v, const bf16 *values,
                                             const chunk &x, const prepared &r, int64_t col)
{
    const places<bf16> at(v, x);
    const int wide = blockDim.x / WARP * COLS;

    copy_rows(m.k, v.k + at.key, at.key_step, x.n, D, v.n.d);
    copy_rows(m.q, v.q + at.key, at.key_step, x.n, D, v.n.d);
    copy_rows(m.v, values + at.value + col, at.step, x.n, wide, v.n.f - col);
    copy_rows(m.s[0], r.s[0][0], CHUNK, CHUNK, CHUNK, CHUNK);
    copy_rows(m.s[1], r.s[1][0], CHUNK, CHUNK, CHUNK, CHUNK);
    copy_rows(m.p, r.p[0], CHUNK, CHUNK, CHUNK, CHUNK);
    for (int e = threadIdx.x; e < (int)sizeof(factors) / 16; e += blockDim.x)
        copy16((char *)&m.f + e * 16, (const char *)&r.f + e * 16, true);
}

/* --- what a warp does ---------------------------------------------------------------------------
 */

/* A lane's place: of its elements in C the first, as a column of the warp's and a token or a
 * feature of a key; and the warp's first column, among those of the block and of all. */
struct spot {
    int g, t, mine;
    int64_t f;
};

/* Element e of piece i of tokens_of, or of a state: how far along, and its column. */
static __device__ __forceinline__ int along(const spot &s, int i, int e)
{
    return i * 8 + s.t + e % 2;
}
static __device__ __forceinline__ int64_t column(const spot &s, int e)
{
    return s.f + s.g + e / 2 * 8;
}

/* The state to memory [D, F], or from there. */
template <int D, bool STORE>
static __device__ __forceinline__ void move_state(float (&x)[D / 8][4], float *p,
                                                  const delta<bf16> &v, const spot &s)
{
#pragma unroll
    for (int i = 0; i < D / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int64_t d = along(s, i, e), f = column(s, e);
            float *at = p + d * v.n.f + f;

            if (d >= v.n.d || f >= v.n.f)
                continue;
            if (STORE)
                *at = x[i][e];
            else
                x[i][e] = *at;
        }
}

static __device__ __forceinline__ void store_tokens(float *y, const tokens_of &x,
                                                    const delta<bf16> &v, const chunk &c,
                                                    const spot &s)
{
#pragma unroll
    for (int i = 0; i < PIECES; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (along(s, i, e) < c.n && column(s, e) < v.n.f)
                y[((c.first + along(s, i, e)) * v.n.a + c.h) * v.n.f + column(s, e)] = x[i][e];
}

/* O through the place of the warp's values, which have been read, for rows of 32 bytes. */
static __device__ __forceinline__ void store_output(bf16 (*room)[MOST_COLS + SLACK],
                                                    const tokens_of &x, const delta<bf16> &v,
                                                    const chunk &c, const spot &s)
{
    const int lane = threadIdx.x % WARP, half = lane % 2 * 8;

#pragma unroll
    for (int i = 0; i < PIECES; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            put(&room[along(s, i, e)][s.mine + s.g + e / 2 * 8], x[i][e]);
    __syncwarp();
    for (int i = lane / 2; i < c.n; i += WARP / 2)
        if (s.f + half < v.n.f)
            *(uint4 *)(v.o + ((c.first + i) * v.n.a + c.h) * v.n.f + s.f + half) =
                *(const uint4 *)&room[i][s.mine + half];
}

/* y = rows of K or Q times X, for one or both. */
template <int D, bool BOTH>
static __device__ __forceinline__ void read_state(tokens_of &k, tokens_of &q,
                                                  const float (&x)[D / 8][4], const staged<D> &m)
{
#pragma unroll
    for (int j = 0; j < D / 16; j++) {
        const twin a = split(x[2 * j], x[2 * j + 1]);

#pragma unroll
        for (int i = 0; i < PIECES; i += 2) {
            add_product<false, D + SLACK>(k[i], k[i + 1], a, &m.k[i * 8][j * 16]);
            if (BOTH)
                add_product<false, D + SLACK>(q[i], q[i + 1], a, &m.q[i * 8][j * 16]);
        }
    }
}

/* x += K' or Q' times what tokens write: `a` of sixteen of them. */
template <int D>
static __device__ __forceinline__ void write_state(float (&x)[D / 8][4], const twin &a,
                                                   const bf16 (*rows)[D + SLACK])
{
#pragma unroll
    for (int i = 0; i < D / 8; i += 2)
        add_product<true, D + SLACK>(x[i], x[i + 1], a, &rows[0][i * 8]);
}

/* y = T x or, TURNED, T' x, for a lower half T in two parts. */
template <bool TURNED>
static __device__ __forceinline__ void times_inverse(tokens_of &y, const tokens_of &x,
                                                     const bf16 (*t)[CHUNK][SQUARE])
{
#pragma unroll
    for (int j = 0; j < PIECES; j += 2) {
        const twin a = split(x[j], x[j + 1]);

#pragma unroll
        for (int i = 0; i < PIECES; i += 2) {
            if (TURNED ? i > j : i < j)
                continue;
            add_product<TURNED, SQUARE>(y[i], y[i + 1], a,
                                        TURNED ? &t[0][j * 8][i * 8] : &t[0][i * 8][j * 8]);
            add_product<TURNED, SQUARE>(y[i], y[i + 1], a.hi,
                                        TURNED ? &t[1][j * 8][i * 8] : &t[1][i * 8][j * 8]);
        }
    }
}

/* Pieces j and j + 1 of tokens, times a number each. */
static __device__ __forceinline__ twin split_scaled(const tokens_of &x, int j, const float *by,
                                                    const spot &s, float sign)
{
    float a[4], b[4];

#pragma unroll
    for (int e = 0; e < 4; e++) {
        a[e] = sign * by[along(s, j, e)] * x[j][e];
        b[e] = sign * by[along(s, j + 1, e)] * x[j + 1][e];
    }
    return split(a, b);
}

/* The two numbers of a register of an A or of two C. */
static __device__ __forceinline__ void two_of(float (&x)[2], uint32_t v)
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

/* --- the two ways -------------------------------------------------------------------------------
 */

/* R in place of K X. */
template <int D>
static __device__ __forceinline__ void make_r(tokens_of &x, const staged<D> &m, const spot &s)
{
#pragma unroll
    for (int j = 0; j < PIECES; j += 2) {
        uint32_t value[4];

        load_a_turned<MOST_COLS + SLACK>(value, &m.v[j * 8][s.mine]);
#pragma unroll
        for (int r = 0; r < 4; r++) {
            float two[2];

            two_of(two, value[r]);
#pragma unroll
            for (int u = 0; u < 2; u++) {
                const int i = j + r / 2, e = r % 2 * 2 + u, t = along(s, i, e);

                x[i][e] = fmaf(-m.f.write_up[t], x[i][e], m.f.write[t] * two[u]);
            }
        }
    }
}

/* O, from Q X. */
template <int D>
static __device__ __forceinline__ void make_output(tokens_of &o, const tokens_of &u,
                                                   const staged<D> &m, const spot &s)
{
#pragma unroll
    for (int i = 0; i < PIECES; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            o[i][e] *= m.f.q_up[along(s, i, e)];
#pragma unroll
    for (int j = 0; j < PIECES; j += 2) {
        const twin a = split(u[j], u[j + 1]);

#pragma unroll
        for (int i = j; i < PIECES; i += 2)
            add_product<false, SQUARE>(o[i], o[i + 1], a, &m.p[i * 8][j * 8]);
    }
}

/* A document from its first chunk on, or, ALONE, one chunk, of which U is wanted. */
template <bool ALONE> struct onward {
    enum { BACK = 0, SINGLE = ALONE };

    static __device__ __forceinline__ const bf16 *values(const delta<bf16> &v) { return v.v; }

    template <int D>
    static __device__ __forceinline__ void work(float (&x)[D / 8][4], staged<D> &m,
                                                const delta<bf16> &v, const chunk &c,
                                                const places<bf16> &at, const spot &s)
    {
        tokens_of r = {}, o = {}, u = {};

        if (!ALONE && at.state != NULL)
            move_state<D, true>(x, at.state, v, s);
        read_state<D, !ALONE>(r, o, x, m);
        make_r(r, m, s);
        times_inverse<false>(u, r, m.s);
        if (ALONE) {
            store_tokens(v.u, u, v, c, s);
            return;
        }
        make_output(o, u, m, s);
        store_output(m.v, o, v, c, s);
        if (c.last && v.past.cell == NULL)
            return;
        scale_state<D>(x, m.f.last);
#pragma unroll
        for (int j = 0; j < PIECES; j += 2)
            write_state<D>(x, split_scaled(u, j, m.f.k_on, s, 1.0f), &m.k[j * 8]);
    }
};

/* A document from its last chunk on. */
struct backward {
    enum { BACK = 1, SINGLE = 0 };

    static __device__ __forceinline__ const bf16 *values(const delta<bf16> &v) { return v.dout; }

    /* dU in place of K dX. */
    template <int D>
    static __device__ __forceinline__ void make_du(tokens_of &x, const staged<D> &m, const spot &s)
    {
#pragma unroll
        for (int i = 0; i < PIECES; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                x[i][e] *= m.f.k_on[along(s, i, e)];
#pragma unroll
        for (int j = 0; j < PIECES; j += 2) {
            uint32_t a[4];

            load_a_turned<MOST_COLS + SLACK>(a, &m.v[j * 8][s.mine]);
#pragma unroll
            for (int i = 0; i <= j; i += 2)
                add_product<true, SQUARE>(x[i], x[i + 1], a, &m.p[j * 8][i * 8]);
        }
    }

    template <int D>
    static __device__ __forceinline__ void work(float (&x)[D / 8][4], staged<D> &m,
                                                const delta<bf16> &v, const chunk &c,
                                                const places<bf16> &at, const spot &s)
    {
        tokens_of u = {}, y = {}, none;

        if (at.dstate != NULL)
            move_state<D, true>(x, at.dstate, v, s);
        read_state<D, false>(u, none, x, m);
        make_du(u, m, s);
        times_inverse<true>(y, u, m.s);
        store_tokens(v.du, y, v, c, s);
        if (c.fresh)
            return;
        scale_state<D>(x, m.f.last);
#pragma unroll
        for (int j = 0; j < PIECES; j += 2) {
            uint32_t value[4];
            twin a;

            load_a_turned<MOST_COLS + SLACK>(value, &m.v[j * 8][s.mine]);
#pragma unroll
            for (int r = 0; r < 4; r++) {
                float two[2];

                two_of(two, value[r]);
                split_two(a, r, m.f.q_up[along(s, j + r / 2, 0)] * two[0],
                          m.f.q_up[along(s, j + r / 2, 1)] * two[1]);
            }
            write_state<D>(x, a, &m.q[j * 8]);
            write_state<D>(x, split_scaled(y, j, m.f.write_up, s, -1.0f), &m.k[j * 8]);
        }
    }
};

/* --- the walk -----------------------------------------------------------------------------------
 */

/* The chunks of a block, of a head of a document: `count` from c on; `number` is that of the
 * document's first. */
struct route {
    document d;
    int64_t h, c, count, number;
    float *past; /* NULL: the state begins as 0 and ends for nothing */
    bool fresh;
};

template <class WAY> static __device__ route route_of(const delta<bf16> &v, int64_t block)
{
    const int64_t h = block % v.n.a, i = block / v.n.a;
    route r = {};

    r.h = h;
    if (WAY::SINGLE) {
        const numbered x = chunk_numbered(v, i);

        r.d = x.d, r.c = x.c, r.number = i - x.c;
        r.count = x.c * CHUNK < x.d.n ? 1 : 0;
        return r;
    }
    r.d = document_of(v.n.of, i);
    r.count = d9di_ceil_div(r.d.n, CHUNK);
    r.c = WAY::BACK ? r.count - 1 : 0;
    r.number = r.d.first / CHUNK + i;
    if (v.past.cell != NULL) {
        r.past = (float *)v.past.cell + (v.past.at[i] * v.n.a + h) * v.n.d * v.n.f;
        r.fresh = v.n.of.segment[i].nk <= v.n.of.segment[i].nq;
    }
    return r;
}

template <class WAY, int D>
static __global__ void __launch_bounds__(THREADS, 1) walk_kernel(delta<bf16> v)
{
    extern __shared__ __align__(128) unsigned char raw[];
    staged<D> *stage = (staged<D> *)raw;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int64_t wide = blockDim.x / WARP * COLS, across = d9di_ceil_div(v.n.f, wide);
    const int64_t col = blockIdx.x % across * wide;
    const route r = route_of<WAY>(v, blockIdx.x / across);
    const spot s = {lane / 4, lane % 4 * 2, warp * COLS, col + warp * COLS};
    float x[D / 8][4] = {};

    if (r.count == 0)
        return;
    if (r.past != NULL && !r.fresh)
        move_state<D, false>(x, r.past, v, s);
    for (int64_t n = -1; n < r.count; n++) {
        const int64_t next = WAY::BACK ? r.c - n - 1 : r.c + n + 1;

        wait_for_copies();
        __syncthreads();
        if (n + 1 < r.count)
            fetch(stage[(n + 1) % 2], v, WAY::values(v), chunk_of(v, r.d, next, r.h),
                  v.ready[(r.number + next) * v.n.a + r.h], col);
        if (n < 0)
            continue;

        const chunk c = chunk_of(v, r.d, WAY::BACK ? next + 1 : next - 1, r.h);
        const places<bf16> at(v, c);

        if (WAY::SINGLE && at.state != NULL)
            move_state<D, false>(x, at.state, v, s);
        WAY::template work<D>(x, stage[n % 2], v, c, at, s);
    }
    if (r.past != NULL)
        move_state<D, true>(x, r.past, v, s);
}

/* --- calls --------------------------------------------------------------------------------------
 */

bool d9di_delta_takes(const d9d_delta_dims *n, const void *const *arrays, int count)
{
    bool takes = n->t == D9D_BF16 && n->d <= MOST_KEYS && n->d % 8 == 0 && n->f % 8 == 0;

    for (int i = 0; i < count; i++)
        takes = takes && ((uintptr_t)arrays[i] & 15) == 0;
    return takes;
}

d9d_status d9di_delta_prepare(d9d_stream s, const char *op, const delta<bf16> &v)
{
    const unsigned all = (unsigned)(chunks_most(v.n.of) * v.n.a);

    D9D_TRY(d9di_allow_shared(op, (const void *)prepare_kernel, sizeof(shared)));
    prepare_kernel<<<all, THREADS, sizeof(shared), d9di_queue(s)>>>(v);
    return d9di_launched(op);
}

/* `each`: documents or chunks.  Fewer columns a block where there are not blocks enough. */
template <class WAY, int D>
static d9d_status launch(d9d_stream s, const char *op, const delta<bf16> &v, int64_t each)
{
    const int64_t heads = each * v.n.a, bytes = 2 * (int64_t)sizeof(staged<D>);
    int warps = (int)d9di_min(WARPS, d9di_ceil_div(v.n.f, COLS));

    while (warps > 2 && heads * d9di_ceil_div(v.n.f, warps * COLS) * 3 < (int64_t)s->sms * 2)
        warps = (warps + 1) / 2;
    D9D_TRY(d9di_allow_shared(op, (const void *)walk_kernel<WAY, D>, bytes));
    walk_kernel<WAY, D><<<(unsigned)(heads * d9di_ceil_div(v.n.f, warps * COLS)), warps * WARP,
                          (size_t)bytes, d9di_queue(s)>>>(v);
    return d9di_launched(op);
}

template <class WAY>
static d9d_status walk_all(d9d_stream s, const char *op, const delta<bf16> &v, int64_t each)
{
    return v.n.d <= 64 ? launch<WAY, 64>(s, op, v, each) : launch<WAY, MOST_KEYS>(s, op, v, each);
}

d9d_status d9di_delta_onward(d9d_stream s, const char *op, const delta<bf16> &v)
{
    return walk_all<onward<false>>(s, op, v, documents_in(v.n.of));
}
d9d_status d9di_delta_regain(d9d_stream s, const char *op, const delta<bf16> &v)
{
    return walk_all<onward<true>>(s, op, v, chunks_most(v.n.of));
}
d9d_status d9di_delta_back(d9d_stream s, const char *op, const delta<bf16> &v)
{
    return walk_all<backward>(s, op, v, documents_in(v.n.of));
}
