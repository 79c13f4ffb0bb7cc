/* cpu_xent.c - a linear head and the cross-entropy of its logits, without the logits.
 *
 * loss = logsumexp(h W') - (h W')[target].  Logits are made a block of tokens by a block of
 * vocabulary at a time.  Tokens to be ignored are left out before any product.  Backward:
 *     dlogits = (exp(logits - lse) - [target]) dloss,  dh = dlogits W,  dW = dlogits' h.
 */
#include "cpu_common.h"
#include "cpu_math.h"

enum {
    T_BLOCK = 256, /* tokens */
    V_BLOCK = 4096 /* columns */
};

/* A call: its sizes, its tokens that count, and memory for one block. */
typedef struct xent {
    const char *op;
    const d9d_xent_dims *n;
    const void *hidden;
    const void *const *w;
    const int32_t *targets;
    int64_t *row;   /* tokens that count, ascending */
    int64_t n_rows;
    void *h;        /* their hidden rows: a block, of type t */
    float *logits;  /* [T_BLOCK, V_BLOCK] */
} xent;

/* Columns [first, first + n) of split i; `base` is the split's first id. */
typedef struct columns {
    int split;
    int64_t base, first, n;
} columns;

static int64_t vocabulary(const d9d_xent_dims *n)
{
    int64_t v = 0;

    for (int i = 0; i < n->n_split; i++)
        v += n->v[i];
    return v;
}

static d9d_status collect(xent *x)
{
    int64_t v = vocabulary(x->n);

    for (int64_t i = 0; i < x->n->rows; i++) {
        int32_t target = x->targets[i];

        if (target == x->n->ignore)
            continue;
        if (target < 0 || target >= v)
            return D9D_FAIL(D9D_EINVAL, "%s: target %d of row %lld is outside the vocabulary of %lld",
                            x->op, (int)target, (long long)i, (long long)v);
        x->row[x->n_rows++] = i;
    }
    return D9D_OK;
}

static void xent_release(xent *x)
{
    free(x->row);
    free(x->h);
    free(x->logits);
}

static d9d_status xent_init(xent *x, const char *op, const d9d_xent_dims *n, const void *hidden,
                            const void *const *w, const int32_t *targets)
{
    int64_t tokens = d9di_min(n->rows, T_BLOCK), width = d9di_min(vocabulary(n), V_BLOCK);

    *x = (xent){.op = op, .n = n, .hidden = hidden, .w = w, .targets = targets};
    D9D_TRY(d9di_check_float(op, n->t));
    x->row = malloc((size_t)d9di_max(n->rows, 1) * sizeof(*x->row));
    x->h = d9di_scratch(op, tokens * n->h);
    x->logits = d9di_scratch(op, tokens * width);
    if (x->row == NULL || x->h == NULL || x->logits == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for blocks of %lld tokens by %lld logits", op,
                        (long long)tokens, (long long)width);
    return collect(x);
}

/* Bring together the hidden rows of tokens [first, first + n) of those that count. */
static void gather(xent *x, int64_t first, int64_t n)
{
    size_t bytes = (size_t)x->n->h * d9d_dtype_size(x->n->t);

    for (int64_t i = 0; i < n; i++)
        memcpy(d9di_at(x->n->t, x->h, i * x->n->h),
               d9di_cat(x->n->t, x->hidden, x->row[first + i] * x->n->h), bytes);
}

/* Step to the next block of columns; start from {.split = 0, .n = 0}. */
static bool columns_next(const xent *x, columns *c)
{
    c->first += c->n;
    while (c->split < x->n->n_split && c->first >= x->n->v[c->split]) {
        c->base += x->n->v[c->split++];
        c->first = 0;
    }
    if (c->split >= x->n->n_split)
        return false;
    c->n = d9di_min(x->n->v[c->split] - c->first, V_BLOCK);
    return true;
}

static const void *weight(const xent *x, const columns *c)
{
    return d9di_cat(x->n->t, x->w[c->split], c->first * x->n->h);
}

