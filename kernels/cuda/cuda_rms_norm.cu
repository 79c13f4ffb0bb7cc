/* cuda_rms_norm.cu - y = x inv w', inv = 1/sqrt(mean(x^2) + eps), w' = w or 1 + w.
 * With x^ = x inv: dx = inv (dy w' - x^ mean(dy w' x^)), dw = sum over rows of dy x^. */
#include "cuda_common.cuh"

template <class T, int G>
static __global__ void norm_kernel(T *y, float *inv, const T *x, const T *w, int64_t m, int64_t n,
                                   float eps, float centre)
{
    const int64_t r = row_mine<G>();
    float sum = 0.0f, scale, v[8], u[8];

    if (r >= m)
        return;
    D9DI_ROW8 (i, n, G) {
        load8(v, x + r * n + i, n - i);
        for (int j = 0; j < 8; j++)
            sum = fmaf(v[j], v[j], sum);
    }
    scale = 1.0f / sqrtf(group_sum<G>(sum) / (float)n + eps);
    if (threadIdx.x % G == 0)
        inv[r] = scale;
    D9DI_ROW8 (i, n, G) {
        load8(v, x + r * n + i, n - i);
        load8(u, w + i, n - i);
        for (int j = 0; j < 8; j++)
            v[j] = v[j] * scale * (u[j] + centre);
        store8(y + r * n + i, v, n - i);
    }
}

/* dx = inv (g - x c), g = dy w', c = inv^2 mean(g x). */
template <class T, int G>
static __global__ void norm_din_kernel(T *dx, const T *dy, const T *x, const T *w, const float *inv,
                                       int64_t m, int64_t n, float centre)
{
    const int64_t r = row_mine<G>();
    float dot = 0.0f, scale, c, d[8], v[8], u[8];

    if (r >= m)
        return;
    D9DI_ROW8 (i, n, G) {
        load8(d, dy + r * n + i, n - i);
        load8(v, x + r * n + i, n - i);
        load8(u, w + i, n - i);
        for (int j = 0; j < 8; j++)
            dot = fmaf(d[j] * (u[j] + centre), v[j], dot);
    }
    scale = inv[r];
    c = scale * scale * group_sum<G>(dot) / (float)n;
    D9DI_ROW8 (i, n, G) {
        load8(d, dy + r * n + i, n - i);
        load8(v, x + r * n + i, n - i);
        load8(u, w + i, n - i);
        for (int j = 0; j < 8; j++)
            d[j] = scale * (d[j] * (u[j] + centre) - v[j] * c);
        store8(dx + r * n + i, d, n - i);
    }
}

template <class T, int G>
static d9d_status norm(d9d_stream s, void *y, float *inv, const void *x, const void *w, int64_t m,
                       int64_t n, float eps, float centre)
{
    norm_kernel<T, G><<<blocks_of_rows(m, G), THREADS, 0, d9di_queue(s)>>>(
        (T *)y, inv, (const T *)x, (const T *)w, m, n, eps, centre);
    return d9di_launched("rms_norm");
}

template <class T, int G>
static d9d_status norm_din(d9d_stream s, void *dx, const void *dy, const void *x, const void *w,
                           const float *inv, int64_t m, int64_t n, float centre)
{
    norm_din_kernel<T, G><<<blocks_of_rows(m, G), THREADS, 0, d9di_queue(s)>>>(
        (T *)dx, (const T *)dy, (const T *)x, (const T *)w, inv, m, n, centre);
    return d9di_launched("rms_norm_din");
}

d9d_status d9d_k_rms_norm(d9d_stream s, d9d_dtype t, void *y, float *inv, const void *x,
                          const void *w, int64_t m, int64_t n, float eps, bool zero_centred)
{
    const float centre = zero_centred ? 1.0f : 0.0f;

    D9D_TRY(d9di_check_float("rms_norm", t));
    if (m == 0)
        return D9D_OK;
    return D9DI_TYPED(t, T, D9DI_BY_ROWS(n, G, norm<T, G>(s, y, inv, x, w, m, n, eps, centre)));
}

d9d_status d9d_k_rms_norm_din(d9d_stream s, d9d_dtype t, void *dx, const void *dy, const void *x,
                              const void *w, const float *inv, int64_t m, int64_t n,
                              bool zero_centred)
{
    const float centre = zero_centred ? 1.0f : 0.0f;

    D9D_TRY(d9di_check_float("rms_norm_din", t));
    if (m == 0)
        return D9D_OK;
    return D9DI_TYPED(t, T, D9DI_BY_ROWS(n, G, norm_din<T, G>(s, dx, dy, x, w, inv, m, n, centre)));
}

