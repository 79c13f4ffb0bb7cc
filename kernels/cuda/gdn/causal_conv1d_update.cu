/* causal_conv1d_update.cu - causal_conv1d of documents that continue from saved tokens (decode).
 *
 * A thread has a channel of a strip of a document, in one of the arrays. The thread of the first
 * strip stores the last W - 1 tokens for the next call. No other thread reads the saved tokens, and
 * x is not written.
 */
#include "cuda/common/varlen.cuh"

enum { LAGS = D9D_CAUSAL_CONV1D_MAX_WIDTH, STRIP = 64, ARRAYS = 3 };

template <class T> struct conv_update_args {
    d9d_causal_conv1d_dims n;
    T *y, *state;
    const T *x, *w;
    const int32_t *at;
};
template <class T> struct conv_update_list {
    conv_update_args<T> of[ARRAYS];
};

/* One channel of a document: token t of this call or, for t < 0, of those saved; 0 before the
 * first. */
template <class T> struct channel_history {
    const T *x, *state;
    int64_t step, width, before;

    __device__ __forceinline__ float token(int64_t t) const
    {
        if (t + before < 0)
            return 0.0f;
        return to_float(t < 0 ? state[(width - 1 + t) * step] : x[t * step]);
    }
};

template <class T>
static __device__ __forceinline__ void conv_state_update(const conv_update_args<T> &v,
                                                         const channel_history<T> &c, T *state,
                                                         int64_t tokens)
{
    for (int64_t i = 0; i < v.n.w - 1; i++)
        store_float(state + i * v.n.n, c.token(tokens - v.n.w + 1 + i));
}

/* Grid: channels and strips of the widest array, documents, arrays. */
template <class T>
static __global__ void __launch_bounds__(THREADS) conv_update_kernel(conv_update_list<T> list)
{
    const conv_update_args<T> &v = list.of[blockIdx.z];
    const int64_t across = d9di_i64_ceil_div(v.n.n, THREADS), i = blockIdx.y;
    const int64_t c = blockIdx.x % across * THREADS + threadIdx.x;
    const int64_t first = blockIdx.x / across * STRIP;
    const document d = document_of(v.n.docs, i);
    const d9d_segment s = v.n.docs.segment[i];
    T *state = v.state + v.at[i] * (v.n.w - 1) * v.n.n + c;
    const channel_history<T> row = {v.x + d.first * v.n.n + c, state, v.n.n, v.n.w, s.nk - s.nq};
    float w[LAGS], x[LAGS];

    pdl_launch_dependents();
    pdl_wait();
    if (c >= v.n.n || first >= d.n)
        return;
#pragma unroll
    for (int l = 0; l < LAGS; l++) {
        w[l] = l < v.n.w ? to_float(v.w[c * v.n.w + v.n.w - 1 - l]) : 0.0f;
        x[l] = l > 0 && l < v.n.w ? row.token(first - l) : 0.0f;
    }
    for (int64_t t = first; t < d9di_i64_min(d.n, first + STRIP); t++) {
        float z = 0.0f;

        x[0] = row.token(t);
#pragma unroll
        for (int l = LAGS - 1; l >= 0; l--)
            z = fmaf(w[l], x[l], z);
        store_float(v.y + (d.first + t) * v.n.n + c, z * sigmoid(z));
#pragma unroll
        for (int l = LAGS - 1; l > 0; l--)
            x[l] = l < v.n.w ? x[l - 1] : 0.0f;
    }
    if (first == 0)
        conv_state_update(v, row, state, d.n);
}

template <class T>
static d9d_status launch(d9d_stream s, const d9d_causal_conv1d_dims *n, int count,
                         const d9d_causal_conv1d_array *of)
{
    conv_update_list<T> list = {};
    int64_t most = 0;

    for (int i = 0; i < count; i++) {
        conv_update_args<T> *v = &list.of[i];

        *v = {*n,
              (T *)of[i].y,
              (T *)of[i].past.slots,
              (const T *)of[i].x,
              (const T *)of[i].w,
              of[i].past.slot_index};
        v->n.n = of[i].n;
        most = d9di_i64_max(most, d9di_i64_ceil_div(of[i].n, THREADS));
    }
    most *= d9di_i64_ceil_div(n->docs.b * n->docs.s, STRIP);
    if (most * n->docs.segments == 0)
        return D9D_OK;
    return pdl_launch(s, "causal_conv1d_update", conv_update_kernel<T>,
                      dim3((unsigned)most, (unsigned)n->docs.segments, (unsigned)count), THREADS,
                      list);
}

d9d_status d9d_k_causal_conv1d_update(d9d_stream s, const d9d_causal_conv1d_dims *n, int count,
                                      const d9d_causal_conv1d_array *of)
{
    D9D_TRY(d9di_args_check_float("causal_conv1d_update", n->t));
    if (n->w < 1 || n->w > LAGS || n->docs.segment == NULL)
        return D9D_FAIL(
            D9D_EINVAL,
            "causal_conv1d_update: a kernel size of %lld, from 1 to %d are supported, of segments",
            (long long)n->w, LAGS);
    for (int i = 0; i < count; i += ARRAYS)
        D9D_TRY(D9DI_DISPATCH_DTYPE(
            n->t, T, launch<T>(s, n, count - i < ARRAYS ? count - i : +ARRAYS, of + i)));
    return D9D_OK;
}
