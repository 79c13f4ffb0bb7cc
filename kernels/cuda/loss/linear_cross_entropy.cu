/* linear_cross_entropy.cu - linear head and cross entropy, forward, without storing the logits.
 *
 * loss = logsumexp(h W') - (h W')[target], over a block of tokens by a block of columns at a time.
 * cuBLASLt computes the logits. A kernel updates an online softmax, a running maximum m and sum l.
 * With p = exp(logits - lse), dloss/dh = p W - W[target] is summed while the logits are there, and
 * rescaled when m grows. For bfloat16, p is rounded to bfloat16 before that GEMM. With a softcap, p
 * and W[target] of that sum have the factor softcap_grad().
 */
#include <math_constants.h>

#include "cuda/loss/linear_cross_entropy.cuh"

enum { TOKENS = 2048, COLUMNS = 8192 };

/* A token's running state; keep: the factor by which the last block rescales earlier sums. */
struct online_softmax {
    float m, l, target, keep;
};

static __global__ void online_init_kernel(online_softmax *state, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < n)
        state[i] = {-CUDART_INF_F, 0.0f, 0.0f, 1.0f};
}

/* A block has a token. p, or NULL, receives exp(logits - m) derivative, and may overlap the logits.
 */
template <class T>
static __global__ void online_softmax_kernel(online_softmax *state, const float *logits, T *p,
                                             const int32_t *targets, int64_t split_first_id,
                                             int64_t n, float cap)
{
    const float *z = logits + blockIdx.x * n;
    const int64_t target = targets[blockIdx.x] - split_first_id;
    online_softmax o = state[blockIdx.x];
    float m = -CUDART_INF_F, sum = 0.0f, v[8];

    if (target >= 0 && target < n)
        o.target = softcap(z[target], cap); /* before the reduction, whose barrier orders this read
                                 before the writes of p */
    D9DI_ROW8 (i, n, THREADS) {
        load8(v, z + i, n - i);
        for (int j = 0; j < 8; j++)
            m = fmaxf(m, j < n - i ? softcap(v[j], cap) : -CUDART_INF_F);
    }
    m = fmaxf(o.m, group_reduce<THREADS>(m, max_op()));
    D9DI_ROW8 (i, n, THREADS) {
        load8(v, z + i, n - i);
        for (int j = 0; j < 8; j++) {
            const float logit = softcap(v[j], cap);

            v[j] = expf(logit - m);
            sum += j < n - i ? v[j] : 0.0f;
            v[j] *= softcap_grad(logit, cap);
        }
        if (p != NULL)
            store8(p + blockIdx.x * n + i, v, n - i);
    }
    sum = group_sum<THREADS>(sum);
    if (threadIdx.x != 0)
        return;
    o.keep = o.l == 0.0f ? 1.0f : expf(o.m - m);
    o.l = o.l * o.keep + sum;
    o.m = m;
    state[blockIdx.x] = o;
}

/* sum = keep sum; a block has a token. */
static __global__ void rescale_sum_kernel(float *sum, const online_softmax *state, int64_t h)
{
    const float keep = state[blockIdx.x].keep;

    if (keep == 1.0f)
        return;
    for (int64_t i = threadIdx.x; i < h; i += THREADS)
        sum[blockIdx.x * h + i] *= keep;
}

/* lse, loss, and unit = sum / l - derivative W[target]; a block has a token. */
template <class T>
static __global__ void loss_dgrad_kernel(float *loss, float *lse, T *token_grad,
                                         const online_softmax *state, const float *sum,
                                         const int32_t *targets, vocab_splits w, int32_t ignore,
                                         int64_t h, float cap)
{
    const int64_t r = blockIdx.x, id = targets[r];
    const bool ignored = id == ignore, bad = id < 0 || id >= w.all;
    const online_softmax o = state[r];
    const float total = o.m + logf(o.l), derivative = softcap_grad(o.target, cap);

    if (threadIdx.x == 0) {
        lse[r] = ignored ? 0.0f : total;
        loss[r] = ignored ? 0.0f : bad ? CUDART_NAN_F : total - o.target;
    }
    if (token_grad == NULL)
        return;
    const T *row = target_row<T>(w, id, h);
    for (int64_t i = threadIdx.x; i < h; i += THREADS) {
        const float mean = o.l == 0.0f ? 0.0f : sum[r * h + i] * (1.0f / o.l);

        store_float(token_grad + r * h + i,
                    ignored ? 0.0f
                    : bad   ? CUDART_NAN_F
                            : mean - (row != NULL ? derivative * to_float(row[i]) : 0.0f));
    }
}

