/* gated_delta.cuh - chunks of the gated delta rule, for its forward and its backward.
 *
 * The formulas are in kernels/cpu/gated_delta.h and gated_delta_bwd.c there.  What they say of one
 * chunk without the state is done by a block a chunk and head, all at once; what the state has to
 * go through, by a block a document, head and some features of a value, chunk after chunk.  With
 * the inverse of 1 + A the two come apart:
 *
 *     S = (1 + A)^-1        U = S (beta V - beta e^b K X)
 *
 * In bfloat16, with keys of up to MAX_KEY_SIZE features, gated_delta_prepare.cu makes S and P of
 * every chunk.  On Hopper the walk is gated_delta_scan_sm90.cu's, and what the backward makes of
 * chunks then gated_delta_bwd_sm90.cu's; elsewhere, and for values of more than MAX_KEY_SIZE
 * features, the walk is gated_delta_scan.cu's.  In float32 it is the plain one below, which needs W
 * = S (beta e^b K) and S (beta V).
 *
 * Chunks have numbers without anybody having to count them: chunk c of document i, whose first
 * token is q, is number q / CHUNK + i + c.  Some numbers have none.
 */
#ifndef D9DI_CUDA_GDN_GATED_DELTA_CUH
#define D9DI_CUDA_GDN_GATED_DELTA_CUH

#include "cuda/common/block_mma.cuh"
#include "cuda/common/varlen.cuh"

enum { CHUNK = D9D_GATED_DELTA_CHUNK, COLUMNS = 32, BLOCK = 16, MAX_KEY_SIZE = 128 };
static_assert((int)CHUNK == (int)TILE, "a chunk is a tile");

typedef float square[CHUNK][TILE + PAD];

/* What the rows of a chunk are multiplied with; zeros beyond its last token. */
struct chunk_factors {
    /* of the walk */
    float write[CHUNK], write_up[CHUNK]; /* beta; beta e^b over the length of k */
    float k_on[CHUNK], q_up[CHUNK];      /* e^(b_C - b) over the length of k; e^b, of q */
    float last, padding[3];              /* e^(b_C) */
    /* of the backward besides */
    float up_k[CHUNK], q[CHUNK], k[CHUNK]; /* e^b over the length of k; of q; of k */
    float inv_q[CHUNK];                    /* 1 over the length of q */
    double b[CHUNK];                       /* sums of g */
};
/* A chunk of a head without the state: T = S', as what it is rounded to and the rest, and P.  Rows
 * of 128 bytes, whose sixteens are swizzled, as products of a warp group want them. */
struct prepared_chunk {
    bf16 t[2][CHUNK * CHUNK], p[CHUNK * CHUNK];
    chunk_factors f;
};
/* Elements 8 u on of row i. */
static __device__ __forceinline__ bf16 *unit_of(bf16 *square, int i, int u)
{
    return square + i * CHUNK + (u ^ (i & 7)) * 8;
}

/* A call: arrays by token and head, but for `state` and `dstate`, which are by
 * d9d_gated_delta_dims. */
template <class T> struct gated_delta_call {
    d9d_gated_delta_dims n;
    const T *q, *k, *v, *b, *dout;
    const float *g;
    T *o, *dq, *dk, *dv, *db;
    float *dg, *state;
    /* scratch */
    float *inv_q, *inv_k;  /* [tokens, K]: 1 over the length */
    float *w, *u;          /* [tokens, A, D], [tokens, A, F] */
    float *s, *du;         /* backward: [tokens, A, CHUNK], [tokens, A, F] */
    float *hq, *hk;        /* backward: of each head of values [tokens, A, D] */
    float *dstate;         /* backward: of the state after the chunk before slot's */
    prepared_chunk *ready; /* [chunks, A]; NULL: the plain way */
    d9d_state_slots past;  /* generation: states; slots NULL: none */
};

/* gated_delta_prepare.cu: [chunks, A] in ready, of T so many parts. */
d9d_status d9di_gated_delta_scan_prepare(d9d_stream s, const char *op,
                                         const gated_delta_call<bf16> &v, int parts);

/* gated_delta_scan.cu: U, X and O of all chunks; U alone, from the states; Y and the gradient of
 * the states. */
bool d9di_gated_delta_scan_supported(const d9d_gated_delta_dims *n, const void *const *arrays,
                                     int count);