/* Logits of the gathered tokens in some columns. */
static d9d_status logits_make(xent *x, const columns *c, int64_t tokens)
{
    d9di_gemm_how how = {.at = x->n->t, .bt = x->n->t, .ct = D9D_F32, .trans_b = true};
    d9di_gemm_job job = {.a = x->h, .b = weight(x, c), .c = x->logits, .m = tokens, .n = c->n,
                         .k = x->n->h};

    return d9di_gemm_run(x->op, &how, &job, 1);
}

/* Column of the token's target within the block, or -1. */
static int64_t target_column(const xent *x, const columns *c, int64_t token)
{
    int64_t at = x->targets[x->row[token]] - c->base - c->first;

    return at >= 0 && at < c->n ? at : -1;
}

/* --- forward ---------------------------------------------------------------- */

/* Running maximum and sum of exp(logit - m) of a token, and the logit of its target. */
typedef struct online {
    float m, l, target;
} online;

static void online_add(online *o, float *logit, int64_t n, int64_t target)
{
    float m = d9di_row_max(logit, n);

    if (target >= 0)
        o->target = logit[target];
    m = o->m > m ? o->m : m;
    o->l *= o->l == 0.0f ? 1.0f : d9di_expf(o->m - m);
    o->l += d9di_row_exp(logit, logit, m, n);
    o->m = m;
}

static d9d_status forward_block(xent *x, int64_t first, int64_t n, float *loss, float *lse)
{
    online o[T_BLOCK];
    columns c = {0};

    for (int64_t i = 0; i < n; i++)
        o[i] = (online){.m = -INFINITY};
    gather(x, first, n);
    while (columns_next(x, &c)) {
        D9D_TRY(logits_make(x, &c, n));
#pragma omp parallel for if (n * c.n > D9DI_SERIAL)
        for (int64_t i = 0; i < n; i++)
            online_add(&o[i], x->logits + i * c.n, c.n, target_column(x, &c, first + i));
    }
    for (int64_t i = 0; i < n; i++) {
        float sum = o[i].m + logf(o[i].l);

        lse[x->row[first + i]] = sum;
        loss[x->row[first + i]] = sum - o[i].target;
    }
    return D9D_OK;
}

d9d_status d9d_ref_xent(d9d_stream s, const d9d_xent_dims *n, float *loss, float *lse,
                        const void *hidden, const void *const *w, const int32_t *targets)
{
    d9d_status st;
    xent x;

    (void)s;
    D9D_TRY_OR(st, xent_init(&x, "cross-entropy", n, hidden, w, targets), out);
    memset(loss, 0, (size_t)n->rows * sizeof(*loss));
    memset(lse, 0, (size_t)n->rows * sizeof(*lse));
    for (int64_t i = 0; i < x.n_rows; i += T_BLOCK)
        D9D_TRY_OR(st, forward_block(&x, i, d9di_min(x.n_rows - i, T_BLOCK), loss, lse), out);
out:
    xent_release(&x);
    return st;
}

/* --- backward --------------------------------------------------------------- */

D9DI_CLONES static void softmax_grad(float *logit, float lse, float dloss, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        logit[i] = d9di_expf(logit[i] - lse) * dloss;
}

/* Gradients of the gathered tokens' logits, in place of the logits. */
static d9d_status dlogits_make(xent *x, const columns *c, int64_t first, int64_t n,
                               const float *dloss, const float *lse)
{
    D9D_TRY(logits_make(x, c, n));
#pragma omp parallel for if (n * c->n > D9DI_SERIAL)
    for (int64_t i = 0; i < n; i++) {
        int64_t row = x->row[first + i], target = target_column(x, c, first + i);
        float *d = x->logits + i * c->n;

        softmax_grad(d, lse[row], dloss[row], c->n);
        if (target >= 0)
            d[target] -= dloss[row];
    }
    return D9D_OK;
}

