/* permute.cu - MoE permute (dispatch) and unpermute (combine): choice j of token t is row[t k + j]
 * in expert order, -1 for none. G threads have a token, whose own row is read or written once. */
#include "cuda/common/common.cuh"

template <class T, int G>
static __global__ void permute_kernel(d9d_moe_permute_dims n, T *__restrict__ y,
                                      const T *__restrict__ x, const int32_t *__restrict__ row)
{
    const int64_t t = group_row<G>();

    pdl_launch_dependents();
    pdl_wait();
    if (t >= n.rows)
        return;
    row += t * n.k;
    D9DI_ROW8 (i, n.h, G) {
        float v[8];

        load8(v, x + t * n.h + i, n.h - i);
#pragma unroll 8
        for (int64_t c = 0; c < n.k; c++)
            if (row[c] >= 0 && row[c] < n.n)
                store8(y + row[c] * n.h + i, v, n.h - i);
    }
}

/* Bit mask of those of a token's next 32 choices that have a row. Experts on other ranks have none,
 * and cost nothing. All threads of a token agree. */
enum { MASK_ROWS = 32 };
static __device__ __forceinline__ unsigned present_mask(const int32_t *row, int64_t n)
{
    unsigned mask = 0;

#pragma unroll 8
    for (int j = 0; j < MASK_ROWS; j++)
        if (j < n)
            mask |= (row[j] >= 0 ? 1u : 0u) << j;
    return mask;
}

/* The next C rows of the mask, in order; -1 after the last. */
template <int C> struct picked_rows {
    int at[C];
};
template <int C> static __device__ __forceinline__ picked_rows<C> pick_rows(unsigned *mask)
{
    picked_rows<C> p;

#pragma unroll
    for (int j = 0; j < C; j++) {
        p.at[j] = __ffs((int)*mask) - 1;
        *mask &= *mask - 1;
    }
    return p;
}

/* Loads vectors of eight elements at `i` of the rows, all in flight together. W: rows are aligned
 * for wide loads. */
template <bool W, class T, int C>
static __device__ __forceinline__ void fetch_picked(raw8<T> (&to)[C], const T *x,
                                                    const int32_t *row, const picked_rows<C> &p,
                                                    int64_t i, int64_t h)
{
#pragma unroll
    for (int j = 0; j < C; j++) {
        const T *from = x + (p.at[j] < 0 ? 0 : row[p.at[j]]) * h + i;

        if (p.at[j] < 0)
            continue;
        if (W)
            to[j] = *(const raw8<T> *)from;
        else
            fetch8(to[j], from, h - i);
    }
}

/* Loads in flight, measured: fewer leave registers for more threads. */
enum { GATHER_IN_FLIGHT = 4, SCATTER_IN_FLIGHT = 8 };

/* y[t] = sum over j ascending of w_j x[row(t, j)], plus[t]; w NULL: all ones. */
template <class T, int G, bool W>
static __global__ void gather_kernel(d9d_moe_permute_dims n, T *__restrict__ y,
                                     const T *__restrict__ x, const float *__restrict__ w,
                                     const int32_t *__restrict__ row, const T *plus)
{
    const int64_t t = group_row<G>();

    pdl_launch_dependents();
    pdl_wait();
    if (t >= n.rows)
        return;
    row += t * n.k;
    w += w == NULL ? 0 : t * n.k;
    const unsigned first = present_mask(row, n.k);
    D9DI_ROW8 (i, n.h, G) {
        float sum[8] = {}, v[8];

        for (int64_t c = 0; c < n.k; c += MASK_ROWS) {
            unsigned mask = c == 0 ? first : present_mask(row + c, n.k - c);

            while (mask != 0) {
                const auto p = pick_rows<GATHER_IN_FLIGHT>(&mask);
                raw8<T> fetched[GATHER_IN_FLIGHT];

                fetch_picked<W>(fetched, x, row + c, p, i, n.h);
#pragma unroll
                for (int k = 0; k < GATHER_IN_FLIGHT; k++) {
                    if (p.at[k] < 0)
                        break;
                    const float by = w == NULL ? 1.0f : w[c + p.at[k]];

                    unpack8(v, fetched[k]);
                    for (int j = 0; j < 8; j++)
                        sum[j] += by * v[j];
                }
            }
        }
        if (plus != NULL) {
            load8(v, plus + t * n.h + i, n.h - i);
            for (int j = 0; j < 8; j++)
                sum[j] += v[j];
        }
        store8(y + t * n.h + i, sum, n.h - i);
    }
}