/* A call's arguments, and its scratch: state, sums, logits. */
struct forward_call {
    d9d_stream s;
    const d9d_linear_cross_entropy_dims *n;
    const void *const *w;
    vocab_splits all;
    online_softmax *state;
    float *sum, *logits;
    int64_t width; /* columns of a block */
};

static const char op[] = "cross-entropy";

template <class T>
static d9d_status vocab_block_forward(const forward_call &f, const vocab_block &c,
                                      const void *hidden, const int32_t *targets, int64_t tokens,
                                      bool first, bool want_token_grad)
{
    cudaStream_t queue = d9di_cuda_stream(f.s);
    T *p = want_token_grad ? probs_buffer<T>(f.logits, tokens * c.n) : NULL;
    d9d_gemm g = {};

    D9D_TRY(logits_compute(f.s, op, f.n, c, hidden, tokens, f.w, f.logits));
    online_softmax_kernel<<<(unsigned)tokens, THREADS, 0, queue>>>(
        f.state, f.logits, p, targets, c.base + c.first, c.n, f.n->softcap);
    D9D_TRY(d9di_cuda_check_launch(op));
    if (!want_token_grad)
        return D9D_OK;
    if (!first)
        rescale_sum_kernel<<<(unsigned)tokens, THREADS, 0, queue>>>(f.sum, f.state, f.n->h);
    g.t = f.n->t;
    g.ct = D9D_F32;
    g.m = tokens;
    g.n = f.n->h;
    g.k = c.n;
    g.beta = first ? 0.0f : 1.0f;
    return d9di_gemm(f.s, op, &g, p, d9di_elem_cat(f.n->t, f.w[c.split], c.first * f.n->h), f.sum);
}

template <class T>
static d9d_status token_block_forward(const forward_call &f, int64_t first, float *loss, float *lse,
                                      void *token_grad, const void *hidden, const int32_t *targets)
{
    const int64_t tokens = d9di_i64_min(f.n->rows - first, TOKENS), h = f.n->h;
    const T *x = (const T *)hidden + first * h;
    T *u = token_grad == NULL ? NULL : (T *)token_grad + first * h;
    cudaStream_t queue = d9di_cuda_stream(f.s);
    bool begun = false;
    vocab_block c = {};

    online_init_kernel<<<(unsigned)d9di_i64_ceil_div(tokens, THREADS), THREADS, 0, queue>>>(f.state,
                                                                                            tokens);
    for (; vocab_block_next(f.n, f.width, &c); begun = true)
        D9D_TRY(
            vocab_block_forward<T>(f, c, x, targets + first, tokens, !begun, token_grad != NULL));
    loss_dgrad_kernel<<<(unsigned)tokens, THREADS, 0, queue>>>(loss + first, lse + first, u,
                                                               f.state, f.sum, targets + first,
                                                               f.all, f.n->ignore, h, f.n->softcap);
    return d9di_cuda_check_launch(op);
}

template <class T>
static d9d_status run_forward(d9d_stream s, const d9d_linear_cross_entropy_dims *n, float *loss,
                              float *lse, void *token_grad, const void *hidden,
                              const void *const *w, const int32_t *targets)
{
    const int64_t tokens = d9di_i64_min(n->rows, TOKENS);
    forward_call f = {s, n, w, {}, NULL, NULL, NULL, d9di_i64_min(vocab_size(n), COLUMNS)};
    const int64_t state = tokens * (int64_t)sizeof(online_softmax);
    const int64_t sums = token_grad == NULL ? 0 : d9di_i64_round_up(tokens * n->h * 4, 256);
    const int64_t bytes =
        d9di_i64_round_up(state, 256) + sums + logit_block_bytes<T>(tokens * f.width);
    d9d_status st = D9D_OK;
    void *scratch;

    D9D_TRY(vocab_splits_make(op, n, w, &f.all));
    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &scratch));
    f.state = (online_softmax *)scratch;
    f.sum = (float *)((char *)scratch + d9di_i64_round_up(state, 256));
    f.logits = f.sum + sums / 4;
    for (int64_t i = 0; i < n->rows && st == D9D_OK; i += TOKENS)
        st = token_block_forward<T>(f, i, loss, lse, token_grad, hidden, targets);
    d9di_cuda_scratch_free(s, scratch, bytes);
    return st;
}

d9d_status d9d_k_linear_cross_entropy(d9d_stream s, const d9d_linear_cross_entropy_dims *n,
                                      float *loss, float *lse, void *token_grad, const void *hidden,
                                      const void *const *w, const int32_t *targets)
{
    D9D_TRY(d9di_args_check_float(op, n->t));
    if (n->rows == 0)
        return D9D_OK;
    return D9DI_DISPATCH_DTYPE(n->t, T,
                               run_forward<T>(s, n, loss, lse, token_grad, hidden, w, targets));
}