d9d_status d9di_gated_delta_scan_fwd(d9d_stream s, const char *op, const gated_delta_call<bf16> &v);
d9d_status d9di_gated_delta_scan_recompute(d9d_stream s, const char *op,
                                           const gated_delta_call<bf16> &v);
d9d_status d9di_gated_delta_scan_bwd(d9d_stream s, const char *op, const gated_delta_call<bf16> &v);

/* gated_delta_scan_sm90.cu, on Hopper: U, X and O of all chunks; dV and the gradient of the states,
 * with both kinds of states as gated_delta_sm90.cuh has them.  gated_delta_bwd_sm90.cu: all else of
 * the backward. */
bool d9di_gated_delta_sm90_supported(d9d_stream s, const d9d_gated_delta_dims *n);
enum { WGMMA_PARTS = 1 }; /* of T, that these use */
/* Elements of a state as the backward has it in bfloat16. */
static __host__ __device__ __forceinline__ int64_t saved_size(const d9d_gated_delta_dims &n)
{
    return (n.d + 63) / 64 * 64 * n.f;
}
d9d_status d9di_gated_delta_scan_fwd_sm90(d9d_stream s, const char *op,
                                          const gated_delta_call<bf16> &v);
d9d_status d9di_gated_delta_scan_bwd_sm90(d9d_stream s, const char *op,
                                          const gated_delta_call<bf16> &v);
d9d_status d9di_gated_delta_bwd_sm90(d9d_stream s, const char *op, const gated_delta_call<bf16> &v);

/* A chunk of n tokens; its head of values and of keys. */
struct chunk {
    int64_t first, h, kh;
    int n;            /* 0: none */
    bool fresh, last; /* of its document */
};

template <class T>
static __device__ __forceinline__ chunk chunk_of(const gated_delta_call<T> &v, const document &d,
                                                 int64_t c, int64_t h)
{
    const int64_t left = d.n - c * CHUNK;

    return {d.first + c * CHUNK,
            h,
            h / (v.n.a / v.n.k),
            (int)d9di_i64_max(0, d9di_i64_min(CHUNK, left)),
            c == 0,
            left <= CHUNK};
}

/* A chunk by its number: which one of which document. */
struct chunk_ref {
    document d;
    int64_t c;
};
template <class T>
static __device__ __forceinline__ chunk_ref chunk_find(const gated_delta_call<T> &v, int64_t number)
{
    const int64_t i = last_document(
        v.n.docs, [&](int64_t j, const document &d) { return d.first / CHUNK + j <= number; });
    const document d = document_of(v.n.docs, i);

    return {d, d9di_i64_max(0, number - d.first / CHUNK - i)};
}

/* The chunk of a block of a launch over all chunks and heads. */
template <class T>
static __device__ __forceinline__ chunk chunk_of_block(const gated_delta_call<T> &v)
{
    const chunk_ref x = chunk_find(v, blockIdx.x / v.n.a);

    return chunk_of(v, x.d, x.c, blockIdx.x % v.n.a);
}

static inline int64_t chunks_max(const d9d_varlen &of)
{
    return of.b * of.s / CHUNK + documents_in(of);
}

/* Where things of the chunk begin. */
template <class T> struct chunk_offsets {
    int64_t key, value, gate; /* of its first token, in q k, in v o, in g b */
    int64_t wide;             /* in arrays of keys by heads of values */
    int64_t key_step, step,
        d_step;    /* from token to token, in q k, in v o, in arrays of keys by heads */
    float *state;  /* before it */
    float *dstate; /* of what is after it */

    __device__ __forceinline__ chunk_offsets(const gated_delta_call<T> &v, const chunk &x)
    {
        const int64_t size = v.n.d * v.n.f;

        key = (x.first * v.n.k + x.kh) * v.n.d;
        gate = x.first * v.n.a + x.h;
        value = gate * v.n.f;
        wide = gate * v.n.d;
        key_step = v.n.k * v.n.d;
        step = v.n.a * v.n.f;
        d_step = v.n.a * v.n.d;
        state = x.fresh || v.state == NULL ? NULL
                                           : v.state + ((x.first / CHUNK - 1) * v.n.a + x.h) * size;
        dstate =
            x.last || v.dstate == NULL ? NULL : v.dstate + (x.first / CHUNK * v.n.a + x.h) * size;
    }
};

