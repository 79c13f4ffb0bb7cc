/* attention_simt.cu - forward of softmax attention in float32 tiles (SIMT), for any shape and type.
 *
 * A tile of queries iterates over the tiles of keys with an online softmax: a running maximum m, a
 * running sum l of exp(score - m), and the unscaled output. All are rescaled when m grows.
 */
#include "cuda/attention/attention_simt.cuh"

/* Reduces over the 16 threads that share a row. */
template <class F> static __device__ __forceinline__ float row_reduce(float v, F f)
{
#pragma unroll
    for (int o = THREAD_GRID / 2; o > 0; o /= 2)
        v = f(v, __shfl_xor_sync(~0u, v, o));
    return v;
}

/* Running state of a thread's R rows. */
template <class Z> struct online_softmax {
    float m[Z::R], l[Z::R], o[Z::R][Z::DV];
};

/* Scores of row r become probabilities relative to the running maximum; a hidden score is -inf. */
template <class Z>
static __device__ __forceinline__ void row_online_softmax(online_softmax<Z> &w, int r,
                                                          float (&s)[Z::R])
{
    float m = w.m[r], sum = 0.0f, keep;

#pragma unroll
    for (int c = 0; c < Z::R; c++)
        m = fmaxf(m, s[c]);
    m = row_reduce(m, max_op());
    keep = m == -CUDART_INF_F ? 1.0f : expf(w.m[r] - m);
#pragma unroll
    for (int c = 0; c < Z::R; c++) {
        /* Nothing visible yet, or only NaN, which the sum propagates. */
        s[c] = m == -CUDART_INF_F ? (s[c] == s[c] ? 0.0f : s[c]) : expf(s[c] - m);
        sum += s[c];
    }
    w.l[r] = w.l[r] * keep + row_reduce(sum, plus());
    w.m[r] = m;
#pragma unroll
    for (int c = 0; c < Z::DV; c++)
        w.o[r][c] *= keep;
}

/* Dropout of query q's probabilities; those of hidden keys are 0, and NaN stays. */
template <class Z>
static __device__ __forceinline__ void row_dropout(const d9d_attention_dims &n, const segment &x,
                                                   int64_t h, int64_t q, int64_t k0,
                                                   float (&s)[Z::R])
{
#pragma unroll
    for (int c = 0; c < Z::R; c++)
        if (s[c] > 0.0f)
            s[c] *= dropout_factor(n, x, h, q, k0 + thread_col() + c * THREAD_GRID);
}

/* Adds the keys of one segment to the queries of head h at q0. */
template <class Z, class T>
static __device__ __forceinline__ void segment_forward(const d9d_attention_dims &n,
                                                       const segment &x, online_softmax<Z> &w,
                                                       const float *sq, float *skv, float *sp,
                                                       int64_t b, int64_t q0, int64_t h, const T *k,
                                                       const T *v)
{
    const int64_t kh = h / (n.a / n.kv);
    const int64_t end = visible_key_end(n, x, q0 + Z::SIDE - 1);

    clear_acc<Z>(w.o);
    for (int r = 0; r < Z::R; r++) {
        w.m[r] = -CUDART_INF_F;
        w.l[r] = 0.0f;
    }
    for (int64_t k0 = first_visible_tile<Z>(n, x, q0); k0 < end; k0 += Z::SIDE) {
        const int64_t nk = d9di_i64_min(Z::SIDE, x.k.end - k0);
        float s[Z::R][Z::R];

        load_rows<Z>(skv, k, key_at(n, b, k0), nk, n.kv, kh, n.d);
        __syncthreads();
        dot_rows<Z>(s, sq, skv, n.d);
#pragma unroll
        for (int r = 0; r < Z::R; r++) {
            const int i = thread_row() * Z::R + r;

#pragma unroll
            for (int c = 0; c < Z::R; c++)
                s[r][c] = visible(n, x, q0 + i, k0 + thread_col() + c * THREAD_GRID)
                              ? softcap(s[r][c] * n.scale, n.softcap)
                              : -CUDART_INF_F;
            row_online_softmax(w, r, s[r]);
            if constexpr (Z::DROPS)
                row_dropout<Z>(n, x, h, q0 + i, k0, s[r]);
#pragma unroll
            for (int c = 0; c < Z::R; c++)
                sp[i * Z::SCORES + thread_col() + c * THREAD_GRID] = s[r][c];
        }
        __syncthreads();
        load_rows<Z>(skv, v, key_at(n, b, k0), nk, n.kv, kh, n.dv);
        __syncthreads();
        add_rows<Z>(w.o, sp, Z::SCORES, 1, skv);
        __syncthreads();
    }
}

