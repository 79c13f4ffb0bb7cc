/* linear_cross_entropy_bwd.cu - dgrad and wgrad of the linear head and cross entropy, with
 * recomputed logits.
 *
 * dh = dloss unit, where the forward computed unit. dW = dz' h with dz = (exp(z - lse) - [target])
 * dloss, times softcap_grad() if there is a softcap. The logits of some columns are recomputed for
 * as many tokens as fit, so that the GEMM sums over all of them and dW is rounded once. For
 * bfloat16, dz is rounded to bfloat16 before the GEMM. The gradient of a bias is the sum of dz over
 * tokens.
 */
#include "cuda/loss/linear_cross_entropy.cuh"

static const char op[] = "cross-entropy gradient";

enum { SCRATCH_BYTES = 128 << 20, MIN_COLUMNS = 256, MAX_COLUMNS = 8192 };

/* A thread group has a row of dhidden. */
template <class T>
static __global__ void dgrad_kernel(T *y, const float *by, const T *x, int64_t rows, int64_t h)
{
    const int64_t per_row = d9di_i64_ceil_div(h, 8);

    for (int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x; e < rows * per_row;
         e += (int64_t)gridDim.x * THREADS) {
        const int64_t r = e / per_row, at = e % per_row * 8;
        float v[8];

        load8(v, x + r * h + at, h - at);
        for (int j = 0; j < 8; j++)
            v[j] *= by[r];
        store8(y + r * h + at, v, h - at);
    }
}

template <class T>
static d9d_status launch_dgrad(d9d_stream s, void *dhidden, const float *dloss,
                               const void *token_grad, int64_t rows, int64_t h)
{
    dgrad_kernel<<<grid_for(s, rows * d9di_i64_ceil_div(h, 8)), THREADS, 0, d9di_cuda_stream(s)>>>(
        (T *)dhidden, dloss, (const T *)token_grad, rows, h);
    return d9di_cuda_check_launch(op);
}

d9d_status d9d_k_linear_cross_entropy_dgrad(d9d_stream s, d9d_dtype t, void *dhidden,
                                            const float *dloss, const void *token_grad,
                                            int64_t rows, int64_t h)
{
    D9D_TRY(d9di_args_check_float(op, t));
    return rows * h == 0
               ? D9D_OK
               : D9DI_DISPATCH_DTYPE(t, T, launch_dgrad<T>(s, dhidden, dloss, token_grad, rows, h));
}

/* dz of a token, which may overwrite its logits; zeros if the token is ignored. */
template <class T>
static __global__ void dlogits_kernel(T *dz, const float *logits, const float *dloss,
                                      const float *lse, const int32_t *targets, int32_t ignore,
                                      int64_t split_first_id, int64_t n, float cap)
{
    const int64_t r = blockIdx.x, target = targets[r] - split_first_id;
    const bool ignored = targets[r] == ignore;
    const float by = ignored ? 0.0f : dloss[r], sum = ignored ? 0.0f : lse[r];

    D9DI_ROW8 (i, n, THREADS) {
        float v[8];

        load8(v, logits + r * n + i, n - i);
        for (int j = 0; j < 8; j++) {
            const float logit = softcap(v[j], cap);

            v[j] = ignored ? 0.0f : expf(logit - sum) * by;
            v[j] -= i + j == target && !ignored ? by : 0.0f;
            v[j] *= ignored ? 0.0f : softcap_grad(logit, cap);
        }
        store8(dz + r * n + i, v, n - i);
    }
}

/* A call: its blocks of tokens and columns, and their scratch. */
struct wgrad_call {
    d9d_stream s;
    const d9d_linear_cross_entropy_dims *n;
    d9d_dtype gt;
    const float *dloss, *lse;
    const void *hidden;
    const void *const *w;
    const int32_t *targets;
    int64_t tokens, width;
    float *logits;
};