/* Numbers of the chunk's tokens; zeros beyond its last. */
struct chunk_gates {
    double b[CHUNK]; /* sums of g: their differences are small where they are not */
    float up[CHUNK], on[CHUNK], beta[CHUNK]; /* e^b, e^(b_C - b) */
    float q[CHUNK], k[CHUNK];                /* what q and k are to be multiplied with */
    float q_up[CHUNK], k_on[CHUNK];          /* q up, k on */
    float write[CHUNK], write_up[CHUNK];     /* beta; beta up k */
    float last;                              /* e^(b_C) */
};

static __device__ __forceinline__ float gate_decay(const chunk_gates &g, int i, int j)
{
    return expf((float)(g.b[i] - g.b[j]));
}

template <class T>
static __device__ void gates_load(chunk_gates &g, const gated_delta_call<T> &v, const chunk &x)
{
    const int i = threadIdx.x;
    const bool mine = i < CHUNK, there = i < x.n;
    const int64_t gate = (x.first + i) * v.n.a + x.h, key = (x.first + i) * v.n.k + x.kh;

    if (mine)
        g.b[i] = there ? (double)v.g[gate] : 0.0;
    __syncthreads();
    for (int o = 1; o < CHUNK; o *= 2) {
        const double before = mine && i >= o ? g.b[i - o] : 0.0;

        __syncthreads();
        if (mine)
            g.b[i] += before;
        __syncthreads();
    }
    if (mine) {
        g.up[i] = expf((float)g.b[i]);
        g.on[i] = expf((float)(g.b[CHUNK - 1] - g.b[i]));
        g.beta[i] = there ? sigmoid(to_float(v.b[gate])) : 0.0f;
        g.q[i] = there ? v.inv_q[key] * v.n.scale : 0.0f;
        g.k[i] = there ? v.inv_k[key] : 0.0f;
        g.q_up[i] = g.q[i] * g.up[i];
        g.k_on[i] = g.k[i] * g.on[i];
        g.write[i] = g.beta[i];
        g.write_up[i] = g.beta[i] * g.up[i] * g.k[i];
        if (i == 0)
            g.last = expf((float)g.b[CHUNK - 1]);
    }
    __syncthreads();
}

/* The elements (i, j) of a tile of N columns, shared among the threads. */
#define FOR_EACH_ELEMENT(i, j, N)                                                                  \
    for (int e_ = threadIdx.x, i, j; i = e_ / (N), j = e_ % (N), e_ < CHUNK * (N); e_ += THREADS)

/* s = (1 + a)^-1 of a lower half without its diagonal, in squares of BLOCK: those of the diagonal
 * first, a thread a column, then those below, further and further away. */
static __device__ void invert_unit_lower(square &s, const square &a, float (*scratch)[BLOCK + 1])
{
    const int r = threadIdx.x / BLOCK, c = threadIdx.x % BLOCK;

    FOR_EACH_ELEMENT(i, j, TILE)
    s[i][j] = 0.0f;
    __syncthreads();
    if (threadIdx.x < CHUNK) {
        const int at = r * BLOCK;
        float x[BLOCK];

#pragma unroll
        for (int i = 0; i < BLOCK; i++) {
            x[i] = i == c ? 1.0f : 0.0f;
#pragma unroll
            for (int m = 0; m < i; m++)
                x[i] = fmaf(-a[at + i][at + m], x[m], x[i]);
            s[at + i][at + c] = x[i];
        }
    }
    __syncthreads();
    for (int away = 1; away < CHUNK / BLOCK; away++)
        for (int y = away; y < CHUNK / BLOCK; y++) {
            const int row = y * BLOCK, col = (y - away) * BLOCK;
            float sum = 0.0f;

            for (int m = col; m < row; m++)
                sum = fmaf(a[row + r][m], s[m][col + c], sum);
            scratch[r][c] = sum;
            __syncthreads();
            sum = 0.0f;
            for (int m = 0; m < BLOCK; m++)
                sum = fmaf(-s[row + r][row + m], scratch[m][c], sum);
            s[row + r][col + c] = sum;
            __syncthreads();
        }
}

/* Shared memory of a block that has a chunk. */
struct chunk_smem {
    smem_operands<TILE> sh;
    square one, two;
    chunk_gates g;
    float scratch[BLOCK][BLOCK + 1];
};

