/* attention_merge.cu - joins the attention of parts of the keys, by their log-sum-exp.  Half a warp
 * computes one query and head. */
#include "cuda/attention/attention_simt.cuh"
#include "cuda/norm/norm.cuh"

enum { LANES = WARP / 2 };

template <class T>
static __global__ void merge_kernel(d9d_attention_dims n, bool first, float *acc, float *acc_lse,
                                    const T *o, const float *lse)
{
    const int64_t r = group_row<LANES>(), i = r / n.a;

    if (r >= n.b * n.s * n.a)
        return;
    const int64_t at = row_stat_index(n, i / n.s, r % n.a, i);
    /* All threads read acc_lse before one of them changes it. */
    const float a = group_reduce<LANES>(first ? -CUDART_INF_F : acc_lse[at], max_op());
    const float b = lse[at];
    const float top = a > b ? a : b;
    float x = expf(a - top), y = expf(b - top);
    const float sum = x + y;

    if (!first && b == -CUDART_INF_F)
        return;
    x = first ? 0.0f : x / sum;
    y = first ? 1.0f : y / sum;
    D9DI_ROW8 (f, n.dv, LANES) {
        float u[8] = {0}, v[8];

        if (!first)
            load8(u, acc + r * n.dv + f, n.dv - f);
        load8(v, o + r * n.dv + f, n.dv - f);
        for (int j = 0; j < 8; j++)
            v[j] = first ? v[j] : x * u[j] + y * v[j];
        store8(acc + r * n.dv + f, v, n.dv - f);
    }
    if (threadIdx.x % LANES == 0)
        acc_lse[at] = first ? b : top + logf(sum);
}

template <class T>
static d9d_status launch(d9d_stream s, const d9d_attention_dims *n, bool first, float *acc,
                         float *acc_lse, const void *o, const float *lse)
{
    const int64_t rows = n->b * n->s * n->a;

    if (rows == 0)
        return D9D_OK;
    merge_kernel<<<grid_for_rows(rows, LANES), THREADS, 0, d9di_cuda_stream(s)>>>(
        *n, first, acc, acc_lse, (const T *)o, lse);
    return d9di_cuda_check_launch("attention_merge");
}

d9d_status d9d_k_attention_merge(d9d_stream s, const d9d_attention_dims *dims, bool first,
                                 float *acc, float *acc_lse, const void *o, const float *lse)
{
    const d9d_attention_dims n = d9d_attention_dims_resolve(dims);

    D9D_TRY(d9di_args_check_float("attention_merge", n.t));
    return D9DI_DISPATCH_DTYPE(n.t, T, launch<T>(s, &n, first, acc, acc_lse, o, lse));
}
