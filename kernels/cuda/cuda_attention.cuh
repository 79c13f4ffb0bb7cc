/* cuda_attention.cuh - what the forward and the backward of attention share.
 *
 * A block of THREADS works on tiles of SIDE queries by SIDE keys of one head; thread (ty, tx) of
 * 16 x 16 has the R x R scores of rows ty R + r and columns tx + 16 c, and of arrays of features
 * the columns tx + 16 c, c < DV.  Tiles are float32 in shared memory, rows WIDTH = 16 DV features
 * long with zeros after the last, in steps of an odd number so that columns meet no bank twice.
 * Tiles that a causal mask or other segments hide are skipped.
 */
#ifndef D9D_CUDA_ATTENTION_CUH
#define D9D_CUDA_ATTENTION_CUH

#include <math_constants.h>

#include "cuda_common.cuh"

enum { EDGE = 16, MOST_FEATURES = 512 };

template <int SIDE_, int DV_> struct shape {
    enum {
        SIDE = SIDE_,
        DV = DV_,
        R = SIDE / EDGE,
        WIDTH = EDGE * DV,
        STEP = WIDTH + 1,
        SCORES = SIDE + 1, /* step of a tile of scores */
        ROWS_BYTES = SIDE * STEP * 4,
        SCORES_BYTES = SIDE * SCORES * 4
    };
};

static __device__ __forceinline__ int my_row(void)
{
    return threadIdx.x / EDGE;
}
static __device__ __forceinline__ int my_col(void)
{
    return threadIdx.x % EDGE;
}

/* Rows [first, first + n) of head h of x [B, S, heads, D], counted over B and S. */
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
    a += my_row() * Z::R * Z::STEP;
    b += my_col() * Z::STEP;
    for (int r = 0; r < Z::R; r++)
        for (int c = 0; c < Z::R; c++)
            s[r][c] = 0.0f;
    for (int f = 0; f < d; f++) {
        float u[Z::R], v[Z::R];

#pragma unroll
        for (int r = 0; r < Z::R; r++) {
            u[r] = a[r * Z::STEP + f];
            v[r] = b[r * EDGE * Z::STEP + f];
        }
#pragma unroll
        for (int r = 0; r < Z::R; r++)
#pragma unroll
            for (int c = 0; c < Z::R; c++)
                s[r][c] = fmaf(u[r], v[c], s[r][c]);
    }
}

/* y[r][c] += sum over j of w(ty R + r, j) x[j][tx + 16 c]; element (i, j) of w is
 * w[i * across + j * along]. */
template <class Z>
static __device__ __forceinline__ void add_rows(float (&y)[Z::R][Z::DV], const float *w, int across,
                                                int along, const float *x)
{
    w += my_row() * Z::R * across;
    x += my_col();
    for (int j = 0; j < Z::SIDE; j++) {
        float u[Z::R];

#pragma unroll
        for (int r = 0; r < Z::R; r++)
            u[r] = w[r * across + j * along];
#pragma unroll
        for (int c = 0; c < Z::DV; c++) {
            const float v = x[j * Z::STEP + c * EDGE];

#pragma unroll
            for (int r = 0; r < Z::R; r++)
                y[r][c] = fmaf(u[r], v, y[r][c]);
        }
    }
}

template <class Z> static __device__ __forceinline__ void clear(float (&y)[Z::R][Z::DV])
{
    for (int r = 0; r < Z::R; r++)
        for (int c = 0; c < Z::DV; c++)
            y[r][c] = 0.0f;
}

template <class Z, class T>
static __device__ void store_rows(T *x, const float (&y)[Z::R][Z::DV], int64_t first, int64_t n,
                                  int64_t heads, int64_t h, int64_t d)
{
#pragma unroll
    for (int r = 0; r < Z::R; r++)
#pragma unroll
        for (int c = 0; c < Z::DV; c++) {
            const int i = my_row() * Z::R + r, f = my_col() + c * EDGE;

            if (i < n && f < d)
                put(x + ((first + i) * heads + h) * d + f, y[r][c]);
        }
}

/* The segments of a tile of queries and of one of keys. */
template <class Z> struct segments {
    int32_t q[Z::SIDE], k[Z::SIDE];
};

/* Bring in one side's; nothing where there are none. */
static __device__ __forceinline__ void load_segments(int32_t *to, const d9d_attention_dims &n,
                                                     int64_t b, int64_t first, int64_t count)
{
    if (n.segments != NULL && threadIdx.x < count)
        to[threadIdx.x] = n.segments[b * n.s + first + threadIdx.x];
}

/* Whether the two sides' segments may meet; every thread of the block asks, and every thread's
 * stores before are seen after. */
static __device__ __forceinline__ bool meet(const d9d_attention_dims &n, const int32_t *a,
                                            int64_t na, const int32_t *b, int64_t nb)
{
    int32_t low, high;

    if (n.segments == NULL) {
        __syncthreads();
        return true;
    }
    __syncthreads();
    low = high = a[0];
    for (int i = 1; i < na; i++) {
        low = a[i] < low ? a[i] : low;
        high = a[i] > high ? a[i] : high;
    }
    return __syncthreads_or(threadIdx.x < nb && b[threadIdx.x] >= low && b[threadIdx.x] <= high);
}

/* Whether query i of the tile at q0 may see key j of the tile at k0, both inside. */
template <class Z>
static __device__ __forceinline__ bool visible(const d9d_attention_dims &n, const segments<Z> &seg,
                                               int64_t q0, int i, int64_t k0, int j)
{
    return q0 + i < n.s && k0 + j < n.s && (!n.causal || k0 + j <= q0 + i) &&
           (n.segments == NULL || seg.q[i] == seg.k[j]);
}

/* ENOTSUP for a head that no shape takes, or too much for this GPU. */
static inline d9d_status check_features(const char *op, const d9d_attention_dims *n)
{
    if (n->d > MOST_FEATURES)
        return D9D_FAIL(D9D_ENOTSUP, "%s: a head has %lld features, at most %d are supported", op,
                        (long long)n->d, MOST_FEATURES);
    return D9D_OK;
}

static inline d9d_status allow(d9d_stream s, const char *op, const void *kernel, int64_t bytes)
{
    if (bytes > s->shared)
        return D9D_FAIL(D9D_ENOTSUP,
                        "%s: needs %lld bytes of shared memory, this GPU has %lld a block", op,
                        (long long)bytes, (long long)s->shared);
    return d9di_allow_shared(op, kernel, bytes);
}

#endif /* D9D_CUDA_ATTENTION_CUH */