/* S of a chunk to m.two. */
template <bool TENSOR, class T>
static __device__ void solve_chunk(chunk_smem &m, const gated_delta_call<T> &v, const chunk &x,
                                   const chunk_offsets<T> &at)
{
    const scaled_matrix<T> k = scaled_matrix_make(v.k + at.key, at.key_step, 1, m.g.k);
    tile_sum<TENSOR, TILE> sum;

    sum.clear();
    sum.add(m.sh, k, 0, x.n, k, 0, x.n, v.n.d);
    sum.store(m.one);
    FOR_EACH_ELEMENT(i, j, TILE)
    m.one[i][j] = j < i ? m.one[i][j] * m.g.beta[i] * gate_decay(m.g, i, j) : 0.0f;
    __syncthreads();
    invert_unit_lower(m.two, m.one, m.scratch);
}

/* W of it to memory where there is a state before it. */
template <bool TENSOR, class T>
static __device__ void store_w(chunk_smem &m, const gated_delta_call<T> &v, const chunk &x,
                               const chunk_offsets<T> &at)
{
    tile_sum<TENSOR, TILE> sum;

    for (int64_t c = 0; c < v.n.d && !x.fresh; c += TILE) {
        sum.clear();
        sum.add(m.sh, scaled_matrix_make(&m.two[0][0], TILE + PAD, 1, NULL, m.g.write_up), 0, x.n,
                scaled_matrix_make(v.k + at.key, 1, at.key_step), c, v.n.d, x.n);
        sum.store(m.one);
        FOR_EACH_ELEMENT(i, j, TILE)
        if (i < x.n && c + j < v.n.d)
            v.w[at.wide + i * at.d_step + c + j] = m.one[i][j];
        __syncthreads();
    }
}

/* sum = S (beta V), columns from c on. */
template <bool TENSOR, class T>
static __device__ __forceinline__ void make_values(tile_sum<TENSOR, TILE> &sum, chunk_smem &m,
                                                   const gated_delta_call<T> &v, const chunk &x,
                                                   const chunk_offsets<T> &at, int64_t c)
{
    sum.clear();
    sum.add(m.sh, scaled_matrix_make(&m.two[0][0], TILE + PAD, 1, NULL, m.g.write), 0, x.n,
            scaled_matrix_make(v.v + at.value, 1, at.step), c, v.n.f, x.n);
}

/* A tile of a chunk to an array of values. */
template <class T, class Y>
static __device__ __forceinline__ void store_values(Y *y, const square &t,
                                                    const gated_delta_call<T> &v, const chunk &x,
                                                    const chunk_offsets<T> &at, int64_t c)
{
    FOR_EACH_ELEMENT(i, j, TILE)
    if (i < x.n && c + j < v.n.f)
        store_float(y + at.value + i * at.step + c + j, t[i][j]);
    __syncthreads();
}

/* P = G Q K', j <= i, to m.one. */
template <bool TENSOR, class T>
static __device__ void make_qk(chunk_smem &m, const gated_delta_call<T> &v, const chunk &x,
                               const chunk_offsets<T> &at)
{
    tile_sum<TENSOR, TILE> sum;

    sum.clear();
    sum.add(m.sh, scaled_matrix_make(v.q + at.key, at.key_step, 1, m.g.q), 0, x.n,
            scaled_matrix_make(v.k + at.key, at.key_step, 1, m.g.k), 0, x.n, v.n.d);
    sum.store(m.one);
    FOR_EACH_ELEMENT(i, j, TILE)
    m.one[i][j] = j <= i ? m.one[i][j] * gate_decay(m.g, i, j) : 0.0f;
    __syncthreads();
}

/* --- the plain walk: a state, or its gradient, through a document --------------------------------
 *
 * A way says in which order, and of each chunk what is added to U, or dU, of what does not know of
 * the state, and how the state goes on from there. */

/* Shared memory of a block that walks; rows of the state come behind. */
struct scan_smem {
    smem_operands<COLUMNS> sh;
    float u[CHUNK][COLUMNS + PAD], out[CHUNK][COLUMNS + PAD];
    chunk_gates g;
};
typedef float state_row[COLUMNS + PAD];
typedef tile_sum<false, COLUMNS> scan_sum;

static inline int64_t scan_smem_bytes(int64_t d)
{
    return (int64_t)sizeof(scan_smem) + d9di_i64_round_up(d, TILE) * (int64_t)sizeof(state_row);
}