/* --- the gradient of w: sums of parts of the rows, then the sum of the parts ------------------ */

/* A block has 8 COLS columns and LANES rows at a time. */
enum {
    COLS = WARP / 2,
    LANES = THREADS / COLS,
    PARTS = 2048,
    MOST_PARTS = 512,
    LEAST_ROWS = LANES
};

template <class T>
static __global__ void norm_dw_kernel(float *part, const T *dy, const T *x, const float *inv,
                                      int64_t m, int64_t n, int64_t rows)
{
    __shared__ float sums[LANES][COLS * 8];
    const int64_t c = ((int64_t)blockIdx.x * COLS + threadIdx.x) * 8;
    const int64_t first = blockIdx.y * rows, end = d9di_min(m, first + rows);
    float sum[8] = {}, d[8], v[8];

#pragma unroll 4
    for (int64_t r = first + threadIdx.y; r < end && c < n; r += LANES) {
        const float scale = inv[r];

        load8(d, dy + r * n + c, n - c);
        load8(v, x + r * n + c, n - c);
        for (int j = 0; j < 8; j++)
            sum[j] = fmaf(d[j], v[j] * scale, sum[j]);
    }
    for (int j = 0; j < 8; j++)
        sums[threadIdx.y][threadIdx.x * 8 + j] = sum[j];
    __syncthreads();
    for (int i = threadIdx.y * COLS + threadIdx.x; i < COLS * 8; i += THREADS) {
        const int64_t at = (int64_t)blockIdx.x * COLS * 8 + i;
        float all = sums[0][i];

        for (int l = 1; l < LANES; l++)
            all += sums[l][i];
        if (at < n)
            part[blockIdx.y * n + at] = all;
    }
}

/* The parts of a column, a warp's lanes each some, in one order. */
template <class G>
static __global__ void norm_dw_last(G *dw, float beta, const float *part, int64_t n, int64_t parts)
{
    __shared__ float sums[WARP][WARP + 1];
    const int64_t c = (int64_t)blockIdx.x * WARP + threadIdx.x;
    float sum = 0.0f;

    for (int64_t p = threadIdx.y; p < parts && c < n; p += WARP)
        sum += part[p * n + c];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    for (int l = 1; l < WARP && threadIdx.y == 0; l++)
        sum += sums[l][threadIdx.x];
    if (threadIdx.y == 0 && c < n)
        put(dw + c, sum + (beta == 0.0f ? 0.0f : beta * to_float(dw[c])));
}

template <class T, class G>
static d9d_status norm_dw(d9d_stream s, void *dw, float beta, const void *dy, const void *x,
                          const float *inv, int64_t m, int64_t n)
{
    const int64_t across = d9di_ceil_div(n, COLS * 8);
    const int64_t most = d9di_max(1, d9di_min(MOST_PARTS, PARTS / across));
    const int64_t rows = d9di_max(LEAST_ROWS, d9di_ceil_div(m, most));
    const int64_t parts = d9di_ceil_div(m, rows), bytes = d9di_max(parts, 1) * n * 4;
    const dim3 block(COLS, LANES), grid((unsigned)across, (unsigned)parts);
    const dim3 last(WARP, WARP);
    cudaStream_t queue = d9di_queue(s);
    void *part;

    D9D_TRY(d9di_take(s, bytes, &part));
    if (parts > 0)
        norm_dw_kernel<<<grid, block, 0, queue>>>((float *)part, (const T *)dy, (const T *)x, inv,
                                                  m, n, rows);
    norm_dw_last<<<(unsigned)d9di_ceil_div(n, WARP), last, 0, queue>>>(
        (G *)dw, beta, (const float *)part, n, parts);
    d9di_give(s, part, bytes);
    return d9di_launched("rms_norm_dw");
}

d9d_status d9d_k_rms_norm_dw(d9d_stream s, d9d_dtype t, d9d_dtype gt, void *dw, float beta,
                             const void *dy, const void *x, const float *inv, int64_t m, int64_t n)
{
    D9D_TRY(d9di_check_float("rms_norm_dw", t));
    D9D_TRY(d9di_check_float("rms_norm_dw", gt));
    if (n == 0)
        return D9D_OK;
    return D9DI_TYPED(t, T, D9DI_TYPED(gt, G, norm_dw<T, G>(s, dw, beta, dy, x, inv, m, n)));
}
