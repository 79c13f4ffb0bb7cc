/* router.cu - MoE router: scores and top-k, load-balancing and z losses, load counts, and the bias
 * of loss-free balancing. A warp has a token. */
#include <math_constants.h>

#include "cuda/moe/sort_few.cuh"

/* --- top-k ------------------------------------------------------------------------------------ */

/* A key and its expert; choice_is_before() orders by descending key, ties by ascending index. */
struct expert_choice {
    float key;
    int32_t i;
};
static __device__ __forceinline__ bool choice_is_before(expert_choice a, expert_choice b)
{
    return a.key > b.key || (a.key == b.key && a.i < b.i);
}
static __device__ __forceinline__ expert_choice choice_none(void)
{
    return {-CUDART_INF_F, INT32_MAX};
}
static __device__ __forceinline__ expert_choice warp_best_choice(expert_choice best)
{
    for (int o = WARP / 2; o > 0; o /= 2) {
        const expert_choice c = {__shfl_xor_sync(~0u, best.key, o),
                                 __shfl_xor_sync(~0u, best.i, o)};

        best = choice_is_before(c, best) ? c : best;
    }
    return best;
}

/* Keys of a token, p + bias; NaN counts as -inf. Only experts of the groups in group_mask have
 * keys. group_size: experts per group, 0 without groups. */
struct router_keys {
    const float *p, *bias;
    int64_t group_size;
    unsigned group_mask;
};
static __device__ __forceinline__ float router_key_of(const router_keys &k, int64_t i)
{
    const float v = k.bias == NULL ? k.p[i] : k.p[i] + k.bias[i];

    return v == v ? v : -CUDART_INF_F;
}

/* The first choice after `last`, or {-inf, INT32_MAX}. */
static __device__ expert_choice topk_next(const router_keys &k, int64_t e, expert_choice last)
{
    expert_choice best = choice_none();

    for (int32_t i = threadIdx.x % WARP; i < e; i += WARP) {
        const expert_choice c = {router_key_of(k, i), i};

        if (k.group_size > 0 && !(k.group_mask >> (i / k.group_size) & 1))
            continue;
        if (choice_is_before(last, c) && choice_is_before(c, best))
            best = c;
    }
    return warp_best_choice(best);
}

/* Bit mask of the `top` best groups. A lane has a group, whose key is the sum of its two largest
 * expert keys, or the largest. */
static __device__ unsigned best_groups(const router_keys &k, int groups, int top, bool largest)
{
    const int g = threadIdx.x % WARP;
    float one = -CUDART_INF_F, two = -CUDART_INF_F;
    expert_choice own = choice_none(), last = {CUDART_INF_F, -1};
    unsigned group_mask = 0;

    for (int64_t i = g * k.group_size; g < groups && i < (g + 1) * k.group_size; i++) {
        const float v = router_key_of(k, i);

        two = fmaxf(two, fminf(v, one));
        one = fmaxf(one, v);
    }
    if (g < groups)
        own = {largest || k.group_size < 2 ? one : one + two, g};
    for (int j = 0; j < top; j++) {
        last = warp_best_choice(choice_is_before(last, own) ? own : choice_none());
        group_mask |= 1u << (last.i % WARP);
    }
    return group_mask;
}

template <class T> static __device__ void softmax(float *p, const T *logits, int64_t e)
{
    const int lane = threadIdx.x % WARP;
    float max_logit = -CUDART_INF_F, sum = 0.0f, scale;

    for (int64_t i = lane; i < e; i += WARP)
        max_logit = fmaxf(max_logit, to_float(logits[i]));
    max_logit = group_reduce<WARP>(max_logit, max_op());
    for (int64_t i = lane; i < e; i += WARP) {
        p[i] = expf(to_float(logits[i]) - max_logit);
        sum += p[i];
    }
    scale = 1.0f / group_sum<WARP>(sum);
    for (int64_t i = lane; i < e; i += WARP)
        p[i] *= scale;
}

/* Of token r, by a warp: prob = p of the chosen experts, divided by their sum + 1e-20 if
 * renormalised, and scaled.  Of any number of experts, whose scores are read again for each choice.
 */