template <class T> static int64_t scan_blocks(const gated_delta_call<T> &v)
{
    return documents_in(v.n.docs) * v.n.a * d9di_i64_ceil_div(v.n.f, COLUMNS);
}

/* What the state is before the chunk, on its way, to memory where there is a place. */
template <class T>
static __device__ __forceinline__ void store_state(float *to, const state_row *state,
                                                   const gated_delta_call<T> &v, int64_t col)
{
    for (int64_t e = threadIdx.x; e < v.n.d * COLUMNS && to != NULL; e += THREADS)
        if (col + e % COLUMNS < v.n.f)
            to[e / COLUMNS * v.n.f + col + e % COLUMNS] = state[e / COLUMNS][e % COLUMNS];
}

/* The chunk's columns of `array`, with what the state adds, to m.u and back. */
template <class SCAN, class T>
static __device__ __forceinline__ void add_state_part(scan_smem &m, const state_row *state,
                                                      const gated_delta_call<T> &v, const chunk &x,
                                                      const chunk_offsets<T> &at, int64_t col)
{
    const bool starts_without_state = SCAN::starts_without_state(x);
    scan_sum sum;

    sum.clear();
    if (!starts_without_state)
        sum.add(m.sh, SCAN::rows(m.g, v, at), 0, x.n,
                scaled_matrix_make(&state[0][0], 1, COLUMNS + PAD), 0, COLUMNS, v.n.d);
    sum.store(m.out);
    FOR_EACH_ELEMENT(i, j, COLUMNS)
    {
        float *u = SCAN::array(v) + at.value + i * at.step + col + j;
        const bool there = i < x.n && col + j < v.n.f;

        m.u[i][j] = there ? *u + m.out[i][j] : 0.0f;
        if (there && !starts_without_state)
            *u = m.u[i][j];
    }
    __syncthreads();
}

template <class SCAN, class T>
static __global__ void __launch_bounds__(THREADS) scan_simt_kernel(gated_delta_call<T> v)
{
    extern __shared__ __align__(128) unsigned char raw[];
    scan_smem &m = *(scan_smem *)raw;
    state_row *state = (state_row *)(raw + sizeof(scan_smem));
    const int64_t across = d9di_i64_ceil_div(v.n.f, COLUMNS), col = blockIdx.x % across * COLUMNS;
    const int64_t h = blockIdx.x / across % v.n.a;
    const document d = document_of(v.n.docs, blockIdx.x / across / v.n.a);
    const int64_t chunks = d9di_i64_ceil_div(d.n, CHUNK);
    scan_sum sum;

    for (int64_t e = threadIdx.x; e < d9di_i64_round_up(v.n.d, TILE) * COLUMNS; e += THREADS)
        state[e / COLUMNS][e % COLUMNS] = 0.0f;
    for (int64_t n = 0; n < chunks; n++) {
        const chunk x = chunk_of(v, d, SCAN::BACK ? chunks - 1 - n : n, h);
        const chunk_offsets<T> at(v, x);

        gates_load(m.g, v, x);
        store_state(SCAN::BACK ? at.dstate : at.state, state, v, col);
        add_state_part<SCAN>(m, state, v, x, at, col);
        for (int64_t r = 0; r < v.n.d && n + 1 < chunks; r += TILE) {
            sum.clear();
            SCAN::add(sum, m, v, x, at, r, col);
            sum.store(m.out);
            FOR_EACH_ELEMENT(i, j, COLUMNS)
            state[r + i][j] = m.g.last * state[r + i][j] + m.out[i][j];
            __syncthreads();
        }
    }
}

template <class SCAN, class T>
static d9d_status scan_simt(const char *op, cudaStream_t queue, const gated_delta_call<T> &v)
{
    const int64_t bytes = scan_smem_bytes(v.n.d);

    D9D_TRY(d9di_cuda_set_max_smem(op, (const void *)scan_simt_kernel<SCAN, T>, bytes));
    scan_simt_kernel<SCAN><<<(unsigned)scan_blocks(v), THREADS, (size_t)bytes, queue>>>(v);
    return D9D_OK;
}

