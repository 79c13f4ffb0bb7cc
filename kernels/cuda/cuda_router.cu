/* cuda_router.cu - softmax and top-k of the router, and their gradient.  A warp has a token. */
#include <math_constants.h>

#include "cuda_common.cuh"

/* A key and who has it; before() is falling order of key, ties to the lower index. */
struct choice {
    float key;
    int32_t i;
};
static __device__ __forceinline__ bool before(choice a, choice b)
{
    return a.key > b.key || (a.key == b.key && a.i < b.i);
}

/* The first after `last`, or {-inf, INT32_MAX}; keys are p + bias, a NaN counts as -inf. */
static __device__ choice next_best(const float *p, const float *bias, int64_t e, choice last)
{
    choice best = {-CUDART_INF_F, INT32_MAX};

    for (int32_t i = threadIdx.x % WARP; i < e; i += WARP) {
        const float key = bias == NULL ? p[i] : p[i] + bias[i];
        const choice c = {key == key ? key : -CUDART_INF_F, i};

        if (before(last, c) && before(c, best))
            best = c;
    }
    for (int o = WARP / 2; o > 0; o /= 2) {
        const choice c = {__shfl_xor_sync(~0u, best.key, o), __shfl_xor_sync(~0u, best.i, o)};

        best = before(c, best) ? c : best;
    }
    return best;
}

template <class T> static __device__ void softmax(float *p, const T *logits, int64_t e)
{
    const int lane = threadIdx.x % WARP;
    float most = -CUDART_INF_F, sum = 0.0f, scale;

    for (int64_t i = lane; i < e; i += WARP)
        most = fmaxf(most, to_float(logits[i]));
    most = group_fold<WARP>(most, largest());
    for (int64_t i = lane; i < e; i += WARP) {
        p[i] = expf(to_float(logits[i]) - most);
        sum += p[i];
    }
    scale = 1.0f / group_sum<WARP>(sum);
    for (int64_t i = lane; i < e; i += WARP)
        p[i] *= scale;
}

/* prob = p of the chosen, divided by their sum + 1e-20 when renormalised. */
template <class T>
static __global__ void router_kernel(float *p, float *prob, int32_t *expert, const T *logits,
                                     const float *bias, int64_t rows, int64_t e, int64_t k,
                                     bool renormalise)
{
    const int64_t r = row_mine<WARP>();
    choice last = {CUDART_INF_F, -1};
    float sum = 0.0f;

    if (r >= rows)
        return;
    p += r * e, prob += r * k, expert += r * k;
    softmax(p, logits + r * e, e);
    __syncwarp();
    for (int64_t j = 0; j < k; j++) {
        last = next_best(p, bias, e, last);
        sum += p[last.i];
        if (threadIdx.x % WARP == 0) {
            expert[j] = last.i;
            prob[j] = p[last.i];
        }
    }
    __syncwarp();
    for (int64_t j = threadIdx.x % WARP; j < k && renormalise; j += WARP)
        prob[j] /= sum + 1e-20f;
}

/* With S = sum + 1e-20 and q = p / S:  dp_j = (dprob_j - sum_i dprob_i q_i) / S, others 0;
 * dlogits = p (dp - sum_j p_j dp_j). */
template <class T>
static __global__ void router_din_kernel(T *dlogits, const float *dprob, const float *p,
                                         const float *prob, const int32_t *expert, int64_t rows,
                                         int64_t e, int64_t k, bool renormalise)
{
    const int64_t r = row_mine<WARP>();
    float sum = 0.0f, mean = 0.0f, dot = 0.0f;

    if (r >= rows)
        return;
    dlogits += r * e, p += r * e, dprob += r * k, prob += r * k, expert += r * k;
    for (int64_t j = 0; j < k; j++) {
        sum += p[expert[j]];
        mean = fmaf(dprob[j], prob[j], mean);
    }
    const float size = renormalise ? sum + 1e-20f : 1.0f, less = renormalise ? mean : 0.0f;
    for (int64_t j = 0; j < k; j++)
        dot = fmaf((dprob[j] - less) / size, p[expert[j]], dot);
    for (int64_t i = threadIdx.x % WARP; i < e; i += WARP)
        put(dlogits + i, p[i] * (0.0f - dot));
    __syncwarp();
    for (int64_t j = threadIdx.x % WARP; j < k; j += WARP)
        put(dlogits + expert[j], p[expert[j]] * ((dprob[j] - less) / size - dot));
}

template <class T>
static d9d_status router(d9d_stream s, float *p, float *prob, int32_t *expert, const void *logits,
                         const float *bias, int64_t rows, int64_t e, int64_t k, bool renormalise)
{
    router_kernel<<<blocks_of_rows(rows, WARP), THREADS, 0, d9di_queue(s)>>>(
        p, prob, expert, (const T *)logits, bias, rows, e, k, renormalise);
    return d9di_launched("router");
}

template <class T>
static d9d_status router_din(d9d_stream s, void *dlogits, const float *dprob, const float *p,
                             const float *prob, const int32_t *expert, int64_t rows, int64_t e,
                             int64_t k, bool renormalise)
{
    router_din_kernel<<<blocks_of_rows(rows, WARP), THREADS, 0, d9di_queue(s)>>>(
        (T *)dlogits, dprob, p, prob, expert, rows, e, k, renormalise);
    return d9di_launched("router_din");
}

d9d_status d9d_k_router(d9d_stream s, d9d_dtype t, float *p, float *prob, int32_t *expert,
                        const void *logits, const float *bias, int64_t rows, int64_t e, int64_t k,
                        bool renormalise)
{
    D9D_TRY(d9di_check_float("router", t));
    if (k > e)
        return D9D_FAIL(D9D_EINVAL, "router: %lld experts a token, but there are %lld",
                        (long long)k, (long long)e);
    if (rows * e == 0)
        return D9D_OK;
    return D9DI_TYPED(t, T, router<T>(s, p, prob, expert, logits, bias, rows, e, k, renormalise));
}

d9d_status d9d_k_router_din(d9d_stream s, d9d_dtype t, void *dlogits, const float *dprob,
                            const float *p, const float *prob, const int32_t *expert, int64_t rows,
                            int64_t e, int64_t k, bool renormalise)
{
    D9D_TRY(d9di_check_float("router_din", t));
    if (rows * e == 0)
        return D9D_OK;
    return D9DI_TYPED(t, T,
                      router_din<T>(s, dlogits, dprob, p, prob, expert, rows, e, k, renormalise));
}
