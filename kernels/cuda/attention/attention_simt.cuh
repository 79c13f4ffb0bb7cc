/* attention_simt.cuh - what the SIMT forward and backward of attention share.
 *
 * A block of THREADS computes tiles of SIDE queries by SIDE keys of one head. Thread (ty, tx) of 16
 * x 16 has the R x R scores of rows ty R + r and columns tx + 16 c. Of feature arrays it has the
 * columns tx + 16 c, c < DV. Tiles are float32 in shared memory. Their rows are WIDTH = 16 DV
 * features long, padded with zeros, at an odd stride that avoids bank conflicts.
 *
 * A block owns some tokens of one side of the scores and streams the other side of each segment
 * that these tokens touch, in tiles that begin with the segment. So a segment's sums do not depend
 * on its position. Tokens of other segments within the block's own side are computed too, and not
 * stored. Tiles that a causal mask or a window hides are skipped.
 */
#ifndef D9DI_CUDA_ATTENTION_ATTENTION_SIMT_CUH
#define D9DI_CUDA_ATTENTION_ATTENTION_SIMT_CUH

#include <math_constants.h>

#include "cuda/attention/attention_call.h"
#include "cuda/common/philox.cuh"

enum { THREAD_GRID = 16, MAX_HEAD_SIZE = 640 };

template <int SIDE_, int DV_, bool DROPS_> struct tile_shape {
    enum {
        DROPS = DROPS_, /* the probabilities have dropout */
        SIDE = SIDE_,
        DV = DV_,
        R = SIDE / THREAD_GRID,
        WIDTH = THREAD_GRID * DV,
        STEP = WIDTH + 1,
        SCORES = SIDE + 1, /* row stride of a tile of scores */
        ROWS_BYTES = SIDE * STEP * 4,
        SCORES_BYTES = SIDE * SCORES * 4
    };
};

static __device__ __forceinline__ int thread_row(void)
{
    return threadIdx.x / THREAD_GRID;
}
static __device__ __forceinline__ int thread_col(void)
{
    return threadIdx.x % THREAD_GRID;
}

/* Loads tokens [first, first + n) of head h of x [tokens, heads, D]. */
template <class Z, class T>
static __device__ void load_rows(float *to, const T *x, int64_t first, int64_t n, int64_t heads,
                                 int64_t h, int64_t d)
{
    for (int i = threadIdx.x / WARP; i < Z::SIDE; i += WARPS)
        for (int f = threadIdx.x % WARP; f < Z::WIDTH; f += WARP)
            to[i * Z::STEP + f] =
                i < n && f < d ? to_float(x[((first + i) * heads + h) * d + f]) : 0.0f;
}

/* s[r][c] = row (ty R + r) of a . row (tx + 16 c) of b */
template <class Z>
static __device__ __forceinline__ void dot_rows(float (&s)[Z::R][Z::R], const float *a,
                                                const float *b, int64_t d)
{
    a += thread_row() * Z::R * Z::STEP;
    b += thread_col() * Z::STEP;
    for (int r = 0; r < Z::R; r++)
        for (int c = 0; c < Z::R; c++)
            s[r][c] = 0.0f;
    for (int f = 0; f < d; f++) {
        float u[Z::R], v[Z::R];

#pragma unroll
        for (int r = 0; r < Z::R; r++) {
            u[r] = a[r * Z::STEP + f];
            v[r] = b[r * THREAD_GRID * Z::STEP + f];
        }
#pragma unroll
        for (int r = 0; r < Z::R; r++)
#pragma unroll
            for (int c = 0; c < Z::R; c++)
                s[r][c] = fmaf(u[r], v[c], s[r][c]);
    }
}

/* y[r][c] += sum over j of w(ty R + r, j) x[j][tx + 16 c], with w(i, j) = w[i * across + j *
 * along]. */
template <class Z>
static __device__ __forceinline__ void add_rows(float (&y)[Z::R][Z::DV], const float *w, int across,
                                                int along, const float *x)
{
    w += thread_row() * Z::R * across;
    x += thread_col();
    for (int j = 0; j < Z::SIDE; j++) {
        float u[Z::R];

#pragma unroll
        for (int r = 0; r < Z::R; r++)
            u[r] = w[r * across + j * along];
#pragma unroll
        for (int c = 0; c < Z::DV; c++) {
            const float v = x[j * Z::STEP + c * THREAD_GRID];

#pragma unroll
            for (int r = 0; r < Z::R; r++)
                y[r][c] = fmaf(u[r], v, y[r][c]);
        }
    }
}