/* The 1 over the length of every row of q and k. */
template <class T>
static __global__ void qk_norms_kernel(float *inv_q, float *inv_k, const T *q, const T *k,
                                       int64_t rows, int64_t d)
{
    const int64_t r = group_row<WARP>();
    float sq = 0.0f, sk = 0.0f;

    if (r >= rows)
        return;
    D9DI_ROW8 (i, d, WARP) {
        float x[8], y[8];

        load8(x, q + r * d + i, d - i);
        load8(y, k + r * d + i, d - i);
        for (int j = 0; j < 8; j++) {
            sq = fmaf(x[j], x[j], sq);
            sk = fmaf(y[j], y[j], sk);
        }
    }
    sq = group_sum<WARP>(sq);
    sk = group_sum<WARP>(sk);
    if (threadIdx.x % WARP == 0) {
        inv_q[r] = 1.0f / sqrtf(sq + 1e-6f);
        inv_k[r] = 1.0f / sqrtf(sk + 1e-6f);
    }
}

template <class T> static void launch_qk_norms(cudaStream_t queue, const gated_delta_call<T> &v)
{
    const int64_t rows = v.n.docs.b * v.n.docs.s * v.n.k;

    qk_norms_kernel<<<grid_for_rows(rows, WARP), THREADS, 0, queue>>>(v.inv_q, v.inv_k, v.q, v.k,
                                                                      rows, v.n.d);
}

/* Floats of `ready`. */
static inline int64_t prepared_size(const d9d_gated_delta_dims &n)
{
    return chunks_max(n.docs) * n.a * (int64_t)(sizeof(prepared_chunk) / 4);
}

/* EINVAL for heads that do not fit; *none where there is nothing to do. */
static inline d9d_status gated_delta_check(const char *op, const d9d_gated_delta_dims *n,
                                           bool *none)
{
    D9D_TRY(d9di_args_check_float(op, n->t));
    if (n->k == 0 ? n->a != 0 : n->a % n->k != 0)
        return D9D_FAIL(D9D_EINVAL, "%s: %lld value heads are not a multiple of %lld key heads", op,
                        (long long)n->a, (long long)n->k);
    *none = n->docs.b * n->docs.s * n->a * n->d * n->f == 0;
    return D9D_OK;
}

/* Pieces of scratch, one after the other. */
struct scratch_arena {
    float *p;

    float *alloc(int64_t n)
    {
        float *mine = p;

        p = p == NULL ? NULL : p + d9di_i64_round_up(n, 64);
        return mine;
    }
};
static inline int64_t scratch_floats(int64_t n)
{
    return d9di_i64_round_up(n, 64);
}

/* An array of a call that is to begin at a multiple of 16 bytes. */
struct placed {
    void **p;
    int64_t bytes;
    bool written; /* by the call, else read */
};

/* `run` with copies of those that do not, in scratch. */
template <class F>
static d9d_status with_places(d9d_stream s, const char *op, const placed *x, int count, F run)
{
    void *was[8], *scratch;
    int64_t bytes = 0;
    cudaError_t e = cudaSuccess;
    d9d_status st;

    for (int i = 0; i < count; i++) {
        was[i] = *x[i].p;
        bytes += (uintptr_t)was[i] % 16 != 0 ? d9di_i64_round_up(x[i].bytes, 256) : 0;
    }
    if (bytes == 0)
        return run();
    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &scratch));
    char *next = (char *)scratch;
    for (int i = 0; i < count; i++)
        if ((uintptr_t)was[i] % 16 != 0) {
            *x[i].p = next;
            next += d9di_i64_round_up(x[i].bytes, 256);
            if (e == cudaSuccess && !x[i].written)
                e = cudaMemcpyAsync(*x[i].p, was[i], (size_t)x[i].bytes, cudaMemcpyDeviceToDevice,
                                    d9di_cuda_stream(s));
        }
    st = e == cudaSuccess ? run() : D9D_OK;
    for (int i = 0; i < count && st == D9D_OK && e == cudaSuccess; i++)
        if (*x[i].p != was[i] && x[i].written)
            e = cudaMemcpyAsync(was[i], *x[i].p, (size_t)x[i].bytes, cudaMemcpyDeviceToDevice,
                                d9di_cuda_stream(s));
    d9di_cuda_scratch_free(s, scratch, bytes);
    return e == cudaSuccess ? st : d9di_cuda_fail(op, e);
}

#endif /* D9DI_CUDA_GDN_GATED_DELTA_CUH */
