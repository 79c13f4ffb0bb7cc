/* linear_cross_entropy.c - linear head and cross entropy, without storing the logits.
 *
 * loss = logsumexp(h W') - (h W')[target]. Logits are computed for a block of tokens by a block of
 * vocabulary at a time. Ignored tokens are removed before any GEMM. With p = exp(logits - lse):
 *
 *     dloss/dh = p W - W[target]     computed by the forward, as attention computes p V
 *     dW = sum over tokens of dloss (p - [target])' h
 *
 * Vocabulary parallelism: with f = exp(lse of this part - lse of all), this part's share of
 * dloss/dh is f (p W) - W[target] = f unit - (1 - f) W[target].
 *
 * With a softcap, a logit's gradient and a row W[target] have the factor derivative = 1 - (logit /
 * softcap)^2.  A bias is part of the logits, and its gradient is the sum of theirs.
 */
#include "cpu/common.h"
#include "cpu/math.h"

enum {
    T_BLOCK = 256, /* tokens */
    V_BLOCK = 4096 /* columns */
};

/* A call: its sizes, its tokens that are not ignored, and scratch for one block. */
typedef struct cross_entropy_call {
    const char *op;
    const d9d_linear_cross_entropy_dims *n;
    const void *hidden;
    const void *const *w;
    const int32_t *targets;
    int64_t *row; /* tokens that are not ignored, ascending */
    int64_t n_rows;
    void *h;       /* hidden rows of a block of them, of type t */
    float *logits; /* [T_BLOCK, V_BLOCK] */
} cross_entropy_call;

/* Columns [first, first + n) of split i; `base` is the split's first id. */
typedef struct vocab_block {
    int split;
    int64_t base, first, n;
} vocab_block;

/* Id of the first row of a split; with split == n_split, the size, if this is the whole vocabulary.
 */
static int64_t split_first_id(const d9d_linear_cross_entropy_dims *n, int split)
{
    int64_t id = 0;

    if (n->first != NULL)
        return n->first[split];
    for (int i = 0; i < split; i++)
        id += n->v[i];
    return id;
}

static int64_t vocabulary(const d9d_linear_cross_entropy_dims *n)
{
    return n->first != NULL ? n->vocab : split_first_id(n, n->n_split);
}

/* W[id], or NULL if this part lacks it. */
static const void *target_row(const d9d_linear_cross_entropy_dims *n, const void *const *w,
                              int64_t id)
{
    for (int s = 0; s < n->n_split; s++) {
        int64_t row = id - split_first_id(n, s);

        if (row >= 0 && row < n->v[s])
            return d9di_elem_cat(n->t, w[s], row * n->h);
    }
    return NULL;
}

static d9d_status collect_targets(cross_entropy_call *x)
{
    int64_t v = vocabulary(x->n);

    for (int64_t i = 0; i < x->n->rows; i++) {
        int32_t target = x->targets[i];

        if (target == x->n->ignore)
            continue;
        if (target < 0 || target >= v)
            return D9D_FAIL(D9D_EINVAL,
                            "%s: target %d of row %lld is outside the vocabulary of %lld", x->op,
                            (int)target, (long long)i, (long long)v);
        x->row[x->n_rows++] = i;
    }
    return D9D_OK;
}

static void call_release(cross_entropy_call *x)
{
    free(x->row);
    free(x->h);
    free(x->logits);
}

static d9d_status call_init(cross_entropy_call *x, const char *op,
                            const d9d_linear_cross_entropy_dims *n, const void *hidden,
                            const void *const *w, const int32_t *targets)
{
    int64_t tokens = d9di_i64_min(n->rows, T_BLOCK), width = d9di_i64_min(vocabulary(n), V_BLOCK);

    *x = (cross_entropy_call){.op = op, .n = n, .hidden = hidden, .w = w, .targets = targets};
    D9D_TRY(d9di_args_check_float(op, n->t));
    x->row = malloc((size_t)d9di_i64_max(n->rows, 1) * sizeof(*x->row));
    x->h = d9di_cpu_scratch_alloc(op, tokens * n->h);
    x->logits = d9di_cpu_scratch_alloc(op, tokens * width);
    if (x->row == NULL || x->h == NULL || x->logits == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for blocks of %lld tokens by %lld logits", op,
                        (long long)tokens, (long long)width);
    return collect_targets(x);
}