template <class T>
static __device__ void token_route_wide(const d9d_router_dims &n, int64_t r, float *p, float *prob,
                                        int32_t *expert, const T *logits, const float *bias)
{
    const int64_t e = n.e, k = n.k;
    router_keys keys = {p + r * e, bias, n.groups > 1 ? e / n.groups : 0, 0};
    expert_choice last = {CUDART_INF_F, -1};
    float sum = 0.0f;

    p += r * e, prob += r * k, expert += r * k, logits += r * e;
    if (n.sigmoid)
        for (int64_t i = threadIdx.x % WARP; i < e; i += WARP)
            p[i] = sigmoid(to_float(logits[i]));
    else
        softmax(p, logits, e);
    __syncwarp();
    if (keys.group_size > 0)
        keys.group_mask = best_groups(keys, n.groups, n.top_groups, n.group_max);
    for (int64_t j = 0; j < k; j++) {
        last = topk_next(keys, e, last);
        sum += p[last.i];
        if (threadIdx.x % WARP == 0) {
            expert[j] = last.i;
            prob[j] = p[last.i];
        }
    }
    __syncwarp();
    for (int64_t j = threadIdx.x % WARP; j < k; j += WARP)
        prob[j] = (n.renormalise ? prob[j] / (sum + 1e-20f) : prob[j]) * n.scale;
}

enum { ANY_EXPERTS = 0 };

