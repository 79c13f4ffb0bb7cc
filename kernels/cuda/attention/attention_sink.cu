/* attention_sink.cu - attention sink: a learned logit per head in the softmax's denominator,
 * without a value.
 *
 * With z = exp(lse), and s = exp(sink): lse' = log(z + s), o' = o z / (z + s). In the gradient the
 * sink is a key whose value is 0: dsink = - sum over queries of P_sink delta, where P_sink =
 * exp(sink - lse') and delta = dout . o'.
 *
 * Half a warp computes one query and head. For the gradient a block has a head of some queries,
 * whose sums are added in order.
 */
#include "cuda/attention/attention_simt.cuh"
#include "cuda/norm/norm.cuh"

enum { LANES = WARP / 2, GROUPS = THREADS / LANES, MAX_PARTS = 256 };

/* Index in lse [B, A, S] of row r of o [B, S, A, D]. */
static __device__ __forceinline__ int64_t row_lse_index(const d9d_attention_dims &n, int64_t r)
{
    const int64_t i = r / n.a;

    return row_stat_index(n, i / n.s, r % n.a, i);
}

template <class T>
static __global__ void sink_kernel(d9d_attention_dims n, T *o, float *lse, const T *sink)
{
    const int64_t r = group_row<LANES>();
    float *at, above, keep;

    pdl_launch_dependents();
    pdl_wait();
    if (r >= n.b * n.s * n.a)
        return;
    at = lse + row_lse_index(n, r);
    /* All threads read lse before one of them changes it. */
    above = group_reduce<LANES>(to_float(sink[r % n.a]) - *at, max_op());
    keep = 1.0f / (1.0f + expf(above));
    D9DI_ROW8 (f, n.dv, LANES) {
        float v[8];

        load8(v, o + r * n.dv + f, n.dv - f);
        for (int j = 0; j < 8; j++)
            v[j] *= keep;
        store8(o + r * n.dv + f, v, n.dv - f);
    }
    if (threadIdx.x % LANES == 0)
        *at += above > 0.0f ? above + log1pf(expf(-above)) : log1pf(expf(above));
}

/* Grid: heads, parts of `each` queries. part [parts, A]. */
template <class T>
static __global__ void sink_wgrad_kernel(d9d_attention_dims n, float *part, const T *dout,
                                         const T *o, const float *lse, const T *sink, int64_t each)
{
    __shared__ float sums[GROUPS];
    const int64_t h = blockIdx.x, first = blockIdx.y * each;
    const int64_t end = d9di_i64_min(n.b * n.s, first + each);
    const int group = threadIdx.x / LANES;
    const float s = to_float(sink[h]);
    float sum = 0.0f;

    for (int64_t i = first + group; i < end; i += GROUPS) {
        const int64_t r = i * n.a + h;
        float dot = 0.0f, u[8], v[8];

        D9DI_ROW8 (f, n.dv, LANES) {
            load8(u, dout + r * n.dv + f, n.dv - f);
            load8(v, o + r * n.dv + f, n.dv - f);
            for (int j = 0; j < 8; j++)
                dot = fmaf(u[j], v[j], dot);
        }
        sum = fmaf(-expf(s - lse[row_lse_index(n, r)]), dot, sum);
    }
    sum = group_sum<LANES>(sum);
    if (threadIdx.x % LANES == 0)
        sums[group] = sum;
    __syncthreads();
    for (int g = 1; g < GROUPS && threadIdx.x == 0; g++)
        sum += sums[g];
    if (threadIdx.x == 0)
        part[blockIdx.y * n.a + h] = sum;
}

template <class T>
static d9d_status launch_sink(d9d_stream s, const d9d_attention_dims *n, void *o, float *lse,
                              const void *sink)
{
    return pdl_launch(s, "attention_sink", sink_kernel<T>, grid_for_rows(n->b * n->s * n->a, LANES),
                      THREADS, *n, (T *)o, lse, (const T *)sink);
}

template <class T, class W>
static d9d_status launch_wgrad(d9d_stream s, const d9d_attention_dims *n, W *dsink, float beta,
                               const void *dout, const void *o, const float *lse, const void *sink)
{
    const int64_t queries = n->b * n->s;
    const int64_t each = d9di_i64_max(GROUPS, d9di_i64_ceil_div(queries, MAX_PARTS));
    const int64_t parts = d9di_i64_ceil_div(queries, each),
                  bytes = d9di_i64_max(parts, 1) * n->a * 4;
    const dim3 grid((unsigned)n->a, (unsigned)parts);
    void *part;

    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &part));
    if (parts > 0)
        sink_wgrad_kernel<<<grid, THREADS, 0, d9di_cuda_stream(s)>>>(
            *n, (float *)part, (const T *)dout, (const T *)o, lse, (const T *)sink, each);
    parts_sum(d9di_cuda_stream(s), dsink, beta, (const float *)part, n->a, parts);
    d9di_cuda_scratch_free(s, part, bytes);
    return d9di_cuda_check_launch("attention_sink_wgrad");
}

d9d_status d9d_k_attention_sink(d9d_stream s, const d9d_attention_dims *n, void *o, float *lse,
                                const void *sink)
{
    const d9d_attention_dims all = d9d_attention_dims_resolve(n);

    D9D_TRY(d9di_args_check_float("attention_sink", n->t));
    if (n->b * n->s * n->a == 0)
        return D9D_OK;
    return D9DI_DISPATCH_DTYPE(n->t, T, launch_sink<T>(s, &all, o, lse, sink));
}

d9d_status d9d_k_attention_sink_wgrad(d9d_stream s, const d9d_attention_dims *n, d9d_dtype gt,
                                      void *dsink, float beta, const void *dout, const void *o,
                                      const float *lse, const void *sink)
{
    const d9d_attention_dims all = d9d_attention_dims_resolve(n);

    D9D_TRY(d9di_args_check_float("attention_sink_wgrad", n->t));
    D9D_TRY(d9di_args_check_float("attention_sink_wgrad", gt));
    if (n->a == 0)
        return D9D_OK;
    return D9DI_DISPATCH_DTYPE(n->t, T, D9DI_DISPATCH_DTYPE(gt, W, [&] {
                                   return launch_wgrad<T, W>(s, &all, (W *)dsink, beta, dout, o,
                                                             lse, sink);
                               }()));
}
