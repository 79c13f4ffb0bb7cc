/* rms_norm_parallel.cu - RMSNorm of rows that several ranks have in parts: sums of this rank's
 * part, and the norm by sums of all; see rms_norm.cu. */
#include "cuda/norm/norm.cuh"

template <class T> struct row_args {
    const T *x, *y, *w; /* backward: y is dy; w NULL: w' = 1 */
    int64_t m, n, first;
    float total, eps, centre;
};

template <class T>
static row_args<T> row_args_of(const d9d_rms_norm_parallel_dims *d, const void *x, const void *y,
                               const void *w)
{
    return {(const T *)x,
            (const T *)y,
            (const T *)w,
            d->m,
            d->n,
            d->first,
            (float)d->total,
            d->eps,
            d->zero_centred ? 1.0f : 0.0f};
}

/* w' of a vector. */
template <class T>
static __device__ __forceinline__ void load_weights(float (&u)[8], const row_args<T> &p, int64_t i)
{
    if (p.w != NULL)
        load8(u, p.w + i, p.n - i);
    for (int j = 0; j < 8; j++)
        u[j] = p.w != NULL ? u[j] + p.centre : 1.0f;
}

/* --- sums --------------------------------------------------------------------------------- */

template <class T, int G> static __global__ void dot_kernel(float *dot, row_args<T> p)
{
    const int64_t r = group_row<G>();
    float sum = 0.0f, v[8], u[8], w[8];

    if (r >= p.m)
        return;
    D9DI_ROW8 (i, p.n, G) {
        load8(v, p.x + r * p.n + i, p.n - i);
        load8(u, p.y + r * p.n + i, p.n - i);
        load_weights(w, p, i);
        for (int j = 0; j < 8; j++)
            if (i + j >= p.first)
                sum = fmaf(v[j] * w[j], u[j], sum);
    }
    sum = group_sum<G>(sum);
    if (threadIdx.x % G == 0)
        dot[r] = sum;
}

template <class T> static d9d_status launch_dot(d9d_stream s, float *dot, const row_args<T> &p)
{
    D9DI_BY_ROWS(p.n, G,
                 dot_kernel<T, G>
                 <<<grid_for_rows(p.m, G), THREADS, 0, d9di_cuda_stream(s)>>>(dot, p));
    return d9di_cuda_check_launch("rms_norm_dot");
}

d9d_status d9d_k_rms_norm_dot(d9d_stream s, const d9d_rms_norm_parallel_dims *d, float *dot,
                              const void *x, const void *y, const void *w)
{
    D9D_TRY(d9di_args_check_float("rms_norm_dot", d->t));
    return d->m == 0
               ? D9D_OK
               : D9DI_DISPATCH_DTYPE(d->t, T, launch_dot<T>(s, dot, row_args_of<T>(d, x, y, w)));
}

/* --- forward ------------------------------------------------------------------------------ */

template <class T, int G>
static __global__ void apply_kernel(T *y, float *inv, const float *sum, row_args<T> p)
{
    const int64_t r = group_row<G>();
    float v[8], w[8], scale;

    if (r >= p.m)
        return;
    scale = 1.0f / sqrtf(sum[r] / p.total + p.eps);
    if (threadIdx.x % G == 0)
        inv[r] = scale;
    D9DI_ROW8 (i, p.n, G) {
        load8(v, p.x + r * p.n + i, p.n - i);
        load_weights(w, p, i);
        for (int j = 0; j < 8; j++)
            v[j] = v[j] * scale * w[j];
        store8(y + r * p.n + i, v, p.n - i);
    }
}

template <class T>
static d9d_status launch_apply(d9d_stream s, void *y, float *inv, const float *sum,
                               const row_args<T> &p)
{
    D9DI_BY_ROWS(p.n, G,
                 apply_kernel<T, G>
                 <<<grid_for_rows(p.m, G), THREADS, 0, d9di_cuda_stream(s)>>>((T *)y, inv, sum, p));
    return d9di_cuda_check_launch("rms_norm_parallel");
}