/* Gathers the hidden rows of tokens [first, first + n) of those that are not ignored. */
static void gather_hidden(cross_entropy_call *x, int64_t first, int64_t n)
{
    size_t bytes = (size_t)x->n->h * d9d_dtype_size(x->n->t);

    for (int64_t i = 0; i < n; i++)
        memcpy(d9di_elem_at(x->n->t, x->h, i * x->n->h),
               d9di_elem_cat(x->n->t, x->hidden, x->row[first + i] * x->n->h), bytes);
}

/* Advances to the next block of columns; start from {.split = 0, .n = 0}. */
static bool vocab_block_next(const cross_entropy_call *x, vocab_block *c)
{
    c->first += c->n;
    while (c->split < x->n->n_split && c->first >= x->n->v[c->split]) {
        c->split++;
        c->first = 0;
    }
    if (c->split >= x->n->n_split)
        return false;
    c->base = split_first_id(x->n, c->split);
    c->n = d9di_i64_min(x->n->v[c->split] - c->first, V_BLOCK);
    return true;
}

static const void *block_weight(const cross_entropy_call *x, const vocab_block *c)
{
    return d9di_elem_cat(x->n->t, x->w[c->split], c->first * x->n->h);
}

/* Adds the bias of some columns to the logits of `tokens` rows. */
static void logits_add_bias(cross_entropy_call *x, const vocab_block *c, int64_t tokens)
{
    const int64_t id = c->base + c->first;
    float buf[D9DI_BLOCK];

    for (int64_t i = 0; i < c->n; i += D9DI_BLOCK) {
        const int64_t n = d9di_i64_min(c->n - i, D9DI_BLOCK);
        const float *bias = d9di_cpu_read(x->n->t, x->n->bias, id + i, n, buf);

#pragma omp parallel for if (tokens * n > D9DI_MIN_PARALLEL)
        for (int64_t r = 0; r < tokens; r++)
            d9di_cpu_row_axpy(x->logits + r * c->n + i, 1.0f, bias, n);
    }
}

/* Logits of the gathered tokens in some columns, before the softcap. */
static d9d_status logits_compute(cross_entropy_call *x, const vocab_block *c, int64_t tokens)
{
    d9di_gemm_desc desc = {
        .alpha = 1.0f, .at = x->n->t, .bt = x->n->t, .ct = D9D_F32, .trans_b = true};
    d9di_gemm_job job = {
        .a = x->h, .b = block_weight(x, c), .c = x->logits, .m = tokens, .n = c->n, .k = x->n->h};

    D9D_TRY(d9di_gemm_run(x->op, &desc, &job, 1));
    if (x->n->bias != NULL)
        logits_add_bias(x, c, tokens);
    return D9D_OK;
}

/* Column of the token's target within the block, or -1. */
static int64_t target_column(const cross_entropy_call *x, const vocab_block *c, int64_t token)
{
    int64_t at = x->targets[x->row[token]] - c->base - c->first;

    return at >= 0 && at < c->n ? at : -1;
}

/* --- forward ---------------------------------------------------------------- */

/* A token's running maximum and sum of exp(logit - m), and the logit of its target. */
typedef struct online_softmax {
    float m, l, target, keep; /* keep: the factor by which the last block rescales earlier sums */
} online_softmax;

/* Derivative of the softcap where it is `logit`. */
static inline float softcap_grad(float logit, float cap)
{
    const float t = logit / cap;

    return cap > 0.0f ? 1.0f - t * t : 1.0f;
}

D9DI_CLONES static void row_mul_softcap_grad(float *p, const float *logit, float cap, int64_t n)
{
    const float by = 1.0f / cap;

#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        p[i] -= p[i] * (by * logit[i]) * (by * logit[i]); /* NOLINT: both are filled */
}

