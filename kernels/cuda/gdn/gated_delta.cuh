/* gated_delta.cuh - chunks of the gated delta rule: call, indices, factors, and the float32 path.
 *
 * The formulas are in kernels/cpu/gated_delta.h and kernels/cpu/gated_delta_bwd.c. What a chunk
 * computes without the state runs for all chunks at once, one block per chunk and head. The scan
 * over the chunks of a document then carries the state, one block per document, head and group of
 * value features. The inverse of 1 + A separates the two:
 *
 *     S = (1 + A)^-1        U = S (beta V - beta e^b K X)
 *
 * bfloat16 with keys of at most MAX_KEY_SIZE features: gated_delta_prepare.cu computes S and P of
 * every chunk. On Hopper gated_delta_scan_sm90.cu is the scan and gated_delta_bwd_sm90.cu the
 * backward within a chunk. Elsewhere, and for values of more than MAX_KEY_SIZE features,
 * gated_delta_scan.cu is the scan. float32: the SIMT scan of this file, which needs
 * W = S (beta e^b K) and S (beta V).
 *
 * Chunk numbers need no prefix sum: chunk c of document i, whose first token is q, has the number
 * q / CHUNK + i + c. Some numbers are unused.
 */
#ifndef D9DI_CUDA_GDN_GATED_DELTA_CUH
#define D9DI_CUDA_GDN_GATED_DELTA_CUH

#include "cuda/common/block_mma.cuh"
#include "cuda/common/varlen.cuh"

enum { CHUNK = D9D_GATED_DELTA_CHUNK, COLUMNS = 32, BLOCK = 16, MAX_KEY_SIZE = 128 };
static_assert((int)CHUNK == (int)TILE, "a chunk is a tile");

typedef float padded_tile[CHUNK][TILE + PAD];

/* Per-token factors [CHUNK] of a prepared chunk, zero beyond its last token. b_i is the sum of g up
 * to token i; |k|, |q| are L2 lengths. */
struct chunk_factors {
    /* read by the scan */
    float beta[CHUNK], beta_k_from_start[CHUNK]; /* beta; beta e^b / |k| */
    float k_to_end[CHUNK], q_from_start[CHUNK];  /* e^(b_C - b) / |k|; scale e^b / |q| */
    float decay_last, padding[3];                /* e^(b_C) */
    /* read by the backward only */
    float k_from_start[CHUNK], q[CHUNK], k[CHUNK]; /* e^b / |k|; scale / |q|; 1 / |k| */
    float inv_q[CHUNK];                            /* 1 / |q| */
    double b[CHUNK];                               /* cumulative sums of g */
};
/* What a chunk and head has without the state: T = S' in two bfloat16 parts (rounded value,
 * remainder), and P. Each is [CHUNK, CHUNK] with rows of 128 bytes, in the 128-byte swizzle that
 * WGMMA reads. */
struct prepared_chunk {
    bf16 t[2][CHUNK * CHUNK], p[CHUNK * CHUNK];
    chunk_factors f;
};
/* Address of the 16-byte vector u (elements 8 u to 8 u + 7) of row i of a swizzled tile. */
static __device__ __forceinline__ bf16 *swizzled_vector(bf16 *tile, int i, int u)
{
    return tile + i * CHUNK + (u ^ (i & 7)) * 8;
}

/* Arguments of a call. Arrays are indexed by token and head; `state` and `dstate` as
 * d9d_gated_delta_dims says. */
template <class T> struct gated_delta_call {
    d9d_gated_delta_dims n;
    const T *q, *k, *v, *b, *dout;
    const float *g;
    T *o, *dq, *dk, *dv, *db;
    float *dg, *state;
    /* scratch */
    float *inv_q, *inv_k;       /* [tokens, K]: 1 / |q|, 1 / |k| */
    float *w, *u;               /* [tokens, A, D], [tokens, A, F] */
    float *s, *du;              /* backward: [tokens, A, CHUNK], [tokens, A, F] */
    float *dq_heads, *dk_heads; /* backward: dQ and dK per value head, [tokens, A, D] */
    float *dstate; /* backward: gradient of the state after each chunk, indexed as the next chunk's
                      state */
    prepared_chunk *prepared; /* [chunks, A]; NULL on the SIMT path */
    d9d_state_slots past;     /* decode: recurrent states; slots NULL: none */
};

/* gated_delta_prepare.cu: writes v.prepared [chunks, A], with T in `parts` bfloat16 parts (1 or
 * 2). */
d9d_status d9di_gated_delta_scan_prepare(d9d_stream s, const char *op,
                                         const gated_delta_call<bf16> &v, int parts);

/* gated_delta_scan.cu: fwd computes states X and O of all chunks; recompute computes U from the
 * saved states; bwd computes Y and the gradients of the states. */
