/* latent_append.cu - rotated queries and the cache rows of new tokens, of multi-head latent
 * attention: one launch beside the products of a decode step.
 *
 * Grid: tokens; blocks of a token. The first block has the cache row, each other THREADS pairs of
 * features of the queries.
 */
#include "cuda/common/common.cuh"

/* Pair j of R / 2: (a, b) -> (a cos - b sin, b cos + a sin). */
template <class T>
static __device__ __forceinline__ void rotate_pair(const d9d_latent_append_args &a, float position,
                                                   int64_t j, T *y, const T *x)
{
    const int64_t u = a.interleaved ? 2 * j : j, v = a.interleaved ? 2 * j + 1 : j + a.r / 2;
    const float p = to_float(x[u]), q = to_float(x[v]);
    float co, si;

    sincosf(position * a.inv_freq[j], &si, &co);
    co *= a.mscale;
    si *= a.mscale;
    store_float(y + u, p * co - q * si);
    store_float(y + v, q * co + p * si);
}

template <class T>
static __device__ __forceinline__ void cache_row_store(const d9d_latent_append_args &a, int64_t i,
                                                       float position, T *row)
{
    const T *x = (const T *)a.latent + i * a.c, *w = (const T *)a.w;
    float sum = 0.0f, scale;

    for (int64_t f = threadIdx.x; f < a.c; f += THREADS)
        sum = fmaf(to_float(x[f]), to_float(x[f]), sum);
    scale = 1.0f / sqrtf(group_sum<THREADS>(sum) / (float)a.c + a.eps);
    for (int64_t f = threadIdx.x; f < a.c; f += THREADS)
        store_float(row + f, to_float(x[f]) * scale * to_float(w[f]));
    for (int64_t j = threadIdx.x; j < a.r / 2; j += THREADS)
        rotate_pair(a, position, j, row + a.c, (const T *)a.key + i * a.r);
}

template <class T>
static __global__ void __launch_bounds__(THREADS) latent_append_kernel(d9d_latent_append_args a)
{
    const int64_t i = blockIdx.x, wide = a.c + a.r, to = a.row_index[i];
    const float position = (float)a.positions[i];

    pdl_launch_dependents();
    pdl_wait();
    if (blockIdx.y == 0) {
        if (to >= 0)
            cache_row_store(a, i, position, (T *)a.cache + to * wide);
        return;
    }
    const int64_t pair = (int64_t)(blockIdx.y - 1) * THREADS + threadIdx.x;
    const int64_t head = i * a.heads + pair / (a.r / 2);

    if (pair < a.heads * (a.r / 2))
        rotate_pair(a, position, pair % (a.r / 2), (T *)a.query + head * wide + a.c,
                    (const T *)a.q + (head + 1) * a.q_cols - a.r);
}

template <class T> static d9d_status launch_append(d9d_stream s, const d9d_latent_append_args *a)
{
    const int64_t blocks = 1 + d9di_i64_ceil_div(a->heads * (a->r / 2), THREADS);

    return pdl_launch(s, "latent_append", latent_append_kernel<T>,
                      dim3((unsigned)a->m, (unsigned)blocks), THREADS, *a);
}

d9d_status d9d_k_latent_append(d9d_stream s, const d9d_latent_append_args *a)
{
    D9D_TRY(d9di_args_check_float("latent_append", a->t));
    return a->m == 0 ? D9D_OK : D9DI_DISPATCH_DTYPE(a->t, T, launch_append<T>(s, a));
}