/* Logits become exp(logit - m) derivative; returns the sum without the derivatives. */
static float row_exp_softcap(float *logit, float m, float cap, int64_t n)
{
    float buf[D9DI_BLOCK], sum = 0.0f;

    if (cap == 0.0f)
        return d9di_cpu_row_exp(logit, logit, m, n);
    for (int64_t i = 0; i < n; i += D9DI_BLOCK) {
        const int64_t c = d9di_i64_min(n - i, D9DI_BLOCK);

        memcpy(buf, logit + i, (size_t)c * sizeof(*buf));
        sum += d9di_cpu_row_exp(logit + i, buf, m, c);
        row_mul_softcap_grad(logit + i, buf, cap, c);
    }
    return sum;
}

static void online_softmax_add(online_softmax *o, float *logit, float cap, int64_t n,
                               int64_t target)
{
    float m;

    d9di_cpu_row_softcap(logit, cap, logit, n);
    m = d9di_cpu_row_max(logit, n);
    if (target >= 0)
        o->target = logit[target];
    m = o->m > m ? o->m : m;
    o->keep = o->l == 0.0f ? 1.0f : d9di_cpu_expf(o->m - m);
    o->l = o->l * o->keep + row_exp_softcap(logit, m, cap, n);
    o->m = m;
}

/* sum = keep sum + exp(logits - m) derivative W for a block of columns. */
static d9d_status token_grad_accumulate(cross_entropy_call *x, const vocab_block *c,
                                        const online_softmax *o, int64_t n, float *sum, float beta)
{
    d9di_gemm_desc desc = {
        .alpha = 1.0f, .at = D9D_F32, .bt = x->n->t, .ct = D9D_F32, .beta = beta};
    d9di_gemm_job job = {
        .a = x->logits, .b = block_weight(x, c), .c = sum, .m = n, .n = x->n->h, .k = c->n};

    for (int64_t i = 0; i < n && beta != 0.0f; i++)
        if (o[i].keep != 1.0f)
            d9di_cpu_row_scale(sum + i * x->n->h, o[i].keep, sum + i * x->n->h, x->n->h);
    return d9di_gemm_run(x->op, &desc, &job, 1);
}

/* y[i ..] = a x + b w for a row of h numbers; x is float32, or y itself; w NULL counts as zero. */
static void row_combine(d9d_dtype t, void *y, int64_t at, float a, const float *x, float b,
                        const void *w, int64_t h)
{
    float buf[D9DI_BLOCK], row[D9DI_BLOCK];

    for (int64_t i = 0; i < h; i += D9DI_BLOCK) {
        int64_t c = d9di_i64_min(h - i, D9DI_BLOCK);
        const float *in = x != NULL ? x + i : d9di_cpu_read(t, y, at + i, c, buf);
        float *out = d9di_cpu_write_ptr(t, y, at + i, buf);

        d9di_cpu_row_scale(out, a, in, c);
        if (w != NULL)
            d9di_cpu_row_axpy(out, b, d9di_cpu_read(t, w, i, c, row), c);
        d9di_cpu_write(t, y, at + i, c, out);
    }
}

static d9d_status token_block_forward(cross_entropy_call *x, int64_t first, int64_t n, float *loss,
                                      float *lse, void *token_grad, float *sum)
{
    online_softmax o[T_BLOCK];
    vocab_block c = {0};
    float beta = 0.0f;

    for (int64_t i = 0; i < n; i++)
        o[i] = (online_softmax){.m = -INFINITY};
    gather_hidden(x, first, n);
    for (; vocab_block_next(x, &c); beta = 1.0f) {
        D9D_TRY(logits_compute(x, &c, n));
#pragma omp parallel for if (n * c.n > D9DI_MIN_PARALLEL)
        for (int64_t i = 0; i < n; i++)
            online_softmax_add(&o[i], x->logits + i * c.n, x->n->softcap, c.n,
                               target_column(x, &c, first + i));
        if (token_grad != NULL)
            D9D_TRY(token_grad_accumulate(x, &c, o, n, sum, beta));
    }
    if (beta == 0.0f && token_grad != NULL) /* there are no columns */
        memset(sum, 0, (size_t)(n * x->n->h) * sizeof(*sum));
    for (int64_t i = 0; i < n; i++) {
        float total = o[i].m + logf(o[i].l), by = o[i].l == 0.0f ? 0.0f : 1.0f / o[i].l;

        lse[x->row[first + i]] = total;
        loss[x->row[first + i]] = total - o[i].target;
        if (token_grad != NULL) /* sum / l - derivative W[target] */
            row_combine(x->n->t, token_grad, x->row[first + i] * x->n->h, by, sum + i * x->n->h,
                        -softcap_grad(o[i].target, x->n->softcap),
                        target_row(x->n, x->w, x->targets[x->row[first + i]]), x->n->h);
    }
    return D9D_OK;
}