/* Scores of a token's experts: lane l has experts l, l + WARP ... */
template <class T>
static __device__ __forceinline__ float logit_at(const T *logits, int64_t i, int64_t e)
{
    return i < e ? to_float(logits[i]) : -CUDART_INF_F;
}
template <int N, class T>
static __device__ __forceinline__ void scores_of(float (&p)[N], const d9d_router_dims &n,
                                                 const T *logits)
{
    const int lane = threadIdx.x % WARP;
    float max_logit = -CUDART_INF_F, sum = 0.0f, scale;

#pragma unroll
    for (int i = 0; i < N; i++)
        p[i] = logit_at(logits, lane + i * WARP, n.e);
    if (n.sigmoid) {
#pragma unroll
        for (int i = 0; i < N; i++)
            p[i] = sigmoid(p[i]);
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        max_logit = fmaxf(max_logit, p[i]);
    max_logit = group_reduce<WARP>(max_logit, max_op());
#pragma unroll
    for (int i = 0; i < N; i++)
        if (lane + i * WARP < n.e) {
            p[i] = expf(p[i] - max_logit);
            sum += p[i];
        }
    scale = 1.0f / group_sum<WARP>(sum);
#pragma unroll
    for (int i = 0; i < N; i++)
        p[i] *= scale;
}

/* A key as an integer of the same order, of which equal floats have one; 0 is less than all. */
static __device__ __forceinline__ uint32_t ordered_key(float v)
{
    const uint32_t bits = __float_as_uint(v + 0.0f); /* of both zeros, one */

    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* The lanes' keys; 0 for experts that cannot be chosen. */
template <int N>
static __device__ __forceinline__ void ordered_keys(uint32_t (&key)[N], const router_keys &k,
                                                    const float (&p)[N], int64_t e)
{
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int64_t i = threadIdx.x % WARP + j * WARP;
        const bool yes =
            i < e && (k.group_size == 0 || (k.group_mask >> (i / k.group_size) & 1) != 0);
        const float v = k.bias != NULL && i < e ? p[j] + k.bias[i] : p[j];

        key[j] = yes ? ordered_key(v == v ? v : -CUDART_INF_F) : 0;
    }
}

/* The expert of the largest key, of equal ones the first; takes the key away. */
template <int N> static __device__ __forceinline__ int take_best(uint32_t (&key)[N])
{
    const int lane = threadIdx.x % WARP;
    uint32_t own = key[0], best;
    int at = 0, i;

#pragma unroll
    for (int j = 1; j < N; j++)
        if (key[j] > own)
            own = key[j], at = j;
    best = __reduce_max_sync(~0u, own);
    i = __reduce_min_sync(~0u, own == best ? at * WARP + lane : INT32_MAX);
#pragma unroll
    for (int j = 0; j < N; j++)
        if (j * WARP + lane == i)
            key[j] = 0;
    return i;
}

/* The score of expert i, of the lane that has it. */
template <int N> static __device__ __forceinline__ float score_at(const float (&p)[N], int i)
{
    float v = 0.0f;

#pragma unroll
    for (int j = 0; j < N; j++)
        if (j == i / WARP)
            v = p[j];
    return __shfl_sync(~0u, v, i % WARP);
}

/* The same of up to 32 choices, by lanes with up to N experts each, in registers. */
template <int N, class T>
static __device__ void token_route(const d9d_router_dims &n, int64_t r, float *p, float *prob,
                                   int32_t *expert, const T *logits, const float *bias)
{
    const int64_t e = n.e, k = n.k;
    const int lane = threadIdx.x % WARP;
    router_keys keys = {p + r * e, bias, n.groups > 1 ? e / n.groups : 0, 0};
    float score[N], sum = 0.0f, chosen = 0.0f;
    uint32_t key[N];

    p += r * e, prob += r * k, expert += r * k;
    scores_of(score, n, logits + r * e);
#pragma unroll
    for (int i = 0; i < N; i++)
        if (lane + i * WARP < e)
            p[lane + i * WARP] = score[i];
    if (keys.group_size > 0) {
        __syncwarp();
        keys.group_mask = best_groups(keys, n.groups, n.top_groups, n.group_max);
    }
    ordered_keys(key, keys, score, e);
    for (int j = 0; j < k; j++) {
        const int i = take_best(key);
        const float v = score_at(score, i);

        sum += v;
        if (lane == j)
            chosen = v;
        if (lane == 0)
            expert[j] = i;
    }
    if (lane < k)
        prob[lane] = (n.renormalise ? chosen / (sum + 1e-20f) : chosen) * n.scale;
}
template <int N, class T>
static __device__ __forceinline__ void token_route_by(const d9d_router_dims &n, int64_t r, float *p,
                                                      float *prob, int32_t *expert, const T *logits,
                                                      const float *bias)
{
    if constexpr (N == ANY_EXPERTS)
        token_route_wide(n, r, p, prob, expert, logits, bias);
    else
        token_route<N>(n, r, p, prob, expert, logits, bias);
}

/* Evaluates an expression with N the most experts of a lane, or ANY_EXPERTS. */
#define BY_LANE_EXPERTS(n, N, ...)                                                                 \
    ((n)->k > WARP || (n)->e > 16 * WARP ? [&] { constexpr int N = ANY_EXPERTS; return __VA_ARGS__; }()                          \
     : (n)->e <= 2 * WARP ? [&] { constexpr int N = 2; return __VA_ARGS__; }()                     \
     : (n)->e <= 4 * WARP ? [&] { constexpr int N = 4; return __VA_ARGS__; }()                     \
     : (n)->e <= 8 * WARP ? [&] { constexpr int N = 8; return __VA_ARGS__; }()                     \
                          : [&] { constexpr int N = 16; return __VA_ARGS__; }())

template <int N, class T>
static __global__ void router_kernel(d9d_router_dims n, float *p, float *prob, int32_t *expert,
                                     const T *logits, const float *bias)
{
    const int64_t r = group_row<WARP>();

    pdl_launch_dependents();
    pdl_wait();
    if (r < n.rows)
        token_route_by<N>(n, r, p, prob, expert, logits, bias);
}

enum { ROUTE_FEW = 16 }; /* tokens, two for each warp */

/* A few tokens by one block, and the order of their choices. */
template <int N, class T>
static __global__ void __launch_bounds__(SORT_FEW)
    route_few_kernel(d9d_router_dims n, float *p, float *prob, int32_t *expert,
                     d9d_expert_order order, const T *logits, const float *bias)
{
    pdl_launch_dependents();
    pdl_wait();
    for (int64_t r = threadIdx.x / WARP; r < n.rows; r += SORT_FEW / WARP)
        token_route_by<N>(n, r, p, prob, expert, logits, bias);
    __syncthreads();
    sort_few(order, expert, (int)(n.rows * n.k), (int)n.e);
}

/* --- the losses ------------------------------------------------------------------------------- */

/* Terms of the losses for the token of this warp. With g_i = E load_i / (sum of load) and S the sum
 * of scores:
 *
 *     aux = w (sum of p_i g_i) / S     gradient by p_i: aux_grad (load_i scale - mean)
 *     z = w lse^2                      gradient by logit i: z_grad exp(logit_i - lse)
 *
 * All 0 without losses.
 */
struct balance_terms {
    const float *load;
    float aux, scale, mean, aux_grad;
    float z, lse, z_grad;
};

template <class T>
static __device__ balance_terms balance_terms_of(const d9d_router_dims &n,
                                                 const d9d_router_balance &b, const float *p,
                                                 int64_t r)
{
    const int lane = threadIdx.x % WARP;
    const float w = b.weight != NULL ? b.weight[r] : 0.0f;
    float score_sum = 0.0f, load_sum = 0.0f, dot = 0.0f, max_logit = -CUDART_INF_F, sum = 0.0f;
    balance_terms x = {};

    if (w > 0.0f && b.aux != 0.0f) {
        x.load = b.load + (b.first + r) / b.seq_len * n.e;
        for (int64_t i = lane; i < n.e; i += WARP) {
            score_sum += p[i];
            load_sum += x.load[i];
            dot = fmaf(p[i], x.load[i], dot);
        }
        score_sum = group_sum<WARP>(score_sum) + 1e-20f;
        x.scale = (float)n.e / group_sum<WARP>(load_sum);
        x.mean = group_sum<WARP>(dot) * x.scale / score_sum;
        x.aux_grad = b.aux * w / score_sum;
        x.aux = w * x.mean;
    }
    if (w > 0.0f && b.z != 0.0f) {
        const T *logits = (const T *)b.logits + r * n.e;

        for (int64_t i = lane; i < n.e; i += WARP)
            max_logit = fmaxf(max_logit, to_float(logits[i]));
        max_logit = group_reduce<WARP>(max_logit, max_op());
        for (int64_t i = lane; i < n.e; i += WARP)
            sum += expf(to_float(logits[i]) - max_logit);
        x.lse = max_logit + logf(group_sum<WARP>(sum));
        x.z = w * x.lse * x.lse;
        x.z_grad = 2.0f * b.z * w * x.lse;
    }
    return x;
}

template <class T>
static __global__ void losses_kernel(d9d_router_dims n, float *aux, float *z, const float *p,
                                     d9d_router_balance b)
{
    const int64_t r = group_row<WARP>();

    if (r >= n.rows)
        return;
    const balance_terms x = balance_terms_of<T>(n, b, p + r * n.e, r);

    if (threadIdx.x % WARP == 0) {
        aux[r] = x.aux;
        z[r] = x.z;
    }
}

/* Gradient of score i from the balancing loss. */
static __device__ __forceinline__ float balance_dscore(const balance_terms &x, int64_t i)
{
    return x.load != NULL ? x.aux_grad * fmaf(x.load[i], x.scale, -x.mean) : 0.0f;
}

/* With S = sum + 1e-20 and q = p / S of the chosen experts:
 *
 *     ds_j = scale (dprob_j - sum_i dprob_i q_i) / S, others 0, plus the losses' terms
 *     dlogits = p (ds - sum_j p_j ds_j), or for sigmoids p (1 - p) ds */
template <class T>
static __global__ void router_bwd_kernel(d9d_router_dims n, T *dlogits, const float *dprob,
                                         const float *p, const float *prob, const int32_t *expert,
                                         d9d_router_balance b)
{
    const int64_t r = group_row<WARP>(), e = n.e, k = n.k;
    float sum = 0.0f, mean = 0.0f, dot = 0.0f;

    if (r >= n.rows)
        return;
    dlogits += r * e, p += r * e, dprob += r * k, prob += r * k, expert += r * k;
    for (int64_t j = 0; j < k; j++) {
        sum += p[expert[j]];
        mean = fmaf(dprob[j], prob[j], mean);
    }
    const balance_terms x = balance_terms_of<T>(n, b, p, r);
    const float size = n.renormalise ? sum + 1e-20f : 1.0f,
                mean_dprob = n.renormalise ? mean : 0.0f;
    const T *logits = (const T *)b.logits + r * e;

    if (!n.sigmoid) {
        for (int64_t i = threadIdx.x % WARP; i < e && x.load != NULL; i += WARP)
            dot = fmaf(p[i], balance_dscore(x, i), dot);
        dot = group_sum<WARP>(dot);
        for (int64_t j = 0; j < k; j++)
            dot = fmaf((n.scale * dprob[j] - mean_dprob) / size, p[expert[j]], dot);
    }
    const auto store_dlogit = [&](int64_t i, float ds) {
        const float d = p[i] * (n.sigmoid ? (1.0f - p[i]) * ds : ds - dot);

        store_float(dlogits + i,
                    x.z_grad != 0.0f ? fmaf(x.z_grad, expf(to_float(logits[i]) - x.lse), d) : d);
    };
    for (int64_t i = threadIdx.x % WARP; i < e; i += WARP)
        store_dlogit(i, balance_dscore(x, i));
    __syncwarp();
    for (int64_t j = threadIdx.x % WARP; j < k; j += WARP)
        store_dlogit(expert[j],
                     balance_dscore(x, expert[j]) + (n.scale * dprob[j] - mean_dprob) / size);
}

/* --- load counts and the bias of loss-free balancing ------------------------------------------ */

enum { COUNT_SHARED = 8192, COUNT_BLOCKS = 128 }; /* experts that a block counts in shared memory */

/* Counts are whole numbers, so atomics in any order give the same sums. */
static __global__ void expert_load_kernel(d9d_router_dims n, float *load, double *total,
                                          const int32_t *expert, d9d_router_balance b, bool shared)
{
    extern __shared__ int32_t block_load[];

    for (int64_t x = threadIdx.x; shared && x < n.e; x += THREADS)
        block_load[x] = 0;
    __syncthreads();
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n.rows * n.k;
         i += (int64_t)gridDim.x * THREADS) {
        const int64_t r = i / n.k;
        const int32_t x = expert[i];

        if (!(b.weight[r] > 0.0f))
            continue;
        if (load != NULL)
            atomicAdd(load + (b.first + r) / b.seq_len * n.e + x, 1.0f);
        if (shared)
            atomicAdd(block_load + x, 1);
        else if (total != NULL)
            atomicAdd(total + x, 1.0);
    }
    __syncthreads();
    for (int64_t x = threadIdx.x; shared && x < n.e; x += THREADS)
        if (block_load[x] > 0)
            atomicAdd(total + x, (double)block_load[x]);
}