static d9d_status din_block(xent *x, int64_t first, int64_t n, void *dhidden, float *sum,
                            const float *dloss, const float *lse)
{
    d9di_gemm_how how = {.at = D9D_F32, .bt = x->n->t, .ct = D9D_F32};
    d9di_gemm_job job = {.a = x->logits, .c = sum, .m = n, .n = x->n->h};
    columns c = {0};

    gather(x, first, n);
    while (columns_next(x, &c)) {
        D9D_TRY(dlogits_make(x, &c, first, n, dloss, lse));
        job.b = weight(x, &c);
        job.k = c.n;
        D9D_TRY(d9di_gemm_run(x->op, &how, &job, 1));
        how.beta = 1.0f;
    }
    for (int64_t i = 0; i < n; i++)
        d9di_store(x->n->t, dhidden, x->row[first + i] * x->n->h, x->n->h, sum + i * x->n->h);
    return D9D_OK;
}

d9d_status d9d_ref_xent_din(d9d_stream s, const d9d_xent_dims *n, void *dhidden, const float *dloss,
                            const float *lse, const void *hidden, const void *const *w,
                            const int32_t *targets)
{
    float *sum = NULL;
    d9d_status st;
    xent x;

    (void)s;
    D9D_TRY_OR(st, xent_init(&x, "cross-entropy gradient", n, hidden, w, targets), out);
    st = D9D_ENOMEM;
    if ((sum = d9di_scratch(x.op, d9di_min(n->rows, T_BLOCK) * n->h)) == NULL)
        goto out;
    memset(dhidden, 0, (size_t)(n->rows * n->h) * d9d_dtype_size(n->t));
    st = D9D_OK;
    for (int64_t i = 0; i < x.n_rows; i += T_BLOCK)
        D9D_TRY_OR(st, din_block(&x, i, d9di_min(x.n_rows - i, T_BLOCK), dhidden, sum, dloss, lse),
                   out);
out:
    free(sum);
    xent_release(&x);
    return st;
}

/* dW of some columns, in float32: dw = beta dw + sum over blocks of tokens. */
static d9d_status dw_columns(xent *x, const columns *c, float *dw, float beta, const float *dloss,
                             const float *lse)
{
    d9di_gemm_how how = {.at = D9D_F32, .bt = x->n->t, .ct = D9D_F32, .trans_a = true,
                         .beta = beta};
    d9di_gemm_job job = {.a = x->logits, .b = x->h, .c = dw, .m = c->n, .n = x->n->h};

    if (x->n_rows == 0)
        return d9di_gemm_run(x->op, &how, &job, 1);
    for (int64_t i = 0; i < x->n_rows; i += T_BLOCK) {
        job.k = d9di_min(x->n_rows - i, T_BLOCK);
        gather(x, i, job.k);
        D9D_TRY(dlogits_make(x, c, i, job.k, dloss, lse));
        D9D_TRY(d9di_gemm_run(x->op, &how, &job, 1));
        how.beta = 1.0f;
    }
    return D9D_OK;
}

d9d_status d9d_ref_xent_dw(d9d_stream s, const d9d_xent_dims *n, d9d_dtype gt, void *const *dw,
                           const float *beta, const float *dloss, const float *lse,
                           const void *hidden, const void *const *w, const int32_t *targets)
{
    int64_t h = n->h;
    float *sum = NULL;
    columns c = {0};
    d9d_status st;
    xent x;

    (void)s;
    D9D_TRY_OR(st, xent_init(&x, "cross-entropy gradient", n, hidden, w, targets), out);
    D9D_TRY_OR(st, d9di_check_float(x.op, gt), out);
    st = D9D_ENOMEM;
    if (gt != D9D_F32 &&
        (sum = d9di_scratch(x.op, d9di_min(vocabulary(n), V_BLOCK) * h)) == NULL)
        goto out;
    st = D9D_OK;
    while (columns_next(&x, &c)) {
        float b = beta[c.split];

        if (dw[c.split] == NULL)
            continue;
        if (gt == D9D_F32) {
            D9D_TRY_OR(st, dw_columns(&x, &c, (float *)dw[c.split] + c.first * h, b, dloss, lse),
                       out);
            continue;
        }
        D9D_TRY_OR(st, dw_columns(&x, &c, sum, 0.0f, dloss, lse), out);
        for (int64_t i = 0; i < c.n; i++)
            d9di_store_add(gt, dw[c.split], (c.first + i) * h, h, b, sum + i * h);
    }
out:
    free(sum);
    xent_release(&x);
    return st;
}