d9d_status d9d_ref_linear_cross_entropy(d9d_stream s, const d9d_linear_cross_entropy_dims *n,
                                        float *loss, float *lse, void *token_grad,
                                        const void *hidden, const void *const *w,
                                        const int32_t *targets)
{
    float *sum = NULL;
    d9d_status st;
    cross_entropy_call x;

    (void)s;
    D9D_TRY_OR(st, call_init(&x, "cross-entropy", n, hidden, w, targets), out);
    st = D9D_ENOMEM;
    if (token_grad != NULL &&
        (sum = d9di_cpu_scratch_alloc(x.op, d9di_i64_min(n->rows, T_BLOCK) * n->h)) == NULL)
        goto out;
    memset(loss, 0, (size_t)n->rows * sizeof(*loss));
    memset(lse, 0, (size_t)n->rows * sizeof(*lse));
    if (token_grad != NULL)
        memset(token_grad, 0, (size_t)(n->rows * n->h) * d9d_dtype_size(n->t));
    st = D9D_OK;
    for (int64_t i = 0; i < x.n_rows; i += T_BLOCK)
        D9D_TRY_OR(st,
                   token_block_forward(&x, i, d9di_i64_min(x.n_rows - i, T_BLOCK), loss, lse,
                                       token_grad, sum),
                   out);
out:
    free(sum);
    call_release(&x);
    return st;
}

/* --- vocabulary parallelism --------------------------------------------------- */

/* lse and loss of token r. A part's logit of the target is lse - loss, 0 if the part lacks it. */
static void token_combine(const float *parts, int64_t n, int64_t rows, int64_t r, float *loss,
                          float *lse)
{
    float m = -INFINITY, sum = 0.0f, target = 0.0f;

    for (int64_t i = 0; i < n; i++)
        m = fmaxf(m, parts[2 * i * rows + r]);
    for (int64_t i = 0; i < n; i++) {
        float l = parts[2 * i * rows + r];

        if (l == -INFINITY)
            continue;
        sum += d9di_cpu_expf(l - m);
        target += l - parts[(2 * i + 1) * rows + r];
    }
    *lse = m + logf(sum);
    *loss = *lse - target;
}

d9d_status d9d_ref_linear_cross_entropy_combine(d9d_stream s,
                                                const d9d_linear_cross_entropy_dims *d, float *loss,
                                                float *lse, void *token_grad, const float *parts,
                                                int64_t n, int64_t rank, const void *const *w,
                                                const int32_t *targets)
{
    (void)s;
    D9D_TRY(d9di_args_check_float("linear_cross_entropy_combine", d->t));
#pragma omp parallel for if (d->rows * d->h > D9DI_MIN_PARALLEL)
    for (int64_t r = 0; r < d->rows; r++) {
        const float *own = parts + 2 * rank * d->rows + r;
        float f, derivative;

        loss[r] = lse[r] = 0.0f;
        if (targets[r] == d->ignore)
            continue;
        token_combine(parts, n, d->rows, r, &loss[r], &lse[r]);
        f = d9di_cpu_expf(own[0] - lse[r]);
        derivative = softcap_grad(own[0] - own[d->rows], d->softcap);
        if (token_grad != NULL)
            row_combine(d->t, token_grad, r * d->h, f, NULL, (f - 1.0f) * derivative,
                        target_row(d, w, targets[r]), d->h);
    }
    return D9D_OK;
}

/* --- backward --------------------------------------------------------------- */

