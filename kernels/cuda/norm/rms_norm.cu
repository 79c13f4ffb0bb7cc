/* rms_norm.cu - RMSNorm: y = x inv w', inv = 1/sqrt(mean(x^2) + eps), w' = w or 1 + w. With x^ = x
 * inv: dx = inv (dy w' - x^ mean(dy w' x^)), dw = sum over rows of dy x^.
 *
 * G threads have a row and hold it in registers, CH vectors of eight elements each: an array is
 * read once.
 */
#include "cuda/norm/norm.cuh"

/* --- forward -------------------------------------------------------------------------- */

template <class T, int G, int CH>
static __global__ void norm_kernel(T *y, float *inv, const T *x, const T *w, int64_t m, int64_t n,
                                   float eps, float centre)
{
    const int64_t step = (int64_t)gridDim.x * (THREADS / G);
    float sum, scale, v[CH][8], u[CH][8];
    raw8<T> next[CH];
    const auto fetch = [&](int64_t row) {
#pragma unroll
        for (int c = 0; c < CH; c++)
            fetch8(next[c], x + row * n + EIGHT(c, G), row < m ? n - EIGHT(c, G) : 0);
    };

    pdl_launch_dependents();
    pdl_wait();
    fetch(group_row<G>());
    for (int c = 0; c < CH; c++)
        load8(u[c], w + EIGHT(c, G), n - EIGHT(c, G));
    for (int64_t r = group_row<G>(); r < m; r += step) {
        for (int c = 0; c < CH; c++)
            unpack8(v[c], next[c]);
        fetch(r + step);
        sum = 0.0f;
        for (int c = 0; c < CH; c++)
            for (int j = 0; j < 8; j++)
                sum = fmaf(v[c][j], v[c][j], sum);
        scale = 1.0f / sqrtf(group_sum<G>(sum) / (float)n + eps);
        if (threadIdx.x % G == 0)
            inv[r] = scale;
#pragma unroll
        for (int c = 0; c < CH; c++) {
            for (int j = 0; j < 8; j++)
                v[c][j] = v[c][j] * scale * (u[c][j] + centre);
            if (EIGHT(c, G) < n)
                store8(y + r * n + EIGHT(c, G), v[c], n - EIGHT(c, G));
        }
    }
}

template <class T>
static __global__ void wide_norm_kernel(T *y, float *inv, const T *x, const T *w, int64_t m,
                                        int64_t n, float eps, float centre)
{
    const int64_t r = group_row<THREADS>();
    float sum = 0.0f, scale, v[8], u[8];

    pdl_launch_dependents();
    pdl_wait();
    D9DI_ROW8 (i, n, THREADS) {
        load8(v, x + r * n + i, n - i);
        for (int j = 0; j < 8; j++)
            sum = fmaf(v[j], v[j], sum);
    }
    scale = 1.0f / sqrtf(group_sum<THREADS>(sum) / (float)n + eps);
    if (threadIdx.x == 0)
        inv[r] = scale;
    D9DI_ROW8 (i, n, THREADS) {
        load8(v, x + r * n + i, n - i);
        load8(u, w + i, n - i);
        for (int j = 0; j < 8; j++)
            v[j] = v[j] * scale * (u[j] + centre);
        store8(y + r * n + i, v, n - i);
    }
}

template <class T>
static d9d_status launch_norm(d9d_stream s, void *y, float *inv, const void *x, const void *w,
                              int64_t m, int64_t n, float eps, float centre)
{
    if (n > MAX_FUSED)
        return pdl_launch(s, "rms_norm", wide_norm_kernel<T>, dim3((unsigned)m), THREADS, (T *)y,
                          inv, (const T *)x, (const T *)w, m, n, eps, centre);
    return BY_EIGHTS(n, G, CH,
                     pdl_launch(s, "rms_norm", norm_kernel<T, G, CH>, grid_for(s, m * G), THREADS,
                                (T *)y, inv, (const T *)x, (const T *)w, m, n, eps, centre));
}