/* dx[row(t, j)] = prob dy[t] and dprob[t, j] = dy[t] . x[row(t, j)], for the picked choices. */
template <class T, int G, bool W>
static __device__ __forceinline__ void scatter_rows_of(const picked_rows<SCATTER_IN_FLIGHT> &p,
                                                       int64_t h, T *__restrict__ dx, float *dprob,
                                                       const T *__restrict__ dy,
                                                       const T *__restrict__ x,
                                                       const float *__restrict__ prob,
                                                       const int32_t *__restrict__ row)
{
    float dot[SCATTER_IN_FLIGHT] = {}, d[8], v[8];

    D9DI_ROW8 (i, h, G) {
        raw8<T> fetched[SCATTER_IN_FLIGHT];

        load8(d, dy + i, h - i);
        fetch_picked<W>(fetched, x, row, p, i, h);
#pragma unroll
        for (int k = 0; k < SCATTER_IN_FLIGHT; k++) {
            if (p.at[k] < 0)
                break;
            unpack8(v, fetched[k]);
            for (int j = 0; j < 8; j++) {
                dot[k] = fmaf(d[j], v[j], dot[k]);
                v[j] = d[j] * prob[p.at[k]];
            }
            store8(dx + (int64_t)row[p.at[k]] * h + i, v, h - i);
        }
    }
#pragma unroll
    for (int k = 0; k < SCATTER_IN_FLIGHT; k++) {
        const float sum = group_sum<G>(dot[k]);

        if (p.at[k] >= 0 && threadIdx.x % G == 0)
            dprob[p.at[k]] = sum;
    }
}

/* G is at most a warp. */
template <class T, int G, bool W>
static __global__ void scatter_kernel(d9d_moe_permute_dims n, T *__restrict__ dx, float *dprob,
                                      const T *__restrict__ dy, const T *__restrict__ x,
                                      const float *__restrict__ prob,
                                      const int32_t *__restrict__ row)
{
    const int64_t t = group_row<G>();
    const bool has_token = t < n.rows; /* all threads of a warp take part in its reductions */
    const int64_t at = has_token ? t * n.k : 0;

    for (int64_t c = at; c < at + n.k; c += MASK_ROWS) {
        const int64_t left = at + n.k - c;
        unsigned mask = has_token ? present_mask(row + c, left) : 0;

        for (int64_t j = threadIdx.x % G; has_token && j < left && j < MASK_ROWS; j += G)
            if (!(mask >> j & 1))
                dprob[c + j] = 0.0f;
        while (__any_sync(~0u, mask != 0)) {
            const auto p = pick_rows<SCATTER_IN_FLIGHT>(&mask);

            scatter_rows_of<T, G, W>(p, n.h, dx, dprob + c, dy + (has_token ? t : 0) * n.h, x,
                                     prob + c, row + c);
        }
    }
}

template <class T>
static d9d_status launch_permute(d9d_stream s, const d9d_moe_permute_dims *n, void *y,
                                 const void *x, const int32_t *row)
{
    return D9DI_BY_ROWS(n->h, G,
                        pdl_launch(s, "permute", permute_kernel<T, G>, grid_for_rows(n->rows, G),
                                   THREADS, *n, (T *)y, (const T *)x, row));
}

/* The number of threads that share a row, such that its sums stay within a warp. */
#define DISPATCH_GROUP(n, G, ...)                                                                  \
    ((n) <= HEAD_ROW ? [&] { constexpr int G = WARP / 2; return __VA_ARGS__; }()                   \
                     : [&] { constexpr int G = WARP; return __VA_ARGS__; }())
#define DISPATCH_WIDTH(w, W, ...)                                                                  \
    ((w) ? [&] { constexpr bool W = true; return __VA_ARGS__; }()                                  \
         : [&] { constexpr bool W = false; return __VA_ARGS__; }())