d9d_status d9d_ref_linear_cross_entropy_dgrad(d9d_stream s, d9d_dtype t, void *dhidden,
                                              const float *dloss, const void *token_grad,
                                              int64_t rows, int64_t h)
{
    (void)s;
    D9D_TRY(d9di_args_check_float("cross-entropy gradient", t));
#pragma omp parallel for if (rows * h > D9DI_MIN_PARALLEL)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < h; i += D9DI_BLOCK) {
            int64_t c = d9di_i64_min(h - i, D9DI_BLOCK), at = r * h + i;
            float buf[D9DI_BLOCK], *out = d9di_cpu_write_ptr(t, dhidden, at, buf);

            d9di_cpu_row_scale(out, dloss[r], d9di_cpu_read(t, token_grad, at, c, buf), c);
            d9di_cpu_write(t, dhidden, at, c, out);
        }
    return D9D_OK;
}

D9DI_CLONES static void softmax_bwd_row(float *logit, float lse, float dloss, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        logit[i] = d9di_cpu_expf(logit[i] - lse) * dloss;
}

/* (exp(logit - lse) - [target]) dloss, with a softcap also times the derivative, of a token, in
 * place of its products hidden . w. */
static void dlogits_row(float *z, float cap, float lse, float dloss, int64_t n, int64_t target)
{
    float buf[D9DI_BLOCK];

    for (int64_t i = 0; i < n; i += D9DI_BLOCK) {
        const int64_t c = d9di_i64_min(n - i, D9DI_BLOCK);

        if (cap > 0.0f) {
            d9di_cpu_row_softcap(buf, cap, z + i, c);
            memcpy(z + i, buf, (size_t)c * sizeof(*z));
        }
        softmax_bwd_row(z + i, lse, dloss, c);
        if (target >= i && target < i + c)
            z[target] -= dloss;
        if (cap > 0.0f)
            row_mul_softcap_grad(z + i, buf, cap, c);
    }
}

/* Gradients of the gathered tokens' logits, in place of the logits. */
static d9d_status dlogits_compute(cross_entropy_call *x, const vocab_block *c, int64_t first,
                                  int64_t n, const float *dloss, const float *lse)
{
    D9D_TRY(logits_compute(x, c, n));
#pragma omp parallel for if (n * c->n > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = x->row[first + i];

        dlogits_row(x->logits + i * c->n, x->n->softcap, lse[row], dloss[row], c->n,
                    target_column(x, c, first + i));
    }
    return D9D_OK;
}

/* Adds the gradients of some columns' bias, the sums of the logits' gradients over tokens. */
static d9d_status bias_wgrad_block(d9d_stream s, const cross_entropy_call *x, const vocab_block *c,
                                   d9d_dtype gt, int64_t tokens)
{
    return x->n->dbias == NULL
               ? D9D_OK
               : d9d_ref_grouped_bias_wgrad(s, D9D_F32, gt,
                                            d9di_elem_at(gt, x->n->dbias, c->base + c->first), 1.0f,
                                            x->logits, NULL, tokens, 1, c->n);
}

/* dW of some columns, in float32: dw = beta dw + sum over blocks of tokens.  dw NULL: the bias's
 * gradient alone. */
static d9d_status wgrad_block(d9d_stream s, cross_entropy_call *x, const vocab_block *c,
                              d9d_dtype gt, float *dw, float beta, const float *dloss,
                              const float *lse)
{
    d9di_gemm_desc desc = {
        .alpha = 1.0f, .at = D9D_F32, .bt = x->n->t, .ct = D9D_F32, .trans_a = true, .beta = beta};
    d9di_gemm_job job = {.a = x->logits, .b = x->h, .c = dw, .m = c->n, .n = x->n->h};

    if (x->n_rows == 0)
        return dw != NULL ? d9di_gemm_run(x->op, &desc, &job, 1) : D9D_OK;
    for (int64_t i = 0; i < x->n_rows; i += T_BLOCK) {
        job.k = d9di_i64_min(x->n_rows - i, T_BLOCK);
        gather_hidden(x, i, job.k);
        D9D_TRY(dlogits_compute(x, c, i, job.k, dloss, lse));
        D9D_TRY(bias_wgrad_block(s, x, c, gt, job.k));
        if (dw != NULL)
            D9D_TRY(d9di_gemm_run(x->op, &desc, &job, 1));
        desc.beta = 1.0f;
    }
    return D9D_OK;
}