static __global__ void bias_kernel(float *bias, const double *load, const float *scale, float rate,
                                   int64_t first, int64_t n, int64_t e)
{
    double sum = 0.0;

    for (int64_t i = 0; i < e; i++)
        sum += load[i];
    for (int64_t i = threadIdx.x; i < n && *scale == *scale; i += THREADS) {
        const double scaled_load = load[first + i] * (double)e;

        bias[i] += scaled_load < sum ? rate : scaled_load > sum ? -rate : 0.0f;
    }
}

/* --- table entries ---------------------------------------------------------------------------- */

template <class T>
static d9d_status launch_router(d9d_stream s, const d9d_router_dims *n, float *p, float *prob,
                                int32_t *expert, const void *logits, const float *bias)
{
    return BY_LANE_EXPERTS(n, N,
                           pdl_launch(s, "router", router_kernel<N, T>,
                                      grid_for_rows(n->rows, WARP), THREADS, *n, p, prob, expert,
                                      (const T *)logits, bias));
}

template <class T>
static d9d_status launch_bwd(d9d_stream s, const d9d_router_dims *n, void *dlogits,
                             const float *dprob, const float *p, const float *prob,
                             const int32_t *expert, const d9d_router_balance *b)
{
    router_bwd_kernel<<<grid_for_rows(n->rows, WARP), THREADS, 0, d9di_cuda_stream(s)>>>(
        *n, (T *)dlogits, dprob, p, prob, expert, b != NULL ? *b : d9d_router_balance{});
    return d9di_cuda_check_launch("router_bwd");
}

