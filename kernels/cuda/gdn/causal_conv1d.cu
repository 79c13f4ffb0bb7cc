/* causal_conv1d.cu - causal depthwise convolution over the last W tokens of a document, then SiLU.
 *
 * A thread loops over a strip of tokens for four channels and keeps the last L tokens in registers,
 * L = 4 for kernels of up to four tokens, else 8: token t is in slot t % L. Weight w[l] is that of
 * lag l:
 *
 *     z[t] = sum_l w[l] x[t - l]
 *     dx[t] = sum_l w[l] dz[t + l]
 *     dw[l] = sum_t dz[t] x[t - l]
 *
 * The sums are over tokens of one document: those not before its first token, start[t].
 */
#include "cuda/common/varlen.cuh"
#include "cuda/norm/norm.cuh"

enum { FOUR = 4, STRIP = 64, MAX_STRIPS = 256 };

static __global__ void document_starts_kernel(d9d_varlen x, int32_t *start)
{
    const int64_t tokens = x.b * x.s;

    for (int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x; t < tokens;
         t += (int64_t)gridDim.x * THREADS) {
        const int64_t i =
            last_document(x, [&](int64_t, const document &d) { return d.first <= t; });

        start[t] = (int32_t)document_of(x, i).first;
    }
}

template <class T> struct conv_args {
    d9d_causal_conv1d_dims n;
    int64_t tokens, strip; /* all tokens; tokens per strip */
    T *y;                  /* or dx, which may be NULL */
    const T *x, *w, *dy;
    const int32_t *start;
    float *part; /* partial dw [strips, N, W], or NULL */
};

/* The four channels from p on are one aligned load or store. */
template <class T> static __device__ __forceinline__ bool is_vector(const T *p, int64_t left)
{
    return left >= FOUR && (uintptr_t)p % (FOUR * sizeof(T)) == 0;
}
static __device__ __forceinline__ void load4_vector(float (&v)[FOUR], const float *p)
{
    const float4 a = *(const float4 *)p;

    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
}
static __device__ __forceinline__ void load4_vector(float (&v)[FOUR], const bf16 *p)
{
    const uint2 a = *(const uint2 *)p;

    v[0] = __uint_as_float(a.x << 16), v[1] = __uint_as_float(a.x & 0xffff0000u);
    v[2] = __uint_as_float(a.y << 16), v[3] = __uint_as_float(a.y & 0xffff0000u);
}
template <class T> struct alignas(FOUR * sizeof(T)) four {
    T v[FOUR];
};

/* Loads or stores four channels from c on of a row of n. */
template <class T>
static __device__ __forceinline__ void load4(float (&v)[FOUR], const T *row, int64_t c, int64_t n)
{
    if (is_vector(row + c, n - c)) {
        load4_vector(v, row + c);
        return;
    }
#pragma unroll
    for (int j = 0; j < FOUR; j++)
        v[j] = c + j < n ? to_float(row[c + j]) : 0.0f;
}
template <class T>
static __device__ __forceinline__ void store4(T *row, const float (&v)[FOUR], int64_t c, int64_t n)
{
    four<T> rounded;

#pragma unroll
    for (int j = 0; j < FOUR; j++)
        store_float(rounded.v + j, v[j]);
    if (is_vector(row + c, n - c)) {
        *(four<T> *)(row + c) = rounded;
        return;
    }
#pragma unroll
    for (int j = 0; j < FOUR; j++)
        if (c + j < n)
            row[c + j] = rounded.v[j];
}

/* Tokens [first, end) and first channel of a thread. */
struct strip_range {
    int64_t first, end, c;
};

template <class T>
static __device__ __forceinline__ bool strip_find(const conv_args<T> &v, strip_range *at)
{
    const int64_t groups = d9di_i64_ceil_div(v.n.n, FOUR);
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, strip = i / groups;

    *at = {strip * v.strip, d9di_i64_min(v.tokens, (strip + 1) * v.strip), i % groups * FOUR};
    return at->first < v.tokens;
}

/* Weights by lag, and the last L tokens, of four channels. */
template <int L> struct conv_window {
    float w[L][FOUR], x[L][FOUR];
};

template <int L, class T>
static __device__ __forceinline__ void window_init(conv_window<L> &m, const conv_args<T> &v,
                                                   const strip_range &at)
{
#pragma unroll
    for (int l = 0; l < L; l++) {
#pragma unroll
        for (int j = 0; j < FOUR; j++)
            m.w[l][j] = l < v.n.w && at.c + j < v.n.n
                            ? to_float(v.w[(at.c + j) * v.n.w + v.n.w - 1 - l])
                            : 0.0f;
        if (l > 0 && at.first >= l)
            load4(m.x[L - l], v.x + (at.first - l) * v.n.n, at.c, v.n.n);
    }
}

