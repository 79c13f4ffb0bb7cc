/* layer_norm.cu - LayerNorm: y = x^ w + b, x^ = (x - mean) inv, inv = 1/sqrt(mean((x - mean)^2) +
 * eps). With g = dy w: dx = inv (g - mean(g) - x^ mean(g x^)), dw = sum over rows of dy x^, db =
 * sum of dy.
 *
 * Rows are held in registers as in rms_norm.cu; longer rows than MAX_FUSED are read again.
 */
#include "cuda/norm/norm.cuh"

/* A vector of a weight that may be absent. */
template <class T>
static __device__ __forceinline__ void load8_or(float (&u)[8], const T *w, int64_t i, int64_t n,
                                                float otherwise)
{
    if (w != NULL)
        load8(u, w + i, n - i);
    else
        for (int j = 0; j < 8; j++)
            u[j] = otherwise;
}

/* --- forward -------------------------------------------------------------------------- */

template <class T> struct layer_norm_args {
    T *y;
    float *mean, *inv;
    const T *x, *w, *b;
    int64_t m, n;
    float eps;
};

/* Elements of a vector beyond the row are not of its variance. */
static __device__ __forceinline__ float square_sum(float sum, const float (&v)[8], float mean,
                                                   int64_t n)
{
    for (int j = 0; j < 8; j++)
        if (j < n)
            sum = fmaf(v[j] - mean, v[j] - mean, sum);
    return sum;
}

template <class T, int G, int CH> static __global__ void norm_kernel(layer_norm_args<T> p)
{
    const int64_t step = (int64_t)gridDim.x * (THREADS / G), n = p.n;
    float v[CH][8], w[CH][8], b[CH][8];

    pdl_launch_dependents();
    pdl_wait();
    for (int c = 0; c < CH; c++) {
        load8_or(w[c], p.w, EIGHT(c, G), n, 1.0f);
        load8_or(b[c], p.b, EIGHT(c, G), n, 0.0f);
    }
    for (int64_t r = group_row<G>(); r < p.m; r += step) {
        float sum = 0.0f, square = 0.0f, mean, inv;

#pragma unroll
        for (int c = 0; c < CH; c++) {
            load8(v[c], p.x + r * n + EIGHT(c, G), n - EIGHT(c, G));
            for (int j = 0; j < 8; j++)
                sum += v[c][j];
        }
        mean = group_sum<G>(sum) / (float)n;
#pragma unroll
        for (int c = 0; c < CH; c++)
            square = square_sum(square, v[c], mean, n - EIGHT(c, G));
        inv = 1.0f / sqrtf(group_sum<G>(square) / (float)n + p.eps);
        if (threadIdx.x % G == 0) {
            p.mean[r] = mean;
            p.inv[r] = inv;
        }
#pragma unroll
        for (int c = 0; c < CH; c++) {
            for (int j = 0; j < 8; j++)
                v[c][j] = (v[c][j] - mean) * inv * w[c][j] + b[c][j];
            if (EIGHT(c, G) < n)
                store8(p.y + r * n + EIGHT(c, G), v[c], n - EIGHT(c, G));
        }
    }
}

template <class T> static __global__ void wide_norm_kernel(layer_norm_args<T> p)
{
    const int64_t r = group_row<THREADS>(), n = p.n;
    float sum = 0.0f, square = 0.0f, mean, inv, v[8], w[8], b[8];

    pdl_launch_dependents();
    pdl_wait();
    D9DI_ROW8 (i, n, THREADS) {
        load8(v, p.x + r * n + i, n - i);
        for (int j = 0; j < 8; j++)
            sum += v[j];
    }
    mean = group_sum<THREADS>(sum) / (float)n;
    D9DI_ROW8 (i, n, THREADS) {
        load8(v, p.x + r * n + i, n - i);
        square = square_sum(square, v, mean, n - i);
    }
    inv = 1.0f / sqrtf(group_sum<THREADS>(square) / (float)n + p.eps);
    if (threadIdx.x == 0) {
        p.mean[r] = mean;
        p.inv[r] = inv;
    }
    D9DI_ROW8 (i, n, THREADS) {
        load8(v, p.x + r * n + i, n - i);
        load8_or(w, p.w, i, n, 1.0f);
        load8_or(b, p.b, i, n, 0.0f);
        for (int j = 0; j < 8; j++)
            v[j] = (v[j] - mean) * inv * w[j] + b[j];
        store8(p.y + r * n + i, v, n - i);
    }
}