template <class T>
static d9d_status launch_losses(d9d_stream s, const d9d_router_dims *n, float *aux, float *z,
                                const float *p, const d9d_router_balance *b)
{
    losses_kernel<T>
        <<<grid_for_rows(n->rows, WARP), THREADS, 0, d9di_cuda_stream(s)>>>(*n, aux, z, p, *b);
    return d9di_cuda_check_launch("router_losses");
}

d9d_status d9d_k_router(d9d_stream s, const d9d_router_dims *n, float *p, float *prob,
                        int32_t *expert, const void *logits, const float *bias)
{
    D9D_TRY(d9di_args_check_router("router", n));
    if (n->rows * n->e == 0)
        return D9D_OK;
    return D9DI_DISPATCH_DTYPE(n->t, T, launch_router<T>(s, n, p, prob, expert, logits, bias));
}

template <class T>
static d9d_status launch_route_few(d9d_stream s, const d9d_router_dims *n, float *p, float *prob,
                                   int32_t *expert, const d9d_expert_order *order,
                                   const void *logits, const float *bias)
{
    return BY_LANE_EXPERTS(n, N,
                           pdl_launch(s, "route", route_few_kernel<N, T>, 1, SORT_FEW, *n, p, prob,
                                      expert, *order, (const T *)logits, bias));
}