/* As many tokens as fit with MIN_COLUMNS columns, then as many columns as fit. */
template <class T> static void choose_blocks(wgrad_call *b)
{
    const int64_t elements = SCRATCH_BYTES / (logit_block_bytes<T>(64) / 64), v = vocab_size(b->n);

    b->tokens = d9di_i64_min(b->n->rows, elements / MIN_COLUMNS);
    b->width = d9di_i64_min(d9di_i64_min(v, MAX_COLUMNS), elements / d9di_i64_max(b->tokens, 1));
    b->width = d9di_i64_max(1, b->width > 64 ? b->width / 64 * 64 : b->width);
}

/* dW and dbias of some columns; dw NULL: the latter alone. */
template <class T>
static d9d_status vocab_block_wgrad(const wgrad_call &b, const vocab_block &c, void *dw, float beta)
{
    const int64_t h = b.n->h;

    for (int64_t i = 0; i < b.n->rows; i += b.tokens, beta = 1.0f) {
        const int64_t tokens = d9di_i64_min(b.n->rows - i, b.tokens);
        const T *x = (const T *)b.hidden + i * h;
        T *dz = probs_buffer<T>(b.logits, tokens * c.n);
        d9d_gemm g = {};

        D9D_TRY(logits_compute(b.s, op, b.n, c, x, tokens, b.w, b.logits));
        dlogits_kernel<<<(unsigned)tokens, THREADS, 0, d9di_cuda_stream(b.s)>>>(
            dz, b.logits, b.dloss + i, b.lse + i, b.targets + i, b.n->ignore, c.base + c.first, c.n,
            b.n->softcap);
        D9D_TRY(d9di_cuda_check_launch(op));
        if (b.n->dbias != NULL)
            D9D_TRY(d9d_k_grouped_bias_wgrad(b.s, b.n->t, b.gt,
                                             d9di_elem_at(b.gt, b.n->dbias, c.base + c.first), 1.0f,
                                             dz, NULL, tokens, 1, c.n));
        if (dw == NULL)
            continue;
        g.t = b.n->t;
        g.ct = b.gt;
        g.trans_a = true;
        g.m = c.n;
        g.n = h;
        g.k = tokens;
        g.beta = beta;
        D9D_TRY(d9di_gemm(b.s, op, &g, dz, x, d9di_elem_at(b.gt, dw, c.first * h)));
    }
    return D9D_OK;
}

template <class T> static d9d_status run_wgrad(wgrad_call &b, void *const *dw, const float *beta)
{
    d9d_status st = D9D_OK;
    vocab_block c = {};
    int64_t bytes;
    void *scratch;

    choose_blocks<T>(&b);
    bytes = logit_block_bytes<T>(b.tokens * b.width);
    D9D_TRY(d9di_cuda_scratch_alloc(b.s, bytes, &scratch));
    b.logits = (float *)scratch;
    while (st == D9D_OK && vocab_block_next(b.n, b.width, &c))
        if (dw[c.split] != NULL || b.n->dbias != NULL)
            st = vocab_block_wgrad<T>(b, c, dw[c.split], beta[c.split]);
    d9di_cuda_scratch_free(b.s, scratch, bytes);
    return st;
}

d9d_status d9d_k_linear_cross_entropy_wgrad(d9d_stream s, const d9d_linear_cross_entropy_dims *n,
                                            d9d_dtype gt, void *const *dw, const float *beta,
                                            const float *dloss, const float *lse,
                                            const void *hidden, const void *const *w,
                                            const int32_t *targets)
{
    wgrad_call b = {s, n, gt, dloss, lse, hidden, w, targets, 0, 0, NULL};

    D9D_TRY(d9di_args_check_float(op, n->t));
    D9D_TRY(d9di_args_check_float(op, gt));
    if (n->rows == 0)
        return wgrad_clear(s, n, gt, dw, beta);
    return D9DI_DISPATCH_DTYPE(n->t, T, run_wgrad<T>(b, dw, beta));
}