d9d_status d9d_k_rms_norm(d9d_stream s, d9d_dtype t, void *y, float *inv, const void *x,
                          const void *w, int64_t m, int64_t n, float eps, bool zero_centred)
{
    const float centre = zero_centred ? 1.0f : 0.0f;

    D9D_TRY(d9di_args_check_float("rms_norm", t));
    return m == 0 ? D9D_OK
                  : D9DI_DISPATCH_DTYPE(t, T, launch_norm<T>(s, y, inv, x, w, m, n, eps, centre));
}

/* --- backward: dx, and dw as sums over parts of the rows ------------------------------------- */

/* Outputs: dx, part, or both. A block has rows [first, first + rows). */
template <class T> struct rms_norm_bwd_args {
    T *dx;
    const T *plus;
    float *part;
    const T *dy, *x, *w;
    const float *inv;
    int64_t m, n, rows;
    float centre;
};

/* dx = inv (g - x c) + plus, g = dy w', c = inv^2 mean(g x). The next row is in flight while the
 * threads reduce this one. */
template <class T, int G, int CH>
static __global__ void __launch_bounds__(THREADS, CH == 1 ? 3 : 1)
    bwd_kernel(rms_norm_bwd_args<T> p)
{
    const int64_t end = d9di_i64_min(p.m, (blockIdx.x + 1) * p.rows), n = p.n;
    float sum[CH][8] = {}, w[CH][8], d[CH][8], x[CH][8], old[CH][8] = {}, dot, c, inv_next;
    raw8<T> dy_next[CH], x_next[CH], plus_next[CH];
    int64_t r = blockIdx.x * p.rows + threadIdx.x / G;
    const auto fetch = [&](raw8<T>(&to)[CH], const T *from, int64_t row) {
#pragma unroll
        for (int k = 0; k < CH; k++)
            fetch8(to[k], from + row * n + EIGHT(k, G), row < end ? n - EIGHT(k, G) : 0);
    };

    for (int k = 0; k < CH; k++) {
        load8(w[k], p.w + EIGHT(k, G), n - EIGHT(k, G));
        for (int j = 0; j < 8; j++)
            w[k][j] += p.centre;
    }
    const auto fetch_all = [&](int64_t row) {
        inv_next = row < end ? p.inv[row] : 0.0f;
        fetch(dy_next, p.dy, row);
        fetch(x_next, p.x, row);
        if (p.plus != NULL)
            fetch(plus_next, p.plus, row);
    };

    fetch_all(r);
    for (; r < end; r += THREADS / G) {
        const float inv = inv_next;

        for (int k = 0; k < CH; k++) {
            unpack8(d[k], dy_next[k]);
            unpack8(x[k], x_next[k]);
            if (p.plus != NULL)
                unpack8(old[k], plus_next[k]);
        }
        fetch_all(r + THREADS / G);
        dot = 0.0f;
#pragma unroll
        for (int k = 0; k < CH; k++)
            for (int j = 0; j < 8; j++) {
                sum[k][j] = fmaf(d[k][j], x[k][j] * inv, sum[k][j]);
                d[k][j] *= w[k][j];
                dot = fmaf(d[k][j], x[k][j], dot);
            }
        if (p.dx == NULL)
            continue;
        c = inv * inv * group_sum<G>(dot) / (float)n;
#pragma unroll
        for (int k = 0; k < CH; k++) {
            const int i = EIGHT(k, G);

            for (int j = 0; j < 8; j++)
                d[k][j] = inv * (d[k][j] - x[k][j] * c) + old[k][j];
            if (i < n)
                store8(p.dx + r * n + i, d[k], n - i);
        }
    }
    if (p.part != NULL)
        part_store<G, CH>(p.part, sum, n);
}