template <class T> static d9d_status launch_norm(d9d_stream s, const layer_norm_args<T> &p)
{
    if (p.n > MAX_FUSED)
        return pdl_launch(s, "layer_norm", wide_norm_kernel<T>, dim3((unsigned)p.m), THREADS, p);
    return BY_EIGHTS(
        p.n, G, CH,
        pdl_launch(s, "layer_norm", norm_kernel<T, G, CH>, grid_for(s, p.m * G), THREADS, p));
}

d9d_status d9d_k_layer_norm(d9d_stream s, d9d_dtype t, void *y, float *mean, float *inv,
                            const void *x, const void *w, const void *b, int64_t m, int64_t n,
                            float eps)
{
    D9D_TRY(d9di_args_check_float("layer_norm", t));
    return m == 0 ? D9D_OK
                  : D9DI_DISPATCH_DTYPE(t, T,
                                        launch_norm<T>(s, {(T *)y, mean, inv, (const T *)x,
                                                           (const T *)w, (const T *)b, m, n, eps}));
}

/* --- backward: dx, and dw and db as sums over parts of the rows ------------------------------- */

/* Outputs: dx, part_w and part_b, each NULL: not computed. A block has rows [first, first + rows).
 */
template <class T> struct layer_norm_bwd_args {
    T *dx;
    const T *plus;
    float *part_w, *part_b;
    const T *dy, *x, *w;
    const float *mean, *inv;
    int64_t m, n, rows;
};

template <class T, int G, int CH>
static __global__ void __launch_bounds__(THREADS) bwd_kernel(layer_norm_bwd_args<T> p)
{
    const int64_t end = d9di_i64_min(p.m, (blockIdx.x + 1) * p.rows), n = p.n;
    float sum_w[CH][8] = {}, sum_b[CH][8] = {}, w[CH][8], d[CH][8], x[CH][8];

    for (int k = 0; k < CH; k++)
        load8_or(w[k], p.w, EIGHT(k, G), n, 1.0f);
    for (int64_t r = blockIdx.x * p.rows + threadIdx.x / G; r < end; r += THREADS / G) {
        const float mean = p.mean[r], inv = p.inv[r];
        float sum = 0.0f, dot = 0.0f, a, c;

#pragma unroll
        for (int k = 0; k < CH; k++) {
            load8(d[k], p.dy + r * n + EIGHT(k, G), n - EIGHT(k, G));
            load8(x[k], p.x + r * n + EIGHT(k, G), n - EIGHT(k, G));
            for (int j = 0; j < 8; j++) { /* beyond the row dy is 0 */
                x[k][j] -= mean;
                sum_w[k][j] = fmaf(d[k][j], x[k][j] * inv, sum_w[k][j]);
                sum_b[k][j] += d[k][j];
                d[k][j] *= w[k][j];
                sum += d[k][j];
                dot = fmaf(d[k][j], x[k][j], dot);
            }
        }
        if (p.dx == NULL)
            continue;
        a = group_sum<G>(sum) / (float)n;
        c = inv * inv * group_sum<G>(dot) / (float)n;
#pragma unroll
        for (int k = 0; k < CH; k++) {
            const int i = EIGHT(k, G);
            float old[8] = {};

            if (p.plus != NULL)
                load8(old, p.plus + r * n + i, n - i);
            for (int j = 0; j < 8; j++)
                d[k][j] = inv * (d[k][j] - a - x[k][j] * c) + old[j];
            if (i < n)
                store8(p.dx + r * n + i, d[k], n - i);
        }
    }
    if (p.part_w != NULL)
        part_store<G, CH>(p.part_w, sum_w, n);
    if (p.part_b != NULL)
        part_store<G, CH>(p.part_b, sum_b, n);
}

