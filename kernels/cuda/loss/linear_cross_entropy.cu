/* linear_cross_entropy.cu - a linear head and the cross-entropy of its logits, without the logits.
 *
 * loss = logsumexp(h W') - (h W')[target], over a block of tokens by a block of columns at a
 * time: cuBLASLt makes the logits, a kernel folds them into a running maximum m and sum l.  With
 * p = exp(logits - lse), dloss/dh = p W - W[target] is summed along while the logits are there,
 * rescaled when m grows.  For bfloat16 p is rounded to bfloat16 before that product.
 */
#include <math_constants.h>

#include "cuda/loss/linear_cross_entropy.cuh"

enum { TOKENS = 2048, COLUMNS = 8192 };

/* A token's running state; keep: by how much the last block shrank what was summed. */
struct online {
    float m, l, target, keep;
};

static __global__ void start_kernel(online *state, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < n)
        state[i] = {-CUDART_INF_F, 0.0f, 0.0f, 1.0f};
}

/* A block has a token.  p NULL: exp(logits - m) is not wanted; it may lie over the logits. */
template <class T>
static __global__ void fold_kernel(online *state, const float *logits, T *p, const int32_t *targets,
                                   int64_t first_id, int64_t n)
{
    const float *z = logits + blockIdx.x * n;
    const int64_t target = targets[blockIdx.x] - first_id;
    online o = state[blockIdx.x];
    float m = -CUDART_INF_F, sum = 0.0f, v[8];

    if (target >= 0 && target < n)
        o.target = z[target]; /* before the fold, whose barrier every thread passes before p */
    D9DI_ROW8 (i, n, THREADS) {
        load8(v, z + i, n - i);
        for (int j = 0; j < 8; j++)
            m = fmaxf(m, j < n - i ? v[j] : -CUDART_INF_F);
    }
    m = fmaxf(o.m, group_fold<THREADS>(m, largest()));
    D9DI_ROW8 (i, n, THREADS) {
        load8(v, z + i, n - i);
        for (int j = 0; j < 8; j++) {
            v[j] = expf(v[j] - m);
            sum += j < n - i ? v[j] : 0.0f;
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

/* sum = keep sum, a block a token. */
static __global__ void keep_kernel(float *sum, const online *state, int64_t h)
{
    const float keep = state[blockIdx.x].keep;

    if (keep == 1.0f)
        return;
    for (int64_t i = threadIdx.x; i < h; i += THREADS)
        sum[blockIdx.x * h + i] *= keep;
}

/* lse, loss, and unit = sum / l - W[target]; a block has a token. */
template <class T>
static __global__ void finish_kernel(float *loss, float *lse, T *unit, const online *state,
                                     const float *sum, const int32_t *targets, splits w,
                                     int32_t ignore, int64_t h)
{
    const int64_t r = blockIdx.x, id = targets[r];
    const bool ignored = id == ignore, bad = id < 0 || id >= w.all;
    const online o = state[r];
    const float total = o.m + logf(o.l);

    if (threadIdx.x == 0) {
        lse[r] = ignored ? 0.0f : total;
        loss[r] = ignored ? 0.0f : bad ? CUDART_NAN_F : total - o.target;
    }
    if (unit == NULL)
        return;
    const T *row = row_of<T>(w, id, h);
    for (int64_t i = threadIdx.x; i < h; i += THREADS) {
        const float mean = o.l == 0.0f ? 0.0f : sum[r * h + i] * (1.0f / o.l);

        put(unit + r * h + i, ignored ? 0.0f
                              : bad   ? CUDART_NAN_F
                                      : mean - (row != NULL ? to_float(row[i]) : 0.0f));
    }
}

/* A call, and its scratch: state, sums, logits. */
struct forward {
    d9d_stream s;
    const d9d_xent_dims *n;
    const void *const *w;
    splits all;
    online *state;
    float *sum, *logits;
    int64_t width; /* columns of a block */
};

static const char op[] = "cross-entropy";

template <class T>
static d9d_status fold_columns(const forward &f, const columns &c, const void *hidden,
                               const int32_t *targets, int64_t tokens, bool first, bool want_unit)
{
    cudaStream_t queue = d9di_queue(f.s);
    T *p = want_unit ? beside<T>(f.logits, tokens * c.n) : NULL;
    d9d_gemm g = {};

    D9D_TRY(logits_make(f.s, op, f.n, c, hidden, tokens, f.w, f.logits));
    fold_kernel<<<(unsigned)tokens, THREADS, 0, queue>>>(f.state, f.logits, p, targets,
                                                         c.base + c.first, c.n);
    D9D_TRY(d9di_launched(op));
    if (!want_unit)
        return D9D_OK;
    if (!first)
        keep_kernel<<<(unsigned)tokens, THREADS, 0, queue>>>(f.sum, f.state, f.n->h);
    g.t = f.n->t;
    g.ct = D9D_F32;
    g.m = tokens;
    g.n = f.n->h;
    g.k = c.n;
    g.beta = first ? 0.0f : 1.0f;
    return d9di_gemm(f.s, op, &g, p, d9di_cat(f.n->t, f.w[c.split], c.first * f.n->h), f.sum);
}

template <class T>
static d9d_status tokens_forward(const forward &f, int64_t first, float *loss, float *lse,
                                 void *unit, const void *hidden, const int32_t *targets)
{
    const int64_t tokens = d9di_min(f.n->rows - first, TOKENS), h = f.n->h;
    const T *x = (const T *)hidden + first * h;
    T *u = unit == NULL ? NULL : (T *)unit + first * h;
    cudaStream_t queue = d9di_queue(f.s);
    bool begun = false;
    columns c = {};

    start_kernel<<<(unsigned)d9di_ceil_div(tokens, THREADS), THREADS, 0, queue>>>(f.state, tokens);
    for (; columns_next(f.n, f.width, &c); begun = true)
        D9D_TRY(fold_columns<T>(f, c, x, targets + first, tokens, !begun, unit != NULL));
    finish_kernel<<<(unsigned)tokens, THREADS, 0, queue>>>(
        loss + first, lse + first, u, f.state, f.sum, targets + first, f.all, f.n->ignore, h);
    return d9di_launched(op);
}

template <class T>
static d9d_status xent(d9d_stream s, const d9d_xent_dims *n, float *loss, float *lse, void *unit,
                       const void *hidden, const void *const *w, const int32_t *targets)
{
    const int64_t tokens = d9di_min(n->rows, TOKENS);
    forward f = {s, n, w, {}, NULL, NULL, NULL, d9di_min(vocabulary(n), COLUMNS)};
    const int64_t state = tokens * (int64_t)sizeof(online);
    const int64_t sums = unit == NULL ? 0 : d9di_round_up(tokens * n->h * 4, 256);
    const int64_t bytes = d9di_round_up(state, 256) + sums + block_bytes<T>(tokens * f.width);
    d9d_status st = D9D_OK;
    void *scratch;

    D9D_TRY(splits_of(op, n, w, &f.all));
    D9D_TRY(d9di_take(s, bytes, &scratch));
    f.state = (online *)scratch;
    f.sum = (float *)((char *)scratch + d9di_round_up(state, 256));
    f.logits = f.sum + sums / 4;
    for (int64_t i = 0; i < n->rows && st == D9D_OK; i += TOKENS)
        st = tokens_forward<T>(f, i, loss, lse, unit, hidden, targets);
    d9di_give(s, scratch, bytes);
    return st;
}

d9d_status d9d_k_xent(d9d_stream s, const d9d_xent_dims *n, float *loss, float *lse, void *unit,
                      const void *hidden, const void *const *w, const int32_t *targets)
{
    D9D_TRY(d9di_check_float(op, n->t));
    if (n->rows == 0)
        return D9D_OK;
    return D9DI_TYPED(n->t, T, xent<T>(s, n, loss, lse, unit, hidden, w, targets));
}