template <class Z, class T>
static __global__ void __launch_bounds__(THREADS)
    attention_kernel(d9d_attention_dims n, T *o, float *lse, const T *q, const T *k, const T *v)
{
    extern __shared__ float shared[];
    float *sq = shared, *skv = sq + Z::SIDE * Z::STEP, *sp = skv + Z::SIDE * Z::STEP;
    const int64_t heads = n.b * n.a, tiles = d9di_i64_ceil_div(n.s, Z::SIDE);
    const int64_t b = blockIdx.x % heads / n.a, h = blockIdx.x % heads % n.a;
    /* Late queries see more keys, so their tiles start first. */
    const int64_t row = (tiles - 1 - blockIdx.x / heads) * Z::SIDE, q0 = b * n.s + row;
    const int64_t nq = d9di_i64_min(Z::SIDE, n.s - row);
    segment x = segment_of(n, segment_find(n, false, q0), b);
    online_softmax<Z> w;

    load_rows<Z>(sq, q, q0, nq, n.a, h, n.d);
    do {
        segment_forward<Z>(n, x, w, sq, skv, sp, b, q0, h, k, v);
#pragma unroll
        for (int r = 0; r < Z::R; r++) {
            const int i = thread_row() * Z::R + r;
            const bool none = n.part.n > 0 && w.l[r] == 0.0f;

            for (int c = 0; c < Z::DV; c++)
                w.o[r][c] *= none ? 0.0f : 1.0f / w.l[r];
            if (thread_col() == 0 && range_contains(x.q, q0 + i))
                lse[row_stat_index(n, b, h, q0 + i)] = w.m[r] + logf(w.l[r]);
        }
        store_rows<Z>(o, w.o, q0, x.q, n.a, h, n.dv);
    } while (segment_next(n, b, q0 + nq, &x));
}

template <class Z, class T>
static d9d_status launch(d9d_stream s, const d9d_attention_dims *n, void *o, float *lse,
                         const void *q, const void *k, const void *v)
{
    const int64_t bytes = 2 * Z::ROWS_BYTES + Z::SCORES_BYTES;
    const int64_t blocks = n->b * n->a * d9di_i64_ceil_div(n->s, Z::SIDE);
    cudaStream_t queue = d9di_cuda_stream(s);

    D9D_TRY(kernel_allow_smem(s, "attention", (const void *)attention_kernel<Z, T>, bytes));
    attention_kernel<Z><<<(unsigned)blocks, THREADS, bytes, queue>>>(*n, (T *)o, lse, (const T *)q,
                                                                     (const T *)k, (const T *)v);
    return d9di_cuda_check_launch("attention");
}

template <class T, bool DROPS>
static d9d_status launch_by_head_size(d9d_stream s, const d9d_attention_dims *n, void *o,
                                      float *lse, const void *q, const void *k, const void *v)
{
    if (head_size_max(*n) <= 128)
        return launch<tile_shape<64, 8, DROPS>, T>(s, n, o, lse, q, k, v);
    if (head_size_max(*n) <= 256)
        return launch<tile_shape<32, 16, DROPS>, T>(s, n, o, lse, q, k, v);
    if (head_size_max(*n) <= 512)
        return launch<tile_shape<16, 32, DROPS>, T>(s, n, o, lse, q, k, v);
    return launch<tile_shape<16, 40, DROPS>, T>(s, n, o, lse, q, k, v);
}

d9d_status d9di_attention_simt(d9d_stream s, const d9di_attention_call *c)
{
    D9D_TRY(head_size_check(c->op, &c->n));
    if (c->n.dropout.p > 0.0f)
        return D9DI_DISPATCH_DTYPE(
            c->n.t, T, launch_by_head_size<T, true>(s, &c->n, c->o, c->lse, c->q, c->k, c->v));
    return D9DI_DISPATCH_DTYPE(
        c->n.t, T, launch_by_head_size<T, false>(s, &c->n, c->o, c->lse, c->q, c->k, c->v));
}