template <class Z> static __device__ __forceinline__ void clear_acc(float (&y)[Z::R][Z::DV])
{
    for (int r = 0; r < Z::R; r++)
        for (int c = 0; c < Z::DV; c++)
            y[r][c] = 0.0f;
}

/* Tokens [first, end) of q or k, counted over the batch. */
struct token_range {
    int64_t first, end;
};

static __device__ __forceinline__ bool range_contains(const token_range &x, int64_t position)
{
    return position >= x.first && position < x.end;
}

/* Stores rows of y, of which row i is token first + i of x; only those within the segment. */
template <class Z, class T>
static __device__ void store_rows(T *x, const float (&y)[Z::R][Z::DV], int64_t first,
                                  const token_range &range, int64_t heads, int64_t h, int64_t d)
{
#pragma unroll
    for (int r = 0; r < Z::R; r++)
#pragma unroll
        for (int c = 0; c < Z::DV; c++) {
            const int i = thread_row() * Z::R + r, f = thread_col() + c * THREAD_GRID;

            if (range_contains(range, first + i) && f < d)
                store_float(x + ((first + i) * heads + h) * d + f, y[r][c]);
        }
}

/* Segment `i` of the list or, without a list, chunk i of a whole row. Query q has the diagonal key
 * q
 * + shift. All queries see keys before `prefix`. k are the keys that the arrays have, the segment
 * begins with key `first`. */
struct segment {
    int64_t i;
    token_range q, k;
    int64_t shift, prefix, first;
};

/* Keys of row b that the arrays of keys and values have. */
static __device__ __forceinline__ token_range keys_of_row(const d9d_attention_dims &n, int64_t b)
{
    const int64_t first = b * n.z + n.part.first;

    return n.part.n > 0 ? token_range{first, first + n.part.n}
                        : token_range{b * n.z, (b + 1) * n.z};
}
/* Where key k of row b lies in these arrays. */
static __device__ __forceinline__ int64_t key_at(const d9d_attention_dims &n, int64_t b, int64_t k)
{
    return n.part.n > 0 ? k - keys_of_row(n, b).first + b * n.part.n : k;
}
static __device__ __forceinline__ token_range keys_in_arrays(const d9d_attention_dims &n, int64_t b,
                                                             const token_range &k)
{
    const token_range all = keys_of_row(n, b);
    const int64_t first = d9di_i64_max(k.first, all.first);

    return {first, d9di_i64_max(first, d9di_i64_min(k.end, all.end))};
}

static __device__ __forceinline__ token_range token_range_in_row(int64_t first, int64_t n,
                                                                 int64_t row, int64_t size)
{
    return {d9di_i64_max(first, row * size), d9di_i64_min(first + n, (row + 1) * size)};
}

/* Most segments that there can be: of the list, or of a row without one. */
static __device__ __forceinline__ int64_t segments_max(const d9d_attention_dims &n)
{
    return n.segment != NULL ? n.segments : d9di_i64_max(1, n.chunks);
}

/* Malformed segments do not lead to another row of the batch. */
static __device__ __forceinline__ segment segment_of(const d9d_attention_dims &n, int64_t i,
                                                     int64_t b)
{
    if (n.segment == NULL) {
        const int64_t size = n.s / segments_max(n), q = b * n.s + i * size, k = b * n.z;

        const int64_t end = k + (n.chunks > 0 ? n.chunk_end[i] : n.z);

        return {i, {q, q + size}, keys_in_arrays(n, b, {k, end}), end - q - size, k, k};
    }

    const d9d_segment x = n.segment[i];
    const token_range q = token_range_in_row(x.q, x.nq, b, n.s);
    token_range k = token_range_in_row(x.k, x.nk, b, n.z);
    const int64_t shift = k.end - q.end;
    const int64_t prefix =
        n.prefix != NULL ? token_range_in_row(x.k, n.prefix[i], b, n.z).end : k.first;

    k.end = d9di_i64_max(k.end, prefix);
    return {i, q, keys_in_arrays(n, b, k), shift, prefix, k.first};
}

/* Binary search: the last segment whose queries (or keys) begin at or before `position`, or the
 * first one. */