/* Loads token t to slot u and computes z[t]. */
template <int L, class T>
static __device__ __forceinline__ void window_advance(conv_window<L> &m, const conv_args<T> &v,
                                                      const strip_range &at, int64_t t, int u,
                                                      int32_t start, float (&z)[FOUR])
{
    load4(m.x[u], v.x + t * v.n.n, at.c, v.n.n);
#pragma unroll
    for (int j = 0; j < FOUR; j++)
        z[j] = 0.0f;
#pragma unroll
    for (int l = L - 1; l >= 0; l--)
        if (l < v.n.w && t - l >= start)
#pragma unroll
            for (int j = 0; j < FOUR; j++)
                z[j] = fmaf(m.w[l][j], m.x[(u - l + L) % L][j], z[j]);
}

template <int L, class T>
static __global__ void __launch_bounds__(THREADS) conv_kernel(conv_args<T> v)
{
    conv_window<L> m;
    strip_range at;

    if (!strip_find(v, &at))
        return;
    window_init(m, v, at);
    for (int64_t t0 = at.first; t0 < at.end; t0 += L)
#pragma unroll
        for (int u = 0; u < L; u++) {
            const int64_t t = t0 + u;
            float z[FOUR];

            if (t >= at.end)
                return;
            window_advance(m, v, at, t, u, v.start[t], z);
#pragma unroll
            for (int j = 0; j < FOUR; j++)
                z[j] *= sigmoid(z[j]);
            store4(v.y + t * v.n.n, z, at.c, v.n.n);
        }
}

/* z becomes dz of token t. Tokens of the strip also add their part of dw. */
template <int L, class T>
static __device__ __forceinline__ void silu_bwd_wgrad(const conv_window<L> &m,
                                                      const conv_args<T> &v, const strip_range &at,
                                                      int64_t t, int u, int32_t start,
                                                      float (&z)[FOUR], float (&dw)[L][FOUR])
{
    float dy[FOUR];

    load4(dy, v.dy + t * v.n.n, at.c, v.n.n);
#pragma unroll
    for (int j = 0; j < FOUR; j++) {
        const float s = sigmoid(z[j]);

        z[j] = dy[j] * (s * (1.0f + z[j] * (1.0f - s)));
    }
    if (t >= at.end)
        return;
#pragma unroll
    for (int l = 0; l < L; l++)
        if (l < v.n.w && t - l >= start)
#pragma unroll
            for (int j = 0; j < FOUR; j++)
                dw[l][j] = fmaf(z[j], m.x[(u - l + L) % L][j], dw[l][j]);
}

/* Stores dx of token t, L - 1 before the token in slot u. */
template <int L, class T>
static __device__ __forceinline__ void store_dx(const conv_window<L> &m, const conv_args<T> &v,
                                                const strip_range &at, int64_t t, int u,
                                                const float (&dz)[L][FOUR],
                                                const int32_t (&start)[L])
{
    float sum[FOUR] = {};

    if (v.y == NULL || t < at.first || t >= at.end)
        return;
#pragma unroll
    for (int l = 0; l < L; l++)
        if (start[(u + 1 + l) % L] <= t)
#pragma unroll
            for (int j = 0; j < FOUR; j++)
                sum[j] = fmaf(m.w[l][j], dz[(u + 1 + l) % L][j], sum[j]);
    store4(v.y + t * v.n.n, sum, at.c, v.n.n);
}

template <int L, class T>
static __global__ void __launch_bounds__(THREADS) conv_bwd_kernel(conv_args<T> v)
{
    float dz[L][FOUR] = {}, dw[L][FOUR] = {};
    int32_t start[L] = {};
    conv_window<L> m;
    strip_range at;

    if (!strip_find(v, &at))
        return;
    window_init(m, v, at);
    for (int64_t t0 = at.first; t0 < at.end + L - 1; t0 += L)
#pragma unroll
        for (int u = 0; u < L; u++) {
            const int64_t t = t0 + u;

            start[u] = t < v.tokens ? v.start[t] : INT32_MAX;
            if (t < v.tokens) {
                window_advance(m, v, at, t, u, start[u], dz[u]);
                silu_bwd_wgrad(m, v, at, t, u, start[u], dz[u], dw);
            }
            store_dx(m, v, at, t - L + 1, u, dz, start);
        }
    if (v.part == NULL)
        return;
#pragma unroll
    for (int l = 0; l < L; l++)
        for (int j = 0; j < FOUR; j++)
            if (l < v.n.w && at.c + j < v.n.n)
                v.part[at.first / v.strip * v.n.n * v.n.w + (at.c + j) * v.n.w + v.n.w - 1 - l] =
                    dw[l][j];
}