template <class T> static __global__ void wide_dgrad_kernel(layer_norm_bwd_args<T> p)
{
    const int64_t r = group_row<THREADS>(), n = p.n;
    const float mean = p.mean[r], inv = p.inv[r];
    float sum = 0.0f, dot = 0.0f, a, c, d[8], v[8], w[8];

    D9DI_ROW8 (i, n, THREADS) {
        load8(d, p.dy + r * n + i, n - i);
        load8(v, p.x + r * n + i, n - i);
        load8_or(w, p.w, i, n, 1.0f);
        for (int j = 0; j < 8; j++) {
            sum += d[j] * w[j];
            dot = fmaf(d[j] * w[j], v[j] - mean, dot);
        }
    }
    a = group_sum<THREADS>(sum) / (float)n;
    c = inv * inv * group_sum<THREADS>(dot) / (float)n;
    D9DI_ROW8 (i, n, THREADS) {
        float old[8] = {};

        load8(d, p.dy + r * n + i, n - i);
        load8(v, p.x + r * n + i, n - i);
        load8_or(w, p.w, i, n, 1.0f);
        if (p.plus != NULL)
            load8(old, p.plus + r * n + i, n - i);
        for (int j = 0; j < 8; j++)
            d[j] = inv * (d[j] * w[j] - a - (v[j] - mean) * c) + old[j];
        store8(p.dx + r * n + i, d, n - i);
    }
}

template <class T>
static void launch_bwd(cudaStream_t queue, const layer_norm_bwd_args<T> &p, int64_t parts)
{
    if (parts == 0)
        return;
    if (p.n <= MAX_FUSED) {
        BY_EIGHTS(p.n, G, CH, bwd_kernel<T, G, CH><<<(unsigned)parts, THREADS, 0, queue>>>(p));
        return;
    }
    if (p.part_w != NULL || p.part_b != NULL)
        wgrad_columns<T>(queue, {p.part_w, p.part_b, p.dy, p.x, p.mean, p.inv, p.m, p.n, p.rows},
                         parts);
    if (p.dx != NULL)
        wide_dgrad_kernel<T><<<(unsigned)p.m, THREADS, 0, queue>>>(p);
}

/* dw and db from the sums of parts. */
static void grads_sum(cudaStream_t queue, const d9d_layer_norm_grads *of, const float *part_w,
                      const float *part_b, int64_t n, int64_t parts)
{
    if (of->dw != NULL)
        D9DI_DISPATCH_DTYPE(of->wt, G, parts_sum(queue, (G *)of->dw, of->beta_w, part_w, n, parts));
    if (of->db != NULL)
        D9DI_DISPATCH_DTYPE(of->bt, G, parts_sum(queue, (G *)of->db, of->beta_b, part_b, n, parts));
}

template <class T>
static d9d_status run_bwd(d9d_stream s, layer_norm_bwd_args<T> p, const d9d_layer_norm_grads *of)
{
    const bool any = of->dw != NULL || of->db != NULL;
    int64_t parts, bytes;
    void *part = NULL;

    p.rows = part_rows(p.m, p.n);
    parts = d9di_i64_ceil_div(p.m, p.rows);
    bytes = 2 * d9di_i64_max(parts, 1) * p.n * 4;
    if (any)
        D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &part));
    p.part_w = of->dw != NULL ? (float *)part : NULL;
    p.part_b = of->db != NULL ? (float *)part + parts * p.n : NULL;
    launch_bwd(d9di_cuda_stream(s), p, parts);
    grads_sum(d9di_cuda_stream(s), of, p.part_w, p.part_b, p.n, parts);
    if (any)
        d9di_cuda_scratch_free(s, part, bytes);
    return d9di_cuda_check_launch("layer_norm_bwd");
}

d9d_status d9d_k_layer_norm_bwd(d9d_stream s, d9d_dtype t, void *dx, const void *plus,
                                const d9d_layer_norm_grads *of, const void *dy, const void *x,
                                const void *w, const float *mean, const float *inv, int64_t m,
                                int64_t n)
{
    D9D_TRY(d9di_args_check_float("layer_norm_bwd", t));
    if (of->dw != NULL)
        D9D_TRY(d9di_args_check_float("layer_norm_bwd", of->wt));
    if (of->db != NULL)
        D9D_TRY(d9di_args_check_float("layer_norm_bwd", of->bt));
    if (n == 0)
        return D9D_OK;
    return D9DI_DISPATCH_DTYPE(t, T,
                               run_bwd<T>(s,
                                          {(T *)dx, (const T *)plus, NULL, NULL, (const T *)dy,
                                           (const T *)x, (const T *)w, mean, inv, m, n, 0},
                                          of));
}