d9d_status d9d_k_rms_norm_parallel(d9d_stream s, const d9d_rms_norm_parallel_dims *d, void *y,
                                   float *inv, const float *sum, const void *x, const void *w)
{
    D9D_TRY(d9di_args_check_float("rms_norm_parallel", d->t));
    return d->m == 0 ? D9D_OK
                     : D9DI_DISPATCH_DTYPE(
                           d->t, T, launch_apply<T>(s, y, inv, sum, row_args_of<T>(d, x, NULL, w)));
}

/* --- backward ----------------------------------------------------------------------------- */

/* dx = inv (dy w' - x c), c = inv^2 dot / total, and 0 before `first`. */
template <class T, int G>
static __global__ void dgrad_kernel(T *dx, const float *inv, const float *dot, row_args<T> p)
{
    const int64_t r = group_row<G>();
    float d[8], v[8], w[8], scale, c;

    if (r >= p.m)
        return;
    scale = inv[r];
    c = scale * scale * dot[r] / p.total;
    D9DI_ROW8 (i, p.n, G) {
        load8(d, p.y + r * p.n + i, p.n - i);
        load8(v, p.x + r * p.n + i, p.n - i);
        load_weights(w, p, i);
        for (int j = 0; j < 8; j++)
            d[j] = scale * (d[j] * w[j] - v[j] * (i + j < p.first ? 0.0f : c));
        store8(dx + r * p.n + i, d, p.n - i);
    }
}

template <class T>
static d9d_status launch_dgrad(d9d_stream s, void *dx, const float *inv, const float *dot,
                               const row_args<T> &p)
{
    if (p.m > 0)
        D9DI_BY_ROWS(p.n, G,
                     dgrad_kernel<T, G><<<grid_for_rows(p.m, G), THREADS, 0, d9di_cuda_stream(s)>>>(
                         (T *)dx, inv, dot, p));
    return d9di_cuda_check_launch("rms_norm_parallel_bwd");
}

template <class T, class G>
static d9d_status run_wgrad(d9d_stream s, G *dw, float beta, const float *inv, const row_args<T> &p)
{
    const int64_t rows = part_rows(p.m, p.n), parts = d9di_i64_ceil_div(p.m, rows),
                  bytes = d9di_i64_max(parts, 1) * p.n * 4;
    const cudaStream_t queue = d9di_cuda_stream(s);
    void *part;

    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &part));
    if (parts > 0)
        wgrad_columns<T>(queue, {(float *)part, NULL, p.y, p.x, NULL, inv, p.m, p.n, rows}, parts);
    parts_sum(queue, dw, beta, (const float *)part, p.n, parts);
    d9di_cuda_scratch_free(s, part, bytes);
    return d9di_cuda_check_launch("rms_norm_parallel_bwd");
}

d9d_status d9d_k_rms_norm_parallel_bwd(d9d_stream s, const d9d_rms_norm_parallel_dims *d, void *dx,
                                       d9d_dtype gt, void *dw, float beta, const void *dy,
                                       const void *x, const void *w, const float *inv,
                                       const float *dot)
{
    D9D_TRY(d9di_args_check_float("rms_norm_parallel_bwd", d->t));
    D9D_TRY(d9di_args_check_float("rms_norm_parallel_bwd", gt));
    if (d->n == 0)
        return D9D_OK;
    if (dw != NULL)
        D9D_TRY(D9DI_DISPATCH_DTYPE(d->t, T, D9DI_DISPATCH_DTYPE(gt, G, [&] {
                                        return run_wgrad<T, G>(s, (G *)dw, beta, inv,
                                                               row_args_of<T>(d, x, dy, w));
                                    }())));
    return dx == NULL ? D9D_OK
                      : D9DI_DISPATCH_DTYPE(
                            d->t, T, launch_dgrad<T>(s, dx, inv, dot, row_args_of<T>(d, x, dy, w)));
}