/* --- calls ------------------------------------------------------------------------------------ */

static d9d_status width_check(const char *op, const d9d_causal_conv1d_dims *n)
{
    D9D_TRY(d9di_args_check_float(op, n->t));
    if (n->w < 1 || n->w > D9D_CAUSAL_CONV1D_MAX_WIDTH)
        return D9D_FAIL(D9D_EINVAL, "%s: a kernel size of %lld, from 1 to %d are supported", op,
                        (long long)n->w, D9D_CAUSAL_CONV1D_MAX_WIDTH);
    return D9D_OK;
}

template <class T> static unsigned blocks_of(const conv_args<T> &v)
{
    return (unsigned)d9di_i64_ceil_div(
        d9di_i64_ceil_div(v.tokens, v.strip) * d9di_i64_ceil_div(v.n.n, FOUR), THREADS);
}

static void launch_document_starts(d9d_stream s, const d9d_varlen &of, int32_t *start)
{
    document_starts_kernel<<<grid_for(s, of.b * of.s), THREADS, 0, d9di_cuda_stream(s)>>>(of,
                                                                                          start);
}

template <class T>
static d9d_status launch_forward(d9d_stream s, const d9d_causal_conv1d_dims *n, void *y,
                                 const void *x, const void *w)
{
    conv_args<T> v = {
        *n, n->docs.b * n->docs.s, STRIP, (T *)y, (const T *)x, (const T *)w, NULL, NULL, NULL};
    const int64_t bytes = v.tokens * 4;
    auto kernel = n->w <= 4 ? conv_kernel<4, T> : conv_kernel<D9D_CAUSAL_CONV1D_MAX_WIDTH, T>;
    void *start;

    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &start));
    launch_document_starts(s, n->docs, (int32_t *)start);
    v.start = (const int32_t *)start;
    kernel<<<blocks_of(v), THREADS, 0, d9di_cuda_stream(s)>>>(v);
    d9di_cuda_scratch_free(s, start, bytes);
    return d9di_cuda_check_launch("causal_conv1d");
}

d9d_status d9d_k_causal_conv1d(d9d_stream s, const d9d_causal_conv1d_dims *n, void *y,
                               const void *x, const void *w)
{
    D9D_TRY(width_check("causal_conv1d", n));
    if (n->docs.b * n->docs.s * n->n == 0)
        return D9D_OK;
    return D9DI_DISPATCH_DTYPE(n->t, T, launch_forward<T>(s, n, y, x, w));
}

template <class T, class G>
static d9d_status launch_bwd(d9d_stream s, conv_args<T> v, G *dw, float beta)
{
    const int64_t strips = d9di_i64_ceil_div(v.tokens, v.strip), weights = v.n.n * v.n.w;
    const int64_t starts = d9di_i64_round_up(v.tokens, 64);
    const int64_t bytes = (starts + (dw != NULL ? strips * weights : 0)) * 4;
    auto kernel =
        v.n.w <= 4 ? conv_bwd_kernel<4, T> : conv_bwd_kernel<D9D_CAUSAL_CONV1D_MAX_WIDTH, T>;
    void *scratch;

    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &scratch));
    v.start = (const int32_t *)scratch;
    v.part = dw != NULL ? (float *)scratch + starts : NULL;
    if (v.tokens > 0) {
        launch_document_starts(s, v.n.docs, (int32_t *)scratch);
        kernel<<<blocks_of(v), THREADS, 0, d9di_cuda_stream(s)>>>(v);
    }
    if (dw != NULL)
        parts_sum(d9di_cuda_stream(s), dw, beta, v.part, weights, strips);
    d9di_cuda_scratch_free(s, scratch, bytes);
    return d9di_cuda_check_launch("causal_conv1d_bwd");
}

d9d_status d9d_k_causal_conv1d_bwd(d9d_stream s, const d9d_causal_conv1d_dims *n, void *dx,
                                   d9d_dtype gt, void *dw, float beta, const void *dy,
                                   const void *x, const void *w)
{
    const int64_t tokens = n->docs.b * n->docs.s;
    const int64_t strip = d9di_i64_max(STRIP, d9di_i64_ceil_div(tokens, MAX_STRIPS));

    D9D_TRY(width_check("causal_conv1d_bwd", n));
    D9D_TRY(d9di_args_check_float("causal_conv1d_bwd", gt));
    if (n->n == 0)
        return D9D_OK;
    return D9DI_DISPATCH_DTYPE(
        n->t, T,
        D9DI_DISPATCH_DTYPE(gt, G,
                            launch_bwd<T, G>(s,
                                             conv_args<T>{*n, tokens, strip, (T *)dx, (const T *)x,
                                                          (const T *)w, (const T *)dy, NULL, NULL},
                                             (G *)dw, beta)));
}