static __device__ __forceinline__ int64_t segment_find(const d9d_attention_dims &n, bool keys,
                                                       int64_t position)
{
    int64_t low = 0, high = segments_max(n) - 1;

    if (n.segment == NULL)
        return keys ? high : position % n.s / (n.s / segments_max(n));
    if (!keys && position < high && n.segment[position].q == position &&
        n.segment[position + 1].q > position)
        return position; /* one query each, as in decode */
    while (low < high) {
        const int64_t mid = (low + high + 1) / 2;

        if ((keys ? n.segment[mid].k : n.segment[mid].q) <= position)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

/* Advances to the next segment; true if it may have queries before `end`. */
static __device__ __forceinline__ bool segment_next(const d9d_attention_dims &n, int64_t b,
                                                    int64_t end, segment *x)
{
    if (x->q.end >= end || x->i + 1 >= segments_max(n))
        return false;
    *x = segment_of(n, x->i + 1, b);
    return true;
}

/* The key on the diagonal at query q: the last one that it may see under a causal mask. */
static __device__ __forceinline__ int64_t diagonal_key(const segment &x, int64_t q)
{
    return q + x.shift;
}
/* The first key that query q may see. */
static __device__ __forceinline__ int64_t first_visible_key(const d9d_attention_dims &n,
                                                            const segment &x, int64_t q)
{
    return n.window > 0 ? d9di_i64_max(x.k.first, diagonal_key(x, q) + 1 - n.window) : x.k.first;
}
/* The end of the keys that query q may see. */
static __device__ __forceinline__ int64_t visible_key_end(const d9d_attention_dims &n,
                                                          const segment &x, int64_t q)
{
    const int64_t diagonal = diagonal_key(x, q), open = n.causal ? x.prefix : x.k.end;
    const int64_t near = n.window > 0 ? d9di_i64_min(diagonal + n.window, open) : open;

    return d9di_i64_min(n.causal ? d9di_i64_max(diagonal + 1, near) : near, x.k.end);
}
/* The first key for all queries from q on, rounded down to a tile. */
template <class Z>
static __device__ __forceinline__ int64_t first_visible_tile(const d9d_attention_dims &n,
                                                             const segment &x, int64_t q)
{
    const int64_t hidden = first_visible_key(n, x, d9di_i64_max(q, x.q.first)) - x.k.first;

    return x.k.first + hidden / Z::SIDE * Z::SIDE;
}
/* True if query q may see key k of this segment. */
static __device__ __forceinline__ bool visible(const d9d_attention_dims &n, const segment &x,
                                               int64_t q, int64_t k)
{
    const bool hidden = n.window > 0 && k + n.window <= diagonal_key(x, q);

    return range_contains(x.q, q) && k < visible_key_end(n, x, q) && !hidden;
}

/* What dropout multiplies a probability by: 0 or 1 / (1 - p). Query q must be in the segment. */
static __device__ __forceinline__ float dropout_factor(const d9d_attention_dims &n,
                                                       const segment &x, int64_t h, int64_t q,
                                                       int64_t k)
{
    const d9d_attention_dropout &d = n.dropout;
    const d9d_rng rng = {d.rng.seed, d.rng.stream + (uint64_t)h};
    const uint64_t at = (uint64_t)d.token[q] * (uint64_t)d.width + (uint64_t)(k - x.first);

    return (float)(random_u32(rng, at) >> 8) * 0x1p-24f < d.p ? 0.0f : 1.0f / (1.0f - d.p);
}

/* Index in an array [B, A, S] of query i, counted over B and S, and head h. */
static __device__ __forceinline__ int64_t row_stat_index(const d9d_attention_dims &n, int64_t b,
                                                         int64_t h, int64_t i)
{
    return (b * n.a + h) * n.s + i - b * n.s;
}

/* Features of a key or of a value, the larger. */
static inline int64_t head_size_max(const d9d_attention_dims &n)
{
    return d9di_i64_max(n.d, n.dv);
}

/* ENOTSUP if the head size fits no kernel instance, or its tiles exceed this GPU's shared memory.
 */
static inline d9d_status head_size_check(const char *op, const d9d_attention_dims *n)
{
    const int64_t d = head_size_max(*n);

    if (d > MAX_HEAD_SIZE)
        return D9D_FAIL(D9D_ENOTSUP, "%s: head size %lld, at most %d is supported", op,
                        (long long)d, MAX_HEAD_SIZE);
    return D9D_OK;
}

static inline d9d_status kernel_allow_smem(d9d_stream s, const char *op, const void *kernel,
                                           int64_t bytes)
{
    if (bytes > s->max_smem)
        return D9D_FAIL(D9D_ENOTSUP,
                        "%s: needs %lld bytes of shared memory, this GPU has %lld a block", op,
                        (long long)bytes, (long long)s->max_smem);
    return d9di_cuda_set_max_smem(op, kernel, bytes);
}

#endif /* D9DI_CUDA_ATTENTION_ATTENTION_SIMT_CUH */