d9d_status d9d_ref_linear_cross_entropy_wgrad(d9d_stream s, const d9d_linear_cross_entropy_dims *n,
                                              d9d_dtype gt, void *const *dw, const float *beta,
                                              const float *dloss, const float *lse,
                                              const void *hidden, const void *const *w,
                                              const int32_t *targets)
{
    int64_t h = n->h;
    float *sum = NULL;
    vocab_block c = {0};
    d9d_status st;
    cross_entropy_call x;

    D9D_TRY_OR(st, call_init(&x, "cross-entropy gradient", n, hidden, w, targets), out);
    D9D_TRY_OR(st, d9di_args_check_float(x.op, gt), out);
    st = D9D_ENOMEM;
    if (gt != D9D_F32 &&
        (sum = d9di_cpu_scratch_alloc(x.op, d9di_i64_min(vocabulary(n), V_BLOCK) * h)) == NULL)
        goto out;
    st = D9D_OK;
    while (vocab_block_next(&x, &c)) {
        const float b = beta[c.split];
        float *at = gt == D9D_F32 && dw[c.split] != NULL ? (float *)dw[c.split] + c.first * h
                    : dw[c.split] != NULL                ? sum
                                                         : NULL;

        if (at == NULL && n->dbias == NULL)
            continue;
        D9D_TRY_OR(st, wgrad_block(s, &x, &c, gt, at, at == sum ? 0.0f : b, dloss, lse), out);
        if (at == NULL || gt == D9D_F32)
            continue;
        for (int64_t i = 0; i < c.n; i++)
            d9di_cpu_store_add(gt, dw[c.split], (c.first + i) * h, h, b, sum + i * h);
    }
out:
    free(sum);
    call_release(&x);
    return st;
}

/* --- forward and backward --------------------------------------------------- */

/* All-gathers this part's lse and loss into parts [ranks, 2, T], and combines them. */
static d9d_status fwd_bwd_of_ranks(d9d_stream s, const d9d_linear_cross_entropy_dims *n,
                                   float *loss, float *lse, void *token_grad, const void *hidden,
                                   const void *const *w, const int32_t *targets)
{
    const d9d_linear_cross_entropy_ranks *r = n->ranks;
    float *parts = d9di_cpu_scratch_alloc("cross-entropy", 2 * r->n * n->rows);
    float *local = parts + 2 * r->rank * n->rows;
    d9d_status st;

    if (parts == NULL)
        return D9D_ENOMEM;
    D9D_TRY_OR(
        st,
        d9d_ref_linear_cross_entropy(s, n, local + n->rows, local, token_grad, hidden, w, targets),
        out);
    D9D_TRY_OR(st, r->all_gather(r->arg, parts, 2 * n->rows), out);
    st = d9d_ref_linear_cross_entropy_combine(s, n, loss, lse, token_grad, parts, r->n, r->rank, w,
                                              targets);
out:
    free(parts);
    return st;
}

d9d_status d9d_ref_linear_cross_entropy_fwd_bwd(d9d_stream s,
                                                const d9d_linear_cross_entropy_dims *n,
                                                d9d_dtype gt, float *loss, void *token_grad,
                                                void *const *dw, const float *beta,
                                                const void *hidden, const void *const *w,
                                                const int32_t *targets)
{
    float *lse = d9di_cpu_scratch_alloc("cross-entropy", 2 * n->rows), *ones = lse + n->rows;
    d9d_status st;

    if (lse == NULL)
        return D9D_ENOMEM;
    assert(n->bias == NULL);
    for (int64_t i = 0; i < n->rows; i++)
        ones[i] = 1.0f;
    D9D_TRY_OR(st,
               n->ranks != NULL
                   ? fwd_bwd_of_ranks(s, n, loss, lse, token_grad, hidden, w, targets)
                   : d9d_ref_linear_cross_entropy(s, n, loss, lse, token_grad, hidden, w, targets),
               out);
    st = d9d_ref_linear_cross_entropy_wgrad(s, n, gt, dw, beta, ones, lse, hidden, w, targets);
out:
    free(lse);
    return st;
}