template <class T> static bool can_vectorize_rows(const d9d_moe_permute_dims *n, const void *x)
{
    return n->h % 8 == 0 && (uintptr_t)x % alignof(raw8<T>) == 0;
}

template <class T, int G, bool W>
static d9d_status launch_gather(d9d_stream s, const char *op, const d9d_moe_permute_dims *n,
                                void *y, const void *x, const float *w, const int32_t *row,
                                const void *plus)
{
    return pdl_launch(s, op, gather_kernel<T, G, W>, grid_for_rows(n->rows, G), THREADS, *n, (T *)y,
                      (const T *)x, w, row, (const T *)plus);
}
template <class T>
static d9d_status gather_by_width(d9d_stream s, const char *op, const d9d_moe_permute_dims *n,
                                  void *y, const void *x, const float *w, const int32_t *row,
                                  const void *plus)
{
    const bool wide = can_vectorize_rows<T>(n, x);

    if (n->rows < s->sms) /* a block has a token: few tokens are bound by latency */
        return DISPATCH_WIDTH(wide, W, launch_gather<T, THREADS, W>(s, op, n, y, x, w, row, plus));
    return DISPATCH_GROUP(
        n->h, G, DISPATCH_WIDTH(wide, W, launch_gather<T, G, W>(s, op, n, y, x, w, row, plus)));
}

template <class T, int G, bool W>
static d9d_status launch_scatter(d9d_stream s, const d9d_moe_permute_dims *n, void *dx,
                                 float *dprob, const void *dy, const void *x, const float *prob,
                                 const int32_t *row)
{
    scatter_kernel<T, G, W><<<grid_for_rows(n->rows, G), THREADS, 0, d9di_cuda_stream(s)>>>(
        *n, (T *)dx, dprob, (const T *)dy, (const T *)x, prob, row);
    return d9di_cuda_check_launch("unpermute_bwd");
}
template <class T>
static d9d_status scatter_by_width(d9d_stream s, const d9d_moe_permute_dims *n, void *dx,
                                   float *dprob, const void *dy, const void *x, const float *prob,
                                   const int32_t *row)
{
    return DISPATCH_GROUP(
        n->h, G,
        DISPATCH_WIDTH(can_vectorize_rows<T>(n, x), W,
                       launch_scatter<T, G, W>(s, n, dx, dprob, dy, x, prob, row)));
}

d9d_status d9d_k_permute(d9d_stream s, const d9d_moe_permute_dims *n, void *y, const void *x,
                         const int32_t *row)
{
    D9D_TRY(d9di_args_check_float("permute", n->t));
    if (n->rows * n->h == 0)
        return D9D_OK;
    return D9DI_DISPATCH_DTYPE(n->t, T, launch_permute<T>(s, n, y, x, row));
}

d9d_status d9d_k_permute_bwd(d9d_stream s, const d9d_moe_permute_dims *n, void *dx, const void *dy,
                             const int32_t *row)
{
    D9D_TRY(d9di_args_check_float("permute_bwd", n->t));
    if (n->rows * n->h == 0)
        return D9D_OK;
    return D9DI_DISPATCH_DTYPE(n->t, T,
                               gather_by_width<T>(s, "permute_bwd", n, dx, dy, NULL, row, NULL));
}

d9d_status d9d_k_unpermute(d9d_stream s, const d9d_moe_permute_dims *n, void *y, const void *x,
                           const float *prob, const int32_t *row, const void *plus)
{
    D9D_TRY(d9di_args_check_float("unpermute", n->t));
    if (n->rows * n->h == 0)
        return D9D_OK;
    return D9DI_DISPATCH_DTYPE(n->t, T,
                               gather_by_width<T>(s, "unpermute", n, y, x, prob, row, plus));
}

d9d_status d9d_k_unpermute_bwd(d9d_stream s, const d9d_moe_permute_dims *n, void *dx, float *dprob,
                               const void *dy, const void *x, const float *prob, const int32_t *row)
{
    D9D_TRY(d9di_args_check_float("unpermute_bwd", n->t));
    if (n->rows * n->k == 0)
        return D9D_OK;
    return D9DI_DISPATCH_DTYPE(n->t, T, scatter_by_width<T>(s, n, dx, dprob, dy, x, prob, row));
}