template <class T> static __global__ void wide_dgrad_kernel(rms_norm_bwd_args<T> p)
{
    const int64_t r = group_row<THREADS>(), n = p.n;
    float dot = 0.0f, scale, c, d[8], v[8], u[8];

    D9DI_ROW8 (i, n, THREADS) {
        load8(d, p.dy + r * n + i, n - i);
        load8(v, p.x + r * n + i, n - i);
        load8(u, p.w + i, n - i);
        for (int j = 0; j < 8; j++)
            dot = fmaf(d[j] * (u[j] + p.centre), v[j], dot);
    }
    scale = p.inv[r];
    c = scale * scale * group_sum<THREADS>(dot) / (float)n;
    D9DI_ROW8 (i, n, THREADS) {
        float old[8] = {};

        load8(d, p.dy + r * n + i, n - i);
        load8(v, p.x + r * n + i, n - i);
        load8(u, p.w + i, n - i);
        if (p.plus != NULL)
            load8(old, p.plus + r * n + i, n - i);
        for (int j = 0; j < 8; j++)
            d[j] = scale * (d[j] * (u[j] + p.centre) - v[j] * c) + old[j];
        store8(p.dx + r * n + i, d, n - i);
    }
}

template <class T>
static void launch_bwd(cudaStream_t queue, const rms_norm_bwd_args<T> &p, int64_t parts)
{
    if (parts == 0)
        return;
    if (p.n <= MAX_FUSED) {
        BY_EIGHTS(p.n, G, CH, bwd_kernel<T, G, CH><<<(unsigned)parts, THREADS, 0, queue>>>(p));
        return;
    }
    if (p.part != NULL)
        wgrad_columns<T>(queue, {p.part, NULL, p.dy, p.x, NULL, p.inv, p.m, p.n, p.rows}, parts);
    if (p.dx != NULL)
        wide_dgrad_kernel<T><<<(unsigned)p.m, THREADS, 0, queue>>>(p);
}

template <class T, class G>
static d9d_status run_bwd(d9d_stream s, rms_norm_bwd_args<T> p, G *dw, float beta)
{
    int64_t parts, bytes;
    void *part = NULL;

    p.rows = part_rows(p.m, p.n);
    parts = d9di_i64_ceil_div(p.m, p.rows);
    bytes = d9di_i64_max(parts, 1) * p.n * 4;
    if (dw != NULL)
        D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &part));
    p.part = (float *)part;
    launch_bwd(d9di_cuda_stream(s), p, parts);
    if (dw == NULL)
        return d9di_cuda_check_launch("rms_norm_bwd");
    parts_sum(d9di_cuda_stream(s), dw, beta, p.part, p.n, parts);
    d9di_cuda_scratch_free(s, part, bytes);
    return d9di_cuda_check_launch("rms_norm_bwd");
}

d9d_status d9d_k_rms_norm_bwd(d9d_stream s, d9d_dtype t, void *dx, const void *plus, d9d_dtype gt,
                              void *dw, float beta, const void *dy, const void *x, const void *w,
                              const float *inv, int64_t m, int64_t n, bool zero_centred)
{
    D9D_TRY(d9di_args_check_float("rms_norm_bwd", t));
    D9D_TRY(d9di_args_check_float("rms_norm_bwd", gt));
    if (n == 0)
        return D9D_OK;
    return D9DI_DISPATCH_DTYPE(t, T, D9DI_DISPATCH_DTYPE(gt, G, [&] {
                                   const rms_norm_bwd_args<T> p = {(T *)dx,
                                                                   (const T *)plus,
                                                                   NULL,
                                                                   (const T *)dy,
                                                                   (const T *)x,
                                                                   (const T *)w,
                                                                   inv,
                                                                   m,
                                                                   n,
                                                                   0,
                                                                   zero_centred ? 1.0f : 0.0f};

                                   return run_bwd<T, G>(s, p, (G *)dw, beta);
                               }()));
}