bool d9di_gated_delta_scan_supported(const d9d_gated_delta_dims *n, const void *const *arrays,
                                     int count);
d9d_status d9di_gated_delta_scan_fwd(d9d_stream s, const char *op, const gated_delta_call<bf16> &v);
d9d_status d9di_gated_delta_scan_recompute(d9d_stream s, const char *op,
                                           const gated_delta_call<bf16> &v);
d9d_status d9di_gated_delta_scan_bwd(d9d_stream s, const char *op, const gated_delta_call<bf16> &v);

/* gated_delta_scan_sm90.cu, on Hopper: fwd computes states X and O of all chunks; bwd computes dV
 * and the gradients of the states. Both kinds of states are in the layout of gated_delta_sm90.cuh.
 * gated_delta_bwd_sm90.cu: the other gradients. */
bool d9di_gated_delta_sm90_supported(d9d_stream s, const d9d_gated_delta_dims *n);
enum { WGMMA_PARTS = 1 }; /* parts of T that the sm90 kernels read */
/* Elements of a state [D, F] that is saved in bfloat16: D is rounded up to 64. */
static __host__ __device__ __forceinline__ int64_t saved_state_size(const d9d_gated_delta_dims &n)
{
    return (n.d + 63) / 64 * 64 * n.f;
}
d9d_status d9di_gated_delta_scan_fwd_sm90(d9d_stream s, const char *op,
                                          const gated_delta_call<bf16> &v);
d9d_status d9di_gated_delta_scan_bwd_sm90(d9d_stream s, const char *op,
                                          const gated_delta_call<bf16> &v);
d9d_status d9di_gated_delta_bwd_sm90(d9d_stream s, const char *op, const gated_delta_call<bf16> &v);

