/* linear_cross_entropy.cuh - what the linear cross entropy kernels share: blocks of logits, and
 * where a block's columns lie in the split vocabulary. */
#ifndef D9DI_CUDA_LOSS_LINEAR_CROSS_ENTROPY_CUH
#define D9DI_CUDA_LOSS_LINEAR_CROSS_ENTROPY_CUH

#include "cuda/common/common.cuh"

/* Columns [first, first + n) of split i; `base` is the split's first id. */
struct vocab_block {
    int split;
    int64_t base, first, n;
};

/* Id of the first row of a split; with split == n_split, the size, if this is the whole vocabulary.
 */
static inline int64_t split_first_id(const d9d_linear_cross_entropy_dims *d, int split)
{
    int64_t id = 0;

    if (d->first != NULL)
        return d->first[split];
    for (int i = 0; i < split; i++)
        id += d->v[i];
    return id;
}

static inline int64_t vocab_size(const d9d_linear_cross_entropy_dims *d)
{
    return d->first != NULL ? d->vocab : split_first_id(d, d->n_split);
}

/* Advances to the next block of at most `max_cols` columns; start from all zeros. */
static inline bool vocab_block_next(const d9d_linear_cross_entropy_dims *d, int64_t max_cols,
                                    vocab_block *c)
{
    c->first += c->n;
    while (c->split < d->n_split && c->first >= d->v[c->split]) {
        c->split++;
        c->first = 0;
    }
    if (c->split >= d->n_split)
        return false;
    c->base = split_first_id(d, c->split);
    c->n = d9di_i64_min(d->v[c->split] - c->first, max_cols);
    return true;
}

/* The rows of W on this rank and their ids, as a kernel argument. */
enum { MAX_SPLITS = 16 };
struct vocab_splits {
    int n;
    int64_t all, first[MAX_SPLITS], v[MAX_SPLITS];
    const void *w[MAX_SPLITS];
};

static inline d9d_status vocab_splits_make(const char *op, const d9d_linear_cross_entropy_dims *d,
                                           const void *const *w, vocab_splits *out)
{
    if (d->n_split > MAX_SPLITS)
        return D9D_FAIL(D9D_EINVAL, "%s: a vocabulary in %d shards, at most %d are supported", op,
                        d->n_split, MAX_SPLITS);
    out->n = d->n_split;
    out->all = vocab_size(d);
    for (int i = 0; i < d->n_split; i++) {
        out->first[i] = split_first_id(d, i);
        out->v[i] = d->v[i];
        out->w[i] = w[i];
    }
    return D9D_OK;
}

/* W[id], or NULL if this rank lacks it. */
template <class T>
static __device__ const T *target_row(const vocab_splits &w, int64_t id, int64_t h)
{
    for (int s = 0; s < w.n; s++)
        if (id >= w.first[s] && id - w.first[s] < w.v[s])
            return (const T *)w.w[s] + (id - w.first[s]) * h;
    return NULL;
}

/* logits += bias, which is that of the columns */
template <class T>
static __global__ void logits_bias_kernel(float *logits, const T *bias, int64_t tokens, int64_t n)
{
    EACH_ROW8 (r, j, tokens, n) {
        float v[8], add[8];

        load8(v, logits + r * n + j, n - j);
        load8(add, bias + j, n - j);
        for (int i = 0; i < 8; i++)
            v[i] += add[i];
        store8(logits + r * n + j, v, n - j);
    }
}

template <class T>
static inline d9d_status logits_add_bias(d9d_stream s, const char *op, float *logits,
                                         const void *bias, int64_t id, int64_t tokens, int64_t n)
{
    logits_bias_kernel<T>
        <<<grid_for(s, tokens * d9di_i64_ceil_div(n, 8)), THREADS, 0, d9di_cuda_stream(s)>>>(
            logits, (const T *)bias + id, tokens, n);
    return d9di_cuda_check_launch(op);
}

/* logits = hidden W' + bias of some columns before the softcap, float32 [tokens, c.n] */
static inline d9d_status logits_compute(d9d_stream s, const char *op,
                                        const d9d_linear_cross_entropy_dims *d,
                                        const vocab_block &c, const void *hidden, int64_t tokens,
                                        const void *const *w, float *logits)
{
    d9d_gemm g = {};

    g.t = d->t;
    g.ct = D9D_F32;
    g.trans_b = true;
    g.m = tokens;
    g.n = c.n;
    g.k = d->h;
    D9D_TRY(d9di_gemm(s, op, &g, hidden, d9di_elem_cat(d->t, w[c.split], c.first * d->h), logits));
    if (d->bias == NULL)
        return D9D_OK;
    return D9DI_DISPATCH_DTYPE(
        d->t, T, logits_add_bias<T>(s, op, logits, d->bias, c.base + c.first, tokens, c.n));
}

/* Buffer for n values of type T next to n logits: in place if T is float32, else after the logits.
 */
template <class T> static inline T *probs_buffer(float *logits, int64_t n)
{
    return sizeof(T) == 4 ? (T *)logits : (T *)(logits + d9di_i64_round_up(n, 64));
}
template <class T> static inline int64_t logit_block_bytes(int64_t n)
{
    return d9di_i64_round_up(n, 64) * (sizeof(T) == 4 ? 4 : 6);
}

/* Without tokens, dW = beta dW. */
static inline d9d_status wgrad_clear(d9d_stream s, const d9d_linear_cross_entropy_dims *n,
                                     d9d_dtype gt, void *const *dw, const float *beta)
{
    for (int i = 0; i < n->n_split; i++)
        if (dw[i] != NULL && beta[i] == 0.0f)
            D9D_TRY(d9d_k_fill(s, gt, dw[i], n->v[i] * n->h, 0.0f));
    return D9D_OK;
}

#endif /* D9DI_CUDA_LOSS_LINEAR_CROSS_ENTROPY_CUH */
