/* causal_conv1d_update.cu - the convolution of documents that go on from their last tokens.
 *
 * A thread has a channel of a strip of a document.  The one of the first strip keeps what the next
 * call needs: nobody else reads the past, and x stays as it is.
 */
#include "cuda/common/varlen.cuh"

enum { LAGS = D9D_CONV_WIDTH, STRIP = 64 };

template <class T> struct conv_on {
    d9d_conv_dims n;
    T *y, *cell;
    const T *x, *w;
    const int32_t *at;
};

/* One channel of a document: token t of this call, or, below 0, of those before; 0 before all. */
template <class T> struct channel {
    const T *x, *cell;
    int64_t step, width, before;

    __device__ __forceinline__ float token(int64_t t) const
    {
        if (t + before < 0)
            return 0.0f;
        return to_float(t < 0 ? cell[(width - 1 + t) * step] : x[t * step]);
    }
};

template <class T>
static __device__ __forceinline__ void keep(const conv_on<T> &v, const channel<T> &c, T *cell,
                                            int64_t tokens)
{
    for (int64_t i = 0; i < v.n.w - 1; i++)
        put(cell + i * v.n.n, c.token(tokens - v.n.w + 1 + i));
}

template <class T> static __global__ void __launch_bounds__(THREADS) on_kernel(conv_on<T> v)
{
    const int64_t across = d9di_ceil_div(v.n.n, THREADS), i = blockIdx.y;
    const int64_t c = blockIdx.x % across * THREADS + threadIdx.x;
    const int64_t first = blockIdx.x / across * STRIP;
    const document d = document_of(v.n.of, i);
    const d9d_segment s = v.n.of.segment[i];
    T *cell = v.cell + v.at[i] * (v.n.w - 1) * v.n.n + c;
    const channel<T> row = {v.x + d.first * v.n.n + c, cell, v.n.n, v.n.w, s.nk - s.nq};
    float w[LAGS], x[LAGS];

    if (c >= v.n.n || first >= d.n)
        return;
#pragma unroll
    for (int l = 0; l < LAGS; l++) {
        w[l] = l < v.n.w ? to_float(v.w[c * v.n.w + v.n.w - 1 - l]) : 0.0f;
        x[l] = l > 0 && l < v.n.w ? row.token(first - l) : 0.0f;
    }
    for (int64_t t = first; t < d9di_min(d.n, first + STRIP); t++) {
        float z = 0.0f;

        x[0] = row.token(t);
#pragma unroll
        for (int l = LAGS - 1; l >= 0; l--)
            z = fmaf(w[l], x[l], z);
        put(v.y + (d.first + t) * v.n.n + c, z * sigmoid(z));
#pragma unroll
        for (int l = LAGS - 1; l > 0; l--)
            x[l] = l < v.n.w ? x[l - 1] : 0.0f;
    }
    if (first == 0)
        keep(v, row, cell, d.n);
}

template <class T>
static d9d_status run(d9d_stream s, const d9d_conv_dims *n, const d9d_past *past, void *y,
                      const void *x, const void *w)
{
    const conv_on<T> v = {*n, (T *)y, (T *)past->cell, (const T *)x, (const T *)w, past->at};
    const int64_t blocks = d9di_ceil_div(n->n, THREADS) * d9di_ceil_div(n->of.b * n->of.s, STRIP);

    on_kernel<<<dim3((unsigned)blocks, (unsigned)n->of.segments), THREADS, 0, d9di_queue(s)>>>(v);
    return d9di_launched("conv_on");
}

d9d_status d9d_k_conv_on(d9d_stream s, const d9d_conv_dims *n, const d9d_past *past, void *y,
                         const void *x, const void *w)
{
    D9D_TRY(d9di_check_float("conv_on", n->t));
    if (n->w < 1 || n->w > LAGS || n->of.segment == NULL)
        return D9D_FAIL(D9D_EINVAL,
                        "conv_on: %lld tokens wide, from 1 to %d are possible, of a list",
                        (long long)n->w, LAGS);
    if (n->of.b * n->of.s * n->n * n->of.segments == 0)
        return D9D_OK;
    return D9DI_TYPED(n->t, T, run<T>(s, n, past, y, x, w));
}