/* A chunk of n tokens from token `first` on, value head h and its key head kh. */
struct chunk {
    int64_t first, h, kh;
    int n;            /* 0: unused number */
    bool fresh, last; /* is the first, the last chunk of its document */
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

/* Document and index in it of the chunk with this number. */
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

/* Chunk and head of this block, in a launch of chunks_max() * A blocks. */
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

/* Offsets of the chunk in the arrays of a call. */
template <class T> struct chunk_offsets {
    int64_t key, value, gate; /* of its first token: in q k, in v o, in g b */
    int64_t wide;             /* in w, dq_heads, dk_heads [tokens, A, D] */
    int64_t key_step, step,
        d_step;    /* stride from token to token: in q k, in v o, in [tokens, A, D] */
    float *state;  /* before the chunk; NULL: zero, or not saved */
    float *dstate; /* gradient of the state after it; NULL: zero */

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

/* Per-token factors [CHUNK] of a chunk in shared memory, zero beyond its last token. */
struct chunk_gates {
    double b[CHUNK]; /* cumulative sums of g: double, since their differences are small where the
                        sums are not */
    float from_start[CHUNK], to_end[CHUNK], beta[CHUNK]; /* e^b, e^(b_C - b); sigmoid(b) */
    float q[CHUNK], k[CHUNK];                            /* scale / |q|, 1 / |k| */
    float q_from_start[CHUNK], k_to_end[CHUNK];          /* q from_start, k to_end */
    float write[CHUNK], beta_k_from_start[CHUNK];        /* beta again; beta from_start k */
    float decay_last;                                    /* e^(b_C) */
};

static __device__ __forceinline__ float gate_decay(const chunk_gates &g, int i, int j)
{
    return expf((float)(g.b[i] - g.b[j]));
}

template <class T>
static __device__ void gates_load(chunk_gates &g, const gated_delta_call<T> &v, const chunk &x)
{
    const int i = threadIdx.x;
    const bool in_chunk = i < CHUNK, valid = i < x.n;
    const int64_t gate = (x.first + i) * v.n.a + x.h, key = (x.first + i) * v.n.k + x.kh;

    if (in_chunk)
        g.b[i] = valid ? (double)v.g[gate] : 0.0;
    __syncthreads();
    for (int o = 1; o < CHUNK; o *= 2) {
        const double before = in_chunk && i >= o ? g.b[i - o] : 0.0;

        __syncthreads();
        if (in_chunk)
            g.b[i] += before;
        __syncthreads();
    }
    if (in_chunk) {
        g.from_start[i] = expf((float)g.b[i]);
        g.to_end[i] = expf((float)(g.b[CHUNK - 1] - g.b[i]));
        g.beta[i] = valid ? sigmoid(to_float(v.b[gate])) : 0.0f;
        g.q[i] = valid ? v.inv_q[key] * v.n.scale : 0.0f;
        g.k[i] = valid ? v.inv_k[key] : 0.0f;
        g.q_from_start[i] = g.q[i] * g.from_start[i];
        g.k_to_end[i] = g.k[i] * g.to_end[i];
        g.write[i] = g.beta[i];
        g.beta_k_from_start[i] = g.beta[i] * g.from_start[i] * g.k[i];
        if (i == 0)
            g.decay_last = expf((float)g.b[CHUNK - 1]);
    }
    __syncthreads();
}

/* Loop over the elements (i, j) of a [CHUNK, N] tile, distributed over the threads. */
#define FOR_EACH_ELEMENT(i, j, N)                                                                  \
    for (int e_ = threadIdx.x, i, j; i = e_ / (N), j = e_ % (N), e_ < CHUNK * (N); e_ += THREADS)

/* s = (1 + a)^-1 for a strictly lower triangular a [CHUNK, CHUNK], in blocks of BLOCK: first the
 * diagonal blocks, one thread per column, then the blocks below, by distance from the diagonal. */
static __device__ void invert_unit_lower(padded_tile &s, const padded_tile &a,
                                         float (*scratch)[BLOCK + 1])
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
    for (int distance = 1; distance < CHUNK / BLOCK; distance++)
        for (int y = distance; y < CHUNK / BLOCK; y++) {
            const int row = y * BLOCK, col = (y - distance) * BLOCK;
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

/* Shared memory of a block that processes a chunk. */
struct chunk_smem {
    smem_operands<TILE> sh;
    padded_tile one, two;
    chunk_gates g;
    float scratch[BLOCK][BLOCK + 1];
};

/* m.two = S [CHUNK, CHUNK]; m.one is overwritten with A. */
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

/* Stores W = S (beta e^b K) [CHUNK, D] to v.w, unless the document begins with this chunk. S is in
 * m.two. */
template <bool TENSOR, class T>
static __device__ void store_w(chunk_smem &m, const gated_delta_call<T> &v, const chunk &x,
                               const chunk_offsets<T> &at)
{
    tile_sum<TENSOR, TILE> sum;

    for (int64_t c = 0; c < v.n.d && !x.fresh; c += TILE) {
        sum.clear();
        sum.add(m.sh, scaled_matrix_make(&m.two[0][0], TILE + PAD, 1, NULL, m.g.beta_k_from_start),
                0, x.n, scaled_matrix_make(v.k + at.key, 1, at.key_step), c, v.n.d, x.n);
        sum.store(m.one);
        FOR_EACH_ELEMENT(i, j, TILE)
        if (i < x.n && c + j < v.n.d)
            v.w[at.wide + i * at.d_step + c + j] = m.one[i][j];
        __syncthreads();
    }
}

/* sum = S (beta V), columns [c, c + TILE). S is in m.two. */
template <bool TENSOR, class T>
static __device__ __forceinline__ void make_values(tile_sum<TENSOR, TILE> &sum, chunk_smem &m,
                                                   const gated_delta_call<T> &v, const chunk &x,
                                                   const chunk_offsets<T> &at, int64_t c)
{
    sum.clear();
    sum.add(m.sh, scaled_matrix_make(&m.two[0][0], TILE + PAD, 1, NULL, m.g.write), 0, x.n,
            scaled_matrix_make(v.v + at.value, 1, at.step), c, v.n.f, x.n);
}

/* Stores a tile [CHUNK, TILE], columns from c on, to an array [tokens, A, F]. */
template <class T, class Y>
static __device__ __forceinline__ void store_values(Y *y, const padded_tile &t,
                                                    const gated_delta_call<T> &v, const chunk &x,
                                                    const chunk_offsets<T> &at, int64_t c)
{
    FOR_EACH_ELEMENT(i, j, TILE)
    if (i < x.n && c + j < v.n.f)
        store_float(y + at.value + i * at.step + c + j, t[i][j]);
    __syncthreads();
}

/* m.one = P [CHUNK, CHUNK], P_ij = G_ij q_i k_j' for j <= i. */
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

/* --- SIMT scan: carries a state, or its gradient, through a document -----------------------------
 *
 * SCAN::REVERSE is the order of the chunks. SCAN::array() is U or dU, to which SCAN::rows() times
 * the state is added. SCAN::add() adds a chunk's update of the state.
 */

/* Shared memory of a block of the scan; the rows of the state follow it. */
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

/* Stores the columns from col on of the state before the chunk to `to`, unless that is NULL. */
template <class T>
static __device__ __forceinline__ void store_state(float *to, const state_row *state,
                                                   const gated_delta_call<T> &v, int64_t col)
{
    for (int64_t e = threadIdx.x; e < v.n.d * COLUMNS && to != NULL; e += THREADS)
        if (col + e % COLUMNS < v.n.f)
            to[e / COLUMNS * v.n.f + col + e % COLUMNS] = state[e / COLUMNS][e % COLUMNS];
}

/* m.u = `array` + rows() state for the columns from col on [CHUNK, COLUMNS]; also updates
 * `array`. */
template <class SCAN, class T>
static __device__ __forceinline__ void add_state_term(scan_smem &m, const state_row *state,
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
        const bool valid = i < x.n && col + j < v.n.f;

        m.u[i][j] = valid ? *u + m.out[i][j] : 0.0f;
        if (valid && !starts_without_state)
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
        const chunk x = chunk_of(v, d, SCAN::REVERSE ? chunks - 1 - n : n, h);
        const chunk_offsets<T> at(v, x);

        gates_load(m.g, v, x);
        store_state(SCAN::REVERSE ? at.dstate : at.state, state, v, col);
        add_state_term<SCAN>(m, state, v, x, at, col);
        for (int64_t r = 0; r < v.n.d && n + 1 < chunks; r += TILE) {
            sum.clear();
            SCAN::add(sum, m, v, x, at, r, col);
            sum.store(m.out);
            FOR_EACH_ELEMENT(i, j, COLUMNS)
            state[r + i][j] = m.g.decay_last * state[r + i][j] + m.out[i][j];
            __syncthreads();
        }
    }
}

template <class SCAN, class T>
static d9d_status scan_simt(const char *op, cudaStream_t stream, const gated_delta_call<T> &v)
{
    const int64_t bytes = scan_smem_bytes(v.n.d);

    D9D_TRY(d9di_cuda_set_max_smem(op, (const void *)scan_simt_kernel<SCAN, T>, bytes));
    scan_simt_kernel<SCAN><<<(unsigned)scan_blocks(v), THREADS, (size_t)bytes, stream>>>(v);
    return D9D_OK;
}

/* inv_q = 1 / |q| and inv_k = 1 / |k| for every row of q and k [rows, d]; one warp per row. */
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

template <class T> static void launch_qk_norms(cudaStream_t stream, const gated_delta_call<T> &v)
{
    const int64_t rows = v.n.docs.b * v.n.docs.s * v.n.k;

    qk_norms_kernel<<<grid_for_rows(rows, WARP), THREADS, 0, stream>>>(v.inv_q, v.inv_k, v.q, v.k,
                                                                       rows, v.n.d);
}

/* Size of `prepared` in floats. */
static inline int64_t prepared_size(const d9d_gated_delta_dims &n)
{
    return chunks_max(n.docs) * n.a * (int64_t)(sizeof(prepared_chunk) / 4);
}

/* EINVAL unless A is a multiple of K. *none: the call has no elements. */
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

/* Allocates consecutive parts of one scratch buffer; NULL if the buffer is NULL. */
struct scratch_arena {
    float *p;

    float *alloc(int64_t n)
    {
        float *begin = p;

        p = p == NULL ? NULL : p + d9di_i64_round_up(n, 64);
        return begin;
    }
};
static inline int64_t scratch_floats(int64_t n)
{
    return d9di_i64_round_up(n, 64);
}

/* An array of a call that the kernels need aligned to 16 bytes. */
struct aligned_arg {
    void **p;
    int64_t bytes;
    bool written; /* an output; else an input */
};

/* Calls `run` with scratch copies in place of arrays that are not aligned to 16 bytes. Inputs are
 * copied before, outputs after the call. */
template <class F>
static d9d_status with_aligned_copies(d9d_stream s, const char *op, const aligned_arg *x, int count,
                                      F run)
{
    void *original[8], *scratch;
    int64_t bytes = 0;
    cudaError_t e = cudaSuccess;
    d9d_status st;

    for (int i = 0; i < count; i++) {
        original[i] = *x[i].p;
        bytes += (uintptr_t)original[i] % 16 != 0 ? d9di_i64_round_up(x[i].bytes, 256) : 0;
    }
    if (bytes == 0)
        return run();
    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &scratch));
    char *next = (char *)scratch;
    for (int i = 0; i < count; i++)
        if ((uintptr_t)original[i] % 16 != 0) {
            *x[i].p = next;
            next += d9di_i64_round_up(x[i].bytes, 256);
            if (e == cudaSuccess && !x[i].written)
                e = cudaMemcpyAsync(*x[i].p, original[i], (size_t)x[i].bytes,
                                    cudaMemcpyDeviceToDevice, d9di_cuda_stream(s));
        }
    st = e == cudaSuccess ? run() : D9D_OK;
    for (int i = 0; i < count && st == D9D_OK && e == cudaSuccess; i++)
        if (*x[i].p != original[i] && x[i].written)
            e = cudaMemcpyAsync(original[i], *x[i].p, (size_t)x[i].bytes, cudaMemcpyDeviceToDevice,
                                d9di_cuda_stream(s));
    d9di_cuda_scratch_free(s, scratch, bytes);
    return e == cudaSuccess ? st : d9di_cuda_fail(op, e);
}

#endif /* D9DI_CUDA_GDN_GATED_DELTA_CUH */
