/* rms_norm_gated.cu - RMSNormGated: y = x inv w silu(z), a norm, then a gate; see
 * cpu/rms_norm_gated.c. */
#include "cuda/norm/norm.cuh"

enum { ROWS = 64, MAX_PARTS = 256, LANES = THREADS / WARP };

template <class T> struct gated_args {
    T *y, *dz; /* y or dx */
    const T *dy, *x, *z, *w;
    float *inv;
    int64_t m, n;
};

template <int G, class T>
static __global__ void __launch_bounds__(THREADS) norm_kernel(gated_args<T> v, float eps)
{
    const int64_t r = group_row<G>(), n = v.n;
    float sum = 0.0f;

    pdl_launch_dependents();
    pdl_wait();
    if (r >= v.m)
        return;
    D9DI_ROW8 (i, n, G) {
        float x[8];

        load8(x, v.x + r * n + i, n - i);
        for (int j = 0; j < 8; j++)
            sum = fmaf(x[j], x[j], sum);
    }
    const float inv = 1.0f / sqrtf(group_sum<G>(sum) / (float)n + eps);
    D9DI_ROW8 (i, n, G) {
        float x[8], z[8], w[8];

        load8(x, v.x + r * n + i, n - i);
        load8(z, v.z + r * n + i, n - i);
        load8(w, v.w + i, n - i);
        for (int j = 0; j < 8; j++)
            x[j] = x[j] * inv * w[j] * (z[j] * sigmoid(z[j]));
        store8(v.y + r * n + i, x, n - i);
    }
    if (threadIdx.x % G == 0)
        v.inv[r] = inv;
}

template <int G, class T>
static __global__ void __launch_bounds__(THREADS) dgrad_kernel(gated_args<T> v)
{
    const int64_t r = group_row<G>(), n = v.n;
    float sum = 0.0f;

    if (r >= v.m)
        return;
    const float inv = v.inv[r];
    for (int pass = 0; pass < 2; pass++) {
        const float c = pass == 0 ? 0.0f : inv * inv * group_sum<G>(sum) / (float)n;

        D9DI_ROW8 (i, n, G) {
            float x[8], z[8], w[8], dy[8], dz[8];

            load8(x, v.x + r * n + i, n - i);
            load8(z, v.z + r * n + i, n - i);
            load8(w, v.w + i, n - i);
            load8(dy, v.dy + r * n + i, n - i);
            for (int j = 0; j < 8; j++) {
                const float s = sigmoid(z[j]), g = dy[j] * (z[j] * s) * w[j];

                dz[j] = dy[j] * (x[j] * inv * w[j]) * (s * (1.0f + z[j] * (1.0f - s)));
                if (pass == 0)
                    sum = fmaf(g, x[j], sum);
                x[j] = inv * (g - x[j] * c);
            }
            if (pass == 0)
                continue;
            store8(v.dz + r * n + i, dz, n - i);
            store8(v.y + r * n + i, x, n - i);
        }
    }
}

/* dw of some rows and WARP columns. */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    wgrad_kernel(gated_args<T> v, int64_t rows, float *part)
{
    __shared__ float sums[LANES][WARP];
    const int lane = threadIdx.x / WARP, at = threadIdx.x % WARP;
    const int64_t c = (int64_t)blockIdx.x * WARP + at, first = blockIdx.y * rows;
    float sum = 0.0f;

    for (int64_t r = first + lane; r < d9di_i64_min(v.m, first + rows) && c < v.n; r += LANES) {
        const float z = to_float(v.z[r * v.n + c]);

        sum = fmaf(to_float(v.dy[r * v.n + c]) * (z * sigmoid(z)),
                   to_float(v.x[r * v.n + c]) * v.inv[r], sum);
    }
    sums[lane][at] = sum;
    __syncthreads();
    for (int l = 1; l < LANES && lane == 0; l++)
        sum += sums[l][at];
    if (lane == 0 && c < v.n)
        part[blockIdx.y * v.n + c] = sum;
}

template <class T> static d9d_status launch_forward(d9d_stream s, const gated_args<T> &v, float eps)
{
    return D9DI_BY_ROWS(
        v.n, G,
        pdl_launch(s, "rms_norm_gated", norm_kernel<G, T>, grid_for_rows(v.m, G), THREADS, v, eps));
}

d9d_status d9d_k_rms_norm_gated(d9d_stream s, d9d_dtype t, void *y, float *inv, const void *x,
                                const void *z, const void *w, int64_t m, int64_t n, float eps)
{
    D9D_TRY(d9di_args_check_float("rms_norm_gated", t));
    if (m == 0)
        return D9D_OK;
    return D9DI_DISPATCH_DTYPE(t, T,
                               launch_forward(s,
                                              gated_args<T>{(T *)y, NULL, NULL, (const T *)x,
                                                            (const T *)z, (const T *)w, inv, m, n},
                                              eps));
}

template <class T> static d9d_status launch_dgrad(d9d_stream s, const gated_args<T> &v)
{
    if (v.m == 0)
        return D9D_OK;
    return D9DI_BY_ROWS(v.n, G,
                        (dgrad_kernel<G>
                         <<<grid_for_rows(v.m, G), THREADS, 0, d9di_cuda_stream(s)>>>(v),
                         d9di_cuda_check_launch("rms_norm_gated_bwd")));
}

template <class T, class W>
static d9d_status launch_wgrad(d9d_stream s, const gated_args<T> &v, W *dw, float beta)
{
    const int64_t rows = d9di_i64_max(ROWS, d9di_i64_ceil_div(v.m, MAX_PARTS));
    const int64_t parts = d9di_i64_ceil_div(v.m, rows), bytes = parts * v.n * 4;
    const dim3 grid((unsigned)d9di_i64_ceil_div(v.n, WARP), (unsigned)parts);
    void *part;

    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &part));
    if (parts > 0)
        wgrad_kernel<<<grid, THREADS, 0, d9di_cuda_stream(s)>>>(v, rows, (float *)part);
    parts_sum(d9di_cuda_stream(s), dw, beta, (const float *)part, v.n, parts);
    d9di_cuda_scratch_free(s, part, bytes);
    return d9di_cuda_check_launch("rms_norm_gated_bwd");
}

template <class T, class W>
static d9d_status launch_bwd(d9d_stream s, const gated_args<T> &v, W *dw, float beta)
{
    if (v.y != NULL)
        D9D_TRY(launch_dgrad(s, v));
    return dw != NULL && v.n > 0 ? launch_wgrad(s, v, dw, beta) : D9D_OK;
}

d9d_status d9d_k_rms_norm_gated_bwd(d9d_stream s, d9d_dtype t, void *dx, void *dz, d9d_dtype gt,
                                    void *dw, float beta, const void *dy, const void *x,
                                    const void *z, const void *w, const float *inv, int64_t m,
                                    int64_t n)
{
    D9D_TRY(d9di_args_check_float("rms_norm_gated_bwd", t));
    D9D_TRY(d9di_args_check_float("rms_norm_gated_bwd", gt));
    return D9DI_DISPATCH_DTYPE(
        t, T,
        D9DI_DISPATCH_DTYPE(
            gt, G,
            launch_bwd(s,
                       gated_args<T>{(T *)dx, (T *)dz, (const T *)dy, (const T *)x, (const T *)z,
                                     (const T *)w, (float *)inv, m, n},
                       (G *)dw, beta)));
}