d9d_status d9d_k_route(d9d_stream s, const d9d_router_dims *n, float *p, float *prob,
                       int32_t *expert, const d9d_expert_order *order, const void *logits,
                       const float *bias)
{
    const int64_t choices = n->rows * n->k;

    D9D_TRY(d9di_args_check_router("route", n));
    if (choices > 0 && choices <= SORT_FEW && n->rows <= ROUTE_FEW && n->e <= INT32_MAX)
        return D9DI_DISPATCH_DTYPE(n->t, T,
                                   launch_route_few<T>(s, n, p, prob, expert, order, logits, bias));
    D9D_TRY(d9d_k_router(s, n, p, prob, expert, logits, bias));
    return d9d_k_sort_by_expert(s, order->offset, order->row, order->source, expert, n->rows, n->e,
                                n->k);
}

d9d_status d9d_k_router_bwd(d9d_stream s, const d9d_router_dims *n, void *dlogits,
                            const float *dprob, const float *p, const float *prob,
                            const int32_t *expert, const d9d_router_balance *b)
{
    D9D_TRY(d9di_args_check_router("router_bwd", n));
    if (n->rows * n->e == 0)
        return D9D_OK;
    return D9DI_DISPATCH_DTYPE(n->t, T, launch_bwd<T>(s, n, dlogits, dprob, p, prob, expert, b));
}

d9d_status d9d_k_router_losses(d9d_stream s, const d9d_router_dims *n, float *aux, float *z,
                               const float *p, const d9d_router_balance *b)
{
    D9D_TRY(d9di_args_check_router("router_losses", n));
    if (n->rows * n->e == 0)
        return D9D_OK;
    return D9DI_DISPATCH_DTYPE(n->t, T, launch_losses<T>(s, n, aux, z, p, b));
}

d9d_status d9d_k_expert_load(d9d_stream s, const d9d_router_dims *n, float *load, double *total,
                             const int32_t *expert, const d9d_router_balance *b)
{
    const bool shared = total != NULL && n->e <= COUNT_SHARED;
    const int64_t blocks = d9di_i64_ceil_div(n->rows * n->k, THREADS);

    if (blocks == 0)
        return D9D_OK;
    expert_load_kernel<<<(unsigned)(blocks < COUNT_BLOCKS ? blocks : COUNT_BLOCKS), THREADS,
                         shared ? (size_t)n->e * sizeof(int32_t) : 0, d9di_cuda_stream(s)>>>(
        *n, load, total, expert, *b, shared);
    return d9di_cuda_check_launch("expert_load");
}

d9d_status d9d_k_router_bias(d9d_stream s, float *bias, const double *load, const float *scale,
                             float rate, int64_t first, int64_t n, int64_t e)
{
    if (n == 0)
        return D9D_OK;
    bias_kernel<<<1, THREADS, 0, d9di_cuda_stream(s)>>>(bias, load, scale, rate, first, n, e);
    return d9di_cuda_check_launch("router_bias");
}
